//! Endpoint behaviours: RFC 8986 section 4.
//!
//! A packet may arrive with no SRH, a full one or a reduced one. What a behaviour refuses is dropped
//! for a named reason and counted as an error of the SID.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use underpass_packet::ipv6_ext::Extensions;
use underpass_packet::srh::{self, Srh, SrhMut};
use underpass_packet::{FromBytes, ethernet, ipv6, protocol};

use super::flavours::{self, Next};
use crate::buffer::Packet;
use crate::drops::Drop;
use crate::hmac::Check;
use crate::tables::{Behaviour, Bpf, Endpoint, Headend, LinkId, LookupId, NextHopId, Via};
use crate::worker::{IcmpError, Refusal, ipv4_check, ipv4_plain, ipv6_check, ipv6_plain};

/// Where a packet goes on from a behaviour.
#[derive(Clone, Copy)]
pub(crate) enum Onward<'s> {
    /// Looked up.
    Look4(LookupId, Ipv4Addr),
    /// Looked up.
    Look6(LookupId, Ipv6Addr),
    /// To the next hop that its address is known to lead to.
    Forward(NextHopId),
    /// It is an Ethernet frame now, for this link.
    Frame(LinkId),
    /// Through this policy's headend.
    Insert(&'s Headend),
    /// To the router itself, as it is now.
    Deliver,
    /// Through this program; where the SRH begins.
    Program(&'s Bpf, usize),
}

impl From<Drop> for Refusal {
    fn from(reason: Drop) -> Self {
        Self::silent(reason)
    }
}

/// Does what a local SID says to a packet that is addressed to it. `unusual` is set if the packet inside
/// has addresses with which it must not be forwarded.
///
/// # Errors
/// Why the behaviour refuses the packet, which is then as it came, but for a decapsulation that found
/// something malformed inside.
#[inline(always)]
pub(crate) fn endpoint<'s>(
    packet: &mut Packet,
    sid: &'s Endpoint,
    check: &Check<'_>,
    unusual: &mut bool,
) -> Result<Onward<'s>, Refusal> {
    match &sid.behaviour {
        Behaviour::End { lookup } | Behaviour::T { lookup } => end(packet, sid, check, *lookup, unusual),
        Behaviour::X(via) => end_x(packet, sid, check, via, unusual),
        Behaviour::DX2 { link } => {
            decapsulate_frame(packet, check)?;
            Ok(Onward::Frame(*link))
        }
        Behaviour::DX4(via) => end_dx4(packet, check, via, unusual),
        Behaviour::DX6(via) => end_dx6(packet, check, via, unusual),
        Behaviour::DT4 { lookup } => end_dt4(packet, check, *lookup, unusual),
        Behaviour::DT6 { lookup } => end_dt6(packet, check, *lookup, unusual),
        Behaviour::DT46 { lookup } => end_dt46(packet, check, *lookup, unusual),
        // Linux's End.B6: a new SRH on top of the active one.
        Behaviour::B6(policy) => {
            active_srh(packet, check)?;
            Ok(Onward::Insert(policy))
        }
        // RFC 8986 section 4.13: on to the next segment, and the policy's headers around it all.
        Behaviour::B6Encaps(policy) => {
            advance(packet, check)?;
            Ok(Onward::Insert(policy))
        }
        Behaviour::Bpf(bpf) => {
            let at = super::bpf::next_segment(packet, check)?;
            Ok(Onward::Program(bpf, at))
        }
    }
}

impl Onward<'_> {
    /// Where `via` points: to its next hop if that is known, to its address otherwise.
    #[inline(always)]
    pub(crate) fn via(via: &Via) -> Self {
        match (via.resolved, via.address) {
            (Some(next_hop), _) => Self::Forward(next_hop),
            (None, IpAddr::V4(address)) => Self::Look4(via.lookup, address),
            (None, IpAddr::V6(address)) => Self::Look6(via.lookup, address),
        }
    }
}

/// The name of a behaviour, as `ip` writes it.
pub(crate) fn name(behaviour: &Behaviour) -> &'static str {
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
        Behaviour::Bpf(_) => "End.BPF",
    }
}

