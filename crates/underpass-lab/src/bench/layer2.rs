//! Bridges and VXLANs: frames that are not routed.

use std::net::Ipv4Addr;

use underpass_port::memory::Patches;

use super::routes::{DESTINATIONS, Route};
use super::scenario::{BASE, CHECKED, Flow, HOPS, Load, Order, Scenario, flows, incoming, outgoing};
use super::tunnel::{AWAY, HERE, TTL, UNDERLAY, datagram, remote, source_port};
use super::wire::{self, Ip4, Mac};
use crate::random::Random;

/// Both ports are those of a bridge.
const BRIDGE: &str = "\
ip link add br0 type bridge
ip link set br0 up
ip link set p0 master br0
ip link set p1 master br0
ip link set p0 up
ip link set p1 up
";

/// How many stations there are where there are few, and where there are many.
pub const FEW: u32 = 1000;
const MANY: u32 = 1_000_000;

/// Other ends of a VXLAN or of a bridge over SRv6.
pub const ENDS: u32 = 16;

const VNI: u32 = 100;
/// RFC 7348 section 5.
const PORT: u16 = 4789;

/// The scenarios of this file.
pub fn scenarios() -> Vec<Scenario> {
    vec![
        Scenario {
            name: "bridge-1k-macs".to_owned(),
            vpp: None,
            config: BRIDGE.to_owned(),
            mass: Some(format!("{FEW} stations at either port")),
            load: Box::new(|| bridged(FEW)),
        },
        Scenario {
            name: "bridge-1m-macs".to_owned(),
            vpp: None,
            config: BRIDGE.to_owned(),
            mass: Some(format!("{} stations at either port", MANY / 2)),
            load: Box::new(|| bridged(MANY / 2)),
        },
        Scenario {
            name: "vxlan-encap".to_owned(),
            vpp: None,
            config: format!("{BASE}{UNDERLAY}{}", vxlan("p0", AWAY[0])),
            mass: Some(format!("{FEW} stations behind {ENDS} other ends")),
            load: Box::new(into_vxlan),
        },
        Scenario {
            name: "mix-vxlan-routed".to_owned(),
            vpp: None,
            config: format!("{BASE}{UNDERLAY}{}{ROUTED}", vxlan("p0", AWAY[0])),
            mass: Some(format!("{FEW} stations behind {ENDS} other ends; every other packet is routed")),
            load: Box::new(into_vxlan_or_routed),
        },
        Scenario {
            name: "vxlan-decap".to_owned(),
            vpp: None,
            config: format!("{BASE}{}", vxlan("p1", HERE[1])),
            mass: Some(format!("{FEW} stations at the port, others behind the other end")),
            load: Box::new(out_of_vxlan),
        },
    ]
}

/// The bridge has an address, and a route leads on.
const ROUTED: &str = "\
ip addr flush dev p0
ip link set br0 address 02:00:00:00:01:00
ip addr add 10.0.0.1/24 dev br0
ip route add 198.18.0.0/16 via 10.1.0.2 dev p1
";

/// A bridge of a port and of a VXLAN, whose stations a control plane tells: as EVPN makes it.
fn vxlan(port: &str, local: Ipv4Addr) -> String {
    format!(
        "ip link add vx1 type vxlan id {VNI} local {local} dstport {PORT} ttl {TTL} noudpcsum nolearning
         ip link add br0 type bridge
         ip link set br0 up
         ip link set {port} master br0
         ip link set vx1 master br0
         ip link set vx1 up\n"
    )
}

/// A station at the first port, counted from 0, and one at the second.
pub fn station(port: u8, number: u32) -> Mac {
    let [_, a, b, c] = number.to_be_bytes();
    [2, 0xb0 | port, 0, a, b, c]
}

pub fn text(mac: Mac) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

/// The frame of a flow between two stations.
fn frame(flow: &Flow, to: Mac, from: Mac) -> Vec<u8> {
    wire::ethernet(to, from, &flow.packet4(HOPS))
}

/// So many stations at either port, and frames from one of the first to one of the second.
fn bridged(count: u32) -> Load {
    let mut random = Random(5);
    let mut draw = |port| station(port, random.below(count.into()) as u32);
    let pairs: Vec<(Mac, Mac)> = (0..DESTINATIONS).map(|_| (draw(1), draw(0))).collect();
    let flows = flows();
    let frames = flows.iter().zip(&pairs).map(|(flow, (to, from))| frame(flow, *to, *from));
    let values = pairs.iter().map(|(to, from)| {
        let mut value = [0; 16];
        value[..6].copy_from_slice(to);
        value[6..12].copy_from_slice(from);
        value
    });
    Load {
        routes: [0, 1].into_iter().flat_map(|port| stations(port, count)).collect(),
        expected: frames.clone().take(CHECKED).collect(),
        templates: frames.map(Vec::into_boxed_slice).collect(),
        patches: Some(Patches::new(0, 12, values.collect())),
        ..Load::default()
    }
}

