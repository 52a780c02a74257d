//! `run --offline`: a router with virtual ports as a daemon.

use std::{
    fs,
    io::{self, Write},
    os::unix::{
        fs::PermissionsExt,
        net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc::{Receiver, Sender, channel},
    },
    thread,
    time::Duration,
};

use anyhow::Context;
use nix::sys::signal::SigSet;
use underpass_control::Router;

use crate::{
    fpm::Fpm,
    limits::patiently,
    live::{
        Answer, SAVE, SAVE_PATIENCE, Topic, first_line, offline_answer, stats_path, trace::refuse, trace_path,
    },
    offline,
    persist::{Keeper, Lines, StateDirectory},
    port_spec::PortSpec,
    script::ScriptError,
    serve::{self, Server, Waker},
    startup::{Failed, Served, Startup},
};

/// How somebody who asks what is configured may take to say so.
const QUESTION_PATIENCE: Duration = Duration::from_millis(200);

/// How it is to run.
#[derive(Debug)]
pub struct Options<'a> {
    /// Its ports.
    pub ports: &'a [PortSpec],
    /// Path of its socket.
    pub socket: &'a Path,
    /// Lines to be run at the start.
    pub startup: Option<Startup>,
    /// Whether requests may ask for what Linux has no numbers for.
    pub experimental: bool,
    /// Where what is configured is kept.
    pub state: Option<StateDirectory>,
}

/// What the control thread is told.
enum Word {
    /// Somebody wants to know what is configured.
    Saved(Sender<Lines>),
    /// Somebody wants to know what there is, and what was counted of it.
    Stats(Topic, Sender<Answer>),
    /// The lines of the start have been run.
    Started(Result<Failed, ScriptError>),
}

/// The way to the control thread.
#[derive(Clone)]
struct Words {
    sender: Sender<Word>,
    waker: Waker,
}

impl Words {
    fn send(&self, word: Word) -> Option<()> {
        self.sender.send(word).ok()?;
        self.waker.wake();
        Some(())
    }

    fn saved(&self) -> Option<Lines> {
        let (to, answer) = channel();
        self.send(Word::Saved(to))?;
        answer.recv_timeout(SAVE_PATIENCE).ok()
    }

    fn stats(&self, topic: Topic) -> Option<Answer> {
        let (to, answer) = channel();
        self.send(Word::Stats(topic, to))?;
        answer.recv_timeout(SAVE_PATIENCE).ok()
    }
}

/// The file of a socket, which goes when this is dropped.
struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Runs until one of `signals`, which must be blocked in every thread, ends it; FRR programs it through `fpm`.
///
/// # Errors
/// What is missing, or a line of the start that fails.
pub fn run(options: Options<'_>, mut fpm: Option<Fpm>, signals: SigSet) -> anyhow::Result<()> {
    let Options { ports, socket, startup, experimental, state } = options;
    let (mut router, _tables, _readers) = offline::router(ports, 0)?;
    if experimental {
        router.allow_experimental();
    }
    router.keep_indices(state.as_ref().map(StateDirectory::indices).unwrap_or_default());
    let mut server = Server::listen(socket, &serve::Options::default())?;
    let (stop, waker) = (Arc::new(AtomicBool::new(false)), server.waker());
    let stopped = Arc::clone(&stop);
    thread::Builder::new().name("signals".to_owned()).spawn(move || {
        if signals.wait().is_ok() {
            stopped.store(true, Relaxed);
            waker.wake();
        }
    })?;
    let (sender, heard) = channel();
    let words = Words { sender, waker: server.waker() };
    let _files = [listen(socket, words.clone())?, refuse_traces(socket)?];
    let router = Arc::new(Mutex::new(router));
    match startup {
        Some(startup) => {
            server.serve_own();
            let target = Served { socket: socket.to_owned(), variables: Arc::clone(&router) };
            let words = words.clone();
            thread::Builder::new().name("startup".to_owned()).spawn(move || {
                words.send(Word::Started(startup.run(&target)));
            })?;
        }
        None => {
            words.send(Word::Started(Ok(Failed::default())));
        }
    }
    let mut daemon = Daemon {
        words,
        heard,
        state,
        keeper: None,
        ready: false,
        seen: 0,
        outcome: Ok(()),
        socket: server.path().to_owned(),
    };
    offline::serve(&mut server, fpm.as_mut(), &router, &stop, |router, fpm| {
        if daemon.turned(router, fpm).is_none() {
            stop.store(true, Relaxed);
        }
        daemon.ready
    })?;
    let kept = daemon.close(&router.lock().unwrap_or_else(std::sync::PoisonError::into_inner), fpm.as_ref());
    daemon.outcome.and(kept)
}

