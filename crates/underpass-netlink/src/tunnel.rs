//! `IFLA_INFO_DATA` of tunnel devices. Linux: `include/uapi/linux/if_tunnel.h`, `net/ipv4/{ip_tunnel_core,ipip,ip_gre}.c`,
//! `net/ipv6/{sit,ip6_tunnel,ip6_gre}.c`.
//!
//! Devices of GRE have the `IFLA_GRE_*` attributes, [`bareudp`], [`vxlan`] and [`geneve`] have their own, all others
//! `IFLA_IPTUN_*`.

mod attributes;
pub mod bareudp;
pub mod geneve;
pub mod vxlan;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use libc::{EINVAL, EOPNOTSUPP};

use crate::attribute::{Attribute, Attributes, Type, Validate, policy};
use crate::reply::Reply;
use crate::{RequestError, fou};

pub use attributes::{check_ethernet, parse, write, write_parameters, write_six_rd};
pub use bareudp::BareUdp;
pub use geneve::Geneve;
pub use vxlan::Vxlan;

/// `ARPHRD_NONE`: the hardware type of a GRE device with external metadata, and of `bareudp`.
pub const ARPHRD_NONE: u16 = 0xfffe;

/// What kind of tunnel device it is: `IFLA_INFO_KIND`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Kind {
    /// IPv4 (or MPLS) in IPv4.
    Ipip,
    /// IPv6 (or IPv4, MPLS) in IPv4.
    Sit,
    /// Layer 3 in GRE in IPv4.
    Gre,
    /// Ethernet in GRE in IPv4.
    GreTap,
    /// IPv4 and IPv6 in IPv6.
    Ip6Tnl,
    /// Layer 3 in GRE in IPv6.
    Ip6Gre,
    /// Ethernet in GRE in IPv6.
    Ip6GreTap,
    /// IPv4, IPv6 or MPLS in UDP, over IPv4 or IPv6 as routes say.
    BareUdp,
    /// Ethernet in UDP, over IPv4 or over IPv6 as its addresses are.
    Vxlan,
    /// The same with another header.
    Geneve,
    /// That header with IPv4, IPv6 or MPLS inside: `innerprotoinherit`.
    GeneveIp,
    /// Ethernet in IPv6, to the SIDs behind which stations are. Linux has no such kind: RFC 8986 section 5.4.
    Srv6L2,
}

impl Kind {
    /// All kinds. Of those with one name the first is what a request asks for, unless it says more.
    pub const ALL: [Self; 12] = [
        Self::Ipip,
        Self::Sit,
        Self::Gre,
        Self::GreTap,
        Self::Ip6Tnl,
        Self::Ip6Gre,
        Self::Ip6GreTap,
        Self::BareUdp,
        Self::Vxlan,
        Self::Geneve,
        Self::GeneveIp,
        Self::Srv6L2,
    ];

