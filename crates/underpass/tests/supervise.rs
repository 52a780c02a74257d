//! Programs that do not load the preload library, supervised by `underpass exec`: static ones, those in Go, and those
//! that are started without the environment.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

mod daemon;

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    os::unix::process::{CommandExt, ExitStatusExt},
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
    sync::OnceLock,
    thread,
    time::{Duration, Instant},
};

use daemon::{Daemon, Outcome, UNDERPASS, project, run};
use nix::{
    sys::{
        signal::{Signal, kill, killpg},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::Pid,
};
use underpass_daemon::{
    protocol,
    testbed::{self, Namespace, Router},
};

/// What the program says of itself when all has been as with a kernel.
const ALL: &str = "names and options\nevery way to send and receive\nreadiness and patience\nsignals\n\
                   copies, children, descriptors in messages\ngroups and senders\nthe C library's own questions\nother sockets\nall of it\n";
const PATIENCE: Duration = Duration::from_secs(60);

/// The static program of `supervise/program.c`. `None`, and said so, where there is no static C library.
fn program() -> Option<&'static Path> {
    static PROGRAM: OnceLock<Option<PathBuf>> = OnceLock::new();
    PROGRAM.get_or_init(|| compiled("static-program", &["-static"])).as_deref()
}

/// `supervise/program.c`, compiled. `None`, and said so, if it cannot be.
fn compiled(name: &str, options: &[&str]) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let made = path.with_extension(std::process::id().to_string());
    let source = project("crates/underpass/tests/supervise/program.c");
    let mut command = Command::new("cc");
    command.args(["-O1", "-pthread", "-w"]).args(options).arg("-o").arg(&made).arg(source);
    let compiled = command.output().unwrap();
    if !compiled.status.success() {
        println!("SKIPPED: {command:?}: {}", String::from_utf8_lossy(&compiled.stderr));
        return None;
    }
    // One that another run of the tests has started is not written to.
    fs::rename(made, &path).unwrap();
    Some(path)
}

/// Whether this is root; said if not.
fn root() -> bool {
    if !testbed::permitted() {
        println!("SKIPPED: needs root");
    }
    testbed::permitted()
}

/// Whether there is such a program; said if not.
fn there_is(name: &str) -> bool {
    let found = Command::new("sh").args(["-c", &format!("command -v {name}")]).output().unwrap();
    if !found.status.success() {
        println!("SKIPPED: there is no {name}");
    }
    found.status.success()
}

