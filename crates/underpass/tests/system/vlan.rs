//! VLAN devices of the router's, beside a kernel that has none: an 802.1Q trunk between two of them, and a station that sends
//! and takes raw frames.
//!
//! ```text
//! A t0 ──── 100 VLANs ──── t0 R t1 ──── VLAN 200 ──── raw
//! ```

mod linux;

use std::{
    fmt::Write,
    io::{BufRead, BufReader},
    process::Stdio,
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
    // As long as the MTU allows; the tags come on top.
    let full = a.namespace.outcome("ping -n -c 3 -i 0.02 -W 2 -M do -s 1472 10.7.7.2").unwrap();
    assert!(full.output.contains(" 3 received"), "{}{}{}", full.output, a.log(), r.log());

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
    let end = Instant::now() + Duration::from_secs(30);
    // A asks all stations anew, as R's address is another one now.
    a.namespace.run("ip neigh flush dev t0.9").unwrap();
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

/// How many frames of how many bytes behind their tags a station sends to another by R, from a VLAN to a VLAN.
const SENT: u64 = 200;
const LONG: u64 = 14 + 128;

/// Says that it is ready, and then how many frames came, with the tag and the bytes of the last.
const SINK: &str = r#"
import socket, struct, sys
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
s.setsockopt(263, 8, 1)
s.setsockopt(socket.SOL_SOCKET, 33, 1 << 22)
s.bind(("t1", 0))
s.settimeout(10)
print("ready", flush=True)
count, last = 0, ""
while count < int(sys.argv[1]):
    frame, ancillary, _, _ = s.recvmsg(2048, 256)
    if frame[12:14] != b"\x08\x00":
        continue
    status, tag = struct.unpack_from("=I", ancillary[0][2])[0], struct.unpack_from("=HH", ancillary[0][2], 16)
    count, last = count + 1, "%d %04x %04x %s" % (status >> 4 & 1, tag[1], tag[0], frame.hex())
print(count, last)
"#;

/// Sends so many frames with a tag to R, whose address it is given: VLAN 10, with priority 5.
const SOURCE: &str = r#"
import socket, struct, sys
def add(data):
    total = sum(struct.unpack("!%dH" % (len(data) // 2), data))
    while total >> 16:
        total = (total & 0xffff) + (total >> 16)
    return ~total & 0xffff
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
s.bind(("t0", 0))
udp = struct.pack("!4H", 9, 9, 108, 0) + bytes(100)
ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 128, 7, 0, 64, 17, 0, bytes([10, 10, 0, 9]), bytes([10, 20, 0, 9]))
ip = ip[:10] + struct.pack("!H", add(ip)) + ip[12:]
for _ in range(int(sys.argv[2])):
    s.send(bytes.fromhex(sys.argv[1].replace(":", "")) + bytes.fromhex("020000000a09") + b"\x81\x00\xa0\x0a\x08\x00" + ip + udp)
"#;

/// What the router shows that links have counted: packets and bytes, received and sent.
fn counted(node: &Node, names: [&str; 4]) -> [[u64; 4]; 4] {
    names.map(|name| {
        let stats = &link(node, name)["stats64"];
        [("rx", "packets"), ("rx", "bytes"), ("tx", "packets"), ("tx", "bytes")]
            .map(|(way, what)| stats[way][what].as_u64().unwrap())
    })
}

/// What ports of wires have counted, packets received and sent.
fn of_ports(node: &Node, names: [&str; 2]) -> [[u64; 2]; 2] {
    let ports = node.router.as_ref().unwrap().stats().unwrap().ports;
    names.map(|name| {
        let port = ports.iter().find(|port| port.name == name).unwrap();
        [port.rx_packets, port.tx_packets]
    })
}

/// From a VLAN of 802.1Q to one of 802.1ad, by the kernel and by workers: the same frames, and the same counts.
#[test]
fn the_kernel_carries_from_vlan_to_vlan() {
    const TEST: &str = "the_kernel_carries_from_vlan_to_vlan";
    let Some(_turn) = turn(TEST) else { return };
    if let Err(why) = underpass_daemon::live::try_fast_path() {
        return net::skip(TEST, &why);
    }
    let outcomes = ["tcx", "off"].map(|fast| {
        let mut r = Node { namespace: net::namespace("r"), router: None };
        let (from, to) = (net::namespace("from"), net::namespace("to"));
        testbed::join(&from, "t0", &r.namespace, "t0").unwrap();
        testbed::join(&r.namespace, "t1", &to, "t1").unwrap();
        // Nobody says anything by itself.
        for namespace in [&from, &r.namespace, &to] {
            namespace.run("sysctl -qw net.ipv6.conf.all.disable_ipv6=1").unwrap();
        }
        from.run("ip link set t0 up").unwrap();
        to.run("ip link set t1 up").unwrap();
        r.namespace.run("sysctl -qw net.ipv4.ip_forward=1; ip link set t0 up; ip link set t1 up").unwrap();
        r.start_with(&["--workers", "1", "--driver", "packet", "--fast-path", fast]);
        batch(
            &r,
            "link add link t0 name in type vlan id 10\naddr add 10.10.0.1/24 dev in\nlink set in up\n\
             link add link t1 name out type vlan protocol 802.1ad id 20\naddr add 10.20.0.1/24 dev out\n\
             link set out up\nneigh add 10.20.0.9 lladdr 02:00:00:00:14:09 dev out\n",
        );
        wait(&r, "in", "up", is_up);
        wait(&r, "out", "up", is_up);
        let names = ["t0", "in", "t1", "out"];
        let mac = link(&r, "in")["address"].as_str().unwrap().to_owned();
        let source = link(&r, "out")["address"].as_str().unwrap().replace(':', "");
        let carry = |count: u64| {
            let mut sink = to.command("python3");
            let count = count.to_string();
            let mut sink = sink.args(["-c", SINK, &count]).stdout(Stdio::piped()).spawn().unwrap();
            let mut said = BufReader::new(sink.stdout.take().unwrap());
            let mut line = String::new();
            said.read_line(&mut line).unwrap();
            let sent = from.command("python3").args(["-c", SOURCE, &mac, &count]).status().unwrap();
            assert!(sent.success());
            line.clear();
            said.read_line(&mut line).unwrap();
            sink.wait().unwrap();
            line
        };
        // The neighbour is known to the router, and each has its place in the tables.
        carry(1);
        let (before, ports) = (counted(&r, names), of_ports(&r, ["t0", "t1"]));
        let hits = r.router.as_ref().unwrap().stats().unwrap().fast_path.hits;
        let came = carry(SENT);
        let expected = format!("{SENT} 1 88a8 0014 020000001409{source}080045000080000700003f11");
        assert!(came.starts_with(&expected), "{fast}: {came}, not {expected}{}", r.log());
        let carried = r.router.as_ref().unwrap().stats().unwrap().fast_path.hits - hits;
        assert_eq!(carried, if fast == "tcx" { SENT } else { 0 }, "{}", r.log());
        let since = |after: [[u64; 4]; 4]| -> [[u64; 4]; 4] {
            std::array::from_fn(|link| std::array::from_fn(|n| after[link][n] - before[link][n]))
        };
        let links = since(counted(&r, names));
        let after = of_ports(&r, ["t0", "t1"]);
        let ports: [[u64; 2]; 2] =
            std::array::from_fn(|port| std::array::from_fn(|n| after[port][n] - ports[port][n]));
        r.stop();
        (links, ports)
    });
    let [(links, ports), (links_by_worker, ports_by_worker)] = outcomes;
    // A VLAN device counts what is behind the header as received, and all but the tag as sent.
    assert_eq!(links[1], [SENT, SENT * (LONG - 14), 0, 0]);
    assert_eq!(links[3], [0, 0, SENT, SENT * LONG]);
    assert_eq!(ports, [[SENT, 0], [0, SENT]]);
    assert_eq!(ports, ports_by_worker);
    // Of t1 the kernel counts what is sent, and does not see what is given to the other end at once.
    for same in [0, 1, 3] {
        assert_eq!(links[same], links_by_worker[same]);
    }
}

/// Two routers and a third between them, by whose VLANs their hosts reach each other.
#[test]
fn whole_segments_cross_vlans_in_the_kernel() {
    const TEST: &str = "whole_segments_cross_vlans_in_the_kernel";
    let Some(_turn) = turn(TEST) else { return };
    if let Err(why) = underpass_daemon::live::try_fast_path() {
        return net::skip(TEST, &why);
    }
    let [mut a, mut r, mut b] =
        ["a", "r", "b"].map(|name| Node { namespace: net::namespace(name), router: None });
    testbed::join(&a.namespace, "t0", &r.namespace, "t0").unwrap();
    testbed::join(&r.namespace, "t1", &b.namespace, "t1").unwrap();
    for (node, devices) in [(&a, &["t0"][..]), (&r, &["t0", "t1"]), (&b, &["t1"])] {
        let up: String = devices.iter().map(|device| format!("ip link set {device} up; ")).collect();
        node.namespace.run(&format!("sysctl -qw net.ipv4.ip_forward=1; {up}")).unwrap();
    }
    for node in [&mut a, &mut r, &mut b] {
        node.start_with(&["--workers", "1", "--fast-path", "tcx"]);
    }
    let one = |lower: &str, more: &str, own: &str| {
        format!(
            "link add link {lower} name v{lower} type vlan {more}\naddr add {own}/24 dev v{lower}\n\
             link set v{lower} up\n"
        )
    };
    let (customer, service) = ("id 10", "protocol 802.1ad id 20");
    batch(&a, &(one("t0", customer, "10.10.0.2") + "route add 10.20.0.0/24 via 10.10.0.1\n"));
    batch(&b, &(one("t1", service, "10.20.0.2") + "route add 10.10.0.0/24 via 10.20.0.1\n"));
    batch(&r, &(one("t0", customer, "10.10.0.1") + &one("t1", service, "10.20.0.1")));
    settle(&a.namespace, "10.20.0.2", Duration::from_secs(10))
        .unwrap_or_else(|why| panic!("{why}{}{}{}", a.log(), r.log(), b.log()));
    let hits = || r.router.as_ref().unwrap().stats().unwrap().fast_path.hits;
    let (before, packets) = (hits(), link(&r, "vt1")["stats64"]["tx"]["packets"].as_u64().unwrap());
    ping(&a.namespace, "10.20.0.2", 50).unwrap();
    assert!(hits() - before >= 100, "{}{}", hits() - before, r.log());
    transfer(&a.namespace, &b.namespace, "10.20.0.2").unwrap();
    transfer(&b.namespace, &a.namespace, "10.10.0.2").unwrap();
    let (carried, sent) =
        (hits() - before, link(&r, "vt1")["stats64"]["tx"]["packets"].as_u64().unwrap() - packets);
    // What the hosts ask for neighbours is the workers'.
    assert!(carried > sent, "{carried} {sent}{}", r.log());
    let misses = r.router.as_ref().unwrap().stats().unwrap().fast_path.misses;
    assert!(misses.values().sum::<u64>() < 50 + carried / 10, "{misses:?} {carried}{}", r.log());
    for node in [a, r, b] {
        node.stop();
    }
}
