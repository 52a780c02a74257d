//! Every SRv6 behaviour that this kernel has, with the kernel's router and Underpass at either end of it.
//!
//! ```text
//! h1 ──── cust R1 core ──── west P east ──── core R2 cust ──── h2
//! ```
//! Where R1 is the kernel's and R2 Underpass, a ping shows both directions: the request is encapsulated by one
//! and decapsulated by the other, the reply the other way round.

use std::time::Duration;

use super::net::{self, Kind, Kind::*, Node, number, ping, settle, turn};
use underpass_daemon::testbed::{Namespace, join};

/// The five nodes, addressed and routed, without any SID.
pub struct Line {
    pub hosts: [Namespace; 2],
    pub edges: [Node; 2],
    pub middle: Node,
}

impl Line {
    /// With routers of these kinds: R1, P, R2.
    pub fn new(kinds: [Kind; 3]) -> Self {
        let hosts = [net::namespace("h1"), net::namespace("h2")];
        let mut edges = [Node::new("r1"), Node::new("r2")];
        let mut middle = Node::new("p");
        for (n, (host, edge)) in (1..).zip(hosts.iter().zip(&mut edges)) {
            join(host, "eth0", &edge.namespace, "cust").unwrap();
            join(&edge.namespace, "core", &middle.namespace, if n == 1 { "west" } else { "east" }).unwrap();
            // Hosts are where packets with an SRH end. The addresses are such that a frame of one host fits at
            // the other: the other router has its router's address, and the other way round.
            let (own, routers) = if n == 1 { ("0a", "0b") } else { ("0b", "0a") };
            host.run(&format!(
                "sysctl -qw net.ipv6.conf.all.seg6_enabled=1 net.ipv6.conf.eth0.seg6_enabled=1
                 ip link set eth0 address 02:00:00:00:00:{own} up
                 ip addr add 10.{n}.0.2/24 dev eth0
                 ip addr add fd10:{n}::2/64 dev eth0 nodad
                 ip route add default via 10.{n}.0.1
                 ip -6 route add default via fd10:{n}::1"
            ))
            .unwrap();
            edge.namespace.run(&format!("ip link set cust address 02:00:00:00:00:{routers}")).unwrap();
            edge.start(kinds[if n == 1 { 0 } else { 2 }]);
            let other = 3 - n;
            edge.run(&format!(
                "ip link set core mtu 1700 up
                 ip link set cust up
                 ip addr add 10.{n}.0.1/24 dev cust
                 ip addr add fd10:{n}::1/64 dev cust nodad
                 ip addr add fc00:{n}::1/128 dev lo nodad
                 ip addr add fd00:{n}::1/64 dev core nodad
                 ip sr tunsrc set fc00:{n}::1
                 ip -6 route add fc00:{other}::/32 via fd00:{n}::9 dev core src fc00:{n}::1
                 ip -6 route add fc00:9::/32 via fd00:{n}::9 dev core src fc00:{n}::1"
            ));
        }
        middle.start(kinds[1]);
        middle.run(
            "ip link set west mtu 1700 up
             ip link set east mtu 1700 up
             ip addr add fc00:9::1/128 dev lo nodad
             ip addr add fd00:1::9/64 dev west nodad
             ip addr add fd00:2::9/64 dev east nodad
             ip -6 route add fc00:1::/32 via fd00:1::1 dev west
             ip -6 route add fc00:2::/32 via fd00:2::1 dev east
             ip -6 route add fd10:1::/64 via fd00:1::1 dev west
             ip -6 route add fd10:2::/64 via fd00:2::1 dev east
             ip -6 route add fc00:1::/32 via fd00:1::1 dev west table 100
             ip -6 route add fc00:2::/32 via fd00:2::1 dev east table 100",
        );
        Self { hosts, edges, middle }
    }

    pub fn stop(self) {
        self.edges.into_iter().chain([self.middle]).for_each(Node::stop);
    }

    fn logs(&self) -> String {
        self.edges.iter().chain([&self.middle]).map(Node::log).collect()
    }
}

