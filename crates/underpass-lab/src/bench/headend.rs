//! SRv6 headends: a route puts the packet on a list of segments.

use std::net::Ipv6Addr;

use underpass_port::memory::Patches;

use super::forward::multipath;
use super::routes::{self, Route};
use super::scenario::{
    BASE, CHECKED, CLASS, Flow, HOPS, KEY, Load, SOURCE, Scenario, flows, incoming, outgoing, segment,
    set_key,
};
use super::wire::{self, Ip6, Key};
use crate::random::Random;

/// The scenarios of this file.
pub fn scenarios() -> Vec<Scenario> {
    let route = |family: &str, prefix: &str, mode: &str, count: usize| {
        let list = (1..=count).map(|n| segment(n).to_string()).collect::<Vec<_>>().join(",");
        format!("{}ip {family}route add {prefix} encap seg6 mode {mode} segs {list} dev p1\n", base())
    };
    let (prefix6, prefix4) = ("2001:db8:1::/48", "198.18.0.0/16");
    let depths =
        [(1, Some(228)), (2, Some(230)), (4, Some(235)), (8, Some(259)), (13, None), (17, None), (21, None)];
    // The first segment is behind a route with four next hops.
    let behind_multipath = route("-6 ", prefix6, "encap", 1)
        .replace("ip -6 route add fc00:2::/32 via fd01::2 dev p1\n", &multipath("fc00:2::/32"));
    let mut scenarios: Vec<Scenario> = depths
        .into_iter()
        .map(|(count, vpp)| {
            let name = format!("srv6-h-encaps-{count}");
            let config = route("-6 ", prefix6, "encap", count);
            Scenario::new(name, vpp, config, move |flow| encapsulated6(flow, &path(count), count))
        })
        .collect();
    scenarios.extend([
        Scenario::new("srv6-h-encaps-4in6-1", None, route("", prefix4, "encap", 1), |flow| {
            // An IPv4 packet gives the outer header neither class nor label, and the hop limit is the
            // router's own.
            let list = wire::srh(&path(1), 0, wire::IPV4, &flow.packet4(HOPS));
            let outer = Ip6 { source: SOURCE, destination: segment(1), class: 0, label: 0, hop_limit: 63 };
            (incoming(&flow.packet4(HOPS)), outgoing(&wire::ipv6(outer, wire::ROUTING, &list)))
        }),
        Scenario::new("srv6-h-encaps-1-multipath", None, behind_multipath, |flow| {
            encapsulated6(flow, &path(1), 1)
        }),
        // The reduced list leaves out the first segment, which is the destination: RFC 8986 section 5.2.
        Scenario::new("srv6-h-encaps-red-2", None, route("-6 ", prefix6, "encap.red", 2), |flow| {
            encapsulated6(flow, &path(2), 1)
        }),
        // The packet's own destination becomes the last segment.
        Scenario::new("srv6-h-insert-2", None, route("-6 ", prefix6, "inline", 2), |flow| {
            let packet = flow.packet6(HOPS);
            let path = [path(2), vec![flow.destination6]].concat();
            let list = wire::srh(&path, 2, wire::UDP, &packet[40..]);
            let header = Ip6 { source: flow.source6, ..outer(flow, path[0]) };
            (incoming(&packet), outgoing(&wire::ipv6(header, wire::ROUTING, &list)))
        }),
        Scenario::new("srv6-h-encaps-l2-1", 176, route("-6 ", prefix6, "l2encap", 1), |flow| {
            let frame = incoming(&flow.packet6(HOPS));
            let list = wire::srh(&path(1), 0, wire::ETHERNET, &frame);
            (frame, outgoing(&wire::ipv6(outer(flow, segment(1)), wire::ROUTING, &list)))
        }),
        // What the HMAC covers is the router's own, but for that of inline: there source and last segment are the
        // packet's.
        Scenario::new("srv6-hmac", None, hmac_route("encap"), |flow| {
            let packet = flow.packet6(HOPS);
            let list = wire::sealed_srh(&path(2), 1, wire::IPV6, KEY, SOURCE, &packet);
            (incoming(&packet), outgoing(&wire::ipv6(outer(flow, segment(1)), wire::ROUTING, &list)))
        }),
        Scenario::new("srv6-hmac-inline", None, hmac_route("inline"), |flow| {
            let packet = flow.packet6(HOPS);
            let path = [path(2), vec![flow.destination6]].concat();
            let list = wire::sealed_srh(&path, 2, wire::UDP, KEY, flow.source6, &packet[40..]);
            let header = Ip6 { source: flow.source6, ..outer(flow, path[0]) };
            (incoming(&packet), outgoing(&wire::ipv6(header, wire::ROUTING, &list)))
        }),
        // `ip` takes the addresses in the reverse order of the visit.
        Scenario::new("rpl-insert", None, rpl_route(prefix6), |flow| {
            let packet = flow.packet6(HOPS);
            // RFC 6554: one byte of the second address, all of the destination, seven bytes of padding.
            let mut list = vec![wire::UDP, 3, 3, 2, 0xf0, 0x70, 0, 0, 2];
            list.extend(flow.destination6.octets());
            list.extend([0; 7]);
            list.extend(&packet[40..]);
            let header = Ip6 { source: flow.source6, ..outer(flow, segment(1)) };
            (incoming(&packet), outgoing(&wire::ipv6(header, wire::ROUTING, &list)))
        }),
        Scenario {
            name: "srv6-h-encaps-policies-10k".to_owned(),
            vpp: None,
            config: base(),
            mass: Some(format!("{POLICIES} routes of 64 bits, each with a list of two segments of its own")),
            load: Box::new(|| policies(POLICIES)),
        },
    ]);
    scenarios
}

