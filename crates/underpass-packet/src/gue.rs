//! Generic UDP encapsulation: draft-ietf-intarea-gue-09 sections 3 and 4, and what of it Linux has (`include/net/gue.h`).
//!
//! Variant 0:
//!
//! ```text
//! | 0 |C|  Hlen   |  Proto/ctype  |             Flags           |P|
//! |               Private flags (if P is set)     R is the first  |
//! |      Checksum start           |        Checksum offset        | if R is set
//! |                private data, to Hlen × 4 bytes                |
//! ```
//!
//! Variant 1 has no header: its first two bits are those of the IP version of the packet that follows UDP.
//!
//! Flags are those that Linux knows. What is inside may be GUE again; how deep, is for the caller to bound.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, network_endian::U16};

use crate::{checksum, protocol};

/// The longest header, in bytes.
pub const MAX_LEN: usize = Fixed::LEN + 4 * HLEN as usize;

const CONTROL: u8 = 0x20;
const HLEN: u8 = 0x1F;
/// Private flags follow.
const FLAG_PRIVATE: u16 = 0x0001;
/// Remote checksum offload, of the private flags.
const PRIVATE_REMOTE_CHECKSUM: u32 = 0x8000_0000;

/// Why the bytes are not taken.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Malformed {
    /// Shorter than the header.
    Truncated,
    /// Variant 2 or 3.
    Variant,
    /// Variant 1 whose packet is neither IPv4 nor IPv6.
    IpVersion,
    /// A flag that is not known: how long its field is, is not either.
    Flags,
    /// The header is shorter than the fields that its flags announce.
    HeaderLength,
    /// Remote checksum offload of bytes that are not there, or of a checksum before the bytes it covers.
    RemoteChecksum,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Fixed {
    /// Variant, control bit, length of what follows in units of 4 bytes.
    first: u8,
    /// IP protocol, or type of a control message.
    kind: u8,
    flags: U16,
}

impl Fixed {
    const LEN: usize = size_of::<Self>();
}

/// What the payload is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Content {
    /// A packet of this IP protocol.
    Data(u8),
    /// A control message of this type. Linux drops them all.
    Control(u8),
}

/// A checksum inside that the receiver is to complete, as the sender computed that of UDP instead
/// (draft-herbert-remotecsumoffload). Positions are in bytes from the start of the payload.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RemoteChecksum {
    /// Where the bytes under the checksum begin; they end with the payload.
    pub start: u16,
    /// Where the checksum is. It holds the sum of the pseudo header till it is completed.
    pub offset: u16,
}

impl RemoteChecksum {
    const LEN: usize = 4;

    /// That it lies in a payload of so many bytes.
    #[inline]
    const fn check(self, payload: usize) -> Result<Self, Malformed> {
        match self.start <= self.offset && self.offset as usize + 2 <= payload {
            true => Ok(self),
            false => Err(Malformed::RemoteChecksum),
        }
    }

    /// Completes the checksum in `payload`. One that is 0 is written as `0xFFFF`, as 0 means none in UDP.
    ///
    /// # Errors
    /// [`Malformed::RemoteChecksum`]: it does not lie in `payload`, which is then unchanged.
    #[inline]
    pub fn complete(self, payload: &mut [u8]) -> Result<(), Malformed> {
        self.check(payload.len())?;
        let (start, offset) = (usize::from(self.start), usize::from(self.offset));
        let covered = payload.get_mut(start..).ok_or(Malformed::RemoteChecksum)?;
        let sum = match checksum::of(covered) {
            0 => 0xFFFF,
            sum => sum,
        };
        let place = covered.get_mut(offset - start..).and_then(|rest| rest.first_chunk_mut());
        *place.ok_or(Malformed::RemoteChecksum)? = sum.to_be_bytes();
        Ok(())
    }
}

/// What follows UDP, with lengths that agree with each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct View<'a> {
    /// 0 or 1.
    pub variant: u8,
    /// What the payload is.
    pub content: Content,
    /// The checksum inside that is to be completed.
    pub remote_checksum: Option<RemoteChecksum>,
    /// What of the header no flag accounts for; Linux passes over it.
    pub private: &'a [u8],
    /// What follows the header.
    pub payload: &'a [u8],
}

