//! A connection to a router, and what is asked on it, one thing at a time.
//!
//! A netlink socket of a program is a line with [`Netlink`]. The supervisor keeps the router's end of the data socket,
//! too: it sees by it that the program has closed its socket, and hands it to the next router when one has ended, so
//! that the program's descriptors, copies of them and those of other processes stay as they are.

use std::{
    collections::VecDeque,
    io::IoSlice,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    path::PathBuf,
    rc::Rc,
};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::socket::{ControlMessage, MsgFlags, Shutdown, recv, send, sendmsg, shutdown},
};

use super::{identity, listener::Call};
use crate::protocol::{Kind, Message, TUNNEL_PARAMETERS, VERSION};

/// The first multicast group that an address does not name.
const FIRST_ABOVE: u32 = 33;

/// What the program has made of its netlink socket.
#[derive(Debug)]
pub struct Netlink {
    /// Inode of the program's end.
    pub inode: u64,
    /// The router's end, which the router has, too.
    pub far: Rc<OwnedFd>,
    /// SOCK_RAW or SOCK_DGRAM.
    pub kind: i32,
    /// NETLINK_ROUTE or NETLINK_GENERIC.
    pub protocol: i32,
    /// nl_pid; 0 until bound.
    pub port_id: u32,
    /// Mask of multicast groups 1 to 32.
    pub groups: u32,
    /// Groups 33 to 96.
    groups_above: u64,
    /// Options of SOL_NETLINK that are on, a bit each.
    options: u32,
    /// Whether datagrams can end with a mark of their group.
    pub marks: bool,
    /// Data datagrams sent, modulo 2^32.
    sent: u32,
    /// Length of the largest buffer that the router knows of.
    room: u32,
    /// Whether a router has more to answer than is in the program's queue: a request that it has not handled, or the
    /// rest of a dump.
    pub asks: bool,
    /// Datagrams in the program's queue that say that notifications have been lost.
    pub overruns: u32,
}

impl Netlink {
    /// A socket as socket(2) makes it: not bound, in no group, with no option set.
    pub fn new(inode: u64, far: Rc<OwnedFd>, kind: i32, protocol: i32) -> Self {
        Self {
            inode,
            far,
            kind,
            protocol,
            port_id: 0,
            groups: 0,
            groups_above: 0,
            options: 0,
            marks: false,
            sent: 0,
            room: 0,
            asks: false,
            overruns: 0,
        }
    }

    /// Whether it listens to a group.
    pub fn is_member(&self) -> bool {
        self.groups != 0 || self.groups_above != 0
    }

    /// Whether an option is on.
    pub fn is_set(&self, option: i32) -> bool {
        self.options >> option & 1 != 0
    }

    /// Takes note of an option that has been set.
    pub fn note(&mut self, option: i32, value: u32) {
        let bit = |from: u32| value.checked_sub(from);
        let low = bit(1).and_then(|bit| 1u32.checked_shl(bit)).unwrap_or(0);
        let above = bit(FIRST_ABOVE).and_then(|bit| 1u64.checked_shl(bit)).unwrap_or(0);
        match option {
            libc::NETLINK_ADD_MEMBERSHIP => {
                self.groups |= low;
                self.groups_above |= above;
            }
            libc::NETLINK_DROP_MEMBERSHIP => {
                self.groups &= !low;
                self.groups_above &= !above;
            }
            option => {
                let bit = 1u32.checked_shl(option as u32).unwrap_or(0);
                self.options = if value == 0 { self.options & !bit } else { self.options | bit };
            }
        }
    }

    /// What makes a new socket as this one: questions for its router.
    fn restore(&self) -> VecDeque<Ask> {
        let set = |option: i32, value: u32| Ask::say(Message::new(Kind::Set, option as u32, value, 0));
        let mut asks = VecDeque::from([self.open()]);
        asks.extend((0..32).filter(|option| self.is_set(*option)).map(|option| set(option, 1)));
        if self.port_id != 0 {
            asks.push_back(Ask::say(Message::new(Kind::Bind, self.port_id, self.groups, self.port_id)));
        }
        let members = (0..64).filter(|bit| self.groups_above >> bit & 1 != 0);
        asks.extend(members.map(|bit| set(libc::NETLINK_ADD_MEMBERSHIP, FIRST_ABOVE + bit)));
        asks
    }

