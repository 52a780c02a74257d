//! A bridge and its ports, compiled for the packet path.

use std::sync::Arc;

use underpass_engine::tables::{self, PortState};
use underpass_netlink::bridge::{
    BCAST_FLOOD, FLOOD, FORWARDING, HAIRPIN, ISOLATED, LEARNING, LEARNS, LOCKED, MCAST_FLOOD, PROXY_ARP,
    PROXY_ARP_WIFI, SpanningTree,
};

use super::device::bridge_of;
use super::{answer, trees};
use crate::Router;
use crate::link::Link;
use crate::link::tunnel::vxlan::networks;
use crate::link::vlan::compile::is_promiscuous;

/// A bridge as the packet path needs it.
pub(in crate::link) fn compile(router: &Router, link: &Link) -> Option<Box<tables::Bridge>> {
    let bridge = link.bridge.as_ref()?;
    let settings = &bridge.settings;
    Some(Box::new(tables::Bridge {
        ports: router.links.slaves(link.index).map(|port| port.id).collect(),
        fdb: router.stations.get(&link.index).map(|stations| Arc::clone(&stations.table)).unwrap_or_default(),
        ageing: trees::ageing(router, link),
        spanning_tree: settings.spanning_tree != SpanningTree::Off,
        group_forward: settings.forwards(),
        filters: settings.vlan_filtering.then(|| (settings.vlan_protocol, bridge.vlans.compile())),
        answering: answer::compile(router, link, bridge),
        promiscuous: is_promiscuous(router, link),
    }))
}

/// A port of a bridge as the packet path needs it.
pub(in crate::link) fn compile_port(router: &Router, link: &Link) -> Option<Box<tables::BridgePort>> {
    let port = link.bridge_port.as_ref()?;
    let master = bridge_of(router, link.master)?;
    let filters = master.bridge.as_ref().is_some_and(|bridge| bridge.settings.vlan_filtering);
    let settings = &port.settings;
    Some(Box::new(tables::BridgePort {
        bridge: master.id,
        number: settings.number,
        state: match settings.state {
            LEARNING => PortState::Learning,
            FORWARDING => PortState::Forwarding,
            _ => PortState::Closed,
        },
        learns: settings.has(LEARNS),
        locked: settings.has(LOCKED),
        floods: [FLOOD, MCAST_FLOOD, BCAST_FLOOD].map(|switch| settings.has(switch)),
        hairpin: settings.has(HAIRPIN),
        isolated: settings.has(ISOLATED),
        group_forward: settings.group_fwd_mask,
        vlans: filters.then(|| port.vlans.compile()),
        suppresses: answer::suppresses(port),
        proxy_arp: settings.has(PROXY_ARP),
        proxy_arp_wifi: settings.has(PROXY_ARP_WIFI),
        networks: networks::compile(router, link),
    }))
}
