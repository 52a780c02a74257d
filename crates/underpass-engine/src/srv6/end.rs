//! End, End.X and End.T: on to the next segment. RFC 8986 sections 4.1 to 4.3.

use std::net::{IpAddr, Ipv6Addr};

use underpass_packet::ipv6_ext::Extensions;
use underpass_packet::srh::{Srh, SrhMut};
use underpass_packet::{FromBytes, ipv6, protocol, srh};

use crate::buffer::Packet;
use crate::drops::DropReason;
use crate::hmac::Check;
use crate::path::ipv6::stays_on_node;
use crate::srv6::flavours;
use crate::srv6::flavours::Advanced;
use crate::srv6::next::Next;
use crate::tables::{ActionId, Endpoint, LookupId, StoredNextHop, Via};
use crate::worker::error::{IcmpError, PacketError};
use crate::worker::fibs::Fibs;
use crate::worker::rewrite::{ETHERNET, FastVerdict, addresses, cut, member, next_hop};
use crate::worker::view::View;
use crate::{flow, srv6};

/// Bytes of an IPv6 header and of the SRH behind it up to its list of segments.
const HEADERS: usize = ipv6::Header::LEN + 8;

/// End and End.T on a sound packet of `len` bytes in a frame: an SRH with segments left and no TLVs, a hop limit above 1.
/// `SPREAD`: the segment may lead to a multipath route. `None`: nothing was written, [`end`] decides.
#[inline(always)]
pub(crate) fn end_fast<'a, const SPREAD: bool>(
    view: &View<'a>,
    fibs: &mut Fibs<'a>,
    packet: &mut Packet,
    len: usize,
    lookup: LookupId,
) -> Option<FastVerdict> {
    let next = next_segment_fast(packet.bytes().get(ETHERNET..ETHERNET + len)?)?;
    let next_hop = known_next_hop::<SPREAD>(view, fibs, lookup, next.1, (packet, len))?;
    advance_frame(packet, len, next, next_hop)
}

/// End and End.T: on to the next segment, looked up in `lookup`. RFC 8986 sections 4.1 and 4.3.
#[inline(always)]
pub(crate) fn end<'s>(
    packet: &mut Packet,
    sid: &Endpoint,
    check: &Check<'_>,
    lookup: LookupId,
    unusual: &mut bool,
) -> Result<Next<'s>, PacketError> {
    let Some(flavours) = &sid.flavours else { return Ok(Next::Look6(lookup, advance(packet, check)?)) };
    Ok(match flavours::next(packet, flavours, check, unusual)? {
        Advanced::Segment(address) | Advanced::Inside6(address) => Next::Look6(lookup, address),
        Advanced::Inside4(address) => Next::Look4(lookup, address),
        Advanced::UpperLayer => Next::Deliver,
    })
}

/// End.X on such a packet, if its neighbour is known. `None`: nothing was written, [`end_x`] decides.
#[inline(always)]
pub(crate) fn end_x_fast(view: &View<'_>, packet: &mut Packet, len: usize, via: &Via) -> Option<FastVerdict> {
    let next = next_segment_fast(packet.bytes().get(ETHERNET..ETHERNET + len)?)?;
    if stays_on_node(next.1) {
        return None;
    }
    advance_frame(packet, len, next, view.next_hop(via.resolved)?)
}

/// End.X: on to the next segment, to this neighbour whatever its address. RFC 8986 section 4.2.
#[inline(always)]
pub(crate) fn end_x<'s>(
    packet: &mut Packet,
    sid: &Endpoint,
    check: &Check<'_>,
    via: &Via,
    unusual: &mut bool,
) -> Result<Next<'s>, PacketError> {
    let next = match &sid.flavours {
        None => Advanced::Segment(advance(packet, check)?),
        Some(flavours) => flavours::next(packet, flavours, check, unusual)?,
    };
    let unspecified = matches!(via.address, IpAddr::V6(address) if address.is_unspecified());
    Ok(match next {
        Advanced::UpperLayer => Next::Deliver,
        _ if !unspecified => Next::via(via),
        Advanced::Segment(address) | Advanced::Inside6(address) => Next::Look6(via.lookup, address),
        Advanced::Inside4(address) => Next::Look4(via.lookup, address),
    })
}