    /// The question that hands the data socket over.
    pub fn open(&self) -> Ask {
        let message = Message::new(Kind::Open, self.protocol as u32, VERSION, 0);
        Ask::Say { kind: Kind::Open, bytes: message.to_bytes().to_vec(), file: Some(Rc::clone(&self.far)) }
    }

    /// Forgets what the program has sent and no router has read.
    fn drain(&self) {
        while recv(self.far.as_raw_fd(), &mut [0; 16], MsgFlags::MSG_DONTWAIT).is_ok_and(|length| length > 0)
        {
        }
    }

    /// Whether the program has closed its end.
    pub fn is_closed(&self) -> bool {
        let mut waited = [PollFd::new(self.far.as_fd(), PollFlags::empty())];
        poll(&mut waited, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
    }
}

/// Something to ask a router.
#[derive(Debug)]
pub enum Ask {
    /// A control message, whose answer is a REPLY.
    Say {
        /// What it says.
        kind: Kind,
        /// The message, and a text behind it.
        bytes: Vec<u8>,
        /// What goes with it.
        file: Option<Rc<OwnedFd>>,
    },
    /// A port id, if the socket has none yet: as the kernel gives one at the first connect or send.
    PortId {
        /// The program's process id, which it will be if it is free.
        process: u32,
    },
    /// A datagram of the program, whose answer is a DONE.
    Data {
        /// The program's end of the data socket.
        through: Rc<OwnedFd>,
        /// The datagram.
        bytes: Vec<u8>,
        /// What goes with it.
        files: Vec<OwnedFd>,
        /// Whether the program waits until there is room.
        blocks: bool,
    },
}

impl Ask {
    /// A control message alone.
    pub fn say(message: Message) -> Self {
        Self::Say { kind: message.kind, bytes: message.to_bytes().to_vec(), file: None }
    }
}

/// What is to be done for a program, and what it is answered in the end.
#[derive(Debug)]
pub struct Job<E> {
    /// The program's call; none if nobody waits.
    pub call: Option<Call>,
    /// What is asked, in this order. The first is on its way if `asked`.
    pub asks: VecDeque<Ask>,
    /// Whether the first question has been sent.
    asked: bool,
    /// How many datagrams the router has handled.
    pub handled: usize,
    /// The last answer and the text behind it.
    pub answer: Option<(Message, Vec<u8>)>,
    /// What follows.
    pub end: E,
}

impl<E> Job<E> {
    /// A job of which no question has been sent yet.
    pub fn new(call: Option<Call>, asks: impl Into<VecDeque<Ask>>, end: E) -> Self {
        Self { call, asks: asks.into(), asked: false, handled: 0, answer: None, end }
    }
}

/// How far a job has come.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    Done,
    Failed(Errno),
    Waits,
}

/// A connection to a router.
#[derive(Debug)]
pub struct Line<E> {
    /// None once the router has ended.
    control: Option<OwnedFd>,
    /// Where the router listens.
    router: PathBuf,
    /// What is asked, in the order of the program's calls.
    jobs: VecDeque<Job<E>>,
    /// The socket that it is of.
    pub netlink: Option<Netlink>,
    /// Whether its program waits for an answer that will not come: what is sent fails.
    dead: bool,
}

impl<E> Line<E> {
    /// One that is connected.
    pub fn new(control: OwnedFd, router: PathBuf, netlink: Option<Netlink>) -> Self {
        Self { control: Some(control), router, jobs: VecDeque::new(), netlink, dead: false }
    }

    /// The control connection, as long as there is a router.
    pub fn control(&self) -> Option<&OwnedFd> {
        self.control.as_ref()
    }

    /// Whether there is nothing to be asked.
    pub fn is_idle(&self) -> bool {
        self.jobs.is_empty()
    }

    /// Whether it has no router and wants one.
    pub fn is_over(&self) -> bool {
        self.control.is_none() && !self.dead
    }

    /// Puts a job behind the others.
    pub fn add(&mut self, job: Job<E>) {
        self.jobs.push_back(job);
    }

