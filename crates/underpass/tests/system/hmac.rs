//! HMACs of SRHs, made by this kernel and checked by Underpass, as the kernel's variables say.
//!
//! ```text
//! h1 eth0 ──── west R east ──── eth0 h2
//! ```
//! h1 puts its packets on a segment of R, which is Underpass; h2 takes them at the end of their list.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use super::net::{self, Kind, Node, Turn, ping, settle, turn};
use underpass_daemon::testbed::{Namespace, join};

/// Sets a key where `ip` has no terminal to read the secret from.
const KEY: &str = "echo 'known to both' | setsid -w ip sr hmac set 7 sha256";
const WRONG_KEY: &str = "echo 'known to one' | setsid -w ip sr hmac set 7 sha256";

/// The right to run; `None` besides where the kernel knows no HMACs.
fn hmac_turn(test: &str) -> Option<Turn> {
    if !Path::new("/proc/sys/net/ipv6/conf/lo/seg6_require_hmac").exists() {
        net::skip(test, "this kernel has no HMACs of SRHs");
        return None;
    }
    turn(test)
}

struct Line {
    hosts: [Namespace; 2],
    router: Node,
}

impl Line {
    fn new() -> Self {
        let hosts = ["h1", "h2"].map(net::namespace);
        let mut router = Node::new("r");
        for (n, (host, port)) in (1..).zip(hosts.iter().zip(["west", "east"])) {
            join(host, "eth0", &router.namespace, port).unwrap();
            host.run(&format!(
                "sysctl -qw net.ipv6.conf.all.seg6_enabled=1 net.ipv6.conf.eth0.seg6_enabled=1
                 sysctl -qw net.ipv6.conf.eth0.seg6_require_hmac=-1
                 ip link set eth0 up
                 ip addr add fd10:{n}::2/64 dev eth0 nodad
                 ip -6 route add default via fd10:{n}::1"
            ))
            .unwrap();
        }
        router.start(Kind::Underpass);
        router.run(
            "ip link set west up; ip addr add fd10:1::1/64 dev west nodad
             ip link set east up; ip addr add fd10:2::1/64 dev east nodad
             ip -6 route add fc00:9::e encap seg6local action End count dev east",
        );
        Self { hosts, router }
    }

    /// h1 puts what it sends on the segment, with `more` behind the list.
    fn put_on(&self, more: &str) {
        let route = "ip -6 route replace fd10:2::2 encap seg6 mode inline segs fc00:9::e";
        self.hosts[0].run(&format!("{route} {more} via fd10:1::1 dev eth0")).unwrap();
    }

    /// Pings until one in a row is answered, or none.
    fn until(&self, answered: bool, why: &str) {
        let deadline = Instant::now() + Duration::from_secs(10);
        let line = "ping -n -q -c 1 -W 1 fd10:2::2";
        while (self.hosts[0].outcome(line).unwrap().status == 0) != answered {
            assert!(Instant::now() < deadline, "{why}{}", self.router.log());
        }
    }

    fn dropped(&self, reason: &str) {
        let stats = format!("{} stats", net::program().display());
        let stats = self.router.namespace.run(&stats).unwrap();
        assert!(stats.contains(reason), "{stats}{}", self.router.log());
    }
}

/// `sysctl` sets the kernel's variables, whoever calls it; the router does what they say.
#[test]
fn the_kernels_variables_are_followed() {
    let Some(_turn) = hmac_turn("the_kernels_variables_are_followed") else { return };
    let line = Line::new();
    let require = |value: i32| {
        let set = format!("sysctl -qw net.ipv6.conf.west.seg6_require_hmac={value}");
        line.router.namespace.run(&set).unwrap();
    };
    line.put_on("");
    settle(&line.hosts[0], "fd10:2::2", Duration::from_secs(10)).unwrap();
    require(1);
    line.until(false, "an SRH without an HMAC passes");
    line.dropped("hmac-missing");

    // Made by the kernel of h1.
    line.router.run(KEY);
    line.hosts[0].run(KEY).unwrap();
    line.put_on("hmac 7");
    line.until(true, "a right HMAC does not pass");
    ping(&line.hosts[0], "fd10:2::2", 20).unwrap();

    line.hosts[0].run(WRONG_KEY).unwrap();
    line.until(false, "a wrong HMAC passes");
    line.dropped("hmac-invalid");
    require(-1);
    line.until(true, "HMACs are looked at that should not be");
    require(0);
    line.until(false, "a wrong HMAC passes where it is looked at if there is one");
    line.put_on("");
    line.until(true, "an SRH without an HMAC does not pass");
    line.router.stop();
}

/// A router that starts finds what has been set before.
#[test]
fn what_was_set_before_counts() {
    let Some(_turn) = hmac_turn("what_was_set_before_counts") else { return };
    let mut line = Line::new();
    line.put_on("");
    settle(&line.hosts[0], "fd10:2::2", Duration::from_secs(10)).unwrap();
    line.router.router.take().unwrap().stop().unwrap();
    line.router.namespace.run("sysctl -qw net.ipv6.conf.west.seg6_require_hmac=1").unwrap();
    line.router.start(Kind::Underpass);
    line.router.run("ip -6 route add fc00:9::e encap seg6local action End count dev east");
    let outcome = line.hosts[0].outcome("ping -n -q -c 3 -i 0.1 -W 1 fd10:2::2").unwrap();
    assert!(outcome.output.contains(" 0 received"), "{}{}", outcome.output, line.router.log());
    line.dropped("hmac-missing");
    line.router.stop();
}
