//! Descriptors that the kernel hands to this process.
#![allow(unsafe_code)]

use std::{
    io::IoSliceMut,
    os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd},
};

use nix::{
    cmsg_space,
    errno::Errno,
    sys::socket::{ControlMessageOwned, MsgFlags, SockFlag, accept4, recvmsg},
};

use crate::numbers::MOST;

fn own(raw: RawFd) -> OwnedFd {
    // SAFETY: the callers below have just got the descriptor from the kernel, and nobody else has it.
    unsafe { OwnedFd::from_raw_fd(raw) }
}

/// The next connection of a listener.
pub fn accept(listener: &OwnedFd) -> Result<OwnedFd, Errno> {
    accept4(listener.as_raw_fd(), SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK).map(own)
}

/// Receives a datagram and the descriptors that came with it. The length is its own, even if there was less
/// room.
pub fn receive(socket: &impl AsFd, bytes: &mut [u8]) -> Result<(usize, Vec<OwnedFd>), Errno> {
    let mut room = cmsg_space!([RawFd; MOST]);
    let mut slices = [IoSliceMut::new(bytes)];
    let flags = MsgFlags::MSG_CMSG_CLOEXEC | MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_TRUNC;
    let received = recvmsg::<()>(socket.as_fd().as_raw_fd(), &mut slices, Some(&mut room), flags)?;
    let mut descriptors = Vec::new();
    for ancillary in received.cmsgs()? {
        if let ControlMessageOwned::ScmRights(raw) = ancillary {
            descriptors.extend(raw.into_iter().map(own));
        }
    }
    Ok((received.bytes, descriptors))
}