/// End and End.T: on to the next segment, looked up in `lookup`. RFC 8986 sections 4.1 and 4.3.
#[inline(always)]
fn end<'s>(
    packet: &mut Packet,
    sid: &Endpoint,
    check: &Check<'_>,
    lookup: LookupId,
    unusual: &mut bool,
) -> Result<Onward<'s>, Refusal> {
    let Some(flavours) = &sid.flavours else { return Ok(Onward::Look6(lookup, advance(packet, check)?)) };
    Ok(match flavours::next(packet, flavours, check, unusual)? {
        Next::Segment(address) | Next::Inside6(address) => Onward::Look6(lookup, address),
        Next::Inside4(address) => Onward::Look4(lookup, address),
        Next::UpperLayer => Onward::Deliver,
    })
}

/// End.X: on to the next segment, to this neighbour whatever its address. RFC 8986 section 4.2.
#[inline(always)]
fn end_x<'s>(
    packet: &mut Packet,
    sid: &Endpoint,
    check: &Check<'_>,
    via: &Via,
    unusual: &mut bool,
) -> Result<Onward<'s>, Refusal> {
    let next = match &sid.flavours {
        None => Next::Segment(advance(packet, check)?),
        Some(flavours) => flavours::next(packet, flavours, check, unusual)?,
    };
    let unspecified = matches!(via.address, IpAddr::V6(address) if address.is_unspecified());
    Ok(match next {
        Next::UpperLayer => Onward::Deliver,
        _ if !unspecified => Onward::via(via),
        Next::Segment(address) | Next::Inside6(address) => Onward::Look6(via.lookup, address),
        Next::Inside4(address) => Onward::Look4(via.lookup, address),
    })
}

/// RFC 8986 section 4.1, S02 to S15: lowers segments left and makes that segment the destination.
#[inline(always)]
fn advance(packet: &mut Packet, check: &Check<'_>) -> Result<Ipv6Addr, Refusal> {
    if check.passes_plain()
        && let Some(segment) = advance_plain(packet.bytes_mut())
    {
        return Ok(segment);
    }
    advance_any(packet, check)
}

/// [`advance_any`] for nearly every packet. `None`: the packet is not of that kind, and unchanged.
#[inline(always)]
fn advance_plain(bytes: &mut [u8]) -> Option<Ipv6Addr> {
    let (left, segment) = next_segment_plain(bytes)?;
    write_segment(bytes.first_chunk_mut()?, left, segment);
    Some(segment)
}

/// What becomes segments left and the destination of a packet on its way through an SRH without TLVs right
/// behind the fixed header, if its hop limit is not used up. `None`: the packet is not of that kind.
#[inline(always)]
pub(crate) fn next_segment_plain(bytes: &[u8]) -> Option<(u8, Ipv6Addr)> {
    let (fixed, list) = bytes.split_first_chunk::<48>()?;
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
    Some((left - 1, Ipv6Addr::from_octets(segment)))
}

/// Writes what [`next_segment_plain`] says into the headers of its packet.
#[inline(always)]
pub(crate) fn write_segment(headers: &mut [u8; 48], left: u8, segment: Ipv6Addr) {
    headers[43] = left;
    headers[24..40].copy_from_slice(&segment.octets());
}

/// [`advance`] for any packet.
#[inline(never)]
fn advance_any(packet: &mut Packet, check: &Check<'_>) -> Result<Ipv6Addr, Refusal> {
    let at = active_srh(packet, check)?;
    advance_at(packet, at).map(|(_, segment)| segment)
}

/// [`advance`] by the SRH at `at`: how many segments are left then, and the destination.
pub(crate) fn advance_at(packet: &mut Packet, at: usize) -> Result<(u8, Ipv6Addr), Refusal> {
    let (header, rest) = ipv6::Header::mut_from_prefix(packet.bytes_mut()).map_err(|_| Drop::Ip6Truncated)?;
    // S05: "If (IPv6 Hop Limit <= 1)": time exceeded, quoting the packet as it came.
    if header.hop_limit <= 1 {
        return Err(Refusal::told(Drop::HopLimitExceeded, IcmpError::HopLimit));
    }
    let mut srh = rest
        .get_mut(at - ipv6::Header::LEN..)
        .and_then(|bytes| SrhMut::parse(bytes).ok())
        .ok_or(Drop::SrhMalformed)?;
    // S13, S14: "Decrement Segments Left by 1", "Update IPv6 DA with Segment List[Segments Left]"
    let segment = srh.advance().ok_or(Drop::SrhMalformed)?;
    header.destination = segment;
    Ok((srh.view().segments_left(), Ipv6Addr::from_octets(segment)))
}

