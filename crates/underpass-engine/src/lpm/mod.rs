//! Longest-prefix match.
//!
//! ```text
//! address   |      16 bits      | 8 bits | 0..24 bits | 8 bits |  0..32 bits
//!           root: direct array ──> node ── skipped ───> node ──> leaf
//! ```
//!
//! The root is an array of 65,536 entries. An entry is a leaf with the rest of its prefix, where one
//! prefix alone is below it, or a node of 256 slots (see [`node`]), which lies behind as many bits as
//! all its prefixes share. All nodes of a family lie in one arena; a table by itself takes as much
//! memory as its root's entries touch.
//!
//! A table of IPv4 with many routes is laid out flat besides (see [`flat`]), and one of IPv6 has buckets for programs in the
//! kernel (see [`buckets`]).
//!
//! A change writes the one node that it concerns anew, and publishes it with one store; readers in
//! the old node finish there, and its block is used again when all of them have begun another burst.

mod arena;
mod batch;
mod buckets;
mod edit;
mod entry;
mod flat;
mod node;
mod record;

use std::marker::PhantomData;
use std::sync::atomic::{
    AtomicU32,
    Ordering::{Acquire, Relaxed},
};

pub(crate) use arena::{Arena, Block, Pages, Words};
use buckets::Buckets;
pub(crate) use buckets::{DIRECTORY, PROBES, SPREAD, WORDS as BUCKET_WORDS};
pub(crate) use edit::Edit;
use entry::{Entry, Kind, NONE};
use flat::Flat;
pub(crate) use flat::{DEEP, Layout};
pub(crate) use node::{ENTRIES as NODE_ENTRIES, META as NODE_META};

use crate::publish::Guard;

/// What [`Lpm::lookup_batch`] says where no prefix covers the address.
pub const NO_LEAF: u32 = u32::MAX;

/// How a leaf is written in the trie: leaf + 1, or 0 for none.
type Mark = u32;

/// The largest leaf.
pub const MAX_LEAF: u32 = (1 << 24) - 2;

/// Bits of an address that the root consumes.
const ROOT: u8 = 16;
/// Where in a root the leaves of prefixes shorter than [`ROOT`] begin, painted on the slots that they
/// cover: the prefix's length << 32 | its mark, or 0.
pub(crate) const COVERS: usize = 1 << ROOT;
/// Where in a root these prefixes themselves begin, each at 1 and its bits: its mark, or 0.
const SHORTS: usize = 2 << ROOT;
/// Where in a root the mark of the prefix of no bits is: its leaf + 1, or 0.
pub(crate) const DEFAULT: usize = 3 << ROOT;
/// Where it says whether a prefix of 1 to 15 bits was ever there.
pub(crate) const COVERED: usize = DEFAULT + 1;
/// Where it says where programs in the kernel find the table laid out: of IPv4 entries << 32 | slots, of IPv6 the words of a
/// directory << 32 | its first | [`DIRECTORY`], or 0.
pub(crate) const FLAT: usize = DEFAULT + 2;
/// Words of a root, as a power of two.
const ROOT_BITS: u32 = ROOT as u32 + 2;

/// An address of one family, as a number in host byte order.
pub trait Address: Copy + Eq + Send + Sync + 'static {
    /// Bits of an address.
    const BITS: u8;

    /// Most routes of a table of which [`Lpm::is_hot`] holds: with more of them, one by one takes longer
    /// than a burst, as what is found at a level is not foreseen.
    const HOT: u32;

    /// The 64 bits from bit `from` on, zero behind the end; `from` ≤ [`Self::BITS`], where 64 or 128
    /// bits further on say whatever they like.
    fn window(self, from: u8) -> u64;

    /// The first `len` bits, then those of `window` as far as there is room.
    #[must_use]
    fn with_window(self, len: u8, window: u64) -> Self;

    /// The first and the second half of the address in 128 bits, left-aligned.
    fn halves(self) -> [u64; 2];

    /// The reverse of [`Self::halves`].
    fn from_halves(halves: [u64; 2]) -> Self;

    /// The address in a form of which any bytes are quickly read.
    type Spread: Copy + Default;

    /// The address in that form.
    fn spread(self) -> Self::Spread;

    /// Byte `at` of the address.
    fn byte(spread: &Self::Spread, at: u8) -> u8;

    /// The 64 bits from byte `at` on, zero behind the end; anything if nothing is left.
    fn spread_window(spread: &Self::Spread, at: u8) -> u64;
}

