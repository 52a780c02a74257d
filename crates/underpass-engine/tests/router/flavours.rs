//! Flavours of End, End.X and End.T, against the pseudo-code of RFC 8986 section 4.16 and RFC 9800 section 4.1.
//! Linux has PSP of End and NEXT-CSID of End and End.X: those have golden packets besides.

use super::lab;
use super::lab::{Lab, frame, ip4, ip6, udp, with_srh};
use underpass_engine::counters::{Count, CounterId};
use underpass_engine::drops::DropReason;
use underpass_engine::tables::{Behaviour, Csid, Flavours, NextCsid, Via};
use underpass_packet::{ethernet, ipv4, protocol};

pub const SOURCE: &str = "fd00:0::2";
const SID: &str = "fc00:1::1";
pub const NEXT: &str = "fd00:1::9";
const INSIDE: &str = "fd00:1::77";

fn flavours(psp: bool, usp: bool, usd: bool) -> Flavours {
    Flavours { psp, usp, usd, csid: None }
}

/// A router with End, End.X and End.T at [`SID`] in turn, and what each counts.
fn each(flavours: Flavours, mut test: impl FnMut(&str, &mut Lab, CounterId)) {
    for (name, hot) in [("End", true), ("End.X", true), ("End.T", true), ("End", false), ("End.X", false)] {
        let mut lab = Lab::new();
        let lookup = lab.lookup;
        // Without a resolved next hop a packet leaves the fast path.
        let via = Via { resolved: hot.then_some(lab.next_hops[1]), address: lab::v6(NEXT).into(), lookup };
        let behaviour = match name {
            "End" => Behaviour::End { lookup },
            "End.X" => Behaviour::X(via),
            _ => Behaviour::T { lookup },
        };
        if !hot && name == "End" {
            lab.spread();
        }
        let counter = lab.flavoured(SID, behaviour, Some(flavours));
        test(name, &mut lab, counter);
        lab.assert_accounted();
    }
}

/// An IPv6 packet that has been forwarded: hop limit 39.
pub fn hopped(mut packet: Vec<u8>) -> Vec<u8> {
    packet[7] -= 1;
    packet
}

fn hopped4(mut packet: Vec<u8>) -> Vec<u8> {
    packet[8] -= 1;
    let header = ipv4::ViewMut::parse(&mut packet).unwrap().header;
    header.fill_checksum(&[]);
    packet
}

/// That the packet leaves by port 1 as `expected`, and is counted.
pub fn leaves(name: &str, lab: &mut Lab, counter: CounterId, packet: &[u8], expected: &[u8]) {
    let before = lab.writer.count(counter);
    let sent = lab.send(&[frame(ethernet::IPV6, packet)]);
    assert_eq!(sent.len(), 1, "{name}: {:?}", lab.drops());
    assert_eq!((sent[0].0, &sent[0].1[14..]), (1, expected), "{name}");
    let ethertype = if expected[0] >> 4 == 6 { ethernet::IPV6 } else { ethernet::IPV4 };
    assert_eq!(sent[0].1[12..14], ethertype.to_be_bytes(), "{name}");
    let now = Count { packets: 1, bytes: packet.len() as u64, errors: 0 };
    assert_eq!(lab.writer.count(counter) - before, now, "{name}");
}

/// That the packet is dropped for this reason, and counted as an error.
pub fn refused(
    name: &str,
    lab: &mut Lab,
    counter: CounterId,
    packet: &[u8],
    reason: DropReason,
) -> Vec<(u16, Vec<u8>)> {
    let before = (lab.writer.count(counter), lab.writer.dropped(reason));
    let sent = lab.send(&[frame(ethernet::IPV6, packet)]);
    assert_eq!(lab.writer.dropped(reason), before.1 + 1, "{name}: {:?}", lab.drops());
    assert_eq!(lab.writer.count(counter) - before.0, Count { errors: 1, ..Count::default() }, "{name}");
    sent
}

