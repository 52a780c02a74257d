//! The memory of the tries: one reservation of words, carved into blocks by the control thread.
//!
//! Words are atomic and never unmapped while anyone can reach them, and an index is masked to the
//! reservation, so that no access can fail or be undefined, whatever it names. What must be right
//! besides is that a block is not used again while a reader may still walk through it: freed blocks
//! wait for every reader to move on.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU8, AtomicU16, AtomicU32, AtomicU64};

use crate::in_kernel::region::Region;
use crate::publish::{Retirer, Stamp};

/// Zeroed words of memory, backed where they are used.
pub(crate) struct Words<T = AtomicU64> {
    base: *const T,
    mask: usize,
    /// Where they begin in the region that programs in the kernel read, if they are in it, or else 0.
    offset: u32,
    /// The memory that `base` points into.
    memory: Arc<dyn Send + Sync>,
}

// SAFETY: the pointer leads into `memory`, which never moves nor changes hands, and whose words are
// atomic.
unsafe impl<T: Atomic> Send for Words<T> {}
// SAFETY: as above.
unsafe impl<T: Atomic> Sync for Words<T> {}

impl<T> Clone for Words<T> {
    fn clone(&self) -> Self {
        Self { base: self.base, mask: self.mask, offset: self.offset, memory: Arc::clone(&self.memory) }
    }
}

/// An integer that threads share, or several in a row.
///
/// # Safety
/// All-zero bytes are a value of it, and it is aligned to at most eight bytes.
pub(crate) unsafe trait Atomic: Send + Sync + 'static {}

// SAFETY: an atomic of all-zero bytes is zero.
unsafe impl Atomic for AtomicU64 {}
// SAFETY: an atomic of all-zero bytes is zero.
unsafe impl Atomic for AtomicI64 {}
// SAFETY: an atomic of all-zero bytes is zero.
unsafe impl Atomic for AtomicU32 {}
// SAFETY: an atomic of all-zero bytes is zero.
unsafe impl Atomic for AtomicU16 {}
// SAFETY: an atomic of all-zero bytes is zero.
unsafe impl Atomic for AtomicU8 {}

// SAFETY: as each of them is.
unsafe impl<T: Atomic, const N: usize> Atomic for [T; N] {}

/// Pages of the backing memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pages {
    /// As small as they come, for a region of which few words will be used.
    Small,
    /// Huge ones, for a region that is read at random.
    Huge,
}

impl<T: Atomic> Words<T> {
    /// Reserves 2^`bits` words, or fewer where the system does not grant so many.
    pub(super) fn reserve(bits: u32, pages: Pages) -> Self {
        let granted = (20..=bits).rev().find_map(|bits| Self::map(bits, pages));
        granted.unwrap_or_else(|| Self::exactly(bits.min(20), pages))
    }

    /// Reserves 2^`bits` words.
    pub(crate) fn exactly(bits: u32, pages: Pages) -> Self {
        Self::map(bits, pages).unwrap_or_else(|| {
            // SAFETY: what `Atomic` promises.
            let words: Arc<[T]> = unsafe { Arc::new_zeroed_slice(1 << bits).assume_init() };
            Self { base: words.as_ptr(), mask: (1 << bits) - 1, offset: 0, memory: Arc::new(words) }
        })
    }

    /// The same in a region, if that has room.
    pub(crate) fn within(region: &Region, bits: u32) -> Option<Self> {
        let piece = region.take(size_of::<T>() << bits)?;
        let base = piece.base().cast_const().cast();
        Some(Self { base, mask: (1 << bits) - 1, offset: piece.offset(), memory: Arc::new(piece) })
    }

    /// The same in a region, if there is one and it has room, or else not.
    pub(crate) fn shared(region: Option<&Region>, bits: u32, pages: Pages) -> Self {
        region.and_then(|region| Self::within(region, bits)).unwrap_or_else(|| Self::exactly(bits, pages))
    }

    /// Where they begin in the region that programs in the kernel read; 0: they are in none.
    pub(crate) fn offset(&self) -> u32 {
        self.offset
    }

    fn map(bits: u32, pages: Pages) -> Option<Self> {
        // The interpreter knows no reservations, and backs every word.
        if cfg!(miri) {
            return None;
        }
        let mapped = memmap2::MmapOptions::new().len(size_of::<T>() << bits).no_reserve_swap().map_anon();
        let mapped = mapped.ok()?;
        #[cfg(target_os = "linux")]
        {
            // Refused by a kernel without huge pages; then small ones do.
            let _ = mapped.advise(match pages {
                Pages::Small => memmap2::Advice::NoHugePage,
                Pages::Huge => memmap2::Advice::HugePage,
            });
        }
        Some(Self {
            base: mapped.as_ptr().cast(),
            mask: (1 << bits) - 1,
            offset: 0,
            memory: Arc::new(mapped),
        })
    }

    /// The words, to be read or written.
    #[inline(always)]
    pub(super) fn view(&self) -> View<'_, T> {
        View { base: self.base, mask: self.mask, words: PhantomData }
    }

    /// The word at `index`, which wraps at the end of the reservation.
    #[inline(always)]
    pub(crate) fn word(&self, index: usize) -> &T {
        self.view().word(index)
    }

    /// Has the memory backed by huge pages, where it is already too, as far as the system does that.
    pub(super) fn use_huge_pages(&self) {
        #[cfg(all(target_os = "linux", not(miri)))]
        for advice in [libc::MADV_HUGEPAGE, libc::MADV_COLLAPSE] {
            // SAFETY: the reservation is `base` and its words; neither advice changes what they are.
            unsafe { libc::madvise(self.base.cast_mut().cast(), self.len() * size_of::<T>(), advice) };
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.mask + 1
    }
}

