//! The links of the router: `lo`, its ports, and those that requests make. Linux: `net/core/rtnetlink.c`.

pub(crate) mod bridge;
pub(crate) mod change;
pub(crate) mod devices;
pub(crate) mod encode;
pub(crate) mod mirror;
pub(crate) mod proxied;
pub(crate) mod publish;
mod query;
pub(crate) mod request;
mod rewrite;
pub(crate) mod save;
pub(crate) mod tunnel;
pub(crate) mod vlan;

use std::collections::{BTreeMap, BTreeSet};

use libc::{
    EINVAL, IFF_BROADCAST, IFF_LOOPBACK, IFF_LOWER_UP, IFF_MASTER, IFF_MULTICAST, IFF_NOARP, IFF_RUNNING,
    IFF_UP,
};
use underpass_engine::buffer::PortId;
use underpass_engine::tables::LinkId;
use underpass_netlink::RequestError;

pub(crate) use query::{dump, get};
pub(crate) use request::{delete, is_own, new, set};
pub(crate) use rewrite::{is_own_dump, rewrite};
pub use tunnel::{Tunnel, tunnel_ioctl};

/// The index of `lo`.
pub(crate) const LOOPBACK: u32 = 1;

/// What a link is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LinkKind {
    /// `lo`.
    Loopback,
    /// A port: packets come and go by it.
    Port(PortId),
    /// A link of the kernel beside the router, of whatever kind.
    Kernel,
    /// `dummy`: swallows what is sent to it.
    Dummy,
    /// `ifb`: queues what filters redirect to it, which then goes on where it was taken from.
    Ifb,
    /// `vrf`: the links enslaved to it look up in this table.
    Vrf {
        /// `IFLA_VRF_TABLE`.
        table: u32,
    },
    /// A tunnel.
    Tunnel(underpass_netlink::tunnel::Kind),
    /// `vlan`: what comes in by another link with its tag comes in by it.
    Vlan,
    /// `bridge`: passes frames between the links that are enslaved to it.
    Bridge,
}

impl LinkKind {
    /// `IFLA_INFO_KIND`; `None` for a link that no request can make.
    pub const fn name(self) -> Option<&'static str> {
        match self {
            Self::Loopback | Self::Port(_) | Self::Kernel => None,
            Self::Dummy => Some("dummy"),
            Self::Ifb => Some("ifb"),
            Self::Vrf { .. } => Some("vrf"),
            Self::Tunnel(kind) => Some(kind.name()),
            Self::Vlan => Some("vlan"),
            Self::Bridge => Some("bridge"),
        }
    }

    /// Whether it is a tunnel with Ethernet frames inside.
    const fn is_ethernet_tunnel(self) -> bool {
        matches!(self, Self::Tunnel(kind) if kind.ethernet())
    }
}

/// A link.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Link {
    /// Its interface index.
    pub index: u32,
    /// Its name, at most 15 bytes.
    pub name: String,
    /// What it is.
    pub kind: LinkKind,
    /// `IFF_*`, without those that follow from the carrier.
    pub flags: u32,
    /// Hardware address; of a layer-3 tunnel what its interface identifiers are made from.
    pub mac: [u8; 6],
    /// Hardware broadcast address.
    pub broadcast: [u8; 6],
    /// Longest layer-3 packet, in bytes.
    pub mtu: u32,
    /// Packets that a transmit queue would hold (`txqlen`).
    pub tx_queue_len: u32,
    /// The link that it is enslaved to.
    pub master: Option<u32>,
    /// `alias`, at most 255 bytes; empty for none.
    pub alias: Vec<u8>,
    /// `group`.
    pub group: u32,
    /// `addrgenmode`: whether it gets a link-local address from its MAC address when it comes up.
    pub eui64: bool,
    /// The port that packets of a link of the kernel come and go by, if there is one.
    pub attached: Option<PortId>,
    /// The port of a `dummy`, a VLAN device or a bridge of the router's own: no wire is behind it.
    pub(crate) sink: Option<PortId>,
    /// Whether it has a carrier.
    pub carrier: bool,
    /// Whether it has been up: it then has the queue of its kind, before it has `noop`.
    pub activated: bool,
    /// Kind of the qdisc that a request has made its root.
    pub qdisc: Option<&'static str>,
    /// How often the carrier went up and down.
    pub carrier_changes: [u32; 2],
    /// What makes it a tunnel, if it is one.
    pub tunnel: Option<Box<Tunnel>>,
    /// What makes it a VLAN device, if it is one.
    pub vlan: Option<Box<vlan::device::Vlan>>,
    /// What makes it a bridge, if it is one.
    pub bridge: Option<Box<bridge::device::Bridge>>,
    /// What makes it a port of a bridge, if it is one.
    pub bridge_port: Option<Box<bridge::device::BridgePort>>,
    /// The packet path's name for it.
    pub id: LinkId,
}

