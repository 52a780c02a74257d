//! What a router has only beside a kernel.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;
use underpass_engine::buffer::PortId;

use crate::Namespace;
use crate::link::devices::Devices;
use crate::neighbour::Wants;
use crate::route::Ids;
use crate::route::info::Info;
use crate::route::table::{Family, Place};

/// The ports of the host, and the links that it shares.
#[derive(Debug, Default)]
pub(crate) struct Host {
    /// By VRF link; 0 for the links that are in none.
    pub ports: BTreeMap<u32, PortId>,
    /// MAC addresses that the ports give the router, on links that have none themselves.
    pub macs: BTreeMap<u32, [u8; 6]>,
    /// The links of whose packets the kernel gets a copy.
    pub shared: BTreeSet<u32>,
    /// The ports by which the kernel takes frames that have come in by a link, where a worker gets all of them: filters look at
    /// them, or it is a VLAN device of the router's, by which it sends there too.
    pub kernels: BTreeMap<u32, PortId>,
    /// The devices by which workers get what programs in the kernel do not carry, and those of before: nobody is shown them.
    pub stand_ins: BTreeSet<u32>,
    /// The kernel's VLAN devices, by their index.
    pub vlans: BTreeMap<u32, VlanDevice>,
    /// What looks at the packets of a link, where anything does; and a number that changes with it.
    pub hooked: BTreeMap<u32, Hooked>,
    pub hooked_generation: u64,
}

/// A VLAN device of the kernel's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VlanDevice {
    /// The index of the link by which its frames come.
    pub lower: u32,
    /// EtherType of their tag.
    pub protocol: u16,
    /// VLAN identifier.
    pub id: u16,
}

/// Whether filters, qdiscs or bridges of the router look at the packets of a link.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Hooked {
    /// At those that come in: also a bridge.
    pub ingress: bool,
    /// At those that leave.
    pub egress: bool,
}

/// An address for the devices through which the host gets its packets: RFC 7600. Where `rp_filter` is on, even loose, Linux
/// drops everything that a device without an address receives unless the return route uses that device. Programs do not
/// see this address.
pub(crate) const DUMMY: Ipv4Addr = Ipv4Addr::new(192, 0, 0, 8);

/// `rtm_protocol` and `FRA_PROTOCOL` of what the router puts into the kernel for itself: routes that lead
/// locally sent packets to it, and rules. The mirror passes over them, and nobody is shown them.
pub const PROTOCOL: u8 = 117;

/// What a router has only beside a kernel.
#[derive(Debug, Default)]
pub(crate) struct Live {
    /// What a dump of the kernel has not named yet, while one is read.
    pub unseen: Option<Box<Unseen>>,
    /// What could not be mirrored and was logged.
    pub logged: BTreeSet<String>,
    /// Places with a route of the router's own, and those that have changed since it was last reported to the host.
    pub own_places: HashSet<Place>,
    pub changed_places: HashSet<Place>,
    /// Neighbours that packets will need.
    pub wants: Wants,
    /// The host's ports.
    pub host: Host,
    /// By what the kernel is requested to do something.
    pub namespace: Option<Box<dyn Namespace>>,
    /// The devices that the router stands behind.
    pub devices: Devices,
    /// What the kernel is to have of the VRFs.
    pub vrf_routes: VrfRoutes,
    /// Routes of router advertisements.
    pub advertised: Advertised,
    /// Routes of the kernel that the VRFs of the router's replace.
    pub parked: Vec<(Place, Info)>,
}

/// Mirrored objects that are yet to be seen again.
#[derive(Debug, Default)]
pub(crate) struct Unseen {
    pub links: BTreeSet<u32>,
    /// Link, address, prefix length.
    pub addresses: BTreeSet<(u32, IpAddr, u8)>,
    pub neighbours: BTreeSet<(u32, IpAddr)>,
    pub routes: HashMap<Place, Ids>,
    pub objects: BTreeSet<u32>,
    pub rules: Vec<(Family, Box<[u8]>)>,
    /// Rules have come or gone since.
    pub rules_changed: bool,
}

/// `RTPROT_RA`.
pub(crate) const RTPROT_RA: u8 = 9;

/// The routes that are not followed.
#[derive(Debug, Default)]
pub(crate) struct Advertised {
    /// The links on which packets come and go, and `accept_ra` is 1.
    pub links: BTreeSet<u32>,
    pub aside: Vec<(Place, Info)>,
}

impl Advertised {
    /// All is reported again.
    pub fn clear(&mut self) {
        self.aside.clear();
    }

    /// The link is gone.
    pub fn forget(&mut self, link: u32) {
        self.links.remove(&link);
        self.aside.retain(|(_, info)| info.hops().iter().all(|hop| hop.oif != link));
    }

    pub fn ignores(&self, family: Family, info: &Info) -> bool {
        family == Family::V6
            && info.protocol == RTPROT_RA
            && info.hops().iter().any(|hop| self.links.contains(&hop.oif))
    }
}

/// A route that the kernel is to have.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct VrfRoute {
    /// Its destination.
    pub destination: IpNet,
    /// Its table.
    pub table: u32,
    /// `metric`.
    pub metric: u32,
    /// `src`.
    pub source: Option<IpAddr>,
    /// The link by which it leads: the VRF's device, or one that is enslaved to it.
    pub link: u32,
}

/// The routes that were asked for, and the places that have changed since.
#[derive(Debug, Default)]
pub(crate) struct VrfRoutes {
    pub of: HashMap<Place, Vec<VrfRoute>>,
    pub dirty: HashSet<Place>,
    /// Those that lead sockets of the host into VRFs, and what of the model they were made from.
    pub doors: Vec<VrfRoute>,
    pub seen: Option<(u64, u64)>,
}
