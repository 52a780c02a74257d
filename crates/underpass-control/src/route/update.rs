//! Dependency updates: routes that come and go with links and addresses. Linux: `fib_sync_down_dev`, `fib_sync_up`,
//! `fib6_ifdown`.

use std::collections::BTreeSet;
use std::net::IpAddr;

use netlink_packet_core::{NLM_F_APPEND, NLM_F_EXCL};

use super::change::{add6, ids_at, put_route, siblings, table_mut, take_route, take_routes};
use super::config::RT_TABLE_LOCAL;
use super::encode::notify_route;
use super::info::{Hop, Info, InfoId, NextHops};
use super::lookup::{l3mdev_table, ways_of};
use super::table::{Family, Place};
use crate::Router;
use crate::events::Cause;

/// Adds a route behind those of its metric.
pub(crate) fn add_info(router: &mut Router, cause: Cause, flags: u16, place: Place, info: Info) {
    match place.0 {
        Family::V6 => {
            if let Ok((id, said)) = add6(router, flags, place, info) {
                notify_route(router, cause, libc::RTM_NEWROUTE, said, place, &[id]);
            }
        }
        Family::V4 => {
            let ids = ids_at(router, place);
            if ids.iter().any(|&id| router.routes.infos.get(id).is_some_and(|old| **old == info)) {
                return;
            }
            let higher =
                |id: &InfoId| router.routes.infos.get(*id).is_some_and(|old| old.metric > info.metric);
            let position = ids.iter().position(higher).unwrap_or(ids.len());
            let said = flags | if ids.is_empty() { NLM_F_EXCL } else { NLM_F_APPEND };
            let id = put_route(router, place, None, position, info);
            notify_route(router, cause, libc::RTM_NEWROUTE, said, place, &[id]);
        }
    }
}

/// Removes a route that is exactly this, if it is there.
pub(crate) fn remove_info(router: &mut Router, cause: Cause, place: Place, info: &Info) {
    let Some(id) = router.routes.infos.find(info) else { return };
    let ids = ids_at(router, place);
    if let Some(position) = ids.iter().position(|&other| other == id) {
        notify_route(router, cause, libc::RTM_DELROUTE, 0, place, &[id]);
        take_route(router, place, position);
    }
}

/// The places of routes that `wanted` takes, each with all of these routes, wherever they are.
fn places(router: &Router, wanted: impl Fn(&Info) -> bool) -> Vec<(Place, BTreeSet<InfoId>)> {
    let ids: BTreeSet<InfoId> =
        router.routes.infos.iter().filter(|(_, info)| wanted(info)).map(|(id, _)| id).collect();
    let mut places = Vec::new();
    if ids.is_empty() {
        return places;
    }
    for (&(family, table), routes) in &router.routes.tables {
        for prefix in routes.with(|id| ids.contains(&id)) {
            places.push(((family, table, prefix), ids.clone()));
        }
    }
    places
}

/// The places of routes that `wanted` takes.
pub(crate) fn places_of(router: &Router, wanted: impl Fn(&Info) -> bool) -> Vec<Place> {
    places(router, wanted).into_iter().map(|(place, _)| place).collect()
}

/// Removes the routes that `wanted` takes. IPv4 tells nobody when the cause is a link.
pub(crate) fn remove_where(router: &mut Router, cause: Cause, tell4: bool, wanted: impl Fn(&Info) -> bool) {
    for (place, gone) in places(router, wanted) {
        let told = tell4 || place.0 == Family::V6;
        take_routes(router, cause, place, told, |id| gone.contains(id));
    }
}

/// Puts other infos in the place of those that `change` gives one for.
fn change_infos(router: &mut Router, change: impl Fn(&Info) -> Option<Info>) {
    for (place, touched) in places(router, |info| change(info).is_some()) {
        let ids = ids_at(router, place);
        for (position, id) in ids.iter().enumerate().filter(|(_, id)| touched.contains(id)) {
            let Some(new) = router.routes.infos.get(*id).and_then(|info| change(info)) else { continue };
            put_route(router, place, Some(position), position, new);
        }
    }
}

