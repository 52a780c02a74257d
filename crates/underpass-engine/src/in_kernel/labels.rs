//! What programs read of MPLS labels, and what they count by them.
//!
//! The table is a copy of [`LabelTable`](crate::tables::LabelTable): its words say all, but for the kinds that programs
//! leave to workers, which they have no word of. The workers' own is in huge pages, as this memory cannot be.

use std::sync::atomic::{
    AtomicU64,
    Ordering::{Relaxed, Release},
};

use underpass_packet::mpls::MAX_LABEL;

use super::region::Region;
use crate::counters::Count;
use crate::lpm::Words;
use crate::tables::LabelAction;

/// Kinds of a label's word, in its two highest bits: another label takes its place.
pub const SWAP: i32 = 1;
/// Two labels do: the outer one is [`OUTER_LABEL`] bits from the right.
pub const SWAP_PUSH: i32 = 2;
/// The label is taken off.
pub const POP: i32 = 3;
/// Where the kind begins.
pub const KIND: i32 = 62;
/// Where the outer one of two labels begins, 20 bits.
pub const OUTER_LABEL: i32 = 42;
/// Where the label begins, 20 bits.
pub const LABEL: i32 = 22;
/// [`POP`]: IP below takes over the TTL.
pub const PROPAGATE: i32 = 1 << 22;
/// The number of the next hop, the lowest bits.
pub const NEXT_HOP: i32 = (1 << 22) - 1;

/// Bits of a label.
const BITS: u32 = MAX_LABEL.count_ones();
/// Bytes of a label's counters, as a power of two: packets, bytes.
pub const COUNTER_BITS: i32 = 4;
/// Bytes of a processor's counters of labels, as a power of two.
pub const PROCESSOR_BITS: i32 = BITS as i32 + COUNTER_BITS;
/// Words of a label's counters.
const COUNTERS: usize = 1 << (COUNTER_BITS - 3);

/// Labels, as programs know them.
pub(crate) struct ProgramLabels {
    words: Words,
    counters: Words,
    processors: usize,
}

impl ProgramLabels {
    /// `None`: the region has no room.
    pub(crate) fn new(region: &Region, processors: usize) -> Option<Self> {
        let processors = processors.max(1);
        let bits = BITS + 1 + processors.next_power_of_two().trailing_zeros();
        Some(Self { words: Words::within(region, BITS)?, counters: Words::within(region, bits)?, processors })
    }

    /// Where the table begins in the region, and the counters of the first processor.
    pub(crate) fn places(&self) -> (u32, u32) {
        (self.words.offset(), self.counters.offset())
    }

    /// Packets and bytes of a label on a processor.
    fn counter(&self, processor: usize, label: u32) -> [&AtomicU64; COUNTERS] {
        let at = (processor << BITS | (label & MAX_LABEL) as usize) * COUNTERS;
        std::array::from_fn(|n| self.counters.word(at + n))
    }

    /// What a label is to lead to from now on; `next_hops` is how many next hops programs know.
    pub(crate) fn set(&self, label: u32, action: Option<LabelAction>, next_hops: usize) {
        if label > MAX_LABEL {
            return;
        }
        let word = match action {
            Some(
                action @ (LabelAction::Swap { next_hop, .. }
                | LabelAction::SwapPush { next_hop, .. }
                | LabelAction::Pop { next_hop, .. }),
            ) if (next_hop.0 as usize) < next_hops => action.to_word(),
            _ => 0,
        };
        if word != 0 {
            // Memory for its counters, as what a program adds where there is none is lost.
            for of in 0..self.processors {
                let _ = self.counter(of, label)[0].compare_exchange(0, 0, Relaxed, Relaxed);
            }
        }
        self.words.word(label as usize).store(word, Release);
    }

    /// What was counted by a label.
    pub(crate) fn count(&self, label: u32) -> Count {
        let mut sum = Count::default();
        for of in 0..self.processors {
            let [packets, bytes] = self.counter(of, label).map(|cell| cell.load(Relaxed));
            sum += Count { packets, bytes, errors: 0 };
        }
        sum
    }
}
