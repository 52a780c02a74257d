//! Packet buffers: a slot of memory with headroom, and the packet that lies in it.
//!
//! ```text
//! margin | slot  |<------ headroom ------>|<------ packet ------>|<-- tailroom -->|
//!       -64      0                      start                start+len         slot.len()
//! ```
//!
//! [`Packet::push`] and [`Packet::pull`] move the start; the payload never moves. Slots are carved out
//! of one region that lives as long as the process, so a packet owns its slot as a `&'static mut [u8]`
//! would: no reference count, no lifetime to carry, and two packets cannot share a slot.
//!
//! The margin before a slot holds what its port left undone, [`Offload`]. A bit of the packet says whether
//! there is any, so that the margin is in nobody's way where there is none.

#![allow(unsafe_code)]

mod frames;
mod margin;
mod pool;

use std::ptr::NonNull;
use std::{fmt, slice};

pub(crate) use frames::Frames;
pub(crate) use margin::{NO_LINK, NO_TUNNEL_KEY};
pub use margin::{Offload, Segment, SegmentKind, Tag};
pub use pool::Pool;

/// Index of a port of the router, dense from 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct PortId(pub u16);

impl PortId {
    /// No port: what goes to a next hop behind a tunnel leaves by none.
    pub const NONE: Self = Self(u16::MAX);
}

/// Most packets that a burst holds.
pub const BURST: usize = 64;

/// Room in front of a received packet, in bytes: an outer IPv6 header (40), the longest SRH
/// (8 + 127 × 16 = 2,040) and a link layer with two VLAN tags (22), rounded up to cache lines.
pub const HEADROOM: usize = 2176;

/// Least room in front of a frame that is longer than a slot's room behind [`HEADROOM`]: outer headers of
/// a few segments. A packet whose route wants more is moved, once.
pub const LEAST_HEADROOM: usize = 256;

/// Bytes of a slot: headroom, and a 1,514-byte frame with VLAN tags behind it. Not more than a page, which
/// is the largest chunk that AF_XDP takes.
pub const SLOT: usize = 4096;

/// Bytes before each slot that belong to it and that no packet reaches: one cache line, which also keeps
/// the packets of a burst from sharing L1 cache sets.
pub const MARGIN: usize = 64;

/// Bytes of a large slot: headroom, and an IP packet of 65,535 bytes with its link layer behind it.
pub const LARGE_SLOT: usize = HEADROOM + 65_536 + 64;

/// One packet in its slot. Does not free itself: every packet ends in a [`Pool`] or a port.
///
/// Two words, which the compiler keeps in registers and moves one by one: a packet is moved right after
/// its start has moved, and a load that spans several fresh stores stalls.
pub struct Packet {
    slot: NonNull<u8>,
    /// From the lowest bit on: the offset of the packet's first byte and the length of the slot, [`BITS`]
    /// bits each, [`MARGINAL`], and the length of the packet, so that this takes no mask.
    ///
    /// Invariant: start + length ≤ slot length. [`Packet::put`], [`Packet::pull`], [`Packet::push`] and
    /// [`Packet::push_front`] alone write these. Because of it the packet's bytes need no check, which is
    /// worth 90 of 470 instructions of an IPv6 packet's path.
    place: u64,
}

/// Bits of an offset in a slot: slots are below 1 MiB.
const BITS: u32 = 20;
const MASK: u64 = (1 << BITS) - 1;
/// Whether the margin holds an [`Offload`].
const OFFLOAD: u64 = 1 << (2 * BITS);
/// Whether the margin holds a [`Tag`].
const TAGGED: u64 = OFFLOAD << 1;
/// What the margin holds.
const MARGINAL: u64 = OFFLOAD | TAGGED;
/// The lowest bit of the length.
const LEN: u32 = 2 * BITS + 2;
// SAFETY: a packet owns its slot, memory that lives as long as the process and that nothing else points
// into; so it may be used from any one thread, as a `&'static mut [u8]` may.
unsafe impl Send for Packet {}

/// The slot has no room for the header that was to be pushed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoRoom;

impl Packet {
    /// An empty packet in the slot behind the margin that `slot` starts with; less than 1 MiB.
    fn new(slot: &'static mut [u8]) -> Self {
        let slot = slot.get_mut(MARGIN..).unwrap_or_default();
        let len = slot.len() as u64 & MASK;
        Self { slot: NonNull::from(slot).cast(), place: len << BITS }
    }

