//! Which tunnel, or port of foo-over-UDP, a packet is for, what is refused, and tunnels that lead into themselves.

use std::net::{IpAddr, Ipv4Addr};

use super::lab::{Lab, frame, ip6, udp, v6};
use super::pair;
use super::pair::{Pair, REMOTE4, inner4, inner6, outer4};
use underpass_engine::counters::Direction;
use underpass_engine::drops::DropReason;
use underpass_engine::tables::{
    FouPayload, FouPort, GreFields, Sixrd, Tunnel, TunnelBound, TunnelKind, TunnelMode, TunnelRole,
};
use underpass_packet::{ethernet, protocol};

/// `ip_tunnel_lookup`: both addresses, the remote one, the local one, neither, `external`, the fallback device; of equals
/// the one that is bound to where the packet comes in.
#[test]
fn of_several_tunnels_the_one_that_says_most() {
    let any: IpAddr = Ipv4Addr::UNSPECIFIED.into();
    let mut lab = Lab::new();
    let kind = TunnelKind::Gre;
    let mut links = Vec::new();
    let mut add = |lab: &mut Lab, change: &dyn Fn(&mut Tunnel)| {
        let (link, mut tunnel) = pair::device(lab, kind, 0);
        change(&mut tunnel);
        links.push((link, lab.writer.add_tunnel(tunnel)));
    };
    add(&mut lab, &|tunnel| tunnel.role = TunnelRole::Fallback);
    add(&mut lab, &|tunnel| tunnel.role = TunnelRole::External);
    add(&mut lab, &|tunnel| (tunnel.local, tunnel.remote) = (any, any));
    add(&mut lab, &|tunnel| tunnel.remote = any);
    add(&mut lab, &|tunnel| tunnel.local = any);
    let elsewhere = TunnelBound::Link(lab.links[1]);
    add(&mut lab, &|tunnel| tunnel.bound = Some(elsewhere));
    add(&mut lab, &|_| {});
    let here = TunnelBound::Link(lab.links[0]);
    add(&mut lab, &|tunnel| tunnel.bound = Some(here));
    add(&mut lab, &|tunnel| tunnel.receive.key = Some(5));
    let payload = pair::gre(&inner4(4), None);
    let packet = frame(ethernet::IPV4, &outer4(protocol::GRE, &payload));
    let keyed = frame(ethernet::IPV4, &outer4(protocol::GRE, &pair::gre(&inner4(4), Some(5))));
    let took = |lab: &mut Lab, frame: &[u8]| {
        let before: Vec<_> =
            links.iter().map(|(link, _)| lab.writer.link_count(*link, Direction::Receive).packets).collect();
        lab.send(&[frame.to_vec()]);
        links.iter().zip(before).position(|((link, _), before)| {
            lab.writer.link_count(*link, Direction::Receive).packets != before
        })
    };
    assert_eq!(took(&mut lab, &keyed), Some(8));
    // From the most to the least that they say: the one bound here or to nothing, whichever came last …
    for expected in [7, 6, 5, 4, 3, 2, 1, 0] {
        let found = took(&mut lab, &packet).unwrap();
        let preferred = if expected == 7 { found == 7 || found == 6 } else { found <= expected };
        assert!(preferred, "{found} instead of {expected}");
        lab.writer.remove_tunnel(links[expected].1);
    }
    assert_eq!(took(&mut lab, &packet), None);
    assert_eq!(lab.writer.dropped(DropReason::TunnelUnknown), 1);
    assert_eq!(took(&mut lab, &keyed), Some(8));
    // A device that is down takes nothing.
    let down = underpass_engine::tables::Link { up: false, ..lab.link(0) };
    lab.writer.set_link(links[8].0, underpass_engine::tables::Link { port: None, ..down });
    assert_eq!(took(&mut lab, &keyed), None);
    lab.assert_accounted();
}

/// Of the ports of FOU the one that says most takes a datagram.
#[test]
fn ports_of_fou() {
    let mut lab = Lab::new();
    let (link, tunnel) = pair::device(&mut lab, TunnelKind::Ipip, 0);
    lab.writer.add_tunnel(tunnel);
    let port = |payload| FouPort {
        port: 5555,
        ipv6: false,
        local: Ipv4Addr::UNSPECIFIED.into(),
        peer: None,
        bound: None,
        payload,
    };
    lab.writer.add_fou_port(port(FouPayload::Gue));
    let special =
        FouPort { peer: Some((REMOTE4.into(), 7000)), ..port(FouPayload::Protocol(protocol::IPV4)) };
    let id = lab.writer.add_fou_port(special);
    let packet = frame(ethernet::IPV4, &outer4(protocol::UDP, &pair::udp_around(7000, 5555, &inner4(4))));
    assert_eq!(lab.send(std::slice::from_ref(&packet)).len(), 1);
    assert_eq!(lab.writer.link_count(link, Direction::Receive).packets, 1);
    lab.writer.remove_fou_port(id);
    // GUE's variant 1 is an IP packet too.
    assert_eq!(lab.send(std::slice::from_ref(&packet)).len(), 1);
    let other = FouPort { ipv6: true, local: v6("::").into(), ..port(FouPayload::Protocol(protocol::IPV4)) };
    let mut lab = Lab::new();
    lab.writer.add_fou_port(other);
    lab.send(&[packet]);
    assert_eq!(lab.drops(), [("port-unreachable", 1)]);
    lab.assert_accounted();
}

