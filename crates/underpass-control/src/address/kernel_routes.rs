//! The routes that an address brings and takes away. Linux: `fib_add_ifaddr`, `addrconf_prefix_route`,
//! `addrconf_join_anycast`, `addrconf_add_mroute`.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use libc::{
    RT_SCOPE_HOST, RT_SCOPE_LINK, RT_SCOPE_UNIVERSE, RT_TABLE_LOCAL, RT_TABLE_MAIN, RTN_ANYCAST,
    RTN_BROADCAST, RTN_LOCAL, RTN_MULTICAST, RTN_UNICAST,
};
use netlink_packet_core::NLM_F_CREATE;

use super::publish::waits_for_carrier;
use super::{Address, KernelRoute};
use crate::Router;
use crate::events::Cause;
use crate::link::encode::in_own_vrf;
use crate::link::{Link, LinkKind};
use crate::route::recompile::update_sources;
use crate::route::update::{add_info, remove_info};
use crate::route::{Family, Hop, Info, NextHops, Origin, Place, Prefix, bits};

/// `IP6_RT_PRIO_ADDRCONF`.
const PREFIX_METRIC: u32 = 256;

/// The place of a route of protocol `kernel`, and all else of it.
fn kernel_route(route: &KernelRoute) -> (Place, Info) {
    let address = route.destination.network();
    let prefix = Prefix::new(bits(address), route.destination.prefix_len());
    let hop = Hop { oif: route.link, gateway: None, onlink: false, dead: false, weight: 1, tunnel: None };
    let info = Info {
        kind: route.kind,
        protocol: libc::RTPROT_KERNEL,
        scope: route.scope,
        metric: route.metric,
        preference: 0,
        reject: false,
        source: route.source,
        metrics: None,
        ways: NextHops::Hops(Box::new([hop])),
        origin: Origin::Own,
        tos: 0,
        unknown: 0,
    };
    ((Family::of(address), route.table, prefix), info)
}

/// Makes the kernel routes of a link those that its addresses and its state ask for.
pub(crate) fn refresh_routes(router: &mut Router, cause: Cause, index: u32) {
    let wanted = match router.links.get(index) {
        // The kernel tells of those of its links, unless it does not know of their VRF.
        Some(_) if router.live.is_some() && !in_own_vrf(router, index) => BTreeSet::new(),
        Some(link) => wanted_routes(router, link),
        None => BTreeSet::new(),
    };
    let have = std::mem::take(&mut router.addresses.on(index).routes);
    for route in have.difference(&wanted) {
        remove_kernel_route(router, cause, route);
    }
    for &route in wanted.difference(&have) {
        add_kernel_route(router, cause, route);
    }
    router.addresses.on(index).routes = wanted;
}

fn wanted_routes(router: &Router, link: &Link) -> BTreeSet<KernelRoute> {
    routes_in(router, link, router.links.vrf_of(link.index).and_then(Link::vrf_table))
}

fn routes_in(router: &Router, link: &Link, vrf: Option<u32>) -> BTreeSet<KernelRoute> {
    let mut routes = BTreeSet::new();
    let main = vrf.unwrap_or(u32::from(RT_TABLE_MAIN));
    let local = vrf.unwrap_or(u32::from(RT_TABLE_LOCAL));
    let addresses = router.addresses.v4(link.index);
    for address in addresses {
        routes4(link, addresses, address, main, local, &mut routes);
    }
    for address in router.addresses.v6(link.index) {
        routes6(link, address, main, local, &mut routes);
    }
    let multicast = !matches!(link.kind, LinkKind::Loopback | LinkKind::Vrf { .. });
    // An address of its own makes the route, too, whatever the device. Linux: `addrconf_add_dev`.
    let given = || router.addresses.v6(link.index).iter().any(is_given);
    let own = link.multicast6() && !waits_for_carrier(router, link);
    if multicast && (own || given()) && link.up() && link.ipv6() {
        let all = Ipv6Net::new_assert(Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0), 8);
        routes.insert(route6(link, RTN_MULTICAST, all, local, PREFIX_METRIC));
    }
    routes
}

/// The connected routes that a link outside all VRFs has in the main table.
pub(crate) fn connected_of(router: &Router, index: u32) -> Vec<(Place, Info)> {
    let Some(link) = router.links.get(index) else { return Vec::new() };
    let routes = routes_in(router, link, None);
    routes.iter().filter(|route| route.table == u32::from(RT_TABLE_MAIN)).map(kernel_route).collect()
}

