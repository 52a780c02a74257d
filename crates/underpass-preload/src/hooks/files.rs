//! Files under `/proc/sys/net` that the router has and the kernel has not.
//!
//! A file that is read is a memfd with its text. One that is written is a connection to the router, so what the
//! program writes gets there by whatever call, and after exec too; the calls here wait for the router's word and
//! return its errno. The C library's own stdio does not call our `write`: there `fflush` and `fclose` wait.
#![allow(unsafe_code)]
// Rust 1.99 asks that `open` be variadic, which only its nightly compiler can define; `next` says why a fixed argument
// does as well. Older compilers do not know the lint.
#![allow(unknown_lints, invalid_runtime_symbol_definitions)]

use std::{
    ffi::{CStr, c_char, c_int, c_uint, c_void},
    mem::size_of,
    ptr,
};

use libc::{FILE, mode_t, ssize_t, stat as Status, statx as ExtendedStatus};

use super::returned;
use crate::{
    channel, next,
    protocol::sysctl::{DIRECTORY, FILE as IS_FILE, LOOK, READ, TEXT},
    table,
};

const ROOT: &[u8] = b"/proc/sys/net";
/// A file and a directory of the kernel's that look like ours.
const LIKE_FILE: &CStr = c"/proc/sys/kernel/hostname";
const LIKE_DIRECTORY: &CStr = c"/proc/sys/net";
/// `_IO_ERR_SEEN` of glibc's `struct _IO_FILE`, which its `ferror` reads and its public headers give.
const ERROR_SEEN: c_int = 0x20;

/// The part of a path below `/proc/sys/net`, if a router may have it.
///
/// # Safety
/// `path` is null or a string.
pub unsafe fn below_root<'a>(path: *const c_char) -> Option<&'a [u8]> {
    if path.is_null() || !channel::active() {
        return None;
    }
    // SAFETY: the caller's promise.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes();
    let below = path.strip_prefix(ROOT)?;
    match below {
        [] | [b'/', ..] => {
            let start = below.iter().take_while(|byte| **byte == b'/').count();
            let end = below.iter().rposition(|byte| *byte != b'/').map_or(start, |last| last + 1);
            below.get(start..end)
        }
        _ => None,
    }
}

/// What is at a path.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Nothing of the router's.
    Kernel,
    File,
    Directory,
}

/// Whether a file of this path below /proc/sys/net is the router's, though the kernel has one too: what IOAM
/// traces say of the node, as the router fills them.
fn is_routers_own(below: &[u8]) -> bool {
    let name = below.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    below.starts_with(b"ipv6/") && name.starts_with(b"ioam6_")
}

/// Whether the kernel's file of this path is the one to use. errno is left as it was.
///
/// # Safety
/// `path` is a string.
unsafe fn kernel_has(path: *const c_char) -> bool {
    let errno = next::errno();
    // SAFETY: the caller's promise.
    let has = !channel::alone() && unsafe { next::access(path, libc::F_OK) } == 0;
    next::set_errno(errno);
    has
}

/// # Safety
/// `path` is null or a string.
unsafe fn place<'a>(path: *const c_char) -> (Place, &'a [u8]) {
    // SAFETY: the caller's promise.
    unsafe {
        let Some(below) = below_root(path).filter(|below| !below.is_empty()) else {
            return (Place::Kernel, &[]);
        };
        if !is_routers_own(below) && kernel_has(path) {
            return (Place::Kernel, below);
        }
        let errno = next::errno();
        let place = match channel::query_file(LOOK, below).map(|(answer, _)| answer.b) {
            Ok(IS_FILE) => Place::File,
            Ok(DIRECTORY) => Place::Directory,
            _ => Place::Kernel,
        };
        next::set_errno(errno);
        (place, below)
    }
}

/// A memfd with this text, to be read.
fn text_file(text: &[u8], flags: c_int) -> Result<c_int, c_int> {
    let close_on_exec = if flags & libc::O_CLOEXEC != 0 { libc::MFD_CLOEXEC } else { 0 };
    // SAFETY: memfd_create reads the name, write the text; the others take numbers.
    unsafe {
        let fd = libc::memfd_create(c"sysctl".as_ptr(), close_on_exec | libc::MFD_ALLOW_SEALING);
        if fd < 0 {
            return Err(next::errno());
        }
        if next::write(fd, text.as_ptr().cast(), text.len()) != text.len() as ssize_t {
            next::close(fd);
            return Err(libc::EIO);
        }
        libc::lseek(fd, 0, libc::SEEK_SET);
        let seals = libc::F_SEAL_WRITE | libc::F_SEAL_GROW | libc::F_SEAL_SHRINK | libc::F_SEAL_SEAL;
        next::fcntl(fd, libc::F_ADD_SEALS, ptr::without_provenance_mut(seals as usize));
        Ok(fd)
    }
}

