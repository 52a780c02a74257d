//! The answers of a table of IPv4, laid out flat: a slot for each 24 bits of the address, and marks behind those of which
//! the addresses have different ones.
//!
//! ```text
//! slot    15      14..0
//!         0       mark: leaf + 1, or 0 for none
//!         1       number of an entry; the last one has none: the trie is consulted, as for a mark that is too long
//! entry   30..29        28..0
//!         coarseness/2  block
//! ```
//!
//! A block has the mark of each address, or of each 4, 16 or 64, two in a word. All of it is computed from the trie,
//! wherever that changes.

use std::collections::BTreeSet;
use std::hint::select_unpredictable as select;
use std::ops::Range;
use std::sync::atomic::{
    AtomicBool, AtomicU16, AtomicU32,
    Ordering::{Acquire, Relaxed, Release},
};
use std::sync::{Mutex, OnceLock, PoisonError};

use super::arena::{Block, Pages, UNIT, Words};
use super::batch::LANES;
use super::entry::{Entry, Kind, NONE};
use super::{Address, Edit, FLAT, Lpm, Mark, ROOT, node};
use crate::in_kernel::region::Region;
use crate::publish::Ids;

/// Bits of the address that are a slot.
const BITS: u8 = 24;

/// How many routes a table has before what lies below its root is laid out flat.
const WORTH: u32 = 1 << 3;
/// How many it has before all is, which is then asked before the root. That is enough for most addresses of a smaller table,
/// of which a short prefix would take megabytes here.
const DIRECT: u32 = 1 << 8;
/// How many it has before that is worth huge pages, and a copy for programs in the kernel.
const LARGE: u32 = 1 << 16;

/// Addresses of a slot, and slots below one of the root.
const BELOW: usize = 1 << (32 - BITS);
const BELOW_ROOT: usize = 1 << (BITS - ROOT);

/// In a slot: an entry has the marks.
pub(crate) const DEEP: u16 = 1 << 15;
/// The number that no entry has.
const IN_TRIE: u16 = DEEP - 1;

/// What a table says, laid out flat.
pub(crate) struct Layout {
    slots: Words<AtomicU16>,
    entries: Words<AtomicU32>,
    /// Numbers of entries, for the control thread.
    numbers: Mutex<Ids>,
    /// How many slots send to the trie.
    in_trie: AtomicU32,
    /// Whether all slots are written. Else 0 says nothing, and only slots below those of the root in `roots` are.
    whole: AtomicBool,
    roots: Mutex<BTreeSet<usize>>,
    /// The same for programs in the kernel, whose memory has no huge pages.
    in_kernel: OnceLock<(Words<AtomicU16>, Words<AtomicU32>)>,
}

impl Layout {
    fn new() -> Self {
        Self {
            slots: Words::exactly(BITS.into(), Pages::Small),
            entries: Words::exactly(DEEP.trailing_zeros(), Pages::Small),
            numbers: Mutex::new(Ids::new(IN_TRIE.into())),
            in_trie: AtomicU32::new(0),
            whole: AtomicBool::new(false),
            roots: Mutex::default(),
            in_kernel: OnceLock::new(),
        }
    }

    /// Says something else of a slot.
    fn set_slot(&self, n: usize, slot: u16) {
        self.slots.word(n).store(slot, Release);
        if let Some((slots, _)) = self.in_kernel.get() {
            slots.word(n).store(slot, Release);
        }
    }

    /// Says something else of an entry, by its number.
    fn set_entry(&self, number: usize, entry: Deep) {
        self.entries.word(number).store(entry.0, Release);
        if let Some((_, entries)) = self.in_kernel.get() {
            entries.word(number).store(entry.0, Release);
        }
    }

