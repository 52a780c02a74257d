//! Which routes have been compiled, what each compilation holds, and how it is found again.
//!
//! A router has a hundred thousand SIDs, each with an action of its own. So a compilation is kept in one place, and
//! whoever looks for it (by its routes, by one of them, by an address that it depends on) knows its number.

#![expect(
    clippy::indexing_slicing,
    reason = "places in lists of the model, found in the same step and not read from a request"
)]

use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::BuildHasher;
use std::mem;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use hashbrown::HashTable;
use underpass_engine::counters::CounterId;
use underpass_engine::tables::{ActionId, Discard, IoamSeen, NextHopId, TunnelId};

use super::info::InfoId;
use super::policies::Policies;
use super::published::Scope;
use super::table::{Family, Ids, Prefix, bits};

/// Routes that are used together, the scope in which they look up, and the neighbour that the packets are for
/// where the action depends on it.
pub(super) type ActionKey = (Ids, Scope, Option<Box<IpAddr>>);

/// Names a compilation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Number(u32);

/// What a compilation has taken and gives back, or depends on.
#[derive(Debug)]
pub(super) enum Holding {
    /// The action of one of its buckets.
    Child(ActionId),
    NextHop(NextHopKey),
    /// How this address is resolved.
    Resolution(IpAddr),
    /// What it puts before packets that no device of its own puts there.
    Tunnel(TunnelId),
    /// The counter of a policy.
    Policy(CounterId),
}

/// A compilation. Its key is in parts, which takes less room.
#[derive(Debug)]
pub(super) struct Compiled {
    routes: Ids,
    scope: Scope,
    pub neighbour: Option<Box<IpAddr>>,
    pub id: ActionId,
    pub holds: Box<[Holding]>,
}

impl Compiled {
    pub fn key(&self) -> ActionKey {
        (self.routes.clone(), self.scope, self.neighbour.clone())
    }

    fn is_of(&self, (routes, scope, neighbour): &ActionKey) -> bool {
        (&self.routes, &self.scope, &self.neighbour) == (routes, scope, neighbour)
    }

    /// As that of its key.
    fn hash(&self, hasher: &RandomState) -> u64 {
        hasher.hash_one((&self.routes, self.scope, &self.neighbour))
    }
}

/// The compilations of a route. Nearly always there is one.
#[derive(Debug, Default)]
enum Few {
    #[default]
    None,
    One(Number),
    #[allow(clippy::box_collection, reason = "keeps the usual case small")]
    Many(Box<Vec<Number>>),
}

impl Few {
    fn as_slice(&self) -> &[Number] {
        match self {
            Self::None => &[],
            Self::One(number) => std::slice::from_ref(number),
            Self::Many(numbers) => numbers,
        }
    }

    fn push(&mut self, number: Number) {
        match self {
            Self::None => *self = Self::One(number),
            Self::One(first) => *self = Self::Many(Box::new(vec![*first, number])),
            Self::Many(numbers) => numbers.push(number),
        }
    }

    fn remove(&mut self, number: Number) {
        match self {
            Self::One(one) if *one == number => *self = Self::None,
            Self::Many(numbers) => numbers.retain(|kept| *kept != number),
            _ => {}
        }
    }
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Registry {
    entries: Vec<Option<Compiled>>,
    free: Vec<Number>,
    by_key: HashTable<Number>,
    hasher: RandomState,
    /// At the number of each info.
    by_info: Vec<Few>,
    resolutions: BTreeSet<(Family, [u8; 16], Number)>,
}

impl Registry {
    pub fn get(&self, number: Number) -> Option<&Compiled> {
        self.entries.get(number.0 as usize)?.as_ref()
    }

    pub fn find(&self, key: &ActionKey) -> Option<Number> {
        let is = |number: &Number| self.get(*number).is_some_and(|compiled| compiled.is_of(key));
        self.by_key.find(self.hasher.hash_one(key), is).copied()
    }

    /// The compilations that a route is part of.
    pub fn of(&self, info: InfoId) -> &[Number] {
        self.by_info.get(info.0 as usize).map_or(&[], Few::as_slice)
    }