impl Link {
    /// Administratively up.
    pub const fn up(&self) -> bool {
        self.flags & IFF_UP as u32 != 0
    }

    /// The port by which its packets come and go.
    pub const fn port(&self) -> Option<PortId> {
        match self.kind {
            LinkKind::Port(port) => Some(port),
            _ => self.attached,
        }
    }

    /// `ifi_flags`: with those that follow from the carrier.
    pub const fn all_flags(&self) -> u32 {
        let carrier = if self.up() && self.carrier { IFF_RUNNING | IFF_LOWER_UP } else { 0 };
        self.flags | carrier as u32
    }

    /// The link that it is bound to or above, if it is a tunnel or a VLAN device: `IFLA_LINK`.
    pub(crate) fn lower(&self) -> Option<u32> {
        match (&self.vlan, &self.tunnel) {
            (Some(vlan), _) => Some(vlan.lower),
            (None, Some(tunnel)) => tunnel.lower(),
            (None, None) => None,
        }
    }

    /// The links that it is directly above, each before it, and its master after it. Linux: `netdev_upper_dev_link`.
    fn pairs(&self) -> [Option<(u32, u32)>; 3] {
        let vxlan = self.tunnel.as_ref().filter(|tunnel| tunnel.parameters.vxlan.is_some());
        [
            self.vlan.as_ref().map(|vlan| (vlan.lower, self.index)),
            vxlan.map(|vxlan| (vxlan.parameters.link, self.index)),
            self.master.map(|master| (self.index, master)),
        ]
    }

    /// Whether it is a VXLAN or an `srv6l2`: stations are behind other ends.
    pub(crate) fn has_ends(&self) -> bool {
        self.tunnel.as_ref().is_some_and(|tunnel| tunnel.parameters.has_ends())
    }

    /// The table of the VRF, if it is one.
    pub const fn vrf_table(&self) -> Option<u32> {
        match self.kind {
            LinkKind::Vrf { table } => Some(table),
            _ => None,
        }
    }

    /// Whether IPv6 works on it: not below the least MTU of RFC 8200.
    pub const fn ipv6(&self) -> bool {
        self.mtu >= 1280
    }

    /// Whether neighbours on it have link-layer addresses that must be known.
    pub const fn resolves(&self) -> bool {
        let layer3 = matches!(self.kind, LinkKind::Tunnel(kind) if !kind.ethernet());
        self.flags & (IFF_NOARP | IFF_LOOPBACK) as u32 == 0 && !layer3
    }

