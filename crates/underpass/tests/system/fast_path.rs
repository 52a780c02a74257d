//! Packets that the kernel carries by itself: they are counted as all others are, wherever it is asked, and nothing stays of
//! the program when the router is killed.

use std::{
    io::{BufRead, BufReader, Read},
    os::fd::{AsRawFd, OwnedFd},
    process::Stdio,
    time::{Duration, Instant},
};

use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, socket};
use nix::unistd::Pid;
use underpass_daemon::{live::Stats, testbed::Router};

use super::net::{self, Line, program, settle, skip};

/// A line with a router whose kernel carries packets. `None`, said aloud: it cannot here.
fn line(test: &str, arguments: &[&str]) -> Option<(Line, Router)> {
    if let Err(why) = underpass_daemon::live::try_fast_path() {
        skip(test, &why);
        return None;
    }
    let line = Line::new();
    let router = line.start(&[&["--fast-path", "tcx"], arguments].concat());
    for address in ["10.0.2.2", "fd00:2::2"] {
        settle(&line.hosts[0], address, Duration::from_secs(10)).unwrap();
    }
    Some((line, router))
}

fn stats(line: &Line) -> Stats {
    let told = line.router.run(&format!("{} stats --json", program().display())).unwrap();
    serde_json::from_str(&told).unwrap()
}

/// `count` pings that are answered.
fn ping(line: &Line, address: &str, count: u32) {
    line.hosts[0].run(&format!("ping -n -q -c {count} -i 0.002 -W 5 {address}")).unwrap();
}

/// A socket that is given all packets of the router's devices.
fn listener(line: &Line) -> OwnedFd {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let open = || socket(AddressFamily::Packet, SockType::Raw, flags, SockProtocol::EthAll);
    line.router.enter(open).unwrap().unwrap()
}

/// How many echo requests it has been given.
fn echo_requests(listener: &OwnedFd) -> usize {
    let (mut frame, mut count) = ([0; 2048], 0);
    while let Ok(len) = recv(listener.as_raw_fd(), &mut frame, MsgFlags::empty()) {
        count += usize::from(len > 34 && frame[12..14] == [8, 0] && (frame[23], frame[34]) == (1, 8));
    }
    count
}

#[test]
fn the_kernel_carries_and_counts() {
    let Some(_turn) = net::turn("the_kernel_carries_and_counts") else { return };
    let Some((line, router)) = line("the_kernel_carries_and_counts", &[]) else { return };
    let before = stats(&line);
    ping(&line, "10.0.2.2", 200);
    ping(&line, "fd00:2::2", 200);
    let after = stats(&line);
    // There and back.
    let hits = after.fast_path.hits - before.fast_path.hits;
    assert!((800..=800 + 20).contains(&hits), "{after:#?}");
    let rx = |stats: &Stats, name: &str| {
        let port = stats.ports.iter().find(|port| port.name == name).unwrap();
        // The other ends of its devices are in other namespaces.
        assert_eq!(port.fast_path.as_deref(), Some("tcx-peer"));
        (port.rx_packets, port.tx_packets)
    };
    for name in ["v1", "v2"] {
        let (before, after) = (rx(&before, name), rx(&after, name));
        assert!(after.0 - before.0 >= 400 && after.1 - before.1 >= 400, "{name}: {before:?} {after:?}");
    }
    let totals = &after.totals;
    assert_eq!(
        totals.received + totals.generated,
        totals.sent + totals.delivered + totals.dropped + totals.held,
        "{after:#?}"
    );
    // A program that shows a link's counters is told the same.
    let told = router.run("ip -j -s link show v1").unwrap();
    let told: serde_json::Value = serde_json::from_str(&told).unwrap();
    assert!(told[0]["stats64"]["rx"]["packets"].as_u64().unwrap() >= 400, "{told}");
    router.stop().unwrap();
}

