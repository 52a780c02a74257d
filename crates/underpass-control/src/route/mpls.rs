//! MPLS routes: what becomes of packets with a label. Linux: `net/mpls/af_mpls.c`.
//!
//! A label's route is one word: its [`Spec`], and up to two labels that are put on. A spec (the protocol, where
//! the ways lead) is shared by all labels that have the same. So a label costs eight bytes here, and eight in
//! the table of the packet path; with several ways, the labels of each besides.

#![expect(
    clippy::indexing_slicing,
    reason = "places in lists of the model, found in the same step and not read from a request"
)]

mod dump;
mod netconf;
mod object;
mod request;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use smallvec::SmallVec;
use underpass_engine::tables::{
    Action, ActionId, Discard, IpVersion, LabelAction, LookupId, NextHop, NextHopId, Rewrite, Switch,
    SwitchTo,
};
use underpass_netlink::RequestError;
use underpass_netlink::mpls::{Mpls, Via, stack};
use underpass_packet::mpls::{IPV6_EXPLICIT_NULL, MAX_LABEL};

pub(crate) use dump::{LabelDump, dump};
pub(crate) use netconf::{dump as dump_netconf, dump_next as dump_next_netconf, get as get_netconf};
pub(crate) use request::{delete, get, new};

use super::compile::NextHopKey;
use super::publish::{LOOPBACK, Scope};
use crate::Router;
use crate::events::Cause;

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
    /// What is put on, the outermost first. In a spec empty where the route has them, [`OWN_LABELS`] at most.
    labels: Box<[u32]>,
}

/// Labels of a way that a route has, not its spec; more are rare.
const OWN_LABELS: usize = 2;

/// A route, but for what label it is of.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Spec {
    protocol: u8,
    /// `ttl-propagate`; `None`: as `net.mpls.ip_ttl_propagate` says.
    propagate: Option<bool>,
    ways: Box<[Way]>,
    /// The next-hop object that has the ways, with all their labels.
    object: Option<u32>,
}

/// The labels that the ways of a route put on: of each, those that its spec does not have.
type Stacks = SmallVec<[Stack; 1]>;
type Stack = SmallVec<[u32; 2]>;

/// A route of a label: the number of its spec (22 bits), how many labels its only way puts on (2 bits), and which
/// (20 bits each); of several ways 3, and where their labels are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Route(u64);

const NO_ROUTE: Route = Route(u64::MAX);
/// Most specs.
const SPECS: usize = (1 << 22) - 1;
const SPEC: u32 = 42;
const COUNT: u32 = 40;
const LABEL: u32 = 20;
/// Labels of several ways.
const LISTED: u32 = 3;

impl Route {
    fn new(spec: u32, count: u32, value: u64) -> Self {
        Self(u64::from(spec) << SPEC | u64::from(count) << COUNT | value)
    }

    fn spec(self) -> Option<u32> {
        (self != NO_ROUTE).then_some((self.0 >> SPEC) as u32)
    }

    fn count(self) -> u32 {
        (self.0 >> COUNT) as u32 & 3
    }

    /// Where the labels of several ways are.
    fn list(self) -> Option<usize> {
        (self != NO_ROUTE && self.count() == LISTED).then_some(self.0 as u32 as usize)
    }
}

/// The labels of several ways in a row: bit 31 marks the last of a way, and stands alone for one without.
type List = SmallVec<[u32; 4]>;
const LAST: u32 = 1 << 31;

/// What the packet path does by the ways of a spec, and what is held for it.
#[derive(Debug, Default)]
struct Compiled {
    /// By way; `None`: its link is down or no more.
    to: Box<[Option<To>]>,
    /// What is done if it has one way, and that leads nowhere.
    discard: Option<ActionId>,
    neighbours: Vec<NextHopKey>,
    /// Next hops of given link-layer addresses.
    stations: Vec<NextHopId>,
}

