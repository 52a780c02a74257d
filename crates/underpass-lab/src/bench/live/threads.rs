//! The threads of a router: who they are, that nobody takes their core, and how much of it they have had.

#![allow(unsafe_code)]

use std::{collections::BTreeSet, fs, io, path::Path, sync::Once, time::Duration};

use nix::{
    sched::{CpuSet, sched_setaffinity},
    unistd::Pid,
};

use super::cases;

/// Who goes before whom on a core; all before whatever else the machine does.
#[derive(Clone, Copy)]
pub enum Rank {
    /// The kernel's polls of a device, and what floods it.
    Polls = 1,
    /// A worker, which wants to go before the polls; what measures, before the flood.
    Before = 2,
}

/// A thread (0: the calling one) goes before all others of its core that are not of a higher rank. What it starts does not.
/// Where that is refused, figures are only less exact: it is said once.
pub fn rank(thread: i32, rank: Rank) {
    static SAID: Once = Once::new();
    let to = libc::sched_param { sched_priority: rank as i32 };
    // SAFETY: the kernel reads one `struct sched_param`.
    let done = unsafe {
        libc::sched_setscheduler(thread, libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, &raw const to)
    };
    if done < 0 {
        let error = io::Error::last_os_error();
        SAID.call_once(|| eprintln!("no SCHED_FIFO, others may take the cores: {error}"));
    }
}

/// The calling thread is as all others again.
pub fn unrank() {
    let to = libc::sched_param { sched_priority: 0 };
    // SAFETY: as above.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_OTHER, &raw const to) };
}

/// The threads that poll devices called [`cases::IN`], of all routers.
///
/// # Errors
/// Those of reading /proc.
pub fn polls() -> io::Result<BTreeSet<i32>> {
    // Names of threads are cut at 15 bytes.
    named(Path::new("/proc"), &format!("napi/{}", cases::IN))
}

/// The threads whose names begin so, of those that a directory of /proc has.
fn named(threads: &Path, start: &str) -> io::Result<BTreeSet<i32>> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(threads)? {
        let entry = entry?;
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let name = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
        if name.starts_with(start) {
            found.insert(pid);
        }
    }
    Ok(found)
}

/// What works for one router on its core.
pub struct Threads(Vec<i32>);

impl Threads {
    /// These polls, the workers of a process, and the kernel's thread for what it puts off on the core. Keeps the polls on
    /// the core, and has polls and workers go before all others there.
    ///
    /// # Errors
    /// A thread has ended.
    pub fn take(polls: &BTreeSet<i32>, router: Option<Pid>, core: usize) -> io::Result<Self> {
        let mut only = CpuSet::new();
        only.set(core)?;
        for poll in polls {
            sched_setaffinity(Pid::from_raw(*poll), &only)?;
            rank(*poll, Rank::Polls);
        }
        let workers = match router {
            Some(pid) => named(&Path::new("/proc").join(pid.to_string()).join("task"), "worker-")?,
            None => BTreeSet::new(),
        };
        for worker in &workers {
            rank(*worker, Rank::Before);
        }
        let put_off = named(Path::new("/proc"), &format!("ksoftirqd/{core}\n"))?;
        Ok(Self(polls.iter().copied().chain(workers).chain(put_off).collect()))
    }

    /// How long they have run.
    pub fn time(&self) -> Duration {
        let of = |thread: &i32| -> Option<u64> {
            let text = fs::read_to_string(format!("/proc/{thread}/schedstat")).ok()?;
            text.split(' ').next()?.parse().ok()
        };
        Duration::from_nanos(self.0.iter().filter_map(of).sum())
    }
}
