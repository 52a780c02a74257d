//! What the process may use: descriptors, and lines of log about those who take too much.
//!
//! A listener whose next connection finds no descriptor stays ready for ever, as Linux looks for a descriptor (EMFILE)
//! before it looks at who waits. So nobody listens until descriptors are back ([`Pause`], [`patiently`]); who connects
//! meanwhile waits in the kernel.

use std::{
    fmt,
    fs::File,
    io,
    os::fd::BorrowedFd,
    thread,
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    sys::{
        epoll::{Epoll, EpollEvent, EpollFlags},
        resource::{Resource, getrlimit, setrlimit},
        time::TimeSpec,
        timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags},
    },
};
use underpass_engine::limiter::Limiter;

/// Descriptors that the process asks for, if its hard limit has as many: each program takes three, each device one or two
/// a worker.
const DESCRIPTORS: u64 = 65_536;
/// Of the descriptors a part that programs do not get: one in so many.
const OWN: u64 = 4;
/// How soon somebody looks whether descriptors are back.
const RETRY: Duration = Duration::from_millis(100);
/// Lines of a kind that are logged at once, and the time for each after that.
const LINES: u64 = 5;
const LINE_EVERY: u64 = 10;

/// Takes as many descriptors as the hard limit lets the process have.
pub fn raise_descriptors() {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return };
    let wanted = DESCRIPTORS.min(hard);
    if soft < wanted
        && let Err(errno) = setrlimit(Resource::RLIMIT_NOFILE, wanted, hard)
    {
        tracing::warn!("the limit of {soft} descriptors is not raised to {wanted}: {errno}");
    }
}

/// Descriptors that programs may take together.
pub fn descriptors_of_programs() -> usize {
    let (soft, _) = getrlimit(Resource::RLIMIT_NOFILE).unwrap_or((1024, 1024));
    usize::try_from(soft - soft / OWN).unwrap_or(usize::MAX)
}

/// Descriptors that are held back, for the moment at which the process must not lack any.
#[derive(Debug)]
pub struct Spare {
    _held: Vec<File>,
}

impl Spare {
    /// Holds `count`, or as many as there are.
    pub fn hold(count: usize) -> Self {
        Self { _held: (0..count).map_while(|_| File::open("/dev/null").ok()).collect() }
    }
}

/// Whether somebody else who connects can be taken although this one could not.
fn passes(errno: Option<Errno>) -> bool {
    matches!(errno, Some(Errno::EINTR | Errno::ECONNABORTED))
}

/// Keeps an epoll from looking at a listener for a while.
#[derive(Debug)]
pub struct Pause {
    /// The epoll's name for the listener.
    token: u64,
    timer: TimerFd,
    paused: bool,
    lines: Lines,
}

impl Pause {
    /// For the listener that `epoll` knows as `token`. When `timer` is ready there, the pause is to end.
    ///
    /// # Errors
    /// There is no descriptor for the timer.
    pub fn new(epoll: &Epoll, token: u64, timer: u64) -> Result<Self, Errno> {
        let fd = TimerFd::new(ClockId::CLOCK_MONOTONIC, TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK)?;
        epoll.add(&fd, EpollEvent::new(EpollFlags::EPOLLIN, timer))?;
        Ok(Self { token, timer: fd, paused: false, lines: Lines::default() })
    }

    /// Nobody looks at the listener until [`Pause::end`]; the timer is ready soon. `why` is logged, now and then.
    pub fn begin(&mut self, epoll: &Epoll, listener: BorrowedFd<'_>, why: fmt::Arguments<'_>) {
        if !self.paused {
            self.lines.warn(why);
        }
        self.paused = self.listen(epoll, listener, EpollFlags::empty());
        let _ = self.timer.set(Expiration::OneShot(TimeSpec::from(RETRY)), TimerSetTimeFlags::empty());
    }

    /// The listener is looked at again.
    pub fn end(&mut self, epoll: &Epoll, listener: BorrowedFd<'_>) {
        if self.paused {
            let _ = self.timer.unset();
            self.paused = !self.listen(epoll, listener, EpollFlags::EPOLLIN);
        }
    }

