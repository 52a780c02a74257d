//! Routes by prefix: one table of one family.
//!
//! A route is the id of its [`Info`](super::info::Info), so a million of them that lead to one next hop
//! cost a key and an id each.

#![expect(
    clippy::indexing_slicing,
    reason = "places in lists of the model, found in the same step and not read from a request"
)]

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Bound;

use smallvec::SmallVec;

use super::info::InfoId;

/// IPv4 or IPv6.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) enum Family {
    V4,
    V6,
}

impl Family {
    pub const fn number(self) -> u8 {
        match self {
            Self::V4 => libc::AF_INET as u8,
            Self::V6 => libc::AF_INET6 as u8,
        }
    }

    pub const fn from_number(number: u8) -> Option<Self> {
        match number as i32 {
            libc::AF_INET => Some(Self::V4),
            libc::AF_INET6 => Some(Self::V6),
            _ => None,
        }
    }

    /// Bits of an address.
    pub const fn bits(self) -> u8 {
        match self {
            Self::V4 => 32,
            Self::V6 => 128,
        }
    }

    pub const fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }

    /// The address whose bits these are, left-aligned.
    pub const fn address(self, bits: u128) -> IpAddr {
        match self {
            Self::V4 => IpAddr::V4(Ipv4Addr::from_bits((bits >> 96) as u32)),
            Self::V6 => IpAddr::V6(Ipv6Addr::from_bits(bits)),
        }
    }
}

/// The bits of an address, left-aligned.
pub(crate) const fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => (address.to_bits() as u128) << 96,
        IpAddr::V6(address) => address.to_bits(),
    }
}

/// Ones for the bits behind the first `len`.
const fn host_mask(len: u8) -> u128 {
    match len {
        0 => u128::MAX,
        128.. => 0,
        _ => u128::MAX >> len,
    }
}

/// The first bits of addresses. Bits behind them are 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Prefix {
    /// Left-aligned, whatever the family.
    pub bits: u128,
    pub len: u8,
}

impl Prefix {
    /// Bits behind the first `len` are cleared.
    pub const fn new(bits: u128, len: u8) -> Self {
        Self { bits: bits & !host_mask(len), len }
    }

    pub const fn host(address: IpAddr) -> Self {
        Self { bits: bits(address), len: Family::of(address).bits() }
    }

    pub const fn first(self) -> u128 {
        self.bits
    }

    /// The last address, with ones also behind the bits of an IPv4 address.
    pub const fn last(self) -> u128 {
        self.bits | host_mask(self.len)
    }

    pub const fn contains(self, address: u128) -> bool {
        (self.bits ^ address) & !host_mask(self.len) == 0
    }

    pub const fn covers(self, other: Self) -> bool {
        self.len <= other.len && self.contains(other.bits)
    }
}

/// A prefix as it is ordered in dumps. IPv6: Linux's walk over its tree, children before parents, which
/// is the order of the last addresses, and the longer first. IPv4: the order of the first addresses, and
/// the longer first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Key {
    address: [u8; 16],
    inverted_len: u8,
}

impl Key {
    fn new(family: Family, prefix: Prefix) -> Self {
        match family {
            Family::V4 => Self::raw(prefix.first(), prefix.len),
            Family::V6 => Self::raw(prefix.last(), prefix.len),
        }
    }

    const fn raw(address: u128, len: u8) -> Self {
        Self { address: address.to_be_bytes(), inverted_len: u8::MAX - len }
    }

    pub const fn prefix(self) -> Prefix {
        Prefix::new(u128::from_be_bytes(self.address), u8::MAX - self.inverted_len)
    }
}

/// The routes to one prefix, in the order in which they are considered: the only one, or with this bit the number of a
/// list of several. A million prefixes have one each.
type Slot = InfoId;
const MANY: u32 = 1 << 31;

/// The lists of a table. None that is in use is empty.
#[derive(Debug, Default)]
struct Lists {
    lists: Vec<Vec<InfoId>>,
    free: Vec<u32>,
}

impl Lists {
    fn add(&mut self, ids: Vec<InfoId>) -> Slot {
        let number = self.free.pop().unwrap_or_else(|| {
            self.lists.push(Vec::new());
            self.lists.len() as u32 - 1
        });
        self.lists[number as usize] = ids;
        InfoId(MANY | number)
    }

    fn remove(&mut self, slot: Slot) {
        if let Some(list) = self.get_mut(slot) {
            *list = Vec::new();
            self.free.push(slot.0 & !MANY);
        }
    }

    /// The list of a slot, if it has one.
    fn get_mut(&mut self, slot: Slot) -> Option<&mut Vec<InfoId>> {
        if slot.0 & MANY == 0 { None } else { self.lists.get_mut((slot.0 & !MANY) as usize) }
    }

