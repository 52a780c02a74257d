//! VLAN devices: links above other links. Linux: `net/8021q`.

pub(super) mod beside;
pub(crate) mod compile;
pub(super) mod device;

use std::sync::Arc;

use libc::{
    EEXIST, EINVAL, EMLINK, ENETDOWN, ENODEV, EOPNOTSUPP, ERANGE, IFF_ALLMULTI, IFF_MASTER, IFF_PROMISC,
    IFF_SLAVE, IFF_UP,
};
use underpass_netlink::vlan::{self, REORDER_HDR};
use underpass_netlink::{Attribute, RequestError};

use super::change::{change_link, delete_link};
use super::publish::publish_link;
use super::tunnel::vxlan;
use super::{Link, LinkKind};
use crate::Router;
use crate::events::Cause;
use crate::save::{Save, Words, protocol};
use compile::{above, vlans};
pub use device::Vlan;

/// Flags that a VLAN device does not take over from the link below it.
const OF_LOWER: u32 = (IFF_UP | IFF_PROMISC | IFF_ALLMULTI | IFF_MASTER | IFF_SLAVE) as u32;

/// `MAX_NEST_DEV`.
const DEEPEST: usize = 8;

/// What a request says of the link that a VLAN device is to be of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Said<'a> {
    /// `IFLA_LINK`.
    pub lower: Option<u32>,
    /// `IFLA_MTU`.
    pub mtu: Option<u32>,
    /// Whether it gives it an address.
    pub address: bool,
    /// `IFLA_INFO_DATA`.
    pub data: Option<&'a Attribute<'a>>,
}

/// The VLAN device that a request asks for, as a link that is not there yet. Linux: `vlan_newlink`.
pub(super) fn create(router: &Router, link: Link, said: Said<'_>) -> Result<Link, RequestError> {
    let wanted = vlan::Wanted::parse(said.data)?;
    let id = wanted.id.ok_or(RequestError::new(EINVAL, "8021q: VLAN id not specified"))?;
    let lower = said.lower.ok_or(RequestError::new(EINVAL, "8021q: link not specified"))?;
    let lower = router.links.get(lower).ok_or(RequestError::new(ENODEV, "8021q: link does not exist"))?;
    let tag = vlan::Vlan::new(wanted.protocol.unwrap_or(vlan::VLAN), id);
    if !takes_vlans(lower) {
        return Err(RequestError::new(EOPNOTSUPP, "8021q: VLANs not supported on device"));
    }
    let same = |vlan: &Vlan| (vlan.tag.protocol, vlan.tag.id) == (tag.protocol, tag.id);
    if above(router, lower.index).any(|(_, vlan)| same(vlan)) {
        return Err(RequestError::new(EEXIST, "8021q: VLAN device already exists"));
    }
    if said.mtu.is_some_and(|mtu| mtu > lower.mtu) {
        return Err(RequestError::errno(EINVAL));
    }
    if depth(router, lower) + 1 > DEEPEST {
        return Err(RequestError::errno(EMLINK));
    }
    let inherits_mac = !said.address;
    let mut vlan = Vlan { lower: lower.index, tag, inherits_mac, sorted: Arc::default() };
    vlan.change(&wanted);
    Ok(first(link, lower, vlan))
}

/// A VLAN device as it is when it was just made: `vlan_setup`, `vlan_dev_init`.
fn first(link: Link, lower: &Link, vlan: Vlan) -> Link {
    Link {
        flags: lower.flags & !OF_LOWER,
        mtu: lower.mtu,
        broadcast: lower.broadcast,
        mac: if vlan.inherits_mac { lower.mac } else { link.mac },
        carrier: lower.up() && lower.carrier,
        vlan: Some(Box::new(vlan)),
        ..link
    }
}

