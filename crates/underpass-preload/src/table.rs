//! Which descriptors of this process are netlink sockets of the router.
//!
//! The table is made of plain atomics: a look-up is one load, nothing allocates, and a fork at any moment leaves the child a
//! table that is as good as the parent's. A descriptor that the C library closes by itself (`fclose` after `fdopen`) leaves a
//! stale entry, so the hooks ask [`live`], which compares the socket's inode first.
#![allow(unsafe_code)]

use std::{
    ffi::c_int,
    mem::MaybeUninit,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicI32, AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed},
    },
};

use crate::next;

/// Descriptors at or above this cannot be netlink sockets of the router: `socket` fails with EMFILE.
const DESCRIPTORS: usize = 65_536;
/// Sockets of the router that a process can have at once, descriptors made by `dup` not counted.
const SOCKETS: usize = 4_096;
/// Marks an entry of [`ENTRIES`] as the hidden control descriptor of its socket.
const CONTROL: u16 = 0x8000;

/// A netlink socket of the router: what its descriptors have in common.
#[derive(Debug)]
pub struct Socket {
    /// How many descriptors are this socket; 0: free.
    users: AtomicU32,
    /// Inode of the data socket.
    inode: AtomicU64,
    /// The control connection; -1 for a file, which is its own.
    pub control: AtomicI32,
    /// SOCK_RAW or SOCK_DGRAM, as the program asked.
    pub kind: AtomicI32,
    /// NETLINK_ROUTE or NETLINK_GENERIC; [`WRITER`] for a file under `/proc/sys/net`.
    pub protocol: AtomicI32,
    /// nl_pid; 0 until bound.
    pub port_id: AtomicU32,
    /// Mask of multicast groups 1 to 32.
    pub groups: AtomicU32,
    /// Groups 33 to 96 that it is a member of.
    pub groups_above: AtomicU64,
    /// Options of SOL_NETLINK that are on, a bit each.
    pub options: AtomicU32,
    /// The network namespace whose router it is of; 0 for none.
    pub namespace: AtomicU64,
    /// Datagrams that the program has sent, modulo 2^32.
    pub sent: AtomicU32,
    /// Length in bytes of the longest receive buffer that the router has been told of.
    pub told_room: AtomicU32,
    /// Whether datagrams can end with a mark of their group.
    pub marks: AtomicBool,
    /// Whether a request has been sent since the last answer was read.
    pub asks: AtomicBool,
    /// Whether what the router had to tell has been lost and the program does not know it yet.
    pub overrun: AtomicBool,
    /// Whether its router has ended and its descriptors are those of a clock.
    pub waits: AtomicBool,
    /// Inode of what is about to take the place of the data socket; 0 for nothing.
    coming: AtomicU64,
    /// Held from a question on the control connection until its answer.
    pub turn: Mutex<()>,
}

/// By descriptor: 0, or 1 + the index in [`SLOTS`], with [`CONTROL`] or not.
static ENTRIES: [AtomicU16; DESCRIPTORS] = [const { AtomicU16::new(0) }; DESCRIPTORS];
static SLOTS: [Socket; SOCKETS] = [const {
    Socket {
        users: AtomicU32::new(0),
        inode: AtomicU64::new(0),
        control: AtomicI32::new(-1),
        kind: AtomicI32::new(0),
        protocol: AtomicI32::new(0),
        port_id: AtomicU32::new(0),
        groups: AtomicU32::new(0),
        groups_above: AtomicU64::new(0),
        options: AtomicU32::new(0),
        namespace: AtomicU64::new(0),
        sent: AtomicU32::new(0),
        told_room: AtomicU32::new(0),
        marks: AtomicBool::new(false),
        asks: AtomicBool::new(false),
        overrun: AtomicBool::new(false),
        waits: AtomicBool::new(false),
        coming: AtomicU64::new(0),
        turn: Mutex::new(()),
    }
}; SOCKETS];

/// The highest descriptor that ever had an entry.
static HIGHEST: AtomicI32 = AtomicI32::new(-1);

