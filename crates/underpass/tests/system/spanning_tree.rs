//! A bridge of the router's with a spanning tree, and one of the kernel's: two cables between them are a circle.

use std::time::{Duration, Instant};

use serde_json::Value;
use underpass_daemon::testbed::{self, Namespace};

use super::net::{self, Node, ping, settle, turn};

/// Twice the forward delay of 2 seconds, what hello and hold time take, and a machine that is busy.
const PATIENCE: Duration = Duration::from_secs(20);

/// The states of two ports, in their order.
fn states(json: &str) -> [String; 2] {
    let all: Value = serde_json::from_str(json).unwrap();
    let mut ports: Vec<_> = all.as_array().unwrap().iter().collect();
    ports.sort_by_key(|port| port["ifname"].as_str().unwrap());
    [0, 1].map(|at: usize| ports[at]["state"].as_str().unwrap().to_owned())
}

/// Waits until the ports of the router and those of the kernel are in these states.
fn converge(router: &Node, kernel: &Namespace, [ours, theirs]: [[&str; 2]; 2]) {
    let end = Instant::now() + PATIENCE;
    loop {
        let [own, of_kernel] =
            [router.run("bridge -j link show"), kernel.run("bridge -j link show").unwrap()]
                .map(|json| states(&json));
        if (&own, &of_kernel) == (&ours.map(str::to_owned), &theirs.map(str::to_owned)) {
            return;
        }
        assert!(Instant::now() < end, "{own:?} {of_kernel:?}: {}", router.log());
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_circle_with_a_bridge_of_the_kernels_is_cut() {
    let Some(_turn) = turn("a_circle_with_a_bridge_of_the_kernels_is_cut") else { return };
    let mut r = Node { namespace: net::namespace("r"), router: None };
    let kernel = net::namespace("k");
    for n in 0..2 {
        testbed::join(&r.namespace, &format!("a{n}"), &kernel, &format!("b{n}")).unwrap();
        r.namespace.run(&format!("ip link set a{n} up")).unwrap();
    }
    let made =
        kernel.outcome("ip link add br0 type bridge stp_state 1 forward_delay 200 mcast_snooping 0").unwrap();
    if made.status != 0 {
        return net::skip("a_circle_with_a_bridge_of_the_kernels_is_cut", "this kernel has no bridges");
    }
    kernel
        .run(
            "for port in b0 b1; do ip link set $port up master br0; done
             ip link set br0 up
             ip addr add 10.0.0.2/24 dev br0",
        )
        .unwrap();
    r.start_with(&["--own-bridges", "--attach", "a0", "--attach", "a1"]);
    r.run(
        "ip link add br0 type bridge stp_state 1 forward_delay 200 priority 4096
         for port in a0 a1; do ip link set $port master br0; done
         ip link set br0 up
         ip addr add 10.0.0.1/24 dev br0",
    );
    // The router's is the root. A veth device passes ten gigabits a second: IEEE 802.1D-1998, table 8-5, as Linux has it.
    converge(&r, &kernel, [["forwarding"; 2], ["forwarding", "blocking"]]);
    assert!(r.run("bridge link show dev a0").contains(" cost 2 "));
    settle(&kernel, "10.0.0.1", PATIENCE).unwrap_or_else(|error| panic!("{error}{}", r.log()));
    let pings = kernel.run("ping -n -c 20 -i 0.02 10.0.0.1").unwrap();
    assert!(pings.contains(" 20 received, 0% packet loss") && !pings.contains("DUP"), "{pings}");
    let [ours, theirs] = ["designated_root ", "bridge_id "];
    let root =
        |text: &str, word: &str| text.split_once(word).unwrap().1.split(' ').next().unwrap().to_owned();
    // `ip` shows a bridge its own identifier as that of the root, and not so a port.
    let shown = (r.run("ip -d link show br0"), kernel.run("ip -d link show b0").unwrap());
    assert_eq!(root(&shown.1, ours), root(&shown.0, theirs));

    // The way that is left is taken, and given up again for the better one.
    kernel.run("ip link set b0 down").unwrap();
    converge(&r, &kernel, [["disabled", "forwarding"], ["disabled", "forwarding"]]);
    settle(&kernel, "10.0.0.1", PATIENCE).unwrap();
    kernel.run("ip link set b0 up").unwrap();
    converge(&r, &kernel, [["forwarding"; 2], ["forwarding", "blocking"]]);
    settle(&kernel, "10.0.0.1", PATIENCE).unwrap();

    // The kernel's is the root, and the router cuts the circle.
    kernel.run("ip link set br0 type bridge priority 0").unwrap();
    converge(&r, &kernel, [["forwarding", "blocking"], ["forwarding"; 2]]);
    assert!(r.run("ip -d link show br0").contains(" root_port 1 root_path_cost 2 "));
    settle(&kernel, "10.0.0.1", PATIENCE).unwrap();
    ping(&kernel, "10.0.0.1", 20).unwrap();

    // A root that is silent is given up: here after 6 seconds.
    kernel.run("ip link set br0 type bridge max_age 600").unwrap();
    std::thread::sleep(Duration::from_secs(3));
    kernel
        .run("for port in b0 b1; do tc qdisc add dev $port root tbf rate 8bit burst 60 limit 1; done")
        .unwrap();
    let end = Instant::now() + PATIENCE;
    while !r.run("ip -d link show br0").contains(" root_port 0 ") {
        assert!(Instant::now() < end, "{}", r.log());
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(r.log().contains("no bridge is heard at port a0 any more"), "{}", r.log());
    r.stop();
}

/// Ports of a tree that are tunnels, and VLAN devices above one: what bridges say goes through them.
#[test]
fn a_tree_through_tunnels() {
    let Some(_turn) = turn("a_tree_through_tunnels") else { return };
    let mut routers = ["one", "other"].map(|name| Node { namespace: net::namespace(name), router: None });
    testbed::join(&routers[0].namespace, "u", &routers[1].namespace, "u").unwrap();
    for (own, node) in routers.iter_mut().enumerate() {
        let (own, end) = (own + 1, 2 - own);
        node.namespace.run(&format!("ip link set u up; ip addr add 192.0.2.{own}/24 dev u")).unwrap();
        node.start_with(&["--own-bridges", "--attach", "u"]);
        node.run(&format!(
            "ip link add g0 type gretap local 192.0.2.{own} remote 192.0.2.{end}
             ip link add g5 link g0 type vlan id 5
             ip link add v0 type vxlan id 7 local 192.0.2.{own} remote 192.0.2.{end} dstport 4789
             ip link add br0 type bridge stp_state 1 forward_delay 200 priority {own}
             for port in g0 g5 v0; do ip link set $port master br0 up; done
             ip link set br0 up
             ip addr add 10.0.0.{own}/24 dev br0"
        ));
    }
    let [one, other] = &routers;
    let open = |node: &Node| {
        let all: Value = serde_json::from_str(&node.run("bridge -j link show")).unwrap();
        all.as_array().unwrap().iter().filter(|port| port["state"] == "forwarding").count()
    };
    let end = Instant::now() + PATIENCE;
    while (open(one), open(other)) != (3, 1) {
        assert!(Instant::now() < end, "{} {}: {}", open(one), open(other), other.log());
        std::thread::sleep(Duration::from_millis(50));
    }
    settle(&other.namespace, "10.0.0.1", PATIENCE).unwrap();
    let pings = other.namespace.run("ping -n -c 20 -i 0.02 10.0.0.1").unwrap();
    assert!(pings.contains(" 20 received, 0% packet loss") && !pings.contains("DUP"), "{pings}");
}
