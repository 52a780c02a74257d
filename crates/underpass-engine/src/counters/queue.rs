//! What queueing disciplines and their classes count: `struct gnet_stats_basic`, `struct gnet_stats_queue`, and the
//! `xstats` of those that have some.

use std::sync::atomic::Ordering::Relaxed;

use super::{Cell, Counters};

/// Names what a queueing discipline, or a class of HTB, counts; allocated by the control thread. The upper 8 bits tell those
/// apart that have the same place one after the other: a worker that sleeps may know an older one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct QueueId(pub u32);

impl QueueId {
    /// Bits of a place.
    pub(crate) const BITS: u32 = 24;

    /// Where its counters are.
    pub(crate) const fn place(self) -> u32 {
        self.0 & ((1 << Self::BITS) - 1)
    }
}

/// What a queueing discipline or a class has counted. Bytes are those that packets are charged: with the Ethernet header,
/// and a large segment as the packets that it stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct QueueCount {
    /// Bytes that have left.
    pub bytes: u64,
    /// Packets that have left.
    pub packets: u64,
    /// Packets that were dropped.
    pub drops: u64,
    /// Times that a packet had to wait, or a class was told to.
    pub overlimits: u64,
    /// Packets that a device gave back.
    pub requeues: u64,
    /// Bytes that wait.
    pub backlog: u64,
    /// Packets that wait.
    pub queued: u64,
    pub(crate) own: [u64; OWN],
}

/// Numbers whose meaning is the kind's.
pub(crate) const OWN: usize = 9;
/// Numbers of a queue: the seven that every kind has, then its own.
pub(super) const NUMBERS: usize = 7 + OWN;

/// `struct tc_htb_xstats` of a class.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HtbCount {
    /// Packets that went by the class's own rate, or by its rate for those below it.
    pub lends: u64,
    /// Packets for which it had to borrow.
    pub borrows: u64,
    /// Packets that were too long: 0, as in Linux since 3.10.
    pub giants: u64,
    /// What its bucket holds, in nanoseconds at its rate.
    pub tokens: i64,
    /// What the bucket of its ceil holds, in nanoseconds.
    pub ctokens: i64,
}

/// `struct tc_fq_codel_qd_stats`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FqCodelCount {
    /// The longest packet that went through a queue.
    pub max_packet: u64,
    /// Packets dropped as there was no room.
    pub drop_overlimit: u64,
    /// Packets marked instead of being dropped.
    pub ecn_mark: u64,
    /// Times that a queue became active.
    pub new_flow_count: u64,
    /// Queues that have become active and had no turn yet.
    pub new_flows_len: u64,
    /// Other queues with packets.
    pub old_flows_len: u64,
    /// Packets marked as they waited longer than `ce_threshold`.
    pub ce_mark: u64,
    /// Bytes of memory that packets take.
    pub memory_usage: u64,
    /// Packets dropped as there was no memory.
    pub drop_overmemory: u64,
}

impl QueueCount {
    /// Of a class of HTB.
    pub fn htb(&self) -> HtbCount {
        let [lends, borrows, giants, tokens, ctokens, ..] = self.own;
        HtbCount { lends, borrows, giants, tokens: tokens as i64, ctokens: ctokens as i64 }
    }

    /// Of an HTB: packets that went by its direct queue (`direct_packets_stat`).
    pub fn direct_packets(&self) -> u64 {
        self.own[0]
    }

    /// Of an fq_codel.
    pub fn fq_codel(&self) -> FqCodelCount {
        let [
            max_packet,
            drop_overlimit,
            ecn_mark,
            new_flow_count,
            new_flows_len,
            old_flows_len,
            ce_mark,
            memory_usage,
            drop_overmemory,
        ] = self.own;
        FqCodelCount {
            max_packet,
            drop_overlimit,
            ecn_mark,
            new_flow_count,
            new_flows_len,
            old_flows_len,
            ce_mark,
            memory_usage,
            drop_overmemory,
        }
    }

    /// Of a red: packets dropped early, packets that the queue had no room for, packets marked.
    pub fn red(&self) -> [u64; 3] {
        let [early, full, marked, ..] = self.own;
        [early, full, marked]
    }

    /// Of an fq; `more`: what it counts in its second place.
    pub fn fq(&self, more: &Self) -> FqCount {
        let [flows, inactive, throttled_flows, throttled, forgotten, flow_limit, too_long, no_flow, marked] =
            self.own;
        let [next_delayed, latency, fastpath, drops0, drops1, drops2, band_packets @ ..] = more.own;
        FqCount {
            flows,
            inactive,
            throttled_flows,
            throttled,
            forgotten,
            flow_limit,
            too_long,
            no_flow,
            marked,
            next_delayed: (next_delayed != 0).then_some(next_delayed),
            latency,
            fastpath,
            band_drops: [drops0, drops1, drops2],
            band_packets,
        }
    }

