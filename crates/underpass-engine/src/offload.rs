//! What a virtual device leaves undone: TCP and UDP checksums that are not finished, and segments that stand
//! for many. A port that can say so to its device passes them on; another finishes and cuts them with this,
//! and so does a worker that fragments them.

use crate::buffer::{NoRoom, Offload, Packet, Pool, Segment, SegmentKind};
use underpass_packet::checksum::Sum;
use underpass_packet::ipv6_ext::{Extensions, Kind};
use underpass_packet::{FromBytes, ethernet, ipv4, ipv6, mpls, protocol, srh};

/// Most headers with a length field, one inside the other: more are no packet of ours.
const MAX_LAYERS: usize = 8;

/// TCP's checksum and UDP's, in their headers.
const TCP_FIELD: u16 = 16;
const UDP_FIELD: u16 = 6;
const TCP_LEN: usize = 20;
const UDP_LEN: usize = 8;

/// TCP flags that stand in the last segment only, and in the first only.
const FIN_PSH: u8 = 0x09;
const CWR: u8 = 0x80;
const TCP_FLAGS: usize = 13;

/// A header whose fields depend on the length of the packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Layer {
    Ip4,
    Ip6,
    /// A UDP header with something of ours inside.
    Udp,
}

/// The headers of a frame from the outermost to the innermost TCP or UDP.
#[derive(Default, Debug)]
struct Walk {
    /// Each with its offset in the frame.
    layers: arrayvec::ArrayVec<(Layer, usize), MAX_LAYERS>,
    /// Protocol and offset of the innermost upper layer.
    upper: Option<(u8, usize)>,
    /// The sum of the pseudo header that belongs to it.
    pseudo: Sum,
    /// Where the innermost IP packet ends.
    end: usize,
    /// Whether there are MPLS labels before the first of them.
    labelled: bool,
}

/// [`walk`] down a frame.
fn walk_frame(frame: &[u8], stop: Option<usize>) -> Option<Walk> {
    let (link, _) = ethernet::Header::parse(frame).ok()?;
    let (mut at, mut ethertype) = (ethernet::Header::LEN, link.ethertype.get());
    while matches!(ethertype, ethernet::VLAN | ethernet::SERVICE_VLAN) {
        let [_, _, high, low] = *frame.get(at..)?.first_chunk()?;
        (at, ethertype) = (at + 4, u16::from_be_bytes([high, low]));
    }
    if ethertype != ethernet::MPLS {
        return walk(frame, at, of_ethertype(ethertype)?, stop);
    }
    let stack = frame.get(at..)?;
    let labels = mpls::depth(stack).ok()? * mpls::Entry::LEN;
    let inside = of_nibble(*stack.get(labels)?)?;
    Some(Walk { labelled: true, ..walk(frame, at + labels, inside, stop)? })
}

