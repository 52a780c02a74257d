//! Packets that are followed on their paths, for `underpass trace` at a socket beside the router's own.
//!
//! A client writes one line of JSON, a [`Request`], and gets lines of JSON, each a [`Message`], until it shuts down
//! its end of the connection or is gone. Several clients at a time.

use std::{
    io::{self, Write},
    net::{IpAddr, Shutdown},
    os::{
        fd::AsRawFd,
        unix::net::{UnixListener, UnixStream},
    },
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{
            AtomicU64, AtomicUsize,
            Ordering::{Acquire, Relaxed, Release},
        },
        mpsc::{RecvTimeoutError, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    sys::socket::{MsgFlags, recv},
};
use serde::{Deserialize, Serialize};
use underpass_control::Matched;
use underpass_engine::{
    bpf::classic::{Filter, Instruction, MAX_INSTRUCTIONS},
    buffer::PortId,
    tables::{ActionId, Reader, Tables},
    trace::Event,
};

use super::{
    hex::{bytes, hex},
    queries::{PATIENCE, Query, QuerySender, first_line},
    tracer::{FOLLOWED, Seen, Spec, WATCHERS},
};
use crate::{
    limits::patiently,
    packet_path::{self, LinkName, Names, facts::Facts, port_name},
};

/// Longest request: a program of the most instructions in JSON.
const REQUEST: usize = MAX_INSTRUCTIONS * 32 + 1024;
/// How soon a client that has gone is missed.
const TICK: Duration = Duration::from_millis(100);
/// How long names of links are good for.
const NAMES: Duration = Duration::from_secs(1);
/// How long workers may take to tell what they still followed.
const LAST: Duration = Duration::from_secs(1);

/// What is to be followed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// A program of classic BPF for Ethernet frames as they come in: code, jump if true, jump if false, number.
    /// Empty: every packet.
    #[serde(default)]
    pub filter: Vec<(u16, u8, u8, u32)>,
    /// Only what comes in by this port.
    #[serde(default)]
    pub port: Option<String>,
    /// The frames, too.
    #[serde(default)]
    pub frames: bool,
    /// Only packets that are dropped.
    #[serde(default)]
    pub drops: bool,
    /// Packets that each worker follows in a second at most.
    pub rate: u32,
}

/// What a client gets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Message {
    /// From now on packets are followed.
    Started,
    /// They are not, because of this.
    Refused(String),
    /// Workers carry all packets meanwhile, not only those that match, because of this.
    NoFastPath(String),
    /// A packet's path.
    PacketPath(Box<PacketPath>),
    /// So many packets until now were not followed that should have been.
    Missed(u64),
    /// No more are followed.
    Ended,
}

/// A packet's path.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PacketPath {
    /// The number of the packet, from 1.
    pub packet: u64,
    /// The worker that carried it.
    pub worker: usize,
    /// When it came in: nanoseconds since 1970.
    pub time: u64,
    /// The port that it came in by.
    pub port: String,
    /// What happened to it.
    pub steps: Vec<Step>,
    /// The ports that it, or what was made of it, left by.
    pub sent: Vec<String>,
    /// Whether the router or its host got it.
    pub delivered: bool,
    /// Why it, or a part of it, was dropped.
    pub dropped: Vec<String>,
    /// False: it is still in a queue, or nothing more was heard of it.
    pub ended: bool,
    /// As it came in and as it left, if that was asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub frames: Vec<Frame>,
}

/// A step of a path.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// Nanoseconds since the packet came in: steps of one burst have one time.
    pub after: u64,
    /// What kind of step, in a word.
    pub step: String,
    /// In words.
    pub text: String,
    /// In fields, among those of the step.
    #[serde(flatten)]
    pub facts: Facts,
}

/// A frame.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Frame {
    /// The port.
    pub port: String,
    /// Whether it left by it, or came in.
    pub left: bool,
    /// Nanoseconds since the packet came in.
    pub after: u64,
    /// The bytes, in hexadecimal digits.
    pub hex: String,
}

impl Frame {
    /// The bytes. `None`: these are no hexadecimal digits.
    pub fn bytes(&self) -> Option<Vec<u8>> {
        bytes(&self.hex)
    }
}

/// The daemon's end of following.
pub struct Following {
    queries: QuerySender,
    tables: Arc<Tables>,
    /// Held by whoever puts a path in words.
    watcher: Mutex<Reader>,
}

impl Following {
    /// Over these tables.
    pub fn new(queries: QuerySender, tables: Arc<Tables>, watcher: Reader) -> Arc<Self> {
        Arc::new(Self { queries, tables, watcher: Mutex::new(watcher) })
    }

