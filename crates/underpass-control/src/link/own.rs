//! VRFs, dummies and tunnels beside a kernel that has none of them: each a device of the kernel's that the router
//! has made and stands behind. The kernel does not know which links are enslaved to them; the router does.

use std::collections::BTreeMap;

use libc::{
    ARPHRD_ETHER, IFF_BROADCAST, IFF_MASTER, IFF_MULTICAST, IFF_NOARP, IFF_POINTOPOINT, IFF_UP, RTM_NEWLINK,
    RTM_SETLINK,
};
use netlink_packet_core::NLA_F_NESTED;
use underpass_netlink::reply::{Address, write_message};
use underpass_netlink::{Message, Reply, RequestError, tunnel};

use super::change::Wanted;
use super::encode::{
    IFLA_INET6_ADDR_GEN_MODE, IFLA_PERM_ADDRESS, IFLA_VRF_PORT_TABLE, IFLA_VRF_TABLE, write_addresses,
    write_stats,
};
use super::{Link, LinkKind, Tunnel};
use crate::owner::creates;
use crate::request::word;
use crate::router::Outcome;
use crate::{Device, Request, Router};

/// Devices that are gone are still spoken of for a while.
const REMEMBERED: usize = 64;
/// Length of a `struct ifinfomsg`.
const HEADER: usize = 16;

/// Flags that follow from what a tunnel is.
const OF_TUNNELS: u32 = (IFF_NOARP | IFF_POINTOPOINT | IFF_BROADCAST | IFF_MULTICAST) as u32;

/// A tunnel behind a device.
#[derive(Debug)]
pub(crate) struct Made {
    pub(super) tunnel: Tunnel,
    /// Of `OF_TUNNELS` those that it has.
    flags: u32,
}

impl Made {
    fn new(link: &Link) -> Option<Self> {
        let tunnel = link.tunnel.as_deref()?.clone();
        Some(Self { tunnel, flags: link.flags & OF_TUNNELS })
    }

    /// The flags of the link, from those of the kernel's device.
    pub(super) const fn flags(&self, kernels: u32) -> u32 {
        kernels & !OF_TUNNELS | self.flags
    }
}

/// What the kernel does not know of its links.
#[derive(Debug, Default)]
pub(crate) struct Devices {
    /// The devices that the router stands behind, by interface index.
    made: BTreeMap<u32, Device>,
    /// Those of before.
    gone: BTreeMap<u32, Device>,
    /// What the tunnels among both are.
    tunnels: BTreeMap<u32, Made>,
    /// The VRF of each link that is enslaved to one of them.
    masters: BTreeMap<u32, u32>,
    /// What the kernel has last told of each link: the body of its message.
    told: BTreeMap<u32, Box<[u8]>>,
    /// The kernel's own tunnels.
    kernels: BTreeMap<u32, tunnel::Kind>,
}

impl Devices {
    /// Of which kind the device is that the router stands behind.
    pub fn get(&self, index: u32) -> Option<Device> {
        self.made.get(&index).copied()
    }

    /// The tunnel that a device is.
    pub(super) fn tunnel(&self, index: u32) -> Option<&Made> {
        self.tunnels.get(&index)
    }

    /// The VRF of the router's that a link is enslaved to.
    pub fn master(&self, index: u32) -> Option<u32> {
        self.masters.get(&index).copied()
    }

    /// Keeps what the kernel tells of a link.
    pub fn tell(&mut self, index: u32, body: &[u8]) {
        self.told.insert(index, body.into());
    }

    /// Keeps of which kind a link is for the kernel: whether it is a tunnel.
    pub fn notify_kind(&mut self, index: u32, kind: Option<&str>) {
        let tunnel = match kind {
            // They take what is inside IPv4 or IPv6 alone, as these do.
            Some("vti") => Some(tunnel::Kind::Ipip),
            Some("vti6") => Some(tunnel::Kind::Ip6Tnl),
            kind => kind.and_then(tunnel::Kind::named),
        };
        match tunnel {
            Some(kind) => self.kernels.insert(index, kind),
            None => self.kernels.remove(&index),
        };
    }

