//! Looking up a burst of addresses at once: level by level, so that the memory that one address waits
//! for is fetched while the others are looked at.
//!
//! What an address finds at a level is as good as random, so no step of a level branches on it: results
//! are selected, and the addresses that go on are moved together. The few that meet a suffix which is
//! not theirs, or a record, are looked up again one by one, in memory that is near by then.

use std::hint::select_unpredictable as select;
use std::sync::atomic::Ordering::Acquire;

use super::arena::{UNIT, View};
use super::entry::Entry;
use super::{Address, Lpm, NO_LEAF, ROOT, node};
use crate::publish::Guard;

/// Most addresses that go in lockstep.
const LANES: usize = 64;

/// What is found where more is to be done for it: no leaf.
const ODD: u32 = 1 << 30;

/// Where an address has got to, in one word: which it is, the byte of it that comes next, eight times
/// the slot of the node that it is in, and the word of the node that names the slot's entry, or the word
/// of that entry.
///
/// ```text
///  63   58   52      48 47     43    32 31       0
/// |  lane |   | position |     | slot8 |  word    |
/// ```
#[derive(Clone, Copy)]
struct Place(u64);

impl Place {
    /// In the node at word `at`, before its slot.
    #[inline(always)]
    fn new(lane: usize, position: u8, at: u64, slot: u64) -> Self {
        Self((lane as u64) << 58 | u64::from(position) << 48 | slot << 35 | (at + (slot >> 3)))
    }

    #[inline(always)]
    fn lane(self) -> usize {
        (self.0 >> 58) as usize
    }

    #[inline(always)]
    fn position(self) -> u8 {
        (self.0 >> 48) as u8 & 31
    }

    #[inline(always)]
    fn word(self) -> usize {
        self.0 as u32 as usize
    }

    /// From the word that names the slot's entry to the entry.
    #[inline(always)]
    fn advance(self, arena: View<'_>) -> Self {
        let names = arena.word(self.word()).load(Acquire);
        let entry = names.wrapping_shr((self.0 >> 32) as u32) & 0xff;
        Self(self.0 - (self.0 >> 38 & 31) + node::ENTRIES as u64 + entry)
    }
}

impl<A: Address> Lpm<A> {
    /// Looks up as many addresses as both slices have, in lockstep; [`NO_LEAF`] where there is none.
    pub fn lookup_batch(&self, addresses: &[A], leaves: &mut [u32], guard: &Guard<'_>) {
        let _ = guard;
        let mut rest = (addresses, leaves);
        while let ([_, ..], [_, ..]) = &rest {
            let count = rest.0.len().min(rest.1.len()).min(LANES);
            let (addresses, more) = rest.0.split_at(count);
            let (leaves, room) = rest.1.split_at_mut(count);
            self.lockstep(addresses, leaves);
            rest = (more, room);
        }
    }

    #[inline(always)]
    fn lockstep(&self, addresses: &[A], leaves: &mut [u32]) {
        let (root, arena) = (self.root.view(), self.arena.view());
        let mut bytes = [A::Spread::default(); LANES];
        let mut found = [node::NONE; LANES];
        let mut places = [Place(0); LANES];
        let mut active = 0;

        for (address, bytes) in addresses.iter().zip(&mut bytes) {
            root.prefetch((address.window(0) >> 48) as usize);
            *bytes = address.spread();
        }
        let empty = if self.covered.load(Acquire) == 0 { node::NONE } else { ODD };
        for (lane, address) in addresses.iter().enumerate().take(LANES) {
            let entry = Entry(root.word((address.window(0) >> 48) as usize).load(Acquire));
            let step = Step::new(entry, address.window(ROOT), ROOT / 8, empty);
            found[lane] = step.found;
            places[active % LANES] = step.place(lane, arena);
            active += usize::from(step.goes_on);
        }
        while active > 0 {
            for place in places.iter_mut().take(active) {
                *place = place.advance(arena);
                arena.prefetch(place.word());
            }
            let arrived = std::mem::take(&mut active);
            for n in 0..arrived.min(LANES) {
                let place = places[n];
                let lane = place.lane();
                let entry = Entry(arena.word(place.word()).load(Acquire));
                let window = A::spread_window(&bytes[lane], place.position());
                let step = Step::new(entry, window, place.position(), node::NONE);
                found[lane] = step.found;
                places[active % LANES] = step.place(lane, arena);
                active += usize::from(step.goes_on);
            }
        }
        let default = self.default.load(Acquire);
        let mut odd = false;
        for (leaf, found) in leaves.iter_mut().zip(found) {
            let found = if found == node::NONE { default } else { found };
            odd |= found == ODD;
            *leaf = if found == node::NONE { NO_LEAF } else { found };
        }
        if odd {
            for (leaf, address) in leaves.iter_mut().zip(addresses).filter(|(leaf, _)| **leaf == ODD) {
                let found = self.longest(*address);
                *leaf = if found == node::NONE { NO_LEAF } else { found };
            }
        }
    }
}

/// What an entry means for an address.
struct Step {
    /// The leaf, [`node::NONE`] or [`ODD`].
    found: u32,
    /// Whether a node comes next.
    goes_on: bool,
    /// If so, its first word,
    at: u64,
    /// the slot in it,
    slot: u64,
    /// and the byte of the address behind that.
    position: u8,
}

impl Step {
    /// `window` is the address from byte `position` on; `empty` is what an empty entry means.
    #[inline(always)]
    fn new(entry: Entry, window: u64, position: u8, empty: u32) -> Self {
        let matches = entry.matches(window);
        let goes_on = matches & entry.is_node();
        let otherwise = select(matches & !entry.is_there(), empty, ODD);
        Self {
            found: select(matches & entry.is_leaf(), entry.value(), otherwise),
            goes_on,
            at: select(goes_on, u64::from(entry.value()) * UNIT as u64, 0),
            slot: (window << (entry.len() & 63)) >> 56,
            position: position + entry.len() / 8 + 1,
        }
    }

    #[inline(always)]
    fn place(&self, lane: usize, arena: View<'_>) -> Place {
        let place = Place::new(lane, self.position, self.at, self.slot);
        arena.prefetch(place.word());
        place
    }
}
