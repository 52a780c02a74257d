//! MPLS: labels pushed, swapped and popped, and what their routes take of memory.

pub mod memory;

use underpass_netlink::mpls::Via;
use underpass_port::memory::Patches;

use super::routes::{self, LabelWay, Route};
use super::scenario::{
    BASE, CHECKED, Flow, HOPS, Load, NEIGHBOUR, PORTS, SENDER, Scenario, flows, incoming, outgoing,
};
use super::wire;
use crate::random::Random;

/// All labels may be used.
pub const LABELS: &str = "sysctl -q -w net.mpls.platform_labels=1048575\n";
/// Those that `p0` brings are looked at.
pub const INPUT: &str = "sysctl -q -w net.mpls.conf.p0.input=1\n";

/// The label that comes, below the one that is taken off it, and those that go.
const LABEL: u32 = 100;
const BELOW: u32 = 101;
const OUT: [u32; 2] = [200, 300];

/// The ways of `mpls-ecmp-16`. All lead to the same label and the same neighbour by different addresses, so that
/// whatever way a packet goes it has one result.
const WAYS: u8 = 16;

/// The scenarios of this file.
pub fn scenarios() -> Vec<Scenario> {
    let (prefix4, prefix6) = ("198.18.0.0/16", "2001:db8:1::/48");
    let base = format!("{BASE}{LABELS}{INPUT}");
    let push = |family: &str, prefix: &str, labels: &str, via: &str| {
        format!("{base}ip {family} route add {prefix} encap mpls {labels} via {via} dev p1\n")
    };
    let label = |route: &str| format!("{base}ip -f mpls route add {LABEL} {route}\n");
    let swap = "as 200 via inet 10.1.0.2 dev p1";
    let ways: String =
        (0..WAYS).map(|n| format!(" nexthop as 200 via inet 10.1.0.{} dev p1", 2 + n)).collect();
    let same: String = (0..WAYS)
        .map(|n| format!("ip neigh replace 10.1.0.{} lladdr 02:00:00:00:02:01 dev p1 nud permanent\n", 2 + n))
        .collect();
    let pop = label("dev lo");
    // A label that ends here takes one from the TTL, and forwarding another, as in Linux.
    vec![
        Scenario::new("mpls-push-1", 131, push("-6", prefix6, "200", "fd01::2"), |flow| {
            (incoming(&flow.packet6(HOPS)), pushed(&OUT[..1], &flow.packet6(HOPS - 1)))
        }),
        Scenario::new("mpls-push-1-ip4", None, push("-4", prefix4, "200", "10.1.0.2"), |flow| {
            (incoming(&flow.packet4(HOPS)), pushed(&OUT[..1], &flow.packet4(HOPS - 1)))
        }),
        Scenario::new("mpls-push-2", None, push("-6", prefix6, "200/300", "fd01::2"), |flow| {
            (incoming(&flow.packet6(HOPS)), pushed(&OUT, &flow.packet6(HOPS - 1)))
        }),
        Scenario::new("mpls-push-2-ip4", None, push("-4", prefix4, "200/300", "10.1.0.2"), |flow| {
            (incoming(&flow.packet4(HOPS)), pushed(&OUT, &flow.packet4(HOPS - 1)))
        }),
        Scenario::new("mpls-swap", 95, label(swap), |flow| {
            (labelled(&[LABEL], &flow.packet4(HOPS)), pushed(&OUT[..1], &flow.packet4(HOPS)))
        }),
        Scenario::new("mpls-swap-push", None, label("as 200/300 via inet 10.1.0.2 dev p1"), |flow| {
            (labelled(&[LABEL], &flow.packet4(HOPS)), pushed(&OUT, &flow.packet4(HOPS)))
        }),
        Scenario::new(
            "mpls-pop-ip4",
            121,
            format!("{pop}ip route add {prefix4} via 10.1.0.2 dev p1\n"),
            |flow| (labelled(&[LABEL], &flow.packet4(HOPS)), outgoing(&flow.packet4(HOPS - 2))),
        ),
        Scenario::new(
            "mpls-pop-ip6",
            157,
            format!("{pop}ip -6 route add {prefix6} via fd01::2 dev p1\n"),
            |flow| (labelled(&[LABEL], &flow.packet6(HOPS)), outgoing(&flow.packet6(HOPS - 2))),
        ),
        Scenario::new("mpls-php", None, label("via inet 10.1.0.2 dev p1"), |flow| {
            (labelled(&[LABEL], &flow.packet4(HOPS)), outgoing(&flow.packet4(HOPS - 1)))
        }),
        Scenario::new(
            "mpls-pop-swap",
            None,
            format!("{pop}sysctl -q -w net.mpls.conf.lo.input=1\nip -f mpls route add {BELOW} {swap}\n"),
            |flow| (labelled(&[LABEL, BELOW], &flow.packet4(HOPS)), pushed(&OUT[..1], &flow.packet4(HOPS))),
        ),
        Scenario::new(
            "mpls-ecmp-16",
            None,
            format!("{base}{same}ip -f mpls route add {LABEL}{ways}\n"),
            |flow| (labelled(&[LABEL], &flow.packet4(HOPS)), pushed(&OUT[..1], &flow.packet4(HOPS))),
        ),
        many("mpls-swap-100k", 100_000),
        many("mpls-swap-1m", 1_000_000),
    ]
}

