//! Into a tunnel: Linux's `ip_tunnel_xmit`, `ipip6_tunnel_xmit` and `ip6_tnl_xmit`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::Ordering::Relaxed;

use arrayvec::ArrayVec;
use underpass_packet::checksum::Sum;
use underpass_packet::{FromBytes, ethernet, ipv4, ipv6, protocol};

use super::super::chain::Fibs;
use super::super::road::{LABELLED, OPAQUE, SWITCHED, TUNNELLED, UNFINISHED};
use super::super::rules::action_at;
use super::super::{IcmpError, Path, Refusal, Road, Step, View, fragment};
use super::behind::type_of;
use super::{dont_fragment, ecn_outside, entropy, limit, path_mtu};
use crate::buffer::{Offload, Packet, PortId};
use crate::counters::{Count, Direction};
use crate::drops::Drop;
use crate::offload;
use crate::tables::{
    Action, ActionId, DEFAULT_TTL, FRAGMENT, Form, HASH_LABEL, Inside, LABEL, LONGEST_LINK_LAYER, LinkId,
    NO_ECN, NextHop, NextHopId, PORT, REMOTE_CHECKSUM, StoredTunnel, TOS, TTL, TunnelId, TunnelKind,
    TunnelRole, TunnelRoute, Via,
};
use crate::trace::{Event, Trace};

/// Least MTU of an IPv6 link, RFC 8200 section 5.
pub(super) const LEAST_MTU6: u32 = 1280;
/// Least MTU of an IPv4 link, RFC 791.
const LEAST_MTU4: u32 = 68;

/// What an outer header takes over from the packet inside.
struct Inner {
    tos: u8,
    /// `None`: it is not IP.
    ttl: Option<u8>,
    dont_fragment: bool,
    /// Of IPv6.
    label: u32,
}

impl Inner {
    /// Of a packet behind a link layer that ends at `at`.
    #[inline(always)]
    fn read(bytes: &[u8], at: usize, inside: Inside) -> Self {
        let none = Self { tos: 0, ttl: None, dont_fragment: false, label: 0 };
        if !is_ip(bytes, inside) {
            return none;
        }
        match *bytes.get(at..).unwrap_or_default() {
            [0x40..=0x4f, tos, _, _, _, _, _, _, ttl, ..] => {
                let dont_fragment = dont_fragment(bytes.get(at..).unwrap_or_default());
                Self { tos, ttl: Some(ttl), dont_fragment, label: 0 }
            }
            [a @ 0x60..=0x6f, b, c, d, _, _, _, hop_limit, ..] => {
                let word = u32::from_be_bytes([a, b, c, d]);
                Self {
                    tos: (word >> 20) as u8,
                    ttl: Some(hop_limit),
                    dont_fragment: false,
                    label: word & 0xfffff,
                }
            }
            _ => none,
        }
    }
}

/// Whether what goes into a tunnel is an IP packet, or a frame with one.
#[inline(always)]
pub(super) fn is_ip(bytes: &[u8], inside: Inside) -> bool {
    match inside {
        Inside::Ip4 | Inside::Ip6 => true,
        Inside::Frame => matches!(type_of(bytes), ethernet::IPV4 | ethernet::IPV6),
        Inside::Mpls => false,
    }
}

/// What is inside, as the tunnel sees it, and where the packet in a frame is.
fn inside_of(road: &Road, tunnel: &StoredTunnel) -> (Inside, usize) {
    let bytes = road.packet.bytes();
    if tunnel.kind.carries_frames() {
        return (Inside::Frame, ethernet::Header::LEN);
    }
    if road.is(LABELLED) {
        return (Inside::Mpls, 0);
    }
    match bytes.first().map(|first| first >> 4) {
        Some(6) => (Inside::Ip6, 0),
        _ => (Inside::Ip4, 0),
    }
}

