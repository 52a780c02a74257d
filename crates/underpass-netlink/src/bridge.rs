//! `IFLA_INFO_DATA` of a bridge, and what makes a link a port of one. Linux: `net/bridge/br_netlink.c`.
//!
//! ```text
//! IFLA_INFO_KIND "bridge":       IFLA_INFO_DATA        IFLA_BR_*
//! IFLA_INFO_SLAVE_KIND "bridge": IFLA_INFO_SLAVE_DATA  IFLA_BRPORT_*; IFLA_PROTINFO has the same in a message of AF_BRIDGE
//! ```

mod port;

use libc::{EINVAL, EOPNOTSUPP, EPROTONOSUPPORT, ERANGE};

pub use port::*;

use crate::RequestError;
use crate::attribute::{Attribute, Attributes, Type, Validate, policy};
use crate::reply::Reply;
use crate::vlan::{SERVICE_VLAN, VLAN};

const FORWARD_DELAY: u16 = 1;
const HELLO_TIME: u16 = 2;
const MAX_AGE: u16 = 3;
const AGEING_TIME: u16 = 4;
const STP_STATE: u16 = 5;
const PRIORITY: u16 = 6;
const VLAN_FILTERING: u16 = 7;
const VLAN_PROTOCOL: u16 = 8;
const GROUP_FWD_MASK: u16 = 9;
const ROOT_ID: u16 = 10;
const BRIDGE_ID: u16 = 11;
const ROOT_PORT: u16 = 12;
const ROOT_PATH_COST: u16 = 13;
const TOPOLOGY_CHANGE: u16 = 14;
const TOPOLOGY_CHANGE_DETECTED: u16 = 15;
const HELLO_TIMER: u16 = 16;
const TCN_TIMER: u16 = 17;
const TOPOLOGY_CHANGE_TIMER: u16 = 18;
const GC_TIMER: u16 = 19;
const GROUP_ADDR: u16 = 20;
const FDB_FLUSH: u16 = 21;
const MCAST_ROUTER: u16 = 22;
const MCAST_SNOOPING: u16 = 23;
const MCAST_QUERY_USE_IFADDR: u16 = 24;
const MCAST_QUERIER: u16 = 25;
const MCAST_HASH_ELASTICITY: u16 = 26;
const MCAST_HASH_MAX: u16 = 27;
const MCAST_LAST_MEMBER_CNT: u16 = 28;
const MCAST_STARTUP_QUERY_CNT: u16 = 29;
const MCAST_LAST_MEMBER_INTVL: u16 = 30;
const MCAST_MEMBERSHIP_INTVL: u16 = 31;
const MCAST_QUERIER_INTVL: u16 = 32;
const MCAST_QUERY_INTVL: u16 = 33;
const MCAST_QUERY_RESPONSE_INTVL: u16 = 34;
const MCAST_STARTUP_QUERY_INTVL: u16 = 35;
const VLAN_DEFAULT_PVID: u16 = 39;
const PAD: u16 = 40;
const VLAN_STATS_ENABLED: u16 = 41;
const MCAST_STATS_ENABLED: u16 = 42;
const MCAST_IGMP_VERSION: u16 = 43;
const MCAST_MLD_VERSION: u16 = 44;
const VLAN_STATS_PER_PORT: u16 = 45;
const MULTI_BOOLOPT: u16 = 46;
const FDB_N_LEARNED: u16 = 48;
const FDB_MAX_LEARNED: u16 = 49;

/// The highest attribute of a bridge.
const LAST: usize = FDB_MAX_LEARNED as usize + 1;