    fn listen(&self, epoll: &Epoll, listener: BorrowedFd<'_>, interest: EpollFlags) -> bool {
        epoll.modify(listener, &mut EpollEvent::new(interest, self.token)).is_ok()
    }
}

/// Takes connections until nobody waits.
///
/// # Errors
/// Why somebody who waits cannot be taken now, nor the next one: there is a pause to be made.
pub fn accept_all<C, S>(
    state: &mut S,
    accept: impl Fn(&S) -> Result<C, Errno>,
    take: impl Fn(&mut S, C),
) -> Result<(), Errno> {
    loop {
        match accept(state) {
            Ok(connection) => take(state, connection),
            Err(Errno::EAGAIN) => return Ok(()),
            Err(errno) if passes(Some(errno)) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// The connections of a listener that a thread waits for. Where one cannot be taken, it is tried again after a while.
pub fn patiently<C>(incoming: impl Iterator<Item = io::Result<C>>, what: &str) -> impl Iterator<Item = C> {
    let mut lines = Lines::default();
    incoming.filter_map(move |connection| {
        let error = match connection {
            Ok(connection) => return Some(connection),
            Err(error) => error,
        };
        if !passes(error.raw_os_error().map(Errno::from_raw)) {
            lines.warn(format_args!("{what} waits: {error}"));
            thread::sleep(RETRY);
        }
        None
    })
}

/// Lines that somebody else can cause: the first ones are logged, then one now and then.
#[derive(Debug)]
pub struct Lines {
    limiter: Limiter,
    began: Instant,
    left_out: u64,
}

impl Default for Lines {
    fn default() -> Self {
        Self { limiter: Limiter::new(1, LINES), began: Instant::now(), left_out: 0 }
    }
}

impl Lines {
    /// Logs a line, or counts it among those that are left out.
    pub fn warn(&mut self, line: fmt::Arguments<'_>) {
        if let Some(more) = self.next() {
            tracing::warn!("{line}{more}");
        }
    }

    /// The same, for what is no cause for worry.
    pub fn info(&mut self, line: fmt::Arguments<'_>) {
        if let Some(more) = self.next() {
            tracing::info!("{line}{more}");
        }
    }

    /// What is to be said behind the line of those before it, if it is to be logged.
    fn next(&mut self) -> Option<String> {
        if !self.limiter.allow(self.began.elapsed().as_nanos() as u64 / LINE_EVERY) {
            self.left_out += 1;
            return None;
        }
        Some(match std::mem::take(&mut self.left_out) {
            0 => String::new(),
            count => format!(" ({count} lines like this were left out)"),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// EMFILE is met before the queue of those who wait is looked at: it never becomes EAGAIN by itself.
    #[test]
    fn want_of_descriptors_ends_the_loop() {
        let mut answers = [Ok(1), Err(Errno::ECONNABORTED), Err(Errno::EINTR), Ok(2), Err(Errno::EMFILE)];
        answers.reverse();
        let left = RefCell::new(answers.to_vec());
        let accept = |_: &Vec<u8>| left.borrow_mut().pop().unwrap_or(Err(Errno::EMFILE));
        let mut taken = Vec::new();
        assert_eq!(accept_all(&mut taken, accept, Vec::push), Err(Errno::EMFILE));
        assert_eq!(taken, [1, 2]);
        assert_eq!(accept_all(&mut taken, |_| Err(Errno::EAGAIN), Vec::push), Ok(()));
    }

    #[test]
    fn a_thread_waits_before_it_tries_again() {
        let error = || Err(io::Error::from_raw_os_error(libc::EMFILE));
        let began = Instant::now();
        let taken: Vec<u8> = patiently([Ok(1), error(), error(), Ok(2)].into_iter(), "a test").collect();
        assert_eq!(taken, [1, 2]);
        assert!(began.elapsed() >= 2 * RETRY);
    }

    #[test]
    fn lines_are_left_out() {
        let mut lines = Lines::default();
        (0..100).for_each(|_| lines.warn(format_args!("a line")));
        assert_eq!(lines.left_out, 100 - LINES);
        lines.began = lines.began.checked_sub(Duration::from_secs(LINE_EVERY)).unwrap_or(lines.began);
        lines.warn(format_args!("a line"));
        assert_eq!(lines.left_out, 0);
    }
}
