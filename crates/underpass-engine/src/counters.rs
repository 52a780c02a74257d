//! Counters that a worker adds to and anyone may read: no shared write on the path, no atomic
//! read-modify-write, summed over the workers when they are read.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::drops::Drop;
use crate::tables::LinkId;

/// Names one object's counter: a SID, a label, a tunnel, a filter. Allocated by the control thread.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct CounterId(pub u32);

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

const CHUNK: usize = 4096;
const CHUNKS: usize = 4096;

#[derive(Default)]
#[repr(align(32))]
struct Cell {
    packets: AtomicU64,
    bytes: AtomicU64,
    errors: AtomicU64,
}

/// Cells in chunks that come into being when the control thread first needs them and never move.
struct Cells(Box<[OnceLock<Box<[Cell]>>]>);

impl Cells {
    fn new() -> Self {
        Self((0..CHUNKS).map(|_| OnceLock::new()).collect())
    }

    fn reserve(&self, index: u32) {
        if let Some(chunk) = self.0.get(index as usize / CHUNK) {
            chunk.get_or_init(|| (0..CHUNK).map(|_| Cell::default()).collect());
        }
    }

    #[inline]
    fn cell(&self, index: u32) -> Option<&Cell> {
        self.0.get(index as usize / CHUNK)?.get()?.get(index as usize % CHUNK)
    }

    #[inline]
    fn add(&self, index: u32, count: Count) {
        if let Some(cell) = self.cell(index) {
            add(&cell.packets, count.packets);
            add(&cell.bytes, count.bytes);
            add(&cell.errors, count.errors);
        }
    }

    fn read(&self, index: u32) -> Count {
        self.cell(index).map_or(Count::default(), |cell| Count {
            packets: cell.packets.load(Relaxed),
            bytes: cell.bytes.load(Relaxed),
            errors: cell.errors.load(Relaxed),
        })
    }
}

/// Adds as the only writer: a plain load and a plain store.
#[inline]
fn add(cell: &AtomicU64, n: u64) {
    cell.store(cell.load(Relaxed).wrapping_add(n), Relaxed);
}

/// What became of all packets of a worker. Every packet that came in or was made is in exactly one of
/// the others: `received + generated = sent + delivered + dropped`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Totals {
    /// Came in by a port.
    pub received: u64,
    /// Made by the router: fragments beyond the first of a packet.
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
    objects: Cells,
    links: Cells,
    drops: Vec<AtomicU64>,
    totals: [AtomicU64; 6],
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            objects: Cells::new(),
            links: Cells::new(),
            drops: Drop::ALL.iter().map(|_| AtomicU64::new(0)).collect(),
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
        self.objects.add(id.0, count);
    }

    /// What the worker has counted for an object.
    pub fn read(&self, id: CounterId) -> Count {
        self.objects.read(id.0)
    }

    /// Makes room for a link's counters; called by the control thread before a table names it.
    pub fn reserve_link(&self, link: LinkId) {
        self.links.reserve(link.0 * 2 + 1);
    }

    /// Adds to a link's counters; bytes with the link layer.
    #[inline]
    pub fn add_link(&self, link: LinkId, direction: Direction, count: Count) {
        self.links.add(link.0 * 2 + direction as u32, count);
    }

    /// What the worker has counted for a link.
    pub fn read_link(&self, link: LinkId, direction: Direction) -> Count {
        self.links.read(link.0 * 2 + direction as u32)
    }

    /// Counts dropped packets.
    #[inline]
    pub fn add_drop(&self, reason: Drop, n: u64) {
        add(&self.drops[reason as usize], n);
    }

    /// How many packets the worker dropped for this reason.
    pub fn dropped(&self, reason: Drop) -> u64 {
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
