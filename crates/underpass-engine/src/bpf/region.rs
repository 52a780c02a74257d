//! Memory of maps that the packet path shares with others: workers, and the kernel that a map is of.
#![allow(unsafe_code)]

use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};

/// A stretch of shared memory. Each access is atomic where it is aligned, as that of a program in the kernel
/// is, and byte by byte where it is not.
pub struct Region {
    start: NonNull<u8>,
    len: usize,
    writable: bool,
    /// Keeps the memory.
    _owner: Box<dyn Any + Send + Sync>,
}

// SAFETY: the memory is only touched by atomic operations, and its owner may go to any thread.
unsafe impl Send for Region {}
// SAFETY: as for `Send`.
unsafe impl Sync for Region {}

/// What an atomic instruction does: `imm` of `BPF_ATOMIC`, include/uapi/linux/bpf.h.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Update {
    Add,
    Or,
    And,
    Xor,
    Exchange,
    /// Only where the old value is this one.
    CompareExchange(u64),
}

impl Update {
    /// What an old value becomes. For memory that nobody shares.
    pub(crate) fn apply(self, old: u64, operand: u64) -> u64 {
        match self {
            Self::Add => old.wrapping_add(operand),
            Self::Or => old | operand,
            Self::And => old & operand,
            Self::Xor => old ^ operand,
            Self::Exchange => operand,
            Self::CompareExchange(expected) if old == expected => operand,
            Self::CompareExchange(_) => old,
        }
    }
}

macro_rules! update {
    ($atomic:ty, $word:ty, $cell:expr, $update:expr, $operand:expr) => {{
        // SAFETY: the caller has checked bounds and alignment of the cell.
        let (cell, operand) = (unsafe { <$atomic>::from_ptr($cell.cast()) }, $operand as $word);
        u64::from(match $update {
            Update::Add => cell.fetch_add(operand, Relaxed),
            Update::Or => cell.fetch_or(operand, Relaxed),
            Update::And => cell.fetch_and(operand, Relaxed),
            Update::Xor => cell.fetch_xor(operand, Relaxed),
            Update::Exchange => cell.swap(operand, Relaxed),
            Update::CompareExchange(expected) => {
                match cell.compare_exchange(expected as $word, operand, Relaxed, Relaxed) {
                    Ok(old) | Err(old) => old,
                }
            }
        })
    }};
}