const POLICY: [Type; LAST] = policy(&[
    (FORWARD_DELAY, Type::U32),
    (HELLO_TIME, Type::U32),
    (MAX_AGE, Type::U32),
    (AGEING_TIME, Type::U32),
    (STP_STATE, Type::U32),
    (PRIORITY, Type::U16),
    (VLAN_FILTERING, Type::U8),
    (VLAN_PROTOCOL, Type::U16),
    (GROUP_FWD_MASK, Type::U16),
    (ROOT_ID, Type::Unsupported),
    (BRIDGE_ID, Type::Unsupported),
    (ROOT_PORT, Type::Unsupported),
    (ROOT_PATH_COST, Type::Unsupported),
    (TOPOLOGY_CHANGE, Type::Unsupported),
    (TOPOLOGY_CHANGE_DETECTED, Type::Unsupported),
    (HELLO_TIMER, Type::Unsupported),
    (TCN_TIMER, Type::Unsupported),
    (TOPOLOGY_CHANGE_TIMER, Type::Unsupported),
    (GC_TIMER, Type::Unsupported),
    (GROUP_ADDR, Type::Unsupported),
    (FDB_FLUSH, Type::Any),
    (MCAST_ROUTER, Type::Unsupported),
    (MCAST_SNOOPING, Type::U8),
    (MCAST_QUERY_USE_IFADDR, Type::Unsupported),
    (MCAST_QUERIER, Type::U8),
    (MCAST_HASH_ELASTICITY, Type::Unsupported),
    (MCAST_HASH_MAX, Type::Unsupported),
    (MCAST_LAST_MEMBER_CNT, Type::Unsupported),
    (MCAST_STARTUP_QUERY_CNT, Type::Unsupported),
    (MCAST_LAST_MEMBER_INTVL, Type::Unsupported),
    (MCAST_MEMBERSHIP_INTVL, Type::Unsupported),
    (MCAST_QUERIER_INTVL, Type::Unsupported),
    (MCAST_QUERY_INTVL, Type::Unsupported),
    (MCAST_QUERY_RESPONSE_INTVL, Type::Unsupported),
    (MCAST_STARTUP_QUERY_INTVL, Type::Unsupported),
    (36, Type::Unsupported), // IFLA_BR_NF_CALL_IPTABLES
    (37, Type::Unsupported), // IFLA_BR_NF_CALL_IP6TABLES
    (38, Type::Unsupported), // IFLA_BR_NF_CALL_ARPTABLES
    (VLAN_DEFAULT_PVID, Type::U16),
    (VLAN_STATS_ENABLED, Type::U8),
    (MCAST_STATS_ENABLED, Type::U8),
    (MCAST_IGMP_VERSION, Type::Unsupported),
    (MCAST_MLD_VERSION, Type::Unsupported),
    (VLAN_STATS_PER_PORT, Type::U8),
    (MULTI_BOOLOPT, Type::Unsupported),
    (FDB_MAX_LEARNED, Type::Unsupported),
]);

/// Ticks of the clock in which times are told: `USER_HZ`.
const TICKS: u32 = 100;

/// The groups that may not be forwarded: `BR_GROUPFWD_RESTRICTED`.
const RESTRICTED: u16 = 7;

/// The groups that a bridge of service VLANs forwards: `BR_GROUPFWD_8021AD`.
const PROVIDER_FORWARDS: u16 = 0xb801;

/// Shortest and longest forward delay of a bridge with a spanning tree: `BR_MIN_FORWARD_DELAY`, `BR_MAX_FORWARD_DELAY`.
const FORWARD_DELAYS: [u32; 2] = [2 * TICKS, 30 * TICKS];

/// Who decides which ports of a bridge pass frames on, so that there is no loop.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SpanningTree {
    /// Nobody: `BR_NO_STP`.
    #[default]
    Off,
    /// The bridge, by IEEE 802.1D: `BR_KERNEL_STP`.
    Own,
    /// A program, which sets the states of ports: `BR_USER_STP`.
    Program,
}

