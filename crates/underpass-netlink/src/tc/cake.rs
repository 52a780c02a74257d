//! `cake`, a shaper with tins and fair queues. Linux: `net/sched/sch_cake.c`.

use libc::EOPNOTSUPP;

use super::TCA_OPTIONS;
use crate::attribute::{Attribute, Attributes, Type, Validate, policy};
use crate::{Reply, RequestError};

const BASE_RATE64: u16 = 2;
const DIFFSERV_MODE: u16 = 3;
const ATM: u16 = 4;
const FLOW_MODE: u16 = 5;
const OVERHEAD: u16 = 6;
const RTT: u16 = 7;
const TARGET: u16 = 8;
const AUTORATE: u16 = 9;
const MEMORY: u16 = 10;
const NAT: u16 = 11;
const RAW: u16 = 12;
const WASH: u16 = 13;
const MPU: u16 = 14;
const INGRESS: u16 = 15;
const ACK_FILTER: u16 = 16;
const SPLIT_GSO: u16 = 17;
const FWMARK: u16 = 18;

const POLICY: [Type; 19] = policy(&[
    (BASE_RATE64, Type::U64),
    (DIFFSERV_MODE, Type::U32),
    (ATM, Type::U32),
    (FLOW_MODE, Type::U32),
    (OVERHEAD, Type::U32),
    (RTT, Type::U32),
    (TARGET, Type::U32),
    (AUTORATE, Type::U32),
    (MEMORY, Type::U32),
    (NAT, Type::U32),
    (RAW, Type::U32),
    (WASH, Type::U32),
    (MPU, Type::U32),
    (INGRESS, Type::U32),
    (ACK_FILTER, Type::U32),
    (SPLIT_GSO, Type::U32),
    (FWMARK, Type::U32),
]);

/// `CAKE_FLOW_MASK`.
const FLOW_MASK: u32 = 63;
/// `CAKE_FLOW_TRIPLE`.
const TRIPLE: u8 = 7;

/// [`Cake::diffserv`]: four tins, eight, one, or eight by the precedence; others: three.
pub const DIFFSERV4: u8 = 1;
/// Eight tins.
pub const DIFFSERV8: u8 = 2;
/// One tin.
pub const BESTEFFORT: u8 = 3;
/// Eight tins by the precedence.
pub const PRECEDENCE: u8 = 4;
/// [`Cake::cells`]: 48 bytes in 53.
pub const CELLS_ATM: u8 = 1;
/// 64 bytes in 65.
pub const CELLS_PTM: u8 = 2;
/// [`Cake::ack_filter`]: none.
pub const ACK_NONE: u8 = 0;
/// Those without need of them, if a last one is left.
pub const ACK_FILTER_ON: u8 = 1;
/// All those.
pub const ACK_AGGRESSIVE: u8 = 2;

/// The parameters of the qdisc.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cake {
    /// Bytes a second; 0: as many as there are.
    pub rate: u64,
    /// By what a packet's tin is chosen.
    pub diffserv: u8,
    /// In which cells packets are sent.
    pub cells: u8,
    /// What distinguishes flows and hosts.
    pub flow_mode: u8,
    /// Bytes that are added to each packet.
    pub overhead: i16,
    /// Whether a packet's length is what the device sees, not that from the network header on.
    pub raw: bool,
    /// Bytes that a packet is charged at least.
    pub mpu: u16,
    /// The round-trip time that it expects, in microseconds.
    pub interval: u32,
    /// How long packets may wait, in microseconds.
    pub target: u32,
    /// Bytes of memory for packets; 0: what follows from the rate.
    pub memory: u32,
    /// Whether packets lose their DSCP.
    pub wash: bool,
    /// Whether what is dropped counts as what is sent.
    pub ingress: bool,
    /// Which acknowledgements are dropped.
    pub ack_filter: u8,
    /// Whether large segments are cut.
    pub split_gso: bool,
    /// Which bits of a mark choose a tin.
    pub fwmark: u32,
}

impl Default for Cake {
    /// Linux: `cake_init`.
    fn default() -> Self {
        Self {
            rate: 0,
            diffserv: 0,
            cells: 0,
            flow_mode: TRIPLE,
            overhead: 0,
            raw: true,
            mpu: 0,
            interval: 100_000,
            target: 5000,
            memory: 0,
            wash: false,
            ingress: false,
            ack_filter: ACK_NONE,
            split_gso: true,
            fwmark: 0,
        }
    }
}

