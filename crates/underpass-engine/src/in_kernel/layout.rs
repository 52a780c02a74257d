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
/// Where it says where the table is laid out, if it is. With [`DIRECTORY`] it has buckets; else it is laid out flat: in the
/// first half a slot of 16 bits for each 24 bits of the address, in the second an entry of 32 bits for each slot that says
/// [`DEEP`].
pub const FLAT: i32 = (lpm::FLAT * 8) as i32;
/// In a slot: the rest is the number of an entry.
pub const DEEP: i32 = lpm::DEEP as i32;
/// Bytes of what blocks are counted in, as a power of two: those that entries name, among the nodes.
pub const UNIT_BITS: i32 = (lpm::Arena::UNIT * 8).trailing_zeros() as i32;
/// At [`FLAT`]: in the first half is a directory of buckets, in the second how many of its words a search may begin at.
pub const DIRECTORY: i32 = lpm::DIRECTORY as i32;
/// How many words of the directory are searched.
pub const PROBES: i16 = lpm::PROBES as i16;
/// By what the first 32 bits of an address are multiplied: where the search begins is the same part of all words as the
/// lower half of the product is of 32 bits.
pub const SPREAD: i32 = lpm::SPREAD.cast_signed();
/// Words of a bucket.
pub const BUCKET_WORDS: i16 = lpm::BUCKET_WORDS as i16;
