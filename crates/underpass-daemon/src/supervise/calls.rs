//! The calls of supervised programs: what they ask of a router, and what they are answered.

use std::{
    collections::VecDeque,
    os::fd::{AsFd, OwnedFd},
    path::PathBuf,
    rc::Rc,
};

use nix::{
    errno::Errno,
    sys::{
        socket::{getsockopt, sockopt},
        stat::fstat,
    },
};

use super::{
    Outcome, Routers, Supervisor, copy, datagram, header, identity, interfaces,
    line::{Ask, Job, Line, Netlink},
    listener::Call,
    receive::Receive,
    send::{Sent, datagrams},
    thread::{self, Part},
};
use crate::{
    launch,
    protocol::{Kind, Message, socket_name},
};

/// What follows once a router has answered.
#[derive(Debug)]
pub enum End {
    /// socket(2): the program gets its end.
    Opened {
        /// That end.
        near: OwnedFd,
        /// SOCK_CLOEXEC.
        close_on_exec: bool,
    },
    /// bind(2).
    Bound {
        /// The groups that it has joined, and no others.
        groups: u32,
    },
    /// connect(2).
    Connected,
    /// setsockopt(2).
    Set {
        /// The option of SOL_NETLINK.
        option: i32,
        /// Its value.
        value: u32,
    },
    /// getsockopt(2).
    Got {
        /// The option of SOL_NETLINK.
        option: i32,
    },
    /// sendto(2), sendmsg(2), sendmmsg(2).
    Sent(Sent),
    /// SIOCGIFINDEX.
    Index,
    /// SIOCGIFNAME.
    Name,
    /// An ioctl of tunnel devices.
    Tunnel {
        /// Where its parameters are.
        parameters: Part,
    },
    /// A socket has gone over to the next router.
    Reconnected,
}

impl Supervisor {
    /// Carries out a call, has it carried out, or lets the kernel do it.
    pub(super) fn call(&mut self, call: &Call) {
        let outcome = match call.number {
            libc::SYS_socket => self.socket(call),
            libc::SYS_ioctl => self.ioctl(call),
            _ => self.on_socket(call),
        };
        match outcome.unwrap_or_else(Outcome::from) {
            Outcome::Pass => self.listener.pass(call),
            Outcome::Answer(result) => self.listener.answer(call, result),
            Outcome::Later => {}
        }
    }

    /// A connection to the router of a thread, as of that thread, and where it listens. `None`: there is none, and the
    /// kernel's network is the thread's.
    pub(super) fn connect(
        &self,
        call: &Call,
        status: &thread::Status,
    ) -> Result<Option<(OwnedFd, PathBuf)>, Errno> {
        let path = match &self.routers {
            Routers::One(path) => path.clone(),
            Routers::Runtime(directory) => {
                let namespace = thread::namespace(call.thread)?;
                launch::settle(namespace)?;
                directory.join(socket_name(namespace))
            }
        };
        let wanted = status.identity()?;
        if !self.listener.waits(call) {
            return Err(Errno::ESRCH);
        }
        match (identity::connect_as(&self.identity, &wanted, &path), self.routers.alone()) {
            (Ok(control), _) => Ok(Some((control, path))),
            // What `ip` prints for a path that is not there would puzzle: it opens no file.
            (Err(Errno::ENOENT), true) => Err(Errno::ECONNREFUSED),
            // A file may be left of a daemon, even one of another namespace that had this number.
            (Err(Errno::ENOENT | Errno::ECONNREFUSED), false) => Ok(None),
            (Err(errno), _) => Err(errno),
        }
    }

