//! Ethernet II, IEEE 802.3 clause 3: the frame as the driver hands it over, without preamble and FCS.
//!
//! ```text
//! |       Destination MAC (6)     |          Source MAC (6)       |EtherType (2)| payload …
//! ```

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, network_endian::U16};

/// EtherType of IPv4.
pub const IPV4: u16 = 0x0800;
/// EtherType of ARP.
pub const ARP: u16 = 0x0806;
/// EtherType of RARP: RFC 903.
pub const RARP: u16 = 0x8035;
/// EtherType of an 802.1Q tag.
pub const VLAN: u16 = 0x8100;
/// EtherType of IPv6.
pub const IPV6: u16 = 0x86DD;
/// EtherType of MPLS with a downstream-assigned label, RFC 5332.
pub const MPLS: u16 = 0x8847;
/// EtherType of MPLS with an upstream-assigned label, RFC 5332.
pub const MPLS_MULTICAST: u16 = 0x8848;
/// EtherType of an 802.1ad service tag.
pub const SERVICE_VLAN: u16 = 0x88A8;

/// Shorter than the header.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Truncated;

/// The header of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Header {
    /// Destination MAC address.
    pub destination: [u8; 6],
    /// Source MAC address.
    pub source: [u8; 6],
    /// Protocol of what follows, if at least 1536; below, the length of an 802.3 frame.
    pub ethertype: U16,
}

impl Header {
    /// Length in bytes.
    pub const LEN: usize = size_of::<Self>();

    /// A header of these addresses and this EtherType.
    #[inline]
    pub const fn new(destination: [u8; 6], source: [u8; 6], ethertype: u16) -> Self {
        Self { destination, source, ethertype: U16::new(ethertype) }
    }

    /// Reads the header of `frame`, and lends what follows it.
    ///
    /// # Errors
    /// [`Truncated`].
    #[inline]
    pub fn parse(frame: &[u8]) -> Result<(&Self, &[u8]), Truncated> {
        Self::ref_from_prefix(frame).map_err(|_| Truncated)
    }

    /// [`Header::parse`], to be changed.
    ///
    /// # Errors
    /// [`Truncated`].
    #[inline]
    pub fn parse_mut(frame: &mut [u8]) -> Result<(&mut Self, &mut [u8]), Truncated> {
        Self::mut_from_prefix(frame).map_err(|_| Truncated)
    }

    /// Whether the destination is a group: the broadcast address among them.
    #[inline]
    pub const fn is_multicast(&self) -> bool {
        is_multicast(self.destination)
    }
}

/// Whether `address` is a group address: the I/G bit.
#[inline]
pub const fn is_multicast(address: [u8; 6]) -> bool {
    address[0] & 1 != 0
}

/// The address of every station.
pub const BROADCAST: [u8; 6] = [0xFF; 6];

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::hex;

    /// scapy 2.5.0: `Ether(dst='02:00:00:00:00:01',src='02:00:00:00:00:02')/IPv6()`, cut after 16 bytes.
    #[test]
    fn header_of_scapy() {
        let bytes = hex("020000000001 020000000002 86dd 6000");
        let (header, payload) = Header::parse(&bytes).unwrap();
        assert_eq!(*header, Header::new([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2], IPV6));
        assert!(!header.is_multicast());
        assert_eq!(payload, [0x60, 0x00]);
        for len in 0..Header::LEN {
            assert_eq!(Header::parse(&bytes[..len]), Err(Truncated));
        }
    }

    #[test]
    fn group_addresses() {
        assert!(is_multicast(BROADCAST));
        assert!(is_multicast([0x33, 0x33, 0, 0, 0, 1]));
        assert!(!is_multicast([0x52, 0x54, 0, 0xFF, 0xFF, 0xFF]));
    }

    proptest! {
        #[test]
        fn reads_what_it_wrote(destination: [u8; 6], source: [u8; 6], ethertype: u16) {
            let header = Header::new(destination, source, ethertype);
            let mut bytes = header.as_bytes().to_vec();
            prop_assert_eq!(Header::parse(&bytes).unwrap(), (&header, &[][..]));
            let (changed, _) = Header::parse_mut(&mut bytes).unwrap();
            changed.ethertype.set(!ethertype);
            prop_assert_eq!(&bytes[12..], (!ethertype).to_be_bytes());
        }
    }
}