/// What is configured, but for what zebra sends again.
fn saved(router: &Router, fpm: Option<&Fpm>) -> Lines {
    match fpm {
        Some(fpm) => Lines::of(router, fpm.kept()),
        None => Lines::of(router, &()),
    }
}

/// The control thread's state.
struct Daemon {
    words: Words,
    heard: Receiver<Word>,
    state: Option<StateDirectory>,
    keeper: Option<Keeper>,
    /// The lines of the start have been run.
    ready: bool,
    seen: u64,
    outcome: anyhow::Result<()>,
    socket: PathBuf,
}

impl Daemon {
    /// Hears what it is told, and reports what has changed; `None` if it cannot go on.
    fn turned(&mut self, router: &Router, fpm: Option<&Fpm>) -> Option<()> {
        while let Ok(word) = self.heard.try_recv() {
            match word {
                Word::Saved(to) => {
                    let _ = to.send(saved(router, fpm));
                }
                Word::Stats(topic, to) => {
                    let _ = to.send(offline_answer(router, topic));
                }
                Word::Started(done) => {
                    self.outcome = done.map_err(Into::into).and_then(|failed| self.started(&failed));
                    self.outcome.as_ref().ok()?;
                }
            }
        }
        if let Some(keeper) = &self.keeper
            && self.seen != router.changes()
        {
            self.seen = router.changes();
            keeper.changed();
        }
        Some(())
    }

    fn started(&mut self, failed: &Failed) -> anyhow::Result<()> {
        failed.log();
        if let Some(state) = self.state.take() {
            failed.keep(&state);
            let words = self.words.clone();
            self.keeper = Some(Keeper::start(state, move || words.saved())?);
        }
        self.ready = true;
        // Whoever started us may not read it.
        let _ = writeln!(io::stdout(), "underpass: ready at {}", self.socket.display());
        Ok(())
    }

    /// Writes the last state.
    fn close(&self, router: &Router, fpm: Option<&Fpm>) -> anyhow::Result<()> {
        self.keeper.as_ref().map_or(Ok(()), |keeper| keeper.close(saved(router, fpm)))
    }
}

/// A socket that its owner alone may use.
fn bind(path: PathBuf) -> anyhow::Result<(UnixListener, SocketFile)> {
    // Whoever listened at the socket before is gone.
    let _ = fs::remove_file(&path);
    let listener = UnixListener::bind(&path).with_context(|| path.display().to_string())?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
    Ok((listener, SocketFile(path)))
}

/// Answers `underpass save`, `stats` and `top` beside the socket.
fn listen(socket: &Path, words: Words) -> anyhow::Result<SocketFile> {
    let (listener, file) = bind(stats_path(socket))?;
    thread::Builder::new().name("stats".to_owned()).spawn(move || {
        for connection in patiently(listener.incoming(), "a client of the stats socket") {
            if let Err(error) = answer(&connection, &words) {
                tracing::debug!("a client of the stats socket: {error}");
            }
        }
    })?;
    Ok(file)
}

/// Answers `underpass trace`: there are no packets to be followed.
fn refuse_traces(socket: &Path) -> anyhow::Result<SocketFile> {
    let (listener, file) = bind(trace_path(socket))?;
    thread::Builder::new().name("trace".to_owned()).spawn(move || {
        for connection in patiently(listener.incoming(), "a client of the trace socket") {
            let why =
                "no packet moves in an offline router: `underpass replay --trace` sends captures through one";
            // Read first: a connection that is closed with something unread is reset.
            let refused =
                first_line(&connection, 1 << 20, QUESTION_PATIENCE).and_then(|_| refuse(&connection, why));
            if let Err(error) = refused {
                tracing::debug!("a client of the trace socket: {error}");
            }
        }
    })?;
    Ok(file)
}

fn answer(mut connection: &UnixStream, words: &Words) -> io::Result<()> {
    connection.set_write_timeout(Some(SAVE_PATIENCE))?;
    let line = first_line(connection, 64, QUESTION_PATIENCE)?;
    let mut text = if line.trim() == SAVE {
        serde_json::to_vec(&words.saved().ok_or(io::ErrorKind::TimedOut)?)?
    } else {
        let topic = Topic::parse(&line).ok_or(io::ErrorKind::InvalidInput)?;
        serde_json::to_vec(&words.stats(topic).ok_or(io::ErrorKind::TimedOut)?.here())?
    };
    text.push(b'\n');
    connection.write_all(&text)
}