impl Cake {
    /// Takes over what `TCA_OPTIONS` say; returns whether the lengths of packets that are shown begin anew.
    ///
    /// # Errors
    /// As Linux's `cake_change`. `nat` is refused with the words of a Linux without connection tracking, and so is
    /// `autorate-ingress`, which Linux has.
    pub fn change(&mut self, options: Option<Attribute<'_>>) -> Result<bool, RequestError> {
        let Some(options) = options else { return Ok(false) };
        let options = options.parse_nested(&POLICY, Validate::Liberal);
        let options = options.map_err(|error| RequestError::errno(error.errno))?;
        refuse(&options, NAT, "No conntrack support in kernel")?;
        refuse(&options, AUTORATE, "A rate that follows what comes is not supported by this router")?;
        let number = |kind| options.get(kind).map(|number| number.u32());
        let flag = |kind, old| number(kind).map_or(old, |number| number != 0);
        let byte = |kind, old| number(kind).map_or(old, |number| number as u8);
        self.rate = options.get(BASE_RATE64).map_or(self.rate, |rate| rate.u64());
        self.diffserv = byte(DIFFSERV_MODE, self.diffserv);
        self.wash = flag(WASH, self.wash);
        self.flow_mode = number(FLOW_MODE).map_or(self.flow_mode, |mode| (mode & FLOW_MASK) as u8);
        self.cells = byte(ATM, self.cells);
        if let Some(overhead) = number(OVERHEAD) {
            (self.overhead, self.raw) = (overhead as i16, false);
        }
        self.raw |= options.get(RAW).is_some();
        self.mpu = number(MPU).map_or(self.mpu, |mpu| mpu as u16);
        self.interval = number(RTT).map_or(self.interval, |time| time.max(1));
        self.target = number(TARGET).map_or(self.target, |time| time.max(1));
        self.ingress = flag(INGRESS, self.ingress);
        self.ack_filter = byte(ACK_FILTER, self.ack_filter);
        self.memory = number(MEMORY).unwrap_or(self.memory);
        self.split_gso = flag(SPLIT_GSO, self.split_gso);
        self.fwmark = number(FWMARK).unwrap_or(self.fwmark);
        Ok(options.get(OVERHEAD).or(options.get(RAW)).is_some())
    }

    /// Writes `TCA_OPTIONS`.
    pub fn write(&self, reply: &mut Reply<'_>) {
        let nest = reply.nest_unflagged(TCA_OPTIONS);
        reply.u64(BASE_RATE64, self.rate);
        for (kind, value) in [
            (FLOW_MODE, self.flow_mode.into()),
            (RTT, self.interval),
            (TARGET, self.target),
            (MEMORY, self.memory),
            (AUTORATE, 0),
            (INGRESS, self.ingress.into()),
            (ACK_FILTER, self.ack_filter.into()),
            (NAT, 0),
            (DIFFSERV_MODE, self.diffserv.into()),
            (WASH, self.wash.into()),
            (OVERHEAD, i32::from(self.overhead).cast_unsigned()),
        ] {
            reply.u32(kind, value);
        }
        if self.raw {
            reply.u32(RAW, 0);
        }
        for (kind, value) in [
            (ATM, self.cells.into()),
            (MPU, self.mpu.into()),
            (SPLIT_GSO, self.split_gso.into()),
            (FWMARK, self.fwmark),
        ] {
            reply.u32(kind, value);
        }
        reply.end(nest);
    }
}

/// Refuses a flag that is set.
fn refuse<const N: usize>(
    options: &Attributes<'_, N>,
    kind: u16,
    text: &'static str,
) -> Result<(), RequestError> {
    match options.get(kind).filter(|flag| flag.u32() != 0) {
        Some(flag) => Err(RequestError::new(EOPNOTSUPP, text).at(flag.offset)),
        None => Ok(()),
    }
}

/// What a dump shows of the qdisc, in Linux's widths: `TCA_CAKE_STATS_*`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CakeStatistics {
    /// The rate that it was made with: what `autorate-ingress` would have changed.
    pub capacity: u64,
    /// Bytes of memory for packets.
    pub memory_limit: u32,
    /// Most of them that were used.
    pub memory_used: u32,
    /// Where network headers are on average.
    pub offset: u32,
    /// The longest packet and the shortest.
    pub lengths: [u32; 2],
    /// The same as they are charged.
    pub charged: [u32; 2],
    /// Tins in the order in which they are shown.
    pub tins: Vec<CakeTinStatistics>,
}

/// What a dump shows of a tin: `TCA_CAKE_TIN_STATS_*`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CakeTinStatistics {
    /// Bytes a second up to which it goes before others.
    pub rate: u64,
    /// Bytes that have come.
    pub bytes: u64,
    /// Bytes that wait.
    pub backlog: u32,
    /// How long packets may wait, in microseconds.
    pub target: u32,
    /// For how long they may wait longer.
    pub interval: u32,
    /// Packets that have come.
    pub packets: u32,
    /// Packets dropped.
    pub drops: u32,
    /// Packets marked.
    pub marks: u32,
    /// Acknowledgements dropped.
    pub ack_drops: u32,
    /// Delays in microseconds: of those that wait long, of all, of those that wait shortly.
    pub delays: [u32; 3],
    /// Packets in another queue of their hash, flows that got a new one, flows that share one.
    pub ways: [u32; 3],
    /// Flows that send little, those that send much, those that do not answer to drops.
    pub flows: [u32; 3],
    /// The longest packet.
    pub longest: u32,
    /// Bytes that a flow may send in its turn.
    pub quantum: u32,
}

