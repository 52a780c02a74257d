//! The host beside the router: by which ports it takes its packets, and what else the packet path has to
//! know of the kernel there.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use underpass_engine::buffer::PortId;
use underpass_engine::tables::{LinkId, Rewrite};

use underpass_netlink::fou;

use crate::{LinkKind, Neighbour, Router};

/// The ports of the host, and the links that it shares.
#[derive(Debug, Default)]
pub(crate) struct Host {
    /// By VRF link; 0 for the links that are in none.
    ports: BTreeMap<u32, PortId>,
    /// MAC addresses that the ports give the router, on links that have none themselves.
    macs: BTreeMap<u32, [u8; 6]>,
    /// The links of whose packets the kernel gets a copy.
    shared: BTreeSet<u32>,
}

impl Router {
    /// The host takes what is for itself in this VRF (the index of its link; 0: in none) by the port of a
    /// link. Frames from there are for this MAC address, whatever the link says.
    pub fn set_host_port(&mut self, vrf: u32, link: u32, port: Option<(PortId, [u8; 6])>) {
        let Some(live) = &mut self.live else { return };
        match port {
            Some((port, mac)) => {
                live.host.ports.insert(vrf, port);
                live.host.macs.insert(link, mac);
            }
            None => {
                live.host.ports.remove(&vrf);
                live.host.macs.remove(&link);
            }
        }
        let links: Vec<u32> = self.links.iter().map(|link| link.index).collect();
        links.into_iter().for_each(|link| self.publish_link(link));
    }

    /// The MAC address by which packets that come in by a link are known to be for the router: the link's own, as which the
    /// host takes whoever it sends to by the device of a VRF.
    pub(crate) fn receiving_mac(&self, link: &crate::Link) -> [u8; 6] {
        let given = self.live.as_ref().and_then(|live| live.host.macs.get(&link.index));
        given.copied().filter(|_| link.mac == [0; 6]).unwrap_or(link.mac)
    }

    /// Whether what comes in by a link was sent by the host.
    pub(crate) fn is_host_door(&self, link: u32) -> bool {
        self.live.as_ref().is_some_and(|live| live.host.macs.contains_key(&link))
    }

    /// Whether the kernel gets a copy of what comes in by a link.
    pub fn set_shared(&mut self, link: u32, shared: bool) {
        let Some(live) = &mut self.live else { return };
        let changed = if shared { live.host.shared.insert(link) } else { live.host.shared.remove(&link) };
        if changed {
            self.publish_link(link);
        }
    }

    /// The host's port for what comes in by a link, and whether the kernel gets a copy of that.
    pub(crate) fn host_of(&self, link: u32) -> (Option<PortId>, bool) {
        let Some(live) = &self.live else { return (None, false) };
        if let Some(tunnel) = self.links.get(link).filter(|link| matches!(link.kind, LinkKind::Tunnel(_))) {
            // What comes out of a tunnel comes to the host by the tunnel's device.
            return (tunnel.port(), false);
        }
        let vrf = self.domain_of(link);
        (live.host.ports.get(&vrf).copied(), live.host.shared.contains(&link))
    }

    /// The VRF that a link is in, by the index of its link; 0 for none.
    pub fn domain_of(&self, link: u32) -> u32 {
        self.links.vrf_of(link).map_or(0, |vrf| vrf.index)
    }

    /// Whether labelled packets are taken that come in by a link: `net.mpls.conf.IF.input`.
    pub fn takes_labels(&self, link: u32) -> bool {
        self.routes.labels.takes(link)
    }

    /// Changes with every change of a link, and of whether it takes labels.
    pub fn link_generation(&self) -> u64 {
        self.links.generation
    }

    /// The receive ports of foo-over-UDP.
    pub fn fou_ports(&self) -> impl Iterator<Item = &fou::Config> {
        self.fou.iter()
    }

    /// Changes with every change of a receive port.
    pub fn fou_generation(&self) -> u64 {
        self.fou.generation()
    }

    /// Changes with every change of what [`Router::local_addresses`] gives.
    pub fn local_generation(&self) -> u64 {
        self.addresses.locals
    }

    /// The addresses that are the host's own in a VRF, and the broadcast addresses of its subnets. Of those
    /// in VRFs that the router makes the kernel does not know: what is for them comes to the router, which
    /// hands it over by the VRF's device.
    pub fn local_addresses(&self) -> BTreeSet<(u32, IpAddr)> {
        let mut locals = BTreeSet::new();
        for own in self.addresses.iter().filter(|own| !self.in_own_vrf(own.link)) {
            let domain = self.domain_of(own.link);
            locals.insert((domain, own.local));
            if let (IpAddr::V4(_), Some(IpNet::V4(subnet))) = (own.local, own.prefix())
                && subnet.prefix_len() < 31
            {
                locals.insert((domain, subnet.broadcast().into()));
            }
        }
        locals
    }

    /// What is known of the station with this address on a link.
    pub fn neighbour(&self, link: u32, address: IpAddr) -> Option<&Neighbour> {
        self.neighbours.get(link, address)
    }

    /// The link-layer header of packets to a neighbour, if its address is known; and the packet path's name
    /// for the link.
    pub fn link_layer(&self, link: u32, address: IpAddr) -> Option<(LinkId, Rewrite)> {
        let link = self.links.get(link)?;
        let mac = self.neighbours.get(link.index, address)?.usable()?;
        let mut bytes = [0; 20];
        bytes[..6].copy_from_slice(&mac);
        bytes[6..12].copy_from_slice(&link.mac);
        Some((link.id, Rewrite { bytes, len: 12 }))
    }

    /// Which of the protocols of packets inside others the host may take where no tunnel does, as bits of
    /// [`underpass_engine::tables::inside_bit`].
    pub fn set_host_takes(&mut self, protocols: u32) {
        self.engine.set_host_takes(protocols);
    }

    /// Whether hop-by-hop options of packets for the host's own addresses are the router's to read: there is a link on
    /// which traces are filled in.
    pub fn reads_options(&self) -> bool {
        self.links.iter().any(|link| self.ioam_link(link).enabled)
    }

    /// How much was replaced or removed that a worker may still hold.
    pub fn waiting(&self) -> usize {
        self.engine.waiting()
    }

    /// Frees what no worker can hold any more: to be called when nothing else has happened for a while.
    pub fn reclaim(&mut self) {
        self.engine.reclaim();
    }
}
