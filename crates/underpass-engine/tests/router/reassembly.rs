//! Fragments for the router itself, and datagrams that a kernel has put together.

use super::lab;
use super::lab::{Lab, Watcher, frame, ip4, ip6};
use super::pair;
use super::pair::{Pair, every, forwarded, inner4, inner6, outer4};
use proptest::prelude::*;
use underpass_engine::buffer::{HEADROOM, Offload, Packet, PortId, Segment, SegmentKind};
use underpass_engine::counters::Direction;
use underpass_engine::tables::{SourcePort, TunnelKind};
use underpass_engine::trace::{Event, Watch};
use underpass_engine::worker::Burst;
use underpass_packet::checksum::Sum;
use underpass_packet::{FromBytes, checksum, ipv4, ipv6, protocol};

/// A fragment of `packet`: its payload from `from` on, `len` bytes of it at most.
fn fragment(packet: &[u8], from: usize, len: usize) -> Vec<u8> {
    if packet[0] >> 4 == 4 {
        let payload = &packet[20..];
        let end = payload.len().min(from + len);
        let mut fragment = [&packet[..20], &payload[from..end]].concat();
        let (header, _) = ipv4::Header::mut_from_prefix(&mut fragment).unwrap();
        let more = if end < payload.len() { ipv4::MORE_FRAGMENTS } else { 0 };
        header.flags_offset = (more | (from / 8) as u16).into();
        header.total_length = ((end - from + 20) as u16).into();
        header.fill_checksum(&[]);
        return fragment;
    }
    // Behind the encapsulation limit, as Linux cuts.
    let (at, named) = if packet[6] == protocol::DESTINATION_OPTIONS { (48, 40) } else { (40, 6) };
    let payload = &packet[at..];
    let end = payload.len().min(from + len);
    let [high, low] = (from as u16 | u16::from(end < payload.len())).to_be_bytes();
    let mut fragment =
        [&packet[..at], &[packet[named], 0, high, low, 0, 0, 0, 7], &payload[from..end]].concat();
    fragment[named] = protocol::FRAGMENT;
    let length = (fragment.len() - 40) as u16;
    fragment[4..6].copy_from_slice(&length.to_be_bytes());
    fragment
}

/// All of them, of so many bytes each.
fn fragments(packet: &[u8], len: usize) -> Vec<Vec<u8>> {
    let headers = match packet[0] >> 4 {
        4 => 20,
        _ if packet[6] == protocol::DESTINATION_OPTIONS => 48,
        _ => 40,
    };
    (0..packet.len() - headers).step_by(len).map(|from| fragment(packet, from, len)).collect()
}

fn frames(packets: &[Vec<u8>]) -> Vec<Vec<u8>> {
    packets.iter().map(|packet| frame(pair::ethertype(packet), packet)).collect()
}

/// Outer packets of every kind of tunnel that come in fragments, in whatever order and twice: what is inside comes out
/// as if they had not.
#[test]
fn outer_fragments() {
    for (n, sample) in every().iter().enumerate() {
        let mut pair = Pair::new(sample);
        for inner in [inner4(1300), inner6(1300)] {
            let Some(wire) = pair.wire(&inner) else { continue };
            let Some(whole) = pair.far(&wire) else { continue };
            let mut parts = fragments(&wire, 8 * (10 + n % 50));
            let length = parts.len();
            parts.rotate_left(n % length);
            if n % 2 == 0 {
                parts.reverse();
            }
            parts.insert(length / 2, parts[0].clone());
            if sample.receive.sequence {
                // The number has come.
                pair.far.send(&frames(&parts));
                continue;
            }
            for watched in [false, true] {
                let frames = frames(&parts);
                let out = if watched {
                    pair.far.send_watched(&frames, &mut Watcher)
                } else {
                    pair.far.send(&frames)
                };
                let [(1, out)] = &out[..] else { panic!("{sample:?}: {out:?} {:?}", pair.far.drops()) };
                assert_eq!(out[14..], whole, "{sample:?}");
                assert_eq!(pair.far.worker.held(), 0);
            }
            assert_eq!(whole, forwarded(&forwarded(&inner)));
        }
        pair.assert_accounted();
    }
}

/// What has an outer packet of 64 KiB inside is longer than the slots of the pool, and one that says that it is longer
/// than any packet can be is refused.
#[test]
fn too_long() {
    let mut lab = Lab::new();
    let long = ip4([10, 0, 0, 2], [10, 0, 0, 1], protocol::UDP, &[7; 60_000]);
    assert!(lab.send(&frames(&fragments(&long, 1480))).is_empty());
    assert_eq!(lab.drops(), [("no-buffer", 1)]);
    let [header, payload] = [&long[..20], &long[20..1500]];
    let mut last = [header, payload].concat();
    let (header, _) = ipv4::Header::mut_from_prefix(&mut last).unwrap();
    (header.flags_offset, header.total_length) = (8191.into(), 1500.into());
    header.fill_checksum(&[]);
    lab.send(&frames(&[last]));
    lab.send(&frames(&[fragment(&long, 0, 1480)]));
    assert_eq!((lab.worker.held(), lab.worker.undecided()), (1, 0), "a fragment that is kept is delivered");
    lab.assert_accounted();
}