pub fn inner6() -> Vec<u8> {
    ip6("fd00:9::1", INSIDE, protocol::UDP, &udp(20))
}

fn inner4() -> Vec<u8> {
    ip4([10, 0, 0, 2], [10, 1, 0, 77], protocol::UDP, &udp(20))
}

/// A packet for the SID with an SRH over `inside`.
pub fn routed(destination: &str, path: &[&str], left: u8, next: u8, inside: &[u8]) -> Vec<u8> {
    ip6(SOURCE, destination, protocol::ROUTING, &with_srh(path, left, next, inside))
}

/// RFC 8986 section 4.16.1, S14.1 to S14.4: the SRH is removed where segments left becomes 0, not before.
#[test]
fn psp_pops_where_segments_left_becomes_0() {
    for usp in [false, true] {
        each(flavours(true, usp, false), |name, lab, counter| {
            let last = routed(SID, &[SID, NEXT], 1, protocol::IPV6, &inner6());
            leaves(name, lab, counter, &last, &hopped(ip6(SOURCE, NEXT, protocol::IPV6, &inner6())));
            let path = [SID, NEXT, INSIDE];
            let first = routed(SID, &path, 2, protocol::UDP, &udp(9));
            let after = hopped(routed(NEXT, &path, 1, protocol::UDP, &udp(9)));
            leaves(name, lab, counter, &first, &after);
            // Reduced, and with bytes behind the packet.
            let mut reduced = routed(SID, &[NEXT], 1, protocol::IPV4, &inner4());
            let after = hopped(ip6(SOURCE, NEXT, protocol::IPV4, &inner4()));
            let len = reduced.len();
            reduced.extend([1, 2, 3]);
            let sent = lab.send(&[frame(ethernet::IPV6, &reduced)]);
            assert_eq!(sent[0].1[14..], after, "{name}");
            assert_eq!(lab.writer.count(counter).bytes as usize, last.len() + first.len() + len);
        });
    }
}

/// RFC 8986 section 4.16.1: "The SRH is not popped" by the ultimate segment; as End it drops the packet.
#[test]
fn psp_does_not_pop_at_segments_left_0() {
    each(flavours(true, false, false), |name, lab, counter| {
        let packet = routed(SID, &[NEXT, SID], 0, protocol::UDP, &udp(9));
        assert!(refused(name, lab, counter, &packet, DropReason::SegmentsLeftZero).is_empty());
    });
}

/// RFC 8986 section 4.1, S05 to S07: at hop limit 1 time exceeded quotes the packet as it came.
#[test]
fn hop_limit_ends() {
    for (psp, usp, usd) in [(true, false, false), (true, true, true)] {
        each(flavours(psp, usp, usd), |name, lab, counter| {
            let mut packet = routed(SID, &[SID, NEXT], 1, protocol::IPV6, &inner6());
            packet[7] = 1;
            let sent = refused(name, lab, counter, &packet, DropReason::HopLimitExceeded);
            assert_eq!((sent[0].0, sent[0].1[54]), (0, 3), "{name}");
            assert_eq!(sent[0].1[62..], packet, "{name}");
        });
    }
}

/// RFC 8986 section 4.16.2, S03.1 to S03.4: the SRH is removed and the next header processed: here by the
/// router itself, which answers pings.
#[test]
fn usp_pops_and_proceeds() {
    for usd in [false, true] {
        each(flavours(false, true, usd), |name, lab, counter| {
            let mut ping = vec![128, 0, 0, 0, 0, 7, 0, 1];
            let pseudo = underpass_packet::checksum::Sum::pseudo_ipv6(
                lab::v6(SOURCE).octets(),
                lab::v6(SID).octets(),
                protocol::ICMPV6,
                8,
            );
            let checksum = pseudo.add_bytes(&ping).checksum();
            ping[2..4].copy_from_slice(&checksum.to_be_bytes());
            let packet = routed(SID, &[NEXT, SID], 0, protocol::ICMPV6, &ping);
            let sent = lab.send(&[frame(ethernet::IPV6, &packet)]);
            assert_eq!(sent.len(), 1, "{name}: {:?}", lab.drops());
            let reply = &sent[0].1[14..];
            assert_eq!((reply[6], reply[40], reply.len()), (protocol::ICMPV6, 129, 48), "{name}");
            assert_eq!(reply[24..40], lab::v6(SOURCE).octets(), "{name}");
            let count = Count { packets: 1, bytes: packet.len() as u64, errors: 0 };
            assert_eq!(lab.writer.count(counter), count, "{name}");
        });
    }
}

