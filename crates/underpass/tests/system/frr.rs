//! FRR programs the router: zebra with its FPM plugin, staticd, bgpd and ldpd as Debian ships them.

mod daemons;
mod evpn;
mod newer;
mod restart;

use std::{fs, thread, time::Duration};

use underpass_daemon::testbed::Router;

use crate::net::{self, program};
use daemons::{
    FPM, Frr, GRACE, Offline, PATIENCE, PORTS, eventually, give, shows, there, tidy, twin, without_ids,
};

/// Static routes, ECMP, withdrawal, and a zebra that is killed and comes back with less.
#[test]
fn static_routes_over_fpm() {
    let Some(_turn) = net::turn("static_routes_over_fpm").filter(|_| there("static_routes_over_fpm")) else {
        return;
    };
    let namespace = twin("frr");
    let router = Offline::new(&namespace, true);
    router.run(PORTS);
    let mut frr = Frr::new(&namespace, &[]);
    frr.start("zebra", FPM);
    frr.start("staticd", "");
    frr.configure(&[
        "ip route 10.20.0.0/16 10.0.0.2",
        "ip route 10.20.0.0/16 10.1.0.2",
        "ip route 10.30.0.0/16 Null0",
        "ip route 10.40.0.0/16 10.1.0.9",
        "ipv6 route fd20::/32 fd00::2",
        "ipv6 route fd20::/32 fd01::2",
    ]);
    let routes = || without_ids(&router.run("ip -N route show proto 196; ip -N -6 route show proto 196"));
    let all = "10.20.0.0/16 metric 20\n\
               nexthop via 10.0.0.2 dev p0 weight 1\n\
               nexthop via 10.1.0.2 dev p1 weight 1\n\
               6 10.30.0.0/16 metric 20\n\
               10.40.0.0/16 via 10.1.0.9 dev p1 metric 20\n\
               fd20::/32 metric 20 pref medium\n\
               nexthop via fd00::2 dev p0 weight 1\n\
               nexthop via fd01::2 dev p1 weight 1";
    shows("all routes are programmed", routes, all);
    assert!(router.run("ip nexthop show").contains(" group "), "ECMP is a next-hop group");

    frr.configure(&["no ip route 10.20.0.0/16 10.1.0.2", "no ip route 10.30.0.0/16 Null0"]);
    let fewer = "10.20.0.0/16 via 10.0.0.2 dev p0 metric 20\n\
                 10.40.0.0/16 via 10.1.0.9 dev p1 metric 20\n\
                 fd20::/32 metric 20 pref medium\n\
                 nexthop via fd00::2 dev p0 weight 1\n\
                 nexthop via fd01::2 dev p1 weight 1";
    shows("one way and one route are withdrawn", routes, fewer);

    // A killed FRR leaves its routes. The next one counts its objects anew and knows less.
    frr.kill();
    thread::sleep(Duration::from_millis(300));
    assert_eq!(routes(), fewer);
    frr.start("zebra", FPM);
    frr.start("staticd", "ip route 10.40.0.0/16 10.0.0.9\nipv6 route fd20::/32 fd00::2\n");
    let last = "10.40.0.0/16 via 10.0.0.9 dev p0 metric 20\n\
                fd20::/32 via fd00::2 dev p0 metric 20 pref medium";
    shows("what is not sent again is swept", routes, last);
    frr.configure(&["no ip route 10.40.0.0/16 10.0.0.9", "no ipv6 route fd20::/32 fd00::2"]);
    shows("all is withdrawn", routes, "");
}

