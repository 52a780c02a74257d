//! The router's netlink server: programs that loaded the preload library come in here.
//!
//! One thread turns it ([`Server::turn`]): an AF_UNIX SOCK_SEQPACKET listener, and for each netlink socket
//! of a program a control and a data socket ([`crate::protocol`]), and where the router is beside a kernel
//! a netlink socket of that. Nothing blocks: what a program does not
//! read waits in a queue of its own, a dump goes on as that drains, and a program that lets the queue
//! grow beyond [`QUEUE`] is cut off, as is one that does not keep to the protocol.

mod connection;
mod descendants;
mod descriptor;
mod filter;
mod host;
mod memory;
mod merge;
mod program;
mod session;
mod sysctl;
mod upstream;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt},
    },
    path::{Path, PathBuf},
    sync::Arc,
};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout},
        eventfd::{EfdFlags, EventFd},
        socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, connect, listen, socket},
        stat::{Mode, fchmod},
    },
};
use underpass_control::Replies;

use crate::limits::{self, Lines, Pause};
use connection::{Connection, Gone};
pub use host::Host;

/// Bytes that wait for one program before it is cut off.
pub const QUEUE: usize = 16 << 20;
/// Bytes that wait for all programs together: of those who wait, the one with the most is cut off.
pub const QUEUED_TOGETHER: usize = 64 << 20;
/// Longest datagram of a program. Linux takes no longer one either unless its limits are raised.
const DATAGRAM: usize = 1 << 20;
/// Netlink sockets served at once, if there are descriptors for as many.
const CONNECTIONS: usize = 4096;
/// Descriptors of a netlink socket: the program's two, and one of the kernel's.
const DESCRIPTORS: usize = 3;
/// What has waited for a program that is cut off, and is worth to be given back to the system at once.
const MUCH: usize = 1 << 20;
/// Events taken from the kernel at a time.
const EVENTS: usize = 64;

const LISTENER: u64 = 0;
const WAKER: u64 = 1;
/// The end of a pause of the listener.
const PAUSE: u64 = 2;
/// Token of the first connection's control socket; its data socket and the kernel's socket have the next two.
const FIRST: u64 = 3;
/// Tokens of a connection.
const TOKENS: u64 = 3;

/// The netlink port ids in use, per protocol.
type PortIds = BTreeSet<(bool, u32)>;

/// Wakes a [`Server`] that waits, or another thread that waits for its descriptor.
#[derive(Debug, Clone)]
pub struct Waker(Arc<EventFd>);

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Waker {
    /// One that has not been used yet.
    ///
    /// # Errors
    /// What eventfd(2) says.
    pub fn new() -> io::Result<Self> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        Ok(Self(Arc::new(EventFd::from_value_and_flags(0, flags)?)))
    }

    /// Takes note of what it was used for: its descriptor is readable until then.
    pub fn heard(&self) {
        let _ = self.0.read();
    }

    /// Lets the current or the next wait return.
    pub fn wake(&self) {
        // It fails only if 2^64 - 1 wakings are pending, and then it is awake.
        let _ = self.0.write(1);
    }
}

/// Why a server cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Another router is there.
    #[error("a router already listens at {}", .0.display())]
    Taken(PathBuf),
    /// Something that is no socket is there.
    #[error("{} is there already, and is no socket", .0.display())]
    NoSocket(PathBuf),
    /// The path is too long, its directory is missing, …
    #[error("cannot listen at {}: {error}", path.display())]
    Failed {
        /// The socket's path.
        path: PathBuf,
        /// What the kernel said.
        error: io::Error,
    },
}

/// Becomes readable when [`Server::wait`] would return at once.
impl AsFd for Server {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }
}