/// RFC 8986 section 4.16.2: "Proceed to process the next header", which may be an SRH with segments left.
#[test]
fn usp_goes_on_with_the_next_srh() {
    each(flavours(false, true, false), |name, lab, counter| {
        let below = with_srh(&[SID, NEXT], 1, protocol::UDP, &udp(9));
        let packet = routed(SID, &[INSIDE, SID], 0, protocol::ROUTING, &below);
        let after = hopped(routed(NEXT, &[SID, NEXT], 0, protocol::UDP, &udp(9)));
        leaves(name, lab, counter, &packet, &after);
    });
    // With PSP both go.
    each(flavours(true, true, false), |name, lab, counter| {
        let below = with_srh(&[SID, NEXT], 1, protocol::UDP, &udp(9));
        let packet = routed(SID, &[INSIDE, SID], 0, protocol::ROUTING, &below);
        leaves(name, lab, counter, &packet, &hopped(ip6(SOURCE, NEXT, protocol::UDP, &udp(9))));
    });
}

/// RFC 8986 section 4.16.2 replaces what happens to an SRH: a packet without one is as at End.
#[test]
fn usp_needs_an_srh() {
    each(flavours(false, true, false), |name, lab, counter| {
        let packet = ip6(SOURCE, SID, protocol::UDP, &udp(9));
        assert!(refused(name, lab, counter, &packet, DropReason::SrhMissing).is_empty());
        let mut other = routed(SID, &[NEXT, SID], 0, protocol::UDP, &udp(9));
        other[42] = 2;
        assert!(refused(name, lab, counter, &other, DropReason::SegmentsLeftZero).is_empty());
    });
}

/// RFC 8986 section 4.16.3: IPv6 and IPv4 inside are decapsulated, with no SRH or one that is used up: End and
/// End.T look the packet up, End.X sends it to its neighbour.
#[test]
fn usd_decapsulates() {
    for (psp, usp) in [(false, false), (true, true)] {
        each(flavours(psp, usp, true), |name, lab, counter| {
            for (inner, next, after) in
                [(inner6(), protocol::IPV6, hopped(inner6())), (inner4(), protocol::IPV4, hopped4(inner4()))]
            {
                leaves(name, lab, counter, &ip6(SOURCE, SID, next, &inner), &after);
                leaves(name, lab, counter, &routed(SID, &[NEXT, SID], 0, next, &inner), &after);
                // Two SRHs, and destination options before the packet inside.
                let options = [&[next, 0, 1, 4, 0, 0, 0, 0], &inner[..]].concat();
                let below = with_srh(&[NEXT, SID], 0, protocol::DESTINATION_OPTIONS, &options);
                let packet = routed(SID, &[NEXT, SID], 0, protocol::ROUTING, &below);
                leaves(name, lab, counter, &packet, &after);
            }
            // Segments are left: on to the next one.
            let packet = routed(SID, &[SID, NEXT], 1, protocol::IPV6, &inner6());
            let after = match psp {
                true => ip6(SOURCE, NEXT, protocol::IPV6, &inner6()),
                false => routed(NEXT, &[SID, NEXT], 0, protocol::IPV6, &inner6()),
            };
            leaves(name, lab, counter, &packet, &hopped(after));
        });
    }
}

