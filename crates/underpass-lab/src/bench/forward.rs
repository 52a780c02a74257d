//! Plain forwarding: one route, and many.

use super::routes;
use super::scenario::{BASE, HOPS, NEIGHBOUR, PORTS, SENDER, Scenario, incoming, outgoing};
use super::wire;

/// A VLAN device above each port, and a route from one to the other.
const VLANS: &str = "\
ip link add link p0 name p0.10 type vlan id 10
ip link set p0.10 up
ip link add link p1 name p1.20 type vlan id 20
ip link set p1.20 up
ip addr add 10.2.0.1/24 dev p1.20
ip neigh add 10.2.0.2 lladdr 02:00:00:00:02:01 dev p1.20 nud permanent
ip route add 198.18.0.0/16 via 10.2.0.2 dev p1.20
";

/// The scenarios of this file.
pub fn scenarios() -> Vec<Scenario> {
    let neighbours = routes::neighbours();
    vec![
        Scenario::new("ip4", 75, format!("{BASE}ip route add 198.18.0.0/16 via 10.1.0.2 dev p1\n"), |flow| {
            (incoming(&flow.packet4(HOPS)), outgoing(&flow.packet4(HOPS - 1)))
        }),
        Scenario::new(
            "ip6",
            117,
            format!("{BASE}ip -6 route add 2001:db8:1::/48 via fd01::2 dev p1\n"),
            |flow| (incoming(&flow.packet6(HOPS)), outgoing(&flow.packet6(HOPS - 1))),
        ),
        Scenario::new("vlan-push-pop", None, format!("{BASE}{VLANS}"), |flow| {
            let came = wire::tagged(PORTS[0], SENDER, 10, &flow.packet4(HOPS));
            (came, wire::tagged(NEIGHBOUR, PORTS[1], 20, &flow.packet4(HOPS - 1)))
        }),
        Scenario::new("ip4-multipath", None, format!("{BASE}{}", multipath("198.18.0.0/16")), |flow| {
            (incoming(&flow.packet4(HOPS)), outgoing(&flow.packet4(HOPS - 1)))
        }),
        Scenario::new("ip6-multipath", None, format!("{BASE}{}", multipath("2001:db8:1::/48")), |flow| {
            (incoming(&flow.packet6(HOPS)), outgoing(&flow.packet6(HOPS - 1)))
        }),
        Scenario {
            name: "ip6-routes-10k".to_owned(),
            vpp: None,
            config: format!("{BASE}{neighbours}"),
            mass: Some(
                "10,000 routes of IPv6 with the lengths of the Internet's, to 16 neighbours".to_owned(),
            ),
            load: Box::new(|| routes::load6(10_000)),
        },
        Scenario {
            name: "ip6-routes-1m".to_owned(),
            vpp: None,
            config: format!("{BASE}{neighbours}"),
            mass: Some(
                "1,000,000 routes of IPv6 with the lengths of the Internet's, to 16 neighbours".to_owned(),
            ),
            load: Box::new(|| routes::load6(1_000_000)),
        },
        Scenario {
            name: "ip4-routes-1m".to_owned(),
            vpp: None,
            config: format!("{BASE}{neighbours}"),
            mass: Some(
                "1,000,000 routes of IPv4 with the lengths of the Internet's, to 16 neighbours".to_owned(),
            ),
            load: Box::new(|| routes::load4(1_000_000)),
        },
    ]
}

/// A route with four next hops, addresses of one neighbour: whichever a flow selects, its packets look alike.
pub fn multipath(prefix: &str) -> String {
    let (ip, net) = if prefix.contains(':') { ("ip -6", "fd01::") } else { ("ip", "10.1.0.") };
    let neighbour =
        |n| format!("{ip} neigh replace {net}{n} lladdr 02:00:00:00:02:01 dev p1 nud permanent\n");
    let next_hop = |n| format!(" nexthop via {net}{n} dev p1");
    let neighbours: String = (2..6).map(neighbour).collect();
    let next_hops: String = (2..6).map(next_hop).collect();
    format!("{neighbours}{ip} route add {prefix}{next_hops}\n")
}
