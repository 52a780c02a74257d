//! Filters: chains of priorities, each of one protocol and one kind. Linux: `net/sched/cls_api.c`.

mod basic;
mod chain;
mod common;
mod encode;
mod flower;
mod fw;
pub(crate) mod hook;
mod matchall;
pub(crate) mod publish;
mod request;
pub(super) mod save;
mod simple;
mod u32;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use underpass_engine::counters::TcCounterId;
use underpass_engine::tables::HookId;
use underpass_netlink::{Attribute, RequestError, tc};

use super::action::{Context, Exts};
use super::parent::{Block, Point};
use common::{Common, PriorityName};

pub(crate) use chain::{
    change as change_chain, delete as delete_chain, dump as dump_chains, get as get_chain,
};
pub(crate) use encode::{RTM_DELCHAIN, RTM_GETCHAIN, RTM_NEWCHAIN};
pub(crate) use request::{change, delete, dump, get};

/// The filters of all places.
#[derive(Debug, Default)]
pub(crate) struct Filters {
    pub places: BTreeMap<Block, Place>,
    /// The tables of `u32` of each qdisc, by link and handle.
    tables: BTreeMap<(u32, u32), u32::Tables>,
    /// The hooks that name a shared block: its index, and what the packet path has there.
    shared: BTreeMap<Block, (u32, Option<HookId>)>,
    /// What `ingress` and `clsact` count, by link and handle.
    counters: BTreeMap<(u32, u32), TcCounterId>,
    /// Whether a place has more than tables of `u32` that have never had a filter. Where none has, Linux passes all of them
    /// by (`tcf_sw_enabled_key`).
    software: bool,
    /// Changes with every change of a filter.
    pub generation: u64,
    /// Whether added filters may wait for others; the places that they were added to, since when, and how long it took
    /// to put them in force the last time.
    pub gathers: bool,
    pub gathered: BTreeSet<Block>,
    pub gathered_since: Option<Instant>,
    pub publishing: Duration,
}

/// The filters of a place.
#[derive(Debug, Default)]
pub(crate) struct Place {
    /// In the order in which they were made.
    chains: Vec<Chain>,
    /// `tcm_parent` of the last filter that was to be made.
    parent: u32,
    /// Handle of the qdisc.
    pub qdisc: u32,
    /// What the packet path has.
    hook: Option<HookId>,
    /// How many filters that is.
    published: usize,
}

/// A chain.
#[derive(Debug, Default)]
struct Chain {
    index: u32,
    /// A request made it by itself.
    explicit: bool,
    /// What its filters may compare.
    template: Option<Box<flower::Template>>,
    /// Actions that go to it.
    held: usize,
    /// In the order in which they are consulted.
    priorities: Vec<Priority>,
}

impl Chain {
    /// Whether anybody but actions knows of it.
    const fn shown(&self) -> bool {
        self.explicit || !self.priorities.is_empty()
    }
}

/// Filters of one priority: `struct tcf_proto`.
#[derive(Debug)]
struct Priority {
    number: u16,
    /// Ethernet type, in host byte order.
    protocol: u16,
    classifier: Classifier,
}

/// The filters of a priority, by their kind.
#[derive(Debug)]
enum Classifier {
    U32(u32::Root),
    Basic(basic::Filters),
    Flower(flower::Filters),
    Matchall(matchall::Filters),
    Fw(fw::Filters),
}

/// A request for a filter, as its kind sees it.
#[derive(Clone, Debug)]
struct Change<'a> {
    place: PriorityName,
    /// `tcm_handle`.
    handle: u32,
    options: Option<Attribute<'a>>,
    context: Context,
}

/// Kinds that Linux 6.12 has and the router has not.
const LINUX_ONLY: [&str; 5] = ["bpf", "cgroup", "flow", "route", "tcindex"];

