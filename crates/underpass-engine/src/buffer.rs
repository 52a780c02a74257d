//! Packet buffers: a slot of memory with headroom, and the packet that lies in it.
//!
//! ```text
//! slot  |<------ headroom ------>|<------ packet ------>|<-- tailroom -->|
//!       0                      start                start+len         slot.len()
//! ```
//!
//! [`Packet::push`] and [`Packet::pull`] move the start; the payload never moves. Slots are carved out
//! of one region that lives as long as the process, so a packet owns its slot as a `&'static mut [u8]`
//! would: no reference count, no lifetime to carry, and two packets cannot share a slot.

#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::{fmt, slice};

/// Index of a port of the router, dense from 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct PortId(pub u16);

/// Most packets that a burst holds.
pub const BURST: usize = 64;

/// Room in front of a received packet, in bytes: an outer IPv6 header (40), the longest SRH
/// (8 + 127 × 16 = 2,040) and a link layer with two VLAN tags (22), rounded up to cache lines.
pub const HEADROOM: usize = 2176;

/// Bytes of a slot: headroom, and a 1,514-byte frame with a VLAN tag behind it. One cache line more
/// than a power of two would give, so that the packets of a burst do not share L1 cache sets.
pub const SLOT: usize = 4096 + 64;

/// One packet in its slot. Does not free itself: every packet ends in a [`Pool`] or a port.
///
/// Two words, which the compiler keeps in registers and moves one by one: a packet is moved right after
/// its start has moved, and a load that spans several fresh stores stalls.
pub struct Packet {
    slot: NonNull<u8>,
    /// From the lowest bit on, [`BITS`] bits each: the offset of the packet's first byte, of its end,
    /// and the length of the slot.
    ///
    /// Invariant: start ≤ end ≤ slot length. [`Packet::put`], [`Packet::pull`] and [`Packet::push`]
    /// alone write it. Because of it the packet's bytes need no check, which is worth 90 of 470
    /// instructions of an IPv6 packet's path.
    place: u64,
}

/// Bits of an offset in a slot: slots are below 2 MiB.
const BITS: u32 = 21;
const MASK: u64 = (1 << BITS) - 1;

// SAFETY: a packet owns its slot, memory that lives as long as the process and that nothing else points
// into; so it may be used from any one thread, as a `&'static mut [u8]` may.
unsafe impl Send for Packet {}

/// The slot has no room for the header that was to be pushed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoRoom;

impl Packet {
    /// An empty packet in a slot of less than 2 MiB.
    fn new(slot: &'static mut [u8]) -> Self {
        let len = slot.len() as u64 & MASK;
        Self { slot: NonNull::from(slot).cast(), place: len << (2 * BITS) }
    }

    #[inline(always)]
    fn start(&self) -> usize {
        (self.place & MASK) as usize
    }

    #[inline(always)]
    fn end(&self) -> usize {
        (self.place >> BITS & MASK) as usize
    }

    fn capacity(&self) -> usize {
        (self.place >> (2 * BITS)) as usize
    }

