//! What a socket is: socket, bind, connect, names and options.
#![allow(unsafe_code)]

use std::{
    ffi::{c_int, c_void},
    mem::{size_of, zeroed},
    ptr,
    sync::atomic::Ordering::Relaxed,
};

use libc::{sockaddr, sockaddr_nl, socklen_t};

use super::returned;
use crate::{
    channel, next,
    protocol::{Kind, Message},
    table::{self, Socket},
};

/// netlink_bind and netlink_connect of Linux ask for this much of an address.
const ADDRESS: socklen_t = size_of::<sockaddr_nl>() as socklen_t;

/// # Safety
/// As socket(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    if domain != libc::AF_NETLINK || !channel::active() {
        // SAFETY: the caller's promise.
        return unsafe { next::socket(domain, kind, protocol) };
    }
    match protocol {
        libc::NETLINK_ROUTE | libc::NETLINK_GENERIC => {
            if !matches!(
                kind & !(libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK),
                libc::SOCK_RAW | libc::SOCK_DGRAM
            ) {
                return returned(Err(libc::ESOCKTNOSUPPORT));
            }
            match channel::open(kind, protocol) {
                Ok(Some(fd)) => fd,
                // SAFETY: the caller's promise.
                Ok(None) => unsafe { next::socket(domain, kind, protocol) },
                Err(errno) => returned(Err(errno)),
            }
        }
        // They ask about or change the kernel's network, which is not this one.
        libc::NETLINK_SOCK_DIAG | libc::NETLINK_XFRM | libc::NETLINK_FIB_LOOKUP | libc::NETLINK_NETFILTER
            if channel::alone() =>
        {
            returned(Err(libc::EPROTONOSUPPORT))
        }
        // SAFETY: the caller's promise. The rest (audit, uevents, SELinux …) is not about networks.
        _ => unsafe { next::socket(domain, kind, protocol) },
    }
}

/// The address that a program passes to bind, connect or sendto.
///
/// # Safety
/// `address` points at `length` bytes that can be read, or is null.
pub unsafe fn netlink_address(address: *const sockaddr, length: socklen_t) -> Result<sockaddr_nl, c_int> {
    if address.is_null() || length < ADDRESS {
        return Err(libc::EINVAL);
    }
    // SAFETY: there are at least as many bytes as a sockaddr_nl has, and any bytes are one.
    let address = unsafe { ptr::read_unaligned(address.cast::<sockaddr_nl>()) };
    if c_int::from(address.nl_family) != libc::AF_NETLINK { Err(libc::EINVAL) } else { Ok(address) }
}

/// Writes an address as the kernel does: at most the bytes that there is room for, and the full length.
///
/// # Safety
/// `length` is null or points at a length; `address` is null or points at that many bytes of room.
pub unsafe fn write_address(port_id: u32, groups: u32, address: *mut sockaddr, length: *mut socklen_t) {
    if address.is_null() || length.is_null() {
        return;
    }
    // SAFETY: all zero bytes are a valid sockaddr_nl; the copy is as long as the room at most.
    unsafe {
        let mut full: sockaddr_nl = zeroed();
        full.nl_family = libc::AF_NETLINK as u16;
        full.nl_pid = port_id;
        full.nl_groups = groups;
        let room = (*length).min(ADDRESS) as usize;
        ptr::copy_nonoverlapping((&raw const full).cast::<u8>(), address.cast::<u8>(), room);
        *length = ADDRESS;
    }
}

/// # Safety
/// As bind(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bind(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int {
    let Some(socket) = table::live(fd) else {
        // SAFETY: the caller's promise.
        return unsafe { next::bind(fd, address, length) };
    };
    // SAFETY: the caller's promise.
    let wanted = unsafe { netlink_address(address, length) };
    returned(wanted.and_then(|wanted| {
        match socket.port_id.load(Relaxed) {
            0 => channel::bind(socket, wanted.nl_pid, wanted.nl_groups),
            // netlink_bind of Linux: a bound socket keeps its port id.
            bound if wanted.nl_pid != 0 && wanted.nl_pid != bound => Err(libc::EINVAL),
            bound => channel::bind(socket, bound, wanted.nl_groups),
        }
        .map(|()| 0)
    }))
}

/// # Safety
/// As connect(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn connect(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int {
    let Some(socket) = table::live(fd) else {
        // SAFETY: the caller's promise.
        return unsafe { next::connect(fd, address, length) };
    };
    // SAFETY: the caller's promise.
    let peer = unsafe { netlink_address(address, length) };
    returned(
        peer.and_then(|peer| to_router(&peer)).and_then(|()| channel::bind_if_unbound(socket)).map(|()| 0),
    )
}

/// Whether an address is the router's: port id 0, no group.
pub fn to_router(address: &sockaddr_nl) -> Result<(), c_int> {
    match (address.nl_pid, address.nl_groups) {
        (0, 0) => Ok(()),
        (_, 0) => Err(libc::ECONNREFUSED),
        _ => Err(libc::EPERM),
    }
}

