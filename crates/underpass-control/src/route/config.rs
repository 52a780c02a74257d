//! What a request says of a route. Linux: `rtm_to_fib_config`, `rtm_to_fib6_config`.

use std::net::IpAddr;

use libc::{EINVAL, EOPNOTSUPP};
use underpass_netlink::{Attribute, Attributes, RequestError, Type, Validate, encap, policy};

use super::info::METRICS;
use super::table::{Family, Prefix};
use crate::Request;

pub(crate) const RTA_DST: u16 = 1;
pub(crate) const RTA_SRC: u16 = 2;
pub(crate) const RTA_IIF: u16 = 3;
pub(crate) const RTA_OIF: u16 = 4;
pub(crate) const RTA_GATEWAY: u16 = 5;
pub(crate) const RTA_PRIORITY: u16 = 6;
pub(crate) const RTA_PREFSRC: u16 = 7;
pub(crate) const RTA_METRICS: u16 = 8;
pub(crate) const RTA_MULTIPATH: u16 = 9;
pub(super) const RTA_FLOW: u16 = 11;
pub(crate) const RTA_CACHEINFO: u16 = 12;
pub(crate) const RTA_TABLE: u16 = 15;
pub(crate) const RTA_MARK: u16 = 16;
pub(crate) const RTA_VIA: u16 = 18;
pub(crate) const RTA_PREF: u16 = 20;
pub(crate) const RTA_ENCAP_TYPE: u16 = 21;
pub(crate) const RTA_ENCAP: u16 = 22;
pub(super) const RTA_EXPIRES: u16 = 23;
pub(crate) const RTA_UID: u16 = 25;
pub(crate) const RTA_IP_PROTO: u16 = 27;
pub(crate) const RTA_SPORT: u16 = 28;
pub(crate) const RTA_DPORT: u16 = 29;
pub(crate) const RTA_NH_ID: u16 = 30;
/// Room for every type of attribute that a route has.
pub(crate) const ATTRIBUTES: usize = 32;

const POLICY4: [Type; ATTRIBUTES] = policy(&[
    (RTA_DST, Type::U32),
    (RTA_SRC, Type::U32),
    (RTA_IIF, Type::U32),
    (RTA_OIF, Type::U32),
    (RTA_GATEWAY, Type::U32),
    (RTA_PRIORITY, Type::U32),
    (RTA_PREFSRC, Type::U32),
    (RTA_METRICS, Type::Nested),
    (RTA_MULTIPATH, Type::AtLeast(RTNH as u16)),
    (RTA_FLOW, Type::Unsupported),
    (RTA_TABLE, Type::U32),
    (RTA_MARK, Type::U32),
    (RTA_VIA, Type::Any),
    (RTA_ENCAP_TYPE, Type::U16),
    (RTA_ENCAP, Type::Nested),
    (RTA_UID, Type::U32),
    (RTA_IP_PROTO, Type::U8),
    (RTA_SPORT, Type::U16),
    (RTA_DPORT, Type::U16),
    (RTA_NH_ID, Type::U32),
]);

const POLICY6: [Type; ATTRIBUTES] = policy(&[
    (RTA_DST, Type::Any),
    (RTA_SRC, Type::Any),
    (RTA_IIF, Type::U32),
    (RTA_OIF, Type::U32),
    (RTA_GATEWAY, Type::AtLeast(16)),
    (RTA_PRIORITY, Type::U32),
    (RTA_PREFSRC, Type::AtLeast(16)),
    (RTA_METRICS, Type::Nested),
    (RTA_MULTIPATH, Type::AtLeast(RTNH as u16)),
    (RTA_FLOW, Type::Unsupported),
    (RTA_TABLE, Type::U32),
    (RTA_MARK, Type::U32),
    (RTA_VIA, Type::Any),
    (RTA_PREF, Type::U8),
    (RTA_ENCAP_TYPE, Type::U16),
    (RTA_ENCAP, Type::Nested),
    (RTA_EXPIRES, Type::Unsupported),
    (RTA_UID, Type::U32),
    (RTA_IP_PROTO, Type::U8),
    (RTA_SPORT, Type::U16),
    (RTA_DPORT, Type::U16),
    (RTA_NH_ID, Type::U32),
]);

