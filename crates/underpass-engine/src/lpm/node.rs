//! Nodes of a trie: eight bits of the address each.
//!
//! ```text
//! word  0      meta:  63     56      48      40      32  31   30  29        0
//!                     | counts of entries before each  |tail|own | default  |
//!                     |  quarter of the slots          |    |    |          |
//!       1..5   one bit for each slot that has an entry
//!       5..    the entries, in the order of their slots
//! with `tail`, behind them:
//!       0..4   one bit for each slot at which another run of covered slots starts
//!       4      counts of runs (as in meta; below them: how many runs, how many prefixes)
//!       5..    the leaves of the runs, two in a word
//!              the prefixes that they come from, one in a word: 1 and its bits, leaf
//! ```
//!
//! A node at bit `base` owns the prefixes of `base` to `base + 7` bits that lead to it: the first one
//! is its own default, the others its tail. Where it has no prefix of `base` bits, its default is what
//! the tail of its parent says about its slot. So a prefix changes the node that owns it, and the
//! defaults of that node's children.
//!
//! A node with few entries is one cache line. Only meta and the entries ever change in a node that
//! readers know; for all else it is written anew.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use arrayvec::ArrayVec;

use super::arena::{Arena, Block, UNIT, View, Words};
use super::entry::{Entry, Kind};

/// No leaf, where 30 bits are there to say so.
pub(super) const NONE: u32 = (1 << 30) - 1;

const OWN: u64 = 1 << 30;
const TAIL: u64 = 1 << 31;
/// Words before the first entry.
pub(super) const HEADER: usize = 5;

/// The default of a node, by its meta word: [`NONE`] if there is none.
#[inline(always)]
pub(super) fn default(meta: u64) -> u32 {
    meta as u32 & NONE
}

/// Where the entry of `slot` is, in the node at word `at`.
#[inline(always)]
pub(super) fn find(words: View<'_>, at: usize, meta: u64, slot: u8) -> Option<usize> {
    let quarter = usize::from(slot >> 6);
    let map = words.word(at + 1 + quarter).load(Relaxed);
    let bit = 1 << (slot & 63);
    (map & bit != 0).then(|| {
        let before = (meta >> (32 + 8 * quarter)) as usize & 0xff;
        at + HEADER + before + (map & (bit - 1)).count_ones() as usize
    })
}

/// As [`find`]; word 0, which is always zero, if there is none.
#[inline(always)]
pub(super) fn find_or_nowhere(words: View<'_>, at: usize, meta: u64, slot: u8) -> usize {
    let quarter = usize::from(slot >> 6);
    let map = words.word(at + 1 + quarter).load(Relaxed);
    let bit = 1 << (slot & 63);
    let before = (meta >> (32 + 8 * quarter)) as usize & 0xff;
    let index = at + HEADER + before + (map & (bit - 1)).count_ones() as usize;
    if map & bit == 0 { 0 } else { index }
}

/// Whether the node has prefixes that cover slots.
#[inline(always)]
pub(super) fn has_tail(meta: u64) -> bool {
    meta & TAIL != 0
}

/// What the prefixes in the node say about `slot`: [`NONE`] if none covers it.
#[inline]
pub(super) fn cover(words: View<'_>, at: usize, meta: u64, slot: u8) -> u32 {
    if has_tail(meta) { run(words, tail(words, at, meta), slot) } else { NONE }
}

/// Where the tail of the node is.
#[inline(always)]
pub(super) fn tail(words: View<'_>, at: usize, meta: u64) -> usize {
    at + HEADER + entries(words, at, meta)
}

/// What the tail says about `slot`: [`NONE`] if no prefix covers it.
#[inline(always)]
pub(super) fn run(words: View<'_>, tail: usize, slot: u8) -> u32 {
    let quarter = usize::from(slot >> 6);
    let starts = words.word(tail + quarter).load(Relaxed) << (63 - (slot & 63));
    let before = (words.word(tail + 4).load(Relaxed) >> (32 + 8 * quarter)) as usize & 0xff;
    let run = before + starts.count_ones() as usize;
    (words.word(tail + 5 + run / 2).load(Relaxed) >> (32 * (run & 1))) as u32
}

