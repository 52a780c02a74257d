//! Random configurations and packets beside a real Linux: `tests/differential`, of which `CONTRIBUTING.md` says how it is
//! run and recorded. Here is the router's part: a case is configured line by line, whatever a line's tool says, its packets
//! go in at their times, and what came of it all is written down.
//!
//! [`recorded`] runs the cases that were recorded, beside what Linux answered. [`answer`] is the other half of
//! `tests/differential/differential.py`. [`by_af_xdp`] sends the recorded packets through devices.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

#[path = "differential/wire.rs"]
mod wire;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::io::BufReader;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use underpass_control::write_sysctl;

use serde::{Deserialize, Serialize};
use underpass_daemon::offline::Offline;
use underpass_engine::buffer::{HEADROOM, Packet, Pool, PortId};
use underpass_engine::drops::DropReason;
use underpass_engine::worker::{Burst, Worker};
use underpass_port::live::Driver;
use wire::Wire;

/// When the first packet comes, in nanoseconds. What fills with time is full by then.
const START: u64 = 1_000_000_000_000;
/// How long before it the router is configured.
const QUIET: u64 = 10_000_000_000;
/// How long packets are waited for after the last.
const END: u64 = 70_000_000_000;
/// Times in a row that a qdisc may let nothing go when it was to.
const PATIENCE: u32 = 100_000;

/// What is run at once: a tool with its options, and the lines of its `-batch`; or `sysctl`, and `NAME=VALUE` lines.
#[derive(Deserialize)]
struct Run(Vec<String>, String);

/// When it comes (microseconds), the number of its port, its bytes in hexadecimal.
#[derive(Deserialize)]
struct Input(u64, u16, String);

#[derive(Deserialize)]
struct Case {
    name: String,
    /// As `--port` has them.
    ports: Vec<String>,
    config: Vec<Run>,
    /// Those of the same time are one slot.
    packets: Vec<Input>,
    shows: Vec<Run>,
    /// What Linux answered, where it was recorded.
    linux: Option<Answer>,
}

/// What a run printed.
#[derive(Deserialize, Serialize, Default, PartialEq, Eq, Debug)]
struct Said {
    ok: bool,
    out: String,
    err: String,
}

#[derive(Deserialize, Serialize, Default)]
struct Answer {
    config: Vec<Said>,
    /// Frames: the number of the slot in which one left, its port, its bytes in hexadecimal. In a recording, `.` stands
    /// for what the router may choose.
    out: Vec<(usize, u16, String)>,
    /// What was shown before the first packet, and after the last. In a recording the word `*` stands for any.
    before: Vec<Said>,
    shows: Vec<Said>,
    /// Packets dropped by reason; Linux has none of these.
    #[serde(default)]
    drops: BTreeMap<String, u64>,
}

/// Linux ran the cases without fallback devices of tunnels (`linux.py`).
fn without_fallback_devices(router: &Offline) {
    write_sysctl(&mut router.router(), "core/fb_tunnels_only_for_init_net", b"2").unwrap();
}

fn run(router: &Offline, runs: &[Run]) -> Vec<Said> {
    runs.iter().map(|Run(words, text)| run_one(router, words, text)).collect()
}

