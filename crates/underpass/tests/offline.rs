//! The router in this process, as replay and bench use it.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use underpass_control::write_sysctl;
use underpass_daemon::offline::{Offline, OfflineError};

#[test]
fn lines_and_their_outcome() {
    let (offline, _tables, readers) =
        Offline::new(&["p0".parse().unwrap(), "p1,mac=02:00:00:00:00:99".parse().unwrap()], 2).unwrap();
    assert_eq!(readers.len(), 2);
    let output = offline.run_line("ip -o link show").unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success());
    assert!(text.contains("02:75:70:00:00:01") && text.contains("02:00:00:00:00:99"), "{text}");
    let refused = offline.run(&["ip", "link", "add", "p0", "type", "dummy"]).unwrap();
    assert_eq!(refused.status.code(), Some(2));
    assert_eq!(String::from_utf8_lossy(&refused.stderr), "RTNETLINK answers: File exists\n");
    assert_eq!(offline.run_line("no-such-tool").unwrap_err().kind(), std::io::ErrorKind::NotFound);
    assert!(offline.run_line(" ").is_err());
    assert_eq!(offline.router().links().count(), 3);
    let socket = offline.socket().to_owned();
    drop(offline);
    assert!(!socket.exists() && !socket.parent().unwrap().exists());
}

#[test]
fn two_routers_are_apart() {
    let [first, second] = ["left", "right"].map(|port| Offline::new(&[port.parse().unwrap()], 0).unwrap().0);
    assert!(first.run_line("ip link show left").unwrap().status.success());
    assert!(!first.run_line("ip link show right").unwrap().status.success());
    assert!(second.run_line("ip link show right").unwrap().status.success());
}

#[test]
fn two_ports_of_one_name_are_refused() {
    let ports = ["p".parse().unwrap(), "p".parse().unwrap()];
    let error = Offline::new(&ports, 1).err().unwrap();
    assert!(matches!(error, OfflineError::Port { .. }));
    assert_eq!(error.to_string(), "port p: a link of that name is there already");
}

/// As Linux answers a dump of every family: IPv4, IPv6, labels.
#[test]
fn every_route_is_listed() {
    let (offline, _tables, _) = Offline::new(&["p0".parse().unwrap()], 0).unwrap();
    write_sysctl(&mut offline.router(), "mpls/platform_labels", b"1000").unwrap();
    for line in [
        "ip link set p0 up",
        "ip addr add 192.0.2.1/24 dev p0",
        "ip -f mpls route add 100 dev lo",
        "ip -f mpls route add 200 as 300 via inet 192.0.2.2 dev p0",
    ] {
        assert!(offline.run_line(line).unwrap().status.success(), "{line}");
    }
    let shown = String::from_utf8(offline.run_line("ip route show table all").unwrap().stdout).unwrap();
    let at = |text: &str| shown.find(text).unwrap_or_else(|| panic!("{text} is not in {shown}"));
    assert!(at("192.0.2.0/24 dev p0") < at("ff00::/8 dev p0"));
    assert!(at("ff00::/8 dev p0") < at("100 dev lo"));
    assert!(shown.trim_end().ends_with("200 as to 300 via inet 192.0.2.2 dev p0"), "{shown}");
}
