//! The golden packets of `tests/golden`: what a real Linux sent for each input, or what the RFC wants
//! where Linux is wrong. `tests/golden/README.md` tells what the files of a case hold, and how they are
//! recorded.
//!
//! Each case is configured by the real `ip`. Its packets go in one at a time, so that a difference
//! names the input that caused it; then all of them again in one burst.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

mod carried;
mod fields;
mod newer;
mod noise;

use noise::{
    clear_time, flow, is_noise, is_of_neighbours, is_outer, is_router_made, without_flow_label,
    without_own_choices,
};
use std::fmt::Write;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use underpass_control::write_sysctl;

use underpass_daemon::offline::Offline;
use underpass_engine::buffer::{HEADROOM, LARGE_SLOT, MARGIN, Pool, PortId, SLOT};
use underpass_engine::worker::{Burst, Worker};
use underpass_port::pcap::Reader;

const PORTS: [&str; 2] = ["p0,mac=02:00:00:00:00:01", "p1,mac=02:00:00:00:00:02"];
const SECOND: u64 = 1_000_000_000;

/// A tool, and how `ip` is told of a family.
type Tool = &'static [&'static str];

/// A frame, and the number of the input that it is or that caused it.
type Frame = (u64, Vec<u8>);

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden")
}

fn pool() -> Pool {
    Pool::with_slot_size(128, HEADROOM + 4096)
}

/// The same with slots for packets that are put together from fragments, and for the fragments that are made of them.
fn pool_for_long() -> Pool {
    let region = |slot: usize, count: usize| Vec::leak(vec![0; (MARGIN + slot) * count]);
    Pool::over(region(SLOT, 256), region(LARGE_SLOT, 2))
}

/// The frames of a capture; none if there is no such file.
fn read(path: &Path) -> Vec<Frame> {
    if !path.exists() {
        return Vec::new();
    }
    let (mut reader, mut pool, mut frames) = (Reader::open(path).unwrap(), pool(), Vec::new());
    while let Some((time, packet)) = reader.receive(&mut pool).unwrap() {
        frames.push((time / SECOND, packet.bytes().to_vec()));
        pool.give(packet);
    }
    frames
}

/// One directory of `tests/golden`.
struct Case {
    directory: PathBuf,
    name: String,
    /// What each input is, from the comments of the configuration.
    labels: Vec<String>,
    /// What becomes of a packet depends on those before it.
    remembers: bool,
    /// ARP and neighbour discovery are part of its output.
    neighbours: bool,
    /// It needs BPF programs, which `ip` loads into the kernel.
    programs: bool,
    /// It needs tools of a newer Debian.
    newer: bool,
    /// By number; the port that each comes in by.
    inputs: Vec<(PortId, Frame)>,
    /// By port.
    outputs: [Vec<Frame>; 2],
}

impl Case {
    fn name_of(directory: &Path) -> String {
        directory.strip_prefix(root()).unwrap().display().to_string()
    }

    fn read(directory: &Path) -> Self {
        let config = fs::read_to_string(directory.join("config")).unwrap();
        let mut inputs: Vec<_> = ["in.pcap", "in-p1.pcap"]
            .iter()
            .zip((0..).map(PortId))
            .flat_map(|(file, port)| read(&directory.join(file)).into_iter().map(move |frame| (port, frame)))
            .collect();
        inputs.sort_by_key(|(_, (number, _))| *number);
        Self {
            name: Self::name_of(directory),
            labels: config
                .lines()
                .filter_map(|line| line.strip_prefix("# in "))
                .filter_map(|line| Some(line.split_once(": ")?.1.to_owned()))
                .collect(),
            programs: config.contains("End.BPF"),
            newer: config.contains("\n# The tools are those of scripts/newer-tools.sh.\n"),
            remembers: config.contains("bpf/count.o")
                || config.contains("\n# An input depends on those before it.\n"),
            neighbours: config.contains("\n# ARP and neighbour discovery are part of the output.\n"),
            inputs,
            outputs: ["p0", "p1"].map(|port| {
                let frames = read(&directory.join(format!("out-{port}.pcap")));
                frames.into_iter().map(|(number, frame)| (number, without_own_choices(frame))).collect()
            }),
            directory: directory.to_owned(),
        }
    }

    /// When an input comes: a second after the one before, or where policers count, a microsecond, and the first as soon as
    /// all is configured.
    fn time(&self, number: u64) -> u64 {
        if self.name.starts_with("qos/") { (number + 1) * 1000 } else { number * SECOND }
    }

