//! The kernel's links, and the ports that are attached to them.

use libc::{IFF_LOOPBACK, IFF_LOWER_UP, IFF_UP};
use underpass_netlink::{Attribute, Attributes, RequestError, Type, Validate, policy};
use underpass_packet::ethernet;

use super::change::add_link;
use super::encode::{IFLA_VRF_TABLE, in_own_vrf};
use super::proxied::enslave;
use super::publish::publish_link;
use super::request::master::master_for;
use super::rewrite::link_is_other;
use super::tunnel::publish::unpublish_tunnel;
use super::{Link, LinkKind, bridge, vlan};
use crate::address::kernel_routes::refresh_routes;
use crate::address::publish::forget_addresses;
use crate::events::Cause;
use crate::live::VlanDevice;
use crate::neighbour::mirror::unmirror_neighbour;
use crate::netconf::{RTM_DELNETCONF, RTM_NEWNETCONF};
use crate::request::word;
use crate::route::mirror::unmirror_connected;
use crate::route::mpls::notify_of_link;
use crate::route::mpls::publish::forget_labels_of;
use crate::route::rule::request::names_changed;
use crate::route::update::{add_vrf_tables, forget_routes_of};
use crate::tc::qdisc::forget_traffic_control;
use crate::updates::{last_ipv4_gone, link_changed, link_gone_down};
use crate::{Device, Request, Router};

const ALL: [Type; 66] = policy(&[]);
const INFO: [Type; 6] = policy(&[]);
const VRF: [Type; 2] = policy(&[]);
const VLAN: [Type; 6] = policy(&[]);
/// include/uapi/linux/if_link.h
const IFLA_VLAN_ID: u16 = 1;
const IFLA_VLAN_PROTOCOL: u16 = 5;

/// `IFLA_INFO_KIND`, as it is.
fn info_kind(attributes: &Attributes<'_, 66>) -> Result<Option<String>, RequestError> {
    let Some(info) = attributes.get(libc::IFLA_LINKINFO) else { return Ok(None) };
    let info = info.parse_nested(&INFO, Validate::Liberal)?;
    Ok(info.get(libc::IFLA_INFO_KIND).map(|kind| kind.text()))
}

/// `IFLA_INFO_KIND`, and the table if it is a VRF.
fn kind_of(attributes: &Attributes<'_, 66>, flags: u32) -> Result<LinkKind, RequestError> {
    if flags & IFF_LOOPBACK as u32 != 0 {
        return Ok(LinkKind::Loopback);
    }
    let kind = info_kind(attributes)?;
    if kind.as_deref() == Some("ifb") {
        return Ok(LinkKind::Ifb);
    }
    let Some(info) = attributes.get(libc::IFLA_LINKINFO) else { return Ok(LinkKind::Kernel) };
    let info = info.parse_nested(&INFO, Validate::Liberal)?;
    let is_vrf = kind.as_deref() == Some("vrf");
    let Some(data) = info.get(libc::IFLA_INFO_DATA).filter(|_| is_vrf) else { return Ok(LinkKind::Kernel) };
    let table = data.parse_nested(&VRF, Validate::Liberal)?.get(IFLA_VRF_TABLE);
    Ok(table.map_or(LinkKind::Kernel, |table| LinkKind::Vrf { table: table.u32() }))
}

/// The VLAN of a VLAN device of the kernel's whose lower link is in this namespace.
fn vlan_of(attributes: &Attributes<'_, 66>) -> Result<Option<VlanDevice>, RequestError> {
    let (Some(info), Some(lower)) = (attributes.get(libc::IFLA_LINKINFO), attributes.get(libc::IFLA_LINK))
    else {
        return Ok(None);
    };
    let info = info.parse_nested(&INFO, Validate::Liberal)?;
    let is_vlan = info.get(libc::IFLA_INFO_KIND).is_some_and(|kind| kind.text() == "vlan");
    let elsewhere = attributes.get(libc::IFLA_LINK_NETNSID).is_some();
    let Some(data) = info.get(libc::IFLA_INFO_DATA).filter(|_| is_vlan && !elsewhere) else {
        return Ok(None);
    };
    let data = data.parse_nested(&VLAN, Validate::Liberal)?;
    let protocol = data.get(IFLA_VLAN_PROTOCOL).map_or(ethernet::VLAN, |protocol| protocol.be16());
    let id = data.get(IFLA_VLAN_ID).map(|id| id.u16());
    Ok(id.map(|id| VlanDevice { lower: lower.u32(), protocol, id }))
}

