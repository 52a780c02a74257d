//! SRv6 headends on routes: `RTA_ENCAP` of type `seg6`. Linux: `net/ipv6/seg6_iptunnel.c`.
//!
//! ```text
//! RTA_ENCAP, nested: SEG6_IPTUNNEL_SRH
//! |                    mode (host byte order)                     |
//! |       segment routing header, RFC 8754 section 2, to the end  |
//! ```

use std::net::Ipv6Addr;

use libc::{AF_INET, AF_INET6, EINVAL};

use crate::RequestError;
use crate::attribute::{Attribute, Type, Validate, policy};
use crate::reply::Reply;

const SEG6_IPTUNNEL_SRH: u16 = 1;
const POLICY: [Type; 2] = policy(&[(SEG6_IPTUNNEL_SRH, Type::Any)]);

/// Length of the fixed part of an SRH, in bytes.
const SRH_FIXED: usize = 8;

/// How a headend puts the segments before a packet: `SEG6_IPTUN_MODE_*`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u32)]
pub enum Mode {
    /// An SRH in the packet's own IPv6 header.
    Inline = 0,
    /// An outer IPv6 header with an SRH.
    Encap = 1,
    /// The same around an Ethernet frame.
    L2Encap = 2,
    /// An outer IPv6 header with an SRH that lacks the first segment, RFC 8986 section 5.2.
    EncapRed = 3,
    /// The same around an Ethernet frame, RFC 8986 section 5.4.
    L2EncapRed = 4,
}

impl Mode {
    /// The mode of a number; `None` for one that Linux does not know either.
    pub const fn from_number(number: u32) -> Option<Self> {
        Some(match number {
            0 => Self::Inline,
            1 => Self::Encap,
            2 => Self::L2Encap,
            3 => Self::EncapRed,
            4 => Self::L2EncapRed,
            _ => return None,
        })
    }
}

/// A segment routing header as a tool gives it: checked as Linux's `seg6_validate_srh` checks it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct SegmentList(Box<[u8]>);

impl SegmentList {
    /// Takes the header that is all of `bytes`.
    ///
    /// # Errors
    /// `EINVAL` if it has no segment or its lengths contradict each other.
    pub fn parse(bytes: &[u8]) -> Result<Self, RequestError> {
        let refused = RequestError::errno(EINVAL);
        let [_, hdr_len, 4, segments_left, last_entry, ..] = *bytes else { return Err(refused) };
        let (hdr_len, last_entry) = (usize::from(hdr_len), usize::from(last_entry));
        if (hdr_len + 1) * 8 != bytes.len()
            || bytes.len() < SRH_FIXED + 16
            || usize::from(segments_left) > last_entry
            || last_entry + 1 > hdr_len / 2
        {
            return Err(refused);
        }
        // TLVs: two bytes each and as many as the second says. Linux reads Pad1 as such a TLV too.
        let mut tlvs = bytes.get(SRH_FIXED + (last_entry + 1) * 16..).unwrap_or_default();
        while let [_, len, rest @ ..] = tlvs {
            tlvs = rest.get(usize::from(*len)..).ok_or(refused.clone())?;
        }
        if tlvs.is_empty() { Ok(Self(bytes.into())) } else { Err(refused) }
    }

    /// The header, in wire order.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// The segments, the last to be visited first.
    pub fn segments(&self) -> impl DoubleEndedIterator<Item = Ipv6Addr> + '_ {
        let list = self.0.get(SRH_FIXED..self.end_of_segments()).unwrap_or_default();
        list.as_chunks::<16>().0.iter().map(|segment| Ipv6Addr::from(*segment))
    }

    /// The segment that segments left points at: the first to be visited.
    pub fn first(&self) -> Ipv6Addr {
        self.segments().nth(usize::from(self.byte(3))).unwrap_or(Ipv6Addr::UNSPECIFIED)
    }

    /// The bytes behind the segments.
    pub fn tlvs(&self) -> &[u8] {
        self.0.get(self.end_of_segments()..).unwrap_or_default()
    }

    /// A byte of the fixed part.
    fn byte(&self, at: usize) -> u8 {
        self.0.get(at).copied().unwrap_or_default()
    }

    fn end_of_segments(&self) -> usize {
        SRH_FIXED + (usize::from(self.byte(4)) + 1) * 16
    }

    /// Whether the header asks for an HMAC TLV to be filled (`SR6_FLAG1_HMAC`).
    pub fn hmac(&self) -> bool {
        self.byte(5) & 0x08 != 0
    }

    /// The key of the HMAC TLV that it asks for; `None` if it asks for none, or does not end in one.
    pub fn hmac_key(&self) -> Option<u32> {
        let [5, 38, _, _, a, b, c, d, ..] = *self.tlvs().last_chunk::<40>()? else { return None };
        self.hmac().then_some(u32::from_be_bytes([a, b, c, d]))
    }
}

/// An SRv6 headend of a route.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Seg6 {
    /// How the segments are put before a packet.
    pub mode: Mode,
    /// The header, for `inline` with an empty last segment (`::`) that each packet's destination fills.
    pub srh: SegmentList,
}