/// The highest descriptor that the table may have an entry for; -1: none.
pub fn highest() -> c_int {
    HIGHEST.load(Relaxed)
}

/// Stores the entry of descriptor `fd`, at its place in [`ENTRIES`].
fn put(fd: c_int, place: &AtomicU16, entry: u16) {
    HIGHEST.fetch_max(fd, Relaxed);
    release(place.swap(entry, Relaxed));
}

fn entry(fd: c_int) -> Option<&'static AtomicU16> {
    ENTRIES.get(usize::try_from(fd).ok()?)
}

fn slot(entry: u16) -> Option<&'static Socket> {
    SLOTS.get(usize::from(entry & !CONTROL).checked_sub(1)?)
}

/// The socket that `fd` was when the table last heard of it.
fn known(fd: c_int) -> Option<&'static Socket> {
    match entry(fd)?.load(Relaxed) {
        entry if entry & CONTROL != 0 => None,
        entry => slot(entry),
    }
}

/// [`Socket::protocol`] of a file of the router's that is written to.
const WRITER: c_int = -1;
/// How many such files there have been.
static WRITERS: AtomicU32 = AtomicU32::new(0);

/// Whether there has been a file of the router's that is written to.
pub fn has_writers() -> bool {
    WRITERS.load(Relaxed) != 0
}

/// Whether `fd` is one. errno is left as it was.
pub fn is_writer(fd: c_int) -> bool {
    has_writers() && current(fd).is_some_and(|socket| socket.protocol.load(Relaxed) == WRITER)
}

/// Enters a file of the router's that is written to.
pub fn enter_writer(fd: c_int) -> Option<()> {
    WRITERS.fetch_add(1, Relaxed);
    let place = entry(fd)?;
    let (index, _) = take_slot(inode(fd)?, -1, 0, WRITER)?;
    put(fd, place, index);
    Some(())
}

/// The netlink socket of the router that `fd` is. errno is left as it was.
pub fn live(fd: c_int) -> Option<&'static Socket> {
    current(fd).filter(|socket| socket.protocol.load(Relaxed) != WRITER)
}

/// What of the router's `fd` is.
fn current(fd: c_int) -> Option<&'static Socket> {
    let socket = known(fd)?;
    let errno = next::errno();
    let inode = inode(fd);
    next::set_errno(errno);
    let known = [socket.inode.load(Relaxed), socket.coming.load(Relaxed)];
    if inode.is_some_and(|inode| known.contains(&inode)) {
        return Some(socket);
    }
    forget(fd);
    None
}

/// Whether `fd` is the hidden control descriptor of a socket.
pub fn is_control(fd: c_int) -> bool {
    entry(fd).is_some_and(|entry| entry.load(Relaxed) & CONTROL != 0)
}

fn inode(fd: c_int) -> Option<u64> {
    let mut status = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: fstat writes a whole `stat` where it returns 0, and it is read only then.
    let status = unsafe {
        if libc::fstat(fd, status.as_mut_ptr()) != 0 {
            return None;
        }
        status.assume_init()
    };
    // What is no file of a file system, a clock among them, has no type, and all share one inode.
    matches!(status.st_mode & libc::S_IFMT, libc::S_IFSOCK | 0).then_some(status.st_ino)
}

/// The process whose table this is; 0 before [`adopt`].
static OWNER: AtomicI32 = AtomicI32::new(0);

/// Makes the table this process's, and that of each child of a fork the child's. Called when the library
/// is loaded.
pub fn adopt() {
    extern "C" fn note() {
        // SAFETY: getpid has no preconditions.
        OWNER.store(unsafe { libc::getpid() }, Relaxed);
    }
    note();
    // SAFETY: `note` is a function of the prototype that pthread_atfork wants, and never unloaded.
    unsafe { libc::pthread_atfork(None, None, Some(note)) };
}

