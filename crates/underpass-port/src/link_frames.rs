//! Frames of one protocol at all devices of the network namespace: those that the kernel gets, and those that are sent by it.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use crate::sys;

/// A socket for such frames. It does not wait.
pub struct LinkFrames {
    socket: OwnedFd,
}

impl LinkFrames {
    /// Of frames in which the length of an 802.3 frame is where others have their EtherType: `ETH_P_802_2`.
    ///
    /// # Errors
    /// Those of packet(7): EPERM, EMFILE.
    pub fn without_ethertype() -> io::Result<Self> {
        let socket = sys::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_NONBLOCK, 0)?;
        sys::bind(socket.as_raw_fd(), &sys::link_address(0, libc::ETH_P_802_2 as u16))?;
        Ok(Self { socket })
    }

    /// The next frame that has come to the host, which is written to the front of `frame`: the device by which it came, and its
    /// length in bytes, of which what does not fit is missing. One of a VLAN that the kernel has no device for has come to
    /// nobody. `None`: there is none.
    ///
    /// # Errors
    /// Those of recvfrom(2), as ENETDOWN, which says once that a device has gone down.
    pub fn receive(&self, frame: &mut [u8]) -> io::Result<Option<(u32, usize)>> {
        loop {
            match sys::receive_from(self.socket.as_raw_fd(), frame) {
                // Linux marks one with such a tag, which is beside the frame, in `__netif_receive_skb_core`.
                Ok((_, from)) if from.sll_pkttype == libc::PACKET_OTHERHOST => {}
                Ok((length, from)) => return Ok(Some((from.sll_ifindex.cast_unsigned(), length))),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }

    /// Sends a frame by a device.
    ///
    /// # Errors
    /// Those of sendto(2): ENETDOWN, ENOBUFS, ENXIO.
    pub fn send(&self, ifindex: u32, frame: &[u8]) -> io::Result<()> {
        let to = sys::link_address(ifindex, libc::ETH_P_802_2 as u16);
        sys::send_to(self.socket.as_raw_fd(), frame, &to)
    }
}

impl AsFd for LinkFrames {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
