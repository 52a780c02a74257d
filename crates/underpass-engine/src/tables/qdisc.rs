//! Queueing disciplines, as the control thread describes them and workers build them.
//!
//! What is attached at one place (a link's root, an ifb's, the ingress hook of `clsact`) is one tree, which is published
//! whole: `Writer::add_qdisc`, `set_qdisc`, `remove_qdisc`, and a [`QdiscId`] in a [`Link`](super::Link). Each worker
//! has queues of its own for it.
//!
//! A tree is changed by publishing another: what has the same [`QueueId`] and kind there keeps its packets, its tokens
//! and its counters, and takes over the new parameters as Linux's `change` does. What is not there any more loses its
//! packets, as `qdisc-purged`. So a control that has many changes to make publishes once after the last.

use std::collections::BTreeMap;
use std::sync::Arc;

use std::sync::atomic::Ordering;

use super::NOWHERE;
use super::{Cake, HookId, QdiscId, Tables, Writer};
use crate::counters::{QueueCount, QueueId};
use crate::limiter::Nanos;
use crate::publish::Ids;
use crate::qos::RateConfig;
use crate::qos::qdisc::Clocks;

/// Classes of HTB below each other: `TC_HTB_MAXDEPTH`.
pub const HTB_DEPTH: usize = 8;
/// Priorities of HTB's classes: `TC_HTB_NUMPRIO`.
pub const HTB_PRIORITIES: usize = 8;
/// Bands of `prio`: `TCQ_PRIO_BANDS`.
pub const PRIO_BANDS: usize = 16;
/// The priomap of `prio` and `pfifo_fast`.
pub const PRIOMAP: [u8; 16] = [1, 2, 2, 2, 1, 2, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1];
/// Bands of `fq`.
pub const FQ_BANDS: usize = 3;
/// Nanoseconds of a tick, in which netlink tells bursts: `PSCHED_SHIFT`.
pub const TICK: Nanos = 64;

/// A queueing discipline, with all that is below it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Qdisc {
    /// What it is counted as, and what it is distinguished from others by when the tree changes.
    pub queue: QueueId,
    /// Its handle, `major:0`; 0 for the default ones, which have none.
    pub handle: u32,
    /// What packets are charged when they come to it. `None`: what they were before.
    pub size_table: Option<Arc<SizeTable>>,
    /// What it does.
    pub kind: QdiscKind,
}

impl Qdisc {
    /// One that charges packets what they were charged before.
    pub const fn new(queue: QueueId, handle: u32, kind: QdiscKind) -> Self {
        Self { queue, handle, size_table: None, kind }
    }
}

/// What packets are charged instead of their length: `struct qdisc_size_table`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SizeTable {
    /// Bytes that are added to each packet.
    pub overhead: i32,
    /// Bytes that are added to find the cell in the table.
    pub cell_align: i16,
    /// Bytes of a cell, as a power of 2, below 31.
    pub cell_log: u8,
    /// Bytes of a unit of what is in the table, as a power of 2, below 31.
    pub size_log: u8,
    /// What packets of each cell are charged. Empty: their length and the overhead.
    pub sizes: Box<[u16]>,
}

impl SizeTable {
    /// `QDISC_PKT_LEN_MAX`: nothing is charged more.
    const MOST: i32 = 1 << 20;

    /// What a packet is charged, by the length of its buffer.
    pub(crate) fn charge(&self, len: u32) -> u32 {
        let len = len.cast_signed().wrapping_add(self.overhead);
        let charge = match (self.sizes.last(), self.sizes.len()) {
            (Some(last), count @ 1..) => {
                let slot = len.wrapping_add(self.cell_align.into()).max(0) as usize >> self.cell_log;
                // Beyond the table Linux adds whole multiples of its last cell (`__qdisc_calculate_pkt_len`).
                let size = self.sizes.get(slot % count).copied().unwrap_or_default();
                let whole = u32::from(*last).wrapping_mul((slot / count) as u32);
                (whole.wrapping_add(size.into()) << self.size_log).cast_signed()
            }
            _ => len,
        };
        charge.clamp(1, Self::MOST).cast_unsigned()
    }
}

/// What a queueing discipline does.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum QdiscKind {
    /// `pfifo` and `bfifo`.
    Fifo(FifoLimit),
    /// `pfifo_fast`.
    PfifoFast(PfifoFast),
    /// `prio`.
    Prio(Prio),
    /// `tbf`.
    Tbf(Box<Tbf>),
    /// `htb`.
    Htb(Box<Htb>),
    /// `fq_codel`.
    FqCodel(FqCodel),
    /// `netem`.
    Netem(Box<Netem>),
    /// `codel`.
    Codel(Codel),
    /// `sfq`.
    Sfq(Sfq),
    /// `red`.
    Red(Box<Red>),
    /// `fq`.
    Fq(Box<Fq>),
    /// `cake`.
    Cake(Box<Cake>),
}

