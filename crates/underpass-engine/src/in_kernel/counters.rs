//! What programs count: on each processor by themselves, with plain loads and stores.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::records::MissCause;
use super::region::Region;
use crate::counters::{Count, CounterId, Direction, MplsCount, TcCount, TcCounterId, Totals};
use crate::drops::DropReason;
use crate::lpm::Words;
use crate::tables::LinkId;

/// Bytes of a processor's counters, as a power of two.
pub const PROCESSOR_BITS: u32 = 21;
/// Where a processor counts drops, 8 bytes a reason.
pub const DROPS: u32 = 0;
/// Where it counts packets that came in, and packets sent.
pub const RECEIVED: u32 = 8 * 256;
/// See [`RECEIVED`].
pub const SENT: u32 = RECEIVED + 8;
/// Where it counts packets that a worker was given, 8 bytes a cause.
pub const MISSES: u32 = RECEIVED + 64;
/// Where it counts for traffic control: 64 bytes a counter, as [`TcCount`].
pub const TC: u32 = 1 << 15;
/// Where it counts the labelled packets of links: packets and bytes received, packets and bytes sent.
pub const LABELLED: u32 = 1 << 18;
/// Where it counts for links: 32 bytes each way; packets, bytes, errors, drops.
pub const LINKS: u32 = 1 << 19;
/// Where it counts for objects: 32 bytes each; packets, bytes, errors.
pub const OBJECTS: u32 = 1 << 20;

/// Most counters of traffic control.
pub(crate) const MOST_TC: u32 = 1 << 9;
/// Most links.
pub const MOST_LINKS: u32 = 1 << 13;
/// Most objects.
pub(crate) const MOST_OBJECTS: u32 = 1 << 15;

/// The counters of all processors.
pub struct ProgramCounters {
    words: Words,
    processors: usize,
}

impl ProgramCounters {
    /// All zero. `None`: the region has no room for them.
    pub(crate) fn new(region: &Region, processors: usize) -> Option<Self> {
        let processors = processors.max(1);
        let bits = PROCESSOR_BITS - 3 + processors.next_power_of_two().trailing_zeros();
        let counters = Self { words: Words::within(region, bits)?, processors };
        counters.touch(RECEIVED);
        Some(counters)
    }

    /// Has memory where a counter is: what a program adds where there is none is lost.
    fn touch(&self, byte: u32) {
        for of in 0..self.processors {
            // Programs may count there already. To add 0 would be no access at all to a compiler.
            let _ = self.word(of, byte).compare_exchange(0, 0, Relaxed, Relaxed);
        }
    }

    /// Has memory for the counters of a link, before a program knows it.
    pub(crate) fn reserve_link(&self, link: LinkId) {
        if link.0 < MOST_LINKS {
            self.touch(link_at(link, Direction::Receive));
            self.touch(labelled_at(link));
        }
    }

    /// Has memory for the counter of an object, before a program knows it.
    pub(crate) fn reserve_object(&self, id: CounterId) {
        if let Some(at) = object_at(id) {
            self.touch(at);
        }
    }

    /// Where they begin in the region.
    pub(crate) fn offset(&self) -> u32 {
        self.words.offset()
    }

    fn word(&self, processor: usize, byte: u32) -> &AtomicU64 {
        self.words.word((processor << (PROCESSOR_BITS - 3)) + byte as usize / 8)
    }

    fn sum(&self, byte: u32) -> u64 {
        (0..self.processors).map(|of| self.word(of, byte).load(Relaxed)).fold(0, u64::wrapping_add)
    }

    fn count_at(&self, at: u32) -> Count {
        let [packets, bytes, errors] = [0, 8, 16].map(|byte| self.sum(at + byte));
        Count { packets, bytes, errors }
    }

    /// What was counted for a link.
    pub(crate) fn link(&self, link: LinkId, way: Direction) -> Count {
        if link.0 < MOST_LINKS { self.count_at(link_at(link, way)) } else { Count::default() }
    }

    /// What was counted for a link's labelled packets.
    pub(crate) fn labelled(&self, link: LinkId) -> MplsCount {
        if link.0 >= MOST_LINKS {
            return MplsCount::default();
        }
        let [rx_packets, rx_bytes, tx_packets, tx_bytes] =
            [0, 8, 16, 24].map(|byte| self.sum(labelled_at(link) + byte));
        MplsCount { rx_packets, rx_bytes, tx_packets, tx_bytes, ..MplsCount::default() }
    }

    /// What was counted for an object.
    pub(crate) fn object(&self, id: CounterId) -> Count {
        object_at(id).map_or(Count::default(), |at| self.count_at(at))
    }

    /// What was counted for a counter of traffic control.
    pub(crate) fn tc(&self, id: TcCounterId) -> TcCount {
        let mut sum = TcCount::default();
        if id.0 < MOST_TC {
            for of in 0..self.processors {
                let [packets, bytes, drops, overlimits, first_used, last_used] =
                    [0, 8, 16, 24, 32, 40].map(|byte| self.word(of, TC + id.0 * 64 + byte).load(Relaxed));
                sum += TcCount { packets, bytes, drops, overlimits, first_used, last_used };
            }
        }
        sum
    }

    /// Sets a counter of traffic control to zero.
    pub(crate) fn reset_tc(&self, id: TcCounterId) {
        if id.0 < MOST_TC {
            for of in 0..self.processors {
                (0..64).step_by(8).for_each(|byte| self.word(of, TC + id.0 * 64 + byte).store(0, Relaxed));
            }
        }
    }

    /// How many packets were dropped for a reason.
    pub(crate) fn dropped(&self, reason: DropReason) -> u64 {
        self.sum(DROPS + 8 * reason as u32)
    }

    /// How many packets came in and were not given to a worker, and how many of these were sent.
    pub(crate) fn totals(&self) -> Totals {
        Totals { received: self.sum(RECEIVED), sent: self.sum(SENT), ..Totals::default() }
    }

    /// How many packets workers were given for a cause.
    pub(crate) fn misses(&self, cause: MissCause) -> u64 {
        self.sum(MISSES + 8 * cause as u32)
    }
}

/// Where a link is counted.
pub(crate) fn link_at(link: LinkId, way: Direction) -> u32 {
    LINKS + link.0 * 64 + way as u32 * 32
}

/// Where a link's labelled packets are counted.
pub(crate) fn labelled_at(link: LinkId) -> u32 {
    LABELLED + link.0 * 32
}

/// Where an object is counted. `None`: no program counts for it.
pub(crate) fn object_at(id: CounterId) -> Option<u32> {
    (id.0 < MOST_OBJECTS).then(|| OBJECTS + id.0 * 32)
}
