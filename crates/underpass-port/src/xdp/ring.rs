//! The rings that an AF_XDP socket shares with the kernel: single producer, single consumer, of a length
//! that is a power of two. Of each, one side is the kernel's.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::RawFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::sys::Mapping;

/// A ring whose entries are plain C types: addresses or `struct xdp_desc`.
pub(crate) struct Ring<T> {
    produced: NonNull<AtomicU32>,
    consumed: NonNull<AtomicU32>,
    flags: NonNull<AtomicU32>,
    entries: NonNull<T>,
    mask: u32,
    /// Our own index, not yet shown to the kernel.
    ours: u32,
    /// The kernel's, as it was last read.
    theirs: u32,
    _mapping: Mapping,
}

// SAFETY: the ring is memory that is shared with the kernel alone, and ours to use from any one thread.
unsafe impl<T> Send for Ring<T> {}

impl<T: Copy> Ring<T> {
    /// Maps a ring of `len` entries of the socket.
    pub(crate) fn map(fd: RawFd, len: u32, offsets: &libc::xdp_ring_offset, page: i64) -> io::Result<Self> {
        let mask = len.checked_sub(1).filter(|_| len.is_power_of_two()).ok_or(io::ErrorKind::InvalidInput)?;
        let bytes = len as usize * size_of::<T>();
        let mapping = Mapping::new(fd, offsets.desc as usize + bytes, page)?;
        let word = |offset: u64| mapping.at(offset as usize, 4).map(NonNull::cast::<AtomicU32>);
        let entries = mapping.at(offsets.desc as usize, bytes).map(NonNull::cast::<T>);
        match (word(offsets.producer), word(offsets.consumer), word(offsets.flags), entries) {
            (Some(produced), Some(consumed), Some(flags), Some(entries)) => {
                Ok(Self { produced, consumed, flags, entries, mask, ours: 0, theirs: 0, _mapping: mapping })
            }
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    fn word(at: &NonNull<AtomicU32>) -> &AtomicU32 {
        // SAFETY: in the mapping, which lives as long as the ring, aligned, and only used atomically.
        unsafe { at.as_ref() }
    }

    /// Whether the kernel waits to be woken by a system call.
    #[inline]
    pub(crate) fn needs_wakeup(&self) -> bool {
        Self::word(&self.flags).load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }

    /// As the producer: how many more entries fit.
    #[inline]
    pub(crate) fn room(&mut self, wanted: u32) -> u32 {
        let room = (self.mask + 1).wrapping_sub(self.ours.wrapping_sub(self.theirs));
        if room >= wanted {
            return room;
        }
        self.theirs = Self::word(&self.consumed).load(Ordering::Acquire);
        (self.mask + 1).wrapping_sub(self.ours.wrapping_sub(self.theirs))
    }

    /// As the producer: writes the next entry, for which there must be room. [`Ring::produce`] shows it.
    #[inline]
    pub(crate) fn put(&mut self, entry: T) {
        // SAFETY: the index is masked to the ring's length; what is not shown yet is not read.
        unsafe { self.entries.add((self.ours & self.mask) as usize).write(entry) };
        self.ours = self.ours.wrapping_add(1);
    }

    /// As the producer: shows the kernel what was put.
    #[inline]
    pub(crate) fn produce(&mut self) {
        Self::word(&self.produced).store(self.ours, Ordering::Release);
    }

    /// As the producer: how many entries the kernel has not taken.
    #[inline]
    pub(crate) fn pending(&mut self) -> u32 {
        self.theirs = Self::word(&self.consumed).load(Ordering::Acquire);
        self.ours.wrapping_sub(self.theirs)
    }

    /// As the consumer: how many entries are there to be taken.
    #[inline]
    pub(crate) fn available(&mut self) -> u32 {
        let available = self.theirs.wrapping_sub(self.ours);
        if available != 0 {
            return available;
        }
        self.theirs = Self::word(&self.produced).load(Ordering::Acquire);
        self.theirs.wrapping_sub(self.ours)
    }

    /// As the consumer: takes the next entry. [`Ring::consume`] tells the kernel.
    #[inline]
    pub(crate) fn take(&mut self) -> T {
        // SAFETY: the index is masked to the ring's length; every bit pattern is a valid entry.
        let entry = unsafe { self.entries.add((self.ours & self.mask) as usize).read() };
        self.ours = self.ours.wrapping_add(1);
        entry
    }

    /// As the consumer: gives the entries that were taken back to the kernel.
    #[inline]
    pub(crate) fn consume(&mut self) {
        Self::word(&self.consumed).store(self.ours, Ordering::Release);
    }
}