/// How much a queue holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FifoLimit {
    /// `pfifo`: so many packets.
    Packets(u32),
    /// `bfifo`: so many bytes, as packets are charged.
    Bytes(u32),
}

/// Three queues, the first of which goes first: `net/sched/sch_generic.c`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PfifoFast {
    /// Packets in each: the link's `txqueuelen`.
    pub limit: u32,
}

/// Bands, the first of which goes first: `net/sched/sch_prio.c`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Prio {
    /// The band of each priority.
    pub priomap: [u8; 16],
    /// The filters attached to it, whose classid chooses a band.
    pub filters: Option<HookId>,
    /// What is in each band: 2 to [`PRIO_BANDS`].
    pub bands: Vec<Qdisc>,
}

/// A token bucket: `net/sched/sch_tbf.c`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tbf {
    /// The rate.
    pub rate: RateConfig,
    /// The burst, as the time that it takes at `rate`.
    pub buffer: Nanos,
    /// The peak rate, and the time that its burst (`mtu`) takes.
    pub peak: Option<(RateConfig, Nanos)>,
    /// The longest packet that is let in: [`Tbf::max_size`].
    pub max_size: u32,
    /// What holds the packets: unless another was put there, a `bfifo` of `limit` bytes without a handle.
    pub child: Qdisc,
}

impl Tbf {
    /// The longest packet for a burst: what `tbf_change` computes where netlink gives bursts as times alone, without
    /// `TCA_TBF_BURST` and `TCA_TBF_PBURST`. Where it gives bytes, it is the less of them.
    pub fn max_size(rate: &RateConfig, buffer: Nanos, peak: Option<(RateConfig, Nanos)>) -> u32 {
        let size = rate.bytes(buffer);
        let size = peak.map_or(size, |(rate, mtu)| size.min(rate.bytes(mtu)));
        u32::try_from(size).unwrap_or(u32::MAX)
    }
}

/// A hierarchy of token buckets that lend each other what they do not use: `net/sched/sch_htb.c`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Htb {
    /// The minor number of the class for what no filter takes: `default`. Of no leaf: the direct queue.
    pub default: u32,
    /// Packets in the direct queue: `direct_qlen`.
    pub direct: u32,
    /// The filters attached to it.
    pub filters: Option<HookId>,
    /// The classes, in any order.
    pub classes: Vec<HtbClass>,
}

/// A class of HTB.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HtbClass {
    /// What it is counted as, and distinguished from others by.
    pub queue: QueueId,
    /// Its number, `major:minor`.
    pub classid: u32,
    /// That of the class above it; `None`: it is below the qdisc itself.
    pub parent: Option<u32>,
    /// What it has of its own.
    pub rate: RateConfig,
    /// What it may have with what is lent to it.
    pub ceil: RateConfig,
    /// The burst, as the time that it takes at `rate`.
    pub buffer: Nanos,
    /// The burst of `ceil`, as the time that it takes at that.
    pub cbuffer: Nanos,
    /// 0 to 7; what has a lower number is lent to first. Of a class with others below it, without meaning.
    pub prio: u8,
    /// Bytes that it may send before another of its priority has its turn: [`HtbClass::quantum`].
    pub quantum: u32,
    /// The filters attached to it, for what those above have sent to it while others are below it.
    pub filters: Option<HookId>,
    /// What holds its packets. Not looked at if other classes are below it.
    pub leaf: Qdisc,
}

/// Why Linux warns of a quantum.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QuantumWarning {
    /// `quantum of class … is small. Consider r2q change.`
    Small,
    /// `quantum of class … is big. Consider r2q change.`
    Big,
}

impl HtbClass {
    /// The quantum of a class: what was asked for, or what follows from its rate, and whether Linux warns of it.
    pub fn quantum(rate: &RateConfig, rate2quantum: u32, classified: u32) -> (u32, Option<QuantumWarning>) {
        let quantum = rate.bytes_per_second / u64::from(rate2quantum.max(1));
        match (classified, quantum) {
            (0, ..1000) => (1000, Some(QuantumWarning::Small)),
            (0, 200_001..) => (200_000, Some(QuantumWarning::Big)),
            (0, quantum) => (quantum as u32, None),
            (classified, _) => (classified, None),
        }
    }
}