/// Walks down a packet of IP at `at`, `inside` being its protocol number, to `stop` at the latest: a UDP
/// header there is the innermost.
fn walk(frame: &[u8], mut at: usize, mut inside: u8, stop: Option<usize>) -> Option<Walk> {
    let mut walk = Walk::default();
    loop {
        let rest = frame.get(at..)?;
        match inside {
            protocol::IPV4 => {
                let view = ipv4::View::parse(rest).ok()?;
                if view.header.fragment_offset() != 0 || view.header.more_fragments() {
                    return None;
                }
                walk.layers.try_push((Layer::Ip4, at)).ok()?;
                inside = view.header.protocol;
                let length = view.payload.len();
                let (source, destination) = (view.header.source(), view.header.destination());
                at += view.header.header_len();
                walk.end = at + length;
                let addresses = [source.octets(), destination.octets()];
                walk.pseudo = Sum::pseudo_ipv4(addresses[0], addresses[1], inside, length as u16);
            }
            protocol::IPV6 => {
                let view = ipv6::View::parse(rest).ok()?;
                walk.layers.try_push((Layer::Ip6, at)).ok()?;
                let mut destination = view.header.destination().octets();
                for extension in Extensions::new(&view) {
                    let extension = extension.ok()?;
                    match extension.kind {
                        Kind::Fragment => return None,
                        // The checksum is over the last segment, RFC 8754 section 4.1.1.
                        Kind::Routing => {
                            if let Ok(srh) = srh::Srh::parse(extension.bytes)
                                && srh.segments_left() != 0
                                && let Some(last) = srh.segments().first()
                            {
                                destination = *last;
                            }
                        }
                        _ => {}
                    }
                }
                let upper = Extensions::new(&view).upper().ok()?;
                inside = upper.protocol;
                let length = (ipv6::Header::LEN + view.payload.len()).checked_sub(upper.offset)?;
                at += upper.offset;
                walk.end = at + length;
                let source = view.header.source().octets();
                walk.pseudo = Sum::pseudo_ipv6(source, destination, inside, length as u32);
            }
            protocol::ETHERNET => {
                let (link, _) = ethernet::Header::parse(rest).ok()?;
                at += ethernet::Header::LEN;
                inside = of_ethertype(link.ethertype.get())?;
            }
            protocol::GRE => {
                (at, inside) =
                    (at + gre_len(rest)?, of_ethertype(u16::from_be_bytes([*rest.get(2)?, *rest.get(3)?]))?)
            }
            protocol::TCP => {
                walk.upper = Some((inside, at));
                return Some(walk);
            }
            protocol::UDP => {
                walk.upper = Some((inside, at));
                if stop.is_none_or(|stop| stop <= at) {
                    return Some(walk);
                }
                // Foo over UDP: what is inside begins behind the header.
                walk.layers.try_push((Layer::Udp, at)).ok()?;
                at += UDP_LEN;
                inside = of_nibble(*frame.get(at)?)?;
            }
            _ => return None,
        }
        if stop.is_some_and(|stop| at > stop) {
            return None;
        }
    }
}

/// The protocol number of what an EtherType stands for.
fn of_ethertype(ethertype: u16) -> Option<u8> {
    match ethertype {
        ethernet::IPV4 => Some(protocol::IPV4),
        ethernet::IPV6 => Some(protocol::IPV6),
        0x6558 => Some(protocol::ETHERNET),
        _ => None,
    }
}

/// The protocol number of the IP packet that begins with this byte.
fn of_nibble(first: u8) -> Option<u8> {
    match first >> 4 {
        4 => Some(protocol::IPV4),
        6 => Some(protocol::IPV6),
        _ => None,
    }
}

/// Length of a GRE header, RFC 2890; `None` where it has a checksum over all that follows, or is of another
/// version.
fn gre_len(bytes: &[u8]) -> Option<usize> {
    let [flags, version] = *bytes.first_chunk()?;
    if flags & 0x80 != 0 || version & 7 != 0 {
        return None;
    }
    Some(4 + 4 * usize::from(flags >> 5 & 1) + 4 * usize::from(flags >> 4 & 1))
}

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

/// Finishes the checksum that a packet was left with, if it was.
pub fn finish(packet: &mut Packet) {
    if let Some(offload) = packet.offload() {
        finish_at(packet.bytes_mut(), offload.start, offload.field);
    }
    packet.clear_offload();
}

