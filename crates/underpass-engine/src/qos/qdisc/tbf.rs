//! `tbf`: `net/sched/sch_tbf.c`.

use std::sync::Arc;

use super::clocks::Clocks;
use super::items::ItemId;
use super::segment::Segment;
use super::{Classify, Context, Discipline, Enqueued, Node};
use crate::counters::{Counters, QueueCount};
use crate::drops::DropReason;
use crate::limiter::Nanos;
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
    /// When the buckets were looked at last; where workers share a clock, when what they hold is there.
    pub(super) at: Nanos,
    /// Those of all workers, if there are several.
    pub(super) clocks: Option<Arc<Clocks>>,
    pub(super) child: Node,
}

impl Tbf {
    /// Cuts a segment that the bucket has no room for: `tbf_segment`.
    #[cold]
    fn enqueue_parts<C: Classify>(
        &mut self,
        count: &mut QueueCount,
        id: ItemId,
        cx: &mut Context<'_, C>,
    ) -> Enqueued {
        let Some(mut segment) = Segment::take(id, cx) else { return Enqueued::Dropped };
        while let Some(part) = segment.next(cx) {
            let Some((part, len)) = segment.put(part, count, cx) else { continue };
            match count.below(cx, |cx| self.child.enqueue(part, cx)) {
                Enqueued::Queued => {
                    segment.queued(len);
                    count.received_by(len);
                }
                Enqueued::Dropped | Enqueued::Filtered => count.drops += 1,
                Enqueued::Stolen => {}
            }
        }
        segment.end(count, cx)
    }

    /// Takes what a packet of `len` bytes costs from the buckets.
    ///
    /// # Errors
    /// When they hold as much, if they do not yet.
    #[inline]
    fn pay(&mut self, len: u32, now: Nanos) -> Result<(), Nanos> {
        let costs = self.rate.nanos(len) as i64;
        let peak_costs = self.peak.map_or(0, |peak| peak.nanos(len) as i64);
        if let Some(clocks) = &self.clocks {
            let ready = clocks.rate.fill(&mut self.tokens, costs, now, self.buffer);
            let peak_ready = clocks.ceil.fill(&mut self.peak_tokens, peak_costs, now, self.mtu);
            self.at = self.at.max(ready.max(peak_ready).unwrap_or_default());
            if self.at > now {
                return Err(self.at);
            }
            self.tokens -= costs;
            self.peak_tokens -= peak_costs;
            return Ok(());
        }
        let passed = now.saturating_sub(self.at).min(i64::MAX as u64 / 2) as i64;
        let tokens = (passed + self.tokens).min(self.buffer) - costs;
        let peak_tokens =
            if self.peak.is_some() { (passed + self.peak_tokens).min(self.mtu) - peak_costs } else { 0 };
        if tokens | peak_tokens < 0 {
            // The bucket may have become smaller than what it costs. Linux waits for ever; here a full one is enough.
            let beyond = (self.buffer - costs).min(0);
            let lacks = (tokens - beyond).min(peak_tokens - (self.mtu - peak_costs).min(0));
            if lacks < 0 {
                return Err(now.saturating_add(lacks.unsigned_abs()));
            }
        }
        (self.tokens, self.peak_tokens, self.at) = (tokens, peak_tokens, now);
        Ok(())
    }
}

impl Discipline for Tbf {
    fn enqueue<C: Classify>(
        &mut self,
        count: &mut QueueCount,
        _: u32,
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
            cx.drop(id, DropReason::QdiscTooBig);
            return Enqueued::Dropped;
        }
        let Self { child, .. } = self;
        let enqueued = count.below(cx, |cx| child.enqueue(id, cx));
        match enqueued {
            Enqueued::Queued => count.received_by(len),
            Enqueued::Dropped | Enqueued::Filtered => count.drops += 1,
            Enqueued::Stolen => {}
        }
        enqueued
    }

    fn pass(&mut self, count: &mut QueueCount, _: u32, packets: &[(u32, u32)], now: Nanos) -> usize {
        let Some(longest) = self.child.passes() else { return 0 };
        let longest = longest.min(self.max_size);
        let paid = packets.iter().take_while(|(len, _)| *len <= longest && self.pay(*len, now).is_ok());
        let number = paid.count();
        let passed = packets.get(..number).unwrap_or_default();
        self.child.changed |= number > 0;
        self.child.count.pass(passed);
        count.pass(passed)
    }

    fn dequeue<C: Classify>(&mut self, count: &mut QueueCount, cx: &mut Context<'_, C>) -> Option<ItemId> {
        let Self { child, .. } = self;
        let id = count.below(cx, |cx| child.peek(cx))?;
        let charged = cx.items.charged(id);
        if let Err(due) = self.pay(charged.0, cx.now) {
            cx.wait_until(due);
            count.overlimits += 1;
            return None;
        }
        let Self { child, .. } = self;
        let id = count.below(cx, |cx| child.dequeue(cx))?;
        count.left(charged.0);
        count.sent(charged);
        Some(id)
    }

    fn report(&mut self, _: &mut QueueCount, counters: &Counters) {
        self.child.report(counters);
    }

    fn ignores_priority(&self) -> bool {
        true
    }
}
