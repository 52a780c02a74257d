//! `--watch`: what counters have gained in a second.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

use underpass_daemon::live::{
    LabelStats, MplsDeviceStats, MplsStats, PolicyStats, PortStats, SidStats, Stats, Totals, WorkerStats,
};

/// What the numbers of a table are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// All since the router was started.
    Count,
    /// The increase in a second.
    PerSecond,
}

impl Unit {
    /// What the headings of columns end with.
    pub fn suffix(self) -> &'static str {
        match self {
            Self::Count => "",
            Self::PerSecond => "/s",
        }
    }

    /// What stands above the table.
    pub fn title(self) -> &'static str {
        match self {
            Self::Count => "",
            Self::PerSecond => {
                "rates of the last second; `underpass stats` without --watch shows the counters\n"
            }
        }
    }
}

/// Counters that were read twice.
pub trait Rates {
    /// The same with the increase since `last`, `seconds` ago, in place of each counter. What is not counted, such as
    /// packets that wait, is as it is. An object that was not there counts from 0.
    fn rates(&self, last: &Self, seconds: f64) -> Self;
}

/// The increase in a second, to the nearest whole number.
pub fn rate(now: u64, last: u64, seconds: f64) -> u64 {
    // A router that was started anew counts from 0.
    (now.saturating_sub(last) as f64 / seconds.max(f64::MIN_POSITIVE)).round() as u64
}

impl Rates for BTreeMap<String, u64> {
    fn rates(&self, last: &Self, seconds: f64) -> Self {
        let before = |name: &String| last.get(name).copied().unwrap_or(0);
        let rates = self.iter().map(|(name, now)| (name.clone(), rate(*now, before(name), seconds)));
        rates.filter(|(_, rate)| *rate > 0).collect()
    }
}

/// Objects found again by `key`.
fn each<T: Rates + Default, K: Eq + Hash>(now: &[T], last: &[T], key: fn(&T) -> K, seconds: f64) -> Vec<T> {
    let (none, last) =
        (T::default(), HashMap::<K, &T>::from_iter(last.iter().map(|before| (key(before), before))));
    now.iter().map(|object| object.rates(last.get(&key(object)).unwrap_or(&&none), seconds)).collect()
}

/// Writes a `Rates` whose fields `$counter` are counters, and all others are kept.
macro_rules! counters {
    ($kind:ty: $($counter:ident),*) => {
        impl Rates for $kind {
            fn rates(&self, last: &Self, seconds: f64) -> Self {
                let mut rates = self.clone();
                $(rates.$counter = rate(self.$counter, last.$counter, seconds);)*
                rates
            }
        }
    };
}

counters!(Totals: received, generated, sent, delivered, dropped, buffer_moves, buffer_moves_avoided);
counters!(SidStats: packets, bytes, errors);
counters!(PolicyStats: packets, bytes, errors);
counters!(LabelStats: packets, bytes, errors);
counters!(MplsDeviceStats: rx_packets, rx_bytes, rx_errors, rx_dropped, rx_noroute, tx_packets, tx_bytes, tx_errors);

impl Rates for PortStats {
    fn rates(&self, last: &Self, seconds: f64) -> Self {
        Self {
            rx_packets: rate(self.rx_packets, last.rx_packets, seconds),
            rx_bytes: rate(self.rx_bytes, last.rx_bytes, seconds),
            tx_packets: rate(self.tx_packets, last.tx_packets, seconds),
            tx_bytes: rate(self.tx_bytes, last.tx_bytes, seconds),
            drops: self.drops.rates(&last.drops, seconds),
            cut: rate(self.cut, last.cut, seconds),
            coalesced: rate(self.coalesced, last.coalesced, seconds),
            ..self.clone()
        }
    }
}

impl Rates for WorkerStats {
    fn rates(&self, last: &Self, seconds: f64) -> Self {
        Self {
            totals: self.totals.rates(&last.totals, seconds),
            bursts: rate(self.bursts, last.bursts, seconds),
            sleeps: rate(self.sleeps, last.sleeps, seconds),
            ..self.clone()
        }
    }
}

impl Rates for MplsStats {
    fn rates(&self, last: &Self, seconds: f64) -> Self {
        Self {
            labels: each(&self.labels, &last.labels, |label| label.label, seconds),
            devices: each(&self.devices, &last.devices, |device| device.name.clone(), seconds),
        }
    }
}

impl Rates for Stats {
    fn rates(&self, last: &Self, seconds: f64) -> Self {
        let mut rates = Self {
            totals: self.totals.rates(&last.totals, seconds),
            drops: self.drops.rates(&last.drops, seconds),
            ports: each(&self.ports, &last.ports, |port| port.index, seconds),
            workers: each(&self.workers, &last.workers, |worker| worker.number, seconds),
            sids: each(&self.sids, &last.sids, |sid| (sid.prefix.clone(), sid.table), seconds),
            policies: each(&self.policies, &last.policies, |policy| policy.encap.clone(), seconds),
            mpls: each(&self.mpls, &last.mpls, |device| device.name.clone(), seconds),
            ..self.clone()
        };
        rates.fast_path.hits = rate(self.fast_path.hits, last.fast_path.hits, seconds);
        rates.fast_path.misses = self.fast_path.misses.rates(&last.fast_path.misses, seconds);
        rates
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stats(packets: u64, held: u64, reason: &str) -> Stats {
        Stats {
            totals: Totals { received: packets, held, ..Totals::default() },
            drops: [(reason.to_owned(), packets / 10), ("old".to_owned(), 7)].into(),
            ports: vec![PortStats {
                name: "p".to_owned(),
                index: 3,
                tx_bytes: packets * 60,
                ..PortStats::default()
            }],
            sids: vec![SidStats { prefix: "fc00::1/128".to_owned(), packets, ..SidStats::default() }],
            ..Stats::default()
        }
    }

    #[test]
    fn counters_become_rates_and_gauges_stay() {
        let rates = stats(1100, 5, "no-route").rates(&stats(100, 9, "no-route"), 2.0);
        assert_eq!((rates.totals.received, rates.totals.held), (500, 5));
        assert_eq!(
            rates.drops,
            [("no-route".to_owned(), 50)].into(),
            "what does not occur any more is left out"
        );
        assert_eq!((rates.ports[0].tx_bytes, rates.sids[0].packets), (30_000, 500));
        // A router that was started anew, and objects that are new.
        assert_eq!(stats(100, 0, "loop").rates(&stats(1100, 0, "loop"), 1.0).totals.received, 0);
        assert_eq!(stats(100, 0, "loop").rates(&Stats::default(), 1.0).sids[0].packets, 100);
    }
}