    /// Forgets a link that the kernel has no more.
    pub fn forget(&mut self, index: u32) {
        self.told.remove(&index);
        self.kernels.remove(&index);
        self.masters.remove(&index);
        self.masters.retain(|_, vrf| *vrf != index);
        if let Some(device) = self.made.remove(&index) {
            self.gone.insert(index, device);
            if self.gone.len() > REMEMBERED {
                let forgotten = self.gone.pop_first();
                forgotten.map(|(index, _)| self.tunnels.remove(&index));
            }
        }
    }
}

/// Whether a request is about a device that the router makes, or has made, or about what is enslaved to one.
pub(crate) fn is_own(router: &Router, request: &Request<'_>) -> bool {
    let Some(live) = &router.live else { return true };
    let Ok(wanted) = Wanted::parse(request) else {
        // What only the kernel can do is for the kernel to judge, unless it is to make a device of ours.
        return false;
    };
    let (link, _) = wanted.find(router);
    let made = |index: u32| live.devices.get(index).is_some();
    match request.message.kind {
        libc::RTM_DELLINK => link.is_some_and(|link| made(link.index)),
        libc::RTM_NEWLINK if creates(request) && wanted.kind.as_deref().is_some_and(is_made) => true,
        RTM_NEWLINK | RTM_SETLINK => {
            let master = wanted.attributes.get(libc::IFLA_MASTER).map(|master| master.u32());
            let slave = link.is_some_and(|link| live.devices.master(link.index).is_some());
            if wanted.changes_kind() && link.is_some_and(|link| made(link.index)) {
                return true;
            }
            if link.is_some_and(|link| wanted.opens(link).is_some()) {
                return true;
            }
            match (link, master) {
                (Some(_), Some(master)) => made(master) || slave,
                _ => false,
            }
        }
        _ => false,
    }
}

/// Whether the router makes devices of this kind.
fn is_made(kind: &str) -> bool {
    matches!(kind, "vrf" | "dummy") || tunnel::Kind::named(kind).is_some()
}

impl Router {
    /// Whether a link is enslaved to a VRF that this router has made, or is one: the kernel knows nothing of
    /// its routing.
    pub(crate) fn in_own_vrf(&self, index: u32) -> bool {
        let Some(live) = &self.live else { return false };
        live.devices.master(index).is_some() || matches!(live.devices.get(index), Some(Device::Vrf { .. }))
    }

    /// Whether any link is enslaved to a VRF that this router has made, or there is one.
    pub(crate) fn has_own_slaves(&self) -> bool {
        let vrf = |device: &Device| matches!(device, Device::Vrf { .. });
        let has = |devices: &Devices| !devices.masters.is_empty() || devices.made.values().any(vrf);
        self.live.as_ref().is_some_and(|live| has(&live.devices))
    }