/// The server. Dropping it removes its socket file.
#[derive(Debug)]
pub struct Server {
    listener: OwnedFd,
    path: PathBuf,
    /// Device and inode of the socket file, to remove no other.
    file: Option<(u64, u64)>,
    epoll: Epoll,
    waker: Waker,
    pause: Pause,
    /// Connections that there may be.
    most: usize,
    /// About those who are cut off.
    lines: Lines,
    connections: BTreeMap<u64, Connection>,
    /// Programs that wait until the router is as it was; `None`: it is, and nobody waits.
    waiting: Option<Vec<OwnedFd>>,
    next_token: u64,
    port_ids: PortIds,
    /// Whether the kernel is beside the router.
    live: bool,
    buffers: Buffers,
}

/// Memory that is used again for each datagram.
#[derive(Debug)]
struct Buffers {
    /// Where a program's datagram is read.
    request: Vec<u8>,
    /// Where one of the kernel is read.
    heard: Vec<u8>,
    /// Where the answers to a datagram are written.
    answers: Replies,
    /// Where the parts of dumps are written.
    parts: Replies,
}

/// How a server listens, and for what.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// The kernel of this network namespace is beside the router: the [`Host`] says who answers what.
    pub live: bool,
    /// A group whose members reach the router too: the socket's mode is 0660 instead of 0600.
    pub group: Option<u32>,
}

