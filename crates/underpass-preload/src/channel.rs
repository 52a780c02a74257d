//! The control connection: opening a socket of the router, asking the router, sending it a request.
#![allow(unsafe_code)]

use std::{
    ffi::{CStr, OsString, c_int},
    mem::{size_of, zeroed},
    os::unix::ffi::OsStringExt,
    ptr::null_mut,
    sync::{MutexGuard, OnceLock, PoisonError, atomic::Ordering::Relaxed},
};

use libc::{iovec, msghdr, sockaddr_un, socklen_t, ssize_t};

use crate::{
    auto, lost, next,
    protocol::{
        Kind, Message, RUNTIME_VARIABLE, SOCKET_VARIABLE, TUNNEL_PARAMETERS, VERSION, socket_name, sysctl,
    },
    table::{self, Socket},
};

/// Control descriptors go up here, out of the way of programs that count on low numbers.
pub const HIDDEN: usize = 512;

/// Where routers are, as the environment says.
enum Routers {
    /// One for every network namespace, and nothing of the kernel's.
    One(sockaddr_un),
    /// That of the caller's network namespace, in this directory, if there is one: beside the kernel.
    Runtime(Vec<u8>),
}

fn routers() -> Option<&'static Routers> {
    static ROUTERS: OnceLock<Option<Routers>> = OnceLock::new();
    let filled = |name| std::env::var_os(name).map(OsString::into_vec).filter(|value| !value.is_empty());
    ROUTERS
        .get_or_init(|| match filled(SOCKET_VARIABLE) {
            Some(path) => Some(Routers::One(address(&path))),
            None => filled(RUNTIME_VARIABLE).map(Routers::Runtime),
        })
        .as_ref()
}

/// The address of the socket at a path.
pub fn address(path: &[u8]) -> sockaddr_un {
    // SAFETY: all zero bytes are a valid sockaddr_un.
    let mut address: sockaddr_un = unsafe { zeroed() };
    address.sun_family = libc::AF_UNIX as u16;
    // A longer path is cut off, and connecting to it fails: the program must not reach the kernel instead.
    let room = address.sun_path.len() - 1;
    for (to, from) in address.sun_path[..room].iter_mut().zip(path) {
        *to = *from as libc::c_char;
    }
    address
}

/// Whether netlink sockets may go to a router.
pub fn active() -> bool {
    routers().is_some()
}

/// Whether the router is all the network that the program sees, and not one beside the kernel's.
pub fn alone() -> bool {
    matches!(routers(), Some(Routers::One(_)))
}

/// The inode of the calling thread's network namespace.
fn namespace() -> Option<u64> {
    inode_at(c"/proc/thread-self/ns/net")
}

/// The inode of what is at a path.
pub fn inode_at(path: &CStr) -> Option<u64> {
    // SAFETY: all zero bytes are a valid stat; stat writes one, and it is read only where that succeeded.
    unsafe {
        let mut status: libc::stat = zeroed();
        (next::stat(path.as_ptr(), &raw mut status) == 0).then_some(status.st_ino)
    }
}

/// A connection to the router; `None` if there is none in the caller's network namespace, whose kernel the
/// program then talks to.
pub fn connect() -> Result<Option<c_int>, c_int> {
    connect_in(namespace)
}

/// The same with the router of a network namespace.
fn connect_in(namespace: impl Fn() -> Option<u64>) -> Result<Option<c_int>, c_int> {
    match routers() {
        None => Ok(None),
        // What `ip` prints for a path that is not there would puzzle: it opens no file.
        Some(Routers::One(address)) => match connect_to(address) {
            Err(libc::ENOENT) => Err(libc::ECONNREFUSED),
            connected => connected.map(Some),
        },
        Some(Routers::Runtime(directory)) => {
            let Some(namespace) = namespace() else { return Ok(None) };
            auto::settle(namespace)?;
            let path = [directory, &b"/"[..], socket_name(namespace).as_bytes()].concat();
            match connect_to(&address(&path)) {
                // A file may be left of a daemon, even one of another namespace that had this number.
                Err(libc::ENOENT | libc::ECONNREFUSED) => Ok(None),
                connected => connected.map(Some),
            }
        }
    }
}

