//! What bridges need to know that answer ARP requests and neighbour solicitations for others. Linux:
//! `net/bridge/br_arp_nd_proxy.c`.

use std::collections::BTreeSet;
use std::net::IpAddr;

use libc::{IFA_F_TENTATIVE, IFF_NOARP};
use underpass_engine::tables::{Answering, LinkId, Suppresses, VlanSet};
use underpass_netlink::bridge::{NEIGH_SUPPRESS, NEIGH_VLAN_SUPPRESS, PROXY_ARP, PROXY_ARP_WIFI};

use super::device::{Bridge, BridgePort};
use crate::Router;
use crate::link::Link;

/// The requests that are suppressed at a port.
pub(super) fn suppresses(port: &BridgePort) -> Suppresses {
    let all = port.settings.has(NEIGH_SUPPRESS);
    if port.settings.has(NEIGH_VLAN_SUPPRESS) {
        let vlans: Box<VlanSet> = port.vlans.suppressed().collect();
        return Suppresses::Vlans(vlans, all);
    }
    if all { Suppresses::All } else { Suppresses::None }
}

/// How a bridge answers for others. `None`: no port of it asks for that.
pub(super) fn compile(router: &Router, link: &Link, bridge: &Bridge) -> Option<Box<Answering>> {
    let switches = switches(router, link.index);
    if switches == 0 {
        return None;
    }
    let suppresses = switches & (NEIGH_SUPPRESS | NEIGH_VLAN_SUPPRESS) != 0;
    let mut answering =
        Answering { suppresses, arp: link.flags & IFF_NOARP as u32 == 0, ..Answering::default() };
    if suppresses {
        fill_own(router, link, bridge, &mut answering);
    }
    Some(Box::new(answering))
}

/// Those of the switches that make a bridge answer for others that any of its ports has.
fn switches(router: &Router, bridge: u32) -> u16 {
    let ports = router.links.slaves(bridge).filter_map(|port| port.bridge_port.as_ref());
    let all = NEIGH_SUPPRESS | NEIGH_VLAN_SUPPRESS | PROXY_ARP | PROXY_ARP_WIFI;
    ports.fold(0, |switches, port| switches | port.settings.switches & all)
}

/// What is the router's own at the bridge's device, or at the VLAN devices above it.
fn fill_own(router: &Router, link: &Link, bridge: &Bridge, answering: &mut Answering) {
    let devices: Vec<&Link> = if bridge.settings.vlan_filtering {
        let of_it = |device: &&Link| {
            let vlan = device.vlan.as_ref().filter(|vlan| vlan.lower == link.index);
            vlan.is_some_and(|vlan| vlan.tag.protocol == bridge.settings.vlan_protocol)
        };
        router.links.iter().filter(of_it).collect()
    } else {
        vec![link]
    };
    let (mut own, mut instances) = (BTreeSet::new(), BTreeSet::new());
    for device in devices {
        for index in router.links.closure(device.index) {
            own.extend(addresses_of(router, index).map(|address| (device.id, address)));
            instances.insert((device.id, instance_of(router, index)));
        }
    }
    let used: BTreeSet<LinkId> = instances.iter().map(|(_, instance)| *instance).collect();
    for address in router.addresses.iter().filter(|address| address.flags & IFA_F_TENTATIVE == 0) {
        let instance = instance_of(router, address.link);
        if is_shared(address.local) && used.contains(&instance) {
            own.insert((instance, address.local));
        }
    }
    answering.own = own.into_iter().collect();
    answering.instances = instances.into_iter().collect();
}

/// The IPv4 addresses of a link, and those of IPv6 that are of it alone. Linux: `inet_confirm_addr`, `ipv6_chk_addr`.
fn addresses_of(router: &Router, index: u32) -> impl Iterator<Item = IpAddr> {
    let v4 = router.addresses.v4(index);
    // Of an address with a peer the prefix is that of the peer.
    let on_link = |address: IpAddr| {
        v4.iter().filter_map(|other| other.prefix()).any(|prefix| prefix.contains(&address))
    };
    let v4 = v4.iter().map(|address| address.local).filter(move |address| on_link(*address));
    let v6 = router.addresses.v6(index).iter().filter(|address| address.flags & IFA_F_TENTATIVE == 0);
    v4.chain(v6.map(|address| address.local).filter(|address| is_of_link(*address)))
}

/// Whether an IPv6 address is of its link alone.
fn is_of_link(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local() || address.is_loopback())
}

/// Whether an address is the router's own at all links of its routing instance.
pub(super) fn is_shared(address: IpAddr) -> bool {
    address.is_ipv6() && !is_of_link(address)
}

/// What stands for the routing instance of a link.
pub(super) fn instance_of(router: &Router, index: u32) -> LinkId {
    Answering::instance(router.links.vrf_of(index).map(|vrf| vrf.id))
}
