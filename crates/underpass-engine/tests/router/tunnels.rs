//! IP tunnels and foo-over-UDP: there and back, what is inherited, what is too long, and checksums.

use std::net::{IpAddr, Ipv4Addr};

use super::lab::{Lab, Watcher, frame, ip4, udp, v6};
use super::pair;
use super::pair::{Pair, every, inner4, inner6, outer4};
use super::tunnel_lookup::fou;
use underpass_engine::buffer::{HEADROOM, Offload, PortId, Segment, SegmentKind};
use underpass_engine::counters::Direction;
use underpass_engine::drops::DropReason;
use underpass_engine::tables::{
    FouPayload, FouPort, GreFields, SourcePort, Tunnel, TunnelKind, TunnelTos, TunnelUdp,
};
use underpass_engine::worker::Burst;
use underpass_packet::checksum::{self, Sum};
use underpass_packet::{FromBytes, ethernet, ipv4, ipv6, protocol};

/// Into every kind of tunnel, and out at its other end.
#[test]
fn there_and_back() {
    for sample in every() {
        let mut pair = Pair::new(&sample);
        for packet in [inner4(100), inner6(100)] {
            let Some(crossed) = pair.cross(&packet) else { continue };
            assert_eq!(crossed, pair::forwarded(&pair::forwarded(&packet)), "{sample:?}");
        }
        // As in Linux, gretap counts what comes in with the header of the frame, and what goes out without.
        let (sent, mut received_by) = pair.counted();
        received_by.bytes -= if sample.kind == TunnelKind::Gretap { 14 * received_by.packets } else { 0 };
        assert!(
            sent.packets > 0 && (sent.packets, sent.bytes) == (received_by.packets, received_by.bytes),
            "{sample:?}: {sent:?} {received_by:?}"
        );
        pair.assert_accounted();
    }
}

/// The fast path and the slow path do the same, to packets of any length and with any class.
#[test]
fn fast_and_slow_path_do_the_same() {
    let mut common = 0;
    for (n, sample) in every().iter().enumerate() {
        let (mut pair, mut watched) = (Pair::new(sample), Pair::new(sample));
        let mut packets = Vec::new();
        for len in [0, 1, 2, 3, 40 + n] {
            for class in [0, 0xb8, 0xb9, 0xba, 0xbb] {
                let (mut four, mut six) = (inner4(len), inner6(len));
                ipv4::Header::mut_from_prefix(&mut four).unwrap().0.update_tos(class);
                ipv6::Header::mut_from_prefix(&mut six).unwrap().0.set_traffic_class(class);
                packets.extend([frame(ethernet::IPV4, &four), frame(ethernet::IPV6, &six)]);
            }
        }
        let wires = pair.near.send(&packets);
        assert_eq!(wires, watched.near.send_watched(&packets, &mut Watcher), "{sample:?}");
        assert_eq!(pair.counted().0, watched.counted().0);
        let wires: Vec<_> =
            wires.into_iter().map(|(_, wire)| frame(pair::ethertype(&wire[14..]), &wire[14..])).collect();
        assert!(!wires.is_empty());
        let moves = pair.near.writer.totals().buffer_moves_avoided;
        common += moves;
        let out = pair.far.send(&wires);
        assert_eq!(out, watched.far.send_watched(&wires, &mut Watcher), "{sample:?}");
        assert_eq!(pair.counted().1, watched.counted().1);
        pair.assert_accounted();
    }
    assert!(common > 0);
}

