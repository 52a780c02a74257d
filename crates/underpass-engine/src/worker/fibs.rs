//! The tables that a burst is looked up in, found once for all its packets.

use std::net::Ipv6Addr;

use crate::lpm::{Address, Layout, Lpm, NO_LEAF};
use crate::tables::{ActionId, Fib4Id, Fib6Id, Guard, Lookup, LookupId};
use crate::worker::recent::Recent;
use crate::worker::view::View;

/// The tables that packets of a family are looked up in, one after the other: one, or that of a VRF and
/// that of all. Three or more are gone through off the fast path.
#[derive(Clone, Copy)]
pub(crate) struct FibList<'a, A> {
    pub(crate) first: &'a Lpm<A>,
    pub(crate) second: Option<&'a Lpm<A>>,
    /// What the first says, if that is asked of a layout at once.
    layout: Option<&'a Layout>,
}

impl<'a, A: Address> FibList<'a, A> {
    pub(crate) fn new(first: &'a Lpm<A>, second: Option<&'a Lpm<A>>) -> Self {
        Self { first, second, layout: first.whole_layout() }
    }

    /// What is to be asked for before [`Self::lookup_batch`], where the first table is large.
    #[inline(always)]
    pub(crate) fn far(&self) -> Option<&'a Layout> {
        self.layout.filter(|_| !self.first.is_hot())
    }

    /// Whether all of it is in the cache.
    #[inline(always)]
    pub(crate) fn is_hot(&self) -> bool {
        self.first.is_hot() && self.second.is_none_or(Lpm::is_hot)
    }

    /// Whether a packet that is behind a look-up already, of its SID or label, is better looked up at once than with others:
    /// to wait for these costs more than memory that is not far.
    #[inline(always)]
    fn is_near(&self) -> bool {
        self.first.is_near() && self.second.is_none_or(Lpm::is_near)
    }

    /// The leaf of the longest prefix that covers `address`.
    #[inline(always)]
    pub(crate) fn lookup(&self, address: A, guard: &Guard<'_>) -> Option<u32> {
        let first = match self.layout {
            Some(layout) => laid_out(layout, self.first, address),
            None => self.first.lookup(address, guard),
        };
        self.or_second(first, address, guard)
    }

    /// The same where it is likely that a layout is asked.
    #[inline(always)]
    pub(crate) fn lookup_laid(&self, address: A, guard: &Guard<'_>) -> Option<u32> {
        let first = match self.layout {
            Some(layout) => layout.leaf(self.first, address),
            None => self.first.lookup(address, guard),
        };
        self.or_second(first, address, guard)
    }

    /// The same where most searches go on below the root besides.
    #[inline(always)]
    pub(crate) fn lookup_deep(&self, address: A, guard: &Guard<'_>) -> Option<u32> {
        let first = match self.layout {
            Some(layout) => layout.leaf(self.first, address),
            None => self.first.lookup_deep(address, guard),
        };
        self.or_second(first, address, guard)
    }

    #[inline(always)]
    fn or_second(&self, found: Option<u32>, address: A, guard: &Guard<'_>) -> Option<u32> {
        match (found, self.second) {
            (None, Some(second)) => second.lookup(address, guard),
            _ => found,
        }
    }

    pub(crate) fn lookup_batch(&self, addresses: &[A], leaves: &mut [u32], guard: &Guard<'_>) {
        self.first.lookup_batch(addresses, leaves, guard);
        let Some(second) = self.second else { return };
        for (leaf, address) in leaves.iter_mut().zip(addresses) {
            if *leaf == NO_LEAF {
                *leaf = second.lookup(*address, guard).unwrap_or(NO_LEAF);
            }
        }
    }
}

/// Not a part of the caller, where most look-ups are in small tables.
#[inline(never)]
fn laid_out<A: Address>(layout: &Layout, table: &Lpm<A>, address: A) -> Option<u32> {
    layout.leaf(table, address)
}

/// A FIB list, found for a burst, so that it need not be found for each packet.
struct Found<'a, A> {
    lookup: LookupId,
    fib: Option<FibList<'a, A>>,
    /// The same, if it is near.
    near: Option<FibList<'a, A>>,
}

impl<'a, A: Address> Found<'a, A> {
    fn new(lookup: LookupId, fib: Option<FibList<'a, A>>) -> Self {
        Self { lookup, fib, near: fib.filter(FibList::is_near) }
    }
}

/// The chains of a family that a burst's packets are looked up in: that of the link that they came in by, and that which the
/// last packet was looked up in besides.
struct FibLists<'a, A> {
    ingress: Found<'a, A>,
    other: Found<'a, A>,
}

