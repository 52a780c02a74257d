//! Labelled packets, on the fast path and step by step, which must come to the same.

use super::lab;
use super::lab::{Lab, MACS, PEERS, frame, ip4, ip6, udp};
use proptest::prelude::any;
use proptest::test_runner::{Config, TestRunner};
use underpass_engine::buffer::{HEADROOM, Packet, PortId};
use underpass_engine::counters::{Count, Direction, MplsCount};
use underpass_engine::drops::DropReason;
use underpass_engine::tables::{
    Action, ActionId, IpVersion, LabelAction, Link, NextHop, Push, Switch, SwitchTo,
};
use underpass_engine::trace::{Event, Watch};
use underpass_engine::worker::Burst;
use underpass_packet::mpls::{self, Entry};
use underpass_packet::{IntoBytes, ethernet, protocol};

/// Looks at every step, so that packets go by themselves.
struct Watcher;

impl Watch for Watcher {
    fn step(&mut self, _: Event, _: &Packet) {}
}

fn entry(label: u32, bottom: bool, ttl: u8) -> [u8; 4] {
    entry_of(label, 0, bottom, ttl)
}

fn entry_of(label: u32, class: u8, bottom: bool, ttl: u8) -> [u8; 4] {
    Entry::new(label, class, bottom, ttl).as_bytes().try_into().unwrap()
}

/// A packet below these labels, of traffic class 5 and TTL 40.
fn labelled(labels: &[u32], packet: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; labels.len() * Entry::LEN];
    mpls::write(labels, 40, &mut bytes).unwrap();
    bytes.as_chunks_mut::<4>().0.iter_mut().for_each(|entry| entry[2] |= 5 << 1);
    frame(ethernet::MPLS, &[&bytes[..], packet].concat())
}

/// A frame that left by port 1.
fn out(ethertype: u16, packet: &[&[u8]]) -> Vec<u8> {
    [&PEERS[1][..], &MACS[1], &ethertype.to_be_bytes(), &packet.concat()].concat()
}

fn with_ttl4(mut packet: Vec<u8>, ttl: u8) -> Vec<u8> {
    packet[8] = ttl;
    packet[10..12].fill(0);
    let sum = underpass_packet::checksum::of(&packet[..20]);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet
}

fn with_ttl6(mut packet: Vec<u8>, ttl: u8) -> Vec<u8> {
    packet[7] = ttl;
    packet
}

fn with_tos4(mut packet: Vec<u8>, tos: u8) -> Vec<u8> {
    packet[1] = tos;
    let ttl = packet[8];
    with_ttl4(packet, ttl)
}

fn with_tos6(mut packet: Vec<u8>, tos: u8) -> Vec<u8> {
    packet[0] = 0x60 | tos >> 4;
    packet[1] = packet[1] & 0xf | tos << 4;
    packet
}

fn v4() -> Vec<u8> {
    ip4([10, 0, 0, 2], [10, 1, 0, 9], protocol::UDP, &udp(64))
}

fn v6() -> Vec<u8> {
    ip6("fd00:0::2", "fd00:1::9", protocol::UDP, &udp(64))
}

struct Mpls(Lab);

impl Mpls {
    fn new() -> Self {
        let mut lab = Lab::new();
        for (i, id) in lab.links.into_iter().enumerate() {
            lab.writer.set_link(id, Link { mpls: true, ..link(i, &lab) });
        }
        Self(lab)
    }

    fn set(&mut self, label: u32, action: LabelAction) {
        self.0.writer.set_label(label, Some(action));
    }

    fn switch(
        &mut self,
        labels: &[u32],
        to: SwitchTo,
        propagate: bool,
        payload: Option<IpVersion>,
    ) -> ActionId {
        let mut bytes = vec![0; labels.len() * Entry::LEN];
        mpls::write(labels, 0, &mut bytes).unwrap();
        if let [.., bottom, _] = &mut bytes[..] {
            *bottom &= !1;
        }
        self.0.writer.add_action(Action::Switch(Switch { labels: bytes.into(), to, propagate, payload }))
    }

    fn hop(&self) -> SwitchTo {
        SwitchTo::NextHop(self.0.next_hops[1])
    }

