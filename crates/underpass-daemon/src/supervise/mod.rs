//! Programs that the preload library does not reach: static ones, those in Go, and what is started without the
//! environment.
//!
//! A seccomp filter ([`filter`]) makes the kernel notify the supervisor of the few calls in which the AF_UNIX socket
//! that the program holds would behave otherwise than one of AF_NETLINK. A new socket is put into the program, and from
//! then on it is known by its inode: so `close`, `dup`, `fork`, SCM_RIGHTS, `poll` and `read` are the kernel's own, and
//! calls on other descriptors go on in the kernel. What a call points at is copied once, and carried out on the copy.
//!
//! One thread does it all ([`Supervisor::turn`]). What a router has to answer first, or what waits for a datagram, waits
//! in a queue.

mod calls;
mod datagram;
mod filter;
mod header;
mod identity;
mod interfaces;
mod line;
mod listener;
pub mod program;
mod receive;
mod send;
mod start;
mod thread;

use std::{
    collections::HashMap,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::PathBuf,
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout},
};

use calls::End;
use identity::Identity;
use line::{Job, Line};
use listener::{Call, Listener};
use receive::Receive;
pub use start::{Ending, Held, SuperviseError, hold_signals, run};

use crate::protocol::MARK;

/// Longest datagram of a program, and of a router without its mark.
const DATAGRAM: usize = 1 << 20;
/// Events taken from the kernel at a time.
const EVENTS: usize = 16;
/// How often it is seen whether calls that wait still have a caller, and whether that has a signal to handle.
const TICK: Duration = Duration::from_millis(50);
/// How often it is seen whether a router has come.
const RETRY: Duration = Duration::from_millis(500);

/// Where routers are.
#[derive(Debug, Clone)]
pub enum Routers {
    /// One for every network namespace, and nothing of the kernel's.
    One(PathBuf),
    /// That of the caller's network namespace, in this directory, if there is one: beside the kernel.
    Runtime(PathBuf),
}

impl Routers {
    /// Whether the router is all the network that programs see.
    pub fn alone(&self) -> bool {
        matches!(self, Self::One(_))
    }
}

/// What an event is about: a number, of a line or of a call that waits, with one of these in its low bits.
mod about {
    pub const CONTROL: u64 = 0;
    pub const FAR: u64 = 1;
    pub const WAITING: u64 = 2;
    pub const OTHER: u64 = 3;
    pub const BITS: u32 = 2;

    pub const fn token(number: u64, what: u64) -> u64 {
        number << BITS | what
    }
}

const LISTENER: u64 = about::token(0, about::OTHER);

/// What [`Supervisor::turn`] has seen besides calls.
#[derive(Debug, Default)]
pub struct Seen {
    /// Others that are ready, by their numbers.
    pub others: Vec<u64>,
    /// No supervised program is left.
    pub deserted: bool,
}

/// What answers the calls of supervised programs.
#[derive(Debug)]
pub struct Supervisor {
    listener: Listener,
    epoll: Epoll,
    routers: Routers,
    /// This process's own.
    identity: Identity,
    lines: HashMap<u64, Line<End>>,
    /// The lines of sockets, by the inodes of the programs' ends.
    by_inode: HashMap<u64, u64>,
    /// Calls that wait for a datagram, each with the line of its socket.
    waiting: HashMap<u64, (u64, Receive)>,
    next_number: u64,
    ticked: Instant,
    retried: Instant,
    buffer: Vec<u8>,
}

