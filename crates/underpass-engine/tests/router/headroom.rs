//! Room for headers: what is put before a packet never moves it while its buffer has the room.

use super::lab;
use super::lab::{Lab, frame, ip4, ip6, udp, v6};
use underpass_engine::buffer::{
    HEADROOM, LARGE_SLOT, MARGIN, Offload, Packet, Pool, PortId, SLOT, Segment, SegmentKind,
};
use underpass_engine::drops::DropReason;
use underpass_engine::tables::{Action, Behaviour, Headend, HeadendMode, NextHop};
use underpass_engine::trace::{Event, Watch};
use underpass_engine::worker::Burst;
use underpass_packet::{IntoBytes, ethernet, ipv6, protocol, srh::Srh};

/// Most segments of an SRH: its length field counts 255 × 8 bytes behind the first 8.
const DEEPEST: usize = 127;

/// Watches, so that packets take the slow path.
struct Watching;

impl Watch for Watching {
    fn step(&mut self, _: Event, _: &Packet) {}
}

/// A router whose links take long packets, and a frame in a slot of its own.
fn lab() -> Lab {
    lab_with(Pool::new(64), 12)
}

/// The same with these buffers, and a link layer of so many bytes and an EtherType.
fn lab_with(pool: Pool, link_layer: u8) -> Lab {
    let mut lab = Lab::with_pool(pool);
    for (port, next_hop) in lab.next_hops.into_iter().enumerate() {
        let mut bytes = [0; 20];
        bytes[..6].copy_from_slice(&lab::PEERS[port]);
        bytes[6..12].copy_from_slice(&lab::MACS[port]);
        lab.writer.set_next_hop(
            next_hop,
            NextHop {
                link: lab.links[port],
                port: PortId(port as u16),
                mtu: 9000,
                locked: false,
                hop_limit: 0,
                rewrite: Some(underpass_engine::tables::Rewrite { bytes, len: link_layer }),
                address: v6("fe80::1").into(),
            },
        );
    }
    lab
}

/// What leaves by any port of a frame that lies at `start` of its slot.
fn send_at(lab: &mut Lab, start: usize, frame: &[u8], offload: Option<Offload>) -> Vec<Sent> {
    let mut packet = lab.worker.pool().take().unwrap();
    packet.set(start, frame).unwrap();
    if let Some(offload) = offload {
        packet.set_offload(offload);
    }
    let mut burst = Burst::new();
    burst.push(packet);
    lab.worker.process(PortId(0), &mut burst, 0, None);
    let mut out = Vec::new();
    for port in [0, 1] {
        let sent: Vec<_> = lab.worker.sent(PortId(port)).collect();
        for packet in sent {
            out.push((packet.bytes().to_vec(), packet.offload()));
            lab.worker.pool().give(packet);
        }
    }
    out
}

type Sent = (Vec<u8>, Option<Offload>);

fn moves(lab: &Lab) -> [u64; 2] {
    let totals = lab.writer.totals();
    [totals.buffer_moves, totals.buffer_moves_avoided]
}

/// What leaves by port 1, and where the packet's last byte lay and lies.
fn send(lab: &mut Lab, frame: &[u8], watched: bool) -> (Vec<u8>, [usize; 2]) {
    let mut packet = lab.worker.pool().take().unwrap();
    packet.set(HEADROOM, frame).unwrap();
    let end = |packet: &Packet| packet.bytes().as_ptr_range().end as usize;
    let before = end(&packet);
    let mut burst = Burst::new();
    burst.push(packet);
    match watched {
        true => lab.worker.process(PortId(0), &mut burst, 0, Some(&mut Watching)),
        false => lab.worker.process(PortId(0), &mut burst, 0, None),
    }
    let packet = lab.worker.sent(PortId(1)).next().unwrap();
    let sent = (packet.bytes().to_vec(), [before, end(&packet)]);
    lab.worker.pool().give(packet);
    sent
}

fn wire_list(mode: HeadendMode, count: usize) -> Vec<String> {
    let segment = |n: usize| match (mode, n) {
        (HeadendMode::Inline, 0) => "::".to_owned(),
        (_, n) => format!("fd00:1::{:x}", n + 1),
    };
    (0..count).map(segment).collect()
}

