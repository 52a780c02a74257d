//! What a virtual device leaves undone: TCP and UDP checksums that are not finished, and segments that stand
//! for many. A port that can say so to its device passes them on; another finishes and cuts them with this,
//! and so does a worker that fragments them.

mod leave;
mod walk;

use underpass_packet::checksum::Sum;
use underpass_packet::{FromBytes, ipv4, ipv6, protocol};

use crate::buffer::{NoRoom, Offload, Packet, Pool, Segment, SegmentKind};
pub use leave::{Leaves, Over, Tunnel, Uneven, leaves, make_even};
use walk::{Layer, Walk, of_nibble, walk, walk_frame};

/// TCP's checksum and UDP's, in their headers.
const TCP_FIELD: u16 = 16;
const UDP_FIELD: u16 = 6;
/// GRE's, where it has one.
const GRE_FIELD: usize = 4;
const TCP_LEN: usize = 20;
const UDP_LEN: usize = 8;

/// TCP flags that stand in the last segment only, and in the first only.
const FIN_PSH: u8 = 0x09;
const CWR: u8 = 0x80;
const TCP_FLAGS: usize = 13;

/// Finds out what was left undone in a frame of which the device says nothing: a TCP or UDP checksum that is
/// the sum of its pseudo header is not finished, and a TCP packet of more than `mtu` bytes stands for
/// several. A finished checksum that happens to be that sum comes out of [`finish`] as it was.
pub fn find(packet: &mut Packet, mtu: usize) {
    let Some(Walk { upper: Some((inside, start)), pseudo, end, layers, .. }) =
        walk_frame(packet.bytes(), None)
    else {
        return;
    };
    let field = if inside == protocol::TCP { TCP_FIELD } else { UDP_FIELD };
    let at = start + usize::from(field);
    if at + 2 > end || get(packet.bytes(), at) != pseudo.fold() {
        return;
    }
    let segment = match layers.as_slice() {
        [(layer, ip)] if inside == protocol::TCP && end - ip > mtu => {
            let kind = if *layer == Layer::Ip4 { SegmentKind::Tcp4 } else { SegmentKind::Tcp6 };
            let header = packet.bytes().get(start + 12).map_or(TCP_LEN, |byte| usize::from(byte >> 4) * 4);
            let size = (mtu + ip).saturating_sub(start + header).max(1) as u16;
            Some(Segment { size, kind })
        }
        _ => None,
    };
    packet.truncate(end);
    packet.set_offload(Offload { start, field, segment });
}

/// Takes up a frame of which the device says that it stands for several and that nothing is left undone: the kernel has
/// found each part's checksum right and put the parts together, and what stands in the field is the first part's. The
/// field becomes the sum of the pseudo header, as if the sender had left it, so that each part gets a checksum of its own.
/// `false`: there is no such header, and nothing has changed.
pub fn reopen(packet: &mut Packet, segment: Segment) -> bool {
    let Some(Walk { upper: Some((inside, start)), pseudo, end, .. }) = walk_frame(packet.bytes(), None)
    else {
        return false;
    };
    let (wanted, field) = match segment.kind {
        SegmentKind::Tcp4 | SegmentKind::Tcp6 => (protocol::TCP, TCP_FIELD),
        SegmentKind::Udp => (protocol::UDP, UDP_FIELD),
    };
    let at = start + usize::from(field);
    if inside != wanted || at + 2 > end || end > packet.len() {
        return false;
    }
    packet.truncate(end);
    put(packet.bytes_mut(), at, pseudo.fold());
    packet.set_offload(Offload { start, field, segment: Some(segment) });
    true
}

/// The checksum field of a frame that stands for several becomes the sum of the whole's pseudo header, if it is that of
/// the first part's: the kernel may string parts together without touching what their sender left in them.
pub fn mend_strung(packet: &mut Packet) {
    let Some(Offload { start, field, segment: Some(Segment { size, kind }) }) = packet.offload() else {
        return;
    };
    let bytes = packet.bytes();
    let Some(Walk { upper: Some((_, at)), pseudo, end, .. }) = walk_frame(bytes, Some(start)) else { return };
    let header = match kind {
        SegmentKind::Udp => UDP_LEN,
        _ => usize::from(bytes.get(start + 12).copied().unwrap_or_default() >> 4) * 4,
    };
    if at != start || end < start {
        return;
    }
    let first = header + usize::from(size);
    let of_first = pseudo.add_u32(!((end - start) as u32)).add_u32(first as u32).fold();
    let at = start + usize::from(field);
    if first < end - start && get(bytes, at) == of_first {
        put(packet.bytes_mut(), at, pseudo.fold());
    }
}

/// Finishes the checksum that a packet was left with, if it was. `skb_checksum_help` writes 0xffff for 0 whatever the
/// protocol, though for UDP alone 0 says that there is none.
pub fn finish(packet: &mut Packet) {
    if let Some(offload) = packet.offload() {
        finish_at(packet.bytes_mut(), offload.start, offload.field, true);
    }
    packet.clear_offload();
}