/// An L3VPN between two FRRs: SIDs with End.DT4 and End.DT6, and a headend, from bgpd over FPM.
///
/// The kernel may lack VRFs, so each zebra has a router of its own in the kernel's place (`kernel`); what the
/// other one (`router`) has came over FPM alone.
#[test]
fn srv6_l3vpn_over_fpm() {
    let Some(_turn) = net::turn("srv6_l3vpn_over_fpm").filter(|_| there("srv6_l3vpn_over_fpm")) else {
        return;
    };
    let [one, other] = ["frr-1", "frr-2"].map(net::namespace);
    underpass_daemon::testbed::join(&one, "p0", &other, "p0").unwrap();
    let sides = [(&one, 1, 2), (&other, 2, 1)].map(|(namespace, own, peer)| {
        // bgpd lets zebra send router advertisements; an address made from one would be the source of a session,
        // and unknown to zebra, which has the router's devices.
        namespace
            .run("sysctl -qw net.ipv6.conf.p0.accept_ra=0; ip link set lo up; ip link set p0 up")
            .unwrap();
        namespace.run(&format!("ip addr add fd00::{own}/64 dev p0 nodad")).unwrap();
        let ports = format!(
            "ip link set lo up
             ip link add vrf-1 type vrf table 100
             ip link set vrf-1 up
             ip link set p0 up
             ip link set p1 up
             ip link set p1 master vrf-1
             ip addr add fd00::{own}/64 dev p0
             ip addr add 10.{own}.0.1/24 dev p1"
        );
        let (kernel, router) = (Offline::new(namespace, false), Offline::new(namespace, true));
        kernel.run(&ports);
        router.run(&ports);
        let mut frr = Frr::new(namespace, &["exec", "--socket", &kernel.socket.display().to_string()]);
        frr.start("zebra", FPM);
        frr.locator(own);
        frr.start("bgpd", &bgp(own, peer));
        (frr, router, kernel)
    });
    let [(frr, router, kernel), _] = &sides;
    let sids = || router.run("ip -N -6 route show proto 186");
    eventually("the SIDs are programmed", || {
        let sids = sids();
        let has = |word: &str| sids.contains(word);
        match has("action End.DT4 vrftable 100 dev vrf-1") && has("action End.DT6 table 100 dev vrf-1") {
            true => Ok(()),
            false => Err(format!("{sids}\n{}", frr.vtysh(&["show segment-routing srv6 locator"]))),
        }
    });
    assert!(sids().lines().all(|line| line.starts_with("fd01:0:0:1:")), "{}", sids());
    let headend = || router.run("ip -N route show table 100 proto 186");
    eventually("the neighbour's prefix is programmed", || {
        let shown = headend();
        let whole = shown.starts_with("10.2.0.0/24 ")
            && shown.contains("encap seg6 mode encap segs 1 [ fd01:0:0:2:")
            && shown.contains("dev p0");
        if whole { Ok(()) } else { Err(format!("{shown}\n{}", frr.vtysh(&["show bgp ipv4 vpn"]))) }
    });
    // zebra under `underpass exec` has reported the other router the same by netlink.
    assert_eq!(kernel.run("ip -N route show table 100 proto 186"), headend());
    assert_eq!(kernel.run("ip -N -6 route show proto 186"), sids());
    // Withdrawn by the neighbour: the headend goes, the SIDs stay.
    let neighbour = &sides[1].0;
    neighbour.configure(&[
        "router bgp 2 vrf vrf-1",
        "address-family ipv4 unicast",
        "no redistribute connected",
    ]);
    shows("the neighbour's prefix is withdrawn", headend, "");
    assert_eq!(sids().lines().count(), 2);
    frr.end("bgpd");
    shows("the SIDs are withdrawn", sids, "");
}

/// Labels of `mpls lsp` and of static routes, over FPM to one router, by netlink to another in the kernel's place;
/// changed, withdrawn, and swept when zebra comes back with less.
#[test]
fn static_labels() {
    let Some(_turn) = net::turn("static_labels").filter(|_| there("static_labels")) else { return };
    let namespace = twin("frr-mpls");
    let (kernel, router) = (Offline::new(&namespace, false), Offline::new(&namespace, true));
    for router in [&kernel, &router] {
        router.run(&format!("{PORTS}\nsysctl -qw net.mpls.platform_labels=1000"));
    }
    let mut frr = Frr::new(&namespace, &["exec", "--socket", &kernel.socket.display().to_string()]);
    frr.start("zebra", FPM);
    frr.start("staticd", "");
    frr.configure(&[
        "mpls lsp 100 10.0.0.2 200",
        "mpls lsp 101 fd01::2 201",
        "mpls lsp 102 10.0.0.2 implicit-null",
        "mpls lsp 103 10.0.0.2 203",
        "mpls lsp 103 10.1.0.2 203",
        "ip route 10.20.0.0/16 10.0.0.2 label 300/301",
        "ipv6 route fd20::/32 fd01::2 label 400",
    ]);
    const LINES: &str = "ip -N -f mpls route; ip -N route show proto 196; ip -N -6 route show proto 196";
    let shown = |router: &Offline| without_ids(&router.run(LINES));
    let all = "100 as to 200 via inet 10.0.0.2 dev p0 proto 196\n\
               101 as to 201 via inet6 fd01::2 dev p1 proto 196\n\
               102 via inet 10.0.0.2 dev p0 proto 196\n\
               103 proto 196\n\
               nexthop as to 203 via inet 10.0.0.2 dev p0\n\
               nexthop as to 203 via inet 10.1.0.2 dev p1\n\
               10.20.0.0/16 encap mpls 300/301 via 10.0.0.2 dev p0 metric 20\n\
               fd20::/32 encap mpls 400 via fd01::2 dev p1 metric 20 pref medium";
    for router in [&router, &kernel] {
        shows("all labels are programmed", || shown(router), all);
    }
    frr.configure(&[
        "no mpls lsp 101",
        "no mpls lsp 103 10.0.0.2 203",
        "mpls lsp 100 10.1.0.2 210",
        "no mpls lsp 100 10.0.0.2 200",
        "no ipv6 route fd20::/32 fd01::2 label 400",
    ]);
    let fewer = "100 as to 210 via inet 10.1.0.2 dev p1 proto 196\n\
                 102 via inet 10.0.0.2 dev p0 proto 196\n\
                 103 as to 203 via inet 10.1.0.2 dev p1 proto 196\n\
                 10.20.0.0/16 encap mpls 300/301 via 10.0.0.2 dev p0 metric 20";
    for router in [&router, &kernel] {
        shows("labels are changed and withdrawn", || shown(router), fewer);
    }
    // A killed zebra leaves its labels to FPM; the next one knows less.
    frr.kill();
    frr.start("zebra", &format!("{FPM}mpls lsp 102 10.0.0.2 implicit-null\n"));
    let last = "102 via inet 10.0.0.2 dev p0 proto 196";
    shows("labels that are not sent again are swept", || shown(&router), last);
    frr.configure(&["no mpls lsp 102"]);
    shows("all is withdrawn", || shown(&router), "");
}