/// Finishes the checksum of the header at `start`, whose field holds the sum of the pseudo header.
fn finish_at(bytes: &mut [u8], start: usize, field: u16) {
    let Some(header) = bytes.get_mut(start..) else { return };
    let sum = Sum::new().add_bytes(header).checksum();
    // A checksum of 0 would say that there is none: RFC 768.
    let sum = if sum == 0 && field == UDP_FIELD { 0xffff } else { sum };
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
        let whole = self.walk.end - self.start;
        let upper = len - self.start;
        if let Some(header) = bytes.get_mut(self.start..) {
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
            let field = if self.kind == SegmentKind::Udp { UDP_FIELD } else { TCP_FIELD };
            let pseudo = Sum::new().add_u16(get(header, usize::from(field))).add_u32(!(whole as u32));
            put(header, usize::from(field), pseudo.add_u32(upper as u32).fold());
        }
        let field = if self.kind == SegmentKind::Udp { UDP_FIELD } else { TCP_FIELD };
        finish_at(bytes, self.start, field);
        // From the inside out, as the checksum of an outer UDP header is over all that is inside.
        for &(layer, at) in self.walk.layers.iter().rev() {
            let Some(header) = bytes.get_mut(at..) else { return };
            let length = header.len();
            match layer {
                Layer::Ip4 => {
                    let Ok((ip, rest)) = ipv4::Header::mut_from_prefix(header) else { return };
                    let options = ip.header_len() - ipv4::Header::LEN;
                    ip.total_length = (length as u16).into();
                    ip.identification = ip.identification.get().wrapping_add(self.index).into();
                    ip.fill_checksum(rest.get(..options).unwrap_or_default());
                }
                Layer::Ip6 => put(header, 4, (length - ipv6::Header::LEN) as u16),
                Layer::Udp => {
                    put(header, 4, length as u16);
                    if get(header, 6) != 0 {
                        self.outer_udp(bytes, at);
                    }
                }
            }
        }
    }

    /// Computes the checksum of an outer UDP header anew.
    fn outer_udp(&self, bytes: &mut [u8], at: usize) {
        let length = bytes.len() - at;
        let Some(&(layer, ip)) = self.walk.layers.iter().rev().find(|(_, other)| *other < at) else { return };
        let pseudo = match (layer, bytes.get(ip..)) {
            (Layer::Ip4, Some(header)) => {
                let Ok((ip, _)) = ipv4::Header::ref_from_prefix(header) else { return };
                let (source, destination) = (ip.source().octets(), ip.destination().octets());
                Sum::pseudo_ipv4(source, destination, protocol::UDP, length as u16)
            }
            (Layer::Ip6, Some(header)) => {
                let Ok((ip, _)) = ipv6::Header::ref_from_prefix(header) else { return };
                let (source, destination) = (ip.source().octets(), ip.destination().octets());
                Sum::pseudo_ipv6(source, destination, protocol::UDP, length as u32)
            }
            _ => return,
        };
        if let Some(header) = bytes.get_mut(at..) {
            put(header, 6, pseudo.fold());
        }
        finish_at(bytes, at, UDP_FIELD);
    }
}

/// How a segment may leave by a device whose kernel cuts it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Leaves {
    /// As it is: it is no segment, or one that is in no tunnel.
    Whole,
    /// The kernel has to be told of its tunnel.
    Tunnelled(Tunnel),
    /// It has to be cut before.
    Cut,
}

/// Outer headers of IP, right before the IP header of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tunnel {
    /// Their length in bytes.
    pub len: usize,
    /// Whether they are of IPv4.
    pub outer_is_ip4: bool,
    /// Whether the segment is.
    pub inner_is_ip4: bool,
}

/// How a frame may leave by a device whose kernel cuts segments: it knows tunnels by more than virtio tells.
#[inline]
pub fn leaves(packet: &Packet) -> Leaves {
    if packet.has_offload() { leaves_segment(packet) } else { Leaves::Whole }
}

fn leaves_segment(packet: &Packet) -> Leaves {
    let Some(Offload { start, segment: Some(_), .. }) = packet.offload() else { return Leaves::Whole };
    let bytes = packet.bytes();
    let Some(walk) = walk_frame(bytes, Some(start)) else { return Leaves::Cut };
    match *walk.layers.as_slice() {
        // The kernel may lack the module that cuts them.
        _ if walk.labelled => Leaves::Cut,
        [_] => Leaves::Whole,
        [(outer, at), (inner, inside)] if at == ethernet::Header::LEN && inner != Layer::Udp => {
            let rest = bytes.get(at..).unwrap_or_default();
            let headers = match outer {
                Layer::Ip4 => rest.first().map(|byte| usize::from(byte & 15) * 4),
                _ => ipv6::View::parse(rest)
                    .ok()
                    .and_then(|view| Extensions::new(&view).upper().ok())
                    .map(|upper| upper.offset),
            };
            if headers != Some(inside - at) {
                return Leaves::Cut;
            }
            Leaves::Tunnelled(Tunnel {
                len: inside - at,
                outer_is_ip4: outer == Layer::Ip4,
                inner_is_ip4: inner == Layer::Ip4,
            })
        }
        _ => Leaves::Cut,
    }
}

/// Whether the packet stands for several UDP datagrams.
pub fn is_udp_segment(packet: &Packet) -> bool {
    let segment = packet.offload().and_then(|offload| offload.segment);
    segment.is_some_and(|segment| segment.kind == SegmentKind::Udp)
}

#[cfg(test)]
mod tests;
