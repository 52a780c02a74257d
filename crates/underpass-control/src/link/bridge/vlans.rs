//! VLANs of bridges and their ports. Linux: `net/bridge/br_vlan.c`.

use std::collections::BTreeMap;

use libc::{EEXIST, EINVAL};
use underpass_engine::tables::Membership;
use underpass_netlink::RequestError;

/// The VLANs of a port, or of a bridge itself.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Vlans {
    /// The VLAN of frames without a tag; 0: none.
    pub pvid: u16,
    members: BTreeMap<u16, Member>,
}

/// One of the VLANs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Member {
    /// Whether its frames leave without a tag.
    untagged: bool,
    options: Options,
}

/// What a VLAN of a port is besides its tag.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Options {
    /// Whether requests for known neighbours are suppressed in it, where the port looks at that:
    /// `BR_VLFLAG_NEIGH_SUPPRESS_ENABLED`.
    pub suppresses: bool,
    /// The network that it is behind the port: `tunnel_info`.
    pub network: Option<u32>,
}

impl Vlans {
    /// Whether this is one of them.
    pub fn has(&self, id: u16) -> bool {
        self.members.contains_key(&id)
    }

    /// Identifier, whether it is that of frames without a tag, whether its frames leave without one.
    pub fn iter(&self) -> impl Iterator<Item = (u16, bool, bool)> {
        self.members.iter().map(|(&id, member)| (id, id == self.pvid, member.untagged))
    }

    /// Those in which requests for known neighbours are suppressed.
    pub(super) fn suppressed(&self) -> impl Iterator<Item = u16> {
        self.members.iter().filter(|(_, member)| member.options.suppresses).map(|(&id, _)| id)
    }

    /// The networks that VLANs are behind the port.
    pub(in crate::link) fn networks(&self) -> impl Iterator<Item = (u16, u32)> {
        self.members.iter().filter_map(|(&id, member)| Some((id, member.options.network?)))
    }

    /// Makes a VLAN a network behind the port. Linux: `nbp_vlan_tunnel_info_add`.
    ///
    /// # Errors
    /// `EINVAL`: it is none of these VLANs. `EEXIST`: it has a network, or another one has this.
    pub(super) fn add_network(&mut self, id: u16, vni: u32) -> Result<(), RequestError> {
        let taken = self.networks().any(|(_, other)| other == vni);
        let options = self.options_mut(id).ok_or(RequestError::errno(EINVAL))?;
        if options.network.is_some() || taken {
            return Err(RequestError::errno(EEXIST));
        }
        options.network = Some(vni);
        Ok(())
    }

    /// A VLAN is no network any more. Linux: `nbp_vlan_tunnel_info_delete`.
    pub(super) fn remove_network(&mut self, id: u16) {
        self.options_mut(id).into_iter().for_each(|options| options.network = None);
    }

    /// None of them is. Linux: `nbp_vlan_tunnel_info_flush`.
    pub(super) fn remove_networks(&mut self) {
        self.members.values_mut().for_each(|member| member.options.network = None);
    }

    /// What one of them is besides.
    pub(super) fn options(&self, id: u16) -> Options {
        self.members.get(&id).map(|member| member.options).unwrap_or_default()
    }

    /// The same, to be changed, if it is one of them.
    pub(super) fn options_mut(&mut self, id: u16) -> Option<&mut Options> {
        self.members.get_mut(&id).map(|member| &mut member.options)
    }

    /// Adds a VLAN, or makes another of it. Linux: `__vlan_add_flags`.
    pub(crate) fn add(&mut self, id: u16, is_pvid: bool, untagged: bool) {
        if id == 0 {
            return;
        }
        self.members.entry(id).or_default().untagged = untagged;
        if is_pvid {
            self.pvid = id;
        } else if self.pvid == id {
            self.pvid = 0;
        }
    }

    /// Takes a VLAN out, if it is there.
    pub(crate) fn remove(&mut self, id: u16) {
        self.members.remove(&id);
        if self.pvid == id {
            self.pvid = 0;
        }
    }

    /// The VLAN that new ports get is another one: so is theirs, where no request has said otherwise; whether it is.
    /// Linux: `__br_vlan_set_default_pvid`.
    pub(super) fn replace_default(&mut self, old: u16, new: u16) -> bool {
        let has_old = old != 0 && self.pvid == old && self.members.get(&old).is_some_and(|old| old.untagged);
        if old != 0 && !has_old || new != 0 && self.has(new) {
            return false;
        }
        self.add(new, true, true);
        self.remove(old);
        true
    }

    /// As the packet path needs them.
    pub(super) fn compile(&self) -> Box<Membership> {
        Membership::new(self.pvid, self.members.iter().map(|(&id, member)| (id, member.untagged)))
    }
}
