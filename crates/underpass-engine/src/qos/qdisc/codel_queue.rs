//! `codel`, a queue that CoDel looks after: `net/sched/sch_codel.c`.

use super::codel::{self, Head, Params, Vars};
use super::codel_served::{Places, Served};
use super::discipline::{Classify, Context, Discipline, Enqueued};
use super::items::{ItemId, List};
use crate::counters::{Counters, QueueCount};
use crate::drops::DropReason;
use crate::limiter::Nanos;
use crate::qos::Lengths;
use crate::tables;

/// The numbers of `QueueCount::own`.
const MAX_PACKET: usize = 0;
const DROP_OVERLIMIT: usize = 1;
const ECN_MARK: usize = 2;
const CE_MARK: usize = 3;
const COUNT: usize = 4;
const LAST_COUNT: usize = 5;
const DELAY: usize = 6;
const DROPPING: usize = 7;
const DROP_NEXT: usize = 8;

#[derive(Debug)]
pub(super) struct CodelQueue {
    limit: u32,
    params: Params,
    vars: Vars,
    pub(super) list: List,
}

impl CodelQueue {
    pub(super) fn new(config: &tables::Codel) -> Self {
        let (limit, params) = (config.limit, params(config));
        Self { limit, params, vars: Vars::default(), list: List::default() }
    }

    /// Takes over other parameters.
    pub(super) fn change(&mut self, config: &tables::Codel) {
        (self.limit, self.params) = (config.limit, params(config));
    }
}

fn params(config: &tables::Codel) -> Params {
    Params {
        target: codel::of_micros(config.target),
        interval: codel::of_micros(config.interval),
        mtu: config.mtu,
        ecn: config.ecn,
        ce_threshold: config.ce_threshold.map(codel::of_micros),
        ce_selector: (0, 0),
    }
}

impl Discipline for CodelQueue {
    fn enqueue<C: Classify>(
        &mut self,
        count: &mut QueueCount,
        _: u32,
        id: ItemId,
        cx: &mut Context<'_, C>,
    ) -> Enqueued {
        let now = codel::time(cx.now);
        let Some(item) = cx.items.get_mut(id) else { return Enqueued::Dropped };
        if count.queued >= self.limit.into() {
            count.own[DROP_OVERLIMIT] += 1;
            count.drops += 1;
            cx.drop(id, DropReason::QdiscFull);
            return Enqueued::Dropped;
        }
        item.time = now;
        let len = item.len;
        self.list.push(cx.items, id);
        count.received_by(len);
        Enqueued::Queued
    }

    fn dequeue<C: Classify>(&mut self, count: &mut QueueCount, cx: &mut Context<'_, C>) -> Option<ItemId> {
        let now = codel::time(cx.now);
        let list = &mut self.list;
        let pop = |count: &mut QueueCount, cx: &mut Context<'_, C>| {
            let id = list.pop(cx.items)?;
            let (len, time) = cx.items.get(id).map_or((0, 0), |item| (item.len, item.time));
            count.left(len);
            Some(Head { id, len, time })
        };
        let mut served = Served {
            pop,
            count,
            cx,
            places: Places { max_packet: MAX_PACKET, ecn_mark: ECN_MARK, ce_mark: CE_MARK },
        };
        let head = self.vars.dequeue(&self.params, &mut served, now)?;
        count.sent(cx.items.charged(head.id));
        Some(head.id)
    }

    fn pass(&mut self, count: &mut QueueCount, _: u32, packets: &[(u32, u32)], _: Nanos) -> usize {
        if self.limit >= 1 { count.pass(packets) } else { 0 }
    }

    fn pass_all(&mut self, count: &mut QueueCount, _: u32, burst: Lengths<'_>, _: Nanos) -> bool {
        self.limit >= 1 && count.pass_all(burst)
    }

    fn ignores_priority(&self) -> bool {
        true
    }

    fn report(&mut self, count: &mut QueueCount, _: &Counters) {
        let (dropping, drop_next) = self.vars.dropping();
        count.own[COUNT] = self.vars.count.into();
        count.own[LAST_COUNT] = self.vars.lastcount.into();
        count.own[DELAY] = self.vars.delay.into();
        (count.own[DROPPING], count.own[DROP_NEXT]) = (dropping.into(), drop_next.into());
    }
}