/// Whether the table is this process's own. It is not in the child of a vfork, which shares its
/// parent's memory but not its descriptors: what it closes must not be forgotten here.
pub fn own() -> bool {
    let owner = OWNER.load(Relaxed);
    // SAFETY: getpid has no preconditions.
    owner == 0 || owner == unsafe { libc::getpid() }
}

/// Enters a new socket. `None` if `data` is too high or all slots are taken.
pub fn enter(data: c_int, control: c_int, kind: c_int, protocol: c_int) -> Option<&'static Socket> {
    let data_entry = entry(data)?;
    let control_entry = entry(control)?;
    let (index, socket) = take_slot(inode(data)?, control, kind, protocol)?;
    put(data, data_entry, index);
    put(control, control_entry, index | CONTROL);
    Some(socket)
}

/// A free slot, filled, and the number of its entries.
fn take_slot(inode: u64, control: c_int, kind: c_int, protocol: c_int) -> Option<(u16, &'static Socket)> {
    let (index, socket) = (1u16..)
        .zip(&SLOTS)
        .find(|(_, socket)| socket.users.compare_exchange(0, 1, Relaxed, Relaxed).is_ok())?;
    socket.inode.store(inode, Relaxed);
    socket.control.store(control, Relaxed);
    socket.kind.store(kind, Relaxed);
    socket.protocol.store(protocol, Relaxed);
    socket.port_id.store(0, Relaxed);
    socket.groups.store(0, Relaxed);
    socket.groups_above.store(0, Relaxed);
    socket.options.store(0, Relaxed);
    socket.namespace.store(0, Relaxed);
    socket.sent.store(0, Relaxed);
    socket.told_room.store(0, Relaxed);
    for flag in [&socket.marks, &socket.asks, &socket.overrun, &socket.waits] {
        flag.store(false, Relaxed);
    }
    socket.coming.store(0, Relaxed);
    Some((index, socket))
}

/// The descriptors of a socket.
pub fn descriptors(socket: &Socket) -> impl Iterator<Item = c_int> + use<'_> {
    (0..=highest()).filter(move |&fd| known(fd).is_some_and(|other| std::ptr::eq(other, socket)))
}

/// Puts `data` in the place of all descriptors of a socket, and `control` in that of its control connection. `put_in` makes
/// a number another's.
pub fn put_in_place(
    socket: &Socket,
    data: c_int,
    control: c_int,
    put_in: impl Fn(c_int, c_int),
) -> Option<()> {
    let new = inode(data)?;
    let index = descriptors(socket).next().and_then(entry)?.load(Relaxed);
    put(control, entry(control)?, index | CONTROL);
    socket.coming.store(new, Relaxed);
    for fd in descriptors(socket) {
        put_in(data, fd);
    }
    socket.inode.store(new, Relaxed);
    socket.coming.store(0, Relaxed);
    let old = socket.control.swap(control, Relaxed);
    if let Some(entry) = entry(old) {
        entry.store(0, Relaxed);
        // SAFETY: the descriptor is ours alone: the program's own calls to close are kept off it.
        unsafe { next::close(old) };
    }
    Some(())
}

/// `copy` is now the same open socket as `fd`, whatever it was before.
pub fn duplicate(fd: c_int, copy: c_int) {
    if fd == copy || !own() {
        return;
    }
    let new = match (entry(fd).map(|entry| entry.load(Relaxed)), current(fd)) {
        (Some(index), Some(socket)) if entry(copy).is_some() => {
            socket.users.fetch_add(1, Relaxed);
            index
        }
        _ => 0,
    };
    if let Some(room) = entry(copy).filter(|room| new != 0 || room.load(Relaxed) != 0) {
        put(copy, room, new);
    }
}

/// `fd` is closed, or no longer what it was. A control descriptor is not the program's to close.
pub fn forget(fd: c_int) {
    let Some(entry) = entry(fd) else { return };
    if entry.load(Relaxed) != 0 && !is_control(fd) && own() {
        release(entry.swap(0, Relaxed));
    }
}

