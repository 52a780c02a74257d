//! What of the kernel's rules and routes this router does not understand is left to the kernel: packets go through a
//! worker, and no message makes the router take more packets by a rule or route than the kernel would.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;
use underpass_control::Router;
use underpass_engine::buffer::{HEADROOM, Pool, PortId};
use underpass_engine::tables::Writer;
use underpass_engine::worker::{Burst, Worker};
use underpass_netlink::messages;
use underpass_netlink::reply::{Address, Reply, write_message};
use underpass_packet::{IntoBytes, ethernet, ipv4, ipv6, protocol};

const MACS: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
const PEER: [u8; 6] = [2, 0, 0, 0, 1, 2];
const DOOR: PortId = PortId(9);
const DOOR_MAC: [u8; 6] = [2, 0, 0, 0, 9, 9];
/// Interface indexes: of the loopback link, of two with ports, of the host's.
const LO: u32 = 1;
const V0: u32 = 2;
const V1: u32 = 3;
const HOST: u32 = 4;

const FRA_PRIORITY: u16 = 6;
const FRA_TABLE: u16 = 15;

/// What becomes of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verdict {
    Forwarded,
    HandedOver,
    Dropped,
}

struct Lab {
    router: Router,
    worker: Worker,
}

impl Lab {
    /// A router with a way to 10.9/16 and fd09::/16 by `v1`, and a table 99 in which all is discarded.
    fn new() -> Self {
        let (writer, tables, mut readers) = Writer::new(1);
        let worker = Worker::new(tables, readers.remove(0), Pool::new(64)).beside_kernel(1 << 16);
        let mut lab = Self { router: Router::live(writer), worker };
        let links = [(LO, "lo", 8u32, [0; 6]), (V0, "v0", 0, MACS[0]), (V1, "v1", 0, MACS[1])];
        for (index, name, flags, mac) in links.into_iter().chain([(HOST, "underpass0", 0, [0; 6])]) {
            lab.tell(libc::RTM_NEWLINK, 0, |message| {
                let [a, b, c, d] = index.to_ne_bytes();
                let [e, f, g, h] = (flags | 0x1_0041).to_ne_bytes();
                message.fixed(&[0, 0, 1, 0, a, b, c, d, e, f, g, h, 0, 0, 0, 0]);
                message.text(libc::IFLA_IFNAME, name);
                message.attribute(libc::IFLA_ADDRESS, &mac);
                message.u32(libc::IFLA_MTU, 1500);
            });
        }
        for (index, port) in [(V0, 0), (V1, 1), (HOST, DOOR.0)] {
            lab.router.attach(index, Some(PortId(port))).unwrap();
        }
        lab.router.set_host_port(0, HOST, Some((DOOR, DOOR_MAC)));
        for (family, via) in [(2u8, "10.0.1.2"), (10, "fd01::2")] {
            let via: IpAddr = via.parse().unwrap();
            lab.tell(libc::RTM_NEWNEIGH, 0, |message| {
                message.fixed(&[family, 0, 0, 0, V1 as u8, 0, 0, 0, libc::NUD_REACHABLE as u8, 0, 0, 1]);
                message.address(libc::NDA_DST, via);
                message.attribute(libc::NDA_LLADDR, &PEER);
            });
            let far = if family == 2 { vec![10, 9, 0, 0] } else { [&[0xfd, 9][..], &[0; 14]].concat() };
            lab.tell(libc::RTM_NEWROUTE, 0, |message| {
                message.fixed(&[family, 16, 0, 0, 254, 3, 0, libc::RTN_UNICAST, 0, 0, 0, 0]);
                message.attribute(libc::RTA_DST, &far);
                message.u32(libc::RTA_OIF, V1);
                message.address(libc::RTA_GATEWAY, via);
            });
            lab.tell(libc::RTM_NEWROUTE, 0, |message| {
                message.fixed(&[family, 0, 0, 0, 99, 3, 0, libc::RTN_BLACKHOLE, 0, 0, 0, 0]);
            });
            for (priority, table) in [(0, 255u8), (32766, 254)] {
                lab.tell(libc::RTM_NEWRULE, 0, |message| {
                    message.fixed(&[family, 0, 0, 0, table, 0, 0, 1, 0, 0, 0, 0]);
                    message.u32(FRA_TABLE, u32::from(table));
                    message.u32(FRA_PRIORITY, priority);
                });
            }
        }
        lab
    }

