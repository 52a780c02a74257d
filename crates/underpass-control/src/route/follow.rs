//! Routes that come and go with links and addresses. Linux: `fib_sync_down_dev`, `fib_sync_up`,
//! `fib6_ifdown`.

#![expect(
    clippy::indexing_slicing,
    reason = "places in lists of the model, found in the same step and not read from a request"
)]

use std::collections::BTreeSet;
use std::net::IpAddr;

use netlink_packet_core::{NLM_F_APPEND, NLM_F_EXCL};

use super::config::RT_TABLE_LOCAL;
use super::info::{Hop, Info, InfoId, Ways};
use super::table::{Family, Place};
use crate::Router;
use crate::events::Cause;

impl Router {
    /// Adds a route behind those of its metric.
    pub(crate) fn add_info(&mut self, cause: Cause, flags: u16, place: Place, info: Info) {
        match place.0 {
            Family::V6 => {
                if let Ok((id, said)) = self.add6(flags, place, info) {
                    self.notify_route(cause, libc::RTM_NEWROUTE, said, place, &[id]);
                }
            }
            Family::V4 => {
                let ids = self.ids(place);
                if ids.iter().any(|&id| self.routes.infos.get(id).is_some_and(|old| **old == info)) {
                    return;
                }
                let higher =
                    |id: &InfoId| self.routes.infos.get(*id).is_some_and(|old| old.metric > info.metric);
                let position = ids.iter().position(higher).unwrap_or(ids.len());
                let said = flags | if ids.is_empty() { NLM_F_EXCL } else { NLM_F_APPEND };
                let id = self.put(place, None, position, info);
                self.notify_route(cause, libc::RTM_NEWROUTE, said, place, &[id]);
            }
        }
    }

    /// Removes a route that is exactly this, if it is there.
    pub(crate) fn remove_info(&mut self, cause: Cause, place: Place, info: &Info) {
        let Some(id) = self.routes.infos.find(info) else { return };
        let ids = self.ids(place);
        if let Some(position) = ids.iter().position(|&other| other == id) {
            self.notify_route(cause, libc::RTM_DELROUTE, 0, place, &[id]);
            self.take(place, position);
        }
    }

    /// The places of routes that `wanted` takes.
    fn places(&self, wanted: impl Fn(&Info) -> bool) -> Vec<(Place, BTreeSet<InfoId>)> {
        let ids: BTreeSet<InfoId> =
            self.routes.infos.iter().filter(|(_, info)| wanted(info)).map(|(id, _)| id).collect();
        let mut places = Vec::new();
        if ids.is_empty() {
            return places;
        }
        for (&(family, table), routes) in &self.routes.tables {
            for prefix in routes.with(|id| ids.contains(&id)) {
                places.push(((family, table, prefix), ids.clone()));
            }
        }
        places
    }

    /// The places of routes that `wanted` takes.
    pub(crate) fn places_of(&self, wanted: impl Fn(&Info) -> bool) -> Vec<Place> {
        self.places(wanted).into_iter().map(|(place, _)| place).collect()
    }

    /// Removes the routes that `wanted` takes. IPv4 tells nobody when the cause is a link.
    pub(crate) fn remove_where(&mut self, cause: Cause, tell4: bool, wanted: impl Fn(&Info) -> bool) {
        for (place, gone) in self.places(wanted) {
            let ids = self.ids(place);
            for position in (0..ids.len()).rev().filter(|&i| gone.contains(&ids[i])) {
                if tell4 || place.0 == Family::V6 {
                    self.notify_route(cause, libc::RTM_DELROUTE, 0, place, &[ids[position]]);
                }
                self.take(place, position);
            }
        }
    }

    /// Puts other infos in the place of those that `change` gives one for.
    fn change_infos(&mut self, change: impl Fn(&Info) -> Option<Info>) {
        for (place, touched) in self.places(|info| change(info).is_some()) {
            let ids = self.ids(place);
            for (position, id) in ids.iter().enumerate().filter(|(_, id)| touched.contains(id)) {
                let Some(new) = self.routes.infos.get(*id).and_then(|info| change(info)) else { continue };
                self.put(place, Some(position), position, new);
            }
        }
    }

    /// A link is down: routes that lead there alone go, others lose that way.
    pub(crate) fn flush_routes_of(&mut self, cause: Cause, link: u32) {
        let lost = |hop: &Hop| hop.oif == link || hop.dead;
        let by = |info: &Info| info.hops().iter().any(|hop| hop.oif == link);
        // IPv4 keeps the routes to the addresses of the link, which stay on it.
        let kept = |info: &Info| info.scope == libc::RT_SCOPE_HOST && info.kind == libc::RTN_LOCAL;
        self.lose_siblings(cause, link);
        // What is dead already is an IPv6 route that has a living one beside it.
        self.remove_where(cause, false, |info| {
            let gone = info.hops().iter().all(lost) && !info.hops().iter().all(|hop| hop.dead);
            by(info) && !kept(info) && gone
        });
        self.change_infos(|info| {
            let Ways::Hops(hops) = &info.ways else { return None };
            if kept(info) || !hops.iter().any(|hop| hop.oif == link && !hop.dead) {
                return None;
            }
            let dead = |hop: &Hop| Hop { dead: lost(hop), ..hop.clone() };
            Some(Info { ways: Ways::Hops(hops.iter().map(dead).collect()), ..info.clone() })
        });
    }

