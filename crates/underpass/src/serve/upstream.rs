//! The kernel's side of one netlink socket of a program: a socket of the same protocol, with the same port
//! id, options and groups, in the daemon's network namespace.
//!
//! The port ids are the same on both sides, so the kernel's answers go to the program as they are, and no two
//! programs of the namespace share one.
#![allow(unsafe_code)]

use std::{
    mem::size_of,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
};

use nix::{
    errno::Errno,
    sys::socket::{
        AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, getsockname, recv,
        send, setsockopt, socket, sockopt,
    },
};
use underpass_control::Protocol;

/// Room for what the kernel tells and this process has not read yet, in bytes.
const RECEIVE_BUFFER: usize = 8 << 20;

/// A netlink socket of the kernel. Nothing it does waits for anybody to read or write.
#[derive(Debug)]
pub struct Upstream(OwnedFd);

impl AsFd for Upstream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Upstream {
    /// Opens one, not bound yet.
    pub fn open(protocol: Protocol) -> Result<Self, Errno> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let protocol = match protocol {
            Protocol::Route => SockProtocol::NetlinkRoute,
            Protocol::Generic => SockProtocol::NetlinkGeneric,
        };
        let opened = socket(AddressFamily::Netlink, SockType::Raw, flags, protocol)?;
        // Without CAP_NET_ADMIN it stays smaller.
        let _ = setsockopt(&opened, sockopt::RcvBufForce, &RECEIVE_BUFFER);
        Ok(Self(opened))
    }

    /// Binds to a port id (0: any that is free) and to the groups 1 to 32 of a mask; gives the port id.
    pub fn bind(&self, port: u32, groups: u32) -> Result<u32, Errno> {
        let fd = self.0.as_raw_fd();
        bind(fd, &NetlinkAddr::new(port, groups))?;
        Ok(getsockname::<NetlinkAddr>(fd)?.pid())
    }

    /// Sets an option of SOL_NETLINK.
    pub fn set(&self, option: i32, value: u32) -> Result<(), Errno> {
        let length = size_of::<u32>() as libc::socklen_t;
        // SAFETY: setsockopt reads the four bytes of `value`.
        let set = unsafe {
            libc::setsockopt(self.0.as_raw_fd(), libc::SOL_NETLINK, option, (&raw const value).cast(), length)
        };
        Errno::result(set).map(drop)
    }

    /// An option of SOL_NETLINK: a number, or the first 64 multicast groups.
    pub fn get(&self, option: i32) -> Result<u64, Errno> {
        let mut value = [0u32; 2];
        let mut length = size_of_val(&value) as libc::socklen_t;
        // SAFETY: getsockopt writes at most `length` bytes to `value`, and the length.
        let got = unsafe {
            let (to, length) = (value.as_mut_ptr().cast(), &raw mut length);
            libc::getsockopt(self.0.as_raw_fd(), libc::SOL_NETLINK, option, to, length)
        };
        Errno::result(got)?;
        Ok(u64::from(value[0]) | u64::from(value[1]) << 32)
    }

    /// Hands messages to the kernel, which has done them when this returns: its answers, or the first part
    /// of a dump, are there to be received.
    pub fn send(&self, messages: &[u8]) -> Result<(), Errno> {
        loop {
            match send(self.0.as_raw_fd(), messages, MsgFlags::MSG_DONTWAIT) {
                Err(Errno::EINTR) => {}
                sent => return sent.map(drop),
            }
        }
    }

    /// The next datagram: its length, `None` if there is none now. A dump goes on with each that is taken.
    pub fn receive(&self, buffer: &mut [u8]) -> Result<Option<usize>, Errno> {
        loop {
            let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_TRUNC;
            match recv(self.0.as_raw_fd(), buffer, flags) {
                Ok(length) if length > buffer.len() => return Err(Errno::EMSGSIZE),
                Ok(length) => return Ok(Some(length)),
                Err(Errno::EAGAIN) => return Ok(None),
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno),
            }
        }
    }
}
