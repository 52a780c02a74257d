//! Requests out, answers in.
//!
//! Sending waits until the router has handled the datagram. Receiving is the C library's own, after which
//! the sender's address is made that of a kernel. The router hears how long the buffers are that a dump is read with, and
//! a socket whose router has ended waits for the next one ([`crate::lost`]).
#![allow(unsafe_code)]

use std::{
    ffi::{c_int, c_uint, c_void},
    slice,
    sync::atomic::Ordering::Relaxed,
    time::{Duration, Instant},
};

use libc::{iovec, mmsghdr, msghdr, sockaddr, socklen_t, ssize_t};

use super::{
    ancillary,
    files::write_text,
    returned,
    sockets::{netlink_address, to_router, write_address},
};
use crate::{
    channel,
    lost::{self, Then},
    next, submit,
    table::{self, Socket},
};

/// # Safety
/// `vectors` point at `count` vectors, and those at memory that can be read; `address` at `length` bytes
/// or it is null.
unsafe fn send_vectors(
    fd: c_int,
    socket: &Socket,
    vectors: *mut iovec,
    count: usize,
    address: *const sockaddr,
    length: socklen_t,
    flags: c_int,
) -> Result<ssize_t, c_int> {
    if flags & libc::MSG_OOB != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    if !address.is_null() && length > 0 {
        // SAFETY: the caller's promise.
        to_router(&unsafe { netlink_address(address, length) }?)?;
    }
    let filled = match count {
        0 => false,
        // SAFETY: the caller's promise.
        _ => unsafe { slice::from_raw_parts(vectors, count) }.iter().any(|vector| vector.iov_len > 0),
    };
    if !filled {
        return Err(libc::ENODATA); // netlink_sendmsg of Linux; an empty datagram would mean the end here
    }
    // SAFETY: the caller's promise.
    unsafe { submit::submit(fd, socket, vectors, count, flags) }
}

/// # Safety
/// `message` is a valid message to send.
unsafe fn send_message(
    fd: c_int,
    socket: &Socket,
    message: *const msghdr,
    flags: c_int,
) -> Result<ssize_t, c_int> {
    if message.is_null() {
        return Err(libc::EFAULT);
    }
    // SAFETY: the caller's promise.
    unsafe {
        let message = &*message;
        let address = message.msg_name.cast_const().cast();
        let (vectors, count) = (message.msg_iov, message.msg_iovlen);
        send_vectors(fd, socket, vectors, count, address, message.msg_namelen, flags)
    }
}

/// # Safety
/// As sendmsg(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the caller's promise.
    unsafe {
        match table::live(fd) {
            Some(socket) => returned(send_message(fd, socket, message, flags)),
            None => next::sendmsg(fd, message, flags),
        }
    }
}

/// # Safety
/// As sendmmsg(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
    let Some(socket) = table::live(fd) else {
        // SAFETY: the caller's promise.
        return unsafe { next::sendmmsg(fd, messages, count, flags) };
    };
    if messages.is_null() || count == 0 {
        return 0;
    }
    // SAFETY: the caller's promise.
    let messages = unsafe { slice::from_raw_parts_mut(messages, count as usize) };
    for (sent, message) in (0..).zip(messages) {
        // SAFETY: the caller's promise.
        match unsafe { send_message(fd, socket, &raw const message.msg_hdr, flags) } {
            Ok(length) => message.msg_len = length as c_uint,
            Err(errno) if sent == 0 => return returned(Err(errno)),
            Err(_) => return sent,
        }
    }
    count as c_int
}

/// # Safety
/// As sendto(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendto(
    fd: c_int,
    bytes: *const c_void,
    length: usize,
    flags: c_int,
    address: *const sockaddr,
    address_length: socklen_t,
) -> ssize_t {
    let Some(socket) = table::live(fd) else {
        // SAFETY: the caller's promise.
        return unsafe { next::sendto(fd, bytes, length, flags, address, address_length) };
    };
    let mut vector = submit::vector(bytes, length);
    // SAFETY: the caller's promise.
    returned(unsafe { send_vectors(fd, socket, &raw mut vector, 1, address, address_length, flags) })
}

/// # Safety
/// As send(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn send(fd: c_int, bytes: *const c_void, length: usize, flags: c_int) -> ssize_t {
    let Some(socket) = table::live(fd) else {
        // SAFETY: the caller's promise.
        return unsafe { next::send(fd, bytes, length, flags) };
    };
    let mut vector = submit::vector(bytes, length);
    // SAFETY: the caller's promise.
    returned(unsafe { send_vectors(fd, socket, &raw mut vector, 1, std::ptr::null(), 0, flags) })
}

/// # Safety
/// As write(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn write(fd: c_int, bytes: *const c_void, length: usize) -> ssize_t {
    let Some(socket) = table::live(fd) else {
        // SAFETY: the caller's promise.
        return unsafe {
            match table::is_writer(fd) {
                true => returned(write_text(fd, bytes, length)),
                false => next::write(fd, bytes, length),
            }
        };
    };
    let mut vector = submit::vector(bytes, length);
    // SAFETY: the caller's promise.
    returned(unsafe { send_vectors(fd, socket, &raw mut vector, 1, std::ptr::null(), 0, 0) })
}

