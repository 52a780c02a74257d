//! ICMP for IPv4, RFC 792.
//!
//! ```text
//! |     Type      |     Code      |           Checksum            |
//! |  identifier and sequence number, MTU, pointer or gateway (4)  |
//! |  data: of an echo, or the packet that an error is about       |
//! ```

use std::net::Ipv4Addr;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, network_endian::U16};

use crate::checksum::Sum;

/// Type: echo reply.
pub const ECHO_REPLY: u8 = 0;
/// Type: destination unreachable.
pub const UNREACHABLE: u8 = 3;
/// Type: redirect.
pub const REDIRECT: u8 = 5;
/// Type: echo request.
pub const ECHO_REQUEST: u8 = 8;
/// Type: time exceeded.
pub const TIME_EXCEEDED: u8 = 11;
/// Type: parameter problem.
pub const PARAMETER_PROBLEM: u8 = 12;

/// Code of an unreachable: no route to the network.
pub const NET_UNREACHABLE: u8 = 0;
/// Code of an unreachable: the host does not answer.
pub const HOST_UNREACHABLE: u8 = 1;
/// Code of an unreachable: no such protocol.
pub const PROTOCOL_UNREACHABLE: u8 = 2;
/// Code of an unreachable: no such port.
pub const PORT_UNREACHABLE: u8 = 3;
/// Code of an unreachable: too long for the next link, and not to be fragmented.
pub const FRAGMENTATION_NEEDED: u8 = 4;
/// Code of an unreachable: administratively prohibited, RFC 1812 section 5.2.7.1.
pub const PROHIBITED: u8 = 13;
/// Code of a time exceeded: the time to live ran out.
pub const TTL_EXCEEDED: u8 = 0;
/// Code of a time exceeded: not all fragments came in time.
pub const REASSEMBLY_EXCEEDED: u8 = 1;

/// Shorter than the header.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Truncated;

/// What a message says, its data and checksum aside.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Message {
    /// The answer to an echo request.
    EchoReply {
        /// Names the sender's process.
        identifier: u16,
        /// Counts its requests.
        sequence: u16,
    },
    /// Asks for an echo reply.
    EchoRequest {
        /// Names the sender's process.
        identifier: u16,
        /// Counts its requests.
        sequence: u16,
    },
    /// Could not be delivered.
    Unreachable {
        /// Why: [`NET_UNREACHABLE`] …
        code: u8,
        /// With [`FRAGMENTATION_NEEDED`], the MTU of the next link in bytes (RFC 1191); else 0.
        mtu: u16,
    },
    /// Use another gateway.
    Redirect {
        /// For which packets.
        code: u8,
        /// Which one.
        gateway: Ipv4Addr,
    },
    /// Was too long on its way.
    TimeExceeded {
        /// [`TTL_EXCEEDED`] or [`REASSEMBLY_EXCEEDED`].
        code: u8,
    },
    /// Its header is wrong.
    ParameterProblem {
        /// 0: at the pointer.
        code: u8,
        /// Offset of the wrong byte in the packet.
        pointer: u8,
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
    /// Checksum of header and data.
    pub checksum: U16,
    rest: [u8; 4],
}

impl Header {
    /// Length in bytes.
    pub const LEN: usize = size_of::<Self>();

    /// A header that says `message`, its checksum yet to be filled.
    pub const fn new(message: Message) -> Self {
        let (kind, code, rest) = match message {
            Message::EchoReply { identifier, sequence } => (ECHO_REPLY, 0, words(identifier, sequence)),
            Message::EchoRequest { identifier, sequence } => (ECHO_REQUEST, 0, words(identifier, sequence)),
            Message::Unreachable { code, mtu } => (UNREACHABLE, code, words(0, mtu)),
            Message::Redirect { code, gateway } => (REDIRECT, code, gateway.octets()),
            Message::TimeExceeded { code } => (TIME_EXCEEDED, code, [0; 4]),
            Message::ParameterProblem { code, pointer } => (PARAMETER_PROBLEM, code, [pointer, 0, 0, 0]),
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
            ECHO_REPLY => Message::EchoReply { identifier: first, sequence: second },
            ECHO_REQUEST => Message::EchoRequest { identifier: first, sequence: second },
            UNREACHABLE => Message::Unreachable { code, mtu: second },
            REDIRECT => Message::Redirect { code, gateway: Ipv4Addr::from_octets(rest) },
            TIME_EXCEEDED => Message::TimeExceeded { code },
            PARAMETER_PROBLEM => Message::ParameterProblem { code, pointer: a },
            _ => Message::Other { kind, code, rest },
        }
    }