/// Borrowed words, in two registers.
pub(super) struct View<'w, T = AtomicU64> {
    base: *const T,
    mask: usize,
    words: PhantomData<&'w Words<T>>,
}

impl<T> Clone for View<'_, T> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for View<'_, T> {}

impl<'w, T: Atomic> View<'w, T> {
    /// The word at `index`, which wraps at the end of the reservation.
    #[inline(always)]
    pub(super) fn word(self, index: usize) -> &'w T {
        // SAFETY: the reservation has mask + 1 words, is aligned to at least 8 bytes, and lives as long
        // as the words that this views. Zeroed or written as atomics, its words are initialised.
        unsafe { &*self.base.add(index & self.mask) }
    }

    /// Prefetches the cache line of the word at `index`.
    #[inline(always)]
    pub(super) fn prefetch(self, index: usize) {
        crate::publish::prefetch(self.base.wrapping_add(index & self.mask));
    }
}

/// A block's address: its first word divided by [`UNIT`]. Below 2³⁰.
pub(crate) type Block = u32;

/// Words of the smallest block: half a cache line.
pub(super) const UNIT: usize = 4;

/// Sizes of blocks, in units: a quarter of a power of two apart, so that at most a fifth is unused.
/// All but the first are whole cache lines.
const SIZES: [u16; 22] =
    [1, 2, 4, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160];

/// The largest block, in words.
pub(super) const LARGEST: usize = SIZES[SIZES.len() - 1] as usize * UNIT;

/// Words that a change may take, many times over: what is removed must still be written anew.
const SLACK: usize = 64 * LARGEST;

fn class(words: usize) -> usize {
    let units = words.div_ceil(UNIT);
    SIZES.partition_point(|size| usize::from(*size) < units)
}

/// Freed blocks that wait before the arena looks whether readers have moved on.
const PATIENCE: usize = 512;

/// The control thread's side of the reservation that all tables of a family share.
pub(crate) struct Arena {
    words: Words,
    region: Option<Region>,
    next: usize,
    free: [Vec<Block>; SIZES.len()],
    leaving: VecDeque<(Stamp, Block, u8)>,
    until_advance: usize,
    used: usize,
}

impl Arena {
    /// Words of the smallest block, and what blocks are counted in.
    pub(crate) const UNIT: usize = UNIT;

    pub(crate) fn new(bits: u32) -> Self {
        Self::of(Words::reserve(bits, Pages::Huge), None)
    }

    /// One in a region, if that has room.
    pub(crate) fn within(region: &Region, bits: u32) -> Option<Self> {
        Some(Self::of(Words::within(region, bits)?, Some(region.clone())))
    }

    fn of(words: Words, region: Option<Region>) -> Self {
        Self {
            words,
            region,
            // Block 0 is nobody's.
            next: 2,
            free: std::array::from_fn(|_| Vec::new()),
            leaving: VecDeque::new(),
            until_advance: PATIENCE,
            used: 0,
        }
    }

    pub(crate) fn words(&self) -> &Words {
        &self.words
    }

    /// The region that it is in.
    pub(crate) fn region(&self) -> Option<&Region> {
        self.region.as_ref()
    }

    /// How many blocks wait for readers to move on.
    pub(crate) fn waiting(&self) -> usize {
        self.leaving.len()
    }

    /// Bytes of the blocks in use.
    pub(crate) fn used(&self) -> usize {
        self.used * UNIT * 8
    }

    /// Whether there is still room for a change of a table.
    pub(crate) fn has_room(&self) -> bool {
        self.next * UNIT + SLACK <= self.words.len().min(UNIT << 30)
    }

    /// A block of at least `words` words, whose content is arbitrary, and the class of its size. Room is
    /// checked beforehand with [`Self::has_room`].
    pub(crate) fn allocate(&mut self, words: usize) -> (Block, usize) {
        let class = class(words).min(SIZES.len() - 1);
        let size = usize::from(SIZES[class]);
        self.used += size;
        if let Some(block) = self.free[class].pop() {
            return (block, class);
        }
        if class == 0 {
            let (line, _) = self.allocate(2 * UNIT);
            self.used -= 2;
            self.free[0].push(line + 1);
            return (line, class);
        }
        let block = self.next;
        self.next += size;
        (block as Block, class)
    }

    /// Classes of blocks.
    pub(crate) const CLASSES: usize = SIZES.len();

    /// Words of the blocks of a class.
    pub(crate) fn size_of_class(class: usize) -> usize {
        SIZES.get(class).map_or(0, |size| usize::from(*size) * UNIT)
    }

    /// Gives back a block of `words` words that is not reachable any more; it is used again when no
    /// reader can be in it.
    pub(crate) fn release(&mut self, block: Block, words: usize, retirer: &Retirer) {
        let class = class(words).min(SIZES.len() - 1);
        self.used -= usize::from(SIZES[class]);
        self.leaving.push_back((retirer.stamp(), block, class as u8));
        self.until_advance -= 1;
        if self.until_advance == 0 {
            retirer.advance();
            self.reclaim(retirer);
            self.until_advance = PATIENCE;
        }
    }

    /// Makes the blocks that readers have left free to be used again.
    pub(crate) fn reclaim(&mut self, retirer: &Retirer) {
        while let Some((_, block, class)) =
            self.leaving.pop_front_if(|(stamp, ..)| retirer.has_passed(*stamp))
        {
            self.free[usize::from(class)].push(block);
        }
    }
}