/// The kernel's own messages are taken as they are.
const REPORTED: [Type; ATTRIBUTES] = policy(&[]);

/// The attributes of routes of a family.
pub(crate) const fn route_policy(family: Family) -> &'static [Type; ATTRIBUTES] {
    match family {
        Family::V4 => &POLICY4,
        Family::V6 => &POLICY6,
    }
}

/// `struct rtmsg`.
pub(crate) const RTMSG: usize = 12;
/// `struct rtnexthop`.
pub(crate) const RTNH: usize = 8;

pub(crate) const RT_TABLE_DEFAULT: u32 = 253;
pub(crate) const RT_TABLE_MAIN: u32 = 254;
pub(crate) const RT_TABLE_LOCAL: u32 = 255;

pub(crate) const RTNH_F_DEAD: u32 = 1;
pub(crate) const RTNH_F_PERVASIVE: u32 = 2;
pub(crate) const RTNH_F_ONLINK: u32 = 4;
pub(crate) const RTNH_F_LINKDOWN: u32 = 16;
pub(crate) const RTM_F_CLONED: u32 = 0x200;

/// `struct rtmsg`, read.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RouteHeader {
    pub dst_len: u8,
    pub src_len: u8,
    pub tos: u8,
    pub table: u8,
    pub protocol: u8,
    pub scope: u8,
    pub kind: u8,
    pub flags: u32,
}

impl RouteHeader {
    pub const fn read(bytes: &[u8; RTMSG]) -> Self {
        let [_, dst_len, src_len, tos, table, protocol, scope, kind, a, b, c, d] = *bytes;
        let flags = u32::from_ne_bytes([a, b, c, d]);
        Self { dst_len, src_len, tos, table, protocol, scope, kind, flags }
    }

    pub const fn write(&self, family: Family) -> [u8; RTMSG] {
        let Self { dst_len, src_len, tos, table, protocol, scope, kind, flags } = *self;
        let [a, b, c, d] = flags.to_ne_bytes();
        [family.number(), dst_len, src_len, tos, table, protocol, scope, kind, a, b, c, d]
    }
}

/// One way as a request gives it.
#[derive(Clone, Debug, Default)]
pub(crate) struct HopConfig<'a> {
    pub oif: u32,
    pub gateway: Option<IpAddr>,
    pub flags: u32,
    pub weight: u16,
    pub encap: Option<(u16, Attribute<'a>)>,
}

/// A route as a request gives it.
#[derive(Clone, Debug)]
pub(crate) struct Config<'a> {
    pub prefix: Prefix,
    pub table: u32,
    pub protocol: u8,
    pub scope: u8,
    pub kind: u8,
    pub metric: u32,
    pub preference: u8,
    pub source: Option<IpAddr>,
    pub metrics: Option<Attribute<'a>>,
    pub nh_id: u32,
    /// The way outside `RTA_MULTIPATH`.
    pub hop: HopConfig<'a>,
    /// The ways inside; `None` without the attribute.
    pub multipath: Option<Vec<HopConfig<'a>>>,
    /// Of a route of the kernel's.
    pub tos: u8,
}

const fn refuse(message: &'static str) -> RequestError {
    RequestError::new(EINVAL, message)
}

impl<'a> Config<'a> {
    /// Reads an `RTM_NEWROUTE` or `RTM_DELROUTE` of a client.
    pub fn parse(request: &Request<'a>, family: Family) -> Result<Self, RequestError> {
        Self::read(request, family, false)
    }

    /// Reads one that the kernel has reported, which has checked it: it has what no client may say, and what
    /// this router does not do.
    pub fn reported(request: &Request<'a>, family: Family) -> Result<Self, RequestError> {
        Self::read(request, family, true)
    }

