//! Generic routing encapsulation, version 0: RFC 2784, with the key and the sequence number of RFC 2890.
//!
//! ```text
//! |C|R|K|S|s|Recur|A|  Flags  |Ver|         Protocol Type         |
//! |     Checksum (if C is set)    |     Reserved1 (with it)       |
//! |                    Key (if K is set)                          |
//! |               Sequence Number (if S is set)                   |
//! ```
//!
//! What is refused is what Linux refuses: a routing field (R, RFC 1701) and other versions. The other bits that
//! RFC 2784 reserves are not looked at, so neither is its rule that bits 4 and 5 be zero; see [`View::parse_over_ipv4`].

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, network_endian::U16};

use crate::checksum::{self, Sum};

/// EtherType of WCCP's redirected packets.
pub const WCCP: u16 = 0x883E;
/// EtherType of Ethernet frames inside, RFC 7637 section 3.2.
pub const TRANSPARENT_ETHERNET: u16 = 0x6558;

const CHECKSUM: u16 = 0x8000;
const ROUTING: u16 = 0x4000;
const KEY: u16 = 0x2000;
const SEQUENCE: u16 = 0x1000;
const VERSION: u16 = 0x0007;
/// What Linux takes for the version over IPv4.
const VERSION_OVER_IPV4: u16 = 0x007F;
/// The longest header, in bytes.
pub const MAX_LEN: usize = 16;
/// Where the checksum is, if there is one.
pub const CHECKSUM_OFFSET: u16 = 4;

/// Why the bytes are not taken.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Malformed {
    /// Shorter than the header and the fields that its flags announce.
    Truncated,
    /// It has a routing field (RFC 1701), which RFC 2784 took away.
    Routing,
    /// A version other than 0.
    Version,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Fixed {
    flags: U16,
    protocol: U16,
}

/// A packet that has all the fields that its flags announce.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct View<'a> {
    whole: &'a [u8],
    flags: u16,
    /// EtherType of what is inside.
    pub protocol: u16,
    /// The key: which of several tunnels between the same two nodes (RFC 2890 section 2.1).
    pub key: Option<u32>,
    /// The sequence number (RFC 2890 section 2.2).
    pub sequence: Option<u32>,
    /// What follows the header.
    pub payload: &'a [u8],
}

impl<'a> View<'a> {
    /// Reads the packet that `bytes` are. The checksum is not looked at.
    ///
    /// # Errors
    /// See [`Malformed`].
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (fixed, mut rest) = Fixed::ref_from_prefix(bytes).map_err(|_| Malformed::Truncated)?;
        let flags = fixed.flags.get();
        if flags & ROUTING != 0 {
            return Err(Malformed::Routing);
        }
        if flags & VERSION != 0 {
            return Err(Malformed::Version);
        }
        let mut field = |flag| {
            if flags & flag == 0 {
                return Ok(None);
            }
            let (value, behind) = rest.split_first_chunk().ok_or(Malformed::Truncated)?;
            rest = behind;
            Ok(Some(u32::from_be_bytes(*value)))
        };
        let (_, key, sequence) = (field(CHECKSUM)?, field(KEY)?, field(SEQUENCE)?);
        Ok(Self { whole: bytes, flags, protocol: fixed.protocol.get(), key, sequence, payload: rest })
    }

    /// [`View::parse`] with the two rules more that Linux's receiver over IPv4 has (`gre_rcv`): the version is 7 bits
    /// wide, and the packet at least 12 bytes long.
    ///
    /// # Errors
    /// See [`Malformed`].
    #[inline]
    pub fn parse_over_ipv4(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let view = Self::parse(bytes)?;
        if view.flags & VERSION_OVER_IPV4 != 0 {
            return Err(Malformed::Version);
        }
        if bytes.len() < 12 {
            return Err(Malformed::Truncated);
        }
        Ok(view)
    }

    /// Length of the header in bytes.
    #[inline]
    pub const fn header_len(&self) -> usize {
        self.whole.len() - self.payload.len()
    }

    /// Whether there is a checksum.
    #[inline]
    pub const fn has_checksum(&self) -> bool {
        self.flags & CHECKSUM != 0
    }

    /// Whether the checksum is right, if there is one. It covers header and payload; 0 is a checksum like others.
    #[inline]
    pub fn checksum_valid(&self) -> bool {
        !self.has_checksum() || Sum::new().add_bytes(self.whole).fold() == 0xFFFF
    }

    /// The IP packet that WCCP redirects: behind the header without any field, or (version 2) behind 4 bytes more.
    /// `None`: it is not WCCP, or nothing follows. Linux's rule for which of the two it is: whether an IPv4 header follows.
    #[inline]
    pub fn redirected(&self) -> Option<&'a [u8]> {
        if self.flags != 0 || self.protocol != WCCP {
            return None;
        }
        match self.payload.first()? >> 4 {
            4 => Some(self.payload),
            _ => self.payload.get(4..),
        }
    }
}