    /// `IFLA_INFO_KIND`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ipip => "ipip",
            Self::Sit => "sit",
            Self::Gre => "gre",
            Self::GreTap => "gretap",
            Self::Ip6Tnl => "ip6tnl",
            Self::Ip6Gre => "ip6gre",
            Self::Ip6GreTap => "ip6gretap",
            Self::BareUdp => "bareudp",
            Self::Vxlan => "vxlan",
            Self::Geneve | Self::GeneveIp => "geneve",
            Self::Srv6L2 => "srv6l2",
        }
    }

    /// The kind of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Whether the outer header is IPv6. That of `bareudp` is what a route says, that of `vxlan` and
    /// `geneve` what their addresses say.
    pub const fn ipv6(self) -> bool {
        matches!(self, Self::Ip6Tnl | Self::Ip6Gre | Self::Ip6GreTap | Self::Srv6L2)
    }

    /// Whether it is no device of Linux's.
    pub const fn is_experimental(self) -> bool {
        matches!(self, Self::Srv6L2)
    }

    /// Whether there is a GRE header.
    pub const fn gre(self) -> bool {
        matches!(self, Self::Gre | Self::GreTap | Self::Ip6Gre | Self::Ip6GreTap)
    }

    /// Whether the device is an Ethernet one.
    pub const fn ethernet(self) -> bool {
        matches!(self, Self::GreTap | Self::Ip6GreTap | Self::Vxlan | Self::Geneve | Self::Srv6L2)
    }

    /// Whether it is one over UDP, of either family of addresses where metadata say them.
    pub const fn over_udp(self) -> bool {
        matches!(self, Self::BareUdp | Self::Vxlan | Self::Geneve | Self::GeneveIp)
    }

    /// Whether a device has a queue when it comes up: Linux's `IFF_NO_QUEUE` is not set.
    pub const fn queues(self) -> bool {
        matches!(self, Self::GreTap | Self::Ip6GreTap)
    }

    /// `ARPHRD_*`.
    pub const fn hardware(self) -> u16 {
        match self {
            Self::Ipip => libc::ARPHRD_TUNNEL,
            Self::Sit => libc::ARPHRD_SIT,
            Self::Gre => libc::ARPHRD_IPGRE,
            Self::GreTap | Self::Ip6GreTap | Self::Vxlan | Self::Geneve | Self::Srv6L2 => libc::ARPHRD_ETHER,
            Self::Ip6Tnl => libc::ARPHRD_TUNNEL6,
            Self::Ip6Gre => 823, // ARPHRD_IP6GRE
            Self::BareUdp | Self::GeneveIp => ARPHRD_NONE,
        }
    }

    /// Whether a device may be told to carry this protocol alone: `IFLA_IPTUN_PROTO`, 0 for any.
    const fn carries(self, protocol: u8) -> bool {
        match self {
            Self::Ipip => matches!(protocol, 0 | 4 | 137),
            Self::Sit => matches!(protocol, 0 | 4 | 41 | 137),
            Self::Ip6Tnl => matches!(protocol, 0 | 4 | 41),
            Self::Gre | Self::GreTap | Self::Ip6Gre | Self::Ip6GreTap | Self::BareUdp => true,
            Self::Vxlan | Self::Geneve | Self::GeneveIp | Self::Srv6L2 => true,
        }
    }
}

/// `GRE_CSUM`: there is a checksum.
pub const GRE_CSUM: u16 = 0x8000;
/// `GRE_KEY`: there is a key.
pub const GRE_KEY: u16 = 0x2000;
/// `GRE_SEQ`: there is a sequence number.
pub const GRE_SEQ: u16 = 0x1000;
/// `GRE_ROUTING` and `GRE_VERSION`, which no device can have.
const GRE_REFUSED: u16 = 0x4007;

/// `IP6_TNL_F_IGN_ENCAP_LIMIT`: no option with the tunnel encapsulation limit.
pub const IP6_IGNORE_ENCAP_LIMIT: u32 = 0x1;
/// `IP6_TNL_F_USE_ORIG_TCLASS`: the inner packet's traffic class is the outer one's.
pub const IP6_INHERIT_TCLASS: u32 = 0x2;
/// `IP6_TNL_F_USE_ORIG_FLOWLABEL`: so is its flow label.
pub const IP6_INHERIT_FLOWLABEL: u32 = 0x4;
/// `IP6_TNL_F_RCV_DSCP_COPY`: the outer DSCP is the inner packet's on decapsulation.
pub const IP6_COPY_DSCP: u32 = 0x10;
/// `IP6_TNL_F_ALLOW_LOCAL_REMOTE`: the remote address may be one of the router's own.
pub const IP6_ALLOW_LOCAL_REMOTE: u32 = 0x40;
/// `IP6_TNL_F_CAP_XMIT`, which is shown: the addresses are such that the device can send.
pub const IP6_CAP_XMIT: u32 = 0x10000;
/// `IP6_TNL_F_CAP_RCV`: and receive.
pub const IP6_CAP_RCV: u32 = 0x20000;
/// `IP6_TNL_F_CAP_PER_PACKET`: that depends on the packet.
pub const IP6_CAP_PER_PACKET: u32 = 0x40000;
/// Those that mean something to Linux and nothing to the router: `MIP6_DEV`, `USE_ORIG_FWMARK`.
const IP6_REFUSED: u32 = 0x28;
/// `SIT_ISATAP` in `IFLA_IPTUN_FLAGS` of sit.
const SIT_ISATAP: u16 = 1;

