//! Packets for the router itself, where no kernel beside it takes them: echo requests are answered,
//! senders of anything else get an error, as nothing listens.

use std::net::Ipv6Addr;

use underpass_packet::checksum::Sum;
use underpass_packet::ipv6_ext::{Extensions, Fragment, Kind, Upper};
use underpass_packet::rpl::ROUTING_TYPE as RPL_ROUTING_TYPE;
use underpass_packet::{FromBytes, ipv4, ipv6, ndisc, protocol, srh};

use crate::drops::DropReason;
use crate::path::icmp::{
    ECHO_REPLY_V4, ECHO_REPLY_V6, ECHO_REQUEST_V4, ECHO_REQUEST_V6, HOP_LIMIT, ICMP_LEN, TIMESTAMP_REPLY_V4,
    TIMESTAMP_V4, send_generated,
};
use crate::path::icmp_sum::{fill_checksum4, fill_checksum6};
use crate::path::ipv6::GROUPS;
use crate::path::ndp::neighbour_solicitation;
use crate::path::options::Problem;
use crate::path::reset::{reset4, reset6};
use crate::path::{icmp, options, routing_header, rpl};
use crate::tables::{Link, LinkId};
use crate::trace::{Event, Trace};
use crate::tunnel;
use crate::tunnel::path_mtu::learn_own;
use crate::worker::error::IcmpError;
use crate::worker::metadata::{BEHIND_SID, BROADCAST, GROUP, PacketMeta, UNFINISHED};
use crate::worker::path::Path;
use crate::worker::verdict::Verdict;
use crate::worker::view::{OUTSIDE, View};

const IGMP: u8 = 2;

const UDP_LEN: usize = 8;
/// Bytes of a timestamp message, RFC 792, and the fewest of a request: Linux's `icmp_timestamp` asks for the first time alone.
const TIMESTAMP_LEN: usize = ICMP_LEN + 12;
const TIMESTAMP_REQUEST_LEN: usize = ICMP_LEN + 4;

/// A packet for the router itself. `None`: it is delivered, and nothing more is to be done.
pub(crate) fn deliver<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    meta: &mut PacketMeta,
    trace: &mut T,
) -> Option<Verdict> {
    match meta.packet.bytes().first()? >> 4 {
        6 => deliver6(path, view, meta, trace),
        4 => deliver4(path, view, meta, trace),
        _ => None,
    }
}

fn deliver6<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    meta: &mut PacketMeta,
    trace: &mut T,
) -> Option<Verdict> {
    let packet = ipv6::View::parse(meta.packet.bytes()).ok()?;
    let group = meta.is(GROUP) || packet.header.destination().is_multicast();
    let upper = match extensions(&packet, view, meta.ingress, group) {
        Ok(Found::Upper(upper)) => upper,
        Ok(Found::Fragment) => return Some(Verdict::Reassemble),
        Ok(Found::Segments(at)) => return Some(routing_header::visit_next(view, meta, at)),
        Ok(Found::SourceRoute(at)) => return Some(rpl::visit_next(view, meta, at)),
        Ok(Found::InnerProtocol(at, protocol)) => {
            return Some(routing_header::take_inside(view, meta, at, protocol));
        }
        Err(problem) => return Some(problem.refuse(meta)),
    };
    let message = packet.payload.get(upper.offset - ipv6::Header::LEN..)?;
    let ipv6::Header { source, destination, .. } = *packet.header;
    let valid = |message: &[u8]| {
        let pseudo = Sum::pseudo_ipv6(source, destination, upper.protocol, message.len() as u32);
        pseudo.add_bytes(message).fold() == 0xffff
    };
    match upper.protocol {
        protocol::ICMPV6 if !valid(message) => Some(Verdict::drop(DropReason::IcmpUnexpected)),
        protocol::ICMPV6 => match *message.first()? {
            ECHO_REQUEST_V6 => echo_reply6(path, view, meta, upper.offset, trace),
            ndisc::SOLICITATION => neighbour_solicitation(path, view, meta, upper.offset, trace),
            _ => None,
        },
        // RFC 8200 section 8.1: a checksum of 0 is an error.
        protocol::UDP => match datagram(message) {
            Some(datagram) if datagram[6..8] != [0; 2] && valid(datagram) => {
                let end = upper.offset + datagram.len();
                Some(no_port(meta, end))
            }
            _ => Some(Verdict::drop(DropReason::InnerMalformed)),
        },
        protocol::TCP => reset6(path, view, meta, upper.offset, trace),
        protocol::UDP_LITE | protocol::NO_NEXT_HEADER => None,
        protocol if tunnel::is_tunnelled(protocol) => {
            let ends = (source.into(), destination.into());
            Some(tunnel::no_tunnel(view, meta, ends, (protocol, upper.offset)))
        }
        _ => Some(unknown_next_header(upper.named_at).refuse(meta)),
    }
}

