//! A token bucket over a clock that is handed in: what Linux's `icmp_msgs_per_sec` and
//! `icmp_msgs_burst` are, for each worker.

/// Nanoseconds of a monotonic clock, or of a capture.
pub type Nanos = u64;

/// Lets `rate` events a second pass, and up to `burst` at once.
#[derive(Clone, Debug)]
pub struct Limiter {
    nanos_per_event: u64,
    capacity: u64,
    level: u64,
    filled_at: Nanos,
}

impl Limiter {
    /// A full bucket. A rate of 0 lets nothing pass once the burst is used up.
    pub fn new(rate: u64, burst: u64) -> Self {
        let nanos_per_event = 1_000_000_000u64.checked_div(rate).unwrap_or(u64::MAX);
        let capacity = nanos_per_event.saturating_mul(burst);
        Self { nanos_per_event, capacity, level: capacity, filled_at: 0 }
    }

    /// Whether one more event may pass at `now`. A clock that goes back fills nothing.
    pub fn allow(&mut self, now: Nanos) -> bool {
        let passed = now.saturating_sub(self.filled_at);
        self.level = self.level.saturating_add(passed).min(self.capacity);
        self.filled_at = self.filled_at.max(now);
        let pass = self.level >= self.nanos_per_event;
        if pass {
            self.level -= self.nanos_per_event;
        }
        pass
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn burst_then_rate() {
        let mut limiter = Limiter::new(1000, 50);
        let start = 7_000_000_000;
        assert_eq!((0..100).filter(|_| limiter.allow(start)).count(), 50);
        assert_eq!((0..100).filter(|_| limiter.allow(start + 3_000_000)).count(), 3);
        assert!(!limiter.allow(start), "a clock that goes back fills nothing");
    }
}
