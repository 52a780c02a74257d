//! Traffic control at tunnels: what has come out of one is classified before it is looked up, what is to go into
//! one before it gets its outer header, and may wait there. Linux: `sch_handle_ingress` behind `gro_cells_receive`, and
//! `__dev_queue_xmit` of the tunnel's device.
//!
//! ```text
//! … outer header off → ingress hook → [qdisc of the hook] → look-up …
//! … route by the tunnel → egress hook → [root qdisc] → outer header → look-up …
//! ```
//!
//! Packets have no Ethernet header there, unless the tunnel carries frames: their EtherType goes along with them
//! (`Tag::headless`) while they are classified or wait. A tunnel with a hook or a qdisc is off the fast path
//! (`SLOW_ONLY`, `particular`), so that one without pays nothing.

use std::net::{IpAddr, Ipv4Addr};

use underpass_packet::ethernet;

use crate::buffer::{NO_LINK, NO_TUNNEL_KEY, Packet, Tag};
use crate::counters::Direction;
use crate::drops::DropReason;
use crate::l2::bridge::networks::enter_network;
use crate::path::input::ethertype;
use crate::qos::qdisc::{Enqueued, Origin};
use crate::qos::{Nest, OuterKey, Place};
use crate::tables::{
    Action, InnerProtocol, Link, LinkId, StoredTunnel, Tunnel, TunnelId, TunnelKind, TunnelRole, TunnelTos,
};
use crate::trace::Trace;
use crate::tunnel::behind::type_of;
use crate::tunnel::come_out::come_out;
use crate::tunnel::encap::{
    count_refused, encapsulate_in, is_inside, lacks_parameters, refuse_out, refuse_without_parameters,
};
use crate::tunnel::find::inside_of;
use crate::tunnel::inside::{Inside, lacks_header};
use crate::tunnel::outer::is_ip;
use crate::tunnel::outer_address::lacks_ends;
use crate::tunnel::too_long;
use crate::worker::hook::{Classified, apply_type, classify_at_hook, key_of, place_of};
use crate::worker::metadata::{
    BROADCAST, ExtraMeta, GENERATED, GROUP, LABELLED, NOT_FORWARDED, OPAQUE, PacketMeta,
};
use crate::worker::path::Path;
use crate::worker::shape::wait_in_qdisc;
use crate::worker::verdict::Verdict;
use crate::worker::view::View;

/// What [`Tag::nested`] has of encapsulations, and of redirections.
const ENCAPSULATIONS: u8 = 0x0f;
const REDIRECTS: u8 = 0xf0;
/// [`ENCAPSULATIONS`] of one that has not been encapsulated, and that a filter has sent into its tunnel before a route could.
const UNROUTED: u8 = 0x0f;

/// The link that a packet has come in by, and its interface index; and what has redirected the packet.
pub(crate) type Past = (Option<(LinkId, u32)>, Nest);

/// The step in which a packet goes into a tunnel.
pub(crate) fn put_in<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    meta: &mut PacketMeta,
    id: TunnelId,
    trace: &mut T,
) -> Verdict {
    let Some(tunnel) = view.tables.tunnels().tunnel(id, view.guard) else {
        return Verdict::drop(DropReason::LinkDown);
    };
    // What has come to a device may have been in a frame for a group; what is made of it here is not.
    meta.extra.flags &= !(NOT_FORWARDED | GROUP | BROADCAST);
    // One that has just gone in must not go in again, and is not classified.
    if !is_inside(view, meta, tunnel) {
        // Of what this device makes of it the one that it has gone in by before hears nothing.
        meta.extra.entered = None;
        if lacks_ends(tunnel) {
            return Verdict::drop(DropReason::TunnelRemote);
        }
        if tunnel.classifies_egress && tunnel.up {
            return Verdict::ClassifyEgress(id);
        }
    }
    let inside = Inside::routed(meta, tunnel);
    encapsulate_in(path, view, meta, (id, inside), trace)
}