fn run_one(router: &Offline, words: &[String], text: &str) -> Said {
    if words == ["sysctl"] {
        let mut said = Said { ok: true, ..Said::default() };
        for setting in text.lines() {
            let (name, value) = setting.split_once('=').unwrap_or((setting, ""));
            let path = name.replace('.', "/");
            let written = write_sysctl(
                &mut router.router(),
                path.strip_prefix("net/").unwrap_or(&path),
                value.as_bytes(),
            );
            if let Err(error) = written {
                said.ok = false;
                writeln!(said.err, "{name}: errno {}", error.errno).unwrap();
            }
        }
        return said;
    }
    // Programs of End.BPF have names below that directory.
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden");
    let words: Vec<&str> =
        ["env", "-C", golden].into_iter().chain(words.iter().map(String::as_str)).collect();
    let output = router.run_with(&words, text).unwrap();
    Said {
        ok: output.status.success(),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

/// How frames come to a worker, and what becomes of those that it sends.
trait Carrier {
    /// The slots of the worker, until it has done with them.
    fn pool(&mut self) -> Pool;

    /// A frame that comes in by a port.
    fn bring(&mut self, port: usize, frame: &[u8], pool: &mut Pool) -> Packet;

    /// The frames of packets that leave by a port.
    fn take_away(&mut self, port: usize, packets: Vec<Packet>, pool: &mut Pool) -> Vec<Vec<u8>>;
}

/// Frames that are copied to the worker's slots and from them.
struct Copied;

impl Carrier for Copied {
    fn pool(&mut self) -> Pool {
        Pool::with_slot_size(4096, HEADROOM + 4096)
    }

    fn bring(&mut self, _: usize, frame: &[u8], pool: &mut Pool) -> Packet {
        let mut packet = pool.take().unwrap();
        packet.set(HEADROOM, frame).unwrap();
        packet
    }

    fn take_away(&mut self, _: usize, packets: Vec<Packet>, pool: &mut Pool) -> Vec<Vec<u8>> {
        let frames = packets.iter().map(|packet| packet.bytes().to_vec()).collect();
        packets.into_iter().for_each(|packet| pool.give(packet));
        frames
    }
}

/// Configures a router, sends the packets through it.
fn take(case: &Case) -> Answer {
    take_by(case, &mut Copied, 1, |_, _| ())
}

/// The same by `carrier`, which gets each worker when it has done. Packets of the same two ends have the same worker.
fn take_by<C: Carrier>(
    case: &Case,
    carrier: &mut C,
    workers: usize,
    end: impl Fn(&mut C, &mut Worker),
) -> Answer {
    let ports: Vec<_> = case.ports.iter().map(|port| port.parse().unwrap()).collect();
    let (router, tables, readers) = Offline::new(&ports, workers).unwrap();
    without_fallback_devices(&router);
    let at = |now| router.router().stop_clock_at(now);
    // As long again before the first line of `tc`, as `linux.py` waits.
    let quiet = case.config.iter().position(|Run(words, _)| words[0] == "tc");
    at(START - QUIET - if quiet.is_some() { QUIET } else { 0 });
    let (links, traffic) = case.config.split_at(quiet.unwrap_or(case.config.len()));
    let mut answer = Answer { config: run(&router, links), ..Answer::default() };
    at(START - QUIET);
    answer.config.extend(run(&router, traffic));
    at(START);
    answer.before = run(&router, &case.shows);

    let counters: Vec<_> = readers.iter().map(|reader| Arc::clone(reader.counters())).collect();
    let mut workers: Vec<Worker> = readers
        .into_iter()
        .map(|reader| Worker::new(Arc::clone(&tables), reader, carrier.pool()))
        .map(|worker| if workers == 1 { worker.alone() } else { worker })
        .collect();
    let mut slots = case.packets.chunk_by(|a, b| a.0 == b.0).enumerate().peekable();
    while let Some((slot, packets)) = slots.next() {
        let now = START + packets[0].0 * 1000;
        for Input(_, port, frame) in packets {
            let frame = bytes(frame);
            let worker = of_flow(&frame, workers.len());
            let worker = &mut workers[worker];
            let mut burst = Burst::new();
            burst.push(carrier.bring(usize::from(*port), &frame, worker.pool()));
            worker.process(PortId(*port), &mut burst, now, None);
            collect(worker, carrier, ports.len(), slot, &mut answer);
        }
        let next = slots.peek().map_or(now + END, |(_, packets)| START + packets[0].0 * 1000);
        for worker in &mut workers {
            let mut in_vain = 0;
            while let Some(due) = worker.deadline().filter(|due| *due <= next && in_vain < PATIENCE) {
                worker.advance(due.max(now), None);
                let left = collect(worker, carrier, ports.len(), slot, &mut answer);
                in_vain = if left { 0 } else { in_vain + 1 };
            }
        }
    }
    at(START + case.packets.last().map_or(0, |Input(at, ..)| at * 1000) + END);
    answer.shows = run(&router, &case.shows);
    let dropped = |reason: &DropReason| counters.iter().map(|counters| counters.dropped(*reason)).sum();
    let drops = DropReason::ALL.iter().map(|reason| (reason.name().to_owned(), dropped(reason)));
    answer.drops = drops.filter(|(_, count)| *count > 0).collect();
    workers.iter_mut().for_each(|worker| end(carrier, worker));
    answer
}

/// Which of so many workers takes a frame: all of the same IP addresses have one, and so have all others.
fn of_flow(frame: &[u8], workers: usize) -> usize {
    let addresses = match frame.get(12..14) {
        Some([0x08, 0x00]) => frame.get(26..34),
        Some([0x86, 0xdd]) => frame.get(22..54),
        _ => None,
    };
    let sum: usize = addresses.unwrap_or_default().iter().map(|byte| usize::from(*byte)).sum();
    sum % workers
}

/// Notes what has left; whether anything has.
fn collect(
    worker: &mut Worker,
    carrier: &mut impl Carrier,
    ports: usize,
    slot: usize,
    answer: &mut Answer,
) -> bool {
    let before = answer.out.len();
    for port in 0..ports as u16 {
        let (pool, sent) = worker.pool_and_sent(PortId(port));
        let packets: Vec<Packet> = sent.collect();
        if !packets.is_empty() {
            let frames = carrier.take_away(usize::from(port), packets, pool);
            answer.out.extend(frames.iter().map(|frame| (slot, port, hex(frame))));
        }
    }
    answer.out.len() > before
}

/// For `differential.py`: the cases of the file that `UNDERPASS_DIFFERENTIAL` names, a line each; the answers go into
/// the same name with `.answers`, a line each.
#[test]
#[ignore = "differential.py runs it"]
fn answer() {
    let Ok(path) = std::env::var("UNDERPASS_DIFFERENTIAL") else { return };
    let mut answers = fs::File::create(format!("{path}.answers")).unwrap();
    for line in fs::read_to_string(&path).unwrap().lines() {
        let case: Case = serde_json::from_str(line).unwrap();
        let taken = std::panic::catch_unwind(|| take(&case));
        let text = taken.map_or_else(
            |_| format!("{{\"error\": \"the router panicked in {}\"}}", case.name),
            |answer| serde_json::to_string(&answer).unwrap(),
        );
        std::io::Write::write_all(&mut answers, format!("{text}\n").as_bytes()).unwrap();
    }
}

/// Whether `got` is `expected`, in which a `.` stands for any digit.
fn is_frame(expected: &str, got: &str) -> bool {
    expected.len() == got.len() && expected.bytes().zip(got.bytes()).all(|(e, g)| e == b'.' || e == g)
}

/// Whether each word of `got` is that of `expected`, in which a `*` stands for any word.
fn is_line(expected: &str, got: &str) -> bool {
    let (expected, got) = (without_ages(expected), without_ages(got));
    expected.len() == got.len() && expected.iter().zip(&got).all(|(e, g)| *e == "*" || e == g)
}

/// The words of a line, without how long ago actions were made and used, which is shown from a hundredth of a second on.
fn without_ages(line: &str) -> Vec<&str> {
    let mut words: Vec<_> = line.split_whitespace().collect();
    for name in ["installed", "used", "firstused"] {
        if let Some(at) = words.iter().position(|word| *word == name).filter(|at| at + 2 < words.len()) {
            words.drain(at..at + 3);
        }
    }
    words
}

/// Compares what was printed, run by run.
fn compare_said(wrong: &mut String, what: &str, runs: &[Run], expected: &[Said], got: &[Said]) {
    for ((Run(words, _), expected), got) in runs.iter().zip(expected).zip(got) {
        if expected.ok != got.ok {
            write!(wrong, "\n  {what}: {}: ok {} is expected", words.join(" "), expected.ok).unwrap();
        }
        for (expected, got) in [(&expected.out, &got.out), (&expected.err, &got.err)] {
            let (expected, got): (Vec<_>, Vec<_>) = (expected.lines().collect(), got.lines().collect());
            for n in 0..expected.len().max(got.len()) {
                let (expected, got) = (expected.get(n).unwrap_or(&""), got.get(n).unwrap_or(&""));
                if !is_line(expected, got) {
                    write!(wrong, "\n  {what}: {}:\n      - {expected}\n      + {got}", words.join(" "))
                        .unwrap();
                }
            }
        }
    }
}

/// What is wrong with a recorded case, a line each; empty if nothing is.
fn compare(case: &Case, linux: &Answer, ours: &Answer) -> String {
    let mut wrong = String::new();
    compare_said(&mut wrong, "config", &case.config, &linux.config, &ours.config);
    compare_said(&mut wrong, "before", &case.shows, &linux.before, &ours.before);
    compare_said(&mut wrong, "after", &case.shows, &linux.shows, &ours.shows);
    let slots = case.packets.chunk_by(|a, b| a.0 == b.0).count();
    for (slot, port) in (0..slots).flat_map(|slot| (0..3).map(move |port| (slot, port))) {
        let of = |answer: &Answer| -> Vec<String> {
            let there = answer.out.iter().filter(|(s, p, _)| (*s, *p) == (slot, port));
            there.map(|(_, _, frame)| frame.clone()).collect()
        };
        let (expected, got) = (of(linux), of(ours));
        if expected.len() != got.len() || !expected.iter().zip(&got).all(|(e, g)| is_frame(e, g)) {
            write!(wrong, "\n  slot {slot}, port {port}:").unwrap();
            expected.iter().for_each(|frame| write!(wrong, "\n      - {frame}").unwrap());
            got.iter().for_each(|frame| write!(wrong, "\n      + {frame}").unwrap());
        }
    }
    wrong
}

/// The cases of a file of `tests/differential/recorded`, a line each.
fn cases_of(file: &str) -> Vec<Case> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/differential/recorded").join(file);
    let mut text = Vec::new();
    lzma_rs::xz_decompress(&mut BufReader::new(fs::File::open(path).unwrap()), &mut text).unwrap();
    String::from_utf8(text).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Those without devices of layer 2.
fn recorded_cases() -> Vec<Case> {
    cases_of("cases.jsonl.xz")
}

#[test]
fn recorded() {
    compare_recorded(&recorded_cases(), 100);
}

/// VLAN devices, bridges, VXLAN and Geneve devices.
#[test]
fn recorded_of_layer2() {
    compare_recorded(&cases_of("layer2.jsonl.xz"), 40);
}

/// `UNDERPASS_DIFFERENTIAL_CASE=17` runs those alone whose name, their seed, begins so. There are `least` of them.
fn compare_recorded(cases: &[Case], least: usize) {
    let only = std::env::var("UNDERPASS_DIFFERENTIAL_CASE").unwrap_or_default();
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Relaxed)) {
                    if !case.name.starts_with(&only) {
                        continue;
                    }
                    let wrong = compare(case, case.linux.as_ref().unwrap(), &take(case));
                    if !wrong.is_empty() {
                        failed.lock().unwrap().push(format!("{}:{wrong}", case.name));
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap();
    assert!(failed.is_empty(), "{} of {} cases differ\n{}", failed.len(), cases.len(), failed.join("\n"));
    assert!(cases.len() >= least, "{} cases are recorded", cases.len());
}

/// The packets of half of the recorded cases by cable, through AF_XDP in one mode and the other: as if they had been copied.
#[test]
fn by_af_xdp() {
    if !underpass_daemon::testbed::permitted() {
        eprintln!("SKIPPED by_af_xdp: not root");
        return;
    }
    let mut wires = [Driver::Xdp, Driver::XdpGeneric].map(Wire::lay);
    for (n, case) in recorded_cases().iter().step_by(2).enumerate() {
        let (expected, got) = (take(case), take_by(case, &mut wires[n % 2], 1, Wire::reuse));
        let wrong = compare(case, &expected, &got);
        assert!(wrong.is_empty(), "{}:{wrong}", case.name);
        assert_eq!(expected.drops, got.drops, "{}", case.name);
    }
    for wire in wires {
        assert!(wire.carried > 500, "{} packets came by cable", wire.carried);
    }
}

/// Three workers send and count what one does. Each numbers the IPv4 packets that it makes for itself, and what they have of
/// a rate together is not Linux's to the nanosecond, so that cases with a rate are left out.
#[test]
fn by_several_workers() {
    let mut compared = 0;
    for case in recorded_cases().iter().skip(1).step_by(3) {
        if case.config.iter().any(|Run(_, text)| text.contains(" tbf ") || text.contains(" htb ")) {
            continue;
        }
        let (mut expected, mut got) = (take(case), take_by(case, &mut Copied, 3, |_, _| ()));
        compared += expected.out.len();
        [&mut expected, &mut got].into_iter().flat_map(|answer| &mut answer.out).for_each(without_number);
        let wrong = compare(case, &expected, &got);
        assert!(wrong.is_empty(), "{}:{wrong}", case.name);
        assert_eq!(expected.drops, got.drops, "{}", case.name);
    }
    assert!(compared > 300, "{compared} packets were compared");
}

/// Takes the identification of an IPv4 packet off a frame, and the checksum.
fn without_number((_, _, frame): &mut (usize, u16, String)) {
    if frame.get(24..29) == Some("08004") {
        frame.replace_range(36..40, "....");
        frame.replace_range(48..52, "....");
    }
}

/// A comparison that finds nothing would let everything pass.
#[test]
fn what_differs_is_found() {
    let case: Case = serde_json::from_str(
        r#"{"name": "1", "ports": ["p0"], "config": [[["ip"], ""]], "packets": [[0, 0, "00"]], "shows": []}"#,
    )
    .unwrap();
    let answer = |ok, err: &str, frame: &str| Answer {
        config: vec![Said { ok, out: String::new(), err: err.to_owned() }],
        out: vec![(0, 0, frame.to_owned())],
        ..Answer::default()
    };
    let linux = answer(false, "Error: * 5.", "00..12");
    assert_eq!(compare(&case, &linux, &answer(false, "Error: 3 5.", "003412")), "");
    for other in [
        answer(true, "Error: 3 5.", "003412"),
        answer(false, "Error: 3 6.", "003412"),
        answer(false, "Error: 3", "003412"),
        answer(false, "Error: 3 5.", "003413"),
        answer(false, "Error: 3 5.", "00341200"),
        Answer { out: Vec::new(), ..answer(false, "Error: 3 5.", "") },
    ] {
        assert_ne!(compare(&case, &linux, &other), "");
    }
}

/// A filter of a qdisc may send packets to its own device, again and again: it is not asked for ever.
#[test]
fn a_packet_that_is_redirected_to_its_own_qdisc_is_dropped() {
    let ip = "link set p0 up\nlink set p1 up\naddr add 10.0.0.1/24 dev p0\naddr add 10.0.1.1/24 dev p1\n\
              neigh add 10.0.0.2 lladdr 02:00:00:00:01:02 dev p0 nud permanent\n\
              route add 198.51.100.0/24 via 10.0.0.2\n";
    let tc = "qdisc add dev p0 root handle 1: htb\n\
              filter add dev p0 parent 1: protocol all pref 1 matchall action mirred egress redirect dev p0\n";
    let batch = |tool: &str| [tool, "-batch", "-"].map(str::to_owned).to_vec();
    let frame = "0200000000020200000002020800450000301234000040110248cb007107c633640600010002001ce4bc78787878\
                 78787878787878787878787878787878";
    let case = Case {
        name: "loop".to_owned(),
        ports: ["p0,mac=02:00:00:00:00:01", "p1,mac=02:00:00:00:00:02"].map(str::to_owned).to_vec(),
        config: vec![Run(batch("ip"), ip.to_owned()), Run(batch("tc"), tc.to_owned())],
        packets: vec![Input(0, 1, frame.to_owned())],
        shows: Vec::new(),
        linux: None,
    };
    let answer = take(&case);
    assert!(answer.config.iter().all(|said| said.ok), "{:?}", answer.config);
    assert_eq!((answer.out.len(), answer.drops.get("mirred-loop")), (0, Some(&1)));
}