    /// Of a codel.
    pub fn codel(&self) -> CodelCount {
        let [max_packet, drop_overlimit, ecn_mark, ce_mark, count, last_count, delay, dropping, drop_next] =
            self.own;
        CodelCount {
            max_packet,
            drop_overlimit,
            ecn_mark,
            ce_mark,
            count,
            last_count,
            delay: (delay << 10) / 1000,
            drop_next: (dropping == 1).then_some(drop_next as u32),
        }
    }

    /// Adds what another worker has counted; `longest`: the first of the kind's own is the greatest, not the sum.
    pub(crate) fn add(&mut self, other: &Self, longest: bool) {
        let greatest = self.own[0].max(other.own[0]);
        let mut sum = self.numbers();
        sum.iter_mut().zip(other.numbers()).for_each(|(sum, n)| *sum = sum.wrapping_add(n));
        *self = Self::of(sum);
        if longest {
            self.own[0] = greatest;
        }
    }

    fn numbers(&self) -> [u64; NUMBERS] {
        let &Self { bytes, packets, drops, overlimits, requeues, backlog, queued, own } = self;
        let mut numbers = [0; NUMBERS];
        let (common, rest) = numbers.split_at_mut(NUMBERS - OWN);
        common.copy_from_slice(&[bytes, packets, drops, overlimits, requeues, backlog, queued]);
        rest.copy_from_slice(&own);
        numbers
    }

    fn of(numbers: [u64; NUMBERS]) -> Self {
        let [bytes, packets, drops, overlimits, requeues, backlog, queued, own @ ..] = numbers;
        Self { bytes, packets, drops, overlimits, requeues, backlog, queued, own }
    }
}

impl Counters {
    /// Makes room for a queue's counters; called by the control thread before a table names it.
    pub fn reserve_queue(&self, id: QueueId) {
        self.queues.reserve(id.place());
    }

    /// Says what the worker has counted for a queue. The worker keeps the numbers; this is where others read them.
    #[inline]
    pub fn set_queue(&self, id: QueueId, count: &QueueCount) {
        if let Some(Cell(cell)) = self.queues.cell(id.place()) {
            cell.iter().zip(count.numbers()).for_each(|(cell, n)| cell.store(n, Relaxed));
        }
    }

    /// What the worker has counted for a queue.
    pub fn read_queue(&self, id: QueueId) -> QueueCount {
        QueueCount::of(self.queues.read(id.place()))
    }
}

/// What an fq counts besides.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FqCount {
    /// Flows that are remembered, with packets or without.
    pub flows: u64,
    /// Those without packets.
    pub inactive: u64,
    /// Those that wait for their rate.
    pub throttled_flows: u64,
    /// Times that a flow had to wait for its rate.
    pub throttled: u64,
    /// Flows that were forgotten after they had been empty for long.
    pub forgotten: u64,
    /// Packets dropped as their flow had too many.
    pub flow_limit: u64,
    /// Packets that would have taken a second or more.
    pub too_long: u64,
    /// Packets for whose flow there was no room.
    pub no_flow: u64,
    /// Packets marked as they waited longer than `ce_threshold`.
    pub marked: u64,
    /// When a flow need not wait any more.
    pub next_delayed: Option<u64>,
    /// How much later flows were served than that, in nanoseconds.
    pub latency: u64,
    /// Packets that found nobody waiting.
    pub fastpath: u64,
    /// Packets dropped as their band had too many.
    pub band_drops: [u64; 3],
    /// Packets that wait in each band.
    pub band_packets: [u64; 3],
}

/// What a codel counts besides.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CodelCount {
    /// Longest packet so far, in bytes.
    pub max_packet: u64,
    /// Packets dropped because there were too many.
    pub drop_overlimit: u64,
    /// Packets marked.
    pub ecn_mark: u64,
    /// Packets marked for the threshold.
    pub ce_mark: u64,
    /// Packets dropped since it began to drop.
    pub count: u64,
    /// How many they were when it began.
    pub last_count: u64,
    /// How long the packet waited that was looked at last, in microseconds.
    pub delay: u64,
    /// When the next one is dropped, in units of 1,024 ns, 32 bits of them; `None`: none is to be.
    pub drop_next: Option<u32>,
}
