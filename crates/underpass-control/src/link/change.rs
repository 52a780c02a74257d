//! `RTM_NEWLINK`, `RTM_SETLINK`, `RTM_DELLINK`: links that are made, changed and deleted.

use libc::{IFF_NOARP, IFF_UP};
use underpass_engine::buffer::PortId;

use super::{Link, LinkKind, valid_mac, valid_name};
use crate::Router;
use crate::events::Cause;
use crate::netconf::{self, RTM_DELNETCONF, RTM_NEWNETCONF};
use crate::route::Family;

impl Router {
    /// Makes a link what `new` says, with all that follows from it.
    pub(super) fn change_link(&mut self, cause: Cause, mut new: Link) {
        let Some(old) = self.links.get(new.index).cloned() else { return };
        if old == new {
            return;
        }
        // A link that changes its VRF is taken down for it: Linux's cycle_netdev.
        let leaves = old.master != new.master;
        let wanted_up = new.up();
        if old.up() && (!wanted_up || leaves) {
            self.switch_link(cause, &old, false);
        }
        if old.up() && leaves || wanted_up && !old.up() {
            new.flags &= !(IFF_UP as u32);
        }
        if let Some(now) = self.links.get(new.index) {
            (new.carrier_changes, new.activated) = (now.carrier_changes, now.activated);
        }
        let v6 = (old.ipv6(), new.ipv6());
        if v6 == (false, true) {
            new.eui64 = true;
        }
        let index = new.index;
        let flags = (old.flags ^ new.flags) & !(IFF_UP as u32);
        if self.links.get(index) != Some(&new) {
            self.put_link(cause, new.clone(), flags);
        }
        if flags & IFF_NOARP as u32 != 0 {
            self.flush_neighbours(cause, index);
        }
        if old.name != new.name {
            self.relabel_addresses(cause, &new);
            // Linux registers its settings anew, under the new name.
            for family in netconf::FAMILIES.into_iter().filter(|&family| netconf::has(&new, family)) {
                self.notify_netconf(cause, RTM_DELNETCONF, index, family);
                self.notify_netconf(cause, RTM_NEWNETCONF, index, family);
            }
        }
        match v6 {
            (true, false) => self.notify_netconf(cause, RTM_DELNETCONF, index, Family::V6),
            (false, true) => self.notify_netconf(cause, RTM_NEWNETCONF, index, Family::V6),
            _ => {}
        }
        if wanted_up && !new.up() {
            self.switch_link(cause, &new, true);
        } else if v6 == (true, false) {
            self.ipv6_down(cause, index);
        } else if v6 == (false, true) && new.up() {
            self.ipv6_up(cause, index);
        }
        if leaves || old.mtu != new.mtu || old.mac != new.mac || old.up() != wanted_up {
            self.link_changed(index, leaves || new.vrf_table().is_some());
        }
    }

    /// Takes a link up or down, and its addresses, neighbours and routes with it.
    fn switch_link(&mut self, cause: Cause, link: &Link, up: bool) {
        let mut link = link.clone();
        link.flags = if up { link.flags | IFF_UP as u32 } else { link.flags & !(IFF_UP as u32) };
        link.activated = true;
        let index = link.index;
        self.put_link(cause, link, IFF_UP as u32);
        if up {
            self.addresses_up(cause, index);
        } else {
            self.addresses_down(cause, index);
        }
    }

    /// Puts a changed link in the model and the packet path, and tells of it.
    fn put_link(&mut self, cause: Cause, link: Link, change: u32) {
        let index = link.index;
        self.links.put(link);
        self.publish_link(index);
        self.notify_link(cause, index, change);
    }

    pub(super) fn delete_link(&mut self, cause: Cause, index: u32) {
        let slaves: Vec<Link> = self.links.slaves(index).cloned().collect();
        for slave in slaves {
            self.change_link(cause, Link { master: None, ..slave });
        }
        let Some(link) = self.links.get(index).cloned() else { return };
        if link.up() {
            self.switch_link(cause, &link, false);
        }
        self.forget_addresses(cause, index);
        self.forget_routes_of(cause, index);
        for family in netconf::FAMILIES.into_iter().filter(|&family| netconf::has(&link, family)) {
            self.notify_netconf(cause, RTM_DELNETCONF, index, family);
        }
        self.unpublish_tunnel(index);
        if let Some(link) = self.links.remove(index) {
            self.engine.remove_link(link.id);
            self.sysctls.forget(index);
            self.forget_labels_of(index);
            self.forget_traffic_control(index);
            self.notify_link_gone(cause, &link);
        }
    }

    /// Makes the loopback link, which is up from the start.
    pub(crate) fn add_loopback(&mut self) {
        let lo = Link::new(1, "lo".into(), LinkKind::Loopback, [0; 6]);
        let flags = lo.flags | IFF_UP as u32;
        self.add_link(Cause::default(), lo.clone());
        self.change_link(
            Cause::default(),
            Link { flags, id: self.links.get(1).map_or(lo.id, |lo| lo.id), ..lo },
        );
    }

    /// Declares a port: an Ethernet link that is down. Returns its interface index.
    ///
    /// # Errors
    /// `EEXIST` if there is a link of that name, `EINVAL` if it is not a name for a link, or `mac` is not
    /// the address of one station.
    pub fn add_port(&mut self, name: &str, mac: [u8; 6], port: PortId) -> Result<u32, crate::RequestError> {
        if !valid_name(name) || !valid_mac(mac) {
            return Err(crate::RequestError::errno(libc::EINVAL));
        }
        if self.links.named(name).is_some() {
            return Err(crate::RequestError::errno(libc::EEXIST));
        }
        let index = self.links.free_index();
        let in_its_place = self.links.iter().find(|link| link.sink == Some(port)).cloned();
        if let Some(dummy) = in_its_place {
            let sink = Some(PortId(port.0 + 1).max(self.free_port()));
            self.change_sink(Link { sink, ..dummy });
        }
        self.add_link(Cause::default(), Link::new(index, name.into(), LinkKind::Port(port), mac));
        Ok(index)
    }

    pub(crate) fn add_link(&mut self, cause: Cause, mut link: Link) {
        let index = link.index;
        if link.kind == LinkKind::Dummy && self.live.is_none() {
            link.sink = Some(self.free_port());
        }
        let vrf = link.vrf_table().is_some();
        self.links.put(link.clone());
        if vrf && (self.live.is_none() || self.in_own_vrf(index)) {
            self.vrf_added(cause);
        }
        // Compiled once the model knows the link: its VRF and its look-up depend on that.
        let compiled = self.compile_link(&link);
        link.id = self.engine.add_link(compiled);
        for family in netconf::FAMILIES.into_iter().filter(|&family| netconf::has(&link, family)) {
            self.notify_netconf(cause, RTM_NEWNETCONF, index, family);
        }
        self.links.put(link);
        self.publish_tunnel(index);
        self.notify_link(cause, index, u32::MAX);
    }
}
