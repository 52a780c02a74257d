//! `fq`: `net/sched/sch_fq.c`. What a router forwards has no socket and no time at which it is to leave: its flow is that of
//! its hash, and it may leave as soon as its flow may.

use super::codel;
use super::discipline::{Classify, Context, Discipline, Enqueued};
use super::heap::Heap;
use super::items::{ItemId, List, flow_hash};
use crate::counters::{Counters, QueueCount};
use crate::drops::DropReason;
use crate::limiter::Nanos;
use crate::qos::Lengths;
use crate::qos::qdisc::ecn::mark;
use crate::tables::{self, FQ_BANDS};

const SECOND: Nanos = 1_000_000_000;
/// `FQ_GC_AGE`: flows that have been empty for so long are forgotten.
const FORGOTTEN: Nanos = 3 * SECOND;
/// `FQ_GC_MAX`: flows that are forgotten at a time.
const FORGOTTEN_TOGETHER: u32 = 8;
/// Packets that go past all flows, as long as no flow may send.
const INTERNAL: u32 = 8;

/// What is counted of its own, and in the second place.
const FLOWS: usize = 0;
const INACTIVE: usize = 1;
const THROTTLED_FLOWS: usize = 2;
const THROTTLED: usize = 3;
const GC: usize = 4;
const FLOWS_PLIMIT: usize = 5;
const TOO_LONG: usize = 6;
const NO_FLOW: usize = 7;
const MARKED: usize = 8;
const NEXT_DELAYED: usize = 0;
const LATENCY: usize = 1;
const FASTPATH: usize = 2;
const BAND_DROPS: usize = 3;
const BAND_PACKETS: usize = BAND_DROPS + FQ_BANDS;

/// No flow.
const NONE: u32 = u32::MAX;

/// Where a flow is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    /// In no list, as it has had no packets since then.
    Detached(Nanos),
    /// In one of the lists of a band.
    Listed,
    /// Among those that wait for their rate.
    Throttled,
    /// Nowhere: it is forgotten.
    Gone,
}

#[derive(Debug)]
struct Flow {
    /// The hash of its packets.
    key: u32,
    /// The next one in its bucket.
    chain: u32,
    /// The next one in its list.
    next: u32,
    place: Place,
    packets: List,
    credit: i32,
    band: u8,
    /// When it may send again.
    time_next: Nanos,
}

/// Flows in the order of their turns.
#[derive(Clone, Copy, Debug)]
struct Turns {
    first: u32,
    last: u32,
}

#[derive(Clone, Copy, Debug)]
struct Band {
    new: Turns,
    old: Turns,
    credit: i32,
    /// Packets that wait.
    packets: u32,
}

impl Default for Band {
    fn default() -> Self {
        let empty = Turns { first: NONE, last: NONE };
        Self { new: empty, old: empty, credit: 0, packets: 0 }
    }
}

impl Band {
    /// Whether it is the turn of a new flow; `None`: of no flow. Linux: `fq_pband_head_select`.
    fn new_first(&self) -> Option<bool> {
        let turn = self.credit > 0 && (self.new.first != NONE || self.old.first != NONE);
        turn.then_some(self.new.first != NONE)
    }

    fn turns(&mut self, new: bool) -> &mut Turns {
        if new { &mut self.new } else { &mut self.old }
    }
}

#[derive(Debug)]
pub(super) struct Fq {
    config: tables::Fq,
    /// The first flow of each.
    buckets: Box<[u32]>,
    flows: Vec<Flow>,
    /// Those of them that are none.
    free: Vec<u32>,
    /// The next one that may be forgotten early where there is no room.
    hand: u32,
    /// Packets that go past all flows.
    internal: List,
    bands: [Band; FQ_BANDS],
    /// The one whose turn it is.
    band: usize,
    /// Flows that wait for their rate.
    delayed: Heap,
    throttled: u32,
    /// Flows without packets.
    inactive: u32,
    /// When the first of those that wait may go on.
    next_delayed: Option<Nanos>,
    /// How much later than that it was seen.
    latency: u64,
    /// Its second counters.
    more: QueueCount,
}

/// Flows that there is room for: as many as the mask distinguishes, or as may have packets.
fn room(config: &tables::Fq, items: usize) -> usize {
    (config.orphan_mask as usize).saturating_add(1).min(items.max(1024))
}

impl Fq {
    pub(super) fn new(config: &tables::Fq, items: usize) -> Self {
        let room = room(config, items);
        Self {
            config: *config,
            buckets: vec![NONE; 1 << config.buckets_log.min(18)].into(),
            flows: Vec::with_capacity(room),
            free: Vec::with_capacity(room),
            hand: 0,
            internal: List::default(),
            bands: Default::default(),
            band: 0,
            delayed: Heap::new(room),
            throttled: 0,
            inactive: 0,
            next_delayed: None,
            latency: 0,
            more: QueueCount::default(),
        }
    }

