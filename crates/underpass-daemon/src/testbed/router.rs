//! `underpass run` in a network namespace.

use std::{
    fs::File,
    io::{Read, Seek},
    path::{Path, PathBuf},
    process::{Child, Command},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use super::namespace::{self, Namespace, Outcome, brief, finish, number, wait};
use crate::live::Stats;

/// How long a router may take until it is ready, with what it may have to restore.
const START_PATIENCE: Duration = Duration::from_secs(60);
/// How long it may take until it has given everything back.
const PATIENCE: Duration = Duration::from_secs(15);

/// What configures the router of a network namespace, whether one runs there now or not.
#[derive(Clone, Debug)]
pub struct Client {
    program: PathBuf,
    namespace: Namespace,
}

/// A router of a network namespace. It ends when this is dropped, or when the thread that started it
/// ends.
#[derive(Debug)]
pub struct Router {
    client: Client,
    child: Child,
    log: File,
}

impl Client {
    /// `program`, to be started by `underpass exec`: its netlink sockets lead to the router.
    pub fn command(&self, program: &str) -> Command {
        let mut command = self.namespace.command(&self.program);
        clean(&mut command).args(["exec", "--", program]);
        command
    }

    /// Runs lines of shell through `underpass exec`; they must succeed. What they printed.
    ///
    /// # Errors
    /// As [`Namespace::run`].
    pub fn run(&self, lines: &str) -> anyhow::Result<String> {
        self.outcome(lines)?.success(lines, self.namespace.name())
    }

    /// What it has counted: `underpass stats --json`.
    ///
    /// # Errors
    /// No router answers.
    pub fn stats(&self) -> anyhow::Result<Stats> {
        let mut command = self.namespace.command(&self.program);
        clean(&mut command).args(["stats", "--json"]);
        let printed =
            finish(&mut command, namespace::PATIENCE)?.success("underpass stats", self.namespace.name())?;
        serde_json::from_str(&printed).context("underpass stats --json")
    }

    /// Runs lines of shell through `underpass exec`.
    ///
    /// # Errors
    /// As [`Namespace::outcome`].
    pub fn outcome(&self, lines: &str) -> anyhow::Result<Outcome> {
        let mut command = self.command("sh");
        command.args(["-ec", lines]);
        finish(&mut command, namespace::PATIENCE)
            .with_context(|| format!("in {}: {}", self.namespace.name(), brief(lines)))
    }
}

impl std::ops::Deref for Router {
    type Target = Client;
    fn deref(&self) -> &Client {
        &self.client
    }
}

impl Router {
    /// Starts `program run` with `arguments` in `namespace` and waits until it is ready.
    ///
    /// # Errors
    /// It ends, or is not ready in time; with what it said.
    pub fn start(program: &Path, namespace: &Namespace, arguments: &[&str]) -> anyhow::Result<Self> {
        let (said, log) = (tempfile::tempfile()?, tempfile::tempfile()?);
        let mut command = namespace.command_ended_by(program, Signal::SIGTERM);
        clean(&mut command)
            .arg("run")
            .args(arguments)
            .args(fast_path(arguments))
            .stdout(said.try_clone()?)
            .stderr(log.try_clone()?);
        let child = command.spawn().with_context(|| program.display().to_string())?;
        let client = Client { program: program.to_owned(), namespace: namespace.clone() };
        let mut router = Self { client, child, log };
        let deadline = Instant::now() + START_PATIENCE;
        while !text(&said)?.contains("ready") {
            let ended = router.child.try_wait()?;
            if ended.is_some() || Instant::now() > deadline {
                let what = ended.map_or("is not ready".to_owned(), |status| format!("ended: {status}"));
                bail!("the router of {} {what}\n{}", namespace.name(), router.log()?.trim_end());
            }
            thread::sleep(Duration::from_millis(2));
        }
        Ok(router)
    }

    /// Its process.
    pub fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id() as i32)
    }

    /// What it wrote to standard error.
    ///
    /// # Errors
    /// Those of reading a file.
    pub fn log(&self) -> anyhow::Result<String> {
        text(&self.log)
    }

    /// Ends it by SIGTERM, upon which it gives everything back.
    ///
    /// # Errors
    /// It does not end in time, or not with status 0; with what it said.
    pub fn stop(mut self) -> anyhow::Result<()> {
        kill(self.pid(), Signal::SIGTERM)?;
        let ended = wait(&mut self.child, PATIENCE)?;
        match ended.map(number) {
            Some(0) => Ok(()),
            Some(status) => {
                bail!("the router of {} ended with status {status}\n{}", self.namespace.name(), self.log()?)
            }
            None => bail!("the router of {} does not end\n{}", self.namespace.name(), self.log()?),
        }
    }

    /// Kills it, so that it can give nothing back.
    ///
    /// # Errors
    /// Those of kill(2) and waitpid(2).
    pub fn kill(mut self) -> anyhow::Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = kill(self.pid(), Signal::SIGTERM);
            if !matches!(wait(&mut self.child, PATIENCE), Ok(Some(_))) {
                let _ = self.child.kill();
                let _ = self.child.wait();
            }
        }
    }
}

/// What says whether the kernel is to carry packets by itself, where the router is not told: so the same tests run with and
/// without.
fn fast_path(arguments: &[&str]) -> Vec<String> {
    let mode = std::env::var("UNDERPASS_TEST_FAST_PATH").ok();
    let mode =
        mode.filter(|_| !arguments.iter().any(|argument| matches!(*argument, "--fast-path" | "--offline")));
    mode.map_or_else(Vec::new, |mode| vec!["--fast-path".to_owned(), mode])
}

/// Without what would lead it to another router than that of its namespace.
fn clean(command: &mut Command) -> &mut Command {
    command.env_remove("UNDERPASS_SOCKET").env_remove("LD_PRELOAD").env_remove("XDG_RUNTIME_DIR")
}

/// All that a file holds that another process writes.
fn text(file: &File) -> anyhow::Result<String> {
    // The offset is the writer's too: a copy of the file's own is read.
    let mut own = File::open(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(file)))?;
    own.rewind()?;
    let mut bytes = Vec::new();
    own.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
