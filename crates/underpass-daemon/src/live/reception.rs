//! What the kernel's devices take for the router's: frames for other stations and for groups, for what is above a device; and the
//! groups that tunnels are in, which switches have to hear of.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;

use underpass_control::Router;
use underpass_port::reception::{Membership, Reception, Takes};

/// What has been asked of the kernel so far.
#[derive(Default)]
pub struct Receptions {
    /// By interface index, what a device takes besides frames for itself, or why it does not.
    devices: BTreeMap<u32, io::Result<Reception>>,
    /// By interface index and group.
    groups: BTreeMap<(u32, IpAddr), io::Result<Membership>>,
}

impl Receptions {
    /// Follows the router's devices and tunnels; `attached` are the devices that frames come from, by interface index, and their names.
    pub fn follow<'a>(&mut self, router: &Router, attached: impl Iterator<Item = (u32, &'a str)>) {
        let wanted: BTreeMap<u32, (Takes, &str)> =
            attached.filter_map(|(index, name)| Some((index, (takes(router, index)?, name)))).collect();
        self.devices.retain(|index, had| match (had, wanted.get(index)) {
            (Ok(had), Some((takes, _))) => had.takes == *takes,
            // It is not tried again.
            (Err(_), Some(_)) => true,
            (_, None) => false,
        });
        for (index, (takes, name)) in wanted {
            self.devices.entry(index).or_insert_with(|| {
                let taken = Reception::new(index, takes);
                if let Err(error) = &taken {
                    tracing::warn!("{name}: {error}: what is above it gets only what is for {name} itself");
                }
                taken
            });
        }
        self.follow_groups(router);
    }

    /// Joins the groups that the router's tunnels are in now, and leaves the others.
    fn follow_groups(&mut self, router: &Router) {
        let wanted = router.groups();
        self.groups.retain(|of, _| wanted.contains(of));
        for (index, group) in wanted {
            let old = self.groups.get(&(index, group));
            if old.is_some_and(Result::is_ok) {
                continue;
            }
            let joined = Membership::new(index, group);
            // A device that the router has just made comes to the kernel a little later.
            if let (Err(error), Some(Err(_)), Some(link)) = (&joined, old, router.link(index)) {
                tracing::warn!("{}: {error}: no switch hears that it is in {group}", link.name);
            }
            self.groups.insert((index, group), joined);
        }
    }
}

/// What a device takes for what is above it: all as a port of a bridge, or for VLAN devices with other addresses; else, for VLAN
/// devices, the frames for groups.
fn takes(router: &Router, index: u32) -> Option<Takes> {
    match () {
        () if router.takes_all_stations(index) => Some(Takes::Stations),
        () if router.has_vlans_above(index) => Some(Takes::Groups),
        () => None,
    }
}
