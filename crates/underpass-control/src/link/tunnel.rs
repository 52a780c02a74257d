//! Tunnel devices: what makes one, and what follows from it for the link. Linux: `net/ipv4/ip_tunnel.c`,
//! `net/ipv6/{sit,ip6_tunnel,ip6_gre}.c`, `drivers/net/{bareudp,geneve,vxlan}`.

pub(crate) mod compile;
pub(crate) mod fallback;
pub(crate) mod geneve;
mod groups;
mod ioctl;
mod measure;
mod overlay;
pub(crate) mod port;
pub(crate) mod publish;
mod request;
pub(crate) mod save;
mod srv6l2;
pub(crate) mod underlay;
pub(crate) mod vxlan;
mod words;

pub use ioctl::tunnel_ioctl;
pub use port::Socket;
pub(super) use request::{change, create};

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use libc::{EINVAL, IFF_BROADCAST, IFF_MULTICAST, IFF_NOARP, IFF_POINTOPOINT};
use underpass_engine::tables::{Ends, FouPortId, TunnelId};
use underpass_netlink::RequestError;
use underpass_netlink::tunnel::{
    self, Encap, IP6_CAP_PER_PACKET, IP6_CAP_RCV, IP6_CAP_XMIT, IP6_IGNORE_ENCAP_LIMIT, Kind, SixRd,
};

use super::{Link, LinkKind};
use crate::route::{Family, NextHopKey, bits};

/// Length of an Ethernet header.
pub(super) const ETHERNET: u32 = 14;
/// `IPV4_MIN_MTU`, `ETH_MIN_MTU`.
const LEAST: u32 = 68;
/// `IPV6_MIN_MTU`.
const LEAST6: u32 = 1280;
/// `IP_MAX_MTU`.
const MOST: u32 = 65535;
/// `IP6_MAX_MTU`.
const MOST6: u32 = 65535 + 40;
/// Length of a UDP header.
const UDP: u32 = 8;
/// Bytes of the headers of UDP and of VXLAN, or of Geneve without options.
const OVERLAY: u32 = UDP + 8;
/// Bytes of an IPv6 header.
const IPV6: u32 = 40;
/// The option with the tunnel encapsulation limit, padded: `sizeof(struct ipv6_opt_hdr) + …`.
const LIMIT_OPTION: u32 = 8;
/// `IFA_F_STABLE_PRIVACY`.
const STABLE_PRIVACY: u32 = 0x800;

/// What makes a link a tunnel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tunnel {
    /// Addresses, keys, TTL and the like.
    pub parameters: tunnel::Tunnel,
    /// FOU, GUE or nothing.
    pub encap: Encap,
    /// The 6rd prefix of sit.
    pub six_rd: SixRd,
    /// The highest MTU that is shown; 0 for none.
    pub max_mtu: u32,
    /// Whether it takes what no other tunnel of its kind does: [`fallback`].
    pub fallback: bool,
    /// Of ip6gretap: bytes of the link layer of its outer packets, as its way was when the ends were set. `None`: it had none.
    pub link_layer: Option<u32>,
}

impl Tunnel {
    /// Bytes before the packet, the inner Ethernet header among them.
    pub fn overhead(&self) -> u32 {
        let parameters = &self.parameters;
        let ethernet = if parameters.kind.ethernet() { ETHERNET } else { 0 };
        // The kind of encapsulation was checked when it was set.
        let encap = self.encap.length().unwrap_or(0);
        let own = match (parameters.vxlan, parameters.geneve) {
            (Some(_), _) | (_, Some(_)) => OVERLAY,
            (None, None) => 0,
        };
        parameters.ip_length() + parameters.gre_length() + encap + own + ethernet
    }

    /// Bytes of what Linux counts as the link layer of its packets: of ip6gretap all outer headers, of others the outer
    /// header where only neighbours say where the other end is. Linux: `ipgre_tunnel_init`, `ip6gre_calc_hlen`,
    /// `ip6gre_tnl_link_config_route`.
    pub(crate) fn header(&self) -> u32 {
        /// `LL_MAX_HEADER`, with wireless devices.
        const LONGEST: u32 = 96;
        let parameters = &self.parameters;
        let any = parameters.remote.is_unspecified();
        match parameters.kind {
            // The Ethernet header inside is none of them.
            Kind::Ip6GreTap => self.link_layer.unwrap_or(LONGEST) + self.overhead() - ETHERNET,
            kind if kind.ethernet() => ETHERNET,
            _ if parameters.external => 0,
            Kind::Gre if any || parameters.remote.is_multicast() => self.overhead(),
            Kind::Ip6Gre if any && !self.fallback => LONGEST + self.overhead(),
            _ => 0,
        }
    }