impl<const COUNT: bool> Path<COUNT> {
    /// Forwards a packet by a route whose device is a tunnel.
    pub(in super::super) fn enter_tunnel<T: Trace>(
        &mut self,
        view: &View<'_>,
        road: &mut Road,
        (id, route): (ActionId, &TunnelRoute),
        trace: &mut T,
    ) -> Step {
        let Some(tunnel) = view.tables.tunnels().tunnel(route.tunnel, view.guard) else {
            return Step::drop(Drop::NoRoute);
        };
        if road.is(UNFINISHED) {
            return Step::Finish(id);
        }
        if !tunnel.up {
            return Step::drop(Drop::LinkDown);
        }
        let Form { mtu, link, .. } = *tunnel.form(Inside::Ip4);
        let mtu = route.mtu(mtu);
        let device = NextHop { link, port: PortId(0), mtu, rewrite: None, address: tunnel.config.remote };
        match self.leave(view, road, &device) {
            Ok(true) => {}
            Ok(false) => return Step::FragmentInto(id),
            Err(step) => return step,
        }
        if tunnel.kind.carries_frames() {
            let next_hop = route.next_hop.and_then(|id| Some((id, view.tables.next_hop(id, view.guard)?)));
            let Some((id, next_hop)) = next_hop else { return Step::drop(Drop::NeighbourUnresolved) };
            let Some(rewrite) = &next_hop.rewrite else { return Step::Unresolved(id) };
            if let Err(refusal) = self.enframe(road, rewrite, trace) {
                return Step::Refuse(refusal);
            }
        }
        self.put_in(view, road, route.tunnel, trace)
    }

    /// Puts the outer header of a tunnel before what is to go in: a frame, if it carries frames.
    pub(in super::super) fn encapsulate_in<T: Trace>(
        &mut self,
        view: &View<'_>,
        road: &mut Road,
        id: TunnelId,
        trace: &mut T,
    ) -> Step {
        let Some(tunnel) = view.tables.tunnels().tunnel(id, view.guard).filter(|tunnel| tunnel.up) else {
            return Step::drop(Drop::LinkDown);
        };
        let (inside, at) = inside_of(road, tunnel);
        if !tunnel.takes(inside) {
            return self.refuse_out(tunnel, Drop::TunnelPayload);
        }
        // Linux: "Local routing loop detected!", where the outer packet would leave by the tunnel itself.
        if road.extra.tunnel == Some(id) {
            // An error there, as what has gone in already does not leave.
            return Step::drop(Drop::EncapsulationLoop);
        }
        let limit = match inside {
            Inside::Ip6 if matches!(tunnel.kind, TunnelKind::Ip6tnl | TunnelKind::Ip6gre) => {
                limit::of(road.packet.bytes())
            }
            _ => None,
        };
        if let Some((at, 0)) = limit {
            self.count_refused(tunnel);
            road.extra.argument = at as u32;
            return Step::error(Drop::TunnelLimit, IcmpError::Header);
        }
        if tunnel.sequence.tells(view.now) {
            self.tell_unreachable(view, road, tunnel.link, trace);
        }
        let option = if limit.is_some() { limit::LEN } else { 0 };
        let room = tunnel.overhead() + option + LONGEST_LINK_LAYER;
        if let Err(refusal) = road.encapsulate_again().and_then(|()| self.make_room(road, room, trace)) {
            return self.refuse_out(tunnel, refusal.reason());
        }
        let Some(remote) = remote_of(tunnel, road.packet.bytes()) else {
            self.count_refused(tunnel);
            // Linux: `ip6_tnl_xmit` tells of what has no other end, `ip_tunnel_xmit` of IPv6 packets alone.
            let six = road.packet.bytes().get(at).is_some_and(|first| first >> 4 == 6);
            let tells = tunnel.kind.is_over_ipv6() || six && tunnel.kind != TunnelKind::Sit;
            return match tells
                && tunnel.config.role != TunnelRole::External
                && is_ip(road.packet.bytes(), inside)
            {
                true => Step::error(Drop::TunnelRemote, IcmpError::AddressUnreachable),
                false => Step::drop(Drop::TunnelRemote),
            };
        };
        let resolved = tunnel.form(inside).next_hop;
        let via = Via { address: remote, lookup: tunnel.config.via.lookup, resolved };
        let source = source_of(view, tunnel, &via, road.packet.bytes());
        if tunnel.kind.is_over_ipv6() && source.is_unspecified() {
            // Linux: `ip6_tnl_xmit_ctl`, by which a tunnel may not send without a source, or from an address that the
            // router does not have.
            self.count_refused(tunnel);
            return match tunnel.kind {
                TunnelKind::Ip6tnl => Step::error(Drop::TunnelSource, IcmpError::AddressUnreachable),
                _ => Step::drop(Drop::TunnelSource),
            };
        }
        let len = road.packet.len();
        let frame = if via.resolved.is_none() { road.link_layer() } else { None };
        self.identification = self.identification.wrapping_add(1);
        let written =
            push_outer(&mut road.packet, tunnel, (inside, at), (source, remote), self.identification);
        let lowered = written.and_then(|(outer, sequence)| match limit {
            Some((_, limit)) => Ok((outer + limit::set(&mut road.packet, limit - 1)?, sequence)),
            None => Ok((outer, sequence)),
        });
        let (outer, sequence) = match lowered {
            Ok(written) => written,
            Err(reason) => return self.refuse_out(tunnel, reason),
        };
        road.extra.sequence = sequence;
        road.wrapped(outer, frame);
        if inside == Inside::Mpls {
            road.extra.flags |= OPAQUE;
        }
        road.extra.flags = road.extra.flags & !(LABELLED | SWITCHED) | TUNNELLED;
        road.extra.tunnel = Some(id);
        road.extra.outer = outer as u16;
        let entered = Count { packets: 1, bytes: (len - at) as u64, errors: 0 };
        self.counters.add_link(tunnel.link, Direction::Transmit, entered);
        road.extra.entered = Some((tunnel.link, (len - at) as u32));
        trace.step(Event::Headend(name(tunnel.kind), outer), &road.packet);
        Step::via(road, &via)
    }