/// A connection to what listens there.
pub fn connect_to(router: &sockaddr_un) -> Result<c_int, c_int> {
    // SAFETY: socket and connect are called with valid arguments; connect reads a sockaddr_un of the
    // length given.
    unsafe {
        let fd = next::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0);
        if fd < 0 {
            return Err(next::errno());
        }
        loop {
            let length = size_of::<sockaddr_un>() as socklen_t;
            if next::connect(fd, (&raw const *router).cast(), length) == 0 {
                return Ok(fd);
            }
            match next::errno() {
                libc::EINTR => {}
                errno => {
                    next::close(fd);
                    return Err(errno);
                }
            }
        }
    }
}

/// Opens a netlink socket whose other end is the router's; `None` as [`connect`]. `kind` may hold
/// SOCK_CLOEXEC and SOCK_NONBLOCK.
pub fn open(kind: c_int, protocol: c_int) -> Result<Option<c_int>, c_int> {
    let flags = kind & (libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK);
    let namespace = namespace();
    let Some((data, control)) = establish(flags, protocol, namespace)? else { return Ok(None) };
    match table::enter(data, control, kind & !flags, protocol) {
        Some(socket) => {
            socket.namespace.store(namespace.unwrap_or(0), Relaxed);
            Ok(Some(data))
        }
        None => {
            // SAFETY: both are ours, and nobody else knows them.
            unsafe {
                next::close(data);
                next::close(control);
            }
            Err(libc::EMFILE)
        }
    }
}

/// A data socket of these flags and the control connection with it; `None` as [`connect`].
fn establish(flags: c_int, protocol: c_int, namespace: Option<u64>) -> Result<Option<(c_int, c_int)>, c_int> {
    let Some(mut control) = connect_in(|| namespace)? else { return Ok(None) };
    let mut ends = [-1; 2];
    // SAFETY: socketpair writes two descriptors; the others take descriptors that are ours.
    unsafe {
        let high = next::fcntl(control, libc::F_DUPFD_CLOEXEC, std::ptr::without_provenance_mut(HIDDEN));
        if high >= 0 {
            next::close(control);
            control = high;
        }
        if libc::socketpair(libc::AF_UNIX, libc::SOCK_SEQPACKET | flags, 0, ends.as_mut_ptr()) < 0 {
            let errno = next::errno();
            next::close(control);
            return Err(errno);
        }
    }
    let [data, far] = ends;
    let handed = hand_over(control, far, protocol);
    // SAFETY: `far` is ours, and with the router by now.
    unsafe { next::close(far) };
    if handed.is_err() {
        // SAFETY: both are ours, and nobody else knows them.
        unsafe {
            next::close(data);
            next::close(control);
        }
    }
    handed.map(|()| Some((data, control)))
}

/// Gives a socket whose router has ended to the one that is there now, as it was: its options, port id and groups.
/// `carry_over` gives a data socket what else was set of the old one.
pub fn reopen(
    socket: &Socket,
    nonblocking: bool,
    carry_over: impl FnOnce(c_int),
    put_in: impl Fn(c_int, c_int),
) -> Result<(), c_int> {
    let _turn = turn(socket);
    let namespace = Some(socket.namespace.load(Relaxed)).filter(|&inode| inode != 0);
    let flags = libc::SOCK_CLOEXEC | if nonblocking { libc::SOCK_NONBLOCK } else { 0 };
    let opened = establish(flags, socket.protocol.load(Relaxed), namespace)?;
    let (data, control) = opened.ok_or(libc::ECONNREFUSED)?;
    carry_over(data);
    let restored = restore(socket, control)
        .and_then(|()| table::put_in_place(socket, data, control, put_in).ok_or(libc::ECONNREFUSED));
    // SAFETY: `data` is ours: the program has copies of it, if it took the place of what was there. `control` is the
    // table's then.
    unsafe {
        next::close(data);
        if restored.is_err() {
            next::close(control);
        }
    }
    restored?;
    socket.sent.store(0, Relaxed);
    socket.told_room.store(0, Relaxed);
    socket.waits.store(false, Relaxed);
    Ok(())
}

