//! A router that is killed, and the next one in its namespace.

use std::{net::IpAddr, time::Duration};

use crate::behaviours::Line;
use crate::mtu::configure;
use crate::net::{Kind::*, Node, Stream, ping, program, settle, turn_alone};
use underpass_daemon::testbed::Router;

const PATIENCE: Duration = Duration::from_secs(10);

/// What the kernel itself has.
fn kernel_state(node: &Node) -> String {
    let shown = node.namespace.run(
        "ip -o link show | sed 's/ mtu .*//'; ip -4 rule show; ip -6 rule show
         ip -4 route show table all; ip -6 route show table all | sed 's/ expires .*//'",
    );
    let mut lines: Vec<String> = shown.unwrap().lines().map(|line| line.trim_end().to_owned()).collect();
    lines.sort();
    lines.join("\n")
}

#[test]
fn a_killed_router_is_followed_by_another() {
    let Some(_turn) = turn_alone("a_killed_router_is_followed_by_another") else { return };
    let mut line = Line::new([Underpass; 3]);
    configure(&line);
    let to: IpAddr = "fd10:2::2".parse().unwrap();
    settle(&line.hosts[0], "fd10:2::2", PATIENCE).unwrap();
    settle(&line.hosts[0], "10.2.0.2", PATIENCE).unwrap();
    let stream = Stream::start(&line.hosts[0], &line.hosts[1], to, 4000, 1000);
    for round in 0..3 {
        line.edges[1].router.take().unwrap().kill().unwrap();
        line.edges[1].router = Some(Router::start(program(), &line.edges[1].namespace, &[]).unwrap());
        // What Underpass owned went with it; what is the kernel's is still there.
        line.edges[1].run(
            "ip -6 route add fc00:2::d6 encap seg6local action End.DT6 table 254 count dev cust
             ip -6 route add fc00:2::d4 encap seg6local action End.DX4 nh4 10.2.0.2 count dev cust
             ip -6 route add fd10:1::/64 encap seg6 mode encap segs fc00:1::d6 dev core
             ip route add 10.1.0.0/24 encap seg6 mode encap segs fc00:1::d4 dev core
             ip sr tunsrc set fc00:2::1",
        );
        for address in ["fd10:2::2", "10.2.0.2"] {
            settle(&line.hosts[0], address, PATIENCE)
                .unwrap_or_else(|why| panic!("round {round}: {why}{}", line.edges[1].log()));
        }
    }
    let delivery = stream.end();
    assert!(delivery.duplicates == 0 && delivery.received > 0, "{delivery:?}");
    let stream = Stream::start(&line.hosts[0], &line.hosts[1], to, 4001, 1000);
    ping(&line.hosts[0], "10.2.0.2", 50).unwrap();
    stream.end().assert_whole();
    line.stop();
}

/// SIGTERM gives everything back; so does the next router after SIGKILL.
#[test]
fn everything_is_given_back() {
    let Some(_turn) = turn_alone("everything_is_given_back") else { return };
    let line = Line::new([Kernel; 3]);
    let node = &line.edges[0];
    // Enslaving takes IPv6 addresses from a device, in Linux too: this one has none.
    node.run("ip link add x0 type veth peer name x1; ip link set x1 up; ip link set x0 up; ip addr add 10.7.0.1/24 dev x0");
    // The kernel says a moment after a link has come up that it has a carrier.
    node.run("timeout 5 sh -c 'while ip link show | grep -q NO-CARRIER; do sleep 0.01; done'");
    let before = kernel_state(node);
    let lines = "ip link add vrf-x type vrf table 77; ip link set vrf-x up; ip link add dummy7 type dummy
         ip link set x0 master vrf-x
         ip route add 10.2.0.0/24 encap seg6 mode encap segs fc00:2::d4 dev core";
    for kill in [false, true] {
        let router = Router::start(program(), &node.namespace, &[]).unwrap();
        router.run(lines).unwrap();
        assert_ne!(kernel_state(node), before);
        if kill {
            router.kill().unwrap();
            let next = Router::start(program(), &node.namespace, &[]).unwrap();
            assert!(!next.run("ip -o link show").unwrap().contains("vrf-x"));
            next.stop().unwrap();
        } else {
            router.stop().unwrap();
        }
        assert_eq!(kernel_state(node), before, "killed: {kill}");
    }
}

#[test]
fn a_second_router_is_refused() {
    let Some(_turn) = turn_alone("a_second_router_is_refused") else { return };
    let mut node = Node::new("r");
    node.start(Underpass);
    let error = Router::start(program(), &node.namespace, &[]).unwrap_err().to_string();
    assert!(error.contains("already"), "{error}");
    // The first is unharmed.
    assert!(node.run("ip -o link show").contains("lo"));
    node.stop();
}
