//! What was dropped: why, how often, by which port it had come in, and the last packet of each reason. For `underpass stats drops`.

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use serde::{Deserialize, Serialize};
use underpass_engine::{buffer::PortId, drops::DropReason};

use super::{
    Live,
    hex::hex,
    report::{PORT_REASONS, tallies},
    worker::Snapshot,
};
use crate::packet_path::{self, LinkName, port_name};

/// Packets that were dropped for one reason.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dropped {
    /// The reason, by its name.
    pub reason: String,
    /// What it means, in a sentence.
    #[serde(default)]
    pub meaning: String,
    /// How many.
    pub packets: u64,
    /// How many by the port that they had come in by; `-` of those that had waited in the router.
    pub ports: BTreeMap<String, u64>,
    /// How many a program in the kernel dropped by itself, which does not tell ports apart.
    #[serde(default)]
    pub in_kernel: u64,
    /// The last one, or one of the last burst in which there were any. Programs in the kernel keep none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<Example>,
}

/// A packet that was dropped.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Example {
    /// When: nanoseconds since 1970.
    pub time: u64,
    /// The worker.
    pub worker: usize,
    /// The port that it had come in by. None if it had waited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<String>,
    /// How long the frame was, in bytes.
    pub length: u32,
    /// Its first bytes as it was when it was dropped, in hexadecimal digits, from an Ethernet header on: of zeros if it had none left.
    pub hex: String,
    /// In words.
    pub text: String,
}

/// The word for no port.
const NO_PORT: &str = "-";

impl Live {
    /// What was dropped until now, the most frequent reason first.
    pub(super) fn drops(&mut self) -> Vec<Dropped> {
        let names = self.link_names();
        let began = self.router.began();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let epoch = now.saturating_sub(began.elapsed());
        let (_, in_kernel) = self.router.programs_counted();
        let snapshots = self.collect_snapshots();
        let mut drops = of_workers(snapshots, &names, epoch);
        for (reason, packets) in in_kernel.into_iter().filter(|(_, packets)| *packets > 0) {
            let drop = drops.entry(reason.name().to_owned()).or_insert_with(|| empty(reason));
            drop.packets += packets;
            drop.in_kernel += packets;
        }
        for (port, (by_reason, ..)) in tallies(snapshots) {
            for (reason, packets) in by_reason.into_iter().filter(|(_, packets)| *packets > 0) {
                let drop = drops.entry(reason.clone()).or_default();
                if drop.meaning.is_empty() {
                    let known = PORT_REASONS.into_iter().find(|(name, _)| *name == reason);
                    drop.meaning = known.map_or("", |(_, meaning)| meaning).to_owned();
                }
                drop.reason = reason;
                drop.packets += packets;
                *drop.ports.entry(port_name(&names, port).to_owned()).or_default() += packets;
            }
        }
        let mut drops: Vec<Dropped> = drops.into_values().filter(|drop| drop.packets > 0).collect();
        drops.sort_by(|one, other| {
            other.packets.cmp(&one.packets).then_with(|| one.reason.cmp(&other.reason))
        });
        drops
    }
}

/// Every reason that there is, those of ports too.
pub fn reasons() -> impl Iterator<Item = &'static str> {
    let of_ports = PORT_REASONS.into_iter().map(|(name, _)| name);
    let of_ports = of_ports.filter(|name| DropReason::ALL.iter().all(|reason| reason.name() != *name));
    DropReason::ALL.iter().map(|reason| reason.name()).chain(of_ports)
}

fn empty(reason: DropReason) -> Dropped {
    Dropped { reason: reason.name().to_owned(), meaning: reason.meaning().to_owned(), ..Dropped::default() }
}

/// What workers have dropped whose clock was 0 at `epoch`, by the name of the reason.
fn of_workers(snapshots: &[Snapshot], names: &[LinkName], epoch: Duration) -> BTreeMap<String, Dropped> {
    let mut drops: BTreeMap<String, Dropped> = BTreeMap::new();
    let mut newest: BTreeMap<String, u64> = BTreeMap::new();
    let name = |port: Option<PortId>| port.map(|port| port_name(names, port).to_owned());
    for snapshot in snapshots {
        for (reason, packets) in snapshot.drops.iter().filter(|(_, packets)| *packets > 0) {
            let drop = drops.entry(reason.name().to_owned()).or_insert_with(|| empty(*reason));
            drop.packets += packets;
        }
        for (port, by_reason) in &snapshot.port_drops {
            for (reason, packets) in by_reason {
                let drop = drops.entry(reason.name().to_owned()).or_insert_with(|| empty(*reason));
                *drop.ports.entry(port_name(names, *port).to_owned()).or_default() += packets;
            }
        }
        for (reason, example) in &snapshot.dropped_last {
            let drop = drops.entry(reason.name().to_owned()).or_insert_with(|| empty(*reason));
            let newest = newest.entry(reason.name().to_owned()).or_default();
            if drop.last.is_none() || example.at >= *newest {
                *newest = example.at;
                drop.last = Some(Example {
                    time: (epoch + Duration::from_nanos(example.at)).as_nanos() as u64,
                    worker: snapshot.number,
                    port: name(example.port),
                    length: example.len,
                    hex: hex(example.bytes()),
                    text: packet_path::cut_frame(example.bytes(), example.len as usize),
                });
            }
        }
    }
    for drop in drops.values_mut() {
        let waited = drop.packets.saturating_sub(drop.ports.values().sum());
        if waited > 0 {
            drop.ports.insert(NO_PORT.to_owned(), waited);
        }
    }
    drops
}

#[cfg(test)]
mod tests {
    use underpass_engine::tables::LinkId;

    use super::*;

    #[test]
    fn workers_add_up() {
        let names = [LinkName { id: LinkId(1), port: Some(PortId(3)), name: "wan".to_owned() }];
        let snapshot = |number, packets| Snapshot {
            number,
            drops: vec![(DropReason::NoRoute, packets), (DropReason::Loop, 0)],
            port_drops: vec![(PortId(3), vec![(DropReason::NoRoute, packets - 1)])],
            ..Snapshot::default()
        };
        let drops = of_workers(&[snapshot(0, 3), snapshot(1, 5)], &names, Duration::ZERO);
        assert_eq!(drops.len(), 1);
        let drop = &drops["no-route"];
        let ports: Vec<_> = drop.ports.iter().map(|(name, packets)| (name.as_str(), *packets)).collect();
        assert_eq!((drop.packets, ports), (8, vec![("-", 2), ("wan", 6)]));
        assert!(!drop.meaning.is_empty() && drop.last.is_none());
    }
}
