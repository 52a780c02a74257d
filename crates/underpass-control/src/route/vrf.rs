//! What a kernel without VRFs has to have of those that the router makes: the connected routes in the VRF's
//! table, by which it checks the gateways of other routes there; and for sockets that are bound to the VRF's
//! device a table that leads to the router. All are routes of protocol [`PROTOCOL`](crate::PROTOCOL).

use std::net::IpAddr;

use ipnet::IpNet;
use libc::{RTM_DELROUTE, RTM_NEWROUTE};
use netlink_packet_core::NLM_F_CREATE;

use super::config::RT_TABLE_MAIN;
use super::encode::write_key;
use super::info::Info;
use super::table::{Family, Place};
use crate::live::VrfRoute;
use crate::{Device, Link, Router};

/// A change of what the kernel is to have. What it has already may be asked for again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum VrfChange {
    /// It is to have this.
    Add(VrfRoute),
    /// And this no more.
    Remove(VrfRoute),
}

/// What the host sends into a VRF.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VrfDoor {
    /// Which packets.
    pub sender: Sender,
    /// The table in which all leads to the VRF's device, or that of the VRF for what comes in.
    pub table: u32,
}

/// Packets of the host that belong into a VRF.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Sender {
    /// Those of sockets that are bound to a device.
    Bound(String),
    /// Those that are sent from an address: answers to what came from the VRF.
    From(IpAddr),
    /// Not the host's, but what its kernel looks up of what comes in by a device: whom it answers ARP for (`proxy_arp`).
    By(String),
}

/// The table in which sockets that are bound to a VRF's device look up: all leads to the device.
pub const fn door_table(vrf: u32) -> u32 {
    0x7570_0000 | vrf & 0xffff
}

impl Router {
    /// What the kernel is to have, and to have no more, of the router's own routes since this was last asked.
    pub fn vrf_changes(&mut self) -> Vec<VrfChange> {
        let mut changes = Vec::new();
        let Some(live) = &mut self.live else { return changes };
        for place in std::mem::take(&mut live.vrf_routes.dirty) {
            let wanted = self.vrf_routes_at(place);
            let Some(live) = &mut self.live else { return changes };
            let had = match wanted.is_empty() {
                true => live.vrf_routes.of.remove(&place),
                false => live.vrf_routes.of.insert(place, wanted.clone()),
            };
            compare(&had.unwrap_or_default(), &wanted, &mut changes);
        }
        let now = (self.links.generation, self.addresses.generation);
        if self.live.as_ref().is_some_and(|live| live.vrf_routes.seen != Some(now)) {
            let doors = self.doors();
            let Some(live) = &mut self.live else { return changes };
            live.vrf_routes.seen = Some(now);
            let had = std::mem::replace(&mut live.vrf_routes.doors, doors.clone());
            compare(&had, &doors, &mut changes);
        }
        changes
    }

    /// What of the host's own packets belongs into which VRF of the router's.
    ///
    /// An address that is there more than once says nothing about the VRF: nothing that the host sends from
    /// it unasked leaves, rather than leaving to the wrong neighbour.
    pub fn vrf_doors(&self) -> Vec<VrfDoor> {
        let mut doors = Vec::new();
        for (index, device) in self.devices() {
            let (Some(link), Device::Vrf { table }) = (self.links.get(index), device) else { continue };
            let door = |sender| VrfDoor { sender, table: door_table(index) };
            doors.push(door(Sender::Bound(link.name.clone())));
            let by = |slave: &Link| VrfDoor { sender: Sender::By(slave.name.clone()), table };
            doors.extend(self.links.slaves(index).map(by));
            let inside =
                |own: &&crate::Address| self.links.vrf_of(own.link).is_some_and(|vrf| vrf.index == index);
            for own in self.addresses.iter().filter(inside) {
                let unicast = !matches!(own.local, IpAddr::V6(address) if address.is_unicast_link_local());
                if unicast && self.is_only_one(own.local) {
                    doors.push(door(Sender::From(own.local)));
                }
            }
        }
        doors
    }