    /// The kernel says something.
    fn tell(&mut self, kind: u16, flags: u16, write: impl FnOnce(&mut Reply<'_>)) {
        let mut bytes = Vec::new();
        write_message(&mut bytes, kind, flags, Address { port: 0, sequence: 1 }, write).unwrap();
        messages(&bytes).for_each(|message| self.router.mirror(&message));
    }

    /// `ip rule add priority 100 … lookup 99`, or its end.
    fn rule(&mut self, kind: u16, family: u8, flags: u32, tos: u8, attributes: &[(u16, Vec<u8>)]) {
        self.tell(kind, 0, |message| {
            let [a, b, c, d] = flags.to_ne_bytes();
            message.fixed(&[family, 0, 0, tos, 99, 0, 0, 1, a, b, c, d]);
            message.u32(FRA_TABLE, 99);
            message.u32(FRA_PRIORITY, 100);
            attributes.iter().for_each(|(kind, value)| {
                message.attribute(*kind, value);
            });
        });
    }

    fn verdict(&mut self, port: u16, packet: &[u8]) -> Verdict {
        let ethertype = if packet[0] >> 4 == 6 { ethernet::IPV6 } else { ethernet::IPV4 };
        let to = if port == DOOR.0 { DOOR_MAC } else { MACS[usize::from(port)] };
        let mut frame = ethernet::Header::new(to, PEER, ethertype).as_bytes().to_vec();
        frame.extend(packet);
        let mut burst = Burst::new();
        let mut packet = self.worker.pool().take().unwrap();
        packet.set(HEADROOM, &frame).unwrap();
        burst.push(packet);
        self.worker.process(PortId(port), &mut burst, 0, None);
        let mut sent = |port| {
            let sent: Vec<_> = self.worker.sent(port).collect();
            let count = sent.len();
            sent.into_iter().for_each(|packet| self.worker.pool().give(packet));
            count
        };
        match (sent(PortId(1)), sent(DOOR)) {
            (1, 0) => Verdict::Forwarded,
            (0, 1) => Verdict::HandedOver,
            (0, 0) => Verdict::Dropped,
            other => panic!("{other:?}"),
        }
    }
}

/// What of a packet rules look at.
#[derive(Clone, Copy, Debug)]
struct Probe {
    v6: bool,
    tos: u8,
    flow_label: u32,
    source_port: u16,
    destination_port: u16,
}

impl Probe {
    fn packet(&self) -> Vec<u8> {
        let ports = [self.source_port, self.destination_port, 8, 0].map(u16::to_be_bytes).concat();
        if self.v6 {
            let (from, to): (Ipv6Addr, Ipv6Addr) = ("fd00::2".parse().unwrap(), "fd09::9".parse().unwrap());
            let mut header = ipv6::Header::new(from, to, protocol::UDP, 40, 8);
            header.set_class_flow(self.tos, self.flow_label);
            return [header.as_bytes(), &ports].concat();
        }
        let (from, to) = (Ipv4Addr::new(10, 0, 0, 2), Ipv4Addr::new(10, 9, 9, 9));
        let mut header = ipv4::Header::new(from, to, protocol::UDP, 40, 28);
        header.tos = self.tos;
        header.fill_checksum(&[]);
        [header.as_bytes(), &ports].concat()
    }
}

fn probe() -> impl Strategy<Value = Probe> {
    let port = || proptest::sample::select(&[1u16, 80, 82, 0x150, 53, 65535][..]);
    let tos = proptest::sample::select(&[0u8, 0x10, 0x28, 0x2a, 0x90, 0xb8, 0x08][..]);
    let label = proptest::sample::select(&[0u32, 0x77, 0x7f, 0x1_0077, 0xf_ffff][..]);
    (any::<bool>(), tos, label, port(), port()).prop_map(
        |(v6, tos, flow_label, source_port, destination_port)| Probe {
            v6,
            tos,
            flow_label,
            source_port,
            destination_port,
        },
    )
}

/// A selector that the router knows, as the kernel tells of it; and whom it takes.
#[derive(Clone, Debug)]
enum Selector {
    Dscp(u8, u8),
    FlowLabel(u32, u32),
    SourcePort(u16, u16, Option<u16>),
    DestinationPort(u16, u16, Option<u16>),
    Protocol(u8),
}

impl Selector {
    fn attributes(&self) -> Vec<(u16, Vec<u8>)> {
        let ports = |range: u16, mask: u16, (first, last, given): (u16, u16, Option<u16>)| {
            let range = (range, [first.to_ne_bytes(), last.to_ne_bytes()].concat());
            let given = given.map(|given| (mask, given.to_ne_bytes().to_vec()));
            [Some(range), given].into_iter().flatten().collect()
        };
        match *self {
            Self::Dscp(dscp, mask) => vec![(25, vec![dscp]), (30, vec![mask])],
            Self::FlowLabel(label, mask) => {
                vec![(26, label.to_be_bytes().to_vec()), (27, mask.to_be_bytes().to_vec())]
            }
            Self::SourcePort(first, last, mask) => ports(23, 28, (first, last, mask)),
            Self::DestinationPort(first, last, mask) => ports(24, 29, (first, last, mask)),
            Self::Protocol(protocol) => vec![(22, vec![protocol])],
        }
    }

