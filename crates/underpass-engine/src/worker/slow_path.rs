//! The slow path: a packet goes from step to step until its verdict.

use std::net::IpAddr;

use arrayvec::ArrayVec;

use crate::buffer::{BURST, PortId};
use crate::drops::DropReason;
use crate::l2::go_up_alone;
use crate::lpm::NO_LEAF;
use crate::mpls::push::push_labels;
use crate::mpls::switch::switch_labelled;
use crate::path::arp::answer_arp;
use crate::path::host::hand_over;
use crate::path::icmp::icmp_error;
use crate::path::input::note_unusual;
use crate::path::ioam::{insert_ioam, ioam_onward};
use crate::path::ipv6::unusual6;
use crate::path::local::deliver;
use crate::path::reassemble::reassemble;
use crate::path::rules::look_slow;
use crate::path::source::finish_generated;
use crate::path::vrf::enter_vrf;
use crate::path::{group, ipv4, ipv6, rpl, vrf};
use crate::srv6::next::Next;
use crate::srv6::program::run_program;
use crate::tables::{Action, ActionId, Behaviour, Discard, Endpoint, Headend, HeadendMode};
use crate::trace::{Event, Trace};
use crate::tunnel::behind::enter_behind;
use crate::tunnel::come_out::take_frame;
use crate::tunnel::decap::{leave_for_all, leave_tunnel};
use crate::tunnel::encap::enter_tunnel;
use crate::tunnel::fou::take_datagrams;
use crate::tunnel::hook::{classify_at_tunnel, put_in};
use crate::tunnel::too_long::send_fragments_into;
use crate::worker::error::IcmpError;
use crate::worker::fibs::Fibs;
use crate::worker::headroom::reserve_headroom;
use crate::worker::metadata::{
    BEHIND_LABEL, BEHIND_SID, BROADCAST, GENERATED, GROUP, HANDED_OVER, LED_INTO_VRF, NOT_FORWARDED,
    PacketMeta, Slow, TUNNELLED, UNFINISHED,
};
use crate::worker::neighbour::{leave_on_link, queue_unresolved, unresolved};
use crate::worker::path::{Path, Waiting};
use crate::worker::transmit::{Exit, frame};
use crate::worker::verdict::Verdict;
use crate::worker::view::{View, egress_of};
use crate::{flow, srv6, tunnel};

