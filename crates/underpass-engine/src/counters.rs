//! Counters that a worker adds to and anyone may read: no shared write on the path, no atomic
//! read-modify-write, summed over the workers when they are read.

pub(crate) mod labels;
mod queue;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use labels::LabelCells;
use underpass_packet::mpls::MAX_LABEL;

use crate::buffer::PortId;
use crate::drops::DropReason;
use crate::lpm::{Pages, Words};
use crate::publish;
use crate::tables::{LINK_BITS, LinkId};
pub use queue::{CodelCount, FqCodelCount, HtbCount, QueueCount, QueueId};

/// Names one object's counter: a SID, a tunnel, a filter, allocated by the control thread; or a label, which
/// always has one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct CounterId(pub u32);

/// Set in the ids of the counters of labels.
const LABEL: u32 = 1 << 31;

impl CounterId {
    /// That of an MPLS label, 20 bits.
    #[inline(always)]
    pub const fn of_label(label: u32) -> Self {
        Self(LABEL | label & MAX_LABEL)
    }
}

/// Packets, bytes and errors of an object, as `SEG6_LOCAL_CNT_*` defines them: a packet adds either
/// one packet and its bytes, or one error.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Count {
    /// Packets that were processed correctly.
    pub packets: u64,
    /// Their layer-3 bytes, as received.
    pub bytes: u64,
    /// Packets that were not.
    pub errors: u64,
}

impl Count {
    const fn of([packets, bytes, errors]: [u64; 3]) -> Self {
        Self { packets, bytes, errors }
    }
}

impl std::ops::AddAssign for Count {
    fn add_assign(&mut self, other: Self) {
        self.packets = self.packets.wrapping_add(other.packets);
        self.bytes = self.bytes.wrapping_add(other.bytes);
        self.errors = self.errors.wrapping_add(other.errors);
    }
}

impl std::ops::Sub for Count {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self {
            packets: self.packets.wrapping_sub(other.packets),
            bytes: self.bytes.wrapping_sub(other.bytes),
            errors: self.errors.wrapping_sub(other.errors),
        }
    }
}

/// What a link has received and sent with MPLS labels: Linux's `struct mpls_link_stats`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MplsCount {
    /// Labelled packets received, those that were dropped then too.
    pub rx_packets: u64,
    /// Their bytes, from the first label on.
    pub rx_bytes: u64,
    /// Labelled packets sent.
    pub tx_packets: u64,
    /// Their bytes, from the first label on.
    pub tx_bytes: u64,
    /// Received with a label that has run out, or malformed.
    pub rx_errors: u64,
    /// Too long to be sent.
    pub tx_errors: u64,
    /// Received where the interface takes no labels.
    pub rx_dropped: u64,
    /// Received with a label that leads nowhere.
    pub rx_noroute: u64,
}

impl MplsCount {
    const fn fields(self) -> [u64; 8] {
        let Self { rx_packets, rx_bytes, tx_packets, tx_bytes, rx_errors, tx_errors, rx_dropped, rx_noroute } =
            self;
        [rx_packets, rx_bytes, tx_packets, tx_bytes, rx_errors, tx_errors, rx_dropped, rx_noroute]
    }

    const fn from_fields(fields: [u64; 8]) -> Self {
        let [rx_packets, rx_bytes, tx_packets, tx_bytes, rx_errors, tx_errors, rx_dropped, rx_noroute] =
            fields;
        Self { rx_packets, rx_bytes, tx_packets, tx_bytes, rx_errors, tx_errors, rx_dropped, rx_noroute }
    }

    fn with(self, other: Self, join: impl Fn(u64, u64) -> u64) -> Self {
        let (mut fields, other) = (self.fields(), other.fields());
        fields.iter_mut().zip(other).for_each(|(field, other)| *field = join(*field, other));
        Self::from_fields(fields)
    }
}

impl std::ops::AddAssign for MplsCount {
    fn add_assign(&mut self, other: Self) {
        *self = self.with(other, u64::wrapping_add);
    }
}

impl std::ops::Sub for MplsCount {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        self.with(other, u64::wrapping_sub)
    }
}

