//! Devices that take frames for all stations, as the ports of a bridge do.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use crate::sys;

/// A device takes the frames for other stations, too, as long as this is there. Linux counts who wants it:
/// `dev_set_promiscuity`.
pub struct Promiscuous {
    _socket: OwnedFd,
}

impl Promiscuous {
    /// Has the device of this index take all frames.
    ///
    /// # Errors
    /// Those of packet(7): ENODEV, EPERM.
    pub fn new(ifindex: u32) -> io::Result<Self> {
        // Of no protocol: it gets no frames itself.
        let socket = sys::socket(libc::AF_PACKET, libc::SOCK_RAW, 0)?;
        let wanted = libc::packet_mreq {
            mr_ifindex: ifindex as i32,
            mr_type: libc::PACKET_MR_PROMISC as u16,
            mr_alen: 0,
            mr_address: [0; 8],
        };
        sys::set_option(socket.as_raw_fd(), libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &wanted)?;
        Ok(Self { _socket: socket })
    }
}