impl Supervisor {
    /// One for the programs of a listener.
    ///
    /// # Errors
    /// Those of epoll(7).
    pub fn new(listener: Listener, routers: Routers) -> Result<Self, Errno> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        epoll.add(&listener, EpollEvent::new(EpollFlags::EPOLLIN, LISTENER))?;
        let now = Instant::now();
        Ok(Self {
            listener,
            epoll,
            routers,
            identity: Identity::own()?,
            lines: HashMap::new(),
            by_inode: HashMap::new(),
            waiting: HashMap::new(),
            next_number: 1,
            ticked: now,
            retried: now,
            buffer: vec![0; DATAGRAM + MARK],
        })
    }

    /// Has [`Supervisor::turn`] say when something else is ready.
    ///
    /// # Errors
    /// Those of epoll(7).
    pub fn watch(&self, other: BorrowedFd<'_>, number: u64) -> Result<(), Errno> {
        self.epoll.add(other, EpollEvent::new(EpollFlags::EPOLLIN, about::token(number, about::OTHER)))
    }

    /// Waits until something happens, or so long if `most` says so, and does what follows.
    ///
    /// # Errors
    /// Those of epoll(7); nothing that a program can cause.
    pub fn turn(&mut self, most: Option<Duration>) -> Result<Seen, Errno> {
        let mut events = [EpollEvent::empty(); EVENTS];
        let patience = [most, self.patience()].into_iter().flatten().min();
        let patience = patience.map_or(EpollTimeout::NONE, |time| {
            u16::try_from(time.as_millis() + 1).map_or(EpollTimeout::MAX, EpollTimeout::from)
        });
        let count = match self.epoll.wait(&mut events, patience) {
            Err(Errno::EINTR) => 0,
            waited => waited?,
        };
        let mut seen = Seen::default();
        for event in events.iter().take(count) {
            let (number, flags) = (event.data() >> about::BITS, event.events());
            match event.data() & ((1 << about::BITS) - 1) {
                about::CONTROL => self.run(number),
                about::FAR => self.closed(number),
                about::WAITING => self.go_on(number),
                _ if event.data() != LISTENER => seen.others.push(number),
                _ if flags.contains(EpollFlags::EPOLLIN) => {
                    if let Some(call) = self.listener.next()? {
                        self.call(&call);
                    }
                }
                _ => seen.deserted = true,
            }
        }
        self.tick();
        Ok(seen)
    }

    /// How long nothing happens unless an event comes.
    fn patience(&self) -> Option<Duration> {
        let now = Instant::now();
        let busy = !self.waiting.is_empty() || self.lines.values().any(|line| !line.is_idle());
        let tick = busy.then(|| (self.ticked + self.every()).saturating_duration_since(now));
        let lost = self.lines.values().any(Line::is_over);
        let retry = lost.then(|| (self.retried + RETRY).saturating_duration_since(now));
        [tick, retry].into_iter().flatten().min()
    }

    /// How often calls that wait are looked after: seldom enough that many of them cost little.
    fn every(&self) -> Duration {
        TICK.max(Duration::from_millis(self.waiting.len() as u64))
    }

    /// A number that has not been used.
    fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    /// A line that is connected, with what is asked first.
    fn open_line(&mut self, line: Line<End>, job: Job<End>) -> Result<(), Errno> {
        let number = self.number();
        self.listen_to(number, &line)?;
        if let Some(netlink) = &line.netlink {
            let token = about::token(number, about::FAR);
            self.epoll.add(&*netlink.far, EpollEvent::new(EpollFlags::empty(), token))?;
            self.by_inode.insert(netlink.inode, number);
        }
        self.lines.insert(number, line);
        self.ask(number, job);
        Ok(())
    }

    fn listen_to(&self, number: u64, line: &Line<End>) -> Result<(), Errno> {
        line.control().map_or(Ok(()), |control| {
            let token = about::token(number, about::CONTROL);
            self.epoll.add(control, EpollEvent::new(EpollFlags::EPOLLIN, token))
        })
    }

    /// Gives a line something to do.
    fn ask(&mut self, number: u64, job: Job<End>) {
        if self.lines.get(&number).is_some_and(|line| line.netlink.is_some()) {
            // Its router may have ended just now.
            self.run(number);
            self.reconnect(number);
        }
        match self.lines.get_mut(&number) {
            Some(line) => line.add(job),
            None => self.finish(number, job, Err(Errno::ECONNREFUSED)),
        }
        self.run(number);
    }

    /// Has a line go over to the next router, if its own has ended and there is one.
    fn reconnect(&mut self, number: u64) {
        let Some(mut line) = self.lines.remove(&number) else { return };
        if line.is_over()
            && line.reconnect(End::Reconnected).is_ok()
            && self.listen_to(number, &line).is_err()
        {
            line.end();
        }
        self.lines.insert(number, line);
    }

    /// Goes on with what a line is asked, as far as its router has answered.
    fn run(&mut self, number: u64) {
        while let Some((job, result)) = self.lines.get_mut(&number).and_then(Line::advance) {
            self.finish(number, job, result);
        }
        // One that was for a single question.
        if self.lines.get(&number).is_some_and(|line| line.netlink.is_none() && line.is_idle()) {
            self.lines.remove(&number);
        }
    }

    /// The last descriptor of a program's socket has been closed.
    fn closed(&mut self, number: u64) {
        if self
            .lines
            .get(&number)
            .and_then(|line| line.netlink.as_ref())
            .is_some_and(line::Netlink::is_closed)
        {
            self.forget(number);
        }
    }

    /// Forgets a line.
    fn forget(&mut self, number: u64) {
        if let Some(netlink) = self.lines.remove(&number).and_then(|line| line.netlink) {
            self.by_inode.remove(&netlink.inode);
            // The event loop knows it as long as somebody has it.
            let _ = self.epoll.delete(&*netlink.far);
        }
    }

    /// Receives for a program, which waits if there is nothing.
    fn receive(&mut self, line: u64, mut receive: Receive) {
        match self.received(line, &mut receive) {
            Some(result) => self.listener.answer(&receive.call, result),
            None => {
                let number = self.number();
                let event = EpollEvent::new(EpollFlags::EPOLLIN, about::token(number, about::WAITING));
                match self.epoll.add(&receive.data, event) {
                    Ok(()) => drop(self.waiting.insert(number, (line, receive))),
                    Err(errno) => self.listener.answer(&receive.call, Err(errno)),
                }
            }
        }
    }

    /// What a receive gives; `None` if it waits.
    fn received(&mut self, line: u64, receive: &mut Receive) -> Option<Result<i64, Errno>> {
        let line = self.lines.get_mut(&line);
        let Some((line, netlink)) = line.and_then(|line| line.netlink.take().map(|netlink| (line, netlink)))
        else {
            return Some(receive.interrupted(Errno::EBADF));
        };
        let netlink = line.netlink.insert(netlink);
        let result = receive.go_on(&mut self.buffer, netlink);
        line.report_room(receive.room);
        result.transpose()
    }

    /// Something has come for a call that waits.
    fn go_on(&mut self, number: u64) {
        let Some((line, mut receive)) = self.waiting.remove(&number) else { return };
        if !self.listener.waits(&receive.call) {
            return self.leave(&receive);
        }
        match self.received(line, &mut receive) {
            Some(result) => {
                self.leave(&receive);
                self.listener.answer(&receive.call, result);
            }
            None => drop(self.waiting.insert(number, (line, receive))),
        }
    }

    /// Forgets a call that has waited.
    fn leave(&self, receive: &Receive) {
        let _ = self.epoll.delete(&receive.data);
    }

    /// Looks after what waits, now and then.
    fn tick(&mut self) {
        let now = Instant::now();
        if now.duration_since(self.ticked) >= self.every() {
            self.ticked = now;
            self.look_after_calls(now);
            let busy = self.lines.iter().filter(|(_, line)| !line.is_idle());
            for number in busy.map(|(number, _)| *number).collect::<Vec<_>>() {
                if let Some(line) = self.lines.get_mut(&number) {
                    line.forget(|call| self.listener.waits(call));
                }
                self.run(number);
            }
        }
        if now.duration_since(self.retried) >= RETRY {
            self.retried = now;
            let lost = self.lines.iter().filter(|(_, line)| line.is_over());
            for number in lost.map(|(number, _)| *number).collect::<Vec<_>>() {
                self.reconnect(number);
                self.run(number);
            }
        }
    }

    /// Calls that wait must end when their time is over, and be interrupted when a signal has come: until they are
    /// answered, the kernel holds back all signals but those that end the program.
    fn look_after_calls(&mut self, now: Instant) {
        let mut over = Vec::new();
        for (number, (_, receive)) in &self.waiting {
            let call = &receive.call;
            let signal = thread::Status::of(call.thread).ok().and_then(|status| status.signal());
            if !self.listener.waits(call) {
                over.push(*number);
            } else if receive.deadline.is_some_and(|deadline| now >= deadline) {
                self.listener.answer(call, receive.interrupted(Errno::EAGAIN));
                over.push(*number);
            } else if let Some(signal) = signal {
                match signal {
                    thread::Signal::OfThisThread if receive.interrupted(Errno::EINTR).is_err() => {
                        self.listener.interrupt(call);
                    }
                    _ => self.listener.answer(call, receive.interrupted(Errno::EINTR)),
                }
                over.push(*number);
            }
        }
        for number in over {
            if let Some((_, receive)) = self.waiting.remove(&number) {
                self.leave(&receive);
            }
        }
    }
}

/// What is to be done with a call.
enum Outcome {
    /// The kernel carries it out.
    Pass,
    /// It is answered.
    Answer(Result<i64, Errno>),
    /// It is answered later.
    Later,
}

impl From<Errno> for Outcome {
    fn from(errno: Errno) -> Self {
        Self::Answer(Err(errno))
    }
}

/// A copy of a descriptor of the calling thread, if it is the socket of this inode.
fn copy(call: &Call, fd: i32, inode: u64) -> Result<OwnedFd, Errno> {
    let copy = thread::descriptor(call.thread, fd)?;
    let status = nix::sys::stat::fstat(copy.as_fd())?;
    if status.st_ino == inode { Ok(copy) } else { Err(Errno::EBADF) }
}