    /// Answers those who connect, each in a thread of its own.
    pub fn listen(self: Arc<Self>, listener: &UnixListener) {
        let clients = Arc::new(AtomicUsize::new(0));
        for connection in patiently(listener.incoming(), "a client of the trace socket") {
            // Nobody fills the process with threads.
            if clients.load(Acquire) >= WATCHERS {
                let why = format!("{WATCHERS} others follow packets of this router");
                // It may have gone already.
                let _ = connection
                    .set_write_timeout(Some(PATIENCE))
                    .and_then(|()| send(&connection, &Message::Refused(why)));
                continue;
            }
            clients.fetch_add(1, Relaxed);
            let (following, served) = (Arc::clone(&self), Arc::clone(&clients));
            let thread = thread::Builder::new().name("trace-client".to_owned()).spawn(move || {
                if let Err(error) = following.serve(&connection) {
                    tracing::debug!("a client of the trace socket: {error}");
                }
                served.fetch_sub(1, Release);
            });
            if thread.is_err() {
                clients.fetch_sub(1, Release);
            }
        }
    }

    fn serve(&self, connection: &UnixStream) -> io::Result<()> {
        connection.set_write_timeout(Some(PATIENCE))?;
        let done = self.follow(connection);
        if let Err(Refused::Why(why)) = &done {
            send(connection, &Message::Refused(why.clone()))?;
            connection.shutdown(Shutdown::Write)?;
        }
        match done {
            Err(Refused::Io(error)) => Err(error),
            _ => Ok(()),
        }
    }

    fn follow(&self, connection: &UnixStream) -> Result<(), Refused> {
        let request: Request = serde_json::from_str(&first_line(connection, REQUEST, PATIENCE)?)
            .map_err(|error| Refused::Why(error.to_string()))?;
        let mut names = self.queries.query(Query::Links)?;
        let workers = self.queries.query(Query::Workers)?;
        let spec = Arc::new(spec(&request, &names, workers)?);
        let (sink, seen) = sync_channel(FOLLOWED * workers);
        let what = (Arc::clone(&spec), sink);
        let all = self.queries.query(|to| Query::Trace(what, to));
        let started = all.and_then(|all| {
            send(connection, &Message::Started)?;
            all.map_or(Ok(()), |why| send(connection, &Message::NoFastPath(why)))
        });
        if let Err(error) = started {
            self.queries.send(Query::TraceNoMore(spec))?;
            return Err(error.into());
        }

        let (mut named, mut missed, mut number, mut end) = (Instant::now(), 0, 0, None);
        let told = loop {
            let packet_path = match seen.recv_timeout(TICK) {
                Ok(packet_path) => Some(packet_path),
                Err(RecvTimeoutError::Timeout) => None,
                // Every worker has reported what it still followed.
                Err(RecvTimeoutError::Disconnected) => break Ok(()),
            };
            let now = Instant::now();
            if let Some(packet_path) = packet_path {
                if let Some(waiting) = spec.waiting.get(packet_path.worker) {
                    waiting.fetch_sub(1, Relaxed);
                }
                if now.duration_since(named) > NAMES {
                    (names, named) = (self.queries.query(Query::Links).unwrap_or(names), now);
                }
                number += 1;
                let mut packet_path = self.describe(number, &packet_path, &names);
                if !spec.frames {
                    packet_path.frames.clear();
                }
                if let Err(error) = send(connection, &Message::PacketPath(Box::new(packet_path))) {
                    break Err(error);
                }
            }
            let now_missed = spec.missed.load(Relaxed);
            if now_missed != missed && end.is_none() {
                missed = now_missed;
                if let Err(error) = send(connection, &Message::Missed(missed)) {
                    break Err(error);
                }
            }
            if end.is_some_and(|end| now > end) {
                break Ok(());
            }
            if end.is_none() && has_left(connection) {
                end = Some(now + LAST);
                self.queries.send(Query::TraceNoMore(Arc::clone(&spec)))?;
            }
        };
        self.queries.send(Query::TraceNoMore(Arc::clone(&spec)))?;
        told?;
        if end.is_none() {
            return Err(Refused::Why("the router has gone".to_owned()));
        }
        send(connection, &Message::Missed(spec.missed.load(Relaxed)))?;
        Ok(send(connection, &Message::Ended)?)
    }

    /// The routes that look-ups have found, as far as they are still there.
    fn matched(&self, looked_up: &[(IpAddr, ActionId)]) -> Vec<Vec<Matched>> {
        if looked_up.is_empty() {
            return Vec::new();
        }
        // Where the control thread has no time, a path without its routes is better than none.
        self.queries.query(|to| Query::Matched(looked_up.to_vec(), to)).unwrap_or_default()
    }

