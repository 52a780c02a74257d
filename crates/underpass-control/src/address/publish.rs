//! What addresses that come and go change.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::slice;

use libc::IFA_F_PERMANENT;

use super::kernel_routes::refresh_routes;
use super::query::notify_address;
use super::source::instance_device;
use super::{Address, kernel_protocol, link_local, scope_of};
use crate::Router;
use crate::events::Cause;
use crate::link::bridge::publish::publish_answering;
use crate::link::publish::publish_link;
use crate::link::tunnel::Automatic;
use crate::link::tunnel::publish::{publish_tunnels_from, publish_tunnels_from_any};
use crate::link::tunnel::underlay::automatic_addresses;
use crate::link::{Link, LinkKind};
use crate::neighbour::request::{flush_neighbours, flush_neighbours_of};
use crate::route::update::revive_routes_of;
use crate::updates::{link_gone_down, source_address_gone};

/// What follows for addresses when a link has come up.
pub(crate) fn addresses_up(router: &mut Router, cause: Cause, index: u32) {
    let Some(link) = router.links.get(index) else { return };
    if link.kind == LinkKind::Loopback && router.addresses.v4(index).is_empty() {
        let address = automatic(router, index, Ipv4Addr::LOCALHOST.into(), 8, libc::RT_SCOPE_HOST);
        insert4(router, cause, address);
    }
    ipv6_up(router, cause, index);
}

/// What follows when a link has gone down: it keeps its IPv4 addresses only.
pub(crate) fn addresses_down(router: &mut Router, cause: Cause, index: u32) {
    ipv6_down(router, cause, index);
    flush_neighbours(router, cause, index);
    link_gone_down(router, cause, index);
}

/// Gives a link the IPv6 addresses that it has without being asked. One that waits for a carrier is given them with it.
/// Linux: `addrconf_notify`.
pub(crate) fn ipv6_up(router: &mut Router, cause: Cause, index: u32) {
    let Some(link) = router.links.get(index) else { return };
    if waits_for_carrier(router, link) {
        return refresh_routes(router, cause, index);
    }
    router.addresses.on(index).ready6 = true;
    if let Some(tunnel) = &link.tunnel {
        tunnel_up(router, cause, index, &automatic_addresses(router, link, tunnel));
        return;
    }
    if let Some((address, prefix_len)) = automatic6(link)
        && link.ipv6()
        && !router.addresses.v6(index).iter().any(|own| own.local == address)
    {
        let address = automatic(router, index, address.into(), prefix_len, scope_of(address));
        insert6(router, cause, address);
    }
    refresh_routes(router, cause, index);
}

/// Whether a link has had no carrier since it came up. A kernel beside the router decides for itself. Linux:
/// `addrconf_link_ready`.
pub(super) fn waits_for_carrier(router: &Router, link: &Link) -> bool {
    would_wait(router, link) && !router.addresses.is_ready6(link.index)
}

/// Whether a link would have none if it came up now.
pub(crate) fn would_wait(router: &Router, link: &Link) -> bool {
    matches!(link.kind, LinkKind::Vlan | LinkKind::Bridge) && !link.carrier && router.live.is_none()
}

/// Gives a link that is up and has a carrier now what it has waited for.
pub(crate) fn carrier_up(router: &mut Router, cause: Cause, index: u32) {
    let waits = !router.addresses.is_ready6(index) && router.live.is_none();
    if waits && router.links.get(index).is_some_and(Link::ipv6) {
        ipv6_up(router, cause, index);
    }
}

/// The IPv6 address that a link other than a tunnel has when it comes up.
fn automatic6(link: &Link) -> Option<(Ipv6Addr, u8)> {
    match link.kind {
        LinkKind::Loopback => Some((Ipv6Addr::LOCALHOST, 128)),
        LinkKind::Vrf { .. } | LinkKind::Tunnel(_) => None,
        LinkKind::Port(_)
        | LinkKind::Kernel
        | LinkKind::Dummy
        | LinkKind::Ifb
        | LinkKind::Vlan
        | LinkKind::Bridge => link.eui64.then(|| (link_local(link.mac), 64)),
    }
}

impl Router {
    /// The addresses that a link would have by itself if it came up now, with the lengths of their prefixes.
    pub(crate) fn automatic_of(&self, index: u32) -> Vec<(IpAddr, u8)> {
        let Some(link) = self.links.get(index) else { return Vec::new() };
        let of_tunnel = link.tunnel.iter().flat_map(|tunnel| automatic_addresses(self, link, tunnel));
        let mut all: Vec<(IpAddr, u8)> =
            of_tunnel.map(|made| (made.address.into(), made.prefix_len)).collect();
        let ready = !would_wait(self, link);
        all.extend(automatic6(link).filter(|_| ready).map(|(address, len)| (IpAddr::from(address), len)));
        if link.kind == LinkKind::Loopback {
            all.push((Ipv4Addr::LOCALHOST.into(), 8));
        }
        all
    }
}