/// Takes note of the link that a packet has come in by now, for filters at egress that look at it.
#[inline]
pub(crate) fn note_input(view: &View<'_>, packet: &mut Packet, link: Option<LinkId>) {
    if view.tables.reads_input() {
        let link = link.and_then(|id| Some((id.0 + 1, view.link(id)?.ifindex)));
        let (received_by, received_index) = link.unwrap_or((NO_LINK, 0));
        retag(packet, |tag| *tag = Tag { received_by, received_index, ..*tag });
    }
}

/// Classifies a packet that is to go into a tunnel, or has come out of one. `None`: it waits, or has its verdict.
#[cold]
#[inline(never)]
pub(crate) fn classify_at_tunnel<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    meta: PacketMeta,
    verdict: Verdict,
    trace: &mut T,
) -> Option<(PacketMeta, Verdict)> {
    let Verdict::ClassifyEgress(id) = verdict else {
        return classify_ingress(path, view, meta, Nest::default(), trace).ok();
    };
    let received_by = path.hooks.received_by.filter(|_| !meta.is(GENERATED));
    classify_egress(path, view, meta, id, (received_by, Nest::default()), trace).ok()
}

/// Classifies a packet that enters a tunnel, and has it wait in the tunnel's qdisc. `Err`: it does, or is gone; and
/// whether it was dropped.
fn classify_egress<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    mut meta: PacketMeta,
    id: TunnelId,
    (received_by, nest): Past,
    trace: &mut T,
) -> Result<(PacketMeta, Verdict), bool> {
    let tunnel = view.tables.tunnels().tunnel(id, view.guard);
    let Some((tunnel, link)) = tunnel.and_then(|tunnel| Some((tunnel, view.link(tunnel.link)?))) else {
        return Ok((meta, Verdict::drop(DropReason::LinkDown)));
    };
    let bare = !tunnel.kind.carries_frames();
    if bare && meta.packet.tag().headless == 0 {
        let headless = ethertype(&meta);
        retag(&mut meta.packet, |tag| tag.headless = headless);
    }
    let mut packet = meta.packet;
    if let Some(hook) = link.egress.and_then(|id| view.tables.hook(id, view.guard)) {
        let known = place_of(tunnel.link, link, false, received_by);
        let place = Place { bare, tunnel: Some(id), nest, outer: given(tunnel), ..known };
        packet = match classify_at_hook(path, view, hook, packet, &place, trace) {
            Classified::On(packet, _) => packet,
            Classified::Dropped => return Err(true),
            Classified::Gone => return Err(false),
        };
    }
    if let Some(root) = link.root {
        let encapsulations = match meta.extra.encapsulations() {
            0 if meta.extra.unrouted => UNROUTED,
            encapsulations => encapsulations & ENCAPSULATIONS,
        };
        retag(&mut packet, |tag| tag.nested = tag.nested & REDIRECTS | encapsulations);
        let to = (root, crate::worker::shape::state::Place::Tunnel(tunnel.link));
        return Err(wait_in_qdisc(path, view, to, packet, Origin::Into(id), trace) == Enqueued::Dropped);
    }
    packet.leave_filters();
    Ok(go_in(path, view, PacketMeta { packet, ..meta }, (id, tunnel), trace))
}

