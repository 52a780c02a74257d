//! The state of the router: what is configured, and what is made of it.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Instant;

use underpass_engine::buffer::PortId;
use underpass_engine::in_kernel::records::OfDevice;
use underpass_engine::tables::{LinkId, Writer};
use underpass_netlink::reply::{Address, write_message};
use underpass_netlink::{Message, Reply, RequestError, tunnel};

use crate::Device;
use crate::address::Addresses;
use crate::events::Events;
use crate::fou::FouPorts;
use crate::hmac::HmacKeys;
use crate::ioam::Ioam;
use crate::link::bridge::stations::Stations;
use crate::link::bridge::trees::Trees;
use crate::link::tunnel::Tunnels;
use crate::link::{Link, LinkKind, Links};
use crate::live::{DUMMY, Hooked, Live, Unseen, VlanDevice};
use crate::neighbour::{Neighbour, Neighbours};
use crate::program::Offered;
use crate::psample::Psample;
use crate::route::Routes;
use crate::sysctl::Sysctls;
use crate::tc::TrafficControl;
use crate::tc::action::Actions;
use crate::tc::filter::Filters;

/// The router: all that `ip` can show and change.
pub struct Router {
    pub(crate) links: Links,
    /// The stations of bridges.
    pub(crate) stations: BTreeMap<u32, Stations>,
    /// Their spanning trees.
    pub(crate) trees: Trees,
    pub(crate) events: Events,
    pub(crate) addresses: Addresses,
    pub(crate) neighbours: Neighbours,
    pub(crate) routes: Routes,
    /// `ip sr tunsrc`: the source of encapsulations; `::` is one of the link's addresses.
    pub(crate) tunnel_source: Ipv6Addr,
    /// `ip sr hmac`.
    pub(crate) hmac_keys: HmacKeys,
    pub(crate) sysctls: Sysctls,
    pub(crate) ioam: Ioam,
    /// Tunnels that the packet path has.
    pub(crate) tunnels: Tunnels,
    /// `ip fou`.
    pub(crate) fou: FouPorts,
    /// `tc`.
    pub(crate) tc: TrafficControl,
    /// `tc actions`.
    pub(crate) actions: Actions,
    /// `tc filter`, `tc chain`.
    pub(crate) filters: Filters,
    /// Groups of samples, and who listens to them.
    pub(crate) psample: Psample,
    pub(crate) began: Instant,
    /// Where packets come at times of their own: what time it is for them.
    pub(crate) stopped_at: Option<u64>,
    /// Changes with every request or message that may have changed what is configured.
    pub(crate) changes: u64,
    /// What the requests of a datagram may name by descriptors.
    pub(crate) programs: Offered,
    /// Whether requests may ask for what Linux has no numbers for.
    pub(crate) experimental: bool,
    /// The programs that carry packets in the kernel, by link.
    pub(crate) carriers: BTreeMap<u32, OfDevice>,
    /// What there is only beside a kernel.
    pub(crate) live: Option<Box<Live>>,
    /// The forwarding state, which the packet path reads.
    pub(crate) engine: Writer,
}

impl Router {
    /// The links.
    pub fn links(&self) -> impl Iterator<Item = &Link> {
        self.links.iter()
    }

    /// A number that changes whenever something configured may have changed: what [`Router::save`] has to say.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// When the router began. Its workers have to count time from here on.
    pub fn began(&self) -> Instant {
        self.began
    }

    /// What time it is for packets: nanoseconds since the router began, as its workers count.
    pub(crate) fn packet_time(&self) -> u64 {
        self.stopped_at.unwrap_or_else(|| self.began.elapsed().as_nanos() as u64)
    }

    /// Stops the clock of [`Router::began`] at so many nanoseconds, for packets whose time is not that of the clock.
    pub fn stop_clock_at(&mut self, nanoseconds: u64) {
        self.stopped_at = Some(nanoseconds);
    }