/// Many tunnels: each has its own packets, both ways.
#[test]
fn many_tunnels() {
    const COUNT: u8 = 200;
    let remote = |n: u8| Ipv4Addr::new(10, 0, 7, n);
    let mut labs = [Lab::new(), Lab::new()];
    let mut links = Vec::new();
    for lab in &mut labs {
        for n in 0..COUNT {
            let (link, mut tunnel) = pair::device(lab, TunnelKind::Ipip, 0);
            (tunnel.remote, tunnel.via.address) = (remote(n).into(), remote(n).into());
            let id = lab.writer.add_tunnel(tunnel);
            pair::route4(lab, Ipv4Addr::new(10, 20 + n, 0, 0), id);
            links.push(link);
        }
    }
    let into = |n: u8| ip4([10, 1, 0, 7], [10, 20 + n, 0, 7], protocol::UDP, &udp(9));
    let out_of = |n: u8| {
        let inside = ip4([10, 20 + n, 0, 7], [10, 1, 0, 7], protocol::UDP, &udp(9));
        ip4(remote(n).octets(), [10, 0, 0, 1], protocol::IPV4, &inside)
    };
    let numbers: Vec<u8> = (0..COUNT).map(|n| ((u32::from(n) * 77) % u32::from(COUNT)) as u8).collect();
    let [lab, watched] = &mut labs;
    for burst in numbers.chunks(20) {
        let packets: Vec<_> = burst.iter().flat_map(|n| [into(*n), out_of(*n)]).collect();
        let frames: Vec<_> = packets.iter().map(|packet| frame(ethernet::IPV4, packet)).collect();
        let sent = lab.send(&frames);
        assert_eq!(sent.len(), frames.len());
        assert_eq!(sent, watched.send_watched(&frames, &mut Watcher));
    }
    for n in 0..COUNT {
        let link = links[usize::from(n)];
        for (way, bytes) in [(Direction::Transmit, into(n).len()), (Direction::Receive, into(n).len())] {
            let count = lab.writer.link_count(link, way);
            assert_eq!((count.packets, count.bytes, count.errors), (1, bytes as u64, 0), "{n} {way:?}");
        }
    }
    assert_eq!(lab.writer.totals().buffer_moves_avoided, u64::from(COUNT));
    lab.assert_accounted();
}

/// Linux 6.12: `ip link add g1 type gre local 10.0.0.1 remote 10.0.0.2 oseq okey 7 ocsum`, the second packet.
#[test]
fn gre_with_all_fields() {
    let fields = GreFields { key: Some(7), checksum: true, sequence: true };
    let mut pair = Pair::of(TunnelKind::Gre, |tunnel| tunnel.transmit = fields);
    pair.wire(&inner4(0));
    let wire = pair.wire(&inner4(9)).unwrap();
    assert_eq!(wire[20..24], [0xb0, 0, 8, 0]);
    assert_eq!(wire[26..36], [0, 0, 0, 0, 0, 7, 0, 0, 0, 1]);
    assert_eq!(Sum::new().add_bytes(&wire[20..]).fold(), 0xffff);
    assert_eq!(wire[36..], pair::forwarded(&inner4(9))[..]);
}

/// Linux 6.12: `ip link add t1 type ip6tnl mode any local fd00::1 remote fd00::2`, an inner traffic class of 0xbb.
#[test]
fn ip6tnl_with_its_limit() {
    let mut pair = Pair::of(TunnelKind::Ip6tnl, |tunnel| tunnel.encapsulation_limit = Some(4));
    let mut inner = inner6(4);
    ipv6::Header::mut_from_prefix(&mut inner).unwrap().0.set_traffic_class(0xbb);
    let wire = pair.wire(&inner).unwrap();
    // Version, the ECN bits of the class; length, destination options, hop limit.
    assert_eq!((wire[0], wire[1] & 0xf0), (0x60, 0x20));
    assert_eq!(wire[4..8], [0, 8 + inner.len() as u8, protocol::DESTINATION_OPTIONS, 64]);
    assert_eq!(wire[40..48], [protocol::IPV6, 0, 4, 1, 4, 1, 1, 0]);
}