    fn label(&self, number: u64) -> &str {
        usize::try_from(number).ok().and_then(|n| self.labels.get(n)).map_or("", String::as_str)
    }

    /// The lines of `config`: those of `sysctl`, and those of `ip`, `tc` and `bridge`, run by their `-batch`, which takes options
    /// only before it: a batch for each run of lines of one tool and family.
    fn configure(&self, router: &Offline) -> Result<(), String> {
        let newer = self.newer.then(|| newer::Tools::there(&self.name)).flatten();
        let config = fs::read_to_string(self.directory.join("config")).unwrap();
        let mut batches: Vec<(Tool, String)> = Vec::new();
        for line in config.lines().filter(|line| !line.starts_with('#')) {
            if let Some(setting) = line.strip_prefix("sysctl -qw ") {
                run_batches(router, std::mem::take(&mut batches), newer.as_ref())?;
                // Not by the tool: the kernel of this machine may have the variable too.
                let (name, value) = setting.split_once('=').unwrap();
                let path = name.replace('.', "/");
                let path = path.strip_prefix("net/").ok_or_else(|| format!("{line}: not below net"))?;
                let written = write_sysctl(&mut router.router(), path, value.as_bytes());
                written.map_err(|error| format!("{line}: errno {}", error.errno))?;
                continue;
            }
            // What it reads from its input follows it.
            let with_input = line.strip_suffix('\'').map(|line| line.replacen(" <<< '", "\n", 1));
            let line = with_input.as_deref().unwrap_or(line);
            let tools: [(&str, Tool); 5] = [
                ("tc ", &["tc"]),
                ("bridge ", &["bridge"]),
                ("ip -6 ", &["ip", "-6"]),
                ("ip -f mpls ", &["ip", "-f", "mpls"]),
                ("ip ", &["ip"]),
            ];
            let of = |(prefix, tool)| Some((tool, line.strip_prefix(prefix)?));
            let (tool, words) = tools.into_iter().find_map(of).unwrap();
            match batches.last_mut() {
                Some((same, batch)) if *same == tool => writeln!(batch, "{words}").unwrap(),
                _ => batches.push((tool, format!("{words}\n"))),
            }
        }
        run_batches(router, batches, newer.as_ref())
    }

    /// What is wrong, a line each; empty if nothing is.
    fn run(&self) -> String {
        if self.programs && fs::metadata("/proc/self").unwrap().uid() != 0 {
            eprintln!("{}: skipped, only root can load BPF programs", self.name);
            return String::new();
        }
        let ports = PORTS.map(|port| port.parse().unwrap());
        let (router, tables, mut readers) = Offline::new(&ports, 1).unwrap();
        if let Err(refused) = self.configure(&router) {
            return format!("\n  {refused}");
        }
        let pool = if self.remembers { pool_for_long() } else { pool() };
        let mut worker: Worker = Worker::new(tables, readers.remove(0), pool);
        let mut wrong = String::new();
        for (port, (number, frame)) in &self.inputs {
            let frames = [(*port, frame)];
            let sent = send(&mut worker, &frames, self.time(*number), self.neighbours);
            for (name, (sent, expected)) in ["p0", "p1"].iter().zip(sent.iter().zip(&self.outputs)) {
                let expected = expected.iter().filter(|(cause, _)| cause == number).map(|(_, frame)| frame);
                let place = format!("in {number} ({}), {name}", self.label(*number));
                let (mut expected, mut sent) = (expected.cloned().collect::<Vec<_>>(), sent.clone());
                if self.name.starts_with("qos/") || self.name.starts_with("bridge/") {
                    // Which of a packet and its copy goes first is of no account.
                    expected.sort();
                    sent.sort();
                }
                compare(&mut wrong, &place, &expected, &sent);
            }
        }
        if let Ok(expected) = fs::read_to_string(self.directory.join("counters")) {
            let output = router.run_line("ip -6 -s route show").unwrap();
            compare_counters(&mut wrong, &expected, &String::from_utf8_lossy(&output.stdout));
        }
        if let Ok(expected) = fs::read_to_string(self.directory.join("links")) {
            let output = router.run_line("ip -j -s -s link show").unwrap();
            compare_links(&mut wrong, &expected, &output.stdout);
        }
        if let Ok(expected) = fs::read_to_string(self.directory.join("shows")) {
            compare_shown(&mut wrong, &expected, &router);
        }
        if wrong.is_empty() && !self.remembers {
            self.run_bursts(&mut worker, &mut wrong);
        }
        wrong
    }

