//! Outer packets that are too long for the way to the end of their tunnel: Linux's `tnl_update_pmtu` and
//! `skb_tunnel_check_pmtu`.

use std::net::IpAddr;
use std::sync::atomic::Ordering::Relaxed;

use underpass_packet::{FromBytes, ethernet, ipv4};

use crate::buffer::Packet;
use crate::drops::Drop;
use crate::offload;
use crate::path::fragment;
use crate::tables::{Action, ActionId, Inside, NextHop, StoredTunnel, TunnelKind, TunnelRole};
use crate::trace::{Event, Trace};
use crate::tunnel::{dont_fragment, path_mtu};
use crate::worker::metadata::{OPAQUE, Road, SWITCHED};
use crate::worker::verdict::{Refusal, Step};
use crate::worker::{IcmpError, Path, View};

/// Whether a router on the way has told that outer packets of so many bytes are too long, or may be fragmented, or that
/// one has not arrived.
#[inline(always)]
pub(crate) fn is_narrow(view: &View<'_>, tunnel: &StoredTunnel, len: usize) -> bool {
    view.tables.tunnels().exceptions.any() && is_told_of(view, tunnel, len)
}

#[cold]
fn is_told_of(view: &View<'_>, tunnel: &StoredTunnel, len: usize) -> bool {
    let remote = match tunnel.config.remote {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => address.to_bits(),
    };
    let told = view.tables.tunnels().exceptions.of(remote, tunnel.config.via.lookup, view.now);
    told.is_some_and(|path| path.locked || len > path.mtu as usize)
        || tunnel.sequence.errors.load(Relaxed) > 0
}

/// Least MTU of an IPv6 link, RFC 8200 section 5.
pub(crate) const LEAST_MTU6: u32 = 1280;

/// Least MTU of an IPv4 link, RFC 791.
const LEAST_MTU4: u32 = 68;

/// An outer packet before it goes to `next_hop`: whether it fits. `Ok(false)`: it has to be fragmented.
pub(crate) fn leave(view: &View<'_>, road: &mut Road, next_hop: &NextHop) -> Result<bool, Step> {
    let tunnel = road.extra.tunnel.and_then(|id| view.tables.tunnels().tunnel(id, view.guard));
    let Some(tunnel) = tunnel else { return Err(Step::drop(Drop::TooBig)) };
    let left = fits(view, road, tunnel, next_hop);
    if let (Err(_), Some(sequence)) = (left, road.extra.sequence.take()) {
        // It is not sent. Its number is the next one's, unless another packet has had one since.
        let _ = tunnel.sequence.next.compare_exchange(sequence.wrapping_add(1), sequence, Relaxed, Relaxed);
    }
    left
}

