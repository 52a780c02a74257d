//! IP tunnels and foo-over-UDP: into them and out, one tunnel and a thousand.

use std::net::Ipv4Addr;

use super::routes::Route;
use super::scenario::{BASE, CHECKED, Flow, HOPS, Load, Scenario, flows, incoming, outgoing};
use super::wire::{self, Ip4};

const GRE: u8 = 47;
/// The ends of tunnels that packets go into, and of those that they come out of.
pub const AWAY: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 1, 0, 1), Ipv4Addr::new(10, 1, 0, 2)];
pub const HERE: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 0, 0, 2), Ipv4Addr::new(10, 0, 0, 1)];
pub const TTL: u8 = 64;
/// The UDP port of foo-over-UDP.
const PORT: u16 = 5555;
const KEY: u32 = 7;
/// How many tunnels there are where there are many, and the index of the first.
const MANY: u16 = 1000;
pub const FIRST: u32 = 1000;

/// The scenarios of this file.
pub fn scenarios() -> Vec<Scenario> {
    let (to4, to6) = ("ip route add 198.18.0.0/16 dev t1", "ip -6 route add 2001:db8:1::/48 dev t1");
    let out4 = "ip route add 198.18.0.0/16 via 10.1.0.2 dev p1";
    let out6 = "ip -6 route add 2001:db8:1::/48 via fd01::2 dev p1";
    let config = |kind: &str, [local, remote]: [Ipv4Addr; 2], rest: &str, lines: &[&str]| {
        let lines = lines.join("\n");
        format!(
            "{BASE}ip link add t1 type {kind} local {local} remote {remote} ttl {TTL} {rest}\nip link set t1 up\n{lines}\n"
        )
    };
    let into = |kind: &str, rest: &str, route: &str| config(kind, AWAY, rest, &[route]);
    let fou = format!("encap fou encap-sport auto encap-dport {PORT}");
    let gue = format!("encap gue encap-sport auto encap-dport {PORT}");
    let out_of = |kind: &str, lines: &[&str]| config(kind, [HERE[1], HERE[0]], "", lines);
    let (take_fou, take_gue) =
        (format!("ip fou add port {PORT} ipproto 4"), format!("ip fou add port {PORT} gue"));
    let encap4 = |name, vpp: Option<u32>, config, build: fn(&Flow, &[u8]) -> (u8, Vec<u8>)| {
        encap(name, vpp, config, |flow| flow.packet4(HOPS), move |flow| build(flow, &flow.packet4(HOPS - 1)))
    };
    let encap6 = |name, vpp: Option<u32>, config, build: fn(&Flow, &[u8]) -> (u8, Vec<u8>)| {
        encap(name, vpp, config, |flow| flow.packet6(HOPS), move |flow| build(flow, &flow.packet6(HOPS - 1)))
    };
    let decap4 = |name: &str, vpp: Option<u32>, config, build: fn(&Flow, &[u8]) -> (u8, Vec<u8>)| {
        Scenario::new(name, vpp, config, move |flow| {
            (arriving(build(flow, &flow.packet4(HOPS))), outgoing(&flow.packet4(HOPS - 1)))
        })
    };
    let decap6 = |name: &str, vpp: Option<u32>, config, build: fn(&Flow, &[u8]) -> (u8, Vec<u8>)| {
        Scenario::new(name, vpp, config, move |flow| {
            (arriving(build(flow, &flow.packet6(HOPS))), outgoing(&flow.packet6(HOPS - 1)))
        })
    };
    vec![
        encap4("ipip-encap", Some(113), into("ipip", "", to4), |_, inner| (wire::IPV4, inner.to_vec())),
        decap4("ipip-decap", Some(272), out_of("ipip", &[out4]), |_, inner| (wire::IPV4, inner.to_vec())),
        encap6("sit-encap", Some(187), into("sit", "", to6), |_, inner| (wire::IPV6, inner.to_vec())),
        decap6("sit-decap", None, out_of("sit", &[out6]), |_, inner| (wire::IPV6, inner.to_vec())),
        encap4("gre-encap", Some(139), into("gre", "", to4), |_, inner| (GRE, gre(inner, None))),
        encap6("gre-encap-ip6", None, into("gre", "", to6), |_, inner| (GRE, gre(inner, None))),
        decap4("gre-decap", Some(164), out_of("gre", &[out4]), |_, inner| (GRE, gre(inner, None))),
        decap6("gre-decap-ip6", None, out_of("gre", &[out6]), |_, inner| (GRE, gre(inner, None))),
        encap4("gre-key-csum-encap", None, into("gre", "key 7 csum", to4), |_, inner| {
            (GRE, gre(inner, Some(KEY)))
        }),
        encap4("fou-ipip-encap", None, into("ipip", &fou, to4), |flow, inner| {
            (wire::UDP, datagram((source_port(flow), PORT), inner))
        }),
        decap4("fou-ipip-decap", None, out_of("ipip", &[&take_fou, out4]), |flow, inner| {
            (wire::UDP, datagram((flow.ports.0, PORT), inner))
        }),
        encap4("gue-gre-encap", None, into("gre", &gue, to4), |flow, inner| {
            (
                wire::UDP,
                datagram((source_port(flow), PORT), &[&[0, GRE, 0, 0], &gre(inner, None)[..]].concat()),
            )
        }),
        decap4("gue-gre-decap", None, out_of("gre", &[&take_gue, out4]), |flow, inner| {
            (wire::UDP, datagram((flow.ports.0, PORT), &[&[0, GRE, 0, 0], &gre(inner, None)[..]].concat()))
        }),
        many_encap(),
        many_decap(),
    ]
}

