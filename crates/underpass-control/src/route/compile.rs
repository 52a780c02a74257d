//! Routes as actions of the packet path, and the next hops that they lead to.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use underpass_engine::tables::{
    Action, ActionId, Discard, Endpoint, HeadendMode, IntoVrf, Multipath, Push, TunnelId, TunnelRoute,
};
use underpass_netlink::iptunnel::IpTunnel;
use underpass_netlink::mpls::stack;
use underpass_netlink::{Encap, tunnel};

use super::compiled::{ActionKey, Build, Compiled, Holding, KEYED, Number, RouteLimits, discard_index};
use super::info::{Hop, Info, InfoId, NextHops, Origin, Tunnel};
use super::ioam::{self, ioam_action};
use super::lookup::{blackhole_object, l3mdev_table, type_error, ways_of};
use super::next_hop::{
    acquire_next_hop, is_dummy, is_external, is_vrf, kernel_forwards, lead_into, release_next_hop,
};
use super::policies;
use super::publish::lookup_of_link;
use super::published::Scope;
use super::scope::link_id;
use super::segments::{behaviour, flavours, headend, source_route};
use super::table::{Family, Ids};
use crate::Router;
use crate::link::LOOPBACK;
use crate::link::tunnel::compile::{compile_route_tunnel, gateway_tunnel};

/// The action that discards so.
pub(crate) fn discard_action(router: &mut Router, discard: Discard) -> ActionId {
    let at = discard_index(discard);
    if let Some(Some(id)) = router.routes.compiled.discards.get(at) {
        return *id;
    }
    let id = router.engine.add_action(Action::Discard(discard));
    if let Some(place) = router.routes.compiled.discards.get_mut(at) {
        *place = Some(id);
    }
    id
}

/// The action of routes that are used together.
pub(crate) fn action_of(router: &mut Router, ids: &Ids, scope: Scope) -> ActionId {
    if let ([id], Some((last, of, action))) = (&ids[..], router.routes.compiled.last)
        && (last, of) == (*id, scope)
    {
        return action;
    }
    let key = (ids.clone(), scope, None);
    let action = match router.routes.compiled.compiled(&key) {
        Some((_, action)) => action,
        None => compile_infos(router, key).1,
    };
    if let [id] = ids[..] {
        router.routes.compiled.last = Some((id, scope, action));
    }
    action
}

fn compile_infos(router: &mut Router, key: ActionKey) -> (Number, ActionId) {
    let mut build = Build::default();
    let action = build_action(router, &key, &mut build);
    let forward = if let Action::Forward(next_hop) = &action { Some(*next_hop) } else { None };
    let id = router.engine.add_action(action);
    // A route that changes is another one.
    let source = key.0.first().and_then(|&id| router.routes.infos.get(id)?.source);
    router.engine.set_source(id, source);
    if let Some(next_hop) = forward {
        router.routes.compiled.forwards.insert(id, next_hop);
    }
    (router.routes.compiled.registry.insert(key, id, build.holds), id)
}

/// Compiles an action again that is there, under its id.
pub(super) fn recompile(router: &mut Router, number: Number) {
    let Some(old) = router.routes.compiled.registry.get(number) else { return };
    let (key, id) = (old.key(), old.id);
    let mut build = Build::default();
    let action = build_action(router, &key, &mut build);
    match &action {
        Action::Forward(next_hop) => router.routes.compiled.forwards.insert(id, *next_hop),
        _ => router.routes.compiled.forwards.remove(&id),
    };
    router.engine.set_action(id, action);
    let held = router.routes.compiled.registry.hold(number, build.holds);
    let_go(router, held);
}

/// Gives back what an action held.
fn let_go(router: &mut Router, held: Box<[Holding]>) {
    for holding in held {
        match holding {
            Holding::Child(child) => router.engine.remove_action(child),
            Holding::NextHop(next_hop) => release_next_hop(router, next_hop),
            Holding::Tunnel(tunnel) => router.engine.remove_tunnel(tunnel),
            Holding::Policy(counter) => policies::release(router, counter),
            Holding::Resolution(_) => {}
        }
    }
}

