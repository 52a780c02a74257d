//! Nodes of a trie: eight bits of the address each.
//!
//! ```text
//! word  0..32  for each of the 256 slots, a byte: which entry is its
//!       32     meta
//!       33..   entries: the default, if a slot shows it; the prefixes in the node that slots show;
//!              those of single slots
//!       ..end  the prefixes in the node: 1 and the bits of each, its leaf
//!
//! meta   63        62..58         57..49     48..40   39..31    30    29..0
//!        default   size of the    prefixes   entries  entries   own   default
//!        is shown  block                     shared
//! ```
//!
//! A node at bit `base` owns the prefixes of `base` to `base + 7` bits that lead to it. That of `base`
//! bits is its default; a node without one inherits what its parent says about its slot, which is the
//! longest prefix in the parent, or else the parent's default. So what a slot shows is the longest
//! match among all shorter prefixes, but for the one of no bits, and a search can end anywhere.
//!
//! Leaves are marks here: leaf + 1, or 0 for none.
//!
//! In a node that readers know, entries are replaced and appended, and bytes changed; for all else it
//! is written anew.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use arrayvec::ArrayVec;

use super::arena::{Arena, Block, UNIT, View};
use super::entry::{Entry, Kind};

/// The bits of a mark.
const MARK: u64 = (1 << 30) - 1;

/// Which word of a node is meta.
pub(crate) const META: usize = 32;
/// Which word of a node is the first entry.
pub(crate) const ENTRIES: usize = 33;
/// Most entries: what a byte can name.
const MOST: usize = 256;

/// A meta word.
#[derive(Clone, Copy)]
struct Meta(u64);

impl Meta {
    const OWN: u64 = 1 << 30;
    const SHOWN: u64 = 1 << 63;

    fn read(words: View<'_>, at: usize) -> Self {
        Self(words.word(at + META).load(Acquire))
    }

    fn default(self) -> u32 {
        (self.0 & MARK) as u32
    }

    fn own(self) -> bool {
        self.0 & Self::OWN != 0
    }

    fn shown(self) -> bool {
        self.0 & Self::SHOWN != 0
    }

    fn entries(self) -> usize {
        (self.0 >> 31) as usize & 0x1ff
    }

    fn shared(self) -> usize {
        (self.0 >> 40) as usize & 0x1ff
    }

    fn prefixes(self) -> usize {
        (self.0 >> 49) as usize & 0x1ff
    }

    fn size(self) -> usize {
        Arena::size_of_class((self.0 >> 58) as usize & 0x1f)
    }
}

/// The entry that says nothing but this mark.
fn plain(mark: u32) -> Entry {
    Entry::new(Kind::Leaf, mark, 0, 0)
}

/// Where the byte of `slot` is, for a prefetch.
#[inline(always)]
pub(super) fn index(at: usize, slot: u8) -> usize {
    at + usize::from(slot >> 3)
}

/// Where the entry of `slot` is, in the node at word `at`.
#[inline(always)]
pub(super) fn find(words: View<'_>, at: usize, slot: u8) -> usize {
    let bytes = words.word(index(at, slot)).load(Acquire);
    at + ENTRIES + usize::from((bytes >> (8 * (slot & 7))) as u8)
}

/// What a slot shows besides its own entry: 0 if no prefix covers it.
pub(super) fn cover(words: View<'_>, at: usize, slot: u8) -> u32 {
    let meta = Meta::read(words, at);
    let end = at + meta.size();
    for index in (end - meta.prefixes()..end).rev() {
        let word = words.word(index).load(Relaxed);
        let code = (word >> 32) as u8;
        if (0x100 | u32::from(slot)) >> (code.leading_zeros() + 1) == u32::from(code) {
            return word as u32;
        }
    }
    meta.default()
}

/// Whether a slot has an entry of its own.
pub(super) fn has_own_entry(words: View<'_>, at: usize, slot: u8) -> bool {
    find(words, at, slot) >= at + ENTRIES + Meta::read(words, at).shared()
}

/// The leaf of the prefix in the node that this code names.
pub(super) fn prefix(words: View<'_>, at: usize, code: u8) -> Option<u32> {
    let meta = Meta::read(words, at);
    if code == 1 {
        return meta.own().then(|| meta.default());
    }
    let end = at + meta.size();
    (end - meta.prefixes()..end)
        .map(|index| words.word(index).load(Relaxed))
        .find_map(|word| ((word >> 32) as u8 == code).then_some(word as u32))
}

