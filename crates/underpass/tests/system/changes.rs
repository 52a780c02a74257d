//! Links, addresses and routes that change while packets flow.

use std::{net::IpAddr, thread, time::Duration};

use super::behaviours::Line;
use super::mtu::configure;
use super::net::{Kind::*, Node, Stream, ping, settle, turn};
use underpass_daemon::testbed::{Namespace, join};

pub const RATE: u32 = 1000;
const PATIENCE: Duration = Duration::from_secs(10);

pub fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// h1 ── one R two ── eth0 h2, and a second pair of devices between R and h2: three ── eth1.
pub struct Two {
    pub hosts: [Namespace; 2],
    pub router: Node,
}

impl Two {
    pub fn new(kind: super::net::Kind) -> Self {
        let hosts = [super::net::namespace("h1"), super::net::namespace("h2")];
        let mut router = Node::new("r");
        join(&hosts[0], "eth0", &router.namespace, "one").unwrap();
        join(&hosts[1], "eth0", &router.namespace, "two").unwrap();
        join(&hosts[1], "eth1", &router.namespace, "three").unwrap();
        hosts[0]
            .run(
                "ip addr add 10.1.0.2/24 dev eth0; ip addr add fd10:1::2/64 dev eth0 nodad; ip link set eth0 up
                 ip route add default via 10.1.0.1; ip -6 route add default via fd10:1::1",
            )
            .unwrap();
        hosts[1]
            .run(
                "sysctl -qw net.ipv4.conf.all.rp_filter=0
                 ip addr add 10.2.0.2/24 dev eth0; ip addr add fd10:2::2/64 dev eth0 nodad; ip link set eth0 up
                 ip addr add 10.3.0.2/24 dev eth1; ip addr add fd10:3::2/64 dev eth1 nodad; ip link set eth1 up
                 ip addr add 10.9.0.1/32 dev lo
                 ip route add default via 10.2.0.1; ip -6 route add default via fd10:2::1",
            )
            .unwrap();
        router.start(kind);
        router.run(
            "ip link set one up; ip link set two up; ip link set three up
             ip addr add 10.1.0.1/24 dev one; ip addr add fd10:1::1/64 dev one nodad
             ip addr add 10.2.0.1/24 dev two; ip addr add fd10:2::1/64 dev two nodad
             ip addr add 10.3.0.1/24 dev three; ip addr add fd10:3::1/64 dev three nodad
             ip route add 10.9.0.1/32 via 10.2.0.2",
        );
        for wanted in ["10.2.0.2", "10.3.0.2", "fd10:2::2", "10.9.0.1"] {
            settle(&hosts[0], wanted, PATIENCE).unwrap_or_else(|why| panic!("{why}{}", router.log()));
        }
        Self { hosts, router }
    }
}

#[test]
fn a_link_goes_down_and_comes_back() {
    let Some(_turn) = turn("a_link_goes_down_and_comes_back") else { return };
    for kind in [Kernel, Underpass] {
        let net = Two::new(kind);
        let stream = Stream::start(&net.hosts[0], &net.hosts[1], address("10.2.0.2"), 4000, RATE);
        for _ in 0..3 {
            thread::sleep(Duration::from_millis(200));
            net.router.run("ip link set two down");
            thread::sleep(Duration::from_millis(200));
            net.router.run("ip link set two up");
            settle(&net.hosts[0], "10.2.0.2", PATIENCE).unwrap();
        }
        let flapped = stream.end();
        assert!(flapped.received > 0 && flapped.duplicates == 0, "{kind:?}: {flapped:?}");
        assert!(flapped.gap >= Duration::from_millis(150), "nothing was down: {flapped:?}");
        // The router's address on the other link answered all the while, and the way is whole again.
        let stream = Stream::start(&net.hosts[0], &net.hosts[1], address("10.2.0.2"), 4001, RATE);
        ping(&net.hosts[0], "10.1.0.1", 20).unwrap();
        ping(&net.hosts[0], "10.2.0.1", 20).unwrap();
        stream.end().assert_whole();
        net.router.stop();
    }
}

/// A device stays attached, and no packet is lost.
#[test]
fn an_mtu_changes() {
    let Some(_turn) = turn("an_mtu_changes") else { return };
    let net = Two::new(Underpass);
    let stream = Stream::start(&net.hosts[0], &net.hosts[1], address("10.2.0.2"), 4000, RATE);
    for mtu in [1400, 1500, 1300, 1500] {
        net.router.run(&format!("ip link set two mtu {mtu}"));
        thread::sleep(Duration::from_millis(100));
        let longest = format!("ping -n -c 1 -W 1 -M do -s {} 10.2.0.2", mtu - 28);
        let outcome = net.hosts[0].outcome(&longest).unwrap();
        assert_eq!(outcome.status, 0, "{mtu}: {}{}", outcome.output, net.router.log());
        let longer = format!("ping -n -c 1 -W 1 -M do -s {} 10.2.0.2", mtu - 27);
        assert_ne!(net.hosts[0].outcome(&longer).unwrap().status, 0, "{mtu}");
        net.hosts[0].run("ip route flush cache").unwrap();
    }
    stream.end().assert_whole();
    net.router.stop();
}

