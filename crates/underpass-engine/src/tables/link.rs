//! A link as workers find it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{Bridge, BridgePort, HookId, IoamLink, LinkId, LookupId, QdiscId, Vlan, Vlans};
use crate::buffer::PortId;
use crate::hmac::Require;
use crate::in_kernel::records::OfDevice;

/// The routing instance of a link: its VRF, or all that is in none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Instance {
    /// The instance of this link, which is the device of the VRF, or `lo`.
    Of(LinkId),
    /// The link is such a device itself: it says what the links of the instance send from that have no address of their
    /// own. So one link changes with that, not each of them.
    Own {
        /// Over IPv4.
        source4: Option<Ipv4Addr>,
        /// Over IPv6: a global address.
        source6: Option<Ipv6Addr>,
    },
}

impl Default for Instance {
    fn default() -> Self {
        Self::Own { source4: None, source6: None }
    }
}

/// A link of the router, as the packet path needs it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Link {
    /// The Linux interface index.
    pub ifindex: u32,
    /// The port by which packets of the link come and go; `None` for `lo` and `vrf`.
    pub port: Option<PortId>,
    /// Administratively up and with carrier.
    pub up: bool,
    /// Its hardware address.
    pub mac: [u8; 6],
    /// Other addresses that frames for it have: those of its ports, if it is a bridge of the kernel's.
    pub port_macs: Box<[[u8; 6]]>,
    /// Longest layer-3 packet, in bytes.
    pub mtu: u32,
    /// The tables that a packet received here is looked up in (VRF and policy rules applied).
    pub lookup: LookupId,
    /// How echo replies of IPv6 are looked up that leave by it, where rules make a difference between these and all else
    /// that the router sends.
    pub back6: Option<LookupId>,
    /// Whether IPv4 packets received here may be forwarded.
    pub forward4: bool,
    /// Whether IPv6 packets received here may be forwarded.
    pub forward6: bool,
    /// The IPv4 address of its own that the router sends from by it, ICMP errors among others.
    pub source4: Option<Ipv4Addr>,
    /// Whether it has no IPv4 address of its own.
    pub bare4: bool,
    /// Whether it is the device of a VRF.
    pub vrf: bool,
    /// Whether it is that, or enslaved to one.
    pub in_vrf: bool,
    /// The global IPv6 address of its own that the router sends from by it.
    pub source6: Option<Ipv6Addr>,
    /// The routing instance that it is in, which has addresses for links that have none.
    pub instance: Instance,
    /// Its IPv6 addresses.
    pub own6: Box<[Ipv6Addr]>,
    /// The subnet-router anycast addresses that it has with them: RFC 4291 section 2.6.1.
    pub anycast6: Box<[Ipv6Addr]>,
    /// Where it has several of a family to send from: these, each with the length of its prefix.
    pub several: Box<[(IpAddr, u8)]>,
    /// The groups that tunnels receive by it, but for those that all nodes are in; in their order.
    pub groups: Box<[IpAddr]>,
    /// The port by which the host takes what is for itself, where a kernel is beside the router.
    pub host: Option<PortId>,
    /// Whether the host's kernel sees what comes in by it too.
    pub shared: bool,
    /// The port by which the host's kernel takes, as frames, what it keeps of what comes in by it: a link of which a
    /// worker gets all frames, so that its filters see them.
    pub kernel: Option<PortId>,
    /// Of a link in a VRF of the router's, beside a kernel that knows no VRFs: the addresses of the VRF, to
    /// which alone the host listens there. `None`: it listens to all of its own.
    pub addresses: Option<Box<[IpAddr]>>,
    /// Whether labelled packets that come in by it are forwarded: `net.mpls.conf.IF.input`.
    pub mpls: bool,
    /// Whether packets that come in by it go on along their RPL source route: `rpl_seg_enabled`.
    pub rpl: bool,
    /// Whether they go on along their SRH, where that is for an address of the router's that is no SID:
    /// `seg6_enabled`.
    pub seg6: bool,
    /// Which HMAC SRHs need that come in by it: `seg6_require_hmac`.
    pub require_hmac: Require,
    /// What it is in IOAM traces.
    pub ioam: IoamLink,
    /// The hook that classifies every packet that comes in by it, before all else.
    pub ingress: Option<HookId>,
    /// The hook that classifies every packet that is to leave by it.
    pub egress: Option<HookId>,
    /// What packets wait in before they leave by it. `None`: only the queue of its port.
    pub root: Option<QdiscId>,
    /// The qdisc behind the filters of packets that come in: one that is attached to the ingress hook of `clsact`, which
    /// Linux does not have.
    pub ingress_qdisc: Option<QdiscId>,
    /// Whether it is an `ifb`: what is sent by it goes on where it was taken from.
    pub ifb: bool,
    /// Whether it is a `dummy` of the router's own: what is sent by its port ends there.
    pub swallows: bool,
    /// What makes it a VLAN device, if it is one: its port is none of a wire's.
    pub vlan: Option<Box<Vlan>>,
    /// The VLAN devices that take tagged frames from it.
    pub vlans: Option<Box<Vlans>>,
    /// What makes it a bridge, if it is one: its port is none of a wire's.
    pub bridge: Option<Box<Bridge>>,
    /// What makes it a port of a bridge, if it is one.
    pub bridge_port: Option<Box<BridgePort>>,
    /// Of a tunnel with frames that is a port of a bridge of the kernel's: the host's port, which gets every frame that comes out.
    pub to_bridge: Option<PortId>,
    /// The programs of its device that carry packets in the kernel; `None`: it has none.
    pub programs: Option<OfDevice>,
}

impl Link {
    /// Whether tunnels receive a group by it.
    pub(crate) fn is_in(&self, group: IpAddr) -> bool {
        self.groups.binary_search(&group).is_ok()
    }

    /// Whether what comes in is classified, or goes into a qdisc.
    pub(crate) fn classifies_ingress(&self) -> bool {
        self.ingress.is_some() || self.ingress_qdisc.is_some()
    }

    /// The port by which the host sends by it, if it is a VLAN device or a bridge: it is one of Ethernet frames to the host, too.
    pub(super) fn host_port(&self) -> Option<PortId> {
        self.kernel.filter(|_| self.is_above())
    }

    /// Whether what is to be sent is classified, or waits in a qdisc.
    pub(crate) fn classifies_egress(&self) -> bool {
        self.egress.is_some() || self.root.is_some()
    }
}
