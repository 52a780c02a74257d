//! The slow path: a packet goes from step to step until its verdict.

use std::net::IpAddr;

use arrayvec::ArrayVec;
use underpass_packet::FromBytes;

use crate::buffer::{BURST, Packet, PortId};
use crate::drops::Drop;
use crate::lpm::NO_LEAF;
use crate::path::{group, icmp, ipv4, ipv6, rpl, vrf};
use crate::srv6::endpoint::Onward;
use crate::tables::{Action, ActionId, Behaviour, Discard, Endpoint, Headend, LinkId, Via};
use crate::trace::{Event, Trace};
use crate::worker::fibs::Fibs;
use crate::worker::metadata::{
    BEHIND_LABEL, BEHIND_SID, BROADCAST, GENERATED, GROUP, HANDED_OVER, LED_INTO_VRF, NOT_FORWARDED, Road,
    Slow, UNFINISHED,
};
use crate::worker::transmit::{Exit, frame};
use crate::worker::verdict::Step;
use crate::worker::{Path, View, Waiting};
use crate::{flow, srv6, tunnel};

impl<const COUNT: bool> Path<COUNT> {
    /// Carries a packet on until its verdict, or until it has to wait for a look-up.
    #[inline(never)]
    pub(crate) fn slow_path<'a, T: Trace>(
        &mut self,
        view: &View<'a>,
        fibs: &mut Fibs<'a>,
        mut road: Road,
        mut step: Step,
        waiting: &mut ArrayVec<Waiting, BURST>,
        trace: &mut T,
    ) {
        // The steps in the order in which most packets take them: one after the other, without a jump
        // back. A packet that needs an earlier one goes round.
        loop {
            if let Step::Look6(lookup) = step {
                step = match fibs.known(lookup, road.target6) {
                    Some(action) => Step::Act(action),
                    None => match fibs.fib6(view, lookup) {
                        Some(fib) if fib.is_hot() => {
                            let leaf = fib.lookup(road.target6.to_bits(), view.guard).map(ActionId);
                            trace.step(Event::Lookup(road.target6.into(), leaf), &road.packet);
                            fibs.next = leaf.map(|leaf| (lookup, road.target6, leaf));
                            looked(leaf)
                        }
                        Some(_) if !waiting.is_full() => {
                            return waiting.push(Waiting { road, lookup, ipv6: true });
                        }
                        _ => Step::slow(&mut road, lookup, Slow::Target6),
                    },
                };
            } else if let Step::Look4(lookup) = step {
                step = match fibs.fib4(view, lookup) {
                    Some(fib) if fib.is_hot() => {
                        let leaf = fib.lookup(road.target4.to_bits(), view.guard).map(ActionId);
                        trace.step(Event::Lookup(road.target4.into(), leaf), &road.packet);
                        looked(leaf)
                    }
                    Some(_) if !waiting.is_full() => {
                        return waiting.push(Waiting { road, lookup, ipv6: false });
                    }
                    _ => Step::slow(&mut road, lookup, Slow::Target4),
                };
            }
            if let Step::Act(id) = step {
                step = self.act(view, &mut road, id, trace);
            }
            if let Step::Forward(id) = step {
                step = self.forward(view, &mut road, id, trace);
            } else if let Step::Frame(id) = step {
                step = frame(view, &road.packet, id);
            }
            if let Step::Send(port) = step {
                return self.send(PortId(port as u16), road.packet, trace);
            }
            if let Step::Look6(_) | Step::Look4(_) = step {
                continue;
            }
            if let Step::Unresolved(id) = step
                && let Some(into) = tunnel::behind(view, id)
            {
                step = self.enter_behind(view, &mut road, into, trace);
            }
            if let Step::AskIn | Step::AskOut(_) = step {
                match self.ask_at_tunnel(view, road, step, trace) {
                    Some(back) => (road, step) = back,
                    None => return,
                }
                continue;
            }
            if !self.answers && matches!(step, Step::OnLink(_) | Step::Unresolved(_) | Step::Deliver) {
                let back = match step {
                    Step::Deliver => self.hand_over(view, road, trace),
                    step => self.hold(view, road, step, trace),
                };
                match back {
                    Some(back) => (road, step) = back,
                    None => return,
                }
            }
            match self.slow_step(view, &mut road, step, trace) {
                Some(next) => step = next,
                None => return self.pool.give(road.packet),
            }
        }
    }

    /// Carries a packet that is not of a burst to its verdict.
    pub(crate) fn slow_path_alone<T: Trace>(
        &mut self,
        view: &View<'_>,
        road: Road,
        step: Step,
        trace: &mut T,
    ) {
        let mut fibs = Fibs::new(view, road.extra.instance);
        let mut waiting = ArrayVec::new();
        self.slow_path(view, &mut fibs, road, step, &mut waiting, trace);
        while !waiting.is_empty() {
            self.look_up_together(view, &mut fibs, &mut waiting, trace);
        }
    }

    /// The steps that few packets take. `None`: the packet has its verdict.
    #[cold]
    #[inline(never)]
    fn slow_step<T: Trace>(
        &mut self,
        view: &View<'_>,
        road: &mut Road,
        step: Step,
        trace: &mut T,
    ) -> Option<Step> {
        let link = view.link(road.ingress);
        Some(match (step, link) {
            (Step::Act(_), _) => step,
            (Step::Deliver, _) => match self.deliver(view, road, trace) {
                Some(next) => next,
                None => {
                    trace.step(Event::Delivered(road.ingress), &road.packet);
                    self.totals.delivered += 1;
                    return None;
                }
            },
            (Step::Reassemble, _) => return self.reassemble(view, road, trace),
            (Step::Datagrams, _) => {
                self.take_datagrams(view, road, trace);
                return None;
            }
            (Step::Refuse(refusal), _) => match refusal.error().filter(|_| !vrf::hides(road, refusal)) {
                Some(error) => self.icmp_error(view, road, refusal.reason(), error, trace),
                None => {
                    self.drop_on_road(road, refusal.reason(), trace);
                    return None;
                }
            },
            (Step::LookSlow(lookup), _) => self.look_slow(view, road, lookup, trace),
            (Step::Unusual, Some(link)) if ipv6::is(&road.packet) => self.unusual6(view, road, link, trace),
            (Step::Unusual, Some(link)) => ipv4::unusual(view, road, link),
            (Step::Label, _) => self.label(view, road, trace),
            (Step::FragmentLabelled(action), _) => {
                self.send_labelled_fragments(view, road, action, trace);
                return None;
            }
            (Step::Group, _) => group::group(road),
            // Hop limit and length are looked at first, as for any next hop.
            (Step::OnLink(id), _) => match self.leave_on_link(view, road, id) {
                Ok(_) => unresolved(view, road, Some(id)),
                Err(step) => step,
            },
            (Step::Unresolved(id), _) => {
                let next_hop = view.tables.next_hop(id, view.guard);
                unresolved(view, road, next_hop.map(|next_hop| next_hop.link))
            }
            (Step::Untag, Some(link)) => {
                let step = group::untag(road, link.mpls, self.answers);
                if matches!(step, Step::Label) {
                    self.labelled.count(1, road.packet.len() as u64);
                }
                step
            }
            (Step::Arp, Some(link)) => self.arp(view, road, link, trace),
            (Step::Finish(action), _) => {
                self.finish_generated(view, road, road.ingress);
                Step::Act(action)
            }
            (Step::FrameInto(tunnel), _) => self.put_in(view, road, tunnel, trace),
            (Step::FragmentInto(action), _) => {
                self.send_fragments_into(view, road, action, trace);
                return None;
            }
            (Step::Fragment(next_hop), _) => match Exit::of(view, next_hop) {
                Some((exit, mtu)) => {
                    let mtu = tunnel::narrowed(view, road, mtu);
                    self.send_cut(view, road, exit, mtu, trace);
                    return None;
                }
                None => Step::Unresolved(next_hop),
            },
            _ => Step::drop(Drop::LinkDown),
        })
    }

    /// Looks up in one go what waits for it, and carries those packets on. They may wait again, for
    /// their next look-up.
    #[inline(never)]
    pub(crate) fn look_up_together<'a, T: Trace>(
        &mut self,
        view: &View<'a>,
        fibs: &mut Fibs<'a>,
        waiting: &mut ArrayVec<Waiting, BURST>,
        trace: &mut T,
    ) {
        let batch = std::mem::take(waiting);
        let mut leaves = [NO_LEAF; BURST];
        look_up_batch(view, fibs, &batch, &mut leaves);
        for (Waiting { road, ipv6, .. }, leaf) in batch.into_iter().zip(leaves) {
            let leaf = (leaf != NO_LEAF).then_some(ActionId(leaf));
            let step = looked(leaf);
            let target = if ipv6 { road.target6.into() } else { road.target4.into() };
            trace.step(Event::Lookup(target, leaf), &road.packet);
            self.slow_path(view, fibs, road, step, waiting, trace);
        }
    }

    /// Does what a look-up ended in.
    #[inline(always)]
    pub(crate) fn act<T: Trace>(
        &mut self,
        view: &View<'_>,
        road: &mut Road,
        id: ActionId,
        trace: &mut T,
    ) -> Step {
        let Some(action) = view.tables.action(id, view.guard) else {
            return Step::drop(Drop::NoRoute);
        };
        match action {
            Action::Forward(next_hop) => Step::Forward(*next_hop),
            Action::Endpoint(sid) => self.behave(view, road, id, sid, trace),
            Action::Headend(headend) => {
                if road.is(UNFINISHED) {
                    return Step::Finish(id);
                }
                self.insert(view, road, id, headend, trace)
            }
            Action::Rpl(route) => {
                if road.is(UNFINISHED) {
                    return Step::Finish(id);
                }
                let room = usize::from(route.room);
                match road.encapsulate(id).and_then(|()| self.make_room(road, room, trace)) {
                    Ok(()) => rpl::headend(view, road, route, trace),
                    Err(refusal) => Step::Refuse(refusal),
                }
            }
            Action::Ioam(ioam) => {
                if road.is(UNFINISHED) {
                    return Step::Finish(id);
                }
                // The outer destination leads back to the route. Linux: `ioam6_output`.
                if road.encapsulated_by(id) {
                    return self.ioam_onward(view, road, ioam, road.target6);
                }
                match road.encapsulate(id) {
                    Ok(()) => self.insert_ioam(view, road, ioam, trace),
                    Err(refusal) => Step::Refuse(refusal),
                }
            }
            Action::Tunnel(route) => self.enter_tunnel(view, road, (id, route), trace),
            Action::Local => {
                if road.is(LED_INTO_VRF) {
                    vrf::arrive(view, road);
                }
                if view.tables.tunnels().receives() {
                    self.leave_tunnel(view, road, trace)
                } else {
                    Step::Deliver
                }
            }
            Action::Broadcast => {
                road.extra.flags |= GROUP | BROADCAST;
                Step::Deliver
            }
            // The kernel would not know any more that it came in a frame for all stations.
            Action::HandOver if road.is(NOT_FORWARDED) => Step::drop(Drop::ForwardingOff),
            Action::HandOver => {
                road.extra.flags |= HANDED_OVER;
                Step::Deliver
            }
            Action::Multipath(multipath) => {
                let chosen = multipath.choose(flow::hash(road.packet.bytes()));
                chosen.map_or(Step::drop(Drop::NoRoute), Step::Act)
            }
            Action::Push(push) => self.push_labels(view, road, (id, push), trace),
            // No look-up by an address leads to it.
            Action::Switch(_) => Step::drop(Drop::NoRoute),
            Action::OnLink(link) => Step::OnLink(*link),
            Action::Vrf(route) => self.enter_vrf(view, road, (Some(id), route)),
            Action::Discard(discard) => self.discard(road, *discard),
        }
    }

    /// Does what a local SID says.
    fn behave<T: Trace>(
        &mut self,
        view: &View<'_>,
        road: &mut Road,
        id: ActionId,
        sid: &Endpoint,
        trace: &mut T,
    ) -> Step {
        trace.step(Event::Behaviour(srv6::name(&sid.behaviour)), &road.packet);
        // Bytes are counted as the packet came, its outer headers included.
        let bytes = road.packet.len();
        let mut unusual = false;
        let check = view.check(road.ingress);
        match srv6::endpoint(&mut road.packet, sid, &check, &mut unusual) {
            Ok(onward) => {
                if road.extra.growth != 0 {
                    road.shortened(bytes - road.packet.len());
                }
                self.count(sid.counter, bytes);
                road.behaved(sid.counter, bytes, unusual);
                self.onward(view, road, id, by_ingress(view, road, sid, onward), trace)
            }
            Err(refusal) => {
                // An error of the SID before, too, to which Linux returns it.
                self.uncount(road);
                self.count_error(sid.counter);
                Step::Refuse(refusal)
            }
        }
    }

    /// The step in which a packet goes on from a behaviour.
    fn onward<T: Trace>(
        &mut self,
        view: &View<'_>,
        road: &mut Road,
        id: ActionId,
        onward: Onward<'_>,
        trace: &mut T,
    ) -> Step {
        match onward {
            Onward::Look4(lookup, address) => Step::look4(road, lookup, address),
            Onward::Look6(lookup, address) => {
                road.extra.flags |= BEHIND_SID;
                Step::look6(road, lookup, address)
            }
            Onward::Forward(next_hop) => Step::Forward(next_hop),
            Onward::Frame(link) => Step::Frame(link),
            Onward::Insert(policy) => {
                let step = self.insert(view, road, id, policy, trace);
                road.extra.flags |= BEHIND_SID;
                step
            }
            Onward::Deliver => {
                // Not as it came in: a kernel beside the router has no such packet of its own.
                road.extra.turns += 1;
                Step::Deliver
            }
            Onward::Program(bpf, srh) => self.run_program(view, road, bpf, srh),
        }
    }

    /// Puts the headers of a policy, which the action has, before or into a packet.
    pub(crate) fn insert<T: Trace>(
        &mut self,
        view: &View<'_>,
        road: &mut Road,
        id: ActionId,
        policy: &Headend,
        trace: &mut T,
    ) -> Step {
        let room = usize::from(policy.room);
        match road.encapsulate(id).and_then(|()| self.make_room(road, room, trace)) {
            Ok(()) => srv6::headend(view, road, policy, trace),
            Err(refusal) => Step::Refuse(refusal),
        }
    }

    /// A route type that forwards nothing.
    #[inline(always)]
    pub(crate) fn discard(&mut self, road: &mut Road, discard: Discard) -> Step {
        match discard {
            Discard::Blackhole => Step::drop(Drop::Blackhole),
            Discard::Unreachable => Step::error(Drop::Unreachable, icmp::Error::Unreachable),
            Discard::Prohibit => Step::error(Drop::Prohibited, icmp::Error::Prohibited),
            Discard::Throw => {
                let lookup = road.extra.looked_in;
                Step::slow(road, lookup, Slow::Throw)
            }
        }
    }
}

