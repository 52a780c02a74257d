//! Starting a program under supervision, and ending as it ends.
//!
//! The supervisor is the program's parent: so it may read its memory also where only ancestors may (Yama). It passes on
//! signals, stops and continues as the program does, and exits with its status. What the program leaves running is
//! supervised by a process in the background until it ends.
#![allow(unsafe_code)]

use std::{
    ffi::c_int,
    fs::File,
    io,
    os::{
        fd::{AsFd, AsRawFd},
        unix::process::CommandExt,
    },
    process::Command,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    sys::{
        prctl,
        resource::{Resource, getrlimit, setrlimit},
        signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, kill, raise, sigaction},
        signalfd::{SfdFlags, SignalFd},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::{ForkResult, Pid, dup2_stderr, dup2_stdin, dup2_stdout, fork, gettid, setsid},
};

use super::{Routers, Supervisor, filter, listener::Listener, thread::descriptor};
use crate::serve::Waker;

/// Numbers of what the event loop waits for besides calls.
const SIGNALS: u64 = 1;
const CHILD: u64 = 2;

/// Signals that are for the program.
const PASSED_ON: [Signal; 11] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGALRM,
    Signal::SIGCONT,
    Signal::SIGTSTP,
    Signal::SIGTTIN,
    Signal::SIGTTOU,
];

/// Why a program cannot be supervised; each says what to do.
#[derive(Debug, thiserror::Error)]
pub enum SuperviseError {
    /// The kernel is too old, or was built without.
    #[error(
        "this kernel cannot supervise programs by seccomp: Linux 5.19 or newer with CONFIG_SECCOMP_FILTER is needed; \
         --no-seccomp runs the program without, and then it talks to the kernel"
    )]
    Unsupported,
    /// There can be one listener.
    #[error(
        "this program is supervised already, by another `underpass exec` or by a container runtime, and Linux has one \
         supervisor for a program: --no-seccomp runs it under that one"
    )]
    Nested,
    /// The processor.
    #[error("programs cannot be supervised on this processor, only on x86-64 and arm64: see --no-seccomp")]
    Processor,
    /// seccomp(2) fails otherwise, as where a sandbox forbids it.
    #[error("seccomp(2) is refused ({0}): a sandbox may forbid it; --no-seccomp runs the program without")]
    Refused(Errno),
    /// What a supervisor does with the descriptors of a program is forbidden.
    #[error(
        "pidfd_getfd(2) is refused ({0}), by which a supervisor reaches the sockets of a program: a container needs \
         CAP_SYS_PTRACE for it; --no-seccomp runs the program without"
    )]
    Descriptors(Errno),
    /// The program cannot be started.
    #[error("{0}")]
    Start(io::Error),
    /// What the supervisor needs itself.
    #[error("supervising: {0}")]
    System(Errno),
}

impl From<Errno> for SuperviseError {
    fn from(errno: Errno) -> Self {
        Self::System(errno)
    }
}

/// How a program has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// It has exited with this status.
    Exited(i32),
    /// A signal has ended it.
    Killed(Signal),
}

impl Ending {
    /// Ends this process in the same manner.
    pub fn repeat(self) -> ! {
        if let Self::Killed(signal) = self {
            // The program has left the core dump, if any.
            let _ = setrlimit(Resource::RLIMIT_CORE, 0, 0);
            let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
            // SAFETY: no handler is installed.
            let _ = unsafe { sigaction(signal, &default) };
            let _ = SigSet::from(signal).thread_unblock();
            let _ = raise(signal);
        }
        std::process::exit(match self {
            Self::Exited(status) => status,
            Self::Killed(signal) => 128 + signal as i32,
        })
    }
}

/// Signals that are held back in this thread, and in those that it starts from now on, until a program is there for which
/// they are.
#[derive(Debug)]
pub struct Held {
    before: SigSet,
    signals: SignalFd,
}

