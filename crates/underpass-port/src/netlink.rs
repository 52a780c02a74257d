//! A request to the kernel about its devices, and the first answer. rtnetlink(7).

#![allow(unsafe_code)]

use std::io;
use std::os::fd::AsRawFd;

use crate::sys;

/// Bytes of `struct nlmsghdr`.
const HEADER: usize = 16;
/// Longer than any answer.
const LONGEST: usize = 1 << 15;

/// Sends a request; what its answer holds behind the header. An acknowledgement holds nothing.
///
/// # Errors
/// What the kernel answers; InvalidData: it answers something that is not a message.
pub(crate) fn exchange(protocol: i32, kind: u16, flags: i32, body: &[u8]) -> io::Result<Vec<u8>> {
    let socket = sys::socket(libc::AF_NETLINK, libc::SOCK_RAW, protocol)?;
    let flags = (flags | libc::NLM_F_REQUEST) as u16;
    let mut bytes = ((HEADER + body.len()) as u32).to_ne_bytes().to_vec();
    bytes.extend([kind.to_ne_bytes(), flags.to_ne_bytes()].concat());
    bytes.extend([[0; 8].as_slice(), body].concat());
    // SAFETY: the kernel reads as many bytes as there are.
    let sent = unsafe { libc::send(socket.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), 0) };
    if sent < 0 {
        return Err(io::Error::last_os_error());
    }
    let mut answer = vec![0_u8; LONGEST];
    // SAFETY: the kernel writes at most as many bytes as there are.
    let len = unsafe { libc::recv(socket.as_raw_fd(), answer.as_mut_ptr().cast(), answer.len(), 0) };
    if len < 0 {
        return Err(io::Error::last_os_error());
    }
    let invalid = || io::Error::from(io::ErrorKind::InvalidData);
    let [a, b, c, d, low, high] = *answer.first_chunk().ok_or_else(invalid)?;
    let end = (u32::from_ne_bytes([a, b, c, d]) as usize).min(len as usize);
    let held = answer.get(HEADER..end).ok_or_else(invalid)?;
    if i32::from(u16::from_ne_bytes([low, high])) != libc::NLMSG_ERROR {
        return Ok(held.to_vec());
    }
    // 0 or negative.
    match held.first_chunk().map(|error| i32::from_ne_bytes(*error)) {
        Some(0) => Ok(Vec::new()),
        Some(error) => Err(io::Error::from_raw_os_error(error.saturating_neg())),
        None => Err(invalid()),
    }
}

/// An attribute, padded.
pub(crate) fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = (4 + value.len()) as u16;
    let mut bytes = [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), value].concat();
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// The attributes in what an answer holds behind its fixed part.
pub(crate) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let [a, b, c, d] = *bytes.first_chunk()?;
        let len = usize::from(u16::from_ne_bytes([a, b]));
        let value = bytes.get(4..len)?;
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((u16::from_ne_bytes([c, d]), value))
    })
}
