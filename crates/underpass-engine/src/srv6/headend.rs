//! The policy headend: RFC 8986 section 5, and Linux's `mode inline` (H.Insert).
//!
//! The headers were built when the route was compiled; here they are copied before the packet, and the
//! few fields that depend on it are filled in. The payload never moves.

use std::net::{IpAddr, Ipv6Addr};

use underpass_packet::rpl::Rpl;
use underpass_packet::srh::{Srh, SrhMut};
use underpass_packet::{FromBytes, ethernet, ipv6, protocol};

use crate::buffer::Packet;
use crate::drops::DropReason;
use crate::hmac::Keys;
use crate::path::input::ethertype;
use crate::path::ipv4::lower_ttl;
use crate::path::ipv6::lower_hop_limit;
use crate::path::rules::{action_at, lookup_of, on_by_ingress};
use crate::tables::{Action, ActionId, Behaviour, Endpoint, Headend, HeadendMode, StoredNextHop};
use crate::trace::{Event, Trace};
use crate::worker::env::Env;
use crate::worker::error::{IcmpError, PacketError};
use crate::worker::gap::open_gap_fast;
use crate::worker::metadata::{
    BEHIND_LABEL, GENERATED, GROUP, LED_INTO_VRF, NOT_FORWARDED, PacketMeta, SWITCHED, TUNNELLED,
};
use crate::worker::rewrite::{ETHERNET, FastVerdict, addresses, cut, member, write_header};
use crate::worker::verdict::Verdict;
use crate::worker::view::View;
use crate::{flow, srv6};

/// Puts a policy's headers around the packet of `len` bytes in a frame, or around the frame, and sends it to
/// this next hop. `advance`: the packet goes to this segment of its own list first.
#[inline(always)]
pub(crate) fn headend_fast(
    next_hop: &StoredNextHop,
    packet: &mut Packet,
    len: usize,
    policy: &Headend,
    advance: Option<(u8, Ipv6Addr)>,
) -> Option<FastVerdict> {
    let header = &*policy.header;
    // How much of the Ethernet header goes inside.
    let framed = match policy.mode {
        HeadendMode::Encap => 0,
        HeadendMode::L2Encap => ETHERNET,
        HeadendMode::Inline => return insert_fast(next_hop, packet, len, header),
    };
    let outer_len = header.len() + framed + len;
    let mac = addresses(next_hop, outer_len)?;
    let payload_length = u16::try_from(outer_len - underpass_packet::ipv6::Header::LEN).ok()?;
    if packet.len() != ETHERNET + len {
        cut(packet, ETHERNET + len);
    }
    let inherited = srv6::inherited(packet.bytes().get(ETHERNET..)?, false).ok()?;
    let bytes = packet.push(header.len() + framed).ok()?;
    let (head, bytes) = bytes.split_first_chunk_mut::<ETHERNET>()?;
    if let Some((left, segment)) = advance {
        let inside = bytes.get_mut(header.len() + framed..)?.first_chunk_mut()?;
        srv6::write_segment(inside, left, segment);
    }
    write_header(head, mac, ethernet::IPV6);
    let next_header = if framed > 0 { protocol::ETHERNET } else { inherited.next_header };
    srv6::write_headers(bytes, header, payload_length, &inherited, next_header)?;
    bytes[7] -= 1;
    Some((next_hop.port, (ETHERNET + outer_len) as u32))
}

/// The next hop of a policy by which a packet of `len` bytes in a frame goes: where its first segment is behind a multipath
/// route, that which the flow selects.
#[inline(always)]
pub(crate) fn headend_next_hop<'a>(
    env: &Env<'_, 'a>,
    packet: &Packet,
    len: usize,
    policy: &Headend,
) -> Option<&'a StoredNextHop> {
    match env.view.next_hop(policy.via.resolved) {
        Some(next_hop) => Some(next_hop),
        None => headend_member(env, packet, len, policy),
    }
}