/// What is inside GRE, and GRE; with a key there is a checksum too.
fn gre(inner: &[u8], key: Option<u32>) -> Vec<u8> {
    let ethertype: [u8; 2] = if inner.first().is_some_and(|b| b >> 4 == 4) { [8, 0] } else { [0x86, 0xdd] };
    match key {
        None => [&[0, 0][..], &ethertype, inner].concat(),
        Some(key) => {
            let mut bytes = [&[0xa0, 0][..], &ethertype, &[0; 4], &key.to_be_bytes(), inner].concat();
            let checksum = !wire::sum(&bytes, 0);
            bytes.splice(4..6, checksum.to_be_bytes());
            bytes
        }
    }
}

/// A UDP datagram without a checksum.
pub fn datagram((source, destination): (u16, u16), inside: &[u8]) -> Vec<u8> {
    let length = 8 + inside.len() as u16;
    [&source.to_be_bytes()[..], &destination.to_be_bytes(), &length.to_be_bytes(), &[0, 0], inside].concat()
}

/// The source port of a flow over IPv4 and UDP: 32768 to 60998, by a product that mixes addresses, protocol and ports.
pub fn source_port(flow: &Flow) -> u16 {
    32768 + ((u64::from(flow_hash(flow)) * (60999 - 32768)) >> 32) as u16
}

/// What spreads the flows of IPv4 packets inside tunnels.
pub fn flow_hash(flow: &Flow) -> u32 {
    let addresses = [flow.source4.octets(), flow.destination4.octets()].concat();
    let addresses = addresses.iter().rev().fold(0u64, |sum, byte| sum << 8 | u64::from(*byte));
    let ports = u32::from(flow.ports.1.swap_bytes()) << 16 | u32::from(flow.ports.0.swap_bytes());
    let upper = u64::from(wire::UDP) << 32 | u64::from(ports);
    let product = u128::from(addresses ^ 0x9e37_79b9_7f4a_7c15) * u128::from(upper ^ 0xd6e8_feb8_6659_fd93);
    let mixed = (product >> 64) as u64 ^ product as u64;
    (mixed >> 32) as u32 ^ mixed as u32
}

/// A packet that is for the router, from the other end of a tunnel.
fn arriving((protocol, inside): (u8, Vec<u8>)) -> Vec<u8> {
    let [source, destination] = HERE;
    incoming(&wire::ipv4(Ip4 { source, destination, identification: 9, ttl: TTL }, protocol, &inside))
}

/// A scenario of packets that go into a tunnel: the router numbers outer packets from 1 on.
fn encap(
    name: &str,
    vpp: Option<u32>,
    config: String,
    inner: fn(&Flow) -> Vec<u8>,
    inside: impl Fn(&Flow) -> (u8, Vec<u8>) + 'static,
) -> Scenario {
    let load = move || {
        let flows = flows();
        let expected = flows.iter().zip(1..).take(CHECKED).map(|(flow, identification)| {
            let (protocol, inside) = inside(flow);
            let [source, destination] = AWAY;
            outgoing(&wire::ipv4(Ip4 { source, destination, identification, ttl: TTL }, protocol, &inside))
        });
        Load {
            expected: expected.collect(),
            routes: Vec::new(),
            templates: flows.iter().map(|flow| incoming(&inner(flow)).into_boxed_slice()).collect(),
            ..Load::default()
        }
    };
    Scenario { name: name.to_owned(), vpp, config, mass: None, load: Box::new(load) }
}

