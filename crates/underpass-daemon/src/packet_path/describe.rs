//! One line about a packet: its headers from the outside in, with what routers look at.

use std::fmt::{self, Display, Formatter};

use underpass_packet::ipv6_ext::{Extensions, Kind};
use underpass_packet::srh::Srh;
use underpass_packet::{FromBytes, arp, ethernet, gre, ipv4, ipv6, mpls, protocol, tcp, udp, vlan};

/// A packet that begins with an Ethernet header.
pub struct Frame<'a>(pub &'a [u8]);

/// A packet behind a link layer that named it so.
pub struct Headless<'a>(pub u16, pub &'a [u8]);

/// A packet that begins with an IPv4 or IPv6 header.
pub struct Packet<'a>(pub &'a [u8]);

/// Most headers of packets within packets that are shown.
const DEPTH: usize = 8;

impl Display for Frame<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        frame(f, self.0, DEPTH)
    }
}

impl Display for Headless<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        behind(f, self.0, self.1, DEPTH)
    }
}

impl Display for Packet<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let next = match self.0.first().map(|byte| byte >> 4) {
            Some(4) => protocol::IPV4,
            Some(6) => protocol::IPV6,
            _ => return frame(f, self.0, DEPTH),
        };
        upper(f, next, self.0, DEPTH)
    }
}

fn mac(f: &mut Formatter<'_>, address: [u8; 6]) -> fmt::Result {
    for (index, byte) in address.iter().enumerate() {
        write!(f, "{}{byte:02x}", if index == 0 { "" } else { ":" })?;
    }
    Ok(())
}

fn frame(f: &mut Formatter<'_>, bytes: &[u8], depth: usize) -> fmt::Result {
    let Ok((header, payload)) = ethernet::Header::parse(bytes) else {
        return write!(f, "{} bytes, too short for Ethernet", bytes.len());
    };
    write!(f, "Ethernet ")?;
    mac(f, header.source)?;
    write!(f, " > ")?;
    mac(f, header.destination)?;
    write!(f, " / ")?;
    behind(f, header.ethertype.get(), payload, depth)
}

/// What an EtherType says that `payload` is.
fn behind(f: &mut Formatter<'_>, ethertype: u16, payload: &[u8], depth: usize) -> fmt::Result {
    if depth == 0 {
        return write!(f, "…");
    }
    match ethertype {
        tag if vlan::is_tag(tag) => match *payload {
            [high, low, t0, t1, ref rest @ ..] => {
                let service = if tag == ethernet::SERVICE_VLAN { "service " } else { "" };
                let (priority, id) = (high >> 5, u16::from_be_bytes([high & 0x0f, low]));
                write!(f, "{service}VLAN {id} priority {priority} / ")?;
                behind(f, u16::from_be_bytes([t0, t1]), rest, depth - 1)
            }
            _ => write!(f, "VLAN, truncated"),
        },
        ethernet::MPLS | ethernet::MPLS_MULTICAST => labels(f, payload, depth - 1),
        gre::TRANSPARENT_ETHERNET => frame(f, payload, depth - 1),
        ethernet::IPV4 => upper(f, protocol::IPV4, payload, depth),
        ethernet::IPV6 => upper(f, protocol::IPV6, payload, depth),
        ethernet::ARP => match arp::Packet::parse(payload) {
            Ok(_) => write!(f, "ARP"),
            Err(why) => write!(f, "ARP, malformed ({why:?})"),
        },
        other => write!(f, "EtherType {other:#06x}, {} bytes", payload.len()),
    }
}

/// A label stack from its top, and what follows it, which only the first half-byte tells.
fn labels(f: &mut Formatter<'_>, bytes: &[u8], depth: usize) -> fmt::Result {
    let entries = match mpls::depth(bytes) {
        Ok(entries) => entries,
        Err(why) => return write!(f, "MPLS, malformed ({why:?})"),
    };
    let (stack, payload) = bytes.split_at_checked(entries * mpls::Entry::LEN).unwrap_or((bytes, &[]));
    for (position, entry) in <[mpls::Entry]>::ref_from_bytes(stack).unwrap_or_default().iter().enumerate() {
        write!(f, "{}", if position == 0 { "MPLS " } else { ", " })?;
        match entry.label() {
            mpls::IPV4_EXPLICIT_NULL => write!(f, "0 (IPv4 explicit null)")?,
            mpls::ROUTER_ALERT => write!(f, "1 (router alert)")?,
            mpls::IPV6_EXPLICIT_NULL => write!(f, "2 (IPv6 explicit null)")?,
            mpls::ENTROPY_LABEL_INDICATOR => write!(f, "7 (an entropy label follows)")?,
            label => write!(f, "{label}")?,
        }
        if entry.traffic_class() != 0 {
            write!(f, " class {}", entry.traffic_class())?;
        }
        write!(f, " ttl {}", entry.ttl())?;
    }
    write!(f, " / ")?;
    match payload.first().map(|byte| byte >> 4) {
        Some(4) => upper(f, protocol::IPV4, payload, depth),
        Some(6) => upper(f, protocol::IPV6, payload, depth),
        _ => write!(f, "{} bytes", payload.len()),
    }
}