/// Names a counter of traffic control: of an action, a qdisc, a class.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct TcCounterId(pub u32);

/// What an action, a qdisc or a class counts: `struct gnet_stats_basic`, `struct gnet_stats_queue`, and when it was
/// used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TcCount {
    /// Packets; a large segment counts as those that it stands for.
    pub packets: u64,
    /// Bytes, as Linux's `qdisc_pkt_len`: without the link layer at ingress, with it at egress.
    pub bytes: u64,
    /// Packets that were dropped.
    pub drops: u64,
    /// Packets that were over the limit, and what else Linux counts as such.
    pub overlimits: u64,
    /// When the first packet came, in the time of the workers; 0: none has.
    pub first_used: u64,
    /// When the last packet came; 0: none has.
    pub last_used: u64,
}

impl std::ops::AddAssign for TcCount {
    fn add_assign(&mut self, other: Self) {
        self.packets = self.packets.wrapping_add(other.packets);
        self.bytes = self.bytes.wrapping_add(other.bytes);
        self.drops = self.drops.wrapping_add(other.drops);
        self.overlimits = self.overlimits.wrapping_add(other.overlimits);
        self.first_used = match (self.first_used, other.first_used) {
            (0, first) | (first, 0) => first,
            (one, other) => one.min(other),
        };
        self.last_used = self.last_used.max(other.last_used);
    }
}

const CHUNK: usize = 4096;
const CHUNKS: usize = 4096;

#[repr(align(32))]
struct Cell<const N: usize>([AtomicU64; N]);

/// Cells of `N` numbers in chunks that come into being when the control thread first needs them and never move.
struct Cells<const N: usize>(Box<[OnceLock<Box<[Cell<N>]>>]>);

impl<const N: usize> Cells<N> {
    fn new() -> Self {
        Self((0..CHUNKS).map(|_| OnceLock::new()).collect())
    }

    fn reserve(&self, index: u32) {
        if let Some(chunk) = self.0.get(index as usize / CHUNK) {
            let cell = || Cell(std::array::from_fn(|_| AtomicU64::new(0)));
            chunk.get_or_init(|| (0..CHUNK).map(|_| cell()).collect());
        }
    }

    #[inline]
    fn cell(&self, index: u32) -> Option<&Cell<N>> {
        self.0.get(index as usize / CHUNK)?.get()?.get(index as usize % CHUNK)
    }

    #[inline]
    fn add(&self, index: u32, numbers: [u64; N]) {
        if let Some(Cell(cell)) = self.cell(index) {
            cell.iter().zip(numbers).for_each(|(cell, n)| add(cell, n));
        }
    }

    fn read(&self, index: u32) -> [u64; N] {
        self.cell(index).map_or([0; N], |Cell(cell)| cell.each_ref().map(|n| n.load(Relaxed)))
    }
}

/// The counts of links, each way. The addresses of all are there from the start, and memory where links are used. Those of
/// ids beyond are where no link has any.
struct LinkCells(Words);

impl LinkCells {
    /// Numbers of a link, each way: packets, bytes, errors, drops; half a cache line.
    const NUMBERS: usize = 4;

    fn new() -> Self {
        let bits = LINK_BITS + 1 + Self::NUMBERS.trailing_zeros();
        Self(Words::exactly(bits, Pages::Small))
    }

    #[inline(always)]
    fn cell(&self, link: LinkId, direction: Direction) -> [&AtomicU64; 3] {
        let at = (link.0 as usize * 2 + direction as usize) * Self::NUMBERS;
        [0, 1, 2].map(|n| self.0.word(at + n))
    }

    fn drops(&self, link: LinkId, direction: Direction) -> &AtomicU64 {
        self.0.word((link.0 as usize * 2 + direction as usize) * Self::NUMBERS + 3)
    }
}

/// Drops by the port that the packet came in by.
struct PortDrops {
    /// A row for each port that has been reserved, with a number for each reason.
    rows: Box<[OnceLock<Box<[AtomicU64]>>]>,
    /// Whose packets the worker has in hand.
    current: AtomicUsize,
}

