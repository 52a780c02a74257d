//! The hash that keeps a flow on one path.
//!
//! Over the addresses, the flow label and the upper-layer ports, of the packet and of the packet inside
//! (IP in IP, with or without an SRH between), so that the flows of one tunnel spread as well as
//! flows that are not tunnelled.

use std::net::Ipv6Addr;

use underpass_packet::FromBytes;
use underpass_packet::mpls::{self, Entry};

/// Packets inside packets that are looked into.
const DEPTH: usize = 2;

const HOP_BY_HOP: u8 = 0;
const IPIP: u8 = 4;
const TCP: u8 = 6;
const UDP: u8 = 17;
const IPV6: u8 = 41;
const ROUTING: u8 = 43;
const GRE: u8 = 47;
const DESTINATION: u8 = 60;
const SCTP: u8 = 132;

/// A 31-bit hash of the flow that a layer-3 packet belongs to. Any bytes have one.
pub fn hash(packet: &[u8]) -> u32 {
    let mut hash = Hasher::new();
    let mut rest = packet;
    for _ in 0..DEPTH {
        match network(&mut hash, rest) {
            Some(inner) => rest = inner,
            None => break,
        }
    }
    hash.finish()
}

/// The same of an IPv6 packet as it will be on its way to this segment, whether the routing header with the segment stays
/// or not. `None`: another routing header follows.
pub(crate) fn hash_towards(packet: &[u8], segment: Ipv6Addr) -> Option<u32> {
    let (fixed, upper) = packet.split_first_chunk::<40>()?;
    if fixed[6] == ROUTING && *upper.first()? == ROUTING {
        return None;
    }
    let mut hash = Hasher::new();
    if let Some(inner) = network6(&mut hash, fixed, &segment.octets(), fixed[6], upper) {
        network(&mut hash, inner);
    }
    Some(hash.finish())
}

/// The same of a packet that is still to be put behind an IPv6 header, with or without a routing header, which says that
/// this protocol follows.
pub(crate) fn hash_behind(outer: &[u8; 40], protocol: u8, packet: &[u8]) -> u32 {
    let mut hash = Hasher::new();
    if let Some(inner) = network6(&mut hash, outer, &outer[24..], protocol, packet) {
        network(&mut hash, inner);
    }
    hash.finish()
}

/// Headers that are looked behind for the hosts of a packet.
const HEADERS: usize = 8;

/// 31-bit hashes of the source and of the destination of a layer-3 packet: of the innermost packet in it, as far as no IPv6
/// header has a flow label, which says enough. Any bytes have both; without addresses they are 0.
pub(crate) fn hash_hosts(packet: &[u8]) -> (u32, u32) {
    let mut hosts = (0, 0);
    let of = |address: &[u8]| {
        let mut hash = Hasher::new();
        hash.add(address);
        hash.finish()
    };
    let mut next = Some((IPIP, packet));
    for _ in 0..HEADERS {
        next = match next {
            Some((IPIP | IPV6, packet)) => match packet.first().map_or(0, |first| first >> 4) {
                4 => packet.split_first_chunk::<20>().and_then(|(fixed, _)| {
                    hosts = (of(&fixed[12..16]), of(&fixed[16..20]));
                    let fragment = u16::from_be_bytes([fixed[6], fixed[7]]) & 0x3fff != 0;
                    let upper = packet.get(usize::from(fixed[0] & 15) * 4..)?;
                    (!fragment).then_some((fixed[9], upper))
                }),
                6 => packet.split_first_chunk::<40>().and_then(|(fixed, upper)| {
                    hosts = (of(&fixed[8..24]), of(&fixed[24..40]));
                    let labelled = (fixed[1] & 15, fixed[2], fixed[3]) != (0, 0, 0);
                    (!labelled).then_some((fixed[6], upper))
                }),
                _ => None,
            },
            Some((HOP_BY_HOP | ROUTING | DESTINATION, options)) => options
                .get(..2)
                .and_then(|fixed| Some((fixed[0], options.get((usize::from(fixed[1]) + 1) * 8..)?))),
            Some((GRE, gre)) => inside_gre(gre).map(|packet| (IPIP, packet)),
            _ => None,
        };
    }
    hosts
}

/// What GRE of version 0 has inside: a packet, or that of a frame.
fn inside_gre(gre: &[u8]) -> Option<&[u8]> {
    let fixed = gre.first_chunk::<4>()?;
    if fixed[0] & 0x40 != 0 || fixed[1] & 7 != 0 {
        return None;
    }
    let optional = (fixed[0] & 0xb0).count_ones() as usize * 4;
    let inner = gre.get(4 + optional..)?;
    match u16::from_be_bytes([fixed[2], fixed[3]]) {
        0x0800 | 0x86dd => Some(inner),
        // Whatever the frame holds, only IP has a version.
        0x6558 => inner.get(14..),
        _ => None,
    }
}

