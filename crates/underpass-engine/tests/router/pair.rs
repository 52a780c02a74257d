//! Two routers with a tunnel between them, and packets for it.
#![allow(dead_code, reason = "each test uses its part")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use crate::lab::{Lab, MACS, PEERS, frame, ip4, ip6, v6};
use underpass_engine::buffer::{HEADROOM, Offload, PortId, Segment};
use underpass_engine::counters::{Count, Direction};
use underpass_engine::tables::{
    Action, Behaviour, Behind, FouPayload, FouPort, Geneve, GreFields, Link, LinkId, LookupId, NextHop,
    Rewrite, SourcePort, Tunnel, TunnelId, TunnelKind, TunnelMode, TunnelRole, TunnelRoute, TunnelTos,
    TunnelUdp, Via, Vxlan,
};
use underpass_engine::worker::Burst;
use underpass_packet::checksum::Sum;
use underpass_packet::{FromBytes, IntoBytes, ethernet, gre, ipv4, ipv6, protocol, udp};

pub const LOCAL4: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
pub const REMOTE4: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const LOCAL6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
const REMOTE6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);
/// The device of a tunnel of frames.
pub const DEVICE: [u8; 6] = [2, 0, 0, 0, 9, 9];
/// The station that frames for it are from.
const STATION: [u8; 6] = [2, 0, 0, 0, 9, 8];
/// A port beside those of the lab: the host's end of the device.
const HOST: u16 = 7;

/// A tunnel by port 0 of a router, number 0 from 10.0.0.1 to 10.0.0.2, number 1 the other way.
pub fn device(lab: &mut Lab, kind: TunnelKind, number: usize) -> (LinkId, Tunnel) {
    let link = Link { ifindex: 9, port: None, mtu: 1500, mac: DEVICE, ..lab.link(0) };
    let link = lab.writer.add_link(link);
    let mut ends: [IpAddr; 2] =
        if kind.is_over_ipv6() { [LOCAL6.into(), REMOTE6.into()] } else { [LOCAL4.into(), REMOTE4.into()] };
    if number == 1 {
        ends.reverse();
    }
    let [local, remote] = ends;
    let tunnel = Tunnel {
        link,
        kind,
        mode: TunnelMode::Any,
        role: TunnelRole::Device,
        local,
        remote,
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
        vxlan: kind.is_vxlan().then_some(Vxlan {
            vni: 0x0012_3456,
            takes_unsummed: true,
            ttl_to_groups: None,
        }),
        behind: has_ends(kind).then(|| behind(remote, lab.lookup)),
        geneve: kind.is_geneve().then_some(Geneve { vni: 0x0012_3456, takes_unsummed: true }),
        sixrd: None,
        via: Via { address: remote, lookup: lab.lookup, resolved: Some(lab.next_hops[0]) },
        underlay: lab.lookup,
        off_route: false,
        by_any_link: false,
        source: local,
    };
    (link, tunnel)
}

/// Whether stations are behind other ends of such a tunnel.
fn has_ends(kind: TunnelKind) -> bool {
    kind.is_vxlan() || kind == TunnelKind::Srv6L2
}

/// The ends of a network that learns, whose frames go to `remote` where nothing is known of their stations.
pub fn behind(remote: IpAddr, lookup: LookupId) -> Behind {
    Behind {
        network: 0,
        stations: Arc::default(),
        ends: Arc::default(),
        others: [remote].into(),
        lookup,
        learns: true,
        ageing: 300_000,
    }
}

/// A route by a tunnel to 10.50.0.0/16 and the like.
pub fn route4(lab: &mut Lab, prefix: Ipv4Addr, tunnel: TunnelId) {
    let action =
        lab.writer.add_action(Action::Tunnel(TunnelRoute { tunnel, next_hop: None, mtu: 0, hop_limit: 0 }));
    lab.writer.insert4(lab.fib4, prefix, 16, action);
}

pub fn gue(remote_checksum: bool) -> TunnelUdp {
    TunnelUdp {
        gue: true,
        source_port: SourcePort::Fixed(4444),
        destination_port: 5555,
        checksum: false,
        remote_checksum,
    }
}

