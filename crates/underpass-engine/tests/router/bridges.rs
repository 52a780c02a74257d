//! A bridge of four ports with an address: frames by known stations, floods, VLANs, and what the bridge sends itself.
//!
//! ```text
//! ports 4 to 7 → bridge (port 8 inside), by which 10.3/16 is reached; port 0 is routed
//! ```

use std::net::Ipv4Addr;
use std::sync::Arc;

use proptest::prelude::*;
use underpass_engine::buffer::{HEADROOM, Pool, PortId};
use underpass_engine::l2::fdb::{Entry, Fdb, LOCAL, STATIC, Station};
use underpass_engine::tables::{
    self, Answering, Bridge, BridgePort, Link, LinkId, Membership, Neighbour, PortState, Suppresses,
};
use underpass_engine::worker::Burst;
use underpass_packet::{IntoBytes, arp, ethernet, protocol};

use super::lab::{Lab, MACS, PEERS, bridge_port, frame, ip4, udp};
use super::tagged::to_third;

const PORTS: [u16; 4] = [4, 5, 6, 7];
const ALL: [u8; 6] = [0xff; 6];
/// The bridge has the address of port 1 of the plain router.
const OWN: [u8; 6] = MACS[1];

struct Bridged {
    lab: Lab,
    fdb: Arc<Fdb>,
    bridge: LinkId,
    ports: [LinkId; 4],
    table: Bridge,
}

/// VLANs: (untagged are, members with whether they leave untagged), of the bridge and of each port.
type Vlans = [(u16, Vec<(u16, bool)>); 5];

fn bridged(vlans: Option<&Vlans>, change: impl Fn(usize, &mut BridgePort), slots: usize) -> Bridged {
    let mut lab = Lab::with_pool(Pool::new(slots));
    let fdb = Arc::new(Fdb::default());
    let own = Link { ifindex: 20, port: Some(PortId(8)), ..lab.link(1) };
    let bridge = lab.writer.add_link(own.clone());
    let of = |at: usize| {
        let (pvid, members) = &vlans?[at];
        Some(Membership::new(*pvid, members.iter().copied()))
    };
    let ports = [0, 1, 2, 3].map(|n: usize| {
        let mut port = BridgePort { vlans: of(n + 1), ..bridge_port(bridge) };
        change(n, &mut port);
        let mac = [2, 0xbb, 0, 0, 0, n as u8];
        let port = Some(Box::new(port));
        let link = Link {
            ifindex: 30 + n as u32,
            port: Some(PortId(PORTS[n])),
            mac,
            bridge_port: port,
            ..lab.link(1)
        };
        lab.writer.add_link(link)
    });
    let filters = of(0).map(|own| (ethernet::VLAN, own));
    let table = Bridge {
        ports: ports.into(),
        fdb: Arc::clone(&fdb),
        ageing: 1000,
        group_forward: 0,
        spanning_tree: false,
        filters,
        answering: None,
        promiscuous: false,
    };
    lab.writer.set_link(bridge, Link { bridge: Some(Box::new(table.clone())), ..own });
    for vlan in 0..100 {
        fdb.set(Station::new(OWN, vlan), Entry { link: bridge, flags: LOCAL | STATIC, heard: 0 });
    }
    to_third(&mut lab, bridge, PortId(8));
    Bridged { lab, fdb, bridge, ports, table }
}

fn plain() -> Bridged {
    bridged(None, |_, _| {}, 512)
}

fn station(n: u8) -> [u8; 6] {
    [2, 0xaa, 0, 0, 0, n]
}

fn made(to: [u8; 6], from: [u8; 6], tag: Option<u16>) -> Vec<u8> {
    let mut frame = [to, from].concat();
    frame.extend(
        tag.map(|id| [0x81, 0, (id >> 8) as u8, id as u8])
            .unwrap_or_default()
            .iter()
            .filter(|_| tag.is_some()),
    );
    frame.extend([0x12, 0x34, 1, 2, 3, 4]);
    frame
}

