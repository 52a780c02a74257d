//! `underpass replay` as its users run it.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use underpass_engine::buffer::Pool;
use underpass_port::pcap::{Reader, Writer};

fn replay(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_underpass")).arg("replay").args(arguments).output().unwrap()
}

fn example(file: &str) -> String {
    format!("{}/../../examples/l3vpn/{file}", env!("CARGO_MANIFEST_DIR"))
}

fn frames(path: &Path) -> Vec<(u64, Vec<u8>)> {
    let (mut reader, mut pool) = (Reader::open(path).unwrap(), Pool::new(1));
    let mut frames = Vec::new();
    while let Some((time, packet)) = reader.receive(&mut pool).unwrap() {
        frames.push((time, packet.bytes().to_vec()));
        pool.give(packet);
    }
    frames
}

/// A directory with a configuration and a capture of these frames, a millisecond apart.
fn scene(config: &str, frames: &[Vec<u8>]) -> (tempfile::TempDir, PathBuf, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let (conf, pcap) = (directory.path().join("router.conf"), directory.path().join("in.pcap"));
    fs::write(&conf, config).unwrap();
    let mut writer = Writer::create(&pcap).unwrap();
    for (time, frame) in (0..).map(|n| 1_000_000 * n).zip(frames) {
        writer.send(time, frame).unwrap();
    }
    writer.finish().unwrap();
    (directory, conf, pcap)
}

