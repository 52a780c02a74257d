//! Segment Routing Header, RFC 8754 section 2.
//!
//! ```text
//! |  Next Header  |  Hdr Ext Len  | Routing Type=4| Segments Left |
//! |  Last Entry   |     Flags     |              Tag              |
//! |            Segment List[0]: the last to be visited (16)       |
//! |                              ...                              |
//! |            Segment List[Last Entry] (16)                      |
//! |                   TLVs, to Hdr Ext Len                        |
//! ```

mod tlv;

use std::net::Ipv6Addr;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, network_endian::U16};

pub use tlv::{DIGEST_LEN, Hmac, TLV_HMAC, TLV_PAD1, TLV_PADN, Tlv, Tlvs};
use tlv::{HMAC_LEN, check_tlvs};

/// Routing type of a segment routing header.
pub const ROUTING_TYPE: u8 = 4;
/// Most segments that a header holds.
pub const MAX_SEGMENTS: usize = 127;
/// Where Segments Left lies in the header.
pub const SEGMENTS_LEFT_OFFSET: usize = 3;
/// Flag that asks for operations, administration and maintenance: RFC 9259 section 2.1.
pub const FLAG_OAM: u8 = 0x20;

/// Flag that says that the last TLV is an HMAC: Linux's `SR6_FLAG1_HMAC`.
pub const FLAG_HMAC: u8 = 0x08;

/// Which rule the bytes break, in the order in which they are checked. The rules are those of Linux's
/// `seg6_validate_srh()` for headers that may be reduced, and the padding of RFC 8754 section 2.1.1.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Malformed {
    /// Shorter than Hdr Ext Len says, or than 8 bytes.
    Truncated,
    /// The routing type is not 4.
    RoutingType,
    /// Hdr Ext Len has no room for the segments that Last Entry counts.
    LastEntry,
    /// Segments Left is above Last Entry + 1, the most that a reduced list allows.
    SegmentsLeft,
    /// A TLV goes on after the end of the header.
    Tlv,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Fixed {
    next_header: u8,
    hdr_ext_len: u8,
    routing_type: u8,
    segments_left: u8,
    last_entry: u8,
    flags: u8,
    tag: U16,
}

const FIXED_LEN: usize = size_of::<Fixed>();
const SEGMENT_LEN: usize = 16;

impl Fixed {
    /// Checks the fixed fields against each other: how long segments and TLVs are, in bytes, and how
    /// many segments there are.
    #[inline]
    fn lengths(&self) -> Result<(usize, usize), Malformed> {
        if self.routing_type != ROUTING_TYPE {
            return Err(Malformed::RoutingType);
        }
        let len = self.hdr_ext_len as usize * 8;
        let count = self.last_entry as usize + 1;
        if count * SEGMENT_LEN > len {
            return Err(Malformed::LastEntry);
        }
        if self.segments_left as usize > count {
            return Err(Malformed::SegmentsLeft);
        }
        Ok((len, count))
    }
}

/// An SRH whose lengths agree with each other and with the packet: no accessor can fail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Srh<'a> {
    fixed: &'a Fixed,
    segments: &'a [[u8; 16]],
    tlvs: &'a [u8],
}

