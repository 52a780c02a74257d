//! `IFLA_INFO_DATA` of `geneve`: frames, or packets, in UDP. Linux: `drivers/net/geneve.c`.

use std::net::{IpAddr, Ipv6Addr};

use libc::{EINVAL, EOPNOTSUPP, ERANGE};

use super::{Kind, Tunnel};
use crate::RequestError;
use crate::attribute::{Attribute, Attributes, Type, Validate, policy};
use crate::iptunnel::{self, IpTunnel};
use crate::reply::Reply;

const ID: u16 = 1;
const REMOTE: u16 = 2;
const TTL: u16 = 3;
const TOS: u16 = 4;
const PORT: u16 = 5;
const COLLECT_METADATA: u16 = 6;
const REMOTE6: u16 = 7;
const UDP_CSUM: u16 = 8;
const UDP_ZERO_CSUM6_TX: u16 = 9;
const UDP_ZERO_CSUM6_RX: u16 = 10;
const LABEL: u16 = 11;
const TTL_INHERIT: u16 = 12;
const DF: u16 = 13;
const INNER_PROTO_INHERIT: u16 = 14;

/// Room for every attribute.
const ATTRIBUTES: usize = INNER_PROTO_INHERIT as usize + 1;

const POLICY: [Type; ATTRIBUTES] = policy(&[
    (ID, Type::U32),
    (REMOTE, Type::Exact(4)),
    (REMOTE6, Type::Exact(16)),
    (TTL, Type::U8),
    (TOS, Type::U8),
    (LABEL, Type::U32),
    (PORT, Type::U16),
    (COLLECT_METADATA, Type::Flag),
    (UDP_CSUM, Type::U8),
    (UDP_ZERO_CSUM6_TX, Type::U8),
    (UDP_ZERO_CSUM6_RX, Type::U8),
    (TTL_INHERIT, Type::U8),
    (DF, Type::U8),
    (INNER_PROTO_INHERIT, Type::Flag),
]);

type Data<'a> = Attributes<'a, ATTRIBUTES>;

/// `GENEVE_N_VID`: there are so many networks.
const NETWORKS: u32 = 1 << 24;

/// Don't Fragment over IPv4.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DontFragment {
    /// Never.
    Unset,
    /// Always.
    Set,
    /// As the frame inside has it: IPv4 by its own, IPv6 always.
    Inherit,
}

/// What makes a device one of Geneve, but for its remote address, TTL and TOS. Whether frames are inside, or packets, is
/// its [`Kind`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Geneve {
    /// The network identifier, of 24 bits.
    pub vni: u32,
    /// The UDP port that it receives at and sends to.
    pub port: u16,
    /// The flow label over IPv6.
    pub label: u32,
    /// Whether the TTL is that of the packet inside, whatever else is said of it.
    pub ttl_inherit: bool,
    /// Don't Fragment over IPv4.
    pub dont_fragment: DontFragment,
    /// Whether there is a UDP checksum.
    pub checksum: bool,
    /// Whether datagrams over IPv6 without one are taken.
    pub takes_unsummed6: bool,
}

impl Default for Geneve {
    /// One without a word but its network. Linux: `geneve_newlink`.
    fn default() -> Self {
        Self {
            vni: 0,
            port: 6081,
            label: 0,
            ttl_inherit: false,
            dont_fragment: DontFragment::Unset,
            checksum: false,
            takes_unsummed6: true,
        }
    }
}

impl Geneve {
    /// What metadata make of an external device. Linux: `geneve_xmit_skb`, which sends to the device's own port.
    pub const fn given(self, given: &IpTunnel) -> Self {
        let whole = given.flags & iptunnel::DONT_FRAGMENT != 0;
        Self {
            vni: given.id as u32 & (NETWORKS - 1),
            label: 0,
            ttl_inherit: false,
            dont_fragment: if whole { DontFragment::Set } else { DontFragment::Unset },
            checksum: given.flags & iptunnel::CSUM != 0,
            ..self
        }
    }
}

