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
