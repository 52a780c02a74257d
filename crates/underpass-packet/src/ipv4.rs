//! IPv4, RFC 791.
//!
//! ```text
//! |Version|  IHL  |      DSCP / ECN       |         Total Length          |
//! |        Identification         |Flags|      Fragment Offset            |
//! |  Time to Live |    Protocol   |        Header Checksum                |
//! |                       Source Address                                  |
//! |                    Destination Address                                |
//! |                    Options, to IHL × 4                                |
//! ```

use std::net::Ipv4Addr;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, network_endian::U16};

use crate::checksum::{self, Sum};

/// Most bytes of options.
pub const MAX_OPTIONS: usize = 40;

/// Which rule of RFC 791 section 3.1 the bytes break.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Malformed {
    /// Shorter than the header.
    Truncated,
    /// The version is not 4.
    Version,
    /// The header length is below 20 bytes.
    HeaderLength,
    /// The total length is below the header length.
    TotalLength,
    /// Shorter than the total length.
    PayloadTruncated,
}

/// The header without its options.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Header {
    version_ihl: u8,
    /// Differentiated services field (RFC 2474): DSCP in the upper six bits, ECN in the lower two.
    pub tos: u8,
    /// Length of header and payload, in bytes.
    pub total_length: U16,
    /// Names the packet that a fragment is of.
    pub identification: U16,
    /// Flags in the upper three bits, fragment offset in the others.
    pub flags_offset: U16,
    /// Time to live, in hops.
    pub ttl: u8,
    /// Protocol of the payload, a number of [`crate::protocol`].
    pub protocol: u8,
    /// Checksum of the header.
    pub checksum: U16,
    /// Source address.
    pub source: [u8; 4],
    /// Destination address.
    pub destination: [u8; 4],
}

/// `flags_offset`: do not fragment.
pub const DONT_FRAGMENT: u16 = 0x4000;
/// `flags_offset`: more fragments follow.
pub const MORE_FRAGMENTS: u16 = 0x2000;
/// `flags_offset`: the offset, in units of 8 bytes.
pub const FRAGMENT_OFFSET: u16 = 0x1FFF;

impl Header {
    /// Length in bytes, without options.
    pub const LEN: usize = size_of::<Self>();

    /// A header without options, with don't fragment set and a checksum yet to be filled.
    #[inline]
    pub const fn new(
        source: Ipv4Addr,
        destination: Ipv4Addr,
        protocol: u8,
        ttl: u8,
        total_length: u16,
    ) -> Self {
        Self {
            version_ihl: 0x45,
            tos: 0,
            total_length: U16::new(total_length),
            identification: U16::ZERO,
            flags_offset: U16::new(DONT_FRAGMENT),
            ttl,
            protocol,
            checksum: U16::ZERO,
            source: source.octets(),
            destination: destination.octets(),
        }
    }

    /// IP version.
    #[inline]
    pub const fn version(&self) -> u8 {
        self.version_ihl >> 4
    }

    /// Sets the length of the header with its options, in bytes: a multiple of 4, at most 60.
    #[inline]
    pub const fn set_header_len(&mut self, len: usize) {
        self.version_ihl = self.version_ihl & 0xf0 | (len / 4) as u8 & 0x0f;
    }

    /// Length of the header with its options, in bytes: 0 to 60.
    #[inline]
    pub const fn header_len(&self) -> usize {
        (self.version_ihl & 0x0F) as usize * 4
    }

    /// Makes the header say that it has `len` bytes of options, rounded down to a multiple of 4 and at
    /// most 40.
    #[inline]
    pub const fn set_options_len(&mut self, len: usize) {
        let words = if len > MAX_OPTIONS { MAX_OPTIONS / 4 } else { len / 4 };
        self.version_ihl = 0x45 + words as u8;
    }

    /// Source address.
    #[inline]
    pub const fn source(&self) -> Ipv4Addr {
        Ipv4Addr::from_octets(self.source)
    }

    /// Destination address.
    #[inline]
    pub const fn destination(&self) -> Ipv4Addr {
        Ipv4Addr::from_octets(self.destination)
    }

    /// The don't-fragment flag.
    #[inline]
    pub const fn dont_fragment(&self) -> bool {
        self.flags_offset.get() & DONT_FRAGMENT != 0
    }

    /// The more-fragments flag.
    #[inline]
    pub const fn more_fragments(&self) -> bool {
        self.flags_offset.get() & MORE_FRAGMENTS != 0
    }

    /// Where the payload belongs in the packet that it is a fragment of, in bytes.
    #[inline]
    pub const fn fragment_offset(&self) -> usize {
        (self.flags_offset.get() & FRAGMENT_OFFSET) as usize * 8
    }

    /// Whether the packet is a fragment: the first, one within or the last.
    #[inline]
    pub const fn is_fragment(&self) -> bool {
        self.flags_offset.get() & (MORE_FRAGMENTS | FRAGMENT_OFFSET) != 0
    }

