//! Packets of any bytes in the qdiscs that look into them: which flow they are of, whether they are acknowledgements that a
//! later one makes needless, whether they may be marked.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::cell::RefCell;

use underpass_engine::buffer::{Pool, PortId};
use underpass_engine::counters::QueueId;
use underpass_engine::tables::{
    Cake, CakeAcks, CakeCells, CakeFlows, CakeTins, Fq, FqCodel, Link, PRIOMAP, Qdisc, QdiscId, QdiscKind,
    Sfq,
};
use underpass_packet::{ethernet, protocol};

use crate::dice::Dice;
use crate::lab::{Lab, frame, ip4, ip6, udp};

/// A router whose second port has a qdisc of its own each time, and what these count.
struct Bench {
    lab: Lab,
    queues: [QueueId; 9],
    root: QdiscId,
    /// How many qdiscs there have been.
    changes: u64,
}

thread_local! {
    static BENCH: RefCell<Bench> = RefCell::new(Bench::new());
}

/// A qdisc and packets for it, both made of these bytes. All leave, or are dropped for a reason.
pub fn wait(bytes: &[u8]) {
    BENCH.with_borrow_mut(|bench| bench.run(&mut Dice(bytes)));
}

/// Why packets have been dropped so far.
#[allow(dead_code, reason = "for the test")]
pub fn drops() -> Vec<&'static str> {
    BENCH.with_borrow(|bench| bench.lab.drops().into_iter().map(|(reason, _)| reason).collect())
}

impl Bench {
    fn new() -> Self {
        let mut lab = Lab::with_pool(Pool::new(256));
        let queues = [0; 9].map(|_| lab.writer.add_queue());
        Self { lab, queues, root: QdiscId(0), changes: 0 }
    }

    fn run(&mut self, dice: &mut Dice<'_>) {
        self.changes += 1;
        let kind = match dice.below(6) {
            0 => QdiscKind::FqCodel(fq_codel(dice)),
            1 => QdiscKind::Sfq(sfq(dice)),
            2 => QdiscKind::Fq(Box::new(self.fq(dice))),
            _ => QdiscKind::Cake(Box::new(self.cake(dice))),
        };
        let [queue, ..] = self.queues;
        self.root = self.lab.writer.add_qdisc(Qdisc::new(queue, 0x1_0000, kind));
        let link = Link { root: Some(self.root), ..self.lab.link(1) };
        self.lab.writer.set_link(self.lab.links[1], link);
        for _ in 0..3 {
            self.lab.send(&packets(dice));
            self.lab.now += u64::from(dice.byte()) << dice.below(20);
        }
        // What waits leaves in its time, or goes with the qdisc.
        if dice.bool() {
            let mut left = 0;
            while let Some(due) = self.lab.worker.deadline().filter(|_| left < 1000) {
                self.lab.now = self.lab.now.max(due);
                self.lab.worker.advance(self.lab.now, None);
                self.lab.worker.discard_sent(PortId(1));
                left += 1;
            }
            assert_eq!(self.lab.worker.queued(), 0);
            self.lab.assert_accounted();
        }
        self.lab.writer.remove_qdisc(self.root);
        let link = Link { root: None, ..self.lab.link(1) };
        self.lab.writer.set_link(self.lab.links[1], link);
        self.lab.send(&[]);
        self.lab.assert_accounted();
        self.lab.writer.reclaim();
    }

    fn cake(&self, dice: &mut Dice<'_>) -> Cake {
        let [_, tins @ ..] = self.queues;
        Cake {
            tins,
            filters: None,
            rate: dice.of(&[0, 64, 10_000, 10_000_000]),
            diffserv: dice.of(&[
                CakeTins::Besteffort,
                CakeTins::Precedence,
                CakeTins::Diffserv3,
                CakeTins::Diffserv4,
                CakeTins::Diffserv8,
            ]),
            flow_mode: CakeFlows(dice.byte() & 7),
            cells: dice.of(&[CakeCells::None, CakeCells::Atm, CakeCells::Ptm]),
            overhead: dice.of(&[0, -64, 256]),
            from_network: dice.bool(),
            mpu: dice.byte().into(),
            interval: dice.of(&[100_000, 1]),
            target: dice.of(&[5000, 1]),
            memory: dice.of(&[0, 3000]),
            wash: dice.bool(),
            ingress: dice.bool(),
            split_gso: dice.bool(),
            ack_filter: dice.of(&[CakeAcks::None, CakeAcks::Filter, CakeAcks::Aggressive]),
            fwmark: dice.word(),
            mtu: 1514,
            change: self.changes,
            seed: dice.byte().into(),
        }
    }

