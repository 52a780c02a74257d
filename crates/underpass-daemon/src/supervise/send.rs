//! Sending: datagrams are copied out of the program, with the descriptors that they name, and sent through its socket.

use std::{
    os::fd::{AsRawFd, OwnedFd},
    rc::Rc,
};

use nix::errno::Errno;

use super::{
    DATAGRAM,
    calls::to_router,
    datagram,
    header::{self, Header, LENGTH_AT, WITH_LENGTH},
    line::Ask,
    listener::Call,
    thread,
};
use crate::numbers::{self, Meaning};

/// Datagrams of sendmmsg(2) at most in one call: `UIO_MAXIOV`.
const MESSAGES: usize = 1024;

/// What a call has sent.
#[derive(Debug)]
pub struct Sent {
    /// The length of each datagram, and where the program wants to know it.
    lengths: Vec<(usize, Option<u64>)>,
    /// Whether it is sendmmsg(2).
    several: bool,
}

impl Sent {
    /// What the call gives, when so many datagrams have been handled.
    pub fn finish(&self, thread: i32, handled: usize, result: Result<(), Errno>) -> Result<i64, Errno> {
        match (self.several, self.lengths.first()) {
            (false, Some((length, _))) => result.map(|()| *length as i64),
            _ if handled == 0 => result.map(|()| 0),
            _ => {
                for (length, at) in self.lengths.iter().take(handled) {
                    if let Some(at) = at {
                        thread::write(thread, *at, &(*length as u32).to_ne_bytes())?;
                    }
                }
                Ok(handled as i64)
            }
        }
    }
}

/// The datagrams of a call, as what is asked of the router.
///
/// # Errors
/// Those that Linux has for the first one; with sendmmsg(2) others are sent as far as they are right.
pub fn datagrams(call: &Call, through: &Rc<OwnedFd>, protocol: i32) -> Result<(Vec<Ask>, Sent), Errno> {
    let thread = call.thread;
    let several = call.number == libc::SYS_sendmmsg;
    let (count, flags) = match call.number {
        libc::SYS_sendmmsg => ((call.word(2) as u32 as usize).min(MESSAGES), call.int(3)),
        libc::SYS_sendmsg => (1, call.int(2)),
        _ => (1, call.int(3)),
    };
    let blocks = flags & libc::MSG_DONTWAIT == 0 && !datagram::is_nonblocking(&**through);
    let (mut asks, mut lengths) = (Vec::new(), Vec::new());
    for number in 0..count {
        let at = call.word(1) + (number * WITH_LENGTH) as u64;
        let header = match call.number {
            libc::SYS_sendto => Ok(Header::to_send(
                (call.word(1), call.word(2) as usize),
                (call.word(4), call.word(5) as u32 as usize),
            )),
            _ => Header::at(thread, at),
        };
        match header.and_then(|header| bytes(thread, &header, flags)) {
            Ok(mut bytes) => {
                lengths.push((bytes.len(), several.then_some(at + LENGTH_AT)));
                let files = match protocol {
                    libc::NETLINK_ROUTE => named(thread, &mut bytes),
                    _ => Vec::new(),
                };
                asks.push(Ask::Data { through: Rc::clone(through), bytes, files, blocks });
            }
            Err(errno) if asks.is_empty() => return Err(errno),
            Err(_) => break,
        }
    }
    Ok((asks, Sent { lengths, several }))
}

/// The bytes of a datagram for the router.
fn bytes(thread: i32, header: &Header, flags: i32) -> Result<Vec<u8>, Errno> {
    if flags & libc::MSG_OOB != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    if header.name.0 != 0 && header.name.1 > 0 {
        to_router(header::read_address(thread, header.name)?)?;
    }
    match header.length() {
        // netlink_sendmsg of Linux; an empty datagram would mean the end here.
        0 => Err(Errno::ENODATA),
        length if length > DATAGRAM => Err(Errno::EMSGSIZE),
        _ => header.gather(thread),
    }
}

/// The descriptors that messages name. Numbers of none become -1, which the kernel refuses as it refuses them.
fn named(thread: i32, messages: &mut [u8]) -> Vec<OwnedFd> {
    let mut files = Vec::new();
    numbers::each(messages, &mut |meaning, place| {
        let fd = i32::from_ne_bytes(*place);
        let needed = if meaning == Meaning::Program { 2 } else { 1 };
        let copy = match fd >= 0 && files.len() + needed <= numbers::MOST {
            true => thread::descriptor(thread, fd).ok(),
            false => None,
        };
        // Behind a BPF program come its instructions; here they are not known, which the program once more says.
        let second = copy.as_ref().filter(|_| needed == 2).map(OwnedFd::try_clone);
        match (copy, second) {
            (Some(copy), None) => files.push(copy),
            (Some(copy), Some(Ok(second))) => files.extend([copy, second]),
            _ => return *place = (-1i32).to_ne_bytes(),
        }
        // Whatever is not negative stands for the descriptor that goes along.
        *place = files.last().map_or(-1, AsRawFd::as_raw_fd).to_ne_bytes();
    });
    files
}
