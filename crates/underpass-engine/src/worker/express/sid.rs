//! SRv6 endpoints on the common road.

use std::net::Ipv6Addr;

use underpass_packet::{ethernet, protocol};

use super::super::chain::Fibs;
use super::super::{View, ipv6};
use super::family::{Family, To};
use super::headend::encapsulate;
use super::{ETHERNET, NEXT_HEADER, Out, addresses, cut, forward_inner, next_hop, write_header};
use crate::buffer::Packet;
use crate::srv6;
use crate::tables::{ActionId, Behaviour, Endpoint, Link, LookupId, StoredNextHop};

/// Takes an IPv6 packet of `len` bytes through a local SID, which came in by a link of this instance. `None`: it is not of a
/// frequent kind, and as it was.
#[inline(always)]
pub(super) fn through_sid<'a>(
    view: &View<'a>,
    fibs: &mut Fibs<'a>,
    packet: &mut Packet,
    len: usize,
    (sid, instance): (&Endpoint, LookupId),
) -> Option<Out> {
    let bytes = packet.bytes().get(ETHERNET..ETHERNET + len)?;
    match &sid.behaviour {
        Behaviour::DX2 { link } => {
            let at = srv6::plain_inner(bytes, protocol::ETHERNET)?;
            let inside = bytes.get(at..)?;
            let [.., type0, type1] = *inside.first_chunk::<ETHERNET>()?;
            let len = inside.len();
            match view.link(*link)? {
                Link { up: true, port: Some(port), mtu, .. }
                    if u16::from_be_bytes([type0, type1]) >= srv6::LEAST_ETHERTYPE
                        && len <= *mtu as usize + ETHERNET =>
                {
                    packet.narrow(ETHERNET + at, len);
                    Some((*port, len as u32))
                }
                _ => None,
            }
        }
        Behaviour::DX4(via) => {
            let lookup = via.lookup;
            let known = view.next_hop(via.resolved);
            if known.is_none() && !via.address.is_unspecified() {
                return None;
            }
            decapsulate::<u32>(view, packet, len, |target| {
                known.or_else(|| looked_up(view, fibs, lookup, target))
            })
        }
        Behaviour::DX6(via) if via.lookup != instance => None,
        Behaviour::DX6(via) => {
            let lookup = via.lookup;
            let known = view.next_hop(via.resolved);
            if known.is_none() && !via.address.is_unspecified() {
                return None;
            }
            decapsulate::<u128>(view, packet, len, |target| {
                known.or_else(|| looked_up(view, fibs, lookup, target))
            })
        }
        Behaviour::DT4 { lookup } => {
            decapsulate::<u32>(view, packet, len, |target| looked_up(view, fibs, *lookup, target))
        }
        Behaviour::DT46 { lookup } if bytes.get(NEXT_HEADER) == Some(&protocol::IPV4) => {
            decapsulate::<u32>(view, packet, len, |target| looked_up(view, fibs, *lookup, target))
        }
        Behaviour::DT6 { lookup } | Behaviour::DT46 { lookup } => {
            decapsulate::<u128>(view, packet, len, |target| looked_up(view, fibs, *lookup, target))
        }
        Behaviour::X(via) if via.lookup != instance => None,
        Behaviour::X(via) => {
            let next = srv6::next_segment_plain(bytes)?;
            let next_hop = view.next_hop(via.resolved)?;
            advance(packet, len, next, next_hop)
        }
        // End goes by the link by which the packet came in.
        Behaviour::End { .. } => {
            let next = srv6::next_segment_plain(bytes)?;
            advance(packet, len, next, known_next_hop(view, fibs, instance, next.1)?)
        }
        Behaviour::T { lookup } => {
            let next = srv6::next_segment_plain(bytes)?;
            advance(packet, len, next, known_next_hop(view, fibs, *lookup, next.1)?)
        }
        Behaviour::B6Encaps(policy) => {
            let next = srv6::next_segment_plain(bytes)?;
            encapsulate(view, packet, len, policy, Some(next))
        }
        _ => None,
    }
}

