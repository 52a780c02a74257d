//! IPv6 input and forwarding: RFC 8200, with the checks of Linux's `ip6_rcv_core` and `ip6_forward`.

use std::net::Ipv6Addr;

use underpass_packet::ipv6::{LINK_SCOPE, group_scope};
use underpass_packet::ipv6_ext::Extensions;
use underpass_packet::{FromBytes, ipv6, protocol};

use crate::buffer::Packet;
use crate::drops::DropReason;
use crate::path::ioam_trace::{fill_before, fill_traces};
use crate::path::options;
use crate::path::options::Problem;
use crate::tables::{Link, NextHop};
use crate::trace::Trace;
use crate::tunnel::outer::LEAST_MTU6;
use crate::worker::error::IcmpError;
use crate::worker::metadata::{GENERATED, NOT_FORWARDED, PacketMeta};
use crate::worker::path::Path;
use crate::worker::verdict::Verdict;
use crate::worker::view::View;

/// The groups that routers are in: all nodes of the link, all routers of the link and of the site. RFC 4291 section 2.8.
pub(crate) const GROUPS: [Ipv6Addr; 3] = [
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1),
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2),
    Ipv6Addr::new(0xff05, 0, 0, 0, 0, 0, 0, 2),
];

/// A header that is sound.
pub(crate) struct Checked {
    pub(crate) destination: Ipv6Addr,
    /// Length of the packet by its header.
    pub(crate) len: usize,
    /// Whether it has hop-by-hop options, or an address of a kind that may not be forwarded.
    pub(crate) unusual: bool,
}

/// Checks the fixed header of a packet.
#[inline(never)]
pub(crate) fn check(bytes: &[u8]) -> Result<Checked, DropReason> {
    let view = ipv6::View::parse(bytes).map_err(|malformed| match malformed {
        ipv6::Malformed::Truncated | ipv6::Malformed::PayloadTruncated => DropReason::Ip6Truncated,
        ipv6::Malformed::Version | ipv6::Malformed::NoPayload => DropReason::Ip6Malformed,
    })?;
    let (source, destination) = (view.header.source(), view.header.destination());
    let unusual = is_unusual(source.to_bits())
        || is_unusual(destination.to_bits())
        || view.header.next_header == protocol::HOP_BY_HOP;
    Ok(Checked { destination, len: ipv6::Header::LEN + view.payload.len(), unusual })
}

/// The destination and the length of a sound packet that may be forwarded and has no hop-by-hop options.
/// `None`: [`check`] says what it is.
#[inline(always)]
pub(crate) fn plain(bytes: &[u8]) -> Option<(u128, usize)> {
    let header = bytes.first_chunk()?;
    let len = plain_len(header, bytes.len())?;
    (!is_high_unusual(high(header, 24)))
        .then(|| (u128::from_be_bytes(*header.last_chunk().unwrap_or(&[0; 16])), len))
}

/// The length of such a packet if it is for this address, of which it is known that packets for it may be forwarded.
#[inline(always)]
pub(crate) fn plain_to(bytes: &[u8], target: &[u8; 16]) -> Option<usize> {
    let header = bytes.first_chunk()?;
    let len = plain_len(header, bytes.len())?;
    (header.last_chunk() == Some(target)).then_some(len)
}

/// The length of a packet of at most `most` bytes that is sound, whatever its destination is.
#[inline(always)]
fn plain_len(header: &[u8; ipv6::Header::LEN], most: usize) -> Option<usize> {
    let [first, _, _, _, len0, len1, next, ..] = *header;
    let len = ipv6::Header::LEN + usize::from(u16::from_be_bytes([len0, len1]));
    let plain =
        first >> 4 == 6 && len <= most && next != protocol::HOP_BY_HOP && !is_high_unusual(high(header, 8));
    plain.then_some(len)
}

/// The first 32 bits of an address.
#[inline(always)]
fn high(header: &[u8; ipv6::Header::LEN], at: usize) -> u32 {
    header.get(at..).and_then(|address| address.first_chunk()).map_or(0, |high| u32::from_be_bytes(*high))
}

/// Whether a packet is IPv6 and not IPv4.
#[inline(always)]
pub(crate) fn is(packet: &Packet) -> bool {
    packet.bytes().first().is_some_and(|first| first >> 4 == 6)
}

/// Multicast, link-local, or in ::/32 (unspecified, loopback, IPv4-mapped).
#[inline(always)]
fn is_unusual(address: u128) -> bool {
    is_high_unusual((address >> 96) as u32)
}

/// The same for the first 32 bits of the address.
#[inline(always)]
fn is_high_unusual(high: u32) -> bool {
    // fe80::/10 and ff00::/8 are both above fe7f:ffff; fec0::/10 goes the long way too. 0 wraps round.
    high.wrapping_sub(1) >= 0xfe7f_ffff
}

/// Whether a packet with these addresses may be forwarded.
pub(crate) fn may_forward(header: &ipv6::Header) -> bool {
    let (source, destination) = (header.source(), header.destination());
    let source_stays = source.is_multicast() || source.is_loopback() || source.is_unspecified();
    let destination_stays =
        destination.is_multicast() || destination.is_loopback() || destination.is_unspecified();
    let link_local = source.is_unicast_link_local() || destination.is_unicast_link_local();
    !source_stays && !destination_stays && !link_local
}

