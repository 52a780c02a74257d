//! Packets that lead somewhere, and what can be wrong with them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use underpass_engine::tables::{Action, Behaviour, TunnelKind};
use underpass_packet::{IntoBytes, ethernet, ipv4, ipv6, protocol, srh};

use crate::labels;
use crate::random::Random;
use crate::router::{DEVICES, Route, Router, address4, address6, mac};
use crate::tunnels::{self, TUNNELS};

/// The longest frame that a run takes, with room for what a mutation adds.
const LONGEST: usize = 3300;

/// A frame, and the device that it comes in by.
pub fn frame(router: &Router, random: &mut Random) -> (usize, Vec<u8>) {
    let device = random.below(DEVICES as u64) as usize;
    let (link, tag) = router.any_above(device, random);
    let vrf = router.of_links[link];
    let (ethertype, packet) = match random.below(24) {
        0..3 => labels::packet(router, vrf, random),
        20..24 => tunnelled(router, random),
        3..9 => (ethernet::IPV4, packet4(router, vrf, random, 0)),
        _ => (ethernet::IPV6, packet6(router, vrf, random, 0)),
    };
    let station = match random.below(100) {
        0 => [0xff; 6],
        1 => mac((link + 1) % DEVICES),
        2 => [0x33, 0x33, 0, 0, 0, 1],
        _ => mac(link),
    };
    let ethertype = match random.below(200) {
        0 => ethernet::ARP,
        1 => ethernet::VLAN,
        2 => ethernet::MPLS,
        3 => random.next() as u16,
        _ => ethertype,
    };
    let mut frame = framed(station, ethertype, &packet);
    mutate(&mut frame, random);
    frame.splice(12..12, tag.into_iter().flatten());
    frame.truncate(LONGEST);
    // The kernel gives no program a packet of less than its header here.
    let least = match frame[12..14] {
        [0x08, 0x00] => 14 + 20,
        [0x86, 0xdd] => 14 + 40,
        // Nor one that ends in its tags.
        [0x81, 0x00] | [0x88, 0xa8] => 22,
        _ => 14,
    };
    if frame.len() < least {
        frame.resize(least, 0);
    }
    (device, frame)
}

fn framed(station: [u8; 6], ethertype: u16, packet: &[u8]) -> Vec<u8> {
    let header = ethernet::Header::new(station, [2, 0, 0, 0, 1, 1], ethertype);
    [header.as_bytes(), packet].concat()
}

/// Spoils a frame, sometimes.
fn mutate(frame: &mut Vec<u8>, random: &mut Random) {
    let len = frame.len() as u64;
    match random.below(40) {
        0..3 => {
            for _ in 0..=random.below(3) {
                let at = 12 + random.below((len - 12).min(100)) as usize;
                frame[at] ^= 1 << random.below(8);
            }
        }
        3 => {
            let at = 12 + random.below((len - 12).min(100)) as usize;
            frame[at] = random.next() as u8;
        }
        4 => frame.truncate((14 + random.below(len - 14)) as usize),
        5..12 => {
            let padding = random.below(50);
            frame.extend((0..padding).map(|_| random.next() as u8));
        }
        _ => {}
    }
}

fn payload(random: &mut Random) -> Vec<u8> {
    let len = match random.below(12) {
        0 => 0,
        1 => 1100 + random.below(500),
        2 => random.below(300),
        3 => random.below(2200),
        _ => 8 + random.below(60),
    };
    let mut bytes: Vec<u8> = (0..len).map(|n| n as u8).collect();
    bytes.iter_mut().take(8).for_each(|byte| *byte = random.next() as u8);
    bytes
}

/// What a packet is aimed at.
#[derive(Clone, Copy)]
enum Aim {
    Any,
    Sid,
    Forward,
}

/// A route of that kind, if there is one among the next few.
fn pick<'r, A>(
    router: &Router,
    routes: &'r [(usize, Route<A>)],
    random: &mut Random,
    aim: Aim,
) -> &'r Route<A> {
    let right = |route: &Route<A>| match aim {
        Aim::Any => true,
        Aim::Sid => matches!(router.action_of(route), Action::Endpoint(_)),
        Aim::Forward => matches!(router.action_of(route), Action::Forward(_)),
    };
    let mut any = || &routes[random.below(routes.len() as u64) as usize].1;
    let mut route = any();
    for _ in 0..8 {
        if !right(route) {
            route = any();
        }
    }
    route
}

