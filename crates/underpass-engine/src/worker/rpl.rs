//! RPL source routes, RFC 6554: the headend. Linux: `net/ipv6/rpl_iptunnel.c`.

use std::net::IpAddr;

use underpass_packet::rpl::Last;
use underpass_packet::{FromBytes, ipv6, protocol};

use super::{GENERATED, NOT_FORWARDED, Refusal, Road, Step};
use crate::drops::Drop;
use crate::srv6;
use crate::tables::Rpl;
use crate::trace::{Event, Trace};

/// Puts the packet on a source route, of which its destination becomes the last address, and sends it on its way.
pub(super) fn headend<T: Trace>(road: &mut Road, route: &Rpl, trace: &mut T) -> Step {
    match insert(road, route) {
        Ok(len) => {
            trace.step(Event::Headend("RPL", len), &road.packet);
            Step::via(road, &route.via)
        }
        Err(refusal) => Step::Refuse(refusal),
    }
}

/// The length of the header that is inserted.
fn insert(road: &mut Road, route: &Rpl) -> Result<usize, Refusal> {
    if road.is(NOT_FORWARDED) {
        return Err(Drop::ForwardingOff.into());
    }
    let inherited = srv6::inherited(road.packet.bytes(), road.is(GENERATED))?;
    let IpAddr::V6(first) = route.via.address else { return Err(Drop::UpperLayerUnexpected.into()) };
    if inherited.next_header != protocol::IPV6 {
        return Err(Drop::UpperLayerUnexpected.into());
    }
    let (header, _) = ipv6::Header::ref_from_prefix(road.packet.bytes()).map_err(|_| Drop::Ip6Truncated)?;
    let last = Last::new(route.header.len(), first.to_bits(), u128::from_be_bytes(header.destination));
    let len = last.header_len();
    let (next_header, room) = srv6::open_gap(&mut road.packet, len, first)?;
    room.get_mut(..route.header.len()).ok_or(Drop::NoHeadroom)?.copy_from_slice(&route.header);
    last.write(room, next_header).ok_or(Drop::LengthOverflow)?;
    road.inserted(len);
    Ok(len)
}