impl Region {
    /// Memory that is somebody else's.
    ///
    /// # Safety
    /// `len` bytes from `start` on can be read, and written if `writable`, as long as `owner` lives; nobody
    /// forms references to them.
    pub unsafe fn new(
        start: NonNull<u8>,
        len: usize,
        writable: bool,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Self {
        Self { start, len, writable, _owner: owner }
    }

    /// Memory of its own, all zero.
    pub fn zeroed(len: usize) -> Self {
        let words: Vec<u64> = vec![0; len.div_ceil(8)];
        let words = Box::leak(words.into_boxed_slice());
        let count = words.len();
        let start = NonNull::from(words).cast::<u64>();
        /// Frees it.
        struct Owned(NonNull<u64>, usize);
        // SAFETY: it owns the memory, which it only frees.
        unsafe impl Send for Owned {}
        // SAFETY: as for `Send`.
        unsafe impl Sync for Owned {}
        impl Drop for Owned {
            fn drop(&mut self) {
                let words = std::ptr::slice_from_raw_parts_mut(self.0.as_ptr(), self.1);
                // SAFETY: leaked above with this length, and freed once.
                drop(unsafe { Box::from_raw(words) });
            }
        }
        let owner = Box::new(Owned(start, count));
        // SAFETY: `owner` keeps the memory, and nobody else knows it.
        unsafe { Self::new(start.cast(), len, true, owner) }
    }

    /// Length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "no map is empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The first of `len` bytes at `offset`, if they are all inside.
    #[inline(always)]
    fn at(&self, offset: usize, len: usize) -> Option<*mut u8> {
        let end = offset.checked_add(len)?;
        // SAFETY: within the region.
        (end <= self.len).then(|| unsafe { self.start.as_ptr().add(offset) })
    }

    /// Reads N bytes.
    #[inline]
    pub(crate) fn load<const N: usize>(&self, offset: usize) -> Option<[u8; N]> {
        let cell = self.at(offset, N)?;
        let mut bytes = [0; N];
        // SAFETY: within the region, for `at` has checked N bytes; each type where its alignment is.
        unsafe {
            match N {
                8 if cell.addr().is_multiple_of(8) => {
                    bytes.copy_from_slice(&AtomicU64::from_ptr(cell.cast()).load(Relaxed).to_ne_bytes());
                }
                4 if cell.addr().is_multiple_of(4) => {
                    bytes.copy_from_slice(&AtomicU32::from_ptr(cell.cast()).load(Relaxed).to_ne_bytes());
                }
                2 if cell.addr().is_multiple_of(2) => {
                    bytes.copy_from_slice(&AtomicU16::from_ptr(cell.cast()).load(Relaxed).to_ne_bytes());
                }
                _ => {
                    for (n, byte) in bytes.iter_mut().enumerate() {
                        *byte = AtomicU8::from_ptr(cell.add(n)).load(Relaxed);
                    }
                }
            }
        }
        Some(bytes)
    }

    /// Writes N bytes. `None`: not all of them are inside, or it may not be written.
    #[inline]
    pub(crate) fn store<const N: usize>(&self, offset: usize, bytes: [u8; N]) -> Option<()> {
        let cell = self.at(offset, N).filter(|_| self.writable)?;
        let word = |from: &[u8]| from.iter().rev().fold(0u64, |word, byte| word << 8 | u64::from(*byte));
        // SAFETY: as in `load`, and it may be written.
        unsafe {
            match N {
                8 if cell.addr().is_multiple_of(8) => {
                    AtomicU64::from_ptr(cell.cast()).store(word(&bytes).to_le(), Relaxed);
                }
                4 if cell.addr().is_multiple_of(4) => {
                    AtomicU32::from_ptr(cell.cast()).store((word(&bytes) as u32).to_le(), Relaxed);
                }
                2 if cell.addr().is_multiple_of(2) => {
                    AtomicU16::from_ptr(cell.cast()).store((word(&bytes) as u16).to_le(), Relaxed);
                }
                _ => {
                    for (n, byte) in bytes.iter().enumerate() {
                        AtomicU8::from_ptr(cell.add(n)).store(*byte, Relaxed);
                    }
                }
            }
        }
        Some(())
    }

    /// Changes a word of 4 or 8 bytes at once, and returns what it was. `None`: it is not inside or not
    /// aligned, or it may not be written.
    pub(crate) fn update(&self, offset: usize, wide: bool, update: Update, operand: u64) -> Option<u64> {
        let len = if wide { 8 } else { 4 };
        let cell = self.at(offset, len).filter(|cell| self.writable && cell.addr().is_multiple_of(len))?;
        Some(match wide {
            true => update!(AtomicU64, u64, cell, update, operand),
            false => update!(AtomicU32, u32, cell, update, operand),
        })
    }

    /// Copies bytes out of it, as many as `to` has.
    pub(crate) fn read(&self, offset: usize, to: &mut [u8]) -> Option<()> {
        self.at(offset, to.len())?;
        let (words, rest) = to.as_chunks_mut::<8>();
        let behind = offset + words.len() * 8;
        for (n, word) in words.iter_mut().enumerate() {
            *word = self.load(offset + n * 8)?;
        }
        for (n, byte) in rest.iter_mut().enumerate() {
            [*byte] = self.load(behind + n)?;
        }
        Some(())
    }

    /// Copies bytes into it.
    pub(crate) fn write(&self, offset: usize, from: &[u8]) -> Option<()> {
        self.at(offset, from.len()).filter(|_| self.writable)?;
        let (words, rest) = from.as_chunks::<8>();
        let behind = offset + words.len() * 8;
        for (n, word) in words.iter().enumerate() {
            self.store(offset + n * 8, *word)?;
        }
        for (n, byte) in rest.iter().enumerate() {
            self.store(behind + n, [*byte])?;
        }
        Some(())
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Region({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_updated_is_returned_as_it_was() {
        let region = Region::zeroed(16);
        assert_eq!(region.update(8, true, Update::Add, 5), Some(0));
        assert_eq!(region.update(8, true, Update::CompareExchange(5), 9), Some(5));
        assert_eq!(region.update(8, true, Update::CompareExchange(5), 7), Some(9));
        assert_eq!(region.update(8, false, Update::Exchange, 1 << 33 | 3), Some(9));
        assert_eq!(region.load(8), Some(3u64.to_le_bytes()));
        assert_eq!(region.update(9, false, Update::Add, 1), None, "not aligned");
        assert_eq!(region.update(12, true, Update::Add, 1), None, "not inside");
    }

    proptest! {
        /// As a slice would behave.
        #[test]
        fn reads_what_was_written(at in 0usize..40, from in prop::collection::vec(any::<u8>(), 0..40)) {
            let region = Region::zeroed(40);
            let mut all = [0; 40];
            let inside = all.get_mut(at..at + from.len()).map(|to| to.copy_from_slice(&from));
            prop_assert_eq!(region.write(at, &from), inside);
            let mut read = [0; 40];
            prop_assert_eq!(region.read(0, &mut read), Some(()));
            prop_assert_eq!(read, all);
            prop_assert_eq!(region.load::<8>(at), all.get(at..).and_then(|all| all.first_chunk()).copied());
            prop_assert_eq!(region.load::<2>(at), all.get(at..).and_then(|all| all.first_chunk()).copied());
            let word = [1, 2, 3, 4];
            prop_assert_eq!(region.store(at, word).is_some(), at <= 36);
            prop_assert_eq!(region.load(at), (at <= 36).then_some(word));
        }
    }
}