/// The checks that only some packets need.
#[cold]
pub(crate) fn unusual6<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    meta: &mut PacketMeta,
    link: &Link,
    trace: &mut T,
) -> Verdict {
    match unusual(meta, link) {
        (Verdict::Look6(_), true) => fill_traces(path, view, meta, link, trace),
        (refused @ Verdict::Refuse(_), true) => {
            fill_before(view, meta, link, meta.extra.argument as usize, trace);
            refused
        }
        (verdict, _) => verdict,
    }
}

/// What is to happen next, and whether the packet may have IOAM traces to be filled.
fn unusual(meta: &mut PacketMeta, link: &Link) -> (Verdict, bool) {
    // RFC 8200 section 5: IPv6 wants an MTU of 1280. Linux: `ip6_rcv_core`.
    if !link.forward6 && link.mtu < LEAST_MTU6 {
        return (Verdict::drop(DropReason::ForwardingOff), false);
    }
    let Ok(view) = ipv6::View::parse(meta.packet.bytes()) else {
        return (Verdict::drop(DropReason::Ip6Truncated), false);
    };
    let (source, destination) = (view.header.source(), view.header.destination());
    let forwards = may_forward(view.header);
    if source.is_multicast() || source.is_loopback() {
        return (Verdict::drop(DropReason::SourceInvalid), false);
    }
    if destination.is_loopback() || destination.is_unspecified() {
        return (Verdict::drop(DropReason::DestinationInvalid), false);
    }
    let mut traced = false;
    if view.header.next_header == protocol::HOP_BY_HOP {
        match hop_by_hop(&view, link.ioam.enabled) {
            Ok(found) => traced = found,
            Err(problem) => {
                let told = problem.pointer != 0;
                return (problem.refuse(meta), told && link.ioam.enabled);
            }
        }
    }
    // Multicast of the link (neighbour discovery, routing protocols) is for the router; none is forwarded.
    if destination.is_multicast() {
        let of_link = group_scope(destination) == Some(LINK_SCOPE);
        let joined = link.is_in(destination.into());
        let verdict = if of_link || joined || GROUPS.contains(&destination) {
            Verdict::Deliver
        } else {
            Verdict::drop(DropReason::DestinationInvalid)
        };
        return (verdict, false);
    }
    if !forwards || !link.forward6 {
        meta.extra.flags |= NOT_FORWARDED;
    }
    meta.target6 = destination;
    (Verdict::Look6(link.lookup), traced)
}

/// Looks at the hop-by-hop options, as every node on the way does: RFC 8200 section 4.3. Whether there are
/// IOAM traces to be filled, if the link fills any.
pub(crate) fn hop_by_hop(packet: &ipv6::View<'_>, traces: bool) -> Result<bool, Problem> {
    match Extensions::new(packet).next() {
        Some(Ok(extension)) => options::check6(packet.header, &extension, Some(traces)),
        _ => Err(Problem::silent(DropReason::Ip6Malformed)),
    }
}

/// Lowers the hop limit of a checked packet, if that leaves some: what it leaves.
#[inline(always)]
pub(crate) fn lower_hop_limit(bytes: &mut [u8]) -> Option<u8> {
    match ipv6::Header::mut_from_prefix(bytes) {
        Ok((header, _)) if header.hop_limit > 1 => {
            header.hop_limit -= 1;
            Some(header.hop_limit)
        }
        _ => None,
    }
}

/// A checked packet before it goes to `next_hop`: its hop limit, and whether it fits. `Ok(false)`: it is the router's own, and
/// has to be fragmented first.
#[inline(always)]
pub(crate) fn forward(meta: &mut PacketMeta, next_hop: &NextHop) -> Result<bool, Verdict> {
    let fits = meta.packet.fits(next_hop.mtu as usize);
    let generated = meta.is(GENERATED);
    let Ok((header, _)) = ipv6::Header::mut_from_prefix(meta.packet.bytes_mut()) else {
        return Err(Verdict::drop(DropReason::Ip6Truncated));
    };
    if !generated {
        if header.hop_limit <= 1 {
            return Err(Verdict::error(DropReason::HopLimitExceeded, IcmpError::HopLimit));
        }
        if !fits {
            meta.extra.argument = next_hop.mtu;
            return Err(Verdict::error(DropReason::TooBig, IcmpError::TooBig));
        }
        header.hop_limit -= 1;
    }
    if stays_on_node(header.destination()) {
        return Err(Verdict::drop(DropReason::DestinationInvalid));
    }
    Ok(fits)
}

/// Whether an address is a multicast one whose scope is the node, or none: no link takes packets to it. RFC 4291 section 2.7,
/// Linux's `ip6_finish_output2`. A SID may lead to one, whose next hop nobody looks up.
#[inline(always)]
pub(crate) fn stays_on_node(destination: Ipv6Addr) -> bool {
    let [first, second, ..] = destination.octets();
    first == 0xff && second & 0xf < LINK_SCOPE
}