pub fn stations(port: u8, count: u32) -> impl Iterator<Item = Route> {
    (0..count).map(move |number| Route::Station { port: port.into(), mac: station(port, number) })
}

/// The flows between stations of either side, the number of the second with each.
pub fn between_stations() -> impl Iterator<Item = (Flow, u32, Vec<u8>)> {
    let mut random = Random(6);
    flows().into_iter().map(move |flow| {
        let [to, from] = [1, 0].map(|_| random.below(FEW.into()) as u32);
        let frame = frame(&flow, station(1, to), station(0, from));
        (flow, to, frame)
    })
}

/// RFC 7348 section 5, and the frame, in a datagram of the flow.
fn in_vxlan(source: u16, frame: &[u8]) -> Vec<u8> {
    let [_, vni @ ..] = VNI.to_be_bytes();
    let header = [&[8, 0, 0, 0][..], &vni, &[0]].concat();
    datagram((source, PORT), &[&header, frame].concat())
}

/// The packet with DF not set, as Linux sends it out of a VXLAN without `df set`.
fn may_be_cut(mut packet: Vec<u8>) -> Vec<u8> {
    packet[6] = 0;
    packet[10..12].fill(0);
    let checksum = !wire::sum(&packet[..20], 0);
    packet[10..12].copy_from_slice(&checksum.to_be_bytes());
    packet
}

fn end(station: u32) -> Ipv4Addr {
    remote((station % ENDS) as u16)
}

/// Frames from the port into the VXLAN, to the other ends behind which their stations are.
fn into_vxlan() -> Load {
    let expected = between_stations()
        .zip(1..)
        .take(CHECKED)
        .map(|((flow, to, frame), identification)| encapsulated(&flow, to, &frame, identification));
    let behind = (0..FEW).map(|number| {
        let mac = text(station(1, number));
        format!("fdb add {mac} dev vx1 dst {} static\nfdb add {mac} dev vx1 master static\n", end(number))
    });
    Load {
        routes: stations(0, FEW).collect(),
        batches: vec![("bridge", behind.collect())],
        expected: expected.collect(),
        templates: between_stations().map(|(_, _, frame)| frame.into_boxed_slice()).collect(),
        ..Load::default()
    }
}

/// The frame of a flow to a station behind another end, as it leaves.
fn encapsulated(flow: &Flow, to: u32, frame: &[u8], identification: u16) -> Vec<u8> {
    let header = Ip4 { source: AWAY[0], destination: end(to), identification, ttl: TTL };
    outgoing(&may_be_cut(wire::ipv4(header, wire::UDP, &in_vxlan(source_port(flow), frame))))
}

/// The same, where every other packet is for the bridge itself, and routed.
fn into_vxlan_or_routed() -> Load {
    let packets = || {
        between_stations().zip(0..).map(|((flow, to, frame), number): (_, u16)| {
            let routed = number % 2 == 1;
            let came = if routed { incoming(&flow.packet4(HOPS)) } else { frame.clone() };
            let leaves = match routed {
                true => outgoing(&flow.packet4(HOPS - 1)),
                false => encapsulated(&flow, to, &frame, number / 2 + 1),
            };
            (came, leaves)
        })
    };
    Load {
        order: Order::InBurst,
        expected: packets().take(CHECKED).map(|(_, leaves)| leaves).collect(),
        templates: packets().map(|(came, _)| came.into_boxed_slice()).collect(),
        ..into_vxlan()
    }
}

/// Frames out of the VXLAN, to stations at the port.
fn out_of_vxlan() -> Load {
    let [source, destination] = HERE;
    let sent = |(flow, _, frame): (Flow, u32, Vec<u8>)| {
        let header = Ip4 { source, destination, identification: 9, ttl: TTL };
        incoming(&wire::ipv4(header, wire::UDP, &in_vxlan(flow.ports.0, &frame))).into_boxed_slice()
    };
    let behind = (0..FEW).map(|number| {
        let mac = text(station(0, number));
        format!("fdb add {mac} dev vx1 dst {source} static\nfdb add {mac} dev vx1 master static\n")
    });
    Load {
        routes: stations(1, FEW).collect(),
        batches: vec![("bridge", behind.collect())],
        expected: between_stations().take(CHECKED).map(|(_, _, frame)| frame).collect(),
        templates: between_stations().map(sent).collect(),
        ..Load::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// scapy 2.5: `bytes(UDP(sport=1024,dport=4789,chksum=0)/VXLAN(flags=8,NextProtocol=0,vni=100)/
    /// Ether(src="02:b0:00:00:00:01",
    /// dst="02:b1:00:00:00:02",type=0x88b5)/b"abc")`.
    #[test]
    fn vxlan_is_that_of_scapy() {
        let frame = wire::frame(station(1, 2), station(0, 1), [0x88, 0xb5], b"abc");
        let hex: String = in_vxlan(1024, &frame).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, SCAPY);
    }

    const SCAPY: &str = "040012b500210000080000000000640002b10000000202b00000000188b5616263";
}
