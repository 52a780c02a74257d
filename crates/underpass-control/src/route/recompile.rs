//! What is published and compiled again when a route, a rule or a neighbour has changed.

#![expect(
    clippy::indexing_slicing,
    reason = "places in lists of the model, found in the same step and not read from a request"
)]

use std::net::IpAddr;

use underpass_netlink::Encap;
use underpass_netlink::seg6::SegmentList;

use super::compile::{recompile, recompile_info, remove_compiled};
use super::info::{Hop, InfoId};
use super::ioam::of;
use super::lookup::ways_of;
use super::next_hop::{next_hop, release_next_hop};
use super::publish::{compile_lookup, host_leaves, set_leaf};
use super::published::Scope;
use super::scope::vrf_of_table;
use super::table::{Family, Place, Prefix, bits};
use crate::Router;
use crate::address::source::source6;
use crate::link::tunnel::publish::{publish_tunnels, publish_tunnels_inside};
use crate::neighbour::wanted::want_neighbour;

/// Compiles all actions again: the rules or the VRFs have changed, or the source of encapsulations.
pub(crate) fn recompile_all(router: &mut Router) {
    let numbers = router.routes.compiled.registry.numbers();
    numbers.into_iter().for_each(|number| recompile(router, number));
    publish_tunnels(router);
}

/// Resolves the addresses inside a prefix anew that actions hold the resolution of.
pub(crate) fn resolve_inside(router: &mut Router, family: Family, prefix: Prefix) {
    publish_tunnels_inside(router, family, prefix);
    let numbers = router.routes.compiled.registry.resolving(family, prefix);
    numbers.into_iter().for_each(|number| recompile(router, number));
}

/// Publishes what has changed of a neighbour.
pub(crate) fn refresh_next_hop(router: &mut Router, link: u32, address: IpAddr) {
    let keys: Vec<_> = router
        .routes
        .compiled
        .next_hops
        .iter()
        .filter(|(key, _)| (key.0, key.1) == (link, address))
        .map(|(key, (id, _))| (*key, *id))
        .collect();
    for (key, id) in keys {
        let next_hop = next_hop(router, key);
        router.engine.set_next_hop(id, next_hop);
    }
}

/// Publishes what has changed of a link to the next hops on it.
pub(crate) fn refresh_next_hops(router: &mut Router, link: u32) {
    let on_link = router.routes.compiled.next_hops.iter().filter(|(key, _)| key.0 == link);
    let keys: Vec<_> = on_link.map(|(key, (id, _))| (*key, *id)).collect();
    for (key, id) in keys {
        let next_hop = next_hop(router, key);
        if next_hop.rewrite.is_none() {
            want_neighbour(router, key.0, key.1);
        }
        router.engine.set_next_hop(id, next_hop);
    }
}

/// Gives back the actions of a neighbour that no host entry names any more.
pub(crate) fn forget_host(router: &mut Router, link: u32, address: IpAddr) {
    for number in router.routes.compiled.neighbours.remove(&(link, address)).unwrap_or_default() {
        remove_compiled(router, number);
    }
    let hosts = router.routes.compiled.hosts.keys();
    let keys: Vec<_> = hosts.filter(|(key, _)| (key.0, key.1) == (link, address)).copied().collect();
    for key in keys {
        if let Some(action) = router.routes.compiled.hosts.remove(&key) {
            router.routes.compiled.forwards.remove(&action);
            router.engine.remove_action(action);
            release_next_hop(router, key.0);
        }
    }
}

/// Compiles the actions again that insert options: what they say of the node or of a link is another now.
pub(crate) fn recompile_ioam(router: &mut Router) {
    let inserts = |hop: &Hop| of(hop).is_some();
    let ids: Vec<InfoId> = router
        .routes
        .infos
        .iter()
        .filter(|(_, info)| ways_of(router, info).iter().any(inserts))
        .map(|(id, _)| id)
        .collect();
    ids.into_iter().for_each(|id| recompile_info(router, id));
}

/// Compiles all orders of look-up anew: a rule or a VRF has changed.
pub(crate) fn refresh_lookups(router: &mut Router) {
    let scopes: Vec<_> = router.routes.published.lookups.iter().map(|(&s, &id)| (s, id)).collect();
    for (scope, id) in scopes {
        let lookup = compile_lookup(router, scope);
        router.engine.set_lookup(id, lookup);
    }
    forget_gateways(router);
    recompile_all(router);
}

/// Forgets which gateways have been found reachable.
pub(crate) fn forget_gateways(router: &mut Router) {
    router.routes.gateways.clear();
}

/// Compiles the look-up in a table that was not there.
pub(super) fn table_made(router: &mut Router, table: u32) {
    let scope = Scope::Table(table);
    if let Some(&id) = router.routes.published.lookups.get(&scope) {
        let lookup = compile_lookup(router, scope);
        router.engine.set_lookup(id, lookup);
    }
}

