//! Memory that programs in the kernel read and write too: one range, of which pieces are given out.
//!
//! A program names a byte of it by how far it lies behind the first. Of pieces that are given back others are made, zeroed;
//! who gives one back has waited for all readers.
#![allow(unsafe_code)]

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// The smallest piece, in bytes: a page. The first page is nobody's, so that 0 names nothing.
const LEAST: usize = 4096;

/// Memory that programs in the kernel read and write too.
#[derive(Clone)]
pub struct Region(Arc<Inner>);

struct Inner {
    base: *mut u8,
    len: usize,
    space: Mutex<Space>,
    /// What `base` points into.
    _memory: Box<dyn Any + Send + Sync>,
}

/// What of a region is free.
struct Space {
    /// Where what was never given out begins.
    next: usize,
    /// Pieces that were given back, by their length.
    free: BTreeMap<usize, Vec<usize>>,
}

// SAFETY: the pointer leads into `_memory`, which moves with it; what is in it is accessed as atomics by those who have a
// piece of it, or by `take` where nobody has.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Region {
    /// The region of these bytes.
    ///
    /// # Safety
    /// `base` is aligned to a page and leads to `len` zeroed bytes, which nobody else in the process accesses, for as long
    /// as `memory` lives.
    pub unsafe fn new(base: *mut u8, len: usize, memory: Box<dyn Any + Send + Sync>) -> Self {
        let len = len.min(u32::MAX as usize + 1);
        let space = Mutex::new(Space { next: LEAST, free: BTreeMap::new() });
        Self(Arc::new(Inner { base, len, space, _memory: memory }))
    }

    /// A region that no program knows, for tests.
    #[cfg(test)]
    pub(crate) fn of_heap(len: usize) -> Self {
        let words: Box<[u64]> = vec![0; len / 8 + LEAST / 8].into();
        let base = words.as_ptr().cast_mut().cast::<u8>();
        let skipped = base.align_offset(LEAST);
        // SAFETY: within the words, as there is a page more than is used; they are the region's alone.
        unsafe { Self::new(base.add(skipped), len, Box::new(words)) }
    }

    /// A piece of at least `len` bytes, zeroed and aligned to a page. `None`: there is no room.
    pub(crate) fn take(&self, len: usize) -> Option<Piece> {
        let len = len.max(LEAST).next_power_of_two();
        let mut space = self.0.space.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = space.free.get_mut(&len).and_then(Vec::pop) {
            // SAFETY: within the region; nobody has the piece, and none of its readers is left.
            unsafe { self.0.base.add(at).write_bytes(0, len) };
            return Some(Piece { region: self.clone(), at, len });
        }
        let at = space.next;
        let next = at.checked_add(len).filter(|next| *next <= self.0.len)?;
        space.next = next;
        Some(Piece { region: self.clone(), at, len })
    }
}

/// A part of a region that is somebody's, until it is dropped.
pub(crate) struct Piece {
    region: Region,
    at: usize,
    len: usize,
}

impl Piece {
    /// Where it begins, as programs name it.
    pub(crate) fn offset(&self) -> u32 {
        self.at as u32
    }

    /// Its first byte.
    pub(crate) fn base(&self) -> *mut u8 {
        // SAFETY: within the region.
        unsafe { self.region.0.base.add(self.at) }
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        let mut space = self.region.0.space.lock().unwrap_or_else(PoisonError::into_inner);
        space.free.entry(self.len).or_default().push(self.at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_apart_and_used_again() {
        let region = Region::of_heap(16 * LEAST);
        let one = region.take(1).unwrap();
        let other = region.take(3 * LEAST).unwrap();
        assert_eq!((one.offset(), other.offset(), other.len), (4096, 8192, 4 * LEAST));
        // SAFETY: the piece is this test's.
        unsafe { other.base().write_bytes(7, other.len) };
        drop(other);
        let again = region.take(4 * LEAST).unwrap();
        assert_eq!(again.offset(), 8192);
        // SAFETY: as above.
        let bytes = unsafe { std::slice::from_raw_parts(again.base(), again.len) };
        assert!(bytes.iter().all(|byte| *byte == 0));
        assert!(region.take(16 * LEAST).is_none());
        assert!(region.take(8 * LEAST).is_some());
    }
}