/// Removes an action that no route leads to any more.
pub(super) fn remove_compiled(router: &mut Router, number: Number) {
    let Some(compiled) = router.routes.compiled.registry.remove(number) else { return };
    let Compiled { neighbour, id, holds, .. } = compiled;
    if let Some(neighbour) = neighbour {
        // Numbers are used again.
        let there = router.routes.compiled.neighbours.iter_mut();
        there.filter(|((_, address), _)| *address == *neighbour).for_each(|(_, numbers)| {
            numbers.remove(&number);
        });
    }
    router.routes.compiled.forwards.remove(&id);
    router.engine.remove_action(id);
    let_go(router, holds);
}

/// Compiles the actions of the routes by a link again.
pub(crate) fn recompile_routes_by(router: &mut Router, link: u32) {
    let by = |info: &Info| ways_of(router, info).iter().any(|hop| hop.oif == link);
    let ids: Vec<InfoId> =
        router.routes.infos.iter().filter(|(_, info)| by(info)).map(|(id, _)| id).collect();
    ids.into_iter().for_each(|id| recompile_info(router, id));
}

/// Compiles the actions of some routes again.
pub(crate) fn recompile_info(router: &mut Router, id: InfoId) {
    let numbers = router.routes.compiled.registry.of(id).to_vec();
    numbers.into_iter().for_each(|number| recompile(router, number));
}

/// Removes the actions of a route that is no more.
pub(crate) fn discard_compiled(router: &mut Router, id: InfoId, info: &Info) {
    router.routes.compiled.last = None;
    let numbers = router.routes.compiled.registry.of(id).to_vec();
    numbers.into_iter().for_each(|number| remove_compiled(router, number));
    for hop in info.hops() {
        if let Some(counter) = hop.tunnel.as_ref().and_then(|tunnel| tunnel.counter) {
            router.engine.remove_counter(counter);
            router.routes.compiled.frequencies.remove(&counter);
        }
    }
}

/// Whether the kernel alone can forward by a route.
fn is_kernels_alone(router: &Router, info: &Info) -> bool {
    let object = matches!(info.ways, NextHops::Object(id) if router.routes.objects.is_kernels_alone(id));
    object || info.origin == Origin::KernelAlone
}

fn build_action(router: &mut Router, key: &ActionKey, build: &mut Build) -> Action {
    let (ids, scope, neighbour) = key;
    let infos: Vec<_> = ids.iter().filter_map(|&id| router.routes.infos.get(id).cloned()).collect();
    let Some(info) = infos.first() else { return Action::Discard(Discard::Blackhole) };
    build.keyed = info.kind == KEYED;
    let here =
        matches!(info.kind, libc::RTN_LOCAL | libc::RTN_ANYCAST | libc::RTN_BROADCAST | libc::RTN_MULTICAST);
    if !here && infos.iter().any(|info| is_kernels_alone(router, info)) {
        return Action::HandOver;
    }
    let discard = match info.kind {
        libc::RTN_BLACKHOLE => Some(Discard::Blackhole),
        libc::RTN_UNREACHABLE => Some(Discard::Unreachable),
        libc::RTN_PROHIBIT => Some(Discard::Prohibit),
        libc::RTN_THROW => Some(Discard::Throw),
        libc::RTN_LOCAL => return Action::Local,
        libc::RTN_ANYCAST => return Action::Anycast,
        libc::RTN_BROADCAST | libc::RTN_MULTICAST => return Action::Broadcast,
        _ if blackhole_object(router, info) => Some(Discard::Blackhole),
        _ if info.reject => Some(Discard::Unreachable),
        _ => None,
    };
    if let Some(discard) = discard {
        return Action::Discard(discard);
    }
    debug_assert!(type_error(info.kind).is_none());
    let limits = info.limits();
    let alive = |hop: &Hop| !hop.dead && router.links.get(hop.oif).is_some();
    let hops: Vec<Hop> = infos.iter().flat_map(|info| ways_in(router, info, *scope)).filter(alive).collect();
    let hops = &hops[..];
    let scope = &match *scope {
        Scope::Out { link, .. } => Scope::Rules { link: 0, vrf: l3mdev_table(router, link) },
        scope => scope,
    };
    if let [hop] = hops {
        return build_hop(router, hop, (*scope, limits), neighbour.as_deref().copied(), build);
    }
    let total: u64 = hops.iter().map(|hop| u64::from(hop.weight)).sum();
    let (mut buckets, mut weight) = (Vec::new(), 0);
    for hop in hops {
        weight += u64::from(hop.weight);
        // Linux: fib_rebalance. Rounded to the nearest.
        let bound = ((weight << 31) + total / 2) / total - 1;
        let action = build_hop(router, hop, (*scope, limits), None, build);
        let child = router.engine.add_action(action);
        build.holds.push(Holding::Child(child));
        buckets.push((bound as u32, child));
    }
    if buckets.is_empty() {
        return Action::Discard(Discard::Unreachable);
    }
    Action::Multipath(Multipath { buckets: buckets.into() })
}

