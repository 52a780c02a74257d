//! Next hops: neighbours and links that routes lead to, compiled once for all of these.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use underpass_engine::tables::{
    Action, ActionId, Discard, LookupId, NextHop, NextHopId, Rewrite, TunnelId, TunnelRoute, Via,
};

use super::compiled::{Build, Holding, NextHopKey, RouteLimits};
use super::info::Hop;
use super::scope::{link_id, published_next_hop};
use crate::link::LinkKind;
use crate::neighbour::wanted::{want_neighbour, want_on_link};
use crate::{Link, Router};

/// Whether what leaves by a link is left to the kernel: it is one of the kernel's, in no VRF, and no port is attached to it. What
/// leaves by a VLAN device or a bridge of the router's goes on inside the router.
pub(crate) fn kernel_forwards(router: &Router, index: u32) -> bool {
    let link = router.links.get(index).filter(|_| router.live.is_some());
    link.is_some_and(|link| {
        link.port().is_none()
            && router.links.vrf_of(index).is_none()
            && link.kind != LinkKind::Dummy
            && !(matches!(link.kind, LinkKind::Vlan | LinkKind::Bridge) && link.sink.is_some())
            && link.tunnel.is_none()
    })
}

/// The action of what is left to the kernel.
pub(crate) fn handing_over(router: &mut Router) -> ActionId {
    if let Some(id) = router.routes.compiled.handing_over {
        return id;
    }
    let id = router.engine.add_action(Action::HandOver);
    router.routes.compiled.handing_over = Some(id);
    id
}

pub(super) fn is_vrf(router: &Router, link: u32) -> bool {
    router.links.get(link).is_some_and(|link| link.vrf_table().is_some())
}

pub(super) fn is_dummy(router: &Router, link: u32) -> bool {
    router.links.get(link).is_some_and(|link| link.kind == LinkKind::Dummy && link.sink.is_some())
}

/// Whether a link is a tunnel that takes its parameters from routes.
pub(super) fn is_external(router: &Router, link: u32) -> bool {
    let tunnel = router.links.get(link).and_then(|link| link.tunnel.as_ref());
    tunnel.is_some_and(|tunnel| tunnel.parameters.external)
}

pub(super) fn lead_into(
    router: &mut Router,
    tunnel: Option<TunnelId>,
    hop: &Hop,
    limits: RouteLimits,
    build: &mut Build,
) -> Action {
    let Some(tunnel) = tunnel else { return Action::Discard(Discard::Blackhole) };
    let ethernet = router.links.get(hop.oif).is_some_and(Link::resolves);
    let next_hop = match hop.gateway {
        Some(gateway) if ethernet && !build.keyed => {
            Some(acquire_next_hop(router, (hop.oif, gateway, limits), build))
        }
        _ if build.keyed => None,
        None if ethernet => return Action::OnLink(link_id(router, hop.oif)),
        _ => None,
    };
    Action::Tunnel(TunnelRoute { tunnel, next_hop, mtu: limits.mtu(), hop_limit: limits.hop_limit })
}

pub(super) fn find_via(router: &mut Router, address: IpAddr, lookup: LookupId, build: &mut Build) -> Via {
    build.holds.push(Holding::Resolution(address));
    via_now(router, address, lookup)
}

/// Where packets to an address go, by the routes as they are.
pub(crate) fn via_now(router: &mut Router, address: IpAddr, lookup: LookupId) -> Via {
    let resolved = resolve_via(router, address, lookup);
    if resolved.is_none() {
        want_on_link(router, address, lookup);
    }
    Via { address, lookup, resolved }
}

/// The next hop of packets to an address, where its route leads to one and does nothing else.
pub(crate) fn resolve_via(router: &Router, address: IpAddr, lookup: LookupId) -> Option<NextHopId> {
    let unspecified =
        matches!(address, IpAddr::V4(Ipv4Addr::UNSPECIFIED) | IpAddr::V6(Ipv6Addr::UNSPECIFIED));
    let found = if unspecified { None } else { published_next_hop(router, lookup, address) };
    found.and_then(|action| router.routes.compiled.forwards.get(&action).copied())
}

pub(super) fn acquire_next_hop(router: &mut Router, key: NextHopKey, build: &mut Build) -> NextHopId {
    build.holds.push(Holding::NextHop(key));
    hold_next_hop(router, key)
}

/// The next hop, which one more holds now.
pub(crate) fn hold_next_hop(router: &mut Router, key: NextHopKey) -> NextHopId {
    if let Some((id, users)) = router.routes.compiled.next_hops.get_mut(&key) {
        *users += 1;
        return *id;
    }
    let next_hop = next_hop(router, key);
    if next_hop.rewrite.is_none() {
        want_neighbour(router, key.0, key.1);
    }
    let id = router.engine.add_next_hop(next_hop);
    router.routes.compiled.next_hops.insert(key, (id, 1));
    id
}

pub(crate) fn release_next_hop(router: &mut Router, key: NextHopKey) {
    let Some((id, users)) = router.routes.compiled.next_hops.get_mut(&key) else { return };
    *users -= 1;
    if *users == 0 {
        router.engine.remove_next_hop(*id);
        router.routes.compiled.next_hops.remove(&key);
    }
}

/// The MAC address of a group: RFC 1112 section 6.4, RFC 2464 section 7.
fn group_mac(address: IpAddr) -> Option<[u8; 6]> {
    match address {
        IpAddr::V4(group) if group.is_multicast() => {
            let [_, a, b, c] = group.octets();
            Some([0x01, 0x00, 0x5e, a & 0x7f, b, c])
        }
        IpAddr::V6(group) if group.is_multicast() => {
            let [.., a, b, c, d] = group.octets();
            Some([0x33, 0x33, a, b, c, d])
        }
        _ => None,
    }
}

/// A next hop as it is now.
pub(super) fn next_hop(router: &Router, (index, address, limits): NextHopKey) -> NextHop {
    let link = router.links.get(index);
    // What goes into a tunnel leaves by no port of the tunnel's.
    let tunnel = router.tunnels.id(index).is_some();
    let port = link.and_then(|link| link.port().or(link.sink)).filter(|_| !tunnel);
    let link_mtu = link.map_or(0, |link| link.mtu);
    let rewrite = link.and_then(|link| {
        // Nobody looks at the addresses where there are none, as on a TUN device.
        let mac = match link.resolves() {
            true => group_mac(address).or_else(|| router.routes.published.mac(index, address))?,
            false if tunnel => return None,
            // Linux: `arp_constructor`.
            false if link.sink.is_some() => link.mac,
            false => [0; 6],
        };
        let mut bytes = [0; 20];
        bytes[..6].copy_from_slice(&mac);
        bytes[6..12].copy_from_slice(&link.mac);
        Some(Rewrite { bytes, len: 12 })
    });
    NextHop {
        link: link_id(router, index),
        port: port.unwrap_or(underpass_engine::buffer::PortId::NONE),
        mtu: if limits.mtu() == 0 { link_mtu } else { limits.mtu() },
        locked: limits.locked,
        hop_limit: limits.hop_limit,
        rewrite: rewrite.filter(|_| port.is_some() || tunnel),
        address,
    }
}
