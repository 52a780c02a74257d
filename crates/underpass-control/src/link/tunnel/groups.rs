//! The groups that devices are in while they are up: what they send to all of their other ends, they receive from each of them.
//! Linux: `vxlan_multicast_join`, `ipgre_open`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use underpass_netlink::tunnel::Kind;

use super::underlay::underlay_link;
use crate::Router;
use crate::link::publish::publish_link;

/// Which devices are in which groups.
#[derive(Default, Debug)]
pub(crate) struct Groups {
    /// By device, the link by which it is in a group, and the group.
    joined: BTreeMap<u32, (u32, IpAddr)>,
    /// How often that has changed.
    pub(crate) changes: u64,
}

impl Groups {
    /// Those in which devices are by a link.
    pub(in crate::link) fn by(&self, link: u32) -> Box<[IpAddr]> {
        let groups: BTreeSet<_> =
            self.joined.values().filter(|(by, _)| *by == link).map(|(_, group)| *group).collect();
        groups.into_iter().collect()
    }
}

/// The link by which a device is in a group, and the group, as the device is now.
fn membership(router: &Router, device: u32) -> Option<(u32, IpAddr)> {
    let link = router.links.get(device).filter(|link| link.up())?;
    let parameters = &link.tunnel.as_ref()?.parameters;
    let by = match parameters.kind {
        Kind::Vxlan => parameters.link,
        Kind::Gre => underlay_link(router, parameters)?.index,
        _ => return None,
    };
    parameters.remote.is_multicast().then_some((by, parameters.remote))
}

/// A device is published, or has gone: it joins the group that is its other end, and leaves the one before.
pub(super) fn follow(router: &mut Router, device: u32) {
    let now = membership(router, device);
    let groups = &mut router.tunnels.groups;
    let old = match now {
        Some(now) => groups.joined.insert(device, now),
        None => groups.joined.remove(&device),
    };
    if old != now {
        groups.changes += 1;
        let links: BTreeSet<_> = [old, now].into_iter().flatten().map(|(link, _)| link).collect();
        links.into_iter().for_each(|link| publish_link(router, link));
    }
}

impl Router {
    /// The groups in which its devices are, each with the index of the link by which they are.
    pub fn groups(&self) -> BTreeSet<(u32, IpAddr)> {
        self.tunnels.groups.joined.values().copied().collect()
    }
}