    fn here(&self) -> SwitchTo {
        SwitchTo::Here { lookup: self.0.lookup, labels: true, vrf: None }
    }

    /// What leaves by port 1, the same on both paths.
    fn send(&mut self, frame: &[u8]) -> Vec<Vec<u8>> {
        let plain: Vec<_> = self.0.send(&[frame.to_vec()]);
        let mut burst = Burst::new();
        let mut packet = self.0.worker.pool().take().unwrap();
        packet.set(HEADROOM, frame).unwrap();
        burst.push(packet);
        self.0.worker.process(PortId(0), &mut burst, 0, Some(&mut Watcher));
        let mut watched = Vec::new();
        for port in [0, 1] {
            let sent: Vec<_> = self.0.worker.sent(PortId(port)).collect();
            for packet in sent {
                watched.push((port, packet.bytes().to_vec()));
                self.0.worker.pool().give(packet);
            }
        }
        assert_eq!(plain, watched);
        self.0.assert_accounted();
        plain.into_iter().filter(|(port, _)| *port == 1).map(|(_, frame)| frame).collect()
    }
}

fn link(i: usize, lab: &Lab) -> Link {
    Link {
        ifindex: i as u32 + 2,
        port: Some(PortId(i as u16)),
        up: true,
        mac: MACS[i],
        mtu: 1500,
        lookup: lab.lookup,
        forward4: true,
        forward6: true,
        source4: Some([10, 0, i as u8, 1].into()),
        source6: Some(lab::v6(&format!("fd00:{i}::1"))),
        own6: [lab::v6(&format!("fd00:{i}::1"))].into(),
        rpl: true,
        seg6: true,
        ..Link::default()
    }
}

/// Linux: TTL one less, traffic class 0.
#[test]
fn swap() {
    let mut lab = Mpls::new();
    let next_hop = lab.0.next_hops[1];
    lab.set(100, LabelAction::Swap { label: 200, next_hop });
    let out1 = lab.send(&labelled(&[100], &v4()));
    assert_eq!(out1, [out(ethernet::MPLS, &[&entry(200, true, 39), &v4()])]);
    // What is below keeps its TTL and class.
    let below = *Entry::new(300, 5, true, 40).as_bytes().first_chunk::<4>().unwrap();
    let out2 = lab.send(&labelled(&[100, 300], &v4()));
    assert_eq!(out2, [out(ethernet::MPLS, &[&entry(200, false, 39), &below, &v4()])]);
}

#[test]
fn swap_and_push() {
    let mut lab = Mpls::new();
    let action = lab.switch(&[200, 300], lab.hop(), true, None);
    lab.set(100, LabelAction::Act(action));
    let sent = lab.send(&labelled(&[100], &v6()));
    assert_eq!(sent, [out(ethernet::MPLS, &[&entry(200, false, 39), &entry(300, true, 39), &v6()])]);
    lab.set(102, LabelAction::SwapPush { labels: [200, 300], next_hop: lab.0.next_hops[1] });
    assert_eq!(lab.send(&labelled(&[102], &v6())), sent);
    // What is below keeps its place: RFC 3032 section 2.1.
    let below = *Entry::new(400, 5, true, 40).as_bytes().first_chunk::<4>().unwrap();
    let more = lab.send(&labelled(&[102, 400], &v6()));
    let entries = [&entry(200, false, 39)[..], &entry(300, false, 39), &below, &v6()];
    assert_eq!(more, [out(ethernet::MPLS, &entries)]);
    let deep: Vec<u32> = (1000..1030).collect();
    let action = lab.switch(&deep, lab.hop(), true, None);
    lab.set(101, LabelAction::Act(action));
    let entries: Vec<u8> = deep.iter().flat_map(|label| entry(*label, *label == 1029, 39)).collect();
    assert_eq!(lab.send(&labelled(&[101], &v6())), [out(ethernet::MPLS, &[&entries, &v6()])]);
}

