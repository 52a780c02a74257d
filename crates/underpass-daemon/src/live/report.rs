//! What the control thread reports of itself: [`Stats`], [`Mpls`] and [`State`], made of the model, of the workers' accounts
//! and of the ports.

use std::{
    collections::BTreeMap,
    time::{SystemTime, UNIX_EPOCH},
};

use underpass_control::{LabelCount, LinkCounts, LinkKind, PolicerCounts, QueueCounts};
use underpass_engine::{buffer::PortId, counters::MplsCount, drops::DropReason};
use underpass_port::live::Tally;

use super::{
    Live,
    questions::Answer,
    state::{LeftOut, Link, Policer, Queue, State, Tunnel, busiest},
    stats::{FastPath, Label, Mpls, MplsDevice, Port, Sid, Stats, Topic, Totals, Worker},
    worker::{Account, Order},
};

impl Live {
    /// What has been counted until now.
    pub(super) fn answer(&mut self, topic: Topic) -> Answer {
        match topic {
            Topic::All => Answer::All(Box::new(self.stats())),
            Topic::Mpls(label) => Answer::Mpls(self.mpls(label)),
            Topic::State => Answer::State(Box::new(self.state())),
        }
    }

    fn mpls(&self, only: Option<u32>) -> Mpls {
        Mpls {
            labels: self.labels(only),
            devices: self.router.link_counts().iter().map(mpls_device).collect(),
        }
    }

    /// What one label has counted, or all.
    pub(super) fn labels(&self, only: Option<u32>) -> Vec<Label> {
        let label = |LabelCount { label, count }| Label {
            label,
            packets: count.packets,
            bytes: count.bytes,
            errors: count.errors,
        };
        match only {
            Some(only) => self.router.label_count(only).map(label).into_iter().collect(),
            None => self.router.label_counts().map(label).collect(),
        }
    }

    pub(super) fn stats(&mut self) -> Stats {
        let workers = &self.workers;
        let accounts = self.accounts.collect(|number, to| {
            if let Some(worker) = workers.get(number) {
                worker.order(Order::Account(to));
            }
        });
        let mut tallies = tallies(accounts);
        let mut drops: BTreeMap<String, u64> = BTreeMap::new();
        for (reason, count) in
            accounts.iter().flat_map(|account| &account.drops).filter(|(_, count)| *count > 0)
        {
            *drops.entry(reason.name().to_owned()).or_default() += count;
        }
        let mut sum = Totals::default();
        accounts.iter().for_each(|account| sum += totals(account));
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
        let mpls = links.iter().filter(labelled).map(mpls_device).collect();
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
                cut,
                coalesced,
            })
        });
        let workers = self.workers.iter().zip(accounts).map(|(worker, account)| Worker {
            number: account.number,
            processor: worker.processor,
            totals: totals(account),
            bursts: worker.activity.bursts(),
            sleeps: worker.activity.sleeps(),
            free_buffers: account.free.0 as u64,
            free_large_buffers: account.free.1 as u64,
            untouched_buffer_bytes: account.untouched as u64,
        });
        let sids = self.router.sid_counts().into_iter().map(|sid| Sid {
            prefix: sid.prefix,
            table: sid.table,
            behaviour: sid.behaviour.to_owned(),
            packets: sid.count.packets,
            bytes: sid.count.bytes,
            errors: sid.count.errors,
        });
        Stats {
            totals: sum,
            drops,
            ports: ports.collect(),
            workers: workers.collect(),
            fast_path: self.fast_path_stats(),
            sids: sids.collect(),
            mpls,
            warnings: self.router.warnings(),
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
        let mut state = State {
            time: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            stats: self.stats(),
            links: self.link_states(),
            labels: self.labels(None),
            queues: self.router.queue_counts().into_iter().map(|queue| self.queue(queue)).collect(),
            policers: self.router.policer_counts().into_iter().map(policer).collect(),
            meanings: BTreeMap::new(),
            left_out: LeftOut::default(),
        };
        let occurred = DropReason::ALL.iter().filter(|reason| state.stats.drops.contains_key(reason.name()));
        state.meanings = occurred.map(|reason| (reason.name().into(), reason.meaning().into())).collect();
        state.left_out = LeftOut {
            links: busiest(&mut state.links, |link| link.rx_packets + link.tx_packets),
            sids: busiest(&mut state.stats.sids, |sid| sid.packets + sid.errors),
            labels: busiest(&mut state.labels, |label| label.packets + label.errors),
            queues: busiest(&mut state.queues, |queue| queue.packets + queue.drops),
            policers: busiest(&mut state.policers, |policer| policer.packets),
        };
        state
    }

    fn link_states(&self) -> Vec<Link> {
        let name = |index: u32| {
            let known = self.router.links().find(|link| link.index == index);
            known.map(|link| link.name.clone())
        };
        let drivers: Vec<u32> = self.attachments.drivers().map(|(index, ..)| index).collect();
        let links = self.router.links().map(|link| {
            let kind = match link.kind {
                LinkKind::Loopback => "lo",
                LinkKind::Kernel if drivers.contains(&link.index) => "port",
                LinkKind::Kernel => "kernel",
                LinkKind::Port(_) => "port",
                other => other.name().unwrap_or("other"),
            };
            let tunnel = link.tunnel.as_ref().map(|tunnel| {
                let address = |address: std::net::IpAddr| {
                    if address.is_unspecified() { "any".to_owned() } else { address.to_string() }
                };
                Tunnel {
                    local: address(tunnel.parameters.local),
                    remote: address(tunnel.parameters.remote),
                    device: name(tunnel.parameters.link),
                    encap: match tunnel.encap.kind {
                        1 => Some("fou".to_owned()),
                        2 => Some("gue".to_owned()),
                        _ => None,
                    },
                }
            });
            let [received, sent] = self.router.link_count(link);
            let addresses = self.router.addresses().filter(|address| address.link == link.index);
            Link {
                name: link.name.clone(),
                index: link.index,
                kind: kind.to_owned(),
                up: link.up() && link.carrier,
                mtu: link.mtu,
                addresses: addresses.map(|a| format!("{}/{}", a.local, a.prefix_len)).collect(),
                master: link.master.and_then(name),
                table: link.vrf_table(),
                tunnel,
                rx_packets: received.packets,
                rx_bytes: received.bytes,
                rx_errors: received.errors,
                tx_packets: sent.packets,
                tx_bytes: sent.bytes,
                tx_errors: sent.errors,
            }
        });
        links.collect()
    }

    fn queue(&self, queue: QueueCounts) -> Queue {
        let device = self.router.links().find(|link| link.index == queue.link);
        Queue {
            device: device.map_or_else(|| queue.link.to_string(), |link| link.name.clone()),
            kind: queue.kind.to_owned(),
            handle: queue.handle,
            parent: queue.parent,
            class: queue.class,
            rate: queue.rate.map(|rate| rate.saturating_mul(8)),
            packets: queue.packets,
            bytes: queue.bytes,
            drops: queue.drops,
            overlimits: queue.overlimits,
            queued: queue.queued,
            backlog: queue.backlog,
        }
    }
}

