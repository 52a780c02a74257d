//! `prio`: `net/sched/sch_prio.c`.

use super::items::ItemId;
use super::{Class, Classify, Context, Discipline, Enqueued, Node, Peeked};
use crate::counters::{Counters, QueueCount};
use crate::drops::DropReason;
use crate::tables::HookId;

#[derive(Debug)]
pub(super) struct Prio {
    pub(super) priomap: [u8; 16],
    pub(super) filters: Option<HookId>,
    pub(super) bands: Vec<Node>,
}

const MAJOR: u32 = 0xffff_0000;

impl Prio {
    /// `prio_classify`. What an action has dropped or taken away has none.
    fn band<C: Classify>(&self, handle: u32, id: ItemId, cx: &mut Context<'_, C>) -> Result<usize, Class> {
        let priority = cx.items.get(id).map_or(0, |item| item.priority);
        let mapped = |priority: u32| usize::from(self.priomap[priority as usize % self.priomap.len()]);
        let mut class = priority;
        if priority & MAJOR != handle {
            class = match self.filters.map_or(Class::None, |filters| cx.classify(filters, id)) {
                Class::None => return Ok(mapped(if priority & MAJOR == 0 { priority } else { 0 })),
                Class::Class(class) => class,
                taken => return Err(taken),
            };
        }
        let band = (class & !MAJOR).wrapping_sub(1) as usize;
        Ok(if band < self.bands.len() { band } else { mapped(0) })
    }
}

impl Discipline for Prio {
    fn enqueue<C: Classify>(
        &mut self,
        count: &mut QueueCount,
        handle: u32,
        id: ItemId,
        cx: &mut Context<'_, C>,
    ) -> Enqueued {
        let len = cx.items.charged(id).0;
        let band = match self.band(handle, id, cx) {
            Ok(band) => band,
            Err(class) => return cx.refuse(count, id, class),
        };
        let enqueued = match self.bands.get_mut(band) {
            Some(node) => count.below(cx, |cx| node.enqueue(id, cx)),
            None => {
                cx.drop(id, DropReason::QdiscFull);
                Enqueued::Dropped
            }
        };
        match enqueued {
            Enqueued::Queued => count.received_by(len),
            Enqueued::Dropped | Enqueued::Filtered => count.drops += 1,
            Enqueued::Stolen => {}
        }
        enqueued
    }

    fn dequeue<C: Classify>(&mut self, count: &mut QueueCount, cx: &mut Context<'_, C>) -> Option<ItemId> {
        for node in &mut self.bands {
            if let Some(id) = count.below(cx, |cx| node.dequeue(cx)) {
                let charged = cx.items.charged(id);
                count.sent(charged);
                count.left(charged.0);
                return Some(id);
            }
        }
        None
    }

    fn peek<C: Classify>(&mut self, cx: &mut Context<'_, C>) -> Option<Peeked> {
        Some(self.bands.iter_mut().find_map(|node| node.peek(cx)))
    }

    fn report(&mut self, _: &mut QueueCount, counters: &Counters) {
        self.bands.iter_mut().for_each(|node| node.report(counters));
    }
}
