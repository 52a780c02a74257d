//! Checksums of ICMP messages: RFC 792, RFC 4443 section 2.3.

use underpass_packet::checksum::{Sum, of};
use underpass_packet::{ipv6, protocol};

/// Fills in the checksum of an ICMPv6 message.
pub(crate) fn fill_checksum6(header: &ipv6::Header, message: &mut [u8]) {
    let Some(field) = message.get_mut(2..4) else { return };
    field.fill(0);
    let sum = Sum::pseudo_ipv6(header.source, header.destination, protocol::ICMPV6, message.len() as u32);
    let checksum = sum.add_bytes(message).checksum();
    message[2..4].copy_from_slice(&checksum.to_be_bytes());
}

/// The same of an ICMP message.
pub(crate) fn fill_checksum4(message: &mut [u8]) {
    let Some(field) = message.get_mut(2..4) else { return };
    field.fill(0);
    let checksum = of(message);
    message[2..4].copy_from_slice(&checksum.to_be_bytes());
}
