//! A queue of a qdisc as CoDel looks after it: that of `codel`, and of each flow of `fq_codel`.

use super::codel::{Head, Queue};
use super::discipline::{Classify, Context};
use super::ecn;
use crate::counters::QueueCount;
use crate::drops::DropReason;

/// Where `QueueCount::own` has what CoDel counts.
pub(super) struct Places {
    pub(super) max_packet: usize,
    pub(super) ecn_mark: usize,
    pub(super) ce_mark: usize,
}

/// A queue of which `pop` takes the first packet, and counts that it has left.
pub(super) struct Served<'c, 'a, C, P> {
    pub(super) pop: P,
    pub(super) count: &'c mut QueueCount,
    pub(super) cx: &'c mut Context<'a, C>,
    pub(super) places: Places,
}

impl<C: Classify, P> Queue for Served<'_, '_, C, P>
where
    P: FnMut(&mut QueueCount, &mut Context<'_, C>) -> Option<Head>,
{
    fn pop(&mut self) -> Option<Head> {
        (self.pop)(self.count, self.cx)
    }

    fn backlog(&self) -> u64 {
        self.count.backlog
    }

    fn drop(&mut self, head: Head) {
        self.count.drops += 1;
        self.cx.lost.packets += 1;
        self.cx.lost.bytes += i64::from(head.len);
        self.cx.drop(head.id, DropReason::Codel);
    }

    fn mark(&mut self, head: Head) -> bool {
        self.cx.items.get_mut(head.id).is_some_and(ecn::mark)
    }

    fn class(&self, head: Head) -> Option<u8> {
        ecn::class_of(self.cx.items.get(head.id)?)
    }

    fn marked(&mut self) {
        self.count.own[self.places.ecn_mark] += 1;
    }

    fn marked_above_threshold(&mut self) {
        self.count.own[self.places.ce_mark] += 1;
    }

    fn seen(&mut self, len: u32) {
        let max = &mut self.count.own[self.places.max_packet];
        *max = (*max).max(len.into());
    }
}
