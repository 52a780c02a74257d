//! IOAM: a trace inserted by a route, and one filled in passing.

use super::scenario::{BASE, CLASS, Flow, HOPS, Scenario, incoming, outgoing};
use super::wire::{self, Ip6};

/// What traces say of the router. The time is that of the first second.
const NODE: &str = "\
sysctl -q -w net.ipv6.ioam6_id=11259375 net.ipv6.conf.p0.ioam6_id=258 net.ipv6.conf.p1.ioam6_id=772
ip ioam namespace add 123 data 0xdeadbee0
";

/// Hop limit and node id, ids of the links, seconds, data of the namespace.
const TYPE: u32 = 0xe4_0000;
const DATA: [u8; 16] = [HOPS - 1, 0xab, 0xcd, 0xef, 1, 2, 3, 4, 0, 0, 0, 0, 0xde, 0xad, 0xbe, 0xe0];

/// The scenarios of this file.
pub fn scenarios() -> Vec<Scenario> {
    let prefix = "2001:db8:1::/48";
    let trace = format!("trace prealloc type {TYPE:#08x} ns 123 size 16");
    let insert = format!("{BASE}{NODE}ip -6 route add {prefix} encap ioam6 {trace} via fd01::2 dev p1\n");
    let enable = "sysctl -q -w net.ipv6.conf.p0.ioam6_enabled=1\n";
    let transit = format!("{BASE}{NODE}{enable}ip -6 route add {prefix} via fd01::2 dev p1\n");
    vec![
        Scenario::new("ioam-insert", None, insert, |flow| {
            let sent = traced(flow, HOPS - 1, &[DATA].concat(), 0);
            (incoming(&flow.packet6(HOPS)), outgoing(&sent))
        }),
        // Space for three nodes, of which one has filled its own.
        Scenario::new("ioam-transit", None, transit, |flow| {
            let before = traced(flow, HOPS, &[[0; 16], [0; 16], [0x77; 16]].concat(), 8);
            let after = traced(flow, HOPS - 1, &[[0; 16], DATA, [0x77; 16]].concat(), 4);
            (incoming(&before), outgoing(&after))
        }),
    ]
}

/// The flow's packet with a trace of these data, of which `left` × 4 bytes are free.
fn traced(flow: &Flow, hop_limit: u8, data: &[u8], left: u8) -> Vec<u8> {
    let packet = flow.packet6(hop_limit);
    let len = 16 + data.len();
    let [_, a, b, c] = TYPE.to_be_bytes();
    let mut payload = vec![wire::UDP, (len / 8 - 1) as u8, 1, 0, 0x31, (10 + data.len()) as u8, 0, 0];
    payload.extend([0, 123, 4 << 3, left, a, b, c, 0]);
    payload.extend(data);
    payload.extend(&packet[40..]);
    let (source, destination) = (flow.source6, flow.destination6);
    wire::ipv6(Ip6 { source, destination, class: CLASS, label: flow.label, hop_limit }, 0, &payload)
}
