//! IPv6, RFC 8200 section 3: the fixed header.
//!
//! ```text
//! |Version| Traffic Class |             Flow Label                |
//! |         Payload Length        |  Next Header  |   Hop Limit   |
//! |                      Source Address (16)                      |
//! |                   Destination Address (16)                    |
//! ```

use std::net::Ipv6Addr;

use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    network_endian::{U16, U32},
};

use crate::protocol;

/// Which rule of RFC 8200 section 3 the bytes break.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Malformed {
    /// Shorter than the header.
    Truncated,
    /// The version is not 6.
    Version,
    /// Shorter than the payload length.
    PayloadTruncated,
    /// Hop-by-hop options in a payload of length 0. A jumbogram's length stands in one (RFC 2675), and no buffer
    /// holds one of those.
    NoPayload,
}

/// The fixed header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Header {
    version_class_flow: U32,
    /// Length of what follows the header, extension headers included, in bytes.
    pub payload_length: U16,
    /// What follows the header, a number of [`crate::protocol`].
    pub next_header: u8,
    /// Hops that the packet may yet take.
    pub hop_limit: u8,
    /// Source address.
    pub source: [u8; 16],
    /// Destination address.
    pub destination: [u8; 16],
}

impl Header {
    /// Length in bytes.
    pub const LEN: usize = size_of::<Self>();

    /// Offset of the next header field, from the start of the header.
    pub const NEXT_HEADER_OFFSET: usize = 6;

    /// A header of traffic class 0 and flow label 0.
    #[inline]
    pub const fn new(
        source: Ipv6Addr,
        destination: Ipv6Addr,
        next_header: u8,
        hop_limit: u8,
        payload_length: u16,
    ) -> Self {
        Self {
            version_class_flow: U32::new(6 << 28),
            payload_length: U16::new(payload_length),
            next_header,
            hop_limit,
            source: source.octets(),
            destination: destination.octets(),
        }
    }

    /// IP version.
    #[inline]
    pub const fn version(&self) -> u8 {
        (self.version_class_flow.get() >> 28) as u8
    }

    /// Traffic class (RFC 2474): DSCP in the upper six bits, ECN in the lower two.
    #[inline]
    pub const fn traffic_class(&self) -> u8 {
        (self.version_class_flow.get() >> 20) as u8
    }

    /// Flow label, 20 bits.
    #[inline]
    pub const fn flow_label(&self) -> u32 {
        self.version_class_flow.get() & 0x000F_FFFF
    }

    /// Sets the traffic class.
    #[inline]
    pub fn set_traffic_class(&mut self, class: u8) {
        self.version_class_flow =
            (self.version_class_flow.get() & 0xF00F_FFFF | u32::from(class) << 20).into();
    }

    /// Sets the flow label; bits above its 20 are ignored.
    #[inline]
    pub fn set_flow_label(&mut self, label: u32) {
        self.version_class_flow = (self.version_class_flow.get() & 0xFFF0_0000 | label & 0x000F_FFFF).into();
    }

    /// Sets traffic class and flow label at once.
    #[inline]
    pub fn set_class_flow(&mut self, class: u8, label: u32) {
        self.version_class_flow = (6 << 28 | u32::from(class) << 20 | label & 0x000F_FFFF).into();
    }

    /// Source address.
    #[inline]
    pub const fn source(&self) -> Ipv6Addr {
        Ipv6Addr::from_octets(self.source)
    }

    /// Destination address.
    #[inline]
    pub const fn destination(&self) -> Ipv6Addr {
        Ipv6Addr::from_octets(self.destination)
    }

    /// Checks the version. The length of the payload.
    #[inline]
    fn payload_len(&self) -> Result<usize, Malformed> {
        if self.version() != 6 {
            return Err(Malformed::Version);
        }
        let len = self.payload_length.get() as usize;
        if len == 0 && self.next_header == protocol::HOP_BY_HOP {
            return Err(Malformed::NoPayload);
        }
        Ok(len)
    }
}

/// A packet that is as long as it says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct View<'a> {
    /// The fixed header.
    pub header: &'a Header,
    /// What follows it, to the payload length: link-layer padding is not part of it.
    pub payload: &'a [u8],
}

impl<'a> View<'a> {
    /// Reads the packet at the start of `bytes`. Extension headers are not looked at.
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
    /// The fixed header.
    pub header: &'a mut Header,
    /// What follows it, to the payload length.
    pub payload: &'a mut [u8],
}