/// RFC 3031 section 3.16, RFC 3443 section 5.4: the packet takes over the TTL, or has its own lowered.
#[test]
fn pop_to_a_next_hop() {
    let mut lab = Mpls::new();
    let next_hop = lab.0.next_hops[1];
    lab.set(100, LabelAction::Pop { next_hop, propagate: true });
    lab.set(101, LabelAction::Pop { next_hop, propagate: false });
    for (label, ttl) in [(100, 39), (101, 20)] {
        let (four, six) = (with_ttl4(v4(), 21), with_ttl6(v6(), 21));
        let sent = lab.send(&labelled(&[label], &four));
        assert_eq!(sent, [out(ethernet::IPV4, &[&with_ttl4(v4(), ttl)])]);
        let sent = lab.send(&labelled(&[label], &six));
        assert_eq!(sent, [out(ethernet::IPV6, &[&with_ttl6(v6(), ttl)])]);
        let below = *Entry::new(300, 5, true, 40).as_bytes().first_chunk::<4>().unwrap();
        let sent = lab.send(&labelled(&[label, 300], &four));
        assert_eq!(sent, [out(ethernet::MPLS, &[&below, &four])]);
    }
}

/// The packet below is looked up, and its TTL lowered once more by that.
#[test]
fn pop_here() {
    let mut lab = Mpls::new();
    let action = lab.switch(&[], lab.here(), true, None);
    lab.set(100, LabelAction::Act(action));
    assert_eq!(lab.send(&labelled(&[100], &v4())), [out(ethernet::IPV4, &[&with_ttl4(v4(), 38)])]);
    assert_eq!(lab.send(&labelled(&[100], &v6())), [out(ethernet::IPV6, &[&with_ttl6(v6(), 38)])]);
    // Label after label, as long as it leads here.
    assert_eq!(lab.send(&labelled(&[100, 100], &v4())), [out(ethernet::IPV4, &[&with_ttl4(v4(), 38)])]);
    let pipe = lab.switch(&[], lab.here(), false, Some(IpVersion::V4));
    lab.set(0, LabelAction::Act(pipe));
    assert_eq!(lab.send(&labelled(&[0], &v4())), [out(ethernet::IPV4, &[&with_ttl4(v4(), 38)])]);
    assert_eq!(lab.send(&labelled(&[0], &v6())), Vec::<Vec<u8>>::new());
    assert_eq!(lab.0.writer.dropped(DropReason::LabelPayload), 2);
}

#[test]
fn push() {
    let mut lab = Mpls::new();
    let mut labels = [0; 8];
    mpls::write(&[500, 600], 0, &mut labels).unwrap();
    for (i, ttl) in [None, Some(7)].into_iter().enumerate() {
        let push = Push { labels: labels.into(), ttl, next_hop: lab.0.next_hops[1] };
        let action = lab.0.writer.add_action(Action::Push(push));
        let (fib4, fib6) = (lab.0.fib4, lab.0.fib6);
        lab.0.writer.insert4(fib4, [10, 9, i as u8, 0].into(), 24, action);
        lab.0.writer.insert6(fib6, lab::v6(&format!("fd09:{i}::")), 32, action);
        let shown = ttl.unwrap_or(39);
        let entries = [entry(500, false, shown), entry(600, true, shown)].concat();
        let four = ip4([10, 0, 0, 2], [10, 9, i as u8, 2], protocol::UDP, &udp(9));
        let sent = lab.send(&frame(ethernet::IPV4, &four));
        assert_eq!(sent, [out(ethernet::MPLS, &[&entries, &with_ttl4(four, 39)])]);
        let six = ip6("fd00:0::2", &format!("fd09:{i}::2"), protocol::UDP, &udp(9));
        let sent = lab.send(&frame(ethernet::IPV6, &six));
        assert_eq!(sent, [out(ethernet::MPLS, &[&entries, &with_ttl6(six, 39)])]);
    }
    // What does not fit with its labels is cut first, or refused.
    let mut long = ip4([10, 0, 0, 2], [10, 9, 0, 2], protocol::UDP, &udp(1470));
    long[6] = 0;
    let sent = lab.send(&frame(ethernet::IPV4, &with_ttl4(long.clone(), 40)));
    assert_eq!(sent.len(), 2);
    assert!(sent.iter().all(|frame| frame.len() <= 1514 && frame[12..17] == [0x88, 0x47, 0, 0x1f, 0x40]));
    long[6] = 0x40;
    assert!(lab.send(&frame(ethernet::IPV4, &with_ttl4(long, 40))).is_empty());
    assert_eq!(lab.0.writer.dropped(DropReason::TooBig), 2);
}