impl Classifier {
    /// A classifier of a kind, without filters.
    fn new(kind: &str, filters: &mut Filters, name: PriorityName, qdisc: u32) -> Result<Self, RequestError> {
        Ok(match kind {
            "u32" => Self::U32(filters.new_root(name, qdisc)?),
            "basic" => Self::Basic(basic::Filters::default()),
            "flower" => Self::Flower(flower::Filters::default()),
            "matchall" => Self::Matchall(matchall::Filters::default()),
            "fw" => Self::Fw(fw::Filters::default()),
            _ if LINUX_ONLY.contains(&kind) => {
                let message = format!("Classifier \"{kind}\" is not supported by this router");
                return Err(RequestError::with_text(libc::EOPNOTSUPP, message));
            }
            _ => return Err(RequestError::new(libc::ENOENT, "TC classifier not found")),
        })
    }

    const fn kind(&self) -> &'static str {
        match self {
            Self::U32(_) => "u32",
            Self::Basic(_) => "basic",
            Self::Flower(_) => "flower",
            Self::Matchall(_) => "matchall",
            Self::Fw(_) => "fw",
        }
    }

    /// The filter of a handle; that itself, or that of the root table for one of its numbers.
    fn find(&self, filters: &Filters, name: PriorityName, handle: u32) -> Option<u32> {
        match self {
            Self::U32(root) => filters.find_node(name, root, handle),
            Self::Basic(filters) => filters.has(handle).then_some(handle),
            Self::Flower(filters) => filters.has(handle).then_some(handle),
            Self::Matchall(filters) => filters.has(handle).then_some(handle),
            Self::Fw(filters) => filters.has(handle).then_some(handle),
        }
    }

    /// The handle after this one in the order of a dump; the first after `None`.
    fn after(&self, filters: &Filters, name: PriorityName, last: Option<u32>) -> Option<u32> {
        match self {
            Self::U32(root) => filters.node_after(name, root, last),
            Self::Basic(filters) => filters.after(last),
            Self::Flower(filters) => filters.after(last),
            Self::Matchall(filters) => filters.after(last),
            Self::Fw(filters) => filters.after(last),
        }
    }
}

impl Filters {
    fn chain(&self, block: Block, index: u32) -> Option<&Chain> {
        self.places.get(&block)?.chains.iter().find(|chain| chain.index == index)
    }

    fn chain_mut(&mut self, block: Block, index: u32) -> Option<&mut Chain> {
        self.places.get_mut(&block)?.chains.iter_mut().find(|chain| chain.index == index)
    }

    fn priority(&self, name: PriorityName) -> Option<&Priority> {
        let priorities = &self.chain(name.block, name.chain)?.priorities;
        let at = priorities.binary_search_by_key(&name.number, |priority| priority.number).ok()?;
        priorities.get(at)
    }

    fn priority_mut(&mut self, name: PriorityName) -> Option<&mut Priority> {
        let priorities = &mut self.chain_mut(name.block, name.chain)?.priorities;
        let at = priorities.binary_search_by_key(&name.number, |priority| priority.number).ok()?;
        priorities.get_mut(at)
    }

    /// The chain of a number, made if it is not there.
    #[expect(clippy::indexing_slicing, reason = "the place was found or made just before")]
    fn ensure_chain(&mut self, block: Block, index: u32) -> &mut Chain {
        let chains = &mut self.places.entry(block).or_default().chains;
        let place = chains.iter().position(|chain| chain.index == index).unwrap_or(chains.len());
        if place == chains.len() {
            chains.push(Chain { index, ..Chain::default() });
        }
        &mut chains[place]
    }

    /// Forgets a chain that nobody needs any more.
    fn tidy(&mut self, block: Block, index: u32) {
        if let Some(place) = self.places.get_mut(&block) {
            place.chains.retain(|chain| chain.index != index || chain.shown() || chain.held > 0);
        }
    }

    /// An action goes to a chain.
    pub(in crate::tc) fn hold_chain(&mut self, block: Block, index: u32) {
        self.ensure_chain(block, index).held += 1;
    }

