//! RPL source routes on routes: `RTA_ENCAP` of type `rpl`. Linux: `net/ipv6/rpl_iptunnel.c`.
//!
//! ```text
//! RTA_ENCAP, nested: RPL_IPTUNNEL_SRH
//! |   RPL source routing header, RFC 6554 section 3, uncompressed |
//! ```
//!
//! The header lists the addresses in the order in which they are visited, the first included. `ip` writes and shows
//! them the other way round.

use std::net::Ipv6Addr;

use libc::{AF_INET6, EINVAL};

use crate::RequestError;
use crate::attribute::{Attribute, Type, Validate, policy};
use crate::reply::Reply;

const RPL_IPTUNNEL_SRH: u16 = 1;
const POLICY: [Type; 2] = policy(&[(RPL_IPTUNNEL_SRH, Type::Any)]);

/// Length of the part before the addresses, in bytes.
const FIXED: usize = 8;
const ROUTING_TYPE: u8 = 3;

/// An RPL source route of a route, as a tool gives it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Rpl(Box<[u8]>);

impl Rpl {
    /// Reads an `RTA_ENCAP` of type `rpl` on a route of an address family. Whether the addresses lead back to the
    /// router ([`Rpl::loops`]) is for the caller to check.
    ///
    /// # Errors
    /// As Linux's `rpl_build_state`; `EINVAL` with a text for a routing type that is not RPL's, which Linux takes.
    pub fn parse(encap: &Attribute<'_>, family: u8) -> Result<Self, RequestError> {
        let refused = RequestError::errno(EINVAL);
        if i32::from(family) != AF_INET6 {
            return Err(refused);
        }
        let header = encap.parse_nested(&POLICY, Validate::Liberal)?.get(RPL_IPTUNNEL_SRH);
        let header = header.ok_or(refused.clone())?.value;
        // Linux: `rpl_validate_srh`.
        let [_, hdr_len, routing_type, segments_left, compressed, ..] = *header else { return Err(refused) };
        let Some(addresses) = header.get(FIXED..) else { return Err(refused) };
        if usize::from(hdr_len) * 8 != addresses.len()
            || segments_left == 0
            || usize::from(segments_left) * 16 != addresses.len()
            || compressed != 0
            || addresses.get(addresses.len() - 16) == Some(&0xff)
        {
            return Err(refused);
        }
        if routing_type != ROUTING_TYPE {
            return Err(RequestError::new(
                EINVAL,
                "RPL routing headers of another type are not supported by this router",
            ));
        }
        Ok(Self(header.into()))
    }

    /// The addresses, the first to be visited first.
    pub fn addresses(&self) -> impl DoubleEndedIterator<Item = Ipv6Addr> + '_ {
        let list = self.0.get(FIXED..).unwrap_or_default();
        list.as_chunks::<16>().0.iter().map(|address| Ipv6Addr::from_octets(*address))
    }

    /// Whether the addresses come back to the router so often that Linux refuses them: those of its own
    /// (`is_own`) in three places with others between the last two. Linux: `ipv6_chk_rpl_srh_loop`.
    pub fn loops(&self, mut is_own: impl FnMut(Ipv6Addr) -> bool) -> bool {
        let (mut found, mut separated) = (0, false);
        for address in self.addresses() {
            if !is_own(address) {
                separated = true;
                continue;
            }
            if found > 1 && separated {
                return true;
            }
            (found, separated) = (found + 1, false);
        }
        false
    }

    /// Writes what is inside `RTA_ENCAP`.
    pub fn write(&self, reply: &mut Reply<'_>) {
        reply.attribute(RPL_IPTUNNEL_SRH, &self.0);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::encap::tests::{as_attribute, written};
    use crate::seg6::tests::segments;

    fn header(addresses: &[Ipv6Addr]) -> Vec<u8> {
        let count = addresses.len() as u8;
        let mut bytes = vec![0, count * 2, ROUTING_TYPE, count, 0, 0, 0, 0];
        addresses.iter().for_each(|address| bytes.extend_from_slice(&address.octets()));
        bytes
    }

    fn parse(header: &[u8]) -> Result<Rpl, RequestError> {
        let bytes = written(|reply| {
            reply.attribute(RPL_IPTUNNEL_SRH, header);
        });
        Rpl::parse(&as_attribute(&bytes), AF_INET6 as u8)
    }

    /// Linux: `rpl_validate_srh`.
    #[test]
    fn refuses_what_linux_refuses() {
        let good = header(&[Ipv6Addr::from_bits(1), Ipv6Addr::from_bits(2)]);
        assert!(parse(&good).is_ok());
        let group = header(&[Ipv6Addr::from_bits(1), Ipv6Addr::from_bits(0xff02 << 112)]);
        assert_eq!(parse(&group), Err(RequestError::errno(EINVAL)));
        // Only the last is looked at.
        let group = header(&[Ipv6Addr::from_bits(0xff02 << 112), Ipv6Addr::from_bits(1)]);
        assert!(parse(&group).is_ok());
        for (at, value) in [(1, 3), (1, 5), (3, 0), (3, 1), (3, 3), (4, 0x10), (4, 1)] {
            let mut bad = good.clone();
            bad[at] = value;
            assert_eq!(parse(&bad), Err(RequestError::errno(EINVAL)), "byte {at} = {value}");
        }
        for len in 0..good.len() {
            assert!(parse(&good[..len]).is_err());
        }
        let mut other = good.clone();
        other[2] = 4;
        assert!(parse(&other).is_err());
        assert!(Rpl::parse(&as_attribute(&[]), AF_INET6 as u8).is_err());
        let bytes = written(|reply| {
            reply.attribute(RPL_IPTUNNEL_SRH, &good);
        });
        assert!(Rpl::parse(&as_attribute(&bytes), 2).is_err());
    }

    /// Linux 6.12: two addresses of its own in a route are taken, three with another before the last are not.
    #[test]
    fn loops_as_linux_sees_them() {
        let own = |address: Ipv6Addr| address.to_bits() < 10;
        for (list, loops) in [
            (&[1, 20, 2][..], false),
            (&[1, 20, 2, 21, 3], true),
            (&[1, 2, 20, 3], true),
            (&[1, 2, 3], false),
            (&[1, 20, 2, 3], false),
            (&[20, 21, 22, 20], false),
        ] {
            let list: Vec<_> = list.iter().map(|bits| Ipv6Addr::from_bits(*bits)).collect();
            assert_eq!(parse(&header(&list)).unwrap().loops(own), loops, "{list:?}");
        }
    }

    proptest! {
        #[test]
        fn round_trip(list in segments()) {
            let list: Vec<_> = list.into_iter().filter(|address| !address.is_multicast()).collect();
            prop_assume!(!list.is_empty());
            let rpl = parse(&header(&list)).unwrap();
            prop_assert!(rpl.addresses().eq(list));
            let bytes = written(|reply| rpl.write(reply));
            prop_assert_eq!(Rpl::parse(&as_attribute(&bytes), AF_INET6 as u8), Ok(rpl));
        }

        #[test]
        fn never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..96)) {
            let _ = Rpl::parse(&as_attribute(&bytes), AF_INET6 as u8);
            if let Ok(rpl) = parse(&bytes) {
                let _ = (rpl.addresses().count(), rpl.loops(|_| true));
            }
        }
    }
}
