//! Packets that wait until the link-layer address of their next hop is known, as in Linux's
//! `neigh_event_send`.
//!
//! The worker keeps them and says which neighbour it needs ([`Worker::unresolved`]); whoever can ask for
//! it says what came of that ([`Worker::resolve`]). Without a kernel beside the router nobody can, and
//! nothing is held.

use std::collections::VecDeque;
use std::net::IpAddr;

use arrayvec::ArrayVec;
use underpass_packet::ethernet;

use crate::buffer::PortId;
use crate::drops::DropReason;
use crate::limiter::Nanos;
use crate::path::input::ethertype;
use crate::path::ipv6;
use crate::path::reassemble::give_up_fragments;
use crate::tables::{LinkId, NextHop, Rewrite};
use crate::trace::{Event, Trace};
use crate::tunnel::behind::enter_behind;
use crate::worker::error::IcmpError;
use crate::worker::fibs::Fibs;
use crate::worker::metadata::{LABELLED, PacketMeta};
use crate::worker::path::{Path, Worker};
use crate::worker::shape::serve::catch_up;
use crate::worker::transmit::Exit;
use crate::worker::unresolved::{Held, NEIGHBOURS, Neighbour, QUEUE, Unresolved, charge};
use crate::worker::verdict::Verdict;
use crate::worker::view::View;

/// How long a packet waits: Linux's three solicitations, a second apart.
const PATIENCE: Nanos = 3_000_000_000;

impl<const COUNT: bool> Worker<COUNT> {
    /// The neighbours for which packets have begun to wait since this was last asked.
    pub fn unresolved(&mut self) -> impl Iterator<Item = Unresolved> + '_ {
        self.path.unresolved.iter_mut().flat_map(|queues| queues.wanted.drain(..))
    }

    /// How many packets wait for a neighbour, or for the rest of their fragments.
    pub fn held(&self) -> usize {
        self.path.unresolved.as_ref().map_or(0, |queues| queues.count) + self.path.reassembly.len()
    }

    /// How many packets have no verdict yet: they wait for a neighbour, or in a qdisc. Fragments that wait for others of
    /// their packet have theirs, as they count as delivered.
    pub fn undecided(&self) -> usize {
        self.path.unresolved.as_ref().map_or(0, |queues| queues.count) + self.queued()
    }

    pub(super) fn resolve_with<T: Trace>(
        &mut self,
        link: LinkId,
        address: IpAddr,
        rewrite: Option<&Rewrite>,
        now: Nanos,
        trace: &mut T,
    ) {
        self.path.drop_log.begin(now);
        let Some(queues) = &mut self.path.unresolved else { return };
        let Some(at) = queues.neighbours.iter().position(|held| (held.link, held.address) == (link, address))
        else {
            return;
        };
        let Some(neighbour) = queues.neighbours.remove(at) else { return };
        queues.count -= neighbour.packets.len();
        let guard = self.reader.enter();
        let view = View { tables: &self.tables, guard: &guard, now, epoch: self.epoch };
        catch_up(&mut self.path, &view, trace);
        self.path.hooks.received_by = None;
        release(&mut self.path, &view, neighbour, rewrite, trace);
    }

    pub(super) fn give_up_with<T: Trace>(&mut self, now: Nanos, trace: &mut T) {
        self.path.drop_log.begin(now);
        if self.path.reassembly.len() > 0 {
            let guard = self.reader.enter();
            let view = View { tables: &self.tables, guard: &guard, now, epoch: self.epoch };
            catch_up(&mut self.path, &view, trace);
            give_up_fragments(&mut self.path, &view, trace);
            self.path.end_of_burst(&view, trace);
        }
        while let Some(queues) = &self.path.unresolved
            && let Some(oldest) = queues.neighbours.front()
            && now.saturating_sub(oldest.since) >= PATIENCE
        {
            let (link, address) = (oldest.link, oldest.address);
            self.resolve_with(link, address, None, now, trace);
        }
    }
}