/// An address that a route leads to, and what that does.
fn aim6<'r>(router: &'r Router, vrf: usize, random: &mut Random, aim: Aim) -> (Ipv6Addr, Option<&'r Action>) {
    let routes = &router.vrfs[vrf].routes6;
    if routes.is_empty() || random.below(30) == 0 {
        return (address6(random), None);
    }
    let route = pick(router, routes, random, aim);
    let Route { prefix, len, .. } = *route;
    let rest = match random.below(4) {
        0 => 0,
        1 => random.wide(),
        _ => address6(random).to_bits(),
    };
    let mut bits = prefix.to_bits() | rest & (u128::MAX.checked_shr(len.into()).unwrap_or(0));
    if random.below(20) == 0 {
        bits ^= 1 << random.below(128);
    }
    (Ipv6Addr::from_bits(bits), Some(router.action_of(route)))
}

fn aim4(router: &Router, vrf: usize, random: &mut Random, aim: Aim) -> Ipv4Addr {
    let routes = &router.vrfs[vrf].routes4;
    if routes.is_empty() || random.below(30) == 0 {
        return address4(random);
    }
    let Route { prefix, len, .. } = *pick(router, routes, random, aim);
    let rest = random.next() as u32 & u32::MAX.checked_shr(len.into()).unwrap_or(0);
    let mut bits = prefix.to_bits() | rest;
    if random.below(20) == 0 {
        bits ^= 1 << random.below(32);
    }
    Ipv4Addr::from_bits(bits)
}

/// The VRF that what is inside is looked up in, if the action says one.
fn inside_vrf(router: &Router, action: Option<&Action>, vrf: usize) -> usize {
    let Some(Action::Endpoint(sid)) = action else { return vrf };
    let lookup = match &sid.behaviour {
        Behaviour::T { lookup }
        | Behaviour::DT4 { lookup }
        | Behaviour::DT6 { lookup, .. }
        | Behaviour::DT46 { lookup } => *lookup,
        Behaviour::DX4(via) | Behaviour::DX6(via) => via.lookup,
        _ => return vrf,
    };
    router.vrfs.iter().position(|vrf| vrf.lookup == lookup).unwrap_or(vrf)
}

/// What the action looks for in a packet, mostly.
fn wanted_inside(action: Option<&Action>, random: &mut Random) -> u8 {
    let any = [protocol::IPV4, protocol::IPV6, protocol::ETHERNET][random.below(3) as usize];
    match action {
        Some(Action::Endpoint(sid)) if random.below(8) > 0 => match sid.behaviour {
            Behaviour::DX4(_) | Behaviour::DT4 { .. } => protocol::IPV4,
            Behaviour::DX6(_) | Behaviour::DT6 { .. } => protocol::IPV6,
            Behaviour::DX2 { .. } => protocol::ETHERNET,
            _ => any,
        },
        _ => any,
    }
}

fn hops(random: &mut Random) -> u8 {
    match random.below(20) {
        0 => random.below(3) as u8,
        1 => random.next() as u8,
        _ => 64,
    }
}

pub fn packet4(router: &Router, vrf: usize, random: &mut Random, depth: u32) -> Vec<u8> {
    let (protocol, payload) = match random.below(12) {
        0 if depth < 2 => (protocol::IPV4, packet4(router, vrf, random, depth + 1)),
        1 => (random.next() as u8, payload(random)),
        2..5 => (protocol::TCP, payload(random)),
        _ => (protocol::UDP, payload(random)),
    };
    let options = if random.below(20) == 0 { vec![1; 4 * random.below(11) as usize] } else { Vec::new() };
    let source = if random.below(20) == 0 { address4(random) } else { Ipv4Addr::new(10, 9, 8, 7) };
    let total = (20 + options.len() + payload.len()) as u16;
    let target = aim4(router, vrf, random, if depth > 0 { Aim::Forward } else { Aim::Any });
    let mut header = ipv4::Header::new(source, target, protocol, hops(random), total);
    header.set_options_len(options.len());
    if random.below(3) == 0 {
        header.tos = random.next() as u8;
    }
    header.identification = (random.next() as u16).into();
    match random.below(12) {
        0 => header.flags_offset = (random.next() as u16).into(),
        1..6 => header.flags_offset = 0.into(),
        _ => {}
    }
    header.fill_checksum(&options);
    if random.below(40) == 0 {
        header.checksum = (random.next() as u16).into();
    }
    [header.as_bytes(), &options, &payload].concat()
}

