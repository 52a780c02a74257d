//! Label switching: RFC 3031 section 3.10 and RFC 3032, as Linux's `mpls_forward` and `mpls_xmit` do it.
//!
//! A label is looked up, taken off, and others may take its place. Their TTL is that of the label that
//! came, less one; their traffic class is 0. A label without another in its place leaves what was below it.
//!
//! Where classes are uniform (RFC 3270 section 2.6.2, `net.mpls.tc_propagate`) labels have that of what they are put
//! on or take the place of, and hand it down to what is below them with their TTL.

use underpass_packet::mpls::{self, Entry};
use underpass_packet::{FromBytes, IntoBytes, ethernet, ipv4, ipv6};

use super::road::{BEHIND_LABEL, GENERATED, LABELLED, SWITCHED, UNFINISHED};
use super::{IcmpError, Path, Road, Step, View, ipv4_check, ipv6_check, lsp};
use crate::buffer::Packet;
use crate::counters::{CounterId, Counters, MplsCount};
use crate::drops::Drop;
use crate::flow;
use crate::tables::{
    Action, ActionId, IpVersion, LONGEST_LINK_LAYER, LabelAction, LinkId, LookupId, NextHop, NextHopId, Push,
    Switch, SwitchTo,
};
use crate::trace::{Event, Trace};

/// The EtherType of labelled packets.
pub(super) const MPLS: [u8; 2] = ethernet::MPLS.to_be_bytes();

/// Labelled packets of a burst that came in.
#[derive(Default)]
pub(super) struct Labelled {
    packets: u64,
    bytes: u64,
}

impl Labelled {
    #[inline(always)]
    pub(super) fn count(&mut self, packets: u64, bytes: u64) {
        self.packets += packets;
        self.bytes += bytes;
    }

    /// Adds them to what their link has counted.
    #[inline(always)]
    pub(super) fn flush(&mut self, counters: &Counters, link: LinkId) {
        if self.packets != 0 {
            let Self { packets: rx_packets, bytes: rx_bytes } = std::mem::take(self);
            counters.add_mpls(link, MplsCount { rx_packets, rx_bytes, ..MplsCount::default() });
        }
    }
}

impl<const COUNT: bool> Path<COUNT> {
    /// Does to a packet what its label says.
    pub(super) fn label<T: Trace>(&mut self, view: &View<'_>, road: &mut Road, trace: &mut T) -> Step {
        let bytes = road.packet.bytes();
        let (label, len) = (Entry::read_from_prefix(bytes).ok().map(|(entry, _)| entry.label()), bytes.len());
        let step = self.switch_label(view, road, trace).unwrap_or_else(Step::drop);
        if !COUNT || road.is(GENERATED) {
            return step;
        }
        let counter = label.filter(|label| view.tables.labels().get(*label).is_some());
        let counter = counter.map(CounterId::of_label);
        let Step::Refuse(refusal) = step else {
            self.count(counter, len);
            road.extra.counted = counter.map(|counter| (counter, len as u32));
            return step;
        };
        self.count_error(counter);
        match refusal.reason() {
            Drop::LabelUnknown => {
                self.counters.add_mpls(road.ingress, MplsCount { rx_noroute: 1, ..MplsCount::default() });
            }
            // It counts where it would have been sent.
            Drop::TooBig => {}
            _ => self.counters.add_mpls(road.ingress, MplsCount { rx_errors: 1, ..MplsCount::default() }),
        }
        step
    }