/// A bridge, but for its ports.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Bridge {
    /// Who decides which ports pass frames on.
    pub spanning_tree: SpanningTree,
    /// How long a port listens, and how long it learns, in hundredths of a second: where the bridge is the root.
    pub forward_delay: u32,
    /// The same unit: how often it says hello.
    pub hello_time: u32,
    /// How long what it heard of other bridges holds.
    pub max_age: u32,
    /// After how long a station is forgotten.
    pub ageing_time: u32,
    /// Priority in its identifier.
    pub priority: u16,
    /// The link-local groups whose frames it forwards, a bit each.
    pub group_fwd_mask: u16,
    /// Whether it keeps VLANs apart.
    pub vlan_filtering: bool,
    /// [`VLAN`] or [`SERVICE_VLAN`].
    pub vlan_protocol: u16,
    /// The VLAN of frames without a tag at a new port; 0: none.
    pub default_pvid: u16,
}

impl Default for Bridge {
    /// One as it is when it was just made: `br_dev_setup`.
    fn default() -> Self {
        Self {
            spanning_tree: SpanningTree::Off,
            forward_delay: 15 * TICKS,
            hello_time: 2 * TICKS,
            max_age: 20 * TICKS,
            ageing_time: 300 * TICKS,
            priority: 0x8000,
            group_fwd_mask: 0,
            vlan_filtering: false,
            vlan_protocol: VLAN,
            default_pvid: 1,
        }
    }
}

/// What is shown of a bridge besides.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Shown {
    /// The address in its identifier.
    pub id: [u8; 6],
    /// How many stations it has learned.
    pub learned: u32,
    /// Where it is in its spanning tree, if it has one.
    pub tree: Option<InTree>,
}

/// Where a bridge is in its spanning tree. Times are in hundredths of a second.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct InTree {
    /// The identifier of the root.
    pub root: [u8; 8],
    /// The number of the port that leads to it; 0: it is the root.
    pub root_port: u16,
    /// What the way to it costs.
    pub root_path_cost: u32,
    /// Whether stations may be elsewhere now, and whether it is the bridge that has seen it.
    pub topology_change: [bool; 2],
    /// How long its timers have left: hello, that for a notification, that of a change.
    pub timers: [u64; 3],
    /// The times that hold, which are those of the root: forward delay, hello time, highest age.
    pub times: [u32; 3],
    /// After how long a station is forgotten, where that is not what was set.
    pub ageing_time: Option<u32>,
}

/// Where a port is in the spanning tree of its bridge. Times are in hundredths of a second.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PortInTree {
    /// The root, by what is sent at the port, and the bridge that sends it.
    pub root: [u8; 8],
    /// The bridge by which others on that network reach the root.
    pub bridge: [u8; 8],
    /// The port of that bridge.
    pub port: u16,
    /// What the way from there to the root costs.
    pub cost: u32,
    /// Whether the next configuration acknowledges a change.
    pub acknowledges: bool,
    /// Whether a configuration waits to be sent.
    pub pending: bool,
    /// How long its timers have left: that of what it heard, that of its state, that of what it sent.
    pub timers: [u64; 3],
}

/// Whether `IFLA_INFO_DATA` can be that of a bridge. Linux: `br_validate`.
///
/// # Errors
/// Those of Linux.
pub fn validate(data: &Attribute<'_>) -> Result<(), RequestError> {
    let data: Attributes<'_, LAST> = data.parse_nested(&POLICY, Validate::Liberal)?;
    let protocol = data.get(VLAN_PROTOCOL).map(|protocol| protocol.be16());
    if protocol.is_some_and(|protocol| !matches!(protocol, VLAN | SERVICE_VLAN)) {
        return Err(RequestError::errno(EPROTONOSUPPORT));
    }
    if data.get(VLAN_DEFAULT_PVID).is_some_and(|pvid| pvid.u16() >= 4095) {
        return Err(RequestError::errno(EINVAL));
    }
    Ok(())
}

