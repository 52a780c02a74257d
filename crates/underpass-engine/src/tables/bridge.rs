//! Bridges and their ports as workers find them. Linux: `net/bridge`.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use super::{LinkId, TunnelId};
use crate::l2::fdb::Fdb;

/// What makes a link a bridge: IEEE 802.1Q.
#[derive(Clone, Debug, Default)]
pub struct Bridge {
    /// Its ports.
    pub ports: Box<[LinkId]>,
    /// Its stations.
    pub fdb: Arc<Fdb>,
    /// After how many milliseconds a station is forgotten. 0: none is learned.
    pub ageing: u64,
    /// The link-local groups whose frames it forwards, a bit each: `group_fwd_mask`.
    pub group_forward: u16,
    /// Whether it has a spanning tree: what is said in it ends at the port.
    pub spanning_tree: bool,
    /// The EtherType of the tags by which it filters, and its own VLANs, where it does.
    pub filters: Option<(u16, Box<Membership>)>,
    /// How it answers for others; `None`: it does not, and looks at no requests.
    pub answering: Option<Box<Answering>>,
    /// Its device gets what is for other stations as well.
    pub promiscuous: bool,
}

impl PartialEq for Bridge {
    fn eq(&self, other: &Self) -> bool {
        let Self { ports, fdb, ageing, group_forward, spanning_tree, filters, answering, promiscuous } = self;
        *ports == other.ports
            && Arc::ptr_eq(fdb, &other.fdb)
            && (*ageing, *group_forward, *spanning_tree)
                == (other.ageing, other.group_forward, other.spanning_tree)
            && *filters == other.filters
            && *answering == other.answering
            && *promiscuous == other.promiscuous
    }
}

impl Eq for Bridge {}

/// What a bridge knows that answers ARP requests and neighbour solicitations for others.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Answering {
    /// Whether requests are suppressed at any of its ports: `BROPT_NEIGH_SUPPRESS_ENABLED`.
    pub suppresses: bool,
    /// Whether it looks at ARP at all: its device is not `arp off`.
    pub arp: bool,
    /// The router's own addresses on its device, or on a VLAN device above it, and on what is above that, in their order: of IPv6
    /// those of one link alone. And those of a routing instance, which a number stands for that is no link's.
    pub own: Box<[(LinkId, IpAddr)]>,
    /// The routing instances whose addresses are own ones at these devices, too, in their order.
    pub instances: Box<[(LinkId, LinkId)]>,
}

impl Answering {
    /// What stands for a routing instance, that of a VRF's device or that of all who are in none.
    pub const fn instance(vrf: Option<LinkId>) -> LinkId {
        match vrf {
            Some(LinkId(id)) => LinkId(1 << 31 | id),
            None => LinkId(u32::MAX),
        }
    }

    /// Whether an address is the router's own at a device. Linux: `br_is_local_ip`, `br_is_local_ip6`.
    pub(crate) fn is_own(&self, device: LinkId, address: IpAddr) -> bool {
        let has = |of: LinkId| self.own.binary_search(&(of, address)).is_ok();
        let first = self.instances.partition_point(|(other, _)| *other < device);
        let instances = self.instances.iter().skip(first).take_while(|(other, _)| *other == device);
        has(device) || instances.into_iter().any(|(_, instance)| has(*instance))
    }
}

/// What a port of a bridge does with frames: `BR_STATE_*`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PortState {
    /// Drops all: down, blocked, or still listening for other bridges.
    #[default]
    Closed,
    /// Learns stations, and drops all.
    Learning,
    /// Learns and forwards.
    Forwarding,
}

/// What makes a link a port of a bridge.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BridgePort {
    /// The bridge.
    pub bridge: LinkId,
    /// Its number there, from 1 on.
    pub number: u16,
    /// What it does with frames.
    pub state: PortState,
    /// Whether it learns stations.
    pub learns: bool,
    /// Whether it takes frames of stations alone that are known there: IEEE 802.1X.
    pub locked: bool,
    /// Whether it gets frames for unknown stations, for groups, and for all.
    pub floods: [bool; 3],
    /// Whether frames leave by it that have come in by it.
    pub hairpin: bool,
    /// Whether it gets none from others that are so.
    pub isolated: bool,
    /// The link-local groups whose frames it forwards besides those of the bridge.
    pub group_forward: u16,
    /// Its VLANs, where the bridge filters by these.
    pub vlans: Option<Box<Membership>>,
    /// The requests for known neighbours that are not flooded to it, and that the bridge answers for stations behind it.
    pub suppresses: Suppresses,
    /// Whether the bridge answers all requests for known neighbours that come in by it, and floods nothing to it: `proxy_arp`.
    pub proxy_arp: bool,
    /// Whether it answers requests for stations behind it, which are not flooded to it: `proxy_arp_wifi`.
    pub proxy_arp_wifi: bool,
    /// The networks of an external VXLAN that its VLANs are: `vlan_tunnel`.
    pub networks: Option<Box<Networks>>,
}

/// The networks behind a port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Networks {
    /// In the order of their VLANs.
    by_vlan: Box<[Network]>,
    /// Identifiers and VLANs, in the order of the former.
    by_vni: Box<[(u32, u16)]>,
}

