//! Endpoint behaviours: RFC 8986 section 4.
//!
//! A packet may arrive with no SRH, a full one or a reduced one. What a behaviour refuses is dropped
//! for a named reason and counted as an error of the SID.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use underpass_packet::ipv6_ext::Extensions;
use underpass_packet::srh::{self, Srh, SrhMut};
use underpass_packet::{FromBytes, ethernet, ipv6, protocol};

use super::headend;
use crate::buffer::Packet;
use crate::drops::Drop;
use crate::tables::{Behaviour, Endpoint, Headend, LookupId, NextCsid, Via};
use crate::trace::{Event, Trace};
use crate::worker::{IcmpError, NOT_FORWARDED, Path, Road, Step, ipv4_check, ipv6_check};

/// Why a behaviour refuses a packet, and what its sender is told.
struct Refused(Drop, Option<IcmpError>);

impl From<Drop> for Refused {
    fn from(reason: Drop) -> Self {
        Self(reason, None)
    }
}

/// Does what a local SID says to a packet that is addressed to it.
#[inline(always)]
pub(crate) fn endpoint<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    road: &mut Road,
    sid: &Endpoint,
    trace: &mut T,
) -> Step {
    trace.step(Event::Behaviour(name(&sid.behaviour)), &road.packet);
    // Bytes are counted as the packet came, its outer headers included.
    let bytes = road.packet.len();
    let done = match &sid.behaviour {
        Behaviour::End { lookup } | Behaviour::T { lookup } => end(road, sid, *lookup),
        Behaviour::X(via) => end_x(road, sid, via),
        Behaviour::DX2 { link } => decapsulate_frame(road).map(|()| Step::Frame(*link)),
        Behaviour::DX4(via) => end_dx4(road, via),
        Behaviour::DX6(via) => end_dx6(road, via),
        Behaviour::DT4 { lookup } => end_dt4(road, *lookup),
        Behaviour::DT6 { lookup } => end_dt6(road, *lookup),
        Behaviour::DT46 { lookup } => end_dt46(road, *lookup),
        Behaviour::B6(policy) => end_b6(road, policy, trace),
        Behaviour::B6Encaps(policy) => end_b6_encaps(road, policy, trace),
    };
    match done {
        Ok(step) => {
            path.count(road, sid.counter, bytes);
            step
        }
        Err(Refused(reason, error)) => {
            path.count_error(sid.counter);
            error.map_or(Step::drop(reason), |error| Step::error(reason, error))
        }
    }
}

/// The name of a behaviour, as `ip` writes it.
fn name(behaviour: &Behaviour) -> &'static str {
    match behaviour {
        Behaviour::End { .. } => "End",
        Behaviour::X(_) => "End.X",
        Behaviour::T { .. } => "End.T",
        Behaviour::DX2 { .. } => "End.DX2",
        Behaviour::DX4(_) => "End.DX4",
        Behaviour::DX6(_) => "End.DX6",
        Behaviour::DT4 { .. } => "End.DT4",
        Behaviour::DT6 { .. } => "End.DT6",
        Behaviour::DT46 { .. } => "End.DT46",
        Behaviour::B6(_) => "End.B6",
        Behaviour::B6Encaps(_) => "End.B6.Encaps",
    }
}

/// End and End.T: on to the next segment, looked up in `lookup`. RFC 8986 sections 4.1 and 4.3.
#[inline(always)]
fn end(road: &mut Road, sid: &Endpoint, lookup: LookupId) -> Result<Step, Refused> {
    let segment = next_segment(road, sid)?;
    Ok(Step::look6(road, lookup, segment))
}

/// End.X: on to the next segment, to this neighbour whatever its address. RFC 8986 section 4.2.
#[inline(always)]
fn end_x(road: &mut Road, sid: &Endpoint, via: &Via) -> Result<Step, Refused> {
    let segment = next_segment(road, sid)?;
    Ok(match via.address {
        IpAddr::V6(address) if address.is_unspecified() => Step::look6(road, via.lookup, segment),
        _ => Step::via(road, via),
    })
}

