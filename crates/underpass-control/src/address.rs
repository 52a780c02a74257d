//! The addresses of the links. Linux: `net/ipv4/devinet.c`, `net/ipv6/addrconf.c`.
//!
//! There is no duplicate address detection: an IPv6 address works from the moment it is added.

mod change;
mod kernel_routes;
mod mirror;
mod query;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use libc::{IFA_F_NOPREFIXROUTE, IFA_F_PERMANENT, IFA_F_SECONDARY};

pub(crate) use change::{delete, new};
pub(crate) use kernel_routes::KernelRoute;
pub(crate) use query::dump;

use crate::Router;
use crate::events::Cause;
use crate::link::tunnel::Automatic;
use crate::link::{Link, LinkKind};

/// An address of a link.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Address {
    /// The interface index of its link.
    pub link: u32,
    /// The address itself (`IFA_LOCAL`).
    pub local: IpAddr,
    /// The other end of a point-to-point address (`IFA_ADDRESS`, where it differs).
    pub peer: Option<IpAddr>,
    /// Length of the prefix of the peer, or else of the address, in bits.
    pub prefix_len: u8,
    /// `brd`.
    pub broadcast: Option<Ipv4Addr>,
    /// `label`, of an IPv4 address.
    pub label: String,
    /// `RT_SCOPE_*`.
    pub scope: u8,
    /// `IFA_F_*`.
    pub flags: u32,
    /// `metric` of its prefix route; 0 for the family's own.
    pub metric: u32,
    /// `IFA_PROTO`; 0 for none.
    pub protocol: u8,
    /// When it was added and when it was last changed, in hundredths of a second since the router began.
    pub stamps: [u32; 2],
}

impl Address {
    /// The prefix that is on the link.
    pub fn prefix(&self) -> Option<IpNet> {
        Some(IpNet::new(self.peer.unwrap_or(self.local), self.prefix_len).ok()?.trunc())
    }

    const fn secondary(&self) -> bool {
        self.flags & IFA_F_SECONDARY != 0
    }

    const fn has_prefix_route(&self) -> bool {
        self.flags & IFA_F_NOPREFIXROUTE == 0
    }
}

/// The scope that an IPv6 address has by its bits. Linux: `ipv6_addr_scope` and `rt_scope`.
pub(crate) fn scope_of(address: Ipv6Addr) -> u8 {
    if address.is_loopback() {
        libc::RT_SCOPE_HOST
    } else if address.is_unicast_link_local() {
        libc::RT_SCOPE_LINK
    } else if address.segments()[0] & 0xffc0 == 0xfec0 {
        libc::RT_SCOPE_SITE
    } else {
        libc::RT_SCOPE_UNIVERSE
    }
}

