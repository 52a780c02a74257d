//! What routers on the way of outer packets tell of it: its MTU, or that they do not arrive. Linux's `ipip_err`,
//! `ipgre_err`, `ip6gre_err` and the like.

use std::net::IpAddr;

use underpass_packet::checksum::Sum;
use underpass_packet::{FromBytes, ipv4, ipv6, protocol};

use super::super::View;
use super::super::icmp::ICMP_LEN;
use crate::tables::{PathMtu, StoredTunnel};

/// What is told.
#[derive(Clone, Copy)]
enum Told {
    Mtu(u32),
    Unreachable,
    HopLimit,
}

impl Told {
    /// Of an ICMP error, RFC 792 and RFC 1191.
    fn of4(message: &[u8]) -> Option<Self> {
        match message {
            [3, 4, _, _, _, _, high, low, ..] => Some(Self::Mtu(u16::from_be_bytes([*high, *low]).into())),
            // A source route that failed cannot be about such a packet.
            [3, 5, ..] => None,
            [3, ..] => Some(Self::Unreachable),
            [11, 0, ..] => Some(Self::HopLimit),
            _ => None,
        }
    }

    /// Of an ICMPv6 error, RFC 4443.
    fn of6(message: &[u8]) -> Option<Self> {
        match message {
            [2, 0, _, _, a, b, c, d, ..] => Some(Self::Mtu(u32::from_be_bytes([*a, *b, *c, *d]))),
            [1, ..] => Some(Self::Unreachable),
            [3, 0, ..] => Some(Self::HopLimit),
            _ => None,
        }
    }
}

/// Takes note of what an ICMP error to the router tells, if it is about a packet of a tunnel's.
pub(super) fn learn(view: &View<'_>, packet: &[u8]) {
    let learned = match packet {
        [0x40..=0x4f, _, _, _, _, _, _, _, _, protocol::ICMP, ..] => learn4(view, packet),
        [0x60..=0x6f, _, _, _, _, _, protocol::ICMPV6, ..] => learn6(view, packet),
        _ => None,
    };
    let Some((tunnel, remote, told)) = learned else { return };
    let exceptions = &view.tables.tunnels().exceptions;
    match told {
        Told::Mtu(mtu) => exceptions.learn(bits(remote), tunnel.config.via.lookup, mtu, view.now),
        // Of a tunnel to anywhere nobody else need be told, nor where the hop limit is the sender's own.
        Told::HopLimit if tunnel.config.ttl.is_none() => {}
        _ if tunnel.config.remote.is_unspecified() => {}
        _ => {
            tunnel.sequence.fail(view.now);
            exceptions.set_any();
        }
    }
}

fn learn4<'a>(view: &View<'a>, packet: &[u8]) -> Option<(&'a StoredTunnel, IpAddr, Told)> {
    let outer = ipv4::View::parse(packet).ok()?;
    let message = outer.payload;
    let told = Told::of4(message)?;
    if outer.header.is_fragment() || Sum::new().add_bytes(message).fold() != 0xffff {
        return None;
    }
    let quoted = message.get(ICMP_LEN..)?;
    let (header, _) = ipv4::Header::ref_from_prefix(quoted).ok()?;
    if header.version() != 4 || header.fragment_offset() != 0 {
        return None;
    }
    let upper = quoted.get(header.header_len()..)?;
    find(view, (header.source().into(), header.destination().into()), header.protocol, upper, told)
}

fn learn6<'a>(view: &View<'a>, packet: &[u8]) -> Option<(&'a StoredTunnel, IpAddr, Told)> {
    let outer = ipv6::View::parse(packet).ok()?;
    let message = outer.payload;
    let ipv6::Header { source, destination, .. } = *outer.header;
    let pseudo = Sum::pseudo_ipv6(source, destination, protocol::ICMPV6, message.len() as u32);
    let told = Told::of6(message)?;
    if pseudo.add_bytes(message).fold() != 0xffff {
        return None;
    }
    let (header, upper) = ipv6::Header::ref_from_prefix(message.get(ICMP_LEN..)?).ok()?;
    let (next, upper) = match (header.next_header, upper) {
        // The encapsulation limit.
        (protocol::DESTINATION_OPTIONS, [next, 0, _, _, _, _, _, _, upper @ ..]) => (*next, upper),
        (next, upper) => (next, upper),
    };
    find(view, (header.source().into(), header.destination().into()), next, upper, told)
}

/// The tunnel that has sent what is quoted.
fn find<'a>(
    view: &View<'a>,
    (local, remote): (IpAddr, IpAddr),
    protocol: u8,
    upper: &[u8],
    told: Told,
) -> Option<(&'a StoredTunnel, IpAddr, Told)> {
    let port =
        upper.get(2..4).and_then(|port| port.first_chunk()).map_or(0, |port| u16::from_be_bytes(*port));
    let tunnel = view.tables.tunnels().find_end((local, remote), protocol, port, view.guard)?;
    Some((tunnel, remote, told))
}

/// What was told of the way of an outer packet.
#[inline]
pub(super) fn of(view: &View<'_>, tunnel: &StoredTunnel, outer: &[u8]) -> Option<PathMtu> {
    let remote = match outer.first()? >> 4 {
        4 => u32::from_be_bytes(*outer.get(16..20)?.first_chunk()?).into(),
        _ => u128::from_be_bytes(*outer.get(24..40)?.first_chunk()?),
    };
    view.tables.tunnels().exceptions.of(remote, tunnel.config.via.lookup, view.now)
}

fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => address.to_bits(),
    }
}
