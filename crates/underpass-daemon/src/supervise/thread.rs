//! A supervised thread, which waits in a system call: its memory, descriptors, identity and signals.
//!
//! A thread is known by its number. Another could have it by now: so whoever acts on what was read here asks
//! [`super::listener::Listener::waits`] after the reading.
#![allow(unsafe_code)]

use std::{
    fs::{self, File},
    io::Read,
    os::{
        fd::{FromRawFd, OwnedFd, RawFd},
        unix::fs::MetadataExt,
    },
    sync::OnceLock,
};

use libc::{c_void, iovec};
use nix::errno::Errno;

/// A part of a program's memory: its address and its length.
pub type Part = (u64, usize);

/// Most parts of a call: `UIO_MAXIOV`.
pub const PARTS: usize = 1024;

/// Copies memory of a thread.
///
/// # Errors
/// EFAULT where not all of it can be read.
pub fn read(thread: i32, address: u64, bytes: &mut [u8]) -> Result<(), Errno> {
    let length = bytes.len();
    read_parts(thread, &[(address, length)], bytes)
}

/// Copies parts of the memory of a thread, one after the other, which together are as long as `bytes`.
///
/// # Errors
/// As [`read`].
pub fn read_parts(thread: i32, parts: &[Part], bytes: &mut [u8]) -> Result<(), Errno> {
    let local = iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: the kernel writes `bytes` alone.
    transfer(parts, bytes.len(), |count, remote| unsafe {
        libc::process_vm_readv(thread, &raw const local, 1, remote, count, 0)
    })
}

/// Writes to the memory of a thread: to each part as many bytes as it has room for, or as there are.
///
/// # Errors
/// EFAULT where not all of it can be written.
pub fn write_all(thread: i32, writes: &[(Part, &[u8])]) -> Result<(), Errno> {
    let (mut local, mut parts) = (Vec::with_capacity(writes.len()), Vec::with_capacity(writes.len()));
    for &((address, room), bytes) in writes {
        let length = bytes.len().min(room);
        if length > 0 {
            local.push(iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: length });
            parts.push((address, length));
        }
    }
    // As many as the kernel takes in one call.
    for (local, parts) in local.chunks(PARTS).zip(parts.chunks(PARTS)) {
        let length = parts.iter().map(|(_, length)| *length).sum();
        // SAFETY: the kernel reads what the slices above are, and writes to memory of the other process.
        transfer(parts, length, |count, remote| unsafe {
            libc::process_vm_writev(thread, local.as_ptr(), local.len() as u64, remote, count, 0)
        })?;
    }
    Ok(())
}

/// Writes to the memory of a thread.
///
/// # Errors
/// As [`write_all`].
pub fn write(thread: i32, address: u64, bytes: &[u8]) -> Result<(), Errno> {
    write_all(thread, &[((address, bytes.len()), bytes)])
}

/// Pairs parts with the bytes that go there, one after the other.
pub fn scatter<'a>(parts: &[Part], mut bytes: &'a [u8]) -> Vec<(Part, &'a [u8])> {
    let take = |&(address, length): &Part| {
        let (now, rest) = bytes.split_at(length.min(bytes.len()));
        bytes = rest;
        ((address, now.len()), now)
    };
    parts.iter().map(take).collect()
}

fn transfer(
    parts: &[Part],
    length: usize,
    call: impl FnOnce(u64, *const iovec) -> isize,
) -> Result<(), Errno> {
    if length == 0 {
        return Ok(());
    }
    let remote: Vec<iovec> = parts
        .iter()
        .map(|&(address, iov_len)| iovec { iov_base: address as usize as *mut c_void, iov_len })
        .collect();
    match usize::try_from(call(remote.len() as u64, remote.as_ptr())) {
        Ok(done) if done == length => Ok(()),
        Ok(_) => Err(Errno::EFAULT),
        Err(_) => Err(Errno::last()),
    }
}

/// The inode of what a descriptor of a thread is; `None` if it is not open.
pub fn inode(thread: i32, fd: RawFd) -> Option<u64> {
    let status = nix::sys::stat::stat(format!("/proc/{thread}/fd/{fd}").as_str()).ok()?;
    (status.st_mode & libc::S_IFMT == libc::S_IFSOCK).then_some(status.st_ino)
}

/// A copy of a descriptor of a thread.
///
/// # Errors
/// Those of pidfd_open(2) and pidfd_getfd(2).
pub fn descriptor(thread: i32, fd: RawFd) -> Result<OwnedFd, Errno> {
    /// Since Linux 6.9; before, a thread is reached by its process.
    const PIDFD_THREAD: i32 = libc::O_EXCL;
    // SAFETY: it takes numbers.
    let open = |id: i32, flags: i32| unsafe { Errno::result(libc::syscall(libc::SYS_pidfd_open, id, flags)) };
    let process = match open(thread, PIDFD_THREAD) {
        Err(Errno::EINVAL) => open(Status::of(thread)?.number("Tgid:", 0)? as i32, 0)?,
        opened => opened?,
    };
    // SAFETY: a new descriptor, which nobody else has.
    let process = unsafe { OwnedFd::from_raw_fd(process as RawFd) };
    // SAFETY: it takes numbers.
    let copy =
        unsafe { libc::syscall(libc::SYS_pidfd_getfd, std::os::fd::AsRawFd::as_raw_fd(&process), fd, 0) };
    // SAFETY: as above.
    Errno::result(copy).map(|copy| unsafe { OwnedFd::from_raw_fd(copy as RawFd) })
}