#[inline(never)]
fn headend_member<'a>(
    env: &Env<'_, 'a>,
    packet: &Packet,
    len: usize,
    policy: &Headend,
) -> Option<&'a StoredNextHop> {
    let IpAddr::V6(segment) = policy.via.address else { return None };
    if policy.mode != HeadendMode::Encap || policy.hmac_open {
        return None;
    }
    let leaf = env.fib6?.lookup(segment.to_bits(), env.view.guard)?;
    member(env.view, ActionId(leaf), || {
        let bytes = packet.bytes().get(ETHERNET..ETHERNET + len)?;
        let inherited = srv6::inherited(bytes, false).ok()?;
        let mut outer: [u8; ipv6::Header::LEN] = *policy.header.first_chunk()?;
        outer[..4].copy_from_slice(&inherited.first_word);
        Some(flow::hash_behind(&outer, inherited.next_header, bytes))
    })
}

/// Puts an SRH behind the IPv6 header of the packet of `len` bytes in a frame, the packet's destination its
/// last segment, and sends it to the next hop of the first. `None`: it is not IPv6, or not so simple.
#[inline(never)]
pub(crate) fn insert_fast(
    next_hop: &StoredNextHop,
    packet: &mut Packet,
    len: usize,
    srh: &[u8],
) -> Option<FastVerdict> {
    // The last, at 0, is filled in below.
    let left = usize::from(*srh.get(3)?).checked_sub(1)?;
    let first: &[u8; 16] = srh.get(24 + 16 * left..)?.first_chunk()?;
    let gap = open_gap_fast(next_hop, packet, len, srh.len(), first)?;
    srv6::copy(srh, gap.room);
    gap.room[0] = gap.next_header;
    *gap.room.get_mut(8..)?.first_chunk_mut()? = gap.destination;
    Some(gap.out)
}

/// Puts a policy's headers before the packet and sends it on its way.
pub(crate) fn headend<T: Trace>(
    view: &View<'_>,
    meta: &mut PacketMeta,
    policy: &Headend,
    trace: &mut T,
) -> Verdict {
    // Of what came in a frame for a group it is asked where it leaves, when there is a way on.
    if meta.is(NOT_FORWARDED) && !meta.is(GROUP) {
        return Verdict::drop(DropReason::ForwardingOff);
    }
    let keys = view.tables.hmac_keys(view.guard);
    let (name, done) = match policy.mode {
        HeadendMode::Encap => ("H.Encaps", encapsulate(meta, policy)),
        HeadendMode::L2Encap => ("H.Encaps.L2", encapsulate_frame(view, meta, policy)),
        HeadendMode::Inline => ("H.Insert", insert(meta, policy)),
    };
    let done = match done {
        Ok(()) if policy.hmac_open => make_hmac(meta.packet.bytes_mut(), keys).map_err(PacketError::from),
        done => done,
    };
    match done {
        Ok(()) => {
            trace.step(Event::Headend(name, policy.header.len()), &meta.packet);
            on_by_ingress(view, meta, &policy.via)
        }
        Err(error) => Verdict::Refuse(error),
    }
}

/// Fills in the HMAC of the SRH that was put into the packet last: its first.
#[cold]
fn make_hmac(bytes: &mut [u8], keys: Option<&Keys>) -> Result<(), DropReason> {
    let keys = keys.ok_or(DropReason::HmacKeyUnknown)?;
    let (header, rest) = ipv6::Header::ref_from_prefix(bytes).map_err(|_| DropReason::Ip6Truncated)?;
    let (source, (at, _)) = (header.source, place(header, rest));
    keys.make(&source, bytes.get_mut(at..).ok_or(DropReason::Ip6Malformed)?)
}

/// What the outer header takes over from the packet inside.
pub(crate) struct Inherited {
    /// Version, traffic class and flow label.
    first_word: [u8; 4],
    /// `None`: the policy's own.
    hop_limit: Option<u8>,
    pub(crate) next_header: u8,
}