/// A packet for the end of a tunnel, and its EtherType.
fn tunnelled(router: &Router, random: &mut Random) -> (u16, Vec<u8>) {
    let number = random.below(TUNNELS as u64) as usize;
    let tunnel = &router.tunnels[number].1;
    let vrf = router.of_links[DEVICES + number];
    let six = match tunnel.kind {
        TunnelKind::Ipip => random.below(20) == 0,
        TunnelKind::Sit => random.below(4) > 0,
        _ => random.below(2) == 0,
    };
    let inside = if six {
        (ethernet::IPV6, packet6(router, vrf, random, 1))
    } else {
        (ethernet::IPV4, packet4(router, vrf, random, 1))
    };
    let (protocol, payload) = tunnels::around(tunnel, inside, &router.ports, random);
    match (tunnel.remote, tunnel.local) {
        (IpAddr::V6(source), IpAddr::V6(target)) => {
            let source = match random.below(20) {
                0 => target,
                _ if source.is_unspecified() => address6(random),
                _ => source,
            };
            let limit: &[u8] = match random.below(16) {
                0..6 => &[protocol, 0, 4, 1, 3, 1, 1, 0],
                6 => &[protocol, 0, 1, 4, 0, 0, 0, 0],
                _ => &[],
            };
            let next = if limit.is_empty() { protocol } else { protocol::DESTINATION_OPTIONS };
            let payload = [limit, &payload].concat();
            let mut header = ipv6::Header::new(source, target, next, hops(random), payload.len() as u16);
            header.set_class_flow(random.next() as u8, random.next() as u32 & 0xf_ffff);
            (ethernet::IPV6, [header.as_bytes(), &payload].concat())
        }
        (IpAddr::V4(source), IpAddr::V4(target)) => {
            let source = if source.is_unspecified() { Ipv4Addr::new(10, 9, 8, 7) } else { source };
            let len = 20 + payload.len() as u16;
            let mut header = ipv4::Header::new(source, target, protocol, hops(random), len);
            header.tos = random.next() as u8;
            header.fill_checksum(&[]);
            (ethernet::IPV4, [header.as_bytes(), &payload].concat())
        }
        _ => (random.next() as u16, payload),
    }
}

