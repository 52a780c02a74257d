//! seccomp(2) and the ioctls of its listener.
#![allow(unsafe_code)]

use std::{
    ffi::c_void,
    mem::zeroed,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
};

use libc::{c_int, c_long, sock_filter, sock_fprog};
use nix::errno::Errno;

/// `SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP`: who is notified runs at once, on the processor of the one who waits.
const SYNCHRONOUS: u64 = 1;

/// A system call that waits for its answer.
#[derive(Debug, Clone, Copy)]
pub struct Call {
    /// The kernel's name for it.
    pub id: u64,
    /// The thread that makes it, in this process's PID namespace.
    pub thread: i32,
    /// Its number.
    pub number: c_long,
    /// Its arguments.
    pub args: [u64; 6],
}

impl Call {
    /// An argument that the kernel reads as an int.
    pub fn int(&self, at: usize) -> c_int {
        self.args.get(at).map_or(0, |&argument| argument as c_int)
    }

    /// An argument that is an address or a length.
    pub fn word(&self, at: usize) -> u64 {
        self.args.get(at).copied().unwrap_or(0)
    }
}

/// What is notified of the calls of a program and of all that it starts.
#[derive(Debug)]
pub struct Listener(OwnedFd);

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Listener {
    /// Puts the calling thread, and all that it starts from now on, under a filter.
    ///
    /// # Errors
    /// Those of seccomp(2).
    pub fn install(program: &mut [sock_filter]) -> Result<Self, Errno> {
        let program = sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
        let flags = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;
        // SAFETY: the kernel copies `program`, which lives longer than the call.
        let set = || unsafe {
            libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program)
        };
        let fd = match Errno::result(set()) {
            // Without CAP_SYS_ADMIN a filter is for who gains no privileges by starting programs.
            Err(Errno::EACCES) => {
                nix::sys::prctl::set_no_new_privs()?;
                Errno::result(set())?
            }
            other => other?,
        };
        // SAFETY: a new descriptor, which nobody else has.
        let listener = Self(unsafe { OwnedFd::from_raw_fd(fd as RawFd) });
        // Since Linux 6.6; it works without.
        // SAFETY: the argument is a number.
        unsafe { libc::ioctl(listener.0.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SET_FLAGS, SYNCHRONOUS) };
        Ok(listener)
    }

    /// # Safety
    /// `argument` is of the type that `request` asks for.
    unsafe fn ioctl<T>(&self, request: libc::Ioctl, argument: &mut T) -> Result<c_int, Errno> {
        // SAFETY: the caller's promise: the kernel reads and writes as much as the type is long.
        Errno::result(unsafe {
            libc::ioctl(self.0.as_raw_fd(), request, std::ptr::from_mut(argument).cast::<c_void>())
        })
    }

    /// The next call, of which the descriptor has said that it is there. `None`: its thread has ended since.
    ///
    /// # Errors
    /// Those of the ioctl.
    pub fn next(&self) -> Result<Option<Call>, Errno> {
        // SAFETY: integers, which the kernel wants to be 0.
        let mut notification: libc::seccomp_notif = unsafe { zeroed() };
        // SAFETY: the type of this request.
        match unsafe { self.ioctl(libc::SECCOMP_IOCTL_NOTIF_RECV, &mut notification) } {
            Err(Errno::ENOENT | Errno::EINTR) => Ok(None),
            received => received.map(|_| {
                Some(Call {
                    id: notification.id,
                    thread: notification.pid as i32,
                    number: c_long::from(notification.data.nr),
                    args: notification.data.args,
                })
            }),
        }
    }

    /// Whether a call still waits: what has been read of its thread, by the thread's number, was that thread's.
    pub fn waits(&self, call: &Call) -> bool {
        // SAFETY: the type of this request.
        unsafe { self.ioctl(libc::SECCOMP_IOCTL_NOTIF_ID_VALID, &mut call.id.clone()) }.is_ok()
    }

    /// Answers a call. Its thread may have ended; then nobody needs the answer.
    pub fn answer(&self, call: &Call, result: Result<i64, Errno>) {
        let (val, error) = match result {
            Ok(value) => (value, 0),
            Err(errno) => (0, -(errno as i32)),
        };
        self.respond(libc::seccomp_notif_resp { id: call.id, val, error, flags: 0 });
    }

    /// Lets a signal that waits for the calling thread interrupt the call: the kernel runs the handler and then
    /// restarts the call, or has it fail with EINTR, as the program has chosen (SA_RESTART).
    ///
    /// To be used only where a signal waits for this very thread: others would see the number.
    pub fn interrupt(&self, call: &Call) {
        const ERESTARTSYS: i32 = 512;
        self.respond(libc::seccomp_notif_resp { id: call.id, val: 0, error: -ERESTARTSYS, flags: 0 });
    }

    /// Lets the kernel carry out a call.
    pub fn pass(&self, call: &Call) {
        let flags = libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32;
        self.respond(libc::seccomp_notif_resp { id: call.id, val: 0, error: 0, flags });
    }

    fn respond(&self, mut response: libc::seccomp_notif_resp) {
        // SAFETY: the type of this request.
        let _ = unsafe { self.ioctl(libc::SECCOMP_IOCTL_NOTIF_SEND, &mut response) };
    }

    /// Answers a call with a new descriptor of `fd` in the program.
    ///
    /// # Errors
    /// ENOENT if its thread has ended; EMFILE if the program can have no more.
    pub fn give(&self, call: &Call, fd: BorrowedFd<'_>, close_on_exec: bool) -> Result<(), Errno> {
        let mut added = libc::seccomp_notif_addfd {
            id: call.id,
            flags: libc::SECCOMP_ADDFD_FLAG_SEND as u32,
            srcfd: fd.as_raw_fd() as u32,
            newfd: 0,
            newfd_flags: if close_on_exec { libc::O_CLOEXEC as u32 } else { 0 },
        };
        // SAFETY: the type of this request.
        unsafe { self.ioctl(libc::SECCOMP_IOCTL_NOTIF_ADDFD, &mut added) }.map(drop)
    }
}
