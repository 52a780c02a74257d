//! The attributes of tunnel devices, read and written.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use libc::{EADDRNOTAVAIL, EINVAL, EOPNOTSUPP};

use super::*;

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

#[expect(
    clippy::indexing_slicing,
    reason = "for constants: an index beyond the end is an error of the compiler"
)]
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

#[expect(
    clippy::indexing_slicing,
    reason = "for constants: an index beyond the end is an error of the compiler"
)]
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
fn unsupported(attribute: &Attribute<'_>, text: &'static str) -> RequestError {
    RequestError::new(EOPNOTSUPP, text).at(attribute.offset)
}

/// Reads `IFLA_INFO_DATA`; without it a device is [`Tunnel::new`].
///
/// # Errors
/// As Linux's policies, `validate` and parsing functions of the kind; `EOPNOTSUPP` with a text for what the router does
/// not have: ISATAP, Mobile IPv6.
pub fn parse(kind: Kind, data: Option<&Attribute<'_>>) -> Result<Described, RequestError> {
    let mut tunnel = Tunnel::new(kind);
    if kind == Kind::BareUdp {
        let bare = Some(BareUdp::parse(data)?);
        return Ok(Described {
            tunnel: Tunnel { external: true, bare, ..tunnel },
            encap: None,
            six_rd: None,
        });
    }
    let own = match kind {
        Kind::Vxlan => Some(vxlan::create(data)?),
        Kind::Geneve | Kind::GeneveIp => Some(geneve::create(data)?),
        Kind::Srv6L2 => match data.filter(|data| !data.value.is_empty()) {
            Some(data) => {
                return Err(unsupported(data, "an srv6l2 has no parameters: say SIDs to bridge fdb"));
            }
            None => Some(tunnel),
        },
        _ => None,
    };
    if let Some(tunnel) = own {
        return Ok(Described { tunnel, encap: None, six_rd: None });
    }
    let Some(data) = data else { return Ok(Described { tunnel, encap: None, six_rd: None }) };
    let [iptun, iptun6, gre, gre6] = &POLICIES;
    let policy = match (kind.gre(), kind.ipv6()) {
        (false, false) => iptun,
        (false, true) => iptun6,
        (true, false) => gre,
        (true, true) => gre6,
    };
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
            return Err(RequestError::errno(EINVAL));
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
            return Err(RequestError::errno(EINVAL));
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
fn gre_parameters(tunnel: &mut Tunnel, data: &Data<'_>, encap: Option<Encap>) -> Result<(), RequestError> {
    let flags = |number: u16| data.get(number).map_or(0, |flags| flags.be16());
    let key = |number: u16| data.get(number).map_or(0, |key| key.be32());
    (tunnel.input_flags, tunnel.output_flags) = (flags(GRE_IFLAGS), flags(GRE_OFLAGS));
    (tunnel.input_key, tunnel.output_key) = (key(GRE_IKEY), key(GRE_OKEY));
    if (tunnel.input_flags | tunnel.output_flags) & GRE_REFUSED != 0 {
        return Err(RequestError::errno(EINVAL));
    }
    // Linux accepts a remote address that is none on a layer-3 device only.
    if tunnel.kind.ethernet() && data.get(GRE.remote).is_some() && tunnel.remote.is_unspecified() {
        return Err(RequestError::errno(EINVAL));
    }
    let encapsulated = encap.is_some_and(|encap| encap.kind != 0);
    if !tunnel.kind.ipv6() && tunnel.external && encapsulated {
        return Err(RequestError::errno(EINVAL));
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
pub fn check_ethernet(address: &Attribute<'_>) -> Result<[u8; 6], RequestError> {
    let mac = <[u8; 6]>::try_from(address.value).map_err(|_| RequestError::errno(EINVAL))?;
    if mac[0] & 1 != 0 || mac == [0; 6] {
        return Err(RequestError::errno(EADDRNOTAVAIL));
    }
    Ok(mac)
}

/// Writes the attributes of `IFLA_INFO_DATA`. Linux: the `fill_info` of the kind.
pub fn write(reply: &mut Reply<'_>, tunnel: &Tunnel, encap: &Encap, six_rd: &SixRd) {
    if let Some(bare) = &tunnel.bare {
        return bare.write(reply);
    }
    if let Some(device) = &tunnel.vxlan {
        return vxlan::write(reply, tunnel, device);
    }
    if let Some(device) = &tunnel.geneve {
        return geneve::write(reply, tunnel, device);
    }
    if tunnel.kind == Kind::Srv6L2 {
        return;
    }
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
        // `bareudp`, `vxlan` and `geneve` are read and written in files of their own.
        prop::sample::select(&Kind::ALL[..7])
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
            parse(kind, Some(&as_attribute(&bytes))).map_err(|error| error.errno)
        };
        assert_eq!(parse(Kind::Ipip, &|reply| reply.u8(IPTUN_PROTO, 41)), Err(EINVAL));
        assert_eq!(parse(Kind::Gre, &|reply| reply.be16(GRE_IFLAGS, 0x4000)), Err(EINVAL));
        assert_eq!(parse(Kind::Gre, &|reply| reply.u8(GRE_IGNORE_DF, 1)), Err(EINVAL));
        assert_eq!(parse(Kind::GreTap, &|reply| reply.attribute(GRE.remote, &[0; 4])), Err(EINVAL));
        assert_eq!(parse(Kind::Sit, &|reply| reply.be16(IPTUN.flags, SIT_ISATAP)), Err(EOPNOTSUPP));
        assert_eq!(parse(Kind::Ip6Tnl, &|reply| reply.u32(IPTUN.flags, 8)), Err(EOPNOTSUPP));
        let encap = |kind| Encap { kind, ..Encap::default() }.length().map_err(|error| error.errno);
        assert_eq!([encap(0), encap(1), encap(2), encap(3)], [Ok(0), Ok(8), Ok(12), Err(EOPNOTSUPP)]);
        assert_eq!(encap(4), Err(EINVAL));
    }
}
