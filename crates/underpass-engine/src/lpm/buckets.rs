//! The answers of a large table of IPv6 for programs in the kernel, of which most are two accesses of memory away.
//!
//! ```text
//! address    |     32 bits     | 0..6 bits |      to bit 64      |
//!            directory: hash ──> group ────> bucket: the prefixes
//!
//! directory  63..32                      31..6                            5..0
//!            first bits of the address   the group's first byte / 64      bits that choose a bucket
//! bucket     eight entries as those of the trie's slots are behind 32 bits, in no order; all zeros is none
//!            leaf: a prefix of at most 64 bits, with its mark; of 32 and less, the longest, with no bits
//!            record: 64 bits, below which there are longer prefixes; the trie is asked
//!            node, in the place of the first entry: there are more than eight prefixes; the trie is asked
//! ```
//!
//! A prefix that covers several buckets of its group is in each of them that no longer one covers. So the longest of a bucket
//! that matches is the table's, but for the prefix of no bits; where the directory has no word, the trie is asked. A bucket
//! changes by one store, or its group is written anew and published by one. Words of the directory may move while a reader is
//! there, who then finds none.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::{Mutex, PoisonError};

use super::arena::{Block, Pages, UNIT, Words};
use super::entry::{Entry, Kind, MOST, NONE};
use super::{Address, Edit, FLAT, Lpm, Mark};
use crate::in_kernel::region::Region;

/// How many routes a table has before it is worth buckets: the trie of fewer stays in the cache.
const WORTH: u32 = 1 << 12;
/// Bits of an address by which the directory is asked.
const KEY: u8 = 32;
/// The shortest prefix for which the directory gets words.
const SHORTEST: u8 = KEY - 3;
/// The longest prefix that a bucket holds.
const LONGEST: u8 = KEY + MOST;
/// Words of a bucket: a cache line.
pub(crate) const WORDS: usize = 8;
/// Most bits that choose a bucket of a group.
const MOST_BITS: u8 = 6;
/// Of how many words of the directory one may be that of an address.
pub(crate) const PROBES: usize = 16;
/// By what the first bits of an address are multiplied to be spread.
pub(crate) const SPREAD: u32 = 0x1e37_79b1;

/// In a root's word for what is laid out: it is a directory, of as many words as the upper half says.
pub(crate) const DIRECTORY: u64 = 1;

/// In the place of a bucket's first entry: the trie is asked.
const CROWDED: Entry = Entry(Kind::Node as u64);
/// The bits of an entry's mark.
const MARK: u64 = 0xff_ffff << 8;

/// What a table has besides its trie, from when it is worth it.
#[derive(Default)]
pub(super) struct Buckets(Mutex<Option<Box<State>>>);

/// The control thread's side.
struct State {
    directory: Directory,
    keys: BTreeMap<u32, Key>,
    /// Routes that are longer than a bucket holds.
    longer: usize,
}

/// What the addresses with the same first bits have.
struct Key {
    /// `None`: there was no room for it.
    group: Option<Group>,
    /// Routes among them, or of [`SHORTEST`] bits and more over them.
    routes: u32,
    /// The longest prefix over them of at most [`KEY`] bits, if it has any: its length and mark.
    cover: (u8, Mark),
    /// Whether a bucket may be crowded, and routes that were removed since it is known.
    crowded: bool,
    removed: u32,
}

/// 2^`bits` buckets.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Group {
    block: Block,
    bits: u8,
}

impl Group {
    fn words(self) -> usize {
        WORDS << self.bits
    }

    /// The first word of a bucket.
    fn bucket(self, n: usize) -> usize {
        self.block as usize * UNIT + n * WORDS
    }

    /// The buckets that a prefix of `len` bits covers, or that it is in: `window` is what it has behind its key.
    fn covered(self, window: u64, len: u8) -> Range<usize> {
        let first = (window >> 1 >> (63 - self.bits)) as usize;
        first..first + (1 << self.bits.saturating_sub(len))
    }
}

/// Where the group of a key is.
struct Directory {
    words: Words,
    /// Smaller ones that it had, in which programs may still look; half as much in all.
    former: Vec<Words>,
}

impl Directory {
    fn new(region: Option<&Region>, keys: usize) -> Self {
        let bits = (keys * 2 + PROBES).next_power_of_two().trailing_zeros();
        let words: Words = Words::shared(region, bits.max(10), Pages::Small);
        // A program that reads memory that is not there yet finds zeros too, but takes a microsecond for it.
        (0..words.len()).for_each(|n| words.word(n).store(0, Relaxed));
        Self { words, former: Vec::new() }
    }

