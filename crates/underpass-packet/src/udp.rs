//! UDP, RFC 768.
//!
//! ```text
//! |          Source Port          |       Destination Port        |
//! |            Length             |           Checksum            |
//! ```

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, network_endian::U16};

use crate::checksum::Sum;

/// Which rule of RFC 768 the bytes break.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Malformed {
    /// Shorter than the header.
    Truncated,
    /// The length is below that of the header.
    Length,
    /// Shorter than the length.
    PayloadTruncated,
}

/// The header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Header {
    /// Source port.
    pub source_port: U16,
    /// Destination port.
    pub destination_port: U16,
    /// Length of header and payload, in bytes.
    pub length: U16,
    /// Checksum of pseudo header, header and payload. 0: none.
    pub checksum: U16,
}

impl Header {
    /// Length in bytes.
    pub const LEN: usize = size_of::<Self>();

    /// A header without a checksum; `length` is that of header and payload.
    #[inline]
    pub const fn new(source_port: u16, destination_port: u16, length: u16) -> Self {
        Self {
            source_port: U16::new(source_port),
            destination_port: U16::new(destination_port),
            length: U16::new(length),
            checksum: U16::ZERO,
        }
    }

    /// Whether the sender computed a checksum: over IPv4 it need not, over IPv6 it must but for some
    /// tunnels (RFC 6935).
    #[inline]
    pub const fn has_checksum(&self) -> bool {
        self.checksum.get() != 0
    }

    /// Whether the checksum is right; `pseudo` is the sum of the pseudo header.
    #[inline]
    pub fn checksum_valid(&self, pseudo: Sum, payload: &[u8]) -> bool {
        pseudo.add_bytes(self.as_bytes()).add_bytes(payload).fold() == 0xFFFF
    }

    /// Makes the checksum right; `pseudo` is the sum of the pseudo header. One that is 0 is sent as
    /// `0xFFFF`, as 0 means none.
    #[inline]
    pub fn fill_checksum(&mut self, pseudo: Sum, payload: &[u8]) {
        self.checksum = U16::ZERO;
        let checksum = pseudo.add_bytes(self.as_bytes()).add_bytes(payload).checksum();
        self.checksum.set(if checksum == 0 { 0xFFFF } else { checksum });
    }

    #[inline]
    fn payload_len(&self) -> Result<usize, Malformed> {
        (self.length.get() as usize).checked_sub(Self::LEN).ok_or(Malformed::Length)
    }
}

/// A datagram that is as long as it says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct View<'a> {
    /// The header.
    pub header: &'a Header,
    /// What follows it, to the length.
    pub payload: &'a [u8],
}

impl<'a> View<'a> {
    /// Reads the datagram at the start of `bytes`. The checksum is not looked at.
    ///
    /// # Errors
    /// See [`Malformed`].
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (header, rest) = Header::ref_from_prefix(bytes).map_err(|_| Malformed::Truncated)?;
        let len = header.payload_len()?;
        let payload = rest.get(..len).ok_or(Malformed::PayloadTruncated)?;
        Ok(Self { header, payload })
    }
}

/// [`View`], to be changed.
#[derive(PartialEq, Eq, Debug)]
pub struct ViewMut<'a> {
    /// The header.
    pub header: &'a mut Header,
    /// What follows it, to the length.
    pub payload: &'a mut [u8],
}

impl<'a> ViewMut<'a> {
    /// Reads the datagram at the start of `bytes`. The checksum is not looked at.
    ///
    /// # Errors
    /// See [`Malformed`].
    #[inline]
    pub fn parse(bytes: &'a mut [u8]) -> Result<Self, Malformed> {
        let (header, rest) = Header::mut_from_prefix(bytes).map_err(|_| Malformed::Truncated)?;
        let len = header.payload_len()?;
        let payload = rest.get_mut(..len).ok_or(Malformed::PayloadTruncated)?;
        Ok(Self { header, payload })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{protocol, testing::hex};

    const SOURCE: [u8; 4] = [192, 0, 2, 1];
    const DESTINATION: [u8; 4] = [198, 51, 100, 2];

    /// scapy 2.5.0: `IP(src='192.0.2.1',dst='198.51.100.2')/UDP(sport=4096,dport=53)/b'abc'`
    const OVER_IPV4: &str = "10000035000b3f09 616263";
    /// scapy 2.5.0: `IPv6(src='2001:db8::1',dst='2001:db8::2')/UDP(sport=4096,dport=53)/b'abc'`
    const OVER_IPV6: &str = "10000035000bcfcb 616263";

    #[test]
    fn datagrams_of_scapy() {
        let (mut source, mut destination) =
            (hex("20010db8000000000000000000000001"), hex("20010db8000000000000000000000002"));
        let address = |bytes: &mut Vec<u8>| <[u8; 16]>::try_from(std::mem::take(bytes)).unwrap();
        let (source, destination) = (address(&mut source), address(&mut destination));
        for (text, pseudo) in [
            (OVER_IPV4, Sum::pseudo_ipv4(SOURCE, DESTINATION, protocol::UDP, 11)),
            (OVER_IPV6, Sum::pseudo_ipv6(source, destination, protocol::UDP, 11)),
        ] {
            let mut bytes = hex(text);
            let View { header, payload } = View::parse(&bytes).unwrap();
            assert_eq!((header.source_port.get(), header.destination_port.get()), (4096, 53));
            assert_eq!((header.length.get(), payload), (11, &b"abc"[..]));
            assert!(header.has_checksum() && header.checksum_valid(pseudo, payload));
            let ViewMut { header, payload } = ViewMut::parse(&mut bytes).unwrap();
            header.checksum.set(0x5555);
            assert!(!header.checksum_valid(pseudo, payload));
            header.fill_checksum(pseudo, payload);
            assert_eq!(bytes, hex(text));
        }
    }

    #[test]
    fn every_rule() {
        let bytes = hex(OVER_IPV4);
        for len in 0..bytes.len() {
            let fault = if len < 8 { Malformed::Truncated } else { Malformed::PayloadTruncated };
            assert_eq!(View::parse(&bytes[..len]), Err(fault), "{len}");
        }
        for len in 0..8 {
            let mut bytes = bytes.clone();
            bytes[5] = len;
            assert_eq!(View::parse(&bytes), Err(Malformed::Length));
            assert_eq!(ViewMut::parse(&mut bytes), Err(Malformed::Length));
        }
    }

    /// The sum of ports and length is `0xFFFF`, so that its complement is 0.
    #[test]
    fn checksum_of_0_is_sent_as_ffff() {
        let mut header = Header::new(0xFF00, 0x00F7, 8);
        header.fill_checksum(Sum::new(), &[]);
        assert_eq!(header.checksum.get(), 0xFFFF);
        assert!(header.checksum_valid(Sum::new(), &[]));
    }

    proptest! {
        #[test]
        fn reads_what_it_wrote(source: u16, destination: u16, payload: Vec<u8>, padding in 0..20_usize) {
            let length = (Header::LEN + payload.len()) as u16;
            let mut header = Header::new(source, destination, length);
            let pseudo = Sum::pseudo_ipv4(SOURCE, DESTINATION, protocol::UDP, length);
            header.fill_checksum(pseudo, &payload);
            prop_assert!(header.has_checksum());
            let mut bytes = [header.as_bytes(), &payload, &vec![0xEE; padding]].concat();
            prop_assert_eq!(View::parse(&bytes), Ok(View { header: &header, payload: &payload }));
            let view = ViewMut::parse(&mut bytes).unwrap();
            prop_assert!(view.header.checksum_valid(pseudo, view.payload));
        }
    }
}
