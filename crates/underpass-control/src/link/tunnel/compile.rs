//! Tunnels, compiled for the packet path.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use underpass_engine::tables::{
    DEFAULT_TTL, FouPayload, FouPort, GreFields, LinkId, LookupId, NextHopId, Sixrd, SourcePort, TunnelBound,
    TunnelKind, TunnelMode, TunnelRole, TunnelTos, TunnelUdp, Via,
};
use underpass_netlink::fou;
use underpass_netlink::tunnel::geneve::DontFragment;
use underpass_netlink::tunnel::{
    self, BareUdp, ENCAP_CSUM, ENCAP_CSUM6, ENCAP_REMCSUM, Encap, GRE_CSUM, GRE_KEY, GRE_SEQ,
    IP6_ALLOW_LOCAL_REMOTE, IP6_COPY_DSCP, IP6_IGNORE_ENCAP_LIMIT, IP6_INHERIT_FLOWLABEL, IP6_INHERIT_TCLASS,
    Kind, bareudp,
};

use super::underlay::{group_link, outer_flow};
use super::{Tunnel, overlay};
use crate::route::lookup::{NoWay, l3mdev_table, only_way, source_for};
use crate::route::next_hop::{hold_next_hop, via_now};
use crate::route::publish::{lookup_id, own_lookup};
use crate::route::scope::link_id;
use crate::route::{Family, Hop, NextHopKey, RouteLimits, Scope};
use crate::{Link, Router};

/// The kind; `over6`: the outer header is IPv6.
const fn kind(kind: Kind, over6: bool) -> TunnelKind {
    match kind {
        Kind::Ipip => TunnelKind::Ipip,
        Kind::Sit => TunnelKind::Sit,
        Kind::Gre => TunnelKind::Gre,
        Kind::GreTap => TunnelKind::Gretap,
        Kind::Ip6Tnl => TunnelKind::Ip6tnl,
        Kind::Ip6Gre => TunnelKind::Ip6gre,
        Kind::Ip6GreTap => TunnelKind::Ip6gretap,
        Kind::BareUdp if over6 => TunnelKind::Bareudp6,
        Kind::BareUdp => TunnelKind::Bareudp,
        Kind::Vxlan if over6 => TunnelKind::Vxlan6,
        Kind::Vxlan => TunnelKind::Vxlan,
        Kind::Geneve if over6 => TunnelKind::Geneve6,
        Kind::Geneve => TunnelKind::Geneve,
        Kind::GeneveIp if over6 => TunnelKind::GeneveIp6,
        Kind::GeneveIp => TunnelKind::GeneveIp,
        Kind::Srv6L2 => TunnelKind::Srv6L2,
    }
}

const fn fields(flags: u16, key: u32) -> GreFields {
    GreFields {
        key: if flags & GRE_KEY != 0 { Some(key) } else { None },
        checksum: flags & GRE_CSUM != 0,
        sequence: flags & GRE_SEQ != 0,
    }
}

const fn mode(parameters: &tunnel::Tunnel) -> TunnelMode {
    if let Some(BareUdp { ethertype, multiproto, .. }) = parameters.bare {
        return match (ethertype, multiproto) {
            (bareudp::IPV4, true) => TunnelMode::Ip,
            (bareudp::IPV4, false) => TunnelMode::Ip4,
            (bareudp::IPV6, _) => TunnelMode::Ip6,
            (bareudp::MPLS, _) => TunnelMode::Mpls,
            _ => TunnelMode::Other,
        };
    }
    match parameters.protocol {
        _ if parameters.kind.gre() => TunnelMode::Any,
        4 => TunnelMode::Ip4,
        41 => TunnelMode::Ip6,
        137 => TunnelMode::Mpls,
        _ => TunnelMode::Any,
    }
}

