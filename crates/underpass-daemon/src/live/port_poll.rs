//! Which ports of TUN and TAP devices have something to read: there may be thousands, of which few do.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd, RawFd},
};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use underpass_engine::buffer::PortId;

/// Ports that are heard of at once; the others have their turn next.
const AT_ONCE: usize = 64;

/// The descriptors of the ports. One that is closed is forgotten by the kernel.
pub struct PortPoll {
    epoll: Epoll,
    events: [EpollEvent; AT_ONCE],
}

impl PortPoll {
    /// Of no port.
    ///
    /// # Errors
    /// What epoll_create(2) says.
    pub fn new() -> io::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        Ok(Self { epoll, events: [EpollEvent::empty(); AT_ONCE] })
    }

    /// Hears of a port from now on.
    ///
    /// # Errors
    /// What epoll_ctl(2) says.
    pub fn add(&self, port: PortId, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        Ok(self.epoll.add(descriptor, EpollEvent::new(EpollFlags::EPOLLIN, u64::from(port.0)))?)
    }

    /// What becomes readable when one of them does.
    pub fn descriptor(&self) -> RawFd {
        self.epoll.0.as_raw_fd()
    }

    /// Asks which have something. One that has an error alone, as its device is gone, says so until it is closed.
    pub fn ask(&mut self) -> impl Iterator<Item = (PortId, bool)> + '_ {
        let count = self.epoll.wait(&mut self.events, EpollTimeout::ZERO).unwrap_or(0);
        let heard = self.events.iter().take(count);
        heard.map(|event| (PortId(event.data() as u16), event.events().contains(EpollFlags::EPOLLIN)))
    }

    /// Hears of a port no more.
    pub fn remove(&self, descriptor: BorrowedFd<'_>) {
        let _ = self.epoll.delete(descriptor);
    }
}
