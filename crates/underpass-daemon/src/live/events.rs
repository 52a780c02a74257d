//! What the control thread waits for.

use std::{io, os::fd::AsFd, time::Duration};

use nix::{
    errno::Errno,
    sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout},
};

use crate::serve::Waker;

/// Something that the control thread waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// A worker wants a neighbour, or somebody wants to know what was counted.
    Waker,
    /// A program.
    Server,
    /// The kernel has changed something.
    Kernel,
    /// A signal.
    Signal,
    /// FRR's zebra.
    Fpm,
    /// Other bridges.
    Bridges,
}

impl Source {
    const ALL: [Self; 6] = [Self::Waker, Self::Server, Self::Kernel, Self::Signal, Self::Fpm, Self::Bridges];
}

/// An epoll over the sources.
pub struct Events {
    epoll: Epoll,
    waker: Waker,
}

impl Events {
    /// An epoll that waits for its waker alone.
    ///
    /// # Errors
    /// What epoll_create(2) and eventfd(2) say.
    pub fn new() -> io::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let waker = Waker::new()?;
        epoll.add(&waker, EpollEvent::new(EpollFlags::EPOLLIN, Source::Waker as u64))?;
        Ok(Self { epoll, waker })
    }

    /// What wakes the control thread.
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Waits for this source too.
    ///
    /// # Errors
    /// What epoll_ctl(2) says.
    pub fn add(&self, source: Source, fd: impl AsFd) -> io::Result<()> {
        self.epoll.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, source as u64))?;
        Ok(())
    }

    /// Waits until there is something to do, or the time is up.
    ///
    /// # Errors
    /// What epoll_wait(2) says.
    pub fn wait(&self, timeout: Duration) -> io::Result<Vec<Source>> {
        let timeout = EpollTimeout::try_from(timeout).unwrap_or(EpollTimeout::MAX);
        let mut events = [EpollEvent::empty(); Source::ALL.len()];
        let count = match self.epoll.wait(&mut events, timeout) {
            Err(Errno::EINTR) => 0,
            other => other?,
        };
        let sources = events
            .iter()
            .take(count)
            .filter_map(|event| Source::ALL.into_iter().find(|source| *source as u64 == event.data()));
        let sources: Vec<_> = sources.collect();
        if sources.contains(&Source::Waker) {
            self.waker.heard();
        }
        Ok(sources)
    }
}
