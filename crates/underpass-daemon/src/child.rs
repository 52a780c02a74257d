//! Programs that start in another network namespace, and end when the thread that started them does.

#![allow(unsafe_code)]

use std::{
    io,
    os::{fd::OwnedFd, unix::process::CommandExt},
    process::Command,
    sync::Arc,
};

use nix::{
    sched::{CloneFlags, setns},
    sys::signal::{SigSet, Signal},
};

/// Makes `command` take every signal, also those that the thread that starts it holds back.
pub fn with_all_signals(command: &mut Command) {
    // SAFETY: between fork and exec the closure makes one system call and touches no memory but its own.
    unsafe {
        command.pre_exec(take_all_signals);
    }
}

fn take_all_signals() -> io::Result<()> {
    Ok(SigSet::empty().thread_set_mask()?)
}

/// Makes `command` start in `namespace`, in a process group of its own; `end` is sent to it when the thread
/// that starts it ends. It takes every signal, also those that the thread holds back.
pub fn within(command: &mut Command, namespace: Arc<OwnedFd>, end: Signal) {
    command.process_group(0);
    // SAFETY: between fork and exec the closure makes three system calls and touches no memory but its own: it
    // allocates nothing and takes no lock.
    unsafe {
        command.pre_exec(move || {
            setns(&*namespace, CloneFlags::CLONE_NEWNET)?;
            take_all_signals()?;
            match libc::prctl(libc::PR_SET_PDEATHSIG, end as libc::c_ulong) {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            }
        });
    }
}