/// Reads what the outer header takes over: of an IPv6 packet its traffic class, flow label and hop
/// limit, as Linux does; of an IPv4 packet nothing.
#[inline(always)]
pub(crate) fn inherited(packet: &[u8], generated: bool) -> Result<Inherited, PacketError> {
    match *packet {
        [a, b, c, d, _, _, _, hop_limit, ..] if a >> 4 == 6 => {
            // RFC 8986 section 5.1 refers to RFC 2473: the packet inside is forwarded first.
            if hop_limit <= 1 && !generated {
                return Err(PacketError::notify(DropReason::HopLimitExceeded, IcmpError::HopLimit));
            }
            Ok(Inherited {
                first_word: [a, b, c, d],
                hop_limit: Some(hop_limit),
                next_header: protocol::IPV6,
            })
        }
        [a, ..] if a >> 4 == 4 => {
            Ok(Inherited { first_word: [0x60, 0, 0, 0], hop_limit: None, next_header: protocol::IPV4 })
        }
        _ => Err(PacketError::silent(DropReason::EtherTypeUnknown)),
    }
}

/// H.Encaps and H.Encaps.Red: RFC 8986 sections 5.1 and 5.2.
fn encapsulate(meta: &mut PacketMeta, policy: &Headend) -> Result<(), PacketError> {
    let mut inherited = inherited(meta.packet.bytes(), meta.is(GENERATED))?;
    let forwarded = meta.is(LED_INTO_VRF) || meta.extra.traced;
    if forwarded && !meta.is(GENERATED | TUNNELLED | SWITCHED) {
        lower_inside(meta, policy, &mut inherited);
    }
    wrap(meta, policy, inherited)
}

/// The device of a VRF sends what has been forwarded by then, and so does a route that puts a trace before it: its hop limit is
/// lowered, not that of the headers before it, which is lowered where it leaves.
#[cold]
fn lower_inside(meta: &mut PacketMeta, policy: &Headend, inherited: &mut Inherited) {
    let bytes = meta.packet.bytes_mut();
    if inherited.next_header == protocol::IPV6 {
        lower_hop_limit(bytes);
    } else {
        lower_ttl(bytes);
        inherited.hop_limit = policy.header.get(7).map(|own| own.saturating_add(1));
    }
}

/// Puts the headers before a packet and takes note of it.
fn wrap(meta: &mut PacketMeta, policy: &Headend, inherited: Inherited) -> Result<(), PacketError> {
    // Where the packet goes may be a headend again, which wants the frame that it came in.
    let frame = if policy.via.resolved.is_none() { meta.link_layer() } else { None };
    push_headers(&mut meta.packet, policy, inherited)?;
    meta.wrapped(policy.header.len(), frame);
    meta.extra.inside = 0;
    Ok(())
}

/// H.Encaps.L2 and H.Encaps.L2.Red: RFC 8986 sections 5.3 and 5.4. The frame is the one that the packet
/// came in.
fn encapsulate_frame(view: &View<'_>, meta: &mut PacketMeta, policy: &Headend) -> Result<(), PacketError> {
    let inherited = inherited(meta.packet.bytes(), true)?;
    let ends = inherited.hop_limit.is_some_and(|limit| limit <= 1) && !meta.is(GENERATED);
    let frame = if meta.is(BEHIND_LABEL) { Some(frame_of_lo(meta)) } else { meta.link_layer() };
    let Some(mut frame) = frame else {
        return Err(PacketError::silent(DropReason::UpperLayerUnexpected));
    };
    // What has come out of a tunnel, or of a SID, may be of another version than the packet that the frame had.
    frame[12..].copy_from_slice(&ethertype(meta).to_be_bytes());
    let room: &mut [u8; ethernet::Header::LEN] =
        meta.packet.push_header().map_err(|_| PacketError::silent(DropReason::NoHeadroom))?;
    *room = frame;
    meta.wrapped(ethernet::Header::LEN, None);
    wrap(meta, policy, Inherited { next_header: protocol::ETHERNET, ..inherited })?;
    // The router's own SID takes the frame out again and nothing has forwarded the packet.
    if ends && !is_taken_out(view, meta, policy) {
        return Err(PacketError::notify(DropReason::HopLimitExceeded, IcmpError::HopLimit));
    }
    Ok(())
}

