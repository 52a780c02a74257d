//! The kernel's routes.
//!
//! A message of IPv4 is about one route. A message of IPv6 about a route that spreads names all routes that
//! it spreads over.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::net::IpAddr;

use netlink_packet_core::{NLM_F_APPEND, NLM_F_MULTIPART, NLM_F_REPLACE};
use underpass_netlink::{Attribute, RequestError};

use super::change::{ids_at, put_route, same, take_route, with_counters};
use super::check::check_tunnel;
use super::config::{
    Config, HopConfig, RT_TABLE_LOCAL, RT_TABLE_MAIN, RTM_F_CLONED, RTNH_F_DEAD, RTNH_F_ONLINK, metrics,
};
use super::info::{Hop, Info, InfoId, METRICS, NextHops, Origin};
use super::lookup::type_error;
use super::nexthop::mirror::mirrored_objects;
use super::reported::{is_whole, unknown_of_route};
use super::rule::mirror::mirrored_rules;
use super::table::{Family, Ids, Place, Prefix};
use super::update::places_of;
use super::vrf::remove_connected;
use crate::link::encode::in_own_vrf;
use crate::live::Unseen;
use crate::{LinkKind, PROTOCOL, Request, Router};

/// Of the connections of the host, and a text.
const RTAX_CC_ALGO: u16 = 16;

/// `RTM_NEWROUTE` and `RTM_DELROUTE` of the kernel.
pub(crate) fn mirror_route(router: &mut Router, request: &Request<'_>) -> Result<(), RequestError> {
    let Some(family) = Family::from_number(request.family()) else { return Ok(()) };
    let header = super::config::RouteHeader::read(&request.fixed()?);
    if header.flags & RTM_F_CLONED != 0 || header.protocol == PROTOCOL {
        return Ok(());
    }
    if header.table == RT_TABLE_LOCAL as u8 && router.is_about_host_address(&request.message) {
        return Ok(());
    }
    let (config, readable) = match Config::reported(request, family) {
        Ok(config) => (config, true),
        Err(_) => (Config::place(request, family)?, false),
    };
    let place = (family, config.table, config.prefix);
    let mut infos = reported_infos(router, &config, family);
    let unknown = unknown_of_route(&request.message, family).max(u64::from(!readable));
    if unknown != 0 {
        let alone = |info: &mut Info| (info.origin, info.unknown) = (Origin::KernelAlone, unknown);
        infos.iter_mut().for_each(alone);
    }
    if request.message.kind == libc::RTM_NEWROUTE
        && infos.iter().any(|info| info.origin == Origin::KernelAlone)
    {
        let why = if config.tos != 0 { "a tos" } else { "what this router does not know" };
        router.log_left("route", why);
    }
    if infos.iter().any(|info| replaced_by_vrf(router, place.1, info)) {
        infos.into_iter().for_each(|info| park_route(router, request.message.kind, place, info));
        return Ok(());
    }
    let kind = request.message.kind;
    infos.retain(|info| !set_aside(router, kind, place, info));
    if infos.is_empty() {
        return Ok(());
    }
    let dump = request.message.flags & NLM_F_MULTIPART != 0;
    let flags = if dump { NLM_F_APPEND } else { request.message.flags };
    match (family, request.message.kind) {
        (_, libc::RTM_DELROUTE) => {
            infos.iter().for_each(|info| unmirror_route(router, place, info));
        }
        (Family::V4, _) => infos.into_iter().for_each(|info| mirror_route4(router, flags, place, info)),
        (Family::V6, _) => mirror_route6(router, flags, place, infos),
    }
    Ok(())
}

/// Whether a route is one that a link enslaved to a VRF of this router's does not have in this table.
pub(super) fn replaced_by_vrf(router: &Router, table: u32, info: &Info) -> bool {
    let connected = match table {
        RT_TABLE_LOCAL => true,
        RT_TABLE_MAIN => info.protocol == libc::RTPROT_KERNEL,
        _ => false,
    };
    connected && info.hops().iter().any(|hop| in_own_vrf(router, hop.oif))
}

/// Keeps a route that a VRF replaces for when its link leaves the VRF.
fn park_route(router: &mut Router, kind: u16, place: Place, info: Info) {
    let Some(live) = &mut router.live else { return };
    live.parked.retain(|(at, parked)| *at != place || !same(parked, &info));
    if kind == libc::RTM_NEWROUTE {
        live.parked.push((place, info.clone()));
        remove_connected(router, place, &info);
    }
}

