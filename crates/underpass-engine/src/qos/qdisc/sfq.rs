//! `sfq`: `net/sched/sch_sfq.c`.

use std::collections::VecDeque;

use super::discipline::{Class, Classify, Context, Discipline, Enqueued};
use super::items::{ItemId, List, flow_hash};
use crate::counters::QueueCount;
use crate::drops::DropReason;
use crate::limiter::Nanos;
use crate::qos::Lengths;
use crate::tables;

/// A hash without a queue.
const NONE: u32 = u32::MAX;

/// A queue: the packets of the flows with one hash.
#[derive(Debug, Default)]
struct Slot {
    list: List,
    hash: u32,
    allot: i32,
    /// When it became as long as it is: the last one goes first where several are as long.
    since: u64,
}

#[derive(Debug)]
pub(super) struct Sfq {
    config: tables::Sfq,
    /// The queue of each hash.
    hashes: Box<[u32]>,
    slots: Box<[Slot]>,
    /// Queues that are free, the next one last.
    free: Vec<u32>,
    /// Queues with packets, the one whose turn it is first.
    turns: VecDeque<u32>,
    /// What hashes are mixed with.
    perturbation: u32,
    /// When that changes.
    perturbed: Nanos,
    /// How often a queue has become longer or shorter.
    changes: u64,
    /// Where packets are while they are hashed anew.
    moved: Vec<ItemId>,
}

impl Sfq {
    pub(super) fn new(config: &tables::Sfq, now: Nanos, room: usize) -> Self {
        let flows = config.flows.clamp(1, 1 << 16);
        let room = (config.limit as usize).saturating_add(1).min(room);
        Self {
            config: *config,
            hashes: vec![NONE; config.divisor.clamp(1, 1 << 16) as usize].into(),
            slots: (0..flows).map(|_| Slot::default()).collect(),
            free: (0..flows).collect(),
            turns: VecDeque::with_capacity(flows as usize),
            perturbation: config.seed,
            perturbed: now.saturating_add(config.perturb),
            changes: 0,
            moved: Vec::with_capacity(if config.perturb == 0 { 0 } else { room }),
        }
    }

    /// Whether it is made of these parameters, but for filters.
    pub(super) fn is(&self, config: &tables::Sfq) -> bool {
        tables::Sfq { filters: config.filters, ..self.config } == *config
    }

    /// Linux has no change of the others.
    pub(super) fn change(&mut self, config: &tables::Sfq) {
        self.config.filters = config.filters;
    }

    fn can_bypass(&self) -> bool {
        self.config.limit >= 1 && self.config.filters.is_none()
    }

    /// The packets of all queues.
    pub(super) fn lists(self) -> impl Iterator<Item = List> {
        self.slots.into_iter().map(|slot| slot.list)
    }

    /// `sfq_hash`.
    fn hash<C: Classify>(&self, id: ItemId, cx: &Context<'_, C>) -> u32 {
        let Some(item) = cx.items.get(id) else { return 0 };
        let hash = flow_hash(item);
        // Fibonacci's, so that all bits of both have a part in those that are left.
        let mixed = (hash ^ self.perturbation).wrapping_mul(0x9e37_79b1);
        (mixed ^ mixed >> 15) & (self.hashes.len() as u32 - 1)
    }

    /// `sfq_classify`.
    fn classify<C: Classify>(&self, handle: u32, id: ItemId, cx: &mut Context<'_, C>) -> Result<u32, Class> {
        let count = self.hashes.len() as u32;
        let number = |class: u32| (class & 0xffff).checked_sub(1).filter(|number| *number < count);
        let priority = cx.items.get(id).map_or(0, |item| item.priority);
        if priority & 0xffff_0000 == handle
            && let Some(number) = number(priority)
        {
            return Ok(number);
        }
        let Some(filters) = self.config.filters else { return Ok(self.hash(id, cx)) };
        match cx.classify(filters, id) {
            Class::Class(class) => number(class).ok_or(Class::None),
            other => Err(other),
        }
    }

    /// Whether a hash, or the queue of another one that is free, has room; the queue.
    fn slot(&mut self, hash: u32) -> Option<u32> {
        let place = self.hashes.get_mut(hash as usize)?;
        if *place == NONE {
            let slot = self.free.pop()?;
            *place = slot;
            self.slots.get_mut(slot as usize)?.hash = hash;
        }
        Some(*place)
    }

    /// Puts a packet into a queue that has room.
    fn put<C: Classify>(&mut self, number: u32, id: ItemId, cx: &mut Context<'_, C>) {
        let Some(slot) = self.slots.get_mut(number as usize) else { return };
        slot.list.push(cx.items, id);
        self.changes += 1;
        slot.since = self.changes;
        if slot.list.len == 1 {
            slot.allot = self.config.quantum.cast_signed();
            self.turns.push_back(number);
        }
    }

    /// A packet of a queue has gone; the queue, too, if it was the last.
    fn took(&mut self, number: u32) {
        let Some(slot) = self.slots.get_mut(number as usize) else { return };
        self.changes += 1;
        slot.since = self.changes;
        if slot.list.len == 0 {
            if let Some(place) = self.hashes.get_mut(slot.hash as usize) {
                *place = NONE;
            }
            self.free.push(number);
        }
    }

