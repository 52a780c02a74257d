//! A worker's packet memory, which all its AF_XDP sockets share: Documentation/networking/af_xdp.rst.
//!
//! ```text
//! |margin| slot 0: one chunk           |margin| slot 1                     | …
//! |  64  | headroom 2176 |    1920     |  64  |
//!        ↑ what the fill ring names    ↑ 4,160: not a power of two, so the chunks count as unaligned
//! ```
//!
//! A slot that is in a ring belongs to the kernel; which socket's ring it is in is noted here. So a slot
//! that the kernel names is believed only if it has it, and what a socket still had when it was closed is
//! found again.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use underpass_engine::buffer::{HEADROOM, LARGE_SLOT, MARGIN, Packet, Pool, SLOT};
use underpass_engine::memory;

use crate::sys;

/// From one slot to the next.
const STRIDE: usize = MARGIN + SLOT;

/// Bytes that the kernel leaves in front of each packet by itself: `XDP_PACKET_HEADROOM`.
const KERNEL_HEADROOM: usize = 256;

/// In an address of an unaligned chunk, the offset in the chunk begins at this bit.
const OFFSET_SHIFT: u32 = 48;

/// Longest frame that is received.
pub const LONGEST: usize = SLOT - HEADROOM;

/// Names a socket among those of one memory. 0 is none.
pub(crate) type Holder = u16;

/// The packet memory of one worker, and who has which slot of it. Its pool is beside it.
#[derive(Clone)]
pub struct Memory(Arc<Inner>);

struct Inner {
    base: NonNull<u8>,
    len: usize,
    /// Where the large slots are, and how many bytes.
    large: (NonNull<u8>, usize),
    /// Of each slot, the socket that has it.
    held: Box<[AtomicU16]>,
    sockets: Mutex<Sockets>,
}

/// The sockets that use the memory.
#[derive(Default)]
struct Sockets {
    last: Holder,
    open: Vec<(Holder, RawFd)>,
}

// SAFETY: the memory is reached only through packets, each of which has one owner, and through the kernel.
unsafe impl Send for Inner {}
// SAFETY: as above; what is shared is atomic or behind the mutex.
unsafe impl Sync for Inner {}

impl Memory {
    /// Memory of `slots` slots, and of `large` slots for large segments, which no AF_XDP socket reaches.
    /// It is never given back: a router makes its memory once.
    ///
    /// # Errors
    /// There is not so much.
    pub fn new(slots: usize, large: usize) -> io::Result<(Self, Pool)> {
        let len = (slots.max(1) * STRIDE).next_multiple_of(4096);
        let region = memory::leak(len)?;
        let base = NonNull::from(&mut *region).cast();
        let held = (0..len / STRIDE).map(|_| AtomicU16::new(0)).collect();
        let large = match large {
            0 => Default::default(),
            large => memory::leak(large * (MARGIN + LARGE_SLOT))?,
        };
        let place = (NonNull::from(&mut *large).cast(), large.len());
        let inner = Inner { base, len, large: place, held, sockets: Mutex::default() };
        Ok((Self(Arc::new(inner)), Pool::over(region, large)))
    }

    /// How many bytes of it have not been used yet, so that they are not in memory. They are when so many packets wait
    /// at once for the first time.
    pub fn untouched(&self) -> usize {
        let (large, large_len) = self.0.large;
        sys::untouched(self.0.base, self.0.len)
            + if large_len == 0 { 0 } else { sys::untouched(large, large_len) }
    }

    /// Binds `socket`, whose rings are made, to a queue of a device: over the memory as another socket
    /// registered it, or as the first that registers it.
    pub(crate) fn bind(&self, socket: RawFd, address: libc::sockaddr_xdp) -> io::Result<Holder> {
        let mut sockets = self.0.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        let mut bound = false;
        // A socket whose device is gone can no longer lend the memory: the next is asked.
        for (_, other) in &sockets.open {
            let shared = libc::sockaddr_xdp {
                // The sharer takes on the other's flags and may name none.
                sxdp_flags: libc::XDP_SHARED_UMEM,
                sxdp_shared_umem_fd: other.cast_unsigned(),
                ..address
            };
            match sys::bind(socket, &shared) {
                Ok(()) => {
                    bound = true;
                    break;
                }
                Err(error) if error.raw_os_error() == Some(libc::EBADF) => {}
                Err(error) => return Err(error),
            }
        }
        if !bound {
            let register = libc::xdp_umem_reg {
                addr: self.0.base.as_ptr() as u64,
                len: self.0.len as u64,
                chunk_size: SLOT as u32,
                headroom: (HEADROOM - KERNEL_HEADROOM) as u32,
                flags: libc::XDP_UMEM_UNALIGNED_CHUNK_FLAG,
                tx_metadata_len: 0,
            };
            // Registering puts memory behind all of it, with the processor to itself.
            sys::touch(self.0.base, self.0.len);
            sys::set_option(socket, libc::SOL_XDP, libc::XDP_UMEM_REG, &register)?;
            sys::bind(socket, &address)?;
        }
        sockets.last = (1..=Holder::MAX)
            .map(|step| sockets.last.wrapping_add(step))
            .find(|holder| *holder != 0 && sockets.open.iter().all(|(other, _)| other != holder))
            .ok_or(io::ErrorKind::QuotaExceeded)?;
        let holder = sockets.last;
        sockets.open.push((holder, socket.as_raw_fd()));
        Ok(holder)
    }

