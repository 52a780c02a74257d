//! A router that is killed under traffic, and one that takes its place: everything is there again.

use std::{
    fmt::Write,
    fs,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use underpass_daemon::testbed::Router;

use super::net::{self, Line, Stream, ping, settle, turn};

const ROUTES: usize = 1000;
const TUNNELS: usize = 50;

/// Lines that make it all: a VRF with both devices, tunnels with addresses, routes of every kind, qdiscs and filters.
fn configuration() -> String {
    let mut lines = "\
ip link add blue type vrf table 100
ip link set blue up
ip link set v1 master blue
ip link set v2 master blue
ip addr add fd00:1::1/64 dev v1 nodad
ip addr add fd00:2::1/64 dev v2 nodad
ip route add 10.99.0.0/24 via 10.0.2.2 dev v2 vrf blue
ip link add d0 type dummy
ip link set d0 mtu 9000 up
ip addr add 10.7.0.1/24 dev d0
ip sr tunsrc set fd00:1::1
ip sr hmac set 7 sha256 <<< 'a secret'
ip ioam namespace add 7 data 0xdeadbee0
ip fou add port 5555 ipproto 4
sysctl -qw net.mpls.platform_labels=2000 net.mpls.conf.v1.input=1
tc qdisc add dev v1 clsact
tc filter add dev v1 ingress protocol ip prio 1 flower ip_proto tcp dst_port 9 action police rate 1mbit burst 10k
tc qdisc add dev v2 root handle 1: htb default 10
tc class add dev v2 parent 1: classid 1:10 htb rate 1gbit burst 100k
tc qdisc add dev v2 parent 1:10 handle 10: fq_codel
ip nexthop add id 7 encap mpls 77 via 10.0.2.2 dev v2
"
    .to_owned();
    for n in 1..=TUNNELS {
        let kind = ["ipip", "gre", "sit"][n % 3];
        writeln!(lines, "ip link add tun{n} type {kind} local 10.0.1.1 remote 10.1.0.{n} ttl {n}").unwrap();
        writeln!(lines, "ip link set tun{n} mtu 1400 up").unwrap();
        if kind != "sit" {
            writeln!(lines, "ip addr add 10.6.{n}.1/24 dev tun{n}").unwrap();
        }
    }
    // One kind after the other: lines of one tool and family are run by one process.
    for n in (0..4).flat_map(|kind| (kind..ROUTES).step_by(4)) {
        let (high, low) = (n / 250, n % 250);
        let line = match n % 4 {
            0 => format!(
                "ip -6 route add fd77:{n:x}::/32 encap seg6 mode encap segs fd00:2::2,fd00:{n:x}::9 dev v2 table 100"
            ),
            1 => format!(
                "ip -6 route add fd78::{n:x}/128 encap seg6local action End.DT6 table 100 count dev v1"
            ),
            2 => format!("ip -f mpls route add {} via inet 10.0.2.2 dev v2", 100 + n),
            _ => format!("ip route add 10.{}.{low}.0/24 dev tun{}", 100 + high, 1 + n % TUNNELS / 3 * 3),
        };
        writeln!(lines, "{line}").unwrap();
    }
    lines
}

/// What the tools show, without indices, ages and the link-local addresses that a kernel makes up.
fn shown(router: &Router) -> Vec<String> {
    let all = router
        .run(
            "ip -d link show; ip addr show; ip route show table all; ip -6 route show table all; ip rule; ip -6 rule
             ip nexthop; ip -f mpls route; ip fou show; ip sr tunsrc show; ip sr hmac show; ip ioam namespace show
             tc qdisc show; tc class show dev v2; tc filter show dev v1 ingress",
        )
        .unwrap();
    let mut records: Vec<String> = Vec::new();
    for line in all.lines() {
        let mut words: Vec<&str> = line.split(' ').collect();
        // An index, and what is made of one.
        let indexed = words.first().is_some_and(|word| word.ends_with(':') && word.len() < 6);
        if indexed {
            words.remove(0);
        }
        // What was counted.
        if let Some(value) =
            words.iter().position(|word| *word == "direct_packets_stat").and_then(|at| words.get_mut(at + 1))
        {
            *value = "N";
        }
        match records.last_mut().filter(|_| line.starts_with(' ') && !line.contains("fe80::")) {
            Some(record) => record.push_str(&words.join(" ")),
            None => records.push(words.join(" ")),
        }
    }
    // The order of links is that of their indices; the router's own ports are no part of the configuration.
    records.retain(|record| {
        !record.contains("fe80::") && !record.starts_with("up") && !record.starts_with("valid_lft")
    });
    records.sort();
    records
}

#[test]
fn a_router_that_is_killed_is_there_again() {
    let Some(_turn) = turn("a_router_that_is_killed_is_there_again") else { return };
    let line = Line::new();
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().join("state");
    let config = directory.path().join("router.conf");
    fs::write(&config, configuration()).unwrap();
    let [state_text, config_text] = [&state, &config].map(|path| path.to_str().unwrap());
    let router = line.start(&["--state", state_text, "--config", config_text]);
    settle(&line.hosts[0], "10.0.2.2", Duration::from_secs(30)).unwrap();
    settle(&line.hosts[0], "fd00:2::2", Duration::from_secs(30)).unwrap();
    let program = net::program().display();
    let saved = || line.router.run(&format!("{program} save")).unwrap();
    let lines = saved();
    for what in
        ["tun50", "fd78::1/128", "blue", "d0", "fq_codel", "police", "nexthop add id 7", "route add 1098 "]
    {
        assert!(lines.contains(what), "{what} is not in\n{lines}");
    }
    let deadline = Instant::now() + Duration::from_secs(60);
    while fs::read_to_string(state.join("state.conf")).unwrap_or_default() != lines {
        assert!(Instant::now() < deadline, "the state is not kept\n{}", router.log().unwrap());
        thread::sleep(Duration::from_millis(50));
    }
    let before = shown(&router);
    let traffic = Stream::start(&line.hosts[0], &line.hosts[1], "10.0.2.2".parse().unwrap(), 7007, 500);

    router.kill().unwrap();
    let start = Instant::now();
    let router = line.start(&["--state", state_text]);
    let ready = start.elapsed();
    for there in ["10.0.2.2", "fd00:2::2"] {
        settle(&line.hosts[0], there, Duration::from_secs(30)).unwrap();
    }
    eprintln!("ready after {ready:?}, packets pass after {:?}", start.elapsed());
    let log = router.log().unwrap();
    assert!(!log.contains("not restored"), "{log}");
    assert_eq!(saved(), lines);
    let after = shown(&router);
    let only = |these: &[String], others: &[String]| -> Vec<String> {
        these.iter().filter(|record| !others.contains(record)).cloned().collect()
    };
    let (gone, new) = (only(&before, &after), only(&after, &before));
    assert!(gone.is_empty() && new.is_empty(), "gone: {gone:#?}\nnew: {new:#?}");
    ping(&line.hosts[0], "fd00:2::2", 3).unwrap();
    traffic.end();
    // Nothing is between the two any more when the router goes in good order, and it comes back from that, too.
    router.stop().unwrap();
    // Beside those who take all of the processors it is as quick.
    let (busy, processors) = (AtomicBool::new(true), thread::available_parallelism().map_or(1, usize::from));
    let router = thread::scope(|scope| {
        (0..processors).for_each(|_| {
            scope.spawn(|| {
                while busy.load(Relaxed) {
                    std::hint::spin_loop();
                }
            });
        });
        let start = Instant::now();
        let router = line.start(&["--state", state_text]);
        let beside = start.elapsed();
        busy.store(false, Relaxed);
        eprintln!("ready after {beside:?} beside {processors} busy threads");
        assert!(beside < ready * 4 + Duration::from_secs(2), "{beside:?} under load, {ready:?} without");
        router
    });
    settle(&line.hosts[0], "10.0.2.2", Duration::from_secs(30)).unwrap();
    assert_eq!(saved(), lines);
    router.stop().unwrap();
}
