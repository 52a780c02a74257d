//! `tunnel_key`: says what an `external` tunnel puts before a packet, or takes that away. Linux:
//! `net/sched/act_tunnel_key.c`.
//!
//! ```text
//! TCA_TUNNEL_KEY_PARMS (struct tc_tunnel_key: Generic, t_action), ENC_IPV4_SRC, ENC_IPV4_DST, ENC_IPV6_SRC,
//! ENC_IPV6_DST, ENC_KEY_ID (u32), ENC_DST_PORT (u16, both in network byte order), NO_CSUM, ENC_TOS, ENC_TTL (u8),
//! NO_FRAG (flag), ENC_OPTS { of Geneve, VXLAN, ERSPAN }
//! ```

use std::net::IpAddr;

use libc::{EINVAL, EOPNOTSUPP};

use super::{Generic, Times};
use crate::RequestError;
use crate::attribute::{Attribute, Type, Validate, policy};
use crate::iptunnel::{self, IpTunnel};
use crate::reply::Reply;

const TM: u16 = 1;
const PARMS: u16 = 2;
const IPV4_SRC: u16 = 3;
const IPV4_DST: u16 = 4;
const IPV6_SRC: u16 = 5;
const IPV6_DST: u16 = 6;
const KEY_ID: u16 = 7;
const PAD: u16 = 8;
const DST_PORT: u16 = 9;
const NO_CSUM: u16 = 10;
const OPTS: u16 = 11;
const TOS: u16 = 12;
const TTL: u16 = 13;
const NO_FRAG: u16 = 14;

const POLICY: [Type; NO_FRAG as usize + 1] = policy(&[
    (PARMS, Type::AtLeast(Generic::LEN as u16 + 4)),
    (IPV4_SRC, Type::U32),
    (IPV4_DST, Type::U32),
    (IPV6_SRC, Type::AtLeast(16)),
    (IPV6_DST, Type::AtLeast(16)),
    (KEY_ID, Type::U32),
    (DST_PORT, Type::U16),
    (NO_CSUM, Type::U8),
    (OPTS, Type::Nested),
    (TOS, Type::U8),
    (TTL, Type::U8),
    (NO_FRAG, Type::Flag),
]);

const SET: i32 = 1;
const RELEASE: i32 = 2;

/// A change of the parameters that go along with a packet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TunnelKey {
    /// Index and control action.
    pub generic: Generic,
    t_action: i32,
    /// Of `set`; `None`: an address is missing.
    key: Option<IpTunnel>,
}