/// Whether the first segment of a policy is a SID of this router's own that takes frames out.
#[cold]
fn is_taken_out(view: &View<'_>, meta: &PacketMeta, policy: &Headend) -> bool {
    let action = action_at(view, meta.packet.bytes(), lookup_of(view, meta, &policy.via), policy.via.address);
    let Some(Action::Endpoint(Endpoint { behaviour, .. })) = action else { return false };
    matches!(
        behaviour,
        Behaviour::DX2 { .. } | Behaviour::DX2V { .. } | Behaviour::DT2U { .. } | Behaviour::DT2M { .. }
    )
}

/// The Ethernet header of what a label has led to `lo`, by which it has come in again: no addresses. Linux: `mpls_forward`
/// sends it by `lo`.
fn frame_of_lo(meta: &PacketMeta) -> [u8; ethernet::Header::LEN] {
    let mut frame = [0; ethernet::Header::LEN];
    frame[12..].copy_from_slice(&ethertype(meta).to_be_bytes());
    frame
}

/// Copies the policy's headers before the packet and fills in what depends on it.
#[inline(always)]
fn push_headers(packet: &mut Packet, policy: &Headend, inherited: Inherited) -> Result<(), PacketError> {
    let header = &*policy.header;
    let payload_length = (packet.len() + header.len()).saturating_sub(ipv6::Header::LEN);
    let Ok(payload_length) = u16::try_from(payload_length) else {
        return Err(PacketError::silent(DropReason::LengthOverflow));
    };
    let room = packet.push(header.len()).map_err(|_| PacketError::silent(DropReason::NoHeadroom))?;
    let next_header = inherited.next_header;
    write_headers(room, header, payload_length, &inherited, next_header)
        .ok_or(PacketError::silent(DropReason::NoHeadroom))
}

/// Copies a policy's headers to the front of `room`, and fills in what depends on the packet. `None`: there
/// is no room for them.
#[inline(always)]
pub(crate) fn write_headers(
    room: &mut [u8],
    header: &[u8],
    payload_length: u16,
    inherited: &Inherited,
    next_header: u8,
) -> Option<()> {
    let outer = room.get_mut(..header.len())?;
    copy(header, outer);
    let (fixed, srh) = outer.split_first_chunk_mut::<{ ipv6::Header::LEN }>()?;
    match srh.first_mut() {
        Some(place) => *place = next_header,
        None => fixed[ipv6::Header::NEXT_HEADER_OFFSET] = next_header,
    }
    fixed[..4].copy_from_slice(&inherited.first_word);
    fixed[4..6].copy_from_slice(&payload_length.to_be_bytes());
    if let Some(hop_limit) = inherited.hop_limit {
        fixed[7] = hop_limit;
    }
    Some(())
}

/// Copies headers, which are a multiple of 8 bytes: a call of memcpy would take longer.
#[inline(always)]
pub(crate) fn copy(from: &[u8], to: &mut [u8]) {
    let (from16, from_rest) = from.as_chunks::<16>();
    let (to16, to_rest) = to.as_chunks_mut::<16>();
    for (to, from) in to16.iter_mut().zip(from16) {
        *to = *from;
    }
    match (to_rest.first_chunk_mut::<8>(), from_rest.first_chunk::<8>()) {
        (Some(to), Some(from)) if from_rest.len() == 8 => *to = *from,
        _ => to_rest.copy_from_slice(from_rest),
    }
}

/// H.Insert: an SRH between the IPv6 header and what follows it, the packet's destination its last
/// segment.
fn insert(meta: &mut PacketMeta, policy: &Headend) -> Result<(), PacketError> {
    // Its hop limit is looked at where it leaves, when there is a way on, and whether it may be forwarded.
    if inherited(meta.packet.bytes(), true)?.next_header != protocol::IPV6 {
        return Err(PacketError::silent(DropReason::UpperLayerUnexpected));
    }
    let frame = meta.link_layer();
    insert_srh(&mut meta.packet, &policy.header)?;
    meta.inserted(policy.header.len(), frame);
    Ok(())
}

