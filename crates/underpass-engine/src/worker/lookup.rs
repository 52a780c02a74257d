//! What the packets of a burst are, and what they are looked up to: each when its turn comes, where the tables are in the
//! cache; or all of them first, so that no packet waits for memory by itself.

use crate::buffer::{BURST, Packet};
use crate::counters::Counters;
use crate::lpm::NO_LEAF;
use crate::worker::env::{Env, Packets, Validated};
use crate::worker::family::Family;
use crate::worker::prefetch::prefetch;
use crate::worker::recent::Recent;

/// A packet sound and for this router.
#[derive(Clone, Copy)]
pub(crate) struct Looked<A> {
    /// Its destination, for the one who has seen it.
    pub(crate) target: A,
    /// Its length.
    pub(crate) len: usize,
    /// What the destination is looked up to.
    pub(crate) leaf: Option<u32>,
}

/// How the packets of a burst are seen. `left` are those behind the packet.
pub(crate) trait BurstLookup: Copy {
    /// Whether a packet is looked up when its turn comes.
    const EACH: bool;

    /// What a packet is. `None`: it is not sound and for this router.
    fn validate(self, env: &Env<'_, '_>, packet: &Packet, left: &Packets<'_>) -> Option<Validated>;

    /// What a packet is looked up to that is of this family.
    fn look_up<A: Family>(self, env: &Env<'_, '_>, plain: (A, usize), left: &Packets<'_>) -> Looked<A>;

    /// A packet behind one of this family. `None`: it is not sound and for this router, or of the other family.
    fn next<A: Family>(self, env: &Env<'_, '_>, packet: &Packet, left: &Packets<'_>) -> Option<Looked<A>>;

    /// An IPv6 packet behind others, if its look-up is known already.
    fn remembered(
        self,
        env: &Env<'_, '_>,
        recent: &Recent,
        packet: &Packet,
        left: &Packets<'_>,
    ) -> Option<Looked<u128>>;

    /// The length of a packet behind another one that is looked up alike. `None`: it is not.
    fn again<A: Family>(
        self,
        env: &Env<'_, '_>,
        packet: &Packet,
        left: &Packets<'_>,
        before: Looked<A>,
    ) -> Option<usize>;
}

/// Each packet when its turn comes: the tables are in the cache.
#[derive(Clone, Copy)]
pub(crate) struct LookupEach;

impl BurstLookup for LookupEach {
    const EACH: bool = true;

    #[inline(always)]
    fn validate(self, env: &Env<'_, '_>, packet: &Packet, _: &Packets<'_>) -> Option<Validated> {
        env.validate(packet.bytes())
    }

    #[inline(always)]
    fn look_up<A: Family>(self, env: &Env<'_, '_>, (target, len): (A, usize), _: &Packets<'_>) -> Looked<A> {
        let leaf = A::chain(env).and_then(|fib| fib.lookup(target, env.view.guard));
        Looked { target, len, leaf }
    }

    #[inline(always)]
    fn next<A: Family>(self, env: &Env<'_, '_>, packet: &Packet, _: &Packets<'_>) -> Option<Looked<A>> {
        let (target, len) = A::validate(env.inside::<A>(packet.bytes())?, env.bits4)?;
        let leaf = A::chain(env).and_then(|fib| fib.lookup_laid(target, env.view.guard));
        Some(Looked { target, len, leaf })
    }

    #[inline(always)]
    fn remembered(
        self,
        env: &Env<'_, '_>,
        recent: &Recent,
        packet: &Packet,
        _: &Packets<'_>,
    ) -> Option<Looked<u128>> {
        let (target, len) = u128::validate(env.inside::<u128>(packet.bytes())?, env.bits4)?;
        let leaf = recent.get(env.link.lookup, target)?;
        Some(Looked { target, len, leaf: Some(leaf) })
    }

    #[inline(always)]
    fn again<A: Family>(
        self,
        env: &Env<'_, '_>,
        packet: &Packet,
        _: &Packets<'_>,
        before: Looked<A>,
    ) -> Option<usize> {
        A::validate_to(env.inside::<A>(packet.bytes())?, before.target, env.bits4)
    }
}

/// All packets first.
pub(crate) struct LookupAll {
    /// The length of each, with [`V6`] if it is of IPv6; 0: it is not sound and for this router.
    kinds: [u32; BURST],
    /// What each is looked up to.
    leaves: [u32; BURST],
    /// How many they are.
    count: usize,
}

/// Above all lengths of packets.
const V6: u32 = 1 << 31;

impl LookupAll {
    /// Looks the packets of a burst up, and asks for what they are looked up to.
    #[inline(never)]
    pub(crate) fn new(env: &Env<'_, '_>, counters: &Counters, burst: &[Packet]) -> Self {
        let mut all = Self { kinds: [0; BURST], leaves: [NO_LEAF; BURST], count: burst.len() };
        let (mut targets4, mut count4) = ([0u32; BURST], 0);
        let (mut targets6, mut count6) = ([0u128; BURST], 0);
        // A large table of IPv4 is in memory, from where an answer comes while other packets are checked.
        let far = env.fib4.and_then(|chain| chain.far());
        for (packet, kind) in burst.iter().zip(&mut all.kinds) {
            match env.validate(packet.bytes()) {
                Some(Validated::V6(target, len)) => {
                    *kind = len as u32 | V6;
                    targets6[count6 % BURST] = target;
                    count6 += 1;
                }
                Some(Validated::V4(target, len)) => {
                    *kind = len as u32;
                    targets4[count4 % BURST] = target;
                    count4 += 1;
                    if let Some(fib) = far {
                        fib.prefetch(target);
                    }
                }
                None => {}
            }
        }
        let (targets4, targets6) = (&targets4[..count4.min(BURST)], &targets6[..count6.min(BURST)]);
        if targets6.len() == burst.len() {
            look_up_all(env, targets6, &mut all.leaves);
        } else if targets4.len() == burst.len() {
            look_up_all(env, targets4, &mut all.leaves);
        } else {
            let (mut leaves4, mut leaves6) = ([NO_LEAF; BURST], [NO_LEAF; BURST]);
            look_up_all(env, targets4, &mut leaves4);
            look_up_all(env, targets6, &mut leaves6);
            let (mut leaves4, mut leaves6) = (leaves4.into_iter(), leaves6.into_iter());
            for (kind, leaf) in all.kinds.iter().zip(&mut all.leaves) {
                let found = match kind {
                    0 => None,
                    V6.. => leaves6.next(),
                    _ => leaves4.next(),
                };
                *leaf = found.unwrap_or(NO_LEAF);
            }
        }
        prefetch(env.view, counters, burst, &all.leaves);
        all
    }

    /// The length, with its family, of the packet before so many, and what it is looked up to.
    #[inline(always)]
    pub(crate) fn of(&self, left: &Packets<'_>) -> (u32, u32) {
        let place = self.count.wrapping_sub(left.len() + 1);
        let kind = self.kinds.get(place).copied().unwrap_or_default();
        (kind, self.leaves.get(place).copied().unwrap_or(NO_LEAF))
    }
}

impl BurstLookup for &LookupAll {
    const EACH: bool = false;

    #[inline(always)]
    fn validate(self, _: &Env<'_, '_>, _: &Packet, left: &Packets<'_>) -> Option<Validated> {
        let (kind, _) = self.of(left);
        let len = (kind & !V6) as usize;
        match kind {
            0 => None,
            V6.. => Some(Validated::V6(u128::NOWHERE, len)),
            _ => Some(Validated::V4(u32::NOWHERE, len)),
        }
    }

    #[inline(always)]
    fn look_up<A: Family>(self, _: &Env<'_, '_>, (target, len): (A, usize), left: &Packets<'_>) -> Looked<A> {
        Looked { target, len, leaf: known(self.of(left).1) }
    }

    #[inline(always)]
    fn next<A: Family>(self, _: &Env<'_, '_>, _: &Packet, left: &Packets<'_>) -> Option<Looked<A>> {
        let (kind, leaf) = self.of(left);
        let is = kind != 0 && (kind >= V6) == A::IPV6;
        is.then_some(Looked { target: A::NOWHERE, len: (kind & !V6) as usize, leaf: known(leaf) })
    }

    #[inline(always)]
    fn remembered(
        self,
        env: &Env<'_, '_>,
        _: &Recent,
        packet: &Packet,
        left: &Packets<'_>,
    ) -> Option<Looked<u128>> {
        self.next(env, packet, left)
    }

    #[inline(always)]
    fn again<A: Family>(
        self,
        env: &Env<'_, '_>,
        packet: &Packet,
        left: &Packets<'_>,
        before: Looked<A>,
    ) -> Option<usize> {
        let look = self.next::<A>(env, packet, left)?;
        (look.leaf == before.leaf).then_some(look.len)
    }
}

#[inline(always)]
fn known(leaf: u32) -> Option<u32> {
    (leaf != NO_LEAF).then_some(leaf)
}

/// Looks addresses up.
#[inline(always)]
fn look_up_all<A: Family>(env: &Env<'_, '_>, targets: &[A], leaves: &mut [u32; BURST]) {
    let guard = env.view.guard;
    match A::chain(env) {
        Some(fib) if fib.is_hot() => {
            for (target, leaf) in targets.iter().zip(leaves) {
                *leaf = fib.lookup_deep(*target, guard).unwrap_or(NO_LEAF);
            }
        }
        Some(fib) => fib.lookup_batch(targets, leaves, guard),
        None => {}
    }
}
