//! Flavours of End, End.X and End.T: RFC 8986 section 4.16, RFC 9800 section 4.

use std::net::{Ipv4Addr, Ipv6Addr};

use underpass_packet::ipv6_ext::Kind;
use underpass_packet::srh::Srh;
use underpass_packet::{FromBytes, ethernet, ipv6, protocol, srh};

use crate::buffer::Packet;
use crate::drops::DropReason;
use crate::hmac::Check;
use crate::path::ipv6::stays_on_node;
use crate::srv6;
use crate::srv6::decap::{decapsulate_fast, decapsulate4, decapsulate6, looked_up};
use crate::srv6::end::{active_srh, advance_at, advance_frame, extensions, known_next_hop};
use crate::srv6::replace_csid::{self, List};
use crate::tables::{Behaviour, Csid, Endpoint, Flavours, LookupId, NextCsid, StoredNextHop};
use crate::worker::error::{IcmpError, PacketError};
use crate::worker::fibs::Fibs;
use crate::worker::rewrite::{ETHERNET, FastVerdict, addresses, cut, write_header};
use crate::worker::view::View;

/// What a SID with flavours has made of a packet.
pub(crate) enum Advanced {
    /// It is on its way to this segment.
    Segment(Ipv6Addr),
    /// It is the IPv4 packet that was inside, to this destination.
    Inside4(Ipv4Addr),
    /// It is the IPv6 packet that was inside, to this destination.
    Inside6(Ipv6Addr),
    /// The router itself is to process what follows its headers.
    UpperLayer,
}

/// The fast function of End, End.X and End.T with flavours. `SPREAD`: the segment may lead to a multipath route.
#[inline(always)]
pub(crate) fn flavours_fast<'a, const SPREAD: bool>(
    view: &View<'a>,
    fibs: &mut Fibs<'a>,
    packet: &mut Packet,
    len: usize,
    (sid, instance): (&Endpoint, LookupId),
) -> Option<FastVerdict> {
    let flavours = sid.flavours.as_ref()?;
    let bytes = packet.bytes().get(ETHERNET..ETHERNET + len)?;
    // To which next hop: that of the SID, or the one that these tables say.
    let (via, lookup) = match &sid.behaviour {
        Behaviour::X(via) if via.lookup != instance => return None,
        Behaviour::X(via) => (Some(view.next_hop(via.resolved)?), via.lookup),
        // An IPv4 packet that is taken out goes by the tables of the SID.
        Behaviour::End { lookup } if flavours.usd && *lookup != instance => return None,
        Behaviour::End { .. } => (None, instance),
        Behaviour::T { lookup } => (None, *lookup),
        _ => return None,
    };
    match flavours.csid {
        Some(Csid::Next(structure)) => {
            let fixed = bytes.first_chunk::<40>()?;
            if let Some(next) = structure.next(u128::from_be_bytes(*fixed.last_chunk()?)) {
                let next = Ipv6Addr::from_bits(next);
                let next_hop = match via {
                    Some(next_hop) => next_hop,
                    None => known_next_hop::<SPREAD>(view, fibs, lookup, next, (packet, len))?,
                };
                return redirect(packet, len, next, next_hop);
            }
        }
        // Its full function alone.
        Some(Csid::Replace(_)) => return None,
        None => {}
    }
    if let Some((left, segment)) = srv6::next_segment_fast(bytes) {
        let next_hop = match via {
            Some(_) if stays_on_node(segment) => return None,
            Some(next_hop) => next_hop,
            None => known_next_hop::<SPREAD>(view, fibs, lookup, segment, (packet, len))?,
        };
        return match left {
            0 if flavours.psp => advance_and_pop(packet, len, segment, next_hop),
            _ => advance_frame(packet, len, (left, segment), next_hop),
        };
    }
    if !flavours.usd {
        return None;
    }
    if srv6::find_inner_fast(bytes, protocol::IPV6).is_some() {
        decapsulate_fast::<u128>(view, packet, len, |target, _, _| {
            via.or_else(|| looked_up(view, fibs, lookup, target))
        })
    } else {
        decapsulate_fast::<u32>(view, packet, len, |target, _, _| {
            via.or_else(|| looked_up(view, fibs, lookup, target))
        })
    }
}

/// The same without a change of its SRH.
#[inline(always)]
fn redirect(
    packet: &mut Packet,
    len: usize,
    destination: Ipv6Addr,
    next_hop: &StoredNextHop,
) -> Option<FastVerdict> {
    let mac = addresses(next_hop, len)?;
    let frame = packet.bytes_mut();
    let padded = frame.len() != ETHERNET + len;
    let (head, bytes) = frame.split_first_chunk_mut::<ETHERNET>()?;
    crate::path::ipv6::lower_hop_limit(bytes)?;
    bytes.get_mut(24..40)?.copy_from_slice(&destination.octets());
    head[..12].copy_from_slice(mac);
    if padded {
        cut(packet, ETHERNET + len);
    }
    Some((next_hop.port, (ETHERNET + len) as u32))
}