    /// Whether the message is an error about another packet, so that none may be sent about it:
    /// RFC 1122 section 3.2.2. A type that is not known counts as one.
    #[inline]
    pub const fn is_error(&self) -> bool {
        // Echo, router discovery, timestamp, information, address mask: the queries and their replies.
        !matches!(self.kind, ECHO_REPLY | ECHO_REQUEST | 9 | 10 | 13..=18)
    }

    /// Whether the checksum is right.
    #[inline]
    pub fn checksum_valid(&self, data: &[u8]) -> bool {
        Sum::new().add_bytes(self.as_bytes()).add_bytes(data).fold() == 0xFFFF
    }

    /// Makes the checksum right.
    #[inline]
    pub fn fill_checksum(&mut self, data: &[u8]) {
        self.checksum = U16::ZERO;
        self.checksum.set(Sum::new().add_bytes(self.as_bytes()).add_bytes(data).checksum());
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
        for (text, message) in [
            // scapy 2.5.0: `ICMP(type='echo-request',id=0x1234,seq=7)/b'ping'`
            ("080006f412340007 70696e67", Message::EchoRequest { identifier: 0x1234, sequence: 7 }),
            // `ICMP(type='dest-unreach',code='fragmentation-needed',nexthopmtu=1400)/b'quoted'`
            ("0304b13500000578 71756f746564", Message::Unreachable { code: FRAGMENTATION_NEEDED, mtu: 1400 }),
            // `ICMP(type='parameter-problem',ptr=20)/b'quoted'`
            ("0c0099b114000000 71756f746564", Message::ParameterProblem { code: 0, pointer: 20 }),
            // `ICMP(type='redirect',code=1,gw='192.0.2.9')/b'quoted'`
            (
                "0501f2a6c0000209 71756f746564",
                Message::Redirect { code: 1, gateway: Ipv4Addr::new(192, 0, 2, 9) },
            ),
        ] {
            let mut bytes = hex(text);
            let (header, data) = Header::parse(&bytes).unwrap();
            assert_eq!(header.message(), message);
            assert!(header.checksum_valid(data));
            let (header, data) = Header::parse_mut(&mut bytes).unwrap();
            *header = Header::new(message);
            header.fill_checksum(data);
            assert_eq!(bytes, hex(text));
            for len in 0..Header::LEN {
                assert_eq!(Header::parse(&bytes[..len]), Err(Truncated));
            }
        }
    }

    fn any_message() -> impl Strategy<Value = Message> {
        prop_oneof![
            any::<(u16, u16)>()
                .prop_map(|(identifier, sequence)| Message::EchoReply { identifier, sequence }),
            any::<(u16, u16)>()
                .prop_map(|(identifier, sequence)| Message::EchoRequest { identifier, sequence }),
            any::<(u8, u16)>().prop_map(|(code, mtu)| Message::Unreachable { code, mtu }),
            any::<(u8, Ipv4Addr)>().prop_map(|(code, gateway)| Message::Redirect { code, gateway }),
            any::<u8>().prop_map(|code| Message::TimeExceeded { code }),
            any::<(u8, u8)>().prop_map(|(code, pointer)| Message::ParameterProblem { code, pointer }),
            (13..=255_u8, any::<u8>(), any::<[u8; 4]>()).prop_map(|(kind, code, rest)| Message::Other {
                kind,
                code,
                rest
            }),
        ]
    }

    proptest! {
        #[test]
        fn reads_what_it_wrote(message in any_message(), data: Vec<u8>) {
            let mut header = Header::new(message);
            header.fill_checksum(&data);
            let bytes = [header.as_bytes(), &data].concat();
            let (read, rest) = Header::parse(&bytes).unwrap();
            prop_assert_eq!((read.message(), rest), (message, &data[..]));
            prop_assert!(read.checksum_valid(rest));
        }
    }

    /// RFC 792 and RFC 1122 section 3.2.2: the errors are 3, 4, 5, 11 and 12.
    #[test]
    fn errors_are_told_from_queries() {
        for (kind, is_error) in [
            (0, false),
            (3, true),
            (4, true),
            (5, true),
            (8, false),
            (11, true),
            (12, true),
            (13, false),
            (17, false),
        ] {
            assert_eq!(
                Header::new(Message::Other { kind, code: 0, rest: [0; 4] }).is_error(),
                is_error,
                "{kind}"
            );
        }
    }
}
