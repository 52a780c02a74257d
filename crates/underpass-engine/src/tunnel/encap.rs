//! Into a tunnel: Linux's `ip_tunnel_xmit`, `ipip6_tunnel_xmit` and `ip6_tnl_xmit`.

use std::net::IpAddr;

use underpass_packet::ethernet;

use crate::buffer::{Packet, PortId};
use crate::counters::{Count, Direction};
use crate::drops::DropReason;
use crate::tables::{
    ADDRESS, ActionId, CLOSED, EncapTemplate, FRAGMENT, GRE_SUM, HASH_LABEL, InnerProtocol, LABEL,
    LOCAL_PORTS, LONGEST_LINK_LAYER, LinkId, NO_ECN, NextHop, OVER_IPV6, PORT, PrecomputedEncap,
    PrecomputedKind, REMOTE_GRE_SUM, REMOTE_SUM, SEQUENCE, SLOW_ONLY, StoredNextHop, StoredTunnel, TOS, TTL,
    TunnelId, TunnelKind, TunnelRole, TunnelRoute, UDP_SUM, Via,
};
use crate::trace::{Event, Trace};
use crate::tunnel::behind::enframe;
use crate::tunnel::ends::send_to_ends;
use crate::tunnel::entropy::{flow_label, source_port};
use crate::tunnel::hook::{note_input, put_in};
use crate::tunnel::inside::{Inside, lacks_header};
use crate::tunnel::limit::has_extensions;
use crate::tunnel::outer::{
    FIXED4, FIXED6, GRE, GUE, UDP, copy_template, fill_gre, fill_udp, is_ip, push_outer, write_ipv4,
};
use crate::tunnel::outer_address::{is_from_remote, is_own_remote, remote_of, source_of};
use crate::tunnel::too_long::{comes_through, is_narrow};
use crate::tunnel::{ecn_outside, limit};
use crate::worker::env::{BurstContext, Env, Packets};
use crate::worker::error::IcmpError;
use crate::worker::family::Family;
use crate::worker::headroom::reserve_headroom;
use crate::worker::lookup::{BurstLookup, Looked};
use crate::worker::metadata::{Entered, LABELLED, OPAQUE, PacketMeta, SWITCHED, TUNNELLED, UNFINISHED};
use crate::worker::path::Path;
use crate::worker::rewrite::{ETHERNET, FastVerdict, addresses, cut, write_header};
use crate::worker::run::{Rewrite, rewrite_run};
use crate::worker::verdict::Verdict;
use crate::worker::view::View;

/// Lengths of outer headers that are precomputed, with that of the frame.
const NOTHING: usize = ETHERNET + FIXED4;
const OF_GRE: usize = NOTHING + GRE;
const OF_UDP: usize = NOTHING + UDP;
const OF_UDP_GUE_GRE: usize = OF_UDP + GUE + GRE;

/// How packets go into a tunnel with an outer header that is precomputed; with that of the frame it has `FRONT` bytes.
#[derive(Clone, Copy)]
struct EncapRun<'a, const FRONT: usize> {
    template: &'a PrecomputedEncap,
    next_hop: &'a StoredNextHop,
    /// Longest packet inside, and longest by the next hop alone.
    longest: usize,
    room: usize,
}

impl<'a, const FRONT: usize> EncapRun<'a, FRONT> {
    const KIND: Option<PrecomputedKind> = match FRONT {
        NOTHING => Some(PrecomputedKind::Nothing),
        OF_GRE => Some(PrecomputedKind::Gre),
        OF_UDP => Some(PrecomputedKind::Udp),
        OF_UDP_GUE_GRE => Some(PrecomputedKind::UdpGueGre),
        _ => None,
    };

    /// By a route with this MTU, if it is not 0. `None`: it is not so simple, or has another header.
    #[inline(always)]
    fn new(view: &View<'a>, template: &'a PrecomputedEncap, mtu: u32) -> Option<Self> {
        let next_hop = view.next_hop(Some(template.next_hop))?;
        if Some(template.kind) != Self::KIND || view.tables.tunnels().exceptions.any() {
            return None;
        }
        let room = (next_hop.plain_mtu as usize).checked_sub(FRONT - ETHERNET)?;
        let longest = room.min(template.longest.into());
        let longest = if mtu == 0 { longest } else { longest.min(mtu as usize) };
        Some(Self { template, next_hop, longest, room })
    }
}

