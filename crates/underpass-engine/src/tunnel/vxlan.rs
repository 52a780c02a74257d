//! VXLAN: which device a datagram is for. Linux: `vxlan_rcv`.

use underpass_packet::ethernet;
use underpass_packet::vxlan::parse;

use crate::drops::DropReason;
use crate::tables::{Ingress, StoredTunnel, TunnelKind, of_vxlan};
use crate::tunnel::find::Outer;
use crate::tunnel::stations::hears;
use crate::worker::view::View;

/// The device that a datagram at this port is for, of which `payload` begins with the VXLAN header.
pub(super) fn device_of<'a>(
    view: &View<'a>,
    outer: &Outer,
    ingress: Ingress,
    (port, payload): (u16, &[u8]),
) -> Result<&'a StoredTunnel, DropReason> {
    let (vni, _) = parse(payload).map_err(|_| DropReason::VxlanMalformed)?;
    let kind = if outer.source.is_ipv6() { TunnelKind::Vxlan6 } else { TunnelKind::Vxlan };
    let found = view.tables.tunnels().find(kind, of_vxlan(vni, port), ingress, view.guard);
    found.map(|(_, tunnel)| tunnel).ok_or(DropReason::TunnelUnknown)
}

/// Whether a VXLAN header is one that is taken.
pub(super) fn check(payload: &[u8]) -> Result<(), DropReason> {
    parse(payload).map(drop).map_err(|_| DropReason::VxlanMalformed)
}

/// Looks whether a device takes a frame, and takes note of the station that it is from, behind the other end. Linux:
/// `vxlan_set_mac`, `vxlan_snoop`.
pub(super) fn learn(
    view: &View<'_>,
    tunnel: &StoredTunnel,
    outer: &Outer,
    frame: &[u8],
    has_checksum: bool,
) -> Result<(), DropReason> {
    let Some(vxlan) = tunnel.config.vxlan.filter(|_| tunnel.up) else {
        return Err(DropReason::LinkDown);
    };
    let from = outer.source;
    if !has_checksum && from.is_ipv6() && !vxlan.takes_unsummed {
        return Err(DropReason::TunnelChecksum);
    }
    let Some([_, _, _, _, _, _, source @ .., _, _]) = frame.first_chunk::<{ ethernet::Header::LEN }>() else {
        return Err(DropReason::EthernetTruncated);
    };
    if view.link(tunnel.link).is_some_and(|link| link.mac == *source) {
        return Err(DropReason::TunnelSource);
    }
    match tunnel.config.behind.as_ref().filter(|behind| behind.learns) {
        Some(behind) => hears(behind, behind.ends.number(from), *source, view.now),
        None => Ok(()),
    }
}
