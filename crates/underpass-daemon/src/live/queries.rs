//! `underpass stats` and `trace`, at sockets beside the router's own, and Prometheus. Threads listen to them and send
//! queries to the control thread, which alone has the answers.

use std::{
    ffi::OsString,
    fs,
    io::{self, Read, Write},
    net::{IpAddr, SocketAddr, TcpListener},
    os::unix::{
        fs::{PermissionsExt, chown},
        net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
    sync::{
        Arc,
        mpsc::{Receiver, Sender, SyncSender, channel},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::Context;
use serde::Serialize;
use underpass_control::{Matched, RequestError};
use underpass_engine::tables::{ActionId, Reader, Tables};

use super::{
    drops::Dropped,
    location::Location,
    state::{Routes, State},
    stats::{Mpls, Stats, Topic},
    trace,
    tracer::{Seen, Spec},
    web::{Web, serve},
};
use crate::{
    limits::patiently,
    packet_path::LinkName,
    persist::Lines,
    script::ScriptError,
    serve::Waker,
    startup::{Failed, Variables},
};

/// How long somebody who asks may take to read the answer, and the control thread to give it.
pub const PATIENCE: Duration = Duration::from_secs(2);
/// How long somebody who asks may take to say what for.
const QUERY_PATIENCE: Duration = Duration::from_millis(200);

/// The query to which what is configured is the answer.
pub const SAVE: &str = "save";
/// How long that may take: there may be very much.
pub const SAVE_PATIENCE: Duration = Duration::from_secs(60);

/// The socket for statistics of the router at `socket`.
pub fn stats_path(socket: &Path) -> PathBuf {
    beside(socket, ".stats")
}

/// Where the router at `socket` lets packets be followed.
pub fn trace_path(socket: &Path) -> PathBuf {
    beside(socket, ".trace")
}

fn beside(socket: &Path, suffix: &str) -> PathBuf {
    let mut path = OsString::from(socket);
    path.push(suffix);
    path.into()
}

/// The answer to a query.
#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
pub enum Answer {
    /// To [`Topic::All`].
    All(Box<Stats>),
    /// To [`Topic::Mpls`].
    Mpls(Mpls),
    /// To [`Topic::State`].
    State(Box<State>),
    /// To [`Topic::Drops`].
    Drops(Vec<Dropped>),
    /// To [`Topic::Routes`].
    Routes(Box<Routes>),
}

impl Answer {
    /// With where the calling thread is, if that is part of it.
    #[must_use]
    pub fn here(mut self) -> Self {
        if let Self::State(state) = &mut self {
            state.location = Location::here();
        }
        self
    }
}

/// Queries and orders to the control thread.
pub enum Query {
    /// What has been counted.
    Stats(Topic, Sender<Answer>),
    /// Which links there are.
    Links(Sender<Vec<LinkName>>),
    /// Let the workers follow packets for somebody more. The answer: why the kernel carries no packets meanwhile, if it is not
    /// only those that match.
    Trace((Arc<Spec>, SyncSender<Arc<Seen>>), Sender<Option<String>>),
    /// Let them follow none for who asked for these; nothing if that is done.
    TraceNoMore(Arc<Spec>),
    /// Which routes look-ups of these addresses have found, that have ended in these actions; a list for each.
    Matched(Vec<(IpAddr, ActionId)>, Sender<Vec<Vec<Matched>>>),
    /// How many workers there are.
    Workers(Sender<usize>),
    /// What is configured.
    Saved(Sender<Lines>),
    /// Reads a variable, by its path below `/proc/sys/net`.
    ReadVariable(String, Sender<Result<String, RequestError>>),
    /// Writes one.
    WriteVariable(String, Vec<u8>, Sender<Result<(), RequestError>>),
    /// The lines of the start have been run: those that failed, or the one that had to succeed.
    Started(Result<Failed, ScriptError>),
}

/// Sends queries to the control thread.
#[derive(Clone)]
pub struct QuerySender {
    sender: Sender<Query>,
    waker: Waker,
}

impl QuerySender {
    /// Sends an order to the control thread.
    ///
    /// # Errors
    /// It has ended.
    pub fn send(&self, query: Query) -> io::Result<()> {
        self.sender.send(query).map_err(io::Error::other)?;
        self.waker.wake();
        Ok(())
    }

    /// Sends it a query and waits for the answer.
    ///
    /// # Errors
    /// It has ended, or takes too long.
    pub fn query<A>(&self, query: impl FnOnce(Sender<A>) -> Query) -> io::Result<A> {
        self.query_within(query, PATIENCE)
    }

    fn query_within<A>(&self, query: impl FnOnce(Sender<A>) -> Query, patience: Duration) -> io::Result<A> {
        let (answer, answered) = channel();
        self.send(query(answer))?;
        answered.recv_timeout(patience).map_err(io::Error::other)
    }

    /// What is configured.
    ///
    /// # Errors
    /// As [`QuerySender::query`].
    pub fn saved(&self) -> io::Result<Lines> {
        self.query_within(Query::Saved, SAVE_PATIENCE)
    }

    fn counted(&self, topic: Topic) -> io::Result<Answer> {
        // Names are looked for here, where no other query waits.
        Ok(self.query(|to| Query::Stats(topic, to))?.here())
    }

    /// Answers a connection.
    fn answer(&self, mut connection: &UnixStream) -> io::Result<()> {
        connection.set_write_timeout(Some(PATIENCE))?;
        let line = first_line(connection, 64, QUERY_PATIENCE)?;
        let mut text = if line.trim() == SAVE {
            serde_json::to_vec(&self.saved()?)?
        } else {
            let topic = Topic::parse(&line).ok_or(io::ErrorKind::InvalidInput)?;
            serde_json::to_vec(&self.counted(topic)?)?
        };
        text.push(b'\n');
        connection.write_all(&text)
    }
}

impl Variables for QuerySender {
    fn read(&self, path: &str) -> Result<String, RequestError> {
        let query = |answer| Query::ReadVariable(path.to_owned(), answer);
        self.query(query).map_err(|_| RequestError::errno(libc::EAGAIN))?
    }

    fn write(&self, path: &str, value: &[u8]) -> Result<(), RequestError> {
        let query = |answer| Query::WriteVariable(path.to_owned(), value.to_vec(), answer);
        self.query(query).map_err(|_| RequestError::errno(libc::EAGAIN))?
    }
}

/// The first line that a client writes, of `limit` bytes at most, as far as it has come in time.
pub fn first_line(mut connection: &UnixStream, limit: usize, patience: Duration) -> io::Result<String> {
    let deadline = Instant::now() + patience;
    let (mut line, mut part) = (Vec::new(), [0; 1024]);
    while !line.contains(&b'\n') && line.len() < limit {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        connection.set_read_timeout(Some(left))?;
        match connection.read(&mut part) {
            Ok(0) => break,
            Ok(length) => line.extend_from_slice(&part[..length]),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                break;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default();
    Ok(String::from_utf8_lossy(line).into_owned())
}

/// The queries that come in, and the socket files, which are removed when this is dropped.
pub struct Listeners {
    /// To be answered by the control thread.
    pub queries: Receiver<Query>,
    /// For threads of the router that have queries of their own.
    pub sender: QuerySender,
    files: [PathBuf; 2],
}

impl Drop for Listeners {
    fn drop(&mut self) {
        for file in &self.files {
            let _ = fs::remove_file(file);
        }
    }
}

/// A socket file that the group may use too, if there is one.
fn bind(file: &Path, group: Option<u32>) -> io::Result<UnixListener> {
    // Whoever held the lock of the namespace before is gone.
    let _ = fs::remove_file(file);
    let listener = UnixListener::bind(file)?;
    let mode = if group.is_some() { 0o660 } else { 0o600 };
    fs::set_permissions(file, fs::Permissions::from_mode(mode))?;
    if group.is_some() {
        chown(file, None, group)?;
    }
    Ok(listener)
}

/// Listens beside `socket`, and for Prometheus if it asks somewhere. `tables` and `watcher` tell what packets found.
///
/// # Errors
/// The socket or the port that cannot be listened at, and why.
pub fn listen(
    socket: &Path,
    metrics: Option<SocketAddr>,
    group: Option<u32>,
    waker: &Waker,
    (tables, watcher): (Arc<Tables>, Reader),
) -> anyhow::Result<Listeners> {
    let files = [stats_path(socket), trace_path(socket)];
    let bound = |file: &Path| bind(file, group).with_context(|| file.display().to_string());
    let [stats, tracing] = [bound(&files[0])?, bound(&files[1])?];
    let (sender, receiver) = channel();
    let queries = QuerySender { sender, waker: waker.clone() };
    let sender = queries.clone();
    if let Some(address) = metrics {
        let listener = TcpListener::bind(address).with_context(|| format!("--metrics {address}"))?;
        let queries = queries.clone();
        thread::Builder::new().name("metrics".to_owned()).spawn(move || {
            if let Err(error) = serve(Web::new(move |topic| queries.counted(topic)), &listener) {
                tracing::error!("the page: {error}");
            }
        })?;
    }
    let following = trace::Following::new(queries.clone(), tables, watcher);
    thread::Builder::new().name("trace".to_owned()).spawn(move || following.listen(&tracing))?;
    thread::Builder::new().name("stats".to_owned()).spawn(move || {
        for connection in patiently(stats.incoming(), "a client of the stats socket") {
            if let Err(error) = queries.answer(&connection) {
                tracing::debug!("a client of the stats socket: {error}");
            }
        }
    })?;
    Ok(Listeners { queries: receiver, sender, files })
}