    fn of<'a>(&'a self, slot: &'a Slot) -> &'a [InfoId] {
        match slot.0 & MANY {
            0 => std::slice::from_ref(slot),
            _ => self.lists.get((slot.0 & !MANY) as usize).map_or(&[], Vec::as_slice),
        }
    }
}

/// A table.
#[derive(Debug)]
pub(crate) struct Table {
    family: Family,
    slots: BTreeMap<Key, Slot>,
    lists: Lists,
    /// How many tables there were when it was made.
    pub created: u32,
    /// How many of the routes are of type `throw`; kept by the caller.
    pub throws: usize,
}

impl Table {
    pub fn new(family: Family, created: u32) -> Self {
        Self { family, slots: BTreeMap::new(), lists: Lists::default(), created, throws: 0 }
    }

    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// The routes to exactly this prefix.
    pub fn get(&self, prefix: Prefix) -> &[InfoId] {
        self.slots.get(&Key::new(self.family, prefix)).map_or(&[], |slot| self.lists.of(slot))
    }

    /// Adds a route to a prefix before the route at a position, or behind all.
    pub fn insert(&mut self, prefix: Prefix, position: usize, id: InfoId) {
        let slot = self.slots.entry(Key::new(self.family, prefix));
        let slot = match slot {
            std::collections::btree_map::Entry::Vacant(vacant) => {
                vacant.insert(id);
                return;
            }
            std::collections::btree_map::Entry::Occupied(occupied) => occupied.into_mut(),
        };
        match self.lists.get_mut(*slot) {
            None => {
                let pair = if position == 0 { vec![id, *slot] } else { vec![*slot, id] };
                *slot = self.lists.add(pair);
            }
            Some(ids) => ids.insert(position.min(ids.len()), id),
        }
    }

    /// Puts a route in the place of another.
    pub fn replace(&mut self, prefix: Prefix, position: usize, id: InfoId) {
        let Some(slot) = self.slots.get_mut(&Key::new(self.family, prefix)) else { return };
        match self.lists.get_mut(*slot) {
            None => *slot = id,
            Some(ids) => {
                if let Some(old) = ids.get_mut(position) {
                    *old = id;
                }
            }
        }
    }

    /// Removes the route to a prefix at a position.
    pub fn remove(&mut self, prefix: Prefix, position: usize) {
        let key = Key::new(self.family, prefix);
        let Some(slot) = self.slots.get_mut(&key) else { return };
        let Some(ids) = self.lists.get_mut(*slot) else {
            self.slots.remove(&key);
            return;
        };
        if position < ids.len() {
            ids.remove(position);
        }
        if let [one] = ids[..] {
            self.lists.remove(*slot);
            *slot = one;
        }
    }

    /// The longest prefix of at most `prefix`'s length that covers it and has routes, with these.
    pub fn longest(&self, prefix: Prefix) -> Option<(Prefix, &[InfoId])> {
        self.longest_by(prefix, |_| true)
    }

    /// The same among those whose routes `wanted` takes.
    pub fn longest_by(
        &self,
        prefix: Prefix,
        wanted: impl Fn(&[InfoId]) -> bool,
    ) -> Option<(Prefix, &[InfoId])> {
        let mut at = prefix;
        loop {
            let (found, slot) = match self.family {
                Family::V4 => self.down(at),
                Family::V6 => self.up(at),
            }?;
            if found.covers(at) {
                if wanted(self.lists.of(slot)) {
                    return Some((found, self.lists.of(slot)));
                }
                at = Prefix::new(found.bits, found.len.checked_sub(1)?);
            } else {
                // What covers both covers the bits that they share.
                let shared = (found.bits ^ at.bits).leading_zeros() as u8;
                at = Prefix::new(at.bits, at.len.checked_sub(1)?.min(shared));
            }
        }
    }

    /// IPv6: the first in order that may cover `at`. Whatever covers `at` ends where it ends or later,
    /// and if it is not the first that does, it covers that one too.
    fn up(&self, at: Prefix) -> Option<(Prefix, &Slot)> {
        let (key, slot) = self.slots.range(Key::raw(at.last(), at.len)..).next()?;
        Some((key.prefix(), slot))
    }

    /// IPv4: the same towards lower addresses: whatever covers `at` begins where it begins or before.
    fn down(&self, at: Prefix) -> Option<(Prefix, &Slot)> {
        let (key, _) = self.slots.range(..=Key::raw(at.first(), 0)).next_back()?;
        let near = key.prefix();
        // Of those that begin there, the longest that is short enough to cover `at`.
        let shared = (near.bits ^ at.bits).leading_zeros() as u8;
        let begin = near.bits.to_be_bytes();
        let mut there = self.slots.range(Key::raw(near.bits, shared.min(at.len))..);
        match there.next().filter(|(key, _)| key.address == begin) {
            Some((key, slot)) => Some((key.prefix(), slot)),
            None => self.slots.get_key_value(key).map(|(key, slot)| (key.prefix(), slot)),
        }
    }

