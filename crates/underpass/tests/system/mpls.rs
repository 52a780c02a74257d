//! Labels between routers: an L3VPN, what the routers themselves send and get, what stays with the kernel.
//!
//! ```text
//! h1 ──── cust R1 core ──── west P east ──── core R2 cust ──── h2
//! ```
//! A router is Underpass beside this machine's kernel, or a Linux that has MPLS: a user-mode one.

use std::{
    thread,
    time::{Duration, Instant},
};

use underpass_daemon::{
    live::{MplsStats, Stats},
    testbed::{Namespace, join},
};
use underpass_engine::buffer::Pool;
use underpass_port::tun::{TunKind, TunPort};

use super::behaviours::hops;
use super::guest::{self, Guest};
use super::mtu::transfer;
use super::net::{self, Node, ping, program, settle, turn};

/// Which router a place has.
#[derive(Clone, Copy, Debug)]
pub enum Which<'a> {
    /// Underpass, with these arguments.
    Underpass(&'a [&'a str]),
    /// A Linux by itself.
    Linux(&'a str),
}

pub const UNDERPASS: Which<'static> = Which::Underpass(&[]);

pub enum Router {
    Underpass(Box<Node>),
    Linux(Box<Guest>),
}

impl Router {
    pub fn run(&mut self, lines: &str) -> String {
        match self {
            Self::Underpass(node) => node.run(lines),
            Self::Linux(guest) => guest.run(lines),
        }
    }

    pub fn log(&self) -> String {
        match self {
            Self::Underpass(node) => node.log(),
            Self::Linux(_) => String::new(),
        }
    }

    /// The namespace of an Underpass.
    pub fn namespace(&self) -> &Namespace {
        match self {
            Self::Underpass(node) => &node.namespace,
            Self::Linux(_) => panic!("a Linux has its own namespace"),
        }
    }

    /// What configures an Underpass.
    pub fn underpass(&self) -> &underpass_daemon::testbed::Router {
        match self {
            Self::Underpass(node) => node.router.as_ref().unwrap(),
            Self::Linux(_) => panic!("a Linux is not configured through Underpass"),
        }
    }

    fn stats(&self) -> Stats {
        let told = self.namespace().run(&format!("{} stats --json", program().display())).unwrap();
        serde_json::from_str(&told).unwrap()
    }

    /// What `underpass stats mpls …` tells.
    fn mpls(&self, words: &str) -> MplsStats {
        let told = self.namespace().run(&format!("{} stats {words}", program().display())).unwrap();
        serde_json::from_str(&told).unwrap()
    }
}

/// The routers by their places: R1, P, R2.
pub struct Line {
    pub hosts: [Namespace; 2],
    pub routers: Vec<Router>,
}

/// What is joined to what: the place of a host or a router, its device.
type End = (&'static str, &'static str);
const WIRES: [[End; 2]; 4] = [
    [("h1", "eth0"), ("r1", "cust")],
    [("r1", "core"), ("p", "west")],
    [("p", "east"), ("r2", "core")],
    [("r2", "cust"), ("h2", "eth0")],
];
const PLACES: [&str; 3] = ["r1", "p", "r2"];

