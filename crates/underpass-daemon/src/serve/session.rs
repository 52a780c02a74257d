//! The data side of a program's netlink socket: requests in, answers and notifications out.

use std::{
    collections::VecDeque,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
};

use nix::{
    errno::Errno,
    sys::{
        epoll::{Epoll, EpollEvent, EpollFlags},
        socket::{MsgFlags, send},
    },
};
use underpass_control::{Client, Notification, Offered, Protocol, RequestError, is_own_group};

use super::{
    Buffers, PortIds, QUEUE,
    connection::Gone,
    descriptor,
    host::Host,
    merge::{self, Beside},
    program,
};
use crate::{
    numbers::{self, Meaning},
    protocol::{Kind, Message, mark, marked},
};

/// Datagrams of a dump sent in one go, before others have their turn.
const DUMP_BURST: usize = 8;
/// What a datagram takes besides its bytes while it waits.
const ENTRY: usize = 48;
/// Highest multicast group number that bind and NETLINK_LIST_MEMBERSHIPS can name here.
const LISTED_GROUPS: u32 = 64;

/// An open netlink socket.
#[derive(Debug)]
pub struct Session {
    data: OwnedFd,
    /// The event loop's name for `data`; that of the kernel's socket is one more.
    token: u64,
    pub client: Client,
    /// The kernel's side, where a kernel is beside the router.
    beside: Option<Beside>,
    /// Datagrams that the program has not taken yet, and how many bytes they are.
    queue: VecDeque<Box<[u8]>>,
    queued: usize,
    /// Whether the event loop waits for room in the data socket.
    wants_room: bool,
    /// Data datagrams handled, modulo 2^32.
    pub handled: u32,
    /// Options that are remembered and change nothing here, a bit each.
    inert: u32,
    /// NETLINK_PKTINFO: each datagram ends with a mark of its group.
    marks: bool,
}

impl Session {
    /// Serves `data`, with the kernel beside the router if `live`.
    pub fn open(
        data: OwnedFd,
        token: u64,
        protocol: Protocol,
        live: bool,
        epoll: &Epoll,
    ) -> Result<Self, Errno> {
        let beside = if live { Some(Beside::open(protocol)?) } else { None };
        epoll.add(&data, EpollEvent::new(EpollFlags::EPOLLIN, token))?;
        if let Some(beside) = &beside {
            epoll.add(beside.as_fd(), EpollEvent::new(EpollFlags::EPOLLIN, token + 1))?;
        }
        Ok(Self {
            data,
            token,
            client: Client::new(protocol, 0),
            beside,
            queue: VecDeque::new(),
            queued: 0,
            wants_room: false,
            handled: 0,
            inert: 0,
            marks: false,
        })
    }

    /// Bytes that wait for the program.
    pub fn queued(&self) -> usize {
        self.queued
    }

    /// Leaves nothing behind.
    pub fn close(self, host: &mut dyn Host, epoll: &Epoll, port_ids: &mut PortIds) {
        let _ = epoll.delete(&self.data);
        if let Some(beside) = &self.beside {
            let _ = epoll.delete(beside.as_fd());
        }
        port_ids.remove(&key(&self.client, self.client.port));
        host.router().close(self.client);
    }

    /// Reads one datagram and has it answered into `buffers.answers`; says whether there was one.
    pub fn request(
        &mut self,
        host: &mut dyn Host,
        port_ids: &mut PortIds,
        buffers: &mut Buffers,
    ) -> Result<bool, Gone> {
        let (length, descriptors) = match descriptor::receive(&self.data, &mut buffers.request) {
            Ok((0, _)) => return Err(Gone::Closed),
            Ok(received) => received,
            Err(Errno::EAGAIN | Errno::EINTR) => return Ok(false),
            Err(_) => return Err(Gone::Closed),
        };
        let Some(datagram) = buffers.request.get_mut(..length) else {
            return Err(Gone::CutOff("a datagram longer than 1 MiB"));
        };
        // Until the datagram has been answered.
        let mut opened = Vec::new();
        if self.client.protocol == Protocol::Route {
            let programs = renumber(datagram, descriptors, self.beside.is_some(), &mut opened);
            host.router().offer_programs(programs);
        }
        let datagram = &*datagram;
        if self.client.port == 0 {
            // As Linux does for who sends before it binds.
            self.bind(host, port_ids, 0, 0, 0).map_err(|_| Gone::CutOff("no port id is left"))?;
        }
        match &mut self.beside {
            Some(beside) => {
                beside.request(host, &mut self.client, datagram, &mut buffers.heard, &mut buffers.answers)?;
            }
            None => host.request(&mut self.client, datagram, &mut buffers.answers),
        }
        host.router().offer_programs(Offered::new());
        self.handled = self.handled.wrapping_add(1);
        Ok(true)
    }

    /// Sends the answers to the last request, as far as the program has room for them.
    pub fn answer(
        &mut self,
        host: &mut dyn Host,
        epoll: &Epoll,
        buffers: &mut Buffers,
    ) -> Result<Message, Gone> {
        for datagram in buffers.answers.iter() {
            self.push(datagram)?;
        }
        self.flush(host, epoll, buffers)?;
        Ok(Message::new(Kind::Done, self.handled, 0, 0))
    }

