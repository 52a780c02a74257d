//! How workers share a rate.
//!
//! A token bucket whose level is a time is filled by the time that passes. Alone, a worker fills its buckets by its
//! clock. Several have one clock together, which says up to when time has been given out: who needs tokens takes time
//! from it, in slices. So what all of them send together is what one could have sent, but for one slice that each may
//! hold unused.

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
    /// Takes time at `now`: what is `needed` and a slice, as far as there is. A bucket that holds `buffer` keeps no
    /// more than that.
    pub(super) fn take(&self, now: Nanos, needed: Nanos, buffer: Nanos) -> Nanos {
        let mut from = self.0.load(Relaxed);
        loop {
            let start = from.max(now.saturating_sub(buffer));
            let taken = now.saturating_sub(start).min(needed.saturating_add(SLICE.min(buffer)));
            if taken == 0 {
                return 0;
            }
            match self.0.compare_exchange_weak(from, start + taken, Relaxed, Relaxed) {
                Ok(_) => return taken,
                Err(other) => from = other,
            }
        }
    }

    /// When there will be as much as is `needed`, if nobody else takes any.
    pub(super) fn due(&self, now: Nanos, needed: Nanos) -> Nanos {
        self.0.load(Relaxed).saturating_add(needed).max(now + 1)
    }
}
