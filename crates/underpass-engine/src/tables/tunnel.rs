//! IP tunnels and foo-over-UDP, as the control thread describes them.
//!
//! A tunnel is a link of the router. A route by it is an [`Action::Tunnel`](super::Action::Tunnel); what comes out of
//! it has come in by that link.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{Behind, LinkId, LookupId, NextHopId, TunnelId, Via};

/// A tunnel: a device of `ip link add … type ipip|sit|gre|gretap|ip6tnl|ip6gre|ip6gretap|bareudp|vxlan|geneve|srv6l2`, or
/// what a route puts before its packets by such a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tunnel {
    /// The device: counts what goes through, and says whether it is up, its MTU, and where what comes out is looked up.
    pub link: LinkId,
    /// What is put before packets; says of which family the outer header is.
    pub kind: TunnelKind,
    /// What may be inside. GRE takes whatever has an EtherType: [`TunnelMode::Any`].
    pub mode: TunnelMode,
    /// What of the packets that come in are the tunnel's.
    pub role: TunnelRole,
    /// Source of the outer header; of what comes in, the destination. Unspecified: whatever it is.
    pub local: IpAddr,
    /// Destination of the outer header; of what comes in, the source. Unspecified: whatever it is, and what goes out
    /// goes to where the packet says (its own destination, or by `sixrd`).
    pub remote: IpAddr,
    /// `dev`: where outer packets come in.
    pub bound: Option<TunnelBound>,
    /// GRE: what packets that come in must have (`ikey`, `icsum`, `iseq`).
    pub receive: GreFields,
    /// GRE: what packets that go out have (`okey`, `ocsum`, `oseq`).
    pub transmit: GreFields,
    /// TTL or hop limit of the outer header. `None`: that of the packet inside, and [`DEFAULT_TTL`] if it is not IP.
    pub ttl: Option<u8>,
    /// TOS or traffic class of the outer header. Its ECN bits come from the packet inside, whatever is said here.
    pub tos: TunnelTos,
    /// Over IPv6: the flow label. `None`: that of an IPv6 packet inside (`flowlabel inherit`). 0: by the flow's hash.
    pub flow_label: Option<u32>,
    /// Over IPv4: don't fragment is always set (`pmtudisc`). Else it is that of an IPv4 packet inside.
    pub dont_fragment: bool,
    /// Over IPv4: don't fragment of the packet inside counts for nothing (`ignore-df`).
    pub ignore_df: bool,
    /// Over IPv6: the tunnel encapsulation limit, RFC 2473 section 4.1.1. `None`: no such option (`encaplimit none`).
    pub encapsulation_limit: Option<u8>,
    /// `ip6tnl`: what comes out has the DSCP of the outer header (`dscp inherit`).
    pub copies_dscp: bool,
    /// Over IPv6: what comes in may have a source that is the router's own (`allow-localremote`).
    pub allows_local_remote: bool,
    /// `encap fou|gue`, `bareudp`, `vxlan` and `geneve`: outer packets are UDP datagrams.
    pub udp: Option<TunnelUdp>,
    /// What makes it a VXLAN, if it is one.
    pub vxlan: Option<Vxlan>,
    /// Of `vxlan` and `srv6l2`: its other ends, and the stations behind them.
    pub behind: Option<Behind>,
    /// What makes it a Geneve device, if it is one.
    pub geneve: Option<Geneve>,
    /// `sit` without a remote address: where IPv6 destinations have an IPv4 address inside.
    pub sixrd: Option<Sixrd>,
    /// Where outer packets go: the remote address, looked up in the tables of the underlay. With an unspecified address
    /// the tables alone count.
    pub via: Via,
    /// The routing instance of outer packets: where the router's own addresses are looked for, and whose paths reports are
    /// about. `via` may be looked up among fewer routes, those by a link.
    pub underlay: LookupId,
    /// Outer packets go to the remote address on the link that the tunnel is bound to, where no route leads: what is reported
    /// of a path is that of a route, and not theirs.
    pub off_route: bool,
    /// `sit`, bound to a link in a VRF: outer packets with anything but IPv6 inside go where the tables of the underlay lead, and
    /// not by that link alone, as `via` does.
    pub by_any_link: bool,
    /// The source of outer headers where `local` is unspecified: what the control thread has chosen for the remote
    /// address. Unspecified: an address of the link by which the packet leaves. Over IPv6 it is `local` where that may be
    /// sent from; unspecified: nothing is sent.
    pub source: IpAddr,
}