/// Finishes the checksum of the header at `start`, whose field holds the sum of the pseudo header. A sum of 0 may have to
/// be 0xffff, which is the same to who adds up.
fn finish_at(bytes: &mut [u8], start: usize, field: u16, never_zero: bool) {
    let Some(header) = bytes.get_mut(start..) else { return };
    let sum = Sum::new().add_bytes(header).checksum();
    let sum = if sum == 0 && never_zero { 0xffff } else { sum };
    put(header, usize::from(field), sum);
}

fn put(bytes: &mut [u8], at: usize, value: u16) {
    if let Some(field) = bytes.get_mut(at..at + 2) {
        field.copy_from_slice(&value.to_be_bytes());
    }
}

fn get(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..).and_then(|bytes| bytes.first_chunk()).map_or(0, |bytes| u16::from_be_bytes(*bytes))
}

/// A segment that is being cut: IP headers, tunnels and all are repeated in each part, with their lengths,
/// IPv4 identifications, sequence number, flags and checksums as they would be had the sender cut it.
pub struct Cut {
    walk: Walk,
    kind: SegmentKind,
    start: usize,
    /// Length of all headers.
    headers: usize,
    size: usize,
    /// How much of the payload is already cut off.
    done: usize,
    index: u16,
}

impl Cut {
    /// Of a frame. `None`: it is no segment, or not one that can be cut.
    pub fn new(packet: &Packet) -> Option<Self> {
        Self::along(packet, walk_frame)
    }

    /// Of an IP packet.
    pub(crate) fn of_ip(packet: &Packet) -> Option<Self> {
        let inside = of_nibble(*packet.bytes().first()?)?;
        Self::along(packet, |bytes, stop| walk(bytes, 0, inside, stop))
    }

    fn along(packet: &Packet, walk: impl FnOnce(&[u8], Option<usize>) -> Option<Walk>) -> Option<Self> {
        let Offload { start, segment: Some(Segment { size, kind }), .. } = packet.offload()? else {
            return None;
        };
        let bytes = packet.bytes();
        let walk = walk(bytes, Some(start))?;
        let wanted = if kind == SegmentKind::Udp { protocol::UDP } else { protocol::TCP };
        if walk.upper != Some((wanted, start)) || walk.end > bytes.len() {
            return None;
        }
        let upper = match kind {
            SegmentKind::Udp => UDP_LEN,
            _ => usize::from(bytes.get(start + 12)? >> 4) * 4,
        };
        let headers = start + upper;
        let fits = (upper >= TCP_LEN || kind == SegmentKind::Udp) && headers < walk.end;
        fits.then_some(Self { walk, kind, start, headers, size: size.into(), done: 0, index: 0 })
    }

    /// The next part, in a slot of the pool; `None` after the last.
    pub fn next(&mut self, packet: &Packet, pool: &mut Pool) -> Option<Result<Packet, NoRoom>> {
        let payload = packet.bytes().get(self.headers..self.walk.end)?;
        let rest = payload.get(self.done..).filter(|rest| !rest.is_empty())?;
        let piece = rest.get(..self.size.min(rest.len()))?;
        let last = piece.len() == rest.len();
        let len = self.headers + piece.len();
        let Some(mut part) = pool.take_for(len) else { return Some(Err(NoRoom)) };
        let bytes = part.bytes_mut();
        let (headers, body) = bytes.split_at_mut(self.headers);
        headers.copy_from_slice(packet.bytes().get(..self.headers)?);
        body.copy_from_slice(piece);
        self.mend(bytes, last);
        self.done += piece.len();
        self.index += 1;
        Some(Ok(part))
    }

    /// Makes the headers of a part, which are those of the whole, its own.
    fn mend(&self, bytes: &mut [u8], last: bool) {
        let len = bytes.len();
        let inside = self.mend_upper(bytes, len, last);
        // A checksum of 0 would say of UDP that there is none: RFC 768. In TCP `tcp_gso_segment` leaves it, where the device
        // makes no checksums.
        finish_at(bytes, self.start, self.field(), self.kind == SegmentKind::Udp);
        self.mend_outer(bytes, len, inside);
    }

    /// Where the innermost checksum is in its header.
    fn field(&self) -> u16 {
        if self.kind == SegmentKind::Udp { UDP_FIELD } else { TCP_FIELD }
    }

