//! `underpass lab run` and `underpass lab evpn`, as a user starts them.

use std::{
    fs::{self, File},
    io::{Read, Write},
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::{Pid, User},
};

use crate::{
    net::{program, skip, turn},
    newer::Tools,
};

const PATIENCE: Duration = Duration::from_secs(90);

/// `underpass lab` with these arguments, whose temporary files are in a directory of its own.
pub fn lab(arguments: &[&str], temporary: &Path) -> Command {
    let mut command = Command::new(program());
    command.arg("lab").args(arguments).env("TMPDIR", temporary).stdin(Stdio::null());
    command
}

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(name)
}

/// What it printed, and what it said on standard error.
fn said(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

/// It succeeded, said so, and nothing is left of it.
fn holds(output: &Output, temporary: &Path, checks: usize) {
    let (printed, errors) = said(output);
    assert!(output.status.success(), "{printed}{errors}");
    assert!(printed.contains(&format!("All {checks} checks hold")), "{printed}");
    assert!(printed.contains("nothing is left"), "{printed}");
    assert_eq!(fs::read_dir(temporary).unwrap().count(), 0, "{printed}");
}

#[test]
fn a_network_of_a_file() {
    let Some(_turn) = turn("a_network_of_a_file") else { return };
    let temporary = tempfile::tempdir().unwrap();
    let file = example("lab-small/lab.yaml");
    let output = lab(&["run", file.to_str().unwrap()], temporary.path()).output().unwrap();
    holds(&output, temporary.path(), 3);
    let (printed, _) = said(&output);
    assert!(printed.contains("h1$ ping") && printed.contains("3 received"), "{printed}");
}

/// The scripts that `underpass lab l3vpn` and a Linux run, as a file.
#[test]
fn the_l3vpn_as_a_file() {
    let Some(_turn) = turn("the_l3vpn_as_a_file") else { return };
    let temporary = tempfile::tempdir().unwrap();
    let file = example("lab-l3vpn/lab.yaml");
    let output = lab(&["run", file.to_str().unwrap()], temporary.path()).output().unwrap();
    holds(&output, temporary.path(), 13);
}

#[test]
fn labels_as_a_file() {
    let Some(_turn) = turn("labels_as_a_file") else { return };
    let temporary = tempfile::tempdir().unwrap();
    let file = example("lab-mpls/lab.yaml");
    let output = lab(&["run", file.to_str().unwrap()], temporary.path()).output().unwrap();
    holds(&output, temporary.path(), 11);
}

#[test]
fn tunnels_in_udp_as_a_file() {
    let Some(_turn) = turn("tunnels_in_udp_as_a_file") else { return };
    let temporary = tempfile::tempdir().unwrap();
    let file = example("lab-fou/lab.yaml");
    let output = lab(&["run", file.to_str().unwrap()], temporary.path()).output().unwrap();
    holds(&output, temporary.path(), 9);
}

/// A host and a router, with other lines in the places of some.
fn small(exec: &str, check: &str) -> String {
    format!(
        "name: labtest{}
topology:
  nodes:
    h1:
      kind: host
      exec:
        - ip link set eth0 up
        - ip addr add 10.0.0.2/24 dev eth0
    r1:
      kind: router
      exec:
        - ip link set left up
        - {exec}
  links:
    - endpoints: [\"h1:eth0\", \"r1:left\"]
checks:
  - node: h1
    exec: {check}
    within: 15
",
        std::process::id()
    )
}

/// What it says of a file, where it must not succeed. It leaves nothing.
fn refused(text: &str) -> String {
    let directory = tempfile::tempdir().unwrap();
    let temporary = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("bad.yaml"), text).unwrap();
    let mut command = lab(&["run", "bad.yaml"], temporary.path());
    let output = command.current_dir(&directory).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert_eq!(fs::read_dir(&temporary).unwrap().count(), 0);
    said(&output).1
}

#[test]
fn an_error_names_its_line_of_the_file() {
    let Some(_turn) = turn("an_error_names_its_line_of_the_file") else { return };
    let address = "ip addr add 10.0.0.1/24 dev left";
    let ping = "ping -n -c 1 -W 1 10.0.0.1";
    for (text, wanted) in [
        (small(address, ping).replace("kind: host", "kind: hsot"), "bad.yaml:5: there is no kind 'hsot'"),
        (small(address, ping).replace("r1:left", "r2:left"), "bad.yaml:15: there is no node 'r2'"),
        (small(address, ping).replace("node: h1", "nod: h1"), "bad.yaml:17: unknown field `nod`"),
        (small(address, ping).replace("    r1:", "\tr1:"), "bad.yaml:8: "),
        // What ip says comes along.
        (small("ip addr add 10.0.0.1/240 dev left", ping), "bad.yaml:13: node r1: `ip addr add 10.0.0.1/240"),
        (small("ip addr add 10.0.0.1/240 dev left", ping), "any valid prefix is expected"),
        (
            small(address, "ping -n -c 1 -W 1 10.0.0.3").replace("within: 15", "within: 1"),
            "bad.yaml:18: check 1 of 1 does not hold after ",
        ),
    ] {
        let errors = refused(&text);
        assert!(errors.contains(wanted), "{wanted}: {errors}");
    }
}

/// Waits until a file has a text; what it has.
pub fn wait_for(path: &Path, text: &str) -> String {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let has = fs::read_to_string(path).unwrap();
        if has.contains(text) {
            return has;
        }
        assert!(Instant::now() < deadline, "never '{text}': {has}");
        thread::sleep(Duration::from_millis(50));
    }
}

