//! `netem`: `net/sched/sch_netem.c`.
//!
//! Each worker draws numbers of its own. A rate is that of all workers together, as [`Clocks`] share it.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use super::clocks::Clocks;
use super::ecn;
use super::items::{Item, ItemId, List};
use super::segment::Segment;
use super::{Classify, Context, Discipline, Enqueued, Node};
use crate::buffer::Packet;
use crate::counters::{Counters, QueueCount};
use crate::drops::DropReason;
use crate::limiter::Nanos;
use crate::offload;
use crate::tables::{self, NetemLoss, NetemRate};

/// What the values of a distribution are of: `NETEM_DIST_SCALE`.
const SCALE: i64 = 8192;

/// A generator of numbers: Linux's `prandom_u32_state`, so that the same seed loses the same packets.
#[derive(Debug, Clone, Copy)]
pub(super) struct Random([u32; 4]);

impl Random {
    /// `prandom_seed_state`.
    pub(super) const fn new(seed: u64) -> Self {
        let seed = ((seed >> 32) ^ (seed << 10) ^ seed) as u32;
        const fn least(seed: u32, least: u32) -> u32 {
            if seed < least { seed + least } else { seed }
        }
        Self([least(seed, 2), least(seed, 8), least(seed, 16), least(seed, 128)])
    }

    /// Tausworthe's, of L'Ecuyer's lfsr113.
    pub(super) const fn next(&mut self) -> u32 {
        const fn step(s: u32, a: u32, b: u32, kept: u32, d: u32) -> u32 {
            ((s & kept) << d) ^ (((s << a) ^ s) >> b)
        }
        let [a, b, c, d] = self.0;
        let state = [
            step(a, 6, 13, 0xffff_fffe, 18),
            step(b, 2, 27, 0xffff_fff8, 2),
            step(c, 13, 21, 0xffff_fff0, 7),
            step(d, 3, 12, 0xffff_ff80, 13),
        ];
        self.0 = state;
        let [a, b, c, d] = state;
        a ^ b ^ c ^ d
    }

    /// A number below a bound.
    const fn below(&mut self, bound: u32) -> u32 {
        ((self.next() as u64 * bound as u64) >> 32) as u32
    }
}

/// Numbers of which each depends on the one before: `struct crndstate`.
#[derive(Debug, Clone, Copy, Default)]
struct Correlated {
    last: u32,
    rho: u32,
}

impl Correlated {
    /// `get_crandom`.
    fn next(&mut self, random: &mut Random) -> u32 {
        let value = random.next();
        if self.rho == 0 {
            return value;
        }
        let rho = u64::from(self.rho) + 1;
        let answer = (u64::from(value) * ((1 << 32) - rho)).wrapping_add(u64::from(self.last) * rho) >> 32;
        self.last = answer as u32;
        self.last
    }
}

/// The states of the chains that lose packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Chain {
    /// In a gap between bursts of losses; good.
    #[default]
    Gap,
    /// A single loss in a gap.
    Single,
    /// Losing, in a burst; bad.
    Losing,
    /// Sending, in a burst.
    Sending,
}

#[derive(Debug)]
pub(super) struct Netem {
    config: tables::Netem,
    random: Random,
    /// Where a bit is inverted, which is not part of what a seed says.
    places: Random,
    delays: Correlated,
    losses: Correlated,
    duplicates: Correlated,
    reorders: Correlated,
    corruptions: Correlated,
    chain: Chain,
    /// Packets since one left at once.
    counter: u32,
    /// What waits, by when it leaves, and in the order in which it came.
    waiting: BinaryHeap<Reverse<(Nanos, u64, ItemId)>>,
    /// How many have come.
    came: u64,
    /// When the last of those that wait leaves.
    latest: Nanos,
    /// What leaves before all that waits.
    first: List,
    /// Bytes of both.
    pub(super) bytes: u64,
    clocks: Option<Arc<Clocks>>,
    pub(super) child: Option<Node>,
}