/// Holds back the signals that are for a program.
///
/// # Errors
/// Those of signalfd(2).
pub fn hold_signals() -> Result<Held, Errno> {
    let held: SigSet = PASSED_ON.into_iter().collect();
    let before = SigSet::thread_get_mask()?;
    held.thread_block()?;
    Ok(Held { before, signals: SignalFd::with_flags(&held, SfdFlags::SFD_CLOEXEC)? })
}

impl Held {
    /// Starts a program that is not supervised, and returns when it has ended. It gets the signals, stops with this process
    /// and ends with the calling thread.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn attend(self, command: Command) -> io::Result<Ending> {
        let mut command = ready(command, self.before);
        let id = Pid::from_raw(command.spawn()?.id() as i32);
        let signals = self.signals;
        thread::Builder::new().name("signals".to_owned()).spawn(move || {
            // It waits for the next one until this process ends.
            while pass_on_next(&signals, id).is_some() {}
        })?;
        let mut ending = Ending::Exited(1);
        wait(id, |change| match change {
            WaitStatus::Exited(_, status) => ending = Ending::Exited(status),
            WaitStatus::Signaled(_, signal, _) => ending = Ending::Killed(signal),
            change => stop_with(change),
        });
        Ok(ending)
    }
}

/// Stops this process as its program has stopped: as a shell expects of its child, whose whole process group it stops and
/// continues.
fn stop_with(change: WaitStatus) {
    if let WaitStatus::Stopped(_, Signal::SIGTSTP | Signal::SIGTTIN | Signal::SIGTTOU) = change {
        let _ = raise(Signal::SIGSTOP);
    }
}

/// Starts a program under supervision; returns when it has ended. Call it from a process of one thread.
///
/// # Errors
/// [`SuperviseError`]: nothing has been started then.
pub fn run(command: Command, routers: Routers) -> Result<Ending, SuperviseError> {
    let architecture = filter::ARCHITECTURE.ok_or(SuperviseError::Processor)?;
    let program = filter::program(architecture, routers.alone());
    let waker = Waker::new().map_err(SuperviseError::Start)?;
    // Tried with its own, before the program finds out.
    descriptor(gettid().as_raw(), waker.as_fd().as_raw_fd()).map_err(SuperviseError::Descriptors)?;
    let signals: SigSet = PASSED_ON.into_iter().collect();
    let before = SigSet::thread_get_mask()?;
    signals.thread_block()?;
    let supervised = supervise(ready(command, before), routers, program, &signals, &waker);
    let _ = before.thread_set_mask();
    supervised
}

