//! Which devices of the kernel the router proxies.

use std::collections::BTreeMap;

use libc::{IFF_BROADCAST, IFF_MULTICAST, IFF_NOARP, IFF_POINTOPOINT};
use underpass_netlink::tunnel;

use super::bridge::device::Bridge;
use super::vlan::device::Vlan;
use super::{Link, Tunnel};
use crate::Device;
use crate::events::Cause;

/// Devices that are gone are still spoken of for a while.
const REMEMBERED: usize = 64;

/// Flags that follow from what a tunnel is.
const OF_TUNNELS: u32 = (IFF_NOARP | IFF_POINTOPOINT | IFF_BROADCAST | IFF_MULTICAST) as u32;

/// The tunnel behind a proxied device.
#[derive(Debug)]
pub(crate) struct ProxiedTunnel {
    pub(super) tunnel: Tunnel,
    /// Of `OF_TUNNELS` those that it has.
    flags: u32,
}

impl ProxiedTunnel {
    pub fn new(link: &Link) -> Option<Self> {
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
    /// Proxied devices, by interface index.
    pub made: BTreeMap<u32, Device>,
    /// Those of before.
    pub gone: BTreeMap<u32, Device>,
    /// What the tunnels among both are.
    pub tunnels: BTreeMap<u32, ProxiedTunnel>,
    /// What the VLAN devices among both are.
    pub vlans: BTreeMap<u32, Vlan>,
    /// What the bridges are among those that the kernel has yet to report, and among those of before.
    pub bridges: BTreeMap<u32, Bridge>,
    /// Whether the kernel makes VLAN devices itself, once that was asked.
    pub kernel_has_vlans: Option<bool>,
    /// Whether bridges are the kernel's, once that was asked.
    pub bridges_are_kernels: Option<bool>,
    /// The VRF or the bridge of each link that is enslaved to one of them.
    pub masters: BTreeMap<u32, u32>,
    /// The same of links that the kernel has made and is yet to report, by name.
    pub joining: BTreeMap<String, u32>,
    /// Links of which listeners are yet to hear what the kernel does not know, and what has caused it.
    pub others: BTreeMap<u32, Cause>,
    /// What the kernel has last reported of each link: the body of its message.
    pub reported: BTreeMap<u32, Box<[u8]>>,
    /// The kernel's own tunnels.
    pub kernels: BTreeMap<u32, tunnel::Kind>,
}

impl Devices {
    /// Of which kind the device is that the router stands behind.
    pub fn get(&self, index: u32) -> Option<Device> {
        self.made.get(&index).copied()
    }

    /// The tunnel that a device is.
    pub(super) fn tunnel(&self, index: u32) -> Option<&ProxiedTunnel> {
        self.tunnels.get(&index)
    }

    /// The VRF or the bridge of the router's that a link is enslaved to.
    pub fn master(&self, index: u32) -> Option<u32> {
        self.masters.get(&index).copied()
    }

    /// The VRF of the router's that a link is enslaved to.
    pub fn vrf(&self, index: u32) -> Option<u32> {
        self.master(index).filter(|master| matches!(self.get(*master), Some(Device::Vrf { .. })))
    }

    /// Keeps what the kernel reports of a link.
    pub fn report(&mut self, index: u32, body: &[u8]) {
        self.reported.insert(index, body.into());
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
        self.reported.remove(&index);
        self.kernels.remove(&index);
        self.masters.remove(&index);
        self.masters.retain(|_, master| *master != index);
        self.joining.retain(|_, master| *master != index);
        if let Some(device) = self.made.remove(&index) {
            self.gone.insert(index, device);
            if self.gone.len() > REMEMBERED {
                let forgotten = self.gone.pop_first();
                if let Some((index, _)) = forgotten {
                    self.tunnels.remove(&index);
                    self.vlans.remove(&index);
                    self.bridges.remove(&index);
                }
            }
        }
    }
}
