//! REPLACE-CSID, against the pseudo-code of RFC 9800 section 4.2. Linux has none.

use underpass_engine::drops::DropReason;
use underpass_engine::tables::{Behaviour, Csid, Flavours, ReplaceCsid, Via};
use underpass_packet::protocol;

use super::flavours::{NEXT, SOURCE, hopped, inner6, leaves, refused, routed};
use super::lab::{Lab, ip6, udp, v6};

/// What the pseudo-code makes of a packet.
#[derive(Debug, PartialEq)]
enum Expected {
    /// S29 or S18: to this destination, with so many segments left; whether the list has ended with it.
    Goes(String, usize, bool),
    /// S03.
    Ended,
    /// S11 and S22.
    Beyond,
}

/// RFC 9800 section 4.2.1 over hexadecimal digits, line by line. `list`: the entries of the SRH, Segment List[0] first.
fn pseudo_code(list: &[String], destination: &str, left: usize, (block, length): (usize, usize)) -> Expected {
    let (count, digits) = (128 / length, length / 4);
    let csid = |entry: usize, index: usize| &list[entry][index * digits..(index + 1) * digits];
    let is_zero = |text: &str| text.chars().all(|digit| digit == '0');
    let mut index = usize::from_str_radix(&destination[31..], 16).unwrap() % count;
    let (last_entry, mut left) = (list.len() - 1, left);
    if left == 0 && (index == 0 || is_zero(csid(0, index - 1))) {
        return Expected::Ended;
    }
    if index != 0 {
        if left > last_entry {
            return Expected::Beyond;
        }
        index -= 1;
        if is_zero(csid(left, index)) {
            left -= 1;
            return Expected::Goes(list[left].clone(), left, left == 0);
        }
    } else {
        if left > last_entry + 1 {
            return Expected::Beyond;
        }
        left -= 1;
        index = count - 1;
    }
    let place = block / 4;
    let mut written = destination.to_owned();
    written.replace_range(place..place + digits, csid(left, index));
    let above = usize::from_str_radix(&written[31..], 16).unwrap() / count * count;
    written.replace_range(31.., &format!("{:x}", above + index));
    let ends = left == 0 && (index == 0 || is_zero(csid(0, index - 1)));
    Expected::Goes(written, left, ends)
}

fn address(digits: &str) -> String {
    std::net::Ipv6Addr::from_bits(u128::from_str_radix(digits, 16).unwrap()).to_string()
}

/// A router with End.X at `5f00::/16`, whatever follows.
fn router(structure: ReplaceCsid, flavours: Flavours) -> (Lab, underpass_engine::counters::CounterId) {
    let mut lab = Lab::new();
    let via = Via { resolved: Some(lab.next_hops[1]), address: v6(NEXT).into(), lookup: lab.lookup };
    let flavours = Flavours { csid: Some(Csid::Replace(structure)), ..flavours };
    let counter = lab.flavoured_prefix("5f00::", 16, Behaviour::X(via), Some(flavours));
    (lab, counter)
}

/// Any list, any index, any number of segments left.
#[test]
fn any_list_as_the_pseudo_code_says() {
    let mut state = 7_u64;
    let mut random = move |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let (mut met, mut told) = ([0; 4], 0);
    for (block, node_function) in [(16, 8), (32, 16), (48, 16), (48, 32), (64, 32), (16, 64), (80, 32)] {
        for psp in [false, true] {
            let flavours = Flavours { psp, ..Flavours::default() };
            let (mut lab, counter) = router(ReplaceCsid { block, node_function }, flavours);
            for _ in 0..300 {
                let bytes = usize::from(node_function / 8);
                let mut entry = || {
                    let mut csid = || if random(3) != 0 { random(256) } else { 0 };
                    (0..16 / bytes).map(|_| format!("{:02x}", csid()).repeat(bytes)).collect::<String>()
                };
                let list: Vec<String> = (0..3).map(|_| entry()).collect();
                let destination = format!("5f00{}", &entry()[4..]);
                let list = &list[..1 + random(3) as usize];
                let left = random(list.len() as u64 + 3) as usize;
                let structure = (usize::from(block), usize::from(node_function));
                let expected = pseudo_code(list, &destination, left, structure);
                let path: Vec<String> = list.iter().rev().map(|entry| address(entry)).collect();
                let path: Vec<&str> = path.iter().map(String::as_str).collect();
                let packet = |to: &str, left| routed(&address(to), &path, left as u8, protocol::UDP, &udp(9));
                let sent = packet(&destination, left);
                match &expected {
                    Expected::Goes(to, _, true) if psp => {
                        met[0] += 1;
                        let after = ip6(SOURCE, &address(to), protocol::UDP, &udp(9));
                        leaves("End.X", &mut lab, counter, &sent, &hopped(after));
                    }
                    Expected::Goes(to, left, _) => {
                        met[1] += 1;
                        leaves("End.X", &mut lab, counter, &sent, &hopped(packet(to, *left)));
                    }
                    Expected::Ended => {
                        met[2] += 1;
                        refused("End.X", &mut lab, counter, &sent, DropReason::SegmentsLeftZero);
                    }
                    Expected::Beyond => {
                        met[3] += 1;
                        let errors = refused("End.X", &mut lab, counter, &sent, DropReason::SrhMalformed);
                        // Errors are limited by rate.
                        for (_, error) in &errors {
                            assert_eq!((&error[54..56], &error[58..62]), (&[4, 0][..], &[0, 0, 0, 43][..]));
                            assert_eq!(error[62..], sent);
                        }
                        told += errors.len();
                    }
                }
            }
            lab.assert_accounted();
        }
    }
    assert!(told > 10 && met.iter().all(|count| *count > 100), "{told} {met:?}");
}

