//! `RTM_NEWLINK`, `RTM_SETLINK`, `RTM_DELLINK`: links that are made, changed and deleted.

use libc::{IFF_NOARP, IFF_UP};

use super::bridge::stations::Stations;
use super::encode::in_own_vrf;
use super::publish::{compile_link, free_port, notify_link, notify_link_gone, publish_link};
use super::tunnel::publish::{publish_tunnel, unpublish_tunnel};
use super::tunnel::vxlan;
use super::{LOOPBACK, Link, LinkKind, bridge, vlan};
use crate::Router;
use crate::address::publish::{
    addresses_down, addresses_up, carrier_up, forget_addresses, ipv6_down, ipv6_up, relabel_addresses,
};
use crate::address::source::instance_device;
use crate::events::Cause;
use crate::neighbour::request::{flush_neighbours, flush_neighbours_of};
use crate::netconf::{self, RTM_DELNETCONF, RTM_NEWNETCONF, notify_netconf};
use crate::route::Family;
use crate::route::mpls::notify_of_link;
use crate::route::mpls::publish::forget_labels_of;
use crate::route::update::{flush_routes6_of, follow_mtu, forget_routes_of};
use crate::tc::qdisc::forget_traffic_control;
use crate::updates::{link_changed, vrf_added};

/// Makes a link what `new` says, with all that follows from it.
pub(super) fn change_link(router: &mut Router, cause: Cause, mut new: Link) {
    let Some(old) = router.links.get(new.index).cloned() else { return };
    if old == new {
        return;
    }
    (new.carrier, new.mac) = (vlan::carrier(router, &old, &new), vlan::mac(router, &old, &new));
    // A link that changes its VRF is taken down for it: Linux's cycle_netdev.
    let is_vrf = |master: Option<u32>| {
        master.and_then(|master| router.links.get(master)).is_some_and(|master| master.vrf_table().is_some())
    };
    let leaves = old.master != new.master && (is_vrf(old.master) || is_vrf(new.master));
    let instance = instance_device(router, new.index);
    bridge::enslave(router, &old, &mut new);
    let wanted_up = new.up();
    if old.up() && (!wanted_up || leaves) {
        switch_link(router, cause, &old, false);
    }
    // Then so are the links above it, which come up again with it.
    let mut old_above = old.clone();
    if old.up() && leaves {
        old_above = router.links.get(new.index).cloned().unwrap_or(old_above);
        follow_link(router, cause, &old, &old_above);
    }
    if old.up() && leaves || wanted_up && !old.up() {
        new.flags &= !(IFF_UP as u32);
    }
    if let Some(now) = router.links.get(new.index) {
        (new.carrier_changes, new.activated) = (now.carrier_changes, now.activated);
    }
    let v6 = (old.ipv6(), new.ipv6());
    if v6 == (false, true) {
        new.eui64 = true;
    }
    let index = new.index;
    let flags = (old.flags ^ new.flags) & !(IFF_UP as u32);
    if router.links.get(index) != Some(&new) {
        put_link(router, cause, new.clone(), flags);
    }
    if flags & IFF_NOARP as u32 != 0 || old.mac != new.mac {
        flush_neighbours(router, cause, index);
    }
    if old.name != new.name {
        relabel_addresses(router, cause, &new);
        // Linux registers its settings anew, under the new name.
        for family in netconf::FAMILIES.into_iter().filter(|&family| netconf::has(&new, family)) {
            notify_netconf(router, cause, RTM_DELNETCONF, index, family);
            notify_netconf(router, cause, RTM_NEWNETCONF, index, family);
        }
        notify_of_link(router, &[RTM_DELNETCONF, RTM_NEWNETCONF], index);
    }
    match v6 {
        (true, false) => notify_netconf(router, cause, RTM_DELNETCONF, index, Family::V6),
        (false, true) => notify_netconf(router, cause, RTM_NEWNETCONF, index, Family::V6),
        _ => {}
    }
    if wanted_up && !new.up() {
        switch_link(router, cause, &new, true);
    } else if v6 == (true, false) {
        ipv6_down(router, cause, index);
        flush_neighbours_of(router, cause, index, true);
        flush_routes6_of(router, cause, index);
    } else if v6 == (false, true) && new.up() {
        ipv6_up(router, cause, index);
    } else if new.up() && !old.carrier && new.carrier {
        carrier_up(router, cause, index);
    }
    if old.mtu != new.mtu && new.ipv6() {
        follow_mtu(router, index, old.mtu, new.mtu);
    }
    if leaves {
        publish_link(router, instance);
    }
    if leaves || old.mtu != new.mtu || old.mac != new.mac || old.up() != wanted_up {
        link_changed(router, index, leaves || new.vrf_table().is_some() || v6.0 != v6.1);
    }
    bridge::publish::publish_moved(router, &old, &new);
    if let Some(now) = router.links.get(index).cloned() {
        follow_link(router, cause, &old_above, &now);
    }
}

