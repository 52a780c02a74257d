//! Counters that a worker adds to and anyone may read: no shared write on the path, no atomic
//! read-modify-write, summed over the workers when they are read.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::drops::Drop;

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

/// The counters of one worker. Only that worker adds; a reader may be a burst behind.
pub struct Counters {
    chunks: Box<[OnceLock<Box<[Cell]>>]>,
    drops: Vec<AtomicU64>,
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            chunks: (0..CHUNKS).map(|_| OnceLock::new()).collect(),
            drops: Drop::ALL.iter().map(|_| AtomicU64::new(0)).collect(),
        }
    }
}

/// Adds as the only writer: a plain load and a plain store.
#[inline]
fn add(cell: &AtomicU64, n: u64) {
    cell.store(cell.load(Relaxed).wrapping_add(n), Relaxed);
}

impl Counters {
    /// Makes room for `id`; called by the control thread before a table names it.
    pub fn reserve(&self, id: CounterId) {
        if let Some(chunk) = self.chunks.get(id.0 as usize / CHUNK) {
            chunk.get_or_init(|| (0..CHUNK).map(|_| Cell::default()).collect());
        }
    }

    #[inline]
    fn cell(&self, id: CounterId) -> Option<&Cell> {
        self.chunks.get(id.0 as usize / CHUNK)?.get()?.get(id.0 as usize % CHUNK)
    }

    /// Adds to an object's counter.
    #[inline]
    pub fn add(&self, id: CounterId, count: Count) {
        if let Some(cell) = self.cell(id) {
            add(&cell.packets, count.packets);
            add(&cell.bytes, count.bytes);
            add(&cell.errors, count.errors);
        }
    }

    /// What the worker has counted for an object.
    pub fn read(&self, id: CounterId) -> Count {
        self.cell(id).map_or(Count::default(), |cell| Count {
            packets: cell.packets.load(Relaxed),
            bytes: cell.bytes.load(Relaxed),
            errors: cell.errors.load(Relaxed),
        })
    }

    /// Counts dropped packets.
    #[inline]
    pub fn drop(&self, reason: Drop, n: u64) {
        add(&self.drops[reason as usize], n);
    }

    /// How many packets the worker dropped for this reason.
    pub fn dropped(&self, reason: Drop) -> u64 {
        self.drops[reason as usize].load(Relaxed)
    }
}