/// `RTM_NEWLINK` and `RTM_DELLINK` of the kernel.
pub(crate) fn mirror_link(router: &mut Router, request: &Request<'_>) -> Result<(), RequestError> {
    if request.family() != 0 {
        return Ok(()); // of a bridge about its port, or of IPv6 about its settings
    }
    let (header, attributes) = request.parse::<16, 66>(&ALL, Validate::Liberal)?;
    let word = |at: usize| u32::from_ne_bytes(word(&header, at));
    let (index, flags) = (word(4), word(8));
    if request.message.kind == libc::RTM_DELLINK {
        unmirror_link(router, index);
        return Ok(());
    }
    if let Some(unseen) = router.unseen() {
        unseen.links.remove(&index);
    }
    if let Some(live) = &mut router.live {
        live.devices.report(index, request.message.body());
        live.devices.notify_kind(index, info_kind(&attributes)?.as_deref());
    }
    let vlan = vlan_of(&attributes)?;
    router.note_vlan(index, vlan);
    let mac = |kind: u16| {
        let bytes = attributes.get(kind).and_then(|mac: Attribute<'_>| mac.value.first_chunk::<6>().copied());
        bytes.unwrap_or_default()
    };
    let devices = router.live.as_ref().map(|live| &live.devices);
    let kind = match devices.and_then(|devices| devices.get(index)) {
        Some(Device::Vrf { table }) => LinkKind::Vrf { table },
        Some(Device::Dummy) => LinkKind::Dummy,
        Some(Device::Tunnel(kind)) => LinkKind::Tunnel(kind),
        Some(Device::Vlan) => LinkKind::Vlan,
        Some(Device::Bridge) => LinkKind::Bridge,
        None => kind_of(&attributes, flags)?,
    };
    let own_master = devices.and_then(|devices| devices.master(index));
    let own_vlan = devices.and_then(|devices| devices.vlans.get(&index)).filter(|_| kind == LinkKind::Vlan);
    let own_vlan = own_vlan.cloned().map(Box::new);
    let own_bridge =
        devices.and_then(|devices| devices.bridges.get(&index)).filter(|_| kind == LinkKind::Bridge);
    let own_bridge = own_bridge.cloned().map(Box::new);
    let tunnel = devices.and_then(|devices| devices.tunnel(index));
    let flags = tunnel.map_or(flags, |made| made.flags(flags));
    let tunnel = tunnel.map(|made| Box::new(made.tunnel.clone()));
    let name = attributes.get(libc::IFLA_IFNAME).map(|name| name.text()).unwrap_or_default();
    let old = router.links.get(index).cloned();
    let base = old.clone().unwrap_or_else(|| Link::new(index, name.clone(), kind, [0; 6]));
    let number = |kind: u16| attributes.get(kind).map(|number| number.u32());
    let link = Link {
        name,
        kind,
        flags: flags & !(libc::IFF_RUNNING | IFF_LOWER_UP) as u32,
        carrier: flags & IFF_LOWER_UP as u32 != 0 || flags & IFF_UP as u32 == 0,
        mac: mac(libc::IFLA_ADDRESS),
        broadcast: mac(libc::IFLA_BROADCAST),
        mtu: number(libc::IFLA_MTU).unwrap_or(base.mtu),
        tx_queue_len: number(libc::IFLA_TXQLEN).unwrap_or(base.tx_queue_len),
        master: own_master.or(number(libc::IFLA_MASTER).filter(|&master| master != 0)),
        group: number(libc::IFLA_GROUP).unwrap_or(0),
        tunnel,
        vlan: own_vlan,
        bridge: base.bridge.clone().or(own_bridge),
        // Its queue is the router's.
        activated: base.activated
            || flags & IFF_UP as u32 != 0 && devices.is_some_and(|devices| devices.get(index).is_some()),
        ..base
    };
    match old {
        None => {
            // A name that moved from a link that is gone, whose end was not told yet.
            let holder = router.links.named(&link.name).map(|holder| holder.index);
            holder.into_iter().for_each(|holder| unmirror_link(router, holder));
            let joining = router.live.as_mut().and_then(|live| live.devices.joining.remove(&link.name));
            // A port of a bridge of the router's becomes one when it is there.
            let master = link.master.filter(|master| bridge::bridge_of(router, Some(*master)).is_some());
            let alone = Link { master: link.master.filter(|_| master.is_none()), ..link };
            add_link(router, Cause::default(), alone);
            if let Some(link) = router.links.get(index).filter(|_| master.is_some()).cloned() {
                change_mirrored_link(router, &link, Link { master, ..link.clone() });
            }
            publish_masters(router, [link_master(router, index), None]);
            if let Some(master) = joining {
                join(router, index, master);
            }
            names_changed(router);
        }
        Some(old) if old != link => change_mirrored_link(router, &old, link),
        Some(_) => {}
    }
    Ok(())
}

/// A link of the kernel's that was made to be enslaved to a device of the router's is there.
fn join(router: &mut Router, index: u32, master: u32) {
    let Some(link) = router.links.get(index) else { return };
    match master_for(router, link, master) {
        Ok(master) => enslave(router, Cause::default(), index, master),
        Err(error) => tracing::warn!("{} was made, and cannot be enslaved: {error}", link.name),
    }
}

pub(crate) fn change_mirrored_link(router: &mut Router, old: &Link, mut new: Link) {
    bridge::enslave(router, old, &mut new);
    let (index, up, now) = (new.index, new.up(), new.clone());
    let renamed = old.name != new.name;
    let forwards = |link: &Link| {
        (
            link.up(),
            link.carrier,
            link.mtu,
            link.mac,
            link.master,
            link.kind,
            (link.attached, link.sink),
            (link.tunnel.clone(), link.vlan.clone()),
            (link.bridge.clone(), link.bridge_port.clone()),
        )
    };
    let role = |link: &Link| (link.master, link.kind, link.attached, link.sink, link.tunnel.clone());
    let other_role = role(old) != role(&new) || new.vrf_table().is_some();
    let changed = forwards(old) != forwards(&new);
    let moved = (old.master, old.kind) != (new.master, new.kind);
    router.links.put(new);
    if changed || renamed {
        router.addresses.locals += 1;
    }
    if moved {
        link_moved(router, old.index);
    }
    if changed || renamed {
        publish_link(router, index);
    }
    if changed && in_own_vrf(router, index) {
        refresh_routes(router, Cause::default(), index);
    }
    if old.up() && !up {
        // IPv4 routes and next-hop objects go without a word.
        link_gone_down(router, Cause::default(), index);
    }
    if changed {
        link_changed(router, index, other_role);
    }
    if renamed {
        names_changed(router);
        notify_of_link(router, &[RTM_DELNETCONF, RTM_NEWNETCONF], index);
    }
    if (old.master, old.mac) != (now.master, now.mac) {
        publish_masters(router, [old.master, now.master]);
    }
    bridge::publish::publish_moved(router, old, &now);
    vlan::beside::follow(router, old, &now);
    bridge::follow(router, Cause::default(), old, &now);
}

fn link_master(router: &Router, index: u32) -> Option<u32> {
    router.links.get(index)?.master
}

/// What is for the ports of a bridge of the kernel's is for the bridge, and they are others now.
fn publish_masters(router: &mut Router, masters: [Option<u32>; 2]) {
    let is_kernels = |router: &Router, index: u32| {
        router.links.get(index).is_some_and(|master| master.kind == LinkKind::Kernel)
    };
    for master in
        masters.into_iter().flatten().filter(|master| is_kernels(router, *master)).collect::<Vec<_>>()
    {
        publish_link(router, master);
    }
}

/// A link has another master, or has become or ceased to be a VRF.
fn link_moved(router: &mut Router, index: u32) {
    if router.links.get(index).is_some_and(|link| link.vrf_table().is_some()) {
        add_vrf_tables(router);
    }
    if in_own_vrf(router, index) {
        unmirror_connected(router, index);
    }
    refresh_routes(router, Cause::default(), index);
}

/// The kernel has this link no more.
pub(crate) fn unmirror_link(router: &mut Router, index: u32) {
    let Some(link) = router.links.get(index).cloned() else { return };
    vlan::beside::delete_above(router, index);
    if link.bridge_port.is_some() {
        change_mirrored_link(router, &link, Link { master: None, ..link.clone() });
    }
    let slaves: Vec<Link> = router.links.slaves(index).cloned().collect();
    for slave in slaves {
        let of_bridge = slave.bridge_port.is_some().then_some(slave.index);
        change_mirrored_link(router, &slave.clone(), Link { master: None, ..slave });
        of_bridge.into_iter().for_each(|port| link_is_other(router, Cause::default(), port));
    }
    let neighbours: Vec<_> = [false, true]
        .into_iter()
        .flat_map(|v6| router.neighbours.on(index, v6))
        .map(|(address, _)| address)
        .collect();
    neighbours.into_iter().for_each(|address| unmirror_neighbour(router, index, address));
    forget_addresses(router, Cause::default(), index);
    link_gone_down(router, Cause::default(), index);
    forget_routes_of(router, Cause::default(), index);
    last_ipv4_gone(router, index);
    if let Some(live) = &mut router.live {
        live.devices.forget(index);
        live.devices.bridges.extend(link.bridge.as_deref().map(|bridge| (index, bridge.clone())));
        live.advertised.forget(index);
    }
    unpublish_tunnel(router, index);
    router.forget_link_of_host(index);
    router.links.remove(index);
    vlan::publish_lower(router, &link);
    bridge::publish::publish_around(router, &link);
    notify_of_link(router, &[RTM_DELNETCONF], index);
    router.engine.remove_link(link.id);
    router.stations.remove(&index);
    router.trees.forget(index);
    router.sysctls.forget(index);
    forget_labels_of(router, index);
    forget_traffic_control(router, index);
    names_changed(router);
    publish_masters(router, [link.master, None]);
}
