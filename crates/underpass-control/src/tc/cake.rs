//! `cake` as the packet path has it, and what it has counted.

use underpass_engine::counters::QueueId;
use underpass_engine::tables::{self, CakeAcks, CakeCells, CakeFlows, CakeTinCount, CakeTins, HookId};
use underpass_netlink::tc::cake::{self, CakeStatistics, CakeTinStatistics};

use super::Kind;
use super::kind::frame;
use crate::Router;
use crate::link::Link;

/// A `cake` for the packet path; `None` if it is none, or not numbered yet.
pub(super) fn compile(kind: &Kind, filters: Option<HookId>, link: &Link) -> Option<tables::Cake> {
    let Kind::Cake { settings, tins, capacity: _, change, seed } = kind else { return None };
    let cake::Cake { rate, diffserv, cells, flow_mode, overhead, raw, mpu, interval, target, memory, .. } =
        **settings;
    let cake::Cake { wash, ingress, ack_filter, split_gso, fwmark, .. } = **settings;
    let mut queues = [QueueId(0); _];
    for (queue, tin) in queues.iter_mut().zip(tins) {
        *queue = (*tin)?;
    }
    Some(tables::Cake {
        tins: queues,
        filters,
        rate,
        diffserv: match diffserv {
            cake::DIFFSERV4 => CakeTins::Diffserv4,
            cake::DIFFSERV8 => CakeTins::Diffserv8,
            cake::BESTEFFORT => CakeTins::Besteffort,
            cake::PRECEDENCE => CakeTins::Precedence,
            _ => CakeTins::Diffserv3,
        },
        flow_mode: CakeFlows(flow_mode),
        cells: match cells {
            cake::CELLS_ATM => CakeCells::Atm,
            cake::CELLS_PTM => CakeCells::Ptm,
            _ => CakeCells::None,
        },
        overhead,
        from_network: !raw,
        mpu,
        interval,
        target,
        memory,
        wash,
        ingress,
        split_gso,
        ack_filter: match ack_filter {
            cake::ACK_NONE => CakeAcks::None,
            cake::ACK_AGGRESSIVE => CakeAcks::Aggressive,
            _ => CakeAcks::Filter,
        },
        fwmark,
        mtu: frame(link),
        change: *change,
        seed: *seed,
    })
}

/// What it has counted: `cake_dump_stats`.
pub(super) fn counts(router: &Router, link: u32, queue: QueueId, kind: &Kind) -> Vec<u8> {
    let compiled = router.links.get(link).and_then(|link| compile(kind, None, link));
    let (Some(config), Kind::Cake { capacity, .. }) = (compiled, kind) else { return Vec::new() };
    let count = router.engine.cake_count(queue, &config.tins);
    let tins = (0..config.diffserv.count()).map(|shown| {
        let number = config.diffserv.shown(shown);
        let tin = config.tin(number);
        let count: CakeTinCount = count.tins.get(number).copied().unwrap_or_default();
        CakeTinStatistics {
            rate: tin.rate,
            bytes: count.bytes,
            backlog: count.backlog as u32,
            target: (tin.target / 1000) as u32,
            interval: (tin.interval / 1000) as u32,
            packets: count.packets as u32,
            drops: count.drops as u32,
            marks: count.marks as u32,
            ack_drops: count.ack_drops as u32,
            delays: count.delays.map(|delay| (delay / 1000) as u32),
            ways: count.ways.map(|ways| ways as u32),
            flows: count.flows.map(|flows| flows as u32),
            longest: count.longest as u32,
            quantum: tin.flow_quantum.into(),
        }
    });
    let counts = CakeStatistics {
        capacity: *capacity,
        memory_limit: config.memory_limit(),
        memory_used: count.memory as u32,
        offset: count.offset as u32,
        lengths: count.lengths.map(|length| length as u32),
        charged: count.charged.map(|length| length as u32),
        tins: tins.collect(),
    };
    counts.bytes()
}
