//! The daemon itself: what it attaches, what it tells of itself.

use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use underpass_daemon::{
    live::Stats,
    testbed::{self, Namespace},
};

use crate::net::{self, Line, ping, program, settle};

impl Line {
    /// Pings across, in both families.
    pub fn works(&self) {
        for address in ["10.0.2.2", "fd00:2::2"] {
            settle(&self.hosts[0], address, Duration::from_secs(5)).unwrap();
            ping(&self.hosts[0], address, 10).unwrap();
        }
    }
}

pub fn stats(namespace: &Namespace) -> Stats {
    let told = namespace.run(&format!("{} stats --json", program().display())).unwrap();
    serde_json::from_str(&told).unwrap()
}

#[test]
fn pings_cross_while_neighbours_come_and_go() {
    let Some(_turn) = net::turn("pings_cross_while_neighbours_come_and_go") else { return };
    let line = Line::new();
    let router = line.start(&[]);
    line.works();
    // The router's own addresses are the kernel's, which answers for them.
    for address in ["10.0.1.1", "10.0.2.1", "fd00:1::1", "fd00:2::1"] {
        ping(&line.hosts[0], address, 5).unwrap();
    }
    // Nobody waits longer than for an answer to ARP or neighbour discovery, and nothing is lost meanwhile.
    for _ in 0..5 {
        line.hosts[1].run("ip neigh flush dev e0").unwrap();
        line.router.run("ip neigh flush all").unwrap();
        for address in ["10.0.2.2", "fd00:2::2"] {
            ping(&line.hosts[0], address, 3).unwrap();
        }
    }
    // Who is not there: the sender is told so.
    let outcome =
        line.hosts[0].outcome("ping -n -c 1 -W 5 10.0.2.99 || ping -n -c 1 -W 5 fd00:2::99").unwrap();
    assert!(
        outcome.output.contains("From 10.0.1.1 icmp_seq=1 Destination Host Unreachable"),
        "{}",
        outcome.output
    );
    assert!(outcome.output.contains("Address unreachable"), "{}", outcome.output);
    // A link that goes down and comes back.
    line.router
        .run("ip link set v2 down; sleep 0.2; ip link set v2 up; ip addr add fd00:2::1/64 dev v2 nodad")
        .unwrap();
    line.works();
    router.stop().unwrap();
}

#[test]
fn devices_are_attached_as_they_appear() {
    let Some(_turn) = net::turn("devices_are_attached_as_they_appear") else { return };
    let line = Line::new();
    let router = line.start(&[]);
    let other = net::namespace("h3");
    testbed::join(&line.router, "v3", &other, "e0").unwrap();
    line.router.run("ip link set v3 up; ip addr add 10.0.3.1/24 dev v3").unwrap();
    other
        .run("ip link set e0 up; ip addr add 10.0.3.2/24 dev e0; ip route add default via 10.0.3.1")
        .unwrap();
    settle(&other, "10.0.1.2", Duration::from_secs(5)).unwrap();
    ping(&other, "10.0.1.2", 10).unwrap();
    let named = |stats: Stats| stats.ports.into_iter().map(|port| port.name).collect::<Vec<_>>();
    assert!(named(stats(&line.router)).contains(&"v3".to_owned()));
    // Another MTU, another name, another address.
    line.router.run("ip link set v3 mtu 1400; ip link set v3 down; ip link set v3 name w3 address 02:00:00:00:33:33; ip link set w3 up").unwrap();
    line.router.run("ip addr replace 10.0.3.1/24 dev w3").unwrap();
    other.run("ip neigh flush dev e0").unwrap();
    settle(&other, "10.0.1.2", Duration::from_secs(5)).unwrap();
    ping(&other, "10.0.1.2", 10).unwrap();
    line.router.run("ip link del w3").unwrap();
    line.works();
    assert_eq!(named(stats(&line.router)), ["v1", "v2", "underpass0"]);
    router.stop().unwrap();
}