/// A queue a flow, each kept short by CoDel (RFC 8289, RFC 8290): `net/sched/sch_fq_codel.c`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FqCodel {
    /// The filters attached to it, whose classid chooses a queue. What none of them takes is dropped, as in Linux.
    pub filters: Option<HookId>,
    /// Packets in all queues together.
    pub limit: u32,
    /// How many queues: 1 to 65,536.
    pub flows: u32,
    /// Bytes that a queue may send before another has its turn.
    pub quantum: u32,
    /// How long packets may wait, in microseconds.
    pub target: u32,
    /// For how long they may wait longer, in microseconds.
    pub interval: u32,
    /// Whether packets that know congestion notification (RFC 3168) are marked where others are dropped.
    pub ecn: bool,
    /// After how many microseconds packets are marked whatever CoDel says.
    pub ce_threshold: Option<u32>,
    /// Which of them: those whose traffic class, masked by the second, is the first. Both 0: all.
    pub ce_threshold_selector: (u8, u8),
    /// Bytes of memory in all queues together.
    pub memory_limit: u32,
    /// Most packets that are dropped at once when there is no room.
    pub drop_batch: u32,
    /// The link's MTU with its link layer: queues that hold no more are left alone.
    pub mtu: u32,
}

/// A queue that CoDel keeps short (RFC 8289): `net/sched/sch_codel.c`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Codel {
    /// Packets that wait at most.
    pub limit: u32,
    /// How long packets may wait, in microseconds.
    pub target: u32,
    /// For how long they may wait longer, in microseconds.
    pub interval: u32,
    /// Whether packets that know congestion notification are marked where others are dropped.
    pub ecn: bool,
    /// After how many microseconds packets are marked whatever CoDel says.
    pub ce_threshold: Option<u32>,
    /// The link's MTU with its link layer: a queue that holds no more is left alone.
    pub mtu: u32,
}

/// Queues that take turns, by the hash of a packet's flow: `net/sched/sch_sfq.c`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sfq {
    /// The filters attached to it, whose classid chooses a hash. What none of them takes is dropped, as in Linux.
    pub filters: Option<HookId>,
    /// Packets in all queues together.
    pub limit: u32,
    /// Packets in a queue.
    pub depth: u32,
    /// How many queues: 1 to 65,536.
    pub flows: u32,
    /// How many hashes: a power of 2, up to 65,536.
    pub divisor: u32,
    /// Bytes that a queue may send before another has its turn.
    pub quantum: u32,
    /// After how long hashes change; 0: they do not.
    pub perturb: Nanos,
    /// Whether the first packet of the longest queue is dropped, not the last.
    pub head_drop: bool,
    /// Where hashes begin.
    pub seed: u32,
}

/// A queue a flow, paced: `net/sched/sch_fq.c`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fq {
    /// What else it counts: it has too much of its own for one place.
    pub more: QueueId,
    /// Packets that wait in a band.
    pub limit: u32,
    /// Packets of a flow.
    pub flow_limit: u32,
    /// Bytes that a flow may send before another has its turn; not 0.
    pub quantum: u32,
    /// Bytes that a new flow may send.
    pub initial_quantum: u32,
    /// Whether flows are paced.
    pub pacing: bool,
    /// Most bytes a second of a flow.
    pub max_rate: Option<u32>,
    /// Up to how many bytes a second each packet is paced by itself.
    pub low_rate_threshold: u32,
    /// Buckets of flows, as a power of 2: 1 to 18.
    pub buckets_log: u8,
    /// Which bits of a hash distinguish flows.
    pub orphan_mask: u32,
    /// After how long without packets a flow gets a quantum again.
    pub refill_delay: Nanos,
    /// After how long packets are marked.
    pub ce_threshold: Nanos,
    /// The band of each priority.
    pub priomap: [u8; 16],
    /// Bytes that bands may send in their turns; not 0.
    pub weights: [i32; FQ_BANDS],
}

/// Random early detection: `net/sched/sch_red.c`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Red {
    /// When it drops.
    pub params: RedParams,
    /// What holds the packets: unless another was put there, a `bfifo` without a handle.
    pub child: Qdisc,
}

