//! Packets for the router itself, with a kernel beside it: they go to the host by a port of its own.

use std::net::IpAddr;

use underpass_packet::{FromBytes, ethernet, ipv4, ipv6, protocol};

use crate::buffer::PortId;
use crate::drops::DropReason;
use crate::path::icmp::{ECHO_REQUEST_V4, ECHO_REQUEST_V6};
use crate::path::source::finish_generated;
use crate::tables::{Ingress, Link};
use crate::trace::{Event, Trace};
use crate::tunnel;
use crate::worker::headroom::move_for_headroom;
use crate::worker::metadata::{BROADCAST, GENERATED, HANDED_OVER, PacketMeta, UNFINISHED};
use crate::worker::path::Path;
use crate::worker::verdict::Verdict;
use crate::worker::view::View;

/// Hands a packet over to the host: one that is for the host itself, or one that only the kernel can
/// forward. Gives it back, with the reason, if that cannot be done.
#[cold]
#[inline(never)]
pub(crate) fn hand_over<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    mut meta: PacketMeta,
    trace: &mut T,
) -> Option<(PacketMeta, Verdict)> {
    let Some(ingress) = view.link(meta.ingress) else {
        return Some((meta, Verdict::drop(DropReason::LinkDown)));
    };
    // What has come out of a tunnel of frames is the host's as a frame, whatever is in it.
    let tunnel = view.tables.tunnels().of_link(meta.ingress);
    let tunnel = tunnel.and_then(|id| view.tables.tunnels().tunnel(id, view.guard));
    let frames = tunnel.is_some_and(|tunnel| tunnel.kind.carries_frames());
    let framed = meta.link_layer().filter(|_| frames && !meta.is(GENERATED));
    let ethertype = match (framed, meta.packet.bytes().first().map(|first| first >> 4)) {
        (Some([.., high, low]), _) => Some(u16::from_be_bytes([high, low])),
        (None, Some(4)) => Some(ethernet::IPV4),
        (None, Some(6)) => Some(ethernet::IPV6),
        _ => None,
    };
    // Packets of the host itself, and this router's errors about them, may have its own address as their source.
    let own =
        meta.is(GENERATED) || tunnel.is_none() && ingress.port.is_some() && ingress.port == ingress.host;
    if !own && is_martian(view, &meta) {
        return Some((meta, Verdict::drop(DropReason::SourceInvalid)));
    }
    let host = host_of(view, &meta, ingress);
    let foreign = meta.is(HANDED_OVER);
    // The kernel has sent it here by its own rules and routes, or would forward it out of the VRF.
    let back = host.host == ingress.port && tunnel.is_none();
    if foreign && (host.host.is_none() || back || host.addresses.is_some()) {
        return Some((meta, Verdict::drop(DropReason::KernelOnly)));
    }
    if let Some(addresses) = &host.addresses
        && matches!(ethertype, Some(ethernet::IPV4 | ethernet::IPV6))
        && let Some(destination) = unicast_destination(&meta)
    {
        if !addresses.contains(&destination) {
            // An address of the host in another routing instance.
            return Some((meta, Verdict::drop(DropReason::DestinationInvalid)));
        }
        // The kernel has no route for a reply to another of the host's own addresses, nor for one from an address that
        // several VRFs have.
        if is_echo_request(meta.packet.bytes()) {
            return Some((meta, Verdict::Deliver));
        }
    }
    if meta.is(UNFINISHED) {
        let link = meta.ingress;
        finish_generated(view, &mut meta, link);
    }
    trace.step(Event::Delivered(meta.ingress), &meta.packet);
    // As it came in, so that the kernel has one of its own. It does not forward that one.
    let kept = ingress.shared && meta.extra.lookups_done == 0 && !foreign;
    // Linux's `rp_filter` drops a packet with one of the host's own addresses as its source on a device without an
    // address.
    let bare = tunnel.is_some() && meta.is(GENERATED) && ingress.bare4;
    let port = match bare && ethertype == Some(ethernet::IPV4) {
        true => instance_port(view, &meta),
        false => host.host,
    };
    let (Some(port), Some(ethertype), false) = (port, ethertype, kept) else {
        path.totals.delivered += 1;
        path.pool.give(meta.packet);
        return None;
    };
    if meta.packet.headroom() < ethernet::Header::LEN
        && let Err(error) = move_for_headroom(path, &mut meta, ethernet::Header::LEN, trace)
    {
        return Some((meta, Verdict::Refuse(error)));
    }
    let Ok(frame) = meta.packet.push_header::<{ ethernet::Header::LEN }>() else {
        return Some((meta, Verdict::drop(DropReason::NoHeadroom)));
    };
    match framed {
        Some(header) => *frame = header,
        None => {
            frame[..12].fill(0);
            // The host takes what is for the device's own MAC address, where it has one.
            if let Some((_, device)) = view.tables.port_link(port, view.guard) {
                frame[..6].copy_from_slice(&device.mac);
            }
            frame[12..].copy_from_slice(&ethertype.to_be_bytes());
        }
    }
    let len = meta.packet.len();
    match path.transmit.push(port, meta.packet, len) {
        Ok(()) => {
            path.totals.delivered += 1;
            // The queue of the port counts it as sent, as it does all others.
            path.totals.sent = path.totals.sent.wrapping_sub(1);
        }
        Err(packet) => path.drop(packet, DropReason::TransmitFull, trace),
    }
    None
}