/// What a link becomes by a request that changes its kind's parameters. Linux: `vlan_validate`, `vlan_changelink`.
pub(super) fn change(link: &Link, vlan: &Vlan, data: &Attribute<'_>) -> Result<Link, RequestError> {
    let wanted = vlan::Wanted::parse(Some(data))?;
    let mut vlan = vlan.clone();
    vlan.change(&wanted);
    Ok(Link { vlan: Some(Box::new(vlan)), ..link.clone() })
}

/// Whether a link can have VLAN devices: not `NETIF_F_VLAN_CHALLENGED`.
const fn takes_vlans(link: &Link) -> bool {
    match link.kind {
        LinkKind::Port(_)
        | LinkKind::Kernel
        | LinkKind::Dummy
        | LinkKind::Ifb
        | LinkKind::Vlan
        | LinkKind::Bridge => true,
        LinkKind::Tunnel(kind) => kind.ethernet(),
        LinkKind::Loopback | LinkKind::Vrf { .. } => false,
    }
}

/// How many links are below one.
fn depth(router: &Router, link: &Link) -> usize {
    std::iter::successors(Some(link), |link| Some(below(router, link)?.1)).take(DEEPEST + 1).count()
}

/// Whether a VLAN device may have the MTU that it is to have. Linux: `vlan_dev_change_mtu`.
pub(super) fn check_mtu(router: &Router, link: &Link) -> Result<(), RequestError> {
    match below(router, link) {
        Some((_, lower)) if link.mtu > lower.mtu => Err(RequestError::errno(ERANGE)),
        _ => Ok(()),
    }
}

/// Whether one that comes up may. Linux: `vlan_dev_open`.
pub(super) fn check_up(router: &Router, link: &Link) -> Result<(), RequestError> {
    match below(router, link) {
        Some((vlan, lower)) if link.up() && !lower.up() && !vlan.is_loose() => {
            Err(RequestError::errno(ENETDOWN))
        }
        _ => Ok(()),
    }
}

fn below<'r>(router: &'r Router, link: &'r Link) -> Option<(&'r Vlan, &'r Link)> {
    let vlan = link.vlan.as_deref()?;
    Some((vlan, router.links.get(vlan.lower)?))
}

/// Whether a VLAN device has a carrier once it is up or down as it is now. Linux: `vlan_dev_open`, `vlan_dev_stop`.
pub(super) fn carrier(router: &Router, old: &Link, new: &Link) -> bool {
    match below(router, new) {
        Some(_) if old.up() && !new.up() => false,
        Some((_, lower)) if !old.up() && new.up() && lower.up() => lower.carrier,
        _ => new.carrier,
    }
}

/// The hardware address of a link that is up or down as it is now: a VLAN device takes that of the link below as it comes up. Linux:
/// `vlan_dev_inherit_address`.
pub(super) fn mac(router: &Router, old: &Link, new: &Link) -> [u8; 6] {
    match below(router, new) {
        Some((vlan, lower)) if !old.up() && new.up() && vlan.inherits_mac => lower.mac,
        _ => new.mac,
    }
}

fn indices_above(router: &Router, lower: u32) -> Vec<u32> {
    let mut found: Vec<_> =
        above(router, lower).map(|(link, vlan)| (vlan.tag.protocol, vlan.tag.id, link.index)).collect();
    found.sort_unstable();
    found.into_iter().map(|(_, _, index)| index).collect()
}