    /// Queues a notification, if the program listens to its group.
    pub fn notify(&mut self, notification: &Notification) -> Result<(), Gone> {
        if self.client.protocol == notification.protocol
            && self.client.listens_to(notification.group)
            && notification.except != Some(self.client.port)
        {
            match self.marks {
                true => self.push(&[&notification.bytes[..], &mark(notification.group)].concat())?,
                false => self.push(&notification.bytes)?,
            }
        }
        Ok(())
    }

    /// Sends what waits, more of a dump, and what the kernel has reported, as far as the program has room for it.
    pub fn flush(&mut self, host: &mut dyn Host, epoll: &Epoll, buffers: &mut Buffers) -> Result<(), Gone> {
        let full = self.drain(host, buffers)?;
        let wants_room = full || self.client.dumping();
        if wants_room != self.wants_room {
            self.wants_room = wants_room;
            let mut interest = EpollFlags::EPOLLIN;
            interest.set(EpollFlags::EPOLLOUT, wants_room);
            modify(epoll, self.data.as_fd(), interest, self.token)?;
            if let Some(beside) = &self.beside {
                // What the kernel has for a program that does not read waits in the kernel.
                let interest = if full { EpollFlags::empty() } else { EpollFlags::EPOLLIN };
                modify(epoll, beside.as_fd(), interest, self.token + 1)?;
            }
        }
        Ok(())
    }

    /// Sends a datagram, or queues it behind those that wait.
    fn push(&mut self, datagram: &[u8]) -> Result<(), Gone> {
        if self.marks && marked(datagram).is_none() {
            return self.push(&[datagram, &mark(0)].concat());
        }
        if self.queue.is_empty() && self.send(datagram)? {
            return Ok(());
        }
        self.queued += datagram.len() + ENTRY;
        if self.queued > QUEUE {
            return Err(Gone::CutOff("its answers are not read"));
        }
        self.queue.push_back(datagram.into());
        Ok(())
    }

    /// Sends a datagram, if the program has room for it.
    fn send(&self, datagram: &[u8]) -> Result<bool, Gone> {
        let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
        loop {
            return match send(self.data.as_raw_fd(), datagram, flags) {
                Ok(_) => Ok(true),
                Err(Errno::EINTR) => continue,
                Err(Errno::EAGAIN | Errno::ENOBUFS) => Ok(false),
                Err(Errno::EMSGSIZE) => Err(Gone::CutOff("an answer is longer than its socket takes")),
                Err(_) => Err(Gone::Closed),
            };
        }
    }

    /// Sends from the queue and goes on with dumps and the kernel's words; says whether the program has no
    /// more room.
    fn drain(&mut self, host: &mut dyn Host, buffers: &mut Buffers) -> Result<bool, Gone> {
        for _ in 0..DUMP_BURST {
            while let Some(datagram) = self.queue.front() {
                if !self.send(datagram)? {
                    return Ok(true);
                }
                self.queued -= datagram.len() + ENTRY;
                self.queue.pop_front();
            }
            buffers.parts.clear();
            let more = match &mut self.beside {
                Some(beside) => {
                    beside.hear(host, &mut self.client, &mut buffers.heard, &mut buffers.parts)?
                }
                None => merge::continue_dump(host, &mut self.client, &mut buffers.parts),
            };
            if !more {
                return Ok(false);
            }
            for datagram in buffers.parts.iter() {
                self.push(datagram)?;
            }
        }
        Ok(!self.queue.is_empty())
    }

    /// netlink_bind of Linux: a port id (0: the process id, or any free one), and groups 1 to 32.
    pub fn bind(
        &mut self,
        host: &mut dyn Host,
        port_ids: &mut PortIds,
        wanted: u32,
        groups: u32,
        process: u32,
    ) -> Result<Message, Errno> {
        if self.client.port == 0 {
            self.client.port = match &self.beside {
                Some(beside) => beside.bind(wanted, groups, process)?,
                None => free_port(&self.client, port_ids, wanted, process)?,
            };
            port_ids.insert(key(&self.client, self.client.port));
        } else if wanted != 0 && wanted != self.client.port {
            return Err(Errno::EINVAL);
        } else if let Some(beside) = &self.beside {
            beside.bind(self.client.port, groups, process)?;
        }
        let router = host.router();
        for group in 1..=32u32 {
            let wanted = groups >> (group - 1) & 1 != 0;
            if wanted != self.client.listens_to(group) {
                // Groups that there are not are passed over.
                let _ = match wanted {
                    true => router.join(&mut self.client, group),
                    false => router.leave(&mut self.client, group),
                };
            }
        }
        Ok(Message { b: self.client.port, ..reply() })
    }