impl<'a> ViewMut<'a> {
    /// Reads the packet at the start of `bytes`. Extension headers are not looked at.
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

/// The scope of groups that do not leave their link: RFC 4291 section 2.7.
pub const LINK_SCOPE: u8 = 2;

/// The scope of a group: RFC 4291 section 2.7. `None`: it is none.
pub const fn group_scope(address: Ipv6Addr) -> Option<u8> {
    match address.octets() {
        [0xff, second, ..] => Some(second & 0x0f),
        _ => None,
    }
}

/// The label of an address in the policy table of RFC 6724 section 2.1.
pub const fn policy_label(address: Ipv6Addr) -> u8 {
    match address.segments() {
        [0, 0, 0, 0, 0, 0xffff, ..] => 4,
        [0, 0, 0, 0, 0, 0, ..] => 3,
        [0x2002, ..] => 2,
        [0x2001, 0, ..] => 5,
        [0xfc00..=0xfdff, ..] => 13,
        [0xfec0..=0xfeff, ..] => 11,
        [0x3ffe, ..] => 12,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::hex;

    /// scapy 2.5.0: `IPv6(src='2001:db8::1',dst='2001:db8::2',tc=0xb8,fl=0xabcde,hlim=17)/
    /// UDP(sport=4096,dport=53)/b'abc'`
    const PACKET: &str = "6b8abcde000b1111 20010db8000000000000000000000001 20010db8000000000000000000000002
        10000035000bcfcb 616263";

    #[test]
    fn packet_of_scapy() {
        let padded = [&hex(PACKET)[..], &[0; 9]].concat();
        let View { header, payload } = View::parse(&padded).unwrap();
        assert_eq!((header.version(), header.traffic_class(), header.flow_label()), (6, 0xb8, 0xabcde));
        assert_eq!(
            (header.payload_length.get(), header.next_header, header.hop_limit),
            (11, protocol::UDP, 17)
        );
        assert_eq!(header.source(), "2001:db8::1".parse::<Ipv6Addr>().unwrap());
        assert_eq!(header.destination(), "2001:db8::2".parse::<Ipv6Addr>().unwrap());
        assert_eq!(payload.len(), 11);
    }

    #[test]
    fn every_truncation() {
        let bytes = hex(PACKET);
        for len in 0..bytes.len() {
            let fault = if len < 40 { Malformed::Truncated } else { Malformed::PayloadTruncated };
            assert_eq!(View::parse(&bytes[..len]), Err(fault), "{len}");
            assert_eq!(ViewMut::parse(&mut bytes[..len].to_vec()), Err(fault), "{len}");
        }
    }

    #[test]
    fn other_versions() {
        for version in (0..16).filter(|v| *v != 6) {
            let mut bytes = hex(PACKET);
            bytes[0] = version << 4 | 0x0B;
            assert_eq!(View::parse(&bytes), Err(Malformed::Version));
        }
    }

    /// RFC 2675 section 3: with hop-by-hop options, 0 says that one of them has the length.
    #[test]
    fn payload_length_of_0() {
        let mut bytes = hex(PACKET);
        bytes[4..6].fill(0);
        assert_eq!(View::parse(&bytes).map(|v| v.payload.len()), Ok(0));
        bytes[6] = protocol::HOP_BY_HOP;
        assert_eq!(View::parse(&bytes), Err(Malformed::NoPayload));
    }

    proptest! {
        #[test]
        fn reads_what_it_wrote(
            source: Ipv6Addr, destination: Ipv6Addr, next_header in 1..=255_u8, hop_limit: u8, class: u8,
            label in 0..1_u32 << 20, payload: Vec<u8>, padding in 0..20_usize,
        ) {
            let mut header = Header::new(source, destination, next_header, hop_limit, payload.len() as u16);
            header.set_class_flow(class, label);
            let mut bytes = [header.as_bytes(), &payload, &vec![0xEE; padding]].concat();
            let view = View::parse(&bytes).unwrap();
            prop_assert_eq!(view, View { header: &header, payload: &payload });
            prop_assert_eq!((view.header.source(), view.header.destination()), (source, destination));
            prop_assert_eq!((view.header.version(), view.header.traffic_class()), (6, class));
            prop_assert_eq!(view.header.flow_label(), label);
            let view = ViewMut::parse(&mut bytes).unwrap();
            prop_assert_eq!((&*view.header, &*view.payload), (&header, &payload[..]));
        }

        /// Each setter changes its own bits alone.
        #[test]
        fn setters_keep_to_their_bits(before: (u8, u32), after: (u8, u32)) {
            let mut header = Header::new(Ipv6Addr::UNSPECIFIED, Ipv6Addr::UNSPECIFIED, 0, 0, 0);
            header.set_class_flow(before.0, before.1);
            header.set_flow_label(after.1);
            prop_assert_eq!((header.traffic_class(), header.flow_label()), (before.0, after.1 & 0xF_FFFF));
            header.set_traffic_class(after.0);
            prop_assert_eq!((header.traffic_class(), header.flow_label()), (after.0, after.1 & 0xF_FFFF));
            prop_assert_eq!(header.version(), 6);
        }
    }
}
