//! What addresses that come and go change.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use libc::IFA_F_PERMANENT;

use super::{Address, kernel_protocol, link_local, scope_of};
use crate::Router;
use crate::events::Cause;
use crate::link::tunnel::Automatic;
use crate::link::{Link, LinkKind};

impl Router {
    /// The addresses.
    pub fn addresses(&self) -> impl Iterator<Item = &Address> {
        self.addresses.iter()
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
        for address in std::mem::take(self.addresses.of_mut(index, true)) {
            self.notify_address(cause, libc::RTM_DELADDR, &address);
        }
        self.refresh_routes(cause, index);
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
    pub(super) fn publish_sources(&mut self, link: u32) {
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
}