impl Line {
    /// Addressed, and labels taken on the links between the routers, which have room for them.
    pub fn new(kinds: [Which<'_>; 3]) -> Self {
        let hosts = ["h1", "h2"].map(net::namespace);
        let nodes = PLACES.map(Node::new);
        let linux = |place| {
            PLACES.iter().position(|other| *other == place).and_then(|at| match kinds[at] {
                Which::Linux(kernel) => Some((at, kernel)),
                Which::Underpass(_) => None,
            })
        };
        let namespace = |place| match PLACES.iter().position(|other| *other == place) {
            Some(at) => &nodes[at].namespace,
            None => &hosts[usize::from(place == "h2")],
        };
        for [(one, first), (other, second)] in WIRES {
            if linux(one).is_none() && linux(other).is_none() {
                join(namespace(one), first, namespace(other), second).unwrap();
            }
        }
        let mut guests = PLACES.map(|place| {
            let (_, kernel) = linux(place)?;
            let mut devices = Vec::new();
            for [one, other] in WIRES {
                for (own, there) in [(one, other), (other, one)] {
                    if own.0 == place {
                        devices.push((own.1, namespace(there.0), there.1));
                    }
                }
            }
            Some(Guest::start(kernel, &devices))
        });
        for (n, host) in (1..).zip(&hosts) {
            host.run(&format!(
                "ip link set eth0 mtu 1400 up
                 ip addr add 10.{n}.0.2/24 dev eth0
                 ip addr add fd10:{n}::2/64 dev eth0 nodad
                 ip route add default via 10.{n}.0.1
                 ip -6 route add default via fd10:{n}::1"
            ))
            .unwrap();
        }
        let routers = nodes.into_iter().zip(kinds).zip(&mut guests).map(|((mut node, kind), guest)| {
            match (kind, guest.take()) {
                (_, Some(guest)) => Router::Linux(Box::new(guest)),
                (Which::Underpass(arguments), _) => {
                    node.start_with(arguments);
                    Router::Underpass(Box::new(node))
                }
                (Which::Linux(_), None) => unreachable!(),
            }
        });
        let mut line = Self { hosts, routers: routers.collect() };
        for (at, n) in [(0, 1), (2, 2)] {
            line.routers[at].run(&format!(
                "ip link set core up
                 ip link set cust up
                 ip addr add 10.{n}.0.1/24 dev cust
                 ip addr add fd10:{n}::1/64 dev cust nodad
                 ip addr add 10.0.{n}.1/24 dev core
                 ip addr add fd00:{n}::1/64 dev core nodad
                 sysctl -qw net.mpls.platform_labels=1000 net.mpls.conf.core.input=1"
            ));
        }
        line.routers[1].run(
            "ip link set west up
             ip link set east up
             ip addr add 10.0.1.9/24 dev west
             ip addr add 10.0.2.9/24 dev east
             ip addr add fd00:1::9/64 dev west nodad
             ip addr add fd00:2::9/64 dev east nodad
             sysctl -qw net.mpls.platform_labels=1000
             sysctl -qw net.mpls.conf.west.input=1 net.mpls.conf.east.input=1",
        );
        line
    }

    /// Runs the same in both edges, `ME` and `YOU` filled in.
    fn edges(&mut self, lines: &str) {
        for (at, me) in [(0, 1), (2, 2)] {
            let you = 3 - me;
            let lines = lines.replace("YOU", &you.to_string()).replace("ME", &me.to_string());
            self.routers[at].run(&lines);
        }
    }

    /// Pings from each host to the other, small and as large as the hosts' links take.
    fn pings(&self, addresses: &[&str]) {
        for (n, host) in [(1, &self.hosts[0]), (2, &self.hosts[1])] {
            for address in addresses {
                let address = address.replace("YOU", &(3 - n).to_string());
                let size = if address.contains(':') { 1352 } else { 1372 };
                self.check(settle(host, &address, Duration::from_secs(10)));
                self.check(ping(host, &address, 20));
                self.check(ping(host, &format!("-M do -s {size} {address}"), 3));
            }
        }
    }

    /// TCP from each host to the other.
    fn transfers(&self) {
        for (from, to) in [(0, 1), (1, 0)] {
            for address in HOSTS {
                let address = address.replace("YOU", &(to + 1).to_string());
                self.check(transfer(&self.hosts[from], &self.hosts[to], &address));
            }
        }
    }

    fn check(&self, done: Result<(), String>) {
        if let Err(why) = done {
            panic!("{why}{}", self.routers.iter().map(Router::log).collect::<String>());
        }
    }

    /// Ends the routers, which must end well.
    pub fn stop(self) {
        for router in self.routers {
            if let Router::Underpass(node) = router {
                node.stop();
            }
        }
    }
}

/// One label for each host and family, swapped in the middle and popped towards the host.
pub fn label_routes(line: &mut Line) {
    line.edges(
        "ip route add 10.YOU.0.0/24 encap mpls 10YOU via inet 10.0.ME.9 dev core
         ip -6 route add fd10:YOU::/64 encap mpls 20YOU via inet6 fd00:ME::9 dev core
         ip -f mpls route add 11ME via inet 10.ME.0.2 dev cust
         ip -f mpls route add 21ME via inet6 fd10:ME::2 dev cust",
    );
    line.routers[1].run(
        "ip -f mpls route add 101 as 111 via inet 10.0.1.1 dev west
         ip -f mpls route add 102 as 112 via inet 10.0.2.1 dev east
         ip -f mpls route add 201 as 211 via inet6 fd00:1::1 dev west
         ip -f mpls route add 202 as 212 via inet6 fd00:2::1 dev east",
    );
}

const HOSTS: [&str; 2] = ["10.YOU.0.2", "fd10:YOU::2"];

/// With either driver: push, swap, pop.
#[test]
fn labels_across_three_routers() {
    let Some(_turn) = turn("labels_across_three_routers") else { return };
    for driver in [&["--driver", "packet"][..], &["--driver", "xdp", "--workers", "1"]] {
        let mut line = Line::new([Which::Underpass(driver); 3]);
        label_routes(&mut line);
        line.pings(&HOSTS);
        line.transfers();
        for router in &line.routers {
            let stats = router.stats();
            let core = stats.ports.iter().find(|port| port.name == "core" || port.name == "west").unwrap();
            assert!(core.driver.starts_with(driver[1]), "{}", core.driver);
            for reason in ["label-unknown", "mpls-off", "label-stack-malformed"] {
                assert_eq!(stats.drops.get(reason), None, "{driver:?}{}", router.log());
            }
        }
        // The middle has swapped the labels of every ping, and both its devices have seen them.
        let label = line.routers[1].mpls("mpls 102 --json");
        let [label] = &label.labels[..] else { panic!("{label:?}") };
        assert!(label.packets > 0 && label.bytes > 84 * label.packets && label.errors == 0, "{label:?}");
        let all = line.routers[1].mpls("mpls --json");
        assert_eq!(all.labels.iter().map(|label| label.label).collect::<Vec<_>>(), [101, 102, 201, 202]);
        let west = all.devices.iter().find(|device| device.name == "west").unwrap();
        let afstats = line.routers[1].run("ip -j stats show dev west group afstats");
        let afstats: serde_json::Value = serde_json::from_str(&afstats).unwrap();
        let sent = &afstats[0]["mpls_stats"]["tx"];
        assert!(west.rx_packets > 0 && west.tx_packets > 0, "{west:?}");
        assert_eq!(sent["packets"].as_u64(), Some(west.tx_packets), "{afstats}");
        line.stop();
    }
}

/// A router's own packets take the labels of their routes, and labels that lead to it end at its sockets.
#[test]
fn labels_of_the_host_itself() {
    let Some(_turn) = turn("labels_of_the_host_itself") else { return };
    let mut line = Line::new([UNDERPASS; 3]);
    label_routes(&mut line);
    line.edges(
        "ip route add 10.0.YOU.0/24 encap mpls 30YOU via inet 10.0.ME.9 dev core
         ip -6 route add fd00:YOU::/64 encap mpls 30YOU via inet6 fd00:ME::9 dev core
         ip -f mpls route add 31ME dev lo",
    );
    line.routers[1].run(
        "ip -f mpls route add 301 as 311 via inet 10.0.1.1 dev west
         ip -f mpls route add 302 as 312 via inet 10.0.2.1 dev east",
    );
    for (at, n) in [(0, 1), (2, 2)] {
        let (router, you) = (line.routers[at].namespace(), 3 - n);
        // To the other's host, to the other itself, from a host to the other router.
        for address in [
            format!("10.{you}.0.2"),
            format!("fd10:{you}::2"),
            format!("10.0.{you}.1"),
            format!("fd00:{you}::1"),
        ] {
            line.check(settle(router, &address, Duration::from_secs(10)));
            line.check(ping(router, &address, 10));
        }
        // 1,500 less a label.
        let shadow = router.run(&format!("ip route show 10.{you}.0.0/24 proto 117")).unwrap();
        assert!(shadow.contains("dev underpass0") && shadow.contains("mtu 1496"), "{shadow}");
        line.check(transfer(router, line.routers[2 - at].namespace(), &format!("10.0.{you}.1")));
        line.check(transfer(router, line.routers[2 - at].namespace(), &format!("fd00:{you}::1")));
    }
    line.stop();
}

/// A VRF at each edge, its label below the one that leads across; the middle takes that off.
fn vpn_routes(line: &mut Line) {
    line.edges(
        "ip link add vrf-a type vrf table 10
         ip link set vrf-a up
         ip link set cust master vrf-a
         ip addr replace fd10:ME::1/64 dev cust nodad
         ip route add vrf vrf-a 10.YOU.0.0/24 encap mpls 40YOU/50YOU via inet 10.0.ME.9 dev core
         ip -6 route add vrf vrf-a fd10:YOU::/64 encap mpls 40YOU/50YOU via inet6 fd00:ME::9 dev core
         ip -f mpls route add 50ME dev vrf-a",
    );
    line.routers[1].run(
        "ip -f mpls route add 401 via inet 10.0.1.1 dev west
         ip -f mpls route add 402 via inet6 fd00:2::1 dev east",
    );
}

/// Between the hosts, pings and TCP; the core knows nothing of them.
fn vpn_works(line: &mut Line) {
    line.pings(&HOSTS);
    line.transfers();
    let shown = line.routers[1].run("ip route show; ip -6 route show");
    assert!(!shown.contains("10.1.0.") && !shown.contains("fd10:"), "{shown}");
}

#[test]
fn an_l3vpn_over_labels() {
    let Some(_turn) = turn("an_l3vpn_over_labels") else { return };
    let mut line = Line::new([UNDERPASS; 3]);
    vpn_routes(&mut line);
    vpn_works(&mut line);
    // The VRF's own sockets.
    line.routers[0].run("ping -n -q -c 3 -W 2 -I vrf-a 10.2.0.2; ping -n -q -c 3 -W 2 -I vrf-a fd10:2::2");
    // What the core sends does not come into the VRF, nor out of it.
    let outcome = line.routers[1].namespace().outcome("ping -n -c 1 -W 1 10.2.0.2").unwrap();
    assert_ne!(outcome.status, 0, "{}", outcome.output);
    // A label whose VRF has gone leads nowhere.
    line.routers[2].run("ip link del vrf-a");
    let shown = line.routers[2].run("ip -f mpls route");
    assert!(!shown.contains("502"), "{shown}");
    line.stop();
}

/// The switches between the edges tell a sender whose address they have no route to: the message goes on along
/// the path, and back from its end. That end is not seen: where the first of two labels comes off, the second
/// keeps its TTL, as in Linux.
#[test]
fn traceroute_sees_label_switches() {
    const NAME: &str = "traceroute_sees_label_switches";
    let Some(_turn) = turn(NAME) else { return };
    let mut line = Line::new([UNDERPASS; 3]);
    vpn_routes(&mut line);
    for (to, ways) in [
        ("10.2.0.2", ["10.1.0.1", "10.0.1.9", "10.2.0.2"]),
        ("fd10:2::2", ["fd10:1::1", "fd00:1::9", "fd10:2::2"]),
    ] {
        line.check(settle(&line.hosts[0], to, Duration::from_secs(10)));
        assert_eq!(hops(&line.hosts[0], to), ways);
        // RFC 4950: both labels, as they came.
        let told = line.hosts[0].run(&format!("traceroute -e -n -q 1 -w 2 -f 2 -m 2 {to}")).unwrap();
        assert!(told.contains("<MPLS:L=402,E=0,S=0,T=1/L=502,E=0,S=1,T=1>"), "{told}");
    }
    line.stop();
}

/// Underpass at both ends, Linux switches between them.
#[test]
fn an_l3vpn_across_a_linux() {
    const NAME: &str = "an_l3vpn_across_a_linux";
    let Some(_turn) = turn(NAME) else { return };
    let Some(kernel) = guest::kernel(NAME) else { return };
    let mut line = Line::new([UNDERPASS, Which::Linux(&kernel), UNDERPASS]);
    vpn_routes(&mut line);
    vpn_works(&mut line);
    line.stop();
}

/// Linux at one end, Underpass at the other and between them.
#[test]
fn an_l3vpn_with_a_linux_at_the_edge() {
    const NAME: &str = "an_l3vpn_with_a_linux_at_the_edge";
    let Some(_turn) = turn(NAME) else { return };
    let Some(kernel) = guest::kernel(NAME) else { return };
    let mut line = Line::new([UNDERPASS, UNDERPASS, Which::Linux(&kernel)]);
    vpn_routes(&mut line);
    vpn_works(&mut line);
    line.stop();
}

/// The drops of a router for this reason, once there are as many.
fn drops(router: &Node, reason: &str, wanted: u64) {
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        let told = router.namespace.run(&format!("{} stats --json", program().display())).unwrap();
        let stats: Stats = serde_json::from_str(&told).unwrap();
        let found = stats.drops.get(reason).copied().unwrap_or(0);
        if found == wanted {
            return;
        }
        assert!(Instant::now() < deadline, "{reason}: {found} instead of {wanted}{}", router.log());
        thread::sleep(Duration::from_millis(20));
    }
}