impl<const COUNT: bool> Path<COUNT> {
    /// Carries a packet on until its verdict, or until it has to wait for a look-up.
    #[inline(never)]
    pub(crate) fn slow_path<'a, T: Trace>(
        &mut self,
        view: &View<'a>,
        fibs: &mut Fibs<'a>,
        mut meta: PacketMeta,
        mut verdict: Verdict,
        waiting: &mut ArrayVec<Waiting, BURST>,
        trace: &mut T,
    ) {
        // The steps in the order in which most packets take them: one after the other, without a jump
        // back. A packet that needs an earlier one goes round.
        loop {
            if let Verdict::Look6(lookup) = verdict {
                verdict = match fibs.known(lookup, meta.target6) {
                    Some(action) => Verdict::Act(action),
                    None => match fibs.fib6(view, lookup) {
                        Some(fib) if fib.is_hot() => {
                            let leaf = fib.lookup(meta.target6.to_bits(), view.guard).map(ActionId);
                            trace.step(Event::Lookup(meta.target6.into(), leaf), &meta.packet);
                            fibs.next = leaf.map(|leaf| (lookup, meta.target6, leaf));
                            looked(leaf)
                        }
                        Some(_) if !waiting.is_full() => {
                            return waiting.push(Waiting { meta, lookup, ipv6: true });
                        }
                        _ => Verdict::slow(&mut meta, lookup, Slow::Target6),
                    },
                };
            } else if let Verdict::Look4(lookup) = verdict {
                verdict = match fibs.fib4(view, lookup) {
                    Some(fib) if fib.is_hot() => {
                        let leaf = fib.lookup(meta.target4.to_bits(), view.guard).map(ActionId);
                        trace.step(Event::Lookup(meta.target4.into(), leaf), &meta.packet);
                        looked(leaf)
                    }
                    Some(_) if !waiting.is_full() => {
                        return waiting.push(Waiting { meta, lookup, ipv6: false });
                    }
                    _ => Verdict::slow(&mut meta, lookup, Slow::Target4),
                };
            }
            if let Verdict::Act(id) = verdict {
                verdict = self.act(view, &mut meta, id, trace);
            }
            if let Verdict::Forward(id) = verdict {
                verdict = self.forward(view, &mut meta, id, trace);
            } else if let Verdict::Frame(id) = verdict {
                verdict = frame(view, &meta.packet, id);
            }
            if let Verdict::Send(port) = verdict {
                return self.send(PortId(port as u16), meta.packet, trace);
            }
            if let Verdict::Look6(_) | Verdict::Look4(_) = verdict {
                continue;
            }
            if let Verdict::Unresolved(id) = verdict
                && let Some(into) = tunnel::behind(view, id)
            {
                verdict = enter_behind(self, view, &mut meta, into, trace);
            }
            if let Verdict::Above = verdict {
                match go_up_alone(self, view, meta, trace) {
                    Some(back) => meta = back,
                    None => return,
                }
                verdict = take_frame(self, view, &mut meta);
                continue;
            }
            if let Verdict::ClassifyIngress | Verdict::ClassifyEgress(_) = verdict {
                match classify_at_tunnel(self, view, meta, verdict, trace) {
                    Some(back) => (meta, verdict) = back,
                    None => return,
                }
                continue;
            }
            if !self.answers
                && matches!(verdict, Verdict::OnLink(_) | Verdict::Unresolved(_) | Verdict::Deliver)
            {
                let back = match verdict {
                    Verdict::Deliver => hand_over(self, view, meta, trace),
                    verdict => queue_unresolved(self, view, meta, verdict, trace),
                };
                match back {
                    Some(back) => (meta, verdict) = back,
                    None => return,
                }
            }
            match self.slow_step(view, &mut meta, verdict, trace) {
                Some(next) => verdict = next,
                None => return self.pool.give(meta.packet),
            }
        }
    }

    /// Carries a packet that is not of a burst to its verdict.
    pub(crate) fn slow_path_alone<T: Trace>(
        &mut self,
        view: &View<'_>,
        meta: PacketMeta,
        verdict: Verdict,
        trace: &mut T,
    ) {
        let mut fibs = Fibs::new(view, meta.extra.instance);
        let mut waiting = ArrayVec::new();
        self.slow_path(view, &mut fibs, meta, verdict, &mut waiting, trace);
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
        meta: &mut PacketMeta,
        verdict: Verdict,
        trace: &mut T,
    ) -> Option<Verdict> {
        let link = view.link(meta.ingress);
        Some(match (verdict, link) {
            (Verdict::Deliver, _) => match deliver(self, view, meta, trace) {
                Some(next) => next,
                None => {
                    trace.step(Event::Delivered(meta.ingress), &meta.packet);
                    self.totals.delivered += 1;
                    return None;
                }
            },
            (Verdict::Reassemble, _) => return reassemble(self, view, meta, trace),
            (Verdict::Datagrams, _) => {
                take_datagrams(self, view, meta, trace);
                return None;
            }
            (Verdict::Refuse(error), _) => match error.error().filter(|_| !vrf::hides(meta, error)) {
                Some(message) => icmp_error(self, view, meta, error.reason(), message, trace),
                None => {
                    self.drop_packet(meta, error.reason(), trace);
                    return None;
                }
            },
            (Verdict::LookSlow(lookup), _) => look_slow(self, view, meta, lookup, trace),
            (Verdict::Unusual, Some(link)) if ipv6::is(&meta.packet) => {
                match unusual6(self, view, meta, link, trace) {
                    Verdict::Deliver if !link.groups.is_empty() => leave_for_all(self, view, meta, trace),
                    verdict => verdict,
                }
            }
            (Verdict::Unusual, Some(link)) => match ipv4::unusual(view, meta, link) {
                Verdict::Deliver if view.tables.tunnels().receives() => {
                    leave_for_all(self, view, meta, trace)
                }
                verdict => verdict,
            },
            (Verdict::Label, _) => switch_labelled(self, view, meta, trace),
            (Verdict::FragmentLabelled(action), _) => {
                self.send_labelled_fragments(view, meta, action, trace);
                return None;
            }
            (Verdict::Group, _) => group::group(meta),
            // Hop limit and length are looked at first, as for any next hop.
            (Verdict::OnLink(id), _) => match leave_on_link(self, view, meta, id) {
                Ok(_) => unresolved(view, meta, Some(id)),
                Err(verdict) => verdict,
            },
            (Verdict::Unresolved(id), _) => {
                let next_hop = view.tables.next_hop(id, view.guard);
                unresolved(view, meta, next_hop.map(|next_hop| next_hop.link))
            }
            (Verdict::Untag, Some(link)) => {
                let verdict = group::untag(meta, link.mpls, self.answers);
                if matches!(verdict, Verdict::Label) {
                    self.labelled.count(1, meta.packet.len() as u64);
                }
                verdict
            }
            (Verdict::Arp, Some(link)) => answer_arp(self, view, meta, link, trace),
            (Verdict::Finish(action), _) => {
                let route = view.tables.action(action, view.guard);
                let egress = route.and_then(|route| egress_of(view, route));
                finish_generated(view, meta, egress.unwrap_or(meta.ingress));
                Verdict::Act(action)
            }
            (Verdict::FrameInto(tunnel), _) => put_in(self, view, meta, tunnel, trace),
            (Verdict::FragmentInto(action), _) => {
                send_fragments_into(self, view, meta, action, trace);
                return None;
            }
            (Verdict::Fragment(next_hop), _) => match Exit::of(view, next_hop) {
                Some((exit, mtu)) => {
                    let mtu = tunnel::narrowed(view, meta, mtu);
                    self.send_cut(view, meta, exit, mtu, trace);
                    return None;
                }
                None => Verdict::Unresolved(next_hop),
            },
            (Verdict::Unusual | Verdict::Untag | Verdict::Arp, None) => Verdict::drop(DropReason::LinkDown),
            // The steps of `slow_path`, which goes round.
            (
                Verdict::Act(_)
                | Verdict::Look4(_)
                | Verdict::Look6(_)
                | Verdict::Forward(_)
                | Verdict::Frame(_)
                | Verdict::Send(_)
                | Verdict::Above
                | Verdict::ClassifyIngress
                | Verdict::ClassifyEgress(_),
                _,
            ) => verdict,
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
        for (Waiting { meta, ipv6, .. }, leaf) in batch.into_iter().zip(leaves) {
            let leaf = (leaf != NO_LEAF).then_some(ActionId(leaf));
            let verdict = looked(leaf);
            let target = if ipv6 { meta.target6.into() } else { meta.target4.into() };
            trace.step(Event::Lookup(target, leaf), &meta.packet);
            self.slow_path(view, fibs, meta, verdict, waiting, trace);
        }
    }

    /// Does what a look-up ended in.
    #[inline(always)]
    pub(crate) fn act<T: Trace>(
        &mut self,
        view: &View<'_>,
        meta: &mut PacketMeta,
        id: ActionId,
        trace: &mut T,
    ) -> Verdict {
        let Some(action) = view.tables.action(id, view.guard) else {
            return Verdict::drop(DropReason::NoRoute);
        };
        match action {
            Action::Forward(next_hop) => Verdict::Forward(*next_hop),
            Action::Endpoint(sid) => self.behave(view, meta, id, sid, trace),
            Action::Headend(headend) => {
                if let Some(plain) = headend.plain.filter(|_| meta.is(GENERATED | TUNNELLED | LED_INTO_VRF)) {
                    return Verdict::Act(plain);
                }
                if meta.is(UNFINISHED) {
                    return Verdict::Finish(id);
                }
                self.insert(view, meta, id, headend, trace)
            }
            Action::Rpl(route) => {
                if meta.is(UNFINISHED) {
                    return Verdict::Finish(id);
                }
                let room = usize::from(route.room);
                match meta.encapsulate(id).and_then(|()| reserve_headroom(self, meta, room, trace)) {
                    Ok(()) => rpl::headend(view, meta, route, trace),
                    Err(error) => Verdict::Refuse(error),
                }
            }
            Action::Ioam(ioam) => {
                if meta.is(UNFINISHED) {
                    return Verdict::Finish(id);
                }
                // The outer destination leads back to the route. Linux: `ioam6_output`.
                if meta.encapsulated_by(id) {
                    return ioam_onward(self, view, meta, ioam, meta.target6);
                }
                match meta.encapsulate(id) {
                    Ok(()) => insert_ioam(self, view, meta, ioam, trace),
                    Err(error) => Verdict::Refuse(error),
                }
            }
            Action::Tunnel(route) => enter_tunnel(self, view, meta, (id, route), trace),
            Action::Local | Action::Anycast => {
                if meta.is(LED_INTO_VRF) {
                    vrf::arrive(view, meta);
                }
                if view.tables.tunnels().receives() {
                    leave_tunnel(self, view, meta, trace)
                } else {
                    Verdict::Deliver
                }
            }
            Action::Broadcast => {
                meta.extra.flags |= GROUP | BROADCAST;
                if view.tables.tunnels().receives() {
                    return leave_for_all(self, view, meta, trace);
                }
                Verdict::Deliver
            }
            // The kernel would not know any more that it came in a frame for all stations.
            Action::HandOver if meta.is(NOT_FORWARDED) => Verdict::drop(DropReason::ForwardingOff),
            Action::HandOver => {
                meta.extra.flags |= HANDED_OVER;
                Verdict::Deliver
            }
            Action::Multipath(multipath) => {
                let chosen = multipath.choose(flow::hash(meta.packet.bytes()));
                chosen.map_or(Verdict::drop(DropReason::NoRoute), Verdict::Act)
            }
            Action::Push(push) => push_labels(self, view, meta, (id, push), trace),
            // No look-up by an address leads to it.
            Action::Switch(_) => Verdict::drop(DropReason::NoRoute),
            Action::OnLink(link) => Verdict::OnLink(*link),
            Action::Vrf(route) => enter_vrf(self, view, meta, (Some(id), route)),
            Action::Discard(discard) => self.discard(view, meta, *discard),
        }
    }

    /// Does what a local SID says.
    fn behave<T: Trace>(
        &mut self,
        view: &View<'_>,
        meta: &mut PacketMeta,
        id: ActionId,
        sid: &Endpoint,
        trace: &mut T,
    ) -> Verdict {
        trace.step(Event::Behaviour(sid.behaviour.name()), &meta.packet);
        // Bytes are counted as the packet came, its outer headers included.
        let bytes = meta.packet.len();
        let mut unusual = false;
        let check = view.check(meta.ingress);
        match srv6::endpoint(view, &mut meta.packet, sid, &check, &mut unusual) {
            Ok(next) => {
                if meta.extra.growth != 0 {
                    meta.shortened(bytes - meta.packet.len());
                }
                self.count(sid.counter, bytes);
                meta.behaved(sid.counter, bytes);
                note_unusual(meta, unusual);
                if let Behaviour::DT4 { lookup }
                | Behaviour::DT6 { lookup, vrf: true }
                | Behaviour::DT46 { lookup } = sid.behaviour
                {
                    meta.extra.taken_into = Some(lookup);
                }
                self.next(view, meta, id, by_ingress(view, meta, sid, next), trace)
            }
            Err(error) => {
                // An error of the SID before, too, to which Linux returns it.
                self.uncount(meta);
                self.count_error(sid.counter);
                Verdict::Refuse(error)
            }
        }
    }

    /// The step in which a packet goes on from a behaviour.
    fn next<T: Trace>(
        &mut self,
        view: &View<'_>,
        meta: &mut PacketMeta,
        id: ActionId,
        next: Next<'_>,
        trace: &mut T,
    ) -> Verdict {
        match next {
            Next::Look4(lookup, address) => {
                meta.extra.flags |= BEHIND_SID;
                Verdict::look4(meta, lookup, address)
            }
            Next::Look6(lookup, address) => {
                meta.extra.flags |= BEHIND_SID;
                Verdict::look6(meta, lookup, address)
            }
            Next::Forward(next_hop) => {
                // Nobody has looked at its options: `input_action_end_dx4`.
                if meta.packet.bytes().first().is_some_and(|first| first >> 4 == 4) {
                    meta.extra.flags |= BEHIND_SID;
                }
                Verdict::Forward(next_hop)
            }
            Next::Frame(link) => Verdict::Frame(link),
            Next::ComeIn(link, all_but) => srv6::come_in(self, view, meta, (link, all_but)),
            Next::Insert(policy) => {
                let len = meta.packet.len();
                let verdict = self.insert(view, meta, id, policy, trace);
                meta.extra.flags |= BEHIND_SID;
                // Linux: `input_action_end_b6_encap`, which says for `ip_tunnel_xmit` what is inside. A headend does not.
                if policy.mode == HeadendMode::Encap {
                    meta.extra.inside = len as u32;
                }
                verdict
            }
            Next::Deliver => {
                // Not as it came in: a kernel beside the router has no such packet of its own.
                meta.extra.lookups_done += 1;
                Verdict::Deliver
            }
            Next::Program(bpf, srh) => run_program(self, view, meta, bpf, srh),
        }
    }

    /// Puts the headers of a policy, which the action has, before or into a packet.
    pub(crate) fn insert<T: Trace>(
        &mut self,
        view: &View<'_>,
        meta: &mut PacketMeta,
        id: ActionId,
        policy: &Headend,
        trace: &mut T,
    ) -> Verdict {
        let room = usize::from(policy.room);
        match meta.encapsulate(id).and_then(|()| reserve_headroom(self, meta, room, trace)) {
            Ok(()) => {
                let bytes = meta.packet.len();
                let verdict = srv6::headend(view, meta, policy, trace);
                match verdict {
                    Verdict::Refuse(_) => self.count_error(policy.counter),
                    _ => {
                        self.count(policy.counter, bytes);
                        meta.behaved(policy.counter, bytes);
                    }
                }
                verdict
            }
            Err(error) => {
                self.count_error(policy.counter);
                Verdict::Refuse(error)
            }
        }
    }

    /// A route type that forwards nothing.
    #[inline(always)]
    pub(crate) fn discard(&mut self, view: &View<'_>, meta: &mut PacketMeta, discard: Discard) -> Verdict {
        match discard {
            Discard::Blackhole if meta.is(TUNNELLED) && tunnel::tells_of_blackhole(view, meta) => {
                Verdict::error(DropReason::Blackhole, IcmpError::AddressUnreachable)
            }
            Discard::Blackhole => Verdict::drop(DropReason::Blackhole),
            Discard::Unreachable => Verdict::error(DropReason::Unreachable, IcmpError::Unreachable),
            Discard::Prohibit => Verdict::error(DropReason::Prohibited, IcmpError::Prohibited),
            Discard::Throw => {
                // On with what was looked up, which at a SID may be another address than the packet's destination.
                let is_ipv6 = meta.packet.bytes().first().is_some_and(|first| first >> 4 == 6);
                let what = if is_ipv6 { Slow::Target6 } else { Slow::Target4 };
                Verdict::slow(meta, meta.extra.looked_in, what)
            }
        }
    }
}

/// A behaviour that names no tables looks up as packets are that come in by the link by which this one has: by its VRF, by
/// rules with its name. Linux: `seg6_lookup_any_nexthop`, and `ip_route_input` of the device for IPv4.
fn by_ingress<'a>(view: &View<'_>, meta: &PacketMeta, sid: &'a Endpoint, next: Next<'a>) -> Next<'a> {
    if meta.is(LED_INTO_VRF) {
        return next;
    }
    // What is behind a label that has led to `lo` comes in by that, as what the router itself sends.
    let link = view.link(meta.ingress).filter(|_| !meta.is(BEHIND_LABEL));
    if link.is_none() && !meta.is(BEHIND_LABEL) {
        return next;
    }
    let by = |lookup| link.map_or_else(|| view.own_lookup(lookup), |link| link.lookup);
    // An IPv4 packet that was inside comes from the device of the VRF, as the IPv6 packet around it did.
    let by4 = |lookup| {
        let device = if link.is_some_and(|link| link.in_vrf) { view.vrf_of(by(lookup)) } else { None };
        device.map_or_else(|| by(lookup), |(_, device)| device.lookup)
    };
    match (&sid.behaviour, next) {
        (Behaviour::End { .. } | Behaviour::X(_) | Behaviour::DX6(_), Next::Look6(lookup, address)) => {
            Next::Look6(by(lookup), address)
        }
        (Behaviour::DX4(_), Next::Look4(lookup, address)) => Next::Look4(by4(lookup), address),
        (Behaviour::X(via) | Behaviour::DX6(via) | Behaviour::DX4(via), Next::Forward(_))
            if via.lookup != by(via.lookup) =>
        {
            match via.address {
                IpAddr::V6(address) => Next::Look6(by(via.lookup), address),
                IpAddr::V4(address) => Next::Look4(by4(via.lookup), address),
            }
        }
        (_, next) => next,
    }
}

/// What a look-up led to.
#[inline(always)]
fn looked(leaf: Option<ActionId>) -> Verdict {
    match leaf {
        Some(leaf) => Verdict::Act(leaf),
        None => Verdict::error(DropReason::NoRoute, IcmpError::NoRoute),
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
                members.iter().map(|i| batch[*i].meta.target6.to_bits()).collect();
            if let Some(fib) = fibs.fib6(view, lookup) {
                fib.lookup_batch(&targets, found, view.guard);
            }
        } else {
            let targets: ArrayVec<u32, BURST> =
                members.iter().map(|i| batch[*i].meta.target4.to_bits()).collect();
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
