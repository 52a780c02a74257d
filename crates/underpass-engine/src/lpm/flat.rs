//! The answers of a large table of IPv4, laid out flat: one for each 24 bits of the address.
//!
//! ```text
//! 15      14..0
//! deep    mark: leaf + 1, or 0 for none
//! ```
//!
//! It is computed from the trie, wherever that changes. Where a prefix is longer than 24 bits or a mark
//! longer than 15, the slot is deep and the trie is asked.

use std::sync::OnceLock;
use std::sync::atomic::{
    AtomicBool, AtomicU16, AtomicU32,
    Ordering::{Relaxed, Release},
};

use super::arena::{Pages, Words};
use super::entry::{Entry, Kind, NONE};
use super::{Address, Lpm, Mark, ROOT, node};

/// Bits of the address that are a slot.
const BITS: u8 = 24;

/// How many routes a table has before it is laid out flat.
const WORTH: u32 = 1 << 16;

/// What a deep slot says.
pub(super) const DEEP: u16 = 1 << 15;

/// The slots of a table.
#[derive(Default)]
pub(super) struct Flat {
    slots: OnceLock<Words<AtomicU16>>,
    /// Routes that were added with a mark that is too long.
    wide: AtomicU32,
    /// So many routes are wide that it is better to ask the trie at once.
    useless: AtomicBool,
}

impl Flat {
    /// The slots, if they are there and worth reading.
    #[inline(always)]
    pub(super) fn slots(&self) -> Option<&Words<AtomicU16>> {
        self.slots.get().filter(|_| !self.useless.load(Relaxed))
    }
}

/// The slot of an address.
#[inline(always)]
pub(super) fn slot<A: Address>(address: A) -> usize {
    (address.window(0) >> (64 - BITS)) as usize
}

impl<A: Address> Lpm<A> {
    /// Whether the table is so large that it is laid out flat. [`Self::prefetch`] then fetches the one
    /// word that a look-up in a burst reads.
    #[inline]
    pub fn is_flat(&self) -> bool {
        self.flat.slots().is_some()
    }

    /// Asks for the memory that [`Self::lookup_batch`] reads first for this address.
    #[inline]
    pub fn prefetch(&self, address: A) {
        match self.flat.slots() {
            Some(slots) => slots.view().prefetch(slot(address)),
            None => self.root.view().prefetch((address.window(0) >> (64 - ROOT)) as usize),
        }
    }

    /// Brings the slots up to date after a change of the prefix of `len` bits, to `mark` or to none.
    pub(super) fn refresh_flat(&self, address: A, len: u8, mark: Mark) {
        if A::BITS != u32::BITS as u8 || len == 0 {
            return;
        }
        if mark >= DEEP.into() {
            let wide = self.flat.wide.load(Relaxed).saturating_add(1);
            self.flat.wide.store(wide, Relaxed);
            if wide > self.len() as u32 / 8 + WORTH / 8 {
                self.flat.useless.store(true, Relaxed);
            }
        }
        if self.flat.slots().is_some() {
            self.refresh_slots(address, len.min(BITS));
        } else if self.len() as u32 >= WORTH && self.flat.slots.get().is_none() {
            self.lay_out_flat();
        }
    }

    /// Lays the table out flat from now on.
    pub(super) fn lay_out_flat(&self) {
        let slots = Words::exactly(BITS.into(), Pages::Huge);
        for first in 0..1 << ROOT {
            self.refresh_root_slot(&slots, first, 0..1 << (BITS - ROOT));
        }
        // Changes and this are of one thread, so none is missed.
        let _ = self.flat.slots.set(slots);
    }

    /// Brings the slots below a prefix of at most [`BITS`] bits up to date.
    fn refresh_slots(&self, address: A, len: u8) {
        let Some(slots) = self.flat.slots() else { return };
        let first = slot(address.with_window(len, 0));
        let count = 1 << (BITS - len);
        let below = 1 << (BITS - ROOT);
        for root in first / below..(first + count).div_ceil(below) {
            let start = first.max(root * below) - root * below;
            self.refresh_root_slot(slots, root, start..(start + count).min(below));
        }
    }

    /// Computes some of the 256 slots below a slot of the root.
    fn refresh_root_slot(&self, slots: &Words<AtomicU16>, root: usize, below: std::ops::Range<usize>) {
        let entry = Entry(self.root.word(root).load(Relaxed));
        let cover = answer(self.root_cover(root));
        let len = u32::from(entry.len());
        for n in below {
            // The bits of the slot behind the root's, left-aligned.
            let window = (n as u64) << 56;
            let value = match entry.kind() {
                Kind::Node if len == 0 => {
                    let index = node::find(self.arena.view(), entry.at(), n as u8);
                    let entry = Entry(self.arena.word(index).load(Relaxed));
                    if entry.kind() == Kind::Leaf && entry.len() == 0 { answer(entry.mark()) } else { DEEP }
                }
                // Something is below the slot if the suffix goes on with its eight bits.
                _ if len > 8 && entry.suffix() >> 56 == n as u64 => DEEP,
                Kind::Node if len == 8 && entry.suffix() >> 56 == n as u64 => DEEP,
                Kind::Leaf if entry != Entry::EMPTY && len <= 8 && entry.matches(window) => {
                    answer(entry.mark())
                }
                Kind::Record => DEEP,
                _ => cover,
            };
            let word = slots.word(root << (BITS - ROOT) | n);
            if word.load(Relaxed) != value {
                word.store(value, Release);
            }
        }
    }
}

/// What a slot says that shows this mark.
fn answer(mark: Mark) -> u16 {
    const { assert!(NONE == 0) };
    u16::try_from(mark).unwrap_or(DEEP).min(DEEP)
}