    /// The devices that the router stands behind.
    pub fn devices(&self) -> impl Iterator<Item = (u32, Device)> + '_ {
        self.live.iter().flat_map(|live| live.devices.made.iter().map(|(index, device)| (*index, *device)))
    }

    /// The tunnels that the kernel itself has.
    pub fn kernel_tunnels(&self) -> impl Iterator<Item = tunnel::Kind> + '_ {
        self.live.iter().flat_map(|live| live.devices.kernels.values().copied())
    }

    /// Makes a device and does with it what the request says besides.
    pub(super) fn make_device(
        &mut self,
        request: &Request<'_>,
        name: &str,
        device: Device,
        master: Option<u32>,
    ) -> Result<Outcome, RequestError> {
        let unavailable = RequestError::new(libc::EOPNOTSUPP, "Unknown device type");
        let live = self.live.as_mut().ok_or(unavailable.clone())?;
        let index = live.namespace.as_mut().ok_or(unavailable)?.make(name, device)?;
        live.devices.gone.remove(&index);
        live.devices.made.insert(index, device);
        let skip = [libc::IFLA_IFNAME, libc::IFLA_LINKINFO, libc::IFLA_MASTER];
        let rest = self.pass_on_rest(request, index, &skip, |message| {
            if let Device::Vrf { .. } = device {
                no_link_local(message);
            }
        });
        if let Err(refusal) = rest {
            self.remove_device(index);
            return Err(refusal);
        }
        if let Some(master) = master
            && let Some(live) = &mut self.live
        {
            live.devices.masters.insert(index, master);
        }
        Ok(Outcome::Done)
    }

    /// Makes a tunnel's device. `link` is what it is to be.
    pub(super) fn make_tunnel(
        &mut self,
        request: &Request<'_>,
        link: &Link,
    ) -> Result<Outcome, RequestError> {
        let LinkKind::Tunnel(kind) = link.kind else { return Err(RequestError::errno(libc::EOPNOTSUPP)) };
        let index = self.add_device(link, kind)?;
        let rest = self.pass_on_rest(request, index, skipped(kind), |message| {
            message.u32(libc::IFLA_MTU, link.mtu);
            if kind == tunnel::Kind::Ipip
                && request.message.attributes(HEADER).all(|it| it.kind != libc::IFLA_AF_SPEC)
            {
                // It carries no IPv6.
                no_link_local(message);
            }
        });
        if let Err(refusal) = rest {
            self.remove_device(index);
            return Err(refusal);
        }
        if let Some(master) = link.master
            && let Some(live) = &mut self.live
        {
            live.devices.masters.insert(index, master);
        }
        Ok(Outcome::Done)
    }

    /// Makes the device of a tunnel that no request describes.
    pub(super) fn make_fallback_device(
        &mut self,
        link: &Link,
        kind: tunnel::Kind,
    ) -> Result<(), RequestError> {
        let index = self.add_device(link, kind)?;
        let settled = self.ask_kernel(RTM_SETLINK, 0, |message| {
            message.fixed(&header(index, 0, 0));
            message.u32(libc::IFLA_MTU, link.mtu);
            if kind == tunnel::Kind::Ipip {
                no_link_local(message);
            }
        });
        settled.inspect_err(|_| self.remove_device(index))
    }

    /// Makes a tunnel's device, and returns its index.
    fn add_device(&mut self, link: &Link, kind: tunnel::Kind) -> Result<u32, RequestError> {
        let unavailable = RequestError::new(libc::EOPNOTSUPP, "Unknown device type");
        let made = Made::new(link).ok_or(unavailable.clone())?;
        let live = self.live.as_mut().ok_or(unavailable.clone())?;
        let device = Device::Tunnel(kind);
        let index = live.namespace.as_mut().ok_or(unavailable)?.make(&link.name, device)?;
        live.devices.gone.remove(&index);
        live.devices.made.insert(index, device);
        live.devices.tunnels.insert(index, made);
        Ok(index)
    }

    /// Whether a device with these ends is made that the kernel has yet to tell of.
    pub(super) fn is_making(&self, parameters: &tunnel::Tunnel) -> bool {
        let Some(devices) = self.live.as_ref().map(|live| &live.devices) else { return false };
        let untold = devices.made.keys().filter(|index| self.links.get(**index).is_none());
        untold.filter_map(|index| devices.tunnel(*index)).any(|made| made.tunnel.same(parameters))
    }

    /// Makes another tunnel of a device.
    pub(super) fn change_tunnel(
        &mut self,
        request: &Request<'_>,
        link: Link,
    ) -> Result<Outcome, RequestError> {
        let unsupported = RequestError::errno(libc::EOPNOTSUPP);
        let old = self.links.get(link.index).cloned().ok_or(unsupported.clone())?;
        let LinkKind::Tunnel(kind) = link.kind else { return Err(unsupported) };
        let skip = skipped(kind);
        let mtu = (link.mtu != old.mtu).then_some(link.mtu);
        self.pass_on_rest(request, link.index, skip, |message| {
            mtu.into_iter().for_each(|mtu| message.u32(libc::IFLA_MTU, mtu));
        })?;
        let (index, master) = (link.index, link.master);
        self.change_own_tunnel(link);
        self.enslave(index, master);
        Ok(Outcome::Done)
    }

    /// Makes another tunnel of a device, of which the kernel knows nothing.
    pub(super) fn change_own_tunnel(&mut self, link: Link) {
        let Some(old) = self.links.get(link.index).cloned() else { return };
        if let (Some(live), Some(made)) = (&mut self.live, Made::new(&link)) {
            live.devices.tunnels.insert(link.index, made);
        }
        self.change_mirrored_link(&old, Link { tunnel: link.tunnel, ..old.clone() });
    }

    fn remove_device(&mut self, index: u32) {
        if let Some(live) = &mut self.live {
            live.devices.forget(index);
            if let Some(namespace) = &mut live.namespace {
                namespace.remove(index);
            }
        }
    }

    /// Deletes devices that the router has made. What is enslaved to them is set free.
    pub(super) fn delete_devices(&mut self, doomed: &[u32]) -> Result<Outcome, RequestError> {
        for &index in doomed {
            let slaves: Vec<u32> = self.links.slaves(index).map(|link| link.index).collect();
            for slave in slaves {
                self.enslave(slave, None);
            }
            self.remove_device(index);
            self.unmirror_link(index);
        }
        Ok(Outcome::Done)
    }

    /// A request that enslaves a link to one of the router's VRFs, or sets it free, and may say more.
    pub(super) fn set_master(
        &mut self,
        request: &Request<'_>,
        index: u32,
        master: Option<u32>,
    ) -> Result<Outcome, RequestError> {
        let own = |router: &Self, master: u32| {
            router.live.as_ref().is_some_and(|live| live.devices.get(master).is_some())
        };
        let given = [libc::IFLA_MASTER];
        let skip = if master.is_some_and(|master| !own(self, master)) { &[] } else { &given[..] };
        let before = self.links.get(index).and_then(|link| link.master);
        if before.is_some_and(|master| !own(self, master)) && !skip.is_empty() {
            // Enslaved to a bridge, or the like: set free there.
            self.ask_kernel(RTM_SETLINK, 0, |message| {
                message.fixed(&header(index, 0, 0));
                message.u32(libc::IFLA_MASTER, 0);
            })?;
        }
        self.pass_on_rest(request, index, skip, |_| {})?;
        let master = master.filter(|&master| own(self, master));
        self.enslave(index, master);
        Ok(Outcome::Done)
    }

    /// Puts a link into a VRF of the router's, or out of it. The link is taken down for it, as by Linux's
    /// `cycle_netdev`.
    fn enslave(&mut self, index: u32, master: Option<u32>) {
        let Some(old) = self.links.get(index).cloned() else { return };
        let Some(live) = &mut self.live else { return };
        if live.devices.master(index) == master {
            return;
        }
        if old.up() {
            self.switch_kernels(index, false);
        }
        let Some(live) = &mut self.live else { return };
        match master {
            Some(master) => live.devices.masters.insert(index, master),
            None => live.devices.masters.remove(&index),
        };
        self.change_mirrored_link(&old, Link { master, ..old.clone() });
        if master.is_none() {
            self.unpark_routes(index);
        }
        if old.up() {
            self.switch_kernels(index, true);
        }
    }

    fn switch_kernels(&mut self, index: u32, up: bool) {
        let flags = if up { IFF_UP as u32 } else { 0 };
        let switched = self.ask_kernel(RTM_SETLINK, 0, |message| {
            message.fixed(&header(index, flags, IFF_UP as u32));
        });
        if let Err(refusal) = switched {
            tracing::warn!("the kernel does not switch link {index}: {refusal}");
        }
    }

    /// Passes a request on to the kernel without some of its attributes, if anything is left of it.
    fn pass_on_rest(
        &mut self,
        request: &Request<'_>,
        index: u32,
        skip: &[u16],
        more: impl FnOnce(&mut Reply<'_>),
    ) -> Result<(), RequestError> {
        let fixed = request.fixed::<HEADER>()?;
        let word = |at: usize| u32::from_ne_bytes(word(&fixed, at));
        let (flags, change) = (word(8), word(12));
        // A name stands for the link where the index does not.
        let named = word(4) == 0;
        let names = [libc::IFLA_IFNAME, libc::IFLA_ALT_IFNAME, libc::IFLA_EXT_MASK];
        let keep = |kind: u16| !(skip.contains(&kind) || named && names.contains(&kind));
        let mut message = Vec::new();
        write_message(&mut message, RTM_NEWLINK, 0, Address::default(), |message| {
            message.fixed(&header(index, flags, change));
            for attribute in request.message.attributes(HEADER).filter(|attribute| keep(attribute.kind)) {
                let nested = [libc::IFLA_LINKINFO, libc::IFLA_AF_SPEC].contains(&attribute.kind);
                let flag = if nested { NLA_F_NESTED } else { 0 };
                message.attribute(attribute.kind | flag, attribute.value);
            }
            more(message);
        })?;
        let nothing =
            message.len() == underpass_netlink::message::HEADER + HEADER && flags == 0 && change == 0;
        if nothing { Ok(()) } else { self.pass_on(&mut message) }
    }
}

