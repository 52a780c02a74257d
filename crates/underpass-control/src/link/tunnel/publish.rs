//! Tunnels and ports of foo-over-UDP as the packet path has them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use underpass_engine::tables::{FouPayload, FouPort, TunnelRole};
use underpass_netlink::iptunnel::{self, IpTunnel};
use underpass_netlink::tunnel::{self, Encap, GRE_CSUM, GRE_KEY, GRE_SEQ, IP6_IGNORE_ENCAP_LIMIT, Kind};

use super::compile::{compile_tunnel, underlay};
use super::vxlan::networks;
use super::{Published, Socket, Tunnel, groups, srv6l2, vxlan};
use crate::Router;
use crate::route::compile::recompile_routes_by;
use crate::route::next_hop::release_next_hop;
use crate::route::{Family, Prefix, bits};
use crate::tc::action::tunnel_key::publish_keys;

impl Tunnel {
    /// The tunnel that a route makes of a device with external metadata; `None` if the addresses are not of its family.
    /// Linux: `ip_md_tunnel_xmit`, `ipxip6_tnl_xmit`, `prepare_ip6gre_xmit_other`, `bareudp_xmit`, `vxlan_xmit_one`,
    /// `geneve_xmit_skb`.
    pub(crate) fn given(&self, given: &IpTunnel) -> Option<(tunnel::Tunnel, Encap)> {
        let device = self.parameters;
        let other = !device.kind.over_udp() && given.destination.is_ipv6() != device.kind.ipv6();
        if other || given.destination.is_unspecified() {
            return None;
        }
        let flag = |flag: u16, gre: u16| if given.flags & flag != 0 { gre } else { 0 };
        let (checksum, key) = (flag(iptunnel::CSUM, GRE_CSUM), flag(iptunnel::KEY, GRE_KEY));
        let parameters = tunnel::Tunnel {
            local: given.source,
            remote: given.destination,
            ttl: given.ttl,
            // Only a TOS of 1 is that of the packet; its other ECN bits count for nothing.
            tos: if device.kind.over_udp() || given.tos == 1 { given.tos } else { given.tos & !1 },
            // Nor does Don't Fragment of the packet inside.
            ignore_df: true,
            pmtudisc: given.flags & iptunnel::DONT_FRAGMENT != 0,
            output_flags: checksum | key | flag(iptunnel::SEQ, GRE_SEQ),
            output_key: given.id as u32,
            external: false,
            vxlan: device.vxlan.map(|vxlan| vxlan.given(given)),
            geneve: device.geneve.map(|geneve| geneve.given(given)),
            flow_info: u32::from(given.tos) << 20,
            flags: IP6_IGNORE_ENCAP_LIMIT,
            ..device
        };
        Some((parameters, self.encap))
    }
}

/// Gives the packet path the tunnel of a link as it is now, if the link is one.
pub(crate) fn publish_tunnel(router: &mut Router, index: u32) {
    let Some(link) = router.links.get(index) else { return };
    let (Some(tunnel), id) = (link.tunnel.clone(), link.id) else { return };
    let (via, next_hop) = underlay(router, &tunnel.parameters);
    let old = router.tunnels.by_link.get(&index).map(|published| published.compiled.remote);
    vxlan::fdb::follow(router, index, old, &tunnel.parameters);
    let behind = networks::compile_ends(router, (index, 0), &tunnel.parameters)
        .filter(|_| !tunnel.parameters.external);
    let compiled = compile_tunnel(router, &tunnel, id, via, false);
    let source = srv6l2::source(router, &tunnel.parameters, behind.as_ref()).unwrap_or(compiled.source);
    let compiled = underpass_engine::tables::Tunnel { behind, source, ..compiled };
    let place = |address: IpAddr| (Family::of(address), bits(address), index);
    router.tunnels.remotes.insert(place(compiled.remote));
    if compiled.local.is_unspecified() {
        router.tunnels.from_any.insert(index);
    } else {
        router.tunnels.from_any.remove(&index);
    }
    if !compiled.local.is_unspecified() {
        router.tunnels.locals.insert(place(compiled.local));
    }
    let held = match router.tunnels.by_link.get_mut(&index) {
        Some(published) => {
            if published.compiled.local != compiled.local {
                router.tunnels.locals.remove(&place(published.compiled.local));
            }
            if published.compiled.remote != compiled.remote {
                router.tunnels.remotes.remove(&place(published.compiled.remote));
            }
            // Routes by a device of many ends have tunnels of their own, made of what the device is.
            let many = |tunnel: &underpass_engine::tables::Tunnel| {
                tunnel.remote.is_unspecified() || tunnel.role == TunnelRole::External
            };
            if published.compiled != compiled {
                let routes = many(&published.compiled) || many(&compiled);
                router.engine.set_tunnel(published.id, compiled.clone());
                published.compiled = compiled;
                let held = std::mem::replace(&mut published.next_hop, next_hop);
                if routes {
                    recompile_routes_by(router, index);
                }
                held
            } else {
                std::mem::replace(&mut published.next_hop, next_hop)
            }
        }
        None => {
            let id = router.engine.add_tunnel(compiled.clone());
            router.tunnels.by_link.insert(index, Published { id, next_hop, compiled, ports: Vec::new() });
            publish_keys(router);
            None
        }
    };
    if let Some(held) = held {
        release_next_hop(router, held);
    }
    networks::publish(router, index);
    open_ports(router, index);
    groups::follow(router, index);
}