fn tos(parameters: &tunnel::Tunnel, given: bool) -> TunnelTos {
    if parameters.bare.is_some() || given && parameters.kind.over_udp() {
        TunnelTos::Fixed(parameters.tos)
    } else if parameters.kind.ipv6() {
        let class = (parameters.flow_info >> 20) as u8;
        match parameters.flags & IP6_INHERIT_TCLASS {
            0 => TunnelTos::Fixed(class),
            _ => TunnelTos::Inherit(class),
        }
    } else if (parameters.vxlan.is_some() || parameters.geneve.is_some()) && parameters.tos != 1 {
        // Linux: `vxlan_xmit_one`, `geneve_get_dsfield`, for which no other TOS says that it is that of the packet.
        TunnelTos::Fixed(parameters.tos)
    } else if parameters.tos & 1 != 0 {
        TunnelTos::Inherit(parameters.tos & !1)
    } else {
        TunnelTos::Fixed(parameters.tos)
    }
}

/// What makes outer packets UDP datagrams.
pub(crate) fn udp(encap: &Encap, ipv6: bool) -> Option<TunnelUdp> {
    let has = |flag: u16| encap.flags & flag != 0;
    encap.udp().map(|kind| TunnelUdp {
        gue: kind == fou::Kind::Gue,
        source_port: match encap.source_port {
            0 => SourcePort::LOCAL,
            port => SourcePort::Fixed(port),
        },
        destination_port: encap.destination_port,
        checksum: has(if ipv6 { ENCAP_CSUM6 } else { ENCAP_CSUM }),
        remote_checksum: kind == fou::Kind::Gue && has(ENCAP_REMCSUM),
    })
}

/// The same of a `bareudp`. Linux: `udp_flow_src_port`.
fn bare_udp(bare: &BareUdp, parameters: &tunnel::Tunnel) -> TunnelUdp {
    TunnelUdp {
        gue: false,
        source_port: match bare.source_port_min {
            u16::MAX => SourcePort::LOCAL,
            first => SourcePort::Flow { first, last: u16::MAX },
        },
        destination_port: bare.port,
        checksum: parameters.output_flags & GRE_CSUM != 0,
        remote_checksum: false,
    }
}

fn six_rd(tunnel: &Tunnel) -> Option<Sixrd> {
    let parameters = &tunnel.parameters;
    (parameters.kind == Kind::Sit && parameters.remote.is_unspecified()).then_some(Sixrd {
        prefix: tunnel.six_rd.prefix,
        len: tunnel.six_rd.prefix_len as u8,
        relay: tunnel.six_rd.relay_prefix,
        relay_len: tunnel.six_rd.relay_prefix_len as u8,
    })
}

/// Where packets come in for a tunnel or a port that is bound to a link.
fn bound_to(router: &mut Router, link: u32) -> TunnelBound {
    match router.links.get(link).and_then(Link::vrf_table) {
        vrf @ Some(_) => TunnelBound::Instance(lookup_id(router, Scope::Rules { link: 0, vrf })),
        // A link that is no more names nothing: nothing comes in by it.
        None => TunnelBound::Link(link_id(router, link)),
    }
}

/// In which tables outer packets are looked up.
pub(in crate::link::tunnel) fn underlay_lookup(router: &mut Router, link: u32) -> LookupId {
    let vrf = l3mdev_table(router, link);
    own_lookup(router, vrf)
}

/// Tables in which there is nothing.
const NO_LOOKUP: LookupId = LookupId(u32::MAX);

/// Where packets go from an IPv4 address that is not the router's. Linux: `ip_route_output_key_hash_rcu`, which finds no way.
fn nowhere(router: &Router, parameters: &tunnel::Tunnel) -> Option<Via> {
    let foreign = parameters.local.is_ipv4()
        && !parameters.local.is_unspecified()
        && !router.addresses.is_local(parameters.local);
    foreign.then_some(Via { address: parameters.remote, lookup: NO_LOOKUP, resolved: None })
}

