//! MPLS labels in messages: `RTA_NEWDST` of label routes, `RTA_VIA`, and `RTA_ENCAP` of type `mpls`. Linux:
//! `net/mpls/af_mpls.c`, `net/mpls/mpls_iptunnel.c`.
//!
//! Labels stand as a stack of entries as on the wire (RFC 3032), their TTLs and traffic classes 0.

use std::net::IpAddr;

use libc::{AF_INET, AF_INET6, AF_PACKET, EINVAL};

use crate::RequestError;
use crate::attribute::{Attribute, Type, Validate, policy};
use crate::reply::Reply;

const MPLS_IPTUNNEL_DST: u16 = 1;
const MPLS_IPTUNNEL_TTL: u16 = 2;
const POLICY: [Type; 3] = policy(&[(MPLS_IPTUNNEL_DST, Type::U32), (MPLS_IPTUNNEL_TTL, Type::U8)]);

/// Most labels that a route puts on: `MAX_NEW_LABELS`.
pub const MAX_LABELS: usize = 30;
/// RFC 3032 section 2.1: never on the wire.
const IMPLICIT_NULL: u32 = 3;
/// `MAX_VIA_ALEN`.
const MAX_ADDRESS: usize = 16;

/// Labels for an IP packet.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Mpls {
    /// The outermost first, at least one, 20 bits each.
    pub labels: Box<[u32]>,
    /// `ttl`: that of the labels; 0 for that of the packet. `None`: as `net.mpls.ip_ttl_propagate` says.
    pub ttl: Option<u8>,
}

/// Where labelled packets go: `RTA_VIA`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Via {
    /// To the neighbour with this address.
    Ip(IpAddr),
    /// To this link-layer address.
    Link([u8; 6]),
}

/// Reads a stack of at most `most` labels. Linux: `nla_get_labels`.
///
/// # Errors
/// As there.
pub fn parse_labels(attribute: &Attribute<'_>, most: usize) -> Result<Box<[u32]>, RequestError> {
    let (entries, rest) = attribute.value.as_chunks::<4>();
    if !rest.is_empty() || entries.is_empty() {
        return Err(attribute.invalid("Invalid length for labels attribute"));
    }
    if entries.len() > most {
        return Err(attribute.invalid("Too many labels"));
    }
    let mut labels = Vec::with_capacity(entries.len());
    // Linux looks at the last first.
    for (i, entry) in entries.iter().enumerate().rev() {
        let word = u32::from_be_bytes(*entry);
        let (label, class, bottom, ttl) = (word >> 12, word >> 9 & 7, word >> 8 & 1, word & 0xff);
        if ttl != 0 {
            return Err(attribute.invalid("TTL in label must be 0"));
        }
        if class != 0 {
            return Err(attribute.invalid("Traffic class in label must be 0"));
        }
        match (bottom, i + 1 == entries.len()) {
            (0, true) => return Err(attribute.invalid("BOS bit must be set in first label")),
            (1, false) => return Err(attribute.invalid("BOS bit can only be set in first label")),
            _ => {}
        }
        if label == IMPLICIT_NULL {
            return Err(attribute.invalid("Implicit NULL Label (3) can not be used in encapsulation"));
        }
        labels.push(label);
    }
    labels.reverse();
    Ok(labels.into())
}

/// Labels as a stack of entries, the TTL 0, the bottom bit in the last.
pub fn stack(labels: &[u32]) -> Vec<u8> {
    let mut bytes: Vec<u8> = labels.iter().flat_map(|label| (label << 12).to_be_bytes()).collect();
    if let [.., flags, _] = &mut bytes[..] {
        *flags |= 1;
    }
    bytes
}

/// Reads `RTA_VIA`. Linux: `nla_get_via`.
///
/// # Errors
/// As there.
pub fn parse_via(attribute: &Attribute<'_>) -> Result<Via, RequestError> {
    let Some((family, address)) = attribute.value.split_first_chunk::<2>() else {
        return Err(attribute.invalid("Invalid attribute length for RTA_VIA"));
    };
    if address.len() > MAX_ADDRESS {
        return Err(attribute.invalid("Invalid address length for RTA_VIA"));
    }
    let value = Attribute { value: address, ..*attribute };
    match (i32::from(u16::from_ne_bytes(*family)), address.len()) {
        (AF_PACKET, _) => match address.first_chunk::<6>() {
            Some(address) if value.value.len() == 6 => Ok(Via::Link(*address)),
            _ => Err(RequestError::errno(EINVAL)),
        },
        (AF_INET, 4) => Ok(Via::Ip(value.ipv4().into())),
        (AF_INET6, 16) => Ok(Via::Ip(value.ipv6().into())),
        _ => Err(RequestError::errno(EINVAL)),
    }
}