    fn fq(&self, dice: &mut Dice<'_>) -> Fq {
        Fq {
            more: self.queues[1],
            limit: dice.of(&[10_000, 2]),
            flow_limit: dice.of(&[100, 1]),
            quantum: dice.of(&[3028, 1]),
            initial_quantum: 15_140,
            pacing: dice.bool(),
            max_rate: dice.some(|dice| dice.of(&[10_000, 10_000_000])),
            low_rate_threshold: 68_750,
            buckets_log: dice.of(&[10, 1]),
            orphan_mask: dice.word(),
            refill_delay: 40_000_000,
            ce_threshold: dice.of(&[0, u64::from(u32::MAX)]),
            priomap: PRIOMAP,
            weights: [9 << 16, 3 << 16, 1 << 16],
        }
    }
}

fn fq_codel(dice: &mut Dice<'_>) -> FqCodel {
    FqCodel {
        filters: None,
        limit: dice.of(&[10_240, 2]),
        flows: dice.of(&[1024, 1]),
        quantum: dice.of(&[1514, 1]),
        target: dice.of(&[5000, 0]),
        interval: dice.of(&[100_000, 1]),
        ecn: dice.bool(),
        ce_threshold: dice.some(|dice| dice.of(&[0, 1000])),
        ce_threshold_selector: (dice.byte(), dice.byte()),
        memory_limit: dice.of(&[32 << 20, 3000]),
        drop_batch: 64,
        mtu: 1514,
    }
}

fn sfq(dice: &mut Dice<'_>) -> Sfq {
    Sfq {
        filters: None,
        limit: dice.of(&[127, 2]),
        depth: dice.of(&[127, 1]),
        flows: 127,
        divisor: dice.of(&[1024, 1]),
        quantum: dice.of(&[1514, 1]),
        perturb: dice.of(&[0, 1_000_000_000]),
        head_drop: dice.bool(),
        seed: dice.byte().into(),
    }
}

/// Acknowledgements of few connections, other packets, and any bytes.
fn packets(dice: &mut Dice<'_>) -> Vec<Vec<u8>> {
    dice.list(12, |dice| {
        let (kind, payload) = match dice.below(8) {
            0 => (protocol::UDP, udp(dice.byte().into())),
            1 => (dice.byte(), dice.list(60, Dice::byte)),
            _ => (protocol::TCP, acknowledgement(dice)),
        };
        let mut frame = match dice.below(8) {
            0..3 => frame(ethernet::IPV4, &ip4([10, 0, 0, 2], [10, 1, 0, 2], kind, &payload)),
            3..6 => frame(ethernet::IPV6, &ip6("fd00:0::2", "fd00:1::2", kind, &payload)),
            6 => {
                let inner = ip4([10, 0, 0, 2], [10, 1, 0, 2], kind, &payload);
                frame(ethernet::IPV6, &ip6("fd00:0::2", "fd00:1::2", protocol::IPV4, &inner))
            }
            _ => {
                let options = dice.list(40, Dice::byte);
                let inner = [&options[..], &payload].concat();
                frame(ethernet::IPV6, &ip6("fd00:0::2", "fd00:1::2", protocol::DESTINATION_OPTIONS, &inner))
            }
        };
        if dice.byte() == 3 {
            let place = dice.word() as usize % frame.len();
            frame[place] ^= dice.byte();
        }
        frame
    })
}

/// A TCP segment without data, most of whose options are those that are compared.
fn acknowledgement(dice: &mut Dice<'_>) -> Vec<u8> {
    let mut options = Vec::new();
    for _ in 0..dice.below(4) {
        let length = dice.of(&[2, 10, 18, 26]);
        match dice.below(5) {
            0 => options.push(1),
            1 => options.extend([&[8, 10][..], &[0; 8].map(|_: u8| dice.byte() & 3)].concat()),
            2 => options.extend([&[5, length][..], &dice.list(24, |dice| dice.byte() & 3)].concat()),
            _ => options.extend(dice.list(10, Dice::byte)),
        }
    }
    options.truncate(40);
    options.resize(options.len().next_multiple_of(4), 0);
    let length = if dice.byte() == 3 { dice.byte() } else { (5 + options.len() as u8 / 4) << 4 };
    let flags = dice.of(&[0x10, 0x10, 0x10, 0x50, 0x18, 0x11, 0x02]);
    let ports = [0, 1, 0, dice.byte() & 1];
    let numbers = [0, 0, 0, 0, 0, 0, 0, dice.byte() & 15];
    [&ports[..], &numbers, &[length, flags, 0, dice.byte(), 0, 0, 0, 0], &options].concat()
}
