//! `IFLA_INFO_DATA` of `vxlan`: frames in UDP. Linux: `drivers/net/vxlan/vxlan_core.c`.

use std::net::{IpAddr, Ipv6Addr};

use libc::{EINVAL, EOPNOTSUPP, ERANGE};

use super::{Kind, Tunnel};
use crate::RequestError;
use crate::attribute::{Attribute, Attributes, Type, Validate, policy};
use crate::iptunnel::{self, IpTunnel};
use crate::reply::Reply;
use underpass_packet::ipv6::{LINK_SCOPE, group_scope};

const ID: u16 = 1;
const GROUP: u16 = 2;
const LINK: u16 = 3;
const LOCAL: u16 = 4;
const TTL: u16 = 5;
const TOS: u16 = 6;
const LEARNING: u16 = 7;
const AGEING: u16 = 8;
const LIMIT: u16 = 9;
const PORT_RANGE: u16 = 10;
const PROXY: u16 = 11;
const RSC: u16 = 12;
const L2MISS: u16 = 13;
const L3MISS: u16 = 14;
const PORT: u16 = 15;
const GROUP6: u16 = 16;
const LOCAL6: u16 = 17;
const UDP_CSUM: u16 = 18;
const UDP_ZERO_CSUM6_TX: u16 = 19;
const UDP_ZERO_CSUM6_RX: u16 = 20;
const REMCSUM_TX: u16 = 21;
const REMCSUM_RX: u16 = 22;
const GBP: u16 = 23;
const REMCSUM_NOPARTIAL: u16 = 24;
const COLLECT_METADATA: u16 = 25;
const LABEL: u16 = 26;
const GPE: u16 = 27;
const TTL_INHERIT: u16 = 28;
const DF: u16 = 29;
const VNIFILTER: u16 = 30;
const LOCALBYPASS: u16 = 31;
const LABEL_POLICY: u16 = 32;

/// Room for every attribute.
const ATTRIBUTES: usize = LABEL_POLICY as usize + 1;

const POLICY: [Type; ATTRIBUTES] = policy(&[
    (ID, Type::U32),
    (GROUP, Type::Exact(4)),
    (GROUP6, Type::Exact(16)),
    (LINK, Type::U32),
    (LOCAL, Type::Exact(4)),
    (LOCAL6, Type::Exact(16)),
    (TOS, Type::U8),
    (TTL, Type::U8),
    (LABEL, Type::U32),
    (LEARNING, Type::U8),
    (AGEING, Type::U32),
    (LIMIT, Type::U32),
    (PORT_RANGE, Type::Exact(4)),
    (PROXY, Type::U8),
    (RSC, Type::U8),
    (L2MISS, Type::U8),
    (L3MISS, Type::U8),
    (COLLECT_METADATA, Type::U8),
    (PORT, Type::U16),
    (UDP_CSUM, Type::U8),
    (UDP_ZERO_CSUM6_TX, Type::U8),
    (UDP_ZERO_CSUM6_RX, Type::U8),
    (REMCSUM_TX, Type::U8),
    (REMCSUM_RX, Type::U8),
    (GBP, Type::Flag),
    (GPE, Type::Flag),
    (REMCSUM_NOPARTIAL, Type::Flag),
    (TTL_INHERIT, Type::Flag),
    (DF, Type::U8),
    (VNIFILTER, Type::U8),
    (LOCALBYPASS, Type::U8),
    (LABEL_POLICY, Type::U32),
]);

type Data<'a> = Attributes<'a, ATTRIBUTES>;

/// `VXLAN_N_VID`: there are so many networks.
const NETWORKS: u32 = 1 << 24;

/// What makes a device a VXLAN, but for addresses, TTL, TOS and the link below.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Vxlan {
    /// The network identifier, of 24 bits.
    pub vni: u32,
    /// The UDP port that it receives at and sends to.
    pub port: u16,
    /// The lowest and the highest UDP source port; both 0: those of the host.
    pub source_ports: (u16, u16),
    /// Whether it learns stations.
    pub learning: bool,
    /// After how many seconds a station is forgotten.
    pub ageing: u32,
    /// The flow label over IPv6.
    pub label: u32,
    /// Whether the TTL is that of the packet inside.
    pub ttl_inherit: bool,
    /// Whether Don't Fragment is set over IPv4.
    pub dont_fragment: bool,
    /// Whether there is a UDP checksum over IPv4.
    pub checksum: bool,
    /// Whether there is none over IPv6.
    pub unsummed6: bool,
    /// Whether datagrams over IPv6 without one are taken.
    pub takes_unsummed6: bool,
}