/// Sends a packet, a frame or one without an Ethernet header, by the device of a tunnel; `unrouted` if it has not been
/// looked up before. Whether its hook or its qdisc has dropped it.
pub(crate) fn send_into<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    mut packet: Packet,
    (id, unrouted): (TunnelId, bool),
    past: Past,
    trace: &mut T,
) -> bool {
    let tunnel = view.tables.tunnels().tunnel(id, view.guard).filter(|tunnel| tunnel.up);
    let Some(tunnel) = tunnel else {
        path.drop(packet, DropReason::LinkDown, trace);
        return false;
    };
    if tunnel.kind.carries_frames() {
        // What has no header goes in as if it had one.
        retag(&mut packet, |tag| (tag.frameless, tag.headless) = (tag.headless, 0));
    } else if packet.tag().headless == 0 {
        let ethertype = type_of(packet.bytes());
        if packet.len() <= ethernet::Header::LEN {
            path.drop(packet, DropReason::EthernetTruncated, trace);
            return false;
        }
        packet.pull(ethernet::Header::LEN);
        retag(&mut packet, |tag| tag.headless = ethertype);
    }
    if past.1.depth > 0 {
        // Where the outer packet leaves it may be redirected again, but not for ever.
        retag(&mut packet, |tag| (tag.nested, tag.through) = (past.1.depth << 4, past.1.through()));
    }
    let mut meta = meta_into(packet, tunnel);
    // Parameters of `tunnel_key` are a way to Linux, though one of which a `bareudp` learns nothing.
    let key = !matches!(meta.packet.tag().tunnel, 0 | NO_TUNNEL_KEY);
    meta.extra.unrouted = unrouted && (tunnel.kind.is_overlay() || !key);
    let classified = match tunnel.classifies_egress {
        true => classify_egress(path, view, meta, id, past, trace),
        false => Ok(go_in(path, view, meta, (id, tunnel), trace)),
    };
    match classified {
        Ok((meta, verdict)) => {
            path.slow_path_alone(view, meta, verdict, trace);
            false
        }
        Err(dropped) => dropped,
    }
}

/// Carries a packet on that has waited: into a tunnel, of which it may be `past` the qdisc.
pub(crate) fn go_on_into<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    (id, past, packet): (TunnelId, bool, Packet),
    trace: &mut T,
) {
    let tunnel = view.tables.tunnels().tunnel(id, view.guard).filter(|tunnel| tunnel.up);
    let Some(tunnel) = tunnel else { return path.drop(packet, DropReason::LinkDown, trace) };
    if !past && let Some(root) = view.link(tunnel.link).and_then(|link| link.root) {
        let to = (root, crate::worker::shape::state::Place::Tunnel(tunnel.link));
        wait_in_qdisc(path, view, to, packet, Origin::Into(id), trace);
        return;
    }
    let mut meta = meta_into(packet, tunnel);
    match meta.packet.tag().nested & ENCAPSULATIONS {
        UNROUTED => meta.extra.unrouted = true,
        encapsulations => meta.extra.encapsulated_before(encapsulations),
    }
    let (meta, verdict) = go_in(path, view, meta, (id, tunnel), trace);
    path.slow_path_alone(view, meta, verdict, trace);
}

fn go_in<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    mut meta: PacketMeta,
    (id, tunnel): (TunnelId, &StoredTunnel),
    trace: &mut T,
) -> (PacketMeta, Verdict) {
    let given = keyed(view, &meta.packet, tunnel);
    let id = given.unwrap_or(id);
    // Linux: `skb_dst_drop`, by which it loses its route as well.
    meta.extra.unrouted |= meta.packet.tag().tunnel == NO_TUNNEL_KEY;
    let bare = view.tables.tunnels().tunnel(id, view.guard).filter(|chosen| lacks_parameters(chosen));
    if let Some(chosen) = bare {
        return (meta, refuse_without_parameters(path, chosen));
    }
    if is_short(&meta.packet, tunnel) {
        let verdict = match tunnel.kind {
            // Linux: `ipgre_xmit`, `gre_tap_xmit` and `vxlan_xmit_one`, for which that is no error.
            TunnelKind::Gre | TunnelKind::Gretap | TunnelKind::Vxlan | TunnelKind::Vxlan6 => {
                path.counters.add_link_drops(tunnel.link, Direction::Transmit, 1);
                Verdict::drop(DropReason::TunnelPayload)
            }
            _ => refuse_out(path, tunnel, DropReason::TunnelPayload),
        };
        return (meta, verdict);
    }
    let of_gre6 = matches!(tunnel.kind, TunnelKind::Ip6gre | TunnelKind::Ip6gretap);
    if of_gre6 && given.is_some_and(|id| is_external(view, id)) && meta.packet.tag().tunnel != NO_TUNNEL_KEY {
        // Parameters of the other family are an error to `ip6gre_tunnel_xmit`, and none are not.
        let verdict = refuse_out(path, tunnel, DropReason::TunnelRemote);
        return (meta, verdict);
    }
    // Linux: `tnl_update_pmtu`, for which what an action says is no route.
    if (meta.extra.unrouted || meta.packet.tag().tunnel != 0)
        && let Some(chosen) = view.tables.tunnels().tunnel(id, view.guard)
        && chosen.config.role != TunnelRole::External
        && let Some(verdict) = too_long::exceeds_device(&mut meta, chosen)
    {
        count_refused(path, tunnel);
        return (meta, verdict);
    }
    let verdict = match settle(&mut meta, tunnel) {
        Ok(inside) => encapsulate_in(path, view, &mut meta, (id, inside), trace),
        // GRE carries whatever it is in Linux, for which that is no error.
        Err(DropReason::TunnelPayload) if !tunnel.kind.has_gre() => {
            refuse_out(path, tunnel, DropReason::TunnelPayload)
        }
        Err(reason) => Verdict::drop(reason),
    };
    (meta, verdict)
}

