//! Frames between bridges at both ends of a tunnel: in rows, or each by itself, they come through alike.
//!
//! ```text
//! port 4 → bridge → tunnel → port 0 … port 0 → tunnel → bridge → port 4
//! ```

use std::net::IpAddr;
use std::sync::{Arc, LazyLock};

use proptest::prelude::*;
use underpass_engine::buffer::{HEADROOM, PortId};
use underpass_engine::counters::{Count, Direction};
use underpass_engine::l2::fdb::{Entry, Fdb, LOCAL, STATIC, Station};
use underpass_engine::tables::{Action, Behind, Bridge, Link, LinkId, Tunnel, TunnelKind};
use underpass_engine::worker::Burst;
use underpass_packet::{ethernet, protocol};

use super::lab::{Lab, MACS, PEERS, Watcher, bridge_port, ip4, ip6, udp};
use super::pair::{self, DEVICE, Pair, every, srv6l2};

static KINDS: LazyLock<Vec<Tunnel>> = LazyLock::new(|| {
    let of_frames = every().into_iter().filter(|tunnel| tunnel.kind.carries_frames());
    of_frames.chain([srv6l2()]).collect()
});

const BRIDGE: [u8; 6] = [2, 0xbb, 0, 0, 0, 1];
const CUSTOMER: PortId = PortId(4);
const WIRE: PortId = PortId(0);

/// Makes the tunnel of a router and a customer's port those of a bridge, of which these are the stations.
fn bridge(lab: &mut Lab, device: LinkId) -> Arc<Fdb> {
    let inside = Link { ifindex: 20, port: Some(PortId(8)), mac: BRIDGE, ..lab.link(1) };
    let bridge = lab.writer.add_link(inside.clone());
    let port = Some(Box::new(bridge_port(bridge)));
    let mac = [2, 0xbb, 0, 0, 0, 2];
    let own =
        Link { ifindex: 30, port: Some(CUSTOMER), mtu: 2000, mac, bridge_port: port.clone(), ..lab.link(1) };
    let own = lab.writer.add_link(own);
    let tunnel = Link { ifindex: 9, port: None, mtu: 1500, mac: DEVICE, bridge_port: port, ..lab.link(0) };
    lab.writer.set_link(device, tunnel);
    let (ports, fdb) = ([own, device].into(), Arc::new(Fdb::default()));
    fdb.set(Station::new(BRIDGE, 0), Entry { link: bridge, flags: LOCAL | STATIC, heard: 0 });
    let table = Bridge {
        ports,
        fdb: Arc::clone(&fdb),
        ageing: 300_000,
        group_forward: 0,
        spanning_tree: false,
        filters: None,
        answering: None,
        promiscuous: false,
    };
    lab.writer.set_link(bridge, Link { bridge: Some(Box::new(table)), ..inside });
    fdb
}

/// What leaves by the wires and by the customer's port of frames that come in, in the order in which it leaves by each.
fn send(lab: &mut Lab, port: PortId, frames: &[Vec<u8>], watched: bool) -> Vec<(u16, Vec<u8>)> {
    let mut burst = Burst::new();
    for frame in frames {
        let mut packet = lab.worker.pool().take().unwrap();
        packet.set(HEADROOM, frame).unwrap();
        burst.push(packet);
    }
    match watched {
        true => lab.worker.process(port, &mut burst, lab.now, Some(&mut Watcher)),
        false => lab.worker.process(port, &mut burst, lab.now, None),
    }
    // The identification of IPv4, and the checksum with it: what is dropped behind it has taken one, or has not.
    let anonymous = |frame: &[u8]| {
        let mut frame = frame.to_vec();
        if port == CUSTOMER && frame.get(12..15) == Some(&[8, 0, 0x45]) && frame.len() >= 34 {
            frame[18..20].fill(0);
            frame[24..26].fill(0);
            let sum = underpass_packet::checksum::Sum::new().add_bytes(&frame[14..34]).checksum();
            frame[24..26].copy_from_slice(&sum.to_be_bytes());
        }
        frame
    };
    let mut out = Vec::new();
    for port in [WIRE, PortId(1), CUSTOMER] {
        let sent: Vec<_> = lab.worker.sent(port).collect();
        for packet in sent {
            out.push((port.0, anonymous(packet.bytes())));
            lab.worker.pool().give(packet);
        }
    }
    out
}

fn station(n: u8) -> [u8; 6] {
    [if n == 7 { 3 } else { 2 }, 0xaa, 0, 0, 0, n]
}