/// Linux 6.12: a ping of 3,000 bytes to an address of the router's that has no kernel beside it.
#[test]
fn a_ping_in_fragments_is_answered() {
    let mut lab = Lab::new();
    let mut echo = [&[8, 0, 0, 0, 0, 1, 0, 1][..], &[0x55; 2000]].concat();
    let sum = checksum::of(&echo);
    echo[2..4].copy_from_slice(&sum.to_be_bytes());
    let ping = ip4([10, 0, 0, 2], [10, 0, 0, 1], protocol::ICMP, &echo);
    let out = lab.send(&frames(&fragments(&ping, 1000)));
    // The reply is longer than the MTU.
    assert_eq!(out.len(), 2, "{:?}", lab.drops());
    assert!(
        out.iter().all(|(port, frame)| *port == 0 && frame[14 + 12..14 + 20] == [10, 0, 0, 1, 10, 0, 0, 2])
    );

    let mut echo = [&[128, 0, 0, 0, 0, 1, 0, 1][..], &[0x55; 1200]].concat();
    let (source, destination) = (lab::v6("fd00::2").octets(), lab::v6("fd00::1").octets());
    let sum = Sum::pseudo_ipv6(source, destination, protocol::ICMPV6, echo.len() as u32);
    let sum = sum.add_bytes(&echo).checksum();
    echo[2..4].copy_from_slice(&sum.to_be_bytes());
    let ping = ip6("fd00::2", "fd00::1", protocol::ICMPV6, &echo);
    let out = lab.send(&frames(&fragments(&ping, 800)));
    let [(0, reply)] = &out[..] else { panic!("{out:?} {:?}", lab.drops()) };
    assert_eq!((reply[14 + 40], reply.len()), (129, 14 + ping.len()));
    lab.assert_accounted();
}

/// What Linux refuses: all that came of a packet goes where it has an overlap or contradicts itself; what comes twice
/// goes alone.
#[test]
fn refused() {
    let whole = outer4(protocol::IPV4, &inner4(400));
    let part = |from: usize, len: usize| fragment(&whole, from, len);
    let last = whole.len() - 20;
    let try_all = |parts: &[Vec<u8>]| {
        let mut pair = Pair::of(TunnelKind::Ipip, |_| {});
        let out = pair.near.send(&frames(parts));
        pair.near.assert_accounted();
        (pair.near.drops().first().map_or("", |(name, _)| name), pair.near.worker.held(), out.len())
    };
    // The far end's packets, at the near one: they lead back to port 0.
    let forward = |parts: &[Vec<u8>]| try_all(parts).2;
    assert_eq!(forward(&[part(0, 96), part(96, last)]), 1);
    assert_eq!(try_all(&[part(0, 96), part(0, 96)]), ("fragment-duplicate", 1, 0));
    assert_eq!(try_all(&[part(0, 48), part(48, 48), part(16, 64)]), ("fragment-duplicate", 1, 0));
    assert_eq!(try_all(&[part(0, 96), part(48, 96)]), ("fragment-overlap", 0, 0));
    assert_eq!(try_all(&[part(48, 96), part(0, 96)]), ("fragment-overlap", 0, 0));
    assert_eq!(try_all(&[part(48, 96), part(0, 200)]), ("fragment-overlap", 0, 0));
    // Two ends, and more behind the end.
    let mut end = part(200, 40);
    let (header, _) = ipv4::Header::mut_from_prefix(&mut end).unwrap();
    header.flags_offset = (200 / 8).into();
    header.fill_checksum(&[]);
    assert_eq!(try_all(&[end.clone(), part(400, last)]), ("fragment-malformed", 0, 0));
    assert_eq!(try_all(&[part(240, 40), end.clone()]), ("fragment-malformed", 0, 0));
    assert_eq!(try_all(&[end, part(240, 40)]), ("fragment-malformed", 0, 0));
    // Nothing in it, once it is cut to a multiple of 8 bytes.
    assert_eq!(try_all(&[part(8, 7)]), ("fragment-malformed", 0, 0));
    // Congestion in one fragment is congestion; in one of those that cannot say so it is a contradiction.
    let with = |part: Vec<u8>, tos: u8| {
        let mut part = part;
        ipv4::Header::mut_from_prefix(&mut part).unwrap().0.update_tos(tos);
        part
    };
    let ecn = |first, second| try_all(&[with(part(0, 96), first), with(part(96, last), second)]).0;
    assert_eq!(ecn(0, 3), "fragment-malformed");
    assert_eq!(ecn(1, 2), "");
    // And then what is inside says that it does not know of congestion.
    assert_eq!(ecn(2, 3), "tunnel-ecn");
}