    /// Refuses what was to go into a tunnel, and counts it there.
    fn refuse_out(&self, tunnel: &StoredTunnel, reason: Drop) -> Step {
        self.count_refused(tunnel);
        Step::drop(reason)
    }

    fn count_refused(&self, tunnel: &StoredTunnel) {
        self.counters.add_link(tunnel.link, Direction::Transmit, Count { errors: 1, ..Count::default() });
    }

    /// Tells the sender of a packet that one before it has not arrived; it goes on itself. Linux: `dst_link_failure`.
    #[cold]
    fn tell_unreachable<T: Trace>(&mut self, view: &View<'_>, road: &Road, tunnel: LinkId, trace: &mut T) {
        let Some(mut copy) = self.pool.take_for(road.packet.len()) else { return };
        copy.bytes_mut().copy_from_slice(road.packet.bytes());
        copy.trace_as(&road.packet);
        self.totals.generated += 1;
        let at = copy.headroom();
        let mut copy = Road::new(copy, at, road.ingress, road.extra);
        if let Some(link) = view.link(tunnel) {
            copy.extra.instance = link.lookup;
        }
        let step = Step::error(Drop::TunnelUnreachable, IcmpError::AddressUnreachable);
        self.carry_alone(view, copy, step, trace);
    }
}

/// The kind of a tunnel, as `ip` names it.
pub(super) const fn name(kind: TunnelKind) -> &'static str {
    match kind {
        TunnelKind::Ipip => "ipip",
        TunnelKind::Sit => "sit",
        TunnelKind::Gre => "gre",
        TunnelKind::Gretap => "gretap",
        TunnelKind::Ip6tnl => "ip6tnl",
        TunnelKind::Ip6gre => "ip6gre",
        TunnelKind::Ip6gretap => "ip6gretap",
        TunnelKind::Bareudp | TunnelKind::Bareudp6 => "bareudp",
    }
}

/// Where an outer packet goes: to the tunnel's remote address, or where the packet inside says.
fn remote_of(tunnel: &StoredTunnel, packet: &[u8]) -> Option<IpAddr> {
    let remote = tunnel.config.remote;
    if !remote.is_unspecified() {
        return Some(remote);
    }
    let destination = match packet.first()? >> 4 {
        // Only a route could say.
        _ if tunnel.config.role == TunnelRole::External => return None,
        _ if tunnel.kind.carries_frames() || tunnel.kind.is_bare_udp() => return None,
        4 => IpAddr::V4(ipv4::Header::ref_from_prefix(packet).ok()?.0.destination()),
        6 => IpAddr::V6(ipv6::Header::ref_from_prefix(packet).ok()?.0.destination()),
        _ => return None,
    };
    match (tunnel.kind.is_over_ipv6(), destination) {
        (false, IpAddr::V4(_)) | (true, IpAddr::V6(_)) => Some(destination),
        (false, IpAddr::V6(destination)) => {
            let mapped = tunnel.config.sixrd.and_then(|sixrd| sixrd.embedded(destination));
            let address =
                mapped.filter(|address| !address.is_unspecified()).or_else(|| compatible(destination))?;
            Some(address.into())
        }
        (true, IpAddr::V4(_)) => None,
    }
}

