//! `tc` at the device of a tunnel, beside a kernel: it is the router's, and sees what comes out, what goes in, and what
//! the host sends.

use std::time::{Duration, Instant};

use super::super::mpls::UNDERPASS;
use super::super::net::{ping, settle, turn};
use super::{ENDS, Pair};

/// What `tc -s` says, up to the first figure behind `word`.
fn counted(text: &str, word: &str) -> u64 {
    let behind = text.split(word).nth(1).unwrap_or_else(|| panic!("no {word} in {text}"));
    let digits: String = behind.trim_start().chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap()
}

#[test]
fn tc_at_tunnels() {
    let Some(_turn) = turn("tc_at_tunnels") else { return };
    let mut pair = Pair::new(&[], UNDERPASS);
    for kind in ["gre", "gretap"] {
        pair.connect_control(kind);
        // What comes out.
        let near = &mut pair.routers[0];
        near.run(
            "tc qdisc add dev tun1 clsact
             tc filter add dev tun1 ingress protocol ip prio 1 u32 match ip protocol 1 0xff action drop",
        );
        let shown = near.run("tc qdisc show dev tun1");
        let queued = if kind == "gre" { "qdisc noqueue 0: root" } else { "qdisc pfifo_fast 0: root" };
        let own = ["qdisc clsact ffff: parent ffff:fff1", queued];
        assert!(own.iter().all(|qdisc| shown.contains(qdisc)) && shown.lines().count() == 2, "{shown}");
        let kernels = near.namespace().run("tc qdisc show dev tun1").unwrap();
        assert!(!kernels.contains("clsact"), "{kernels}");
        assert!(ping(&pair.hosts[0], "10.2.0.2", 3).is_err(), "{kind}: what is dropped has come");
        let shown = pair.routers[0].run("tc -s filter show dev tun1 ingress");
        assert!(counted(&shown, "(dropped") >= 3, "{kind}: {shown}");
        // What goes in: that of the host alone is dropped.
        pair.routers[0].run(
            "tc filter del dev tun1 ingress
             tc filter add dev tun1 egress protocol ip prio 1 flower dst_ip 10.9.0.2 action drop",
        );
        pair.check(kind, settle(&pair.hosts[0], "10.2.0.2", Duration::from_secs(5)));
        assert!(
            ping(pair.routers[0].namespace(), "10.9.0.2", 3).is_err(),
            "{kind}: what is dropped has gone"
        );
        let shown = pair.routers[0].run("tc -s filter show dev tun1 egress");
        assert!(counted(&shown, "(dropped") >= 3, "{kind}: {shown}");
        // What waits: 30 packets of 1,428 bytes, all at once, at 1 Mbit/s.
        pair.routers[0].run(
            "tc qdisc del dev tun1 clsact
             tc qdisc add dev tun1 root tbf rate 1mbit burst 5k latency 2s",
        );
        pair.check(kind, settle(pair.routers[0].namespace(), "10.9.0.2", Duration::from_secs(5)));
        let start = Instant::now();
        let line = "ping -n -q -c 30 -l 30 -s 1400 -W 2 10.2.0.2";
        let outcome = pair.hosts[0].outcome(line).unwrap();
        let shown = pair.routers[0].run("tc -s qdisc show dev tun1");
        let why = || format!("{kind}: {}\n{shown}", outcome.output);
        assert!(outcome.output.contains(" 30 received"), "{}", why());
        assert!(start.elapsed() > Duration::from_millis(280), "{}", why());
        assert!(counted(&shown, "Sent") > 30 * 1428 && counted(&shown, "overlimits") > 0, "{}", why());
        let shown = pair.routers[0].run("ip link show dev tun1");
        assert!(shown.contains(" qdisc tbf "), "{shown}");
        // What comes out goes through an ifb.
        pair.routers[0].run(
            "tc qdisc del dev tun1 root
             ip link add ifb1 type ifb
             ip link set ifb1 up
             tc qdisc add dev ifb1 root handle 1: pfifo
             tc qdisc add dev tun1 clsact
             tc filter add dev tun1 ingress protocol ip matchall action mirred egress redirect dev ifb1",
        );
        pair.check(kind, settle(&pair.hosts[0], "10.2.0.2", Duration::from_secs(5)));
        pair.check(kind, ping(&pair.hosts[0], "10.2.0.2", 5));
        pair.check(kind, ping(pair.routers[0].namespace(), "10.9.0.2", 5));
        let shown = pair.routers[0].run("tc -s qdisc show dev ifb1 root");
        assert!(counted(&shown, "bytes") >= 11, "{kind}: {shown}");
        pair.routers[0].run("ip link del ifb1");
        pair.disconnect("");
    }
    pair.stop();
}

impl Pair {
    /// A tunnel between them: of frames with the other end as the neighbour.
    fn connect_control(&mut self, kind: &str) {
        if kind == "gre" {
            self.connect(kind, "", "", ENDS);
        } else {
            self.both(&format!(
                "ip link add tun1 type {kind} {ENDS}
                 ip addr add 10.9.0.ME/24 dev tun1
                 ip link set tun1 up
                 ip route add 10.YOU.0.0/24 via 10.9.0.YOU"
            ));
        }
        self.check(kind, settle(&self.hosts[0], "10.2.0.2", Duration::from_secs(10)));
    }
}
