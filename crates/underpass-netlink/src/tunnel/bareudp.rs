//! `IFLA_INFO_DATA` of `bareudp`: packets directly in UDP. Linux: `drivers/net/bareudp.c`.
//!
//! ```text
//! IFLA_BAREUDP_PORT, ETHERTYPE (u16 in network byte order), SRCPORT_MIN (u16), MULTIPROTO_MODE (flag)
//! ```

use libc::{EINVAL, EOPNOTSUPP};

use crate::RequestError;
use crate::attribute::{Attribute, Type, Validate, policy};
use crate::reply::Reply;

const PORT: u16 = 1;
const ETHERTYPE: u16 = 2;
const SOURCE_PORT_MIN: u16 = 3;
const MULTIPROTO_MODE: u16 = 4;

const POLICY: [Type; MULTIPROTO_MODE as usize + 1] = policy(&[
    (PORT, Type::U16),
    (ETHERTYPE, Type::U16),
    (SOURCE_PORT_MIN, Type::U16),
    (MULTIPROTO_MODE, Type::Flag),
]);

/// `ETH_P_IP`.
pub const IPV4: u16 = 0x0800;
/// `ETH_P_IPV6`.
pub const IPV6: u16 = 0x86dd;
/// `ETH_P_MPLS_UC`.
pub const MPLS: u16 = 0x8847;

/// What makes a device a `bareudp`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct BareUdp {
    /// The UDP port that it receives at and sends to.
    pub port: u16,
    /// The EtherType of what is inside.
    pub ethertype: u16,
    /// The lowest UDP source port.
    pub source_port_min: u16,
    /// Whether IPv6 may be inside besides IPv4, and multicast labels besides those of unicast.
    pub multiproto: bool,
}

impl BareUdp {
    /// Reads `IFLA_INFO_DATA`. Linux: `bareudp_validate`, `bareudp2info`.
    ///
    /// # Errors
    /// `EINVAL` without a port or an EtherType; `EOPNOTSUPP` for a port of any number.
    pub fn parse(data: Option<&Attribute<'_>>) -> Result<Self, RequestError> {
        let missing = RequestError::new(EINVAL, "Not enough attributes provided to perform the operation");
        let data = data.ok_or(missing)?.parse_nested(&POLICY, Validate::Liberal)?;
        let port = data.get(PORT).ok_or(RequestError::new(EINVAL, "port not specified"))?;
        let ethertype = data.get(ETHERTYPE).ok_or(RequestError::new(EINVAL, "ethertype not specified"))?;
        if port.be16() == 0 {
            let text = "a port of any number is not supported by this router";
            return Err(RequestError::new(EOPNOTSUPP, text).at(port.offset));
        }
        Ok(Self {
            port: port.be16(),
            ethertype: ethertype.be16(),
            source_port_min: data.get(SOURCE_PORT_MIN).map_or(0, |port| port.u16()),
            multiproto: data.get(MULTIPROTO_MODE).is_some(),
        })
    }

    /// Whether the EtherType may have another beside it. Linux: `bareudp_configure`.
    ///
    /// # Errors
    /// `EINVAL` if it may not and is to.
    pub fn check(&self) -> Result<(), RequestError> {
        if self.multiproto && !matches!(self.ethertype, IPV4 | MPLS) {
            let text =
                "Cannot set multiproto mode for this ethertype (only IPv4 and unicast MPLS are supported)";
            return Err(RequestError::new(EINVAL, text));
        }
        Ok(())
    }

    /// Writes what is in `IFLA_INFO_DATA`.
    pub fn write(&self, reply: &mut Reply<'_>) {
        reply.be16(PORT, self.port);
        reply.be16(ETHERTYPE, self.ethertype);
        reply.u16(SOURCE_PORT_MIN, self.source_port_min);
        if self.multiproto {
            reply.flag(MULTIPROTO_MODE);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::encap::tests::{as_attribute, written};

    proptest! {
        #[test]
        fn what_is_written_is_read(port in 1_u16.., ethertype: u16, source_port_min: u16, multiproto: bool) {
            let device = BareUdp { port, ethertype, source_port_min, multiproto };
            let bytes = written(|reply| device.write(reply));
            prop_assert_eq!(BareUdp::parse(Some(&as_attribute(&bytes))), Ok(device));
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
            let _ = BareUdp::parse(Some(&as_attribute(&bytes)));
        }
    }

    /// Linux 6.12: `drivers/net/bareudp.c`; `ip` itself refuses a device without a port or an EtherType.
    #[test]
    fn what_is_missing_is_named() {
        let refused = |write: &dyn Fn(&mut Reply<'_>)| {
            let bytes = written(write);
            let error = BareUdp::parse(Some(&as_attribute(&bytes))).unwrap_err();
            (error.errno, error.message.unwrap_or_default().into_owned())
        };
        assert_eq!(refused(&|_| {}), (EINVAL, "port not specified".into()));
        assert_eq!(refused(&|reply| reply.be16(PORT, 6635)), (EINVAL, "ethertype not specified".into()));
        let any = |reply: &mut Reply<'_>| {
            reply.be16(PORT, 0);
            reply.be16(ETHERTYPE, IPV4);
        };
        assert_eq!(refused(&any).0, EOPNOTSUPP);
        let data = BareUdp::parse(None).unwrap_err();
        assert_eq!(data.message.as_deref(), Some("Not enough attributes provided to perform the operation"));
    }
}