/// What End, End.X and End.T share: makes the next segment the destination, and returns it.
#[inline(always)]
fn next_segment(road: &mut Road, sid: &Endpoint) -> Result<Ipv6Addr, Refused> {
    if let Some(structure) = sid.next_csid
        && let Some(destination) = next_csid(&mut road.packet, structure)
    {
        return Ok(destination);
    }
    advance(road, sid.psp)
}

/// RFC 8986 section 4.1, S02 to S15: lowers segments left and makes that segment the destination.
#[inline(always)]
fn advance(road: &mut Road, psp: bool) -> Result<Ipv6Addr, Refused> {
    if !psp && let Some(segment) = advance_plain(road.packet.bytes_mut()) {
        return Ok(segment);
    }
    advance_any(road, psp)
}

/// [`advance_any`] for nearly every packet: an SRH without TLVs right behind the fixed header, and a hop
/// limit that is not used up. `None`: the packet is not of that kind, and unchanged.
#[inline(always)]
fn advance_plain(bytes: &mut [u8]) -> Option<Ipv6Addr> {
    let (fixed, list) = bytes.split_first_chunk_mut::<48>()?;
    let [.., next, hop_limit] = *fixed.first_chunk::<8>()?;
    let [_, len, kind, left, last, ..] = *fixed.last_chunk::<8>()?;
    let segments = usize::from(last) + 1;
    let plain = next == protocol::ROUTING
        && kind == srh::ROUTING_TYPE
        && hop_limit > 1
        && usize::from(len) == segments * 2
        && segments * 16 <= list.len()
        && (1..=segments).contains(&usize::from(left));
    if !plain {
        return None;
    }
    let segment = *list.get(usize::from(left - 1) * 16..)?.first_chunk::<16>()?;
    fixed[43] = left - 1;
    fixed[24..40].copy_from_slice(&segment);
    Some(Ipv6Addr::from_octets(segment))
}

/// [`advance`] for any packet.
#[inline(never)]
fn advance_any(road: &mut Road, psp: bool) -> Result<Ipv6Addr, Refused> {
    let at = active_srh(&road.packet)?;
    let (header, rest) =
        ipv6::Header::mut_from_prefix(road.packet.bytes_mut()).map_err(|_| Drop::Ip6Truncated)?;
    // S05: "If (IPv6 Hop Limit <= 1)": time exceeded, quoting the packet as it came.
    if header.hop_limit <= 1 {
        return Err(Refused(Drop::HopLimitExceeded, Some(IcmpError::HopLimit)));
    }
    let mut srh = rest
        .get_mut(at - ipv6::Header::LEN..)
        .and_then(|bytes| SrhMut::parse(bytes).ok())
        .ok_or(Drop::SrhMalformed)?;
    // S13, S14: "Decrement Segments Left by 1", "Update IPv6 DA with Segment List[Segments Left]"
    let segment = srh.advance().ok_or(Drop::SrhMalformed)?;
    header.destination = segment;
    if psp && srh.view().segments_left() == 0 {
        pop_srh(&mut road.packet, at)?;
    }
    Ok(Ipv6Addr::from_octets(segment))
}

/// Where the SRH with segments left begins, RFC 8986 section 4.1, S01 and S02. Routing headers that are
/// used up are passed over.
fn active_srh(packet: &Packet) -> Result<usize, Drop> {
    let mut reason = Drop::SrhMissing;
    for header in extensions(packet.bytes())? {
        let header = header.map_err(|_| Drop::Ip6Malformed)?;
        let Some(routing) = header.routing() else { continue };
        match (routing.routing_type, routing.segments_left) {
            (_, 0) => reason = Drop::SegmentsLeftZero,
            (srh::ROUTING_TYPE, _) => return Ok(header.offset),
            _ => return Err(Drop::SrhMissing),
        }
    }
    Err(reason)
}

fn extensions(bytes: &[u8]) -> Result<Extensions<'_>, Drop> {
    let view = ipv6::View::parse(bytes).map_err(|_| Drop::Ip6Truncated)?;
    Ok(Extensions::new(&view))
}

