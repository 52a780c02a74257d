//! What makes a link a port of a bridge: `IFLA_INFO_SLAVE_DATA`, and `IFLA_PROTINFO` in a message of `AF_BRIDGE`. Linux:
//! `net/bridge/br_netlink.c`.

use libc::{EINVAL, EOPNOTSUPP, ERANGE};

use super::{PortInTree, SpanningTree};
use crate::RequestError;
use crate::attribute::{Attribute, Attributes, Type, Validate, policy};
use crate::reply::Reply;

const PORT_STATE: u16 = 1;
const PORT_PRIORITY: u16 = 2;
const PORT_COST: u16 = 3;
const PORT_MODE: u16 = 4;
const PORT_GUARD: u16 = 5;
const PORT_PROTECT: u16 = 6;
const PORT_FAST_LEAVE: u16 = 7;
const PORT_LEARNING: u16 = 8;
const PORT_UNICAST_FLOOD: u16 = 9;
const PORT_PROXYARP: u16 = 10;
const PORT_PROXYARP_WIFI: u16 = 12;
const PORT_ROOT_ID: u16 = 13;
const PORT_BRIDGE_ID: u16 = 14;
const PORT_DESIGNATED_PORT: u16 = 15;
const PORT_DESIGNATED_COST: u16 = 16;
const PORT_ID: u16 = 17;
const PORT_NO: u16 = 18;
const PORT_TOPOLOGY_CHANGE_ACK: u16 = 19;
const PORT_CONFIG_PENDING: u16 = 20;
const PORT_MESSAGE_AGE_TIMER: u16 = 21;
const PORT_FORWARD_DELAY_TIMER: u16 = 22;
const PORT_HOLD_TIMER: u16 = 23;
const PORT_FLUSH: u16 = 24;
const PORT_MULTICAST_ROUTER: u16 = 25;
const PORT_PAD: u16 = 26;
const PORT_MCAST_FLOOD: u16 = 27;
const PORT_MCAST_TO_UCAST: u16 = 28;
/// `IFLA_BRPORT_VLAN_TUNNEL`.
pub const PORT_VLAN_TUNNEL: u16 = 29;
const PORT_BCAST_FLOOD: u16 = 30;
const PORT_GROUP_FWD_MASK: u16 = 31;
const PORT_NEIGH_SUPPRESS: u16 = 32;
const PORT_ISOLATED: u16 = 33;
const PORT_MRP_RING_OPEN: u16 = 35;
const PORT_MRP_IN_OPEN: u16 = 36;
const PORT_MCAST_EHT_HOSTS_LIMIT: u16 = 37;
const PORT_MCAST_EHT_HOSTS_CNT: u16 = 38;
const PORT_LOCKED: u16 = 39;
const PORT_MAB: u16 = 40;
const PORT_MCAST_N_GROUPS: u16 = 41;
const PORT_MCAST_MAX_GROUPS: u16 = 42;
const PORT_NEIGH_VLAN_SUPPRESS: u16 = 43;

/// The highest attribute of a port.
const PORT_LAST: usize = 45;

const PORT_POLICY: [Type; PORT_LAST] = policy(&[
    (PORT_STATE, Type::U8),
    (PORT_PRIORITY, Type::U16),
    (PORT_COST, Type::U32),
    (PORT_MODE, Type::U8),
    (PORT_GUARD, Type::U8),
    (PORT_PROTECT, Type::U8),
    (PORT_FAST_LEAVE, Type::U8),
    (PORT_LEARNING, Type::U8),
    (PORT_UNICAST_FLOOD, Type::U8),
    (PORT_PROXYARP, Type::U8),
    (PORT_PROXYARP_WIFI, Type::U8),
    (PORT_FLUSH, Type::Flag),
    (PORT_MULTICAST_ROUTER, Type::U8),
    (PORT_MCAST_FLOOD, Type::U8),
    (PORT_MCAST_TO_UCAST, Type::U8),
    (PORT_VLAN_TUNNEL, Type::U8),
    (PORT_BCAST_FLOOD, Type::U8),
    (PORT_GROUP_FWD_MASK, Type::U16),
    (PORT_NEIGH_SUPPRESS, Type::U8),
    (PORT_ISOLATED, Type::U8),
    (34, Type::Unsupported), // IFLA_BRPORT_BACKUP_PORT
    (PORT_MCAST_EHT_HOSTS_LIMIT, Type::Unsupported),
    (PORT_LOCKED, Type::U8),
    (PORT_MAB, Type::U8),
    (PORT_MCAST_MAX_GROUPS, Type::Unsupported),
    (PORT_NEIGH_VLAN_SUPPRESS, Type::U8),
    (44, Type::Unsupported), // IFLA_BRPORT_BACKUP_NHID
]);