/// RFC 8754 section 2, RFC 8986 section 5: a list of any length, in every mode, by either path. The comparable
/// router of the field overwrites its own data at 6 segments, stops at 13 and crashes at 21.
#[test]
fn no_list_moves_a_packet() {
    let packet = ip6("fd00:0::2", "2001:db8:e0::1", protocol::UDP, &udp(40));
    let incoming = frame(ethernet::IPV6, &packet);
    for mode in [HeadendMode::Encap, HeadendMode::L2Encap, HeadendMode::Inline] {
        let mut lab = lab();
        for count in 1..=DEEPEST {
            let list = wire_list(mode, count);
            let list: Vec<&str> = list.iter().map(String::as_str).collect();
            let headend = Action::Headend(lab.policy(mode, &list));
            let action = lab.writer.add_action(headend);
            lab.writer.insert6(lab.fib6, v6("2001:db8:e0::"), 48, action);
            for watched in [false, true] {
                let what = format!("{mode:?} of {count} segments, watched: {watched}");
                let (sent, [before, after]) = send(&mut lab, &incoming, watched);
                assert_eq!(before, after, "{what}: moved");
                let (header, routed) = sent[14..].split_at(ipv6::Header::LEN);
                let srh = Srh::parse(routed).unwrap();
                assert_eq!(srh.segments().len(), count, "{what}");
                assert_eq!(usize::from(srh.segments_left()), count - 1, "{what}");
                for (n, segment) in srh.segments().iter().enumerate() {
                    let expected = if list[n] == "::" { "2001:db8:e0::1" } else { list[n] };
                    assert_eq!(*segment, v6(expected).octets(), "{what}: segment {n}");
                }
                assert_eq!(header[24..], *srh.segments().last().unwrap(), "{what}");
                let length = usize::from(u16::from_be_bytes([header[4], header[5]]));
                assert_eq!(length, routed.len(), "{what}");
                let (next_header, inside) = match mode {
                    HeadendMode::Encap => (protocol::IPV6, &packet[..]),
                    HeadendMode::L2Encap => (protocol::ETHERNET, &incoming[..]),
                    HeadendMode::Inline => (protocol::UDP, &packet[ipv6::Header::LEN..]),
                };
                assert_eq!((srh.next_header(), &routed[srh.len()..]), (next_header, inside), "{what}");
                let outer_hops = if mode == HeadendMode::Inline { &packet[8..24] } else { &header[8..24] };
                assert_eq!((header[7], &header[8..24]), (39, outer_hops), "{what}");
                assert_eq!(header[..4], packet[..4], "{what}: class and label");
            }
        }
        lab.assert_accounted();
    }
}

/// The fast path and the slow one send the same, of every kind of packet that a headend gets.
#[test]
fn fast_and_slow_path_insert_alike() {
    let mut lab = lab();
    lab.all_behaviours();
    let options = [&[protocol::UDP, 0, 1, 4, 0, 0, 0, 0][..], &udp(40)].concat();
    for (i, mode) in ["encap", "inline", "l2encap"].into_iter().enumerate() {
        let to = format!("2001:db8:e{i}::1");
        let mut frames = vec![
            frame(ethernet::IPV6, &ip6("fd00:0::2", &to, protocol::UDP, &udp(40))),
            // Behind hop-by-hop options, and behind others.
            frame(ethernet::IPV6, &ip6("fd00:0::2", &to, protocol::HOP_BY_HOP, &options)),
            frame(ethernet::IPV6, &ip6("fd00:0::2", &to, protocol::DESTINATION_OPTIONS, &options)),
            frame(ethernet::IPV6, &ip6("fd00:0::2", &to, 59, &[])),
        ];
        if mode != "inline" {
            frames.push(frame(ethernet::IPV4, &ip4([10, 0, 0, 2], [10, 200 + i as u8, 0, 9], 17, &udp(20))));
        }
        // Padded, as Ethernet pads a short frame.
        frames.push([&frames[3][..], &[0; 6]].concat());
        for incoming in frames {
            assert_eq!(send(&mut lab, &incoming, false), send(&mut lab, &incoming, true), "{mode}");
        }
    }
    lab.assert_accounted();
}

