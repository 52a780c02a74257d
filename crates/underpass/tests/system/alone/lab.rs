//! `underpass lab`, and what is left when it ends.

use std::{
    fs,
    io::{BufRead, BufReader},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::net::{program, turn_alone};

/// Processes of the program under test, other than this test's own: its routers.
fn routers() -> Vec<i32> {
    let program = program().canonicalize().unwrap();
    let processes = fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let entry = entry.unwrap();
        let pid = entry.file_name().to_string_lossy().parse().ok()?;
        (fs::read_link(entry.path().join("exe")).ok()? == program).then_some(pid)
    });
    processes.collect()
}

/// What a daemon leaves where all of them are.
fn sockets() -> Vec<String> {
    let Ok(entries) = fs::read_dir("/run/underpass") else { return Vec::new() };
    let mut names: Vec<_> = entries.map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn new_sockets(before: &[String]) -> Vec<String> {
    sockets().into_iter().filter(|name| !before.contains(name)).collect()
}

#[test]
fn the_lab_runs_and_leaves_nothing() {
    let Some(_turn) = turn_alone("the_lab_runs_and_leaves_nothing") else { return };
    let before = sockets();
    let output = Command::new(program()).args(["lab", "l3vpn"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    for part in ["b2 received 0 packets", "End.DT46 vrftable 10", "action End ", "Torn down"] {
        // A neighbour solicitation or two may come to b2.
        let part = if part.starts_with("b2") { "b2 received " } else { part };
        assert!(said.contains(part), "no '{part}' in:\n{said}");
    }
    assert_eq!((routers(), new_sockets(&before)), (Vec::new(), Vec::new()));
}

/// Every request of a few short rounds is answered, and labels cost no multiple of plain forwarding.
#[test]
fn the_paths_of_the_commit() {
    let Some(_turn) = turn_alone("the_paths_of_the_commit") else { return };
    let before = sockets();
    let arguments = ["lab", "mpls", "--json", "--rounds", "3", "--time", "0.03"];
    let output = Command::new(program()).args(arguments).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    let report: serde_json::Value = serde_json::from_str(&said).unwrap();
    let mut seen = Vec::new();
    for case in report["cases"].as_array().unwrap() {
        seen.push((
            case["family"].as_str().unwrap().to_owned(),
            case["labels"].as_u64().unwrap(),
            case["nexthops"].as_u64().unwrap(),
        ));
        // Plain packets the kernel carries by itself, where it can; labelled ones are workers'.
        let least = if underpass_daemon::live::try_fast_path().is_ok() { 0.1 } else { 0.5 };
        assert!(case["ratio"].as_f64().unwrap() > least, "{case}");
        let latency = case["mpls"]["latency"].as_array().unwrap();
        assert!(latency.windows(2).all(|pair| pair[0].as_f64() <= pair[1].as_f64()), "{case}");
    }
    let wanted = ["IPv4", "IPv6"].into_iter().flat_map(|family| {
        [(1, 1), (2, 1), (1, 2), (2, 2)].map(|(labels, nexthops)| (family.to_owned(), labels, nexthops))
    });
    assert_eq!(seen, wanted.collect::<Vec<_>>());
    assert_eq!((routers(), new_sockets(&before)), (Vec::new(), Vec::new()));
}

/// Every tunnel of the series carries the same bytes there and back, and counts them; then streams and transactions.
#[test]
fn the_tunnels_of_the_series() {
    let Some(_turn) = turn_alone("the_tunnels_of_the_series") else { return };
    let before = sockets();
    let arguments = ["lab", "fou", "--json", "--rounds", "1", "--time", "0.04", "--connections", "8"];
    let output = Command::new(program()).args(arguments).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    let report: serde_json::Value = serde_json::from_str(&said).unwrap();
    let number = |value: &serde_json::Value| value.as_f64().unwrap();
    let flows = |case: &serde_json::Value| {
        assert!(number(&case["stream"]["mbits"]) > 0.0, "{case}");
        assert!(number(&case["transactions"]["rate"]) > 0.0, "{case}");
        let latency = case["transactions"]["latency"].as_array().unwrap();
        assert!(
            latency.len() == 4 && latency.windows(2).all(|pair| number(&pair[0]) <= number(&pair[1])),
            "{case}"
        );
    };
    let (mut seen, mut hashes) = (Vec::new(), Vec::new());
    for case in report["tunnels"].as_array().unwrap() {
        flows(case);
        assert!(number(&case["cut"]["mbits"]) > 0.0, "{case}");
        let (carried, counted) = (&case["carried"], case["counted"].as_array().unwrap());
        assert_eq!(carried["bytes"], 1 << 20, "{case}");
        assert!(counted.len() == 4 && counted.iter().all(|bytes| number(bytes) > 1e6), "{case}");
        hashes.push(carried["sha256"].as_str().unwrap().to_owned());
        seen.push(["tunnel", "encapsulation"].map(|key| case[key].as_str().unwrap().to_owned()));
    }
    // SHA-256 of a mebibyte of SplitMix64 from 1 on, the low byte of a word first.
    assert_eq!(hashes, [HASH; 9]);
    let wanted = ["GRE", "IPIP", "SIT"].into_iter().flat_map(|tunnel| {
        ["fou-csum", "fou", "none"].map(|encapsulation| [tunnel, encapsulation].map(str::to_owned))
    });
    assert_eq!(seen, wanted.collect::<Vec<_>>());
    let references = report["references"].as_array().unwrap();
    references.iter().for_each(flows);
    assert_eq!((references.len(), report["goals"].as_array().unwrap().len()), (3, 3));
    assert_eq!((routers(), new_sockets(&before)), (Vec::new(), Vec::new()));
}

const HASH: &str = "85b66b3a5816d686deb42f2d2473d9a7121ceb75c822b838f958c76ca86ed8ea";

/// What is limited far above the load still comes through, by each of the ways to limit it.
#[test]
fn limits_of_the_experiment_let_packets_through() {
    let Some(_turn) = turn_alone("limits_of_the_experiment_let_packets_through") else { return };
    let arguments = ["lab", "police", "--json", "--rounds", "1", "--time", "0.04", "--no-accuracy"];
    let output = Command::new(program()).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let limits = report["limits"].as_array().unwrap();
    let found: Vec<_> =
        limits.iter().map(|limit| (limit["router"].as_str(), limit["limit"].as_str())).collect();
    let [none, police, ifb, ingress] =
        ["no limit", "police at ingress", "ifb + HTB", "HTB at ingress, no ifb"].map(Some);
    let (ours, kernel) = (Some("Underpass"), Some("this kernel"));
    assert_eq!(
        found,
        [(ours, none), (ours, police), (ours, ifb), (ours, ingress), (kernel, none), (kernel, ifb)]
    );
    for limit in limits {
        assert!(limit["packets"].as_f64().unwrap() > 0.0, "{limit}");
    }
}

/// A short run of what `make soak` does for an hour: traffic, changes, a killed router.
#[test]
fn everything_at_once_for_a_while() {
    let Some(_turn) = turn_alone("everything_at_once_for_a_while") else { return };
    let before = sockets();
    let arguments = ["lab", "soak", "--minutes", "0.2", "--rate", "1500"];
    let output = Command::new(program()).args(arguments).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("router killed") && said.ends_with("all held\n"), "{said}");
    assert_eq!((routers(), new_sockets(&before)), (Vec::new(), Vec::new()));
}

/// However it ends: by a signal in the middle, even one that it cannot catch.
#[test]
fn an_interrupted_lab_leaves_nothing() {
    let Some(_turn) = turn_alone("an_interrupted_lab_leaves_nothing") else { return };
    let before = sockets();
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGKILL] {
        let mut lab = Command::new(program()).args(["lab", "l3vpn"]).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(lab.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().starts_with("pe2: ")), "{signal}");
        assert!(routers().len() >= 4, "{signal}: the lab and three routers");
        kill(Pid::from_raw(lab.id() as i32), signal).unwrap();
        lab.wait().unwrap();
        let deadline = Instant::now() + Duration::from_secs(10);
        while !(routers().is_empty() && new_sockets(&before).is_empty()) && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(20));
        }
        assert_eq!((routers(), new_sockets(&before)), (Vec::new(), Vec::new()), "{signal}");
    }
}

#[test]
fn without_root_it_says_so() {
    let Some(_turn) = turn_alone("without_root_it_says_so") else { return };
    // A user may not be able to read the build directory: the file is opened here and run by descriptor.
    let directory = tempfile::tempdir().unwrap();
    let copy = directory.path().join("underpass");
    fs::copy(program(), &copy).unwrap();
    let open = <fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o755);
    fs::set_permissions(directory.path(), open).unwrap();
    let mut command = Command::new(&copy);
    std::os::unix::process::CommandExt::uid(&mut command, 65534);
    let output = command.args(["lab", "l3vpn"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("run it as root"), "{said}");
}
