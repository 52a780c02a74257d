//! `pfifo`, `bfifo` (`net/sched/sch_fifo.c`) and `pfifo_fast` (`net/sched/sch_generic.c`).

use super::discipline::{Classify, Context, Discipline, Enqueued, Peeked};
use super::items::{ItemId, List};
use crate::counters::QueueCount;
use crate::drops::DropReason;
use crate::limiter::Nanos;
use crate::qos::Lengths;
use crate::tables::{FifoLimit, PRIOMAP};

#[derive(Debug)]
pub(super) struct Fifo {
    pub(super) limit: FifoLimit,
    pub(super) list: List,
}

impl Fifo {
    pub(super) fn can_bypass(&self) -> bool {
        match self.limit {
            FifoLimit::Packets(limit) => limit >= 1,
            // A packet of the device's MTU must have room; what has more than that has.
            FifoLimit::Bytes(limit) => limit >= 1514,
        }
    }
}

impl Discipline for Fifo {
    /// The longest packet that there is room for while there is no other.
    fn passes(&self) -> Option<u32> {
        match self.limit {
            FifoLimit::Packets(limit) => (limit >= 1).then_some(u32::MAX),
            FifoLimit::Bytes(limit) => Some(limit),
        }
    }

    #[inline]
    fn enqueue<C: Classify>(
        &mut self,
        count: &mut QueueCount,
        _: u32,
        id: ItemId,
        cx: &mut Context<'_, C>,
    ) -> Enqueued {
        let (len, _) = cx.items.charged(id);
        let room = match self.limit {
            FifoLimit::Packets(limit) => count.queued < limit.into(),
            FifoLimit::Bytes(limit) => count.backlog + u64::from(len) <= limit.into(),
        };
        if !room {
            count.drops += 1;
            cx.drop(id, DropReason::QdiscFull);
            return Enqueued::Dropped;
        }
        self.list.push(cx.items, id);
        count.received_by(len);
        Enqueued::Queued
    }

    #[inline]
    fn dequeue<C: Classify>(&mut self, count: &mut QueueCount, cx: &mut Context<'_, C>) -> Option<ItemId> {
        let id = self.list.pop(cx.items)?;
        let charged = cx.items.charged(id);
        count.left(charged.0);
        count.sent(charged);
        Some(id)
    }

    fn peek<C: Classify>(&mut self, _: &mut Context<'_, C>) -> Option<Peeked> {
        Some(self.list.peek())
    }

    fn pass(&mut self, count: &mut QueueCount, _: u32, packets: &[(u32, u32)], _: Nanos) -> usize {
        if self.can_bypass() { count.pass(packets) } else { 0 }
    }

    fn pass_all(&mut self, count: &mut QueueCount, _: u32, burst: Lengths<'_>, _: Nanos) -> bool {
        self.can_bypass() && count.pass_all(burst)
    }

    fn ignores_priority(&self) -> bool {
        true
    }
}

/// Three queues by the priority of packets.
#[derive(Debug)]
pub(super) struct PfifoFast {
    pub(super) limit: u32,
    pub(super) bands: [List; 3],
}

impl Discipline for PfifoFast {
    fn enqueue<C: Classify>(
        &mut self,
        count: &mut QueueCount,
        _: u32,
        id: ItemId,
        cx: &mut Context<'_, C>,
    ) -> Enqueued {
        let Some(item) = cx.items.get(id) else { return Enqueued::Dropped };
        let (len, band) = (item.len, PRIOMAP[item.priority as usize % PRIOMAP.len()]);
        match self.bands.get_mut(usize::from(band)) {
            Some(list) if list.len < self.limit => {
                list.push(cx.items, id);
                count.received_by(len);
                Enqueued::Queued
            }
            _ => {
                count.drops += 1;
                cx.drop(id, DropReason::QdiscFull);
                Enqueued::Dropped
            }
        }
    }

    fn dequeue<C: Classify>(&mut self, count: &mut QueueCount, cx: &mut Context<'_, C>) -> Option<ItemId> {
        let id = self.bands.iter_mut().find_map(|list| list.pop(cx.items))?;
        let charged = cx.items.charged(id);
        count.left(charged.0);
        count.sent(charged);
        Some(id)
    }

    fn peek<C: Classify>(&mut self, _: &mut Context<'_, C>) -> Option<Peeked> {
        Some(self.bands.iter().find_map(List::peek))
    }

    fn pass(&mut self, count: &mut QueueCount, _: u32, packets: &[(u32, u32)], _: Nanos) -> usize {
        count.pass(packets)
    }

    fn pass_all(&mut self, count: &mut QueueCount, _: u32, burst: Lengths<'_>, _: Nanos) -> bool {
        count.pass_all(burst)
    }

    fn ignores_priority(&self) -> bool {
        true
    }
}