/// A header to be written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Builder {
    /// EtherType of what is inside.
    pub protocol: u16,
    /// Whether there is a checksum.
    pub checksum: bool,
    /// The key.
    pub key: Option<u32>,
    /// The sequence number.
    pub sequence: Option<u32>,
}

impl Builder {
    /// A header without fields.
    #[inline]
    pub const fn new(protocol: u16) -> Self {
        Self { protocol, checksum: false, key: None, sequence: None }
    }

    /// Length in bytes: 4 to [`MAX_LEN`].
    #[inline]
    pub const fn header_len(&self) -> usize {
        4 + 4 * (self.checksum as usize + self.key.is_some() as usize + self.sequence.is_some() as usize)
    }

    /// Writes the header to the start of `bytes`, which end with the packet, and returns its length. The payload lies
    /// behind the header already: the checksum covers it.
    ///
    /// # Errors
    /// [`Malformed::Truncated`]: `bytes` are shorter than the header. They are then unchanged.
    #[inline]
    pub fn write(&self, bytes: &mut [u8]) -> Result<usize, Malformed> {
        let len = self.header_len();
        let header = bytes.get_mut(..len).ok_or(Malformed::Truncated)?;
        let (fixed, fields) = Fixed::mut_from_prefix(header).map_err(|_| Malformed::Truncated)?;
        let flag = |there: bool, flag| if there { flag } else { 0 };
        let flags = flag(self.checksum, CHECKSUM)
            | flag(self.key.is_some(), KEY)
            | flag(self.sequence.is_some(), SEQUENCE);
        *fixed = Fixed { flags: flags.into(), protocol: self.protocol.into() };
        let values = [self.checksum.then_some(0), self.key, self.sequence];
        let (places, _) = fields.as_chunks_mut::<4>();
        for (place, value) in places.iter_mut().zip(values.into_iter().flatten()) {
            *place = value.to_be_bytes();
        }
        if self.checksum {
            let checksum = checksum::of(bytes);
            bytes[4..6].copy_from_slice(&checksum.to_be_bytes());
        }
        Ok(len)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::hex;

    /// Linux 6.12, second packet of `ip link add t2 type gre key 43 csum seq local 10.0.0.1 remote 10.0.0.2`: the UDP
    /// datagram `abc` from 10.1.3.1 port 4096 to 10.1.3.2 port 53.
    const OF_LINUX: &str = "b0000800 61f30000 0000002b 00000002 4500001f b59b4000 40116b2e 0a010301 0a010302
        10000035 000b113c 616263";

    #[test]
    fn a_packet_of_linux() {
        let wire = hex(OF_LINUX);
        let view = View::parse_over_ipv4(&wire).unwrap();
        assert_eq!((view.protocol, view.key, view.sequence), (0x0800, Some(43), Some(2)));
        assert_eq!((view.header_len(), view.payload), (16, &wire[16..]));
        assert!(view.has_checksum() && view.checksum_valid());
        let mut written = wire.clone();
        written[..16].fill(0xEE);
        let builder = Builder { protocol: 0x0800, checksum: true, key: Some(43), sequence: Some(2) };
        assert_eq!(builder.write(&mut written), Ok(16));
        assert_eq!(written, wire);
    }

    /// scapy 2.5.0, each behind its fields: `GRE(proto=0x800,chksum_present=1,key_present=1,seqnum_present=1,
    /// key=0x01020304,seqence_number=7)/Raw(b'abcde')`, but for the checksum, which it leaves out;
    /// `GRE(proto=0x6558)/Raw(b'abcde')`; `GRE(proto=0x86dd,key_present=1,key=42)/Raw(b'abcde')`;
    /// `GRE(proto=0x8847,seqnum_present=1,seqence_number=0xffffffff)`
    #[test]
    fn packets_of_scapy() {
        let plain = Builder::new;
        for (builder, text) in [
            (
                Builder { protocol: 0x0800, checksum: true, key: Some(0x0102_0304), sequence: Some(7) },
                "b0000800 1a2b0000 01020304 00000007 6162636465",
            ),
            (plain(0x6558), "00006558 6162636465"),
            (Builder { key: Some(42), ..plain(0x86DD) }, "200086dd 0000002a 6162636465"),
            (Builder { sequence: Some(u32::MAX), ..plain(0x8847) }, "10008847 ffffffff"),
        ] {
            let wire = hex(text);
            let view = View::parse(&wire).unwrap();
            assert_eq!(
                (view.protocol, view.key, view.sequence),
                (builder.protocol, builder.key, builder.sequence)
            );
            assert!(view.has_checksum() == builder.checksum && view.checksum_valid(), "{text}");
            assert_eq!(view.header_len(), builder.header_len());
            let mut written = wire.clone();
            written[..builder.header_len()].fill(0xEE);
            assert_eq!(builder.write(&mut written), Ok(builder.header_len()));
            assert_eq!(written, wire);
        }
    }

    /// Linux 6.12 behind `ip link add tg type gre local 127.0.0.1 remote 127.0.0.1`: a packet with one bit more of each
    /// is counted as received by tg for the first five, and not for the others.
    #[test]
    fn bits_that_linux_refuses() {
        let packet =
            |flags: u16| [&flags.to_be_bytes()[..], &hex(OF_LINUX)[2..4], &hex(OF_LINUX)[16..]].concat();
        for bit in [0x0800, 0x0400, 0x0200, 0x0100, 0x0080] {
            assert!(View::parse_over_ipv4(&packet(bit)).is_ok(), "{bit:#x}");
        }
        assert_eq!(View::parse_over_ipv4(&packet(0x4000)), Err(Malformed::Routing));
        for bit in [0x40, 0x20, 0x10, 8, 4, 2, 1] {
            assert_eq!(View::parse_over_ipv4(&packet(bit)), Err(Malformed::Version), "{bit:#x}");
            assert_eq!(View::parse(&packet(bit)).is_ok(), bit > 4, "{bit:#x}");
        }
    }

    #[test]
    fn truncated_and_corrupted() {
        let wire = hex(OF_LINUX);
        for len in 0..16 {
            assert_eq!(View::parse(&wire[..len]), Err(Malformed::Truncated), "{len}");
        }
        let short = hex("00000800 45000014 000000");
        assert!(View::parse(&short).is_ok());
        assert_eq!(View::parse_over_ipv4(&short), Err(Malformed::Truncated));
        // Reserved1, the other fields and the payload are under it.
        for at in 4..wire.len() {
            let mut wrong = wire.clone();
            wrong[at] ^= 1;
            assert!(!View::parse(&wrong).unwrap().checksum_valid(), "{at}");
        }
        // 0 is no way to say that there is none.
        let mut none = wire;
        none[4..6].fill(0);
        assert!(!View::parse(&none).unwrap().checksum_valid());
        let mut room = [0xEE; 3];
        assert_eq!(Builder::new(0x0800).write(&mut room), Err(Malformed::Truncated));
        assert_eq!(room, [0xEE; 3]);
    }

    #[test]
    fn redirected_packets() {
        let first = hex("0000883e 45000014");
        assert_eq!(View::parse(&first).unwrap().redirected(), Some(&first[4..]));
        let second = hex("0000883e 00010203 45000014");
        assert_eq!(View::parse(&second).unwrap().redirected(), Some(&second[8..]));
        for other in ["00000800 45000014", "2000883e 00000001 45000014", "0000883e", "0000883e 000102"] {
            assert_eq!(View::parse(&hex(other)).unwrap().redirected(), None, "{other}");
        }
    }

    fn any_builder() -> impl Strategy<Value = Builder> {
        any::<(u16, bool, Option<u32>, Option<u32>)>()
            .prop_map(|(protocol, checksum, key, sequence)| Builder { protocol, checksum, key, sequence })
    }

    proptest! {
        #[test]
        fn reads_what_it_wrote(builder in any_builder(), payload: Vec<u8>) {
            let len = builder.header_len();
            let mut bytes = [vec![0xEE; len], payload.clone()].concat();
            prop_assert_eq!(builder.write(&mut bytes), Ok(len));
            let view = View::parse(&bytes).unwrap();
            let read = Builder {
                protocol: view.protocol,
                checksum: view.has_checksum(),
                key: view.key,
                sequence: view.sequence,
            };
            prop_assert_eq!((read, view.payload), (builder, &payload[..]));
            prop_assert!(view.checksum_valid());
            prop_assert_eq!(builder.write(&mut bytes[..len - 1]), Err(Malformed::Truncated));
        }

        #[test]
        fn arbitrary_bytes(bytes: Vec<u8>) {
            if let Ok(view) = View::parse(&bytes) {
                prop_assert_eq!(&bytes[view.header_len()..], view.payload);
                prop_assert!(view.header_len() <= MAX_LEN);
            }
        }
    }
}