/// Puts `srh` behind the IPv6 header.
pub(crate) fn insert_srh(packet: &mut Packet, srh: &[u8]) -> Result<(), DropReason> {
    let (header, _) = ipv6::Header::ref_from_prefix(packet.bytes()).map_err(|_| DropReason::Ip6Truncated)?;
    let destination = header.destination;
    let list = Srh::parse(srh).map_err(|_| DropReason::SrhMalformed)?;
    let first = match usize::from(list.segments_left()) {
        0 => Ipv6Addr::from_octets(destination),
        left => list.segment(left).ok_or(DropReason::SrhMalformed)?,
    };
    let (next, room) = open_gap(packet, srh.len(), first)?;
    room.copy_from_slice(srh);
    let mut inserted = SrhMut::parse(room).map_err(|_| DropReason::SrhMalformed)?;
    inserted.set_next_header(next);
    if let Some(last) = inserted.segments_mut().first_mut() {
        *last = destination;
    }
    Ok(())
}

/// Makes room for a routing header of `len` bytes behind the IPv6 header, and behind a hop-by-hop options header,
/// which RFC 8200 section 4.1 wants first; the packet goes to `destination` then. What follows the routing header,
/// and its bytes, whatever they are.
pub(crate) fn open_gap(
    packet: &mut Packet,
    len: usize,
    destination: Ipv6Addr,
) -> Result<(u8, &mut [u8]), DropReason> {
    let bytes = packet.bytes();
    let (header, rest) = ipv6::Header::ref_from_prefix(bytes).map_err(|_| DropReason::Ip6Truncated)?;
    let (at, pointer) = place(header, rest);
    if at > bytes.len() {
        return Err(DropReason::Ip6Malformed);
    }
    let payload_length = usize::from(header.payload_length.get()) + len;
    let payload_length = u16::try_from(payload_length).map_err(|_| DropReason::LengthOverflow)?;
    let next = bytes[pointer];

    let bytes = packet.push(len).map_err(|_| DropReason::NoHeadroom)?;
    bytes.copy_within(len..len + at, 0);
    bytes[pointer] = protocol::ROUTING;
    let (header, _) = ipv6::Header::mut_from_prefix(bytes).map_err(|_| DropReason::Ip6Truncated)?;
    header.destination = destination.octets();
    header.payload_length = payload_length.into();
    Ok((next, bytes.get_mut(at..at + len).ok_or(DropReason::NoHeadroom)?))
}

/// Where an SRH is inserted, and where the number stands that then names it.
fn place(header: &ipv6::Header, rest: &[u8]) -> (usize, usize) {
    match (header.next_header, rest) {
        (protocol::HOP_BY_HOP, [_, len, ..]) => {
            (ipv6::Header::LEN + (usize::from(*len) + 1) * 8, ipv6::Header::LEN)
        }
        _ => (ipv6::Header::LEN, ipv6::Header::NEXT_HEADER_OFFSET),
    }
}

/// Takes out a routing header that this router has put in, SRv6's or RPL's: its length. `None`: there is none.
#[cold]
pub(crate) fn take_out(packet: &mut Packet) -> Option<usize> {
    let bytes = packet.bytes();
    let (header, rest) = ipv6::Header::ref_from_prefix(bytes).ok()?;
    let (at, pointer) = place(header, rest);
    let bytes = bytes.get(at..)?;
    // The last address of either is where the packet went.
    let (len, next, destination) = if let Ok(srh) = Srh::parse(bytes) {
        (srh.len(), srh.next_header(), srh.segment(0)?)
    } else {
        let rpl = Rpl::parse(bytes).ok()?;
        (rpl.len(), rpl.next_header(), rpl.address(rpl.count() - 1, header.destination())?)
    };
    let payload_length = header.payload_length.get().checked_sub(len as u16)?;

    let bytes = packet.bytes_mut();
    *bytes.get_mut(pointer)? = next;
    let (header, _) = ipv6::Header::mut_from_prefix(bytes).ok()?;
    header.destination = destination.octets();
    header.payload_length = payload_length.into();
    bytes.copy_within(..at, len);
    packet.pull(len);
    Some(len)
}
