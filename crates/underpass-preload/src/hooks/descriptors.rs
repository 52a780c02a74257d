//! Descriptors that are closed or copied: the table follows.
//!
//! A hidden control descriptor is not the program's: closing it fails with EBADF, and it moves where the
//! program wants its number.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_uint, c_void};

use super::returned;
use crate::{lost, next, table};

/// # Safety
/// As close(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn close(fd: c_int) -> c_int {
    if table::is_control(fd) {
        return returned(Err(libc::EBADF));
    }
    // Before the number can be another's.
    table::forget(fd);
    lost::closed(fd);
    // SAFETY: the caller's promise.
    unsafe { next::close(fd) }
}

/// # Safety
/// As close_range(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    const ONLY_MARK: c_int = libc::CLOSE_RANGE_CLOEXEC as c_int;
    let known = last.min(c_uint::try_from(table::highest()).unwrap_or(0));
    if flags & ONLY_MARK != 0 || first > known {
        // SAFETY: the caller's promise.
        return unsafe { next::close_range(first, last, flags) };
    }
    let mut from = first;
    for fd in first..=known {
        table::forget(fd as c_int);
    }
    // What is left are the control descriptors of sockets outside the range.
    for hidden in first..=known {
        if table::is_control(hidden as c_int) {
            // SAFETY: the caller's promise.
            if from < hidden && unsafe { next::close_range(from, hidden - 1, flags) } != 0 {
                return -1;
            }
            from = hidden + 1;
        }
    }
    if from > last {
        return 0;
    }
    // SAFETY: the caller's promise.
    unsafe { next::close_range(from, last, flags) }
}

/// # Safety
/// As closefrom(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn closefrom(first: c_int) {
    // SAFETY: the caller's promise.
    unsafe { close_range(first.max(0) as c_uint, c_uint::MAX, 0) };
}

/// The table learns of a copy, if one was made.
fn copied(fd: c_int, copy: c_int) -> c_int {
    if copy >= 0 {
        table::duplicate(fd, copy);
    }
    copy
}

/// # Safety
/// As dup(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup(fd: c_int) -> c_int {
    // SAFETY: the caller's promise.
    copied(fd, unsafe { next::dup(fd) })
}

/// # Safety
/// As dup2(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup2(fd: c_int, to: c_int) -> c_int {
    table::vacate(to);
    // SAFETY: the caller's promise.
    copied(fd, unsafe { next::dup2(fd, to) })
}

/// # Safety
/// As dup3(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int {
    table::vacate(to);
    // SAFETY: the caller's promise.
    copied(fd, unsafe { next::dup3(fd, to, flags) })
}

fn copies(command: c_int) -> bool {
    matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC)
}

/// # Safety
/// As fcntl(2). Variadic in C; see `next` for why a third fixed argument stands for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcntl(fd: c_int, command: c_int, argument: *mut c_void) -> c_int {
    // SAFETY: the caller's promise.
    let result = unsafe { next::fcntl(fd, command, argument) };
    if copies(command) { copied(fd, result) } else { result }
}

/// # Safety
/// As fcntl(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcntl64(fd: c_int, command: c_int, argument: *mut c_void) -> c_int {
    // SAFETY: the caller's promise.
    let result = unsafe { next::fcntl64(fd, command, argument) };
    if copies(command) { copied(fd, result) } else { result }
}

/// # Safety
/// As epoll_ctl(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_ctl(
    epoll: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut libc::epoll_event,
) -> c_int {
    // SAFETY: the caller's promise; where the call succeeds with an event, it can be read.
    unsafe {
        let result = next::epoll_ctl(epoll, operation, fd, event);
        if result == 0 && table::live(fd).is_some() {
            let kept = operation != libc::EPOLL_CTL_DEL && !event.is_null();
            lost::watched(epoll, fd, kept.then(|| event.read_unaligned()));
        }
        result
    }
}