/// `TUNNEL_ENCAP_FLAG_CSUM`: UDP checksum over IPv4.
pub const ENCAP_CSUM: u16 = 1;
/// `TUNNEL_ENCAP_FLAG_CSUM6`: UDP checksum over IPv6.
pub const ENCAP_CSUM6: u16 = 2;
/// `TUNNEL_ENCAP_FLAG_REMCSUM`: remote checksum offload, with GUE.
pub const ENCAP_REMCSUM: u16 = 4;

/// What is between the outer IP header and the tunnel's own: `struct ip_tunnel_encap`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Encap {
    /// `TUNNEL_ENCAP_*`.
    pub kind: u16,
    /// `ENCAP_CSUM` and the others.
    pub flags: u16,
    /// UDP source port; 0: one for each flow.
    pub source_port: u16,
    /// UDP destination port.
    pub destination_port: u16,
}

impl Encap {
    /// FOU or GUE; `None` without encapsulation.
    pub const fn udp(&self) -> Option<fou::Kind> {
        match self.kind {
            1 => Some(fou::Kind::Direct),
            2 => Some(fou::Kind::Gue),
            _ => None,
        }
    }

    /// Its bytes in front of the tunnel's header. Linux: `ip_encap_hlen`, `fou_encap_hlen`, `gue_encap_hlen`.
    ///
    /// # Errors
    /// `EINVAL` for a kind that does not exist, `EOPNOTSUPP` for MPLS.
    pub const fn length(&self) -> Result<u32, RequestError> {
        match self.kind {
            0 => Ok(0),
            1 => Ok(8),
            2 if self.flags & ENCAP_REMCSUM != 0 => Ok(20),
            2 => Ok(12),
            3 => Err(RequestError::new(
                EOPNOTSUPP,
                "MPLS encapsulation of a tunnel is not supported by this router",
            )),
            _ => Err(RequestError::errno(EINVAL)),
        }
    }
}

/// Which IPv6 prefix has the IPv4 address of a border router in it (RFC 5969): `struct ip_tunnel_6rd`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SixRd {
    /// The prefix.
    pub prefix: Ipv6Addr,
    /// Its length, in bits.
    pub prefix_len: u16,
    /// The prefix that all IPv4 addresses have in common, which is left out.
    pub relay_prefix: Ipv4Addr,
    /// Its length, in bits.
    pub relay_prefix_len: u16,
}

impl Default for SixRd {
    /// 6to4, RFC 3056: 2002::/16.
    fn default() -> Self {
        let prefix = Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0);
        Self { prefix, prefix_len: 16, relay_prefix: Ipv4Addr::UNSPECIFIED, relay_prefix_len: 0 }
    }
}

impl SixRd {
    /// Linux: `ipip6_tunnel_update_6rd`.
    ///
    /// # Errors
    /// `EINVAL`: more bits than fit, or bits set behind a prefix.
    pub fn check(&self) -> Result<(), RequestError> {
        let (len, relay_len) = (u32::from(self.prefix_len), u32::from(self.relay_prefix_len));
        let invalid = RequestError::errno(EINVAL);
        if relay_len > 32 || len + (32 - relay_len) > 64 {
            return Err(invalid);
        }
        let behind = u128::MAX.checked_shr(len).unwrap_or(0);
        let relay_behind = u32::MAX.checked_shr(relay_len).unwrap_or(0);
        if self.prefix.to_bits() & behind != 0 || self.relay_prefix.to_bits() & relay_behind != 0 {
            return Err(invalid);
        }
        Ok(())
    }
}