/// Makes the last segment the destination of the packet of `len` bytes in a frame, takes out the SRH, which
/// is right behind the fixed header, and sends the frame to a next hop.
#[inline(always)]
fn advance_and_pop(
    packet: &mut Packet,
    len: usize,
    segment: Ipv6Addr,
    next_hop: &StoredNextHop,
) -> Option<FastVerdict> {
    let fixed = packet.bytes().get(ETHERNET..)?.first_chunk::<48>()?;
    let srh_len = 8 + usize::from(fixed[41]) * 8;
    let left = len.checked_sub(srh_len)?;
    let mac = addresses(next_hop, left)?;
    let payload_length = u16::try_from(left.checked_sub(underpass_packet::ipv6::Header::LEN)?).ok()?;
    // All is read before the place behind is written, which overlaps.
    let (first, source) = (*fixed.first_chunk::<4>()?, *fixed.get(8..)?.first_chunk::<16>()?);
    let (next_header, hop_limit) = (fixed[40], fixed[7] - 1);
    let room = packet.bytes_mut().get_mut(srh_len..)?.first_chunk_mut::<{ ETHERNET + 40 }>()?;
    let (head, bytes) = room.split_first_chunk_mut::<ETHERNET>()?;
    write_header(head, mac, ethernet::IPV6);
    bytes[..4].copy_from_slice(&first);
    bytes[4..6].copy_from_slice(&payload_length.to_be_bytes());
    bytes[6] = next_header;
    bytes[7] = hop_limit;
    bytes[8..24].copy_from_slice(&source);
    bytes[24..40].copy_from_slice(&segment.octets());
    packet.narrow(srh_len, ETHERNET + left);
    Some((next_hop.port, (ETHERNET + left) as u32))
}

/// What End, End.X and End.T have in common where the SID has flavours.
///
/// # Errors
/// As [`crate::srv6::endpoint::endpoint`].
pub(crate) fn next(
    packet: &mut Packet,
    flavours: &Flavours,
    check: &Check<'_>,
    unusual: &mut bool,
) -> Result<Advanced, PacketError> {
    // RFC 9800 section 4.1.1: before "any extension header that is not an SRH, a Hop-by-Hop header, or a
    // Destination Options header", and before the upper layer.
    if let Some(Csid::Next(structure)) = flavours.csid
        && let Some(segment) = next_csid(packet, structure)?
    {
        return Ok(Advanced::Segment(segment));
    }
    if let Some(Csid::Replace(structure)) = flavours.csid {
        let at = match replace_csid::active_srh(packet, structure, check)? {
            List::At(at) => at,
            List::Ended(reason) => return end_of_list(packet, flavours, check, reason, unusual),
        };
        let (segment, ends) = replace_csid::advance_at(packet, at, structure)?;
        // RFC 9800 section 4.2.8, S28.1, and RFC 8986 section 4.16.1 behind S17.
        pop(packet, flavours, at, ends)?;
        return Ok(Advanced::Segment(segment));
    }
    match active_srh(packet, check) {
        Ok(at) => {
            let (left, segment) = advance_at(packet, at)?;
            // RFC 8986 section 4.16.1, S14.1: "If (Segments Left == 0)"
            pop(packet, flavours, at, left == 0)?;
            Ok(Advanced::Segment(segment))
        }
        Err(reason) => end_of_list(packet, flavours, check, reason, unusual),
    }
}

/// Takes SRHs out of a packet that is on its way to its next segment by the one at `at`, which `ends` with it.
fn pop(packet: &mut Packet, flavours: &Flavours, at: usize, ends: bool) -> Result<(), DropReason> {
    if flavours.psp && ends {
        pop_srh(packet, at)?;
    }
    if flavours.usp {
        pop_used_up(packet, at)?;
    }
    Ok(())
}

