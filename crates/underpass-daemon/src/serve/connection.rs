//! One connection of a program, as the server sees it: a netlink socket's control side.

use std::os::fd::{AsRawFd, OwnedFd};
use underpass_control::tunnel_ioctl;

use nix::{
    errno::Errno,
    fcntl::{FcntlArg, OFlag, fcntl},
    sys::{
        epoll::Epoll,
        socket::{MsgFlags, SockType, getsockopt, send, setsockopt, sockopt},
    },
};
use underpass_control::{Notification, Protocol, Router};

use super::{
    Buffers, PortIds, descriptor,
    host::Host,
    session::{Session, reply},
    sysctl,
};
use crate::protocol::{Kind, Message, NAME_LENGTH, VERSION};

/// Bytes that a program may leave unread in its socket, before they wait in this process.
const SEND_BUFFER: usize = 4 << 20;

/// Why a connection ends.
#[derive(Debug)]
pub enum Gone {
    /// The program closed its socket.
    Closed,
    /// It broke a rule; the text says which.
    CutOff(&'static str),
}

/// A control socket, and once it is opened a session.
#[derive(Debug)]
pub struct Connection {
    control: OwnedFd,
    /// Holds a place for the descriptor with which the program opens it: others may have taken the last one by then.
    reserved: Option<OwnedFd>,
    token: u64,
    session: Option<Session>,
    /// The variable that this is the file of, once it is opened for writing.
    variable: Option<Box<str>>,
}

impl Connection {
    /// A program that has just connected.
    pub fn new(control: OwnedFd, reserved: Option<OwnedFd>, token: u64) -> Self {
        Self { control, reserved, token, session: None, variable: None }
    }

    /// Bytes that wait for the program.
    pub fn queued(&self) -> usize {
        self.session.as_ref().map_or(0, Session::queued)
    }

    /// The event loop's name for its control socket; the sockets of its session have the next ones.
    pub fn token(&self) -> u64 {
        self.token
    }

    /// Leaves nothing behind.
    pub fn close(self, host: &mut dyn Host, epoll: &Epoll, port_ids: &mut PortIds) {
        let _ = epoll.delete(&self.control);
        if let Some(session) = self.session {
            session.close(host, epoll, port_ids);
        }
    }

    /// Reads and answers one control message.
    pub fn control(
        &mut self,
        host: &mut dyn Host,
        live: bool,
        epoll: &Epoll,
        port_ids: &mut PortIds,
    ) -> Result<(), Gone> {
        let mut bytes = [0; sysctl::TEXT + 1];
        drop(self.reserved.take());
        let (length, mut descriptors) = match descriptor::receive(&self.control, &mut bytes) {
            Ok((0, _)) => return Err(Gone::Closed),
            Ok(received) => received,
            Err(Errno::EAGAIN | Errno::EINTR) => return Ok(()),
            // What came is lost, and so is what it came with.
            Err(Errno::EMFILE) => return self.say(&error(Errno::EMFILE).to_bytes()),
            Err(_) => return Err(Gone::Closed),
        };
        let Some(datagram) = bytes.get(..length) else {
            return Err(Gone::CutOff("a control message that is too long"));
        };
        if let Some(path) = &self.variable {
            let answer = sysctl::write(host.router(), path, datagram);
            // The value is in force, also for what the kernel keeps, before the program reads the answer.
            host.catch_up();
            return self.say(&answer.to_bytes());
        }
        let Some((message, text)) = Message::with_text(datagram) else {
            return Err(Gone::CutOff("not a control message"));
        };
        if message.kind == Kind::Sysctl && self.session.is_none() {
            let (reply, variable) = sysctl::answer(host.router(), message.a, text);
            self.variable = variable;
            return self.say(&reply);
        }
        if message.kind == Kind::Tunnel {
            return self.say(&tunnel(host, &message, text));
        }
        if !text.is_empty() {
            return Err(Gone::CutOff("a control message that is too long"));
        }
        if let (Kind::Room, Some(session)) = (message.kind, &mut self.session) {
            session.client.room = message.a as usize;
            return Ok(());
        }
        let answer = match (message.kind, &mut self.session) {
            (Kind::Open, None) => self.open(live, epoll, &message, descriptors.drain(..).next()),
            (Kind::IndexOf, _) => index_of(host.router(), &message.name),
            (Kind::NameOf, _) => name_of(host.router(), message.a),
            (Kind::Bind, Some(session)) => session.bind(host, port_ids, message.a, message.b, message.c),
            (Kind::Set, Some(session)) => session.set(host, message.a as i32, message.b),
            (Kind::Get, Some(session)) => session.get(message.a as i32),
            _ => return Err(Gone::CutOff("a control message out of order")),
        };
        self.say(&answer.unwrap_or_else(error).to_bytes())
    }