impl<'v, 'a, A: Family, const FRONT: usize> Rewrite<'v, 'a, A> for EncapRun<'a, FRONT> {
    /// Packets, and their bytes.
    type Counts = (u64, u64);

    #[inline(always)]
    fn for_leaf(self, env: &Env<'v, 'a>, leaf: Option<u32>) -> Option<Self> {
        let view = env.view;
        let template = view.tables.enters(ActionId(leaf?), A::INSIDE, view.guard)?;
        if template.kind != self.template.kind || template.next_hop != self.template.next_hop {
            return Self::new(view, template, 0);
        }
        Some(Self { template, longest: self.room.min(template.longest.into()), ..self })
    }

    #[inline(always)]
    fn apply<const COUNT: bool>(
        self,
        path: &mut Path<COUNT>,
        _: &Env<'v, 'a>,
        (packet, len): (&mut Packet, usize),
        counts: &mut (u64, u64),
    ) -> Option<FastVerdict> {
        let identification = path.identification.wrapping_add(1);
        let out = encap_precomputed::<A, FRONT>(packet, len, self, identification)?;
        path.identification = identification;
        *counts = (counts.0 + 1, counts.1 + len as u64);
        Some(out)
    }

    #[inline(always)]
    fn count<const COUNT: bool>(self, path: &mut Path<COUNT>, counts: (u64, u64)) {
        path.counters.add_crossed(self.template.link, Direction::Transmit, counts.0, counts.1);
        path.totals.buffer_moves_avoided += counts.0;
    }
}

/// Puts packets in a row into tunnels, from the first on, which `route` leads into one. The one that follows the run.
#[inline(never)]
pub(crate) fn encap_run<const COUNT: bool, T: Trace, A: Family, S: BurstLookup>(
    path: &mut Path<COUNT>,
    context: &mut BurstContext<'_, '_, '_, T>,
    packets: &mut Packets<'_>,
    lookups: S,
    first: (Packet, Looked<A>),
    route: &TunnelRoute,
) -> Option<Packet> {
    let view = context.env.view;
    if view.tables.reads_input() {
        // What has gone in has come in by no link any more.
        path.enter_slow_path(context, first.0);
        return None;
    }
    let plain = route.next_hop.is_none();
    if let Some(template) =
        view.tables.tunnels().precomputed(route.tunnel, A::INSIDE, view.guard).filter(|_| plain)
    {
        if let Some(run) = EncapRun::<NOTHING>::new(view, template, route.mtu) {
            return rewrite_run(path, context, packets, lookups, first, run);
        }
        if let Some(run) = EncapRun::<OF_GRE>::new(view, template, route.mtu) {
            return rewrite_run(path, context, packets, lookups, first, run);
        }
        if let Some(run) = EncapRun::<OF_UDP>::new(view, template, route.mtu) {
            return rewrite_run(path, context, packets, lookups, first, run);
        }
        if let Some(run) = EncapRun::<OF_UDP_GUE_GRE>::new(view, template, route.mtu) {
            return rewrite_run(path, context, packets, lookups, first, run);
        }
    }
    let (packet, look) = first;
    encap_one::<_, _, A>(path, context, packet, look.len, route);
    None
}