/// RFC 8986 section 4.16.3: End.X forwards to the adjacency whatever the destination inside is.
#[test]
fn usd_of_end_x_does_not_look_up() {
    each(flavours(false, false, true), |name, lab, counter| {
        if name != "End.X" {
            return;
        }
        let nowhere = ip6("fd00:9::1", "2001:db8:dead::1", protocol::UDP, &udp(20));
        leaves(name, lab, counter, &ip6(SOURCE, SID, protocol::IPV6, &nowhere), &hopped(nowhere));
        let nowhere = ip4([10, 0, 0, 2], [192, 0, 2, 1], protocol::UDP, &udp(20));
        leaves(name, lab, counter, &ip6(SOURCE, SID, protocol::IPV4, &nowhere), &hopped4(nowhere));
    });
}

/// End.X towards `::` sends each packet to its own destination, the one inside too.
#[test]
fn usd_of_end_x_without_a_neighbour() {
    let mut lab = Lab::new();
    let via = Via { address: lab::v6("::").into(), lookup: lab.lookup, resolved: None };
    let counter = lab.flavoured(SID, Behaviour::X(via), Some(flavours(true, true, true)));
    leaves("End.X", &mut lab, counter, &ip6(SOURCE, SID, protocol::IPV6, &inner6()), &hopped(inner6()));
    leaves("End.X", &mut lab, counter, &ip6(SOURCE, SID, protocol::IPV4, &inner4()), &hopped4(inner4()));
    let packet = routed(SID, &[SID, NEXT], 1, protocol::UDP, &udp(9));
    leaves("End.X", &mut lab, counter, &packet, &hopped(ip6(SOURCE, NEXT, protocol::UDP, &udp(9))));
}

/// RFC 8986 section 4.1.1, S04: a parameter problem, code 4, that points at the upper-layer header.
#[test]
fn usd_tells_of_another_upper_layer() {
    each(flavours(true, false, true), |name, lab, counter| {
        for (packet, at) in [
            (ip6(SOURCE, SID, protocol::UDP, &udp(9)), 40),
            (routed(SID, &[NEXT, SID], 0, protocol::UDP, &udp(9)), 80),
        ] {
            let sent = refused(name, lab, counter, &packet, DropReason::UpperLayerUnexpected);
            assert_eq!(sent[0].1[54..56], [4, 4], "{name}");
            assert_eq!(sent[0].1[58..62], [0, 0, 0, at], "{name}");
            assert_eq!(sent[0].1[62..], packet, "{name}");
        }
    });
}

/// What is malformed inside is not forwarded.
#[test]
fn usd_checks_what_is_inside() {
    each(flavours(false, false, true), |name, lab, counter| {
        let mut broken = inner6();
        broken.truncate(50);
        let packet = ip6(SOURCE, SID, protocol::IPV6, &broken);
        assert!(refused(name, lab, counter, &packet, DropReason::InnerMalformed).is_empty());
        let mut expired = inner6();
        expired[7] = 1;
        let packet = ip6(SOURCE, SID, protocol::IPV6, &expired);
        refused(name, lab, counter, &packet, DropReason::HopLimitExceeded);
    });
}

const UN: Option<Csid> = Some(Csid::Next(NextCsid { block: 32, node_function: 16 }));

/// RFC 9800 section 4.1.1, N01 to N08: the argument moves up, the SRH stays as it is, whatever flavours there
/// are besides.
#[test]
fn next_csid_shifts() {
    for bits in 0..8 {
        let flavours = Flavours { csid: UN, ..flavours(bits & 1 != 0, bits & 2 != 0, bits & 4 != 0) };
        for name in ["uN", "uA", "uT"] {
            let mut lab = Lab::new();
            let lookup = lab.lookup;
            let behaviour = match name {
                "uN" => Behaviour::End { lookup },
                "uA" => Behaviour::X(lab.via(1)),
                _ => Behaviour::T { lookup },
            };
            let counter = lab.flavoured_prefix("fd00:1:5::", 48, behaviour, Some(flavours));
            let before = "fd00:1:5:6:7:8:9:a";
            let after = "fd00:1:6:7:8:9:a:0";
            let plain = |destination| ip6(SOURCE, destination, protocol::UDP, &udp(9));
            leaves(name, &mut lab, counter, &plain(before), &hopped(plain(after)));
            for left in [0, 1] {
                let packet = |to| routed(to, &[before, NEXT], left, protocol::IPV6, &inner6());
                leaves(name, &mut lab, counter, &packet(before), &hopped(packet(after)));
            }
            // N02: hop limit 1 is the end.
            let mut expired = plain(before);
            expired[7] = 1;
            let sent = refused(name, &mut lab, counter, &expired, DropReason::HopLimitExceeded);
            assert_eq!(sent[0].1[62..], expired, "{name}");
            lab.assert_accounted();
        }
    }
}