impl Bridged {
    /// Frames come by a port; by which ports they leave, and as what.
    fn by(&mut self, port: u16, frames: &[Vec<u8>]) -> Vec<(u16, Vec<u8>)> {
        let mut burst = Burst::new();
        for frame in frames {
            let mut packet = self.lab.worker.pool().take().unwrap();
            packet.set(HEADROOM, frame).unwrap();
            burst.push(packet);
        }
        self.lab.worker.process(PortId(port), &mut burst, self.lab.now, None);
        let mut out = Vec::new();
        for port in [0, 1].into_iter().chain(PORTS) {
            let (pool, sent) = self.lab.worker.pool_and_sent(PortId(port));
            let sent: Vec<_> = sent.collect();
            for packet in sent {
                out.push((port, packet.bytes().to_vec()));
                pool.give(packet);
            }
        }
        out
    }

    fn ports_of(&mut self, port: u16, frame: Vec<u8>) -> Vec<u16> {
        self.by(port, &[frame]).into_iter().map(|(port, _)| port).collect()
    }
}

#[test]
fn a_station_is_learned_moves_and_is_forgotten() {
    let mut lab = plain();
    assert_eq!(lab.ports_of(4, made(station(2), station(1), None)), [5, 6, 7]);
    assert_eq!(lab.ports_of(5, made(station(1), station(2), None)), [4]);
    assert_eq!(lab.ports_of(4, made(station(2), station(1), None)), [5]);
    // It moves to another port.
    assert_eq!(lab.ports_of(6, made(station(1), station(2), None)), [4]);
    assert_eq!(lab.ports_of(4, made(station(2), station(1), None)), [6]);
    // A second later nothing is known of it.
    lab.lab.now = 1_000_000_000;
    assert_eq!(lab.ports_of(7, made(station(2), station(9), None)), [4, 5, 6]);
    // Where it came from it does not go.
    assert!(lab.ports_of(7, made(station(9), station(9), None)).is_empty());
    assert_eq!(lab.lab.drops(), [("bridge-nowhere", 1)]);
    lab.lab.assert_accounted();
}

/// The second port suppresses requests of these VLANs. Station 2 is behind it, and has the address 10.5.0.2 in VLANs 5 and 6.
fn answering(suppressed: &[u16]) -> Bridged {
    let vlans: Vlans = [0, 1, 2, 3, 4].map(|_| (0, vec![(5, false), (6, false)]));
    let suppresses = |n: usize, port: &mut BridgePort| {
        if n == 1 {
            port.suppresses = Suppresses::Vlans(suppressed.iter().copied().collect(), false);
        }
    };
    let mut lab = bridged(Some(&vlans), suppresses, 512);
    let own = Link { ifindex: 20, port: Some(PortId(8)), ..lab.lab.link(1) };
    let writer = &mut lab.lab.writer;
    let devices = [5, 6].map(|id: u16| {
        let device = Link { ifindex: u32::from(id) + 40, port: None, ..own.clone() };
        (ethernet::VLAN, id, writer.add_link(device))
    });
    let answering = Answering { suppresses: true, arp: true, ..Answering::default() };
    let table = Bridge { answering: Some(Box::new(answering)), ..lab.table.clone() };
    writer.set_link(
        lab.bridge,
        Link { bridge: Some(Box::new(table)), vlans: tables::Vlans::new(devices), ..own },
    );
    for (_, id, device) in devices {
        let neighbour = Neighbour { mac: station(2), router: false };
        writer.set_neighbour(device, Ipv4Addr::new(10, 5, 0, 2).into(), Some(neighbour));
        let entry = Entry { link: lab.ports[1], flags: STATIC, heard: 0 };
        lab.fdb.set(Station::new(station(2), id), entry);
    }
    lab
}