/// RFC 8986 section 4.16.1, penultimate segment pop: takes the SRH at `at` out of the packet.
fn pop_srh(packet: &mut Packet, at: usize) -> Result<(), Drop> {
    let bytes = packet.bytes_mut();
    let srh = bytes.get(at..).and_then(|bytes| Srh::parse(bytes).ok()).ok_or(Drop::SrhMalformed)?;
    let (len, next) = (srh.len(), srh.next_header());
    let named_at = extensions(bytes)?
        .find_map(|header| header.ok().filter(|header| header.offset == at))
        .ok_or(Drop::Ip6Malformed)?
        .named_at;
    bytes[named_at] = next;
    let (header, _) = ipv6::Header::mut_from_prefix(bytes).map_err(|_| Drop::Ip6Truncated)?;
    header.payload_length -= len as u16;
    bytes.copy_within(..at, len);
    packet.pull(len);
    Ok(())
}

/// RFC 9800 section 4.1.1: if the argument of the SID is not zero, moves its first compressed SID into
/// the place of this one's. `None`: it is zero, and the SRH says how to go on.
#[inline]
fn next_csid(packet: &mut Packet, structure: NextCsid) -> Option<Ipv6Addr> {
    let (header, _) = ipv6::Header::mut_from_prefix(packet.bytes_mut()).ok()?;
    let block = u32::from(structure.block);
    let node_function = u32::from(structure.node_function);
    let address = u128::from_be_bytes(header.destination);
    let behind_block = address.checked_shl(block).unwrap_or(0);
    let argument = behind_block.checked_shl(node_function).unwrap_or(0);
    if argument == 0 {
        return None;
    }
    let block_bits = if block == 0 { 0 } else { u128::MAX << (128 - block.min(128)) };
    let next = address & block_bits | argument.checked_shr(block).unwrap_or(0);
    header.destination = next.to_be_bytes();
    Some(Ipv6Addr::from_bits(next))
}

/// End.DX2: what is inside is an Ethernet frame. RFC 8986 section 4.9.
#[inline(always)]
fn decapsulate_frame(road: &mut Road) -> Result<(), Refused> {
    let at = inner(&road.packet, protocol::ETHERNET)?;
    road.packet.pull(at);
    match ethernet::Header::parse(road.packet.bytes()) {
        // Linux forwards no IEEE 802.3 length-typed frames.
        Ok((header, _)) if header.ethertype.get() >= 0x0600 => Ok(()),
        _ => Err(Drop::InnerMalformed.into()),
    }
}

/// End.DX4: the IPv4 packet inside goes to this neighbour. RFC 8986 section 4.5.
#[inline(always)]
fn end_dx4(road: &mut Road, via: &Via) -> Result<Step, Refused> {
    let destination = decapsulate4(road)?;
    Ok(match via.address {
        IpAddr::V4(address) if address.is_unspecified() => Step::look4(road, via.lookup, destination),
        _ => Step::via(road, via),
    })
}

/// End.DX6: the IPv6 packet inside goes to this neighbour. RFC 8986 section 4.4.
#[inline(always)]
fn end_dx6(road: &mut Road, via: &Via) -> Result<Step, Refused> {
    let destination = decapsulate6(road)?;
    Ok(match via.address {
        IpAddr::V6(address) if address.is_unspecified() => Step::look6(road, via.lookup, destination),
        _ => Step::via(road, via),
    })
}

/// End.DT4: the IPv4 packet inside is looked up in the tables of the VRF. RFC 8986 section 4.7.
#[inline(always)]
fn end_dt4(road: &mut Road, lookup: LookupId) -> Result<Step, Refused> {
    let destination = decapsulate4(road)?;
    Ok(Step::look4(road, lookup, destination))
}

/// End.DT6: the IPv6 packet inside is looked up in the tables of the VRF. RFC 8986 section 4.6.
#[inline(always)]
fn end_dt6(road: &mut Road, lookup: LookupId) -> Result<Step, Refused> {
    let destination = decapsulate6(road)?;
    Ok(Step::look6(road, lookup, destination))
}