/// A behaviour, or several on one way. `ME` and `YOU` in a line are the numbers of this edge and of the other.
struct Case {
    name: &'static str,
    /// Routes of both edges, without `ip -6 route add`; one that begins with a digit and has dots is IPv4's.
    edge: &'static [&'static str],
    /// Routes of the router between them, with ME and YOU both ways.
    middle: &'static [&'static str],
    /// What is pinged, from either host.
    pings: &'static [&'static str],
    /// How many bytes of added headers the packet still has when it arrives at the host.
    kept: u32,
}

const V4: &str = "10.YOU.0.2";
const V6: &str = "fd10:YOU::2";
const DT6: &str = "fc00:ME::d6 encap seg6local action End.DT6 table 254 count dev cust";

/// What Linux 6.18 has without VRF. `count` is on every SID.
const CASES: &[Case] = &[
    Case {
        name: "encap, End.DT6",
        edge: &[DT6, "fd10:YOU::/64 encap seg6 mode encap segs fc00:YOU::d6 dev core"],
        middle: &[],
        pings: &[V6],
        kept: 0,
    },
    Case {
        name: "encap.red of one segment, End.DX6",
        edge: &[
            "fc00:ME::d6 encap seg6local action End.DX6 nh6 fd10:ME::2 count dev cust",
            "fd10:YOU::/64 encap seg6 mode encap.red segs fc00:YOU::d6 dev core",
        ],
        middle: &[],
        pings: &[V6],
        kept: 0,
    },
    Case {
        name: "encap of IPv4, End.DX4",
        edge: &[
            "fc00:ME::d4 encap seg6local action End.DX4 nh4 10.ME.0.2 count dev cust",
            "10.YOU.0.0/24 encap seg6 mode encap segs fc00:YOU::d4 dev core",
        ],
        middle: &[],
        pings: &[V4],
        kept: 0,
    },
    Case {
        name: "l2encap, End.DX2",
        edge: &[
            "fc00:ME::d2 encap seg6local action End.DX2 oif cust count dev cust",
            "10.YOU.0.0/24 encap seg6 mode l2encap segs fc00:YOU::d2 dev core",
            "fd10:YOU::/64 encap seg6 mode l2encap segs fc00:YOU::d2 dev core",
        ],
        middle: &[],
        pings: &[V4, V6],
        kept: 0,
    },
    Case {
        name: "l2encap.red by way of End, End.DX2",
        edge: &[
            "fc00:ME::d2 encap seg6local action End.DX2 oif cust count dev cust",
            "10.YOU.0.0/24 encap seg6 mode l2encap.red segs fc00:9::e,fc00:YOU::d2 dev core",
            "fd10:YOU::/64 encap seg6 mode l2encap.red segs fc00:9::e,fc00:YOU::d2 dev core",
        ],
        middle: &["fc00:9::e encap seg6local action End count dev east"],
        pings: &[V4, V6],
        kept: 0,
    },
    Case {
        name: "encap by way of End, End.DT6",
        edge: &[DT6, "fd10:YOU::/64 encap seg6 mode encap segs fc00:9::e,fc00:YOU::d6 dev core"],
        middle: &["fc00:9::e encap seg6local action End count dev east"],
        pings: &[V6],
        kept: 0,
    },
    Case {
        name: "encap.red by way of End with PSP, End.DT6",
        edge: &[DT6, "fd10:YOU::/64 encap seg6 mode encap.red segs fc00:9::e,fc00:YOU::d6 dev core"],
        middle: &["fc00:9::e encap seg6local action End flavors psp count dev east"],
        pings: &[V6],
        kept: 0,
    },
    Case {
        name: "encap by way of End.X, End.DT6",
        edge: &[DT6, "fd10:YOU::/64 encap seg6 mode encap segs fc00:9::aYOU,fc00:YOU::d6 dev core"],
        middle: &["fc00:9::aME encap seg6local action End.X nh6 fd00:ME::1 count dev east"],
        pings: &[V6],
        kept: 0,
    },
    Case {
        name: "encap by way of End.T, End.DT6",
        edge: &[DT6, "fd10:YOU::/64 encap seg6 mode encap segs fc00:9::7,fc00:YOU::d6 dev core"],
        middle: &["fc00:9::7 encap seg6local action End.T table 100 count dev east"],
        pings: &[V6],
        kept: 0,
    },
    Case {
        name: "encap by way of End.B6.Encaps, End.DT6 twice",
        edge: &[
            DT6,
            "fc00:ME::d7 encap seg6local action End.DT6 table 254 count dev cust",
            "fd10:YOU::/64 encap seg6 mode encap segs fc00:9::aYOU,fc00:YOU::d6 dev core",
        ],
        middle: &["fc00:9::aME encap seg6local action End.B6.Encaps srh segs fc00:ME::d7 count dev east"],
        pings: &[V6],
        kept: 0,
    },
    Case {
        name: "inline by way of End",
        edge: &["fd10:YOU::/64 encap seg6 mode inline segs fc00:9::e dev core"],
        middle: &["fc00:9::e encap seg6local action End count dev east"],
        pings: &[V6],
        kept: 40,
    },
    Case {
        name: "inline by way of End with PSP",
        edge: &["fd10:YOU::/64 encap seg6 mode inline segs fc00:9::e dev core"],
        middle: &["fc00:9::e encap seg6local action End flavors psp count dev east"],
        pings: &[V6],
        kept: 0,
    },
];

