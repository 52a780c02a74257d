//! The kernel's messages about links, as programs are shown them.

use libc::{
    ARPHRD_ETHER, IFF_BROADCAST, IFF_LOWER_UP, IFF_MASTER, IFF_MULTICAST, IFF_NOARP, IFF_POINTOPOINT, IFF_UP,
    RTM_NEWLINK,
};
use underpass_netlink::bridge::Shown;
use underpass_netlink::reply::{Address, write_message};
use underpass_netlink::{Attribute, Message, Reply, tunnel};

use super::bridge::Bridge;
use super::bridge::trees::shown;
use super::devices::{Devices, ProxiedTunnel};
use super::encode::{
    Above, IFLA_PERM_ADDRESS, IFLA_VRF_PORT_TABLE, IFLA_VRF_TABLE, count_link, write_addresses, write_stats,
};
use super::proxied::HEADER;
use super::publish::own_mac;
use super::vlan::Vlan;
use super::{Link, Tunnel};
use crate::events::Cause;
use crate::{Device, Request, Router};

/// Whether a dump of links is of those that are enslaved to a VRF or a bridge of the router's, which the kernel cannot
/// choose.
pub(crate) fn is_own_dump(router: &Router, request: &Request<'_>) -> bool {
    let Some(live) = &router.live else { return true };
    let mut attributes = request.message.attributes(HEADER);
    attributes.any(|filter| filter.kind == libc::IFLA_MASTER && live.devices.get(filter.u32()).is_some())
}

/// What makes a device what it is, besides its kind.
#[derive(Clone, Copy)]
struct Made<'a> {
    tunnel: Option<&'a ProxiedTunnel>,
    vlan: Option<&'a Vlan>,
    bridge: Option<(&'a Bridge, Shown)>,
}

impl<'a> Made<'a> {
    fn of(router: &'a Router, devices: &'a Devices, index: u32, device: Option<Device>) -> Self {
        let bridge = router.links.get(index).and_then(|link| link.bridge.as_deref());
        let bridge = bridge.or(devices.bridges.get(&index)).filter(|_| device == Some(Device::Bridge));
        Self {
            tunnel: devices.tunnel(index).filter(|_| matches!(device, Some(Device::Tunnel(_)))),
            vlan: devices.vlans.get(&index).filter(|_| device == Some(Device::Vlan)),
            bridge: bridge.map(|bridge| (bridge, shown(router, index, bridge))),
        }
    }
}

/// What a link is enslaved to, of the router's.
enum Master<'a> {
    /// A VRF, and its table.
    Vrf(u32),
    /// A bridge; the port, and what is shown of that.
    Bridge(&'a Link, Above),
}

impl<'a> Master<'a> {
    fn of(router: &'a Router, devices: &Devices, index: u32) -> Option<(u32, Self)> {
        let master = devices.master(index)?;
        match devices.get(master)? {
            Device::Vrf { table } => Some((master, Self::Vrf(table))),
            Device::Bridge => {
                let port = router.links.get(index).filter(|link| link.bridge_port.is_some())?;
                Some((master, Self::Bridge(port, Above::of(router, port))))
            }
            _ => None,
        }
    }
}