    /// Gives the slot away, to a kernel that fills or empties it: the address of its first byte.
    /// Without [`Packet::from_slot`] it is lost.
    #[inline]
    pub fn into_slot(self) -> NonNull<u8> {
        self.slot
    }

    /// An empty packet in a slot that was given away.
    ///
    /// # Safety
    /// `slot` came from [`Packet::into_slot`] of a packet whose slot was `len` bytes long, nobody else
    /// reads or writes that slot any more, and it is taken back only once.
    #[inline]
    pub unsafe fn from_slot(slot: NonNull<u8>, len: usize) -> Self {
        Self { slot, place: (len as u64 & MASK) << BITS }
    }

    #[inline(always)]
    fn start(&self) -> usize {
        (self.place & MASK) as usize
    }

    #[inline(always)]
    fn capacity(&self) -> usize {
        (self.place >> BITS & MASK) as usize
    }

    /// Whether its slot is a large one: [`Pool::take_large`].
    #[inline(always)]
    pub fn is_large(&self) -> bool {
        self.capacity() > SLOT
    }

    /// Where the slot lies.
    pub fn slot_address(&self) -> NonNull<u8> {
        self.slot
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
        (self.place >> LEN) as usize
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
        let n = n.min(self.len()) as u64;
        self.place = self.place + n - (n << LEN);
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
        self.place = self.place - n as u64 + ((n as u64) << LEN);
        Ok(self.bytes_mut())
    }

    /// [`Packet::push`] of a header of fixed length.
    #[inline(always)]
    pub fn push_header<const N: usize>(&mut self) -> Result<&mut [u8; N], NoRoom> {
        self.push_front(N)
    }

    /// [`Packet::push`] of `n` bytes; returns the first `N` bytes of the packet with them.
    ///
    /// # Errors
    /// [`NoRoom`] if there are not `n` bytes of headroom, or the packet is not `N` bytes long with them; it is then
    /// unchanged.
    #[inline(always)]
    pub fn push_front<const N: usize>(&mut self, n: usize) -> Result<&mut [u8; N], NoRoom> {
        if n > self.start() || N > self.len() + n {
            return Err(NoRoom);
        }
        self.place = self.place - n as u64 + ((n as u64) << LEN);
        // SAFETY: as in `bytes_mut`; the packet is at least N bytes long.
        Ok(unsafe { &mut *self.slot.as_ptr().add(self.start()).cast() })
    }

    /// Moves the packet so that there are `room` bytes in front of it: to the end of its slot, so that it is
    /// never moved again for room that the slot has.
    ///
    /// # Errors
    /// [`NoRoom`] if the slot is too short; the packet is then unchanged.
    #[cold]
    pub fn move_back(&mut self, room: usize) -> Result<(), NoRoom> {
        let (from, len) = (self.start(), self.len());
        let to = last_place(self.capacity(), len, room).ok_or(NoRoom)?;
        let offload = self.offload();
        self.slot_mut().copy_within(from..from + len, to);
        self.put(to, len);
        self.take_over(offload);
        Ok(())
    }

    /// Becomes a copy of `packet`, at the end of the slot, with at least `room` bytes in front.
    ///
    /// # Errors
    /// [`NoRoom`] if the slot is too short; the packet is then unchanged.
    #[cold]
    pub fn copy_back(&mut self, packet: &Self, room: usize) -> Result<(), NoRoom> {
        let to = last_place(self.capacity(), packet.len(), room).ok_or(NoRoom)?;
        self.set(to, packet.bytes())?;
        self.take_over(packet.offload());
        self.set_tag(packet.tag());
        Ok(())
    }

    /// Leaves of the packet the `len` bytes from its offset `from` on, as far as it has them.
    #[inline(always)]
    pub fn narrow(&mut self, from: usize, len: usize) {
        if from + len <= self.len() {
            return self.put(self.start() + from, len);
        }
        let from = from.min(self.len());
        self.put(self.start() + from, len.min(self.len() - from));
    }

    /// Cuts the packet to `len` bytes; longer than it is leaves it as it is.
    #[inline(always)]
    pub fn truncate(&mut self, len: usize) {
        if len < self.len() {
            self.put(self.start(), len);
        }
    }

