//! The functions that stand in front of the C library's, one file a group.

mod ancillary;
mod calls;
mod descriptors;
mod files;
mod interfaces;
mod namespaces;
mod sockets;
mod transfer;

use std::ffi::c_int;

use crate::next;

/// A result as the C library returns it: `Err` becomes -1 with errno.
fn returned<T: From<i8>>(result: Result<T, c_int>) -> T {
    result.unwrap_or_else(|errno| {
        next::set_errno(errno);
        T::from(-1)
    })
}