pub fn fou(payload: FouPayload) -> FouPort {
    FouPort { port: 5555, ipv6: false, local: Ipv4Addr::UNSPECIFIED.into(), peer: None, bound: None, payload }
}

/// A packet for a router that has `ipip`, `sit` and `gre` from anywhere, GUE at port 5555 and FOU for UDP at 5556: what
/// it is dropped for.
#[test]
fn what_is_refused() {
    let router = || {
        let mut lab = Lab::new();
        for kind in [TunnelKind::Ipip, TunnelKind::Gre] {
            let (_, mut tunnel) = pair::device(&mut lab, kind, 0);
            tunnel.mode = TunnelMode::Ip4;
            lab.writer.add_tunnel(tunnel);
        }
        let (_, mut sit) = pair::device(&mut lab, TunnelKind::Sit, 0);
        (sit.mode, sit.remote, sit.sixrd) =
            (TunnelMode::Ip6, Ipv4Addr::UNSPECIFIED.into(), Some(Sixrd::SIX_TO_FOUR));
        lab.writer.add_tunnel(sit);
        lab.writer.add_fou_port(fou(FouPayload::Gue));
        lab.writer.insert4(lab.fib4, Ipv4Addr::new(10, 50, 0, 0), 16, lab.forward[1]);
        lab.writer.add_fou_port(FouPort { port: 5556, ..fou(FouPayload::Protocol(protocol::UDP)) });
        lab
    };
    let refused = |protocol: u8, payload: &[u8]| {
        let mut lab = router();
        let out = lab.send(&[frame(ethernet::IPV4, &outer4(protocol, payload))]);
        lab.assert_accounted();
        (lab.drops().first().map_or("", |(name, _)| name), out.len())
    };
    let in_gue = |header: &[u8], inside: &[u8]| pair::udp_around(9, 5555, &[header, inside].concat());
    let inner = inner4(4);
    assert_eq!(refused(protocol::IPV4, &inner), ("", 1));
    assert_eq!(refused(protocol::UDP, &in_gue(&[0, 4, 0, 0], &inner)), ("", 1));
    // The packet inside: nothing, cut off, of another version.
    assert_eq!(refused(protocol::IPV4, &[]).0, "inner-malformed");
    assert_eq!(refused(protocol::IPV4, &inner[..19]).0, "inner-malformed");
    assert_eq!(refused(protocol::IPV4, &inner[..24]).0, "ip4-truncated");
    assert_eq!(refused(protocol::IPV4, &inner6(4)).0, "ip4-malformed");
    assert_eq!(refused(protocol::IPV6, &inner).0, "inner-malformed");
    // No tunnel, or not its payload: the sender of what no tunnel takes is told.
    assert_eq!(refused(protocol::MPLS, &[0; 40]).0, "tunnel-payload");
    assert_eq!(refused(protocol::GRE, &pair::gre(&inner, Some(1))), ("tunnel-unknown", 1));
    // GRE: routing, a version, a checksum that is missing or lies, nothing behind the flags.
    for (first, name) in
        [([0x40, 0], "gre-malformed"), ([0, 1], "gre-malformed"), ([0x80, 0], "tunnel-checksum")]
    {
        let mut payload = pair::gre(&inner, None);
        payload[..2].copy_from_slice(&first);
        assert_eq!(refused(protocol::GRE, &payload).0, name);
    }
    assert_eq!(refused(protocol::GRE, &[0, 0]).0, "gre-malformed");
    assert_eq!(refused(protocol::GRE, &[&[0, 0, 0x12, 0x34], &inner[..]].concat()).0, "ethertype-unknown");
    // GUE: a control message, an unknown flag, a header longer than the datagram, another variant, positions that lie.
    assert_eq!(refused(protocol::UDP, &in_gue(&[0x20, 4, 0, 0], &inner)).0, "gue-control");
    assert_eq!(refused(protocol::UDP, &in_gue(&[0, 4, 0x80, 0], &inner)).0, "gue-malformed");
    assert_eq!(refused(protocol::UDP, &in_gue(&[0x1f, 4, 0, 0], &inner)).0, "gue-malformed");
    assert_eq!(refused(protocol::UDP, &in_gue(&[0x80, 4, 0, 0], &inner)).0, "gue-malformed");
    assert_eq!(
        refused(protocol::UDP, &in_gue(&[2, 4, 0, 1, 0x80, 0, 0, 0, 0, 40, 0, 20], &inner)).0,
        "gue-malformed"
    );
    assert_eq!(
        refused(protocol::UDP, &in_gue(&[2, 4, 0, 1, 0x80, 0, 0, 0, 9, 0, 9, 0], &inner)).0,
        "gue-malformed"
    );
    assert_eq!(refused(protocol::UDP, &in_gue(&[], &[])).0, "gue-malformed");
    // Protocol 0, which Linux takes for nothing, and what the router has no ear for.
    assert_eq!(refused(protocol::UDP, &in_gue(&[0, 0, 0, 0], &inner)), ("tunnel-payload", 0));
    assert_eq!(refused(protocol::UDP, &in_gue(&[0, 253, 0, 0], &inner)), ("protocol-unknown", 1));
    // Datagrams longer than their packet, or with a checksum that lies.
    let mut long = in_gue(&[0, 4, 0, 0], &inner);
    long[5] += 1;
    assert_eq!(refused(protocol::UDP, &long).0, "udp-malformed");
    let mut lying = in_gue(&[0, 4, 0, 0], &inner);
    lying[7] = 1;
    assert_eq!(refused(protocol::UDP, &lying).0, "tunnel-checksum");
    // UDP in UDP in UDP …: to the bound, and beyond.
    let nested = |count: usize| {
        (0..count).fold(in_gue(&[0, 4, 0, 0], &inner), |inside, _| pair::udp_around(9, 5556, &inside))
    };
    assert_eq!(refused(protocol::UDP, &nested(7)), ("", 1));
    assert_eq!(refused(protocol::UDP, &nested(8)).0, "tunnel-nested");
    assert_eq!(refused(protocol::UDP, &nested(60)).0, "tunnel-nested");
    // 6to4: what has an address inside comes from it.
    let from = |source: &str, to: &str| ip6(source, to, protocol::UDP, &udp(4));
    assert_eq!(refused(protocol::IPV6, &from("2002:a00:2::1", "fd00:1::7")), ("", 1));
    assert_eq!(refused(protocol::IPV6, &from("2002:a00:3::1", "fd00:1::7")).0, "tunnel-source");
    assert_eq!(refused(protocol::IPV6, &from("2002:a00:2::1", "2002:a00:9::1")).0, "tunnel-source");
}

