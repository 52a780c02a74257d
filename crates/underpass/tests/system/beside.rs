//! What the kernel beside the router does and is told: its rules and routes, its neighbours, its router
//! advertisements, its devices.

use std::{
    thread,
    time::{Duration, Instant},
};

use underpass_daemon::{
    kernel::Requester,
    testbed::{Namespace, Router},
};

use crate::net::{self, Line, program, settle};

impl Line {
    /// Pings across with these options are answered, or none is.
    fn answered(&self, options: &str, address: &str) -> bool {
        match net::pings(&self.hosts[0], &format!("{options} {address}"), 4) {
            Ok(_) => true,
            Err(told) if told.contains(" 0 received") => false,
            Err(told) => panic!("{told}"),
        }
    }
}

/// A rule of the kernel's that `ip` of this machine cannot make: `lookup 99` at this priority.
fn rule(namespace: &Namespace, family: i32, priority: u32, attributes: &[(u16, Vec<u8>)]) {
    const FRA_PRIORITY: u16 = 6;
    const FRA_TABLE: u16 = 15;
    let add = || {
        Requester::open().unwrap().request(libc::RTM_NEWRULE, 0x600, |message| {
            message.fixed(&[family as u8, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0]);
            message.u32(FRA_PRIORITY, priority);
            message.u32(FRA_TABLE, 99);
            attributes.iter().for_each(|(kind, value)| {
                message.attribute(*kind, value);
            });
        })
    };
    namespace.enter(add).unwrap().unwrap();
}

/// Rules by DSCP, flow label and ports under a mask, as new kernels tell of them, take their packets and no others.
#[test]
fn rules_with_new_selectors() {
    let Some(_turn) = net::turn("rules_with_new_selectors") else { return };
    let line = Line::new();
    line.router
        .run("ip route add blackhole default table 99; ip -6 route add blackhole default table 99")
        .unwrap();
    let router = line.start(&[]);
    for address in ["10.0.2.2", "fd00:2::2"] {
        settle(&line.hosts[0], address, Duration::from_secs(5)).unwrap();
    }
    // FRA_DSCP; FRA_FLOWLABEL and its mask; FRA_IP_PROTO, FRA_SPORT_RANGE and FRA_SPORT_MASK.
    let word = |value: u32| value.to_be_bytes().to_vec();
    rule(&line.router, libc::AF_INET, 100, &[(25, vec![10])]);
    rule(&line.router, libc::AF_INET6, 100, &[(25, vec![10])]);
    rule(&line.router, libc::AF_INET6, 101, &[(26, word(0x77)), (27, word(0xff))]);
    let port = [80u16.to_ne_bytes(), 80u16.to_ne_bytes()].concat();
    let masked = [(22, vec![17]), (23, port), (28, 0xff_u16.to_ne_bytes().to_vec())];
    rule(&line.router, libc::AF_INET, 102, &masked);
    for (options, address, wanted) in [
        ("", "10.0.2.2", true),
        ("-Q 0x28", "10.0.2.2", false),
        ("-Q 0x48", "10.0.2.2", true),
        ("", "fd00:2::2", true),
        ("-Q 0x28", "fd00:2::2", false),
        ("-F 0x177", "fd00:2::2", false),
        ("-F 0x178", "fd00:2::2", true),
    ] {
        assert_eq!(line.answered(options, address), wanted, "{options} {address}\n{}", router.log().unwrap());
    }
    for (port, wanted) in [(0x150, false), (0x151, true)] {
        let lines =
            "timeout 3 /usr/bin/python3 -c 'import socket; s=socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind((\"\", 7)); s.settimeout(1.5); print(s.recv(9))' & sleep 0.5; echo; wait";
        let (receiver, sender) = (&line.hosts[1], &line.hosts[0]);
        let got = thread::scope(|scope| {
            let receiving = scope.spawn(|| receiver.outcome(lines).unwrap());
            thread::sleep(Duration::from_millis(700));
            let send = format!(
                "/usr/bin/python3 -c 'import socket; s=socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind((\"\", {port})); s.sendto(b\"here\", (\"10.0.2.2\", 7))'"
            );
            sender.run(&send).unwrap();
            receiving.join().unwrap().output
        });
        assert_eq!(got.contains("here"), wanted, "{port:#x}: {got}");
    }
    assert!(!router.log().unwrap().contains("left to the kernel"), "{}", router.log().unwrap());
    router.stop().unwrap();
}

