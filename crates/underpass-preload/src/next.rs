//! The functions that ours stand in front of: the next of that name in the loader's order.
#![allow(unsafe_code)]

use std::{
    ffi::{CStr, c_char, c_int, c_long, c_uint, c_ulong, c_void},
    mem::transmute,
    ptr::null_mut,
    sync::atomic::{AtomicPtr, Ordering},
};

use libc::{msghdr, sockaddr, socklen_t, ssize_t};

/// What a call returns when the C library has no such function; errno is then ENOSYS.
trait Missing {
    const VALUE: Self;
}

impl Missing for c_int {
    const VALUE: Self = -1;
}

impl Missing for ssize_t {
    const VALUE: Self = -1;
}

impl Missing for c_long {
    const VALUE: Self = -1;
}

impl Missing for c_uint {
    const VALUE: Self = 0;
}

impl Missing for *mut libc::FILE {
    const VALUE: Self = null_mut();
}

impl Missing for *mut c_char {
    const VALUE: Self = null_mut();
}

/// Sets the calling thread's errno.
pub fn set_errno(errno: c_int) {
    // SAFETY: __errno_location returns the address of the calling thread's errno, valid as long as it runs.
    unsafe { *libc::__errno_location() = errno }
}

/// The calling thread's errno.
pub fn errno() -> c_int {
    // SAFETY: as in `set_errno`.
    unsafe { *libc::__errno_location() }
}

/// Finds `name` behind this library and keeps its address in `cache`.
fn find(cache: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
    let known = cache.load(Ordering::Relaxed);
    if !known.is_null() {
        return known;
    }
    // SAFETY: dlsym reads `name`, which ends with a NUL.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    cache.store(found, Ordering::Relaxed);
    found
}

macro_rules! next {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {
        $(
            /// # Safety
            /// As the C library's function of this name.
            pub unsafe fn $name($($argument: $type),*) -> $result {
                static ADDRESS: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
                let Ok(name) = CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) else {
                    return <$result as Missing>::VALUE;
                };
                let address = find(&ADDRESS, name);
                if address.is_null() {
                    set_errno(libc::ENOSYS);
                    return <$result as Missing>::VALUE;
                }
                // SAFETY: the loader gave this address for the C library's function of this name, whose
                // prototype is the one written here. Those that are variadic in C (fcntl, ioctl, syscall) take
                // their optional arguments where fixed ones would be, on every Linux ABI with
                // 64-bit registers.
                let function: unsafe extern "C" fn($($type),*) -> $result = unsafe { transmute(address) };
                // SAFETY: the caller's promise.
                unsafe { function($($argument),*) }
            }
        )*
    };
}

next! {
    syscall(
        number: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize
    ) -> c_long;
    socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    bind(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int;
    connect(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int;
    getsockname(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int;
    getpeername(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int;
    setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, length: socklen_t) -> c_int;
    getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, length: *mut socklen_t) -> c_int;
    sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
    sendmmsg(fd: c_int, messages: *mut libc::mmsghdr, count: c_uint, flags: c_int) -> c_int;
    sendto(
        fd: c_int, bytes: *const c_void, length: usize, flags: c_int, address: *const sockaddr,
        address_length: socklen_t
    ) -> ssize_t;
    send(fd: c_int, bytes: *const c_void, length: usize, flags: c_int) -> ssize_t;
    write(fd: c_int, bytes: *const c_void, length: usize) -> ssize_t;
    writev(fd: c_int, vectors: *const libc::iovec, count: c_int) -> ssize_t;
    recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
    recvmmsg(
        fd: c_int, messages: *mut libc::mmsghdr, count: c_uint, flags: c_int, timeout: *mut libc::timespec
    ) -> c_int;
    recvfrom(
        fd: c_int, bytes: *mut c_void, length: usize, flags: c_int, address: *mut sockaddr,
        address_length: *mut socklen_t
    ) -> ssize_t;
    __recvfrom_chk(
        fd: c_int, bytes: *mut c_void, length: usize, room: usize, flags: c_int, address: *mut sockaddr,
        address_length: *mut socklen_t
    ) -> ssize_t;
    recv(fd: c_int, bytes: *mut c_void, length: usize, flags: c_int) -> ssize_t;
    __recv_chk(fd: c_int, bytes: *mut c_void, length: usize, room: usize, flags: c_int) -> ssize_t;
    read(fd: c_int, bytes: *mut c_void, length: usize) -> ssize_t;
    __read_chk(fd: c_int, bytes: *mut c_void, length: usize, room: usize) -> ssize_t;
    readv(fd: c_int, vectors: *const libc::iovec, count: c_int) -> ssize_t;
    epoll_ctl(epoll: c_int, operation: c_int, fd: c_int, event: *mut libc::epoll_event) -> c_int;
    close(fd: c_int) -> c_int;
    close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int;
    dup(fd: c_int) -> c_int;
    dup2(fd: c_int, to: c_int) -> c_int;
    dup3(fd: c_int, to: c_int, flags: c_int) -> c_int;
    fcntl(fd: c_int, command: c_int, argument: *mut c_void) -> c_int;
    fcntl64(fd: c_int, command: c_int, argument: *mut c_void) -> c_int;
    ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int;
    open(path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int;
    open64(path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int;
    __open_2(path: *const c_char, flags: c_int) -> c_int;
    __open64_2(path: *const c_char, flags: c_int) -> c_int;
    openat(at: c_int, path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int;
    openat64(at: c_int, path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int;
    __openat_2(at: c_int, path: *const c_char, flags: c_int) -> c_int;
    __openat64_2(at: c_int, path: *const c_char, flags: c_int) -> c_int;
    creat(path: *const c_char, mode: libc::mode_t) -> c_int;
    creat64(path: *const c_char, mode: libc::mode_t) -> c_int;
    fopen(path: *const c_char, mode: *const c_char) -> *mut libc::FILE;
    fopen64(path: *const c_char, mode: *const c_char) -> *mut libc::FILE;
    fflush(stream: *mut libc::FILE) -> c_int;
    fclose(stream: *mut libc::FILE) -> c_int;
    realpath(path: *const c_char, to: *mut c_char) -> *mut c_char;
    __realpath_chk(path: *const c_char, to: *mut c_char, room: usize) -> *mut c_char;
    access(path: *const c_char, mode: c_int) -> c_int;
    eaccess(path: *const c_char, mode: c_int) -> c_int;
    euidaccess(path: *const c_char, mode: c_int) -> c_int;
    faccessat(at: c_int, path: *const c_char, mode: c_int, flags: c_int) -> c_int;
    stat(path: *const c_char, status: *mut libc::stat) -> c_int;
    stat64(path: *const c_char, status: *mut libc::stat) -> c_int;
    lstat(path: *const c_char, status: *mut libc::stat) -> c_int;
    lstat64(path: *const c_char, status: *mut libc::stat) -> c_int;
    fstatat(at: c_int, path: *const c_char, status: *mut libc::stat, flags: c_int) -> c_int;
    fstatat64(at: c_int, path: *const c_char, status: *mut libc::stat, flags: c_int) -> c_int;
    statx(at: c_int, path: *const c_char, flags: c_int, mask: c_uint, status: *mut libc::statx) -> c_int;
    mount(
        source: *const c_char, target: *const c_char, kind: *const c_char, flags: c_ulong, data: *const c_void
    ) -> c_int;
    if_nametoindex(name: *const c_char) -> c_uint;
    if_indextoname(index: c_uint, name: *mut c_char) -> *mut c_char;
}