    pub(super) fn change(&mut self, config: &tables::Fq, items: usize) {
        let rehashed = self.config.buckets_log != config.buckets_log;
        self.config = *config;
        let room = room(config, items);
        self.flows.reserve(room.saturating_sub(self.flows.len()));
        self.free.reserve(room.saturating_sub(self.free.len()));
        self.delayed.grow(self.flows.capacity());
        if rehashed {
            self.buckets = vec![NONE; 1 << config.buckets_log.min(18)].into();
            for at in 0..self.flows.len() as u32 {
                if self.flows.get(at as usize).is_some_and(|flow| flow.place != Place::Gone) {
                    self.chain(at);
                }
            }
        }
    }

    /// The packets of all queues.
    pub(super) fn lists(self) -> impl Iterator<Item = List> {
        self.flows.into_iter().map(|flow| flow.packets).chain([self.internal])
    }

    fn bucket(&mut self, key: u32) -> Option<&mut u32> {
        // Fibonacci's: the upper bits depend on all.
        let log = self.buckets.len().trailing_zeros();
        let bucket = u64::from(key.wrapping_mul(0x61c8_8647)) >> (32 - log);
        self.buckets.get_mut(bucket as usize)
    }

    /// Puts a flow into its bucket.
    fn chain(&mut self, at: u32) {
        let Some(key) = self.flows.get(at as usize).map(|flow| flow.key) else { return };
        let first = self.bucket(key).map_or(NONE, |bucket| std::mem::replace(bucket, at));
        if let Some(flow) = self.flows.get_mut(at as usize) {
            flow.chain = first;
        }
    }

    /// The flow of a hash, if there is one. Others of its bucket that were empty for long are forgotten: `fq_gc`.
    fn find(&mut self, count: &mut QueueCount, key: u32, now: Nanos) -> Option<u32> {
        let mut at = self.bucket(key).map_or(NONE, |bucket| *bucket);
        let mut forgotten = 0;
        while let Some(flow) = self.flows.get(at as usize) {
            if flow.key == key {
                return Some(at);
            }
            let next = flow.chain;
            let old = |since| now.saturating_sub(since) > FORGOTTEN;
            if matches!(flow.place, Place::Detached(since) if old(since)) && forgotten < FORGOTTEN_TOGETHER {
                forgotten += 1;
                self.forget(count, at);
            }
            at = next;
        }
        None
    }

    /// Forgets a flow that is in no list.
    fn forget(&mut self, count: &mut QueueCount, gone: u32) {
        let Some(flow) = self.flows.get_mut(gone as usize) else { return };
        flow.place = Place::Gone;
        let (key, chain) = (flow.key, flow.chain);
        let mut at = match self.bucket(key) {
            Some(bucket) if *bucket == gone => {
                *bucket = chain;
                NONE
            }
            Some(bucket) => *bucket,
            None => NONE,
        };
        while let Some(flow) = self.flows.get_mut(at as usize) {
            if flow.chain == gone {
                flow.chain = chain;
                break;
            }
            at = flow.chain;
        }
        self.free.push(gone);
        self.inactive -= 1;
        count.own[GC] += 1;
    }

    /// A new flow. `None`: there is no room, and nobody near who need not be remembered.
    fn make(&mut self, count: &mut QueueCount, key: u32, now: Nanos) -> Option<u32> {
        if self.free.is_empty() && self.flows.len() == self.flows.capacity() {
            for _ in 0..FORGOTTEN_TOGETHER {
                let at = self.hand;
                self.hand = (at + 1) % self.flows.len().max(1) as u32;
                if matches!(self.flows.get(at as usize)?.place, Place::Detached(_)) {
                    self.forget(count, at);
                    break;
                }
            }
        }
        let flow = Flow {
            key,
            chain: NONE,
            next: NONE,
            place: Place::Detached(now),
            packets: List::default(),
            credit: self.config.initial_quantum.cast_signed(),
            band: 0,
            time_next: 0,
        };
        let at = match self.free.pop() {
            Some(at) => {
                *self.flows.get_mut(at as usize)? = flow;
                at
            }
            None if self.flows.len() < self.flows.capacity() => {
                self.flows.push(flow);
                self.flows.len() as u32 - 1
            }
            None => return None,
        };
        self.inactive += 1;
        self.chain(at);
        Some(at)
    }