    /// Connects to the router that is there now; says whether there is one. `end`: what follows once it has the socket.
    pub fn reconnect(&mut self, end: E) -> Result<(), Errno> {
        let Some(netlink) = self.netlink.as_mut().filter(|_| !self.dead) else {
            return Err(Errno::ECONNREFUSED);
        };
        let control = identity::connect_to(&self.router).map_err(|_| Errno::ECONNREFUSED)?;
        netlink.drain();
        netlink.sent = 0;
        netlink.room = 0;
        self.jobs.push_front(Job::new(None, netlink.restore(), end));
        self.control = Some(control);
        Ok(())
    }

    /// The program's socket is one of the next router: it must read everything anew if it listens to groups.
    pub fn reconnected(&mut self) {
        let Some(netlink) = &mut self.netlink else { return };
        if netlink.is_member() && !netlink.is_set(libc::NETLINK_NO_ENOBUFS) {
            // Who waits for the socket wakes up.
            let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
            let sent = send(netlink.far.as_raw_fd(), &OVERRUN, flags);
            netlink.overruns += u32::from(sent.is_ok());
        }
    }

    /// Asks what is to be asked, as far as the router has answered; gives the next job that has come to its end.
    pub fn advance(&mut self) -> Option<(Job<E>, Result<(), Errno>)> {
        while let Some(job) = self.jobs.front_mut() {
            let step = match &self.control {
                _ if job.asks.is_empty() => Step::Done,
                None => Step::Failed(Errno::ECONNREFUSED),
                Some(control) => match job.asked {
                    true => hear(control, job, self.netlink.as_mut()),
                    false => ask(control, job, self.netlink.as_mut()),
                },
            };
            let result = match step {
                Step::Waits => return None,
                Step::Done if !job.asks.is_empty() => continue,
                Step::Done => Ok(()),
                Step::Failed(errno) => Err(errno),
            };
            if result == Err(Errno::ECONNREFUSED) && self.control.is_some() {
                self.end();
            }
            return self.jobs.pop_front().map(|job| (job, result));
        }
        self.listen();
        None
    }

    /// Reads what the router says to nobody, and whether it has ended.
    fn listen(&mut self) {
        let Some(control) = &self.control else { return };
        loop {
            match hear_message(control) {
                Ok(Some((message, _))) => {
                    // A program has written to its socket without the supervisor.
                    if let (Kind::Done, Some(netlink)) = (message.kind, &mut self.netlink) {
                        netlink.sent = message.a;
                        netlink.asks = true;
                    }
                }
                Ok(None) => return,
                Err(_) => return self.end(),
            }
        }
    }

    /// The router has ended, or has ended this connection.
    pub fn end(&mut self) {
        self.control = None;
        let Some(netlink) = &mut self.netlink else { return };
        netlink.drain();
        if netlink.asks && !netlink.is_member() {
            // A program that waits for an answer has waited long enough: it reads an end.
            self.dead = true;
            let _ = shutdown(netlink.far.as_raw_fd(), Shutdown::Write);
        }
    }

    /// Forgets jobs whose callers have ended; gives their ends. One that is on its way is forgotten when it is answered.
    pub fn forget(&mut self, waits: impl Fn(&Call) -> bool) {
        self.jobs.retain(|job| job.asked || job.call.as_ref().is_none_or(&waits));
    }

    /// Says how long a buffer the program reads a dump with.
    pub fn report_room(&mut self, room: usize) {
        let room = u32::try_from(room).unwrap_or(u32::MAX);
        let (Some(netlink), Some(control)) = (&mut self.netlink, &self.control) else { return };
        if room > netlink.room {
            netlink.room = room;
            let message = Message::new(Kind::Room, room, 0, 0).to_bytes();
            let _ = send(control.as_raw_fd(), &message, MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT);
        }
    }
}

