//! Looking up a burst of addresses at once: level by level, so that the memory that one address waits
//! for is fetched while the others are looked at.

use std::sync::atomic::Ordering::Acquire;

use super::arena::UNIT;
use super::entry::{Entry, Kind};
use super::{Address, Lpm, NO_LEAF, ROOT, node};
use crate::publish::Guard;

/// Most addresses that go in lockstep.
const LANES: usize = 64;

/// Words of a cache line.
const LINE: usize = 8;

/// Where an address has got to.
#[derive(Clone, Copy)]
struct Lane {
    /// The entry that leads to the next node or record.
    entry: Entry,
    /// The word of the next entry.
    index: usize,
    /// The first word of the node that this entry is in.
    node: usize,
    /// The longest match so far.
    best: u32,
    /// The bit of the address behind the slot of the entry.
    pos: u8,
}

/// Numbers of lanes.
struct List {
    lanes: [u8; LANES],
    len: usize,
}

impl List {
    const fn new() -> Self {
        Self { lanes: [0; LANES], len: 0 }
    }

    #[inline(always)]
    fn push(&mut self, lane: usize) {
        self.lanes[self.len % LANES] = lane as u8;
        self.len += 1;
    }

    #[inline(always)]
    fn get(&self, n: usize) -> usize {
        usize::from(self.lanes[n % LANES]) % LANES
    }
}

impl<A: Address> Lpm<A> {
    /// Looks up as many addresses as both slices have, in lockstep; [`NO_LEAF`] where there is none.
    pub fn lookup_batch(&self, addresses: &[A], leaves: &mut [u32], guard: &Guard<'_>) {
        let _ = guard;
        for (addresses, leaves) in addresses.chunks(LANES).zip(leaves.chunks_mut(LANES)) {
            self.lockstep(addresses, leaves);
            for leaf in leaves {
                *leaf = if *leaf == node::NONE { NO_LEAF } else { *leaf };
            }
        }
    }

    fn lockstep(&self, addresses: &[A], leaves: &mut [u32]) {
        let count = addresses.len().min(leaves.len()).min(LANES);
        let (addresses, leaves) = (&addresses[..count], &mut leaves[..count]);
        for address in addresses {
            self.root.prefetch((address.window(0) >> 48) as usize);
        }
        let idle = Lane { entry: Entry::EMPTY, index: 0, node: 0, best: 0, pos: ROOT };
        let mut lanes = [idle; LANES];
        let (mut active, mut records) = (List::new(), List::new());
        let default = self.default.load(Acquire);
        for (n, (address, leaf)) in addresses.iter().zip(leaves.iter_mut()).enumerate() {
            let window = address.window(0);
            let slot = (window >> 48) as usize;
            let entry = Entry(self.root.word(slot).load(Acquire));
            let lane = &mut lanes[n % LANES];
            lane.best = default;
            lane.entry = entry;
            match entry.kind() {
                Kind::Node if entry.matches(window << 16) => {
                    self.prefetch_node(entry);
                    active.push(n);
                }
                Kind::Leaf if entry.matches(window << 16) => *leaf = entry.value(),
                Kind::Record => {
                    self.arena.prefetch(entry.value() as usize * UNIT);
                    lane.best = self.root_cover(slot);
                    records.push(n);
                }
                _ => *leaf = self.root_cover(slot),
            }
        }
        while active.len > 0 {
            // Which entry of the node.
            let mut found = List::new();
            for n in 0..active.len {
                let n = active.get(n);
                let (lane, Some(address), Some(leaf)) = (&mut lanes[n], addresses.get(n), leaves.get_mut(n))
                else {
                    continue;
                };
                let at = lane.entry.value() as usize * UNIT;
                let base = lane.pos + lane.entry.len();
                let slot = (address.window(base) >> 56) as u8;
                let meta = self.arena.word(at).load(Acquire);
                let default = node::default(meta);
                lane.best = if default == node::NONE { lane.best } else { default };
                lane.pos = base + 8;
                if let Some(index) = node::find(&self.arena, at, meta, slot) {
                    lane.index = index;
                    lane.node = at;
                    if index - at >= 2 * LINE {
                        self.arena.prefetch(index);
                    }
                    found.push(n);
                } else {
                    let cover = node::cover(&self.arena, at, meta, slot);
                    *leaf = if cover == node::NONE { lane.best } else { cover };
                }
            }
            // Where that leads.
            active.len = 0;
            for n in 0..found.len {
                let n = found.get(n);
                let (lane, Some(address), Some(leaf)) = (&mut lanes[n], addresses.get(n), leaves.get_mut(n))
                else {
                    continue;
                };
                let entry = Entry(self.arena.word(lane.index).load(Acquire));
                let matches = entry.matches(address.window(lane.pos));
                lane.entry = entry;
                match entry.kind() {
                    Kind::Leaf if matches => *leaf = entry.value(),
                    Kind::Node if matches => {
                        self.prefetch_node(entry);
                        active.push(n);
                    }
                    kind => {
                        let meta = self.arena.word(lane.node).load(Acquire);
                        let slot = (address.window(lane.pos - 8) >> 56) as u8;
                        let cover = node::cover(&self.arena, lane.node, meta, slot);
                        lane.best = if cover == node::NONE { lane.best } else { cover };
                        if kind == Kind::Record {
                            self.arena.prefetch(entry.value() as usize * UNIT);
                            records.push(n);
                        } else {
                            *leaf = lane.best;
                        }
                    }
                }
            }
        }
        for n in 0..records.len {
            let n = records.get(n);
            if let (Some(address), Some(leaf)) = (addresses.get(n), leaves.get_mut(n)) {
                *leaf = self.record(lanes[n].entry, *address).unwrap_or(lanes[n].best);
            }
        }
    }

    #[inline(always)]
    fn prefetch_node(&self, entry: Entry) {
        let at = entry.value() as usize * UNIT;
        self.arena.prefetch(at);
        self.arena.prefetch(at + LINE);
    }
}
