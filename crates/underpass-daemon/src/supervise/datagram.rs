//! Receiving for a program: a datagram with its control messages, as a kernel's socket gives them.
#![allow(unsafe_code)]

use std::{
    mem::zeroed,
    os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd},
};

use libc::{c_int, cmsghdr};
use nix::errno::Errno;

use crate::protocol::{MARK, marked};

/// Bytes of control messages at most. The router sends none: what there is, the kernel adds.
const CONTROL: usize = 512;
/// `SCM_PIDFD`.
const SCM_PIDFD: c_int = 4;
const ALIGNMENT: usize = align_of::<cmsghdr>();

/// Room for control messages, aligned as they are.
#[repr(C)]
union Room {
    _header: cmsghdr,
    bytes: [u8; CONTROL],
}

/// What has been received.
#[derive(Debug)]
pub struct Datagram {
    /// Bytes in the buffer, or with MSG_TRUNC the datagram's length.
    pub length: usize,
    /// `msg_flags`.
    pub flags: c_int,
    /// Control messages, each padded, without those that bring descriptors: these would be this process's.
    pub control: Vec<u8>,
}

/// Receives a datagram if there is one.
///
/// # Errors
/// Those of recvmsg(2); EAGAIN if there is none.
pub fn receive(socket: &OwnedFd, bytes: &mut [u8], flags: c_int) -> Result<Datagram, Errno> {
    // SAFETY: a union of integers and a msghdr may be all zero bytes.
    let (mut room, mut header): (Room, libc::msghdr) = unsafe { (zeroed(), zeroed()) };
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    header.msg_control = (&raw mut room).cast();
    header.msg_controllen = CONTROL as _;
    let flags = flags | libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: the header describes `bytes` and `room`, which live longer than the call.
    let length = Errno::result(unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, flags) })?;
    // SAFETY: all bytes of the union have been written: zeroed, then by the kernel.
    let written = unsafe { &room.bytes }.get(..header.msg_controllen).unwrap_or_default();
    let mut control = Vec::new();
    each(written, |level, kind, message| match (level, kind) {
        (libc::SOL_SOCKET, libc::SCM_RIGHTS | SCM_PIDFD) => {
            for number in message.get(size_of::<cmsghdr>()..).unwrap_or_default().as_chunks().0 {
                // SAFETY: the kernel has just made the descriptor, and nobody else knows it.
                drop(unsafe { OwnedFd::from_raw_fd(RawFd::from_ne_bytes(*number)) });
            }
        }
        // The sender that a program gets to know by SO_PASSCRED: the kernel has process id 0.
        (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) => {
            add(&mut control, level, kind, &[0; size_of::<libc::ucred>()]);
        }
        _ => add(&mut control, level, kind, message.get(size_of::<cmsghdr>()..).unwrap_or_default()),
    });
    Ok(Datagram { length: length as usize, flags: header.msg_flags & !libc::MSG_CMSG_CLOEXEC, control })
}

/// Adds a control message, padded.
fn add(control: &mut Vec<u8>, level: c_int, kind: c_int, data: &[u8]) {
    control.extend_from_slice(&(size_of::<cmsghdr>() + data.len()).to_ne_bytes());
    [level, kind].iter().for_each(|int| control.extend_from_slice(&int.to_ne_bytes()));
    control.extend_from_slice(data);
    control.resize(control.len().next_multiple_of(ALIGNMENT), 0);
}

impl Datagram {
    /// Makes what has been received whole, with MSG_TRUNC, what it is without its mark, in a buffer of so many bytes.
    /// `shows`: whether the program has NETLINK_PKTINFO set. `flags`: those of its call.
    pub fn unmark(&mut self, bytes: &[u8], room: usize, shows: bool, flags: c_int) {
        if let Some(group) = bytes.get(..self.length).and_then(marked) {
            self.length -= MARK;
            if shows {
                let others = std::mem::take(&mut self.control);
                add(&mut self.control, libc::SOL_NETLINK, libc::NETLINK_PKTINFO, &group.to_ne_bytes());
                self.control.extend(others);
            }
        }
        if self.length > room {
            self.flags |= libc::MSG_TRUNC;
        }
        if flags & libc::MSG_TRUNC == 0 {
            self.length = self.length.min(room);
        }
    }
}

/// Calls `visit` with the level, the type and all bytes of each control message.
fn each(mut control: &[u8], mut visit: impl FnMut(c_int, c_int, &[u8])) {
    const LEVEL: usize = size_of::<usize>();
    while let Some(length) = control.first_chunk::<LEVEL>().map(|length| usize::from_ne_bytes(*length)) {
        let Some(message) = control.get(..length).filter(|_| length >= size_of::<cmsghdr>()) else { return };
        let int = |at| {
            let bytes = message.get(at..at + 4).and_then(|bytes| bytes.first_chunk());
            bytes.map_or(0, |bytes| c_int::from_ne_bytes(*bytes))
        };
        visit(int(LEVEL), int(LEVEL + 4), message);
        control = control.get(length.next_multiple_of(ALIGNMENT)..).unwrap_or_default();
    }
}

/// Makes the first socket of a pair block or not, as a program has asked; the second never blocks.
///
/// # Errors
/// Those of socketpair(2).
pub fn pair(nonblocking: bool) -> Result<(OwnedFd, OwnedFd), Errno> {
    use nix::{
        fcntl::{FcntlArg, OFlag, fcntl},
        sys::socket::{AddressFamily, SockFlag, SockType, socketpair},
    };
    let (near, far) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?;
    fcntl(&far, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    if nonblocking {
        fcntl(&near, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    }
    Ok((near, far))
}

/// Whether calls on a descriptor of a program do not block.
pub fn is_nonblocking(fd: &impl AsFd) -> bool {
    use nix::fcntl::{FcntlArg, OFlag, fcntl};
    fcntl(fd, FcntlArg::F_GETFL)
        .is_ok_and(|flags| OFlag::from_bits_truncate(flags).contains(OFlag::O_NONBLOCK))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg, setsockopt, sockopt};

    use super::*;

    #[test]
    fn descriptors_do_not_stay_here() {
        let (near, far) = pair(true).unwrap();
        setsockopt(&near, sockopt::PassCred, &true).unwrap();
        let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        for _ in 0..100 {
            let rights = [far.as_fd().as_raw_fd(); 3];
            let message = [ControlMessage::ScmRights(&rights)];
            let bytes = [std::io::IoSlice::new(b"abc")];
            sendmsg::<()>(far.as_raw_fd(), &bytes, &message, MsgFlags::empty(), None).unwrap();
            let mut bytes = [0; 8];
            let received = receive(&near, &mut bytes, 0).unwrap();
            assert_eq!((received.length, &bytes[..3]), (3, &b"abc"[..]));
            // SCM_CREDENTIALS stays: a header and a struct ucred, which is the kernel's.
            let header = [&28u64.to_ne_bytes()[..], &[1, 0, 0, 0, 2, 0, 0, 0]].concat();
            assert_eq!(received.control, [&header[..], &[0; 16]].concat());
        }
        // Other tests of this process open and close some.
        assert!(open() < 150, "{}", open());
        assert_eq!(receive(&near, &mut [0; 8], 0).unwrap_err(), Errno::EAGAIN);
        assert!(is_nonblocking(&near) && !is_nonblocking(&pair(false).unwrap().0));
    }
}
