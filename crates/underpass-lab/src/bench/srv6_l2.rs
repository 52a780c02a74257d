//! Layer 2 over SRv6: frames of bridges to SIDs and out of them, and to VLAN devices.

use std::fmt::Write;

use super::layer2::{ENDS, FEW, between_stations, station, stations, text};
use super::scenario::{
    BASE, CHECKED, Flow, HOPS, Load, NEIGHBOUR, OUTER_HOPS, Order, PORTS, SID, SOURCE, Scenario, incoming,
    outgoing, segment,
};
use super::tunnel::flow_hash;
use super::wire::{self, Ip6};

/// A bridge with a port for other routers.
const SERVICE: &str = "\
ip link add br0 type bridge
ip link set br0 up
ip link add srl0 type srv6l2
ip link set srl0 master br0
ip link set srl0 up
";

/// A VLAN device, for End.DX2V.
const VLAN: u16 = 20;

/// Hop limit of what a bridge sends.
const SENT_HOPS: u8 = 64;

/// The scenarios of this file.
pub fn scenarios() -> Vec<Scenario> {
    let of_few = || Some(format!("{FEW} stations at the port, others behind the other end"));
    vec![
        Scenario::new("srv6-end-dx2v", None, format!("{BASE}{}", of_vlan()), tagged),
        Scenario {
            name: "srv6-end-dt2u".to_owned(),
            vpp: None,
            config: format!("{BASE}{}", bridged_out()),
            mass: of_few(),
            load: Box::new(out_of_sid),
        },
        Scenario {
            name: "srv6-l2-encap".to_owned(),
            vpp: None,
            config: format!(
                "{BASE}{SERVICE}ip link set p0 master br0\nip sr tunsrc set {SOURCE}\n\
                 ip -6 route add fc00:2::/32 via fd01::2 dev p1\n"
            ),
            mass: Some(format!("{FEW} stations behind {ENDS} SIDs")),
            load: Box::new(into_sids),
        },
        Scenario {
            name: "mix-srv6-l2".to_owned(),
            vpp: None,
            config: format!(
                "{BASE}{}{}ip route add 198.18.0.0/16 via 10.1.0.2 dev p1\n",
                of_vlan(),
                bridged_out()
            ),
            mass: Some(format!("{FEW} stations; in turn End.DT2U, End.DX2V, a routed packet")),
            load: Box::new(out_of_sids_or_routed),
        },
    ]
}

/// A SID of the VLANs of the second port.
fn of_vlan() -> String {
    format!(
        "ip link add link p1 name p1.{VLAN} type vlan id {VLAN}\nip link set p1.{VLAN} up\n\
         underpass sid add {} End.DX2V --oif p1 --dev p0 --count\n",
        segment(0)
    )
}

/// A SID of a bridge of which the second port is one.
fn bridged_out() -> String {
    let master = "ip link set p1 master br0\n";
    format!("{SERVICE}{master}underpass sid add {SID} End.DT2U --oif srl0 --dev p0 --count\n")
}

/// A frame with a tag, for the SID of the VLANs.
fn tagged(flow: &Flow) -> (Vec<u8>, Vec<u8>) {
    let frame = wire::tagged(NEIGHBOUR, PORTS[1], VLAN, &flow.packet4(HOPS));
    (incoming(&wire::ipv6(flow.outer(segment(0), OUTER_HOPS), wire::ETHERNET, &frame)), frame)
}

/// A frame for the bridge's SID.
fn bridged(flow: &Flow, frame: Vec<u8>) -> (Vec<u8>, Vec<u8>) {
    (incoming(&wire::ipv6(flow.outer(SID, OUTER_HOPS), wire::ETHERNET, &frame)), frame)
}

/// Stations behind the other end, each said to be at the device.
fn behind() -> String {
    let mut lines = String::new();
    for number in 0..FEW {
        let _ = writeln!(lines, "fdb add {} dev srl0 master static", text(station(0, number)));
    }
    lines
}

fn of_pairs(pairs: impl Iterator<Item = (Vec<u8>, Vec<u8>)>, order: Order) -> Load {
    let (templates, mut expected): (Vec<_>, Vec<_>) = pairs.unzip();
    expected.truncate(CHECKED);
    Load {
        routes: stations(1, FEW).collect(),
        batches: vec![("bridge", behind())],
        order,
        templates: templates.into_iter().map(Vec::into_boxed_slice).collect(),
        expected,
        ..Load::default()
    }
}

/// Frames out of the bridge's SID, to stations at the port.
fn out_of_sid() -> Load {
    of_pairs(between_stations().map(|(flow, _, frame)| bridged(&flow, frame)), Order::Kept)
}

/// Frames out of both SIDs, and packets that are routed.
fn out_of_sids_or_routed() -> Load {
    let in_turn = between_stations().zip(0..).map(|((flow, _, frame), number): (_, u16)| match number % 3 {
        0 => bridged(&flow, frame),
        1 => tagged(&flow),
        _ => (incoming(&flow.packet4(HOPS)), outgoing(&flow.packet4(HOPS - 1))),
    });
    of_pairs(in_turn, Order::InBurst)
}

/// Frames from the port to the SIDs behind which their stations are.
fn into_sids() -> Load {
    let sid = |station: u32| segment(1 + (station % ENDS) as usize);
    let mut behind = String::new();
    for number in 0..FEW {
        let mac = text(station(1, number));
        let _ = writeln!(behind, "fdb add {mac} dev srl0 dst {} static", sid(number));
        let _ = writeln!(behind, "fdb add {mac} dev srl0 master static");
    }
    let encapsulated = |(flow, to, frame): (Flow, u32, Vec<u8>)| {
        let label = flow_hash(&flow) >> 12;
        let outer = Ip6 { source: SOURCE, destination: sid(to), class: 0, label, hop_limit: SENT_HOPS };
        outgoing(&wire::ipv6(outer, wire::ETHERNET, &frame))
    };
    Load {
        routes: stations(0, FEW).collect(),
        batches: vec![("bridge", behind)],
        expected: between_stations().take(CHECKED).map(encapsulated).collect(),
        templates: between_stations().map(|(_, _, frame)| frame.into_boxed_slice()).collect(),
        ..Load::default()
    }
}