    fn switch_label<T: Trace>(
        &mut self,
        view: &View<'_>,
        road: &mut Road,
        trace: &mut T,
    ) -> Result<Step, Drop> {
        road.extra.flags |= LABELLED | SWITCHED;
        if road.extra.labels == 0 {
            road.extra.labels = road.packet.headroom() as u32;
        }
        let bytes = road.packet.bytes();
        mpls::depth(bytes).map_err(|_| Drop::LabelStackMalformed)?;
        let (entry, _) = Entry::read_from_prefix(bytes).map_err(|_| Drop::LabelStackMalformed)?;
        let action = action_of(view, entry.label(), bytes);
        trace.step(Event::Label(entry.label(), action), &road.packet);
        match action.ok_or(Drop::LabelUnknown)? {
            _ if entry.ttl() <= 1 => Ok(Step::error(Drop::HopLimitExceeded, IcmpError::HopLimit)),
            LabelAction::Swap { label, next_hop } => {
                if let Some(step) = self.refuse_long(view, road, next_hop, Entry::LEN) {
                    return Ok(step);
                }
                let new = entry.swapped(label, view.tables.labels().kept(), lowered(road, entry));
                road.extra.labels = 0;
                new.write_to_prefix(road.packet.bytes_mut()).map_err(|_| Drop::LabelStackMalformed)?;
                Ok(Step::Forward(next_hop))
            }
            LabelAction::Pop { next_hop, propagate } => {
                if let Some(step) = self.refuse_long(view, road, next_hop, 0) {
                    return Ok(step);
                }
                road.packet.pull(Entry::LEN);
                uncover(view, road, entry, (propagate, true), None)?;
                Ok(Step::Forward(next_hop))
            }
            LabelAction::SwapPush { labels, next_hop } => {
                let new = entries(labels);
                if let Some(step) = self.refuse_long(view, road, next_hop, new.len()) {
                    return Ok(step);
                }
                if let Err(refusal) = self.make_room(road, new.len() + LONGEST_LINK_LAYER, trace) {
                    return Ok(Step::Refuse(refusal));
                }
                put_in_place(view, road, entry, &new)?;
                Ok(Step::Forward(next_hop))
            }
            LabelAction::Act(id) => match view.tables.action(id, view.guard) {
                Some(Action::Switch(switch)) => {
                    if let SwitchTo::NextHop(next_hop) = switch.to
                        && let Some(step) = self.refuse_long(view, road, next_hop, switch.labels.len())
                    {
                        return Ok(step);
                    }
                    let room = switch.labels.len() + LONGEST_LINK_LAYER;
                    match self.make_room(road, room, trace) {
                        Ok(()) => switch_to(view, road, entry, switch),
                        Err(refusal) => Ok(Step::Refuse(refusal)),
                    }
                }
                Some(Action::Discard(_)) => Err(Drop::Blackhole),
                _ => Err(Drop::LabelUnknown),
            },
            LabelAction::Ways(_) => Err(Drop::LabelUnknown),
        }
    }

    /// What becomes of a packet that is too long for a next hop: [`lsp::refuse_long`].
    fn refuse_long(
        &self,
        view: &View<'_>,
        road: &mut Road,
        next_hop: NextHopId,
        labels: usize,
    ) -> Option<Step> {
        let next_hop = view.tables.next_hop(next_hop, view.guard)?;
        let refused = lsp::refuse_long(road, next_hop, labels);
        if refused.is_some() {
            self.counters.add_mpls(next_hop.link, MplsCount { tx_errors: 1, ..MplsCount::default() });
        }
        refused
    }

    /// Counts a packet of a frame with labels that no label was looked up for.
    #[cold]
    pub(super) fn count_unlooked(&self, road: &Road, reason: Drop) {
        let mut count =
            MplsCount { rx_packets: 1, rx_bytes: road.packet.len() as u64, ..MplsCount::default() };
        match reason {
            Drop::MplsOff if !road.is(LABELLED) => count.rx_dropped = 1,
            Drop::GroupFrame if road.link_layer().is_some_and(|frame| frame[12..] == MPLS) => {
                count.rx_errors = 1;
            }
            _ => return,
        }
        self.counters.add_mpls(road.ingress, count);
    }

    /// Puts labels on an IP packet, which is forwarded by that.
    pub(super) fn push_labels<T: Trace>(
        &mut self,
        view: &View<'_>,
        road: &mut Road,
        (id, push): (ActionId, &Push),
        trace: &mut T,
    ) -> Step {
        let Some(next_hop) = view.tables.next_hop(push.next_hop, view.guard) else {
            return Step::drop(Drop::NoRoute);
        };
        if road.is(UNFINISHED) {
            return Step::Finish(id);
        }
        let room = NextHop { mtu: next_hop.mtu.saturating_sub(push.labels.len() as u32), ..**next_hop };
        match self.leave(view, road, &room) {
            Ok(true) => {}
            Ok(false) => return Step::FragmentLabelled(id),
            Err(step) => return step,
        }
        if let Err(refusal) = self.make_room(road, push.labels.len() + LONGEST_LINK_LAYER, trace) {
            return Step::Refuse(refusal);
        }
        if put_on(view, &mut road.packet, push).is_none() {
            return Step::drop(Drop::NoHeadroom);
        }
        road.wrapped(push.labels.len(), None);
        road.extra.flags |= LABELLED | SWITCHED;
        Step::Forward(push.next_hop)
    }
}

/// What a packet that its labels have led here is before it goes to `next_hop`. `Ok(false)`: it has to be fragmented.
pub(super) fn leave(road: &mut Road, next_hop: &NextHop) -> Result<bool, Step> {
    let mtu = next_hop.mtu as usize;
    if road.packet.fits(mtu) {
        return Ok(true);
    }
    if lsp::may_be_cut(road) { Ok(false) } else { Err(lsp::too_long(road, mtu)) }
}

/// The TTL of labels in the place of one that has been taken off.
fn lowered(road: &Road, entry: Entry) -> u8 {
    entry.ttl().saturating_sub(u8::from(!road.is(GENERATED)))
}