/// The value of an `RTA_VIA`.
pub fn via(via: Via) -> Vec<u8> {
    let with = |family: i32, address: &[u8]| [&(family as u16).to_ne_bytes()[..], address].concat();
    match via {
        Via::Ip(IpAddr::V4(address)) => with(AF_INET, &address.octets()),
        Via::Ip(IpAddr::V6(address)) => with(AF_INET6, &address.octets()),
        Via::Link(address) => with(AF_PACKET, &address),
    }
}

impl Mpls {
    /// Reads an `RTA_ENCAP` of type `mpls`.
    ///
    /// # Errors
    /// As Linux's `mpls_build_state`.
    pub fn parse(encap: &Attribute<'_>) -> Result<Self, RequestError> {
        let attributes = encap.parse_nested(&POLICY, Validate::Liberal)?;
        let labels = attributes.get(MPLS_IPTUNNEL_DST);
        let labels = labels.ok_or(RequestError::new(EINVAL, "MPLS_IPTUNNEL_DST attribute is missing"))?;
        let ttl = attributes.get(MPLS_IPTUNNEL_TTL).map(|ttl| ttl.u8());
        Ok(Self { labels: parse_labels(&labels, MAX_LABELS)?, ttl })
    }

    /// Writes what is inside `RTA_ENCAP`.
    pub fn write(&self, reply: &mut Reply<'_>) {
        reply.attribute(MPLS_IPTUNNEL_DST, &stack(&self.labels));
        if let Some(ttl) = self.ttl {
            reply.u8(MPLS_IPTUNNEL_TTL, ttl);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::encap::tests::{as_attribute, written};

    fn refused(bytes: &[u8]) -> Option<String> {
        parse_labels(&as_attribute(bytes), 2).unwrap_err().message.map(Into::into)
    }

    /// Linux 6.12, messages made by hand.
    #[test]
    fn refuses_what_linux_refuses() {
        assert_eq!(refused(&[0; 3]), Some("Invalid length for labels attribute".to_owned()));
        assert_eq!(refused(&stack(&[16, 17, 18])), Some("Too many labels".to_owned()));
        assert_eq!(refused(&[0, 1, 0, 1]), Some("TTL in label must be 0".to_owned()));
        assert_eq!(refused(&[0, 1, 3, 0]), Some("Traffic class in label must be 0".to_owned()));
        assert_eq!(refused(&[0, 1, 0, 0]), Some("BOS bit must be set in first label".to_owned()));
        assert_eq!(
            refused(&[0, 1, 1, 0, 0, 1, 1, 0]),
            Some("BOS bit can only be set in first label".to_owned())
        );
        let message = "Implicit NULL Label (3) can not be used in encapsulation";
        assert_eq!(refused(&stack(&[3])), Some(message.to_owned()));
    }

    proptest! {
        #[test]
        fn round_trip(labels in proptest::collection::vec(16u32..1 << 20, 1..=30), ttl: Option<u8>) {
            let mpls = Mpls { labels: labels.into(), ttl };
            let bytes = written(|reply| mpls.write(reply));
            prop_assert_eq!(Mpls::parse(&as_attribute(&bytes)), Ok(mpls));
        }

        #[test]
        fn addresses(four: [u8; 4], six: [u8; 16], link: [u8; 6]) {
            for wanted in [Via::Ip(four.into()), Via::Ip(six.into()), Via::Link(link)] {
                prop_assert_eq!(parse_via(&as_attribute(&via(wanted))), Ok(wanted));
            }
        }

        #[test]
        fn never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..160)) {
            let attribute = as_attribute(&bytes);
            let _ = (Mpls::parse(&attribute), parse_via(&attribute));
        }
    }
}