/// A link has left its VRF: what the kernel has of its routes counts again.
pub(crate) fn unpark_routes(router: &mut Router, link: u32) {
    let Some(live) = &mut router.live else { return };
    let by = |(_, info): &mut (Place, Info)| info.hops().iter().any(|hop| hop.oif == link);
    let back: Vec<_> = live.parked.extract_if(.., by).collect();
    for (place, info) in back {
        match place.0 {
            Family::V4 => mirror_route4(router, NLM_F_APPEND, place, info),
            Family::V6 => mirror_route6(router, NLM_F_APPEND, place, vec![info]),
        }
    }
}

/// Puts a route of the kernel's behind the others of its metric.
pub(crate) fn append_mirrored6(router: &mut Router, place: Place, info: Info) {
    mirror_route6(router, NLM_F_APPEND, place, vec![info]);
}

/// What the kernel says of a route: one, or of IPv6 each that it spreads over.
pub(super) fn reported_infos(router: &Router, config: &Config<'_>, family: Family) -> Vec<Info> {
    let single = std::slice::from_ref(&config.hop);
    let configs = match &config.multipath {
        Some(hops) => &hops[..],
        // An IPv4 route that discards has no way.
        None if family == Family::V4 && type_error(config.kind).is_some() => &[],
        None => single,
    };
    // A route that discards and has an encapsulation is none that this router knows.
    let strange = configs.is_empty() && config.hop.encap.is_some();
    let mut origin = if strange { Origin::KernelAlone } else { Origin::Kernel };
    let mut hops = Vec::new();
    for config in configs {
        let (hop, known) = reported_hop(router, config, family);
        if !known {
            origin = Origin::KernelAlone;
        }
        hops.push(hop);
    }
    if config.nh_id != 0 && router.routes.objects.get(config.nh_id).is_none() {
        origin = Origin::KernelAlone;
    }
    let reject = |hop: Option<&Hop>| {
        let over_loopback =
            hop.and_then(|hop| router.links.get(hop.oif)).is_some_and(|link| link.kind == LinkKind::Loopback);
        let host = config.prefix == Prefix::host(IpAddr::from(std::net::Ipv6Addr::LOCALHOST));
        let local = matches!(config.kind, libc::RTN_LOCAL | libc::RTN_ANYCAST);
        type_error(config.kind).is_some() || over_loopback && !host && !local
    };
    let info = |ways: NextHops| Info {
        kind: config.kind,
        protocol: config.protocol,
        scope: config.scope,
        metric: config.metric,
        preference: config.preference,
        reject: family == Family::V6 && matches!(&ways, NextHops::Hops(hops) if reject(hops.first())),
        source: config.source,
        metrics: reported_metrics(config.metrics),
        ways,
        origin,
        tos: config.tos,
        unknown: 0,
    };
    if config.nh_id != 0 && router.routes.objects.get(config.nh_id).is_some() {
        return vec![info(NextHops::Object(config.nh_id))];
    }
    match family {
        Family::V4 => vec![info(NextHops::Hops(hops.into()))],
        Family::V6 => hops.into_iter().map(|hop| info(NextHops::Hops(Box::new([hop])))).collect(),
    }
}

/// A way, and whether this router can take it.
fn reported_hop(router: &Router, config: &HopConfig<'_>, family: Family) -> (Hop, bool) {
    let tunnel = check_tunnel(router, config, family);
    let known = match (&tunnel, &config.encap) {
        (Ok(Some(tunnel)), Some((_, reported))) => is_whole(&tunnel.encap, reported),
        (Ok(None), None) => true,
        _ => false,
    };
    let hop = Hop {
        oif: config.oif,
        gateway: config.gateway,
        onlink: config.flags & RTNH_F_ONLINK != 0,
        dead: config.flags & RTNH_F_DEAD != 0,
        weight: config.weight.max(1),
        tunnel: tunnel.ok().flatten().filter(|_| known),
    };
    (hop, known)
}

/// The routes at a place that are the kernel's, with their positions.
pub(crate) fn mirrored(router: &Router, place: Place) -> Vec<(usize, InfoId)> {
    let ids = ids_at(router, place).into_iter().enumerate();
    ids.filter(|(_, id)| router.routes.infos.get(*id).is_some_and(|info| !info.own())).collect()
}

