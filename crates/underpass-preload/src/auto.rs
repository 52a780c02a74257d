//! `underpass exec --auto`, which starts a router in each network namespace that gets a name, and ends it with the name.
#![allow(unsafe_code)]

use std::{
    ffi::{CStr, c_int, c_void},
    os::unix::ffi::OsStringExt,
    sync::OnceLock,
};

use libc::{sockaddr_un, ssize_t};

use crate::{channel, next, protocol::AUTO_VARIABLE};

/// Where it listens.
fn keeper() -> Option<&'static sockaddr_un> {
    static KEEPER: OnceLock<Option<sockaddr_un>> = OnceLock::new();
    let path = || std::env::var_os(AUTO_VARIABLE).map(OsStringExt::into_vec);
    let found = KEEPER.get_or_init(|| Some(channel::address(&path().filter(|path| !path.is_empty())?)));
    found.as_ref()
}

/// Waits until the router of a network namespace is ready, if the namespace has one or is to have one.
///
/// # Errors
/// There should be one, and it could not be started.
pub fn settle(namespace: u64) -> Result<(), c_int> {
    keeper().map_or(Ok(()), |keeper| ask(keeper, namespace, &[]))
}

/// Takes note of a bind mount that has been made: by one, a network namespace gets a name.
pub fn mounted(source: &CStr, target: &CStr) {
    let Some(keeper) = keeper().filter(|_| source.to_bytes().ends_with(b"/ns/net")) else { return };
    if let Some(namespace) = channel::inode_at(target) {
        // What has become of the router is reported to those who want to reach it.
        let _ = ask(keeper, namespace, target.to_bytes());
    }
}

fn ask(keeper: &sockaddr_un, namespace: u64, path: &[u8]) -> Result<(), c_int> {
    // Where `underpass exec` has ended, there are no routers of its own any more.
    let Ok(fd) = channel::connect_to(keeper) else { return Ok(()) };
    let question = [&namespace.to_ne_bytes()[..], path].concat();
    let mut answer = [0; 4];
    // SAFETY: send reads and recv writes as many bytes as there are; the descriptor is ours.
    let received = unsafe {
        next::send(fd, question.as_ptr().cast(), question.len(), libc::MSG_NOSIGNAL);
        let received = loop {
            let received = next::recv(fd, answer.as_mut_ptr().cast::<c_void>(), answer.len(), 0);
            if received >= 0 || next::errno() != libc::EINTR {
                break received;
            }
        };
        next::close(fd);
        received
    };
    match c_int::from_ne_bytes(answer) {
        errno if received == answer.len() as ssize_t && errno != 0 => Err(errno),
        _ => Ok(()),
    }
}
