//! Tunnels of any kind, and what comes out of them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use underpass_engine::tables::{
    FouPayload, FouPort, GreFields, LinkId, NextHopId, SourcePort, Tunnel, TunnelBound, TunnelKind,
    TunnelMode, TunnelRole, TunnelTos, TunnelUdp, Via,
};
use underpass_packet::checksum::Sum;
use underpass_packet::{IntoBytes, ethernet, gre, ipv4, protocol, udp};

use crate::random::Random;

/// How many there are.
pub const TUNNELS: usize = 12;
/// UDP ports that may be ports of foo-over-UDP.
pub const PORTS: [u16; 4] = [5555, 5556, 5557, 5558];

/// The router's address at a tunnel's end; some have it in common.
pub fn local(number: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, 1 + (number / 2) as u8)
}

fn remote(number: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 1, 1 + (number / 3) as u8)
}

/// The same of IPv6.
pub fn local6(number: usize) -> Ipv6Addr {
    Ipv6Addr::from_bits(0xfd00_0010 << 96 | (1 + number as u128 / 2))
}

fn remote6(number: usize) -> Ipv6Addr {
    Ipv6Addr::from_bits(0xfd00_0011 << 96 | (1 + number as u128 / 3))
}

/// Mostly nothing, else what is said.
fn rarely<T>(random: &mut Random, what: T) -> Option<T> {
    (random.below(12) == 0).then_some(what)
}

pub fn tunnel(number: usize, link: LinkId, via: Via, next_hop: NextHopId, random: &mut Random) -> Tunnel {
    let kind = match random.below(22) {
        0..3 => TunnelKind::Ipip,
        3..6 => TunnelKind::Sit,
        6..11 => TunnelKind::Gre,
        11 => TunnelKind::Gretap,
        12..17 => TunnelKind::Ip6tnl,
        17..21 => TunnelKind::Ip6gre,
        _ => TunnelKind::Ip6gretap,
    };
    let mut fields = || GreFields {
        key: [None, Some(7), Some(0xdead_beef)][random.below(3) as usize],
        checksum: random.below(12) == 0,
        sequence: random.below(12) == 0,
    };
    let (receive, transmit) = (fields(), fields());
    let unspecified = random.below(15) == 0;
    let ends: [IpAddr; 3] = if kind.is_over_ipv6() {
        [local6(number).into(), remote6(number).into(), Ipv6Addr::UNSPECIFIED.into()]
    } else {
        [local(number).into(), remote(number).into(), Ipv4Addr::UNSPECIFIED.into()]
    };
    let [local, remote, none] = ends;
    let remote = if unspecified { none } else { remote };
    let limit = (random.below(3) > 0).then(|| random.next() as u8);
    let flow_label = match random.below(4) {
        0 => None,
        1 => Some(0),
        _ => Some(random.next() as u32 & 0xf_ffff),
    };
    let source_port = match random.below(3) {
        0 => SourcePort::Fixed(random.next() as u16),
        1 => SourcePort::LOCAL,
        _ => SourcePort::Flow { first: 50_000, last: u16::MAX },
    };
    let outer = TunnelUdp {
        gue: random.below(2) == 0,
        source_port,
        destination_port: PORTS[random.below(4) as usize],
        checksum: random.below(3) == 0,
        remote_checksum: random.below(8) == 0,
    };
    let tos = random.next() as u8;
    let role = rarely(random, TunnelRole::External).or(rarely(random, TunnelRole::Route { given: None }));
    Tunnel {
        link,
        kind,
        mode: rarely(random, TunnelMode::Ip4).or(rarely(random, TunnelMode::Ip6)).unwrap_or(TunnelMode::Any),
        role: role.unwrap_or(TunnelRole::Device),
        local,
        remote,
        bound: rarely(random, TunnelBound::Link(LinkId(0)))
            .or(rarely(random, TunnelBound::Instance(via.lookup))),
        receive,
        transmit,
        ttl: (random.below(2) == 0).then(|| 1 + random.below(255) as u8),
        tos: if random.below(2) == 0 { TunnelTos::Fixed(tos) } else { TunnelTos::Inherit(tos) },
        flow_label,
        dont_fragment: random.below(2) == 0,
        ignore_df: random.below(6) == 0,
        encapsulation_limit: limit.filter(|_| kind.is_over_ipv6()),
        copies_dscp: random.below(15) == 0 && kind == TunnelKind::Ip6tnl,
        allows_local_remote: random.below(6) == 0,
        udp: (random.below(2) == 0).then_some(outer),
        vxlan: None,
        behind: None,
        geneve: None,
        sixrd: None,
        via: Via {
            address: remote,
            resolved: (random.below(10) > 0 && !unspecified).then_some(next_hop),
            ..via
        },
        underlay: via.lookup,
        off_route: false,
        by_any_link: false,
        source: local,
    }
}

