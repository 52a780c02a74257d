//! System calls that a program makes by their numbers.
#![allow(unsafe_code)]

use std::{ffi::c_long, ptr};

use crate::{channel, next, programs};

/// # Safety
/// As syscall(2).
///
/// It is variadic in C. On Linux ABIs with 64-bit registers its arguments are where those of a function with seven
/// fixed ones are; those that the caller has not given are whatever is there, and the kernel does not look at them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syscall(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    // SAFETY: the caller's promise.
    unsafe {
        if number != libc::SYS_bpf || !channel::active() {
            return next::syscall(number, a, b, c, d, e, f);
        }
        let attribute = ptr::with_exposed_provenance(b);
        if let Some(map) = programs::map(a, attribute, c) {
            return map;
        }
        let result = next::syscall(number, a, b, c, d, e, f);
        if result >= 0 {
            programs::called(a, attribute, c, result);
        }
        result
    }
}