impl PortDrops {
    /// Ports that are counted apart; those with greater numbers are not.
    const PORTS: usize = 1024;

    fn new() -> Self {
        let rows = (0..Self::PORTS).map(|_| OnceLock::new()).collect();
        Self { rows, current: AtomicUsize::new(usize::MAX) }
    }

    fn row(&self, port: usize) -> Option<&[AtomicU64]> {
        Some(self.rows.get(port)?.get()?)
    }
}

/// Adds as the only writer: a plain load and a plain store.
#[inline]
fn add(cell: &AtomicU64, n: u64) {
    cell.store(cell.load(Relaxed).wrapping_add(n), Relaxed);
}

/// What became of all packets of a worker. Every packet that came in or was made is in exactly one of
/// the others, or has none yet ([`Worker::undecided`](crate::worker::path::Worker::undecided)):
/// `received + generated = sent + delivered + dropped + held`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Totals {
    /// Came in by a port.
    pub received: u64,
    /// Made by the router: fragments beyond the first of a packet, packets put together of fragments.
    pub generated: u64,
    /// Handed to a port to be sent.
    pub sent: u64,
    /// For the router itself.
    pub delivered: u64,
    /// Times that a packet was moved to make room for headers, not counted in the sums.
    pub buffer_moves: u64,
    /// Times that headers were put before or into a packet whose buffer had the room for them and for the
    /// link layer, so that it stayed where it was.
    pub buffer_moves_avoided: u64,
}

/// Which way a packet crossed a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// In by it.
    Receive,
    /// Out by it.
    Transmit,
}

/// The counters of one worker. Only that worker adds; a reader may be a burst behind.
pub struct Counters {
    objects: Cells<3>,
    labels: LabelCells,
    links: LinkCells,
    mpls_links: Cells<8>,
    /// Packets, bytes, drops, overlimits, first and last use.
    tc: Cells<6>,
    queues: Cells<{ queue::NUMBERS }>,
    drops: Vec<AtomicU64>,
    port_drops: PortDrops,
    totals: [AtomicU64; 6],
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            objects: Cells::new(),
            labels: LabelCells::new(),
            links: LinkCells::new(),
            mpls_links: Cells::new(),
            tc: Cells::new(),
            queues: Cells::new(),
            drops: DropReason::ALL.iter().map(|_| AtomicU64::new(0)).collect(),
            port_drops: PortDrops::new(),
            totals: Default::default(),
        }
    }
}

impl Counters {
    /// Makes room for `id`; called by the control thread before a table names it.
    pub fn reserve(&self, id: CounterId) {
        self.objects.reserve(id.0);
    }

    /// Adds to an object's counter.
    #[inline]
    pub fn add(&self, id: CounterId, count: Count) {
        match id.0 & LABEL {
            0 => self.objects.add(id.0, [count.packets, count.bytes, count.errors]),
            _ => self.labels.add(id.0 ^ LABEL, count),
        }
    }

    /// Adds a packet to an object's counter; bytes only if `bytes` is not 0.
    #[inline]
    pub(crate) fn add_packet(&self, id: CounterId, bytes: u64) {
        if let Some(Cell([packets, sum, _])) = self.objects.cell(id.0) {
            add(packets, 1);
            if bytes != 0 {
                add(sum, bytes);
            }
        }
    }

    /// Adds one to the errors of an object's counter.
    #[inline]
    pub(crate) fn add_error(&self, id: CounterId) {
        if let Some(Cell([_, _, errors])) = self.objects.cell(id.0) {
            add(errors, 1);
        }
    }

    /// Takes back an error that was counted for a packet in the same burst.
    pub(crate) fn take_back_error(&self, id: CounterId) {
        if let Some(Cell([_, _, errors])) = self.objects.cell(id.0) {
            errors.store(errors.load(Relaxed).saturating_sub(1), Relaxed);
        }
    }

    /// Prefetches the counter of a label, which is about to be added to.
    #[inline(always)]
    pub(crate) fn prefetch_label(&self, label: u32) {
        publish::prefetch(self.labels.low(label));
    }

