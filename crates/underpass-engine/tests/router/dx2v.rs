//! End.DX2V: a frame leaves by the VLAN device of its tags. RFC 8986 section 4.10.
//!
//! Linux has no such behaviour: the packets in `dx2v.txt`, and what leaves, are built by scapy (`dx2v.py`).

use proptest::prelude::*;
use underpass_engine::counters::{Count, CounterId};
use underpass_engine::drops::DropReason;
use underpass_engine::tables::{Behaviour, Link, LinkId};
use underpass_packet::{ethernet, protocol};

use super::lab::{Lab, MACS, PEERS, Watcher, frame, ip6, udp};
use super::tagged::{TAGS, tagged, vlan_link, with_tags};

/// Bytes of the Ethernet header.
const ETHERNET: usize = 14;

/// SIDs of the VLANs of port 0 and port 1.
fn router() -> (Lab, [CounterId; 2]) {
    let mut lab = tagged(false);
    let [port0, port1] = lab.links;
    let counters = [("fc00::d0", port0), ("fc00::d1", port1)]
        .map(|(address, link)| lab.sid(address, Behaviour::DX2V { link }));
    (lab, counters)
}

fn bytes(hex: &str) -> Option<Vec<u8>> {
    let byte = |at| u8::from_str_radix(hex.get(at..at + 2)?, 16).ok();
    (0..hex.len()).step_by(2).map(byte).collect()
}

/// Packets of `dx2v.txt`: what leaves, what is counted, and the same while somebody watches.
#[test]
fn as_scapy_builds_them() {
    let mut cases = 0;
    for line in include_str!("dx2v.txt").lines() {
        let (name, rest) = line.split_once(": ").unwrap();
        let [port, came, expected] = *rest.split(' ').collect::<Vec<_>>() else { panic!("{line}") };
        let port: u16 = port.parse().unwrap();
        let came = bytes(came).unwrap();
        for watched in [false, true] {
            let (mut lab, counters) = router();
            let frames = std::slice::from_ref(&came);
            let sent = if watched { lab.send_watched(frames, &mut Watcher) } else { lab.send(frames) };
            let count = lab.writer.count(counters[usize::from(port)]);
            if let Some(expected) = bytes(expected) {
                assert_eq!(sent, [(port, expected)], "{name}: {:?}", lab.drops());
                let length = (came.len() - ETHERNET) as u64;
                assert_eq!(count, Count { packets: 1, bytes: length, errors: 0 }, "{name}");
            } else {
                assert_eq!(lab.drops(), [(expected, 1)], "{name}");
                assert_eq!(count, Count { errors: 1, ..Count::default() }, "{name}");
            }
            lab.assert_accounted();
        }
        cases += 1;
    }
    assert_eq!(cases, 22);
}

/// A frame in an IPv6 packet, for the SID of port 0.
fn around(inside: &[u8]) -> Vec<u8> {
    frame(ethernet::IPV6, &ip6("2001:db8::1", "fc00::d0", protocol::ETHERNET, inside))
}

fn inside(payload: usize) -> Vec<u8> {
    [&PEERS[1], &MACS[1], &[0x08, 0][..], &udp(payload)].concat()
}

/// The link of a VLAN device that [`tagged`] adds, behind those of the ports.
fn device(lab: &Lab, number: u32) -> LinkId {
    LinkId(lab.links[1].0 + 1 + number)
}

/// The device drops what it cannot send, and the SID counts an error, as End.DX2 does.
#[test]
fn the_device_is_down_or_its_mtu_small() {
    let (mut lab, counters) = router();
    assert!(lab.send(&[around(&with_tags(&inside(1493), &[(0, 0)]))]).is_empty());
    assert_eq!(lab.drops(), [("too-big", 1)]);
    let down = Link { up: false, ..vlan_link(&lab, 1, lab.links[0]) };
    let second = device(&lab, 1);
    lab.writer.set_link(second, down);
    assert!(lab.send(&[around(&with_tags(&inside(9), &[(1, 0)]))]).is_empty());
    assert_eq!(lab.writer.dropped(DropReason::LinkDown), 1);
    assert_eq!(lab.writer.count(counters[0]), Count { errors: 2, ..Count::default() });
    lab.assert_accounted();
}

/// The maps of a device keep the priority code point, if they say so.
#[test]
fn maps_keep_priorities() {
    let (mut lab, _) = router();
    let mut link = vlan_link(&lab, 1, lab.links[0]);
    let vlan = link.vlan.as_deref_mut().unwrap();
    vlan.ingress = [0, 1, 2, 3, 4, 5, 6, 7];
    vlan.egress = (1..8).map(|code| (u32::from(code), code)).collect();
    let second = device(&lab, 1);
    lab.writer.set_link(second, link);
    for code in 0..8 {
        let frame = with_tags(&inside(20), &[(1, code << 5)]);
        assert_eq!(lab.send(&[around(&frame)]), [(0, frame)], "{code}");
    }
}

/// What leaves by port 0 of a frame with these tags: [`TAGS`] and what the control information has besides. `None`: nothing.
fn expected(frame: &[u8], tags: &[(usize, u8)]) -> Option<Vec<u8>> {
    // VLAN 10 of 802.1Q, in which 30 is, and 20 of 802.1ad.
    let ours = match tags {
        [(0, _), (3, _), ..] => 2,
        [(0 | 1, _), ..] => 1,
        _ => return None,
    };
    let rest = tags.iter().enumerate().map(|(at, (number, control))| {
        // Tags of devices are theirs, with priority 0.
        (*number, if at < ours { 0 } else { *control })
    });
    Some(with_tags(frame, &rest.collect::<Vec<_>>()))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Bursts of frames with any tags, and any payload.
    #[test]
    fn any_tags(
        burst in proptest::collection::vec(
            (proptest::collection::vec((0..TAGS.len(), any::<u8>()), 0..4), 0..200_usize),
            1..30,
        ),
    ) {
        let (mut lab, counters) = router();
        let frames: Vec<_> =
            burst.iter().map(|(tags, payload)| around(&with_tags(&inside(*payload), tags))).collect();
        let mut out: Vec<_> = lab.send(&frames);
        let mut all: Vec<_> = burst
            .iter()
            .filter_map(|(tags, payload)| Some((0, expected(&inside(*payload), tags)?)))
            .collect();
        let count = lab.writer.count(counters[0]);
        prop_assert_eq!(count.packets, all.len() as u64);
        prop_assert_eq!(count.errors, (burst.len() - all.len()) as u64);
        prop_assert_eq!(lab.writer.dropped(DropReason::VlanUnknown), count.errors);
        // Those of a device leave together.
        out.sort();
        all.sort();
        prop_assert_eq!(out, all);
        lab.assert_accounted();
    }
}