fn seen_route(router: &mut Router, place: Place, id: InfoId) {
    let Some(unseen) = router.unseen() else { return };
    if let Some(ids) = unseen.routes.get_mut(&place)
        && let Some(position) = ids.iter().position(|&other| other == id)
    {
        ids.remove(position);
    }
}

/// Puts a route in at a position, or in the place of the one there.
fn put_mirrored(router: &mut Router, place: Place, replace: bool, position: usize, info: Info) {
    let old = ids_at(router, place).get(position).copied().filter(|_| replace);
    if let Some(old) = old {
        seen_route(router, place, old);
    }
    let info = with_counters(router, info);
    let id = put_route(router, place, replace.then_some(position), position, info);
    // One that went meanwhile may have had the same id.
    seen_route(router, place, id);
}

fn mirror_route4(router: &mut Router, flags: u16, place: Place, info: Info) {
    let there = mirrored(router, place);
    if let Some((position, id)) = find_mirrored(router, &there, &info) {
        let equal = router.routes.infos.get(id).is_some_and(|old| same(old, &info));
        match equal {
            true => seen_route(router, place, id),
            false => put_mirrored(router, place, true, position, info),
        }
        return;
    }
    let ids = ids_at(router, place);
    // Linux: `fib_find_alias`. Those of a higher tos come first.
    let order = |info: &Info| (Reverse(info.tos), info.metric);
    let rank = |id: &InfoId| router.routes.infos.get(*id).map(|info| order(info));
    let (own, replaced) = (Some(order(&info)), |(_, id): &&(usize, InfoId)| rank(id) == Some(order(&info)));
    let replaced = there.iter().find(replaced);
    if let Some(&(position, _)) = replaced.filter(|_| flags & NLM_F_REPLACE != 0) {
        return put_mirrored(router, place, true, position, info);
    }
    let position = match flags & NLM_F_APPEND {
        0 => ids.iter().position(|id| rank(id) >= own),
        _ => ids.iter().position(|id| rank(id) > own),
    };
    put_mirrored(router, place, false, position.unwrap_or(ids.len()), info);
}

fn mirror_route6(router: &mut Router, flags: u16, place: Place, infos: Vec<Info>) {
    let Some(first) = infos.first() else { return };
    let (metric, spreads) = (first.metric, first.spreads());
    let equal =
        |router: &Router, id: InfoId| router.routes.infos.get(id).is_some_and(|old| old.metric == metric);
    let alike = |router: &Router, id: InfoId| {
        equal(router, id) && router.routes.infos.get(id).is_some_and(|old| old.spreads() == spreads)
    };
    let there = mirrored(router, place);
    let known = |router: &Router, id: InfoId| {
        let old = router.routes.infos.get(id);
        old.is_some_and(|old| infos.iter().any(|info| same(old, info)))
    };
    // What the message does not name is no more: of routes that spread always, of others if one of
    // them was replaced.
    let mut gone: Vec<usize> = Vec::new();
    if spreads {
        gone.extend(
            there.iter().filter(|(_, id)| alike(router, *id) && !known(router, *id)).map(|(p, _)| *p),
        );
    }
    if flags & NLM_F_REPLACE != 0 && gone.is_empty() && !there.iter().any(|(_, id)| known(router, *id)) {
        let replaced = there.iter().find(|(_, id)| alike(router, *id));
        let replaced = replaced.or_else(|| there.iter().find(|(_, id)| equal(router, *id)));
        gone.extend(replaced.map(|(position, _)| *position));
    }
    let begin = gone.first().copied();
    // The new ones are put in before the old ones are taken out: no packet meets a gap.
    let mut position = begin.unwrap_or_else(|| {
        let higher = |id: &InfoId| router.routes.infos.get(*id).is_some_and(|old| old.metric > metric);
        let ids = ids_at(router, place);
        ids.iter().position(higher).unwrap_or(ids.len())
    });
    let from = position;
    for info in &infos {
        let there = mirrored(router, place);
        let old =
            there.iter().find(|(_, id)| router.routes.infos.get(*id).is_some_and(|old| same(old, info)));
        match old {
            Some(&(_, id)) => seen_route(router, place, id),
            None => {
                put_mirrored(router, place, false, position, info.clone());
                position += 1;
            }
        }
    }
    let added = position - from;
    for old in gone.into_iter().rev() {
        let old = if old >= from { old + added } else { old };
        if let Some(&id) = ids_at(router, place).get(old) {
            seen_route(router, place, id);
        }
        take_route(router, place, old);
    }
}