fn base() -> String {
    format!("{BASE}ip sr tunsrc set {SOURCE}\nip -6 route add fc00:2::/32 via fd01::2 dev p1\n")
}

/// A list of two with an HMAC. `ip` reads the secret from its input.
fn hmac_route(mode: &str) -> String {
    let Key { id, .. } = KEY;
    format!(
        "{}{}ip -6 route add 2001:db8:1::/48 encap seg6 mode {mode} segs {},{} hmac {id} dev p1\n",
        base(),
        set_key(),
        segment(1),
        segment(2)
    )
}

fn rpl_route(prefix: &str) -> String {
    format!("{}ip -6 route add {prefix} encap rpl segs {},{} dev p1\n", base(), segment(2), segment(1))
}

fn path(count: usize) -> Vec<Ipv6Addr> {
    (1..=count).map(segment).collect()
}

/// As Linux fills it around an IPv6 packet: class and label are copied, and so is the hop limit, which
/// then falls by one as the packet leaves.
fn outer(flow: &Flow, destination: Ipv6Addr) -> Ip6 {
    Ip6 { source: SOURCE, destination, class: CLASS, label: flow.label, hop_limit: HOPS - 1 }
}

/// The flow's IPv6 packet inside a list of which the last `listed` segments are in the SRH.
fn encapsulated6(flow: &Flow, path: &[Ipv6Addr], listed: usize) -> (Vec<u8>, Vec<u8>) {
    let list = &path[path.len() - listed..];
    let left = path.len() as u8 - 1;
    let routed = wire::srh(list, left, wire::IPV6, &flow.packet6(HOPS));
    (incoming(&flow.packet6(HOPS)), outgoing(&wire::ipv6(outer(flow, path[0]), wire::ROUTING, &routed)))
}

/// How many policies there are.
const POLICIES: u32 = 10_000;

/// The list of a policy: two segments that no other policy has.
fn policy(n: u32) -> [Ipv6Addr; 2] {
    let segment = |last| Ipv6Addr::new(0xfc00, 2, n as u16, (n >> 16) as u16, 0, 0, 0, last);
    [segment(1), segment(2)]
}

/// A route with a policy of its own for each of so many prefixes of 64 bits, destinations at random.
pub fn policies(count: u32) -> Load {
    let prefix = |n: u32| Ipv6Addr::new(0x2001, 0xdb8, 1 + (n >> 16) as u16, n as u16, 0, 0, 0, 0);
    let routes = (0..count)
        .map(|n| Route::Encapsulated { prefix: prefix(n), length: 64, segments: policy(n).to_vec() })
        .collect();
    let mut random = Random(2);
    let values: Vec<(u32, u128)> = (0..routes::DESTINATIONS)
        .map(|_| {
            let n = random.below(u64::from(count)) as u32;
            (n, prefix(n).to_bits() | u128::from(random.next()))
        })
        .collect();
    let flows = flows();
    let expected = values.iter().zip(&flows).take(CHECKED).map(|(&(n, destination), flow)| {
        let mut packet = flow.packet6(HOPS);
        packet.splice(24..40, destination.to_be_bytes());
        let list = policy(n);
        let routed = wire::srh(&list, 1, wire::IPV6, &packet);
        outgoing(&wire::ipv6(outer(flow, list[0]), wire::ROUTING, &routed))
    });
    Load {
        routes,
        expected: expected.collect(),
        templates: flows.iter().map(|flow| incoming(&flow.packet6(HOPS)).into_boxed_slice()).collect(),
        patches: Some(Patches::new(
            14 + 24,
            16,
            values.into_iter().map(|(_, destination)| destination.to_be_bytes()).collect(),
        )),
        ..Load::default()
    }
}