/// A link of the routing instance in which the packet was found to be for the host.
fn host_of<'a>(view: &'a View<'_>, meta: &PacketMeta, ingress: &'a Link) -> &'a Link {
    let lookup = meta.extra.looked_in;
    if ingress.lookup == lookup {
        return ingress;
    }
    let instance = view.own_lookup(lookup);
    if view.own_lookup(ingress.lookup) == instance {
        return ingress;
    }
    view.links().find(|link| view.own_lookup(link.lookup) == instance).unwrap_or(ingress)
}

/// The host's port of the routing instance, where that of a tunnel will not do.
fn instance_port(view: &View<'_>, meta: &PacketMeta) -> Option<PortId> {
    let of_instance = view.links().filter(|link| link.lookup == meta.extra.looked_in);
    // That of a tunnel is its own.
    of_instance.filter(|link| link.port.is_none() || link.port != link.host).find_map(|link| link.host)
}

/// Whether an IPv4 packet has come from elsewhere with one of the router's own addresses as its source. Linux's
/// `fib_validate_source` drops it, unless `accept_local` is on, which it is on the devices by which the host gets it.
fn is_martian(view: &View<'_>, meta: &PacketMeta) -> bool {
    let bytes = meta.packet.bytes();
    let Some(source) = ipv4::Header::ref_from_prefix(bytes).ok().map(|(header, _)| header.source()) else {
        return false;
    };
    let ingress = Ingress { link: meta.ingress, instance: meta.extra.looked_in, in_vrf: false };
    bytes.first().is_some_and(|first| first >> 4 == 4) && tunnel::is_local4(view, ingress, source)
}

/// The destination of a packet, unless it is one of several stations.
fn unicast_destination(meta: &PacketMeta) -> Option<IpAddr> {
    let bytes = meta.packet.bytes();
    let destination = match bytes.first()? >> 4 {
        4 => IpAddr::V4(ipv4::Header::ref_from_prefix(bytes).ok()?.0.destination()),
        _ => IpAddr::V6(ipv6::Header::ref_from_prefix(bytes).ok()?.0.destination()),
    };
    (!destination.is_multicast() && !meta.is(BROADCAST)).then_some(destination)
}

/// Whether a packet is a whole echo request, without options or extension headers.
fn is_echo_request(packet: &[u8]) -> bool {
    match packet {
        [0x45, _, _, _, _, _, high, low, _, protocol::ICMP, ..] => {
            // More fragments, or not the first.
            u16::from_be_bytes([*high, *low]) & 0x3fff == 0 && packet.get(20) == Some(&ECHO_REQUEST_V4)
        }
        [0x60..=0x6f, _, _, _, _, _, protocol::ICMPV6, ..] => packet.get(40) == Some(&ECHO_REQUEST_V6),
        _ => false,
    }
}