/// What the router cannot follow of the kernel's rules and routes the kernel does, though it does not forward
/// otherwise.
#[test]
fn strange_rules_and_routes_are_the_kernels() {
    let Some(_turn) = net::turn("strange_rules_and_routes_are_the_kernels") else { return };
    let line = Line::new();
    line.router.run("sysctl -qw net.ipv4.ip_forward=0 net.ipv6.conf.all.forwarding=0").unwrap();
    let router = line.start(&[]);
    for address in ["10.0.2.2", "fd00:2::2"] {
        settle(&line.hosts[0], address, Duration::from_secs(5)).unwrap();
    }
    for (family, address, subnet) in [("-4", "10.0.2.2", "10.0.2.0/24"), ("-6", "fd00:2::2", "fd00:2::/64")] {
        // The main table is passed over where it leads to a device of group 5. Then nothing is reached.
        line.router
            .run(&format!(
                "ip {family} rule add priority 200 blackhole to {subnet}
                 ip {family} rule add priority 100 lookup main suppress_ifgroup 5; sleep 0.2"
            ))
            .unwrap();
        assert!(line.answered("", address), "{}", router.log().unwrap());
        line.router.run("ip link set v2 group 5; sleep 0.2").unwrap();
        assert!(!line.answered("", address), "{}", router.log().unwrap());
        line.router
            .run(&format!(
                "ip link set v2 group 0; ip {family} rule del priority 100; ip {family} rule del priority 200; sleep 0.2"
            ))
            .unwrap();
        assert!(line.answered("", address), "{}", router.log().unwrap());
    }
    // A route by tos takes its packets alone.
    line.router.run("ip route add blackhole 10.0.2.2/32 tos 0x10; sleep 0.2").unwrap();
    assert!(!line.answered("-Q 0x10", "10.0.2.2"), "{}", router.log().unwrap());
    // Of the kernel's route to that address alone the others know nothing: the next longer one has it.
    assert!(line.answered("", "10.0.2.2"), "{}", router.log().unwrap());
    assert!(router.log().unwrap().contains("left to the kernel"), "{}", router.log().unwrap());
    router.stop().unwrap();
}

/// Gateways, and segments on the link, are resolved when a route names them, and when the device is attached.
#[test]
fn neighbours_are_asked_for_before_packets_come() {
    let Some(_turn) = net::turn("neighbours_are_asked_for_before_packets_come") else { return };
    let line = Line::new();
    line.router.run("ip route add 10.8.0.0/16 via 10.0.1.2").unwrap();
    let router = line.start(&[]);
    let known = |address: &str| {
        let deadline = Instant::now() + Duration::from_secs(4);
        loop {
            let shown = line.router.run(&format!("ip neigh show {address}")).unwrap();
            if shown.contains("REACHABLE") || shown.contains("STALE") {
                return;
            }
            assert!(Instant::now() < deadline, "{address}: {shown}\n{}", router.log().unwrap());
            thread::sleep(Duration::from_millis(50));
        }
    };
    known("10.0.1.2");
    line.router.run("ip route add 10.9.0.0/16 via 10.0.2.2").unwrap();
    known("10.0.2.2");
    router.run("ip -6 route add 2001:db8:1::/48 encap seg6 mode encap segs fd00:2::2 dev v2").unwrap();
    known("fd00:2::2");
    router.run("ip -6 route add fc00:7::/64 encap seg6local action End.X nh6 fd00:1::2 dev v1").unwrap();
    known("fd00:1::2");
    router.stop().unwrap();
}

/// A router advertisement from the second host, which then is the default router of whoever takes it.
const ADVERTISE: &str = "/usr/bin/python3 -c \"
from scapy.all import *
mac = get_if_hwaddr('e0')
own = [l.split()[1].split('/')[0] for l in open('/dev/stdin')][0]
sendp(Ether(src=mac, dst='33:33:00:00:00:01')/IPv6(src=own, dst='ff02::1', hlim=255)
  /ICMPv6ND_RA(routerlifetime=600)/ICMPv6NDOptSrcLLAddr(lladdr=mac), iface='e0', verbose=False)
\" 2>/dev/null";