/// Sequence numbers: one that has been, or is missing, is refused.
#[test]
fn old_sequence_numbers() {
    let fields = GreFields { sequence: true, ..GreFields::default() };
    let mut pair = Pair::of(TunnelKind::Gre, |tunnel| (tunnel.transmit, tunnel.receive) = (fields, fields));
    let wires: Vec<_> = (0..4).map(|_| pair.wire(&inner4(4)).unwrap()).collect();
    // Linux does not hold the first number, 0, against those that come after it.
    let comes: Vec<bool> = [1, 2, 2, 3, 1].iter().map(|n| pair.far(&wires[*n]).is_some()).collect();
    assert_eq!(comes, [true, true, false, true, false]);
    assert_eq!(pair.far.writer.dropped(DropReason::TunnelSequence), 2);
    assert_eq!(pair.far.writer.link_count(pair.links[1], Direction::Receive).errors, 2);
}

/// A tunnel whose outer packets go into itself, and two that go into each other.
#[test]
fn tunnels_into_themselves() {
    for count in [1, 2] {
        let mut lab = Lab::new();
        let ids: Vec<_> = (0..count)
            .map(|n| {
                let (_, mut tunnel) = pair::device(&mut lab, TunnelKind::Ipip, 0);
                tunnel.remote = Ipv4Addr::new(10, 50 + n, 0, 9).into();
                (tunnel.via.address, tunnel.via.resolved) = (tunnel.remote, None);
                lab.writer.add_tunnel(tunnel)
            })
            .collect();
        for (n, _) in ids.iter().enumerate() {
            pair::route4(&mut lab, Ipv4Addr::new(10, 50 + n as u8, 0, 0), ids[(n + 1) % ids.len()]);
        }
        assert_eq!(lab.send(&[frame(ethernet::IPV4, &inner4(4))]), []);
        assert_eq!(lab.writer.dropped(DropReason::EncapsulationLoop), 1);
        lab.assert_accounted();
    }
}

/// A tunnel from the router to itself: out of it comes what went in, and goes in again.
#[test]
fn a_tunnel_to_the_router_itself() {
    let mut lab = Lab::new();
    let (_, mut tunnel) = pair::device(&mut lab, TunnelKind::Ipip, 0);
    tunnel.remote = tunnel.local;
    (tunnel.via.address, tunnel.via.resolved) = (tunnel.remote, None);
    let id = lab.writer.add_tunnel(tunnel);
    pair::route4(&mut lab, Ipv4Addr::new(10, 50, 0, 0), id);
    assert_eq!(lab.send(&[frame(ethernet::IPV4, &inner4(4))]), []);
    assert_eq!(lab.drops().len(), 1);
    lab.assert_accounted();
}