    /// It does no more.
    pub(in crate::tc) fn release_chain(&mut self, block: Block, index: u32) {
        if let Some(chain) = self.chain_mut(block, index) {
            chain.held = chain.held.saturating_sub(1);
        }
        self.tidy(block, index);
    }

    fn classifier(&self, name: PriorityName) -> Option<&Classifier> {
        self.priority(name).map(|priority| &priority.classifier)
    }

    fn classifier_mut(&mut self, name: PriorityName) -> Option<&mut Classifier> {
        self.priority_mut(name).map(|priority| &mut priority.classifier)
    }

    /// The actions of a filter.
    fn exts_of(&self, name: PriorityName, handle: u32) -> Option<&Exts> {
        self.common_of(name, handle).map(|common| &common.exts)
    }

    fn common_of(&self, name: PriorityName, handle: u32) -> Option<&Common> {
        match self.classifier(name)? {
            Classifier::U32(root) => self.node_common(name, root, handle),
            Classifier::Basic(filters) => filters.get(handle).map(|filter| &filter.common),
            Classifier::Flower(filters) => filters.get(handle).map(|filter| &filter.common),
            Classifier::Matchall(filters) => filters.filter(),
            Classifier::Fw(filters) => filters.get(handle).map(|filter| &filter.common),
        }
    }

    /// Whether added filters may wait for others.
    pub const fn gathers(&self) -> bool {
        self.gathers
    }

    /// What the packet path asks of packets at a place, if there is anything.
    pub fn hook_of(&self, block: Block) -> Option<HookId> {
        match self.shared.get(&block) {
            Some((_, hook)) => *hook,
            None => self.places.get(&block)?.hook,
        }
    }

    /// Whether a hook names the shared block of this index.
    pub fn is_shared(&self, index: u32) -> bool {
        self.shared.values().any(|(named, _)| *named == index)
    }

    /// The index of the shared block that a hook names.
    pub fn shared_by(&self, hook: Block) -> Option<u32> {
        self.shared.get(&hook).map(|(index, _)| *index)
    }

    /// The places where packets meet the filters of one: itself, or the hooks that name it.
    fn met_at(&self, block: Block) -> Vec<Block> {
        match block.point {
            Point::Shared(index) => {
                let all = self.shared.iter().filter(|(_, (named, _))| *named == index);
                all.map(|(hook, _)| *hook).collect()
            }
            _ => vec![block],
        }
    }

    /// Remembers what the packet path has at a place.
    fn set_hook(&mut self, block: Block, hook: Option<HookId>) {
        match self.shared.get_mut(&block) {
            Some((_, place)) => *place = hook,
            None => {
                if let Some(place) = self.places.get_mut(&block) {
                    place.hook = hook;
                }
            }
        }
    }

    /// How many filters lead to a class of a link.
    pub fn users_of_class(&self, link: u32, class: u32) -> usize {
        let places = self.places.iter().filter(|(block, _)| block.link == link);
        let chains = places.flat_map(|(_, place)| &place.chains);
        let priorities = chains.flat_map(|chain| &chain.priorities);
        let of_kinds: usize = priorities
            .map(|priority| match &priority.classifier {
                Classifier::U32(_) => 0,
                Classifier::Basic(filters) => filters.users_of_class(class),
                Classifier::Flower(filters) => filters.users_of_class(class),
                Classifier::Matchall(filters) => filters.users_of_class(class),
                Classifier::Fw(filters) => filters.users_of_class(class),
            })
            .sum();
        let tables = self.tables.iter().filter(|((on, _), _)| *on == link);
        of_kinds + tables.map(|(_, tables)| tables.users_of_class(class)).sum::<usize>()
    }
}

/// Whether a filter is for hardware alone, which the router has not. Linux says so of links without any.
fn refuse_skip_sw(flags: u32) -> Result<(), RequestError> {
    if flags & tc::SKIP_SW != 0 { Err(RequestError::errno(libc::EOPNOTSUPP)) } else { Ok(()) }
}
