//! Interfaces by name and by index, and the ioctls that would show or change the kernel's, where the router is
//! alone. Beside a kernel each of its links is one of the kernel's too.
#![allow(unsafe_code)]

use std::{
    ffi::{c_char, c_int, c_uint, c_ulong, c_void},
    ptr,
};

use super::returned;
use crate::{
    channel, next,
    protocol::{Kind, Message, NAME_LENGTH, TUNNEL_PARAMETERS},
};

/// struct ifreq of Linux begins with a name; `ifr_ifindex` follows.
#[repr(C)]
struct InterfaceRequest {
    name: [u8; NAME_LENGTH],
    index: c_int,
}

fn index_of(name: [u8; NAME_LENGTH]) -> Result<u32, c_int> {
    // Without a NUL it is too long to be a name of any.
    if !name.contains(&0) {
        return Err(libc::ENODEV);
    }
    channel::call_once(Message { name, ..Message::new(Kind::IndexOf, 0, 0, 0) }).map(|answer| answer.b)
}

fn name_of(index: u32) -> Result<[u8; NAME_LENGTH], c_int> {
    channel::call_once(Message::new(Kind::NameOf, index, 0, 0)).map(|answer| answer.name)
}

/// # Safety
/// As if_nametoindex(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn if_nametoindex(name: *const c_char) -> c_uint {
    if !channel::alone() || name.is_null() {
        // SAFETY: the caller's promise.
        return unsafe { next::if_nametoindex(name) };
    }
    let mut padded = [0; NAME_LENGTH];
    // SAFETY: the caller's promise: the string ends with a NUL, and nothing is read behind it.
    let text = unsafe { std::ffi::CStr::from_ptr(name) }.to_bytes();
    for (to, from) in padded.iter_mut().zip(text) {
        *to = *from;
    }
    index_of(padded).unwrap_or_else(|errno| {
        next::set_errno(errno);
        0
    })
}

/// # Safety
/// As if_indextoname(3): `name` has room for IFNAMSIZ bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn if_indextoname(index: c_uint, name: *mut c_char) -> *mut c_char {
    if !channel::alone() || name.is_null() {
        // SAFETY: the caller's promise.
        return unsafe { next::if_indextoname(index, name) };
    }
    match name_of(index) {
        Ok(found) => {
            // SAFETY: the caller's promise.
            unsafe { ptr::copy_nonoverlapping(found.as_ptr().cast(), name, NAME_LENGTH) };
            name
        }
        Err(errno) => {
            // glibc: ENXIO for an index that nobody has.
            next::set_errno(if errno == libc::ENODEV { libc::ENXIO } else { errno });
            ptr::null_mut()
        }
    }
}

/// Whether a request is about network interfaces, addresses, routes or tunnels (linux/sockios.h,
/// linux/if_tun.h), and not about a socket of its own.
fn about_networks(request: c_ulong) -> bool {
    const TUNSETIFF: c_ulong = 0x4004_54ca;
    const SIOCOUTQNSD: c_ulong = 0x894b;
    // 0x8901 to 0x8907: owner, process group, at-mark, time stamp.
    matches!(request, 0x8908..=0x89ff | 0x8b00..=0x8bff | TUNSETIFF) && request != SIOCOUTQNSD
}

/// Whether a request is one of tunnel devices: `SIOCGETTUNNEL` to `SIOCCHGTUNNEL`, `SIOCGET6RD` to `SIOCCHG6RD`. Other
/// devices have requests of their own with these numbers.
fn about_tunnels(request: c_ulong) -> bool {
    matches!(request, 0x89f0..=0x89f3 | 0x89f8..=0x89fb)
}

/// struct ifreq of Linux with its `ifr_data`.
#[repr(C)]
struct DataRequest {
    name: [u8; NAME_LENGTH],
    data: *mut c_void,
}

