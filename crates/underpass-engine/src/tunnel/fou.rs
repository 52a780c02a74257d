//! Foo-over-UDP, GUE, `bareudp`, VXLAN and Geneve: what is inside a datagram for one of their ports. Linux: `fou_udp_recv`,
//! `gue_udp_recv`, `bareudp_udp_encap_recv`, `vxlan_rcv`, `geneve_udp_encap_recv`.

use std::net::IpAddr;

use underpass_packet::checksum::Sum;
use underpass_packet::{FromBytes, gue, protocol, udp};

use crate::buffer::Packet;
use crate::drops::DropReason;
use crate::offload::{Cut, is_udp_segment};
use crate::tables::{FouPayload, Ingress, InnerProtocol, LinkId, StoredTunnel, TunnelMode};
use crate::trace::{Event, Trace};
use crate::tunnel::decap::leave_tunnel;
use crate::tunnel::find::{Found, Outer};
use crate::tunnel::vxlan::learn;
use crate::tunnel::{geneve, vxlan};
use crate::worker::metadata::PacketMeta;
use crate::worker::path::Path;
use crate::worker::view::View;

/// Whether a packet stands for several datagrams for a port of foo-over-UDP.
pub(crate) fn stands_for_datagrams(
    view: &View<'_>,
    packet: &Packet,
    outer: &Outer,
    ingress: Ingress,
) -> bool {
    packet.offload().is_some_and(|offload| offload.start == outer.at && is_udp_segment(packet))
        && port_of(view, packet, outer, ingress).is_some()
}

/// Whether a packet is a datagram for a `bareudp`, a VXLAN or a Geneve device.
pub(crate) fn is_for_device(view: &View<'_>, packet: &Packet, outer: &Outer, ingress: Ingress) -> bool {
    outer.protocol == protocol::UDP
        && port_of(view, packet, outer, ingress).is_some_and(FouPayload::is_of_device)
}

/// What is in the datagrams of the port that a packet is for.
fn port_of(view: &View<'_>, packet: &Packet, outer: &Outer, ingress: Ingress) -> Option<FouPayload> {
    let (header, _) = udp::Header::ref_from_prefix(packet.bytes().get(outer.at..)?).ok()?;
    let (source, destination) =
        ((outer.source, header.source_port.get()), (outer.destination, header.destination_port.get()));
    view.tables.tunnels().find_port(source, destination, ingress, view.guard)
}

/// What has been taken off a datagram.
pub(crate) enum Taken<'a> {
    /// It is for none of the ports.
    Nothing,
    /// What is inside has another outer header, or a tunnel of its own.
    Headers,
    /// It is a `bareudp`'s, a VXLAN's or a Geneve device's.
    All(Found<'a>),
    /// It is for the `bareudp` or the Geneve device that this link is, which does not carry it.
    Refused(LinkId),
}

/// Takes the UDP header, and GUE's, off what is for a port of foo-over-UDP, a `bareudp`, a VXLAN or a Geneve device.
/// Of the latter `outer` is then said to end before their own header.
pub(crate) fn take_datagram<'a>(
    view: &View<'a>,
    packet: &mut Packet,
    outer: &mut Outer,
    ingress: Ingress,
) -> Result<Taken<'a>, DropReason> {
    let bytes = packet.bytes();
    let Some(Ok((header, _))) = bytes.get(outer.at..).map(udp::Header::ref_from_prefix) else {
        return Ok(Taken::Nothing);
    };
    let (source, destination) =
        ((outer.source, header.source_port.get()), (outer.destination, header.destination_port.get()));
    let Some(payload) = view.tables.tunnels().find_port(source, destination, ingress, view.guard) else {
        return Ok(Taken::Nothing);
    };
    let datagram = udp::View::parse(bytes.get(outer.at..).unwrap_or_default());
    let udp::View { header, payload: inside } = datagram.map_err(|_| DropReason::UdpMalformed)?;
    // What a kernel on this machine has left undone has crossed no wire.
    if header.has_checksum() && !packet.has_offload() {
        let len = udp::Header::LEN + inside.len();
        let pseudo = match (outer.source, outer.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                Sum::pseudo_ipv4(source.octets(), destination.octets(), protocol::UDP, len as u16)
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                Sum::pseudo_ipv6(source.octets(), destination.octets(), protocol::UDP, len as u32)
            }
            _ => return Err(DropReason::UdpMalformed),
        };
        if !header.checksum_valid(pseudo, inside) {
            return Err(DropReason::TunnelChecksum);
        }
    }
    let (at, len) = (outer.at + udp::Header::LEN, inside.len());
    // Linux: `udp_sk_bound_dev_eq`, by which what comes in by a VRF is for no socket outside of it.
    let is_elsewhere =
        |tunnel: &StoredTunnel| view.own_lookup(ingress.instance) != view.own_lookup(tunnel.config.underlay);
    let mut own_len = 0;
    let mut complete = None;
    let mut device = None;
    outer.protocol = match payload {
        FouPayload::Protocol(protocol) => protocol,
        FouPayload::Gue => {
            let gue = gue::View::parse(inside).map_err(|_| DropReason::GueMalformed)?;
            own_len = inside.len() - gue.payload.len();
            complete = gue.remote_checksum;
            match gue.content {
                gue::Content::Data(protocol) => protocol,
                gue::Content::Control(_) => return Err(DropReason::GueControl),
            }
        }
        FouPayload::Device(id) => {
            let tunnel = view.tables.tunnels().tunnel(id, view.guard).filter(|tunnel| tunnel.up);
            let tunnel = tunnel.ok_or(DropReason::LinkDown)?;
            if is_elsewhere(tunnel) {
                return Ok(Taken::Nothing);
            }
            let own = of_device(view, tunnel, outer, (header, inside))?;
            (own_len, device) = (own.0, Some((tunnel, own.1)));
            protocol::UDP
        }
        FouPayload::Vxlan | FouPayload::Geneve => {
            let found = match payload {
                FouPayload::Vxlan => vxlan::device_of(view, outer, ingress, (destination.1, inside)),
                _ => geneve::device_of(view, outer, ingress, (destination.1, inside)),
            };
            let tunnel = found?;
            if is_elsewhere(tunnel) {
                return Ok(Taken::Nothing);
            }
            let own = of_device(view, tunnel, outer, (header, inside))?;
            (own_len, device) = (own.0, Some((tunnel, own.1)));
            protocol::UDP
        }
    };
    packet.truncate(at + len);
    if packet.offload().is_some_and(|offload| offload.start < at + own_len) {
        // It was that of the datagram.
        packet.clear_offload();
    }
    outer.at = if device.is_some() { at } else { at + own_len };
    if let (Some(remote), Some(inside)) = (complete, packet.bytes_mut().get_mut(at + own_len..)) {
        remote.complete(inside).map_err(|_| DropReason::GueMalformed)?;
    }
    let Some((tunnel, inside)) = device else { return Ok(Taken::Headers) };
    Ok(match inside {
        Some((inside, taken)) => Taken::All(Found { tunnel, inside, at: at + own_len, taken }),
        None => Taken::Refused(tunnel.link),
    })
}