    /// Hundredths of a second since the router began.
    pub(crate) fn ticks(&self) -> u32 {
        (self.began.elapsed().as_millis() / 10) as u32
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

    /// Takes note of what VLAN device of the kernel's a link is.
    pub(crate) fn note_vlan(&mut self, link: u32, vlan: Option<VlanDevice>) {
        let Some(live) = &mut self.live else { return };
        match vlan {
            Some(vlan) => live.host.vlans.insert(link, vlan),
            None => live.host.vlans.remove(&link),
        };
    }

    /// Forgets a link that is no more.
    pub(crate) fn forget_link_of_host(&mut self, link: u32) {
        self.note_hooked(link, Hooked::default());
        self.note_vlan(link, None);
        if let Some(live) = &mut self.live {
            live.host.kernels.remove(&link);
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

    /// Whether there is a VRF that this router has made.
    pub(crate) fn has_own_slaves(&self) -> bool {
        let vrf = |device: &Device| matches!(device, Device::Vrf { .. });
        self.live.as_ref().is_some_and(|live| live.devices.made.values().any(vrf))
    }

    /// The devices that the router stands behind.
    pub fn devices(&self) -> impl Iterator<Item = (u32, Device)> + '_ {
        self.live.iter().flat_map(|live| live.devices.made.iter().map(|(index, device)| (*index, *device)))
    }

    /// The indices of the links that this router has made, by name.
    pub fn indices(&self) -> BTreeMap<String, u32> {
        let made = |link: &Link| match &self.live {
            Some(live) => live.devices.made.contains_key(&link.index),
            None => !matches!(link.kind, LinkKind::Loopback | LinkKind::Port(_)),
        };
        let made = self.links.iter().filter(|link| made(link));
        made.map(|link| (link.name.clone(), link.index)).collect()
    }

    /// Has a router without a kernel give links of these names these indices when they are made, as far as they are free
    /// then: those of [`Router::indices`] of the router before it.
    pub fn keep_indices(&mut self, indices: BTreeMap<String, u32>) {
        self.links.keep_indices(indices);
    }

    /// The tunnels that the kernel itself has.
    pub fn kernel_tunnels(&self) -> impl Iterator<Item = tunnel::Kind> + '_ {
        self.live.iter().flat_map(|live| live.devices.kernels.values().copied())
    }

    /// Says once that an object is left to the kernel, and why.
    pub(crate) fn log_left(&mut self, what: &str, why: &str) {
        let Some(live) = &mut self.live else { return };
        let text = format!(
            "a {what} of the kernel's has {why}: the packets that it may be about are left to the kernel"
        );
        if !live.logged.contains(&text) {
            tracing::warn!("{text}");
            live.logged.insert(text);
        }
    }

    /// What is yet to be seen again, while a dump is read.
    pub(crate) fn unseen(&mut self) -> Option<&mut Unseen> {
        self.live.as_mut()?.unseen.as_deref_mut()
    }

    /// Requests a change of the kernel.
    pub(crate) fn request_kernel(
        &mut self,
        kind: u16,
        flags: u16,
        write: impl FnOnce(&mut Reply<'_>),
    ) -> Result<(), RequestError> {
        let mut message = Vec::new();
        write_message(&mut message, kind, flags, Address::default(), write)?;
        self.pass_on(&mut message)
    }

    /// Passes a request on to the kernel.
    pub(crate) fn pass_on(&mut self, message: &mut [u8]) -> Result<(), RequestError> {
        match self.live.as_mut().and_then(|live| live.namespace.as_mut()) {
            Some(namespace) => namespace.request(message),
            None => Err(RequestError::errno(libc::EOPNOTSUPP)),
        }
    }

    /// The addresses.
    pub fn addresses(&self) -> impl Iterator<Item = &crate::Address> {
        self.addresses.iter()
    }

    /// The link with an interface index.
    pub fn link(&self, index: u32) -> Option<&Link> {
        self.links.get(index)
    }

    /// The interface index of a link that the packet path names.
    pub fn index_of(&self, id: LinkId) -> Option<u32> {
        self.links.iter().find(|link| link.id == id).map(|link| link.index)
    }

    /// Takes requests for what Linux has no numbers for, from now on.
    pub fn allow_experimental(&mut self) {
        self.experimental = true;
    }

    /// Has a router beside a kernel make bridges itself, as it does anyway where the kernel has none.
    pub fn make_bridges(&mut self) {
        if let Some(live) = &mut self.live {
            live.devices.bridges_are_kernels = Some(false);
        }
    }

    /// Offers programs to the requests that follow, until the next call.
    pub fn offer_programs(&mut self, programs: Offered) {
        self.programs = programs;
    }

    /// The neighbours: link, address, and what is known.
    pub fn neighbours(&self) -> impl Iterator<Item = (u32, IpAddr, &Neighbour)> {
        self.neighbours.iter()
    }
}
