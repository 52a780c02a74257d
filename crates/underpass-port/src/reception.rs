//! What devices take that is not for their own address: frames for other stations, as the ports of a bridge do, and for groups. A
//! device's filter drops all else, but on a veth, which has none.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd};

use crate::sys;

/// Which frames a device takes besides those for its own address and the groups that the kernel is in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Takes {
    /// Those for all groups.
    Groups,
    /// Those for all stations.
    Stations,
}

/// A device takes such frames, as long as this is there. Linux counts who wants it: `dev_set_promiscuity`, `dev_set_allmulti`.
pub struct Reception {
    _socket: OwnedFd,
}

impl Reception {
    /// Has the device of this index take frames.
    ///
    /// # Errors
    /// Those of packet(7): ENODEV, EPERM.
    pub fn new(ifindex: u32, takes: Takes) -> io::Result<Self> {
        // Of no protocol: it gets no frames itself.
        let socket = sys::socket(libc::AF_PACKET, libc::SOCK_RAW, 0)?;
        let wanted = libc::packet_mreq {
            mr_ifindex: ifindex as i32,
            mr_type: match takes {
                Takes::Groups => libc::PACKET_MR_ALLMULTI,
                Takes::Stations => libc::PACKET_MR_PROMISC,
            } as u16,
            mr_alen: 0,
            mr_address: [0; 8],
        };
        sys::set_option(socket.as_raw_fd(), libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &wanted)?;
        Ok(Self { _socket: socket })
    }
}

/// Whether the driver of a device may drop frames of VLANs of which the kernel has not told it (`ethtool -k`: rx-vlan-filter), unless
/// the device takes all frames: hardware may.
pub fn may_filter_tags(device: &str) -> bool {
    !matches!(&*sys::driver_of(device), "veth" | "tun" | "bridge")
}

/// The kernel is in a group by a device, as long as this is there: it tells switches and routers (IGMP, MLD), and the device's
/// filter.
pub struct Membership {
    _socket: OwnedFd,
}

impl Membership {
    /// Joins a group by the device of this index.
    ///
    /// # Errors
    /// Those of ip(7) and ipv6(7): ENODEV, EINVAL, ENOBUFS.
    pub fn new(ifindex: u32, group: IpAddr) -> io::Result<Self> {
        // One for each, as sockets may be in a few groups only (`igmp_max_memberships`).
        let socket = match group {
            IpAddr::V4(group) => {
                let socket = sys::socket(libc::AF_INET, libc::SOCK_DGRAM, 0)?;
                let wanted = libc::ip_mreqn {
                    imr_multiaddr: libc::in_addr { s_addr: u32::from_ne_bytes(group.octets()) },
                    imr_address: libc::in_addr { s_addr: 0 },
                    imr_ifindex: ifindex as i32,
                };
                sys::set_option(socket.as_raw_fd(), libc::IPPROTO_IP, libc::IP_ADD_MEMBERSHIP, &wanted)?;
                socket
            }
            IpAddr::V6(group) => {
                let socket = sys::socket(libc::AF_INET6, libc::SOCK_DGRAM, 0)?;
                let wanted = libc::ipv6_mreq {
                    ipv6mr_multiaddr: libc::in6_addr { s6_addr: group.octets() },
                    ipv6mr_interface: ifindex,
                };
                sys::set_option(socket.as_raw_fd(), libc::IPPROTO_IPV6, libc::IPV6_ADD_MEMBERSHIP, &wanted)?;
                socket
            }
        };
        Ok(Self { _socket: socket })
    }
}