/// What of a request for a tunnel is not passed on.
const fn skipped(kind: tunnel::Kind) -> &'static [u16] {
    const BOTH: [u16; 5] =
        [libc::IFLA_IFNAME, libc::IFLA_LINKINFO, libc::IFLA_MASTER, libc::IFLA_LINK, libc::IFLA_MTU];
    const ENDS: [u16; 7] = [
        libc::IFLA_IFNAME,
        libc::IFLA_LINKINFO,
        libc::IFLA_MASTER,
        libc::IFLA_LINK,
        libc::IFLA_MTU,
        libc::IFLA_ADDRESS,
        libc::IFLA_BROADCAST,
    ];
    if kind.ethernet() { &BOTH } else { &ENDS }
}

/// The device gets no link-local address.
fn no_link_local(message: &mut Reply<'_>) {
    let families = message.nest(libc::IFLA_AF_SPEC);
    let inet6 = message.nest(libc::AF_INET6 as u16);
    message.u8(IFLA_INET6_ADDR_GEN_MODE, 1);
    message.end(inet6);
    message.end(families);
}

/// `struct ifinfomsg`.
fn header(index: u32, flags: u32, change: u32) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    header[8..12].copy_from_slice(&flags.to_ne_bytes());
    header[12..16].copy_from_slice(&change.to_ne_bytes());
    header
}

