//! Packets through a worker: what leaves, what is counted, and that nothing is lost whatever comes in.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::lab;
use super::lab::{Lab, MACS, PEERS, frame, ip4, ip6, udp, with_srh};
use proptest::prelude::any;
use proptest::test_runner::{Config, TestRunner};
use underpass_engine::buffer::{HEADROOM, Pool, PortId};
use underpass_engine::counters::{Count, Direction};
use underpass_engine::drops::DropReason;
use underpass_engine::tables::{Action, Behaviour, Flavours, Link, Lookup, Rule, RuleAction};
use underpass_engine::worker::Burst;
use underpass_packet::checksum::Sum;
use underpass_packet::{ethernet, protocol};

/// RFC 8986 section 4.1: the next segment becomes the destination, hop limit and segments left fall by 1.
#[test]
fn end_advances_to_the_next_segment() {
    let mut lab = Lab::new();
    let lookup = lab.lookup;
    let counter = lab.sid("fc00::1", Behaviour::End { lookup });
    let srh = with_srh(&["fc00::1", "fd00:1::2"], 1, protocol::UDP, &udp(64));
    let packet = ip6("fd00:0::2", "fc00::1", protocol::ROUTING, &srh);
    let out = lab.send(&[frame(ethernet::IPV6, &packet)]);

    let mut expected = packet.clone();
    expected[7] = 39;
    expected[24..40].copy_from_slice(&lab::v6("fd00:1::2").octets());
    expected[43] = 0;
    let link_layer = [&PEERS[1][..], &MACS[1], &[0x86, 0xdd]].concat();
    assert_eq!(out, [(1, [link_layer, expected].concat())]);
    let bytes = packet.len() as u64;
    assert_eq!(lab.writer.count(counter), Count { packets: 1, bytes, errors: 0 });
    lab.assert_accounted();
}

/// A link that does not forward gives no headers to what comes in by it, and nobody hears of that: not of a hop limit either.
#[test]
fn without_forwarding_nothing_gets_headers() {
    let mut lab = Lab::new();
    lab.all_behaviours();
    let link = Link { forward4: false, forward6: false, ..lab.link(0) };
    lab.writer.set_link(lab.links[0], link);
    let mut frames = Vec::new();
    for policy in 0..3 {
        for hop_limit in [1, 40] {
            let to = format!("2001:db8:e{policy}::7");
            let mut packet = ip6("fd00:0::2", &to, protocol::UDP, &udp(8));
            packet[7] = hop_limit;
            frames.push(frame(ethernet::IPV6, &packet));
        }
        let packet = ip4([10, 0, 0, 2], [10, 200 + policy, 0, 7], protocol::UDP, &udp(8));
        frames.push(frame(ethernet::IPV4, &packet));
    }
    assert_eq!(lab.send(&frames), []);
    assert_eq!(lab.drops(), [("forwarding-off", frames.len() as u64)]);
    lab.assert_accounted();
}

/// As in Linux, the next segment is looked up where packets are that come in by the same link. The fast path does so too.
#[test]
fn end_goes_by_the_incoming_link() {
    let mut lab = Lab::new();
    let behaviour = Behaviour::End { lookup: lab.lookup };
    lab.sid("fc00::1", behaviour);
    let first = lab.writer.add_fib6();
    lab.writer.insert6(first, lab::v6("fd00:1::"), 32, lab.forward[0]);
    let (fibs4, fibs6) = ([lab.fib4].into(), [first, lab.fib6].into());
    let lookup = lab.writer.add_lookup(Lookup {
        fibs4,
        fibs6,
        rules4: [].into(),
        rules6: [].into(),
        own: Some(lab.lookup),
    });
    let link = Link { lookup, ..lab.link(0) };
    lab.writer.set_link(lab.links[0], link);
    let srh = with_srh(&["fc00::1", "fd00:1::2"], 1, protocol::UDP, &udp(64));
    let frames = [frame(ethernet::IPV6, &ip6("fd00:0::2", "fc00::1", protocol::ROUTING, &srh))];
    let out = lab.send(&frames);
    let [(0, _)] = &out[..] else { panic!("{out:?}") };
    assert_eq!(out, lab.send_watched(&frames, &mut lab::Watcher));
}