/// Frames between the SIDs of two routers.
pub fn srv6l2() -> Tunnel {
    device(&mut Lab::new(), TunnelKind::Srv6L2, 0).1
}

/// A tunnel of every kind of Linux's, with and without what may be around it.
pub fn every() -> Vec<Tunnel> {
    let mut lab = Lab::new();
    let mut all = Vec::new();
    let fields = [
        GreFields::default(),
        GreFields { key: Some(0xdead_beef), ..GreFields::default() },
        GreFields { key: Some(1), checksum: true, sequence: true },
    ];
    let udps = [
        None,
        Some(TunnelUdp { gue: false, source_port: SourcePort::LOCAL, ..gue(false) }),
        Some(TunnelUdp { gue: false, checksum: true, ..gue(false) }),
        Some(gue(false)),
        Some(TunnelUdp { checksum: true, source_port: SourcePort::LOCAL, ..gue(true) }),
    ];
    let above = SourcePort::Flow { first: 60000, last: u16::MAX };
    let bare = [false, true]
        .map(|checksum| Some(TunnelUdp { gue: false, checksum, source_port: above, ..gue(false) }));
    for kind in [
        TunnelKind::Ipip,
        TunnelKind::Sit,
        TunnelKind::Gre,
        TunnelKind::Gretap,
        TunnelKind::Ip6tnl,
        TunnelKind::Ip6gre,
        TunnelKind::Ip6gretap,
        TunnelKind::Bareudp,
        TunnelKind::Bareudp6,
        TunnelKind::Vxlan,
        TunnelKind::Vxlan6,
        TunnelKind::Geneve,
        TunnelKind::Geneve6,
        TunnelKind::GeneveIp,
        TunnelKind::GeneveIp6,
    ] {
        for &udp in if kind.is_over_udp() { &bare[..] } else { &udps[..] } {
            for fields in &fields[..if kind.has_gre() { 3 } else { 1 }] {
                for limit in if kind.is_over_ipv6() { &[None, Some(4)][..] } else { &[None][..] } {
                    for inherits in [false, true] {
                        let (_, mut tunnel) = device(&mut lab, kind, 0);
                        (tunnel.udp, tunnel.transmit, tunnel.receive) = (udp, *fields, *fields);
                        tunnel.encapsulation_limit = *limit;
                        if inherits {
                            (tunnel.ttl, tunnel.tos, tunnel.flow_label) = (None, TunnelTos::Inherit(0), None);
                            tunnel.dont_fragment = false;
                        }
                        all.push(tunnel);
                    }
                }
            }
        }
    }
    all
}

/// Two routers: packets for 10.50.0.0/16 and fd50::/16 go into the tunnel at the near one, and leave the far one by
/// port 1.
pub struct Pair {
    pub near: Lab,
    pub far: Lab,
    pub links: [LinkId; 2],
}

impl Pair {
    pub fn of(kind: TunnelKind, change: impl Fn(&mut Tunnel)) -> Self {
        let (_, mut tunnel) = device(&mut Lab::new(), kind, 0);
        change(&mut tunnel);
        Self::new(&tunnel)
    }

