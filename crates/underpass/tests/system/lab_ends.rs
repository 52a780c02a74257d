//! What is left when a lab ends.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tempfile::TempDir;

use crate::net::{program, turn};

/// The variable by which processes of one lab are known from those of others.
const MARK: &str = "UNDERPASS_TEST_OF_LAB";

/// A lab whose routers have their sockets in a directory of its own.
pub struct Lab {
    runtime: TempDir,
}

impl Lab {
    pub fn new() -> Self {
        Self { runtime: tempfile::tempdir().unwrap() }
    }

    fn mark(&self) -> String {
        format!("{MARK}={}", self.runtime.path().display())
    }

    /// `underpass lab` with these arguments, to be started.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let script = r#"mkdir -p /run/underpass && mount --bind "$0" /run/underpass && exec "$@""#;
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", script]).arg(self.runtime.path()).arg(program()).arg("lab");
        command.args(arguments).env(MARK, self.runtime.path());
        command
    }

    /// Runs it to its end, which has to be a good one. What it printed.
    pub fn run(&self, arguments: &[&str]) -> String {
        let Output { status, stdout, stderr } = self.command(arguments).output().unwrap();
        let said = String::from_utf8_lossy(&stdout).into_owned();
        assert!(status.success(), "{said}{}", String::from_utf8_lossy(&stderr));
        said
    }

    /// Processes of the program under test that it started, and those that it is.
    fn routers(&self) -> Vec<PathBuf> {
        let program = program().canonicalize().unwrap();
        let mark = self.mark();
        let processes = fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path());
        let marked = |process: &PathBuf| {
            let environment = fs::read(process.join("environ")).unwrap_or_default();
            environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
        };
        processes
            .filter(|process| {
                fs::read_link(process.join("exe")).is_ok_and(|exe| exe == program) && marked(process)
            })
            .collect()
    }

    fn sockets(&self) -> Vec<PathBuf> {
        fs::read_dir(self.runtime.path()).unwrap().map(|entry| entry.unwrap().path()).collect()
    }

    /// Of processes and sockets nothing is left.
    pub fn left_nothing(&self, why: &str) {
        assert_eq!((self.routers(), self.sockets()), (Vec::new(), Vec::new()), "{why}");
    }
}

#[test]
fn the_lab_runs_and_leaves_nothing() {
    let Some(_turn) = turn("the_lab_runs_and_leaves_nothing") else { return };
    let lab = Lab::new();
    let said = lab.run(&["l3vpn"]);
    for part in ["b2 received 0 packets", "End.DT46 vrftable 10", "action End ", "Torn down"] {
        // A neighbour solicitation or two may come to b2.
        let part = if part.starts_with("b2") { "b2 received " } else { part };
        assert!(said.contains(part), "no '{part}' in:\n{said}");
    }
    lab.left_nothing("torn down");
}

/// However it ends: by a signal in the middle, even one that it cannot catch.
#[test]
fn an_interrupted_lab_leaves_nothing() {
    let Some(_turn) = turn("an_interrupted_lab_leaves_nothing") else { return };
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGKILL] {
        let lab = Lab::new();
        let mut running = lab.command(&["l3vpn"]).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(running.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().starts_with("pe2: ")), "{signal}");
        assert!(lab.routers().len() >= 4, "{signal}: the lab and three routers");
        assert!(lab.sockets().len() >= 3, "{signal}: those of three routers");
        kill(Pid::from_raw(running.id() as i32), signal).unwrap();
        running.wait().unwrap();
        let deadline = Instant::now() + Duration::from_secs(10);
        while !(lab.routers().is_empty() && lab.sockets().is_empty()) && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(20));
        }
        lab.left_nothing(signal.as_str());
    }
}

#[test]
fn without_root_it_says_so() {
    let Some(_turn) = turn("without_root_it_says_so") else { return };
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