/// Words of the block of the node at word `at`.
pub(super) fn size(words: View<'_>, at: usize) -> usize {
    Meta::read(words, at).size()
}

/// The entries of single slots of the node at word `at`.
pub(super) fn single_entries(words: View<'_>, at: usize) -> impl Iterator<Item = Entry> {
    let meta = Meta::read(words, at);
    (meta.shared()..meta.entries()).map(move |n| Entry(words.word(at + ENTRIES + n).load(Relaxed)))
}

/// Gives a slot that has none an entry of its own in place. `false` if the block is full.
pub(super) fn append(words: View<'_>, at: usize, slot: u8, entry: Entry) -> bool {
    let meta = Meta::read(words, at);
    let n = meta.entries();
    if n == MOST || ENTRIES + n + meta.prefixes() == meta.size() {
        return false;
    }
    words.word(at + ENTRIES + n).store(entry.0, Relaxed);
    words.word(at + META).store(meta.0 + (1 << 31), Relaxed);
    let bytes = words.word(index(at, slot));
    let shift = 8 * (slot & 7);
    // Release: the entry before the byte that names it.
    bytes.store(bytes.load(Relaxed) & !(0xff << shift) | (n as u64) << shift, Release);
    true
}

/// Sets the node's own leaf in place, or what it inherits if it has none (`own` is false), and tells
/// the nodes below that inherit it in turn.
pub(super) fn set_default(words: View<'_>, at: usize, leaf: u32, own: bool) {
    let meta = Meta::read(words, at);
    let kept = meta.0 & !(Meta::OWN | MARK);
    let own = if own { Meta::OWN } else { 0 };
    words.word(at + META).store(kept | own | u64::from(leaf), Release);
    if meta.default() == leaf {
        return;
    }
    if meta.shown() {
        words.word(at + ENTRIES).store(plain(leaf).0, Release);
    }
    if meta.prefixes() == 0 {
        single_entries(words, at).for_each(|entry| inherit(words, entry, leaf));
    } else {
        let node = Node::read(words, at);
        node.pass_down(words, 1);
    }
}

/// Sets what a node without a leaf of its own inherits, if `entry` is such a node.
pub(super) fn inherit(words: View<'_>, entry: Entry, leaf: u32) {
    if entry.kind() == Kind::Node {
        let at = entry.at();
        let meta = Meta::read(words, at);
        if !meta.own() && meta.default() != leaf {
            set_default(words, at, leaf, false);
        }
    }
}

/// A node as the control thread changes it.
pub(super) struct Node {
    pub(super) default: u32,
    /// Whether the default is a prefix of the node, or else what its parent says.
    pub(super) own: bool,
    /// Slots with entries of their own, rising.
    pub(super) singles: ArrayVec<(u8, Entry), 256>,
    /// 1 and the prefix's bits behind it (so that shorter ones come first), and its leaf; sorted.
    pub(super) prefixes: ArrayVec<(u8, u32), 256>,
}

impl Node {
    pub(super) fn new(default: u32) -> Self {
        Self { default, own: false, singles: ArrayVec::new_const(), prefixes: ArrayVec::new_const() }
    }

    /// Reads the node at word `at`.
    pub(super) fn read(words: View<'_>, at: usize) -> Self {
        let meta = Meta::read(words, at);
        let mut node = Self::new(meta.default());
        node.own = meta.own();
        for first in (0..=255u8).step_by(8) {
            let bytes = words.word(index(at, first)).load(Relaxed).to_le_bytes();
            for (slot, entry) in (first..=first + 7).zip(bytes) {
                if usize::from(entry) >= meta.shared() {
                    let entry = words.word(at + ENTRIES + usize::from(entry)).load(Relaxed);
                    node.singles.push((slot, Entry(entry)));
                }
            }
        }
        let end = at + meta.size();
        node.prefixes.extend((end - meta.prefixes()..end).map(|index| {
            let word = words.word(index).load(Relaxed);
            ((word >> 32) as u8, word as u32)
        }));
        node
    }

