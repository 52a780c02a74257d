//! `RTM_GETLINK` of `AF_BRIDGE`: the ports of bridges, and their VLANs. Linux: `net/bridge/br_netlink.c`.

use underpass_netlink::{Reply, RequestError};

use super::super::Link;
use super::super::encode::{Above, header, operational_state};
use super::vlans::Vlans;
use crate::Router;
use crate::dump::{Chunk, Dump, More};
use crate::events::Cause;

/// `RTEXT_FILTER_BRVLAN`: with their VLANs, each by itself.
const EACH_VLAN: u32 = 1 << 1;
/// `RTEXT_FILTER_BRVLAN_COMPRESSED`: with their VLANs, in ranges.
const RANGES: u32 = 1 << 2;

pub(super) const IFLA_BRIDGE_VLAN_INFO: u16 = 2;
pub(super) const IFLA_BRIDGE_VLAN_TUNNEL_INFO: u16 = 3;
// Attributes of `IFLA_BRIDGE_VLAN_TUNNEL_INFO`.
pub(super) const TUNNEL_ID: u16 = 1;
pub(super) const TUNNEL_VID: u16 = 2;
pub(super) const TUNNEL_FLAGS: u16 = 3;
// Flags of a `struct bridge_vlan_info`.
pub(super) const PVID: u16 = 1 << 1;
pub(super) const UNTAGGED: u16 = 1 << 2;
pub(super) const RANGE_BEGIN: u16 = 1 << 3;
pub(super) const RANGE_END: u16 = 1 << 4;

/// A dump of bridges and their ports, after the last link.
pub(in crate::link) struct PortDump {
    pub last: u32,
    pub mask: u32,
}

impl Dump for PortDump {
    fn next(&mut self, router: &Router, out: &mut Chunk<'_>) -> Result<More, RequestError> {
        let Some(link) = router.links.after(self.last) else { return Ok(More::No) };
        self.last = link.index;
        // A bridge itself has nothing but VLANs to be told.
        let shown =
            link.bridge_port.is_some() || link.bridge.is_some() && self.mask & (EACH_VLAN | RANGES) != 0;
        if shown {
            let above = Above::of(router, link);
            out.message(libc::RTM_NEWLINK, |reply| write(reply, link, &above, self.mask))?;
        }
        Ok(More::Yes)
    }

    fn generation(&self, router: &Router) -> u64 {
        router.links.generation
    }
}

/// Linux: `br_fill_ifinfo`.
fn write(reply: &mut Reply<'_>, link: &Link, above: &Above, mask: u32) {
    let mut header = header(link, 0);
    header[0] = libc::AF_BRIDGE as u8;
    reply.fixed(&header);
    reply.text(libc::IFLA_IFNAME, &link.name);
    reply.u32(libc::IFLA_MASTER, if link.bridge.is_some() { link.index } else { link.master.unwrap_or(0) });
    reply.u32(libc::IFLA_MTU, link.mtu);
    reply.u8(libc::IFLA_OPERSTATE, operational_state(link, above));
    reply.attribute(libc::IFLA_ADDRESS, &link.mac);
    if let Some(lower) = link.lower() {
        reply.u32(libc::IFLA_LINK, lower);
    }
    if link.bridge_port.is_some() {
        let data = reply.nest(libc::IFLA_PROTINFO);
        above.write_port(reply, link);
        reply.end(data);
    }
    if let Some(vlans) = link.bridge_vlans().filter(|_| mask & (EACH_VLAN | RANGES) != 0) {
        let of_family = reply.nest_unflagged(libc::IFLA_AF_SPEC);
        write_vlans(reply, vlans, mask & EACH_VLAN == 0);
        write_networks(reply, vlans);
        reply.end(of_family);
    }
}

/// Linux: `br_fill_ifvlaninfo`, `br_fill_ifvlaninfo_compressed`.
fn write_vlans(reply: &mut Reply<'_>, vlans: &Vlans, compressed: bool) {
    let mut write = |flags: u16, id: u16| {
        let [a, b] = flags.to_ne_bytes();
        let [c, d] = id.to_ne_bytes();
        reply.attribute(IFLA_BRIDGE_VLAN_INFO, &[a, b, c, d]);
    };
    let all = vlans.iter().map(|(id, is_pvid, untagged)| {
        let flags = if is_pvid { PVID } else { 0 } | if untagged { UNTAGGED } else { 0 };
        (flags, id)
    });
    if !compressed {
        all.for_each(|(flags, id)| write(flags, id));
        return;
    }
    let all: Vec<_> = all.collect();
    for range in all.chunk_by(|(flags, id), (other, next)| flags == other && id + 1 == *next) {
        match range {
            [(flags, first), .., (_, last)] => {
                write(flags | RANGE_BEGIN, *first);
                write(flags | RANGE_END, *last);
            }
            [(flags, id)] => write(*flags, *id),
            [] => {}
        }
    }
}

/// Linux: `br_fill_vlan_tunnel_info`, always in ranges.
fn write_networks(reply: &mut Reply<'_>, vlans: &Vlans) {
    let mut write = |flags: u16, (vlan, vni): (u16, u32)| {
        let info = reply.nest_unflagged(IFLA_BRIDGE_VLAN_TUNNEL_INFO);
        reply.u32(TUNNEL_ID, vni);
        reply.u16(TUNNEL_VID, vlan);
        reply.u16(TUNNEL_FLAGS, flags);
        reply.end(info);
    };
    let all: Vec<_> = vlans.networks().collect();
    for range in all.chunk_by(|one, next| one.0 + 1 == next.0 && one.1.checked_add(1) == Some(next.1)) {
        match range {
            [first, .., last] => {
                write(RANGE_BEGIN, *first);
                write(RANGE_END, *last);
            }
            [only] => write(0, *only),
            [] => {}
        }
    }
}

/// Tells listeners what a port, or a bridge, is to a bridge now, by a message of this type. Linux: `br_ifinfo_notify`.
pub(super) fn notify_port(router: &mut Router, cause: Cause, kind: u16, index: u32) {
    let Some(link) = router.links.get(index) else { return };
    let above = Above::of(router, link);
    router.events.notify_own(cause, libc::RTNLGRP_LINK, kind, 0, |reply| {
        write(reply, link, &above, RANGES);
    });
}
