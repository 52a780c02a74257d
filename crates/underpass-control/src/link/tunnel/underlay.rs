//! Where the outer packets of a tunnel go, and what follows from it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use libc::IFF_POINTOPOINT;
use underpass_netlink::tunnel::{self, IP6_CAP_XMIT, Kind};

use super::{Automatic, LEAST, LEAST6, MOST, STABLE_PRIVACY, Tunnel, isatap};
use crate::Router;
use crate::address::link_local;
use crate::link::Link;
use crate::route::Flow;
use crate::route::lookup::{l3mdev_table, way_out};

/// The IPv6 addresses that a tunnel gets when it comes up, in the order in which it gets them. Linux:
/// `addrconf_dev_config`, `add_v4_addrs`.
pub(crate) fn automatic_addresses(router: &Router, link: &Link, tunnel: &Tunnel) -> Vec<Automatic> {
    let parameters = &tunnel.parameters;
    let alone = |address: Ipv6Addr, flags: u32| {
        let scope = libc::RT_SCOPE_LINK;
        vec![Automatic { address, prefix_len: 64, scope, flags, kernel: true }]
    };
    if link.takes_ipv4_addresses(tunnel) {
        return addresses_of_ipv4(router, link, parameters);
    }
    if !link.eui64 {
        return Vec::new();
    }
    match (parameters.kind, parameters.local) {
        (Kind::Gre | Kind::BareUdp, _) if parameters.external => alone(link_local(link.mac), STABLE_PRIVACY),
        (Kind::GeneveIp, _) => alone(link_local(link.mac), STABLE_PRIVACY),
        (Kind::Gre | Kind::Ipip, IpAddr::V4(local)) if local.is_unspecified() => Vec::new(),
        (Kind::Gre | Kind::Ipip, IpAddr::V4(local)) => alone(isatap(local), 0),
        _ => alone(link_local(link.mac), 0),
    }
}

fn addresses_of_ipv4(router: &Router, link: &Link, parameters: &tunnel::Tunnel) -> Vec<Automatic> {
    let to_point = link.flags & IFF_POINTOPOINT as u32 != 0;
    let compatible = !to_point && parameters.kind == Kind::Sit;
    if !compatible && !link.eui64 {
        return Vec::new();
    }
    let made = |address: Ipv4Addr, host: bool| {
        let low = u128::from(address.to_bits());
        let (address, prefix_len) = match compatible {
            true => (Ipv6Addr::from_bits(low), 96),
            false => (Ipv6Addr::from_bits(0xfe80 << 112 | low), 64),
        };
        let scope = match (compatible, host) {
            (_, true) => libc::RT_SCOPE_HOST,
            (true, false) => libc::RT_SCOPE_UNIVERSE,
            (false, false) => libc::RT_SCOPE_LINK,
        };
        Automatic { address, prefix_len, scope, flags: 0, kernel: false }
    };
    if let IpAddr::V4(local) = parameters.local
        && !local.is_unspecified()
    {
        return vec![made(local, false)];
    }
    let mut all = Vec::new();
    for other in router.links.iter().filter(|other| other.up()) {
        for own in router.addresses.v4(other.index) {
            let host = own.scope >= libc::RT_SCOPE_HOST;
            if own.scope != libc::RT_SCOPE_LINK
                && !(host && to_point)
                && let IpAddr::V4(local) = own.local
            {
                all.push(made(local, host));
            }
        }
    }
    all
}

/// By which link outer packets have to leave; 0: by any. Of a link in a VRF that is the VRF's affair, but for sit.
/// Linux: `ip_tunnel_init_flow`.
fn outer_oif(router: &Router, parameters: &tunnel::Tunnel) -> u32 {
    let link = parameters.link;
    let within = match parameters.kind {
        Kind::Ipip | Kind::Gre | Kind::GreTap | Kind::Vxlan => l3mdev_table(router, link).is_some(),
        _ => router.links.get(link).is_some_and(|link| link.vrf_table().is_some()),
    };
    if within { 0 } else { link }
}

