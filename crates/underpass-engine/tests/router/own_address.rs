//! SRHs of packets for an address of the router's that is no SID: RFC 8754 section 4.3.1. What Linux does as well has
//! golden packets.

use super::lab;
use super::lab::{Lab, frame, ip4, ip6, udp, with_srh};
use underpass_engine::drops::DropReason;
use underpass_packet::{ethernet, protocol};

const SOURCE: &str = "fd00:0::2";
const OWN: &str = "fd00:0::1";
const NEXT: &str = "fd00:1::9";

fn routed(path: &[&str], left: u8, next: u8, inside: &[u8]) -> Vec<u8> {
    ip6(SOURCE, OWN, protocol::ROUTING, &with_srh(path, left, next, inside))
}

fn send(lab: &mut Lab, packet: &[u8]) -> Vec<(u16, Vec<u8>)> {
    let sent = lab.send(&[frame(ethernet::IPV6, packet)]);
    lab.assert_accounted();
    sent
}

/// Section 4.3.1.1, S10 to S12: "Send an ICMP Parameter Problem, Code 0, message to the Source Address, pointing to
/// the Segments Left field".
#[test]
fn lists_that_contradict_themselves() {
    for (at, value) in [(44, 2), (43, 4)] {
        let mut lab = Lab::new();
        let mut packet = routed(&[OWN, NEXT], 1, protocol::UDP, &udp(9));
        packet[at] = value;
        let [(0, error)] = &send(&mut lab, &packet)[..] else { panic!("{:?}", lab.drops()) };
        assert_eq!((&error[54..56], &error[58..62]), (&[4, 0][..], &43u32.to_be_bytes()[..]));
        assert_eq!(error[14 + 48..], packet);
        assert_eq!(lab.writer.dropped(DropReason::SrhMalformed), 1);
    }
}

/// Section 4.3.1.1, S02 and S03: what is used up is not looked at.
#[test]
fn used_up() {
    let mut lab = Lab::new();
    let inside = ip4([10, 0, 0, 2], [10, 1, 0, 2], protocol::UDP, &udp(9));
    let mut packet = routed(&[NEXT, OWN], 0, protocol::IPV4, &inside);
    packet[44] = 200;
    let [(1, sent)] = &send(&mut lab, &packet)[..] else { panic!("{:?}", lab.drops()) };
    assert_eq!((&sent[12..14], sent[14 + 8]), (&ethernet::IPV4.to_be_bytes()[..], 39));
    // Cut short inside.
    let cut = routed(&[NEXT, OWN], 0, protocol::IPV4, &inside[..30]);
    assert!(send(&mut lab, &cut).is_empty());
    assert_eq!(lab.writer.dropped(DropReason::InnerMalformed), 1);
}

/// The hop limit falls each time, and the packet is looked up so often and no more.
#[test]
fn a_list_of_own_segments_ends_at_a_limit() {
    for (count, hop_limit, leaves) in [(10, 40, true), (60, 40, false), (10, 5, false)] {
        let mut lab = Lab::new();
        let path = [&[OWN].repeat(count)[..], &[NEXT]].concat();
        let mut packet = routed(&path, count as u8, protocol::UDP, &udp(9));
        packet[7] = hop_limit;
        let sent = send(&mut lab, &packet);
        if leaves {
            assert_eq!((sent[0].0, sent[0].1[14 + 7]), (1, hop_limit - count as u8), "{:?}", lab.drops());
        } else {
            let reason = if hop_limit == 40 { DropReason::Loop } else { DropReason::HopLimitExceeded };
            assert_eq!(lab.writer.dropped(reason), 1, "{:?}", lab.drops());
            assert_eq!(sent.len(), usize::from(hop_limit != 40));
        }
    }
}

/// RFC 8200 section 4.1: destination options may stand before a routing header.
#[test]
fn behind_destination_options() {
    let mut lab = Lab::new();
    let srh = with_srh(&[OWN, NEXT], 1, protocol::UDP, &udp(9));
    let payload = [&[protocol::ROUTING, 0, 1, 4, 0, 0, 0, 0][..], &srh].concat();
    let mut packet = ip6(SOURCE, OWN, protocol::DESTINATION_OPTIONS, &payload);
    let sent = send(&mut lab, &packet);
    packet[7] -= 1;
    packet[24..40].copy_from_slice(&lab::v6(NEXT).octets());
    packet[40 + 8 + 3] = 0;
    assert_eq!((sent[0].0, &sent[0].1[14..]), (1, &packet[..]));
}

#[test]
fn not_enabled() {
    let mut lab = Lab::new();
    let mut link = lab.link(0);
    link.seg6 = false;
    lab.writer.set_link(lab.links[0], link);
    for left in [0, 1] {
        assert!(send(&mut lab, &routed(&[OWN, NEXT], left, protocol::UDP, &udp(9))).is_empty());
    }
    assert_eq!(lab.writer.dropped(DropReason::SrhNotEnabled), 2);
}
