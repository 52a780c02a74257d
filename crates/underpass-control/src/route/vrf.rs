//! What a kernel without VRFs has to have of those that the router makes: the connected routes in the VRF's
//! table, by which it checks the gateways of other routes there; and for sockets that are bound to the VRF's
//! device a table that leads to the router. All are routes of protocol [`PROTOCOL`](crate::PROTOCOL).

use std::net::IpAddr;

use ipnet::IpNet;
use libc::RTM_DELROUTE;

use super::change::ids_at;
use super::config::RT_TABLE_MAIN;
use super::encode::write_key;
use super::info::Info;
use super::scope::vrf_of_table;
use super::table::{Family, Place};
use crate::address::source::{source4, source6};
use crate::live::VrfRoute;
use crate::{Device, Router};

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

/// A default route to each VRF's device, for the sockets that are bound to it.
pub(crate) fn doors(router: &Router) -> Vec<VrfRoute> {
    let mut doors = Vec::new();
    for (index, device) in router.devices() {
        if !matches!(device, Device::Vrf { .. }) || !router.links.get(index).is_some_and(|link| link.up()) {
            continue;
        }
        let sources = [source4(router, index).map(IpAddr::from), source6(router, index).map(IpAddr::from)];
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

pub(crate) fn vrf_routes_at(router: &Router, place: Place) -> Vec<VrfRoute> {
    let (family, table, prefix) = place;
    let destination = IpNet::new(family.address(prefix.bits), prefix.len);
    let (Some(vrf), Ok(destination)) = (vrf_of_table(router, table), destination) else { return Vec::new() };
    let mut routes: Vec<VrfRoute> = Vec::new();
    for id in ids_at(router, place) {
        let Some(info) = router.routes.infos.get(id) else { continue };
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
pub(crate) fn remove_connected(router: &mut Router, place: Place, info: &Info) {
    let (family, table, prefix) = place;
    let local = match family.address(prefix.bits) {
        IpAddr::V4(_) => false,
        IpAddr::V6(address) => address.is_unicast_link_local() || address.is_multicast(),
    };
    if table != RT_TABLE_MAIN || local {
        return;
    }
    if let Err(error) = router.request_kernel(RTM_DELROUTE, 0, |message| write_key(message, place, info)) {
        tracing::debug!("a connected route is gone already: {error}");
    }
}

pub(crate) fn compare(had: &[VrfRoute], wanted: &[VrfRoute], changes: &mut Vec<VrfChange>) {
    changes.extend(had.iter().filter(|route| !wanted.contains(route)).map(|&gone| VrfChange::Remove(gone)));
    changes.extend(wanted.iter().map(|&new| VrfChange::Add(new)));
}