/// The other end of one of many tunnels.
pub fn remote(number: u16) -> Ipv4Addr {
    let [high, low] = number.to_be_bytes();
    Ipv4Addr::new(10, 2, high, low)
}

/// The devices of many tunnels.
pub fn devices(local: Ipv4Addr, count: u16) -> Vec<Route> {
    (0..count)
        .map(|n| Route::Tunnel { index: FIRST + u32::from(n), local, remote: remote(n), ttl: TTL })
        .collect()
}

/// The prefixes of 198.18.0.0/16 that go into many tunnels, each into one.
const PREFIX: u8 = 26;

fn many_encap() -> Scenario {
    Scenario {
        name: "ipip-encap-1000".to_owned(),
        vpp: None,
        config: format!("{BASE}{UNDERLAY}"),
        mass: Some(format!(
            "{MANY} tunnels of their own remote addresses, and the routes that lead into them"
        )),
        load: Box::new(|| into_many(MANY, PREFIX)),
    }
}

/// The way to the other ends.
pub const UNDERLAY: &str = "ip route add 10.2.0.0/16 via 10.1.0.2 dev p1\n";

/// So many tunnels, and the prefixes of 198.18.0.0/16 of this length, each of which goes into one of them.
pub fn into_many(count: u16, length: u8) -> Load {
    let tunnel = |destination: Ipv4Addr| ((destination.to_bits() & 0xffff) >> (32 - length)) as u16 % count;
    let flows = flows();
    let expected = flows.iter().zip(1..).take(CHECKED).map(|(flow, identification)| {
        let (source, destination) = (AWAY[0], remote(tunnel(flow.destination4)));
        let outer = Ip4 { source, destination, identification, ttl: TTL };
        outgoing(&wire::ipv4(outer, wire::IPV4, &flow.packet4(HOPS - 1)))
    });
    let mut routes = devices(AWAY[0], count);
    routes.extend((0u32..1 << (length - 16)).map(|n| {
        let prefix = Ipv4Addr::from_bits(0xc612_0000 | n << (32 - length));
        Route::Device { prefix, length, index: FIRST + u32::from(tunnel(prefix)) }
    }));
    Load {
        expected: expected.collect(),
        routes,
        templates: flows.iter().map(|flow| incoming(&flow.packet4(HOPS)).into_boxed_slice()).collect(),
        ..Load::default()
    }
}

fn many_decap() -> Scenario {
    let load = move || {
        let flows = flows();
        let sent = |flow: &Flow| {
            let (source, destination) = (remote(flow.identification % MANY), HERE[1]);
            let outer = Ip4 { source, destination, identification: 9, ttl: TTL };
            incoming(&wire::ipv4(outer, wire::IPV4, &flow.packet4(HOPS))).into_boxed_slice()
        };
        Load {
            expected: flows.iter().take(CHECKED).map(|flow| outgoing(&flow.packet4(HOPS - 1))).collect(),
            routes: devices(HERE[1], MANY),
            templates: flows.iter().map(sent).collect(),
            ..Load::default()
        }
    };
    Scenario {
        name: "ipip-decap-1000".to_owned(),
        vpp: None,
        config: format!("{BASE}ip route add 198.18.0.0/16 via 10.1.0.2 dev p1\n"),
        mass: Some(format!("{MANY} tunnels of their own remote addresses")),
        load: Box::new(load),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// scapy 2.5: `bytes(GRE(key_present=1,key=7,chksum_present=1)/IP(src="192.0.2.1",dst="198.51.100.7",id=7,
    /// flags="DF",ttl=64)/UDP(sport=1024,dport=53)/b"abc")`.
    #[test]
    fn gre_is_that_of_scapy() {
        let (source, destination) = (Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(198, 51, 100, 7));
        let udp = wire::udp(&source.octets(), &destination.octets(), (1024, 53), b"abc");
        let inner = wire::ipv4(Ip4 { source, destination, identification: 7, ttl: 64 }, wire::UDP, &udp);
        let hex: String = gre(&inner, Some(7)).iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(hex, SCAPY);
    }

    const SCAPY: &str =
        "a000080044510000000000074500001f0007400040114e8bc0000201c633640704000035000b4b04616263";
}
