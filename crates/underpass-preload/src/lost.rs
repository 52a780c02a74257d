//! Sockets whose router has ended. Programs do not expect the other end of a netlink socket to go away, so the library connects
//! the socket to the next router of the same network namespace, with the options, the port id and the groups that it had. A
//! program that listens to groups gets ENOBUFS, upon which it reads everything again.
//!
//! Until there is a router, the program's descriptors are a timer (timerfd). Whoever waits for them wakes up at each tick; the
//! library then looks for a router, and if there is none the program gets EAGAIN. An AF_UNIX socket without another end would
//! be readable all the time.
#![allow(unsafe_code)]

use std::{
    ffi::{c_int, c_void},
    mem::zeroed,
    ptr::{null_mut, without_provenance_mut},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use libc::{epoll_event, timespec};

use crate::{
    channel, next,
    table::{self, Socket},
};

/// How often the library looks for a router, in nanoseconds.
const TICK: i64 = 500_000_000;

/// What a receive that found no datagram does next.
pub enum Then {
    /// Receive again.
    Again,
    /// Fail with this errno.
    Fail(c_int),
    /// Return an end of file: the answer to a request will not come.
    End,
}

/// Whether the other end of a data socket has been closed and all that it sent has been read. errno is left as it was.
pub fn has_ended(fd: c_int) -> bool {
    let errno = next::errno();
    let mut byte = 0u8;
    let flags = libc::MSG_PEEK | libc::MSG_TRUNC | libc::MSG_DONTWAIT;
    // SAFETY: recv writes at most the one byte.
    let length = unsafe { next::recv(fd, (&raw mut byte).cast(), 1, flags) };
    let reset = length < 0 && next::errno() == libc::ECONNRESET;
    next::set_errno(errno);
    // No datagram of the router is empty.
    length == 0 || reset
}

/// Whether a socket's router has ended.
pub fn is_over(socket: &Socket) -> bool {
    socket.waits.load(Relaxed)
        || table::descriptors(socket).next().is_none_or(|fd| {
            // SAFETY: all zero bytes are a valid pollfd; poll writes to it.
            unsafe {
                let mut waited: libc::pollfd = zeroed();
                (waited.fd, waited.events) = (fd, libc::POLLRDHUP);
                libc::poll(&raw mut waited, 1, 0) > 0
                    && waited.revents & (libc::POLLHUP | libc::POLLRDHUP) != 0
            }
        })
}

fn is_member(socket: &Socket) -> bool {
    socket.groups.load(Relaxed) != 0 || socket.groups_above.load(Relaxed) != 0
}

fn is_nonblocking(socket: &Socket) -> bool {
    let fd = table::descriptors(socket).next().unwrap_or(-1);
    // SAFETY: fcntl touches no memory here.
    let flags = unsafe { next::fcntl(fd, libc::F_GETFL, null_mut()) };
    flags >= 0 && flags & libc::O_NONBLOCK != 0
}

/// Gives a new data socket what the program has set of the old one: its timeouts, and its filter.
fn carry_over(old: c_int, new: c_int) {
    // SAFETY: getsockopt writes at most `length` bytes (instructions of a filter) and setsockopt reads as much, all in `time`,
    // `filter` and `program`.
    unsafe {
        for option in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO] {
            let mut time: libc::timeval = zeroed();
            let mut length = size_of_val(&time) as libc::socklen_t;
            let place = (&raw mut time).cast::<c_void>();
            if next::getsockopt(old, libc::SOL_SOCKET, option, place, &raw mut length) == 0 {
                next::setsockopt(new, libc::SOL_SOCKET, option, place, length);
            }
        }
        // The length of a filter counts instructions, not bytes.
        let mut filter: [libc::sock_filter; BPF_MAXINSNS] = zeroed();
        let mut count = BPF_MAXINSNS as libc::socklen_t;
        let place = filter.as_mut_ptr().cast::<c_void>();
        let got = next::getsockopt(old, libc::SOL_SOCKET, libc::SO_GET_FILTER, place, &raw mut count);
        if got == 0 && count > 0 {
            let program = libc::sock_fprog { len: count as u16, filter: filter.as_mut_ptr() };
            let length = size_of_val(&program) as libc::socklen_t;
            let place = (&raw const program).cast::<c_void>();
            next::setsockopt(new, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, place, length);
        }
    }
}

/// Most instructions of a filter: `include/uapi/linux/bpf_common.h`.
const BPF_MAXINSNS: usize = 4096;

/// Puts `new` in the place of `fd`, which closes on exec as before and is waited for as before.
fn put_in(new: c_int, fd: c_int) {
    let watchers = watchers(fd);
    // SAFETY: none of them touches memory, but for epoll_ctl, which reads the event.
    unsafe {
        let closes = next::fcntl(fd, libc::F_GETFD, null_mut()) & libc::FD_CLOEXEC != 0;
        for watcher in &watchers {
            next::epoll_ctl(watcher.epoll, libc::EPOLL_CTL_DEL, fd, null_mut());
        }
        if next::dup3(new, fd, if closes { libc::O_CLOEXEC } else { 0 }) < 0 {
            return;
        }
        for mut watcher in watchers {
            next::epoll_ctl(watcher.epoll, libc::EPOLL_CTL_ADD, fd, &raw mut watcher.event);
        }
    }
}

