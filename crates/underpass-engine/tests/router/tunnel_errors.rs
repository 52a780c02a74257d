//! What routers on the way of outer packets tell, and the encapsulation limit.

use super::lab;
use super::pair;
use std::net::{IpAddr, Ipv4Addr};

use super::lab::{Watcher, frame, ip4, ip6};
use super::pair::{Pair, forwarded, inner4, inner6};
use underpass_engine::counters::Direction;
use underpass_engine::tables::{Action, Sixrd, TunnelKind, TunnelMode, TunnelRoute, TunnelUdp};
use underpass_packet::checksum::{self, Sum};
use underpass_packet::{FromBytes, ethernet, ipv6, protocol};

/// An ICMP error from a router on the way to the sender of an outer packet.
fn error(kind: [u8; 2], wire: &[u8]) -> Vec<u8> {
    let quoted = &wire[..wire.len().min(300)];
    let mut message = [&kind[..], &[0; 6], quoted].concat();
    if wire[0] >> 4 == 6 {
        let (source, destination) = (lab::v6("fd00:1::99"), lab::v6("fd00::1"));
        let len = message.len() as u32;
        let pseudo = Sum::pseudo_ipv6(source.octets(), destination.octets(), protocol::ICMPV6, len);
        let sum = pseudo.add_bytes(&message).checksum();
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        return ip6("fd00:1::99", "fd00::1", protocol::ICMPV6, &message);
    }
    let sum = checksum::of(&message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    ip4([10, 1, 0, 99], [10, 0, 0, 1], protocol::ICMP, &message)
}

fn framed(packet: &[u8]) -> Vec<u8> {
    frame(pair::ethertype(packet), packet)
}

/// As often as an error was told of the tunnel's packets, and no longer than 30 seconds later, the sender of one is told
/// that it does not arrive; the packet goes nevertheless.
#[test]
fn told_that_packets_do_not_arrive() {
    let fou = TunnelUdp { gue: false, ..pair::gue(false) };
    for (kind, udp) in [
        (TunnelKind::Ipip, None),
        (TunnelKind::Ipip, Some(fou)),
        (TunnelKind::Sit, Some(fou)),
        (TunnelKind::Gre, None),
        (TunnelKind::Ip6gre, Some(pair::gue(false))),
    ] {
        let six = kind.is_over_ipv6();
        let (unreachable, time) = if six { ([1, 0], [3, 0]) } else { ([3, 1], [11, 0]) };
        let mut pair = Pair::of(kind, |tunnel| tunnel.udp = udp);
        let inner = if kind == TunnelKind::Sit || six { inner6(20) } else { inner4(20) };
        let wire = pair.wire(&inner).unwrap();
        for what in [unreachable, time] {
            pair.near.send(&[framed(&error(what, &wire))]);
        }
        // About somebody else's, and what does not count: a reassembly that took too long.
        pair.near.send(&[framed(&error(unreachable, &pair::misquoted(&wire)))]);
        pair.near.send(&[framed(&error(if six { [3, 1] } else { [11, 1] }, &wire))]);
        for watched in [true, false] {
            let out = if watched {
                pair.near.send_watched(&[framed(&inner)], &mut Watcher)
            } else {
                pair.near.send(&[framed(&inner)])
            };
            let [(0, again), (1, told)] = &out[..] else { panic!("{kind:?}: {out:?}") };
            assert_eq!(again[14 + 20..][..20], wire[20..40]);
            let (at, wanted) =
                if pair::ethertype(&inner) == ethernet::IPV6 { (54, [1, 3]) } else { (34, [3, 1]) };
            assert_eq!(told[at..at + 2], wanted, "{kind:?}");
            assert_eq!(told[at + 8..][..inner.len()], forwarded(&inner), "{kind:?}");
        }
        assert_eq!(pair.near.send(&[framed(&inner)]).len(), 1, "{kind:?}");
        assert_eq!(pair.near.drops(), [("tunnel-unreachable", 2)]);
        assert_eq!(pair.near.writer.link_count(pair.links[0], Direction::Transmit).packets, 4);
        pair.assert_accounted();
    }
}

/// Where enough of the packet inside is quoted, its own sender is told, once for each error, and nobody else: of IPv6 in
/// tunnels over IPv4 (RFC 4213 section 3.4), and of all that is in an ip6tnl (RFC 2473 section 8).
#[test]
fn told_on_to_the_sender() {
    for (kind, inner, time) in [
        (TunnelKind::Sit, inner6(20), [3, 0]),
        (TunnelKind::Gre, inner6(20), [3, 0]),
        (TunnelKind::Ip6tnl, inner6(20), [1, 3]),
        (TunnelKind::Ip6tnl, inner4(20), [3, 1]),
    ] {
        let over6 = kind.is_over_ipv6();
        let mut pair = Pair::of(kind, |tunnel| tunnel.mode = TunnelMode::Any);
        let wire = pair.wire(&inner).unwrap();
        let (unreachable, exceeded) = if over6 { ([1, 0], [3, 0]) } else { ([3, 1], [11, 0]) };
        let (at, address) =
            if pair::ethertype(&inner) == ethernet::IPV6 { (54, [1, 3]) } else { (34, [3, 1]) };
        for (what, wanted) in [(unreachable, address), (exceeded, time)] {
            let out = pair.near.send(&[framed(&error(what, &wire))]);
            let [(1, told)] = &out[..] else { panic!("{kind:?}: {out:?}") };
            assert_eq!(told[at..at + 2], wanted, "{kind:?}");
            assert_eq!(told[at + 8..], wire[wire.len() - inner.len()..], "{kind:?}");
        }
        // Of somebody else's, of too little of a packet, of one whose sender is none, and of an error.
        let mut of_nobody = wire.clone();
        let inside = wire.len() - inner.len();
        let source = if at == 54 { inside + 8..inside + 24 } else { inside + 12..inside + 16 };
        of_nobody[source].fill(0);
        for quoted in [pair::misquoted(&wire), wire[..inside + 19].to_vec(), of_nobody] {
            assert_eq!(pair.near.send(&[framed(&error(unreachable, &quoted))]), [], "{kind:?}");
        }
        assert_eq!(pair.near.drops(), [("tunnel-unreachable", 2)]);
        pair.assert_accounted();
    }
}

/// A hop limit that is that of the packet inside is no fault of the tunnel's.
#[test]
fn inherited_hop_limits() {
    let mut pair = Pair::of(TunnelKind::Ipip, |tunnel| tunnel.ttl = None);
    let wire = pair.wire(&inner4(20)).unwrap();
    pair.near.send(&[framed(&error([11, 0], &wire))]);
    assert_eq!(pair.near.send(&[framed(&inner4(20))]).len(), 1);
}

/// The MTU of a path is learned from what is told about packets of a tunnel to anywhere, too: SIT with 6to4.
#[test]
fn path_of_a_tunnel_to_anywhere() {
    let mut pair = Pair::of(TunnelKind::Sit, |_| {});
    // In place of the one that is there: its remote address is in the destination.
    let (link, mut tunnel) = pair::device(&mut pair.near, TunnelKind::Sit, 0);
    tunnel.remote = Ipv4Addr::UNSPECIFIED.into();
    tunnel.sixrd = Some(Sixrd::SIX_TO_FOUR);
    tunnel.via.address = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
    let id = pair.near.writer.add_tunnel(tunnel);
    let route = TunnelRoute { tunnel: id, next_hop: None, mtu: 0, hop_limit: 0 };
    let action = pair.near.writer.add_action(Action::Tunnel(route));
    pair.near.writer.insert6(pair.near.fib6, lab::v6("2002::"), 16, action);
    let inner = |len: usize| ip6("fd00:1::7", "2002:a00:2::7", protocol::UDP, &vec![0; len]);
    let sent = pair.near.send(&[framed(&inner(1400))]);
    let [(0, wire)] = &sent[..] else { panic!("{sent:?} {:?}", pair.near.drops()) };
    assert_eq!(wire[14 + 16..14 + 20], [10, 0, 0, 2]);
    let error = pair::too_big(&wire[14..], 1400);
    pair.near.send(&[framed(&error)]);
    let told = pair.near.send(&[framed(&inner(1400))]);
    let [(1, told)] = &told[..] else { panic!("{told:?}") };
    assert_eq!((&told[54..56], &told[58..62]), (&[2, 0][..], &1380_u32.to_be_bytes()[..]));
    assert_eq!(pair.near.send(&[framed(&inner(1300))]).len(), 1);
    assert_eq!(pair.near.writer.link_count(link, Direction::Transmit).packets, 2);
}

/// An IPv6 packet with a limit of its own, behind other options or not.
fn limited(options: &[u8]) -> Vec<u8> {
    let udp = [0, 7, 0, 9, 0, 12, 0, 0, 1, 2, 3, 4];
    ip6("fd00:1::7", "fd50::7", protocol::DESTINATION_OPTIONS, &[&[protocol::UDP, 0], options, &udp].concat())
}

/// RFC 2473 section 4.1.1: the limit of a packet inside, less one, is that of the packet outside, whether the tunnel has
/// one or not; at 0 the sender is told where it stands.
#[test]
fn limits_of_packets_inside() {
    for (kind, own) in [
        (TunnelKind::Ip6tnl, Some(4)),
        (TunnelKind::Ip6tnl, None),
        (TunnelKind::Ip6gre, Some(4)),
        (TunnelKind::Ip6gre, None),
    ] {
        for udp in [None, Some(pair::gue(false))] {
            let mut pair = Pair::of(kind, |tunnel| {
                (tunnel.encapsulation_limit, tunnel.udp, tunnel.mode) = (own, udp, TunnelMode::Any);
            });
            for (options, limit, at) in
                [([4, 1, 7, 1, 1, 0], 6, 42), ([0, 4, 1, 1, 0, 0], 0, 43), ([0x1e, 0, 4, 1, 200, 0], 199, 44)]
            {
                let inner = limited(&options);
                let wire = pair.wire(&inner).unwrap();
                assert_eq!(
                    (wire[6], wire[41..45].to_vec()),
                    (protocol::DESTINATION_OPTIONS, vec![0, 4, 1, limit])
                );
                assert_eq!(wire[45..48], [1, 1, 0]);
                let ipv6::View { payload, .. } = ipv6::View::parse(&wire).unwrap();
                assert_eq!(payload.len() + 40, wire.len());
                // FOU's port says that something else is inside of what is not GRE.
                if udp.is_none() {
                    assert_eq!(pair.far(&wire).unwrap(), forwarded(&forwarded(&inner)));
                }
                let mut spent = inner.clone();
                spent[at + 2] = 0;
                let out = pair.near.send(&[framed(&spent)]);
                let [(1, told)] = &out[..] else { panic!("{out:?}") };
                assert_eq!((&told[54..56], &told[58..62]), (&[4, 0][..], &(at as u32 + 2).to_be_bytes()[..]));
            }
            // What has none is the tunnel's.
            let wire = pair.wire(&inner6(9)).unwrap();
            assert_eq!(wire[6] == protocol::DESTINATION_OPTIONS, own.is_some());
            assert_eq!(pair.near.drops(), [("tunnel-limit", 3)]);
            assert_eq!(pair.near.writer.link_count(pair.links[0], Direction::Transmit).errors, 3);
            pair.assert_accounted();
        }
    }
}

/// The MTU of a route that leads to a tunnel is what its packets' senders are told, and what IPv4 is fragmented to.
#[test]
fn mtu_of_a_route() {
    for kind in [TunnelKind::Ipip, TunnelKind::Gre, TunnelKind::Ip6gre] {
        let mut pair = Pair::of(kind, |tunnel| tunnel.dont_fragment = false);
        let (_, tunnel) = pair::device(&mut pair.near, kind, 0);
        let id = pair.near.writer.add_tunnel(tunnel);
        let route = TunnelRoute { tunnel: id, next_hop: None, mtu: 1300, hop_limit: 0 };
        let action = pair.near.writer.add_action(Action::Tunnel(route));
        pair.near.writer.insert4(pair.near.fib4, Ipv4Addr::new(10, 51, 0, 0), 16, action);
        pair.near.writer.insert6(pair.near.fib6, lab::v6("fd51::"), 16, action);
        let four = |len: usize| ip4([10, 1, 0, 7], [10, 51, 0, 7], protocol::UDP, &vec![0; len - 20]);
        assert_eq!(pair.near.send(&[framed(&four(1300))]).len(), 1);
        let out = pair.near.send(&[framed(&four(1301))]);
        let [(1, told)] = &out[..] else { panic!("{kind:?}: {out:?}") };
        assert_eq!((&told[34..36], &told[40..42]), (&[3, 4][..], &1300_u16.to_be_bytes()[..]));
        let mut may = four(1301);
        let (header, _) = underpass_packet::ipv4::Header::mut_from_prefix(&mut may).unwrap();
        header.flags_offset = 0.into();
        header.fill_checksum(&[]);
        assert_eq!(pair.near.send(&[framed(&may)]).len(), 2, "{kind:?}");
        if kind != TunnelKind::Ipip {
            let six = |len: usize| ip6("fd00:1::7", "fd51::7", protocol::UDP, &vec![0; len - 40]);
            assert_eq!(pair.near.send(&[framed(&six(1300))]).len(), 1);
            let out = pair.near.send(&[framed(&six(1301))]);
            let [(1, told)] = &out[..] else { panic!("{kind:?}: {out:?}") };
            assert_eq!((&told[54..56], &told[58..62]), (&[2, 0][..], &1300_u32.to_be_bytes()[..]));
        }
        pair.assert_accounted();
    }
}
