//! `tbf`: `net/sched/sch_tbf.c`.

use std::sync::Arc;

use super::clocks::Clocks;
use super::items::{Item, ItemId};
use super::{Classify, Context, Enqueued, Node};
use crate::counters::{Counters, QueueCount};
use crate::drops::Drop;
use crate::limiter::Nanos;
use crate::offload::Cut;
use crate::qos::Rate;

#[derive(Debug)]
pub(super) struct Tbf {
    pub(super) rate: Rate,
    /// What the bucket holds at most, in nanoseconds at `rate`.
    pub(super) buffer: i64,
    pub(super) peak: Option<Rate>,
    /// The same for the bucket of `peak`.
    pub(super) mtu: i64,
    pub(super) max_size: u32,
    pub(super) tokens: i64,
    pub(super) peak_tokens: i64,
    /// When the buckets were looked at last.
    pub(super) at: Nanos,
    /// Those of all workers, if there are several.
    pub(super) clocks: Option<Arc<Clocks>>,
    pub(super) child: Node,
}

impl Tbf {
    pub(super) fn enqueue<C: Classify>(
        &mut self,
        count: &mut QueueCount,
        id: ItemId,
        cx: &mut Context<'_, C>,
    ) -> Enqueued {
        let len = cx.items.charged(id).0;
        if len > self.max_size {
            let packet = cx.items.get(id).and_then(|item| item.packet.as_ref());
            if packet.is_some_and(|packet| packet.fits(self.max_size as usize)) {
                return self.enqueue_parts(count, id, cx);
            }
            count.drops += 1;
            cx.drop(id, Drop::QdiscTooBig);
            return Enqueued::Dropped;
        }
        let Self { child, .. } = self;
        let enqueued = count.below(cx, |cx| child.enqueue(id, cx));
        match enqueued {
            Enqueued::Queued => count.came(len),
            Enqueued::Dropped => count.drops += 1,
            Enqueued::Stolen => {}
        }
        enqueued
    }

    /// Cuts a segment that the bucket has no room for: `tbf_segment`.
    #[cold]
    fn enqueue_parts<C: Classify>(
        &mut self,
        count: &mut QueueCount,
        id: ItemId,
        cx: &mut Context<'_, C>,
    ) -> Enqueued {
        let Some(whole) = cx.items.take(id) else { return Enqueued::Dropped };
        let Item { packet: Some(packet), len, meta, origin, .. } = whole else { return Enqueued::Dropped };
        let (mut queued, mut bytes, mut parts) = (0, 0, 0);
        let mut cut = Cut::new(&packet);
        while let Some(Ok(part)) = cut.as_mut().and_then(|cut| cut.next(&packet, cx.pool)) {
            let part = Item::new(part, meta, origin);
            let part_len = part.len;
            parts += 1;
            let part = match cx.items.put(part) {
                Ok(part) => part,
                Err(part) => {
                    count.drops += 1;
                    cx.dropped.extend(part.packet.map(|packet| (packet, Drop::QdiscFull)));
                    continue;
                }
            };
            match count.below(cx, |cx| self.child.enqueue(part, cx)) {
                Enqueued::Queued => {
                    queued += 1;
                    bytes += i64::from(part_len);
                    count.came(part_len);
                }
                Enqueued::Dropped => count.drops += 1,
                Enqueued::Stolen => {}
            }
        }
        if parts == 0 {
            count.drops += 1;
            cx.dropped.push((packet, Drop::NoBuffer));
            return Enqueued::Dropped;
        }
        // The parts have taken its place.
        cx.generated += parts - 1;
        cx.pool.give(packet);
        if queued == 0 {
            return Enqueued::Dropped;
        }
        cx.lost.packets += 1 - queued;
        cx.lost.bytes += i64::from(len) - bytes;
        Enqueued::Queued
    }

    pub(super) fn dequeue<C: Classify>(
        &mut self,
        count: &mut QueueCount,
        cx: &mut Context<'_, C>,
    ) -> Option<ItemId> {
        let Self { child, .. } = self;
        let id = count.below(cx, |cx| child.peek(cx))?;
        let charged = cx.items.charged(id);
        let (tokens, peak_tokens) = self.left(charged.0, cx.now);
        if tokens | peak_tokens < 0 {
            cx.wait_until(self.due(tokens, peak_tokens, cx.now));
            count.overlimits += 1;
            return None;
        }
        let Self { child, .. } = self;
        let id = count.below(cx, |cx| child.dequeue(cx))?;
        (self.tokens, self.peak_tokens, self.at) = (tokens, peak_tokens, cx.now);
        count.went(charged.0);
        count.sent(charged);
        Some(id)
    }

    /// What the buckets hold when a packet of `len` bytes leaves at `now`. Negative: it may not.
    fn left(&mut self, len: u32, now: Nanos) -> (i64, i64) {
        let costs = |rate: &Rate| rate.nanos(len) as i64;
        if self.clocks.is_some() {
            self.take_time(len, now);
            return (
                self.tokens - costs(&self.rate),
                self.peak.map_or(0, |peak| self.peak_tokens - costs(&peak)),
            );
        }
        let passed = (now.saturating_sub(self.at) as i64).min(self.buffer);
        let peak = self.peak.map_or(0, |peak| (passed + self.peak_tokens).min(self.mtu) - costs(&peak));
        ((passed + self.tokens).min(self.buffer) - costs(&self.rate), peak)
    }

    /// Fills the buckets for a packet of `len` bytes by the time that the workers share.
    fn take_time(&mut self, len: u32, now: Nanos) {
        let Some(clocks) = &self.clocks else { return };
        let needed = self.rate.nanos(len).saturating_sub(self.tokens.max(0) as u64);
        if needed > 0 {
            let taken = clocks.rate.take(now, needed, self.buffer as u64) as i64;
            self.tokens = (self.tokens + taken).min(self.buffer);
        }
        if let Some(peak) = &self.peak {
            let needed = peak.nanos(len).saturating_sub(self.peak_tokens.max(0) as u64);
            if needed > 0 {
                let taken = clocks.ceil.take(now, needed, self.mtu as u64) as i64;
                self.peak_tokens = (self.peak_tokens + taken).min(self.mtu);
            }
        }
    }

    /// When buckets that lack so much have it.
    fn due(&self, tokens: i64, peak_tokens: i64, now: Nanos) -> Nanos {
        let lacks = |tokens: i64| tokens.min(0).unsigned_abs();
        match &self.clocks {
            Some(clocks) => {
                let of = |clock: &super::clocks::Clock, tokens| {
                    if tokens < 0 { clock.due(now, lacks(tokens)) } else { now + 1 }
                };
                of(&clocks.rate, tokens).max(of(&clocks.ceil, peak_tokens))
            }
            None => now.saturating_add(lacks(tokens).max(lacks(peak_tokens))),
        }
    }

    pub(super) fn tell(&mut self, counters: &Counters) {
        self.child.tell(counters);
    }
}
