//! The host beside the router: by which ports it takes its packets, and what else the packet path has to
//! know of the kernel there.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_REPLACE};
use underpass_engine::buffer::PortId;
use underpass_engine::tables::{LinkId, Rewrite};

use underpass_netlink::{Message, fou};

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
    /// The ports by which the kernel takes frames that have come in by a link, where a worker gets all of them.
    kernels: BTreeMap<u32, PortId>,
    /// The kernel's VLAN devices, by their index.
    vlans: BTreeMap<u32, VlanDevice>,
    /// What looks at the packets of a link, where anything does; and a number that changes with it.
    hooked: BTreeMap<u32, Hooked>,
    hooked_generation: u64,
}

/// A VLAN device of the kernel's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VlanDevice {
    /// The index of the link by which its frames come.
    pub lower: u32,
    /// EtherType of their tag.
    pub protocol: u16,
    /// VLAN identifier.
    pub id: u16,
}

/// Whether filters or qdiscs of the router look at the packets of a link.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Hooked {
    /// At those that come in.
    pub ingress: bool,
    /// At those that leave.
    pub egress: bool,
}

/// An address for the devices through which the host gets its packets: RFC 7600. Where `rp_filter` is on, even loose, Linux
/// drops everything that a device without an address receives unless the return route uses that device. Programs do not
/// see this address.
const DUMMY: Ipv4Addr = Ipv4Addr::new(192, 0, 0, 8);

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

    /// Whether this is the address of a device by which the host takes its packets, or was.
    pub(crate) fn is_host_address(&self, link: u32, address: IpAddr) -> bool {
        address == DUMMY && (self.is_host_door(link) || self.links.get(link).is_none())
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

    /// The MAC address by which packets that come in by a link are known to be for the router. The host sends all that goes
    /// into a VRF to the MAC address of the VRF's device.
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

    pub(crate) fn kernel_port(&self, link: u32) -> Option<PortId> {
        self.live.as_ref()?.host.kernels.get(&link).copied()
    }

    /// Takes note of what looks at the packets of a link.
    pub(crate) fn note_hooked(&mut self, link: u32, hooked: Hooked) {
        let Some(live) = &mut self.live else { return };
        let old = match hooked {
            Hooked { ingress: false, egress: false } => live.host.hooked.remove(&link),
            _ => live.host.hooked.insert(link, hooked),
        };
        live.host.hooked_generation += u64::from(old.unwrap_or_default() != hooked);
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

    /// Takes note of what VLAN device of the kernel's a link is.
    pub(crate) fn note_vlan(&mut self, link: u32, vlan: Option<VlanDevice>) {
        let Some(live) = &mut self.live else { return };
        match vlan {
            Some(vlan) => live.host.vlans.insert(link, vlan),
            None => live.host.vlans.remove(&link),
        };
    }

    /// The kernel's VLAN devices.
    pub fn vlan_devices(&self) -> impl Iterator<Item = VlanDevice> + '_ {
        self.live.iter().flat_map(|live| live.host.vlans.values().copied())
    }

    /// Forgets a link that is no more.
    pub(crate) fn forget_link_of_host(&mut self, link: u32) {
        self.note_hooked(link, Hooked::default());
        self.note_vlan(link, None);
        if let Some(live) = &mut self.live {
            live.host.kernels.remove(&link);
        }
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