    /// Whether the checksum is right. `options` are those of this header.
    #[inline]
    pub fn checksum_valid(&self, options: &[u8]) -> bool {
        Sum::new().add_bytes(self.as_bytes()).add_bytes(options).fold() == 0xFFFF
    }

    /// Makes the checksum right. `options` are those of this header.
    #[inline]
    pub fn fill_checksum(&mut self, options: &[u8]) {
        self.checksum = U16::ZERO;
        self.checksum.set(Sum::new().add_bytes(self.as_bytes()).add_bytes(options).checksum());
    }

    /// Takes one from the time to live, and from the checksum what that makes (RFC 1624). 0 stays 0.
    #[inline(always)]
    pub fn decrement_ttl(&mut self) {
        // TTL, protocol and checksum, which is one word to the processor.
        let Some(word) = self.as_mut_bytes().get_mut(8..).and_then(<[u8]>::first_chunk_mut::<4>) else {
            return;
        };
        if word[0] > 0 {
            // The word of TTL and protocol falls by 0x0100, so the complement of the sum rises by it: by 1, as a sum may
            // be computed with its halves swapped.
            let before = u32::from_le_bytes(*word);
            let carry = u32::from(before >= 0xFFFE_0000) << 16;
            *word = before.wrapping_add(0x0001_0000 - 1).wrapping_add(carry).to_le_bytes();
        }
    }

    /// Sets the time to live and brings the checksum up to date.
    #[inline(always)]
    pub fn update_ttl(&mut self, ttl: u8) {
        self.checksum.set(checksum::update_first(self.checksum.get(), self.ttl, ttl));
        self.ttl = ttl;
    }

    /// Sets the differentiated services field and brings the checksum up to date.
    #[inline]
    pub fn update_tos(&mut self, tos: u8) {
        let first = u16::from(self.version_ihl) << 8;
        let (old, new) = (first | u16::from(self.tos), first | u16::from(tos));
        self.tos = tos;
        self.checksum.set(checksum::update(self.checksum.get(), old, new));
    }

    /// What `parse` and `parse_mut` check: the lengths of header and packet.
    #[inline]
    fn lengths(&self, available: usize) -> Result<(usize, usize), Malformed> {
        // Version 4 and no options is by far the most frequent: one comparison.
        let header = if self.version_ihl == 0x45 {
            Self::LEN
        } else if self.version() != 4 {
            return Err(Malformed::Version);
        } else {
            self.header_len()
        };
        let total = self.total_length.get() as usize;
        if header < Self::LEN {
            return Err(Malformed::HeaderLength);
        }
        if header > available {
            return Err(Malformed::Truncated);
        }
        if total < header {
            return Err(Malformed::TotalLength);
        }
        if total > available {
            return Err(Malformed::PayloadTruncated);
        }
        Ok((header, total))
    }
}

/// A packet whose lengths agree with each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct View<'a> {
    /// The fixed part.
    pub header: &'a Header,
    /// The options, as they are.
    pub options: &'a [u8],
    /// The payload, to the total length: link-layer padding is not part of it.
    pub payload: &'a [u8],
}

impl<'a> View<'a> {
    /// Reads the packet at the start of `bytes`. The checksum is not looked at:
    /// [`View::checksum_valid`].
    ///
    /// # Errors
    /// See [`Malformed`].
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (header, rest) = Header::ref_from_prefix(bytes).map_err(|_| Malformed::Truncated)?;
        let (header_len, total) = header.lengths(bytes.len())?;
        let (options, payload) = rest
            .get(..total - Header::LEN)
            .and_then(|rest| rest.split_at_checked(header_len - Header::LEN))
            .ok_or(Malformed::Truncated)?;
        Ok(Self { header, options, payload })
    }

    /// Whether the header checksum is right.
    #[inline]
    pub fn checksum_valid(&self) -> bool {
        self.header.checksum_valid(self.options)
    }
}

/// [`View`], to be changed.
#[derive(PartialEq, Eq, Debug)]
pub struct ViewMut<'a> {
    /// The fixed part.
    pub header: &'a mut Header,
    /// The options, as they are.
    pub options: &'a mut [u8],
    /// The payload, to the total length.
    pub payload: &'a mut [u8],
}

impl<'a> ViewMut<'a> {
    /// Reads the packet at the start of `bytes`.
    ///
    /// # Errors
    /// See [`Malformed`].
    #[inline]
    pub fn parse(bytes: &'a mut [u8]) -> Result<Self, Malformed> {
        let available = bytes.len();
        let (header, rest) = Header::mut_from_prefix(bytes).map_err(|_| Malformed::Truncated)?;
        let (header_len, total) = header.lengths(available)?;
        let (options, payload) = rest
            .get_mut(..total - Header::LEN)
            .and_then(|rest| rest.split_at_mut_checked(header_len - Header::LEN))
            .ok_or(Malformed::Truncated)?;
        Ok(Self { header, options, payload })
    }

