//! What a slot of a trie holds, in one word, so that it changes in one store.
//!
//! ```text
//!       63          40 39                    8 7    2 1    0
//! leaf |  suffix bits (32) |    mark (24)     |  len | kind |
//! else |  suffix (24)  |   word in the arena  |  len | kind |
//! ```
//!
//! An address matches if its next `len` bits are the suffix bits. A mark, which is a leaf + 1 or 0 for
//! none, then ends the search; a node is entered with the bits behind them; a record holds a prefix whose
//! suffix is too long for the word and is compared itself. All zeros say that nothing is here.

use super::arena::{Block, UNIT};

/// Most suffix bits of a leaf's entry: an IPv6 prefix of 48 bits is one of the root's.
pub(super) const MOST: u8 = 32;

/// The mark that stands for no leaf.
pub(super) const NONE: u32 = 0;

/// A slot's word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Entry(pub(super) u64);

/// What an entry leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// One prefix, with this mark; or none, if it is 0.
    Leaf = 0,
    /// A node, behind 0, 8, 16 or 24 bits.
    Node = 1,
    /// One prefix, with this record.
    Record = 2,
}

impl Entry {
    pub(super) const EMPTY: Self = Self(0);

    /// An entry with a mark, or with a node or record in a block. `window` is the address from the first
    /// suffix bit on, left-aligned; `len` at most [`MOST`], or 24 where there is a block.
    pub(super) fn new(kind: Kind, value: u32, window: u64, len: u8) -> Self {
        let suffix = if len == 0 { 0 } else { window >> (64 - len) << (64 - len) };
        let value = if kind == Kind::Leaf { u64::from(value) } else { u64::from(value) * UNIT as u64 };
        Self(suffix | value << 8 | u64::from(len) << 2 | kind as u64)
    }

    #[inline(always)]
    pub(super) fn kind(self) -> Kind {
        match self.0 & 3 {
            0 => Kind::Leaf,
            1 => Kind::Node,
            _ => Kind::Record,
        }
    }

    /// Whether the search ends here for an address that goes on with `window`.
    #[inline(always)]
    pub(super) fn ends(self, window: u64) -> bool {
        self.differs(window) | (self.0 & 3) ^ Kind::Leaf as u64 == 0
    }

    /// Whether the entry leads an address that goes on with `window` to a node.
    #[inline(always)]
    pub(super) fn leads_on(self, window: u64) -> bool {
        self.differs(window) | (self.0 & 3) ^ Kind::Node as u64 == 0
    }

    /// The mark of a leaf.
    #[inline(always)]
    pub(super) fn mark(self) -> u32 {
        self.0 as u32 >> 8
    }

    /// The first word of the node or record.
    #[inline(always)]
    pub(super) fn at(self) -> usize {
        (self.0 >> 8) as u32 as usize
    }

    /// The block of the node or record.
    pub(super) fn block(self) -> Block {
        (self.at() / UNIT) as Block
    }

    /// How many suffix bits there are.
    #[inline(always)]
    pub(super) fn len(self) -> u8 {
        self.0 as u8 >> 2
    }

    /// Whether the address goes on with the suffix bits. `window` is the address from there on,
    /// left-aligned.
    #[inline(always)]
    pub(super) fn matches(self, window: u64) -> bool {
        self.differs(window) == 0
    }

    /// The suffix bits in which the address differs.
    #[inline(always)]
    fn differs(self, window: u64) -> u64 {
        // The suffix is at the top of both words; what stands below it is shifted out, and for an empty
        // suffix everything.
        (self.0 ^ window) >> 1 >> (63 - self.len())
    }

    /// How many of the next bits of the address, at most the suffix's, equal the suffix's.
    pub(super) fn common(self, window: u64) -> u8 {
        ((self.0 ^ window).leading_zeros() as u8).min(self.len())
    }

    /// The suffix bits, left-aligned.
    pub(super) fn suffix(self) -> u64 {
        match self.len() {
            0 => 0,
            len => self.0 >> (64 - len) << (64 - len),
        }
    }
}