/// `errors` + 1, packets and bytes unchanged: no SRH, segments left 0, hop limit 1.
#[test]
fn end_errors() {
    let mut lab = Lab::new();
    let lookup = lab.lookup;
    let counter = lab.sid("fc00::1", Behaviour::End { lookup });
    let finished = with_srh(&["fd00:1::2", "fc00::1"], 0, protocol::UDP, &udp(64));
    let mut expired =
        ip6("fd00:0::2", "fc00::1", protocol::ROUTING, &with_srh(&["fc00::1", "fd00:1::2"], 1, 17, &udp(9)));
    expired[7] = 1;
    let out = lab.send(&[
        frame(ethernet::IPV6, &ip6("fd00:0::2", "fc00::1", protocol::UDP, &udp(64))),
        frame(ethernet::IPV6, &ip6("fd00:0::2", "fc00::1", protocol::ROUTING, &finished)),
        frame(ethernet::IPV6, &expired),
    ]);
    assert_eq!(lab.writer.count(counter), Count { packets: 0, bytes: 0, errors: 3 });
    for reason in [DropReason::SrhMissing, DropReason::SegmentsLeftZero, DropReason::HopLimitExceeded] {
        assert_eq!(lab.writer.dropped(reason), 1, "{reason:?}");
    }
    // The time exceeded quotes the packet as it came.
    let [(0, error)] = &out[..] else { panic!("{out:?}") };
    assert_eq!((error[54], error[55]), (3, 0));
    assert_eq!(error[14 + 48..], expired);
    lab.assert_accounted();
}

/// Gives the second next hop this MTU.
fn narrow(lab: &mut Lab, mtu: u32) {
    let next_hop = underpass_engine::tables::NextHop {
        link: lab.links[1],
        port: PortId(1),
        mtu,
        locked: false,
        hop_limit: 0,
        rewrite: Some(underpass_engine::tables::Rewrite { bytes: [7; 20], len: 12 }),
        address: std::net::Ipv4Addr::new(10, 1, 0, 2).into(),
    };
    lab.writer.set_next_hop(lab.next_hops[1], next_hop);
}

/// A packet without buffers for all of its fragments is dropped behind those that have been sent: Linux's `ip_do_fragment`.
#[test]
fn fragments_without_buffers() {
    let mut lab = Lab::with_pool(Pool::new(8));
    narrow(&mut lab, 100);
    let mut packet = ip4([10, 0, 0, 2], [10, 1, 0, 2], protocol::UDP, &udp(1472));
    packet[6] = 0;
    packet[10..12].fill(0);
    let checksum = underpass_packet::checksum::of(&packet[..20]);
    packet[10..12].copy_from_slice(&checksum.to_be_bytes());
    let fragments = lab.send(&[frame(ethernet::IPV4, &packet)]);
    let payload: Vec<u8> = fragments.iter().flat_map(|(_, frame)| frame[34..].to_vec()).collect();
    assert_eq!((fragments.len(), &payload[..]), (7, &packet[20..20 + 7 * 80]));
    assert_eq!(lab.drops(), [("no-buffer", 1)]);
    assert_eq!(lab.writer.totals().generated, 7);
    lab.assert_accounted();
}

/// An IPv4 packet of 1,500 bytes over an MTU of 600, and one that must not be cut.
#[test]
fn fragments_or_says_too_big() {
    let mut lab = Lab::new();
    narrow(&mut lab, 600);
    let mut packet = ip4([10, 0, 0, 2], [10, 1, 0, 2], protocol::UDP, &udp(1472));
    let refused = lab.send(&[frame(ethernet::IPV4, &packet)]);
    let [(0, error)] = &refused[..] else { panic!("{refused:?}") };
    assert_eq!((error[34], error[35], &error[40..42]), (3, 4, &600u16.to_be_bytes()[..]));
    assert_eq!(error.len() - 14, 576);

    packet[6] = 0;
    packet[10..12].fill(0);
    let checksum = underpass_packet::checksum::of(&packet[..20]);
    packet[10..12].copy_from_slice(&checksum.to_be_bytes());
    let fragments = lab.send(&[frame(ethernet::IPV4, &packet)]);
    let lengths: Vec<_> = fragments.iter().map(|(port, frame)| (*port, frame.len() - 14)).collect();
    assert_eq!(lengths, [(1, 596), (1, 596), (1, 348)]);
    let payload: Vec<u8> = fragments.iter().flat_map(|(_, frame)| frame[34..].to_vec()).collect();
    assert_eq!(payload, packet[20..]);
    assert_eq!(lab.writer.totals().generated, 3, "an ICMP error and two more fragments");
    lab.assert_accounted();
}

