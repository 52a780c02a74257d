//! Geneve: which device a datagram is for, what is in it, and whether the device takes it. Linux: `geneve_udp_encap_recv`,
//! `geneve_rx`.

use underpass_packet::geneve::{Header, parse};
use underpass_packet::{ethernet, gre};

use crate::drops::DropReason;
use crate::tables::{Ingress, InnerProtocol, StoredTunnel, TunnelKind, of_geneve};
use crate::tunnel::find::{Found, Outer};
use crate::worker::view::View;

/// The device that a datagram at this port is for, of which `payload` begins with the Geneve header.
pub(super) fn device_of<'a>(
    view: &View<'a>,
    outer: &Outer,
    ingress: Ingress,
    (port, payload): (u16, &[u8]),
) -> Result<&'a StoredTunnel, DropReason> {
    let header = header_of(payload)?;
    let kinds = match outer.source.is_ipv6() {
        true => [TunnelKind::Geneve6, TunnelKind::GeneveIp6],
        false => [TunnelKind::Geneve, TunnelKind::GeneveIp],
    };
    let found = of_geneve(header.vni, port, outer.source);
    let find = |kind| view.tables.tunnels().find(kind, found, ingress, view.guard);
    let found = kinds.into_iter().find_map(find);
    found.map(|(_, tunnel)| tunnel).ok_or(DropReason::TunnelUnknown)
}

/// The Geneve header that `payload` begins with.
pub(super) fn header_of(payload: &[u8]) -> Result<Header, DropReason> {
    parse(payload).map_err(|_| DropReason::GeneveMalformed)
}

/// What is in a datagram for a device, and whether the router has a use for it. `None`: the device does not carry it, or there
/// is less than its lengths say.
pub(super) fn inside_of(
    tunnel: &StoredTunnel,
    header: &Header,
    payload: &[u8],
) -> Option<(InnerProtocol, bool)> {
    let inside = payload.get(header.len..)?;
    match header.protocol {
        gre::TRANSPARENT_ETHERNET if inside.len() < ethernet::Header::LEN => None,
        // A device of packets takes it too.
        gre::TRANSPARENT_ETHERNET => Some((InnerProtocol::Frame, true)),
        _ if tunnel.kind.carries_frames() => None,
        ethernet::IPV4 => Some((InnerProtocol::Ip4, true)),
        ethernet::IPV6 => Some((InnerProtocol::Ip6, true)),
        ethernet::MPLS => Some((InnerProtocol::Mpls, true)),
        _ => Some((InnerProtocol::Frame, false)),
    }
}

/// The EtherType in the Geneve header at `at`.
pub(super) fn protocol_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(parse(bytes.get(at..)?).ok()?.protocol)
}

/// Whether a device takes what is for it; `bytes` begin with the outer header.
pub(super) fn check(
    view: &View<'_>,
    bytes: &[u8],
    tunnel: &StoredTunnel,
    outer: &Outer,
    found: &Found<'_>,
) -> Result<(), DropReason> {
    if header_of(bytes.get(outer.at..).unwrap_or_default())?.critical {
        // RFC 8926 section 3.5: "if an endpoint does not recognize an option with the 'C' bit set, it MUST drop the packet".
        return Err(DropReason::GeneveCritical);
    }
    let frame = bytes.get(found.at..).filter(|_| found.inside == InnerProtocol::Frame && found.taken);
    let from = frame.and_then(|frame| frame.get(6..)?.first_chunk::<6>());
    match (from, view.link(tunnel.link)) {
        (Some(source), Some(link)) if *source == link.mac => Err(DropReason::TunnelSource),
        _ => Ok(()),
    }
}