/// RFC 3270 section 2.6.2: labels have the class of what they are put on, and what is below them gets theirs.
#[test]
fn uniform_classes() {
    let mut lab = Mpls::new();
    lab.0.writer.set_uniform_classes(true);
    let next_hop = lab.0.next_hops[1];
    let (here, pipe) = (lab.switch(&[], lab.here(), true, None), lab.switch(&[], lab.here(), false, None));
    let three = lab.switch(&[201, 202, 203], lab.hop(), true, None);
    for (label, action) in [
        (100, LabelAction::Swap { label: 200, next_hop }),
        (101, LabelAction::SwapPush { labels: [201, 202], next_hop }),
        (102, LabelAction::Act(three)),
        (103, LabelAction::Pop { next_hop, propagate: true }),
        (104, LabelAction::Pop { next_hop, propagate: false }),
        (105, LabelAction::Act(here)),
        (106, LabelAction::Act(pipe)),
    ] {
        lab.set(label, action);
    }
    let of = |label, bottom| entry_of(label, 5, bottom, 39);
    let below = |class| entry_of(300, class, true, 40);
    // A packet below label 300 of class 2; the labels above it are of class 5.
    let stack = |labels: &[u32]| {
        let mut frame = labelled(&[labels, &[300]].concat(), &v4());
        let at = 14 + labels.len() * Entry::LEN;
        frame[at..at + 4].copy_from_slice(&below(2));
        frame
    };
    let mpls = |parts: &[&[u8]]| [out(ethernet::MPLS, parts)];
    assert_eq!(lab.send(&labelled(&[100], &v4())), mpls(&[&of(200, true), &v4()]));
    assert_eq!(lab.send(&stack(&[100])), mpls(&[&of(200, false), &below(2), &v4()]));
    assert_eq!(lab.send(&labelled(&[101], &v6())), mpls(&[&of(201, false), &of(202, true), &v6()]));
    let three = [of(201, false), of(202, false), of(203, false)].concat();
    assert_eq!(lab.send(&stack(&[102])), mpls(&[&three, &below(2), &v4()]));
    assert_eq!(lab.send(&stack(&[103])), mpls(&[&below(5), &v4()]));
    assert_eq!(lab.send(&stack(&[104])), mpls(&[&below(2), &v4()]));
    // The class goes from label to label that ends here.
    lab.set(300, LabelAction::Swap { label: 400, next_hop });
    assert_eq!(lab.send(&stack(&[105, 105])), mpls(&[&of(400, true), &v4()]));
    assert_eq!(lab.send(&stack(&[105, 106])), mpls(&[&entry_of(400, 2, true, 39), &v4()]));
    // The other bits of the DSCP and ECN stay.
    for (label, tos, ttl) in [(103, 0xbd, 39), (104, 0x5d, 39), (105, 0xbd, 38), (106, 0x5d, 38)] {
        let (four, six) = (with_tos4(v4(), 0x5d), with_tos6(v6(), 0x5d));
        let sent = lab.send(&labelled(&[label], &four));
        assert_eq!(sent, [out(ethernet::IPV4, &[&with_tos4(with_ttl4(v4(), ttl), tos)])], "{label}");
        let sent = lab.send(&labelled(&[label], &six));
        assert_eq!(sent, [out(ethernet::IPV6, &[&with_tos6(with_ttl6(v6(), ttl), tos)])], "{label}");
    }
    lab.0.writer.set_uniform_classes(false);
    assert_eq!(lab.send(&labelled(&[100], &v4())), mpls(&[&entry(200, true, 39), &v4()]));
    assert_eq!(lab.send(&stack(&[103])), mpls(&[&below(2), &v4()]));
    assert_eq!(lab.send(&labelled(&[103], &v4())), [out(ethernet::IPV4, &[&with_ttl4(v4(), 39)])]);
}