impl Bridge {
    /// Becomes what a request says; whether its stations are to be forgotten. Linux: `br_changelink`.
    ///
    /// # Errors
    /// Those of Linux; `EOPNOTSUPP` for multicast snooping and statistics of VLANs.
    pub fn change(&mut self, data: &Attribute<'_>) -> Result<bool, RequestError> {
        validate(data)?;
        let data: Attributes<'_, LAST> = data.parse_nested(&POLICY, Validate::Liberal)?;
        let off = |kind: u16, text: &'static str| match data.get(kind) {
            Some(on) if on.value.iter().any(|byte| *byte != 0) => {
                Err(RequestError::new(EOPNOTSUPP, text).at(on.offset))
            }
            _ => Ok(()),
        };
        off(MCAST_SNOOPING, "mcast_snooping is not supported by this router: groups are flooded")?;
        off(MCAST_QUERIER, "mcast_querier is not supported by this router")?;
        off(MCAST_STATS_ENABLED, "mcast_stats_enabled is not supported by this router")?;
        off(VLAN_STATS_ENABLED, "vlan_stats_enabled is not supported by this router")?;
        off(VLAN_STATS_PER_PORT, "vlan_stats_per_port is not supported by this router")?;
        let [least, most] = FORWARD_DELAYS;
        if let Some(time) = data.get(FORWARD_DELAY).map(|time| time.u32()) {
            if self.spanning_tree != SpanningTree::Off && !(least..=most).contains(&time) {
                return Err(RequestError::errno(ERANGE));
            }
            self.forward_delay = time;
        }
        let bounded = |kind: u16, least: u32, most: u32| match data.get(kind).map(|time| time.u32()) {
            Some(time) if time < least * TICKS || time > most * TICKS => Err(RequestError::errno(ERANGE)),
            time => Ok(time),
        };
        self.hello_time = bounded(HELLO_TIME, 1, 10)?.unwrap_or(self.hello_time);
        self.max_age = bounded(MAX_AGE, 6, 40)?.unwrap_or(self.max_age);
        if let Some(time) = data.get(AGEING_TIME) {
            self.ageing_time = time.u32();
        }
        // Linux: `br_stp_start`. The caller knows whether a program decides.
        match data.get(STP_STATE).map(|on| on.u32() != 0) {
            Some(true) if self.spanning_tree == SpanningTree::Off => {
                self.spanning_tree = SpanningTree::Own;
                self.forward_delay = self.forward_delay.clamp(least, most);
            }
            Some(false) => self.spanning_tree = SpanningTree::Off,
            _ => {}
        }
        if let Some(priority) = data.get(PRIORITY) {
            self.priority = priority.u16();
        }
        if let Some(on) = data.get(VLAN_FILTERING) {
            self.vlan_filtering = on.u8() != 0;
        }
        if let Some(protocol) = data.get(VLAN_PROTOCOL) {
            self.vlan_protocol = protocol.be16();
        }
        if let Some(pvid) = data.get(VLAN_DEFAULT_PVID).map(|pvid| pvid.u16()) {
            self.default_pvid = pvid;
        }
        if let Some(mask) = data.get(GROUP_FWD_MASK) {
            self.group_fwd_mask = group_mask(&mask)?;
        }
        Ok(data.get(FDB_FLUSH).is_some())
    }

    /// Whether it keeps service VLANs apart. Linux: `br_recalculate_group_addr`.
    const fn is_provider(&self) -> bool {
        self.vlan_filtering && self.vlan_protocol == SERVICE_VLAN
    }

    /// The link-local groups whose frames it forwards, a bit each, with those that it has to. Linux:
    /// `br_recalculate_fwd_mask`.
    pub const fn forwards(&self) -> u16 {
        self.group_fwd_mask | if self.is_provider() { PROVIDER_FORWARDS } else { 0 }
    }

    /// The group to which it sends what is for other bridges. Linux: `br_recalculate_group_addr`.
    pub const fn group(&self) -> [u8; 6] {
        [0x01, 0x80, 0xc2, 0, 0, if self.is_provider() { 8 } else { 0 }]
    }

    /// Its identifier with this address: IEEE 802.1D-1998, clause 9.2.5.
    pub const fn id(&self, address: [u8; 6]) -> [u8; 8] {
        let ([a, b], [c, d, e, f, g, h]) = (self.priority.to_be_bytes(), address);
        [a, b, c, d, e, f, g, h]
    }

    /// Writes `IFLA_INFO_DATA`. Linux: `br_fill_info`.
    pub fn write(&self, reply: &mut Reply<'_>, shown: Shown) {
        let id = self.id(shown.id);
        let tree = shown.tree.unwrap_or(InTree {
            root: id,
            times: [self.forward_delay, self.hello_time, self.max_age],
            ..InTree::default()
        });
        let [hello, notification, change] = tree.timers;
        for (timer, left) in
            [(HELLO_TIMER, hello), (TCN_TIMER, notification), (TOPOLOGY_CHANGE_TIMER, change), (GC_TIMER, 0)]
        {
            reply.u64_aligned(timer, left, PAD);
        }
        for (kind, time) in [FORWARD_DELAY, HELLO_TIME, MAX_AGE].into_iter().zip(tree.times) {
            reply.u32(kind, time);
        }
        reply.u32(AGEING_TIME, tree.ageing_time.unwrap_or(self.ageing_time));
        reply.u32(STP_STATE, self.spanning_tree as u32);
        reply.u16(PRIORITY, self.priority);
        reply.u8(VLAN_FILTERING, self.vlan_filtering.into());
        reply.u16(GROUP_FWD_MASK, self.group_fwd_mask);
        reply.attribute(BRIDGE_ID, &id);
        reply.attribute(ROOT_ID, &tree.root);
        reply.u16(ROOT_PORT, tree.root_port);
        reply.u32(ROOT_PATH_COST, tree.root_path_cost);
        let [changes, detected] = tree.topology_change;
        reply.u8(TOPOLOGY_CHANGE, changes.into());
        reply.u8(TOPOLOGY_CHANGE_DETECTED, detected.into());
        reply.attribute(GROUP_ADDR, &self.group());
        // struct br_boolopt_multi: none of three is on.
        reply.attribute(MULTI_BOOLOPT, &[0_u32.to_ne_bytes(), 7_u32.to_ne_bytes()].concat());
        reply.u32(FDB_N_LEARNED, shown.learned);
        reply.u32(FDB_MAX_LEARNED, 0);
        reply.be16(VLAN_PROTOCOL, self.vlan_protocol);
        reply.u16(VLAN_DEFAULT_PVID, self.default_pvid);
        reply.u8(VLAN_STATS_ENABLED, 0);
        reply.u8(VLAN_STATS_PER_PORT, 0);
        write_multicast(reply);
    }
}

