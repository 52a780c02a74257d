//! Outer packets that are too long for the way to the end of their tunnel: Linux's `tnl_update_pmtu` and
//! `skb_tunnel_check_pmtu`.

use std::net::IpAddr;
use std::sync::atomic::Ordering::Relaxed;

use underpass_packet::{FromBytes, ethernet, ipv4};

use crate::buffer::Packet;
use crate::drops::DropReason;
use crate::offload;
use crate::path::rules;
use crate::tables::{
    Action, ActionId, FRAGMENT, InnerProtocol, NextHop, StoredTunnel, TunnelId, TunnelKind, TunnelRole,
};
use crate::trace::{Event, Trace};
use crate::tunnel::inside::Inside;
use crate::tunnel::outer::{LEAST_MTU6, is_ip};
use crate::tunnel::{dont_fragment, path_mtu};
use crate::worker::error::{IcmpError, PacketError};
use crate::worker::metadata::{OPAQUE, PacketMeta, SWITCHED, TUNNELLED};
use crate::worker::path::Path;
use crate::worker::verdict::Verdict;
use crate::worker::view::View;

/// Whether a router on the way has reported that outer packets of so many bytes are too long, or may be fragmented, or that
/// one has not arrived.
#[inline(always)]
pub(crate) fn is_narrow(view: &View<'_>, tunnel: &StoredTunnel, len: usize) -> bool {
    view.tables.tunnels().exceptions.any() && is_exception(view, tunnel, len)
}

#[cold]
fn is_exception(view: &View<'_>, tunnel: &StoredTunnel, len: usize) -> bool {
    let remote = match tunnel.config.remote {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => address.to_bits(),
    };
    path_mtu::reported(view, tunnel, remote)
        .is_some_and(|path| path.locked || is_cut(tunnel, path.mtu) || len > path.mtu as usize)
        || tunnel.sequence.errors.load(Relaxed) > 0
}

/// Whether a sit lets what it sends be cut on a way with this MTU, as it is too small for IPv6: Linux's `ipip6_tunnel_xmit`.
fn is_cut(tunnel: &StoredTunnel, mtu: u32) -> bool {
    tunnel.kind == TunnelKind::Sit && mtu < LEAST_MTU6 + tunnel.overhead() as u32
}

/// Least MTU of an IPv4 link, RFC 791.
const LEAST_MTU4: u32 = 68;

/// Whether an outer packet, with an IP header at `at` inside, comes through to where it leaves: there is a way, not by the tunnel
/// itself, and it is not too long for it, as far as that is known. Linux looks at these before it sends errors.
#[cold]
pub(crate) fn comes_through(
    view: &View<'_>,
    (packet, at): (&Packet, usize),
    (id, tunnel, inside): (TunnelId, &StoredTunnel, InnerProtocol),
    remote: IpAddr,
) -> bool {
    let lookup = tunnel.outer_lookup(inside);
    let mtu = match rules::action_at(view, packet.bytes(), lookup, remote) {
        None | Some(Action::Discard(_)) if tunnel.template(inside).next_hop.is_none() => return false,
        Some(Action::Tunnel(route)) if route.tunnel == id => return false,
        Some(Action::Forward(id)) => view.tables.next_hop(*id, view.guard).map(|next_hop| next_hop.mtu),
        _ => None,
    };
    let reported = path_mtu::reported(view, tunnel, path_mtu::bits(remote));
    let Some(mtu) = mtu.into_iter().chain(reported.map(|reported| reported.mtu)).min() else { return true };
    let left = mtu.saturating_sub(tunnel.overhead() as u32);
    let inner = packet.bytes().get(at..).unwrap_or_default();
    let (left, cut) = match inner.first().map(|first| first >> 4) {
        // What is no longer than the least MTU counts as fitting: `ip6_tnl_xmit`.
        Some(6) if tunnel.kind.is_over_ipv6() => (left.max(LEAST_MTU6), false),
        _ if tunnel.kind.is_over_ipv6() => (left.max(LEAST_MTU4), false),
        Some(4) => (left, !dont_fragment(inner)),
        _ => (left, left < LEAST_MTU6),
    };
    cut || packet.longest_part().saturating_sub(at) <= left as usize
}