/// Puts the IP packet of `len` bytes in a frame into the tunnel of a route.
#[inline(never)]
fn encap_one<const COUNT: bool, T: Trace, A: Family>(
    path: &mut Path<COUNT>,
    context: &mut BurstContext<'_, '_, '_, T>,
    mut packet: Packet,
    len: usize,
    route: &TunnelRoute,
) {
    let view = context.env.view;
    let identification = path.identification.wrapping_add(1);
    let plain = route.next_hop.is_none() && (route.mtu == 0 || len <= route.mtu as usize);
    if let Some(tunnel) = view.tables.tunnels().tunnel(route.tunnel, view.guard).filter(|_| plain) {
        let template = tunnel.template(A::INSIDE);
        if let Some(out) = encap_fast::<A>(view, &mut packet, len, (tunnel, template), identification) {
            path.identification = identification;
            path.counters.add_crossed(template.link, Direction::Transmit, 1, len as u64);
            path.totals.buffer_moves_avoided += 1;
            return path.send_frame(out, packet, context.trace);
        }
    }
    path.enter_slow_path(context, packet);
}

/// Puts an outer header that is precomputed before the packet of `len` bytes in a frame; with the frame's it has `FRONT`
/// bytes. `None`: it is not so simple, and as it was.
#[inline(always)]
fn encap_precomputed<A: Family, const FRONT: usize>(
    packet: &mut Packet,
    len: usize,
    EncapRun { template, next_hop, longest, .. }: EncapRun<'_, FRONT>,
    identification: u16,
) -> Option<FastVerdict> {
    let header = FRONT - ETHERNET;
    if len > longest || header > packet.headroom() {
        return None;
    }
    if packet.len() != ETHERNET + len {
        cut(packet, ETHERNET + len);
    }
    let inner = packet.bytes_mut().get_mut(ETHERNET..)?;
    let port = if template.by_flow { Some(source_port(inner, false, LOCAL_PORTS)) } else { None };
    let left = A::lower(inner)?;
    let [tos, flags, ttl] = A::words(inner.first_chunk()?, left);
    let [tos_taken, flags_taken, ttl_taken] = template.taken;
    let outer_len = header + len;
    let total = outer_len as u16;
    // `ecn_outside`, where it lies.
    let ecn = tos & 0x300;
    let own = [
        u32::from(total.swap_bytes()) << 16
            | u32::from(template.tos) << 8
            | tos & tos_taken
            | ecn & !(ecn >> 1),
        u32::from(identification.swap_bytes()) | flags & flags_taken,
        ttl & ttl_taken,
    ];
    // It ends with the old frame's header.
    let front = packet.push_front::<FRONT>(header).ok()?;
    let (head, outer) = front.split_first_chunk_mut::<ETHERNET>()?;
    write_header(head, &next_hop.mac, ethernet::IPV4);
    let prepared = template.header.get(template.header.len().checked_sub(header)?..)?;
    outer.copy_from_slice(prepared);
    write_ipv4(outer.first_chunk_mut()?, *prepared.first_chunk()?, template.sum.into(), own);
    if let Some(udp) = outer.get_mut(FIXED4..)?.first_chunk_mut::<UDP>() {
        if let Some(port) = port {
            udp[..2].copy_from_slice(&port.to_be_bytes());
        }
        udp[4..6].copy_from_slice(&(total - FIXED4 as u16).to_be_bytes());
    }
    Some((next_hop.port, (ETHERNET + outer_len) as u32))
}

