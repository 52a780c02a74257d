//! The rate of what is counted, as a moving average: Linux's `net/core/gen_estimator.c`.
//!
//! There is no timer: whoever counts or reads takes the samples that have become due since the last one.

use std::sync::atomic::{
    AtomicI64, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed},
};

use crate::limiter::Nanos;
use crate::tables::EstimatorConfig;

/// A quarter of a second, the shortest interval.
const QUARTER: u64 = 250_000_000;

/// Bytes and packets a second.
pub(crate) struct Estimator {
    /// The interval is 2ⁿ quarters of a second.
    interval_log: u8,
    ewma_log: u8,
    /// Counted so far.
    bytes: AtomicU64,
    packets: AtomicU64,
    /// Of that, what the last sample has seen.
    last_bytes: AtomicU64,
    last_packets: AtomicU64,
    /// When the next sample is due; 0: with the first packet the time begins. Whoever moves it on takes the samples.
    due: AtomicU64,
    /// The averages, times 256.
    byte_rate: AtomicI64,
    packet_rate: AtomicI64,
}

impl Estimator {
    pub(crate) fn new(config: EstimatorConfig) -> Self {
        Self {
            interval_log: (config.interval.clamp(-2, 3) + 2) as u8,
            ewma_log: config.ewma_log.min(31),
            bytes: AtomicU64::new(0),
            packets: AtomicU64::new(0),
            last_bytes: AtomicU64::new(0),
            last_packets: AtomicU64::new(0),
            due: AtomicU64::new(0),
            byte_rate: AtomicI64::new(0),
            packet_rate: AtomicI64::new(0),
        }
    }

    fn interval(&self) -> u64 {
        QUARTER << self.interval_log
    }

    /// Counts. One shared addition, so once a burst.
    pub(crate) fn add(&self, bytes: u64, packets: u64, now: Nanos) {
        self.sample(now);
        self.bytes.fetch_add(bytes, Relaxed);
        self.packets.fetch_add(packets, Relaxed);
    }

    /// Bytes and packets a second at `now`.
    pub(crate) fn read(&self, now: Nanos) -> (u64, u64) {
        self.sample(now);
        let whole = |rate: &AtomicI64| (rate.load(Relaxed) as u64) >> 8;
        (whole(&self.byte_rate), whole(&self.packet_rate))
    }

    /// Takes the samples that are due.
    fn sample(&self, now: Nanos) {
        let due = self.due.load(Acquire);
        if now < due {
            return;
        }
        if due == 0 {
            let first = now + self.interval();
            let _ = self.due.compare_exchange(0, first, AcqRel, Relaxed);
            return;
        }
        let samples = (now - due) / self.interval() + 1;
        if self.due.compare_exchange(due, due + samples * self.interval(), AcqRel, Relaxed).is_err() {
            return;
        }
        // What was counted belongs to the first of them: nobody has counted since it was due.
        let mut bytes = self.new_of(&self.bytes, &self.last_bytes);
        let mut packets = self.new_of(&self.packets, &self.last_packets);
        for _ in 0..samples {
            let still = self.follow(&self.byte_rate, bytes) & self.follow(&self.packet_rate, packets);
            if still && (bytes, packets) == (0, 0) {
                break;
            }
            (bytes, packets) = (0, 0);
        }
    }

    fn new_of(&self, all: &AtomicU64, last: &AtomicU64) -> u64 {
        let all = all.load(Relaxed);
        all.wrapping_sub(last.swap(all, Relaxed))
    }

    /// `est_timer`: whether the average has stayed as it was.
    fn follow(&self, rate: &AtomicI64, counted: u64) -> bool {
        let old = rate.load(Relaxed);
        let sample = (counted << (10 - self.interval_log)) as i64;
        let change = (sample >> self.ewma_log) - (old >> self.ewma_log);
        rate.store(old + change, Relaxed);
        change == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// As `est_timer` computes: 1000 bytes each second, `estimator 1sec 8sec` (`ewma_log` 3).
    #[test]
    fn follows_like_linux() {
        let estimator = Estimator::new(EstimatorConfig { interval: 0, ewma_log: 3 });
        let mut average = 0_i64;
        for second in 1..=40 {
            estimator.add(1000, 1, second * SECOND);
            assert_eq!(estimator.read(second * SECOND).0, average as u64 >> 8);
            average += ((1000 << 8) >> 3) - (average >> 3);
        }
        assert!(average >> 8 > 990);
        // Nothing for a minute, then for a year.
        for _ in 40..100 {
            average -= average >> 3;
        }
        let read = estimator.read(100 * SECOND).0;
        assert!(read < 2, "{read} {average}");
        assert_eq!(estimator.read(100 * SECOND + 365 * 86_400 * SECOND), (0, 0));
    }

    #[test]
    fn an_interval_is_as_long_as_it_says() {
        for (interval, seconds) in [(-2, 0.25), (-1, 0.5), (0, 1.0), (3, 8.0)] {
            let estimator = Estimator::new(EstimatorConfig { interval, ewma_log: 0 });
            let step = (seconds * 1e9) as u64;
            estimator.add(0, 0, SECOND);
            estimator.add(80_000, 80, SECOND + 1);
            assert_eq!(estimator.read(SECOND + step - 1), (0, 0));
            let rate = (80_000.0 / seconds) as u64;
            assert_eq!(estimator.read(SECOND + step), (rate, rate / 1000));
            assert_eq!(estimator.read(SECOND + 2 * step), (0, 0));
        }
    }
}
