//! Tunnels of any kind, and what comes out of them.

use std::net::Ipv4Addr;

use underpass_engine::tables::{
    FouPayload, FouPort, GreFields, LinkId, NextHopId, SourcePort, Tunnel, TunnelBound, TunnelKind,
    TunnelMode, TunnelRole, TunnelTos, TunnelUdp, Via,
};
use underpass_packet::{IntoBytes, ethernet, gre, ipv4, protocol, udp};

use crate::random::Random;

/// How many there are.
pub const TUNNELS: usize = 8;
/// UDP ports that may be ports of foo-over-UDP.
pub const PORTS: [u16; 4] = [5555, 5556, 5557, 5558];

/// The router's address at a tunnel's end; some have it in common.
pub fn local(number: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, 1 + (number / 2) as u8)
}

fn remote(number: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 1, 1 + (number / 3) as u8)
}

/// Mostly nothing, else what is said.
fn rarely<T>(random: &mut Random, what: T) -> Option<T> {
    (random.below(12) == 0).then_some(what)
}

pub fn tunnel(number: usize, link: LinkId, via: Via, next_hop: NextHopId, random: &mut Random) -> Tunnel {
    let kind = match random.below(12) {
        0..3 => TunnelKind::Ipip,
        3..6 => TunnelKind::Sit,
        6..11 => TunnelKind::Gre,
        _ => TunnelKind::Gretap,
    };
    let mut fields = || GreFields {
        key: [None, Some(7), Some(0xdead_beef)][random.below(3) as usize],
        checksum: random.below(12) == 0,
        sequence: random.below(12) == 0,
    };
    let (receive, transmit) = (fields(), fields());
    let unspecified = random.below(15) == 0;
    let (local, remote) = (local(number), if unspecified { Ipv4Addr::UNSPECIFIED } else { remote(number) });
    let source_port = match random.below(3) {
        0 => SourcePort::Fixed(random.next() as u16),
        1 => SourcePort::LOCAL,
        _ => SourcePort::Flow { first: 50_000, last: u16::MAX },
    };
    let outer = TunnelUdp {
        gue: random.below(2) == 0,
        source_port,
        destination_port: PORTS[random.below(4) as usize],
        checksum: random.below(8) == 0,
        remote_checksum: random.below(8) == 0,
    };
    let tos = random.next() as u8;
    let role = rarely(random, TunnelRole::External).or(rarely(random, TunnelRole::Route { given: None }));
    Tunnel {
        link,
        kind,
        mode: rarely(random, TunnelMode::Ip4).or(rarely(random, TunnelMode::Ip6)).unwrap_or(TunnelMode::Any),
        role: role.unwrap_or(TunnelRole::Device),
        local: local.into(),
        remote: remote.into(),
        bound: rarely(random, TunnelBound::Link(LinkId(0)))
            .or(rarely(random, TunnelBound::Instance(via.lookup))),
        receive,
        transmit,
        ttl: (random.below(2) == 0).then(|| 1 + random.below(255) as u8),
        tos: if random.below(2) == 0 { TunnelTos::Fixed(tos) } else { TunnelTos::Inherit(tos) },
        flow_label: None,
        dont_fragment: random.below(2) == 0,
        ignore_df: random.below(6) == 0,
        encapsulation_limit: None,
        copies_dscp: false,
        allows_local_remote: random.below(6) == 0,
        udp: (random.below(2) == 0).then_some(outer),
        sixrd: None,
        via: Via {
            address: remote.into(),
            resolved: (random.below(10) > 0 && !unspecified).then_some(next_hop),
            ..via
        },
        source: local.into(),
    }
}

pub fn fou_port(number: usize, lookup: Via, random: &mut Random) -> FouPort {
    let protocol = match random.below(4) {
        0 => protocol::IPV4,
        1 => protocol::IPV6,
        _ => protocol::GRE,
    };
    FouPort {
        port: PORTS[number],
        ipv6: random.below(20) == 0,
        local: if random.below(2) == 0 { Ipv4Addr::UNSPECIFIED } else { local(number) }.into(),
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
    let port = &ports[random.below(ports.len() as u64) as usize];
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
        if random.below(15) == 0 {
            header.checksum = (random.next() as u16).into();
        }
        bytes.splice(0..0, header.as_bytes().iter().copied());
        protocol = protocol::UDP;
    }
    (protocol, bytes)
}

/// Takes the identification of the outer IPv4 header out of a frame, which is its maker's choice, with its checksum. `None`:
/// there is no sound one.
pub fn without_identification(frame: &[u8]) -> Option<Vec<u8>> {
    let mut frame = frame.to_vec();
    let view = ipv4::ViewMut::parse(frame.get_mut(14..)?).ok()?;
    if !view.header.checksum_valid(&[]) {
        return None;
    }
    view.header.identification = 0.into();
    view.header.checksum = 0.into();
    Some(frame)
}