/// Opens a file of the router's. `None`: it has none there.
///
/// # Safety
/// `path` is null or a string.
unsafe fn open_ours(path: *const c_char, flags: c_int) -> Option<Result<c_int, c_int>> {
    // SAFETY: the caller's promise.
    let (place, below) = unsafe { place(path) };
    let writes = flags & libc::O_ACCMODE;
    match place {
        Place::Kernel => None,
        Place::Directory if writes != libc::O_RDONLY => Some(Err(libc::EISDIR)),
        // It can be listed, but has no descriptor.
        Place::Directory => Some(Err(libc::EACCES)),
        Place::File => Some(match writes {
            _ if flags & libc::O_DIRECTORY != 0 => Err(libc::ENOTDIR),
            _ if flags & libc::O_CREAT != 0 && flags & libc::O_EXCL != 0 => Err(libc::EEXIST),
            libc::O_RDONLY => channel::query_file(READ, below).and_then(|(_, text)| text_file(&text, flags)),
            libc::O_WRONLY => channel::sysctl_writer(below, flags),
            // A memfd has no end that could wait for the router, a socket nothing to be read.
            _ => Err(libc::EINVAL),
        }),
    }
}

/// Writes to a file of the router's and waits for its word.
///
/// # Safety
/// `bytes` points at `length` bytes.
pub unsafe fn write_text(fd: c_int, bytes: *const c_void, length: usize) -> Result<ssize_t, c_int> {
    if length == 0 {
        return Ok(0);
    }
    channel::drain(fd);
    // SAFETY: the caller's promise.
    let sent = unsafe { next::send(fd, bytes, length.min(TEXT + 1), libc::MSG_NOSIGNAL) };
    if sent < 0 {
        return Err(libc::EIO);
    }
    channel::verdict(fd).map(|()| length as ssize_t)
}

/// The file of the router's that a stream writes to.
///
/// # Safety
/// `stream` is null or a stream.
unsafe fn writer(stream: *mut FILE) -> Option<c_int> {
    if stream.is_null() || !table::has_writers() {
        return None;
    }
    // SAFETY: the caller's promise.
    let fd = unsafe { libc::fileno(stream) };
    table::is_writer(fd).then_some(fd)
}

/// # Safety
/// As fflush(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fflush(stream: *mut FILE) -> c_int {
    // SAFETY: the caller's promise; a FILE begins with the int of its flags.
    unsafe {
        let flushed = next::fflush(stream);
        let Some(fd) = writer(stream).filter(|_| flushed == 0) else { return flushed };
        channel::settle(fd).map_or_else(
            |errno| {
                *stream.cast::<c_int>() |= ERROR_SEEN;
                next::set_errno(errno);
                libc::EOF
            },
            |()| 0,
        )
    }
}

/// # Safety
/// As fclose(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fclose(stream: *mut FILE) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        let Some(fd) = writer(stream) else { return next::fclose(stream) };
        let flushed = fflush(stream);
        let errno = next::errno();
        table::forget(fd);
        let closed = next::fclose(stream);
        if flushed != 0 {
            next::set_errno(errno);
            return libc::EOF;
        }
        closed
    }
}

/// # Safety
/// `path` is a string, `mode` one of fopen(3).
unsafe fn open_stream(path: *const c_char, mode: *const c_char) -> Option<Result<*mut FILE, c_int>> {
    // SAFETY: the caller's promise.
    unsafe {
        below_root(path)?;
        let letters = CStr::from_ptr(mode).to_bytes();
        let flags = match (letters.first(), letters.contains(&b'+')) {
            (_, true) => libc::O_RDWR,
            (Some(b'r'), _) => libc::O_RDONLY,
            _ => libc::O_WRONLY,
        };
        let close_on_exec = if letters.contains(&b'e') { libc::O_CLOEXEC } else { 0 };
        Some(open_ours(path, flags | close_on_exec)?.and_then(|fd| {
            let stream = libc::fdopen(fd, mode);
            if stream.is_null() { Err(next::errno()) } else { Ok(stream) }
        }))
    }
}

macro_rules! opens {
    ($($name:ident($($argument:ident: $type:ty),*), $path:ident, $flags:expr;)*) => {
        $(
            /// # Safety
            /// As the C library's function of this name. Variadic in C where it takes a mode; see `next` for why
            /// another fixed argument stands for it.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($argument: $type),*) -> c_int {
                // SAFETY: the caller's promise.
                unsafe {
                    match open_ours($path, $flags) {
                        Some(opened) => returned(opened),
                        None => next::$name($($argument),*),
                    }
                }
            }
        )*
    };
}

