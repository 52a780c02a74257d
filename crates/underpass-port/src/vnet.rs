//! `struct virtio_net_hdr`, virtio 1.2 section 5.1.6, in the machine's byte order: what TUN devices and
//! AF_PACKET sockets say of the [`Offload`] of a packet.
//!
//! ```text
//! | flags | GSO type | header length | GSO size | checksum start | checksum offset |
//!     1        1             2            2              2               2
//! ```

use underpass_engine::buffer::{Offload, Packet, Segment, SegmentKind};

/// Its length.
pub(crate) const LEN: usize = 10;

const NEEDS_CHECKSUM: u8 = 1;
const TCP4: u8 = 1;
const TCP6: u8 = 4;
const UDP: u8 = 5;
/// The TCP segment carries the congestion window reduced flag, which stands in its first part only.
const ECN: u8 = 0x80;

const TCP_LENGTH: usize = 12;
const TCP_FLAGS: usize = 13;
const CWR: u8 = 0x80;

/// A segment whose kind is not one of ours: it cannot be cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct UnknownSegment;

/// Notes on `packet` what its header says; `link` bytes were put before the packet since.
#[inline]
pub(crate) fn read(header: [u8; LEN], link: usize, packet: &mut Packet) -> Result<(), UnknownSegment> {
    let [flags, gso, _, _, size, size1, start, start1, field, field1] = header;
    if flags & NEEDS_CHECKSUM == 0 && gso == 0 {
        return Ok(());
    }
    let size = u16::from_ne_bytes([size, size1]);
    let kind = match gso & !ECN {
        0 => None,
        TCP4 => Some(SegmentKind::Tcp4),
        TCP6 => Some(SegmentKind::Tcp6),
        UDP => Some(SegmentKind::Udp),
        _ => return Err(UnknownSegment),
    };
    if flags & NEEDS_CHECKSUM == 0 || (kind.is_some() && size == 0) {
        return Err(UnknownSegment);
    }
    packet.set_offload(Offload {
        start: usize::from(u16::from_ne_bytes([start, start1])) + link,
        field: u16::from_ne_bytes([field, field1]),
        segment: kind.map(|kind| Segment { size, kind }),
    });
    Ok(())
}

/// The header for `packet`, without the `link` bytes that it starts with.
#[inline]
pub(crate) fn write(packet: &Packet, link: usize) -> [u8; LEN] {
    if packet.has_offload() { write_offload(packet, link) } else { [0; LEN] }
}

fn write_offload(packet: &Packet, link: usize) -> [u8; LEN] {
    let Some((offload, start)) =
        packet.offload().and_then(|offload| Some((offload, offload.start.checked_sub(link)? as u16)))
    else {
        return [0; LEN];
    };
    let upper = packet.bytes().get(offload.start..).unwrap_or_default();
    let (mut gso, mut size, mut headers) = (0, 0, 0);
    if let Some(segment) = offload.segment {
        size = segment.size;
        let tcp = usize::from(upper.get(TCP_LENGTH).copied().unwrap_or_default() >> 4) * 4;
        let ecn = if upper.get(TCP_FLAGS).is_some_and(|flags| flags & CWR != 0) { ECN } else { 0 };
        let (kind, len) = match segment.kind {
            SegmentKind::Tcp4 => (TCP4 | ecn, tcp),
            SegmentKind::Tcp6 => (TCP6 | ecn, tcp),
            SegmentKind::Udp => (UDP, 8),
        };
        (gso, headers) = (kind, start + len as u16);
    }
    let mut header = [NEEDS_CHECKSUM, gso, 0, 0, 0, 0, 0, 0, 0, 0];
    let values = [headers, size, start, offload.field];
    for (to, value) in header[2..].as_chunks_mut::<2>().0.iter_mut().zip(values) {
        *to = value.to_ne_bytes();
    }
    header
}

#[cfg(test)]
mod tests {
    use underpass_engine::buffer::{HEADROOM, Pool};

    use super::*;

    /// What is read is written again, behind headers that came in between.
    #[test]
    fn read_and_write() {
        let mut pool = Pool::new(1);
        let mut packet = pool.take().unwrap();
        let mut frame = vec![0; 300];
        frame[54 + TCP_LENGTH] = 0x80;
        for (kind, headers) in [(0, 0), (TCP4, 86_u16), (TCP6, 86), (UDP, 62)] {
            let size = if kind == 0 { 0 } else { 100_u16 };
            packet.set(HEADROOM, &frame).unwrap();
            let mut header = [NEEDS_CHECKSUM, kind, 0, 0, 0, 0, 0, 0, 16, 0];
            header[4..6].copy_from_slice(&size.to_ne_bytes());
            header[6..8].copy_from_slice(&40_u16.to_ne_bytes());
            read(header, 14, &mut packet).unwrap();
            header[6..8].copy_from_slice(&54_u16.to_ne_bytes());
            header[2..4].copy_from_slice(&headers.to_ne_bytes());
            assert_eq!(write(&packet, 0), header);
        }
        packet.set(HEADROOM, &frame).unwrap();
        assert_eq!(read([0, 0, 9, 9, 9, 9, 9, 9, 9, 9], 0, &mut packet), Ok(()));
        assert_eq!(write(&packet, 0), [0; LEN]);
        for bad in
            [[1, 3, 0, 0, 9, 0, 1, 0, 6, 0], [0, 1, 0, 0, 9, 0, 1, 0, 6, 0], [1, 1, 0, 0, 0, 0, 1, 0, 6, 0]]
        {
            assert_eq!(read(bad, 0, &mut packet), Err(UnknownSegment));
        }
    }
}
