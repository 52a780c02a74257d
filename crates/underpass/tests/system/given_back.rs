//! What a router gives back when it ends, and what the next one in its namespace finds.

use std::{net::IpAddr, time::Duration};

use underpass_daemon::{live::Stats, testbed::Router};

use crate::behaviours;
use crate::daemon::stats;
use crate::mtu::configure;
use crate::net::{Kind::*, Line, Node, Stream, ping, program, settle, turn};

impl Line {
    /// All that the router may change in its namespace.
    fn state(&self) -> String {
        self.router
            .run(
                "ip -d link | grep -v 'qdisc\\|promiscuity' ; ip -d link | grep -o 'promiscuity.*allmulti [0-9]*'
                 ip -4 route show table all | sort; ip -6 route show table all | sort; ip rule; ip -6 rule
                 ip addr; tc qdisc; ip nexthop
                 for f in /proc/sys/net/ipv4/conf/*/forwarding /proc/sys/net/ipv6/conf/*/forwarding \
                          /proc/sys/net/ipv4/conf/*/rp_filter; do echo $f $(cat $f); done",
            )
            .unwrap()
    }
}

#[test]
fn each_driver_forwards_and_gives_everything_back() {
    let Some(_turn) = turn("each_driver_forwards_and_gives_everything_back") else { return };
    let line = Line::new();
    line.router.run("ip route add 10.77.0.0/16 via 10.0.2.2; ip rule add from 10.7.0.0/16 table 77").unwrap();
    let before = line.state();
    let of_v1 = |stats: &Stats| stats.ports.iter().find(|port| port.name == "v1").unwrap().driver.clone();
    for (arguments, driver) in [
        (&["--driver", "packet"][..], "packet"),
        (&["--driver", "packet", "--workers", "1"], "packet"),
        (&["--driver", "xdp", "--workers", "1"], "xdp"),
        (&["--attach", "v1", "--attach", "v2"], ""),
    ] {
        let router = line.start(arguments);
        line.works();
        let told = of_v1(&stats(&line.router));
        assert!(told.starts_with(driver), "{arguments:?}: {told}");
        router
            .run("ip -6 route add fd00:9::/64 encap seg6 mode encap segs fc00:2::1 via fd00:2::2 dev v2")
            .unwrap();
        assert!(
            line.router.run("ip -6 route show proto 117").unwrap().contains("fd00:9::/64 dev underpass0")
        );
        router.stop().unwrap();
        let after = line.state();
        assert_eq!(before, after, "{arguments:?}");
    }
}

#[test]
fn only_one_and_after_a_death_another() {
    let Some(_turn) = turn("only_one_and_after_a_death_another") else { return };
    let line = Line::new();
    let before = line.state();
    let router = line.start(&[]);
    let outcome = line.router.outcome(&format!("{} run", program().display())).unwrap();
    assert_eq!(outcome.status, 1);
    let pid = router.pid();
    let text = format!("a router runs in this network namespace already (process {pid}");
    assert!(outcome.output.contains(&text), "{}", outcome.output);
    line.works();
    router
        .run("ip -6 route add fd00:9::/64 encap seg6 mode encap segs fc00:2::1 via fd00:2::2 dev v2")
        .unwrap();
    router.kill().unwrap();
    let router = line.start(&[]);
    line.works();
    assert!(!router.run("ip -6 route").unwrap().contains("fd00:9::"));
    router.stop().unwrap();
    assert_eq!(before, line.state());
}

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
    let Some(_turn) = turn("a_killed_router_is_followed_by_another") else { return };
    let mut line = behaviours::Line::new([Underpass; 3]);
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
    let Some(_turn) = turn("everything_is_given_back") else { return };
    let line = behaviours::Line::new([Kernel; 3]);
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
    let Some(_turn) = turn("a_second_router_is_refused") else { return };
    let mut node = Node::new("r");
    node.start(Underpass);
    let error = Router::start(program(), &node.namespace, &[]).unwrap_err().to_string();
    assert!(error.contains("already"), "{error}");
    // The first is unharmed.
    assert!(node.run("ip -o link show").contains("lo"));
    node.stop();
}