pub fn packet6(router: &Router, vrf: usize, random: &mut Random, depth: u32) -> Vec<u8> {
    let aim = match random.below(4) {
        _ if depth > 0 => Aim::Forward,
        0 => Aim::Any,
        _ => Aim::Sid,
    };
    let (target, action) = aim6(router, vrf, random, aim);
    let inside = inside_vrf(router, action, vrf);
    let used_up = random.below(2) == 0;
    let decapsulates = matches!(action, Some(Action::Endpoint(sid)) if match sid.behaviour {
        Behaviour::End { .. } | Behaviour::X(_) | Behaviour::T { .. } => {
            sid.flavours.is_some_and(|flavours| flavours.usd) && used_up
        }
        Behaviour::B6Encaps(_) => false,
        _ => true,
    });
    let advances = matches!(action, Some(Action::Endpoint(_))) && !decapsulates;
    let wraps = depth < 2 && if decapsulates { random.below(10) > 0 } else { random.below(8) == 0 };
    let (upper, rest) = match wanted_inside(action, random) {
        protocol::IPV4 if wraps => (protocol::IPV4, packet4(router, inside, random, depth + 1)),
        protocol::IPV6 if wraps => (protocol::IPV6, packet6(router, inside, random, depth + 1)),
        _ if wraps => {
            let (ethertype, packet) = match random.below(7) {
                0..3 => (ethernet::IPV4, packet4(router, inside, random, depth + 1)),
                3..6 => (ethernet::IPV6, packet6(router, inside, random, depth + 1)),
                _ => (random.next() as u16, payload(random)),
            };
            (protocol::ETHERNET, framed([2, 0, 0, 0, 9, 9], ethertype, &packet))
        }
        _ => match random.below(12) {
            0 => (random.next() as u8, payload(random)),
            1 => (protocol::NO_NEXT_HEADER, Vec::new()),
            2..5 => (protocol::TCP, payload(random)),
            _ => (protocol::UDP, payload(random)),
        },
    };
    let compressed = matches!(action, Some(Action::Endpoint(sid))
        if sid.flavours.is_some_and(|flavours| flavours.csid.is_some()));
    let with_srh = if compressed {
        random.below(2) == 0
    } else if advances {
        random.below(12) > 0
    } else {
        random.below(4) == 0
    };
    let (next, rest) = if with_srh {
        let left_over = random.below(12) > 0 && !decapsulates;
        (protocol::ROUTING, srh_before(router, (inside, target), random, left_over, (upper, rest)))
    } else {
        (upper, rest)
    };
    let (next, rest) = match random.below(60) {
        0 => (protocol::HOP_BY_HOP, [&[next, 0, 1, 4, 0, 0, 0, 0][..], &rest].concat()),
        1 => (protocol::DESTINATION_OPTIONS, [&[next, 0, 1, 4, 0, 0, 0, 0][..], &rest].concat()),
        2 => (protocol::FRAGMENT, [&[next, 0, 0, 1, 0, 0, 0, 7][..], &rest].concat()),
        _ => (next, rest),
    };
    let source = match random.below(20) {
        0 => address6(random),
        1 => Ipv6Addr::from_bits(u128::from(random.next()) << 64),
        _ => Ipv6Addr::from_bits(0x2001_0db8_0009 << 80 | 7),
    };
    let mut header = ipv6::Header::new(source, target, next, hops(random), rest.len() as u16);
    header.set_class_flow(random.next() as u8, random.next() as u32 & 0xf_ffff);
    [header.as_bytes(), &rest].concat()
}

/// An SRH before what is behind it: used up, or with segments left, of which the next leads on from `vrf`.
fn srh_before(
    router: &Router,
    (vrf, target): (usize, Ipv6Addr),
    random: &mut Random,
    left_over: bool,
    (upper, rest): (u8, Vec<u8>),
) -> Vec<u8> {
    let most = if random.below(10) == 0 { 14 } else { 4 };
    let count = 1 + random.below(most);
    let mut path: Vec<Ipv6Addr> = (0..count).map(|_| aim6(router, vrf, random, Aim::Forward).0).collect();
    let left = if left_over { random.below(path.len() as u64 + 1) } else { 0 } as u8;
    let left = left.max(u8::from(left_over && random.below(8) > 0));
    let active = path.len().saturating_sub(1 + usize::from(left));
    if random.below(2) == 0 {
        path[active] = target;
    }
    if let Some(next) = path.get_mut(active + 1)
        && random.below(20) == 0
    {
        // A group, of any scope.
        *next = Ipv6Addr::new(0xff00 | random.below(0x40) as u16, 0, 0, 0, 0, 0, 0, 0x77);
    }
    let tlvs: &[u8] = if random.below(20) == 0 { &[4, 6, 0, 0, 0, 0, 0, 0] } else { &[] };
    let builder = srh::Builder { tlvs, tag: random.next() as u16, ..srh::Builder::new(upper, &path) };
    let mut bytes = vec![0; builder.len().unwrap()];
    builder.write(&mut bytes).unwrap();
    bytes[3] = left;
    match random.below(60) {
        0 => bytes[2] = random.below(6) as u8,
        1 => bytes[1] = bytes[1].wrapping_add(random.below(3) as u8),
        2 => bytes[4] = random.below(8) as u8,
        3 => bytes[5] = random.next() as u8,
        _ => {}
    }
    bytes.extend(rest);
    bytes
}