#[test]
fn echo_and_unreachable() {
    let mut lab = Lab::new();
    let mut request = vec![128, 0, 0, 0, 1, 2, 0, 3, b'h', b'i'];
    let packet = ip6("fd00:0::2", "fd00:0::1", protocol::ICMPV6, &request);
    let header = underpass_packet::checksum::Sum::new().add_bytes(&packet[8..40]).add_u32(10).add_u16(58);
    let checksum = header.add_bytes(&request).checksum();
    request[2..4].copy_from_slice(&checksum.to_be_bytes());
    let mut packet = ip6("fd00:0::2", "fd00:0::1", protocol::ICMPV6, &request);
    packet[..4].copy_from_slice(&[0x6b, 0x81, 0x23, 0x45]);
    let nowhere = ip6("fd00:0::2", "3fff::1", protocol::UDP, &udp(1));
    let out = lab.send(&[frame(ethernet::IPV6, &packet), frame(ethernet::IPV6, &nowhere)]);
    assert_eq!(out.len(), 2);
    assert_eq!((out[0].1[54], &out[0].1[58..]), (129, &request[4..]));
    // The class is that of the request, the flow label is not.
    assert_eq!(out[0].1[14..18], [0x6b, 0x80, 0, 0]);
    assert_eq!((out[1].1[54], out[1].1[55]), (1, 0));
    assert_eq!(lab.writer.dropped(DropReason::NoRoute), 1);
    lab.assert_accounted();
}

/// ARP requests are answered for the router's addresses, but for those of 127.0.0.0/8 and groups.
#[test]
fn arp_for_addresses_of_links() {
    let mut lab = Lab::new();
    let local = lab.writer.add_action(Action::Local);
    let (fib, writer) = (lab.fib4, &mut lab.writer);
    for (target, len) in [([127, 0, 0, 0], 8), ([224, 0, 0, 1], 32)] {
        writer.insert4(fib, target.into(), len, local);
    }
    for (target, answers) in [
        ([10, 0, 0, 1], 1),
        ([127, 0, 0, 1], 0),
        ([127, 9, 9, 9], 0),
        ([224, 0, 0, 1], 0),
        ([10, 0, 0, 9], 0),
    ] {
        let request =
            [&[0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 1, 1, 10, 0, 0, 2, 0, 0, 0, 0, 0, 0], &target[..]];
        let sent = lab.send(&[frame(ethernet::ARP, &request.concat())]);
        assert_eq!(sent.len(), answers, "{target:?}");
    }
    lab.assert_accounted();
}