/// The lines with `ME` and `YOU` filled in.
fn lines(templates: &[&str], me: usize) -> Vec<String> {
    let you = 3 - me;
    templates
        .iter()
        .map(|line| line.replace("YOU", &you.to_string()).replace("ME", &me.to_string()))
        .collect()
}

fn family(route: &str) -> &'static str {
    if route.split_whitespace().next().unwrap().contains(':') { "-6" } else { "-4" }
}

fn add(node: &Node, routes: &[String]) {
    for route in routes {
        node.run(&format!("ip {} route add {route}", family(route)));
    }
}

fn delete(node: &Node, routes: &[String]) {
    for route in routes {
        node.run(&format!("ip {} route del {}", family(route), route.split_whitespace().next().unwrap()));
    }
}

/// Every SID of `routes` has counted packets, and no errors.
fn counted(node: &Node, routes: &[String]) -> Result<(), String> {
    for route in routes.iter().filter(|route| route.contains("seg6local")) {
        let sid = route.split_whitespace().next().unwrap();
        let shown = node.run(&format!("ip -6 -s route show {sid}"));
        if number(&shown, "packets") < Some(1) || number(&shown, "errors") != Some(0) {
            return Err(format!("{}: {shown}", node.namespace.name()));
        }
    }
    Ok(())
}

impl Case {
    fn try_on(&self, line: &Line) -> Result<(), String> {
        let edges = [lines(self.edge, 1), lines(self.edge, 2)];
        let mut middle = lines(self.middle, 1);
        middle
            .extend(lines(self.middle, 2).into_iter().filter(|route| !lines(self.middle, 1).contains(route)));
        for (node, routes) in line.edges.iter().zip(&edges) {
            add(node, routes);
        }
        add(&line.middle, &middle);
        let outcome = self.pings(line).and_then(|()| {
            line.edges.iter().zip(&edges).try_for_each(|(node, routes)| counted(node, routes))?;
            counted(&line.middle, &middle)
        });
        for (node, routes) in line.edges.iter().zip(&edges) {
            delete(node, routes);
        }
        delete(&line.middle, &middle);
        outcome
    }

    fn pings(&self, line: &Line) -> Result<(), String> {
        for (n, host) in (1..).zip(&line.hosts) {
            for address in lines(self.pings, n) {
                settle(host, &address, Duration::from_secs(5))?;
                ping(host, &address, 20)?;
                // As large as the host's link takes.
                let (options, size) =
                    if address.contains(':') { ("", 1452 - self.kept) } else { ("-M do", 1472) };
                ping(host, &format!("{options} -s {size} {address}"), 3)?;
            }
            // The router itself is reached beside them, and so is its neighbour.
            for address in [format!("10.{n}.0.1"), format!("fd10:{n}::1"), format!("fd00:{n}::1")] {
                ping(host, &address, 2)?;
            }
        }
        Ok(())
    }
}