/// What a next header or protocol number says that `bytes` are.
fn upper(f: &mut Formatter<'_>, next: u8, bytes: &[u8], depth: usize) -> fmt::Result {
    if depth == 0 {
        return write!(f, "…");
    }
    match next {
        protocol::IPV4 => match ipv4::View::parse(bytes) {
            Ok(packet) => {
                let header = packet.header;
                write!(f, "IPv4 {} > {} ttl {}", header.source(), header.destination(), header.ttl)?;
                if header.fragment_offset() > 0 {
                    return write!(
                        f,
                        " fragment at {}, {} bytes",
                        header.fragment_offset(),
                        packet.payload.len()
                    );
                }
                write!(f, " / ")?;
                upper(f, header.protocol, packet.payload, depth - 1)
            }
            Err(why) => write!(f, "IPv4, malformed ({why:?})"),
        },
        protocol::IPV6 => match ipv6::View::parse(bytes) {
            Ok(packet) => ipv6(f, &packet, depth - 1),
            Err(why) => write!(f, "IPv6, malformed ({why:?})"),
        },
        protocol::ETHERNET => frame(f, bytes, depth - 1),
        protocol::MPLS => labels(f, bytes, depth - 1),
        protocol::GRE => match gre::View::parse(bytes) {
            Ok(packet) => {
                write!(f, "GRE")?;
                if let Some(key) = packet.key {
                    write!(f, " key {key}")?;
                }
                write!(f, " / ")?;
                behind(f, packet.protocol, packet.payload, depth - 1)
            }
            Err(why) => write!(f, "GRE, malformed ({why:?})"),
        },
        protocol::UDP => match udp::Header::ref_from_prefix(bytes) {
            Ok((header, payload)) => {
                write!(f, "UDP {} > {}, {} bytes", header.source_port, header.destination_port, payload.len())
            }
            Err(_) => write!(f, "UDP, truncated"),
        },
        protocol::TCP => match tcp::View::parse(bytes) {
            Ok(segment) => write!(
                f,
                "TCP {} > {}, {} bytes",
                segment.header.source_port,
                segment.header.destination_port,
                segment.payload.len()
            ),
            Err(why) => write!(f, "TCP, malformed ({why:?})"),
        },
        protocol::ICMP | protocol::ICMPV6 => {
            let name = if next == protocol::ICMP { "ICMP" } else { "ICMPv6" };
            match bytes {
                [kind, code, ..] => write!(f, "{name} type {kind} code {code}, {} bytes", bytes.len()),
                _ => write!(f, "{name}, truncated"),
            }
        }
        protocol::NO_NEXT_HEADER => write!(f, "nothing"),
        other => write!(f, "protocol {other}, {} bytes", bytes.len()),
    }
}