/// Where labels are not taken their packets are the kernel's; where they are, bad ones are dropped for a reason.
#[test]
fn labels_stay_with_the_kernel_until_they_are_taken() {
    let Some(_turn) = turn("labels_stay_with_the_kernel_until_they_are_taken") else { return };
    for driver in [&["--driver", "packet"][..], &["--driver", "xdp", "--workers", "1"]] {
        let mut node = Node::new("r");
        let mut tap = node.namespace.enter(|| TunPort::open("raw", TunKind::Tap, false)).unwrap().unwrap();
        node.namespace.run("ip link set raw address 02:00:00:00:00:77 up").unwrap();
        node.start_with(driver);
        node.run("sysctl -qw net.mpls.platform_labels=1000");
        let mut pool = Pool::new(8);
        let mut send = |payload: &[u8]| {
            let ethernet = [&[2, 0, 0, 0, 0, 0x77, 2, 0, 0, 0, 0, 1, 0x88, 0x47], payload].concat();
            let mut packet = pool.take().unwrap();
            packet.set(0, &ethernet).unwrap();
            tap.send(&mut pool, [packet].into_iter());
        };
        // Labels 100: followed by a header; the bottom alone; without a bottom; cut in the middle.
        let whole = [&[0, 0x06, 0x41, 64][..], &[0x45; 40]].concat();
        let frames: [&[u8]; 4] = [&whole, &[0, 0x06, 0x41, 64], &[0, 0x06, 0x40, 64].repeat(31), &[0, 0x06]];
        frames.iter().for_each(|frame| send(frame));
        thread::sleep(Duration::from_millis(200));
        drops(&node, "label-unknown", 0);
        drops(&node, "label-stack-malformed", 0);
        node.run("sysctl -qw net.mpls.conf.raw.input=1");
        frames.iter().for_each(|frame| send(frame));
        drops(&node, "label-unknown", 2);
        drops(&node, "label-stack-malformed", 2);
        node.run("echo 0 > /proc/sys/net/mpls/conf/raw/input");
        frames.iter().for_each(|frame| send(frame));
        thread::sleep(Duration::from_millis(200));
        drops(&node, "label-unknown", 2);
        tap.close(&mut pool);
        node.stop();
    }
}