/// `BR_STATE_DISABLED`.
pub const DISABLED: u8 = 0;
/// `BR_STATE_LISTENING`.
pub const LISTENING: u8 = 1;
/// `BR_STATE_LEARNING`.
pub const LEARNING: u8 = 2;
/// `BR_STATE_FORWARDING`.
pub const FORWARDING: u8 = 3;
/// `BR_STATE_BLOCKING`.
pub const BLOCKING: u8 = 4;

/// A switch of a port: `BR_HAIRPIN_MODE`.
pub const HAIRPIN: u16 = 1;
/// `BR_BPDU_GUARD`.
pub const GUARD: u16 = 2;
/// `BR_ROOT_BLOCK`.
pub const ROOT_BLOCK: u16 = 4;
/// `BR_LEARNING`.
pub const LEARNS: u16 = 8;
/// `BR_FLOOD`.
pub const FLOOD: u16 = 16;
/// `BR_MCAST_FLOOD`.
pub const MCAST_FLOOD: u16 = 32;
/// `BR_BCAST_FLOOD`.
pub const BCAST_FLOOD: u16 = 64;
/// `BR_ISOLATED`.
pub const ISOLATED: u16 = 128;
/// `BR_NEIGH_SUPPRESS`.
pub const NEIGH_SUPPRESS: u16 = 256;
/// `BR_NEIGH_VLAN_SUPPRESS`.
pub const NEIGH_VLAN_SUPPRESS: u16 = 512;
/// `BR_PROXYARP`.
pub const PROXY_ARP: u16 = 1024;
/// `BR_PROXYARP_WIFI`.
pub const PROXY_ARP_WIFI: u16 = 2048;
/// `BR_PORT_LOCKED`.
pub const LOCKED: u16 = 4096;

/// `BR_VLAN_TUNNEL`.
pub const VLAN_TUNNEL: u16 = 8192;

/// Each with its attribute.
const SWITCHES: [(u16, u16); 14] = [
    (PORT_MODE, HAIRPIN),
    (PORT_GUARD, GUARD),
    (PORT_PROTECT, ROOT_BLOCK),
    (PORT_LEARNING, LEARNS),
    (PORT_UNICAST_FLOOD, FLOOD),
    (PORT_MCAST_FLOOD, MCAST_FLOOD),
    (PORT_BCAST_FLOOD, BCAST_FLOOD),
    (PORT_ISOLATED, ISOLATED),
    (PORT_NEIGH_SUPPRESS, NEIGH_SUPPRESS),
    (PORT_NEIGH_VLAN_SUPPRESS, NEIGH_VLAN_SUPPRESS),
    (PORT_PROXYARP, PROXY_ARP),
    (PORT_PROXYARP_WIFI, PROXY_ARP_WIFI),
    (PORT_LOCKED, LOCKED),
    (PORT_VLAN_TUNNEL, VLAN_TUNNEL),
];

/// What cannot be switched on.
const REFUSED: [(u16, &str); 3] = [
    (PORT_FAST_LEAVE, "fastleave is not supported by this router"),
    (PORT_MCAST_TO_UCAST, "mcast_to_unicast is not supported by this router"),
    (PORT_MAB, "mab is not supported by this router"),
];

/// What makes a link a port of a bridge, but for the bridge and its VLANs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Port {
    /// [`FORWARDING`] and the others.
    pub state: u8,
    /// At most 63.
    pub priority: u16,
    /// Cost of the path by it, at least 1.
    pub cost: u32,
    /// Whether a request has set that: `BR_ADMIN_COST`.
    pub cost_is_set: bool,
    /// [`HAIRPIN`] and the others.
    pub switches: u16,
    /// The link-local groups whose frames it forwards, a bit each.
    pub group_fwd_mask: u16,
    /// Its number in the bridge, from 1 on.
    pub number: u16,
}

/// Cost of the path by a link of so many megabits a second, which may not be known. Linux: `port_cost`.
pub const fn path_cost(speed: Option<u32>) -> u32 {
    match speed {
        Some(100) => 19,
        Some(1000) => 5,
        Some(2500) => 4,
        Some(5000) => 3,
        Some(10_000) => 2,
        Some(10_001..) => 1,
        _ => 100,
    }
}

impl Port {
    /// One as it is when it was just made: `new_nbp`.
    pub const fn new(number: u16) -> Self {
        Self {
            state: DISABLED,
            priority: 32,
            cost: path_cost(None),
            cost_is_set: false,
            switches: LEARNS | FLOOD | MCAST_FLOOD | BCAST_FLOOD,
            group_fwd_mask: 0,
            number,
        }
    }

    /// Whether a switch is on.
    pub const fn has(&self, switch: u16) -> bool {
        self.switches & switch != 0
    }

    /// Its identifier: IEEE 802.1D-1998, clause 9.2.7, with the priority of Linux, of six bits.
    pub const fn id(&self) -> u16 {
        self.priority << 10 | self.number & 0x03ff
    }