/// Labels of a stack that are looked at.
const LABELS: usize = 16;

/// A 31-bit hash of the flow that a labelled packet belongs to: its labels but for the reserved ones, and what
/// is below them; with an entropy label (RFC 6790) the labels alone.
pub fn hash_labelled(packet: &[u8]) -> u32 {
    let mut hash = Hasher::new();
    let mut entropy = false;
    for (depth, entry) in packet.as_chunks::<{ Entry::LEN }>().0.iter().take(LABELS).enumerate() {
        let Ok(entry) = Entry::read_from_bytes(entry) else { break };
        if entry.label() >= mpls::FIRST_UNRESERVED || entropy {
            hash.add(&entry.label().to_be_bytes());
        }
        if entropy {
            break;
        }
        entropy = entry.label() == mpls::ENTROPY_LABEL_INDICATOR;
        if entry.is_bottom() {
            let mut rest = packet.get((depth + 1) * Entry::LEN..).unwrap_or_default();
            for _ in 0..DEPTH {
                match network(&mut hash, rest) {
                    Some(inner) => rest = inner,
                    None => break,
                }
            }
            break;
        }
    }
    hash.finish()
}

/// Adds one network header and what follows it; returns the packet inside, if there is one.
fn network<'a>(hash: &mut Hasher, packet: &'a [u8]) -> Option<&'a [u8]> {
    let (protocol, upper) = match packet.first()? >> 4 {
        4 => {
            let fixed = packet.get(..20)?;
            hash.add(fixed.get(12..20)?);
            let upper = packet.get(usize::from(fixed[0] & 15) * 4..)?;
            // Only the first fragment has ports, and a flow's fragments must stay together.
            let fragment = u16::from_be_bytes([fixed[6], fixed[7]]) & 0x3fff != 0;
            (fixed[9], if fragment { &[] } else { upper })
        }
        6 => {
            let (fixed, upper) = packet.split_first_chunk::<40>()?;
            return network6(hash, fixed, &fixed[24..], fixed[6], upper);
        }
        _ => return None,
    };
    transport(hash, protocol, upper)
}

/// Adds an IPv6 header that is as said on the way to `destination`, with `next` and `upper` behind it.
fn network6<'a>(
    hash: &mut Hasher,
    fixed: &[u8; 40],
    destination: &[u8],
    next: u8,
    upper: &'a [u8],
) -> Option<&'a [u8]> {
    hash.add(&[fixed[1] & 0x0f, fixed[2], fixed[3]]);
    hash.add(&fixed[8..24]);
    hash.add(destination);
    match next {
        ROUTING => {
            let routing = upper.get(..2)?;
            transport(hash, routing[0], upper.get((usize::from(routing[1]) + 1) * 8..)?)
        }
        _ => transport(hash, next, upper),
    }
}

/// Adds what follows network headers.
fn transport<'a>(hash: &mut Hasher, protocol: u8, upper: &'a [u8]) -> Option<&'a [u8]> {
    hash.add(&[protocol]);
    match protocol {
        IPIP | IPV6 => Some(upper),
        TCP | UDP | SCTP => {
            hash.add(upper.get(..4)?);
            None
        }
        _ => None,
    }
}

/// Multiply and fold: not for tables that an attacker could fill, only to spread flows.
struct Hasher(u64);

impl Hasher {
    fn new() -> Self {
        Self(0x9e37_79b9_7f4a_7c15)
    }

