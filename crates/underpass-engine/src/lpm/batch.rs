//! Looking up a burst of addresses at once: level by level, so that the memory that one address waits
//! for is fetched while the others are looked at.
//!
//! What an address finds at a level is as good as random, so no step of a level branches on it: results
//! are selected, and the addresses that go on are listed.

use std::hint::select_unpredictable as select;
use std::sync::atomic::Ordering::Acquire;

use super::arena::UNIT;
use super::entry::{Entry, Kind};
use super::{Address, Lpm, NO_LEAF, ROOT, node};
use crate::publish::Guard;

/// Most addresses that go in lockstep.
const LANES: usize = 64;

/// Numbers of lanes. The length is apart from the list, so that it stays in a register.
type List = [u8; LANES];

/// Adds a lane if `condition` holds. A lane is added to a list at most once.
#[inline(always)]
fn push(list: &mut List, len: usize, lane: usize, condition: bool) -> usize {
    list[len % LANES] = lane as u8;
    len + usize::from(condition)
}

#[inline(always)]
fn lane(list: &List, n: usize) -> usize {
    usize::from(list[n % LANES]) % LANES
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
        // Each address: its bytes, the entry that it has come to or the word where the next one is, the
        // byte behind that entry's slot, the node that the entry is in (0: the root), and its leaf.
        let mut bytes = [A::Spread::default(); LANES];
        let mut entries = [0u64; LANES];
        let mut indices = [0usize; LANES];
        let mut positions = [0u8; LANES];
        let mut nodes = [0u32; LANES];
        let mut found = [node::NONE; LANES];
        let (mut active, mut passed, mut records, mut missed) =
            ([0; LANES], [0; LANES], [0; LANES], [0; LANES]);
        let (mut active_len, mut records_len, mut missed_len) = (0, 0, 0);

        for (address, bytes) in addresses.iter().zip(&mut bytes) {
            root.prefetch((address.window(0) >> 48) as usize);
            *bytes = address.spread();
        }
        let covers = self.covered.load(Acquire) != 0;
        for (n, address) in addresses.iter().enumerate().take(LANES) {
            let entry = Entry(root.word((address.window(0) >> 48) as usize).load(Acquire));
            let matches = entry.matches(address.window(ROOT));
            let kind = entry.kind();
            found[n] = select(matches & (kind == Kind::Leaf), entry.value(), node::NONE);
            entries[n] = entry.0;
            let goes_on = matches & (kind == Kind::Node);
            let position = ROOT / 8 + entry.len() / 8;
            positions[n] = position + 1;
            let at = select(goes_on, entry.value() as usize * UNIT, 0);
            let slot = A::byte(&bytes[n], position);
            arena.prefetch(node::index(at, slot));
            active_len = push(&mut active, active_len, n, goes_on);
            records_len = push(&mut records, records_len, n, kind == Kind::Record);
            missed_len = push(&mut missed, missed_len, n, covers & (!matches | (kind == Kind::Empty)));
        }
        while active_len > 0 {
            // Which entry of the node.
            for n in 0..active_len {
                let n = lane(&active, n);
                let node = Entry(entries[n]).value();
                let slot = A::byte(&bytes[n], positions[n] - 1);
                let index = node::find(arena, node as usize * UNIT, slot);
                arena.prefetch(index);
                indices[n] = index;
                nodes[n] = node;
            }
            // Where that leads.
            (passed, active) = (active, passed);
            let passed_len = std::mem::take(&mut active_len);
            for n in 0..passed_len {
                let n = lane(&passed, n);
                let entry = Entry(arena.word(indices[n]).load(Acquire));
                let matches = entry.matches(A::spread_window(&bytes[n], positions[n]));
                let kind = entry.kind();
                found[n] = select(matches & (kind == Kind::Leaf), entry.value(), node::NONE);
                entries[n] = entry.0;
                let goes_on = matches & (kind == Kind::Node);
                let position = positions[n] + entry.len() / 8;
                positions[n] = position + 1;
                let at = select(goes_on, entry.value() as usize * UNIT, 0);
                let slot = A::byte(&bytes[n], position);
                arena.prefetch(node::index(at, slot));
                active_len = push(&mut active, active_len, n, goes_on);
                records_len = push(&mut records, records_len, n, kind == Kind::Record);
                missed_len = push(&mut missed, missed_len, n, !matches);
            }
        }
        for n in 0..records_len {
            arena.prefetch(Entry(entries[lane(&records, n)]).value() as usize * UNIT);
        }
        for n in 0..records_len {
            let n = lane(&records, n);
            let Some(address) = addresses.get(n) else { continue };
            match self.record(Entry(entries[n]), *address) {
                Some(leaf) => found[n] = leaf,
                None => missed_len = push(&mut missed, missed_len, n, true),
            }
        }
        for n in 0..missed_len {
            let n = lane(&missed, n);
            // The entry that did not match is of the slot before the suffix.
            let position = positions[n] - 2 - Entry(entries[n]).len() / 8;
            found[n] = if nodes[n] == 0 {
                self.root_cover((A::spread_window(&bytes[n], 0) >> 48) as usize)
            } else {
                node::cover(arena, nodes[n] as usize * UNIT, A::byte(&bytes[n], position))
            };
        }
        let default = self.default.load(Acquire);
        for (leaf, found) in leaves.iter_mut().zip(found) {
            let found = if found == node::NONE { default } else { found };
            *leaf = if found == node::NONE { NO_LEAF } else { found };
        }
    }
}