    /// Words where a search may begin.
    fn len(&self) -> usize {
        self.words.len() - PROBES
    }

    fn is_full(&self, keys: usize) -> bool {
        3 * keys > 2 * self.len()
    }

    /// Where the search for a key begins.
    fn home(&self, key: u32) -> usize {
        ((u64::from(key.wrapping_mul(SPREAD)) * self.len() as u64) >> 32) as usize
    }

    fn find(&self, key: u32, is: impl Fn(u64) -> bool) -> Option<usize> {
        let home = self.home(key);
        (home..home + PROBES).find(|n| is(self.words.word(*n).load(Relaxed)))
    }

    /// Says where the group of a key is. Without a word free for it the trie is asked.
    fn set(&self, key: u32, group: Group) {
        let place = self.find(key, |word| word != 0 && (word >> 32) as u32 == key);
        if let Some(n) = place.or_else(|| self.find(key, |word| word == 0)) {
            let word =
                u64::from(key) << 32 | (u64::from(group.block) * 8 * UNIT as u64) | u64::from(group.bits);
            // Release: a group's content before its address.
            self.words.word(n).store(word, Release);
        }
    }

    /// Forgets a key. What was put further away for its sake moves up, so that a search ends at the first word that is 0.
    fn remove(&self, key: u32) {
        let Some(mut hole) = self.find(key, |word| word != 0 && (word >> 32) as u32 == key) else { return };
        for n in hole + 1..self.words.len() {
            let word = self.words.word(n).load(Relaxed);
            if word == 0 {
                break;
            }
            if self.home((word >> 32) as u32) <= hole {
                self.words.word(hole).store(word, Release);
                hole = n;
            }
        }
        self.words.word(hole).store(0, Release);
    }

    /// What programs find it by.
    fn place(&self) -> u64 {
        match self.words.offset() {
            0 => 0,
            offset => (self.len() as u64) << 32 | u64::from(offset) | DIRECTORY,
        }
    }
}

/// The first bits of an address.
fn key_of<A: Address>(address: A) -> u32 {
    (address.window(0) >> (64 - KEY)) as u32
}

/// The addresses that have these first bits.
fn addresses_of<A: Address>(key: u32) -> A {
    A::from_halves([u64::from(key) << (64 - KEY), 0])
}

/// What a bucket says of a prefix.
fn entry_of<A: Address>(address: A, len: u8, mark: Mark) -> Entry {
    let window = address.window(KEY);
    match len {
        ..=LONGEST => Entry::new(Kind::Leaf, mark, window, len.saturating_sub(KEY)),
        _ => Entry::new(Kind::Record, 0, window, MOST),
    }
}

/// Whether two entries are of one prefix.
fn is_same(one: Entry, other: Entry) -> bool {
    one != Entry::EMPTY && (one.0 ^ other.0) & !MARK == 0
}

/// Whether an entry is all that a bucket need know of the prefixes that cover it.
fn covers(entry: Entry, bits: u8) -> bool {
    entry != Entry::EMPTY && entry.kind() == Kind::Leaf && entry.len() <= bits
}

/// The most bits that are worth it for so many routes.
fn most_bits(routes: u32) -> u8 {
    (routes.max(1).ilog2() as u8 + 1).min(MOST_BITS)
}

/// The buckets with these entries, which are in the order of their lengths, and whether one of them is crowded.
fn filled(entries: &[Entry], bits: u8) -> (Vec<[u64; WORDS]>, bool) {
    let group = Group { block: 0, bits };
    let mut buckets = vec![[0; WORDS]; 1 << bits];
    let mut counts = vec![0; 1 << bits];
    for entry in entries {
        for n in group.covered(entry.suffix(), entry.len()) {
            let (Some(bucket), Some(count)) = (buckets.get_mut(n), counts.get_mut(n)) else { continue };
            if covers(*entry, bits) {
                *count = 0;
            }
            if let Some(word) = bucket.get_mut(*count) {
                *word = entry.0;
            }
            *count += 1;
        }
    }
    let crowded = buckets.iter_mut().zip(counts).filter(|(_, count)| *count > WORDS);
    let crowded = crowded.map(|(bucket, _)| *bucket = [CROWDED.0, 0, 0, 0, 0, 0, 0, 0]).count() > 0;
    (buckets, crowded)
}

impl<A: Address> Lpm<A> {
    /// The blocks of all groups, with their sizes in words.
    pub(super) fn groups(&self) -> Vec<(Block, usize)> {
        let state = self.buckets.0.lock().unwrap_or_else(PoisonError::into_inner);
        let keys = state.iter().flat_map(|state| state.keys.values());
        keys.filter_map(|key| key.group).map(|group| (group.block, group.words())).collect()
    }