    /// A tunnel like this one.
    pub fn new(like: &Tunnel) -> Self {
        let mut labs = [0, 1].map(|_| Lab::new());
        let mut links = Vec::new();
        for (number, lab) in labs.iter_mut().enumerate() {
            let (link, tunnel) = device(lab, like.kind, number);
            let Tunnel { local, remote, via, source, behind, .. } = tunnel;
            let id =
                lab.writer.add_tunnel(Tunnel { link, local, remote, via, source, behind, ..like.clone() });
            if let (TunnelKind::Srv6L2, IpAddr::V6(local)) = (like.kind, local) {
                lab.sid(&local.to_string(), Behaviour::DT2U { link });
            }
            links.push(link);
            let mut bytes = [0; 20];
            bytes[..6].copy_from_slice(&DEVICE);
            bytes[6..12].copy_from_slice(&STATION);
            let next_hop = like.kind.carries_frames().then(|| {
                let rewrite = Some(Rewrite { bytes, len: 12 });
                let address = Ipv4Addr::new(10, 77, 0, 2).into();
                lab.writer.add_next_hop(NextHop {
                    link,
                    port: PortId::NONE,
                    mtu: 1500,
                    locked: false,
                    hop_limit: 0,
                    rewrite,
                    address,
                })
            });
            if number == 0 {
                let action = lab.writer.add_action(Action::Tunnel(TunnelRoute {
                    tunnel: id,
                    next_hop,
                    mtu: 0,
                    hop_limit: 0,
                }));
                lab.writer.insert4(lab.fib4, Ipv4Addr::new(10, 50, 0, 0), 16, action);
                lab.writer.insert6(lab.fib6, v6("fd50::"), 16, action);
            } else {
                make_far(lab);
            }
            if let Some(outer) = like.udp {
                let inner = match like.kind {
                    kind if kind.has_gre() => protocol::GRE,
                    TunnelKind::Sit => protocol::IPV6,
                    _ => protocol::IPV4,
                };
                lab.writer.add_fou_port(FouPort {
                    port: outer.destination_port,
                    ipv6: like.kind.is_over_ipv6(),
                    local,
                    peer: None,
                    bound: None,
                    payload: match outer.gue {
                        true => FouPayload::Gue,
                        false if like.kind.is_vxlan() => FouPayload::Vxlan,
                        false if like.kind.is_geneve() => FouPayload::Geneve,
                        false if like.kind.is_bare_udp() => FouPayload::Device(id),
                        false => FouPayload::Protocol(inner),
                    },
                });
            }
        }
        let [near, far] = labs;
        Self { near, far, links: [links[0], links[1]] }
    }

    /// The outer packet that a packet goes into. `None`: it does not go into this tunnel.
    pub fn wire(&mut self, packet: &[u8]) -> Option<Vec<u8>> {
        let sent = self.near.send(&[frame(ethertype(packet), packet)]);
        let [(0, wire)] = &sent[..] else { return None };
        check(&wire[14..]);
        Some(wire[14..].to_vec())
    }

    /// What leaves the far router of an outer packet.
    pub fn far(&mut self, wire: &[u8]) -> Option<Vec<u8>> {
        let sent = self.far.send(&[frame(ethertype(wire), wire)]);
        let [(1, out)] = &sent[..] else { return None };
        Some(out[14..].to_vec())
    }

    /// A packet through the tunnel. `None`: it does not go into it, or FOU does not say what is in it.
    pub fn cross(&mut self, packet: &[u8]) -> Option<Vec<u8>> {
        let wire = self.wire(packet)?;
        self.far(&wire)
    }

    /// What was counted as sent and as received.
    pub fn counted(&self) -> (Count, Count) {
        let transmitted = self.near.writer.link_count(self.links[0], Direction::Transmit);
        (transmitted, self.far.writer.link_count(self.links[1], Direction::Receive))
    }

    pub fn assert_accounted(&mut self) {
        self.near.assert_accounted();
        self.far.assert_accounted();
    }

    /// Gives the link by which outer packets leave this MTU; the others have more.
    pub fn narrow(&mut self, mtu: u32) {
        let mut bytes = [0; 20];
        bytes[..6].copy_from_slice(&PEERS[0]);
        bytes[6..12].copy_from_slice(&MACS[0]);
        let (link, rewrite) = (self.near.links[0], Some(Rewrite { bytes, len: 12 }));
        let hop = NextHop {
            link,
            port: PortId(0),
            mtu,
            locked: false,
            hop_limit: 0,
            rewrite,
            address: REMOTE4.into(),
        };
        self.near.writer.set_next_hop(self.near.next_hops[0], hop);
    }

    /// Gives the device of the near router this MTU.
    pub fn device_mtu(&mut self, mtu: u32) {
        let link = Link { ifindex: 9, port: None, mtu, mac: DEVICE, ..self.near.link(0) };
        self.near.writer.set_link(self.links[0], link);
    }

    /// What leaves by the ports of the near router of a frame that the host sends by the device.
    pub fn send_by_device(&mut self, frame: &[u8]) -> Vec<(u16, Vec<u8>)> {
        self.send_by_device_with(frame, |_| {})
    }