impl Default for Vxlan {
    /// One without a word but its network. Linux: `vxlan_dev_configure`, `vxlan_nl2conf`.
    fn default() -> Self {
        Self {
            vni: 0,
            port: 8472,
            source_ports: (0, 0),
            learning: true,
            ageing: 300,
            label: 0,
            ttl_inherit: false,
            dont_fragment: false,
            checksum: true,
            unsummed6: false,
            takes_unsummed6: false,
        }
    }
}

impl Vxlan {
    /// What metadata make of an external device. Linux: `vxlan_xmit_one`.
    pub const fn given(self, given: &IpTunnel) -> Self {
        let checksum = given.flags & iptunnel::CSUM != 0;
        Self {
            vni: given.id as u32 & (NETWORKS - 1),
            port: if given.port == 0 { self.port } else { given.port },
            label: 0,
            ttl_inherit: false,
            dont_fragment: given.flags & iptunnel::DONT_FRAGMENT != 0,
            checksum,
            unsummed6: !checksum,
            ..self
        }
    }
}

/// Reads `IFLA_INFO_DATA` of a device that is to be made. Linux: `vxlan_validate`, `vxlan_nl2conf`.
///
/// # Errors
/// Those of Linux; `EOPNOTSUPP` for what the router does not have: group policies, other protocols inside,
/// remote checksums, ARP proxies and the like.
pub fn create(data: Option<&Attribute<'_>>) -> Result<Tunnel, RequestError> {
    let missing = "Required attributes not provided to perform the operation";
    let data = data.ok_or(RequestError::new(EINVAL, missing))?;
    let first = Tunnel { vxlan: Some(Vxlan::default()), ..Tunnel::new(Kind::Vxlan) };
    read(&first, data, false)
}

/// What a device becomes by `IFLA_INFO_DATA`. Linux: `vxlan_changelink`.
///
/// # Errors
/// As of [`create`], and `EOPNOTSUPP` for what cannot be changed.
pub fn change(old: &Tunnel, data: &Attribute<'_>) -> Result<Tunnel, RequestError> {
    read(old, data, true)
}

