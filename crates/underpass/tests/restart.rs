//! What a router is configured to be survives it: `run --config`, `save`, `run --state`.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

mod daemon;

use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::thread;
use std::time::{Duration, Instant};

use daemon::{Daemon, UNDERPASS};
use nix::sys::signal::Signal;

const CONFIG: &str = "\
ip link add name tun1 type gre remote 192.0.2.7 local 192.0.2.1 ikey 7 okey 8
ip link set dev p0 up
ip link set dev tun1 up
ip addr add 192.0.2.1/24 dev p0
ip sr hmac set 7 sha256 <<< 'a secret'
sysctl -qw net/mpls/platform_labels=100
ip -6 route add fc00:a::1/128 encap seg6local action End count dev p0
ip route add 203.0.113.0/24 via 192.0.2.2
ip -f mpls route add 20 via inet 192.0.2.2
tc qdisc add dev p0 clsact
tc filter add dev p0 ingress protocol ip prio 1 flower ip_proto udp action drop
";

fn save(router: &Daemon) -> Output {
    Command::new(UNDERPASS).arg("save").arg("--socket").arg(router.socket()).output().unwrap()
}

fn saved(router: &Daemon) -> String {
    let output = save(router);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn wait(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what} takes too long");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_configuration_is_run_before_the_router_is_ready_and_saved_again() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("router.conf");
    fs::write(&file, CONFIG).unwrap();
    let first = Daemon::start_with(&["--config", file.to_str().unwrap()], &["p0"]);
    assert!(first.succeeds("ip route show").contains("203.0.113.0/24 via 192.0.2.2 dev p0"));
    let lines = saved(&first);
    for line in ["tun1", "fc00:a::1/128", "<<< 'a secret'", "platform_labels=100", "route add 20 ", "flower"]
    {
        assert!(lines.contains(line), "{line} is not in\n{lines}");
    }
    fs::write(&file, &lines).unwrap();
    let second = Daemon::start_with(&["--config", file.to_str().unwrap()], &["p0"]);
    assert_eq!(saved(&second), lines);
    assert_eq!(second.end(Signal::SIGTERM), 0);
}

/// What `underpass run --offline` with this configuration says, which does not start.
fn refused(config: &Path) -> String {
    let directory = tempfile::tempdir().unwrap();
    let mut command = Command::new(UNDERPASS);
    command.args(["run", "--offline", "--port", "p0", "--socket"]).arg(directory.path().join("x.sock"));
    let output = command.arg("--config").arg(config).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(output.stdout.is_empty(), "it says that it is ready: {output:?}");
    // It leaves nothing behind.
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn a_line_that_fails_keeps_the_router_from_starting() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("router.conf");
    let name = file.display();
    fs::write(&file, "ip link set p0 up\n\nip route add 10.0.0.0/8 via 192.0.2.2\nip link set p0 down\n")
        .unwrap();
    let expected = "ip route add 10.0.0.0/8 via 192.0.2.2: Error: Nexthop has invalid gateway.";
    assert_eq!(refused(&file), format!("underpass: {name}:3: {expected}\n"));
    fs::write(&file, "ip link set p0 up\nreboot\n").unwrap();
    let expected = "'reboot' is none of the tools that may run here: ip, tc, bridge, sysctl, underpass";
    assert_eq!(refused(&file), format!("underpass: {name}:2: {expected}\n"));
    fs::write(&file, "sysctl -w net.mpls.platform_labels=-1\n").unwrap();
    let expected = "sysctl: setting key \"net.mpls.platform_labels\": Invalid argument";
    assert_eq!(refused(&file), format!("underpass: {name}:1: {expected}\n"));
    let missing = directory.path().join("missing.conf");
    let expected = format!("underpass: {}: No such file or directory (os error 2)\n", missing.display());
    assert_eq!(refused(&missing), expected);
}

