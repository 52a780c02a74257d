//! The groups that devices are in while they are up: what they send to all of their other ends, they receive from each of them.
//! Linux: `vxlan_multicast_join`, `ipgre_open`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use underpass_netlink::tunnel::Kind;

use super::underlay::group_link;
use crate::Router;
use crate::link::publish::publish_link;

/// Which devices are in which groups.
#[derive(Default, Debug)]
pub(crate) struct Groups {
    /// By device, the link by which it is in a group, and the group.
    joined: BTreeMap<u32, (u32, IpAddr)>,
    /// How many devices are in a group by a link.
    members: BTreeMap<(u32, IpAddr), u32>,
    /// How often that has changed.
    pub(crate) changes: u64,
}

impl Groups {
    /// Those in which devices are by a link, in their order.
    pub(in crate::link) fn by(&self, link: u32) -> Box<[IpAddr]> {
        let first = (link, IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        self.members
            .range(first..)
            .take_while(|((by, _), _)| *by == link)
            .map(|((_, group), _)| *group)
            .collect()
    }
}

/// The link by which a device is in a group, and the group, as the device is now.
fn membership(router: &Router, device: u32) -> Option<(u32, IpAddr)> {
    let link = router.links.get(device).filter(|link| link.up())?;
    let parameters = &link.tunnel.as_ref()?.parameters;
    let joins = matches!(parameters.kind, Kind::Vxlan | Kind::Gre);
    let by = group_link(router, parameters).filter(|_| joins)?;
    Some((by, parameters.remote))
}

/// A device is published, or has gone: it joins the group that is its other end, and leaves the one before.
pub(super) fn follow(router: &mut Router, device: u32) {
    let now = membership(router, device);
    let groups = &mut router.tunnels.groups;
    let old = match now {
        Some(now) => groups.joined.insert(device, now),
        None => groups.joined.remove(&device),
    };
    if old == now {
        return;
    }
    let mut changed = BTreeSet::new();
    if let Some(now) = now {
        let members = groups.members.entry(now).or_default();
        *members += 1;
        changed.extend((*members == 1).then_some(now.0));
    }
    if let Some(old) = old
        && let Some(members) = groups.members.get_mut(&old)
    {
        *members -= 1;
        if *members == 0 {
            groups.members.remove(&old);
            changed.insert(old.0);
        }
    }
    groups.changes += u64::from(!changed.is_empty());
    changed.into_iter().for_each(|link| publish_link(router, link));
}

impl Router {
    /// The groups in which its devices are, each with the index of the link by which they are.
    pub fn groups(&self) -> BTreeSet<(u32, IpAddr)> {
        self.tunnels.groups.members.keys().copied().collect()
    }
}
