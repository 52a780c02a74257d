//! The way out: the link-layer header, and the queue of each port.

use underpass_packet::ethernet;

use crate::buffer::{Packet, PortId};
use crate::drops::DropReason;
use crate::mpls::error;
use crate::mpls::push::stack_of;
use crate::offload::Cut;
use crate::path::fragment::Fragments;
use crate::path::input::ethertype;
use crate::path::source::{finish_generated, limit_hops};
use crate::path::{ipv4, ipv6};
use crate::tables::{Action, ActionId, Link, LinkId, NextHop, NextHopId, Rewrite, TunnelId};
use crate::trace::{Event, Trace};
use crate::tunnel::behind::enter_behind;
use crate::worker::error::PacketError;
use crate::worker::headroom::move_for_headroom;
use crate::worker::metadata::{
    ExtraMeta, GENERATED, GROUP, LABELLED, NOT_FORWARDED, PacketMeta, RECORDS_ROUTE, RECORDS_TIMES, SWITCHED,
    TUNNELLED, UNFINISHED,
};
use crate::worker::path::Path;
use crate::worker::verdict::Verdict;
use crate::worker::view::View;
use crate::{offload, tunnel};

/// Why an IPv6 packet does not leave by a link. That it is too long its sender hears from there, as by Linux's `ip6_forward`,
/// which has sent it on by then.
#[cold]
#[inline(never)]
fn refused6(view: &View<'_>, meta: &mut PacketMeta, link: LinkId, verdict: Verdict) -> Verdict {
    if let Verdict::Refuse(error) = verdict
        && error.reason() == DropReason::TooBig
        && meta.extra.wrapping == 0
        && let Some(link) = view.link(link)
    {
        meta.extra.instance = link.lookup;
    }
    verdict
}

impl<const COUNT: bool> Path<COUNT> {
    /// Forwards to a next hop: hop limit, MTU, link layer.
    #[inline(always)]
    pub(crate) fn forward<T: Trace>(
        &mut self,
        view: &View<'_>,
        meta: &mut PacketMeta,
        id: NextHopId,
        trace: &mut T,
    ) -> Verdict {
        let Some(next_hop) = view.tables.next_hop(id, view.guard) else {
            return Verdict::drop(DropReason::NoRoute);
        };
        trace.step(Event::NextHop(id), &meta.packet);
        let fits = match self.leave(view, meta, next_hop) {
            Ok(fits) => fits,
            Err(verdict) => return verdict,
        };
        let rewrite = match &next_hop.rewrite {
            Some(rewrite) if next_hop.port != PortId::NONE => rewrite,
            _ if fits || next_hop.port != PortId::NONE => return Verdict::Unresolved(id),
            _ => return Verdict::Fragment(id),
        };
        if !fits {
            return Verdict::Fragment(id);
        }
        if meta.is(LABELLED) {
            self.transmit.count_labelled(next_hop.port, 1, meta.packet.len() as u64);
        }
        match self.put_link_layer(meta, rewrite, trace) {
            Ok(()) => Verdict::Send(u32::from(next_hop.port.0)),
            Err(error) => Verdict::Refuse(error),
        }
    }

    /// Puts the link-layer header before an IP packet, which is moved if it has no room for it.
    #[inline(always)]
    pub(crate) fn put_link_layer<T: Trace>(
        &mut self,
        meta: &mut PacketMeta,
        rewrite: &Rewrite,
        trace: &mut T,
    ) -> Result<(), PacketError> {
        let ethertype = ethertype(meta);
        if write_link_layer(&mut meta.packet, rewrite, ethertype).is_some() {
            return Ok(());
        }
        move_for_headroom(self, meta, usize::from(rewrite.len) + 2, trace)?;
        write_link_layer(&mut meta.packet, rewrite, ethertype)
            .ok_or(PacketError::silent(DropReason::NoHeadroom))
    }

    /// What is done to a packet before it leaves by `next_hop`, but for the link layer. `Ok(false)`: it has
    /// to be fragmented.
    #[inline(always)]
    pub(crate) fn leave(
        &mut self,
        view: &View<'_>,
        meta: &mut PacketMeta,
        next_hop: &NextHop,
    ) -> Result<bool, Verdict> {
        if meta.extra.flags != 0 {
            if meta.is(NOT_FORWARDED) {
                let group = meta.is(GROUP);
                return Err(Verdict::drop(if group {
                    DropReason::GroupFrame
                } else {
                    DropReason::ForwardingOff
                }));
            }
            if meta.is(UNFINISHED) {
                finish_generated(view, meta, next_hop.link);
            }
            if next_hop.hop_limit != 0 && meta.is(GENERATED) {
                limit_hops(meta, next_hop.hop_limit);
            }
            if meta.is(SWITCHED) {
                return crate::mpls::error::leave(meta, next_hop);
            }
            if meta.is(TUNNELLED) {
                return tunnel::leave(view, meta, next_hop);
            }
            if meta.is(RECORDS_ROUTE | RECORDS_TIMES) && !ipv6::is(&meta.packet) {
                let fits = ipv4::forward(view, meta, next_hop)?;
                ipv4::record_way_out(view, meta, next_hop.link);
                return Ok(fits);
            }
        }
        if ipv6::is(&meta.packet) {
            ipv6::forward(meta, next_hop).map_err(|verdict| refused6(view, meta, next_hop.link, verdict))
        } else {
            ipv4::forward(view, meta, next_hop)
        }
    }