/// A link is now `new`: those above it follow.
fn follow_link(router: &mut Router, cause: Cause, old: &Link, new: &Link) {
    vlan::follow(router, cause, old, new);
    bridge::follow(router, cause, old, new);
}

/// Takes a link up or down, and its addresses, neighbours and routes with it.
fn switch_link(router: &mut Router, cause: Cause, link: &Link, up: bool) {
    let mut link = link.clone();
    link.flags = if up { link.flags | IFF_UP as u32 } else { link.flags & !(IFF_UP as u32) };
    link.activated = true;
    let index = link.index;
    put_link(router, cause, link, IFF_UP as u32);
    if up {
        addresses_up(router, cause, index);
    } else {
        addresses_down(router, cause, index);
        vxlan::fdb::forget_dynamic(router, cause, index);
    }
}

/// Puts a changed link in the model and the packet path, and tells of it.
fn put_link(router: &mut Router, cause: Cause, link: Link, change: u32) {
    let index = link.index;
    router.links.put(link);
    publish_link(router, index);
    notify_link(router, cause, index, change);
}

pub(super) fn delete_link(router: &mut Router, cause: Cause, index: u32) {
    let slaves: Vec<Link> = router.links.slaves(index).cloned().collect();
    for slave in slaves {
        change_link(router, cause, Link { master: None, ..slave });
    }
    let Some(link) = router.links.get(index).cloned() else { return };
    if link.bridge_port.is_some() {
        change_link(router, cause, Link { master: None, ..link });
    }
    let Some(link) = router.links.get(index).cloned() else { return };
    if link.up() {
        switch_link(router, cause, &link, false);
    }
    vlan::delete_above(router, cause, index);
    // A link that was down may have been given some.
    flush_neighbours(router, cause, index);
    forget_addresses(router, cause, index);
    forget_routes_of(router, cause, index);
    for family in netconf::FAMILIES.into_iter().filter(|&family| netconf::has(&link, family)) {
        notify_netconf(router, cause, RTM_DELNETCONF, index, family);
    }
    notify_of_link(router, &[RTM_DELNETCONF], index);
    unpublish_tunnel(router, index);
    if let Some(link) = router.links.remove(index) {
        vlan::publish_lower(router, &link);
        bridge::publish::publish_around(router, &link);
        router.engine.remove_link(link.id);
        router.stations.remove(&index);
        router.trees.forget(index);
        router.sysctls.forget(index);
        forget_labels_of(router, index);
        forget_traffic_control(router, index);
        // It has no queue any more.
        notify_link_gone(router, cause, &Link { activated: false, qdisc: None, ..link });
    }
}

/// Makes the loopback link, which is up from the start.
pub(crate) fn add_loopback(router: &mut Router) {
    let lo = Link::new(LOOPBACK, "lo".into(), LinkKind::Loopback, [0; 6]);
    let flags = lo.flags | IFF_UP as u32;
    add_link(router, Cause::default(), lo.clone());
    change_link(
        router,
        Cause::default(),
        Link { flags, id: router.links.get(LOOPBACK).map_or(lo.id, |lo| lo.id), ..lo },
    );
}

pub(crate) fn add_link(router: &mut Router, cause: Cause, mut link: Link) {
    let index = link.index;
    if matches!(link.kind, LinkKind::Dummy | LinkKind::Vlan | LinkKind::Bridge) && router.live.is_none() {
        link.sink = Some(free_port(router));
    }
    if link.bridge.is_some() {
        let stations = Stations::within(router.engine.region());
        router.stations.insert(index, stations);
    }
    let vrf = link.vrf_table().is_some();
    router.links.put(link.clone());
    if vrf && (router.live.is_none() || in_own_vrf(router, index)) {
        vrf_added(router, cause);
    }
    // Compiled once the model knows the link: its VRF and its look-up depend on that.
    let compiled = compile_link(router, &link);
    link.id = router.engine.add_link(compiled);
    for family in netconf::FAMILIES.into_iter().filter(|&family| netconf::has(&link, family)) {
        notify_netconf(router, cause, RTM_NEWNETCONF, index, family);
    }
    notify_of_link(router, &[RTM_NEWNETCONF], index);
    router.links.put(link.clone());
    vlan::publish_lower(router, &link);
    bridge::publish::publish_around(router, &link);
    bridge::fdb::refresh_local(router, cause, index);
    publish_tunnel(router, index);
    notify_link(router, cause, index, u32::MAX);
}
