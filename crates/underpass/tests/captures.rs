//! `underpass replay` of what tcpdump and dumpcap have written (`captures/README.md`): it forwards what Linux forwarded.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};
use underpass_engine::buffer::Pool;
use underpass_port::pcap::Reader;

/// The router that captured.
const ROUTER: &str = "\
ip link set wan up
ip link set lan up
ip addr add 10.0.1.1/24 dev wan
ip addr add 10.0.2.1/24 dev lan
ip addr add fd01::1/64 dev wan nodad
ip addr add fd02::1/64 dev lan nodad
ip neigh add 10.0.1.2 lladdr 02:00:00:00:0a:02 dev wan
ip neigh add fd01::2 lladdr 02:00:00:00:0a:02 dev wan
ip neigh add 10.0.2.2 lladdr 02:00:00:00:0b:02 dev lan
ip neigh add fd02::2 lladdr 02:00:00:00:0b:02 dev lan
";
const WAN: [u8; 6] = [2, 0, 0, 0, 0x0a, 1];
const LAN: [u8; 6] = [2, 0, 0, 0, 0x0b, 1];

fn capture(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/captures").join(file)
}

/// The frames with this source that carry pings and their answers.
fn echoes(reader: Reader, source: [u8; 6]) -> Vec<Vec<u8>> {
    let is_echo = |frame: &[u8]| match frame[12..14] {
        [0x08, 0x00] => frame[23] == 1 && matches!(frame[34], 0 | 8),
        [0x86, 0xdd] => frame[20] == 58 && matches!(frame[54], 128 | 129),
        _ => false,
    };
    frames(reader).into_iter().filter(|frame| frame[6..12] == source && is_echo(frame)).collect()
}

fn frames(mut reader: Reader) -> Vec<Vec<u8>> {
    let mut pool = Pool::new(1);
    let mut frames = Vec::new();
    while let Some((_, packet)) = reader.receive(&mut pool).unwrap() {
        frames.push(packet.bytes().to_vec());
        pool.give(packet);
    }
    frames
}

/// What Linux sent by this interface: four pings by `lan`, four answers by `wan`.
fn by_linux(interface: &str, source: [u8; 6]) -> Vec<Vec<u8>> {
    let sent = echoes(Reader::open(&capture("both.pcapng.gz")).unwrap().only(interface), source);
    assert_eq!(sent.len(), 4);
    sent
}

struct Replayed {
    directory: tempfile::TempDir,
    summary: Value,
}

impl Replayed {
    fn sent(&self, port: &str) -> Reader {
        Reader::open(&self.directory.path().join(format!("{port}.pcap"))).unwrap()
    }

    fn is_as_linux(&self) {
        assert_eq!(echoes(self.sent("lan"), LAN), by_linux("lan", LAN));
        assert_eq!(echoes(self.sent("wan"), WAN), by_linux("wan", WAN));
    }
}

fn run(arguments: &[String]) -> (tempfile::TempDir, Output) {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("router.conf");
    fs::write(&config, ROUTER).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_underpass"))
        .args(["replay", "--json", "--config"])
        .arg(&config)
        .args(["--port=wan,mac=02:00:00:00:0a:01", "--port=lan,mac=02:00:00:00:0b:01", "--out"])
        .arg(directory.path())
        .args(arguments)
        .output()
        .unwrap();
    (directory, output)
}