/// A message of the kernel's about a link that the router stands behind, or that is enslaved to one, as it
/// would be if the kernel knew; `None` for one that stays as it is.
pub(crate) fn rewrite(router: &Router, message: &Message<'_>) -> Option<Vec<u8>> {
    let devices = &router.live.as_ref()?.devices;
    let request = Request { message: *message, port: 0, strict: false };
    let mut fixed = request.fixed::<HEADER>().ok()?;
    let index = u32::from_ne_bytes([fixed[4], fixed[5], fixed[6], fixed[7]]);
    if i32::from(fixed[0]) == libc::AF_INET6 {
        return devices.tunnel(index).and_then(|made| rewrite_ipv6(made, message, fixed));
    }
    if fixed[0] != 0 {
        return None;
    }
    let device = devices.get(index).or_else(|| devices.gone.get(&index).copied());
    let master = Master::of(router, devices, index);
    if device.is_none() && master.is_none() {
        return None;
    }
    let made = Made::of(router, devices, index, device);
    let Made { tunnel, vlan, bridge } = made;
    if let Some(device) = device {
        rewrite_header(&mut fixed, device, tunnel);
    }
    let flags = u32::from_ne_bytes([fixed[8], fixed[9], fixed[10], fixed[11]]);
    let state = State { up: flags & IFF_UP as u32 != 0, carrier: flags & IFF_LOWER_UP as u32 != 0 };
    let ends = tunnel.and_then(|made| made.tunnel.ends());
    // What the device has counted is what the host itself has sent and got.
    let counts = tunnel.is_some() || vlan.is_some() || bridge.is_some();
    let count = router.links.get(index).filter(|_| counts).map(|link| count_link(router, link));
    let dummy = router.links.get(index).filter(|_| device == Some(Device::Dummy));
    let swallowed =
        dummy.map(|link| count_link(router, link)).map_or([0; 2], |count| [count.tx_packets, count.tx_bytes]);
    let mut bytes = Vec::new();
    let to = Address { port: message.port(), sequence: message.sequence };
    let written = write_message(&mut bytes, message.kind, message.flags, to, |reply| {
        reply.fixed(&fixed);
        let mut info = false;
        for attribute in message.attributes(HEADER) {
            let value = attribute.value;
            match attribute.kind {
                libc::IFLA_LINKINFO => {
                    info = true;
                    write_info(reply, device, made, &master, Some(attribute));
                }
                libc::IFLA_ADDRESS | libc::IFLA_BROADCAST if ends.is_some() => {}
                libc::IFLA_LINK if counts => {}
                libc::IFLA_STATS64 | libc::IFLA_STATS if count.is_some() => {}
                libc::IFLA_MASTER if master.is_some() => {}
                libc::IFLA_STATS64 => {
                    reply.align_64(libc::IFLA_PAD);
                    reply.attribute(libc::IFLA_STATS64, &with_sent::<8>(value, swallowed));
                }
                libc::IFLA_STATS => {
                    reply.attribute(libc::IFLA_STATS, &with_sent::<4>(value, swallowed));
                }
                libc::IFLA_PAD => {}
                libc::IFLA_QDISC if device.is_some() => {
                    let root = router.tc.get(index).and_then(|control| control.root());
                    let own = own_queueing(device, state.up);
                    reply.text(libc::IFLA_QDISC, root.map_or(own, |root| root.kind.name()));
                }
                kind => match device.and_then(|device| number_of(device, tunnel, kind, state)) {
                    Some(Own::Byte(own)) => reply.u8(kind, own),
                    Some(Own::Word(own)) => reply.u32(kind, own),
                    None => reply.attribute(kind, value),
                },
            }
        }
        if let Some((master, _)) = master {
            reply.u32(libc::IFLA_MASTER, master);
        }
        count.into_iter().for_each(|count| write_stats(reply, count));
        ends.iter().for_each(|ends| write_addresses(reply, ends));
        vlan.iter().for_each(|vlan| reply.u32(libc::IFLA_LINK, vlan.lower));
        if let Some(made) = tunnel {
            made.tunnel.lower().into_iter().for_each(|lower| reply.u32(libc::IFLA_LINK, lower));
            if let Some(address) = made.tunnel.permanent_address(own_mac(index)) {
                reply.attribute(IFLA_PERM_ADDRESS, &address);
            }
        }
        if !info {
            write_info(reply, device, made, &master, None);
        }
    });
    written.is_ok().then_some(bytes)
}

/// Gives the header of a message the type and the flags of a device of the router's.
fn rewrite_header(fixed: &mut [u8; HEADER], device: Device, tunnel: Option<&ProxiedTunnel>) {
    let hardware = tunnel.map_or(ARPHRD_ETHER, |made| made.tunnel.hardware());
    fixed[2..4].copy_from_slice(&hardware.to_ne_bytes());
    let flags = u32::from_ne_bytes([fixed[8], fixed[9], fixed[10], fixed[11]]);
    let flags = match (device, tunnel) {
        (_, Some(made)) => made.flags(flags),
        (Device::Vlan | Device::Bridge, _) => flags,
        (Device::Dummy, _) => flags & !(IFF_MULTICAST as u32) | (IFF_NOARP | IFF_BROADCAST) as u32,
        _ => {
            let clear = (IFF_POINTOPOINT | IFF_MULTICAST | IFF_BROADCAST) as u32;
            flags & !clear | (IFF_NOARP | IFF_MASTER) as u32
        }
    };
    fixed[8..12].copy_from_slice(&flags.to_ne_bytes());
}

/// Whether a device is up, and has a carrier.
#[derive(Clone, Copy)]
struct State {
    up: bool,
    carrier: bool,
}

/// A number that a message says of a device of the router's.
enum Own {
    Byte(u8),
    Word(u32),
}

