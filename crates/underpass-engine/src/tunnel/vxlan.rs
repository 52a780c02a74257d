//! VXLAN: which device a datagram is for, which other end a frame is for, and what is learned of stations. Linux: `vxlan_rcv`,
//! `vxlan_snoop`, `vxlan_xmit`.

use underpass_packet::vxlan::{LEN, parse};
use underpass_packet::{ethernet, protocol};

use crate::buffer::Packet;
use crate::counters::Direction;
use crate::drops::DropReason;
use crate::l2::fdb::{STATIC, Station};
use crate::limiter::Nanos;
use crate::tables::{FouPayload, Ingress, Link, LinkId, StoredTunnel, TunnelId, TunnelKind, Vxlan, of_vxlan};
use crate::trace::Trace;
use crate::tunnel::decap::OuterFast;
use crate::tunnel::encap::encapsulate_to;
use crate::tunnel::find::{Outer, is_own4};
use crate::tunnel::frames::come_out_together;
use crate::tunnel::inside::Inside;
use crate::tunnel::outer::UDP;
use crate::tunnel::{ECN, ecn_inside};
use crate::worker::env::{BurstContext, Packets};
use crate::worker::family::Family;
use crate::worker::fibs::Fibs;
use crate::worker::hook::copy;
use crate::worker::lookup::{BurstLookup, Looked};
use crate::worker::metadata::PacketMeta;
use crate::worker::path::{Burst, Path};
use crate::worker::rewrite::ETHERNET;
use crate::worker::verdict::Verdict;
use crate::worker::view::View;

/// Nanoseconds of a tick of the stations' clock.
const TICK: Nanos = 1_000_000;

/// What was found for the last datagram of a run.
#[derive(Clone, Copy)]
struct Device<'a> {
    vni: u32,
    port: u16,
    tunnel: &'a StoredTunnel,
    vxlan: &'a Vxlan,
    link: &'a Link,
}

/// The other end that the last datagram of a run came from: its number is known where stations are learned.
#[derive(Clone, Copy)]
struct Sender<A> {
    address: A,
    number: Option<u32>,
}

/// Datagrams in a row for the same address of the router's.
struct DecapRun<'a, A> {
    ingress: Ingress,
    device: Option<Device<'a>>,
    sender: Option<Sender<A>>,
}

impl<'a, A: Family> DecapRun<'a, A> {
    /// Takes the frame out of a packet of `len` bytes in a frame. `None`: it is not so simple, and as it was.
    #[inline(always)]
    fn take(
        &mut self,
        view: &View<'a>,
        fibs: &mut Fibs<'a>,
        (packet, len): (&mut Packet, usize),
    ) -> Option<Device<'a>> {
        if packet.has_offload() {
            return None;
        }
        let bytes = packet.bytes().get(ETHERNET..ETHERNET + len)?;
        let outer = OuterFast::<A>::read(bytes)?;
        if outer.protocol != protocol::UDP || outer.payload(view, bytes)? != FouPayload::Vxlan {
            return None;
        }
        let (port, has_checksum) = outer.datagram(bytes)?;
        let (vni, frame) = parse(bytes.get(outer.at + UDP..)?).ok()?;
        let device = match self.device {
            Some(device) if (device.vni, device.port) == (vni, port) => device,
            _ => self.find(view, vni, port)?,
        };
        let sender = match self.sender {
            Some(sender) if sender.address == outer.remote => sender,
            _ => self.sender(view, fibs, outer.remote, device.vxlan)?,
        };
        let [_, _, _, _, _, _, source @ .., high, low] = *frame.first_chunk::<ETHERNET>()?;
        if device.link.mac == source || !has_checksum && A::IPV6 && !device.vxlan.takes_unsummed {
            return None;
        }
        if outer.tos & ECN != 0 {
            let own = match (u16::from_be_bytes([high, low]), frame.get(ETHERNET..)?) {
                (ethernet::IPV4, [_, tos, ..]) => *tos,
                (ethernet::IPV6, [_, second, ..]) => second >> 4,
                _ => return None,
            };
            if ecn_inside(outer.tos, own)? != own & ECN {
                return None;
            }
        }
        if device.vxlan.learns {
            hears(device.vxlan, sender.number, source, view.now).ok()?;
        }
        packet.narrow(ETHERNET + outer.at + UDP + LEN, frame.len());
        Some(device)
    }

    /// The device of a network, if its frames go on by a bridge.
    #[inline(never)]
    fn find(&mut self, view: &View<'a>, vni: u32, port: u16) -> Option<Device<'a>> {
        let kind = if A::IPV6 { TunnelKind::Vxlan6 } else { TunnelKind::Vxlan };
        let (_, tunnel) = view.tables.tunnels().find(kind, of_vxlan(vni, port), self.ingress, view.guard)?;
        let (vxlan, link) = (tunnel.config.vxlan.as_ref()?, view.link(tunnel.link)?);
        let plain = tunnel.up
            && !tunnel.classifies_ingress
            && link.bridge_port.is_some()
            && link.to_bridge.is_none()
            && view.own_lookup(self.ingress.instance) == view.own_lookup(tunnel.config.underlay);
        plain.then_some(())?;
        self.device = Some(Device { vni, port, tunnel, vxlan, link });
        self.device
    }

    /// Who has sent a datagram, if that is not the router itself.
    #[inline(never)]
    fn sender(
        &mut self,
        view: &View<'a>,
        fibs: &mut Fibs<'a>,
        address: A,
        vxlan: &Vxlan,
    ) -> Option<Sender<A>> {
        let bits: u128 = address.into();
        if !A::IPV6 && is_own4(view, fibs, self.ingress, bits as u32) {
            return None;
        }
        self.sender = Some(Sender { address, number: vxlan.ends.number(address.address()) });
        self.sender
    }
}