/// A message of type NLMSG_OVERRUN, which says that data has been lost.
pub const OVERRUN: [u8; 16] = {
    let ([a, b, c, d], [e, f]) = (16u32.to_ne_bytes(), (libc::NLMSG_OVERRUN as u16).to_ne_bytes());
    [a, b, c, d, e, f, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
};

/// Sends the first question of a job.
fn ask<E>(control: &OwnedFd, job: &mut Job<E>, netlink: Option<&mut Netlink>) -> Step {
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
    let put = |socket: &OwnedFd, bytes: &[u8], files: &[i32]| {
        let rights = [ControlMessage::ScmRights(files)];
        let rights = if files.is_empty() { &[][..] } else { &rights[..] };
        sendmsg::<()>(socket.as_raw_fd(), &[IoSlice::new(bytes)], rights, flags, None)
    };
    if let (Some(Ask::PortId { process }), Some(netlink)) = (job.asks.front(), &netlink) {
        let process = *process;
        job.asks.pop_front();
        if netlink.port_id == 0 {
            job.asks.push_front(Ask::say(Message::new(Kind::Bind, 0, 0, process)));
        }
    }
    let sent = match job.asks.front_mut() {
        None | Some(Ask::PortId { .. }) => return Step::Done,
        Some(Ask::Say { bytes, file, .. }) => {
            let files: Vec<i32> = file.iter().map(AsRawFd::as_raw_fd).collect();
            // The router reads all that it is sent.
            put(control, bytes, &files).map_err(|_| Errno::ECONNREFUSED)
        }
        Some(Ask::Data { through, bytes, files, blocks }) => {
            let numbers: Vec<i32> = files.iter().map(AsRawFd::as_raw_fd).collect();
            match put(through, bytes, &numbers) {
                Err(Errno::EAGAIN) if *blocks => return Step::Waits,
                Err(Errno::EPIPE | Errno::ECONNRESET | Errno::ENOTCONN) => Err(Errno::ECONNREFUSED),
                sent => sent.inspect(|_| files.clear()),
            }
        }
    };
    match (sent, netlink) {
        (Err(errno), _) => Step::Failed(errno),
        (Ok(_), netlink) => {
            job.asked = true;
            if let (Some(Ask::Data { .. }), Some(netlink)) = (job.asks.front(), netlink) {
                netlink.sent = netlink.sent.wrapping_add(1);
                netlink.asks = true;
            }
            Step::Waits
        }
    }
}

/// Looks whether the first question of a job has been answered.
fn hear<E>(control: &OwnedFd, job: &mut Job<E>, netlink: Option<&mut Netlink>) -> Step {
    let (message, text) = match hear_message(control) {
        Ok(Some(heard)) => heard,
        Ok(None) => return Step::Waits,
        Err(errno) => {
            // The program hears it from the call that has sent the request, and waits for no answer.
            netlink.into_iter().for_each(|netlink| netlink.asks = false);
            return Step::Failed(errno);
        }
    };
    let asked = job.asks.front();
    let is_dump = matches!(asked, Some(Ask::Data { bytes, .. }) if asks_for_a_dump(bytes));
    match (asked, message.kind, netlink) {
        (Some(Ask::Data { .. }), Kind::Done, Some(netlink)) => {
            if (message.a.wrapping_sub(netlink.sent) as i32) < 0 {
                return Step::Waits; // of one that nobody waited for
            }
            netlink.sent = message.a;
            netlink.asks = is_dump;
            job.handled += 1;
        }
        (Some(Ask::Say { kind, .. }), Kind::Reply, netlink) => {
            if message.a != 0 {
                return Step::Failed(Errno::from_raw(message.a as i32));
            }
            if let (Kind::Bind, Some(netlink)) = (kind, netlink) {
                netlink.port_id = message.b;
            }
            job.answer = Some((message, text));
        }
        _ => return Step::Waits,
    }
    job.asks.pop_front();
    job.asked = false;
    Step::Done
}

/// Whether a datagram asks for a dump: NLM_F_DUMP in the header of its first message.
fn asks_for_a_dump(bytes: &[u8]) -> bool {
    bytes.get(6..8).is_some_and(|flags| {
        u16::from_ne_bytes([flags[0], flags[1]]) & libc::NLM_F_DUMP as u16 == libc::NLM_F_DUMP as u16
    })
}

/// The next message of a router, and the text behind it; `None` if there is none yet.
fn hear_message(control: &OwnedFd) -> Result<Option<(Message, Vec<u8>)>, Errno> {
    let mut bytes = [0; Message::LENGTH + TUNNEL_PARAMETERS];
    loop {
        return match recv(control.as_raw_fd(), &mut bytes, MsgFlags::MSG_DONTWAIT) {
            Err(Errno::EAGAIN) => Ok(None),
            Err(Errno::EINTR) => continue,
            Ok(length) if length > 0 => {
                let heard = Message::with_text(bytes.get(..length).unwrap_or_default());
                let (message, text) = heard.ok_or(Errno::ECONNREFUSED)?;
                Ok(Some((message, text.to_vec())))
            }
            _ => Err(Errno::ECONNREFUSED),
        };
    }
}