/// End.B6 and End.B6.Encaps with the longest list.
#[test]
fn no_list_of_a_sid_moves_a_packet() {
    for mode in [HeadendMode::Inline, HeadendMode::Encap] {
        let mut lab = lab();
        let list = wire_list(mode, DEEPEST);
        let list: Vec<&str> = list.iter().map(String::as_str).collect();
        let policy = lab.policy(mode, &list);
        let behaviour = match mode {
            HeadendMode::Inline => Behaviour::B6(policy.into()),
            _ => Behaviour::B6Encaps(policy.into()),
        };
        lab.sid("fc00::1", behaviour);
        let routed = lab::with_srh(&["fc00::1", "fd00:1::2"], 1, protocol::UDP, &udp(64));
        let packet = ip6("fd00:0::2", "fc00::1", protocol::ROUTING, &routed);
        for watched in [false, true] {
            let (sent, [before, after]) = send(&mut lab, &frame(ethernet::IPV6, &packet), watched);
            assert_eq!(before, after, "{mode:?}, watched: {watched}");
            let longer = if mode == HeadendMode::Encap { ipv6::Header::LEN } else { 0 } + 8 + 16 * DEEPEST;
            assert_eq!(sent.len(), 14 + packet.len() + longer, "{mode:?}, watched: {watched}");
        }
    }
}

/// The example of "double reallocation" in the kernel's light-weight tunnels: 22 bytes of headroom, a header of 40
/// bytes, 16 bytes of link layer. There the first check makes 54 bytes of room and the second finds 14 of
/// them left; here the first knows both.
#[test]
fn the_known_example_moves_once() {
    let mut lab = lab_with(Pool::new(4), 14);
    let first = v6("fd00:1::8");
    let outer = ipv6::Header::new(v6("fd00:0::1"), first, 0, 64, 0);
    let header = outer.as_bytes().to_vec();
    assert_eq!(header.len(), 40);
    let policy = Headend {
        mode: HeadendMode::Encap,
        header: header.into(),
        room: 40 + 16,
        hmac_open: false,
        via: lab.via(1),
        link: underpass_engine::tables::LinkId(1),
        counter: None,
        plain: None,
    };
    let action = lab.writer.add_action(Action::Headend(policy));
    lab.writer.insert6(lab.fib6, v6("2001:db8:e0::"), 48, action);
    let packet = ip6("fd00:0::2", "2001:db8:e0::1", protocol::UDP, &udp(40));
    let incoming = frame(ethernet::IPV6, &packet);
    // The frame's own 14 bytes are part of the 22.
    let sent = send_at(&mut lab, 22 - 14, &incoming, None);
    assert_eq!(moves(&lab), [1, 0]);
    assert_eq!((sent[0].0.len(), &sent[0].0[16 + 40..]), (16 + 40 + packet.len(), &packet[..]));
    lab.assert_accounted();
}

/// Whatever room a packet comes with, what leaves is the same; it is moved once if it has to be, and
/// stays where it is otherwise.
#[test]
fn a_buffer_with_less_room_is_moved_once() {
    let packet = ip6("fd00:0::2", "2001:db8:e0::1", protocol::UDP, &udp(40));
    let incoming = frame(ethernet::IPV6, &packet);
    for mode in [HeadendMode::Encap, HeadendMode::L2Encap, HeadendMode::Inline] {
        let mut lab = lab();
        let list = wire_list(mode, 20);
        let list: Vec<&str> = list.iter().map(String::as_str).collect();
        let policy = lab.policy(mode, &list);
        let room = usize::from(policy.room);
        let action = lab.writer.add_action(Action::Headend(policy));
        lab.writer.insert6(lab.fib6, v6("2001:db8:e0::"), 48, action);
        let expected = send_at(&mut lab, HEADROOM, &incoming, None);
        for start in 0..room + 2 {
            let before = moves(&lab);
            assert_eq!(send_at(&mut lab, start, &incoming, None), expected, "{mode:?} at {start}");
            let moved = u64::from(start + 14 < room);
            let [moves, avoided] = moves(&lab);
            assert_eq!([moves - before[0], avoided - before[1]], [moved, 1 - moved], "{mode:?} at {start}");
        }
        lab.assert_accounted();
    }
}