/// Where outer packets go, and the neighbour that is held for it.
pub(super) fn underlay(router: &mut Router, parameters: &tunnel::Tunnel) -> (Via, Option<NextHopKey>) {
    let address = parameters.remote;
    if let Some(nowhere) = nowhere(router, parameters) {
        return (nowhere, None);
    }
    let mut flow = outer_flow(router, parameters);
    if let Some(link) = group_link(router, parameters) {
        flow.oif = link;
    }
    let many = address.is_unspecified();
    // Of what has no other end, these kinds alone ask the packet for one.
    let asks = !parameters.external && matches!(parameters.kind, Kind::Ipip | Kind::Sit | Kind::Ip6Tnl);
    if flow.oif == 0 || many && !asks {
        let lookup = underlay_lookup(router, parameters.link);
        return (via_now(router, address, lookup), None);
    }
    // Of what is above links, VLAN devices and bridges, tables say where a single end is; of a group there is nothing to say.
    let is_port = |router: &Router, link: u32| {
        let sink = |link: &Link| link.sink.filter(|_| address.is_multicast());
        router.links.get(link).is_some_and(|link| link.port().or(sink(link)).is_some())
    };
    // Groups are on the link. So is what IPv4 has no route to by it, if it is in no VRF. Linux:
    // `ip_route_output_key_hash_rcu`.
    let on_link = |router: &Router| {
        let up = router.links.get(flow.oif).is_some_and(Link::up);
        up && address.is_ipv4() && flow.l3mdev.is_none()
    };
    let key = match only_way(router, &flow) {
        _ if many => None,
        _ if address.is_multicast() => Some((flow.oif, address, RouteLimits::default())),
        Ok((hop, mtu)) if hop.tunnel.is_none() => Some((hop.oif, hop.gateway.unwrap_or(address), mtu)),
        Err(NoWay::None) if on_link(router) => Some((flow.oif, address, RouteLimits::default())),
        _ => None,
    };
    if let Some(key) = key.filter(|key| is_port(router, key.0)) {
        let lookup = underlay_lookup(router, parameters.link);
        let resolved: Option<NextHopId> = Some(hold_next_hop(router, key));
        return (Via { address, lookup, resolved }, Some(key));
    }
    let lookup = lookup_id(router, Scope::Out { link: flow.oif, family: Family::of(address) });
    (via_now(router, address, lookup), None)
}

/// Whether a tunnel's neighbour is its remote address, to which no route leads by the link that it is bound to.
fn is_off_route(router: &Router, parameters: &tunnel::Tunnel, via: Via) -> bool {
    let on_link = parameters.remote.is_ipv4() && via.resolved.is_some();
    on_link && matches!(only_way(router, &outer_flow(router, parameters)), Err(NoWay::None))
}

/// Whether a tunnel over IPv6 may send from its local address: the router has it, in the VRF of the link that the
/// tunnel is bound to, or in none. Linux: `ip6_tnl_xmit_ctl`.
fn may_send(router: &Router, parameters: &tunnel::Tunnel) -> bool {
    let vrf = |link: u32| router.links.vrf_of(link).map(|vrf| vrf.index);
    let (bound, within) = (parameters.link, vrf(parameters.link));
    router.addresses.iter().any(|own| {
        let on_link = own.scope == libc::RT_SCOPE_UNIVERSE || bound == 0 || own.link == bound;
        own.local == parameters.local && on_link && vrf(own.link) == within
    })
}

/// The source of outer packets to an address where the tunnel has none; over IPv6 its local address, if it may send
/// from there. Over IPv6 Linux chooses one only where a route says where a packet goes.
fn outer_source(router: &Router, parameters: &tunnel::Tunnel, given: bool) -> IpAddr {
    let over6 = parameters.remote.is_ipv6();
    let any = match over6 {
        true => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        false => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
    };
    let chosen = given || !over6;
    // Linux: `__gre6_xmit`, which looks at no source that it is given.
    let ignored = given && parameters.kind.gre();
    if over6 && !ignored && !parameters.local.is_unspecified() {
        return if given || may_send(router, parameters) { parameters.local } else { any };
    }
    if !chosen || !(over6 || parameters.local.is_unspecified()) || parameters.remote.is_unspecified() {
        return any;
    }
    let mut flow = outer_flow(router, parameters);
    flow.oif = group_link(router, parameters).unwrap_or(flow.oif);
    source_for(router, &flow).unwrap_or(any)
}

