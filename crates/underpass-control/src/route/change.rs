//! `RTM_NEWROUTE` and `RTM_DELROUTE`. Linux: `fib_table_insert`, `fib_table_delete`, `fib6_add`,
//! `ip6_route_del`.

#![expect(
    clippy::indexing_slicing,
    reason = "places in lists of the model, found in the same step and not read from a request"
)]

use std::collections::btree_map::Entry;
use std::sync::Arc;

use libc::{EEXIST, ENOENT, RTM_DELROUTE};
use netlink_packet_core::{NLM_F_APPEND, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use underpass_netlink::{Encap, RequestError};

use super::compile::discard_compiled;
use super::encode::{notify_route, write_key};
use super::info::{Hop, Info, InfoId, NextHops, Tunnel};
use super::lookup::together;
use super::recompile::{publish_place, recompile_programs, table_made};
use super::table::{Family, Ids, Place, Table};
use crate::Router;
use crate::events::Cause;

/// The same route but for the counters of its SIDs.
pub(crate) fn same(a: &Info, b: &Info) -> bool {
    let bare = |info: &Info| {
        let mut info = info.clone();
        if let NextHops::Hops(hops) = &mut info.ways {
            for hop in hops.iter_mut() {
                hop.tunnel = hop.tunnel.take().map(|tunnel| Tunnel { counter: None, ..tunnel });
            }
        }
        info
    };
    bare(a) == bare(b)
}

fn alike(a: Option<&Encap>, b: Option<&Encap>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => a.is_like(b),
        (a, b) => a.is_none() && b.is_none(),
    }
}

/// Allocates the counters of a route's SIDs: nothing can fail after that.
pub(crate) fn with_counters(router: &mut Router, mut info: Info) -> Info {
    if let NextHops::Hops(hops) = &mut info.ways {
        for hop in hops.iter_mut().filter(|hop| hop.tunnel.is_some()) {
            *hop = counted_hop(router, hop.clone());
        }
    }
    info
}

pub(crate) fn table_mut(router: &mut Router, family: Family, table: u32) -> &mut Table {
    let created = router.routes.tables.len() as u32;
    if let Entry::Vacant(place) = router.routes.tables.entry((family, table)) {
        place.insert(Table::new(family, created));
        recompile_programs(router);
        table_made(router, table);
    }
    router.routes.tables.entry((family, table)).or_insert_with(|| Table::new(family, created))
}

/// The routes at a place.
pub(crate) fn ids_at(router: &Router, (family, table, prefix): Place) -> Ids {
    let table = router.routes.tables.get(&(family, table));
    table.map(|table| Ids::from_slice(table.get(prefix))).unwrap_or_default()
}

/// Whether one more route to a prefix would be refused. Linux: `fib6_add_1`, `fib6_add_rt2node`.
pub(super) fn refuses6(router: &Router, flags: u16, key: Place, info: &Info) -> Result<(), RequestError> {
    let ids = ids_at(router, key);
    if ids.is_empty() && flags & (NLM_F_CREATE | NLM_F_REPLACE) == NLM_F_REPLACE {
        return Err(RequestError::new(ENOENT, "Can not replace route - no match found"));
    }
    let mut peers = ids.iter().filter_map(|&id| router.routes.infos.get(id));
    let equal = |old: &&Arc<Info>| old.metric == info.metric;
    if flags & NLM_F_REPLACE != 0 {
        let there = peers.any(|old| equal(&old));
        if !there && flags & NLM_F_CREATE == 0 {
            return Err(RequestError::errno(ENOENT));
        }
        if flags & NLM_F_EXCL != 0 && there {
            return Err(RequestError::errno(EEXIST));
        }
        return Ok(());
    }
    if peers.filter(equal).any(|old| flags & NLM_F_EXCL != 0 || duplicate6(old, info)) {
        return Err(RequestError::errno(EEXIST));
    }
    Ok(())
}

/// Adds a route, or puts it in the place of others; returns it and the flags of the notification.
pub(crate) fn add6(
    router: &mut Router,
    flags: u16,
    key: Place,
    info: Info,
) -> Result<(InfoId, u16), RequestError> {
    refuses6(router, flags, key, &info)?;
    let info = with_counters(router, info);
    let ids = ids_at(router, key);
    let old = |id: &InfoId| router.routes.infos.get(*id);
    let equal = |id: &InfoId| old(id).is_some_and(|old| old.metric == info.metric);
    let alike = |id: &InfoId| equal(id) && old(id).is_some_and(|old| old.spreads() == info.spreads());
    let exists = ids.iter().any(equal);
    if flags & NLM_F_REPLACE != 0
        && let Some(position) = ids.iter().position(alike).or_else(|| ids.iter().position(equal))
    {
        let others: Vec<usize> = if old(&ids[position]).is_some_and(|old| old.spreads()) {
            let spreads = |id: &InfoId| equal(id) && old(id).is_some_and(|old| old.spreads());
            (position + 1..ids.len()).filter(|&i| spreads(&ids[i])).collect()
        } else {
            Vec::new()
        };
        let replaced = std::iter::once(position).chain(others.iter().copied());
        let replaced: Vec<_> = replaced.filter_map(|at| router.routes.infos.get(ids[at]).cloned()).collect();
        replaced.iter().for_each(|old| displace(router, key, old));
        let id = put_route(router, key, Some(position), position, info);
        others.into_iter().rev().for_each(|other| take_route(router, key, other));
        return Ok((id, NLM_F_REPLACE));
    }
    let higher = |id: &InfoId| old(id).is_some_and(|old| old.metric > info.metric);
    let position = ids.iter().position(higher).unwrap_or(ids.len());
    let id = put_route(router, key, None, position, info);
    let mut said = NLM_F_CREATE | flags & NLM_F_APPEND;
    if !exists {
        said |= NLM_F_EXCL;
    }
    Ok((id, said))
}