#[test]
fn uniform_classes_of_pushed_labels() {
    let mut lab = Mpls::new();
    lab.0.writer.set_uniform_classes(true);
    for (third, count) in [(1, 1), (2, 2), (3, 5)] {
        let labels: Vec<u32> = (500..500 + count).collect();
        let mut bytes = vec![0; labels.len() * Entry::LEN];
        mpls::write(&labels, 0, &mut bytes).unwrap();
        let push = Push { labels: bytes.into(), ttl: Some(7), next_hop: lab.0.next_hops[1] };
        let action = lab.0.writer.add_action(Action::Push(push));
        let (fib4, fib6) = (lab.0.fib4, lab.0.fib6);
        lab.0.writer.insert4(fib4, [10, 9, third, 0].into(), 24, action);
        lab.0.writer.insert6(fib6, lab::v6(&format!("fd09:{third}::")), 32, action);
        let four = ip4([10, 0, 0, 2], [10, 9, third, 2], protocol::UDP, &udp(9));
        let six = ip6("fd00:0::2", &format!("fd09:{third}::2"), protocol::UDP, &udp(9));
        for tos in 0..=255 {
            let bottom = 499 + count;
            let entry = |label: &u32| entry_of(*label, tos >> 5, *label == bottom, 7);
            let entries: Vec<u8> = labels.iter().flat_map(entry).collect();
            let (four, six) = (with_tos4(four.clone(), tos), with_tos6(six.clone(), tos));
            let sent = lab.send(&frame(ethernet::IPV4, &with_ttl4(four.clone(), 40)));
            assert_eq!(sent, [out(ethernet::MPLS, &[&entries, &with_ttl4(four, 39)])]);
            let sent = lab.send(&frame(ethernet::IPV6, &with_ttl6(six.clone(), 40)));
            assert_eq!(sent, [out(ethernet::MPLS, &[&entries, &with_ttl6(six, 39)])]);
        }
    }
    // Fragments have the class of their packet.
    let mut long = with_tos4(ip4([10, 0, 0, 2], [10, 9, 1, 2], protocol::UDP, &udp(1480)), 0xb8);
    long[6] = 0;
    let sent = lab.send(&frame(ethernet::IPV4, &with_ttl4(long, 40)));
    assert_eq!(sent.len(), 2);
    assert!(sent.iter().all(|frame| frame[14..18] == entry_of(500, 5, true, 7)));
}

#[test]
fn flows_keep_their_way() {
    let mut lab = Mpls::new();
    let next_hop = lab.0.next_hops[1];
    let ways = [201, 202, 203, 204].map(|label| (1, LabelAction::Swap { label, next_hop }));
    let ways = lab.0.writer.add_label_next_hops(&ways);
    lab.set(100, LabelAction::NextHops(ways));
    let mut seen = [0; 4];
    for flow in 0..64 {
        let mut packet = v4();
        packet[15] = flow;
        let way = |lab: &mut Mpls, ttl: u8| {
            let sent = lab.send(&labelled(&[100], &with_ttl4(packet.clone(), ttl)));
            u32::from_be_bytes(*sent[0][14..].first_chunk().unwrap()) >> 12
        };
        let first = way(&mut lab, 40);
        assert_eq!(way(&mut lab, 41), first);
        seen[first as usize - 201] += 1;
    }
    assert!(seen.iter().all(|&count| count > 4), "{seen:?}");
    // RFC 6790 section 4.3: with an entropy label nothing below it counts.
    let ways: Vec<_> = (0..16)
        .map(|flow| {
            let mut packet = v4();
            packet[15] = flow;
            lab.send(&labelled(&[100, 7, 5555], &packet))[0][14..18].to_vec()
        })
        .collect();
    assert!(ways.iter().all(|way| *way == ways[0]));
}