/// As it comes to the router.
pub fn labelled(labels: &[u32], packet: &[u8]) -> Vec<u8> {
    wire::frame(PORTS[0], SENDER, [0x88, 0x47], &wire::mpls(labels, HOPS, packet))
}

/// As it leaves it: the router has taken one from the TTL.
fn pushed(labels: &[u32], packet: &[u8]) -> Vec<u8> {
    wire::frame(NEIGHBOUR, PORTS[1], [0x88, 0x47], &wire::mpls(labels, HOPS - 1, packet))
}

/// `count` labels, each swapped for another of its own, to 16 neighbours; labels that come at random.
fn many(name: &str, count: u32) -> Scenario {
    Scenario {
        name: name.to_owned(),
        vpp: None,
        config: format!("{BASE}{}{LABELS}{INPUT}", routes::neighbours()),
        mass: Some(format!("{count} labels, each swapped for another, to 16 neighbours")),
        load: Box::new(move || at_random(count)),
    }
}

/// So many labels, and packets with any of them.
pub fn at_random(count: u32) -> Load {
    let mut random = Random(5);
    let labels = 16..16 + count;
    let swaps: Vec<(u32, u8)> =
        labels.clone().map(|_| (16 + random.below(1_000_000) as u32, random.below(16) as u8)).collect();
    let drawn: Vec<u32> = (0..routes::DESTINATIONS).map(|_| random.below(u64::from(count)) as u32).collect();
    let flows = flows();
    let expected = drawn.iter().zip(&flows).take(CHECKED).map(|(&drawn, flow)| {
        let (out, neighbour) = swaps[drawn as usize];
        let packet = wire::mpls(&[out], HOPS - 1, &flow.packet4(HOPS));
        wire::frame(routes::neighbour_mac(neighbour), PORTS[1], [0x88, 0x47], &packet)
    });
    let entry = |drawn: &u32| {
        let mut value = [0; 16];
        value[..4].copy_from_slice(&wire::mpls(&[16 + drawn], HOPS, &[]));
        value
    };
    let route = |(label, &(out, neighbour)): (u32, &(u32, u8))| {
        let way = LabelWay { labels: vec![out], via: Via::Ip(routes::gateway(neighbour, true)) };
        Route::Label { label, ways: vec![way] }
    };
    Load {
        expected: expected.collect(),
        routes: labels.zip(&swaps).map(route).collect(),
        templates: flows
            .iter()
            .map(|flow: &Flow| labelled(&[LABEL], &flow.packet4(HOPS)).into_boxed_slice())
            .collect(),
        patches: Some(Patches::new(14, 4, drawn.iter().map(entry).collect())),
        ..Load::default()
    }
}
