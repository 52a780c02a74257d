//! IPv6 extension headers, RFC 8200 section 4: the chain of them, routing and fragment headers. Options have
//! their own file, [`crate::ipv6_options`].
//!
//! ```text
//! options   |  Next Header  |  Hdr Ext Len  | Options: Type, Length, Data; to Hdr Ext Len × 8 + 8 |
//! routing   |  Next Header  |  Hdr Ext Len  |  Routing Type | Segments Left | type-specific data  |
//! fragment  |  Next Header  |   Reserved    |      Fragment Offset    |Res|M|   Identification    |
//! ```

use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    network_endian::{U16, U32},
};

use crate::{ipv6, ipv6_options::Options, protocol};

/// Most extension headers of a packet. RFC 8504 section 5.3 lets a node set such a limit; without it
/// one packet would cost thousands of steps.
pub const MAX_HEADERS: usize = 32;

/// Which rule the bytes break.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Malformed {
    /// An extension header goes on after the end of the packet.
    Truncated,
    /// More than [`MAX_HEADERS`] of them.
    TooMany,
}

/// A protocol number that is an extension header with a next header field of its own.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// Hop-by-hop options.
    HopByHop,
    /// Destination options.
    DestinationOptions,
    /// A routing header of any type.
    Routing,
    /// A fragment header.
    Fragment,
    /// An authentication header, RFC 4302.
    Authentication,
}

impl Kind {
    /// The extension header of this number; `None` for upper layers, ESP and no next header.
    #[inline]
    pub const fn of(next_header: u8) -> Option<Self> {
        match next_header {
            protocol::HOP_BY_HOP => Some(Self::HopByHop),
            protocol::DESTINATION_OPTIONS => Some(Self::DestinationOptions),
            protocol::ROUTING => Some(Self::Routing),
            protocol::FRAGMENT => Some(Self::Fragment),
            protocol::AUTHENTICATION => Some(Self::Authentication),
            _ => None,
        }
    }

    /// Length in bytes of a header whose second byte is `second`.
    #[inline]
    const fn len(self, second: u8) -> usize {
        match self {
            Self::Fragment => Fragment::LEN,
            Self::Authentication => (second as usize + 2) * 4,
            _ => (second as usize + 1) * 8,
        }
    }
}

/// One extension header, which lies whole in the packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extension<'a> {
    /// Which one.
    pub kind: Kind,
    /// Where it starts, in bytes from the start of the IPv6 header.
    pub offset: usize,
    /// Where the next header field lies that names it, in bytes from the start of the IPv6 header.
    pub named_at: usize,
    /// What follows it.
    pub next_header: u8,
    /// Its bytes, to its own length.
    pub bytes: &'a [u8],
}

impl<'a> Extension<'a> {
    /// The fixed part of a routing header; `None` if it is another header.
    #[inline]
    pub fn routing(&self) -> Option<&'a Routing> {
        if self.kind != Kind::Routing {
            return None;
        }
        Routing::ref_from_prefix(self.bytes).ok().map(|(routing, _)| routing)
    }

    /// The fragment header; `None` if it is another header.
    #[inline]
    pub fn fragment(&self) -> Option<&'a Fragment> {
        if self.kind != Kind::Fragment {
            return None;
        }
        Fragment::ref_from_prefix(self.bytes).ok().map(|(fragment, _)| fragment)
    }

    /// The options of a hop-by-hop or destination options header; none, if it is another header.
    #[inline]
    pub fn options(&self) -> Options<'a> {
        match self.kind {
            Kind::HopByHop | Kind::DestinationOptions => Options::new(self.bytes),
            _ => Options::new(&[]),
        }
    }
}

/// What the extension headers end in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Upper {
    /// Its number: an upper layer, ESP or no next header. Of a fragment that is not the first, the
    /// number that its fragment header gives, which may be that of an extension header.
    pub protocol: u8,
    /// Where it starts, in bytes from the start of the IPv6 header; at most the length of the packet.
    pub offset: usize,
    /// Where the next header field lies that names it, in bytes from the start of the IPv6 header.
    pub named_at: usize,
    /// Where the payload belongs in the packet that it is a fragment of, in bytes. Unless it is 0, no
    /// header of that protocol stands at `offset`.
    pub fragment_offset: usize,
}