/// Sets what the program had set of a socket.
fn restore(socket: &Socket, control: c_int) -> Result<(), c_int> {
    let set = |option: c_int, value: u32| {
        query(control, Message::new(Kind::Set, option as u32, value, 0)).map(drop)
    };
    let options = socket.options.load(Relaxed);
    (0..32).filter(|option| options >> option & 1 != 0).try_for_each(|option| set(option, 1))?;
    let port_id = socket.port_id.load(Relaxed);
    if port_id != 0 {
        let groups = socket.groups.load(Relaxed);
        query(control, Message::new(Kind::Bind, port_id, groups, port_id))?;
    }
    let above = socket.groups_above.load(Relaxed);
    let mut members = (0..64).filter(|bit| above >> bit & 1 != 0);
    members.try_for_each(|bit| set(libc::NETLINK_ADD_MEMBERSHIP, FIRST_ABOVE + bit))
}

/// The first multicast group that an address does not name.
pub const FIRST_ABOVE: u32 = 33;

/// Tells the router how long a buffer the program reads with. It does not answer.
pub fn report_buffer(socket: &Socket, room: u32) {
    let bytes = Message::new(Kind::Room, room, 0, 0).to_bytes();
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    // SAFETY: send reads `bytes`.
    unsafe { next::send(socket.control.load(Relaxed), bytes.as_ptr().cast(), bytes.len(), flags) };
}

/// Words of a `cmsghdr`, aligned as it is. Two descriptors take one more.
pub const HEADER: usize = 2;