    /// Bytes of the option with the encapsulation limit.
    const fn option(&self) -> u32 {
        let parameters = &self.parameters;
        if parameters.kind.ipv6() && parameters.flags & IP6_IGNORE_ENCAP_LIMIT == 0 {
            LIMIT_OPTION
        } else {
            0
        }
    }

    /// The MTU when nothing is known of the way.
    fn default_mtu(&self) -> u32 {
        1500 - self.overhead() - self.option()
    }

    /// Linux: `ip6_tnl_get_cap`.
    fn capabilities(&self) -> u32 {
        let (IpAddr::V6(local), IpAddr::V6(remote)) = (self.parameters.local, self.parameters.remote) else {
            return 0;
        };
        let link_local = local.is_unicast_link_local() || remote.is_unicast_link_local();
        if local.is_unspecified() || remote.is_unspecified() {
            IP6_CAP_PER_PACKET
        } else if local.is_loopback() || remote.is_loopback() || link_local && self.parameters.link == 0 {
            0
        } else {
            let transmit = if local.is_multicast() { 0 } else { IP6_CAP_XMIT };
            transmit | if remote.is_multicast() { 0 } else { IP6_CAP_RCV }
        }
    }

    /// The same as it is shown.
    pub(super) fn shown(&self) -> tunnel::Tunnel {
        let mut parameters = self.parameters;
        if !(self.fallback && parameters.kind == Kind::Ip6Gre) {
            parameters.flags |= self.capabilities();
        }
        parameters
    }

    /// Whether a request to make `other` names this one. Linux: `ip_tunnel_find`, `ipip6_tunnel_locate`,
    /// `ip6_tnl_locate`, `ip6gre_tunnel_find`.
    pub(super) fn same(&self, other: &tunnel::Tunnel) -> bool {
        let own = &self.parameters;
        let ends = |tunnel: &tunnel::Tunnel| (tunnel.kind, tunnel.local, tunnel.remote, tunnel.link);
        if ends(own) != ends(other) {
            return false;
        }
        match own.kind {
            // Its hardware type is another one.
            Kind::Gre if own.external != other.external => false,
            Kind::Gre | Kind::GreTap => {
                let key = |tunnel: &tunnel::Tunnel| {
                    (tunnel.input_flags & tunnel::GRE_KEY != 0).then_some(tunnel.input_key)
                };
                key(own) == key(other)
            }
            Kind::Ip6Gre | Kind::Ip6GreTap => own.input_key == other.input_key,
            Kind::Ipip | Kind::Sit | Kind::Ip6Tnl => true,
            Kind::BareUdp | Kind::Vxlan | Kind::Geneve | Kind::GeneveIp | Kind::Srv6L2 => true,
        }
    }

    /// Whether no second device with external metadata may be beside this one.
    const fn excludes_external(&self, kind: Kind) -> bool {
        let own = self.parameters.kind;
        self.parameters.external
            && self.parameters.bare.is_none()
            && (own as u8 == kind as u8 || own.gre() && kind.gre() && own.ipv6() && kind.ipv6())
    }

    /// Lowest and highest MTU; 0 is no bound.
    pub(super) const fn mtu_bounds(&self) -> (u32, u32) {
        let least = match self.parameters.kind {
            Kind::Ipip | Kind::Gre | Kind::Ip6Gre => 0,
            Kind::Sit => LEAST6,
            Kind::GreTap | Kind::Ip6GreTap | Kind::Ip6Tnl => LEAST,
            Kind::BareUdp | Kind::Vxlan | Kind::Geneve | Kind::GeneveIp | Kind::Srv6L2 => LEAST,
        };
        (least, self.max_mtu)
    }