/// A packet that has no next segment. `reason`: why End without flavours would drop it.
fn end_of_list(
    packet: &mut Packet,
    flavours: &Flavours,
    check: &Check<'_>,
    reason: DropReason,
    unusual: &mut bool,
) -> Result<Advanced, PacketError> {
    if !matches!(reason, DropReason::SegmentsLeftZero | DropReason::SrhMissing) {
        return Err(reason.into());
    }
    if flavours.usd {
        // RFC 8986 section 4.16.3, S01 and S04: "Upper-Layer header type == 41(IPv6)", "== 4(IPv4)"
        match decapsulate6(packet, check, unusual) {
            Ok(destination) => return Ok(Advanced::Inside6(destination)),
            Err(DropReason::UpperLayerUnexpected) => {}
            Err(refused) => return Err(refused.into()),
        }
        match decapsulate4(packet, check, unusual) {
            Ok(destination) => return Ok(Advanced::Inside4(destination)),
            Err(DropReason::UpperLayerUnexpected) => {}
            Err(refused) => return Err(refused.into()),
        }
    }
    // RFC 8986 section 4.16.2, S03.4: "Proceed to process the next header in the packet"
    if flavours.usp {
        check_used_up(packet.bytes(), check)?;
        if pop_used_up(packet, usize::MAX)? {
            return Ok(Advanced::UpperLayer);
        }
    }
    if flavours.usd {
        // Section 4.1.1, S04: no upper layer is "allowed by local configuration".
        return Err(PacketError::notify(DropReason::UpperLayerUnexpected, IcmpError::UpperLayer));
    }
    Err(reason.into())
}

/// Takes the SRHs that are used up and lie before `end` out of the packet. `false`: there were none.
fn pop_used_up(packet: &mut Packet, mut end: usize) -> Result<bool, DropReason> {
    let mut popped = false;
    while let Some(at) = used_up_srh(packet.bytes(), end)? {
        end = end.saturating_sub(pop_srh(packet, at)?);
        popped = true;
    }
    Ok(popped)
}

/// Checks the HMAC of the SRH that the packet ends its way with here.
fn check_used_up(bytes: &[u8], check: &Check<'_>) -> Result<(), DropReason> {
    let Some(at) = used_up_srh(bytes, usize::MAX)? else { return Ok(()) };
    let (fixed, _) = ipv6::Header::ref_from_prefix(bytes).map_err(|_| DropReason::Ip6Truncated)?;
    let srh = bytes.get(at..).and_then(|bytes| Srh::parse(bytes).ok()).ok_or(DropReason::SrhMalformed)?;
    check.check(&fixed.source, &srh)
}

/// Where the first SRH without segments left begins, if that is before `end`.
fn used_up_srh(bytes: &[u8], end: usize) -> Result<Option<usize>, DropReason> {
    for header in extensions(bytes)? {
        let header = header.map_err(|_| DropReason::Ip6Malformed)?;
        if header.offset >= end {
            break;
        }
        let routing = if header.kind == Kind::Routing { header.routing() } else { None };
        if routing.is_some_and(|r| r.routing_type == srh::ROUTING_TYPE && r.segments_left == 0) {
            return Ok(Some(header.offset));
        }
    }
    Ok(None)
}

/// RFC 8986 sections 4.16.1 and 4.16.2: takes the SRH at `at` out of the packet. Its length.
fn pop_srh(packet: &mut Packet, at: usize) -> Result<usize, DropReason> {
    let bytes = packet.bytes_mut();
    let srh = bytes.get(at..).and_then(|bytes| Srh::parse(bytes).ok()).ok_or(DropReason::SrhMalformed)?;
    let (len, next) = (srh.len(), srh.next_header());
    // "Update the Next Header field in the preceding header to the Next Header value from the SRH"
    let named_at = extensions(bytes)?
        .find_map(|header| header.ok().filter(|header| header.offset == at))
        .ok_or(DropReason::Ip6Malformed)?
        .named_at;
    bytes[named_at] = next;
    // "Decrease the IPv6 header Payload Length by 8*(Hdr Ext Len+1)"
    let (header, _) = ipv6::Header::mut_from_prefix(bytes).map_err(|_| DropReason::Ip6Truncated)?;
    header.payload_length -= len as u16;
    bytes.copy_within(..at, len);
    packet.pull(len);
    Ok(len)
}

/// RFC 9800 section 4.1.1: if the argument of the SID is not zero, moves its first compressed SID into
/// the place of this one's. `None`: it is zero, and the SRH says how to go on.
fn next_csid(packet: &mut Packet, structure: NextCsid) -> Result<Option<Ipv6Addr>, PacketError> {
    let (header, _) =
        ipv6::Header::mut_from_prefix(packet.bytes_mut()).map_err(|_| DropReason::Ip6Truncated)?;
    let Some(next) = structure.next(u128::from_be_bytes(header.destination)) else { return Ok(None) };
    // N02: "If (IPv6 Hop Limit <= 1)"
    if header.hop_limit <= 1 {
        return Err(PacketError::notify(DropReason::HopLimitExceeded, IcmpError::HopLimit));
    }
    header.destination = next.to_be_bytes();
    Ok(Some(Ipv6Addr::from_bits(next)))
}
