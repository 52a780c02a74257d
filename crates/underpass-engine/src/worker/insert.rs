//! Headers that routes put before and into packets, on the fast path: SRv6's, RPL's, IOAM's.

use crate::buffer::Packet;
use crate::counters::{Count, CounterId};
use crate::path::ioam;
use crate::path::rpl::insert_route_fast;
use crate::srv6::headend::{headend_fast, headend_next_hop};
use crate::tables::{Action, Headend, Ioam, LookupId, Rpl};
use crate::worker::env::Env;
use crate::worker::family::Family;
use crate::worker::path::Path;
use crate::worker::rewrite::FastVerdict;
use crate::worker::run::Rewrite;

/// What puts headers before packets, or into them.
pub(crate) trait Insert {
    /// The same, of an action.
    fn of(action: &Action) -> Option<&Self>;

    /// Whether what comes in by a link with this look-up goes where the route says.
    fn goes_on_by(&self, lookup: LookupId) -> bool;

    /// What counts the packets that got them.
    #[inline(always)]
    fn counter(&self) -> Option<CounterId> {
        None
    }

    /// Puts them before the packet of `len` bytes in a frame, or into it, and sends it to where it goes then. `None`: it is
    /// not so simple, and as it was.
    fn insert_fast(&self, env: &Env<'_, '_>, packet: &mut Packet, len: usize) -> Option<FastVerdict>;
}

impl Insert for Headend {
    #[inline(always)]
    fn of(action: &Action) -> Option<&Self> {
        if let Action::Headend(policy) = action { Some(policy) } else { None }
    }

    #[inline(always)]
    fn goes_on_by(&self, lookup: LookupId) -> bool {
        self.via.lookup == lookup
    }

    #[inline(always)]
    fn counter(&self) -> Option<CounterId> {
        self.counter
    }

    #[inline(always)]
    fn insert_fast(&self, env: &Env<'_, '_>, packet: &mut Packet, len: usize) -> Option<FastVerdict> {
        headend_fast(headend_next_hop(env, packet, len, self)?, packet, len, self, None)
    }
}

impl Insert for Rpl {
    #[inline(always)]
    fn of(action: &Action) -> Option<&Self> {
        if let Action::Rpl(route) = action { Some(route) } else { None }
    }

    #[inline(always)]
    fn goes_on_by(&self, lookup: LookupId) -> bool {
        self.via.lookup == lookup
    }

    #[inline(always)]
    fn insert_fast(&self, env: &Env<'_, '_>, packet: &mut Packet, len: usize) -> Option<FastVerdict> {
        insert_route_fast(env.view, packet, len, self)
    }
}

impl Insert for Ioam {
    #[inline(always)]
    fn of(action: &Action) -> Option<&Self> {
        if let Action::Ioam(ioam) = action { Some(ioam) } else { None }
    }

    #[inline(always)]
    fn goes_on_by(&self, _: LookupId) -> bool {
        true
    }

    #[inline(always)]
    fn insert_fast(&self, env: &Env<'_, '_>, packet: &mut Packet, len: usize) -> Option<FastVerdict> {
        ioam::insert_fast(env, packet, len, self)
    }
}

/// How packets get headers.
pub(crate) struct Headers<'v, I>(pub(crate) &'v I);

impl<I> Clone for Headers<'_, I> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<I> Copy for Headers<'_, I> {}

impl<'v, 'a, A: Family, I: Insert> Rewrite<'v, 'a, A> for Headers<'v, I> {
    type Counts = Count;

    #[inline(always)]
    fn for_leaf(self, env: &Env<'v, 'a>, leaf: Option<u32>) -> Option<Self> {
        I::of(env.action(leaf)?).filter(|insert| insert.goes_on_by(env.link.lookup)).map(Self)
    }

    #[inline(always)]
    fn apply<const COUNT: bool>(
        self,
        _: &mut Path<COUNT>,
        env: &Env<'v, 'a>,
        (packet, len): (&mut Packet, usize),
        counts: &mut Count,
    ) -> Option<FastVerdict> {
        let out = self.0.insert_fast(env, packet, len)?;
        counts.packets += 1;
        counts.bytes += len as u64;
        Some(out)
    }

    #[inline(always)]
    fn count<const COUNT: bool>(self, path: &mut Path<COUNT>, counts: Count) {
        path.totals.buffer_moves_avoided += counts.packets;
        if let Some(counter) = self.0.counter().filter(|_| COUNT && counts.packets > 0) {
            path.counters.add(counter, counts);
        }
    }
}