impl FromIterator<Network> for Networks {
    fn from_iter<T: IntoIterator<Item = Network>>(networks: T) -> Self {
        let mut by_vlan: Box<[Network]> = networks.into_iter().collect();
        by_vlan.sort_unstable_by_key(|network| network.vlan);
        let mut by_vni: Box<[_]> = by_vlan.iter().map(|network| (network.vni, network.vlan)).collect();
        by_vni.sort_unstable();
        Self { by_vlan, by_vni }
    }
}

/// The network that a VLAN is behind a port: frames go without a tag there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Network {
    /// The VLAN.
    pub vlan: u16,
    /// Its identifier there.
    pub vni: u32,
    /// What is put before its frames.
    pub tunnel: TunnelId,
}

impl BridgePort {
    /// The tunnel into which frames of a VLAN go. `None`: it has no network.
    #[inline]
    pub(crate) fn tunnel_of(&self, vlan: u16) -> Option<TunnelId> {
        let networks = &self.networks.as_deref()?.by_vlan;
        let at = networks.binary_search_by_key(&vlan, |network| network.vlan).ok()?;
        networks.get(at).map(|network| network.tunnel)
    }

    /// The VLAN of frames of a network.
    #[inline]
    pub(crate) fn vlan_of(&self, vni: u32) -> Option<u16> {
        let networks = &self.networks.as_deref()?.by_vni;
        // Of several VLANs with one, the lowest.
        let at = networks.partition_point(|(other, _)| *other < vni);
        networks.get(at).filter(|(other, _)| *other == vni).map(|(_, vlan)| *vlan)
    }
}

/// The VLANs of which requests are suppressed at a port of a bridge.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Suppresses {
    /// None.
    #[default]
    None,
    /// All: `neigh_suppress`.
    All,
    /// These, and frames of no VLAN, if it says so: `neigh_vlan_suppress`.
    Vlans(Box<VlanSet>, bool),
}

impl Suppresses {
    /// Whether they are suppressed in a VLAN; 0: the bridge does not filter them. Linux: `br_is_neigh_suppress_enabled`.
    pub(crate) fn has(&self, vlan: u16) -> bool {
        match (self, vlan) {
            (Self::None, _) => false,
            (Self::All, _) | (Self::Vlans(_, true), 0) => true,
            (Self::Vlans(vlans, _), vlan) => vlans.has(vlan),
        }
    }
}

/// Identifiers of VLANs.
#[derive(Clone, PartialEq, Eq)]
pub struct VlanSet([u64; 64]);

impl FromIterator<u16> for Box<VlanSet> {
    fn from_iter<I: IntoIterator<Item = u16>>(ids: I) -> Self {
        let mut set = Self::new(VlanSet([0; 64]));
        ids.into_iter().for_each(|id| set.0[usize::from(id >> 6) & 63] |= 1 << (id & 63));
        set
    }
}

impl VlanSet {
    const fn has(&self, id: u16) -> bool {
        self.0[(id >> 6) as usize & 63] >> (id & 63) & 1 != 0
    }
}

impl fmt::Debug for VlanSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VlanSet({})", self.0.iter().map(|word| word.count_ones()).sum::<u32>())
    }
}

/// The VLANs of a port, or of a bridge itself.
#[derive(Clone, PartialEq, Eq)]
pub struct Membership {
    /// The VLAN of frames without a tag; 0: they are dropped.
    pub untagged_are: u16,
    members: [u64; 64],
    untagged: [u64; 64],
}

impl Membership {
    /// Those of the given identifiers, each with whether its frames leave without a tag.
    pub fn new(untagged_are: u16, vlans: impl IntoIterator<Item = (u16, bool)>) -> Box<Self> {
        let mut all = Box::new(Self { untagged_are, members: [0; 64], untagged: [0; 64] });
        for (id, untagged) in vlans {
            let (word, bit) = (usize::from(id >> 6) & 63, 1 << (id & 63));
            all.members[word] |= bit;
            all.untagged[word] |= if untagged { bit } else { 0 };
        }
        all
    }

    #[inline(always)]
    pub(crate) const fn has(&self, id: u16) -> bool {
        self.members[(id >> 6) as usize & 63] >> (id & 63) & 1 != 0
    }

    #[inline(always)]
    pub(crate) const fn is_untagged(&self, id: u16) -> bool {
        self.untagged[(id >> 6) as usize & 63] >> (id & 63) & 1 != 0
    }
}

impl fmt::Debug for Membership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.members.iter().map(|word| word.count_ones()).sum::<u32>();
        write!(f, "Membership({count}, untagged are {})", self.untagged_are)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_found_both_ways() {
        let network = |vlan: u16, vni: u32| Network { vlan, vni, tunnel: TunnelId(vlan.into()) };
        let networks: Networks =
            [network(30, 5), network(10, 7), network(20, 6), network(40, 6)].into_iter().collect();
        let port = BridgePort {
            bridge: LinkId(1),
            number: 1,
            state: PortState::Forwarding,
            learns: true,
            locked: false,
            floods: [true; 3],
            hairpin: false,
            isolated: false,
            group_forward: 0,
            vlans: None,
            suppresses: Suppresses::None,
            proxy_arp: false,
            proxy_arp_wifi: false,
            networks: Some(Box::new(networks)),
        };
        assert_eq!([4, 5, 6, 7, 8].map(|vni| port.vlan_of(vni)), [None, Some(30), Some(20), Some(10), None]);
        assert_eq!(
            [10, 20, 25, 40].map(|vlan| port.tunnel_of(vlan).map(|id| id.0)),
            [Some(10), Some(20), None, Some(40)]
        );
    }
}