    /// The same inputs again, as many in a burst as come by one port one after the other. What a port
    /// sends keeps its order within each flow.
    fn run_bursts(&self, worker: &mut Worker, wrong: &mut String) {
        let mut sent = [Vec::new(), Vec::new()];
        for (n, inputs) in self.inputs.chunk_by(|(a, _), (b, _)| a == b).enumerate() {
            let frames: Vec<_> = inputs.iter().map(|(port, (_, frame))| (*port, frame)).collect();
            let burst = send(worker, &frames, SECOND * 1000 * (n as u64 + 1), self.neighbours);
            for (all, part) in sent.iter_mut().zip(burst) {
                all.extend(part);
            }
        }
        for (name, (sent, expected)) in ["p0", "p1"].iter().zip(sent.iter().zip(&self.outputs)) {
            let mut expected: Vec<_> = expected.iter().map(|(_, frame)| frame.clone()).collect();
            let mut sent = sent.clone();
            // A burst is one moment.
            expected.iter_mut().chain(&mut sent).for_each(|frame| clear_time(frame));
            // Within a tunnel there may be many flows.
            let tunnels = self.name.starts_with("tunnel/");
            for frame in expected.iter_mut().chain(&mut sent).filter(|frame| tunnels && is_outer(frame)) {
                if frame[12] == 0x86 {
                    frame[15] &= 0xf0;
                    frame[16..18].fill(0);
                }
            }
            let flow = |frame: &Vec<u8>| if tunnels { frame.clone() } else { flow(frame) };
            expected.sort_by_key(flow);
            sent.sort_by_key(flow);
            // ICMP errors are limited, and a burst is one moment.
            if expected.iter().filter(|frame| is_router_made(frame)).count() < 2 {
                compare(wrong, &format!("all in one burst, {name}"), &expected, &sent);
            }
        }
    }
}

/// Runs batches of a tool, of this machine's or of the newer ones.
fn run_batches(
    router: &Offline,
    batches: Vec<(Tool, String)>,
    newer: Option<&newer::Tools>,
) -> Result<(), String> {
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    for (tool, batch) in batches {
        fs::write(path, &batch).unwrap();
        let root = root();
        // Where configurations find their BPF programs; and without a terminal, so that the secret of an HMAC is
        // read from the batch.
        let mut words = vec!["env", "-C", root.to_str().unwrap(), "setsid", "-w"];
        if let Some(newer) = newer {
            words.push("unshare");
            words.extend(newer.words());
        }
        words.extend(tool);
        words.extend(["-batch", path]);
        let output = router.run(&words).unwrap();
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(format!("{tool:?}: {}\n    {}", said.trim(), batch.trim().replace('\n', "\n    ")));
        }
    }
    Ok(())
}

/// Compares what `tc` shows, command by command, without how long ago actions were made and used.
fn compare_shown(wrong: &mut String, expected: &str, router: &Offline) {
    for part in expected.split("$ ").skip(1) {
        let (command, expected) = part.split_once('\n').unwrap();
        let output = router.run_line(command).unwrap();
        let shown = String::from_utf8_lossy(&output.stdout);
        let mut got = String::new();
        for line in shown.lines() {
            // Tokens grow with time.
            let line = if line.starts_with(" tokens: ") { " tokens: N ctokens: N" } else { line };
            // So does what is left until a flow may send.
            let line = line.split(" next_packet_delay ").next().unwrap_or(line);
            // What a cake shows of time, and of Linux's memory.
            let line = match line.trim_start().split_once("_delay ") {
                Some((name, _)) if name.len() == 2 => format!("  {name}_delay"),
                _ => line.to_owned(),
            };
            let line = match line.split_once("memory used: ") {
                Some((before, after)) => {
                    let rest = after.split_once(' ').map_or("", |(_, rest)| rest);
                    format!("{before}memory used: N {rest}")
                }
                None => line,
            };
            let mut words: Vec<&str> = line.split(' ').collect();
            // Ages are shown from a hundredth of a second on.
            for name in ["installed", "used", "firstused"] {
                if let Some(at) =
                    words.iter().position(|word| *word == name).filter(|at| at + 2 < words.len())
                {
                    words.drain(at..at + 3);
                }
            }
            writeln!(got, "{}", words.join(" ").trim_end()).unwrap();
        }
        if got.trim_end() != expected.trim_end() {
            write!(wrong, "\n  {command}:").unwrap();
            let (mut expected, mut got) = (expected.lines(), got.lines());
            loop {
                match (expected.next(), got.next()) {
                    (None, None) => break,
                    (expected, got) if expected == got => {}
                    (expected, got) => {
                        let text = |line: Option<&str>| line.unwrap_or("").trim_end().to_owned();
                        write!(wrong, "\n      - {}\n      + {}", text(expected), text(got)).unwrap();
                    }
                }
            }
        }
    }
}

