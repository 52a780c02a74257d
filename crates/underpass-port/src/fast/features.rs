//! Whether a device sends frames that programs in other devices' drivers redirect to it: Documentation/netlink/specs/netdev.yaml.

use std::io;

use crate::netlink;

/// `NETLINK_GENERIC`, its controller, and the command that says which number a family has.
const GENERIC: i32 = 16;
const CONTROLLER: u16 = 16;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;

/// Of the family `netdev`.
const DEVICE_GET: u8 = 1;
const IFINDEX: u16 = 1;
const XDP_FEATURES: u16 = 3;
/// `NETDEV_XDP_ACT_NDO_XMIT`.
const SENDS: u64 = 1 << 2;

/// Bytes of `struct genlmsghdr`.
const FIXED: usize = 4;

fn ask(family: u16, command: u8, attribute: &[u8], wanted: u16) -> io::Result<Vec<u8>> {
    let body = [&[command, 1, 0, 0], attribute].concat();
    let answer = netlink::exchange(GENERIC, family, 0, &body)?;
    let found =
        netlink::attributes(answer.get(FIXED..).unwrap_or_default()).find(|(kind, _)| *kind == wanted);
    found.map(|(_, value)| value.to_vec()).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Whether a device does so now: a veth device, where its other end takes what is sent so.
///
/// # Errors
/// ENOENT: the kernel, before Linux 6.3, does not say. ENODEV.
pub(crate) fn sends_for_drivers(ifindex: u32) -> io::Result<bool> {
    let name = netlink::attribute(FAMILY_NAME, b"netdev\0");
    let id = ask(CONTROLLER, GET_FAMILY, &name, FAMILY_ID)?;
    let family = u16::from_ne_bytes(*id.first_chunk().ok_or(io::ErrorKind::InvalidData)?);
    let index = netlink::attribute(IFINDEX, &ifindex.to_ne_bytes());
    let features = ask(family, DEVICE_GET, &index, XDP_FEATURES)?;
    Ok(u64::from_ne_bytes(*features.first_chunk().ok_or(io::ErrorKind::InvalidData)?) & SENDS != 0)
}
