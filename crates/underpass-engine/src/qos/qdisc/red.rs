//! `red`: `net/sched/sch_red.c`, `include/net/red.h`. The average has its point at the window's logarithm.

use super::ecn;
use super::items::ItemId;
use super::netem::Random;
use super::{Classify, Context, Discipline, Enqueued, Node, Peeked};
use crate::counters::{Counters, QueueCount};
use crate::drops::DropReason;
use crate::limiter::Nanos;
use crate::tables::RedParams;

/// The numbers of `QueueCount::own`.
const EARLY: usize = 0;
const FULL: usize = 1;
const MARKED: usize = 2;

#[derive(Debug)]
pub(super) struct Red {
    config: RedParams,
    average: u64,
    /// Packets since the last that was chosen; -1: there was none.
    count: i32,
    /// How many they are to be, by the probability.
    chosen: u32,
    /// Since when nothing has waited.
    idle: Option<Nanos>,
    random: Random,
    pub(super) child: Node,
}

/// What becomes of a packet.
#[derive(PartialEq, Eq)]
enum Verdict {
    Queue,
    /// It is chosen by the probability.
    Early,
    /// The queue is longer than it may be on average.
    Beyond,
}

impl Red {
    /// An empty one.
    pub(super) fn new(config: RedParams, now: Nanos) -> Self {
        Self {
            config,
            average: 0,
            count: -1,
            chosen: 0,
            idle: Some(now),
            random: Random::new(config.seed),
            child: Node::nothing(),
        }
    }

    /// `red_change`: the average begins anew.
    pub(super) fn change(&mut self, config: RedParams, now: Nanos) {
        if self.config.change == config.change {
            return;
        }
        self.config = config;
        (self.average, self.count) = (0, -1);
        self.idle = self.idle.or((self.child.len() == 0).then_some(now));
    }

    /// `red_calc_qavg`.
    fn averaged(&self, backlog: u64, now: Nanos) -> u64 {
        let RedParams { window_log, cell_log, ref table, .. } = self.config;
        let Some(since) = self.idle else {
            return self.average.wrapping_add(backlog).wrapping_sub(self.average >> window_log);
        };
        let micros = (now.saturating_sub(since) / 1000).min(255 << cell_log);
        let shift = table.get((micros >> cell_log) as usize & 255).copied().unwrap_or(0);
        if shift != 0 {
            return self.average >> shift;
        }
        let less = self.average.wrapping_mul(micros) >> cell_log;
        let half = self.average >> 1;
        if less < half { self.average - less } else { half }
    }

    /// `red_action`.
    fn verdict(&mut self) -> Verdict {
        let RedParams { least, most, window_log, difference, max_p, .. } = self.config;
        let (least, most) = (u64::from(least) << window_log, u64::from(most) << window_log);
        if self.average < least || self.average >= most {
            self.count = -1;
            return if self.average < least { Verdict::Queue } else { Verdict::Beyond };
        }
        let mut choose = || self.random.next() / (max_p / difference.max(1)).max(1);
        self.count = self.count.saturating_add(1);
        if self.count == 0 {
            self.chosen = choose();
            return Verdict::Queue;
        }
        let reached = ((self.average - least) >> window_log).saturating_mul(self.count.unsigned_abs().into());
        if reached < self.chosen.into() {
            return Verdict::Queue;
        }
        (self.count, self.chosen) = (0, choose());
        Verdict::Early
    }
}

impl Discipline for Red {
    fn enqueue<C: Classify>(
        &mut self,
        count: &mut QueueCount,
        _: u32,
        id: ItemId,
        cx: &mut Context<'_, C>,
    ) -> Enqueued {
        self.average = self.averaged(self.child.count.backlog, cx.now);
        self.idle = None;
        let verdict = self.verdict();
        if verdict != Verdict::Queue {
            count.overlimits += 1;
            let RedParams { ecn, hard_drop, no_drop, .. } = self.config;
            let may = ecn && !(hard_drop && verdict == Verdict::Beyond);
            if may && cx.items.get_mut(id).is_some_and(ecn::mark) {
                count.own[MARKED] += 1;
            } else if !(may && no_drop) {
                count.own[EARLY] += 1;
                count.drops += 1;
                cx.drop(id, DropReason::Red);
                return Enqueued::Dropped;
            }
        }
        let len = cx.items.charged(id).0;
        let Self { child, .. } = self;
        let enqueued = count.below(cx, |cx| child.enqueue(id, cx));
        match enqueued {
            Enqueued::Queued => count.received_by(len),
            Enqueued::Dropped | Enqueued::Filtered => {
                count.own[FULL] += 1;
                count.drops += 1;
            }
            Enqueued::Stolen => {}
        }
        enqueued
    }

    fn dequeue<C: Classify>(&mut self, count: &mut QueueCount, cx: &mut Context<'_, C>) -> Option<ItemId> {
        let Self { child, .. } = self;
        let id = count.below(cx, |cx| child.dequeue(cx));
        if child.len() == 0 {
            self.idle = self.idle.or(Some(cx.now));
        }
        let id = id?;
        let charged = cx.items.charged(id);
        count.left(charged.0);
        count.sent(charged);
        Some(id)
    }

    fn peek<C: Classify>(&mut self, cx: &mut Context<'_, C>) -> Option<Peeked> {
        Some(self.child.peek(cx))
    }

    fn report(&mut self, _: &mut QueueCount, counters: &Counters) {
        self.child.report(counters);
    }

    fn ignores_priority(&self) -> bool {
        true
    }
}