/// Reads `IFLA_INFO_DATA` of a device that is to be made. Linux: `geneve_validate`, `geneve_nl2info`.
///
/// # Errors
/// Those of Linux; `EOPNOTSUPP` for what the router does not have: a device with neither metadata nor a remote address.
pub fn create(data: Option<&Attribute<'_>>) -> Result<Tunnel, RequestError> {
    let missing = "Not enough attributes provided to perform the operation";
    let data = data.ok_or(RequestError::new(EINVAL, missing))?;
    let first = Tunnel { geneve: Some(Geneve::default()), ..Tunnel::new(Kind::Geneve) };
    read(&first, data, false)
}

/// What a device becomes by `IFLA_INFO_DATA`. Linux: `geneve_changelink`.
///
/// # Errors
/// As of [`create`], and `EOPNOTSUPP` for what cannot be changed.
pub fn change(old: &Tunnel, data: &Attribute<'_>) -> Result<Tunnel, RequestError> {
    read(old, data, true)
}

fn read(old: &Tunnel, data: &Attribute<'_>, changes: bool) -> Result<Tunnel, RequestError> {
    let data = data.parse_nested(&POLICY, Validate::Liberal)?;
    let mut tunnel = *old;
    let mut geneve = old.geneve.unwrap_or_default();
    if let Some(id) = data.get(ID).filter(|id| id.u32() >= NETWORKS) {
        return Err(RequestError::new(ERANGE, "Geneve ID must be lower than 16777216").at(id.offset));
    }
    let dont_fragment = match data.get(DF).map(|df| (df.u8(), df.offset)) {
        None => geneve.dont_fragment,
        Some((0, _)) => DontFragment::Unset,
        Some((1, _)) => DontFragment::Set,
        Some((2, _)) => DontFragment::Inherit,
        Some((_, at)) => return Err(RequestError::new(EINVAL, "Invalid DF attribute").at(at)),
    };
    if old.external {
        // Linux: "If the geneve device is configured for metadata […] then nothing can be changed."
        return Err(RequestError::errno(EOPNOTSUPP));
    }
    remote(&mut tunnel, &mut geneve, &data, changes)?;
    if let Some(id) = data.get(ID) {
        if changes && id.u32() != geneve.vni {
            return Err(fixed(&id));
        }
        geneve.vni = id.u32();
    }
    if let Some(inherit) = data.get(TTL_INHERIT) {
        geneve.ttl_inherit = inherit.u8() != 0;
    } else if let Some(ttl) = data.get(TTL) {
        (tunnel.ttl, geneve.ttl_inherit) = (ttl.u8(), false);
    }
    tunnel.tos = data.get(TOS).map_or(tunnel.tos, |tos| tos.u8());
    geneve.dont_fragment = dont_fragment;
    if let Some(label) = data.get(LABEL) {
        geneve.label = label.be32() & 0xf_ffff;
        if geneve.label != 0 && tunnel.remote.is_ipv4() {
            let text = "Label attribute only applies for IPv6 Geneve devices";
            return Err(RequestError::new(EINVAL, text).at(label.offset));
        }
    }
    let new_only =
        [PORT, COLLECT_METADATA, UDP_CSUM, UDP_ZERO_CSUM6_TX, UDP_ZERO_CSUM6_RX, INNER_PROTO_INHERIT];
    if changes && let Some(said) = new_only.into_iter().find_map(|kind| data.get(kind)) {
        return Err(fixed(&said));
    }
    geneve.port = data.get(PORT).map_or(geneve.port, |port| port.be16());
    tunnel.external |= data.get(COLLECT_METADATA).is_some();
    let says_yes = |kind: u16| data.get(kind).is_some_and(|flag| flag.u8() != 0);
    geneve.checksum = (geneve.checksum || says_yes(UDP_CSUM)) && !says_yes(UDP_ZERO_CSUM6_TX);
    geneve.takes_unsummed6 |= says_yes(UDP_ZERO_CSUM6_RX);
    if data.get(INNER_PROTO_INHERIT).is_some() {
        tunnel.kind = Kind::GeneveIp;
    }
    if tunnel.external {
        // Linux: `is_tnl_info_zero`.
        let says = (geneve.vni, tunnel.tos, tunnel.ttl, geneve.label, geneve.checksum);
        if says != (0, 0, 0, 0, false) || !tunnel.remote.is_unspecified() {
            let text =
                "Device is externally controlled, so attributes (VNI, Port, and so on) must not be specified";
            return Err(RequestError::new(EINVAL, text));
        }
    } else if tunnel.remote.is_unspecified() {
        let text = "a Geneve device without a remote address is not supported by this router";
        return Err(RequestError::new(EOPNOTSUPP, text));
    }
    if geneve.port == 0 {
        let text = "a Geneve device at port 0 is not supported by this router";
        return Err(RequestError::new(EOPNOTSUPP, text));
    }
    tunnel.geneve = Some(geneve);
    Ok(tunnel)
}

