//! VLAN devices, compiled for the packet path.

use std::sync::Arc;

use underpass_engine::tables::{self, Vlans};
use underpass_netlink::vlan::{self, REORDER_HDR};

use super::device::Vlan;
use crate::Router;
use crate::link::Link;

pub(super) fn vlans(router: &Router) -> impl Iterator<Item = (&Link, &Vlan)> {
    router.links.iter().filter_map(|link| Some((link, link.vlan.as_deref()?)))
}

/// The VLAN devices of a link, in the order of their tags.
pub(super) fn above(router: &Router, lower: u32) -> impl Iterator<Item = (&Link, &Vlan)> {
    vlans(router).filter(move |(_, vlan)| vlan.lower == lower)
}

/// Whether a link takes what is for other stations: a request has said so, or a VLAN device above it has another address, or is
/// such a link itself. Linux: `vlan_dev_open`, `vlan_dev_set_rx_mode`, and `dev_uc_add` of a device that has no list of addresses.
pub(crate) fn is_promiscuous(router: &Router, link: &Link) -> bool {
    let takes = |above: &Link| {
        above.up() && (above.mac != link.mac || above.bridge_port.is_some() || is_promiscuous(router, above))
    };
    link.flags & libc::IFF_PROMISC as u32 != 0 || above(router, link.index).any(|(above, _)| takes(above))
}

/// A VLAN device as the packet path needs it.
pub(in crate::link) fn compile(router: &Router, link: &Link) -> Option<Box<tables::Vlan>> {
    let vlan = link.vlan.as_ref()?;
    let vlan::Vlan { protocol, id, flags, ingress, .. } = vlan.tag;
    Some(Box::new(tables::Vlan {
        lower: router.links.get(vlan.lower)?.id,
        protocol,
        id,
        keeps_tags: flags & REORDER_HDR == 0,
        ingress,
        egress: Arc::clone(&vlan.sorted),
    }))
}

/// The VLAN devices of a link as the packet path needs them.
pub(in crate::link) fn compile_above(router: &Router, link: &Link) -> Option<Box<Vlans>> {
    Vlans::new(above(router, link.index).map(|(link, vlan)| (vlan.tag.protocol, vlan.tag.id, link.id)))
}
