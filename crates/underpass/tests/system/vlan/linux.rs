//! An 802.1Q trunk between VLAN devices of the router's and a real Linux, at first with VLAN devices, and then with a bridge that
//! filters by VLANs.
//!
//! ```text
//! h1 ──── r1, underpass ──── core, VLANs ──── r2, Linux ──── h2
//! ```

use std::time::Duration;

use super::super::guest;
use super::super::mpls::Which;
use super::super::mtu::transfer;
use super::super::net::{ping, settle, turn};
use super::super::tunnel::Pair;

/// Name, what `ip link add` is told, its network.
const TAGGED: [(&str, &str, u32); 3] = [
    ("one", "link core name one type vlan id 10", 10),
    ("provider", "link core name provider type vlan protocol 802.1ad id 20", 20),
    ("inner", "link provider name inner type vlan id 30", 30),
];

/// From each host to the other, and a transfer.
fn reach(pair: &Pair, what: &str) {
    for (from, address) in [(0, "10.2.0.2"), (1, "10.1.0.2")] {
        pair.check(what, settle(&pair.hosts[from], address, Duration::from_secs(10)));
        pair.check(what, ping(&pair.hosts[from], address, 5));
        pair.check(what, transfer(&pair.hosts[from], &pair.hosts[1 - from], address));
    }
}

#[test]
fn a_trunk_to_a_linux() {
    const NAME: &str = "a_trunk_to_a_linux";
    let Some(_turn) = turn(NAME) else { return };
    let Some(kernel) = guest::kernel(NAME) else { return };
    let mut pair = Pair::new(&[], Which::Linux(&kernel));
    for (name, options, net) in TAGGED {
        pair.both(&format!(
            "ip link add {options}
             ip addr add 10.9.{net}.ME/24 dev {name}
             ip link set {name} up"
        ));
    }
    for (name, _, net) in TAGGED {
        pair.both(&format!("ip route replace 10.YOU.0.0/24 via 10.9.{net}.YOU"));
        reach(&pair, name);
    }

    // h2 is in VLAN 40 now, and Linux itself in VLAN 50.
    pair.routers[1].run(
        "for name in inner provider one; do ip link del $name; done
         ip addr flush dev core
         ip addr flush dev cust
         ip link add br0 type bridge vlan_filtering 1 vlan_default_pvid 0
         ip link set core master br0
         ip link set cust master br0
         ip link set br0 up
         bridge vlan add vid 40 dev core
         bridge vlan add vid 40 dev cust pvid untagged
         bridge vlan add vid 50 dev core
         bridge vlan add vid 50 dev br0 self
         ip link add link br0 name own type vlan id 50
         ip addr add 10.50.0.2/24 dev own
         ip link set own up",
    );
    pair.routers[0].run(
        "ip route del 10.2.0.0/24
         for vlan in 40 50; do ip link add link core name core.$vlan type vlan id $vlan; done
         ip addr add 10.2.0.1/24 dev core.40
         ip addr add 10.50.0.1/24 dev core.50
         ip link set core.40 up
         ip link set core.50 up",
    );
    reach(&pair, "a bridge of VLANs");
    pair.check(
        "the bridge itself",
        settle(pair.routers[0].namespace(), "10.50.0.2", Duration::from_secs(10)),
    );
    pair.check("the bridge itself", ping(pair.routers[0].namespace(), "10.50.0.2", 5));
    let stations = pair.routers[1].run("bridge fdb show br br0 dynamic");
    for vlan in [40, 50] {
        let of_router = |line: &str| line.contains(" dev core ") && line.contains(&format!(" vlan {vlan} "));
        assert!(stations.lines().any(of_router), "VLAN {vlan}: {stations}");
    }
    pair.stop();
}
