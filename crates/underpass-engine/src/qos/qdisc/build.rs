//! How a worker's queues are made of what the control thread has published, and what becomes of those that there were.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::cake::Cake;
use super::clocks::Clocks;
use super::codel_queue::CodelQueue;
use super::fifo::{Fifo, PfifoFast};
use super::fq::Fq;
use super::fq_codel::FqCodel;
use super::htb::{Class, Htb, Level, Mode, State};
use super::items::{ItemId, Items, List};
use super::netem::Netem;
use super::prio::Prio;
use super::red::Red;
use super::ring::Ring;
use super::sfq::Sfq;
use super::tbf::Tbf;
use super::{Classify, Context, Heap, Kind, Node};
use crate::counters::{QueueCount, QueueId};
use crate::drops::DropReason;
use crate::limiter::Nanos;
use crate::qos::Rate;
use crate::tables::{self, FifoLimit, HTB_DEPTH, Qdisc, QdiscKind, StoredQdisc};

/// What there was, each for itself.
#[derive(Default)]
struct Old {
    nodes: HashMap<QueueId, Node>,
    /// Of classes, and whether they were leaves.
    classes: HashMap<QueueId, (State, bool)>,
    /// Those of which another kind has the number now.
    gone: Vec<Node>,
    /// Packets that have lost their queue.
    packets: Vec<ItemId>,
}

struct Build<'a> {
    old: Old,
    clocks: &'a BTreeMap<QueueId, Arc<Clocks>>,
    items: &'a Items,
    now: Nanos,
}

impl Node {
    /// Makes the queues of a tree, of which `old` is what there was; `alone`: no other worker has a part in its rates.
    pub(crate) fn build<C: Classify>(
        stored: &StoredQdisc,
        alone: bool,
        old: Option<Self>,
        cx: &mut Context<'_, C>,
    ) -> Self {
        let none = BTreeMap::new();
        let clocks = if alone { &none } else { &stored.clocks };
        let mut build = Build { old: Old::default(), clocks, items: cx.items, now: cx.now };
        if let Some(old) = old {
            build.old.take_apart(old);
        }
        let mut node = build.node(&stored.root);
        node.size_table.clone_from(&stored.root.size_table);
        let Old { nodes, gone, packets, .. } = build.old;
        packets.into_iter().for_each(|id| cx.drop(id, DropReason::QdiscPurged));
        for gone in nodes.into_values().chain(gone) {
            gone.purge(cx);
        }
        node
    }

    /// Drops what waits.
    pub(crate) fn purge<C: Classify>(self, cx: &mut Context<'_, C>) {
        let mut drop = |mut list: List| {
            while let Some(id) = list.pop(cx.items) {
                cx.drop(id, DropReason::QdiscPurged);
            }
        };
        match self.kind {
            Kind::Fifo(fifo) => drop(fifo.list),
            Kind::PfifoFast(fifos) => fifos.bands.into_iter().for_each(drop),
            Kind::FqCodel(fq_codel) => fq_codel.lists().for_each(drop),
            Kind::Codel(codel) => drop(codel.list),
            Kind::Sfq(sfq) => sfq.lists().for_each(drop),
            Kind::Fq(fq) => fq.lists().for_each(drop),
            Kind::Cake(cake) => cake.lists().into_iter().for_each(drop),
            Kind::Prio(prio) => prio.bands.into_iter().for_each(|node| node.purge(cx)),
            Kind::Tbf(tbf) => tbf.child.purge(cx),
            Kind::Netem(netem) => netem.purge(cx),
            Kind::Red(red) => red.child.purge(cx),
            Kind::Htb(htb) => {
                drop(htb.direct);
                htb.classes.into_iter().filter_map(|class| class.leaf).for_each(|node| node.purge(cx));
            }
        }
        if let Some(id) = self.peeked {
            cx.drop(id, DropReason::QdiscPurged);
        }
    }

    /// What it holds, by what those below it hold.
    fn recount(&mut self, items: &Items) {
        let mut own = self.peeked.map_or((0, 0), |id| (1, u64::from(items.charged(id).0)));
        let mut below = (0, 0);
        let mut add = |node: &mut Self| {
            below = (below.0 + node.count.queued, below.1 + node.count.backlog);
        };
        match &mut self.kind {
            // These have nothing below them, and know what they hold.
            Kind::Fifo(_)
            | Kind::PfifoFast(_)
            | Kind::FqCodel(_)
            | Kind::Codel(_)
            | Kind::Sfq(_)
            | Kind::Fq(_)
            | Kind::Cake(_) => return,
            Kind::Prio(prio) => prio.bands.iter_mut().for_each(add),
            Kind::Tbf(tbf) => add(&mut tbf.child),
            Kind::Red(red) => add(&mut red.child),
            Kind::Netem(netem) => {
                netem.child.iter_mut().for_each(add);
                own = (own.0 + netem.held(), own.1 + netem.bytes);
            }
            Kind::Htb(htb) => {
                htb.classes.iter_mut().filter_map(|class| class.leaf.as_mut()).for_each(add);
                // What is below has no part in the direct queue.
                own = (own.0 + u64::from(htb.direct.len), own.1 + htb.direct_bytes);
            }
        }
        (self.count.queued, self.count.backlog) = (own.0 + below.0, own.1 + below.1);
    }
}