/// Gives a tunnel the IPv6 addresses that are made of its ends.
fn tunnel_up(router: &mut Router, cause: Cause, index: u32, addresses: &[Automatic]) {
    let ipv6 = router.links.get(index).is_some_and(Link::ipv6);
    for made in addresses.iter().filter(|_| ipv6) {
        if router.addresses.v6(index).iter().any(|own| own.local == made.address) {
            continue;
        }
        let mut address = automatic(router, index, made.address.into(), made.prefix_len, made.scope);
        address.flags |= made.flags;
        if !made.kernel {
            address.protocol = 0;
        }
        insert6(router, cause, address);
    }
    refresh_routes(router, cause, index);
}

/// Takes all IPv6 addresses from a link, as Linux does when it goes down.
pub(crate) fn ipv6_down(router: &mut Router, cause: Cause, index: u32) {
    let gone = std::mem::take(router.addresses.of_mut(index, true));
    router.addresses.on(index).ready6 = false;
    for address in &gone {
        notify_address(router, cause, libc::RTM_DELADDR, address);
    }
    refresh_routes(router, cause, index);
    if !gone.is_empty() {
        publish_sources(router, index);
        publish_answering(router, index, &gone);
    }
    for address in &gone {
        publish_tunnels_from(router, address.local);
    }
}

/// Takes all addresses from a link that is being deleted.
pub(crate) fn forget_addresses(router: &mut Router, cause: Cause, index: u32) {
    for address in std::mem::take(router.addresses.of_mut(index, false)) {
        notify_address(router, cause, libc::RTM_DELADDR, &address);
        address_gone(router, cause, &address);
    }
    ipv6_down(router, cause, index);
    router.addresses.links.remove(&index);
}

/// Renames the labels of a link's addresses with it. Linux: `inetdev_changename`.
pub(crate) fn relabel_addresses(router: &mut Router, cause: Cause, link: &Link) {
    let addresses = router.addresses.of_mut(link.index, false);
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
        notify_address(router, cause, libc::RTM_NEWADDR, &address);
    }
}

fn automatic(router: &Router, link: u32, local: IpAddr, prefix_len: u8, scope: u8) -> Address {
    let now = router.ticks();
    Address {
        link,
        local,
        peer: None,
        prefix_len,
        broadcast: None,
        label: router.links.get(link).map(|link| link.name.clone()).unwrap_or_default(),
        scope,
        flags: IFA_F_PERMANENT,
        metric: 0,
        protocol: if local.is_ipv6() { kernel_protocol(local) } else { 0 },
        stamps: [now; 2],
    }
}

/// Adds an IPv4 address in its place in the list. Linux: `__inet_insert_ifa`.
pub(crate) fn insert4(router: &mut Router, cause: Cause, address: Address) {
    let list = router.addresses.of_mut(address.link, false);
    let mut place = list.len();
    if !address.secondary() {
        let wider = |own: &Address| !own.secondary() && address.scope <= own.scope;
        place = list.iter().rposition(wider).map_or(0, |last| last + 1);
    }
    list.insert(place, address.clone());
    address_added(router, cause, &address);
    revive_routes_of(router, address.link);
}

/// Adds an IPv6 address in its place in the list. Linux: `ipv6_link_dev_addr`.
pub(crate) fn insert6(router: &mut Router, cause: Cause, address: Address) {
    let list = router.addresses.of_mut(address.link, true);
    // RT_SCOPE_* grow as the scope narrows.
    let place = list.iter().position(|own| address.scope <= own.scope).unwrap_or(list.len());
    list.insert(place, address.clone());
    address_added(router, cause, &address);
}

fn address_added(router: &mut Router, cause: Cause, address: &Address) {
    notify_address(router, cause, libc::RTM_NEWADDR, address);
    refresh_routes(router, cause, address.link);
    publish_sources(router, address.link);
    publish_answering(router, address.link, slice::from_ref(address));
    publish_tunnels_from(router, address.local);
}

/// After an address was taken out of the list, and told of.
pub(crate) fn address_gone(router: &mut Router, cause: Cause, address: &Address) {
    refresh_routes(router, cause, address.link);
    if !router.addresses.is_local(address.local) {
        source_address_gone(router, cause, address.local, address.link);
    }
    // A link without an IPv4 address forgets its neighbours, permanent ones as well. Linux: `fib_disable_ip`.
    if address.local.is_ipv4() && router.addresses.v4(address.link).is_empty() {
        flush_neighbours_of(router, cause, address.link, false);
    }
    publish_sources(router, address.link);
    publish_answering(router, address.link, slice::from_ref(address));
    publish_tunnels_from(router, address.local);
}

/// Publishes a link whose addresses have changed, and what the links of its routing instance send from that have none.
pub(super) fn publish_sources(router: &mut Router, link: u32) {
    publish_link(router, link);
    publish_instance(router, link);
    publish_tunnels_from_any(router);
}

/// Publishes what the links of a link's routing instance send from that have no address of their own: the link's addresses
/// have changed, or it has come into the instance.
pub(crate) fn publish_instance(router: &mut Router, link: u32) {
    let device = instance_device(router, link);
    if device != link {
        publish_link(router, device);
    }
}
