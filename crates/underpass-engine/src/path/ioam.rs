//! IOAM traces inserted into packets (`encap ioam6`): the option of RFC 9486. Linux: `net/ipv6/ioam6_iptunnel.c`. The traces
//! of packets that pass are filled in `ioam_trace.rs`.

use std::net::Ipv6Addr;

use underpass_packet::{FromBytes, ethernet, ipv6, protocol};

use crate::buffer::Packet;
use crate::drops::DropReason;
use crate::limiter::Nanos;
use crate::path::ioam_trace::{HEADER, HOP_LIMIT, timestamp};
use crate::path::vrf::enter_vrf;
use crate::tables::{Ioam, IoamLink, IoamMode, IoamOnward, LONGEST_LINK_LAYER, StoredNextHop};
use crate::trace::{Event, Trace};
use crate::worker::env::Env;
use crate::worker::error::IcmpError;
use crate::worker::headroom::reserve_headroom;
use crate::worker::metadata::{GENERATED, INSERTED_TRACE, NOT_FORWARDED, PacketMeta, TUNNELLED};
use crate::worker::path::Path;
use crate::worker::rewrite::{ETHERNET, FastVerdict, NEXT_HEADER, addresses, cut, write_header};
use crate::worker::verdict::Verdict;
use crate::worker::view::View;

/// Writes what depends on the packet into a header that was inserted for it. Of a packet of the host's own
/// (`ingress` is then `None`) only the hop limit does.
#[inline(always)]
fn fill_in(header: &mut [u8], ioam: &Ioam, hop_limit: u8, ingress: Option<&IoamLink>, now: Nanos) {
    let places = &ioam.places;
    let mut put = |at: u16, value: &[u8]| {
        let at = usize::from(at);
        if at != 0
            && let Some(place) = header.get_mut(at..at + value.len())
        {
            place.copy_from_slice(value);
        }
    };
    put(places.hop_limit, &[hop_limit]);
    put(places.hop_limit_wide, &[hop_limit]);
    let Some(link) = ingress else { return };
    put(places.ingress, &link.id.to_be_bytes());
    put(places.ingress_wide, &link.id_wide.to_be_bytes());
    if places.seconds | places.microseconds != 0 {
        let (seconds, microseconds) = timestamp(now);
        put(places.seconds, &seconds.to_be_bytes());
        put(places.microseconds, &microseconds.to_be_bytes());
    }
}

/// Inserts a trace into the IPv6 packet of `len` bytes in a frame, or puts headers with one before it, and sends it to the next
/// hop. `None`: it is not so simple, and as it was; [`insert_ioam`] decides.
#[inline(always)]
pub(crate) fn insert_fast(
    env: &Env<'_, '_>,
    packet: &mut Packet,
    len: usize,
    ioam: &Ioam,
) -> Option<FastVerdict> {
    let (view, link) = (env.view, &env.link.ioam);
    if ioam.frequency.is_some() || link.host {
        return None;
    }
    let inline = ioam.mode == IoamMode::Inline;
    let bytes = packet.bytes().get(ETHERNET..)?.first_chunk::<HEADER>()?;
    let next_header = bytes[NEXT_HEADER];
    let hop_limit = bytes[HOP_LIMIT].checked_sub(1).filter(|left| *left > 0)?;
    let next_hop: &StoredNextHop = match ioam.onward {
        _ if !inline && bytes[24..] != ioam.destination().octets() => view.next_hop(ioam.via.resolved)?,
        IoamOnward::NextHop(id) => view.tables.next_hop(id, view.guard)?,
        IoamOnward::OnLink(_) | IoamOnward::Vrf(_) => return None,
    };
    let more = ioam.header.len() + if inline { 0 } else { HEADER };
    let mac = addresses(next_hop, len + more)?;
    let payload_length = u16::try_from(len + more - HEADER).ok()?;
    if bytes[0] >> 4 != 6 || more > packet.headroom() {
        return None;
    }
    if packet.len() != ETHERNET + len {
        cut(packet, ETHERNET + len);
    }
    let bytes = packet.push(more).ok()?;
    let mut outer = *bytes.get(more + ETHERNET..)?.first_chunk::<HEADER>()?;
    if !inline {
        *bytes.get_mut(more + ETHERNET + HOP_LIMIT)? = hop_limit;
    }
    outer[HOP_LIMIT] = hop_limit;
    write_outer(&mut outer, ioam, payload_length, inline);
    let (head, rest) = bytes.split_first_chunk_mut::<ETHERNET>()?;
    write_header(head, mac, ethernet::IPV6);
    let (room, rest) = rest.split_first_chunk_mut::<HEADER>()?;
    *room = outer;
    let option = rest.get_mut(..ioam.header.len())?;
    crate::srv6::headend::copy(&ioam.header, option);
    fill_in(option, ioam, hop_limit, Some(link), view.epoch.wrapping_add(view.now));
    *option.first_mut()? = if inline { next_header } else { protocol::IPV6 };
    Some((next_hop.port, (ETHERNET + len + more) as u32))
}

