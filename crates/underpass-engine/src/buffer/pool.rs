//! Free slots: who needs one takes it, and gives it back.

use super::{HEADROOM, LARGE_SLOT, LEAST_HEADROOM, MARGIN, MASK, Packet, SLOT, last_place};
use crate::memory;

/// Free slots, last in first out, so that the next packet lies in a slot that is still in the cache.
/// Slots of two sizes: those of most packets, and large ones for large segments.
pub struct Pool {
    free: Vec<Packet>,
    large: Vec<Packet>,
}

impl Pool {
    /// A pool of `slots` slots of [`SLOT`] bytes. Their memory is never given back: a router makes its
    /// pools once.
    pub fn new(slots: usize) -> Self {
        Self::with_slot_size(slots, SLOT)
    }

    /// A pool of `slots` slots of `size` bytes, all in one class.
    ///
    /// # Panics
    /// If a slot is to be of 1 MiB or more.
    pub fn with_slot_size(slots: usize, size: usize) -> Self {
        assert!(size as u64 <= MASK, "a slot of {size} bytes");
        let len = slots * (size + MARGIN);
        // The heap has no more than the kernel grants, but ends the process as every allocation does that fails.
        let region = memory::leak(len).unwrap_or_else(|_| Vec::leak(vec![0; len]));
        let mut pool = Self { free: Vec::with_capacity(slots), large: Vec::new() };
        region.chunks_exact_mut(size + MARGIN).rev().for_each(|slot| pool.free.push(Packet::new(slot)));
        pool
    }

    /// A pool of the slots that fit into the regions: of [`SLOT`] bytes in `region`, of [`LARGE_SLOT`] in
    /// `large`, which may be empty. Slot `n` starts at `n × (MARGIN + SLOT) + MARGIN` of its region.
    pub fn over(region: &'static mut [u8], large: &'static mut [u8]) -> Self {
        let free = region
            .as_chunks_mut::<{ MARGIN + SLOT }>()
            .0
            .iter_mut()
            .map(|slot| Packet::new(slot))
            .rev()
            .collect();
        let large = large
            .as_chunks_mut::<{ MARGIN + LARGE_SLOT }>()
            .0
            .iter_mut()
            .map(|slot| Packet::new(slot))
            .rev()
            .collect();
        Self { free, large }
    }

    /// A free packet: empty, with [`HEADROOM`] in front where the slot is long enough.
    #[inline]
    pub fn take(&mut self) -> Option<Packet> {
        let mut packet = self.free.pop()?;
        packet.reset();
        Some(packet)
    }

    /// A free packet of `len` bytes, whose content is whatever the slot held: with [`HEADROOM`] in front of
    /// it, or with less where that saves a large slot, but [`LEAST_HEADROOM`] at least.
    pub fn take_for(&mut self, len: usize) -> Option<Packet> {
        let fits = |packet: &Packet| len + LEAST_HEADROOM <= packet.capacity();
        let mut packet = if self.free.last().is_some_and(fits) { self.take()? } else { self.take_large()? };
        match last_place(packet.capacity(), len, LEAST_HEADROOM) {
            Some(last) => packet.put(last.min(HEADROOM), len),
            None => {
                self.give(packet);
                return None;
            }
        }
        Some(packet)
    }

    /// A free packet in a large slot.
    #[inline]
    pub fn take_large(&mut self) -> Option<Packet> {
        let mut packet = self.large.pop()?;
        packet.reset();
        Some(packet)
    }

    /// A copy of a packet, with what goes along with it. `None`: there is no free slot.
    pub fn copy(&mut self, packet: &Packet) -> Option<Packet> {
        let mut copy = self.take_for(packet.len())?;
        let room = copy.headroom().min(LEAST_HEADROOM);
        if copy.copy_back(packet, room).is_err() {
            self.give(copy);
            return None;
        }
        Some(copy)
    }

    /// Takes a slot back.
    #[inline]
    pub fn give(&mut self, packet: Packet) {
        if packet.is_large() && self.large.len() != self.large.capacity() {
            return self.large.push(packet);
        }
        self.free.push(packet);
    }

    /// How many slots are free, large ones not counted.
    pub fn available(&self) -> usize {
        self.free.len()
    }

    /// Whether large slots are a class of their own.
    #[inline]
    pub(crate) fn has_large(&self) -> bool {
        self.large.capacity() > 0
    }

    /// How many large slots are free.
    pub fn available_large(&self) -> usize {
        self.large.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_frame_takes_a_large_slot_only_if_it_must() {
        let region = |slot: usize| Vec::leak(vec![0; slot + MARGIN]);
        let mut pool = Pool::over(region(SLOT), region(LARGE_SLOT));
        for (len, headroom, large) in [
            (SLOT - HEADROOM, HEADROOM, false),
            (3000, 1088, false),
            (SLOT - LEAST_HEADROOM, LEAST_HEADROOM, false),
            (SLOT - LEAST_HEADROOM + 1, HEADROOM, true),
            (65_549, HEADROOM, true),
        ] {
            let packet = pool.take_for(len).unwrap();
            assert_eq!((packet.len(), packet.headroom(), packet.is_large()), (len, headroom, large), "{len}");
            pool.give(packet);
        }
        assert!(pool.take_for(LARGE_SLOT).is_none());
        assert_eq!((pool.available(), pool.available_large()), (1, 1));
    }

    #[test]
    fn slots_go_back_to_their_class() {
        let region = |slot: usize, count: usize| Vec::leak(vec![0; (slot + MARGIN) * count + 17]);
        let mut pool = Pool::over(region(SLOT, 3), region(LARGE_SLOT, 2));
        assert_eq!((pool.available(), pool.available_large()), (3, 2));
        let (small, large) = (pool.take().unwrap(), pool.take_large().unwrap());
        assert!(!small.is_large() && large.is_large());
        pool.give(large);
        pool.give(small);
        assert_eq!((pool.available(), pool.available_large()), (3, 2));
        let small = pool.take().unwrap();
        let address = small.slot_address();
        // SAFETY: it has just been given away, with this length.
        let small = unsafe { Packet::from_slot(small.into_slot(), SLOT) };
        assert_eq!((small.slot_address(), small.slot().len()), (address, SLOT));
        pool.give(small);
    }
}
