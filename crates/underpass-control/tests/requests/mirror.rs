//! The mirror of a kernel, fed with what Linux 6.18 multicast while `ip` changed things.

use std::net::IpAddr;
use underpass_control::{routes, translate};

use underpass_control::{Client, Owner, Protocol, Replies, Route, Router, VlanDevice};
use underpass_engine::tables::Writer;
use underpass_netlink::reply::{Address, Reply, write_message};
use underpass_netlink::{Message, messages};

/// What Linux 6.12 multicast while VLAN devices came and went.
const VLANS: &str = include_str!("recorded/vlan.txt");
const RECORDED: &str = include_str!("recorded/kernel.txt");

fn router() -> Router {
    Router::live(Writer::new(1).0)
}

fn bytes(line: &str) -> Vec<u8> {
    (0..line.len() / 2).map(|at| u8::from_str_radix(&line[2 * at..2 * at + 2], 16).unwrap()).collect()
}

/// Feeds what was recorded up to the end of a command, or all.
fn feed(router: &mut Router, until: Option<&str>) {
    let mut last = false;
    for line in RECORDED.lines() {
        if let Some(command) = line.strip_prefix("# ") {
            if last {
                return;
            }
            last = until.is_some_and(|until| command.strip_prefix("ip ") == Some(until));
            continue;
        }
        for message in messages(&bytes(line)) {
            router.mirror(&message);
        }
    }
    assert!(until.is_none() || last, "{until:?} was not recorded");
}

/// The gateways, or else the links, of the routes to a destination, in their order.
fn ways(router: &Router, destination: &str) -> Vec<String> {
    let to = |route: &Route| route.destination.to_string() == destination;
    let ways = routes(router).filter(to).flat_map(|route| route.ways);
    ways.map(|(link, gateway)| gateway.map_or(format!("link {link}"), |gateway| gateway.to_string()))
        .collect()
}

#[test]
fn routes_as_they_come_and_go() {
    for (after, destination, wanted) in [
        ("route add 10.1.0.0/16 via 10.0.0.2", "10.1.0.0/16", &["10.0.0.2"][..]),
        ("route append 10.1.0.0/16 via 10.0.0.3", "10.1.0.0/16", &["10.0.0.2", "10.0.0.3"]),
        ("route replace 10.1.0.0/16 via 10.0.0.4 metric 0", "10.1.0.0/16", &["10.0.0.4", "10.0.0.3"]),
        ("route add 10.2.0.0/16 via 10.0.0.2 src 10.0.0.1 table 77", "10.2.0.0/16", &["10.0.0.2"]),
        (
            "-6 route add fd10::/16 nexthop via fd00::2 nexthop via fd00::3",
            "fd10::/16",
            &["fd00::2", "fd00::3"],
        ),
        ("-6 route append fd10::/16 via fd00::4", "fd10::/16", &["fd00::2", "fd00::3", "fd00::4"]),
        ("-6 route del fd10::/16 via fd00::3", "fd10::/16", &["fd00::2", "fd00::4"]),
        ("route add 10.3.0.0/16 nhid 7", "10.3.0.0/16", &["10.0.0.9"]),
        // The kernel tells neither of these routes nor of the next-hop object when it drops them.
        ("link set v0 down", "10.1.0.0/16", &[]),
        ("link set v0 down", "10.3.0.0/16", &[]),
        ("link set v0 down", "10.2.0.0/16", &[]),
    ] {
        let mut router = router();
        feed(&mut router, Some(after));
        assert_eq!(ways(&router, destination), wanted, "after {after}");
    }
}

#[test]
fn vlan_devices_of_the_kernel() {
    let mut router = router();
    let five = VlanDevice { lower: 13, protocol: 0x8100, id: 5 };
    let six = VlanDevice { lower: 13, protocol: 0x88a8, id: 6 };
    let after = [
        ("link add v0", vec![]),
        ("name v0.5", vec![five]),
        ("name v0.6", vec![five, six]),
        ("link del", vec![six]),
    ];
    let mut sections = VLANS.split("# ip ").skip(1);
    for (command, wanted) in after {
        let section = sections.next().unwrap();
        assert!(section.contains(command), "{section}");
        for line in section.lines().skip(1) {
            messages(&bytes(line)).for_each(|message| router.mirror(&message));
        }
        assert_eq!(router.vlan_devices().collect::<Vec<_>>(), wanted, "after {command}");
    }
}

#[test]
fn links_addresses_and_neighbours() {
    let mut router = router();
    feed(&mut router, Some("neighbour add 10.0.0.2 lladdr 02:00:00:00:00:02 dev v0"));
    let v0 = router.links().find(|link| link.name == "v0").unwrap().index;
    assert!(router.link(v0).is_some_and(|link| link.up() && link.carrier && link.mtu == 1500));
    let own: Vec<IpAddr> = router.addresses().filter(|a| a.link == v0).map(|a| a.local).collect();
    assert!(own.contains(&"10.0.0.1".parse().unwrap()) && own.contains(&"fd00::1".parse().unwrap()));
    let neighbours: Vec<_> = router.neighbours().filter(|(_, _, n)| n.usable().is_some()).collect();
    assert!(neighbours.iter().any(|(link, address, n)| {
        (*link, *address, n.mac) == (v0, "10.0.0.2".parse().unwrap(), [2, 0, 0, 0, 0, 2])
    }));
    feed(&mut router, None);
    assert!(router.links().all(|link| link.name == "lo"));
    assert_eq!(router.neighbours().count(), 0);
    assert!(routes(&router).all(|route| route.ways.iter().all(|(link, _)| *link == 1)));
}