/// ECN outside by ECN inside, and back: RFC 6040 section 4.2; Linux's `INET_ECN_encapsulate`.
#[test]
fn ecn() {
    for (inside, outside) in [(0, 0), (1, 1), (2, 2), (3, 2)] {
        let mut pair = Pair::of(TunnelKind::Ipip, |_| {});
        let mut inner = inner4(4);
        ipv4::Header::mut_from_prefix(&mut inner).unwrap().0.update_tos(0xb8 | inside);
        assert_eq!(pair.wire(&inner).unwrap()[1], outside);
    }
    for (outside, inside, comes) in [
        (0, 0, Some(0)),
        (1, 0, Some(0)),
        (2, 0, Some(0)),
        (3, 0, None),
        (0, 1, Some(1)),
        (1, 1, Some(1)),
        (2, 1, Some(1)),
        (3, 1, Some(3)),
        (0, 2, Some(2)),
        (1, 2, Some(1)),
        (2, 2, Some(2)),
        (3, 2, Some(3)),
        (0, 3, Some(3)),
        (1, 3, Some(3)),
        (2, 3, Some(3)),
        (3, 3, Some(3)),
    ] {
        for kind in [TunnelKind::Ipip, TunnelKind::Ip6tnl] {
            let mut pair = Pair::of(kind, |_| {});
            let mut wire = pair.wire(&inner4(4)).unwrap();
            let at = if kind == TunnelKind::Ipip {
                ipv4::Header::mut_from_prefix(&mut wire).unwrap().0.update_tos(outside);
                20
            } else {
                ipv6::Header::mut_from_prefix(&mut wire).unwrap().0.set_traffic_class(outside);
                40
            };
            ipv4::Header::mut_from_prefix(&mut wire[at..]).unwrap().0.update_tos(0xb8 | inside);
            let out = pair.far(&wire);
            assert_eq!(
                out.map(|packet| packet[1]),
                comes.map(|ecn| 0xb8 | ecn),
                "{kind:?} {outside} {inside}"
            );
            assert_eq!(pair.far.writer.dropped(DropReason::TunnelEcn), u64::from(comes.is_none()));
            pair.assert_accounted();
        }
    }
}

/// What is inherited, and what is not.
#[test]
fn inherited_fields() {
    let mut inner = inner4(4);
    ipv4::Header::mut_from_prefix(&mut inner).unwrap().0.update_tos(0xb9);
    let mut pair = Pair::of(TunnelKind::Ipip, |tunnel| {
        (tunnel.ttl, tunnel.tos, tunnel.dont_fragment) = (None, TunnelTos::Inherit(0), false);
    });
    let wire = pair.wire(&inner).unwrap();
    assert_eq!((wire[1], wire[6], wire[8]), (0xb9, 0x40, 39));
    ipv4::Header::mut_from_prefix(&mut inner).unwrap().0.flags_offset = 0.into();
    ipv4::Header::mut_from_prefix(&mut inner).unwrap().0.fill_checksum(&[]);
    assert_eq!(pair.wire(&inner).unwrap()[6], 0);
    let mut pair = Pair::of(TunnelKind::Ip6tnl, |tunnel| {
        (tunnel.ttl, tunnel.tos, tunnel.flow_label) = (None, TunnelTos::Inherit(0), None);
    });
    let wire = pair.wire(&inner6(4)).unwrap();
    assert_eq!(wire[..4], inner6(4)[..4]);
    assert_eq!(wire[7], 39);
}

