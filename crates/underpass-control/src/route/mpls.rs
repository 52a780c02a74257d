//! MPLS routes: what becomes of packets with a label. Linux: `net/mpls/af_mpls.c`.
//!
//! A label's route is a number and its first new label; what else there is to it (its ways, its protocol) is
//! a [`Spec`], which all labels share that have the same. So a label costs eight bytes here, and eight in the
//! table of the packet path.

mod dump;
mod netconf;
mod request;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use underpass_engine::tables::{
    Action, ActionId, Discard, IpVersion, LabelAction, LookupId, Multipath, NextHop, NextHopId, Rewrite,
    Switch, SwitchTo,
};
use underpass_netlink::mpls::{Mpls, Via, stack};

pub(crate) use dump::dump;
pub(crate) use netconf::{dump as dump_netconf, get as get_netconf};
pub(crate) use request::{delete, get, new};

use super::compile::NextHopKey;
use super::publish::Scope;
use crate::Router;

/// Labels below it have a meaning of their own: RFC 3032 section 2.1.
const FIRST_UNRESERVED: u32 = 16;
/// No label.
const NONE: u32 = u32::MAX;
/// `AF_MPLS`.
pub(crate) const AF_MPLS: u8 = libc::AF_MPLS as u8;

/// Where packets go.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Way {
    oif: u32,
    /// `None`: to the link's own address, or if it is a VRF or `lo`, no further.
    via: Option<Via>,
    weight: u16,
    /// What is put on, the outermost first. Empty for the only way of a route with one label or none.
    labels: Box<[u32]>,
}

/// A route, but for what label it is of.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Spec {
    protocol: u8,
    /// `ttl-propagate`; `None`: as `net.mpls.ip_ttl_propagate` says.
    propagate: Option<bool>,
    ways: Box<[Way]>,
}

/// A route of a label: the number of its spec, and the label that is put on if there is just one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Route {
    /// [`NONE`] for no route.
    spec: u32,
    /// [`NONE`] for no label, or for those of the spec.
    label: u32,
}

const NO_ROUTE: Route = Route { spec: NONE, label: NONE };

/// What the packet path does for a spec, and what is held for it.
#[derive(Debug, Default)]
struct Compiled {
    /// What is done if it is just a next hop, and a label or none.
    next_hop: Option<NextHopId>,
    /// What is done otherwise.
    action: Option<ActionId>,
    /// The actions of several ways.
    children: Vec<ActionId>,
    neighbours: Vec<NextHopKey>,
    /// Next hops of given link-layer addresses.
    stations: Vec<NextHopId>,
}

#[derive(Debug)]
struct Entry {
    spec: Arc<Spec>,
    routes: usize,
    compiled: Compiled,
}

/// The label routes.
#[derive(Debug)]
pub(crate) struct Labels {
    /// By label, as many as `net.mpls.platform_labels` says.
    routes: Vec<Route>,
    specs: Vec<Option<Entry>>,
    free: Vec<u32>,
    by_spec: HashMap<Arc<Spec>, u32>,
    /// The links that take labels: `net.mpls.conf.IF.input`.
    input: BTreeSet<u32>,
    /// `net.mpls.ip_ttl_propagate`.
    propagate: bool,
    /// `net.mpls.default_ttl`.
    default_ttl: u8,
    /// Changes with every change of a route.
    generation: u64,
}

impl Default for Labels {
    fn default() -> Self {
        Self {
            routes: Vec::new(),
            specs: Vec::new(),
            free: Vec::new(),
            by_spec: HashMap::new(),
            input: BTreeSet::new(),
            propagate: true,
            default_ttl: 255,
            generation: 0,
        }
    }
}

impl Labels {
    fn get(&self, label: u32) -> Option<(Route, &Spec)> {
        let route = *self.routes.get(label as usize)?;
        let entry = self.specs.get(route.spec as usize)?.as_ref()?;
        Some((route, &entry.spec))
    }

    /// The labels that have this spec.
    fn of_spec(&self, spec: u32) -> Vec<u32> {
        let of = |(_, route): &(u32, &Route)| route.spec == spec;
        (0..).zip(&self.routes).filter(of).map(|(label, _)| label).collect()
    }

    /// The TTL of labels that an encapsulation puts on; `None`: that of the packet.
    pub fn pushed_ttl(&self, mpls: &Mpls) -> Option<u8> {
        match mpls.ttl {
            Some(0) => None,
            Some(ttl) => Some(ttl),
            None => Some(self.default_ttl).filter(|_| !self.propagate),
        }
    }

    /// Whether a link takes labels.
    pub fn takes(&self, link: u32) -> bool {
        self.input.contains(&link)
    }
}

impl Router {
    /// Sets `net.mpls.platform_labels`: labels from there on lose their routes. Linux:
    /// `resize_platform_label_table`.
    pub(crate) fn resize_labels(&mut self, count: u32) {
        let old = self.routes.labels.routes.len() as u32;
        for label in count..old {
            self.set_label(label, None);
        }
        self.routes.labels.routes.resize(count as usize, NO_ROUTE);
        self.routes.labels.routes.shrink_to_fit();
        // RFC 3032 section 2.1: the explicit null labels end here.
        for (label, payload) in [(0, IpVersion::V4), (2, IpVersion::V6)] {
            match (old > label, count > label) {
                (false, true) => self.publish_explicit_null(label, payload),
                (true, false) => self.engine.set_label(label, None),
                _ => {}
            }
        }
    }

