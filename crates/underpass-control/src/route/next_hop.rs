//! Next hops: neighbours and links that routes lead to, compiled once for all of these.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use underpass_engine::tables::{
    Action, ActionId, Discard, LookupId, NextHop, NextHopId, Rewrite, TunnelId, TunnelRoute, Via,
};

use super::compiled::{Build, Holding, NextHopKey};
use super::info::Hop;
use crate::link::LinkKind;
use crate::{Link, Router};

impl Router {
    /// Whether what leaves by a link is left to the kernel: it is one of the kernel's, in no VRF, and no
    /// port is attached to it.
    pub(crate) fn kernel_forwards(&self, index: u32) -> bool {
        let link = self.links.get(index).filter(|_| self.live.is_some());
        link.is_some_and(|link| {
            link.port().is_none()
                && self.links.vrf_of(index).is_none()
                && link.kind != LinkKind::Dummy
                && link.tunnel.is_none()
        })
    }

    /// The action of what is left to the kernel.
    pub(crate) fn handing_over(&mut self) -> ActionId {
        if let Some(id) = self.routes.compiled.handing_over {
            return id;
        }
        let id = self.engine.add_action(Action::HandOver);
        self.routes.compiled.handing_over = Some(id);
        id
    }

    pub(super) fn is_vrf(&self, link: u32) -> bool {
        self.links.get(link).is_some_and(|link| link.vrf_table().is_some())
    }

    pub(super) fn is_dummy(&self, link: u32) -> bool {
        self.links.get(link).is_some_and(|link| link.sink.is_some())
    }

    /// Whether a link is a tunnel that takes its parameters from routes.
    pub(super) fn is_external(&self, link: u32) -> bool {
        let tunnel = self.links.get(link).and_then(|link| link.tunnel.as_ref());
        tunnel.is_some_and(|tunnel| tunnel.parameters.external)
    }

    pub(super) fn lead_into(
        &mut self,
        tunnel: Option<TunnelId>,
        hop: &Hop,
        mtu: u32,
        build: &mut Build,
    ) -> Action {
        let Some(tunnel) = tunnel else { return Action::Discard(Discard::Blackhole) };
        let ethernet = self.links.get(hop.oif).is_some_and(Link::resolves);
        let next_hop = match hop.gateway {
            Some(gateway) if ethernet && !build.keyed => {
                Some(self.acquire_next_hop((hop.oif, gateway, mtu), build))
            }
            _ if build.keyed => None,
            None if ethernet => return Action::OnLink(self.link_id(hop.oif)),
            _ => None,
        };
        Action::Tunnel(TunnelRoute { tunnel, next_hop, mtu })
    }

    pub(super) fn via(&mut self, address: IpAddr, lookup: LookupId, build: &mut Build) -> Via {
        build.holds.push(Holding::Resolution(address));
        self.via_now(address, lookup)
    }

    /// Where packets to an address go, by the routes as they are.
    pub(crate) fn via_now(&mut self, address: IpAddr, lookup: LookupId) -> Via {
        let resolved = self.resolve(address, lookup);
        if resolved.is_none() {
            self.want_on_link(address, lookup);
        }
        Via { address, lookup, resolved }
    }

    /// The next hop of packets to an address, where its route leads to one and does nothing else.
    pub(crate) fn resolve(&self, address: IpAddr, lookup: LookupId) -> Option<NextHopId> {
        let unspecified =
            matches!(address, IpAddr::V4(Ipv4Addr::UNSPECIFIED) | IpAddr::V6(Ipv6Addr::UNSPECIFIED));
        let found = if unspecified { None } else { self.published(lookup, address) };
        found.and_then(|action| self.routes.compiled.forwards.get(&action).copied())
    }

    pub(super) fn acquire_next_hop(&mut self, key: NextHopKey, build: &mut Build) -> NextHopId {
        build.holds.push(Holding::NextHop(key));
        self.hold_next_hop(key)
    }

    /// The next hop, which one more holds now.
    pub(crate) fn hold_next_hop(&mut self, key: NextHopKey) -> NextHopId {
        if let Some((id, users)) = self.routes.compiled.next_hops.get_mut(&key) {
            *users += 1;
            return *id;
        }
        let next_hop = self.next_hop(key);
        if next_hop.rewrite.is_none() {
            self.want_neighbour(key.0, key.1);
        }
        let id = self.engine.add_next_hop(next_hop);
        self.routes.compiled.next_hops.insert(key, (id, 1));
        id
    }

    pub(crate) fn release_next_hop(&mut self, key: NextHopKey) {
        let Some((id, users)) = self.routes.compiled.next_hops.get_mut(&key) else { return };
        *users -= 1;
        if *users == 0 {
            self.engine.remove_next_hop(*id);
            self.routes.compiled.next_hops.remove(&key);
        }
    }

    /// A next hop as it is now.
    pub(super) fn next_hop(&self, (index, address, mtu): NextHopKey) -> NextHop {
        let link = self.links.get(index);
        // What goes into a tunnel leaves by no port of the tunnel's.
        let tunnel = self.tunnels.id(index).is_some();
        let port = link.and_then(|link| link.port().or(link.sink)).filter(|_| !tunnel);
        let link_mtu = link.map_or(0, |link| link.mtu);
        let rewrite = link.and_then(|link| {
            // Nobody looks at the addresses where there are none, as on a TUN device.
            let mac = match link.resolves() {
                true => self.routes.published.mac(index, address)?,
                false if tunnel => return None,
                // Linux: `arp_constructor`.
                false if link.sink.is_some() => link.mac,
                false => [0; 6],
            };
            let mut bytes = [0; 20];
            bytes[..6].copy_from_slice(&mac);
            bytes[6..12].copy_from_slice(&link.mac);
            Some(Rewrite { bytes, len: 12 })
        });
        NextHop {
            link: self.link_id(index),
            port: port.unwrap_or(underpass_engine::buffer::PortId::NONE),
            mtu: if mtu == 0 { link_mtu } else { mtu },
            rewrite: rewrite.filter(|_| port.is_some() || tunnel),
            address,
        }
    }
}
