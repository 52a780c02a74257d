//! ARP for IPv4 over Ethernet, RFC 826.
//!
//! ```text
//! |     Hardware Type (1)         |     Protocol Type (0x0800)    |
//! | Hw length (6) | Pr length (4) |           Operation           |
//! |        Sender hardware address (6), protocol address (4)      |
//! |        Target hardware address (6), protocol address (4)      |
//! ```

use std::net::Ipv4Addr;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, network_endian::U16};

use crate::ethernet;

/// Operation: who has the target protocol address?
pub const REQUEST: u16 = 1;
/// Operation: the sender has.
pub const REPLY: u16 = 2;
/// Operation of RARP: who has the target hardware address?
pub const REVERSE_REQUEST: u16 = 3;
/// Operation of RARP: what has it.
pub const REVERSE_REPLY: u16 = 4;

const HARDWARE_ETHERNET: u16 = 1;

/// What is wrong with the bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Malformed {
    /// Shorter than an ARP packet of IPv4 over Ethernet.
    Truncated,
    /// Not Ethernet addresses of 6 bytes.
    Hardware,
    /// Not IPv4 addresses of 4 bytes.
    Protocol,
}

/// An ARP packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Packet {
    hardware_type: U16,
    protocol_type: U16,
    hardware_len: u8,
    protocol_len: u8,
    /// [`REQUEST`], [`REPLY`] …
    pub operation: U16,
    /// MAC address of the sender.
    pub sender_mac: [u8; 6],
    /// IPv4 address of the sender; all zero in a probe (RFC 5227).
    pub sender: [u8; 4],
    /// MAC address of the target; not known in a request.
    pub target_mac: [u8; 6],
    /// IPv4 address of the target.
    pub target: [u8; 4],
}

impl Packet {
    /// Length in bytes.
    pub const LEN: usize = size_of::<Self>();

    /// A packet of this operation.
    pub const fn new(
        operation: u16,
        (sender_mac, sender): ([u8; 6], Ipv4Addr),
        (target_mac, target): ([u8; 6], Ipv4Addr),
    ) -> Self {
        Self {
            hardware_type: U16::new(HARDWARE_ETHERNET),
            protocol_type: U16::new(ethernet::IPV4),
            hardware_len: 6,
            protocol_len: 4,
            operation: U16::new(operation),
            sender_mac,
            sender: sender.octets(),
            target_mac,
            target: target.octets(),
        }
    }

    /// Reads the packet at the start of `bytes`, which may go on after it.
    ///
    /// # Errors
    /// See [`Malformed`].
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<&Self, Malformed> {
        let (packet, _) = Self::ref_from_prefix(bytes).map_err(|_| Malformed::Truncated)?;
        packet.check()?;
        Ok(packet)
    }

    /// [`Packet::parse`] of a packet whatever hardware it names, if that has addresses of 6 bytes.
    ///
    /// # Errors
    /// See [`Malformed`].
    pub fn parse_of_any_hardware(bytes: &[u8]) -> Result<&Self, Malformed> {
        let (packet, _) = Self::ref_from_prefix(bytes).map_err(|_| Malformed::Truncated)?;
        packet.check_lengths()?;
        Ok(packet)
    }

    /// [`Packet::parse`], to be changed.
    ///
    /// # Errors
    /// See [`Malformed`].
    #[inline]
    pub fn parse_mut(bytes: &mut [u8]) -> Result<&mut Self, Malformed> {
        let (packet, _) = Self::mut_from_prefix(bytes).map_err(|_| Malformed::Truncated)?;
        packet.check()?;
        Ok(packet)
    }

    fn check(&self) -> Result<(), Malformed> {
        if self.hardware_type.get() != HARDWARE_ETHERNET {
            return Err(Malformed::Hardware);
        }
        self.check_lengths()
    }

    fn check_lengths(&self) -> Result<(), Malformed> {
        if self.hardware_len != 6 {
            return Err(Malformed::Hardware);
        }
        if self.protocol_type.get() != ethernet::IPV4 || self.protocol_len != 4 {
            return Err(Malformed::Protocol);
        }
        Ok(())
    }

    /// IPv4 address of the sender.
    pub const fn sender(&self) -> Ipv4Addr {
        Ipv4Addr::from_octets(self.sender)
    }

    /// IPv4 address of the target.
    pub const fn target(&self) -> Ipv4Addr {
        Ipv4Addr::from_octets(self.target)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::hex;

    /// scapy 2.5.0: `ARP(op='who-has',hwsrc='02:00:00:00:00:01',psrc='192.0.2.1',pdst='192.0.2.2')`
    #[test]
    fn request_of_scapy() {
        let bytes = hex("0001080006040001 020000000001 c0000201 000000000000 c0000202");
        let sender = ([2, 0, 0, 0, 0, 1], Ipv4Addr::new(192, 0, 2, 1));
        let target = ([0; 6], Ipv4Addr::new(192, 0, 2, 2));
        let packet = Packet::parse(&bytes).unwrap();
        assert_eq!(*packet, Packet::new(REQUEST, sender, target));
        assert_eq!((packet.sender(), packet.target()), (sender.1, target.1));
        for len in 0..Packet::LEN {
            assert_eq!(Packet::parse(&bytes[..len]), Err(Malformed::Truncated));
        }
    }

    #[test]
    fn other_address_families() {
        let bytes = hex("0001080006040001 020000000001 c0000201 000000000000 c0000202");
        for (at, fault) in [
            (0, Malformed::Hardware),
            (1, Malformed::Hardware),
            (2, Malformed::Protocol),
            (3, Malformed::Protocol),
            (4, Malformed::Hardware),
            (5, Malformed::Protocol),
        ] {
            let mut bytes = bytes.clone();
            bytes[at] ^= 1;
            assert_eq!(Packet::parse(&bytes), Err(fault), "byte {at}");
            assert_eq!(Packet::parse_mut(&mut bytes), Err(fault), "byte {at}");
            let of_any = Packet::parse_of_any_hardware(&bytes).map(|packet| packet.target());
            let target = Ipv4Addr::new(192, 0, 2, 2);
            assert_eq!(of_any, if at < 2 { Ok(target) } else { Err(fault) }, "byte {at}");
        }
    }

    proptest! {
        #[test]
        fn reads_what_it_wrote(operation: u16, sender: ([u8; 6], Ipv4Addr), target: ([u8; 6], Ipv4Addr)) {
            let packet = Packet::new(operation, sender, target);
            let mut bytes = packet.as_bytes().to_vec();
            bytes.extend([0; 18]); // Padding to the shortest Ethernet frame.
            prop_assert_eq!(Packet::parse(&bytes), Ok(&packet));
            let read = Packet::parse_mut(&mut bytes).unwrap();
            prop_assert_eq!((read.sender_mac, read.sender()), sender);
            prop_assert_eq!((read.target_mac, read.target()), target);
        }
    }
}