/// What cannot be changed.
fn fixed(attribute: &Attribute<'_>) -> RequestError {
    let text = "Changing VNI, Port, endpoint IP address family, external, inner_proto_inherit, and UDP checksum \
                attributes are not supported";
    RequestError::new(EOPNOTSUPP, text).at(attribute.offset)
}

fn remote(
    tunnel: &mut Tunnel,
    geneve: &mut Geneve,
    data: &Data<'_>,
    changes: bool,
) -> Result<(), RequestError> {
    let wrong = |at: &Attribute<'_>, text: &'static str| Err(RequestError::new(EINVAL, text).at(at.offset));
    match (data.get(REMOTE), data.get(REMOTE6)) {
        (None, None) => {}
        (Some(_), Some(_)) => {
            let text = "Cannot specify both IPv4 and IPv6 Remote addresses";
            return Err(RequestError::new(EINVAL, text));
        }
        (Some(four), None) => {
            if changes && tunnel.remote.is_ipv6() {
                return Err(fixed(&four));
            }
            if four.ipv4().is_multicast() {
                return wrong(&four, "Remote IPv4 address cannot be Multicast");
            }
            tunnel.remote = four.ipv4().into();
        }
        (None, Some(six)) => {
            if changes && tunnel.remote.is_ipv4() {
                return Err(fixed(&six));
            }
            if six.ipv6().is_unicast_link_local() {
                return wrong(&six, "Remote IPv6 address cannot be link-local");
            }
            if six.ipv6().is_multicast() {
                return wrong(&six, "Remote IPv6 address cannot be Multicast");
            }
            tunnel.remote = six.ipv6().into();
            tunnel.local = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
            // Also of a device that was told otherwise.
            (geneve.checksum, geneve.takes_unsummed6) = (true, false);
        }
    }
    Ok(())
}

