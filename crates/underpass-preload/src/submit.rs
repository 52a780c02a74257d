//! Sending a datagram of the program to the router, and waiting until the router has handled it.
#![allow(unsafe_code)]

use std::{
    ffi::{c_int, c_void},
    mem::zeroed,
    ptr::null_mut,
    sync::atomic::Ordering::Relaxed,
};

use libc::{iovec, msghdr, ssize_t};

use crate::{
    channel, lost, next,
    numbers::{self, Meaning},
    programs,
    protocol::Kind,
    table::Socket,
};

/// Sends the datagram that `vectors` hold and waits until the router has handled it.
///
/// # Safety
/// `vectors` point at `count` vectors, and those at memory that can be read.
pub unsafe fn submit(
    fd: c_int,
    socket: &Socket,
    vectors: *mut iovec,
    count: usize,
    flags: c_int,
) -> Result<ssize_t, c_int> {
    channel::bind_if_unbound(socket)?;
    // SAFETY: all zero bytes are a valid msghdr. No address and no ancillary data: the socket is
    // connected, and descriptors are nothing that a netlink message can carry.
    let mut message: msghdr = unsafe { zeroed() };
    message.msg_iov = vectors;
    message.msg_iovlen = count as _;
    let mut copy = match socket.protocol.load(Relaxed) {
        // SAFETY: the caller's promise.
        libc::NETLINK_ROUTE => unsafe { gather(vectors, count) },
        _ => Vec::new(),
    };
    let (named, files) = named(&mut copy);
    let mut whole = iovec { iov_base: copy.as_mut_ptr().cast(), iov_len: copy.len() };
    let mut ancillary = [0u64; channel::HEADER + numbers::MOST];
    if !named.is_empty() {
        (message.msg_iov, message.msg_iovlen) = (&raw mut whole, 1);
        // SAFETY: there are at most MOST descriptors, and `ancillary` outlives the message.
        unsafe { channel::attach(&mut message, &mut ancillary, &named) };
    }
    // SAFETY: the caller's promise, and what was made above.
    let send = || unsafe { next::sendmsg(fd, &raw const message, flags | libc::MSG_NOSIGNAL) };
    let mut turn_taken = channel::turn(socket);
    let mut length = if socket.waits.load(Relaxed) { -1 } else { send() };
    let mut errno = next::errno();
    if length < 0 && (socket.waits.load(Relaxed) || is_gone(errno)) {
        drop(turn_taken);
        let waits = flags & libc::MSG_DONTWAIT == 0 && asks_for_a_dump(&copy);
        let reconnected = lost::next_router(socket, waits);
        turn_taken = channel::turn(socket);
        (length, errno) = match reconnected {
            Ok(()) => (send(), next::errno()),
            Err(errno) => (-1, errno),
        };
    }
    let _turn = turn_taken;
    for file in files {
        // SAFETY: it was made for this message.
        unsafe { next::close(file) };
    }
    if length < 0 {
        return Err(if is_gone(errno) { libc::ECONNREFUSED } else { errno });
    }
    socket.asks.store(true, Relaxed);
    let count = socket.sent.fetch_add(1, Relaxed).wrapping_add(1);
    // If the router is gone, the program hears it when it reads.
    while let Ok(message) = channel::receive(socket.control.load(Relaxed)) {
        if message.kind == Kind::Done && message.a.wrapping_sub(count) as i32 >= 0 {
            break;
        }
    }
    Ok(length)
}

/// Whether a datagram asks for a dump: NLM_F_DUMP in the header of its first message.
fn asks_for_a_dump(datagram: &[u8]) -> bool {
    const DUMP: u16 = libc::NLM_F_DUMP as u16;
    datagram.get(6..8).is_some_and(|flags| u16::from_ne_bytes([flags[0], flags[1]]) & DUMP == DUMP)
}

/// Whether an errno of sendmsg(2) says that the router has closed its end.
const fn is_gone(errno: c_int) -> bool {
    matches!(errno, libc::EPIPE | libc::ECONNRESET | libc::ENOTCONN)
}

/// The bytes of vectors, one after the other.
///
/// # Safety
/// As [`submit`].
unsafe fn gather(vectors: *const iovec, count: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    for at in 0..count {
        // SAFETY: the caller's promise.
        unsafe {
            let vector = &*vectors.add(at);
            if vector.iov_len > 0 && !vector.iov_base.is_null() {
                bytes.extend_from_slice(std::slice::from_raw_parts(vector.iov_base.cast(), vector.iov_len));
            }
        }
    }
    bytes
}

/// The descriptors that messages name, each program with its instructions; and those among them that were made for
/// this. Numbers of none become -1, which the kernel refuses as it refuses them.
fn named(messages: &mut [u8]) -> (Vec<c_int>, Vec<c_int>) {
    let (mut named, mut files) = (Vec::new(), Vec::new());
    numbers::each(messages, &mut |meaning, place| {
        let fd = c_int::from_ne_bytes(*place);
        // SAFETY: fcntl touches no memory here.
        let open = fd >= 0 && unsafe { next::fcntl(fd, libc::F_GETFD, null_mut()) } >= 0;
        let needed = if meaning == Meaning::Program { 2 } else { 1 };
        if !open || named.len() + needed > numbers::MOST {
            *place = (-1 as c_int).to_ne_bytes();
            return;
        }
        named.push(fd);
        if meaning == Meaning::Program {
            let file = programs::instructions(fd);
            files.extend(file);
            named.push(file.unwrap_or(fd));
        }
    });
    (named, files)
}

/// An iovec over bytes that are only read.
pub fn vector(bytes: *const c_void, length: usize) -> iovec {
    iovec { iov_base: if bytes.is_null() { null_mut() } else { bytes.cast_mut() }, iov_len: length }
}