/// Puts the outer header of a tunnel before the packet of `len` bytes in a frame. `None`: it is not so simple, and as it
/// was.
#[inline(always)]
fn encap_fast<A: Family>(
    view: &View<'_>,
    packet: &mut Packet,
    len: usize,
    (tunnel, template): (&StoredTunnel, &EncapTemplate),
    identification: u16,
) -> Option<FastVerdict> {
    let header = usize::from(template.len);
    let outer_len = header + len;
    let next_hop = view.next_hop(template.next_hop)?;
    let mac = addresses(next_hop, outer_len)?;
    let total = u16::try_from(outer_len).ok()?;
    let unfinished = packet.has_offload() && template.has(UDP_SUM | GRE_SUM | REMOTE_SUM | SEQUENCE);
    let fits = len <= template.mtu as usize && header <= packet.headroom();
    if template.has(CLOSED | SLOW_ONLY | ADDRESS | REMOTE_GRE_SUM)
        || unfinished
        || !fits
        || is_narrow(view, tunnel, outer_len)
    {
        return None;
    }
    // What the outer header takes over.
    let inner = packet.bytes_mut().get_mut(ETHERNET..ETHERNET + len)?;
    let (tos, ttl, stays, label);
    if A::IPV6 {
        let (fixed, rest) = inner.split_first_chunk_mut::<8>()?;
        let [a, b, c, d, _, _, next, hop_limit] = fixed;
        // An encapsulation limit may be behind it, and it may be from the other end.
        let refused = || has_extensions(*next) || is_from_remote(tunnel, rest);
        if *hop_limit <= 1 || template.has(OVER_IPV6) && refused() {
            return None;
        }
        *hop_limit -= 1;
        let word = u32::from_be_bytes([*a, *b, *c, *d]);
        (tos, ttl, stays, label) = ((word >> 20) as u8, *hop_limit, 0, word & 0x000f_ffff);
    } else {
        let [_, second, _, _, _, _, flags, _, own, ..] = *inner.first_chunk::<FIXED4>()?;
        crate::path::ipv4::lower_ttl(inner)?;
        (tos, ttl, stays, label) = (second, own - 1, flags & 0x40, 0);
    }
    let port = if template.has(PORT) { Some(source_port(inner, false, template.ports)) } else { None };
    let label = if template.has(HASH_LABEL) { flow_label(inner, false) } else { label };
    if packet.len() != ETHERNET + len {
        cut(packet, ETHERNET + len);
    }
    let bytes = packet.push(header).ok()?;
    copy_template(template, bytes, ETHERNET + header)?;
    let (head, bytes) = bytes.split_first_chunk_mut::<ETHERNET>()?;
    let class = if template.has(TOS) { tos } else { template.tos };
    if template.has(OVER_IPV6) {
        let class = if template.has(NO_ECN) { class } else { ecn_outside(class, tos) };
        write_header(head, mac, ethernet::IPV6);
        let outer = bytes.first_chunk_mut::<8>()?;
        let [_, own @ ..] = *outer.first_chunk::<4>()?;
        let [own_b, own_c, own_d] = own;
        let own = u32::from_be_bytes([0, own_b, own_c, own_d]);
        let label = if template.has(HASH_LABEL | LABEL) { label } else { own };
        let word = 6 << 28 | u32::from(class) << 20 | label;
        outer[..4].copy_from_slice(&word.to_be_bytes());
        outer[4..6].copy_from_slice(&(total - FIXED6 as u16).to_be_bytes());
        if template.has(TTL) {
            outer[7] = ttl;
        }
    } else {
        write_header(head, mac, ethernet::IPV4);
        let outer = bytes.first_chunk_mut::<12>()?;
        let tos = ecn_outside(class, tos);
        let stays = if template.has(FRAGMENT) { stays } else { 0 };
        let ttl = if template.has(TTL) { ttl } else { 0 };
        let own = [
            u32::from(total.swap_bytes()) << 16 | u32::from(tos) << 8,
            u32::from(identification.swap_bytes()) | u32::from(stays) << 16,
            ttl.into(),
        ];
        write_ipv4(outer, *outer, template.sum.into(), own);
    }
    if template.gre > 0 && template.has(GRE_SUM | SEQUENCE) {
        fill_gre(bytes, tunnel, (template.gre.into(), 1), None);
    }
    if template.udp > 0 {
        let ends = (tunnel.config.sends_from(), tunnel.config.remote);
        fill_udp(bytes, template, Some(ends).filter(|_| template.has(UDP_SUM)), port, None);
    }
    Some((next_hop.port, (ETHERNET + outer_len) as u32))
}