/// Sends one burst in by the port of its frames; what each port sent, without noise, but with ARP and neighbour discovery if
/// these are to be seen.
fn send(
    worker: &mut Worker,
    frames: &[(PortId, &Vec<u8>)],
    time: u64,
    neighbours: bool,
) -> [Vec<Vec<u8>>; 2] {
    let mut burst = Burst::new();
    let Some((port, _)) = frames.first() else { return [Vec::new(), Vec::new()] };
    for (_, frame) in frames {
        let mut packet = worker.pool().take_for(frame.len()).unwrap();
        packet.bytes_mut().copy_from_slice(frame);
        burst.push(packet);
    }
    worker.process(*port, &mut burst, time, None);
    worker.advance(time, None);
    [PortId(0), PortId(1)].map(|port| {
        let sent: Vec<_> = worker.sent(port).collect();
        let frames = sent.iter().map(|packet| packet.bytes().to_vec());
        let frames = frames.filter(|frame| !is_noise(frame) || neighbours && is_of_neighbours(frame));
        let frames = frames.map(without_own_choices).collect();
        sent.into_iter().for_each(|packet| worker.pool().give(packet));
        frames
    })
}

fn compare(wrong: &mut String, place: &str, expected: &[Vec<u8>], got: &[Vec<u8>]) {
    if expected.len() != got.len() {
        write!(wrong, "\n  {place}: {} frames are expected, {} came", expected.len(), got.len()).unwrap();
    }
    for n in 0..expected.len().max(got.len()) {
        match (expected.get(n), got.get(n)) {
            (Some(expected), Some(got))
                if expected != got && *expected != without_flow_label(expected, got) =>
            {
                write!(wrong, "\n  {place}: frame {n} differs:{}", fields::difference(expected, got))
                    .unwrap();
            }
            (Some(missing), None) => {
                write!(wrong, "\n  {place}: frame {n} is missing:{}", fields::difference(missing, &[]))
                    .unwrap();
            }
            (None, Some(extra)) => {
                write!(wrong, "\n  {place}: frame {n} is extra:{}", fields::difference(&[], extra)).unwrap();
            }
            _ => {}
        }
    }
}

/// Compares the lines of SIDs: everything that `ip` prints about them.
fn compare_counters(wrong: &mut String, expected: &str, got: &str) {
    let sids = |text: &str| {
        text.lines().filter(|line| line.contains(" seg6local ")).map(str::to_owned).collect::<Vec<_>>()
    };
    let (expected, got) = (sids(expected), sids(got));
    if expected != got {
        write!(
            wrong,
            "\n  counters:\n      - {}\n      + {}",
            expected.join("\n      - "),
            got.join("\n      + ")
        )
        .unwrap();
    }
}

/// The counters of a link that there are; `record.py` has more of Linux's.
const STATISTICS: [&str; 4] = ["packets", "bytes", "errors", "dropped"];

/// Compares what the links that `expected` names have counted.
fn compare_links(wrong: &mut String, expected: &str, shown: &[u8]) {
    let shown: serde_json::Value = serde_json::from_slice(shown).unwrap();
    for expected in expected.lines() {
        let words: Vec<&str> = expected.split(' ').collect();
        let link = shown.as_array().unwrap().iter().find(|link| link["ifname"] == words[0]);
        for (way, what) in ["rx", "tx"].into_iter().flat_map(|way| STATISTICS.map(|what| (way, what))) {
            let name = format!("{way}_{what}");
            let at = words.iter().position(|word| *word == name);
            let expected = at.map_or(0, |at| words[at + 1].parse().unwrap());
            let got = link.and_then(|link| link["stats64"][way][what].as_u64());
            if got != Some(expected) {
                write!(wrong, "\n  {}: {name}: {expected} expected, {got:?} shown", words[0]).unwrap();
            }
        }
    }
}