    /// Makes the copy for programs, if the region has room: where its slots begin, and its entries.
    fn copy_to_kernel(&self, region: &Region) -> Option<(u32, u32)> {
        let slots: Words<AtomicU16> = Words::within(region, BITS.into())?;
        let entries: Words<AtomicU32> = Words::within(region, DEEP.trailing_zeros())?;
        for n in 0..entries.len() {
            entries.word(n).store(self.entries.word(n).load(Relaxed), Relaxed);
        }
        // All of them, so that a program meets no memory that is not there yet.
        for n in 0..slots.len() {
            slots.word(n).store(self.slots.word(n).load(Relaxed), Relaxed);
        }
        let (slots, entries) = self.in_kernel.get_or_init(|| (slots, entries));
        Some((slots.offset(), entries.offset()))
    }

    /// The entry of a slot, if it has one.
    fn entry(&self, slot: u16) -> Option<Deep> {
        let entry = Deep(self.entries.word((slot & IN_TRIE).into()).load(Relaxed));
        (slot & DEEP != 0 && entry != Deep::NONE).then_some(entry)
    }
}

/// The layout of a table, from when it is worth it.
#[derive(Default)]
pub(super) struct Flat(OnceLock<Box<Layout>>);

/// An entry: where the marks of a slot are.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Deep(u32);

impl Deep {
    const NONE: Self = Self(0);

    /// A block has the mark of each 2^`coarse` addresses, which is even and at most 6.
    fn new(coarse: u32, block: Block) -> Self {
        Self(coarse << 28 | block)
    }

    /// 2 to this power of addresses have a mark in common.
    #[inline(always)]
    fn coarse(self) -> u32 {
        self.0 >> 28 & 6
    }

    #[inline(always)]
    fn block(self) -> Block {
        self.0 & ((1 << 29) - 1)
    }

    /// Words of the block.
    fn words(self) -> usize {
        words(self.coarse())
    }

    /// Where the mark of an address is, by its last byte: the word, and how far to the left in it.
    #[inline(always)]
    fn place(self, last: u8) -> (usize, u32) {
        let n = u32::from(last) >> self.coarse();
        (self.block() as usize * UNIT + (n / 2) as usize, n % 2 * 32)
    }
}

/// Words of a block with a mark for each 2^`coarse` addresses.
const fn words(coarse: u32) -> usize {
    BELOW >> coarse >> 1
}

/// The slot of an address.
#[inline(always)]
fn slot<A: Address>(address: A) -> usize {
    (address.window(0) >> (64 - BITS)) as usize
}

/// The byte of an address behind its slot.
#[inline(always)]
fn last<A: Address>(address: A) -> u8 {
    (address.window(BITS) >> 56) as u8
}

impl Layout {
    /// Prefetches what [`Self::leaf`] reads first.
    #[inline(always)]
    pub(crate) fn prefetch<A: Address>(&self, address: A) {
        self.slots.view().prefetch(slot(address));
    }

    /// The leaf of the longest prefix of the table that covers an address.
    #[inline(always)]
    pub(crate) fn leaf<A: Address>(&self, table: &Lpm<A>, address: A) -> Option<u32> {
        let mark = self.mark(table, address);
        select(mark == NONE, table.default(), mark).checked_sub(1)
    }

    /// Its mark; that of the default only where the trie is consulted.
    #[inline(always)]
    pub(super) fn mark<A: Address>(&self, table: &Lpm<A>, address: A) -> Mark {
        let slot = self.slot(address);
        if slot & DEEP == 0 { slot.into() } else { self.below(table, slot, address) }
    }

    #[inline(always)]
    fn slot<A: Address>(&self, address: A) -> u16 {
        // Acquire: an entry before the slot that names it.
        self.slots.word(slot(address)).load(Acquire)
    }

    /// What the entry of a slot says of an address.
    #[inline(always)]
    fn below<A: Address>(&self, table: &Lpm<A>, slot: u16, address: A) -> Mark {
        // Acquire: a block's content before the entry that names it.
        let entry = Deep(self.entries.word((slot & IN_TRIE).into()).load(Acquire));
        if entry == Deep::NONE {
            return look_up(table, address);
        }
        let (word, shift) = entry.place(last(address));
        (table.arena.word(word).load(Relaxed) >> shift) as Mark
    }