/// Classifies a packet that leaves the tunnel that its link is, or the last of the router's own segments, and has it wait
/// behind the hook. `Err`: it does, or is gone; and whether it was dropped.
fn classify_ingress<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    meta: PacketMeta,
    nest: Nest,
    trace: &mut T,
) -> Result<(PacketMeta, Verdict), bool> {
    let outer = path.hooks.outer.take();
    let outside = std::mem::take(&mut path.hooks.before);
    let id = meta.ingress;
    let Some(link) = view.link(id) else { return Ok((meta, Verdict::drop(DropReason::LinkDown))) };
    // What was in a packet for the last of the router's own segments: Linux keeps where that packet's frame begins.
    let ethertype = meta.packet.tag().headless;
    let frame =
        if ethertype != 0 && view.tables.tunnels().of_link(id).is_none() { meta.link_layer() } else { None };
    let before = frame.map_or(outside, |_| meta.packet.headroom().saturating_sub(meta.frame as usize));
    let mut packet = meta.packet;
    if let Some(hook) = link.ingress.and_then(|id| view.tables.hook(id, view.guard)) {
        let tunnel = view.tables.tunnels().of_link(id);
        let tunnel = tunnel.and_then(|id| view.tables.tunnels().tunnel(id, view.guard));
        let bare = tunnel.is_some_and(|tunnel| !tunnel.kind.carries_frames()) || packet.tag().headless != 0;
        let received_by = Some((id, link.ifindex));
        let place = Place { bare, nest, outer, before, ..place_of(id, link, true, received_by) };
        packet = match classify_at_hook(path, view, hook, packet, &place, trace) {
            Classified::On(packet, _) => packet,
            Classified::Dropped => return Err(true),
            Classified::Gone => return Err(false),
        };
    }
    if packet.tag().headless == 0 {
        apply_type(&mut packet, link);
        // Above it may be a bridge whose VLANs are its networks: as it came in, or as an action says.
        let network = match packet.tag().tunnel {
            0 => outer.map(|outer| outer.id),
            NO_TUNNEL_KEY => None,
            _ => key_of(view, &packet).map(|key| key.id),
        };
        network.into_iter().for_each(|network| enter_network(view, id, &mut packet, network));
    }
    packet.forget_key();
    let mut meta = PacketMeta { packet, ..meta };
    meta.put_link_layer_of(frame, ethertype);
    if let Some(qdisc) = link.ingress_qdisc {
        let to = (qdisc, crate::worker::shape::state::Place::Ingress(id));
        return Err(wait_in_qdisc(path, view, to, meta.packet, Origin::Here, trace) == Enqueued::Dropped);
    }
    let verdict = come_in(path, view, &mut meta, link);
    Ok((meta, verdict))
}