impl<'a> Srh<'a> {
    /// Reads the routing header at the start of `bytes`; `bytes` may go on after it.
    ///
    /// # Errors
    /// See [`Malformed`].
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (fixed, rest) = Fixed::ref_from_prefix(bytes).map_err(|_| Malformed::Truncated)?;
        let (len, count) = fixed.lengths()?;
        let body = rest.get(..len).ok_or(Malformed::Truncated)?;
        let (segments, tlvs) =
            <[[u8; 16]]>::ref_from_prefix_with_elems(body, count).map_err(|_| Malformed::LastEntry)?;
        check_tlvs(tlvs)?;
        Ok(Self { fixed, segments, tlvs })
    }

    /// Length of the header, TLVs included, in bytes.
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "a header is never empty")]
    pub fn len(&self) -> usize {
        FIXED_LEN + self.fixed.hdr_ext_len as usize * 8
    }

    /// What follows the header, a number of [`crate::protocol`].
    #[inline]
    pub fn next_header(&self) -> u8 {
        self.fixed.next_header
    }

    /// How many segments are yet to be visited after the current destination.
    #[inline]
    pub fn segments_left(&self) -> u8 {
        self.fixed.segments_left
    }

    /// Index of the last element of the segment list.
    #[inline]
    pub fn last_entry(&self) -> u8 {
        self.fixed.last_entry
    }

    /// Flags, of which RFC 8754 defines none.
    #[inline]
    pub fn flags(&self) -> u8 {
        self.fixed.flags
    }

    /// Tag: which group of packets this one is of.
    #[inline]
    pub fn tag(&self) -> u16 {
        self.fixed.tag.get()
    }

    /// The segment list as it lies in the header: the last to be visited comes first.
    #[inline]
    pub fn segments(&self) -> &'a [[u8; 16]] {
        self.segments
    }

    /// Segment `index` of the list.
    #[inline]
    pub fn segment(&self, index: usize) -> Option<Ipv6Addr> {
        self.segments.get(index).copied().map(Ipv6Addr::from_octets)
    }

    /// The next destination: the segment that Segments Left points at once it is one less. `None` if
    /// it is 0.
    #[inline]
    pub fn next_segment(&self) -> Option<Ipv6Addr> {
        self.segment((self.fixed.segments_left as usize).checked_sub(1)?)
    }

    /// The TLVs, padding among them.
    #[inline]
    pub fn tlvs(&self) -> Tlvs<'a> {
        Tlvs(self.tlvs)
    }

    /// The bytes of the TLVs.
    #[inline]
    pub fn tlv_bytes(&self) -> &'a [u8] {
        self.tlvs
    }

    /// The HMAC that the header ends in, if its flag says that it does: Linux's `seg6_get_tlv_hmac`, which
    /// takes digests of 32 bytes alone.
    #[inline]
    pub fn hmac(&self) -> Option<Hmac<'a>> {
        let (&[kind, len, ref value @ ..], true) =
            (self.tlvs.last_chunk::<HMAC_LEN>()?, self.fixed.flags & FLAG_HMAC != 0)
        else {
            return None;
        };
        Tlv { kind, value }.hmac().filter(|_| usize::from(len) == value.len())
    }
}

/// [`Srh`], to be changed. Its lengths cannot be changed.
#[derive(PartialEq, Eq, Debug)]
pub struct SrhMut<'a> {
    fixed: &'a mut Fixed,
    segments: &'a mut [[u8; 16]],
    tlvs: &'a mut [u8],
}

impl<'a> SrhMut<'a> {
    /// Reads the routing header at the start of `bytes`; `bytes` may go on after it.
    ///
    /// # Errors
    /// See [`Malformed`].
    #[inline]
    pub fn parse(bytes: &'a mut [u8]) -> Result<Self, Malformed> {
        let (fixed, rest) = Fixed::mut_from_prefix(bytes).map_err(|_| Malformed::Truncated)?;
        let (len, count) = fixed.lengths()?;
        let body = rest.get_mut(..len).ok_or(Malformed::Truncated)?;
        let (segments, tlvs) =
            <[[u8; 16]]>::mut_from_prefix_with_elems(body, count).map_err(|_| Malformed::LastEntry)?;
        check_tlvs(tlvs)?;
        Ok(Self { fixed, segments, tlvs })
    }