/// Three encapsulations behind each other want more than any buffer has in front: one move makes room for all.
#[test]
fn headers_within_headers_move_once() {
    let mut lab = lab();
    let count = 60;
    for (to, first) in
        [("2001:db8:e0::", "2001:db8:e1::"), ("2001:db8:e1::", "2001:db8:e2::"), ("2001:db8:e2::", "")]
    {
        let mut policy = lab.policy(HeadendMode::Encap, &vec!["fd00:1::9"; count]);
        if !first.is_empty() {
            policy.via.resolved = None;
            policy.via.address = v6(first).into();
            policy.header = {
                let mut header = policy.header.to_vec();
                header[24..40].copy_from_slice(&v6(first).octets());
                header.into()
            };
        }
        let action = lab.writer.add_action(Action::Headend(policy));
        lab.writer.insert6(lab.fib6, v6(to), 48, action);
    }
    let packet = ip6("fd00:0::2", "2001:db8:e0::1", protocol::UDP, &udp(40));
    let sent = send_at(&mut lab, HEADROOM, &frame(ethernet::IPV6, &packet), None);
    assert_eq!(sent[0].0.len(), 14 + 3 * (40 + 8 + 16 * count) + packet.len());
    assert!(sent[0].0.ends_with(&packet));
    assert_eq!(moves(&lab), [1, 2]);
    lab.assert_accounted();
}

/// A segment that fills its slot goes into a large one; what is left to be done goes with it.
#[test]
fn a_full_slot_is_left_for_a_large_one() {
    let region = |slot: usize, count: usize| Vec::leak(vec![0; (slot + MARGIN) * count]);
    let packet = ip6("fd00:0::2", "2001:db8:e0::1", protocol::UDP, &udp(SLOT - 14 - 40 - 8));
    let incoming = frame(ethernet::IPV6, &packet);
    assert_eq!(incoming.len(), SLOT);
    let segment = Some(Segment { size: 1000, kind: SegmentKind::Udp });
    let offload = Offload { start: 14 + 40, field: 6, segment };
    for large in [1, 0] {
        let mut lab = lab_with(Pool::over(region(SLOT, 2), region(LARGE_SLOT, large)), 12);
        let policy = lab.policy(HeadendMode::L2Encap, &["fd00:1::8", "fd00:1::9"]);
        let longer = usize::from(policy.room);
        let action = lab.writer.add_action(Action::Headend(policy));
        lab.writer.insert6(lab.fib6, v6("2001:db8:e0::"), 48, action);
        let sent = send_at(&mut lab, 0, &incoming, Some(offload));
        if large == 0 {
            assert_eq!((sent.len(), lab.writer.dropped(DropReason::NoHeadroom)), (0, 1));
        } else {
            let (bytes, left) = &sent[0];
            assert!(bytes.ends_with(&incoming) && bytes.len() == longer + packet.len());
            assert_eq!(*left, Some(Offload { start: longer + 40, ..offload }));
            assert_eq!(moves(&lab), [1, 0]);
        }
        assert_eq!(lab.worker.pool().available_large(), large);
        lab.assert_accounted();
    }
}

/// A message of the router's takes the place of a packet that has no room in front, or fills its slot.
#[test]
fn an_error_finds_room() {
    let nowhere = |len| ip6("fd00:0::2", "3fff::1", protocol::UDP, &udp(len));
    for len in [40, SLOT - 14 - 40 - 8] {
        let mut lab = lab();
        let incoming = frame(ethernet::IPV6, &nowhere(len));
        let sent = send_at(&mut lab, 0, &incoming, None);
        let quoted = &nowhere(len)[..(40 + 8 + len).min(1280 - 48)];
        assert_eq!(sent[0].0[54..56], [1, 0]);
        assert_eq!(sent[0].0[14 + 48..], *quoted);
        assert_eq!((moves(&lab), lab.writer.dropped(DropReason::NoRoute)), ([1, 0], 1));
        lab.assert_accounted();
    }
}

/// A link layer that is longer than the frame's was.
#[test]
fn a_longer_link_layer_finds_room() {
    let mut lab = lab_with(Pool::new(2), 16);
    let packet = ip6("fd00:0::2", "fd00:1::2", protocol::UDP, &udp(40));
    let sent = send_at(&mut lab, 0, &frame(ethernet::IPV6, &packet), None);
    assert_eq!((sent[0].0.len(), moves(&lab)), (18 + packet.len(), [1, 0]));
    let again = send_at(&mut lab, 4, &frame(ethernet::IPV6, &packet), None);
    assert_eq!((again, moves(&lab)), (sent, [1, 0]));
    lab.assert_accounted();
}
