//! `cake`, as the control thread describes it, and what follows from its rate for each of its tins: `net/sched/sch_cake.c`.

use super::{HookId, Writer};
use crate::counters::{QueueCount, QueueId};
use crate::limiter::Nanos;

/// Most tins: `CAKE_MAX_TINS`.
pub const CAKE_TINS: usize = 8;

/// Packets that wait, as far as their length is the link's: what Linux sets as `sch->limit`.
const PACKETS: u32 = 10_240;
/// Least bytes a second that a shaper computes with.
const LEAST_RATE: u64 = 64;

/// A shaper with tins by priority, and a queue a flow in each that COBALT keeps short.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cake {
    /// What each tin counts.
    pub tins: [QueueId; CAKE_TINS],
    /// The filters attached to it, whose classid chooses a queue (minor) and a host (major).
    pub filters: Option<HookId>,
    /// Bytes a second; 0: as many as there are.
    pub rate: u64,
    /// By what a packet's tin is chosen.
    pub diffserv: CakeTins,
    /// What distinguishes flows and hosts.
    pub flow_mode: CakeFlows,
    /// In which cells packets are sent.
    pub cells: CakeCells,
    /// Bytes that are added to each packet.
    pub overhead: i16,
    /// Whether that is counted from the network header on.
    pub from_network: bool,
    /// Bytes that a packet is charged at least.
    pub mpu: u16,
    /// The round-trip time that it expects, in microseconds.
    pub interval: u32,
    /// How long packets may wait, in microseconds.
    pub target: u32,
    /// Bytes of memory in all queues together; 0: what follows from the rate.
    pub memory: u32,
    /// Whether packets lose their DSCP.
    pub wash: bool,
    /// Whether what is dropped counts as what is sent: it has come through the bottleneck already.
    pub ingress: bool,
    /// Whether large segments are cut.
    pub split_gso: bool,
    /// Which acknowledgements are dropped that a later one makes needless.
    pub ack_filter: CakeAcks,
    /// Which bits of a mark choose a tin.
    pub fwmark: u32,
    /// The link's MTU with its link layer.
    pub mtu: u32,
    /// Another with each request that lets the lengths begin anew that are shown.
    pub change: u64,
    /// Where numbers begin.
    pub seed: u64,
}

/// Tins, and which packets go into which.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CakeTins {
    /// One.
    Besteffort,
    /// Eight, by the precedence.
    Precedence,
    /// Three.
    Diffserv3,
    /// Four.
    Diffserv4,
    /// Eight.
    Diffserv8,
}

/// What distinguishes flows: `CAKE_FLOW_*` without `nat`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CakeFlows(pub u8);

impl CakeFlows {
    /// All packets are one flow.
    pub const BLIND: Self = Self(0);
    /// Flows of one source, and sources, have the same part of the rate.
    pub const DUAL_SOURCE: Self = Self(5);
    /// The same of destinations.
    pub const DUAL_DESTINATION: Self = Self(6);
    /// Both.
    pub const TRIPLE: Self = Self(7);

    const fn has(self, bits: u8) -> bool {
        self.0 & bits == bits
    }

    /// Whether sources distinguish them.
    pub(crate) const fn source(self) -> bool {
        self.has(1)
    }

    /// Whether destinations do.
    pub(crate) const fn destination(self) -> bool {
        self.has(2)
    }

    /// Whether ports do.
    pub(crate) const fn flow(self) -> bool {
        self.has(4)
    }

    /// Whether the flows of a source share its part.
    pub(crate) const fn dual_source(self) -> bool {
        self.has(Self::DUAL_SOURCE.0)
    }

    /// Whether those of a destination do.
    pub(crate) const fn dual_destination(self) -> bool {
        self.has(Self::DUAL_DESTINATION.0)
    }
}

/// In which cells packets are sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CakeCells {
    /// In none.
    None,
    /// 48 bytes in 53.
    Atm,
    /// 64 bytes in 65.
    Ptm,
}

/// Which acknowledgements are dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CakeAcks {
    /// None.
    None,
    /// One, where two are needless.
    Filter,
    /// Also one that is.
    Aggressive,
}

/// What COBALT and the shaper know of a tin.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CakeTin {
    /// Bytes a second; 0: any number.
    pub rate: u64,
    /// The time of a byte, in nanoseconds shifted to the left by `shift`.
    pub(crate) byte_time: u64,
    pub(crate) shift: u32,
    /// How long packets may wait, in nanoseconds.
    pub target: Nanos,
    /// For how long they may wait longer, in nanoseconds.
    pub interval: Nanos,
    /// How long the longest packet takes.
    pub(crate) mtu_time: Nanos,
    /// Bytes that a flow may send before another has its turn.
    pub flow_quantum: u16,
    /// Bytes that it may send before another tin has its turn, where there is no rate.
    pub(crate) quantum: u16,
}

