//! The addresses that a link sends from.

use std::cmp::Reverse;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use underpass_engine::tables::Instance;
use underpass_packet::ipv6::policy_label;

use super::{Address, sends4, sends6};
use crate::Router;
use crate::link::LOOPBACK;

/// The address that the router sends from by this link when nothing else says which: the widest of
/// its own, or else of its VRF, or else of another link of that. Linux: `inet_select_addr`.
pub(crate) fn source4(router: &Router, link: u32) -> Option<Ipv4Addr> {
    own_source4(router, link).or_else(|| common4(router, link))
}

/// The same for IPv6: a global address of the link, or else of another link of the same VRF, or else
/// the link's own link-local address.
pub(crate) fn source6(router: &Router, link: u32) -> Option<Ipv6Addr> {
    let first = || router.addresses.v6(link).first().and_then(ipv6);
    own_source6(router, link).or_else(|| common6(router, link)).or_else(first)
}

/// The same for what goes to this address, of several that the link has: RFC 6724 section 5, rules 6 and 8. Linux:
/// `ipv6_dev_get_saddr`.
pub(crate) fn source6_to(router: &Router, link: u32, to: Ipv6Addr) -> Option<Ipv6Addr> {
    let own = router.addresses.v6(link).iter().filter(|address| sends6(address));
    let own = own.filter_map(|address| Some((ipv6(address)?, u32::from(address.prefix_len))));
    let best = own.min_by_key(|(address, len)| {
        let common = (address.to_bits() ^ to.to_bits()).leading_zeros();
        Reverse((policy_label(*address) == policy_label(to), common.min(*len)))
    });
    best.map(|(address, _)| address).or_else(|| source6(router, link))
}

/// The IPv4 address of a link's own that the router sends from by it.
pub(crate) fn own_source4(router: &Router, link: u32) -> Option<Ipv4Addr> {
    router.addresses.v4(link).iter().find(|address| sends4(address)).and_then(ipv4)
}

/// The global IPv6 address of a link's own that the router sends from by it.
pub(crate) fn own_source6(router: &Router, link: u32) -> Option<Ipv6Addr> {
    router.addresses.v6(link).iter().find(|address| sends6(address)).and_then(ipv6)
}

/// The routing instance of a link, as the packet path knows it.
pub(crate) fn instance(router: &Router, link: u32) -> Instance {
    let device = instance_device(router, link);
    match router.links.get(device) {
        Some(device) if device.index != link => Instance::Of(device.id),
        _ => Instance::Own { source4: common4(router, link), source6: common6(router, link) },
    }
}

/// The link that stands for the routing instance of a link: the device of its VRF, or `lo`.
pub(crate) fn instance_device(router: &Router, link: u32) -> u32 {
    router.links.vrf_of(link).map_or(LOOPBACK, |vrf| vrf.index)
}

/// What the links without an IPv4 address of their own send from in the VRF of `link`: an address of the VRF's device, or
/// else the first.
fn common4(router: &Router, link: u32) -> Option<Ipv4Addr> {
    let of_vrf = || own_source4(router, router.links.vrf_of(link)?.index);
    let first = || router.addresses.links.values().flat_map(|on_link| &on_link.v4);
    of_vrf().or_else(|| first().find(|it| sends4(it) && same_vrf(router, link, it.link)).and_then(ipv4))
}

/// The same for IPv6: the first global address.
fn common6(router: &Router, link: u32) -> Option<Ipv6Addr> {
    let mut all = router.addresses.links.values().flat_map(|on_link| &on_link.v6);
    all.find(|it| sends6(it) && same_vrf(router, link, it.link)).and_then(ipv6)
}

const fn ipv4(address: &Address) -> Option<Ipv4Addr> {
    match address.local {
        IpAddr::V4(address) => Some(address),
        IpAddr::V6(_) => None,
    }
}

const fn ipv6(address: &Address) -> Option<Ipv6Addr> {
    match address.local {
        IpAddr::V6(address) => Some(address),
        IpAddr::V4(_) => None,
    }
}

/// The IPv6 addresses of a link.
pub(crate) fn own6(router: &Router, link: u32) -> Box<[Ipv6Addr]> {
    router.addresses.v6(link).iter().filter_map(ipv6).collect()
}

/// The anycast addresses that a link has with its own.
pub(crate) fn anycast6(router: &Router, link: u32) -> Box<[Ipv6Addr]> {
    router.addresses.v6(link).iter().filter_map(|address| address.anycast()).collect()
}

/// The addresses that a link may send from and the lengths of their prefixes, if there are several of one family.
pub(crate) fn several(router: &Router, link: u32) -> Box<[(IpAddr, u8)]> {
    let v4 = router.addresses.v4(link).iter().filter(|address| sends4(address));
    let v6 = router.addresses.v6(link).iter().filter(|address| sends6(address));
    match v4.clone().count().max(v6.clone().count()) {
        0 | 1 => Box::default(),
        _ => v4.chain(v6).map(|address| (address.local, address.prefix_len)).collect(),
    }
}

fn same_vrf(router: &Router, a: u32, b: u32) -> bool {
    let vrf = |index| router.links.vrf_of(index).map(|vrf| vrf.index);
    vrf(a) == vrf(b)
}