    /// Cuts a packet that is too long, of IPv4 or the router's own, into fragments and sends them; labels on the packet stand
    /// before each.
    pub(crate) fn send_cut<T: Trace>(
        &mut self,
        view: &View<'_>,
        meta: &mut PacketMeta,
        exit: Exit<'_>,
        mtu: u32,
        trace: &mut T,
    ) {
        let mut stack = error::Stack::new();
        if meta.is(LABELLED) {
            let len = error::stack_len(&meta.packet);
            stack.extend(meta.packet.bytes().iter().copied().take(len));
            meta.packet.pull(len);
        }
        self.send_cut_below(view, meta, (exit, mtu), &stack, trace);
    }

    /// The same, each fragment with the labels of a push.
    pub(crate) fn send_labelled_fragments<T: Trace>(
        &mut self,
        view: &View<'_>,
        meta: &mut PacketMeta,
        id: ActionId,
        trace: &mut T,
    ) {
        let Some(Action::Push(push)) = view.tables.action(id, view.guard) else {
            return self.drop_packet(meta, DropReason::NoRoute, trace);
        };
        let Some(way) = Exit::of(view, push.next_hop) else {
            return self.drop_packet(meta, DropReason::NeighbourUnresolved, trace);
        };
        let Some(stack) = stack_of(view, push, meta.packet.bytes()) else {
            return self.drop_packet(meta, DropReason::NoHeadroom, trace);
        };
        self.send_cut_below(view, meta, way, &stack, trace);
    }

    /// The same, with these labels before each.
    fn send_cut_below<T: Trace>(
        &mut self,
        view: &View<'_>,
        meta: &mut PacketMeta,
        (exit, mtu): (Exit<'_>, u32),
        labels: &[u8],
        trace: &mut T,
    ) {
        let mtu = mtu.saturating_sub(labels.len() as u32);
        let of = (meta.ingress, meta.extra);
        // The fragments take the packet's place: one of them counts as the packet itself.
        let mut place = 1;
        if let Some(mut cut) = Cut::of_ip(&meta.packet) {
            while let Some(part) = cut.next(&meta.packet, &mut self.pool) {
                self.totals.generated += 1 - std::mem::take(&mut place);
                let Ok(mut part) = part else { return self.drop_packet(meta, DropReason::NoBuffer, trace) };
                part.tag_as(&meta.packet);
                let sent = self.send_fragments_of(view, &part, of, (exit, mtu, labels), trace);
                self.pool.give(part);
                if let Err(reason) = sent {
                    return self.drop_packet(meta, reason, trace);
                }
            }
            return;
        }
        offload::finish(&mut meta.packet);
        if let Err(reason) = self.send_fragments_of(view, &meta.packet, of, (exit, mtu, labels), trace) {
            self.drop_packet(meta, reason, trace);
        }
    }

    /// The fragments of at most `mtu` bytes of an IP packet.
    #[cold]
    pub(crate) fn cut<'a>(
        &mut self,
        packet: &'a Packet,
        mtu: usize,
        extra: &ExtraMeta,
    ) -> Result<Fragments<'a>, DropReason> {
        if !ipv6::is(packet) {
            return Fragments::of_ip4(packet, mtu);
        }
        // Fragments are told apart by it, those of other workers, too.
        self.identification = self.identification.wrapping_add(1);
        let identification = (self.number as u32) << 16 | u32::from(self.identification);
        Fragments::of_ip6(packet, mtu, (identification, extra.growth == 0))
    }

    /// Sends the fragments of `packet`. One that finds no buffer ends it, as in Linux: those before it have been sent.
    fn send_fragments_of<T: Trace>(
        &mut self,
        view: &View<'_>,
        packet: &Packet,
        (ingress, extra): (LinkId, ExtraMeta),
        (exit, mtu, labels): (Exit<'_>, u32, &[u8]),
        trace: &mut T,
    ) -> Result<(), DropReason> {
        let mut fragments = self.cut(packet, mtu as usize, &extra)?;
        trace.step(Event::Fragmented(fragments.count()), packet);
        let ethertype = match labels.is_empty() {
            true if ipv6::is(packet) => ethernet::IPV6,
            true => ethernet::IPV4,
            false => ethernet::MPLS,
        };
        while let Some(fragment) = fragments.next(&mut self.pool) {
            let mut fragment = fragment?;
            self.totals.generated += 1;
            let Ok(front) = fragment.push(labels.len()) else {
                self.drop(fragment, DropReason::NoHeadroom, trace);
                continue;
            };
            front[..labels.len()].copy_from_slice(labels);
            let (port, rewrite) = match exit {
                Exit::Port(port, rewrite) => (port, rewrite),
                Exit::Tunnel(tunnel, frame) => {
                    let at = fragment.headroom();
                    let mut part = PacketMeta::new(fragment, at, ingress, extra);
                    part.extra.flags |= if labels.is_empty() { 0 } else { LABELLED | SWITCHED };
                    let verdict = enter_behind(self, view, &mut part, (tunnel, frame), trace);
                    self.slow_path_alone(view, part, verdict, trace);
                    continue;
                }
            };
            if !labels.is_empty() {
                self.transmit.count_labelled(port, 1, fragment.len() as u64);
            }
            if write_link_layer(&mut fragment, rewrite, ethertype).is_none() {
                self.drop(fragment, DropReason::NoHeadroom, trace);
                continue;
            }
            trace.step(Event::Sent(port), &fragment);
            let len = fragment.len();
            if let Err(packet) = self.transmit.push(port, fragment, len) {
                self.drop(packet, DropReason::TransmitFull, trace);
            }
        }
        // One of them counts as the packet itself.
        self.totals.generated -= 1;
        Ok(())
    }
}