/// How many entries the node has.
fn entries(words: View<'_>, at: usize, meta: u64) -> usize {
    (meta >> 56) as usize + words.word(at + 4).load(Relaxed).count_ones() as usize
}

/// A node as the control thread changes it.
pub(super) struct Node {
    pub(super) default: u32,
    /// Whether the default is a prefix of the node, or else what its parent says.
    pub(super) own: bool,
    map: [u64; 4],
    pub(super) entries: ArrayVec<u64, 256>,
    /// 1 and the prefix's bits behind it (so that shorter ones come first), and its leaf; sorted.
    pub(super) prefixes: ArrayVec<(u8, u32), 256>,
}

impl Node {
    pub(super) fn new(default: u32) -> Self {
        Self {
            default,
            own: false,
            map: [0; 4],
            entries: ArrayVec::new_const(),
            prefixes: ArrayVec::new_const(),
        }
    }

    /// Reads the node at word `at`.
    pub(super) fn read(words: &Words, at: usize) -> Self {
        let meta = words.word(at).load(Relaxed);
        let mut node = Self::new(default(meta));
        node.own = meta & OWN != 0;
        node.map = std::array::from_fn(|quarter| words.word(at + 1 + quarter).load(Relaxed));
        let tail = tail(words.view(), at, meta);
        node.entries.extend((at + HEADER..tail).map(|index| words.word(index).load(Relaxed)));
        if meta & TAIL != 0 {
            let counts = words.word(tail + 4).load(Relaxed);
            let prefixes = tail + 5 + (counts as usize & 0xffff).div_ceil(2);
            let count = counts as usize >> 16 & 0xffff;
            node.prefixes.extend((prefixes..prefixes + count).map(|index| {
                let word = words.word(index).load(Relaxed);
                ((word >> 32) as u8, word as u32)
            }));
        }
        node
    }

    /// Words of the node at word `at`.
    pub(super) fn size(words: &Words, at: usize) -> usize {
        let meta = words.word(at).load(Relaxed);
        let entries = HEADER + entries(words.view(), at, meta);
        if meta & TAIL == 0 {
            return entries;
        }
        let counts = words.word(at + entries + 4).load(Relaxed) as usize;
        entries + 5 + (counts & 0xffff).div_ceil(2) + (counts >> 16 & 0xffff)
    }

    /// Writes the node into a new block.
    pub(super) fn write(&self, arena: &mut Arena) -> Block {
        let (starts, leaves) = if self.prefixes.is_empty() { ([0; 4], ArrayVec::new()) } else { self.runs() };
        let tail =
            if self.prefixes.is_empty() { 0 } else { 5 + leaves.len().div_ceil(2) + self.prefixes.len() };
        let block = arena.allocate(HEADER + self.entries.len() + tail);
        let words = arena.words();
        let mut next = block as usize * UNIT;
        let mut put = |word: u64| {
            words.word(next).store(word, Relaxed);
            next += 1;
        };
        let flags = if self.own { OWN } else { 0 } | if tail > 0 { TAIL } else { 0 };
        put(counts(&self.map) | flags | u64::from(self.default));
        self.map.iter().for_each(|word| put(*word));
        self.entries.iter().for_each(|entry| put(*entry));
        if tail > 0 {
            starts.iter().for_each(|word| put(*word));
            put(counts(&starts) | (self.prefixes.len() as u64) << 16 | leaves.len() as u64);
            for pair in leaves.chunks(2) {
                put(u64::from(pair[0]) | u64::from(pair.get(1).copied().unwrap_or(NONE)) << 32);
            }
            for (code, leaf) in &self.prefixes {
                put(u64::from(*code) << 32 | u64::from(*leaf));
            }
        }
        block
    }

    /// What the prefixes say about each slot.
    pub(super) fn paint(&self) -> [u32; 256] {
        let mut slots = [NONE; 256];
        for (code, leaf) in &self.prefixes {
            let spare = code.leading_zeros() + 1;
            let first = usize::from(*code) << spare & 0xff;
            slots[first..first + (1 << spare)].fill(*leaf);
        }
        slots
    }

