//! Neighbour discovery, RFC 4861: solicitations and advertisements of neighbours, with their options.
//!
//! ```text
//! |  Type 135/136 |    Code 0     |           Checksum            |
//! |R|S|O|                     Reserved                            |
//! |                      Target Address (16)                      |
//! |  Options: Type, Length in units of 8 bytes, value             |
//! ```

use std::net::Ipv6Addr;

use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    network_endian::{U16, U32},
};

use crate::{checksum::Sum, protocol};

/// ICMPv6 type of a neighbour solicitation.
pub const SOLICITATION: u8 = 135;
/// ICMPv6 type of a neighbour advertisement.
pub const ADVERTISEMENT: u8 = 136;

/// The hop limit of every neighbour discovery packet; one that came with another is to be dropped.
pub const HOP_LIMIT: u8 = 255;

/// Flag of an advertisement: the sender is a router.
pub const ROUTER: u32 = 0x8000_0000;
/// Flag of an advertisement: it answers a solicitation.
pub const SOLICITED: u32 = 0x4000_0000;
/// Flag of an advertisement: its link-layer address replaces what is known.
pub const OVERRIDE: u32 = 0x2000_0000;

/// Option: the link-layer address of the sender, in solicitations.
pub const SOURCE_LINK_LAYER: u8 = 1;
/// Option: the link-layer address of the target, in advertisements.
pub const TARGET_LINK_LAYER: u8 = 2;

/// Which check of RFC 4861 sections 7.1.1 and 7.1.2 the bytes fail. Hop limit, checksum and addresses of
/// the IPv6 header are the caller's to check.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Malformed {
    /// Shorter than the message.
    Truncated,
    /// Neither a neighbour solicitation nor an advertisement.
    Kind,
    /// The code is not 0.
    Code,
    /// The target is a multicast address.
    Target,
    /// An option of length 0, or one that goes on after the end of the message.
    Option,
}

/// A neighbour solicitation or advertisement without its options.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Message {
    kind: u8,
    code: u8,
    /// Checksum of pseudo header, message and options.
    pub checksum: U16,
    /// [`ROUTER`], [`SOLICITED`], [`OVERRIDE`]; 0 in a solicitation.
    pub flags: U32,
    target: [u8; 16],
}

impl Message {
    /// Length in bytes, without options.
    pub const LEN: usize = size_of::<Self>();

    /// Asks who has `target`.
    pub const fn solicitation(target: Ipv6Addr) -> Self {
        Self::new(SOLICITATION, target, 0)
    }

    /// Says that the sender has `target`.
    pub const fn advertisement(target: Ipv6Addr, flags: u32) -> Self {
        Self::new(ADVERTISEMENT, target, flags)
    }

    const fn new(kind: u8, target: Ipv6Addr, flags: u32) -> Self {
        Self { kind, code: 0, checksum: U16::ZERO, flags: U32::new(flags), target: target.octets() }
    }

    /// Reads the message at the start of `bytes`, whatever its target is, and what follows it.
    ///
    /// # Errors
    /// [`Malformed::Truncated`], [`Malformed::Kind`], [`Malformed::Code`].
    pub fn parse_prefix(bytes: &[u8]) -> Result<(&Self, &[u8]), Malformed> {
        let (message, rest) = Self::ref_from_prefix(bytes).map_err(|_| Malformed::Truncated)?;
        if !matches!(message.kind, SOLICITATION | ADVERTISEMENT) {
            return Err(Malformed::Kind);
        }
        if message.code != 0 {
            return Err(Malformed::Code);
        }
        Ok((message, rest))
    }

    /// Whether it is a solicitation; else it is an advertisement.
    pub const fn is_solicitation(&self) -> bool {
        self.kind == SOLICITATION
    }

    /// The address that is asked for or advertised.
    pub const fn target(&self) -> Ipv6Addr {
        Ipv6Addr::from_octets(self.target)
    }

    /// Whether the checksum is right for a message from `source` to `destination`.
    pub fn checksum_valid(&self, source: Ipv6Addr, destination: Ipv6Addr, options: &[u8]) -> bool {
        self.sum(source, destination, options).fold() == 0xFFFF
    }