impl Netem {
    /// An empty one, whose parameters are still to be set.
    pub(super) fn new(config: &tables::Netem, clocks: Option<Arc<Clocks>>) -> Self {
        Self {
            // What has another number than it, so that it is taken over.
            config: tables::Netem { change: config.change.wrapping_add(1), child: None, ..config.clone() },
            random: Random::new(0),
            places: Random::new(0),
            delays: Correlated::default(),
            losses: Correlated::default(),
            duplicates: Correlated::default(),
            reorders: Correlated::default(),
            corruptions: Correlated::default(),
            chain: Chain::default(),
            counter: 0,
            waiting: BinaryHeap::new(),
            came: 0,
            latest: 0,
            first: List::default(),
            bytes: 0,
            clocks,
            child: None,
        }
    }

    /// `netem_change`. `room`: how many packets the worker holds at most.
    pub(super) fn change(&mut self, config: &tables::Netem, room: usize) {
        if config.change == self.config.change {
            return;
        }
        self.config = tables::Netem { child: None, ..config.clone() };
        self.random = Random::new(config.seed);
        self.places = Random::new(config.seed ^ 0x5bd1_e995_9d1b_54a5);
        let places = &mut self.places;
        let [delay, loss, duplicate, reorder, corrupt] =
            config.correlations.map(|rho| Correlated { last: places.next(), rho });
        (self.delays, self.losses, self.duplicates) = (delay, loss, duplicate);
        (self.reorders, self.corruptions) = (reorder, corrupt);
        (self.chain, self.counter) = (Chain::default(), 0);
        let most = (config.limit as usize).min(room);
        self.waiting.reserve(most.saturating_sub(self.waiting.len()));
    }

    /// How many packets wait in it itself.
    pub(super) fn held(&self) -> u64 {
        self.waiting.len() as u64 + u64::from(self.first.len)
    }

    /// Drops what waits.
    pub(super) fn purge<C: Classify>(mut self, cx: &mut Context<'_, C>) {
        while let Some(id) = self.first.pop(cx.items) {
            cx.drop(id, DropReason::QdiscPurged);
        }
        for Reverse((_, _, id)) in self.waiting {
            cx.drop(id, DropReason::QdiscPurged);
        }
        if let Some(child) = self.child {
            child.purge(cx);
        }
    }

    /// `loss_event`.
    fn loses(&mut self) -> bool {
        match self.config.loss {
            NetemLoss::Random(loss) => loss != 0 && loss >= self.losses.next(&mut self.random),
            NetemLoss::States(parts) => self.loses_by_states(parts),
            NetemLoss::GilbertElliot([p, r, h, k1]) => match self.chain {
                Chain::Losing => {
                    if self.random.next() < r {
                        self.chain = Chain::Gap;
                    }
                    self.random.next() > h
                }
                _ => {
                    if self.random.next() < p {
                        self.chain = Chain::Losing;
                    }
                    self.random.next() < k1
                }
            },
        }
    }

    /// `loss_4state`.
    fn loses_by_states(&mut self, [p13, p31, p32, p14, p23]: [u32; 5]) -> bool {
        let number = self.random.next();
        let (next, lost) = match self.chain {
            Chain::Gap if number < p14 => (Chain::Single, true),
            Chain::Gap if p14 < number && number < p13.wrapping_add(p14) => (Chain::Losing, true),
            Chain::Sending if number < p23 => (Chain::Losing, true),
            Chain::Losing if number < p32 => (Chain::Sending, false),
            Chain::Losing if p32 < number && number < p31.wrapping_add(p32) => (Chain::Gap, false),
            Chain::Losing if p31.wrapping_add(p32) < number => (Chain::Losing, true),
            Chain::Single => (Chain::Gap, false),
            same => (same, false),
        };
        self.chain = next;
        lost
    }

    /// `tabledist`: how long a packet waits.
    fn delay(&mut self) -> i64 {
        let tables::Netem { latency, jitter, ref distribution, .. } = self.config;
        if jitter == 0 {
            return latency;
        }
        let number = self.delays.next(&mut self.random);
        let sigma = i64::from(jitter);
        let Some(table) = distribution.as_deref().filter(|table| !table.is_empty()) else {
            return i64::from(number % (2 * jitter)) + latency - sigma;
        };
        let value = i64::from(table.get(number as usize % table.len()).copied().unwrap_or(0));
        let part = (sigma % SCALE) * value;
        let part = if part >= 0 { part + SCALE / 2 } else { part - SCALE / 2 };
        part / SCALE + (sigma / SCALE) * value + latency
    }

