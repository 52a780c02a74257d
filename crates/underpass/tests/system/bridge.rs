//! Bridges of the router's beside a kernel that has bridges, too: hosts at their ports, a trunk with VLANs, and what is routed
//! through the bridge's own device.

use std::time::{Duration, Instant};

use serde_json::Value;
use underpass_daemon::testbed::{self, Namespace};

use super::mtu::transfer;
use super::net::{self, Node, ping, settle, turn};

const PATIENCE: Duration = Duration::from_secs(10);

/// A host at the port `pN` of a router, with an address that ends in N.
fn host(router: &Namespace, n: u32, network: &str) -> Namespace {
    let host = net::namespace(&format!("h{n}"));
    testbed::join(&host, "e0", router, &format!("p{n}")).unwrap();
    host.run(&format!("ip link set e0 address 02:00:00:00:00:0{n} up; ip addr add {network}.{n}/24 dev e0"))
        .unwrap();
    router.run(&format!("ip link set p{n} up")).unwrap();
    host
}

fn router(name: &str) -> Node {
    Node { namespace: net::namespace(name), router: None }
}

/// What the router shows, parsed.
fn shown(node: &Node, command: &str) -> Value {
    serde_json::from_str(&node.run(command)).unwrap()
}

/// Waits until something is so.
fn wait(node: &Node, what: &str, so: impl Fn() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !so() {
        assert!(Instant::now() < end, "{what}: {}", node.log());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Pings that nobody may answer.
fn unanswered(host: &Namespace, address: &str) {
    let outcome = host.outcome(&format!("ping -n -c 2 -i 0.2 -W 1 {address}")).unwrap();
    assert_ne!(outcome.status, 0, "{}", outcome.output);
}

/// Whether a bridge has a station at a port.
fn has_station(node: &Node, station: &str, port: &str) -> bool {
    let all = shown(node, "bridge -j fdb show br br0");
    all.as_array().unwrap().iter().any(|entry| entry["mac"] == station && entry["ifname"] == port)
}

/// How many times the kernel was asked that a device takes all frames.
fn promiscuity(node: &Node, device: &str) -> u64 {
    let all: Value =
        serde_json::from_str(&node.namespace.run(&format!("ip -d -j link show {device}")).unwrap()).unwrap();
    all[0]["promiscuity"].as_u64().unwrap()
}

#[test]
fn a_bridge_of_the_router() {
    let Some(_turn) = turn("a_bridge_of_the_router") else { return };
    let mut r = router("r");
    let [h1, h2, _h3] = [1, 2, 3].map(|n| host(&r.namespace, n, "10.0.0"));
    let far = net::namespace("far");
    testbed::join(&far, "e0", &r.namespace, "out").unwrap();
    far.run("ip link set e0 up; ip addr add 10.9.0.1/24 dev e0; ip route add 10.0.0.0/24 via 10.9.0.254")
        .unwrap();
    h1.run("ip route add 10.9.0.0/24 via 10.0.0.254").unwrap();
    let state = tempfile::tempdir().unwrap();
    let kept = state.path().join("state");
    let options = ["--workers", "2", "--own-bridges", "--attach", "out", "--state", kept.to_str().unwrap()];
    r.start_with(&options);
    r.run(
        "ip link set out up
         ip addr add 10.9.0.254/24 dev out
         ip link add br0 type bridge
         for port in p1 p2 p3; do ip link set $port master br0; done
         ip link set br0 up
         ip addr add 10.0.0.254/24 dev br0",
    );
    // Between hosts, with whole segments; of the bridge itself; and what it routes.
    settle(&h1, "10.0.0.2", PATIENCE).unwrap_or_else(|error| panic!("{error}{}", r.log()));
    transfer(&h1, &h2, "10.0.0.2").unwrap();
    // By the program in the kernel, if this kernel has it.
    let fast_path = || r.router.as_ref().unwrap().stats().unwrap().fast_path;
    if fast_path().off.is_none() {
        let before = fast_path().hits;
        ping(&h1, "10.0.0.2", 20).unwrap();
        assert!(fast_path().hits - before >= 36, "{}", r.log());
    }
    settle(&h1, "10.0.0.254", PATIENCE).unwrap();
    settle(&h1, "10.9.0.1", PATIENCE).unwrap();
    transfer(&h1, &far, "10.9.0.1").unwrap();
    transfer(&far, &h1, "10.0.0.1").unwrap();
    r.run("ping -c 1 -W 5 10.0.0.3");
    wait(&r, "h1 is known at p1", || has_station(&r, "02:00:00:00:00:01", "p1"));
    // The kernel knows of no bridge, and takes all frames for its ports.
    let kernels = r.namespace.run("ip link show type bridge; ip link show master br0").unwrap();
    assert_eq!(kernels, "");
    assert_eq!(promiscuity(&r, "p1"), 1);
    let of_bridge = shown(&r, "ip -d -j link show dev br0");
    assert_eq!(of_bridge[0]["operstate"], "UP");
    assert_eq!(of_bridge[0]["linkinfo"]["info_kind"], "bridge");
    let ports = shown(&r, "ip -j link show master br0");
    assert_eq!(ports.as_array().unwrap().len(), 3);
    let lowest = ports.as_array().unwrap().iter().map(|port| port["address"].as_str().unwrap()).min();
    assert_eq!(of_bridge[0]["address"].as_str(), lowest);
    assert_eq!(shown(&r, "bridge -j link show").as_array().unwrap().len(), 3);

    // What the kernel would do to frames in bridges is said to be passed by, where it can do anything.
    let chain = "nft 'add table bridge up; \
                 add chain bridge up guard { type filter hook forward priority 0; policy drop; }'";
    if r.namespace.outcome(chain).unwrap().status == 0 {
        wait(&r, "the chain is named", || r.log().contains("nftables chain bridge up guard at forward"));
        ping(&h1, "10.0.0.2", 1).unwrap();
        r.namespace.run("nft delete table bridge up").unwrap();
    }

    // Ports are isolated, and filtered where frames come in.
    r.run("for port in p1 p2; do ip link set $port type bridge_slave isolated on; done");
    unanswered(&h1, "10.0.0.2");
    ping(&h1, "10.0.0.3", 1).unwrap();
    r.run(
        "for port in p1 p2; do bridge link set dev $port isolated off; done
         tc qdisc add dev p1 clsact
         tc filter add dev p1 ingress protocol ip prio 1 u32 match ip protocol 1 0xff action drop",
    );
    unanswered(&h1, "10.0.0.2");
    r.run("tc qdisc del dev p1 clsact");
    ping(&h1, "10.0.0.2", 1).unwrap();

    // A port that is a tunnel of the router's, and a device that the kernel makes.
    r.run(
        "ip link add vx1 type vxlan id 7 dstport 4789 local 10.9.0.254
         ip link set vx1 master br0 up
         ip link set vx1 type bridge_slave cost 9
         ip link set vx1 type vxlan ageing 77
         ip link add v1 master br0 type veth peer name v2",
    );
    let vxlan = shown(&r, "ip -d -j link show dev vx1");
    let info = &vxlan[0]["linkinfo"];
    assert_eq!((&info["info_data"]["ageing"], &info["info_slave_data"]["cost"]), (&77.into(), &9.into()));
    wait(&r, "v1 is a port", || {
        shown(&r, "bridge -j link show").as_array().unwrap().iter().any(|port| port["ifname"] == "v1")
    });
    r.run("ip link del vx1; ip link del v1");

    // A port that goes down, and one that leaves.
    r.run("ip link set p3 down");
    wait(&r, "p3 is disabled", || {
        let ports = shown(&r, "bridge -j link show dev p3");
        ports[0]["state"] == "disabled"
    });
    r.run("ip link set p3 up; ip link set p3 nomaster");
    unanswered(&h1, "10.0.0.3");
    wait(&r, "p3 takes its own frames alone", || promiscuity(&r, "p3") == 0);
    r.run("ip link set p3 master br0");
    settle(&h1, "10.0.0.3", PATIENCE).unwrap();

    // Another router takes over.
    r.run(
        "bridge fdb add 02:00:00:00:00:99 dev p2 master static
         ip link set p2 type bridge_slave cost 7
         bridge vlan add vid 7 dev p2
         ip link set br0 type bridge ageing_time 4000 group_fwd_mask 8",
    );
    let all = |r: &Node| {
        let lines = ["ip -d link show type bridge", "bridge -d link show", "bridge vlan show"];
        let stations = r.run("bridge fdb show br br0 | grep -v 'self permanent\\|:0[1-3] dev' | sort");
        lines.map(|line| r.run(line)).concat() + &stations
    };
    let before = all(&r);
    r.router.take().unwrap().stop().unwrap();
    unanswered(&h1, "10.0.0.2");
    r.start_with(&options);
    assert_eq!(all(&r), before, "{}", r.log());
    settle(&h1, "10.0.0.2", PATIENCE).unwrap();
    settle(&h1, "10.9.0.1", PATIENCE).unwrap();
    r.run("ip link del br0");
    unanswered(&h1, "10.0.0.2");
    assert_eq!(shown(&r, "bridge -j link show").as_array().unwrap().len(), 0);
    wait(&r, "p1 takes its own frames alone", || promiscuity(&r, "p1") == 0);
    r.stop();
}

/// Without the option a kernel that has bridges makes them.
#[test]
fn bridges_are_the_kernels_at_first() {
    let Some(_turn) = turn("bridges_are_the_kernels_at_first") else { return };
    let mut r = router("r");
    let [h1, _h2] = [1, 2].map(|n| host(&r.namespace, n, "10.0.0"));
    r.start_with(&[]);
    r.run(
        "ip link add br0 type bridge
         for port in p1 p2; do ip link set $port master br0; done
         ip link set br0 up",
    );
    settle(&h1, "10.0.0.2", PATIENCE).unwrap();
    let kernels = r.namespace.run("ip -j link show type bridge").unwrap();
    assert!(kernels.contains("br0"), "{kernels}");
    assert_eq!(shown(&r, "bridge -j link show").as_array().unwrap().len(), 2);
    r.stop();
}

/// `A t0 ──── VLANs 10 and 20 ──── t0 R p1 (10), p2 (20)`: a trunk of a bridge that filters, and a VLAN device above the bridge.
#[test]
fn a_trunk_of_a_bridge() {
    let Some(_turn) = turn("a_trunk_of_a_bridge") else { return };
    let [mut a, mut r] = ["a", "r"].map(router);
    testbed::join(&a.namespace, "t0", &r.namespace, "t0").unwrap();
    for node in [&a, &r] {
        node.namespace.run("ip link set t0 up").unwrap();
    }
    let [h1, h2] = [(1, "10.10.0"), (2, "10.20.0")].map(|(n, network)| host(&r.namespace, n, network));
    a.start_with(&["--workers", "1"]);
    // AF_XDP does not see tags that a driver takes off.
    r.start_with(&["--workers", "1", "--own-bridges", "--driver", "xdp"]);
    a.run(
        "for vlan in 10 20; do
             ip link add link t0 name t0.$vlan type vlan id $vlan
             ip addr add 10.$vlan.0.9/24 dev t0.$vlan
             ip link set t0.$vlan up
         done",
    );
    r.run(
        "ip link add br0 type bridge vlan_filtering 1 vlan_default_pvid 0
         for port in t0 p1 p2; do ip link set $port master br0; done
         bridge vlan add vid 10 dev t0
         bridge vlan add vid 20 dev t0
         bridge vlan add vid 10 dev p1 pvid untagged
         bridge vlan add vid 20 dev p2 pvid untagged
         bridge vlan add vid 10 dev br0 self
         ip link set br0 up
         ip link add link br0 name br0.10 type vlan id 10
         ip addr add 10.10.0.254/24 dev br0.10
         ip link set br0.10 up",
    );
    assert!(r.log().contains("is a port of a bridge"), "{}", r.log());
    settle(&h1, "10.10.0.9", PATIENCE).unwrap_or_else(|error| panic!("{error}{}", r.log()));
    settle(&h2, "10.20.0.9", PATIENCE).unwrap();
    settle(&h1, "10.10.0.254", PATIENCE).unwrap();
    settle(&a.namespace, "10.10.0.254", PATIENCE).unwrap();
    transfer(&h1, &a.namespace, "10.10.0.9").unwrap();
    // Of one VLAN into the other there is no way.
    h1.run("ip addr add 10.20.0.8/24 dev e0").unwrap();
    unanswered(&h1, "10.20.0.2");
    let station = r.run("bridge fdb show br br0 vlan 10 | grep '^02:00:00:00:00:01 '");
    assert!(station.contains("dev p1 vlan 10 master br0"), "{station}");
    a.stop();
    r.stop();
}
