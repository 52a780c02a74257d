//! The address space of a program: 64 bits wide, with nothing of this process in it.
//!
//! ```text
//! 0x0000_0000_1000_0000  the packet, read-only
//! 0x0000_0000_2000_0000  its context, a struct __sk_buff
//! 0x0000_0000_3000_0000  the stack, 512 bytes for each function that is called
//! 0x0000_000n_0000_0000  the values of map n, from 1 on
//! 0x8000_000n_0000_0000  map n itself, to be given to helpers
//! ```

use super::region::Update;
use super::{Fault, Map};

/// Bytes of the stack of a function: `MAX_BPF_STACK`.
pub(super) const FRAME: usize = 512;
/// Functions that call each other: `MAX_CALL_FRAMES`.
pub(super) const FRAMES: usize = 8;

pub(super) const PACKET: u64 = 1 << 28;
pub(super) const CONTEXT: u64 = 2 << 28;
pub(super) const STACK: u64 = 3 << 28;
const LOW: u64 = (1 << 28) - 1;
const MAP: u64 = 1 << 63;

/// The address of the value area of the map at this place.
pub(super) fn values_of(place: usize) -> u64 {
    (place as u64 + 1) << 32
}

/// The address that stands for the map at this place.
pub(super) fn handle_of(place: usize) -> u64 {
    MAP | values_of(place)
}

/// Fields of `struct __sk_buff` by their offsets, 4 bytes each, as far as this router has something to say in
/// them: include/uapi/linux/bpf.h.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Field {
    Len = 0,
    Mark = 8,
    Protocol = 16,
    IngressIfindex = 36,
    Ifindex = 40,
    Data = 76,
    DataEnd = 80,
    GsoSegs = 164,
    GsoSize = 176,
}

/// `sizeof(struct __sk_buff)`, with `hwtstamp`.
const SKB: usize = 192;

/// What a program may write of it, Linux's `lwt_is_valid_access`: `mark`, `priority`, `cb`.
fn writable(at: usize, len: usize) -> bool {
    [8..12, 32..36, 48..68].iter().any(|field| field.contains(&at) && at + len <= field.end)
}

/// A `struct __sk_buff`.
#[derive(Debug)]
pub(super) struct Context([u8; SKB]);

impl Context {
    pub(super) fn new() -> Self {
        Self([0; SKB])
    }

    pub(super) fn clear(&mut self) {
        self.0.fill(0);
    }
}

/// All that a program can reach but for the packet.
pub(crate) struct Memory<'m> {
    pub(super) context: &'m mut Context,
    pub(super) stack: &'m mut [u8; FRAME * FRAMES],
    pub(super) maps: &'m [Map],
}

/// What an address is of.
enum Place<'p> {
    Packet(usize),
    Context(usize),
    Stack(usize),
    Map(&'p Map, usize),
}

impl<'m> Memory<'m> {
    pub(crate) fn get(&self, field: Field) -> u32 {
        let bytes = self.context.0.get(field as usize..).and_then(<[u8]>::first_chunk);
        bytes.map_or(0, |bytes| u32::from_le_bytes(*bytes))
    }

    pub(crate) fn set(&mut self, field: Field, value: u32) {
        let bytes = self.context.0.get_mut(field as usize..).and_then(<[u8]>::first_chunk_mut);
        if let Some(bytes) = bytes {
            *bytes = value.to_le_bytes();
        }
    }

    /// Says that the packet is `len` bytes long now.
    pub(crate) fn set_len(&mut self, len: usize) {
        self.set(Field::Len, len as u32);
        self.set(Field::Data, PACKET as u32);
        self.set(Field::DataEnd, PACKET as u32 + len as u32);
    }