fn replay(arguments: &[String]) -> Replayed {
    let (directory, output) = run(arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Replayed { directory, summary: serde_json::from_slice(&output.stdout).unwrap() }
}

fn rx(port: &str, file: &str, interface: &str) -> String {
    format!("--rx={port}{}{interface}", capture(file).display())
}

/// `tcpdump -i any`, compressed by zstd: an interface has its index alone. What the router sent is left out.
#[test]
fn tcpdump_of_any_device() {
    let interfaces = [rx("wan=", "any.pcap.zst", ",interface=2"), rx("lan=", "any.pcap.zst", ",interface=3")];
    let replayed = replay(&interfaces);
    replayed.is_as_linux();
    let [wan, lan] = [&replayed.summary["in"][0], &replayed.summary["in"][1]];
    assert_eq!((&wan["packets"], &wan["left_out_sent"]), (&json!(6), &json!(5)));
    assert_eq!(wan["packets"].as_u64().unwrap() + lan["packets"].as_u64().unwrap() + 5 + 6, 24);
    assert_eq!(lan["left_out_sent"], json!(6));

    let all = replay(&[interfaces[0].clone(), "--include-sent".to_owned()]);
    assert_eq!(all.summary["in"][0]["packets"], json!(11));
    assert_eq!(all.summary["in"][0].get("left_out_sent"), None);
}

/// The older cooked header tells of no interface: all goes into one port.
#[test]
fn tcpdump_of_any_device_without_its_index() {
    replay(&[rx("wan=", "sll.pcap", "")]).is_as_linux();
}

/// dumpcap at two devices, compressed by gzip: each goes into the port of its name.
#[test]
fn dumpcap_at_two_devices() {
    let replayed = replay(&[rx("", "both.pcapng.gz", "")]);
    replayed.is_as_linux();
    let ports: Vec<(&str, u64)> = replayed.summary["in"]
        .as_array()
        .unwrap()
        .iter()
        .map(|input| (input["port"].as_str().unwrap(), input["packets"].as_u64().unwrap()))
        .collect();
    assert_eq!(ports, [("lan", 13), ("wan", 11)]);
    // That file does not say what was sent: frames to the hosts' addresses are not for the router.
    assert!(replayed.summary["dropped"].as_array().unwrap().iter().any(|d| d["reason"] == "other-host"));

    let one = replay(&[rx("", "both.pcapng.gz", ",interface=wan")]);
    assert_eq!(one.summary["in"][0]["packets"], json!(11));
    assert_eq!(echoes(one.sent("lan"), LAN), by_linux("lan", LAN));
}

/// A snap length of 60: as long as what Linux sent, and the same in the bytes that were captured.
#[test]
fn a_snap_length() {
    let replayed = replay(&[rx("wan=", "snap.pcap", "")]);
    assert_eq!(replayed.summary["in"][0]["padded"], json!(11));
    let expected: Vec<Vec<u8>> = by_linux("lan", LAN)
        .into_iter()
        .map(|mut frame| {
            frame[60..].fill(0);
            frame
        })
        .collect();
    assert_eq!(echoes(replayed.sent("lan"), LAN), expected);
}

/// A TUN device: what has no Ethernet header gets one, from an address of nobody's.
#[test]
fn packets_without_a_link_layer() {
    let replayed = replay(&[rx("wan=", "raw.pcap", "")]);
    let sent: Vec<Vec<u8>> = frames(replayed.sent("lan")).into_iter().filter(|f| f[6..12] == LAN).collect();
    assert_eq!(sent.len(), 2, "{}", replayed.summary);
    assert_eq!(sent[0][..14], [2, 0, 0, 0, 0x0b, 2, 2, 0, 0, 0, 0x0b, 1, 8, 0]);
    assert_eq!((sent[0][22], sent[0].len()), (63, 14 + 32));
    assert_eq!((sent[1][21], &sent[1][62..]), (63, &b"abcd"[..]));
}

#[test]
fn the_summary_counts_and_errors_name_the_interfaces() {
    let (_directory, output) = run(&[rx("wan=", "both.pcapng.gz", ",interface=eth7")]);
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.ends_with("both.pcapng.gz: no interface 'eth7'; there is lan, wan\n"), "{text}");
    let (_directory, output) = run(&[rx("", "any.pcap.zst", "")]);
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("interface 3 has no name that would name a port: --rx PORT="), "{text}");

    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("router.conf");
    fs::write(&config, "ip link set wan up\n").unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_underpass"))
        .args(["replay", "--config"])
        .arg(&config)
        .args([rx("wan=", "any.pcap.zst", ",interface=2"), rx("wan=", "snap.pcap", "")])
        .arg("--out")
        .arg(directory.path())
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("         5 left out: sent by the captured machine, see --include-sent\n"),
        "{text}"
    );
    assert!(text.contains("        11 cut by a snap length: filled up with zeros\n"), "{text}");
}