    /// The header, to be read.
    #[inline]
    pub fn view(&self) -> Srh<'_> {
        Srh { fixed: self.fixed, segments: self.segments, tlvs: self.tlvs }
    }

    /// Takes one from Segments Left and returns the segment that it then points at: the new destination
    /// (RFC 8754 section 4.3.1.1, S13 and S14). `None`, and nothing changed, if it is 0.
    #[inline]
    pub fn advance(&mut self) -> Option<[u8; 16]> {
        let left = self.fixed.segments_left.checked_sub(1)?;
        let segment = *self.segments.get(left as usize)?;
        self.fixed.segments_left = left;
        Some(segment)
    }

    /// Sets what follows the header.
    #[inline]
    pub fn set_next_header(&mut self, next_header: u8) {
        self.fixed.next_header = next_header;
    }

    /// Sets the flags.
    #[inline]
    pub fn set_flags(&mut self, flags: u8) {
        self.fixed.flags = flags;
    }

    /// Sets the tag.
    #[inline]
    pub fn set_tag(&mut self, tag: u16) {
        self.fixed.tag = tag.into();
    }

    /// The digest of [`Srh::hmac`].
    #[inline]
    pub fn digest_mut(&mut self) -> Option<&mut [u8; DIGEST_LEN]> {
        self.view().hmac()?;
        self.tlvs.last_chunk_mut()
    }

    /// The segments, the last to be visited first.
    #[inline]
    pub fn segments_mut(&mut self) -> &mut [[u8; 16]] {
        self.segments
    }
}

/// Which segments of the path the header lists.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum List {
    /// All of them.
    Full,
    /// All but the first, which the destination address holds: RFC 8754 section 4.1.1.
    Reduced,
}

/// Why a header cannot be built.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Unbuildable {
    /// The list would be empty.
    NoSegments,
    /// More segments and TLVs than Hdr Ext Len can count.
    TooLong,
    /// The TLVs are malformed, or not a multiple of 8 bytes long.
    Tlvs,
    /// The bytes to write to are too few.
    NoRoom,
}

/// A header to be written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Builder<'a> {
    /// What follows the header.
    pub next_header: u8,
    /// The segments in the order in which they are visited, the first included even if it is not listed.
    pub path: &'a [Ipv6Addr],
    /// Which of them are listed.
    pub list: List,
    /// Flags.
    pub flags: u8,
    /// Tag.
    pub tag: u16,
    /// TLVs with the padding that makes them a multiple of 8 bytes long.
    pub tlvs: &'a [u8],
}

impl<'a> Builder<'a> {
    /// A header that lists all of `path`, without flags, tag and TLVs.
    pub const fn new(next_header: u8, path: &'a [Ipv6Addr]) -> Self {
        Self { next_header, path, list: List::Full, flags: 0, tag: 0, tlvs: &[] }
    }

    /// The same, without the first segment.
    pub const fn reduced(next_header: u8, path: &'a [Ipv6Addr]) -> Self {
        Self { list: List::Reduced, ..Self::new(next_header, path) }
    }

