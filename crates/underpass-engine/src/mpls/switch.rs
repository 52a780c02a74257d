//! Label switching: RFC 3031 section 3.13. A label is swapped, or taken off on the way to a next hop. Labels that end here are
//! `pop.rs`'s.

use underpass_packet::mpls::Entry;
use underpass_packet::{FromBytes, IntoBytes, ethernet, mpls};

use crate::buffer::Packet;
use crate::counters::{Count, CounterId, Counters, MplsCount};
use crate::drops::DropReason;
use crate::mpls::pop::{hand_ip, pop_run, switch_to, uncover};
use crate::mpls::{MPLS, Sent, action_of, entries, error, kept_class, write_labels};
use crate::tables::{
    Action, IpVersion, LONGEST_LINK_LAYER, LabelAction, NextHopId, StoredNextHop, Switch, SwitchTo,
};
use crate::trace::{Event, Trace};
use crate::worker::env::{BurstContext, Env, Packets};
use crate::worker::error::IcmpError;
use crate::worker::headroom::reserve_headroom;
use crate::worker::metadata::{GENERATED, LABELLED, PacketMeta, SWITCHED};
use crate::worker::path::{Burst, Path};
use crate::worker::rewrite::{ETHERNET, FastVerdict, addresses, write_header};
use crate::worker::verdict::Verdict;
use crate::worker::view::View;

/// What packets in a row have in common, counted once for all of them.
#[derive(Default)]
pub(crate) struct LabelRun {
    pub(crate) label: u32,
    pub(crate) packets: u64,
    /// From the first label on.
    pub(crate) bytes: u64,
    /// Those that still have labels as they leave.
    sent: Sent,
}

/// Takes consecutive labelled packets to their ports, from `packet` on. Returns the packet that ended the run.
#[inline(never)]
pub(crate) fn label_run<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    context: &mut BurstContext<'_, '_, '_, T>,
    packets: &mut Packets<'_>,
    mut packet: Packet,
) -> Option<Packet> {
    let mut run = LabelRun::default();
    let following = loop {
        let next = match label_one(path, context, &mut run, packet) {
            Some((packet, switch)) => pop_run(path, context, packets, &mut run, packet, switch),
            None => packets.next(),
        };
        packet = match next {
            Some(packet) => packet,
            None => break None,
        };
        if !context.env.is_labelled(packet.bytes()) {
            break Some(packet);
        }
    };
    flush_label(path, &mut run);
    run.sent.flush(&mut path.transmit);
    following
}

/// Switches a packet by its first label. Returns the packet, unchanged, and the action of its label if that ends here.
#[inline(always)]
fn label_one<'v, const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    context: &mut BurstContext<'_, 'v, '_, T>,
    run: &mut LabelRun,
    mut packet: Packet,
) -> Option<(Packet, &'v Switch)> {
    let (label, bytes) = (first_label(&packet), packet.len() - ETHERNET);
    match label_fast(context.env.view, &mut packet) {
        Some(Through::Leaves(out)) => {
            count_label(path, run, (label, bytes), (out, &packet));
            path.send_frame(out, packet, context.trace);
        }
        Some(Through::Ends(switch)) => return Some((packet, switch)),
        None => path.enter_slow_path(context, packet),
    }
    None
}

/// Counts a packet for the label that it came with: `bytes` from that label on, before it was switched.
#[inline(always)]
pub(crate) fn count_label<const COUNT: bool>(
    path: &mut Path<COUNT>,
    run: &mut LabelRun,
    (label, bytes): (u32, usize),
    (out, packet): (FastVerdict, &Packet),
) {
    if !COUNT {
        return;
    }
    if run.label != label {
        flush_label(path, run);
        run.label = label;
    }
    run.packets += 1;
    run.bytes += bytes as u64;
    if packet.bytes().get(ETHERNET - 2..ETHERNET) == Some(&MPLS[..]) {
        run.sent.count(out, &mut path.transmit);
    }
}

