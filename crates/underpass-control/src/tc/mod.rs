//! Traffic control: what queues, shapes and classifies packets of the links. Linux: `net/sched/sch_api.c`.
//!
//! A link has a qdisc at its root, by which packets leave, and may have a hook (`ingress` or `clsact`), where filters
//! see packets that come in and go out. A qdisc with classes has a queue in each, which may be a qdisc of its own.

pub(crate) mod action;
mod cake;
mod class;
pub(crate) mod filter;
mod htb;
mod kind;
mod leaf;
pub(super) mod owner;
pub(crate) mod parent;
pub(super) mod publish;
pub(crate) mod qdisc;
pub(crate) mod save;

use std::collections::BTreeMap;

use underpass_engine::counters::QueueId;
use underpass_engine::tables::QdiscId;
use underpass_netlink::tc;
use underpass_netlink::tc::stab::SizeTable;

use crate::link::{Link, LinkKind};

pub(crate) use class::{delete as delete_class, dump as dump_classes, get as get_class, new as new_class};
pub(crate) use kind::Kind;
pub(crate) use leaf::Leaf;
pub(crate) use owner::is_about;
pub(crate) use qdisc::{delete, dump, get, new};

/// A qdisc that a request has made.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Qdisc {
    /// Its handle: the minor number is 0.
    pub handle: u32,
    /// The class that it is in, or [`tc::ROOT`] or [`tc::INGRESS`].
    pub parent: u32,
    /// Its kind and parameters.
    pub kind: Kind,
    /// What shapes at the ingress hook, of a `clsact`.
    pub ingress: Option<Leaf>,
    /// What packets are charged instead of their length.
    pub size_table: Option<Box<SizeTable>>,
    /// The indices of the shared blocks of filters of what comes in and of what leaves, of a hook.
    pub blocks: [Option<u32>; 2],
    /// What the packet path counts it as, unless it is a hook.
    pub queue: Option<QueueId>,
    /// Qdiscs made later have higher numbers.
    serial: u64,
}

/// The traffic control of a link.
#[derive(Debug, Default)]
pub(crate) struct LinkControl {
    /// The root, unless it is what the link has by itself.
    root: Option<u32>,
    /// Those by which packets leave, the root among them, by their handles.
    pub qdiscs: BTreeMap<u32, Qdisc>,
    /// `ingress` or `clsact`.
    pub hook: Option<Qdisc>,
    /// A hook was asked for before: Linux keeps a place for it.
    hooked: bool,
    /// What the packet path has at its root and behind its ingress hook.
    published: [Option<QdiscId>; 2],
    /// Numbers that nothing counts as any more once the packet path knows.
    freed: Vec<QueueId>,
}

impl LinkControl {
    /// The qdisc of a handle. Linux: `qdisc_lookup`.
    pub fn lookup(&self, handle: u32) -> Option<&Qdisc> {
        self.qdiscs.get(&handle).or_else(|| self.hook.as_ref().filter(|hook| hook.handle == handle))
    }

    /// The same, to change it.
    fn lookup_mut(&mut self, handle: u32) -> Option<&mut Qdisc> {
        match self.qdiscs.get_mut(&handle) {
            None => self.hook.as_mut().filter(|hook| hook.handle == handle),
            found => found,
        }
    }

    /// The root, if a request has made it.
    pub fn root(&self) -> Option<&Qdisc> {
        self.qdiscs.get(&self.root?)
    }

    /// `ingress` or `clsact`.
    pub const fn hook(&self) -> Option<&Qdisc> {
        self.hook.as_ref()
    }

    /// What the packet path has at its root and behind its ingress hook.
    pub const fn published(&self) -> [Option<QdiscId>; 2] {
        self.published
    }

    /// Takes out a qdisc and all that are in its classes.
    fn remove_tree(&mut self, handle: u32) -> Option<Qdisc> {
        let removed = self.qdiscs.remove(&handle)?;
        self.remove_inside(&removed);
        removed.clone().free(&mut self.freed);
        Some(removed)
    }

    /// Takes out all that are in the classes of a qdisc that is out.
    fn remove_inside(&mut self, outer: &Qdisc) {
        let inside = |qdisc: &&Qdisc| qdisc.parent != tc::ROOT && tc::major(qdisc.parent) == outer.handle;
        let children: Vec<u32> = self.qdiscs.values().filter(inside).map(|qdisc| qdisc.handle).collect();
        children.into_iter().for_each(|child| {
            self.remove_tree(child);
        });
    }

    /// Takes out what was in a class.
    fn free_leaf(&mut self, leaf: Option<Leaf>) -> Option<Qdisc> {
        match leaf? {
            Leaf::Qdisc(handle) => self.remove_tree(handle),
            Leaf::Queue { queue, .. } => {
                self.freed.extend(queue);
                None
            }
        }
    }

    /// All but root and hook, in the order in which Linux shows them: 16 chains of a hash, the last made first.
    fn inner(&self) -> Vec<&Qdisc> {
        let bucket = |qdisc: &Qdisc| qdisc.handle.wrapping_mul(GOLDEN_RATIO) >> 28;
        let mut inner: Vec<_> = self.qdiscs.values().filter(|qdisc| qdisc.parent != tc::ROOT).collect();
        inner.sort_by_key(|qdisc| (bucket(qdisc), std::cmp::Reverse(qdisc.serial)));
        inner
    }
}

/// `GOLDEN_RATIO_32`, of Linux's `hash_32`.
const GOLDEN_RATIO: u32 = 0x61c8_8647;

/// The traffic control of all links.
#[derive(Debug, Default)]
pub(crate) struct TrafficControl {
    pub links: BTreeMap<u32, LinkControl>,
    /// The major number that a qdisc got last without asking for it, above 8000.
    last_handle: u32,
    last_serial: u64,
    /// Changes with every change of a qdisc or class.
    pub generation: u64,
}

impl TrafficControl {
    /// What a link has, if a request has made anything.
    pub fn get(&self, link: u32) -> Option<&LinkControl> {
        self.links.get(&link)
    }

    /// A handle that no qdisc of the link has. Linux: `qdisc_alloc_handle`.
    fn free_handle(&mut self, link: u32) -> Option<u32> {
        for _ in 0..0x8000 {
            self.last_handle = (self.last_handle + 1) % 0x7fff;
            let handle = (0x8000 + self.last_handle) << 16;
            if self.get(link).is_none_or(|control| control.lookup(handle).is_none()) {
                return Some(handle);
            }
        }
        None
    }

    const fn next_serial(&mut self) -> u64 {
        self.generation += 1;
        self.last_serial += 1;
        self.last_serial
    }
}

/// What a link without a qdisc of a request's has at its root; `None` if it was never up.
pub(crate) fn default_qdisc(link: &Link) -> Option<Kind> {
    match link.kind {
        _ if !link.activated => None,
        LinkKind::Ifb => Some(Kind::PfifoFast),
        LinkKind::Tunnel(kind) if kind.queues() => Some(Kind::PfifoFast),
        _ => Some(Kind::Noqueue),
    }
}
