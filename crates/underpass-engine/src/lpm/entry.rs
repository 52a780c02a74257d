//! What a slot of a trie holds, in one word, so that it changes in one store.
//!
//! ```text
//!  63             37 36   32 31  30 29                       0
//! |  suffix bits    |  len  | kind |  leaf, node or record    |
//! ```
//!
//! An address matches if its next `len` bits are the suffix bits. A leaf then ends the search; a node
//! is entered with the bits behind them; a record holds a prefix whose suffix is too long for the word
//! and is compared itself.

use super::arena::Block;

/// Most suffix bits of an entry.
pub(super) const MOST: u8 = 27;

/// A slot's word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Entry(pub(super) u64);

/// What an entry leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// Nothing is here.
    Empty = 0,
    /// One prefix, with this leaf.
    Leaf = 1,
    /// A node, behind 0, 8, 16 or 24 bits.
    Node = 2,
    /// One prefix, with this record.
    Record = 3,
}

impl Entry {
    pub(super) const EMPTY: Self = Self(0);

    /// `window` is the address from the first suffix bit on, left-aligned.
    pub(super) fn new(kind: Kind, value: u32, window: u64, len: u8) -> Self {
        let suffix = if len == 0 { 0 } else { window >> (64 - len) << (64 - len) };
        Self(suffix | u64::from(len) << 32 | (kind as u64) << 30 | u64::from(value))
    }

    #[inline(always)]
    pub(super) fn kind(self) -> Kind {
        match self.0 >> 30 & 3 {
            0 => Kind::Empty,
            1 => Kind::Leaf,
            2 => Kind::Node,
            _ => Kind::Record,
        }
    }

    /// Whether it ends the search.
    #[inline(always)]
    pub(super) fn is_leaf(self) -> bool {
        self.0 >> 30 & 3 == Kind::Leaf as u64
    }

    /// Whether it is not empty.
    #[inline(always)]
    pub(super) fn is_there(self) -> bool {
        self.0 >> 30 & 3 != Kind::Empty as u64
    }

    /// Whether a node comes next.
    #[inline(always)]
    pub(super) fn is_node(self) -> bool {
        self.0 >> 30 & 3 == Kind::Node as u64
    }

    /// The leaf, node or record.
    #[inline(always)]
    pub(super) fn value(self) -> Block {
        self.0 as u32 & 0x3fff_ffff
    }

    /// How many suffix bits there are.
    #[inline(always)]
    pub(super) fn len(self) -> u8 {
        (self.0 >> 32) as u8 & 31
    }

    /// Whether the address goes on with the suffix bits. `window` is the address from there on,
    /// left-aligned.
    #[inline(always)]
    pub(super) fn matches(self, window: u64) -> bool {
        // The suffix is at the top of both words; what stands below it is shifted out, and for an empty
        // suffix everything.
        (self.0 ^ window) >> 1 >> (63 - self.len()) == 0
    }

    /// How many of the next bits of the address, at most the suffix's, equal the suffix's.
    pub(super) fn common(self, window: u64) -> u8 {
        ((self.0 ^ window).leading_zeros() as u8).min(self.len())
    }

    /// The suffix bits, left-aligned.
    pub(super) fn suffix(self) -> u64 {
        self.0 >> 37 << 37
    }
}
