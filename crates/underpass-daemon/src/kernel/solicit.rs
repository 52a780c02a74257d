//! Neighbour solicitations of the router's own: the kernel sends none for itself while it looks for duplicates of the
//! link-local address, which takes it a second or two after a link has come up.
//!
//! The answer is the kernel's, which has been asked for the neighbour before and takes it.

use std::{
    io::IoSlice,
    net::{Ipv6Addr, SocketAddrV6},
    os::fd::AsRawFd,
};

use nix::{
    errno::Errno,
    libc,
    sys::socket::{
        AddressFamily, ControlMessage, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn6, sendmsg,
        socket,
    },
};
use underpass_packet::{IntoBytes, ndisc};

/// The group of all whose address ends like this one, RFC 4291 section 2.7.1.
fn solicited_node(target: Ipv6Addr) -> Ipv6Addr {
    let group = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00, 0).to_bits();
    Ipv6Addr::from_bits(group | target.to_bits() & 0xff_ffff)
}

/// Asks on a link who has `target`, from an address of the kernel's there.
///
/// # Errors
/// What the kernel says: the address cannot be used, or the link is gone.
pub fn solicit(link: u32, mac: [u8; 6], source: Ipv6Addr, target: Ipv6Addr) -> Result<(), Errno> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(AddressFamily::Inet6, SockType::Raw, flags, SockProtocol::IcmpV6)?;
    // Its length in units of 8 bytes.
    let option = [&[ndisc::SOURCE_LINK_LAYER, 1][..], &mac].concat();
    // The kernel fills in the checksum.
    let message = [ndisc::Message::solicitation(target).as_bytes(), &option].concat();
    let from =
        libc::in6_pktinfo { ipi6_addr: libc::in6_addr { s6_addr: source.octets() }, ipi6_ifindex: link };
    let hops = libc::c_int::from(ndisc::HOP_LIMIT);
    let control = [ControlMessage::Ipv6PacketInfo(&from), ControlMessage::Ipv6HopLimit(&hops)];
    let to = SockaddrIn6::from(SocketAddrV6::new(solicited_node(target), 0, 0, link));
    let parts = [IoSlice::new(&message)];
    sendmsg(socket.as_raw_fd(), &parts, &control, MsgFlags::empty(), Some(&to)).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups() {
        let group = solicited_node("2001:db8::2:aabb:ccdd".parse().unwrap());
        assert_eq!(group, "ff02::1:ffbb:ccdd".parse::<Ipv6Addr>().unwrap());
    }
}
