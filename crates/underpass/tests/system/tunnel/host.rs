//! What the host itself sends into tunnels and gets out of them, beside a kernel.

use std::time::{Duration, Instant};

use super::super::mpls::UNDERPASS;
use super::super::mtu::transfer as stream;
use super::super::net::{self, number, ping, settle, turn};
use super::{ENDS, Family, NARROW, Pair};
use underpass_daemon::testbed::Namespace;

/// The ends of tunnels over IPv6.
const ENDS6: &str = "local fd00::ME remote fd00::YOU";

/// A tunnel counts each packet once, also those that the host sends and answers.
#[test]
fn tunnels_count_what_the_host_answers() {
    let Some(_turn) = turn("tunnels_count_what_the_host_answers") else { return };
    let mut pair = Pair::new(&[], UNDERPASS);
    // Only the pings go through: without IPv6 there are no reports of multicast groups.
    for router in &mut pair.routers {
        router.run("sysctl -qw net.ipv6.conf.default.disable_ipv6=1");
    }
    for (kind, ends) in [("ipip", ENDS), ("gre", ENDS), ("ip6tnl", ENDS6)] {
        let mode = if kind == "ip6tnl" { "mode any" } else { "" };
        pair.both(&format!(
            "ip link add tun1 type {kind} {ends} {mode}
             ip addr add 10.9.0.ME/24 dev tun1
             ip link set tun1 up"
        ));
        pair.check(kind, settle(pair.routers[0].namespace(), "10.9.0.2", Duration::from_secs(10)));
        let before = pair.counted();
        let pinged = pair.routers[0].namespace().run("ping -n -q -c 10 -i 0.02 -W 2 10.9.0.2").unwrap();
        let after = pair.counted();
        let grown = |(before, after): (&Vec<u64>, &Vec<u64>)| -> Vec<u64> {
            before.iter().zip(after).map(|(before, after)| after - before).collect()
        };
        let grown: Vec<_> = before.iter().zip(&after).map(grown).collect();
        assert_eq!(grown, [[10, 840, 10, 840]; 2], "{kind}: {pinged}");
        pair.disconnect("");
    }
    pair.stop();
}

impl Pair {
    /// Packets and bytes that `tun1` has received and sent, of both routers.
    fn counted(&mut self) -> Vec<Vec<u64>> {
        let of = |shown: String| {
            let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
            let count = |way: &str, what: &str| shown[0]["stats64"][way][what].as_u64().unwrap();
            ["rx", "tx"].iter().flat_map(|way| ["packets", "bytes"].map(|what| count(way, what))).collect()
        };
        self.routers.iter_mut().map(|router| of(router.run("ip -s -j link show dev tun1"))).collect()
    }
}

/// The path MTU to an address that the host's kernel has learned.
fn learned(namespace: &Namespace, address: &str) -> Option<u64> {
    number(&namespace.run(&format!("ip route get {address}")).unwrap(), "mtu")
}

/// A router between the ends has a smaller MTU than the tunnel: the host gets ICMP errors about its own packets, and learns
/// the MTU, with and without addresses on the tunnel and whatever `rp_filter` is.
#[test]
fn the_host_learns_the_path_mtu_of_tunnels() {
    let Some(_turn) = turn("the_host_learns_the_path_mtu_of_tunnels") else { return };
    let middle = net::namespace("middle");
    let mut pair = Pair::over_narrow(UNDERPASS, &middle);
    pair.both("ip addr add 10.8.0.ME/32 dev lo");
    let kinds =
        [("ipip", ENDS, 20), ("gre", ENDS, 24), ("ip6tnl mode ipip6", ENDS6, 48), ("ip6gre", ENDS6, 52)];
    for (numbered, filter) in [(true, 0), (true, 1), (false, 0), (false, 2)] {
        for (kind, ends, overhead) in kinds {
            let what = format!("{kind}, numbered {numbered}, rp_filter {filter}");
            pair.both(&format!(
                "ip link add tun1 type {kind} {ends}
                 sysctl -qw net.ipv4.conf.tun1.rp_filter={filter}
                 ip link set tun1 up"
            ));
            let (from, to) = if numbered { ("10.9.0.1", "10.9.0.2") } else { ("10.8.0.1", "10.8.0.2") };
            pair.both(if numbered {
                "ip addr add 10.9.0.ME/24 dev tun1"
            } else {
                "ip route add 10.8.0.YOU dev tun1 src 10.8.0.ME"
            });
            let host = pair.routers[0].namespace().clone();
            pair.check(&what, settle(&host, to, Duration::from_secs(10)));
            let mtu = NARROW - overhead;
            let line =
                format!("ping -n -I {from} -c 4 -i 0.1 -W 1 -M do -s {} {to}", NARROW - Family::Four.ping());
            let outcome = host.outcome(&line).unwrap();
            assert!(outcome.output.contains(&format!("mtu = {mtu})")), "{what}: {}", outcome.output);
            assert_eq!(learned(&host, &format!("{to} from {from}")), Some(mtu.into()), "{what}");
            pair.check(&what, stream(&host, pair.routers[1].namespace(), to));
            pair.disconnect("");
        }
    }
    pair.stop();
}