/// The same for a packet in this tunnel.
fn fits(view: &View<'_>, road: &mut Road, tunnel: &StoredTunnel, next_hop: &NextHop) -> Result<bool, Step> {
    let told_of = path_mtu::of(view, tunnel, road.packet.bytes());
    if told_of.is_some_and(|path| path.locked) {
        allow_fragments(&mut road.packet);
    }
    let mtu = told_of.map_or(next_hop.mtu, |path| path.mtu.min(next_hop.mtu));
    if road.packet.fits(mtu as usize) {
        return Ok(true);
    }
    let outer = usize::from(road.extra.outer);
    let at = outer + if tunnel.kind.carries_frames() { ethernet::Header::LEN } else { 0 };
    let bytes = road.packet.bytes();
    let inner = bytes.get(at..).unwrap_or_default();
    let version = if road.is(OPAQUE) { 0 } else { inner.first().map_or(0, |first| first >> 4) };
    // What Linux says is room: it counts an option of GUE whether it is there or not.
    let left = mtu.saturating_sub((tunnel.overhead().max(outer) + at - outer) as u32);
    let over6 = bytes.first().is_some_and(|first| first >> 4 == 6);
    let inner_len = road.packet.longest_part().saturating_sub(at) as u32;
    let inner_stays = dont_fragment(inner);
    if tunnel.kind.is_bare_udp() {
        // Linux: `skb_tunnel_check_pmtu`, by which the next IPv6 packet is too long for its route.
        let told_at = left.max(LEAST_MTU6);
        return match version {
            6 if inner_len > told_at => told(road, told_at),
            _ if over6 || dont_fragment(bytes) => Err(Step::drop(Drop::TooBig)),
            _ => Ok(false),
        };
    }
    if over6 {
        // What a route or an action adds to the device's GRE header, Linux does not tell of.
        let given = match (tunnel.config.role, tunnel.kind) {
            (TunnelRole::Route, TunnelKind::Ip6gre | TunnelKind::Ip6gretap) => tunnel.gre_fields(),
            _ => 0,
        };
        let left = (left + given).max(if version == 6 { LEAST_MTU6 } else { LEAST_MTU4 });
        return if inner_len + given > left && matches!(version, 4 | 6) {
            told(road, left)
        } else {
            Err(Step::drop(Drop::TooBig))
        };
    }
    if !dont_fragment(bytes) {
        return Ok(false);
    }
    match version {
        6 if tunnel.kind == TunnelKind::Sit && left < LEAST_MTU6 => {
            if left < LEAST_MTU4 {
                return Err(Step::drop(Drop::TooBig));
            }
            if inner_len > LEAST_MTU6 {
                return told(road, LEAST_MTU6);
            }
            allow_fragments(&mut road.packet);
            Ok(false)
        }
        6 if left >= LEAST_MTU6 => told(road, left),
        4 if inner_stays => told(road, left),
        _ => Err(Step::drop(Drop::TooBig)),
    }
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

/// Tells the sender of the packet inside how long it may be.
fn told(road: &mut Road, left: u32) -> Result<bool, Step> {
    // The error subtracts what the packet has grown by.
    road.extra.argument = left + u32::from(road.extra.growth);
    Err(Step::Refuse(Refusal::told(Drop::TooBig, IcmpError::TooBig)))
}

impl<const COUNT: bool> Path<COUNT> {
    /// Cuts an IPv4 packet that is too long for a tunnel, or for a route into a VRF, and sends the fragments into it.
    #[cold]
    pub(crate) fn send_fragments_into<T: Trace>(
        &mut self,
        view: &View<'_>,
        road: &mut Road,
        id: ActionId,
        trace: &mut T,
    ) {
        let mtu = match view.tables.action(id, view.guard) {
            Some(Action::Tunnel(route)) => view
                .tables
                .tunnels()
                .tunnel(route.tunnel, view.guard)
                .map(|tunnel| route.mtu(tunnel.form(Inside::Ip4).mtu)),
            Some(Action::Vrf(route)) if route.mtu != 0 => Some(route.mtu),
            Some(Action::Vrf(route)) => view.link(route.link).map(|link| link.mtu),
            _ => None,
        };
        let Some(mtu) = mtu else { return self.drop_on_road(road, Drop::NoRoute, trace) };
        offload::finish(&mut road.packet);
        let fragments = match fragment::fragment(&mut self.pool, &road.packet, mtu as usize) {
            Ok(fragments) => fragments,
            Err(reason) => return self.drop_on_road(road, reason, trace),
        };
        trace.step(Event::Fragmented(fragments.len()), &road.packet);
        // One of them counts as the packet itself.
        self.totals.generated += fragments.len().saturating_sub(1) as u64;
        let into_vrf = matches!(view.tables.action(id, view.guard), Some(Action::Vrf(_)));
        for fragment in fragments {
            let at = fragment.headroom();
            let mut part = Road::new(fragment, at, road.ingress, road.extra);
            if !into_vrf {
                // Its TTL has been lowered before it was cut.
                part.extra.flags |= SWITCHED;
            }
            self.slow_path_alone(view, part, Step::Act(id), trace);
        }
    }
}
