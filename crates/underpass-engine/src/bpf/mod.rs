//! eBPF programs in the packet path: what `ip … seg6local action End.BPF` loads.
//!
//! A program comes as the instructions that were given to bpf(2), before the kernel's verifier rewrote them,
//! and is decoded once. A small interpreter of our own runs it, for those that there are lack what the packet
//! path needs: memory at addresses of 32 bits, as `data` and `data_end` of `struct __sk_buff` are, helpers that
//! see the packet, maps, and atomic instructions.
//!
//! A program sees no address of this process. What it takes for pointers are places in the packet, in its
//! context, in its stack and in the values of its maps, and each access is checked against those. So a program
//! that no verifier has seen does no harm either.

pub mod classic;
mod decode;
mod format;
mod helpers;
mod machine;
mod memory;
pub(crate) mod programs;
mod region;

use std::fmt;

pub(crate) use decode::Helper;
pub use decode::Unsupported;
pub(crate) use helpers::{General, Out, Printed};
pub use machine::Fault;
pub(crate) use machine::{Host, Machine};
pub(crate) use memory::{Field, Memory};
pub use region::Region;

/// A decoded program and its maps.
pub struct Program {
    ops: Box<[decode::Op]>,
    maps: Box<[Map]>,
}

impl Program {
    /// Decodes the instructions of a program, 8 bytes each (`struct bpf_insn`). Where they load the address of a
    /// map or of its value, they name it by the number that stands before it in `maps`.
    ///
    /// # Errors
    /// Which instruction it has that does not exist, or that this machine does not have.
    pub fn new(code: &[u8], maps: Vec<(u32, Map)>) -> Result<Self, Unsupported> {
        let numbers: Vec<u32> = maps.iter().map(|(number, _)| *number).collect();
        let ops = decode::decode(code, &numbers)?;
        Ok(Self { ops: ops.into(), maps: maps.into_iter().map(|(_, map)| map).collect() })
    }
}

/// The same program, not an equal one.
impl PartialEq for Program {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for Program {}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Program({} instructions, {} maps)", self.ops.len(), self.maps.len())
    }
}

/// A map of the kind `BPF_MAP_TYPE_ARRAY`, in memory that can be reached without a system call.
#[derive(Debug)]
pub struct Map {
    values: Region,
    /// Bytes of a value, and from one to the next.
    value: usize,
    stride: usize,
    entries: usize,
}

impl Map {
    /// An array of values of `value` bytes, each rounded up to 8 as the kernel lays them out. `None`: the memory
    /// is shorter than that, or longer than 4 GiB.
    pub fn array(values: Region, value: usize, entries: usize) -> Option<Self> {
        let stride = value.checked_next_multiple_of(8)?;
        let len = stride.checked_mul(entries)?;
        (len <= values.len() && u32::try_from(len).is_ok() && value > 0).then_some(Self {
            values,
            value,
            stride,
            entries,
        })
    }
}