/// A link is now `new`: its VLAN devices follow. Linux: `vlan_device_event`.
pub(super) fn follow(router: &mut Router, cause: Cause, old: &Link, new: &Link) {
    let (was_up, is_up) = (old.up(), new.up());
    let takes =
        |link: &Link| (link.up(), link.mac, link.bridge_port.is_some(), link.flags & IFF_PROMISC as u32);
    if new.vlan.is_some() && takes(old) != takes(new) {
        publish_bridge_below(router, new.index);
    }
    let changed = old.mac != new.mac || old.mtu != new.mtu || was_up != is_up || old.carrier != new.carrier;
    if !changed {
        return;
    }
    for index in indices_above(router, new.index) {
        let Some(link) = router.links.get(index).cloned() else { continue };
        let Some(vlan) = link.vlan.clone() else { continue };
        let mut flags = link.flags;
        let mut carrier = link.carrier;
        match (was_up, is_up) {
            (true, false) if !vlan.is_loose() => flags &= !(IFF_UP as u32),
            (_, true) => {
                flags |= if was_up || vlan.is_loose() { 0 } else { IFF_UP as u32 };
                carrier = new.carrier;
            }
            _ => {}
        }
        let follows = vlan.inherits_mac && flags & IFF_UP as u32 != 0;
        let mac = if follows { new.mac } else { link.mac };
        let mtu = link.mtu.min(new.mtu);
        change_link(router, cause, Link { flags, mac, mtu, carrier, ..link });
    }
}

/// The link below a VLAN device has it, or has it no more.
pub(super) fn publish_lower(router: &mut Router, link: &Link) {
    if let Some(vlan) = &link.vlan {
        publish_link(router, vlan.lower);
        publish_bridge_below(router, vlan.lower);
    }
}

/// A bridge below VLAN devices takes frames for their addresses, too.
fn publish_bridge_below(router: &mut Router, upper: u32) {
    let Some(upper) = router.links.get(upper) else { return };
    let lowers = std::iter::successors(Some(upper), |link| Some(below(router, link)?.1)).take(DEEPEST + 1);
    if let Some(bridge) = lowers.last().filter(|link| link.bridge.is_some()).map(|link| link.index) {
        publish_link(router, bridge);
    }
}

/// Deletes the VLAN devices and the VXLANs of a link that is about to be deleted itself. Linux: `vlan_device_event`,
/// `vxlan_handle_lowerdev_unregister`.
pub(super) fn delete_above(router: &mut Router, cause: Cause, lower: u32) {
    for index in doomed_with(router, lower) {
        delete_link(router, cause, index);
    }
}

/// The links that go with the one below them.
fn doomed_with(router: &Router, lower: u32) -> Vec<u32> {
    let mut doomed = indices_above(router, lower);
    doomed.extend(vxlan::above(router, lower));
    doomed
}

/// A VLAN device as a request makes it, to compare with.
pub(super) fn as_made(router: &Router, link: &Link, vlan: &Vlan) -> Link {
    let made = Link::new(link.index, link.name.clone(), link.kind, link.mac);
    match router.links.get(vlan.lower) {
        Some(lower) => first(made, lower, vlan.clone()),
        None => made,
    }
}

/// VLAN devices follow the links below them, now that all are up that are to be.
pub(super) fn bind(save: &mut Save<'_>) {
    for (link, _) in vlans(save.router).filter(|(_, vlan)| !vlan.is_loose()) {
        let name = save.name(link.index);
        save.line(Words::new(&format!("ip link set dev {name} type vlan loose_binding off")));
    }
}

/// `type` and what follows it. The device is bound loosely at first, so that it comes up when its turn is: [`bind`].
pub(super) fn words(vlan: &Vlan) -> Words {
    let vlan::Vlan { protocol: of_tag, id, flags, ingress: _, egress: _ } = &vlan.tag;
    let mut words = Words::new("type vlan");
    words.pair("protocol", protocol(*of_tag)).pair("id", id);
    let switch = |on: bool| if on { "on" } else { "off" };
    words.pair("reorder_hdr", switch(flags & REORDER_HDR != 0));
    words.add("loose_binding on");
    let maps: [(&str, Vec<_>); 2] = [
        ("ingress-qos-map", vlan.tag.ingress_pairs().collect()),
        // The last that is said is shown first.
        ("egress-qos-map", vlan.tag.egress_pairs().collect::<Vec<_>>().into_iter().rev().collect()),
    ];
    for (name, map) in maps.into_iter().filter(|(_, map)| !map.is_empty()) {
        words.add(name);
        map.into_iter().for_each(|(from, to)| {
            words.add(format!("{from}:{to}"));
        });
    }
    words
}