impl Old {
    /// Takes a tree apart, so that each node holds nothing below it.
    fn take_apart(&mut self, mut node: Node) {
        match &mut node.kind {
            Kind::Fifo(_)
            | Kind::PfifoFast(_)
            | Kind::FqCodel(_)
            | Kind::Codel(_)
            | Kind::Sfq(_)
            | Kind::Fq(_)
            | Kind::Cake(_) => {}
            Kind::Prio(prio) => prio.bands.drain(..).for_each(|band| self.take_apart(band)),
            Kind::Tbf(tbf) => {
                let child = std::mem::replace(&mut tbf.child, Node::nothing());
                self.take_apart(child);
            }
            Kind::Red(red) => {
                let child = std::mem::replace(&mut red.child, Node::nothing());
                self.take_apart(child);
            }
            Kind::Netem(netem) => netem.child.take().into_iter().for_each(|child| self.take_apart(child)),
            Kind::Htb(htb) => {
                for class in htb.classes.drain(..) {
                    self.classes.insert(class.queue, (class.state, class.level == 0));
                    if let Some(leaf) = class.leaf {
                        self.take_apart(leaf);
                    }
                }
                htb.levels = Default::default();
            }
        }
        self.nodes.insert(node.queue, node);
    }
}

impl Node {
    /// Holds nothing and takes nothing.
    pub(super) fn nothing() -> Self {
        Self::new(
            QueueId(u32::MAX),
            0,
            Kind::Fifo(Fifo { limit: FifoLimit::Packets(0), list: List::default() }),
        )
    }

    fn new(queue: QueueId, handle: u32, kind: Kind) -> Self {
        let count = QueueCount::default();
        Self { queue, handle, count, peeked: None, changed: true, size_table: None, kind }
    }
}

