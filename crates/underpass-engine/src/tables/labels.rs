//! The MPLS label table: one word for each label, so that a look-up is one read.
//!
//! ```text
//! | kind (2) | … | propagate (1) | label (20) | 10 bits | next hop (22) |   swap, or pop and forward
//! | kind (2) |                                           … | action (24) |   all else
//! ```

use std::sync::atomic::{AtomicU64, Ordering};

use underpass_packet::mpls::MAX_LABEL;
use zerocopy::FromZeros;

use super::{ActionId, NextHopId};
use crate::publish;

/// What is done to a packet with a label.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LabelAction {
    /// Another label takes its place.
    Swap {
        /// The new label, 20 bits.
        label: u32,
        /// Where it goes.
        next_hop: NextHopId,
    },
    /// The label is taken off: RFC 3031 section 3.16, penultimate hop popping.
    Pop {
        /// Where it goes.
        next_hop: NextHopId,
        /// Whether an IP packet below it takes over the TTL, or has its own lowered: RFC 3443.
        propagate: bool,
    },
    /// Anything else: an [`Action::Switch`](super::Action), several of them, or a discard.
    Act(ActionId),
}

const KIND: u32 = 62;
const SWAP: u64 = 1;
const POP: u64 = 2;
const ACT: u64 = 3;
const PROPAGATE: u64 = 1 << 60;
const LABEL: u32 = 32;

impl LabelAction {
    #[inline(always)]
    const fn to_word(self) -> u64 {
        match self {
            Self::Swap { label, next_hop } => {
                SWAP << KIND | ((label & MAX_LABEL) as u64) << LABEL | next_hop.0 as u64
            }
            Self::Pop { next_hop, propagate } => {
                POP << KIND | if propagate { PROPAGATE } else { 0 } | next_hop.0 as u64
            }
            Self::Act(action) => ACT << KIND | action.0 as u64,
        }
    }

    #[inline(always)]
    const fn from_word(word: u64) -> Option<Self> {
        Some(match word >> KIND {
            SWAP => {
                Self::Swap { label: (word >> LABEL) as u32 & MAX_LABEL, next_hop: NextHopId(word as u32) }
            }
            POP => Self::Pop { next_hop: NextHopId(word as u32), propagate: word & PROPAGATE != 0 },
            ACT => Self::Act(ActionId(word as u32)),
            _ => return None,
        })
    }
}

/// Labels below which the table fits in the cache, so that asking for its memory ahead does not pay.
const HOT: u32 = 4096;

/// What each label leads to. Its memory is there from the start, and backed where labels are used.
pub struct LabelTable {
    words: Box<[AtomicU64]>,
    /// One above the largest label that was ever used.
    top: std::sync::atomic::AtomicU32,
}

impl LabelTable {
    pub(super) fn new() -> Self {
        let words = <[AtomicU64]>::new_box_zeroed_with_elems(MAX_LABEL as usize + 1);
        // Without the memory for it the table is empty, for ever.
        Self { words: words.unwrap_or_default(), top: 0.into() }
    }

    /// What a label leads to.
    #[inline(always)]
    pub fn get(&self, label: u32) -> Option<LabelAction> {
        // A word says all that is needed to find the rest, which was published before it.
        LabelAction::from_word(self.words.get(label as usize)?.load(Ordering::Acquire))
    }

    /// Whether all of it is in the cache.
    #[inline(always)]
    pub(crate) fn is_hot(&self) -> bool {
        self.top.load(Ordering::Relaxed) <= HOT
    }

    /// Asks for the memory of a label, which is about to be read.
    #[inline(always)]
    pub(crate) fn prefetch(&self, label: u32) {
        if let Some(word) = self.words.get(label as usize) {
            publish::prefetch(word);
        }
    }

    /// What a label is to lead to from now on, if to anything. Labels above [`MAX_LABEL`] lead nowhere.
    pub(super) fn set(&self, label: u32, action: Option<LabelAction>) {
        let Some(word) = self.words.get(label as usize) else { return };
        self.top.fetch_max(label + 1, Ordering::Relaxed);
        word.store(action.map_or(0, LabelAction::to_word), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_keep_what_they_are_made_of() {
        let next_hop = NextHopId((1 << 22) - 1);
        for action in [
            LabelAction::Swap { label: MAX_LABEL, next_hop },
            LabelAction::Swap { label: 0, next_hop: NextHopId(0) },
            LabelAction::Pop { next_hop, propagate: true },
            LabelAction::Pop { next_hop, propagate: false },
            LabelAction::Act(ActionId((1 << 24) - 2)),
        ] {
            assert_eq!(LabelAction::from_word(action.to_word()), Some(action));
        }
        assert_eq!(LabelAction::from_word(0), None);
    }

    #[test]
    fn labels_lead_where_they_were_told() {
        let table = LabelTable::new();
        let action = LabelAction::Act(ActionId(7));
        table.set(MAX_LABEL, Some(action));
        table.set(MAX_LABEL + 1, Some(action));
        assert_eq!(
            (table.get(MAX_LABEL), table.get(MAX_LABEL + 1), table.get(16)),
            (Some(action), None, None)
        );
        assert!(!table.is_hot());
        table.set(MAX_LABEL, None);
        assert_eq!(table.get(MAX_LABEL), None);
    }
}
