//! End.DT2U and End.DT2M, and frames that a bridge sends to such SIDs. RFC 8986 sections 4.11, 4.12 and 5.4.
//!
//! Linux has no such behaviours: the packets in `dt2.txt`, and what leaves, are built by scapy (`dt2.py`).
//!
//! ```text
//! port 4, port 5 → bridge → srv6l2 → port 0, and back by the SIDs
//! ```

use std::sync::Arc;

use proptest::prelude::*;
use underpass_engine::buffer::{HEADROOM, PortId};
use underpass_engine::counters::{Count, CounterId, Direction};
use underpass_engine::drops::DropReason;
use underpass_engine::l2::fdb::{Entry, Fdb, LOCAL, STATIC, Station};
use underpass_engine::tables::{ArgFe2, Behaviour, Bridge, BridgePort, Link, LinkId, Tunnel, TunnelKind};
use underpass_engine::worker::Burst;

use super::lab::{Lab, Watcher, bridge_port, v6};
use super::pair;

/// Bytes of the Ethernet header.
const ETHERNET: usize = 14;

const BRIDGE: [u8; 6] = [2, 0xaa, 0, 0, 0, 8];
const FIVE: [u8; 6] = [2, 0xaa, 0, 0, 0, 5];
const FAR: [u8; 6] = [2, 0xaa, 0, 0, 0, 6];

struct Router {
    lab: Lab,
    device: LinkId,
    fdb: Arc<Fdb>,
    /// What the SIDs have counted.
    counters: [CounterId; 3],
}

fn router() -> Router {
    let mut lab = Lab::new();
    let inside = Link { ifindex: 20, port: Some(PortId(8)), mac: BRIDGE, ..lab.link(1) };
    let bridge = lab.writer.add_link(inside.clone());
    let customers = [4, 5].map(|port: u16| {
        let mac = [2, 0xbb, 0, 0, 0, port as u8];
        let link = Link { ifindex: 30 + u32::from(port), port: Some(PortId(port)), mac, ..lab.link(1) };
        let number = port - 3;
        lab.writer.add_link(Link {
            bridge_port: Some(Box::new(BridgePort { number, ..bridge_port(bridge) })),
            ..link
        })
    });
    let (device, tunnel) = pair::device(&mut lab, TunnelKind::Srv6L2, 0);
    let none = v6("::").into();
    let mut behind = pair::behind(v6("fc00:2::d3").into(), lab.lookup);
    behind.learns = false;
    let number = behind.ends.number(v6("fc00:2::d2").into()).unwrap();
    behind.stations.set(Station::new(FAR, 0), Entry { link: LinkId(number), flags: STATIC, heard: 0 });
    let source = v6("fd00::1").into();
    lab.writer.add_tunnel(Tunnel { local: none, remote: none, source, behind: Some(behind), ..tunnel });
    let link = Link { ifindex: 9, port: None, mtu: 1446, mac: pair::DEVICE, ..lab.link(0) };
    let port = BridgePort { number: 3, ..bridge_port(bridge) };
    lab.writer.set_link(device, Link { bridge_port: Some(Box::new(port)), ..link });
    let (ports, fdb) = ([customers[0], customers[1], device].into(), Arc::new(Fdb::default()));
    fdb.set(Station::new(BRIDGE, 0), Entry { link: bridge, flags: LOCAL | STATIC, heard: 0 });
    fdb.set(Station::new(FIVE, 0), Entry { link: customers[1], flags: STATIC, heard: 0 });
    fdb.set(Station::new(FAR, 0), Entry { link: device, flags: STATIC, heard: 0 });
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
    lab.writer.insert6(lab.fib6, v6("fc00:2::"), 32, lab.forward[0]);
    let argument = Some(ArgFe2 { at: 64, count: 2, bits: 8 });
    let counters = [
        lab.sid("fc00:1::d2", Behaviour::DT2U { link: device }),
        lab.sid("fc00:1::d3", Behaviour::DT2M { link: device, argument: None }),
        lab.flavoured_prefix("fc00:1:0:d4::", 64, Behaviour::DT2M { link: device, argument }, None),
    ];
    Router { lab, device, fdb, counters }
}