    #[inline(always)]
    fn place(&self, address: u64) -> Result<Place<'m>, Fault> {
        let low = (address & LOW) as usize;
        match address & !LOW {
            PACKET => Ok(Place::Packet(low)),
            STACK => Ok(Place::Stack(low)),
            CONTEXT => Ok(Place::Context(low)),
            _ => {
                let map = (address >> 32).checked_sub(1).and_then(|place| self.maps.get(place as usize));
                map.map(|map| Place::Map(map, address as u32 as usize)).ok_or(Fault::Address)
            }
        }
    }

    /// Reads N bytes.
    #[inline(always)]
    pub(super) fn load<const N: usize>(&self, packet: &[u8], address: u64) -> Result<[u8; N], Fault> {
        let bytes = match self.place(address)? {
            Place::Packet(at) => packet.get(at..).and_then(<[u8]>::first_chunk),
            Place::Stack(at) => self.stack.get(at..).and_then(<[u8]>::first_chunk),
            Place::Context(at) => self.context.0.get(at..).and_then(<[u8]>::first_chunk),
            Place::Map(map, at) => return map.values.load(at).ok_or(Fault::Address),
        };
        bytes.copied().ok_or(Fault::Address)
    }

    /// Writes N bytes, little-endian as the processor of the programs is.
    #[inline(always)]
    pub(super) fn store<const N: usize>(&mut self, address: u64, bytes: [u8; N]) -> Result<(), Fault> {
        let room = match self.place(address)? {
            Place::Stack(at) => self.stack.get_mut(at..).and_then(<[u8]>::first_chunk_mut),
            Place::Context(at) if writable(at, N) => {
                self.context.0.get_mut(at..).and_then(<[u8]>::first_chunk_mut)
            }
            Place::Map(map, at) => return map.values.store(at, bytes).ok_or(Fault::Address),
            Place::Packet(_) | Place::Context(_) => None,
        };
        *room.ok_or(Fault::Address)? = bytes;
        Ok(())
    }

    /// Changes a word of the stack or of a map, and returns what it was.
    pub(super) fn update(
        &mut self,
        address: u64,
        wide: bool,
        update: Update,
        operand: u64,
    ) -> Result<u64, Fault> {
        if let Place::Map(map, at) = self.place(address)? {
            return map.values.update(at, wide, update, operand).ok_or(Fault::Address);
        }
        // Nobody else sees the stack. The packet and the context are not to be changed so.
        if !matches!(self.place(address)?, Place::Stack(_)) {
            return Err(Fault::Address);
        }
        if wide {
            let old = u64::from_le_bytes(self.load(&[], address)?);
            self.store(address, update.apply(old, operand).to_le_bytes())?;
            return Ok(old);
        }
        let old = u32::from_le_bytes(self.load(&[], address)?);
        let update = match update {
            Update::CompareExchange(expected) => Update::CompareExchange(u64::from(expected as u32)),
            update => update,
        };
        let new = update.apply(old.into(), u64::from(operand as u32));
        self.store(address, (new as u32).to_le_bytes())?;
        Ok(old.into())
    }

    /// Copies bytes out of any memory.
    pub(crate) fn read(&self, packet: &[u8], address: u64, to: &mut [u8]) -> Result<(), Fault> {
        let bytes = match self.place(address)? {
            Place::Packet(at) => packet.get(at..),
            Place::Stack(at) => self.stack.get(at..),
            Place::Context(at) => self.context.0.get(at..),
            Place::Map(map, at) => return map.values.read(at, to).ok_or(Fault::Address),
        };
        let bytes = bytes.and_then(|bytes| bytes.get(..to.len())).ok_or(Fault::Address)?;
        to.copy_from_slice(bytes);
        Ok(())
    }

    /// Copies bytes to the stack or to a map.
    pub(crate) fn write(&mut self, address: u64, from: &[u8]) -> Result<(), Fault> {
        match self.place(address)? {
            Place::Stack(at) => {
                let room = self.stack.get_mut(at..).and_then(|room| room.get_mut(..from.len()));
                room.ok_or(Fault::Address)?.copy_from_slice(from);
                Ok(())
            }
            Place::Map(map, at) => map.values.write(at, from).ok_or(Fault::Address),
            Place::Packet(_) | Place::Context(_) => Err(Fault::Address),
        }
    }

    /// The map that an address stands for, and where its values are.
    pub(crate) fn map(&self, handle: u64) -> Result<(&'m Map, u64), Fault> {
        let values = handle & !MAP;
        let place = (values >> 32).checked_sub(1).filter(|_| handle & MAP != 0 && handle as u32 == 0);
        let map = place.and_then(|place| self.maps.get(place as usize)).ok_or(Fault::Address)?;
        Ok((map, values))
    }
}
