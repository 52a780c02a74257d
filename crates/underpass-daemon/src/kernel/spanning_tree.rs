//! The program that keeps the spanning trees of bridges, where there is one: that of mstpd, for one. Linux:
//! `net/bridge/br_stp_if.c`.

use std::{
    io,
    os::unix::process::CommandExt,
    path::Path,
    process::{Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};

use crate::child;

/// `BR_STP_PROG`.
pub const PROGRAM: &str = "/sbin/bridge-stp";

/// How long the program may take. All requests wait for it.
const PATIENCE: Duration = Duration::from_secs(5);

/// How often it is looked whether it has ended.
const LOOK: Duration = Duration::from_millis(2);

/// Tells the program to keep the spanning tree of a bridge, or to end that. Whether it does.
pub fn keep(program: &Path, bridge: &str, starts: bool) -> bool {
    let what = if starts { "start" } else { "stop" };
    match run(program, &[bridge, what]) {
        Ok(status) if status.success() => true,
        Ok(status) => {
            tracing::warn!(
                "{} {bridge} {what}: {status}: the router keeps the spanning tree",
                program.display()
            );
            false
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => false,
        Err(error) => {
            tracing::warn!(
                "{} {bridge} {what}: {error}: the router keeps the spanning tree",
                program.display()
            );
            false
        }
    }
}

/// Runs a program without an environment, as Linux does, until it ends.
///
/// # Errors
/// Those of fork(2) and execve(2); it takes too long, and is ended.
fn run(program: &Path, arguments: &[&str]) -> io::Result<ExitStatus> {
    let mut command = Command::new(program);
    command.args(arguments).env_clear().stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    child::with_all_signals(command.process_group(0));
    let mut child = command.spawn()?;
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if Instant::now() > end {
            // With all that it has started.
            killpg(Pid::from_raw(child.id() as i32), Signal::SIGKILL)?;
            child.wait()?;
            return Err(io::ErrorKind::TimedOut.into());
        }
        thread::sleep(LOOK);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_program_decides() {
        let directory = tempfile::tempdir().unwrap();
        let (program, said) = (directory.path().join("bridge-stp"), directory.path().join("said"));
        assert!(!keep(&program, "br0", true));
        let script = format!("#!/bin/sh\necho $1 $2 >> {}\n[ $1 = br0 ]\n", said.display());
        fs::write(&program, script).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(keep(&program, "br0", true));
        assert!(keep(&program, "br0", false));
        assert!(!keep(&program, "br1", true));
        assert_eq!(fs::read_to_string(&said).unwrap(), "br0 start\nbr0 stop\nbr1 start\n");
    }

    /// One that does not end is ended, with what it has started.
    #[test]
    fn a_program_that_hangs_is_ended() {
        let directory = tempfile::tempdir().unwrap();
        let (program, said) = (directory.path().join("bridge-stp"), directory.path().join("said"));
        fs::write(&program, format!("#!/bin/sh\nsleep 60 &\necho $! > {}\nwait\n", said.display())).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(!keep(&program, "br0", true));
        let pid = fs::read_to_string(&said).unwrap();
        let status = fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
        assert!(status.is_empty() || status.contains(") Z "), "{status}");
    }
}