/// When a [`Red`] drops.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RedParams {
    /// Another with each request that changes the parameters: the average begins anew then.
    pub change: u64,
    /// Average below which nothing is dropped, in bytes.
    pub least: u32,
    /// Average from which on everything is.
    pub most: u32,
    /// How slowly the average follows: 2 to this power of packets. Both averages times that are below 2³².
    pub window_log: u8,
    /// Microseconds of a cell of the table, as a power of 2, below 32.
    pub cell_log: u8,
    /// By what power of 2, below 32, the average falls in so many cells in which nothing waits.
    pub table: [u8; 256],
    /// The probability at the maximum, of 2³².
    pub max_p: u32,
    /// The difference of both averages; at least 1.
    pub difference: u32,
    /// Whether packets that know congestion notification are marked where others are dropped.
    pub ecn: bool,
    /// Whether they are dropped all the same from `most` on.
    pub hard_drop: bool,
    /// Whether those that do not know it are queued all the same.
    pub no_drop: bool,
    /// Where numbers begin.
    pub seed: u64,
}

/// A link made worse: `net/sched/sch_netem.c`. Probabilities and correlations are of 2³² - 1.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Netem {
    /// Another with each request that changes the parameters: numbers begin anew then.
    pub change: u64,
    /// Packets that wait at most, those of a qdisc in it not counted.
    pub limit: u32,
    /// How long packets wait, in nanoseconds.
    pub latency: i64,
    /// By how much that varies, in nanoseconds: below 2³¹.
    pub jitter: u32,
    /// By what the jitter is multiplied, of 8,192; of these each is as likely. `None`: all up to it are.
    pub distribution: Option<Arc<[i16]>>,
    /// How packets get lost.
    pub loss: NetemLoss,
    /// Whether what would be lost is marked where it can be.
    pub ecn: bool,
    /// Probability that a packet is sent twice.
    pub duplicate: u32,
    /// Probability that a bit of a packet is inverted.
    pub corrupt: u32,
    /// Probability that a packet leaves at once, of those behind a gap.
    pub reorder: u32,
    /// How many packets a gap has, the one that leaves at once among them; 0: none ever does.
    pub gap: u32,
    /// The rate.
    pub rate: Option<NetemRate>,
    /// How much each number depends on the one before, of delay, loss, duplication, reordering and corruption.
    pub correlations: [u32; 5],
    /// Where the numbers begin.
    pub seed: u64,
    /// What packets go into when they have waited.
    pub child: Option<Qdisc>,
}

/// How `netem` loses packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NetemLoss {
    /// With this probability.
    Random(u32),
    /// By a chain of four states: p13, p31, p32, p14, p23.
    States([u32; 5]),
    /// By a chain of two states, Gilbert's and Elliot's: p, r, h, 1 - k.
    GilbertElliot([u32; 4]),
}

/// How long a packet takes by the rate of a `netem`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NetemRate {
    /// Bytes a second; not 0.
    pub bytes_per_second: u64,
    /// Bytes that are added to each packet.
    pub packet_overhead: i32,
    /// Bytes of a cell; 0: there are none.
    pub cell_size: u32,
    /// Bytes that are added to each cell.
    pub cell_overhead: i32,
}

/// A tree in the tables, with what its workers share.
#[derive(Debug)]
pub struct StoredQdisc {
    pub(crate) root: Qdisc,
    /// Which of the qdiscs it is for those who see it changed: another with each change.
    pub(crate) version: u32,
    /// The version that it began with: another one may have its id.
    pub(crate) first: u32,
    /// The clocks of what has a rate, by its queue. None with one worker.
    pub(crate) clocks: BTreeMap<QueueId, Arc<Clocks>>,
}

impl StoredQdisc {
    /// The tree, whose rates go on with the clocks that they had.
    pub(crate) fn new(root: Qdisc, version: u32, old: Option<&Self>, workers: usize) -> Self {
        let mut clocks = BTreeMap::new();
        if workers > 1 {
            root.rates(&mut |queue| {
                let known = old.and_then(|old| old.clocks.get(&queue));
                clocks.insert(queue, known.cloned().unwrap_or_default());
            });
        }
        Self { root, version, first: old.map_or(version, |old| old.first), clocks }
    }
}

impl Qdisc {
    /// Names everything that has a rate.
    fn rates(&self, each: &mut impl FnMut(QueueId)) {
        match &self.kind {
            QdiscKind::Fifo(_)
            | QdiscKind::PfifoFast(_)
            | QdiscKind::FqCodel(_)
            | QdiscKind::Codel(_)
            | QdiscKind::Sfq(_)
            | QdiscKind::Fq(_) => {}
            QdiscKind::Prio(prio) => prio.bands.iter().for_each(|band| band.rates(each)),
            QdiscKind::Red(red) => red.child.rates(each),
            QdiscKind::Cake(_) => each(self.queue),
            QdiscKind::Netem(netem) => {
                each(self.queue);
                netem.child.iter().for_each(|child| child.rates(each));
            }
            QdiscKind::Tbf(tbf) => {
                each(self.queue);
                tbf.child.rates(each);
            }
            QdiscKind::Htb(htb) => {
                for class in &htb.classes {
                    each(class.queue);
                    class.leaf.rates(each);
                }
            }
        }
    }
}