/// Runs every case of a group; `UNDERPASS_GOLDEN=endpoint/dx` only those whose name starts so.
fn group(name: &str) {
    let only = std::env::var("UNDERPASS_GOLDEN").unwrap_or_default();
    let mut directories = Vec::new();
    find(&root().join(name), &mut directories);
    directories.sort();
    assert!(!directories.is_empty(), "there are no cases in {name}");
    directories.retain(|directory| Case::name_of(directory).starts_with(&only));
    let part = directories.len().div_ceil(PARTS).max(1);
    let parts: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            directories.chunks(part).map(|part| scope.spawn(|| run_part(name, part))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let (count, failed) = (directories.len(), parts.concat());
    println!("{name}: {count} cases, {} differ", failed.len());
    assert!(failed.is_empty(), "{} of {count} cases differ\n{}", failed.len(), failed.join("\n"));
}

/// Parts of a group that are run at once.
const PARTS: usize = 4;

/// What differs of some cases of a group.
fn run_part(name: &str, directories: &[PathBuf]) -> Vec<String> {
    let (mut ran, mut failed) = (Vec::new(), Vec::new());
    for directory in directories {
        let case = Case::read(directory);
        if case.newer && newer::Tools::there(&case.name).is_none() {
            continue;
        }
        let wrong = case.run();
        println!("{} {}", if wrong.is_empty() { "ok  " } else { "FAIL" }, case.name);
        if !wrong.is_empty() {
            failed.push(format!("{}:{wrong}", case.name));
        }
        ran.push(case);
    }
    failed.extend(carried::run(name, ran));
    failed
}

/// Directories below `directory` that hold a case.
fn find(directory: &Path, found: &mut Vec<PathBuf>) {
    if directory.join("config").exists() {
        found.push(directory.to_owned());
        return;
    }
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            find(&path, found);
        }
    }
}

#[test]
fn endpoint() {
    group("endpoint");
}

#[test]
fn headend() {
    group("headend");
}

#[test]
fn hmac() {
    group("hmac");
}

#[test]
fn mpls() {
    group("mpls");
}

#[test]
fn bursts() {
    group("bursts");
}

#[test]
fn ip() {
    group("ip");
}

#[test]
fn leak() {
    group("leak");
}

#[test]
fn rpl() {
    group("rpl");
}

#[test]
fn segments() {
    group("segments");
}

#[test]
fn tunnel() {
    group("tunnel");
}

#[test]
fn bridge() {
    group("bridge");
}

#[test]
fn vlan() {
    group("vlan");
}

#[test]
fn ioam() {
    group("ioam");
}

#[test]
fn qos() {
    group("qos");
}

#[test]
fn errors() {
    group("errors");
}

/// Where Linux is wrong, or silent: what the RFC wants.
#[test]
fn differs_from_linux() {
    group("differs");
}

/// Every directory with cases has a test above.
#[test]
fn every_group_is_run() {
    let source = include_str!("golden.rs");
    for entry in std::fs::read_dir(root()).unwrap() {
        let (name, path) = entry.map(|entry| (entry.file_name(), entry.path())).unwrap();
        let cases = std::fs::read_dir(path).into_iter().flatten();
        if cases.filter_map(Result::ok).any(|case| case.path().join("config").exists()) {
            let test = format!("    group({:?});\n", name.to_str().unwrap());
            assert!(source.contains(&test), "{name:?} has cases and no test");
        }
    }
}

/// Every length of a segment list, and every size of a burst, is there.
#[test]
fn coverage() {
    for mode in ["encap", "encap-red", "inline", "l2encap", "l2encap-red"] {
        let case = Case::read(&root().join(format!("headend/{mode}-lists")));
        assert_eq!(case.outputs[1].len(), 31, "{mode}");
    }
    for name in ["near", "far"] {
        let case = Case::read(&root().join(format!("rpl/insert-lists-{name}")));
        assert_eq!(case.outputs[1].len(), 31, "{name}");
    }
    for size in 0..10 {
        for name in ["end", "encap"] {
            let case = Case::read(&root().join(format!("bursts/{name}-{size}")));
            assert_eq!((case.inputs.len(), case.outputs[1].len()), (size, size), "{name}");
        }
    }
}