/// Where a way's gateway is the other end of a device that has none: the tunnel to it. Linux: `ip_tunnel_xmit`,
/// `ipip6_tunnel_xmit`, `ip6_tnl_xmit`.
pub(crate) fn gateway_tunnel(router: &Router, hop: &Hop) -> Option<(tunnel::Tunnel, Encap)> {
    let device = router.links.get(hop.oif)?.tunnel.as_deref()?;
    let parameters = device.parameters;
    if parameters.external || !parameters.remote.is_unspecified() {
        return None;
    }
    let remote = match (parameters.kind, hop.gateway?) {
        (Kind::Ipip | Kind::Sit | Kind::GreTap, gateway @ IpAddr::V4(_))
        | (Kind::Ip6Tnl, gateway @ IpAddr::V6(_)) => gateway,
        // ::a.b.c.d, RFC 4291 section 2.5.5.1.
        (Kind::Sit | Kind::GreTap, IpAddr::V6(gateway)) if gateway.to_bits() >> 32 == 0 => {
            Ipv4Addr::from_bits(gateway.to_bits() as u32).into()
        }
        _ => return None,
    };
    Some((tunnel::Tunnel { remote, ..parameters }, device.encap))
}

/// A tunnel that is a route's alone, by the device of a link, and the neighbour that is held for it.
pub(crate) fn compile_route_tunnel(
    router: &mut Router,
    link: u32,
    (parameters, encap): (tunnel::Tunnel, Encap),
    given: Option<u32>,
) -> Option<(underpass_engine::tables::Tunnel, Option<NextHopKey>)> {
    let id = router.links.get(link)?.id;
    let (via, held) = match given {
        // Linux: `ip_md_tunnel_xmit`, to which the link that the device is bound to is nothing.
        Some(_) => {
            let lookup = underlay_lookup(router, parameters.link);
            let via =
                nowhere(router, &parameters).unwrap_or_else(|| via_now(router, parameters.remote, lookup));
            (via, None)
        }
        None => underlay(router, &parameters),
    };
    let tunnel = Tunnel {
        parameters,
        encap,
        six_rd: tunnel::SixRd::default(),
        max_mtu: 0,
        fallback: false,
        link_layer: None,
    };
    let compiled = compile_tunnel(router, &tunnel, id, via, given.is_some());
    Some((underpass_engine::tables::Tunnel { role: TunnelRole::Route { given }, ..compiled }, held))
}