/// What an attribute says of a device of the router's; `None`: what it says of the kernel's.
fn number_of(
    device: Device,
    tunnel: Option<&ProxiedTunnel>,
    attribute: u16,
    State { up, carrier }: State,
) -> Option<Own> {
    Some(match (attribute, device) {
        (libc::IFLA_OPERSTATE, Device::Vrf { .. }) if up => Own::Byte(6),
        (libc::IFLA_OPERSTATE, Device::Dummy | Device::Tunnel(_)) if up => Own::Byte(0),
        (libc::IFLA_OPERSTATE, Device::Vlan) if up => Own::Byte(if carrier { 6 } else { 3 }),
        (libc::IFLA_OPERSTATE, Device::Bridge) => Own::Byte(if up && carrier { 6 } else { 2 }),
        (libc::IFLA_MIN_MTU, Device::Tunnel(_)) => {
            Own::Word(tunnel.map_or(0, |made| made.tunnel.mtu_bounds().0))
        }
        (libc::IFLA_MAX_MTU, Device::Tunnel(_)) => {
            Own::Word(tunnel.map_or(0, |made| made.tunnel.mtu_bounds().1))
        }
        (libc::IFLA_MIN_MTU, Device::Bridge) => Own::Word(68),
        (libc::IFLA_MIN_MTU, Device::Vrf { .. }) => Own::Word(1280),
        (libc::IFLA_MIN_MTU, Device::Vlan | Device::Dummy) | (libc::IFLA_MAX_MTU, Device::Dummy) => {
            Own::Word(0)
        }
        (libc::IFLA_MAX_MTU, Device::Bridge | Device::Vlan) => Own::Word(65535),
        (libc::IFLA_MAX_MTU, Device::Vrf { .. }) => Own::Word(65575),
        (libc::IFLA_NUM_TX_QUEUES | libc::IFLA_NUM_RX_QUEUES, _) => Own::Word(1),
        _ => return None,
    })
}

/// How a device of the router's queues where nobody has said anything.
fn own_queueing(device: Option<Device>, up: bool) -> &'static str {
    match device {
        _ if !up => "noop",
        Some(Device::Tunnel(kind)) if kind.queues() => "pfifo_fast",
        _ => "noqueue",
    }
}

/// Statistics of the kernel's, in numbers of `N` bytes, with packets and bytes that workers have sent.
fn with_sent<const N: usize>(value: &[u8], sent: [u64; 2]) -> Vec<u8> {
    let mut value = value.to_vec();
    // Of packets and bytes received and sent the second of each.
    for (at, more) in [N, 3 * N].into_iter().zip(sent) {
        if let Some(number) = value.get_mut(at..at + N) {
            let own = number.iter().rev().fold(0, |own, byte| own << 8 | u64::from(*byte));
            let sum = own.wrapping_add(more).to_le_bytes();
            number.iter_mut().zip(sum).for_each(|(place, byte)| *place = byte);
        }
    }
    value
}

/// A message about a tunnel in which IPv6 tells of its settings: what `ip -6` finds tunnels by. Linux:
/// `inet6_fill_ifinfo`.
fn rewrite_ipv6(made: &ProxiedTunnel, message: &Message<'_>, mut fixed: [u8; HEADER]) -> Option<Vec<u8>> {
    fixed[2..4].copy_from_slice(&made.tunnel.hardware().to_ne_bytes());
    let flags = u32::from_ne_bytes([fixed[8], fixed[9], fixed[10], fixed[11]]);
    fixed[8..12].copy_from_slice(&made.flags(flags).to_ne_bytes());
    let ends = made.tunnel.ends();
    let mut bytes = Vec::new();
    let to = Address { port: message.port(), sequence: message.sequence };
    let written = write_message(&mut bytes, message.kind, message.flags, to, |reply| {
        reply.fixed(&fixed);
        for attribute in message.attributes(HEADER) {
            match (attribute.kind, &ends) {
                (libc::IFLA_ADDRESS, Some(_)) | (libc::IFLA_LINK, _) => {}
                (kind, _) => reply.attribute(kind, attribute.value),
            }
        }
        if let Some([local, _]) = ends.as_ref().filter(|[local, _]| !local.is_empty()) {
            reply.attribute(libc::IFLA_ADDRESS, local);
        }
        made.tunnel.lower().into_iter().for_each(|lower| reply.u32(libc::IFLA_LINK, lower));
    });
    written.is_ok().then_some(bytes)
}