/// Where fragments go.
#[derive(Clone, Copy)]
pub(crate) enum Exit<'a> {
    /// To this port, with this link-layer header.
    Port(PortId, &'a Rewrite),
    /// Into this tunnel, with the header of a frame where it carries frames.
    Tunnel(TunnelId, Option<&'a Rewrite>),
}

impl<'a> Exit<'a> {
    /// That of a next hop, and its MTU. `None`: its neighbour is not known.
    pub(crate) fn of(view: &View<'a>, id: NextHopId) -> Option<(Self, u32)> {
        let next_hop = view.tables.next_hop(id, view.guard)?;
        let exit = if next_hop.port == PortId::NONE {
            let (tunnel, frame) = tunnel::behind(view, id)?;
            Self::Tunnel(tunnel, frame)
        } else {
            Self::Port(next_hop.port, next_hop.rewrite.as_ref()?)
        };
        Some((exit, next_hop.mtu))
    }
}

/// Sends an Ethernet frame as it is by a link, as End.DX2 does.
#[inline(always)]
pub(crate) fn frame(view: &View<'_>, packet: &Packet, id: LinkId) -> Verdict {
    if let Some(tunnel) = view.tables.tunnels().of_link(id) {
        let fits = view.link(id).is_some_and(|link| packet.fits(link.mtu as usize + ethernet::Header::LEN));
        return if fits { Verdict::FrameInto(tunnel) } else { Verdict::drop(DropReason::TooBig) };
    }
    match view.link(id) {
        Some(Link { up: true, port: Some(port), mtu, .. }) => {
            if packet.fits(*mtu as usize + ethernet::Header::LEN) {
                Verdict::Send(u32::from(port.0))
            } else {
                Verdict::drop(DropReason::TooBig)
            }
        }
        Some(Link { up: true, port: None, .. }) => Verdict::drop(DropReason::NoPort),
        _ => Verdict::drop(DropReason::LinkDown),
    }
}

/// Length of the rewrite of an Ethernet header without a VLAN tag.
pub(crate) const ETHERNET_REWRITE: u8 = 12;

/// Puts the link-layer header before a packet. `None`: no room.
#[inline(always)]
pub(crate) fn write_link_layer(packet: &mut Packet, rewrite: &Rewrite, ethertype: u16) -> Option<()> {
    if rewrite.len == ETHERNET_REWRITE {
        return write_ethernet(packet, rewrite.bytes.first_chunk()?, ethertype);
    }
    let len = usize::from(rewrite.len);
    let frame = packet.push(len + 2).ok()?;
    frame.get_mut(..len)?.copy_from_slice(rewrite.bytes.get(..len)?);
    frame.get_mut(len..len + 2)?.copy_from_slice(&ethertype.to_be_bytes());
    Some(())
}

/// The same for Ethernet's own two addresses.
#[inline(always)]
pub(crate) fn write_ethernet(packet: &mut Packet, addresses: &[u8; 12], ethertype: u16) -> Option<()> {
    let frame: &mut [u8; 14] = packet.push_header().ok()?;
    frame[..12].copy_from_slice(addresses);
    frame[12..].copy_from_slice(&ethertype.to_be_bytes());
    Some(())
}