/// The link-local address that RFC 4291 appendix A makes of a MAC address.
pub(crate) fn link_local(mac: [u8; 6]) -> Ipv6Addr {
    let [a, b, c, d, e, f] = mac;
    Ipv6Addr::from([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}

#[derive(Debug, Default)]
struct OnLink {
    /// In Linux's order: primary addresses, then secondary ones.
    v4: Vec<Address>,
    /// In Linux's order: by falling width of scope, the newest first.
    v6: Vec<Address>,
    /// The routes that these addresses have brought.
    routes: BTreeSet<KernelRoute>,
}

/// The addresses of all links.
#[derive(Debug, Default)]
pub(crate) struct Addresses {
    links: BTreeMap<u32, OnLink>,
    /// By VRF, what links without an address of their own send from, as it was published last.
    common: BTreeMap<u32, [Option<IpAddr>; 2]>,
    /// Changes with every change of an address.
    pub generation: u64,
    /// Changes with every change of what the addresses are, and in which VRF.
    pub locals: u64,
}

impl Addresses {
    /// IPv4 addresses of a link.
    pub fn v4(&self, link: u32) -> &[Address] {
        self.links.get(&link).map_or(&[], |on_link| &on_link.v4)
    }

    /// IPv6 addresses of a link.
    pub fn v6(&self, link: u32) -> &[Address] {
        self.links.get(&link).map_or(&[], |on_link| &on_link.v6)
    }

    /// Addresses of a link of one family.
    pub fn of(&self, link: u32, v6: bool) -> &[Address] {
        if v6 { self.v6(link) } else { self.v4(link) }
    }

    /// All addresses.
    pub fn iter(&self) -> impl Iterator<Item = &Address> {
        self.links.values().flat_map(|on_link| on_link.v4.iter().chain(&on_link.v6))
    }

    /// Whether some link has this address.
    pub fn is_local(&self, address: IpAddr) -> bool {
        self.link_of(address).is_some()
    }

    /// The link that has this address.
    pub fn link_of(&self, address: IpAddr) -> Option<u32> {
        self.iter().find(|own| own.local == address).map(|own| own.link)
    }

    fn on(&mut self, link: u32) -> &mut OnLink {
        self.generation += 1;
        self.links.entry(link).or_default()
    }

    fn of_mut(&mut self, link: u32, v6: bool) -> &mut Vec<Address> {
        let on_link = self.on(link);
        if v6 { &mut on_link.v6 } else { &mut on_link.v4 }
    }
}

impl Router {
    /// The addresses.
    pub fn addresses(&self) -> impl Iterator<Item = &Address> {
        self.addresses.iter()
    }

    /// The address that the router sends from by this link when nothing else says which: the widest of
    /// its own, or else of its VRF, or else of another link of that. Linux: `inet_select_addr`.
    pub(crate) fn source4(&self, link: u32) -> Option<Ipv4Addr> {
        let usable = |address: &&Address| sends4(address);
        let own = self.addresses.v4(link).iter().find(usable);
        let vrf = || self.addresses.v4(self.links.vrf_of(link)?.index).iter().find(usable);
        let found = own.or_else(vrf).or_else(|| {
            let others = self.links.iter().filter(|other| self.same_vrf(link, other.index));
            others.flat_map(|other| self.addresses.v4(other.index)).find(usable)
        });
        match found?.local {
            IpAddr::V4(address) => Some(address),
            IpAddr::V6(_) => None,
        }
    }

    /// The same for IPv6: a global address of the link, or else of another link of the same VRF, or else
    /// the link's own link-local address.
    pub(crate) fn source6(&self, link: u32) -> Option<Ipv6Addr> {
        let global = |address: &&Address| sends6(address);
        let own = self.addresses.v6(link);
        let others = self.links.iter().filter(|other| self.same_vrf(link, other.index));
        let mut others = others.flat_map(|other| self.addresses.v6(other.index));
        match own.iter().find(global).or_else(|| others.find(global)).or(own.first())?.local {
            IpAddr::V6(address) => Some(address),
            IpAddr::V4(_) => None,
        }
    }

    /// The IPv6 addresses of a link.
    pub(crate) fn own6(&self, link: u32) -> Box<[Ipv6Addr]> {
        let own = self.addresses.v6(link).iter().filter_map(|address| match address.local {
            IpAddr::V6(address) => Some(address),
            IpAddr::V4(_) => None,
        });
        own.collect()
    }

    fn same_vrf(&self, a: u32, b: u32) -> bool {
        let vrf = |index| self.links.vrf_of(index).map(|vrf| vrf.index);
        vrf(a) == vrf(b)
    }

    /// What follows for addresses when a link has come up.
    pub(crate) fn addresses_up(&mut self, cause: Cause, index: u32) {
        let Some(link) = self.links.get(index) else { return };
        if link.kind == LinkKind::Loopback && self.addresses.v4(index).is_empty() {
            let address = self.automatic(index, Ipv4Addr::LOCALHOST.into(), 8, libc::RT_SCOPE_HOST);
            self.insert4(cause, address);
        }
        self.ipv6_up(cause, index);
    }

    /// What follows when a link has gone down: it keeps its IPv4 addresses only.
    pub(crate) fn addresses_down(&mut self, cause: Cause, index: u32) {
        self.ipv6_down(cause, index);
        self.flush_neighbours(cause, index);
        self.link_gone_down(cause, index);
    }

    /// Gives a link the IPv6 addresses that it has without being asked.
    pub(crate) fn ipv6_up(&mut self, cause: Cause, index: u32) {
        let Some(link) = self.links.get(index) else { return };
        if let Some(tunnel) = &link.tunnel {
            self.tunnel_up(cause, index, &self.automatic_addresses(link, tunnel));
            return;
        }
        let address = match link.kind {
            LinkKind::Loopback => Some((Ipv6Addr::LOCALHOST, 128)),
            LinkKind::Vrf { .. } | LinkKind::Tunnel(_) => None,
            LinkKind::Port(_) | LinkKind::Kernel | LinkKind::Dummy | LinkKind::Ifb => {
                link.eui64.then(|| (link_local(link.mac), 64))
            }
        };
        if let Some((address, prefix_len)) = address
            && link.ipv6()
            && !self.addresses.v6(index).iter().any(|own| own.local == address)
        {
            let address = self.automatic(index, address.into(), prefix_len, scope_of(address));
            self.insert6(cause, address);
        }
        self.refresh_routes(cause, index);
    }

    /// Gives a tunnel the IPv6 addresses that are made of its ends.
    fn tunnel_up(&mut self, cause: Cause, index: u32, addresses: &[Automatic]) {
        let ipv6 = self.links.get(index).is_some_and(Link::ipv6);
        for made in addresses.iter().filter(|_| ipv6) {
            if self.addresses.v6(index).iter().any(|own| own.local == made.address) {
                continue;
            }
            let mut address = self.automatic(index, made.address.into(), made.prefix_len, made.scope);
            address.flags |= made.flags;
            if !made.kernel {
                address.protocol = 0;
            }
            self.insert6(cause, address);
        }
        self.refresh_routes(cause, index);
    }

    /// Takes all IPv6 addresses from a link, as Linux does when it goes down.
    pub(crate) fn ipv6_down(&mut self, cause: Cause, index: u32) {
        let gone = std::mem::take(self.addresses.of_mut(index, true));
        for address in &gone {
            self.notify_address(cause, libc::RTM_DELADDR, address);
        }
        self.refresh_routes(cause, index);
        if !gone.is_empty() {
            self.publish_sources(index);
        }
        for address in &gone {
            self.publish_tunnels_from(address.local);
        }
    }

    /// Takes all addresses from a link that is being deleted.
    pub(crate) fn forget_addresses(&mut self, cause: Cause, index: u32) {
        for address in std::mem::take(self.addresses.of_mut(index, false)) {
            self.notify_address(cause, libc::RTM_DELADDR, &address);
            self.address_gone(cause, &address);
        }
        self.ipv6_down(cause, index);
        self.addresses.links.remove(&index);
    }

    /// Renames the labels of a link's addresses with it. Linux: `inetdev_changename`.
    pub(crate) fn relabel_addresses(&mut self, cause: Cause, link: &Link) {
        let addresses = self.addresses.of_mut(link.index, false);
        for (n, address) in addresses.iter_mut().enumerate() {
            let suffix = match address.label.find(':') {
                _ if n == 0 => String::new(),
                Some(colon) => address.label[colon..].to_owned(),
                None => format!(":{}", n + 1),
            };
            let keep = 15usize.saturating_sub(suffix.len()).min(link.name.len());
            let keep = (0..=keep).rev().find(|&end| link.name.is_char_boundary(end)).unwrap_or(0);
            address.label = format!("{}{suffix}", &link.name[..keep]);
        }
        for address in addresses.clone() {
            self.notify_address(cause, libc::RTM_NEWADDR, &address);
        }
    }

    fn automatic(&self, link: u32, local: IpAddr, prefix_len: u8, scope: u8) -> Address {
        let now = self.ticks();
        Address {
            link,
            local,
            peer: None,
            prefix_len,
            broadcast: None,
            label: self.links.get(link).map(|link| link.name.clone()).unwrap_or_default(),
            scope,
            flags: IFA_F_PERMANENT,
            metric: 0,
            protocol: if local.is_ipv6() { kernel_protocol(local) } else { 0 },
            stamps: [now; 2],
        }
    }

    /// Adds an IPv4 address in its place in the list. Linux: `__inet_insert_ifa`.
    pub(crate) fn insert4(&mut self, cause: Cause, address: Address) {
        let list = self.addresses.of_mut(address.link, false);
        let mut place = list.len();
        if !address.secondary() {
            let wider = |own: &Address| !own.secondary() && address.scope <= own.scope;
            place = list.iter().rposition(wider).map_or(0, |last| last + 1);
        }
        list.insert(place, address.clone());
        self.address_added(cause, &address);
        self.revive_routes_of(address.link);
    }

    /// Adds an IPv6 address in its place in the list. Linux: `ipv6_link_dev_addr`.
    pub(crate) fn insert6(&mut self, cause: Cause, address: Address) {
        let list = self.addresses.of_mut(address.link, true);
        // RT_SCOPE_* grow as the scope narrows.
        let place = list.iter().position(|own| address.scope <= own.scope).unwrap_or(list.len());
        list.insert(place, address.clone());
        self.address_added(cause, &address);
    }

    fn address_added(&mut self, cause: Cause, address: &Address) {
        self.notify_address(cause, libc::RTM_NEWADDR, address);
        self.refresh_routes(cause, address.link);
        self.publish_sources(address.link);
        self.publish_tunnels_from(address.local);
    }

    /// After an address was taken out of the list, and told of.
    pub(crate) fn address_gone(&mut self, cause: Cause, address: &Address) {
        self.refresh_routes(cause, address.link);
        if !self.addresses.is_local(address.local) {
            self.source_address_gone(cause, address.local, address.link);
        }
        // A link without an IPv4 address forgets its neighbours, permanent ones as well. Linux: `fib_disable_ip`.
        if address.local.is_ipv4() && self.addresses.v4(address.link).is_empty() {
            self.flush_neighbours_of(cause, address.link, false);
        }
        self.publish_sources(address.link);
        self.publish_tunnels_from(address.local);
    }

    /// Publishes the links whose source of ICMP errors may have changed with an address of `link`: that one, and all of
    /// its VRF if who has no address there sends from another one by now.
    fn publish_sources(&mut self, link: u32) {
        let vrf = self.links.vrf_of(link).map_or(0, |vrf| vrf.index);
        let common = self.common_sources(link);
        if self.addresses.common.insert(vrf, common) == Some(common) {
            self.publish_link(link);
        } else {
            let others = self.links.iter().map(|other| other.index);
            let same: Vec<u32> = others.filter(|&other| self.same_vrf(link, other)).collect();
            same.into_iter().for_each(|index| self.publish_link(index));
        }
        self.publish_tunnels_from_any();
    }

    /// What links without an address of their own send from, in the VRF of `link`: see [`Router::source4`],
    /// [`Router::source6`].
    fn common_sources(&self, link: u32) -> [Option<IpAddr>; 2] {
        let first = |usable: fn(&Address) -> bool| {
            let mut usable = self.addresses.iter().filter(|address| usable(address));
            usable.find(|address| self.same_vrf(link, address.link)).map(|address| address.local)
        };
        let vrf = self.links.vrf_of(link).map(|vrf| vrf.index);
        let of_vrf = vrf.and_then(|vrf| self.addresses.v4(vrf).iter().find(|address| sends4(address)));
        [
            of_vrf
                .map(|address| address.local)
                .or_else(|| first(|address| address.local.is_ipv4() && sends4(address))),
            first(|address| address.local.is_ipv6() && sends6(address)),
        ]
    }
}

/// Whether a link sends from an IPv4 address of it that nothing says to.
const fn sends4(address: &Address) -> bool {
    address.scope <= libc::RT_SCOPE_LINK && !address.secondary()
}

/// The same for IPv6 and any link.
const fn sends6(address: &Address) -> bool {
    address.scope == libc::RT_SCOPE_UNIVERSE
}

/// `IFAPROT_KERNEL_LO` and `IFAPROT_KERNEL_LL`.
fn kernel_protocol(address: IpAddr) -> u8 {
    if address.is_loopback() { 1 } else { 3 }
}