    fn runs(&self) -> ([u64; 4], ArrayVec<u32, 256>) {
        let slots = self.paint();
        let mut starts = [0; 4];
        let mut leaves = ArrayVec::new();
        leaves.push(slots[0]);
        for slot in 1..256 {
            if slots[slot] != slots[slot - 1] {
                starts[slot / 64] |= 1 << (slot % 64);
                leaves.push(slots[slot]);
            }
        }
        (starts, leaves)
    }

    fn rank(&self, slot: u8) -> usize {
        let quarter = usize::from(slot >> 6);
        let below = self.map[quarter] & ((1 << (slot & 63)) - 1);
        self.map[..quarter].iter().map(|word| word.count_ones() as usize).sum::<usize>()
            + below.count_ones() as usize
    }

    /// Gives an empty slot an entry.
    pub(super) fn insert_entry(&mut self, slot: u8, entry: Entry) {
        self.entries.insert(self.rank(slot), entry.0);
        self.map[usize::from(slot >> 6)] |= 1 << (slot & 63);
    }

    /// Takes the entry of a slot that has one.
    pub(super) fn remove_entry(&mut self, slot: u8) {
        self.entries.remove(self.rank(slot));
        self.map[usize::from(slot >> 6)] &= !(1 << (slot & 63));
    }

    /// Gives a prefix a leaf, or takes it, and returns the one it had.
    pub(super) fn set_prefix(&mut self, code: u8, leaf: Option<u32>) -> Option<u32> {
        match (self.prefixes.binary_search_by_key(&code, |(code, _)| *code), leaf) {
            (Ok(index), Some(leaf)) => Some(std::mem::replace(&mut self.prefixes[index].1, leaf)),
            (Ok(index), None) => Some(self.prefixes.remove(index).1),
            (Err(index), Some(leaf)) => {
                self.prefixes.insert(index, (code, leaf));
                None
            }
            (Err(_), None) => None,
        }
    }

    /// The leaf of a prefix.
    pub(super) fn prefix(&self, code: u8) -> Option<u32> {
        let index = self.prefixes.binary_search_by_key(&code, |(code, _)| *code).ok()?;
        Some(self.prefixes[index].1)
    }

    /// The slots that have an entry.
    pub(super) fn slots(&self) -> impl Iterator<Item = u8> {
        (0..=255).filter(|slot: &u8| self.map[usize::from(slot >> 6)] >> (slot & 63) & 1 != 0)
    }

    /// How many prefixes, leaves and children the node has.
    pub(super) fn things(&self) -> usize {
        usize::from(self.own) + self.entries.len() + self.prefixes.len()
    }
}

/// How many bits are set before each of the words, a byte each, above bit 32.
fn counts(map: &[u64; 4]) -> u64 {
    let [first, second, third, _] = map.map(|word| u64::from(word.count_ones()));
    first << 40 | (first + second) << 48 | (first + second + third) << 56
}

/// Sets the prefix of `base` bits of the node at `at` in place: `Some`, its own leaf; `None`, none,
/// and `inherited` shows. Returns the own leaf it had.
pub(super) fn set_own(words: &Words, at: usize, leaf: Option<u32>, inherited: u32) -> Option<u32> {
    let meta = words.word(at).load(Relaxed);
    let value = leaf.map_or(u64::from(inherited), |leaf| OWN | u64::from(leaf));
    words.word(at).store(meta & !(OWN | u64::from(NONE)) | value, Release);
    own(meta)
}

/// The node's own leaf.
pub(super) fn own(meta: u64) -> Option<u32> {
    (meta & OWN != 0).then(|| default(meta))
}

/// Sets what a node without a leaf of its own inherits, if `entry` is such a node.
pub(super) fn inherit(words: &Words, entry: Entry, inherited: u32) {
    if entry.kind() == Kind::Node {
        let at = entry.value() as usize * UNIT;
        let meta = words.word(at).load(Acquire);
        if meta & OWN == 0 {
            words.word(at).store(meta & !u64::from(NONE) | u64::from(inherited), Release);
        }
    }
}