opens! {
    open(path: *const c_char, flags: c_int, mode: mode_t), path, flags;
    open64(path: *const c_char, flags: c_int, mode: mode_t), path, flags;
    __open_2(path: *const c_char, flags: c_int), path, flags;
    __open64_2(path: *const c_char, flags: c_int), path, flags;
    openat(at: c_int, path: *const c_char, flags: c_int, mode: mode_t), path, flags;
    openat64(at: c_int, path: *const c_char, flags: c_int, mode: mode_t), path, flags;
    __openat_2(at: c_int, path: *const c_char, flags: c_int), path, flags;
    __openat64_2(at: c_int, path: *const c_char, flags: c_int), path, flags;
    creat(path: *const c_char, mode: mode_t), path, libc::O_WRONLY | libc::O_CREAT;
    creat64(path: *const c_char, mode: mode_t), path, libc::O_WRONLY | libc::O_CREAT;
}

macro_rules! streams {
    ($($name:ident)*) => {
        $(
            /// # Safety
            /// As fopen(3).
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name(path: *const c_char, mode: *const c_char) -> *mut FILE {
                // SAFETY: the caller's promise.
                match unsafe { open_stream(path, mode) } {
                    Some(Ok(stream)) => stream,
                    Some(Err(errno)) => {
                        next::set_errno(errno);
                        ptr::null_mut()
                    }
                    // SAFETY: the caller's promise.
                    None => unsafe { next::$name(path, mode) },
                }
            }
        )*
    };
}

streams! { fopen fopen64 }

/// The path to ask the kernel about: one of its own that is like ours, where the path is ours.
///
/// # Safety
/// `path` is null or a string.
unsafe fn like(path: *const c_char) -> *const c_char {
    // SAFETY: the caller's promise.
    match unsafe { place(path) }.0 {
        Place::Kernel => path,
        Place::File => LIKE_FILE.as_ptr(),
        Place::Directory => LIKE_DIRECTORY.as_ptr(),
    }
}

macro_rules! asks {
    ($($name:ident($($before:ident: $before_type:ty)?; $($after:ident: $after_type:ty),*);)*) => {
        $(
            /// # Safety
            /// As the C library's function of this name.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name(
                $($before: $before_type,)? path: *const c_char, $($after: $after_type),*
            ) -> c_int {
                // SAFETY: the caller's promise.
                unsafe { next::$name($($before,)? like(path), $($after),*) }
            }
        )*
    };
}

asks! {
    access(; mode: c_int);
    eaccess(; mode: c_int);
    euidaccess(; mode: c_int);
    faccessat(at: c_int; mode: c_int, flags: c_int);
    stat(; status: *mut Status);
    stat64(; status: *mut Status);
    lstat(; status: *mut Status);
    lstat64(; status: *mut Status);
    fstatat(at: c_int; status: *mut Status, flags: c_int);
    fstatat64(at: c_int; status: *mut Status, flags: c_int);
    statx(at: c_int; flags: c_int, mask: c_uint, status: *mut ExtendedStatus);
}

/// The path of a file of the router's without double slashes, where the caller has room for it or in memory of
/// its own.
///
/// # Safety
/// As realpath(3).
unsafe fn real_path(path: *const c_char, to: *mut c_char) -> Option<*mut c_char> {
    // SAFETY: the caller's promise: `to` is null or has room for PATH_MAX bytes, of which a path of the router's
    // needs fewer; strdup copies a string.
    unsafe {
        let (place, below) = place(path);
        if place == Place::Kernel {
            return None;
        }
        let mut full = [ROOT, b"/", below].concat();
        full.dedup_by(|a, b| *a == b'/' && *b == b'/');
        full.push(0);
        if to.is_null() {
            return Some(libc::strdup(full.as_ptr().cast()));
        }
        ptr::copy_nonoverlapping(full.as_ptr().cast(), to, full.len());
        Some(to)
    }
}

/// # Safety
/// As realpath(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn realpath(path: *const c_char, to: *mut c_char) -> *mut c_char {
    // SAFETY: the caller's promise.
    unsafe { real_path(path, to).unwrap_or_else(|| next::realpath(path, to)) }
}

/// # Safety
/// As realpath(3); `room` is how large the compiler knows `to` to be.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __realpath_chk(path: *const c_char, to: *mut c_char, room: usize) -> *mut c_char {
    // SAFETY: the caller's promise.
    unsafe { real_path(path, to).unwrap_or_else(|| next::__realpath_chk(path, to, room)) }
}

// `stat` and `stat64` are one where registers have 64 bits; `next` and the table take them for each other.
#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<Status>() == size_of::<libc::stat64>());