impl Tunnel {
    /// The source of outer headers, as far as it does not depend on the link by which they leave.
    pub(crate) const fn sends_from(&self) -> IpAddr {
        if self.kind.is_over_ipv6() || self.local.is_unspecified() { self.source } else { self.local }
    }

    /// Whether `ip6tnl` takes nothing that comes in, as its local address is not the router's where the tunnel is bound.
    /// Linux: `ip6_tnl_rcv_ctl`, which asks for it as `ip6_tnl_xmit_ctl` does.
    pub(crate) fn has_foreign_local(&self) -> bool {
        self.kind == TunnelKind::Ip6tnl && !self.local.is_unspecified() && self.source.is_unspecified()
    }
}

/// What makes a tunnel a VXLAN: RFC 7348. It is found by its network and its port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Vxlan {
    /// The network identifier (VNI), of 24 bits.
    pub vni: u32,
    /// Whether datagrams over IPv6 without a checksum are taken: `udp6zerocsumrx`, RFC 6935.
    pub takes_unsummed: bool,
    /// TTL or hop limit of what goes to groups, where it is another.
    pub ttl_to_groups: Option<u8>,
}

/// What makes a tunnel one of Geneve: RFC 8926. It is found by these, its port and its remote address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geneve {
    /// The network identifier (VNI), of 24 bits.
    pub vni: u32,
    /// Whether datagrams over IPv6 without a checksum are taken: `udp6zerocsumrx`, RFC 6935.
    pub takes_unsummed: bool,
}

/// TTL of an outer header that inherits from what has none: Linux's `ip_default_ttl`.
pub const DEFAULT_TTL: u8 = 64;

/// What a tunnel puts before packets.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, strum::EnumCount)]
pub enum TunnelKind {
    /// IPv4 (`ipip`): RFC 2003.
    Ipip,
    /// IPv4 (`sit`): RFC 4213. With a mode of its own, as `ipip`; IPv6 may be inside.
    Sit,
    /// IPv4 and GRE: RFC 2784, RFC 2890.
    Gre,
    /// IPv4 and GRE, with Ethernet frames inside.
    Gretap,
    /// IPv6 (`ip6tnl`): RFC 2473.
    Ip6tnl,
    /// IPv6 and GRE: RFC 7676.
    Ip6gre,
    /// IPv6 and GRE, with Ethernet frames inside.
    Ip6gretap,
    /// IPv4 and UDP (`bareudp`): what is inside is agreed on. A device of it has ports of both families, and no addresses:
    /// only routes say where its packets go.
    Bareudp,
    /// The same over IPv6.
    Bareudp6,
    /// IPv4, UDP and a VXLAN header (`vxlan`), with Ethernet frames inside: RFC 7348.
    Vxlan,
    /// The same over IPv6.
    Vxlan6,
    /// IPv4, UDP and a Geneve header (`geneve`), with Ethernet frames inside: RFC 8926.
    Geneve,
    /// The same over IPv6.
    Geneve6,
    /// The same over IPv4 with packets inside (`innerprotoinherit`).
    GeneveIp,
    /// And over IPv6.
    GeneveIp6,
    /// IPv6 (`srv6l2`), with Ethernet frames inside: H.Encaps.L2.Red of one segment, the SID behind which a station is; RFC 8986
    /// section 5.4. What comes in is for SIDs, End.DT2U and End.DT2M.
    Srv6L2,
}