/// A port that nobody has just now, nor the next.
pub fn two_ports() -> u16 {
    let bind = |port: u16| std::net::TcpListener::bind(("127.0.0.1", port));
    loop {
        let first = bind(0).unwrap();
        let port = first.local_addr().unwrap().port();
        if port.checked_add(1).is_some_and(|next| bind(next).is_ok()) {
            return port;
        }
    }
}

/// What a port of this machine answers.
fn get(port: u16, path: &str) -> String {
    let mut page = TcpStream::connect(("127.0.0.1", port)).unwrap();
    page.set_read_timeout(Some(PATIENCE)).unwrap();
    let (path, fields) = path.split_once(" HTTP/1.1").unwrap_or((path, ""));
    write!(page, "GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}{fields}\r\n\r\n").unwrap();
    let mut answer = String::new();
    page.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn a_network_that_is_kept_until_a_signal() {
    let Some(_turn) = turn("a_network_that_is_kept_until_a_signal") else { return };
    let directory = tempfile::tempdir().unwrap();
    let temporary = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let text = small("ip addr add 10.0.0.1/24 dev left", "ping -n -c 1 -W 1 10.0.0.1");
    fs::write(path("kept.yaml"), text).unwrap();
    let port = two_ports();
    let drawn = path("drawn.svg");
    let arguments =
        ["run", "kept.yaml", "--keep", "--web", &port.to_string(), "--draw", drawn.to_str().unwrap()];
    let mut child = lab(&arguments, temporary.path())
        .current_dir(&directory)
        .stdout(File::create(path("out")).unwrap())
        .spawn()
        .unwrap();
    let printed = wait_for(&path("out"), "enter-r1\n");
    let enter = |node: &str| {
        let line = printed.lines().find(|line| line.ends_with(&format!("/enter-{node}"))).unwrap();
        Command::new(line.trim())
    };
    let stats = enter("r1").args(["underpass", "stats"]).output().unwrap();
    assert!(stats.status.success() && said(&stats).0.contains("left"), "{stats:?}");
    let ping = enter("h1").args(["ping", "-n", "-c", "1", "-W", "2", "10.0.0.1"]).output().unwrap();
    assert!(ping.status.success(), "{ping:?}");

    for (port, path) in [(port, "/api/network.json"), (port + 1, "/api/state.json")] {
        let answer = get(port, path);
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("\"left\""), "{answer}");
    }
    // Another site's page may not have routers follow packets.
    let foreign = "/api/follow.json?from=h1&to=10.0.0.1 HTTP/1.1\r\nSec-Fetch-Site: cross-site";
    assert!(get(port, foreign).starts_with("HTTP/1.1 403"));
    let nobody = "/api/follow.json?from=nobody&to=10.0.0.1";
    assert!(get(port, nobody).contains("'nobody' is neither a node nor an address"));
    assert!(fs::read_to_string(drawn).unwrap().contains(">left: "));

    kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(fs::read_dir(&temporary).unwrap().count(), 0);
    let name = format!("/run/netns/labtest{}-r1", std::process::id());
    assert!(!Path::new(&name).exists());
}

/// Two leaves and a spine: bridged, routed, moved, withdrawn; over VXLAN, then over SRv6.
fn evpn(test: &str, usr: &Path, version: &str) {
    if User::from_name("frr").unwrap().is_none() {
        return skip(test, "there is no user frr (Debian: frr)");
    }
    let temporary = tempfile::tempdir().unwrap();
    let arguments = ["evpn", "--frr", usr.to_str().unwrap()];
    let output = lab(&arguments, temporary.path()).output().unwrap();
    let (printed, errors) = said(&output);
    assert!(printed.contains(version), "{printed}{errors}");
    for file in ["evpn.yaml", "srv6.yaml"] {
        let checks = fs::read_to_string(example("lab-evpn").join(file)).unwrap();
        let checks =
            checks.lines().skip_while(|line| *line != "checks:").filter(|line| line.contains("node: "));
        holds(&output, temporary.path(), checks.count());
    }
}

/// A small one of `lab scale`. Each PE has two ways to every other: groups of next hops.
#[test]
fn lab_scale() {
    const NAME: &str = "lab_scale";
    let Some(_turn) = turn(NAME) else { return };
    if Tools::there(NAME).is_none() || User::from_name("frr").unwrap().is_none() {
        return skip(NAME, "FRR 10 is not there (scripts/newer-tools.sh unpacks it)");
    }
    let temporary = tempfile::tempdir().unwrap();
    let output = lab(&["scale", "--routers", "6"], temporary.path()).output().unwrap();
    holds(&output, temporary.path(), 6);
    let (printed, _) = said(&output);
    for text in ["converged, all checks hold", "memory of 6 routers: ", "in 6 processes", "memory of FRR: "] {
        assert!(printed.contains(text), "{text}: {printed}");
    }
}

/// With FRR 10 where it is unpacked, else with the machine's own.
#[test]
fn lab_evpn() {
    const NAME: &str = "lab_evpn";
    let Some(_turn) = turn(NAME) else { return };
    if Tools::there(NAME).is_some() {
        return evpn(NAME, &program().ancestors().nth(2).unwrap().join("newer"), "FRR 10.");
    }
    if !Path::new("/usr/lib/frr/zebra").exists() {
        return skip(NAME, "FRR is not installed (Debian: frr)");
    }
    evpn(NAME, Path::new("/usr"), "FRR ");
}