    /// Whether the device takes an MTU that is within its bounds. Linux: `ip_tunnel_change_mtu`, `ip6_tnl_change_mtu`.
    ///
    /// # Errors
    /// `EINVAL` if not.
    pub(super) fn check_mtu(&self, mtu: u32) -> Result<(), RequestError> {
        let parameters = &self.parameters;
        let (least, most) = match parameters.kind {
            // What a VXLAN takes is for the link below to say.
            Kind::Sit | Kind::BareUdp | Kind::Vxlan | Kind::Geneve | Kind::GeneveIp => return Ok(()),
            Kind::Ipip | Kind::Gre | Kind::GreTap | Kind::Srv6L2 => (LEAST, MOST - self.overhead()),
            Kind::Ip6Tnl | Kind::Ip6Gre | Kind::Ip6GreTap => match parameters.protocol {
                41 => (LEAST6, MOST6),
                0 => (LEAST, MOST6),
                _ => (LEAST, MOST),
            },
        };
        if (least..=most).contains(&mtu) { Ok(()) } else { Err(RequestError::errno(EINVAL)) }
    }
}

impl Tunnel {
    /// `ARPHRD_*`.
    pub(super) const fn hardware(&self) -> u16 {
        match self.parameters.kind {
            Kind::Gre if self.parameters.external => tunnel::ARPHRD_NONE,
            kind => kind.hardware(),
        }
    }

    /// Of a layer-3 device its ends, which are its hardware address and its broadcast address. They are empty where it has
    /// none.
    pub(super) fn ends(&self) -> Option<[Vec<u8>; 2]> {
        if matches!(self.parameters.kind, Kind::BareUdp | Kind::GeneveIp) {
            return Some(Default::default());
        }
        let ends = [self.parameters.local, self.parameters.remote].map(|address| match address {
            IpAddr::V4(address) => address.octets().to_vec(),
            IpAddr::V6(address) => address.octets().to_vec(),
        });
        (!self.parameters.kind.ethernet()).then_some(ends)
    }

    /// `IFLA_LINK`: the link that it is bound to, of kinds that can be.
    pub(super) fn lower(&self) -> Option<u32> {
        let parameters = &self.parameters;
        let bound = !matches!(
            parameters.kind,
            Kind::BareUdp | Kind::Vxlan | Kind::Geneve | Kind::GeneveIp | Kind::Srv6L2
        );
        bound.then_some(parameters.link)
    }

    /// `IFLA_PERM_ADDRESS`: devices over IPv6 make their interface identifier from it.
    pub(super) fn permanent_address(&self, mac: [u8; 6]) -> Option<[u8; 16]> {
        let kind = self.parameters.kind;
        (kind.ipv6() && !kind.ethernet()).then(|| {
            let mut address = [0; 16];
            address[..6].copy_from_slice(&mac);
            address
        })
    }
}

impl Link {
    /// Whether it is a VXLAN with external metadata.
    pub(crate) fn is_external_vxlan(&self) -> bool {
        let parameters = self.tunnel.as_ref().map(|tunnel| &tunnel.parameters);
        parameters.is_some_and(|parameters| parameters.external && parameters.vxlan.is_some())
    }

    /// `ARPHRD_*`.
    pub(crate) fn hardware(&self) -> u16 {
        match (self.kind, &self.tunnel) {
            (LinkKind::Loopback, _) => libc::ARPHRD_LOOPBACK,
            (_, Some(tunnel)) => tunnel.hardware(),
            _ => libc::ARPHRD_ETHER,
        }
    }

    /// Bytes of its link layer, as Linux counts them.
    pub(crate) fn header(&self) -> u32 {
        self.tunnel.as_ref().map_or(ETHERNET, |tunnel| tunnel.header())
    }

    /// Hardware address and broadcast address: of a layer-3 tunnel its ends.
    pub(super) fn hardware_addresses(&self) -> [Vec<u8>; 2] {
        let ends = self.tunnel.as_ref().and_then(|tunnel| tunnel.ends());
        ends.unwrap_or_else(|| [self.mac.to_vec(), self.broadcast.to_vec()])
    }

    /// `IFLA_PERM_ADDRESS`: devices over IPv6 make their interface identifier from it.
    pub(super) fn permanent_address(&self) -> Option<[u8; 16]> {
        self.tunnel.as_ref()?.permanent_address(self.mac)
    }

    /// Whether packets of a group are sent by it. Linux: `addrconf_sit_config`, `addrconf_gre_config`.
    pub(crate) fn multicast6(&self) -> bool {
        match &self.tunnel {
            Some(tunnel) if tunnel.parameters.kind == Kind::Sit => self.flags & IFF_POINTOPOINT as u32 != 0,
            _ => true,
        }
    }

    /// Whether its IPv6 addresses are made of IPv4 ones, not of its hardware address.
    pub(super) fn takes_ipv4_addresses(&self, tunnel: &Tunnel) -> bool {
        let parameters = &tunnel.parameters;
        match parameters.kind {
            Kind::Sit => true,
            Kind::Gre => parameters.local.is_unspecified() && !parameters.external,
            _ => false,
        }
    }
}

