//! How tries lie in memory, for programs that walk them: [`crate::lpm`].

use crate::lpm;

/// Which word of a node is its meta word.
pub const NODE_META: i16 = lpm::NODE_META as i16;
/// Which word of a node is its first entry.
pub const NODE_ENTRIES: i16 = lpm::NODE_ENTRIES as i16;
/// Where in a root, in bytes, the leaves of short prefixes are painted.
pub const COVERS: i32 = (lpm::COVERS * 8) as i32;
/// Where in a root, in bytes, the mark of the prefix of no bits is.
pub const DEFAULT: i32 = (lpm::DEFAULT * 8) as i32;
/// Where it says whether there ever was a short prefix.
pub const COVERED: i32 = (lpm::COVERED * 8) as i32;
/// Where it says where the table is laid out flat, if it is: in the first half a slot of 16 bits for each 24 bits of the
/// address, in the second an entry of 32 bits for each slot that says [`DEEP`].
pub const FLAT: i32 = (lpm::FLAT * 8) as i32;
/// In a slot: the rest is the number of an entry.
pub const DEEP: i32 = lpm::DEEP as i32;
/// Bytes of what blocks are counted in, as a power of two: those that entries name, among the nodes.
pub const UNIT_BITS: i32 = (lpm::Arena::UNIT * 8).trailing_zeros() as i32;