/// With the router, `accept_ra` means what it means on a router: packets that pass through follow a route of a router
/// advertisement where it is 2 alone. What the host sends itself does.
#[test]
fn router_advertisements() {
    let Some(_turn) = net::turn("router_advertisements") else { return };
    let line = Line::new();
    if line.hosts[1].outcome("/usr/bin/python3 -c 'import scapy.all'").unwrap().status != 0 {
        return net::skip("router_advertisements", "no scapy");
    }
    // One that says in its neighbour advertisements that it is no router is forgotten as one.
    line.hosts[1]
        .run(
            "sysctl -qw net.ipv6.conf.all.forwarding=1; ip link set lo up; ip addr add fd00:77::1/128 dev lo",
        )
        .unwrap();
    line.router.run("sysctl -qw net.ipv6.conf.all.forwarding=0 net.ipv6.conf.v2.accept_ra=1").unwrap();
    let router = line.start(&[]);
    settle(&line.hosts[0], "fd00:2::2", Duration::from_secs(5)).unwrap();
    let shown = |wanted: &str| {
        let deadline = Instant::now() + Duration::from_secs(8);
        while !line.router.run("ip -6 route show default").unwrap().contains(wanted) {
            // Link-local addresses are looked at for duplicates first.
            let _ = line.hosts[1].outcome(&format!(
                "ip -o -6 addr show dev e0 scope link -tentative | sed 's/.*inet6/inet6/' | {ADVERTISE}"
            ));
            assert!(Instant::now() < deadline, "no route of an advertisement");
            thread::sleep(Duration::from_millis(200));
        }
    };
    shown("proto ra");
    thread::sleep(Duration::from_millis(1200));
    assert!(!line.answered("", "fd00:77::1"), "{}", router.log().unwrap());
    line.router.run("ping -n -c 1 -W 2 fd00:77::1").unwrap();
    line.router.run("sysctl -qw net.ipv6.conf.v2.accept_ra=2; sleep 1.5").unwrap();
    assert!(line.answered("", "fd00:77::1"), "{}", router.log().unwrap());
    line.router.run("sysctl -qw net.ipv6.conf.v2.accept_ra=1; sleep 1.5").unwrap();
    assert!(!line.answered("", "fd00:77::1"), "{}", router.log().unwrap());
    router.stop().unwrap();
    assert_eq!(line.router.run("cat /proc/sys/net/ipv6/conf/v2/accept_ra").unwrap().trim(), "1");
    assert!(line.router.run("ip -6 route show default").unwrap().contains("proto ra"));
}

/// The device of the host is made anew when it is deleted: the host's packets go on into encapsulations.
#[test]
fn the_device_of_the_host_comes_back() {
    let Some(_turn) = net::turn("the_device_of_the_host_comes_back") else { return };
    let line = Line::new();
    let (router, far) = (line.start(&[]), Router::start(program(), &line.hosts[1], &[]).unwrap());
    for (router, local, remote, n) in
        [(&router, "10.0.2.1", "10.0.2.2", 1), (&far, "10.0.2.2", "10.0.2.1", 2)]
    {
        router
            .run(&format!(
                "ip link add t0 type ipip external; ip link set t0 up; ip addr add 10.9.0.{n}/32 dev t0
                 ip route add 10.9.0.0/24 encap ip id 1 src {local} dst {remote} dev t0"
            ))
            .unwrap();
    }
    settle(&line.router, "10.9.0.2", Duration::from_secs(5)).unwrap();
    let index = || line.router.run("ip -o link show underpass0 | cut -d: -f1").unwrap();
    for _ in 0..3 {
        let before = index();
        line.router.run("ip link del underpass0; sleep 0.3").unwrap();
        assert_ne!(index(), before, "{}", router.log().unwrap());
        settle(&line.router, "10.9.0.2", Duration::from_secs(5)).unwrap();
    }
    // And what has come from the other side for the host.
    settle(&line.hosts[0], "10.0.1.1", Duration::from_secs(5)).unwrap();
    router.stop().unwrap();
    far.stop().unwrap();
    assert!(!line.router.run("ip link").unwrap().contains("underpass0"));
}

/// A symbolic link in the place of the lock file is not followed.
#[test]
fn the_lock_is_no_link() {
    let Some(_turn) = net::turn("the_lock_is_no_link") else { return };
    let namespace = net::namespace("lock");
    let inode = namespace.run("stat -L -c %i /proc/self/ns/net").unwrap();
    let target = std::env::temp_dir().join(format!("underpass-lock-{}", std::process::id()));
    std::fs::write(&target, "mine").unwrap();
    let lock = format!("/run/underpass/netns-{}.lock", inode.trim());
    std::fs::create_dir_all("/run/underpass").unwrap();
    std::os::unix::fs::symlink(&target, &lock).unwrap();
    let outcome = namespace.outcome(&format!("timeout 3 {} run", program().display())).unwrap();
    let (left, _) = (std::fs::read_to_string(&target).unwrap(), std::fs::remove_file(&lock));
    std::fs::remove_file(&target).unwrap();
    assert_eq!(left, "mine");
    assert!(outcome.status == 1 && outcome.output.contains(&lock), "{}", outcome.output);
}