impl<'a, A: Address> FibLists<'a, A> {
    fn new(ingress: LookupId, fib: Option<FibList<'a, A>>) -> Self {
        Self { ingress: Found::new(ingress, fib), other: Found::new(ingress, None) }
    }

    #[inline(always)]
    fn found(
        &mut self,
        lookup: LookupId,
        find: impl FnOnce(LookupId) -> Option<FibList<'a, A>>,
    ) -> &Found<'a, A> {
        if self.ingress.lookup == lookup {
            return &self.ingress;
        }
        if self.other.lookup != lookup {
            self.other = Found::new(lookup, find(lookup));
        }
        &self.other
    }
}

/// The tables that a burst's packets are looked up in.
pub(crate) struct Fibs<'a> {
    lists4: FibLists<'a, u32>,
    lists6: FibLists<'a, u128>,
    /// What was looked up last behind a SID: the next segment of a list, mostly.
    pub(crate) next: Known,
    /// What was looked up before it.
    pub(crate) recent: Recent,
}

/// A look-up that was made: in which tables, which address, what it led to.
pub(crate) type Known = Option<(LookupId, Ipv6Addr, ActionId)>;

impl<'a> Fibs<'a> {
    pub(crate) fn new(view: &View<'a>, ingress: LookupId) -> Self {
        Self {
            lists4: FibLists::new(ingress, view.fib_list4(ingress)),
            lists6: FibLists::new(ingress, view.fib_list6(ingress)),
            next: None,
            recent: Recent::default(),
        }
    }

    /// What the packet's target leads to, if the same was looked up last.
    #[inline(always)]
    pub(crate) fn known(&self, lookup: LookupId, target: Ipv6Addr) -> Option<ActionId> {
        match self.next {
            Some((tables, address, id)) if address == target && tables == lookup => Some(id),
            _ => None,
        }
    }

    /// What a segment leads to, if no rule selects among the tables. It is looked up by itself however large they are: the
    /// segments that a router sends to are few.
    #[inline(always)]
    pub(crate) fn segment(&mut self, view: &View<'a>, lookup: LookupId, segment: u128) -> Option<u32> {
        if let Some(leaf) = self.recent.get(lookup, segment) {
            return Some(leaf);
        }
        let leaf = self.fib6(view, lookup)?.lookup(segment, view.guard)?;
        self.recent.put(lookup, segment, leaf);
        Some(leaf)
    }

    /// The tables, if they are few and no rule selects among them.
    #[inline(always)]
    pub(crate) fn fib4(&mut self, view: &View<'a>, lookup: LookupId) -> Option<FibList<'a, u32>> {
        self.lists4.found(lookup, |lookup| view.fib_list4(lookup)).fib
    }

    /// The same for IPv6.
    #[inline(always)]
    pub(crate) fn fib6(&mut self, view: &View<'a>, lookup: LookupId) -> Option<FibList<'a, u128>> {
        self.lists6.found(lookup, |lookup| view.fib_list6(lookup)).fib
    }

    /// The same if they are near besides.
    #[inline(always)]
    pub(crate) fn near4(&mut self, view: &View<'a>, lookup: LookupId) -> Option<FibList<'a, u32>> {
        self.lists4.found(lookup, |lookup| view.fib_list4(lookup)).near
    }

    /// The same for IPv6.
    #[inline(always)]
    pub(crate) fn near6(&mut self, view: &View<'a>, lookup: LookupId) -> Option<FibList<'a, u128>> {
        self.lists6.found(lookup, |lookup| view.fib_list6(lookup)).near
    }
}

impl<'a> View<'a> {
    #[cold]
    fn fib_list4(&self, id: LookupId) -> Option<FibList<'a, u32>> {
        let Lookup { rules4, fibs4, .. } = self.lookup(id)?;
        let fib = |id: &Fib4Id| self.tables.fib4(*id, self.guard);
        match &**fibs4 {
            [first] if rules4.is_empty() => Some(FibList::new(fib(first)?, None)),
            [first, second] if rules4.is_empty() => Some(FibList::new(fib(first)?, fib(second))),
            _ => None,
        }
    }

    #[cold]
    fn fib_list6(&self, id: LookupId) -> Option<FibList<'a, u128>> {
        let Lookup { rules6, fibs6, .. } = self.lookup(id)?;
        let fib = |id: &Fib6Id| self.tables.fib6(*id, self.guard);
        match &**fibs6 {
            [first] if rules6.is_empty() => Some(FibList::new(fib(first)?, None)),
            [first, second] if rules6.is_empty() => Some(FibList::new(fib(first)?, fib(second))),
            _ => None,
        }
    }
}