#[inline(always)]
fn flush_label<const COUNT: bool>(path: &mut Path<COUNT>, run: &mut LabelRun) {
    let (packets, bytes) = (std::mem::take(&mut run.packets), std::mem::take(&mut run.bytes));
    if packets != 0 {
        path.counters.add(CounterId::of_label(run.label), Count { packets, bytes, errors: 0 });
        path.labelled.count(packets, bytes);
    }
}

impl Env<'_, '_> {
    /// Whether a frame for this router has labels that are looked at.
    #[inline(always)]
    pub(crate) fn is_labelled(&self, frame: &[u8]) -> bool {
        self.link.mpls && self.is_of_type(frame, ethernet::MPLS)
    }

    /// Prefetches the labels of a burst, where the table is not in the cache.
    #[inline(always)]
    pub(crate) fn prefetch_labels(&self, burst: &Burst, counters: Option<&Counters>) {
        let labels = self.view.tables.labels();
        if !self.link.mpls || labels.is_hot() {
            return;
        }
        for packet in burst.iter().filter(|packet| self.is_labelled(packet.bytes())) {
            if let Some(Ok((entry, _))) = packet.bytes().get(ETHERNET..).map(Entry::read_from_prefix) {
                labels.prefetch(entry.label());
                if let Some(counters) = counters {
                    counters.prefetch_label(entry.label());
                }
            }
        }
    }
}

/// What the first label of a packet has led to.
pub(crate) enum Through<'v> {
    /// It leaves.
    Leaves(FastVerdict),
    /// The label ends here; the packet is as it was.
    Ends(&'v Switch),
}

/// Takes the labelled packet in a frame to its port, or says that its label ends here. `None`: it is not so simple, and as
/// it was.
#[inline(always)]
pub(crate) fn label_fast<'v>(view: &'v View<'_>, packet: &mut Packet) -> Option<Through<'v>> {
    let stack = packet.bytes().get(ETHERNET..)?;
    let (entry, _) = Entry::read_from_prefix(stack).ok()?;
    if entry.ttl() <= 1 || !entry.is_bottom() && !has_bottom(stack) {
        return None;
    }
    let len = packet.len();
    let out = match action_of(view, entry.label(), stack)? {
        LabelAction::Swap { label, next_hop } => {
            let next_hop = view.tables.next_hop(next_hop, view.guard)?;
            let mac = addresses(next_hop, stack.len())?;
            let (head, stack) = packet.bytes_mut().split_first_chunk_mut()?;
            write_header(head, mac, ethernet::MPLS);
            let new = entry.swapped(label, view.tables.labels().kept(), entry.ttl() - 1);
            new.write_to_prefix(stack).ok()?;
            Some((next_hop.port, len as u32))
        }
        LabelAction::Pop { next_hop, propagate } => {
            let next_hop = view.tables.next_hop(next_hop, view.guard)?;
            replace(view, packet, len, entry, &[], (propagate, None), next_hop)
        }
        LabelAction::SwapPush { labels, next_hop } => {
            let next_hop = view.tables.next_hop(next_hop, view.guard)?;
            replace(view, packet, len, entry, &entries(labels), (true, None), next_hop)
        }
        LabelAction::NextHops(_) => None,
        LabelAction::Act(id) => match view.tables.action(id, view.guard)? {
            Action::Switch(Switch { labels, to: SwitchTo::NextHop(next_hop), propagate, payload }) => {
                let next_hop = view.tables.next_hop(*next_hop, view.guard)?;
                replace(view, packet, len, entry, labels, (*propagate, *payload), next_hop)
            }
            Action::Switch(switch) if switch.labels.is_empty() => return Some(Through::Ends(switch)),
            _ => None,
        },
    };
    out.map(Through::Leaves)
}

