//! Packets that leave are classified, and redirected packets go on.
//!
//! Packets that a burst has put into the queue of a port are taken out of it at the end of the burst where the link has
//! an egress hook; links without one pay for one test a burst. Redirected packets go on once the burst is done, so
//! that one that is redirected again and again takes no room on the stack.

use underpass_packet::ethernet;

use crate::buffer::{BURST, Packet, PortId, Tag};
use crate::drops::DropReason;
use crate::qos::qdisc::{Enqueued, Origin};
use crate::qos::{Nest, Place, packet_type};
use crate::tables::{LinkId, TunnelId, TunnelKind};
use crate::trace::{Event, Trace};
use crate::tunnel::hook::{redirect_in, send_into};
use crate::worker::hook::burst::classify_burst;
use crate::worker::hook::state::{Redirected, Side};
use crate::worker::hook::{Classified, apply_type, classify_at_hook, place_of, with_header};
use crate::worker::path::{Burst, Path};
use crate::worker::shape::{queue_at_port, redirect_to_ifb};
use crate::worker::view::View;

/// Classifies the packets that are about to leave, and sends redirected ones on their way.
#[inline(always)]
pub(crate) fn leave_hooks<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    trace: &mut T,
) {
    if view.tables.classifies_leaving() || !path.hooks.redirected.is_empty() {
        leave_hooks_that_classify(path, view, trace);
    }
}

#[cold]
#[inline(never)]
fn leave_hooks_that_classify<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    trace: &mut T,
) {
    loop {
        classify_leaving(path, view, trace);
        if path.hooks.redirected.is_empty() {
            return;
        }
        // Lists take turns: what goes on may be redirected again, and none is allocated anew.
        let empty = std::mem::take(&mut path.hooks.going);
        let mut going = std::mem::replace(&mut path.hooks.redirected, empty);
        let mut others = std::mem::take(&mut path.hooks.others);
        // First those that leave by a port: nothing else waits to be classified now. They come after no packet that does.
        for packet in going.drain(..) {
            others.extend(send_redirected(path, view, packet, trace));
        }
        for packet in others.drain(..) {
            go_elsewhere(path, view, packet, trace);
        }
        (path.hooks.going, path.hooks.others) = (going, others);
    }
}

/// Classifies the packets in the queues of ports that have not been.
fn classify_leaving<const COUNT: bool, T: Trace>(path: &mut Path<COUNT>, view: &View<'_>, trace: &mut T) {
    let mut last = None;
    while let Some(port) = path.transmit.used_after(last) {
        last = Some(port);
        if !path.transmit.has_unclassified(port) {
            continue;
        }
        let Some((id, link)) = view.tables.port_link(port, view.guard) else { continue };
        let Some(hook) = link.egress else { continue };
        if view.tables.tunnels().of_link(id).is_some() {
            // It goes to the host, which has it from the tunnel.
            continue;
        }
        let place = place_of(id, link, false, path.hooks.received_by);
        let mut leaving = std::mem::take(&mut path.hooks.leaving);
        path.transmit.take_unclassified(port, &mut leaving);
        while !leaving.is_empty() {
            let mut burst: Burst = leaving.drain(..leaving.len().min(BURST)).collect();
            classify_burst(path, view, hook, &place, &mut burst, trace);
            for packet in burst.drain(..) {
                put_out(path, port, packet, trace);
            }
        }
        path.hooks.leaving = leaving;
    }
    path.transmit.all_classified();
}

/// Puts a packet that was classified into the queue of a port, from where a qdisc takes it, if there is one.
fn put_out<const COUNT: bool, T: Trace>(path: &mut Path<COUNT>, port: PortId, packet: Packet, trace: &mut T) {
    let len = packet.len();
    if len < ethernet::Header::LEN {
        return path.drop(packet, DropReason::EthernetTruncated, trace);
    }
    if let Err(packet) = path.transmit.push_classified(port, packet, len) {
        path.drop(packet, DropReason::TransmitFull, trace);
    }
}