/// The ways of a route; of those by one link the first alone, where packets have to leave by it. Linux:
/// `fib_table_lookup`.
fn ways_in(router: &Router, info: &Info, scope: Scope) -> Vec<Hop> {
    let ways = ways_of(router, info);
    match scope {
        Scope::Out { link, family: Family::V4 } => {
            ways.iter().find(|hop| !hop.dead && hop.oif == link).cloned().into_iter().collect()
        }
        _ => ways.into_owned(),
    }
}

fn build_hop(
    router: &mut Router,
    hop: &Hop,
    (scope, limits): (Scope, RouteLimits),
    neighbour: Option<IpAddr>,
    build: &mut Build,
) -> Action {
    // Parameters for a tunnel mean nothing to a device that is none.
    let encapsulates = |encap: &&Encap| !matches!(encap, Encap::Ip(_)) || is_external(router, hop.oif);
    match hop.encap().filter(encapsulates) {
        Some(encap) => match encap {
            Encap::Ip(given) => {
                let gateway = hop.gateway.or(neighbour);
                build_given(router, given, &Hop { gateway, ..hop.clone() }, limits, build)
            }
            Encap::Seg6Local(local) => {
                let Some(behaviour) = behaviour(router, local, hop, scope, build) else {
                    return Action::Discard(Discard::Blackhole);
                };
                Action::Endpoint(Endpoint {
                    behaviour,
                    flavours: local.flavors.filter(|flavors| flavors.operations != 0).map(flavours),
                    counter: hop.tunnel.as_ref().and_then(|tunnel| tunnel.counter),
                    link: link_id(router, hop.oif),
                })
            }
            Encap::Rpl(rpl) => match source_route(router, (rpl, hop.oif), scope, build) {
                Some(route) => Action::Rpl(route),
                None => Action::Discard(Discard::Blackhole),
            },
            // What has labels is no packet that a VRF's device would look up.
            Encap::Mpls(_) if is_vrf(router, hop.oif) => Action::Discard(Discard::Blackhole),
            Encap::Mpls(mpls) => {
                let gateway = hop.gateway.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
                let next_hop = acquire_next_hop(router, (hop.oif, gateway, limits), build);
                let ttl = router.routes.labels.pushed_ttl(mpls);
                Action::Push(Push { labels: stack(&mpls.labels).into(), ttl, next_hop })
            }
            Encap::Seg6(seg6) => match headend(router, seg6, hop, scope, build) {
                Some(mut headend) => {
                    headend.counter = Some(policies::acquire(router, seg6, build));
                    if headend.mode == HeadendMode::L2Encap {
                        let hop = Hop { tunnel: None, ..hop.clone() };
                        let plain = build_hop(router, &hop, (scope, limits), neighbour, build);
                        let child = router.engine.add_action(plain);
                        build.holds.push(Holding::Child(child));
                        headend.plain = Some(child);
                    }
                    Action::Headend(headend)
                }
                None => Action::Discard(Discard::Blackhole),
            },
            Encap::Ioam6(ioam6) => {
                let ioam = ioam_action(router, ioam6, hop, (scope, limits), neighbour, build);
                Action::Ioam(Box::new(ioam))
            }
        },
        None if let Some(route) = vrf_entry(router, hop.oif, limits.mtu()) => Action::Vrf(route),
        // The kernel forwards by its links that no port is attached to.
        None if kernel_forwards(router, hop.oif) => Action::HandOver,
        None if router.tunnels.id(hop.oif).is_some() => build_tunnel(router, hop, limits, build),
        None => match hop.gateway {
            // Of a next-hop object. Linux: `ip6_output`.
            Some(IpAddr::V6(_)) if router.links.get(hop.oif).is_some_and(|link| !link.ipv6()) => {
                Action::Discard(Discard::Blackhole)
            }
            Some(gateway) => Action::Forward(acquire_next_hop(router, (hop.oif, gateway, limits), build)),
            // Every neighbour is the same one.
            None if is_dummy(router, hop.oif) => {
                let any = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
                Action::Forward(acquire_next_hop(router, (hop.oif, any, limits), build))
            }
            None => Action::OnLink(link_id(router, hop.oif)),
        },
    }
}

