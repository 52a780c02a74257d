//! Tunnels and ports of foo-over-UDP as the packet path has them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use underpass_engine::tables::{FouPayload, FouPort, NextHopId, Via};
use underpass_netlink::iptunnel::{self, IpTunnel};
use underpass_netlink::tunnel::{self, Encap, GRE_CSUM, GRE_KEY, GRE_SEQ, IP6_IGNORE_ENCAP_LIMIT};

use super::compile::NO_LOOKUP;
use super::{Published, Tunnel};
use crate::route::{Family, Flow, NextHopKey, Prefix, bits};
use crate::{Link, Router};

impl Tunnel {
    /// The tunnel that a route makes of a device with external metadata; `None` if the addresses are not of its family.
    /// Linux: `ip_md_tunnel_xmit`, `ipxip6_tnl_xmit`, `prepare_ip6gre_xmit_other`, `bareudp_xmit`.
    pub(crate) fn given(&self, given: &IpTunnel) -> Option<(tunnel::Tunnel, Encap)> {
        let device = self.parameters;
        let other = device.bare.is_none() && given.destination.is_ipv6() != device.kind.ipv6();
        if other || given.destination.is_unspecified() {
            return None;
        }
        let flag = |flag: u16, gre: u16| if given.flags & flag != 0 { gre } else { 0 };
        let (checksum, key) = (flag(iptunnel::CSUM, GRE_CSUM), flag(iptunnel::KEY, GRE_KEY));
        let parameters = tunnel::Tunnel {
            local: given.source,
            remote: given.destination,
            ttl: given.ttl,
            // Only a TOS of 1 is that of the packet; its other ECN bits count for nothing.
            tos: if device.bare.is_some() || given.tos == 1 { given.tos } else { given.tos & !1 },
            // Nor does Don't Fragment of the packet inside.
            ignore_df: true,
            pmtudisc: given.flags & iptunnel::DONT_FRAGMENT != 0,
            output_flags: checksum | key | flag(iptunnel::SEQ, GRE_SEQ),
            output_key: given.id as u32,
            external: false,
            flow_info: u32::from(given.tos) << 20,
            flags: IP6_IGNORE_ENCAP_LIMIT,
            ..device
        };
        Some((parameters, self.encap))
    }
}

impl Router {
    /// Gives the packet path the tunnel of a link as it is now, if the link is one.
    pub(crate) fn publish_tunnel(&mut self, index: u32) {
        let Some(link) = self.links.get(index) else { return };
        let (Some(tunnel), id) = (link.tunnel.clone(), link.id) else { return };
        let (via, next_hop) = self.underlay(&tunnel.parameters);
        let compiled = self.compile_tunnel(&tunnel, id, via, false);
        let place = |remote: IpAddr| (Family::of(remote), bits(remote), index);
        self.tunnels.remotes.insert(place(compiled.remote));
        if compiled.local.is_unspecified() {
            self.tunnels.from_any.insert(index);
        } else {
            self.tunnels.from_any.remove(&index);
        }
        if compiled.kind.is_over_ipv6() && !compiled.local.is_unspecified() {
            self.tunnels.locals.insert((bits(compiled.local), index));
        }
        let held = match self.tunnels.by_link.get_mut(&index) {
            Some(published) => {
                if published.compiled.local != compiled.local {
                    self.tunnels.locals.remove(&(bits(published.compiled.local), index));
                }
                if published.compiled.remote != compiled.remote {
                    self.tunnels.remotes.remove(&place(published.compiled.remote));
                }
                // Routes by a device of many ends have tunnels of their own, made of what the device is.
                let many = |tunnel: &underpass_engine::tables::Tunnel| tunnel.remote.is_unspecified();
                if published.compiled != compiled {
                    let routes = many(&published.compiled) || many(&compiled);
                    self.engine.set_tunnel(published.id, compiled.clone());
                    published.compiled = compiled;
                    let held = std::mem::replace(&mut published.next_hop, next_hop);
                    if routes {
                        self.recompile_routes_by(index);
                    }
                    held
                } else {
                    std::mem::replace(&mut published.next_hop, next_hop)
                }
            }
            None => {
                let id = self.engine.add_tunnel(compiled.clone());
                self.tunnels.by_link.insert(index, Published { id, next_hop, compiled, ports: None });
                self.publish_keys();
                None
            }
        };
        if let Some(held) = held {
            self.release_next_hop(held);
        }
        self.open_ports(index);
    }