/// Forwards a packet by a route whose device is a tunnel.
pub(crate) fn enter_tunnel<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    meta: &mut PacketMeta,
    (id, route): (ActionId, &TunnelRoute),
    trace: &mut T,
) -> Verdict {
    let Some(tunnel) = view.tables.tunnels().tunnel(route.tunnel, view.guard) else {
        return Verdict::drop(DropReason::NoRoute);
    };
    if meta.is(UNFINISHED) {
        return Verdict::Finish(id);
    }
    if !tunnel.up {
        return Verdict::drop(DropReason::LinkDown);
    }
    // Before it is too long, as below.
    if is_inside(view, meta, tunnel) {
        return Verdict::drop(DropReason::EncapsulationLoop);
    }
    let EncapTemplate { mtu, link, .. } = *tunnel.template(InnerProtocol::Ip4);
    let mtu = route.mtu(mtu);
    let address = tunnel.config.remote;
    let hop_limit = route.hop_limit;
    let device = NextHop { link, port: PortId(0), mtu, locked: false, hop_limit, rewrite: None, address };
    match path.leave(view, meta, &device) {
        Ok(true) => {}
        Ok(false) => return Verdict::FragmentInto(id),
        Err(verdict) => return verdict,
    }
    if tunnel.kind.carries_frames() {
        let next_hop = route.next_hop.and_then(|id| Some((id, view.tables.next_hop(id, view.guard)?)));
        let Some((id, next_hop)) = next_hop else {
            return Verdict::drop(DropReason::NeighbourUnresolved);
        };
        let Some(rewrite) = &next_hop.rewrite else { return Verdict::Unresolved(id) };
        if let Err(error) = enframe(path, meta, rewrite, trace) {
            return Verdict::Refuse(error);
        }
    }
    put_in(path, view, meta, route.tunnel, trace)
}

/// Puts the outer header of a tunnel before what is to go in: a frame, if it carries frames.
pub(crate) fn encapsulate_in<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    meta: &mut PacketMeta,
    (id, inside): (TunnelId, Inside),
    trace: &mut T,
) -> Verdict {
    let tunnel = view.tables.tunnels().tunnel(id, view.guard).filter(|tunnel| tunnel.up);
    if let Some(tunnel) = tunnel.filter(|tunnel| lacks_parameters(tunnel)) {
        return refuse_without_parameters(path, tunnel);
    }
    match tunnel.and_then(|tunnel| Some((tunnel, tunnel.config.behind.as_ref()?))) {
        Some(behind) => send_to_ends(path, view, meta, (id, inside), behind, trace),
        None => encapsulate_to(path, view, meta, (id, inside), None, trace),
    }
}