/// Writes what is in `IFLA_INFO_DATA`. Linux: `geneve_fill_info`.
pub fn write(reply: &mut Reply<'_>, tunnel: &Tunnel, geneve: &Geneve) {
    reply.u32(ID, geneve.vni);
    if tunnel.external {
        reply.flag(COLLECT_METADATA);
    } else if tunnel.remote.is_ipv4() {
        reply.address(REMOTE, tunnel.remote);
        reply.u8(UDP_CSUM, geneve.checksum.into());
    } else {
        reply.address(REMOTE6, tunnel.remote);
        reply.u8(UDP_ZERO_CSUM6_TX, (!geneve.checksum).into());
    }
    reply.u8(TTL, tunnel.ttl);
    reply.u8(TOS, tunnel.tos);
    reply.be32(LABEL, geneve.label);
    let dont_fragment = match geneve.dont_fragment {
        DontFragment::Unset => 0,
        DontFragment::Set => 1,
        DontFragment::Inherit => 2,
    };
    reply.u8(DF, dont_fragment);
    reply.be16(PORT, geneve.port);
    reply.u8(UDP_ZERO_CSUM6_RX, geneve.takes_unsummed6.into());
    reply.u8(TTL_INHERIT, geneve.ttl_inherit.into());
    if tunnel.kind == Kind::GeneveIp {
        reply.flag(INNER_PROTO_INHERIT);
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use proptest::prelude::*;

    use super::*;
    use crate::encap::tests::{as_attribute, written};

    prop_compose! {
        fn devices()(
            (vni, port, label) in (0..NETWORKS, 1_u16.., 0_u32..1 << 20),
            switches: [bool; 4],
            (ttl, tos, end) in any::<(u8, u8, u16)>(),
            dont_fragment in prop::sample::select(
                &[DontFragment::Unset, DontFragment::Set, DontFragment::Inherit][..]
            ),
            six: bool,
            external: bool,
        ) -> Tunnel {
            if external {
                let geneve = Geneve { port, ttl_inherit: switches[0], dont_fragment, ..Geneve::default() };
                let kind = if switches[3] { Kind::Geneve } else { Kind::GeneveIp };
                return Tunnel { external, geneve: Some(geneve), ..Tunnel::new(kind) };
            }
            let [ttl_inherit, checksum, takes_unsummed6, frames] = switches;
            let (local, remote) = match six {
                true => {
                    let remote = Ipv6Addr::from_bits(0x2001_0db8 << 96 | u128::from(end));
                    (Ipv6Addr::UNSPECIFIED.into(), IpAddr::V6(remote))
                }
                false => {
                    let remote = Ipv4Addr::from_bits(0xc000_0000 | u32::from(end));
                    (Ipv4Addr::UNSPECIFIED.into(), IpAddr::V4(remote))
                }
            };
            let geneve = Geneve {
                vni,
                port,
                label: if six { label } else { 0 },
                ttl_inherit,
                dont_fragment,
                checksum,
                // Over IPv4 nothing is said of it.
                takes_unsummed6: takes_unsummed6 || !six,
            };
            let kind = if frames { Kind::Geneve } else { Kind::GeneveIp };
            let ttl = if ttl_inherit { 0 } else { ttl };
            Tunnel { local, remote, ttl, tos, geneve: Some(geneve), ..Tunnel::new(kind) }
        }
    }

    type Request<'a> = &'a dyn Fn(&mut Reply<'_>);

    proptest! {
        #[test]
        fn what_is_written_is_read(tunnel in devices()) {
            let bytes = written(|reply| write(reply, &tunnel, &tunnel.geneve.unwrap()));
            // A request that speaks of the TTL says whether it is inherited only if it is.
            let inherits = tunnel.geneve.unwrap().ttl_inherit;
            let data = as_attribute(&bytes);
            let said = || data.nested().filter(|said| said.kind != TTL_INHERIT || inherits);
            let bytes = written(|reply| said().for_each(|said| reply.attribute(said.kind, said.value)));
            prop_assert_eq!(create(Some(&as_attribute(&bytes))), Ok(tunnel));
        }

        #[test]
        fn any_bytes_are_read_or_refused(tunnel in devices(), bytes: Vec<u8>) {
            let _ = create(Some(&as_attribute(&bytes)));
            let _ = change(&tunnel, &as_attribute(&bytes));
        }
    }

    /// Linux 6.12: `drivers/net/geneve.c`, of what `ip` asks nobody.
    #[test]
    fn what_linux_refuses() {
        let make = |write: Request<'_>| {
            let bytes = written(write);
            let error = create(Some(&as_attribute(&bytes))).unwrap_err();
            (error.errno, error.message.unwrap_or_default().into_owned())
        };
        assert_eq!(
            make(&|reply| reply.u32(ID, NETWORKS)),
            (ERANGE, "Geneve ID must be lower than 16777216".into())
        );
        assert_eq!(make(&|reply| reply.u8(DF, 3)), (EINVAL, "Invalid DF attribute".into()));
        let group = |reply: &mut Reply<'_>| reply.attribute(REMOTE, &[239, 1, 1, 1]);
        assert_eq!(make(&group), (EINVAL, "Remote IPv4 address cannot be Multicast".into()));
        let group6 = |reply: &mut Reply<'_>| reply.address(REMOTE6, "ff02::1".parse().unwrap());
        assert_eq!(make(&group6), (EINVAL, "Remote IPv6 address cannot be Multicast".into()));
        let both = |reply: &mut Reply<'_>| {
            reply.attribute(REMOTE, &[192, 0, 2, 1]);
            reply.address(REMOTE6, "2001:db8::1".parse().unwrap());
        };
        assert_eq!(make(&both), (EINVAL, "Cannot specify both IPv4 and IPv6 Remote addresses".into()));
    }

    /// What the router does not have is refused, and never ignored.
    #[test]
    fn what_the_router_refuses() {
        let refused = |write: Request<'_>| {
            let bytes = written(write);
            create(Some(&as_attribute(&bytes))).unwrap_err().errno
        };
        assert_eq!(refused(&|reply| reply.u32(ID, 5)), EOPNOTSUPP);
        let at_no_port = |reply: &mut Reply<'_>| {
            reply.attribute(REMOTE, &[192, 0, 2, 1]);
            reply.be16(PORT, 0);
        };
        assert_eq!(refused(&at_no_port), EOPNOTSUPP);
    }
}