/// Takes a packet that was redirected to come in by a tunnel. Whether its hook has dropped it.
pub(crate) fn redirect_in<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    packet: Packet,
    (id, link): (LinkId, &Link),
    nest: Nest,
    trace: &mut T,
) -> bool {
    let meta = meta_from(packet, id, link);
    match classify_ingress(path, view, meta, nest, trace) {
        Ok((meta, verdict)) => {
            path.slow_path_alone(view, meta, verdict, trace);
            false
        }
        Err(dropped) => dropped,
    }
}

/// Carries a packet on that has waited behind the ingress hook of a tunnel.
pub(crate) fn go_on_from<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    packet: Packet,
    (id, link): (LinkId, &Link),
    trace: &mut T,
) {
    let mut meta = meta_from(packet, id, link);
    let verdict = come_in(path, view, &mut meta, link);
    path.slow_path_alone(view, meta, verdict, trace);
}

/// The step in which a packet goes on from behind the ingress hook of a tunnel.
fn come_in<const COUNT: bool>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    meta: &mut PacketMeta,
    link: &Link,
) -> Verdict {
    let Tag { headless, packet_type, mark, .. } = meta.packet.tag();
    meta.extra.mark = mark;
    let tunnel = view.tables.tunnels().of_link(meta.ingress);
    let tunnel = tunnel.and_then(|id| view.tables.tunnels().tunnel(id, view.guard));
    let frames = tunnel.is_some_and(|tunnel| tunnel.kind.carries_frames());
    let inside = match headless {
        0 if frames => InnerProtocol::Frame,
        own => {
            let mut ethertype = own;
            if own == 0 {
                // An action has given it an Ethernet header, or it was redirected from where it had one.
                ethertype = type_of(meta.packet.bytes());
                meta.packet.pull(ethernet::Header::LEN.min(meta.packet.len()));
            }
            match inside_of(&mut meta.packet, ethertype) {
                Ok(inside) => inside,
                Err(reason) => return Verdict::drop(reason),
            }
        }
    };
    retag(&mut meta.packet, |tag| (tag.headless, tag.packet_type, tag.tunnel) = (0, 0, 0));
    if inside != InnerProtocol::Frame {
        // `skbedit ptype`: of frames the address says it.
        match packet_type {
            0 | 1 => {}
            2 | 3 => meta.extra.flags |= GROUP | NOT_FORWARDED,
            _ => return Verdict::drop(DropReason::OtherHost),
        }
    }
    come_out(path, view, meta, (link.lookup, link.forward4, link.forward6), inside)
}

/// Changes what goes along with a packet.
fn retag(packet: &mut Packet, change: impl FnOnce(&mut Tag)) {
    let mut tag = packet.tag();
    change(&mut tag);
    packet.set_tag(tag);
}

/// The path of a packet that is sent by the device of a tunnel.
fn meta_into(packet: Packet, tunnel: &StoredTunnel) -> PacketMeta {
    let frames = tunnel.kind.carries_frames();
    let at = packet.headroom() + if frames { ethernet::Header::LEN } else { 0 };
    let mut meta = PacketMeta::new(packet, at, tunnel.link, ExtraMeta::new(tunnel.lookup));
    if frames {
        // Its sender is told about the packet in the frame.
        meta.wrapped(ethernet::Header::LEN, None);
    }
    meta
}

/// The path of a packet that comes in by the link of a tunnel.
fn meta_from(packet: Packet, id: LinkId, link: &Link) -> PacketMeta {
    let at = packet.headroom();
    let mut meta = PacketMeta::new(packet, at, id, ExtraMeta::new(link.lookup));
    meta.look_up_again(link.lookup);
    meta
}