    /// `fq_flow_add_tail`.
    fn add_tail(&mut self, at: u32, new: bool) {
        let Some(flow) = self.flows.get_mut(at as usize) else { return };
        (flow.next, flow.place) = (NONE, Place::Listed);
        let Some(band) = self.bands.get_mut(usize::from(flow.band)) else { return };
        let turns = band.turns(new);
        let last = std::mem::replace(&mut turns.last, at);
        if turns.first == NONE {
            turns.first = at;
        } else if let Some(last) = self.flows.get_mut(last as usize) {
            last.next = at;
        }
    }

    /// The first flow of a list of the band whose turn it is has had its turn.
    fn take_first(&mut self, new: bool, next: u32) {
        if let Some(band) = self.bands.get_mut(self.band) {
            band.turns(new).first = next;
        }
    }

    /// Whether a packet may go past all flows: `fq_fastpath_check`.
    fn is_fast(&self, count: &QueueCount, now: Nanos) -> bool {
        let flows = (self.flows.len() - self.free.len()) as u32;
        let nobody = count.queued == 0
            || flows == self.inactive + self.throttled
                && self.internal.len < INTERNAL
                && self.next_delayed.is_none_or(|due| due > now);
        nobody && self.config.max_rate.is_none()
    }

    /// `fq_check_throttled`.
    fn check_throttled(&mut self, now: Nanos) {
        let Some(due) = self.next_delayed.filter(|due| *due <= now) else { return };
        self.latency = self.latency - (self.latency >> 3) + ((now - due) >> 3);
        self.next_delayed = None;
        while let Some((due, at)) = self.delayed.first() {
            if due > now {
                self.next_delayed = Some(due);
                return;
            }
            self.delayed.remove(at);
            self.throttled -= 1;
            self.add_tail(at, false);
        }
    }

    /// The band with the next turn; `false`: nobody may send now.
    fn next_band(&mut self, retry: &mut usize) -> bool {
        loop {
            *retry += 1;
            if *retry > FQ_BANDS {
                return false;
            }
            self.band = (self.band + 1) % FQ_BANDS;
            let weight = self.config.weights.get(self.band).copied().unwrap_or(1).max(1);
            let Some(band) = self.bands.get_mut(self.band) else { return false };
            band.credit = band.credit.saturating_add(weight).min(weight);
            if band.credit > 0 {
                return true;
            }
            *retry = 0;
        }
    }

    /// Says when a flow that has sent so many bytes may send again.
    fn pace(config: &tables::Fq, count: &mut QueueCount, flow: &mut Flow, len: u32, now: Nanos) {
        let mut len = len;
        if !config.pacing {
            return;
        }
        if config.max_rate.is_some_and(|rate| rate <= config.low_rate_threshold) {
            flow.credit = 0;
        } else {
            len = len.max(config.quantum);
            if flow.credit > 0 {
                return;
            }
        }
        let Some(rate) = config.max_rate else { return };
        let time = u64::from(len) * SECOND;
        let mut time = time.checked_div(rate.into()).unwrap_or(time);
        if time > SECOND {
            time = SECOND;
            count.own[TOO_LONG] += 1;
        }
        if flow.time_next != 0 {
            time -= (time / 2).min(now.saturating_sub(flow.time_next));
        }
        flow.time_next = now + time;
    }

    fn can_pass(&self) -> bool {
        self.config.max_rate.is_none() && self.config.limit > 0
    }
}

impl Discipline for Fq {
    fn enqueue<C: Classify>(
        &mut self,
        count: &mut QueueCount,
        _: u32,
        id: ItemId,
        cx: &mut Context<'_, C>,
    ) -> Enqueued {
        let Some(item) = cx.items.get_mut(id) else { return Enqueued::Dropped };
        let band = self.config.priomap.get(item.priority as usize % 16).copied().unwrap_or_default();
        (item.band, item.time) = (band, codel::time(cx.now));
        let (len, key) = (item.len, flow_hash(item) & self.config.orphan_mask);
        let place = usize::from(band).min(FQ_BANDS - 1);
        if self.bands.get(place).is_none_or(|band| band.packets >= self.config.limit) {
            if let Some(drops) = self.more.own.get_mut(BAND_DROPS + place) {
                *drops += 1;
            }
            count.drops += 1;
            cx.drop(id, DropReason::QdiscFull);
            return Enqueued::Dropped;
        }
        let flow = if self.is_fast(count, cx.now) {
            self.more.own[FASTPATH] += 1;
            None
        } else {
            let flow = self.find(count, key, cx.now).or_else(|| self.make(count, key, cx.now));
            count.own[NO_FLOW] += u64::from(flow.is_none());
            flow
        };
        let Some(at) = flow else {
            self.internal.push(cx.items, id);
            count.received_by(len);
            return Enqueued::Queued;
        };
        let Some(flow) = self.flows.get_mut(at as usize) else { return Enqueued::Dropped };
        if flow.packets.len >= self.config.flow_limit {
            count.own[FLOWS_PLIMIT] += 1;
            count.drops += 1;
            cx.drop(id, DropReason::QdiscFull);
            return Enqueued::Dropped;
        }
        if let Place::Detached(since) = flow.place {
            if cx.now.saturating_sub(since) > self.config.refill_delay {
                // As of numbers without a sign, of which one below 0 is the greater.
                flow.credit = flow.credit.cast_unsigned().max(self.config.quantum).cast_signed();
            }
            // In the band of its last packet, as in Linux.
            self.add_tail(at, true);
        }
        if let Some(band) = self.bands.get_mut(place) {
            band.packets += 1;
        }
        if let Some(flow) = self.flows.get_mut(at as usize) {
            flow.band = place as u8;
            self.inactive -= u32::from(flow.packets.len == 0);
            flow.packets.push(cx.items, id);
        }
        count.received_by(len);
        Enqueued::Queued
    }