fn ipv6(f: &mut Formatter<'_>, packet: &ipv6::View<'_>, depth: usize) -> fmt::Result {
    let header = packet.header;
    write!(f, "IPv6 {} > {} hop limit {}", header.source(), header.destination(), header.hop_limit)?;
    for extension in Extensions::new(packet) {
        let extension = match extension {
            Ok(extension) => extension,
            Err(why) => return write!(f, " / extension headers malformed ({why:?})"),
        };
        match extension.kind {
            Kind::Routing => match Srh::parse(extension.bytes) {
                Ok(srh) => {
                    write!(f, " / SRH left {} [", srh.segments_left())?;
                    // In the order in which they are visited, which is the reverse of the wire's.
                    for (position, index) in (0..srh.segments().len()).rev().enumerate() {
                        if let Some(segment) = srh.segment(index) {
                            write!(f, "{}{segment}", if position == 0 { "" } else { ", " })?;
                        }
                    }
                    write!(f, "]")?;
                }
                Err(why) => write!(f, " / routing header, no valid SRH ({why:?})")?,
            },
            Kind::HopByHop => write!(f, " / hop-by-hop options")?,
            Kind::DestinationOptions => write!(f, " / destination options")?,
            Kind::Fragment => write!(f, " / fragment header")?,
            Kind::Authentication => write!(f, " / authentication header")?,
        }
    }
    match Extensions::new(packet).upper() {
        Ok(found) if found.fragment_offset > 0 => write!(f, " / fragment at {}", found.fragment_offset),
        Ok(found) => {
            write!(f, " / ")?;
            // The offset counts from the start of the IPv6 header.
            let payload = found.offset.checked_sub(ipv6::Header::LEN).and_then(|at| packet.payload.get(at..));
            upper(f, found.protocol, payload.unwrap_or_default(), depth)
        }
        Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// scapy 2.5: `Ether(…)/IPv6(src="2001:db8::1", dst="fc00:1::1", tc=0xb8, fl=0x12345, hlim=40)/
    /// IPv6ExtHdrSegmentRouting(addresses=["fc00:2::1", "fc00:1::1"], segleft=1, lastentry=1)/
    /// UDP(sport=1024, dport=53)/b"abc"`.
    const FRAME: &str = "02000000010002000000020086dd6b81234500332b2820010db8000000000000000000000001\
        fc0000010000000000000000000000011104040101000000fc000002000000000000000000000001fc000001\
        0000000000000000000000010400\
        0035000b0d83616263";

    fn bytes() -> Vec<u8> {
        let digits: Vec<u8> = FRAME.bytes().filter(u8::is_ascii_hexdigit).collect();
        digits
            .chunks(2)
            .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
            .collect()
    }

    #[test]
    fn headers_from_the_outside_in() {
        let inner = "IPv6 2001:db8::1 > fc00:1::1 hop limit 40 / SRH left 1 [fc00:1::1, fc00:2::1] / \
                     UDP 1024 > 53, 3 bytes";
        assert_eq!(Packet(&bytes()[14..]).to_string(), inner);
        let ethernet = format!("Ethernet 02:00:00:00:02:00 > 02:00:00:00:01:00 / {inner}");
        assert_eq!(Frame(&bytes()).to_string(), ethernet);
    }

    #[test]
    fn tags_labels_and_gre() {
        let ip = [&[0x45, 0, 0, 20, 0, 0, 0, 0, 9, 59, 0, 0][..], &[10, 0, 0, 1, 10, 0, 0, 2]].concat();
        let inside = "IPv4 10.0.0.1 > 10.0.0.2 ttl 9 / nothing";
        let tagged = |ethertype, bytes: &[u8]| Headless(ethertype, &[bytes, &ip].concat()).to_string();
        assert_eq!(
            tagged(0x88a8, &[0x00, 7, 0x81, 0, 0xa0, 20, 8, 0]),
            format!("service VLAN 7 priority 0 / VLAN 20 priority 5 / {inside}")
        );
        let entry = |label, class, bottom| mpls::Entry::new(label, class, bottom, 63);
        let stack = [entry(100, 3, false), entry(7, 0, false), entry(70_000, 0, false), entry(0, 0, true)];
        assert_eq!(
            tagged(0x8847, zerocopy_bytes(&stack).as_slice()),
            format!(
                "MPLS 100 class 3 ttl 63, 7 (an entropy label follows) ttl 63, 70000 ttl 63, \
                 0 (IPv4 explicit null) ttl 63 / {inside}"
            )
        );
        assert!(tagged(0x8847, zerocopy_bytes(&stack[..3]).as_slice()).starts_with("MPLS, malformed"));
        let mut gre = ip.clone();
        gre[9] = protocol::GRE;
        gre[3] = 20 + 8 + 20;
        gre.extend([0x20, 0, 8, 0, 0, 0, 0, 42]);
        gre.extend(&ip);
        assert_eq!(
            Packet(&gre).to_string(),
            format!("IPv4 10.0.0.1 > 10.0.0.2 ttl 9 / GRE key 42 / {inside}")
        );
        // Tags without end.
        let deep = [0, 1, 0x81, 0].repeat(40);
        assert!(Headless(0x8100, &deep).to_string().ends_with("…"));
        for cut in 0..gre.len() {
            let _ = (Packet(&gre[..cut]).to_string(), Headless(0x8847, &gre[..cut]).to_string());
        }
    }

    fn zerocopy_bytes(stack: &[mpls::Entry]) -> Vec<u8> {
        use underpass_packet::IntoBytes;
        stack.as_bytes().to_vec()
    }

    #[test]
    fn damaged_packets_are_described_and_never_panic() {
        let bytes = bytes();
        for cut in 0..bytes.len() {
            let _ = Frame(&bytes[..cut]).to_string();
        }
        for position in 0..bytes.len() {
            for value in [0, 4, 41, 43, 0x7f, 0xff] {
                let mut damaged = bytes.clone();
                damaged[position] = value;
                let _ = Frame(&damaged).to_string();
                let _ = Packet(&damaged[14..]).to_string();
            }
        }
        // IPv6 in IPv6 in IPv6 …, deeper than is shown.
        let mut deep = Vec::new();
        for _ in 0..20 {
            let mut outer = bytes[14..54].to_vec();
            outer[4..6].copy_from_slice(&(deep.len() as u16).to_be_bytes());
            outer[6] = if deep.is_empty() { protocol::NO_NEXT_HEADER } else { protocol::IPV6 };
            outer.extend(deep);
            deep = outer;
        }
        assert!(Packet(&deep).to_string().ends_with("…"));
    }
}