/// The ways of the L3VPN example: what each customer sends leaves by the core for that customer's SID,
/// what comes for a SID leaves by that customer's port, every packet is accounted for.
#[test]
fn the_l3vpn_example() {
    let out = tempfile::tempdir().unwrap();
    let [core, red, blue] =
        ["core", "red", "blue"].map(|port| format!("{port}={}", example(&format!("{port}.pcap"))));
    let output = replay(&[
        "--config",
        &example("vpn.conf"),
        "--port=core,mac=02:00:00:00:00:01",
        "--port=red,mac=02:00:00:00:00:02",
        "--port=blue,mac=02:00:00:00:00:03",
        &format!("--rx={core}"),
        &format!("--rx={red}"),
        &format!("--rx={blue}"),
        "--json",
        "--show=ip -6 -s -j route show",
        "--out",
        out.path().to_str().unwrap(),
    ]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
    let packets = |way: &str| -> Vec<u64> {
        summary[way].as_array().unwrap().iter().map(|port| port["packets"].as_u64().unwrap()).collect()
    };
    assert_eq!(packets("in"), [36, 12, 31]);
    let sent = packets("out");
    let dropped: u64 =
        summary["dropped"].as_array().unwrap().iter().map(|d| d["packets"].as_u64().unwrap()).sum();
    let ended = sent.iter().sum::<u64>() + summary["delivered"].as_u64().unwrap() + dropped;
    assert_eq!(36 + 12 + 31 + summary["generated"].as_u64().unwrap(), ended);

    // Each customer's host is the only station behind its port.
    let ports = ["core", "red", "blue"].map(|port| frames(&out.path().join(format!("{port}.pcap"))));
    assert_eq!(ports.each_ref().map(|frames| frames.len() as u64).to_vec(), sent);
    assert!(ports[1].iter().all(|(_, frame)| frame[..6] == [2, 0, 0, 0, 0x0a, 0x10] && frame[14] >> 4 == 4));
    assert!(ports[2].iter().all(|(_, frame)| frame[..6] == [2, 0, 0, 0, 0x0b, 0x10]));
    assert!(ports[2].iter().any(|(_, frame)| frame[14] >> 4 == 6));
    // Of what leaves by the core, red's packets have no SRH and blue's have one of a single segment.
    let to = |address: &str| address.parse::<std::net::Ipv6Addr>().unwrap().octets();
    let by_core = |destination: &str| -> Vec<&Vec<u8>> {
        ports[0].iter().map(|(_, f)| f).filter(|f| f[38..54] == to(destination)).collect()
    };
    assert_eq!(by_core("fc00:2:0:d4::").len(), 12);
    assert!(by_core("fc00:2:0:d4::").iter().all(|frame| frame[20] == 4));
    assert!(by_core("fc00:9::1").iter().all(|frame| frame[20] == 43 && frame[55] == 2 && frame[57] == 1));
    // The time stamps are those of what came in.
    assert!(ports[1].iter().all(|(time, _)| time % 1_000_000 == 0 && time / 1_000_000_000 == 1_700_000_000));

    let routes: Value = serde_json::from_str(summary["show"][0]["output"].as_str().unwrap()).unwrap();
    let route = |sid: &str| routes.as_array().unwrap().iter().find(|route| route["dst"] == sid).unwrap();
    let red = &route("fc00:1:0:d4::")["stats64"];
    assert_eq!((red["packets"].as_u64(), red["errors"].as_u64()), (Some(9), Some(1)));
    let octets = ports[1].iter().map(|(_, frame)| frame.len() as u64 - 14 + 40).sum::<u64>();
    assert_eq!(red["bytes"].as_u64(), Some(octets));
    // Linux counts a packet whose inner hop limit has run out as an error of the SID.
    assert_eq!(route("fc00:1:0:d46::")["stats64"]["errors"].as_u64(), Some(1));
}

/// IPv6, UDP, from fd00::2 to 2001:db8::1, for the port's default MAC address.
fn datagram() -> Vec<u8> {
    let mut frame = vec![0x02, 0x75, 0x70, 0, 0, 1, 2, 0, 0, 0, 0, 9, 0x86, 0xdd];
    frame.extend([0x60, 0, 0, 0, 0, 8, 17, 9]);
    frame.extend("fd00::2".parse::<std::net::Ipv6Addr>().unwrap().octets());
    frame.extend("2001:db8::1".parse::<std::net::Ipv6Addr>().unwrap().octets());
    frame.extend([0, 1, 0, 2, 0, 8, 0xaa, 0xbb]);
    frame
}

const FORWARDING: &str = "\
# A line that goes on, and a comment behind one.
ip link set p0 up
ip link set p1 up   # the way out
ip addr add fd01::1/64 \\
    dev p1 nodad
ip neigh add fd01::2 lladdr 02:00:00:00:00:07 dev p1
ip -6 route add 2001:db8::/32 via fd01::2
";

#[test]
fn a_trace_prints_the_packet_path() {
    let (directory, conf, pcap) = scene(FORWARDING, &[datagram()]);
    let out = directory.path().join("out");
    let output = replay(&[
        "--config",
        conf.to_str().unwrap(),
        "--rx",
        &format!("p0={}", pcap.display()),
        "--port=p0",
        "--port=p1",
        "--out",
        out.to_str().unwrap(),
        "--trace",
    ]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    let packet = |hops: u8| format!("IPv6 fd00::2 > 2001:db8::1 hop limit {hops} / UDP 1 > 2, 0 bytes");
    let packet_path = [
        "packet 1 at 0.000000000".to_owned(),
        format!("  in by p0: Ethernet 02:00:00:00:00:09 > 02:75:70:00:00:01 / {}", packet(9)),
        "  look up 2001:db8::1 in table main, 2001:db8::/32 → to dev p1 lladdr 02:00:00:00:00:07".to_owned(),
        "  to dev p1 lladdr 02:00:00:00:00:07".to_owned(),
        format!("  out by p1: Ethernet 02:75:70:00:00:02 > 02:00:00:00:00:07 / {}", packet(8)),
    ];
    assert_eq!(text.lines().take(5).collect::<Vec<_>>(), packet_path);
    // Every port has a capture, even if nothing left by it.
    assert_eq!((frames(&out.join("p0.pcap")).len(), frames(&out.join("p1.pcap")).len()), (0, 1));
}

/// The same for programs.
#[test]
fn steps_for_programs() {
    let (directory, conf, pcap) = scene(FORWARDING, &[datagram()]);
    let steps = directory.path().join("steps.jsonl");
    let output = replay(&[
        &format!("--config={}", conf.display()),
        &format!("--rx=p0={}", pcap.display()),
        "--port=p0",
        "--port=p1",
        &format!("--out={}", directory.path().display()),
        &format!("--trace-json={}", steps.display()),
    ]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = std::fs::read_to_string(steps).unwrap();
    let steps: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let kinds: Vec<_> = steps.iter().map(|step| step["step"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["received", "lookup", "next-hop", "sent"], "{text}");
    assert!(steps.iter().all(|step| step["packet"] == 1), "{text}");
    assert_eq!((&steps[1]["table"], &steps[1]["prefix"]), (&254.into(), &"2001:db8::/32".into()));
    assert_eq!(steps[3]["port"], "p1");
}

/// What is told of the path of a datagram.
fn traced(config: &str) -> String {
    let (directory, conf, pcap) = scene(config, &[datagram()]);
    let output = replay(&[
        &format!("--config={}", conf.display()),
        &format!("--rx=p0={}", pcap.display()),
        "--port=p0",
        "--port=p1",
        &format!("--out={}", directory.path().display()),
        "--trace",
    ]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Where policy rules have selectors, the one that decides is told, and the table that it leads to.
#[test]
fn a_trace_tells_the_rule() {
    let rules =
        "ip -6 rule add pref 200 to 2001:db8::/32 lookup 99\nip -6 rule add pref 300 from fd00::3 prohibit\n";
    let config = FORWARDING.replace("via fd01::2", "via fd01::2 table 99");
    let told = traced(&format!("{config}{rules}"));
    let decided = "  rule 200 decides\n  look up 2001:db8::1 in table 99, 2001:db8::/32 → to dev p1";
    assert!(told.contains(decided), "{told}");
    let told = traced(&format!("{config}{rules}ip -6 rule add pref 100 from fd00::/16 prohibit\n"));
    assert!(
        told.contains("  rule 100 decides\n")
            && told.contains("\n  prohibited: answered by ICMP type 1 code 1"),
        "{told}"
    );
    // Of a router without such rules none is told.
    assert!(!traced(FORWARDING).contains(" decides\n"));
}

/// Labels and segments are told by their values, in the order in which they are met.
#[test]
fn a_trace_tells_labels_and_segments() {
    let trace = |route: &str| traced(&FORWARDING.replace("2001:db8::/32 via fd01::2", route));
    let labels = trace("2001:db8::/32 encap mpls 100/200 via fd01::2");
    assert!(
        labels.contains("look up 2001:db8::1 in table main, 2001:db8::/32 → encap mpls 100/200 to dev p1"),
        "{labels}"
    );
    assert!(labels.contains(" / MPLS 100 ttl 8, 200 ttl 8 / IPv6 fd00::2 > 2001:db8::1"), "{labels}");

    for mode in ["encap", "encap.red"] {
        let route = format!("2001:db8::/32 encap seg6 mode {mode} segs fc00:2::1,fc00:3::1,fc00:4::1 dev p1");
        let policy = trace(&route);
        let told = " to fc00:2::1, segments [fc00:2::1, fc00:3::1, fc00:4::1]";
        assert!(policy.contains(told), "{mode}: {policy}");
    }
    let inline = trace("2001:db8::/32 encap seg6 mode inline segs fc00:2::1 dev p1");
    assert!(
        inline.contains("inline to fc00:2::1, segments [fc00:2::1, the packet's destination]"),
        "{inline}"
    );
}

/// The table of a VRF, and the longest of two prefixes; a throw route leads on to the next table.
#[test]
fn a_trace_tells_the_table_and_the_prefix() {
    let config = format!(
        "ip link add red type vrf table 10\nip link set red up\nip link set p0 master red\n{FORWARDING}\
         ip neigh add fd01::3 lladdr 02:00:00:00:00:08 dev p1\n\
         ip -6 route add 2001:db8::/48 via fd01::3 dev p1 table 10\n\
         ip -6 route add 2001:db8::/16 via fd01::3 dev p1 table 10\n"
    );
    let ruled = format!(
        "{FORWARDING}ip -6 rule add iif p0 table 77\nip -6 route add throw 2001:db8::1/128 table 77\n"
    );
    for (config, told) in
        [(config, "in table 10, 2001:db8::/48 →"), (ruled, "in table main, 2001:db8::/32 →")]
    {
        let text = traced(&config);
        assert!(text.contains(&format!("look up 2001:db8::1 {told}")), "{told}: {text}");
    }
}

#[test]
fn an_error_names_the_file_the_line_and_the_tools_own_words() {
    let (directory, conf, pcap) =
        scene(&format!("{FORWARDING}\n\nip -6 route add 2001:db8::/32 dev p1\n"), &[]);
    let rx = format!("p0={}", pcap.display());
    let out = directory.path().join("out");
    let run = |conf: &Path, rx: &str| {
        let (conf, out) = (conf.to_str().unwrap(), out.to_str().unwrap());
        let output = replay(&["--config", conf, "--rx", rx, "--port=p1", "--out", out]);
        assert_eq!(output.status.code(), Some(1));
        assert!(output.stdout.is_empty());
        String::from_utf8(output.stderr).unwrap()
    };
    let expected = format!(
        "underpass: {}:10: ip -6 route add 2001:db8::/32 dev p1: RTNETLINK answers: File exists\n",
        conf.display()
    );
    assert_eq!(run(&conf, &rx), expected);

    let wrong = directory.path().join("wrong.conf");
    fs::write(&wrong, "ip link\n\nreboot\n").unwrap();
    assert!(run(&wrong, &rx).contains("wrong.conf:3: 'reboot' is none of the tools"));
    let foreign = format!("p0={}", conf.display());
    let expected = format!("underpass: {}: neither a pcap nor a pcapng file\n", conf.display());
    fs::write(&wrong, "").unwrap();
    assert_eq!(run(&wrong, &foreign), expected);
}

#[test]
fn a_truncated_capture_is_refused_with_its_packet() {
    let (directory, conf, pcap) = scene(FORWARDING, &[datagram(), datagram()]);
    let mut bytes = fs::read(&pcap).unwrap();
    bytes.truncate(bytes.len() - 5);
    fs::write(&pcap, bytes).unwrap();
    let out = directory.path().join("out");
    let output = replay(&[
        "--config",
        conf.to_str().unwrap(),
        &format!("--rx=p0={}", pcap.display()),
        "--port=p1",
        "--out",
        out.to_str().unwrap(),
    ]);
    assert_eq!(output.status.code(), Some(1));
    let expected = format!(
        "underpass: {}: packet 2: the file is truncated: it ends in the middle of a packet\n",
        pcap.display()
    );
    assert_eq!(String::from_utf8(output.stderr).unwrap(), expected);
}

/// A filter below a VLAN device that sends all packets back into it, which puts no second tag on: they end as a loop.
#[test]
fn a_loop_through_a_vlan_device_ends() {
    let config = "ip link set p0 up\nip link set p1 up\n\
                  ip link add link p1 name p1.20 type vlan id 20 reorder_hdr off\nip link set p1.20 up\n\
                  ip addr add 192.0.2.1/24 dev p0\nip addr add 198.51.100.1/24 dev p1.20\n\
                  ip neigh add 198.51.100.2 lladdr 02:00:00:00:01:02 dev p1.20\n\
                  tc qdisc add dev p1 clsact\n\
                  tc filter add dev p1 egress matchall action mirred egress redirect dev p1.20\n";
    // IPv4 from 192.0.2.2 to 198.51.100.2.
    let mut frame = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 1, 1, 8, 0].to_vec();
    frame.extend([0x45, 0, 0, 20, 0, 0, 0, 0, 64, 59, 0, 0, 192, 0, 2, 2, 198, 51, 100, 2]);
    let sum = frame[14..].chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum::<u32>();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    let (directory, conf, pcap) = scene(config, &[frame]);
    let output = replay(&[
        &format!("--config={}", conf.display()),
        "--port=p0,mac=02:00:00:00:00:01",
        "--port=p1,mac=02:00:00:00:00:02",
        &format!("--rx=p0={}", pcap.display()),
        &format!("--out={}", directory.path().display()),
        "--json",
    ]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["dropped"], serde_json::json!([{ "reason": "loop", "packets": 1 }]));
}