/// What leaves of frames that come in by a port, by each port in its order, with flow labels of 0.
fn send(lab: &mut Lab, port: u16, frames: &[Vec<u8>], watched: bool) -> Vec<(u16, Vec<u8>)> {
    let mut burst = Burst::new();
    for frame in frames {
        let mut packet = lab.worker.pool().take().unwrap();
        packet.set(HEADROOM, frame).unwrap();
        burst.push(packet);
    }
    match watched {
        true => lab.worker.process(PortId(port), &mut burst, lab.now, Some(&mut Watcher)),
        false => lab.worker.process(PortId(port), &mut burst, lab.now, None),
    }
    let mut out = Vec::new();
    for port in [0, 1, 4, 5] {
        let sent: Vec<_> = lab.worker.sent(PortId(port)).collect();
        for packet in sent {
            let mut frame = packet.bytes().to_vec();
            if port == 0 {
                frame[ETHERNET + 1] &= 0xf0;
                frame[ETHERNET + 2..ETHERNET + 4].fill(0);
            }
            out.push((port, frame));
            lab.worker.pool().give(packet);
        }
    }
    out
}

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

/// Packets of `dt2.txt`: what leaves, what is counted, and the same while somebody watches.
#[test]
fn as_scapy_builds_them() {
    let mut cases = 0;
    for line in include_str!("dt2.txt").lines() {
        let (name, rest) = line.split_once(": ").unwrap();
        let [port, came, expected] = *rest.split(' ').collect::<Vec<_>>() else { panic!("{line}") };
        let came = bytes(came);
        let expected: Result<Vec<(u16, Vec<u8>)>, &str> = match expected.contains('=') {
            true => Ok(expected
                .split(',')
                .map(|one| one.split_once('=').unwrap())
                .map(|(port, frame)| (port.parse().unwrap(), bytes(frame)))
                .collect()),
            false => Err(expected),
        };
        for watched in [false, true] {
            let Router { mut lab, device, counters, .. } = router();
            let sent = send(&mut lab, port.parse().unwrap(), std::slice::from_ref(&came), watched);
            let length = (came.len() - ETHERNET) as u64;
            let counted = counters.map(|sid| lab.writer.count(sid));
            let [of_sid, of_device] = match &expected {
                Ok(frames) => {
                    assert_eq!(&sent, frames, "{name}: {:?}", lab.drops());
                    let inside = (frames[0].1.len() - ETHERNET) as u64;
                    [length, inside].map(|bytes| Count { packets: 1, bytes, errors: 0 })
                }
                Err(reason) => {
                    assert_eq!(lab.drops(), [(*reason, 1)], "{name}");
                    // What the bridge refuses the SID has done its part for.
                    match *reason {
                        "bridge-source" | "bridge-nowhere" => [length, length - 40 - ETHERNET as u64]
                            .map(|bytes| Count { packets: 1, bytes, errors: 0 }),
                        _ => [Count { errors: 1, ..Count::default() }, Count::default()],
                    }
                }
            };
            if port == "0" {
                let sid = ["DT2U", "DT2M", "FE2"].iter().position(|sid| name.starts_with(sid)).unwrap();
                assert_eq!(counted[sid], of_sid, "{name}");
                assert_eq!(lab.writer.link_count(device, Direction::Receive), of_device, "{name}");
            } else {
                assert_eq!(counted, [Count::default(); 3], "{name}");
                let sent = lab.writer.link_count(device, Direction::Transmit);
                // As of other devices with frames inside: from the packet in them on.
                let tag = if name.ends_with("a tag") { 4 } else { 0 };
                assert_eq!((sent.packets, sent.bytes), (1, length - tag), "{name}");
            }
            lab.assert_accounted();
        }
        cases += 1;
    }
    assert_eq!(cases, 43);
}