/// The address in an IPv4-compatible one, RFC 4291 section 2.5.5.1.
fn compatible(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let bits = address.to_bits();
    (bits >> 32 == 0 && bits > 1).then(|| Ipv4Addr::from_bits(bits as u32))
}

/// The source of an outer header: that of the tunnel, or an address of the link by which it leaves. Over IPv6 only the
/// former.
fn source_of(view: &View<'_>, tunnel: &StoredTunnel, via: &Via, packet: &[u8]) -> IpAddr {
    let chosen = tunnel.config.sends_from();
    if !chosen.is_unspecified() || tunnel.kind.is_over_ipv6() {
        return chosen;
    }
    let link_of = |id: Option<NextHopId>| Some(view.next_hop(id)?.link);
    let egress = link_of(via.resolved).or_else(|| match action_at(view, packet, via.lookup, via.address)? {
        Action::Forward(next_hop) => link_of(Some(*next_hop)),
        Action::OnLink(link) => Some(*link),
        _ => None,
    });
    let egress = egress.and_then(|link| view.link(link));
    let own = view.own_lookup(via.lookup);
    let instance = || view.links().filter(|link| view.own_lookup(link.lookup) == own);
    let source = egress.and_then(|link| link.source4).or_else(|| instance().find_map(|link| link.source4));
    source.unwrap_or(Ipv4Addr::UNSPECIFIED).into()
}

/// Puts the outer header before a packet, and fills in all that depends on it. How long it is, and its sequence number.
fn push_outer(
    packet: &mut Packet,
    tunnel: &StoredTunnel,
    (inside, at): (Inside, usize),
    (source, remote): (IpAddr, IpAddr),
    identification: u16,
) -> Result<(usize, Option<u32>), Drop> {
    let form = tunnel.form(inside);
    let inner = Inner::read(packet.bytes(), at, inside);
    let labelled = match inside {
        Inside::Frame => type_of(packet.bytes()) == ethernet::MPLS,
        inside => inside == Inside::Mpls,
    };
    let own = packet.bytes().get(at..).unwrap_or_default();
    let port = form.has(PORT).then(|| entropy::source_port(own, labelled, form.ports));
    let label = form
        .has(HASH_LABEL)
        .then(|| entropy::flow_label(own, labelled))
        .or(form.has(LABEL).then_some(inner.label));
    let remote_checksum = remote_checksum(packet, tunnel);
    let gap = if remote_checksum.is_some() { REMOTE_CHECKSUM } else { 0 };
    let len = form.header().len() + gap;
    let total = packet.len() + len;
    let bytes = packet.push(len).map_err(|_| Drop::NoHeadroom)?;
    // The option stands behind the first four bytes of GUE.
    let split = if gap > 0 { usize::from(form.gue) + 4 } else { form.header().len() };
    let (front, back) = form.header().split_at_checked(split).ok_or(Drop::NoHeadroom)?;
    bytes.get_mut(..split).ok_or(Drop::NoHeadroom)?.copy_from_slice(front);
    bytes.get_mut(split + gap..len).ok_or(Drop::NoHeadroom)?.copy_from_slice(back);
    if let (Some(option), Some(first)) = (remote_checksum, bytes.get_mut(split - 4..split)) {
        first[0] = (REMOTE_CHECKSUM / 4) as u8;
        first[3] = 1;
        bytes.get_mut(split..split + gap).ok_or(Drop::NoHeadroom)?.copy_from_slice(&option);
    }
    match (source, remote) {
        (IpAddr::V4(source), IpAddr::V4(remote)) => {
            let (header, _) = ipv4::Header::mut_from_prefix(bytes).map_err(|_| Drop::NoHeadroom)?;
            (header.source, header.destination) = (source.octets(), remote.octets());
            header.total_length = u16::try_from(total).map_err(|_| Drop::LengthOverflow)?.into();
            header.identification = identification.into();
            header.tos = ecn_outside(if form.has(TOS) { inner.tos } else { form.tos }, inner.tos);
            if form.has(TTL) {
                header.ttl = inner.ttl.unwrap_or(DEFAULT_TTL);
            }
            if form.has(FRAGMENT) && inner.dont_fragment {
                header.flags_offset = ipv4::DONT_FRAGMENT.into();
            }
            header.fill_checksum(&[]);
        }
        (IpAddr::V6(source), IpAddr::V6(remote)) => {
            let (header, _) = ipv6::Header::mut_from_prefix(bytes).map_err(|_| Drop::NoHeadroom)?;
            (header.source, header.destination) = (source.octets(), remote.octets());
            let payload = u16::try_from(total - ipv6::Header::LEN).map_err(|_| Drop::LengthOverflow)?;
            header.payload_length = payload.into();
            let class = if form.has(TOS) { inner.tos } else { form.tos };
            let class = if form.has(NO_ECN) { class } else { ecn_outside(class, inner.tos) };
            header.set_class_flow(class, label.unwrap_or_else(|| header.flow_label()));
            if form.has(TTL) {
                header.hop_limit = inner.ttl.unwrap_or(DEFAULT_TTL);
            }
        }
        _ => return Err(Drop::TunnelRemote),
    }
    // From the inside out, as checksums outside cover those inside.
    let unfinished = packet.offload();
    let mut sequence = None;
    if form.gre > 0 {
        sequence = fill_gre(packet.bytes_mut(), tunnel, usize::from(form.gre) + gap, unfinished);
    }
    if form.udp > 0 {
        fill_udp(packet.bytes_mut(), tunnel, form, (source, remote), port, unfinished.filter(|_| gap == 0));
    }
    if gap > 0 {
        packet.clear_offload();
    }
    Ok((len, sequence))
}

