//! Policing and filters where packets come in: what they add to plain forwarding of IPv4.

use std::net::Ipv4Addr;

use super::routes::Route;
use super::scenario::{BASE, CHECKED, HOPS, Load, Scenario, flows, incoming, outgoing};

/// How many `flower` filters there are, and the length of their prefixes, which lie in 198.18.0.0/16.
const FILTERS: u32 = 1000;
const PREFIX: u8 = 26;

/// The scenarios of this file.
pub fn scenarios() -> Vec<Scenario> {
    let with = |lines: &str| {
        format!("{BASE}ip route add 198.18.0.0/16 via 10.1.0.2 dev p1\ntc qdisc add dev p0 clsact\n{lines}")
    };
    let plain = |name: &str, vpp: Option<u32>, lines: &str| {
        Scenario::new(name, vpp, with(lines), |flow| {
            (incoming(&flow.packet4(HOPS)), outgoing(&flow.packet4(HOPS - 1)))
        })
    };
    // Above what any load reaches, so that nothing is dropped.
    let police = "tc filter add dev p0 ingress protocol all prio 49 basic action police rate 200gbit burst 1gb mtu 65535";
    let peak = "tc filter add dev p0 ingress protocol all prio 49 basic action police rate 200gbit burst 1gb mtu 65535 peakrate 400gbit";
    let u32 = "tc filter add dev p0 ingress protocol ip prio 1 u32 match ip dst 198.19.0.0/16 action ok
tc filter add dev p0 ingress protocol ip prio 1 u32 match ip protocol 17 0xff match ip dst 198.18.0.0/16 action ok";
    vec![
        plain("police-1r", Some(110), &format!("{police} conform-exceed drop\n")),
        plain("police-2r", None, &format!("{peak} conform-exceed drop\n")),
        plain("u32-match", None, &format!("{u32}\n")),
        flower(with("")),
    ]
}

/// Filters of prefixes of this length in 198.18.0.0/16 at the ingress of the first port; or in 198.19.0.0/16 at that of
/// the third, each with a policer. Packets that match them.
pub fn filters(count: u32, length: u8, police: bool) -> Load {
    let mut flows = flows();
    let inside = |destination: Ipv4Addr| (destination.to_bits() & 0xffff) >> (32 - length) < count;
    let network = if police { 0xc613_0000 } else { 0xc612_0000 };
    for flow in &mut flows {
        flow.destination4 = Ipv4Addr::from_bits(network | flow.destination4.to_bits() & 0xffff);
    }
    if police {
        flows.retain(|flow| inside(flow.destination4));
    }
    let routes = (0..count).map(|n| Route::Filter {
        port: if police { 2 } else { 0 },
        destination: Ipv4Addr::from_bits(network | n << (32 - length)),
        length,
        number: n + 1,
        police,
    });
    Load {
        routes: routes.collect(),
        templates: flows.iter().map(|flow| incoming(&flow.packet4(HOPS)).into_boxed_slice()).collect(),
        expected: flows.iter().take(CHECKED).map(|flow| outgoing(&flow.packet4(HOPS - 1))).collect(),
        ..Load::default()
    }
}

/// Each packet matches one of many filters of the same mask.
fn flower(config: String) -> Scenario {
    let load = || filters(FILTERS, PREFIX, false);
    Scenario {
        name: format!("flower-{FILTERS}"),
        vpp: None,
        config,
        mass: Some(format!(
            "{FILTERS} flower filters of destination prefixes at the ingress of p0, each with action ok"
        )),
        load: Box::new(load),
    }
}