/// Frames of every kind that the behaviours know, right and wrong.
fn samples() -> Vec<Vec<u8>> {
    let inner4 = ip4([10, 0, 0, 2], [10, 1, 0, 2], protocol::UDP, &udp(20));
    let inner6 = ip6("fd00:0::2", "fd00:1::2", protocol::UDP, &udp(20));
    let inner2 = frame(ethernet::IPV6, &inner6);
    let inner = [(protocol::IPV4, &inner4), (protocol::IPV6, &inner6), (protocol::ETHERNET, &inner2)];
    let mut frames = vec![
        frame(ethernet::IPV4, &inner4),
        frame(ethernet::IPV6, &inner6),
        frame(
            ethernet::ARP,
            &[0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 1, 1, 10, 0, 0, 2, 0, 0, 0, 0, 0, 0, 10, 0, 0, 1],
        ),
    ];
    // Options, and what nothing listens for.
    for (kind, to) in [(0, "fd00:1::2"), (60, "fd00:0::1"), (43, "fd00:0::1"), (17, "fd00:0::1")] {
        let payload = [&[protocol::UDP, 0, 0x9e, 4, 0, 0, 0, 0][..], &udp(20)].concat();
        frames.push(frame(ethernet::IPV6, &ip6("fd00:0::2", to, kind, &payload)));
    }
    frames.push(frame(ethernet::IPV4, &ip4([10, 0, 0, 2], [10, 0, 0, 1], protocol::UDP, &udp(20))));
    frames.push(frame(ethernet::VLAN, &[&[0, 0, 0x86, 0xdd], &inner6[..]].concat()));
    for i in 0..3u8 {
        let to = format!("2001:db8:e{i}::1");
        frames.push(frame(ethernet::IPV6, &ip6("fd00:0::2", &to, protocol::UDP, &udp(20))));
        frames.push(frame(ethernet::IPV4, &ip4([10, 0, 0, 2], [10, 200 + i, 0, 9], protocol::UDP, &udp(20))));
    }
    for i in 1..=11u8 {
        let sid = format!("fc00::{i:x}");
        for (kind, packet) in inner {
            frames.push(frame(ethernet::IPV6, &ip6("fd00:0::2", &sid, kind, packet)));
            for left in [0, 1] {
                let path = if left == 0 { ["fd00:1::2", &sid] } else { [&sid, "fd00:1::2"] };
                let srh = with_srh(&path, left, kind, packet);
                frames.push(frame(ethernet::IPV6, &ip6("fd00:0::2", &sid, protocol::ROUTING, &srh)));
                // Behind a destination options header.
                let options = [&[protocol::ROUTING, 0, 1, 4, 0, 0, 0, 0], &srh[..]].concat();
                frames.push(frame(
                    ethernet::IPV6,
                    &ip6("fd00:0::2", &sid, protocol::DESTINATION_OPTIONS, &options),
                ));
            }
        }
    }
    frames
}

/// Every sample cut at each byte: no panic, no buffer lost, every packet accounted for.
#[test]
fn truncated_at_each_byte() {
    let mut lab = Lab::new();
    lab.all_behaviours();
    for sample in samples() {
        for len in 0..sample.len() {
            lab.send(&[sample[..len].to_vec()]);
        }
    }
    lab.assert_accounted();
}

/// Every byte of every sample with its bits turned: no panic, every packet accounted for.
#[test]
fn each_byte_mutated() {
    let mut lab = Lab::new();
    lab.all_behaviours();
    for sample in samples() {
        for at in 0..sample.len() {
            let mutants: Vec<_> = [0x01, 0x80, 0xff, 0x0f]
                .iter()
                .map(|bits| {
                    let mut mutant = sample.clone();
                    mutant[at] ^= bits;
                    mutant
                })
                .collect();
            lab.send(&mutants);
        }
    }
    lab.assert_accounted();
}

#[test]
fn any_bytes() {
    let mut lab = Lab::new();
    lab.all_behaviours();
    let lab = std::cell::RefCell::new(lab);
    let input = (proptest::collection::vec(any::<u8>(), 0..300), 0..4);
    let run = TestRunner::new(Config::with_cases(20_000)).run(&input, |(tail, kind)| {
        let frame = match kind {
            0 => tail,
            1 => frame(ethernet::IPV6, &tail),
            2 => frame(ethernet::IPV6, &ip6("fd00:0::2", "fc00::9", protocol::ROUTING, &tail)),
            _ => frame(ethernet::IPV4, &tail),
        };
        lab.borrow_mut().send(&[frame]);
        lab.borrow_mut().assert_accounted();
        Ok(())
    });
    run.unwrap();
}

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[allow(unsafe_code)]
// SAFETY: hands every call on to the system's allocator; the counter is a plain thread-local.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promise about `layout` is the system allocator's condition.
        unsafe { System.alloc(layout) }
    }

    // Large zeroed memory comes untouched from the kernel: by itself this would write all of it.
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: `memory` came from `alloc` above with this layout.
        unsafe { System.dealloc(memory, layout) }
    }
}