impl Address for u32 {
    const BITS: u8 = 32;
    const HOT: u32 = 16_384;

    #[inline(always)]
    fn window(self, from: u8) -> u64 {
        (u64::from(self) << 32) << (from & 63)
    }

    fn with_window(self, len: u8, window: u64) -> Self {
        let kept = !Self::MAX.checked_shr(len.into()).unwrap_or(0);
        self & kept | ((window >> 32) as u32).checked_shr(len.into()).unwrap_or(0)
    }

    fn halves(self) -> [u64; 2] {
        [self.window(0), 0]
    }

    fn from_halves([first, _]: [u64; 2]) -> Self {
        (first >> 32) as u32
    }

    type Spread = u64;

    #[inline(always)]
    fn spread(self) -> u64 {
        self.window(0)
    }

    #[inline(always)]
    fn byte(spread: &u64, at: u8) -> u8 {
        ((spread << ((8 * at) & 63)) >> 56) as u8
    }

    #[inline(always)]
    fn spread_window(spread: &u64, at: u8) -> u64 {
        spread << ((8 * at) & 63)
    }
}

impl Address for u128 {
    const BITS: u8 = 128;
    const HOT: u32 = 2_048;

    #[inline(always)]
    fn window(self, from: u8) -> u64 {
        let [first, second] = self.halves();
        // Most prefixes end in the first half, and a shift of 128 bits costs three times as much.
        if from < 64 { first << from | second >> 1 >> (63 - from) } else { second << (from & 63) }
    }

    fn with_window(self, len: u8, window: u64) -> Self {
        let kept = !Self::MAX.checked_shr(len.into()).unwrap_or(0);
        self & kept | (u128::from(window) << 64).checked_shr(len.into()).unwrap_or(0)
    }

    fn halves(self) -> [u64; 2] {
        [(self >> 64) as u64, self as u64]
    }

    fn from_halves([first, second]: [u64; 2]) -> Self {
        u128::from(first) << 64 | u128::from(second)
    }

    type Spread = [u8; 24];

    #[inline(always)]
    fn spread(self) -> [u8; 24] {
        let [first, second] = self.halves().map(u64::to_be_bytes);
        std::array::from_fn(|n| match n {
            0..8 => first[n],
            8..16 => second[n - 8],
            _ => 0,
        })
    }

    #[inline(always)]
    fn byte(spread: &[u8; 24], at: u8) -> u8 {
        spread[usize::from(at & 15)]
    }

    #[inline(always)]
    fn spread_window(spread: &[u8; 24], at: u8) -> u64 {
        // From the end on the window is of no use: nothing is left to compare.
        let at = usize::from(at & 15);
        u64::from_be_bytes(spread[at..at + 8].try_into().unwrap_or_default())
    }
}

/// A table of prefixes, each with a leaf of at most [`MAX_LEAF`].
pub struct Lpm<A> {
    root: Words,
    arena: Words,
    routes: AtomicU32,
    flat: Flat,
    buckets: Buckets,
    address: PhantomData<A>,
}

impl<A: Address> Lpm<A> {
    /// An empty table, whose nodes will lie in `arena`.
    pub(crate) fn new(arena: &Arena) -> Self {
        let root = Words::shared(arena.region(), ROOT_BITS, Pages::Small);
        if root.offset() != 0 {
            // A program that reads memory that is not there yet finds zeros too, but takes a microsecond for it.
            Self::touch(&root, 0);
            root.word(DEFAULT).store(0, Relaxed);
        }
        Self {
            root,
            arena: arena.words().clone(),
            routes: AtomicU32::new(0),
            flat: Flat::default(),
            buckets: Buckets::default(),
            address: PhantomData,
        }
    }

    /// Has memory for 65,536 words from `first` on.
    fn touch(root: &Words, first: usize) {
        /// Words of a page.
        const PAGE: usize = 512;
        (first..first + (1 << ROOT)).step_by(PAGE).for_each(|at| root.word(at).store(0, Relaxed));
    }

    /// Where the root begins in the region that programs in the kernel read; 0: they cannot walk this table.
    pub(crate) fn root_in_kernel(&self) -> u32 {
        if self.arena.offset() == 0 { 0 } else { self.root.offset() }
    }

    /// The mark of the prefix of no bits: its leaf + 1, or 0.
    #[inline(always)]
    fn default(&self) -> Mark {
        self.root.word(DEFAULT).load(Acquire) as Mark
    }