/// What the kernel filters is said when a device is attached and when it appears, and `tc` shows it under `exec`.
#[test]
fn filters_of_the_kernel_are_told() {
    let Some(_turn) = net::turn("filters_of_the_kernel_are_told") else { return };
    let line = Line::new();
    // What of it this kernel has.
    let has = |lines: &str| line.router.outcome(lines).unwrap().status == 0;
    let clsact = has(
        "tc qdisc add dev v1 clsact && tc filter add dev v1 ingress u32 match ip dst 10.99.0.0/16 flowid 1:7",
    );
    let root = has("tc qdisc add dev v2 root handle 7: tbf rate 20mbit burst 10k latency 50ms");
    let router = line.start(&[]);
    let told = |wanted: &str| {
        let deadline = Instant::now() + Duration::from_secs(5);
        while !router.log().unwrap().contains(wanted) {
            assert!(Instant::now() < deadline, "{wanted}: {}", router.log().unwrap());
            thread::sleep(Duration::from_millis(50));
        }
    };
    let doctor = || line.router.outcome(&format!("{} doctor", program().display())).unwrap().output;
    if clsact {
        told("v1: the kernel has tc filters (u32) at ingress");
        assert!(doctor().contains("tc filters (u32) at ingress"), "{}", doctor());
        assert!(router.run("tc qdisc show dev v1").unwrap().contains("clsact"));
        router.run("tc qdisc add dev v1 clsact; tc filter add dev v1 ingress matchall action ok").unwrap();
        let shown = router.run("tc filter show dev v1 ingress").unwrap();
        let [theirs, ours] = ["u32", "matchall"].map(|kind| shown.find(kind));
        assert!(theirs.is_some() && theirs < ours, "the kernel's come first: {shown}");
        line.router.run("tc qdisc del dev v1 clsact").unwrap();
        told("v1: the kernel has no tc filters (u32) at ingress any more");
        assert!(!router.run("tc filter show dev v1 ingress").unwrap().contains("u32"));
    }
    if root {
        told("v2: the kernel has qdisc tbf 7: at the root");
        router.run("tc qdisc add dev v2 root handle 8: tbf rate 30mbit burst 10k latency 50ms").unwrap();
        let shown = router.run("tc qdisc show dev v2").unwrap();
        let [theirs, ours] = ["tbf 7:", "tbf 8:"].map(|handle| shown.find(handle));
        assert!(theirs.is_some() && theirs < ours, "the kernel's come first: {shown}");
    }
    let nft = "nft 'add table inet up; add chain inet up guard { type filter hook forward priority 0; }; \
               add rule inet up guard ip daddr 10.0.2.2 drop'";
    if has(nft) {
        told("all devices: the kernel has nftables chain inet up guard at forward");
        assert!(doctor().contains("nftables chain inet up guard at forward"), "{}", doctor());
        line.router.run("nft delete table inet up").unwrap();
        told("the kernel has no nftables chain inet up guard at forward any more");
    } else {
        net::skip("filters_of_the_kernel_are_told", "no nftables");
    }
    router.stop().unwrap();
}

/// With `--kernel-filters leave` the kernel keeps the devices that it filters, and what it filters stays filtered.
#[test]
fn devices_with_filters_are_left() {
    let Some(_turn) = net::turn("devices_with_filters_are_left") else { return };
    let line = Line::new();
    line.router.run("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1").unwrap();
    let police = "tc qdisc add dev v1 clsact; tc filter add dev v1 ingress protocol ip u32 match ip dst 10.0.2.2/32 \
                  match ip tos 0x10 0xff action drop";
    let nft = "nft 'add table ip up; add chain ip up guard { type filter hook forward priority 0; }; \
               add rule ip up guard ip dscp 4 drop'";
    let (filter, undo) = match line.router.outcome(police).unwrap().status {
        0 => (police, "tc qdisc del dev v1 clsact"),
        _ if line.router.outcome(nft).unwrap().status == 0 => (nft, "nft delete table ip up"),
        _ => return net::skip("devices_with_filters_are_left", "neither filters nor nftables"),
    };
    let router = line.start(&["--kernel-filters", "leave"]);
    let attached = || {
        let shown = line.router.run(&format!("{} stats --json", program().display())).unwrap();
        shown.contains("\"v1\"")
    };
    let wait = |wanted: bool| {
        let deadline = Instant::now() + Duration::from_secs(6);
        while attached() != wanted {
            assert!(Instant::now() < deadline, "{}", router.log().unwrap());
            thread::sleep(Duration::from_millis(100));
        }
    };
    assert!(!attached(), "{}", router.log().unwrap());
    settle(&line.hosts[0], "10.0.2.2", Duration::from_secs(5)).unwrap();
    assert!(!line.answered("-Q 0x10", "10.0.2.2"), "{}", router.log().unwrap());
    // Gone, and there again, while the router runs.
    line.router.run(undo).unwrap();
    wait(true);
    settle(&line.hosts[0], "10.0.2.2", Duration::from_secs(5)).unwrap();
    assert!(line.answered("-Q 0x10", "10.0.2.2"), "{}", router.log().unwrap());
    line.router.run(filter).unwrap();
    wait(false);
    assert!(!line.answered("-Q 0x10", "10.0.2.2"), "{}", router.log().unwrap());
    router.stop().unwrap();
}