    /// A link of this kind as it is when it was just made.
    pub(crate) fn new(index: u32, name: String, kind: LinkKind, mac: [u8; 6]) -> Self {
        let (flags, mtu, broadcast) = match kind {
            LinkKind::Loopback => (IFF_LOOPBACK, 65536, [0; 6]),
            LinkKind::Port(_) | LinkKind::Kernel | LinkKind::Vlan | LinkKind::Bridge => {
                (IFF_BROADCAST | IFF_MULTICAST, 1500, [0xff; 6])
            }
            LinkKind::Dummy | LinkKind::Ifb => (IFF_BROADCAST | IFF_NOARP, 1500, [0xff; 6]),
            LinkKind::Vrf { .. } => (IFF_MASTER | IFF_NOARP, 65575, [0xff; 6]),
            LinkKind::Tunnel(_) => (IFF_NOARP, 1480, [0xff; 6]),
        };
        Self {
            index,
            name,
            kind,
            flags: flags as u32,
            mac,
            broadcast,
            mtu,
            tx_queue_len: if kind == LinkKind::Ifb { 32 } else { 1000 },
            master: None,
            alias: Vec::new(),
            group: 0,
            eui64: true,
            attached: None,
            sink: None,
            carrier: true,
            activated: false,
            qdisc: None,
            carrier_changes: [0; 2],
            tunnel: None,
            vlan: None,
            bridge: None,
            bridge_port: None,
            id: LinkId(u32::MAX),
        }
    }
}

/// All links, by index and by name.
#[derive(Debug, Default)]
pub(crate) struct Links {
    by_index: BTreeMap<u32, Link>,
    by_name: BTreeMap<String, u32>,
    /// The last index that a link got without asking for it.
    last_index: u32,
    /// The indices of links that are not made yet, by name.
    kept: BTreeMap<String, u32>,
    /// Which link is above which, the lower one first.
    above: BTreeSet<(u32, u32)>,
    /// Bridges that suppress requests at a port, and the port.
    suppressing: BTreeSet<(u32, u32)>,
    /// Changes with every change of a link.
    pub generation: u64,
}

impl Links {
    pub fn get(&self, index: u32) -> Option<&Link> {
        self.by_index.get(&index)
    }

    pub fn named(&self, name: &str) -> Option<&Link> {
        self.by_name.get(name).and_then(|&index| self.get(index))
    }

    pub fn iter(&self) -> impl Iterator<Item = &Link> {
        self.by_index.values()
    }

    /// The first link whose index is above this one.
    pub fn after(&self, index: u32) -> Option<&Link> {
        self.by_index.range(index.checked_add(1)?..).next().map(|(_, link)| link)
    }

    /// The links enslaved to this one.
    pub fn slaves(&self, master: u32) -> impl Iterator<Item = &Link> {
        self.iter().filter(move |link| link.master == Some(master))
    }

    /// The VRF that has a table.
    pub fn vrf_with_table(&self, table: u32) -> Option<&Link> {
        self.iter().find(|link| link.vrf_table() == Some(table))
    }

    /// The VRF that a link belongs to or is.
    pub fn vrf_of(&self, index: u32) -> Option<&Link> {
        let link = self.get(index)?;
        let vrf = if link.vrf_table().is_some() { link } else { self.get(link.master?)? };
        vrf.vrf_table().map(|_| vrf)
    }

    /// A link and all that are above it.
    pub fn closure(&self, index: u32) -> BTreeSet<u32> {
        let (mut found, mut new) = (BTreeSet::from([index]), vec![index]);
        while let Some(link) = new.pop() {
            let above = self.above.range((link, 0)..=(link, u32::MAX)).map(|(_, upper)| *upper);
            new.extend(above.filter(|upper| found.insert(*upper)));
        }
        found
    }

    /// The bridges that suppress requests at any of their ports.
    pub fn suppressing(&self) -> impl Iterator<Item = u32> {
        let next = |last: u32| self.suppressing.range((last.checked_add(1)?, 0)..).next();
        std::iter::successors(self.suppressing.first(), move |(last, _)| next(*last))
            .map(|(bridge, _)| *bridge)
    }