    /// Whether a prefix of 1 to 15 bits was ever there.
    #[inline(always)]
    fn covered(&self) -> bool {
        self.root.word(COVERED).load(Acquire) != 0
    }

    /// How many prefixes the table has.
    pub fn len(&self) -> usize {
        self.routes.load(Relaxed) as usize
    }

    /// Whether the table has no prefix.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the table is so small that it stays in the cache, and [`Self::lookup`] one by one is
    /// as fast as [`Self::lookup_batch`].
    #[inline]
    pub fn is_hot(&self) -> bool {
        self.routes.load(Relaxed) <= A::HOT
    }

    /// Whether the table is so small that a look-up meets few caches that lack it.
    #[inline]
    pub(crate) fn is_near(&self) -> bool {
        self.routes.load(Relaxed) <= 16 * A::HOT
    }

    /// The leaf of the longest prefix that covers `address`.
    #[inline]
    pub fn lookup(&self, address: A, guard: &Guard<'_>) -> Option<u32> {
        let _ = guard;
        self.longest(address).checked_sub(1)
    }

    /// The same where most searches go on below the root.
    #[inline(always)]
    pub(crate) fn lookup_deep(&self, address: A, guard: &Guard<'_>) -> Option<u32> {
        let _ = guard;
        self.longest_by::<true>(address).checked_sub(1)
    }

    #[inline(always)]
    fn longest(&self, address: A) -> Mark {
        self.longest_by::<false>(address)
    }

    /// What the root says by itself; the nodes below it are walked elsewhere, so that this is small
    /// enough to be part of the caller.
    #[inline(always)]
    fn longest_by<const DEEP: bool>(&self, address: A) -> Mark {
        let window = address.window(0);
        let entry = Entry(self.root.word((window >> 48) as usize).load(Acquire));
        // Of the root's leaves only the empty entry has no mark.
        if entry.ends(window << ROOT) && entry.mark() != NONE {
            return entry.mark();
        }
        // An entry of IPv4's root mostly ends the search, one of IPv6's never does.
        if A::BITS == u32::BITS as u8 && !DEEP {
            self.longer(address, entry)
        } else {
            self.below_or_default(address, entry)
        }
    }

    #[inline(never)]
    fn longer(&self, address: A, entry: Entry) -> Mark {
        let laid = self.layout().map_or(NONE, |layout| layout.mark(self, address));
        if laid != NONE { laid } else { self.below_or_default(address, entry) }
    }

    #[inline(always)]
    fn below_or_default(&self, address: A, entry: Entry) -> Mark {
        let found = self.below(address, entry);
        if found == NONE { self.default() } else { found }
    }

    /// Walks on from an entry of the root that does not end the search; says nothing of the default.
    #[inline(always)]
    fn below(&self, address: A, mut entry: Entry) -> Mark {
        let arena = self.arena.view();
        let mut window = address.window(ROOT);
        let (mut node, mut slot) = (0, 0);
        let mut pos = ROOT;
        while entry.leads_on(window) {
            pos += entry.len();
            window = address.window(pos);
            slot = (window >> 56) as u8;
            node = entry.at();
            entry = Entry(arena.word(node::find(arena, node, slot)).load(Acquire));
            pos += 8;
            // The zeros that are shifted in from the right are beyond any suffix.
            window <<= 8;
        }
        if entry.ends(window) && node != 0 {
            return entry.mark();
        }
        if entry.kind() == Kind::Record
            && entry.matches(window)
            && let Some(mark) = self.record(entry, address)
        {
            return mark;
        }
        self.covering(address, node, slot)
    }

    /// What the prefixes say that are shorter than the entry at which a search ended in vain.
    #[cold]
    fn covering(&self, address: A, node: usize, slot: u8) -> Mark {
        if node == 0 {
            return self.root_cover((address.window(0) >> 48) as usize);
        }
        node::cover(self.arena.view(), node, slot)
    }

    #[inline]
    fn record(&self, entry: Entry, address: A) -> Option<Mark> {
        let (prefix, len, leaf) = record::read::<A>(&self.arena, entry);
        (record::common(prefix, address) >= u32::from(len)).then_some(leaf)
    }

    /// What prefixes of 1 to 15 bits say about a slot of the root.
    #[inline]
    fn root_cover(&self, slot: usize) -> Mark {
        if !self.covered() {
            return NONE;
        }
        self.root.word(COVERS + slot).load(Acquire) as Mark
    }
}