    /// Makes the checksum right for a message from `source` to `destination`.
    pub fn fill_checksum(&mut self, source: Ipv6Addr, destination: Ipv6Addr, options: &[u8]) {
        self.checksum = U16::ZERO;
        self.checksum.set(self.sum(source, destination, options).checksum());
    }

    fn sum(&self, source: Ipv6Addr, destination: Ipv6Addr, options: &[u8]) -> Sum {
        let len = (Self::LEN + options.len()) as u32;
        Sum::pseudo_ipv6(source.octets(), destination.octets(), protocol::ICMPV6, len)
            .add_bytes(self.as_bytes())
            .add_bytes(options)
    }
}

/// A message whose options are well-formed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct View<'a> {
    /// The fixed part.
    pub message: &'a Message,
    options: &'a [u8],
}

impl<'a> View<'a> {
    /// Reads the message that `bytes` are, from the ICMPv6 type to the end of the packet.
    ///
    /// # Errors
    /// See [`Malformed`].
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (message, options) = Message::parse_prefix(bytes)?;
        if message.target().is_multicast() {
            return Err(Malformed::Target);
        }
        let mut rest = options;
        while !rest.is_empty() {
            rest = split_option(rest).ok_or(Malformed::Option)?.1;
        }
        Ok(Self { message, options })
    }

    /// The options one by one.
    pub const fn options(&self) -> Options<'a> {
        Options(self.options)
    }

    /// The bytes of the options.
    pub const fn option_bytes(&self) -> &'a [u8] {
        self.options
    }

    /// The MAC address of the sender of a solicitation, or of the target of an advertisement, as the first
    /// such option says.
    ///
    /// # Errors
    /// [`Malformed::Option`] if that is not of Ethernet's length.
    pub fn link_layer(&self) -> Result<Option<[u8; 6]>, Malformed> {
        let kind = if self.message.is_solicitation() { SOURCE_LINK_LAYER } else { TARGET_LINK_LAYER };
        let first = self.options().find(|option| option.kind == kind);
        first.map(|option| option.value.try_into().map_err(|_| Malformed::Option)).transpose()
    }
}

/// One option.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Opt<'a> {
    /// Its type.
    pub kind: u8,
    /// What follows type and length.
    pub value: &'a [u8],
}

/// The options of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options<'a>(&'a [u8]);

impl<'a> Iterator for Options<'a> {
    type Item = Opt<'a>;

    fn next(&mut self) -> Option<Opt<'a>> {
        let (option, rest) = split_option(self.0)?;
        self.0 = rest;
        Some(option)
    }
}

/// The option at the start of `bytes` and what follows it; `None` if it has no length or goes on after
/// their end, or if there are none.
fn split_option(bytes: &[u8]) -> Option<(Opt<'_>, &[u8])> {
    let [kind, len, ref rest @ ..] = *bytes else { return None };
    let (value, rest) = rest.split_at_checked((len as usize * 8).checked_sub(2)?)?;
    Some((Opt { kind, value }, rest))
}

/// A link-layer address option of Ethernet, to be written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct LinkLayer {
    kind: u8,
    len: u8,
    mac: [u8; 6],
}