/// Private flags and positions of a GUE header that leaves a checksum of the packet inside to the receiver. `None`:
/// there is nothing left to be done, or the packet stands for several.
fn remote_checksum(packet: &Packet, tunnel: &StoredTunnel) -> Option<[u8; REMOTE_CHECKSUM]> {
    tunnel.config.udp.filter(|udp| udp.gue && udp.remote_checksum)?;
    let Offload { start, field, segment: None } = packet.offload()? else { return None };
    // From behind the GUE header on: that of GRE is behind it.
    let form = tunnel.form(if tunnel.kind.carries_frames() { Inside::Frame } else { Inside::Ip4 });
    let start = u16::try_from(start + form.header().len() - usize::from(form.gue) - 4).ok()?;
    let [a, b] = start.to_be_bytes();
    let [c, d] = start.checked_add(field)?.to_be_bytes();
    Some([0x80, 0, 0, 0, a, b, c, d])
}

/// The sum over bytes whose end, behind `at`, has a checksum yet to be finished: that end then adds up to the
/// complement of the pseudo header's sum, which stands in the field.
fn sum_of(bytes: &[u8], at: usize, unfinished: Option<Offload>) -> Sum {
    let own = bytes.get(at..).unwrap_or_default();
    let Some(Offload { start, field, .. }) = unfinished else { return Sum::new().add_bytes(own) };
    let (Some(before), Some(pseudo)) =
        (bytes.get(at..start), bytes.get(start + usize::from(field)..).and_then(|rest| rest.first_chunk()))
    else {
        return Sum::new().add_bytes(own);
    };
    Sum::new().add_bytes(before).add_u16(!u16::from_be_bytes(*pseudo))
}

/// Fills in sequence number and checksum of the GRE header at `at`. The number, if it has one.
#[inline(always)]
pub(in super::super) fn fill_gre(
    bytes: &mut [u8],
    tunnel: &StoredTunnel,
    at: usize,
    unfinished: Option<Offload>,
) -> Option<u32> {
    let fields = tunnel.config.transmit;
    let sequence = fields.sequence.then(|| tunnel.sequence.next.fetch_add(1, Relaxed));
    if let Some(sequence) = sequence {
        let place = at + 4 + 4 * (usize::from(fields.checksum) + usize::from(fields.key.is_some()));
        if let Some(place) = bytes.get_mut(place..place + 4) {
            place.copy_from_slice(&sequence.to_be_bytes());
        }
    }
    if fields.checksum {
        let checksum = sum_of(bytes, at, unfinished).checksum();
        if let Some(place) = bytes.get_mut(at + 4..at + 6) {
            place.copy_from_slice(&checksum.to_be_bytes());
        }
    }
    sequence
}