fn read(old: &Tunnel, data: &Attribute<'_>, changes: bool) -> Result<Tunnel, RequestError> {
    let data = data.parse_nested(&POLICY, Validate::Liberal)?;
    let mut tunnel = *old;
    let mut vxlan = old.vxlan.unwrap_or_default();
    let range = data.get(PORT_RANGE).and_then(|range| range.value.first_chunk::<4>().copied());
    let range = range.map(|[a, b, c, d]| (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])));
    if let Some(id) = data.get(ID).filter(|id| id.u32() >= NETWORKS) {
        return Err(RequestError::new(ERANGE, "VXLAN ID must be lower than 16777216").at(id.offset));
    }
    if range.is_some_and(|(first, last)| last < first) {
        return Err(at(&data, PORT_RANGE, RequestError::new(EINVAL, "Invalid source port range")));
    }
    if let Some(id) = data.get(ID).map(|id| id.u32()) {
        if changes && id != vxlan.vni {
            return Err(at(&data, ID, RequestError::new(EOPNOTSUPP, "Cannot change VNI")));
        }
        vxlan.vni = id;
    }
    let fixed = |kind: u16, text: &'static str| match data.get(kind) {
        Some(attribute) if changes => Err(RequestError::new(EOPNOTSUPP, text).at(attribute.offset)),
        _ => Ok(()),
    };
    let flag = |kind: u16, fixed_text: &'static str, now: &mut bool| {
        fixed(kind, fixed_text)?;
        *now = data.get(kind).map_or(*now, |flag| flag.u8() != 0);
        Ok(())
    };
    let absent = |kind: u16, fixed_text: &'static str, text: &'static str| match data.get(kind) {
        None => Ok(()),
        Some(_) if changes => fixed(kind, fixed_text),
        // A flag has no value, and says yes by being there.
        Some(on) if !on.value.is_empty() && on.value.iter().all(|byte| *byte == 0) => Ok(()),
        Some(on) => Err(RequestError::new(EOPNOTSUPP, text).at(on.offset)),
    };
    fixed(COLLECT_METADATA, "vxlan: cannot change COLLECT_METADATA flag")?;
    tunnel.external |= data.get(COLLECT_METADATA).is_some_and(|external| external.u8() != 0);
    tunnel.link = data.get(LINK).map_or(tunnel.link, |link| link.u32());
    addresses(&mut tunnel, &data, changes)?;
    tunnel.tos = data.get(TOS).map_or(tunnel.tos, |tos| tos.u8());
    tunnel.ttl = data.get(TTL).map_or(tunnel.ttl, |ttl| ttl.u8());
    fixed(TTL_INHERIT, "vxlan: cannot change TTL_INHERIT flag")?;
    vxlan.ttl_inherit |= data.get(TTL_INHERIT).is_some();
    vxlan.label = data.get(LABEL).map_or(vxlan.label, |label| label.be32() & 0xf_ffff);
    if let Some(policy) = data.get(LABEL_POLICY).filter(|policy| policy.u32() != 0) {
        let text = "a flow label that is inherited is not supported by this router";
        return Err(RequestError::new(EOPNOTSUPP, text).at(policy.offset));
    }
    vxlan.learning = data.get(LEARNING).map_or(vxlan.learning, |flag| flag.u8() != 0);
    vxlan.ageing = data.get(AGEING).map_or(vxlan.ageing, |ageing| ageing.u32());
    absent(PROXY, "vxlan: cannot change PROXY flag", "proxy of a VXLAN is not supported by this router")?;
    absent(RSC, "vxlan: cannot change RSC flag", "rsc of a VXLAN is not supported by this router")?;
    absent(L2MISS, "vxlan: cannot change L2MISS flag", "l2miss of a VXLAN is not supported by this router")?;
    absent(L3MISS, "vxlan: cannot change L3MISS flag", "l3miss of a VXLAN is not supported by this router")?;
    absent(LIMIT, "Cannot change limit", "maxaddress of a VXLAN is not supported by this router")?;
    fixed(PORT_RANGE, "Cannot change port range")?;
    vxlan.source_ports = range.unwrap_or(vxlan.source_ports);
    fixed(PORT, "Cannot change port")?;
    vxlan.port = data.get(PORT).map_or(vxlan.port, |port| port.be16());
    flag(UDP_CSUM, "Cannot change UDP_CSUM flag", &mut vxlan.checksum)?;
    if let Some(bypass) = data.get(LOCALBYPASS).filter(|bypass| bypass.u8() == 0) {
        let text = "nolocalbypass of a VXLAN is not supported by this router";
        return Err(RequestError::new(EOPNOTSUPP, text).at(bypass.offset));
    }
    flag(UDP_ZERO_CSUM6_TX, "vxlan: cannot change UDP_ZERO_CSUM6_TX flag", &mut vxlan.unsummed6)?;
    flag(UDP_ZERO_CSUM6_RX, "vxlan: cannot change UDP_ZERO_CSUM6_RX flag", &mut vxlan.takes_unsummed6)?;
    let remote_checksum = "remote checksums of a VXLAN are not supported by this router";
    absent(REMCSUM_TX, "vxlan: cannot change REMCSUM_TX flag", remote_checksum)?;
    absent(REMCSUM_RX, "vxlan: cannot change REMCSUM_RX flag", remote_checksum)?;
    absent(GBP, "vxlan: cannot change GBP flag", "gbp of a VXLAN is not supported by this router")?;
    absent(GPE, "vxlan: cannot change GPE flag", "gpe of a VXLAN is not supported by this router")?;
    absent(REMCSUM_NOPARTIAL, "vxlan: cannot change REMCSUM_NOPARTIAL flag", remote_checksum)?;
    if let Some(df) = data.get(DF) {
        vxlan.dont_fragment = match df.u8() {
            0 => false,
            1 => true,
            2 => {
                let text = "df inherit of a VXLAN is not supported by this router";
                return Err(RequestError::new(EOPNOTSUPP, text).at(df.offset));
            }
            _ => return Err(RequestError::new(EINVAL, "Invalid DF attribute").at(df.offset)),
        };
    }
    absent(VNIFILTER, "vxlan: cannot change flag", "vnifilter of a VXLAN is not supported by this router")?;
    if tunnel.external && vxlan.vni != 0 {
        // Linux takes nothing that comes in for it: `vxlan_vs_find_vni`.
        let text = "an external VXLAN with a network of its own is not supported by this router";
        return Err(at(&data, ID, RequestError::new(EOPNOTSUPP, text)));
    }
    if tunnel.external && vxlan.learning {
        let text = "an external VXLAN that learns stations is not supported by this router";
        return Err(at(&data, LEARNING, RequestError::new(EOPNOTSUPP, text)));
    }
    if vxlan.label != 0 && tunnel.remote.is_ipv4() {
        let text = "Label attribute only applies to IPv6 VXLAN devices";
        return Err(RequestError::new(EINVAL, text));
    }
    if vxlan.port == 0 {
        vxlan.port = 8472;
    }
    if vxlan.ageing == 0 {
        vxlan.ageing = 300;
    }
    tunnel.vxlan = Some(vxlan);
    Ok(tunnel)
}

