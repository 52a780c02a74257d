//! EVPN: FRR tells VXLANs of the router's, ports of bridges of the kernel's or its own, where stations are (RFC 8365).

use underpass_daemon::testbed::{Namespace, Router, join};

use super::newer::of_tools;
use super::{Frr, eventually, give, there};
use crate::net::{self, program};
use crate::newer::Tools;

/// The host that moves.
const MOVES: &str = "02:00:00:00:70:02";

/// A router with a bridge of its hosts and of a VXLAN, which learns nothing; a VRF, routed through another VXLAN; and FRR.
fn leaf(
    namespace: &Namespace,
    (own, peer): (u8, u8),
    options: &[&str],
    frr: &dyn Fn(&Namespace) -> Frr,
) -> (Frr, Router) {
    let options = [&["--socket-group", "frr"], options].concat();
    let router = Router::start(program(), namespace, &options).unwrap();
    router
        .run(&format!(
            "ip link set core up
             ip addr add 10.0.0.{own}/24 dev core
             ip link add br100 type bridge
             ip link set br100 up
             ip link add vxlan100 type vxlan id 100 dstport 4789 local 10.0.0.{own} nolearning
             ip link set vxlan100 master br100
             ip link set vxlan100 type bridge_slave learning off
             ip link set vxlan100 up
             ip link set cust master br100
             ip link set cust up
             ip link add vrf1 type vrf table 100
             ip link set vrf1 up
             ip link add br200 type bridge
             ip link set br200 master vrf1
             ip link set br200 up
             ip link add vxlan200 type vxlan id 200 dstport 4789 local 10.0.0.{own} nolearning
             ip link set vxlan200 master br200
             ip link set vxlan200 type bridge_slave learning off
             ip link set vxlan200 up
             ip link set tenant master vrf1
             ip link set tenant up
             ip addr add 10.80.{own}.1/24 dev tenant"
        ))
        .unwrap();
    let mut frr = frr(namespace);
    frr.start("zebra", "");
    frr.start(
        "bgpd",
        &format!(
            "router bgp 65000
              bgp router-id 10.0.0.{own}
              no bgp default ipv4-unicast
              neighbor 10.0.0.{peer} remote-as 65000
              neighbor 10.0.0.{peer} timers connect 1
              address-family l2vpn evpn
               neighbor 10.0.0.{peer} activate
               advertise-all-vni
              exit-address-family
             exit
             router bgp 65000 vrf vrf1
              address-family ipv4 unicast
               redistribute connected
              exit-address-family
              address-family l2vpn evpn
               advertise ipv4 unicast
              exit-address-family
             exit\n"
        ),
    );
    frr.configure(&["vrf vrf1", "vni 200"]);
    (frr, router)
}

fn host(name: &str, leaf: &Namespace, port: &str, address: &str, mac: &str) -> Namespace {
    let host = net::namespace(name);
    join(&host, "eth0", leaf, port).unwrap();
    host.run(&format!(
        "ip link set eth0 address {mac} mtu 1400 up
         ip addr add {address}/24 dev eth0"
    ))
    .unwrap();
    host
}

/// What the VXLAN of a router knows of a station.
fn knows(router: &Router, station: &str, wanted: &str) {
    eventually(&format!("{station} is {wanted}"), || {
        let shown = router.run("bridge fdb show dev vxlan100").unwrap();
        let line = shown.lines().find(|line| line.starts_with(station) && line.contains(" self"));
        let is =
            if wanted == "gone" { line.is_none() } else { line.is_some_and(|line| line.contains(wanted)) };
        if is { Ok(()) } else { Err(shown) }
    });
}

fn reaches(host: &Namespace, address: &str) {
    eventually(&format!("{address} answers"), || {
        host.run(&format!("ping -c 1 -W 1 {address}")).map(|_| ()).map_err(|error| error.to_string())
    });
}

#[test]
fn evpn_with_vxlans() {
    const NAME: &str = "evpn_with_vxlans";
    let Some(_turn) = net::turn(NAME).filter(|_| there(NAME)) else { return };
    run(&[], &|namespace| Frr::new(namespace, &["exec"]));
}

#[test]
fn evpn_with_bridges_of_the_router() {
    const NAME: &str = "evpn_with_bridges_of_the_router";
    let Some(_turn) = net::turn(NAME).filter(|_| there(NAME)) else { return };
    run(&["--own-bridges"], &|namespace| Frr::new(namespace, &["exec"]));
}

#[test]
fn evpn_with_frr_10() {
    const NAME: &str = "evpn_with_frr_10";
    let Some(_turn) = net::turn(NAME).filter(|_| there(NAME)) else { return };
    let Some(tools) = Tools::there(NAME) else { return };
    let directory = tempfile::tempdir().unwrap();
    give(directory.path());
    run(&["--own-bridges"], &|namespace| {
        let sockets = tempfile::tempdir_in(&directory).unwrap().keep();
        give(&sockets);
        of_tools(namespace, &tools, &sockets)
    });
}

fn run(options: &[&str], frr: &dyn Fn(&Namespace) -> Frr) {
    let [one, other] = ["evpn-r1", "evpn-r2"].map(|name| net::Node::new(name).namespace);
    join(&one, "core", &other, "core").unwrap();
    let first = host("evpn-h1", &one, "cust", "10.70.0.1", "02:00:00:00:70:01");
    let second = host("evpn-h2", &other, "cust", "10.70.0.2", MOVES);
    let tenant = [(&one, 1), (&other, 2)].map(|(leaf, n)| {
        let host = host(
            &format!("evpn-t{n}"),
            leaf,
            "tenant",
            &format!("10.80.{n}.2"),
            &format!("02:00:00:00:80:0{n}"),
        );
        host.run(&format!("ip route add default via 10.80.{n}.1")).unwrap();
        host
    });
    let (_frr, router) = leaf(&one, (1, 2), options, frr);
    let (peer, far) = leaf(&other, (2, 1), options, frr);

    // Route type 3 says where floods go, and type 2 where a station is.
    knows(&router, "00:00:00:00:00:00", "dst 10.0.0.2");
    reaches(&first, "10.70.0.2");
    knows(&router, MOVES, "dst 10.0.0.2 self extern_learn");
    knows(&far, "02:00:00:00:70:01", "dst 10.0.0.1 self extern_learn");

    // Type 5 says which networks the VRF of the other router has.
    reaches(&tenant[0], "10.80.2.2");
    reaches(&tenant[1], "10.80.1.2");

    // The station moves to the other router.
    second.run("ip link set eth0 down").unwrap();
    let moved = host("evpn-h3", &one, "more", "10.70.0.2", MOVES);
    router.run("ip link set more master br100; ip link set more up").unwrap();
    reaches(&moved, "10.70.0.1");
    knows(&router, MOVES, "gone");
    knows(&far, MOVES, "dst 10.0.0.1 self extern_learn");

    peer.end("bgpd");
    knows(&router, "00:00:00:00:00:00", "gone");
    eventually("the routes of the VRF are withdrawn", || {
        let routes = router.run("ip route show table 100").unwrap();
        if routes.contains("10.80.2.0/24") { Err(routes) } else { Ok(()) }
    });
    router.stop().unwrap();
    far.stop().unwrap();
}
