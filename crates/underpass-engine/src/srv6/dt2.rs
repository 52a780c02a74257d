//! End.DT2U and End.DT2M: an Ethernet frame comes out to the bridge whose stations are the L2 table. RFC 8986 sections 4.11 and
//! 4.12.
//!
//! The table is that of the bridge of which an `srv6l2` is a port: there the source is learned (S04), and the frame goes on by the
//! entry of its destination, or to all ports (S05 and on); of End.DT2M but for those that the SID's argument names, by their numbers
//! at the bridge.

use underpass_packet::{FromBytes, ethernet, ipv6, protocol};

use crate::buffer::{Offload, Packet, Tag};
use crate::counters::{Count, Direction};
use crate::drops::DropReason;
use crate::hmac::Check;
use crate::srv6::decap::{frame_inside, inner};
use crate::tables::{ArgFe2, Endpoint, Excluded, InnerProtocol, Link, LinkId, StoredTunnel};
use crate::trace::Trace;
use crate::tunnel::come_out::{come_out, come_out_together};
use crate::worker::env::{BurstContext, Packets};
use crate::worker::error::PacketError;
use crate::worker::lookup::{BurstLookup, Looked};
use crate::worker::metadata::PacketMeta;
use crate::worker::path::{Burst, Path};
use crate::worker::rewrite::ETHERNET;
use crate::worker::verdict::Verdict;
use crate::worker::view::View;

/// The device of a SID, and its link, if its frames go on by a bridge of the router's.
fn device<'a>(view: &View<'a>, link: LinkId) -> Option<(&'a StoredTunnel, &'a Link)> {
    let tunnels = view.tables.tunnels();
    let tunnel = tunnels.tunnel(tunnels.of_link(link)?, view.guard)?;
    let device = view.link(link)?;
    let plain = tunnel.up
        && !tunnel.classifies_ingress
        && device.bridge_port.is_some()
        && device.vlans.is_none()
        && device.to_bridge.is_none();
    plain.then_some((tunnel, device))
}

/// Takes the frame out of a packet of `len` bytes in a frame. `None`: it is not so simple, and as it was.
#[inline(always)]
fn take_fast(packet: &mut Packet, len: usize) -> Option<()> {
    let (at, inside) = frame_inside(packet, len)?;
    let len = inside.len();
    if len < ETHERNET || packet.has_offload() {
        return None;
    }
    packet.narrow(ETHERNET + at, len);
    Some(())
}

/// Takes packets in a row that are for the same SID, from the first on, to the bridge of its device, together. The packet that
/// follows the run; `Err`: the device is no bridge's port, or not so simple.
#[inline(never)]
pub(super) fn frames_run<const COUNT: bool, T: Trace, S: BurstLookup>(
    path: &mut Path<COUNT>,
    context: &mut BurstContext<'_, '_, '_, T>,
    packets: &mut Packets<'_>,
    lookups: S,
    (mut packet, look): (Packet, Looked<u128>),
    (sid, link, all_but): (&Endpoint, LinkId, Option<Excluded>),
) -> Result<Option<Packet>, (Packet, Looked<u128>)> {
    let env = context.env;
    let Some(device) = device(env.view, link) else { return Err((packet, look)) };
    let mut frames = Burst::new();
    let (mut len, mut run) = (look.len, Count::default());
    let following = loop {
        if take_fast(&mut packet, len).is_some() {
            run.packets += 1;
            run.bytes += len as u64;
            frames.push(packet);
        } else {
            // Frames stay in their order.
            come_out_together(path, env.view, (device, all_but), &mut frames, context.trace);
            path.enter_slow_path(context, packet);
        }
        packet = match packets.next() {
            Some(packet) => packet,
            None => break None,
        };
        len = match lookups.again(env, &packet, packets, look) {
            Some(len) => len,
            None => break Some(packet),
        };
    };
    come_out_together(path, env.view, (device, all_but), &mut frames, context.trace);
    if let Some(counter) = sid.counter.filter(|_| COUNT) {
        path.counters.add(counter, run);
    }
    Ok(following)
}

/// Takes the outer headers off a frame, of whatever type or length field.
pub(super) fn end_dt2(packet: &mut Packet, check: &Check<'_>) -> Result<(), PacketError> {
    let at = inner(packet, check, protocol::ETHERNET)?;
    packet.pull(at);
    if packet.len() < ethernet::Header::LEN {
        return Err(DropReason::InnerMalformed.into());
    }
    // What the sender of the outer packet has left unfinished lies in the frame, or is gone with its headers.
    if packet.offload().is_some_and(|Offload { start, .. }| start < ethernet::Header::LEN) {
        packet.clear_offload();
    }
    Ok(())
}

/// The ports that the argument of a SID excludes, which is the destination of a packet.
pub(super) fn excluded(packet: &Packet, argument: Option<ArgFe2>) -> Excluded {
    let header = ipv6::Header::ref_from_prefix(packet.bytes()).ok();
    let read =
        |((header, _), argument): ((&ipv6::Header, &[u8]), ArgFe2)| argument.read(header.destination());
    header.zip(argument).map(read).unwrap_or_default()
}

/// The step in which a frame goes on that comes in by the device of a SID.
pub(crate) fn come_in<const COUNT: bool>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    meta: &mut PacketMeta,
    (link, all_but): (LinkId, Option<Excluded>),
) -> Verdict {
    let tunnels = view.tables.tunnels();
    let tunnel = tunnels.of_link(link).and_then(|id| tunnels.tunnel(id, view.guard));
    let Some(tunnel) = tunnel.filter(|tunnel| tunnel.up) else {
        return Verdict::drop(DropReason::LinkDown);
    };
    let bytes = meta.packet.len().saturating_sub(ethernet::Header::LEN) as u64;
    path.counters.add_link(link, Direction::Receive, Count { packets: 1, bytes, errors: 0 });
    meta.arrived(link);
    meta.extra.all_but = all_but;
    if !meta.look_up_again(tunnel.lookup) {
        return Verdict::drop(DropReason::Loop);
    }
    if tunnel.classifies_ingress {
        // What was known of the outer packet is not of the frame.
        meta.packet.set_tag(Tag { headless: 0, packet_type: 0, ..meta.packet.tag() });
        return Verdict::ClassifyIngress;
    }
    let forwards = (tunnel.lookup, tunnel.forward4, tunnel.forward6);
    come_out(path, view, meta, forwards, InnerProtocol::Frame)
}