impl CakeTin {
    /// How long so many bytes take.
    #[inline]
    pub(crate) fn time(&self, bytes: u32) -> Nanos {
        u64::from(bytes).wrapping_mul(self.byte_time) >> self.shift
    }

    /// `cake_set_rate`.
    fn new(cake: &Cake, rate: u64, quantum: u32) -> Self {
        let mut tin = Self { rate, flow_quantum: 1514, quantum: quantum as u16, ..Self::default() };
        if rate != 0 {
            tin.flow_quantum = (rate >> 12).clamp(300, 1514) as u16;
            tin.shift = 34;
            tin.byte_time = (1_000_000_000 << tin.shift) / rate.max(LEAST_RATE);
            while tin.byte_time >> 34 != 0 {
                tin.byte_time >>= 1;
                tin.shift -= 1;
            }
        }
        let (target, interval) = (u64::from(cake.target) * 1000, u64::from(cake.interval) * 1000);
        tin.mtu_time = tin.time(cake.mtu);
        tin.target = (tin.mtu_time * 3 / 2).max(target);
        tin.interval = (interval + tin.target - target).max(tin.target * 2);
        tin
    }
}

impl CakeTins {
    /// How many there are.
    pub const fn count(self) -> usize {
        match self {
            Self::Besteffort => 1,
            Self::Diffserv3 => 3,
            Self::Diffserv4 => 4,
            Self::Precedence | Self::Diffserv8 => 8,
        }
    }

    /// The tin that is shown so manyth, and that a mark or a priority names by this number less 1.
    pub const fn shown(self, number: usize) -> usize {
        match (self, number) {
            // The background comes first.
            (Self::Diffserv3 | Self::Diffserv4, 0) => 1,
            (Self::Diffserv3 | Self::Diffserv4, 1) => 0,
            _ => number,
        }
    }
}

impl Cake {
    /// What follows of the rate for a tin: `cake_config_*`.
    pub fn tin(&self, number: usize) -> CakeTin {
        let rate = self.rate;
        let (part, quantum) = match (self.diffserv, number) {
            (CakeTins::Besteffort, _) => (rate, 65_535),
            (CakeTins::Precedence | CakeTins::Diffserv8, _) => {
                let less = |value: u64| value.wrapping_mul(7) >> 3;
                let (mut part, mut quantum) = (rate, 256);
                (0..number).for_each(|_| (part, quantum) = (less(part), less(quantum)));
                (part, quantum.max(1) as u32)
            }
            (_, 0) => (rate, 1024),
            (_, 1) => (rate >> 4, 1024 >> 4),
            (CakeTins::Diffserv4, 2) => (rate >> 1, 1024 >> 1),
            _ => (rate >> 2, 1024 >> 2),
        };
        CakeTin::new(self, part, quantum)
    }

    /// Bytes of memory in all queues together: `cake_reconfigure`.
    pub fn memory_limit(&self) -> u32 {
        let limit = match (self.memory, self.rate) {
            (0, 0) => u32::MAX,
            (0, rate) => ((rate.wrapping_mul(self.interval.into()) / 250_000) as u32).max(4 << 20),
            (memory, _) => memory,
        };
        limit.min(PACKETS.wrapping_mul(self.mtu).max(self.memory))
    }
}

/// What a cake has counted.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CakeCount {
    /// Most bytes of memory that packets took.
    pub memory: u64,
    /// Where network headers are on average.
    pub offset: u64,
    /// The longest packet and the shortest.
    pub lengths: [u64; 2],
    /// The same as they are charged.
    pub charged: [u64; 2],
    /// Its tins.
    pub tins: Vec<CakeTinCount>,
}

/// What a tin has counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CakeTinCount {
    /// Bytes that have come.
    pub bytes: u64,
    /// Packets that have come.
    pub packets: u64,
    /// Packets dropped.
    pub drops: u64,
    /// Packets marked.
    pub marks: u64,
    /// Acknowledgements dropped.
    pub ack_drops: u64,
    /// Bytes that wait.
    pub backlog: u64,
    /// The longest packet.
    pub longest: u64,
    /// Delays in nanoseconds: of those that wait long, of all, of those that wait shortly.
    pub delays: [u64; 3],
    /// Packets in another queue of their hash, flows that got a new one, flows that share one.
    pub ways: [u64; 3],
    /// Flows that send little, those that send much, those that do not answer to drops.
    pub flows: [u64; 3],
}