    /// The longest prefix over an address of 1 to `most` bits, by its length; 0 if there is none.
    fn longest_within(&self, address: A, most: u8) -> (u8, Mark) {
        let mark_of = |len| self.exact(address, len).filter(|mark| *mark != NONE).map(|mark| (len, mark));
        (1..=most).rev().find_map(mark_of).unwrap_or((0, NONE))
    }

    /// Whether there are prefixes of an address's first [`LONGEST`] bits that are longer.
    fn has_longer(&self, address: A) -> bool {
        !self.visit_below(address, LONGEST, &mut |_, _, _| false)
    }
}

impl<A: Address> Edit<'_, A> {
    /// Brings the buckets up to date after a prefix of `len` bits has got a mark, or lost its; `was` is what it had.
    pub(super) fn refresh_buckets(&mut self, address: A, len: u8, now: Option<Mark>, was: Option<Mark>) {
        let table = self.table;
        if A::BITS <= LONGEST || len == 0 {
            return;
        }
        let mut state = table.buckets.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(state) = &mut *state else {
            if now.is_some() && table.len() as u32 >= WORTH && self.arena.region().is_some() {
                *state = Some(self.new_buckets());
            }
            return;
        };
        let State { directory, keys, longer } = &mut **state;
        let (comes, goes) = (was.is_none(), now.is_none());
        if len > LONGEST {
            *longer = (*longer + usize::from(comes)).saturating_sub(usize::from(goes));
        }
        let first = key_of(address);
        let all = first..=first | u32::MAX.checked_shr(len.into()).unwrap_or(0);
        let counts = len >= SHORTEST;
        if counts && comes {
            for number in all.clone() {
                keys.entry(number).or_insert_with(|| self.new_key(number)).routes += 1;
            }
            self.make_room(directory, keys);
        }
        let mut empty = Vec::new();
        for (number, key) in keys.range_mut(all) {
            if counts && goes {
                key.routes = key.routes.saturating_sub(1);
                key.removed += 1;
                if key.routes == 0 {
                    empty.push(*number);
                    continue;
                }
            }
            if !self.change_group(key, *number, address, len, now) {
                self.regroup(directory, *number, key);
            }
        }
        for number in empty {
            directory.remove(number);
            if let Some(group) = keys.remove(&number).and_then(|key| key.group) {
                self.arena.release(group.block, group.words(), self.retirer);
            }
        }
        self.show_buckets(directory, *longer);
    }

    /// Has programs ask the directory, unless it does not answer much.
    fn show_buckets(&self, directory: &Directory, longer: usize) {
        let place = if 4 * longer <= self.table.len() { directory.place() } else { 0 };
        let word = self.table.root.word(FLAT);
        if word.load(Relaxed) != place {
            word.store(place, Release);
        }
    }

    /// Makes the buckets of all that there is.
    fn new_buckets(&mut self) -> Box<State> {
        let (table, mut keys, mut longer) = (self.table, BTreeMap::new(), 0);
        table.visit(&mut |prefix, len, _| {
            longer += usize::from(len > LONGEST);
            let first = key_of(prefix);
            if len >= SHORTEST {
                for number in first..=first | u32::MAX.checked_shr(len.into()).unwrap_or(0) {
                    keys.entry(number).or_insert_with(|| self.new_key(number)).routes += 1;
                }
            }
            true
        });
        let directory = Directory::new(self.arena.region(), keys.len());
        for (number, key) in &mut keys {
            self.regroup(&directory, *number, key);
        }
        self.show_buckets(&directory, longer);
        Box::new(State { directory, keys, longer })
    }

    fn new_key(&self, number: u32) -> Key {
        let cover = self.table.longest_within(addresses_of(number), KEY);
        Key { group: None, routes: 0, cover, crowded: false, removed: 0 }
    }

    /// Has the directory be large enough.
    fn make_room(&self, directory: &mut Directory, keys: &BTreeMap<u32, Key>) {
        if directory.is_full(keys.len()) {
            let new = Directory::new(self.arena.region(), keys.len());
            for (number, key) in keys {
                key.group.iter().for_each(|group| new.set(*number, *group));
            }
            let former = std::mem::replace(directory, new);
            directory.former = former.former;
            directory.former.push(former.words);
        }
    }

    /// Brings the buckets of a key up to date. `false`: its group has to be written anew.
    fn change_group(&self, key: &mut Key, number: u32, address: A, len: u8, now: Option<Mark>) -> bool {
        let Some(group) = key.group else { return false };
        let shrunk = group.bits > 0 && key.routes < 1 << (group.bits - 1);
        if shrunk || key.crowded && key.removed > key.routes / 4 + WORDS as u32 {
            return false;
        }
        let (prefix, len) = match now {
            Some(mark) if len <= KEY && key.cover.0 <= len => {
                key.cover = (len, mark);
                (addresses_of(number), KEY)
            }
            None if len <= KEY && key.cover.0 == len => {
                key.cover = self.table.longest_within(address, len - 1);
                (addresses_of(number), KEY)
            }
            // Not the longest that covers all of them.
            _ if len <= KEY => return true,
            None if len > LONGEST && self.table.has_longer(address) => return true,
            _ => (address, len),
        };
        let new = entry_of(prefix, len, now.unwrap_or(NONE + 1));
        // What a bucket has instead of what goes.
        let instead = now.is_none().then(|| {
            let (shorter, mark) = match len {
                _ if !covers(new, group.bits) => (0, NONE),
                KEY => key.cover,
                _ => self.table.longest_within(prefix, len - 1),
            };
            if shorter == 0 { Entry::EMPTY } else { entry_of(prefix, shorter.max(KEY), mark) }
        });
        for n in group.covered(new.suffix(), new.len()) {
            let at = group.bucket(n);
            let changed = match instead {
                Some(instead) => self.replace_entry(at, new, instead),
                None => self.put_entry(at, group.bits, new),
            };
            if !changed && most_bits(key.routes) > group.bits {
                return false;
            }
            if !changed {
                // More buckets would be too many.
                key.crowded = true;
                self.table.arena.word(at).store(CROWDED.0, Release);
            }
        }
        true
    }

    /// The words of a bucket.
    fn bucket(&self, at: usize) -> [Entry; WORDS] {
        std::array::from_fn(|n| Entry(self.table.arena.word(at + n).load(Relaxed)))
    }

    /// Puts an entry into a bucket. `false`: there is no room for it.
    fn put_entry(&self, at: usize, bits: u8, new: Entry) -> bool {
        let bucket = self.bucket(at);
        if bucket[0] == CROWDED {
            return true;
        }
        let there = bucket.iter().position(|entry| is_same(*entry, new));
        let cover = || bucket.iter().position(|entry| covers(new, bits) && covers(*entry, bits));
        let place = match there.or_else(cover) {
            // A longer one covers the bucket.
            Some(n) if bucket[n].len() > new.len() => return true,
            Some(n) => Some(n),
            None => bucket.iter().position(|entry| *entry == Entry::EMPTY),
        };
        if let Some(n) = place {
            self.table.arena.word(at + n).store(new.0, Release);
        }
        place.is_some()
    }

    /// Puts another entry in the place of one, if that is there.
    fn replace_entry(&self, at: usize, old: Entry, instead: Entry) -> bool {
        let bucket = self.bucket(at);
        if bucket[0] != CROWDED
            && let Some(n) = bucket.iter().position(|entry| is_same(*entry, old))
        {
            self.table.arena.word(at + n).store(instead.0, Release);
        }
        true
    }

    /// Writes the group of a key anew, from what the trie says, and publishes it.
    fn regroup(&mut self, directory: &Directory, number: u32, key: &mut Key) {
        let former = key.group.take();
        (key.crowded, key.removed) = (false, 0);
        if self.arena.has_room() {
            let addresses: A = addresses_of(number);
            key.cover = self.table.longest_within(addresses, KEY);
            let mut entries = Vec::new();
            if key.cover.0 > 0 {
                entries.push(entry_of(addresses, KEY, key.cover.1));
            }
            self.table.visit_below(addresses, KEY, &mut |prefix, len, mark| {
                entries.push(entry_of(prefix, len, mark));
                true
            });
            entries.sort_unstable_by_key(|entry| (entry.len(), entry.0));
            entries.dedup();
            let most = most_bits(key.routes);
            let fitting =
                (0..most).map(|bits| (bits, filled(&entries, bits))).find(|(_, (_, crowded))| !crowded);
            let (bits, (buckets, crowded)) = fitting.unwrap_or_else(|| (most, filled(&entries, most)));
            let group = Group { block: self.arena.allocate(WORDS << bits).0, bits };
            for (n, word) in buckets.as_flattened().iter().enumerate() {
                self.table.arena.word(group.bucket(0) + n).store(*word, Relaxed);
            }
            key.crowded = crowded;
            key.group = Some(group);
            directory.set(number, group);
        } else {
            directory.remove(number);
        }
        if let Some(group) = former {
            self.arena.release(group.block, group.words(), self.retirer);
        }
    }
}

#[cfg(test)]
mod tests;