    /// Keeps what is said twice of links as they are: `old` is `new` now.
    fn index(&mut self, old: Option<&Link>, new: Option<&Link>) {
        let pairs = |link: Option<&Link>| link.map(Link::pairs).unwrap_or_default();
        let (before, now) = (pairs(old), pairs(new));
        if before != now {
            before.iter().flatten().for_each(|pair| _ = self.above.remove(pair));
            self.above.extend(now.into_iter().flatten());
        }
        let suppresses = |link: Option<&Link>| {
            let link = link.filter(|link| link.bridge_port.as_ref().is_some_and(|port| port.suppresses()))?;
            Some((link.master?, link.index))
        };
        let (before, now) = (suppresses(old), suppresses(new));
        if before != now {
            before.iter().for_each(|port| _ = self.suppressing.remove(port));
            self.suppressing.extend(now);
        }
    }

    pub fn remove(&mut self, index: u32) -> Option<Link> {
        self.generation += 1;
        let link = self.by_index.remove(&index)?;
        self.index(Some(&link), None);
        self.by_name.remove(&link.name);
        Some(link)
    }

    /// Puts a link in, or another in its place.
    pub fn put(&mut self, link: Link) {
        self.generation += 1;
        self.pass_over(link.index);
        if let Some(old) = self.by_index.get(&link.index)
            && old.name != link.name
        {
            self.by_name.remove(&old.name);
        }
        self.by_name.insert(link.name.clone(), link.index);
        let old = self.by_index.remove(&link.index);
        self.index(old.as_ref(), Some(&link));
        self.by_index.insert(link.index, link);
    }

    /// Notes the kind of the qdisc at a link's root; without one a link that is down has none at all.
    pub fn set_qdisc(&mut self, index: u32, qdisc: Option<&'static str>) {
        if let Some(link) = self.by_index.get_mut(&index) {
            self.generation += 1;
            link.qdisc = qdisc;
            link.activated &= qdisc.is_some() || link.up();
        }
    }

    /// Lets no link that does not ask for it have this index, as if there had been one.
    pub fn pass_over(&mut self, index: u32) {
        if index == self.free_index() {
            self.last_index = index;
        }
    }

    /// The link that a filter wants packets to come in by. Linux: `tcf_change_indev`.
    pub fn input_link(&self, name: Option<&str>) -> Result<Option<u32>, RequestError> {
        let Some(name) = name else { return Ok(None) };
        if name.len() >= libc::IFNAMSIZ {
            return Err(RequestError::new(EINVAL, "Interface name too long"));
        }
        let link = self.named(name).ok_or(RequestError::new(libc::ENODEV, "Network device not found"))?;
        Ok(Some(link.index))
    }

    /// The name of a link of [`Links::input_link`].
    pub fn input_name(&self, link: Option<u32>) -> Option<&str> {
        link.and_then(|link| self.get(link)).map(|link| link.name.as_str())
    }

    /// The index of a link that is made: what [`Links::keep_indices`] says for this name, once, or a free one.
    pub fn index_for(&mut self, name: &str) -> u32 {
        let kept = self.kept.remove(name).filter(|index| *index > 0 && *index <= i32::MAX as u32);
        kept.filter(|index| !self.by_index.contains_key(index)).unwrap_or_else(|| self.free_index())
    }

    /// Has links of these names get these indices when they are made, as far as they are free then.
    pub fn keep_indices(&mut self, indices: BTreeMap<String, u32>) {
        self.kept = indices;
    }

    /// An index that no link has, nor had lately. Linux: `dev_index_reserve`.
    pub fn free_index(&self) -> u32 {
        let mut after = (self.last_index.saturating_add(1)..=i32::MAX as u32).chain(1..);
        after.find(|index| !self.by_index.contains_key(index)).unwrap_or(u32::MAX)
    }
}

/// Linux: `dev_valid_name`.
pub(crate) fn valid_name(name: &str) -> bool {
    let bad = |b: u8| b == b'/' || b == b':' || matches!(b, 9..=13 | 32 | 0xa0);
    !name.is_empty() && name.len() <= 15 && name != "." && name != ".." && !name.bytes().any(bad)
}

/// Linux: `is_valid_ether_addr`.
pub(crate) fn valid_mac(mac: [u8; 6]) -> bool {
    mac[0] & 1 == 0 && mac != [0; 6]
}