/// A behaviour that names no tables looks up as packets are that come in by the link by which this one has: by its VRF, by
/// rules with its name. Linux: `seg6_lookup_any_nexthop`, and `ip_route_input` of the device for IPv4.
fn by_ingress<'a>(view: &View<'_>, road: &Road, sid: &'a Endpoint, onward: Onward<'a>) -> Onward<'a> {
    let Some(link) = view.link(road.ingress).filter(|_| !road.is(BEHIND_LABEL | LED_INTO_VRF)) else {
        return onward;
    };
    match (&sid.behaviour, onward) {
        (Behaviour::End { .. } | Behaviour::X(_) | Behaviour::DX6(_), Onward::Look6(_, address)) => {
            Onward::Look6(link.lookup, address)
        }
        (Behaviour::DX4(_), Onward::Look4(_, address)) => Onward::Look4(link.lookup, address),
        (Behaviour::X(via) | Behaviour::DX6(via) | Behaviour::DX4(via), Onward::Forward(_))
            if via.lookup != link.lookup =>
        {
            match via.address {
                IpAddr::V6(address) => Onward::Look6(link.lookup, address),
                IpAddr::V4(address) => Onward::Look4(link.lookup, address),
            }
        }
        (_, onward) => onward,
    }
}

/// On to where a route with headers points, by the link by which the packet came in. Linux: `seg6_input` and `rpl_input` ask
/// for a route as for packets that come in, for what the router itself sends the tables of the route.
pub(crate) fn on_by_ingress(view: &View<'_>, road: &mut Road, via: &Via) -> Step {
    let link = view.link(road.ingress).filter(|_| !road.is(BEHIND_LABEL | LED_INTO_VRF | GENERATED));
    match (link, via.address) {
        (Some(link), IpAddr::V6(address)) if link.lookup != via.lookup => {
            Step::look6(road, link.lookup, address)
        }
        _ => Step::via(road, via),
    }
}

