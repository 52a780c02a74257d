//! One netlink socket of a program, as the server sees it.

use std::{
    collections::VecDeque,
    os::fd::{AsRawFd, OwnedFd},
};

use nix::{
    errno::Errno,
    fcntl::{FcntlArg, OFlag, fcntl},
    sys::{
        epoll::{Epoll, EpollEvent, EpollFlags},
        socket::{MsgFlags, SockType, getsockopt, recv, send, setsockopt, sockopt},
    },
};
use underpass_control::{Client, Notification, Protocol, Replies, Router};

use super::{PortIds, QUEUE, descriptor};
use crate::protocol::{Kind, Message, NAME_LENGTH, VERSION};

/// Datagrams of a dump sent in one go, before others have their turn.
const DUMP_BURST: usize = 8;
/// Highest multicast group number that bind and NETLINK_LIST_MEMBERSHIPS can name here.
const LISTED_GROUPS: u32 = 64;

/// Why a connection ends.
#[derive(Debug)]
pub enum Gone {
    /// The program closed its socket.
    Closed,
    /// It broke a rule; the text says which.
    CutOff(&'static str),
}

/// A control socket, and once it is opened a data socket.
#[derive(Debug)]
pub struct Connection {
    control: OwnedFd,
    token: u64,
    open: Option<Open>,
}

#[derive(Debug)]
struct Open {
    data: OwnedFd,
    client: Client,
    /// Datagrams that the program has not taken yet, and how many bytes they are.
    queue: VecDeque<Box<[u8]>>,
    queued: usize,
    /// Whether the event loop waits for room in the data socket.
    wants_room: bool,
    /// Data datagrams handled, modulo 2^32.
    handled: u32,
    /// Options that are remembered and change nothing here, a bit each.
    inert: u32,
}

impl Connection {
    /// A program that has just connected.
    pub fn new(control: OwnedFd, token: u64) -> Self {
        Self { control, token, open: None }
    }

    /// The event loop's name for its control socket.
    pub fn token(&self) -> u64 {
        self.token
    }

    /// Leaves nothing behind.
    pub fn close(self, router: &mut Router, epoll: &Epoll, port_ids: &mut PortIds) {
        let _ = epoll.delete(&self.control);
        if let Some(open) = self.open {
            let _ = epoll.delete(&open.data);
            port_ids.remove(&key(&open.client, open.client.port));
            router.close(open.client);
        }
    }

    /// Reads and answers one control message.
    pub fn control(
        &mut self,
        router: &mut Router,
        epoll: &Epoll,
        port_ids: &mut PortIds,
    ) -> Result<(), Gone> {
        let mut bytes = [0; Message::LENGTH + 1];
        let (length, descriptor) = match descriptor::receive(&self.control, &mut bytes) {
            Ok((0, _)) => return Err(Gone::Closed),
            Ok(received) => received,
            Err(Errno::EAGAIN | Errno::EINTR) => return Ok(()),
            Err(_) => return Err(Gone::Closed),
        };
        let Some(message) = Message::from_bytes(&bytes[..length]) else {
            return Err(Gone::CutOff("not a control message"));
        };
        let answer = match (message.kind, &mut self.open) {
            (Kind::Open, None) => self.open(epoll, &message, descriptor),
            (Kind::IndexOf, _) => index_of(router, &message.name),
            (Kind::NameOf, _) => name_of(router, message.a),
            (Kind::Bind, Some(open)) => open.bind(router, port_ids, message.a, message.b, message.c),
            (Kind::Set, Some(open)) => open.set(router, message.a as i32, message.b),
            (Kind::Get, Some(open)) => open.get(message.a as i32),
            _ => return Err(Gone::CutOff("a control message out of order")),
        };
        let reply = answer.unwrap_or_else(|errno| Message::new(Kind::Reply, errno as u32, 0, 0));
        self.say(reply)
    }