    fn publish_explicit_null(&mut self, label: u32, payload: IpVersion) {
        let to = SwitchTo::Here { lookup: self.here(None), labels: false, hop: true };
        let propagate = self.routes.labels.propagate;
        let switch = Switch { labels: Box::default(), to, propagate, payload: Some(payload) };
        let action = self.engine.add_action(Action::Switch(switch));
        self.engine.set_label(label, Some(LabelAction::Act(action)));
    }

    /// Sets `net.mpls.ip_ttl_propagate`.
    pub(crate) fn set_ttl_propagate(&mut self, propagate: bool) {
        self.routes.labels.propagate = propagate;
        self.recompile_labels(|_| true);
        let labels = self.routes.labels.routes.len() as u32;
        for (label, payload) in [(0, IpVersion::V4), (2, IpVersion::V6)] {
            if labels > label {
                self.publish_explicit_null(label, payload);
            }
        }
        self.recompile_all();
    }

    /// Sets `net.mpls.default_ttl`.
    pub(crate) fn set_label_ttl(&mut self, ttl: u8) {
        self.routes.labels.default_ttl = ttl;
        self.recompile_all();
    }

    /// Sets `net.mpls.conf.IF.input`.
    pub(crate) fn set_label_input(&mut self, link: u32, takes: bool) {
        let labels = &mut self.routes.labels;
        let changed = if takes { labels.input.insert(link) } else { labels.input.remove(&link) };
        if changed {
            self.publish_link(link);
            self.tell_label_input(link);
            let loopback = self.links.get(link).is_some_and(|link| link.kind == crate::LinkKind::Loopback);
            if loopback {
                self.recompile_labels(|_| true);
            }
        }
    }

    /// Gives a label another route, or none.
    fn set_label(&mut self, label: u32, route: Option<(Spec, u32)>) {
        let Some(&old) = self.routes.labels.routes.get(label as usize) else { return };
        let new = match route {
            Some((spec, first)) => Route { spec: self.hold_spec(spec), label: first },
            None => NO_ROUTE,
        };
        self.routes.labels.routes[label as usize] = new;
        self.routes.labels.generation += 1;
        self.publish_label(label);
        if old.spec != NONE {
            self.release_spec(old.spec);
        }
    }

    fn publish_label(&mut self, label: u32) {
        let labels = &self.routes.labels;
        let action = labels.get(label).and_then(|(route, spec)| {
            let compiled = &labels.specs.get(route.spec as usize)?.as_ref()?.compiled;
            Some(match (compiled.next_hop, route.label) {
                (Some(next_hop), NONE) => {
                    let propagate = spec.propagate.unwrap_or(labels.propagate);
                    LabelAction::Pop { next_hop, propagate }
                }
                (Some(next_hop), label) => LabelAction::Swap { label, next_hop },
                (None, _) => LabelAction::Act(compiled.action?),
            })
        });
        self.engine.set_label(label, action);
    }

    fn hold_spec(&mut self, spec: Spec) -> u32 {
        if let Some(&number) = self.routes.labels.by_spec.get(&spec) {
            if let Some(Some(entry)) = self.routes.labels.specs.get_mut(number as usize) {
                entry.routes += 1;
            }
            return number;
        }
        let spec = Arc::new(spec);
        let compiled = self.compile_spec(&spec);
        let labels = &mut self.routes.labels;
        let number = labels.free.pop().unwrap_or_else(|| {
            labels.specs.push(None);
            labels.specs.len() as u32 - 1
        });
        labels.by_spec.insert(spec.clone(), number);
        labels.specs[number as usize] = Some(Entry { spec, routes: 1, compiled });
        number
    }

    fn release_spec(&mut self, number: u32) {
        let labels = &mut self.routes.labels;
        let Some(slot) = labels.specs.get_mut(number as usize) else { return };
        let Some(entry) = slot else { return };
        entry.routes -= 1;
        if entry.routes == 0
            && let Some(entry) = slot.take()
        {
            labels.by_spec.remove(&entry.spec);
            labels.free.push(number);
            self.forget_compiled_spec(entry.compiled);
        }
    }

    fn forget_compiled_spec(&mut self, compiled: Compiled) {
        compiled.action.into_iter().for_each(|action| self.engine.remove_action(action));
        compiled.children.into_iter().for_each(|action| self.engine.remove_action(action));
        compiled.neighbours.into_iter().for_each(|key| self.release_next_hop(key));
        compiled.stations.into_iter().for_each(|id| self.engine.remove_next_hop(id));
    }

    /// A link has gone down, come up or changed: what leads to it follows.
    pub(crate) fn refresh_labels_of(&mut self, link: u32) {
        self.recompile_labels(|spec| spec.ways.iter().any(|way| way.oif == link));
    }