pub fn fou_port(number: usize, lookup: Via, random: &mut Random) -> FouPort {
    let protocol = match random.below(4) {
        0 => protocol::IPV4,
        1 => protocol::IPV6,
        _ => protocol::GRE,
    };
    let ipv6 = random.below(3) == 0;
    let any = random.below(2) == 0;
    let local = match ipv6 {
        true if any => Ipv6Addr::UNSPECIFIED.into(),
        true => local6(number).into(),
        false if any => Ipv4Addr::UNSPECIFIED.into(),
        false => local(number).into(),
    };
    FouPort {
        port: PORTS[number],
        ipv6,
        local,
        peer: rarely(random, (remote(number).into(), 4444)),
        bound: rarely(random, TunnelBound::Link(LinkId(0)))
            .or(rarely(random, TunnelBound::Instance(lookup.lookup))),
        payload: if random.below(2) == 0 { FouPayload::Gue } else { FouPayload::Protocol(protocol) },
    }
}

/// What is before a packet of the EtherType that comes out of a tunnel, mostly.
pub fn around(
    tunnel: &Tunnel,
    (ethertype, packet): (u16, Vec<u8>),
    ports: &[FouPort],
    random: &mut Random,
) -> (u8, Vec<u8>) {
    let (mut protocol, mut bytes) = match (tunnel.kind.has_gre(), ethertype) {
        (true, _) => {
            let GreFields { key, checksum, sequence } = tunnel.receive;
            let key = if random.below(20) == 0 { Some(9) } else { key };
            let sequence = sequence.then_some(random.next() as u32);
            let builder = gre::Builder { key, checksum, sequence, ..gre::Builder::new(ethertype) };
            let mut bytes = vec![0; builder.header_len()];
            bytes.extend(packet);
            builder.write(&mut bytes).unwrap();
            (protocol::GRE, bytes)
        }
        (_, ethernet::IPV4) => (protocol::IPV4, packet),
        _ => (protocol::IPV6, packet),
    };
    let mut port = &ports[random.below(ports.len() as u64) as usize];
    for _ in 0..4 {
        if port.ipv6 != tunnel.kind.is_over_ipv6() {
            port = &ports[random.below(ports.len() as u64) as usize];
        }
    }
    if tunnel.udp.is_some() && random.below(10) > 0 {
        if port.payload == FouPayload::Gue {
            let mut head = [0, protocol, 0, 0];
            if random.below(20) == 0 {
                head[random.below(4) as usize] ^= 1 << random.below(8);
            }
            bytes.splice(0..0, head);
        }
        let source = if random.below(4) == 0 { 4444 } else { random.next() as u16 };
        let mut header = udp::Header::new(source, port.port, 8 + bytes.len() as u16);
        let pseudo = match (tunnel.remote, tunnel.local) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                Sum::pseudo_ipv4(from.octets(), to.octets(), protocol::UDP, header.length.get())
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                Sum::pseudo_ipv6(from.octets(), to.octets(), protocol::UDP, header.length.get().into())
            }
            _ => Sum::new(),
        };
        match random.below(15) {
            0 => header.checksum = (random.next() as u16).into(),
            // As it is where a device is to finish it.
            1 => header.checksum = pseudo.fold().into(),
            2..7 => header.checksum = pseudo.add_bytes(header.as_bytes()).add_bytes(&bytes).checksum().into(),
            _ => {}
        }
        bytes.splice(0..0, header.as_bytes().iter().copied());
        protocol = protocol::UDP;
    }
    (protocol, bytes)
}

/// Takes the identification of the outer IPv4 header out of a frame, which is its maker's choice, with its checksum. `None`:
/// there is no sound one.
pub fn without_identification(frame: &[u8]) -> Option<Vec<u8>> {
    if frame.get(12..14) == Some(&ethernet::IPV6.to_be_bytes()) {
        return Some(frame.to_vec());
    }
    let mut frame = frame.to_vec();
    let view = ipv4::ViewMut::parse(frame.get_mut(14..)?).ok()?;
    if !view.header.checksum_valid(&[]) {
        return None;
    }
    view.header.identification = 0.into();
    view.header.checksum = 0.into();
    Some(frame)
}