/// # Safety
/// As getsockname(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getsockname(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int {
    let Some(socket) = table::live(fd) else {
        // SAFETY: the caller's promise.
        return unsafe { next::getsockname(fd, address, length) };
    };
    // SAFETY: the caller's promise.
    unsafe { write_address(socket.port_id.load(Relaxed), socket.groups.load(Relaxed), address, length) };
    0
}

/// # Safety
/// As getpeername(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getpeername(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int {
    if table::live(fd).is_none() {
        // SAFETY: the caller's promise.
        return unsafe { next::getpeername(fd, address, length) };
    }
    // SAFETY: the caller's promise.
    unsafe { write_address(0, 0, address, length) };
    0
}

/// # Safety
/// As setsockopt(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: socklen_t,
) -> c_int {
    let socket = if level == libc::SOL_NETLINK { table::live(fd) } else { None };
    let Some(socket) = socket else {
        // SAFETY: the caller's promise.
        return unsafe { next::setsockopt(fd, level, name, value, length) };
    };
    if value.is_null() || (length as usize) < size_of::<u32>() {
        return returned(Err(libc::EINVAL));
    }
    // SAFETY: there are at least four bytes to read.
    let value = unsafe { ptr::read_unaligned(value.cast::<u32>()) };
    // Before the first marked datagram can come.
    if name == libc::NETLINK_PKTINFO {
        socket.marks.store(true, Relaxed);
    }
    returned(channel::call(socket, Message::new(Kind::Set, name as u32, value, 0)).map(|_| {
        // Groups 1 to 32 show in the socket's address too.
        let group = value.checked_sub(1).and_then(|bit| 1u32.checked_shl(bit)).unwrap_or(0);
        // The others are remembered for the next router.
        let bit = value.checked_sub(channel::FIRST_ABOVE).and_then(|bit| 1u64.checked_shl(bit)).unwrap_or(0);
        match name {
            libc::NETLINK_ADD_MEMBERSHIP => {
                socket.groups.fetch_or(group, Relaxed);
                socket.groups_above.fetch_or(bit, Relaxed);
            }
            libc::NETLINK_DROP_MEMBERSHIP => {
                socket.groups.fetch_and(!group, Relaxed);
                socket.groups_above.fetch_and(!bit, Relaxed);
            }
            option => {
                let bit = 1u32.checked_shl(option as u32).unwrap_or(0);
                match value {
                    0 => socket.options.fetch_and(!bit, Relaxed),
                    _ => socket.options.fetch_or(bit, Relaxed),
                };
            }
        }
        0
    }))
}

/// # Safety
/// As getsockopt(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: *mut socklen_t,
) -> c_int {
    let ours = match (level, name) {
        (libc::SOL_NETLINK, _) | (libc::SOL_SOCKET, libc::SO_DOMAIN | libc::SO_PROTOCOL | libc::SO_TYPE) => {
            table::live(fd)
        }
        _ => None,
    };
    let Some(socket) = ours else {
        // SAFETY: the caller's promise.
        return unsafe { next::getsockopt(fd, level, name, value, length) };
    };
    let answer = if level == libc::SOL_NETLINK { option(socket, name) } else { Ok(nature(socket, name)) };
    returned(answer.and_then(|answer| {
        if length.is_null() {
            return Err(libc::EFAULT);
        }
        // SAFETY: the caller's promise: `length` can be read and written, and `value` has that much room.
        unsafe {
            let room = (*length as usize).min(answer.len);
            // netlink_getsockopt of Linux: a number is written whole; how long a list is can be asked for with no room.
            match room {
                0..4 if level == libc::SOL_NETLINK && answer.len == 4 => return Err(libc::EINVAL),
                1.. if value.is_null() => return Err(libc::EFAULT),
                _ => {}
            }
            if room > 0 {
                ptr::copy_nonoverlapping(answer.bytes.as_ptr(), value.cast::<u8>(), room);
            }
            *length = answer.told;
        }
        Ok(0)
    }))
}

/// An option's value: bytes to copy and the length to tell.
struct Value {
    bytes: [u8; 8],
    len: usize,
    told: socklen_t,
}

/// What kind of socket the program believes this to be.
fn nature(socket: &Socket, name: c_int) -> Value {
    let value = match name {
        libc::SO_DOMAIN => libc::AF_NETLINK,
        libc::SO_PROTOCOL => socket.protocol.load(Relaxed),
        _ => socket.kind.load(Relaxed),
    };
    int(value as u32)
}

fn int(value: u32) -> Value {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&value.to_ne_bytes());
    Value { bytes, len: 4, told: 4 }
}

fn option(socket: &Socket, name: c_int) -> Result<Value, c_int> {
    let answer = channel::call(socket, Message::new(Kind::Get, name as u32, 0, 0))?;
    if name != libc::NETLINK_LIST_MEMBERSHIPS {
        return Ok(int(answer.b));
    }
    // A bitmap of groups, bit 0 for group 1, of two 32-bit words.
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&answer.b.to_ne_bytes());
    bytes[4..].copy_from_slice(&answer.c.to_ne_bytes());
    Ok(Value { bytes, len: 8, told: 8 })
}
