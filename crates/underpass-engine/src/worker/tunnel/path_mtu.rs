//! What routers on the way of outer packets tell of its MTU: Linux's `ipip_err`, `gre_err` and the like.

use std::net::IpAddr;

use underpass_packet::checksum::Sum;
use underpass_packet::{FromBytes, ipv4, ipv6, protocol};

use super::super::View;
use super::super::icmp::ICMP_LEN;
use crate::tables::{PathMtu, StoredTunnel};

/// Destination unreachable, fragmentation needed: RFC 1191.
const FRAGMENTATION_NEEDED: [u8; 2] = [3, 4];
/// RFC 4443 section 3.2.
const PACKET_TOO_BIG: [u8; 2] = [2, 0];

/// Takes note of the MTU that an ICMP error to the router tells, if it is about a packet of a tunnel's.
pub(super) fn learn(view: &View<'_>, packet: &[u8]) {
    let learned = match packet {
        [0x40..=0x4f, _, _, _, _, _, _, _, _, protocol::ICMP, ..] => learn4(view, packet),
        [0x60..=0x6f, _, _, _, _, _, protocol::ICMPV6, ..] => learn6(view, packet),
        _ => None,
    };
    if let Some((tunnel, remote, mtu)) = learned {
        let lookup = tunnel.config.via.lookup;
        view.tables.tunnels().exceptions.learn(bits(remote), lookup, mtu, view.now);
    }
}

fn learn4<'a>(view: &View<'a>, packet: &[u8]) -> Option<(&'a StoredTunnel, IpAddr, u32)> {
    let outer = ipv4::View::parse(packet).ok()?;
    let message = outer.payload;
    if outer.header.is_fragment()
        || message.get(..2)? != FRAGMENTATION_NEEDED
        || Sum::new().add_bytes(message).fold() != 0xffff
    {
        return None;
    }
    let mtu = u32::from(u16::from_be_bytes(*message.get(6..8)?.first_chunk()?));
    let quoted = message.get(ICMP_LEN..)?;
    let (header, _) = ipv4::Header::ref_from_prefix(quoted).ok()?;
    if header.version() != 4 || header.fragment_offset() != 0 {
        return None;
    }
    let upper = quoted.get(header.header_len()..)?;
    find(view, (header.source().into(), header.destination().into()), header.protocol, upper, mtu)
}

fn learn6<'a>(view: &View<'a>, packet: &[u8]) -> Option<(&'a StoredTunnel, IpAddr, u32)> {
    let outer = ipv6::View::parse(packet).ok()?;
    let message = outer.payload;
    let ipv6::Header { source, destination, .. } = *outer.header;
    let pseudo = Sum::pseudo_ipv6(source, destination, protocol::ICMPV6, message.len() as u32);
    if message.get(..2)? != PACKET_TOO_BIG || pseudo.add_bytes(message).fold() != 0xffff {
        return None;
    }
    let mtu = u32::from_be_bytes(*message.get(4..8)?.first_chunk()?);
    let (header, upper) = ipv6::Header::ref_from_prefix(message.get(ICMP_LEN..)?).ok()?;
    let (next, upper) = match (header.next_header, upper) {
        // The encapsulation limit.
        (protocol::DESTINATION_OPTIONS, [next, 0, _, _, _, _, _, _, upper @ ..]) => (*next, upper),
        (next, upper) => (next, upper),
    };
    find(view, (header.source().into(), header.destination().into()), next, upper, mtu)
}

/// The tunnel that has sent what is quoted.
fn find<'a>(
    view: &View<'a>,
    (local, remote): (IpAddr, IpAddr),
    protocol: u8,
    upper: &[u8],
    mtu: u32,
) -> Option<(&'a StoredTunnel, IpAddr, u32)> {
    let port =
        upper.get(2..4).and_then(|port| port.first_chunk()).map_or(0, |port| u16::from_be_bytes(*port));
    let tunnel = view.tables.tunnels().find_end((local, remote), protocol, port, view.guard)?;
    Some((tunnel, remote, mtu))
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