/// A packet of `dt2.txt` that comes in.
fn case(name: &str) -> Vec<u8> {
    let line = include_str!("dt2.txt").lines().find_map(|line| line.strip_prefix(&format!("{name}: ")));
    bytes(line.unwrap().split(' ').nth(1).unwrap())
}

/// RFC 8986 section 4.11, S04: the source is learned, so that frames to it go by the device.
#[test]
fn the_source_is_learned() {
    for watched in [false, true] {
        let Router { mut lab, device, fdb, .. } = router();
        let mut from = case("DT2U, a known station");
        from[ETHERNET + 40 + 11] = 9;
        send(&mut lab, 0, &[from], watched);
        let station = Station::new([2, 0xaa, 0, 0, 0, 9], 0);
        assert_eq!(fdb.find(station).map(|entry| entry.link), Some(device));
        let mut to = case("to a station behind a SID");
        to[5] = 9;
        let out = send(&mut lab, 4, &[to], watched);
        assert_eq!(out.iter().map(|(port, _)| *port).collect::<Vec<_>>(), [0]);
    }
}

/// Frames of a run, those that are not so simple among them, leave in their order.
#[test]
fn a_run_keeps_its_order() {
    let Router { mut lab, device, counters, .. } = router();
    let names =
        ["DT2U, a known station", "DT2U, behind a list", "DT2U, a truncated header", "DT2U, everybody"];
    let frames: Vec<_> = (0..32).map(|n: usize| case(names[n % 4])).collect();
    let expected: Vec<_> = (0..32).filter(|n| n % 4 != 2).map(|n| n % 4 == 3).collect();
    let out = send(&mut lab, 0, &frames, false);
    let by_five = out.iter().filter(|(port, _)| *port == 5);
    assert_eq!(by_five.map(|(_, frame)| frame[0] == 0xff).collect::<Vec<_>>(), expected);
    assert_eq!(out.iter().filter(|(port, _)| *port == 4).count(), 8);
    let count = lab.writer.count(counters[0]);
    assert_eq!((count.packets, count.errors), (24, 8));
    assert_eq!(lab.writer.link_count(device, Direction::Receive).packets, 24);
    lab.assert_accounted();
}

/// The device is down, or is none any more: the SID drops, and counts an error.
#[test]
fn the_device_is_down_or_gone() {
    for gone in [false, true] {
        for watched in [false, true] {
            let Router { mut lab, device, counters, .. } = router();
            let link = Link { ifindex: 9, port: None, up: false, mac: pair::DEVICE, ..lab.link(0) };
            match gone {
                true => lab.writer.remove_link(device),
                false => lab.writer.set_link(device, link),
            }
            assert_eq!(send(&mut lab, 0, &[case("DT2U, a known station")], watched), []);
            assert_eq!(lab.writer.dropped(DropReason::LinkDown), 1);
            assert_eq!(lab.writer.count(counters[0]), Count { errors: 1, ..Count::default() });
            lab.assert_accounted();
        }
    }
}