    /// As [`Lpm::lookup_batch`], for at most [`LANES`] addresses.
    #[inline(always)]
    pub(super) fn leaves<A: Address>(&self, table: &Lpm<A>, addresses: &[A], leaves: &mut [u32]) {
        addresses.iter().for_each(|address| self.prefetch(*address));
        let default = table.default();
        let mut deep = [0u8; LANES];
        let mut count = 0;
        for (n, (address, leaf)) in addresses.iter().zip(leaves.iter_mut()).enumerate() {
            let slot = self.slot(*address);
            *leaf = select(slot == 0, default, slot.into()).wrapping_sub(1);
            deep[count % LANES] = n as u8;
            count += usize::from(slot & DEEP != 0);
        }
        for n in deep.iter().take(count).map(|n| usize::from(*n)) {
            if let (Some(address), Some(leaf)) = (addresses.get(n), leaves.get_mut(n)) {
                let mark = self.below(table, leaf.wrapping_add(1) as u16, *address);
                *leaf = select(mark == NONE, default, mark).wrapping_sub(1);
            }
        }
    }
}

#[cold]
fn look_up<A: Address>(table: &Lpm<A>, address: A) -> Mark {
    // As deep as it goes, and not back to here.
    table.longest_by::<true>(address)
}

impl<A: Address> Lpm<A> {
    /// The answers, if they are laid out and most of them are there; of a small table those alone that the root has not.
    #[inline(always)]
    pub(crate) fn layout(&self) -> Option<&Layout> {
        if A::BITS != u32::BITS as u8 {
            return None;
        }
        let layout = self.flat.0.get()?;
        let useful = layout.in_trie.load(Relaxed) <= u32::from(DEEP) / 4 + self.len() as u32 / 8;
        useful.then_some(layout)
    }

    /// The same if all of them are there, which are asked before the root is.
    #[inline(always)]
    pub(crate) fn whole_layout(&self) -> Option<&Layout> {
        // Acquire: the slots before what says that they are written.
        self.layout().filter(|layout| layout.whole.load(Acquire))
    }

    /// The blocks that slots have, with their sizes in words.
    pub(super) fn deep_blocks(&self) -> Vec<(Block, usize)> {
        let Some(layout) = self.flat.0.get() else { return Vec::new() };
        let entries = (0..IN_TRIE).filter_map(|number| layout.entry(DEEP | number));
        entries.map(|entry| (entry.block(), entry.words())).collect()
    }

    /// The mark that all addresses of a slot have; `None`: they may have different ones. `entry` and `cover` are those of
    /// the root's slot, `n` says which of the 256 below that it is.
    fn common_mark(&self, entry: Entry, cover: Mark, n: usize) -> Option<Mark> {
        let len = u32::from(entry.len());
        // The bits of the slot behind the root's, left-aligned.
        let window = (n as u64) << 56;
        match entry.kind() {
            Kind::Node if len == 0 => {
                let index = node::find(self.arena.view(), entry.at(), n as u8);
                let entry = Entry(self.arena.word(index).load(Relaxed));
                (entry.kind() == Kind::Leaf && entry.len() == 0).then(|| entry.mark())
            }
            // Something is below the slot if the suffix goes on with its eight bits.
            _ if len > 8 && entry.suffix() >> 56 == n as u64 => None,
            Kind::Node if len == 8 && entry.suffix() >> 56 == n as u64 => None,
            Kind::Leaf if entry != Entry::EMPTY && len <= 8 && entry.matches(window) => Some(entry.mark()),
            Kind::Record => None,
            _ => Some(cover),
        }
    }

    /// What the trie says of an address of a slot; nothing of the default.
    fn walk(&self, slot: usize, last: usize) -> Mark {
        let address = A::from_halves([((slot * BELOW + last) as u64) << 32, 0]);
        let window = address.window(0);
        let entry = Entry(self.root.word((window >> 48) as usize).load(Acquire));
        if entry.ends(window << ROOT) && entry.mark() != NONE {
            return entry.mark();
        }
        self.below(address, entry)
    }
}