/// Has a message carry descriptors, whose control data is to be in `ancillary`.
///
/// # Safety
/// `ancillary` has at least [`HEADER`] words and one for each descriptor, and lives as long as the message is used.
pub unsafe fn attach(message: &mut msghdr, ancillary: &mut [u64], descriptors: &[c_int]) {
    let size = size_of_val(descriptors) as u32;
    // SAFETY: `ancillary` has more room than CMSG_SPACE says, so that what CMSG_FIRSTHDR and CMSG_DATA point at is inside it.
    unsafe {
        let space = libc::CMSG_SPACE(size);
        debug_assert!(space as usize <= size_of_val(ancillary));
        message.msg_control = ancillary.as_mut_ptr().cast();
        message.msg_controllen = space as _;
        let header = libc::CMSG_FIRSTHDR(message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(size) as _;
        std::ptr::copy_nonoverlapping(
            descriptors.as_ptr(),
            libc::CMSG_DATA(header).cast(),
            descriptors.len(),
        );
    }
}

/// Sends OPEN with the router's end of the data socket, and waits for the reply.
fn hand_over(control: c_int, far: c_int, protocol: c_int) -> Result<(), c_int> {
    let mut bytes = Message::new(Kind::Open, protocol as u32, VERSION, 0).to_bytes();
    let mut vector = iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let mut ancillary = [0u64; HEADER + 1];
    // SAFETY: all zero bytes are a valid msghdr. `ancillary` has room for a descriptor and outlives the message, and sendmsg
    // reads what is set here.
    let sent = unsafe {
        let mut message: msghdr = zeroed();
        message.msg_iov = &raw mut vector;
        message.msg_iovlen = 1;
        attach(&mut message, &mut ancillary, &[far]);
        retry(|| next::sendmsg(control, &raw const message, libc::MSG_NOSIGNAL))
    };
    if sent < 0 {
        return Err(libc::ECONNREFUSED);
    }
    reply(control).map(drop)
}

/// Asks the router about `socket` and waits for its reply; the next router, if this one has ended.
pub fn call(socket: &Socket, question: Message) -> Result<Message, c_int> {
    let answer = {
        let _turn = turn(socket);
        query(socket.control.load(Relaxed), question)
    };
    match answer {
        Err(libc::ECONNREFUSED) if lost::is_over(socket) => {
            lost::reconnect(socket)?;
            let _turn = turn(socket);
            query(socket.control.load(Relaxed), question)
        }
        answer => answer,
    }
}

/// Asks the router about a path below `/proc/sys/net`; gives its answer and the text in it.
pub fn query_file(what: u32, path: &[u8]) -> Result<(Message, Vec<u8>), c_int> {
    let control = connect()?.ok_or(libc::ENOENT)?;
    let answer = query_sysctl(control, what, path);
    // SAFETY: `control` is ours.
    unsafe { next::close(control) };
    answer
}

fn query_sysctl(control: c_int, what: u32, path: &[u8]) -> Result<(Message, Vec<u8>), c_int> {
    let room = if what == sysctl::LIST { sysctl::ANSWER } else { sysctl::TEXT };
    query_with_text(control, Message::new(Kind::Sysctl, what, 0, 0), path, room)
}

/// Asks the router to carry out an ioctl of tunnel devices; gives what becomes of the parameters. `None`: there is no
/// router.
pub fn tunnel(question: Message, parameters: &[u8]) -> Result<Option<Vec<u8>>, c_int> {
    let Some(control) = connect()? else { return Ok(None) };
    let answer = query_with_text(control, question, parameters, TUNNEL_PARAMETERS);
    // SAFETY: `control` is ours.
    unsafe { next::close(control) };
    answer.map(|(_, parameters)| Some(parameters))
}

/// Asks with a text behind the question; `room` is how long that of the answer can be.
fn query_with_text(
    control: c_int,
    question: Message,
    text: &[u8],
    room: usize,
) -> Result<(Message, Vec<u8>), c_int> {
    let question = [&question.to_bytes()[..], text].concat();
    // SAFETY: send reads `question`.
    let sent = retry(|| unsafe {
        next::send(control, question.as_ptr().cast(), question.len(), libc::MSG_NOSIGNAL)
    });
    if sent < 0 {
        return Err(libc::ECONNREFUSED);
    }
    let mut bytes = vec![0; Message::LENGTH + room];
    // SAFETY: recv writes at most the length given.
    let length = retry(|| unsafe { next::recv(control, bytes.as_mut_ptr().cast(), bytes.len(), 0) });
    let length = usize::try_from(length).map_err(|_| libc::ECONNREFUSED)?;
    match Message::with_text(bytes.get(..length).unwrap_or_default()) {
        Some((answer @ Message { kind: Kind::Reply, a: 0, .. }, text)) => Ok((answer, text.to_vec())),
        Some((Message { kind: Kind::Reply, a: errno, .. }, _)) => Err(errno as c_int),
        _ => Err(libc::ECONNREFUSED),
    }
}

/// A connection that is a file of the router's, opened for writing with these flags of open(2).
pub fn sysctl_writer(path: &[u8], flags: c_int) -> Result<c_int, c_int> {
    let fd = connect()?.ok_or(libc::ENOENT)?;
    let opened = query_sysctl(fd, sysctl::WRITE, path);
    let entered = opened.and_then(|_| table::enter_writer(fd).ok_or(libc::EMFILE));
    // SAFETY: `fd` is ours; fcntl takes numbers here.
    unsafe {
        if entered.is_err() {
            next::close(fd);
        } else if flags & libc::O_CLOEXEC == 0 {
            next::fcntl(fd, libc::F_SETFD, null_mut());
        }
    }
    entered.map(|()| fd)
}

/// Whether `fd` is a connection to a router, which a program has only as a file that it writes to.
pub fn is_connection(fd: c_int) -> bool {
    // SAFETY: all zero bytes are a valid sockaddr_un; getpeername writes at most the length given.
    let address = unsafe {
        let mut address: sockaddr_un = zeroed();
        let mut length = size_of::<sockaddr_un>() as socklen_t;
        if next::getpeername(fd, (&raw mut address).cast(), &raw mut length) != 0
            || address.sun_family != libc::AF_UNIX as u16
        {
            return false;
        }
        address
    };
    let path = address.sun_path.map(|byte| byte as u8);
    match routers() {
        Some(Routers::One(router)) => router.sun_path == address.sun_path,
        Some(Routers::Runtime(directory)) => {
            path.strip_prefix(&directory[..]).is_some_and(|rest| rest.starts_with(b"/netns-"))
        }
        None => false,
    }
}

/// Forgets the router's words about texts that nobody waited for.
pub fn drain(fd: c_int) {
    let mut bytes = [0u8; Message::LENGTH];
    // SAFETY: recv writes at most the length given.
    while unsafe { next::recv(fd, bytes.as_mut_ptr().cast(), bytes.len(), libc::MSG_DONTWAIT) } > 0 {}
}

/// Waits for the router's word about a text that was written.
pub fn verdict(fd: c_int) -> Result<(), c_int> {
    match receive(fd) {
        Ok(Message { kind: Kind::Reply, a: 0, .. }) => Ok(()),
        Ok(Message { kind: Kind::Reply, a: errno, .. }) => Err(errno as c_int),
        _ => Err(libc::EIO),
    }
}

/// Asks what became of all texts whose verdict nobody has waited for: the last errno.
pub fn settle(fd: c_int) -> Result<(), c_int> {
    // SAFETY: send reads the one byte.
    if unsafe { next::send(fd, [sysctl::SETTLE].as_ptr().cast(), 1, libc::MSG_NOSIGNAL) } < 0 {
        return Err(libc::EIO);
    }
    let mut settled = Ok(());
    loop {
        match receive(fd) {
            Ok(Message { kind: Kind::Done, .. }) => return settled,
            Ok(Message { kind: Kind::Reply, a: 0, .. }) => {}
            Ok(Message { kind: Kind::Reply, a: errno, .. }) => settled = Err(errno as c_int),
            _ => return Err(libc::EIO),
        }
    }
}

/// Asks the router something that concerns no socket.
pub fn call_once(question: Message) -> Result<Message, c_int> {
    let control = connect()?.ok_or(libc::ECONNREFUSED)?;
    let answer = query(control, question);
    // SAFETY: `control` is ours.
    unsafe { next::close(control) };
    answer
}

/// The lock under which one thread at a time speaks on a control connection.
pub fn turn(socket: &Socket) -> MutexGuard<'_, ()> {
    socket.turn.lock().unwrap_or_else(PoisonError::into_inner)
}