/// Sends a redirected packet by the port of its link. Gives it back if it goes on in another way.
fn send_redirected<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    redirected: Redirected,
    trace: &mut T,
) -> Option<Redirected> {
    let tunnel = view.tables.tunnels().of_link(redirected.to);
    let Some(link) = view.link(redirected.to).filter(|link| link.up) else {
        path.drop(redirected.packet, DropReason::MirredLink, trace);
        return None;
    };
    if redirected.side == Side::Ingress || link.ifb || tunnel.is_some() {
        return Some(redirected);
    }
    let Redirected { mut packet, to, from, counter, .. } = redirected;
    let Some(port) = link.port else {
        path.drop(packet, DropReason::MirredLink, trace);
        return None;
    };
    let hook = link.egress.and_then(|id| view.tables.hook(id, view.guard));
    trace.step(Event::Sent(port), &packet);
    if let Some(hook) = hook {
        if from.ingress {
            keep_type(&mut packet, &from);
        }
        let bare = packet.tag().headless != 0;
        let place = Place { nest: from.nest, bare, ..place_of(to, link, false, from.received_by) };
        match classify_at_hook(path, view, hook, packet, &place, trace) {
            Classified::On(back, _) => packet = back,
            Classified::Dropped => {
                path.counters.add_tc_refused(counter, 0, 1);
                return None;
            }
            Classified::Gone => return None,
        }
    }
    if packet.len() < ethernet::Header::LEN {
        // An action has taken off what it began with.
        path.drop(packet, DropReason::EthernetTruncated, trace);
        return None;
    }
    match link.root {
        // Linux: a qdisc that is about to take a packet takes no other meanwhile, `__dev_xmit_skb`.
        Some(_) if from.queues && from.link == to => {
            path.counters.add_tc_refused(counter, 0, 1);
            path.drop(packet, DropReason::MirredLoop, trace);
        }
        // Right away, to know whether it has room.
        Some(root) => {
            // Its filters may redirect it once more, to this very link: they are to know how often it was.
            let tag = packet.tag();
            let nested = tag.nested & 15 | from.nest.depth << 4;
            packet.set_tag(Tag { nested, through: from.nest.through(), ..tag });
            if queue_at_port(path, view, (to, root), packet, trace) == Enqueued::Dropped {
                path.counters.add_tc_refused(counter, 0, 1);
            }
        }
        None => put_out(path, port, packet, trace),
    }
    None
}

/// Notes whose a packet is that filters have redirected where it came in: that it has been since.
fn keep_type(packet: &mut Packet, from: &Place) {
    let packet_type = packet_type(packet, from) + 1;
    packet.set_tag(Tag { packet_type, ..packet.tag() });
}

/// Whether Linux reports of a packet in a tunnel that there is no way to the other end, if a route has led it there:
/// `dst_link_failure`.
fn reports_no_way(view: &View<'_>, tunnel: TunnelId) -> bool {
    let tunnel = view.tables.tunnels().tunnel(tunnel, view.guard);
    tunnel.is_some_and(|tunnel| match tunnel.kind {
        TunnelKind::Sit | TunnelKind::Ip6tnl | TunnelKind::Ip6gre | TunnelKind::Ip6gretap => true,
        TunnelKind::Ipip
        | TunnelKind::Gre
        | TunnelKind::Gretap
        | TunnelKind::Bareudp
        | TunnelKind::Bareudp6
        | TunnelKind::Vxlan
        | TunnelKind::Vxlan6
        | TunnelKind::Geneve
        | TunnelKind::Geneve6
        | TunnelKind::GeneveIp
        | TunnelKind::GeneveIp6
        | TunnelKind::Srv6L2 => false,
    })
}