impl QueueCount {
    /// Adds what another worker has counted of a cake. Of lengths the greatest is that of all, the shortest ones counted
    /// from the end.
    fn add_cake(&mut self, other: &Self) {
        let (old, [memory, lengths @ ..]) = (self.own, other.own);
        self.own[0] = old[0] + memory;
        self.own.iter_mut().skip(1).zip(lengths).for_each(|(old, new)| *old = new.max(*old));
    }

    /// The same of a tin, whose delays are those of the worker where they are longest.
    fn add_tin(&mut self, other: &Self) {
        let [longest, peak, average, base] = [self.queued, self.own[0], self.own[1], self.own[2]];
        self.add(other, true);
        self.queued = longest.max(other.queued);
        self.own[..3].copy_from_slice(&[
            peak.max(other.own[0]),
            average.max(other.own[1]),
            base.max(other.own[2]),
        ]);
    }

    fn cake_tin(&self) -> CakeTinCount {
        let [peak, average, base, hits, misses, collisions, sparse, bulk, unresponsive] = self.own;
        CakeTinCount {
            bytes: self.bytes,
            packets: self.packets,
            drops: self.drops,
            marks: self.overlimits,
            ack_drops: self.requeues,
            backlog: self.backlog,
            longest: self.queued,
            delays: [peak, average, base],
            ways: [hits, misses, collisions],
            flows: [sparse, bulk, unresponsive],
        }
    }
}

impl Writer {
    /// What all workers have counted for a cake and its tins.
    pub fn cake_count(&self, queue: QueueId, tins: &[QueueId]) -> CakeCount {
        let sum = |queue: QueueId, add: fn(&mut QueueCount, &QueueCount)| {
            let mut sum = QueueCount::default();
            self.counters.iter().for_each(|counters| add(&mut sum, &counters.read_queue(queue)));
            sum
        };
        let [memory, offset, longest, shortest, longest_charged, shortest_charged, ..] =
            sum(queue, QueueCount::add_cake).own;
        let from_end = |length: u64| u64::from(u16::MAX).saturating_sub(length);
        CakeCount {
            memory,
            offset,
            lengths: [longest, from_end(shortest)],
            charged: [longest_charged, from_end(shortest_charged)],
            tins: tins.iter().map(|tin| sum(*tin, QueueCount::add_tin).cake_tin()).collect(),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Linux's default ones for an MTU of 1,500 bytes.
    pub(crate) fn params() -> Cake {
        Cake {
            tins: std::array::from_fn(|tin| QueueId(50 + tin as u32)),
            filters: None,
            rate: 0,
            diffserv: CakeTins::Diffserv3,
            flow_mode: CakeFlows::TRIPLE,
            cells: CakeCells::None,
            overhead: 0,
            from_network: false,
            mpu: 0,
            interval: 100_000,
            target: 5000,
            memory: 0,
            wash: false,
            ingress: false,
            split_gso: true,
            ack_filter: CakeAcks::None,
            fwmark: 0,
            mtu: 1514,
            change: 0,
            seed: 1,
        }
    }

    /// Linux 6.12: `tc -s qdisc show` of `cake bandwidth 1mbit diffserv4`, tins in the order of priority.
    #[test]
    fn tins_follow_from_the_rate() {
        let cake = Cake { diffserv: CakeTins::Diffserv4, rate: 125_000, ..params() };
        let tins: Vec<_> = (0..4).map(|tin| cake.tin(tin)).collect();
        assert_eq!(tins.iter().map(|tin| tin.rate).collect::<Vec<_>>(), [125_000, 7812, 62_500, 31_250]);
        assert_eq!(tins.iter().map(|tin| tin.flow_quantum).collect::<Vec<_>>(), [300; 4]);
        assert_eq!(
            tins.iter().map(|tin| tin.target / 1000).collect::<Vec<_>>(),
            [18_168, 290_706, 36_336, 72_672]
        );
        let intervals: Vec<_> = tins.iter().map(|tin| tin.interval / 1000).collect();
        assert_eq!(intervals, [113_168, 581_413, 131_336, 167_672]);
        assert_eq!(tins[0].time(1000), 8_000_000);
        let shown: Vec<_> = (0..4).map(|tin| CakeTins::Diffserv4.shown(tin)).collect();
        assert_eq!((shown, CakeTins::Diffserv8.shown(1)), (vec![1, 0, 2, 3], 1));
    }

    #[test]
    fn memory_follows_from_the_rate() {
        let limit = |rate, memory| Cake { rate, memory, ..params() }.memory_limit();
        assert_eq!((limit(0, 0), limit(125_000, 0)), (10_240 * 1514, 4 << 20));
        assert_eq!((limit(125_000_000, 0), limit(0, 1 << 30)), (10_240 * 1514, 1 << 30));
    }
}
