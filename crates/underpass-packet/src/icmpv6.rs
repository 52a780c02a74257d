//! ICMP for IPv6, RFC 4443. Neighbour discovery has its own file, [`crate::ndisc`].
//!
//! ```text
//! |     Type      |     Code      |           Checksum            |
//! |    identifier and sequence number, MTU, pointer or none (4)   |
//! |    data: of an echo, or the packet that an error is about     |
//! ```

use std::net::Ipv6Addr;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, network_endian::U16};

use crate::{checksum::Sum, protocol};

/// Type: destination unreachable.
pub const UNREACHABLE: u8 = 1;
/// Type: packet too big.
pub const PACKET_TOO_BIG: u8 = 2;
/// Type: time exceeded.
pub const TIME_EXCEEDED: u8 = 3;
/// Type: parameter problem.
pub const PARAMETER_PROBLEM: u8 = 4;
/// Type: echo request.
pub const ECHO_REQUEST: u8 = 128;
/// Type: echo reply.
pub const ECHO_REPLY: u8 = 129;
/// Type: redirect, RFC 4861.
pub const REDIRECT: u8 = 137;

/// Code of an unreachable: no route.
pub const NO_ROUTE: u8 = 0;
/// Code of an unreachable: administratively prohibited.
pub const PROHIBITED: u8 = 1;
/// Code of an unreachable: beyond the scope of the source address.
pub const BEYOND_SCOPE: u8 = 2;
/// Code of an unreachable: the address does not answer.
pub const ADDRESS_UNREACHABLE: u8 = 3;
/// Code of an unreachable: no such port.
pub const PORT_UNREACHABLE: u8 = 4;
/// Code of an unreachable: the source address is refused by policy.
pub const SOURCE_POLICY: u8 = 5;
/// Code of an unreachable: a reject route.
pub const REJECT_ROUTE: u8 = 6;
/// Code of a time exceeded: the hop limit ran out.
pub const HOP_LIMIT_EXCEEDED: u8 = 0;
/// Code of a time exceeded: not all fragments came in time.
pub const REASSEMBLY_EXCEEDED: u8 = 1;
/// Code of a parameter problem: a field has a wrong value.
pub const ERRONEOUS_FIELD: u8 = 0;
/// Code of a parameter problem: the next header is not known.
pub const UNKNOWN_NEXT_HEADER: u8 = 1;
/// Code of a parameter problem: an option is not known.
pub const UNKNOWN_OPTION: u8 = 2;
/// Code of a parameter problem: an SRv6 upper-layer header error, RFC 8986 section 4.1.1.
pub const SR_UPPER_LAYER: u8 = 4;

/// Longest error message, its IPv6 header included, in bytes: RFC 4443 section 2.4 (c).
pub const MAX_ERROR: usize = 1280;

/// Shorter than the header.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Truncated;

/// What a message says, its data and checksum aside.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Message {
    /// Could not be delivered.
    Unreachable {
        /// Why: [`NO_ROUTE`] …
        code: u8,
    },
    /// Longer than the next link takes.
    PacketTooBig {
        /// Its MTU, in bytes.
        mtu: u32,
    },
    /// Was too long on its way.
    TimeExceeded {
        /// [`HOP_LIMIT_EXCEEDED`] or [`REASSEMBLY_EXCEEDED`].
        code: u8,
    },
    /// Its headers are wrong.
    ParameterProblem {
        /// Why: [`ERRONEOUS_FIELD`] …
        code: u8,
        /// Offset of the wrong byte in the packet.
        pointer: u32,
    },
    /// Asks for an echo reply.
    EchoRequest {
        /// Names the sender's process.
        identifier: u16,
        /// Counts its requests.
        sequence: u16,
    },
    /// The answer to an echo request.
    EchoReply {
        /// Names the sender's process.
        identifier: u16,
        /// Counts its requests.
        sequence: u16,
    },
    /// A type not listed here.
    Other {
        /// The type.
        kind: u8,
        /// The code.
        code: u8,
        /// The four bytes after the checksum.
        rest: [u8; 4],
    },
}