#[test]
fn what_the_host_sends_and_gets_goes_through_tunnels() {
    let Some(_turn) = net::turn("what_the_host_sends_and_gets_goes_through_tunnels") else { return };
    let line = Line::new();
    line.hosts[1]
        .run(
            "sysctl -qw net.ipv6.conf.all.forwarding=1
             ip addr add fd00:9::1/128 dev lo
             ip -6 route add fc00:2::1/128 encap seg6local action End.DT6 table local dev e0
             ip -6 route add fd00:2::1/128 encap seg6 mode encap segs fc00:1::1 via fd00:2::1 dev e0",
        )
        .unwrap();
    let router = line.start(&[]);
    router
        .run(
            "ip -6 route add fc00:2::/64 via fd00:2::2
             ip -6 route add fd00:9::/64 encap seg6 mode encap segs fc00:2::1 via fd00:2::2 dev v2
             ip -6 route add fc00:1::1/128 encap seg6local action End.DT6 table local count dev v1",
        )
        .unwrap();
    // There through fc00:2::1, and back through fc00:1::1 to an address of the host.
    settle(&line.router, "fd00:9::1", Duration::from_secs(5)).unwrap();
    ping(&line.router, "fd00:9::1", 10).unwrap();
    let sid = stats(&line.router).sids.into_iter().find(|sid| sid.prefix == "fc00:1::1/128").unwrap();
    assert!(sid.packets >= 10 && sid.errors == 0, "{sid:?}");
    assert_eq!((sid.behaviour.as_str(), sid.table), ("End.DT6", 254));
    // The longest that passes: 1,500 less an IPv6 header and an SRH with one segment.
    let longest = "ping -n -c 1 -W 1 -M do -s";
    line.router.run(&format!("{longest} {} fd00:9::1", 1500 - 64 - 48)).unwrap();
    let outcome = line.router.outcome(&format!("{longest} {} fd00:9::1", 1500 - 64 - 47)).unwrap();
    assert!(
        outcome.output.contains("mtu: 1436") || outcome.output.contains("mtu=1436"),
        "{}",
        outcome.output
    );
    // A TCP connection of the host's own, both ways through segments.
    let server =
        line.hosts[1].command("iperf3").args(["-s", "-1", "-B", "fd00:9::1"]).stdout(Stdio::null()).spawn();
    if let Ok(mut server) = server {
        thread::sleep(Duration::from_millis(300));
        let outcome = line.router.outcome("iperf3 -c fd00:9::1 -n 20M").unwrap();
        assert_eq!(outcome.status, 0, "{}", outcome.output);
        server.wait().unwrap();
    } else {
        net::skip("TCP through tunnels of the host's own", "no iperf3");
    }
    // An address takes the kernel's routes along that send from it; the route of the router stays.
    line.router.run("ip addr add 10.5.0.1/24 dev v2").unwrap();
    router.run("ip route add 10.9.0.0/16 encap seg6 mode encap segs fc00:2::1 dev v2").unwrap();
    for address in ["10.0.2.1", "10.5.0.1", "10.0.2.1"] {
        let told = line.router.run("ip -4 route show proto 117").unwrap();
        let shadow = format!("10.9.0.0/16 dev underpass0 scope link src {address} mtu 1436");
        assert!(told.contains(&shadow), "{told}");
        let change = if address == "10.0.2.1" { "del" } else { "add" };
        line.router.run(&format!("ip addr {change} 10.0.2.1/24 dev v2; sleep 0.3")).unwrap();
        if change == "add" {
            line.router.run("ip addr del 10.5.0.1/24 dev v2; sleep 0.3").unwrap();
        }
    }
    // A router that lost the address or the route also loses what it put into the kernel for it.
    router.run("ip -6 route del fd00:9::/64").unwrap();
    assert_eq!(line.router.run("ip -6 route show proto 117").unwrap(), "");
    router.stop().unwrap();
}

fn metrics(namespace: &Namespace) -> String {
    namespace
        .enter(|| {
            let mut connection = TcpStream::connect("127.0.0.1:9117").unwrap();
            connection.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost:9117\r\n\r\n").unwrap();
            let mut answer = String::new();
            connection.read_to_string(&mut answer).unwrap();
            answer
        })
        .unwrap()
}