/// Opens the ports of a `bareudp`, a VXLAN or a Geneve device that is up, or closes those of one that is not.
fn open_ports(router: &mut Router, index: u32) {
    const ANY: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)];
    let device = router.links.get(index).filter(|link| link.up()).and_then(|link| link.tunnel.clone());
    let Some(published) = router.tunnels.by_link.get_mut(&index) else { return };
    let wanted = device.as_deref().and_then(|device| {
        let socket = Socket::of(device)?;
        let payload = match device.parameters.kind {
            Kind::Vxlan if !device.parameters.external => FouPayload::Vxlan,
            Kind::Geneve | Kind::GeneveIp if !device.parameters.external => FouPayload::Geneve,
            _ => FouPayload::Device(published.id),
        };
        Some((socket, payload))
    });
    match wanted {
        Some((socket, payload)) if published.ports.is_empty() => {
            let open = |local: IpAddr| {
                let (port, ipv6) = (socket.port, local.is_ipv6());
                let any = FouPort { port, ipv6, local, peer: None, bound: None, payload };
                router.engine.add_fou_port(any)
            };
            let wanted = |local: &IpAddr| socket.six.is_none_or(|six| six == local.is_ipv6());
            published.ports = ANY.into_iter().filter(wanted).map(open).collect();
        }
        None => published.ports.drain(..).for_each(|port| router.engine.remove_fou_port(port)),
        Some(_) => {}
    }
}

/// Takes the tunnel of a link from the packet path.
pub(crate) fn unpublish_tunnel(router: &mut Router, index: u32) {
    let Some(published) = router.tunnels.by_link.remove(&index) else { return };
    router.tunnels.from_any.remove(&index);
    let remote = published.compiled.remote;
    router.tunnels.remotes.remove(&(Family::of(remote), bits(remote), index));
    router.tunnels.locals.remove(&(
        Family::of(published.compiled.local),
        bits(published.compiled.local),
        index,
    ));
    if networks::forget_all(router, index) {
        router.stations.remove(&index);
    }
    published.ports.into_iter().for_each(|port| router.engine.remove_fou_port(port));
    publish_keys(router);
    router.engine.remove_tunnel(published.id);
    if let Some(held) = published.next_hop {
        release_next_hop(router, held);
    }
    groups::follow(router, index);
}

/// Publishes the tunnels that are for a remote address inside a prefix: a route has changed.
pub(crate) fn publish_tunnels_inside(router: &mut Router, family: Family, prefix: Prefix) {
    let range = (family, prefix.first(), 0)..=(family, prefix.last(), u32::MAX);
    let links: Vec<u32> = router.tunnels.remotes.range(range).map(|(.., link)| *link).collect();
    links.into_iter().for_each(|link| publish_tunnel(router, link));
}

/// Publishes the tunnels that have no address of their own: addresses have changed.
pub(crate) fn publish_tunnels_from_any(router: &mut Router) {
    let links: Vec<u32> = router.tunnels.from_any.iter().copied().collect();
    links.into_iter().for_each(|link| publish_tunnel(router, link));
}

/// Publishes the tunnels that send from this address: the router has it now, or not any more.
pub(crate) fn publish_tunnels_from(router: &mut Router, address: IpAddr) {
    let (family, bits) = (Family::of(address), bits(address));
    let range = (family, bits, 0)..=(family, bits, u32::MAX);
    let links: Vec<u32> = router.tunnels.locals.range(range).map(|(.., link)| *link).collect();
    links.into_iter().for_each(|link| publish_tunnel(router, link));
}

/// Publishes the tunnels of which packets leave by a link, and what routes make of these: the link has changed.
pub(crate) fn publish_tunnels_by(router: &mut Router, link: u32) {
    let bound = |index: &&u32| {
        let tunnel = router.links.get(**index).and_then(|device| device.tunnel.as_deref());
        tunnel.is_some_and(|tunnel| tunnel.parameters.link == link)
    };
    let links: Vec<u32> = router.tunnels.by_link.keys().filter(bound).copied().collect();
    for index in links {
        publish_tunnel(router, index);
        recompile_routes_by(router, index);
    }
}

/// Publishes all tunnels: rules or VRFs have changed.
pub(crate) fn publish_tunnels(router: &mut Router) {
    let links: Vec<u32> = router.tunnels.by_link.keys().copied().collect();
    links.into_iter().for_each(|link| publish_tunnel(router, link));
}