impl<'a> View<'a> {
    /// Reads the payload of UDP that `bytes` are.
    ///
    /// # Errors
    /// See [`Malformed`].
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (fixed, rest) = Fixed::ref_from_prefix(bytes).map_err(|_| Malformed::Truncated)?;
        match fixed.first >> 6 {
            0 => {}
            1 => {
                let protocol = match fixed.first >> 4 {
                    4 => protocol::IPV4,
                    6 => protocol::IPV6,
                    _ => return Err(Malformed::IpVersion),
                };
                let content = Content::Data(protocol);
                return Ok(Self { variant: 1, content, remote_checksum: None, private: &[], payload: bytes });
            }
            _ => return Err(Malformed::Variant),
        }
        let len = 4 * usize::from(fixed.first & HLEN);
        let (mut fields, payload) = rest.split_at_checked(len).ok_or(Malformed::Truncated)?;
        let flags = fixed.flags.get();
        if flags & !FLAG_PRIVATE != 0 {
            return Err(Malformed::Flags);
        }
        let mut field = || {
            let (value, behind) = fields.split_first_chunk::<4>().ok_or(Malformed::HeaderLength)?;
            fields = behind;
            Ok(*value)
        };
        let mut remote_checksum = None;
        if flags & FLAG_PRIVATE != 0 {
            let private = u32::from_be_bytes(field()?);
            if private & !PRIVATE_REMOTE_CHECKSUM != 0 {
                return Err(Malformed::Flags);
            }
            if private & PRIVATE_REMOTE_CHECKSUM != 0 {
                let [a, b, c, d] = field()?;
                let remote =
                    RemoteChecksum { start: u16::from_be_bytes([a, b]), offset: u16::from_be_bytes([c, d]) };
                remote_checksum = Some(remote.check(payload.len())?);
            }
        }
        let content = match fixed.first & CONTROL {
            0 => Content::Data(fixed.kind),
            _ => Content::Control(fixed.kind),
        };
        Ok(Self { variant: 0, content, remote_checksum, private: fields, payload })
    }
}

/// A header of variant 0 to be written; variant 1 needs none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Builder<'a> {
    /// What the payload is.
    pub content: Content,
    /// The checksum inside that the receiver is to complete.
    pub remote_checksum: Option<RemoteChecksum>,
    /// Private data, a multiple of 4 bytes.
    pub private: &'a [u8],
}

