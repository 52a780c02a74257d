//! A socket of rtnetlink to the kernel.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::{
    errno::Errno,
    sys::socket::{
        AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, getsockname, recvfrom,
        send, setsockopt, socket, sockopt,
    },
};

/// Room for what the kernel has reported and nobody has read yet, in bytes.
const RECEIVE_BUFFER: usize = 32 << 20;

/// A socket that never waits.
#[derive(Debug)]
pub struct Socket {
    descriptor: OwnedFd,
    port: u32,
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl Socket {
    /// Opens one that is a member of these multicast groups, of which the first has bit 0.
    pub fn open(groups: u32) -> Result<Self, Errno> {
        Self::of(SockProtocol::NetlinkRoute, groups)
    }

    /// The same of another protocol of netlink.
    pub fn of(protocol: SockProtocol, groups: u32) -> Result<Self, Errno> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let descriptor = socket(AddressFamily::Netlink, SockType::Raw, flags, protocol)?;
        // Without CAP_NET_ADMIN it is as large as others may have it.
        if setsockopt(&descriptor, sockopt::RcvBufForce, &RECEIVE_BUFFER).is_err() {
            let _ = setsockopt(&descriptor, sockopt::RcvBuf, &RECEIVE_BUFFER);
        }
        bind(descriptor.as_raw_fd(), &NetlinkAddr::new(0, groups))?;
        let port = getsockname::<NetlinkAddr>(descriptor.as_raw_fd())?.pid();
        Ok(Self { descriptor, port })
    }

    /// Its port id: `nlmsg_pid` of what answers it.
    pub fn port(&self) -> u32 {
        self.port
    }

    /// Sends messages to the kernel, which has acted on them when this returns.
    pub fn send(&self, messages: &[u8]) -> Result<(), Errno> {
        loop {
            match send(self.descriptor.as_raw_fd(), messages, MsgFlags::empty()) {
                Err(Errno::EINTR) => {}
                sent => return sent.map(drop),
            }
        }
    }

    /// The kernel's next datagram: its length, or `None` if there is none now.
    pub fn receive(&self, buffer: &mut [u8]) -> Result<Option<usize>, Errno> {
        loop {
            match recvfrom::<NetlinkAddr>(self.descriptor.as_raw_fd(), buffer) {
                Ok((length, Some(sender))) if sender.pid() == 0 => return Ok(Some(length)),
                Ok(_) | Err(Errno::EINTR) => {} // from another process
                Err(Errno::EAGAIN) => return Ok(None),
                Err(errno) => return Err(errno),
            }
        }
    }
}