    fn dequeue<C: Classify>(&mut self, count: &mut QueueCount, cx: &mut Context<'_, C>) -> Option<ItemId> {
        let now = cx.now;
        if let Some(id) = self.internal.pop(cx.items) {
            let charged = cx.items.charged(id);
            count.left(charged.0);
            count.sent(charged);
            return Some(id);
        }
        self.check_throttled(now);
        let mut retry = 0;
        loop {
            let Some(new) = self.bands.get(self.band)?.new_first() else {
                if self.next_band(&mut retry) {
                    continue;
                }
                self.next_delayed.into_iter().for_each(|due| cx.wait_until(due));
                return None;
            };
            retry = 0;
            let at = self.bands.get_mut(self.band)?.turns(new).first;
            let flow = self.flows.get_mut(at as usize)?;
            let next = flow.next;
            if flow.credit <= 0 {
                flow.credit = flow.credit.saturating_add(self.config.quantum.max(1).cast_signed());
                self.take_first(new, next);
                self.add_tail(at, false);
                continue;
            }
            let Some(id) = flow.packets.peek() else {
                flow.place = Place::Detached(now);
                self.take_first(new, next);
                if new {
                    // Once through the old ones, so that these get their turn.
                    self.add_tail(at, false);
                }
                continue;
            };
            if now < flow.time_next {
                flow.place = Place::Throttled;
                let due = flow.time_next;
                self.take_first(new, next);
                self.delayed.set(at, due);
                self.throttled += 1;
                count.own[THROTTLED] += 1;
                self.next_delayed = Some(self.next_delayed.map_or(due, |first| first.min(due)));
                continue;
            }
            flow.packets.pop(cx.items);
            self.inactive += u32::from(flow.packets.len == 0);
            let item = cx.items.get_mut(id)?;
            let waited = Nanos::from(codel::time(now).wrapping_sub(item.time)) << 10;
            let could = now.saturating_sub(waited).max(flow.time_next);
            if now - could > self.config.ce_threshold {
                mark(item);
                count.own[MARKED] += 1;
            }
            let (charged, band) = ((item.len, item.segments), usize::from(item.band));
            flow.credit = flow.credit.saturating_sub_unsigned(charged.0);
            Self::pace(&self.config, count, flow, charged.0, now);
            if let Some(band) = self.bands.get_mut(self.band) {
                band.credit = band.credit.saturating_sub_unsigned(charged.0);
            }
            if let Some(band) = self.bands.get_mut(band) {
                band.packets -= 1;
            }
            count.left(charged.0);
            count.sent(charged);
            return Some(id);
        }
    }

    fn pass(&mut self, count: &mut QueueCount, _: u32, packets: &[(u32, u32)], _: Nanos) -> usize {
        let passed = if self.can_pass() { count.pass(packets) } else { 0 };
        self.more.own[FASTPATH] += passed as u64;
        passed
    }

    fn pass_all(&mut self, count: &mut QueueCount, _: u32, burst: Lengths<'_>, _: Nanos) -> bool {
        let passes = self.can_pass() && count.pass_all(burst);
        self.more.own[FASTPATH] += if passes { burst.count() as u64 } else { 0 };
        passes
    }

    fn ignores_priority(&self) -> bool {
        true
    }

    fn report(&mut self, count: &mut QueueCount, counters: &Counters) {
        count.own[FLOWS] = (self.flows.len() - self.free.len()) as u64;
        count.own[INACTIVE] = self.inactive.into();
        count.own[THROTTLED_FLOWS] = self.throttled.into();
        self.more.own[NEXT_DELAYED] = self.next_delayed.unwrap_or_default();
        self.more.own[LATENCY] = self.latency;
        let bands = self.more.own.iter_mut().skip(BAND_PACKETS);
        bands.zip(&self.bands).for_each(|(counted, band)| *counted = band.packets.into());
        counters.set_queue(self.config.more, &self.more);
    }
}