/// What the ports of a worker have dropped, each reason by its name.
fn named(tally: &Tally) -> [(&'static str, u64); 6] {
    [
        ("no-buffer", tally.no_buffer),
        ("malformed", tally.malformed),
        ("queue-full", tally.queue_full),
        ("too-long", tally.too_long),
        ("send-error", tally.send_errors),
        ("kernel", tally.kernel_drops),
    ]
}

/// Drops by reason, segments cut, segments put to others.
type Tallied = (BTreeMap<String, u64>, u64, u64);

fn tallies(accounts: &[Account]) -> BTreeMap<PortId, Tallied> {
    let mut sums: BTreeMap<PortId, Tallied> = BTreeMap::new();
    for (port, tally) in accounts.iter().flat_map(|account| &account.ports) {
        let (drops, cut, coalesced) = sums.entry(*port).or_default();
        *cut += tally.cut;
        *coalesced += tally.coalesced;
        for (reason, count) in named(tally) {
            *drops.entry(reason.to_owned()).or_default() += count;
        }
    }
    sums
}

fn totals(account: &Account) -> Totals {
    let totals = &account.totals;
    Totals {
        received: totals.received,
        generated: totals.generated,
        sent: totals.sent,
        delivered: totals.delivered,
        dropped: account.drops.iter().map(|(_, count)| count).sum(),
        held: account.held as u64,
        buffer_moves: totals.buffer_moves,
        buffer_moves_avoided: totals.buffer_moves_avoided,
    }
}

fn mpls_device(link: &LinkCounts) -> MplsDevice {
    let MplsCount {
        rx_packets,
        rx_bytes,
        tx_packets,
        tx_bytes,
        rx_errors,
        tx_errors,
        rx_dropped,
        rx_noroute,
    } = link.mpls;
    MplsDevice {
        name: link.name.clone(),
        rx_packets,
        rx_bytes,
        rx_errors,
        rx_dropped,
        rx_noroute,
        tx_packets,
        tx_bytes,
        tx_errors,
    }
}

fn policer(policer: PolicerCounts) -> Policer {
    Policer {
        index: policer.index,
        rate: policer.rate.map(|rate| rate.saturating_mul(8)),
        filters: policer.filters,
        packets: policer.packets,
        bytes: policer.bytes,
        drops: policer.drops,
        overlimits: policer.overlimits,
    }
}
