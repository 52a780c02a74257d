//! FRR programs the router: the listener for zebra's Forwarding Plane Manager interface
//! (`zebra -M dplane_fpm_nl`).
//!
//! One thread turns it ([`Fpm::turn`]) whenever its descriptor is readable; nothing blocks. zebra sends all it
//! has when it connects. What came over a connection outlives it; once another one has been there, what that
//! has not sent again goes, when nothing more of it was sent for a time of grace.
//!
//! zebra writes its routes to the kernel as well. With a kernel beside the router, plain routes and next-hop
//! objects of a zebra in the same network namespace are therefore left to the kernel, from which the router
//! mirrors them; only what the kernel lacks (encapsulations that it refuses, and what stands on them) is
//! taken from FPM. So no route is there twice, and none is removed twice.

mod connection;
mod program;
mod wire;

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use underpass_control::{Elsewhere, Router};
use underpass_netlink::fpm::PORT;

use crate::limits::{self, Lines, Pause};
use connection::{Connection, Gone};
pub use program::Counts;
use program::Programmer;

const LISTENER: u64 = 0;
const TIMER: u64 = 1;
/// The end of a pause of the listener.
const PAUSE: u64 = 2;
const FIRST: u64 = 3;
/// Events taken from the kernel at a time.
const EVENTS: usize = 8;

/// How long what FRR does not send again stays, if nothing else is asked for.
pub const GRACE: Duration = Duration::from_secs(60);

/// An address to listen at: `ADDR`, `ADDR:PORT` or `[ADDR]:PORT`; without a port zebra's own, 2620.
///
/// # Errors
/// A text for the user.
pub fn parse_address(text: &str) -> Result<SocketAddr, String> {
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    let address = text.parse().or_else(|_| bare.parse::<IpAddr>().map(|address| (address, PORT).into()));
    address.map_err(|_| "neither an address nor ADDR:PORT, such as 127.0.0.1:2620".to_owned())
}

/// The listener, and all that FRR has programmed.
pub struct Fpm {
    listener: TcpListener,
    epoll: Epoll,
    timer: TimerFd,
    connection: Option<(u64, Connection)>,
    next_token: u64,
    programmer: Programmer,
    pause: Pause,
    /// About those who connect and go, and about what is wrong with them.
    comings: Lines,
    lines: Lines,
}

impl Elsewhere for Programmer {
    fn route(&self, destination: IpAddr, prefix_len: u8, table: u32, metric: u32) -> bool {
        self.has_route(destination, prefix_len, table, metric)
    }

    fn label(&self, label: u32) -> bool {
        self.has_label(label)
    }

    fn object(&self, id: u32) -> bool {
        self.has_object(id)
    }
}