impl<A: Address> Edit<'_, A> {
    /// Brings the answers up to date after a change of the prefix of `len` bits.
    pub(super) fn refresh_flat(&mut self, address: A, len: u8) {
        let table = self.table;
        if A::BITS != u32::BITS as u8 || len == 0 {
            return;
        }
        let routes = table.len() as u32;
        let Some(layout) = table.flat.0.get() else {
            if routes >= WORTH {
                let layout = table.flat.0.get_or_init(|| Box::new(Layout::new()));
                self.refresh_roots(layout, false);
            }
            return;
        };
        let whole = layout.whole.load(Relaxed);
        if routes >= DIRECT && !whole {
            return self.lay_out_flat();
        }
        if routes == LARGE && layout.in_kernel.get().is_none() {
            layout.slots.use_huge_pages();
            if let Some((slots, entries)) =
                self.arena.region().and_then(|region| layout.copy_to_kernel(region))
            {
                let word = u64::from(entries) << 32 | u64::from(slots);
                table.root.word(FLAT).store(word, Release);
            }
        }
        let first = (address.window(0) >> 32) as usize;
        let changed = first..first + (1 << (A::BITS - len));
        for root in changed.start >> ROOT..=(changed.end - 1) >> ROOT {
            self.refresh_root_slot(layout, root, &changed, whole);
        }
    }

    /// Lays all of the table out flat from now on.
    pub(super) fn lay_out_flat(&mut self) {
        let layout = self.table.flat.0.get_or_init(|| Box::new(Layout::new()));
        self.refresh_roots(layout, true);
        layout.whole.store(true, Release);
    }

    /// Brings all slots up to date, or those that the root needs.
    fn refresh_roots(&mut self, layout: &Layout, whole: bool) {
        let table = self.table;
        for root in 0..1 << ROOT {
            // What is not written is no mark, and takes no memory.
            if table.root.word(root).load(Relaxed) != Entry::EMPTY.0 || table.root_cover(root) != NONE {
                self.refresh_root_slot(layout, root, &(0..1 << u32::BITS), whole);
            }
        }
    }

    /// Brings the slots below one of the root up to date, of which these addresses have changed.
    fn refresh_root_slot(&mut self, layout: &Layout, root: usize, changed: &Range<usize>, whole: bool) {
        let table = self.table;
        let entry = Entry(table.root.word(root).load(Relaxed));
        let cover = table.root_cover(root);
        let all = root * BELOW_ROOT..(root + 1) * BELOW_ROOT;
        let mut changed = changed.start.max(all.start * BELOW)..changed.end.min(all.end * BELOW);
        if !whole {
            let mut roots = layout.roots.lock().unwrap_or_else(PoisonError::into_inner);
            if entry.kind() == Kind::Leaf && entry.len() == 0 {
                // The root says all that there is.
                if roots.remove(&root) {
                    all.for_each(|n| self.put_slot(layout, n, 0));
                }
                return;
            }
            if roots.insert(root) {
                changed = all.start * BELOW..all.end * BELOW;
            }
        }
        for n in changed.start / BELOW..changed.end.div_ceil(BELOW) {
            let new = match table.common_mark(entry, cover, n % BELOW_ROOT) {
                Some(mark) if mark < DEEP.into() => mark as u16,
                Some(_) => DEEP | IN_TRIE,
                None => {
                    let start = n * BELOW;
                    let changed = changed.start.max(start) - start..changed.end.min(start + BELOW) - start;
                    self.refresh_below(layout, layout.slots.word(n).load(Relaxed), n, changed)
                }
            };
            self.put_slot(layout, n, new);
        }
    }

    /// Says something else of a slot.
    fn put_slot(&mut self, layout: &Layout, n: usize, new: u16) {
        let old = layout.slots.word(n).load(Relaxed);
        if new != old {
            layout.set_slot(n, new);
            self.leave_slot(layout, old);
            let in_trie = layout.in_trie.load(Relaxed) + u32::from(new == DEEP | IN_TRIE);
            layout.in_trie.store(in_trie - u32::from(old == DEEP | IN_TRIE), Relaxed);
        }
    }

    /// Gives back the entry that a slot had, and its block.
    fn leave_slot(&mut self, layout: &Layout, slot: u16) {
        if let Some(entry) = layout.entry(slot) {
            // Readers who still come here find the trie.
            layout.set_entry((slot & IN_TRIE).into(), Deep::NONE);
            self.arena.release(entry.block(), entry.words(), self.retirer);
            layout
                .numbers
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .give((slot & IN_TRIE).into(), self.retirer);
        }
    }

    /// Brings the marks of the addresses of a slot up to date, of which these have changed; what the slot says then.
    fn refresh_below(&mut self, layout: &Layout, old: u16, slot: usize, changed: Range<usize>) -> u16 {
        let (table, arena) = (self.table, self.arena.words().clone());
        let entry = layout.entry(old);
        // What nobody knew is asked for anew.
        let changed = if old == DEEP | IN_TRIE { 0..BELOW } else { changed };
        let mut marks = [Mark::from(old); BELOW];
        if let Some(entry) = entry {
            for (last, mark) in (0..=u8::MAX).zip(&mut marks) {
                let (word, shift) = entry.place(last);
                *mark = (arena.word(word).load(Relaxed) >> shift) as Mark;
            }
        }
        for last in changed {
            marks[last] = table.walk(slot, last);
        }
        let is_even = |coarse: u32| {
            marks.chunks(1 << coarse).all(|group| group.iter().all(|mark| Some(mark) == group.first()))
        };
        let new = match entry.filter(|entry| is_even(entry.coarse())) {
            Some(entry) => entry,
            None if !self.arena.has_room() => return DEEP | IN_TRIE,
            None => {
                let coarse = [6, 4, 2].into_iter().find(|coarse| is_even(*coarse)).unwrap_or(0);
                Deep::new(coarse, self.arena.allocate(words(coarse)).0)
            }
        };
        let at = new.block() as usize * UNIT;
        let mut groups = marks.iter().step_by(1 << new.coarse()).map(|mark| u64::from(*mark));
        for n in 0..new.words() {
            let both = groups.next().unwrap_or(0) | groups.next().unwrap_or(0) << 32;
            if arena.word(at + n).load(Relaxed) != both {
                arena.word(at + n).store(both, Relaxed);
            }
        }
        match entry {
            Some(entry) if entry == new => old,
            Some(entry) => {
                layout.set_entry((old & IN_TRIE).into(), new);
                self.arena.release(entry.block(), entry.words(), self.retirer);
                old
            }
            None => {
                let mut numbers = layout.numbers.lock().unwrap_or_else(PoisonError::into_inner);
                let Some((number, _)) = numbers.take(self.retirer) else {
                    self.arena.release(new.block(), new.words(), self.retirer);
                    return DEEP | IN_TRIE;
                };
                layout.set_entry(number as usize, new);
                DEEP | number as u16
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lpm::Arena;
    use crate::publish;

    /// More slots with marks of their own than there are entries: the rest is asked of the trie, until there is room again.
    #[test]
    fn without_entries_the_trie_is_asked() {
        if cfg!(miri) {
            return;
        }
        let slots = u32::from(IN_TRIE) + 1000;
        let prefix = |n: u32| 0x0a00_0000 + (n << 8);
        let (retirer, mut readers) = publish::domain(1);
        let mut arena = Arena::new(24);
        let table = Lpm::<u32>::new(&arena);
        let mut edit = Edit { table: &table, arena: &mut arena, retirer: &retirer };
        edit.insert(0x0a00_0000, 8, 7);
        (0..slots).for_each(|n| assert_eq!(edit.insert(prefix(n), 25, n), None));
        let in_trie = || table.layout().map(|layout| layout.in_trie.load(Relaxed));
        let check = |gone: u32| {
            let layout = table.layout().unwrap();
            for n in 0..slots {
                let own = if n < gone { 7 } else { n };
                assert_eq!(layout.leaf(&table, prefix(n) + 127), Some(own), "{n} of {gone}");
                assert_eq!(layout.leaf(&table, prefix(n) + 128), Some(7), "{n} of {gone}");
            }
        };
        assert_eq!(in_trie(), Some(1000));
        check(0);
        // Numbers are used again once no reader can have them.
        (0..2000).for_each(|n| assert_eq!(edit.remove(prefix(n), 25), Some(n)));
        readers.iter_mut().for_each(publish::Reader::idle);
        retirer.advance();
        (slots - 1000..slots).for_each(|n| assert_eq!(edit.insert(prefix(n), 25, n), Some(n)));
        assert_eq!(in_trie(), Some(0));
        check(2000);
    }

    /// A block is as coarse as its marks allow, and finer when they do not any more.
    #[test]
    fn blocks_are_no_finer_than_need_be() {
        let (retirer, _readers) = publish::domain(1);
        let mut arena = Arena::new(20);
        let table = Lpm::<u32>::new(&arena);
        let mut edit = Edit { table: &table, arena: &mut arena, retirer: &retirer };
        if cfg!(miri) {
            return;
        }
        edit.lay_out_flat();
        for (len, coarse) in [(26, 6), (27, 4), (28, 4), (30, 2), (32, 0)] {
            edit.insert(0xc000_0200, len, len.into());
            let layout = table.layout().unwrap();
            let entry = layout.entry(layout.slot(0xc000_0200u32)).unwrap();
            assert_eq!(entry.coarse(), coarse, "with a prefix of {len} bits");
        }
        for len in [26, 27, 28, 30, 32] {
            edit.remove(0xc000_0200, len);
        }
        assert_eq!(table.layout().unwrap().slot(0xc000_0200u32), 0);
    }

    /// Of a small table only what the root does not say is laid out, and of a larger one all.
    #[test]
    fn of_a_small_table_what_lies_below_the_root() {
        if cfg!(miri) {
            return;
        }
        let (retirer, _readers) = publish::domain(1);
        let mut arena = Arena::new(20);
        let table = Lpm::<u32>::new(&arena);
        let mut edit = Edit { table: &table, arena: &mut arena, retirer: &retirer };
        edit.insert(0x8000_0000, 1, 1);
        let net = |n: u32| 0x0a00_0000 + (n << 8);
        (0..WORTH - 2).for_each(|n| assert_eq!(edit.insert(net(n), 24, 10 + n), None));
        assert!(table.layout().is_none());
        edit.insert(0xc0a8_0000, 16, 2);
        let layout = table.layout().unwrap();
        assert!((0..WORTH - 2).all(|n| u32::from(layout.slot(net(n))) == 11 + n));
        // The root says this by itself.
        assert_eq!([0x8000_0000u32, 0xc0a8_0100].map(|address| layout.slot(address)), [0; 2]);
        assert!(table.whole_layout().is_none());
        // A longer prefix there, and it needs more than the root; without it no more.
        edit.insert(0xc0a8_0180, 25, 3);
        assert_eq!(layout.slot(0xc0a8_0200u32), 3);
        assert_ne!(layout.slot(0xc0a8_0100u32) & DEEP, 0);
        edit.remove(0xc0a8_0180, 25);
        assert_eq!([0xc0a8_0100u32, 0xc0a8_0200].map(|address| layout.slot(address)), [0; 2]);
        (WORTH - 2..DIRECT).for_each(|n| assert_eq!(edit.insert(net(n), 24, 10 + n), None));
        let layout = table.whole_layout().unwrap();
        assert_eq!([0x8000_0000u32, 0xc0a8_0100].map(|address| layout.slot(address)), [2, 3]);
    }
}
