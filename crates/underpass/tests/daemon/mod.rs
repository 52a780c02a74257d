//! `underpass run --offline` as a process, and programs run through `underpass exec`.
#![allow(dead_code, reason = "each test uses its part")]

use std::{
    fs::File,
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

pub const UNDERPASS: &str = env!("CARGO_BIN_EXE_underpass");

/// A router in a process of its own; dropping it ends it.
pub struct Daemon {
    child: Child,
    directory: tempfile::TempDir,
}

/// How a program ended and all it printed, standard output and errors in the order of writing.
#[derive(Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Exit status; 128 + the signal that ended it.
    pub status: i32,
    pub output: String,
}

impl Daemon {
    /// Starts a router with these ports and waits until it is ready.
    pub fn start(ports: &[&str]) -> Self {
        Self::start_by(Command::new(UNDERPASS), ports)
    }

    /// Starts one that may open so many descriptors. What it logs is kept: [`Daemon::log`].
    pub fn start_with_descriptors(most: u64, ports: &[&str]) -> Self {
        let mut command = Command::new("prlimit");
        command.arg(format!("--nofile={most}:{most}")).arg(UNDERPASS);
        Self::start_by(command, ports)
    }

    /// Starts one with more arguments.
    pub fn start_with(arguments: &[&str], ports: &[&str]) -> Self {
        Self::start_in(Command::new(UNDERPASS), arguments, ports)
    }

    fn start_by(command: Command, ports: &[&str]) -> Self {
        Self::start_in(command, &[], ports)
    }

    fn start_in(mut command: Command, arguments: &[&str], ports: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        command
            .args(["run", "--offline", "--socket"])
            .arg(directory.path().join("netlink.sock"))
            .args(arguments);
        command.stderr(File::create(directory.path().join("log")).unwrap());
        for port in ports {
            command.args(["--port", port]);
        }
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut ready = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut ready).unwrap();
        assert!(ready.starts_with("underpass: ready at "), "{ready}");
        Self { child, directory }
    }

    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("netlink.sock")
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("log")).unwrap()
    }

    pub fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id() as i32)
    }

    /// `underpass exec` of a program, to be started.
    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(UNDERPASS);
        command.arg("exec").arg("--socket").arg(self.socket()).arg("--").args(words);
        command
    }

    /// Runs the words of `line`, which are separated by blanks.
    pub fn exec(&self, line: &str) -> Outcome {
        if line.contains('\'') {
            return run(&mut self.command(&["bash", "-c", line]));
        }
        run(&mut self.command(&line.split_whitespace().collect::<Vec<_>>()))
    }

    /// Runs `line`, which must succeed, and gives what it printed.
    pub fn succeeds(&self, line: &str) -> String {
        let outcome = self.exec(line);
        assert_eq!(outcome.status, 0, "{line}: {}", outcome.output);
        outcome.output
    }

    /// Ends it by a signal; its exit status, as in [`Outcome`].
    pub fn end(mut self, signal: Signal) -> i32 {
        kill(self.pid(), signal).unwrap();
        status(&self.child.wait().unwrap())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        // For who reads why a test has failed.
        eprint!("{}", self.log());
    }
}

pub fn run(command: &mut Command) -> Outcome {
    let (mut reader, writer) = std::io::pipe().unwrap();
    command.stdin(Stdio::null()).stdout(writer.try_clone().unwrap()).stderr(writer);
    let mut child = command.spawn().unwrap();
    // The command holds the pipe's other ends; the end of the output must be seen.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut output = Vec::new();
    reader.read_to_end(&mut output).unwrap();
    let status = status(&child.wait().unwrap());
    Outcome { status, output: String::from_utf8_lossy(&output).into_owned() }
}

fn status(status: &std::process::ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

/// A file of the project.
pub fn project(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}