/// A frame between two of a few stations, one of which is a group.
fn frame() -> impl Strategy<Value = Vec<u8>> {
    (0..8_u8, 0..8_u8, 0..7_u8, any::<u8>(), 0..1500_usize).prop_map(|(to, from, kind, tos, len)| {
        let len = if tos & 0x10 == 0 { len % 80 } else { len };
        let mut four = ip4([10, 9, 0, 1], [10, 9, 0, tos & 3], protocol::UDP, &udp(len));
        (four[1], four[6]) = (tos, tos << 4 & 0x40);
        let mut six = ip6("fd09::1", "fd09::2", protocol::UDP, &udp(len));
        six[1] = six[1] & 0x0f | tos << 4;
        let [v4, v6, vlan] = [ethernet::IPV4, ethernet::IPV6, ethernet::VLAN].map(u16::to_be_bytes);
        let behind = match kind {
            0 | 1 => [&v4[..], &four].concat(),
            2 | 3 => [&v6[..], &six].concat(),
            4 => [&vlan[..], &[tos, 7], &v4, &four].concat(),
            5 => [&ethernet::MPLS.to_be_bytes()[..], &[0, 1, 1, 64], &four].concat(),
            _ => [&ethernet::ARP.to_be_bytes()[..], &[tos; 28]].concat(),
        };
        [&station(to)[..], &station(from), &behind].concat()
    })
}

/// What is changed of an outer packet: nothing, mostly; or a byte.
fn change() -> impl Strategy<Value = Option<(usize, u8)>> {
    prop_oneof![4 => Just(None), 1 => (0..80_usize, any::<u8>()).prop_map(Some)]
}

fn changed(frame: &[u8], change: Option<(usize, u8)>) -> Vec<u8> {
    let mut frame = frame.to_vec();
    frame[..12].copy_from_slice(&[MACS[0], PEERS[0]].concat());
    if let Some((at, value)) = change
        && let Some(byte) = frame.get_mut(14 + at)
    {
        *byte = value;
        // Else no more than the header's checksum would be looked at.
        if frame[14] == 0x45 && frame.len() >= 34 {
            frame[24..26].fill(0);
            let sum = underpass_packet::checksum::Sum::new().add_bytes(&frame[14..34]).checksum();
            frame[24..26].copy_from_slice(&sum.to_be_bytes());
        }
    }
    frame
}

fn hex(sent: &[(u16, Vec<u8>)]) -> Vec<String> {
    let bytes = |frame: &[u8]| frame.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    sent.iter().map(|(port, frame)| format!("{port}: {}", bytes(frame))).collect()
}

