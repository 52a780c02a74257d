//! Protocol numbers: IPv4's Protocol and IPv6's Next Header (IANA, one registry).

/// IPv6 hop-by-hop options, RFC 8200 section 4.3.
pub const HOP_BY_HOP: u8 = 0;
/// ICMP for IPv4, RFC 792.
pub const ICMP: u8 = 1;
/// IPv4 inside, RFC 2003.
pub const IPV4: u8 = 4;
/// TCP, RFC 9293.
pub const TCP: u8 = 6;
/// UDP, RFC 768.
pub const UDP: u8 = 17;
/// IPv6 inside, RFC 2473.
pub const IPV6: u8 = 41;
/// IPv6 routing header, RFC 8200 section 4.4.
pub const ROUTING: u8 = 43;
/// IPv6 fragment header, RFC 8200 section 4.5.
pub const FRAGMENT: u8 = 44;
/// GRE inside, RFC 2784.
pub const GRE: u8 = 47;
/// Encapsulating security payload, RFC 4303: what follows is encrypted.
pub const ESP: u8 = 50;
/// Authentication header, RFC 4302.
pub const AUTHENTICATION: u8 = 51;
/// ICMP for IPv6, RFC 4443.
pub const ICMPV6: u8 = 58;
/// Nothing follows, RFC 8200 section 4.7.
pub const NO_NEXT_HEADER: u8 = 59;
/// IPv6 destination options, RFC 8200 section 4.6.
pub const DESTINATION_OPTIONS: u8 = 60;
/// SCTP, RFC 9260.
pub const SCTP: u8 = 132;
/// UDP-Lite, RFC 3828.
pub const UDP_LITE: u8 = 136;
/// MPLS inside, RFC 4023.
pub const MPLS: u8 = 137;
/// An Ethernet frame inside, RFC 8986 section 10.1.
pub const ETHERNET: u8 = 143;