/// Where a way leads.
#[derive(Clone, Copy, Debug)]
enum To {
    /// To this next hop, with the labels of the route.
    NextHop(NextHopId),
    /// What is done by this action, which has the labels.
    Act(ActionId),
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
    free_specs: Vec<u32>,
    by_spec: HashMap<Arc<Spec>, u32>,
    /// The specs whose ways are those of an object.
    by_objects: BTreeSet<u32>,
    lists: Vec<List>,
    free_lists: Vec<u32>,
    /// What is done with the explicit null labels of IPv4 and IPv6.
    explicit_nulls: [Option<ActionId>; 2],
    /// The links that take labels: `net.mpls.conf.IF.input`.
    input: BTreeSet<u32>,
    /// `net.mpls.ip_ttl_propagate`.
    propagate: bool,
    /// `net.mpls.default_ttl`.
    pub default_ttl: u8,
    /// Changes with every change of a route.
    generation: u64,
}

impl Default for Labels {
    fn default() -> Self {
        Self {
            routes: Vec::new(),
            specs: Vec::new(),
            free_specs: Vec::new(),
            by_spec: HashMap::new(),
            by_objects: BTreeSet::new(),
            lists: Vec::new(),
            free_lists: Vec::new(),
            explicit_nulls: [None; 2],
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
        let entry = self.specs.get(route.spec()? as usize)?.as_ref()?;
        Some((route, &entry.spec))
    }

    /// Labels that may have counted: those that have a route, and the explicit null labels.
    pub fn all(&self) -> impl Iterator<Item = u32> + use<'_> {
        let routed = |label: &u32| *label <= IPV6_EXPLICIT_NULL || self.has(*label);
        (0..self.routes.len() as u32).filter(routed)
    }

    /// Whether a label has a route of its own.
    pub fn has(&self, label: u32) -> bool {
        self.routes.get(label as usize).is_some_and(|route| *route != NO_ROUTE)
    }

    /// The labels of each way of a route that its spec does not have.
    fn stacks(&self, route: Route) -> Stacks {
        let label = |shift: u32| (route.0 >> shift) as u32 & MAX_LABEL;
        match (route.list(), route.count()) {
            (Some(list), _) => {
                let list = self.lists.get(list).map(|list| &list[..]).unwrap_or_default();
                let stacks = list.split_inclusive(|label| label & LAST != 0);
                let known = |label: &u32| (*label != u32::MAX).then_some(label & MAX_LABEL);
                stacks.map(|stack| stack.iter().filter_map(known).collect()).collect()
            }
            (None, 2) => [[label(LABEL), label(0)].into()].into(),
            (None, 1) => [std::iter::once(label(0)).collect()].into(),
            (None, _) => [Stack::new()].into(),
        }
    }

    /// A route of this spec whose ways put these labels on.
    fn route(&mut self, spec: u32, stacks: &Stacks) -> Route {
        match &stacks[..] {
            [stack] => match stack[..] {
                [first, last, ..] => Route::new(spec, 2, u64::from(first) << LABEL | u64::from(last)),
                [only] => Route::new(spec, 1, only.into()),
                [] => Route::new(spec, 0, 0),
            },
            stacks => {
                let mut list = List::new();
                for stack in stacks {
                    match &stack[..] {
                        [first @ .., last] => list.extend(first.iter().copied().chain([last | LAST])),
                        [] => list.push(u32::MAX),
                    }
                }
                list.shrink_to_fit();
                let place = self.free_lists.pop().unwrap_or_else(|| {
                    self.lists.push(List::new());
                    self.lists.len() as u32 - 1
                });
                self.lists[place as usize] = list;
                Route::new(spec, LISTED, place.into())
            }
        }
    }

    /// The TTL of labels that an encapsulation puts on; `None`: that of the packet.
    pub fn pushed_ttl(&self, mpls: &Mpls) -> Option<u8> {
        match mpls.ttl {
            Some(0) => None,
            Some(ttl) => Some(ttl),
            None => (!self.propagate).then_some(self.default_ttl),
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
            self.forget_label(label);
        }
        self.routes.labels.routes.resize(count as usize, NO_ROUTE);
        self.routes.labels.routes.shrink_to_fit();
        self.publish_explicit_nulls();
    }

