//! IP tunnels and foo-over-UDP.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod lab;

use std::net::{IpAddr, Ipv4Addr};

use lab::{Lab, frame, ip4, udp};
use underpass_engine::counters::Direction;
use underpass_engine::tables::{
    Action, GreFields, Link, LinkId, Tunnel, TunnelId, TunnelKind, TunnelMode, TunnelRole, TunnelRoute,
    TunnelTos, Via,
};
use underpass_packet::{FromBytes, IntoBytes, ethernet, ipv4, protocol};

const LOCAL: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const REMOTE: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

/// A tunnel by port 0, from the router's address there to its neighbour.
pub fn tunnel(lab: &mut Lab, kind: TunnelKind) -> (LinkId, Tunnel) {
    let device = Link { ifindex: 9, port: None, mtu: 1480, mac: [2, 0, 0, 0, 9, 9], ..lab.link(0) };
    let link = lab.writer.add_link(device);
    let tunnel = Tunnel {
        link,
        kind,
        mode: TunnelMode::Any,
        role: TunnelRole::Device,
        local: LOCAL.into(),
        remote: REMOTE.into(),
        bound: None,
        receive: GreFields::default(),
        transmit: GreFields::default(),
        ttl: Some(64),
        tos: TunnelTos::Fixed(0),
        flow_label: Some(0),
        dont_fragment: true,
        ignore_df: false,
        encapsulation_limit: None,
        copies_dscp: false,
        allows_local_remote: false,
        udp: None,
        sixrd: None,
        via: Via { address: REMOTE.into(), lookup: lab.lookup, resolved: Some(lab.next_hops[0]) },
        source: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
    };
    (link, tunnel)
}

/// A route by a tunnel to 10.50.0.0/16.
pub fn route(lab: &mut Lab, tunnel: TunnelId) {
    let action = lab.writer.add_action(Action::Tunnel(TunnelRoute { tunnel, next_hop: None }));
    lab.writer.insert4(lab.fib4, Ipv4Addr::new(10, 50, 0, 0), 16, action);
}

/// The packet without what its sender is free to choose.
fn masked(packet: &[u8]) -> Vec<u8> {
    let mut packet = packet.to_vec();
    packet[4..6].fill(0);
    packet[10..12].fill(0);
    packet
}

#[test]
fn ipip_there_and_back() {
    let mut lab = Lab::new();
    let (link, config) = tunnel(&mut lab, TunnelKind::Ipip);
    let id = lab.writer.add_tunnel(config);
    route(&mut lab, id);
    let inner = |ttl: u8| {
        let mut packet = ip4([10, 1, 0, 7], [10, 50, 0, 7], protocol::UDP, &udp(20));
        let (header, _) = ipv4::Header::mut_from_prefix(&mut packet).unwrap();
        header.update_ttl(ttl);
        packet
    };
    let sent = lab.send(&[frame(ethernet::IPV4, &inner(40))]);
    let [(0, out)] = &sent[..] else { panic!("{sent:?}") };
    let mut outer = ipv4::Header::new(LOCAL, REMOTE, protocol::IPV4, 64, 20 + inner(0).len() as u16);
    outer.fill_checksum(&[]);
    assert_eq!(masked(&out[14..]), masked(&[outer.as_bytes(), &inner(39)].concat()));
    assert!(ipv4::View::parse(&out[14..]).unwrap().checksum_valid());
    assert_eq!(lab.writer.link_count(link, Direction::Transmit).bytes, inner(0).len() as u64);

    let mut inside = ip4([10, 50, 0, 7], [10, 1, 0, 7], protocol::UDP, &udp(20));
    let coming = ip4(REMOTE.octets(), LOCAL.octets(), protocol::IPV4, &inside);
    let sent = lab.send(&[frame(ethernet::IPV4, &coming)]);
    let (header, _) = ipv4::Header::mut_from_prefix(&mut inside).unwrap();
    header.decrement_ttl();
    assert_eq!(
        sent.iter().map(|(port, frame)| (*port, &frame[14..])).collect::<Vec<_>>(),
        [(1, &inside[..])]
    );
    assert_eq!(lab.writer.link_count(link, Direction::Receive).packets, 1);
    lab.assert_accounted();
}
