//! The host beside the router: by which ports it takes its packets, and what else the packet path has to
//! know of the kernel there.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_REPLACE};
use underpass_engine::buffer::PortId;
use underpass_engine::tables::{LinkId, Rewrite};
use underpass_netlink::{Message, fou};

use crate::live::{DUMMY, Hooked, VlanDevice};
use crate::{LinkKind, Neighbour, Router};

impl Router {
    /// The host takes what is for itself in this VRF (the index of its link; 0: in none) by the port of a
    /// link. Frames from there are for this MAC address, if the link has none.
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
        if port.is_some() {
            let given = self.ask_kernel(libc::RTM_NEWADDR, NLM_F_CREATE | NLM_F_REPLACE, |message| {
                let [a, b, c, d] = link.to_ne_bytes();
                // Of host scope: the kernel sends nothing from it.
                message.fixed(&[libc::AF_INET as u8, 32, 0, libc::RT_SCOPE_HOST, a, b, c, d]);
                message.address(libc::IFA_LOCAL, DUMMY.into());
                message.address(libc::IFA_ADDRESS, DUMMY.into());
            });
            if let Err(refusal) = given {
                tracing::debug!("the device of the host has no address: {refusal}");
            }
        }
        let links: Vec<u32> = self.links.iter().map(|link| link.index).collect();
        links.into_iter().for_each(|link| self.publish_link(link));
    }

    /// Whether a message of the kernel's is about such an address, or the route to it.
    pub(crate) fn is_about_host_address(&self, message: &Message<'_>) -> bool {
        let (length, address, link) = match message.kind {
            libc::RTM_NEWADDR | libc::RTM_DELADDR => (8, libc::IFA_LOCAL, None),
            _ => (12, libc::RTA_DST, Some(libc::RTA_OIF)),
        };
        let is_ipv4 = message.body().first() == Some(&(libc::AF_INET as u8));
        let mut attributes = message.attributes(length).filter(|_| is_ipv4);
        if !attributes.any(|it| it.kind == address && it.value == DUMMY.octets()) {
            return false;
        }
        let index = match link {
            None => message
                .body()
                .get(4..8)
                .and_then(|index| index.first_chunk().copied())
                .map(u32::from_ne_bytes),
            Some(kind) => message.attributes(length).find(|it| it.kind == kind).map(|it| it.u32()),
        };
        index.is_some_and(|index| self.is_host_address(index, DUMMY.into()))
    }

    /// Whether the kernel gets a copy of what comes in by a link.
    pub fn set_shared(&mut self, link: u32, shared: bool) {
        let Some(live) = &mut self.live else { return };
        let changed = if shared { live.host.shared.insert(link) } else { live.host.shared.remove(&link) };
        if changed {
            self.publish_link(link);
        }
    }

    /// The kernel takes by this port the frames that it keeps of those that have come in by a link.
    pub fn set_kernel_port(&mut self, link: u32, port: Option<PortId>) {
        let Some(live) = &mut self.live else { return };
        let old = match port {
            Some(port) => live.host.kernels.insert(link, port),
            None => live.host.kernels.remove(&link),
        };
        if old != port {
            self.publish_link(link);
        }
    }

    /// What looks at the packets of a link.
    pub fn hooked(&self, link: u32) -> Hooked {
        let live = self.live.as_ref();
        live.and_then(|live| live.host.hooked.get(&link)).copied().unwrap_or_default()
    }

    /// Changes with every change of what [`Router::hooked`] gives.
    pub fn hooked_generation(&self) -> u64 {
        self.live.as_ref().map_or(0, |live| live.host.hooked_generation)
    }

    /// The kernel's VLAN devices.
    pub fn vlan_devices(&self) -> impl Iterator<Item = VlanDevice> + '_ {
        self.live.iter().flat_map(|live| live.host.vlans.values().copied())
    }

    /// Links beside a kernel of which something looks at what leaves: what the host itself sends does not come by there.
    pub(crate) fn passed_by(&self) -> impl Iterator<Item = &str> {
        let hooked = self.live.iter().flat_map(|live| &live.host.hooked);
        let links = hooked.filter(|(_, hooked)| hooked.egress).filter_map(|(link, _)| self.links.get(*link));
        links
            .filter(|link| {
                link.kind == LinkKind::Dummy || link.kind == LinkKind::Kernel && link.attached.is_some()
            })
            .map(|link| &link.name[..])
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