/// Fills in source port, length and checksum of the UDP header of a form.
#[inline(always)]
pub(in super::super) fn fill_udp(
    bytes: &mut [u8],
    tunnel: &StoredTunnel,
    form: &Form,
    (source, remote): (IpAddr, IpAddr),
    port: Option<u16>,
    unfinished: Option<Offload>,
) {
    let at = usize::from(form.udp);
    let len = bytes.len() - at;
    let Some([a, b, _, _, c, d, _, _]) = bytes.get_mut(at..).and_then(|udp| udp.first_chunk_mut::<8>())
    else {
        return;
    };
    if let Some(port) = port {
        [*a, *b] = port.to_be_bytes();
    }
    [*c, *d] = (len as u16).to_be_bytes();
    if !tunnel.config.udp.is_some_and(|udp| udp.checksum) {
        return;
    }
    let pseudo = match (source, remote) {
        (IpAddr::V4(source), IpAddr::V4(remote)) => {
            Sum::pseudo_ipv4(source.octets(), remote.octets(), protocol::UDP, len as u16)
        }
        (IpAddr::V6(source), IpAddr::V6(remote)) => {
            Sum::pseudo_ipv6(source.octets(), remote.octets(), protocol::UDP, len as u32)
        }
        _ => return,
    };
    let sum = pseudo.add_u16(sum_of(bytes, at, unfinished).fold()).checksum();
    if let Some(place) = bytes.get_mut(at + 6..at + 8) {
        // RFC 768: 0 is no checksum.
        place.copy_from_slice(&if sum == 0 { 0xffff } else { sum }.to_be_bytes());
    }
}

/// An outer packet before it goes to `next_hop`: whether it fits. `Ok(false)`: it has to be fragmented.
pub(in super::super) fn leave(view: &View<'_>, road: &mut Road, next_hop: &NextHop) -> Result<bool, Step> {
    let tunnel = road.extra.tunnel.and_then(|id| view.tables.tunnels().tunnel(id, view.guard));
    let Some(tunnel) = tunnel else { return Err(Step::drop(Drop::TooBig)) };
    let left = fits(view, road, tunnel, next_hop);
    if let (Err(_), Some(sequence)) = (left, road.extra.sequence.take()) {
        // It is not sent. Its number is the next one's, unless another packet has had one since.
        let _ = tunnel.sequence.next.compare_exchange(sequence.wrapping_add(1), sequence, Relaxed, Relaxed);
    }
    left
}

/// The same for a packet in this tunnel.
fn fits(view: &View<'_>, road: &mut Road, tunnel: &StoredTunnel, next_hop: &NextHop) -> Result<bool, Step> {
    let told_of = path_mtu::of(view, tunnel, road.packet.bytes());
    if told_of.is_some_and(|path| path.locked) {
        allow_fragments(&mut road.packet);
    }
    let mtu = told_of.map_or(next_hop.mtu, |path| path.mtu.min(next_hop.mtu));
    if road.packet.fits(mtu as usize) {
        return Ok(true);
    }
    let outer = usize::from(road.extra.outer);
    let at = outer + if tunnel.kind.carries_frames() { ethernet::Header::LEN } else { 0 };
    let bytes = road.packet.bytes();
    let inner = bytes.get(at..).unwrap_or_default();
    let version = if road.is(OPAQUE) { 0 } else { inner.first().map_or(0, |first| first >> 4) };
    // What Linux says is room: it counts an option of GUE whether it is there or not.
    let left = mtu.saturating_sub((tunnel.overhead().max(outer) + at - outer) as u32);
    let over6 = bytes.first().is_some_and(|first| first >> 4 == 6);
    let inner_len = road.packet.longest_part().saturating_sub(at) as u32;
    let inner_stays = dont_fragment(inner);
    if tunnel.kind.is_bare_udp() {
        // Linux: `skb_tunnel_check_pmtu`, by which the next IPv6 packet is too long for its route.
        let told_at = left.max(LEAST_MTU6);
        return match version {
            6 if inner_len > told_at => told(road, told_at),
            _ if over6 || dont_fragment(bytes) => Err(Step::drop(Drop::TooBig)),
            _ => Ok(false),
        };
    }
    if over6 {
        let left = left.max(if version == 6 { LEAST_MTU6 } else { LEAST_MTU4 });
        return if inner_len > left && matches!(version, 4 | 6) {
            told(road, left)
        } else {
            Err(Step::drop(Drop::TooBig))
        };
    }
    if !dont_fragment(bytes) {
        return Ok(false);
    }
    match version {
        6 if tunnel.kind == TunnelKind::Sit && left < LEAST_MTU6 => {
            if left < LEAST_MTU4 {
                return Err(Step::drop(Drop::TooBig));
            }
            if inner_len > LEAST_MTU6 {
                return told(road, LEAST_MTU6);
            }
            allow_fragments(&mut road.packet);
            Ok(false)
        }
        6 if left >= LEAST_MTU6 => told(road, left),
        4 if inner_stays => told(road, left),
        _ => Err(Step::drop(Drop::TooBig)),
    }
}