    /// Reads where a route is that the kernel has reported, and nothing of where it leads.
    pub fn place(request: &Request<'a>, family: Family) -> Result<Self, RequestError> {
        let (header, attributes) = request.parse::<RTMSG, ATTRIBUTES>(&REPORTED, Validate::Liberal)?;
        let header = RouteHeader::read(&header);
        let table = attributes.get(RTA_TABLE).map_or(u32::from(header.table), |table| table.u32());
        Ok(Self {
            prefix: prefix(&header, &attributes, family, true)?,
            table: if table == 0 { RT_TABLE_MAIN } else { table },
            protocol: header.protocol,
            scope: header.scope,
            kind: header.kind,
            metric: attributes.get(RTA_PRIORITY).map_or(0, |metric| metric.u32()),
            preference: 0,
            source: None,
            metrics: None,
            nh_id: 0,
            hop: HopConfig { weight: 1, ..HopConfig::default() },
            multipath: None,
            tos: header.tos,
        })
    }

    fn read(request: &Request<'a>, family: Family, reported: bool) -> Result<Self, RequestError> {
        let policy = if reported { &REPORTED } else { route_policy(family) };
        let (header, attributes) = request.parse::<RTMSG, ATTRIBUTES>(policy, Validate::Liberal)?;
        let header = RouteHeader::read(&header);
        if !reported && family == Family::V4 && header.tos & 3 != 0 {
            return Err(refuse("Invalid dsfield (tos): ECN bits must be 0"));
        }
        if !reported && family == Family::V6 && header.tos != 0 {
            return Err(refuse("Invalid dsfield (tos): option not available for IPv6"));
        }
        if !reported && header.tos != 0 {
            return Err(RequestError::new(EOPNOTSUPP, "Routes by tos are not supported by this router"));
        }
        if !reported && header.kind > libc::RTN_XRESOLVE {
            return Err(refuse("Invalid route type"));
        }
        if family == Family::V6 && header.flags & RTM_F_CLONED != 0 {
            return Err(refuse("Userspace can not set RTF_CACHE"));
        }
        let (gateway, via) = (attributes.get(RTA_GATEWAY), attributes.get(RTA_VIA));
        let nh_id = attributes.get(RTA_NH_ID).map_or(0, |id| id.u32());
        let own = [RTA_OIF, RTA_GATEWAY, RTA_VIA, RTA_MULTIPATH, RTA_ENCAP];
        if !reported && nh_id != 0 && own.into_iter().any(|kind| attributes.get(kind).is_some()) {
            return Err(refuse("Nexthop specification and nexthop id are mutually exclusive"));
        }
        if !reported && family == Family::V6 && via.is_some() {
            return Err(refuse("IPv6 does not support RTA_VIA attribute"));
        }
        let kind = attributes.get(RTA_ENCAP_TYPE).map(|kind| kind.u16());
        if let Some(kind) = kind.filter(|_| !reported) {
            encap::check_type(kind)?;
        }
        let multipath = attributes.get(RTA_MULTIPATH);
        let multipath =
            multipath.map(|multipath| Self::multipath(&multipath, family, reported)).transpose()?;
        if !reported && family == Family::V4 && gateway.is_some() && via.is_some() {
            return Err(refuse("Nexthop configuration can not contain both GATEWAY and VIA"));
        }
        let hop = HopConfig {
            oif: attributes.get(RTA_OIF).map_or(0, |oif| oif.u32()),
            gateway: gateway_of(gateway, via, family)?,
            flags: header.flags,
            weight: 1,
            encap: attributes.get(RTA_ENCAP).map(|encap| (kind.unwrap_or(0), encap)),
        };
        let first: Option<&HopConfig<'_>> = multipath.as_ref().and_then(|hops| hops.first());
        if let Some(first) = first.filter(|_| !reported && family == Family::V4) {
            // Linux: `fib_get_nhs`.
            if hop.oif != 0 && hop.oif != first.oif {
                return Err(refuse("Nexthop device index does not match RTA_OIF"));
            }
            if hop.gateway.is_some() && hop.gateway != first.gateway {
                return Err(refuse("Nexthop gateway does not match RTA_GATEWAY or RTA_VIA"));
            }
        }
        let table = attributes.get(RTA_TABLE).map_or(u32::from(header.table), |table| table.u32());
        let preference = attributes.get(RTA_PREF).map(|preference| preference.u8());
        let source = attributes.get(RTA_PREFSRC).and_then(|source| source.address(family.number()));
        Ok(Self {
            prefix: prefix(&header, &attributes, family, reported)?,
            // IPv6 has no such default in Linux, but its table 0 is the main table there too.
            table: if table == 0 { RT_TABLE_MAIN } else { table },
            protocol: header.protocol,
            scope: header.scope,
            kind: header.kind,
            metric: attributes.get(RTA_PRIORITY).map_or(0, |metric| metric.u32()),
            preference: preference.filter(|preference| matches!(preference, 1 | 3)).unwrap_or(0),
            source: source.filter(|source| !source.is_unspecified()),
            metrics: attributes.get(RTA_METRICS),
            nh_id,
            hop,
            multipath,
            tos: header.tos,
        })
    }