/// Takes the label `entry` off the packet in a frame of `len` bytes, puts others on, and sends it to `next_hop`. What lies
/// behind is cut off where none are put on. `None`: it is not so simple, and as it was.
#[inline(always)]
fn replace(
    view: &View<'_>,
    packet: &mut Packet,
    len: usize,
    entry: Entry,
    labels: &[u8],
    (propagate, payload): (bool, Option<IpVersion>),
    next_hop: &StoredNextHop,
) -> Option<FastVerdict> {
    let len = len - Entry::LEN + labels.len();
    let mac = addresses(next_hop, len - ETHERNET)?;
    if labels.is_empty() {
        if view.tables.labels().is_uniform() {
            // What is below takes over the class too: on the slow path.
            return None;
        }
        let frame = packet.bytes_mut();
        let (head, inside) = frame.get_mut(Entry::LEN..)?.split_first_chunk_mut::<ETHERNET>()?;
        let ethertype = match entry.is_bottom() {
            true => hand_ip(inside, entry, (propagate, true), (None, payload))?,
            false => ethernet::MPLS,
        };
        write_header(head, mac, ethertype);
        packet.narrow(Entry::LEN, len);
    } else {
        let frame = packet.push(labels.len() - Entry::LEN).ok()?;
        let (head, stack) = frame.split_first_chunk_mut::<ETHERNET>()?;
        write_header(head, mac, ethernet::MPLS);
        write_labels(stack, labels, (kept_class(view, entry), entry.ttl() - 1), entry.is_bottom())?;
    }
    Some((next_hop.port, len as u32))
}

/// Whether a stack ends within the packet. Most that have a second label end with it.
#[inline(always)]
pub(crate) fn has_bottom(stack: &[u8]) -> bool {
    let second = stack.get(Entry::LEN..).map(Entry::read_from_prefix);
    matches!(second, Some(Ok((entry, _))) if entry.is_bottom()) || mpls::depth(stack).is_ok()
}

/// The first label stack entry of a frame.
#[inline(always)]
pub(crate) fn first_entry(packet: &Packet) -> Option<Entry> {
    Some(Entry::read_from_prefix(packet.bytes().get(ETHERNET..)?).ok()?.0)
}

/// The label of a frame that is labelled.
#[inline(always)]
pub(crate) fn first_label(packet: &Packet) -> u32 {
    first_entry(packet).map_or(0, Entry::label)
}

/// Does to a packet what its label says.
pub(crate) fn switch_labelled<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    meta: &mut PacketMeta,
    trace: &mut T,
) -> Verdict {
    let bytes = meta.packet.bytes();
    let (label, len) = (Entry::read_from_prefix(bytes).ok().map(|(entry, _)| entry.label()), bytes.len());
    let verdict = switch_label(path, view, meta, trace).unwrap_or_else(Verdict::drop);
    if !COUNT || meta.is(GENERATED) {
        return verdict;
    }
    let counter = label.filter(|label| view.tables.labels().get(*label).is_some());
    let counter = counter.map(CounterId::of_label);
    let Verdict::Refuse(error) = verdict else {
        path.count(counter, len);
        meta.extra.counted.set(counter.map(|counter| (counter, len as u32)));
        return verdict;
    };
    path.count_error(counter);
    match error.reason() {
        DropReason::LabelUnknown => {
            path.counters.add_mpls(meta.ingress, MplsCount { rx_noroute: 1, ..MplsCount::default() });
        }
        // It counts where it would have been sent.
        DropReason::TooBig => {}
        _ => path.counters.add_mpls(meta.ingress, MplsCount { rx_errors: 1, ..MplsCount::default() }),
    }
    verdict
}

