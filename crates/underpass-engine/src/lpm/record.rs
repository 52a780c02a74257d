//! A prefix alone, of which all but what leads to it was too long for an entry.
//!
//! ```text
//! word 0..2   the prefix, left-aligned
//!      2      length << 32 | mark
//! ```

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use super::arena::{Arena, Block, UNIT, Words};
use super::entry::Entry;
use super::{Address, Mark};

/// Words of a record.
pub(super) const SIZE: usize = 4;

/// Writes one into a new block.
pub(super) fn write<A: Address>(arena: &mut Arena, prefix: A, len: u8, mark: Mark) -> Block {
    let (block, _) = arena.allocate(SIZE);
    let at = block as usize * UNIT;
    let [first, second] = prefix.halves();
    arena.words().word(at).store(first, Relaxed);
    arena.words().word(at + 1).store(second, Relaxed);
    arena.words().word(at + 2).store(u64::from(len) << 32 | u64::from(mark), Relaxed);
    block
}

/// Prefix, length and mark.
#[inline]
pub(super) fn read<A: Address>(words: &Words, entry: Entry) -> (A, u8, Mark) {
    let at = entry.at();
    let halves = [words.word(at).load(Relaxed), words.word(at + 1).load(Relaxed)];
    let last = words.word(at + 2).load(Acquire);
    (A::from_halves(halves), (last >> 32) as u8, last as Mark)
}

/// Gives the record that `entry` leads to another mark.
pub(super) fn set_mark(words: &Words, entry: Entry, mark: Mark) {
    let word = words.word(entry.at() + 2);
    word.store(word.load(Relaxed) >> 32 << 32 | u64::from(mark), Release);
}

/// How many bits two addresses have in common.
#[inline]
pub(super) fn common<A: Address>(one: A, other: A) -> u32 {
    let ([a, b], [c, d]) = (one.halves(), other.halves());
    if a == c { 64 + (b ^ d).leading_zeros() } else { (a ^ c).leading_zeros() }
}
