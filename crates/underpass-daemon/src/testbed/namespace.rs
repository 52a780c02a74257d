//! A network namespace without a name, the programs that run in it, and the veth pairs between two.

use std::{
    fs::{self, File},
    io::{self, Read, Seek},
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::process::ExitStatusExt,
    },
    process::{self, Child, Command, ExitStatus, Stdio},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use nix::{
    sched::{CloneFlags, setns, unshare},
    sys::signal::{Signal, killpg},
    unistd::Pid,
};

use crate::child;

/// How long a line may take.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// A network namespace. It goes, with its devices, when this is dropped and no process is left in it.
#[derive(Clone, Debug)]
pub struct Namespace {
    name: String,
    handle: Arc<OwnedFd>,
}

/// How a line ended, and what it printed: standard output and errors, in the order of writing.
#[derive(Debug)]
pub struct Outcome {
    /// Exit status; 128 + the signal that ended it.
    pub status: i32,
    /// All that it printed.
    pub output: String,
}

impl Namespace {
    /// A new one, whose `lo` is up. Its devices' addresses can be used at once: there is no duplicate
    /// address detection.
    ///
    /// # Errors
    /// Those of unshare(2): EPERM where the caller is not root.
    pub fn new(name: &str) -> anyhow::Result<Self> {
        let made = thread::spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET)?;
            for conf in ["all", "default"] {
                for (key, value) in [("accept_dad", "0"), ("router_solicitations", "0")] {
                    fs::write(format!("/proc/sys/net/ipv6/conf/{conf}/{key}"), value)?;
                }
            }
            File::open("/proc/thread-self/ns/net")
        });
        let Ok(made) = made.join() else { bail!("the thread of namespace {name} panicked") };
        let file = made.with_context(|| format!("cannot make network namespace {name}"))?;
        let namespace = Self { name: name.to_owned(), handle: Arc::new(file.into()) };
        namespace.run("ip link set lo up")?;
        Ok(namespace)
    }

    /// The name for people: the kernel does not know it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A path that leads to it as long as this process lives, for `ip link add … netns PATH`.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", process::id(), self.handle.as_raw_fd())
    }

    /// `program`, to be started in it. It is killed when the thread that starts it ends.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        self.command_ended_by(program, Signal::SIGKILL)
    }

    /// The same, but `end` is the signal.
    pub(super) fn command_ended_by(&self, program: impl AsRef<std::ffi::OsStr>, end: Signal) -> Command {
        let mut command = Command::new(program);
        child::within(&mut command, Arc::clone(&self.handle), end);
        command
    }

    /// Runs lines of shell; they must succeed. What they printed.
    ///
    /// # Errors
    /// A status other than 0, with what was printed; more than a minute.
    pub fn run(&self, lines: &str) -> anyhow::Result<String> {
        self.outcome(lines)?.success(lines, &self.name)
    }

    /// Runs lines of shell.
    ///
    /// # Errors
    /// The shell cannot be started; more than a minute.
    pub fn outcome(&self, lines: &str) -> anyhow::Result<Outcome> {
        let mut command = self.command("sh");
        command.args(["-ec", lines]);
        finish(&mut command, PATIENCE).with_context(|| format!("in {}: {}", self.name, brief(lines)))
    }

    /// Runs `ip` with these arguments, of which no shell makes anything; it must succeed.
    ///
    /// # Errors
    /// As [`Namespace::run`].
    pub fn ip(&self, arguments: &[&str]) -> anyhow::Result<()> {
        let line = format!("ip {}", arguments.join(" "));
        finish(self.command("ip").args(arguments), PATIENCE)?.success(&line, &self.name)?;
        Ok(())
    }

    /// How many packets a device of it has received.
    ///
    /// # Errors
    /// There is no such device.
    pub fn received(&self, device: &str) -> anyhow::Result<u64> {
        let text = self.enter(|| fs::read_to_string("/proc/thread-self/net/dev"))??;
        let line = text.lines().find_map(|line| line.trim_start().strip_prefix(device)?.strip_prefix(':'));
        let packets = line.and_then(|counters| counters.split_whitespace().nth(1)?.parse().ok());
        packets.with_context(|| format!("no counters of {device} in {}", self.name))
    }

    /// Calls `action` in a thread of this namespace: sockets that it opens belong there wherever they are used.
    ///
    /// # Errors
    /// Those of setns(2), and of no more threads.
    pub fn enter<T: Send>(&self, action: impl FnOnce() -> T + Send) -> io::Result<T> {
        thread::scope(|scope| {
            let inside = thread::Builder::new().spawn_scoped(scope, || {
                setns(&*self.handle, CloneFlags::CLONE_NEWNET)?;
                Ok(action())
            })?;
            inside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

impl Outcome {
    /// What was printed, if the status is 0.
    pub(super) fn success(self, lines: &str, place: &str) -> anyhow::Result<String> {
        match self.status {
            0 => Ok(self.output),
            status => bail!("in {place}: {}: status {status}\n{}", brief(lines), self.output.trim_end()),
        }
    }
}

/// Lines as a message quotes them: a whole script is not.
pub(super) fn brief(lines: &str) -> &str {
    match lines.len() {
        0..=300 => lines,
        _ => "a script",
    }
}

/// Joins two namespaces by a veth pair: its ends are `first` in one and `second` in the other, both down.
///
/// # Errors
/// Those of `ip link add`.
pub fn join(one: &Namespace, first: &str, other: &Namespace, second: &str) -> anyhow::Result<()> {
    let path = other.path();
    one.ip(&["link", "add", first, "type", "veth", "peer", "name", second, "netns", &path])
}

/// Runs a command that reads nothing, to its end.
///
/// # Errors
/// It cannot be started, or does not end within `patience`: with what it printed.
pub fn finish(command: &mut Command, patience: Duration) -> anyhow::Result<Outcome> {
    let mut printed = tempfile::tempfile()?;
    command.stdin(Stdio::null()).stdout(printed.try_clone()?).stderr(printed.try_clone()?);
    let mut child = command.spawn()?;
    let ended = wait(&mut child, patience);
    // What it left in the background too.
    if !matches!(ended, Ok(Some(_))) {
        let _ = killpg(Pid::from_raw(child.id() as i32), Signal::SIGKILL);
        let _ = child.wait();
    }
    printed.rewind()?;
    let mut bytes = Vec::new();
    printed.read_to_end(&mut bytes)?;
    let output = String::from_utf8_lossy(&bytes).into_owned();
    match ended? {
        Some(status) => Ok(Outcome { status: number(status), output }),
        None => bail!("no end after {} s\n{}", patience.as_secs(), output.trim_end()),
    }
}

/// Waits until `child` ends; `None` if it does not in time.
pub(super) fn wait(child: &mut Child, patience: Duration) -> io::Result<Option<ExitStatus>> {
    let deadline = Instant::now() + patience;
    loop {
        match child.try_wait()? {
            None if Instant::now() < deadline => thread::sleep(Duration::from_millis(2)),
            ended => return Ok(ended),
        }
    }
}

/// As the shell numbers it.
pub(super) fn number(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}