#[test]
fn drops() {
    let mut lab = Mpls::new();
    let next_hop = lab.0.next_hops[1];
    lab.set(100, LabelAction::Swap { label: 200, next_hop });
    let blackhole = lab.0.writer.add_action(Action::Discard(underpass_engine::tables::Discard::Blackhole));
    lab.set(101, LabelAction::Act(blackhole));
    let pop = lab.switch(&[], SwitchTo::Here { lookup: lab.0.lookup, labels: false, vrf: None }, true, None);
    lab.set(102, LabelAction::Act(pop));
    let mut expired = labelled(&[100], &[0; 20]);
    expired[17] = 1;
    let deep = labelled(&[100; 31], &v4());
    let bottomless = frame(ethernet::MPLS, &[0, 6, 0x40, 40]);
    for (frame, reason) in [
        (labelled(&[16], &v4()), DropReason::LabelUnknown),
        (labelled(&[3], &v4()), DropReason::LabelUnknown),
        (labelled(&[101], &v4()), DropReason::Blackhole),
        (labelled(&[102, 100], &v4()), DropReason::MplsOff),
        (labelled(&[102], &[0; 40]), DropReason::LabelPayload),
        (labelled(&[102], &[]), DropReason::LabelPayload),
        (expired, DropReason::HopLimitExceeded),
        (deep, DropReason::LabelStackMalformed),
        (bottomless, DropReason::LabelStackMalformed),
        (frame(ethernet::MPLS, &[0, 6]), DropReason::LabelStackMalformed),
        (labelled(&[100], &[0; 1497]), DropReason::TooBig),
    ] {
        let before = lab.0.writer.dropped(reason);
        assert_eq!(lab.send(&frame), Vec::<Vec<u8>>::new());
        assert_eq!(lab.0.writer.dropped(reason), before + 2, "{reason:?}");
    }
    // An interface that takes no labels.
    let off = link(0, &lab.0);
    let first = lab.0.links[0];
    lab.0.writer.set_link(first, off);
    assert!(lab.send(&labelled(&[100], &v4())).is_empty());
    assert_eq!(lab.0.writer.dropped(DropReason::MplsOff), 4);
}

/// Each frame counts twice: it goes both paths.
#[test]
fn counters() {
    let mut lab = Mpls::new();
    let next_hop = lab.0.next_hops[1];
    lab.set(100, LabelAction::Swap { label: 200, next_hop });
    lab.set(101, LabelAction::Pop { next_hop, propagate: true });
    let here = lab.switch(&[], lab.here(), true, None);
    lab.set(102, LabelAction::Act(here));
    let (packet, len) = (v4(), v4().len() as u64);
    let mut expired = labelled(&[100], &packet);
    expired[17] = 1;
    let mut long = v6();
    long.resize(1498, 0);
    long[4..6].copy_from_slice(&1458_u16.to_be_bytes());
    let frames = [
        labelled(&[100], &packet),
        labelled(&[101], &packet),
        labelled(&[101, 300], &packet),
        // A label below one that leads here is looked up as well.
        labelled(&[102, 100], &packet),
        labelled(&[102], &packet),
        expired,
        labelled(&[100], &long),
        labelled(&[999], &packet),
        labelled(&[102], &[0; 40]),
    ];
    let bytes: usize = frames.iter().map(|frame| frame.len() - 14).sum();
    frames.iter().for_each(|frame| drop(lab.send(frame)));
    let count = |packets, bytes, errors| Count { packets, bytes, errors };
    let counted = [100, 101, 102, 999].map(|label| lab.0.writer.label_count(label));
    let expected =
        [count(4, 4 * (len + 4), 4), count(4, 4 * len + 24, 0), count(4, 4 * len + 24, 2), Count::default()];
    assert_eq!(counted, expected);
    let [first, second] = [lab.0.links[0], lab.0.links[1]].map(|link| lab.0.writer.mpls_count(link));
    let (packets, bytes) = (2 * frames.len() as u64, 2 * bytes as u64);
    let received = MplsCount { rx_packets: packets, rx_bytes: bytes, rx_errors: 4, ..MplsCount::default() };
    assert_eq!(first, MplsCount { rx_noroute: 2, ..received });
    let sent = MplsCount { tx_packets: 6, tx_bytes: 6 * (len + 4), ..MplsCount::default() };
    assert_eq!(second, MplsCount { tx_errors: 2, ..sent });
    // What is not looked at counts where it came in.
    let (off, link) = (link(0, &lab.0), lab.0.links[0]);
    lab.0.writer.set_link(link, off);
    lab.send(&frames[0]);
    let dropped = lab.0.writer.mpls_count(link) - first;
    let received = MplsCount { rx_packets: 2, rx_bytes: 2 * (len + 4), ..MplsCount::default() };
    assert_eq!(dropped, MplsCount { rx_dropped: 2, ..received });
}

