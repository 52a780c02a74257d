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
        }
    };
}

mod build;
mod clocks;
mod codel;
mod fifo;
mod fq_codel;
mod heap;
mod htb;
mod items;
mod prio;
mod ring;
mod tbf;
#[cfg(test)]
mod tests;

pub use clocks::Clocks;
pub(crate) use heap::Heap;
pub(crate) use items::charge;
pub use items::{Item, Items, Origin};

use crate::buffer::{Packet, Pool};
use crate::counters::{Counters, QueueCount, QueueId};
use crate::drops::DropReason;
use crate::limiter::Nanos;
use crate::qos::Lengths;
use crate::tables::HookId;
use fifo::{Fifo, PfifoFast};
use fq_codel::FqCodel;
use htb::Htb;
use items::ItemId;
use prio::Prio;
use tbf::Tbf;

/// What filters of a queueing discipline say of a packet: `tcf_classify`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// No filter takes it.
    None,
    /// This class, `major:minor`, or 0.
    Class(u32),
    /// An action has dropped it.
    Shot,
    /// An action has taken it away.
    Stolen,
}

/// What classifies by filters.
pub trait Classify {
    /// Consults the filters of a place for the class of a packet.
    fn classify(&mut self, filters: HookId, item: &mut Item) -> Class;

    /// The worker's free slots.
    fn pool(&mut self) -> &mut Pool;
}

/// What enqueueing a packet came to: `NET_XMIT_*`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Enqueued {
    /// It waits.
    Queued,
    /// It was dropped, or a packet of its flow was in its place.
    Dropped,
    /// A filter of the qdisc has dropped it, of which who has sent it hears nothing: `__NET_XMIT_BYPASS`.
    Filtered,
    /// An action of a filter has taken it away.
    Stolen,
}

/// What goes along with a packet into queues and out of them.
pub(crate) struct Context<'a, C> {
    /// What time it is.
    pub(crate) now: Nanos,
    pub(crate) items: &'a mut Items,
    pub(crate) classify: &'a mut C,
    /// When something that could not leave now may, at the earliest.
    pub(crate) due: Nanos,
    /// What queues have lost by themselves, packets and bytes, after those above had counted it: with
    /// `qdisc_tree_reduce_backlog` these take it back.
    pub(crate) lost: Lost,
    /// What is to be counted and given back.
    pub(crate) dropped: &'a mut Vec<(Packet, DropReason)>,
    /// Packets that have become several, and how many more.
    pub(crate) generated: u64,
}

/// Packets and bytes; negative: there are more than there were.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Lost {
    pub(crate) packets: i64,
    pub(crate) bytes: i64,
}

impl<C: Classify> Context<'_, C> {
    /// Drops a packet.
    pub(super) fn drop(&mut self, id: ItemId, reason: DropReason) {
        if let Some(packet) = self.items.take(id).and_then(|item| item.packet) {
            self.dropped.push((packet, reason));
        }
    }

    fn classify(&mut self, filters: HookId, id: ItemId) -> Class {
        let Some(item) = self.items.get_mut(id) else { return Class::Shot };
        self.classify.classify(filters, item)
    }

    /// Asks for the time at which another look is worth it.
    fn wait_until(&mut self, due: Nanos) {
        self.due = self.due.min(due);
    }
}

impl QueueCount {
    /// A packet has come in.
    #[inline(always)]
    fn received_by(&mut self, len: u32) {
        self.backlog = self.backlog.wrapping_add(len.into());
        self.queued = self.queued.wrapping_add(1);
    }

    /// A packet has gone out, but not by being sent.
    #[inline(always)]
    fn left(&mut self, len: u32) {
        self.backlog = self.backlog.wrapping_sub(len.into());
        self.queued = self.queued.wrapping_sub(1);
    }

    /// A packet is sent: `bstats_update`.
    #[inline(always)]
    fn sent(&mut self, (len, segments): (u32, u32)) {
        self.bytes = self.bytes.wrapping_add(len.into());
        self.packets = self.packets.wrapping_add(segments.into());
    }

