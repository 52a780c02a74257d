//! IP tunnels and foo-over-UDP between two routers, of which one may be a Linux: pings, large transfers, the MTU of
//! the path, what the routers themselves send.
//!
//! ```text
//! h1 ──── cust R1 core ════ core R2 cust ──── h2
//! ```
//! In some a router between them, a namespace of this kernel, has an MTU of its own.

mod control;
mod frames;
mod host;
mod stations;

use std::{
    io::{Read, Write},
    net::{IpAddr, TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

use sha2::{Digest, Sha256};
use underpass_daemon::testbed::{Namespace, join};

use super::guest::{self, Guest};
use super::mpls::{Router, UNDERPASS, Which};
use super::net::{self, Node, ping, settle, turn};

/// Bytes of a large transfer.
const LENGTH: usize = 100_000_000;
/// The MTU of a path that is narrower than its ends, in bytes.
const NARROW: u32 = 1400;
/// How long it may take.
const PATIENCE: Duration = Duration::from_secs(90);

/// What is put around a tunnel's packets: name, what `ip link add` is told, bytes.
const ENCAPSULATIONS: [(&str, &str, u32); 5] = [
    ("none", "", 0),
    ("fou", "encap fou encap-sport auto encap-dport 5555", 8),
    ("fou+csum", "encap fou encap-sport auto encap-dport 5555 encap-csum", 8),
    ("gue", "encap gue encap-sport auto encap-dport 5555", 12),
    ("gue+remcsum", "encap gue encap-sport auto encap-dport 5555 encap-csum encap-remcsum", 20),
];

/// Tunnels: `type`, IP protocol, bytes, and the families that go through them in foo-over-UDP.
const KINDS: [(&str, u32, u32, &[Family]); 3] = [
    ("ipip", 4, 20, &[Family::Four]),
    ("gre", 47, 24, &[Family::Four, Family::Six]),
    ("sit", 41, 20, &[Family::Six]),
];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Family {
    Four,
    Six,
}

impl Family {
    /// The host behind the router of this number.
    fn host(self, n: usize) -> String {
        match self {
            Self::Four => format!("10.{n}.0.2"),
            Self::Six => format!("fd10:{n}::2"),
        }
    }

    /// The end of the tunnel in the router of this number.
    fn end(self, n: usize) -> String {
        match self {
            Self::Four => format!("10.9.0.{n}"),
            Self::Six => format!("fd09::{n}"),
        }
    }

    /// Bytes of the headers of a ping.
    fn ping(self) -> u32 {
        match self {
            Self::Four => 28,
            Self::Six => 48,
        }
    }
}

pub struct Pair {
    pub hosts: [Namespace; 2],
    pub routers: [Router; 2],
}

impl Pair {
    pub fn new(first: &[&str], second: Which<'_>) -> Self {
        Self::over(first, second, None)
    }

    /// With `middle` between them, whose devices are `west` and `east`.
    fn over(first: &[&str], second: Which<'_>, middle: Option<&Namespace>) -> Self {
        let hosts = ["h1", "h2"].map(net::namespace);
        let (mut near, mut far) = (Node::new("r1"), Node::new("r2"));
        join(&hosts[0], "eth0", &near.namespace, "cust").unwrap();
        if let Some(middle) = middle {
            join(&near.namespace, "core", middle, "west").unwrap();
        }
        let (other, end) = middle.map_or((&near.namespace, "core"), |middle| (middle, "east"));
        let far = match second {
            Which::Linux(kernel) => {
                let devices = [("core", other, end), ("cust", &hosts[1], "eth0")];
                Router::Linux(Box::new(Guest::start(kernel, &devices)))
            }
            Which::Underpass(arguments) => {
                join(other, end, &far.namespace, "core").unwrap();
                join(&hosts[1], "eth0", &far.namespace, "cust").unwrap();
                far.start_with(arguments);
                Router::Underpass(Box::new(far))
            }
        };
        near.start_with(first);
        for (n, host) in (1..).zip(&hosts) {
            host.run(&format!(
                "ip link set eth0 up
                 ip addr add 10.{n}.0.2/24 dev eth0
                 ip addr add fd10:{n}::2/64 dev eth0 nodad
                 ip route add default via 10.{n}.0.1
                 ip -6 route add default via fd10:{n}::1"
            ))
            .unwrap();
        }
        let mut pair = Self { hosts, routers: [Router::Underpass(Box::new(near)), far] };
        pair.both(
            "ip link set core up
             ip link set cust up
             ip addr add 10.ME.0.1/24 dev cust
             ip addr add fd10:ME::1/64 dev cust nodad
             ip addr add 10.0.0.ME/24 dev core
             ip addr add fd00::ME/64 dev core nodad",
        );
        pair
    }

    /// With a router between them whose routes to both have an MTU of [`NARROW`].
    fn over_narrow(second: Which<'_>, middle: &Namespace) -> Self {
        let mut pair = Self::over(&["--workers", "1"], second, Some(middle));
        let mut lines = "sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1\n".to_owned();
        for (n, device) in (1..).zip(["west", "east"]) {
            lines += &format!(
                "ip link set {device} up
                 ip addr add 10.0.0.25{n}/32 dev {device}
                 ip route add 10.0.0.{n} dev {device} mtu lock {NARROW}
                 ip addr add fd00::25{n}/128 dev {device} nodad
                 ip -6 route add fd00::{n} dev {device} mtu lock {NARROW}\n"
            );
        }
        middle.run(&lines).unwrap();
        pair.both(
            "ip route add 10.0.0.YOU/32 via 10.0.0.25ME dev core
             ip -6 route add fd00::YOU/128 via fd00::25ME dev core",
        );
        pair
    }

    /// Runs the same in both routers, `ME` and `YOU` filled in.
    pub fn both(&mut self, lines: &str) {
        for (at, router) in self.routers.iter_mut().enumerate() {
            router.run(&lines.replace("YOU", &(2 - at).to_string()).replace("ME", &(at + 1).to_string()));
        }
    }

    /// Makes a tunnel between them, and routes through it.
    fn connect(&mut self, kind: &str, options: &str, port: &str, ends: &str) {
        if !port.is_empty() {
            self.both(&format!("ip fou add port 5555 {port}"));
        }
        self.both(&format!(
            "ip link add tun1 type {kind} {ends} {options}
             ip addr add 10.9.0.ME/24 dev tun1
             ip addr add fd09::ME/64 dev tun1 nodad
             ip link set tun1 up
             ip route add 10.YOU.0.0/24 dev tun1
             ip -6 route add fd10:YOU::/64 dev tun1"
        ));
    }

    fn disconnect(&mut self, port: &str) {
        self.both("ip link del tun1");
        if !port.is_empty() {
            self.both(&format!("ip fou del port 5555 {port}"));
        }
    }

    pub fn check<T>(&self, what: &str, done: Result<T, String>) -> T {
        done.unwrap_or_else(|why| {
            panic!("{what}: {why}{}", self.routers.iter().map(Router::log).collect::<String>())
        })
    }

    /// Pings between hosts, between the ends, and the MTU that a host is told.
    fn works(&mut self, what: &str, families: &[Family], mtu: u32) {
        for &family in families {
            for (n, host) in self.hosts.iter().enumerate() {
                let address = family.host(2 - n);
                self.check(what, settle(host, &address, Duration::from_secs(10)));
                self.check(what, ping_past(&self.routers[1], host, &address, 20));
                self.check(what, told_mtu(host, &address, mtu, family));
                self.check(
                    what,
                    ping_past(
                        &self.routers[1],
                        host,
                        &format!("-M do -s {} {address}", mtu - family.ping()),
                        3,
                    ),
                );
            }
            for at in 0..2 {
                for address in [family.end(2 - at), family.host(2 - at)] {
                    let line = format!("ping -n -q -c 3 -i 0.05 -W 2 {address}");
                    if let Router::Linux(guest) = &mut self.routers[at] {
                        guest.run(&line);
                    } else {
                        let namespace = self.routers[at].namespace();
                        self.check(what, settle(namespace, &address, Duration::from_secs(5)));
                        self.check(what, ping(namespace, &address, 3));
                        if address == family.end(2 - at) {
                            self.check(what, hop_limit_kept(namespace, &address));
                        }
                    }
                }
            }
        }
        for router in &mut self.routers {
            let shown = router.run("ip -s -j link show dev tun1");
            let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
            for way in ["rx", "tx"] {
                let count = shown[0]["stats64"][way]["packets"].as_u64().unwrap();
                assert!(count >= 40, "{what}: {shown}");
            }
        }
    }

    pub fn stop(self) {
        for router in self.routers {
            if let Router::Underpass(node) = router {
                node.stop();
            }
        }
    }
}

/// Pings that must all be answered. A user-mode Linux that other programs leave no time loses one now and then, so that
/// beside it the third try counts; what two Underpasses lose is theirs.
fn ping_past(router: &Router, host: &Namespace, line: &str, count: u32) -> Result<(), String> {
    let tries = if matches!(router, Router::Linux(_)) { 3 } else { 1 };
    let mut outcomes = (0..tries).map(|_| ping(host, line, count));
    let first = outcomes.next().unwrap_or(Ok(()));
    first.or_else(|why| outcomes.find(Result::is_ok).unwrap_or(Err(why)))
}

/// A tunnel is a hop of its own: what one end sends comes to the other with the hop limit that it was sent with.
fn hop_limit_kept(namespace: &Namespace, address: &str) -> Result<(), String> {
    let outcome = namespace.outcome(&format!("ping -n -c 1 -W 2 {address}")).unwrap();
    if outcome.output.contains(" ttl=64 ") { Ok(()) } else { Err(format!("not ttl=64:\n{}", outcome.output)) }
}

/// A packet that is too long for the tunnel is answered with the MTU of the tunnel.
fn told_mtu(host: &Namespace, address: &str, mtu: u32, family: Family) -> Result<(), String> {
    // What has been learned before is not told again.
    host.run("ip route flush cache; ip -6 route flush cache").unwrap();
    let line = format!("ping -n -c 1 -W 2 -M do -s {} {address}", mtu + 1 - family.ping());
    let outcome = host.outcome(&line).unwrap();
    let told = match family {
        Family::Four => format!("mtu = {mtu})"),
        Family::Six => format!("mtu={mtu}"),
    };
    if outcome.output.contains(&told) {
        Ok(())
    } else {
        Err(format!("{line}: not {told}:\n{}", outcome.output))
    }
}

/// Sends `LENGTH` bytes from one host to another, whose hash must be the same; how long it took.
fn transfer(from: &Namespace, to: &Namespace, address: &str) -> Result<Duration, String> {
    let address: IpAddr = address.parse().unwrap();
    let any = if address.is_ipv6() { "[::]:0" } else { "0.0.0.0:0" };
    let listener = to.enter(|| TcpListener::bind(any)).unwrap().unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut out = from.enter(|| TcpStream::connect((address, port))).unwrap().map_err(|e| e.to_string())?;
    let (mut into, _) = listener.accept().unwrap();
    for socket in [&out, &into] {
        socket.set_write_timeout(Some(PATIENCE / 4)).unwrap();
        socket.set_read_timeout(Some(PATIENCE / 4)).unwrap();
    }
    let start = Instant::now();
    let sender = thread::spawn(move || {
        // Numbers that do not repeat, so that bytes in another's place are seen.
        let (mut hash, mut state, mut left) = (Sha256::new(), 0x9e37_79b9_7f4a_7c15_u64, LENGTH);
        while left > 0 {
            let mut chunk = [0; 65536];
            for word in chunk.chunks_exact_mut(8) {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                word.copy_from_slice(&state.to_le_bytes());
            }
            let chunk = &chunk[..left.min(65536)];
            out.write_all(chunk).map_err(|error| format!("sending, {left} bytes left: {error}"))?;
            hash.update(chunk);
            left -= chunk.len();
        }
        Ok::<_, String>(hash.finalize())
    });
    let (mut hash, mut got, mut buffer) = (Sha256::new(), 0, vec![0; 1 << 18]);
    let outcome = loop {
        match into.read(&mut buffer) {
            Ok(0) => break Ok(()),
            Ok(len) => {
                hash.update(&buffer[..len]);
                got += len;
            }
            Err(error) => break Err(format!("after {got} bytes: {error}")),
        }
        if start.elapsed() > PATIENCE {
            break Err(format!("{got} bytes in {PATIENCE:?}"));
        }
    };
    drop(into);
    let sent = sender.join().unwrap();
    outcome?;
    if got == LENGTH && sent? == hash.finalize() {
        Ok(start.elapsed())
    } else {
        Err(format!("{got} bytes came, or others than were sent"))
    }
}

const ENDS: &str = "local 10.0.0.ME remote 10.0.0.YOU";

/// Every kind in every encapsulation. `way` says in which direction the large transfer goes.
fn every_pair(pair: &mut Pair, ways: &[(usize, usize)]) {
    for (kind, protocol, header, families) in KINDS {
        for (name, options, more) in ENCAPSULATIONS {
            let port = match more {
                0 => String::new(),
                8 => format!("ipproto {protocol}"),
                _ => "gue".to_owned(),
            };
            let what = format!("{kind} in {name}");
            pair.connect(kind, options, &port, ENDS);
            pair.works(&what, families, 1500 - header - more);
            for &(from, to) in ways {
                let address = families[families.len() - 1].host(to + 1);
                let took = pair.check(&what, transfer(&pair.hosts[from], &pair.hosts[to], &address));
                println!("{what}, {} to {}: {took:.1?}", from + 1, to + 1);
            }
            pair.disconnect(&port);
        }
    }
}

#[test]
fn tunnels_between_two_routers() {
    let Some(_turn) = turn("tunnels_between_two_routers") else { return };
    let mut pair = Pair::new(&["--driver", "packet"], UNDERPASS);
    every_pair(&mut pair, &[(0, 1)]);
    pair.stop();
}

#[test]
fn tunnels_with_a_linux() {
    const NAME: &str = "tunnels_with_a_linux";
    let Some(_turn) = turn(NAME) else { return };
    let Some(kernel) = guest::kernel(NAME) else { return };
    let mut pair = Pair::new(&[], Which::Linux(&kernel));
    every_pair(&mut pair, &[(0, 1), (1, 0)]);
    pair.stop();
}

/// With AF_XDP, where the choice of what the kernel keeps is made by another program.
#[test]
fn tunnels_over_af_xdp() {
    let Some(_turn) = turn("tunnels_over_af_xdp") else { return };
    let xdp = ["--driver", "xdp", "--workers", "1"];
    let mut pair = Pair::new(&xdp, Which::Underpass(&xdp));
    for (kind, port, options, ends, mtu) in [
        ("gre", "", "key 7 csum", ENDS, 1500 - 32),
        ("ipip", "ipproto 4", "encap fou encap-sport auto encap-dport 5555", ENDS, 1500 - 28),
        ("ip6gre", "", "", "local fd00::ME remote fd00::YOU", 1500 - 52),
        ("ip6tnl", "", "mode any", "local fd00::ME remote fd00::YOU", 1500 - 48),
    ] {
        pair.connect(kind, options, port, ends);
        let families = if kind == "ipip" { &[Family::Four][..] } else { &[Family::Four, Family::Six] };
        pair.works(kind, families, mtu);
        pair.check(kind, transfer(&pair.hosts[0], &pair.hosts[1], "10.2.0.2"));
        pair.disconnect(port);
    }
    pair.stop();
}

/// A router between the ends that takes less: what it tells is learned, and told to hosts. What may be fragmented
/// is fragmented there, and put together at the other end.
#[test]
fn tunnels_over_a_narrow_path() {
    const NAME: &str = "tunnels_over_a_narrow_path";
    let Some(_turn) = turn(NAME) else { return };
    let linux = guest::kernel(NAME);
    let others = linux.as_deref().map(Which::Linux).into_iter().chain([UNDERPASS]);
    for other in others {
        let middle = net::namespace("middle");
        let mut pair = Pair::over_narrow(other, &middle);
        for (kind, port, options, ends, overhead, families) in [
            ("ipip", "", "", ENDS, 20, &[Family::Four][..]),
            (
                "gre",
                "ipproto 47",
                "encap fou encap-sport auto encap-dport 5555 encap-csum",
                ENDS,
                32,
                KINDS[1].3,
            ),
            ("sit", "gue", "encap gue encap-sport auto encap-dport 5555", ENDS, 32, &[Family::Six]),
            ("ip6tnl", "", "mode any", "local fd00::ME remote fd00::YOU", 48, &[Family::Four, Family::Six]),
            ("ip6gre", "", "key 3 csum", "local fd00::ME remote fd00::YOU", 60, &[Family::Four, Family::Six]),
            ("gre", "", "seq", ENDS, 28, KINDS[1].3),
        ] {
            let what = format!("{kind} with {other:?}");
            pair.connect(kind, options, port, ends);
            for &family in families {
                for (n, host) in pair.hosts.iter().enumerate() {
                    let address = family.host(2 - n);
                    pair.check(&what, settle(host, &address, Duration::from_secs(10)));
                    // Lost on the way, which the router is told.
                    let line = format!("ping -n -c 1 -W 1 -M do -s {} {address}", NARROW - family.ping());
                    assert_ne!(host.outcome(&line).unwrap().status, 0, "{what}");
                    pair.check(&what, told_mtu(host, &address, NARROW - overhead, family));
                    let whole = NARROW - overhead - family.ping();
                    pair.check(
                        &what,
                        ping_past(&pair.routers[1], host, &format!("-M do -s {whole} {address}"), 3),
                    );
                }
            }
            let address = families[families.len() - 1].host(2);
            pair.check(&what, transfer(&pair.hosts[0], &pair.hosts[1], &address));
            pair.disconnect(port);
        }
        for (port, options) in
            [("", ""), ("ipproto 4", "encap fou encap-sport auto encap-dport 5555 encap-csum")]
        {
            pair.connect("ipip", &format!("ttl inherit nopmtudisc {options}"), port, ENDS);
            for (n, host) in pair.hosts.iter().enumerate() {
                let address = Family::Four.host(2 - n);
                pair.check("fragments", settle(host, &address, Duration::from_secs(10)));
                pair.check(
                    "fragments",
                    ping_past(&pair.routers[1], host, &format!("-M dont -s 1400 {address}"), 20),
                );
            }
            pair.disconnect(port);
        }
        pair.stop();
    }
}

/// One end sends in foo-over-UDP and the other does not: what is received does not depend on what is sent.
#[test]
fn tunnels_that_differ_at_their_ends() {
    const NAME: &str = "tunnels_that_differ_at_their_ends";
    let Some(_turn) = turn(NAME) else { return };
    let linux = guest::kernel(NAME);
    let others = linux.as_deref().map(Which::Linux).into_iter().chain([UNDERPASS]);
    for other in others {
        let mut pair = Pair::new(&[], other);
        for (kind, protocol, _, families) in KINDS {
            for (name, options, more) in &ENCAPSULATIONS[1..] {
                let port = if *more == 8 { format!("ipproto {protocol}") } else { "gue".to_owned() };
                for sender in [0, 1] {
                    let what = format!("{kind}, {name} from {}, with {other:?}", sender + 1);
                    pair.routers[1 - sender].run(&format!("ip fou add port 5555 {port}"));
                    for at in [0, 1] {
                        let options = if at == sender { options } else { "" };
                        let (me, you) = (at + 1, 2 - at);
                        pair.routers[at].run(&format!(
                            "ip link add tun1 type {kind} local 10.0.0.{me} remote 10.0.0.{you} {options}
                             ip link set tun1 mtu 1400 up
                             ip route add 10.{you}.0.0/24 dev tun1
                             ip -6 route add fd10:{you}::/64 dev tun1"
                        ));
                    }
                    for &family in families {
                        let [near, far] = &pair.hosts;
                        pair.check(&what, settle(near, &family.host(2), Duration::from_secs(10)));
                        pair.check(&what, ping_past(&pair.routers[1], near, &family.host(2), 5));
                        pair.check(&what, ping_past(&pair.routers[1], far, &family.host(1), 5));
                    }
                    if sender == 0 {
                        let address = families[families.len() - 1].host(2);
                        pair.check(&what, transfer(&pair.hosts[0], &pair.hosts[1], &address));
                    }
                    pair.both("ip link del tun1");
                    pair.routers[1 - sender].run(&format!("ip fou del port 5555 {port}"));
                }
            }
        }
        pair.stop();
    }
}

/// Tunnels of a VRF whose outer packets are in none.
#[test]
fn tunnels_in_a_vrf() {
    const NAME: &str = "tunnels_in_a_vrf";
    let Some(_turn) = turn(NAME) else { return };
    let linux = guest::kernel(NAME);
    let others = linux.as_deref().map(Which::Linux).into_iter().chain([UNDERPASS]);
    for other in others {
        let mut pair = Pair::new(&[], other);
        pair.both(
            "ip link add red type vrf table 100
             ip link set red up
             ip link set cust master red
             ip link set cust up
             ip -6 addr add fd10:ME::1/64 dev cust nodad || ip -6 addr show dev cust",
        );
        for (kind, port, options, mtu, families) in [
            ("ipip", "", "", 1480, &[Family::Four][..]),
            ("gre", "gue", "key 9 encap gue encap-sport auto encap-dport 5555 encap-csum", 1460, KINDS[1].3),
            ("sit", "ipproto 41", "encap fou encap-sport auto encap-dport 5555", 1472, &[Family::Six]),
        ] {
            let what = format!("{kind} with {other:?}");
            if !port.is_empty() {
                pair.both(&format!("ip fou add port 5555 {port}"));
            }
            pair.both(&format!(
                "ip link add tun1 type {kind} {ENDS} {options}
                 ip link set tun1 master red
                 ip link set tun1 up
                 ip route add 10.YOU.0.0/24 dev tun1 table 100
                 ip -6 route add fd10:YOU::/64 dev tun1 table 100"
            ));
            for &family in families {
                for (n, host) in pair.hosts.iter().enumerate() {
                    let address = family.host(2 - n);
                    pair.check(&what, settle(host, &address, Duration::from_secs(10)));
                    pair.check(&what, ping_past(&pair.routers[1], host, &address, 10));
                    pair.check(&what, told_mtu(host, &address, mtu, family));
                }
            }
            let address = families[families.len() - 1].host(2);
            pair.check(&what, transfer(&pair.hosts[0], &pair.hosts[1], &address));
            pair.disconnect(port);
        }
        pair.stop();
    }
}

/// Devices that leave it to routes where packets go.
#[test]
fn external_tunnels() {
    const NAME: &str = "external_tunnels";
    let Some(_turn) = turn(NAME) else { return };
    let linux = guest::kernel(NAME);
    let others = linux.as_deref().map(Which::Linux).into_iter().chain([UNDERPASS]);
    for other in others {
        let mut pair = Pair::new(&[], other);
        for (kind, encap, families) in [
            ("ipip", "ip dst 10.0.0.YOU src 10.0.0.ME", &[Family::Four][..]),
            ("gre", "ip id 7 key dst 10.0.0.YOU src 10.0.0.ME", KINDS[1].3),
            ("ip6tnl", "ip6 dst fd00::YOU src fd00::ME", KINDS[1].3),
            ("ip6gre", "ip6 id 7 key dst fd00::YOU src fd00::ME", KINDS[1].3),
            ("bareudp", "ip dst 10.0.0.YOU ttl 64 csum", KINDS[1].3),
            ("bareudp", "ip6 dst fd00::YOU hoplimit 64", KINDS[1].3),
            ("vxlan", "ip id 7 dst 10.0.0.YOU csum", KINDS[1].3),
            ("vxlan", "ip6 id 8 dst fd00::YOU csum", KINDS[1].3),
            ("geneve", "ip id 7 dst 10.0.0.YOU ttl 64", KINDS[1].3),
            ("geneve", "ip6 id 8 dst fd00::YOU hoplimit 64", KINDS[1].3),
            ("geneve innerprotoinherit", "ip id 9 dst 10.0.0.YOU ttl 64 csum", KINDS[1].3),
        ] {
            let what = format!("{kind} with {other:?}");
            let options = match kind {
                "bareudp" => "dstport 6635 ethertype ipv4 multiproto",
                "vxlan" => "external dstport 4789",
                _ => "external",
            };
            // Nobody answers for neighbours behind a device that does not know where to send.
            let (address, via, via6, neighbours) = match kind {
                "vxlan" | "geneve" => (
                    "address 02:00:00:00:70:0ME",
                    "via 10.9.0.YOU",
                    "via fd09::YOU",
                    "ip addr add 10.9.0.ME/24 dev tun1
                     ip addr add fd09::ME/64 dev tun1 nodad
                     ip neigh add 10.9.0.YOU lladdr 02:00:00:00:70:0YOU dev tun1
                     ip neigh add fd09::YOU lladdr 02:00:00:00:70:0YOU dev tun1",
                ),
                _ => ("", "", "", ""),
            };
            pair.both(&format!(
                "ip link add tun1 {address} type {kind} {options}
                 ip link set tun1 mtu 1400 up
                 {neighbours}
                 ip route add 10.YOU.0.0/24 encap {encap} {via} dev tun1
                 ip -6 route add fd10:YOU::/64 encap {encap} {via6} dev tun1"
            ));
            for &family in families {
                for (n, host) in pair.hosts.iter().enumerate() {
                    let address = family.host(2 - n);
                    pair.check(&what, settle(host, &address, Duration::from_secs(10)));
                    pair.check(&what, ping_past(&pair.routers[1], host, &address, 10));
                    pair.check(&what, told_mtu(host, &address, 1400, family));
                }
            }
            pair.check(&what, transfer(&pair.hosts[0], &pair.hosts[1], "10.2.0.2"));
            pair.disconnect("");
        }
        pair.stop();
    }
}