    /// The same, of a device that has been changed.
    pub fn send_by_device_with(
        &mut self,
        frame: &[u8],
        change: impl FnOnce(&mut Link),
    ) -> Vec<(u16, Vec<u8>)> {
        let link = self.near.link(0);
        let mut link = Link { ifindex: 9, port: Some(PortId(HOST)), mtu: 1500, mac: DEVICE, ..link };
        change(&mut link);
        self.near.writer.set_link(self.links[0], link);
        let mut packet = self.near.worker.pool().take().unwrap();
        packet.set(HEADROOM, frame).unwrap();
        let mut burst = Burst::new();
        burst.push(packet);
        self.near.worker.process(PortId(HOST), &mut burst, 0, None);
        self.near.send(&[])
    }

    /// Sends a UDP packet whose checksum is left unfinished: the outer packet, and what is left of it.
    pub fn send_unfinished(&mut self, packet: &[u8]) -> (Vec<u8>, Option<(usize, usize)>) {
        self.send_segments(packet, None)
    }

    /// The same of one that may stand for several.
    pub fn send_segments(
        &mut self,
        packet: &[u8],
        segment: Option<Segment>,
    ) -> (Vec<u8>, Option<(usize, usize)>) {
        let mut frame = frame(ethernet::IPV4, packet);
        let view = ipv4::View::parse(packet).unwrap();
        let (source, destination) = (view.header.source().octets(), view.header.destination().octets());
        let pseudo = Sum::pseudo_ipv4(source, destination, protocol::UDP, view.payload.len() as u16);
        frame[14 + 26..14 + 28].copy_from_slice(&pseudo.fold().to_be_bytes());
        let mut packet = self.near.worker.pool().take().unwrap();
        packet.set(HEADROOM, &frame).unwrap();
        packet.set_offload(Offload { start: 34, field: 6, segment });
        let mut burst = Burst::new();
        burst.push(packet);
        self.near.worker.process(PortId(0), &mut burst, 0, None);
        let packet = self.near.worker.sent(PortId(0)).next().unwrap();
        let left = packet.offload().map(|left| (left.start - 14, usize::from(left.field)));
        let wire = packet.bytes()[14..].to_vec();
        self.near.worker.pool().give(packet);
        (wire, left)
    }
}

pub fn ethertype(packet: &[u8]) -> u16 {
    if packet[0] >> 4 == 6 { ethernet::IPV6 } else { ethernet::IPV4 }
}

/// Lengths and checksums of outer headers.
fn check(packet: &[u8]) {
    if packet[0] >> 4 == 4 {
        let view = ipv4::View::parse(packet).unwrap();
        assert!(view.checksum_valid());
        assert_eq!(usize::from(view.header.total_length.get()), packet.len());
        if view.header.protocol == protocol::UDP {
            assert_eq!(udp::View::parse(view.payload).unwrap().payload.len() + 28, packet.len());
        }
    } else {
        assert_eq!(ipv6::View::parse(packet).unwrap().payload.len() + 40, packet.len());
    }
}

/// A UDP packet from behind port 1 of the near router, with so many bytes of data and a checksum.
pub fn inner4(len: usize) -> Vec<u8> {
    let data: Vec<u8> = (0..len).map(|n| n as u8 ^ 0x5a).collect();
    let mut header = udp::Header::new(7, 9, 8 + len as u16);
    header
        .fill_checksum(Sum::pseudo_ipv4([10, 1, 0, 7], [10, 50, 0, 7], protocol::UDP, 8 + len as u16), &data);
    ip4([10, 1, 0, 7], [10, 50, 0, 7], protocol::UDP, &[header.as_bytes(), &data].concat())
}

/// The same over IPv6.
pub fn inner6(len: usize) -> Vec<u8> {
    let data: Vec<u8> = (0..len).map(|n| n as u8 ^ 0x5a).collect();
    let mut header = udp::Header::new(7, 9, 8 + len as u16);
    let (source, destination) = (v6("fd00:1::7").octets(), v6("fd50::7").octets());
    header.fill_checksum(Sum::pseudo_ipv6(source, destination, protocol::UDP, 8 + len as u32), &data);
    ip6("fd00:1::7", "fd50::7", protocol::UDP, &[header.as_bytes(), &data].concat())
}