    fn open(&mut self, epoll: &Epoll, message: &Message, data: Option<OwnedFd>) -> Result<Message, Errno> {
        let protocol = match (message.a as i32, message.b) {
            (libc::NETLINK_ROUTE, VERSION) => Protocol::Route,
            (libc::NETLINK_GENERIC, VERSION) => Protocol::Generic,
            (_, VERSION) => return Err(Errno::EPROTONOSUPPORT),
            _ => return Err(Errno::EPROTO),
        };
        let data = data.ok_or(Errno::EBADF)?;
        // The program could hand over anything: only a socket that keeps datagrams apart can be served.
        if getsockopt(&data, sockopt::SockType)? != SockType::SeqPacket {
            return Err(Errno::ESOCKTNOSUPPORT);
        }
        fcntl(&data, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        // As much as the system lets a socket have: a larger part of a dump at a time.
        let _ = setsockopt(&data, sockopt::SndBuf, &(1 << 20));
        epoll.add(&data, EpollEvent::new(EpollFlags::EPOLLIN, self.token + 1))?;
        let client = Client::new(protocol, 0);
        let (queue, handled, inert) = (VecDeque::new(), 0, 0);
        self.open = Some(Open { data, client, queue, queued: 0, wants_room: false, handled, inert });
        Ok(reply())
    }

    /// Sends a control message. The library reads them all, so one who does not is none.
    fn say(&self, message: Message) -> Result<(), Gone> {
        let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
        match send(self.control.as_raw_fd(), &message.to_bytes(), flags) {
            Ok(_) => Ok(()),
            Err(Errno::EAGAIN) => Err(Gone::CutOff("control replies are not read")),
            Err(_) => Err(Gone::Closed),
        }
    }

    /// Reads one datagram and lets the router answer it into `replies`; says whether there was one.
    pub fn request(
        &mut self,
        router: &mut Router,
        port_ids: &mut PortIds,
        buffer: &mut [u8],
        replies: &mut Replies,
    ) -> Result<bool, Gone> {
        let Some(open) = &mut self.open else { return Ok(false) };
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_TRUNC;
        let length = match recv(open.data.as_raw_fd(), buffer, flags) {
            Ok(0) => return Err(Gone::Closed),
            Ok(length) => length,
            Err(Errno::EAGAIN | Errno::EINTR) => return Ok(false),
            Err(_) => return Err(Gone::Closed),
        };
        let Some(datagram) = buffer.get(..length) else {
            return Err(Gone::CutOff("a datagram longer than 1 MiB"));
        };
        if open.client.port == 0 {
            // As Linux does for who sends before it binds.
            open.bind(router, port_ids, 0, 0, 0).map_err(|_| Gone::CutOff("no port id is left"))?;
        }
        router.request(&mut open.client, datagram, replies);
        open.handled = open.handled.wrapping_add(1);
        Ok(true)
    }

    /// Sends the answers to the last request, and the word that it is done.
    pub fn answer(
        &mut self,
        router: &Router,
        epoll: &Epoll,
        answers: &Replies,
        parts: &mut Replies,
    ) -> Result<(), Gone> {
        let Some(open) = &mut self.open else { return Ok(()) };
        for datagram in answers.iter() {
            open.push(datagram)?;
        }
        let done = Message::new(Kind::Done, open.handled, 0, 0);
        self.flush(router, epoll, parts)?;
        self.say(done)
    }

    /// Queues a notification, if the program listens to its group.
    pub fn notify(&mut self, notification: &Notification) -> Result<(), Gone> {
        match &mut self.open {
            Some(open)
                if open.client.protocol == notification.protocol
                    && open.client.listens_to(notification.group)
                    && notification.except != Some(open.client.port) =>
            {
                open.push(&notification.bytes)
            }
            _ => Ok(()),
        }
    }

    /// Sends what waits, and more of a dump, as far as the program has room for it.
    pub fn flush(&mut self, router: &Router, epoll: &Epoll, parts: &mut Replies) -> Result<(), Gone> {
        let Some(open) = &mut self.open else { return Ok(()) };
        let full = open.drain(router, parts)?;
        let wants_room = full || open.client.dumping();
        if wants_room != open.wants_room {
            open.wants_room = wants_room;
            let mut interest = EpollFlags::EPOLLIN;
            interest.set(EpollFlags::EPOLLOUT, wants_room);
            let mut event = EpollEvent::new(interest, self.token + 1);
            epoll.modify(&open.data, &mut event).map_err(|_| Gone::Closed)?;
        }
        Ok(())
    }
}

impl Open {
    /// Sends a datagram, or queues it behind those that wait.
    fn push(&mut self, datagram: &[u8]) -> Result<(), Gone> {
        if self.queue.is_empty() && self.send(datagram)? {
            return Ok(());
        }
        self.queued += datagram.len();
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

    /// Sends from the queue and goes on with the dump; says whether the program has no more room.
    fn drain(&mut self, router: &Router, parts: &mut Replies) -> Result<bool, Gone> {
        for _ in 0..DUMP_BURST {
            while let Some(datagram) = self.queue.front() {
                if !self.send(datagram)? {
                    return Ok(true);
                }
                self.queued -= datagram.len();
                self.queue.pop_front();
            }
            if !self.client.dumping() {
                return Ok(false);
            }
            parts.clear();
            router.continue_dump(&mut self.client, parts);
            for datagram in parts.iter() {
                self.push(datagram)?;
            }
        }
        Ok(!self.queue.is_empty())
    }

    /// netlink_bind of Linux: a port id (0: the process id, or any free one), and groups 1 to 32.
    fn bind(
        &mut self,
        router: &mut Router,
        port_ids: &mut PortIds,
        wanted: u32,
        groups: u32,
        process: u32,
    ) -> Result<Message, Errno> {
        if self.client.port == 0 {
            let port = match wanted {
                // netlink_autobind: the process id, else numbers downwards from the top half.
                0 => std::iter::once(process)
                    .chain((0..u32::MAX / 2).rev().map(|low| low | 1 << 31))
                    .find(|&port| port != 0 && !port_ids.contains(&key(&self.client, port)))
                    .ok_or(Errno::EADDRINUSE)?,
                wanted if port_ids.contains(&key(&self.client, wanted)) => return Err(Errno::EADDRINUSE),
                wanted => wanted,
            };
            port_ids.insert(key(&self.client, port));
            self.client.port = port;
        } else if wanted != 0 && wanted != self.client.port {
            return Err(Errno::EINVAL);
        }
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
    fn set(&mut self, router: &mut Router, option: i32, value: u32) -> Result<Message, Errno> {
        let on = value != 0;
        match option {
            libc::NETLINK_EXT_ACK => self.client.extended_ack = on,
            libc::NETLINK_CAP_ACK => self.client.cap_ack = on,
            libc::NETLINK_GET_STRICT_CHK => self.client.strict_check = on,
            libc::NETLINK_ADD_MEMBERSHIP => member(router.join(&mut self.client, value))?,
            libc::NETLINK_DROP_MEMBERSHIP => member(router.leave(&mut self.client, value))?,
            // There is one namespace; a program that does not read is cut off; no notification fails.
            libc::NETLINK_NO_ENOBUFS | libc::NETLINK_LISTEN_ALL_NSID | libc::NETLINK_BROADCAST_ERROR => {
                self.inert = self.inert & !(1 << option) | u32::from(on) << option;
            }
            _ => return Err(Errno::ENOPROTOOPT),
        }
        Ok(reply())
    }

    /// netlink_getsockopt of Linux.
    fn get(&self, option: i32) -> Result<Message, Errno> {
        let on = match option {
            libc::NETLINK_EXT_ACK => self.client.extended_ack,
            libc::NETLINK_CAP_ACK => self.client.cap_ack,
            libc::NETLINK_GET_STRICT_CHK => self.client.strict_check,
            libc::NETLINK_NO_ENOBUFS | libc::NETLINK_LISTEN_ALL_NSID | libc::NETLINK_BROADCAST_ERROR => {
                self.inert >> option & 1 != 0
            }
            libc::NETLINK_PKTINFO => false,
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

fn reply() -> Message {
    Message::new(Kind::Reply, 0, 0, 0)
}

fn member(joined: Result<(), underpass_control::Refusal>) -> Result<(), Errno> {
    joined.map_err(|refusal| Errno::from_raw(refusal.errno))
}

fn key(client: &Client, port: u32) -> (bool, u32) {
    (client.protocol == Protocol::Generic, port)
}

fn index_of(router: &Router, name: &[u8; NAME_LENGTH]) -> Result<Message, Errno> {
    let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
    let link = router.links().find(|link| link.name.as_bytes() == name).ok_or(Errno::ENODEV)?;
    Ok(Message { b: link.index, ..reply() })
}

fn name_of(router: &Router, index: u32) -> Result<Message, Errno> {
    let link = router.links().find(|link| link.index == index).ok_or(Errno::ENODEV)?;
    let mut name = [0; NAME_LENGTH];
    for (to, from) in name[..NAME_LENGTH - 1].iter_mut().zip(link.name.bytes()) {
        *to = from;
    }
    Ok(Message { name, ..reply() })
}
