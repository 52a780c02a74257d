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
    start: u32,
    len: u32,
    /// The port by which the packet came in.
    pub ingress: PortId,
}

/// The slot has no room for the header that was to be pushed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoRoom;

impl Packet {
    /// The bytes of the packet.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        &self.slot[self.start as usize..self.start as usize + self.len as usize]
    }

    /// The bytes of the packet, to be changed.
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.slot[self.start as usize..self.start as usize + self.len as usize]
    }

    /// Length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether no byte is left.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes that can be pushed in front.
    #[inline]
    pub fn headroom(&self) -> usize {
        self.start as usize
    }

    /// Bytes that can be appended.
    pub fn tailroom(&self) -> usize {
        self.slot.len() - self.start as usize - self.len as usize
    }

    /// Moves the start `n` bytes forward: the packet loses its first `n` bytes.
    /// `n` beyond the packet leaves it empty.
    #[inline]
    pub fn pull(&mut self, n: usize) {
        let n = (n as u32).min(self.len);
        self.start += n;
        self.len -= n;
    }

    /// Moves the start `n` bytes back and returns the packet with the new bytes, whose content is
    /// whatever the slot held, at its front.
    #[inline]
    pub fn push(&mut self, n: usize) -> Result<&mut [u8], NoRoom> {
        if n > self.start as usize {
            return Err(NoRoom);
        }
        self.start -= n as u32;
        self.len += n as u32;
        Ok(self.bytes_mut())
    }

    /// Cuts the packet to `len` bytes; longer than it is leaves it as it is.
    #[inline]
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len as u32);
    }

    /// Replaces the packet by `bytes`, which start at offset `start` of the slot.
    ///
    /// # Errors
    /// [`NoRoom`] if they do not fit there; the packet is then unchanged.
    pub fn set(&mut self, start: usize, bytes: &[u8]) -> Result<(), NoRoom> {
        let room = self.slot.get_mut(start..start + bytes.len()).ok_or(NoRoom)?;
        room.copy_from_slice(bytes);
        (self.start, self.len) = (start as u32, bytes.len() as u32);
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
        if start + len > self.slot.len() {
            return Err(NoRoom);
        }
        (self.start, self.len) = (start as u32, len as u32);
        Ok(())
    }
}

impl fmt::Debug for Packet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Packet(port {}, {} bytes at {})", self.ingress.0, self.len, self.start)
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
        let region: &'static mut [u8] = Vec::leak(vec![0; slots * size]);
        let free = region
            .chunks_exact_mut(size)
            .map(|slot| Packet { slot, start: 0, len: 0, ingress: PortId(0) })
            .rev()
            .collect();
        Self { free }
    }

    /// A free packet: empty, with [`HEADROOM`] in front where the slot is long enough.
    #[inline]
    pub fn take(&mut self) -> Option<Packet> {
        let mut packet = self.free.pop()?;
        packet.start = HEADROOM.min(packet.slot.len()) as u32;
        packet.len = 0;
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