/// The next hop that a segment leads to, looked up now unless the worker remembers it. `packet` is a frame and the length of
/// the IPv6 packet in it, not advanced yet: its flow chooses among several next hops. `None`: the segment leads to none that the
/// fast path serves.
#[inline(always)]
pub(crate) fn known_next_hop<'a, const SPREAD: bool>(
    view: &View<'a>,
    fibs: &mut Fibs<'a>,
    lookup: LookupId,
    segment: Ipv6Addr,
    packet: (&Packet, usize),
) -> Option<&'a StoredNextHop> {
    let leaf = match fibs.known(lookup, segment) {
        Some(leaf) => leaf,
        None => {
            let leaf = ActionId(fibs.segment(view, lookup, segment.to_bits())?);
            fibs.next = Some((lookup, segment, leaf));
            leaf
        }
    };
    match next_hop(view, Some(leaf.0)) {
        Some(next_hop) => Some(next_hop),
        None if SPREAD => {
            let (packet, len) = packet;
            let bytes = packet.bytes().get(ETHERNET..ETHERNET + len)?;
            member(view, leaf, || flow::hash_towards(bytes, segment))
        }
        None => None,
    }
}

/// Makes the next segment the destination of the packet of `len` bytes in a frame, and addresses the frame to a next hop.
/// `None`: the next hop does not take it as it is, and nothing was written.
#[inline(always)]
pub(crate) fn advance_frame(
    packet: &mut Packet,
    len: usize,
    (left, segment): (u8, Ipv6Addr),
    next_hop: &StoredNextHop,
) -> Option<FastVerdict> {
    let mac = addresses(next_hop, len)?;
    let frame = packet.bytes_mut();
    let padded = frame.len() != ETHERNET + len;
    let (head, bytes) = frame.split_first_chunk_mut::<ETHERNET>()?;
    let bytes = bytes.first_chunk_mut::<HEADERS>()?;
    head[..12].copy_from_slice(mac);
    // The hop limit. More than 1 is left: `next_segment_fast` has looked.
    bytes[7] -= 1;
    srv6::write_segment(bytes, left, segment);
    if padded {
        cut(packet, ETHERNET + len);
    }
    Some((next_hop.port, (ETHERNET + len) as u32))
}

/// RFC 8986 section 4.1, S02 to S15: lowers segments left and makes that segment the destination.
#[inline(always)]
pub(crate) fn advance(packet: &mut Packet, check: &Check<'_>) -> Result<Ipv6Addr, PacketError> {
    if check.passes_plain()
        && let Some(segment) = advance_fast(packet.bytes_mut())
    {
        return Ok(segment);
    }
    advance_full(packet, check)
}

/// [`advance_full`] for nearly every packet. `None`: the packet is not of that kind, and unchanged.
#[inline(always)]
fn advance_fast(bytes: &mut [u8]) -> Option<Ipv6Addr> {
    let (left, segment) = next_segment_fast(bytes)?;
    write_segment(bytes.first_chunk_mut()?, left, segment);
    Some(segment)
}