    fn takes(&self, probe: &Probe) -> bool {
        let port = |(first, last, mask): (u16, u16, Option<u16>), port: u16| match mask {
            Some(mask) => port & mask == first,
            None => (first..=last).contains(&port),
        };
        match *self {
            Self::Dscp(dscp, mask) => (probe.tos >> 2) & mask == dscp,
            Self::FlowLabel(label, mask) => probe.v6 && probe.flow_label & mask == label,
            Self::SourcePort(first, last, mask) => port((first, last, mask), probe.source_port),
            Self::DestinationPort(first, last, mask) => port((first, last, mask), probe.destination_port),
            Self::Protocol(protocol) => protocol == protocol::UDP,
        }
    }
}

fn selector() -> impl Strategy<Value = Selector> {
    let ports = || {
        let masked = proptest::sample::select(&[(80u16, 0xff_u16), (80, 0xfd), (80, 0xffff), (1, 1)][..]);
        prop_oneof![
            proptest::sample::select(&[(80u16, 80u16), (53, 100), (1, 65535)][..])
                .prop_map(|(a, b)| (a, b, None)),
            masked.prop_map(|(port, mask)| (port, port, Some(mask))),
        ]
    };
    prop_oneof![
        proptest::sample::select(&[(10u8, 63u8), (4, 63), (4, 4), (0, 63), (46, 0x3e), (2, 0x1a)][..])
            .prop_map(|(dscp, mask)| Selector::Dscp(dscp, mask)),
        proptest::sample::select(&[(0x77u32, 0xf_ffffu32), (0x77, 0xffff), (0, 0xf_ffff), (0x70, 0xf0)][..])
            .prop_map(|(label, mask)| Selector::FlowLabel(label, mask)),
        ports().prop_map(|(first, last, mask)| Selector::SourcePort(first, last, mask)),
        ports().prop_map(|(first, last, mask)| Selector::DestinationPort(first, last, mask)),
        proptest::sample::select(&[protocol::UDP, protocol::TCP][..]).prop_map(Selector::Protocol),
    ]
}

/// Something that the router cannot know: types that no kernel has yet or has no more, values of another length,
/// flags, actions; and `suppress_ifgroup`.
#[derive(Clone, Debug)]
enum Strange {
    Attribute(u16, Vec<u8>),
    Flags(u32),
}

fn strange() -> impl Strategy<Value = Strange> {
    let bytes = proptest::collection::vec(any::<u8>(), 0..12);
    prop_oneof![
        (prop_oneof![Just(5u16), Just(7), 31u16..60, 200u16..16000], bytes)
            .prop_map(|(kind, value)| Strange::Attribute(kind, value)),
        proptest::sample::select(
            &[(22u16, 2usize), (22, 4), (25, 4), (19, 4), (10, 8), (16, 2), (21, 2), (27, 8)][..]
        )
        .prop_map(|(kind, len)| Strange::Attribute(kind, vec![1; len])),
        any::<u16>().prop_map(|group| Strange::Attribute(13, u32::from(group).to_ne_bytes().to_vec())),
        (8u32..16).prop_map(|bit| Strange::Flags(1 << bit)),
    ]
}

const NEW: u16 = libc::RTM_NEWRULE;
const DEL: u16 = libc::RTM_DELRULE;

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// A rule takes the packets that its selectors say, and no others.
    #[test]
    fn selectors_take_what_they_say(
        selectors in proptest::collection::vec(selector(), 1..3),
        invert: bool,
        probes in proptest::collection::vec(probe(), 1..8),
    ) {
        let mut lab = Lab::new();
        for probe in probes {
            let family = if probe.v6 { 10 } else { 2 };
            let label = |selector: &Selector| matches!(selector, Selector::FlowLabel(..));
            let mut seen = Vec::new();
            let own: Vec<_> = selectors
                .iter()
                .filter(|selector| probe.v6 || !label(selector))
                // One of a kind: a message has one attribute of a type.
                .filter(|selector| {
                    let kind = std::mem::discriminant(*selector);
                    let new = !seen.contains(&kind);
                    seen.push(kind);
                    new
                })
                .collect();
            let attributes: Vec<_> = own.iter().flat_map(|selector| selector.attributes()).collect();
            let flags = if invert { 2 } else { 0 };
            lab.rule(NEW, family, flags, 0, &attributes);
            let takes = own.iter().all(|selector| selector.takes(&probe)) != invert;
            let wanted = if takes { Verdict::Dropped } else { Verdict::Forwarded };
            prop_assert_eq!(lab.verdict(0, &probe.packet()), wanted, "{:?} of {:?}", probe, own);
            lab.rule(DEL, family, flags, 0, &attributes);
            prop_assert_eq!(lab.verdict(0, &probe.packet()), Verdict::Forwarded);
        }
    }

