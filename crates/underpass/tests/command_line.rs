//! `underpass run` and `underpass exec` as their user meets them.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

mod daemon;

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    os::unix::{fs::PermissionsExt, net::UnixListener},
    process::{Command, Stdio},
};

use daemon::{Daemon, UNDERPASS, run};
use nix::sys::signal::Signal;

fn underpass(words: &[&str]) -> daemon::Outcome {
    run(Command::new(UNDERPASS).args(words))
}

#[test]
fn the_exit_status_is_the_programs() {
    let daemon = Daemon::start(&["p0"]);
    assert_eq!(daemon.exec("true").status, 0);
    assert_eq!(run(&mut daemon.command(&["sh", "-c", "exit 7"])).status, 7);
    assert_eq!(run(&mut daemon.command(&["sh", "-c", "kill -TERM $$"])).status, 128 + libc::SIGTERM);
    let missing = daemon.exec("no-such-program");
    assert_eq!(missing.status, 127);
    assert!(missing.output.contains("no-such-program: command not found"), "{}", missing.output);
    assert_eq!(daemon.exec("/etc/passwd").status, 126);
}

#[test]
fn without_a_router_it_says_how_to_start_one() {
    let outcome = underpass(&["exec", "--socket", "/nonexistent/here.sock", "--", "true"]);
    assert_eq!(outcome.status, 1);
    assert!(
        outcome.output.contains("underpass run --offline --socket /nonexistent/here.sock"),
        "{}",
        outcome.output
    );
}

#[test]
fn a_router_that_ends_is_missed_not_replaced_by_the_kernel() {
    let daemon = Daemon::start(&["p0"]);
    let socket = daemon.socket();
    let mut later = daemon.command(&["sh", "-c", "echo started; read line; ip link show lo"]);
    let mut child =
        later.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut started = String::new();
    output.read_line(&mut started).unwrap();
    assert_eq!(daemon.end(Signal::SIGTERM), 0);
    assert!(!socket.exists(), "the socket file stays behind");
    drop(child.stdin.take());
    let ended = child.wait_with_output().unwrap();
    assert!(!ended.status.success());
    let errors = String::from_utf8_lossy(&ended.stderr);
    assert!(errors.contains("Connection refused"), "{errors}");
    let mut shown = String::new();
    output.read_to_string(&mut shown).unwrap();
    assert_eq!((started.as_str(), shown.as_str()), ("started\n", ""));
}

#[test]
fn ports_are_checked() {
    for ports in [&["--port", "a/b"][..], &["--port", "p,mac=1"], &["--port", "p", "--port", "p"]] {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("s");
        let words = [&["run", "--offline", "--socket", socket.to_str().unwrap()][..], ports].concat();
        assert_ne!(underpass(&words).status, 0, "{ports:?}");
        assert!(!socket.exists());
    }
    let daemon = Daemon::start(&["p0,mac=02:00:00:00:00:99"]);
    assert!(daemon.succeeds("ip link show p0").contains("link/ether 02:00:00:00:00:99 "));
}

#[test]
fn the_socket_is_its_users_and_goes_with_the_router() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let daemon = Daemon::start(&["p0"]);
        let socket = daemon.socket();
        assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
        // A second router is refused and leaves the first alone.
        let second = underpass(&["run", "--offline", "--socket", socket.to_str().unwrap()]);
        assert_eq!(second.status, 1);
        assert!(second.output.contains("already listens"), "{}", second.output);
        daemon.succeeds("ip link show p0");
        assert_eq!(daemon.end(signal), 0);
        assert!(!socket.exists());
    }
}

#[test]
fn a_stale_socket_is_replaced_and_a_file_is_not() {
    let daemon = Daemon::start(&["p0"]);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("stale.sock");
    drop(UnixListener::bind(&path).unwrap());
    let stale = path.to_str().unwrap();
    // Replaced, and the router runs until timeout ends it.
    let outcome = run(Command::new("timeout").args(["1", UNDERPASS, "run", "--offline", "--socket", stale]));
    assert!(outcome.output.starts_with("underpass: ready at "), "{}", outcome.output);
    fs::write(&path, "precious").unwrap();
    let outcome = underpass(&["run", "--offline", "--socket", stale]);
    assert_eq!((outcome.status, fs::read_to_string(&path).unwrap().as_str()), (1, "precious"));
    daemon.succeeds("ip link show p0");
}