impl TunnelKind {
    /// Its name, as `ip` writes it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Ipip => "ipip",
            Self::Sit => "sit",
            Self::Gre => "gre",
            Self::Gretap => "gretap",
            Self::Ip6tnl => "ip6tnl",
            Self::Ip6gre => "ip6gre",
            Self::Ip6gretap => "ip6gretap",
            Self::Bareudp | Self::Bareudp6 => "bareudp",
            Self::Vxlan | Self::Vxlan6 => "vxlan",
            Self::Geneve | Self::Geneve6 | Self::GeneveIp | Self::GeneveIp6 => "geneve",
            Self::Srv6L2 => "srv6l2",
        }
    }

    /// Whether the outer header is IPv6.
    #[inline(always)]
    pub const fn is_over_ipv6(self) -> bool {
        matches!(
            self,
            Self::Ip6tnl
                | Self::Ip6gre
                | Self::Ip6gretap
                | Self::Bareudp6
                | Self::Vxlan6
                | Self::Geneve6
                | Self::GeneveIp6
                | Self::Srv6L2
        )
    }

    /// Whether it is `bareudp`.
    #[inline(always)]
    pub const fn is_bare_udp(self) -> bool {
        matches!(self, Self::Bareudp | Self::Bareudp6)
    }

    /// Whether it is a VXLAN.
    #[inline(always)]
    pub const fn is_vxlan(self) -> bool {
        matches!(self, Self::Vxlan | Self::Vxlan6)
    }

    /// Whether it is one of Geneve.
    #[inline(always)]
    pub const fn is_geneve(self) -> bool {
        matches!(self, Self::Geneve | Self::Geneve6 | Self::GeneveIp | Self::GeneveIp6)
    }

    /// Whether its headers are those of UDP and of its own, whatever else may be put into UDP.
    #[inline(always)]
    pub const fn is_over_udp(self) -> bool {
        self.is_bare_udp() || self.is_vxlan() || self.is_geneve()
    }

    /// Whether it is a network of many stations, whose addresses say nothing of the tunnel's own ends.
    #[inline(always)]
    pub const fn is_network(self) -> bool {
        self.is_vxlan() || self.is_geneve() || matches!(self, Self::Srv6L2)
    }

    /// Whether it is an overlay, over UDP or of many stations: none of the tunnels whose outer packets are an affair of the senders
    /// of what is inside.
    #[inline(always)]
    pub const fn is_overlay(self) -> bool {
        self.is_over_udp() || self.is_network()
    }

    /// Whether there is a GRE header.
    #[inline(always)]
    pub const fn has_gre(self) -> bool {
        matches!(self, Self::Gre | Self::Gretap | Self::Ip6gre | Self::Ip6gretap)
    }

    /// Whether Ethernet frames are inside.
    #[inline(always)]
    pub const fn carries_frames(self) -> bool {
        matches!(
            self,
            Self::Gretap
                | Self::Ip6gretap
                | Self::Vxlan
                | Self::Vxlan6
                | Self::Geneve
                | Self::Geneve6
                | Self::Srv6L2
        )
    }
}

/// What may be inside a tunnel without GRE: `mode`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum TunnelMode {
    /// IPv4: `ipip`, `ip4ip6`.
    Ip4,
    /// IPv6: `ip6ip`, `ip6ip6`.
    Ip6,
    /// MPLS: `mplsip`, RFC 4023.
    Mpls,
    /// IPv4 and IPv6: `bareudp … multiproto`.
    Ip,
    /// What the router has no use for: `bareudp` of any other EtherType.
    Other,
    /// All of them.
    Any,
}

/// What of the packets that come in are a tunnel's. Each kind has one [`TunnelRole::External`] and one
/// [`TunnelRole::Fallback`] at most; of several the last counts. Those over UDP are found by their ports.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum TunnelRole {
    /// Those that match its addresses, its key and, preferably, what it is bound to.
    Device,
    /// Those of its kind that match no other: `external`.
    External,
    /// Those of its kind that match neither: `tunl0`, `sit0`, `gre0` and the like.
    Fallback,
    /// None: it is what a route puts before its packets (`encap ip`, or a gateway that is the remote address of a
    /// device which has none).
    Route {
        /// `id` of `encap ip` and `tunnel_key`, which filters see; `None`: of a gateway, of which they see nothing.
        given: Option<u32>,
    },
}

/// Where outer packets come in that are a tunnel's or a port's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TunnelBound {
    /// By this link.
    Link(LinkId),
    /// By a link whose packets are looked up in these tables: those of a VRF.
    Instance(LookupId),
}

/// Fields of a GRE header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct GreFields {
    /// The key, RFC 2890 section 2.1.
    pub key: Option<u32>,
    /// Whether there is a checksum.
    pub checksum: bool,
    /// Whether there is a sequence number, RFC 2890 section 2.2. The first is 0.
    pub sequence: bool,
}

/// TOS or traffic class of an outer header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TunnelTos {
    /// This one.
    Fixed(u8),
    /// That of the packet inside: `tos inherit`, `tclass inherit`. This one if it is not IP.
    Inherit(u8),
}

/// What makes outer packets UDP datagrams.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TunnelUdp {
    /// Whether there is a GUE header, of variant 0, behind that of UDP: `encap gue`, `encap fou`.
    pub gue: bool,
    /// The source port.
    pub source_port: SourcePort,
    /// The destination port.
    pub destination_port: u16,
    /// Whether there is a UDP checksum: `encap-csum` over IPv4, `encap-csum6` over IPv6. Without one it is 0.
    pub checksum: bool,
    /// Whether the receiver completes checksums that the sender of a packet has left unfinished, in GUE: `encap-remcsum`.
    pub remote_checksum: bool,
}

