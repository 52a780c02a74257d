//! Requests of the router to the kernel on its own account.

use std::io;
use std::net::IpAddr;

use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_REPLACE, NLM_F_REQUEST};
use nix::errno::Errno;
use underpass_netlink::reply::{Address, Reply, write_message};
use underpass_netlink::{RequestError, messages};

use super::socket::Socket;
use super::{dump_request, ours};

/// Where routes and rules of the router's are.
const DUMPS: [(u16, i32); 4] = [
    (libc::RTM_GETROUTE, libc::AF_INET),
    (libc::RTM_GETROUTE, libc::AF_INET6),
    (libc::RTM_GETRULE, libc::AF_INET),
    (libc::RTM_GETRULE, libc::AF_INET6),
];
/// Longest answer that is read; it repeats the request.
const ANSWER: usize = 64 << 10;

/// Requests a change of the kernel and takes its answer.
#[derive(Debug)]
pub struct Requester {
    socket: Socket,
    sequence: u32,
    buffer: Vec<u8>,
}

impl Requester {
    /// Connects to the kernel of the network namespace of the calling thread.
    ///
    /// # Errors
    /// What socket(2) and bind(2) say.
    pub fn open() -> io::Result<Self> {
        Ok(Self { socket: Socket::open(0)?, sequence: 0, buffer: vec![0; ANSWER] })
    }

    /// Requests a change.
    ///
    /// # Errors
    /// The kernel's answer.
    pub fn request(
        &mut self,
        kind: u16,
        flags: u16,
        write: impl FnOnce(&mut Reply<'_>),
    ) -> Result<(), RequestError> {
        let mut message = Vec::new();
        write_message(&mut message, kind, flags, Address::default(), write)?;
        self.send(&mut message)
    }

    /// Sends a request that is written already: one of a client, or of the kernel itself. Its header is
    /// filled in.
    ///
    /// # Errors
    /// The kernel's answer.
    pub fn send(&mut self, message: &mut [u8]) -> Result<(), RequestError> {
        let system = |errno: Errno| RequestError::errno(errno as i32);
        self.sequence = self.sequence.wrapping_add(1).max(1);
        let Some((header, _)) = message.split_first_chunk_mut::<16>() else {
            return Err(RequestError::errno(libc::EINVAL));
        };
        let flags = u16::from_ne_bytes([header[6], header[7]]) & (NLM_F_CREATE | NLM_F_REPLACE | OTHERS);
        header[6..8].copy_from_slice(&(flags | NLM_F_REQUEST | NLM_F_ACK).to_ne_bytes());
        header[8..12].copy_from_slice(&self.sequence.to_ne_bytes());
        header[12..16].fill(0);
        self.socket.send(message).map_err(system)?;
        // The kernel has answered when send returns.
        while let Some(length) = self.socket.receive(&mut self.buffer).map_err(system)? {
            let datagram = self.buffer.get(..length).unwrap_or_default();
            for answer in messages(datagram) {
                if answer.sequence != self.sequence || answer.kind != libc::NLMSG_ERROR as u16 {
                    continue;
                }
                let errno =
                    answer.body().first_chunk().map_or(-libc::EIO, |errno| i32::from_ne_bytes(*errno));
                return if errno == 0 { Ok(()) } else { Err(RequestError::errno(-errno)) };
            }
        }
        Err(RequestError::errno(libc::EIO))
    }

    /// The routes and rules that the router has put into the kernel.
    pub(super) fn dump_ours(&mut self) -> io::Result<Vec<Vec<u8>>> {
        let mut found = Vec::new();
        for (kind, family) in DUMPS {
            self.sequence = self.sequence.wrapping_add(1).max(1);
            self.socket.send(&dump_request(kind, family, self.sequence))?;
            let mut more = true;
            while let Some(length) = self.socket.receive(&mut self.buffer)? {
                for message in messages(self.buffer.get(..length).unwrap_or_default()) {
                    let end = [libc::NLMSG_DONE as u16, libc::NLMSG_ERROR as u16].contains(&message.kind);
                    more &= !(end && message.sequence == self.sequence);
                    if ours(&message) {
                        found.push(message.bytes.to_vec());
                    }
                }
                if !more {
                    break;
                }
            }
        }
        Ok(found)
    }

    /// Has the link-layer address of a neighbour resolved. What comes of it is multicast.
    ///
    /// # Errors
    /// The kernel's answer: `ENODEV` or `ENETDOWN`, if the link is gone or down.
    pub fn resolve(&mut self, link: u32, address: IpAddr) -> Result<(), RequestError> {
        self.request(libc::RTM_NEWNEIGH, NLM_F_CREATE, |message| {
            let family = if address.is_ipv6() { libc::AF_INET6 } else { libc::AF_INET };
            let mut fixed = [0; 12];
            fixed[0] = family as u8;
            fixed[4..8].copy_from_slice(&link.to_ne_bytes());
            fixed[10] = libc::NTF_USE;
            message.fixed(&fixed);
            message.address(libc::NDA_DST, address);
        })
    }
}

/// `NLM_F_EXCL` and `NLM_F_APPEND`.
const OTHERS: u16 = 0x200 | 0x800;
