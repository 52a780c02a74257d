//! Connecting to a router as the program that wants to: a supervisor of root's must not open a router to a program
//! that has given up its privileges.
#![allow(unsafe_code)]

use std::{
    os::fd::{AsRawFd, OwnedFd},
    path::Path,
};

use nix::{
    errno::Errno,
    sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket},
    unistd::{Gid, Uid, getegid, geteuid, getgroups, setfsgid, setfsuid},
};

/// Whose files somebody can reach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The user.
    pub user: u32,
    /// The group.
    pub group: u32,
    /// Further groups.
    pub groups: Vec<u32>,
}

impl Identity {
    /// This process's.
    ///
    /// # Errors
    /// Those of getgroups(2).
    pub fn own() -> Result<Self, Errno> {
        let groups = getgroups()?.into_iter().map(Gid::as_raw).collect();
        Ok(Self { user: geteuid().as_raw(), group: getegid().as_raw(), groups })
    }

    /// Makes the calling thread reach files as this one.
    fn assume(&self) -> Result<(), Errno> {
        // The C library's function is for all threads; here it is about one call of this thread.
        // SAFETY: the kernel reads as many numbers as it is given.
        Errno::result(unsafe {
            libc::syscall(libc::SYS_setgroups, self.groups.len(), self.groups.as_ptr())
        })?;
        let (user, group) = (Uid::from_raw(self.user), Gid::from_raw(self.group));
        // They say what was before, and nothing of whether it worked: that the second call sees.
        setfsgid(group);
        setfsuid(user);
        if setfsgid(group) != group || setfsuid(user) != user {
            return Err(Errno::EPERM);
        }
        Ok(())
    }
}

/// A connection to the router at `path`, as of somebody else than this process, whose own identity is `own`. It does not
/// block.
///
/// # Errors
/// Those of connect(2); EACCES where this process cannot take that identity.
pub fn connect_as(own: &Identity, identity: &Identity, path: &Path) -> Result<OwnedFd, Errno> {
    if identity == own {
        return connect_to(path);
    }
    let connected = identity.assume().map_err(|_| Errno::EACCES).and_then(|()| connect_to(path));
    if own.assume().is_err() && geteuid().is_root() {
        // It would go on with the rights of a program that it supervises.
        std::process::abort();
    }
    connected
}

/// A connection to the router at `path`. It does not block.
///
/// # Errors
/// Those of connect(2).
pub fn connect_to(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let control = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?;
    loop {
        match connect(control.as_raw_fd(), &UnixAddr::new(path)?) {
            Err(Errno::EINTR) => {}
            connected => return connected.map(|()| control),
        }
    }
}
