//! The processor's own clock, and the one core that is measured.
#![allow(unsafe_code)]

use std::time::{Duration, Instant};

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::resource::{UsageWho, getrusage};
use nix::unistd::Pid;

/// Ticks of the time-stamp counter; nanoseconds where there is none.
#[inline]
pub fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 has RDTSC, and it touches nothing but its result.
    unsafe {
        core::arch::x86_64::_rdtsc()
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
        START.get_or_init(Instant::now).elapsed().as_nanos() as u64
    }
}

/// How many ticks a nanosecond has, measured over a twentieth of a second.
pub fn ticks_per_nanosecond() -> f64 {
    let (start, first) = (Instant::now(), ticks());
    while start.elapsed() < Duration::from_millis(50) {
        std::hint::spin_loop();
    }
    let last = ticks();
    (last - first) as f64 / start.elapsed().as_nanos() as f64
}

/// How the core runs at one moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// Cycles of the core for each tick of [`ticks`], which does not change with the core's speed.
    pub cycles_per_tick: f64,
    /// Sums a cycle, of eight that do not depend on each other: 4 and more on a core alone (x86-64 since 2013), about half
    /// where its other thread works.
    pub sums_per_cycle: f64,
}

impl Pace {
    /// Below so many sums a cycle another thread has a part of the core: another guest's, or one of this machine.
    const SHARED: f64 = 3.4;

    /// The middle of each figure; None of none.
    pub fn middle(mut paces: Vec<Self>) -> Option<Self> {
        let middle = paces.len() / 2;
        paces.sort_by(|one, other| one.cycles_per_tick.total_cmp(&other.cycles_per_tick));
        let cycles_per_tick = paces.get(middle)?.cycles_per_tick;
        paces.sort_by(|one, other| one.sums_per_cycle.total_cmp(&other.sums_per_cycle));
        Some(Self { cycles_per_tick, sums_per_cycle: paces.get(middle)?.sums_per_cycle })
    }

    /// Whether another thread has a part of the core.
    pub fn shared(&self) -> bool {
        self.sums_per_cycle < Self::SHARED
    }
}

/// Sums that depend on each other, each a cycle whatever else the core does; and those that do not.
#[cfg(target_arch = "x86_64")]
const CHAIN: u32 = 8000;
#[cfg(target_arch = "x86_64")]
const SUMS: u32 = 16_000;

/// How the core runs now, within a few microseconds. None where this is not known how to tell: on other architectures.
///
/// Sums of two registers: those of a register and a constant cost some cores nothing.
#[cfg(target_arch = "x86_64")]
pub fn pace() -> Option<Pace> {
    use std::arch::asm;
    let start = ticks();
    // SAFETY: registers alone are written, all of which are named; the loop ends after CHAIN / 8 rounds.
    unsafe {
        asm!(
            "2:",
            "add {sum}, {one}", "add {sum}, {one}", "add {sum}, {one}", "add {sum}, {one}",
            "add {sum}, {one}", "add {sum}, {one}", "add {sum}, {one}", "add {sum}, {one}",
            "dec {left:e}",
            "jnz 2b",
            sum = inout(reg) 0_u64 => _,
            one = in(reg) 1_u64,
            left = inout(reg) CHAIN / 8 => _,
            options(nomem, nostack),
        );
    }
    let between = ticks();
    // SAFETY: as above; SUMS / 16 rounds.
    unsafe {
        asm!(
            "2:",
            "add {a}, {one}", "add {b}, {one}", "add {c}, {one}", "add {d}, {one}",
            "add {e}, {one}", "add {f}, {one}", "add {g}, {one}", "add {h}, {one}",
            "add {a}, {one}", "add {b}, {one}", "add {c}, {one}", "add {d}, {one}",
            "add {e}, {one}", "add {f}, {one}", "add {g}, {one}", "add {h}, {one}",
            "dec {left:e}",
            "jnz 2b",
            a = inout(reg) 0_u64 => _, b = inout(reg) 0_u64 => _, c = inout(reg) 0_u64 => _, d = inout(reg) 0_u64 => _,
            e = inout(reg) 0_u64 => _, f = inout(reg) 0_u64 => _, g = inout(reg) 0_u64 => _, h = inout(reg) 0_u64 => _,
            one = in(reg) 1_u64,
            left = inout(reg) SUMS / 16 => _,
            options(nomem, nostack),
        );
    }
    let (chain, sums) = ((between - start) as f64, (ticks() - between) as f64);
    let cycles_per_tick = f64::from(CHAIN) / chain;
    Some(Pace { cycles_per_tick, sums_per_cycle: f64::from(SUMS) / (sums * cycles_per_tick) })
}

/// How the core runs now.
#[cfg(not(target_arch = "x86_64"))]
pub fn pace() -> Option<Pace> {
    None
}

/// How often the kernel has taken the core from this thread to give it to another.
///
/// # Errors
/// The kernel does not say.
pub fn preemptions() -> nix::Result<i64> {
    Ok(getrusage(UsageWho::RUSAGE_THREAD)?.involuntary_context_switches())
}

/// Keeps this thread on the last core that it may run on, and returns that core's number.
///
/// # Errors
/// The kernel does not allow it.
pub fn pin() -> nix::Result<usize> {
    let this = Pid::from_raw(0);
    let allowed = sched_getaffinity(this)?;
    let last = (0..CpuSet::count()).rev().find(|core| allowed.is_set(*core) == Ok(true)).unwrap_or(0);
    pin_to(last)?;
    Ok(last)
}

/// Keeps this thread on a core.
///
/// # Errors
/// The kernel does not allow it.
pub fn pin_to(core: usize) -> nix::Result<()> {
    let mut only = CpuSet::new();
    only.set(core)?;
    sched_setaffinity(Pid::from_raw(0), &only)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No core adds faster than it can, nor runs at a tenth or ten times of its counter's rate, whatever else it does.
    #[test]
    #[cfg(target_arch = "x86_64")]
    fn a_pace_is_one_that_a_core_can_have() {
        let middle = Pace::middle((0..301).filter_map(|_| pace()).collect()).unwrap();
        assert!((0.1..10.0).contains(&middle.cycles_per_tick), "{middle:?}");
        assert!((0.5..10.0).contains(&middle.sums_per_cycle), "{middle:?}");
    }

    #[test]
    fn a_core_that_does_half_as_much_is_shared() {
        let pace = |sums_per_cycle| Pace { cycles_per_tick: 1.0, sums_per_cycle };
        assert!(pace(2.6).shared() && !pace(4.4).shared() && !pace(3.9).shared());
    }
}