/// Connects a socket to the router that is there now. If it listens to groups, the program's next read fails with ENOBUFS, as
/// notifications have been lost.
///
/// # Errors
/// ECONNREFUSED: there is no router.
pub fn reconnect(socket: &Socket) -> Result<(), c_int> {
    // While a clock is in its place, the old socket has the number of the control connection.
    let old = match socket.waits.load(Relaxed) {
        true => socket.control.load(Relaxed),
        false => table::descriptors(socket).next().unwrap_or(-1),
    };
    channel::reopen(socket, is_nonblocking(socket), |data| carry_over(old, data), put_in)?;
    const NO_ENOBUFS: u32 = 1 << libc::NETLINK_NO_ENOBUFS;
    if is_member(socket) && socket.options.load(Relaxed) & NO_ENOBUFS == 0 {
        socket.overrun.store(true, Relaxed);
    }
    Ok(())
}

/// Gives a socket to the next router; `waits`: waits for it, if the socket blocks. A program that asks for a dump may read
/// the answer without a look at whether it could ask (BIRD), and would wait for ever.
///
/// # Errors
/// There is none, or a signal has come.
pub fn next_router(socket: &Socket, waits: bool) -> Result<(), c_int> {
    loop {
        match reconnect(socket) {
            Err(libc::ECONNREFUSED) if waits && !is_nonblocking(socket) => {
                // SAFETY: there are no descriptors to be read.
                if unsafe { libc::poll(null_mut(), 0, (TICK / 1_000_000) as c_int) } < 0 {
                    return Err(next::errno());
                }
            }
            reconnected => return reconnected,
        }
    }
}

/// What becomes of a receive that met the end of its router.
pub fn ended(socket: &Socket) -> Then {
    if socket.asks.swap(false, Relaxed) && !is_member(socket) {
        // A program that waits for an answer has waited long enough.
        return Then::End;
    }
    if reconnect(socket).is_ok() || wait_for_router(socket) { Then::Again } else { Then::End }
}

/// Puts a timer in the place of a socket. Whether that was possible.
fn wait_for_router(socket: &Socket) -> bool {
    let blocks = if is_nonblocking(socket) { libc::TFD_NONBLOCK } else { 0 };
    let tick = timespec { tv_sec: 0, tv_nsec: TICK };
    // SAFETY: timerfd_settime reads its argument; the descriptor is ours.
    unsafe {
        let clock = libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC | blocks);
        if clock < 0 {
            return false;
        }
        let every = libc::itimerspec { it_interval: tick, it_value: tick };
        libc::timerfd_settime(clock, 0, &raw const every, null_mut());
        // The old socket keeps what the program has set of it.
        let fd = table::descriptors(socket).next().unwrap_or(-1);
        let kept = next::fcntl(fd, libc::F_DUPFD_CLOEXEC, without_provenance_mut(channel::HIDDEN));
        let put = if kept < 0 { None } else { table::put_in_place(socket, clock, kept, put_in) };
        if put.is_none() {
            next::close(kept);
        }
        next::close(clock);
        socket.waits.store(put.is_some(), Relaxed);
        put.is_some()
    }
}

/// A receive while the socket waits for a router.
pub fn wait(fd: c_int, socket: &Socket, flags: c_int) -> Then {
    loop {
        if reconnect(socket).is_ok() {
            return Then::Again;
        }
        let blocks = flags & libc::MSG_DONTWAIT == 0 && !is_nonblocking(socket);
        let mut ticks = 0u64;
        // SAFETY: poll and read write what they are given.
        unsafe {
            let mut waited: libc::pollfd = zeroed();
            (waited.fd, waited.events) = (fd, libc::POLLIN);
            if libc::poll(&raw mut waited, 1, if blocks { -1 } else { 0 }) < 0 {
                return Then::Fail(next::errno());
            }
            // Others may have read it: no wait.
            if waited.revents & libc::POLLIN != 0 {
                next::read(fd, (&raw mut ticks).cast::<c_void>(), size_of::<u64>());
            }
        }
        if !blocks {
            return Then::Fail(libc::EAGAIN);
        }
    }
}

/// Who waits for a descriptor by epoll(7).
#[derive(Clone, Copy)]
struct Watcher {
    epoll: c_int,
    fd: c_int,
    event: epoll_event,
}

static WATCHERS: Mutex<Vec<Watcher>> = Mutex::new(Vec::new());
/// Whether there has been one.
static WATCHED: AtomicBool = AtomicBool::new(false);

fn watchers(fd: c_int) -> Vec<Watcher> {
    let watchers = WATCHERS.lock().unwrap_or_else(PoisonError::into_inner);
    watchers.iter().filter(|watcher| watcher.fd == fd).copied().collect()
}

/// Takes note of a call of epoll_ctl(2) that succeeded; `None`: the descriptor is no longer waited for.
pub fn watched(epoll: c_int, fd: c_int, event: Option<epoll_event>) {
    WATCHED.store(true, Relaxed);
    let mut watchers = WATCHERS.lock().unwrap_or_else(PoisonError::into_inner);
    watchers.retain(|watcher| (watcher.epoll, watcher.fd) != (epoll, fd));
    watchers.extend(event.map(|event| Watcher { epoll, fd, event }));
}

/// A descriptor is closed: nobody waits for it, and it waits for none.
pub fn closed(fd: c_int) {
    if !WATCHED.load(Relaxed) || !table::own() {
        return;
    }
    let mut watchers = WATCHERS.lock().unwrap_or_else(PoisonError::into_inner);
    watchers.retain(|watcher| watcher.epoll != fd && watcher.fd != fd);
}
