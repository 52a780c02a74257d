//! A kernel beside the router: packets for the host, and packets that wait for neighbours.

use std::net::IpAddr;

use super::lab::{Lab, MACS, frame, ip4, ip6, udp, v6, with_srh};
use underpass_engine::buffer::PortId;
use underpass_engine::drops::DropReason;
use underpass_engine::tables::{Action, Behaviour, Link, NextHop, Rewrite};
use underpass_engine::worker::Unresolved;
use underpass_packet::{ethernet, protocol};

const HELD: usize = 400;
const STATION: [u8; 6] = [2, 9, 9, 9, 9, 9];
const HOST: PortId = PortId(2);

/// The lab with a worker that has a kernel beside it.
fn beside() -> Lab {
    let mut lab = Lab::new();
    lab.worker = lab.worker.beside_kernel(HELD);
    lab
}

fn rewrite() -> Rewrite {
    let mut bytes = [0; 20];
    bytes[..6].copy_from_slice(&STATION);
    bytes[6..12].copy_from_slice(&MACS[1]);
    Rewrite { bytes, len: 12 }
}

impl Lab {
    fn take(&mut self, port: PortId) -> Vec<Vec<u8>> {
        let sent: Vec<_> = self.worker.sent(port).collect();
        sent.into_iter()
            .map(|packet| {
                let bytes = packet.bytes().to_vec();
                self.worker.pool().give(packet);
                bytes
            })
            .collect()
    }

    fn share(&mut self, host: Option<PortId>, shared: bool) {
        for (i, id) in self.links.into_iter().enumerate() {
            let link = Link {
                ifindex: i as u32 + 2,
                port: Some(PortId(i as u16)),
                up: true,
                mac: MACS[i],
                mtu: 1500,
                lookup: self.lookup,
                forward4: true,
                forward6: true,
                source4: Some([10, 0, i as u8, 1].into()),
                source6: Some(v6(&format!("fd00:{i}::1"))),
                own6: [v6(&format!("fd00:{i}::1"))].into(),
                host,
                shared,
                rpl: true,
                seg6: true,
                ..Link::default()
            };
            self.writer.set_link(id, link);
        }
    }

    fn unresolve(&mut self, mtu: u32) {
        let next_hop = NextHop {
            link: self.links[1],
            port: PortId(1),
            mtu,
            locked: false,
            hop_limit: 0,
            rewrite: None,
            address: IpAddr::from([10, 1, 0, 2]),
        };
        self.writer.set_next_hop(self.next_hops[1], next_hop);
    }
}

fn ping(destination: &str) -> Vec<u8> {
    frame(ethernet::IPV6, &ip6("fd00:1::9", destination, protocol::UDP, &udp(20)))
}

#[test]
fn packets_for_the_host_leave_by_its_port() {
    let mut lab = beside();
    lab.share(Some(HOST), false);
    assert_eq!(lab.send(&[ping("fd00::1")]), []);
    let [delivered] = &lab.take(HOST)[..] else { panic!() };
    assert_eq!(delivered[12..], ping("fd00::1")[12..]);
    lab.assert_accounted();
    assert_eq!(lab.writer.totals().delivered, 1);
}

/// The host accepts its own addresses as sources on its port, for the router's ICMP errors. Nobody else may use them.
#[test]
fn nobody_sends_to_the_host_from_its_own_address() {
    let mut lab = beside();
    lab.share(Some(HOST), false);
    let from = |source| frame(ethernet::IPV4, &ip4(source, [10, 0, 0, 1], protocol::UDP, &udp(20)));
    assert_eq!(lab.send(&[from([10, 0, 0, 1]), from([10, 0, 0, 9])]), []);
    let [delivered] = &lab.take(HOST)[..] else { panic!() };
    assert_eq!(delivered[12..], from([10, 0, 0, 9])[12..]);
    assert_eq!(lab.writer.dropped(DropReason::SourceInvalid), 1);
    lab.assert_accounted();
}

#[test]
fn what_the_kernel_has_is_not_delivered_twice() {
    let mut lab = beside();
    lab.share(Some(HOST), true);
    lab.sid("fc00::6", Behaviour::DT6 { lookup: lab.lookup, vrf: false });
    let inner = ip6("fd00:1::9", "fd00::1", protocol::UDP, &udp(20));
    let tunnelled = frame(ethernet::IPV6, &ip6("fd00:1::9", "fc00::6", protocol::IPV6, &inner));
    assert_eq!(lab.send(&[ping("fd00::1"), tunnelled]), []);
    let [delivered] = &lab.take(HOST)[..] else { panic!() };
    assert_eq!(delivered[14..][..6], inner[..6], "what was inside, the kernel has not seen");
    lab.assert_accounted();
    assert_eq!(lab.writer.totals().delivered, 2);
}

#[test]
fn packets_wait_for_a_next_hop() {
    let mut lab = beside();
    lab.unresolve(1500);
    let packet = |id: u8| frame(ethernet::IPV4, &ip4([10, 0, 0, 2], [10, 1, 7, id], protocol::UDP, &udp(9)));
    assert_eq!(lab.send(&[packet(1), packet(2)]), []);
    assert_eq!(lab.send(&[packet(3)]), []);
    assert_eq!((lab.worker.held(), lab.worker.undecided()), (3, 3));
    let asked: Vec<_> = lab.worker.unresolved().collect();
    let address = IpAddr::from([10, 1, 0, 2]);
    assert_eq!(asked, [Unresolved { link: lab.links[1], ifindex: 3, address }], "asked for once");
    lab.worker.resolve(lab.links[1], address, Some(&rewrite()), 5, None);
    let sent = lab.take(PortId(1));
    let last: Vec<u8> = sent.iter().map(|frame| frame[33]).collect();
    assert_eq!(last, [1, 2, 3], "in order");
    assert!(sent.iter().all(|frame| frame[..6] == STATION && frame[14 + 8] == 39), "hop limit lowered once");
    lab.assert_accounted();
}