fn request(target: [u8; 4], vlan: u16) -> Vec<u8> {
    let packet = arp::Packet::new(arp::REQUEST, (station(1), [10, 5, 0, 1].into()), ([0; 6], target.into()));
    let mut frame = made(ALL, station(1), Some(vlan));
    frame.truncate(16);
    [&frame[..], &ethernet::ARP.to_be_bytes(), packet.as_bytes()].concat()
}

/// `neigh_vlan_suppress`: `bridge vlan set vid 5 dev IF neigh_suppress on`.
#[test]
fn requests_are_suppressed_by_vlan() {
    let mut lab = answering(&[5]);
    let sent = lab.by(4, &[request([10, 5, 0, 2], 5)]);
    assert_eq!(sent.iter().map(|(port, _)| *port).collect::<Vec<_>>(), [4, 6, 7]);
    let reply = &sent[0].1;
    assert_eq!(
        (&reply[..6], &reply[6..12], &reply[12..18]),
        (&station(1)[..], &station(2)[..], &[0x81, 0, 0, 5, 8, 6][..])
    );
    assert_eq!((reply[25], &reply[26..32]), (2, &station(2)[..]));
    assert_eq!(lab.ports_of(4, request([10, 5, 0, 2], 6)), [5, 6, 7]);
    assert_eq!(lab.ports_of(4, request([10, 5, 0, 3], 5)), [5, 6, 7]);
    // By the port itself nothing is suppressed.
    assert_eq!(lab.ports_of(5, request([10, 5, 0, 2], 5)), [4, 6, 7]);
    lab.lab.assert_accounted();
}

/// Frames between requests go as they do without.
#[test]
fn requests_keep_their_place_in_a_burst() {
    let mut lab = answering(&[5]);
    let (plain, request) = (made(station(2), station(1), Some(5)), request([10, 5, 0, 2], 5));
    let sent = lab.by(4, &[plain.clone(), request.clone(), plain.clone(), request, plain]);
    let ports: Vec<u16> = sent.iter().map(|(port, _)| *port).collect();
    assert_eq!(ports, [4, 4, 5, 5, 5, 6, 6, 7, 7]);
    lab.lab.assert_accounted();
}

#[test]
fn switches_of_ports_hold() {
    let mut lab = bridged(
        None,
        |n, port| match n {
            0 => port.hairpin = true,
            1 | 2 => port.isolated = true,
            _ => port.floods = [false, true, true],
        },
        512,
    );
    assert_eq!(lab.ports_of(4, made(station(9), station(1), None)), [4, 5, 6]);
    assert_eq!(lab.ports_of(5, made(station(9), station(2), None)), [4]);
    assert_eq!(lab.ports_of(5, made(ALL, station(2), None)), [4, 7]);
    assert!(lab.ports_of(6, made(station(2), station(3), None)).is_empty());
    let mut closed =
        bridged(None, |n, port| port.state = [PortState::Closed, PortState::Learning][n & 1], 512);
    assert!(closed.ports_of(4, made(station(9), station(1), None)).is_empty());
    assert!(closed.ports_of(5, made(station(9), station(2), None)).is_empty());
    let known: Vec<_> =
        closed.fdb.iter().filter(|(_, entry)| !entry.is(LOCAL)).map(|(station, _)| station.mac()).collect();
    assert_eq!((known, closed.lab.drops()), (vec![station(2)], vec![("bridge-port", 2)]));
}