/// What is given to the other end of a pair at once passes a socket by, so it leaves by the device while there is one.
#[test]
fn sockets_see_what_the_kernel_carries() {
    let Some(_turn) = net::turn("sockets_see_what_the_kernel_carries") else { return };
    let Some((line, router)) = line("sockets_see_what_the_kernel_carries", &[]) else { return };
    let wait_for = |kind: &str| {
        let end = Instant::now() + Duration::from_secs(10);
        let leaving = || {
            let ports = stats(&line).ports;
            ports.into_iter().find(|port| port.name == "v2").and_then(|port| port.fast_path)
        };
        while leaving().as_deref() != Some(kind) {
            assert!(Instant::now() < end, "{:?}", leaving());
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    wait_for("tcx-peer");
    let listener = listener(&line);
    wait_for("tcx");
    echo_requests(&listener);
    let before = stats(&line).fast_path.hits;
    ping(&line, "10.0.2.2", 50);
    let hits = stats(&line).fast_path.hits - before;
    // Each as it comes in, and as it leaves.
    assert!(hits >= 100 && echo_requests(&listener) == 100, "{hits}");
    drop(listener);
    wait_for("tcx-peer");
    router.stop().unwrap();
}

/// No socket sees what programs in drivers carry, and a device is sent to from there as soon as its other end takes that.
#[test]
fn the_drivers_carry() {
    let Some(_turn) = net::turn("the_drivers_carry") else { return };
    if let Err(why) = underpass_daemon::live::try_fast_path() {
        return skip("the_drivers_carry", &why);
    }
    let line = Line::new();
    let router = line.start(&["--fast-path", "xdp"]);
    for address in ["10.0.2.2", "fd00:2::2"] {
        settle(&line.hosts[0], address, Duration::from_secs(10)).unwrap();
    }
    for port in stats(&line).ports.iter().filter(|port| ["v1", "v2"].contains(&port.name.as_str())) {
        assert_eq!(port.fast_path.as_deref(), Some("xdp"), "{port:#?}");
    }
    let listener = listener(&line);
    let seen = || echo_requests(&listener);
    let carried = || {
        let before = stats(&line).fast_path.hits;
        seen();
        ping(&line, "10.0.2.2", 50);
        ping(&line, "fd00:2::2", 50);
        let hits = stats(&line).fast_path.hits - before;
        assert!((200..=220).contains(&hits), "{hits}");
        seen()
    };
    // Nobody takes what drivers send, and the program at tcx carries it.
    assert!(carried() >= 50);
    for host in &line.hosts {
        host.run("ethtool -K e0 gro on").unwrap();
    }
    let end = Instant::now() + Duration::from_secs(10);
    while carried() > 0 {
        assert!(Instant::now() < end, "{:#?}", stats(&line));
    }
    router.stop().unwrap();
}

#[test]
fn what_a_route_drops_is_counted_by_its_reason() {
    let Some(_turn) = net::turn("what_a_route_drops_is_counted_by_its_reason") else { return };
    let Some((line, router)) = line("what_a_route_drops_is_counted_by_its_reason", &[]) else { return };
    router
        .run("ip route add blackhole 198.51.100.0/24; ip -6 route add blackhole 2001:db8:bad::/48")
        .unwrap();
    let before = stats(&line);
    for address in ["198.51.100.1", "2001:db8:bad::1"] {
        let outcome = line.hosts[0].outcome(&format!("ping -n -q -c 50 -i 0.002 -W 1 {address}")).unwrap();
        assert!(outcome.output.contains(" 0 received"), "{}", outcome.output);
    }
    let after = stats(&line);
    assert_eq!(after.drops.get("blackhole"), Some(&100), "{after:#?}");
    assert!(after.fast_path.hits - before.fast_path.hits >= 100, "{after:#?}");
    router.stop().unwrap();
}

#[test]
fn filters_and_tracing_have_workers_carry() {
    let Some(_turn) = net::turn("filters_and_tracing_have_workers_carry") else { return };
    let Some((line, router)) = line("filters_and_tracing_have_workers_carry", &["--workers", "1"]) else {
        return;
    };
    let filter = "protocol ip flower ip_proto icmp action ok";
    router.run(&format!("tc qdisc add dev v1 clsact; tc filter add dev v1 ingress {filter}")).unwrap();
    let before = stats(&line);
    ping(&line, "10.0.2.2", 100);
    let after = stats(&line);
    // What comes in by v1 is classified by a worker; what comes back is not.
    let hooked = |stats: &Stats| stats.fast_path.misses.get("hooked").copied().unwrap_or_default();
    assert!(hooked(&after) - hooked(&before) >= 100, "{after:#?}");
    let counted = router.run("tc -s filter show dev v1 ingress").unwrap();
    let sent = counted.split("Sent ").nth(1).and_then(|rest| rest.split(" bytes ").nth(1));
    let sent = sent.and_then(|rest| rest.split(' ').next()?.parse::<u64>().ok());
    assert!(sent.is_some_and(|sent| sent >= 100), "{counted}");
    router.run("tc qdisc del dev v1 clsact").unwrap();
    // And the kernel again, as soon as the filter is gone.
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        let before = stats(&line).fast_path.hits;
        ping(&line, "10.0.2.2", 10);
        if stats(&line).fast_path.hits - before >= 20 {
            break;
        }
        assert!(Instant::now() < end, "{:#?}", stats(&line));
    }
    the_kernel_polices(&line, &router);
    only_what_is_traced_leaves_the_kernel(&line);
    router.stop().unwrap();
}

/// A bucket that lets 59 echo requests of 84 bytes pass, and one more in about 80 ms.
fn the_kernel_polices(line: &Line, router: &Router) {
    let filter =
        "protocol ip u32 match ip dst 10.0.2.2/32 action police rate 8kbit burst 5000 conform-exceed drop";
    router.run(&format!("tc qdisc add dev v1 clsact; tc filter add dev v1 ingress {filter}")).unwrap();
    let before = stats(line);
    let outcome = line.hosts[0].outcome("ping -n -q -c 100 -i 0.002 -W 1 10.0.2.2").unwrap().output;
    let passed =
        outcome.split(" transmitted, ").nth(1).and_then(|rest| rest.split(' ').next()?.parse::<u64>().ok());
    let passed = passed.unwrap_or_else(|| panic!("{outcome}"));
    let after = stats(line);
    let dropped = |stats: &Stats| stats.drops.get("police").copied().unwrap_or_default();
    let misses = |stats: &Stats| stats.fast_path.misses.get("hooked").copied().unwrap_or_default();
    assert!((59..100).contains(&passed), "{outcome}");
    assert_eq!(dropped(&after) - dropped(&before), 100 - passed, "{after:#?}");
    assert_eq!(misses(&after), misses(&before), "{after:#?}");
    let counted = router.run("tc -s filter show dev v1 ingress").unwrap();
    let refused = 100 - passed;
    for wanted in ["Sent 8400 bytes 100 pkt", &format!("(dropped {refused}, overlimits {refused} ")] {
        assert!(counted.contains(wanted), "{wanted}: {counted}");
    }
    router.run("tc qdisc del dev v1 clsact").unwrap();
}

/// Of IPv6 the echo requests are traced that come in by v1; their replies, and all of IPv4, stay in the kernel.
fn only_what_is_traced_leaves_the_kernel(line: &Line) {
    let mut command = line.router.command(program());
    let command = command.args(["trace", "--json", "--port", "v1", "icmp6[icmp6type] == icmp6-echo"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap());
    let mut first = String::new();
    said.read_line(&mut first).unwrap();
    assert!(first.starts_with("following "), "{first}");
    let traced = |stats: &Stats| stats.fast_path.misses.get("traced").copied().unwrap_or_default();
    let before = stats(line);
    ping(line, "10.0.2.2", 100);
    let between = stats(line);
    assert!(between.fast_path.hits - before.fast_path.hits >= 200, "{between:#?}");
    assert_eq!(traced(&between), traced(&before), "{between:#?}");
    ping(line, "fd00:2::2", 50);
    let after = stats(line);
    assert_eq!(traced(&after) - traced(&between), 50, "{after:#?}");
    assert!(after.fast_path.hits - between.fast_path.hits >= 50, "{after:#?}");
    kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).unwrap();
    let mut printed = String::new();
    child.stdout.take().unwrap().read_to_string(&mut printed).unwrap();
    let mut rest = String::new();
    said.read_to_string(&mut rest).unwrap();
    assert!(child.wait().unwrap().success(), "{rest}");
    assert_eq!((printed.lines().count(), rest.as_str()), (50, "50 packets followed, 0 more matched\n"));
    // And all of them again.
    let before = stats(line);
    ping(line, "fd00:2::2", 50);
    let after = stats(line);
    assert!(after.fast_path.hits - before.fast_path.hits >= 100, "{after:#?}");
}

#[test]
fn nothing_stays_of_a_router_that_was_killed() {
    let Some(_turn) = net::turn("nothing_stays_of_a_router_that_was_killed") else { return };
    let Some((line, router)) = line("nothing_stays_of_a_router_that_was_killed", &[]) else { return };
    // The kernel shows the devices that stand for others; the router does not.
    assert!(line.router.run("ip -br link").unwrap().contains("upm"));
    assert!(!router.run("ip -br link; tc qdisc").unwrap().contains("upm"));
    router.kill().unwrap();
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        let links = line.router.run("ip -br link").unwrap();
        if !links.lines().any(|link| link.starts_with("upm") || link.starts_with("underpass")) {
            break;
        }
        assert!(Instant::now() < end, "{links}");
        std::thread::sleep(Duration::from_millis(20));
    }
    // The kernel forwards as without any program.
    line.router.run("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1").unwrap();
    ping(&line, "10.0.2.2", 20);
    ping(&line, "fd00:2::2", 20);
}

#[test]
fn without_it_all_is_as_before() {
    let Some(_turn) = net::turn("without_it_all_is_as_before") else { return };
    let line = Line::new();
    let router = line.start(&["--fast-path", "off"]);
    settle(&line.hosts[0], "10.0.2.2", Duration::from_secs(10)).unwrap();
    ping(&line, "10.0.2.2", 50);
    let stats = stats(&line);
    assert_eq!(stats.fast_path.off.as_deref(), Some("--fast-path off"));
    assert_eq!((stats.fast_path.hits, stats.ports.iter().any(|port| port.fast_path.is_some())), (0, false));
    assert!(!line.router.run("ip -br link").unwrap().contains("upm"));
    router.stop().unwrap();
}