    fn describe(&self, packet: u64, seen: &Seen, names: &[LinkName]) -> PacketPath {
        let port = |port: PortId| port_name(names, port).to_owned();
        let mut packet_path = PacketPath {
            packet,
            worker: seen.worker,
            time: seen.time,
            port: port(seen.port),
            ended: seen.ended,
            ..PacketPath::default()
        };
        let looked_up = seen.steps.iter().filter_map(|step| match step.event {
            Event::Lookup(address, Some(action)) => Some((address, action)),
            _ => None,
        });
        let looked_up: Vec<(IpAddr, ActionId)> = looked_up.collect();
        let matched = self.matched(&looked_up);
        let routes = |address: IpAddr, action: ActionId| {
            let place = looked_up.iter().position(|known| *known == (address, action));
            place.and_then(|place| matched.get(place)).cloned().unwrap_or_default()
        };
        let mut watcher = self.watcher.lock().unwrap_or_else(PoisonError::into_inner);
        {
            let guard = watcher.enter();
            let told = Names { tables: &self.tables, guard: &guard, names, routes: &routes };
            packet_path.steps.extend(seen.steps.iter().map(|step| Step {
                after: step.after,
                step: packet_path::word(&step.event).to_owned(),
                text: packet_path::line(&step.event, &step.shown, &told),
                facts: Facts::of(&step.event, &told),
            }));
        }
        // What only this has looked at must not keep memory from being freed.
        watcher.idle();
        drop(watcher);
        for step in &seen.steps {
            match step.event {
                Event::Sent(by) => packet_path.sent.push(port(by)),
                Event::Delivered(_) => packet_path.delivered = true,
                Event::Dropped(reason) | Event::Icmp(_, _, reason) => {
                    packet_path.dropped.push(reason.name().to_owned());
                }
                _ => {}
            }
        }
        packet_path.frames = seen
            .frames
            .iter()
            .map(|frame| Frame {
                port: port(frame.port),
                left: frame.left,
                after: frame.after,
                hex: hex(&frame.bytes),
            })
            .collect();
        packet_path
    }
}

/// Why nothing is followed.
enum Refused {
    /// What the client did, or asks for.
    Why(String),
    /// The connection or the control thread is gone.
    Io(io::Error),
}

impl From<io::Error> for Refused {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Answers somebody who wants to follow packets of a router that follows none, because of `why`.
///
/// # Errors
/// Those of writing.
pub fn refuse(connection: &UnixStream, why: &str) -> io::Result<()> {
    connection.set_write_timeout(Some(PATIENCE))?;
    send(connection, &Message::Refused(why.to_owned()))
}

/// Orders to the workers.
fn spec(request: &Request, names: &[LinkName], workers: usize) -> Result<Spec, Refused> {
    let program: Vec<Instruction> =
        request.filter.iter().map(|&(code, jt, jf, k)| Instruction { code, jt, jf, k }).collect();
    let filter = if program.is_empty() { None } else { Some(Filter::new(&program)) };
    let filter = filter.transpose().map_err(|why| Refused::Why(format!("the filter: {why}")))?;
    let find = |name: &String| {
        let port = names.iter().find(|link| link.name == *name).and_then(|link| link.port);
        port.ok_or_else(|| Refused::Why(format!("{name} is no port of the router")))
    };
    Ok(Spec {
        filter,
        port: request.port.as_ref().map(find).transpose()?,
        frames: request.frames,
        drops: request.drops,
        rate: request.rate.clamp(1, 1_000_000),
        waiting: (0..workers).map(|_| AtomicUsize::new(0)).collect(),
        missed: AtomicU64::new(0),
    })
}

fn send(mut connection: &UnixStream, message: &Message) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    connection.write_all(&line)
}

/// Whether the client has shut down its end, or is gone. Whatever else it writes is no matter.
fn has_left(connection: &UnixStream) -> bool {
    match recv(connection.as_raw_fd(), &mut [0; 256], MsgFlags::MSG_DONTWAIT) {
        Ok(length) => length == 0,
        Err(errno) => !matches!(errno, Errno::EAGAIN | Errno::EINTR),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_as_digits() {
        let bytes: Vec<u8> = (0..=255).collect();
        let frame = Frame { hex: hex(&bytes), ..Frame::default() };
        assert_eq!(frame.hex.get(..8), Some("00010203"));
        assert_eq!(frame.bytes(), Some(bytes));
        for wrong in ["0", "0g", "éé"] {
            assert_eq!(Frame { hex: wrong.to_owned(), ..Frame::default() }.bytes().is_some(), wrong == "0");
        }
    }

    #[test]
    fn what_is_asked_for_is_checked() {
        let names = [LinkName {
            id: underpass_engine::tables::LinkId(7),
            port: Some(PortId(3)),
            name: "eth0".to_owned(),
        }];
        let asked = |filter: &[(u16, u8, u8, u32)], port: Option<&str>| {
            let request = Request {
                filter: filter.to_vec(),
                port: port.map(str::to_owned),
                rate: 0,
                ..Request::default()
            };
            match spec(&request, &names, 2) {
                Ok(spec) => Ok((spec.port, spec.filter.is_some(), spec.rate, spec.waiting.len())),
                Err(Refused::Why(why)) => Err(why),
                Err(Refused::Io(error)) => panic!("{error}"),
            }
        };
        assert_eq!(asked(&[], None), Ok((None, false, 1, 2)));
        assert_eq!(asked(&[(6, 0, 0, 1)], Some("eth0")), Ok((Some(PortId(3)), true, 1, 2)));
        assert_eq!(asked(&[], Some("eth1")).unwrap_err(), "eth1 is no port of the router");
        assert!(asked(&[(0x15, 0, 9, 1)], None).unwrap_err().starts_with("the filter: instruction 0 jumps"));
    }
}
