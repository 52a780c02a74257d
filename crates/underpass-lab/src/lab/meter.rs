//! What the receiver's side takes of processors.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use anyhow::Context;
use nix::{
    time::{ClockId, clock_getcpuclockid},
    unistd::Pid,
};
use serde::Serialize;

/// In percent of one processor.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Shares {
    /// The thread that receives or answers.
    pub receiver: f64,
    /// The router before it.
    pub router: f64,
    /// All processors, whatever they did: the sender's side, the kernel's interrupts and other programs too.
    pub machine: f64,
}

/// Started and read by the thread that receives.
pub struct Meter {
    start: Instant,
    thread: Duration,
    router: Option<(ClockId, Duration)>,
    machine: Machine,
}

impl Meter {
    /// # Errors
    /// The router is gone; those of reading `/proc/stat`.
    pub fn start(router: Option<Pid>) -> anyhow::Result<Self> {
        let clock = router.map(clock_getcpuclockid).transpose()?;
        Ok(Self {
            machine: Machine::now()?,
            router: clock.map(|clock| anyhow::Ok((clock, now(clock)?))).transpose()?,
            thread: now(ClockId::CLOCK_THREAD_CPUTIME_ID)?,
            start: Instant::now(),
        })
    }

    /// How long it has been, and the shares of this time.
    ///
    /// # Errors
    /// As [`Meter::start`].
    pub fn stop(self) -> anyhow::Result<(Duration, Shares)> {
        let time = self.start.elapsed();
        let share = |taken: Duration| 100.0 * taken.as_secs_f64() / time.as_secs_f64();
        let thread = now(ClockId::CLOCK_THREAD_CPUTIME_ID)?.saturating_sub(self.thread);
        let router = match self.router {
            Some((clock, before)) => now(clock)?.saturating_sub(before),
            None => Duration::ZERO,
        };
        let machine = Machine::now()?.share_since(&self.machine);
        Ok((time, Shares { receiver: share(thread), router: share(router), machine }))
    }
}

impl Shares {
    /// The receiver and its router: what the document's receiving machine did.
    pub fn side(&self) -> f64 {
        self.receiver + self.router
    }
}

fn now(clock: ClockId) -> nix::Result<Duration> {
    clock.now().map(Duration::from)
}

/// What the processors have done since the start, in ticks: the first line of `/proc/stat`, proc(5).
struct Machine {
    busy: u64,
    all: u64,
}

impl Machine {
    fn now() -> anyhow::Result<Self> {
        let text = fs::read_to_string("/proc/stat").context("/proc/stat")?;
        let line = text.lines().next().unwrap_or_default();
        // user, nice, system, idle, iowait, irq, softirq, steal
        let ticks: Vec<u64> = line.split_whitespace().skip(1).take(8).flat_map(str::parse).collect();
        let all = ticks.iter().sum();
        let idle: u64 = [3, 4, 7].iter().filter_map(|index| ticks.get(*index)).sum();
        Ok(Self { busy: all - idle, all })
    }

    fn share_since(&self, before: &Self) -> f64 {
        let all = self.all.saturating_sub(before.all).max(1);
        let processors = thread::available_parallelism().map_or(1, usize::from);
        100.0 * processors as f64 * self.busy.saturating_sub(before.busy) as f64 / all as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_works_is_seen() {
        let meter = Meter::start(Some(Pid::this())).unwrap();
        while meter.start.elapsed() < Duration::from_millis(50) {}
        let (time, shares) = meter.stop().unwrap();
        assert!(time >= Duration::from_millis(50));
        assert!(shares.receiver > 0.0 && shares.router >= shares.receiver, "{shares:?}");
        let meter = Meter::start(None).unwrap();
        thread::sleep(Duration::from_millis(50));
        let (_, shares) = meter.stop().unwrap();
        assert!(shares.receiver < 50.0 && shares.router == 0.0, "{shares:?}");
    }
}
