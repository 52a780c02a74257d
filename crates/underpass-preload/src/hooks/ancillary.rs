//! Control messages of what has been received, made those of a socket of the kernel: NETLINK_PKTINFO, and the kernel as the
//! sender.
#![allow(unsafe_code)]

use std::{ffi::c_int, ptr, slice, sync::atomic::Ordering::Relaxed};

use libc::{cmsghdr, msghdr, ssize_t};

use crate::{
    next,
    protocol::{MARK, marked},
    table::Socket,
};

/// recvmsg(2) of a data socket. The mark at the end of a datagram becomes a control message.
///
/// # Safety
/// `message` is a valid message to receive.
pub unsafe fn receive(fd: c_int, socket: &Socket, message: &mut msghdr, flags: c_int) -> ssize_t {
    let (room, is_marked) = (message.msg_controllen, socket.marks.load(Relaxed));
    // SAFETY: the caller's promise; control messages are looked for where the kernel has written them.
    unsafe {
        let group = match is_marked.then(|| look_for_mark(fd, flags)) {
            Some(Err(ended)) => return ended,
            Some(Ok(group)) => group,
            None => None,
        };
        let length = next::recvmsg(fd, message, flags);
        if length < 0 {
            return length;
        }
        comes_from_the_kernel(message);
        let Some((group, whole)) = group else { return length };
        if socket.options.load(Relaxed) >> libc::NETLINK_PKTINFO & 1 != 0 {
            put_group(message, room, group);
        }
        let shown = whole - MARK;
        let vectors = match message.msg_iovlen {
            0 => &[],
            count => slice::from_raw_parts(message.msg_iov, count),
        };
        if vectors.iter().fold(0usize, |sum, vector| sum.saturating_add(vector.iov_len)) >= shown {
            message.msg_flags &= !libc::MSG_TRUNC; // if anything did not fit, the mark
        }
        length.min(shown as ssize_t)
    }
}

/// The group that the next datagram is marked with and its length with the mark; `None` for one that was sent before marks
/// were asked for. Waits as a receive with `flags` does.
///
/// # Errors
/// What the receive gives where there is no datagram.
fn look_for_mark(fd: c_int, flags: c_int) -> Result<Option<(u32, usize)>, ssize_t> {
    let peek = libc::MSG_PEEK | flags & libc::MSG_DONTWAIT;
    // SAFETY: at most as many bytes are written as the buffer has.
    unsafe {
        let length = next::recv(fd, ptr::null_mut(), 0, peek | libc::MSG_TRUNC);
        if length <= 0 {
            return Err(length);
        }
        let mut bytes = vec![0u8; length as usize];
        let length = next::recv(fd, bytes.as_mut_ptr().cast(), bytes.len(), peek);
        if length <= 0 {
            return Err(length);
        }
        let datagram = bytes.get(..length as usize).unwrap_or_default();
        Ok(marked(datagram).map(|group| (group, datagram.len())))
    }
}

/// Makes the sender that SO_PASSCRED shows the kernel, which has process id 0: programs refuse messages of others.
///
/// # Safety
/// `message` has been received.
unsafe fn comes_from_the_kernel(message: &mut msghdr) {
    // SAFETY: the headers are those that the kernel has written, and each says how long its data is.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while let Some(found) = header.as_ref() {
            let (level, kind, length) = (found.cmsg_level, found.cmsg_type, found.cmsg_len);
            if (level, kind) == (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) {
                let data = length - libc::CMSG_LEN(0) as usize;
                ptr::write_bytes(libc::CMSG_DATA(header), 0, data);
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
}

/// Puts the control message that says to which group a datagram went before the others, if there is `room` for it.
///
/// # Safety
/// `message` has been received with `room` bytes of room for control messages.
unsafe fn put_group(message: &mut msghdr, room: usize, group: u32) {
    let used = message.msg_controllen;
    // SAFETY: CMSG_LEN and CMSG_SPACE only compute; what is written lies inside the room.
    unsafe {
        let (length, space) = (libc::CMSG_LEN(4) as usize, libc::CMSG_SPACE(4) as usize);
        if message.msg_control.is_null() || room < length {
            message.msg_flags |= libc::MSG_CTRUNC;
            return;
        }
        let place = message.msg_control.cast::<u8>();
        let mut end = room.min(space);
        if used > 0 && room >= space + used {
            ptr::copy(place, place.add(space), used);
            end += used;
        } else if used > 0 {
            message.msg_flags |= libc::MSG_CTRUNC;
        }
        let header = place.cast::<cmsghdr>();
        header.write_unaligned(cmsghdr {
            cmsg_len: length as _,
            cmsg_level: libc::SOL_NETLINK,
            cmsg_type: libc::NETLINK_PKTINFO,
        });
        libc::CMSG_DATA(header).cast::<u32>().write_unaligned(group);
        message.msg_controllen = end as _;
    }
}