/// What is in a datagram for a device, of which `inside` begins with the device's own header: how long that is, and what follows
/// it. Linux: `bareudp_udp_encap_recv`, `vxlan_rcv`, `geneve_udp_encap_recv`.
fn of_device(
    view: &View<'_>,
    tunnel: &StoredTunnel,
    outer: &Outer,
    (header, inside): (&udp::Header, &[u8]),
) -> Result<(usize, Option<(InnerProtocol, bool)>), DropReason> {
    if tunnel.kind.is_vxlan() {
        vxlan::check(inside)?;
        let frame = inside.get(underpass_packet::vxlan::LEN..).unwrap_or_default();
        learn(view, tunnel, outer, frame, header.has_checksum())?;
        return Ok((underpass_packet::vxlan::LEN, Some((InnerProtocol::Frame, true))));
    }
    if tunnel.kind.is_geneve() {
        let own = geneve::header_of(inside)?;
        let takes_unsummed = tunnel.config.geneve.is_some_and(|geneve| geneve.takes_unsummed);
        if !header.has_checksum() && outer.source.is_ipv6() && !takes_unsummed {
            return Err(DropReason::TunnelChecksum);
        }
        return Ok((own.len, geneve::inside_of(tunnel, &own, inside)));
    }
    Ok((0, bare(tunnel.mode, inside.first().map(|first| first >> 4))))
}

/// What is in a datagram for a `bareudp`, by the version that it begins with; and whether the router has a use for it.
/// Linux: `bareudp_udp_encap_recv`.
fn bare(mode: TunnelMode, version: Option<u8>) -> Option<(InnerProtocol, bool)> {
    match (mode, version) {
        (TunnelMode::Ip4 | TunnelMode::Ip | TunnelMode::Any, Some(4)) => Some((InnerProtocol::Ip4, true)),
        (TunnelMode::Ip | TunnelMode::Any, Some(6)) | (TunnelMode::Ip6, _) => {
            Some((InnerProtocol::Ip6, true))
        }
        (TunnelMode::Mpls, _) => Some((InnerProtocol::Mpls, true)),
        (TunnelMode::Other, _) => Some((InnerProtocol::Frame, false)),
        (TunnelMode::Ip4 | TunnelMode::Ip | TunnelMode::Any, _) => None,
    }
}

/// The ports of a datagram of a `bareudp` or the like, of which the payload begins at `at`.
pub(crate) fn ports_of(packet: &Packet, tunnel: &StoredTunnel, at: usize) -> (u16, u16) {
    let udp = at.checked_sub(udp::Header::LEN).and_then(|at| packet.bytes().get(at..));
    match udp.map(udp::Header::ref_from_prefix) {
        Some(Ok((header, _))) if tunnel.kind.is_over_udp() => {
            (header.source_port.get(), header.destination_port.get())
        }
        _ => (0, 0),
    }
}

/// Takes the datagrams that a packet stands for, which a kernel has put together, out of their tunnels.
#[cold]
pub(crate) fn take_datagrams<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    meta: &mut PacketMeta,
    trace: &mut T,
) {
    trace.step(Event::Datagrams, &meta.packet);
    let Some(mut cut) = Cut::of_ip(&meta.packet) else {
        return path.drop_packet(meta, DropReason::UdpMalformed, trace);
    };
    // One of them counts as the packet itself.
    let mut place = 1;
    while let Some(part) = cut.next(&meta.packet, &mut path.pool) {
        path.totals.generated += 1 - std::mem::take(&mut place);
        let Ok(mut part) = part else { return path.drop_packet(meta, DropReason::NoBuffer, trace) };
        part.tag_as(&meta.packet);
        let at = part.headroom();
        let mut part = PacketMeta::new(part, at, meta.ingress, meta.extra);
        meta.link_layer().into_iter().for_each(|frame| part.put_link_layer(frame));
        let verdict = leave_tunnel(path, view, &mut part, trace);
        path.slow_path_alone(view, part, verdict, trace);
    }
}
