//! The addresses that a link sends from.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{Address, sends4, sends6};
use crate::Router;

/// The address that the router sends from by this link when nothing else says which: the widest of
/// its own, or else of its VRF, or else of another link of that. Linux: `inet_select_addr`.
pub(crate) fn source4(router: &Router, link: u32) -> Option<Ipv4Addr> {
    let usable = |address: &&Address| sends4(address);
    let own = router.addresses.v4(link).iter().find(usable);
    let vrf = || router.addresses.v4(router.links.vrf_of(link)?.index).iter().find(usable);
    let found = own.or_else(vrf).or_else(|| {
        let others = router.links.iter().filter(|other| same_vrf(router, link, other.index));
        others.flat_map(|other| router.addresses.v4(other.index)).find(usable)
    });
    match found?.local {
        IpAddr::V4(address) => Some(address),
        IpAddr::V6(_) => None,
    }
}

/// The same for IPv6: a global address of the link, or else of another link of the same VRF, or else
/// the link's own link-local address.
pub(crate) fn source6(router: &Router, link: u32) -> Option<Ipv6Addr> {
    let global = |address: &&Address| sends6(address);
    let own = router.addresses.v6(link);
    let others = router.links.iter().filter(|other| same_vrf(router, link, other.index));
    let mut others = others.flat_map(|other| router.addresses.v6(other.index));
    match own.iter().find(global).or_else(|| others.find(global)).or(own.first())?.local {
        IpAddr::V6(address) => Some(address),
        IpAddr::V4(_) => None,
    }
}

/// The IPv6 addresses of a link.
pub(crate) fn own6(router: &Router, link: u32) -> Box<[Ipv6Addr]> {
    let own = router.addresses.v6(link).iter().filter_map(|address| match address.local {
        IpAddr::V6(address) => Some(address),
        IpAddr::V4(_) => None,
    });
    own.collect()
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

pub(super) fn same_vrf(router: &Router, a: u32, b: u32) -> bool {
    let vrf = |index| router.links.vrf_of(index).map(|vrf| vrf.index);
    vrf(a) == vrf(b)
}

/// What links without an address of their own send from, in the VRF of `link`: see [`Router::source4`],
/// [`Router::source6`].
pub(super) fn common_sources(router: &Router, link: u32) -> [Option<IpAddr>; 2] {
    let first = |usable: fn(&Address) -> bool| {
        let mut usable = router.addresses.iter().filter(|address| usable(address));
        usable.find(|address| same_vrf(router, link, address.link)).map(|address| address.local)
    };
    let vrf = router.links.vrf_of(link).map(|vrf| vrf.index);
    let of_vrf = vrf.and_then(|vrf| router.addresses.v4(vrf).iter().find(|address| sends4(address)));
    [
        of_vrf
            .map(|address| address.local)
            .or_else(|| first(|address| address.local.is_ipv4() && sends4(address))),
        first(|address| address.local.is_ipv6() && sends6(address)),
    ]
}