/// Has the router carry out a request of tunnel devices; where it has no such tunnel and a kernel is beside it, the
/// kernel.
///
/// # Safety
/// As ioctl(2) with one of these requests.
unsafe fn tunnel(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    let asked = argument.cast::<DataRequest>();
    if asked.is_null() {
        return returned(Err(libc::EFAULT));
    }
    // SAFETY: the caller's promise: a struct ifreq.
    let (name, data) = unsafe { ((*asked).name, (*asked).data.cast::<u8>()) };
    if data.is_null() {
        return returned(Err(libc::EFAULT));
    }
    let number = (request & 0xffff_ffff) as u32;
    let mut parameters = [0u8; TUNNEL_PARAMETERS];
    // SAFETY: the caller's promise.
    let read = unsafe { read_parameters(data, lengths(fd, number), &mut parameters) };
    let question = Message { name, ..Message::new(Kind::Tunnel, number, 0, 0) };
    match channel::tunnel(question, parameters.get(..read).unwrap_or_default()) {
        Ok(Some(answer)) => {
            // SAFETY: the caller's promise: there is room for the structure of the device's kind.
            unsafe { ptr::copy_nonoverlapping(answer.as_ptr(), data, answer.len().min(TUNNEL_PARAMETERS)) };
            returned(Ok(0))
        }
        // SAFETY: the caller's promise.
        Ok(None) => unsafe { next::ioctl(fd, request, argument) },
        // SAFETY: the same.
        Err(libc::EOPNOTSUPP | libc::ENODEV) if !channel::alone() => unsafe {
            next::ioctl(fd, request, argument)
        },
        Err(errno) => returned(Err(errno)),
    }
}

/// How much memory a request of tunnel devices speaks of, and how much may follow: what `ip -6 tunnel` has of a device
/// of GRE and not of others.
fn lengths(fd: c_int, number: u32) -> (usize, usize) {
    if number >= 0x89f8 {
        return (24, 0); // struct ip_tunnel_6rd
    }
    let mut domain: c_int = 0;
    let mut length = size_of::<c_int>() as libc::socklen_t;
    // SAFETY: getsockopt writes at most the int whose length it is given.
    let known = unsafe {
        let domain = (&raw mut domain).cast();
        next::getsockopt(fd, libc::SOL_SOCKET, libc::SO_DOMAIN, domain, &raw mut length) == 0
    };
    // struct ip6_tnl_parm and what struct ip6_tnl_parm2 has behind it; struct ip_tunnel_parm.
    if known && domain == libc::AF_INET6 { (64, TUNNEL_PARAMETERS - 64) } else { (52, 0) }
}

/// Reads memory of the program; gives how much that was.
///
/// # Safety
/// `from` can be read for the first of the lengths.
unsafe fn read_parameters(
    from: *const u8,
    (sure, more): (usize, usize),
    to: &mut [u8; TUNNEL_PARAMETERS],
) -> usize {
    // SAFETY: the caller's promise; there is room for either length.
    unsafe { ptr::copy_nonoverlapping(from, to.as_mut_ptr(), sure) };
    if more == 0 {
        return sure;
    }
    let (to, from) = (to[sure..].as_mut_ptr(), from.wrapping_add(sure).cast_mut());
    let local = libc::iovec { iov_base: to.cast(), iov_len: more };
    let remote = libc::iovec { iov_base: from.cast(), iov_len: more };
    // SAFETY: the kernel writes at most `more` bytes; what cannot be read at `from` is an error, not a fault.
    let read =
        unsafe { libc::process_vm_readv(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0) };
    sure + usize::try_from(read).unwrap_or(0)
}

/// # Safety
/// As ioctl(2). Variadic in C; see `next` for why a third fixed argument stands for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    // C passes an int where the number has its high bit set; the kernel looks at 32 bits.
    let number = request & 0xffff_ffff;
    if about_tunnels(number) && channel::active() {
        // SAFETY: the caller's promise.
        return unsafe { tunnel(fd, request, argument) };
    }
    if !about_networks(number) || !channel::alone() {
        // SAFETY: the caller's promise.
        return unsafe { next::ioctl(fd, request, argument) };
    }
    if argument.is_null() {
        return returned(Err(libc::EFAULT));
    }
    let interface = argument.cast::<InterfaceRequest>();
    // SAFETY: both requests take a struct ifreq, which is longer than what is read and written here.
    unsafe {
        match number {
            libc::SIOCGIFINDEX => returned(index_of((*interface).name).map(|index| {
                (*interface).index = index as c_int;
                0
            })),
            libc::SIOCGIFNAME => returned(name_of((*interface).index as u32).map(|name| {
                (*interface).name = name;
                0
            })),
            // The kernel's interfaces are not the router's: neither shown nor changed.
            _ => returned(Err(libc::EOPNOTSUPP)),
        }
    }
}
