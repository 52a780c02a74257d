//! Dependency updates: what else is compiled again when a route or a neighbour has changed.

use std::collections::BTreeSet;
use std::net::IpAddr;

use underpass_netlink::Encap;
use underpass_netlink::seg6::SegmentList;

use super::compiled::NextHopKey;
use super::info::{Hop, InfoId};
use super::ioam::of;
use super::published::Scope;
use super::table::{Family, Place, Prefix, bits};
use crate::Router;

impl Router {
    /// Compiles all actions again: the rules or the VRFs have changed, or the source of encapsulations.
    pub(crate) fn recompile_all(&mut self) {
        let numbers = self.routes.compiled.registry.numbers();
        numbers.into_iter().for_each(|number| self.recompile(number));
        self.publish_tunnels();
    }

    /// Resolves the addresses inside a prefix anew that actions hold the resolution of.
    pub(crate) fn resolve_inside(&mut self, family: Family, prefix: Prefix) {
        self.publish_tunnels_inside(family, prefix);
        let numbers = self.routes.compiled.registry.resolving(family, prefix);
        numbers.into_iter().for_each(|number| self.recompile(number));
    }

    /// The neighbours that routes name as their gateways and of which the kernel has heard nothing for a while.
    pub fn stale_gateways(&self) -> Vec<(u32, IpAddr)> {
        let of_routes = |key: &&NextHopKey| !self.routes.compiled.hosts.contains_key(key);
        let stale = |key: &&NextHopKey| {
            let neighbour = self.neighbours.get(key.0, key.1);
            neighbour.is_some_and(|neighbour| neighbour.state & libc::NUD_STALE != 0)
        };
        let next_hops = self.routes.compiled.next_hops.keys().filter(of_routes).filter(stale);
        next_hops.map(|&(link, address, _)| (link, address)).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Publishes what has changed of a neighbour.
    pub(crate) fn refresh_next_hop(&mut self, link: u32, address: IpAddr) {
        let keys: Vec<_> = self
            .routes
            .compiled
            .next_hops
            .iter()
            .filter(|(key, _)| (key.0, key.1) == (link, address))
            .map(|(key, (id, _))| (*key, *id))
            .collect();
        for (key, id) in keys {
            let next_hop = self.next_hop(key);
            self.engine.set_next_hop(id, next_hop);
        }
    }

    /// Publishes what has changed of a link to the next hops on it.
    pub(crate) fn refresh_next_hops(&mut self, link: u32) {
        let on_link = self.routes.compiled.next_hops.iter().filter(|(key, _)| key.0 == link);
        let keys: Vec<_> = on_link.map(|(key, (id, _))| (*key, *id)).collect();
        for (key, id) in keys {
            let next_hop = self.next_hop(key);
            if next_hop.rewrite.is_none() {
                self.want_neighbour(key.0, key.1);
            }
            self.engine.set_next_hop(id, next_hop);
        }
    }

    /// Gives back the actions of a neighbour that no host entry names any more.
    pub(crate) fn forget_host(&mut self, link: u32, address: IpAddr) {
        for number in self.routes.compiled.neighbours.remove(&(link, address)).unwrap_or_default() {
            self.remove_compiled(number);
        }
        let hosts = self.routes.compiled.hosts.keys();
        let keys: Vec<_> = hosts.filter(|key| (key.0, key.1) == (link, address)).copied().collect();
        for key in keys {
            if let Some(action) = self.routes.compiled.hosts.remove(&key) {
                self.routes.compiled.forwards.remove(&action);
                self.engine.remove_action(action);
                self.release_next_hop(key);
            }
        }
    }

    /// Compiles the actions again that insert options: what they say of the node or of a link is another now.
    pub(crate) fn recompile_ioam(&mut self) {
        let inserts = |hop: &Hop| of(hop).is_some();
        let ids: Vec<InfoId> = self
            .routes
            .infos
            .iter()
            .filter(|(_, info)| self.ways(info).iter().any(inserts))
            .map(|(id, _)| id)
            .collect();
        ids.into_iter().for_each(|id| self.recompile_info(id));
    }

    /// Compiles all orders of look-up anew: a rule or a VRF has changed.
    pub(crate) fn refresh_lookups(&mut self) {
        let scopes: Vec<_> = self.routes.published.lookups.iter().map(|(&s, &id)| (s, id)).collect();
        for (scope, id) in scopes {
            let lookup = self.compile_lookup(scope);
            self.engine.set_lookup(id, lookup);
        }
        self.forget_gateways();
        self.recompile_all();
    }

    /// Forgets which gateways have been found reachable.
    pub(crate) fn forget_gateways(&mut self) {
        self.routes.gateways.clear();
    }

    /// Compiles the look-up in a table that was not there.
    pub(super) fn table_made(&mut self, table: u32) {
        let scope = Scope::Table(table);
        if let Some(&id) = self.routes.published.lookups.get(&scope) {
            let lookup = self.compile_lookup(scope);
            self.engine.set_lookup(id, lookup);
        }
    }

    /// Publishes that the routes to a prefix of a table have changed.
    pub(crate) fn publish(&mut self, place: Place) {
        self.vrf_place_changed(place);
        let (family, table, prefix) = place;
        self.routes.gateways.forget(family, prefix);
        self.place_changed((family, table, prefix));
        for index in 0..self.routes.published.fibs.len() {
            let fib = &self.routes.published.fibs[index];
            if fib.family != family || !fib.tables.contains(&table) {
                continue;
            }
            self.set_leaf(index, prefix);
            // The prefixes inside that the other tables of the merger have may now end here, or no more.
            let mut inside = Vec::new();
            let mut before = true;
            for &other in &self.routes.published.fibs[index].tables {
                if other == table {
                    before = false;
                    continue;
                }
                let Some(routes) = self.routes.tables.get(&(family, other)) else { continue };
                // A table that is asked before decides alone, unless it throws.
                if routes.is_empty() || before && routes.throws == 0 {
                    continue;
                }
                inside.extend(routes.inside(prefix).map(|(prefix, _)| prefix));
            }
            inside.into_iter().for_each(|prefix| self.set_leaf(index, prefix));
            self.host_leaves(index, prefix);
        }
        self.resolve_inside(family, prefix);
    }

    /// A neighbour's link-layer address has become known, has changed, or is known no more.
    pub(crate) fn set_neighbour(&mut self, link: u32, address: IpAddr, mac: Option<[u8; 6]>) {
        let family = Family::of(address);
        let key = (family, bits(address));
        let there = self.routes.published.neighbours.entry(key).or_default();
        let known = there.iter().any(|(other, _)| *other == link);
        there.retain(|(other, _)| *other != link);
        there.extend(mac.map(|mac| (link, mac)));
        let last = there.is_empty();
        self.refresh_next_hop(link, address);
        if known != mac.is_some() {
            // Set while the entry is still there: a host entry that is to go must be looked at.
            let host = Prefix::host(address);
            if last {
                self.routes.published.neighbours.remove(&key);
            }
            for index in 0..self.routes.published.fibs.len() {
                if self.routes.published.fibs[index].family == family {
                    self.set_leaf(index, host);
                }
            }
            self.resolve_inside(family, host);
            if mac.is_none() {
                self.forget_host(link, address);
            }
        } else if last {
            self.routes.published.neighbours.remove(&key);
        }
    }

    /// Compiles the actions again that hold headers of such lists: their source may be another now, or a key.
    pub(crate) fn recompile_headends(&mut self, of: impl Fn(&SegmentList) -> bool) {
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
        let ids: Vec<InfoId> = self
            .routes
            .infos
            .iter()
            .filter(|(_, info)| self.ways(info).iter().any(encapsulates))
            .map(|(id, _)| id)
            .collect();
        ids.into_iter().for_each(|id| self.recompile_info(id));
    }

    /// `ip sr tunsrc` was set: encapsulations get another source.
    pub(crate) fn tunnel_source_changed(&mut self) {
        self.routes.compiled.sources.clear();
        self.recompile_headends(|_| true);
    }

    /// IPv6 addresses have changed: encapsulations get another source, if there is any that sends from another address
    /// by now.
    pub(crate) fn update_sources(&mut self) {
        let sources = &self.routes.compiled.sources;
        if sources.iter().any(|(&link, &source)| self.source6(link) != source) {
            self.tunnel_source_changed();
        }
    }

    /// Compiles the SIDs again that have programs: these can name a table that was not there.
    pub(crate) fn recompile_programs(&mut self) {
        let runs = |hop: &Hop| hop.tunnel.as_ref().is_some_and(|tunnel| tunnel.program.is_some());
        let infos = self.routes.infos.iter().filter(|(_, info)| self.ways(info).iter().any(runs));
        let ids: Vec<InfoId> = infos.map(|(id, _)| id).collect();
        ids.into_iter().for_each(|id| self.recompile_info(id));
    }

    /// Takes note that the routes of a place have changed, if the host may need to know.
    pub(crate) fn place_changed(&mut self, place: Place) {
        if self.live.is_none() {
            return;
        }
        let (family, table, prefix) = place;
        let routes = self.routes.tables.get(&(family, table));
        let own = routes
            .into_iter()
            .flat_map(|routes| routes.get(prefix))
            .any(|&id| self.routes.infos.get(id).is_some_and(|info| info.own()));
        let Some(live) = &mut self.live else { return };
        // Where there was one before, it may have to go.
        if own {
            live.own_places.insert(place);
            live.changed_places.insert(place);
        } else if live.own_places.remove(&place) {
            live.changed_places.insert(place);
        }
    }

    /// Takes note of a change at a place.
    pub(crate) fn vrf_place_changed(&mut self, place: Place) {
        if self.vrf_of_table(place.1).is_some()
            && let Some(live) = &mut self.live
        {
            live.vrf_routes.dirty.insert(place);
        }
    }
}