/// Whether a packet of `len` bytes in a frame is a VXLAN's.
#[inline(always)]
pub(super) fn is_one<A: Family>(view: &View<'_>, packet: &Packet, len: usize) -> bool {
    let Some(bytes) = packet.bytes().get(ETHERNET..ETHERNET + len) else { return false };
    OuterFast::<A>::read(bytes).is_some_and(|outer| {
        outer.protocol == protocol::UDP && outer.payload(view, bytes) == Some(FouPayload::Vxlan)
    })
}

/// Takes the frames out of datagrams in a row, from the first on, to the bridges of their devices. The packet that follows the
/// run; `Err`: the first is none of these.
#[inline(never)]
pub(super) fn decap_run<const COUNT: bool, T: Trace, A: Family, S: BurstLookup>(
    path: &mut Path<COUNT>,
    context: &mut BurstContext<'_, '_, '_, T>,
    packets: &mut Packets<'_>,
    lookups: S,
    (mut packet, look): (Packet, Looked<A>),
) -> Result<Option<Packet>, Packet> {
    let env = context.env;
    let Link { lookup: instance, in_vrf, .. } = *env.link;
    let ingress = Ingress { link: env.ingress, instance, in_vrf };
    let mut run = DecapRun::<A> { ingress, device: None, sender: None };
    let Some(mut device) = run.take(env.view, context.fibs, (&mut packet, look.len)) else {
        return Err(packet);
    };
    let mut frames = Burst::new();
    frames.push(packet);
    let following = loop {
        let Some(mut next) = packets.next() else { break None };
        let Some(len) = lookups.again(env, &next, packets, look) else { break Some(next) };
        let Some(of) = run.take(env.view, context.fibs, (&mut next, len)) else { break Some(next) };
        if of.tunnel.link != device.tunnel.link {
            come_out_together(path, env.view, (device.tunnel, device.link), &mut frames, context.trace);
        }
        device = of;
        frames.push(next);
    };
    come_out_together(path, env.view, (device.tunnel, device.link), &mut frames, context.trace);
    Ok(following)
}

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
    let Some(vxlan) = tunnel.config.vxlan.as_ref().filter(|_| tunnel.up) else {
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
    if !vxlan.learns {
        return Ok(());
    }
    hears(vxlan, vxlan.ends.number(from), *source, view.now)
}

/// A frame from this station has come from the other end of this number, if that has one. Linux: `vxlan_snoop`.
#[inline(always)]
fn hears(vxlan: &Vxlan, from: Option<u32>, source: [u8; 6], now: Nanos) -> Result<(), DropReason> {
    if source[0] & 1 != 0 || source == [0; 6] {
        return Err(DropReason::BridgeSource);
    }
    let station = Station::new(source, 0);
    let now = now / TICK;
    match vxlan.stations.find(station) {
        // What a request has said stays as it is.
        Some(entry) if entry.is(STATIC) && Some(entry.link.0) != from => Err(DropReason::BridgeSource),
        Some(entry) if entry.is(STATIC) || Some(entry.link.0) == from && entry.heard == now => Ok(()),
        _ => {
            if let Some(number) = from {
                vxlan.stations.hear(station, LinkId(number), now);
            }
            Ok(())
        }
    }
}

/// The number of the other end behind which the station is that a frame is for, if that is known. Linux: `vxlan_find_mac`.
#[inline(always)]
pub(super) fn end_of(vxlan: &Vxlan, frame: &[u8], now: Nanos) -> Option<u32> {
    let entry = vxlan.stations.find(Station::new(*frame.first_chunk()?, 0))?;
    let expired = vxlan.ageing != 0 && entry.has_expired(now / TICK, vxlan.ageing);
    (!expired).then_some(entry.link.0)
}

/// Puts a frame into a VXLAN: to the other end behind which its station is, or to all that are for such frames.
pub(crate) fn send_to_ends<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    meta: &mut PacketMeta,
    (id, inside): (TunnelId, Inside),
    (tunnel, vxlan): (&StoredTunnel, &Vxlan),
    trace: &mut T,
) -> Verdict {
    let known = end_of(vxlan, meta.packet.bytes(), view.now);
    if let Some(end) = known.and_then(|number| vxlan.ends.address(number)) {
        return encapsulate_to(path, view, meta, (id, inside), Some(end), trace);
    }
    let Some((first, others)) = vxlan.others.split_first() else {
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