fn supervise(
    command: Command,
    routers: Routers,
    program: Vec<libc::sock_filter>,
    signals: &SigSet,
    waker: &Waker,
) -> Result<Ending, SuperviseError> {
    let signals = SignalFd::with_flags(signals, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
    let (listeners, listener) = mpsc::channel();
    let (children, child) = mpsc::channel();
    let (changes, changed) = mpsc::channel();
    let parent = {
        let waker = waker.clone();
        thread::Builder::new().name("program".to_owned()).spawn(move || {
            // The filter is this thread's, and that of all it starts.
            let installed = install(program);
            let failed = installed.is_err();
            if listeners.send(installed).is_err() || failed {
                return;
            }
            let mut command = command;
            // It is waited for by its number.
            let started = command.spawn().map(|child| Pid::from_raw(child.id() as i32));
            let id = started.as_ref().ok().copied();
            let _ = children.send(started);
            waker.wake();
            // Linux ends the program when the thread that has started it ends.
            if let Some(id) = id {
                wait(id, |change| {
                    let _ = changes.send(change);
                    waker.wake();
                });
            }
        })
    };
    let parent = parent.map_err(SuperviseError::Start)?;
    let gone = || SuperviseError::System(Errno::ECHILD);
    let listener = listener.recv().map_err(|_| gone())??;
    let mut supervisor = Supervisor::new(listener, routers)?;
    supervisor.watch(signals.as_fd(), SIGNALS)?;
    supervisor.watch(waker.as_fd(), CHILD)?;
    let mut id = None;
    let ending = loop {
        let seen = supervisor.turn(None)?;
        if let (None, Ok(started)) = (id, child.try_recv()) {
            id = Some(started.map_err(SuperviseError::Start)?);
            raise_limit();
        }
        if seen.others.contains(&SIGNALS) {
            id.into_iter().for_each(|id| pass_on(&signals, id));
        }
        if seen.others.contains(&CHILD) {
            waker.heard();
        }
        let mut ended = None;
        for change in changed.try_iter() {
            match change {
                WaitStatus::Exited(_, status) => ended = Some(Ending::Exited(status)),
                WaitStatus::Signaled(_, signal, _) => ended = Some(Ending::Killed(signal)),
                change => stop_with(change),
            }
        }
        if let Some(ending) = ended {
            break ending;
        }
    };
    // It is about to end, and holds the filter until then.
    let _ = parent.join();
    stay(supervisor);
    Ok(ending)
}

/// Puts the calling thread under the filter.
fn install(mut program: Vec<libc::sock_filter>) -> Result<Listener, SuperviseError> {
    Listener::install(&mut program).map_err(|errno| match errno {
        Errno::EINVAL | Errno::ENOSYS => SuperviseError::Unsupported,
        Errno::EBUSY => SuperviseError::Nested,
        errno => SuperviseError::Refused(errno),
    })
}

/// A program that ends with this process, and blocks these signals.
fn ready(mut command: Command, blocked: SigSet) -> Command {
    let prepare = move || {
        prctl::set_pdeathsig(Signal::SIGKILL)?;
        Ok(blocked.thread_set_mask()?)
    };
    // SAFETY: prctl(2) and sigprocmask(2) are async-signal-safe, and nothing else is called.
    unsafe { command.pre_exec(prepare) };
    command
}

/// Waits until a program ends, and says what becomes of it in between.
fn wait(id: Pid, mut say: impl FnMut(WaitStatus)) {
    loop {
        match waitpid(id, Some(WaitPidFlag::WUNTRACED)) {
            Err(Errno::EINTR) => {}
            Err(_) => return say(WaitStatus::Exited(id, 1)),
            Ok(change) => {
                say(change);
                if matches!(change, WaitStatus::Exited(..) | WaitStatus::Signaled(..)) {
                    return;
                }
            }
        }
    }
}

/// Passes on signals that somebody has sent to this process. Those of a terminal its whole process group has got.
fn pass_on(signals: &SignalFd, id: Pid) {
    while pass_on_next(signals, id).is_some() {}
}

/// Passes on the next signal; `None` if there is none.
fn pass_on_next(signals: &SignalFd, id: Pid) -> Option<()> {
    let signal = signals.read_signal().ok()??;
    let sent_by_a_process = signal.ssi_code <= 0;
    if let (true, Ok(signal)) = (sent_by_a_process, Signal::try_from(signal.ssi_signo as c_int)) {
        let _ = kill(id, signal);
    }
    Some(())
}

/// Each socket of a program takes two descriptors here: as many as this process may have.
fn raise_limit() {
    if let Ok((_, most)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, most, most);
    }
}

/// Supervises what the program has left running, in a process of its own.
fn stay(mut supervisor: Supervisor) {
    // The kernel takes a moment to see that the last one has gone.
    let end = Instant::now() + Duration::from_millis(10);
    while Instant::now() < end {
        match supervisor.turn(Some(Duration::from_millis(1))) {
            Ok(seen) if !seen.deserted => {}
            _ => return,
        }
    }
    // SAFETY: there is one thread: the other has been waited for.
    let Ok(ForkResult::Child) = (unsafe { fork() }) else { return };
    let _ = setsid();
    if let Ok(null) = File::options().read(true).write(true).open("/dev/null") {
        let _ = dup2_stdin(&null);
        let _ = dup2_stdout(&null);
        let _ = dup2_stderr(&null);
    }
    let _ = SigSet::all().thread_unblock();
    while supervisor.turn(None).is_ok_and(|seen| !seen.deserted) {}
    std::process::exit(0)
}