impl TunnelKey {
    /// Reads the options.
    ///
    /// # Errors
    /// As Linux's `tunnel_key_init` until it looks for the action; `EOPNOTSUPP` for options of Geneve, VXLAN and ERSPAN, of
    /// which the router has no devices.
    pub fn parse(attribute: Option<&Attribute<'_>>) -> Result<Self, RequestError> {
        let missing = RequestError::new(EINVAL, "Tunnel requires attributes to be passed");
        let attributes = attribute.ok_or(missing)?.parse_nested(&POLICY, Validate::Liberal);
        let attributes = attributes.map_err(|error| RequestError {
            message: Some("Failed to parse nested tunnel key attributes".into()),
            ..error
        })?;
        let parms =
            attributes.get(PARMS).ok_or(RequestError::new(EINVAL, "Missing tunnel key parameters"))?;
        let verb = parms.value.get(Generic::LEN..).and_then(|bytes| bytes.first_chunk::<4>());
        let t_action = verb.map_or(0, |verb| i32::from_ne_bytes(*verb));
        if let Some(options) = attributes.get(OPTS)
            && t_action == SET
        {
            let message = "Options of Geneve, VXLAN and ERSPAN are not supported by this router";
            return Err(RequestError::new(EOPNOTSUPP, message).at(options.offset));
        }
        let byte = |kind| attributes.get(kind).map_or(0, |attribute: Attribute<'_>| attribute.u8());
        let pair = |source, destination| Some((attributes.get(source)?, attributes.get(destination)?));
        let ends = match (pair(IPV4_SRC, IPV4_DST), pair(IPV6_SRC, IPV6_DST)) {
            (Some((source, destination)), _) => {
                Some((IpAddr::V4(source.ipv4()), IpAddr::V4(destination.ipv4())))
            }
            (None, Some((source, destination))) => {
                Some((IpAddr::V6(source.ipv6()), IpAddr::V6(destination.ipv6())))
            }
            (None, None) => None,
        };
        let id = attributes.get(KEY_ID).map(|id| id.be32());
        let has = |is: bool, flag: u16| if is { flag } else { 0 };
        let flags = has(id.is_some(), iptunnel::KEY)
            | has(byte(NO_CSUM) == 0, iptunnel::CSUM)
            | has(attributes.get(NO_FRAG).is_some(), iptunnel::DONT_FRAGMENT);
        let key = ends.filter(|_| t_action == SET).map(|(source, destination)| IpTunnel {
            id: id.unwrap_or(0).into(),
            source,
            destination,
            tos: byte(TOS),
            ttl: byte(TTL),
            flags,
            port: attributes.get(DST_PORT).map_or(0, |port| port.be16()),
        });
        Ok(Self { generic: Generic::read(parms.value), t_action, key })
    }

    /// What is done: a packet gets these parameters, or has none any more.
    ///
    /// # Errors
    /// `EINVAL`: it is neither, or an address is missing.
    pub fn check(&self) -> Result<Option<&IpTunnel>, RequestError> {
        match (self.t_action, &self.key) {
            (SET, Some(key)) => Ok(Some(key)),
            (SET, None) => Err(RequestError::new(EINVAL, "Missing either ipv4 or ipv6 src and dst")),
            (RELEASE, _) => Ok(None),
            _ => Err(RequestError::new(EINVAL, "Unknown tunnel key action")),
        }
    }

    pub(super) fn write(&self, reply: &mut Reply<'_>, generic: Generic, times: Times) {
        let mut parms = generic.bytes();
        parms.extend_from_slice(&self.t_action.to_ne_bytes());
        reply.attribute(PARMS, &parms);
        if let Some(tunnel) = &self.key {
            let has = |flag: u16| tunnel.flags & flag != 0;
            if has(iptunnel::KEY) {
                reply.be32(KEY_ID, tunnel.id as u32);
            }
            let [source, destination] = match tunnel.destination {
                IpAddr::V4(_) => [IPV4_SRC, IPV4_DST],
                IpAddr::V6(_) => [IPV6_SRC, IPV6_DST],
            };
            reply.address(source, tunnel.source);
            reply.address(destination, tunnel.destination);
            if tunnel.port != 0 {
                reply.be16(DST_PORT, tunnel.port);
            }
            reply.u8(NO_CSUM, u8::from(!has(iptunnel::CSUM)));
            if has(iptunnel::DONT_FRAGMENT) {
                reply.flag(NO_FRAG);
            }
            for (kind, value) in [(TOS, tunnel.tos), (TTL, tunnel.ttl)] {
                if value != 0 {
                    reply.u8(kind, value);
                }
            }
        }
        times.write(reply, TM, PAD);
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use proptest::prelude::*;

    use super::*;
    use crate::encap::tests::{as_attribute, written};

    fn parms(t_action: i32) -> Vec<u8> {
        [Generic::default().bytes(), t_action.to_ne_bytes().to_vec()].concat()
    }

    fn refused(write: impl FnOnce(&mut Reply<'_>)) -> RequestError {
        let bytes = written(write);
        let parsed = TunnelKey::parse(Some(&as_attribute(&bytes)));
        parsed.and_then(|key| key.check().map(|_| ())).unwrap_err()
    }

    /// `tc actions add action tunnel_key set src_ip 10.0.0.1 dst_ip 10.0.0.2 id 7 dst_port 4789 ttl 9`.
    #[test]
    fn what_tc_sends() {
        let bytes = written(|reply| {
            reply.be32(KEY_ID, 7);
            reply.attribute(IPV4_SRC, &[10, 0, 0, 1]);
            reply.attribute(IPV4_DST, &[10, 0, 0, 2]);
            reply.be16(DST_PORT, 4789);
            reply.u8(TTL, 9);
            reply.attribute(PARMS, &parms(SET));
        });
        let parsed = TunnelKey::parse(Some(&as_attribute(&bytes))).unwrap();
        let [destination, source] = [[10, 0, 0, 2], [10, 0, 0, 1]].map(IpAddr::from);
        let flags = iptunnel::KEY | iptunnel::CSUM;
        let tunnel = IpTunnel { id: 7, destination, source, ttl: 9, tos: 0, flags, port: 4789 };
        assert_eq!(parsed.check(), Ok(Some(&tunnel)));
    }

    /// What `tc` does not send. Linux 6.12's texts.
    #[test]
    fn what_is_refused() {
        let text = |error: RequestError| (error.errno, error.message.unwrap_or_default().into_owned());
        let cases: [(i32, &str, RequestError); 5] = [
            (EINVAL, "Tunnel requires attributes to be passed", TunnelKey::parse(None).unwrap_err()),
            (EINVAL, "Missing tunnel key parameters", refused(|_| {})),
            (EINVAL, "Unknown tunnel key action", refused(|reply| reply.attribute(PARMS, &parms(3)))),
            (
                libc::ERANGE,
                "Failed to parse nested tunnel key attributes",
                refused(|reply| reply.attribute(IPV4_SRC, &[10])),
            ),
            (
                EOPNOTSUPP,
                "Options of Geneve, VXLAN and ERSPAN are not supported by this router",
                refused(|reply| {
                    reply.attribute(PARMS, &parms(SET));
                    reply.attribute(OPTS, &[]);
                }),
            ),
        ];
        for (errno, message, error) in cases {
            assert_eq!(text(error), (errno, message.to_owned()));
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            id: Option<u32>, ends: [Ipv6Addr; 2], bytes: [u8; 2], port: u16, [csum, nofrag, v6, set]: [bool; 4],
        ) {
            let [destination, source] = ends.map(|end| match v6 {
                true => IpAddr::V6(end),
                false => Ipv4Addr::from_bits(end.to_bits() as u32).into(),
            });
            let flag = |is: bool, flag: u16| if is { flag } else { 0 };
            let flags = flag(id.is_some(), iptunnel::KEY)
                | flag(csum, iptunnel::CSUM)
                | flag(nofrag, iptunnel::DONT_FRAGMENT);
            let [ttl, tos] = bytes;
            let id = id.unwrap_or(0).into();
            let key = set.then_some(IpTunnel { id, destination, source, ttl, tos, flags, port });
            let t_action = if set { SET } else { RELEASE };
            let action = TunnelKey { generic: Generic { index: 3, action: 2, ..Generic::default() }, t_action, key };
            let bytes = written(|reply| action.write(reply, action.generic, Times::default()));
            prop_assert_eq!(TunnelKey::parse(Some(&as_attribute(&bytes))), Ok(action));
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
            if let Ok(key) = TunnelKey::parse(Some(&as_attribute(&bytes))) {
                let _ = key.check();
            }
        }
    }
}