/// End.DT46: either. RFC 8986 section 4.8.
#[inline(always)]
fn end_dt46(road: &mut Road, lookup: LookupId) -> Result<Step, Refused> {
    match end_dt6(road, lookup) {
        Err(Refused(Drop::UpperLayerUnexpected, _)) => end_dt4(road, lookup),
        done => done,
    }
}

/// End.B6, as Linux has it: a new SRH on top of the active one.
fn end_b6<T: Trace>(road: &mut Road, policy: &Headend, trace: &mut T) -> Result<Step, Refused> {
    active_srh(&road.packet)?;
    Ok(headend(road, policy, trace))
}

/// End.B6.Encaps: on to the next segment, and the policy's headers around it all. RFC 8986 section 4.13.
#[inline(always)]
fn end_b6_encaps<T: Trace>(road: &mut Road, policy: &Headend, trace: &mut T) -> Result<Step, Refused> {
    advance(road, false)?;
    Ok(headend(road, policy, trace))
}

/// Where the packet inside begins, behind the outer IPv6 header and all its extension headers, if it is
/// of this protocol. The check that comes first in all of RFC 8986 sections 4.4 to 4.12: segments left
/// must be 0.
#[inline(always)]
fn inner(packet: &Packet, protocol: u8) -> Result<usize, Drop> {
    let bytes = packet.bytes();
    let next = bytes.get(ipv6::Header::NEXT_HEADER_OFFSET).copied();
    if next == Some(protocol) {
        return Ok(ipv6::Header::LEN);
    }
    // An SRH that is used up and nothing else: the other frequent form.
    if next == Some(protocol::ROUTING)
        && let Some(Ok(srh)) = bytes.get(ipv6::Header::LEN..).map(Srh::parse)
        && srh.segments_left() == 0
        && srh.next_header() == protocol
    {
        return Ok(ipv6::Header::LEN + srh.len());
    }
    find_inner(bytes, protocol)
}

/// Walks the extension headers to the packet inside.
#[cold]
fn find_inner(bytes: &[u8], protocol: u8) -> Result<usize, Drop> {
    let mut headers = extensions(bytes)?;
    for header in headers.by_ref() {
        let header = header.map_err(|_| Drop::Ip6Malformed)?;
        let Some(routing) = header.routing() else { continue };
        if routing.segments_left > 0 {
            return Err(Drop::SegmentsLeftNotZero);
        }
        if routing.routing_type == srh::ROUTING_TYPE && Srh::parse(header.bytes).is_err() {
            return Err(Drop::SrhMalformed);
        }
    }
    let upper = headers.upper().map_err(|_| Drop::Ip6Malformed)?;
    if upper.protocol == protocol && upper.fragment_offset == 0 {
        Ok(upper.offset)
    } else {
        Err(Drop::UpperLayerUnexpected)
    }
}

/// Takes the outer headers off an IPv4 packet, which is checked: its destination.
#[inline(always)]
fn decapsulate4(road: &mut Road) -> Result<Ipv4Addr, Drop> {
    let at = inner(&road.packet, protocol::IPV4)?;
    let checked =
        road.packet.bytes().get(at..).and_then(|inner| ipv4_check(inner).ok()).ok_or(Drop::InnerMalformed)?;
    road.packet.narrow(at, checked.len);
    if checked.unusual {
        road.extra.flags |= NOT_FORWARDED;
    }
    Ok(checked.destination)
}

/// Takes the outer headers off an IPv6 packet, which is checked: its destination.
#[inline(always)]
fn decapsulate6(road: &mut Road) -> Result<Ipv6Addr, Drop> {
    let at = inner(&road.packet, protocol::IPV6)?;
    let checked =
        road.packet.bytes().get(at..).and_then(|inner| ipv6_check(inner).ok()).ok_or(Drop::InnerMalformed)?;
    road.packet.narrow(at, checked.len);
    if checked.unusual {
        road.extra.flags |= NOT_FORWARDED;
    }
    Ok(checked.destination)
}