#[test]
fn a_neighbour_of_the_link_is_waited_for_too() {
    let mut lab = beside();
    let action = lab.writer.add_action(Action::OnLink(lab.links[1]));
    lab.writer.insert6(lab.fib6, v6("fd00:1::"), 64, action);
    lab.sid("fc00::1", Behaviour::End { lookup: lab.lookup });
    let srh = with_srh(&["fc00::1", "fd00:1::7"], 1, protocol::UDP, &udp(8));
    let segment = frame(ethernet::IPV6, &ip6("fd00::9", "fc00::1", protocol::ROUTING, &srh));
    lab.send(&[segment, ping("fd00:1::7")]);
    let asked: Vec<_> = lab.worker.unresolved().map(|wanted| wanted.address).collect();
    assert_eq!(asked, [IpAddr::from(v6("fd00:1::7"))]);
    lab.worker.resolve(lab.links[1], asked[0], Some(&rewrite()), 5, None);
    let sent = lab.take(PortId(1));
    assert_eq!(sent.iter().map(|frame| frame[14 + 7]).collect::<Vec<_>>(), [39, 39]);
    lab.assert_accounted();
}

#[test]
fn the_sender_is_told_that_nobody_answers() {
    for patience in [false, true] {
        let mut lab = beside();
        lab.unresolve(1500);
        lab.send(&[frame(ethernet::IPV4, &ip4([10, 0, 0, 2], [10, 1, 7, 1], protocol::UDP, &udp(9)))]);
        if patience {
            lab.worker.give_up(2_999_999_999, None);
            assert_eq!(lab.worker.held(), 1);
            lab.worker.give_up(3_000_000_000, None);
        } else {
            lab.worker.resolve(lab.links[1], [10, 1, 0, 2].into(), None, 5, None);
        }
        let [error] = &lab.take(PortId(0))[..] else { panic!() };
        assert_eq!((error[34], error[35]), (3, 1), "host unreachable");
        assert_eq!(lab.writer.dropped(DropReason::NeighbourUnresolved), 1);
        lab.assert_accounted();
    }
}

#[test]
fn long_packets_are_cut_when_their_time_has_come() {
    let mut lab = beside();
    lab.unresolve(600);
    let mut packet = ip4([10, 0, 0, 2], [10, 1, 7, 1], protocol::UDP, &udp(1000));
    packet[6] = 0;
    packet[10..12].fill(0);
    let checksum = underpass_packet::checksum::of(&packet[..20]);
    packet[10..12].copy_from_slice(&checksum.to_be_bytes());
    lab.send(&[frame(ethernet::IPV4, &packet)]);
    assert_eq!(lab.worker.held(), 1);
    lab.worker.resolve(lab.links[1], [10, 1, 0, 2].into(), Some(&rewrite()), 5, None);
    assert_eq!(lab.take(PortId(1)).iter().map(Vec::len).collect::<Vec<_>>(), [610, 466]);
    lab.assert_accounted();
}

#[test]
fn queues_are_bounded() {
    let mut lab = beside();
    let action = lab.writer.add_action(Action::OnLink(lab.links[1]));
    lab.writer.insert4(lab.fib4, [10, 1, 0, 0].into(), 16, action);
    let packet = |to: [u8; 4]| frame(ethernet::IPV4, &ip4([10, 0, 0, 2], to, protocol::UDP, &udp(9)));
    let long = frame(ethernet::IPV4, &ip4([10, 0, 0, 2], [10, 1, 0, 7], protocol::UDP, &udp(1472)));
    // As many as Linux's `unres_qlen_bytes` of 212,992 has room for, each with 576 of overhead.
    let (small, large) = (576 + packet([0; 4]).len() - 14, 576 + long.len() - 14);
    let room = 212_992 / small;
    (0..room + 19).for_each(|_| drop(lab.send(&[packet([10, 1, 0, 7])])));
    assert_eq!(lab.worker.held(), room, "the oldest makes room");
    assert_eq!(lab.writer.dropped(DropReason::NeighbourUnresolved), 19);
    (0..110).for_each(|_| drop(lab.send(std::slice::from_ref(&long))));
    assert_eq!((lab.worker.held(), 212_992 / large), (102, 102), "for long ones several make room");
    (0..350).for_each(|_| drop(lab.send(&[packet([10, 1, 0, 8])])));
    assert_eq!(lab.worker.held(), HELD);
    assert_eq!(lab.worker.unresolved().count(), 2);
    lab.worker.give_up(u64::MAX, None);
    (0..2).for_each(|port| drop(lab.take(PortId(port))));
    lab.assert_accounted();

    // Many neighbours, a packet each.
    for i in 0..=255 {
        (0..2).for_each(|j| drop(lab.send(&[packet([10, 1, 3 + j, i])])));
    }
    assert_eq!((lab.worker.unresolved().count(), lab.worker.held()), (256, 256));
}

#[test]
fn a_worker_alone_holds_nothing() {
    let mut lab = Lab::new();
    lab.unresolve(1500);
    let out = lab.send(&[frame(ethernet::IPV4, &ip4([10, 0, 0, 2], [10, 1, 7, 1], protocol::UDP, &udp(9)))]);
    let [(0, error)] = &out[..] else { panic!() };
    assert_eq!((error[34], error[35]), (3, 1));
    assert_eq!((lab.worker.held(), lab.worker.unresolved().count()), (0, 0));
}