impl Build<'_> {
    fn node(&mut self, config: &Qdisc) -> Node {
        let old = self.old.nodes.remove(&config.queue);
        let mut node = match old {
            Some(old) if old.kind.is(&config.kind) => old,
            other => {
                self.old.gone.extend(other);
                Node::new(config.queue, config.handle, self.kind(config))
            }
        };
        (node.handle, node.changed) = (config.handle, true);
        match (&mut node.kind, &config.kind) {
            (Kind::Fifo(fifo), QdiscKind::Fifo(limit)) => fifo.limit = *limit,
            (Kind::PfifoFast(fifos), QdiscKind::PfifoFast(config)) => fifos.limit = config.limit,
            (Kind::FqCodel(fq_codel), QdiscKind::FqCodel(config)) => fq_codel.change(config),
            (Kind::Codel(codel), QdiscKind::Codel(config)) => codel.change(config),
            (Kind::Sfq(sfq), QdiscKind::Sfq(config)) => sfq.change(config),
            (Kind::Fq(fq), QdiscKind::Fq(config)) => fq.change(config, self.items.limit()),
            (Kind::Cake(cake), QdiscKind::Cake(config)) => {
                let gone = cake.change(config, &mut node.count, self.items);
                self.old.packets.extend(gone);
            }
            (Kind::Red(red), QdiscKind::Red(config)) => {
                red.child = self.node(&config.child);
                red.change(config.params, self.now);
            }
            (Kind::Prio(prio), QdiscKind::Prio(config)) => {
                (prio.priomap, prio.filters) = (config.priomap, config.filters);
                prio.bands = config.bands.iter().map(|band| self.node(band)).collect();
            }
            (Kind::Tbf(tbf), QdiscKind::Tbf(config)) => self.change_tbf(tbf, config),
            (Kind::Netem(netem), QdiscKind::Netem(config)) => {
                netem.change(config, self.items.limit());
                netem.child = config.child.as_ref().map(|child| self.node(child));
            }
            (Kind::Htb(htb), QdiscKind::Htb(config)) => self.change_htb(htb, config),
            _ => {}
        }
        node.recount(self.items);
        node
    }

    /// A new one, still empty.
    fn kind(&mut self, config: &Qdisc) -> Kind {
        let queue = config.queue;
        match &config.kind {
            QdiscKind::Fifo(limit) => Kind::Fifo(Fifo { limit: *limit, list: List::default() }),
            QdiscKind::PfifoFast(config) => {
                Kind::PfifoFast(PfifoFast { limit: config.limit, bands: Default::default() })
            }
            QdiscKind::FqCodel(config) => Kind::FqCodel(Box::new(FqCodel::new(config))),
            QdiscKind::Codel(config) => Kind::Codel(Box::new(CodelQueue::new(config))),
            QdiscKind::Sfq(config) => Kind::Sfq(Box::new(Sfq::new(config, self.now, self.items.limit()))),
            QdiscKind::Fq(config) => Kind::Fq(Box::new(Fq::new(config, self.items.limit()))),
            QdiscKind::Cake(config) => {
                Kind::Cake(Box::new(Cake::new(config, self.clocks.get(&queue).cloned())))
            }
            QdiscKind::Prio(config) => {
                Kind::Prio(Prio { priomap: config.priomap, filters: config.filters, bands: Vec::new() })
            }
            QdiscKind::Red(config) => Kind::Red(Box::new(Red::new(config.params, self.now))),
            QdiscKind::Netem(config) => {
                let clocks = self.clocks.get(&queue).cloned();
                Kind::Netem(Box::new(Netem::new(config, clocks)))
            }
            QdiscKind::Tbf(_) => Kind::Tbf(Box::new(Tbf {
                rate: Rate::default(),
                buffer: -1,
                peak: None,
                mtu: 0,
                max_size: 0,
                tokens: 0,
                peak_tokens: 0,
                at: self.now,
                clocks: self.clocks.get(&config.queue).cloned(),
                child: Node::nothing(),
            })),
            QdiscKind::Htb(_) => Kind::Htb(Box::new(Htb::new())),
        }
    }

    /// `tbf_change`: other parameters fill the buckets.
    fn change_tbf(&mut self, tbf: &mut Tbf, config: &tables::Tbf) {
        let new = (
            Rate::new(config.rate),
            config.buffer as i64,
            config.peak.map(|(rate, _)| Rate::new(rate)),
            config.peak.map_or(0, |(_, mtu)| mtu as i64),
            config.max_size,
        );
        if new != (tbf.rate, tbf.buffer, tbf.peak, tbf.mtu, tbf.max_size) {
            (tbf.rate, tbf.buffer, tbf.peak, tbf.mtu, tbf.max_size) = new;
            if tbf.clocks.is_none() {
                (tbf.tokens, tbf.peak_tokens) = (tbf.buffer, tbf.mtu);
            }
        }
        tbf.child = self.node(&config.child);
    }

    /// `htb_change` and `htb_change_class`.
    fn change_htb(&mut self, htb: &mut Htb, config: &tables::Htb) {
        (htb.default, htb.direct_limit, htb.filters) = (config.default, config.direct, config.filters);
        let mut sorted: Vec<_> = config.classes.iter().collect();
        sorted.sort_by_key(|class| class.classid);
        sorted.dedup_by_key(|class| class.classid);
        let number = |classid: u32| sorted.binary_search_by_key(&classid, |class| class.classid).ok();
        let parent = |class: &tables::HtbClass| Some(number(class.parent?)? as u32);
        let mut parents: Vec<_> = sorted.iter().map(|class| parent(class)).collect();
        for index in 0..parents.len() {
            // Too deep, or in a circle.
            if above(&parents, index).count() >= HTB_DEPTH {
                parents[index] = None;
            }
        }
        let mut children = vec![Vec::new(); sorted.len()];
        for (index, parent) in parents.iter().enumerate() {
            if let Some(children) = parent.and_then(|parent| children.get_mut(parent as usize)) {
                children.push(index as u32);
            }
        }
        htb.classes = Vec::with_capacity(sorted.len());
        let mut levels: [Level; HTB_DEPTH] = Default::default();
        for (index, (config, children)) in sorted.iter().zip(&children).enumerate() {
            let level = level(&parents, index, children.is_empty());
            let state = self.state(config, children.is_empty());
            let members = levels.get_mut(usize::from(level)).map(|level| &mut level.members);
            let at_level = members.map_or(0, |members| {
                members.push(index as u32);
                members.len() - 1
            });
            htb.classes.push(Class::new(config, level, parents[index], at_level as u32, state));
        }
        for (index, children) in children.into_iter().enumerate() {
            for (at, child) in children.iter().enumerate() {
                htb.classes[*child as usize].at_parent = at as u32;
            }
            if children.is_empty() {
                htb.classes[index].leaf = Some(self.node(&sorted[index].leaf));
            }
            htb.classes[index].children = children;
        }
        for level in &mut levels {
            level.waiting = Heap::new(level.members.len());
        }
        htb.levels = levels;
        make_rings(htb);
        htb.reserve();
        for index in 0..htb.classes.len() as u32 {
            htb.resume(index);
        }
    }

    /// What a class had, as far as it is still that class.
    fn state(&mut self, config: &tables::HtbClass, leaf: bool) -> State {
        let clocks = self.clocks.get(&config.queue);
        let new = |now| State::new(config.buffer as i64, config.cbuffer as i64, now, clocks.cloned());
        match self.old.classes.remove(&config.queue) {
            Some((state, true)) if leaf => state,
            Some((state, false)) if !leaf => state,
            // It has become a leaf: `htb_parent_to_leaf`.
            Some((state, false)) => State { count: state.count, ..new(self.now) },
            // Other classes are below it now: it may send until it has sent too much.
            Some((state, true)) => State { mode: Mode::CanSend, ..state },
            None => new(self.now),
        }
    }
}