/// Adds a route of protocol `kernel`.
pub(crate) fn add_kernel_route(router: &mut Router, cause: Cause, route: KernelRoute) {
    let (place, info) = kernel_route(&route);
    let own6 = place.0 == Family::V6 && info.kind == libc::RTN_LOCAL;
    add_info(router, cause, NLM_F_CREATE, place, info);
    if own6 {
        update_sources(router);
    }
}

/// Removes a route of protocol `kernel`, if it is still there.
pub(crate) fn remove_kernel_route(router: &mut Router, cause: Cause, route: &KernelRoute) {
    let (place, info) = kernel_route(route);
    let own6 = place.0 == Family::V6 && info.kind == libc::RTN_LOCAL;
    remove_info(router, cause, place, &info);
    if own6 {
        update_sources(router);
    }
}

/// Whether somebody has given an IPv6 address to its link: it is neither the kernel's nor made of an IPv4 address.
fn is_given(address: &Address) -> bool {
    matches!(address.local, IpAddr::V6(own) if own.to_bits() >> 32 != 0) && address.protocol == 0
}

fn routes4(
    link: &Link,
    all: &[Address],
    address: &Address,
    main: u32,
    local: u32,
    routes: &mut BTreeSet<KernelRoute>,
) {
    let (IpAddr::V4(own), Some(IpNet::V4(prefix))) = (address.local, address.prefix()) else { return };
    let primary = if address.secondary() {
        all.iter().find(|other| !other.secondary() && other.prefix() == address.prefix()).unwrap_or(address)
    } else {
        address
    };
    let route = |kind: u8, destination: Ipv4Net, table: u32, metric: u32| KernelRoute {
        kind,
        destination: destination.into(),
        table,
        scope: if kind == RTN_LOCAL { RT_SCOPE_HOST } else { RT_SCOPE_LINK },
        metric,
        source: Some(primary.local),
        link: link.index,
    };
    routes.insert(route(RTN_LOCAL, own.into(), local, 0));
    // Nothing can be sent from a multicast address: Linux refuses routes that would.
    if own.is_multicast() {
        return;
    }
    let loopback = link.kind == LinkKind::Loopback;
    if loopback && !link.up() && prefix.prefix_len() < 32 && !address.secondary() {
        // Routes to the loopback link of local scope outlive its going down.
        routes.insert(route(RTN_LOCAL, prefix, local, address.metric));
    }
    if !link.up() {
        return;
    }
    if let Some(broadcast) = address.broadcast.filter(|&broadcast| broadcast != Ipv4Addr::BROADCAST) {
        routes.insert(route(RTN_BROADCAST, broadcast.into(), local, 0));
    }
    let alone = prefix.prefix_len() == 32 && prefix.addr() == own;
    if prefix.addr().octets()[0] == 0 || address.secondary() || alone {
        return;
    }
    if address.has_prefix_route() {
        let (kind, table) = if loopback { (RTN_LOCAL, local) } else { (RTN_UNICAST, main) };
        routes.insert(route(kind, prefix, table, address.metric));
    }
    if prefix.prefix_len() < 31 {
        routes.insert(route(RTN_BROADCAST, prefix.broadcast().into(), local, 0));
    }
}

fn route6(link: &Link, kind: u8, destination: Ipv6Net, table: u32, metric: u32) -> KernelRoute {
    let scope = RT_SCOPE_UNIVERSE;
    KernelRoute {
        kind,
        destination: destination.into(),
        table,
        scope,
        metric,
        source: None,
        link: link.index,
    }
}

fn routes6(link: &Link, address: &Address, main: u32, local: u32, routes: &mut BTreeSet<KernelRoute>) {
    let (IpAddr::V6(own), Ok(prefix)) = (address.local, IpNet::new(address.local, address.prefix_len)) else {
        return;
    };
    let IpNet::V6(prefix) = prefix.trunc() else { return };
    routes.insert(route6(link, RTN_LOCAL, own.into(), local, 0));
    if let Some(anycast) = address.anycast() {
        routes.insert(route6(link, RTN_ANYCAST, anycast.into(), local, 0));
    }
    if link.up() && address.has_prefix_route() && !own.is_loopback() {
        let metric = if address.metric == 0 { PREFIX_METRIC } else { address.metric };
        routes.insert(route6(link, RTN_UNICAST, prefix, main, metric));
        if let Some(IpAddr::V6(peer)) = address.peer {
            routes.insert(route6(link, RTN_UNICAST, peer.into(), main, metric));
        }
    }
}
