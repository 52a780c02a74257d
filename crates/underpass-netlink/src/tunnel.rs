//! `IFLA_INFO_DATA` of tunnel devices. Linux: `include/uapi/linux/if_tunnel.h`, `net/ipv4/{ip_tunnel_core,ipip,ip_gre}.c`,
//! `net/ipv6/{sit,ip6_tunnel,ip6_gre}.c`.
//!
//! Devices of GRE have the `IFLA_GRE_*` attributes, all others `IFLA_IPTUN_*`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use libc::{EADDRNOTAVAIL, EINVAL, EOPNOTSUPP};

use crate::attribute::{Attribute, Attributes, Type, Validate, policy};
use crate::reply::Reply;
use crate::{Refusal, fou};

/// `ARPHRD_NONE`: the hardware type of a GRE device with external metadata.
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
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 7] =
        [Self::Ipip, Self::Sit, Self::Gre, Self::GreTap, Self::Ip6Tnl, Self::Ip6Gre, Self::Ip6GreTap];

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
        }
    }

    /// The kind of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Whether the outer header is IPv6.
    pub const fn ipv6(self) -> bool {
        matches!(self, Self::Ip6Tnl | Self::Ip6Gre | Self::Ip6GreTap)
    }

    /// Whether there is a GRE header.
    pub const fn gre(self) -> bool {
        matches!(self, Self::Gre | Self::GreTap | Self::Ip6Gre | Self::Ip6GreTap)
    }

    /// Whether the device is an Ethernet one.
    pub const fn ethernet(self) -> bool {
        matches!(self, Self::GreTap | Self::Ip6GreTap)
    }

    /// `ARPHRD_*`.
    pub const fn hardware(self) -> u16 {
        match self {
            Self::Ipip => libc::ARPHRD_TUNNEL,
            Self::Sit => libc::ARPHRD_SIT,
            Self::Gre => libc::ARPHRD_IPGRE,
            Self::GreTap | Self::Ip6GreTap => libc::ARPHRD_ETHER,
            Self::Ip6Tnl => libc::ARPHRD_TUNNEL6,
            Self::Ip6Gre => 823, // ARPHRD_IP6GRE
        }
    }

    /// Whether a device may be told to carry this protocol alone: `IFLA_IPTUN_PROTO`, 0 for any.
    const fn carries(self, protocol: u8) -> bool {
        match self {
            Self::Ipip => matches!(protocol, 0 | 4 | 137),
            Self::Sit => matches!(protocol, 0 | 4 | 41 | 137),
            Self::Ip6Tnl => matches!(protocol, 0 | 4 | 41),
            Self::Gre | Self::GreTap | Self::Ip6Gre | Self::Ip6GreTap => true,
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
    pub const fn length(&self) -> Result<u32, Refusal> {
        match self.kind {
            0 => Ok(0),
            1 => Ok(8),
            2 if self.flags & ENCAP_REMCSUM != 0 => Ok(20),
            2 => Ok(12),
            3 => Err(Refusal::new(
                EOPNOTSUPP,
                "MPLS encapsulation of a tunnel is not supported by this router",
            )),
            _ => Err(Refusal::errno(EINVAL)),
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
    pub fn check(&self) -> Result<(), Refusal> {
        let (len, relay_len) = (u32::from(self.prefix_len), u32::from(self.relay_prefix_len));
        let invalid = Refusal::errno(EINVAL);
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
            },
            input_flags: 0,
            output_flags: 0,
            input_key: 0,
            output_key: 0,
            external: false,
            mark: 0,
            encap_limit: 0,
            flow_info: 0,
            flags: 0,
        }
    }

    /// Bytes of the GRE header that is sent; 0 if there is none.
    pub const fn gre_length(&self) -> u32 {
        if !self.kind.gre() {
            return 0;
        }
        let words = [GRE_CSUM, GRE_KEY, GRE_SEQ];
        let (mut length, mut i) = (4, 0);
        while i < words.len() {
            if self.output_flags & words[i] != 0 {
                length += 4;
            }
            i += 1;
        }
        length
    }

    /// Bytes of the outer IP header.
    pub const fn ip_length(&self) -> u32 {
        if self.kind.ipv6() { 40 } else { 20 }
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

/// Numbers of the attributes that both families have; 0: it has none.
struct Numbers {
    link: u16,
    local: u16,
    remote: u16,
    ttl: u16,
    tos: u16,
    pmtudisc: u16,
    encap_limit: u16,
    flow_info: u16,
    flags: u16,
    encap_type: u16,
    encap_flags: u16,
    encap_source: u16,
    encap_destination: u16,
    external: u16,
    mark: u16,
}

const IPTUN: Numbers = Numbers {
    link: 1,
    local: 2,
    remote: 3,
    ttl: 4,
    tos: 5,
    encap_limit: 6,
    flow_info: 7,
    flags: 8,
    pmtudisc: 10,
    encap_type: 15,
    encap_flags: 16,
    encap_source: 17,
    encap_destination: 18,
    external: 19,
    mark: 20,
};
const IPTUN_PROTO: u16 = 9;
const IPTUN_6RD_PREFIX: u16 = 11;
const IPTUN_6RD_RELAY_PREFIX: u16 = 12;
const IPTUN_6RD_PREFIXLEN: u16 = 13;
const IPTUN_6RD_RELAY_PREFIXLEN: u16 = 14;

const GRE: Numbers = Numbers {
    link: 1,
    local: 6,
    remote: 7,
    ttl: 8,
    tos: 9,
    pmtudisc: 10,
    encap_limit: 11,
    flow_info: 12,
    flags: 13,
    encap_type: 14,
    encap_flags: 15,
    encap_source: 16,
    encap_destination: 17,
    external: 18,
    mark: 20,
};
const GRE_IFLAGS: u16 = 2;
const GRE_OFLAGS: u16 = 3;
const GRE_IKEY: u16 = 4;
const GRE_OKEY: u16 = 5;
const GRE_IGNORE_DF: u16 = 19;

const ATTRIBUTES: usize = 21;

const fn common(numbers: &Numbers, ipv6: bool) -> [(u16, Type); 15] {
    let address = Type::AtLeast(if ipv6 { 16 } else { 4 });
    let flags = if ipv6 { Type::U32 } else { Type::U16 };
    [
        (numbers.link, Type::U32),
        (numbers.local, address),
        (numbers.remote, address),
        (numbers.ttl, Type::U8),
        (numbers.tos, Type::U8),
        (numbers.pmtudisc, Type::U8),
        (numbers.encap_limit, Type::U8),
        (numbers.flow_info, Type::U32),
        (numbers.flags, flags),
        (numbers.encap_type, Type::U16),
        (numbers.encap_flags, Type::U16),
        (numbers.encap_source, Type::U16),
        (numbers.encap_destination, Type::U16),
        (numbers.external, Type::Flag),
        (numbers.mark, Type::U32),
    ]
}

const fn iptun(ipv6: bool) -> [Type; ATTRIBUTES] {
    let mut all = policy(&common(&IPTUN, ipv6));
    all[IPTUN_PROTO as usize] = Type::U8;
    if !ipv6 {
        all[IPTUN_6RD_PREFIX as usize] = Type::AtLeast(16);
        all[IPTUN_6RD_RELAY_PREFIX as usize] = Type::U32;
        all[IPTUN_6RD_PREFIXLEN as usize] = Type::U16;
        all[IPTUN_6RD_RELAY_PREFIXLEN as usize] = Type::U16;
    }
    all
}

const fn gre(ipv6: bool) -> [Type; ATTRIBUTES] {
    let mut all = policy(&common(&GRE, ipv6));
    all[GRE_IFLAGS as usize] = Type::U16;
    all[GRE_OFLAGS as usize] = Type::U16;
    all[GRE_IKEY as usize] = Type::U32;
    all[GRE_OKEY as usize] = Type::U32;
    all[GRE_IGNORE_DF as usize] = Type::U8;
    all
}

const POLICIES: [[Type; ATTRIBUTES]; 4] = [iptun(false), iptun(true), gre(false), gre(true)];

type Data<'a> = Attributes<'a, ATTRIBUTES>;

/// `EOPNOTSUPP` at an attribute.
fn unsupported(attribute: &Attribute<'_>, text: &'static str) -> Refusal {
    Refusal::new(EOPNOTSUPP, text).at(attribute.offset)
}

/// Reads `IFLA_INFO_DATA`; without it a device is [`Tunnel::new`].
///
/// # Errors
/// As Linux's policies, `validate` and parsing functions of the kind; `EOPNOTSUPP` with a text for what the router does
/// not have: ISATAP, Mobile IPv6.
pub fn parse(kind: Kind, data: Option<&Attribute<'_>>) -> Result<Described, Refusal> {
    let mut tunnel = Tunnel::new(kind);
    let Some(data) = data else { return Ok(Described { tunnel, encap: None, six_rd: None }) };
    let policy = &POLICIES[usize::from(kind.gre()) * 2 + usize::from(kind.ipv6())];
    let data = data.parse_nested(policy, Validate::Liberal)?;
    let numbers = if kind.gre() { &GRE } else { &IPTUN };
    let byte = |number: u16| data.get(number).map(|attribute| attribute.u8());
    let word = |number: u16| data.get(number).map_or(0, |attribute| attribute.u32());
    let address = |number: u16, default: IpAddr| {
        let family = if kind.ipv6() { libc::AF_INET6 } else { libc::AF_INET } as u8;
        data.get(number).and_then(|address| address.address(family)).unwrap_or(default)
    };
    let encap = encap(&data, numbers);
    tunnel.link = word(numbers.link);
    tunnel.local = address(numbers.local, tunnel.local);
    tunnel.remote = address(numbers.remote, tunnel.remote);
    tunnel.ttl = byte(numbers.ttl).unwrap_or(tunnel.ttl);
    tunnel.external = data.get(numbers.external).is_some() && kind != Kind::Sit;
    tunnel.mark = word(numbers.mark);
    if kind.gre() {
        gre_parameters(&mut tunnel, &data, encap)?;
    } else {
        let protocol = byte(IPTUN_PROTO);
        tunnel.protocol = protocol.unwrap_or(tunnel.protocol);
        if protocol.is_some_and(|protocol| !kind.carries(protocol)) {
            return Err(Refusal::errno(EINVAL));
        }
    }
    if kind.ipv6() {
        tunnel.encap_limit = byte(numbers.encap_limit).unwrap_or(0);
        tunnel.flow_info = data.get(numbers.flow_info).map_or(0, |info| info.be32());
        tunnel.flags = word(numbers.flags);
        if let Some(flags) = data.get(numbers.flags).filter(|flags| flags.u32() & IP6_REFUSED != 0) {
            return Err(unsupported(&flags, "tunnel flag is not supported by this router"));
        }
        return Ok(Described { tunnel, encap, six_rd: None });
    }
    tunnel.tos = byte(numbers.tos).unwrap_or(0);
    tunnel.pmtudisc = byte(numbers.pmtudisc) != Some(0) || tunnel.ttl != 0 && !kind.gre();
    if kind.gre() {
        let ignore_df = byte(GRE_IGNORE_DF);
        if ignore_df.unwrap_or(0) != 0 && tunnel.pmtudisc {
            return Err(Refusal::errno(EINVAL));
        }
        tunnel.ignore_df = ignore_df.unwrap_or(0) != 0;
    }
    if kind == Kind::Sit
        && let Some(flags) = data.get(IPTUN.flags).filter(|flags| flags.be16() & SIT_ISATAP != 0)
    {
        return Err(unsupported(&flags, "ISATAP is not supported by this router"));
    }
    let six_rd = if kind == Kind::Sit { six_rd(&data) } else { None };
    Ok(Described { tunnel, encap, six_rd })
}

/// Keys and flags. Linux: `ipgre_tunnel_validate`, `ipgre_netlink_parms` and those of IPv6.
fn gre_parameters(tunnel: &mut Tunnel, data: &Data<'_>, encap: Option<Encap>) -> Result<(), Refusal> {
    let flags = |number: u16| data.get(number).map_or(0, |flags| flags.be16());
    let key = |number: u16| data.get(number).map_or(0, |key| key.be32());
    (tunnel.input_flags, tunnel.output_flags) = (flags(GRE_IFLAGS), flags(GRE_OFLAGS));
    (tunnel.input_key, tunnel.output_key) = (key(GRE_IKEY), key(GRE_OKEY));
    if (tunnel.input_flags | tunnel.output_flags) & GRE_REFUSED != 0 {
        return Err(Refusal::errno(EINVAL));
    }
    // Linux accepts a remote address that is none on a layer-3 device only.
    if tunnel.kind.ethernet() && data.get(GRE.remote).is_some() && tunnel.remote.is_unspecified() {
        return Err(Refusal::errno(EINVAL));
    }
    let encapsulated = encap.is_some_and(|encap| encap.kind != 0);
    if !tunnel.kind.ipv6() && tunnel.external && encapsulated {
        return Err(Refusal::errno(EINVAL));
    }
    Ok(())
}

/// Linux: `ip_tunnel_netlink_encap_parms`.
fn encap(data: &Data<'_>, numbers: &Numbers) -> Option<Encap> {
    let half = |number: u16| data.get(number).map_or(0, |attribute| attribute.u16());
    let port = |number: u16| data.get(number).map_or(0, |attribute| attribute.be16());
    let all = [numbers.encap_type, numbers.encap_flags, numbers.encap_source, numbers.encap_destination];
    all.into_iter().any(|number| data.get(number).is_some()).then(|| Encap {
        kind: half(numbers.encap_type),
        flags: half(numbers.encap_flags),
        source_port: port(numbers.encap_source),
        destination_port: port(numbers.encap_destination),
    })
}

/// Linux: `ipip6_netlink_6rd_parms`.
fn six_rd(data: &Data<'_>) -> Option<SixRd> {
    let all = [IPTUN_6RD_PREFIX, IPTUN_6RD_RELAY_PREFIX, IPTUN_6RD_PREFIXLEN, IPTUN_6RD_RELAY_PREFIXLEN];
    let length = |number: u16| data.get(number).map_or(0, |length| length.u16());
    all.into_iter().any(|number| data.get(number).is_some()).then(|| SixRd {
        prefix: data.get(IPTUN_6RD_PREFIX).map_or(Ipv6Addr::UNSPECIFIED, |prefix| prefix.ipv6()),
        prefix_len: length(IPTUN_6RD_PREFIXLEN),
        relay_prefix: data.get(IPTUN_6RD_RELAY_PREFIX).map_or(Ipv4Addr::UNSPECIFIED, |prefix| prefix.ipv4()),
        relay_prefix_len: length(IPTUN_6RD_RELAY_PREFIXLEN),
    })
}

/// The hardware address in `IFLA_ADDRESS` of an Ethernet device that is being made. Linux: `ipgre_tap_validate`.
///
/// # Errors
/// `EINVAL` for another length, `EADDRNOTAVAIL` for the address of no station.
pub fn check_ethernet(address: &Attribute<'_>) -> Result<[u8; 6], Refusal> {
    let mac = <[u8; 6]>::try_from(address.value).map_err(|_| Refusal::errno(EINVAL))?;
    if mac[0] & 1 != 0 || mac == [0; 6] {
        return Err(Refusal::errno(EADDRNOTAVAIL));
    }
    Ok(mac)
}

/// Writes the attributes of `IFLA_INFO_DATA`. Linux: the `fill_info` of the kind.
pub fn write(reply: &mut Reply<'_>, tunnel: &Tunnel, encap: &Encap, six_rd: &SixRd) {
    write_parameters(reply, tunnel);
    if tunnel.kind == Kind::Sit {
        write_six_rd(reply, six_rd);
    }
    let numbers = if tunnel.kind.gre() { &GRE } else { &IPTUN };
    reply.u16(numbers.encap_type, encap.kind);
    reply.be16(numbers.encap_source, encap.source_port);
    reply.be16(numbers.encap_destination, encap.destination_port);
    reply.u16(numbers.encap_flags, encap.flags);
    if tunnel.external {
        reply.flag(numbers.external);
    }
}

/// Writes the 6rd prefix.
pub fn write_six_rd(reply: &mut Reply<'_>, six_rd: &SixRd) {
    reply.address(IPTUN_6RD_PREFIX, six_rd.prefix.into());
    reply.address(IPTUN_6RD_RELAY_PREFIX, six_rd.relay_prefix.into());
    reply.u16(IPTUN_6RD_PREFIXLEN, six_rd.prefix_len);
    reply.u16(IPTUN_6RD_RELAY_PREFIXLEN, six_rd.relay_prefix_len);
}

/// Writes what is neither encapsulation nor 6rd prefix.
pub fn write_parameters(reply: &mut Reply<'_>, tunnel: &Tunnel) {
    let kind = tunnel.kind;
    let numbers = if kind.gre() { &GRE } else { &IPTUN };
    reply.u32(numbers.link, tunnel.link);
    if kind.gre() {
        reply.be16(GRE_IFLAGS, tunnel.input_flags);
        reply.be16(GRE_OFLAGS, tunnel.output_flags);
        reply.be32(GRE_IKEY, tunnel.input_key);
        reply.be32(GRE_OKEY, tunnel.output_key);
    }
    reply.address(numbers.local, tunnel.local);
    reply.address(numbers.remote, tunnel.remote);
    reply.u8(numbers.ttl, tunnel.ttl);
    if kind.ipv6() {
        reply.u8(numbers.encap_limit, tunnel.encap_limit);
        reply.be32(numbers.flow_info, tunnel.flow_info);
        reply.u32(numbers.flags, tunnel.flags);
        if !kind.gre() {
            reply.u8(IPTUN_PROTO, tunnel.protocol);
        }
    } else {
        reply.u8(numbers.tos, tunnel.tos);
        if kind == Kind::Ipip {
            reply.u8(IPTUN_PROTO, tunnel.protocol);
        }
        reply.u8(numbers.pmtudisc, u8::from(tunnel.pmtudisc));
        if kind == Kind::Sit {
            reply.u8(IPTUN_PROTO, tunnel.protocol);
            reply.be16(IPTUN.flags, 0);
        }
    }
    reply.u32(numbers.mark, tunnel.mark);
    if kind.gre() && !kind.ipv6() {
        reply.u8(GRE_IGNORE_DF, u8::from(tunnel.ignore_df));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::encap::tests::{as_attribute, written};

    fn kinds() -> impl Strategy<Value = Kind> {
        prop::sample::select(&Kind::ALL[..])
    }

    prop_compose! {
        fn tunnels()(
            kind in kinds(),
            link: u32,
            ends: [Ipv6Addr; 2],
            bytes: [u8; 3],
            switches: [bool; 3],
            gre: [u8; 2],
            keys: [u32; 2],
            words: [u32; 2],
        ) -> Tunnel {
            let [local, remote] = ends.map(|end| match kind.ipv6() {
                true => IpAddr::V6(end),
                false => Ipv4Addr::from_bits(end.to_bits() as u32 | 1).into(),
            });
            let fields = |bits: u8| u16::from(bits & 0xb) << 12;
            let base = Tunnel { link, local, remote, mark: words[0], external: false, ..Tunnel::new(kind) };
            let over4 = !kind.ipv6();
            let pmtudisc = over4 && (switches[0] || bytes[0] != 0 && !kind.gre());
            Tunnel {
                ttl: bytes[0],
                tos: if over4 { bytes[1] } else { 0 },
                pmtudisc,
                ignore_df: over4 && kind.gre() && switches[1] && !pmtudisc,
                protocol: if kind.carries(4) && !kind.gre() { 4 } else { base.protocol },
                input_flags: if kind.gre() { fields(gre[0]) } else { 0 },
                output_flags: if kind.gre() { fields(gre[1]) } else { 0 },
                input_key: if kind.gre() { keys[0] } else { 0 },
                output_key: if kind.gre() { keys[1] } else { 0 },
                external: switches[2] && kind != Kind::Sit,
                encap_limit: if over4 { 0 } else { bytes[2] },
                flow_info: if over4 { 0 } else { words[1] },
                flags: if over4 { 0 } else { words[1] & !IP6_REFUSED },
                ..base
            }
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(tunnel in tunnels(), ports: [u16; 2], flags in 0_u16..8) {
            let encap = Encap { kind: 0, flags, source_port: ports[0], destination_port: ports[1] };
            let six_rd = SixRd { prefix_len: ports[0], ..SixRd::default() };
            let bytes = written(|reply| write(reply, &tunnel, &encap, &six_rd));
            let six_rd = (tunnel.kind == Kind::Sit).then_some(six_rd);
            let expected = Described { tunnel, encap: Some(encap), six_rd };
            prop_assert_eq!(parse(tunnel.kind, Some(&as_attribute(&bytes))), Ok(expected));
        }

        #[test]
        fn any_bytes_are_read_or_refused(kind in kinds(), bytes: Vec<u8>) {
            let _ = parse(kind, Some(&as_attribute(&bytes)));
        }

        #[test]
        fn any_prefix_is_checked(bits: u128, relay: u32, lengths: [u16; 2]) {
            let (prefix, relay_prefix) = (Ipv6Addr::from_bits(bits), Ipv4Addr::from_bits(relay));
            let [prefix_len, relay_prefix_len] = lengths;
            let _ = SixRd { prefix, prefix_len, relay_prefix, relay_prefix_len }.check();
        }
    }

    /// Linux: `ipip6_tunnel_update_6rd`.
    #[test]
    fn prefixes_that_do_not_fit() {
        let six_rd = |prefix: &str, prefix_len, relay: [u8; 4], relay_prefix_len| {
            let (prefix, relay_prefix) = (prefix.parse().unwrap(), relay.into());
            SixRd { prefix, prefix_len, relay_prefix, relay_prefix_len }.check()
        };
        assert!(six_rd("2001:db8::", 32, [0; 4], 0).is_ok());
        assert!(six_rd("2001:db8::", 40, [10, 0, 0, 0], 8).is_ok());
        assert!(six_rd("2001:db8::", 33, [0; 4], 0).is_err());
        assert!(six_rd("2001:db8::1", 32, [0; 4], 0).is_err());
        assert!(six_rd("2001:db8::", 32, [10, 1, 0, 0], 8).is_err());
        assert!(six_rd("2001:db8::", 32, [0; 4], 33).is_err());
    }

    /// What does not go together, or is not there.
    #[test]
    fn refused() {
        let parse = |kind, write: &dyn Fn(&mut Reply<'_>)| {
            let bytes = written(write);
            parse(kind, Some(&as_attribute(&bytes))).map_err(|refusal| refusal.errno)
        };
        assert_eq!(parse(Kind::Ipip, &|reply| reply.u8(IPTUN_PROTO, 41)), Err(EINVAL));
        assert_eq!(parse(Kind::Gre, &|reply| reply.be16(GRE_IFLAGS, 0x4000)), Err(EINVAL));
        assert_eq!(parse(Kind::Gre, &|reply| reply.u8(GRE_IGNORE_DF, 1)), Err(EINVAL));
        assert_eq!(parse(Kind::GreTap, &|reply| reply.attribute(GRE.remote, &[0; 4])), Err(EINVAL));
        assert_eq!(parse(Kind::Sit, &|reply| reply.be16(IPTUN.flags, SIT_ISATAP)), Err(EOPNOTSUPP));
        assert_eq!(parse(Kind::Ip6Tnl, &|reply| reply.u32(IPTUN.flags, 8)), Err(EOPNOTSUPP));
        let encap = |kind| Encap { kind, ..Encap::default() }.length().map_err(|refusal| refusal.errno);
        assert_eq!([encap(0), encap(1), encap(2), encap(3)], [Ok(0), Ok(8), Ok(12), Err(EOPNOTSUPP)]);
        assert_eq!(encap(4), Err(EINVAL));
    }
}
