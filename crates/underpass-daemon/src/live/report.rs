//! What the control thread reports of itself: [`Stats`], [`Mpls`](super::stats::Mpls) and [`State`], made of the model, of
//! the workers' snapshots and of the ports.

use std::collections::BTreeMap;

use underpass_control::LinkCounts;
use underpass_engine::{buffer::PortId, counters::MplsCount};
use underpass_port::live::Tally;

use super::{
    Live, model,
    queries::Answer,
    state::State,
    stats::{FastPath, Port, Stats, Topic, Totals, Worker},
    worker::{Order, Snapshot},
};

impl Live {
    /// What has been counted until now.
    pub(super) fn answer(&mut self, topic: Topic) -> Answer {
        match topic {
            Topic::All => Answer::All(Box::new(self.stats())),
            Topic::Mpls(label) => Answer::Mpls(model::mpls(&self.router, label)),
            Topic::State => Answer::State(Box::new(self.state())),
            Topic::Drops => Answer::Drops(self.drops()),
            Topic::Routes => Answer::Routes(Box::new(model::routes(&self.router))),
        }
    }

    /// What the workers say of themselves.
    pub(super) fn collect_snapshots(&mut self) -> &[Snapshot] {
        let Self { workers, snapshots, .. } = self;
        snapshots.collect(|number, to| {
            if let Some(worker) = workers.get(number) {
                worker.order(Order::Snapshot(to));
            }
        })
    }

    pub(super) fn stats(&mut self) -> Stats {
        self.collect_snapshots();
        let snapshots = self.snapshots.last();
        let mut tallies = tallies(snapshots);
        let mut by_port: BTreeMap<PortId, BTreeMap<String, u64>> = BTreeMap::new();
        for (port, drops) in snapshots.iter().flat_map(|snapshot| &snapshot.port_drops) {
            let sums = by_port.entry(*port).or_default();
            drops.iter().for_each(|(reason, count)| {
                *sums.entry(reason.name().to_owned()).or_default() += count;
            });
        }
        let mut drops: BTreeMap<String, u64> = BTreeMap::new();
        for (reason, count) in
            snapshots.iter().flat_map(|snapshot| &snapshot.drops).filter(|(_, count)| *count > 0)
        {
            *drops.entry(reason.name().to_owned()).or_default() += count;
        }
        let mut sum = Totals::default();
        snapshots.iter().for_each(|snapshot| sum += totals(snapshot));
        let (programs, dropped) = self.router.programs_counted();
        for (reason, count) in dropped.iter().filter(|(_, count)| *count > 0) {
            *drops.entry(reason.name().to_owned()).or_default() += count;
        }
        sum += Totals {
            received: programs.received,
            sent: programs.sent,
            dropped: dropped.iter().map(|(_, count)| count).sum(),
            ..Totals::default()
        };
        let drivers: BTreeMap<u32, (PortId, &str)> =
            self.attachments.drivers().map(|(index, port, driver)| (index, (port, driver))).collect();
        let links = self.router.link_counts();
        let labelled = |link: &&LinkCounts| link.mpls != MplsCount::default();
        let mpls = links.iter().filter(labelled).map(model::mpls_device).collect();
        let ports = links.into_iter().filter_map(|link| {
            let (port, driver) = drivers.get(&link.index)?;
            let (drops, cut, coalesced) = tallies.remove(port).unwrap_or_default();
            Some(Port {
                name: link.name,
                index: link.index,
                driver: (*driver).to_owned(),
                fast_path: self.attachments.fast_path(link.index).map(str::to_owned),
                rx_packets: link.received.0,
                rx_bytes: link.received.1,
                tx_packets: link.sent.0,
                tx_bytes: link.sent.1,
                drops,
                path_drops: by_port.remove(port).unwrap_or_default(),
                cut,
                coalesced,
            })
        });
        let workers = self.workers.iter().zip(snapshots).map(|(worker, snapshot)| Worker {
            number: snapshot.number,
            processor: worker.processor,
            totals: totals(snapshot),
            bursts: worker.activity.bursts(),
            sleeps: worker.activity.sleeps(),
            free_buffers: snapshot.free.0 as u64,
            free_large_buffers: snapshot.free.1 as u64,
            untouched_buffer_bytes: snapshot.untouched as u64,
        });
        Stats {
            totals: sum,
            drops,
            ports: ports.collect(),
            workers: workers.collect(),
            fast_path: self.fast_path_stats(),
            sids: model::sids(&self.router),
            policies: model::policies(&self.router),
            mpls,
            warnings: [self.attachments.warnings(&self.router), self.router.warnings()].concat(),
        }
    }

    fn fast_path_stats(&self) -> FastPath {
        let (hits, misses) = self.router.carried();
        let misses = misses.into_iter().filter(|(_, count)| *count > 0);
        FastPath {
            off: self.attachments.no_fast_path().map(str::to_owned),
            hits,
            misses: misses.map(|(cause, count)| (cause.name().to_owned(), count)).collect(),
        }
    }

    /// What there is to see now.
    pub(super) fn state(&mut self) -> State {
        let stats = self.stats();
        let ports: Vec<u32> = self.attachments.drivers().map(|(index, ..)| index).collect();
        model::state(&self.router, stats, &ports)
    }
}

/// Why ports drop packets by themselves, and what that means.
pub const PORT_REASONS: [(&str, &str); 6] = [
    ("no-buffer", "The worker had no free buffer."),
    ("malformed", "What the kernel handed over made no sense."),
    ("queue-full", "The device did not send as fast."),
    ("too-long", "Longer than the device sends."),
    ("send-error", "The kernel refused to send it."),
    ("kernel", "Lost before the worker could take it."),
];

/// How often the ports of a worker have, in the same order.
fn counts(tally: &Tally) -> [u64; PORT_REASONS.len()] {
    [
        tally.no_buffer,
        tally.malformed,
        tally.queue_full,
        tally.too_long,
        tally.send_errors,
        tally.kernel_drops,
    ]
}

/// Drops by reason, segments cut, segments put to others.
pub(super) type Tallied = (BTreeMap<String, u64>, u64, u64);

pub(super) fn tallies(snapshots: &[Snapshot]) -> BTreeMap<PortId, Tallied> {
    let mut sums: BTreeMap<PortId, Tallied> = BTreeMap::new();
    for (port, tally) in snapshots.iter().flat_map(|snapshot| &snapshot.ports) {
        let (drops, cut, coalesced) = sums.entry(*port).or_default();
        *cut += tally.cut;
        *coalesced += tally.coalesced;
        for ((reason, _), count) in PORT_REASONS.into_iter().zip(counts(tally)) {
            *drops.entry(reason.to_owned()).or_default() += count;
        }
    }
    sums
}

fn totals(snapshot: &Snapshot) -> Totals {
    let totals = &snapshot.totals;
    Totals {
        received: totals.received,
        generated: totals.generated,
        sent: totals.sent,
        delivered: totals.delivered,
        dropped: snapshot.drops.iter().map(|(_, count)| count).sum(),
        held: snapshot.held as u64,
        buffer_moves: totals.buffer_moves,
        buffer_moves_avoided: totals.buffer_moves_avoided,
    }
}