    /// socket(2) with AF_NETLINK.
    fn socket(&mut self, call: &Call) -> Result<Outcome, Errno> {
        let (kind, protocol) = (call.int(1), call.int(2));
        let flags = kind & (libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK);
        match protocol {
            libc::NETLINK_ROUTE | libc::NETLINK_GENERIC => {}
            // They ask about or change the kernel's network, which is not this one.
            libc::NETLINK_SOCK_DIAG
            | libc::NETLINK_XFRM
            | libc::NETLINK_FIB_LOOKUP
            | libc::NETLINK_NETFILTER
                if self.routers.alone() =>
            {
                return Err(Errno::EPROTONOSUPPORT);
            }
            // The rest (audit, uevents, SELinux …) is not about networks.
            _ => return Ok(Outcome::Pass),
        }
        // A router's own sockets, and those of its tools, are the kernel's.
        if thread::is_ours(call.thread) {
            return Ok(Outcome::Pass);
        }
        if !matches!(kind & !flags, libc::SOCK_RAW | libc::SOCK_DGRAM) {
            return Err(Errno::ESOCKTNOSUPPORT);
        }
        let status = thread::Status::of(call.thread)?;
        let Some((control, router)) = self.connect(call, &status)? else { return Ok(Outcome::Pass) };
        let listens = getsockopt(&control, sockopt::PeerCredentials)?;
        if u32::try_from(listens.pid()).ok() == status.process().ok() {
            return Ok(Outcome::Pass);
        }
        let (near, far) = datagram::pair(flags & libc::SOCK_NONBLOCK != 0)?;
        let netlink = Netlink::new(fstat(&near)?.st_ino, Rc::new(far), kind & !flags, protocol);
        let asks = [netlink.open()];
        let end = End::Opened { near, close_on_exec: flags & libc::SOCK_CLOEXEC != 0 };
        self.open_line(Line::new(control, router, Some(netlink)), Job::new(Some(*call), asks, end))?;
        Ok(Outcome::Later)
    }

    /// A call whose first argument is a descriptor.
    fn on_socket(&mut self, call: &Call) -> Result<Outcome, Errno> {
        if self.by_inode.is_empty() {
            return Ok(Outcome::Pass);
        }
        let (thread, fd) = (call.thread, call.int(0));
        let Some(inode) = thread::inode(thread, fd) else { return Ok(Outcome::Pass) };
        let Some(&number) = self.by_inode.get(&inode) else { return Ok(Outcome::Pass) };
        let Some(netlink) = self.lines.get(&number).and_then(|line| line.netlink.as_ref()) else {
            return Ok(Outcome::Pass);
        };
        // What it becomes the port id of, if it is free.
        let process = || match netlink.port_id {
            0 => Ok(thread::Status::of(thread)?.own_process_id()),
            bound => Ok::<_, Errno>(bound),
        };
        let job = match call.number {
            libc::SYS_getsockname | libc::SYS_getpeername => {
                let own = (netlink.port_id, netlink.groups);
                let (port_id, groups) = if call.number == libc::SYS_getsockname { own } else { (0, 0) };
                let address = header::address(port_id, groups);
                return self.fill(call, call.word(1), call.word(2), &address);
            }
            libc::SYS_bind => {
                let (wanted, groups) =
                    header::read_address(thread, (call.word(1), call.word(2) as u32 as usize))?;
                let port_id = match netlink.port_id {
                    0 => wanted,
                    // netlink_bind of Linux: a bound socket keeps its port id.
                    bound if wanted != 0 && wanted != bound => return Err(Errno::EINVAL),
                    bound => bound,
                };
                let ask = Ask::say(Message::new(Kind::Bind, port_id, groups, process()?));
                Job::new(Some(*call), [ask], End::Bound { groups })
            }
            libc::SYS_connect => {
                let peer = header::read_address(thread, (call.word(1), call.word(2) as u32 as usize))?;
                to_router(peer)?;
                Job::new(Some(*call), [Ask::PortId { process: process()? }], End::Connected)
            }
            libc::SYS_setsockopt => {
                let option = call.int(2);
                if call.word(3) == 0 || call.int(4) < size_of::<u32>() as i32 {
                    return Err(Errno::EINVAL);
                }
                let value = header::read_int(thread, call.word(3))?;
                let ask = Ask::say(Message::new(Kind::Set, option as u32, value, 0));
                Job::new(Some(*call), [ask], End::Set { option, value })
            }
            libc::SYS_getsockopt if call.int(1) == libc::SOL_NETLINK => {
                let option = call.int(2);
                let ask = Ask::say(Message::new(Kind::Get, option as u32, 0, 0));
                Job::new(Some(*call), [ask], End::Got { option })
            }
            libc::SYS_getsockopt => {
                let value = match call.int(2) {
                    libc::SO_DOMAIN => libc::AF_NETLINK,
                    libc::SO_PROTOCOL => netlink.protocol,
                    _ => netlink.kind,
                };
                return self.fill(call, call.word(3), call.word(4), &value.to_ne_bytes());
            }
            libc::SYS_sendto | libc::SYS_sendmsg | libc::SYS_sendmmsg => {
                let through = Rc::new(copy(call, fd, inode)?);
                let (data, sent) = datagrams(call, &through, netlink.protocol)?;
                let mut asks = VecDeque::from([Ask::PortId { process: process()? }]);
                asks.extend(data);
                Job::new(Some(*call), asks, End::Sent(sent))
            }
            libc::SYS_recvfrom | libc::SYS_recvmsg | libc::SYS_recvmmsg => {
                let receive = Receive::new(*call, copy(call, fd, inode)?)?;
                if self.listener.waits(call) {
                    self.receive(number, receive);
                }
                return Ok(Outcome::Later);
            }
            _ => return Ok(Outcome::Pass),
        };
        // What has been read of the caller is the caller's.
        if self.listener.waits(call) {
            if let (End::Set { option: libc::NETLINK_PKTINFO, .. }, Some(netlink)) =
                (&job.end, self.netlink(number))
            {
                netlink.marks = true; // before the first marked datagram can come
            }
            self.ask(number, job);
        }
        Ok(Outcome::Later)
    }