/// What a way does by the device of a VRF: its packets are looked up there, as from the router itself, and a gateway
/// means nothing. `None`: the link is none.
pub(super) fn vrf_entry(router: &mut Router, index: u32, mtu: u32) -> Option<IntoVrf> {
    let device = router.links.get(index)?;
    let (table, link) = (device.vrf_table()?, device.id);
    let loopback = router.links.get(LOOPBACK)?.clone();
    let lookup = lookup_of_link(router, &loopback, Some(table));
    Some(IntoVrf { lookup, link, mtu })
}

/// What a way does that leads to a tunnel.
fn build_tunnel(router: &mut Router, hop: &Hop, limits: RouteLimits, build: &mut Build) -> Action {
    let tunnel = match gateway_tunnel(router, hop) {
        Some((parameters, encap)) => route_tunnel(router, hop.oif, (parameters, encap), None, build),
        None => router.tunnels.id(hop.oif),
    };
    lead_into(router, tunnel, hop, limits, build)
}

/// What a way does that gives a device its parameters.
fn build_given(
    router: &mut Router,
    given: &IpTunnel,
    hop: &Hop,
    limits: RouteLimits,
    build: &mut Build,
) -> Action {
    let device = router.links.get(hop.oif).and_then(|link| link.tunnel.as_deref());
    let bare = device.is_some_and(|device| device.parameters.bare.is_some());
    let parameters = device.and_then(|device| device.given(given));
    if bare && !given.source.is_unspecified() {
        build.holds.push(Holding::Resolution(given.source));
    }
    // Linux: `udp_tunnel_dst_lookup`, which finds no way from an IPv4 address that is not the router's.
    let foreign = bare && given.source.is_ipv4() && !given.source.is_unspecified();
    let foreign = foreign && !router.addresses.is_local(given.source);
    let Some((parameters, encap)) = parameters.filter(|_| !foreign) else {
        // By the device itself, which counts what it cannot send.
        return match bare {
            true => build_tunnel(router, hop, limits, build),
            false => Action::Discard(Discard::Blackhole),
        };
    };
    // Linux: `tunnel_id_to_key32`.
    let id = given.id as u32;
    let tunnel = route_tunnel(router, hop.oif, (parameters, encap), Some(id), build);
    lead_into(router, tunnel, hop, limits, build)
}

