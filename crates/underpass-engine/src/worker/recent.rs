//! Look-ups of IPv6 that a worker made lately: of SIDs, and of the segments behind them, which are few and come again and
//! again, in any order. One costs a tenth of the way through a trie.

use crate::tables::{LookupId, Tables};

/// How many look-ups are remembered, each in the one place that its address has.
const SLOTS: usize = 1 << SLOT_BITS;
const SLOT_BITS: u32 = 12;

/// A look-up.
#[derive(Clone, Copy, Default)]
struct Slot {
    address: u128,
    /// In which tables, and when, as [`Recent::tag`] has it; 0: there is none.
    tag: u64,
    leaf: u32,
}

/// What addresses were looked up to. The default remembers nothing.
#[derive(Default)]
pub(crate) struct Recent {
    slots: Box<[Slot]>,
    /// [`Tables::changes6`] when the burst began, above the bits of a [`LookupId`].
    changes: u64,
}

impl Recent {
    pub(crate) fn new() -> Self {
        Self { slots: vec![Slot::default(); SLOTS].into(), changes: 0 }
    }

    /// What was remembered before the tables changed is forgotten: to be called when a burst begins.
    #[inline(always)]
    pub(crate) fn begin(&mut self, tables: &Tables) {
        let changes = tables.changes6() << u32::BITS;
        if changes < self.changes {
            // Begun anew from 0, after 2³² changes.
            self.slots.fill(Slot::default());
        }
        self.changes = changes;
    }

    #[inline(always)]
    pub(crate) fn tag(&self, lookup: LookupId) -> u64 {
        self.changes | u64::from(lookup.0)
    }

    /// What an address led to in these tables, if it is remembered.
    #[inline(always)]
    pub(crate) fn get(&self, lookup: LookupId, address: u128) -> Option<u32> {
        let slot = self.slots.get(place(address))?;
        (slot.address == address && slot.tag == self.tag(lookup)).then_some(slot.leaf)
    }

    /// Remembers what an address leads to in these tables.
    #[inline(always)]
    pub(crate) fn put(&mut self, lookup: LookupId, address: u128, leaf: u32) {
        let tag = self.tag(lookup);
        if let Some(slot) = self.slots.get_mut(place(address)) {
            *slot = Slot { address, tag, leaf };
        }
    }
}

/// The place of an address: any of its bits decides.
#[inline(always)]
fn place(address: u128) -> usize {
    let [first, second] = [(address >> 64) as u64, address as u64];
    let mixed = (first ^ second.rotate_left(29)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> (u64::BITS - SLOT_BITS)) as usize
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::net::Ipv6Addr;

    use super::*;
    use crate::tables::{ActionId, Writer};

    #[test]
    fn a_look_up_holds_until_routes_change() {
        let (mut writer, tables, _) = Writer::new(1);
        let fib = writer.add_fib6();
        let mut recent = Recent::new();
        recent.begin(&tables);
        assert_eq!(recent.get(LookupId(0), 0), None);
        recent.put(LookupId(3), 7, 70);
        assert_eq!(recent.get(LookupId(3), 7), Some(70));
        assert_eq!((recent.get(LookupId(4), 7), recent.get(LookupId(3), 8)), (None, None));
        recent.begin(&tables);
        assert_eq!(recent.get(LookupId(3), 7), Some(70));
        writer.insert6(fib, Ipv6Addr::LOCALHOST, 128, ActionId(1));
        assert_eq!(recent.get(LookupId(3), 7), Some(70), "until the next burst");
        recent.begin(&tables);
        assert_eq!(recent.get(LookupId(3), 7), None);
        recent.put(LookupId(3), 7, 71);
        writer.remove6(fib, Ipv6Addr::LOCALHOST, 128);
        recent.begin(&tables);
        assert_eq!(recent.get(LookupId(3), 7), None);
        recent.put(LookupId(3), 7, 72);
        writer.remove_fib6(fib);
        recent.begin(&tables);
        assert_eq!(recent.get(LookupId(3), 7), None);
    }

    #[test]
    fn without_memory_nothing_is_remembered() {
        let mut recent = Recent::default();
        recent.put(LookupId(1), 1, 1);
        assert_eq!(recent.get(LookupId(1), 1), None);
    }

    /// Locators with the function at different places.
    #[test]
    fn sids_have_places_of_their_own() {
        for place_of in [64, 80, 0, 16, 48] {
            let sids = (0..64).map(|n| 0xfc00_0001_u128 << 96 | n << place_of | 1 << 100);
            let places: BTreeSet<usize> = sids.map(place).collect();
            assert!(places.len() > 56, "{} at {place_of}", places.len());
        }
    }
}