/// Turns an echo request, whose message is at `at`, into its reply: RFC 4443 section 4.2.
fn echo_reply6<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    meta: &mut PacketMeta,
    at: usize,
    trace: &mut T,
) -> Option<Verdict> {
    // The reply has no extension headers.
    let before = at - ipv6::Header::LEN;
    meta.packet.bytes_mut().copy_within(..ipv6::Header::LEN, before);
    meta.packet.pull(before);
    let (header, message) = ipv6::Header::mut_from_prefix(meta.packet.bytes_mut()).ok()?;
    let (source, destination) = (header.source(), header.destination());
    // "An Echo Reply SHOULD be sent in response to an Echo Request message sent to an IPv6 multicast or anycast address",
    // from "a unicast address belonging to the interface on which the Echo Request message was received".
    let group = destination.is_multicast();
    if message.len() < ICMP_LEN
        || source.is_unspecified()
        || group && (!GROUPS.contains(&destination) || source.is_unicast_link_local())
    {
        return None;
    }
    let anycast = link_of_anycast(view, meta.ingress, destination);
    let by = anycast.or(group.then_some(meta.ingress));
    let back = by.unwrap_or_else(|| link_of(view, meta.ingress, destination));
    let back6 = view.link(back).and_then(|link| link.back6);
    // Linux looks the reply up by the link that has the address.
    if !group && icmp::is_elsewhere(view, meta, destination.into()) && !meta.is(BEHIND_SID) {
        meta.extra.instance = OUTSIDE;
    }
    if let Some(by) = by {
        if anycast.is_some() {
            meta.extra.instance = view.link(by)?.lookup;
        }
        // It leaves by that link or not at all.
        let lookup = back6.unwrap_or_else(|| view.own_lookup(meta.extra.instance));
        if icmp::way_out(view, meta, lookup, source.into()).is_some_and(|out| out != by) {
            return None;
        }
    }
    let (header, message) = ipv6::Header::mut_from_prefix(meta.packet.bytes_mut()).ok()?;
    message[0] = ECHO_REPLY_V6;
    header.set_flow_label(0);
    header.destination = source.octets();
    header.source = by.map_or(destination, |_| Ipv6Addr::UNSPECIFIED).octets();
    header.next_header = protocol::ICMPV6;
    header.payload_length = (message.len() as u16).into();
    header.hop_limit = HOP_LIMIT;
    fill_checksum6(header, message);
    if let Some(by) = by {
        meta.ingress = by;
        meta.extra.flags |= UNFINISHED;
    }
    let verdict = echo_replied(path, view, meta, source.into(), trace);
    Some(back6.map_or(verdict, |lookup| Verdict::look6(meta, lookup, source)))
}

/// The link by which a reply with this source leaves, as rules see it: the one by which the request arrived, in a VRF the
/// one that has the address. Linux: `icmp6_iif`.
fn link_of(view: &View<'_>, ingress: LinkId, address: Ipv6Addr) -> LinkId {
    let Some(link) = view.link(ingress).filter(|link| link.in_vrf) else { return ingress };
    let instance = view.own_lookup(link.lookup);
    let is = |other: &Link| other.own6.contains(&address) && view.own_lookup(other.lookup) == instance;
    let mut having = view.tables.links_by_id(view.guard).filter(|(_, link)| is(link));
    having.next().map_or(ingress, |(has, _)| has)
}

/// The link by which what was for this anycast address is answered: that which it came in by, in a VRF that which has the
/// address. `None`: it is none.
fn link_of_anycast(view: &View<'_>, ingress: LinkId, address: Ipv6Addr) -> Option<LinkId> {
    let mut having = view.tables.links_by_id(view.guard).filter(|(_, link)| link.anycast6.contains(&address));
    let (has, _) = having.next()?;
    let in_vrf = view.link(ingress).is_some_and(|link| link.in_vrf);
    Some(if in_vrf { has } else { ingress })
}

