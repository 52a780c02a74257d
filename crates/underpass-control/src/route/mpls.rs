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
pub(super) mod object;
pub(crate) mod publish;
mod request;
pub(crate) mod save;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use smallvec::SmallVec;
use underpass_engine::tables::{ActionId, NextHopId};
use underpass_netlink::mpls::{Mpls, Via};
use underpass_packet::mpls::{IPV6_EXPLICIT_NULL, MAX_LABEL};

use super::compiled::NextHopKey;

pub(crate) use dump::{LabelDump, dump};
pub(crate) use netconf::{
    dump as dump_netconf, dump_next as dump_next_netconf, get as get_netconf, notify_of_link,
};
pub(crate) use request::{delete, get, new};

/// Labels below it have a meaning of their own: RFC 3032 section 2.1.
const FIRST_UNRESERVED: u32 = 16;
/// No label.
const NONE: u32 = u32::MAX;
/// `AF_MPLS`.
pub(crate) const AF_MPLS: u8 = libc::AF_MPLS as u8;

/// Where packets go.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct LabelNextHop {
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
    ways: Box<[LabelNextHop]>,
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

const RTA_NEWDST: u16 = 19;

const RTA_TTL_PROPAGATE: u16 = 26;

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use underpass_engine::buffer::PortId;
    use underpass_engine::tables::Writer;

    use super::publish::{resize_labels, set_label};
    use super::*;
    use crate::Router;

    #[test]
    fn nothing_is_left_of_routes_that_are_gone() {
        let mut router = Router::new(Writer::new(1).0);
        let oif = router.add_port("v0", [2, 0, 0, 0, 0, 1], PortId(0)).unwrap();
        resize_labels(&mut router, 100);
        let way = |n: u32, labels: &[u32]| LabelNextHop {
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
                let (ways, stacks): (Vec<LabelNextHop>, Stacks) = match n % 3 {
                    0 => (vec![way(n % 5, &[])], [Stack::from_slice(&[n, n + 1])].into()),
                    1 => (vec![way(n % 5, &deep)], [Stack::new()].into()),
                    _ => {
                        (vec![way(1, &[]), way(2, &[])], [Stack::new(), [n, n].into()].into_iter().collect())
                    }
                };
                let spec = Spec { protocol: 4, propagate: None, ways: ways.into(), object: None };
                set_label(&mut router, label, Some((spec, stacks))).unwrap();
            }
            assert_eq!(held(&router), (11, 28));
        }
        // A list is used again as soon as its route is gone.
        assert_eq!(router.routes.labels.lists.len(), 29);
        resize_labels(&mut router, 0);
        assert_eq!(held(&router), (0, 0));
        assert!(router.routes.labels.specs.iter().all(Option::is_none));
    }
}