    /// The prefixes inside a prefix, itself included.
    pub fn inside(&self, outer: Prefix) -> impl Iterator<Item = (Prefix, &[InfoId])> {
        let end = match self.family {
            Family::V4 => Key::raw(outer.last(), 0),
            Family::V6 => Key::raw(outer.last(), outer.len),
        };
        self.slots
            .range(Key::raw(outer.first(), u8::MAX)..=end)
            .map(|(key, slot)| (key.prefix(), self.lists.of(slot)))
            .filter(move |(prefix, _)| prefix.len >= outer.len)
    }

    /// All routes in the order of a dump, from behind a key on.
    pub fn after(&self, key: Option<Key>) -> impl Iterator<Item = (Key, &[InfoId])> {
        let from = key.map_or(Bound::Unbounded, Bound::Excluded);
        self.slots.range((from, Bound::Unbounded)).map(|(key, slot)| (*key, self.lists.of(slot)))
    }

    /// How many prefixes have a route.
    pub fn prefixes(&self) -> usize {
        self.slots.len()
    }

    /// The prefixes that have a route which `wanted` takes.
    pub fn with(&self, wanted: impl Fn(InfoId) -> bool) -> Vec<Prefix> {
        let mut found = Vec::new();
        for (key, slot) in &self.slots {
            if self.lists.of(slot).iter().any(|&id| wanted(id)) {
                found.push(key.prefix());
            }
        }
        found
    }
}

/// A few route ids, copied out of a table.
pub(crate) type Ids = SmallVec<[InfoId; 4]>;

/// Where a route is: family, table, prefix.
pub(crate) type Place = (Family, u32, Prefix);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn prefix(family: Family) -> impl Strategy<Value = Prefix> {
        // Few bits, so that prefixes nest and meet.
        (any::<u8>(), 0u8..=9).prop_map(move |(byte, len)| {
            let len = if len == 9 { family.bits() } else { len };
            Prefix::new(u128::from(byte) << 120, len)
        })
    }

    fn table(family: Family, prefixes: &[Prefix]) -> Table {
        let mut table = Table::new(family, 0);
        for (i, &prefix) in prefixes.iter().enumerate() {
            if table.get(prefix).is_empty() {
                table.insert(prefix, 0, InfoId(i as u32));
            }
        }
        table
    }

    fn check(family: Family, prefixes: &[Prefix], wanted: Prefix) {
        let table = table(family, prefixes);
        let naive = prefixes.iter().copied().filter(|p| p.covers(wanted)).max_by_key(|p| p.len);
        assert_eq!(table.longest(wanted).map(|(p, _)| p), naive);
        let mut inside: Vec<_> = table.inside(wanted).map(|(p, _)| p).collect();
        let mut naive: Vec<_> = prefixes.iter().copied().filter(|&p| wanted.covers(p)).collect();
        for list in [&mut inside, &mut naive] {
            list.sort_by_key(|p| (p.bits, p.len));
        }
        naive.dedup();
        assert_eq!(inside, naive);
    }

    proptest! {
        #[test]
        fn longest_and_inside(
            v4 in proptest::collection::vec(prefix(Family::V4), 0..24),
            v6 in proptest::collection::vec(prefix(Family::V6), 0..24),
            wanted4 in prefix(Family::V4),
            wanted6 in prefix(Family::V6),
        ) {
            check(Family::V4, &v4, wanted4);
            check(Family::V6, &v6, wanted6);
        }

        /// Linux 6.12: `ip -6 route` lists what a prefix covers before the prefix.
        #[test]
        fn order_of_ipv6(prefixes in proptest::collection::vec(prefix(Family::V6), 0..24)) {
            let table = table(Family::V6, &prefixes);
            let order: Vec<_> = table.after(None).map(|(key, _)| key.prefix()).collect();
            for (i, a) in order.iter().enumerate() {
                for b in &order[i + 1..] {
                    prop_assert!(b.covers(*a) || a.last() < b.first());
                }
            }
        }
    }

    #[test]
    fn slots_grow_and_shrink() {
        let mut table = Table::new(Family::V4, 0);
        let prefix = Prefix::new(10 << 120, 8);
        table.insert(prefix, 0, InfoId(1));
        table.insert(prefix, 9, InfoId(3));
        table.insert(prefix, 1, InfoId(2));
        assert_eq!(table.get(prefix), [InfoId(1), InfoId(2), InfoId(3)]);
        table.replace(prefix, 2, InfoId(4));
        table.remove(prefix, 0);
        assert_eq!(table.get(prefix), [InfoId(2), InfoId(4)]);
        table.remove(prefix, 1);
        table.remove(prefix, 0);
        assert!(table.is_empty());
    }

    #[test]
    fn a_slot_is_small() {
        assert_eq!((size_of::<Key>(), size_of::<Slot>()), (17, 4));
    }
}