/// Walks over the extension headers of a packet, in order. Like Linux's `ipv6_find_hdr()`, it takes them
/// in any order and number (to [`MAX_HEADERS`]) and stops behind a fragment header that is not of the
/// first fragment. An error ends the walk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extensions<'a> {
    /// What is left of the payload.
    rest: &'a [u8],
    upper: Upper,
    count: usize,
    ended: bool,
}

impl<'a> Extensions<'a> {
    /// The extension headers of `packet`.
    #[inline]
    pub const fn new(packet: &ipv6::View<'a>) -> Self {
        Self {
            rest: packet.payload,
            upper: Upper {
                protocol: packet.header.next_header,
                offset: ipv6::Header::LEN,
                named_at: ipv6::Header::NEXT_HEADER_OFFSET,
                fragment_offset: 0,
            },
            count: 0,
            ended: false,
        }
    }

    /// What the walk comes to next: a header, also one that is not whole, or what the chain ends in.
    #[inline]
    pub const fn ahead(&self) -> Upper {
        self.upper
    }

    /// Walks to the end: what the chain ends in.
    ///
    /// # Errors
    /// [`Malformed::Truncated`], [`Malformed::TooMany`].
    #[inline]
    pub fn upper(mut self) -> Result<Upper, Malformed> {
        for extension in self.by_ref() {
            extension?;
        }
        Ok(self.upper)
    }

    /// Walks to the next header of this kind.
    ///
    /// # Errors
    /// [`Malformed::Truncated`], [`Malformed::TooMany`], if that comes first.
    #[inline]
    pub fn find_kind(&mut self, kind: Kind) -> Result<Option<Extension<'a>>, Malformed> {
        for extension in self {
            let extension = extension?;
            if extension.kind == kind {
                return Ok(Some(extension));
            }
        }
        Ok(None)
    }

    fn take(&mut self, kind: Kind) -> Result<Extension<'a>, Malformed> {
        if self.count == MAX_HEADERS {
            return Err(Malformed::TooMany);
        }
        let [next_header, second, ..] = *self.rest else { return Err(Malformed::Truncated) };
        let (bytes, rest) = self.rest.split_at_checked(kind.len(second)).ok_or(Malformed::Truncated)?;
        let Upper { offset, named_at, .. } = self.upper;
        let extension = Extension { kind, offset, named_at, next_header, bytes };
        self.count += 1;
        self.rest = rest;
        self.upper = Upper {
            protocol: next_header,
            offset: offset + bytes.len(),
            named_at: offset,
            fragment_offset: extension.fragment().map_or(0, Fragment::offset),
        };
        Ok(extension)
    }
}

impl<'a> Iterator for Extensions<'a> {
    type Item = Result<Extension<'a>, Malformed>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let kind = Kind::of(self.upper.protocol)?;
        if self.ended || self.upper.fragment_offset != 0 {
            return None;
        }
        let taken = self.take(kind);
        self.ended = taken.is_err();
        Some(taken)
    }
}

/// What every routing header starts with, RFC 8200 section 4.4.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Routing {
    /// What follows the header.
    pub next_header: u8,
    /// Length of the header without its first 8 bytes, in units of 8 bytes.
    pub hdr_ext_len: u8,
    /// Which routing header it is: [`crate::srh::ROUTING_TYPE`] …
    pub routing_type: u8,
    /// How many nodes are yet to be visited. 0: the header is to be ignored.
    pub segments_left: u8,
}

/// A fragment header, RFC 8200 section 4.5.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Fragment {
    /// What the fragmentable part starts with.
    pub next_header: u8,
    reserved: u8,
    offset_flags: U16,
    /// Names the packet that the fragment is of.
    pub identification: U32,
}

impl Fragment {
    /// Length in bytes.
    pub const LEN: usize = size_of::<Self>();

