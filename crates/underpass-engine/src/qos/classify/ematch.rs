//! Extended matches: Linux's `net/sched/ematch.c` and `em_*.c`.

use underpass_packet::{ethernet, ipv6_ext, protocol};

use crate::qos::subject::Subject;
use crate::tables::{
    Ematch, EmatchCmp, EmatchCompare, EmatchJoin, EmatchLayer, EmatchTest, MetaTerm, MetaValue,
};

const ETHERNET: i64 = ethernet::Header::LEN as i64;

/// Whether a sequence of matches holds for a packet; an empty one does.
pub(crate) fn hold(matches: &[Ematch], subject: &Subject<'_>, random: u32) -> bool {
    let mut result = true;
    for ematch in matches {
        result = test(&ematch.test, subject, random) != ematch.invert;
        if result == (ematch.join == EmatchJoin::Or) {
            break;
        }
    }
    result
}

fn test(test: &EmatchTest, subject: &Subject<'_>, random: u32) -> bool {
    match test {
        EmatchTest::Group(matches) => hold(matches, subject, random),
        EmatchTest::Cmp(cmp) => compares(cmp, subject),
        EmatchTest::U32 { value, mask, offset } => {
            let found = subject.bytes((*offset).into()).map(u32::from_be_bytes);
            found.is_some_and(|found| (found ^ value) & mask == 0)
        }
        EmatchTest::Nbyte { layer, offset, bytes } => {
            base(*layer, subject).is_some_and(|base| subject.has(base + i64::from(*offset), bytes))
        }
        EmatchTest::Meta { left, compare, right } => {
            compared(term(left, subject, random), *compare, term(right, subject, random))
        }
    }
}

fn compared<N: Ord>(left: N, compare: EmatchCompare, right: N) -> bool {
    match compare {
        EmatchCompare::Equal => left == right,
        EmatchCompare::Less => left < right,
        EmatchCompare::Greater => left > right,
    }
}

/// `em_cmp_match`.
fn compares(cmp: &EmatchCmp, subject: &Subject<'_>) -> bool {
    let found = base(cmp.layer, subject).and_then(|base| {
        let at = base + i64::from(cmp.offset);
        Some(match (cmp.width, cmp.swap) {
            (1, _) => subject.bytes::<1>(at)?[0].into(),
            (2, false) => u16::from_be_bytes(subject.bytes(at)?).into(),
            (2, true) => u16::from_le_bytes(subject.bytes(at)?).into(),
            (4, false) => u32::from_be_bytes(subject.bytes(at)?),
            (4, true) => u32::from_le_bytes(subject.bytes(at)?),
            _ => return None,
        })
    });
    let mask = if cmp.mask == 0 { u32::MAX } else { cmp.mask };
    found.is_some_and(|found| compared(found & mask, cmp.compare, cmp.value))
}

/// Where a layer begins, behind the network header.
fn base(layer: EmatchLayer, subject: &Subject<'_>) -> Option<i64> {
    match layer {
        EmatchLayer::Link => Some(-ETHERNET),
        EmatchLayer::Network => Some(0),
        EmatchLayer::Transport => Some(transport(subject)? as i64),
    }
}

/// Where the transport header of an IP packet is.
fn transport(subject: &Subject<'_>) -> Option<usize> {
    let packet = subject.network();
    match (subject.inner_protocol(), packet.first()?) {
        (ethernet::IPV4, first) => {
            let at = usize::from(first & 15) * 4;
            (at >= 20).then_some(at)
        }
        (ethernet::IPV6, _) => behind_extensions(packet).map(|(_, at)| at),
        _ => None,
    }
}

/// The protocol behind the extension headers of an IPv6 packet, and where it begins. `None`: the packet ends before.
pub(super) fn behind_extensions(packet: &[u8]) -> Option<(u8, usize)> {
    let (mut next, mut at) = (*packet.get(6)?, 40);
    for _ in 0..ipv6_ext::MAX_HEADERS {
        match next {
            protocol::HOP_BY_HOP | protocol::ROUTING | protocol::DESTINATION_OPTIONS => {
                let [after, len] = *packet.get(at..)?.first_chunk()?;
                (next, at) = (after, at + (usize::from(len) + 1) * 8);
            }
            // As in IPv4, also where it is not the first fragment.
            protocol::FRAGMENT => return Some((*packet.get(at)?, at + 8)),
            _ => return Some((next, at)),
        }
    }
    None
}

