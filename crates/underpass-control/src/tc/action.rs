//! Actions: shared by filters, or made for one. Linux: `net/sched/act_api.c`.
//!
//! An action has a kind and a number. Who makes it without a filter keeps one reference; each filter that has it keeps
//! one and binds it. It goes with its last reference.

pub(crate) mod change;
mod compile;
pub(crate) mod request;
pub(super) mod save;
pub(crate) mod tunnel_key;

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use underpass_engine::counters::TcCounterId;
use underpass_engine::tables::{ActionId, EstimatorConfig, LinkId, TcActionId};
use underpass_netlink::tc::action::{self, Config};

use super::parent::Block;
use crate::route::InfoId;

pub(crate) use request::{RTM_DELACTION, RTM_GETACTION, RTM_NEWACTION, change, delete, dump, get, warning};

/// Names an action.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Name {
    /// Its kind, one of [`action::KINDS`].
    pub kind: &'static str,
    /// Its number.
    pub index: u32,
}

/// An action.
#[derive(Debug)]
pub(crate) struct Action {
    config: Config,
    refs: i32,
    binds: i32,
    cookie: Option<Box<[u8]>>,
    flags: u32,
    hw_stats: u8,
    /// Hardware was asked for statistics the last time somebody was interested.
    asked_hw: AtomicBool,
    estimator: Option<EstimatorConfig>,
    /// The chain that it goes to, which is there as long as it is.
    goto: Option<(Block, u32)>,
    /// It was made by a filter.
    by_filter: bool,
    installed: Instant,
    id: TcActionId,
    counter: TcCounterId,
    /// What it says to tunnels: `tunnel_key`.
    ways: Vec<TunnelEntry>,
}

/// All actions.
#[derive(Debug, Default)]
pub(crate) struct Actions {
    by_name: BTreeMap<Name, Action>,
    /// No index of a kind below it is free.
    first_free: BTreeMap<&'static str, u32>,
    /// Changes with every change of an action.
    pub generation: u64,
}

/// In what an action is made.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Context {
    /// The filters among which it is; `None` where it is made without a filter.
    pub block: Option<Block>,
    /// Whether one of its number may be changed.
    pub replace: bool,
    /// `TCA_CLS_FLAGS_*` of the filter.
    pub flags: u32,
    /// The estimator of the request.
    pub estimator: Option<EstimatorConfig>,
}

/// The actions of a filter.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) enum Exts {
    /// None.
    #[default]
    None,
    /// A list.
    List(Vec<Name>),
    /// An old-style policer.
    Police(Name),
}

impl Exts {
    /// Their names.
    pub fn names(&self) -> &[Name] {
        match self {
            Self::None => &[],
            Self::List(names) => names,
            Self::Police(name) => std::slice::from_ref(name),
        }
    }
}

impl Actions {
    /// The first free number of a kind. Linux: `idr_alloc_u32`.
    fn free(&mut self, kind: &'static str) -> u32 {
        let first = self.first_free.entry(kind).or_insert(1);
        for (name, _) in self.by_name.range(Name { kind, index: *first }..=Name { kind, index: u32::MAX }) {
            if name.index != *first {
                break;
            }
            *first = first.wrapping_add(1);
        }
        *first
    }

    fn remove(&mut self, name: Name) -> Option<Action> {
        let first = self.first_free.entry(name.kind).or_insert(1);
        *first = name.index.min(*first);
        self.by_name.remove(&name)
    }

    /// The policers: number, rate in bytes a second, filters that have it, counter.
    pub fn policers(&self) -> impl Iterator<Item = (u32, Option<u64>, u32, TcCounterId)> {
        self.of_kind("police").map(|(name, action)| {
            let rate = if let Config::Police(police) = &action.config { police.rate } else { None };
            (name.index, rate.map(|rate| rate.bytes), action.binds.max(0) as u32, action.counter)
        })
    }

    pub fn of_kind(&self, kind: &'static str) -> impl Iterator<Item = (Name, &Action)> {
        let all = self.by_name.range(Name { kind, index: 0 }..=Name { kind, index: u32::MAX });
        all.map(|(name, action)| (*name, action))
    }
}

/// The kind of a name, if the router has it.
fn known(kind: &str) -> Option<&'static str> {
    action::KINDS.into_iter().find(|known| *known == kind)
}

/// What making an action has come to: Linux's `ACT_P_CREATED` and `ACT_P_BOUND`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Made {
    New,
    Bound,
    Changed,
}

/// Warns of a burst that is too small for a packet.
pub(crate) fn small((burst, packet): (u64, u32)) -> String {
    format!("{burst} bytes: packets of {packet} bytes never conform")
}

/// What an action says to one tunnel.
#[derive(Debug)]
pub(crate) struct TunnelEntry {
    link: LinkId,
    info: InfoId,
    action: ActionId,
}