impl Router {
    /// Writes a link of the kernel's as the kernel has last told of it; whether it has.
    pub(super) fn write_told(&self, reply: &mut Reply<'_>, index: u32) -> bool {
        let Some(told) = self.live.as_ref().and_then(|live| live.devices.told.get(&index)) else {
            return false;
        };
        let mut bytes = Vec::new();
        let whole =
            write_message(&mut bytes, RTM_NEWLINK, 0, Address::default(), |message| message.fixed(told));
        let mut message = whole.is_ok().then(|| underpass_netlink::messages(&bytes).next()).flatten();
        match message.take().and_then(|message| rewrite(self, &message)) {
            Some(rewritten) => {
                reply.fixed(rewritten.get(underpass_netlink::message::HEADER..).unwrap_or_default())
            }
            None => reply.fixed(told),
        }
        true
    }
}

/// Whether a dump of links is of those that are enslaved to a VRF of the router's, which the kernel cannot
/// choose.
pub(crate) fn is_own_dump(router: &Router, request: &Request<'_>) -> bool {
    let Some(live) = &router.live else { return true };
    let mut attributes = request.message.attributes(HEADER);
    attributes.any(|filter| filter.kind == libc::IFLA_MASTER && live.devices.get(filter.u32()).is_some())
}

/// A message of the kernel's about a link that the router stands behind, or that is enslaved to one, as it
/// would be if the kernel knew; `None` for one that stays as it is.
pub(crate) fn rewrite(router: &Router, message: &Message<'_>) -> Option<Vec<u8>> {
    let devices = &router.live.as_ref()?.devices;
    let request = Request { message: *message, port: 0, strict: false };
    let mut fixed = request.fixed::<HEADER>().ok()?;
    let index = u32::from_ne_bytes([fixed[4], fixed[5], fixed[6], fixed[7]]);
    if i32::from(fixed[0]) == libc::AF_INET6 {
        return devices.tunnel(index).and_then(|made| rewrite_ipv6(made, message, fixed));
    }
    if fixed[0] != 0 {
        return None;
    }
    let device = devices.get(index).or_else(|| devices.gone.get(&index).copied());
    let master = devices.master(index);
    if device.is_none() && master.is_none() {
        return None;
    }
    let tunnel = devices.tunnel(index).filter(|_| matches!(device, Some(Device::Tunnel(_))));
    if let Some(device) = device {
        let hardware = tunnel.map_or(ARPHRD_ETHER, |made| made.tunnel.hardware());
        fixed[2..4].copy_from_slice(&hardware.to_ne_bytes());
        let flags = u32::from_ne_bytes([fixed[8], fixed[9], fixed[10], fixed[11]]);
        let flags = match (device, tunnel) {
            (_, Some(made)) => made.flags(flags),
            (Device::Dummy, _) => flags & !(IFF_MULTICAST as u32) | (IFF_NOARP | IFF_BROADCAST) as u32,
            _ => {
                let clear = (IFF_POINTOPOINT | IFF_MULTICAST | IFF_BROADCAST) as u32;
                flags & !clear | (IFF_NOARP | IFF_MASTER) as u32
            }
        };
        fixed[8..12].copy_from_slice(&flags.to_ne_bytes());
    }
    let ends = tunnel.and_then(|made| made.tunnel.ends());
    // What the device has counted is what the host itself has sent and got.
    let count = tunnel.and_then(|_| router.links.get(index)).map(|link| router.count_link(link));
    let dummy = router.links.get(index).filter(|_| device == Some(Device::Dummy));
    let swallowed =
        dummy.map(|link| router.count_link(link)).map_or([0; 2], |count| [count.tx_packets, count.tx_bytes]);
    let slave = master.and_then(|master| match devices.get(master) {
        Some(Device::Vrf { table }) => Some((master, table)),
        _ => None,
    });
    let up = fixed[8] & IFF_UP as u8 != 0;
    let mut bytes = Vec::new();
    let to = Address { port: message.port(), sequence: message.sequence };
    let written = write_message(&mut bytes, message.kind, message.flags, to, |reply| {
        reply.fixed(&fixed);
        let mut info = false;
        for attribute in message.attributes(HEADER) {
            let value = attribute.value;
            match (attribute.kind, device) {
                (libc::IFLA_LINKINFO, _) => {
                    info = true;
                    write_info(reply, device, tunnel, slave, Some(value));
                }
                (libc::IFLA_ADDRESS | libc::IFLA_BROADCAST, _) if ends.is_some() => {}
                (libc::IFLA_LINK, _) if tunnel.is_some() => {}
                (libc::IFLA_STATS64 | libc::IFLA_STATS, _) if count.is_some() => {}
                (libc::IFLA_MIN_MTU, Some(Device::Tunnel(_))) => {
                    reply.u32(libc::IFLA_MIN_MTU, tunnel.map_or(0, |made| made.tunnel.mtu_bounds().0))
                }
                (libc::IFLA_MAX_MTU, Some(Device::Tunnel(_))) => {
                    reply.u32(libc::IFLA_MAX_MTU, tunnel.map_or(0, |made| made.tunnel.mtu_bounds().1))
                }
                (libc::IFLA_MASTER, _) if slave.is_some() => {}
                (libc::IFLA_OPERSTATE, Some(Device::Vrf { .. })) if up => reply.u8(libc::IFLA_OPERSTATE, 6),
                (libc::IFLA_OPERSTATE, Some(Device::Dummy | Device::Tunnel(_))) if up => {
                    reply.u8(libc::IFLA_OPERSTATE, 0)
                }
                (libc::IFLA_QDISC, Some(_)) => {
                    let ethernet = matches!(device, Some(Device::Tunnel(kind)) if kind.ethernet());
                    let queued = if ethernet { "pfifo_fast" } else { "noqueue" };
                    let root = router.tc.get(index).and_then(|control| control.root());
                    let own = if up { queued } else { "noop" };
                    reply.text(libc::IFLA_QDISC, root.map_or(own, |root| root.kind.name()))
                }
                (libc::IFLA_MIN_MTU, Some(Device::Vrf { .. })) => reply.u32(libc::IFLA_MIN_MTU, 1280),
                (libc::IFLA_MIN_MTU | libc::IFLA_MAX_MTU, Some(Device::Dummy)) => {
                    reply.u32(attribute.kind, 0)
                }
                (libc::IFLA_MAX_MTU, Some(Device::Vrf { .. })) => reply.u32(libc::IFLA_MAX_MTU, 65575),
                (libc::IFLA_NUM_TX_QUEUES | libc::IFLA_NUM_RX_QUEUES, Some(_)) => {
                    reply.u32(attribute.kind, 1)
                }
                (libc::IFLA_STATS64, _) => {
                    reply.align_64(libc::IFLA_PAD);
                    reply.attribute(libc::IFLA_STATS64, &with_sent::<8>(value, swallowed));
                }
                (libc::IFLA_STATS, _) => {
                    reply.attribute(libc::IFLA_STATS, &with_sent::<4>(value, swallowed));
                }
                (libc::IFLA_PAD, _) => {}
                (kind, _) => reply.attribute(kind, value),
            }
        }
        if let Some((master, _)) = slave {
            reply.u32(libc::IFLA_MASTER, master);
        }
        count.into_iter().for_each(|count| write_stats(reply, count));
        ends.iter().for_each(|ends| write_addresses(reply, ends));
        if let Some(made) = tunnel {
            made.tunnel.lower().into_iter().for_each(|lower| reply.u32(libc::IFLA_LINK, lower));
            if let Some(address) = made.tunnel.permanent_address(Router::own_mac(index)) {
                reply.attribute(IFLA_PERM_ADDRESS, &address);
            }
        }
        if !info {
            write_info(reply, device, tunnel, slave, None);
        }
    });
    written.is_ok().then_some(bytes)
}