/// A side of a `meta` match: `em_meta.c`.
fn term(term: &MetaTerm, subject: &Subject<'_>, random: u32) -> u64 {
    let MetaTerm::Of { value, shift, mask } = term else {
        let MetaTerm::Number(number) = term else { return 0 };
        return *number;
    };
    let found = match value {
        MetaValue::Random => random.into(),
        MetaValue::Priority => subject.tag().priority.into(),
        // As it is on the wire, in the order of this machine's bytes: `tc` says `meta(protocol eq …)` so.
        MetaValue::Protocol => subject.protocol.into(),
        MetaValue::PacketType => subject.packet_type().into(),
        MetaValue::PacketLength => subject.len() as u64,
        MetaValue::DataLength => 0,
        MetaValue::MacLength => ETHERNET as u64,
        MetaValue::Mark => subject.tag().mark.into(),
        MetaValue::TcIndex => subject.tag().index.into(),
        MetaValue::Device => subject.place.ifindex.into(),
        MetaValue::IngressDevice => subject.received_by().map_or(0, |(_, ifindex)| ifindex).into(),
        MetaValue::VlanTag => subject.vlan.map_or(0, |(_, tci)| tci).into(),
    };
    let shifted = found.checked_shr((*shift).into()).unwrap_or(0);
    if *mask == 0 { shifted } else { shifted & mask }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::{Pool, Tag};
    use crate::qos::subject::tests::{PLACE, packet};

    /// TCP from 10.0.0.1 to 10.0.0.2 behind 4 bytes of options, with a VLAN tag.
    fn frame() -> Vec<u8> {
        let mut frame = [&[0xff; 6][..], &[2; 6], &[0x81, 0, 0x20, 7, 8, 0]].concat();
        frame.extend([0x46, 0, 0, 44, 0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 1, 1, 1, 0]);
        frame.extend([0x12, 0x34, 0, 80, 0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x12, 0, 0, 0, 0, 0, 0]);
        frame
    }

    fn one(test: EmatchTest) -> Ematch {
        Ematch { invert: false, test, join: EmatchJoin::And }
    }

    fn holds(matches: &[Ematch]) -> bool {
        let mut pool = Pool::new(1);
        let mut packet = packet(&mut pool, &frame());
        packet.set_tag(Tag { mark: 0x123, priority: 9, index: 4, ..Tag::default() });
        hold(matches, &Subject::of(&packet, &PLACE).unwrap(), 77)
    }

    fn cmp(layer: EmatchLayer, offset: u16, width: u8, compare: EmatchCompare, value: u32) -> EmatchTest {
        EmatchTest::Cmp(EmatchCmp { layer, offset, width, swap: false, mask: 0, compare, value })
    }

    #[test]
    fn numbers_in_the_packet() {
        use EmatchCompare::{Equal, Greater, Less};
        use EmatchLayer::{Link, Network, Transport};
        for (wanted, test) in [
            (true, cmp(Network, 2, 2, Equal, 44)),
            (true, cmp(Network, 8, 1, Greater, 63)),
            (false, cmp(Network, 8, 1, Less, 64)),
            (true, cmp(Network, 16, 4, Equal, 0x0a00_0002)),
            (true, cmp(Transport, 2, 2, Equal, 80)),
            (false, cmp(Transport, 20, 1, Equal, 0)),
            (true, cmp(Link, 0, 4, Equal, 0xffff_ffff)),
            (true, cmp(Link, 12, 2, Equal, 0x0800)),
            (false, cmp(Network, 0, 3, Equal, 0)),
            (true, EmatchTest::U32 { value: 0x0a00_0001, mask: 0xffff_ff00, offset: 16 }),
            (false, EmatchTest::U32 { value: 0, mask: 0, offset: 41 }),
            (true, EmatchTest::Nbyte { layer: Transport, offset: 0, bytes: [0x12, 0x34, 0, 80].into() }),
            (false, EmatchTest::Nbyte { layer: Transport, offset: 0, bytes: [0x12, 0x35].into() }),
            (true, EmatchTest::Nbyte { layer: Link, offset: 6, bytes: [2; 6].into() }),
        ] {
            assert_eq!(holds(&[one(test.clone())]), wanted, "{test:?}");
        }
        let swapped = EmatchCmp {
            layer: Transport,
            offset: 0,
            width: 2,
            swap: true,
            mask: 0xff,
            compare: Equal,
            value: 0x12,
        };
        assert!(holds(&[one(EmatchTest::Cmp(swapped))]));
    }

    #[test]
    fn what_goes_along() {
        let meta = |value, shift, mask, compare, number| {
            let left = MetaTerm::Of { value, shift, mask };
            holds(&[one(EmatchTest::Meta { left, compare, right: MetaTerm::Number(number) })])
        };
        for (value, number) in [
            (MetaValue::Random, 77),
            (MetaValue::Priority, 9),
            (MetaValue::Protocol, 0x8100),
            (MetaValue::PacketType, 1),
            (MetaValue::PacketLength, 44),
            (MetaValue::DataLength, 0),
            (MetaValue::MacLength, 14),
            (MetaValue::Mark, 0x123),
            (MetaValue::TcIndex, 4),
            (MetaValue::Device, 5),
            (MetaValue::IngressDevice, 5),
            (MetaValue::VlanTag, 0x2007),
        ] {
            assert!(meta(value, 0, 0, EmatchCompare::Equal, number), "{value:?}");
            assert!(!meta(value, 0, 0, EmatchCompare::Greater, number), "{value:?}");
        }
        assert!(meta(MetaValue::Mark, 4, 0xf, EmatchCompare::Equal, 2));
        assert!(meta(MetaValue::Mark, 200, 0, EmatchCompare::Equal, 0));
    }

    /// A sequence has no precedence: what is in front decides whether the rest is tested.
    #[test]
    fn sequences() {
        use EmatchJoin::{And, Or};
        let is = |truth: bool, invert, join| {
            let right = MetaTerm::Number(u64::from(truth));
            let test = EmatchTest::Meta { left: MetaTerm::Number(1), compare: EmatchCompare::Equal, right };
            Ematch { invert, test, join }
        };
        let (yes, no) = (|join| is(true, false, join), |join| is(false, false, join));
        assert!(holds(&[]));
        assert!(holds(&[yes(And), yes(And)]) && !holds(&[yes(And), no(And)]) && !holds(&[no(And), yes(And)]));
        assert!(holds(&[no(Or), yes(Or)]) && holds(&[yes(Or), no(Or)]) && !holds(&[no(Or), no(Or)]));
        // a or (b and c); a and (b or c).
        assert!(holds(&[yes(Or), no(And), no(And)]) && !holds(&[no(And), yes(Or), yes(Or)]));
        assert!(holds(&[is(false, true, And), is(true, false, And)]) && !holds(&[is(true, true, And)]));
        let group = |matches: &[Ematch], invert| Ematch {
            invert,
            test: EmatchTest::Group(matches.to_vec()),
            join: And,
        };
        assert!(holds(&[group(&[no(Or), yes(Or)], false), yes(And)]));
        assert!(!holds(&[group(&[no(Or), yes(Or)], true), yes(And)]));
    }

    #[test]
    fn headers_of_ipv6() {
        let mut packet = vec![0; 40];
        packet[6] = protocol::HOP_BY_HOP;
        packet.extend([protocol::ROUTING, 0, 0, 0, 0, 0, 0, 0]);
        packet.extend([protocol::UDP, 1]);
        packet.extend([0; 14]);
        assert_eq!(behind_extensions(&packet), Some((protocol::UDP, 64)));
        assert_eq!(behind_extensions(&packet[..48]), None);
        assert_eq!(behind_extensions(&packet[..6]), None);
        packet[40] = protocol::FRAGMENT;
        assert_eq!(behind_extensions(&packet), Some((protocol::UDP, 56)));
        assert_eq!(behind_extensions(&packet[..48]), None);
        let endless = vec![0; 40 + 8 * 100];
        assert_eq!(behind_extensions(&endless), None);
    }
}
