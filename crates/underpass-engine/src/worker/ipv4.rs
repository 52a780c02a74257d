//! IPv4 input and forwarding: RFC 791 and RFC 1812, with the checks of Linux's `ip_rcv_core`,
//! `ip_route_input_slow` and `ip_forward`.

use underpass_packet::{FromBytes, ipv4};

use std::net::Ipv4Addr;

use super::icmp::Error;
use super::road::{GENERATED, NOT_FORWARDED};
use super::{Road, Step};
use crate::buffer::Packet;
use crate::drops::Drop;
use crate::tables::{Link, NextHop};

/// A header that is sound.
pub(crate) struct Checked {
    pub(crate) destination: Ipv4Addr,
    /// Length of the packet by its header.
    pub(crate) len: usize,
    /// Whether one of the addresses is of a kind that is not simply forwarded.
    pub(crate) unusual: bool,
}

/// Checks the header, and its checksum, of a packet.
#[inline(always)]
pub(crate) fn check(bytes: &[u8]) -> Result<Checked, Drop> {
    let view = ipv4::View::parse(bytes).map_err(|malformed| match malformed {
        ipv4::Malformed::Truncated | ipv4::Malformed::PayloadTruncated => Drop::Ip4Truncated,
        ipv4::Malformed::Version | ipv4::Malformed::HeaderLength | ipv4::Malformed::TotalLength => {
            Drop::Ip4Malformed
        }
    })?;
    if !view.checksum_valid() {
        return Err(Drop::Ip4Checksum);
    }
    let header = view.header;
    let unusual = is_unusual(header.source[0]) || is_unusual(header.destination[0]);
    Ok(Checked { destination: header.destination(), len: usize::from(header.total_length.get()), unusual })
}

/// 0/8, 127/8, multicast, reserved and broadcast.
#[inline(always)]
fn is_unusual(first: u8) -> bool {
    first == 0 || first == 127 || first >= 224
}

/// The checks that only some addresses need.
#[cold]
pub(super) fn unusual(road: &mut Road, link: &Link) -> Step {
    let Ok((header, _)) = ipv4::Header::ref_from_prefix(road.packet.bytes()) else {
        return Step::drop(Drop::Ip4Truncated);
    };
    let (source, destination) = (header.source(), header.destination());
    let martian = |first: u8| first == 127 || first >= 240;
    if destination.is_broadcast() {
        return Step::Deliver;
    }
    if source.is_multicast() || source.octets()[0] == 0 || martian(source.octets()[0]) {
        return Step::drop(Drop::SourceInvalid);
    }
    // 224.0.0/24 never leaves its link; no other group is forwarded.
    if destination.is_multicast() {
        return match destination.octets() {
            [224, 0, 0, _] => Step::Deliver,
            _ => Step::drop(Drop::DestinationInvalid),
        };
    }
    if destination.octets()[0] == 0 || martian(destination.octets()[0]) {
        return Step::drop(Drop::DestinationInvalid);
    }
    if !link.forward4 {
        road.extra.flags |= NOT_FORWARDED;
    }
    road.target4 = destination;
    Step::Look4(link.lookup)
}

/// Lowers the TTL of a checked packet, if that leaves some.
#[inline(always)]
pub(super) fn lower_ttl(packet: &mut Packet) -> bool {
    match ipv4::Header::mut_from_prefix(packet.bytes_mut()) {
        Ok((header, _)) if header.ttl > 1 => {
            header.decrement_ttl();
            true
        }
        _ => false,
    }
}

/// A checked packet before it goes to `next_hop`: its TTL, and whether it fits. `Ok(false)`: it has to
/// be fragmented first.
#[inline(always)]
pub(crate) fn forward(road: &mut Road, next_hop: &NextHop) -> Result<bool, Step> {
    let len = road.packet.len();
    let generated = road.is(GENERATED);
    let Ok((header, _)) = ipv4::Header::mut_from_prefix(road.packet.bytes_mut()) else {
        return Err(Step::drop(Drop::Ip4Truncated));
    };
    let fits = len <= next_hop.mtu as usize;
    if !generated {
        if header.ttl <= 1 {
            return Err(Step::error(Drop::HopLimitExceeded, Error::HopLimit));
        }
        if !fits && header.dont_fragment() {
            road.extra.mtu = next_hop.mtu;
            return Err(Step::error(Drop::TooBig, Error::TooBig));
        }
        header.decrement_ttl();
    }
    Ok(fits)
}