/// `underpass exec` with options.
fn exec(daemon: &Daemon, options: &[&str], words: &[&str]) -> Command {
    let mut command = Command::new(UNDERPASS);
    command.args(["exec", "--socket"]).arg(daemon.socket()).args(options).arg("--").args(words);
    command
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Waits until something is so.
fn until(what: &str, mut is: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is() {
        assert!(Instant::now() < end, "{what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// A program that has been started, and what it prints.
struct Running {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Running {
    fn start(mut command: Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { child, output }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn id(&self) -> Pid {
        Pid::from_raw(self.child.id() as i32)
    }

    /// Waits for it; its exit status, or 128 + the signal that has ended it.
    fn end(mut self) -> i32 {
        drop(self.child.stdin.take());
        let status = self.child.wait().unwrap();
        status.code().unwrap_or_else(|| 128 + status.signal().unwrap())
    }
}

#[test]
fn a_static_program_cannot_tell() {
    let Some(program) = program() else { return };
    // First the kernel, which shows that the program is right.
    if root() {
        let namespace = Namespace::new("kernel").unwrap();
        let outcome = namespace.run(&format!("{} lo", program.display())).unwrap();
        assert_eq!(outcome, ALL);
    }
    let daemon = Daemon::start(&["p0"]);
    let outcome = run(&mut daemon.command(&[text(program), "p0"]));
    assert_eq!(outcome, Outcome { status: 0, output: ALL.to_owned() });
    assert!(daemon.succeeds("ip -4 address show").contains("10.77.0.1/32"));
    // What has to be as well by the library.
    let dynamic = compiled("dynamic-program", &[]).unwrap();
    let words = [text(&dynamic), "p0", "senders"];
    let wanted = Outcome { status: 0, output: "groups and senders\n".to_owned() };
    assert_eq!(run(&mut exec(&Daemon::start(&["p0"]), &["--no-seccomp"], &words)), wanted);
    // Where it is told not to, it does not: the kernel has no such device.
    let outcome = run(&mut exec(&daemon, &["--no-seccomp"], &[text(program), "p0"]));
    assert_eq!(outcome.status, 1, "{}", outcome.output);
}

#[test]
fn several_programs_at_once() {
    let Some(program) = program() else { return };
    let daemon = Daemon::start(&["p0"]);
    let calls = format!("{} calls 2000 < /dev/null & ", program.display());
    let outcome = run(&mut exec(&daemon, &["--seccomp"], &["sh", "-c", &(calls.repeat(6) + "wait")]));
    assert_eq!(outcome, Outcome { status: 0, output: "called\n".repeat(6) });
}

/// A program in Go: github.com/vishvananda/netlink, which CNI plugins use.
#[test]
fn a_go_program() {
    if !there_is("go") {
        return;
    }
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("go-{}", std::process::id()));
    let mut build = Command::new("go");
    build
        .args(["build", "-buildvcs=false", "-gcflags=all=-N -l -dwarf=false", "-ldflags=-s -w", "-o"])
        .arg(&path)
        .arg(".");
    build.current_dir(project("crates/underpass/tests/supervise/go")).env("CGO_ENABLED", "0");
    let built = build.output().unwrap();
    if !built.status.success() {
        println!("SKIPPED: go build: {}", String::from_utf8_lossy(&built.stderr));
        return;
    }
    let daemon = Daemon::start(&["p0"]);
    let outcome = run(&mut daemon.command(&[text(&path)]));
    fs::remove_file(path).unwrap();
    let wanted = "link 1 lo\nlink 2 p0\nupdate 10.77.0.1/24 true\nfamilies true\ntwice file exists\n\
                  addresses 1\nok\n";
    assert_eq!(outcome, Outcome { status: 0, output: wanted.to_owned() });
    assert!(daemon.succeeds("ip address show p0").contains("10.77.0.1/24"));
}

/// A router beside the kernel of a namespace with a veth pair.
fn live(name: &str) -> Option<(Namespace, Router)> {
    if !root() {
        return None;
    }
    let namespace = Namespace::new(name).unwrap();
    namespace
        .run(
            "ip link add v0 type veth peer name v1; ip link set v0 up; ip link set v1 up
             ip addr add 10.0.0.1/24 dev v0; ip addr add fd00::1/64 dev v0",
        )
        .unwrap();
    let router =
        Router::start(Path::new(UNDERPASS), &namespace, &["--driver", "packet", "--workers", "1"]).unwrap();
    Some((namespace, router))
}

/// `underpass exec` with options in a namespace.
fn exec_in(namespace: &Namespace, options: &[&str], words: &[&str]) -> Command {
    let mut command = namespace.command(UNDERPASS);
    command.env_remove(protocol::SOCKET_VARIABLE).env_remove(protocol::RUNTIME_VARIABLE);
    command.arg("exec").args(options).arg("--").args(words);
    command
}

fn succeeds(mut command: Command) -> String {
    let outcome = run(&mut command);
    assert_eq!(outcome.status, 0, "{command:?}: {}", outcome.output);
    outcome.output
}

#[test]
fn busybox_static() {
    let is_static = || {
        let shown = Command::new("sh").args(["-c", "ldd $(command -v busybox) 2>&1"]).output().unwrap();
        let is = String::from_utf8_lossy(&shown.stdout).contains("not a dynamic executable");
        if !is {
            println!("SKIPPED: busybox is not static (Debian: busybox-static)");
        }
        is
    };
    if !there_is("busybox") || !is_static() {
        return;
    }
    let Some((kernel, router)) = live("busybox") else { return };
    let ip = |line: &str| {
        let words: Vec<&str> = ["busybox", "ip"].into_iter().chain(line.split_whitespace()).collect();
        succeeds(exec_in(&kernel, &[], &words))
    };
    ip("address add 10.5.0.1/24 dev v1");
    assert!(ip("address show v1").contains("10.5.0.1/24"));
    ip("link set v1 mtu 1400");
    assert!(ip("link show v1").contains("mtu 1400"));
    ip("route add 10.9.0.0/16 via 10.0.0.2");
    ip("neigh show");
    assert!(ip("rule show").contains("lookup main"));
    // What the router alone has, and what the kernel has.
    router.run("ip -6 route add fc00::1/128 encap seg6local action End count dev v0").unwrap();
    assert!(ip("-6 route show").contains("fc00::1 "), "{}", ip("-6 route show"));
    assert!(ip("route show").contains("10.9.0.0/16 via 10.0.0.2"));
    assert!(kernel.run("ip route show").unwrap().contains("10.9.0.0/16 via 10.0.0.2"));
    // A tunnel, by ioctls: it is one of the router's.
    ip("tunnel add t0 mode ipip local 10.0.0.1 remote 10.0.0.2");
    let shown = router.run("ip -d link show t0").unwrap();
    assert!(shown.contains("ipip remote 10.0.0.2 local 10.0.0.1"), "{shown}");
    let shown = ip("tunnel show t0 mode ipip");
    assert!(shown.contains("remote 10.0.0.2"), "{shown}");
    ip("tunnel del t0");
    // And in another namespace without a router, its kernel.
    let other = Namespace::new("other").unwrap();
    let enter = format!("nsenter --net={} busybox ip link", other.path());
    let words: Vec<&str> = enter.split(' ').collect();
    let shown = succeeds(exec_in(&kernel, &["--follow"], &words));
    assert!(shown.contains("lo:") && !shown.contains("v0"), "{shown}");
}

#[test]
fn what_is_started_without_the_environment() {
    let daemon = Daemon::start(&["p0"]);
    let ip = Command::new("sh").args(["-c", "command -v ip"]).output().unwrap().stdout;
    let ip = String::from_utf8(ip).unwrap();
    let line = format!("env -i {} link show", ip.trim());
    let words: Vec<&str> = line.split_whitespace().collect();
    let shown = succeeds(exec(&daemon, &["--follow"], &words));
    assert!(shown.contains("2: p0:"), "{shown}");
    // Without supervision that is the kernel's.
    assert!(!succeeds(exec(&daemon, &[], &words)).contains("2: p0:"));
    if root() && there_is("sudo") {
        let shown = succeeds(exec(&daemon, &["--follow"], &["sudo", "-n", "ip", "link", "show"]));
        assert!(shown.contains("2: p0:"), "{shown}");
        assert!(!succeeds(exec(&daemon, &[], &["sudo", "-n", "ip", "link", "show"])).contains("2: p0:"));
    }
    // A program that loads the library under supervision, and one that finds the router by its namespace.
    assert!(succeeds(exec(&daemon, &["--follow"], &["ip", "link", "show"])).contains("2: p0:"));
    let Some((kernel, router)) = live("follow") else { return };
    router.run("ip -6 route add fc00::1/128 encap seg6local action End count dev v0").unwrap();
    let line = format!("env -i {} -6 route show", ip.trim());
    let words: Vec<&str> = line.split_whitespace().collect();
    let shown = succeeds(exec_in(&kernel, &["--follow"], &words));
    assert!(shown.contains("action End"), "{shown}");
}

#[test]
fn it_ends_as_the_program_does() {
    let Some(program) = program() else { return };
    let daemon = Daemon::start(&["p0"]);
    let status = |words: &[&str]| run(&mut exec(&daemon, &["--seccomp"], words)).status;
    assert_eq!(status(&["sh", "-c", "exit 7"]), 7);
    assert_eq!(status(&["sh", "-c", "kill -SEGV $$"]), 128 + 11);
    assert_eq!(status(&["/no/such/program"]), 127);
    assert_eq!(status(&["/dev/null"]), 126);
    assert_eq!(status(&["sh", "-c", "grep -q 'SigBlk:.0*$' /proc/self/status"]), 0);
    // A signal goes on to the program, which handles it while it waits for a notification.
    let mut waiting = Running::start(daemon.command(&[text(program), "wait"]));
    assert_eq!(waiting.line(), "waits");
    kill(waiting.id(), Signal::SIGTERM).unwrap();
    assert_eq!((waiting.line().as_str(), waiting.end()), ("terminated", 7));
    // As a shell stops it and lets it go on.
    let mut command = daemon.command(&[text(program), "wait"]);
    command.process_group(0);
    let mut stopped = Running::start(command);
    assert_eq!(stopped.line(), "waits");
    kill(stopped.id(), Signal::SIGTSTP).unwrap();
    let status = waitpid(stopped.id(), Some(WaitPidFlag::WUNTRACED)).unwrap();
    assert!(matches!(status, WaitStatus::Stopped(..)), "{status:?}");
    killpg(stopped.id(), Signal::SIGCONT).unwrap();
    succeeds(exec(&daemon, &[], &["ip", "address", "add", "10.1.0.1/24", "dev", "p0"]));
    assert_eq!(stopped.line(), "notified 20");
    kill(stopped.id(), Signal::SIGTERM).unwrap();
    assert_eq!((stopped.line().as_str(), stopped.end()), ("terminated", 7));
    // SIGKILL, too.
    let mut killed = Running::start(daemon.command(&[text(program), "wait"]));
    assert_eq!(killed.line(), "waits");
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", killed.id())).unwrap();
    let threads = fs::read_dir(format!("/proc/{}/task", killed.id())).unwrap();
    let children = threads.fold(children, |all, thread| {
        all + &fs::read_to_string(thread.unwrap().path().join("children")).unwrap_or_default()
    });
    let child = children.split_whitespace().next().unwrap().to_owned();
    kill(killed.id(), Signal::SIGKILL).unwrap();
    assert_eq!(killed.end(), 128 + 9);
    until("the program ends", || {
        let state = fs::read_to_string(format!("/proc/{child}/stat"));
        state.is_err() || state.is_ok_and(|state| state.contains(") Z "))
    });
}

#[test]
fn what_a_program_leaves_running_is_supervised() {
    let Some(program) = program() else { return };
    let daemon = Daemon::start(&["p0"]);
    let directory = tempfile::tempdir().unwrap();
    let (go, output) = (directory.path().join("go"), directory.path().join("output"));
    let line = format!(
        "(while ! [ -e {} ]; do sleep 0.05; done; {} p0) < /dev/null > {} 2>&1 &",
        go.display(),
        program.display(),
        output.display()
    );
    // It exits with its program; then what was left begins.
    assert_eq!(succeeds(exec(&daemon, &["--follow"], &["sh", "-c", &line])), "");
    fs::write(&go, "").unwrap();
    until("it ends", || fs::read_to_string(&output).is_ok_and(|output| output.ends_with("all of it\n")));
    assert_eq!(fs::read_to_string(&output).unwrap(), ALL);
}

/// Descriptors, threads, and pages of a process.
fn held(id: Pid) -> (usize, usize, u64) {
    let count = |what| fs::read_dir(format!("/proc/{id}/{what}")).unwrap().count();
    let status = fs::read_to_string(format!("/proc/{id}/status")).unwrap();
    let anonymous = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    (count("fd"), count("task"), anonymous.trim().trim_end_matches(" kB").parse().unwrap())
}

#[test]
fn a_hundred_thousand_calls_leave_nothing() {
    let Some(program) = program() else { return };
    let daemon = Daemon::start(&["p0"]);
    let after = |calls: &str| {
        let mut running = Running::start(daemon.command(&[text(program), "calls", calls]));
        assert_eq!(running.line(), "called");
        let held = held(running.id());
        assert_eq!(running.end(), 0);
        held
    };
    let (few, many) = (after("1000"), after("100000"));
    println!("descriptors, threads, kB: {few:?} after 1000 calls, {many:?} after 100000");
    assert_eq!((few.0, few.1), (many.0, many.1));
    assert!(many.2 <= few.2 + 256, "{few:?} {many:?}");
    until("the router forgets the sockets", || {
        fs::read_dir(format!("/proc/{}/fd", daemon.pid())).unwrap().count() < 16
    });
}

#[test]
fn at_most_twice_the_time() {
    let Some((kernel, _router)) = live("time") else { return };
    let line = "for i in $(seq 60); do ip link show; done > /dev/null";
    let time = |mut command: Command| {
        let begin = Instant::now();
        assert!(command.status().unwrap().success());
        begin.elapsed()
    };
    let path = format!("PATH={}", std::env::var("PATH").unwrap());
    // Side by side, and some times: the machine has other things to do.
    let rounds = (0..20).map(|_| {
        let mut command = kernel.command("bash");
        command.args(["-c", line]);
        let alone = time(command);
        let words = ["env", "-i", &path, "bash", "-c", line];
        (alone, time(exec_in(&kernel, &["--follow"], &words)))
    });
    let mut seen = Vec::new();
    for (alone, supervised) in rounds {
        println!("60 × ip link show: {alone:?} by the kernel, {supervised:?} supervised");
        seen.push((alone, supervised));
        if supervised <= 2 * alone {
            return;
        }
    }
    panic!("{seen:?}");
}

#[test]
fn the_next_router_gets_the_sockets() {
    let Some(program) = program() else { return };
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("netlink.sock");
    let start = || {
        let mut command = Command::new(UNDERPASS);
        command.args(["run", "--offline", "--port", "p0", "--socket"]).arg(&socket);
        let mut router = Running::start(command);
        assert!(router.line().starts_with("underpass: ready"));
        router
    };
    let exec = |words: &[&str]| {
        let mut command = Command::new(UNDERPASS);
        command.args(["exec", "--socket"]).arg(&socket).arg("--").args(words);
        command
    };
    let end = |router: Running| {
        kill(router.id(), Signal::SIGKILL).unwrap();
        router.end();
    };
    let router = start();
    let mut waiting = Running::start(exec(&[text(program), "wait"]));
    assert_eq!(waiting.line(), "waits");
    succeeds(exec(&["ip", "address", "add", "10.1.0.1/24", "dev", "p0"]));
    assert_eq!(waiting.line(), "notified 20");
    let mut asking = Running::start(exec(&[text(program), "each", "p0"]));
    assert_eq!(asking.line(), "opened");
    let ask = |asking: &mut Running| asking.child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    ask(&mut asking);
    assert_eq!((asking.line().as_str(), waiting.line().as_str()), ("changed", "notified 20"));
    end(router);
    let router = start();
    assert_eq!(waiting.line(), format!("errno {}", libc::ENOBUFS));
    ask(&mut asking);
    assert_eq!((asking.line().as_str(), waiting.line().as_str()), ("changed", "notified 20"));
    // One that ends while it is asked.
    kill(router.id(), Signal::SIGSTOP).unwrap();
    ask(&mut asking);
    thread::sleep(Duration::from_millis(100));
    end(router);
    assert_eq!(asking.line(), format!("errno {}", libc::ECONNREFUSED));
    let router = start();
    assert_eq!(waiting.line(), format!("errno {}", libc::ENOBUFS));
    ask(&mut asking);
    assert_eq!((asking.line().as_str(), waiting.line().as_str()), ("changed", "notified 20"));
    kill(waiting.id(), Signal::SIGTERM).unwrap();
    assert_eq!((waiting.line().as_str(), waiting.end()), ("terminated", 7));
    assert_eq!(asking.end(), 0);
    end(router);
}

/// A router that does not answer holds up those who ask it, and nobody else.
#[test]
fn a_router_that_hangs() {
    let Some(program) = program() else { return };
    let daemon = Daemon::start(&["p0"]);
    let mut running = Running::start(daemon.command(&[text(program), "beside"]));
    assert_eq!(running.line(), "opened");
    kill(daemon.pid(), Signal::SIGSTOP).unwrap();
    running.child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    let said = [running.line(), running.line()];
    kill(daemon.pid(), Signal::SIGCONT).unwrap();
    assert_eq!(said, ["other sockets", "killed"]);
    assert_eq!(running.end(), 0);
}

#[test]
fn a_router_started_under_supervision_has_the_kernel() {
    if !root() {
        return;
    }
    let daemon = Daemon::start(&["p0"]);
    let namespace = Namespace::new("inside").unwrap();
    namespace.run("ip link add v0 type veth peer name v1; ip link set v0 up; ip link set v1 up").unwrap();
    let mut command = namespace.command(UNDERPASS);
    command.args(["exec", "--follow", "--socket"]).arg(daemon.socket()).arg("--");
    command.arg(UNDERPASS).args(["run", "--driver", "packet", "--workers", "1"]);
    let mut router = Running::start(command);
    let ready = router.line();
    assert!(ready.starts_with("underpass: ready"), "{ready}");
    assert!(succeeds(exec_in(&namespace, &[], &["ip", "link", "show"])).contains("v0"));
    kill(router.id(), Signal::SIGTERM).unwrap();
    assert_eq!(router.end(), 0);
}

#[test]
fn what_is_refused() {
    let Some(program) = program() else { return };
    let daemon = Daemon::start(&["p0"]);
    // Linux has one listener for a program.
    let socket = daemon.socket();
    let nested = [UNDERPASS, "exec", "--socket", text(&socket), "--", text(program), "open"];
    let outcome = run(&mut exec(&daemon, &["--follow"], &nested));
    assert_eq!(outcome.status, 1);
    assert!(outcome.output.contains("supervised already") && outcome.output.contains("--no-seccomp"));
    // A kernel that is too old, and a container.
    for (call, says) in [("seccomp", "Linux 5.19 or newer"), ("pidfd_getfd", "CAP_SYS_PTRACE")] {
        let mut command = Command::new(program);
        command.args(["without", call, UNDERPASS, "exec", "--socket", text(&socket), "--"]);
        let outcome = run(command.args([text(program), "open"]));
        assert_eq!(outcome.status, 1, "{}", outcome.output);
        assert!(outcome.output.contains(says) && !outcome.output.contains("opened"), "{}", outcome.output);
    }
    let nested = [UNDERPASS, "exec", "--no-seccomp", "--socket", text(&socket), "--", text(program), "open"];
    assert!(succeeds(exec(&daemon, &["--follow"], &nested)).starts_with("opened"));
    if there_is("setpriv") && root() {
        // A program that has given up its privileges gets the rights of what it has become.
        let words = ["setpriv", "--reuid=65534", "--clear-groups", text(program), "open"];
        fs::set_permissions(socket.parent().unwrap(), std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .unwrap();
        let outcome = succeeds(exec(&daemon, &["--follow"], &words));
        assert_eq!(outcome, "Permission denied\n");
    }
}