/// A bridge of the kernel's gets the lowest address of its ports; those who know another of these reach it still.
#[test]
fn a_bridge_gets_another_address() {
    let Some(_turn) = turn("a_bridge_gets_another_address") else { return };
    for kind in [Kernel, Underpass] {
        let net = Two::new(kind);
        net.router.run(
            "ip addr flush dev three
             ip link add br0 type bridge
             ip link set three master br0
             ip link set br0 up
             ip addr add 10.4.0.1/24 dev br0",
        );
        let mac = || net.router.run("ip -o link show br0 | sed 's/.*ether //; s/ .*//'").trim().to_owned();
        let before = mac();
        net.hosts[1]
            .run(&format!(
                "ip addr add 10.4.0.2/24 dev eth1
                 ip neigh replace 10.4.0.1 lladdr {before} dev eth1 nud permanent
                 ip route add 10.1.0.2/32 via 10.4.0.1 dev eth1 src 10.4.0.2"
            ))
            .unwrap();
        settle(&net.hosts[1], "10.1.0.2", PATIENCE)
            .unwrap_or_else(|why| panic!("{kind:?}: {why}{}", net.router.log()));
        net.router.run(
            "ip link add low address 02:00:00:00:00:01 type veth peer name lower
             ip link set low master br0",
        );
        assert_ne!(mac(), before);
        ping(&net.hosts[1], "10.1.0.2", 20)
            .unwrap_or_else(|why| panic!("{kind:?}: {why}{}", net.router.log()));
        net.router.stop();
    }
}

#[test]
fn addresses_come_and_go() {
    let Some(_turn) = turn("addresses_come_and_go") else { return };
    for kind in [Kernel, Underpass] {
        let net = Two::new(kind);
        let stream = Stream::start(&net.hosts[0], &net.hosts[1], address("fd10:2::2"), 4000, RATE);
        for n in 0..5 {
            net.hosts[1]
                .run("ip addr add 10.5.0.2/24 dev eth1; ip -6 addr add fd10:5::2/64 dev eth1 nodad")
                .unwrap();
            net.router.run("ip addr add 10.5.0.1/24 dev three; ip addr add fd10:5::1/64 dev three nodad");
            for new in ["10.5.0.1", "10.5.0.2", "fd10:5::1", "fd10:5::2"] {
                settle(&net.hosts[0], new, PATIENCE)
                    .unwrap_or_else(|why| panic!("{n}: {why}{}", net.router.log()));
            }
            net.router.run("ip addr del 10.5.0.1/24 dev three; ip addr del fd10:5::1/64 dev three");
            net.hosts[1]
                .run("ip addr del 10.5.0.2/24 dev eth1; ip -6 addr del fd10:5::2/64 dev eth1")
                .unwrap();
            for gone in ["10.5.0.1", "10.5.0.2", "fd10:5::1"] {
                let outcome = net.hosts[0].outcome(&format!("ping -n -c 1 -W 1 {gone}")).unwrap();
                assert_ne!(outcome.status, 0, "{kind:?}: {gone} still answers: {}", outcome.output);
            }
        }
        stream.end().assert_whole();
        net.router.stop();
    }
}

#[test]
fn a_route_moves_between_links() {
    let Some(_turn) = turn("a_route_moves_between_links") else { return };
    for kind in [Kernel, Underpass] {
        let net = Two::new(kind);
        let stream = Stream::start(&net.hosts[0], &net.hosts[1], address("10.9.0.1"), 4000, RATE);
        for _ in 0..25 {
            for via in ["10.3.0.2", "10.2.0.2"] {
                net.router.run(&format!("ip route replace 10.9.0.1/32 via {via}"));
                thread::sleep(Duration::from_millis(10));
            }
        }
        let delivery = stream.end();
        assert!(delivery.lost() == 0 && delivery.duplicates == 0, "{kind:?}: {delivery:?}");
        net.router.stop();
    }
}

#[test]
fn an_encapsulation_is_replaced() {
    let Some(_turn) = turn("an_encapsulation_is_replaced") else { return };
    for kinds in [[Kernel; 3], [Underpass; 3]] {
        let line = Line::new(kinds);
        configure(&line);
        line.middle.run("ip -6 route add fc00:9::e encap seg6local action End count dev east");
        settle(&line.hosts[0], "fd10:2::2", PATIENCE).unwrap();
        let stream = Stream::start(&line.hosts[0], &line.hosts[1], address("fd10:2::2"), 4000, RATE);
        for _ in 0..20 {
            for (mode, segments) in
                [("encap.red", "fc00:2::d6"), ("encap", "fc00:9::e,fc00:2::d6"), ("encap", "fc00:2::d6")]
            {
                line.edges[0].run(&format!(
                    "ip -6 route replace fd10:2::/64 encap seg6 mode {mode} segs {segments} dev core"
                ));
                thread::sleep(Duration::from_millis(5));
            }
        }
        let delivery = stream.end();
        assert!(
            delivery.lost() == 0 && delivery.duplicates == 0,
            "{kinds:?}: {delivery:?}{}",
            line.edges[0].log()
        );
        line.stop();
    }
}