/// An on-link destination, or a next hop, whose neighbour is not known.
pub(crate) fn unresolved(view: &View<'_>, road: &mut Road, link: Option<LinkId>) -> Step {
    // The sender is told where the packet would have left, and not where it came in, as by Linux's `arp_error_report`.
    if let Some(link) = link.and_then(|link| view.link(link))
        && road.extra.wrapping == 0
    {
        road.extra.instance = link.lookup;
    }
    UNRESOLVED
}

/// The same, wherever it would have left.
pub(crate) const UNRESOLVED: Step = Step::error(Drop::NeighbourUnresolved, icmp::Error::AddressUnreachable);

/// Whether a packet inside another, with unusual addresses or options, may be forwarded.
#[cold]
pub(crate) fn may_forward(packet: &Packet) -> bool {
    let bytes = packet.bytes();
    if ipv6::is(packet) {
        underpass_packet::ipv6::Header::ref_from_prefix(bytes)
            .is_ok_and(|(header, _)| ipv6::may_forward(header))
    } else {
        underpass_packet::ipv4::Header::ref_from_prefix(bytes)
            .is_ok_and(|(header, _)| ipv4::may_forward(header))
    }
}

/// What a look-up led to.
#[inline(always)]
fn looked(leaf: Option<ActionId>) -> Step {
    match leaf {
        Some(leaf) => Step::Act(leaf),
        None => Step::error(Drop::NoRoute, icmp::Error::NoRoute),
    }
}