    /// What the worker has counted for an object.
    pub fn read(&self, id: CounterId) -> Count {
        match id.0 & LABEL {
            0 => Count::of(self.objects.read(id.0)),
            _ => self.labels.read(id.0 ^ LABEL),
        }
    }

    /// Makes room for a link's counters; called by the control thread before a table names it.
    pub fn reserve_link(&self, link: LinkId) {
        self.mpls_links.reserve(link.0);
    }

    /// Prefetches a link's counters, which are about to be added to.
    #[inline(always)]
    pub(crate) fn prefetch_link(&self, link: LinkId, direction: Direction) {
        let [packets, ..] = self.links.cell(link, direction);
        publish::prefetch(packets);
    }

    /// Adds to a link's counters; bytes with the link layer.
    #[inline]
    pub fn add_link(&self, link: LinkId, direction: Direction, count: Count) {
        let numbers = [count.packets, count.bytes, count.errors];
        self.links.cell(link, direction).into_iter().zip(numbers).for_each(|(cell, n)| add(cell, n));
    }

    /// Adds packets and their bytes to a link's counters.
    #[inline(always)]
    pub(crate) fn add_crossed(&self, link: LinkId, direction: Direction, packets: u64, bytes: u64) {
        let [good, all, _] = self.links.cell(link, direction);
        add(good, packets);
        add(all, bytes);
    }

    /// Adds to what a link has dropped, of what came in or was to leave by it: Linux's `rx_dropped` and `tx_dropped`.
    pub fn add_link_drops(&self, link: LinkId, direction: Direction, n: u64) {
        add(self.links.drops(link, direction), n);
    }

    /// What a link has dropped.
    pub fn read_link_drops(&self, link: LinkId, direction: Direction) -> u64 {
        self.links.drops(link, direction).load(Relaxed)
    }

    /// Adds to what a link has received and sent with labels.
    #[inline]
    pub fn add_mpls(&self, link: LinkId, count: MplsCount) {
        self.mpls_links.add(link.0, count.fields());
    }

    /// What the worker has counted for a link with labels.
    pub fn read_mpls(&self, link: LinkId) -> MplsCount {
        MplsCount::from_fields(self.mpls_links.read(link.0))
    }

    /// What the worker has counted for a link.
    pub fn read_link(&self, link: LinkId, direction: Direction) -> Count {
        Count::of(self.links.cell(link, direction).map(|n| n.load(Relaxed)))
    }

    /// Sets a counter of traffic control to zero, and makes room for it; called by the control thread before a table
    /// names it, when no worker adds to it.
    pub fn reset_tc(&self, id: TcCounterId) {
        self.tc.reserve(id.0);
        if let Some(Cell(cell)) = self.tc.cell(id.0) {
            cell.iter().for_each(|n| n.store(0, Relaxed));
        }
    }

    /// Adds to a counter of traffic control what came at `now`.
    #[inline]
    pub fn add_tc(&self, id: TcCounterId, packets: u64, bytes: u64, now: u64) {
        if let Some(Cell([all, sum, _, _, first, last])) = self.tc.cell(id.0) {
            add(all, packets);
            add(sum, bytes);
            let now = now.max(1);
            if first.load(Relaxed) == 0 {
                first.store(now, Relaxed);
            }
            last.store(now, Relaxed);
        }
    }

    /// Adds to its drops and overlimits.
    #[inline]
    pub fn add_tc_refused(&self, id: TcCounterId, drops: u64, overlimits: u64) {
        if let Some(Cell([_, _, dropped, over, ..])) = self.tc.cell(id.0) {
            add(dropped, drops);
            add(over, overlimits);
        }
    }

    /// What the worker has counted.
    pub fn read_tc(&self, id: TcCounterId) -> TcCount {
        let [packets, bytes, drops, overlimits, first_used, last_used] = self.tc.read(id.0);
        TcCount { packets, bytes, drops, overlimits, first_used, last_used }
    }