impl Fpm {
    /// Listens. `beside_kernel`: the router mirrors a kernel. `grace`: how long what FRR does not send again
    /// after a reconnection stays.
    ///
    /// # Errors
    /// Those of the sockets: the address is taken, not this machine's, …
    pub fn listen(address: SocketAddr, beside_kernel: bool, grace: Duration) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, flags)?;
        epoll.add(&listener, EpollEvent::new(EpollFlags::EPOLLIN, LISTENER))?;
        epoll.add(&timer, EpollEvent::new(EpollFlags::EPOLLIN, TIMER))?;
        let programmer = Programmer::new(beside_kernel, grace);
        let pause = Pause::new(&epoll, LISTENER, PAUSE)?;
        Ok(Self {
            listener,
            epoll,
            timer,
            connection: None,
            next_token: FIRST,
            programmer,
            pause,
            comings: Lines::default(),
            lines: Lines::default(),
        })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// What getsockname(2) says.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// What it has that is not to be saved: zebra sends it again.
    pub fn kept(&self) -> &dyn Elsewhere {
        &self.programmer
    }

    /// What FRR has sent and what became of it.
    pub fn counts(&self) -> Counts {
        self.programmer.counts()
    }

    /// The peer, while a zebra is connected.
    pub fn peer(&self) -> Option<SocketAddr> {
        self.connection.as_ref().map(|(_, connection)| connection.peer)
    }

    /// Does what is to be done, as far as that goes without waiting. The router's notifications are then to
    /// be sent by whoever serves its listeners. With a kernel beside the router, what that has reported comes
    /// first: zebra writes a route to the kernel before it sends it here.
    pub fn turn(&mut self, router: &mut Router) {
        let mut events = [EpollEvent::empty(); EVENTS];
        let count = self.epoll.wait(&mut events, EpollTimeout::ZERO).unwrap_or(0);
        for event in events.iter().take(count) {
            match event.data() {
                LISTENER => self.accept(),
                TIMER => {}
                PAUSE => self.pause.end(&self.epoll, self.listener.as_fd()),
                token => self.serve(router, token),
            }
        }
        let answers = self.programmer.retry(router, Instant::now());
        if let Some((token, connection)) = self.connection.as_mut().filter(|_| !answers.is_empty()) {
            let token = *token;
            answers.iter().for_each(|answer| connection.answer(answer));
            self.serve(router, token);
        }
        self.programmer.sweep(router, Instant::now());
        if let Err(error) = self.set_timer() {
            tracing::error!("FPM: no timer, so nothing is swept: {error}");
        }
    }

    fn accept(&mut self) {
        let errno = |error: io::Error| error.raw_os_error().map_or(Errno::EIO, Errno::from_raw);
        let accepted = limits::accept_all(
            self,
            |fpm| fpm.listener.accept().map_err(errno),
            |fpm, (stream, peer)| {
                let accepted = Connection::new(stream, peer).and_then(|connection| {
                    let event = EpollEvent::new(connection.interest(), fpm.next_token);
                    fpm.epoll.add(&connection.stream, event)?;
                    Ok(connection)
                });
                match accepted {
                    Ok(connection) => fpm.replace(connection),
                    Err(error) => fpm.lines.warn(format_args!("FPM: connection of {peer}: {error}")),
                }
            },
        );
        if let Err(errno) = accepted {
            let why = format_args!("FPM: a connection waits: {errno}");
            self.pause.begin(&self.epoll, self.listener.as_fd(), why);
        }
    }

    /// The newest connection is the one that counts.
    fn replace(&mut self, connection: Connection) {
        let peer = connection.peer;
        if let Some((_, old)) = &self.connection {
            self.lines.warn(format_args!(
                "FPM: {peer} connects while {} is: the newest counts, the other is closed",
                old.peer
            ));
        } else {
            self.comings.info(format_args!("FPM: {peer} connects"));
        }
        self.programmer.connected(connection.is_local(), Instant::now());
        // Closing a socket takes it out of the epoll.
        self.connection = Some((self.next_token, connection));
        self.next_token += 1;
    }

    fn serve(&mut self, router: &mut Router, token: u64) {
        let Some((_, connection)) = self.connection.as_mut().filter(|(current, _)| *current == token) else {
            return;
        };
        let before = connection.interest();
        let served = connection.serve(router, &mut self.programmer).and_then(|()| {
            let interest = connection.interest();
            if interest != before {
                let mut event = EpollEvent::new(interest, token);
                self.epoll.modify(&connection.stream, &mut event).map_err(|errno| Gone::Io(errno.into()))?;
            }
            Ok(())
        });
        match served {
            Ok(()) => return,
            Err(Gone::Closed) => {
                self.comings.info(format_args!("FPM: {} has closed its connection", connection.peer));
            }
            Err(gone) => {
                let peer = connection.peer;
                self.lines.warn(format_args!("FPM: the connection of {peer} is closed: {gone}"));
            }
        }
        self.connection = None;
        self.programmer.disconnected();
    }

    fn set_timer(&self) -> nix::Result<()> {
        let Some(at) = self.programmer.due_at() else { return self.timer.unset() };
        // Zero would be never.
        let wait = at.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        self.timer.set(Expiration::OneShot(TimeSpec::from(wait)), TimerSetTimeFlags::empty())
    }
}

/// The one descriptor to wait for: readable when [`Fpm::turn`] has something to do.
impl AsFd for Fpm {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        let parsed = |text| parse_address(text).ok().map(|address| address.to_string());
        assert_eq!(parsed("127.0.0.1").as_deref(), Some("127.0.0.1:2620"));
        assert_eq!(parsed("127.0.0.1:99").as_deref(), Some("127.0.0.1:99"));
        assert_eq!(parsed("::1").as_deref(), Some("[::1]:2620"));
        assert_eq!(parsed("[::1]").as_deref(), Some("[::1]:2620"));
        assert_eq!(parsed("[::1]:99").as_deref(), Some("[::1]:99"));
        assert_eq!(parsed("localhost"), None);
        assert_eq!(parsed("127.0.0.1:70000"), None);
    }
}