/// # Safety
/// As writev(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn writev(fd: c_int, vectors: *const iovec, count: c_int) -> ssize_t {
    let Some(socket) = table::live(fd) else {
        // SAFETY: the caller's promise.
        return unsafe { next::writev(fd, vectors, count) };
    };
    let Ok(count) = usize::try_from(count) else { return returned(Err(libc::EINVAL)) };
    // SAFETY: the caller's promise; sendmsg only reads the vectors.
    returned(unsafe { send_vectors(fd, socket, vectors.cast_mut(), count, std::ptr::null(), 0, 0) })
}

/// What a message is received with, and the room that its parts had before.
struct Receipt<'a> {
    message: &'a mut msghdr,
    name: socklen_t,
    control: usize,
}

/// Receives a message of the router's as one of a kernel.
///
/// # Safety
/// `message` is a valid message to receive.
unsafe fn receive(fd: c_int, socket: &Socket, message: &mut msghdr, flags: c_int) -> ssize_t {
    let mut receipt = Receipt { name: message.msg_namelen, control: message.msg_controllen, message };
    loop {
        if socket.overrun.swap(false, Relaxed) {
            return returned(Err(libc::ENOBUFS));
        }
        let then = if socket.waits.load(Relaxed) {
            lost::wait(fd, socket, flags)
        } else {
            let message = &mut *receipt.message;
            (message.msg_namelen, message.msg_controllen) = (receipt.name, receipt.control as _);
            // SAFETY: the caller's promise.
            let length = unsafe { ancillary::receive(fd, socket, message, flags) };
            let failed = length < 0 && next::errno() == libc::ECONNRESET;
            if !failed && (length != 0 || !lost::has_ended(fd)) {
                if length >= 0 {
                    // SAFETY: the caller's promise.
                    unsafe { received(socket, &mut receipt, length as usize) };
                }
                return length;
            }
            lost::ended(socket)
        };
        match then {
            Then::Again => {}
            Then::Fail(errno) => return returned(Err(errno)),
            Then::End => return 0,
        }
    }
}

/// What follows from a datagram that has been received.
///
/// # Safety
/// The message is one that was received with.
unsafe fn received(socket: &Socket, receipt: &mut Receipt<'_>, length: usize) {
    socket.asks.store(false, Relaxed);
    let message = &mut *receipt.message;
    // Makes the sender the kernel: port id 0.
    message.msg_namelen = receipt.name;
    // SAFETY: the caller's promise.
    let vectors = unsafe {
        write_address(0, 0, message.msg_name.cast(), &raw mut message.msg_namelen);
        match message.msg_iovlen {
            0 => &[],
            count => slice::from_raw_parts(message.msg_iov, count),
        }
    };
    if message.msg_name.is_null() {
        message.msg_namelen = 0;
    }
    let room = vectors.iter().map(|vector| vector.iov_len).sum::<usize>().min(LARGEST_ROOM) as u32;
    if room <= socket.told_room.load(Relaxed) {
        return;
    }
    // SAFETY: the first bytes of the buffer have been written.
    let is_dump = vectors.first().is_some_and(|first| unsafe {
        first.iov_len >= NLMSG_SEQUENCE
            && length >= NLMSG_SEQUENCE
            && first.iov_base.cast::<u16>().add(3).read_unaligned() & libc::NLM_F_MULTI as u16 != 0
    });
    if is_dump {
        socket.told_room.store(room, Relaxed);
        channel::report_buffer(socket, room);
    }
}

/// Buffers that are longer than this make no difference to a dump: `netlink_recvmsg`.
const LARGEST_ROOM: usize = 32 << 10;
/// Where `nlmsg_seq` is in a message, behind its length, type and flags.
const NLMSG_SEQUENCE: usize = 8;

/// Receives into one buffer.
///
/// # Safety
/// `bytes` points at `length` bytes that can be written; `address` and `address_length` as of recvfrom(2).
unsafe fn receive_into(
    fd: c_int,
    socket: &Socket,
    (bytes, length): (*mut c_void, usize),
    flags: c_int,
    (address, address_length): (*mut sockaddr, *mut socklen_t),
) -> ssize_t {
    let mut vector = submit::vector(bytes, length);
    // SAFETY: all zero bytes are a valid msghdr; and the caller's promise.
    unsafe {
        let mut message: msghdr = std::mem::zeroed();
        (message.msg_iov, message.msg_iovlen) = (&raw mut vector, 1);
        if !address.is_null() && !address_length.is_null() {
            (message.msg_name, message.msg_namelen) = (address.cast(), *address_length);
        }
        let received = receive(fd, socket, &mut message, flags);
        if received >= 0 && !message.msg_name.is_null() {
            *address_length = message.msg_namelen;
        }
        received
    }
}

const NOWHERE: (*mut sockaddr, *mut socklen_t) = (std::ptr::null_mut(), std::ptr::null_mut());