impl LinkLayer {
    /// The option of this type, [`SOURCE_LINK_LAYER`] or [`TARGET_LINK_LAYER`].
    pub const fn new(kind: u8, mac: [u8; 6]) -> Self {
        Self { kind, len: 1, mac }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::hex;

    /// scapy 2.5.0: `IPv6(src='fe80::1',dst='ff02::1:ff00:2')/ICMPv6ND_NS(tgt='fe80::2')/
    /// ICMPv6NDOptSrcLLAddr(lladdr='02:00:00:00:00:01')`
    const ASKED: &str = "87007a9700000000 fe800000000000000000000000000002 0101020000000001";
    /// scapy 2.5.0: `IPv6(src='fe80::2',dst='fe80::1')/ICMPv6ND_NA(tgt='fe80::2',R=0,S=1,O=1)/
    /// ICMPv6NDOptDstLLAddr(lladdr='02:00:00:00:00:02')`
    const ANSWERED: &str = "8800181a60000000 fe800000000000000000000000000002 0201020000000002";

    #[test]
    fn messages_of_scapy() {
        let target = "fe80::2".parse().unwrap();
        for (text, mut message, kind, mac, source, destination) in [
            (
                ASKED,
                Message::solicitation(target),
                SOURCE_LINK_LAYER,
                [2, 0, 0, 0, 0, 1],
                "fe80::1",
                "ff02::1:ff00:2",
            ),
            (
                ANSWERED,
                Message::advertisement(target, SOLICITED | OVERRIDE),
                TARGET_LINK_LAYER,
                [2, 0, 0, 0, 0, 2],
                "fe80::2",
                "fe80::1",
            ),
        ] {
            let (source, destination) = (source.parse().unwrap(), destination.parse().unwrap());
            let option = LinkLayer::new(kind, mac);
            message.fill_checksum(source, destination, option.as_bytes());
            assert_eq!([message.as_bytes(), option.as_bytes()].concat(), hex(text));

            let bytes = hex(text);
            let view = View::parse(&bytes).unwrap();
            assert_eq!(
                (*view.message, view.message.target(), view.link_layer()),
                (message, target, Ok(Some(mac)))
            );
            assert!(view.message.checksum_valid(source, destination, view.option_bytes()));
        }
    }

    #[test]
    fn every_rule() {
        let broken = |at: usize, value: u8| {
            let mut bytes = hex(ASKED);
            bytes[at] = value;
            View::parse(&bytes).map(|_| ()).unwrap_err()
        };
        assert_eq!(broken(0, 133), Malformed::Kind);
        assert_eq!(broken(1, 1), Malformed::Code);
        assert_eq!(broken(8, 0xFF), Malformed::Target);
        assert_eq!(broken(25, 0), Malformed::Option);
        assert_eq!(broken(25, 2), Malformed::Option);
        for len in 0..32 {
            let expected = match len {
                24 => Ok(()), // The option gone as a whole.
                25.. => Err(Malformed::Option),
                _ => Err(Malformed::Truncated),
            };
            assert_eq!(View::parse(&hex(ASKED)[..len]).map(|_| ()), expected, "{len}");
        }
    }

    /// Linux: `ndisc_opt_addr_data`.
    #[test]
    fn the_first_link_layer_address_counts() {
        let (short, long) = ([1, 1, 2, 0, 0, 0, 0, 9], [[1, 2, 2, 0, 0, 0, 0, 9], [0; 8]].concat());
        let said = |options: &[&[u8]]| {
            let bytes = [&hex(ASKED)[..24], &options.concat()].concat();
            View::parse(&bytes).unwrap().link_layer()
        };
        assert_eq!(said(&[]), Ok(None));
        assert_eq!(said(&[&[2, 1, 2, 0, 0, 0, 0, 8], &short, &long]), Ok(Some([2, 0, 0, 0, 0, 9])));
        assert_eq!(said(&[&long, &short]), Err(Malformed::Option));
    }

    proptest! {
        #[test]
        fn reads_what_it_wrote(
            target in any::<Ipv6Addr>().prop_filter("unicast", |a| !a.is_multicast()), flags: u32,
            options in proptest::collection::vec((3..=255_u8, 1..6_u8, any::<u8>()), 0..5), mac: [u8; 6],
        ) {
            let message = Message::advertisement(target, flags);
            let mut bytes = message.as_bytes().to_vec();
            for (kind, len, fill) in &options {
                bytes.extend([*kind, *len]);
                bytes.resize(bytes.len() + usize::from(*len) * 8 - 2, *fill);
            }
            bytes.extend(LinkLayer::new(TARGET_LINK_LAYER, mac).as_bytes());
            let view = View::parse(&bytes).unwrap();
            prop_assert_eq!((view.message, view.link_layer()), (&message, Ok(Some(mac))));
            let read: Vec<_> = view.options().take(options.len()).map(|o| (o.kind, (o.value.len() + 2) / 8)).collect();
            let wrote: Vec<_> = options.iter().map(|(kind, len, _)| (*kind, usize::from(*len))).collect();
            prop_assert_eq!(read, wrote);
        }
    }
}
