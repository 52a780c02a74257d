//! The MPLS label table: one word for each label, so that a look-up is one read.
//!
//! ```text
//! | kind (2) |            | label (20) | next hop (22) |   a label in its place
//! | kind (2) | label (20) | label (20) | next hop (22) |   two
//! | kind (2) |         propagate (1)   | next hop (22) |   none: pop, and forward
//! | 0        | kind (2) |          action or ways (32) |   all else
//! ```
//!
//! A label of several ways names a block of such words in the memory of the forwarding tables, a word for each
//! way, so that they have a constant stride.
//!
//! ```text
//! | weighted (1) | count (32) |
//! | word of the first way     |
//! | …                         |
//! | bound (32) | bound (32)   |   if weighted: largest hash of each way, two to a word
//! ```

use std::sync::atomic::{
    AtomicU32,
    Ordering::{Acquire, Relaxed, Release},
};

use underpass_packet::mpls::{BOTTOM, MAX_LABEL, TRAFFIC_CLASS};

use super::{ActionId, NextHopId};
use crate::lpm::{Arena, Block, Pages, Words};
use crate::publish::{self, Retirer};

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
    /// Two labels take its place.
    SwapPush {
        /// The new labels, the outermost first.
        labels: [u32; 2],
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
    /// One of several, by the packet's flow.
    NextHops(LabelNextHopsId),
    /// Anything else: an [`Action::Switch`](super::Action), or a discard.
    Act(ActionId),
}

/// Several ways of a label.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LabelNextHopsId(Block);

const KIND: u32 = 62;
const SWAP: u64 = 1;
const SWAP_PUSH: u64 = 2;
const POP: u64 = 3;
/// Of a word of no kind.
const OTHER: u32 = 32;
const ACT: u64 = 1;
const NEXT_HOPS: u64 = 2;
const FIRST_LABEL: u32 = 42;
const LAST_LABEL: u32 = 22;
const PROPAGATE: u64 = 1 << 22;
const NEXT_HOP: u64 = (1 << 22) - 1;

impl LabelAction {
    #[inline(always)]
    pub(crate) const fn to_word(self) -> u64 {
        let to = match self {
            Self::Swap { next_hop, .. } | Self::SwapPush { next_hop, .. } | Self::Pop { next_hop, .. } => {
                next_hop.0 as u64
            }
            Self::NextHops(ways) => return NEXT_HOPS << OTHER | ways.0 as u64,
            Self::Act(action) => return ACT << OTHER | action.0 as u64,
        };
        if to > NEXT_HOP {
            // There was no room for the next hop.
            return ACT << OTHER | u32::MAX as u64;
        }
        match self {
            Self::Swap { label, .. } => SWAP << KIND | ((label & MAX_LABEL) as u64) << LAST_LABEL | to,
            Self::SwapPush { labels: [first, last], .. } => {
                SWAP_PUSH << KIND
                    | ((first & MAX_LABEL) as u64) << FIRST_LABEL
                    | ((last & MAX_LABEL) as u64) << LAST_LABEL
                    | to
            }
            Self::Pop { propagate: true, .. } => POP << KIND | PROPAGATE | to,
            _ => POP << KIND | to,
        }
    }

    #[inline(always)]
    const fn from_word(word: u64) -> Option<Self> {
        let next_hop = NextHopId((word & NEXT_HOP) as u32);
        let last = (word >> LAST_LABEL) as u32 & MAX_LABEL;
        Some(match word >> KIND {
            SWAP => Self::Swap { label: last, next_hop },
            SWAP_PUSH => {
                Self::SwapPush { labels: [(word >> FIRST_LABEL) as u32 & MAX_LABEL, last], next_hop }
            }
            POP => Self::Pop { next_hop, propagate: word & PROPAGATE != 0 },
            _ => match word >> OTHER {
                ACT => Self::Act(ActionId(word as u32)),
                NEXT_HOPS => Self::NextHops(LabelNextHopsId(word as u32)),
                _ => return None,
            },
        })
    }
}

/// Labels below which the table fits in the cache, so that prefetching does not pay.
const HOT: u32 = 4096;

/// Bit of the first word of a block of ways: their weights differ.
const WEIGHTED: u64 = 1 << 63;
/// Most ways of a label.
pub const MAX_LABEL_NEXT_HOPS: usize = 255;

