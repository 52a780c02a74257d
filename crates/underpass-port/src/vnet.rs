//! `struct virtio_net_hdr`, virtio 1.2 section 5.1.6, in the machine's byte order: what TUN devices and
//! AF_PACKET sockets say of the [`Offload`] of a packet.
//!
//! ```text
//! | flags | GSO type | header length | GSO size | checksum start | checksum offset |
//!     1        1             2            2              2               2
//! ```

use underpass_engine::buffer::{Offload, Packet, Segment, SegmentKind};
use underpass_engine::offload;

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

/// A segment whose kind is not one of ours, or in which no header of its kind is found: it cannot be cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct UnknownSegment;

/// Notes on `packet`, which is a frame, what its header says; `link` bytes were put before the packet since.
///
/// A segment whose checksum needs nothing is one that the kernel or a device has put together of parts with right
/// checksums (`rx-gro-list`): what comes of it needs checksums, so the same is noted as for one whose sender left them.
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
    if kind.is_some() && size == 0 {
        return Err(UnknownSegment);
    }
    let segment = kind.map(|kind| Segment { size, kind });
    match segment {
        Some(segment) if flags & NEEDS_CHECKSUM == 0 => {
            return offload::reopen(packet, segment).then_some(()).ok_or(UnknownSegment);
        }
        // Of one packet that carries the flag ECN alone, nothing is left undone.
        None if flags & NEEDS_CHECKSUM == 0 => return Ok(()),
        _ => {}
    }
    packet.set_offload(Offload {
        start: usize::from(u16::from_ne_bytes([start, start1])) + link,
        field: u16::from_ne_bytes([field, field1]),
        segment,
    });
    if segment.is_some() {
        offload::mend_strung(packet);
    }
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
    use underpass_packet::checksum::Sum;
    use underpass_packet::protocol;

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
        // An unknown kind; none of its kind in the frame; no size, with a checksum to finish and without.
        for bad in [
            [1, 3, 0, 0, 9, 0, 1, 0, 6, 0],
            [0, 1, 0, 0, 9, 0, 1, 0, 6, 0],
            [1, 1, 0, 0, 0, 0, 1, 0, 6, 0],
            [0, 1, 0, 0, 0, 0, 1, 0, 6, 0],
        ] {
            assert_eq!(read(bad, 0, &mut packet), Err(UnknownSegment));
        }
    }

    /// A frame of 1000 bytes of payload behind this upper header, in IPv6 with a destination options header or IPv4.
    fn frame(ipv6: bool, protocol: u8, upper: &[u8]) -> Vec<u8> {
        let len = (upper.len() + 1000) as u16;
        let [high, low] = (len + 8).to_be_bytes();
        let mut frame = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]].concat();
        if ipv6 {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, high, low, 60, 64]);
            frame.extend([[0xfd; 16], [0xfc; 16]].concat());
            frame.extend([protocol, 0, 1, 4, 0, 0, 0, 0]);
        } else {
            let [high, low] = (len + 20).to_be_bytes();
            frame.extend([
                8, 0, 0x45, 0, high, low, 0, 1, 0x40, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
            ]);
        }
        frame.extend(upper);
        frame.resize(frame.len() + 1000, 7);
        frame
    }

    /// What the kernel has put together of parts whose checksums are right is a segment as any other: the header says
    /// nothing of where its checksum is (0), or that it is valid (`VIRTIO_NET_HDR_F_DATA_VALID`, 2).
    #[test]
    fn finished_parts_put_together() {
        let mut pool = Pool::new(1);
        let mut packet = pool.take().unwrap();
        let tcp = [0x12, 0x34, 0, 80, 0, 0, 0, 1, 0, 0, 0, 9, 0x50, 0x10, 1, 0, 0xab, 0xcd, 0, 0];
        let [high, low] = 1008_u16.to_be_bytes();
        // That there is no checksum Linux takes for a reason not to put datagrams together; of another's, make one.
        let (udp, bare) = ([0, 9, 0, 9, high, low, 0xab, 0xcd], [0, 9, 0, 9, high, low, 0, 0]);
        let cases = [
            (false, protocol::TCP, &tcp[..], TCP4, SegmentKind::Tcp4, 16),
            (true, protocol::TCP, &tcp[..], TCP6 | ECN, SegmentKind::Tcp6, 16),
            (false, protocol::UDP, &udp[..], UDP, SegmentKind::Udp, 6),
            (true, protocol::UDP, &udp[..], UDP, SegmentKind::Udp, 6),
            (false, protocol::UDP, &bare[..], UDP, SegmentKind::Udp, 6),
        ];
        for (ipv6, inside, upper, gso, kind, field) in cases {
            for (flags, tagged) in [(0, false), (2, false), (0, true)] {
                let mut bytes = frame(ipv6, inside, upper);
                if tagged {
                    bytes.splice(12..12, [0x81, 0, 0, 5]);
                }
                packet.set(HEADROOM, &bytes).unwrap();
                let mut header = [flags, gso, 0, 0, 0, 0, 0, 0, 0, 0];
                header[4..6].copy_from_slice(&400_u16.to_ne_bytes());
                assert_eq!(read(header, 0, &mut packet), Ok(()), "{inside} {ipv6}");
                let start = bytes.len() - 1000 - upper.len();
                let segment = Some(Segment { size: 400, kind });
                assert_eq!(packet.offload(), Some(Offload { start, field, segment }));
                let len = (upper.len() + 1000) as u16;
                let pseudo = if ipv6 {
                    Sum::pseudo_ipv6([0xfd; 16], [0xfc; 16], inside, len.into())
                } else {
                    Sum::pseudo_ipv4([10, 0, 0, 1], [10, 0, 0, 2], inside, len)
                };
                let at = start + usize::from(field);
                bytes[at..at + 2].copy_from_slice(&pseudo.fold().to_be_bytes());
                assert!(packet.bytes() == bytes, "{inside} {ipv6}");
                assert_eq!(write(&packet, 0)[0], NEEDS_CHECKSUM);
            }
        }
    }
}
