//! `tc` at dummies and VRFs beside a kernel: what is forwarded to a dummy passes the hook and the qdisc of what leaves there,
//! and ends.
//!
//! ```text
//! h1 ──── v1 R v2 ──── h2
//!            d0
//! ```

use std::time::{Duration, Instant};

use underpass_daemon::{live::Stats, testbed::Namespace};

use super::net::{self, Line, Node, program, settle};

struct Lab {
    hosts: [Namespace; 2],
    router: Node,
}

impl Lab {
    fn new() -> Self {
        let Line { hosts, router } = Line::new();
        let mut router = Node { namespace: router, router: None };
        router.start_with(&["--driver", "packet", "--workers", "2", "--attach", "v1", "--attach", "v2"]);
        let lab = Self { hosts, router };
        for address in ["10.0.2.2", "fd00:2::2"] {
            settle(&lab.hosts[0], address, Duration::from_secs(10)).unwrap();
        }
        lab
    }

    fn stats(&self) -> Stats {
        let told = self.router.namespace.run(&format!("{} stats --json", program().display())).unwrap();
        serde_json::from_str(&told).unwrap()
    }

    /// Frames that h2 has got.
    fn received(&self) -> u64 {
        let told = self.hosts[1].run("ip -j -s link show e0").unwrap();
        let told: serde_json::Value = serde_json::from_str(&told).unwrap();
        told[0]["stats64"]["rx"]["packets"].as_u64().unwrap()
    }

    /// `count` pings from h1 that nobody answers.
    fn send(&self, address: &str, count: u32) {
        let line = format!("ping -n -q -c {count} -i 0.005 -s 472 -W 1 {address}");
        let outcome = self.hosts[0].outcome(&line).unwrap();
        assert!(outcome.output.contains(" 0 received"), "{}", outcome.output);
    }

    /// What a line of `tc -s` says, as soon as it says that.
    fn says(&self, line: &str, what: &str) {
        let end = Instant::now() + Duration::from_secs(5);
        loop {
            let said = self.router.run(line);
            if said.contains(what) {
                return;
            }
            assert!(Instant::now() < end, "{what} is not in {said}{}", self.router.log());
        }
    }
}