    /// A default route to each VRF's device, for the sockets that are bound to it.
    fn doors(&self) -> Vec<VrfRoute> {
        let mut doors = Vec::new();
        for (index, device) in self.devices() {
            if !matches!(device, Device::Vrf { .. }) || !self.links.get(index).is_some_and(|link| link.up()) {
                continue;
            }
            let sources = [self.source4(index).map(IpAddr::from), self.source6(index).map(IpAddr::from)];
            for source in sources.into_iter().flatten() {
                let any = Family::of(source).address(0);
                let Ok(destination) = IpNet::new(any, 0) else { continue };
                // Link-local addresses are of no use beyond the link.
                let usable = !matches!(source, IpAddr::V6(source) if source.is_unicast_link_local());
                doors.push(VrfRoute {
                    destination,
                    table: door_table(index),
                    metric: 1024,
                    source: usable.then_some(source),
                    link: index,
                });
            }
        }
        doors
    }

    fn vrf_routes_at(&self, place: Place) -> Vec<VrfRoute> {
        let (family, table, prefix) = place;
        let destination = IpNet::new(family.address(prefix.bits), prefix.len);
        let (Some(vrf), Ok(destination)) = (self.vrf_of_table(table), destination) else { return Vec::new() };
        let mut routes: Vec<VrfRoute> = Vec::new();
        for id in self.ids(place) {
            let Some(info) = self.routes.infos.get(id) else { continue };
            let [hop] = info.hops() else { continue };
            if !info.own() || info.kind != libc::RTN_UNICAST || info.protocol != libc::RTPROT_KERNEL {
                continue;
            }
            let (metric, source) = (info.metric, info.source);
            routes.push(VrfRoute { destination, table, metric, source, link: hop.oif });
            let table = door_table(vrf);
            if source.is_some() && !routes.iter().any(|other| other.table == table) {
                routes.push(VrfRoute { destination, table, metric, source, link: vrf });
            }
        }
        routes
    }

    /// A VRF replaces this connected route of the kernel's main table: nobody outside the VRF may use it.
    /// Link-local ones are of their link in any case.
    pub(crate) fn remove_connected(&mut self, place: Place, info: &Info) {
        let (family, table, prefix) = place;
        let local = match family.address(prefix.bits) {
            IpAddr::V4(_) => false,
            IpAddr::V6(address) => address.is_unicast_link_local() || address.is_multicast(),
        };
        if table != RT_TABLE_MAIN || local {
            return;
        }
        if let Err(refusal) = self.ask_kernel(RTM_DELROUTE, 0, |message| write_key(message, place, info)) {
            tracing::debug!("a connected route is gone already: {refusal}");
        }
    }

    /// Gives the kernel the connected routes of its main table that are missing there: those that a router
    /// which was killed had moved into VRFs, or, with `enslaved`, that this one has.
    pub fn restore_connected(&mut self, enslaved: bool) {
        let meant = |link: &&Link| link.up() && (enslaved || !self.in_own_vrf(link.index));
        let links: Vec<u32> = self.links.iter().filter(meant).map(|link| link.index).collect();
        for index in links {
            for (place, info) in self.connected_of(index) {
                let ids = self.ids(place);
                let there = |info: &Info| {
                    let same =
                        |id: &_| self.routes.infos.get(*id).is_some_and(|old| old.hops() == info.hops());
                    !self.in_own_vrf(index) && ids.iter().any(same)
                };
                if there(&info) {
                    continue;
                }
                let added = self.ask_kernel(RTM_NEWROUTE, NLM_F_CREATE, |message| {
                    write_key(message, place, &info);
                    if let Some(source) = info.source {
                        message.address(super::config::RTA_PREFSRC, source);
                    }
                });
                if let Err(refusal) = added {
                    tracing::debug!("a connected route is not restored: {refusal}");
                }
            }
        }
    }
}

fn compare(had: &[VrfRoute], wanted: &[VrfRoute], changes: &mut Vec<VrfChange>) {
    changes.extend(had.iter().filter(|route| !wanted.contains(route)).map(|&gone| VrfChange::Remove(gone)));
    changes.extend(wanted.iter().map(|&new| VrfChange::Add(new)));
}