/// RFC 8200 section 4.5: lengths that are no multiple of 8, ends behind the longest packet, and first fragments
/// without the upper layer's header.
#[test]
fn refused_in_ipv6() {
    let whole = ip6("fd00::2", "fd00::1", protocol::UDP, &[0; 400]);
    let try_one = |part: Vec<u8>| {
        let mut lab = Lab::new();
        let out = lab.send(&frames(&[part]));
        lab.assert_accounted();
        let told = out.first().map(|(_, frame)| {
            (frame[14 + 40], frame[14 + 41], u32::from_be_bytes(*frame[14 + 44..].first_chunk().unwrap()))
        });
        (lab.drops().first().map_or("", |(name, _)| name), told)
    };
    assert_eq!(try_one(fragment(&whole, 0, 41)), ("fragment-malformed", Some((4, 0, 4))));
    let mut far = fragment(&whole, 0, 400);
    far[42..44].copy_from_slice(&65_528_u16.to_be_bytes());
    assert_eq!(try_one(far), ("fragment-malformed", Some((4, 0, 42))));
    let mut short = fragment(&ip6("fd00::2", "fd00::1", protocol::TCP, &[0; 400]), 0, 16);
    short[4..6].copy_from_slice(&24_u16.to_be_bytes());
    assert_eq!(try_one(short), ("fragment-malformed", Some((4, 3, 0))));
}

/// Time, and who is told that it is over.
#[test]
fn given_up() {
    let parts = fragments(&outer4(protocol::UDP, &[0; 400]), 200);
    let six = fragments(&ip6("fd00::2", "fd00::1", protocol::UDP, &[0; 400]), 200);
    let mut lab = Lab::new();
    lab.send(&frames(&[parts[0].clone(), six[0].clone()]));
    lab.worker.give_up(29_999_999_999, None);
    assert_eq!(lab.worker.held(), 2);
    // Without another packet, too.
    assert_eq!(lab.worker.deadline(), Some(30_000_000_000));
    lab.worker.advance(30_000_000_000, None);
    assert_eq!((lab.worker.held(), lab.worker.deadline()), (1, Some(60_000_000_000)));
    lab.worker.give_up(60_000_000_000, None);
    let told = lab.send(&[]);
    let [(0, four), (0, six_told)] = &told[..] else { panic!("{told:?}") };
    // Time exceeded, code 1, from the address that they were for; with the first fragment in it.
    assert_eq!(four[14 + 20..14 + 22], [11, 1]);
    assert_eq!(four[14 + 12..14 + 20], [10, 0, 0, 1, 10, 0, 0, 2]);
    assert_eq!(four[14 + 28..][..parts[0].len()], parts[0]);
    assert_eq!(six_told[14 + 40..14 + 42], [3, 1]);
    assert_eq!(six_told[14 + 48..][..six[0].len()], six[0]);
    assert_eq!(lab.drops(), [("reassembly-timeout", 2)]);
    // Nobody, where the first has not come.
    lab.send(&frames(&parts[1..2]));
    lab.worker.give_up(u64::MAX, None);
    assert!(lab.send(&[]).is_empty());
    assert_eq!(lab.drops(), [("reassembly-timeout", 3)]);
    lab.assert_accounted();
}

/// An IPv4 fragment that is not the last, and whose payload is no multiple of eight bytes: as much of it as is kept is
/// quoted, below the header as it came. Linux 6.12 sends the same.
#[test]
fn given_up_with_bytes_beyond() {
    for inside in [protocol::UDP, protocol::IPV6] {
        let mut part = fragment(&outer4(inside, &[7; 400]), 0, 200);
        part.extend([7; 4]);
        let (header, _) = ipv4::Header::mut_from_prefix(&mut part).unwrap();
        header.total_length = 224.into();
        header.fill_checksum(&[]);
        let mut lab = Lab::new();
        lab.send(&frames(&[part.clone()]));
        lab.worker.give_up(u64::MAX, None);
        let told = lab.send(&[]);
        let [(0, message)] = &told[..] else { panic!("{told:?}") };
        assert_eq!(message[14 + 20..14 + 22], [11, 1]);
        assert_eq!(message[14 + 28..], part[..220]);
        lab.assert_accounted();
    }
}

