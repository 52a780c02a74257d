//! What bridges that answer for others hear of addresses and neighbours.

use std::net::IpAddr;

use underpass_engine::tables;

use super::answer::is_suppressing;
use crate::Router;
use crate::link::publish::publish_link;

/// Addresses of links have changed, or their routing instances: so has what is the router's own at bridges.
pub(crate) fn publish_answering(router: &mut Router) {
    let bridges = router.links.iter().filter(|link| is_suppressing(router, link));
    let bridges: Vec<u32> = bridges.map(|link| link.index).collect();
    bridges.into_iter().for_each(|index| publish_link(router, index));
}

/// What is known of a neighbour has changed: bridges answer for those on their devices and on VLAN devices above them.
pub(crate) fn publish_neighbour(router: &mut Router, index: u32, address: IpAddr) {
    let Some(link) = router.links.get(index) else { return };
    let lower = link.vlan.as_ref().and_then(|vlan| router.links.get(vlan.lower));
    if link.bridge.is_none() && lower.is_none_or(|lower| lower.bridge.is_none()) {
        return;
    }
    let id = link.id;
    let known = router.neighbours.get(index, address).and_then(|neighbour| {
        Some(tables::Neighbour { mac: neighbour.usable()?, router: neighbour.flags & libc::NTF_ROUTER != 0 })
    });
    router.engine.set_neighbour(id, address, known);
}