/// The classes above a class, as many as there may be.
fn above(parents: &[Option<u32>], index: usize) -> impl Iterator<Item = u32> + '_ {
    let parent = |index: usize| parents.get(index).copied().flatten();
    std::iter::successors(parent(index), move |above| parent(*above as usize)).take(HTB_DEPTH)
}

/// The level of a class: 0 for a leaf, for others the less the deeper.
fn level(parents: &[Option<u32>], index: usize, leaf: bool) -> u8 {
    if leaf {
        return 0;
    }
    (HTB_DEPTH - 1).saturating_sub(above(parents, index).count()).max(1) as u8
}

/// Makes the rings that leaves may come to stand in.
fn make_rings(htb: &mut Htb) {
    let leaves: Vec<(u32, u8)> = htb
        .classes
        .iter()
        .enumerate()
        .filter(|(_, class)| class.level == 0)
        .map(|(index, class)| (index as u32, class.prio))
        .collect();
    let mut priorities = vec![0u8; htb.classes.len()];
    for (leaf, prio) in leaves {
        let mut at = Some(leaf);
        for _ in 0..=HTB_DEPTH {
            let Some(index) = at else { break };
            let Some(mask) = priorities.get_mut(index as usize) else { break };
            *mask |= 1 << prio;
            at = htb.classes.get(index as usize).and_then(|class| class.parent);
        }
    }
    let ring = |mask: u8, prio: usize, bound: usize| Ring::new(if mask >> prio & 1 != 0 { bound } else { 0 });
    let mut of_levels = [0u8; HTB_DEPTH];
    for (class, mask) in htb.classes.iter_mut().zip(&priorities) {
        of_levels[usize::from(class.level)] |= mask;
        let count = class.children.len();
        class.feeds = (count > 0).then(|| Box::new(std::array::from_fn(|prio| ring(*mask, prio, count))));
    }
    for (level, mask) in htb.levels.iter_mut().zip(of_levels) {
        let count = level.members.len();
        level.rows = std::array::from_fn(|prio| ring(mask, prio, count));
    }
}

impl Kind {
    /// Whether it is of a kind, and can take over its parameters.
    fn is(&self, config: &QdiscKind) -> bool {
        match (self, config) {
            (Self::Fifo(_), QdiscKind::Fifo(_))
            | (Self::PfifoFast(_), QdiscKind::PfifoFast(_))
            | (Self::Prio(_), QdiscKind::Prio(_))
            | (Self::Tbf(_), QdiscKind::Tbf(_))
            | (Self::Htb(_), QdiscKind::Htb(_))
            | (Self::Netem(_), QdiscKind::Netem(_))
            | (Self::Codel(_), QdiscKind::Codel(_))
            | (Self::Red(_), QdiscKind::Red(_))
            | (Self::Fq(_), QdiscKind::Fq(_))
            | (Self::Cake(_), QdiscKind::Cake(_)) => true,
            (Self::Sfq(sfq), QdiscKind::Sfq(config)) => sfq.is(config),
            (Self::FqCodel(fq_codel), QdiscKind::FqCodel(config)) => {
                fq_codel.flows.len() == config.flows.clamp(1, 1 << 16) as usize
            }
            _ => false,
        }
    }
}

impl Class {
    fn new(config: &tables::HtbClass, level: u8, parent: Option<u32>, at_level: u32, state: State) -> Self {
        Self {
            queue: config.queue,
            classid: config.classid,
            parent,
            level,
            prio: config.prio.min(7),
            quantum: config.quantum.clamp(1, i32::MAX as u32) as i32,
            rate: Rate::new(config.rate),
            ceil: Rate::new(config.ceil),
            buffer: config.buffer as i64,
            cbuffer: config.cbuffer as i64,
            filters: config.filters,
            at_level,
            at_parent: 0,
            children: Vec::new(),
            feeds: None,
            leaf: None,
            state,
            activity: 0,
            changed: true,
        }
    }
}
