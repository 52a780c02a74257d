//! What bridges that answer for others hear of addresses and neighbours.

use std::net::IpAddr;

use underpass_engine::tables::{self, Answering, LinkId};

use super::super::Link;
use super::answer::{instance_of, is_shared};
use crate::Router;
use crate::address::Address;
use crate::link::publish::publish_link;

/// These addresses of a link have come or gone: so has what is the router's own at bridges that suppress requests.
pub(crate) fn publish_answering(router: &mut Router, index: u32, addresses: &[Address]) {
    let shared = addresses.iter().any(|address| is_shared(address.local));
    let instance = shared.then(|| instance_of(router, index));
    publish_concerned(router, &[index], instance.as_slice());
}

/// A link has another master or is above another link, `old` before: where it is the router's own has changed.
pub(in crate::link) fn publish_moved(router: &mut Router, old: &Link, new: &Link) {
    if old.pairs() == new.pairs() {
        return;
    }
    let shared = router.addresses.v6(new.index).iter().any(|address| is_shared(address.local));
    let before =
        old.master.and_then(|master| router.links.get(master)).filter(|master| master.vrf_table().is_some());
    let instances = [Answering::instance(before.map(|vrf| vrf.id)), instance_of(router, new.index)];
    publish_concerned(router, &around(old), if shared { &instances } else { &[] });
}

/// A link has come or gone, above which or below which others may be.
pub(in crate::link) fn publish_around(router: &mut Router, link: &Link) {
    publish_concerned(router, &around(link), &[]);
}

/// A link, and those that it is directly above.
fn around(link: &Link) -> Vec<u32> {
    let lower = link.pairs().into_iter().flatten().map(|(lower, _)| lower);
    lower.chain([link.index]).collect()
}

/// Publishes the bridges that suppress requests and are below one of these links, or below any of one of these routing
/// instances.
fn publish_concerned(router: &mut Router, of: &[u32], instances: &[LinkId]) {
    let concerns = |bridge: &u32| {
        let above = router.links.closure(*bridge);
        of.iter().any(|index| above.contains(index))
            || !instances.is_empty()
                && above.iter().any(|index| instances.contains(&instance_of(router, *index)))
    };
    let bridges: Vec<u32> = router.links.suppressing().filter(concerns).collect();
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
