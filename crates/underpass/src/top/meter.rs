//! Rates: what counters have grown by since they were read last, and how that went.

use std::collections::{BTreeMap, VecDeque};

use underpass_daemon::live::state::State;

/// Rates of each counter that are kept, one a reading.
const KEPT: usize = 60;

/// The counters of a router, read again and again.
#[derive(Debug, Default)]
pub struct Meter {
    /// When they were read last, in milliseconds since 1970.
    time: Option<u64>,
    counters: BTreeMap<String, u64>,
    rates: BTreeMap<String, VecDeque<u64>>,
}

impl Meter {
    /// Takes a reading. What was not there before has begun at 0, as counters do; what is gone is forgotten.
    pub fn read(&mut self, state: &State) {
        let counters = counters(state);
        let seconds = self.time.map(|time| state.time.saturating_sub(time) as f64 / 1e3);
        if let Some(seconds) = seconds.filter(|seconds| *seconds > 0.0) {
            self.rates.retain(|name, _| counters.contains_key(name));
            for (name, count) in &counters {
                let before = self.counters.get(name).copied().unwrap_or(0);
                // A router that has begun anew counts from 0.
                let rate = (count.saturating_sub(before) as f64 / seconds).round() as u64;
                let rates = self.rates.entry(name.clone()).or_default();
                rates.push_back(rate);
                if rates.len() > KEPT {
                    rates.pop_front();
                }
            }
        }
        (self.time, self.counters) = (Some(state.time), counters);
    }

    /// What a counter grows by in a second. `None` before it was read twice.
    pub fn rate(&self, name: &str) -> Option<u64> {
        self.rates.get(name)?.back().copied()
    }

    /// How its rate went, the last at the end.
    pub fn history(&self, name: &str) -> Vec<u64> {
        self.rates.get(name).map(|rates| rates.iter().copied().collect()).unwrap_or_default()
    }
}

/// All counters by their names.
fn counters(state: &State) -> BTreeMap<String, u64> {
    let mut all = BTreeMap::new();
    let mut add = |name: String, count: u64| {
        all.insert(name, count);
    };
    let totals = &state.stats.totals;
    for (name, count) in [
        ("received", totals.received),
        ("sent", totals.sent),
        ("delivered", totals.delivered),
        ("dropped", totals.dropped),
        ("generated", totals.generated),
    ] {
        add(name.to_owned(), count);
    }
    for (reason, count) in &state.stats.drops {
        add(format!("drop {reason}"), *count);
    }
    for port in &state.stats.ports {
        let name = &port.name;
        add(format!("port {name} in"), port.rx_packets);
        add(format!("port {name} in bytes"), port.rx_bytes);
        add(format!("port {name} out"), port.tx_packets);
        add(format!("port {name} out bytes"), port.tx_bytes);
        add(format!("port {name} drops"), port.drops.values().sum());
        port.drops.iter().for_each(|(reason, count)| add(format!("port {name} drop {reason}"), *count));
    }
    for sid in &state.stats.sids {
        let name = format!("sid {} {}", sid.table, sid.prefix);
        add(format!("{name} bytes"), sid.bytes);
        add(format!("{name} errors"), sid.errors);
        add(name, sid.packets);
    }
    for policy in &state.stats.policies {
        let name = format!("policy {}", policy.encap);
        add(format!("{name} bytes"), policy.bytes);
        add(format!("{name} errors"), policy.errors);
        add(name, policy.packets);
    }
    for label in &state.labels {
        let name = format!("label {}", label.label);
        add(format!("{name} bytes"), label.bytes);
        add(format!("{name} errors"), label.errors);
        add(name, label.packets);
    }
    for link in state.links.iter().filter(|link| link.tunnel.is_some()) {
        let name = format!("tunnel {}", link.name);
        add(format!("{name} in"), link.rx_packets);
        add(format!("{name} in bytes"), link.rx_bytes);
        add(format!("{name} out"), link.tx_packets);
        add(format!("{name} out bytes"), link.tx_bytes);
        add(format!("{name} errors"), link.rx_errors + link.tx_errors);
    }
    for queue in &state.queues {
        let name = format!("queue {} {}", queue.device, queue.handle);
        add(format!("{name} bytes"), queue.bytes);
        add(format!("{name} drops"), queue.drops);
        add(format!("{name} overlimits"), queue.overlimits);
        add(name, queue.packets);
    }
    for policer in &state.policers {
        let name = format!("policer {}", policer.index);
        add(format!("{name} bytes"), policer.bytes);
        add(format!("{name} drops"), policer.drops);
        add(format!("{name} overlimits"), policer.overlimits);
        add(name, policer.packets);
    }
    for worker in &state.stats.workers {
        let name = format!("worker {}", worker.number);
        add(format!("{name} dropped"), worker.totals.dropped);
        add(format!("{name} sent"), worker.totals.sent);
        add(format!("{name} bursts"), worker.bursts);
        add(format!("{name} sleeps"), worker.sleeps);
        add(name, worker.totals.received);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_between_readings() {
        let mut meter = Meter::default();
        let mut state = State { time: 1000, ..State::default() };
        state.stats.totals.received = 500;
        meter.read(&state);
        assert_eq!(meter.rate("received"), None, "one reading has no rate");
        state.time += 500;
        state.stats.totals.received = 600;
        state.stats.drops.insert("no-route".into(), 40);
        meter.read(&state);
        assert_eq!((meter.rate("received"), meter.rate("drop no-route")), (Some(200), Some(80)));
        // The router has begun anew.
        state.time += 1000;
        state.stats.totals.received = 3;
        state.stats.drops.clear();
        meter.read(&state);
        assert_eq!((meter.rate("received"), meter.rate("drop no-route")), (Some(0), None));
        assert_eq!(meter.history("received"), [200, 0]);
        // Read twice at one time: no division.
        meter.read(&state);
        assert_eq!(meter.history("received"), [200, 0]);
    }
}