    /// Becomes what a request says in `IFLA_INFO_SLAVE_DATA` or `IFLA_PROTINFO`; `up`, `carrier`: whether
    /// its link is up, and has one; `tree`: that of its bridge. Whether its stations are to be forgotten. Linux: `br_setport`.
    ///
    /// # Errors
    /// Those of Linux; `EOPNOTSUPP` for what the router does not have.
    pub fn change(
        &mut self,
        data: &Attribute<'_>,
        (up, carrier): (bool, bool),
        tree: SpanningTree,
    ) -> Result<bool, RequestError> {
        let data: Attributes<'_, PORT_LAST> = data.parse_nested(&PORT_POLICY, Validate::Liberal)?;
        for (kind, text) in REFUSED {
            if let Some(on) = data.get(kind).filter(|on| on.u8() != 0) {
                return Err(RequestError::new(EOPNOTSUPP, text).at(on.offset));
            }
        }
        if let Some(router) = data.get(PORT_MULTICAST_ROUTER).filter(|router| router.u8() != 1) {
            let text = "mcast_router is not supported by this router";
            return Err(RequestError::new(EOPNOTSUPP, text).at(router.offset));
        }
        for (kind, switch) in SWITCHES {
            if let Some(on) = data.get(kind) {
                self.switches = self.switches & !switch | if on.u8() != 0 { switch } else { 0 };
            }
        }
        if let Some(cost) = data.get(PORT_COST).map(|cost| cost.u32()) {
            if cost == 0 || cost > 65535 {
                return Err(RequestError::errno(ERANGE));
            }
            (self.cost, self.cost_is_set) = (cost, true);
        }
        if let Some(priority) = data.get(PORT_PRIORITY).map(|priority| priority.u16()) {
            if priority > 63 {
                return Err(RequestError::errno(ERANGE));
            }
            self.priority = priority;
        }
        if let Some(state) = data.get(PORT_STATE).map(|state| state.u8()) {
            if state > BLOCKING {
                return Err(RequestError::errno(EINVAL));
            }
            // Linux: `br_set_port_state`.
            if tree == SpanningTree::Own {
                return Err(RequestError::errno(libc::EBUSY));
            }
            if !up || !carrier && state != DISABLED {
                return Err(RequestError::errno(libc::ENETDOWN));
            }
            self.state = state;
        }
        if let Some(mask) = data.get(PORT_GROUP_FWD_MASK) {
            // Linux: `BR_GROUPFWD_MACPAUSE`.
            if mask.u16() & 2 != 0 {
                return Err(RequestError::errno(EINVAL));
            }
            self.group_fwd_mask = mask.u16();
        }
        Ok(data.get(PORT_FLUSH).is_some())
    }

    /// Where it is in the tree of a bridge with this identifier that knows no other bridge.
    pub fn alone(&self, bridge: [u8; 8]) -> PortInTree {
        PortInTree { root: bridge, bridge, port: self.id(), ..PortInTree::default() }
    }

    /// Writes what makes it a port of a bridge. Linux: `br_port_fill_attrs`.
    pub fn write(&self, reply: &mut Reply<'_>, tree: &PortInTree) {
        reply.u8(PORT_STATE, self.state);
        reply.u16(PORT_PRIORITY, self.priority);
        reply.u32(PORT_COST, self.cost);
        for (kind, switch) in SWITCHES {
            reply.u8(kind, self.has(switch).into());
        }
        for (kind, _) in REFUSED {
            reply.u8(kind, 0);
        }
        reply.attribute(PORT_ROOT_ID, &tree.root);
        reply.attribute(PORT_BRIDGE_ID, &tree.bridge);
        reply.u16(PORT_DESIGNATED_PORT, tree.port);
        reply.u16(PORT_DESIGNATED_COST, tree.cost as u16);
        reply.u16(PORT_ID, self.id());
        reply.u16(PORT_NO, self.number);
        reply.u8(PORT_TOPOLOGY_CHANGE_ACK, tree.acknowledges.into());
        reply.u8(PORT_CONFIG_PENDING, tree.pending.into());
        reply.u16(PORT_GROUP_FWD_MASK, self.group_fwd_mask);
        reply.u8(PORT_MRP_RING_OPEN, 0);
        reply.u8(PORT_MRP_IN_OPEN, 0);
        let timers = [PORT_MESSAGE_AGE_TIMER, PORT_FORWARD_DELAY_TIMER, PORT_HOLD_TIMER];
        for (timer, left) in timers.into_iter().zip(tree.timers) {
            reply.u64_aligned(timer, left, PORT_PAD);
        }
        reply.u8(PORT_MULTICAST_ROUTER, 1);
        reply.u32(PORT_MCAST_EHT_HOSTS_LIMIT, 512);
        reply.u32(PORT_MCAST_EHT_HOSTS_CNT, 0);
        reply.u32(PORT_MCAST_N_GROUPS, 0);
        reply.u32(PORT_MCAST_MAX_GROUPS, 0);
    }
}
