//! The TLVs of an SRH: RFC 8754 section 2.1.

use zerocopy::{
    FromBytes, Immutable, KnownLayout, Unaligned,
    network_endian::{U16, U32},
};

use super::Malformed;

/// Type of a padding byte that has no length: RFC 8754 section 2.1.1.1.
pub const TLV_PAD1: u8 = 0;
/// Type of a padding TLV: RFC 8754 section 2.1.1.2.
pub const TLV_PADN: u8 = 4;
/// Type of the HMAC TLV: RFC 8754 section 2.1.2.
pub const TLV_HMAC: u8 = 5;
/// Length of the digest in an HMAC TLV as Linux makes it, in bytes; a shorter one is filled up with zeros.
pub const DIGEST_LEN: usize = 32;
/// Length of that TLV.
pub(super) const HMAC_LEN: usize = 2 + size_of::<HmacFixed>() + DIGEST_LEN;

/// One TLV of an SRH.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tlv<'a> {
    /// Its type.
    pub kind: u8,
    /// Its value; empty for [`TLV_PAD1`].
    pub value: &'a [u8],
}

impl<'a> Tlv<'a> {
    /// The HMAC TLV's fields; `None` if this is another TLV, or its digest is not 8, 16, 24 or 32 bytes.
    pub fn hmac(&self) -> Option<Hmac<'a>> {
        let (fixed, digest) = HmacFixed::ref_from_prefix(self.value).ok()?;
        let whole = matches!(digest.len(), 8 | 16 | 24 | 32);
        (self.kind == TLV_HMAC && whole).then(|| Hmac {
            destination_not_verified: fixed.flags.get() & 0x8000 != 0,
            key_id: fixed.key_id.get(),
            digest,
        })
    }
}

/// The keyed digest of an SRH, RFC 8754 section 2.1.2.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hmac<'a> {
    /// The D bit: the destination address was not checked, as the list is reduced.
    pub destination_not_verified: bool,
    /// Which key and algorithm; 0: none.
    pub key_id: u32,
    /// The digest.
    pub digest: &'a [u8],
}

#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct HmacFixed {
    flags: U16,
    key_id: U32,
}

/// The TLVs of an SRH, in their order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tlvs<'a>(pub(super) &'a [u8]);

impl<'a> Iterator for Tlvs<'a> {
    type Item = Tlv<'a>;

    #[inline]
    fn next(&mut self) -> Option<Tlv<'a>> {
        let (tlv, rest) = split_tlv(self.0)?;
        self.0 = rest;
        Some(tlv)
    }
}

/// The TLV at the start of `bytes` and what follows it; `None` if it goes on after their end, or if
/// there are none.
#[inline]
fn split_tlv(bytes: &[u8]) -> Option<(Tlv<'_>, &[u8])> {
    match *bytes {
        [TLV_PAD1, ref rest @ ..] => Some((Tlv { kind: TLV_PAD1, value: &[] }, rest)),
        [kind, len, ref rest @ ..] => {
            let (value, rest) = rest.split_at_checked(len as usize)?;
            Some((Tlv { kind, value }, rest))
        }
        _ => None,
    }
}

#[inline]
pub(super) fn check_tlvs(mut bytes: &[u8]) -> Result<(), Malformed> {
    while !bytes.is_empty() {
        bytes = split_tlv(bytes).ok_or(Malformed::Tlv)?.1;
    }
    Ok(())
}