/// An outer packet before it goes to `next_hop`: whether it fits. `Ok(false)`: it has to be fragmented.
pub(crate) fn leave(view: &View<'_>, meta: &mut PacketMeta, next_hop: &NextHop) -> Result<bool, Verdict> {
    let tunnel = meta.extra.tunnel.and_then(|id| view.tables.tunnels().tunnel(id, view.guard));
    let Some(tunnel) = tunnel else { return Err(Verdict::drop(DropReason::TooBig)) };
    let left = fits(view, meta, tunnel, next_hop);
    if let (Err(_), Some(sequence)) = (left, meta.extra.sequence.take()) {
        // It is not sent. Its number is the next one's, unless another packet has had one since.
        let next = sequence.wrapping_add(meta.packet.parts().into());
        let _ = tunnel.sequence.next.compare_exchange(next, sequence, Relaxed, Relaxed);
    }
    left
}

/// The same for a packet in this tunnel.
fn fits(
    view: &View<'_>,
    meta: &mut PacketMeta,
    tunnel: &StoredTunnel,
    next_hop: &NextHop,
) -> Result<bool, Verdict> {
    let exception = path_mtu::of(view, tunnel, meta.packet.bytes());
    let stays = dont_fragment(meta.packet.bytes());
    let locked = next_hop.locked || exception.is_some_and(|path| path.locked);
    if locked {
        allow_fragments(&mut meta.packet);
    }
    let mtu = exception.map_or(next_hop.mtu, |path| path.mtu.min(next_hop.mtu));
    if meta.packet.fits(mtu as usize) {
        let of_six =
            |packet: &Packet| packet.bytes().get(usize::from(meta.extra.outer)).map(|first| first >> 4);
        if exception.is_some_and(|path| is_cut(tunnel, path.mtu)) && of_six(&meta.packet) == Some(6) {
            allow_fragments(&mut meta.packet);
        }
        return Ok(true);
    }
    let outer = usize::from(meta.extra.outer);
    let at = outer + if tunnel.kind.carries_frames() { ethernet::Header::LEN } else { 0 };
    let bytes = meta.packet.bytes();
    let inner = bytes.get(at..).unwrap_or_default();
    let version = if meta.is(OPAQUE) { 0 } else { inner.first().map_or(0, |first| first >> 4) };
    // What Linux says is room: it counts an option of GUE whether it is there or not.
    let left = mtu.saturating_sub((tunnel.overhead().max(outer) + at - outer) as u32);
    let over6 = bytes.first().is_some_and(|first| first >> 4 == 6);
    let inner_len = meta.packet.longest_part().saturating_sub(at) as u32;
    let inner_stays = dont_fragment(inner);
    if tunnel.kind.is_overlay() {
        // Linux: `skb_tunnel_check_pmtu`, by which the next IPv6 packet is too long for its route.
        let told_at = left.max(LEAST_MTU6);
        return match version {
            6 if inner_len > told_at && !meta.extra.unrouted && !meta.packet.tag().copy => {
                reported(meta, 6, told_at, at)
            }
            _ if over6 || dont_fragment(bytes) => Err(Verdict::drop(DropReason::TooBig)),
            _ => Ok(false),
        };
    }
    if over6 && meta.is(OPAQUE) && tunnel.kind == TunnelKind::Ip6gretap {
        return exceeds_behind_tags(meta, tunnel, left);
    }
    if over6 {
        // What a route or an action adds to the device's GRE header, Linux does not tell of.
        let given = match (tunnel.config.role, tunnel.kind) {
            (TunnelRole::Route { .. }, TunnelKind::Ip6gre | TunnelKind::Ip6gretap) => tunnel.gre_fields(),
            _ => 0,
        };
        let left = (left + given).max(if version == 6 { LEAST_MTU6 } else { LEAST_MTU4 });
        return if inner_len + given > left && matches!(version, 4 | 6) {
            reported(meta, version, left, at)
        } else {
            Err(Verdict::drop(DropReason::TooBig))
        };
    }
    if !stays {
        return Ok(false);
    }
    match version {
        6 if tunnel.kind == TunnelKind::Sit && left < LEAST_MTU6 => {
            if left < LEAST_MTU4 {
                return Err(Verdict::drop(DropReason::TooBig));
            }
            if inner_len > LEAST_MTU6 {
                return reported(meta, 6, LEAST_MTU6, at);
            }
            allow_fragments(&mut meta.packet);
            Ok(false)
        }
        6 if left >= LEAST_MTU6 => reported(meta, version, left, at),
        4 if inner_stays => reported(meta, version, left, at),
        _ if locked => Ok(false),
        _ => {
            // Linux: it is `ip_fragment` that refuses it, which `iptunnel_xmit_stats` does not count as an error.
            if let Some(entered) = &mut meta.extra.entered {
                entered.drops = true;
            }
            Err(Verdict::drop(DropReason::TooBig))
        }
    }
}