/// Whether packets with this label are looked up here, in other tables than those of `instance`.
pub(super) fn looks_elsewhere(view: &View<'_>, stack: &[u8], label: u32, instance: LookupId) -> bool {
    let Some(LabelAction::Act(id)) = action_of(view, label, stack) else { return false };
    match view.tables.action(id, view.guard) {
        Some(Action::Switch(Switch { to: SwitchTo::Here { lookup, .. }, .. })) => {
            view.own_lookup(*lookup) != view.own_lookup(instance)
        }
        _ => false,
    }
}

/// Puts the labels on a packet. `None`: no room, and it is as it was.
fn put_on(view: &View<'_>, packet: &mut Packet, push: &Push) -> Option<()> {
    let written = (pushed_class(view, packet.bytes())?, ttl_of(push, packet.bytes()));
    let room = packet.push(push.labels.len()).ok()?;
    write_labels(room, &push.labels, written, true)
}

/// The labels that a push puts on a packet, with its TTL and its class.
pub(super) fn stack_of(view: &View<'_>, push: &Push, packet: &[u8]) -> Option<lsp::Stack> {
    let written = (pushed_class(view, packet)?, ttl_of(push, packet));
    let mut stack = lsp::Stack::new();
    stack.try_extend_from_slice(&push.labels).ok()?;
    write_labels(&mut stack, &push.labels, written, true)?;
    Some(stack)
}

/// The traffic class of labels that are put on an IP packet. `None`: it is none.
#[inline(always)]
fn pushed_class(view: &View<'_>, packet: &[u8]) -> Option<u8> {
    if view.tables.labels().is_uniform() { class_of(packet) } else { Some(0) }
}

/// The traffic class of labels with that of an IP packet: the bits of its DSCP that select a class, RFC 2474
/// section 4.2.2.
#[inline(always)]
pub(super) fn class_of(packet: &[u8]) -> Option<u8> {
    let [first, second, ..] = packet else { return None };
    Some(if first >> 4 == 6 { (first & 0xf) >> 1 } else { second >> 5 })
}

/// The TTL of labels that are put on a packet.
#[inline(always)]
fn ttl_of(push: &Push, packet: &[u8]) -> u8 {
    let own = match packet.first() {
        Some(first) if first >> 4 == 6 => packet.get(7),
        _ => packet.get(8),
    };
    push.ttl.or(own.copied()).unwrap_or_default()
}

/// Writes entries to the front of `room`, the last of them as the bottom of the stack or not. They are of class 0
/// in `labels`.
#[inline(always)]
pub(super) fn write_labels(
    room: &mut [u8],
    labels: &[u8],
    (class, ttl): (u8, u8),
    bottom: bool,
) -> Option<()> {
    let room = room.get_mut(..labels.len())?;
    for (entry, label) in
        room.as_chunks_mut::<{ Entry::LEN }>().0.iter_mut().zip(labels.as_chunks::<{ Entry::LEN }>().0)
    {
        *entry = *label;
        entry[2] |= class << 1;
        entry[3] = ttl;
    }
    if let [.., flags, _] = room {
        *flags = *flags & !1 | u8::from(bottom);
    }
    Some(())
}

/// What is done to a packet with this label, of several ways that of its flow.
#[inline(always)]
pub(super) fn action_of(view: &View<'_>, label: u32, stack: &[u8]) -> Option<LabelAction> {
    let labels = view.tables.labels();
    match labels.get(label)? {
        LabelAction::Ways(ways) => labels.choose(ways, flow::hash_labelled(stack)),
        action => Some(action),
    }
}

/// Two labels as they are put on: traffic classes, TTLs and bottom bits 0.
#[inline(always)]
pub(super) fn entries([first, last]: [u32; 2]) -> [u8; 2 * Entry::LEN] {
    let mut bytes = [0; 2 * Entry::LEN];
    bytes[..Entry::LEN].copy_from_slice(Entry::new(first, 0, false, 0).as_bytes());
    bytes[Entry::LEN..].copy_from_slice(Entry::new(last, 0, false, 0).as_bytes());
    bytes
}

/// Puts others in the place of the label `entry`.
fn put_in_place(view: &View<'_>, road: &mut Road, entry: Entry, labels: &[u8]) -> Result<(), Drop> {
    let written = (kept_class(view, entry), lowered(road, entry));
    road.extra.labels = 0;
    road.packet.pull(Entry::LEN);
    let room = road.packet.push(labels.len()).map_err(|_| Drop::NoHeadroom)?;
    write_labels(room, labels, written, entry.is_bottom()).ok_or(Drop::NoHeadroom)
}