#[test]
fn tc_at_dummies() {
    let Some(_turn) = net::turn("tc_at_dummies") else { return };
    let lab = Lab::new();
    lab.router.run(
        "ip link add d0 type dummy; ip link set d0 up
         ip route add 10.77.0.0/16 dev d0; ip -6 route add fd00:77::/64 dev d0
         ip route add 10.78.0.0/16 via 10.77.0.1 dev d0
         tc qdisc add dev d0 clsact
         tc filter add dev d0 egress protocol ip pref 1 flower dst_ip 10.77.0.9 action drop
         tc filter add dev d0 egress protocol all pref 2 matchall action ok",
    );
    let egress = "tc -s filter show dev d0 egress pref";
    for address in ["10.77.0.7", "10.78.0.7", "fd00:77::7"] {
        lab.send(address, 10);
    }
    lab.send("10.77.0.9", 5);
    // An Ethernet header, one of IP and of ICMP each.
    lab.says(&format!("{egress} 2"), "Sent 15620 bytes 30 pkt (dropped 0,");
    lab.says(&format!("{egress} 1"), "Sent 2570 bytes 5 pkt (dropped 5,");
    assert_eq!(lab.stats().drops.get("tc-action"), Some(&5));
    let sent: serde_json::Value = serde_json::from_str(&lab.router.run("ip -j -s link show d0")).unwrap();
    assert!(sent[0]["stats64"]["tx"]["packets"].as_u64() >= Some(30), "{sent}");
    assert!(sent[0]["stats64"]["tx"]["bytes"].as_u64() >= Some(15620), "{sent}");

    // What is let through is shaped: 30 packets of 514 bytes come at once, of which 2,600 bytes go and 3,000 wait.
    lab.router.run(
        "tc filter del dev d0 egress
         tc qdisc add dev d0 root tbf rate 8kbit burst 2600 limit 3000",
    );
    let line = "ping -n -q -c 30 -i 0.002 -s 472 -W 1 10.77.0.7";
    lab.hosts[0].outcome(line).unwrap();
    let shown = lab.router.run("tc -s qdisc show dev d0 root");
    let dropped = shown.split("(dropped ").nth(1).and_then(|rest| rest.split(',').next());
    let dropped: u64 = dropped.unwrap().parse().unwrap();
    assert!((15..=22).contains(&dropped), "{shown}");
    lab.router.run("tc qdisc replace dev d0 root pfifo");

    // A copy of what ends there goes on elsewhere.
    lab.router.run("tc filter add dev d0 egress protocol ip matchall action mirred egress mirror dev v2");
    let before = lab.received();
    lab.send("10.77.0.7", 10);
    lab.says("tc -s filter show dev d0 egress", "Sent 5140 bytes 10 pkt (dropped 0,");
    assert!(lab.received() >= before + 10);

    // Elsewhere nobody would speak for it.
    let said = lab.router.run("! ip link set d0 netns 1 2>&1");
    assert!(said.contains("not supported by this router"), "{said}");
    assert!(lab.router.run("ip -br link show d0").contains("UP"));

    // It goes and comes again.
    lab.router.run(
        "ip link del d0; ip link add d0 type dummy; ip link set d0 up; ip route add 10.77.0.0/16 dev d0",
    );
    assert!(!lab.router.run("tc qdisc show dev d0").contains("clsact"));
    lab.router.run("tc qdisc add dev d0 root pfifo");
    lab.send("10.77.0.7", 10);
    lab.says("tc -s qdisc show dev d0", "Sent 5140 bytes 10 pkt (dropped 0,");
    let totals = lab.stats().totals;
    let ends = totals.sent + totals.delivered + totals.dropped + totals.held;
    assert_eq!(totals.received + totals.generated, ends, "{totals:?}");
    lab.router.stop();
}

/// What is redirected into a VRF passes the ingress of its device, and is looked up there; what its links receive does not.
#[test]
fn tc_at_a_vrf() {
    let Some(_turn) = net::turn("tc_at_a_vrf") else { return };
    let lab = Lab::new();
    lab.router.run(
        "ip link add red type vrf table 77; ip link set red up
         ip link set v1 master red; ip link set v2 master red
         tc qdisc add dev red clsact
         tc filter add dev red ingress protocol ip pref 1 flower dst_ip 10.0.2.2 ip_proto udp action drop
         tc filter add dev red ingress protocol ip pref 2 matchall action ok",
    );
    settle(&lab.hosts[0], "10.0.2.2", Duration::from_secs(10)).unwrap();
    let ingress = "tc -s filter show dev red ingress pref 2";
    lab.says(ingress, "Sent 0 bytes 0 pkt (dropped 0,");
    lab.router.run(
        "tc qdisc add dev v1 clsact
         tc filter add dev v1 ingress protocol ip flower dst_ip 10.0.2.2 action mirred ingress redirect dev red",
    );
    // Ping sends more than it was asked for while answers are late.
    let sent = net::pings(&lab.hosts[0], "10.0.2.2", 10).unwrap();
    let counted = format!("Sent {} bytes {sent} pkt (dropped 0,", 84 * sent);
    lab.says(ingress, &counted);
    // What the host sends into the VRF does not come in there.
    lab.router.namespace.run("ping -n -q -c 3 -i 0.1 -I red 10.0.2.2").unwrap();
    lab.says(ingress, &counted);
    for (line, text) in [
        ("tc qdisc add dev red root pfifo", "A root qdisc at a VRF is not supported by this router"),
        (
            "tc filter add dev red egress matchall action drop",
            "Filters of what leaves by a VRF are not supported by this router",
        ),
    ] {
        let said = lab.router.run(&format!("! {line} 2>&1"));
        assert!(said.contains(text), "{said}");
    }
    lab.router.stop();
}