/// Refuses a frame that is too long for an ip6gretap with this room, and tells the sender of the packet behind its tags, which
/// `skb_protocol` finds there. What fits counts with the tags, and is no IPv6 to `ip6_tnl_xmit`.
#[cold]
fn exceeds_behind_tags(meta: &mut PacketMeta, tunnel: &StoredTunnel, left: u32) -> Result<bool, Verdict> {
    let left = left.max(LEAST_MTU4);
    let outer = usize::from(meta.extra.outer);
    let frame = meta.packet.bytes().get(outer..).unwrap_or_default();
    let (at, ethertype) = Inside::of_frame(frame, tunnel);
    let version = match (ethertype, frame.get(at).map(|first| first >> 4)) {
        (ethernet::IPV4, Some(4)) => 4,
        (ethernet::IPV6, Some(6)) => 6,
        _ => return Err(Verdict::drop(DropReason::TooBig)),
    };
    let inside = meta.packet.longest_part().saturating_sub(outer + ethernet::Header::LEN);
    if at == ethernet::Header::LEN || inside <= left as usize {
        return Err(Verdict::drop(DropReason::TooBig));
    }
    meta.wrapped(at - ethernet::Header::LEN, None);
    meta.extra.flags &= !OPAQUE;
    reported(meta, version, left, outer + at)
}

/// Refuses a packet, or a frame with one, that no route has led into a tunnel over IPv4 and that is longer than the MTU of its
/// device, where the outer packet may be fragmented. Linux: `tnl_update_pmtu`, which has no `dst_mtu` to look at then.
#[cold]
pub(crate) fn exceeds_device(meta: &mut PacketMeta, tunnel: &StoredTunnel) -> Option<Verdict> {
    let at = if tunnel.kind.carries_frames() { ethernet::Header::LEN } else { 0 };
    let is_frame_of_ip = at == 0 || is_ip(meta.packet.bytes(), InnerProtocol::Frame);
    let inner = meta.packet.bytes().get(at..).filter(|_| is_frame_of_ip)?;
    let (version, stays) = (inner.first()? >> 4, dont_fragment(inner));
    let (inside, concerned) = match (version, tunnel.kind) {
        (4, TunnelKind::Ipip | TunnelKind::Sit | TunnelKind::Gre | TunnelKind::Gretap) => {
            (InnerProtocol::Ip4, stays)
        }
        (6, TunnelKind::Gre | TunnelKind::Gretap) => (InnerProtocol::Ip6, true),
        _ => return None,
    };
    let template = tunnel.template(if at > 0 { InnerProtocol::Frame } else { inside });
    let outer_stays = tunnel.config.dont_fragment || template.has(FRAGMENT) && version == 4 && stays;
    let fits = meta.packet.longest_part().saturating_sub(at) <= template.mtu as usize;
    if !concerned || outer_stays || fits || version == 6 && template.mtu < LEAST_MTU6 {
        return None;
    }
    // Linux does not know by which link the packet came in.
    meta.extra.flags |= TUNNELLED;
    reported(meta, version, template.mtu, at).err()
}

