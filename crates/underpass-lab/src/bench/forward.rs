//! Plain forwarding: one route, and many.

use super::routes;
use super::scenario::{BASE, HOPS, Scenario, incoming, outgoing};

/// The scenarios of this file.
pub fn scenarios() -> Vec<Scenario> {
    let neighbours = routes::neighbours();
    vec![
        Scenario::new("ip4", 42, format!("{BASE}ip route add 198.18.0.0/16 via 10.1.0.2 dev p1\n"), |flow| {
            (incoming(&flow.packet4(HOPS)), outgoing(&flow.packet4(HOPS - 1)))
        }),
        Scenario::new(
            "ip6",
            57,
            format!("{BASE}ip -6 route add 2001:db8:1::/48 via fd01::2 dev p1\n"),
            |flow| (incoming(&flow.packet6(HOPS)), outgoing(&flow.packet6(HOPS - 1))),
        ),
        Scenario {
            name: "ip6-routes-10k".to_owned(),
            vpp: Some(91),
            config: format!("{BASE}{neighbours}"),
            mass: Some(
                "10,000 routes of IPv6 with the lengths of the Internet's, to 16 neighbours".to_owned(),
            ),
            load: Box::new(|| routes::load6(10_000)),
        },
        Scenario {
            name: "ip6-routes-1m".to_owned(),
            vpp: Some(567),
            config: format!("{BASE}{neighbours}"),
            mass: Some(
                "1,000,000 routes of IPv6 with the lengths of the Internet's, to 16 neighbours".to_owned(),
            ),
            load: Box::new(|| routes::load6(1_000_000)),
        },
        Scenario {
            name: "ip4-routes-1m".to_owned(),
            vpp: Some(117),
            config: format!("{BASE}{neighbours}"),
            mass: Some(
                "1,000,000 routes of IPv4 with the lengths of the Internet's, to 16 neighbours".to_owned(),
            ),
            load: Box::new(|| routes::load4(1_000_000)),
        },
    ]
}