/// The same to another end than the tunnel's own, if one is given.
pub(super) fn encapsulate_to<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    meta: &mut PacketMeta,
    (id, Inside { protocol: inside, at, heir }): (TunnelId, Inside),
    end: Option<IpAddr>,
    trace: &mut T,
) -> Verdict {
    let Some(tunnel) = view.tables.tunnels().tunnel(id, view.guard).filter(|tunnel| tunnel.up) else {
        return Verdict::drop(DropReason::LinkDown);
    };
    if !tunnel.takes(inside) {
        return refuse_out(path, tunnel, DropReason::TunnelPayload);
    }
    // Linux: `skb_vlan_inet_prepare`. GRE does not look behind tags: `pskb_inet_may_pull`.
    let of_gre = matches!(tunnel.kind, TunnelKind::Gretap | TunnelKind::Ip6gretap);
    let prepares = tunnel.kind.is_vxlan() || tunnel.kind.is_geneve();
    let looks = prepares || of_gre && heir.0 <= ethernet::Header::LEN;
    if looks && lacks_header(meta.packet.bytes(), heir) {
        if tunnel.kind.is_geneve() || tunnel.kind == TunnelKind::Ip6gretap {
            return refuse_out(path, tunnel, DropReason::TunnelPayload);
        }
        path.counters.add_link_drops(tunnel.link, Direction::Transmit, 1);
        return Verdict::drop(DropReason::TunnelPayload);
    }
    // Linux: "Local routing loop detected!", where the outer packet would leave by the tunnel itself.
    if is_inside(view, meta, tunnel) {
        // An error there, as what has gone in already does not leave.
        return Verdict::drop(DropReason::EncapsulationLoop);
    }
    // By metadata it goes into an outer packet without a limit: `ipxip6_tnl_xmit`, `ip6gre_xmit_ipv6`.
    let said = matches!(tunnel.config.role, TunnelRole::External | TunnelRole::Route { .. });
    let limits = matches!(tunnel.kind, TunnelKind::Ip6tnl | TunnelKind::Ip6gre | TunnelKind::Ip6gretap);
    let limit = match heir {
        (at, ethernet::IPV6) if limits && !said => {
            limit::of(meta.packet.bytes().get(at..).unwrap_or_default())
        }
        _ => None,
    };
    if let Some((at, 0)) = limit {
        return limit_reached(path, meta, tunnel, (heir.0, at));
    }
    // Linux: `ip6_tnl_addr_conflict`, which `ip6gre_xmit_ipv6` asks as well.
    let bytes = meta.packet.bytes();
    let six = heir.1 == ethernet::IPV6;
    // It looks at the end of the device, which has none where a route says it.
    let asks = tunnel.kind.is_over_ipv6() && !tunnel.kind.is_overlay();
    let own = asks && !matches!(tunnel.config.role, TunnelRole::Route { .. });
    if six && own && is_from_remote(tunnel, bytes.get(heir.0 + 8..).unwrap_or_default()) {
        return refuse_out(path, tunnel, DropReason::TunnelSource);
    }
    let option = if limit.is_some() { limit::LEN } else { 0 };
    let room = tunnel.overhead() + option + LONGEST_LINK_LAYER;
    if let Err(error) = meta.encapsulate_again().and_then(|()| reserve_headroom(path, meta, room, trace)) {
        return refuse_out(path, tunnel, error.reason());
    }
    let Some(remote) = end.or_else(|| remote_of(tunnel, meta.packet.bytes(), meta.extra.unrouted)) else {
        return refuse_without_end(path, view, meta, tunnel, (inside, at));
    };
    let (lookup, resolved) = match &tunnel.config.behind {
        Some(behind) if remote != tunnel.config.remote => (behind.lookup, None),
        _ => (tunnel.outer_lookup(inside), tunnel.template(inside).next_hop),
    };
    let via = Via { address: remote, lookup, resolved };
    let source = source_of(view, tunnel, &via, meta.packet.bytes());
    // Linux: `ip6_tnl_xmit_ctl`, by which a tunnel may not send without a source, or from an address that the router
    // does not have, or to one that it has.
    if is_own_remote(view, tunnel, remote) {
        return refuse_end(path, view, meta, tunnel, DropReason::TunnelRemote);
    }
    if tunnel.kind.is_over_ipv6() && source.is_unspecified() {
        return refuse_end(path, view, meta, tunnel, DropReason::TunnelSource);
    }
    let (heir, counted) = heir_and_bytes(meta, tunnel, heir);
    let frame = if via.resolved.is_none() { meta.link_layer() } else { None };
    let identification = path.identification.wrapping_add(1);
    // Each of the packets that it stands for has its own.
    path.identification = path.identification.wrapping_add(meta.packet.parts());
    let written = push_outer(&mut meta.packet, tunnel, (inside, at, heir), (source, remote), identification);
    if tunnel.sequence.has_failed()
        && let Ok((outer, _)) = written
        && comes_through(view, (&meta.packet, outer + at), (id, tunnel, inside), remote)
        && tunnel.sequence.notifies(view.now)
        // What a filter has sent here has no route, which Linux tells it by.
        && !meta.extra.unrouted
    {
        notify_unreachable(path, view, (meta, outer), tunnel.link, trace);
    }
    let lowered = written.and_then(|(outer, sequence)| match limit {
        Some((_, limit)) => Ok((outer + limit::set(&mut meta.packet, limit - 1)?, sequence)),
        None => Ok((outer, sequence)),
    });
    let (outer, sequence) = match lowered {
        Ok(written) => written,
        Err(reason) => return refuse_out(path, tunnel, reason),
    };
    meta.extra.sequence = sequence;
    meta.wrapped(outer, frame);
    // Linux: `skb_scrub_packet`.
    note_input(view, &mut meta.packet, None);
    // A frame that goes on between bridges has no sender to tell anything.
    if inside == InnerProtocol::Mpls || tunnel.kind.is_network() && meta.extra.unrouted {
        meta.extra.flags |= OPAQUE;
    }
    meta.extra.flags = meta.extra.flags & !(LABELLED | SWITCHED) | TUNNELLED;
    meta.extra.tunnel = Some(id);
    meta.extra.outer = outer as u16;
    let entered = Count { packets: 1, bytes: counted as u64, errors: 0 };
    path.counters.add_link(tunnel.link, Direction::Transmit, entered);
    meta.extra.entered = Some(Entered { link: tunnel.link, bytes: counted as u32, vrf: false, drops: false });
    trace.step(Event::Headend(tunnel.kind.name(), outer), &meta.packet);
    Verdict::via(meta, &via)
}