/// The traffic class of labels in the place of `entry`.
#[inline(always)]
pub(super) fn kept_class(view: &View<'_>, entry: Entry) -> u8 {
    if view.tables.labels().is_uniform() { entry.traffic_class() } else { 0 }
}

/// Takes off the label `entry`, which is still on the packet, and does what its route says.
fn switch_to(view: &View<'_>, road: &mut Road, entry: Entry, switch: &Switch) -> Result<Step, Drop> {
    if switch.labels.is_empty() {
        road.packet.pull(Entry::LEN);
        let lower = !matches!(switch.to, SwitchTo::Here { hop: false, .. });
        uncover(view, road, entry, (switch.propagate, lower), switch.payload)?;
    } else {
        put_in_place(view, road, entry, &switch.labels)?;
    }
    match switch.to {
        SwitchTo::NextHop(next_hop) => Ok(Step::Forward(next_hop)),
        SwitchTo::Here { lookup, labels, .. } if road.is(LABELLED) => {
            let turn = if labels { Step::Label } else { Step::drop(Drop::MplsOff) };
            Ok(if road.turn(lookup) { turn } else { Step::drop(Drop::Loop) })
        }
        SwitchTo::Here { lookup, .. } => {
            road.extra.flags = road.extra.flags & !SWITCHED | BEHIND_LABEL;
            let bytes = road.packet.bytes();
            if bytes.first().is_some_and(|first| first >> 4 == 6) {
                let checked = ipv6_check(bytes)?;
                road.packet.truncate(checked.len);
                road.behaved(None, 0, checked.unusual);
                Ok(Step::look6(road, lookup, checked.destination))
            } else {
                let checked = ipv4_check(bytes)?;
                road.packet.truncate(checked.len);
                road.behaved(None, 0, checked.unusual);
                Ok(Step::look4(road, lookup, checked.destination))
            }
        }
    }
}

/// What was below a label that has been taken off: another one, or an IP packet, which takes over its TTL.
fn uncover(
    view: &View<'_>,
    road: &mut Road,
    entry: Entry,
    (propagate, lower): (bool, bool),
    payload: Option<IpVersion>,
) -> Result<(), Drop> {
    let class = handed_class(view, entry, propagate);
    if !entry.is_bottom() {
        return hand_label(road.packet.bytes_mut(), class).ok_or(Drop::LabelStackMalformed);
    }
    road.extra.flags &= !LABELLED;
    let lower = lower && !road.is(GENERATED);
    hand_ip(road.packet.bytes_mut(), entry, (propagate, lower), (class, payload))
        .map(|_| ())
        .ok_or(Drop::LabelPayload)
}

/// The traffic class that what is below a label takes over from it: RFC 3270 section 2.6.2. None where it keeps its
/// own TTL: the pipe model of section 2.6.3.
#[inline(always)]
fn handed_class(view: &View<'_>, entry: Entry, propagate: bool) -> Option<u8> {
    (view.tables.labels().is_uniform() && propagate).then(|| entry.traffic_class())
}

/// Gives the label at the front of `stack` a class, if there is one. `None`: there is no label.
#[inline(always)]
fn hand_label(stack: &mut [u8], class: Option<u8>) -> Option<()> {
    if let Some(class) = class {
        let (entry, _) = Entry::mut_from_prefix(stack).ok()?;
        *entry = entry.with_traffic_class(class);
    }
    Some(())
}

/// Gives an IP packet the TTL of the label that was taken off it, or leaves it its own; less one if that is
/// to be lowered: RFC 3443 sections 5.3 and 5.4. A class goes into the bits of the DSCP that select one; its others
/// and ECN stay. The EtherType of what it is. `None`: it is not as `payload` says, and as it was.
#[inline(always)]
pub(super) fn hand_ip(
    packet: &mut [u8],
    entry: Entry,
    (propagate, lower): (bool, bool),
    (class, payload): (Option<u8>, Option<IpVersion>),
) -> Option<u16> {
    let is6 = packet.first()? >> 4 == 6;
    let given = |own: u8, class: u8| own & 0x1f | class << 5;
    let new = |own| if propagate { entry.ttl() } else { own }.saturating_sub(u8::from(lower));
    if is6 && payload != Some(IpVersion::V4) {
        let (header, _) = ipv6::Header::mut_from_prefix(packet).ok()?;
        header.hop_limit = new(header.hop_limit);
        if let Some(class) = class {
            header.set_traffic_class(given(header.traffic_class(), class));
        }
        return Some(ethernet::IPV6);
    }
    let (header, _) = ipv4::Header::mut_from_prefix(packet).ok()?;
    if header.version() != 4 || payload == Some(IpVersion::V6) {
        return None;
    }
    header.update_ttl(new(header.ttl));
    if let Some(class) = class {
        header.update_tos(given(header.tos, class));
    }
    Some(ethernet::IPV4)
}