/// How long packets may be that go into a tunnel by a link of 1000 bytes: Linux 6.12 with routes to the remote address
/// that have this MTU, and devices that have more.
#[test]
fn too_long_for_the_way() {
    let tell = |kind: TunnelKind, mtu: u32, change: &dyn Fn(&mut Tunnel), packet: &[u8]| {
        let mut pair = Pair::of(kind, change);
        pair.narrow(mtu);
        let sent = pair.near.send(&[frame(pair::ethertype(packet), packet)]);
        pair.assert_accounted();
        let transmitted = pair.near.writer.link_count(pair.links[0], Direction::Transmit);
        match &sent[..] {
            [] => {
                // IPv4 outside drops what it may not cut: `ip_fragment`, `iptunnel_xmit_stats`.
                let dropped = pair.near.writer.link_drops(pair.links[0], Direction::Transmit);
                let outside = u64::from(kind == TunnelKind::Gre);
                assert_eq!((transmitted.packets, transmitted.errors, dropped), (0, 1 - outside, outside));
                None
            }
            // What is told of goes back by port 1, from where the packets come.
            [(1, told)] => {
                assert_eq!((transmitted.packets, transmitted.errors), (0, 1));
                let v6 = told[12..14] == [0x86, 0xdd];
                let argument = if v6 { &told[14 + 44..14 + 48] } else { &told[14 + 24..14 + 28] };
                assert_eq!(told[14 + if v6 { 40 } else { 20 }], if v6 { 2 } else { 3 });
                Some(u32::from_be_bytes(argument.try_into().unwrap()))
            }
            all => Some(10_000 * all.len() as u32),
        }
    };
    let same = |_: &mut Tunnel| {};
    let mut fragmentable = inner4(1000);
    ipv4::Header::mut_from_prefix(&mut fragmentable).unwrap().0.flags_offset = 0.into();
    ipv4::Header::mut_from_prefix(&mut fragmentable).unwrap().0.fill_checksum(&[]);
    assert_eq!(tell(TunnelKind::Gre, 1000, &same, &inner4(1000)), Some(976));
    assert_eq!(tell(TunnelKind::Gre, 1000, &same, &fragmentable), None);
    assert_eq!(tell(TunnelKind::Gre, 1000, &same, &inner6(1000)), None);
    assert_eq!(tell(TunnelKind::Gre, 1400, &same, &inner6(1340)), Some(1376));
    assert_eq!(tell(TunnelKind::Sit, 1000, &same, &inner6(1000)), Some(20_000));
    assert_eq!(tell(TunnelKind::Sit, 1000, &same, &inner6(1300)), Some(1280));
    let limited = |tunnel: &mut Tunnel| tunnel.encapsulation_limit = Some(4);
    assert_eq!(tell(TunnelKind::Ip6tnl, 1400, &limited, &inner4(1380)), Some(1352));
    assert_eq!(tell(TunnelKind::Ip6tnl, 1400, &limited, &inner6(1320)), Some(1352));
    assert_eq!(tell(TunnelKind::Ip6tnl, 1280, &limited, &inner4(1240)), Some(1232));
    assert_eq!(tell(TunnelKind::Ip6tnl, 1280, &limited, &inner6(1240)), Some(1280));
    assert_eq!(tell(TunnelKind::Ip6gre, 1280, &limited, &inner4(1240)), Some(1228));
    assert_eq!(tell(TunnelKind::Ip6gre, 1280, &limited, &inner6(1200)), None);
    let open = |tunnel: &mut Tunnel| tunnel.dont_fragment = false;
    assert_eq!(tell(TunnelKind::Gre, 1000, &open, &fragmentable), Some(20_000));
    assert_eq!(tell(TunnelKind::Gre, 1000, &open, &inner4(1000)), Some(976));
    assert_eq!(tell(TunnelKind::Gre, 1000, &open, &inner6(1000)), Some(20_000));
    // UDP, GUE, the private flags of remote checksum offload and its positions, whether they are there or not.
    let gue = |tunnel: &mut Tunnel| tunnel.udp = Some(pair::gue(true));
    assert_eq!(tell(TunnelKind::Ipip, 1000, &gue, &inner4(1000)), Some(1000 - 20 - 8 - 12));
}

/// RFC 2890 section 2.2: sequence numbers are those of packets that are sent.
#[test]
fn what_is_too_long_uses_up_no_number() {
    for (kind, at, long) in [
        (TunnelKind::Gre, 24, [inner4(1000), inner6(1300)]),
        (TunnelKind::Ip6gre, 44, [inner4(1300), inner6(1300)]),
    ] {
        let fields = GreFields { sequence: true, ..GreFields::default() };
        let mut pair = Pair::of(kind, |tunnel| tunnel.transmit = fields);
        pair.narrow(if kind == TunnelKind::Gre { 1000 } else { 1300 });
        for number in 0..3u32 {
            for packet in &long {
                let sent = pair.near.send(&[frame(pair::ethertype(packet), packet)]);
                assert!(sent.iter().all(|(port, _)| *port == 1), "{kind:?}");
            }
            let sent = pair.near.send(&[frame(ethernet::IPV4, &inner4(9))]);
            let [(0, wire)] = &sent[..] else { panic!("{kind:?}: {sent:?}") };
            assert_eq!(wire[14 + at..14 + at + 4], number.to_be_bytes(), "{kind:?}");
        }
        pair.assert_accounted();
    }
}