fn at(data: &Data<'_>, kind: u16, error: RequestError) -> RequestError {
    data.get(kind).map_or(error.clone(), |attribute| error.at(attribute.offset))
}

/// Reads both ends, which are of one family. Linux: `vxlan_nl2conf`, `vxlan_config_validate`.
fn addresses(tunnel: &mut Tunnel, data: &Data<'_>, changes: bool) -> Result<(), RequestError> {
    let read = |four: u16, six: u16, now: IpAddr, text: &'static str| {
        let given = match (data.get(four), data.get(six)) {
            (Some(address), _) => Some(IpAddr::V4(address.ipv4())),
            (None, Some(address)) => Some(IpAddr::V6(address.ipv6())),
            (None, None) => None,
        };
        match given {
            Some(given) if changes && given.is_ipv4() != now.is_ipv4() => {
                Err(RequestError::new(EOPNOTSUPP, text))
            }
            given => Ok(given),
        }
    };
    let remote = read(GROUP, GROUP6, tunnel.remote, "New group address family does not match old group")?;
    let local = read(LOCAL, LOCAL6, tunnel.local, "New local address family does not match old")?;
    let six = [remote, local].into_iter().flatten().any(|address| address.is_ipv6());
    if let (Some(remote), Some(local)) = (remote, local)
        && remote.is_ipv4() != local.is_ipv4()
    {
        let text = "Local and remote address must be from the same family";
        return Err(RequestError::new(EINVAL, text));
    }
    if six && !changes {
        let any = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
        (tunnel.local, tunnel.remote) = (any, any);
    }
    tunnel.remote = remote.unwrap_or(tunnel.remote);
    tunnel.local = local.unwrap_or(tunnel.local);
    if tunnel.local.is_multicast() {
        return Err(RequestError::new(EINVAL, "Local address cannot be multicast"));
    }
    let near = |address: IpAddr| matches!(address, IpAddr::V6(six) if six.is_unicast_link_local());
    // A group of the link goes with all addresses.
    let fits = match tunnel.remote {
        IpAddr::V6(group) if group_scope(group) == Some(LINK_SCOPE) => true,
        remote => remote.is_unspecified() || near(tunnel.local) == near(remote),
    };
    // To an external one Linux asks no more of its ends.
    if !tunnel.external && !fits {
        return Err(RequestError::new(EINVAL, "Invalid combination of local and remote address scopes"));
    }
    if !tunnel.external && near(tunnel.local) && tunnel.link == 0 {
        let text = "Local interface required for link-local local/remote addresses";
        return Err(RequestError::new(EINVAL, text));
    }
    if tunnel.remote.is_multicast() && tunnel.link == 0 {
        return Err(RequestError::new(EINVAL, "Local interface required for multicast remote group"));
    }
    if tunnel.remote.is_multicast() && tunnel.external {
        let text = "a group of an external VXLAN is not supported by this router";
        return Err(RequestError::new(EOPNOTSUPP, text));
    }
    if near(tunnel.local) || near(tunnel.remote) {
        let text = "link-local ends of a VXLAN are not supported by this router";
        return Err(RequestError::new(EOPNOTSUPP, text));
    }
    Ok(())
}

