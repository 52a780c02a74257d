//! Programs of a newer Debian than this machine's, which `scripts/newer-tools.sh` has unpacked.
#![allow(dead_code, reason = "each test uses its part")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// Its `/usr`, which is the machine's own for what is started over it.
pub struct Tools(PathBuf);

/// A mount namespace with the directory of the first word at `/usr`; the others are the program.
const OVER: &str = "mount --bind \"$0\" /usr && exec \"$@\"";

impl Tools {
    /// What is there; says so if nothing is, or this is not root.
    pub fn there(test: &str) -> Option<Self> {
        let target = Path::new(env!("CARGO_BIN_EXE_underpass")).ancestors().nth(2)?;
        let tree = target.join("newer");
        let why = match tree.join("bin/ip").exists() {
            _ if !nix::unistd::geteuid().is_root() => "not root",
            // Where programs and their loader are not all below /usr there is no other place for them.
            true if fs::read_link("/lib64").is_ok_and(|to| to.ends_with("usr/lib64")) => {
                return Some(Self(tree));
            }
            true => "/lib64 is not /usr/lib64 here",
            false => "scripts/newer-tools.sh has not been run",
        };
        eprintln!("skipped: {test}: {why}");
        None
    }

    /// The same program with the same arguments, of the newer Debian, in a mount namespace of its own. What else the command
    /// has been given (directories, variables, what is done before it starts) is not taken over.
    pub fn over(&self, command: &Command) -> Command {
        let mut over = Command::new("unshare");
        over.args(self.words()).arg(command.get_program()).args(command.get_args());
        over
    }

    /// Arguments of `unshare` before those of a program.
    pub fn words(&self) -> [&str; 5] {
        ["--mount", "sh", "-c", OVER, self.0.to_str().unwrap()]
    }
}