/// A tunnel as a request describes it: `struct ip_tunnel_parm`, `struct __ip6_tnl_parm`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Tunnel {
    /// The kind of device.
    pub kind: Kind,
    /// Index of the link that it sends by and receives from. 0: any.
    pub link: u32,
    /// Source of the outer header. Unspecified: chosen by the route, and any on reception.
    pub local: IpAddr,
    /// Destination of the outer header. Unspecified: by the packet, and any on reception.
    pub remote: IpAddr,
    /// TTL or hop limit of the outer header. 0: that of the packet.
    pub ttl: u8,
    /// TOS of the outer header, over IPv4. 1: that of the packet.
    pub tos: u8,
    /// Don't Fragment is set, over IPv4: path MTU discovery.
    pub pmtudisc: bool,
    /// Don't Fragment of the packet is not copied.
    pub ignore_df: bool,
    /// The one IP protocol inside, without GRE. 0: any.
    pub protocol: u8,
    /// `GRE_*` expected of what is received.
    pub input_flags: u16,
    /// `GRE_*` of what is sent.
    pub output_flags: u16,
    /// GRE key expected, if [`GRE_KEY`] is.
    pub input_key: u32,
    /// GRE key sent.
    pub output_key: u32,
    /// `external`: what is sent has the parameters of its route.
    pub external: bool,
    /// The firewall mark that the outer packet is routed with.
    pub mark: u32,
    /// Tunnel encapsulation limit, RFC 2473, over IPv6.
    pub encap_limit: u8,
    /// Traffic class and flow label of the outer header, over IPv6, as in its first word.
    pub flow_info: u32,
    /// `IP6_*`.
    pub flags: u32,
    /// What makes it a `bareudp`, if it is one.
    pub bare: Option<BareUdp>,
    /// What makes it a VXLAN, if it is one.
    pub vxlan: Option<Vxlan>,
    /// What makes it a Geneve device, if it is one.
    pub geneve: Option<Geneve>,
}

impl Tunnel {
    /// What a device is without `IFLA_INFO_DATA`.
    pub const fn new(kind: Kind) -> Self {
        let any =
            if kind.ipv6() { IpAddr::V6(Ipv6Addr::UNSPECIFIED) } else { IpAddr::V4(Ipv4Addr::UNSPECIFIED) };
        Self {
            kind,
            link: 0,
            local: any,
            remote: any,
            ttl: if matches!(kind, Kind::Sit) { 64 } else { 0 },
            tos: 0,
            pmtudisc: false,
            ignore_df: false,
            protocol: match kind {
                Kind::Ipip => 4,
                Kind::Sit => 41,
                Kind::Gre | Kind::GreTap => 47,
                Kind::Ip6Tnl | Kind::Ip6Gre | Kind::Ip6GreTap => 0,
                Kind::BareUdp | Kind::Vxlan | Kind::Geneve | Kind::GeneveIp | Kind::Srv6L2 => 0,
            },
            input_flags: 0,
            output_flags: 0,
            input_key: 0,
            output_key: 0,
            external: false,
            mark: 0,
            encap_limit: 0,
            flow_info: 0,
            flags: if matches!(kind, Kind::Srv6L2) { IP6_IGNORE_ENCAP_LIMIT } else { 0 },
            bare: None,
            vxlan: None,
            geneve: None,
        }
    }

    /// Bytes of the GRE header that is sent; 0 if there is none.
    pub const fn gre_length(&self) -> u32 {
        if !self.kind.gre() {
            return 0;
        }
        let [checksum, key, sequence] = [
            self.output_flags & GRE_CSUM != 0,
            self.output_flags & GRE_KEY != 0,
            self.output_flags & GRE_SEQ != 0,
        ];
        4 * (1 + checksum as u32 + key as u32 + sequence as u32)
    }

    /// Whether stations are behind other ends of it: of a VXLAN, or an `srv6l2`.
    pub const fn has_ends(&self) -> bool {
        self.vxlan.is_some() || matches!(self.kind, Kind::Srv6L2)
    }

    /// Bytes of the outer IP header.
    pub const fn ip_length(&self) -> u32 {
        if self.remote.is_ipv6() { 40 } else { 20 }
    }
}

/// What a request says of a tunnel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Described {
    /// All but what follows; what is not said is as [`Tunnel::new`] has it.
    pub tunnel: Tunnel,
    /// The encapsulation, if the request speaks of it.
    pub encap: Option<Encap>,
    /// The 6rd prefix, if the request speaks of it.
    pub six_rd: Option<SixRd>,
}