    /// The bytes of the packet.
    #[inline(always)]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the slot is ours (see `Send` above) and initialised, and the range lies in it by the
        // invariant of `place`; the borrow of `self` keeps others from writing.
        unsafe { slice::from_raw_parts(self.slot.as_ptr().add(self.start()), self.len()) }
    }

    /// The bytes of the packet, to be changed.
    #[inline(always)]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and the borrow of `self` is exclusive.
        unsafe { slice::from_raw_parts_mut(self.slot.as_ptr().add(self.start()), self.len()) }
    }

    /// Length in bytes.
    #[inline(always)]
    #[expect(clippy::len_without_is_empty, reason = "no packet on the path is empty")]
    pub fn len(&self) -> usize {
        self.end() - self.start()
    }

    /// Bytes that can be pushed in front.
    #[inline(always)]
    pub fn headroom(&self) -> usize {
        self.start()
    }

    /// Moves the start `n` bytes forward: the packet loses its first `n` bytes.
    /// `n` beyond the packet leaves it empty.
    #[inline(always)]
    pub fn pull(&mut self, n: usize) {
        self.place += n.min(self.len()) as u64;
    }

    /// Moves the start `n` bytes back and returns the packet with the new bytes, whose content is
    /// whatever the slot held, at its front.
    ///
    /// # Errors
    /// [`NoRoom`] if there are not `n` bytes of headroom; the packet is then unchanged.
    #[inline(always)]
    pub fn push(&mut self, n: usize) -> Result<&mut [u8], NoRoom> {
        if n > self.start() {
            return Err(NoRoom);
        }
        self.place -= n as u64;
        Ok(self.bytes_mut())
    }

    /// [`Packet::push`] of a header of fixed length.
    #[inline(always)]
    pub fn push_header<const N: usize>(&mut self) -> Result<&mut [u8; N], NoRoom> {
        if N > self.start() {
            return Err(NoRoom);
        }
        self.place -= N as u64;
        // SAFETY: as in `bytes_mut`; the packet has just become at least N bytes long.
        Ok(unsafe { &mut *self.slot.as_ptr().add(self.start()).cast() })
    }

    /// Leaves of the packet the `len` bytes from its offset `from` on, as far as it has them.
    #[inline(always)]
    pub fn narrow(&mut self, from: usize, len: usize) {
        if from + len <= self.len() {
            return self.put(self.start() + from, len);
        }
        let start = (self.start() + from).min(self.end());
        self.put(start, len.min(self.end() - start));
    }

    /// Cuts the packet to `len` bytes; longer than it is leaves it as it is.
    #[inline(always)]
    pub fn truncate(&mut self, len: usize) {
        if len < self.len() {
            self.put(self.start(), len);
        }
    }

    /// Replaces the packet by `bytes`, which start at offset `start` of the slot.
    ///
    /// # Errors
    /// [`NoRoom`] if they do not fit there; the packet is then unchanged.
    pub fn set(&mut self, start: usize, bytes: &[u8]) -> Result<(), NoRoom> {
        self.place(start, bytes.len())?;
        self.bytes_mut().copy_from_slice(bytes);
        Ok(())
    }

    /// The whole slot.
    pub fn slot(&self) -> &[u8] {
        // SAFETY: as in `bytes`; the slot has this length.
        unsafe { slice::from_raw_parts(self.slot.as_ptr(), self.capacity()) }
    }

    /// The whole slot, for a port that fills it; [`Packet::place`] then says where the packet lies.
    pub fn slot_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes_mut`; the slot has this length.
        unsafe { slice::from_raw_parts_mut(self.slot.as_ptr(), self.capacity()) }
    }

    /// Says that the packet is the `len` bytes from offset `start` of the slot.
    ///
    /// # Errors
    /// [`NoRoom`] if the slot ends before that; the packet is then unchanged.
    pub fn place(&mut self, start: usize, len: usize) -> Result<(), NoRoom> {
        if start.checked_add(len).is_none_or(|end| end > self.capacity()) {
            return Err(NoRoom);
        }
        self.put(start, len);
        Ok(())
    }

    /// `start + len` must be within the slot.
    #[inline(always)]
    fn put(&mut self, start: usize, len: usize) {
        debug_assert!(start + len <= self.capacity());
        let capacity = self.place >> (2 * BITS) << (2 * BITS);
        self.place = capacity | ((start + len) as u64) << BITS | start as u64;
    }
}

impl fmt::Debug for Packet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Packet({} bytes at {})", self.len(), self.start())
    }
}

/// Free slots, last in first out, so that the next packet lies in a slot that is still in the cache.
pub struct Pool {
    free: Vec<Packet>,
}

impl Pool {
    /// A pool of `slots` slots of [`SLOT`] bytes. Their memory is never given back: a router makes its
    /// pools once.
    pub fn new(slots: usize) -> Self {
        Self::with_slot_size(slots, SLOT)
    }

    /// A pool of `slots` slots of `size` bytes.
    ///
    /// # Panics
    /// If a slot is to be of 2 MiB or more.
    pub fn with_slot_size(slots: usize, size: usize) -> Self {
        assert!(size as u64 <= MASK, "a slot of {size} bytes");
        let region: &'static mut [u8] = Vec::leak(vec![0; slots * size]);
        let free = region.chunks_exact_mut(size).map(Packet::new).rev().collect();
        Self { free }
    }

    /// A free packet: empty, with [`HEADROOM`] in front where the slot is long enough.
    #[inline]
    pub fn take(&mut self) -> Option<Packet> {
        let mut packet = self.free.pop()?;
        packet.put(HEADROOM.min(packet.capacity()), 0);
        Some(packet)
    }

    /// Takes a slot back.
    #[inline]
    pub fn give(&mut self, packet: Packet) {
        self.free.push(packet);
    }

    /// How many slots are free.
    pub fn available(&self) -> usize {
        self.free.len()
    }
}