/// What Linux begins with, but for snooping.
fn write_multicast(reply: &mut Reply<'_>) {
    reply.u8(MCAST_ROUTER, 1);
    for kind in [MCAST_SNOOPING, MCAST_QUERY_USE_IFADDR, MCAST_QUERIER, MCAST_STATS_ENABLED] {
        reply.u8(kind, 0);
    }
    reply.u32(MCAST_HASH_ELASTICITY, 16);
    reply.u32(MCAST_HASH_MAX, 4096);
    reply.u32(MCAST_LAST_MEMBER_CNT, 2);
    reply.u32(MCAST_STARTUP_QUERY_CNT, 2);
    reply.u8(MCAST_IGMP_VERSION, 2);
    reply.u8(MCAST_MLD_VERSION, 1);
    for (kind, interval) in [
        (MCAST_LAST_MEMBER_INTVL, 100),
        (MCAST_MEMBERSHIP_INTVL, 26000),
        (MCAST_QUERIER_INTVL, 25500),
        (MCAST_QUERY_INTVL, 12500),
        (MCAST_QUERY_RESPONSE_INTVL, 1000),
        (MCAST_STARTUP_QUERY_INTVL, 3125),
    ] {
        reply.u64_aligned(kind, interval, PAD);
    }
}

fn group_mask(mask: &Attribute<'_>) -> Result<u16, RequestError> {
    match mask.u16() {
        bits if bits & RESTRICTED != 0 => Err(RequestError::errno(EINVAL)),
        bits => Ok(bits),
    }
}
