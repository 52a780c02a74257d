//! Receiving: what waits in the program's socket gets the address of a kernel's. Where nothing waits and the program
//! does, its call waits here.

use std::{
    os::fd::OwnedFd,
    rc::Rc,
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    sys::socket::{getsockopt, sockopt},
};

use super::{
    datagram,
    header::{Header, LENGTH_AT, WITH_LENGTH},
    line::{Netlink, OVERRUN},
    listener::Call,
    thread,
};

/// A receive of a program.
#[derive(Debug)]
pub struct Receive {
    /// The program's call.
    pub call: Call,
    /// The program's end of the data socket.
    pub data: OwnedFd,
    /// Where datagrams go, and where their lengths go.
    messages: Rc<[(Header, Option<u64>)]>,
    flags: i32,
    /// How many datagrams there have been.
    count: usize,
    /// Whether it may wait for more.
    blocks: bool,
    /// Whether it has begun to wait.
    waits: bool,
    /// When recvmmsg(2) has had enough.
    enough: Option<Instant>,
    /// When SO_RCVTIMEO ends.
    pub deadline: Option<Instant>,
    /// The largest buffer that a part of a dump has been read with.
    pub room: usize,
}

/// Datagrams of recvmmsg(2) at most in one call.
const MESSAGES: usize = 1024;
/// Buffers that are longer than this make no difference to a dump: `netlink_recvmsg`.
const LARGEST_ROOM: usize = 32 << 10;

impl Receive {
    /// The receive that a call is.
    ///
    /// # Errors
    /// Those that Linux has for its arguments.
    pub fn new(call: Call, data: OwnedFd) -> Result<Self, Errno> {
        let thread = call.thread;
        let part = (call.word(1), call.word(2) as usize);
        let (messages, flags) = match call.number {
            libc::SYS_recvfrom => {
                (vec![(Header::to_receive(thread, part, call.word(4), call.word(5))?, None)], call.int(3))
            }
            libc::SYS_recvmsg => (vec![(Header::at(thread, call.word(1))?, None)], call.int(2)),
            _ => {
                let headers = (0..(call.word(2) as u32 as usize).min(MESSAGES)).map(|number| {
                    let at = call.word(1) + (number * WITH_LENGTH) as u64;
                    Ok((Header::at(thread, at)?, Some(at + LENGTH_AT)))
                });
                (headers.collect::<Result<_, Errno>>()?, call.int(3))
            }
        };
        let enough = match (call.number, call.word(4)) {
            (libc::SYS_recvmmsg, at) if at != 0 => Some(Instant::now() + patience(thread, at)?),
            _ => None,
        };
        let blocks = flags & libc::MSG_DONTWAIT == 0;
        Ok(Self {
            call,
            data,
            messages: messages.into(),
            flags,
            count: 0,
            blocks,
            enough,
            deadline: None,
            waits: false,
            room: 0,
        })
    }

    /// Receives what there is. `Ok(None)`: the call waits for more.
    ///
    /// # Errors
    /// What the call fails with.
    pub fn go_on(&mut self, buffer: &mut [u8], netlink: &mut Netlink) -> Result<Option<i64>, Errno> {
        let several = self.call.number == libc::SYS_recvmmsg;
        let messages = Rc::clone(&self.messages);
        for (header, length_at) in messages.iter().skip(self.count) {
            let thread = self.call.thread;
            let room = header.length();
            let flags = self.flags & !libc::MSG_WAITFORONE;
            // The mark stands at the end.
            let (space, more) = if netlink.marks { (usize::MAX, libc::MSG_TRUNC) } else { (room, 0) };
            let bytes = buffer.get_mut(..space.min(buffer.len())).unwrap_or_default();
            let received = match self.takes_overrun(netlink) {
                true => Err(Errno::ENOBUFS),
                false => datagram::receive(&self.data, bytes, flags | more),
            };
            let mut datagram = match received {
                Err(Errno::EAGAIN) if self.may_wait() => return Ok(None),
                Err(_) if self.count > 0 => break,
                received => received?,
            };
            if netlink.marks {
                datagram.unmark(bytes, room, netlink.is_set(libc::NETLINK_PKTINFO), flags);
            }
            let bytes = bytes.get(..datagram.length.min(room).min(bytes.len())).unwrap_or_default();
            match header.fill(thread, bytes, &datagram, *length_at) {
                Err(_) if self.count > 0 => break,
                filled => filled?,
            }
            netlink.asks = false;
            if is_part(bytes) {
                self.room = self.room.max(room.min(LARGEST_ROOM));
            }
            if !several {
                return Ok(Some(datagram.length as i64));
            }
            self.count += 1;
            if self.flags & libc::MSG_WAITFORONE != 0 {
                self.blocks = false;
            }
            // As in Linux it is looked at behind each datagram.
            if datagram.length == 0 || self.enough.is_some_and(|end| Instant::now() >= end) {
                break;
            }
        }
        Ok(Some(self.count as i64))
    }

    /// Whether it waits where there is nothing.
    fn may_wait(&mut self) -> bool {
        if self.blocks && !self.waits {
            self.waits = true;
            self.blocks = !datagram::is_nonblocking(&self.data);
            let time = getsockopt(&self.data, sockopt::ReceiveTimeout).ok();
            let patience = time.map(|time| Duration::new(time.tv_sec() as u64, time.tv_usec() as u32 * 1000));
            let patience = patience.filter(|patience| !patience.is_zero());
            self.deadline = patience.map(|patience| Instant::now() + patience);
        }
        self.blocks && self.deadline.is_none_or(|end| Instant::now() < end)
    }

    /// Takes a word that notifications have been lost out of the queue, if it is the next datagram.
    fn takes_overrun(&self, netlink: &mut Netlink) -> bool {
        let mut bytes = [0; OVERRUN.len()];
        let is_next = netlink.overruns > 0
            && datagram::receive(&self.data, &mut bytes, libc::MSG_PEEK).is_ok()
            && bytes == OVERRUN
            && datagram::receive(&self.data, &mut bytes, 0).is_ok();
        netlink.overruns -= u32::from(is_next);
        is_next
    }

    /// What the call gives when it must wait no longer: what has been received, or else an error.
    pub fn interrupted(&self, errno: Errno) -> Result<i64, Errno> {
        if self.count > 0 { Ok(self.count as i64) } else { Err(errno) }
    }
}

/// The time of a `struct timespec` of a program.
fn patience(thread: i32, at: u64) -> Result<Duration, Errno> {
    let mut bytes = [0; 16];
    thread::read(thread, at, &mut bytes)?;
    let number = |bytes: &[u8]| bytes.first_chunk().map_or(0, |bytes| i64::from_ne_bytes(*bytes));
    let (seconds, nanoseconds) = (number(&bytes), number(&bytes[8..]));
    match (u64::try_from(seconds), u32::try_from(nanoseconds)) {
        (Ok(seconds), Ok(nanoseconds)) if nanoseconds < 1_000_000_000 => {
            // Longer makes no difference, and can be added to what time it is.
            Ok(Duration::new(seconds.min(1 << 32), nanoseconds))
        }
        _ => Err(Errno::EINVAL),
    }
}

/// Whether a datagram is part of a dump: NLM_F_MULTI.
fn is_part(bytes: &[u8]) -> bool {
    bytes
        .get(6..8)
        .is_some_and(|flags| u16::from_ne_bytes([flags[0], flags[1]]) & libc::NLM_F_MULTI as u16 != 0)
}
