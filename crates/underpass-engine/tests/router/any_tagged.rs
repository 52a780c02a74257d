//! Tags make no difference to what is inside, and any bytes behind them do no harm.

use super::lab::{Lab, MACS, PEERS, frame, ip4, ip6, udp};
use super::tagged::{self, HOST, TAGS, by, to_third, with_tags};
use proptest::prelude::*;
use underpass_engine::buffer::PortId;
use underpass_packet::{ethernet, protocol};

/// A router without VLAN devices, which reaches the third network by port 1.
fn plain() -> Lab {
    let mut lab = Lab::new();
    let link = lab.links[1];
    to_third(&mut lab, link, PortId(1));
    lab
}

/// What leaves, without the tag of VLAN 40 where it has that.
fn without_tag(out: Vec<(u16, Vec<u8>)>) -> Vec<(u16, Vec<u8>)> {
    let strip = |(port, mut frame): (u16, Vec<u8>)| {
        if frame.get(12..16) == Some(&TAGS[2]) {
            frame.drain(12..16);
        }
        (port, frame)
    };
    out.into_iter().map(strip).collect()
}

/// IP packets to the other networks and to the router, sound or not.
fn packet() -> impl Strategy<Value = (u16, Vec<u8>)> {
    let tail = proptest::collection::vec(any::<u8>(), 0..80);
    (0..6_u8, 1..4_u8, tail).prop_map(|(kind, network, tail)| match kind {
        0 => (ethernet::IPV4, ip4([10, 0, 0, 2], [10, network, 0, 2], protocol::UDP, &udp(tail.len()))),
        1 => {
            (ethernet::IPV6, ip6("fd00:0::2", &format!("fd00:{network}::2"), protocol::UDP, &udp(tail.len())))
        }
        2 => (ethernet::IPV4, ip4([10, 0, 0, 2], [10, network, 0, 2], protocol::ICMP, &tail)),
        3 => (ethernet::IPV6, ip6("fd00:0::2", &format!("fd00:{network}::2"), protocol::ROUTING, &tail)),
        4 => {
            let mut expired = ip4([10, 0, 0, 2], [10, network, 0, 2], protocol::UDP, &udp(8));
            expired[8] = 1;
            (ethernet::IPV4, expired)
        }
        // Behind a tag Linux wants an EtherType and two bytes more.
        _ => (ethernet::IPV4, [&[0x45, 0][..], &tail].concat()),
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    /// A burst of frames, each with its tags: VLAN 10, 20, 10 and in it 30, or none.
    #[test]
    fn tags_make_no_difference(
        burst in proptest::collection::vec((packet(), 0..4_usize, any::<u8>()), 1..40),
    ) {
        let bare: Vec<_> = burst.iter().map(|((kind, packet), ..)| frame(*kind, packet)).collect();
        let tags: Vec<Vec<u8>> = bare.iter().zip(&burst).map(|(frame, (_, tags, control))| match tags {
            0 => with_tags(frame, &[(0, *control)]),
            1 => with_tags(frame, &[(1, *control)]),
            2 => with_tags(frame, &[(0, *control), (3, *control)]),
            _ => frame.clone(),
        }).collect();
        let (mut plain, mut tagged) = (plain(), tagged::tagged(false));
        let (mut out, mut tagged_out) = (plain.send(&bare), without_tag(tagged.send(&tags)));
        // Those of one VLAN go on together.
        out.sort();
        tagged_out.sort();
        prop_assert_eq!(out, tagged_out);
        prop_assert_eq!(plain.drops(), tagged.drops());
        tagged.assert_accounted();
    }

    #[test]
    fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..120)) {
        tagged::send(&bytes);
    }
}

/// Every file that the fuzz target begins with.
#[test]
fn seeds() {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/seeds/tagged");
    let seeds =
        std::fs::read_dir(directory).unwrap().map(|seed| std::fs::read(seed.unwrap().path()).unwrap());
    let left = seeds.filter(|seed| tagged::send(seed)).count();
    assert!(left >= 5, "only {left} of the seeds leave a router");
}

/// Frames of a VLAN leave in the order in which they came, whatever is between them.
#[test]
fn frames_of_a_vlan_stay_in_order() {
    // In VLAN 10, in VLAN 20, without a tag, and in VLAN 10 again, in turn.
    let packets: Vec<_> = (0..40_u8)
        .map(|n| frame(ethernet::IPV4, &ip4([10, 0, n % 4, n], [10, 3, 0, 2], protocol::UDP, &udp(8))))
        .collect();
    let came = packets.iter().zip(0..).map(|(frame, n)| match n % 4 {
        0 | 3 => with_tags(frame, &[(0, 0)]),
        1 => with_tags(frame, &[(1, 0)]),
        _ => frame.clone(),
    });
    let out = tagged::tagged(false).send(&came.collect::<Vec<_>>());
    // The last byte of its source says which one a packet is: behind addresses, tag and EtherType.
    let numbers: Vec<u8> = out.iter().map(|(_, frame)| frame[18 + 15]).collect();
    assert_eq!(numbers.len(), packets.len());
    for vlan in [&[0_u8, 3][..], &[1], &[2]] {
        let of_vlan: Vec<_> = numbers.iter().filter(|number| vlan.contains(&(**number % 4))).collect();
        assert!(of_vlan.is_sorted(), "{numbers:?}");
    }
}

/// What the host sends by its device of a VLAN leaves with the tag, and what it keeps of the VLAN comes to it without.
#[test]
fn the_host_sends_and_gets_frames_of_a_vlan() {
    let mut lab = tagged::tagged(true);
    let arp = [&PEERS[1][..], &MACS[1], &ethernet::ARP.to_be_bytes(), &[1; 28]].concat();
    let mut packet = lab.worker.pool().take().unwrap();
    packet.set(underpass_engine::buffer::HEADROOM, &arp).unwrap();
    lab.worker.process(HOST, &mut [packet].into_iter().collect(), 0, None);
    let sent: Vec<_> = lab.worker.sent(PortId(1)).collect();
    assert_eq!(sent.len(), 1);
    assert_eq!(sent[0].bytes(), with_tags(&arp, &[(2, 0)]));
    sent.into_iter().for_each(|packet| lab.worker.pool().give(packet));

    let answer = [&MACS[1][..], &PEERS[1], &ethernet::ARP.to_be_bytes(), &[1; 28]].concat();
    let mut packet = lab.worker.pool().take().unwrap();
    packet.set(underpass_engine::buffer::HEADROOM, &with_tags(&answer, &[(2, 0xa0)])).unwrap();
    lab.worker.process(PortId(1), &mut [packet].into_iter().collect(), 0, None);
    let got: Vec<_> = lab.worker.sent(HOST).collect();
    assert_eq!(got.len(), 1);
    assert_eq!(got[0].bytes(), answer);
    got.into_iter().for_each(|packet| lab.worker.pool().give(packet));
    assert_eq!(lab.writer.totals().delivered, 1);
    lab.assert_accounted();
    // From a port that is nobody's nothing leaves.
    assert_eq!(by(&mut lab, PortId(77), &answer), 0);
}