#[test]
fn what_is_the_kernels_stays_the_kernels() {
    let daemon = Daemon::start(&["p0"]);
    let interfaces = daemon.succeeds("ip -o link show");
    assert_eq!(interfaces.lines().count(), 2, "lo and p0: {interfaces}");
    // Requests that an ioctl would take to the kernel.
    let outcome = daemon.exec("ip tuntap add t0 mode tun");
    assert_ne!(outcome.status, 0);
    assert!(outcome.output.contains("not supported"), "{}", outcome.output);
}

#[test]
fn a_missing_library_is_named() {
    let daemon = Daemon::start(&["p0"]);
    let directory = tempfile::tempdir().unwrap();
    let alone = directory.path().join("underpass");
    // By a process of its own: one that is started meanwhile by another test would inherit the descriptor that it is written
    // by, and Linux runs no file that is open for writing (ETXTBSY).
    assert_eq!(run(Command::new("cp").arg(UNDERPASS).arg(&alone)).status, 0);
    let exec = |program: &std::path::Path| {
        run(Command::new(program).args(["exec", "--socket"]).arg(daemon.socket()).args(["--", "ip", "link"]))
    };
    let outcome = exec(&alone);
    assert_eq!(outcome.status, 1);
    assert!(outcome.output.contains("libunderpass_preload.so is missing"), "{}", outcome.output);
    // As it is installed: bin/underpass and lib/underpass/libunderpass_preload.so.
    let (bin, lib) = (directory.path().join("bin"), directory.path().join("lib/underpass"));
    fs::create_dir_all(&bin).unwrap();
    fs::create_dir_all(&lib).unwrap();
    fs::rename(&alone, bin.join("underpass")).unwrap();
    let library = underpass_daemon::launch::find_library().unwrap();
    fs::copy(library, lib.join("libunderpass_preload.so")).unwrap();
    let outcome = exec(&bin.join("underpass"));
    assert!(outcome.status == 0 && outcome.output.contains("p0"), "{}", outcome.output);
}

/// What it says of the kernel is what the kernel does in a namespace where it is asked again.
#[test]
fn the_doctor_tells_what_the_kernel_has() {
    let outcome = underpass(&["doctor", "--json"]);
    let report: serde_json::Value = serde_json::from_str(&outcome.output).unwrap();
    let kernel = |what: &str| {
        let features = report["features"].as_array().unwrap();
        features.iter().find(|feature| feature["what"] == what).unwrap()["kernel"].as_bool()
    };
    if !nix::unistd::Uid::effective().is_root() {
        assert_eq!((outcome.status, kernel("MPLS")), (1, None));
        return;
    }
    assert_eq!(outcome.status, 0, "{}", outcome.output);
    for (what, line) in [("dummies", "ip link add up0 type dummy"), ("ifb", "ip link add up0 type ifb")] {
        let tried = run(Command::new("unshare").args(["-n", "sh", "-c", line]));
        assert_eq!(kernel(what), Some(tried.status == 0), "{what}: {}", tried.output);
    }
}

/// Nothing moves in an offline router, but what is configured is to be seen.
#[test]
fn an_offline_router_answers_stats_and_top_and_says_why_it_traces_nothing() {
    let daemon = Daemon::start(&["wan", "lan"]);
    let socket = daemon.socket();
    let ask = |words: &[&str]| {
        let mut command = Command::new(UNDERPASS);
        run(command.args(words).arg("--socket").arg(&socket))
    };
    daemon.succeeds("sysctl -qw net.mpls.platform_labels=1000");
    for line in [
        "ip link set wan up",
        "ip link add tenant type vrf table 10",
        "ip -6 route add fc00:1::e/128 encap seg6local action End count dev wan",
        "ip -f mpls route add 100 dev lo",
    ] {
        daemon.succeeds(line);
    }
    let shown = ask(&["stats"]);
    assert_eq!(shown.status, 0, "{}", shown.output);
    for text in [
        "wan              virtual ",
        "fc00:1::e/128                                End ",
        "off (an offline router",
    ] {
        assert!(shown.output.contains(text), "{text}: {}", shown.output);
    }
    let state: serde_json::Value = serde_json::from_str(&ask(&["top", "--once", "--json"]).output).unwrap();
    let names: Vec<&str> =
        state["links"].as_array().unwrap().iter().map(|link| link["name"].as_str().unwrap()).collect();
    assert!(["wan", "lan", "tenant"].iter().all(|name| names.contains(name)), "{names:?}");
    assert_eq!(state["labels"][0]["label"], 100);

    let traced = ask(&["trace", "--time", "5"]);
    assert_eq!(traced.status, 1);
    assert!(traced.output.contains("no packet moves in an offline router"), "{}", traced.output);

    // In a shell of `underpass exec` the router need not be named.
    let within = daemon.exec(&format!("{UNDERPASS} stats mpls 100"));
    assert_eq!(within.status, 0, "{}", within.output);
    assert!(within.output.contains("\n100 "), "{}", within.output);
}