    /// A link is no more: routes whose every way led to it go. Linux: `mpls_ifdown`, which tells.
    pub(crate) fn forget_labels_of(&mut self, link: u32) {
        self.routes.labels.input.remove(&link);
        let labels = &self.routes.labels;
        let gone = |entry: &Entry| entry.spec.ways.iter().all(|way| way.oif == link);
        let specs = (0..).zip(&labels.specs).filter(|(_, entry)| entry.as_ref().is_some_and(gone));
        let specs: BTreeSet<u32> = specs.map(|(number, _)| number).collect();
        if specs.is_empty() {
            return;
        }
        let of = |(_, route): &(u32, &Route)| specs.contains(&route.spec);
        let gone: Vec<u32> = (0..).zip(&labels.routes).filter(of).map(|(label, _)| label).collect();
        for label in gone {
            self.tell_label(crate::events::Cause::default(), libc::RTM_DELROUTE, 0, label);
            self.set_label(label, None);
        }
    }

    fn recompile_labels(&mut self, touched: impl Fn(&Spec) -> bool) {
        for number in 0..self.routes.labels.specs.len() {
            let Some(Some(entry)) = self.routes.labels.specs.get(number) else { continue };
            if !touched(&entry.spec) {
                continue;
            }
            let spec = entry.spec.clone();
            let compiled = self.compile_spec(&spec);
            let Some(Some(entry)) = self.routes.labels.specs.get_mut(number) else { continue };
            let old = std::mem::replace(&mut entry.compiled, compiled);
            for label in self.routes.labels.of_spec(number as u32) {
                self.publish_label(label);
            }
            self.forget_compiled_spec(old);
        }
    }

    fn compile_spec(&mut self, spec: &Spec) -> Compiled {
        let mut compiled = Compiled::default();
        let propagate = spec.propagate.unwrap_or(self.routes.labels.propagate);
        let mut ways = Vec::new();
        for way in &spec.ways {
            if let Some(to) = self.way_to(way, &mut compiled) {
                ways.push((way, to));
            }
        }
        let switch = |way: &Way, to| {
            let mut labels = stack(&way.labels);
            if let [.., flags, _] = &mut labels[..] {
                *flags &= !1;
            }
            Action::Switch(Switch { labels: labels.into(), to, propagate, payload: None })
        };
        match (&ways[..], spec.ways.len()) {
            ([], _) => {
                let action = Action::Discard(Discard::Unreachable);
                compiled.action = Some(self.engine.add_action(action));
            }
            ([(way, SwitchTo::NextHop(next_hop))], 1) if way.labels.is_empty() => {
                compiled.next_hop = Some(*next_hop);
            }
            ([(way, to)], _) => compiled.action = Some(self.engine.add_action(switch(way, *to))),
            (ways, _) => {
                let total: u64 = ways.iter().map(|(way, _)| u64::from(way.weight)).sum();
                let (mut buckets, mut weight) = (Vec::new(), 0);
                for (way, to) in ways {
                    weight += u64::from(way.weight);
                    let bound = ((weight << 31) + total / 2) / total - 1;
                    let child = self.engine.add_action(switch(way, *to));
                    compiled.children.push(child);
                    buckets.push((bound as u32, child));
                }
                let several = Action::Multipath(Multipath { buckets: buckets.into() });
                compiled.action = Some(self.engine.add_action(several));
            }
        }
        compiled
    }

    /// Where a way leads; `None`: its link is down or no more.
    fn way_to(&mut self, way: &Way, compiled: &mut Compiled) -> Option<SwitchTo> {
        let link = self.links.get(way.oif).filter(|link| link.up())?;
        let (vrf, mac, resolves) = (link.vrf_table(), link.mac, link.kind != crate::LinkKind::Loopback);
        let station = match way.via {
            None if vrf.is_some() || !resolves => {
                let labels = vrf.is_none() && self.routes.labels.takes(way.oif);
                return Some(SwitchTo::Here { lookup: self.here(vrf), labels, hop: vrf.is_none() });
            }
            Some(Via::Ip(address)) => {
                let key = (way.oif, address, 0);
                let next_hop = self.hold_next_hop(key);
                compiled.neighbours.push(key);
                return Some(SwitchTo::NextHop(next_hop));
            }
            Some(Via::Link(station)) => station,
            None => mac,
        };
        let (mtu, port) = (link.mtu, link.port()?);
        let mut bytes = [0; 20];
        bytes[..6].copy_from_slice(&station);
        bytes[6..12].copy_from_slice(&mac);
        let next_hop = self.engine.add_next_hop(NextHop {
            link: self.link_id(way.oif),
            port,
            mtu,
            rewrite: Some(Rewrite { bytes, len: 12 }),
            address: std::net::Ipv4Addr::UNSPECIFIED.into(),
        });
        compiled.stations.push(next_hop);
        Some(SwitchTo::NextHop(next_hop))
    }

    /// Where packets are looked up that have arrived, in a VRF or not.
    fn here(&mut self, vrf: Option<u32>) -> LookupId {
        self.lookup(Scope::Rules { link: 0, vrf })
    }
}
