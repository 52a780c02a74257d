//! The kernel's side of one netlink socket of a program: a socket of the same protocol, with the same port
//! id, options and groups, in the daemon's network namespace.
//!
//! The port ids are the same on both sides, so the kernel's answers go to the program as they are, and no two
//! programs of the namespace share one.
#![allow(unsafe_code)]

use std::{
    mem::{size_of, zeroed},
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
};

use nix::{
    errno::Errno,
    sys::socket::{
        AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, getsockname, send,
        setsockopt, socket, sockopt,
    },
};
use underpass_control::{LARGE_PART, Protocol};

/// Room for what the kernel reports and this process has not read yet, in bytes.
const RECEIVE_BUFFER: usize = 8 << 20;

/// A netlink socket of the kernel. Nothing it does waits for anybody to read or write.
#[derive(Debug)]
pub struct Upstream(OwnedFd);

/// A datagram of the kernel.
#[derive(Debug, Clone, Copy)]
pub struct Datagram {
    /// Its length.
    pub length: usize,
    /// The multicast group that it went to; 0 for none, and unless NETLINK_PKTINFO is set.
    pub group: u32,
}

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

    /// The next datagram; `None` if there is none now. A dump goes on with each that is taken, in parts of at most `part`
    /// bytes: the kernel makes them as long as the largest buffer that it has seen.
    pub fn receive(&self, buffer: &mut [u8], part: usize) -> Result<Option<Datagram>, Errno> {
        let waiting = match part < LARGE_PART {
            true => self.receive_into(&mut [], libc::MSG_PEEK)?,
            false => Some(Datagram { length: buffer.len(), group: 0 }),
        };
        let Some(Datagram { length, .. }) = waiting else { return Ok(None) };
        let buffer = buffer.get_mut(..length.max(part)).ok_or(Errno::EMSGSIZE)?;
        match self.receive_into(buffer, 0)? {
            Some(datagram) if datagram.length > buffer.len() => Err(Errno::EMSGSIZE),
            received => Ok(received),
        }
    }

    /// recvmsg(2) without waiting: the length is that of the whole datagram.
    fn receive_into(&self, buffer: &mut [u8], flags: libc::c_int) -> Result<Option<Datagram>, Errno> {
        let flags = flags | libc::MSG_DONTWAIT | libc::MSG_TRUNC;
        // Room for a cmsghdr and a group, aligned as cmsghdr is.
        let mut ancillary = [0u64; 4];
        loop {
            let mut vector = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
            // SAFETY: all zero bytes are a valid msghdr; recvmsg writes to the buffer and to `ancillary` at most what is
            // said of their lengths, and CMSG_FIRSTHDR and CMSG_DATA point into what it has written.
            let (received, group) = unsafe {
                let mut message: libc::msghdr = zeroed();
                message.msg_iov = &raw mut vector;
                message.msg_iovlen = 1;
                message.msg_control = ancillary.as_mut_ptr().cast();
                message.msg_controllen = size_of_val(&ancillary) as _;
                let received = libc::recvmsg(self.0.as_raw_fd(), &raw mut message, flags);
                let header = libc::CMSG_FIRSTHDR(&raw const message);
                let group = match header.is_null() || received < 0 {
                    true => 0,
                    false
                        if ((*header).cmsg_level, (*header).cmsg_type)
                            == (libc::SOL_NETLINK, libc::NETLINK_PKTINFO) =>
                    {
                        libc::CMSG_DATA(header).cast::<u32>().read_unaligned()
                    }
                    false => 0,
                };
                (received, group)
            };
            return match Errno::result(received) {
                Ok(length) => Ok(Some(Datagram { length: length as usize, group })),
                Err(Errno::EAGAIN) => Ok(None),
                Err(Errno::EINTR) => continue,
                Err(errno) => Err(errno),
            };
        }
    }
}