    /// A fragment header. `offset` is in bytes; what it is above a multiple of 8, and above 65,528, is
    /// ignored.
    #[inline]
    pub const fn new(next_header: u8, offset: u16, more_fragments: bool, identification: u32) -> Self {
        Self {
            next_header,
            reserved: 0,
            offset_flags: U16::new(offset & !7 | more_fragments as u16),
            identification: U32::new(identification),
        }
    }

    /// Where the payload belongs in the packet that it is a fragment of, in bytes.
    #[inline]
    pub const fn offset(&self) -> usize {
        (self.offset_flags.get() & !7) as usize
    }

    /// Whether more fragments follow.
    #[inline]
    pub const fn more_fragments(&self) -> bool {
        self.offset_flags.get() & 1 != 0
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use proptest::prelude::*;

    use super::*;
    use crate::{
        ipv6_options::{OPTION_PADN, Opt, Unrecognised},
        testing::hex,
    };

    /// scapy 2.5.0: `IPv6(src='2001:db8::1',dst='2001:db8::2')/IPv6ExtHdrHopByHop(
    /// options=RouterAlert(value=2))/IPv6ExtHdrDestOpt(options=[HBHOptUnknown(otype=0xde,
    /// optdata=b'1234567')])/IPv6ExtHdrRouting(addresses=['2001:db8::3'])/IPv6ExtHdrFragment(offset=0,
    /// m=1,id=0xdeadbeef)/TCP(sport=1,dport=2)`
    const FOUR_HEADERS: &str =
        "60000000004c004020010db800000000000000000000000120010db8000000000000000000000002
        3c00050200020100 2b01de073132333435363701030000 00
        2c020001 00000000 20010db8000000000000000000000003 06000001deadbeef
        00010002000000000000000050022000346a0000";

    /// scapy 2.5.0: `IPv6(src='2001:db8::1',dst='2001:db8::2')/IPv6ExtHdrFragment(nh=17,offset=181,m=0,
    /// id=0xdeadbeef)/b'rest of it'`
    const LAST_FRAGMENT: &str =
        "6000000000122c4020010db800000000000000000000000120010db8000000000000000000000002
        110005a8deadbeef 72657374206f66206974";

    fn extensions(bytes: &[u8]) -> Extensions<'_> {
        Extensions::new(&ipv6::View::parse(bytes).unwrap())
    }

    #[test]
    fn chain_of_scapy() {
        let bytes = hex(FOUR_HEADERS);
        let chain: Vec<_> = extensions(&bytes).map(Result::unwrap).collect();
        let places: Vec<_> = chain.iter().map(|e| (e.kind, e.named_at, e.offset, e.bytes.len())).collect();
        assert_eq!(
            places,
            [
                (Kind::HopByHop, 6, 40, 8),
                (Kind::DestinationOptions, 40, 48, 16),
                (Kind::Routing, 48, 64, 24),
                (Kind::Fragment, 64, 88, 8),
            ]
        );
        let upper = Upper { protocol: protocol::TCP, offset: 96, named_at: 88, fragment_offset: 0 };
        assert_eq!(extensions(&bytes).upper(), Ok(upper));

        let routing = chain[2].routing().unwrap();
        assert_eq!((routing.routing_type, routing.segments_left, routing.hdr_ext_len), (0, 1, 2));
        let fragment = chain[3].fragment().unwrap();
        assert_eq!(*fragment, Fragment::new(protocol::TCP, 0, true, 0xdead_beef));
        assert_eq!((chain[0].routing(), chain[0].fragment()), (None, None));

        let options: Vec<_> = chain[1].options().map(Result::unwrap).collect();
        assert_eq!(options[0], Opt { kind: 0xde, offset: 2, data: b"1234567" });
        assert_eq!(options[1], Opt { kind: OPTION_PADN, offset: 11, data: &[0; 3] });
        assert_eq!(
            (options[0].unrecognised(), options[0].may_change()),
            (Unrecognised::ReportUnicast, false)
        );
        assert_eq!(chain[2].options().next(), None);
    }

