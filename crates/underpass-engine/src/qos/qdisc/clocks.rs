//! How workers share a rate.
//!
//! A token bucket whose level is a time is filled by the time that passes. Alone, a worker fills its buckets by its
//! clock. Several have one clock together, which says up to when time has been given out: who needs tokens takes time
//! from it, in slices, and waits for it if it is not there yet. So what all of them send together is what one could have
//! sent, but for the slice that each may hold unused.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::limiter::Nanos;

/// Most time that is taken at once beyond what is needed.
const SLICE: Nanos = 100_000;

/// Up to when the time of a pair of buckets has been given out.
#[derive(Debug, Default)]
pub struct Clocks {
    /// Of the rate.
    pub(super) rate: Clock,
    /// Of the ceil of HTB, the peak rate of TBF.
    pub(super) ceil: Clock,
}

/// Up to when the time of a bucket has been given out. 0: never yet, the bucket is full.
#[derive(Debug, Default)]
pub struct Clock(AtomicU64);

impl Clock {
    /// Up to when time has been given out.
    pub(super) fn get(&self) -> Nanos {
        self.0.load(Relaxed)
    }

    /// Gives out so much time more.
    pub(super) fn add(&self, time: Nanos) {
        self.0.fetch_add(time, Relaxed);
    }

    /// Gives out all time until then.
    pub(super) fn set(&self, until: Nanos) {
        self.0.store(until, Relaxed);
    }

    /// The same, if that is more; whether it is.
    pub(super) fn not_before(&self, until: Nanos) -> bool {
        self.0.fetch_max(until, Relaxed) < until
    }

    /// Reserves time at `now`: what is `needed`, and a slice more if that is there. Returns when what is needed is
    /// there, perhaps after `now`, and how much more there is. A bucket that holds `buffer` keeps no more than that.
    ///
    /// Who comes next reserves behind it: so each has its turn, however little there is.
    pub(super) fn reserve(&self, now: Nanos, needed: Nanos, buffer: Nanos) -> (Nanos, Nanos) {
        let mut from = self.0.load(Relaxed);
        loop {
            let ready = from.max(now.saturating_sub(buffer)).saturating_add(needed);
            let more = now.saturating_sub(ready).min(SLICE.min(buffer));
            match self.0.compare_exchange_weak(from, ready.saturating_add(more), Relaxed, Relaxed) {
                Ok(_) => return (ready, more),
                Err(other) => from = other,
            }
        }
    }

    /// Fills a bucket that has to hold `least`, if it does not; returns when it does, if that is after `now`.
    #[inline]
    pub(super) fn fill(&self, tokens: &mut i64, least: i64, now: Nanos, buffer: i64) -> Option<Nanos> {
        if *tokens >= least {
            return None;
        }
        let (ready, more) = self.reserve(now, tokens.abs_diff(least), buffer.max(0) as u64);
        *tokens = least.saturating_add(more as i64);
        (ready > now).then_some(ready)
    }
}
