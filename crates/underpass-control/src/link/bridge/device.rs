//! What a bridge is, and a port of one.

use underpass_netlink::bridge::{self, NEIGH_SUPPRESS, NEIGH_VLAN_SUPPRESS};

use super::super::Link;
use super::vlans::Vlans;
use crate::Router;

/// What makes a link a bridge, but for its ports and stations.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Bridge {
    /// What requests have set of it.
    pub settings: bridge::Bridge,
    /// The address in its identifier: none before it has had a port or was given one.
    pub id: [u8; 6],
    /// Whether a request has set its address, which otherwise is the lowest of its ports: `NET_ADDR_SET`.
    pub mac_is_set: bool,
    /// The same of its MTU: `BROPT_MTU_SET_BY_USER`.
    pub mtu_is_set: bool,
    /// Its own VLANs.
    pub vlans: Vlans,
}

/// What makes a link a port of the bridge that it is enslaved to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BridgePort {
    /// What requests have set of it.
    pub settings: bridge::Port,
    /// Its VLANs.
    pub vlans: Vlans,
}

impl BridgePort {
    /// Whether its bridge suppresses requests at it, in some of its VLANs or in all.
    pub(in crate::link) fn suppresses(&self) -> bool {
        self.settings.switches & (NEIGH_SUPPRESS | NEIGH_VLAN_SUPPRESS) != 0
    }
}

/// The bridge that a link is a port of.
pub(in crate::link) fn bridge_of(router: &Router, master: Option<u32>) -> Option<&Link> {
    router.links.get(master?).filter(|link| link.bridge.is_some())
}

impl Link {
    /// Its VLANs in a bridge: those of a port, or of the bridge itself.
    pub(in crate::link) fn bridge_vlans(&self) -> Option<&Vlans> {
        let of_port = self.bridge_port.as_ref().map(|port| &port.vlans);
        of_port.or(self.bridge.as_ref().map(|bridge| &bridge.vlans))
    }

    /// The bridge that it is, or that it is a port of.
    pub(in crate::link) fn bridge_index(&self) -> Option<u32> {
        if self.bridge.is_some() {
            Some(self.index)
        } else {
            self.master.filter(|_| self.bridge_port.is_some())
        }
    }
}