pub(in crate::link::tunnel) fn compile_tunnel(
    router: &mut Router,
    tunnel: &Tunnel,
    link: LinkId,
    via: Via,
    given: bool,
) -> underpass_engine::tables::Tunnel {
    let parameters = &tunnel.parameters;
    let flag = |flag: u32| parameters.flags & flag != 0;
    let bound = parameters.link != 0 && parameters.vxlan.is_none();
    // Of a kind that says it by a word of its own: whether the TTL is that of the packet.
    let inherits_ttl = match (&parameters.vxlan, &parameters.geneve) {
        (Some(vxlan), _) => Some(vxlan.ttl_inherit && parameters.ttl == 0),
        (_, Some(geneve)) => Some(geneve.ttl_inherit),
        (None, None) => (parameters.kind == Kind::Srv6L2).then_some(false),
    };
    underpass_engine::tables::Tunnel {
        link,
        kind: kind(parameters.kind, parameters.remote.is_ipv6()),
        mode: mode(parameters),
        role: match (parameters.external, tunnel.fallback) {
            (true, _) => TunnelRole::External,
            (_, true) => TunnelRole::Fallback,
            _ => TunnelRole::Device,
        },
        local: parameters.local,
        remote: parameters.remote,
        bound: bound.then(|| bound_to(router, parameters.link)),
        receive: fields(parameters.input_flags, parameters.input_key),
        transmit: fields(parameters.output_flags, parameters.output_key),
        ttl: match (parameters.ttl, inherits_ttl) {
            (_, Some(true)) => None,
            // Linux: `geneve_xmit_skb`, for which 0 is one like any other where it is given.
            (ttl, Some(false)) if given && parameters.geneve.is_some() => Some(ttl),
            (0, Some(false)) => Some(DEFAULT_TTL),
            (ttl, _) => (ttl != 0 || parameters.bare.is_some()).then_some(ttl),
        },
        tos: tos(parameters, given),
        flow_label: match (&parameters.vxlan, &parameters.geneve) {
            (Some(vxlan), _) => Some(vxlan.label),
            (_, Some(geneve)) => Some(geneve.label),
            (None, None) => (!flag(IP6_INHERIT_FLOWLABEL)).then_some(parameters.flow_info & 0xf_ffff),
        },
        dont_fragment: match (&parameters.vxlan, &parameters.geneve) {
            (Some(vxlan), _) => vxlan.dont_fragment,
            (_, Some(geneve)) => geneve.dont_fragment == DontFragment::Set,
            (None, None) => parameters.pmtudisc,
        },
        ignore_df: match &parameters.geneve {
            Some(geneve) => overlay::ignores_df(parameters, geneve),
            None => parameters.ignore_df || parameters.bare.is_some() || parameters.vxlan.is_some(),
        },
        encapsulation_limit: (parameters.kind.ipv6() && !flag(IP6_IGNORE_ENCAP_LIMIT))
            .then_some(parameters.encap_limit),
        copies_dscp: flag(IP6_COPY_DSCP),
        allows_local_remote: flag(IP6_ALLOW_LOCAL_REMOTE),
        udp: match (&parameters.bare, &parameters.vxlan, &parameters.geneve) {
            (Some(bare), ..) => Some(bare_udp(bare, parameters)),
            (_, Some(vxlan), _) => Some(overlay::vxlan_udp(vxlan, parameters.remote.is_ipv6())),
            (.., Some(geneve)) => Some(overlay::geneve_udp(geneve)),
            (None, None, None) => udp(&tunnel.encap, parameters.kind.ipv6()),
        },
        vxlan: overlay::vxlan(parameters),
        behind: None,
        geneve: overlay::geneve(parameters),
        sixrd: six_rd(tunnel),
        via,
        underlay: underlay_lookup(router, parameters.link),
        off_route: !given && is_off_route(router, parameters, via),
        by_any_link: parameters.kind == Kind::Sit && l3mdev_table(router, parameters.link).is_some(),
        // That of a network is chosen as if a route had given its addresses.
        source: outer_source(router, parameters, given || inherits_ttl.is_some()),
    }
}

/// A port of foo-over-UDP as the packet path has it. `None`: its kind is none.
pub(crate) fn compile_fou(router: &mut Router, config: &fou::Config) -> Option<FouPort> {
    let (local, peer) = match config.socket.addresses {
        fou::Addresses::V4 { local, peer } => (IpAddr::V4(local), IpAddr::V4(peer)),
        fou::Addresses::V6 { local, peer } => (IpAddr::V6(local), IpAddr::V6(peer)),
    };
    let bound = u32::try_from(config.socket.ifindex).ok().filter(|&index| index != 0);
    Some(FouPort {
        port: config.socket.port,
        ipv6: local.is_ipv6(),
        local,
        peer: (!peer.is_unspecified()).then_some((peer, config.socket.peer_port)),
        bound: bound.map(|link| bound_to(router, link)),
        payload: match config.kind().ok()? {
            fou::Kind::Direct => FouPayload::Protocol(config.protocol),
            fou::Kind::Gue => FouPayload::Gue,
        },
    })
}