/// The source port of outer datagrams.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SourcePort {
    /// This one.
    Fixed(u16),
    /// One by the flow's hash.
    Flow {
        /// The lowest.
        first: u16,
        /// The highest, which Linux never takes.
        last: u16,
    },
}

impl SourcePort {
    /// By the flow's hash, out of those that Linux's `ip_local_port_range` has at first: `encap-sport auto`.
    pub const LOCAL: Self = Self::Flow { first: 32768, last: 60999 };
}

/// Where an IPv6 destination has the IPv4 address to which it is tunnelled: RFC 5969; RFC 3056 with the prefix
/// 2002::/16.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sixrd {
    /// `6rd-prefix`.
    pub prefix: Ipv6Addr,
    /// Its length, up to 96 and `relay_len`.
    pub len: u8,
    /// `6rd-relay_prefix`: the bits that all IPv4 addresses have in common, which the destinations do not have.
    pub relay: Ipv4Addr,
    /// Its length.
    pub relay_len: u8,
}

impl Sixrd {
    /// 6to4.
    pub const SIX_TO_FOUR: Self = Self {
        prefix: Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0),
        len: 16,
        relay: Ipv4Addr::UNSPECIFIED,
        relay_len: 0,
    };

    /// The IPv4 address inside an IPv6 address. `None`: it is of another prefix.
    #[inline]
    pub fn embedded(&self, address: Ipv6Addr) -> Option<Ipv4Addr> {
        let (len, relay_len) = (u32::from(self.len), u32::from(self.relay_len));
        if len > 128 || relay_len > 32 || len + 32 - relay_len > 128 {
            return None;
        }
        let differs = self.prefix.to_bits() ^ address.to_bits();
        if differs.leading_zeros() < len {
            return None;
        }
        // The bits behind the prefix are those of the IPv4 address behind the relay prefix.
        let behind = address.to_bits().checked_shl(len).unwrap_or(0);
        let own = ((behind >> 96) as u32).checked_shr(relay_len).unwrap_or(0);
        let common = !u32::MAX.checked_shr(relay_len).unwrap_or(0);
        Some(Ipv4Addr::from_bits(self.relay.to_bits() & common | own))
    }
}

/// A route by a tunnel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TunnelRoute {
    /// The tunnel.
    pub tunnel: TunnelId,
    /// Where Ethernet frames are inside: the neighbour behind the tunnel, whose rewrite is the header of the frame. Its
    /// port is not looked at.
    pub next_hop: Option<NextHopId>,
    /// Longest packet that goes in by the route, in bytes. 0: that of the device.
    pub mtu: u32,
    /// The hop limit of what the router itself sends by the route. 0: the usual one.
    pub hop_limit: u8,
}

impl TunnelRoute {
    /// The same, of a device with this MTU.
    #[inline(always)]
    pub(crate) fn mtu(&self, device: u32) -> u32 {
        if self.mtu == 0 { device } else { self.mtu }
    }
}

/// A port that takes UDP datagrams with packets inside: of `ip fou add`, or of a `bareudp`, `vxlan` or `geneve`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FouPort {
    /// The port, not 0.
    pub port: u16,
    /// Whether it is one of IPv6.
    pub ipv6: bool,
    /// The address that datagrams are for. Unspecified: all of the router's.
    pub local: IpAddr,
    /// Address and port that datagrams come from. `None`: all.
    pub peer: Option<(IpAddr, u16)>,
    /// Where they come in. `None`: by any link.
    pub bound: Option<TunnelBound>,
    /// What is in them.
    pub payload: FouPayload,
}

/// What is in the datagrams of a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FouPayload {
    /// A packet of this IP protocol: `ipproto`.
    Protocol(u8),
    /// What its GUE header says: `gue`.
    Gue,
    /// What is of this `bareudp`, or of this VXLAN or Geneve device that is external.
    Device(TunnelId),
    /// A frame of the VXLAN that its header names.
    Vxlan,
    /// What is of the Geneve device that its header and its source name.
    Geneve,
}

impl FouPayload {
    /// Whether it is that of devices, which are in a routing instance themselves.
    pub(crate) const fn is_of_device(self) -> bool {
        matches!(self, Self::Device(_) | Self::Vxlan | Self::Geneve)
    }
}