    /// When a packet leaves that came now and waits for so long.
    fn leaves(&self, len: u32, delay: i64, now: Nanos) -> Nanos {
        let time = now.saturating_add_signed(delay);
        let Some(rate) = self.config.rate else { return time };
        let takes = packet_time(&rate, len);
        match &self.clocks {
            Some(clocks) => clocks.rate.reserve(time, takes, 0).0,
            None if self.waiting.is_empty() => time.saturating_add(takes),
            None => time.max(self.latest).saturating_add(takes),
        }
    }

    /// Puts a packet where it waits.
    fn place<C: Classify>(
        &mut self,
        count: &mut QueueCount,
        id: ItemId,
        cx: &mut Context<'_, C>,
    ) -> Enqueued {
        if self.held() >= self.config.limit.into() {
            count.drops += 1;
            cx.drop(id, DropReason::QdiscFull);
            return Enqueued::Dropped;
        }
        let len = cx.items.charged(id).0;
        count.received_by(len);
        self.bytes += u64::from(len);
        let gap = self.config.gap;
        if gap == 0 || self.counter < gap - 1 || self.config.reorder < self.reorders.next(&mut self.random) {
            let delay = self.delay();
            let time = self.leaves(len, delay, cx.now);
            self.latest = if self.waiting.is_empty() { time } else { self.latest.max(time) };
            self.counter = self.counter.wrapping_add(1);
            self.waiting.push(Reverse((time, self.came, id)));
            self.came += 1;
        } else {
            self.counter = 0;
            count.requeues += 1;
            self.first.push_first(cx.items, id);
        }
        Enqueued::Queued
    }

    /// Sends a packet twice: the second one, which comes first, is not sent twice again.
    #[cold]
    fn duplicate<C: Classify>(
        &mut self,
        count: &mut QueueCount,
        handle: u32,
        id: ItemId,
        cx: &mut Context<'_, C>,
    ) {
        let Some(item) = cx.items.get(id) else { return };
        let (len, segments, priority, origin) = (item.len, item.segments, item.priority, item.origin);
        let copy = item.packet().and_then(|packet| cx.classify.pool().copy(packet));
        let Some(copy) = copy else { return };
        let mut copy = Item::new(copy, origin, (len, segments));
        copy.priority = priority;
        let copy = match cx.items.put(copy) {
            Ok(copy) => copy,
            Err(copy) => {
                copy.packet.into_iter().for_each(|packet| cx.classify.pool().give(packet));
                return;
            }
        };
        cx.generated += 1;
        let duplicate = std::mem::take(&mut self.config.duplicate);
        if self.enqueue(count, handle, copy, cx) == Enqueued::Queued {
            // Those above count one packet alone.
            cx.lost.packets -= 1;
            cx.lost.bytes -= i64::from(len);
        }
        self.config.duplicate = duplicate;
    }

    /// Inverts a bit.
    fn corrupt(&mut self, packet: &mut Packet) {
        offload::finish(packet);
        let at = self.places.below(packet.len() as u32);
        let bit = self.places.below(8);
        if let Some(byte) = packet.bytes_mut().get_mut(at as usize) {
            *byte ^= 1 << bit;
        }
    }

    /// A segment of which one packet is corrupted is cut: `netem_segment`.
    #[cold]
    fn corrupt_part<C: Classify>(
        &mut self,
        count: &mut QueueCount,
        handle: u32,
        id: ItemId,
        cx: &mut Context<'_, C>,
    ) -> Enqueued {
        let Some(mut segment) = Segment::take(id, cx) else { return Enqueued::Dropped };
        let mut first = true;
        while let Some(mut part) = segment.next(cx) {
            let corrupted = std::mem::replace(&mut first, false);
            if corrupted {
                self.corrupt(&mut part);
            }
            let Some((part, len)) = segment.put(part, count, cx) else { continue };
            let enqueued =
                if corrupted { self.place(count, part, cx) } else { self.enqueue(count, handle, part, cx) };
            if enqueued == Enqueued::Queued {
                segment.queued(len);
            }
        }
        segment.end(count, cx)
    }

