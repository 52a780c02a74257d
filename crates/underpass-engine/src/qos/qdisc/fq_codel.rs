//! `fq_codel`: `net/sched/sch_fq_codel.c`.

use std::collections::VecDeque;

use super::codel::{self, Head, Params, Vars};
use super::codel_served::{Places, Served};
use super::discipline::{Class, Classify, Context, Discipline, Enqueued};
use super::items::{ItemId, List, flow_hash, memory};
use crate::counters::{Counters, QueueCount};
use crate::drops::DropReason;
use crate::limiter::Nanos;
use crate::qos::Lengths;
use crate::tables::{self, HookId};

/// A flow's queue.
#[derive(Debug, Default)]
pub(super) struct Flow {
    list: List,
    backlog: u32,
    deficit: i32,
    vars: Vars,
    /// Whether it is in one of the lists of queues.
    listed: bool,
}

#[derive(Debug)]
pub(super) struct FqCodel {
    pub(super) limit: u32,
    pub(super) quantum: u32,
    pub(super) params: Params,
    pub(super) memory_limit: u64,
    pub(super) drop_batch: u32,
    pub(super) filters: Option<HookId>,
    pub(super) flows: Box<[Flow]>,
    new: VecDeque<u32>,
    old: VecDeque<u32>,
    memory: u64,
}

/// The numbers of `QueueCount::own`.
const MAX_PACKET: usize = 0;
const DROP_OVERLIMIT: usize = 1;
const ECN_MARK: usize = 2;
const NEW_FLOWS: usize = 3;
const NEW_LEN: usize = 4;
const OLD_LEN: usize = 5;
const CE_MARK: usize = 6;
const MEMORY: usize = 7;
const DROP_OVERMEMORY: usize = 8;

impl FqCodel {
    pub(super) fn new(config: &tables::FqCodel) -> Self {
        let count = config.flows.clamp(1, 1 << 16) as usize;
        let mut fq_codel = Self {
            limit: 0,
            quantum: 0,
            params: params(config),
            memory_limit: 0,
            drop_batch: 0,
            filters: None,
            flows: (0..count).map(|_| Flow::default()).collect(),
            new: VecDeque::with_capacity(count),
            old: VecDeque::with_capacity(count),
            memory: 0,
        };
        fq_codel.change(config);
        fq_codel
    }

    /// Takes over other parameters, but for the number of queues, which Linux does not change either.
    pub(super) fn change(&mut self, config: &tables::FqCodel) {
        self.limit = config.limit;
        self.quantum = config.quantum.max(256);
        self.params = params(config);
        self.memory_limit = config.memory_limit.into();
        self.drop_batch = config.drop_batch.max(1);
        self.filters = config.filters;
    }

    /// `TCQ_F_CAN_BYPASS`, which `tc_new_tfilter` takes away.
    pub(super) fn can_bypass(&self) -> bool {
        self.limit >= 1 && self.filters.is_none()
    }

    /// `fq_codel_classify`: a queue.
    fn flow<C: Classify>(&self, handle: u32, id: ItemId, cx: &mut Context<'_, C>) -> Result<u32, Class> {
        let count = self.flows.len() as u32;
        let number = |class: u32| (class & 0xffff).checked_sub(1).filter(|number| *number < count);
        let item = cx.items.get(id).ok_or(Class::Shot)?;
        let priority = item.priority;
        if priority & 0xffff_0000 == handle
            && let Some(number) = number(priority)
        {
            return Ok(number);
        }
        let Some(filters) = self.filters else {
            // `reciprocal_scale` of 31 bits.
            return Ok(((u64::from(flow_hash(item)) * u64::from(count)) >> 31) as u32);
        };
        match cx.classify(filters, id) {
            Class::Class(class) => number(class).ok_or(Class::None),
            other => Err(other),
        }
    }

    /// Drops half of the longest queue, a batch at most: `fq_codel_drop`.
    #[cold]
    fn drop_batch<C: Classify>(&mut self, count: &mut QueueCount, cx: &mut Context<'_, C>) -> u32 {
        // The first of the longest.
        let mut fat = (0, 0);
        for (number, flow) in self.flows.iter().enumerate() {
            if flow.backlog > fat.1 {
                fat = (number, flow.backlog);
            }
        }
        let Some(flow) = self.flows.get_mut(fat.0) else { return 0 };
        let (mut dropped, mut bytes) = (0, 0);
        while let Some(id) = flow.list.pop(cx.items) {
            let len = cx.items.charged(id).0;
            bytes += len;
            dropped += 1;
            self.memory = self.memory.saturating_sub(memory(len));
            count.left(len);
            cx.drop(id, DropReason::QdiscFull);
            if dropped >= self.drop_batch || bytes >= fat.1 >> 1 {
                break;
            }
        }
        flow.vars.count = flow.vars.count.wrapping_add(dropped);
        flow.backlog = flow.backlog.wrapping_sub(bytes);
        count.drops += u64::from(dropped);
        fat.0 as u32
    }