/// Where the SRH with segments left begins, RFC 8986 section 4.1, S01 and S02. Routing headers that are
/// used up are passed over. It is sound, and its HMAC as it is to be.
pub(super) fn active_srh(packet: &Packet, check: &Check<'_>) -> Result<usize, Drop> {
    let (fixed, _) = ipv6::Header::ref_from_prefix(packet.bytes()).map_err(|_| Drop::Ip6Truncated)?;
    let mut reason = Drop::SrhMissing;
    for header in extensions(packet.bytes())? {
        let header = header.map_err(|_| Drop::Ip6Malformed)?;
        let Some(routing) = header.routing() else { continue };
        match (routing.routing_type, routing.segments_left) {
            (_, 0) => reason = Drop::SegmentsLeftZero,
            (srh::ROUTING_TYPE, _) => {
                let srh = Srh::parse(header.bytes).map_err(|_| Drop::SrhMalformed)?;
                check.check(&fixed.source, &srh)?;
                return Ok(header.offset);
            }
            _ => return Err(Drop::SrhMissing),
        }
    }
    Err(reason)
}

pub(super) fn extensions(bytes: &[u8]) -> Result<Extensions<'_>, Drop> {
    let view = ipv6::View::parse(bytes).map_err(|_| Drop::Ip6Truncated)?;
    Ok(Extensions::new(&view))
}

/// Below it is the length of an IEEE 802.3 frame, of which Linux forwards none.
pub(crate) const LEAST_ETHERTYPE: u16 = 0x0600;

/// End.DX2: what is inside is an Ethernet frame. RFC 8986 section 4.9.
#[inline(always)]
fn decapsulate_frame(packet: &mut Packet, check: &Check<'_>) -> Result<(), Refusal> {
    let at = inner(packet, check, protocol::ETHERNET)?;
    packet.pull(at);
    match ethernet::Header::parse(packet.bytes()) {
        Ok((header, _)) if header.ethertype.get() >= LEAST_ETHERTYPE => Ok(()),
        _ => Err(Drop::InnerMalformed.into()),
    }
}

/// End.DX4: the IPv4 packet inside goes to this neighbour. RFC 8986 section 4.5.
#[inline(always)]
fn end_dx4<'s>(
    packet: &mut Packet,
    check: &Check<'_>,
    via: &Via,
    unusual: &mut bool,
) -> Result<Onward<'s>, Refusal> {
    let destination = decapsulate4(packet, check, unusual)?;
    Ok(match via.address {
        IpAddr::V4(address) if address.is_unspecified() => Onward::Look4(via.lookup, destination),
        _ => Onward::via(via),
    })
}

/// End.DX6: the IPv6 packet inside goes to this neighbour. RFC 8986 section 4.4.
#[inline(always)]
fn end_dx6<'s>(
    packet: &mut Packet,
    check: &Check<'_>,
    via: &Via,
    unusual: &mut bool,
) -> Result<Onward<'s>, Refusal> {
    let destination = decapsulate6(packet, check, unusual)?;
    Ok(match via.address {
        IpAddr::V6(address) if address.is_unspecified() => Onward::Look6(via.lookup, destination),
        _ => Onward::via(via),
    })
}

/// End.DT4: the IPv4 packet inside is looked up in the tables of the VRF. RFC 8986 section 4.7.
#[inline(always)]
fn end_dt4<'s>(
    packet: &mut Packet,
    check: &Check<'_>,
    lookup: LookupId,
    unusual: &mut bool,
) -> Result<Onward<'s>, Refusal> {
    Ok(Onward::Look4(lookup, decapsulate4(packet, check, unusual)?))
}

/// End.DT6: the IPv6 packet inside is looked up in the tables of the VRF. RFC 8986 section 4.6.
#[inline(always)]
fn end_dt6<'s>(
    packet: &mut Packet,
    check: &Check<'_>,
    lookup: LookupId,
    unusual: &mut bool,
) -> Result<Onward<'s>, Refusal> {
    Ok(Onward::Look6(lookup, decapsulate6(packet, check, unusual)?))
}

