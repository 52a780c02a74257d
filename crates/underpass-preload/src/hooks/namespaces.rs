//! Network namespaces that get names.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_ulong, c_void};

use crate::{auto, next};

/// # Safety
/// As mount(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mount(
    source: *const c_char,
    target: *const c_char,
    kind: *const c_char,
    flags: c_ulong,
    data: *const c_void,
) -> c_int {
    // SAFETY: the caller's promise; the kernel has read both texts where it has mounted by them.
    unsafe {
        let done = next::mount(source, target, kind, flags, data);
        if done == 0 && flags & libc::MS_BIND != 0 && !source.is_null() && !target.is_null() {
            auto::mounted(CStr::from_ptr(source), CStr::from_ptr(target));
        }
        done
    }
}