/// Beside a kernel without MPLS: labels over FPM and by netlink are one, and go with their withdrawal.
#[test]
fn static_labels_beside_the_kernel() {
    const NAME: &str = "static_labels_beside_the_kernel";
    let Some(_turn) = net::turn(NAME).filter(|_| there(NAME)) else { return };
    let namespace = twin("frr-mpls-live");
    let arguments = ["--socket-group", "frr", "--fpm", "127.0.0.1", "--fpm-grace", GRACE];
    let arguments = [&arguments[..], &["--attach", "p0", "--attach", "p1"]].concat();
    let router = Router::start(program(), &namespace, &arguments).unwrap();
    router.run("sysctl -qw net.mpls.platform_labels=1000 net.mpls.conf.p0.input=1").unwrap();
    let mut frr = Frr::new(&namespace, &["exec"]);
    frr.start("zebra", FPM);
    frr.start("staticd", "");
    frr.configure(&["mpls lsp 100 10.1.0.2 200", "ip route 10.20.0.0/16 10.0.0.2 label 300"]);
    let shown = || {
        let text = router.run("ip -N -f mpls route; ip -N route show 10.20.0.0/16").unwrap();
        without_ids(&tidy(&text))
    };
    eventually("the label and the encapsulation are there", || {
        let shown = shown();
        let whole = shown
            .starts_with("100 as to 200 via inet 10.1.0.2 dev p1 proto 196\n10.20.0.0/16 encap mpls 300 ");
        if whole && shown.lines().count() == 2 { Ok(()) } else { Err(shown) }
    });
    // What the host sends there comes to the router.
    assert!(namespace.run("ip route get 10.20.0.1").unwrap().contains("dev underpass0"));
    frr.configure(&["no mpls lsp 100 10.1.0.2 200", "no ip route 10.20.0.0/16 10.0.0.2 label 300"]);
    shows("all is withdrawn", shown, "");
    let log = router.log().unwrap();
    assert!(!log.contains("could not be removed"), "{log}");
    drop(frr);
    router.stop().unwrap();
}

