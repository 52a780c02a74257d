//! The routes that an address brings and takes away. Linux: `fib_add_ifaddr`, `addrconf_prefix_route`,
//! `addrconf_join_anycast`, `addrconf_add_mroute`.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use libc::{
    RT_SCOPE_HOST, RT_SCOPE_LINK, RT_SCOPE_UNIVERSE, RT_TABLE_LOCAL, RT_TABLE_MAIN, RTN_ANYCAST,
    RTN_BROADCAST, RTN_LOCAL, RTN_MULTICAST, RTN_UNICAST,
};

use super::Address;
use crate::Router;
use crate::events::Cause;
use crate::link::{Link, LinkKind};

/// A route of protocol `kernel`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct KernelRoute {
    /// `RTN_*`.
    pub kind: u8,
    /// Its destination.
    pub destination: IpNet,
    /// In which table.
    pub table: u32,
    /// `RT_SCOPE_*`.
    pub scope: u8,
    /// `metric`.
    pub metric: u32,
    /// `src`.
    pub source: Option<IpAddr>,
    /// The link that it leads to.
    pub link: u32,
}

/// `IP6_RT_PRIO_ADDRCONF`.
const PREFIX_METRIC: u32 = 256;

impl Router {
    /// Makes the kernel routes of a link those that its addresses and its state ask for.
    pub(crate) fn refresh_routes(&mut self, cause: Cause, index: u32) {
        let wanted = match self.links.get(index) {
            // The kernel tells of those of its links, unless it does not know of their VRF.
            Some(_) if self.live.is_some() && !self.in_own_vrf(index) => BTreeSet::new(),
            Some(link) => self.wanted_routes(link),
            None => BTreeSet::new(),
        };
        let have = std::mem::take(&mut self.addresses.on(index).routes);
        for route in have.difference(&wanted) {
            self.remove_kernel_route(cause, route);
        }
        for &route in wanted.difference(&have) {
            self.add_kernel_route(cause, route);
        }
        self.addresses.on(index).routes = wanted;
    }

    /// The connected routes that a link outside all VRFs has in the main table.
    pub(crate) fn main_routes(&self, index: u32) -> BTreeSet<KernelRoute> {
        let Some(link) = self.links.get(index) else { return BTreeSet::new() };
        let mut routes = self.routes_in(link, None);
        routes.retain(|route| route.table == u32::from(RT_TABLE_MAIN));
        routes
    }

    fn wanted_routes(&self, link: &Link) -> BTreeSet<KernelRoute> {
        self.routes_in(link, self.links.vrf_of(link.index).and_then(Link::vrf_table))
    }

    fn routes_in(&self, link: &Link, vrf: Option<u32>) -> BTreeSet<KernelRoute> {
        let mut routes = BTreeSet::new();
        let main = vrf.unwrap_or(u32::from(RT_TABLE_MAIN));
        let local = vrf.unwrap_or(u32::from(RT_TABLE_LOCAL));
        let addresses = self.addresses.v4(link.index);
        for address in addresses {
            routes4(link, addresses, address, main, local, &mut routes);
        }
        for address in self.addresses.v6(link.index) {
            routes6(link, address, main, local, &mut routes);
        }
        let multicast = !matches!(link.kind, LinkKind::Loopback | LinkKind::Vrf { .. });
        // An address of its own makes the route, too, whatever the device. Linux: `addrconf_add_dev`.
        let given = || self.addresses.v6(link.index).iter().any(is_given);
        if multicast && (link.multicast6() || given()) && link.up() && link.ipv6() {
            let all = Ipv6Net::new_assert(Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0), 8);
            routes.insert(route6(link, RTN_MULTICAST, all, local, PREFIX_METRIC));
        }
        routes
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
    // RFC 4291 section 2.6.1: a router has the subnet-router anycast address.
    if prefix.prefix_len() < 127 && !prefix.addr().is_unspecified() {
        routes.insert(route6(link, RTN_ANYCAST, prefix.addr().into(), local, 0));
    }
    if link.up() && address.has_prefix_route() && !own.is_loopback() {
        let metric = if address.metric == 0 { PREFIX_METRIC } else { address.metric };
        routes.insert(route6(link, RTN_UNICAST, prefix, main, metric));
        if let Some(IpAddr::V6(peer)) = address.peer {
            routes.insert(route6(link, RTN_UNICAST, peer.into(), main, metric));
        }
    }
}