impl Seg6 {
    /// Reads an `RTA_ENCAP` of type `seg6` on a route of an address family.
    ///
    /// # Errors
    /// As Linux's `seg6_build_state`.
    pub fn parse(encap: &Attribute<'_>, family: u8) -> Result<Self, RequestError> {
        let refused = RequestError::errno(EINVAL);
        if !matches!(i32::from(family), AF_INET | AF_INET6) {
            return Err(refused);
        }
        let tunnel = encap.parse_nested(&POLICY, Validate::Liberal)?.get(SEG6_IPTUNNEL_SRH);
        let Some((mode, srh)) = tunnel.as_ref().and_then(|tunnel| tunnel.value.split_first_chunk::<4>())
        else {
            return Err(refused);
        };
        let mode = Mode::from_number(u32::from_ne_bytes(*mode)).ok_or(refused.clone())?;
        if mode == Mode::Inline && i32::from(family) != AF_INET6 {
            return Err(refused);
        }
        Ok(Self { mode, srh: SegmentList::parse(srh)? })
    }

    /// Writes what is inside `RTA_ENCAP`.
    pub fn write(&self, reply: &mut Reply<'_>) {
        let mut value = (self.mode as u32).to_ne_bytes().to_vec();
        value.extend_from_slice(self.srh.bytes());
        reply.attribute(SEG6_IPTUNNEL_SRH, &value);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::encap::tests::{as_attribute, written};

    /// An SRH of `segments`, the first to be visited first.
    pub(crate) fn srh(segments: &[Ipv6Addr]) -> Vec<u8> {
        let last = segments.len() as u8 - 1;
        let mut bytes = vec![0, segments.len() as u8 * 2, 4, last, last, 0, 0, 0];
        segments.iter().rev().for_each(|s| bytes.extend_from_slice(&s.octets()));
        bytes
    }

    pub(crate) fn segments() -> impl Strategy<Value = Vec<Ipv6Addr>> {
        proptest::collection::vec(any::<u128>().prop_map(Ipv6Addr::from_bits), 1..=31)
    }

    #[test]
    fn reads_the_first_segment() {
        let list = [Ipv6Addr::from_bits(1), Ipv6Addr::from_bits(2)];
        let srh = SegmentList::parse(&srh(&list)).unwrap();
        assert_eq!(srh.first(), list[0]);
        assert!(srh.segments().rev().eq(list));
        assert!(srh.tlvs().is_empty() && !srh.hmac());
    }

    #[test]
    fn refuses_what_linux_refuses() {
        let good = srh(&[Ipv6Addr::from_bits(1), Ipv6Addr::from_bits(2)]);
        for (at, value) in [(1, 3), (1, 6), (2, 3), (3, 2), (4, 2)] {
            let mut bad = good.clone();
            bad[at] = value;
            assert!(SegmentList::parse(&bad).is_err(), "byte {at} = {value}");
        }
        for len in 0..good.len() {
            assert!(SegmentList::parse(&good[..len]).is_err());
        }
        assert!(SegmentList::parse(&good).is_ok());
        let mut tlv = good;
        tlv[1] += 1;
        tlv.extend_from_slice(&[5, 6, 0, 0, 0, 0, 0, 0]);
        assert_eq!(SegmentList::parse(&tlv).unwrap().tlvs().len(), 8);
        *tlv.last_chunk_mut::<8>().unwrap() = [5, 7, 0, 0, 0, 0, 0, 0];
        assert!(SegmentList::parse(&tlv).is_err());
    }

    /// iproute2 6.1: `… encap seg6 mode encap segs ::1 hmac 0x12`.
    #[test]
    fn hmac_key() {
        let mut bytes = srh(&[Ipv6Addr::LOCALHOST]);
        (bytes[1], bytes[5]) = (7, 8);
        bytes.extend_from_slice(&[5, 38, 0, 0, 0, 0, 0, 0x12]);
        bytes.resize(64, 0);
        let list = SegmentList::parse(&bytes).unwrap();
        assert_eq!((list.hmac(), list.hmac_key()), (true, Some(0x12)));
        bytes[5] = 0;
        assert_eq!(SegmentList::parse(&bytes).unwrap().hmac_key(), None, "the flag says none");
        let mut bare = srh(&[Ipv6Addr::LOCALHOST]);
        bare[5] = 8;
        let bare = SegmentList::parse(&bare).unwrap();
        assert_eq!((bare.hmac(), bare.hmac_key()), (true, None));
    }

    proptest! {
        #[test]
        fn round_trip(list in segments(), mode in 0u32..5) {
            let seg6 = Seg6 {
                mode: Mode::from_number(mode).unwrap(),
                srh: SegmentList::parse(&srh(&list)).unwrap(),
            };
            let bytes = written(|reply| seg6.write(reply));
            prop_assert_eq!(Seg6::parse(&as_attribute(&bytes), AF_INET6 as u8), Ok(seg6));
        }

        #[test]
        fn never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..96)) {
            if let Ok(seg6) = Seg6::parse(&as_attribute(&bytes), AF_INET6 as u8) {
                let _ = (seg6.srh.first(), seg6.srh.tlvs(), seg6.srh.segments().count());
            }
            if let Ok(srh) = SegmentList::parse(&bytes) {
                let _ = (srh.first(), srh.tlvs(), srh.segments().count(), srh.hmac_key());
            }
        }
    }
}