/// The routes that requests name and answers show as one with this: of those that share its packets, the router's own or the
/// kernel's, as it is.
pub(crate) fn siblings(router: &Router, key: Place, id: InfoId) -> Ids {
    let own = |id: InfoId| router.routes.infos.get(id).is_some_and(|info| info.own());
    let mut siblings = together(router, key.0, &ids_at(router, key), id);
    siblings.retain(|other| own(*other) == own(id));
    siblings
}

/// Puts a route into its table, in the place of the one at `replace` or before the one at
/// `position`, and publishes it.
pub(crate) fn put_route(
    router: &mut Router,
    key: Place,
    replace: Option<usize>,
    position: usize,
    info: Info,
) -> InfoId {
    let (family, table, prefix) = key;
    let throws = info.kind == libc::RTN_THROW;
    let id = router.routes.infos.acquire(info);
    let old = replace.and_then(|at| ids_at(router, key).get(at).copied());
    let routes = table_mut(router, family, table);
    routes.throws += usize::from(throws);
    match old {
        Some(_) => routes.replace(prefix, position, id),
        None => routes.insert(prefix, position, id),
    }
    router.routes.generation += 1;
    publish_place(router, key);
    if let Some(old) = old {
        release(router, key, old);
    }
    id
}

/// Takes the routes of a place that are `gone` out of its table, the last one first; `told`: listeners hear of each.
pub(crate) fn take_routes(
    router: &mut Router,
    cause: Cause,
    place: Place,
    told: bool,
    gone: impl Fn(&InfoId) -> bool,
) {
    let ids = ids_at(router, place);
    for (position, id) in ids.iter().enumerate().rev().filter(|(_, id)| gone(id)) {
        if told {
            notify_route(router, cause, RTM_DELROUTE, 0, place, &[*id]);
        }
        take_route(router, place, position);
    }
}

/// Takes a route out of its table and publishes that.
pub(crate) fn take_route(router: &mut Router, key: Place, position: usize) {
    let (family, table, prefix) = key;
    let Some(&id) = ids_at(router, key).get(position) else { return };
    table_mut(router, family, table).remove(prefix, position);
    router.routes.generation += 1;
    publish_place(router, key);
    release(router, key, id);
}

fn release(router: &mut Router, key: Place, id: InfoId) {
    if router.routes.infos.get(id).is_some_and(|info| info.kind == libc::RTN_THROW) {
        let table = table_mut(router, key.0, key.1);
        table.throws = table.throws.saturating_sub(1);
    }
    if let Some(info) = router.routes.infos.release(id) {
        discard_compiled(router, id, &info);
    }
}

/// A way that counts its packets, with its counter.
pub(crate) fn counted_hop(router: &mut Router, mut hop: Hop) -> Hop {
    if let Some(tunnel) = &hop.tunnel
        && tunnel.encap.counts()
    {
        let counter = Some(router.engine.add_counter());
        let encap = router.routes.infos.share(tunnel.encap.clone());
        let tunnel = crate::route::info::Tunnel { encap, counter, program: tunnel.program.clone() };
        hop.tunnel = Some(tunnel);
    }
    hop
}

/// The kernel's route that a new one of the router's own replaces is deleted there.
pub(crate) fn displace(router: &mut Router, place: Place, old: &Info) {
    if old.own() {
        return;
    }
    let deleted = router.request_kernel(RTM_DELROUTE, 0, |message| write_key(message, place, old));
    if let Err(error) = deleted {
        tracing::debug!("a route of the kernel's that was replaced is gone already: {error}");
    }
}

/// Linux: `rt6_duplicate_nexthop`.
pub(super) fn duplicate6(a: &Info, b: &Info) -> bool {
    match (&a.ways, &b.ways) {
        (NextHops::Hops(a), NextHops::Hops(b)) => {
            let (Some(a), Some(b)) = (a.first(), b.first()) else { return true };
            a.oif == b.oif && a.gateway == b.gateway && alike(a.encap(), b.encap())
        }
        (a, b) => a == b,
    }
}