/// Attributes, one after the other.
#[derive(Default)]
struct List(Vec<u8>);

impl List {
    fn attribute(&mut self, kind: u16, value: &[u8]) {
        self.0.extend((value.len() as u16 + 4).to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
    }

    fn u32(&mut self, kind: u16, value: u32) {
        self.attribute(kind, &value.to_ne_bytes());
    }

    fn u64(&mut self, kind: u16, value: u64) {
        self.attribute(kind, &value.to_ne_bytes());
    }
}

impl CakeStatistics {
    /// Writes what is in `TCA_STATS_APP`: attributes, not a structure.
    pub fn bytes(&self) -> Vec<u8> {
        let mut list = List::default();
        list.u64(2, self.capacity);
        let ([longest, shortest], [longest_charged, shortest_charged]) = (self.lengths, self.charged);
        for (kind, value) in [
            (3, self.memory_limit),
            (4, self.memory_used),
            (5, self.offset),
            (7, longest),
            (9, longest_charged),
            (6, shortest),
            (8, shortest_charged),
        ] {
            list.u32(kind, value);
        }
        let mut tins = List::default();
        for (tin, number) in self.tins.iter().zip(1..) {
            tins.attribute(number, &tin.bytes());
        }
        list.attribute(10, &tins.0);
        list.0
    }
}

impl CakeTinStatistics {
    fn bytes(&self) -> Vec<u8> {
        let mut list = List::default();
        list.u64(12, self.rate);
        list.u64(3, self.bytes);
        let ([peak, average, base], [hits, misses, collisions]) = (self.delays, self.ways);
        let [sparse, bulk, unresponsive] = self.flows;
        for (kind, value) in [
            (11, self.backlog),
            (13, self.target),
            (14, self.interval),
            (2, self.packets),
            (4, self.drops),
            (8, self.marks),
            (6, self.ack_drops),
            (18, peak),
            (19, average),
            (20, base),
            (15, hits),
            (16, misses),
            (17, collisions),
            (21, sparse),
            (22, bulk),
            (23, unresponsive),
            (24, self.longest),
            (25, self.quantum),
        ] {
            list.u32(kind, value);
        }
        list.0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::encap::tests::written;

    fn change(cake: &mut Cake, bytes: &[u8]) -> Result<bool, RequestError> {
        cake.change(Some(Attribute { kind: TCA_OPTIONS, offset: 0, value: bytes }))
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            rate: u64,
            words: [u32; 4],
            bytes: [u8; 4],
            flags: [bool; 4],
            overhead: i16,
            mpu: u16,
        ) {
            let ([interval, target, memory, fwmark], [diffserv, cells, flow_mode, ack_filter]) = (words, bytes);
            let [raw, wash, ingress, split_gso] = flags;
            let cake = Cake {
                rate, diffserv, cells, overhead, raw, mpu, memory, wash, ingress, ack_filter, split_gso, fwmark,
                flow_mode: flow_mode % 64, interval: interval.max(1), target: target.max(1),
            };
            let bytes = written(|reply| cake.write(reply));
            let mut read = Cake::default();
            prop_assert_eq!(change(&mut read, &bytes[4..]), Ok(true));
            prop_assert_eq!(read, cake);
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
            let _ = change(&mut Cake::default(), &bytes);
        }
    }

    #[test]
    fn what_is_refused() {
        let refused = |kind, value: u32| {
            let bytes = written(|reply| reply.u32(kind, value));
            let mut cake = Cake::default();
            let result = change(&mut cake, &bytes);
            assert_eq!(cake, Cake::default());
            result.map_err(|error| (error.errno, error.offset.is_some()))
        };
        assert_eq!((refused(NAT, 1), refused(NAT, 0)), (Err((EOPNOTSUPP, true)), Ok(false)));
        assert_eq!((refused(AUTORATE, 1), refused(AUTORATE, 0)), (Err((EOPNOTSUPP, true)), Ok(false)));
    }

    #[test]
    fn counts_are_attributes() {
        let tin = CakeTinStatistics { rate: 5, quantum: 300, ..CakeTinStatistics::default() };
        let counts = CakeStatistics { memory_limit: 9, tins: vec![tin; 2], ..CakeStatistics::default() };
        let bytes = counts.bytes();
        let tin = 4 + 2 * 12 + 18 * 8;
        assert_eq!(bytes.len(), 12 + 7 * 8 + 4 + 2 * tin);
        assert_eq!((&bytes[12..20], bytes[12 + 56 + 4 + 8]), (&[8, 0, 3, 0, 9, 0, 0, 0][..], 5));
    }
}
