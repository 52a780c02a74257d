//! 24 hosts in 12 VRFs of one router, the same addresses in each.

use std::time::Duration;

use super::net::{self, Kind, Node, ping, settle, turn};
use underpass::testbed::{Namespace, join};

const TENANTS: usize = 12;

/// This kernel has no VRF devices, so there is no kernel to compare with; the same lines on a Linux that has
/// them are in `examples/lab-l3vpn`.
#[test]
fn tenants_with_the_same_addresses() {
    let Some(_turn) = turn("tenants_with_the_same_addresses") else { return };
    let mut router = Node::new("r");
    let mut tenants: Vec<[Namespace; 2]> = Vec::new();
    for n in 0..TENANTS {
        let hosts = ["left", "right"].map(|side| net::namespace(&format!("{side}-{n}")));
        for (side, host) in (1..).zip(&hosts) {
            join(host, "eth0", &router.namespace, &format!("t{n}-{side}")).unwrap();
            host.run(&format!(
                "ip link set eth0 up
                 ip addr add 10.0.{side}.2/24 dev eth0; ip addr add fd00:{side}::2/64 dev eth0 nodad
                 ip route add default via 10.0.{side}.1; ip -6 route add default via fd00:{side}::1"
            ))
            .unwrap();
        }
        hosts[1].run(&format!("ip addr add 10.99.{n}.1/32 dev lo")).unwrap();
        tenants.push(hosts);
    }
    router.start(Kind::Underpass);
    let mut lines = "sysctl -qw net.vrf.strict_mode=1\n".to_owned();
    for n in 0..TENANTS {
        let table = 100 + n;
        lines += &format!("ip link add vrf-{n} type vrf table {table}; ip link set vrf-{n} up\n");
        for side in [1, 2] {
            lines += &format!(
                "ip link set t{n}-{side} master vrf-{n}; ip link set t{n}-{side} up
                 ip addr add 10.0.{side}.1/24 dev t{n}-{side}; ip addr add fd00:{side}::1/64 dev t{n}-{side} nodad\n"
            );
        }
        lines += &format!("ip route add 10.99.{n}.0/24 via 10.0.2.2 dev t{n}-2 vrf vrf-{n}\n");
        lines += &format!("ip route add unreachable default metric 4278198272 vrf vrf-{n}\n");
    }
    router.run(&lines);
    for (n, [left, right]) in tenants.iter().enumerate() {
        let tell = |why: String| panic!("tenant {n}: {why}{}", router.log());
        for (from, to) in [(left, "10.0.2.2"), (left, "fd00:2::2"), (right, "10.0.1.2"), (right, "fd00:1::2")]
        {
            settle(from, to, Duration::from_secs(10)).unwrap_or_else(tell);
            ping(from, to, 10).unwrap_or_else(tell);
        }
        // The router's own addresses in this VRF, from a host and the other way round.
        ping(left, "10.0.1.1", 3).unwrap_or_else(tell);
        ping(left, "10.0.2.1", 3).unwrap_or_else(tell);
        ping(left, "fd00:1::1", 3).unwrap_or_else(tell);
        router.run(&format!("ping -n -q -c 2 -W 2 -I vrf-{n} 10.0.1.2"));
        // What this tenant alone has, and what only the next has.
        ping(left, &format!("10.99.{n}.1"), 3).unwrap_or_else(tell);
        let foreign = format!("ping -n -c 1 -W 1 10.99.{}.1", (n + 1) % TENANTS);
        let outcome = left.outcome(&foreign).unwrap();
        assert_ne!(outcome.status, 0, "tenant {n} reaches the next: {}", outcome.output);
    }
    // A VRF that goes takes its tenant's ways with it and nobody else's.
    router.run("ip link del vrf-3");
    let outcome = tenants[3][0].outcome("ping -n -c 1 -W 1 10.99.3.1").unwrap();
    assert_ne!(outcome.status, 0, "{}", outcome.output);
    ping(&tenants[4][0], "10.99.4.1", 3).unwrap();
    router.stop();
}
