//! `srv6l2` devices and `underpass sid`: what Linux has no numbers for, by `ip`, `bridge` and the router's own program.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod daemon;

use std::fs;

use daemon::{Daemon, UNDERPASS};

const PORTS: [&str; 2] = ["p0,mac=02:00:00:00:00:01", "p1,mac=02:00:00:00:00:02"];

/// An L2 service: stations behind SIDs, and SIDs of its own.
const SERVICE: &str = "
    ip link set p0 up
    ip link set p1 up
    ip link add br0 type bridge
    ip link add srl0 type srv6l2
    ip link set srl0 master br0 up
    ip link set p1 master br0
    ip link set br0 up
    bridge fdb append 00:00:00:00:00:00 dev srl0 dst fc00:2::d3
    bridge fdb append 00:00:00:00:00:00 dev srl0 dst fc00:3::d3
    bridge fdb add 02:aa:00:00:00:06 dev srl0 dst fc00:2::d2
    underpass sid add fc00:1::d2 End.DT2U --oif srl0 --count
    underpass sid add fc00:1::d3/128 End.DT2M --oif srl0 --metric 7
    underpass sid add fc00:1::d400/120 End.DT2M --oif srl0 --fe2 1x8
    underpass sid add fc00:1:40::/48 End.DX2V --oif p0 --table 100
    underpass sid add 5f00:0:b:c:9::/80 End --dev p0 --flavors replace-csid,psp --lblen 48 --nflen 32
";

/// Runs each line in a router, of which `underpass` is that program.
fn run(router: &Daemon, lines: &str) {
    for line in lines.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let line = line.replacen("underpass ", &format!("{UNDERPASS} "), 1);
        let outcome = router.exec(&line);
        assert_eq!((outcome.status, outcome.output.as_str()), (0, ""), "{line}");
    }
}

fn said(router: &Daemon, line: &str) -> (i32, String) {
    let line = line.replacen("underpass ", &format!("{UNDERPASS} "), 1);
    let outcome = router.exec(&line);
    (outcome.status, outcome.output)
}

#[test]
fn an_l2_service_is_shown_and_deleted() {
    let router = Daemon::start_with(&["--experimental"], &PORTS);
    run(&router, SERVICE);
    let (_, shown) = said(&router, "ip -d link show srl0");
    assert!(
        shown.contains(" mtu 1446 ") && shown.contains(" master br0 ") && shown.contains("srv6l2"),
        "{shown}"
    );
    let (_, shown) = said(&router, "bridge fdb show dev srl0");
    for entry in [
        "00:00:00:00:00:00 dst fc00:2::d3 self permanent",
        "00:00:00:00:00:00 dst fc00:3::d3 self permanent",
        "02:aa:00:00:00:06 dst fc00:2::d2 self permanent",
    ] {
        assert!(shown.lines().any(|line| line.trim() == entry), "{shown}");
    }
    // `ip` has no word for it, and shows its number.
    let (_, shown) = said(&router, "ip -6 route show fc00:1::d2");
    assert!(shown.contains("fc00:1::d2") && shown.contains("dev srl0"), "{shown}");
    let again = said(&router, "underpass sid add fc00:1::d2 End.DT2U --oif srl0");
    assert_eq!(again, (1, "underpass: File exists (os error 17)\n".to_owned()));
    run(&router, "underpass sid replace fc00:1::d2 End.DT2M --oif srl0\nunderpass sid del fc00:1::d2");
    assert_eq!(said(&router, "ip -6 route show fc00:1::d2"), (0, String::new()));
    assert_eq!(said(&router, "underpass sid del fc00:1::d2").0, 1);
    run(&router, "bridge fdb del 02:aa:00:00:00:06 dev srl0\nip link del srl0");
    assert_eq!(said(&router, "bridge fdb show dev srl0").0, 255);
}

#[test]
fn errors_say_what_to_do() {
    let router = Daemon::start_with(&["--experimental"], &PORTS);
    run(&router, "ip link set p0 up\nip link add srl0 type srv6l2");
    for (line, expected) in [
        (
            "underpass sid add fc00:1::d2 End.DT2U --oif p0",
            "oif of End.DT2U and End.DT2M has to be an srv6l2 device",
        ),
        ("underpass sid add fc00:1::d2 End.DT2U --oif p9", "no device p9: No such device"),
        ("underpass sid add fc00:1::d2 End.DT2U", "End.DT2U needs --oif"),
        ("underpass sid add fc00:1::d2 End.DT2U --oif srl0 --flavors psp", "End.DT2U has no --flavors"),
        ("underpass sid add fc00:1::d2 End.DX2V --oif p0 --nh6 fd00::9", "End.DX2V has no --nh6"),
        ("underpass sid add fc00:1::d2 End --dev p0", "ip -6 route add … encap seg6local action End"),
        ("underpass sid add fc00:1::d2 End --flavors replace-csid", "say --dev"),
        ("underpass sid add fc00:1::d2/129 End.DT2U", "the length of a prefix is a number up to 128"),
    ] {
        let (status, output) = said(&router, line);
        assert!(status != 0 && output.contains(expected), "{line}: {output}");
    }
    // And no router at all.
    let (status, output) = said(&router, "underpass sid del fc00:1::d2 --socket /nonexistent/router.sock");
    assert!(status != 0 && output.contains("no router at /nonexistent/router.sock"), "{output}");
}

/// As Linux answers to what it does not have.
#[test]
fn a_router_has_none_of_it_unless_told() {
    let router = Daemon::start(&PORTS);
    run(&router, "ip link set p0 up");
    let expected = "Error: Unknown device type.\n";
    assert_eq!(said(&router, "ip link add srl0 type srv6l2"), (2, expected.to_owned()));
    let (status, output) = said(&router, "underpass sid add fc00:1::40 End.DX2V --oif p0");
    assert!(status == 1 && output.contains("does the router run with --experimental?"), "{output}");
    let line = "underpass sid add 5f00::9 End --dev p0 --flavors replace-csid --lblen 48 --nflen 32";
    let (status, output) = said(&router, line);
    assert!(status == 1 && output.contains("Start the router with --experimental"), "{output}");
}

/// What is saved makes the same again.
#[test]
fn it_is_saved_and_loaded() {
    let directory = tempfile::tempdir().unwrap();
    let first = Daemon::start_with(&["--experimental"], &PORTS);
    run(&first, SERVICE);
    let saved = said(&first, "underpass save");
    assert_eq!(saved.0, 0, "{}", saved.1);
    for line in [
        "underpass sid replace fc00:1::d2/128 End.DT2U --oif srl0 --count --dev srl0",
        "underpass sid replace fc00:1::d3/128 End.DT2M --oif srl0 --dev srl0 --metric 7",
        "underpass sid replace fc00:1::d400/120 End.DT2M --oif srl0 --fe2 1x8 --dev srl0",
        "underpass sid replace fc00:1:40::/48 End.DX2V --oif p0 --dev p0 --table 100",
    ] {
        assert!(saved.1.lines().any(|saved| saved == line), "{}", saved.1);
    }
    let file = directory.path().join("router.conf");
    fs::write(&file, &saved.1).unwrap();
    let second = Daemon::start_with(&["--experimental", "--config", file.to_str().unwrap()], &PORTS);
    assert_eq!(said(&second, "underpass save"), saved);
}