/// A dump that does not name what was there removes it, and keeps what it names.
#[test]
fn a_dump_sweeps() {
    let mut router = router();
    let until = "route add 10.4.0.0/16 encap seg6 mode encap segs fc00::1 dev v0";
    feed(&mut router, Some(until));
    let before = (routes(&router).count(), router.addresses().count());
    router.begin_resync();
    feed(&mut router, Some(until));
    router.end_resync();
    assert_eq!((routes(&router).count(), router.addresses().count()), before);
    router.begin_resync();
    router.end_resync();
    assert_eq!((routes(&router).count(), router.links().count(), router.addresses().count()), (0, 0, 0));
}

/// Half messages, and bytes turned over, never make it stumble.
#[test]
fn hostile_messages() {
    let mut seed = 1u32;
    let mut router = router();
    for line in RECORDED.lines().filter(|line| !line.starts_with('#')) {
        let good = bytes(line);
        for _ in 0..40 {
            let mut bad = good.clone();
            for _ in 0..3 {
                seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let at = seed as usize % bad.len();
                bad[at] ^= 1 << (seed >> 29);
            }
            bad.truncate(16 + seed as usize % bad.len());
            for message in messages(&bad) {
                router.mirror(&message);
            }
        }
        messages(&good).for_each(|message| router.mirror(&message));
    }
}

fn message(kind: u16, flags: u16, write: impl FnOnce(&mut Reply<'_>)) -> Vec<u8> {
    let mut bytes = Vec::new();
    write_message(&mut bytes, kind, flags, Address { port: 0, sequence: 1 }, write).unwrap();
    bytes
}

fn owner(router: &Router, bytes: &[u8]) -> Owner {
    let all: Vec<Message<'_>> = messages(bytes).collect();
    underpass_control::owner(router, Protocol::Route, &all[0])
}

/// `ip -6 route … fd77::/16 [encap seg6 mode encap segs fc00::9] dev v0`
fn route(kind: u16, flags: u16, link: u32, encap: bool) -> Vec<u8> {
    message(kind, flags | 1, |message| {
        message.fixed(&[10, 16, 0, 0, 254, 3, 0, 1, 0, 0, 0, 0]);
        message.attribute(1, &[0xfd, 0x77, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        message.u32(4, link);
        if encap {
            let nest = message.nest(22);
            let mut tunnel = 1u32.to_ne_bytes().to_vec();
            tunnel.extend_from_slice(&[0, 2, 4, 0, 0, 0, 0, 0]);
            tunnel.extend_from_slice(&"fc00::9".parse::<std::net::Ipv6Addr>().unwrap().octets());
            message.attribute(1, &tunnel);
            message.end(nest);
            message.u16(21, 5);
        }
    })
}

/// Whose a request is depends on what it asks for and on what is there.
#[test]
fn owners() {
    const NEW: u16 = libc::RTM_NEWROUTE;
    const DEL: u16 = libc::RTM_DELROUTE;
    const ADD: u16 = 0x600; // NLM_F_CREATE, NLM_F_EXCL
    const REPLACE: u16 = 0x500;
    let mut router = router();
    feed(&mut router, Some("address add fd00::1/64 dev v0 nodad"));
    let v0 = router.links().find(|link| link.name == "v0").unwrap().index;
    assert_eq!(owner(&router, &route(NEW, ADD, v0, false)), Owner::Kernel);
    assert_eq!(owner(&router, &route(DEL, 0, v0, false)), Owner::Kernel);
    assert_eq!(owner(&router, &route(NEW, ADD, v0, true)), Owner::Router);
    let mut client = Client::new(Protocol::Route, 7);
    let mut replies = Replies::default();
    router.request(&mut client, &route(NEW, ADD | 4, v0, true), &mut replies);
    let answer: Vec<u8> = replies.iter().next().unwrap().to_vec();
    assert_eq!(answer[16..20], [0; 4], "{answer:?}");
    // A plain one meets it: EEXIST falls out of the model, and so does a replacement.
    assert_eq!(owner(&router, &route(NEW, ADD, v0, false)), Owner::Router);
    assert_eq!(owner(&router, &route(NEW, REPLACE, v0, false)), Owner::Router);
    assert_eq!(owner(&router, &route(DEL, 0, v0, false)), Owner::Router);
    assert_eq!(owner(&router, &route(DEL, 0, 1, false)), Owner::Kernel);
    // A dump is of both, and the router's part is its own alone.
    let dump = message(libc::RTM_GETROUTE, 0x301, |m| m.fixed(&[10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]));
    assert_eq!(owner(&router, &dump), Owner::Both);
    replies.clear();
    router.request(&mut client, &dump, &mut replies);
    let told = replies.iter().flat_map(|datagram| messages(datagram).collect::<Vec<_>>());
    assert_eq!(told.filter(|message| message.kind == NEW).count(), 1);
    // What the router puts into the kernel for itself nobody is shown.
    let shadow = message(NEW, 0, |m| m.fixed(&[10, 0, 0, 0, 254, 117, 0, 1, 0, 0, 0, 0]));
    assert!(translate(&router, &messages(&shadow).next().unwrap()).is_none());
    assert!(translate(&router, &messages(&route(NEW, 0, v0, false)).next().unwrap()).is_some());
}