    /// Counts dropped packets.
    #[inline]
    pub fn add_drop(&self, reason: DropReason, n: u64) {
        add(&self.drops[reason as usize], n);
        if let Some(cell) = self.port_drops.row(self.port_drops.current.load(Relaxed)) {
            add(&cell[reason as usize], n);
        }
    }

    /// Makes room for what is dropped of a port's packets; called before the worker serves the port.
    pub fn reserve_port(&self, port: PortId) {
        if let Some(row) = self.port_drops.rows.get(usize::from(port.0)) {
            row.get_or_init(|| DropReason::ALL.iter().map(|_| AtomicU64::new(0)).collect());
        }
    }

    /// Forgets what was dropped of a port's packets; called by the worker before another port gets the number.
    pub fn forget_port(&self, port: PortId) {
        let row = self.port_drops.row(port.0.into()).unwrap_or_default();
        row.iter().for_each(|count| count.store(0, Relaxed));
    }

    /// Says by which port the packets came in that are dropped from now on; [`PortId::NONE`]: by none.
    #[inline(always)]
    pub(crate) fn set_port(&self, port: PortId) {
        self.port_drops.current.store(port.0.into(), Relaxed);
    }

    /// By which port the packets came in that are dropped now; [`PortId::NONE`]: by none that is known.
    pub(crate) fn port(&self) -> PortId {
        PortId(self.port_drops.current.load(Relaxed) as u16)
    }

    /// How many of the packets that came in by a port the worker dropped, by reason; reasons that have not occurred are left
    /// out.
    pub fn port_drops(&self, port: PortId) -> Vec<(DropReason, u64)> {
        let row = self.port_drops.row(port.0.into()).unwrap_or_default();
        let drops = DropReason::ALL.iter().zip(row).map(|(reason, count)| (*reason, count.load(Relaxed)));
        drops.filter(|(_, count)| *count > 0).collect()
    }

    /// How many packets the worker dropped for this reason.
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.drops[reason as usize].load(Relaxed)
    }

    /// Adds to the totals.
    #[inline]
    pub fn add_totals(&self, more: Totals) {
        let more = [
            more.received,
            more.generated,
            more.sent,
            more.delivered,
            more.buffer_moves,
            more.buffer_moves_avoided,
        ];
        for (cell, n) in self.totals.iter().zip(more) {
            add(cell, n);
        }
    }

    /// The worker's totals.
    pub fn totals(&self) -> Totals {
        let [received, generated, sent, delivered, buffer_moves, buffer_moves_avoided] =
            [0, 1, 2, 3, 4, 5].map(|i: usize| self.totals[i].load(Relaxed));
        Totals { received, generated, sent, delivered, buffer_moves, buffer_moves_avoided }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_are_of_the_port_that_is_served() {
        let counters = Counters::default();
        counters.reserve_port(PortId(2));
        counters.add_drop(DropReason::NoRoute, 1);
        for (port, n) in [(2, 10), (3, 100), (PortId::NONE.0, 1000)] {
            counters.set_port(PortId(port));
            counters.add_drop(DropReason::NoRoute, n);
        }
        assert_eq!(counters.dropped(DropReason::NoRoute), 1111);
        assert_eq!(counters.port_drops(PortId(2)), [(DropReason::NoRoute, 10)]);
        assert_eq!(counters.port_drops(PortId(3)), []);
        counters.forget_port(PortId(3));
        counters.forget_port(PortId(2));
        counters.reserve_port(PortId(2));
        assert_eq!(counters.port_drops(PortId(2)), []);
    }

    #[test]
    fn links_count_labels_apart() {
        let counters = Counters::default();
        counters.reserve_link(LinkId(3));
        let count = MplsCount { rx_packets: 1, rx_bytes: 2, rx_noroute: 8, ..MplsCount::default() };
        counters.add_mpls(LinkId(3), count);
        counters.add_mpls(LinkId(3), count);
        counters.add_mpls(LinkId(1 << 30), count);
        let mut twice = count;
        twice += count;
        assert_eq!((counters.read_mpls(LinkId(3)), twice - count), (twice, count));
        assert_eq!(counters.read_link(LinkId(3), Direction::Receive), Count::default());
    }
}