fn deliver4<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    meta: &mut PacketMeta,
    trace: &mut T,
) -> Option<Verdict> {
    let ipv4::View { header, payload, .. } = ipv4::View::parse(meta.packet.bytes()).ok()?;
    if header.is_fragment() {
        return Some(Verdict::Reassemble);
    }
    match header.protocol {
        protocol::ICMP if Sum::new().add_bytes(payload).fold() != 0xffff => {
            Some(Verdict::drop(DropReason::IcmpUnexpected))
        }
        protocol::ICMP => match payload {
            [ECHO_REQUEST_V4, ..] if payload.len() >= ICMP_LEN => echo_reply4(path, view, meta, trace),
            [TIMESTAMP_V4, ..] if payload.len() >= TIMESTAMP_REQUEST_LEN => {
                // The reply has all three times and nothing behind them, however long the request is.
                let end = header.header_len() + TIMESTAMP_LEN;
                meta.packet.lengthen(end.saturating_sub(meta.packet.len())).ok()?;
                meta.packet.truncate(end);
                let (header, _) = ipv4::Header::mut_from_prefix(meta.packet.bytes_mut()).ok()?;
                header.total_length = (end as u16).into();
                echo_reply4(path, view, meta, trace)
            }
            _ => {
                learn_own(view, payload, meta.ingress, meta.extra.instance);
                None
            }
        },
        protocol::UDP => match datagram(payload) {
            Some(datagram) if udp_checksum_valid4(header, datagram) => {
                let end = header.header_len() + datagram.len();
                Some(no_port(meta, end))
            }
            _ => Some(Verdict::drop(DropReason::InnerMalformed)),
        },
        protocol::TCP => reset4(path, view, meta, trace),
        protocol::UDP_LITE | IGMP => None,
        protocol if tunnel::is_tunnelled(protocol) => {
            let ends = (header.source().into(), header.destination().into());
            Some(tunnel::no_tunnel(view, meta, ends, (protocol, header.header_len())))
        }
        _ => Some(Verdict::error(DropReason::ProtocolUnknown, IcmpError::Protocol)),
    }
}

/// Turns an echo request, or one for a timestamp, into its reply: RFC 792. Linux's `icmp_echo_ignore_broadcasts` is on unless
/// it is turned off.
fn echo_reply4<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    meta: &mut PacketMeta,
    trace: &mut T,
) -> Option<Verdict> {
    let broadcast = meta.is(BROADCAST);
    let ipv4::ViewMut { header, options, payload } = ipv4::ViewMut::parse(meta.packet.bytes_mut()).ok()?;
    let (source, destination) = (header.source(), header.destination());
    let group = broadcast || destination.is_multicast() || destination.is_broadcast();
    if group || source.is_unspecified() {
        return None;
    }
    let now = options::time4(view.epoch.wrapping_add(view.now));
    if payload[0] == TIMESTAMP_V4 {
        [payload[0], payload[1]] = [TIMESTAMP_REPLY_V4, 0];
        // "The Receive Timestamp", and "the Transmit Timestamp": the latter is no later.
        payload.get_mut(12..TIMESTAMP_LEN)?.copy_from_slice([now, now].as_flattened());
    } else {
        payload[0] = ECHO_REPLY_V4;
    }
    fill_checksum4(payload);
    let (echoed, recorded) = options::echo4(options, now);
    let (echoed, gone) = match options.split_at_mut_checked(echoed.len()) {
        Some((options, gone)) => {
            options.copy_from_slice(&echoed);
            (echoed.len(), gone.len())
        }
        None => (0, options.len()),
    };
    std::mem::swap(&mut header.source, &mut header.destination);
    header.ttl = HOP_LIMIT;
    header.set_header_len(ipv4::Header::LEN + echoed);
    header.total_length = (header.total_length.get() - gone as u16).into();
    // A datagram of its own, which may be fragmented.
    path.identification = path.identification.wrapping_add(1);
    header.identification = path.identification.into();
    header.flags_offset = 0.into();
    let bytes = meta.packet.bytes_mut();
    bytes.copy_within(..ipv4::Header::LEN + echoed, gone);
    meta.packet.pull(gone);
    let ipv4::ViewMut { header, options, .. } = ipv4::ViewMut::parse(meta.packet.bytes_mut()).ok()?;
    header.fill_checksum(options);
    crate::path::ipv4::records(meta, recorded);
    Some(echo_replied(path, view, meta, source.into(), trace))
}

fn echo_replied<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    meta: &mut PacketMeta,
    destination: std::net::IpAddr,
    trace: &mut T,
) -> Verdict {
    trace.step(Event::EchoReply, &meta.packet);
    path.totals.delivered += 1;
    send_generated(path, view, meta, destination)
}

/// What a packet for this router has behind its header.
enum Found {
    Upper(Upper),
    /// A fragment.
    Fragment,
    /// An SRH here, with segments yet to be visited.
    Segments(usize),
    /// An RPL header here, with addresses yet to be visited.
    SourceRoute(usize),
    /// A packet here, of this protocol, behind a routing header that is used up.
    InnerProtocol(usize, u8),
}