/// What a router has counted: packets dropped, and those of its tunnel's device.
type Counted = (Vec<(&'static str, u64)>, [Count; 2]);

fn counts(pair: &Pair) -> [Counted; 2] {
    [(&pair.near, pair.links[0]), (&pair.far, pair.links[1])].map(|(lab, link)| {
        let of = |direction| lab.writer.link_count(link, direction);
        (lab.drops(), [of(Direction::Receive), of(Direction::Transmit)])
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn frames_in_rows_come_through_as_each_by_itself(
        kind in any::<prop::sample::Index>(),
        bursts in proptest::collection::vec(
            proptest::collection::vec((frame(), change()), 1..24), 1..6),
    ) {
        let tunnel = kind.get(&KINDS);
        let mut pairs = [0, 1].map(|_| Pair::new(tunnel));
        for pair in &mut pairs {
            let links = pair.links;
            bridge(&mut pair.near, links[0]);
            bridge(&mut pair.far, links[1]);
        }
        for (turn, burst) in bursts.iter().enumerate() {
            let frames: Vec<_> = burst.iter().map(|(frame, _)| frame.clone()).collect();
            let outs = [0, 1].map(|watched: usize| {
                let Pair { near, far, .. } = &mut pairs[watched];
                let (here, there) = if turn % 2 == 0 { (near, far) } else { (far, near) };
                let out = send(here, CUSTOMER, &frames, watched == 1);
                let outer: Vec<_> = out.iter().filter(|(port, _)| *port < 2).zip(burst)
                    .map(|((_, frame), (_, change))| changed(frame, *change)).collect();
                (out, send(there, WIRE, &outer, watched == 1))
            });
            for (step, (one, other)) in [(&outs[0].0, &outs[1].0), (&outs[0].1, &outs[1].1)].into_iter().enumerate() {
                prop_assert_eq!(hex(one), hex(other), "turn {}, step {}, {:?}", turn, step, tunnel);
            }
        }
        prop_assert_eq!(counts(&pairs[0]), counts(&pairs[1]));
        pairs.iter_mut().for_each(Pair::assert_accounted);
    }
}

/// Whatever changes, the next frames go where it says: routes, what they lead to, the other ends, the tunnel.
#[test]
fn frames_go_where_the_tables_say_now() {
    for kind in [TunnelKind::Vxlan, TunnelKind::Vxlan6, TunnelKind::Srv6L2] {
        let ends: [IpAddr; 2] = match kind.is_over_ipv6() {
            false => [[10, 77, 0, 1], [10, 77, 0, 2]].map(IpAddr::from),
            true => ["fc00:2::d1", "fc00:2::d2"].map(|end| end.parse().unwrap()),
        };
        let mut lab = Lab::new();
        let (device, tunnel) = pair::device(&mut lab, kind, 0);
        let stations = bridge(&mut lab, device);
        let lookup = lab.lookup;
        let behind = |order: [IpAddr; 2]| {
            let behind = Behind { others: [].into(), learns: false, ..pair::behind(ends[0], lookup) };
            let [number, _] = order.map(|end| behind.ends.number(end).unwrap());
            behind
                .stations
                .set(Station::new(station(1), 0), Entry { link: LinkId(number), flags: STATIC, heard: 0 });
            Some(behind)
        };
        let through = |order| Tunnel { behind: behind(order), ..tunnel.clone() };
        let other = [ends[1], ends[0]];
        let id = lab.writer.add_tunnel(through(ends));
        stations.set(Station::new(station(1), 0), Entry { link: device, flags: STATIC, heard: 0 });
        let next_hops = lab.next_hops;
        let [first, second] = next_hops.map(|next_hop| lab.writer.add_action(Action::Forward(next_hop)));
        let route = |lab: &mut Lab, len, action| match ends[0] {
            IpAddr::V4(end) => lab.writer.insert4(lab.fib4, end, len, action),
            IpAddr::V6(end) => lab.writer.insert6(lab.fib6, end, len, action),
        };
        let frame = [&station(1)[..], &station(2), &[0x88, 0xb5], &[7; 60]].concat();
        let step = |lab: &mut Lab, what: &str, port: u16, end: IpAddr| {
            let sent = send(lab, CUSTOMER, &vec![frame.clone(); 3], false);
            let to = |frame: &[u8]| match end {
                IpAddr::V4(end) => frame[30..34] == end.octets(),
                IpAddr::V6(end) => frame[38..54] == end.octets(),
            };
            let fine = sent.len() == 3 && sent.iter().all(|(by, frame)| *by == port && to(frame));
            assert!(fine, "{kind:?}, {what}: {:?}, {:?}", hex(&sent), lab.drops());
        };
        route(&mut lab, 24, first);
        step(&mut lab, "a route", 0, ends[0]);
        route(&mut lab, 24, second);
        step(&mut lab, "another", 1, ends[0]);
        lab.writer.set_action(second, Action::Forward(next_hops[0]));
        step(&mut lab, "another action", 0, ends[0]);
        lab.writer.set_tunnel(id, through(other));
        step(&mut lab, "other ends", 0, ends[1]);
        lab.writer.remove_tunnel(id);
        let again = lab.writer.add_tunnel(through(ends));
        step(&mut lab, "another tunnel", 0, ends[0]);
        lab.writer.set_tunnel(again, Tunnel { remote: ends[0], ..through(ends) });
        step(&mut lab, "the end is its own", 0, ends[0]);
        lab.assert_accounted();
    }
}

/// A VXLAN in itself, as often as a packet has room for it.
#[test]
fn networks_inside_each_other_have_an_end() {
    let tunnel = KINDS.iter().find(|tunnel| tunnel.kind == TunnelKind::Vxlan).unwrap();
    let port = tunnel.udp.unwrap().destination_port;
    for (depth, dropped) in [(3, "ethertype-unknown"), (30, "loop")] {
        for watched in [false, true] {
            let mut pair = Pair::new(tunnel);
            let links = pair.links;
            bridge(&mut pair.far, links[1]);
            let mut frame = [&BRIDGE[..], &station(1), &[0x88, 0xb5, 1]].concat();
            for _ in 0..depth {
                let length = (16 + frame.len()) as u16;
                let header = [1234, port, length, 0].map(u16::to_be_bytes).concat();
                let network = [8, 0, 0, 0, 0x12, 0x34, 0x56, 0];
                let inside = [&header[..], &network, &frame].concat();
                let packet = ip4([10, 0, 0, 1], [10, 0, 0, 2], protocol::UDP, &inside);
                frame = [&BRIDGE[..], &station(1), &ethernet::IPV4.to_be_bytes(), &packet].concat();
            }
            let out = send(&mut pair.far, WIRE, &[changed(&frame, None)], watched);
            assert_eq!((out, pair.far.drops()), (vec![], vec![(dropped, 1)]), "{depth}, {watched}");
            pair.assert_accounted();
        }
    }
}
