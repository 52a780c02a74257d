//! One of the routers, with the thread that has started it.

use std::{
    fs::File,
    io::{self, BufRead, BufReader},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use underpass_daemon::child;

use super::Options;

/// How long a router may take to give everything back.
const PATIENCE: Duration = Duration::from_secs(15);
/// How long after its end a router is started anew.
const PAUSE: Duration = Duration::from_secs(1);

/// How far a router is.
#[derive(Debug)]
enum Stage {
    /// It is started, and not ready yet.
    Starting,
    Ready,
    /// It has ended though it should not have.
    Failed,
    /// It has ended as it should, and is not started anew.
    Over,
}

#[derive(Debug)]
struct State {
    stage: Stage,
    /// Whether it is to end.
    ends: bool,
    /// Its process, until that has been waited for.
    process: Option<Pid>,
}

/// A router of a network namespace.
#[derive(Debug)]
pub struct Member {
    /// The inode of the namespace.
    pub namespace: u64,
    path: PathBuf,
    options: Arc<Options>,
    state: Mutex<State>,
    changed: Condvar,
}

impl Member {
    /// Starts the router of the namespace that has this name.
    pub fn start(path: PathBuf, namespace: u64, options: Arc<Options>) -> Arc<Self> {
        let state = Mutex::new(State { stage: Stage::Starting, ends: false, process: None });
        let member = Arc::new(Self { namespace, path, options, state, changed: Condvar::new() });
        let own = Arc::clone(&member);
        // Linux ends the router when the thread that has started it ends.
        if let Err(error) = thread::Builder::new().name("router".to_owned()).spawn(move || own.keep()) {
            member.say(&format!("cannot be started: {error}"));
            member.enter(Stage::Failed);
        }
        member
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, stage: Stage) {
        self.state().stage = stage;
        self.changed.notify_all();
    }

    /// Name of the namespace.
    fn name(&self) -> &Path {
        self.path.file_name().map_or(&self.path, Path::new)
    }

    fn say(&self, what: &str) {
        eprintln!("underpass: the router of network namespace {} {what}", self.name().display());
    }

    /// Keeps a router there until it is to end.
    fn keep(&self) {
        loop {
            let ended = self.run();
            if self.state().ends {
                return self.enter(Stage::Over);
            }
            match ended {
                Ok(status) => self.say(&format!("has ended: {status}")),
                Err(error) => self.say(&format!("cannot be started: {error}")),
            }
            self.enter(Stage::Failed);
            let pause = if self.options.restart { PAUSE } else { Duration::MAX };
            let waits = |state: &mut State| !state.ends;
            drop(self.changed.wait_timeout_while(self.state(), pause, waits));
            if self.state().ends {
                return self.enter(Stage::Over);
            }
        }
    }

    /// Starts a router, and returns when it has ended.
    fn run(&self) -> io::Result<ExitStatus> {
        let Some(mut child) = self.spawn()? else { return Err(io::ErrorKind::NotFound.into()) };
        let name = self.name().to_owned();
        // Its own errors.
        let errors = child.stderr.take().map(|errors| {
            thread::spawn(move || {
                for line in BufReader::new(errors).lines().map_while(Result::ok) {
                    eprintln!("{}: {line}", name.display());
                }
            })
        });
        if let Some(output) = child.stdout.take() {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if line.starts_with("underpass: ready") {
                    self.enter(Stage::Ready);
                }
            }
        }
        if let Some(errors) = errors {
            let _ = errors.join();
        }
        // While nobody can send it a signal: its number is another's afterwards.
        let mut state = self.state();
        state.process = None;
        child.wait()
    }

    /// `None`: the namespace is not there any more, or the router is to end.
    fn spawn(&self) -> io::Result<Option<Child>> {
        let namespace = File::open(&self.path)?;
        if super::names::namespace(&self.path) != Some(self.namespace) {
            return Ok(None);
        }
        let mut command = Command::new(&self.options.program);
        command.arg("run").args(&self.options.arguments);
        if let Some(directory) = &self.options.state {
            command.arg("--state").arg(directory.join(self.name()));
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        child::within(&mut command, Arc::new(OwnedFd::from(namespace)), Signal::SIGTERM);
        let mut state = self.state();
        if state.ends {
            return Ok(None);
        }
        let child = command.spawn()?;
        state.process = Some(Pid::from_raw(child.id() as i32));
        state.stage = Stage::Starting;
        Ok(Some(child))
    }

    /// Waits until it is ready, or has failed: says which.
    pub fn is_ready(&self) -> bool {
        let starts = |state: &mut State| matches!(state.stage, Stage::Starting);
        let state = self.changed.wait_while(self.state(), starts).unwrap_or_else(PoisonError::into_inner);
        matches!(state.stage, Stage::Ready)
    }

    /// Has it end.
    pub fn end(&self) {
        let mut state = self.state();
        state.ends = true;
        self.changed.notify_all();
        if let Some(process) = state.process {
            let _ = kill(process, Signal::SIGTERM);
        }
    }

    /// Waits until it has ended. If that takes too long, it is killed.
    pub fn wait_for_end(&self) {
        let lives = |state: &mut State| state.process.is_some();
        let waited = self.changed.wait_timeout_while(self.state(), PATIENCE, lives);
        let (state, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        if let (true, Some(process)) = (timeout.timed_out(), state.process) {
            self.say("does not end: it is killed");
            let _ = kill(process, Signal::SIGKILL);
            drop(self.changed.wait_while(state, lives));
        }
    }
}