/// What each label leads to. Its memory is there from the start, and backed where labels are used.
pub struct LabelTable {
    words: Words,
    /// The memory of the ways.
    ways: Words,
    /// One above the largest label that was ever used.
    top: AtomicU32,
    /// Bits that a label in the place of another takes over from it.
    kept: AtomicU32,
}

impl LabelTable {
    pub(super) fn new(arena: &Arena) -> Self {
        let words = Words::exactly(MAX_LABEL.count_ones(), Pages::Huge);
        Self { words, ways: arena.words().clone(), top: 0.into(), kept: BOTTOM.into() }
    }

    /// What a label of 20 bits leads to.
    #[inline(always)]
    pub fn get(&self, label: u32) -> Option<LabelAction> {
        // A word says all that is needed to find the rest, which was published before it.
        LabelAction::from_word(self.words.word(label as usize).load(Acquire))
    }

    /// The way of several that a flow with this hash of 31 bits takes. Never [`LabelAction::NextHops`].
    #[inline]
    pub fn choose(&self, LabelNextHopsId(block): LabelNextHopsId, hash: u32) -> Option<LabelAction> {
        let first = block as usize * Arena::UNIT;
        let word = |index: usize| self.ways.word(first + index).load(Relaxed);
        let head = word(0);
        let count = (head as u32 as usize).min(MAX_LABEL_NEXT_HOPS);
        let way = if head & WEIGHTED == 0 {
            ((u64::from(hash) * count as u64) >> 31) as usize
        } else {
            let bound = |way: usize| (word(1 + count + way / 2) >> (32 * (way % 2))) as u32;
            (0..count).find(|way| hash <= bound(*way))?
        };
        LabelAction::from_word(if way < count { word(1 + way) } else { return None })
    }

    /// Whether all of it is in the cache.
    #[inline(always)]
    pub(crate) fn is_hot(&self) -> bool {
        self.top.load(Relaxed) <= HOT
    }

    /// Prefetches a label, which is about to be read.
    #[inline(always)]
    pub(crate) fn prefetch(&self, label: u32) {
        publish::prefetch(self.words.word(label as usize));
    }

    /// Bits that a label in the place of another takes over from it: that of the bottom, and the traffic class where
    /// [`is_uniform`](Self::is_uniform).
    #[inline(always)]
    pub(crate) fn kept(&self) -> u32 {
        self.kept.load(Relaxed)
    }

    /// Whether packets and their labels have one traffic class: the uniform model of RFC 3270 section 2.6.2. If
    /// not, it is 0 in labels that are written, and stays where labels are taken off.
    #[inline(always)]
    pub fn is_uniform(&self) -> bool {
        self.kept() & TRAFFIC_CLASS != 0
    }

    /// Says whether they have.
    pub(super) fn set_uniform(&self, uniform: bool) {
        self.kept.store(if uniform { BOTTOM | TRAFFIC_CLASS } else { BOTTOM }, Relaxed);
    }

    /// What a label is to lead to from now on, if to anything. Labels above [`MAX_LABEL`] lead nowhere.
    pub(super) fn set(&self, label: u32, action: Option<LabelAction>) {
        if label > MAX_LABEL {
            return;
        }
        self.top.fetch_max(label + 1, Relaxed);
        self.words.word(label as usize).store(action.map_or(0, LabelAction::to_word), Release);
    }

    /// Writes ways with their weights, at most [`MAX_LABEL_WAYS`] of them. Without room for them the id leads
    /// nowhere.
    pub(super) fn add_ways(&self, arena: &mut Arena, ways: &[(u16, LabelAction)]) -> LabelNextHopsId {
        let count = ways.len();
        if count == 0 || count > MAX_LABEL_NEXT_HOPS || !arena.has_room() {
            return LabelNextHopsId(0);
        }
        let weighted = ways.iter().any(|(weight, _)| *weight != ways[0].0);
        let (block, _) = arena.allocate(words_of(count, weighted));
        let first = block as usize * Arena::UNIT;
        let write = |index: usize, value| self.ways.word(first + index).store(value, Relaxed);
        write(0, count as u64 | if weighted { WEIGHTED } else { 0 });
        for (index, (_, action)) in ways.iter().enumerate() {
            // Next hops of next hops lead nowhere.
            let word = if matches!(action, LabelAction::NextHops(_)) { 0 } else { action.to_word() };
            write(1 + index, word);
        }
        if weighted {
            let total: u64 = ways.iter().map(|(weight, _)| u64::from(*weight)).sum();
            let mut sum = 0;
            let mut bounds = ways.iter().map(|(weight, _)| {
                sum += u64::from(*weight);
                // As Linux's `fib_rebalance`: a way of no weight gets nothing.
                (((sum << 31) + total / 2) / total.max(1)).saturating_sub(1)
            });
            for index in 0..count.div_ceil(2) {
                let pair = (bounds.next().unwrap_or_default(), bounds.next().unwrap_or_default());
                write(1 + count + index, pair.1 << 32 | pair.0);
            }
        }
        LabelNextHopsId(block)
    }