/// An IPv6 address that a device has without being asked.
pub(crate) struct Automatic {
    pub address: Ipv6Addr,
    pub prefix_len: u8,
    pub scope: u8,
    /// `IFA_F_*` besides the usual ones.
    pub flags: u32,
    /// `IFA_PROTO` is `kernel_ll`.
    pub kernel: bool,
}

/// The interface identifier that ISATAP makes of an IPv4 address (RFC 5214 section 6.1). Linux:
/// `__ipv6_isatap_ifid`.
fn isatap(address: Ipv4Addr) -> Ipv6Addr {
    let [a, b, ..] = address.octets();
    let local = address.is_private()
        || address.is_loopback()
        || address.is_link_local()
        || address.is_multicast()
        || address.is_broadcast()
        || matches!((a, b), (0, _) | (192, 0) | (192, 88) | (198, 18 | 19));
    let [c, d, e, f] = address.octets();
    let first = if local { 0 } else { 0x0200 };
    let pair = |high: u8, low: u8| u16::from_be_bytes([high, low]);
    Ipv6Addr::new(0xfe80, 0, 0, 0, first, 0x5efe, pair(c, d), pair(e, f))
}

/// A tunnel that the packet path has.
#[derive(Debug)]
struct Published {
    id: TunnelId,
    /// The neighbour that it holds: where `dev` decides by which link outer packets leave.
    next_hop: Option<NextHopKey>,
    /// What the last compilation made.
    compiled: underpass_engine::tables::Tunnel,
    /// The UDP ports that it has open: of a `bareudp`, a VXLAN or a Geneve device.
    ports: Vec<FouPortId>,
}

/// Tunnels that the packet path has, by the index of their link.
#[derive(Debug, Default)]
pub(crate) struct Tunnels {
    by_link: BTreeMap<u32, Published>,
    /// Their remote addresses, with the links.
    remotes: BTreeSet<(Family, u128, u32)>,
    /// The links of those that send from whatever address there is.
    from_any: BTreeSet<u32>,
    /// The local addresses of those that have one, with the links.
    locals: BTreeSet<(Family, u128, u32)>,
    /// The other ends of VXLANs and `srv6l2` devices, which have numbers.
    pub(super) ends: Arc<Ends>,
    /// Of each of them, and each of its networks by number, where frames go of whose station nothing is known, with the flags of
    /// the entry.
    pub(super) others: BTreeMap<(u32, u16), Vec<(IpAddr, u8)>>,
    /// The groups that they are in.
    pub(crate) groups: groups::Groups,
    /// The networks of external VXLANs.
    pub(super) networks: vxlan::networks::Networks,
    /// Which modules of Linux's would be loaded by what was asked for so far: [`super::fallback`].
    pub(super) loaded: [bool; 5],
}

impl Tunnels {
    /// The packet path's name for the tunnel of a link.
    pub fn id(&self, link: u32) -> Option<TunnelId> {
        self.by_link.get(&link).map(|published| published.id)
    }

    /// The links of all of them.
    pub fn links(&self) -> impl Iterator<Item = u32> {
        self.by_link.keys().copied()
    }

    /// The links of the tunnels to a remote address, or to any, in their order.
    pub(super) fn to(&self, remote: IpAddr) -> impl DoubleEndedIterator<Item = u32> + '_ {
        let (family, bits) = (Family::of(remote), bits(remote));
        self.remotes.range((family, bits, 0)..=(family, bits, u32::MAX)).map(|(.., link)| *link)
    }
}

/// The flags of a device when it is made.
pub(super) fn first_flags(parameters: &tunnel::Tunnel) -> i32 {
    let to_point = if parameters.remote.is_unspecified() { 0 } else { IFF_POINTOPOINT };
    match parameters.kind {
        kind if kind.ethernet() => IFF_BROADCAST | IFF_MULTICAST,
        Kind::BareUdp => IFF_POINTOPOINT | IFF_NOARP | IFF_MULTICAST,
        Kind::GeneveIp => IFF_POINTOPOINT | IFF_NOARP,
        Kind::Gre if parameters.remote.is_multicast() && !parameters.external => IFF_BROADCAST | to_point,
        kind if kind.ipv6() => IFF_NOARP,
        _ => IFF_NOARP | to_point,
    }
}
