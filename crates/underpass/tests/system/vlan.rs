//! VLAN devices of the router's, beside a kernel that has none: an 802.1Q trunk between two of them, and a station that sends
//! and takes raw frames.
//!
//! ```text
//! A t0 ──── 100 VLANs ──── t0 R t1 ──── VLAN 200 ──── raw
//! ```

use std::{
    fmt::Write,
    time::{Duration, Instant},
};

use serde_json::Value;
use underpass_daemon::testbed;

use super::mtu::transfer;
use super::net::{self, Node, ping, settle, turn};

/// VLANs of the trunk.
const VLANS: u32 = 100;

/// A station in VLAN 200 with 10.200.0.9 that says what it gets. It sends a datagram with priority 5 to a closed port of A's in
/// VLAN 5 by R, whose address it is given, answers R's ARP, and prints tag and packet of what A answers.
const STATION: &str = r#"
import socket, struct, sys
mine, peer = bytes.fromhex("020000000999"), bytes.fromhex(sys.argv[1].replace(":", ""))
tag = b"\x81\x00\xa0\xc8"
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
s.setsockopt(263, 8, 1)
s.bind(("t1", 0))
s.settimeout(5)
def add(data):
    total = sum(struct.unpack("!%dH" % (len(data) // 2), data))
    while total >> 16:
        total = (total & 0xffff) + (total >> 16)
    return ~total & 0xffff
udp = struct.pack("!4H", 9, 9999, 12, 0) + b"ping"
ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 32, 7, 0, 64, 17, 0, bytes([10, 200, 0, 9]), bytes([10, 0, 5, 1]))
ip = ip[:10] + struct.pack("!H", add(ip)) + ip[12:]
s.send(peer + mine + tag + b"\x08\x00" + ip + udp)
while True:
    frame, ancillary, _, _ = s.recvmsg(2048, 256)
    control = None
    for level, kind, data in ancillary:
        if level == 263 and kind == 8 and struct.unpack_from("=I", data)[0] & 16:
            control = struct.unpack_from("=HH", data, 16)
    if control is None or control[0] & 0xfff != 200:
        continue
    if frame[12:14] == b"\x08\x06" and frame[20:22] == b"\x00\x01" and frame[38:42] == bytes([10, 200, 0, 9]):
        body = struct.pack("!HHBBH", 1, 0x800, 6, 4, 2) + mine + bytes([10, 200, 0, 9]) + frame[22:32]
        s.send(frame[6:12] + mine + tag + b"\x08\x06" + body + bytes(18))
    if frame[12:14] == b"\x08\x00" and frame[:6] == mine:
        print("%04x %04x %s" % (control[1], control[0], frame[14:].hex()))
        break
"#;

/// What A answers: its port is unreachable, of the datagram as R has sent it on, one hop further on. Identification and checksum
/// of the outer header are Linux's choice.
const ANSWER: [&str; 3] = [
    "8100 00c8 45c0003c",
    "00003f01",
    "0a0005010ac800090303f7070000000045000020000700003f1161f50ac800090a0005010009270f000c000070696e67",
];

/// `ip` lines, by one process.
fn batch(node: &Node, lines: &str) {
    node.run(&format!("ip -batch - <<'END'\n{lines}END\n"));
}

/// What the router shows of a link.
fn link(node: &Node, name: &str) -> Value {
    let shown: Value = serde_json::from_str(&node.run(&format!("ip -s -d -j link show dev {name}"))).unwrap();
    shown[0].clone()
}

/// Waits until that is so of what the router shows of a link.
fn wait(node: &Node, name: &str, what: &str, so: impl Fn(&Value) -> bool) {
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        let shown = link(node, name);
        if so(&shown) {
            return;
        }
        assert!(Instant::now() < end, "{name} is not {what}: {shown}{}", node.log());
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn is_up(link: &Value) -> bool {
    link["flags"].as_array().unwrap().contains(&"UP".into())
}

/// What goes wrong with a line, which must be refused.
fn refused(node: &Node, line: &str) -> String {
    let outcome = node.router.as_ref().unwrap().outcome(line).unwrap();
    assert_ne!(outcome.status, 0, "{line}: {}", outcome.output);
    outcome.output
}

#[test]
fn a_trunk_with_a_hundred_vlans() {
    let Some(_turn) = turn("a_trunk_with_a_hundred_vlans") else { return };
    let [mut a, mut r] = ["a", "r"].map(|name| Node { namespace: net::namespace(name), router: None });
    let raw = net::namespace("raw");
    testbed::join(&a.namespace, "t0", &r.namespace, "t0").unwrap();
    testbed::join(&r.namespace, "t1", &raw, "t1").unwrap();
    raw.run("ip link set t1 up").unwrap();
    a.namespace.run("ip link set t0 up").unwrap();
    r.namespace.run("sysctl -qw net.ipv4.ip_forward=1; ip link set t0 up; ip link set t1 up").unwrap();
    let state = tempfile::tempdir().unwrap();
    let kept = state.path().join("state");
    let kept = kept.to_str().unwrap();
    // AF_XDP does not see tags that a driver takes off.
    a.start_with(&["--workers", "1", "--driver", "xdp"]);
    r.start_with(&["--workers", "2", "--state", kept]);
    for (node, end) in [(&a, 1), (&r, 2)] {
        let mut lines = String::new();
        for n in 1..=VLANS {
            writeln!(lines, "link add link t0 name t0.{n} type vlan id {n}").unwrap();
            writeln!(lines, "addr add 10.0.{n}.{end}/24 dev t0.{n}").unwrap();
            writeln!(lines, "link set t0.{n} up").unwrap();
        }
        // One in another, of the other protocol.
        writeln!(lines, "link add link t0.7 name q type vlan protocol 802.1ad id 7").unwrap();
        writeln!(lines, "addr add 10.7.7.{end}/24 dev q\nlink set q up").unwrap();
        batch(node, &lines);
    }
    batch(
        &r,
        "link add link t1 name t1.200 type vlan id 200\naddr add 10.200.0.1/24 dev t1.200\nlink set t1.200 up\n",
    );
    batch(&a, "route add 10.200.0.0/24 via 10.0.5.2\n");

    assert!(a.router.as_ref().unwrap().log().unwrap().contains("has VLAN devices"), "{}", a.log());
    // The host of each router by each of its devices, all at once.
    settle(&a.namespace, &format!("10.0.{VLANS}.2"), Duration::from_secs(10)).unwrap();
    let pings = format!(
        "for n in $(seq {VLANS}); do
             ping -n -q -c 5 -i 0.05 -W 5 10.0.$n.2 > /dev/null & all=\"$all $!\"
         done
         for one in $all; do wait $one || exit 1; done"
    );
    a.namespace.run(&pings).unwrap_or_else(|error| panic!("{error:#}{}{}", a.log(), r.log()));
    for node in [&a, &r] {
        let shown: Value = serde_json::from_str(&node.run("ip -s -j link show type vlan")).unwrap();
        let counted = shown.as_array().unwrap().iter().filter(|link| {
            let of = |way: &str, what: &str| link["stats64"][way][what].as_u64().unwrap();
            ["rx", "tx"].iter().all(|way| of(way, "packets") >= 5 && of(way, "bytes") >= 5 * 84)
        });
        let counted = counted.count();
        assert!(counted >= VLANS as usize, "only {counted} VLANs have counted the pings");
    }
    // Whole segments, and a tag behind another.
    transfer(&a.namespace, &r.namespace, "10.0.3.2").unwrap();
    transfer(&r.namespace, &a.namespace, "10.0.3.1").unwrap();
    ping(&a.namespace, "10.7.7.2", 5).unwrap();

    // A VLAN to another, by R.
    let mac = link(&r, "t1.200")["address"].as_str().unwrap().to_owned();
    let answer = raw.command("python3").args(["-c", STATION, &mac]).output().unwrap();
    let answer = String::from_utf8(answer.stdout).unwrap();
    let parts = [answer.get(..18), answer.get(22..30), answer.get(34..).map(str::trim)];
    assert_eq!(parts, ANSWER.map(Some), "{answer}{}", r.log());

    // What Linux shows of a VLAN device, and what it refuses.
    let shown = link(&r, "q");
    assert_eq!(shown["link"], "t0.7");
    assert_eq!(shown["linkinfo"]["info_kind"], "vlan");
    assert_eq!(shown["linkinfo"]["info_data"]["protocol"], "802.1ad");
    assert_eq!(shown["operstate"], "UP");
    let twice = refused(&r, "ip link add link t0 name other type vlan id 3");
    assert!(twice.contains("VLAN device already exists"), "{twice}");
    assert!(refused(&r, "ip link set t0.3 mtu 1501").contains("Numerical result out of range"));

    // The trunk goes down and comes up again, changes its address and its MTU.
    r.run("ip link set t0 down");
    wait(&r, "t0.3", "down", |link| !is_up(link));
    wait(&r, "q", "down", |link| !is_up(link));
    // Without one A's kernel forgets what stations it knew there.
    for name in ["t0.3", "t0.5", "q"] {
        wait(&a, name, "without a carrier", |link| link["operstate"] == "LOWERLAYERDOWN");
    }
    assert!(refused(&r, "ip link set t0.3 up").contains("Network is down"));
    r.run("ip link set t0 address 02:00:00:00:77:01; ip link set t0 mtu 1400; ip link set t0 up");
    wait(&r, &format!("t0.{VLANS}"), "up", is_up);
    wait(&r, "q", "like the trunk", |link| {
        is_up(link) && link["address"] == "02:00:00:00:77:01" && link["mtu"] == 1400
    });
    for address in ["10.0.3.2", "10.7.7.2", "10.0.5.2"] {
        settle(&a.namespace, address, Duration::from_secs(10)).unwrap();
    }

    // What is of no device any more.
    r.run("ip link del t0.9");
    let unknown = || r.router.as_ref().unwrap().stats().unwrap().drops.get("vlan-unknown").copied();
    let before = unknown().unwrap_or(0);
    let end = Instant::now() + Duration::from_secs(10);
    // Until A's device sends again.
    while unknown().unwrap_or(0) <= before {
        assert!(Instant::now() < end, "{}", r.log());
        a.namespace.outcome("ping -n -q -c 1 -W 1 10.0.9.2").unwrap();
    }

    // Another router takes over.
    let before = r.run("ip -d link show type vlan");
    r.router.take().unwrap().stop().unwrap();
    r.start_with(&["--workers", "2", "--state", kept]);
    assert_eq!(r.run("ip -d link show type vlan"), before, "{}", r.log());
    for address in ["10.0.3.2", "10.7.7.2"] {
        settle(&a.namespace, address, Duration::from_secs(10)).unwrap();
    }
    a.stop();
    r.stop();
}
