//! Programs beside a kernel: what the kernel owns reaches it and comes back as if nobody stood between.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

mod beside;
mod daemon;

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use beside::{Live, Namespace, possible};
use underpass_control::{Client, Owner, Router};
use underpass_daemon::serve::Host;
use underpass_engine::tables::Writer;
use underpass_netlink::Message;

/// A router that owns nothing, and how many messages it was asked about.
struct Bare(Router, Arc<AtomicU64>);

impl Bare {
    fn new(asked: &Arc<AtomicU64>) -> impl FnOnce() -> Self + Send + 'static {
        let asked = Arc::clone(asked);
        move || Self(Router::new(Writer::new(0).0), asked)
    }
}

impl Host for Bare {
    fn router(&mut self) -> &mut Router {
        &mut self.0
    }

    fn owner(&mut self, _: &Client, _: &Message<'_>) -> Owner {
        self.1.fetch_add(1, Relaxed);
        Owner::Kernel
    }
}

/// A text without the values of timers, which run on between two commands.
fn still(text: &str) -> String {
    let mut parts = text.split("_timer");
    let mut kept = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(part.len());
        kept.push_str("_timer");
        kept.push_str(&part[end..]);
    }
    kept
}

/// Status and output of a line through the router and of the kernel, while the kernel says the same before and after:
/// IPv6 addresses and the bridge take their time to settle.
fn at_rest(namespace: &Namespace, line: &str) -> ((i32, String), (i32, String)) {
    let kernel = || {
        let outcome = namespace.plain(line);
        (outcome.status, still(&outcome.output))
    };
    for _ in 0..50 {
        let before = kernel();
        let through = namespace.exec(line);
        if kernel() == before {
            return ((through.status, still(&through.output)), before);
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    panic!("{line}: the kernel says something else each time")
}

/// What `ip` says of the kernel's own, with the library and without.
#[test]
fn the_kernels_own_is_shown_and_changed() {
    if !possible() {
        return;
    }
    let namespace = Namespace::new("own");
    let refused = namespace.exec("ip link show");
    assert_eq!(refused.status, 1);
    assert!(refused.output.contains("no router in this network namespace"), "{}", refused.output);
    let asked = Arc::new(AtomicU64::new(0));
    let _live = Live::start(&namespace, Bare::new(&asked));
    for line in [
        "ip link add v0 type veth peer name v1",
        "ip link add br0 type bridge",
        "ip link set v1 master br0",
        "ip link set v0 up",
        "ip link set v1 up",
        "ip link set br0 up",
        "ip addr add 10.0.0.1/24 dev v0",
        "ip -6 addr add fd00::1/64 dev v0 nodad",
        "ip route add 10.9.0.0/16 via 10.0.0.2",
        "ip neigh add 10.0.0.2 lladdr 02:00:00:00:00:02 dev v0",
        "ip nexthop add id 7 via 10.0.0.3 dev v0",
        "ip route add 10.8.0.0/16 nhid 7",
        "ip rule add from 10.0.0.0/8 table 100 pref 500",
        "tc qdisc add dev v0 root tbf rate 1mbit burst 10k latency 50ms",
    ] {
        let before = asked.load(Relaxed);
        let outcome = namespace.exec(line);
        assert!(asked.load(Relaxed) > before, "{line} goes round the router");
        assert_eq!((outcome.status, outcome.output.as_str()), (0, ""), "{line}");
    }
    for line in [
        "ip link show",
        "ip -d link show",
        "ip -j -d link show",
        "ip link show v0",
        "ip link show type bridge",
        "ip link show master br0",
        "ip -4 addr show",
        "ip -j addr show",
        "ip addr show dev v0",
        "ip route show",
        "ip route show table all",
        "ip -6 route show table all",
        "ip route show table 4711",
        "ip route get 10.9.1.1",
        "ip route get 10.99.1.1",
        "ip rule show",
        "ip neigh show",
        "ip neigh get 10.0.0.2 dev v0",
        "ip nexthop show",
        "ip nexthop get id 7",
        "ip nexthop get id 8",
        "ip netconf",
        "ip route add 10.9.0.0/16 via 10.0.0.2",
        "ip route del 10.99.0.0/16",
        "ip link set nothere up",
        "ip link add v0 type veth peer name v9",
        "bridge link show",
        "bridge fdb show br br0",
        "tc qdisc show",
        "tc -j qdisc show dev v0",
        "ip tunnel show",
        "ip maddr show dev v0",
        "ip sr tunsrc show",
    ] {
        let (through, kernel) = at_rest(&namespace, line);
        assert_eq!(through, kernel, "{line}");
        assert!(!line.contains("link show") || !through.1.is_empty(), "{line}");
    }
    // From outside, by the namespace's name: the router of the one that is named, and where it has none the
    // kernel.
    let other = Namespace::new("other");
    let name = &namespace.0;
    let from_other = namespace.succeeds(&format!("ip -n {} -o link show", other.0));
    assert_eq!(from_other.lines().count(), 1, "{from_other}");
    let from_here = Arc::new(AtomicU64::new(0));
    let _second = Live::start(&other, Bare::new(&from_here));
    let before = asked.load(Relaxed);
    let back = other.succeeds(&format!("ip -n {name} -o link show"));
    assert_eq!(back, namespace.kernel("ip -o link show"));
    let back = other.succeeds(&format!("ip netns exec {name} ip -o link show"));
    assert_eq!(back, namespace.kernel("ip -o link show"));
    assert!(asked.load(Relaxed) > before, "ip netns exec and ip -n lead to the router that is there");
}