/// Among routes at a place, the one that a message is about: that is the same, or differs only in
/// what changes without a word.
fn find_mirrored(router: &Router, there: &[(usize, InfoId)], wanted: &Info) -> Option<(usize, InfoId)> {
    let by = |agrees: &dyn Fn(&Info) -> bool| {
        there.iter().find(|(_, id)| router.routes.infos.get(*id).is_some_and(|info| agrees(info))).copied()
    };
    let ways = |info: &Info| {
        let ways = |hop: &Hop| (hop.oif, hop.gateway, hop.weight);
        info.ways == wanted.ways
            || (!info.hops().is_empty() || !wanted.hops().is_empty())
                && info.hops().iter().map(ways).eq(wanted.hops().iter().map(ways))
    };
    by(&|info| same(info, wanted)).or_else(|| {
        by(&|info| {
            let key =
                |info: &Info| (info.metric, info.kind, info.protocol, info.scope, info.tos, info.unknown);
            key(info) == key(wanted) && ways(info)
        })
    })
}

fn unmirror_route(router: &mut Router, place: Place, info: &Info) {
    let there = mirrored(router, place);
    if let Some((position, id)) = find_mirrored(router, &there, info) {
        seen_route(router, place, id);
        take_route(router, place, position);
    }
}

/// Takes note of all mirrored routes.
pub(crate) fn unseen_routes(router: &Router, unseen: &mut Unseen) {
    let mirrored = |id: &InfoId| router.routes.infos.get(*id).is_some_and(|info| !info.own());
    for (&(family, table), routes) in &router.routes.tables {
        for (key, ids) in routes.after(None) {
            let ids: Ids = ids.iter().copied().filter(mirrored).collect();
            if !ids.is_empty() {
                unseen.routes.insert((family, table, key.prefix()), ids);
            }
        }
    }
    unseen.objects = mirrored_objects(router).collect();
    unseen.rules = mirrored_rules(router);
}

/// Removes what a dump has not named.
pub(crate) fn sweep_routes(router: &mut Router, unseen: HashMap<Place, Ids>) {
    for (place, gone) in unseen {
        for id in gone {
            if let Some(position) = ids_at(router, place).iter().rposition(|&other| other == id) {
                take_route(router, place, position);
            }
        }
    }
}

/// Takes the connected routes of a link out of the mirror: it was enslaved to a VRF.
pub(crate) fn unmirror_connected(router: &mut Router, link: u32) {
    let by = |info: &Info| !info.own() && info.hops().iter().any(|hop| hop.oif == link);
    for place in places_of(router, by) {
        for (position, id) in mirrored(router, place).into_iter().rev() {
            let info = router.routes.infos.get(id).cloned();
            let info = info.filter(|info| by(info) && replaced_by_vrf(router, place.1, info));
            if let Some(info) = info {
                take_route(router, place, position);
                park_route(router, libc::RTM_NEWROUTE, place, Info::clone(&info));
            }
        }
    }
}

/// Keeps a route of the kernel's for when it is to be followed. `false`: it is.
pub(crate) fn set_aside(router: &mut Router, kind: u16, place: Place, info: &Info) -> bool {
    let Some(live) = &mut router.live else { return false };
    if !live.advertised.ignores(place.0, info) {
        return false;
    }
    live.advertised.aside.retain(|(at, aside)| *at != place || !same(aside, info));
    if kind == libc::RTM_NEWROUTE {
        live.advertised.aside.push((place, info.clone()));
    }
    true
}

/// The metrics of a route that forwarding may care about.
fn reported_metrics(attribute: Option<Attribute<'_>>) -> Option<Box<[u32; METRICS]>> {
    match metrics(attribute) {
        Ok(metrics) => metrics,
        Err(_) => {
            let mut metrics = Box::new([0; METRICS]);
            for metric in attribute.iter().flat_map(Attribute::nested).filter(|m| m.kind != RTAX_CC_ALGO) {
                if let Some(slot) = usize::from(metric.kind).checked_sub(1).and_then(|at| metrics.get_mut(at))
                {
                    *slot = metric.u32();
                }
            }
            Some(metrics).filter(|metrics| metrics.iter().any(|&value| value != 0))
        }
    }
}