    /// With anything strange besides, those packets are the kernel's that the rule may be about, and all others go on.
    #[test]
    fn a_strange_rule_takes_nothing(
        selector in proptest::option::of(selector()),
        strange in proptest::collection::vec(strange(), 1..3),
        at_front: bool,
        invert: bool,
        probes in proptest::collection::vec(probe(), 1..8),
    ) {
        let mut lab = Lab::new();
        for probe in probes {
            let family = if probe.v6 { 10 } else { 2 };
            let selector = selector.clone().filter(|s| probe.v6 || !matches!(s, Selector::FlowLabel(..)));
            let mut attributes: Vec<_> = selector.iter().flat_map(|selector| selector.attributes()).collect();
            let mut flags = if invert { 2 } else { 0 };
            for strange in &strange {
                match strange {
                    Strange::Attribute(kind, value) if at_front => attributes.insert(0, (*kind, value.clone())),
                    Strange::Attribute(kind, value) => attributes.push((*kind, value.clone())),
                    Strange::Flags(more) => flags |= more,
                }
            }
            lab.rule(NEW, family, flags, 0, &attributes);
            let verdict = lab.verdict(0, &probe.packet());
            prop_assert_ne!(verdict, Verdict::Dropped, "{:?}", probe);
            if invert || selector.is_none_or(|selector| selector.takes(&probe)) {
                prop_assert_eq!(verdict, Verdict::HandedOver, "{:?}", probe);
            }
            // What the kernel sends has passed its rules: it is not handed over for ever.
            prop_assert_ne!(lab.verdict(DOOR.0, &probe.packet()), Verdict::HandedOver);
            lab.rule(DEL, family, flags, 0, &attributes);
            prop_assert_eq!(lab.verdict(0, &probe.packet()), Verdict::Forwarded);
        }
    }

