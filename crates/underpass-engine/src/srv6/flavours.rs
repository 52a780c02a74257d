//! Flavours of End, End.X and End.T: RFC 8986 section 4.16, RFC 9800 section 4.1.

use std::net::{Ipv4Addr, Ipv6Addr};

use underpass_packet::ipv6_ext::Kind;
use underpass_packet::srh::{self, Srh};
use underpass_packet::{FromBytes, ipv6};

use super::endpoint::{active_srh, advance_at, decapsulate4, decapsulate6, extensions};
use crate::buffer::Packet;
use crate::drops::Drop;
use crate::hmac::Check;
use crate::tables::{Flavours, NextCsid};
use crate::worker::{IcmpError, Refusal};

/// What a SID with flavours has made of a packet.
pub(super) enum Next {
    /// It is on its way to this segment.
    Segment(Ipv6Addr),
    /// It is the IPv4 packet that was inside, to this destination.
    Inside4(Ipv4Addr),
    /// It is the IPv6 packet that was inside, to this destination.
    Inside6(Ipv6Addr),
    /// The router itself is to process what follows its headers.
    UpperLayer,
}

/// What End, End.X and End.T have in common where the SID has flavours.
///
/// # Errors
/// As [`super::endpoint`].
pub(super) fn next(
    packet: &mut Packet,
    flavours: &Flavours,
    check: &Check<'_>,
    unusual: &mut bool,
) -> Result<Next, Refusal> {
    // RFC 9800 section 4.1.1: before "any extension header that is not an SRH, a Hop-by-Hop header, or a
    // Destination Options header", and before the upper layer.
    if let Some(structure) = flavours.next_csid
        && let Some(segment) = next_csid(packet, structure)?
    {
        return Ok(Next::Segment(segment));
    }
    match active_srh(packet, check) {
        Ok(at) => {
            let (left, segment) = advance_at(packet, at)?;
            // RFC 8986 section 4.16.1, S14.1: "If (Segments Left == 0)"
            if flavours.psp && left == 0 {
                pop_srh(packet, at)?;
            }
            if flavours.usp {
                pop_used_up(packet, at)?;
            }
            Ok(Next::Segment(segment))
        }
        Err(reason) => end_of_list(packet, flavours, check, reason, unusual),
    }
}

/// A packet that has no next segment. `reason`: why End without flavours would drop it.
fn end_of_list(
    packet: &mut Packet,
    flavours: &Flavours,
    check: &Check<'_>,
    reason: Drop,
    unusual: &mut bool,
) -> Result<Next, Refusal> {
    if !matches!(reason, Drop::SegmentsLeftZero | Drop::SrhMissing) {
        return Err(reason.into());
    }
    if flavours.usd {
        // RFC 8986 section 4.16.3, S01 and S04: "Upper-Layer header type == 41(IPv6)", "== 4(IPv4)"
        match decapsulate6(packet, check, unusual) {
            Ok(destination) => return Ok(Next::Inside6(destination)),
            Err(Drop::UpperLayerUnexpected) => {}
            Err(refused) => return Err(refused.into()),
        }
        match decapsulate4(packet, check, unusual) {
            Ok(destination) => return Ok(Next::Inside4(destination)),
            Err(Drop::UpperLayerUnexpected) => {}
            Err(refused) => return Err(refused.into()),
        }
    }
    // RFC 8986 section 4.16.2, S03.4: "Proceed to process the next header in the packet"
    if flavours.usp {
        check_used_up(packet.bytes(), check)?;
        if pop_used_up(packet, usize::MAX)? {
            return Ok(Next::UpperLayer);
        }
    }
    if flavours.usd {
        // Section 4.1.1, S04: no upper layer is "allowed by local configuration".
        return Err(Refusal::told(Drop::UpperLayerUnexpected, IcmpError::UpperLayer));
    }
    Err(reason.into())
}

/// Takes the SRHs that are used up and lie before `end` out of the packet. `false`: there were none.
fn pop_used_up(packet: &mut Packet, mut end: usize) -> Result<bool, Drop> {
    let mut popped = false;
    while let Some(at) = used_up_srh(packet.bytes(), end)? {
        end = end.saturating_sub(pop_srh(packet, at)?);
        popped = true;
    }
    Ok(popped)
}

/// Checks the HMAC of the SRH that the packet ends its way with here.
fn check_used_up(bytes: &[u8], check: &Check<'_>) -> Result<(), Drop> {
    let Some(at) = used_up_srh(bytes, usize::MAX)? else { return Ok(()) };
    let (fixed, _) = ipv6::Header::ref_from_prefix(bytes).map_err(|_| Drop::Ip6Truncated)?;
    let srh = bytes.get(at..).and_then(|bytes| Srh::parse(bytes).ok()).ok_or(Drop::SrhMalformed)?;
    check.check(&fixed.source, &srh)
}

/// Where the first SRH without segments left begins, if that is before `end`.
fn used_up_srh(bytes: &[u8], end: usize) -> Result<Option<usize>, Drop> {
    for header in extensions(bytes)? {
        let header = header.map_err(|_| Drop::Ip6Malformed)?;
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
fn pop_srh(packet: &mut Packet, at: usize) -> Result<usize, Drop> {
    let bytes = packet.bytes_mut();
    let srh = bytes.get(at..).and_then(|bytes| Srh::parse(bytes).ok()).ok_or(Drop::SrhMalformed)?;
    let (len, next) = (srh.len(), srh.next_header());
    // "Update the Next Header field in the preceding header to the Next Header value from the SRH"
    let named_at = extensions(bytes)?
        .find_map(|header| header.ok().filter(|header| header.offset == at))
        .ok_or(Drop::Ip6Malformed)?
        .named_at;
    bytes[named_at] = next;
    // "Decrease the IPv6 header Payload Length by 8*(Hdr Ext Len+1)"
    let (header, _) = ipv6::Header::mut_from_prefix(bytes).map_err(|_| Drop::Ip6Truncated)?;
    header.payload_length -= len as u16;
    bytes.copy_within(..at, len);
    packet.pull(len);
    Ok(len)
}

/// RFC 9800 section 4.1.1: if the argument of the SID is not zero, moves its first compressed SID into
/// the place of this one's. `None`: it is zero, and the SRH says how to go on.
fn next_csid(packet: &mut Packet, structure: NextCsid) -> Result<Option<Ipv6Addr>, Refusal> {
    let (header, _) = ipv6::Header::mut_from_prefix(packet.bytes_mut()).map_err(|_| Drop::Ip6Truncated)?;
    let Some(next) = structure.next(u128::from_be_bytes(header.destination)) else { return Ok(None) };
    // N02: "If (IPv6 Hop Limit <= 1)"
    if header.hop_limit <= 1 {
        return Err(Refusal::told(Drop::HopLimitExceeded, IcmpError::HopLimit));
    }
    header.destination = next.to_be_bytes();
    Ok(Some(Ipv6Addr::from_bits(next)))
}
