//! What the kernel's devices take for the router's: frames for other stations and for groups, for what is above a device; and the
//! groups that tunnels are in, which switches have to hear of.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;

use underpass_control::Router;
use underpass_port::reception::{Membership, Reception, Takes, may_filter_tags};

/// What has been asked of the kernel so far.
#[derive(Default)]
pub struct Receptions {
    /// By interface index, what a device takes besides frames for itself, and why it does not.
    devices: BTreeMap<u32, (Takes, io::Result<Reception>)>,
    /// By interface index and group, and whether a failure has been told.
    groups: BTreeMap<(u32, IpAddr), (io::Result<Membership>, bool)>,
}

impl Receptions {
    /// Follows the router's devices and tunnels; `attached` are the devices that frames come from, by interface index.
    pub fn follow(&mut self, router: &Router, attached: impl Iterator<Item = u32>) {
        let above = router.have_above();
        let wanted: BTreeMap<u32, Takes> = attached
            .filter(|index| above.contains(index))
            .map(|index| (index, takes(router, index)))
            .collect();
        self.devices.retain(|index, _| wanted.contains_key(index));
        for (index, takes) in wanted {
            if self.devices.get(&index).is_some_and(|(had, _)| *had == takes) {
                continue;
            }
            let taken = Reception::new(index, takes);
            if let (Err(error), Some(link)) = (&taken, router.link(index)) {
                tracing::warn!("{0}: {error}: what is above it gets only what is for {0} itself", link.name);
            }
            // The former one ends behind it.
            self.devices.insert(index, (takes, taken));
        }
        self.follow_groups(router);
    }

    /// Joins the groups that the router's tunnels are in now, and leaves the others.
    fn follow_groups(&mut self, router: &Router) {
        let wanted = router.groups();
        self.groups.retain(|of, _| wanted.contains(of));
        for (index, group) in wanted {
            let old = self.groups.remove(&(index, group));
            let (joined, told) = match old {
                Some(joined @ (Ok(_), _)) => joined,
                // A device that the router has just made comes to the kernel a little later.
                Some((Err(_), told)) => match (Membership::new(index, group), router.link(index)) {
                    (Err(error), Some(link)) if !told => {
                        tracing::warn!("{}: {error}: no switch hears that it is in {group}", link.name);
                        (Err(error), true)
                    }
                    (joined, _) => (joined, told),
                },
                None => (Membership::new(index, group), false),
            };
            self.groups.insert((index, group), (joined, told));
        }
    }
}

/// What a device takes for what is above it: all as a port of a bridge, or for VLAN devices with other addresses, or where its driver
/// may drop tags that nobody has told it of; else, for VLAN devices, the frames for groups.
fn takes(router: &Router, index: u32) -> Takes {
    let name = router.link(index).map_or("", |link| &link.name);
    match router.takes_all_stations(index) || may_filter_tags(name) {
        true => Takes::Stations,
        false => Takes::Groups,
    }
}