/// Publishes that the routes to a prefix of a table have changed.
pub(crate) fn publish_place(router: &mut Router, place: Place) {
    vrf_place_changed(router, place);
    let (family, table, prefix) = place;
    router.routes.gateways.forget(family, prefix);
    place_changed(router, (family, table, prefix));
    for index in 0..router.routes.published.fibs.len() {
        let fib = &router.routes.published.fibs[index];
        if fib.family != family || !fib.tables.contains(&table) {
            continue;
        }
        set_leaf(router, index, prefix);
        // The prefixes inside that the other tables of the merger have may now end here, or no more.
        let mut inside = Vec::new();
        let mut before = true;
        for &other in &router.routes.published.fibs[index].tables {
            if other == table {
                before = false;
                continue;
            }
            let Some(routes) = router.routes.tables.get(&(family, other)) else { continue };
            // A table that is asked before decides alone, unless it throws.
            if routes.is_empty() || before && routes.throws == 0 {
                continue;
            }
            inside.extend(routes.inside(prefix).map(|(prefix, _)| prefix));
        }
        inside.into_iter().for_each(|prefix| set_leaf(router, index, prefix));
        host_leaves(router, index, prefix);
    }
    resolve_inside(router, family, prefix);
}

/// A neighbour's link-layer address has become known, has changed, or is known no more.
pub(crate) fn set_neighbour(router: &mut Router, link: u32, address: IpAddr, mac: Option<[u8; 6]>) {
    let family = Family::of(address);
    let key = (family, bits(address));
    let there = router.routes.published.neighbours.entry(key).or_default();
    let known = there.iter().any(|(other, _)| *other == link);
    there.retain(|(other, _)| *other != link);
    there.extend(mac.map(|mac| (link, mac)));
    let last = there.is_empty();
    refresh_next_hop(router, link, address);
    if known != mac.is_some() {
        // Set while the entry is still there: a host entry that is to go must be looked at.
        let host = Prefix::host(address);
        if last {
            router.routes.published.neighbours.remove(&key);
        }
        for index in 0..router.routes.published.fibs.len() {
            if router.routes.published.fibs[index].family == family {
                set_leaf(router, index, host);
            }
        }
        resolve_inside(router, family, host);
        if mac.is_none() {
            forget_host(router, link, address);
        }
    } else if last {
        router.routes.published.neighbours.remove(&key);
    }
}

/// Compiles the actions again that hold headers of such lists: their source may be another now, or a key.
pub(crate) fn recompile_headends(router: &mut Router, of: impl Fn(&SegmentList) -> bool) {
    let encapsulates = |hop: &Hop| {
        let encap = hop.encap();
        let srh = match encap {
            Some(Encap::Seg6Local(local)) if local.bpf.is_some() => return true,
            Some(Encap::Ioam6(_)) => return true,
            Some(Encap::Seg6(seg6)) => Some(&seg6.srh),
            Some(Encap::Seg6Local(local)) => local.srh.as_ref(),
            Some(Encap::Mpls(_) | Encap::Rpl(_) | Encap::Ip(_)) | None => None,
        };
        srh.is_some_and(&of)
    };
    let ids: Vec<InfoId> = router
        .routes
        .infos
        .iter()
        .filter(|(_, info)| ways_of(router, info).iter().any(encapsulates))
        .map(|(id, _)| id)
        .collect();
    ids.into_iter().for_each(|id| recompile_info(router, id));
}

/// `ip sr tunsrc` was set: encapsulations get another source.
pub(crate) fn tunnel_source_changed(router: &mut Router) {
    router.routes.compiled.sources.clear();
    recompile_headends(router, |_| true);
}

/// IPv6 addresses have changed: encapsulations get another source, if there is any that sends from another address
/// by now.
pub(crate) fn update_sources(router: &mut Router) {
    let sources = &router.routes.compiled.sources;
    if sources.iter().any(|(&link, &source)| source6(router, link) != source) {
        tunnel_source_changed(router);
    }
}

/// Compiles the SIDs again that have programs: these can name a table that was not there.
pub(crate) fn recompile_programs(router: &mut Router) {
    let runs = |hop: &Hop| hop.tunnel.as_ref().is_some_and(|tunnel| tunnel.program.is_some());
    let infos = router.routes.infos.iter().filter(|(_, info)| ways_of(router, info).iter().any(runs));
    let ids: Vec<InfoId> = infos.map(|(id, _)| id).collect();
    ids.into_iter().for_each(|id| recompile_info(router, id));
}

/// Takes note that the routes of a place have changed, if the host may need to know.
pub(crate) fn place_changed(router: &mut Router, place: Place) {
    if router.live.is_none() {
        return;
    }
    let (family, table, prefix) = place;
    let routes = router.routes.tables.get(&(family, table));
    let own = routes
        .into_iter()
        .flat_map(|routes| routes.get(prefix))
        .any(|&id| router.routes.infos.get(id).is_some_and(|info| info.own()));
    let Some(live) = &mut router.live else { return };
    // Where there was one before, it may have to go.
    if own {
        live.own_places.insert(place);
        live.changed_places.insert(place);
    } else if live.own_places.remove(&place) {
        live.changed_places.insert(place);
    }
}

/// Takes note of a change at a place.
pub(crate) fn vrf_place_changed(router: &mut Router, place: Place) {
    if vrf_of_table(router, place.1).is_some()
        && let Some(live) = &mut router.live
    {
        live.vrf_routes.dirty.insert(place);
    }
}

/// Compiles anew what depends on whether a link is up.
pub(crate) fn refresh_egress(router: &mut Router, link: u32) {
    let out = |scope: &Scope| matches!(scope, Scope::Out { link: other, .. } if *other == link);
    let scopes = router.routes.published.lookups.iter().filter(|(scope, _)| out(scope));
    let scopes: Vec<_> = scopes.map(|(&scope, &id)| (scope, id)).collect();
    for (scope, id) in scopes {
        let lookup = compile_lookup(router, scope);
        router.engine.set_lookup(id, lookup);
    }
}