    fn listed(&self) -> &'a [Ipv6Addr] {
        match self.list {
            List::Full => self.path,
            List::Reduced => self.path.get(1..).unwrap_or(&[]),
        }
    }

    /// Length of the header in bytes.
    ///
    /// # Errors
    /// Those of [`Unbuildable`] but [`Unbuildable::NoRoom`].
    #[expect(clippy::len_without_is_empty, reason = "a header is never empty")]
    pub fn len(&self) -> Result<usize, Unbuildable> {
        let listed = self.listed().len();
        if listed == 0 {
            return Err(Unbuildable::NoSegments);
        }
        if !self.tlvs.len().is_multiple_of(8) || check_tlvs(self.tlvs).is_err() {
            return Err(Unbuildable::Tlvs);
        }
        if listed > MAX_SEGMENTS || listed * SEGMENT_LEN + self.tlvs.len() > 8 * u8::MAX as usize {
            return Err(Unbuildable::TooLong);
        }
        Ok(FIXED_LEN + listed * SEGMENT_LEN + self.tlvs.len())
    }

    /// Writes the header to the start of `bytes` and returns its length. Segments Left points at the
    /// first segment of the path.
    ///
    /// # Errors
    /// See [`Unbuildable`]; nothing is then written.
    pub fn write(&self, bytes: &mut [u8]) -> Result<usize, Unbuildable> {
        let len = self.len()?;
        let bytes = bytes.get_mut(..len).ok_or(Unbuildable::NoRoom)?;
        let listed = self.listed();
        let (fixed, body) = Fixed::mut_from_prefix(bytes).map_err(|_| Unbuildable::NoRoom)?;
        let (segments, tlvs) =
            <[[u8; 16]]>::mut_from_prefix_with_elems(body, listed.len()).map_err(|_| Unbuildable::NoRoom)?;
        *fixed = Fixed {
            next_header: self.next_header,
            hdr_ext_len: ((len - FIXED_LEN) / 8) as u8,
            routing_type: ROUTING_TYPE,
            segments_left: (self.path.len() - 1) as u8,
            last_entry: (listed.len() - 1) as u8,
            flags: self.flags,
            tag: self.tag.into(),
        };
        for (segment, address) in segments.iter_mut().zip(listed.iter().rev()) {
            *segment = address.octets();
        }
        tlvs.copy_from_slice(self.tlvs);
        Ok(len)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{protocol, testing::hex};

    fn addresses(texts: &[&str]) -> Vec<Ipv6Addr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    /// scapy 2.5.0: `IPv6ExtHdrSegmentRouting(addresses=['fc00::3','fc00::2','fc00::1'],segleft=2,
    /// lastentry=2,tag=0x1234,tlv_objects=[IPv6ExtHdrSegmentRoutingTLVIngressNode(
    /// ingress_node='2001:db8::9'),IPv6ExtHdrSegmentRoutingTLVPadN(len=2,padding=b'\0\0')])/UDP()`
    const WITH_TLVS: &str =
        "1109040202001234 fc000000000000000000000000000003 fc000000000000000000000000000002
        fc000000000000000000000000000001 0112000020010db8000000000000000000000009 04020000
        003500350008d5b6";

    #[test]
    fn header_of_scapy() {
        let bytes = hex(WITH_TLVS);
        let srh = Srh::parse(&bytes).unwrap();
        assert_eq!((srh.len(), srh.next_header(), srh.segments_left()), (80, protocol::UDP, 2));
        assert_eq!((srh.last_entry(), srh.flags(), srh.tag()), (2, 0, 0x1234));
        assert_eq!(srh.segments().len(), 3);
        assert_eq!(srh.next_segment(), srh.segment(1));
        assert_eq!(srh.segment(1), Some("fc00::2".parse().unwrap()));
        assert_eq!(srh.segment(3), None);
        let tlvs: Vec<_> = srh.tlvs().map(|tlv| (tlv.kind, tlv.value.len())).collect();
        assert_eq!(tlvs, [(1, 18), (TLV_PADN, 2)]);
    }

    #[test]
    fn builder_agrees_with_scapy() {
        let path = addresses(&["fc00::1", "fc00::2", "fc00::3"]);
        let tlvs = hex("0112000020010db8000000000000000000000009 04020000");
        let builder = Builder { tag: 0x1234, tlvs: &tlvs, ..Builder::new(protocol::UDP, &path) };
        let mut bytes = [0x55; 100];
        assert_eq!(builder.write(&mut bytes), Ok(80));
        assert_eq!(bytes[..80], hex(WITH_TLVS)[..80]);
        assert_eq!(bytes[80..], [0x55; 20]);
        assert_eq!(builder.write(&mut bytes[..79]), Err(Unbuildable::NoRoom));
    }

    #[test]
    fn every_truncation() {
        let bytes = hex(WITH_TLVS);
        for len in 0..80 {
            assert_eq!(Srh::parse(&bytes[..len]), Err(Malformed::Truncated), "{len}");
            assert_eq!(SrhMut::parse(&mut bytes[..len].to_vec()), Err(Malformed::Truncated), "{len}");
        }
    }

    /// The rules of Linux 6.12 `seg6_validate_srh()` with `reduced` set.
    #[test]
    fn every_rule() {
        let parsed = |changes: &[(usize, u8)]| {
            let mut bytes = hex(WITH_TLVS);
            changes.iter().for_each(|(at, value)| bytes[*at] = *value);
            let result = Srh::parse(&bytes).map(|_| ());
            assert_eq!(SrhMut::parse(&mut bytes).map(|_| ()), result);
            result
        };
        assert_eq!(parsed(&[(2, 3)]), Err(Malformed::RoutingType));
        assert_eq!(parsed(&[(1, 11)]), Err(Malformed::Truncated), "Hdr Ext Len past the packet");
        assert_eq!(parsed(&[(4, 4)]), Err(Malformed::LastEntry), "5 segments in 72 bytes");
        assert_eq!(parsed(&[(4, 255)]), Err(Malformed::LastEntry));
        assert_eq!(parsed(&[(1, 0), (4, 0), (3, 0)]), Err(Malformed::LastEntry), "no segment at all");
        assert_eq!(parsed(&[(1, 1), (4, 0), (3, 0)]), Err(Malformed::LastEntry));
        assert_eq!(parsed(&[(3, 3)]), Ok(()), "reduced: Last Entry + 1");
        assert_eq!(parsed(&[(3, 4)]), Err(Malformed::SegmentsLeft));
        assert_eq!(parsed(&[(57, 23)]), Err(Malformed::Tlv), "TLV past the header");
        assert_eq!(parsed(&[(57, 22)]), Ok(()), "TLV to the end of the header");
        assert_eq!(parsed(&[(57, 21), (79, 9)]), Err(Malformed::Tlv), "a type without a length");
        assert_eq!(parsed(&[(57, 21)]), Ok(()), "a Pad1 needs none");
    }

    /// RFC 8754 section 2.1.1.1: Pad1 is one byte. Read as type and length, this would go on past the end.
    #[test]
    fn pad1_has_no_length() {
        let path = addresses(&["fc00::1"]);
        let tlvs = hex("00 00 00 00 00 04 01 00");
        let mut bytes = [0; 32];
        Builder { tlvs: &tlvs, ..Builder::new(0, &path) }.write(&mut bytes).unwrap();
        let kinds: Vec<u8> = Srh::parse(&bytes).unwrap().tlvs().map(|tlv| tlv.kind).collect();
        assert_eq!(kinds, [0, 0, 0, 0, 0, TLV_PADN]);
    }

    #[test]
    fn hmac_tlv() {
        let value = [&hex("8000 00000007")[..], &[0xAB; 32]].concat();
        let tlv = Tlv { kind: TLV_HMAC, value: &value };
        let expected = Hmac { destination_not_verified: true, key_id: 7, digest: &[0xAB; 32] };
        assert_eq!(tlv.hmac(), Some(expected));
        assert_eq!(Tlv { kind: TLV_PADN, ..tlv }.hmac(), None);
        for len in (0..38).filter(|len| ![14, 22, 30].contains(len)) {
            assert_eq!(Tlv { kind: TLV_HMAC, value: &value[..len] }.hmac(), None, "{len}");
        }
    }

    /// scapy 2.5: `IPv6ExtHdrSegmentRouting(addresses=["fc00::1"], segleft=0, lastentry=0, hmac=1,
    /// tlv_objects=[IPv6ExtHdrSegmentRoutingTLVHMAC(hmackeyid=7, hmac=b"\xab" * 32)])`.
    #[test]
    fn the_header_ends_in_an_hmac() {
        let path = addresses(&["fc00::1"]);
        let hmac = [&hex("05 26 0000 00000007")[..], &[0xAB; 32]].concat();
        let pad = hex("04 06 000000000000");
        let digest = |flags, tlvs: &[u8]| {
            let mut bytes = [0; 8 + 16 + 56];
            let len = Builder { flags, tlvs, ..Builder::new(0, &path) }.write(&mut bytes).unwrap();
            let read =
                Srh::parse(&bytes[..len]).unwrap().hmac().map(|hmac| (hmac.key_id, hmac.digest.to_vec()));
            let mut srh = SrhMut::parse(&mut bytes[..len]).unwrap();
            assert_eq!(srh.digest_mut().map(|digest| digest.to_vec()), read.clone().map(|read| read.1));
            read
        };
        assert_eq!(digest(FLAG_HMAC, &hmac), Some((7, vec![0xAB; 32])));
        assert_eq!(digest(FLAG_HMAC, &[&pad[..], &hmac].concat()), Some((7, vec![0xAB; 32])));
        assert_eq!(digest(0, &hmac), None, "the flag says none");
        assert_eq!(digest(FLAG_HMAC, &[&hmac[..], &pad].concat()), None, "it is not the last");
        assert_eq!(digest(FLAG_HMAC, &[]), None);
        let other = [&hex("06 26 0000 00000007")[..], &[0xAB; 32]].concat();
        assert_eq!(digest(FLAG_HMAC, &other), None, "another type");
        let short = [&hex("04 06 000000000000 05 1e 0000 00000007")[..], &[0xAB; 24]].concat();
        assert_eq!(digest(FLAG_HMAC, &short), None, "a digest of 24 bytes");
    }

    #[test]
    fn what_cannot_be_built() {
        let path = vec![Ipv6Addr::LOCALHOST; 129];
        assert_eq!(Builder::new(0, &[]).len(), Err(Unbuildable::NoSegments));
        assert_eq!(Builder::reduced(0, &path[..1]).len(), Err(Unbuildable::NoSegments));
        assert_eq!(Builder::new(0, &path[..127]).len(), Ok(2040));
        assert_eq!(Builder::new(0, &path[..128]).len(), Err(Unbuildable::TooLong));
        assert_eq!(Builder::reduced(0, &path[..128]).len(), Ok(2040));
        assert_eq!(Builder::reduced(0, &path).len(), Err(Unbuildable::TooLong));
        let with = |tlvs| Builder { tlvs, ..Builder::new(0, &path[..127]) }.len();
        assert_eq!(with(&[0; 8]), Ok(2048));
        assert_eq!(with(&[0; 16]), Err(Unbuildable::TooLong));
        assert_eq!(with(&[0; 7]), Err(Unbuildable::Tlvs));
        assert_eq!(with(&[4, 7, 0, 0, 0, 0, 0, 0]), Err(Unbuildable::Tlvs));
    }

    proptest! {
        /// A packet visits the path in its order, and the header keeps all that it was built with.
        #[test]
        fn reads_what_it_wrote(
            path in proptest::collection::vec(any::<Ipv6Addr>(), 1..=127), reduced: bool, next_header: u8,
            flags: u8, tag: u16, payload: Vec<u8>,
        ) {
            let list = if reduced && path.len() > 1 { List::Reduced } else { List::Full };
            let builder = Builder { list, flags, tag, ..Builder::new(next_header, &path) };
            let len = builder.len().unwrap();
            let mut bytes = vec![0x55; len];
            prop_assert_eq!(builder.write(&mut bytes), Ok(len));
            bytes.extend(&payload);

            let listed = path.len() - usize::from(list == List::Reduced);
            let srh = Srh::parse(&bytes).unwrap();
            prop_assert_eq!((srh.len(), srh.segments().len()), (8 + 16 * listed, listed));
            prop_assert_eq!((srh.next_header(), srh.flags(), srh.tag()), (next_header, flags, tag));
            prop_assert_eq!(srh.tlv_bytes(), &[][..]);

            let mut srh = SrhMut::parse(&mut bytes).unwrap();
            for address in &path[1..] {
                prop_assert_eq!(srh.view().next_segment(), Some(*address));
                prop_assert_eq!(srh.advance(), Some(address.octets()));
            }
            prop_assert_eq!((srh.view().segments_left(), srh.advance()), (0, None));
            srh.set_next_header(!next_header);
            srh.set_flags(!flags);
            srh.set_tag(!tag);
            let last = srh.segments_mut().first_mut().unwrap();
            prop_assert_eq!(*last, path[path.len() - 1].octets());
            *last = [0; 16];
            let srh = srh.view();
            prop_assert_eq!((srh.next_header(), srh.flags(), srh.tag()), (!next_header, !flags, !tag));
            prop_assert_eq!(srh.segment(0), Some(Ipv6Addr::UNSPECIFIED));
            prop_assert_eq!(&bytes[len..], &payload);
        }
    }
}