    #[test]
    fn headers_are_found() {
        let bytes = hex(FOUR_HEADERS);
        let mut walk = extensions(&bytes);
        assert_eq!(walk.find_kind(Kind::Routing).map(|e| e.map(|e| e.offset)), Ok(Some(64)));
        assert_eq!(walk.find_kind(Kind::Routing), Ok(None), "the walk goes on behind the first");
    }

    /// RFC 8200 section 4.5: only the first fragment holds the upper-layer header.
    #[test]
    fn later_fragment_ends_the_walk() {
        let bytes = hex(LAST_FRAGMENT);
        let upper = Upper { protocol: protocol::UDP, offset: 48, named_at: 40, fragment_offset: 181 * 8 };
        assert_eq!(extensions(&bytes).upper(), Ok(upper));
        let mut walk = extensions(&bytes);
        let fragment = walk.next().unwrap().unwrap();
        assert_eq!(fragment.fragment().map(|f| (f.offset(), f.more_fragments())), Some((1448, false)));

        let mut bytes = bytes;
        bytes[40] = protocol::DESTINATION_OPTIONS;
        assert_eq!(
            extensions(&bytes).upper(),
            Ok(Upper { protocol: protocol::DESTINATION_OPTIONS, ..upper })
        );
    }

    #[test]
    fn every_truncation() {
        let bytes = hex(FOUR_HEADERS);
        for len in 40..=bytes.len() {
            let header = ipv6::Header::ref_from_prefix(&bytes).unwrap().0;
            let walk = Extensions::new(&ipv6::View { header, payload: &bytes[40..len] });
            let expected = if len < 96 { Err(Malformed::Truncated) } else { Ok(96) };
            assert_eq!(walk.upper().map(|u| u.offset), expected, "{len}");
            assert!(walk.filter(Result::is_err).count() <= 1, "{len}: an error ends the walk");
        }
    }

    /// A packet of nothing but destination options.
    #[test]
    fn walk_is_bounded() {
        let one = [protocol::DESTINATION_OPTIONS, 0, 1, 4, 0, 0, 0, 0];
        let header = |count: usize| {
            let (from, to) = (Ipv6Addr::LOCALHOST, Ipv6Addr::LOCALHOST);
            ipv6::Header::new(from, to, protocol::DESTINATION_OPTIONS, 64, count as u16 * 8)
        };
        let mut bytes = [header(8000).as_bytes(), &one.repeat(8000)].concat();
        assert_eq!(extensions(&bytes).upper(), Err(Malformed::TooMany));
        assert_eq!(extensions(&bytes).count(), MAX_HEADERS + 1);

        bytes[40 + 8 * (MAX_HEADERS - 1)] = protocol::NO_NEXT_HEADER;
        assert_eq!(extensions(&bytes).upper().map(|u| u.offset), Ok(40 + 8 * MAX_HEADERS));
    }

    /// RFC 4302 section 2.2: the length of an authentication header is in words of 4 bytes, minus 2.
    #[test]
    fn authentication_header_counts_in_words() {
        let mut payload = vec![0; 24];
        payload[..2].copy_from_slice(&[protocol::TCP, 4]);
        let (from, to) = (Ipv6Addr::LOCALHOST, Ipv6Addr::LOCALHOST);
        let header = ipv6::Header::new(from, to, protocol::AUTHENTICATION, 64, 24);
        let bytes = [header.as_bytes(), &payload].concat();
        let upper = extensions(&bytes).upper().unwrap();
        assert_eq!((upper.protocol, upper.offset), (protocol::TCP, 64));
    }

    proptest! {
        #[test]
        fn fragment_is_read_as_written(next_header: u8, units in 0..0x2000_u16, more: bool, id: u32) {
            let header = Fragment::new(next_header, units * 8, more, id);
            let read = *Fragment::ref_from_bytes(header.as_bytes()).unwrap();
            prop_assert_eq!((read.next_header, read.offset(), read.more_fragments()), (next_header, usize::from(units) * 8, more));
            prop_assert_eq!(read.identification.get(), id);
        }
    }
}
