//! Descriptors that the kernel hands to this process.
#![allow(unsafe_code)]

use std::{
    mem::{size_of, zeroed},
    os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd},
};

use nix::{
    errno::Errno,
    sys::socket::{SockFlag, accept4},
};

use crate::numbers::MOST;

// SAFETY: it only computes.
const ROOM: usize = unsafe { libc::CMSG_SPACE((MOST * size_of::<RawFd>()) as u32) } as usize;

/// Room for control messages, aligned as they are.
#[repr(C)]
union Room {
    _header: libc::cmsghdr,
    _bytes: [u8; ROOM],
}

fn own(raw: RawFd) -> OwnedFd {
    // SAFETY: the callers below have just got the descriptor from the kernel, and nobody else has it.
    unsafe { OwnedFd::from_raw_fd(raw) }
}

/// The next connection of a listener.
pub fn accept(listener: &OwnedFd) -> Result<OwnedFd, Errno> {
    accept4(listener.as_raw_fd(), SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK).map(own)
}

/// Receives a datagram and the first [`MOST`] descriptors that came with it; the kernel closes those for which there is
/// no room. The length is the datagram's own, even if there was less room.
///
/// # Errors
/// Those of recvmsg(2); EMFILE if this process could not have the first one.
pub fn receive(socket: &impl AsFd, bytes: &mut [u8]) -> Result<(usize, Vec<OwnedFd>), Errno> {
    // SAFETY: a union of integers and a msghdr may be all zero bytes.
    let (mut room, mut header): (Room, libc::msghdr) = unsafe { (zeroed(), zeroed()) };
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    header.msg_control = (&raw mut room).cast();
    header.msg_controllen = size_of::<Room>() as _;
    let flags = libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT | libc::MSG_TRUNC;
    // SAFETY: the header describes `bytes` and `room`, which live longer than the call.
    let length = Errno::result(unsafe { libc::recvmsg(socket.as_fd().as_raw_fd(), &raw mut header, flags) })?;
    // Whoever returns from here on closes them, or hands them on.
    let mut descriptors = Vec::new();
    // SAFETY: the kernel has written the control messages that the header now describes, and each says its length.
    unsafe {
        let mut message = libc::CMSG_FIRSTHDR(&raw const header);
        while let Some(found) = message.as_ref() {
            if (found.cmsg_level, found.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                let held = found.cmsg_len.saturating_sub(libc::CMSG_LEN(0) as usize);
                let first = libc::CMSG_DATA(message).cast::<RawFd>();
                let raw = (0..held / size_of::<RawFd>()).map(|at| first.add(at).read_unaligned());
                descriptors.extend(raw.map(own));
            }
            message = libc::CMSG_NXTHDR(&raw const header, message);
        }
    }
    if descriptors.is_empty() && header.msg_flags & libc::MSG_CTRUNC != 0 {
        return Err(Errno::EMFILE);
    }
    Ok((length as usize, descriptors))
}