/// No allocation on the path, whatever the packet.
#[test]
fn allocates_nothing() {
    let mut lab = Lab::new();
    lab.all_behaviours();
    let samples = samples();
    lab.send(&samples[..32]);
    for group in samples.chunks(32) {
        let mut burst = Burst::new();
        for frame in group {
            let mut packet = lab.worker.pool().take().unwrap();
            packet.set(HEADROOM, frame).unwrap();
            burst.push(packet);
        }
        let before = ALLOCATIONS.with(Cell::get);
        lab.worker.process(PortId(0), &mut burst, 1, None);
        lab.worker.discard_sent(PortId(0));
        lab.worker.discard_sent(PortId(1));
        assert_eq!(ALLOCATIONS.with(Cell::get), before, "allocations on the path");
    }
    lab.assert_accounted();
}

/// The frames of `sent` that left by port 0, where an answer to the sender leaves.
fn answers(sent: &[(u16, Vec<u8>)]) -> Vec<&[u8]> {
    sent.iter().filter(|(port, _)| *port == 0).map(|(_, frame)| &frame[14..]).collect()
}

/// RFC 1812 section 5.3.4: what came in a frame for a group is not forwarded, and no error is sent.
#[test]
fn group_frames_are_only_delivered() {
    let mut lab = Lab::new();
    let mut expired = ip4([10, 0, 0, 2], [10, 1, 0, 2], protocol::UDP, &udp(9));
    (expired[8], expired[10], expired[11]) = (1, 0, 0);
    let checksum = underpass_packet::checksum::of(&expired[..20]);
    expired[10..12].copy_from_slice(&checksum.to_be_bytes());
    let frames = [
        frame(ethernet::IPV4, &expired),
        frame(ethernet::IPV4, &ip4([10, 0, 0, 2], [10, 1, 0, 2], protocol::UDP, &udp(9))),
        frame(ethernet::IPV6, &ip6("fd00:0::2", "fd00:1::2", protocol::UDP, &udp(9))),
    ];
    let group = frames.map(|mut frame| {
        frame[..6].fill(0xff);
        frame
    });
    assert_eq!(lab.send(&group), []);
    assert_eq!(lab.writer.dropped(DropReason::GroupFrame), 3);
    lab.assert_accounted();
}

/// IEEE 802.1Q: VLAN 0 gives a priority and names no VLAN.
#[test]
fn priority_tag_is_taken_off() {
    let mut lab = Lab::new();
    let packet = ip6("fd00:0::2", "fd00:1::2", protocol::UDP, &udp(9));
    let tagged =
        |control: u16| frame(ethernet::VLAN, &[&control.to_be_bytes()[..], &[0x86, 0xdd], &packet].concat());
    let plain = lab.send(&[frame(ethernet::IPV6, &packet)]);
    assert_eq!(lab.send(&[tagged(0x6000)]), plain);
    assert_eq!(lab.send(&[tagged(0x6001)]), []);
    assert_eq!(lab.writer.dropped(DropReason::VlanUnknown), 1);
    lab.assert_accounted();
}

/// Linux 6.12: `ip -s link show p0` counts as dropped what is behind a tag of an unknown VLAN if nobody takes it, such as
/// another tag. Packets there are for another station, and are not counted so.
#[test]
fn a_tag_behind_an_unknown_vlan_is_dropped_by_the_link() {
    let mut lab = Lab::new();
    let packet = ip6("fd00:0::2", "fd00:1::2", protocol::UDP, &udp(9));
    let mut dropped = |tags: &[u8], behind: u16| {
        let before = lab.writer.link_drops(lab.links[0], Direction::Receive);
        let inside = [tags, &behind.to_be_bytes(), &packet].concat();
        assert_eq!(lab.send(&[frame(ethernet::VLAN, &inside)]), []);
        lab.writer.link_drops(lab.links[0], Direction::Receive) - before
    };
    assert_eq!(dropped(&[0, 5], ethernet::IPV6), 0);
    assert_eq!(dropped(&[0, 5], 0x88cc), 1);
    assert_eq!(dropped(&[0, 5, 0x81, 0, 0, 6], ethernet::IPV6), 1);
    assert_eq!(dropped(&[0, 5, 0x81, 0, 0, 0], ethernet::IPV6), 1);
    assert_eq!(dropped(&[0, 0, 0x81, 0, 0, 6], ethernet::IPV6), 0);
    lab.assert_accounted();
}