/// Writes what is in `IFLA_INFO_DATA`. Linux: `vxlan_fill_info`.
pub fn write(reply: &mut Reply<'_>, tunnel: &Tunnel, vxlan: &Vxlan) {
    let number = |address: IpAddr, four: u16, six: u16| if address.is_ipv4() { four } else { six };
    reply.u32(ID, vxlan.vni);
    if !tunnel.remote.is_unspecified() {
        reply.address(number(tunnel.remote, GROUP, GROUP6), tunnel.remote);
    }
    if tunnel.link != 0 {
        reply.u32(LINK, tunnel.link);
    }
    if !tunnel.local.is_unspecified() {
        reply.address(number(tunnel.local, LOCAL, LOCAL6), tunnel.local);
    }
    reply.u8(TTL, tunnel.ttl);
    reply.u8(TTL_INHERIT, vxlan.ttl_inherit.into());
    reply.u8(TOS, tunnel.tos);
    reply.u8(DF, vxlan.dont_fragment.into());
    reply.be32(LABEL, vxlan.label);
    reply.u32(LABEL_POLICY, 0);
    reply.u8(LEARNING, vxlan.learning.into());
    for kind in [PROXY, RSC, L2MISS, L3MISS] {
        reply.u8(kind, 0);
    }
    reply.u8(COLLECT_METADATA, tunnel.external.into());
    reply.u32(AGEING, vxlan.ageing);
    reply.u32(LIMIT, 0);
    reply.be16(PORT, vxlan.port);
    reply.u8(UDP_CSUM, vxlan.checksum.into());
    reply.u8(UDP_ZERO_CSUM6_TX, vxlan.unsummed6.into());
    reply.u8(UDP_ZERO_CSUM6_RX, vxlan.takes_unsummed6.into());
    reply.u8(REMCSUM_TX, 0);
    reply.u8(REMCSUM_RX, 0);
    reply.u8(LOCALBYPASS, 1);
    let (first, last) = vxlan.source_ports;
    reply.attribute(PORT_RANGE, &[first.to_be_bytes(), last.to_be_bytes()].concat());
    reply.u8(VNIFILTER, 0);
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use proptest::prelude::*;

    use super::*;
    use crate::encap::tests::{as_attribute, written};

    prop_compose! {
        fn devices()(
            (vni, port, ageing, label) in (0..NETWORKS, 1_u16.., 1_u32.., 0_u32..1 << 20),
            (first, last) in any::<(u16, u16)>(),
            switches: [bool; 5],
            external: bool,
            (link, ttl, tos) in any::<(u32, u8, u8)>(),
            ends in any::<[u32; 2]>(),
            six: bool,
        ) -> Tunnel {
            let [learning, dont_fragment, checksum, unsummed6, takes_unsummed6] = switches;
            let end = |bits: u32| match six {
                true => IpAddr::V6(Ipv6Addr::from_bits(0x2001_0db8 << 96 | u128::from(bits))),
                // Neither a group nor a link-local one of IPv6.
                false => IpAddr::V4(Ipv4Addr::from_bits(bits & 0x7fff_ffff)),
            };
            let [local, remote] = ends.map(end);
            let vxlan = Vxlan {
                vni: if external { 0 } else { vni },
                port,
                source_ports: (first.min(last), first.max(last)),
                learning: learning && !external,
                ageing,
                label: if six { label } else { 0 },
                ttl_inherit: false,
                dont_fragment,
                checksum,
                unsummed6,
                takes_unsummed6,
            };
            let base = Tunnel { external, ..Tunnel::new(Kind::Vxlan) };
            Tunnel { link, local, remote, ttl, tos, vxlan: Some(vxlan), ..base }
        }
    }

    /// What is shown, as a request that says the same: a flag that says no is not there.
    fn as_request(tunnel: &Tunnel) -> Vec<u8> {
        let shown = written(|reply| write(reply, tunnel, &tunnel.vxlan.unwrap()));
        let data = as_attribute(&shown);
        let said = || data.nested().filter(|said| said.kind != TTL_INHERIT);
        written(|reply| said().for_each(|said| reply.attribute(said.kind, said.value)))
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(tunnel in devices()) {
            let bytes = as_request(&tunnel);
            prop_assert_eq!(create(Some(&as_attribute(&bytes))), Ok(tunnel));
        }

        #[test]
        fn any_bytes_are_read_or_refused(tunnel in devices(), bytes: Vec<u8>) {
            let _ = create(Some(&as_attribute(&bytes)));
            let _ = change(&tunnel, &as_attribute(&bytes));
        }
    }

    type Request<'a> = &'a dyn Fn(&mut Reply<'_>);

    /// Linux 6.12: `drivers/net/vxlan/vxlan_core.c`, and what `ip` shows of it.
    #[test]
    fn what_linux_refuses() {
        let make = |write: Request<'_>| {
            let bytes = written(write);
            let error = create(Some(&as_attribute(&bytes))).unwrap_err();
            (error.errno, error.message.unwrap_or_default().into_owned())
        };
        let old = create(Some(&as_attribute(&written(|reply| reply.u32(ID, 7))))).unwrap();
        let turn = |write: Request<'_>| {
            let bytes = written(write);
            let error = change(&old, &as_attribute(&bytes)).unwrap_err();
            (error.errno, error.message.unwrap_or_default().into_owned())
        };
        assert_eq!(make(&|reply| reply.u32(ID, NETWORKS)).0, ERANGE);
        assert_eq!(
            make(&|reply| reply.attribute(PORT_RANGE, &[0, 100, 0, 50])),
            (EINVAL, "Invalid source port range".into())
        );
        let group = |reply: &mut Reply<'_>| reply.attribute(GROUP, &[239, 1, 1, 1]);
        let by_no_link = (EINVAL, "Local interface required for multicast remote group".into());
        assert_eq!(make(&group), by_no_link);
        let scopes = |reply: &mut Reply<'_>| reply.address(GROUP6, "fe80::1".parse().unwrap());
        assert_eq!(make(&scopes), (EINVAL, "Invalid combination of local and remote address scopes".into()));
        assert_eq!(turn(&|reply| reply.u32(ID, 8)), (EOPNOTSUPP, "Cannot change VNI".into()));
        assert_eq!(turn(&|reply| reply.be16(PORT, 8)), (EOPNOTSUPP, "Cannot change port".into()));
        assert_eq!(turn(&|reply| reply.u8(UDP_CSUM, 0)), (EOPNOTSUPP, "Cannot change UDP_CSUM flag".into()));
        assert_eq!(turn(&|reply| reply.u8(PROXY, 1)), (EOPNOTSUPP, "vxlan: cannot change PROXY flag".into()));
        assert_eq!(
            turn(&|reply| reply.be32(LABEL, 5)),
            (EINVAL, "Label attribute only applies to IPv6 VXLAN devices".into())
        );
        let six = |reply: &mut Reply<'_>| reply.address(GROUP6, "2001:db8::1".parse().unwrap());
        assert_eq!(turn(&six), (EOPNOTSUPP, "New group address family does not match old group".into()));
    }

    /// What the router does not have is refused, and never ignored.
    #[test]
    fn what_the_router_refuses() {
        for kind in [PROXY, RSC, L2MISS, L3MISS, REMCSUM_TX, REMCSUM_RX, VNIFILTER] {
            let bytes = written(|reply| reply.u8(kind, 1));
            assert_eq!(create(Some(&as_attribute(&bytes))).unwrap_err().errno, EOPNOTSUPP, "{kind}");
        }
        for kind in [GBP, GPE, REMCSUM_NOPARTIAL] {
            let bytes = written(|reply| reply.flag(kind));
            assert_eq!(create(Some(&as_attribute(&bytes))).unwrap_err().errno, EOPNOTSUPP, "{kind}");
        }
        let external = |own: Request<'_>| {
            let bytes = written(|reply| {
                reply.u8(COLLECT_METADATA, 1);
                own(reply);
            });
            create(Some(&as_attribute(&bytes))).map_err(|error| error.errno)
        };
        assert_eq!(external(&|reply| reply.u8(LEARNING, 1)), Err(EOPNOTSUPP));
        let networked = |reply: &mut Reply<'_>| {
            reply.u8(LEARNING, 0);
            reply.u32(ID, 7);
        };
        assert_eq!(external(&networked), Err(EOPNOTSUPP));
        let near = |reply: &mut Reply<'_>| {
            reply.u8(LEARNING, 0);
            reply.address(LOCAL6, "fe80::1".parse().unwrap());
        };
        assert_eq!(external(&near), Err(EOPNOTSUPP));
        assert!(external(&|reply| reply.u8(LEARNING, 0)).unwrap().external);
        let group = |reply: &mut Reply<'_>| {
            reply.u8(LEARNING, 0);
            reply.u32(LINK, 3);
            reply.attribute(GROUP, &[239, 1, 1, 1]);
        };
        assert_eq!(external(&group), Err(EOPNOTSUPP));
    }
}