/// Gives up one use of the socket of an entry that was taken out; the last closes its control connection.
fn release(old: u16) {
    if old & CONTROL != 0 {
        return;
    }
    let Some(socket) = slot(old) else { return };
    let control = socket.control.load(Relaxed);
    if socket.users.fetch_sub(1, Relaxed) == 1 && control >= 0 {
        // The slot may be another socket's by now, but the number is taken until it is closed.
        if let Some(entry) = entry(control) {
            entry.store(0, Relaxed);
        }
        // SAFETY: the descriptor is ours alone: the program's own calls to close are kept off it.
        unsafe { next::close(control) };
    }
}

/// Moves the control connection off descriptor `fd`, which the program is about to use for something else.
pub fn vacate(fd: c_int) {
    if !is_control(fd) || !own() {
        return;
    }
    let Some(from) = entry(fd) else { return };
    let Some(socket) = slot(from.load(Relaxed)) else { return };
    // SAFETY: F_DUPFD_CLOEXEC takes a number; it touches no memory.
    let to = unsafe { next::fcntl(fd, libc::F_DUPFD_CLOEXEC, std::ptr::without_provenance_mut(3)) };
    if let Some(place) = entry(to) {
        socket.control.store(to, Relaxed);
        put(to, place, from.swap(0, Relaxed));
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsRawFd, IntoRawFd};
    use std::os::unix::net::UnixDatagram;
    use std::sync::{MutexGuard, PoisonError};

    use super::*;

    /// Held by each test: another would be given the numbers that this one has just closed.
    static NUMBERS: Mutex<()> = Mutex::new(());

    fn turn() -> MutexGuard<'static, ()> {
        NUMBERS.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A socket in the table, and its two descriptors.
    fn entered() -> (&'static Socket, c_int, c_int) {
        let (data, control) = UnixDatagram::pair().unwrap();
        let (data, control) = (data.into_raw_fd(), control.into_raw_fd());
        (enter(data, control, libc::SOCK_RAW, libc::NETLINK_ROUTE).unwrap(), data, control)
    }

    fn close(fd: c_int) {
        forget(fd);
        // SAFETY: the tests' own descriptor.
        unsafe { next::close(fd) };
    }

    fn is_open(fd: c_int) -> bool {
        inode(fd).is_some()
    }

    #[test]
    fn a_copy_keeps_the_socket_open() {
        let _turn = turn();
        let (socket, data, control) = entered();
        forget(control);
        assert!(is_control(control) && live(control).is_none());
        // SAFETY: dup touches no memory.
        let copy = unsafe { next::dup(data) };
        duplicate(data, copy);
        close(data);
        assert!(live(data).is_none());
        assert!(std::ptr::eq(live(copy).unwrap(), socket));
        let peer = inode(control);
        close(copy);
        assert!(!is_control(control));
        assert!(!is_open(control) || inode(control) != peer, "the last use closes the control connection");
    }

    #[test]
    fn a_number_reused_behind_our_back_is_no_socket_of_ours() {
        let _turn = turn();
        let (_, data, _) = entered();
        let other = std::fs::File::open("/dev/null").unwrap();
        // SAFETY: dup2 touches no memory.
        unsafe { next::dup2(other.as_raw_fd(), data) };
        assert!(live(data).is_none());
        assert!(known(data).is_none(), "the entry is taken out");
        close(data);
    }

    #[test]
    fn a_control_descriptor_gives_way() {
        let _turn = turn();
        let (socket, data, control) = entered();
        vacate(control);
        let moved = socket.control.load(Relaxed);
        assert_ne!(moved, control);
        assert!(is_control(moved) && !is_control(control));
        // SAFETY: the tests' own descriptor.
        unsafe { next::close(control) };
        close(data);
    }

    #[test]
    fn descriptors_out_of_range_are_nothing() {
        for fd in [-1, c_int::MIN, DESCRIPTORS as c_int, c_int::MAX] {
            assert!(live(fd).is_none());
            forget(fd);
            duplicate(fd, fd);
            vacate(fd);
        }
    }
}