/// RFC 8200 section 4.2: what an unknown option's upper bits say.
#[test]
fn unknown_hop_by_hop_options() {
    let mut lab = Lab::new();
    let send = |lab: &mut Lab, kind: u8| {
        let payload = [&[protocol::UDP, 0, kind, 4, 0, 0, 0, 0][..], &udp(9)].concat();
        lab.send(&[frame(ethernet::IPV6, &ip6("fd00:0::2", "fd00:1::2", protocol::HOP_BY_HOP, &payload))])
    };
    assert_eq!(send(&mut lab, 0x1e).len(), 1);
    assert_eq!(send(&mut lab, 0x5e), []);
    for kind in [0x9e, 0xde] {
        let sent = send(&mut lab, kind);
        assert_eq!(answers(&sent)[0][40..42], [4, 2]);
        assert_eq!(answers(&sent)[0][44..48], 42u32.to_be_bytes());
    }
    assert_eq!(lab.writer.dropped(DropReason::OptionUnknown), 3);
    lab.assert_accounted();
}

/// RFC 2675: a payload length of 0 before hop-by-hop options is that of a jumbogram. What follows counted as payload
/// once, and lengths that were computed from the 0 went below it.
#[test]
fn no_payload_length() {
    let flavours = Flavours { psp: true, usp: true, usd: true, ..Flavours::default() };
    for destination in ["fc00:1::1", "fd00:0::1", "fd00:1::2", "2001:db8:e1::1", "fc00::8"] {
        let mut lab = Lab::new();
        lab.all_behaviours();
        let lookup = lab.lookup;
        lab.flavoured("fc00:1::1", Behaviour::End { lookup }, Some(flavours));
        let srh = with_srh(&[destination, "fd00:1::2"], 1, protocol::UDP, &udp(9));
        let payload = [&[protocol::ROUTING, 0, 1, 4, 0, 0, 0, 0][..], &srh].concat();
        let mut packet = ip6("fd00:0::2", destination, protocol::HOP_BY_HOP, &payload);
        packet[4..6].fill(0);
        let inside = ip6("fd00:0::2", "fc00::8", protocol::IPV6, &packet);
        assert_eq!(lab.send(&[frame(ethernet::IPV6, &packet), frame(ethernet::IPV6, &inside)]), []);
        let dropped =
            (lab.writer.dropped(DropReason::Ip6Malformed), lab.writer.dropped(DropReason::InnerMalformed));
        assert_eq!(dropped, (1, 1), "{destination}: {:?}", lab.drops());
        lab.assert_accounted();
    }
}

/// An error quotes the packet without the SRH that this router inserted, and without the frame.
#[test]
fn errors_quote_the_packet_as_it_came() {
    for (destination, growth) in [("2001:db8:e0::1", 96), ("2001:db8:e1::1", 56), ("2001:db8:e2::1", 110)] {
        let mut lab = Lab::new();
        lab.all_behaviours();
        let packet = ip6("fd00:0::2", destination, protocol::UDP, &udp(1452));
        let sent = lab.send(&[frame(ethernet::IPV6, &packet)]);
        let error = answers(&sent)[0];
        assert_eq!(error[40..42], [2, 0], "{destination}");
        let mtu = u32::from_be_bytes([error[44], error[45], error[46], error[47]]);
        assert!(mtu < 1500 && mtu >= 1500 - growth, "{destination}: {mtu}");
        assert_eq!(error[48..], packet[..1280 - 48], "{destination}");
        lab.assert_accounted();
    }
}