#[test]
fn packets_are_counted_and_told() {
    let Some(_turn) = net::turn("packets_are_counted_and_told") else { return };
    let line = Line::new();
    let router = line.start(&["--metrics", "127.0.0.1:9117", "--workers", "2"]);
    line.works();
    let before = stats(&line.router);
    ping(&line.hosts[0], "10.0.2.2", 50).unwrap();
    line.hosts[0].outcome("ping -n -c 5 -i 0.01 -W 1 10.99.0.1").unwrap();
    let after = stats(&line.router);
    let port =
        |stats: &Stats, name: &str| stats.ports.iter().find(|port| port.name == name).cloned().unwrap();
    // 50 echo requests, and 5 that have no route.
    let received = port(&after, "v1").rx_packets - port(&before, "v1").rx_packets;
    let sent = port(&after, "v2").tx_packets - port(&before, "v2").tx_packets;
    assert!((55..60).contains(&received), "{received}");
    assert!((50..55).contains(&sent), "{sent}");
    assert_eq!(after.drops.get("no-route").copied().unwrap_or(0), 5, "{:?}", after.drops);
    let bytes = port(&after, "v2").tx_bytes - port(&before, "v2").tx_bytes;
    assert!((50 * 98..55 * 98).contains(&bytes), "{bytes}");
    // Each packet is in exactly one of the sums, for each worker and for all.
    for totals in after.workers.iter().map(|worker| &worker.totals).chain([&after.totals]) {
        let settled = totals.sent + totals.delivered + totals.dropped;
        assert_eq!(totals.received + totals.generated, settled + totals.held);
    }
    let by_workers = after.workers.iter().map(|worker| worker.totals.received).sum::<u64>();
    assert_eq!(by_workers + after.fast_path.hits, after.totals.received);
    let told = metrics(&line.router);
    assert!(told.starts_with("HTTP/1.1 200 OK\r\n"), "{told}");
    for text in [
        "underpass_packets_dropped_total{reason=\"no-route\"} 5\n",
        "underpass_port_attached{device=\"v1\",driver=\"packet\"} 1\n",
        "underpass_worker_packets_total{worker=\"1\"}",
        &format!("underpass_port_receive_packets_total{{device=\"v1\"}} {}", port(&after, "v1").rx_packets),
    ] {
        assert!(told.contains(text), "{text} is not in\n{told}");
    }
    // Every metric is in the documentation.
    let documented =
        fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md")).unwrap();
    for name in
        told.lines().filter_map(|line| line.strip_prefix("# TYPE ")).filter_map(|line| line.split(' ').next())
    {
        let base =
            ["_packets", "_bytes", "_errors"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
        assert!(documented.contains(base), "{name} is not documented");
    }
    let table = line.router.run(&format!("{} stats", program().display())).unwrap();
    assert!(table.contains("no-route") && table.contains("underpass0"), "{table}");
    // Someone who asks for something else, and one who says nothing.
    let mut silent = line.router.enter(|| TcpStream::connect("127.0.0.1:9117").unwrap()).unwrap();
    assert!(metrics(&line.router).starts_with("HTTP/1.1 200 OK\r\n"));
    let _ = silent.write_all(b"GET");
    router.stop().unwrap();
}

#[test]
fn the_socket_is_roots_alone() {
    let Some(_turn) = net::turn("the_socket_is_roots_alone") else { return };
    let line = Line::new();
    for (arguments, expected) in [(&[][..], "600"), (&["--socket-group", "daemon"], "660")] {
        let router = line.start(arguments);
        let modes = line
            .router
            .run("for s in /run/underpass/netns-$(stat -Lc %i /proc/self/ns/net).sock*; do stat -c %a $s; done")
            .unwrap();
        // That of the requests, of `stats` and of `trace`.
        assert_eq!(modes.split_whitespace().collect::<Vec<_>>(), [expected; 3]);
        router.stop().unwrap();
    }
    let left = Command::new("sh").args(["-c", "ls /run/underpass"]).output().unwrap();
    let inode = line.router.run("stat -Lc %i /proc/self/ns/net").unwrap();
    assert!(!String::from_utf8_lossy(&left.stdout).contains(inode.trim()), "files are left");
}

/// Clock ticks of processor time that a process has used.
fn ticks(pid: i32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let behind = stat.rsplit(')').next().unwrap();
    let fields: Vec<u64> =
        behind.split_whitespace().skip(11).take(2).map(|field| field.parse().unwrap()).collect();
    fields.iter().sum()
}

#[test]
fn an_idle_router_uses_under_one_percent() {
    let Some(_turn) = net::turn("an_idle_router_uses_under_one_percent") else { return };
    let line = Line::new();
    for driver in ["packet", "xdp"] {
        let router = line.start(&["--driver", driver]);
        line.works();
        // What a kernel says by itself after a start has been said.
        thread::sleep(Duration::from_secs(2));
        let (began, before) = (Instant::now(), ticks(router.pid().as_raw()));
        thread::sleep(Duration::from_secs(4));
        let used = Duration::from_millis(10 * (ticks(router.pid().as_raw()) - before));
        let share = used.as_secs_f64() / began.elapsed().as_secs_f64();
        assert!(share < 0.01, "{driver}: {:.1} % of a processor", share * 100.0);
        router.stop().unwrap();
    }
}

/// Lets a process open so many descriptors more than it has.
fn leave_descriptors(process: i32, more: usize) {
    let taken: Vec<usize> = fs::read_dir(format!("/proc/{process}/fd"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_str().unwrap().parse().unwrap())
        .collect();
    let mut free = (0..).filter(|number| !taken.contains(number));
    let most = free.nth(more).unwrap();
    let done =
        Command::new("prlimit").args([format!("--nofile={most}:"), format!("--pid={process}")]).status();
    assert!(done.unwrap().success());
}

/// A device that a worker has no descriptors for is left to the kernel, which forwards there; the router says so, and attaches it
/// when it has some.
#[test]
fn a_device_that_no_worker_can_open_is_the_kernels() {
    let Some(_turn) = net::turn("a_device_that_no_worker_can_open_is_the_kernels") else { return };
    let (line, third) = (Line::new(), net::namespace("h3"));
    line.router.run("sysctl -qw net.ipv4.ip_forward=1").unwrap();
    let router = line.start(&["--driver", "packet", "--fast-path", "off", "--workers", "1"]);
    line.works();
    let works = || {
        let tell = |why: String| panic!("{why}\n{}", router.log().unwrap());
        settle(&line.hosts[0], "10.0.3.2", Duration::from_secs(5)).unwrap_or_else(tell);
        ping(&line.hosts[0], "10.0.3.2", 5).unwrap_or_else(tell);
    };
    // Until there are enough for the programs at the device, but not for the sockets.
    for more in 3.. {
        leave_descriptors(router.pid().as_raw(), more);
        testbed::join(&third, "e0", &line.router, "v3").unwrap();
        line.router.run("ip link set v3 up; ip addr add 10.0.3.1/24 dev v3").unwrap();
        third
            .run("ip link set e0 up; ip addr add 10.0.3.2/24 dev e0; ip route add default via 10.0.3.1")
            .unwrap();
        works();
        let log = router.log().unwrap();
        if log.contains("v3: left to the kernel: AF_PACKET socket: Too many open files") {
            break;
        }
        assert!(log.contains("v3: left to the kernel: AF_PACKET: Too many open files") && more < 16, "{log}");
        leave_descriptors(router.pid().as_raw(), 100);
        line.router.run("ip link del v3").unwrap();
    }
    leave_descriptors(router.pid().as_raw(), 100);
    let told = stats(&line.router);
    let warned =
        |stats: &Stats| stats.warnings.iter().any(|warning| warning.contains("v3 is left to the kernel"));
    let attached = |stats: &Stats| stats.ports.iter().any(|port| port.name == "v3");
    assert!(warned(&told) && !attached(&told), "{told:?}");
    let doctor = line.router.outcome(&format!("{} doctor", program().display())).unwrap().output;
    assert!(doctor.contains("v3 is left to the kernel"), "{doctor}");
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let told = stats(&line.router);
        if attached(&told) && !warned(&told) {
            break;
        }
        assert!(Instant::now() < deadline, "{told:?}\n{}", router.log().unwrap());
        thread::sleep(Duration::from_millis(200));
    }
    works();
    router.stop().unwrap();
}

/// What a device has dropped goes with it: the next one, which gets the number of its port, begins with nothing.
#[test]
fn a_new_device_has_dropped_nothing() {
    let Some(_turn) = net::turn("a_new_device_has_dropped_nothing") else { return };
    let (line, host) = (Line::new(), net::namespace("h3"));
    let router = line.start(&["--fast-path", "off"]);
    let add = |name: &str| {
        testbed::join(&host, "e0", &line.router, name).unwrap();
        line.router.run(&format!("ip link set {name} up; ip addr add 10.0.3.1/24 dev {name}")).unwrap();
        host.run("ip link set e0 up; ip addr add 10.0.3.2/24 dev e0; ip route add default via 10.0.3.1")
            .unwrap();
    };
    let drops = |name: &str| {
        let port = stats(&line.router).ports.into_iter().find(|port| port.name == name);
        port.map(|port| port.path_drops.into_values().sum::<u64>())
    };
    let wait = |name: &str| {
        let deadline = Instant::now() + Duration::from_secs(5);
        while drops(name).is_none() {
            assert!(Instant::now() < deadline, "{}", router.log().unwrap());
            thread::sleep(Duration::from_millis(50));
        }
    };
    add("x1");
    wait("x1");
    settle(&host, "10.0.2.2", Duration::from_secs(5)).unwrap();
    host.outcome("ping -n -c 7 -i 0.02 -W 1 10.99.0.1").unwrap();
    assert!(drops("x1").unwrap() >= 7);
    line.router.run("ip link del x1").unwrap();
    add("y1");
    wait("y1");
    assert_eq!(drops("y1"), Some(0));
    router.stop().unwrap();
}

/// What is on its way to a device when that goes down is given up and counted once, whatever comes afterwards.
#[test]
fn a_device_that_goes_down_in_a_flood() {
    let Some(_turn) = net::turn("a_device_that_goes_down_in_a_flood") else { return };
    let line = Line::new();
    for driver in ["packet", "xdp"] {
        let router = line.start(&["--fast-path", "off", "--driver", driver, "--workers", "1"]);
        line.works();
        let errors = || {
            let port = stats(&line.router).ports.into_iter().find(|port| port.name == "v2").unwrap();
            port.drops.get("send-error").copied().unwrap_or_default()
        };
        let stream = net::Stream::start(&line.hosts[0], &line.hosts[1], [10, 0, 2, 2].into(), 4000, 5000);
        thread::sleep(Duration::from_millis(300));
        line.router.run("ip link set v2 down").unwrap();
        thread::sleep(Duration::from_millis(500));
        let before = errors();
        thread::sleep(Duration::from_millis(500));
        let after = errors();
        let delivery = stream.end();
        assert_eq!(before, after, "{driver}: {delivery:?}");
        assert!(after <= delivery.lost(), "{driver}: {after}, {delivery:?}");
        line.router.run("ip link set v2 up; ip addr add fd00:2::1/64 dev v2 nodad").unwrap();
        line.works();
        // What comes in there wakes the worker, as before.
        thread::sleep(Duration::from_millis(500));
        let outcome = line.hosts[1].outcome("ping -n -c 4 -i 0.3 -W 1 10.0.1.2").unwrap();
        let times = outcome.output.split("time=").skip(1).filter_map(|rest| rest.split(' ').next());
        let times: Vec<f64> = times.map(|time| time.parse().unwrap()).collect();
        assert!(times.len() == 4 && times.iter().all(|time| *time < 100.0), "{driver}: {}", outcome.output);
        router.stop().unwrap();
    }
}