    /// Gives back ways that no label leads to any more.
    pub(super) fn remove_ways(
        &self,
        arena: &mut Arena,
        LabelNextHopsId(block): LabelNextHopsId,
        retirer: &Retirer,
    ) {
        if block != 0 {
            let head = self.ways.word(block as usize * Arena::UNIT).load(Relaxed);
            arena.release(block, words_of(head as u32 as usize, head & WEIGHTED != 0), retirer);
        }
    }
}

/// Words of a block of so many ways.
const fn words_of(count: usize, weighted: bool) -> usize {
    1 + count + if weighted { count.div_ceil(2) } else { 0 }
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
            LabelAction::SwapPush { labels: [MAX_LABEL, 0], next_hop },
            LabelAction::SwapPush { labels: [0, MAX_LABEL], next_hop: NextHopId(0) },
            LabelAction::Pop { next_hop, propagate: true },
            LabelAction::Pop { next_hop, propagate: false },
            LabelAction::Act(ActionId((1 << 24) - 2)),
            LabelAction::NextHops(LabelNextHopsId(1 << 29)),
        ] {
            assert_eq!(LabelAction::from_word(action.to_word()), Some(action));
        }
        assert_eq!(LabelAction::from_word(0), None);
        let nowhere = LabelAction::Swap { label: 5, next_hop: NextHopId(u32::MAX) };
        assert_eq!(LabelAction::from_word(nowhere.to_word()), Some(LabelAction::Act(ActionId(u32::MAX))));
    }

    #[test]
    fn labels_lead_where_they_were_told() {
        let table = LabelTable::new(&Arena::new(20));
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

    /// How many of 10,000 evenly spread hashes take each way.
    fn shares(table: &LabelTable, ways: LabelNextHopsId, count: u32) -> Vec<usize> {
        let hashes = (0..10_000_u64).map(|n| ((n << 31) / 10_000) as u32);
        let taken: Vec<_> = hashes.map(|hash| table.choose(ways, hash)).collect();
        let swap = |label| Some(LabelAction::Swap { label, next_hop: NextHopId(7) });
        (0..count).map(|label| taken.iter().filter(|action| **action == swap(label)).count()).collect()
    }

    #[test]
    fn ways_have_the_shares_of_their_weights() {
        let mut arena = Arena::new(20);
        let table = LabelTable::new(&arena);
        let ways = |weights: &[u16]| -> Vec<_> {
            let action = |label| LabelAction::Swap { label, next_hop: NextHopId(7) };
            weights.iter().zip(0..).map(|(weight, label)| (*weight, action(label))).collect()
        };
        let even = table.add_ways(&mut arena, &ways(&[3; 4]));
        assert_eq!(shares(&table, even, 4), [2500; 4]);
        let weighted = table.add_ways(&mut arena, &ways(&[1, 3, 0]));
        assert_eq!(shares(&table, weighted, 3), [2500, 7500, 0]);
        let many = table.add_ways(&mut arena, &ways(&[1; MAX_LABEL_NEXT_HOPS]));
        assert!(shares(&table, many, 255).iter().all(|share| (39..=40).contains(share)));
        assert_eq!(table.add_ways(&mut arena, &ways(&[1; MAX_LABEL_NEXT_HOPS + 1])), LabelNextHopsId(0));
        assert_eq!(table.choose(LabelNextHopsId(0), 5), None);
    }

    #[test]
    fn memory_of_ways_is_used_again() {
        let mut arena = Arena::new(20);
        let (mut retirer, _) = publish::domain(0);
        let table = LabelTable::new(&arena);
        let ways = [(1, LabelAction::Act(ActionId(1))), (2, LabelAction::Act(ActionId(2)))];
        let first = table.add_ways(&mut arena, &ways);
        let used = arena.used();
        table.remove_ways(&mut arena, first, &retirer);
        assert!(arena.used() < used);
        retirer.reclaim();
        arena.reclaim(&retirer);
        assert_eq!(table.add_ways(&mut arena, &ways), first);
    }
}
