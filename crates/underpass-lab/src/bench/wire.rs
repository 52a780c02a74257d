//! The bytes of packets, written out field by field: what the scenarios send and what they expect.
//!
//! Nothing of the engine is used here, so that its result is compared with something else than itself.

use std::net::{Ipv4Addr, Ipv6Addr};

use hmac::{Hmac, KeyInit, Mac as _};
use sha2::Sha256;

/// An Ethernet address.
pub type Mac = [u8; 6];

/// Next header and protocol numbers.
pub const HOP_BY_HOP: u8 = 0;
pub const IPV4: u8 = 4;
pub const UDP: u8 = 17;
pub const IPV6: u8 = 41;
pub const ROUTING: u8 = 43;
pub const ETHERNET: u8 = 143;

/// The first `length` bytes of an Ethernet frame's 14, and what follows.
pub fn ethernet(destination: Mac, source: Mac, payload: &[u8]) -> Vec<u8> {
    // By the version of the packet inside: 6 or 4.
    let ether_type: [u8; 2] =
        if payload.first().is_some_and(|b| b >> 4 == 4) { [0x08, 0] } else { [0x86, 0xdd] };
    frame(destination, source, ether_type, payload)
}

/// An Ethernet frame of any type.
pub fn frame(destination: Mac, source: Mac, ether_type: [u8; 2], payload: &[u8]) -> Vec<u8> {
    [&destination[..], &source, &ether_type, payload].concat()
}

/// The frame of a VLAN with an IPv4 packet: IEEE 802.1Q.
pub fn tagged(destination: Mac, source: Mac, id: u16, packet: &[u8]) -> Vec<u8> {
    frame(destination, source, [0x81, 0], &[&id.to_be_bytes()[..], &[0x08, 0], packet].concat())
}

/// RFC 3032 section 2.1: a stack of labels, the outermost first, each with this TTL, and what is below it.
pub fn mpls(labels: &[u32], ttl: u8, payload: &[u8]) -> Vec<u8> {
    let last = labels.len().saturating_sub(1);
    let entries = labels.iter().enumerate().flat_map(|(index, label)| {
        (label << 12 | u32::from(index == last) << 8 | u32::from(ttl)).to_be_bytes()
    });
    entries.chain(payload.iter().copied()).collect()
}

/// The fields of an IPv6 header that scenarios set.
#[derive(Clone, Copy)]
pub struct Ip6 {
    pub source: Ipv6Addr,
    pub destination: Ipv6Addr,
    pub class: u8,
    pub label: u32,
    pub hop_limit: u8,
}

/// RFC 8200 section 3.
pub fn ipv6(header: Ip6, next: u8, payload: &[u8]) -> Vec<u8> {
    let first = 6 << 28 | u32::from(header.class) << 20 | header.label;
    let length = payload.len() as u16;
    [
        &first.to_be_bytes()[..],
        &length.to_be_bytes(),
        &[next, header.hop_limit],
        &header.source.octets(),
        &header.destination.octets(),
        payload,
    ]
    .concat()
}

/// The fields of an IPv4 header that scenarios set.
#[derive(Clone, Copy)]
pub struct Ip4 {
    pub source: Ipv4Addr,
    pub destination: Ipv4Addr,
    pub identification: u16,
    pub ttl: u8,
}