/// Sends a packet of a protocol to an address, and prints what comes of it.
const SEND: &str = "
import errno, socket, sys
protocol, address = int(sys.argv[1]), sys.argv[2]
s = socket.socket(socket.AF_INET6 if ':' in address else socket.AF_INET, socket.SOCK_RAW, protocol)
s.connect((address, 0))
s.settimeout(1)
s.send(bytes([0, 0, 8, 0]) + bytes(60))
try:
    s.recv(1)
except OSError as error:
    print(errno.errorcode.get(error.errno, 'none'))
";
const LISTEN: &str = "
import socket, time
s = socket.socket(socket.AF_INET, socket.SOCK_RAW, 47)
time.sleep(60)
";

/// The router answers a packet that no tunnel takes as a Linux that has the tunnels does. Raw sockets of the host come
/// first.
#[test]
fn senders_hear_that_no_tunnel_takes_a_packet() {
    let Some(_turn) = turn("senders_hear_that_no_tunnel_takes_a_packet") else { return };
    let mut pair = Pair::new(&[], UNDERPASS);
    pair.routers[1].run(
        "ip link add t1 type ipip local 10.0.0.2 remote 10.0.0.99
         ip link add t2 type gre local 10.0.0.2 remote 10.0.0.99
         ip link add t3 type sit local 10.0.0.2 remote 10.0.0.99
         ip link add t4 type ip6tnl mode any local fd00::2 remote fd00::99
         ip link add t5 type ip6gre local fd00::2 remote fd00::99",
    );
    let host = pair.hosts[1].clone();
    pair.check("host", settle(&host, "10.2.0.1", Duration::from_secs(10)));
    pair.check("host", settle(&host, "fd10:2::1", Duration::from_secs(10)));
    std::thread::sleep(Duration::from_millis(1100));
    let send = |protocol: u8, address: &str| {
        let mut command = host.command("python3");
        let output = command.args(["-c", SEND, &protocol.to_string(), address]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    for protocol in [4, 41, 47, 137] {
        assert_eq!(send(protocol, "10.2.0.1"), "ECONNREFUSED", "{protocol}");
        assert_eq!(send(protocol, "fd10:2::1"), "ECONNREFUSED", "{protocol} over IPv6");
    }
    let mut listener = pair.routers[1].namespace().command("python3").args(["-c", LISTEN]).spawn().unwrap();
    // The router looks for sockets once a second, and the host may hear of one packet a second.
    let until = Instant::now() + Duration::from_secs(30);
    let heard = loop {
        std::thread::sleep(Duration::from_millis(1600));
        let heard = send(47, "10.2.0.1");
        if heard == "none" || Instant::now() > until {
            break heard;
        }
    };
    listener.kill().unwrap();
    listener.wait().unwrap();
    assert_eq!(heard, "none");
    pair.stop();
}

/// The router makes the fallback devices of a kind when it is used, as devices of the kernel's: one that is up takes what
/// no tunnel does. A device of the kernel's that has the name stays.
#[test]
fn fallback_devices_beside_a_kernel() {
    let Some(_turn) = turn("fallback_devices_beside_a_kernel") else { return };
    let mut pair = Pair::new(&[], UNDERPASS);
    // In a namespace that is not the initial one the variable is the router's.
    let variable = "net.core.fb_tunnels_only_for_init_net";
    pair.routers[0].run(&format!("sysctl -qw {variable}=2; ip link add t1 type ipip remote 10.0.0.9"));
    assert_eq!(
        pair.routers[0].run("ip tunnel show").trim(),
        "t1: any/ip remote 10.0.0.9 local any ttl inherit"
    );

    let router = &mut pair.routers[1];
    let refused = router.run("ip link add any type ipip 2>&1 || true");
    assert_eq!(refused.trim(), "RTNETLINK answers: File exists");
    let far = router.namespace().clone();
    far.run("ip link add sit0 type veth peer name other").unwrap();
    router.run("ip tunnel add g1 mode gre remote 10.0.0.9; ip link add s1 type sit remote 10.0.0.9");
    router.run("ip -6 tunnel add h1 mode ip6gre remote fd00::9; ip link del tunl0");
    let names = |shown: String| {
        let words = shown.lines().filter_map(|line| Some(line.split_once(':')?.0.to_owned()));
        words.filter(|word| !word.starts_with(' ')).collect::<Vec<_>>()
    };
    assert_eq!(names(router.run("ip tunnel show")), ["tunl0", "gre0", "g1", "s1"]);
    assert_eq!(names(router.run("ip -6 tunnel show")), ["ip6tnl0", "ip6gre0", "h1"]);
    let shown = router.run("ip -d link show tunl0");
    let lines: Vec<_> = shown.lines().map(str::trim).collect();
    assert!(lines[0].contains("tunl0@NONE: <NOARP> mtu 1480 qdisc noop state DOWN"), "{shown}");
    assert!(lines[1].starts_with("link/ipip 0.0.0.0 brd 0.0.0.0"), "{shown}");
    assert!(lines[2].starts_with("ipip any remote any local any ttl inherit nopmtudisc"), "{shown}");
    assert!(router.run("ip -d link show sit0").contains("veth"));
    let changed = router.run("ip tunnel change tunl0 mode ipip pmtudisc ttl 9; ip tunnel show tunl0");
    assert_eq!(changed.trim(), "tunl0: any/ip remote any local any ttl 9");
    assert!(router.run("ip link set gre0 type gre ttl 9 2>&1 || true").contains("Invalid argument"));

    // From the other router, by a tunnel that this one knows nothing of.
    pair.routers[0].run(
        "ip link set t1 type ipip local 10.0.0.1 remote 10.0.0.2; ip addr add 10.9.0.1/24 dev t1; ip link set t1 up",
    );
    pair.routers[1].run("ip addr add 10.9.0.2/32 dev lo; ip route add 10.9.0.1 via 10.0.0.1 dev core");
    let near = pair.routers[0].namespace().clone();
    let line = "ping -n -c 3 -i 0.1 -W 1 10.9.0.2";
    assert_ne!(near.outcome(line).unwrap().status, 0, "tunl0 is down");
    pair.routers[1].run("ip link set tunl0 up");
    pair.check("tunl0", settle(&near, "10.9.0.2", Duration::from_secs(10)));
    let count = |router: &mut super::super::mpls::Router| {
        let shown: serde_json::Value =
            serde_json::from_str(&router.run("ip -s -j link show dev tunl0")).unwrap();
        shown[0]["stats64"]["rx"]["packets"].as_u64().unwrap()
    };
    assert!(count(&mut pair.routers[1]) > 0);
    pair.stop();
}

/// A packet that leaves an encapsulation reaches the host although the return route uses another device, with `rp_filter` off
/// and loose.
#[test]
fn the_host_takes_what_has_another_way_back() {
    let Some(_turn) = turn("the_host_takes_what_has_another_way_back") else { return };
    let mut pair = Pair::new(&[], UNDERPASS);
    pair.both("sysctl -qw net.mpls.platform_labels=1000 net.mpls.conf.core.input=1; ip addr add 10.5ME.0.1/32 dev lo");
    pair.routers[0].run("ip route add 10.52.0.1 encap mpls 101 via 10.0.0.2 src 10.51.0.1");
    pair.routers[1].run("ip -f mpls route add 101 dev lo; ip route add 10.51.0.1 via 10.0.0.1");
    let [near, far] = [0, 1].map(|at| pair.routers[at].namespace().clone());
    for filter in [0, 2] {
        far.run(&format!("sysctl -qw net.ipv4.conf.all.rp_filter={filter}")).unwrap();
        pair.check("labels", settle(&near, "10.52.0.1", Duration::from_secs(5)));
        pair.check("labels", ping(&near, "10.52.0.1", 5));
    }
    pair.stop();
}

/// The hosts themselves speak through `bareudp`, whose port is theirs alone while it is up; the kernel shows it as a device
/// without addresses.
#[test]
fn bareudp_of_the_hosts() {
    let Some(_turn) = turn("bareudp_of_the_hosts") else { return };
    let mut pair = Pair::new(&[], UNDERPASS);
    pair.both(
        "ip link add tun1 type bareudp dstport 6635 ethertype ipv4 multiproto
         ip addr add 10.9.0.ME/32 dev tun1
         ip fou add port 6635 ipproto 4
         ip link set tun1 up && exit 1 || true
         ip fou del port 6635
         ip link set tun1 up
         ip fou add port 6635 ipproto 41 -6 && exit 1 || true
         ip link add tun2 type bareudp dstport 6635 ethertype ipv6 && exit 1 || true
         ip route add 10.9.0.YOU/32 encap ip6 dst fd00::YOU hoplimit 64 dev tun1",
    );
    let shown = pair.routers[0].run("ip -d link show tun1");
    for part in ["mtu 1500", "link/none", "bareudp dstport 6635 ethertype ip srcportmin 0 multiproto"] {
        assert!(shown.contains(part), "{part} is not in {shown}");
    }
    assert!(!shown.contains("tun1@") && !shown.contains("brd"), "{shown}");
    for (n, other) in [(0, "10.9.0.2"), (1, "10.9.0.1")] {
        let namespace = pair.routers[n].namespace();
        pair.check("bareudp", settle(namespace, other, Duration::from_secs(10)));
        pair.check("bareudp", ping(namespace, other, 10));
    }
    pair.stop();
}
