//! 24 hosts in 12 VRFs of one router, the same addresses in each.

use std::{
    io::{Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    os::fd::{AsRawFd, OwnedFd},
    time::Duration,
};

use nix::sys::{
    socket::{self, AddressFamily, Backlog, SockFlag, SockType, SockaddrStorage, sockopt},
    time::{TimeVal, TimeValLike},
};

use super::net::{self, Kind, Node, ping, settle, turn};
use underpass_daemon::testbed::{Namespace, join};

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

/// A socket that is bound to a device: a stream or datagrams.
fn bound(namespace: &Namespace, device: &str, kind: SockType, address: SocketAddr) -> OwnedFd {
    let open = || {
        let family = if address.is_ipv6() { AddressFamily::Inet6 } else { AddressFamily::Inet };
        let socket = socket::socket(family, kind, SockFlag::SOCK_CLOEXEC, None).unwrap();
        socket::setsockopt(&socket, sockopt::BindToDevice, &device.into()).unwrap();
        // A connection of before may still be waiting for its end.
        socket::setsockopt(&socket, sockopt::ReuseAddr, &true).unwrap();
        let patience = TimeVal::seconds(5);
        socket::setsockopt(&socket, sockopt::ReceiveTimeout, &patience).unwrap();
        socket::setsockopt(&socket, sockopt::SendTimeout, &patience).unwrap();
        socket
    };
    namespace.enter(open).unwrap()
}

/// Sends bytes by TCP from one socket of a namespace to another, each bound to a device, and back, and the same by UDP.
fn talk(namespace: &Namespace, from: &str, to: &str, address: IpAddr) -> Result<(), String> {
    let place = SocketAddr::new(address, 7001);
    let sockaddr = SockaddrStorage::from(place);
    let what = |what: &str| format!("{what}, {from} to {address} in {to}");
    let fail = |step: &'static str| move |errno: nix::errno::Errno| format!("{}: {errno}", what(step));
    let listener = bound(namespace, to, SockType::Stream, place);
    socket::bind(listener.as_raw_fd(), &sockaddr).map_err(fail("bind"))?;
    socket::listen(&listener, Backlog::new(1).unwrap()).map_err(fail("listen"))?;
    let listener = TcpListener::from(listener);
    let client = bound(namespace, from, SockType::Stream, place);
    socket::connect(client.as_raw_fd(), &sockaddr).map_err(fail("connect"))?;
    let (mut served, _) = listener.accept().map_err(|e| format!("{}: {e}", what("accept")))?;
    let mut client = TcpStream::from(client);
    let mut got = [0; 5];
    client
        .write_all(b"there")
        .and_then(|()| served.read_exact(&mut got))
        .map_err(|e| format!("{}: {e}", what("there")))?;
    served
        .write_all(b"again")
        .and_then(|()| client.read_exact(&mut got))
        .map_err(|e| format!("{}: {e}", what("again")))?;
    assert_eq!(&got, b"again");
    let sink = bound(namespace, to, SockType::Datagram, place);
    socket::bind(sink.as_raw_fd(), &sockaddr).map_err(fail("bind"))?;
    let (sink, source) =
        (UdpSocket::from(sink), UdpSocket::from(bound(namespace, from, SockType::Datagram, place)));
    let mut answer = || {
        source.connect(place)?;
        source.send(b"there")?;
        let (_, sender) = sink.recv_from(&mut got)?;
        sink.send_to(b"again", sender)?;
        source.recv(&mut got)
    };
    answer().map(drop).map_err(|e| format!("{}: {e}", what("datagrams")))
}

/// Two VRFs of one router, joined by a cable, and each to itself: pings, TCP and UDP of sockets that are bound to VRFs.
#[test]
fn vrfs_talk_over_a_cable_and_to_themselves() {
    let Some(_turn) = turn("vrfs_talk_over_a_cable_and_to_themselves") else { return };
    let mut router = Node::new("r");
    router.namespace.run("ip link add one type veth peer name two").unwrap();
    router.start(Kind::Underpass);
    let mut lines = String::new();
    for (n, (vrf, device)) in (1..).zip([("red", "one"), ("blue", "two")]) {
        lines += &format!(
            "ip link add {vrf} type vrf table 10{n}
             ip link set {vrf} up
             ip link set {device} master {vrf}
             ip link set {device} up
             ip addr add 10.7.0.{n}/24 dev {device}
             ip addr add fd07::{n}/64 dev {device} nodad\n"
        );
    }
    router.run(&lines);
    let tell = |why: String| panic!("{why}{}", router.log());
    let pairs = [("red", 2, "blue"), ("blue", 1, "red"), ("red", 1, "red"), ("blue", 2, "blue")];
    for (from, n, to) in pairs {
        for address in [format!("10.7.0.{n}"), format!("fd07::{n}")] {
            let bound = format!("-I {from} {address}");
            settle(&router.namespace, &bound, Duration::from_secs(10)).unwrap_or_else(tell);
            ping(&router.namespace, &bound, 5).unwrap_or_else(tell);
            talk(&router.namespace, from, to, address.parse().unwrap()).unwrap_or_else(tell);
        }
    }
    // A device of Ethernet, as in Linux, for whoever asks the kernel.
    let shown = router.namespace.run("ip link show dev red").unwrap();
    assert!(shown.contains("link/ether") && shown.contains("NOARP"), "{shown}");
    // Of what the router has given its devices nobody is shown anything.
    let shown = router.run("ip addr show; ip route show table all; ip rule show");
    assert!(!shown.contains("192.0.0.8"), "{shown}");
    let before = router.namespace.run("sysctl net.ipv4.conf.one.accept_local").unwrap();
    assert!(before.contains("= 1"), "{before}");
    router.run("ip link set one nomaster");
    let after = router.namespace.run("sysctl net.ipv4.conf.one.accept_local").unwrap();
    assert!(after.contains("= 0"), "{after}");
    router.stop();
}

/// `proxy_arp` at a device in a VRF: the router answers for who is behind another device of the VRF, and for nobody else.
#[test]
fn proxy_arp_in_a_vrf() {
    let Some(_turn) = turn("proxy_arp_in_a_vrf") else { return };
    let mut router = Node::new("r");
    let hosts = ["left", "right", "other"].map(net::namespace);
    for (n, host) in (1..).zip(&hosts) {
        join(host, "eth0", &router.namespace, &format!("p{n}")).unwrap();
    }
    // It takes everybody for its neighbour.
    hosts[0].run("ip link set eth0 up; ip addr add 10.1.0.2/16 dev eth0").unwrap();
    for n in [1, 2] {
        let lines = format!(
            "ip link set eth0 up; ip addr add 10.1.{n}.2/24 dev eth0; ip route add default via 10.1.{n}.1"
        );
        hosts[n].run(&lines).unwrap();
    }
    router.start(Kind::Underpass);
    router.run(
        "ip link add red type vrf table 100
         ip link set red up
         ip link set p1 master red; ip link set p2 master red
         ip link set p1 up; ip link set p2 up; ip link set p3 up
         ip addr add 10.1.0.1/24 dev p1
         ip addr add 10.1.1.1/24 dev p2
         ip addr add 10.1.2.1/24 dev p3
         sysctl -qw net.ipv4.conf.p1.proxy_arp=1 net.ipv4.neigh.p1.proxy_delay=0",
    );
    settle(&hosts[0], "10.1.1.2", Duration::from_secs(10))
        .unwrap_or_else(|why| panic!("{why}{}", router.log()));
    ping(&hosts[0], "10.1.1.2", 5).unwrap_or_else(|why| panic!("{why}{}", router.log()));
    // Not in the VRF.
    assert!(ping(&hosts[0], "10.1.2.2", 1).is_err());
    router.stop();
}

/// Routes that lead from the main table into a VRF, from the VRF out again, and from one VRF into another, for packets
/// that are forwarded and for those of the host itself.
///
/// ```text
/// a ── main r vrf-1 ── b
///           r vrf-2 ── c
/// ```
#[test]
fn routes_that_lead_into_a_vrf() {
    let Some(_turn) = turn("routes_that_lead_into_a_vrf") else { return };
    let mut router = Node::new("r");
    let hosts = ["pa", "pb", "pc"].map(|name| {
        let host = net::namespace(&format!("leak-{name}"));
        join(&host, "eth0", &router.namespace, name).unwrap();
        host
    });
    for (side, host) in (1..).zip(&hosts) {
        host.run(&format!(
            "ip link set eth0 up
             ip addr add 10.4{side}.0.2/24 dev eth0; ip addr add fd4{side}::2/64 dev eth0 nodad
             ip route add default via 10.4{side}.0.1; ip -6 route add default via fd4{side}::1"
        ))
        .unwrap();
    }
    router.start(Kind::Underpass);
    router.run(
        "ip link add vrf-1 type vrf table 101; ip link set vrf-1 up
         ip link add vrf-2 type vrf table 102; ip link set vrf-2 up
         ip link set pb master vrf-1; ip link set pc master vrf-2
         ip link set pa up; ip link set pb up; ip link set pc up
         ip addr add 10.41.0.1/24 dev pa; ip addr add fd41::1/64 dev pa nodad
         ip addr add 10.42.0.1/24 dev pb; ip addr add fd42::1/64 dev pb nodad
         ip addr add 10.43.0.1/24 dev pc; ip addr add fd43::1/64 dev pc nodad
         ip route add 10.42.0.0/24 dev vrf-1; ip -6 route add fd42::/64 dev vrf-1
         ip route add 10.41.0.0/24 dev pa table 101; ip -6 route add fd41::/64 dev pa table 101
         ip route add 10.43.0.0/24 dev vrf-2 table 101; ip -6 route add fd43::/64 dev vrf-2 table 101
         ip route add 10.42.0.0/24 dev vrf-1 table 102; ip -6 route add fd42::/64 dev vrf-1 table 102",
    );
    let tell = |why: String| panic!("{why}{}", router.log());
    for (from, to) in [(0, "10.42.0.2"), (0, "fd42::2"), (1, "10.41.0.2"), (1, "10.43.0.2"), (2, "fd42::2")] {
        settle(&hosts[from], to, Duration::from_secs(10)).unwrap_or_else(tell);
        ping(&hosts[from], to, 10).unwrap_or_else(tell);
    }
    let outcome = hosts[0].outcome("ping -n -c 1 -W 1 10.43.0.2").unwrap();
    assert_ne!(outcome.status, 0, "nothing leads there: {}", outcome.output);
    router.stop();
}

/// Where somebody has deleted the IPv4 rules of a VRF, its IPv6 rules go with it all the same.
#[test]
fn rules_of_one_family_do_not_hold_those_of_the_other() {
    let Some(_turn) = turn("rules_of_one_family_do_not_hold_those_of_the_other") else { return };
    let mut router = Node::new("r");
    router.start(Kind::Underpass);
    router.run("ip link add red type vrf table 100; ip link set red up");
    let rules = |router: &Node| router.namespace.outcome("ip -6 rule show pref 1000").unwrap().output;
    assert!(rules(&router).contains("red"), "{}", rules(&router));
    router.namespace.run("while ip -4 rule del pref 1000 2> /dev/null; do :; done").unwrap();
    router.run("ip link del red");
    let until = std::time::Instant::now() + Duration::from_secs(5);
    while rules(&router).contains("red") && std::time::Instant::now() < until {
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(rules(&router), "");
    router.stop();
}

/// What the router has changed of a device is put back by whatever name the device has then, and of no other device that has its
/// old name: when it leaves its VRF, when the router ends, and by the next router when it is killed.
#[test]
fn a_renamed_device_gets_its_sysctls_back() {
    let Some(_turn) = turn("a_renamed_device_gets_its_sysctls_back") else { return };
    let shown = |router: &Node, name: &str| {
        router.namespace.run(&format!("cat /proc/sys/net/ipv4/conf/{name}/accept_local")).unwrap()
    };
    for way in ["nomaster", "stop", "kill"] {
        let mut router = Node::new("r");
        router.namespace.run("ip link add ra type veth peer name rb").unwrap();
        router.start(Kind::Underpass);
        router.run("ip link add vr type vrf table 101; ip link set vr up; ip link set ra master vr");
        assert_eq!(shown(&router, "ra").trim(), "1", "{way}");
        router.run("ip link set ra name rx; ip link add ra type veth peer name rc");
        router.run("sysctl -qw net.ipv4.conf.ra.accept_local=1; ip link show");
        assert_eq!(shown(&router, "rx").trim(), "1", "{way}");
        match way {
            "nomaster" => drop(router.run("ip link set rx nomaster; ip link show")),
            "stop" => router.router.take().unwrap().stop().unwrap(),
            _ => {
                router.router.take().unwrap().kill().unwrap();
                router.start(Kind::Underpass);
            }
        }
        assert_eq!((shown(&router, "rx").trim(), shown(&router, "ra").trim()), ("0", "1"), "{way}");
        router.stop();
    }
}