    fn open(
        &mut self,
        live: bool,
        epoll: &Epoll,
        message: &Message,
        data: Option<OwnedFd>,
    ) -> Result<Message, Errno> {
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
        // A large part of a dump at a time; without CAP_NET_ADMIN as much as the system lets a socket have.
        if setsockopt(&data, sockopt::SndBufForce, &SEND_BUFFER).is_err() {
            let _ = setsockopt(&data, sockopt::SndBuf, &SEND_BUFFER);
        }
        self.session = Some(Session::open(data, self.token + 1, protocol, live, epoll)?);
        Ok(reply())
    }

    /// Sends a control message. The library reads them all, so one who does not is none.
    fn say(&self, message: &[u8]) -> Result<(), Gone> {
        let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
        match send(self.control.as_raw_fd(), message, flags) {
            Ok(_) => Ok(()),
            Err(Errno::EAGAIN) => Err(Gone::CutOff("control replies are not read")),
            Err(_) => Err(Gone::Closed),
        }
    }

    /// Reads one datagram and has it answered into `buffers.answers`; says whether there was one.
    pub fn request(
        &mut self,
        host: &mut dyn Host,
        port_ids: &mut PortIds,
        buffers: &mut Buffers,
    ) -> Result<bool, Gone> {
        self.session.as_mut().map_or(Ok(false), |session| session.request(host, port_ids, buffers))
    }

    /// Sends the answers to the last request, and the word that it is done.
    pub fn answer(&mut self, host: &mut dyn Host, epoll: &Epoll, buffers: &mut Buffers) -> Result<(), Gone> {
        let Some(session) = &mut self.session else { return Ok(()) };
        let done = session.answer(host, epoll, buffers)?;
        self.say(&done.to_bytes())
    }

    /// Queues a notification, if the program listens to its group.
    pub fn notify(&mut self, notification: &Notification) -> Result<(), Gone> {
        self.session.as_mut().map_or(Ok(()), |session| session.notify(notification))
    }

    /// Sends what waits, as far as the program has room for it.
    pub fn flush(&mut self, host: &mut dyn Host, epoll: &Epoll, buffers: &mut Buffers) -> Result<(), Gone> {
        self.session.as_mut().map_or(Ok(()), |session| session.flush(host, epoll, buffers))
    }
}

/// Carries out an ioctl of tunnel devices.
fn tunnel(host: &mut dyn Host, message: &Message, parameters: &[u8]) -> Vec<u8> {
    host.catch_up();
    let name = message.name.split(|byte| *byte == 0).next().unwrap_or_default();
    let name = String::from_utf8_lossy(name);
    if host.router().use_link(&name) {
        // The kernel tells of the device that was made.
        host.catch_up();
    }
    let answer = tunnel_ioctl(host.router(), message.a, &name, parameters);
    host.catch_up();
    match answer {
        Ok(parameters) => [&reply().to_bytes()[..], &parameters].concat(),
        Err(errno) => Message::new(Kind::Reply, errno as u32, 0, 0).to_bytes().to_vec(),
    }
}

/// The negative answer to a call.
fn error(errno: Errno) -> Message {
    Message::new(Kind::Reply, errno as u32, 0, 0)
}

fn index_of(router: &mut Router, name: &[u8; NAME_LENGTH]) -> Result<Message, Errno> {
    let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
    router.use_link(&String::from_utf8_lossy(name));
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
