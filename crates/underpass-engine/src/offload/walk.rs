//! The way down a frame, from its outermost header to the innermost TCP or UDP.

use underpass_packet::checksum::Sum;
use underpass_packet::gue::Content;
use underpass_packet::ipv6_ext::{Extensions, Kind};
use underpass_packet::{ethernet, geneve, gre, gue, ipv4, ipv6, mpls, protocol, srh, vxlan};

use super::UDP_LEN;

/// Most headers with a length field, one inside the other: more are no packet of ours.
const MAX_LAYERS: usize = 8;

/// A header whose fields depend on the length of the packet, or on what is behind it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Layer {
    Ip4,
    Ip6,
    /// A UDP header with something of ours inside.
    Udp,
    /// A GRE header; whether it has a checksum, and how far behind its start the sequence number is, if it has one.
    Gre {
        checksum: bool,
        sequence: Option<usize>,
    },
}

/// The headers of a frame from the outermost to the innermost TCP or UDP.
#[derive(Clone, Default, Debug)]
pub(super) struct Walk {
    /// Each with its offset in the frame.
    pub(super) layers: arrayvec::ArrayVec<(Layer, usize), MAX_LAYERS>,
    /// Protocol and offset of the innermost upper layer.
    pub(super) upper: Option<(u8, usize)>,
    /// The sum of the pseudo header that belongs to it.
    pub(super) pseudo: Sum,
    /// Where the innermost IP packet ends.
    pub(super) end: usize,
    /// Whether there are MPLS labels before it.
    pub(super) labelled: bool,
}

/// [`walk`] down a frame.
pub(super) fn walk_frame(frame: &[u8], stop: Option<usize>) -> Option<Walk> {
    let (at, inside) = in_frame(frame, 0)?;
    walk(frame, at, inside, stop)
}

/// Where the packet of a frame at `at` begins, behind its tags, and the protocol number of that.
fn in_frame(bytes: &[u8], at: usize) -> Option<(usize, u8)> {
    let (link, _) = ethernet::Header::parse(bytes.get(at..)?).ok()?;
    let (mut at, mut ethertype) = (at + ethernet::Header::LEN, link.ethertype.get());
    while matches!(ethertype, ethernet::VLAN | ethernet::SERVICE_VLAN) {
        let [_, _, high, low] = *bytes.get(at..)?.first_chunk()?;
        (at, ethertype) = (at + 4, u16::from_be_bytes([high, low]));
    }
    Some((at, of_ethertype(ethertype)?))
}

/// Walks down a packet of IP or MPLS at `at`, `inside` being its protocol number, to `stop` at the latest: a UDP
/// header there is the innermost.
pub(super) fn walk(frame: &[u8], at: usize, inside: u8, stop: Option<usize>) -> Option<Walk> {
    let mut walk = Walk::default();
    walk.down(frame, at, inside, stop)?;
    Some(walk)
}

impl Walk {
    fn down(&mut self, frame: &[u8], mut at: usize, mut inside: u8, stop: Option<usize>) -> Option<()> {
        loop {
            let rest = frame.get(at..)?;
            match inside {
                protocol::IPV4 => {
                    let view = ipv4::View::parse(rest).ok()?;
                    if view.header.fragment_offset() != 0 || view.header.more_fragments() {
                        return None;
                    }
                    self.layers.try_push((Layer::Ip4, at)).ok()?;
                    inside = view.header.protocol;
                    let length = view.payload.len();
                    let (source, destination) = (view.header.source(), view.header.destination());
                    at += view.header.header_len();
                    self.end = at + length;
                    let addresses = [source.octets(), destination.octets()];
                    self.pseudo = Sum::pseudo_ipv4(addresses[0], addresses[1], inside, length as u16);
                }
                protocol::IPV6 => {
                    let view = ipv6::View::parse(rest).ok()?;
                    self.layers.try_push((Layer::Ip6, at)).ok()?;
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
                    self.end = at + length;
                    let source = view.header.source().octets();
                    self.pseudo = Sum::pseudo_ipv6(source, destination, inside, length as u32);
                }
                protocol::ETHERNET => (at, inside) = in_frame(frame, at)?,
                protocol::MPLS => {
                    self.labelled = true;
                    at += mpls::depth(rest).ok()? * mpls::Entry::LEN;
                    inside = of_nibble(*frame.get(at)?)?;
                }
                protocol::GRE => {
                    let header = gre::View::parse(rest).ok()?;
                    let behind =
                        4 * usize::from(header.has_checksum()) + 4 * usize::from(header.key.is_some());
                    let sequence = header.sequence.map(|_| 4 + behind);
                    let layer = Layer::Gre { checksum: header.has_checksum(), sequence };
                    self.layers.try_push((layer, at)).ok()?;
                    at += header.header_len();
                    inside = of_ethertype(header.protocol)?;
                }
                protocol::TCP => {
                    self.upper = Some((inside, at));
                    return Some(());
                }
                protocol::UDP => {
                    self.upper = Some((inside, at));
                    if stop.is_none_or(|stop| stop <= at) {
                        return Some(());
                    }
                    self.layers.try_push((Layer::Udp, at)).ok()?;
                    return self.down_from_udp(frame, at + UDP_LEN, stop);
                }
                _ => return None,
            }
            if stop.is_some_and(|stop| at > stop) {
                return None;
            }
        }
    }

    /// Goes on behind a UDP header with something of ours inside: IP, or else what leads to `stop` of a GUE header, a
    /// GRE header, labels, a VXLAN header and a Geneve header. Nothing in the datagram says which of them it is.
    fn down_from_udp(&mut self, frame: &[u8], at: usize, stop: Option<usize>) -> Option<()> {
        let rest = frame.get(at..)?;
        if let Some(inside) = of_nibble(*rest.first()?) {
            return self.down(frame, at, inside, stop);
        }
        let behind_gue = gue::View::parse(rest).ok().and_then(|header| match header.content {
            // What it leaves to its receiver to finish cannot be finished here.
            Content::Data(inside) if header.remote_checksum.is_none() => {
                Some((at + rest.len() - header.payload.len(), inside))
            }
            _ => None,
        });
        let in_vxlan = vxlan::parse(rest).ok().map(|_| (at + vxlan::LEN, protocol::ETHERNET));
        let in_geneve =
            geneve::parse(rest).ok().and_then(|own| Some((at + own.len, of_ethertype(own.protocol)?)));
        let ways = [behind_gue, Some((at, protocol::GRE)), Some((at, protocol::MPLS)), in_vxlan, in_geneve];
        ways.into_iter().flatten().find_map(|(at, inside)| {
            let mut walk = self.clone();
            walk.down(frame, at, inside, stop)?;
            let arrived = walk.upper.is_some_and(|(_, upper)| Some(upper) == stop);
            arrived.then(|| *self = walk)
        })
    }
}

/// The protocol number of what an EtherType stands for.
fn of_ethertype(ethertype: u16) -> Option<u8> {
    match ethertype {
        ethernet::IPV4 => Some(protocol::IPV4),
        ethernet::IPV6 => Some(protocol::IPV6),
        ethernet::MPLS => Some(protocol::MPLS),
        gre::TRANSPARENT_ETHERNET => Some(protocol::ETHERNET),
        _ => None,
    }
}

/// The protocol number of the IP packet that begins with this byte.
pub(super) fn of_nibble(first: u8) -> Option<u8> {
    match first >> 4 {
        4 => Some(protocol::IPV4),
        6 => Some(protocol::IPV6),
        _ => None,
    }
}