impl Builder<'_> {
    /// A header without fields.
    #[inline]
    pub const fn new(content: Content) -> Self {
        Self { content, remote_checksum: None, private: &[] }
    }

    /// Length in bytes.
    #[inline]
    pub const fn header_len(&self) -> usize {
        let fields = if self.remote_checksum.is_some() { 4 + RemoteChecksum::LEN } else { 0 };
        Fixed::LEN + fields + self.private.len()
    }

    /// Writes the header to the start of `bytes` and returns its length.
    ///
    /// # Errors
    /// [`Malformed::HeaderLength`]: the private data are not a multiple of 4 bytes, or too long for Hlen;
    /// [`Malformed::Truncated`]: `bytes` are shorter than the header. They are then unchanged.
    #[inline]
    pub fn write(&self, bytes: &mut [u8]) -> Result<usize, Malformed> {
        let len = self.header_len();
        if len > MAX_LEN || !len.is_multiple_of(4) {
            return Err(Malformed::HeaderLength);
        }
        let header = bytes.get_mut(..len).ok_or(Malformed::Truncated)?;
        let (fixed, fields) = Fixed::mut_from_prefix(header).map_err(|_| Malformed::Truncated)?;
        let (control, kind) = match self.content {
            Content::Data(protocol) => (0, protocol),
            Content::Control(kind) => (CONTROL, kind),
        };
        let flags = if self.remote_checksum.is_some() { FLAG_PRIVATE } else { 0 };
        *fixed = Fixed { first: control | (fields.len() / 4) as u8, kind, flags: flags.into() };
        let (fields, private) = fields.split_at_mut(len - Fixed::LEN - self.private.len());
        private.copy_from_slice(self.private);
        if let (Some(remote), [flags, positions]) = (self.remote_checksum, fields.as_chunks_mut::<4>().0) {
            *flags = PRIVATE_REMOTE_CHECKSUM.to_be_bytes();
            *positions = (u32::from(remote.start) << 16 | u32::from(remote.offset)).to_be_bytes();
        }
        Ok(len)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::hex;
    use crate::{ipv4, udp};

    /// Linux 6.12: `ip link add t0 type ipip local 10.0.0.1 remote 10.0.0.2 encap gue encap-sport 7777 encap-dport 6080
    /// encap-csum encap-remcsum`: the UDP datagram `abc` from 10.1.1.1 port 4096 to 10.1.1.2 port 53.
    const REMOTE_CHECKSUM: &str = "02040001 80000000 0014001a 4500001f 28c14000 4011fc08 0a010101 0a010102
        10000035 000b1621 616263";
    /// Linux 6.12: `ip link add t1 type gre key 42 local 10.0.0.1 remote 10.0.0.2 encap gue encap-sport 7777
    /// encap-dport 6080`: the same from 10.1.2.1 to 10.1.2.2.
    const GRE: &str =
        "002f0000 20000800 0000002a 4500001f 46934000 4011dc36 0a010201 0a010202 10000035 000b133c 616263";

    #[test]
    fn gre_of_linux() {
        let wire = hex(GRE);
        let view = View::parse(&wire).unwrap();
        assert_eq!((view.variant, view.content), (0, Content::Data(protocol::GRE)));
        assert_eq!((view.remote_checksum, view.private, view.payload), (None, &[][..], &wire[4..]));
        let inside = crate::gre::View::parse_over_ipv4(view.payload).unwrap();
        assert_eq!((inside.key, inside.payload), (Some(42), &wire[12..]));
        let mut written = [0xEE; 4];
        assert_eq!(Builder::new(view.content).write(&mut written), Ok(4));
        assert_eq!(written, wire[..4]);
    }

    #[test]
    fn remote_checksum_of_linux() {
        let mut wire = hex(REMOTE_CHECKSUM);
        let view = View::parse(&wire).unwrap();
        assert_eq!((view.content, view.payload), (Content::Data(protocol::IPV4), &wire[12..]));
        let remote = RemoteChecksum { start: 20, offset: 26 };
        assert_eq!((view.remote_checksum, view.private), (Some(remote), &[][..]));
        let mut written = [0xEE; 12];
        let builder = Builder { remote_checksum: Some(remote), ..Builder::new(view.content) };
        assert_eq!(builder.write(&mut written), Ok(12));
        assert_eq!(written, wire[..12]);

        let valid = |packet: &[u8]| {
            let ip = ipv4::View::parse(packet).unwrap();
            let datagram = udp::View::parse(ip.payload).unwrap();
            let pseudo = checksum::Sum::pseudo_ipv4([10, 1, 1, 1], [10, 1, 1, 2], protocol::UDP, 11);
            datagram.header.checksum_valid(pseudo, datagram.payload)
        };
        assert!(!valid(&wire[12..]));
        remote.complete(&mut wire[12..]).unwrap();
        assert!(valid(&wire[12..]));
    }

    /// scapy 2.5.0: `IP(src='192.0.2.1',dst='198.51.100.2')/UDP(sport=4096,dport=53)/b'abc'`, and
    /// `IPv6(src='2001:db8::1',dst='2001:db8::2')/UDP(sport=4096,dport=53)/b'abc'` as they are.
    #[test]
    fn variant_1() {
        for (text, protocol) in [
            ("4500001f 00010000 4011 8e96 c0000201 c6336402 10000035 000b3f09 616263", protocol::IPV4),
            (
                "60000000 000b1140 20010db8 00000000 00000000 00000001 20010db8 00000000 00000000 00000002
                 10000035 000bcfcb 616263",
                protocol::IPV6,
            ),
        ] {
            let wire = hex(text);
            let view = View::parse(&wire).unwrap();
            assert_eq!((view.variant, view.content, view.payload), (1, Content::Data(protocol), &wire[..]));
            assert_eq!((view.remote_checksum, view.private), (None, &[][..]));
        }
        for first in [0x50, 0x5F, 0x70, 0x7F] {
            assert_eq!(View::parse(&[first, 0, 0, 0]), Err(Malformed::IpVersion));
        }
    }

    #[test]
    fn control_and_private_data() {
        let wire = hex("22030000 0102030405060708 99");
        let view = View::parse(&wire).unwrap();
        assert_eq!(
            (view.content, view.private, view.payload),
            (Content::Control(3), &wire[4..12], &[0x99][..])
        );
        let mut written = [0; 12];
        let builder = Builder { private: view.private, ..Builder::new(view.content) };
        assert_eq!(builder.write(&mut written), Ok(12));
        assert_eq!(written, wire[..12]);
    }

    #[test]
    fn what_is_malformed_is_refused() {
        let wire = hex(REMOTE_CHECKSUM);
        for len in 0..12 {
            assert_eq!(View::parse(&wire[..len]), Err(Malformed::Truncated), "{len}");
        }
        for len in 12..12 + 28 {
            assert_eq!(View::parse(&wire[..len]), Err(Malformed::RemoteChecksum), "{len}");
        }
        assert!(View::parse(&wire[..12 + 28]).is_ok());
        let changed = |at: usize, byte| {
            let mut wire = wire.clone();
            wire[at] = byte;
            View::parse(&wire).map(|_| ())
        };
        assert_eq!(changed(0, 0x82), Err(Malformed::Variant));
        assert_eq!(changed(0, 0xC2), Err(Malformed::Variant));
        // Neither private flags nor, in the second, what they announce.
        assert_eq!(changed(0, 0x00), Err(Malformed::HeaderLength));
        assert_eq!(changed(0, 0x01), Err(Malformed::HeaderLength));
        assert_eq!(changed(0, 0x1F), Err(Malformed::Truncated));
        assert_eq!(changed(2, 0x80), Err(Malformed::Flags));
        assert_eq!(changed(3, 0x03), Err(Malformed::Flags));
        assert_eq!(changed(4, 0xC0), Err(Malformed::Flags));
        assert_eq!(changed(7, 0x01), Err(Malformed::Flags));
        // The checksum lies before what it covers.
        assert_eq!(changed(9, 27), Err(Malformed::RemoteChecksum));
        assert_eq!(changed(9, 26), Ok(()));
    }

    #[test]
    fn what_cannot_be_said_is_not_written() {
        let content = Content::Data(4);
        let private = [0; 128];
        let remote_checksum = Some(RemoteChecksum { start: 0, offset: 0 });
        let mut room = [0xEE; 200];
        for (remote_checksum, len, written) in [
            (None, 124, Ok(128)),
            (None, 128, Err(Malformed::HeaderLength)),
            (None, 6, Err(Malformed::HeaderLength)),
            (remote_checksum, 116, Ok(128)),
            (remote_checksum, 120, Err(Malformed::HeaderLength)),
        ] {
            let builder = Builder { content, remote_checksum, private: &private[..len] };
            assert_eq!(builder.write(&mut room), written);
        }
        let mut short = [0xEE; 3];
        assert_eq!(Builder::new(content).write(&mut short), Err(Malformed::Truncated));
        assert_eq!(short, [0xEE; 3]);
        let far = RemoteChecksum { start: 0, offset: u16::MAX };
        assert_eq!(far.complete(&mut [0; 100]), Err(Malformed::RemoteChecksum));
        let mut odd = [0xFF, 0xFF, 1, 0];
        assert_eq!(RemoteChecksum { start: 2, offset: 1 }.complete(&mut odd), Err(Malformed::RemoteChecksum));
        assert_eq!(odd, [0xFF, 0xFF, 1, 0]);
        // Words that sum up to 0xFFFF: 0 is written as its other form.
        let mut ones = [0xFF, 0xFE, 0x00, 0x01];
        RemoteChecksum { start: 0, offset: 2 }.complete(&mut ones).unwrap();
        assert_eq!(ones, [0xFF, 0xFE, 0xFF, 0xFF]);
    }

    fn any_content() -> impl Strategy<Value = Content> {
        any::<(bool, u8)>()
            .prop_map(|(control, kind)| if control { Content::Control(kind) } else { Content::Data(kind) })
    }

    proptest! {
        #[test]
        fn reads_what_it_wrote(
            content in any_content(),
            words in proptest::collection::vec(any::<[u8; 4]>(), 0..29),
            payload in proptest::collection::vec(any::<u8>(), 2..200),
            place in any::<Option<(prop::sample::Index, prop::sample::Index)>>(),
        ) {
            let remote_checksum = place.map(|(start, offset)| {
                let offset = offset.index(payload.len() - 1);
                RemoteChecksum { start: start.index(offset + 1) as u16, offset: offset as u16 }
            });
            let private = words.concat();
            let builder = Builder { content, remote_checksum, private: &private };
            let mut bytes = [vec![0xEE; builder.header_len()], payload.clone()].concat();
            prop_assert_eq!(builder.write(&mut bytes), Ok(builder.header_len()));
            let view = View { variant: 0, content, remote_checksum, private: &private, payload: &payload };
            prop_assert_eq!(View::parse(&bytes), Ok(view));
        }

        /// Over the bytes that the checksum covers and what stood in its place, the sum is right.
        #[test]
        fn completed_checksums_are_right(
            mut payload in proptest::collection::vec(any::<u8>(), 4..200),
            start in 0..100_u16,
            behind in 0..50_u16,
        ) {
            // At an even distance, as in every protocol.
            let remote = RemoteChecksum { start, offset: start + behind * 2 };
            let offset = usize::from(remote.offset);
            let before = payload.clone();
            if remote.complete(&mut payload).is_err() {
                prop_assert!(offset + 2 > payload.len());
                prop_assert_eq!(before, payload);
                return Ok(());
            }
            let seed = u16::from_be_bytes([before[offset], before[offset + 1]]);
            let sum = checksum::Sum::new().add_bytes(&payload[usize::from(start)..]).add_u16(seed);
            prop_assert_eq!(sum.fold(), 0xFFFF);
            payload[offset..offset + 2].copy_from_slice(&before[offset..offset + 2]);
            prop_assert_eq!(before, payload);
        }

        #[test]
        fn arbitrary_bytes(bytes: Vec<u8>) {
            if let Ok(view) = View::parse(&bytes) {
                prop_assert!(bytes.ends_with(view.payload));
                prop_assert!(bytes.len() - view.payload.len() <= MAX_LEN);
            }
        }
    }
}