    /// netlink_setsockopt of Linux.
    pub fn set(&mut self, host: &mut dyn Host, option: i32, value: u32) -> Result<Message, Errno> {
        let (on, router) = (value != 0, host.router());
        let member_of = matches!(option, libc::NETLINK_ADD_MEMBERSHIP | libc::NETLINK_DROP_MEMBERSHIP);
        let own = member_of && is_own_group(self.client.protocol, value);
        if let Some(beside) = self.beside.as_mut().filter(|_| !own) {
            beside.set(option, value)?;
        }
        let joined = match option {
            libc::NETLINK_ADD_MEMBERSHIP => member(router.join(&mut self.client, value)),
            libc::NETLINK_DROP_MEMBERSHIP => member(router.leave(&mut self.client, value)),
            _ => Ok(()),
        };
        match option {
            libc::NETLINK_EXT_ACK => self.client.extended_ack = on,
            libc::NETLINK_CAP_ACK => self.client.cap_ack = on,
            libc::NETLINK_GET_STRICT_CHK => self.client.strict_check = on,
            libc::NETLINK_PKTINFO => self.marks = on,
            // The kernel has groups that the router knows nothing of.
            _ if self.beside.is_some() => {}
            libc::NETLINK_ADD_MEMBERSHIP | libc::NETLINK_DROP_MEMBERSHIP => joined?,
            // There is one namespace; a program that does not read is cut off; no notification fails.
            libc::NETLINK_NO_ENOBUFS | libc::NETLINK_LISTEN_ALL_NSID | libc::NETLINK_BROADCAST_ERROR => {
                self.inert = self.inert & !(1 << option) | u32::from(on) << option;
            }
            _ => return Err(Errno::ENOPROTOOPT),
        }
        Ok(reply())
    }

    /// netlink_getsockopt of Linux.
    pub fn get(&self, option: i32) -> Result<Message, Errno> {
        if let Some(beside) = &self.beside {
            let value = beside.get(option)?;
            return Ok(Message { b: value as u32, c: (value >> 32) as u32, ..reply() });
        }
        let on = match option {
            libc::NETLINK_EXT_ACK => self.client.extended_ack,
            libc::NETLINK_CAP_ACK => self.client.cap_ack,
            libc::NETLINK_GET_STRICT_CHK => self.client.strict_check,
            libc::NETLINK_NO_ENOBUFS | libc::NETLINK_LISTEN_ALL_NSID | libc::NETLINK_BROADCAST_ERROR => {
                self.inert >> option & 1 != 0
            }
            libc::NETLINK_PKTINFO => self.marks,
            libc::NETLINK_LIST_MEMBERSHIPS => {
                let member = |group: &u32| self.client.listens_to(*group);
                let bits =
                    (1..=LISTED_GROUPS).filter(member).fold(0u64, |bits, group| bits | 1 << (group - 1));
                return Ok(Message { b: bits as u32, c: (bits >> 32) as u32, ..reply() });
            }
            _ => return Err(Errno::ENOPROTOOPT),
        };
        Ok(Message { b: u32::from(on), ..reply() })
    }
}

/// Puts the numbers that descriptors have here where a datagram has those of the program, -1 for want of one, and keeps
/// them in `open`. The BPF programs among them. Where nothing is `beside` the router, only these mean something.
fn renumber(
    datagram: &mut [u8],
    descriptors: Vec<OwnedFd>,
    beside: bool,
    open: &mut Vec<OwnedFd>,
) -> Offered {
    let mut descriptors = descriptors.into_iter();
    let mut programs = Offered::new();
    numbers::each(datagram, &mut |meaning, place| {
        if i32::from_ne_bytes(*place) < 0 {
            return;
        }
        let descriptor = descriptors.next();
        let number = descriptor.as_ref().map_or(-1, AsRawFd::as_raw_fd);
        if beside || meaning == Meaning::Program {
            *place = number.to_ne_bytes();
        }
        if meaning == Meaning::Program
            && let (Some(program), Some(file)) = (&descriptor, descriptors.next())
        {
            programs.push((number as u32, program::take(program, file)));
        }
        open.extend(descriptor);
    });
    programs
}

fn modify(epoll: &Epoll, fd: BorrowedFd<'_>, interest: EpollFlags, token: u64) -> Result<(), Gone> {
    epoll.modify(fd, &mut EpollEvent::new(interest, token)).map_err(|_| Gone::Closed)
}

/// netlink_autobind: the process id, else numbers downwards from the top half.
fn free_port(client: &Client, port_ids: &PortIds, wanted: u32, process: u32) -> Result<u32, Errno> {
    match wanted {
        0 => std::iter::once(process)
            .chain((0..u32::MAX / 2).rev().map(|low| low | 1 << 31))
            .find(|&port| port != 0 && !port_ids.contains(&key(client, port)))
            .ok_or(Errno::EADDRINUSE),
        wanted if port_ids.contains(&key(client, wanted)) => Err(Errno::EADDRINUSE),
        wanted => Ok(wanted),
    }
}

/// The positive answer to a call.
pub fn reply() -> Message {
    Message::new(Kind::Reply, 0, 0, 0)
}

fn member(joined: Result<(), RequestError>) -> Result<(), Errno> {
    joined.map_err(|error| Errno::from_raw(error.errno))
}

fn key(client: &Client, port: u32) -> (bool, u32) {
    (client.protocol == Protocol::Generic, port)
}