/// A link is down: routes that lead there alone go, others lose that way.
pub(crate) fn flush_routes_of(router: &mut Router, cause: Cause, link: u32) {
    let lost = |hop: &Hop| hop.oif == link || hop.dead;
    let by = |info: &Info| info.hops().iter().any(|hop| hop.oif == link);
    // IPv4 keeps the routes to the addresses of the link, which stay on it.
    let kept = |info: &Info| info.scope == libc::RT_SCOPE_HOST && info.kind == libc::RTN_LOCAL;
    lose_siblings(router, cause, link);
    // What is dead already is an IPv6 route that has a living one beside it.
    remove_where(router, cause, false, |info| {
        let gone = info.hops().iter().all(lost) && !info.hops().iter().all(|hop| hop.dead);
        by(info) && !kept(info) && gone
    });
    change_infos(router, |info| {
        let NextHops::Hops(hops) = &info.ways else { return None };
        if kept(info) || !hops.iter().any(|hop| hop.oif == link && !hop.dead) {
            return None;
        }
        let dead = |hop: &Hop| Hop { dead: lost(hop), ..hop.clone() };
        Some(Info { ways: NextHops::Hops(hops.iter().map(dead).collect()), ..info.clone() })
    });
}

/// A link is down: IPv6 routes that share their packets with others stay, dead, as long as one of these lives. Linux:
/// `fib6_ifdown`.
fn lose_siblings(router: &mut Router, cause: Cause, link: u32) {
    let led = |info: &Info| info.spreads() && info.hops().iter().any(|hop| hop.oif == link);
    for (place, touched) in places(router, led).into_iter().filter(|(place, _)| place.0 == Family::V6) {
        let ids = ids_at(router, place);
        for id in ids.into_iter().filter(|id| touched.contains(id)) {
            let lost = |id: &InfoId| {
                let hops = router.routes.infos.get(*id).map(|info| info.hops());
                hops.is_some_and(|hops| hops.iter().all(|hop| hop.oif == link || hop.dead))
            };
            let siblings = siblings(router, place, id);
            if siblings.len() < 2 {
                continue;
            }
            let alive = !siblings.iter().all(lost);
            let gone = if alive { &[id][..] } else { &siblings[..] };
            for id in gone {
                let Some(position) = ids_at(router, place).iter().position(|other| other == id) else {
                    continue;
                };
                let info = router.routes.infos.get(*id).cloned();
                match info.as_deref() {
                    Some(info @ Info { ways: NextHops::Hops(hops), .. }) if alive => {
                        let dead = hops.iter().map(|hop| Hop { dead: true, ..hop.clone() }).collect();
                        let info = Info { ways: NextHops::Hops(dead), ..info.clone() };
                        put_route(router, place, Some(position), position, info);
                    }
                    _ => {
                        notify_route(router, cause, libc::RTM_DELROUTE, 0, place, &[*id]);
                        take_route(router, place, position);
                    }
                }
            }
        }
    }
}

/// A link is no more: IPv6 routes that have stayed, dead, go.
pub(crate) fn forget_routes_of(router: &mut Router, cause: Cause, link: u32) {
    let dead = |info: &Info| info.spreads() && info.hops().iter().all(|hop| hop.dead && hop.oif == link);
    remove_where(router, cause, false, dead);
}

/// No IPv4 route by a link may stay, unless it has another way.
pub(crate) fn flush_routes4_of(router: &mut Router, link: u32) {
    let lost = |hop: &Hop| hop.oif == link || hop.dead;
    let by = |info: &Info| info.hops().iter().any(|hop| hop.oif == link) && info.hops().iter().all(lost);
    for (place, gone) in places(router, by).into_iter().filter(|(place, _)| place.0 == Family::V4) {
        take_routes(router, Cause::default(), place, false, |id| gone.contains(id));
    }
    // Only routes of IPv4 have several ways.
    change_infos(router, |info| {
        let NextHops::Hops(hops) = &info.ways else { return None };
        if hops.len() < 2 || !hops.iter().any(|hop| hop.oif == link && !hop.dead) {
            return None;
        }
        let dead = |hop: &Hop| Hop { dead: lost(hop), ..hop.clone() };
        Some(Info { ways: NextHops::Hops(hops.iter().map(dead).collect()), ..info.clone() })
    });
}

