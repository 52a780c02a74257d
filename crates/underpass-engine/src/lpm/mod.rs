//! Longest-prefix match.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::publish::{Guard, Retirer, Slab};

/// An address of one family, as a number in host byte order.
pub trait Address: Copy + Ord + Send + Sync + 'static {
    /// Bits of an address.
    const BITS: u8;
    /// The first `len` bits, the rest zero.
    fn masked(self, len: u8) -> Self;
}

impl Address for u32 {
    const BITS: u8 = 32;
    fn masked(self, len: u8) -> Self {
        if len == 0 { 0 } else { self & (Self::MAX << (32 - len)) }
    }
}

impl Address for u128 {
    const BITS: u8 = 128;
    fn masked(self, len: u8) -> Self {
        if len == 0 { 0 } else { self & (Self::MAX << (128 - len)) }
    }
}

/// A table of prefixes, each with a leaf below 2³⁰.
#[derive(Clone)]
pub struct Lpm<A: Address> {
    published: Arc<Slab<BTreeMap<(u8, A), u32>>>,
}

fn longest<A: Address>(routes: &BTreeMap<(u8, A), u32>, address: A) -> Option<u32> {
    (0..=A::BITS).rev().find_map(|len| routes.get(&(len, address.masked(len))).copied())
}

impl<A: Address> Lpm<A> {
    pub(crate) fn new(retirer: &Retirer) -> Self {
        Self { published: Arc::new(Slab::new(1, retirer)) }
    }

    /// The leaf of the longest prefix that covers `address`.
    #[inline]
    pub fn lookup(&self, address: A, guard: &Guard<'_>) -> Option<u32> {
        longest(self.published.get(0, guard)?, address)
    }

    /// Looks up as many addresses as both slices have, in lockstep; [`NO_LEAF`] where there is none.
    pub fn lookup_batch(&self, addresses: &[A], leaves: &mut [u32], guard: &Guard<'_>) {
        for (address, leaf) in addresses.iter().zip(leaves) {
            *leaf = self.lookup(*address, guard).unwrap_or(NO_LEAF);
        }
    }

    /// Whether the table is so small that [`Self::lookup`] one by one is faster than
    /// [`Self::lookup_batch`].
    #[inline]
    pub fn is_hot(&self) -> bool {
        true
    }

    fn change<R>(&self, retirer: &mut Retirer, change: impl FnOnce(&mut BTreeMap<(u8, A), u32>) -> R) -> R {
        let mut routes = self.published.peek(0, retirer).cloned().unwrap_or_default();
        let result = change(&mut routes);
        self.published.replace(0, Some(routes), retirer);
        result
    }

    pub(crate) fn insert(&self, address: A, len: u8, leaf: u32, retirer: &mut Retirer) -> Option<u32> {
        if len > A::BITS {
            return None;
        }
        self.change(retirer, |routes| routes.insert((len, address.masked(len)), leaf))
    }

    pub(crate) fn remove(&self, address: A, len: u8, retirer: &mut Retirer) -> Option<u32> {
        if len > A::BITS {
            return None;
        }
        self.change(retirer, |routes| routes.remove(&(len, address.masked(len))))
    }

    pub(crate) fn longest(&self, address: A, retirer: &Retirer) -> Option<u32> {
        longest(self.published.peek(0, retirer)?, address)
    }
}

/// What [`Lpm::lookup_batch`] says where no prefix covers the address.
pub const NO_LEAF: u32 = u32::MAX;