/// Labels that two ldpds agree on carry pings between hosts behind their routers, and go with the neighbour.
///
/// ```text
/// h1 ──── p1 r1 p0 ──── p0 r2 p1 ──── h2
/// ```
#[test]
fn ldp_between_routers() {
    const NAME: &str = "ldp_between_routers";
    let Some(_turn) = net::turn(NAME).filter(|_| there(NAME)) else { return };
    let routers = ["frr-r1", "frr-r2"].map(|name| net::Node::new(name).namespace);
    let hosts = ["h1", "h2"].map(net::namespace);
    underpass_daemon::testbed::join(&routers[0], "p0", &routers[1], "p0").unwrap();
    let mut sides = Vec::new();
    for (own, (namespace, host)) in (1..).zip(routers.iter().zip(&hosts)) {
        let peer = 3 - own;
        underpass_daemon::testbed::join(host, "eth0", namespace, "p1").unwrap();
        host.run(&format!(
            "ip link set eth0 up
             ip addr add 10.{own}.0.2/24 dev eth0
             ip route add default via 10.{own}.0.1"
        ))
        .unwrap();
        namespace
            .run(&format!(
                "ip link set p0 up
                 ip link set p1 up
                 ip addr add 10.0.0.{own}/24 dev p0
                 ip addr add 10.{own}.0.1/24 dev p1"
            ))
            .unwrap();
        let arguments = ["--socket-group", "frr", "--fpm", "127.0.0.1", "--fpm-grace", GRACE];
        let router = Router::start(program(), namespace, &arguments).unwrap();
        router.run("sysctl -qw net.mpls.platform_labels=1000 net.mpls.conf.p0.input=1").unwrap();
        let mut frr = Frr::new(namespace, &["exec"]);
        frr.start("zebra", FPM);
        frr.start("staticd", &format!("ip route 10.{peer}.0.0/24 10.0.0.{peer}\n"));
        let ldp = format!(
            "mpls ldp\n router-id 1.1.1.{own}\n address-family ipv4\n  discovery transport-address 10.0.0.{own}\n  \
             label local advertise explicit-null\n  interface p0\n  exit\n exit-address-family\n exit\n"
        );
        frr.start("ldpd", &ldp);
        sides.push((frr, router));
    }
    let shown = |side: usize, lines: &str| tidy(&sides[side].1.run(lines).unwrap());
    eventually("both routers have labels", || {
        for (side, peer) in [(0, 2), (1, 1)] {
            let (encapsulation, labels) =
                (shown(side, &format!("ip route show 10.{peer}.0.0/24")), shown(side, "ip -N -f mpls route"));
            let switched = format!(" as to 0 via inet 10.0.0.{peer} dev p0 proto 193");
            if !encapsulation.contains(" encap mpls 0 ") || labels.matches(&switched).count() != 1 {
                let log = fs::read_to_string(sides[side].0.path("log")).unwrap_or_default();
                return Err(format!("{encapsulation}\n{labels}\n{log}"));
            }
        }
        Ok(())
    });
    net::settle(&hosts[0], "10.2.0.2", PATIENCE).unwrap();
    net::ping(&hosts[0], "10.2.0.2", 20).unwrap();
    // They do carry a label.
    sides[1].1.run("sysctl -qw net.mpls.conf.p0.input=0").unwrap();
    assert_ne!(hosts[0].outcome("ping -n -c 1 -W 1 10.2.0.2").unwrap().status, 0);
    sides[1].1.run("sysctl -qw net.mpls.conf.p0.input=1").unwrap();
    net::ping(&hosts[0], "10.2.0.2", 3).unwrap();
    // Without the neighbour's ldpd the way is plain again.
    sides[1].0.end("ldpd");
    eventually("the labels are withdrawn", || {
        let shown = shown(0, "ip route show 10.2.0.0/24; ip -f mpls route");
        if shown.contains("encap") || shown.contains("as to") { Err(shown) } else { Ok(()) }
    });
    net::settle(&hosts[0], "10.2.0.2", PATIENCE).unwrap();
    net::ping(&hosts[0], "10.2.0.2", 3).unwrap();
}

fn bgp(own: u8, peer: u8) -> String {
    let family = |family: &str| {
        format!(
            " address-family {family} unicast\n  redistribute connected\n  sid vpn export auto\n  \
             rd vpn export {own}:10\n  rt vpn both 99:99\n  import vpn\n  export vpn\n exit-address-family\n"
        )
    };
    format!(
        "router bgp {own}\n bgp router-id 1.1.1.{own}\n no bgp ebgp-requires-policy\n \
         no bgp default ipv4-unicast\n neighbor fd00::{peer} remote-as {peer}\n \
         neighbor fd00::{peer} timers connect 1\n neighbor fd00::{peer} capability extended-nexthop\n \
         segment-routing srv6\n  locator loc1\n exit\n \
         address-family ipv4 vpn\n  neighbor fd00::{peer} activate\n exit-address-family\n\
         exit\n\
         router bgp {own} vrf vrf-1\n bgp router-id 1.1.1.{own}\n{}{}exit\n",
        family("ipv4"),
        family("ipv6"),
    )
}

