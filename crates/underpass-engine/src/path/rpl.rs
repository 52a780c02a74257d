//! RPL source routes, RFC 6554: packets are put on them (Linux: `net/ipv6/rpl_iptunnel.c`), and go on along them
//! where they are for the router itself and no kernel is beside it (Linux: `ipv6_rpl_srh_rcv`).

use std::net::{IpAddr, Ipv6Addr};

use arrayvec::ArrayVec;
use underpass_packet::rpl::{Builder, Last, MAX_ADDRESSES, Malformed};
use underpass_packet::{FromBytes, ipv6, protocol, rpl};

use crate::buffer::Packet;
use crate::drops::DropReason;
use crate::path::options::Problem;
use crate::path::routing_header::{is_own, leads_on};
use crate::path::rules::on_by_ingress;
use crate::srv6;
use crate::tables::Rpl;
use crate::trace::{Event, Trace};
use crate::worker::error::{IcmpError, PacketError};
use crate::worker::gap::open_gap_fast;
use crate::worker::metadata::{GROUP, NOT_FORWARDED, PacketMeta};
use crate::worker::rewrite::{ETHERNET, FIXED, FastVerdict};
use crate::worker::verdict::Verdict;
use crate::worker::view::View;

/// The same for an RPL source route.
#[inline(never)]
pub(crate) fn insert_route_fast(
    view: &View<'_>,
    packet: &mut Packet,
    len: usize,
    route: &Rpl,
) -> Option<FastVerdict> {
    let next_hop = view.next_hop(route.via.resolved)?;
    let IpAddr::V6(first) = route.via.address else { return None };
    let header = &*route.header;
    let fixed: &[u8; FIXED] = packet.bytes().get(ETHERNET..)?.first_chunk()?;
    let last = Last::new(header.len(), first.to_bits(), u128::from_be_bytes(*fixed.last_chunk()?));
    let longest = last.header_len() <= 8 * usize::from(u8::MAX);
    longest.then_some(())?;
    let gap = open_gap_fast(next_hop, packet, len, last.header_len(), &first.octets())?;
    gap.room.get_mut(..header.len())?.copy_from_slice(header);
    last.write(gap.room, gap.next_header)?;
    Some(gap.out)
}

/// Puts the packet on a source route, of which its destination becomes the last address, and sends it on its way.
pub(crate) fn headend<T: Trace>(
    view: &View<'_>,
    meta: &mut PacketMeta,
    route: &Rpl,
    trace: &mut T,
) -> Verdict {
    match insert(meta, route) {
        Ok(len) => {
            trace.step(Event::Headend("RPL", len), &meta.packet);
            on_by_ingress(view, meta, &route.via)
        }
        Err(error) => Verdict::Refuse(error),
    }
}

/// The length of the header that is inserted.
fn insert(meta: &mut PacketMeta, route: &Rpl) -> Result<usize, PacketError> {
    if meta.is(NOT_FORWARDED) && !meta.is(GROUP) {
        return Err(DropReason::ForwardingOff.into());
    }
    // Its hop limit is looked at where it leaves, when there is a way on.
    let inherited = srv6::inherited(meta.packet.bytes(), true)?;
    let IpAddr::V6(first) = route.via.address else { return Err(DropReason::UpperLayerUnexpected.into()) };
    if inherited.next_header != protocol::IPV6 {
        return Err(DropReason::UpperLayerUnexpected.into());
    }
    let (header, _) =
        ipv6::Header::ref_from_prefix(meta.packet.bytes()).map_err(|_| DropReason::Ip6Truncated)?;
    let last = Last::new(route.header.len(), first.to_bits(), u128::from_be_bytes(header.destination));
    let len = last.header_len();
    let frame = meta.link_layer();
    let (next_header, room) = srv6::open_gap(&mut meta.packet, len, first)?;
    room.get_mut(..route.header.len()).ok_or(DropReason::NoHeadroom)?.copy_from_slice(&route.header);
    last.write(room, next_header).ok_or(DropReason::LengthOverflow)?;
    meta.inserted(len, frame);
    Ok(len)
}

/// Sends a packet for the router itself on to the next address of the RPL header at `at`, which has some left:
/// RFC 6554 section 4.2.
pub(crate) fn visit_next(view: &View<'_>, meta: &mut PacketMeta, at: usize) -> Verdict {
    match advance(view, meta, at) {
        Ok(next) => Verdict::look6(meta, meta.extra.looked_in, next),
        Err(problem) => problem.refuse(meta),
    }
}

