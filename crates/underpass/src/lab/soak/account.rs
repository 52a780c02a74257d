//! What a router has taken and counted.

use std::fs;

use anyhow::{Context, ensure};
use underpass::{launch, live::Stats, testbed::Namespace};

use nix::unistd::Pid;

/// A router at one time.
#[derive(Clone, Debug)]
pub struct Account {
    pub stats: Stats,
    /// Bytes of anonymous memory that are resident: the heap and the slots for packets. These count whole: they are all
    /// there from the start, and the kernel fills in a page of them when so many packets wait at once for the first time.
    /// What else is resident is the program itself and rings of the kernel's, which come and go with devices.
    pub memory: u64,
    /// Open descriptors.
    pub descriptors: usize,
}

impl Account {
    /// # Errors
    /// The router does not answer, or is gone.
    pub fn of(edge: &Namespace, pid: Pid) -> anyhow::Result<Self> {
        let answer = edge.enter(|| crate::stats::ask(&launch::namespace_socket()?, ""))??;
        let stats = serde_json::from_str(&answer).context("the router's answer")?;
        let memory = memory(&fs::read_to_string(format!("/proc/{pid}/smaps"))?);
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd"))?.count();
        Ok(Self { stats, memory, descriptors })
    }

    /// Whether each worker has accounted for each of its packets.
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
        Ok(())
    }

    /// Packets held.
    pub fn held(&self) -> u64 {
        self.stats.totals.held
    }
}

/// Mappings of which more is resident are taken for slots of packets; nothing else is as large here.
const SLOTS: u64 = 32 << 20;

/// The bytes of anonymous memory in a list of mappings as `/proc/PID/smaps` has it, those of slots whole.
fn memory(mappings: &str) -> u64 {
    let bytes = |line: &str, key: &str| {
        let kibibytes: Option<u64> = line.strip_prefix(key)?.trim().strip_suffix(" kB")?.parse().ok();
        kibibytes.map(|kibibytes| kibibytes << 10)
    };
    let (mut size, mut sum) = (0, 0);
    for line in mappings.lines() {
        // The size of a mapping comes before what is resident of it.
        size = bytes(line, "Size:").unwrap_or(size);
        sum += match bytes(line, "Anonymous:") {
            Some(resident) if resident > SLOTS => size,
            resident => resident.unwrap_or(0),
        };
    }
    sum
}

/// What a log says that it should not.
pub fn complaints(log: &str) -> impl Iterator<Item = &str> {
    log.lines().filter(|line| line.contains("panicked") || line.contains(" ERROR "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_count_whole() {
        let of = |size: u64, resident: u64| {
            format!("7f00-7f01 rw-p 00000000 00:00 0\nSize: {size} kB\nRss: 9 kB\nAnonymous: {resident} kB\n")
        };
        let all = [of(100_480, 70_000), of(2_880, 2_760), of(16 << 20, 2_048)].concat();
        assert_eq!(memory(&all), 105_288 << 10);
        assert_eq!(memory(""), 0);
    }

    #[test]
    fn what_a_log_should_not_say() {
        let log = "x  INFO ready\nx ERROR underpass: no\nthread 'main' panicked at\nx  WARN later";
        assert_eq!(complaints(log).count(), 2);
    }
}
