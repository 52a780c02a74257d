//! What is measured: the frames that go in, and the routes or the bridge that all routers have.

use std::net::Ipv6Addr;

/// The devices of the router, and those at their other ends.
pub const IN: &str = "bench-in";
pub const OUT: &str = "bench-out";
pub const GENERATOR: &str = "bench-gen";
pub const SINK: &str = "bench-sink";

/// Their addresses: the router's where packets come in, the generator's, and the neighbour that packets leave for.
/// The sink has another, so that its kernel drops them at once.
pub const ROUTER: [u8; 6] = [2, 0, 0, 0, 0, 2];
pub const NEIGHBOUR: [u8; 6] = [2, 0, 0, 0, 0, 0x99];

/// How long every frame is.
pub const LENGTH: usize = 100;

/// What a router does with frames.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Network {
    /// It routes what is in them.
    Routed,
    /// It passes them through a bridge.
    Bridged,
}

impl Network {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Routed, Self::Bridged];

    /// What configures a router that has these devices.
    pub const fn configuration(self) -> &'static str {
        match self {
            Self::Routed => ROUTES,
            Self::Bridged => BRIDGE,
        }
    }
}

/// A bridge that knows the stations at both ends.
const BRIDGE: &str = "
    ip link add bench-br type bridge
    ip link set bench-in master bench-br
    ip link set bench-out master bench-br
    ip link set bench-in up
    ip link set bench-out up
    ip link set bench-br up
    bridge fdb replace 02:00:00:00:00:01 dev bench-in master static
    bridge fdb replace 02:00:00:00:00:99 dev bench-out master static
";

/// All behaviours at once.
const ROUTES: &str = "
    ip link set bench-in up
    ip link set bench-out up
    ip addr add fd01::1/64 dev bench-in
    ip addr add fd02::1/64 dev bench-out
    ip neigh add fd02::2 lladdr 02:00:00:00:00:99 dev bench-out nud permanent
    ip -6 route add fd99::/64 via fd02::2 dev bench-out
    ip -6 route add fc00:b::/32 via fd02::2 dev bench-out
    ip -6 route add fc00:a::e encap seg6local action End dev bench-out
    ip -6 route add fc00:a::d2 encap seg6local action End.DX2 oif bench-out dev bench-out
    ip -6 route add fc00:a::d6 encap seg6local action End.DX6 nh6 fd02::2 dev bench-out
    ip -6 route add fc00:a::7 encap seg6local action End.DT6 table 254 dev bench-out
    ip sr tunsrc set fc00:a::1
    ip -6 route add fd98::/64 encap seg6 mode encap segs fc00:b::1 dev bench-out
";

const SOURCE: Ipv6Addr = Ipv6Addr::new(0xfd01, 0, 0, 0, 0, 0, 0, 2);
const PLAIN: Ipv6Addr = Ipv6Addr::new(0xfd99, 0, 0, 0, 0, 0, 0, 1);
const ENCAPSULATED: Ipv6Addr = Ipv6Addr::new(0xfd98, 0, 0, 0, 0, 0, 0, 1);
const NEXT_SEGMENT: Ipv6Addr = Ipv6Addr::new(0xfc00, 0xb, 0, 0, 0, 0, 0, 1);

const ETHERNET: u8 = 143;
const IPV6: u8 = 41;
const ROUTING: u8 = 43;
const NO_NEXT_HEADER: u8 = 59;

/// One behaviour.
pub struct Case {
    pub name: &'static str,
    pub network: Network,
    pub frame: Vec<u8>,
}

/// Every case.
pub fn all() -> Vec<Case> {
    let sid = |last| Ipv6Addr::new(0xfc00, 0xa, 0, 0, 0, 0, 0, last);
    let inner = ipv6(NO_NEXT_HEADER, PLAIN, &[0; 6]);
    let ethernet = [&NEIGHBOUR[..], &ROUTER[..], &[0x08, 0x00], &ipv4(12)].concat();
    let srh = [
        // Next header, length in words of 8 bytes, type 4, segments left, last entry, flags, tag.
        &[NO_NEXT_HEADER, 4, 4, 1, 1, 0, 0, 0][..],
        &NEXT_SEGMENT.octets(),
        &sid(0xe).octets(),
        &[0; 6],
    ]
    .concat();
    let case = |name, packet: Vec<u8>| Case { name, network: Network::Routed, frame: frame(ROUTER, &packet) };
    let plain = ipv6(NO_NEXT_HEADER, PLAIN, &[0; 46]);
    let bridged = Case { name: "bridge", network: Network::Bridged, frame: frame(NEIGHBOUR, &plain) };
    vec![
        case("IPv6", plain),
        case("End", ipv6(ROUTING, sid(0xe), &srh)),
        case("End.DX2", ipv6(ETHERNET, sid(0xd2), &ethernet)),
        case("End.DX6", ipv6(IPV6, sid(0xd6), &inner)),
        case("End.DT6", ipv6(IPV6, sid(7), &inner)),
        case("H.Encaps", ipv6(NO_NEXT_HEADER, ENCAPSULATED, &[0; 46])),
        bridged,
    ]
}

fn frame(station: [u8; 6], packet: &[u8]) -> Vec<u8> {
    [&station[..], &[2, 0, 0, 0, 0, 1], &[0x86, 0xdd], packet].concat()
}

fn ipv6(next_header: u8, destination: Ipv6Addr, payload: &[u8]) -> Vec<u8> {
    let [high, low] = (payload.len() as u16).to_be_bytes();
    let fixed = [0x60, 0, 0, 0, high, low, next_header, 64];
    [&fixed[..], &SOURCE.octets(), &destination.octets(), payload].concat()
}

/// An IPv4 packet of protocol 59 with so many bytes behind its header.
fn ipv4(payload: u8) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 20 + payload, 0, 0, 0x40, 0, 64, 59, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    let sum: u32 =
        packet.as_chunks::<2>().0.iter().map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    packet[10..12].copy_from_slice(&(!(folded as u16)).to_be_bytes());
    packet.resize(20 + usize::from(payload), 0);
    packet
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_frame_has_the_length_that_is_told() {
        for case in all() {
            assert_eq!(case.frame.len(), LENGTH, "{}", case.name);
        }
    }
}