/// Many packets of which the rest never comes: the oldest make room, and those that come whole get through.
#[test]
fn room_for_others() {
    let mut lab = Lab::new();
    let whole = outer4(protocol::UDP, &[0; 1400]);
    for identification in 0..2000_u16 {
        let mut part = fragment(&whole, 0, 1000);
        let (header, _) = ipv4::Header::mut_from_prefix(&mut part).unwrap();
        header.identification = identification.into();
        header.fill_checksum(&[]);
        lab.send(&frames(&[part]));
    }
    assert_eq!((lab.worker.held(), lab.drops()), (256, vec![("reassembly-full", 1744)]));
    lab.assert_accounted();
}

/// Datagrams that a kernel has put together are taken out of the tunnel one by one, with every kind of tunnel in UDP.
#[test]
fn datagrams_together() {
    for sample in
        every().iter().filter(|sample| sample.udp.is_some_and(|udp| udp.source_port != SourcePort::LOCAL))
    {
        let mut pair = Pair::new(sample);
        let inner = [inner4(500), inner4(500), inner4(80)];
        let wires: Vec<_> = inner.iter().filter_map(|inner| pair.wire(inner)).collect();
        // SIT's port says that IPv6 is inside.
        if wires.is_empty() || sample.receive.sequence || pair.far(&wires[0]).is_none() {
            continue;
        }
        let at = if wires[0][0] >> 4 == 4 {
            20
        } else if sample.encapsulation_limit.is_some() {
            48
        } else {
            40
        };
        let mut together = wires[0][..at + 8].to_vec();
        wires.iter().for_each(|wire| together.extend(&wire[at + 8..]));
        pair::mend(&mut together);
        let length = (together.len() - at) as u16;
        together[at + 4..at + 6].copy_from_slice(&length.to_be_bytes());
        let pseudo = if at == 20 {
            let (ip, _) = ipv4::Header::ref_from_prefix(&together).unwrap();
            Sum::pseudo_ipv4(ip.source, ip.destination, protocol::UDP, length)
        } else {
            let (ip, _) = ipv6::Header::ref_from_prefix(&together).unwrap();
            Sum::pseudo_ipv6(ip.source, ip.destination, protocol::UDP, length.into())
        };
        together[at + 6..at + 8].copy_from_slice(&pseudo.fold().to_be_bytes());
        let mut packet = pair.far.worker.pool().take().unwrap();
        packet.set(HEADROOM, &frame(pair::ethertype(&together), &together)).unwrap();
        let size = (wires[0].len() - at - 8) as u16;
        let segment = Some(Segment { size, kind: SegmentKind::Udp });
        packet.set_offload(Offload { start: 14 + at, field: 6, segment });
        let mut burst = Burst::new();
        burst.push(packet);
        let mut seen = Seen::default();
        pair.far.worker.process(PortId(0), &mut burst, 0, Some(&mut seen));
        let out: Vec<_> = pair.far.send(&[]).into_iter().map(|(_, frame)| frame[14..].to_vec()).collect();
        let wanted = inner.map(|inner| forwarded(&forwarded(&inner)));
        assert_eq!(out, wanted, "{sample:?}: {:?}", pair.far.drops());
        assert_eq!(pair.far.writer.link_count(pair.links[1], Direction::Receive).packets, 4);
        assert!(seen.0.contains(&Event::Datagrams));
        pair.assert_accounted();
    }
}

#[derive(Default)]
struct Seen(Vec<Event>);

impl Watch for Seen {
    fn step(&mut self, event: Event, _: &Packet) {
        self.0.push(event);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Any pieces of any packets, in any order: nothing panics, all is accounted for, and what comes out is what went
    /// in.
    #[test]
    fn any_pieces(
        pieces in proptest::collection::vec((0..3_u16, 0..60_usize, 1..400_usize), 1..300), ipv6 in any::<bool>(),
    ) {
        let mut pair = Pair::of(if ipv6 { TunnelKind::Ip6tnl } else { TunnelKind::Ipip }, |_| {});
        let inner = inner4(451);
        let wire = pair.wire(&inner).unwrap();
        let end = wire.len() - if ipv6 { 40 } else { 20 };
        for (identification, from, len) in pieces {
            let mut part = fragment(&wire, 8 * from.min(end / 8), len);
            if ipv6 {
                part[47] = identification as u8;
            } else {
                let (header, _) = ipv4::Header::mut_from_prefix(&mut part).unwrap();
                header.identification = identification.into();
                header.fill_checksum(&[]);
            }
            for (port, out) in pair.far.send(&[frame(pair::ethertype(&part), &part)]) {
                let told = port == 0 && ipv6;
                prop_assert!(told || out[14..] == forwarded(&forwarded(&inner)));
            }
        }
        pair.far.assert_accounted();
    }
}
