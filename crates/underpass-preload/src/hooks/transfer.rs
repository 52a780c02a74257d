//! Requests out, answers in.
//!
//! Sending waits until the router has handled the datagram. Receiving is the C library's own, after which
//! the sender's address is made that of a kernel; calls that return no address (read, recv) need nothing.
#![allow(unsafe_code)]

use std::{
    ffi::{c_int, c_uint, c_void},
    slice,
};

use libc::{iovec, mmsghdr, msghdr, sockaddr, socklen_t, ssize_t};

use super::{
    files::write_text,
    returned,
    sockets::{netlink_address, to_router, write_address},
};
use crate::{
    channel, next,
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
    unsafe { channel::submit(fd, socket, vectors, count, flags) }
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
    let mut vector = channel::vector(bytes, length);
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
    let mut vector = channel::vector(bytes, length);
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
    let mut vector = channel::vector(bytes, length);
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

/// Makes the sender of a received message the kernel: port id 0.
///
/// # Safety
/// `message` is a message that a receive has filled; `room` the length of its `msg_name` before.
unsafe fn from_kernel(message: &mut msghdr, room: socklen_t) {
    message.msg_namelen = room;
    // SAFETY: the caller's promise.
    unsafe { write_address(0, 0, message.msg_name.cast(), &raw mut message.msg_namelen) };
    if message.msg_name.is_null() {
        message.msg_namelen = 0;
    }
}

/// # Safety
/// As recvmsg(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    if message.is_null() || table::live(fd).is_none() {
        // SAFETY: the caller's promise.
        return unsafe { next::recvmsg(fd, message, flags) };
    }
    // SAFETY: the caller's promise.
    unsafe {
        let room = (*message).msg_namelen;
        let length = next::recvmsg(fd, message, flags);
        if length >= 0 {
            from_kernel(&mut *message, room);
        }
        length
    }
}

/// # Safety
/// As recvmmsg(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut libc::timespec,
) -> c_int {
    if messages.is_null() || table::live(fd).is_none() {
        // SAFETY: the caller's promise.
        return unsafe { next::recvmmsg(fd, messages, count, flags, timeout) };
    }
    // SAFETY: the caller's promise. The receive overwrites the lengths of the names, so they are kept.
    unsafe {
        let rooms = |messages: *mut mmsghdr| slice::from_raw_parts_mut(messages, count as usize);
        let before: [socklen_t; 64] =
            std::array::from_fn(|i| rooms(messages).get(i).map_or(0, |message| message.msg_hdr.msg_namelen));
        let received = next::recvmmsg(fd, messages, count.min(before.len() as c_uint), flags, timeout);
        let filled = usize::try_from(received).unwrap_or(0);
        for (message, room) in rooms(messages).iter_mut().zip(before).take(filled) {
            from_kernel(&mut message.msg_hdr, room);
        }
        received
    }
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
        if address.is_null() || table::live(fd).is_none() {
            return next::recvfrom(fd, bytes, length, flags, address, address_length);
        }
        let received = next::recvfrom(fd, bytes, length, flags, std::ptr::null_mut(), std::ptr::null_mut());
        if received >= 0 {
            write_address(0, 0, address, address_length);
        }
        received
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
    // SAFETY: the caller's promise.
    unsafe {
        if address.is_null() || table::live(fd).is_none() {
            return next::__recvfrom_chk(fd, bytes, length, room, flags, address, address_length);
        }
        let nowhere = std::ptr::null_mut();
        let received = next::__recvfrom_chk(fd, bytes, length, room, flags, nowhere, std::ptr::null_mut());
        if received >= 0 {
            write_address(0, 0, address, address_length);
        }
        received
    }
}
