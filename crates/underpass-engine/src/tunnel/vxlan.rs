//! VXLAN: which device a datagram is for, which other end a frame is for, and what is learned of stations. Linux: `vxlan_rcv`,
//! `vxlan_snoop`, `vxlan_xmit`.

use underpass_packet::ethernet;
use underpass_packet::vxlan::parse;

use crate::buffer::Packet;
use crate::counters::Direction;
use crate::drops::DropReason;
use crate::l2::fdb::{STATIC, Station};
use crate::limiter::Nanos;
use crate::tables::{Behind, Ingress, LinkId, StoredTunnel, TunnelId, TunnelKind, of_vxlan};
use crate::trace::Trace;
use crate::tunnel::encap::encapsulate_to;
use crate::tunnel::find::Outer;
use crate::tunnel::inside::Inside;
use crate::worker::hook::copy;
use crate::worker::metadata::PacketMeta;
use crate::worker::path::Path;
use crate::worker::verdict::Verdict;
use crate::worker::view::View;

/// Nanoseconds of a tick of the stations' clock.
const TICK: Nanos = 1_000_000;

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

/// Looks whether a device takes a frame, and takes note of the station that it is from, behind the other end. Linux:
/// `vxlan_set_mac`, `vxlan_snoop`.
pub(super) fn learn(
    view: &View<'_>,
    tunnel: &StoredTunnel,
    outer: &Outer,
    frame: &[u8],
    has_checksum: bool,
) -> Result<(), DropReason> {
    let own = tunnel.config.vxlan.zip(tunnel.config.behind.as_ref());
    let Some((vxlan, behind)) = own.filter(|_| tunnel.up) else {
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
    if !behind.learns {
        return Ok(());
    }
    hears(behind, behind.ends.number(from), *source, view.now)
}

/// A frame from this station has come from the other end of this number, if that has one. Linux: `vxlan_snoop`.
#[inline(always)]
pub(super) fn hears(
    behind: &Behind,
    from: Option<u32>,
    source: [u8; 6],
    now: Nanos,
) -> Result<(), DropReason> {
    if source[0] & 1 != 0 || source == [0; 6] {
        return Err(DropReason::BridgeSource);
    }
    let station = Station::new(source, 0);
    let now = now / TICK;
    match behind.stations.find(station) {
        // What a request has said stays as it is.
        Some(entry) if entry.is(STATIC) && Some(entry.link.0) != from => Err(DropReason::BridgeSource),
        Some(entry) if entry.is(STATIC) || Some(entry.link.0) == from && entry.heard == now => Ok(()),
        _ => {
            if let Some(number) = from {
                behind.stations.hear(station, LinkId(number), now);
            }
            Ok(())
        }
    }
}

/// The number of the other end behind which the station is that a frame is for, if that is known. Linux: `vxlan_find_mac`.
#[inline(always)]
pub(super) fn end_of(behind: &Behind, frame: &[u8], now: Nanos) -> Option<u32> {
    let entry = behind.stations.find(Station::new(*frame.first_chunk()?, 0))?;
    let expired = behind.ageing != 0 && entry.has_expired(now / TICK, behind.ageing);
    (!expired).then_some(entry.link.0)
}

/// Puts a frame into a network: to the other end behind which its station is, or to all that are for such frames.
pub(crate) fn send_to_ends<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    meta: &mut PacketMeta,
    (id, inside): (TunnelId, Inside),
    (tunnel, behind): (&StoredTunnel, &Behind),
    trace: &mut T,
) -> Verdict {
    let known = end_of(behind, meta.packet.bytes(), view.now);
    if let Some(end) = known.and_then(|number| behind.ends.address(number)) {
        return encapsulate_to(path, view, meta, (id, inside), Some(end), trace);
    }
    let Some((first, others)) = behind.others.split_first() else {
        path.counters.add_link_drops(tunnel.link, Direction::Transmit, 1);
        return Verdict::drop(DropReason::TunnelRemote);
    };
    for end in others {
        path.totals.generated += 1;
        let Some(copy) = copy_of(path, &meta.packet) else { continue };
        let at = copy.headroom();
        let mut copy = PacketMeta::new(copy, at, meta.ingress, meta.extra);
        let verdict = encapsulate_to(path, view, &mut copy, (id, inside), Some(*end), trace);
        path.slow_path_alone(view, copy, verdict, trace);
    }
    encapsulate_to(path, view, meta, (id, inside), Some(*first), trace)
}

fn copy_of<const COUNT: bool>(path: &mut Path<COUNT>, packet: &Packet) -> Option<Packet> {
    let copy = copy(&mut path.pool, packet);
    if copy.is_none() {
        path.counters.add_drop(DropReason::NoBuffer, 1);
    }
    copy
}
