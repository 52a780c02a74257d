//! Looking up a burst of addresses at once: level by level, so that the memory that one address waits
//! for is fetched while the others are looked at.
//!
//! What an address finds at a level is as good as random, so no step of a level branches on it: results
//! are selected, and the addresses that go on are moved together. The few that meet a suffix which is
//! not theirs, or a record, are looked up again one by one, in memory that is near by then.

use std::hint::select_unpredictable as select;
use std::sync::atomic::Ordering::Acquire;

use super::arena::View;
use super::entry::{Entry, NONE};
use super::{Address, Lpm, Mark, NO_LEAF, ROOT, node};
use crate::publish::Guard;

/// Most addresses that go in lockstep.
pub(super) const LANES: usize = 64;

/// What is found where more is to be done for it: no mark.
const ODD: Mark = 1 << 31;

/// Where an address has got to, in one word: which it is, the bit of it that comes next, eight times the
/// slot of the node that it is in, and the word of the node that names the slot's entry, or the word of
/// that entry.
///
/// ```text
///  63   58   55      48 47     43    32 31       0
/// |  lane |   |  bit   |      | slot8 |  word    |
/// ```
#[derive(Clone, Copy)]
struct Place(u64);

impl Place {
    /// Behind the bits that the root consumes.
    #[inline(always)]
    fn start(lane: usize) -> Self {
        Self((lane as u64) << 58 | u64::from(ROOT) << 48)
    }

    #[inline(always)]
    fn lane(self) -> usize {
        (self.0 >> 58) as usize
    }

    /// The byte of the address that comes next.
    #[inline(always)]
    fn byte(self) -> u8 {
        (self.0 >> 51) as u8 & 31
    }

    #[inline(always)]
    fn word(self) -> usize {
        self.0 as u32 as usize
    }

    /// In the node that an entry leads to. `window` is the address from the next bit on.
    #[inline(always)]
    fn enter(self, entry: Entry, at: usize, window: u64) -> Self {
        let slot = window << (entry.len() & 63);
        Self(
            (self.0 & (0x3f << 58 | 0xff << 48))
                + ((u64::from(entry.len()) + 8) << 48)
                + (slot >> 21 & 0xff << 35)
                + (slot >> 59)
                + at as u64,
        )
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
            match self.whole_layout() {
                Some(layout) => layout.leaves(self, addresses, leaves),
                None => self.lockstep(addresses, leaves),
            }
            rest = (more, room);
        }
    }

    /// Not a part of its caller, where it takes more registers than there are: `ip6-routes-10k` 62 clocks, not 55.
    #[inline(never)]
    fn lockstep(&self, addresses: &[A], leaves: &mut [u32]) {
        let (root, arena) = (self.root.view(), self.arena.view());
        let mut bytes = [A::Spread::default(); LANES];
        let mut found = [NONE; LANES];
        let mut places = [Place(0); LANES];
        let mut active = 0;

        for (address, bytes) in addresses.iter().zip(&mut bytes) {
            root.prefetch((address.window(0) >> 48) as usize);
            *bytes = address.spread();
        }
        let covers = self.covered();
        for (lane, address) in addresses.iter().enumerate().take(LANES) {
            let entry = Entry(root.word((address.window(0) >> 48) as usize).load(Acquire));
            let window = address.window(ROOT);
            // In a table of many routes nearly all roots lead on: one branch that is foreseen.
            if entry.leads_on(window) {
                let place = Place::start(lane).enter(entry, entry.at(), window);
                arena.prefetch(place.word());
                places[active % LANES] = place;
                active += 1;
            } else {
                let odd = !entry.ends(window) | (covers & (entry == Entry::EMPTY));
                found[lane] = select(odd, ODD, entry.mark());
            }
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
                let window = A::spread_window(&bytes[lane], place.byte());
                found[lane] = select(entry.ends(window), entry.mark(), ODD);
                let leads_on = entry.leads_on(window);
                let place = place.enter(entry, select(leads_on, entry.at(), 0), window);
                arena.prefetch(place.word());
                places[active % LANES] = place;
                active += usize::from(leads_on);
            }
        }
        let default = self.default();
        let mut odd = 0;
        for (leaf, found) in leaves.iter_mut().zip(found) {
            let found = if found == NONE { default } else { found };
            odd |= found;
            *leaf = found.wrapping_sub(1);
        }
        if odd & ODD != 0 {
            for (leaf, address) in leaves.iter_mut().zip(addresses).filter(|(leaf, _)| **leaf == ODD - 1) {
                *leaf = self.longest(*address).wrapping_sub(1);
            }
        }
    }
}

/// A mark of 0 becomes no leaf.
const _: () = assert!(NONE.wrapping_sub(1) == NO_LEAF);