    /// The innermost header of a frame of `len` bytes, but for its checksum. The sum of the pseudo header.
    fn mend_upper(&self, bytes: &mut [u8], len: usize, last: bool) -> u16 {
        let (whole, upper) = (self.walk.end - self.start, len.saturating_sub(self.start));
        let Some(header) = bytes.get_mut(self.start..) else { return 0 };
        if self.kind == SegmentKind::Udp {
            put(header, 4, upper as u16);
        } else {
            if let Some(sequence) = header.get_mut(4..).and_then(|field| field.first_chunk_mut::<4>()) {
                *sequence = u32::from_be_bytes(*sequence).wrapping_add(self.done as u32).to_be_bytes();
            }
            if let Some(flags) = header.get_mut(TCP_FLAGS) {
                *flags &= if last { 0xff } else { !FIN_PSH };
                *flags &= if self.index == 0 { 0xff } else { !CWR };
            }
        }
        // The pseudo header's length is that of the whole.
        let field = usize::from(self.field());
        let pseudo = Sum::new().add_u16(get(header, field)).add_u32(!(whole as u32));
        let pseudo = pseudo.add_u32(upper as u32).fold();
        put(header, field, pseudo);
        pseudo
    }

    /// The headers around it, of a frame of `len` bytes. From TCP or UDP on, all adds up to the complement of `inside`,
    /// the sum of the pseudo header.
    fn mend_outer(&self, bytes: &mut [u8], len: usize, inside: u16) {
        let sum_from = |bytes: &[u8], at: usize| {
            Sum::new().add_bytes(bytes.get(at..self.start).unwrap_or_default()).add_u16(!inside)
        };
        // From the inside out, as the checksum of an outer UDP header is over all that is inside.
        for &(layer, at) in self.walk.layers.iter().rev() {
            let length = len.saturating_sub(at);
            let Some(header) = bytes.get_mut(at..) else { return };
            match layer {
                Layer::Ip4 => {
                    let Ok((ip, rest)) = ipv4::Header::mut_from_prefix(header) else { return };
                    let options = ip.header_len() - ipv4::Header::LEN;
                    ip.total_length = (length as u16).into();
                    ip.identification = ip.identification.get().wrapping_add(self.index).into();
                    ip.fill_checksum(rest.get(..options).unwrap_or_default());
                }
                Layer::Ip6 => put(header, 4, length.saturating_sub(ipv6::Header::LEN) as u16),
                Layer::Udp => {
                    put(header, 4, length as u16);
                    if get(header, usize::from(UDP_FIELD)) != 0 {
                        let pseudo = self.pseudo_of(bytes, (at, length)).unwrap_or_default();
                        put(bytes, at + usize::from(UDP_FIELD), pseudo);
                        let sum = sum_from(bytes, at).checksum();
                        // 0 would say that there is none: RFC 768.
                        put(bytes, at + usize::from(UDP_FIELD), if sum == 0 { 0xffff } else { sum });
                    }
                }
                Layer::Gre { checksum, sequence } => {
                    if let Some(field) = sequence.and_then(|at| header.get_mut(at..)?.first_chunk_mut::<4>())
                    {
                        *field = u32::from_be_bytes(*field).wrapping_add(self.index.into()).to_be_bytes();
                    }
                    if checksum {
                        put(bytes, at + GRE_FIELD, 0);
                        put(bytes, at + GRE_FIELD, sum_from(bytes, at).checksum());
                    }
                }
            }
        }
    }

    /// The sum of the pseudo header of an outer UDP header at `at`, for `length` bytes.
    fn pseudo_of(&self, bytes: &[u8], (at, length): (usize, usize)) -> Option<u16> {
        let &(layer, ip) = self.walk.layers.iter().rev().find(|(_, other)| *other < at)?;
        let header = bytes.get(ip..)?;
        Some(match layer {
            Layer::Ip4 => {
                let (ip, _) = ipv4::Header::ref_from_prefix(header).ok()?;
                let (source, destination) = (ip.source().octets(), ip.destination().octets());
                Sum::pseudo_ipv4(source, destination, protocol::UDP, length as u16).fold()
            }
            _ => {
                let (ip, _) = ipv6::Header::ref_from_prefix(header).ok()?;
                let (source, destination) = (ip.source().octets(), ip.destination().octets());
                Sum::pseudo_ipv6(source, destination, protocol::UDP, length as u32).fold()
            }
        })
    }
}

/// Leaves of a frame that stands for several the first `parts`. `false`: it is none, or not one that can be cut, and
/// nothing has changed.
pub(crate) fn keep(packet: &mut Packet, parts: usize) -> bool {
    let (Some(cut), Some(offload)) = (Cut::new(packet), packet.offload()) else { return false };
    let len = cut.headers + parts * cut.size;
    if parts == 0 || cut.size == 0 || len >= cut.walk.end {
        return false;
    }
    packet.truncate(len);
    let bytes = packet.bytes_mut();
    let inside = cut.mend_upper(bytes, len, false);
    cut.mend_outer(bytes, len, inside);
    let segment = offload.segment.filter(|_| parts > 1);
    packet.set_offload(Offload { segment, ..offload });
    true
}

/// Whether the packet stands for several UDP datagrams.
pub fn is_udp_segment(packet: &Packet) -> bool {
    let segment = packet.offload().and_then(|offload| offload.segment);
    segment.is_some_and(|segment| segment.kind == SegmentKind::Udp)
}

#[cfg(test)]
mod tests;