/// The packet that the outer header takes after, and how many bytes the tunnel counts. Linux: `ipip6_tunnel_xmit` and
/// `ip6_tnl_xmit` look at what goes in, `ip_tunnel_xmit` at what is inside. What counts is that, too, but in foo-over-UDP.
#[inline(always)]
fn heir_and_bytes(meta: &mut PacketMeta, tunnel: &StoredTunnel, heir: (usize, u16)) -> ((usize, u16), usize) {
    let len = meta.packet.len();
    let went_in = len.saturating_sub(heir.0);
    let whole = tunnel.kind.is_over_ipv6() || tunnel.kind == TunnelKind::Sit;
    let (heir, counted) = match std::mem::take(&mut meta.extra.inside) as usize {
        0 => (heir, went_in),
        within if whole => (heir, within),
        within => {
            let own = len.saturating_sub(within);
            let version = meta.packet.bytes().get(own).map_or(0, |first| first >> 4);
            ((own, if version == 6 { ethernet::IPV6 } else { ethernet::IPV4 }), within)
        }
    };
    let in_udp = tunnel.config.udp.is_some() && !tunnel.kind.is_over_udp();
    (heir, if in_udp { went_in } else { counted })
}

/// Refuses a packet whose encapsulation limit, at this byte behind the start of its header, is 0: RFC 2473 section 4.1.1.
#[cold]
fn limit_reached<const COUNT: bool>(
    path: &Path<COUNT>,
    meta: &mut PacketMeta,
    tunnel: &StoredTunnel,
    (header, at): (usize, usize),
) -> Verdict {
    count_refused(path, tunnel);
    meta.extra.argument = at as u32;
    if meta.extra.unrouted {
        // Linux does not know by which link the packet came in.
        meta.extra.flags |= TUNNELLED;
    }
    if header > ethernet::Header::LEN {
        // It is about the packet behind the tags of a frame.
        meta.wrapped(header - ethernet::Header::LEN, None);
        meta.extra.flags &= !OPAQUE;
    }
    Verdict::error(DropReason::TunnelLimit, IcmpError::Header)
}

/// Whether a tunnel is a network of which neither a route nor an action has said where a packet goes.
#[inline]
pub(super) fn lacks_parameters(tunnel: &StoredTunnel) -> bool {
    tunnel.kind.is_network() && tunnel.config.role == TunnelRole::External
}

/// Refuses a packet for such a network: to `geneve_xmit` it is dropped, and `vxlan_xmit` does not count it.
#[cold]
pub(super) fn refuse_without_parameters<const COUNT: bool>(
    path: &Path<COUNT>,
    tunnel: &StoredTunnel,
) -> Verdict {
    if tunnel.kind.is_geneve() {
        path.counters.add_link_drops(tunnel.link, Direction::Transmit, 1);
    }
    Verdict::drop(DropReason::TunnelRemote)
}