/// Makes the next address the destination, and returns it.
fn advance(view: &View<'_>, meta: &mut PacketMeta, at: usize) -> Result<Ipv6Addr, Problem> {
    const MALFORMED: Problem = Problem::silent(DropReason::RplMalformed);
    let bytes = meta.packet.bytes();
    let (header, _) = ipv6::Header::ref_from_prefix(bytes).map_err(|_| MALFORMED)?;
    let (destination, hop_limit) = (header.destination(), header.hop_limit);
    let payload_length = usize::from(header.payload_length.get());
    let route = match rpl::Rpl::parse(bytes.get(at..).ok_or(MALFORMED)?) {
        Ok(route) => route,
        // "send an ICMP Parameter Problem, Code 0, message to the Source Address, pointing to the Segments
        // Left field"
        Err(Malformed::SegmentsLeft) => {
            let pointer = at + rpl::SEGMENTS_LEFT_OFFSET;
            return Err(Problem::notify(DropReason::RplMalformed, IcmpError::Header, pointer));
        }
        Err(_) => return Err(MALFORMED),
    };
    let (next_header, old_len) = (route.next_header(), route.len());
    let mut addresses: ArrayVec<Ipv6Addr, MAX_ADDRESSES> = route.addresses(destination).collect();
    let left = usize::from(route.segments_left());
    let index = addresses.len().checked_sub(left).ok_or(MALFORMED)?;
    let next = *addresses.get(index).ok_or(MALFORMED)?;
    // "if Address[i] or the IPv6 Destination Address is multicast"
    if next.is_multicast() || destination.is_multicast() {
        return Err(MALFORMED);
    }
    let is_own = |address: &Ipv6Addr| is_own(view, meta, *address);
    if comes_back(&addresses, is_own) {
        return Err(Problem::notify(DropReason::RplLoop, IcmpError::Header, 0));
    }
    if hop_limit <= 1 && leads_on(view, meta, next) {
        return Err(Problem::notify(DropReason::HopLimitExceeded, IcmpError::HopLimit, 0));
    }
    // What leaves has its hop limit lowered then.
    let hop_limit = if is_own(&next) { hop_limit - 1 } else { hop_limit };
    // "swap the IPv6 Destination Address and Address[i]"
    addresses[index] = destination;
    let segments_left = left as u8 - 1;
    let mut written = [0; rpl::FIXED_LEN + 16 * MAX_ADDRESSES];
    let builder = Builder { next_header, segments_left, destination: next, addresses: &addresses };
    let len = builder.write(&mut written).map_err(|_| MALFORMED)?;
    let payload_length = u16::try_from(payload_length - old_len + len)
        .map_err(|_| Problem::silent(DropReason::LengthOverflow))?;
    // With another destination, the others may be compressed more or less than they were.
    if len > old_len {
        let more = len - old_len;
        let frame = meta.link_layer();
        let bytes = meta.packet.push(more).map_err(|_| Problem::silent(DropReason::NoHeadroom))?;
        bytes.copy_within(more..more + at, 0);
        frame.into_iter().for_each(|frame| meta.put_link_layer(frame));
    } else {
        let less = old_len - len;
        meta.packet.bytes_mut().copy_within(..at, less);
        meta.packet.pull(less);
    }
    let bytes = meta.packet.bytes_mut();
    bytes.get_mut(at..at + len).ok_or(MALFORMED)?.copy_from_slice(&written[..len]);
    let (header, _) = ipv6::Header::mut_from_prefix(bytes).map_err(|_| MALFORMED)?;
    header.destination = next.octets();
    header.hop_limit = hop_limit;
    header.payload_length = payload_length.into();
    Ok(next)
}

/// RFC 6554 section 4.2: "if 2 or more entries in Address[1..n] are assigned to local interface and are separated
/// by at least one address not assigned to local interface".
fn comes_back(addresses: &[Ipv6Addr], is_own: impl Fn(&Ipv6Addr) -> bool) -> bool {
    let (mut found, mut separated) = (false, false);
    for address in addresses {
        match is_own(address) {
            true if found && separated => return true,
            true => (found, separated) = (true, false),
            false => separated = true,
        }
    }
    false
}