/// Before `ip rule add from … pref 10` the table `local` is the first of the rules': its addresses are the router's all the same.
#[test]
fn neighbours_are_answered_whatever_rules_there_are() {
    let mut lab = Lab::new();
    let all = |any: IpAddr, then| Rule {
        priority: 100,
        source: (any, 0),
        destination: (any, 0),
        protocol: None,
        source_port: None,
        destination_port: None,
        tos: None,
        flow_label: None,
        mark: None,
        invert: false,
        then,
    };
    let lookup = lab.writer.add_lookup(Lookup {
        rules4: [all(Ipv4Addr::UNSPECIFIED.into(), RuleAction::Fib4(lab.fib4))].into(),
        rules6: [all(Ipv6Addr::UNSPECIFIED.into(), RuleAction::Fib6(lab.fib6))].into(),
        own: Some(lab.lookup),
        ..Lookup::default()
    });
    let link = Link { lookup, ..lab.link(0) };
    lab.writer.set_link(lab.links[0], link);
    let mut request = vec![0, 1, 8, 0, 6, 4, 0, 1];
    request.extend([2, 0, 0, 0, 5, 5, 10, 0, 0, 2, 0, 0, 0, 0, 0, 0, 10, 0, 0, 1]);
    let target = lab::v6("fd00:0::1").octets();
    let mut solicitation =
        ip6("fd00:0::2", "fd00:0::1", protocol::ICMPV6, &[&[135, 0, 0, 0, 0, 0, 0, 0][..], &target].concat());
    solicitation[7] = 255;
    let sum = Sum::new().add_bytes(&solicitation[8..]).add_u32(24).add_u32(protocol::ICMPV6.into());
    solicitation[42..44].copy_from_slice(&sum.checksum().to_be_bytes());
    let sent = lab.send(&[frame(ethernet::ARP, &request), frame(ethernet::IPV6, &solicitation)]);
    let [(0, reply), (0, advertisement)] = &sent[..] else { panic!("{sent:?} {:?}", lab.drops()) };
    assert_eq!((reply[21], advertisement[54]), (2, 136));
    lab.assert_accounted();
}

/// A link answers for its own addresses alone, to whoever asks one of its groups; asked by itself it says its link-layer address
/// no more, which whoever asks has. Linux: `ndisc_recv_ns`.
#[test]
fn solicitations_are_for_addresses_of_the_link() {
    let mut lab = Lab::new();
    let mut ask = |target: &str, destination: &str| {
        let message = [&[135, 0, 0, 0, 0, 0, 0, 0][..], &lab::v6(target).octets()].concat();
        let mut packet = ip6("fd00:0::2", destination, protocol::ICMPV6, &message);
        packet[7] = 255;
        let sum = Sum::new().add_bytes(&packet[8..]).add_u32(24).add_u32(protocol::ICMPV6.into());
        packet[42..44].copy_from_slice(&sum.checksum().to_be_bytes());
        let mut frame = frame(ethernet::IPV6, &packet);
        if destination.starts_with("ff02") {
            frame[..2].copy_from_slice(&[0x33, 0x33]);
            frame[2..6].copy_from_slice(&lab::v6(destination).octets()[12..]);
        }
        let sent = lab.send(&[frame]);
        sent.iter().map(|(_, frame)| (frame[54], frame[58], frame.len())).collect::<Vec<_>>()
    };
    assert_eq!(ask("fd00:0::1", "fd00:0::1"), [(136, 0xc0, 78)]);
    assert_eq!(ask("fd00:0::1", "ff02::1:ff00:1"), [(136, 0xe0, 86)]);
    assert_eq!(ask("fd00:0::1", "ff02::1"), [(136, 0xe0, 86)]);
    assert_eq!(ask("fd00:0::1", "ff02::1:ff00:2"), []);
    assert_eq!(ask("fd00:1::1", "fd00:0::1"), []);
    assert_eq!(ask("::1", "fd00:0::1"), []);
    lab.assert_accounted();
}

/// RFC 1122 section 3.2.2.1: nothing listens.
#[test]
fn nothing_listens() {
    let mut lab = Lab::new();
    let to_port = ip4([10, 0, 0, 2], [10, 0, 0, 1], protocol::UDP, &udp(9));
    let of_protocol = ip4([10, 0, 0, 2], [10, 0, 0, 1], 253, &udp(9));
    let sent = lab.send(&[frame(ethernet::IPV4, &to_port), frame(ethernet::IPV4, &of_protocol)]);
    let codes: Vec<_> = answers(&sent).iter().map(|error| (error[20], error[21])).collect();
    assert_eq!(codes, [(3, 3), (3, 2)]);
    let next_header = ip6("fd00:0::2", "fd00:0::1", 253, &udp(9));
    let sent = lab.send(&[frame(ethernet::IPV6, &next_header)]);
    assert_eq!(answers(&sent)[0][40..48], [4, 1, answers(&sent)[0][42], answers(&sent)[0][43], 0, 0, 0, 6]);
    lab.assert_accounted();
}
