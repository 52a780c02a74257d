//! Extensions of ICMP errors, RFC 4884 section 7, and the MPLS label stack in them, RFC 4950 section 3.
//!
//! ```text
//! | Version 2 (4) |    reserved (12)    |         Checksum (16)         |
//! |             Length (16)             | Class-Num (8) |   C-Type (8)  | object
//! |                            payload …                                |
//! ```
//!
//! They follow the packet that the error quotes, whose length then stands in the ICMP header.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, network_endian::U16};

use crate::checksum;
use crate::mpls::Entry;

/// Bytes that are quoted where an extension follows: the least that RFC 4884 section 3 allows, where receivers
/// that know no length field look for it (section 5.4).
pub const QUOTED: usize = 128;
/// Version of the structure.
pub const VERSION: u8 = 2;
/// Class and type of an object that is a label stack, as it was when the packet came.
pub const LABEL_STACK: (u8, u8) = (1, 1);

/// What is wrong with an extension.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Malformed {
    /// Shorter than its header, or an object that is longer than what is left.
    Truncated,
    /// Another version than [`VERSION`].
    Version,
    /// The checksum is wrong; 0 says that there is none.
    Checksum,
    /// An object that says to be shorter than its header.
    ObjectLength,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Header {
    version: u8,
    reserved: u8,
    checksum: U16,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct ObjectHeader {
    length: U16,
    class: u8,
    kind: u8,
}

/// An extension whose objects fill it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extension<'a>(&'a [u8]);

/// An object of an extension.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Object<'a> {
    /// Class-Num.
    pub class: u8,
    /// C-Type, whose meaning depends on the class.
    pub kind: u8,
    /// What it says.
    pub payload: &'a [u8],
}

impl<'a> Extension<'a> {
    /// Reads the extension that `bytes` are.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (header, mut rest) = Header::ref_from_prefix(bytes).map_err(|_| Malformed::Truncated)?;
        if header.version >> 4 != VERSION {
            return Err(Malformed::Version);
        }
        if header.checksum.get() != 0 && checksum::of(bytes) != 0 {
            return Err(Malformed::Checksum);
        }
        let objects = rest;
        while !rest.is_empty() {
            rest = split(rest)?.1;
        }
        Ok(Self(objects))
    }

    /// Its objects, in order.
    pub fn objects(&self) -> impl Iterator<Item = Object<'a>> + use<'a> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let (object, behind) = split(rest).ok()?;
            rest = behind;
            Some(object)
        })
    }

    /// The label stack, if there is one; bytes behind its last whole entry are passed over.
    pub fn label_stack(&self) -> Option<&'a [Entry]> {
        let object = self.objects().find(|object| (object.class, object.kind) == LABEL_STACK)?;
        let entries = object.payload.len() / Entry::LEN;
        Some(<[Entry]>::ref_from_prefix_with_elems(object.payload, entries).ok()?.0)
    }
}

/// The first object of `bytes`, and what follows it.
fn split(bytes: &[u8]) -> Result<(Object<'_>, &[u8]), Malformed> {
    let (header, _) = ObjectHeader::ref_from_prefix(bytes).map_err(|_| Malformed::Truncated)?;
    let length = usize::from(header.length.get());
    let (object, rest) = bytes.split_at_checked(length).ok_or(Malformed::Truncated)?;
    let payload = object.get(size_of::<ObjectHeader>()..).ok_or(Malformed::ObjectLength)?;
    Ok((Object { class: header.class, kind: header.kind, payload }, rest))
}

/// Length in bytes of an extension that is a label stack of so many bytes.
pub const fn len_of_label_stack(stack: usize) -> usize {
    size_of::<Header>() + size_of::<ObjectHeader>() + stack
}

/// Writes an extension that is the label stack `entries`, in wire order, to `bytes`, which it fills.
///
/// # Errors
/// [`Malformed::Truncated`]: `bytes` has not [`len_of_label_stack`] bytes. It is then unchanged.
pub fn write_label_stack(entries: &[u8], bytes: &mut [u8]) -> Result<(), Malformed> {
    let len = len_of_label_stack(entries.len());
    if bytes.len() != len || len > usize::from(u16::MAX) {
        return Err(Malformed::Truncated);
    }
    let (header, rest) = Header::mut_from_prefix(bytes).map_err(|_| Malformed::Truncated)?;
    *header = Header { version: VERSION << 4, reserved: 0, checksum: U16::ZERO };
    let length = rest.len() as u16;
    let (object, stack) = ObjectHeader::mut_from_prefix(rest).map_err(|_| Malformed::Truncated)?;
    *object = ObjectHeader { length: length.into(), class: LABEL_STACK.0, kind: LABEL_STACK.1 };
    stack.copy_from_slice(entries);
    let checksum = checksum::of(bytes);
    bytes[2..4].copy_from_slice(&checksum.to_be_bytes());
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::hex;

    /// scapy 2.5.0: `ICMPExtensionHeader()/ICMPExtensionMPLS(stack=[MPLS(label=100,cos=5,s=0,ttl=1),
    /// MPLS(label=300,cos=5,s=1,ttl=40)])`, but for the checksum, which there covers the first four bytes alone.
    #[test]
    fn a_label_stack_of_scapy() {
        let wire = hex("2000 c9b0 000c 0101 00064a01 0012cb28");
        let mut written = vec![0; len_of_label_stack(8)];
        write_label_stack(&wire[8..], &mut written).unwrap();
        assert_eq!(written, wire);
        let entries = Extension::parse(&wire).unwrap().label_stack().unwrap();
        let read: Vec<_> = entries.iter().map(|entry| (entry.label(), entry.ttl())).collect();
        assert_eq!(read, [(100, 1), (300, 40)]);
    }

    #[test]
    fn what_is_malformed_is_refused() {
        let wire = hex("2000 c9b0 000c 0101 00064a01 0012cb28");
        assert_eq!(Extension::parse(&wire[..3]), Err(Malformed::Truncated));
        let changed = |at: usize, byte| {
            let mut wire = wire.clone();
            wire[at] = byte;
            // Without a checksum, so that the rest is looked at.
            wire[2..4].fill(0);
            wire
        };
        assert_eq!(Extension::parse(&changed(0, 0x10)), Err(Malformed::Version));
        assert_eq!(Extension::parse(&changed(5, 13)), Err(Malformed::Truncated));
        assert_eq!(Extension::parse(&changed(5, 3)), Err(Malformed::ObjectLength));
        assert!(Extension::parse(&changed(5, 12)).is_ok());
        let mut wrong = wire;
        wrong[15] ^= 1;
        assert_eq!(Extension::parse(&wrong), Err(Malformed::Checksum));
        assert_eq!(write_label_stack(&[0; 4], &mut [0; 11]), Err(Malformed::Truncated));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(entries in proptest::collection::vec(any::<[u8; 4]>(), 0..31)) {
            let stack = entries.concat();
            let mut bytes = vec![0; len_of_label_stack(stack.len())];
            write_label_stack(&stack, &mut bytes).unwrap();
            let read = Extension::parse(&bytes).unwrap();
            prop_assert_eq!(read.label_stack().unwrap().as_bytes(), &stack[..]);
            prop_assert_eq!(read.objects().count(), 1);
        }
    }
}