    fn unlist(&mut self, new: bool) {
        if new {
            self.new.pop_front()
        } else {
            self.old.pop_front()
        };
    }

    /// The packets of all queues.
    pub(super) fn lists(self) -> impl Iterator<Item = List> {
        self.flows.into_iter().map(|flow| flow.list)
    }
}

impl Discipline for FqCodel {
    fn enqueue<C: Classify>(
        &mut self,
        count: &mut QueueCount,
        handle: u32,
        id: ItemId,
        cx: &mut Context<'_, C>,
    ) -> Enqueued {
        let number = match self.flow(handle, id, cx) {
            Ok(number) => number,
            Err(class) => return cx.refuse(count, id, class),
        };
        let now = codel::time(cx.now);
        let (Some(flow), Some(item)) = (self.flows.get_mut(number as usize), cx.items.get_mut(id)) else {
            return Enqueued::Dropped;
        };
        item.time = now;
        let len = item.len;
        self.memory += memory(len);
        flow.list.push(cx.items, id);
        flow.backlog = flow.backlog.wrapping_add(len);
        count.received_by(len);
        if !flow.listed {
            flow.listed = true;
            flow.deficit = self.quantum as i32;
            self.new.push_back(number);
            count.own[NEW_FLOWS] += 1;
        }
        let no_memory = self.memory > self.memory_limit;
        if count.queued <= self.limit.into() && !no_memory {
            return Enqueued::Queued;
        }
        let before = (count.queued, count.backlog);
        let fat = self.drop_batch(count, cx);
        let lost = (before.0 - count.queued) as i64;
        let bytes = before.1.wrapping_sub(count.backlog) as i64;
        count.own[DROP_OVERLIMIT] += lost as u64;
        if no_memory {
            count.own[DROP_OVERMEMORY] += lost as u64;
        }
        // If it was this packet's flow, those above do not count the packet at all.
        let own = fat == number;
        cx.lost.packets += lost - i64::from(own);
        cx.lost.bytes += bytes - if own { i64::from(len) } else { 0 };
        if own { Enqueued::Dropped } else { Enqueued::Queued }
    }

    fn dequeue<C: Classify>(&mut self, count: &mut QueueCount, cx: &mut Context<'_, C>) -> Option<ItemId> {
        loop {
            let from_new = !self.new.is_empty();
            let number = *if from_new { self.new.front() } else { self.old.front() }?;
            let flow = self.flows.get_mut(number as usize)?;
            if flow.deficit <= 0 {
                flow.deficit = flow.deficit.saturating_add(self.quantum as i32);
                self.unlist(from_new);
                self.old.push_back(number);
                continue;
            }
            let (before, now) = (cx.lost, codel::time(cx.now));
            let mut vars = flow.vars;
            let taken = &mut self.memory;
            let pop = |count: &mut QueueCount, cx: &mut Context<'_, C>| {
                let id = flow.list.pop(cx.items)?;
                let (len, time) = cx.items.get(id).map_or((0, 0), |item| (item.len, item.time));
                flow.backlog = flow.backlog.wrapping_sub(len);
                *taken = taken.saturating_sub(memory(len));
                count.left(len);
                Some(Head { id, len, time })
            };
            let mut served = Served {
                pop,
                count,
                cx,
                places: Places { max_packet: MAX_PACKET, ecn_mark: ECN_MARK, ce_mark: CE_MARK },
            };
            let head = vars.dequeue(&self.params, &mut served, now);
            flow.vars = vars;
            let Some(head) = head else {
                let again = from_new && !self.old.is_empty();
                flow.listed = again;
                self.unlist(from_new);
                if again {
                    // So that those in the other list are not starved.
                    self.old.push_back(number);
                }
                if cx.lost != before && count.queued == 0 {
                    return None;
                }
                continue;
            };
            flow.deficit = flow.deficit.saturating_sub_unsigned(head.len);
            count.sent(cx.items.charged(head.id));
            return Some(head.id);
        }
    }

    fn report(&mut self, count: &mut QueueCount, _: &Counters) {
        count.own[NEW_LEN] = self.new.len() as u64;
        count.own[OLD_LEN] = self.old.len() as u64;
        count.own[MEMORY] = self.memory;
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

fn params(config: &tables::FqCodel) -> Params {
    Params {
        target: codel::of_micros(config.target),
        interval: codel::of_micros(config.interval),
        mtu: config.mtu,
        ecn: config.ecn,
        ce_threshold: config.ce_threshold.map(codel::of_micros),
        ce_selector: config.ce_threshold_selector,
    }
}
