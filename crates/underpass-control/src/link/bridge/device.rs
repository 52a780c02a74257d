//! What a bridge is, and a port of one.

use underpass_netlink::bridge::{self, NEIGH_SUPPRESS, NEIGH_VLAN_SUPPRESS};

use super::vlans::Vlans;

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