/// Every case on one line of routers; all that failed are told.
fn every_case(test: &str, kinds: [Kind; 3]) {
    let Some(_turn) = turn(test) else { return };
    let line = Line::new(kinds);
    let only = std::env::var("UNDERPASS_SYSTEM").unwrap_or_default();
    let mut failed = String::new();
    for case in CASES.iter().filter(|case| case.name.contains(&only)) {
        if let Err(why) = case.try_on(&line) {
            failed += &format!("{}: {why}\n", case.name);
        }
    }
    assert!(failed.is_empty(), "{failed}{}", line.logs());
    line.stop();
}

/// The test itself: what is expected of Underpass, Linux does.
#[test]
fn kernels_alone() {
    every_case("kernels_alone", [Kernel; 3]);
}

#[test]
fn underpass_at_one_end() {
    every_case("underpass_at_one_end", [Underpass, Kernel, Kernel]);
}

#[test]
fn underpass_between() {
    every_case("underpass_between", [Kernel, Underpass, Kernel]);
}

#[test]
fn underpass_alone() {
    every_case("underpass_alone", [Underpass; 3]);
}

/// End.B6 puts an SRH before the packet's own and leaves the destination to come back to: its packets are seen
/// at the SID that it inserts.
#[test]
fn end_b6_reaches_what_it_inserts() {
    let Some(_turn) = turn("end_b6_reaches_what_it_inserts") else { return };
    for kinds in [[Kernel; 3], [Kernel, Underpass, Kernel], [Underpass, Kernel, Underpass]] {
        let line = Line::new(kinds);
        line.edges[0]
            .run("ip -6 route add fd10:2::/64 encap seg6 mode encap segs fc00:9::b6,fc00:2::d6 dev core");
        line.middle.run(
            "ip -6 route add fc00:9::b6 encap seg6local action End.B6 srh segs fc00:2::e count dev east",
        );
        line.edges[1].run("ip -6 route add fc00:2::e encap seg6local action End count dev cust");
        for _ in 0..10 {
            line.hosts[0].outcome("ping -n -c 1 -W 1 fd10:2::2").unwrap();
            let shown = line.edges[1].run("ip -6 -s route show fc00:2::e");
            if number(&shown, "packets") > Some(0) {
                break;
            }
        }
        for (node, sid) in [(&line.middle, "fc00:9::b6"), (&line.edges[1], "fc00:2::e")] {
            let shown = node.run(&format!("ip -6 -s route show {sid}"));
            assert!(number(&shown, "packets") > Some(0), "{kinds:?}: {shown}{}", line.logs());
        }
        line.stop();
    }
}

/// The hops of a traceroute, `*` where none answered.
pub fn hops(host: &Namespace, address: &str) -> Vec<String> {
    let shown = host.run(&format!("traceroute -n -q 1 -w 2 -m 8 {address}")).unwrap();
    shown.lines().skip(1).filter_map(|line| line.split_whitespace().nth(1).map(str::to_owned)).collect()
}

/// A packet with an inserted SRH names its sender, so every router on its way can answer it.
#[test]
fn traceroute_sees_every_router_on_a_way_of_sids() {
    let Some(_turn) = turn("traceroute_sees_every_router_on_a_way_of_sids") else { return };
    for kinds in [[Kernel; 3], [Kernel, Underpass, Kernel], [Underpass; 3]] {
        let line = Line::new(kinds);
        for (n, edge) in (1..).zip(&line.edges) {
            let you = 3 - n;
            edge.run(&format!(
                "ip -6 route add fd10:{you}::/64 encap seg6 mode inline segs fc00:9::e dev core"
            ));
        }
        line.middle.run("ip -6 route add fc00:9::e encap seg6local action End count dev east");
        settle(&line.hosts[0], "fd10:2::2", Duration::from_secs(10)).unwrap();
        let found = hops(&line.hosts[0], "fd10:2::2");
        assert_eq!(found.len(), 4, "{kinds:?}: {found:?}{}", line.logs());
        assert!(found[1].starts_with("fd00:") || found[1].starts_with("fc00:9:"), "{kinds:?}: {found:?}");
        assert_eq!(found[3], "fd10:2::2", "{kinds:?}");
        if kinds[0] == Underpass {
            // Linux inserts before it looks at the hop limit, and does not tell.
            assert_eq!(found[0], "fd10:1::1", "{kinds:?}");
        }
        line.stop();
    }
}