/// Refuses a packet for a tunnel that has no other end for it.
#[cold]
fn refuse_without_end<const COUNT: bool>(
    path: &Path<COUNT>,
    view: &View<'_>,
    meta: &mut PacketMeta,
    tunnel: &StoredTunnel,
    (inside, at): (InnerProtocol, usize),
) -> Verdict {
    let external = tunnel.config.role == TunnelRole::External;
    // Linux: with GRE and neither end, `ipgre_header` makes no header, and nothing gets as far as to be counted.
    let bare = matches!(tunnel.kind, TunnelKind::Gre | TunnelKind::Ip6gre) && !external;
    if external && tunnel.kind.has_gre() {
        // Linux: `gre_fb_xmit` and `ip6gre_tunnel_xmit`, for which that is no error.
        path.counters.add_link_drops(tunnel.link, Direction::Transmit, 1);
    } else if !bare || !tunnel.config.local.is_unspecified() {
        count_refused(path, tunnel);
    }
    // Linux: `ip6_tnl_xmit` tells of what has no other end, `ip_tunnel_xmit` of IPv6 packets alone, and both by its route.
    let six = meta.packet.bytes().get(at).is_some_and(|first| first >> 4 == 6);
    let tells = match tunnel.kind {
        TunnelKind::Gre | TunnelKind::Ip6gre | TunnelKind::Sit => false,
        kind => kind.is_over_ipv6() || six,
    };
    answered_by(view, meta, tunnel.link);
    let routed = !external && !meta.extra.unrouted;
    match tells && routed && is_ip(meta.packet.bytes(), inside) {
        true => Verdict::error(DropReason::TunnelRemote, IcmpError::AddressUnreachable),
        false => Verdict::drop(DropReason::TunnelRemote),
    }
}

/// Refuses a packet for a tunnel that may not send from its own end, or to the other.
#[cold]
fn refuse_end<const COUNT: bool>(
    path: &Path<COUNT>,
    view: &View<'_>,
    meta: &mut PacketMeta,
    tunnel: &StoredTunnel,
    reason: DropReason,
) -> Verdict {
    count_refused(path, tunnel);
    answered_by(view, meta, tunnel.link);
    match tunnel.kind {
        TunnelKind::Ip6tnl => Verdict::error(reason, IcmpError::AddressUnreachable),
        _ => Verdict::drop(reason),
    }
}

/// Whether a packet has just gone into the device of this tunnel, whatever a route or an action said of its outer header.
#[inline]
pub(super) fn is_inside(view: &View<'_>, meta: &PacketMeta, tunnel: &StoredTunnel) -> bool {
    let last = meta.extra.tunnel.and_then(|id| view.tables.tunnels().tunnel(id, view.guard));
    last.is_some_and(|last| last.link == tunnel.link)
}

/// Refuses what was to go into a tunnel, and counts it there.
pub(super) fn refuse_out<const COUNT: bool>(
    path: &Path<COUNT>,
    tunnel: &StoredTunnel,
    reason: DropReason,
) -> Verdict {
    count_refused(path, tunnel);
    Verdict::drop(reason)
}

pub(super) fn count_refused<const COUNT: bool>(path: &Path<COUNT>, tunnel: &StoredTunnel) {
    path.counters.add_link(tunnel.link, Direction::Transmit, Count { errors: 1, ..Count::default() });
}

/// Sends an error to the sender of a packet, which is behind the outer header now, as one before has not arrived; it goes on
/// itself. Linux: `dst_link_failure`.
#[cold]
fn notify_unreachable<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    (meta, outer): (&PacketMeta, usize),
    tunnel: LinkId,
    trace: &mut T,
) {
    let inner = meta.packet.bytes().get(outer..).unwrap_or_default();
    let Some(mut copy) = path.pool.take_for(inner.len()) else { return };
    copy.bytes_mut().copy_from_slice(inner);
    copy.trace_as(&meta.packet);
    copy.redirected_as(&meta.packet);
    path.totals.generated += 1;
    let at = copy.headroom();
    let mut copy = PacketMeta::new(copy, at, meta.ingress, meta.extra);
    answered_by(view, &mut copy, tunnel);
    let verdict = Verdict::error(DropReason::TunnelUnreachable, IcmpError::AddressUnreachable);
    path.slow_path_alone(view, copy, verdict, trace);
}

/// Errors about the way of a packet into a tunnel go by the tables of the tunnel's link.
#[cold]
fn answered_by(view: &View<'_>, meta: &mut PacketMeta, tunnel: LinkId) {
    if let Some(link) = view.link(tunnel) {
        meta.extra.instance = link.lookup;
    }
}
