//! Room for headers: what is put before a packet never moves it while its buffer has the room.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod lab;

use lab::{Lab, frame, ip4, ip6, udp, v6};
use underpass_engine::buffer::{HEADROOM, Packet, PortId};
use underpass_engine::tables::{Action, Behaviour, HeadendMode, NextHop};
use underpass_engine::trace::{Event, Trace, Untraced};
use underpass_engine::worker::Burst;
use underpass_packet::{ethernet, ipv6, protocol, srh::Srh};

/// Most segments of an SRH: its length field counts 255 × 8 bytes behind the first 8.
const DEEPEST: usize = 127;

/// Watches, so that packets take the long road.
struct Watching;

impl Trace for Watching {
    fn step(&mut self, _: Event, _: &Packet) {}
}

/// A router whose links take long packets, and a frame in a slot of its own.
fn lab() -> Lab {
    let mut lab = Lab::new();
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
                rewrite: Some(underpass_engine::tables::Rewrite { bytes, len: 12 }),
                address: v6("fe80::1").into(),
            },
        );
    }
    lab
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
        true => lab.worker.process(PortId(0), &mut burst, 0, &mut Watching),
        false => lab.worker.process(PortId(0), &mut burst, 0, &mut Untraced),
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

/// RFC 8754 section 2, RFC 8986 section 5: a list of any length, in every mode, by either road. The comparable
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

/// The common road and the long one send the same, of every kind of packet that a headend gets.
#[test]
fn both_roads_insert_alike() {
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
            HeadendMode::Inline => Behaviour::B6(policy),
            _ => Behaviour::B6Encaps(policy),
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
