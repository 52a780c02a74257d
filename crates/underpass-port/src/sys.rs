//! The system calls that ports need, each with its error as an [`io::Error`].

#![allow(unsafe_code)]

use std::ffi::CString;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::time::Duration;
use std::{io, mem, thread};

/// The error of a call that returns -1 for one.
pub(crate) fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// What `open` opens. If it is taken, again and again for a fifth of a second: the kernel, or a process that is being
/// made, lets go of what was closed a moment later.
pub(crate) fn soon<T>(open: impl Fn() -> io::Result<T>) -> io::Result<T> {
    let mut patience = 200;
    loop {
        match open() {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) && patience != 0 => {
                patience -= 1;
                thread::sleep(Duration::from_millis(1));
            }
            opened => return opened,
        }
    }
}

/// socket(2), closed on exec.
pub(crate) fn socket(family: i32, kind: i32, protocol: i32) -> io::Result<OwnedFd> {
    // SAFETY: no memory is passed; the descriptor is new and ours.
    unsafe {
        let fd = check(libc::socket(family, kind | libc::SOCK_CLOEXEC, protocol))?;
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

/// setsockopt(2) with a value of a plain C type.
pub(crate) fn set_option<T>(fd: RawFd, level: i32, name: i32, value: &T) -> io::Result<()> {
    let len = mem::size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel reads `len` bytes of `value`.
    check(unsafe { libc::setsockopt(fd, level, name, (&raw const *value).cast(), len) }).map(drop)
}

/// getsockopt(2) into a plain C type, any bytes of which are valid; what the kernel does not fill stays.
pub(crate) fn get_option<T: Copy>(fd: RawFd, level: i32, name: i32, mut value: T) -> io::Result<T> {
    let mut len = mem::size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes into `value`, a C struct of integers.
    check(unsafe { libc::getsockopt(fd, level, name, (&raw mut value).cast(), &raw mut len) })?;
    Ok(value)
}

/// bind(2) to an address of a plain C type.
pub(crate) fn bind<T>(fd: RawFd, address: &T) -> io::Result<()> {
    let len = mem::size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel reads `len` bytes of `address`.
    check(unsafe { libc::bind(fd, (&raw const *address).cast(), len) }).map(drop)
}

/// The address of a device, and of the frames of an EtherType there: packet(7).
pub(crate) fn link_address(ifindex: u32, protocol: u16) -> libc::sockaddr_ll {
    // SAFETY: a C struct of integers, valid with all bytes zero.
    let mut address: libc::sockaddr_ll = unsafe { mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol.to_be();
    address.sll_ifindex = ifindex.cast_signed();
    address
}

/// recvfrom(2) of a socket of devices: how many bytes there were, and from where.
pub(crate) fn receive_from(fd: RawFd, bytes: &mut [u8]) -> io::Result<(usize, libc::sockaddr_ll)> {
    let mut from = link_address(0, 0);
    let mut len = mem::size_of_val(&from) as libc::socklen_t;
    // SAFETY: the kernel writes at most as many bytes as there are into `bytes`, and at most `len` into `from`.
    let count = unsafe {
        libc::recvfrom(fd, bytes.as_mut_ptr().cast(), bytes.len(), 0, (&raw mut from).cast(), &raw mut len)
    };
    if count < 0 { Err(io::Error::last_os_error()) } else { Ok((count.cast_unsigned(), from)) }
}

/// sendto(2) by a socket of devices.
pub(crate) fn send_to(fd: RawFd, bytes: &[u8], to: &libc::sockaddr_ll) -> io::Result<()> {
    let len = mem::size_of_val(to) as libc::socklen_t;
    // SAFETY: the kernel reads `bytes`, and `len` bytes of `to`.
    let count =
        unsafe { libc::sendto(fd, bytes.as_ptr().cast(), bytes.len(), 0, (&raw const *to).cast(), len) };
    if count < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// How many bytes of whole pages from an address on are not in memory, as they have not been used yet. All of them, where
/// the kernel does not say.
pub(crate) fn untouched(start: NonNull<u8>, len: usize) -> usize {
    const PAGE: usize = 4096;
    let mut pages = vec![0_u8; len.div_ceil(PAGE)];
    // SAFETY: the kernel reads no memory there, and writes a byte for each page into the vector.
    unsafe { libc::mincore(start.as_ptr().cast(), len, pages.as_mut_ptr()) };
    pages.iter().filter(|page| **page & 1 == 0).count() * PAGE
}

/// Has the kernel put memory behind every page from an address on: 2 MiB a call, so that between them others run on the
/// processor. A single call that clears hundreds of megabytes lets nobody else run for as long as it takes.
pub(crate) fn touch(start: NonNull<u8>, len: usize) {
    const PIECE: usize = 2 << 20;
    for from in (0..len).step_by(PIECE) {
        // SAFETY: within the region, of which nothing is read and nothing changed.
        let done = unsafe {
            let at = start.as_ptr().add(from).cast();
            libc::madvise(at, PIECE.min(len - from), libc::MADV_POPULATE_WRITE)
        };
        if done != 0 {
            // Before Linux 5.14, or no more memory: what comes next says which.
            return;
        }
    }
}

/// A mapping of a descriptor, which is unmapped when it is dropped.
pub(crate) struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is memory like any other; who reads and writes it in which order is up to those who
// hold it.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Maps `len` bytes from `offset` on, shared, to be read and written.
    pub(crate) fn new(fd: RawFd, len: usize, offset: i64) -> io::Result<Self> {
        let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe {
            libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, fd, offset)
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        NonNull::new(start.cast()).map(|start| Self { start, len }).ok_or(io::ErrorKind::InvalidData.into())
    }

    /// The address at `offset`; `None` if `len` bytes from there on are not all in the mapping.
    pub(crate) fn at(&self, offset: usize, len: usize) -> Option<NonNull<u8>> {
        let end = offset.checked_add(len)?;
        // SAFETY: within the mapping.
        (end <= self.len).then(|| unsafe { self.start.add(offset) })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this length, and whoever got an address from `at` holds the mapping.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// The index of the network device of this name in the current namespace.
///
/// # Errors
/// ENODEV: there is none.
pub fn index_of(name: &str) -> io::Result<u32> {
    let name = CString::new(name)?;
    // SAFETY: a string with a zero at its end.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => Err(io::Error::last_os_error()),
        index => Ok(index),
    }
}

/// `SIOCETHTOOL`, include/uapi/linux/sockios.h.
const SIOCETHTOOL: libc::c_ulong = 0x8946;

/// An ethtool request; it and its answer are a C struct of integers that starts with the command.
fn ethtool<T>(name: &str, data: &mut T) -> io::Result<()> {
    let socket = socket(libc::AF_INET, libc::SOCK_DGRAM, 0)?;
    let mut request = ifreq(name)?;
    request.ifr_ifru.ifru_data = (&raw mut *data).cast();
    // SAFETY: the request points to a struct of the length that its command has.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL as _, &raw mut request) }).map(drop)
}

/// A `struct ifreq` with this name and all else zero.
///
/// # Errors
/// The name is too long.
pub(crate) fn ifreq(name: &str) -> io::Result<libc::ifreq> {
    // SAFETY: a C struct of integers and pointers, valid with all bytes zero.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    if name.len() >= request.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    Ok(request)
}

/// The name of a device's driver, as ethtool says it; empty if it does not.
pub(crate) fn driver_of(name: &str) -> String {
    /// `ETHTOOL_GDRVINFO` and `struct ethtool_drvinfo`.
    #[repr(C)]
    struct Info {
        command: u32,
        driver: [u8; 32],
        rest: [u8; 160],
    }
    let mut info = Info { command: 3, driver: [0; 32], rest: [0; 160] };
    if ethtool(name, &mut info).is_err() {
        return String::new();
    }
    let end = info.driver.iter().position(|byte| *byte == 0).unwrap_or(info.driver.len());
    String::from_utf8_lossy(info.driver.get(..end).unwrap_or_default()).into_owned()
}

/// How many megabits a second a device passes, as ethtool says it.
pub fn speed_of(name: &str) -> Option<u32> {
    /// `ETHTOOL_GSET` and `struct ethtool_cmd`.
    #[repr(C)]
    #[derive(Default)]
    struct Settings {
        command: u32,
        modes: [u32; 2],
        speed: u16,
        kinds: [u8; 6],
        coalesces: [u32; 2],
        speed_above: u16,
        crossed: [u8; 2],
        rest: [u32; 3],
    }
    let mut settings = Settings { command: 1, ..Settings::default() };
    ethtool(name, &mut settings).ok()?;
    let speed = u32::from(settings.speed_above) << 16 | u32::from(settings.speed);
    Some(speed).filter(|speed| !matches!(*speed, 0 | u32::MAX))
}

/// Whether the VLAN tags of what a device receives are in the frames that XDP sees: its driver does not take them off, nor does
/// the other end of a veth pair, of which the device does not say it.
pub(crate) fn tags_are_in_frames(name: &str) -> bool {
    /// `ETHTOOL_GFLAGS` and `ETH_FLAG_RXVLAN`: include/uapi/linux/ethtool.h.
    const FLAGS: u32 = 0x25;
    const TAKES_OFF: u32 = 1 << 8;
    let mut flags = Value { command: FLAGS, value: 0 };
    driver_of(name) != "veth" && ethtool(name, &mut flags).is_ok() && flags.value & TAKES_OFF == 0
}

/// `struct ethtool_value`.
#[repr(C)]
struct Value {
    command: u32,
    value: u32,
}

/// How many processors the machine may have: above the largest number of one.
pub(crate) fn processors() -> usize {
    let possible = std::fs::read_to_string("/sys/devices/system/cpu/possible").unwrap_or_default();
    // "0-3", "0,2-7"
    let last = possible.trim().rsplit([',', '-']).next().and_then(|last| last.parse::<usize>().ok());
    let online = || std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    last.map_or_else(online, |last| last + 1)
}

/// How many receive queues a device has in use.
pub(crate) fn receive_queues(name: &str) -> u32 {
    /// `ETHTOOL_GCHANNELS` and `struct ethtool_channels`.
    #[repr(C)]
    #[derive(Default)]
    struct Channels {
        command: u32,
        most: [u32; 4],
        receive: u32,
        transmit: u32,
        other: u32,
        combined: u32,
    }
    let mut channels = Channels { command: 0x3c, ..Channels::default() };
    match ethtool(name, &mut channels) {
        Ok(()) => (channels.receive + channels.combined).max(1),
        Err(_) => 1,
    }
}

/// Switches generic receive offload on. A veth device then receives in polls of its own, as a network card
/// does.
pub(crate) fn receive_offload(name: &str) -> io::Result<()> {
    offload(name, RECEIVE, 1)
}

/// Switches off that a device of the current namespace cuts TCP segments, that what it sends is cut as late as
/// can be, and that what it receives is coalesced: `ethtool -K NAME tso off gso off gro off`.
///
/// # Errors
/// Those of `SIOCETHTOOL`: ENODEV, EPERM.
pub fn without_offloads(name: &str) -> io::Result<()> {
    [TCP_SEGMENTATION, SEGMENTATION, RECEIVE].into_iter().try_for_each(|command| offload(name, command, 0))
}

/// `ETHTOOL_STSO`, `ETHTOOL_SGSO`, `ETHTOOL_SGRO`: include/uapi/linux/ethtool.h.
const TCP_SEGMENTATION: u32 = 0x1f;
const SEGMENTATION: u32 = 0x24;
const RECEIVE: u32 = 0x2c;

/// Sets one of them.
fn offload(name: &str, command: u32, value: u32) -> io::Result<()> {
    ethtool(name, &mut Value { command, value })
}