/// Statistics of the kernel's, in numbers of `N` bytes, with packets and bytes that workers have sent.
fn with_sent<const N: usize>(value: &[u8], sent: [u64; 2]) -> Vec<u8> {
    let mut value = value.to_vec();
    // Of packets and bytes received and sent the second of each.
    for (at, more) in [N, 3 * N].into_iter().zip(sent) {
        if let Some(number) = value.get_mut(at..at + N) {
            let own = number.iter().rev().fold(0, |own, byte| own << 8 | u64::from(*byte));
            let sum = own.wrapping_add(more).to_le_bytes();
            number.iter_mut().zip(sum).for_each(|(place, byte)| *place = byte);
        }
    }
    value
}

/// A message about a tunnel in which IPv6 tells of its settings: what `ip -6` finds tunnels by. Linux:
/// `inet6_fill_ifinfo`.
fn rewrite_ipv6(made: &Made, message: &Message<'_>, mut fixed: [u8; HEADER]) -> Option<Vec<u8>> {
    fixed[2..4].copy_from_slice(&made.tunnel.hardware().to_ne_bytes());
    let flags = u32::from_ne_bytes([fixed[8], fixed[9], fixed[10], fixed[11]]);
    fixed[8..12].copy_from_slice(&made.flags(flags).to_ne_bytes());
    let ends = made.tunnel.ends();
    let mut bytes = Vec::new();
    let to = Address { port: message.port(), sequence: message.sequence };
    let written = write_message(&mut bytes, message.kind, message.flags, to, |reply| {
        reply.fixed(&fixed);
        for attribute in message.attributes(HEADER) {
            match (attribute.kind, &ends) {
                (libc::IFLA_ADDRESS, Some(_)) | (libc::IFLA_LINK, _) => {}
                (kind, _) => reply.attribute(kind, attribute.value),
            }
        }
        if let Some([local, _]) = ends.as_ref().filter(|[local, _]| !local.is_empty()) {
            reply.attribute(libc::IFLA_ADDRESS, local);
        }
        made.tunnel.lower().into_iter().for_each(|lower| reply.u32(libc::IFLA_LINK, lower));
    });
    written.is_ok().then_some(bytes)
}