    /// A link is down: IPv6 routes that share their packets with others stay, dead, as long as one of these lives. Linux:
    /// `fib6_ifdown`.
    fn lose_siblings(&mut self, cause: Cause, link: u32) {
        let led = |info: &Info| info.spreads() && info.hops().iter().any(|hop| hop.oif == link);
        for (place, touched) in self.places(led).into_iter().filter(|(place, _)| place.0 == Family::V6) {
            let ids = self.ids(place);
            for id in ids.into_iter().filter(|id| touched.contains(id)) {
                let lost = |id: &InfoId| {
                    let hops = self.routes.infos.get(*id).map(|info| info.hops());
                    hops.is_some_and(|hops| hops.iter().all(|hop| hop.oif == link || hop.dead))
                };
                let siblings = self.siblings(place, id);
                if siblings.len() < 2 {
                    continue;
                }
                let alive = !siblings.iter().all(lost);
                let gone = if alive { &[id][..] } else { &siblings[..] };
                for id in gone {
                    let Some(position) = self.ids(place).iter().position(|other| other == id) else {
                        continue;
                    };
                    let info = self.routes.infos.get(*id).cloned();
                    match info.as_deref() {
                        Some(info @ Info { ways: Ways::Hops(hops), .. }) if alive => {
                            let dead = hops.iter().map(|hop| Hop { dead: true, ..hop.clone() }).collect();
                            let info = Info { ways: Ways::Hops(dead), ..info.clone() };
                            self.put(place, Some(position), position, info);
                        }
                        _ => {
                            self.notify_route(cause, libc::RTM_DELROUTE, 0, place, &[*id]);
                            self.take(place, position);
                        }
                    }
                }
            }
        }
    }

    /// A link is no more: IPv6 routes that have stayed, dead, go.
    pub(crate) fn forget_routes_of(&mut self, cause: Cause, link: u32) {
        let dead = |info: &Info| info.spreads() && info.hops().iter().all(|hop| hop.dead && hop.oif == link);
        self.remove_where(cause, false, dead);
    }

    /// No IPv4 route by a link may stay, unless it has another way.
    pub(crate) fn flush_routes4_of(&mut self, link: u32) {
        let lost = |hop: &Hop| hop.oif == link || hop.dead;
        let by = |info: &Info| info.hops().iter().any(|hop| hop.oif == link) && info.hops().iter().all(lost);
        for (place, gone) in self.places(by).into_iter().filter(|(place, _)| place.0 == Family::V4) {
            let ids = self.ids(place);
            for position in (0..ids.len()).rev().filter(|&i| gone.contains(&ids[i])) {
                self.take(place, position);
            }
        }
        // Only routes of IPv4 have several ways.
        self.change_infos(|info| {
            let Ways::Hops(hops) = &info.ways else { return None };
            if hops.len() < 2 || !hops.iter().any(|hop| hop.oif == link && !hop.dead) {
                return None;
            }
            let dead = |hop: &Hop| Hop { dead: lost(hop), ..hop.clone() };
            Some(Info { ways: Ways::Hops(hops.iter().map(dead).collect()), ..info.clone() })
        });
    }

    /// A link is up, or has an IPv4 address again: routes get back the ways that they had lost with it.
    pub(crate) fn revive_routes_of(&mut self, link: u32) {
        if !self.links.get(link).is_some_and(|link| link.up()) || !self.routes.infos.any_dead() {
            return;
        }
        self.change_infos(|info| {
            let Ways::Hops(hops) = &info.ways else { return None };
            if !hops.iter().any(|hop| hop.oif == link && hop.dead) {
                return None;
            }
            let alive = |hop: &Hop| Hop { dead: hop.dead && hop.oif != link, ..hop.clone() };
            Some(Info { ways: Ways::Hops(hops.iter().map(alive).collect()), ..info.clone() })
        });
    }

    /// An address is gone: IPv4 routes that send from it go, IPv6 routes stay and send from another.
    pub(crate) fn flush_routes_from(&mut self, cause: Cause, address: IpAddr, link: u32) {
        match address {
            IpAddr::V4(_) => {
                let table = self.l3mdev_table(link).unwrap_or(RT_TABLE_LOCAL);
                let same = |info: &Info| info.source == Some(address);
                for (place, gone) in self.places(same) {
                    let own = place.1 == table || table == RT_TABLE_LOCAL && self.l3mdev(place.1).is_none();
                    if !own {
                        continue;
                    }
                    let ids = self.ids(place);
                    for position in (0..ids.len()).rev().filter(|&i| gone.contains(&ids[i])) {
                        self.notify_route(cause, libc::RTM_DELROUTE, 0, place, &[ids[position]]);
                        self.take(place, position);
                    }
                }
            }
            IpAddr::V6(_) => self.change_infos(|info| {
                (info.source == Some(address)).then(|| Info { source: None, ..info.clone() })
            }),
        }
    }

    /// Makes the tables of all VRFs. Linux: `vrf_rtable_create`, `vrf_rt6_create`.
    pub(crate) fn add_vrf_tables(&mut self) {
        let tables: Vec<u32> = self.links.iter().filter_map(|link| link.vrf_table()).collect();
        for table in tables {
            self.table_mut(Family::V4, table);
            self.table_mut(Family::V6, table);
        }
    }

    /// The VRF that has a table.
    fn l3mdev(&self, table: u32) -> Option<u32> {
        self.links.iter().find(|link| link.vrf_table() == Some(table)).map(|link| link.index)
    }
}