    /// Writes what a call asks for to the program.
    fn fill(&self, call: &Call, at: u64, length_at: u64, value: &[u8]) -> Result<Outcome, Errno> {
        if !self.listener.waits(call) {
            return Ok(Outcome::Later);
        }
        if at == 0 || length_at == 0 {
            return Err(Errno::EFAULT);
        }
        header::write_value(call.thread, at, length_at, value)?;
        Ok(Outcome::Answer(Ok(0)))
    }

    /// What a line is the socket of.
    fn netlink(&mut self, number: u64) -> Option<&mut Netlink> {
        self.lines.get_mut(&number)?.netlink.as_mut()
    }

    /// A job has come to its end: its program is answered.
    pub(super) fn finish(&mut self, number: u64, job: Job<End>, result: Result<(), Errno>) {
        let Job { call, end, answer, handled, .. } = job;
        if let (Some(netlink), Ok(())) = (self.netlink(number), result) {
            match end {
                End::Bound { groups } => netlink.groups = groups,
                End::Set { option, value } => netlink.note(option, value),
                _ => {}
            }
        }
        // Where it writes to the program, that must still be the one.
        if call.is_some_and(|call| !self.listener.waits(&call)) && !matches!(end, End::Opened { .. }) {
            return;
        }
        let Some(call) = call else {
            if let (End::Reconnected, Some(line)) = (end, self.lines.get_mut(&number)) {
                match result {
                    Ok(()) => line.reconnected(),
                    Err(_) => line.end(),
                }
            }
            return;
        };
        let answer = answer.unwrap_or((Message::new(Kind::Reply, 0, 0, 0), Vec::new()));
        let result = match (end, result) {
            (End::Opened { near, close_on_exec }, result) => {
                match result.and_then(|()| self.listener.give(&call, near.as_fd(), close_on_exec)) {
                    Ok(()) => return,
                    Err(errno) => {
                        self.forget(number);
                        Err(errno)
                    }
                }
            }
            (End::Sent(sent), result) => sent.finish(call.thread, handled, result),
            (End::Tunnel { .. }, Err(Errno::EOPNOTSUPP | Errno::ENODEV)) if !self.routers.alone() => {
                // The kernel may have such a tunnel.
                return self.listener.pass(&call);
            }
            (_, Err(errno)) => Err(errno),
            (End::Got { option }, Ok(())) => got(&call, option, &answer.0),
            (End::Bound { .. } | End::Set { .. } | End::Connected | End::Reconnected, Ok(())) => Ok(0),
            (end @ (End::Index | End::Name | End::Tunnel { .. }), Ok(())) => {
                interfaces::fill(&call, &end, &answer).map(|()| 0)
            }
        };
        self.listener.answer(&call, result);
    }
}

/// Writes the value of an option to the program.
fn got(call: &Call, option: i32, answer: &Message) -> Result<i64, Errno> {
    let value = [answer.b.to_ne_bytes(), answer.c.to_ne_bytes()].concat();
    // The groups are a bitmap of two words, bit 0 for group 1.
    let length = if option == libc::NETLINK_LIST_MEMBERSHIPS { 8 } else { 4 };
    // netlink_getsockopt of Linux: a number is written whole; how long a list is can be asked for with no room.
    if length == 4 && header::read_int(call.thread, call.word(4))? < 4 {
        return Err(Errno::EINVAL);
    }
    header::write_value(call.thread, call.word(3), call.word(4), value.get(..length).unwrap_or_default())?;
    Ok(0)
}

/// Whether an address is the router's: port id 0, no group.
pub fn to_router((port_id, groups): (u32, u32)) -> Result<(), Errno> {
    match (port_id, groups) {
        (0, 0) => Ok(()),
        (_, 0) => Err(Errno::ECONNREFUSED),
        _ => Err(Errno::EPERM),
    }
}