/// What a label leads into a VRF that has no way for it is an error of the VRF's device.
#[test]
fn errors_of_a_vrf() {
    let mut lab = Mpls::new();
    let unported = Link { port: None, ..link(1, &lab.0) };
    let device = lab.0.writer.add_link(unported);
    let to = SwitchTo::Here { lookup: lab.0.lookup, labels: false, vrf: Some(device) };
    let into = lab.switch(&[], to, true, None);
    lab.set(100, LabelAction::Act(into));
    let lost = ip4([10, 0, 0, 2], [192, 0, 2, 1], protocol::UDP, &udp(64));
    assert_eq!(lab.send(&labelled(&[100], &v4())).len(), 1);
    assert_eq!(lab.send(&labelled(&[100], &lost)), Vec::<Vec<u8>>::new());
    // It has arrived, though nobody listens.
    lab.send(&labelled(&[100], &ip4([10, 0, 0, 2], [10, 0, 0, 1], protocol::UDP, &udp(64))));
    // A VRF takes no labels.
    assert_eq!(lab.send(&labelled(&[100, 200], &v4())), Vec::<Vec<u8>>::new());
    let count = lab.0.writer.link_count(device, Direction::Transmit);
    assert_eq!(count, Count { packets: 0, bytes: 0, errors: 4 });
}

/// Without a MAC address for the next hop nothing leaves.
#[test]
fn unresolved() {
    let mut lab = Mpls::new();
    let next_hop = lab.0.next_hops[1];
    let known = NextHop {
        link: lab.0.links[1],
        port: PortId(1),
        mtu: 1500,
        locked: false,
        hop_limit: 0,
        rewrite: None,
        address: [10, 1, 0, 2].into(),
    };
    lab.0.writer.set_next_hop(next_hop, known);
    lab.set(100, LabelAction::Swap { label: 200, next_hop });
    assert!(lab.send(&labelled(&[100], &v4())).is_empty());
    assert_eq!(lab.0.writer.dropped(DropReason::NeighbourUnresolved), 2);
}

/// Whatever is below or in a stack: both paths come to the same, and nothing is lost.
#[test]
fn any_stack() {
    let mut lab = Mpls::new();
    let next_hop = lab.0.next_hops[1];
    let here = lab.switch(&[], lab.here(), true, None);
    let pipe = lab.switch(&[], lab.here(), false, None);
    let two = lab.switch(&[7, 9], lab.hop(), false, None);
    for (label, action) in [
        LabelAction::Swap { label: 200, next_hop },
        LabelAction::Pop { next_hop, propagate: true },
        LabelAction::Pop { next_hop, propagate: false },
        LabelAction::Act(here),
        LabelAction::Act(two),
        LabelAction::SwapPush { labels: [8, 9], next_hop },
        LabelAction::Act(pipe),
    ]
    .into_iter()
    .enumerate()
    {
        lab.set(label as u32, action);
    }
    let entry = (0..8u32, 0..8u8, any::<bool>(), 0..5u8);
    let stack = proptest::collection::vec(entry, 0..5);
    let strategy = ((stack, any::<bool>()), 0..4usize, any::<(usize, u8)>(), 0..120usize);
    let mut runner = TestRunner::new(Config { cases: 2000, ..Config::default() });
    let lab = std::cell::RefCell::new(lab);
    runner
        .run(&strategy, |((stack, uniform), payload, (at, byte), cut)| {
            let mut bytes: Vec<u8> = stack
                .iter()
                .flat_map(|&(label, class, bottom, ttl)| entry_of(label, class, bottom, ttl))
                .collect();
            bytes.extend([v4(), v6(), with_ttl4(v4(), 2), Vec::new()][payload].clone());
            if let Some(changed) = bytes.get_mut(at % 160) {
                *changed = byte;
            }
            bytes.truncate(bytes.len().max(cut) - cut.min(20));
            let mut lab = lab.borrow_mut();
            lab.0.writer.set_uniform_classes(uniform);
            lab.send(&frame(ethernet::MPLS, &bytes));
            Ok(())
        })
        .unwrap();
    let lab = lab.into_inner();
    assert_eq!(lab.0.writer.mpls_count(lab.0.links[0]).rx_packets, 4000);
}