#[test]
fn a_label_without_a_route_is_an_error() {
    let daemon = Daemon::start(&["wan"]);
    let outcome = daemon.exec(&format!("{UNDERPASS} stats mpls 777"));
    assert_eq!(outcome.status, 1);
    assert_eq!(outcome.output, "underpass: label 777 has no route: `ip -f mpls route show`\n");
}

/// Every heading says that its numbers are rates, and the first are shown when there are some.
#[test]
fn watching_says_what_is_a_rate() {
    let daemon = Daemon::start(&["wan"]);
    let words = ["timeout", "4", UNDERPASS, "stats", "--watch"];
    let outcome = run(&mut daemon.command(&words));
    let heading = outcome.output.lines().find(|line| line.starts_with("port ")).unwrap();
    for column in ["rx packets/s", "rx bytes/s", "tx packets/s", "tx bytes/s", "drops/s"] {
        assert!(heading.contains(column), "{heading}");
    }
    assert!(outcome.output.starts_with("rates of the last second"), "{}", outcome.output);
    assert!(!daemon.exec(&format!("{UNDERPASS} stats")).output.contains("/s"));
}

#[test]
fn what_needs_root_says_so() {
    if !nix::unistd::Uid::effective().is_root() {
        println!("SKIPPED: only root can become another user");
        return;
    }
    let nobody = |program: &str, words: &[&str]| {
        run(Command::new("setpriv").args(["--reuid=65534", "--clear-groups", program]).args(words))
    };
    // Where another user may run it.
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = directory.path().join("underpass");
    assert_eq!(run(Command::new("cp").arg(UNDERPASS).arg(&program)).status, 0);
    let program = program.to_str().unwrap();
    let daemon = Daemon::start(&["wan"]);
    fs::set_permissions(daemon.socket().parent().unwrap(), fs::Permissions::from_mode(0o755)).unwrap();
    let socket = daemon.socket();
    for words in [&["stats"][..], &["top", "--once"], &["trace"], &["save"]] {
        let words = [words, &["--socket", socket.to_str().unwrap()]].concat();
        let outcome = nobody(program, &words);
        assert_eq!(outcome.status, 1);
        assert!(
            outcome.output.contains("only root, and members of the group"),
            "{words:?}: {}",
            outcome.output
        );
    }
    let outcome = nobody(program, &["run", "--all"]);
    assert!(outcome.status == 1 && outcome.output.contains("run it as root"), "{}", outcome.output);
    fs::create_dir_all("/run/underpass").unwrap();
    let outcome = nobody(program, &["run"]);
    assert_eq!(outcome.status, 1);
    assert!(outcome.output.contains("a router beside the kernel needs root"), "{}", outcome.output);
}

/// A driver that is not the one that was asked for is not said to be.
#[test]
fn a_driver_that_falls_back_says_why() {
    if !nix::unistd::Uid::effective().is_root() {
        println!("SKIPPED: network namespaces need root");
        return;
    }
    // A queue, and two workers.
    let lines = format!(
        "ip link add v0 type veth peer name v1 && ip link set v0 up && ip link set v1 up && \
         timeout 10 {UNDERPASS} run --driver xdp --workers 2 --attach v0"
    );
    let outcome = run(Command::new("unshare").args(["-n", "sh", "-c", &lines]));
    let attached =
        outcome.output.lines().find(|line| line.contains("v0: attached with")).unwrap_or_else(|| {
            panic!("{}", outcome.output);
        });
    assert!(
        attached.ends_with("attached with packet: not with AF_XDP, as the device has 1 queues for 2 workers"),
        "{attached}"
    );
}