#[test]
fn link_local_groups_are_not_forwarded() {
    let mut lab = plain();
    let to = |group| made([1, 0x80, 0xc2, 0, 0, group], station(1), None);
    assert_eq!(lab.ports_of(4, to(0)), [5, 6, 7]);
    assert!([1, 2, 3, 0xe].iter().all(|group| lab.ports_of(4, to(*group)).is_empty()));
    assert_eq!(lab.ports_of(4, to(0x10)), [5, 6, 7]);
    let mut open = bridged(None, |n, port| port.group_forward = if n == 0 { 1 << 0xe } else { 0 }, 512);
    assert_eq!(open.ports_of(4, to(0xe)), [5, 6, 7]);
    assert!(open.ports_of(5, to(0xe)).is_empty());
    // What bridges say to each other ends at the port of one that has a spanning tree.
    let own = Link { ifindex: 20, port: Some(PortId(8)), ..lab.lab.link(1) };
    let table = Bridge { spanning_tree: true, ..lab.table.clone() };
    lab.lab.writer.set_link(lab.bridge, Link { bridge: Some(Box::new(table)), ..own });
    assert!(lab.ports_of(4, to(0)).is_empty());
    lab.lab.assert_accounted();
}

#[test]
fn what_is_routed_goes_by_the_bridge() {
    let mut lab = plain();
    let packet = ip4([10, 0, 0, 2], [10, 3, 0, 2], protocol::UDP, &udp(8));
    let routed = frame(ethernet::IPV4, &packet);
    // Of the neighbour nothing is known yet.
    assert_eq!(lab.ports_of(0, routed.clone()), PORTS);
    assert_eq!(lab.ports_of(6, made(ALL, PEERS[1], None)), [4, 5, 7]);
    let out = lab.by(0, &[routed]);
    assert_eq!(out.len(), 1);
    assert_eq!((out[0].0, &out[0].1[..12]), (6, &[PEERS[1], OWN].concat()[..]));
    // What is for the bridge is routed; it and the port have an address each, of which those of other ports are nobody's.
    let mut back = [OWN, PEERS[1], [8, 0, 0, 0, 0, 0]].concat();
    back.truncate(14);
    back.extend(ip4([10, 3, 0, 2], [10, 0, 0, 2], protocol::UDP, &udp(8)));
    assert_eq!(lab.ports_of(6, back.clone()), [0]);
    lab.fdb.set(
        Station::new([2, 0xbb, 0, 0, 0, 2], 0),
        Entry { link: lab.ports[2], flags: LOCAL | STATIC, heard: 0 },
    );
    back[..6].copy_from_slice(&[2, 0xbb, 0, 0, 0, 2]);
    assert_eq!(lab.ports_of(6, back.clone()), [0]);
    assert!(lab.ports_of(5, back).is_empty());
    assert!(lab.lab.drops().contains(&("other-host", 1)), "{:?}", lab.lab.drops());
    lab.lab.assert_accounted();
    assert_eq!(lab.bridge, LinkId(2));
}

#[test]
fn vlans_are_kept_apart() {
    // VLAN 10: port 4 without tags, port 5 with; 20: port 6 without; port 7 has both with, and drops what has none.
    let vlans: Vlans = [
        (10, vec![(10, true)]),
        (10, vec![(10, true)]),
        (20, vec![(10, false), (20, true)]),
        (20, vec![(20, true)]),
        (0, vec![(10, false), (20, false)]),
    ];
    let mut lab = bridged(Some(&vlans), |_, _| {}, 512);
    let frames =
        |to, from, tags: [(u16, Option<u16>); 2]| tags.map(|(port, tag)| (port, made(to, from, tag)));
    let out = lab.by(4, &[made(station(9), station(1), None)]);
    assert_eq!(out, frames(station(9), station(1), [(5, Some(10)), (7, Some(10))]));
    assert_eq!(
        lab.by(7, &[made(station(1), station(4), Some(10))]),
        [(4, made(station(1), station(4), None))]
    );
    // In the other VLAN nothing is known of the station.
    let out = lab.by(7, &[made(station(1), station(4), Some(20))]);
    assert_eq!(out, frames(station(1), station(4), [(5, None), (6, None)]));
    assert!(lab.by(7, &[made(station(1), station(4), None)]).is_empty());
    assert!(lab.by(4, &[made(station(4), station(1), Some(20))]).is_empty());
    // A tag of priority alone is of the port's VLAN, and keeps its priority.
    let out = lab.by(4, &[made(station(4), station(1), Some(0xa000))]);
    assert_eq!(out, [(7, made(station(4), station(1), Some(0xa00a)))]);
    assert_eq!(lab.lab.drops(), [("bridge-vlan", 2)]);
    lab.lab.assert_accounted();
}