/// A packet that stands for several uses up a number for each: they are cut behind the tunnel.
#[test]
fn each_part_has_a_number() {
    for (kind, at) in [(TunnelKind::Gre, 24), (TunnelKind::Gretap, 24), (TunnelKind::Ip6gre, 44)] {
        for checksum in [false, true] {
            let fields = GreFields { sequence: true, checksum, key: None };
            let mut pair = Pair::of(kind, |tunnel| tunnel.transmit = fields);
            let at = at + 4 * usize::from(checksum);
            let mut number_of = |packet: &[u8], size: Option<u16>| {
                let segment = size.map(|size| Segment { size, kind: SegmentKind::Udp });
                let (wire, _) = pair.send_segments(packet, segment);
                u32::from_be_bytes(*wire[at..].first_chunk().unwrap())
            };
            // 600 bytes behind the headers.
            let packet = inner4(600);
            assert_eq!(number_of(&packet, Some(200)), 0, "{kind:?}");
            assert_eq!(number_of(&packet, Some(250)), 3, "{kind:?}");
            assert_eq!(number_of(&packet, None), 6, "{kind:?}");
            assert_eq!(number_of(&packet, None), 7, "{kind:?}");
            pair.assert_accounted();
        }
    }
}

/// A packet that is too long for the device is cut before it goes in.
#[test]
fn fragments_go_in() {
    let mut pair = Pair::of(TunnelKind::Gre, |_| {});
    let mut inner = inner4(1460);
    ipv4::Header::mut_from_prefix(&mut inner).unwrap().0.flags_offset = 0.into();
    ipv4::Header::mut_from_prefix(&mut inner).unwrap().0.fill_checksum(&[]);
    pair.device_mtu(1476);
    let sent = pair.near.send(&[frame(ethernet::IPV4, &inner)]);
    let lengths: Vec<_> = sent.iter().map(|(port, frame)| (*port, frame.len())).collect();
    // 1,456 bytes and the other 12, each in an IPv4 header, GRE, another IPv4 header and a frame.
    assert_eq!(lengths, [(0, 1456 + 20 + 4 + 20 + 14), (0, 12 + 20 + 4 + 20 + 14)]);
    assert_eq!(sent[0].1[14 + 24 + 8], 39, "its TTL is lowered once");
    assert_eq!(pair.near.writer.link_count(pair.links[0], Direction::Transmit).packets, 2);
    pair.assert_accounted();
}

/// What a router on the way tells counts for what follows; and only what is about a tunnel's packets.
#[test]
fn path_mtu_is_learned() {
    let changes: [(TunnelKind, Option<TunnelUdp>); 3] =
        [(TunnelKind::Ipip, None), (TunnelKind::Gre, Some(pair::gue(false))), (TunnelKind::Ip6tnl, None)];
    for (kind, udp) in changes {
        let mut pair = Pair::of(kind, |tunnel| tunnel.udp = udp);
        let wire = pair.wire(&inner4(1300)).unwrap();
        let overhead = wire.len() as u32 - inner4(1300).len() as u32;
        for (quoted, learns) in [(pair::misquoted(&wire), false), (wire, true)] {
            let error = pair::too_big(&quoted, 1290);
            let heard = pair.near.send(&[frame(pair::ethertype(&error), &error)]);
            if learns && kind == TunnelKind::Ip6tnl {
                // The sender of the packet that is quoted hears of it at once: at least the least MTU of IPv6.
                let [(1, told)] = &heard[..] else { panic!("{heard:?}") };
                assert_eq!((&told[34..36], &told[40..42]), (&[3, 4][..], &1280_u16.to_be_bytes()[..]));
            } else {
                assert_eq!(heard, []);
            }
            let sent = pair.near.send(&[frame(ethernet::IPV4, &inner4(1300))]);
            if learns {
                let [(1, told)] = &sent[..] else { panic!("{sent:?}") };
                assert_eq!(told[14 + 26..14 + 28], ((1290 - overhead) as u16).to_be_bytes());
            } else {
                assert_eq!(sent.len(), 1);
                assert_eq!(sent[0].0, 0);
            }
        }
    }
}