/// IPv6 does not work on a link any more, though it is there: routes by it go, but for those of next-hop objects. Linux:
/// `addrconf_ifdown`, as where the link itself goes.
pub(crate) fn flush_routes6_of(router: &mut Router, cause: Cause, link: u32) {
    let by = |info: &Info| info.hops().iter().any(|hop| hop.oif == link);
    for (place, gone) in places(router, by).into_iter().filter(|(place, _)| place.0 == Family::V6) {
        take_routes(router, cause, place, true, |id| gone.contains(id));
    }
}

/// A link is up, or has an IPv4 address again: routes get back the ways that they had lost with it.
pub(crate) fn revive_routes_of(router: &mut Router, link: u32) {
    if !router.links.get(link).is_some_and(|link| link.up()) || !router.routes.infos.any_dead() {
        return;
    }
    change_infos(router, |info| {
        let NextHops::Hops(hops) = &info.ways else { return None };
        if !hops.iter().any(|hop| hop.oif == link && hop.dead) {
            return None;
        }
        let alive = |hop: &Hop| Hop { dead: hop.dead && hop.oif != link, ..hop.clone() };
        Some(Info { ways: NextHops::Hops(hops.iter().map(alive).collect()), ..info.clone() })
    });
}

/// A link has another MTU: IPv6 routes by it whose own is larger get that, and so do those whose own was the link's, unless it
/// is locked. Linux: `rt6_mtu_change`, which tells nobody.
pub(crate) fn follow_mtu(router: &mut Router, link: u32, old: u32, new: u32) {
    let follows = |router: &Router, info: &Info| {
        let mtu = info.mtu();
        let changes = mtu > new || mtu != 0 && mtu < new && mtu == old;
        changes && !info.locks_mtu() && ways_of(router, info).iter().any(|hop| hop.oif == link)
    };
    for (place, touched) in places(router, |info| follows(router, info)) {
        let ids = if place.0 == Family::V6 { ids_at(router, place) } else { continue };
        for (position, id) in ids.iter().enumerate().filter(|(_, id)| touched.contains(id)) {
            let Some(info) = router.routes.infos.get(*id) else { continue };
            let changed = info.with_mtu(new);
            put_route(router, place, Some(position), position, changed);
        }
    }
}

/// An address is gone: IPv4 routes that send from it go, IPv6 routes stay and send from another.
pub(crate) fn flush_routes_from(router: &mut Router, cause: Cause, address: IpAddr, link: u32) {
    match address {
        IpAddr::V4(_) => {
            let table = l3mdev_table(router, link).unwrap_or(RT_TABLE_LOCAL);
            let same = |info: &Info| info.source == Some(address);
            for (place, gone) in places(router, same) {
                let own = place.1 == table
                    || table == RT_TABLE_LOCAL && router.links.vrf_with_table(place.1).is_none();
                if !own {
                    continue;
                }
                take_routes(router, cause, place, true, |id| gone.contains(id));
            }
        }
        IpAddr::V6(_) => change_infos(router, |info| {
            (info.source == Some(address)).then(|| Info { source: None, ..info.clone() })
        }),
    }
}

/// Makes the tables of all VRFs. Linux: `vrf_rtable_create`, `vrf_rt6_create`.
pub(crate) fn add_vrf_tables(router: &mut Router) {
    let tables: Vec<u32> = router.links.iter().filter_map(|link| link.vrf_table()).collect();
    for table in tables {
        table_mut(router, Family::V4, table);
        table_mut(router, Family::V6, table);
    }
}