/// Without room for copies they are dropped, and counted.
#[test]
fn copies_need_room() {
    let mut lab = bridged(None, |_, _| {}, 2);
    let out = lab.by(4, &[made(station(9), station(1), None)]);
    assert_eq!(out.len(), 2);
    assert_eq!(lab.lab.drops(), [("no-buffer", 1)]);
    lab.lab.assert_accounted();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Any frames between a few stations, through ports with any switches: each has its verdict.
    #[test]
    fn any_frames(
        bursts in proptest::collection::vec((0..5_usize, proptest::collection::vec(
            (0..12_u8, 0..6_u8, proptest::option::of(0..4_u16), proptest::collection::vec(any::<u8>(), 0..60)), 1..20)), 1..6),
        switches in proptest::collection::vec(any::<u8>(), 4),
        filters in any::<bool>(),
    ) {
        let own = |n: u16| (n % 3, vec![(1, n.is_multiple_of(2)), (2, !n.is_multiple_of(2)), (n % 4, true)]);
        let vlans: Vlans = [0, 1, 2, 3, 4].map(own);
        let change = |n: usize, port: &mut BridgePort| {
            let bits = switches[n];
            port.state = [PortState::Forwarding, PortState::Forwarding, PortState::Learning, PortState::Closed][usize::from(bits & 3)];
            port.hairpin = bits & 4 != 0;
            port.isolated = bits & 8 != 0;
            port.learns = bits & 16 == 0;
            port.floods = [bits & 32 == 0, bits & 64 == 0, bits & 128 == 0];
            port.group_forward = u16::from(bits) << 3;
        };
        let mut lab = bridged(filters.then_some(&vlans), change, 128);
        for (port, frames) in bursts {
            let frames: Vec<_> = frames.into_iter().map(|(to, from, tag, rest)| {
                let to = match to {
                    0..6 => station(to),
                    6 => ALL,
                    7 => OWN,
                    8 => [1, 0x80, 0xc2, 0, 0, from],
                    9 => [0x33, 0x33, 0, 0, 0, 1],
                    10 => [2, 0xbb, 0, 0, 0, from],
                    _ => return rest,
                };
                let mut frame = made(to, if from == 5 { ALL } else { station(from) }, tag);
                frame.extend(rest);
                frame
            }).collect();
            lab.lab.now += 300_000_000;
            lab.by([0, 4, 5, 6, 7][port], &frames);
        }
        lab.lab.assert_accounted();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Requests with any bytes changed, cut anywhere: each has its verdict.
    #[test]
    fn any_requests(
        requests in proptest::collection::vec(
            (0..4_usize, 0..3_u16, proptest::collection::vec((12..130_usize, any::<u8>()), 0..4), 14..140_usize), 1..40),
    ) {
        let mut lab = answering(&[5]);
        for (port, kind, changes, length) in requests {
            let mut frame = match kind {
                0 => request([10, 5, 0, 2], 5),
                1 => request([10, 5, 0, 2], 6),
                _ => {
                    let mut frame = made(ALL, station(1), Some(5));
                    frame.truncate(16);
                    frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 32, 58, 255]);
                    frame.extend([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
                    frame.extend([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, 0, 0, 2, 135, 0, 0, 0, 0, 0, 0, 0]);
                    frame.extend([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 1, 1, 2, 0xaa, 0, 0, 0, 1]);
                    frame
                }
            };
            for (at, byte) in changes {
                frame.get_mut(at).into_iter().for_each(|there| *there = byte);
            }
            frame.truncate(length);
            lab.lab.now += 1_000_000;
            lab.by(PORTS[port], &[frame]);
            lab.lab.assert_accounted();
        }
    }
}
