//! Who has a processor that a worker shares with the kernel's receiving.
//!
//! The kernel's polls of a device run in threads or soft interrupts, often on the worker's processor. As equals
//! they would receive by the thousand while the worker waits for its turn, and drop what its rings have no room for.
//! So the worker goes first: woken by the first packets of a poll, it runs when the poll ends, and sleeps when it has
//! done with them. Then the next poll runs.

#![allow(unsafe_code)]

use std::{
    io, thread,
    time::{Duration, Instant},
};

/// Of each stretch of this length a worker leaves its processor to others for so long: the twentieth that the kernel holds
/// back for them (sched(7), `sched_rt_runtime_us`), but in smaller parts.
const STRETCH: Duration = Duration::from_millis(10);
const PAUSE: Duration = Duration::from_micros(500);

/// The calling thread goes before all that have no such priority: `SCHED_FIFO`, at the lowest.
///
/// # Errors
/// EPERM: without `CAP_SYS_NICE`.
pub fn go_first() -> io::Result<()> {
    let lowest = libc::sched_param { sched_priority: 1 };
    // SAFETY: the kernel reads one `struct sched_param`.
    let done = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const lowest) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// As long as there is one the thread that made it, and who is started by it meanwhile, get more of a processor than others:
/// until all is as it was, packets are lost. Without `CAP_SYS_NICE` they get as much as before.
#[derive(Debug)]
pub struct Hurry {
    before: i32,
}

/// The nice value of who is in a hurry.
const HURRIED: i32 = -15;

impl Hurry {
    /// From now on.
    pub fn begin() -> Self {
        // SAFETY: neither call touches memory of this process; 0 is the calling thread.
        let before = unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
        // SAFETY: as above.
        unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, HURRIED.min(before)) };
        Self { before }
    }
}

impl Drop for Hurry {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, self.before) };
    }
}

/// A stretch of a worker's time.
pub struct Stretch {
    began: Instant,
    /// How long it has slept since.
    slept: Duration,
}

impl Stretch {
    /// It begins.
    pub fn begin(now: Instant) -> Self {
        Self { began: now, slept: Duration::ZERO }
    }

    /// Counts a sleep.
    pub fn slept(&mut self, time: Duration) {
        self.slept += time;
    }

    /// Ends it where it has been long, with a pause if the worker has hardly slept in it, and begins another. Sleeps that
    /// end at once are none: others would not run at all. What time it is then.
    pub fn pause_if_long(&mut self, mut now: Instant) -> Instant {
        if now.duration_since(self.began) >= STRETCH {
            let pause = PAUSE.saturating_sub(self.slept);
            if !pause.is_zero() {
                thread::sleep(pause);
                now = Instant::now();
            }
            *self = Self::begin(now);
        }
        now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hurry_ends() {
        // SAFETY: it touches no memory.
        let nice = || unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
        let before = nice();
        // SAFETY: it touches no memory.
        let set = |nice| unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice) } == 0;
        let may = set(HURRIED.min(before));
        assert!(!may || set(before));
        let hurry = Hurry::begin();
        assert_eq!(nice(), if may { HURRIED.min(before) } else { before });
        drop(hurry);
        assert_eq!(nice(), before);
    }

    #[test]
    fn a_long_stretch_ends_with_a_pause() {
        let start = Instant::now();
        let mut stretch = Stretch::begin(start);
        assert_eq!(stretch.pause_if_long(start + STRETCH / 2), start + STRETCH / 2);
        assert_eq!(stretch.began, start);
        stretch.slept(PAUSE / 2);
        let after = stretch.pause_if_long(start + STRETCH);
        assert_eq!(stretch.began, after);
        assert!(stretch.began >= start + PAUSE / 2 && stretch.slept.is_zero());
        // Who has slept enough need not.
        let now = stretch.began + STRETCH;
        stretch.slept(PAUSE);
        assert_eq!(stretch.pause_if_long(now), now);
        assert_eq!(stretch.began, now);
    }
}