/// Keeps what is compiled as a route by a tunnel with these parameters; by a tunnel that is not `external`, as one with
/// their destination for a gateway.
pub(crate) fn acquire_keyed(router: &mut Router, link: u32, given: &IpTunnel) -> InfoId {
    let (gateway, tunnel) = match is_external(router, link) {
        false => (Some(given.destination), None),
        true => {
            let encap = router.routes.infos.share(Arc::new(Encap::Ip(given.clone())));
            (None, Some(Tunnel { encap, counter: None, program: None }))
        }
    };
    router.routes.infos.acquire(Info::plain(KEYED, 0, link, gateway, tunnel))
}

/// Keeps it no more.
pub(crate) fn release_keyed(router: &mut Router, id: InfoId) {
    if let Some(info) = router.routes.infos.release(id) {
        discard_compiled(router, id, &info);
    }
}

/// A tunnel that is a route's alone, by a device; `given`: the route says its parameters, with this id.
fn route_tunnel(
    router: &mut Router,
    link: u32,
    (parameters, encap): (tunnel::Tunnel, tunnel::Encap),
    given: Option<u32>,
    build: &mut Build,
) -> Option<TunnelId> {
    build.holds.push(Holding::Resolution(parameters.remote));
    if !parameters.local.is_unspecified() {
        build.holds.push(Holding::Resolution(parameters.local));
    }
    let (compiled, held) = compile_route_tunnel(router, link, (parameters, encap), given)?;
    build.holds.extend(held.map(Holding::NextHop));
    let id = router.engine.add_tunnel(compiled);
    build.holds.push(Holding::Tunnel(id));
    Some(id)
}

/// The action for a neighbour whose address routes cover that lead to its link.
pub(crate) fn neighbour_action(
    router: &mut Router,
    ids: &Ids,
    scope: Scope,
    family: Family,
    host: u128,
) -> Option<ActionId> {
    let [id] = ids[..] else { return None };
    let info = router.routes.infos.get(id)?;
    if info.kind != libc::RTN_UNICAST
        || info.reject
        || blackhole_object(router, info)
        || is_kernels_alone(router, info)
    {
        return None;
    }
    let limits = info.limits();
    let ways = ways_in(router, info, scope);
    let mut alive = ways.iter().filter(|hop| !hop.dead);
    let (Some(hop @ Hop { oif, gateway: None, .. }), None) = (alive.next(), alive.next()) else {
        return None;
    };
    if kernel_forwards(router, *oif) || is_vrf(router, *oif) {
        return None;
    }
    let address = family.address(host);
    router.routes.published.mac(*oif, address)?;
    let given = matches!(hop.encap(), Some(Encap::Ip(_))) && is_external(router, *oif);
    if ioam::of(hop).is_some() || given {
        let key = (ids.clone(), scope, Some(Box::new(address)));
        let link = (*oif, address);
        let known = router.routes.compiled.compiled(&key);
        let (number, action) = known.unwrap_or_else(|| compile_infos(router, key));
        router.routes.compiled.neighbours.entry(link).or_default().insert(number);
        return Some(action);
    }
    if hop.tunnel.is_some() {
        return None;
    }
    let (key, source) = ((*oif, address, limits), info.source);
    if let Some(&action) = router.routes.compiled.hosts.get(&(key, source)) {
        return Some(action);
    }
    let next_hop = acquire_next_hop(router, key, &mut Build::default());
    let action = match router.tunnels.id(key.0) {
        Some(tunnel) => {
            let RouteLimits { hop_limit, .. } = limits;
            let route = TunnelRoute { tunnel, next_hop: Some(next_hop), mtu: limits.mtu(), hop_limit };
            router.engine.add_action(Action::Tunnel(route))
        }
        None => {
            let action = router.engine.add_action(Action::Forward(next_hop));
            router.routes.compiled.forwards.insert(action, next_hop);
            action
        }
    };
    router.engine.set_source(action, source);
    router.routes.compiled.hosts.insert((key, source), action);
    Some(action)
}
