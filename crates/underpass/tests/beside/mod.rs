//! A network namespace with a server in it that stands beside the namespace's kernel.
#![allow(dead_code, reason = "each test uses its part")]

use std::{
    fs::File,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
        mpsc,
    },
    thread::{self, JoinHandle},
};

use nix::sched::{CloneFlags, setns};
use underpass_daemon::{
    launch,
    serve::{Host, Options, Server, Waker},
};

use crate::daemon::{Outcome, UNDERPASS, run};

/// Whether network namespaces can be made; says so where not.
pub fn possible() -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        println!("SKIPPED: needs root");
    }
    root
}

/// A named network namespace; dropping it removes it.
pub struct Namespace(pub String);

impl Namespace {
    pub fn new(name: &str) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Relaxed);
        let this = Self(format!("up-merge-{}-{number}-{name}", std::process::id()));
        let made = Command::new("ip").args(["netns", "add", &this.0]).status().unwrap();
        assert!(made.success());
        this
    }

    /// Runs a program in it, without the library: what the kernel says.
    pub fn plain(&self, line: &str) -> Outcome {
        run(Command::new("ip").args(["netns", "exec", &self.0]).args(line.split_whitespace()))
    }

    /// Runs `line`, which must succeed, without the library.
    pub fn kernel(&self, line: &str) -> String {
        let outcome = self.plain(line);
        assert_eq!(outcome.status, 0, "{line}: {}", outcome.output);
        outcome.output
    }

    /// `underpass exec` of a program in it, to be started.
    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.0, UNDERPASS, "exec", "--"]).args(words);
        command.env_remove("UNDERPASS_SOCKET").env_remove("UNDERPASS_RUNTIME");
        command
    }

    /// Runs a program in it under `underpass exec`.
    pub fn exec(&self, line: &str) -> Outcome {
        run(&mut self.command(&line.split_whitespace().collect::<Vec<_>>()))
    }

    /// Runs `line`, which must succeed, under `underpass exec`.
    pub fn succeeds(&self, line: &str) -> String {
        let outcome = self.exec(line);
        assert_eq!(outcome.status, 0, "{line}: {}", outcome.output);
        outcome.output
    }

    /// The path by which it can be entered.
    pub fn path(&self) -> PathBuf {
        Path::new("/run/netns").join(&self.0)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

/// A server in a namespace, in a thread of this process; dropping it ends it.
pub struct Live {
    pub socket: PathBuf,
    stop: Arc<AtomicBool>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

impl Live {
    /// Serves in `namespace`; `host` is called there.
    pub fn start<H: Host>(namespace: &Namespace, host: impl FnOnce() -> H + Send + 'static) -> Self {
        let entrance = File::open(namespace.path()).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let (ready, is_ready) = mpsc::channel();
        let thread = thread::spawn(move || {
            setns(entrance, CloneFlags::CLONE_NEWNET).unwrap();
            let socket = launch::namespace_socket().unwrap();
            let mut host = host();
            let mut server = Server::listen(&socket, &Options { live: true, group: None }).unwrap();
            ready.send((socket, server.waker())).unwrap();
            while !stopped.load(Relaxed) {
                let events = server.wait().unwrap();
                server.turn(&mut host, &events);
            }
        });
        let (socket, waker) = is_ready.recv().unwrap();
        Self { socket, stop, waker, thread: Some(thread) }
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