/// RFC 791 section 3.1, without options, DF set.
pub fn ipv4(header: Ip4, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let length = 20 + payload.len() as u16;
    let mut bytes = [
        &[0x45, 0][..],
        &length.to_be_bytes(),
        &header.identification.to_be_bytes(),
        &[0x40, 0, header.ttl, protocol, 0, 0],
        &header.source.octets(),
        &header.destination.octets(),
    ]
    .concat();
    let checksum = !sum(&bytes, 0);
    bytes.splice(10..12, checksum.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// RFC 768, with the checksum over a pseudo-header of these addresses (RFC 8200 section 8.1).
pub fn udp(source: &[u8], destination: &[u8], ports: (u16, u16), payload: &[u8]) -> Vec<u8> {
    let length = 8 + payload.len() as u16;
    let mut bytes =
        [&ports.0.to_be_bytes()[..], &ports.1.to_be_bytes(), &length.to_be_bytes(), &[0, 0], payload]
            .concat();
    let pseudo = [source, destination, &length.to_be_bytes(), &[0, UDP]].concat();
    let checksum = match !sum(&bytes, sum(&pseudo, 0)) {
        0 => 0xffff,
        checksum => checksum,
    };
    bytes.splice(6..8, checksum.to_be_bytes());
    bytes
}

/// RFC 8754 section 2: `segments` in the order in which they are visited, of which `left` are to come.
pub fn srh(segments: &[Ipv6Addr], left: u8, next: u8, payload: &[u8]) -> Vec<u8> {
    let count = segments.len() as u8;
    let mut bytes = vec![next, 2 * count, 4, left, count.wrapping_sub(1), 0, 0, 0];
    for segment in segments.iter().rev() {
        bytes.extend(segment.octets());
    }
    bytes.extend(payload);
    bytes
}

/// A key of HMACs, its hash SHA-256.
#[derive(Clone, Copy)]
pub struct Key {
    pub id: u32,
    pub secret: &'static str,
}

/// RFC 8754 section 2.1.2: a routing header as [`srh`] makes it, with an HMAC in it, in a packet from `source`.
pub fn sealed_srh(
    segments: &[Ipv6Addr],
    left: u8,
    next: u8,
    key: Key,
    source: Ipv6Addr,
    payload: &[u8],
) -> Vec<u8> {
    const FLAG: u8 = 8;
    let mut header = srh(segments, left, next, &[]);
    // Five times 8 bytes more: the type of the TLV, its length, a bit and 15 reserved ones, the key id, the digest.
    header.splice(1..2, [2 * segments.len() as u8 + 5]);
    header.splice(5..6, [FLAG]);
    let id = key.id.to_be_bytes();
    // Section 2.1.2.1: the source, Last Entry, the flags, the key id, the segments as they are listed.
    let text = [&source.octets()[..], &header[4..6], &id, &header[8..]].concat();
    // A secret is at most a block of the hash long, which any HMAC takes.
    let digest = Hmac::<Sha256>::new_from_slice(key.secret.as_bytes())
        .map(|mac| mac.chain_update(&text).finalize().into_bytes());
    header.extend([5, 38, 0, 0].into_iter().chain(id).chain(digest.unwrap_or_default()));
    header.extend(payload);
    header
}

/// The sum of RFC 1071 over 16-bit words, carries folded in.
pub fn sum(bytes: &[u8], start: u16) -> u16 {
    let mut total = u32::from(start);
    for pair in bytes.chunks(2) {
        total += u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
    }
    while total > 0xffff {
        total = (total & 0xffff) + (total >> 16);
    }
    total as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    /// scapy 2.5: `bytes(Ether(src="02:00:00:00:02:00", dst="02:00:00:00:01:00")/IP(src="192.0.2.1",
    /// dst="198.51.100.7", id=7, flags="DF", ttl=64)/UDP(sport=1024, dport=53)/b"abc")`.
    #[test]
    fn ipv4_and_udp_are_those_of_scapy() {
        let (source, destination) = (Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(198, 51, 100, 7));
        let segment = udp(&source.octets(), &destination.octets(), (1024, 53), b"abc");
        let packet = ipv4(Ip4 { source, destination, identification: 7, ttl: 64 }, UDP, &segment);
        let frame = ethernet([2, 0, 0, 0, 1, 0], [2, 0, 0, 0, 2, 0], &packet);
        assert_eq!(hex(&frame), SCAPY_4);
    }

    /// scapy 2.5: `bytes(Ether(…)/IPv6(src="2001:db8::1", dst="fc00:1::1", tc=0xb8, fl=0x12345, hlim=40)/
    /// IPv6ExtHdrSegmentRouting(addresses=["fc00:2::1", "fc00:1::1"], segleft=1, lastentry=1)/
    /// UDP(sport=1024, dport=53)/b"abc")`.
    #[test]
    fn ipv6_and_srh_are_those_of_scapy() {
        let address = |text: &str| text.parse::<Ipv6Addr>().unwrap();
        let segments = [address("fc00:1::1"), address("fc00:2::1")];
        let source = address("2001:db8::1");
        // The pseudo-header has the last segment as its destination (RFC 8200 section 8.1).
        let segment = udp(&source.octets(), &segments[1].octets(), (1024, 53), b"abc");
        let header = Ip6 { source, destination: segments[0], class: 0xb8, label: 0x12345, hop_limit: 40 };
        let packet = ipv6(header, ROUTING, &srh(&segments, 1, UDP, &segment));
        let frame = ethernet([2, 0, 0, 0, 1, 0], [2, 0, 0, 0, 2, 0], &packet);
        assert_eq!(hex(&frame), SCAPY_6);
    }

    /// Python 3.11: `hmac.new(b"a secret", ip("2001:db8::1") + bytes([1, 8, 0, 0, 0, 7]) + ip("fc00:2::1") +
    /// ip("fc00:1::1"), "sha256").hexdigest()`, `ip` being `inet_pton`.
    #[test]
    fn the_hmac_is_that_of_python() {
        let address = |text: &str| text.parse::<Ipv6Addr>().unwrap();
        let segments = [address("fc00:1::1"), address("fc00:2::1")];
        let key = Key { id: 7, secret: "a secret" };
        let made = sealed_srh(&segments, 1, UDP, key, address("2001:db8::1"), b"abc");
        let plain = srh(&segments, 1, UDP, &[]);
        assert_eq!(made[..8], [UDP, 9, 4, 1, 1, 8, 0, 0]);
        assert_eq!(made[8..40], plain[8..]);
        assert_eq!(hex(&made[40..]), format!("0526000000000007{PYTHON_HMAC}616263"));
    }

    /// scapy 2.5, `load_contrib("mpls")`: `bytes(MPLS(label=100, s=0, ttl=40)/MPLS(label=200, s=1, ttl=40)/b"abc")`.
    #[test]
    fn labels_are_those_of_scapy() {
        assert_eq!(hex(&mpls(&[100, 200], 40, b"abc")), "00064028000c8128616263");
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|b| format!("{b:02x}")).collect()
    }

    const PYTHON_HMAC: &str = "9a4c82ac08599a2044928494ab90cf676a419add69e7ab8c6adb551c2812f97c";
    const SCAPY_4: &str =
        "02000000010002000000020008004500001f0007400040114e8bc0000201c633640704000035000b4b04616263";
    const SCAPY_6: &str = "02000000010002000000020086dd6b81234500332b2820010db8000000000000000000000001fc0000010000000000000000000000011104040101000000fc000002000000000000000000000001fc00000100000000000000000000000104000035000b0d83616263";
}