/// The action of a route that inserts: Linux's `ioam6_output`.
pub(crate) fn insert_ioam<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    meta: &mut PacketMeta,
    ioam: &Ioam,
    trace: &mut T,
) -> Verdict {
    if meta.is(NOT_FORWARDED) {
        return Verdict::drop(DropReason::ForwardingOff);
    }
    let Ok((header, _)) = ipv6::Header::ref_from_prefix(meta.packet.bytes()) else {
        return Verdict::drop(DropReason::Ip6Truncated);
    };
    let (destination, next_header) = (header.destination(), header.next_header);
    // The outer header of a tunnel is the router's own, too.
    let (own, tunnelled) = (meta.is(GENERATED | TUNNELLED), meta.is(TUNNELLED));
    let hop_limit = match header.hop_limit {
        hop_limit if own => hop_limit,
        0 | 1 => return Verdict::error(DropReason::HopLimitExceeded, IcmpError::HopLimit),
        hop_limit => hop_limit - 1,
    };
    if ioam.frequency.as_ref().is_some_and(|frequency| !frequency.chooses(path.number)) {
        return ioam_onward(path, view, meta, ioam, destination);
    }
    let received_by =
        if tunnelled { meta.extra.entered.map(|entered| entered.link) } else { Some(meta.ingress) };
    let ingress = received_by.and_then(|link| view.link(link)).map(|link| &link.ioam);
    let ingress = match ingress.filter(|link| (tunnelled || !own) && !link.host) {
        // What is the router's own comes from the device of its VRF: `vrf_ip6_out`.
        None if own => vrf_of(view, ioam),
        ingress => ingress,
    };
    let inline = match ioam.mode {
        IoamMode::Inline => true,
        IoamMode::Encap => false,
        IoamMode::Auto => ingress.is_none(),
    };
    // A second hop-by-hop header is not allowed, and the first is not extended.
    if inline && next_header == protocol::HOP_BY_HOP {
        return ioam_onward(path, view, meta, ioam, destination);
    }
    let len = ioam.header.len() + if inline { 0 } else { HEADER };
    let total = (meta.packet.len() + len).saturating_sub(HEADER);
    let Ok(payload_length) = u16::try_from(total) else {
        return Verdict::drop(DropReason::LengthOverflow);
    };
    if let Err(error) = reserve_headroom(path, meta, len + LONGEST_LINK_LAYER, trace) {
        return Verdict::Refuse(error);
    }
    // Where the packet goes may be a headend, which wants the frame that it came in.
    let frame = if inline || ioam.via.resolved.is_none() { meta.link_layer() } else { None };
    if !inline && let Some(inside) = meta.packet.bytes_mut().get_mut(HOP_LIMIT) {
        *inside = hop_limit;
    }
    let written = meta.packet.push(len).ok().and_then(|bytes| {
        bytes.copy_within(len..len + HEADER, 0);
        let (outer, rest) = bytes.split_first_chunk_mut::<HEADER>()?;
        let option = rest.get_mut(..ioam.header.len())?;
        option.copy_from_slice(&ioam.header);
        fill_in(option, ioam, hop_limit, ingress, view.epoch.wrapping_add(view.now));
        *option.first_mut()? = if inline { next_header } else { protocol::IPV6 };
        write_outer(outer, ioam, payload_length, inline);
        // Lowered as it leaves.
        outer[HOP_LIMIT] = hop_limit + u8::from(!own);
        Some(())
    });
    if written.is_none() {
        return Verdict::drop(DropReason::NoHeadroom);
    }
    trace.step(Event::IoamInserted(if inline { "inline" } else { "encap" }, len), &meta.packet);
    if !inline {
        meta.extra.traced = true;
        meta.wrapped(len, frame);
        if ioam.destination() != destination {
            return Verdict::via(meta, &ioam.via);
        }
        return ioam_onward(path, view, meta, ioam, destination);
    }
    if meta.extra.wrapping == 0 {
        meta.extra.flags |= INSERTED_TRACE;
    }
    meta.inserted(len, frame);
    ioam_onward(path, view, meta, ioam, destination)
}

/// What the VRF of the link that a route leads by is in traces.
#[cold]
fn vrf_of<'a>(view: &View<'a>, ioam: &Ioam) -> Option<&'a IoamLink> {
    let link = view.link(ioam.link).filter(|link| link.in_vrf && !link.vrf)?;
    view.vrf_of(link.lookup).map(|(_, vrf)| &vrf.ioam)
}

/// Where a packet goes whose destination stayed as it was.
pub(crate) fn ioam_onward<const COUNT: bool>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    meta: &mut PacketMeta,
    ioam: &Ioam,
    destination: Ipv6Addr,
) -> Verdict {
    match ioam.onward {
        IoamOnward::NextHop(id) => Verdict::Forward(id),
        IoamOnward::OnLink(link) => {
            meta.target6 = destination;
            Verdict::OnLink(link)
        }
        IoamOnward::Vrf(route) => enter_vrf(path, view, meta, (None, &route)),
    }
}

/// Takes an option that was inserted `inline` out again: its length. `None`: there is none.
#[cold]
pub(crate) fn take_out(packet: &mut Packet) -> Option<usize> {
    let bytes = packet.bytes_mut();
    let (header, rest) = bytes.split_first_chunk_mut::<HEADER>()?;
    let [next_header, len] = *rest.first_chunk()?;
    let len = (usize::from(len) + 1) * 8;
    if header[NEXT_HEADER] != protocol::HOP_BY_HOP || len > rest.len() {
        return None;
    }
    let payload_length = u16::from_be_bytes([header[4], header[5]]).checked_sub(len as u16)?;
    header[4..6].copy_from_slice(&payload_length.to_be_bytes());
    header[NEXT_HEADER] = next_header;
    bytes.copy_within(..HEADER, len);
    packet.pull(len);
    Some(len)
}

/// Makes a copy of the packet's IPv6 header the one before the option.
#[inline(always)]
fn write_outer(outer: &mut [u8; HEADER], ioam: &Ioam, payload_length: u16, inline: bool) {
    outer[4..6].copy_from_slice(&payload_length.to_be_bytes());
    outer[NEXT_HEADER] = protocol::HOP_BY_HOP;
    if !inline {
        outer[8..24].copy_from_slice(&ioam.source.octets());
        outer[24..40].copy_from_slice(&ioam.destination().octets());
    }
}