/// `IFLA_LINKINFO`: of our device, or else what the kernel says of its own; and of the VRF or the bridge above it, ours or the
/// kernel's.
fn write_info(
    reply: &mut Reply<'_>,
    device: Option<Device>,
    Made { tunnel, vlan, bridge }: Made<'_>,
    master: &Option<(u32, Master<'_>)>,
    kernels: Option<Attribute<'_>>,
) {
    let info = reply.nest_unflagged(libc::IFLA_LINKINFO);
    match device {
        Some(device) => {
            reply.text(libc::IFLA_INFO_KIND, device.kind());
            if let Device::Vrf { table } = device {
                let data = reply.nest_unflagged(libc::IFLA_INFO_DATA);
                reply.u32(IFLA_VRF_TABLE, table);
                reply.end(data);
            }
            if let Some(ProxiedTunnel { tunnel: Tunnel { encap, six_rd, .. }, .. }) = tunnel {
                let data = reply.nest_unflagged(libc::IFLA_INFO_DATA);
                let shown = tunnel.map(|made| made.tunnel.shown());
                shown.into_iter().for_each(|shown| tunnel::write(reply, &shown, encap, six_rd));
                reply.end(data);
            }
            if let Some(vlan) = vlan {
                let data = reply.nest_unflagged(libc::IFLA_INFO_DATA);
                vlan.tag.write(reply);
                reply.end(data);
            }
            if let Some((bridge, shown)) = bridge {
                let data = reply.nest_unflagged(libc::IFLA_INFO_DATA);
                bridge.settings.write(reply, shown);
                reply.end(data);
            }
        }
        None => {
            if let Some(kernels) = kernels {
                reply.fixed(kernels.value);
                reply.pad();
            }
        }
    }
    if device.is_some() && master.is_none() {
        // Of the kernel's bridge above it.
        for attribute in kernels.iter().flat_map(Attribute::nested) {
            if matches!(attribute.kind, libc::IFLA_INFO_SLAVE_KIND | libc::IFLA_INFO_SLAVE_DATA) {
                reply.attribute(attribute.kind, attribute.value);
            }
        }
    }
    match master {
        Some((_, Master::Vrf(table))) => {
            reply.text(libc::IFLA_INFO_SLAVE_KIND, "vrf");
            let data = reply.nest_unflagged(libc::IFLA_INFO_SLAVE_DATA);
            reply.u32(IFLA_VRF_PORT_TABLE, *table);
            reply.end(data);
        }
        Some((_, Master::Bridge(port, above))) => {
            reply.text(libc::IFLA_INFO_SLAVE_KIND, "bridge");
            let data = reply.nest_unflagged(libc::IFLA_INFO_SLAVE_DATA);
            above.write_port(reply, port);
            reply.end(data);
        }
        None => {}
    }
    reply.end(info);
}

/// A link as the kernel has last told of it, if it has, and as programs are shown it: the body of a message.
fn reported(router: &Router, index: u32) -> Option<Vec<u8>> {
    let reported = router.live.as_ref()?.devices.reported.get(&index)?;
    let mut bytes = Vec::new();
    let whole =
        write_message(&mut bytes, RTM_NEWLINK, 0, Address::default(), |message| message.fixed(reported));
    let mut message = whole.is_ok().then(|| underpass_netlink::messages(&bytes).next()).flatten();
    let rewritten = message.take().and_then(|message| rewrite(router, &message));
    let body = rewritten
        .map(|rewritten| rewritten.get(underpass_netlink::message::HEADER..).unwrap_or_default().to_vec());
    Some(body.unwrap_or_else(|| reported.to_vec()))
}

/// Writes a link of the kernel's as the kernel has last told of it; whether it has.
pub(super) fn write_reported(router: &Router, reply: &mut Reply<'_>, index: u32) -> bool {
    let reported = reported(router, index);
    reported.iter().for_each(|body| reply.fixed(body));
    reported.is_some()
}

/// Something has changed of a link that the kernel does not know: listeners hear of it from [`Router::tell_of_links`].
pub(super) fn link_is_other(router: &mut Router, cause: Cause, index: u32) {
    if let Some(live) = &mut router.live {
        live.devices.others.insert(index, cause);
    }
}

impl Router {
    /// Tells listeners of the links of which something has changed that the kernel does not know. To be called when all has been
    /// mirrored that the kernel has reported: what it has told them of these links is then not newer.
    pub fn tell_of_links(&mut self) {
        let others = self.live.as_mut().map(|live| std::mem::take(&mut live.devices.others));
        for (index, cause) in others.into_iter().flatten() {
            if let Some(body) = reported(self, index) {
                self.events.notify_own(cause, libc::RTNLGRP_LINK, RTM_NEWLINK, 0, |reply| reply.fixed(&body));
            }
        }
    }
}