/// A packet with one hop less.
pub fn forwarded(packet: &[u8]) -> Vec<u8> {
    let mut packet = packet.to_vec();
    if packet[0] >> 4 == 6 {
        packet[7] -= 1;
    } else {
        ipv4::Header::mut_from_prefix(&mut packet).unwrap().0.decrement_ttl();
    }
    packet
}

/// A packet to the router from the tunnel's other end.
pub fn outer4(protocol: u8, payload: &[u8]) -> Vec<u8> {
    ip4(REMOTE4.octets(), LOCAL4.octets(), protocol, payload)
}

/// An IPv4 packet in GRE.
pub fn gre(inside: &[u8], key: Option<u32>) -> Vec<u8> {
    let builder = gre::Builder { key, ..gre::Builder::new(ethernet::IPV4) };
    let mut bytes = vec![0; builder.header_len()];
    bytes.extend(inside);
    builder.write(&mut bytes).unwrap();
    bytes
}

/// A UDP datagram without a checksum.
pub fn udp_around(source: u16, destination: u16, inside: &[u8]) -> Vec<u8> {
    let header = udp::Header::new(source, destination, 8 + inside.len() as u16);
    [header.as_bytes(), inside].concat()
}

/// An ICMP error from a router on the way to the sender of an outer packet: it is too long for this MTU.
pub fn too_big(quoted: &[u8], mtu: u32) -> Vec<u8> {
    if quoted[0] >> 4 == 6 {
        let mut message = vec![2, 0, 0, 0];
        message.extend(mtu.to_be_bytes());
        message.extend(&quoted[..200]);
        let (source, destination) = (v6("fd00:1::99"), LOCAL6);
        let pseudo =
            Sum::pseudo_ipv6(source.octets(), destination.octets(), protocol::ICMPV6, message.len() as u32);
        let sum = pseudo.add_bytes(&message).checksum();
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        return ip6("fd00:1::99", "fd00::1", protocol::ICMPV6, &message);
    }
    let mut message = vec![3, 4, 0, 0, 0, 0];
    message.extend((mtu as u16).to_be_bytes());
    message.extend(&quoted[..28]);
    let sum = underpass_packet::checksum::of(&message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    ip4([10, 1, 0, 99], LOCAL4.octets(), protocol::ICMP, &message)
}

/// The outer packet as if it had gone elsewhere.
pub fn misquoted(wire: &[u8]) -> Vec<u8> {
    let mut wire = wire.to_vec();
    let last = if wire[0] >> 4 == 6 { 39 } else { 19 };
    wire[last] ^= 0x40;
    wire
}

/// Makes a router the far one: its address is what is a neighbour to the near one.
pub fn make_far(lab: &mut Lab) {
    let local = lab.writer.add_action(Action::Local);
    lab.writer.insert4(lab.fib4, REMOTE4, 32, local);
    lab.writer.insert6(lab.fib6, REMOTE6, 128, local);
    lab.writer.remove4(lab.fib4, LOCAL4, 32);
    lab.writer.remove6(lab.fib6, LOCAL6, 128);
    let onward = lab.forward[1];
    lab.writer.insert4(lab.fib4, Ipv4Addr::new(10, 50, 0, 0), 16, onward);
    lab.writer.insert6(lab.fib6, v6("fd50::"), 16, onward);
}

/// Makes the lengths and the checksum of an outer header right again, as far as it has any, that what is behind it is
/// looked at.
pub fn mend(packet: &mut [u8]) {
    let len = packet.len();
    match packet.first().map(|first| first >> 4) {
        Some(4) => {
            if let Ok((header, _)) = ipv4::Header::mut_from_prefix(packet)
                && header.header_len() == 20
            {
                header.total_length = (len as u16).into();
                header.fill_checksum(&[]);
            }
        }
        Some(6) if len >= 40 => packet[4..6].copy_from_slice(&(len as u16 - 40).to_be_bytes()),
        _ => {}
    }
}
