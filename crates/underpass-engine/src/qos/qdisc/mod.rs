//! Queueing disciplines: what a worker does with packets that have to wait.
//!
//! A [`Node`] is one of them with its queues and all that is below it, as this worker has it; [`build`] makes it of what
//! the control thread has published, and takes over what an older one held. It is enqueued to and dequeued from as
//! `struct Qdisc` is in Linux, whose names the functions have.

/// Does the same to each kind of discipline.
macro_rules! each {
    ($kind:expr, $discipline:ident => $done:expr) => {
        match $kind {
            Kind::Fifo($discipline) => $done,
            Kind::PfifoFast($discipline) => $done,
            Kind::Prio($discipline) => $done,
            Kind::Tbf($discipline) => $done,
            Kind::Htb($discipline) => $done,
            Kind::FqCodel($discipline) => $done,
            Kind::Netem($discipline) => $done,
            Kind::Codel($discipline) => $done,
            Kind::Sfq($discipline) => $done,
            Kind::Red($discipline) => $done,
            Kind::Fq($discipline) => $done,
            Kind::Cake($discipline) => $done,
        }
    };
}

mod build;
mod cake;
mod clocks;
mod codel;
mod codel_queue;
mod codel_served;
mod discipline;
mod ecn;
mod fifo;
mod fq;
mod fq_codel;
mod heap;
mod htb;
mod items;
mod netem;
mod prio;
mod red;
mod ring;
mod segment;
mod sfq;
mod tbf;
#[cfg(test)]
mod tests;

pub use clocks::Clocks;
pub use discipline::{Class, Classify};
pub(crate) use discipline::{Context, Enqueued, Lost};
pub(crate) use heap::Heap;
pub use items::{Item, Items, Origin};
pub(crate) use items::{charge, charge_by};

use std::sync::Arc;

use crate::buffer::Packet;
use crate::counters::{Counters, QueueCount, QueueId};
use crate::limiter::Nanos;
use crate::qos::Lengths;
use crate::tables::SizeTable;
use cake::Cake;
use codel_queue::CodelQueue;
use discipline::{Discipline, Peeked};
use fifo::{Fifo, PfifoFast};
use fq::Fq;
use fq_codel::FqCodel;
use htb::Htb;
use items::ItemId;
use netem::Netem;
use prio::Prio;
use red::Red;
use sfq::Sfq;
use tbf::Tbf;

/// A queueing discipline of a worker.
#[derive(Debug)]
pub(crate) struct Node {
    queue: QueueId,
    /// `major:0`, or 0.
    handle: u32,
    /// What it has counted. What it holds is there too.
    count: QueueCount,
    /// What it has dequeued as it was looked at, but not yet given away: `gso_skb`. It counts as what it holds.
    peeked: Option<ItemId>,
    /// Whether its counters have changed since they were last written.
    changed: bool,
    /// What packets are charged instead of their length, where it is the root: as in Linux, others do not look at theirs.
    size_table: Option<Arc<SizeTable>>,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Fifo(Fifo),
    PfifoFast(PfifoFast),
    Prio(Prio),
    Tbf(Box<Tbf>),
    Htb(Box<Htb>),
    FqCodel(Box<FqCodel>),
    Netem(Box<Netem>),
    Codel(Box<CodelQueue>),
    Sfq(Box<Sfq>),
    Red(Box<Red>),
    Fq(Box<Fq>),
    Cake(Box<Cake>),
}

impl Node {
    /// How many packets wait.
    #[inline(always)]
    pub(crate) fn len(&self) -> u64 {
        self.count.queued
    }

    /// Lets packets go by that find nobody waiting and may leave at once, and counts them; returns how many of them.
    /// Each is charged so many bytes and packets; its priority names no class. What is left of them has to be queued.
    ///
    /// It comes to the same as if each were enqueued and dequeued, but for what Linux skips too (`TCQ_F_CAN_BYPASS`).
    #[inline]
    pub(crate) fn pass(&mut self, packets: &[(u32, u32)], now: Nanos) -> usize {
        if self.count.queued != 0 {
            return 0;
        }
        self.changed = true;
        let Self { count, kind, handle, .. } = self;
        each!(kind, discipline => discipline.pass(count, *handle, packets, now))
    }

    /// Lets a whole burst go by if every packet of it finds nobody waiting and may leave at once, and counts it: the same
    /// as [`Node::pass`], but charged by the sums. `false`: nothing is done.
    #[inline]
    pub(crate) fn pass_all(&mut self, burst: Lengths<'_>, now: Nanos) -> bool {
        if self.count.queued != 0 || burst.count() == 0 || self.size_table.is_some() {
            return false;
        }
        let Self { count, kind, handle, .. } = self;
        let passed = each!(kind, discipline => discipline.pass_all(count, *handle, burst, now));
        self.changed |= passed;
        passed
    }

    /// Whether the priority of a packet that finds nobody waiting makes no difference.
    #[inline]
    pub(crate) fn passes_any_priority(&self) -> bool {
        each!(&self.kind, discipline => discipline.ignores_priority())
    }

    /// The longest packet that goes through it at once if it holds none. `None`: none does, or not only by its length.
    #[inline]
    fn passes(&self) -> Option<u32> {
        if self.count.queued == 0 { each!(&self.kind, discipline => discipline.passes()) } else { None }
    }

    /// How many bytes a packet is charged that comes, and as how many packets.
    #[inline(always)]
    pub(crate) fn charge(&self, packet: &Packet) -> (u32, u32) {
        match &self.size_table {
            None => charge(packet),
            Some(table) => charge_by(table, packet),
        }
    }

    /// Counts a packet that the worker has no room to hold.
    pub(crate) fn refuse(&mut self) {
        self.count.drops += 1;
        self.changed = true;
    }

    /// Puts a packet into its queue.
    pub(crate) fn enqueue<C: Classify>(&mut self, id: ItemId, cx: &mut Context<'_, C>) -> Enqueued {
        self.changed = true;
        let Self { count, kind, handle, .. } = self;
        each!(kind, discipline => discipline.enqueue(count, *handle, id, cx))
    }

    /// The packet that is to leave now, if there is one: `qdisc_dequeue_peeked`.
    pub(crate) fn dequeue<C: Classify>(&mut self, cx: &mut Context<'_, C>) -> Option<ItemId> {
        if let Some(id) = self.peeked.take() {
            self.changed = true;
            self.count.left(cx.items.charged(id).0);
            return Some(id);
        }
        self.dequeue_next(cx)
    }

    fn dequeue_next<C: Classify>(&mut self, cx: &mut Context<'_, C>) -> Option<ItemId> {
        if self.count.queued == 0 {
            return None;
        }
        self.changed = true;
        let Self { count, kind, .. } = self;
        each!(kind, discipline => discipline.dequeue(count, cx))
    }

    /// The packet that would leave now: `qdisc->ops->peek`.
    fn peek<C: Classify>(&mut self, cx: &mut Context<'_, C>) -> Option<ItemId> {
        if self.peeked.is_some() {
            return self.peeked;
        }
        if let Some(peeked) = each!(&mut self.kind, discipline => discipline.peek(cx)) {
            return peeked;
        }
        let id = self.dequeue_next(cx)?;
        self.count.received_by(cx.items.charged(id).0);
        self.peeked = Some(id);
        self.peeked
    }

    /// Writes what has been counted where others read it.
    pub(crate) fn report(&mut self, counters: &Counters) {
        if !std::mem::take(&mut self.changed) {
            return;
        }
        each!(&mut self.kind, discipline => discipline.report(&mut self.count, counters));
        counters.set_queue(self.queue, &self.count);
    }
}