    fn multipath(
        multipath: &Attribute<'a>,
        family: Family,
        reported: bool,
    ) -> Result<Vec<HopConfig<'a>>, RequestError> {
        let policy = if reported { &REPORTED } else { route_policy(family) };
        let mut hops = Vec::new();
        let (mut rest, mut offset) = (multipath.value, multipath.offset as usize + 4);
        while !rest.is_empty() {
            let Some((fixed, _)) = rest.split_first_chunk::<RTNH>() else {
                return Err(refuse("Invalid nexthop configuration - extra data after nexthop"));
            };
            let [a, b, flags, weight, oif @ ..] = *fixed;
            let len = usize::from(u16::from_ne_bytes([a, b]));
            let Some(inside) = rest.get(RTNH..len).filter(|_| len >= RTNH) else {
                return Err(refuse("Invalid nexthop configuration - extra data after nexthop"));
            };
            if !reported && flags & (RTNH_F_DEAD | RTNH_F_LINKDOWN) as u8 != 0 {
                return Err(refuse("Invalid flags for nexthop - can not contain DEAD or LINKDOWN"));
            }
            let attributes: Attributes<'a, ATTRIBUTES> =
                Attributes::parse(policy, inside, offset + RTNH, Validate::Liberal)?;
            let (gateway, via) = (attributes.get(RTA_GATEWAY), attributes.get(RTA_VIA));
            if !reported && gateway.is_some() && via.is_some() {
                return Err(refuse("Nexthop configuration can not contain both GATEWAY and VIA"));
            }
            let kind = attributes.get(RTA_ENCAP_TYPE).map(|kind| kind.u16());
            if let Some(kind) = kind.filter(|_| !reported) {
                encap::check_type(kind)?;
            }
            hops.push(HopConfig {
                oif: u32::from_ne_bytes(oif),
                gateway: gateway_of(gateway, via, family)?,
                flags: u32::from(flags),
                weight: u16::from(weight) + 1,
                encap: attributes.get(RTA_ENCAP).map(|encap| (kind.unwrap_or(0), encap)),
            });
            let step = len.next_multiple_of(4);
            rest = rest.get(step..).unwrap_or_default();
            offset += step;
        }
        Ok(hops)
    }
}