    /// Packets that are sent at once; how many.
    #[inline]
    fn pass(&mut self, packets: &[(u32, u32)]) -> usize {
        let bytes: u64 = packets.iter().map(|(len, _)| u64::from(*len)).sum();
        let segments: u64 = packets.iter().map(|(_, segments)| u64::from(*segments)).sum();
        self.bytes = self.bytes.wrapping_add(bytes);
        self.packets = self.packets.wrapping_add(segments);
        packets.len()
    }

    /// The same for a burst of plain ones; `true`.
    #[inline]
    fn pass_all(&mut self, burst: Lengths<'_>) -> bool {
        self.bytes = self.bytes.wrapping_add(burst.bytes());
        self.packets = self.packets.wrapping_add(burst.count() as u64);
        true
    }

    /// Something below has lost packets: `qdisc_tree_reduce_backlog`.
    fn lost(&mut self, lost: Lost) {
        self.queued = self.queued.wrapping_sub(lost.packets as u64);
        self.backlog = self.backlog.wrapping_sub(lost.bytes as u64);
        self.drops = self.drops.wrapping_add(lost.packets.max(0) as u64);
    }

    /// Does something below, and takes back what is lost there meanwhile.
    #[inline(always)]
    fn below<C, R>(&mut self, cx: &mut Context<'_, C>, what: impl FnOnce(&mut Context<'_, C>) -> R) -> R {
        let before = cx.lost;
        let result = what(cx);
        if cx.lost != before {
            self.lost(Lost {
                packets: cx.lost.packets - before.packets,
                bytes: cx.lost.bytes - before.bytes,
            });
        }
        result
    }
}

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
    kind: Kind,
}

/// The packet that a discipline would give away now, if there is one.
type Peeked = Option<ItemId>;

/// What a queueing discipline does: `struct Qdisc_ops`. Each has a file of its own. [`Node`] calls it, and has its counters.
trait Discipline {
    /// Puts a packet into its queue. `handle` is its own, `major:0`.
    fn enqueue<C: Classify>(
        &mut self,
        count: &mut QueueCount,
        handle: u32,
        id: ItemId,
        cx: &mut Context<'_, C>,
    ) -> Enqueued;

    /// Takes the packet out that is to leave now.
    fn dequeue<C: Classify>(&mut self, count: &mut QueueCount, cx: &mut Context<'_, C>) -> Option<ItemId>;

    /// The packet that would leave now. `None`: only dequeueing shows it (`qdisc_peek_dequeued`).
    fn peek<C: Classify>(&mut self, _: &mut Context<'_, C>) -> Option<Peeked> {
        None
    }

    /// [`Node::pass`], where nobody waits.
    fn pass(&mut self, _: &mut QueueCount, _handle: u32, _: &[(u32, u32)], _: Nanos) -> usize {
        0
    }

    /// [`Node::pass_all`], where nobody waits.
    fn pass_all(&mut self, _: &mut QueueCount, _handle: u32, _: Lengths<'_>, _: Nanos) -> bool {
        false
    }

    /// Whether a packet that finds nobody waiting goes by whatever its priority is: `TCQ_F_CAN_BYPASS`. Elsewhere a priority
    /// can name a class.
    fn ignores_priority(&self) -> bool {
        false
    }

    /// [`Node::passes`], where nobody waits.
    fn passes(&self) -> Option<u32> {
        None
    }

    /// Writes counters of its own, and has those below it do so.
    fn report(&mut self, _: &mut QueueCount, _: &Counters) {}

    /// What is below it.
    fn each_child(&mut self, _: impl FnMut(&mut Node)) {}
}

#[derive(Debug)]
enum Kind {
    Fifo(Fifo),
    PfifoFast(PfifoFast),
    Prio(Prio),
    Tbf(Box<Tbf>),
    Htb(Box<Htb>),
    FqCodel(Box<FqCodel>),
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
        if self.count.queued != 0 || burst.count() == 0 {
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
