//! The addresses of the links. Linux: `net/ipv4/devinet.c`, `net/ipv6/addrconf.c`.
//!
//! There is no duplicate address detection: an IPv6 address works from the moment it is added.

mod change;
mod get;
pub(crate) mod kernel_routes;
pub(crate) mod mirror;
pub(crate) mod publish;
mod query;
pub(crate) mod save;
pub(crate) mod source;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use libc::{IFA_F_NOPREFIXROUTE, IFA_F_SECONDARY};

pub(crate) use change::{delete, new};
pub(crate) use get::get;
pub(crate) use query::dump;

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

    /// The subnet-router anycast address, which a router has with an IPv6 address of its own: RFC 4291 section 2.6.1.
    fn anycast(&self) -> Option<Ipv6Addr> {
        let IpNet::V6(prefix) = IpNet::new(self.local, self.prefix_len).ok()?.trunc() else { return None };
        (prefix.prefix_len() < 127 && !prefix.addr().is_unspecified()).then(|| prefix.addr())
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
    /// Whether the link has had a carrier since it came up: Linux's `IF_READY`.
    ready6: bool,
}

/// The addresses of all links.
#[derive(Debug, Default)]
pub(crate) struct Addresses {
    links: BTreeMap<u32, OnLink>,
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

    /// The routes that the addresses have brought.
    pub fn kernel_routes(&self) -> impl Iterator<Item = &KernelRoute> {
        self.links.values().flat_map(|on_link| &on_link.routes)
    }

    /// Whether a link has had a carrier since it came up, so that it speaks IPv6.
    pub fn is_ready6(&self, link: u32) -> bool {
        self.links.get(&link).is_some_and(|on_link| on_link.ready6)
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

/// A route of protocol `kernel`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct KernelRoute {
    /// `RTN_*`.
    pub kind: u8,
    /// Its destination.
    pub destination: IpNet,
    /// In which table.
    pub table: u32,
    /// `RT_SCOPE_*`.
    pub scope: u8,
    /// `metric`.
    pub metric: u32,
    /// `src`.
    pub source: Option<IpAddr>,
    /// The link that it leads to.
    pub link: u32,
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