/// The header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Header {
    /// Type.
    pub kind: u8,
    /// Code, whose meaning depends on the type.
    pub code: u8,
    /// Checksum of pseudo header, header and data.
    pub checksum: U16,
    rest: [u8; 4],
}

impl Header {
    /// Length in bytes.
    pub const LEN: usize = size_of::<Self>();

    /// A header that says `message`, its checksum yet to be filled.
    pub const fn new(message: Message) -> Self {
        let (kind, code, rest) = match message {
            Message::Unreachable { code } => (UNREACHABLE, code, [0; 4]),
            Message::PacketTooBig { mtu } => (PACKET_TOO_BIG, 0, mtu.to_be_bytes()),
            Message::TimeExceeded { code } => (TIME_EXCEEDED, code, [0; 4]),
            Message::ParameterProblem { code, pointer } => (PARAMETER_PROBLEM, code, pointer.to_be_bytes()),
            Message::EchoRequest { identifier, sequence } => (ECHO_REQUEST, 0, words(identifier, sequence)),
            Message::EchoReply { identifier, sequence } => (ECHO_REPLY, 0, words(identifier, sequence)),
            Message::Other { kind, code, rest } => (kind, code, rest),
        };
        Self { kind, code, checksum: U16::ZERO, rest }
    }

    /// Reads the header at the start of `bytes`, and lends its data. The checksum is not looked at.
    ///
    /// # Errors
    /// [`Truncated`].
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<(&Self, &[u8]), Truncated> {
        Self::ref_from_prefix(bytes).map_err(|_| Truncated)
    }

    /// [`Header::parse`], to be changed.
    ///
    /// # Errors
    /// [`Truncated`].
    #[inline]
    pub fn parse_mut(bytes: &mut [u8]) -> Result<(&mut Self, &mut [u8]), Truncated> {
        Self::mut_from_prefix(bytes).map_err(|_| Truncated)
    }

    /// What the message says.
    pub const fn message(&self) -> Message {
        let Self { kind, code, rest, .. } = *self;
        let [a, b, c, d] = rest;
        let (first, second) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
        match kind {
            UNREACHABLE => Message::Unreachable { code },
            PACKET_TOO_BIG => Message::PacketTooBig { mtu: u32::from_be_bytes(rest) },
            TIME_EXCEEDED => Message::TimeExceeded { code },
            PARAMETER_PROBLEM => Message::ParameterProblem { code, pointer: u32::from_be_bytes(rest) },
            ECHO_REQUEST => Message::EchoRequest { identifier: first, sequence: second },
            ECHO_REPLY => Message::EchoReply { identifier: first, sequence: second },
            _ => Message::Other { kind, code, rest },
        }
    }

    /// Whether the message is an error about another packet, so that none may be sent about it
    /// (RFC 4443 section 2.4 (e)): errors have the types below 128. A redirect counts as one.
    #[inline]
    pub const fn is_error(&self) -> bool {
        self.kind < 128 || self.kind == REDIRECT
    }

    /// Whether the checksum is right for a message from `source` to `destination`.
    #[inline]
    pub fn checksum_valid(&self, source: Ipv6Addr, destination: Ipv6Addr, data: &[u8]) -> bool {
        self.sum(source, destination, data).fold() == 0xFFFF
    }

    /// Makes the checksum right for a message from `source` to `destination`.
    #[inline]
    pub fn fill_checksum(&mut self, source: Ipv6Addr, destination: Ipv6Addr, data: &[u8]) {
        self.checksum = U16::ZERO;
        self.checksum.set(self.sum(source, destination, data).checksum());
    }