/// What a route says of the outer header, of packets that go into an `external` tunnel.
fn given(tunnel: &StoredTunnel) -> Option<OuterKey> {
    let Tunnel { role: TunnelRole::Route { given: Some(id) }, local, remote, ttl, tos, .. } = &tunnel.config
    else {
        return None;
    };
    if tunnel.config.behind.is_some() {
        // A bridge says nothing but the network: `__vlan_tunnel_info_add`.
        let any = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        let (source, destination) = (any, any);
        return Some(OuterKey { source, destination, id: *id, tos: 0, ttl: 0, ports: (0, 0) });
    }
    let tos = match *tos {
        TunnelTos::Fixed(tos) => tos,
        TunnelTos::Inherit(tos) => tos | 1,
    };
    Some(OuterKey {
        source: *local,
        destination: *remote,
        id: *id,
        tos,
        ttl: ttl.unwrap_or(0),
        ports: (0, 0),
    })
}

/// What a tunnel puts before a packet that `tunnel_key` has given parameters, or has taken them from; `None`: what it puts
/// before others. Linux: `skb_tunnel_info`, at which only `external` devices look.
fn keyed(view: &View<'_>, packet: &Packet, tunnel: &StoredTunnel) -> Option<TunnelId> {
    // Linux: `ipip6_tunnel_xmit`, which does not.
    let six = tunnel.kind == TunnelKind::Sit && packet.tag().headless == ethernet::IPV6;
    if packet.tag().tunnel == 0 || six {
        return None;
    }
    let tunnels = view.tables.tunnels();
    let device = tunnels.of_link(tunnel.link)?;
    let ways = key_of(view, packet).map_or(&[][..], |key| &key.ways);
    let side = ways.iter().find(|(link, _)| *link == tunnel.link);
    match side.and_then(|(_, id)| view.tables.action(*id, view.guard)) {
        Some(Action::Tunnel(route)) => Some(route.tunnel),
        // Without parameters of its family the device sends nothing.
        _ => is_external(view, device).then_some(device),
    }
}

/// Whether a packet that is to go into a tunnel lacks bytes of the IP header that its EtherType says it has. Linux:
/// `pskb_inet_may_pull`.
fn is_short(packet: &Packet, tunnel: &StoredTunnel) -> bool {
    let bytes = packet.bytes();
    lacks_header(
        bytes,
        match tunnel.kind.carries_frames() {
            true => (ethernet::Header::LEN, type_of(bytes)),
            false => (0, packet.tag().headless),
        },
    )
}

/// Whether a tunnel sends nothing unless it is given parameters.
fn is_external(view: &View<'_>, id: TunnelId) -> bool {
    let tunnel = view.tables.tunnels().tunnel(id, view.guard);
    tunnel.is_some_and(|tunnel| tunnel.config.role == TunnelRole::External)
}

/// Makes what has been classified what goes into a tunnel: what it is may have changed.
fn settle(meta: &mut PacketMeta, tunnel: &StoredTunnel) -> Result<Inside, DropReason> {
    let Tag { headless, frameless, .. } = meta.packet.tag();
    retag(&mut meta.packet, |tag| {
        (tag.headless, tag.packet_type, tag.nested, tag.tunnel) = (0, 0, tag.nested & REDIRECTS, 0);
        tag.frameless = 0;
    });
    meta.extra.flags &= !(LABELLED | OPAQUE);
    if tunnel.kind.carries_frames() {
        if !is_ip(meta.packet.bytes(), InnerProtocol::Frame) {
            meta.extra.flags |= OPAQUE;
        }
        return Ok(Inside::frame(meta, tunnel, frameless));
    }
    match headless {
        // By its EtherType, whatever it looks like.
        ethernet::IPV4 => Ok(Inside::packet(InnerProtocol::Ip4)),
        ethernet::IPV6 => Ok(Inside::packet(InnerProtocol::Ip6)),
        ethernet::MPLS => {
            meta.extra.flags |= LABELLED;
            Ok(Inside::packet(InnerProtocol::Mpls))
        }
        // An action has given it an Ethernet header, for which there is no room in the tunnel.
        0 => Err(DropReason::TcEdit),
        _ => Err(DropReason::TunnelPayload),
    }
}
