//! Other ends of networks to which a worker sent frames lately, and where these are: stations behind a few ends come in any order.

use crate::lpm::Address;
use crate::tables::{ActionId, Tables, TunnelId};

/// How many are remembered, each in the one place that its number has.
const SLOTS: usize = 256;

/// Another end.
#[derive(Clone, Copy, Default)]
struct Slot {
    /// [`RecentEnds::changes`] when it was looked up; 0: there is none.
    changes: u64,
    /// The tunnel, and the number of the end.
    key: u64,
    end: [u64; 2],
    leaf: u32,
    sum: u32,
}

/// Where an end is: its address, what leads there, and what it adds to the sum of an IPv4 header.
#[derive(Clone, Copy)]
pub(super) struct RecentEnd<A> {
    pub(super) end: A,
    pub(super) leaf: ActionId,
    pub(super) sum: u32,
}

/// What is remembered. The default remembers nothing.
#[derive(Default)]
pub(crate) struct RecentEnds {
    slots: Box<[Slot]>,
    /// [`Tables::changes`] when the frames came.
    changes: u64,
}

impl RecentEnds {
    pub(crate) fn new() -> Self {
        Self { slots: vec![Slot::default(); SLOTS].into(), changes: 0 }
    }

    /// What was remembered before the tables changed is forgotten: to be called when frames come.
    #[inline(always)]
    pub(super) fn begin(&mut self, tables: &Tables) {
        self.changes = tables.changes();
    }

    /// Where the end of this number is, if that is remembered.
    #[inline(always)]
    pub(super) fn get<A: Address>(&self, tunnel: TunnelId, number: u32) -> Option<RecentEnd<A>> {
        let slot = self.slots.get(place(tunnel, number))?;
        let known = slot.key == key(tunnel, number) && slot.changes == self.changes;
        known.then(|| RecentEnd { end: A::from_halves(slot.end), leaf: ActionId(slot.leaf), sum: slot.sum })
    }

    /// Remembers where it is.
    pub(super) fn put<A: Address>(&mut self, tunnel: TunnelId, number: u32, found: RecentEnd<A>) {
        if let Some(slot) = self.slots.get_mut(place(tunnel, number)) {
            let RecentEnd { end, leaf, sum } = found;
            let (changes, key) = (self.changes, key(tunnel, number));
            *slot = Slot { changes, key, end: end.halves(), leaf: leaf.0, sum };
        }
    }
}

#[inline(always)]
fn key(tunnel: TunnelId, number: u32) -> u64 {
    u64::from(tunnel.0) << u32::BITS | u64::from(number)
}

/// Those of a tunnel are beside each other, and those of tunnels apart.
#[inline(always)]
fn place(tunnel: TunnelId, number: u32) -> usize {
    (number as usize).wrapping_add(tunnel.0 as usize * 67) % SLOTS
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::tables::Writer;

    #[test]
    fn an_end_is_known_until_tables_change() {
        let (mut writer, tables, _) = Writer::new(1);
        let (fib4, fib6) = (writer.add_fib4(), writer.add_fib6());
        let mut ends = RecentEnds::new();
        let found = |ends: &RecentEnds, tunnel, number| {
            ends.get::<u128>(TunnelId(tunnel), number).map(|known| (known.end, known.leaf.0, known.sum))
        };
        let end = RecentEnd { end: 5_u128 << 64 | 6, leaf: ActionId(7), sum: 8 };
        ends.begin(&tables);
        assert_eq!(found(&ends, 0, 0), None);
        ends.put(TunnelId(1), 2, end);
        assert_eq!(found(&ends, 1, 2), Some((5 << 64 | 6, 7, 8)));
        // Of others that have the same place.
        assert_eq!((found(&ends, 1, 2 + SLOTS as u32), found(&ends, 0, 69)), (None, None));
        ends.put(TunnelId(0), 3, RecentEnd { end: 0x0a00_0001_u32, leaf: ActionId(1), sum: 0 });
        assert_eq!(ends.get::<u32>(TunnelId(0), 3).map(|known| known.end), Some(0x0a00_0001));
        let mut forgets = |change: &mut dyn FnMut(&mut Writer)| {
            ends.begin(&tables);
            ends.put(TunnelId(1), 2, end);
            change(&mut writer);
            assert!(found(&ends, 1, 2).is_some(), "until the next frames");
            ends.begin(&tables);
            assert_eq!(found(&ends, 1, 2), None);
        };
        forgets(&mut |writer| _ = writer.insert4(fib4, Ipv4Addr::LOCALHOST, 32, ActionId(1)));
        forgets(&mut |writer| _ = writer.remove4(fib4, Ipv4Addr::LOCALHOST, 32));
        forgets(&mut |writer| _ = writer.insert6(fib6, 1.into(), 128, ActionId(1)));
        forgets(&mut |writer| writer.remove_fib4(fib4));
    }
}