/// The numbers of queueing disciplines and of what they count.
pub(super) struct QdiscIds {
    qdiscs: Ids,
    queues: Ids,
    /// The owner of each place, or the last one that it had, and whether it has one.
    owners: Vec<(QueueId, bool)>,
}

impl QdiscIds {
    pub(super) fn new(tables: &Tables) -> Self {
        Self {
            qdiscs: Ids::new(tables.qdiscs.capacity()),
            queues: Ids::new(1 << QueueId::BITS),
            owners: Vec::new(),
        }
    }
}

impl Writer {
    /// A number for a queueing discipline or a class of HTB, whose counters show zero.
    pub fn add_queue(&mut self) -> QueueId {
        let Some((place, again)) = self.qdiscs.queues.take(&self.retirer) else { return QueueId(NOWHERE) };
        let id = match self.qdiscs.owners.get_mut(place as usize) {
            Some((owner, used)) if again => {
                *owner = QueueId(owner.0.wrapping_add(1 << QueueId::BITS));
                *used = true;
                *owner
            }
            _ => {
                self.qdiscs.owners.push((QueueId(place), true));
                QueueId(place)
            }
        };
        for counters in &self.counters {
            counters.reserve_queue(id);
            counters.set_queue(id, &QueueCount::default());
        }
        id
    }

    /// Gives the number back. No published tree may name it any more.
    pub fn remove_queue(&mut self, id: QueueId) {
        if let Some((owner, used @ true)) = self.qdiscs.owners.get_mut(id.place() as usize)
            && *owner == id
        {
            *used = false;
            self.qdiscs.queues.give(id.place(), &self.retirer);
        }
    }

    /// What all workers have counted for a queue since it was added. A worker says it at the end of each burst.
    pub fn queue_count(&self, id: QueueId) -> QueueCount {
        self.sum_queue(id, false)
    }

    /// The same for an fq_codel, whose longest packet is that of all workers.
    pub fn fq_codel_count(&self, id: QueueId) -> QueueCount {
        self.sum_queue(id, true)
    }

    fn sum_queue(&self, id: QueueId, longest: bool) -> QueueCount {
        let mut sum = QueueCount::default();
        self.counters.iter().for_each(|counters| sum.add(&counters.read_queue(id), longest));
        sum
    }

    /// Adds a queueing discipline, which links then name. Beyond the room for them the id names nothing.
    pub fn add_qdisc(&mut self, root: Qdisc) -> QdiscId {
        let Some((id, _)) = self.qdiscs.qdiscs.take(&self.retirer) else { return QdiscId(NOWHERE) };
        self.put_qdisc(id, Some(root));
        QdiscId(id)
    }

    /// Changes a queueing discipline. Does nothing if the id names none.
    pub fn set_qdisc(&mut self, id: QdiscId, root: Qdisc) {
        if self.tables.qdiscs.peek(id.0, &self.retirer).is_some() {
            self.put_qdisc(id.0, Some(root));
        }
    }

    /// Removes a queueing discipline, if the id names one. What waits in it is dropped.
    pub fn remove_qdisc(&mut self, id: QdiscId) {
        if self.put_qdisc(id.0, None) {
            self.qdiscs.qdiscs.give(id.0, &self.retirer);
        }
    }

    fn put_qdisc(&mut self, id: u32, root: Option<Qdisc>) -> bool {
        let tables = Arc::clone(&self.tables);
        let version = tables.qdisc_changes().wrapping_add(1);
        let old = tables.qdiscs.peek(id, &self.retirer);
        let stored = root.map(|root| StoredQdisc::new(root, version, old, self.counters.len()));
        let reads = |qdisc: Option<&StoredQdisc>| qdisc.is_some_and(|qdisc| qdisc.root.reads_priority());
        tables.priorities.replace_reader(reads(old), reads(stored.as_ref()));
        self.record_common();
        let replaced = tables.qdiscs.replace(id, stored, &mut self.retirer);
        // After the qdisc itself: who sees the number sees the qdisc.
        tables.qdisc_changes.store(version, Ordering::Release);
        replaced
    }
}
