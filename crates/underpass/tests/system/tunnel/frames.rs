//! Tunnels with Ethernet frames inside.

use std::time::Duration;

use super::super::guest;
use super::super::mpls::{UNDERPASS, Which};
use super::super::net::{number, ping, program, settle, turn};
use super::{ENDS, Family, Pair, transfer};

/// Ethernet in GRE and in UDP: the ends are neighbours that find each other.
#[test]
fn tunnels_of_frames() {
    const NAME: &str = "tunnels_of_frames";
    let Some(_turn) = turn(NAME) else { return };
    let linux = guest::kernel(NAME);
    let others = linux.as_deref().map(Which::Linux).into_iter().chain([UNDERPASS]);
    for other in others {
        let mut pair = Pair::new(&[], other);
        let six = "local fd00::ME remote fd00::YOU";
        let vxlan = ["100", "101"].map(|id| format!("vxlan id {id} dstport 4789 dev core"));
        let remotes = ["remote 10.0.0.YOU", "remote fd00::YOU"];
        for (kind, ends, overhead) in [
            ("gretap", ENDS, 38),
            ("ip6gretap", six, 66),
            (&vxlan[0], ENDS, 50),
            (&vxlan[1], six, 70),
            ("geneve id 100", remotes[0], 50),
            ("geneve id 101", remotes[1], 70),
            // Of packets, with the MTU of one of frames.
            ("geneve id 102 innerprotoinherit", remotes[0], 50),
        ] {
            pair.both(&format!(
                "ip link add tun1 type {kind} {ends}
                 ip addr add 10.9.0.ME/24 dev tun1
                 ip addr add fd09::ME/64 dev tun1 nodad
                 ip link set tun1 up
                 ip route add 10.YOU.0.0/24 via 10.9.0.YOU
                 ip -6 route add fd10:YOU::/64 via fd09::YOU"
            ));
            pair.works(kind, &[Family::Four, Family::Six], 1500 - overhead);
            pair.check(kind, transfer(&pair.hosts[0], &pair.hosts[1], "10.2.0.2"));
            if kind.starts_with("vxlan") {
                stations(&mut pair, kind);
            }
            pair.disconnect("");
        }
        pair.stop();
    }
}

/// What `bridge fdb` says of the other end's station, and what it is told.
fn stations(pair: &mut Pair, what: &str) {
    let end = if what.contains("101") { "fd00::2" } else { "10.0.0.2" };
    let nowhere = if what.contains("101") { "fd00::9" } else { "10.0.0.9" };
    let shown = pair.routers[0].run("bridge fdb show dev tun1");
    let (all, learned): (Vec<&str>, Vec<&str>) =
        shown.lines().partition(|line| line.starts_with("00:00:00:00:00:00"));
    let [learned] = learned[..] else { panic!("{what}: one station: {shown}") };
    assert_eq!(all, [format!("00:00:00:00:00:00 dst {end} via core self permanent")], "{what}");
    let (station, rest) = learned.split_once(' ').unwrap();
    assert_eq!(rest.trim_end(), format!("dst {end} self"), "{what}");
    let host = &pair.hosts[0];
    let address = Family::Four.host(2);
    pair.routers[0].run(&format!("bridge fdb replace {station} dev tun1 dst {nowhere} static"));
    assert!(ping(host, &address, 1).is_err(), "{what}: its station is elsewhere");
    pair.routers[0].run(&format!("bridge fdb replace {station} dev tun1 dst {end} static"));
    pair.check(what, settle(&pair.hosts[0], &address, Duration::from_secs(10)));
    pair.routers[0].run(&format!("bridge fdb del {station} dev tun1"));
    pair.check(what, settle(&pair.hosts[0], &address, Duration::from_secs(10)));
}