/// The flow of outer packets of a tunnel. Over IPv6 a link that they are to leave by is only preferred, unless the remote
/// address is one of that link. Linux: `ip6_route_output_flags_noref`.
pub(super) fn outer_flow(router: &Router, parameters: &tunnel::Tunnel) -> Flow {
    let remote = parameters.remote;
    let oif = outer_oif(router, parameters);
    let near = |address: Ipv6Addr| address.is_unicast_link_local() || address.is_multicast();
    let prefers = matches!(remote, IpAddr::V6(remote) if !near(remote) && !parameters.local.is_unspecified());
    Flow {
        oif,
        prefers: prefers && oif != 0,
        l3mdev: l3mdev_table(router, parameters.link),
        ..Flow::to(remote)
    }
}

/// The link by which outer packets leave, as far as it is known.
pub(super) fn underlay_link<'a>(router: &'a Router, parameters: &tunnel::Tunnel) -> Option<&'a Link> {
    let gre6 = matches!(parameters.kind, Kind::Ip6Gre | Kind::Ip6GreTap);
    let bound = || Some(parameters.link).filter(|&index| index != 0 && !gre6);
    let named = |address: IpAddr| (!address.is_unspecified()).then_some(address);
    let source = named(parameters.local);
    let index = match named(parameters.remote) {
        None => bound(),
        Some(remote) if remote.is_multicast() => {
            let of_source = || router.addresses.link_of(source?);
            bound().or_else(of_source).filter(|_| remote.is_ipv4())
        }
        Some(_) => underlay_to(router, source, parameters).or_else(bound),
    };
    router.links.get(index?)
}

/// The link by which what is for the group that is a tunnel's other end leaves, if one is: no route is asked for. Linux:
/// `ip_route_output_key_hash_rcu`.
pub(super) fn group_link(router: &Router, parameters: &tunnel::Tunnel) -> Option<u32> {
    match parameters.kind {
        _ if !parameters.remote.is_multicast() => None,
        Kind::Vxlan => Some(parameters.link),
        _ => underlay_link(router, parameters).map(|link| link.index),
    }
}

/// The index of the link of the route to the other end.
fn underlay_to(router: &Router, source: Option<IpAddr>, parameters: &tunnel::Tunnel) -> Option<u32> {
    let flow = Flow { source, mark: parameters.mark, ..outer_flow(router, parameters) };
    let own_source = source.is_none_or(|source| source.is_ipv6() || router.addresses.is_local(source));
    way_out(router, &flow).filter(|_| own_source)
}

/// The MTU that a tunnel has unless it is given another. Linux: `ip_tunnel_bind_dev`, `ipip6_tunnel_bind_dev`,
/// `ip6_tnl_link_config`, `ip6gre_tnl_link_config`.
pub(super) fn tunnel_mtu(router: &Router, tunnel: &Tunnel, now: u32) -> u32 {
    let parameters = &tunnel.parameters;
    let headers = tunnel.overhead() + tunnel.option();
    let least = match parameters.kind {
        Kind::Ipip | Kind::Gre | Kind::GreTap => LEAST,
        _ => LEAST6,
    };
    if parameters.kind.ipv6() && tunnel.capabilities() & IP6_CAP_XMIT == 0 {
        return now;
    }
    match (underlay_link(router, parameters).map(|link| link.mtu), parameters.kind) {
        (Some(mtu), kind) if kind == Kind::Sit || kind.ipv6() => mtu.saturating_sub(headers).max(least),
        (Some(mtu), _) => mtu.min(MOST).saturating_sub(headers).max(least),
        (None, Kind::Ipip | Kind::Gre | Kind::GreTap) => tunnel.default_mtu().max(least),
        (None, _) => now,
    }
}

/// The tunnel that a request to make or change one would collide with.
pub(super) fn same_tunnel<'a>(router: &'a Router, parameters: &tunnel::Tunnel) -> Option<&'a Link> {
    let ends = router.tunnels.to(parameters.remote).filter_map(|link| router.links.get(link));
    // The newest: Linux adds devices at the head of a list.
    ends.rev().find(|link| link.tunnel.as_ref().is_some_and(|tunnel| tunnel.same(parameters)))
}