/// Whether a tunnel, or what a route says of its outer headers, is of this link: a copy of a packet that is about to go in has
/// the packet's route. Linux: `skb_dst`, which a clone has too.
fn is_of(view: &View<'_>, tunnel: TunnelId, link: LinkId) -> bool {
    view.tables.tunnels().tunnel(tunnel, view.guard).is_some_and(|tunnel| tunnel.link == link)
}

/// Sends a redirected packet on that does not leave by a port.
fn go_elsewhere<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    redirected: Redirected,
    trace: &mut T,
) {
    let Redirected { mut packet, to, side, from, copy, counter } = redirected;
    let Some(link) = view.link(to) else { return path.drop(packet, DropReason::MirredLink, trace) };
    let port = link.port.unwrap_or_default();
    let tunnel = view.tables.tunnels().of_link(to);
    if side == Side::Ingress {
        let (whose, tag) = (packet_type(&packet, &from), packet.tag());
        let Nest { depth, received, .. } = from.nest;
        let nested = tag.nested & 15 | depth << 4;
        // Linux does not look again whose it is. Here that is seen by its address where it goes on.
        let through = from.nest.through();
        let tag = Tag { packet_type: whose + 1, nested, through, received, ..tag };
        packet.set_tag(Tag { received_by: to.0 + 1, received_index: link.ifindex, ..tag });
        let into = tunnel.and_then(|id| view.tables.tunnels().tunnel(id, view.guard));
        if into.is_none_or(|tunnel| tunnel.kind.carries_frames()) {
            with_header(&mut packet, &place_of(to, link, true, None));
        }
        if into.is_some() {
            if redirect_in(path, view, packet, (to, link), from.nest, trace) && from.ingress {
                path.counters.add_tc_refused(counter, 0, 1);
            }
            return;
        }
        if let Some(hook) = link.ingress.and_then(|id| view.tables.hook(id, view.guard)) {
            let received_by = Some((to, link.ifindex));
            let place = Place { nest: from.nest, ..place_of(to, link, true, received_by) };
            match classify_at_hook(path, view, hook, packet, &place, trace) {
                Classified::On(back, _) => packet = back,
                // What leaves is put aside first, so that nothing is known of it then: `netif_rx`.
                Classified::Dropped if from.ingress => return path.counters.add_tc_refused(counter, 0, 1),
                Classified::Dropped | Classified::Gone => return,
            }
        }
        apply_type(&mut packet, link);
        let mut burst = Burst::new();
        burst.push(packet);
        path.take_in(view, (port, to, link), &mut burst, trace);
        return;
    }
    if link.ifb {
        if let Some(hook) = link.egress.and_then(|id| view.tables.hook(id, view.guard)) {
            let bare = packet.tag().headless != 0;
            let place = Place { nest: from.nest, bare, ..place_of(to, link, false, from.received_by) };
            match classify_at_hook(path, view, hook, packet, &place, trace) {
                Classified::On(back, _) => packet = back,
                Classified::Dropped => return path.counters.add_tc_refused(counter, 0, 1),
                Classified::Gone => return,
            }
        }
        let origin = match (copy, from.ingress, from.tunnel) {
            (true, _, _) => Origin::Here,
            (false, true, _) => Origin::Ingress(from.link),
            (false, false, Some(tunnel)) => Origin::Into(tunnel),
            (false, false, None) => Origin::Egress(from.link),
        };
        return redirect_to_ifb(path, view, (to, counter), packet, origin, trace);
    }
    let Some(tunnel) = tunnel else { return path.drop(packet, DropReason::MirredLink, trace) };
    let tunnel = from.tunnel.filter(|id| is_of(view, *id, to)).unwrap_or(tunnel);
    if copy && (from.ingress || !reports_no_way(view, tunnel)) {
        packet.set_tag(Tag { copy, ..packet.tag() });
    }
    if from.ingress && link.egress.is_some() {
        keep_type(&mut packet, &from);
    }
    if send_into(path, view, packet, (tunnel, from.ingress), (from.received_by, from.nest), trace) {
        path.counters.add_tc_refused(counter, 0, 1);
    }
}