    /// Drops a packet of the longest queue; whose it was and how long: `sfq_drop`.
    #[cold]
    fn drop_one<C: Classify>(
        &mut self,
        count: &mut QueueCount,
        cx: &mut Context<'_, C>,
    ) -> Option<(u32, u32)> {
        let longest = |(_, slot): &(u32, &Slot)| (slot.list.len, slot.since);
        let (number, slot) = (0..).zip(&self.slots).max_by_key(longest)?;
        let number = if slot.list.len > 1 { number } else { self.turns.pop_front()? };
        let head = self.config.head_drop;
        let slot = self.slots.get_mut(number as usize)?;
        let id = if head { slot.list.pop(cx.items) } else { slot.list.pop_last(cx.items) }?;
        let len = cx.items.charged(id).0;
        count.left(len);
        count.drops += 1;
        cx.drop(id, DropReason::QdiscFull);
        self.took(number);
        Some((number, len))
    }

    /// Hashes all packets anew where it is time: `sfq_perturbation`, `sfq_rehash`.
    fn perturb<C: Classify>(&mut self, count: &mut QueueCount, cx: &mut Context<'_, C>) {
        if self.config.perturb == 0 || cx.now < self.perturbed {
            return;
        }
        self.perturbed = cx.now.saturating_add(self.config.perturb);
        self.perturbation = self.perturbation.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        if self.config.filters.is_some() || self.turns.is_empty() {
            return;
        }
        for number in 0..self.slots.len() as u32 {
            let Some(slot) = self.slots.get_mut(number as usize).filter(|slot| slot.list.len > 0) else {
                continue;
            };
            while let Some(id) = slot.list.pop(cx.items) {
                self.moved.push(id);
            }
            self.took(number);
        }
        self.turns.clear();
        let mut moved = std::mem::take(&mut self.moved);
        for id in moved.drain(..) {
            let hash = self.hash(id, cx);
            let depth = self.config.depth;
            let slot = self
                .slot(hash)
                .filter(|number| self.slots.get(*number as usize).is_some_and(|slot| slot.list.len < depth));
            match slot {
                Some(number) => self.put(number, id, cx),
                None => {
                    let len = cx.items.charged(id).0;
                    count.left(len);
                    count.drops += 1;
                    cx.lost.packets += 1;
                    cx.lost.bytes += i64::from(len);
                    cx.drop(id, DropReason::QdiscFull);
                }
            }
        }
        self.moved = moved;
    }
}

impl Discipline for Sfq {
    fn enqueue<C: Classify>(
        &mut self,
        count: &mut QueueCount,
        handle: u32,
        id: ItemId,
        cx: &mut Context<'_, C>,
    ) -> Enqueued {
        self.perturb(count, cx);
        let hash = match self.classify(handle, id, cx) {
            Ok(hash) => hash,
            Err(class) => return cx.refuse(count, id, class),
        };
        let len = cx.items.charged(id).0;
        let slot = self.slot(hash);
        let Some((number, slot)) =
            slot.and_then(|number| Some((number, self.slots.get_mut(number as usize)?)))
        else {
            count.drops += 1;
            cx.drop(id, DropReason::QdiscFull);
            return Enqueued::Dropped;
        };
        if slot.list.len >= self.config.depth {
            count.drops += 1;
            if !self.config.head_drop {
                cx.drop(id, DropReason::QdiscFull);
                return Enqueued::Dropped;
            }
            let Some(head) = slot.list.pop(cx.items) else { return Enqueued::Dropped };
            let head_len = cx.items.charged(head).0;
            count.backlog = count.backlog.wrapping_add(len.into()).wrapping_sub(head_len.into());
            cx.lost.bytes += i64::from(head_len) - i64::from(len);
            cx.drop(head, DropReason::QdiscFull);
            slot.list.push(cx.items, id);
            return Enqueued::Dropped;
        }
        count.received_by(len);
        self.put(number, id, cx);
        if count.queued <= self.config.limit.into() {
            return Enqueued::Queued;
        }
        match self.drop_one(count, cx) {
            // One of this queue is gone: those above do not count the packet.
            Some((whose, dropped)) if whose == number => {
                cx.lost.bytes += i64::from(dropped) - i64::from(len);
                Enqueued::Dropped
            }
            Some((_, dropped)) => {
                cx.lost.packets += 1;
                cx.lost.bytes += i64::from(dropped);
                Enqueued::Queued
            }
            None => Enqueued::Queued,
        }
    }

    fn dequeue<C: Classify>(&mut self, count: &mut QueueCount, cx: &mut Context<'_, C>) -> Option<ItemId> {
        self.perturb(count, cx);
        loop {
            let number = *self.turns.front()?;
            let slot = self.slots.get_mut(number as usize)?;
            if slot.allot <= 0 {
                slot.allot = slot.allot.saturating_add(self.config.quantum.max(1).cast_signed());
                self.turns.rotate_left(1);
                continue;
            }
            let id = slot.list.pop(cx.items)?;
            let charged = cx.items.charged(id);
            count.left(charged.0);
            count.sent(charged);
            if slot.list.len == 0 {
                self.turns.pop_front();
            } else {
                slot.allot = slot.allot.saturating_sub(charged.0.cast_signed());
            }
            self.took(number);
            return Some(id);
        }
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
