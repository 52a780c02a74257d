//! The mirror of a kernel's tables, in network namespaces of the test's own: it shows what `ip -json`
//! shows, whatever has happened. Needs root; says so where it has to be left out.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, unshare};
use serde_json::Value;
use underpass_control::{Route, Router};
use underpass_daemon::kernel::Kernel;
use underpass_engine::tables::Writer;

/// Runs a test in a network namespace that ends with it; says what is left out if it may not have one.
fn in_namespace(test: impl FnOnce() + Send + 'static) {
    let thread = std::thread::spawn(move || {
        if !nix::unistd::geteuid().is_root() || unshare(CloneFlags::CLONE_NEWNET).is_err() {
            let _ = writeln!(std::io::stderr(), "SKIPPED: network namespaces need root");
            return;
        }
        test();
    });
    thread.join().unwrap();
}

fn ip(words: &str) -> bool {
    let mut command = Command::new("ip");
    command.args(words.split_whitespace()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().unwrap().success()
}

fn must(words: &str) {
    assert!(ip(words), "ip {words}");
}

fn batch(lines: &str) {
    let mut command =
        Command::new("ip").args(["-force", "-batch", "-"]).stdin(Stdio::piped()).spawn().unwrap();
    command.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    assert!(command.wait().unwrap().success());
}

fn json(words: &str) -> Vec<Value> {
    let output = Command::new("ip").args(["-j", "-N", "-d"]).args(words.split_whitespace()).output().unwrap();
    assert!(output.status.success(), "{words}");
    if output.stdout.is_empty() { Vec::new() } else { serde_json::from_slice(&output.stdout).unwrap() }
}

struct Lab {
    router: Router,
    kernel: Kernel,
}

impl Lab {
    fn new() -> Self {
        let (writer, _tables, _readers) = Writer::new(0);
        let mut lab = Self { router: Router::live(writer), kernel: Kernel::open().unwrap() };
        lab.kernel.synchronise(&mut lab.router).unwrap();
        lab
    }

    fn catch_up(&mut self) {
        self.kernel.synchronise(&mut self.router).unwrap();
    }

    /// Compares all that `ip` shows with what the router has. The kernel does some of its work later: it
    /// has a while to become as the router is, or the other way round.
    fn compare(&mut self) {
        let end = Instant::now() + Duration::from_secs(4);
        loop {
            self.catch_up();
            let (own, shown) = (self.own(), shown());
            if own == shown || Instant::now() > end {
                for (own, shown) in own.iter().zip(&shown) {
                    assert_eq!(own, shown);
                }
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// What the router has: lines for links, addresses, neighbours, routes.
    fn own(&self) -> [Vec<String>; 5] {
        let router = &self.router;
        let mac = |mac: [u8; 6]| mac.map(|byte| format!("{byte:02x}")).join(":");
        let links =
            router.links().map(|l| format!("{} {} {} {} {}", l.index, l.name, l.mtu, l.up(), mac(l.mac)));
        let ready = |index: u32| router.link(index).is_some_and(|link| link.up() && link.carrier);
        let addresses = router.addresses().filter(|a| a.local.is_ipv4() || ready(a.link));
        let addresses = addresses.map(|a| format!("{} {}/{}", a.link, a.local, a.prefix_len));
        let neighbours =
            router.neighbours().filter(|(_, _, n)| n.state != libc::NUD_NOARP).filter_map(|(l, a, n)| {
                let mac = mac(n.usable()?);
                Some(format!("{l} {a} {mac}"))
            });
        let routes = |v6| {
            underpass_control::routes(router)
                .filter(move |r| r.destination.addr().is_ipv6() == v6)
                .map(|r| own_route(&r))
        };
        sorted([
            links.collect(),
            addresses.collect(),
            neighbours.collect(),
            routes(false).collect(),
            routes(true).collect(),
        ])
    }
}

fn sorted(mut lists: [Vec<String>; 5]) -> [Vec<String>; 5] {
    lists.iter_mut().for_each(|list| list.sort());
    lists
}

/// The same as `ip` shows it.
fn shown() -> [Vec<String>; 5] {
    let links = json("link show");
    let names: BTreeMap<String, u64> =
        links.iter().map(|l| (text(l, "ifname").to_owned(), number(l, "ifindex"))).collect();
    let mut addresses = Vec::new();
    for link in json("address show") {
        for address in link["addr_info"].as_array().into_iter().flatten().filter(|a| a["local"].is_string()) {
            // Of an IPv6 address that cannot be used yet the kernel does not tell.
            if address["tentative"] != true && !unready(&link, address) {
                let (index, len) = (number(&link, "ifindex"), number(address, "prefixlen"));
                addresses.push(format!("{index} {}/{len}", text(address, "local")));
            }
        }
    }
    let neighbours = json("neigh show nud all");
    // Nor of the addresses of multicast groups.
    let told = |n: &&Value| n["lladdr"].is_string() && n["state"][0] != "NOARP";
    let neighbours = neighbours.iter().filter(told);
    let neighbours =
        neighbours.map(|n| format!("{} {} {}", names[text(n, "dev")], text(n, "dst"), text(n, "lladdr")));
    let all = |family: &str| -> Vec<String> {
        let shown = json(&format!("{family} route show table all"));
        shown.iter().flat_map(|r| routes(r, family, &names)).collect()
    };
    let links = links.iter().map(link).collect();
    sorted([links, addresses, neighbours.collect(), all("-4"), all("-6")])
}

/// Whether an address is of IPv6 on a link that is down.
fn unready(link: &Value, address: &Value) -> bool {
    !matches!(text(link, "operstate"), "UP" | "UNKNOWN") && address["family"] == "inet6"
}

fn number(value: &Value, key: &str) -> u64 {
    value[key].as_u64().unwrap_or_default()
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

fn link(link: &Value) -> String {
    let up = link["flags"].as_array().unwrap().iter().any(|flag| flag == "UP");
    let (index, mtu) = (number(link, "ifindex"), number(link, "mtu"));
    format!("{index} {} {mtu} {up} {}", text(link, "ifname"), text(link, "address"))
}

/// A route as `ip` shows it: each way of one of IPv6 by itself.
fn routes(route: &Value, family: &str, names: &BTreeMap<String, u64>) -> Vec<String> {
    let v6 = family == "-6";
    let any = if v6 { "::/0" } else { "0.0.0.0/0" };
    let destination = match text(route, "dst") {
        "default" => any.to_owned(),
        dst if dst.contains('/') => dst.to_owned(),
        dst => format!("{dst}/{}", if v6 { 128 } else { 32 }),
    };
    let numeric = |key: &str, default: u64| text(route, key).parse().unwrap_or(default);
    let way = |way: &Value| {
        let via = way["via"]["host"].as_str().unwrap_or_default();
        let gateway = way["gateway"].as_str().unwrap_or(via).to_owned();
        (names.get(text(way, "dev")).copied().unwrap_or_default(), gateway)
    };
    let ways: Vec<_> = match route["nexthops"].as_array() {
        Some(ways) => ways.iter().map(way).collect(),
        None if route["dev"].is_string() || !route["gateway"].is_null() => vec![way(route)],
        None => Vec::new(),
    };
    let kind = match text(route, "type") {
        "unicast" | "" => 1,
        kind => kind.parse().unwrap_or_else(|_| kind_number(kind)),
    };
    let table = numeric("table", 254);
    let (protocol, metric) = (numeric("protocol", 3), number(route, "metric"));
    let one = |ways: Vec<_>| format!("{destination} {table} {kind} {protocol} {metric} {ways:?}");
    match v6 && route["nhid"].is_null() {
        true => ways.into_iter().map(|way| one(vec![way])).collect(),
        false => vec![one(ways)],
    }
}

fn kind_number(name: &str) -> u64 {
    let names = ["none", "unicast", "local", "broadcast", "anycast", "multicast", "blackhole", "unreachable"];
    let more = ["prohibit", "throw"];
    names.iter().chain(&more).position(|other| *other == name).expect(name) as u64
}

fn own_route(route: &Route) -> String {
    let Route { destination, table, kind, protocol, metric, .. } = route;
    let ways = route
        .ways
        .iter()
        .map(|(link, gateway)| (*link, gateway.map(|gateway| gateway.to_string()).unwrap_or_default()));
    format!("{destination} {table} {kind} {protocol} {metric} {:?}", ways.collect::<Vec<_>>())
}

/// Links v0 to v3: two pairs, with addresses.
fn links() {
    must("link set lo up");
    must("link add v0 type veth peer name v1");
    must("link add v2 type veth peer name v3");
    for (n, link) in ["v0", "v1", "v2", "v3"].iter().enumerate() {
        must(&format!("link set {link} up"));
        must(&format!("address add 10.{n}.0.1/24 dev {link}"));
        must(&format!("address add fd00:{n}::1/64 dev {link} nodad"));
    }
}

/// What was there before the router came, and what happens then.
#[test]
fn as_ip_shows() {
    in_namespace(|| {
        links();
        must("route add 10.20.0.0/16 via 10.0.0.2 metric 7 src 10.1.0.1");
        must("route add 10.21.0.0/16 nexthop via 10.0.0.2 weight 2 nexthop via 10.2.0.2");
        must("route add unreachable 10.22.0.0/16");
        must("route add 10.23.0.0/16 via inet6 fd00:0::9 dev v0");
        must("-6 route add fd20::/16 nexthop via fd00:0::2 nexthop via fd00:2::2");
        must("-6 route add blackhole fd21::/16 table 77");
        must("nexthop add id 5 via 10.0.0.3 dev v0");
        must("nexthop add id 6 via fd00:0::3 dev v0");
        must("route add 10.24.0.0/16 nhid 5");
        must("-6 route add fd24::/16 nhid 6");
        must("neighbour add 10.0.0.2 lladdr 02:00:00:00:00:09 dev v0");
        let mut lab = Lab::new();
        lab.compare();
        for change in [
            "route add 10.30.0.0/16 via 10.0.0.4",
            "route append 10.30.0.0/16 via 10.2.0.4",
            "route prepend 10.30.0.0/16 via 10.1.0.4",
            "route replace 10.30.0.0/16 via 10.3.0.4",
            "route del 10.30.0.0/16 via 10.2.0.4",
            "-6 route append fd20::/16 via fd00:1::2",
            "-6 route del fd20::/16 via fd00:0::2",
            "-6 route replace fd20::/16 via fd00:3::2",
            "-6 route add fd30::/16 dev v0 metric 5",
            "-6 route append fd30::/16 dev v2 metric 5",
            "-6 route replace fd30::/16 via fd00:3::7 metric 5",
            "-6 route del fd30::/16 metric 5",
            "address add 10.0.0.7/24 dev v0",
            "address del 10.1.0.1/24 dev v1",
            "address del fd00:3::1/64 dev v3",
            "neighbour add fd00:0::2 lladdr 02:00:00:00:00:08 dev v0",
            "neighbour del 10.0.0.2 dev v0",
            "nexthop del id 5",
            "link set v0 mtu 1400",
            "link set v3 address 02:00:00:00:11:11",
            "link set v2 down",
            "link set v2 name vv",
            "link set vv up",
            "address del 10.2.0.1/24 dev vv",
            "link del v0",
        ] {
            must(change);
            lab.compare();
        }
    });
}

/// Changes drawn at random, compared from time to time, and after the queue has been overrun.
#[test]
fn random_changes() {
    in_namespace(|| {
        links();
        let mut lab = Lab::new();
        let mut seed = 0x2545_f491_4f6c_dd1d_u64;
        let mut draw = move |below: u64| {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed % below
        };
        for round in 0..40 {
            let mut lines = String::new();
            for _ in 0..50 {
                let link = ["v0", "v1", "v2", "v3"][draw(4) as usize];
                let (n, p, metric) = (draw(4), draw(8), draw(3));
                let verb = ["add", "append", "prepend", "replace", "del", "del"][draw(6) as usize];
                lines += &match draw(12) {
                    0..4 => {
                        format!("route {verb} 10.1{p}.0.0/16 via 10.{n}.0.{} metric {metric}\n", 2 + draw(3))
                    }
                    4..7 => format!(
                        "-6 route {verb} fd1{p}::/16 via fd00:{n}::{} metric {}\n",
                        2 + draw(3),
                        metric + 1
                    ),
                    7 => format!("-6 route {verb} fd1{p}::/16 dev {link} metric {}\n", metric + 1),
                    8 => format!(
                        "route {verb} 10.1{p}.0.0/16 nexthop via 10.{n}.0.2 nexthop via 10.0.0.9 metric 1\n"
                    ),
                    9 => format!("link set {link} {}\n", if draw(3) == 0 { "down" } else { "up" }),
                    10 => format!(
                        "address {} 10.{n}.0.1/24 dev {link}\n",
                        if draw(2) == 0 { "add" } else { "del" }
                    ),
                    _ => format!(
                        "address {} fd00:{n}::1/64 dev {link} nodad\n",
                        if draw(2) == 0 { "add" } else { "del" }
                    ),
                };
            }
            let mut command = Command::new("ip")
                .args(["-force", "-batch", "-"])
                .stdin(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            command.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
            command.wait().unwrap();
            if round % 4 == 3 {
                lab.compare();
            }
        }
    });
}

/// Thousands of routes, told faster than they are read: the queue is overrun and all is read anew.
#[test]
fn an_overrun_is_made_good() {
    in_namespace(|| {
        links();
        let mut lab = Lab::new();
        lab.kernel.shrink_queue(64 << 10).unwrap();
        let add = |from: u32| -> String {
            (from..from + 20_000)
                .map(|n| format!("route add 11.{}.{}.0/24 via 10.0.0.2\n", n >> 8, n & 255))
                .collect()
        };
        batch(&add(0));
        lab.compare();
        assert_eq!(
            underpass_control::routes(&lab.router)
                .filter(|r| r.destination.to_string().starts_with("11."))
                .count(),
            20_000
        );
        must("link set v0 down");
        batch(&add(0).replace("via 10.0.0.2", "via 10.1.0.2"));
        lab.compare();
    });
}

/// A route is in the model within a bounded time of `ip`'s end.
#[test]
fn a_change_is_seen_soon() {
    in_namespace(|| {
        links();
        let mut lab = Lab::new();
        must("route add 10.99.0.0/16 via 10.0.0.2");
        let begun = Instant::now();
        let seen = |lab: &Lab| {
            underpass_control::routes(&lab.router)
                .any(|route| route.destination.to_string() == "10.99.0.0/16")
        };
        while !seen(&lab) {
            lab.kernel.turn(&mut lab.router).unwrap();
            assert!(begun.elapsed() < Duration::from_secs(1));
        }
    });
}