/// A checksum inside that a local sender has left unfinished: outer ones are right all the same, and the receiver
/// completes what it is told to.
#[test]
fn unfinished_checksums_cross() {
    for (udp, finished) in [
        (None, false),
        (Some(TunnelUdp { gue: false, checksum: true, ..pair::gue(false) }), false),
        (Some(TunnelUdp { checksum: true, ..pair::gue(true) }), true),
    ] {
        for key in [None, Some(3)] {
            let fields = GreFields { key, checksum: true, sequence: false };
            let mut pair = Pair::of(TunnelKind::Gre, |tunnel| {
                (tunnel.transmit, tunnel.receive, tunnel.udp) = (fields, fields, udp);
            });
            let inner = inner4(101);
            let (sent, left) = pair.send_unfinished(&inner);
            assert_eq!(left.is_none(), finished, "{udp:?}");
            // As a port does that cannot pass it on.
            let mut wire = sent.clone();
            if let Some((start, field)) = left {
                let sum = checksum::of(&wire[start..]);
                wire[start + field..start + field + 2].copy_from_slice(&sum.to_be_bytes());
            }
            assert_eq!(
                pair.far(&wire).unwrap(),
                pair::forwarded(&pair::forwarded(&inner)),
                "{udp:?} {key:?}"
            );
        }
    }
}

/// A checksum of GRE that is left to be finished, as Linux leaves it to its devices, goes with the header.
#[test]
fn unfinished_gre_checksum() {
    let summed = GreFields { checksum: true, ..GreFields::default() };
    for kind in [TunnelKind::Gre, TunnelKind::Ip6gre, TunnelKind::Gretap] {
        let mut pair = Pair::of(kind, |tunnel| (tunnel.transmit, tunnel.receive) = (summed, summed));
        let inner = inner4(40);
        let mut wire = pair.wire(&inner).unwrap();
        let at = if kind == TunnelKind::Ip6gre { 40 } else { 20 };
        wire[at + 4..at + 6].fill(0);
        let worker = &mut pair.far.worker;
        let mut packet = worker.pool().take().unwrap();
        packet.set(HEADROOM, &frame(pair::ethertype(&wire), &wire)).unwrap();
        packet.set_offload(Offload { start: 14 + at, field: 4, segment: None });
        let mut burst = Burst::new();
        burst.push(packet);
        worker.process(PortId(0), &mut burst, 0, None);
        let out = worker.sent(PortId(1)).next().unwrap();
        assert_eq!(
            (&out.bytes()[14..], out.offload()),
            (&pair::forwarded(&pair::forwarded(&inner))[..], None)
        );
        worker.pool().give(out);
    }
}

/// What the host sends by the device of a tunnel goes in; its hop limit is the host's affair.
#[test]
fn from_the_host() {
    for kind in [TunnelKind::Ipip, TunnelKind::Gretap] {
        let mut pair = Pair::of(kind, |_| {});
        let sent = pair.send_by_device(&frame(ethernet::IPV4, &inner4(4)));
        let [(0, wire)] = &sent[..] else { panic!("{sent:?}") };
        assert!(wire.ends_with(&inner4(4)));
        assert_eq!(wire.len() - 14, if kind == TunnelKind::Ipip { 20 } else { 24 + 14 } + inner4(4).len());
        assert_eq!(pair.near.writer.link_count(pair.links[0], Direction::Transmit).packets, 1);
        pair.assert_accounted();
    }
}

