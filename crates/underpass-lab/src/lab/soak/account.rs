//! What a router has taken and counted.

use std::{fs, path::PathBuf};

use anyhow::{Context, ensure};
use underpass_daemon::{launch, live::Stats, testbed::Namespace};

use nix::unistd::Pid;

use super::descriptors::Descriptors;

/// A router at one time.
#[derive(Clone, Debug)]
pub struct Account {
    pub stats: Stats,
    /// Anonymous memory that is resident, in bytes: the heap and the slots for packets. Slots that have not been used yet
    /// count too: they are there from the start, and the kernel fills them in when so many packets wait at once for the
    /// first time. What else is resident is the program itself and rings of the kernel's, which come and go with devices.
    pub memory: u64,
    /// Open descriptors.
    pub descriptors: Descriptors,
}

impl Account {
    /// # Errors
    /// The router does not answer, or is gone.
    pub fn of(edge: &Namespace, pid: Pid) -> anyhow::Result<Self> {
        let answer = edge.enter(|| underpass_daemon::query::answer(&launch::namespace_socket()?, ""))??;
        let stats: Stats = serde_json::from_str(&answer).context("the router's answer")?;
        let process = PathBuf::from(format!("/proc/{pid}"));
        let status = fs::read_to_string(process.join("status"))?;
        let kibibytes =
            status.lines().find_map(|line| line.strip_prefix("RssAnon:")?.trim().strip_suffix(" kB"));
        let kibibytes: u64 = kibibytes.context("no RssAnon")?.trim().parse()?;
        let untouched: u64 = stats.workers.iter().map(|worker| worker.untouched_buffer_bytes).sum();
        let memory = (kibibytes << 10) + untouched;
        let descriptors = Descriptors::of(&process)?;
        Ok(Self { stats, memory, descriptors })
    }

    /// Whether each worker has accounted for each of its packets. Of all packets the rest are those that the kernel has
    /// carried.
    ///
    /// # Errors
    /// The sums of one that has not.
    pub fn balance(&self) -> anyhow::Result<()> {
        for worker in &self.stats.workers {
            let totals = &worker.totals;
            let (come, gone) = (
                totals.received + totals.generated,
                totals.sent + totals.delivered + totals.dropped + totals.held,
            );
            ensure!(
                come == gone,
                "worker {}: {come} packets came, {gone} are accounted for: {totals:?}",
                worker.number
            );
        }
        let by_workers: u64 = self.stats.workers.iter().map(|worker| worker.totals.received).sum();
        let (all, hits) = (self.stats.totals.received, self.stats.fast_path.hits);
        // Programs count on meanwhile.
        ensure!(
            by_workers + hits >= all,
            "{all} packets came, workers have received {by_workers} and the kernel has carried {hits}"
        );
        Ok(())
    }

    /// Packets held.
    pub fn held(&self) -> u64 {
        self.stats.totals.held
    }
}

/// What a log says that it should not.
pub fn complaints(log: &str) -> impl Iterator<Item = &str> {
    log.lines().filter(|line| line.contains("panicked") || line.contains(" ERROR "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_log_should_not_say() {
        let log = "x  INFO ready\nx ERROR underpass: no\nthread 'main' panicked at\nx  WARN later";
        assert_eq!(complaints(log).count(), 2);
    }
}