    /// Opens the ports of a `bareudp` that is up, or closes those of one that is not.
    fn open_ports(&mut self, index: u32) {
        let opened = self.links.get(index).and_then(Link::opened);
        let Some(published) = self.tunnels.by_link.get_mut(&index) else { return };
        let tunnel = published.id;
        match (opened, published.ports) {
            (Some(port), None) => {
                let families = [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)];
                let open = |local: IpAddr| {
                    let payload = FouPayload::Device(tunnel);
                    let any =
                        FouPort { port, ipv6: local.is_ipv6(), local, peer: None, bound: None, payload };
                    self.engine.add_fou_port(any)
                };
                published.ports = Some(families.map(open));
            }
            (None, Some(ports)) => {
                published.ports = None;
                ports.into_iter().for_each(|port| self.engine.remove_fou_port(port));
            }
            _ => {}
        }
    }

    /// Takes the tunnel of a link from the packet path.
    pub(crate) fn unpublish_tunnel(&mut self, index: u32) {
        let Some(published) = self.tunnels.by_link.remove(&index) else { return };
        self.tunnels.from_any.remove(&index);
        let remote = published.compiled.remote;
        self.tunnels.remotes.remove(&(Family::of(remote), bits(remote), index));
        self.tunnels.locals.remove(&(bits(published.compiled.local), index));
        published.ports.into_iter().flatten().for_each(|port| self.engine.remove_fou_port(port));
        self.publish_keys();
        self.engine.remove_tunnel(published.id);
        if let Some(held) = published.next_hop {
            self.release_next_hop(held);
        }
    }

    /// Publishes the tunnels that are for a remote address inside a prefix: a route has changed.
    pub(crate) fn publish_tunnels_inside(&mut self, family: Family, prefix: Prefix) {
        let range = (family, prefix.first(), 0)..=(family, prefix.last(), u32::MAX);
        let links: Vec<u32> = self.tunnels.remotes.range(range).map(|(.., link)| *link).collect();
        links.into_iter().for_each(|link| self.publish_tunnel(link));
    }

    /// Publishes the tunnels that have no address of their own: addresses have changed.
    pub(crate) fn publish_tunnels_from_any(&mut self) {
        let links: Vec<u32> = self.tunnels.from_any.iter().copied().collect();
        links.into_iter().for_each(|link| self.publish_tunnel(link));
    }

    /// Publishes the tunnels over IPv6 that send from this address: the router has it now, or not any more.
    pub(crate) fn publish_tunnels_from(&mut self, address: IpAddr) {
        let IpAddr::V6(address) = address else { return };
        let range = (address.to_bits(), 0)..=(address.to_bits(), u32::MAX);
        let links: Vec<u32> = self.tunnels.locals.range(range).map(|(_, link)| *link).collect();
        links.into_iter().for_each(|link| self.publish_tunnel(link));
    }

    /// Publishes all tunnels: rules or VRFs have changed.
    pub(crate) fn publish_tunnels(&mut self) {
        let links: Vec<u32> = self.tunnels.by_link.keys().copied().collect();
        links.into_iter().for_each(|link| self.publish_tunnel(link));
    }

    /// Where outer packets go, and the neighbour that is held for it.
    fn underlay(&mut self, parameters: &tunnel::Tunnel) -> (Via, Option<NextHopKey>) {
        let (address, link) = (parameters.remote, parameters.link);
        let lookup = self.underlay_lookup(link);
        let oif = self.outer_oif(parameters);
        if address.is_unspecified() || address.is_multicast() || oif == 0 {
            return (self.via_now(address, lookup), None);
        }
        // Outer packets leave by this link whatever other routes say. Where none leads there, the remote address is
        // taken to be on it. Linux: ip_route_output_key_hash_rcu.
        let flow = Flow { oif: link, l3mdev: self.l3mdev_table(link), ..Flow::to(address) };
        if !parameters.local.is_unspecified() && self.goes_past(&flow) {
            return (self.via_now(address, lookup), None);
        }
        let hop = self.hop_of(&flow);
        if hop.is_none() && flow.l3mdev.is_some() {
            // But not in a VRF.
            return (Via { address, lookup: NO_LOOKUP, resolved: None }, None);
        }
        let gateway = hop.and_then(|hop| hop.gateway);
        let key = (link, gateway.unwrap_or(address), 0);
        let by_port = self.links.get(link).is_some_and(|link| link.port().is_some());
        if !by_port {
            return (self.via_now(address, lookup), None);
        }
        let resolved: Option<NextHopId> = Some(self.hold_next_hop(key));
        (Via { address, lookup, resolved }, Some(key))
    }
}