/// The inode of the network namespace that a thread is in.
///
/// # Errors
/// Those of stat(2).
pub fn namespace(thread: i32) -> Result<u64, Errno> {
    Ok(nix::sys::stat::stat(format!("/proc/{thread}/ns/net").as_str())?.st_ino)
}

/// Whether a thread runs this very program.
pub fn is_ours(thread: i32) -> bool {
    static OURS: OnceLock<Option<(u64, u64)>> = OnceLock::new();
    let file = |path: &str| fs::metadata(path).ok().map(|status| (status.dev(), status.ino()));
    let ours = *OURS.get_or_init(|| file("/proc/self/exe"));
    ours.is_some() && ours == file(&format!("/proc/{thread}/exe"))
}

/// `/proc/TID/status` of a thread.
pub struct Status(String);

impl Status {
    /// That of a thread.
    ///
    /// # Errors
    /// ESRCH if it has ended.
    pub fn of(thread: i32) -> Result<Self, Errno> {
        // In one read, mostly: the kernel makes the text anew for each.
        let mut text = String::with_capacity(4096);
        let read =
            File::open(format!("/proc/{thread}/status")).and_then(|mut file| file.read_to_string(&mut text));
        read.map(|_| Self(text)).map_err(|_| Errno::ESRCH)
    }

    /// The words of a line.
    fn words(&self, name: &str) -> impl DoubleEndedIterator<Item = &str> {
        let line = self.0.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        line.split_ascii_whitespace()
    }

    fn number(&self, name: &str, at: usize) -> Result<u32, Errno> {
        self.words(name).nth(at).and_then(|word| word.parse().ok()).ok_or(Errno::ESRCH)
    }

    /// Its process, in this process's PID namespace.
    ///
    /// # Errors
    /// ESRCH.
    pub fn process(&self) -> Result<u32, Errno> {
        self.number("Tgid:", 0)
    }

    /// Its process as it knows itself: what the kernel makes the port id of its first socket.
    pub fn own_process_id(&self) -> u32 {
        self.words("NStgid:").next_back().and_then(|word| word.parse().ok()).unwrap_or(0)
    }

    /// Whose files it can reach.
    ///
    /// # Errors
    /// ESRCH.
    pub fn identity(&self) -> Result<super::identity::Identity, Errno> {
        /// Real, effective, saved, and for files.
        const FOR_FILES: usize = 3;
        Ok(super::identity::Identity {
            user: self.number("Uid:", FOR_FILES)?,
            group: self.number("Gid:", FOR_FILES)?,
            groups: self.words("Groups:").filter_map(|word| word.parse().ok()).collect(),
        })
    }

    /// Whether a signal waits for it that it does not block.
    pub fn signal(&self) -> Option<Signal> {
        let mask = |name| {
            let word = self.words(name).next().unwrap_or_default();
            u64::from_str_radix(word, 16).unwrap_or(0)
        };
        let open = !mask("SigBlk:");
        let alone = self.number("Threads:", 0) == Ok(1);
        match (mask("SigPnd:") & open, mask("ShdPnd:") & open) {
            (0, 0) => None,
            (0, _) if !alone => Some(Signal::OfAnyThread),
            _ => Some(Signal::OfThisThread),
        }
    }
}

/// Whom a signal waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// This thread.
    OfThisThread,
    /// One of several threads of the process.
    OfAnyThread,
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn memory_and_descriptors_of_this_thread() {
        let thread = nix::unistd::gettid().as_raw();
        let (from, mut to) = ([1u8, 2, 3, 4], [0; 4]);
        let address = |bytes: &[u8]| bytes.as_ptr().expose_provenance() as u64;
        read_parts(thread, &[(address(&from[2..]), 2), (address(&from), 2)], &mut to).unwrap();
        assert_eq!(to, [3, 4, 1, 2]);
        let parts = [(address(&to), 1), (address(&to[3..]), 1)];
        write_all(thread, &scatter(&parts, &[8, 9, 10])).unwrap();
        assert_eq!(std::hint::black_box(to), [8, 4, 1, 9]);
        assert_eq!(read(thread, 1, &mut to), Err(Errno::EFAULT));
        let (one, _other) = std::os::unix::net::UnixDatagram::pair().unwrap();
        let copy = descriptor(thread, one.as_raw_fd()).unwrap();
        assert_eq!(inode(thread, one.as_raw_fd()), inode(thread, copy.as_raw_fd()));
        assert!(is_ours(thread) && namespace(thread).is_ok());
    }

    #[test]
    fn signals_and_identities() {
        let status = |lines: &str| Status(lines.to_owned());
        let this = status(
            "Tgid:\t7\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nGroups:\t9 10 \nNStgid:\t7\t1\nThreads:\t2\n\
             SigPnd:\t0000000000000000\nShdPnd:\t0000000000004000\nSigBlk:\t0000000000000000\n",
        );
        let identity = this.identity().unwrap();
        assert_eq!((identity.user, identity.group, identity.groups), (4, 8, vec![9, 10]));
        assert_eq!((this.process(), this.own_process_id()), (Ok(7), 1));
        assert_eq!(this.signal(), Some(Signal::OfAnyThread));
        assert_eq!(status("Threads:\t1\nShdPnd:\t4000\nSigBlk:\t0\n").signal(), Some(Signal::OfThisThread));
        assert_eq!(status("Threads:\t1\nShdPnd:\t4000\nSigBlk:\t4000\n").signal(), None);
    }
}
