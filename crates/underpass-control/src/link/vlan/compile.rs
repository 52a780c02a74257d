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