    #[inline]
    fn sum(&self, source: Ipv6Addr, destination: Ipv6Addr, data: &[u8]) -> Sum {
        let len = (Self::LEN + data.len()) as u32;
        Sum::pseudo_ipv6(source.octets(), destination.octets(), protocol::ICMPV6, len)
            .add_bytes(self.as_bytes())
            .add_bytes(data)
    }
}

const fn words(first: u16, second: u16) -> [u8; 4] {
    ((first as u32) << 16 | second as u32).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::hex;

    #[test]
    fn messages_of_scapy() {
        let (source, destination) = ("2001:db8::1".parse().unwrap(), "2001:db8::2".parse().unwrap());
        for (text, message) in [
            // scapy 2.5.0, behind `IPv6(src='2001:db8::1',dst='2001:db8::2')`:
            // `ICMPv6EchoRequest(id=0x1234,seq=7,data=b'ping')`
            ("8000333812340007 70696e67", Message::EchoRequest { identifier: 0x1234, sequence: 7 }),
            // `ICMPv6PacketTooBig(mtu=1400)/b'quoted'`
            ("0200567c00000578 71756f746564", Message::PacketTooBig { mtu: 1400 }),
            // `ICMPv6ParamProblem(code=0,ptr=40)/b'quoted'`
            (
                "040059cc00000028 71756f746564",
                Message::ParameterProblem { code: ERRONEOUS_FIELD, pointer: 40 },
            ),
            // `ICMPv6TimeExceeded()/b'quoted'`
            ("03005af400000000 71756f746564", Message::TimeExceeded { code: HOP_LIMIT_EXCEEDED }),
        ] {
            let mut bytes = hex(text);
            let (header, data) = Header::parse(&bytes).unwrap();
            assert_eq!(header.message(), message);
            assert!(header.checksum_valid(source, destination, data));
            assert!(!header.checksum_valid(source, Ipv6Addr::LOCALHOST, data));
            let (header, data) = Header::parse_mut(&mut bytes).unwrap();
            *header = Header::new(message);
            header.fill_checksum(source, destination, data);
            assert_eq!(bytes, hex(text));
            for len in 0..Header::LEN {
                assert_eq!(Header::parse(&bytes[..len]), Err(Truncated));
            }
        }
    }

    fn any_message() -> impl Strategy<Value = Message> {
        prop_oneof![
            any::<u8>().prop_map(|code| Message::Unreachable { code }),
            any::<u32>().prop_map(|mtu| Message::PacketTooBig { mtu }),
            any::<u8>().prop_map(|code| Message::TimeExceeded { code }),
            any::<(u8, u32)>().prop_map(|(code, pointer)| Message::ParameterProblem { code, pointer }),
            any::<(u16, u16)>()
                .prop_map(|(identifier, sequence)| Message::EchoRequest { identifier, sequence }),
            any::<(u16, u16)>()
                .prop_map(|(identifier, sequence)| Message::EchoReply { identifier, sequence }),
            (130..=255_u8, any::<u8>(), any::<[u8; 4]>()).prop_map(|(kind, code, rest)| Message::Other {
                kind,
                code,
                rest
            }),
        ]
    }

    proptest! {
        #[test]
        fn reads_what_it_wrote(message in any_message(), ends: (Ipv6Addr, Ipv6Addr), data: Vec<u8>) {
            let mut header = Header::new(message);
            header.fill_checksum(ends.0, ends.1, &data);
            let bytes = [header.as_bytes(), &data].concat();
            let (read, rest) = Header::parse(&bytes).unwrap();
            prop_assert_eq!((read.message(), rest), (message, &data[..]));
            prop_assert!(read.checksum_valid(ends.0, ends.1, rest));
        }
    }

    #[test]
    fn errors_are_told_from_information() {
        for (kind, is_error) in [(1, true), (4, true), (127, true), (128, false), (135, false), (137, true)] {
            assert_eq!(
                Header::new(Message::Other { kind, code: 0, rest: [0; 4] }).is_error(),
                is_error,
                "{kind}"
            );
        }
    }
}