    pub fn numbers(&self) -> Vec<Number> {
        let used = self.entries.iter().zip(0..).filter(|(entry, _)| entry.is_some());
        used.map(|(_, number)| Number(number)).collect()
    }

    pub fn insert(&mut self, key: ActionKey, id: ActionId, holds: Vec<Holding>) -> Number {
        let hash = self.hasher.hash_one(&key);
        let number = self.free.pop().unwrap_or_else(|| {
            self.entries.push(None);
            Number(self.entries.len() as u32 - 1)
        });
        for info in &key.0 {
            let at = info.0 as usize;
            if self.by_info.len() <= at {
                self.by_info.resize_with(at + 1, Few::default);
            }
            self.by_info[at].push(number);
        }
        self.watch(number, &holds);
        let (routes, scope, neighbour) = key;
        self.entries[number.0 as usize] =
            Some(Compiled { routes, scope, neighbour, id, holds: holds.into() });
        let Self { by_key, entries, hasher, .. } = self;
        by_key.insert_unique(hash, number, |other| {
            let entry = entries.get(other.0 as usize).and_then(Option::as_ref);
            entry.map_or(0, |compiled| compiled.hash(hasher))
        });
        number
    }

    /// Forgets a compilation, and returns what it was.
    pub fn remove(&mut self, number: Number) -> Option<Compiled> {
        let compiled = self.entries.get_mut(number.0 as usize)?.take()?;
        if let Ok(entry) = self.by_key.find_entry(compiled.hash(&self.hasher), |other| *other == number) {
            entry.remove();
        }
        for info in &compiled.routes {
            if let Some(few) = self.by_info.get_mut(info.0 as usize) {
                few.remove(number);
            }
        }
        self.unwatch(number, &compiled.holds);
        self.free.push(number);
        Some(compiled)
    }

    /// A compilation holds other things now; returns what it held.
    pub fn hold(&mut self, number: Number, holds: Vec<Holding>) -> Box<[Holding]> {
        let Some(compiled) = self.entries.get_mut(number.0 as usize).and_then(Option::as_mut) else {
            return holds.into();
        };
        let holds = mem::replace(&mut compiled.holds, holds.into());
        self.unwatch(number, &holds);
        let Some(compiled) = self.entries.get_mut(number.0 as usize).and_then(Option::take) else {
            return holds;
        };
        self.watch(number, &compiled.holds);
        self.entries[number.0 as usize] = Some(compiled);
        holds
    }

    fn watch(&mut self, number: Number, holds: &[Holding]) {
        self.resolutions.extend(places(number, holds));
    }

    fn unwatch(&mut self, number: Number, holds: &[Holding]) {
        for place in places(number, holds) {
            self.resolutions.remove(&place);
        }
    }

    /// The compilations that depend on how an address inside a prefix is resolved.
    pub fn resolving(&self, family: Family, prefix: Prefix) -> BTreeSet<Number> {
        let bytes = |bits: u128| bits.to_be_bytes();
        let from = (family, bytes(prefix.first()), Number(0));
        let to = (family, bytes(prefix.last()), Number(u32::MAX));
        self.resolutions.range(from..=to).map(|(_, _, number)| *number).collect()
    }
}

fn places(number: Number, holds: &[Holding]) -> impl Iterator<Item = (Family, [u8; 16], Number)> {
    holds.iter().filter_map(move |holding| match holding {
        Holding::Resolution(address) => Some((Family::of(*address), bits(*address).to_be_bytes(), number)),
        _ => None,
    })
}

/// What a route says of the MTU of its packets, and of the hop limit of the router's own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub(crate) struct RouteLimits {
    /// The MTU in bytes; 0: that of the link. Linux takes none above 65,520.
    pub bytes: u16,
    /// `mtu lock`.
    pub locked: bool,
    /// `hoplimit`; 0: none.
    pub hop_limit: u8,
}

impl RouteLimits {
    /// The MTU in bytes; 0: that of the link.
    pub fn mtu(self) -> u32 {
        self.bytes.into()
    }
}

/// A neighbour that routes lead to: link, address, and what the route says of MTU and hop limit.
pub(crate) type NextHopKey = (u32, IpAddr, RouteLimits);