/// RFC 9800 section 4.2.1 from CSID to CSID: an entry of four of them, and one in the next, behind which the SRH is popped.
#[test]
fn csids_are_visited_from_behind() {
    let structure = ReplaceCsid { block: 48, node_function: 32 };
    let (mut lab, counter) = router(structure, Flavours { psp: true, ..Flavours::default() });
    let path = ["4:44:3:33:2:22:1:11", "::5:55"];
    let packet = |to, left| routed(to, &path, left, protocol::IPV6, &inner6());
    let way = [
        ("5f00:b:c:9:99::", 2),
        ("5f00:b:c:1:11::3", 1),
        ("5f00:b:c:2:22::2", 1),
        ("5f00:b:c:3:33::1", 1),
        ("5f00:b:c:4:44::", 1),
    ];
    for ((from, before), (to, after)) in way.into_iter().zip(way.into_iter().skip(1)) {
        leaves("End.X", &mut lab, counter, &packet(from, before), &hopped(packet(to, after)));
    }
    let popped = ip6(SOURCE, "5f00:b:c:5:55::3", protocol::IPV6, &inner6());
    leaves("End.X", &mut lab, counter, &packet("5f00:b:c:4:44::", 1), &hopped(popped));
}

/// S05: at hop limit 1 time exceeded quotes the packet as it came, even where the list is wrong besides.
#[test]
fn hop_limit_ends() {
    let (mut lab, counter) = router(ReplaceCsid { block: 48, node_function: 32 }, Flavours::default());
    let mut packet = routed("5f00:b:c:9:99::", &[NEXT, NEXT], 2, protocol::UDP, &udp(9));
    packet[7] = 1;
    let error = refused("End.X", &mut lab, counter, &packet, DropReason::HopLimitExceeded);
    assert_eq!((error[0].1[54], &error[0].1[62..]), (3, &packet[..]));
    packet[43] = 4;
    assert!(refused("End.X", &mut lab, counter, &packet, DropReason::SrhMalformed).is_empty());
}

/// RFC 9800 section 4.2.8: USP takes the place of S03, USD is unchanged.
#[test]
fn an_ended_list_is_the_flavours() {
    let structure = ReplaceCsid { block: 48, node_function: 32 };
    let (mut lab, counter) = router(structure, Flavours { usp: true, usd: true, ..Flavours::default() });
    let sid = "5f00:b:c:9:99::";
    for packet in [
        ip6(SOURCE, sid, protocol::IPV6, &inner6()),
        routed(sid, &[NEXT, sid], 0, protocol::IPV6, &inner6()),
        // An index, and nothing there.
        routed("5f00:b:c:9:99::1", &[NEXT, "::7:77"], 0, protocol::IPV6, &inner6()),
    ] {
        leaves("End.X", &mut lab, counter, &packet, &hopped(inner6()));
    }
    // Something is there: it goes on.
    let path = [NEXT, "7:77:0:0:0:0:0:0"];
    let packet = |to, left| routed(to, &path, left, protocol::IPV6, &inner6());
    leaves("End.X", &mut lab, counter, &packet("5f00:b:c:9:99::1", 0), &hopped(packet("5f00:b:c:7:77::", 0)));
}