/// The packets of `dt2.txt`, by port.
fn all() -> Vec<(u16, Vec<u8>)> {
    let cases = include_str!("dt2.txt").lines().map(|line| line.split_once(": ").unwrap().1.split(' '));
    cases.map(|mut parts| (parts.next().unwrap().parse().unwrap(), bytes(parts.next().unwrap()))).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Packets with any bytes behind the Ethernet header, cut anywhere, in bursts: those that are watched go one by one, and leave
    /// and are counted as the others.
    #[test]
    fn any_bytes(
        bursts in proptest::collection::vec(
            proptest::collection::vec(
                (
                    any::<prop::sample::Index>(),
                    proptest::collection::vec((ETHERNET..120_usize, any::<u8>()), 0..3),
                    prop_oneof![3 => Just(usize::MAX), 1 => 0..150_usize],
                ),
                1..20,
            ),
            1..4,
        ),
    ) {
        let all = all();
        let mut routers = [router(), router()];
        for burst in &bursts {
            for port in [0, 4] {
                let of_port: Vec<_> = all.iter().filter(|(by, _)| *by == port).collect();
                let frames: Vec<_> = burst.iter().map(|(case, changes, length)| {
                    let mut frame = case.get(&of_port).1.clone();
                    for (at, byte) in changes {
                        frame.get_mut(*at).into_iter().for_each(|place| *place = *byte);
                    }
                    frame.truncate(*length);
                    frame
                }).collect();
                let mut sent = [0, 1].map(|at| send(&mut routers[at].lab, port, &frames, at == 1));
                // Frames to several ports may change places with those that leave by one.
                sent.iter_mut().for_each(|sent| sent.sort());
                prop_assert_eq!(&sent[0], &sent[1]);
            }
        }
        let counted = routers.each_ref().map(|Router { lab, device, counters, .. }| {
            let of_device = [Direction::Receive, Direction::Transmit].map(|way| lab.writer.link_count(*device, way));
            (lab.drops(), of_device, counters.map(|counter| lab.writer.count(counter)))
        });
        prop_assert_eq!(&counted[0], &counted[1]);
        routers.iter_mut().for_each(|router| router.lab.assert_accounted());
    }
}

/// Two bridges of one router, each with a device to the other and one from it: what is for all would go round for ever.
#[test]
fn a_loop_of_bridges_has_an_end() {
    for watched in [false, true] {
        let mut lab = Lab::new();
        let customer = Link { ifindex: 34, port: Some(PortId(4)), mac: [2, 0xbb, 0, 0, 0, 4], ..lab.link(1) };
        let customer = lab.writer.add_link(customer);
        let inside = [20, 21].map(|ifindex| Link {
            ifindex,
            port: Some(PortId(ifindex as u16 - 12)),
            mac: [2, 0xaa, 0, 0, 1, ifindex as u8],
            ..lab.link(1)
        });
        let bridges = inside.each_ref().map(|link| lab.writer.add_link(link.clone()));
        // To the other bridge, and from it.
        let mut devices = Vec::new();
        for (number, bridge) in bridges.into_iter().enumerate() {
            for to in [true, false] {
                let (device, tunnel) = pair::device(&mut lab, TunnelKind::Srv6L2, 0);
                let sid = |number: usize| format!("fc00:{}::d2", 8 + number);
                let mut behind = pair::behind(v6(&sid(1 - number)).into(), lab.lookup);
                if !to {
                    behind.others = [].into();
                    lab.sid(&sid(number), Behaviour::DT2U { link: device });
                }
                let [none, source] = ["::", "fd00::1"].map(|address| v6(address).into());
                let tunnel = Tunnel { local: none, remote: none, source, behind: Some(behind), ..tunnel };
                lab.writer.add_tunnel(tunnel);
                let link = Link { ifindex: 9, port: None, mac: pair::DEVICE, ..lab.link(0) };
                let port = Some(Box::new(bridge_port(bridge)));
                lab.writer.set_link(device, Link { bridge_port: port, ..link });
                devices.push(device);
            }
        }
        let port = Some(Box::new(bridge_port(bridges[0])));
        lab.writer.set_link(
            customer,
            Link { bridge_port: port, ifindex: 34, port: Some(PortId(4)), ..lab.link(1) },
        );
        for (at, link) in inside.into_iter().enumerate() {
            let own = if at == 0 { vec![customer] } else { Vec::new() };
            let ports = [&own[..], &devices[2 * at..2 * at + 2]].concat().into();
            let table = Bridge {
                ports,
                fdb: Arc::default(),
                ageing: 300_000,
                group_forward: 0,
                spanning_tree: false,
                filters: None,
                answering: None,
                promiscuous: false,
            };
            lab.writer.set_link(bridges[at], Link { bridge: Some(Box::new(table)), ..link });
        }
        send(&mut lab, 4, &[case("from a port, everybody")], watched);
        assert!(lab.writer.dropped(DropReason::Loop) > 0, "{:?}", lab.drops());
        lab.assert_accounted();
    }
}