    /// Makes the packet `n` bytes longer at its end, by whatever the slot held there.
    ///
    /// # Errors
    /// [`NoRoom`] if the slot ends before that; the packet is then unchanged.
    pub fn lengthen(&mut self, n: usize) -> Result<(), NoRoom> {
        let (start, len) = (self.start(), self.len());
        if n > self.capacity() - start - len {
            return Err(NoRoom);
        }
        self.put(start, len + n);
        Ok(())
    }

    /// Replaces the packet by `bytes`, which start at offset `start` of the slot. It has no [`Offload`] and no [`Tag`].
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

    /// Says that the packet is the `len` bytes from offset `start` of the slot. It has no [`Offload`] and no [`Tag`].
    ///
    /// # Errors
    /// [`NoRoom`] if the slot ends before that; the packet is then unchanged.
    #[inline]
    pub fn place(&mut self, start: usize, len: usize) -> Result<(), NoRoom> {
        if start.checked_add(len).is_none_or(|end| end > self.capacity()) {
            return Err(NoRoom);
        }
        self.place &= !MARGINAL;
        self.put(start, len);
        Ok(())
    }

    /// Empty, with [`HEADROOM`] in front, and nothing left to be done.
    #[inline(always)]
    fn reset(&mut self) {
        self.place &= !MARGINAL;
        self.put(HEADROOM.min(self.capacity()), 0);
    }

    /// `start + len` must be within the slot.
    #[inline(always)]
    fn put(&mut self, start: usize, len: usize) {
        debug_assert!(start + len <= self.capacity());
        let kept = self.place & (MASK << BITS | MARGINAL);
        self.place = kept | (len as u64) << LEN | start as u64;
    }
}

/// Where a packet of `len` bytes lies as far back as its slot lets it, at the start of a cache line if there
/// are `room` bytes in front of it then.
fn last_place(capacity: usize, len: usize, room: usize) -> Option<usize> {
    let last = capacity.checked_sub(len).filter(|last| *last >= room)?;
    let aligned = last & !63;
    Some(if aligned >= room { aligned } else { last })
}

impl fmt::Debug for Packet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Packet({} bytes at {})", self.len(), self.start())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TCP: Offload = Offload { start: 54, field: 16, segment: None };

    #[test]
    fn a_front_reaches_into_the_packet() {
        let mut pool = Pool::with_slot_size(1, 1024);
        let mut packet = pool.take().unwrap();
        packet.set(20, &[7; 10]).unwrap();
        assert_eq!(packet.push_front::<20>(21), Err(NoRoom), "there are 20 bytes of headroom");
        assert_eq!(packet.push_front::<31>(20), Err(NoRoom), "there would be 30 bytes");
        assert_eq!((packet.headroom(), packet.bytes()), (20, &[7; 10][..]));
        let front = packet.push_front::<30>(20).unwrap();
        assert_eq!(front[20..], [7; 10]);
        front.fill(1);
        assert_eq!((packet.headroom(), packet.bytes()), (0, &[1; 30][..]));
    }

    #[test]
    fn a_move_keeps_the_bytes_and_what_is_left_to_be_done() {
        let mut pool = Pool::with_slot_size(2, 1024);
        let (mut packet, mut copy) = (pool.take().unwrap(), pool.take().unwrap());
        let bytes: Vec<u8> = (0..200).map(|n| n as u8).collect();
        packet.set(22, &bytes).unwrap();
        packet.set_offload(TCP);
        assert_eq!(packet.move_back(825), Err(NoRoom));
        assert_eq!((packet.headroom(), packet.bytes()), (22, &bytes[..]));
        // Overlapping, at a cache line; then the last byte of the slot.
        for (room, headroom) in [(56, 768), (824, 824)] {
            assert_eq!(packet.move_back(room), Ok(()));
            assert_eq!((packet.headroom(), packet.bytes()), (headroom, &bytes[..]));
            assert_eq!(packet.offload(), Some(TCP));
        }
        assert_eq!(copy.copy_back(&packet, 825), Err(NoRoom));
        copy.copy_back(&packet, 100).unwrap();
        assert_eq!((copy.headroom(), copy.bytes(), copy.offload()), (768, &bytes[..], Some(TCP)));
    }
}