/// Makes an outer IPv4 header say that the packet may be fragmented.
fn allow_fragments(packet: &mut Packet) {
    if let Ok((header, _)) = ipv4::Header::mut_from_prefix(packet.bytes_mut())
        && header.version() == 4
        && header.dont_fragment()
    {
        header.flags_offset = 0.into();
        header.fill_checksum(&[]);
    }
}

/// Reports to the sender of the packet inside how long it may be; of IPv4 only if a route has led it there, as `__icmp_send`
/// needs one. `before` it are so many bytes of the tunnel's.
fn reported(meta: &mut PacketMeta, version: u8, left: u32, before: usize) -> Result<bool, Verdict> {
    if meta.extra.unrouted && version == 4 {
        return Err(Verdict::drop(DropReason::TooBig));
    }
    // The error subtracts what the packet has grown by: the tunnel's headers, and those that a SID or a policy has given it.
    meta.extra.argument = left + u32::from(meta.extra.growth).min(before as u32);
    Err(Verdict::Refuse(PacketError::notify(DropReason::TooBig, IcmpError::TooBig)))
}

/// Cuts a packet that is too long for a tunnel, or for a route into a VRF, and sends the fragments into it: one of IPv4, or of
/// the router's own.
#[cold]
pub(crate) fn send_fragments_into<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    meta: &mut PacketMeta,
    id: ActionId,
    trace: &mut T,
) {
    let mtu = match view.tables.action(id, view.guard) {
        Some(Action::Tunnel(route)) => view
            .tables
            .tunnels()
            .tunnel(route.tunnel, view.guard)
            .map(|tunnel| route.mtu(tunnel.template(InnerProtocol::Ip4).mtu)),
        Some(Action::Vrf(route)) if route.mtu != 0 => Some(route.mtu),
        Some(Action::Vrf(route)) => view.link(route.link).map(|link| link.mtu),
        _ => None,
    };
    let Some(mtu) = mtu else { return path.drop_packet(meta, DropReason::NoRoute, trace) };
    offload::finish(&mut meta.packet);
    if let Err(reason) = send_parts_into(path, view, meta, (id, mtu), trace) {
        path.drop_packet(meta, reason, trace);
    }
}

/// Sends the fragments of a packet of at most `mtu` bytes each.
#[cold]
fn send_parts_into<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    meta: &PacketMeta,
    (id, mtu): (ActionId, u32),
    trace: &mut T,
) -> Result<(), DropReason> {
    let mut fragments = path.cut(&meta.packet, mtu as usize, &meta.extra)?;
    trace.step(Event::Fragmented(fragments.count()), &meta.packet);
    let into_vrf = matches!(view.tables.action(id, view.guard), Some(Action::Vrf(_)));
    while let Some(fragment) = fragments.next(&mut path.pool) {
        let fragment = fragment?;
        path.totals.generated += 1;
        let at = fragment.headroom();
        let mut part = PacketMeta::new(fragment, at, meta.ingress, meta.extra);
        if !into_vrf {
            // Its TTL has been lowered before it was cut.
            part.extra.flags |= SWITCHED;
        }
        path.slow_path_alone(view, part, Verdict::Act(id), trace);
    }
    // One of them counts as the packet itself.
    path.totals.generated -= 1;
    Ok(())
}