#[test]
fn what_is_configured_survives_a_kill() {
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().join("state");
    let arguments = ["--state", state.to_str().unwrap()];
    let file = directory.path().join("router.conf");
    fs::write(&file, CONFIG).unwrap();
    let first = Daemon::start_with(&["--state", arguments[1], "--config", file.to_str().unwrap()], &["p0"]);
    let kept = || fs::read_to_string(state.join("state.conf")).unwrap_or_default();
    wait("the first state", || kept().contains("203.0.113.0/24"));
    first.succeeds("ip route add 198.51.100.0/24 via 192.0.2.3");
    first.succeeds("ip link del tun1");
    // Indices that the lines do not give by themselves.
    for line in
        ["add d1 type dummy", "add d0 index 77 type dummy", "add tun7 type ipip remote 192.0.2.9", "del d1"]
    {
        first.succeeds(&format!("ip link {line}"));
    }
    let shown = |router: &Daemon| {
        let all = router.succeeds("ip -o link show");
        let index_and_name = |line: &str| line.splitn(3, ':').take(2).collect::<String>();
        all.lines().map(index_and_name).collect::<Vec<_>>()
    };
    let (lines, links) = (saved(&first), shown(&first));
    wait("the second state", || kept() == lines);
    assert_eq!(first.end(Signal::SIGKILL), 137);
    // The lines of --config are not run again.
    let second = Daemon::start_with(&["--state", arguments[1], "--config", "/nonexistent"], &["p0"]);
    assert_eq!(saved(&second), lines);
    assert_eq!(shown(&second), links, "a program that knows links by their indices finds others");
    // What is changed last is kept, too, when it ends in good order.
    second.succeeds("ip route del 198.51.100.0/24 via 192.0.2.3");
    assert_eq!(second.end(Signal::SIGTERM), 0);
    assert!(!kept().contains("198.51.100.0/24"), "{}", kept());
    // One port is no more: what is left is there, and the rest is not forgotten.
    let third = Daemon::start_with(&arguments, &["p1"]);
    assert!(third.log().contains("not restored: "), "{}", third.log());
    assert!(third.succeeds("ip sr hmac show").contains('7'));
    let failed = fs::read_to_string(state.join("not-restored.conf")).unwrap();
    assert!(failed.contains("\nip route add 203.0.113.0/24 via 192.0.2.2 dev p0\n"), "{failed}");
    // Two routers cannot have one directory.
    let mut other = Command::new(UNDERPASS);
    other.args(["run", "--offline", "--socket"]).arg(directory.path().join("x.sock")).args(arguments);
    let output = other.output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("another router keeps its state there"));
}

/// A program of BPF, which no line says.
#[test]
fn what_no_line_says_is_named() {
    let router = Daemon::start(&["p0"]);
    router.succeeds("ip link set p0 up");
    router.succeeds("ip addr add 192.0.2.1/24 dev p0");
    let loaded = router.exec(
        "ip -6 route add fc00:a::1/128 encap seg6local action End.BPF endpoint obj \
                              ../../tests/golden/bpf/count.o section seg6 count dev p0",
    );
    if loaded.status != 0 {
        eprintln!("skipped: {}", loaded.output);
        return;
    }
    let output = save(&router);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    let expected =
        "underpass save: not saved: the route to fc00:a::1/128: the BPF program of End.BPF is not saved";
    assert!(said.starts_with(expected), "{said}");
    let lines = String::from_utf8(output.stdout).unwrap();
    assert!(
        lines.contains("192.0.2.1/24") && lines.contains("# Not saved: the route to fc00:a::1/128"),
        "{lines}"
    );
}

/// Who asks while the lines are run is answered when they have been: nobody sees half of what is configured.
#[test]
fn programs_wait_until_all_is_configured() {
    const LINKS: usize = 500;
    let directory = tempfile::tempdir().unwrap();
    let [file, socket] = ["router.conf", "x.sock"].map(|name| directory.path().join(name));
    let lines: Vec<_> = (0..LINKS).map(|n| format!("ip link add d{n} type dummy\n")).collect();
    fs::write(&file, lines.concat()).unwrap();
    let mut command = Command::new(UNDERPASS);
    command.args(["run", "--offline", "--port", "p0", "--socket"]).arg(&socket).arg("--config").arg(&file);
    let mut router = command.stdout(std::process::Stdio::null()).spawn().unwrap();
    let mut shown = String::new();
    wait("the first answer", || {
        let mut command = Command::new(UNDERPASS);
        command
            .args(["exec", "--socket"])
            .arg(&socket)
            .args(["--", "ip", "-o", "link", "show", "type", "dummy"]);
        let output = command.output().unwrap();
        shown = String::from_utf8(output.stdout).unwrap();
        output.status.success()
    });
    router.kill().unwrap();
    router.wait().unwrap();
    assert_eq!(shown.lines().count(), LINKS);
}