/// Segments left and the destination that a packet is to have next, if an SRH without TLVs is right behind its IPv6 header and
/// its hop limit is above 1. `None`: it is another packet, or a list that is used up.
#[inline(always)]
pub(crate) fn next_segment_fast(bytes: &[u8]) -> Option<(u8, Ipv6Addr)> {
    let (fixed, list) = bytes.split_first_chunk::<HEADERS>()?;
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

/// Writes what [`next_segment_fast`] says into the headers of its packet.
#[inline(always)]
pub(crate) fn write_segment(headers: &mut [u8; HEADERS], left: u8, segment: Ipv6Addr) {
    // RFC 8754 section 2, RFC 8200 section 3.
    headers[ipv6::Header::LEN + 3] = left;
    headers[24..40].copy_from_slice(&segment.octets());
}

/// [`advance`] for any packet.
#[inline(never)]
fn advance_full(packet: &mut Packet, check: &Check<'_>) -> Result<Ipv6Addr, PacketError> {
    let at = active_srh(packet, check)?;
    advance_at(packet, at).map(|(_, segment)| segment)
}

/// [`advance`] by the SRH at `at`: how many segments are left then, and the destination.
pub(crate) fn advance_at(packet: &mut Packet, at: usize) -> Result<(u8, Ipv6Addr), PacketError> {
    header_and_srh(packet, at)?;
    step_at(packet, at)
}

/// The same, whatever the hop limit is.
pub(crate) fn step_at(packet: &mut Packet, at: usize) -> Result<(u8, Ipv6Addr), PacketError> {
    let (header, mut srh) = parts(packet, at)?;
    // S13, S14: "Decrement Segments Left by 1", "Update IPv6 DA with Segment List[Segments Left]"
    let segment = srh.advance().ok_or(DropReason::SrhMalformed)?;
    header.destination = segment;
    Ok((srh.view().segments_left(), Ipv6Addr::from_octets(segment)))
}

/// The IPv6 header and the SRH at `at` of a packet that may go on.
pub(crate) fn header_and_srh(
    packet: &mut Packet,
    at: usize,
) -> Result<(&mut ipv6::Header, SrhMut<'_>), PacketError> {
    let (header, srh) = parts(packet, at)?;
    // S05: "If (IPv6 Hop Limit <= 1)": time exceeded, quoting the packet as it came.
    if header.hop_limit <= 1 {
        return Err(PacketError::notify(DropReason::HopLimitExceeded, IcmpError::HopLimit));
    }
    Ok((header, srh))
}

/// The IPv6 header and the SRH at `at`.
fn parts(packet: &mut Packet, at: usize) -> Result<(&mut ipv6::Header, SrhMut<'_>), PacketError> {
    let (header, rest) =
        ipv6::Header::mut_from_prefix(packet.bytes_mut()).map_err(|_| DropReason::Ip6Truncated)?;
    let srh = rest.get_mut(at - ipv6::Header::LEN..).and_then(|bytes| SrhMut::parse(bytes).ok());
    Ok((header, srh.ok_or(DropReason::SrhMalformed)?))
}

/// The offset of the SRH with segments left, whose lengths and HMAC have been checked: RFC 8986 section 4.1, S01 and S02.
/// Routing headers without segments left are passed over.
pub(crate) fn active_srh(packet: &Packet, check: &Check<'_>) -> Result<usize, DropReason> {
    let (fixed, _) = ipv6::Header::ref_from_prefix(packet.bytes()).map_err(|_| DropReason::Ip6Truncated)?;
    let mut reason = DropReason::SrhMissing;
    for header in extensions(packet.bytes())? {
        let header = header.map_err(|_| DropReason::Ip6Malformed)?;
        let Some(routing) = header.routing() else { continue };
        match (routing.routing_type, routing.segments_left) {
            (_, 0) => reason = DropReason::SegmentsLeftZero,
            (srh::ROUTING_TYPE, _) => {
                let srh = Srh::parse(header.bytes).map_err(|_| DropReason::SrhMalformed)?;
                check.check(&fixed.source, &srh)?;
                return Ok(header.offset);
            }
            _ => return Err(DropReason::SrhMissing),
        }
    }
    Err(reason)
}

/// The extension headers of a packet, from the first on.
pub(crate) fn extensions(bytes: &[u8]) -> Result<Extensions<'_>, DropReason> {
    let view = ipv6::View::parse(bytes).map_err(|_| DropReason::Ip6Truncated)?;
    Ok(Extensions::new(&view))
}