fn switch_label<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    meta: &mut PacketMeta,
    trace: &mut T,
) -> Result<Verdict, DropReason> {
    meta.extra.flags |= LABELLED | SWITCHED;
    if meta.extra.labels == 0 {
        meta.extra.labels = meta.packet.headroom() as u32;
    }
    let bytes = meta.packet.bytes();
    mpls::depth(bytes).map_err(|_| DropReason::LabelStackMalformed)?;
    let (entry, _) = Entry::read_from_prefix(bytes).map_err(|_| DropReason::LabelStackMalformed)?;
    let action = action_of(view, entry.label(), bytes);
    trace.step(Event::Label(entry.label(), action), &meta.packet);
    match action.ok_or(DropReason::LabelUnknown)? {
        _ if entry.ttl() <= 1 => Ok(Verdict::error(DropReason::HopLimitExceeded, IcmpError::HopLimit)),
        LabelAction::Swap { label, next_hop } => {
            if let Some(verdict) = refuse_long(path, view, meta, next_hop, Entry::LEN) {
                return Ok(verdict);
            }
            let new = entry.swapped(label, view.tables.labels().kept(), lowered(meta, entry));
            meta.extra.labels = 0;
            new.write_to_prefix(meta.packet.bytes_mut()).map_err(|_| DropReason::LabelStackMalformed)?;
            Ok(Verdict::Forward(next_hop))
        }
        LabelAction::Pop { next_hop, propagate } => {
            if let Some(verdict) = refuse_long(path, view, meta, next_hop, 0) {
                return Ok(verdict);
            }
            meta.packet.pull(Entry::LEN);
            uncover(view, meta, entry, (propagate, true), None)?;
            Ok(Verdict::Forward(next_hop))
        }
        LabelAction::SwapPush { labels, next_hop } => {
            let new = entries(labels);
            if let Some(verdict) = refuse_long(path, view, meta, next_hop, new.len()) {
                return Ok(verdict);
            }
            if let Err(error) = reserve_headroom(path, meta, new.len() + LONGEST_LINK_LAYER, trace) {
                return Ok(Verdict::Refuse(error));
            }
            put_in_place(view, meta, entry, &new)?;
            Ok(Verdict::Forward(next_hop))
        }
        LabelAction::Act(id) => match view.tables.action(id, view.guard) {
            Some(Action::Switch(switch)) => {
                if let SwitchTo::NextHop(next_hop) = switch.to
                    && let Some(verdict) = refuse_long(path, view, meta, next_hop, switch.labels.len())
                {
                    return Ok(verdict);
                }
                let room = switch.labels.len() + LONGEST_LINK_LAYER;
                match reserve_headroom(path, meta, room, trace) {
                    Ok(()) => switch_to(view, meta, entry, switch),
                    Err(error) => Ok(Verdict::Refuse(error)),
                }
            }
            Some(Action::Discard(_)) => Err(DropReason::Blackhole),
            _ => Err(DropReason::LabelUnknown),
        },
        LabelAction::NextHops(_) => Err(DropReason::LabelUnknown),
    }
}

/// What becomes of a packet that is too long for a next hop: [`error::refuse_long`].
fn refuse_long<const COUNT: bool>(
    path: &Path<COUNT>,
    view: &View<'_>,
    meta: &mut PacketMeta,
    next_hop: NextHopId,
    labels: usize,
) -> Option<Verdict> {
    let next_hop = view.tables.next_hop(next_hop, view.guard)?;
    let refused = error::refuse_long(meta, next_hop, labels);
    if refused.is_some() {
        path.counters.add_mpls(next_hop.link, MplsCount { tx_errors: 1, ..MplsCount::default() });
    }
    refused
}

/// Puts others in the place of the label `entry`.
pub(crate) fn put_in_place(
    view: &View<'_>,
    meta: &mut PacketMeta,
    entry: Entry,
    labels: &[u8],
) -> Result<(), DropReason> {
    let written = (kept_class(view, entry), lowered(meta, entry));
    meta.extra.labels = 0;
    meta.packet.pull(Entry::LEN);
    let room = meta.packet.push(labels.len()).map_err(|_| DropReason::NoHeadroom)?;
    write_labels(room, labels, written, entry.is_bottom()).ok_or(DropReason::NoHeadroom)
}

/// The TTL of labels in the place of one that has been taken off.
fn lowered(meta: &PacketMeta, entry: Entry) -> u8 {
    entry.ttl().saturating_sub(u8::from(!meta.is(GENERATED)))
}