/// `IFLA_LINKINFO`: of our device, or else what the kernel says of its own; and of the VRF above it.
fn write_info(
    reply: &mut Reply<'_>,
    device: Option<Device>,
    tunnel: Option<&Made>,
    slave: Option<(u32, u32)>,
    kernels: Option<&[u8]>,
) {
    let info = reply.nest_unflagged(libc::IFLA_LINKINFO);
    match device {
        Some(device) => {
            reply.text(libc::IFLA_INFO_KIND, device.kind());
            if let Device::Vrf { table } = device {
                let data = reply.nest_unflagged(libc::IFLA_INFO_DATA);
                reply.u32(IFLA_VRF_TABLE, table);
                reply.end(data);
            }
            if let Some(Made { tunnel: Tunnel { encap, six_rd, .. }, .. }) = tunnel {
                let data = reply.nest_unflagged(libc::IFLA_INFO_DATA);
                let shown = tunnel.map(|made| made.tunnel.shown());
                shown.into_iter().for_each(|shown| tunnel::write(reply, &shown, encap, six_rd));
                reply.end(data);
            }
        }
        None => {
            if let Some(kernels) = kernels {
                reply.fixed(kernels);
                reply.pad();
            }
        }
    }
    if let Some((_, table)) = slave {
        reply.text(libc::IFLA_INFO_SLAVE_KIND, "vrf");
        let data = reply.nest_unflagged(libc::IFLA_INFO_SLAVE_DATA);
        reply.u32(IFLA_VRF_PORT_TABLE, table);
        reply.end(data);
    }
    reply.end(info);
}