/// Makes an outer IPv4 header say that the packet may be fragmented.
fn allow_fragments(packet: &mut Packet) {
    if let Ok((header, _)) = ipv4::Header::mut_from_prefix(packet.bytes_mut())
        && header.version() == 4
        && header.dont_fragment()
    {
        header.flags_offset = 0.into();
        header.fill_checksum(&[]);
    }
}

/// Tells the sender of the packet inside how long it may be.
fn told(road: &mut Road, left: u32) -> Result<bool, Step> {
    // The error subtracts what the packet has grown by.
    road.extra.argument = left + u32::from(road.extra.growth);
    Err(Step::Refuse(Refusal::told(Drop::TooBig, IcmpError::TooBig)))
}

impl<const COUNT: bool> Path<COUNT> {
    /// Cuts an IPv4 packet that is too long for a tunnel, or for a route into a VRF, and sends the fragments into it.
    #[cold]
    pub(in super::super) fn send_fragments_into<T: Trace>(
        &mut self,
        view: &View<'_>,
        road: &mut Road,
        id: ActionId,
        trace: &mut T,
    ) {
        let mtu = match view.tables.action(id, view.guard) {
            Some(Action::Tunnel(route)) => view
                .tables
                .tunnels()
                .tunnel(route.tunnel, view.guard)
                .map(|tunnel| route.mtu(tunnel.form(Inside::Ip4).mtu)),
            Some(Action::Vrf(route)) if route.mtu != 0 => Some(route.mtu),
            Some(Action::Vrf(route)) => view.link(route.link).map(|link| link.mtu),
            _ => None,
        };
        let Some(mtu) = mtu else { return self.drop_on_road(road, Drop::NoRoute, trace) };
        offload::finish(&mut road.packet);
        let fragments = match fragment::fragment(&mut self.pool, &road.packet, mtu as usize) {
            Ok(fragments) => fragments,
            Err(reason) => return self.drop_on_road(road, reason, trace),
        };
        trace.step(Event::Fragmented(fragments.len()), &road.packet);
        // One of them counts as the packet itself.
        self.totals.generated += fragments.len().saturating_sub(1) as u64;
        let into_vrf = matches!(view.tables.action(id, view.guard), Some(Action::Vrf(_)));
        for fragment in fragments {
            let at = fragment.headroom();
            let mut part = Road::new(fragment, at, road.ingress, road.extra);
            if !into_vrf {
                // Its TTL has been lowered before it was cut.
                part.extra.flags |= SWITCHED;
            }
            self.carry_alone(view, part, Step::Act(id), trace);
        }
    }

    /// Carries a packet that is not of a burst to its verdict.
    pub(in super::super) fn carry_alone<T: Trace>(
        &mut self,
        view: &View<'_>,
        road: Road,
        step: Step,
        trace: &mut T,
    ) {
        let mut fibs = Fibs::new(view, road.extra.instance);
        let mut waiting = ArrayVec::new();
        self.carry(view, &mut fibs, road, step, &mut waiting, trace);
        while !waiting.is_empty() {
            self.look_up_together(view, &mut fibs, &mut waiting, trace);
        }
    }
}