    /// Gives the slots back that a socket held. It must be closed.
    pub(crate) fn release(&self, holder: Holder) -> impl Iterator<Item = Packet> {
        self.forget(holder);
        let held = self.0.held.iter().enumerate();
        held.filter(move |(_, held)| held.load(Ordering::Relaxed) == holder)
            .filter_map(move |(index, _)| self.take_back_slot(holder, index))
    }

    /// Says that a socket is about to be closed, so that no other asks it for the memory.
    pub(crate) fn forget(&self, holder: Holder) {
        let mut sockets = self.0.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        sockets.open.retain(|(other, _)| *other != holder);
    }

    /// Gives the slot of `packet` to the kernel, in a ring of `holder`. Returns its address.
    /// The packet comes back if its slot is not of this memory.
    #[inline]
    pub(crate) fn lend(&self, holder: Holder, packet: Packet) -> Result<u64, Packet> {
        let base = self.0.base.as_ptr() as usize;
        let address = (packet.slot_address().as_ptr() as usize).wrapping_sub(base);
        match self.0.held.get(address / STRIDE) {
            Some(held) if address < self.0.len => {
                held.store(holder, Ordering::Relaxed);
                packet.into_slot();
                Ok(address as u64)
            }
            _ => Err(packet),
        }
    }

    /// Takes back the slot that a received descriptor names: the packet in it. `None` if `holder` does not
    /// have it, or the packet would end outside of it.
    #[inline]
    pub(crate) fn received(&self, holder: Holder, address: u64, len: u32) -> Option<Packet> {
        let (index, start) = locate(address);
        let mut packet = self.take_back_slot(holder, index)?;
        // A length of more than the slot leaves the packet empty, which no forwarder takes for a frame.
        let _ = packet.place(start, len as usize);
        Some(packet)
    }

    /// Takes back the slot that a completed descriptor names.
    #[inline]
    pub(crate) fn completed(&self, holder: Holder, address: u64) -> Option<Packet> {
        self.take_back_slot(holder, locate(address).0)
    }

    #[inline]
    fn take_back_slot(&self, holder: Holder, index: usize) -> Option<Packet> {
        let held = self.0.held.get(index)?;
        if held.load(Ordering::Relaxed) != holder {
            return None;
        }
        held.store(0, Ordering::Relaxed);
        // SAFETY: the slot was given away in `lend`, is of this length, and now nobody has it: the kernel
        // has named it in a ring, or has closed the socket that it was lent to.
        unsafe { Some(Packet::from_slot(self.0.base.add(index * STRIDE + MARGIN), SLOT)) }
    }
}

/// The slot that an address lies in, and the offset in it.
#[inline]
fn locate(address: u64) -> (usize, usize) {
    let (base, offset) = (address & ((1 << OFFSET_SHIFT) - 1), address >> OFFSET_SHIFT);
    let address = (base + offset) as usize;
    (address / STRIDE, (address % STRIDE).saturating_sub(MARGIN))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_slots_are_filled_in_when_they_are_used() {
        let (memory, mut pool) = Memory::new(8, 4).unwrap();
        let before = memory.untouched();
        let mut packet = pool.take_large().unwrap();
        packet.slot_mut().fill(1);
        let used = before - memory.untouched();
        assert!((60_000..=72 << 10).contains(&used), "{before} {used}");
        pool.give(packet);
        assert_eq!(memory.untouched(), before - used);
    }

    #[test]
    fn a_slot_is_taken_back_once_and_by_its_holder() {
        let (memory, mut pool) = Memory::new(8, 1).unwrap();
        let address = memory.lend(3, pool.take().unwrap()).unwrap();
        let received = address | (HEADROOM as u64) << OFFSET_SHIFT;
        assert!(memory.received(4, received, 60).is_none());
        let packet = memory.received(3, received, 60).unwrap();
        assert_eq!((packet.headroom(), packet.len()), (HEADROOM, 60));
        assert!(memory.received(3, received, 60).is_none());
        assert!(memory.completed(3, u64::MAX).is_none());
        pool.give(packet);
        let lent: Vec<_> = (0..5).map(|_| memory.lend(7, pool.take().unwrap()).unwrap()).collect();
        assert!(memory.completed(7, lent[2] + 100).is_some());
        assert_eq!(memory.release(7).count(), 4);
        assert_eq!(memory.release(7).count(), 0);
        let large = pool.take_large().unwrap();
        assert!(memory.lend(7, large).is_err());
    }

    #[test]
    fn a_frame_longer_than_its_slot_is_empty() {
        let (memory, mut pool) = Memory::new(1, 0).unwrap();
        let address = memory.lend(1, pool.take().unwrap()).unwrap();
        let packet = memory.received(1, address | (HEADROOM as u64) << OFFSET_SHIFT, 1921).unwrap();
        assert_eq!(packet.len(), 0);
    }
}