/// Holds a packet that is on its way to an unresolved next hop. Gives it back, with what is to happen
/// to it, if it is not to be held.
#[cold]
#[inline(never)]
pub(crate) fn queue_unresolved<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    mut meta: PacketMeta,
    verdict: Verdict,
    trace: &mut T,
) -> Option<(PacketMeta, Verdict)> {
    if path.unresolved.is_none() {
        return Some((meta, UNRESOLVED));
    }
    let next_hop = match verdict {
        Verdict::Unresolved(id) => view.tables.next_hop(id, view.guard).map(|next_hop| **next_hop),
        Verdict::OnLink(id) => match leave_on_link(path, view, &mut meta, id) {
            Ok(next_hop) => next_hop.filter(|next_hop| next_hop.port != PortId::NONE),
            Err(verdict) => return Some((meta, verdict)),
        },
        verdict => return Some((meta, verdict)),
    };
    let link = next_hop.as_ref().and_then(|next_hop| view.link(next_hop.link));
    let (Some(next_hop), Some(link)) = (next_hop, link) else {
        return Some((meta, Verdict::drop(DropReason::NoPort)));
    };
    if !link.up {
        return Some((meta, Verdict::drop(DropReason::LinkDown)));
    }
    let Some(queues) = &mut path.unresolved else { return Some((meta, UNRESOLVED)) };
    let NextHop { link: id, port, mtu, address, .. } = next_hop;
    let known = queues.neighbours.iter().position(|held| (held.link, held.address) == (id, address));
    let at = match known {
        Some(at) => at,
        None if queues.neighbours.len() == NEIGHBOURS => return Some((meta, UNRESOLVED)),
        None => {
            queues.wanted.push(Unresolved { link: id, ifindex: link.ifindex, address });
            let (since, packets) = (view.now, VecDeque::new());
            queues.neighbours.push_back(Neighbour { link: id, address, since, packets, charged: 0 });
            queues.neighbours.len() - 1
        }
    };
    let charged = charge(meta.packet.len());
    let full = queues.neighbours[at].charged + charged > QUEUE;
    if !full && queues.count == queues.limit {
        return Some((meta, UNRESOLVED));
    }
    trace.step(Event::Held, &meta.packet);
    while let Some(queues) = &mut path.unresolved
        && let Some(neighbour) = queues.neighbours.get_mut(at)
    {
        let full = neighbour.charged + charged > QUEUE;
        let Some(oldest) = neighbour.packets.pop_front_if(|_| full) else {
            neighbour.packets.push_back(Held { meta, port, mtu });
            neighbour.charged += charged;
            queues.count += 1;
            return None;
        };
        neighbour.charged -= charge(oldest.meta.packet.len());
        queues.count -= 1;
        path.drop_behind(oldest.meta, DropReason::NeighbourUnresolved, trace);
    }
    Some((meta, UNRESOLVED))
}

/// The next hop that a destination on a link is, and what is done to a packet before it goes there. `None`: there is
/// no such link.
pub(crate) fn leave_on_link<const COUNT: bool>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    meta: &mut PacketMeta,
    id: LinkId,
) -> Result<Option<NextHop>, Verdict> {
    let Some(link) = view.link(id) else { return Ok(None) };
    let address = if ipv6::is(&meta.packet) { meta.target6.into() } else { meta.target4.into() };
    let port = link.port.unwrap_or(PortId::NONE);
    let next_hop =
        NextHop { link: id, port, mtu: link.mtu, locked: false, hop_limit: 0, rewrite: None, address };
    path.leave(view, meta, &next_hop)?;
    Ok(Some(next_hop))
}

fn release<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    neighbour: Neighbour,
    rewrite: Option<&Rewrite>,
    trace: &mut T,
) {
    let link = view.link(neighbour.link).filter(|link| link.up);
    let mut waiting = ArrayVec::new();
    let tunnel = view.tables.tunnels().of_link(neighbour.link);
    for Held { mut meta, port, mtu } in neighbour.packets {
        let came_by = view.link(meta.ingress).and_then(|link| link.port);
        path.counters.set_port(came_by.unwrap_or(PortId::NONE));
        // The link may have got another port, or none, meanwhile.
        let up = link.is_some_and(|link| link.port == Some(port) || tunnel.is_some());
        let Some(rewrite) = rewrite.filter(|_| up) else {
            let verdict = if up {
                unresolved(view, &mut meta, Some(neighbour.link))
            } else {
                Verdict::drop(DropReason::LinkDown)
            };
            let mut fibs = Fibs::new(view, meta.extra.instance);
            path.slow_path(view, &mut fibs, meta, verdict, &mut waiting, trace);
            while !waiting.is_empty() {
                path.look_up_together(view, &mut fibs, &mut waiting, trace);
            }
            continue;
        };
        if ethertype(&meta) != ethernet::IPV6 && !meta.packet.fits(mtu as usize) {
            let exit = tunnel.map_or(Exit::Port(port, rewrite), |tunnel| Exit::Tunnel(tunnel, Some(rewrite)));
            path.send_cut(view, &mut meta, exit, mtu, trace);
            path.pool.give(meta.packet);
            continue;
        }
        if let Some(tunnel) = tunnel {
            let verdict = enter_behind(path, view, &mut meta, (tunnel, Some(rewrite)), trace);
            path.slow_path_alone(view, meta, verdict, trace);
            continue;
        }
        if meta.is(LABELLED) {
            path.transmit.count_labelled(port, 1, meta.packet.len() as u64);
        }
        match path.put_link_layer(&mut meta, rewrite, trace) {
            Ok(()) => path.send(port, meta.packet, trace),
            Err(error) => path.drop_behind(meta, error.reason(), trace),
        }
    }
    path.end_of_burst(view, trace);
}

/// An on-link destination, or a next hop, whose neighbour is not known.
pub(crate) fn unresolved(view: &View<'_>, meta: &mut PacketMeta, link: Option<LinkId>) -> Verdict {
    // The sender is told where the packet would have left, and not where it came in, as by Linux's `arp_error_report`.
    if let Some(link) = link.and_then(|link| view.link(link))
        && meta.extra.wrapping == 0
    {
        meta.extra.instance = link.lookup;
    }
    UNRESOLVED
}

/// The same, wherever it would have left.
pub(crate) const UNRESOLVED: Verdict =
    Verdict::error(DropReason::NeighbourUnresolved, IcmpError::AddressUnreachable);