/// Bridges of the kernels, of which VXLANs, GRE and SRv6 of the routers are ports: hosts at both are in one network.
#[test]
fn tunnels_as_ports_of_bridges() {
    const NAME: &str = "tunnels_as_ports_of_bridges";
    let Some(_turn) = turn(NAME) else { return };
    let linux = guest::kernel(NAME);
    let experimental = ["--experimental"];
    let others = linux.as_deref().map(Which::Linux).into_iter().chain([Which::Underpass(&experimental)]);
    for other in others {
        let routers = matches!(other, Which::Underpass(_));
        let mut pair = Pair::new(&experimental, other);
        for (n, host) in (1..).zip(&pair.hosts) {
            host.run(&format!(
                "ip link set eth0 mtu 1400
                 ip addr add 10.70.0.{n}/24 dev eth0
                 ip addr add fd70::{n}/64 dev eth0 nodad"
            ))
            .unwrap();
        }
        pair.both(
            // Of its own, it would have the lowest address of its ports, and another one with each tunnel.
            "ip link add br0 address 02:00:00:00:b0:0ME type bridge
             ip link set br0 up
             ip addr flush dev cust
             ip link set cust master br0
             ip addr add 10.70.0.1ME/24 dev br0",
        );
        let vxlan = format!("vxlan id 100 dstport 4789 dev core {ENDS}");
        let sids = format!(
            "ip -6 route replace fc00:YOU::/32 via fd00::YOU
             bridge fdb append 00:00:00:00:00:00 dev tun1 dst fc00:YOU::d3
             {0} sid add fc00:ME::d2 End.DT2U --oif tun1 --count
             {0} sid add fc00:ME::d3 End.DT2M --oif tun1 --count",
            program().display()
        );
        let tunnels = [(vxlan, ""), (format!("gretap {ENDS}"), "")].into_iter();
        for (kind, more) in tunnels.chain(routers.then_some(("srv6l2".to_owned(), &*sids))) {
            pair.both(&format!(
                "ip link add tun1 type {kind}
                 ip link set tun1 mtu 1400 master br0
                 ip link set tun1 up
                 {more}"
            ));
            for (from, address) in
                [(0, "10.70.0.2"), (1, "10.70.0.1"), (0, "fd70::2"), (0, "10.70.0.12"), (1, "10.70.0.11")]
            {
                pair.check(&kind, settle(&pair.hosts[from], address, Duration::from_secs(10)));
                pair.check(&kind, ping(&pair.hosts[from], address, 5));
            }
            pair.check(&kind, transfer(&pair.hosts[0], &pair.hosts[1], "10.70.0.2"));
            if kind == "srv6l2" {
                behind_a_sid(&mut pair);
            }
            if kind.starts_with("vxlan") {
                // The kernel's bridge could not tell the router of which network a frame is.
                let said = pair.routers[0].run(
                    "ip link add tun2 type vxlan external dstport 4790
                     ip link set tun2 master br0
                     bridge link set dev tun2 vlan_tunnel on 2>&1 || true
                     ip link del tun2",
                );
                assert!(said.contains("vlan_tunnel needs a bridge of the router's"), "{said}");
            }
            pair.disconnect("");
        }
        pair.stop();
    }
}

/// Bridges of the routers, whose VLANs are networks of one external VXLAN: hosts at both are in one network.
#[test]
fn vlans_as_networks() {
    const NAME: &str = "vlans_as_networks";
    let Some(_turn) = turn(NAME) else { return };
    let linux = guest::kernel(NAME);
    let own = ["--own-bridges"];
    let others = linux.as_deref().map(Which::Linux).into_iter().chain([Which::Underpass(&own)]);
    for other in others {
        let mut pair = Pair::new(&own, other);
        for (n, host) in (1..).zip(&pair.hosts) {
            host.run(&format!(
                "ip link set eth0 mtu 1400
                 ip addr add 10.70.0.{n}/24 dev eth0
                 ip addr add fd70::{n}/64 dev eth0 nodad"
            ))
            .unwrap();
        }
        for (local, remote) in [("10.0.0.ME", "10.0.0.YOU"), ("fd00::ME", "fd00::YOU")] {
            pair.both(&format!(
                "ip link add br0 address 02:00:00:00:b0:0ME type bridge vlan_filtering 1 mcast_snooping 0
                 ip link set br0 up
                 ip addr flush dev cust
                 ip link set cust master br0
                 bridge vlan add dev cust vid 10 pvid untagged
                 ip link add tun1 type vxlan external dstport 4789 local {local}
                 ip link set tun1 mtu 1450 master br0
                 bridge link set dev tun1 vlan_tunnel on
                 bridge vlan add dev tun1 vid 10
                 bridge vlan add dev tun1 vid 10 tunnel_info id 10010
                 bridge fdb append 00:00:00:00:00:00 dev tun1 dst {remote} src_vni 10010
                 ip link set tun1 up"
            ));
            for (from, address) in [(0, "10.70.0.2"), (1, "10.70.0.1"), (0, "fd70::2")] {
                pair.check(local, settle(&pair.hosts[from], address, Duration::from_secs(10)));
                pair.check(local, ping(&pair.hosts[from], address, 5));
            }
            pair.check(local, transfer(&pair.hosts[0], &pair.hosts[1], "10.70.0.2"));
            pair.both("bridge vlan del dev tun1 vid 10 tunnel_info id 10010");
            assert!(ping(&pair.hosts[0], "10.70.0.2", 1).is_err(), "{local}: it is no network any more");
            pair.both("ip link del br0");
            pair.disconnect("");
        }
        pair.stop();
    }
}

/// A station that is said to be behind the SID of unicast frames: they go there.
fn behind_a_sid(pair: &mut Pair) {
    let shown = pair.hosts[1].run("ip -br link show eth0").unwrap();
    let station = shown.split_whitespace().nth(2).unwrap();
    let counted = |pair: &mut Pair| {
        let shown = pair.routers[1].run("ip -6 -s route show fc00:2::d2");
        number(&shown, "packets").unwrap_or_else(|| panic!("{shown}"))
    };
    let before = counted(pair);
    pair.routers[0].run(&format!("bridge fdb add {station} dev tun1 dst fc00:2::d2 static"));
    pair.check("a station", ping(&pair.hosts[0], "10.70.0.2", 5));
    let after = counted(pair);
    assert!(after >= before + 5, "{before}, {after}");
    pair.routers[0].run(&format!("bridge fdb replace {station} dev tun1 dst fc00:9::d2 static"));
    assert!(ping(&pair.hosts[0], "10.70.0.2", 1).is_err(), "its station is elsewhere");
}