    #[inline]
    fn add(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            let product = u128::from(self.0 ^ u64::from_le_bytes(word)) * 0xd6e8_feb8_6659_fd93;
            self.0 = (product as u64) ^ (product >> 64) as u64 ^ 0x2545_f491_4f6c_dd1d;
        }
    }

    fn finish(&self) -> u32 {
        ((self.0 ^ (self.0 >> 32)) as u32) >> 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ipv6(flow_label: u32, next_header: u8, upper: &[u8]) -> Vec<u8> {
        let mut packet = (0x6000_0000 | flow_label).to_be_bytes().to_vec();
        packet.extend([0, upper.len() as u8, next_header, 64]);
        packet.extend([0xfd; 32]);
        packet.extend(upper);
        packet
    }

    #[test]
    fn spreads_by_port_label_and_inner_port() {
        let udp = |port: u8| [0, port, 0, 53, 0, 8, 0, 0];
        let by_port: std::collections::HashSet<_> = (0..200).map(|p| hash(&ipv6(0, UDP, &udp(p)))).collect();
        let by_label: std::collections::HashSet<_> = (0..200).map(|l| hash(&ipv6(l, 59, &[]))).collect();
        let by_inner: std::collections::HashSet<_> =
            (0..200).map(|p| hash(&ipv6(0, IPV6, &ipv6(0, UDP, &udp(p))))).collect();
        assert_eq!((by_port.len(), by_label.len(), by_inner.len()), (200, 200, 200));
    }

    #[test]
    fn buckets_are_even() {
        let low = (0..10_000u32).filter(|l| hash(&ipv6(*l, 59, &[])) < 1 << 30).count();
        assert!((4_700..5_300).contains(&low), "{low} of 10,000 in the lower half");
    }

    /// Linux: `skb_flow_dissect_flow_keys` with `FLOW_DISSECTOR_F_STOP_AT_FLOW_LABEL`.
    #[test]
    fn hosts_are_those_inside() {
        let ipv4 = |protocol: u8, fragment: u8, upper: &[u8]| {
            let fixed = [0x45, 0, 0, 0, 0, 0, fragment, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
            [&fixed, upper].concat()
        };
        let plain = hash_hosts(&ipv4(UDP, 0, &[1, 2, 3, 4]));
        assert!(plain.0 != plain.1 && plain.0 != 0);
        let outer = hash_hosts(&ipv6(0, 59, &[]));
        for (inside, protocol) in [(ipv4(UDP, 0, &[]), IPIP), (ipv4(IPIP, 0, &ipv4(UDP, 0, &[])), IPIP)] {
            assert_eq!(hash_hosts(&ipv6(0, protocol, &inside)), plain);
            assert_eq!(hash_hosts(&ipv6(1, protocol, &inside)), outer);
            let routing = [&[protocol, 0, 0, 0, 0, 0, 0, 0], &inside[..]].concat();
            assert_eq!(hash_hosts(&ipv6(0, ROUTING, &routing)), plain);
            let keyed = [&[0x20, 0, 8, 0, 0, 0, 0, 7], &inside[..]].concat();
            assert_eq!(hash_hosts(&ipv6(0, GRE, &keyed)), plain);
            let framed = [&[0, 0, 0x65, 0x58], &[0; 12][..], &[8, 0], &inside[..]].concat();
            assert_eq!(hash_hosts(&ipv6(0, GRE, &framed)), plain);
        }
        let fragment = ipv4(IPV6, 0x20, &ipv6(0, 59, &[]));
        assert_eq!(hash_hosts(&fragment), plain);
        assert_eq!(hash_hosts(&ipv4(IPV6, 0, &ipv6(0, 59, &[]))), outer);
        assert_eq!(hash_hosts(&[0; 40]), (0, 0));
    }

    proptest! {
        #[test]
        fn any_hosts(bytes in proptest::collection::vec(any::<u8>(), 0..200), version in 4u8..7) {
            let mut bytes = bytes;
            if let Some(first) = bytes.first_mut() {
                *first = version << 4 | 5;
            }
            let (source, destination) = hash_hosts(&bytes);
            prop_assert!(source < 1 << 31 && destination < 1 << 31);
        }

        #[test]
        fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(hash(&bytes) < 1 << 31);
        }

        /// What is to become of a packet hashes as what has become of it.
        #[test]
        fn ahead_of_the_headers(label in 0..1u32 << 20, segment in any::<[u8; 16]>(), port in any::<u8>(), kind in 0..3) {
            let upper = [0, port, 0, 53, 0, 8, 0, 0];
            let inside = ipv6(label ^ 5, UDP, &upper);
            let routing = |next: u8, rest: &[u8]| [&[next, 2, 4, 1, 0, 0, 0, 0][..], &[9; 16], rest].concat();
            let before = match kind {
                0 => ipv6(label, UDP, &upper),
                1 => ipv6(label, ROUTING, &routing(UDP, &upper)),
                _ => ipv6(label, ROUTING, &routing(IPV6, &inside)),
            };
            let mut after = before.clone();
            after[24..40].copy_from_slice(&segment);
            prop_assert_eq!(hash_towards(&before, segment.into()), Some(hash(&after)));
            // Without the routing header.
            if kind > 0 {
                after.drain(40..64);
                after[6] = before[40];
                prop_assert_eq!(hash_towards(&before, segment.into()), Some(hash(&after)));
            }
            let outer = after.first_chunk().unwrap();
            let bare = [&outer[..6], &[IPV6], &outer[7..], &inside].concat();
            prop_assert_eq!(hash_behind(outer, IPV6, &inside), hash(&bare));
            let routed = [&outer[..6], &[ROUTING], &outer[7..], &routing(IPV6, &inside)].concat();
            prop_assert_eq!(hash_behind(outer, IPV6, &inside), hash(&routed));
            prop_assert_eq!(hash_towards(&ipv6(0, ROUTING, &routing(ROUTING, &upper)), segment.into()), None);
        }

        /// The payload does not move a flow to another path.
        #[test]
        fn payload_does_not_count(a in any::<[u8; 16]>(), b in any::<[u8; 16]>()) {
            let with = |payload: &[u8]| hash(&ipv6(7, UDP, &[&[1, 2, 3, 4, 0, 24, 0, 0], payload].concat()));
            prop_assert_eq!(with(&a), with(&b));
        }
    }
}