/// The destination. Linux refuses an IPv4 prefix with bits behind its length, and cuts an IPv6 one.
fn prefix(
    header: &RouteHeader,
    attributes: &Attributes<'_, ATTRIBUTES>,
    family: Family,
    reported: bool,
) -> Result<Prefix, RequestError> {
    if header.dst_len > family.bits() {
        return Err(refuse("Invalid prefix length"));
    }
    let mut bytes = [0; 16];
    if let Some(destination) = attributes.get(RTA_DST) {
        let len = match family {
            Family::V4 => 4,
            Family::V6 => usize::from(header.dst_len.div_ceil(8)),
        };
        let given = destination.value.get(..len).ok_or(RequestError::errno(EINVAL))?;
        bytes.iter_mut().zip(given).for_each(|(to, from)| *to = *from);
    }
    let bits = u128::from_be_bytes(bytes);
    let prefix = Prefix::new(bits, header.dst_len);
    if family == Family::V4 && prefix.bits != bits {
        return Err(refuse("Invalid prefix for given prefix length"));
    }
    if !reported && header.src_len != 0 && family == Family::V6 {
        return Err(refuse("Specifying source address requires IPV6_SUBTREES to be enabled"));
    }
    Ok(prefix)
}

/// `RTA_GATEWAY` or `RTA_VIA`. Linux: `fib_gw_from_via`.
fn gateway_of(
    gateway: Option<Attribute<'_>>,
    via: Option<Attribute<'_>>,
    family: Family,
) -> Result<Option<IpAddr>, RequestError> {
    if let Some(gateway) = gateway {
        let address =
            gateway.address(family.number()).ok_or(refuse("Invalid IPv6 address in RTA_GATEWAY"))?;
        return Ok(Some(address).filter(|address| family == Family::V6 || !address.is_unspecified()));
    }
    let Some(via) = via else { return Ok(None) };
    let Some((head, address)) = via.value.split_first_chunk::<2>() else {
        return Err(via.invalid("Invalid attribute length for RTA_VIA"));
    };
    let value = Attribute { value: address, ..via };
    match i32::from(u16::from_ne_bytes(*head)) {
        libc::AF_INET if address.len() != 4 => Err(refuse("Invalid IPv4 address in RTA_VIA")),
        libc::AF_INET6 if address.len() != 16 => Err(refuse("Invalid IPv6 address in RTA_VIA")),
        libc::AF_INET => Ok(Some(IpAddr::V4(value.ipv4())).filter(|address| !address.is_unspecified())),
        libc::AF_INET6 => Ok(Some(IpAddr::V6(value.ipv6()))),
        _ => Err(refuse("Unsupported address family in RTA_VIA")),
    }
}

/// Reads `RTA_METRICS`. Linux: `ip_metrics_convert`.
pub(crate) fn metrics(attribute: Option<Attribute<'_>>) -> Result<Option<Box<[u32; METRICS]>>, RequestError> {
    const ADVMSS: u16 = 8;
    const MTU: u16 = 2;
    const HOPLIMIT: u16 = 10;
    const FEATURES: u16 = 12;
    const CC_ALGO: u16 = 16;
    let Some(attribute) = attribute else { return Ok(None) };
    let mut metrics = Box::new([0; METRICS]);
    for metric in attribute.nested().filter(|metric| metric.kind != 0) {
        if metric.kind == CC_ALGO {
            // Of the connections of the host, which this router has none of.
            return Err(metric.invalid("Unknown tcp congestion algorithm"));
        }
        let slot = metrics.get_mut(usize::from(metric.kind) - 1).ok_or(refuse("Invalid metric type"))?;
        if metric.value.len() != 4 {
            return Err(metric.invalid("Invalid attribute in metrics"));
        }
        *slot = match metric.kind {
            ADVMSS => metric.u32().min(65535 - 40),
            MTU => metric.u32().min(65535 - 15),
            HOPLIMIT => metric.u32().min(255),
            FEATURES if metric.u32() & !0x1f != 0 => {
                return Err(refuse("Unknown flag set in feature mask in metrics attribute"));
            }
            _ => metric.u32(),
        };
    }
    Ok(Some(metrics).filter(|metrics| metrics.iter().any(|&value| value != 0)))
}

/// Whether an encapsulation of a type is one that the router makes itself.
pub(crate) fn makes_encap(kind: u16) -> bool {
    encap::check_type(kind).is_ok()
}
