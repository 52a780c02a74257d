//! Packet buffers: a slot of memory with headroom, and the packet that lies in it.
//!
//! ```text
//! slot  |<------ headroom ------>|<------ packet ------>|<-- tailroom -->|
//!       0                      start                start+len         slot.len()
//! ```
//!
//! [`Packet::push`] and [`Packet::pull`] move the start; the payload never moves. Slots are carved out
//! of one region that lives as long as the process, so a packet is plain `&'static mut` memory: no
//! reference count, no lifetime to carry, and two packets cannot share a slot.

#![allow(unsafe_code)]

use std::fmt;

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
pub struct Packet {
    slot: &'static mut [u8],
    /// Where the packet lies: the offset of its first byte in the lower half, of its end in the upper.
    /// One word, because a packet is moved right after its start has moved, and a load that spans
    /// several fresh stores stalls.
    ///
    /// Invariant: start ≤ end ≤ slot length ≤ `u32::MAX`. [`Packet::put`], [`Packet::pull`] and
    /// [`Packet::push`] alone write it. Because of it the packet's bytes need no check, which is worth
    /// 90 of 470 instructions of an IPv6 packet's path.
    place: u64,
}

/// The slot has no room for the header that was to be pushed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoRoom;

impl Packet {
    #[inline(always)]
    fn start(&self) -> usize {
        self.place as u32 as usize
    }

    #[inline(always)]
    fn end(&self) -> usize {
        (self.place >> 32) as usize
    }

    /// The bytes of the packet.
    #[inline(always)]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the invariant of `place`.
        unsafe { self.slot.get_unchecked(self.start()..self.end()) }
    }

    /// The bytes of the packet, to be changed.
    #[inline(always)]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let (start, end) = (self.start(), self.end());
        // SAFETY: the invariant of `place`.
        unsafe { self.slot.get_unchecked_mut(start..end) }
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
        self.slot
            .get_mut(start..)
            .and_then(|room| room.get_mut(..bytes.len()))
            .ok_or(NoRoom)?
            .copy_from_slice(bytes);
        self.put(start, bytes.len());
        Ok(())
    }

    /// The whole slot.
    pub fn slot(&self) -> &[u8] {
        self.slot
    }

    /// The whole slot, for a port that fills it; [`Packet::place`] then says where the packet lies.
    pub fn slot_mut(&mut self) -> &mut [u8] {
        self.slot
    }

    /// Says that the packet is the `len` bytes from offset `start` of the slot.
    ///
    /// # Errors
    /// [`NoRoom`] if the slot ends before that; the packet is then unchanged.
    pub fn place(&mut self, start: usize, len: usize) -> Result<(), NoRoom> {
        if start.checked_add(len).is_none_or(|end| end > self.slot.len()) {
            return Err(NoRoom);
        }
        self.put(start, len);
        Ok(())
    }

    /// `start + len` must be within the slot.
    #[inline(always)]
    fn put(&mut self, start: usize, len: usize) {
        debug_assert!(start + len <= self.slot.len());
        self.place = ((start + len) as u64) << 32 | start as u64;
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
    pub fn with_slot_size(slots: usize, size: usize) -> Self {
        assert!(u32::try_from(size).is_ok(), "a slot of {size} bytes");
        let region: &'static mut [u8] = Vec::leak(vec![0; slots * size]);
        let free = region.chunks_exact_mut(size).map(|slot| Packet { slot, place: 0 }).rev().collect();
        Self { free }
    }

    /// A free packet: empty, with [`HEADROOM`] in front where the slot is long enough.
    #[inline]
    pub fn take(&mut self) -> Option<Packet> {
        let mut packet = self.free.pop()?;
        packet.put(HEADROOM.min(packet.slot.len()), 0);
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