    /// RFC 3032 section 2.1: the explicit null labels end here. Where another label is below, it is looked up as one that
    /// comes in by `lo`.
    fn publish_explicit_nulls(&mut self) {
        let count = self.routes.labels.routes.len() as u32;
        for (place, label, payload) in [(0, 0, IpVersion::V4), (1, 2, IpVersion::V6)] {
            let action = (count > label).then(|| {
                let labels = self.routes.labels.takes(LOOPBACK);
                let to = SwitchTo::Here { lookup: self.here(None), labels, vrf: None };
                let propagate = self.routes.labels.propagate;
                let switch = Switch { labels: Box::default(), to, propagate, payload: Some(payload) };
                self.engine.add_action(Action::Switch(switch))
            });
            let old = std::mem::replace(&mut self.routes.labels.explicit_nulls[place], action);
            self.engine.set_label(label, action.map(LabelAction::Act));
            old.into_iter().for_each(|old| self.engine.remove_action(old));
        }
    }

    /// Sets `net.mpls.ip_ttl_propagate`.
    pub(crate) fn set_ttl_propagate(&mut self, propagate: bool) {
        self.routes.labels.propagate = propagate;
        self.recompile_labels(|_, _| true);
        self.publish_explicit_nulls();
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
            self.notify_label_input(link);
            let loopback = self.links.get(link).is_some_and(|link| link.kind == crate::LinkKind::Loopback);
            if loopback {
                self.recompile_labels(|_, _| true);
                self.publish_explicit_nulls();
            }
        }
    }

    /// Gives a label another route, or none.
    fn set_label(&mut self, label: u32, route: Option<(Spec, Stacks)>) -> Result<(), RequestError> {
        let Some(&old) = self.routes.labels.routes.get(label as usize) else { return Ok(()) };
        let new = match route {
            Some((spec, stacks)) => {
                let spec = self.hold_spec(spec)?;
                self.routes.labels.route(spec, &stacks)
            }
            None => NO_ROUTE,
        };
        let labels = &mut self.routes.labels;
        labels.routes[label as usize] = new;
        labels.generation += 1;
        self.publish_label(label);
        if let Some(list) = old.list() {
            let labels = &mut self.routes.labels;
            labels.lists[list] = List::new();
            labels.free_lists.push(list as u32);
        }
        if let Some(spec) = old.spec() {
            self.release_spec(spec);
        }
        Ok(())
    }

    fn forget_label(&mut self, label: u32) {
        // Only a new route needs memory.
        let _ = self.set_label(label, None);
    }

    fn publish_label(&mut self, label: u32) {
        let old = self.engine.label(label);
        let new = self.label_action(label);
        self.engine.set_label(label, new);
        if let Some(LabelAction::Ways(ways)) = old {
            self.engine.remove_label_ways(ways);
        }
    }

    fn label_action(&mut self, label: u32) -> Option<LabelAction> {
        let labels = &self.routes.labels;
        let (route, spec) = labels.get(label)?;
        let compiled = &labels.specs.get(route.spec()? as usize)?.as_ref()?.compiled;
        let propagate = spec.propagate.unwrap_or(labels.propagate);
        let action = |to: To, stack: &Stack| match (to, &stack[..]) {
            (To::NextHop(next_hop), []) => LabelAction::Pop { next_hop, propagate },
            (To::NextHop(next_hop), [label]) => LabelAction::Swap { label: *label, next_hop },
            (To::NextHop(next_hop), [first, last, ..]) => {
                LabelAction::SwapPush { labels: [*first, *last], next_hop }
            }
            (To::Act(action), _) => LabelAction::Act(action),
        };
        let stacks = match spec.object {
            Some(_) => object::stacks(&spec.ways),
            None => labels.stacks(route),
        };
        if let ([to], [stack]) = (&compiled.to[..], &stacks[..]) {
            return match to {
                Some(to) => Some(action(*to, stack)),
                None => compiled.discard.map(LabelAction::Act),
            };
        }
        let ways = spec.ways.iter().zip(&compiled.to).zip(&stacks);
        let ways: Vec<(u16, LabelAction)> =
            ways.filter_map(|((way, to), stack)| Some((way.weight, action((*to)?, stack)))).collect();
        if ways.is_empty() {
            return compiled.discard.map(LabelAction::Act);
        }
        Some(LabelAction::Ways(self.engine.add_label_ways(&ways)))
    }

    fn hold_spec(&mut self, spec: Spec) -> Result<u32, RequestError> {
        if let Some(&number) = self.routes.labels.by_spec.get(&spec) {
            if let Some(Some(entry)) = self.routes.labels.specs.get_mut(number as usize) {
                entry.routes += 1;
            }
            return Ok(number);
        }
        let labels = &mut self.routes.labels;
        let number = match labels.free_specs.pop() {
            Some(number) => number,
            None if labels.specs.len() >= SPECS => return Err(RequestError::errno(libc::ENOMEM)),
            None => {
                labels.specs.push(None);
                labels.specs.len() as u32 - 1
            }
        };
        let spec = Arc::new(spec);
        let compiled = self.compile_spec(&spec);
        let labels = &mut self.routes.labels;
        labels.by_spec.insert(spec.clone(), number);
        if spec.object.is_some() {
            labels.by_objects.insert(number);
        }
        labels.specs[number as usize] = Some(Entry { spec, routes: 1, compiled });
        Ok(number)
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
            labels.by_objects.remove(&number);
            labels.free_specs.push(number);
            self.forget_compiled_spec(entry.compiled);
        }
    }

    fn forget_compiled_spec(&mut self, compiled: Compiled) {
        compiled.discard.into_iter().for_each(|action| self.engine.remove_action(action));
        for to in compiled.to.into_iter().flatten() {
            if let To::Act(action) = to {
                self.engine.remove_action(action);
            }
        }
        compiled.neighbours.into_iter().for_each(|key| self.release_next_hop(key));
        compiled.stations.into_iter().for_each(|id| self.engine.remove_next_hop(id));
    }

    /// A link has gone down, come up or changed: what leads to it follows.
    pub(crate) fn refresh_labels_of(&mut self, link: u32) {
        self.recompile_labels(|_, spec| spec.ways.iter().any(|way| way.oif == link));
    }

    /// A link is no more: routes whose every way led to it go. Linux: `mpls_ifdown`, which tells.
    pub(crate) fn forget_labels_of(&mut self, link: u32) {
        self.routes.labels.input.remove(&link);
        self.forget_labels(Cause::default(), |spec| spec.ways.iter().all(|way| way.oif == link));
    }

    /// Routes of some specs go, and that is told.
    fn forget_labels(&mut self, cause: Cause, gone: impl Fn(&Spec) -> bool) {
        let labels = &self.routes.labels;
        let gone = |entry: &Entry| gone(&entry.spec);
        let specs = (0..).zip(&labels.specs).filter(|(_, entry)| entry.as_ref().is_some_and(gone));
        let specs: BTreeSet<u32> = specs.map(|(number, _)| number).collect();
        if specs.is_empty() {
            return;
        }
        for label in self.labels_of(|spec| specs.contains(&spec)) {
            self.notify_label(cause, libc::RTM_DELROUTE, 0, label);
            self.forget_label(label);
        }
    }

    /// The labels whose spec is one of those.
    fn labels_of(&self, specs: impl Fn(u32) -> bool) -> Vec<u32> {
        let of = |(_, route): &(u32, &Route)| route.spec().is_some_and(&specs);
        (0..).zip(&self.routes.labels.routes).filter(of).map(|(label, _)| label).collect()
    }

    fn recompile_labels(&mut self, touched: impl Fn(u32, &Spec) -> bool) {
        let mut replaced = BTreeMap::new();
        for number in 0..self.routes.labels.specs.len() {
            let Some(Some(entry)) = self.routes.labels.specs.get(number) else { continue };
            if !touched(number as u32, &entry.spec) {
                continue;
            }
            let spec = entry.spec.clone();
            let compiled = self.compile_spec(&spec);
            let Some(Some(entry)) = self.routes.labels.specs.get_mut(number) else { continue };
            replaced.insert(number as u32, std::mem::replace(&mut entry.compiled, compiled));
        }
        for label in self.labels_of(|spec| replaced.contains_key(&spec)) {
            self.publish_label(label);
        }
        replaced.into_values().for_each(|old| self.forget_compiled_spec(old));
    }

    fn compile_spec(&mut self, spec: &Spec) -> Compiled {
        let mut compiled = Compiled::default();
        let propagate = spec.propagate.unwrap_or(self.routes.labels.propagate);
        let mut ways = Vec::with_capacity(spec.ways.len());
        for way in &spec.ways {
            let to = self.way_to(way, &mut compiled);
            ways.push(to.map(|to| match to {
                SwitchTo::NextHop(next_hop)
                    if way.labels.is_empty() || spec.object.is_some() && way.labels.len() <= OWN_LABELS =>
                {
                    To::NextHop(next_hop)
                }
                to => {
                    let mut labels = stack(&way.labels);
                    if let [.., flags, _] = &mut labels[..] {
                        *flags &= !1;
                    }
                    let switch = Switch { labels: labels.into(), to, propagate, payload: None };
                    To::Act(self.engine.add_action(Action::Switch(switch)))
                }
            }));
        }
        if ways.iter().all(Option::is_none) {
            compiled.discard = Some(self.engine.add_action(Action::Discard(Discard::Unreachable)));
        }
        compiled.to = ways.into();
        compiled
    }

    /// Where a way leads; `None`: its link is down or no more.
    fn way_to(&mut self, way: &Way, compiled: &mut Compiled) -> Option<SwitchTo> {
        let link = self.links.get(way.oif).filter(|link| link.up())?;
        let (vrf, mac, resolves) = (link.vrf_table(), link.mac, link.kind != crate::LinkKind::Loopback);
        let device = vrf.map(|_| link.id);
        let station = match way.via {
            None if vrf.is_some() || !resolves => {
                let labels = vrf.is_none() && self.routes.labels.takes(way.oif);
                return Some(SwitchTo::Here { lookup: self.here(vrf), labels, vrf: device });
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

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use underpass_engine::buffer::PortId;
    use underpass_engine::tables::Writer;

    use super::*;

    #[test]
    fn nothing_is_left_of_routes_that_are_gone() {
        let mut router = Router::new(Writer::new(1).0);
        let oif = router.add_port("v0", [2, 0, 0, 0, 0, 1], PortId(0)).unwrap();
        router.resize_labels(100);
        let way = |n: u32, labels: &[u32]| Way {
            oif,
            via: Some(Via::Ip(Ipv4Addr::from_bits(n).into())),
            weight: 1,
            labels: labels.into(),
        };
        let deep = [7; 30];
        let held = |router: &Router| {
            let labels = &router.routes.labels;
            (labels.by_spec.len(), labels.lists.len() - labels.free_lists.len())
        };
        // Each time in the place of other routes than before.
        for turn in 0..3 {
            for label in FIRST_UNRESERVED..100 {
                let n = label + turn;
                let (ways, stacks): (Vec<Way>, Stacks) = match n % 3 {
                    0 => (vec![way(n % 5, &[])], [Stack::from_slice(&[n, n + 1])].into()),
                    1 => (vec![way(n % 5, &deep)], [Stack::new()].into()),
                    _ => {
                        (vec![way(1, &[]), way(2, &[])], [Stack::new(), [n, n].into()].into_iter().collect())
                    }
                };
                let spec = Spec { protocol: 4, propagate: None, ways: ways.into(), object: None };
                router.set_label(label, Some((spec, stacks))).unwrap();
            }
            assert_eq!(held(&router), (11, 28));
        }
        // A list is used again as soon as its route is gone.
        assert_eq!(router.routes.labels.lists.len(), 29);
        router.resize_labels(0);
        assert_eq!(held(&router), (0, 0));
        assert!(router.routes.labels.specs.iter().all(Option::is_none));
    }
}