/// The look-ups of a burst, those of one table and family together.
fn look_up_batch<'a>(view: &View<'a>, fibs: &mut Fibs<'a>, batch: &[Waiting], leaves: &mut [u32; BURST]) {
    let mut done = [false; BURST];
    for first in 0..batch.len() {
        if done[first] {
            continue;
        }
        let Waiting { lookup, ipv6, .. } = batch[first];
        let members: ArrayVec<usize, BURST> = (first..batch.len())
            .filter(|i| !done[*i] && batch[*i].lookup == lookup && batch[*i].ipv6 == ipv6)
            .collect();
        let mut found = [NO_LEAF; BURST];
        let found = &mut found[..members.len()];
        if ipv6 {
            let targets: ArrayVec<u128, BURST> =
                members.iter().map(|i| batch[*i].road.target6.to_bits()).collect();
            if let Some(fib) = fibs.fib6(view, lookup) {
                fib.lookup_batch(&targets, found, view.guard);
            }
        } else {
            let targets: ArrayVec<u32, BURST> =
                members.iter().map(|i| batch[*i].road.target4.to_bits()).collect();
            if let Some(fib) = fibs.fib4(view, lookup) {
                fib.lookup_batch(&targets, found, view.guard);
            }
        }
        for (member, leaf) in members.into_iter().zip(found) {
            leaves[member] = *leaf;
            done[member] = true;
        }
    }
}