/// RFC 9800 sections 4.1.1 to 4.1.3: with an argument of 0 the SRH is processed as without NEXT-CSID, with PSP,
/// USP and USD "unchanged when combined" (section 4.1.8).
#[test]
fn next_csid_without_an_argument() {
    let uncompressed = Flavours { csid: UN, ..flavours(true, true, true) };
    let mut lab = Lab::new();
    let lookup = lab.lookup;
    let counter = lab.flavoured_prefix("fd00:1:5::", 48, Behaviour::End { lookup }, Some(uncompressed));
    let sid = "fd00:1:5::";
    let packet = routed(sid, &[sid, NEXT], 1, protocol::UDP, &udp(9));
    leaves("uN", &mut lab, counter, &packet, &hopped(ip6(SOURCE, NEXT, protocol::UDP, &udp(9))));
    leaves("uN", &mut lab, counter, &ip6(SOURCE, sid, protocol::IPV6, &inner6()), &hopped(inner6()));
    let plain = Flavours { csid: UN, ..Flavours::default() };
    let mut lab = Lab::new();
    let lookup = lab.lookup;
    let counter = lab.flavoured_prefix("fd00:1:5::", 48, Behaviour::End { lookup }, Some(plain));
    let packet = |to, left| routed(to, &[sid, NEXT], left, protocol::UDP, &udp(9));
    leaves("uN", &mut lab, counter, &packet(sid, 1), &hopped(packet(NEXT, 0)));
    refused("uN", &mut lab, counter, &ip6(SOURCE, sid, protocol::IPV6, &inner6()), DropReason::SrhMissing);
}

/// Lengths at their limits: RFC 9800 section 4.1, LBL + LNFL + AL = 128.
#[test]
fn next_csid_lengths() {
    for (block, node_function, before, after) in [
        (8, 8, "fc05:102:304:506:708:90a:b0c:d0e", "fc01:203:405:607:809:a0b:c0d:e00"),
        (48, 16, "fc00:1:5:6:7:8:9:a", "fc00:1:5:7:8:9:a:0"),
        (8, 112, "fc00:1:5:6:7:8:9:0a", "fc0a::"),
        (112, 8, "fc00:1:5:6:7:8:9:0a", "fc00:1:5:6:7:8:9:a00"),
        (64, 56, "fc00:1:5:6:7:8:9:0a", "fc00:1:5:6:a00::"),
    ] {
        let mut lab = Lab::new();
        let via = lab.via(1);
        let csid = Some(Csid::Next(NextCsid { block, node_function }));
        let flavours = Some(Flavours { csid, ..Flavours::default() });
        let counter = lab.flavoured_prefix("fc00::", 8, Behaviour::X(via), flavours);
        let packet = |destination| ip6(SOURCE, destination, protocol::UDP, &udp(9));
        // Nothing is argument where block, node and function take all 128 bits.
        leaves("uA", &mut lab, counter, &packet(before), &hopped(packet(after)));
        let all = Some(Csid::Next(NextCsid { block: 120, node_function: 8 }));
        let flavours = Some(Flavours { csid: all, ..Flavours::default() });
        let via = lab.via(1);
        let counter = lab.flavoured_prefix("fd01::", 16, Behaviour::X(via), flavours);
        refused("uA", &mut lab, counter, &packet("fd01::ff"), DropReason::SrhMissing);
    }
}