fn query(control: c_int, question: Message) -> Result<Message, c_int> {
    let bytes = question.to_bytes();
    let flags = libc::MSG_NOSIGNAL;
    // SAFETY: send reads `bytes`.
    let sent = retry(|| unsafe { next::send(control, bytes.as_ptr().cast(), bytes.len(), flags) });
    if sent < 0 {
        return Err(libc::ECONNREFUSED);
    }
    reply(control)
}

/// Waits for the reply to a call.
fn reply(control: c_int) -> Result<Message, c_int> {
    loop {
        let answer = receive(control)?;
        match (answer.kind, answer.a) {
            (Kind::Reply, 0) => return Ok(answer),
            (Kind::Reply, errno) => return Err(errno as c_int),
            // A DONE that nobody waited for.
            _ => {}
        }
    }
}

/// The next message of the router; ECONNREFUSED once it is gone.
pub fn receive(control: c_int) -> Result<Message, c_int> {
    let mut bytes = [0u8; Message::LENGTH];
    // SAFETY: recv writes at most the length given.
    let length = retry(|| unsafe { next::recv(control, bytes.as_mut_ptr().cast(), bytes.len(), 0) });
    let length = usize::try_from(length).map_err(|_| libc::ECONNREFUSED)?;
    Message::from_bytes(bytes.get(..length).unwrap_or_default()).ok_or(libc::ECONNREFUSED)
}

fn retry(mut call: impl FnMut() -> ssize_t) -> ssize_t {
    loop {
        let result = call();
        if result >= 0 || next::errno() != libc::EINTR {
            return result;
        }
    }
}

/// Binds to a port id if the socket has none yet, as the kernel does at the first connect or send.
pub fn bind_if_unbound(socket: &Socket) -> Result<(), c_int> {
    match socket.port_id.load(Relaxed) {
        0 => bind(socket, 0, 0),
        _ => Ok(()),
    }
}

/// Binds to a port id (0: any) and to the multicast groups of a mask.
pub fn bind(socket: &Socket, port_id: u32, groups: u32) -> Result<(), c_int> {
    // SAFETY: getpid has no preconditions.
    let process = unsafe { libc::getpid() } as u32;
    let answer = call(socket, Message::new(Kind::Bind, port_id, groups, process))?;
    socket.port_id.store(answer.b, Relaxed);
    socket.groups.store(groups, Relaxed);
    Ok(())
}
