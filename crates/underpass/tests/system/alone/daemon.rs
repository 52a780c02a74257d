//! What the daemon gives back, and what it costs when there is nothing to do.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use underpass_daemon::live::Stats;

use crate::daemon::stats;
use crate::net::{Line, program, turn_alone};

impl Line {
    /// All that the router may change in its namespace.
    fn state(&self) -> String {
        self.router
            .run(
                "ip -d link | grep -v 'qdisc\\|promiscuity' ; ip -d link | grep -o 'promiscuity.*allmulti [0-9]*'
                 ip -4 route show table all | sort; ip -6 route show table all | sort; ip rule; ip -6 rule
                 ip addr; tc qdisc; ip nexthop
                 for f in /proc/sys/net/ipv4/conf/*/forwarding /proc/sys/net/ipv6/conf/*/forwarding \
                          /proc/sys/net/ipv4/conf/*/rp_filter; do echo $f $(cat $f); done",
            )
            .unwrap()
    }
}

#[test]
fn each_driver_forwards_and_gives_everything_back() {
    let Some(_turn) = turn_alone("each_driver_forwards_and_gives_everything_back") else { return };
    let line = Line::new();
    line.router.run("ip route add 10.77.0.0/16 via 10.0.2.2; ip rule add from 10.7.0.0/16 table 77").unwrap();
    let before = line.state();
    let of_v1 = |stats: &Stats| stats.ports.iter().find(|port| port.name == "v1").unwrap().driver.clone();
    for (arguments, driver) in [
        (&["--driver", "packet"][..], "packet"),
        (&["--driver", "packet", "--workers", "1"], "packet"),
        (&["--driver", "xdp", "--workers", "1"], "xdp"),
        (&["--attach", "v1", "--attach", "v2"], ""),
    ] {
        let router = line.start(arguments);
        line.works();
        let told = of_v1(&stats(&line.router));
        assert!(told.starts_with(driver), "{arguments:?}: {told}");
        router
            .run("ip -6 route add fd00:9::/64 encap seg6 mode encap segs fc00:2::1 via fd00:2::2 dev v2")
            .unwrap();
        assert!(
            line.router.run("ip -6 route show proto 117").unwrap().contains("fd00:9::/64 dev underpass0")
        );
        router.stop().unwrap();
        let after = line.state();
        assert_eq!(before, after, "{arguments:?}");
    }
}

#[test]
fn only_one_and_after_a_death_another() {
    let Some(_turn) = turn_alone("only_one_and_after_a_death_another") else { return };
    let line = Line::new();
    let before = line.state();
    let router = line.start(&[]);
    let outcome = line.router.outcome(&format!("{} run", program().display())).unwrap();
    assert_eq!(outcome.status, 1);
    let pid = router.pid();
    let text = format!("a router runs in this network namespace already (process {pid}");
    assert!(outcome.output.contains(&text), "{}", outcome.output);
    line.works();
    router
        .run("ip -6 route add fd00:9::/64 encap seg6 mode encap segs fc00:2::1 via fd00:2::2 dev v2")
        .unwrap();
    router.kill().unwrap();
    let router = line.start(&[]);
    line.works();
    assert!(!router.run("ip -6 route").unwrap().contains("fd00:9::"));
    router.stop().unwrap();
    assert_eq!(before, line.state());
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
    let Some(_turn) = turn_alone("an_idle_router_uses_under_one_percent") else { return };
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