/// Beside a kernel: zebra writes its routes to the kernel too. Each is there once, and is removed once.
#[test]
fn beside_the_kernel() {
    let Some(_turn) = net::turn("beside_the_kernel").filter(|_| there("beside_the_kernel")) else { return };
    let namespace = twin("frr-live");
    let arguments = ["--attach", "p0", "--attach", "p1", "--fpm", "127.0.0.1", "--fpm-grace", GRACE];
    let router = Router::start(program(), &namespace, &arguments).unwrap();
    let mut frr = Frr::new(&namespace, &[]);
    frr.start("zebra", FPM);
    frr.start("staticd", "");
    frr.configure(&["ip route 10.20.0.0/16 10.0.0.2", "ip route 10.20.0.0/16 10.1.0.2"]);
    let shown = || tidy(&router.run("ip -N route show 10.20.0.0/16").unwrap());
    eventually("the route is there once", || {
        let (shown, kernel) = (shown(), tidy(&namespace.run("ip -N route show 10.20.0.0/16").unwrap()));
        let whole = shown.matches("10.20.0.0/16").count() == 1 && shown.matches("nexthop").count() == 2;
        if whole && shown == kernel { Ok(()) } else { Err(format!("{shown}\nand the kernel\n{kernel}")) }
    });
    let counters = || frr.vtysh(&["show fpm counters"]);
    eventually("zebra has sent it over FPM too", || {
        let counters = counters();
        let sent = counters.lines().find_map(|line| line.trim().strip_prefix("Output bytes: "));
        if sent.is_some_and(|sent| sent != "0") { Ok(()) } else { Err(counters) }
    });
    frr.configure(&["no ip route 10.20.0.0/16 10.0.0.2", "no ip route 10.20.0.0/16 10.1.0.2"]);
    shows("the route is withdrawn", shown, "");
    let log = router.log().unwrap();
    assert!(!log.contains("could not be removed"), "{log}");
    drop(frr);
    router.stop().unwrap();
}

/// The same L3VPN beside kernels: `zebra` under `underpass exec`, and FPM besides. The VRFs are
/// the router's own.
#[test]
fn srv6_l3vpn_beside_kernels() {
    const NAME: &str = "srv6_l3vpn_beside_kernels";
    let Some(_turn) = net::turn(NAME).filter(|_| there(NAME)) else { return };
    let [one, other] = ["frr-r1", "frr-r2"].map(|name| net::Node::new(name).namespace);
    underpass_daemon::testbed::join(&one, "p0", &other, "p0").unwrap();
    let sides = [(&one, 1, 2), (&other, 2, 1)].map(|(namespace, own, peer)| {
        namespace.run("ip link add p1 type veth peer name x1; ip link set x1 up").unwrap();
        namespace.run("ip link set lo up; ip link set p0 up; ip link set p1 up").unwrap();
        namespace.run(&format!("ip addr add fd00::{own}/64 dev p0 nodad")).unwrap();
        let arguments = ["--socket-group", "frr", "--fpm", "127.0.0.1", "--fpm-grace", GRACE];
        let router = Router::start(program(), namespace, &arguments).unwrap();
        router
            .run(&format!(
                "ip link add vrf-1 type vrf table 100
                 ip link set vrf-1 up
                 ip link set p1 master vrf-1
                 ip addr add 10.{own}.0.1/24 dev p1"
            ))
            .unwrap();
        let mut frr = Frr::new(namespace, &["exec"]);
        frr.start("zebra", FPM);
        frr.locator(own);
        frr.start("staticd", &format!("ipv6 route fd01:0:0:{peer}::/64 fd00::{peer}\n"));
        frr.start("bgpd", &bgp(own, peer));
        (frr, router)
    });
    eventually("the routes are there", || {
        let [(_, router), _] = &sides;
        let shown = router.run("ip -6 route show; ip route show table 100").unwrap();
        let whole = ["action End.DT4 ", "segs 1 [ fd01:0:0:2:100:: ]", "fd01:0:0:2::/64 "];
        if whole.iter().all(|word| shown.contains(word)) { Ok(()) } else { Err(shown) }
    });
    // SIDs that are announced are SIDs that are there.
    assert!(sides[1].1.run("ip -6 route show fd01:0:0:2:100::").unwrap().contains("action End.DT4 "));
    let [(frr, router), (_, second)] = &sides;
    let once = |lines: &str, wanted: &str| {
        let shown = router.run(lines).unwrap();
        assert_eq!(shown.matches(wanted).count(), 1, "{wanted} in {shown}");
    };
    once("ip route show table 100", "10.2.0.0/24 ");
    once("ip -6 route show", "action End.DT4 ");
    once("ip -6 route show", "fd01:0:0:2::/64 ");
    frr.end("bgpd");
    eventually("all of bgpd's is withdrawn", || {
        let shown =
            router.run("ip -N -6 route show proto 186; ip -N route show table 100 proto 186").unwrap();
        if shown.is_empty() { Ok(()) } else { Err(shown) }
    });
    for log in [router.log().unwrap(), second.log().unwrap()] {
        assert!(!log.contains("FPM: refused") && !log.contains("could not be removed"), "{log}");
    }
}