    /// The same for routes: a discarding one inside the prefix, of which nobody knows what it says.
    #[test]
    fn a_strange_route_takes_nothing(
        kind in prop_oneof![Just(libc::RTN_BLACKHOLE), Just(libc::RTN_UNICAST), Just(libc::RTN_THROW)],
        strange in route_strange(),
        neighbour: bool,
        probe in probe(),
    ) {
        let mut lab = Lab::new();
        let family = if probe.v6 { 10u8 } else { 2 };
        let (to, len): (Vec<u8>, u8) = match probe.v6 {
            true => ([&[0xfd, 9][..], &[0; 14]].concat(), 64),
            false => (vec![10, 9, 9, 0], 24),
        };
        if neighbour {
            // It is on the link: a neighbour known there is no reason to send to it.
            lab.tell(libc::RTM_NEWNEIGH, 0, |message| {
                message.fixed(&[family, 0, 0, 0, V1 as u8, 0, 0, 0, libc::NUD_REACHABLE as u8, 0, 0, 1]);
                message.address(libc::NDA_DST, if probe.v6 { "fd09::9" } else { "10.9.9.9" }.parse().unwrap());
                message.attribute(libc::NDA_LLADDR, &PEER);
            });
        }
        let route = |message: &mut Reply<'_>| {
            let mut header = [family, len, 0, 0, 254, 3, 0, kind, 0, 0, 0, 0];
            match strange {
                RouteStrange::Tos(tos) => header[3] = tos,
                RouteStrange::Source => header[2] = 8,
                RouteStrange::Kind(kind) => header[7] = kind,
                RouteStrange::Flag(bit) => header[8..].copy_from_slice(&(1u32 << bit).to_ne_bytes()),
                _ => {}
            }
            message.fixed(&header);
            message.attribute(libc::RTA_DST, &to);
            message.u32(libc::RTA_OIF, V1);
            match &strange {
                RouteStrange::Attribute(kind, value) => {
                    message.attribute(*kind, value);
                }
                RouteStrange::Encap(kind, inside) => {
                    let nest = message.nest(22);
                    // Labels that the router knows, and more.
                    message.attribute(1, &[0, 6, 0x41, 0]);
                    message.attribute(*inside, &[1; 4]);
                    message.end(nest);
                    message.u16(21, *kind);
                }
                RouteStrange::Metric(metric) => {
                    let nest = message.nest(libc::RTA_METRICS);
                    message.u32(*metric, 7);
                    message.end(nest);
                }
                RouteStrange::Object => {
                    message.u32(30, 4711);
                }
                _ => {}
            }
        };
        lab.tell(libc::RTM_NEWROUTE, 0, route);
        prop_assert_eq!(lab.verdict(0, &probe.packet()), Verdict::HandedOver);
        lab.tell(libc::RTM_DELROUTE, 0, route);
        if !neighbour {
            prop_assert_eq!(lab.verdict(0, &probe.packet()), Verdict::Forwarded);
        }
    }
}

#[derive(Clone, Debug)]
enum RouteStrange {
    Attribute(u16, Vec<u8>),
    Tos(u8),
    Source,
    Kind(u8),
    Flag(u32),
    Encap(u16, u16),
    Metric(u16),
    Object,
}

fn route_strange() -> impl Strategy<Value = RouteStrange> {
    let bytes = proptest::collection::vec(any::<u8>(), 0..12);
    prop_oneof![
        (prop_oneof![Just(13u16), Just(19), 31u16..60, 200u16..16000], bytes)
            .prop_map(|(kind, value)| RouteStrange::Attribute(kind, value)),
        proptest::sample::select(&[0x10u8, 0x04, 0x1c, 0x28][..]).prop_map(RouteStrange::Tos),
        Just(RouteStrange::Source),
        prop_oneof![Just(10u8), Just(11), 12u8..].prop_map(RouteStrange::Kind),
        proptest::sample::select(&[7u32, 16, 17, 24, 31][..]).prop_map(RouteStrange::Flag),
        (prop_oneof![Just(1u16), Just(3), Just(6), 10u16..20], 3u16..40)
            .prop_map(|(kind, inside)| RouteStrange::Encap(kind, inside)),
        (18u16..30).prop_map(RouteStrange::Metric),
        Just(RouteStrange::Object),
    ]
}

