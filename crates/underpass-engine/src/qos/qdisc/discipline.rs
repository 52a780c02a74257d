//! What all queueing disciplines have in common: what goes along with a packet, what is counted, what each of them does.

use super::items::{Item, ItemId, Items};
use crate::buffer::{Packet, Pool};
use crate::counters::{Counters, QueueCount};
use crate::drops::DropReason;
use crate::limiter::Nanos;
use crate::qos::Lengths;
use crate::tables::HookId;

/// What filters of a queueing discipline say of a packet: `tcf_classify`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// No filter takes it.
    None,
    /// This class, `major:minor`, or 0 if the filter that takes it has none.
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

    pub(super) fn classify(&mut self, filters: HookId, id: ItemId) -> Class {
        let Some(item) = self.items.get_mut(id) else { return Class::Shot };
        self.classify.classify(filters, item)
    }

    /// Ends a packet for which filters have named no class: an action has taken it away, or else it is dropped.
    #[cold]
    pub(super) fn refuse(&mut self, count: &mut QueueCount, id: ItemId, class: Class) -> Enqueued {
        if class == Class::Stolen {
            self.items.take(id);
            return Enqueued::Stolen;
        }
        count.drops += 1;
        self.drop(id, DropReason::QdiscAction);
        Enqueued::Filtered
    }

    /// Asks for the time at which another look is worth it.
    pub(super) fn wait_until(&mut self, due: Nanos) {
        self.due = self.due.min(due);
    }
}

impl QueueCount {
    /// A packet has come in.
    #[inline(always)]
    pub(super) fn received_by(&mut self, len: u32) {
        self.backlog = self.backlog.wrapping_add(len.into());
        self.queued = self.queued.wrapping_add(1);
    }

    /// A packet has gone out, but not by being sent.
    #[inline(always)]
    pub(super) fn left(&mut self, len: u32) {
        self.backlog = self.backlog.wrapping_sub(len.into());
        self.queued = self.queued.wrapping_sub(1);
    }

    /// A packet is sent: `bstats_update`.
    #[inline(always)]
    pub(super) fn sent(&mut self, (len, segments): (u32, u32)) {
        self.bytes = self.bytes.wrapping_add(len.into());
        self.packets = self.packets.wrapping_add(segments.into());
    }

    /// Packets that are sent at once; how many.
    #[inline]
    pub(super) fn pass(&mut self, packets: &[(u32, u32)]) -> usize {
        let bytes: u64 = packets.iter().map(|(len, _)| u64::from(*len)).sum();
        let segments: u64 = packets.iter().map(|(_, segments)| u64::from(*segments)).sum();
        self.bytes = self.bytes.wrapping_add(bytes);
        self.packets = self.packets.wrapping_add(segments);
        packets.len()
    }

    /// The same for a burst of plain ones; `true`.
    #[inline]
    pub(super) fn pass_all(&mut self, burst: Lengths<'_>) -> bool {
        self.bytes = self.bytes.wrapping_add(burst.bytes());
        self.packets = self.packets.wrapping_add(burst.count() as u64);
        true
    }

    /// Something below has lost packets: `qdisc_tree_reduce_backlog`.
    pub(super) fn lost(&mut self, lost: Lost) {
        self.queued = self.queued.wrapping_sub(lost.packets as u64);
        self.backlog = self.backlog.wrapping_sub(lost.bytes as u64);
        self.drops = self.drops.wrapping_add(lost.packets.max(0) as u64);
    }

    /// Does something below, and takes back what is lost there meanwhile.
    #[inline(always)]
    pub(super) fn below<C, R>(
        &mut self,
        cx: &mut Context<'_, C>,
        what: impl FnOnce(&mut Context<'_, C>) -> R,
    ) -> R {
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

/// The packet that a discipline would give away now, if there is one.
pub(super) type Peeked = Option<ItemId>;

/// What a queueing discipline does: `struct Qdisc_ops`. Each has a file of its own. [`Node`] calls it, and has its counters.
pub(super) trait Discipline {
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
}