/// Goes through the extension headers of a packet for this router, which came in by `ingress`; for a `group` of nodes or
/// stations.
fn extensions(
    packet: &ipv6::View<'_>,
    view: &View<'_>,
    ingress: LinkId,
    group: bool,
) -> Result<Found, Problem> {
    let link = view.link(ingress);
    let (rpl, seg6) = (link.is_some_and(|link| link.rpl), link.is_some_and(|link| link.seg6));
    let mut extensions = Extensions::new(packet);
    while let Some(extension) = extensions.next() {
        let extension = extension.map_err(|_| not_whole(&extensions.ahead()))?;
        match extension.kind {
            // Checked when the packet came in.
            Kind::HopByHop if extension.named_at == ipv6::Header::NEXT_HEADER_OFFSET => {}
            // RFC 8200 section 4.1: it "is restricted to appear immediately after an IPv6 header only".
            Kind::HopByHop => return Err(unknown_next_header(extension.named_at)),
            Kind::DestinationOptions => {
                options::check6(packet.header, &extension, None)?;
            }
            // Linux: `ipv6_rthdr_rcv`. RFC 6554 section 4.2, too, has a node drop what is for a group.
            Kind::Routing if group => return Err(Problem::silent(DropReason::DestinationInvalid)),
            Kind::Routing => match extension.routing() {
                Some(routing) if rpl && routing.routing_type == RPL_ROUTING_TYPE => {
                    match (routing.segments_left, extension.next_header) {
                        (0, next @ protocol::IPV6) => {
                            return Ok(Found::InnerProtocol(extension.offset + extension.bytes.len(), next));
                        }
                        (0, _) => {}
                        _ => return Ok(Found::SourceRoute(extension.offset)),
                    }
                }
                Some(routing) if seg6 && routing.routing_type == srh::ROUTING_TYPE => {
                    routing_header::check(packet, &extension, routing.segments_left, &view.check(ingress))?;
                    match (routing.segments_left, extension.next_header) {
                        (0, next @ (protocol::IPV6 | protocol::IPV4)) => {
                            return Ok(Found::InnerProtocol(extension.offset + extension.bytes.len(), next));
                        }
                        (0, _) => {}
                        _ => return Ok(Found::Segments(extension.offset)),
                    }
                }
                // Linux's seg6_enabled and rpl_seg_enabled are off unless they are turned on.
                Some(routing) if matches!(routing.routing_type, srh::ROUTING_TYPE | RPL_ROUTING_TYPE) => {
                    return Err(Problem::silent(DropReason::SrhNotEnabled));
                }
                Some(routing) if routing.segments_left == 0 => {}
                // RFC 8200 section 4.4: a parameter problem, "pointing to the unrecognized Routing Type".
                _ => {
                    let pointer = extension.offset + 2;
                    return Err(Problem::notify(DropReason::SrhMalformed, IcmpError::Header, pointer));
                }
            },
            // RFC 6946: a fragment that is the whole.
            Kind::Fragment if extension.fragment().is_some_and(is_whole) => {}
            Kind::Fragment => return Ok(Found::Fragment),
            // Nobody here can make use of it.
            Kind::Authentication => return Err(unknown_next_header(extension.named_at)),
        }
    }
    extensions.upper().map(Found::Upper).map_err(|_| Problem::silent(DropReason::Ip6Malformed))
}

/// Of a header that goes on after the end of the packet. What nobody here can make use of is not looked into.
fn not_whole(header: &Upper) -> Problem {
    match Kind::of(header.protocol) {
        Some(Kind::HopByHop) if header.named_at != ipv6::Header::NEXT_HEADER_OFFSET => {
            unknown_next_header(header.named_at)
        }
        Some(Kind::Authentication) => unknown_next_header(header.named_at),
        _ => Problem::silent(DropReason::Ip6Malformed),
    }
}

fn is_whole(fragment: &Fragment) -> bool {
    fragment.offset() == 0 && !fragment.more_fragments()
}

/// RFC 8200 section 4: "If, as a result of processing a header, the destination node is required to
/// proceed to the next header but the Next Header value in the current header is unrecognized".
const fn unknown_next_header(pointer: usize) -> Problem {
    Problem::notify(DropReason::ProtocolUnknown, IcmpError::Protocol, pointer)
}

/// Nobody listens for a datagram that ends at the byte `end` of its packet: what lies behind it is not quoted.
fn no_port(meta: &mut PacketMeta, end: usize) -> Verdict {
    meta.extra.argument = end as u32;
    Verdict::error(DropReason::PortUnreachable, IcmpError::Port)
}

/// The UDP header and its data, to the length that it says.
fn datagram(message: &[u8]) -> Option<&[u8]> {
    let len = u16::from_be_bytes(*message.get(4..6)?.first_chunk()?);
    message.get(..usize::from(len)).filter(|datagram| datagram.len() >= UDP_LEN)
}

fn udp_checksum_valid4(header: &ipv4::Header, datagram: &[u8]) -> bool {
    let sum = Sum::pseudo_ipv4(header.source, header.destination, protocol::UDP, datagram.len() as u16);
    // RFC 768: 0 is no checksum.
    datagram[6..8] == [0; 2] || sum.add_bytes(datagram).fold() == 0xffff
}