/// End.DT46: either. RFC 8986 section 4.8.
#[inline(always)]
fn end_dt46<'s>(
    packet: &mut Packet,
    check: &Check<'_>,
    lookup: LookupId,
    unusual: &mut bool,
) -> Result<Onward<'s>, Refusal> {
    match end_dt6(packet, check, lookup, unusual) {
        Err(refusal) if refusal == Refusal::silent(Drop::UpperLayerUnexpected) => {
            end_dt4(packet, check, lookup, unusual)
        }
        done => done,
    }
}

/// Where the packet inside begins, behind the outer IPv6 header and all its extension headers, if it is
/// of this protocol. The check that comes first in all of RFC 8986 sections 4.4 to 4.12: segments left
/// must be 0.
#[inline(always)]
fn inner(packet: &Packet, check: &Check<'_>, protocol: u8) -> Result<usize, Drop> {
    let bytes = packet.bytes();
    if check.passes_plain()
        && let Some(at) = plain_inner(bytes, protocol)
    {
        return Ok(at);
    }
    find_inner(bytes, check, protocol)
}

/// [`inner`] for the frequent forms: nothing between the fixed header and the packet inside, or an SRH
/// without TLVs that is used up. `None`: it is of another form.
#[inline(always)]
pub(crate) fn plain_inner(bytes: &[u8], protocol: u8) -> Option<usize> {
    const SRH: usize = ipv6::Header::LEN;
    let next = *bytes.get(ipv6::Header::NEXT_HEADER_OFFSET)?;
    if next == protocol {
        return Some(SRH);
    }
    let [next_inside, len, kind, left, last, ..] = *bytes.get(SRH..)?.first_chunk::<8>()?;
    let end = SRH + 8 + usize::from(len) * 8;
    let plain = next == protocol::ROUTING
        && kind == srh::ROUTING_TYPE
        && left == 0
        && next_inside == protocol
        && usize::from(len) == (usize::from(last) + 1) * 2
        && end <= bytes.len();
    plain.then_some(end)
}

/// Walks the extension headers to the packet inside.
#[cold]
fn find_inner(bytes: &[u8], check: &Check<'_>, protocol: u8) -> Result<usize, Drop> {
    let (fixed, _) = ipv6::Header::ref_from_prefix(bytes).map_err(|_| Drop::Ip6Truncated)?;
    let mut headers = extensions(bytes)?;
    for header in headers.by_ref() {
        let header = header.map_err(|_| Drop::Ip6Malformed)?;
        let Some(routing) = header.routing() else { continue };
        if routing.segments_left > 0 {
            return Err(Drop::SegmentsLeftNotZero);
        }
        if routing.routing_type == srh::ROUTING_TYPE {
            let srh = Srh::parse(header.bytes).map_err(|_| Drop::SrhMalformed)?;
            check.check(&fixed.source, &srh)?;
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
pub(super) fn decapsulate4(
    packet: &mut Packet,
    check: &Check<'_>,
    unusual: &mut bool,
) -> Result<Ipv4Addr, Drop> {
    let at = inner(packet, check, protocol::IPV4)?;
    let inner = packet.bytes().get(at..).ok_or(Drop::InnerMalformed)?;
    if let Some((destination, len)) = ipv4_plain(inner, u8::MAX.into()) {
        packet.narrow(at, len);
        return Ok(Ipv4Addr::from_bits(destination));
    }
    let checked = ipv4_check(inner).map_err(|_| Drop::InnerMalformed)?;
    packet.narrow(at, checked.len);
    *unusual = checked.unusual;
    Ok(checked.destination)
}

/// Takes the outer headers off an IPv6 packet, which is checked: its destination.
#[inline(always)]
pub(super) fn decapsulate6(
    packet: &mut Packet,
    check: &Check<'_>,
    unusual: &mut bool,
) -> Result<Ipv6Addr, Drop> {
    let at = inner(packet, check, protocol::IPV6)?;
    let inner = packet.bytes().get(at..).ok_or(Drop::InnerMalformed)?;
    if let Some((destination, len)) = ipv6_plain(inner) {
        packet.narrow(at, len);
        return Ok(Ipv6Addr::from_bits(destination));
    }
    let checked = ipv6_check(inner).map_err(|_| Drop::InnerMalformed)?;
    packet.narrow(at, checked.len);
    *unusual = checked.unusual;
    Ok(checked.destination)
}