/// A next-hop object that says more than the router knows, alone and in a group.
#[test]
fn strange_objects_are_the_kernels() {
    for (strange, grouped) in [(40, false), (40, true), (0, false), (0, true)] {
        let mut lab = Lab::new();
        lab.tell(104, 0, |message| {
            message.fixed(&[2, 0, 3, 0, 0, 0, 0, 0]);
            message.u32(1, 7);
            message.u32(5, V1);
            message.address(6, Ipv4Addr::new(10, 0, 1, 2).into());
            if strange != 0 {
                message.u32(strange, 1);
            }
        });
        lab.tell(104, 0, |message| {
            message.fixed(&[0, 0, 3, 0, 0, 0, 0, 0]);
            message.u32(1, 8);
            message.attribute(2, &[7, 0, 0, 0, 0, 0, 0, 0]);
        });
        lab.tell(libc::RTM_NEWROUTE, 0, |message| {
            message.fixed(&[2, 24, 0, 0, 254, 3, 0, libc::RTN_UNICAST, 0, 0, 0, 0]);
            message.attribute(libc::RTA_DST, &[10, 9, 9, 0]);
            message.u32(30, if grouped { 8 } else { 7 });
        });
        let probe = Probe { v6: false, tos: 0, flow_label: 0, source_port: 1, destination_port: 1 };
        let wanted = if strange == 0 { Verdict::Forwarded } else { Verdict::HandedOver };
        assert_eq!(lab.verdict(0, &probe.packet()), wanted, "{strange} {grouped}");
    }
}

/// Routes of the same prefix that differ in what is not understood are several: the last one leaves it to the kernel.
#[test]
fn strange_routes_are_told_apart() {
    let mut lab = Lab::new();
    let route = |tos: u8, extra: u8| {
        move |message: &mut Reply<'_>| {
            message.fixed(&[2, 24, 0, tos, 254, 3, 0, libc::RTN_UNICAST, 0, 0, 0, 0]);
            message.attribute(libc::RTA_DST, &[10, 9, 9, 0]);
            message.u32(libc::RTA_OIF, V1);
            message.address(libc::RTA_GATEWAY, Ipv4Addr::new(10, 0, 1, 2).into());
            if extra != 0 {
                message.u8(50, extra);
            }
        }
    };
    let probe = Probe { v6: false, tos: 0, flow_label: 0, source_port: 1, destination_port: 1 };
    for (tos, extra) in [(0, 0), (0x10, 0), (0x08, 0), (0, 1), (0, 2)] {
        lab.tell(libc::RTM_NEWROUTE, 0, route(tos, extra));
    }
    for (tos, extra) in [(0x10, 0), (0, 2), (0x08, 0)] {
        lab.tell(libc::RTM_DELROUTE, 0, route(tos, extra));
        if (tos, extra) != (0x08, 0) {
            assert_eq!(lab.verdict(0, &probe.packet()), Verdict::HandedOver);
        }
    }
    lab.tell(libc::RTM_DELROUTE, 0, route(0, 1));
    assert_eq!(lab.verdict(0, &probe.packet()), Verdict::Forwarded);
}

/// `uidrange` and `tun_id`: a forwarded packet is root's and of no tunnel of the kernel's.
#[test]
fn rules_that_no_forwarded_packet_matches() {
    let users = (20u16, [1000u32.to_ne_bytes(), 2000u32.to_ne_bytes()].concat());
    let tunnel = (12u16, 7u64.to_be_bytes().to_vec());
    let probe = Probe { v6: false, tos: 0, flow_label: 0, source_port: 1, destination_port: 1 };
    for attribute in [users, tunnel] {
        for (flags, wanted) in [(0, Verdict::Forwarded), (2, Verdict::Dropped)] {
            let mut lab = Lab::new();
            lab.rule(NEW, 2, flags, 0, std::slice::from_ref(&attribute));
            assert_eq!(lab.verdict(0, &probe.packet()), wanted, "{attribute:?} {flags}");
        }
    }
}

/// `tos` of IPv4 rules is about the lower three bits of the DSCP, that of IPv6 rules about all six.
#[test]
fn rules_by_tos() {
    for (v6, tos, taken) in [
        (false, 0x10, true),
        (false, 0x90, true),
        (false, 0x12, true),
        (false, 0x18, false),
        (true, 0x90, false),
    ] {
        let mut lab = Lab::new();
        lab.rule(NEW, if v6 { 10 } else { 2 }, 0, 0x10, &[]);
        let probe = Probe { v6, tos, flow_label: 0, source_port: 1, destination_port: 1 };
        let wanted = if taken { Verdict::Dropped } else { Verdict::Forwarded };
        assert_eq!(lab.verdict(0, &probe.packet()), wanted, "{v6} {tos:x}");
    }
}