impl Server {
    /// Listens at `path`, for programs of the same user and those of `options.group` only. A socket file on
    /// which nobody listens any more is replaced; a missing directory is made.
    ///
    /// # Errors
    /// [`ListenError`].
    pub fn listen(path: &Path, options: &Options) -> Result<Self, ListenError> {
        let failed = |error: io::Error| ListenError::Failed { path: path.to_owned(), error };
        if let Some(directory) = path.parent().filter(|directory| !directory.as_os_str().is_empty()) {
            // That of live routers is for all to pass through: a group may be let in, and each socket has its
            // own mode.
            let mode = if options.live { 0o755 } else { 0o700 };
            fs::DirBuilder::new().recursive(true).mode(mode).create(directory).map_err(failed)?;
        }
        let address = UnixAddr::new(path).map_err(|errno| failed(errno.into()))?;
        let seqpacket = || {
            let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
            socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)
                .map_err(|errno| failed(errno.into()))
        };
        let listener = seqpacket()?;
        // Before bind, which makes the file with the mode that the socket has: at no moment can others
        // connect.
        fchmod(&listener, Mode::S_IRUSR | Mode::S_IWUSR).map_err(|errno| failed(errno.into()))?;
        if let Err(errno) = bind(listener.as_raw_fd(), &address) {
            if errno != Errno::EADDRINUSE {
                return Err(failed(errno.into()));
            }
            if !fs::symlink_metadata(path).map_err(failed)?.file_type().is_socket() {
                return Err(ListenError::NoSocket(path.to_owned()));
            }
            match connect(seqpacket()?.as_raw_fd(), &address) {
                Err(Errno::ECONNREFUSED) => fs::remove_file(path).map_err(failed)?,
                _ => return Err(ListenError::Taken(path.to_owned())),
            }
            bind(listener.as_raw_fd(), &address).map_err(|errno| failed(errno.into()))?;
        }
        if let Some(group) = options.group {
            std::os::unix::fs::chown(path, None, Some(group)).map_err(failed)?;
            fs::set_permissions(path, fs::Permissions::from_mode(0o660)).map_err(failed)?;
        }
        let file = fs::symlink_metadata(path).ok().map(|status| (status.dev(), status.ino()));
        let system = |errno: Errno| failed(errno.into());
        listen(&listener, Backlog::MAXCONN).map_err(system)?;
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(system)?;
        epoll.add(&listener, EpollEvent::new(EpollFlags::EPOLLIN, LISTENER)).map_err(system)?;
        let waker = Waker::new().map_err(failed)?;
        epoll.add(&waker, EpollEvent::new(EpollFlags::EPOLLIN, WAKER)).map_err(system)?;
        let pause = Pause::new(&epoll, LISTENER, PAUSE).map_err(system)?;
        Ok(Self {
            listener,
            path: path.to_owned(),
            file,
            epoll,
            waker,
            pause,
            most: CONNECTIONS.min(limits::descriptors_of_programs() / DESCRIPTORS),
            lines: Lines::default(),
            connections: BTreeMap::new(),
            waiting: None,
            next_token: FIRST,
            port_ids: PortIds::new(),
            live: options.live,
            buffers: Buffers {
                request: vec![0; DATAGRAM],
                heard: vec![0; if options.live { DATAGRAM } else { 0 }],
                answers: Replies::default(),
                parts: Replies::default(),
            },
        })
    }

    /// Where it listens.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What wakes it.
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Serves those alone, until [`Server::serve_all`], whom this process has started: the tools that make the router what
    /// it was. A program that has been there before (FRR's zebra) would find half of it, and put right what is about to be
    /// put right.
    pub fn serve_own(&mut self) {
        self.waiting.get_or_insert_default();
    }

    /// Serves everybody, and first those who have waited.
    pub fn serve_all(&mut self) {
        for control in self.waiting.take().unwrap_or_default() {
            self.take(control, None);
        }
    }

    /// Waits until there is something to do or it is woken.
    ///
    /// # Errors
    /// What epoll_wait(2) says; nothing that a program can cause.
    pub fn wait(&self) -> io::Result<Ready> {
        self.ready(EpollTimeout::NONE)
    }

    /// The same, and until `other` is readable.
    ///
    /// # Errors
    /// As [`Server::wait`], and what poll(2) says.
    pub fn wait_or(&self, other: BorrowedFd<'_>) -> io::Result<Ready> {
        let wanted = PollFlags::POLLIN;
        match poll(
            &mut [PollFd::new(self.epoll.0.as_fd(), wanted), PollFd::new(other, wanted)],
            PollTimeout::NONE,
        ) {
            Ok(_) | Err(Errno::EINTR) => self.ready(EpollTimeout::ZERO),
            Err(errno) => Err(errno.into()),
        }
    }

    fn ready(&self, timeout: EpollTimeout) -> io::Result<Ready> {
        let mut events = [EpollEvent::empty(); EVENTS];
        let count = match self.epoll.wait(&mut events, timeout) {
            Err(Errno::EINTR) => 0,
            other => other?,
        };
        Ok(Ready { events, count })
    }

    /// Does what is to be done: answers requests, goes on with dumps, notifies listeners of changes.
    pub fn turn(&mut self, host: &mut dyn Host, ready: &Ready) {
        for event in ready.events.iter().take(ready.count) {
            match event.data() {
                LISTENER => self.accept(),
                WAKER => {
                    self.waker.heard();
                }
                PAUSE => self.pause.end(&self.epoll, self.listener.as_fd()),
                token => self.serve(host, token, event.events()),
            }
        }
        self.report(host);
    }

    /// Notifies the listeners, and binds sockets to them.
    pub fn report(&mut self, host: &mut dyn Host) {
        let _ = self.notify(host, None);
        self.bound(host);
    }

    fn accept(&mut self) {
        let open = |server: &Self| server.connections.len() + server.waiting.as_ref().map_or(0, Vec::len);
        let next = |server: &Self| match open(server) < server.most {
            true => {
                let reserved = server.listener.try_clone().map_err(|error| match error.raw_os_error() {
                    Some(errno) => Errno::from_raw(errno),
                    None => Errno::EMFILE,
                })?;
                Ok((descriptor::accept(&server.listener)?, reserved))
            }
            false => Err(Errno::EMFILE),
        };
        let accepted =
            limits::accept_all(self, next, |server, (control, reserved)| match &mut server.waiting {
                Some(waiting) if !descendants::is_own(&control) => waiting.push(control),
                _ => server.take(control, Some(reserved)),
            });
        if let Err(errno) = accepted {
            let open = open(self);
            let why = format_args!("{open} netlink sockets are open, another one waits: {errno}");
            self.pause.begin(&self.epoll, self.listener.as_fd(), why);
        }
    }

    fn take(&mut self, control: OwnedFd, reserved: Option<OwnedFd>) {
        let token = self.next_token;
        if self.epoll.add(&control, EpollEvent::new(EpollFlags::EPOLLIN, token)).is_ok() {
            self.next_token += TOKENS;
            self.connections.insert(token, Connection::new(control, reserved, token));
        }
    }

    fn serve(&mut self, host: &mut dyn Host, token: u64, events: EpollFlags) {
        let socket = (token - FIRST) % TOKENS;
        let Some(mut connection) = self.connections.remove(&(token - socket)) else { return };
        let served = match socket {
            0 => connection.control(host, self.live, &self.epoll, &mut self.port_ids),
            1 => self.serve_data(host, &mut connection, events),
            _ => connection.flush(host, &self.epoll, &mut self.buffers),
        };
        match served {
            Ok(()) => {
                self.connections.insert(connection.token(), connection);
            }
            Err(gone) => self.close(host, connection, &gone),
        }
        self.bound(host);
    }

    /// Cuts off who has the most waiting, as long as there is more for all together than there may be.
    fn bound(&mut self, host: &mut dyn Host) {
        let mut sum: usize = self.connections.values().map(Connection::queued).sum();
        while sum > QUEUED_TOGETHER {
            let longest = self.connections.iter().max_by_key(|(_, connection)| connection.queued());
            let token = longest.map(|(token, _)| *token);
            let Some(connection) = token.and_then(|token| self.connections.remove(&token)) else { return };
            sum = sum.saturating_sub(connection.queued());
            let why = "too much waits for all together, and for it the most";
            self.close(host, connection, &Gone::CutOff(why));
        }
    }

    fn serve_data(
        &mut self,
        host: &mut dyn Host,
        connection: &mut Connection,
        events: EpollFlags,
    ) -> Result<(), Gone> {
        if events.contains(EpollFlags::EPOLLOUT) {
            connection.flush(host, &self.epoll, &mut self.buffers)?;
        }
        if events.intersects(EpollFlags::EPOLLIN | EpollFlags::EPOLLHUP | EpollFlags::EPOLLERR) {
            self.buffers.answers.clear();
            if connection.request(host, &mut self.port_ids, &mut self.buffers)? {
                // Changes are told before they are acknowledged, as Linux does.
                self.notify(host, Some(connection))?;
                connection.answer(host, &self.epoll, &mut self.buffers)?;
            }
        }
        Ok(())
    }

    /// Sends the router's notifications to the members of multicast groups. `current` is a connection
    /// that is taken out of the map; the result is about that one.
    fn notify(&mut self, host: &mut dyn Host, current: Option<&mut Connection>) -> Result<(), Gone> {
        let notifications: Vec<_> = host.router().notifications().collect();
        if notifications.is_empty() {
            return Ok(());
        }
        let mut gone = Vec::new();
        for (&token, connection) in &mut self.connections {
            let told = notifications.iter().try_for_each(|notification| connection.notify(notification));
            let told = told.and_then(|()| connection.flush(host, &self.epoll, &mut self.buffers));
            if let Err(why) = told {
                gone.push((token, why));
            }
        }
        for (token, why) in gone {
            if let Some(connection) = self.connections.remove(&token) {
                self.close(host, connection, &why);
            }
        }
        match current {
            Some(current) => notifications.iter().try_for_each(|notification| current.notify(notification)),
            None => Ok(()),
        }
    }

    fn close(&mut self, host: &mut dyn Host, connection: Connection, why: &Gone) {
        if let Gone::CutOff(why) = why {
            self.lines.warn(format_args!("a netlink socket is cut off: {why}"));
        }
        let much = connection.queued() > MUCH;
        connection.close(host, &self.epoll, &mut self.port_ids);
        if much {
            memory::give_back();
        }
        // Its descriptors are there for others.
        self.pause.end(&self.epoll, self.listener.as_fd());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let now = fs::symlink_metadata(&self.path).ok().map(|status| (status.dev(), status.ino()));
        if now.is_some() && now == self.file {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// What [`Server::wait`] has found to be done.
#[derive(Debug)]
pub struct Ready {
    events: [EpollEvent; EVENTS],
    count: usize,
}