/// # Safety
/// As recvmsg(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the caller's promise.
    unsafe {
        match table::live(fd) {
            Some(socket) if !message.is_null() => receive(fd, socket, &mut *message, flags),
            _ => next::recvmsg(fd, message, flags),
        }
    }
}

/// # Safety
/// As recvmmsg(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    mut flags: c_int,
    timeout: *mut libc::timespec,
) -> c_int {
    let Some(socket) = table::live(fd).filter(|_| !messages.is_null()) else {
        // SAFETY: the caller's promise.
        return unsafe { next::recvmmsg(fd, messages, count, flags, timeout) };
    };
    // SAFETY: the caller's promise.
    let (messages, patience) = unsafe {
        let patience = timeout.as_ref().map(|time| Duration::new(time.tv_sec as u64, time.tv_nsec as u32));
        (slice::from_raw_parts_mut(messages, count as usize), patience)
    };
    let begin = Instant::now();
    for (before, message) in (0..).zip(messages) {
        // SAFETY: the caller's promise.
        let length = unsafe { receive(fd, socket, &mut message.msg_hdr, flags & !libc::MSG_WAITFORONE) };
        if length < 0 {
            return if before > 0 { before } else { -1 };
        }
        message.msg_len = length as c_uint;
        if flags & libc::MSG_WAITFORONE != 0 {
            flags |= libc::MSG_DONTWAIT;
        }
        // As in Linux it is looked at behind each datagram.
        if length == 0 || patience.is_some_and(|patience| begin.elapsed() >= patience) {
            return before + 1;
        }
    }
    count as c_int
}

/// # Safety
/// As recvfrom(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvfrom(
    fd: c_int,
    bytes: *mut c_void,
    length: usize,
    flags: c_int,
    address: *mut sockaddr,
    address_length: *mut socklen_t,
) -> ssize_t {
    // SAFETY: the caller's promise.
    unsafe {
        match table::live(fd) {
            Some(socket) => receive_into(fd, socket, (bytes, length), flags, (address, address_length)),
            None => next::recvfrom(fd, bytes, length, flags, address, address_length),
        }
    }
}

/// # Safety
/// As recvfrom(2); `room` is how large the compiler knows `bytes` to be.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __recvfrom_chk(
    fd: c_int,
    bytes: *mut c_void,
    length: usize,
    room: usize,
    flags: c_int,
    address: *mut sockaddr,
    address_length: *mut socklen_t,
) -> ssize_t {
    // SAFETY: the caller's promise. What is too long for the buffer ends the program, as the C library does it.
    unsafe {
        match table::live(fd) {
            Some(socket) if length <= room => {
                receive_into(fd, socket, (bytes, length), flags, (address, address_length))
            }
            _ => next::__recvfrom_chk(fd, bytes, length, room, flags, address, address_length),
        }
    }
}

/// # Safety
/// As recv(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recv(fd: c_int, bytes: *mut c_void, length: usize, flags: c_int) -> ssize_t {
    // SAFETY: the caller's promise.
    unsafe {
        match table::live(fd) {
            Some(socket) => receive_into(fd, socket, (bytes, length), flags, NOWHERE),
            None => next::recv(fd, bytes, length, flags),
        }
    }
}

/// # Safety
/// As recv(2); `room` is how large the compiler knows `bytes` to be.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __recv_chk(
    fd: c_int,
    bytes: *mut c_void,
    length: usize,
    room: usize,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the caller's promise.
    unsafe {
        match table::live(fd) {
            Some(socket) if length <= room => receive_into(fd, socket, (bytes, length), flags, NOWHERE),
            _ => next::__recv_chk(fd, bytes, length, room, flags),
        }
    }
}

/// # Safety
/// As read(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn read(fd: c_int, bytes: *mut c_void, length: usize) -> ssize_t {
    // SAFETY: the caller's promise.
    unsafe {
        match table::live(fd) {
            Some(socket) => receive_into(fd, socket, (bytes, length), 0, NOWHERE),
            None => next::read(fd, bytes, length),
        }
    }
}

/// # Safety
/// As read(2); `room` is how large the compiler knows `bytes` to be.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __read_chk(fd: c_int, bytes: *mut c_void, length: usize, room: usize) -> ssize_t {
    // SAFETY: the caller's promise.
    unsafe {
        match table::live(fd) {
            Some(socket) if length <= room => receive_into(fd, socket, (bytes, length), 0, NOWHERE),
            _ => next::__read_chk(fd, bytes, length, room),
        }
    }
}

/// # Safety
/// As readv(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn readv(fd: c_int, vectors: *const iovec, count: c_int) -> ssize_t {
    let Some(socket) = table::live(fd) else {
        // SAFETY: the caller's promise.
        return unsafe { next::readv(fd, vectors, count) };
    };
    let Ok(count) = usize::try_from(count) else { return returned(Err(libc::EINVAL)) };
    // SAFETY: all zero bytes are a valid msghdr; and the caller's promise: recvmsg only reads the vectors.
    unsafe {
        let mut message: msghdr = std::mem::zeroed();
        (message.msg_iov, message.msg_iovlen) = (vectors.cast_mut(), count as _);
        receive(fd, socket, &mut message, 0)
    }
}
