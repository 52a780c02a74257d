//! Label routes, added, replaced and deleted in any order: each is told as it was asked for, whatever its
//! neighbours are, also while a link is down.

use std::collections::BTreeMap;
use underpass_control::write_sysctl;

use super::common::{Lab, up};
use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_REPLACE, NLM_F_REQUEST};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{LinkFlags, LinkMessage};
use proptest::collection::vec;
use proptest::prelude::*;
use underpass_netlink::mpls::{self, Via};
use underpass_netlink::reply::{Address, write_message};
use underpass_netlink::{Attributes, Reply, Type, Validate};

const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_MULTIPATH: u16 = 9;
const RTA_VIA: u16 = 18;
const RTA_NEWDST: u16 = 19;
const RTA_TTL_PROPAGATE: u16 = 26;

#[derive(Clone, PartialEq, Eq, Debug)]
struct LabelNextHop {
    labels: Vec<u32>,
    via: Option<Via>,
    oif: u32,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Route {
    protocol: u8,
    propagate: Option<bool>,
    ways: Vec<LabelNextHop>,
}

const LINKS: [u32; 2] = [2, 3];
const LO: u32 = 1;

fn way() -> impl Strategy<Value = LabelNextHop> {
    let labels = prop_oneof![vec(16..1u32 << 20, 0..4), Just(vec![0xf_ffff; 30]), Just(vec![0])];
    let via = prop_oneof![
        (1..5u8).prop_map(|n| Some(Via::Ip([10, 0, 0, n].into()))),
        (1..5u16).prop_map(|n| Some(Via::Ip([0xfd00, 0, 0, 0, 0, 0, 0, n].into()))),
        (1..5u8).prop_map(|n| Some(Via::Link([2, 0, 0, 0, 9, n]))),
        Just(None),
    ];
    (labels, via, 0..LINKS.len(), any::<bool>()).prop_map(|(labels, via, link, lo)| {
        // Only packets that have arrived go to `lo`.
        let oif = if via.is_none() && lo { LO } else { LINKS[link] };
        LabelNextHop { labels, via, oif }
    })
}

fn route() -> impl Strategy<Value = Route> {
    let ways = prop_oneof![vec(way(), 1), vec(way(), 2..5), vec(way(), 16)];
    (3..6u8, any::<Option<bool>>(), ways).prop_map(|(protocol, propagate, ways)| Route {
        protocol,
        propagate,
        ways,
    })
}

fn write_way(message: &mut Reply<'_>, way: &LabelNextHop) {
    if !way.labels.is_empty() {
        message.attribute(RTA_NEWDST, &mpls::stack(&way.labels));
    }
    if let Some(via) = way.via {
        message.attribute(RTA_VIA, &mpls::via(via));
    }
}

fn request(lab: &mut Lab, kind: u16, flags: u16, label: u32, route: Option<&Route>) {
    let mut datagram = Vec::new();
    let flags = NLM_F_REQUEST | NLM_F_ACK | flags;
    write_message(&mut datagram, kind, flags, Address::default(), |message| {
        let protocol = route.map_or(0, |route| route.protocol);
        message.fixed(&[28, 20, 0, 0, 254, protocol, 0, 1, 0, 0, 0, 0]);
        message.attribute(RTA_DST, &mpls::stack(&[label]));
        let Some(route) = route else { return };
        if let Some(propagate) = route.propagate {
            message.u8(RTA_TTL_PROPAGATE, u8::from(propagate));
        }
        if let [way] = &route.ways[..] {
            write_way(message, way);
            message.u32(RTA_OIF, way.oif);
            return;
        }
        let nest = message.nest_unflagged(RTA_MULTIPATH);
        for way in &route.ways {
            let start = message.len();
            message.fixed(&[[0; 4], way.oif.to_ne_bytes()].concat());
            write_way(message, way);
            let len = (message.len() - start) as u16;
            message.written()[start..start + 2].copy_from_slice(&len.to_ne_bytes());
        }
        message.end(nest);
    })
    .unwrap();
    let answer = lab.raw(&datagram);
    assert_eq!(answer[0][16..20], [0; 4], "{label}: {route:?}");
}

/// `ip link set … down`
fn down(index: u32) -> RouteNetlinkMessage {
    let mut link = LinkMessage::default();
    link.header.index = index;
    link.header.change_mask = LinkFlags::Up;
    RouteNetlinkMessage::NewLink(link)
}

const POLICY: [Type; 40] = [Type::Any; 40];

fn read_way(attributes: &Attributes<'_, 40>, oif: u32) -> LabelNextHop {
    let labels = attributes.get(RTA_NEWDST).map(|labels| mpls::parse_labels(&labels, 30).unwrap().into());
    let via = attributes.get(RTA_VIA).map(|via| mpls::parse_via(&via).unwrap());
    LabelNextHop { labels: labels.unwrap_or_default(), via, oif }
}

fn dump(lab: &mut Lab) -> BTreeMap<u32, Route> {
    let mut datagram = Vec::new();
    write_message(
        &mut datagram,
        libc::RTM_GETROUTE,
        NLM_F_REQUEST | NLM_F_DUMP,
        Address::default(),
        |message| {
            message.fixed(&[28, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        },
    )
    .unwrap();
    let mut all = BTreeMap::new();
    for answer in lab.raw(&datagram) {
        for message in underpass_netlink::messages(&answer) {
            let body = message.body();
            if message.kind != libc::RTM_NEWROUTE {
                continue;
            }
            let attributes = Attributes::parse(&POLICY, &body[12..], 0, Validate::Liberal).unwrap();
            let label = mpls::parse_labels(&attributes.get(RTA_DST).unwrap(), 1).unwrap()[0];
            let ways = match attributes.get(RTA_MULTIPATH) {
                None => vec![read_way(&attributes, attributes.get(RTA_OIF).unwrap().u32())],
                Some(ways) => {
                    let (mut rest, mut read) = (ways.value, Vec::new());
                    while let [a, b, _, 0, oif @ ..] = rest {
                        let len = usize::from(u16::from_ne_bytes([*a, *b]));
                        let inside = Attributes::parse(&POLICY, &rest[8..len], 0, Validate::Liberal).unwrap();
                        let oif = u32::from_ne_bytes(*oif.first_chunk().unwrap());
                        read.push(read_way(&inside, oif));
                        rest = &rest[len..];
                    }
                    read
                }
            };
            let propagate = attributes.get(RTA_TTL_PROPAGATE).map(|value| value.u8() == 1);
            all.insert(label, Route { protocol: body[5], propagate, ways });
        }
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn each_is_told_as_it_was_asked_for(
        changes in vec((16..24u32, proptest::option::of(route())), 1..60),
        flaps in any::<bool>(),
    ) {
        let mut lab = Lab::new();
        LINKS.iter().for_each(|link| lab.change(up(*link), 0).unwrap());
        write_sysctl(&mut lab.router, "mpls/platform_labels", b"24").unwrap();
        let mut model = BTreeMap::new();
        for (label, route) in changes {
            match route {
                Some(route) => {
                    request(&mut lab, libc::RTM_NEWROUTE, NLM_F_CREATE | NLM_F_REPLACE, label, Some(&route));
                    model.insert(label, route);
                }
                None => {
                    request(&mut lab, libc::RTM_DELROUTE, 0, label, None);
                    model.remove(&label);
                }
            }
            if flaps {
                lab.change(if label % 2 == 0 { up(LINKS[0]) } else { down(LINKS[0]) }, 0).unwrap();
            }
        }
        prop_assert_eq!(dump(&mut lab), model);
        write_sysctl(&mut lab.router, "mpls/platform_labels", b"16").unwrap();
        prop_assert_eq!(dump(&mut lab), BTreeMap::new());
    }
}