/// An ARP request that comes out of a tunnel of frames is answered into it.
#[test]
fn arp_through_gretap() {
    let mut pair = Pair::of(TunnelKind::Gretap, |_| {});
    let mut request = vec![0, 1, 8, 0, 6, 4, 0, 1];
    request.extend([2, 0, 0, 0, 5, 5, 10, 9, 9, 9, 0, 0, 0, 0, 0, 0, 10, 0, 0, 1]);
    let mut inside = vec![0xff; 6];
    inside.extend([2, 0, 0, 0, 5, 5, 8, 6]);
    inside.extend(request);
    let payload = [&[0, 0, 0x65, 0x58][..], &inside].concat();
    let sent = pair.near.send(&[frame(ethernet::IPV4, &outer4(protocol::GRE, &payload))]);
    let [(0, reply)] = &sent[..] else { panic!("{sent:?} {:?}", pair.near.drops()) };
    assert_eq!(reply[14 + 24..14 + 30], [2, 0, 0, 0, 5, 5]);
    assert_eq!(reply[14 + 24 + 12..14 + 24 + 14], [8, 6]);
    pair.assert_accounted();
}

/// The source port of a flow is always the same, and its flows spread.
#[test]
fn source_ports_spread() {
    let udp = TunnelUdp { gue: false, source_port: SourcePort::LOCAL, ..pair::gue(false) };
    let mut pair = Pair::of(TunnelKind::Ipip, |tunnel| tunnel.udp = Some(udp));
    let mut ports = std::collections::BTreeSet::new();
    for port in 0..200u8 {
        let inner = ip4([10, 1, 0, 7], [10, 50, 0, 7], protocol::UDP, &[9, port, 0, 9, 0, 8, 0, 0]);
        let wires = [(); 2].map(|()| pair.wire(&inner).unwrap());
        assert_eq!(wires[0][20..22], wires[1][20..22]);
        let source = u16::from_be_bytes([wires[0][20], wires[0][21]]);
        assert!((32768..61000).contains(&source));
        ports.insert(source);
    }
    assert!(ports.len() > 190, "{}", ports.len());
}

/// Outer packets of every kind, changed and cut, at a router that has a tunnel for each: none makes it panic, and every
/// packet is accounted for.
#[test]
fn changed_and_cut() {
    let mut far = Lab::new();
    let mut wires = Vec::new();
    for sample in every().iter().step_by(3) {
        let mut pair = Pair::new(sample);
        for packet in [inner4(30), inner6(30)] {
            wires.extend(pair.wire(&packet));
        }
        let (_, tunnel) = pair::device(&mut far, sample.kind, 1);
        let Tunnel { link, local, remote, via, source, behind, .. } = tunnel;
        far.writer.add_tunnel(Tunnel { link, local, remote, via, source, behind, ..sample.clone() });
    }
    pair::make_far(&mut far);
    for ipv6 in [false, true] {
        let local = if ipv6 { v6("::").into() } else { IpAddr::V4(Ipv4Addr::UNSPECIFIED) };
        far.writer.add_fou_port(FouPort { ipv6, local, ..fou(FouPayload::Gue) });
    }
    let mut seed = 7u64;
    let mut random = |below: usize| {
        seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (seed >> 33) as usize % below
    };
    let mut left = 0;
    for wire in &wires {
        for _ in 0..4 {
            let burst: Vec<_> = (0..60)
                .map(|_| {
                    let mut wire = wire.clone();
                    for _ in 0..random(3) {
                        let at = random(wire.len());
                        wire[at] = random(256) as u8;
                    }
                    if random(3) == 0 {
                        wire.truncate(random(wire.len()));
                    }
                    pair::mend(&mut wire);
                    frame(
                        if wire.first().is_some_and(|b| b >> 4 == 6) {
                            ethernet::IPV6
                        } else {
                            ethernet::IPV4
                        },
                        &wire,
                    )
                })
                .collect();
            left += far.send(&burst).len();
        }
    }
    assert!(left > wires.len() * 30, "only {left} of {} left", wires.len() * 240);
    far.assert_accounted();
}