    /// Makes the header checksum right.
    #[inline]
    pub fn fill_checksum(&mut self) {
        self.header.fill_checksum(self.options);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{protocol, testing::hex};

    /// scapy 2.5.0: `IP(src='192.0.2.1',dst='198.51.100.2',ttl=17,tos=0xb8,id=0x1234,flags='MF',frag=185,
    /// options=IPOption_Router_Alert())/b'payload!'`
    const FRAGMENT: &str = "46b80020123420b91100f4fdc0000201c633640294040000 7061796c6f616421";

    #[test]
    fn fragment_with_option_of_scapy() {
        let bytes = hex(FRAGMENT);
        let padded = [&bytes[..], &[0; 14]].concat();
        let View { header, options, payload } = View::parse(&padded).unwrap();
        assert_eq!((header.version(), header.header_len(), header.total_length.get()), (4, 24, 32));
        assert_eq!((header.tos, header.ttl, header.protocol), (0xb8, 17, protocol::HOP_BY_HOP));
        assert_eq!((header.identification.get(), header.fragment_offset()), (0x1234, 185 * 8));
        assert!(header.more_fragments() && header.is_fragment() && !header.dont_fragment());
        assert_eq!(header.source(), Ipv4Addr::new(192, 0, 2, 1));
        assert_eq!(header.destination(), Ipv4Addr::new(198, 51, 100, 2));
        assert_eq!((options, payload), (&[0x94, 4, 0, 0][..], &b"payload!"[..]));
        assert!(header.checksum_valid(options));
    }

    #[test]
    fn checksum_is_that_of_scapy() {
        let mut bytes = hex(FRAGMENT);
        bytes[10..12].fill(0x55);
        assert!(!View::parse(&bytes).unwrap().checksum_valid());
        ViewMut::parse(&mut bytes).unwrap().fill_checksum();
        assert_eq!(bytes, hex(FRAGMENT));
    }

    #[test]
    fn every_truncation() {
        let bytes = hex(FRAGMENT);
        for len in 0..bytes.len() {
            let fault = if len < 24 { Malformed::Truncated } else { Malformed::PayloadTruncated };
            assert_eq!(View::parse(&bytes[..len]), Err(fault), "{len}");
        }
    }

    #[test]
    fn every_rule() {
        let broken = |at: usize, value: u8| {
            let mut bytes = hex(FRAGMENT);
            bytes[at] = value;
            let fault = View::parse(&bytes).map(|_| ()).unwrap_err();
            assert_eq!(ViewMut::parse(&mut bytes).map(|_| ()), Err(fault));
            fault
        };
        assert_eq!(broken(0, 0x66), Malformed::Version);
        assert_eq!(broken(0, 0x05), Malformed::Version);
        assert_eq!(broken(0, 0x44), Malformed::HeaderLength);
        assert_eq!(broken(0, 0x4F), Malformed::Truncated);
        assert_eq!(broken(3, 23), Malformed::TotalLength);
        assert_eq!(broken(3, 33), Malformed::PayloadTruncated);
    }

    #[test]
    fn ttl_of_0_stays() {
        let mut header = Header::new(Ipv4Addr::LOCALHOST, Ipv4Addr::LOCALHOST, 17, 0, 20);
        header.fill_checksum(&[]);
        let before = header;
        header.decrement_ttl();
        assert_eq!(header, before);
    }

    prop_compose! {
        fn any_header()(
            source: Ipv4Addr, destination: Ipv4Addr, protocol: u8, ttl: u8, tos: u8, identification: u16, flags: u16,
            options in (0..=10_usize).prop_flat_map(|words| proptest::collection::vec(any::<u8>(), words * 4)),
            payload in proptest::collection::vec(any::<u8>(), 0..100),
        ) -> (Header, Vec<u8>, Vec<u8>) {
            let total = Header::LEN + options.len() + payload.len();
            let mut header = Header::new(source, destination, protocol, ttl, total as u16);
            header.set_options_len(options.len());
            header.tos = tos;
            header.identification.set(identification);
            header.flags_offset.set(flags);
            header.fill_checksum(&options);
            (header, options, payload)
        }
    }

    proptest! {
        #[test]
        fn reads_what_it_wrote((header, options, payload) in any_header(), padding in 0..20_usize) {
            let mut bytes = [header.as_bytes(), &options, &payload, &vec![0xEE; padding]].concat();
            let view = View::parse(&bytes).unwrap();
            prop_assert_eq!(view, View { header: &header, options: &options, payload: &payload });
            prop_assert!(view.checksum_valid());
            let view = ViewMut::parse(&mut bytes).unwrap();
            prop_assert_eq!((&*view.header, &*view.options, &*view.payload), (&header, &options[..], &payload[..]));
        }

        /// What the updates leave in the checksum is what computing it anew gives.
        #[test]
        fn updates_keep_the_checksum((mut header, options, _) in any_header(), tos: u8) {
            let ttl = header.ttl;
            header.decrement_ttl();
            header.update_tos(tos);
            prop_assert_eq!((header.ttl, header.tos), (ttl.saturating_sub(1), tos));
            let mut anew = header;
            anew.fill_checksum(&options);
            prop_assert_eq!(header, anew);
        }
    }
}
