//! Parameters of a tunnel on routes: `RTA_ENCAP` of types `ip` and `ip6`, for devices that are `external`. Linux:
//! `net/ipv4/ip_tunnel_core.c`, `include/uapi/linux/lwtunnel.h`.
//!
//! ```text
//! LWTUNNEL_IP_ID (u64 in network byte order), DST, SRC (addresses), TTL, TOS (u8), FLAGS (u16 in network byte order)
//! ```

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::RequestError;
use crate::attribute::{Attribute, Type, Validate, policy};
use crate::reply::Reply;

const ID: u16 = 1;
const DST: u16 = 2;
const SRC: u16 = 3;
const TTL: u16 = 4;
const TOS: u16 = 5;
const FLAGS: u16 = 6;
const PAD: u16 = 7;
const OPTS: u16 = 8;

const fn types(address: Type) -> [Type; OPTS as usize + 1] {
    policy(&[
        (ID, Type::U64),
        (DST, address),
        (SRC, address),
        (TTL, Type::U8),
        (TOS, Type::U8),
        (FLAGS, Type::U16),
        (OPTS, Type::Unsupported), // of Geneve, VXLAN and ERSPAN
    ])
}

const POLICY4: [Type; OPTS as usize + 1] = types(Type::U32);
const POLICY6: [Type; OPTS as usize + 1] = types(Type::AtLeast(16));

/// `TUNNEL_CSUM` in [`IpTunnel::flags`]: there is a checksum, with GRE.
pub const CSUM: u16 = 0x1;
/// `TUNNEL_KEY`: the id is the key, with GRE.
pub const KEY: u16 = 0x4;
/// `TUNNEL_SEQ`: there is a sequence number, with GRE.
pub const SEQ: u16 = 0x8;
/// `TUNNEL_DONT_FRAGMENT`: over IPv4, Don't Fragment is set.
pub const DONT_FRAGMENT: u16 = 0x100;
/// `TUNNEL_OPTIONS_PRESENT`, which Linux takes out.
const OPTIONS_PRESENT: u16 = 0x5800;

/// What a device with external metadata puts before the packets of a route, or of an action.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct IpTunnel {
    /// `id`.
    pub id: u64,
    /// Destination of the outer header. Its family is that of the type.
    pub destination: IpAddr,
    /// Source of the outer header, of the same family. Unspecified: chosen by the route.
    pub source: IpAddr,
    /// TTL or hop limit of the outer header. 0: that of the packet.
    pub ttl: u8,
    /// TOS or traffic class of the outer header. 1, over IPv4: that of the packet.
    pub tos: u8,
    /// [`CSUM`] and the others.
    pub flags: u16,
    /// The UDP destination port of what has ports; 0: the device's. Only an action says it.
    pub port: u16,
}

impl IpTunnel {
    /// Reads an `RTA_ENCAP` of type `ip`, or `ip6`.
    ///
    /// # Errors
    /// As Linux's `ip_tun_build_state`; `EOPNOTSUPP` for options of Geneve, VXLAN and ERSPAN, of which the router has no
    /// devices.
    pub fn parse(encap: &Attribute<'_>, ipv6: bool) -> Result<Self, RequestError> {
        let policy = if ipv6 { &POLICY6 } else { &POLICY4 };
        let attributes = encap.parse_nested(policy, Validate::Liberal)?;
        let address = |kind| {
            let found = attributes.get(kind);
            match ipv6 {
                true => IpAddr::V6(found.map_or(Ipv6Addr::UNSPECIFIED, |address| address.ipv6())),
                false => IpAddr::V4(found.map_or(Ipv4Addr::UNSPECIFIED, |address| address.ipv4())),
            }
        };
        let byte = |kind| attributes.get(kind).map_or(0, |attribute| attribute.u8());
        Ok(Self {
            id: attributes.get(ID).map_or(0, |id| u64::from_be(id.u64())),
            destination: address(DST),
            source: address(SRC),
            ttl: byte(TTL),
            tos: byte(TOS),
            flags: attributes.get(FLAGS).map_or(0, |flags| flags.be16()) & !OPTIONS_PRESENT,
            port: 0,
        })
    }

    /// Writes what is inside `RTA_ENCAP`.
    pub fn write(&self, reply: &mut Reply<'_>) {
        reply.u64_aligned(ID, self.id.to_be(), PAD);
        reply.address(DST, self.destination);
        reply.address(SRC, self.source);
        reply.u8(TOS, self.tos);
        reply.u8(TTL, self.ttl);
        reply.be16(FLAGS, self.flags);
    }
}

#[cfg(test)]
mod tests {
    use libc::EOPNOTSUPP;
    use proptest::prelude::*;

    use super::*;
    use crate::encap::tests::{as_attribute, written};

    /// `ip route add 10.80.0.0/24 encap ip id 100 dst 10.0.0.2 src 10.0.0.1 key dev text`.
    #[test]
    fn what_ip_sends() {
        let bytes = written(|reply| {
            reply.attribute(ID, &100_u64.to_be_bytes());
            reply.attribute(DST, &[10, 0, 0, 2]);
            reply.attribute(SRC, &[10, 0, 0, 1]);
            reply.be16(FLAGS, KEY);
        });
        let [destination, source] = [[10, 0, 0, 2], [10, 0, 0, 1]].map(IpAddr::from);
        let expected = IpTunnel { id: 100, destination, source, ttl: 0, tos: 0, flags: KEY, port: 0 };
        assert_eq!(IpTunnel::parse(&as_attribute(&bytes), false), Ok(expected));
        let options = written(|reply| reply.attribute(OPTS, &[]));
        assert_eq!(IpTunnel::parse(&as_attribute(&options), false).unwrap_err().errno, EOPNOTSUPP);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(id: u64, ends: [Ipv6Addr; 2], ttl: u8, tos: u8, flags in 0_u16..0x800, v6: bool) {
            let [destination, source] = ends.map(|end| match v6 {
                true => IpAddr::V6(end),
                false => Ipv4Addr::from_bits(end.to_bits() as u32).into(),
            });
            let tunnel = IpTunnel { id, destination, source, ttl, tos, flags, port: 0 };
            let bytes = written(|reply| tunnel.write(reply));
            prop_assert_eq!(IpTunnel::parse(&as_attribute(&bytes), v6), Ok(tunnel));
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>, v6: bool) {
            let _ = IpTunnel::parse(&as_attribute(&bytes), v6);
        }
    }
}