/// The actions that there are, and what they depend on.
#[derive(Debug, Default)]
pub(crate) struct Actions {
    pub(super) registry: Registry,
    pub last: Option<(InfoId, Scope, ActionId)>,
    pub next_hops: HashMap<NextHopKey, (NextHopId, usize)>,
    /// The actions that send to a next hop and do nothing else.
    pub forwards: HashMap<ActionId, NextHopId>,
    /// The action of each next hop that a host entry needed, with the source that its route says.
    pub hosts: HashMap<(NextHopKey, Option<IpAddr>), ActionId>,
    /// The actions that depend on a neighbour: link, address.
    pub(super) neighbours: BTreeMap<(u32, IpAddr), BTreeSet<Number>>,
    pub policies: Policies,
    /// How many packets the ways have seen that count them.
    pub frequencies: HashMap<CounterId, Arc<[IoamSeen]>>,
    pub discards: [Option<ActionId>; 4],
    pub handing_over: Option<ActionId>,
    /// What links sent from when an encapsulation was compiled that takes that for its source.
    pub sources: BTreeMap<u32, Option<Ipv6Addr>>,
}

impl Actions {
    pub fn throw(&self) -> Option<ActionId> {
        self.discards.get(discard_index(Discard::Throw)).copied().flatten()
    }

    pub(super) fn compiled(&self, key: &ActionKey) -> Option<(Number, ActionId)> {
        let number = self.registry.find(key)?;
        Some((number, self.registry.get(number)?.id))
    }
}

pub(super) const fn discard_index(discard: Discard) -> usize {
    match discard {
        Discard::Blackhole => 0,
        Discard::Unreachable => 1,
        Discard::Prohibit => 2,
        Discard::Throw => 3,
    }
}

/// The type of what is no route but compiled as one: the parameters that `tunnel_key` gives to packets for a tunnel.
pub(super) const KEYED: u8 = libc::RTN_UNSPEC;

/// What a compilation collects.
#[derive(Default)]
pub(super) struct Build {
    pub holds: Vec<Holding>,
    /// For packets that are there already, with the Ethernet header that they have inside: [`KEYED`].
    pub keyed: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCOPE: Scope = Scope::Table(7);

    fn key(infos: &[u32]) -> ActionKey {
        (infos.iter().map(|&id| InfoId(id)).collect(), SCOPE, None)
    }

    fn resolution(address: &str) -> Vec<Holding> {
        vec![Holding::Resolution(address.parse().unwrap())]
    }

    #[test]
    fn found_by_key_by_route_and_by_address() {
        let mut registry = Registry::default();
        let one = registry.insert(key(&[3]), ActionId(1), resolution("fc00::1"));
        let two = registry.insert(key(&[3, 5]), ActionId(2), resolution("fc00::2"));
        assert_eq!((registry.find(&key(&[3])), registry.find(&key(&[3, 5]))), (Some(one), Some(two)));
        assert_eq!((registry.find(&key(&[5])), registry.of(InfoId(4))), (None, &[][..]));
        assert_eq!((registry.of(InfoId(3)), registry.of(InfoId(5))), (&[one, two][..], &[two][..]));
        let inside = |registry: &Registry, address: &str| {
            registry.resolving(Family::V6, Prefix::host(address.parse().unwrap()))
        };
        assert_eq!(inside(&registry, "fc00::2"), BTreeSet::from([two]));

        let held = registry.hold(two, resolution("fc00::3"));
        assert!(matches!(held[..], [Holding::Resolution(address)] if address.to_string() == "fc00::2"));
        assert_eq!((inside(&registry, "fc00::2").len(), inside(&registry, "fc00::3").len()), (0, 1));

        assert_eq!(registry.remove(one).unwrap().id, ActionId(1));
        assert!(registry.remove(one).is_none() && registry.find(&key(&[3])).is_none());
        assert_eq!((registry.of(InfoId(3)), registry.numbers()), (&[two][..], vec![two]));
        assert_eq!(registry.insert(key(&[9]), ActionId(4), Vec::new()), one);
    }

    /// A hundred thousand of them are kept.
    #[test]
    fn a_compilation_is_small() {
        assert_eq!((size_of::<Option<Compiled>>(), size_of::<Few>(), size_of::<Holding>()), (64, 16, 28));
    }
}