    /// Writes the node into a new block.
    pub(super) fn write(&self, arena: &mut Arena) -> Block {
        // Which prefix each slot shows, counted from 1; 0 is the default.
        let mut slots = [0u8; 256];
        for (n, (code, _)) in (1..).zip(&self.prefixes) {
            let (first, count) = range(*code);
            slots[first..first + count].fill(n);
        }
        let mut single = [false; 256];
        self.singles.iter().for_each(|(slot, _)| single[usize::from(*slot)] = true);
        let mut shows = [false; 256];
        slots.iter().zip(single).for_each(|(prefix, single)| shows[usize::from(*prefix)] |= !single);
        // What is shown is given numbers; the entries of single slots follow.
        let mut entries = ArrayVec::<u64, 256>::new();
        let mut numbers = [0u8; 256];
        let leaves = std::iter::once(self.default).chain(self.prefixes.iter().map(|(_, leaf)| *leaf));
        for ((leaf, shown), number) in leaves.zip(shows).zip(&mut numbers) {
            if shown {
                *number = entries.len() as u8;
                entries.push(plain(leaf).0);
            }
        }
        let shared = entries.len();
        slots.iter_mut().for_each(|slot| *slot = numbers[usize::from(*slot)]);
        for (slot, entry) in &self.singles {
            slots[usize::from(*slot)] = entries.len() as u8;
            entries.push(entry.0);
        }

        let prefixes = self.prefixes.len();
        let (block, class) = arena.allocate(ENTRIES + entries.len() + prefixes);
        let (words, at) = (arena.words().view(), block as usize * UNIT);
        for (index, bytes) in (at..).zip(slots.as_chunks::<8>().0) {
            words.word(index).store(u64::from_le_bytes(*bytes), Relaxed);
        }
        let meta = if shows[0] { Meta::SHOWN } else { 0 }
            | (class as u64) << 58
            | (prefixes as u64) << 49
            | (shared as u64) << 40
            | (entries.len() as u64) << 31
            | if self.own { Meta::OWN } else { 0 }
            | u64::from(self.default);
        words.word(at + META).store(meta, Relaxed);
        for (index, entry) in (at + ENTRIES..).zip(entries) {
            words.word(index).store(entry, Relaxed);
        }
        let end = at + Arena::size_of_class(class);
        for (index, (code, leaf)) in (end - prefixes..).zip(&self.prefixes) {
            words.word(index).store(u64::from(*code) << 32 | u64::from(*leaf), Relaxed);
        }
        block
    }

    /// Tells the children that the prefix of this code, or the default for 1, has changed.
    pub(super) fn pass_down(&self, words: View<'_>, code: u8) {
        let mut covers = [self.default; 256];
        for (code, leaf) in &self.prefixes {
            let (first, count) = range(*code);
            covers[first..first + count].fill(*leaf);
        }
        let (first, count) = range(code);
        for (slot, entry) in &self.singles {
            let slot = usize::from(*slot);
            if (first..first + count).contains(&slot) {
                inherit(words, *entry, covers[slot]);
            }
        }
    }

    /// Gives a slot that has none an entry of its own.
    pub(super) fn insert_single(&mut self, slot: u8, entry: Entry) {
        if let Err(index) = self.singles.binary_search_by_key(&slot, |(slot, _)| *slot) {
            self.singles.insert(index, (slot, entry));
        }
    }

    /// Takes the entry of a slot.
    pub(super) fn remove_single(&mut self, slot: u8) {
        if let Ok(index) = self.singles.binary_search_by_key(&slot, |(slot, _)| *slot) {
            self.singles.remove(index);
        }
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

    /// How many prefixes, leaves and children the node has.
    pub(super) fn things(&self) -> usize {
        usize::from(self.own) + self.singles.len() + self.prefixes.len()
    }
}

/// The first slot of a prefix, and how many it covers.
fn range(code: u8) -> (usize, usize) {
    let spare = code.leading_zeros() + 1;
    (usize::from(code) << spare & 0xff, 1 << spare)
}

/// How many things the node at word `at` has, as [`Node::things`] says.
pub(super) fn things(words: View<'_>, at: usize) -> usize {
    let meta = Meta::read(words, at);
    usize::from(meta.own()) + meta.entries() - meta.shared() + meta.prefixes()
}