/// [`through_sid`] for End, End.X and End.T with flavours.
#[inline(always)]
pub(super) fn through_flavours<'a>(
    view: &View<'a>,
    fibs: &mut Fibs<'a>,
    packet: &mut Packet,
    len: usize,
    (sid, instance): (&Endpoint, LookupId),
) -> Option<Out> {
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
    if let Some(structure) = flavours.next_csid {
        let fixed = bytes.first_chunk::<40>()?;
        if let Some(next) = structure.next(u128::from_be_bytes(*fixed.last_chunk()?)) {
            let next = Ipv6Addr::from_bits(next);
            let next_hop = match via {
                Some(next_hop) => next_hop,
                None => known_next_hop(view, fibs, lookup, next)?,
            };
            return redirect(packet, len, next, next_hop);
        }
    }
    if let Some((left, segment)) = srv6::next_segment_plain(bytes) {
        let next_hop = match via {
            Some(next_hop) => next_hop,
            None => known_next_hop(view, fibs, lookup, segment)?,
        };
        return match left {
            0 if flavours.psp => advance_and_pop(packet, len, segment, next_hop),
            _ => advance(packet, len, (left, segment), next_hop),
        };
    }
    if !flavours.usd {
        return None;
    }
    if srv6::plain_inner(bytes, protocol::IPV6).is_some() {
        decapsulate::<u128>(view, packet, len, |target| via.or_else(|| looked_up(view, fibs, lookup, target)))
    } else {
        decapsulate::<u32>(view, packet, len, |target| via.or_else(|| looked_up(view, fibs, lookup, target)))
    }
}

/// The next hop that a segment leads to, as it was looked up lately or is now.
#[inline(always)]
fn known_next_hop<'a>(
    view: &View<'a>,
    fibs: &mut Fibs<'a>,
    lookup: LookupId,
    segment: Ipv6Addr,
) -> Option<&'a StoredNextHop> {
    let leaf = match fibs.known(lookup, segment) {
        Some(leaf) => leaf,
        None => {
            let leaf = ActionId(fibs.segment(view, lookup, segment.to_bits())?);
            fibs.next = Some((lookup, segment, leaf));
            leaf
        }
    };
    next_hop(view, Some(leaf.0))
}

/// The next segment the destination of the packet of `len` bytes in a frame, and the frame to a next hop.
#[inline(always)]
fn advance(
    packet: &mut Packet,
    len: usize,
    (left, segment): (u8, Ipv6Addr),
    next_hop: &StoredNextHop,
) -> Option<Out> {
    let mac = addresses(next_hop, len)?;
    let frame = packet.bytes_mut();
    let padded = frame.len() != ETHERNET + len;
    let (head, bytes) = frame.split_first_chunk_mut::<ETHERNET>()?;
    let bytes = bytes.first_chunk_mut::<48>()?;
    head[..12].copy_from_slice(mac);
    // More than 1 is left: `next_segment_plain` has looked.
    bytes[7] -= 1;
    srv6::write_segment(bytes, left, segment);
    if padded {
        cut(packet, ETHERNET + len);
    }
    Some((next_hop.port, (ETHERNET + len) as u32))
}

/// The same without a change of its SRH.
#[inline(always)]
fn redirect(packet: &mut Packet, len: usize, destination: Ipv6Addr, next_hop: &StoredNextHop) -> Option<Out> {
    let mac = addresses(next_hop, len)?;
    let frame = packet.bytes_mut();
    let padded = frame.len() != ETHERNET + len;
    let (head, bytes) = frame.split_first_chunk_mut::<ETHERNET>()?;
    ipv6::lower_hop_limit(bytes)?;
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
) -> Option<Out> {
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

/// The next hop that an address leads to, in tables that are near.
#[inline(always)]
fn looked_up<'a, A: Family>(
    view: &View<'a>,
    fibs: &mut Fibs<'a>,
    lookup: LookupId,
    target: A,
) -> Option<&'a StoredNextHop> {
    To::table(view, fibs, lookup)?.next_hop(view, target)
}

/// Takes the outer headers off the packet of `len` bytes in a frame, and sends the one inside to the next hop that its
/// destination leads to.
#[inline(always)]
pub(super) fn decapsulate<'a, A: Family>(
    view: &View<'a>,
    packet: &mut Packet,
    len: usize,
    next_hop: impl FnOnce(A) -> Option<&'a StoredNextHop>,
) -> Option<Out> {
    let bytes = packet.bytes().get(ETHERNET..ETHERNET + len)?;
    let at = srv6::plain_inner(bytes, A::PROTOCOL)?;
    let (target, len) = A::plain(bytes.get(at..)?, view.tables.plain_bits4())?;
    let next_hop = next_hop(target)?;
    forward_inner::<A>(packet, (at, len), next_hop)
}
