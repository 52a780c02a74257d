//! Sleeping until one of many descriptors is ready, or a time has come.

#![allow(unsafe_code)]

use std::{
    os::fd::{AsRawFd, RawFd},
    time::Duration,
};

/// Descriptors that ppoll(2) waits for. The first is the one by which the sleeper is woken.
pub struct Descriptors(Vec<libc::pollfd>);

impl Descriptors {
    /// Only the one by which the sleeper is woken.
    pub fn new(wake: &impl AsRawFd) -> Self {
        Self(vec![entry(wake.as_raw_fd())])
    }

    /// Waits for these besides, and no longer for others.
    pub fn set(&mut self, others: impl Iterator<Item = RawFd>) {
        self.0.truncate(1);
        self.0.extend(others.map(entry));
    }

    /// Sleeps until one is ready, or the time is up. Whether the sleeper was woken.
    ///
    /// A socket that is ready only to report an error, as that of a device that is down or was, is ready no more
    /// once the error is taken from it: it is waited for again, as the device may come up. Any other descriptor
    /// would never let the sleeper sleep: it is not waited for until the set is made anew.
    pub fn sleep(&mut self, timeout: Option<Duration>) -> bool {
        let timeout = timeout.map(|timeout| libc::timespec {
            tv_sec: timeout.as_secs().min(60) as libc::time_t,
            tv_nsec: timeout.subsec_nanos().into(),
        });
        let until = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: ppoll reads and writes as many entries as the vector has, and reads the time, if there is one.
        let ready = unsafe {
            libc::ppoll(self.0.as_mut_ptr(), self.0.len() as libc::nfds_t, until, std::ptr::null())
        };
        if ready <= 0 {
            return false;
        }
        for broken in self.0.iter_mut().skip(1).filter(|fd| fd.revents != 0 && fd.revents & libc::POLLIN == 0)
        {
            if !take_error(broken.fd) {
                broken.fd = -1;
            }
        }
        self.0.first().is_some_and(|wake| wake.revents != 0)
    }
}

/// Takes the error that a socket waits to report. Whether there was one.
fn take_error(fd: RawFd) -> bool {
    let (mut error, mut length) = (0, size_of::<libc::c_int>() as libc::socklen_t);
    // SAFETY: the kernel writes an int and its length.
    let done = unsafe {
        libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_ERROR, (&raw mut error).cast(), &raw mut length)
    };
    done == 0 && error != 0
}

fn entry(fd: RawFd) -> libc::pollfd {
    libc::pollfd { fd, events: libc::POLLIN, revents: 0 }
}