    /// Takes out what has waited long enough. `Err`: when something will have.
    fn due(&mut self, now: Nanos) -> Result<Option<ItemId>, Nanos> {
        match self.waiting.peek() {
            None => Ok(None),
            Some(Reverse((time, _, _))) if *time > now => Err(*time),
            Some(_) => Ok(self.waiting.pop().map(|Reverse((_, _, id))| id)),
        }
    }
}

/// `packet_time_ns`.
fn packet_time(rate: &NetemRate, len: u32) -> Nanos {
    let NetemRate { bytes_per_second, packet_overhead, cell_size, cell_overhead } = *rate;
    let mut len = (i64::from(len) + i64::from(packet_overhead)).max(0) as u64;
    if cell_size != 0 {
        let cell = (i64::from(cell_size) + i64::from(cell_overhead)).max(0) as u64;
        len = len.div_ceil(cell_size.into()).saturating_mul(cell);
    }
    let nanos = u128::from(len) * 1_000_000_000 / u128::from(bytes_per_second.max(1));
    u64::try_from(nanos).unwrap_or(u64::MAX)
}

impl Discipline for Netem {
    fn enqueue<C: Classify>(
        &mut self,
        count: &mut QueueCount,
        handle: u32,
        id: ItemId,
        cx: &mut Context<'_, C>,
    ) -> Enqueued {
        let duplicate = self.config.duplicate;
        let mut copies = 1;
        if duplicate != 0 && duplicate >= self.duplicates.next(&mut self.random) {
            copies += 1;
        }
        if self.loses() {
            let marked = self.config.ecn && cx.items.get_mut(id).is_some_and(ecn::mark);
            if marked {
                // Linux counts it so.
                count.drops += 1;
            } else {
                copies -= 1;
            }
        }
        if copies == 0 {
            count.drops += 1;
            cx.drop(id, DropReason::NetemLoss);
            return Enqueued::Filtered;
        }
        if copies > 1 {
            self.duplicate(count, handle, id, cx);
        }
        let corrupt = self.config.corrupt;
        if corrupt != 0 && corrupt >= self.corruptions.next(&mut self.random) {
            match cx.items.get_mut(id).and_then(|item| item.packet.as_mut()) {
                Some(packet) if packet.offload().is_some_and(|offload| offload.segment.is_some()) => {
                    return self.corrupt_part(count, handle, id, cx);
                }
                Some(packet) => self.corrupt(packet),
                None => {}
            }
        }
        self.place(count, id, cx)
    }

    fn dequeue<C: Classify>(&mut self, count: &mut QueueCount, cx: &mut Context<'_, C>) -> Option<ItemId> {
        loop {
            let mut next = self.first.pop(cx.items);
            let mut through = false;
            let mut later = None;
            if next.is_none() {
                match self.due(cx.now) {
                    Ok(due) => (next, through) = (due, true),
                    Err(time) => later = Some(time),
                }
            }
            if let Some(id) = next {
                let charged = cx.items.charged(id);
                self.bytes = self.bytes.wrapping_sub(charged.0.into());
                match self.child.as_mut().filter(|_| through) {
                    None => {
                        count.left(charged.0);
                        count.sent(charged);
                        return Some(id);
                    }
                    Some(child) => {
                        let enqueued = count.below(cx, |cx| child.enqueue(id, cx));
                        if enqueued != Enqueued::Queued {
                            count.drops += u64::from(enqueued != Enqueued::Stolen);
                            count.left(charged.0);
                            cx.lost.packets += 1;
                            cx.lost.bytes += i64::from(charged.0);
                        }
                        continue;
                    }
                }
            }
            if let Some(child) = &mut self.child
                && let Some(id) = count.below(cx, |cx| child.dequeue(cx))
            {
                let charged = cx.items.charged(id);
                count.left(charged.0);
                count.sent(charged);
                return Some(id);
            }
            if let Some(time) = later {
                cx.wait_until(time);
            }
            return None;
        }
    }

    fn report(&mut self, _: &mut QueueCount, counters: &Counters) {
        if let Some(child) = &mut self.child {
            child.report(counters);
        }
    }

    fn ignores_priority(&self) -> bool {
        true
    }
}
