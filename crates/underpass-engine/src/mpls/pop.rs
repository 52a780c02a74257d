//! Labels that end here: the IP packet below is looked up, or the label below.

use arrayvec::ArrayVec;
use underpass_packet::mpls::Entry;
use underpass_packet::{FromBytes, IntoBytes, ethernet, ipv4, ipv6, protocol};

use crate::buffer::Packet;
use crate::counters::CounterId;
use crate::drops::DropReason;
use crate::mpls::switch::{
    LabelRun, Through, count_label, first_entry, first_label, has_bottom, label_fast, put_in_place,
};
use crate::path::input::note_unusual;
use crate::path::ipv4::{check as ipv4_check, plain as ipv4_plain};
use crate::path::ipv6::{check as ipv6_check, plain as ipv6_plain};
use crate::path::options::Problem;
use crate::path::{self, options};
use crate::tables::{IpVersion, LabelAction, LinkId, LookupId, StoredNextHop, Switch, SwitchTo};
use crate::trace::Trace;
use crate::tunnel::hook::note_input;
use crate::worker::env::{BurstContext, Packets};
use crate::worker::fibs::{FibList, Fibs};
use crate::worker::metadata::{
    BEHIND_LABEL, Counted, Entered, GENERATED, LABELLED, LED_INTO_VRF, PacketMeta, SWITCHED,
};
use crate::worker::path::Path;
use crate::worker::rewrite::{ETHERNET, FastVerdict, addresses, next_hop_of, write_header};
use crate::worker::verdict::Verdict;
use crate::worker::view::View;

/// Where what is below the first label of a frame begins.
const BELOW: usize = ETHERNET + Entry::LEN;

/// Most labels below a label that are looked up on the fast path.
const MOST_POPPED: usize = 4;

/// What is done where a label ends, found once for packets in a row that have it.
struct Ended<'a> {
    /// The tables of each family, if it may be below and they are near.
    fib4: Option<FibList<'a, u32>>,
    fib6: Option<FibList<'a, u128>>,
    /// Whether a label below is looked up.
    labels: bool,
    /// What the TTL loses before the packet is forwarded.
    hop: u8,
    /// Whether the TTL is that of the label.
    propagate: bool,
}

impl<'a> Ended<'a> {
    /// `None`: it is not so simple.
    #[inline(always)]
    fn new(view: &View<'a>, fibs: &mut Fibs<'a>, switch: &Switch) -> Option<Self> {
        let SwitchTo::Here { lookup, labels, vrf } = switch.to else { return None };
        if view.tables.labels().is_uniform() {
            // What is below takes over the class too.
            return None;
        }
        if vrf.is_none() && view.tables.reads_input() {
            // It comes in by `lo`.
            return None;
        }
        let lookup = arrived(view, lookup, vrf);
        let fib4 = if switch.payload == Some(IpVersion::V6) { None } else { fibs.near4(view, lookup) };
        let fib6 = if switch.payload == Some(IpVersion::V4) { None } else { fibs.near6(view, lookup) };
        Some(Self { fib4, fib6, labels, hop: u8::from(vrf.is_none()), propagate: switch.propagate })
    }

    /// Forwards the IP packet below the only label in a frame. `None`: it is not so simple, and as it was.
    #[inline(always)]
    fn forward(&self, view: &View<'a>, packet: &mut Packet, ttl: u8) -> Option<FastVerdict> {
        let below = packet.bytes().get(BELOW..)?;
        if let Some((target, len)) = ipv4_plain(below, view.tables.plain_bits4()) {
            let next_hop = next_hop_of(view, self.fib4?.lookup(target, view.guard), below.get(..len)?)?;
            let left = self.left(if self.propagate { ttl } else { *below.get(8)? })?;
            let (inside, out) = uncover_fast(packet, len, next_hop, ethernet::IPV4)?;
            ipv4::Header::mut_from_prefix(inside).ok()?.0.update_ttl(left);
            packet.narrow(Entry::LEN, ETHERNET + len);
            return Some(out);
        }
        let (target, len) = ipv6_plain(below)?;
        let next_hop = next_hop_of(view, self.fib6?.lookup(target, view.guard), below.get(..len)?)?;
        let left = self.left(if self.propagate { ttl } else { *below.get(7)? })?;
        let (inside, out) = uncover_fast(packet, len, next_hop, ethernet::IPV6)?;
        ipv6::Header::mut_from_prefix(inside).ok()?.0.hop_limit = left;
        packet.narrow(Entry::LEN, ETHERNET + len);
        Some(out)
    }

    /// What is left of a TTL when the packet is forwarded.
    #[inline(always)]
    fn left(&self, ttl: u8) -> Option<u8> {
        let left = ttl.checked_sub(self.hop + 1)?;
        (left > 0).then_some(left)
    }
}

/// Writes the header of a frame in which the packet of `len` bytes is no longer behind a label. What is in it, and where
/// it leaves.
#[inline(always)]
fn uncover_fast<'p>(
    packet: &'p mut Packet,
    len: usize,
    next_hop: &StoredNextHop,
    ethertype: u16,
) -> Option<(&'p mut [u8], FastVerdict)> {
    let mac = addresses(next_hop, len)?;
    let frame = packet.bytes_mut().get_mut(Entry::LEN..)?;
    let (head, inside) = frame.split_first_chunk_mut::<ETHERNET>()?;
    write_header(head, mac, ethertype);
    Some((inside, (next_hop.port, (ETHERNET + len) as u32)))
}

/// Switches a packet by the label below the first, if another takes its place. Where it leaves, and which label it was.
/// `None`: it is not so simple, and as it was.
#[inline(always)]
fn switch_below(view: &View<'_>, packet: &mut Packet) -> Option<(FastVerdict, u32)> {
    let stack = packet.bytes().get(BELOW..)?;
    let (entry, _) = Entry::read_from_prefix(stack).ok()?;
    if entry.ttl() <= 1 || !entry.is_bottom() && !has_bottom(stack) {
        return None;
    }
    let labels = view.tables.labels();
    let LabelAction::Swap { label, next_hop } = labels.get(entry.label())? else { return None };
    let (len, next_hop) = (stack.len(), view.tables.next_hop(next_hop, view.guard)?);
    let (stack, out) = uncover_fast(packet, len, next_hop, ethernet::MPLS)?;
    entry.swapped(label, labels.kept(), entry.ttl() - 1).write_to_prefix(stack).ok()?;
    packet.pull(Entry::LEN);
    Some((out, entry.label()))
}

/// Takes packets in a row to their ports whose first label is that of `packet`, which ends here as `switch` says. The
/// one that follows the run.
#[inline(never)]
pub(crate) fn pop_run<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    context: &mut BurstContext<'_, '_, '_, T>,
    packets: &mut Packets<'_>,
    run: &mut LabelRun,
    mut packet: Packet,
    switch: &Switch,
) -> Option<Packet> {
    let view = context.env.view;
    let Some(ended) = Ended::new(view, context.fibs, switch) else {
        path.enter_slow_path(context, packet);
        return packets.next();
    };
    let label = first_label(&packet);
    // Of several ways the next packet's may be another.
    let one_way = !matches!(view.tables.labels().get(label), Some(LabelAction::NextHops(_)));
    loop {
        pop_one(path, context, run, packet, label, &ended);
        packet = packets.next()?;
        let same = one_way && context.env.is_labelled(packet.bytes()) && first_label(&packet) == label;
        if !same {
            return Some(packet);
        }
    }
}

#[inline(always)]
fn pop_one<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    context: &mut BurstContext<'_, '_, '_, T>,
    run: &mut LabelRun,
    mut packet: Packet,
    label: u32,
    ended: &Ended<'_>,
) {
    let view = context.env.view;
    let bytes = packet.len() - ETHERNET;
    let Some(entry) = first_entry(&packet).filter(|entry| entry.ttl() > 1) else {
        return path.enter_slow_path(context, packet);
    };
    let out = if entry.is_bottom() {
        ended.forward(view, &mut packet, entry.ttl())
    } else if !ended.labels {
        None
    } else if let Some((out, below)) = switch_below(view, &mut packet) {
        path.count(Some(CounterId::of_label(below)), bytes - Entry::LEN);
        Some(out)
    } else {
        return pop_deep(path, context, run, packet);
    };
    match out {
        Some(out) => {
            count_label(path, run, (label, bytes), (out, &packet));
            path.send_frame(out, packet, context.trace);
        }
        None => path.enter_slow_path(context, packet),
    }
}

/// Takes a packet to its port that has several labels, of which the first and perhaps others end here.
#[inline(never)]
fn pop_deep<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    context: &mut BurstContext<'_, '_, '_, T>,
    run: &mut LabelRun,
    mut packet: Packet,
) {
    let (view, bytes) = (context.env.view, packet.len() - ETHERNET);
    let first = first_label(&packet);
    let mut below = ArrayVec::<u32, MOST_POPPED>::new();
    let out = loop {
        // The frame begins later by that; its header is written anew where it leaves.
        packet.pull(Entry::LEN);
        below.push(first_label(&packet));
        let switch = match label_fast(view, &mut packet) {
            Some(Through::Leaves(out)) => break Some(out),
            Some(Through::Ends(switch)) => switch,
            None => break None,
        };
        let (entry, ended) = (first_entry(&packet), Ended::new(view, context.fibs, switch));
        match (entry, ended) {
            (Some(entry), Some(ended)) if entry.is_bottom() => {
                break ended.forward(view, &mut packet, entry.ttl());
            }
            (Some(_), Some(Ended { labels: true, .. })) if !below.is_full() => {}
            _ => break None,
        }
    };
    let Some(out) = out else {
        // As many bytes as have been taken off, which are still there.
        let _ = packet.push(below.len() * Entry::LEN);
        return path.enter_slow_path(context, packet);
    };
    count_label(path, run, (first, bytes), (out, &packet));
    if COUNT {
        for (label, popped) in below.into_iter().zip(1..) {
            path.count(Some(CounterId::of_label(label)), bytes - popped * Entry::LEN);
        }
    }
    path.send_frame(out, packet, context.trace);
}

/// How a packet is looked up below its last label: outside of a VRF as what the router itself sends, for Linux receives it
/// by `lo`.
#[inline(always)]
fn arrived(view: &View<'_>, lookup: LookupId, vrf: Option<LinkId>) -> LookupId {
    if vrf.is_some() { lookup } else { view.own_lookup(lookup) }
}

/// Takes off the label `entry`, which is still on the packet, and does what its route says.
pub(crate) fn switch_to(
    view: &View<'_>,
    meta: &mut PacketMeta,
    entry: Entry,
    switch: &Switch,
) -> Result<Verdict, DropReason> {
    if switch.labels.is_empty() {
        meta.packet.pull(Entry::LEN);
        let lower = !matches!(switch.to, SwitchTo::Here { vrf: Some(_), .. });
        uncover(view, meta, entry, (switch.propagate, lower), switch.payload)?;
    } else {
        put_in_place(view, meta, entry, &switch.labels)?;
    }
    if let SwitchTo::Here { vrf: Some(device), .. } = switch.to
        && !meta.is(GENERATED)
    {
        // It counts what does not go on, and no other.
        meta.extra.entered = Some(Entered { link: device, bytes: 0, vrf: true, drops: false });
    }
    match switch.to {
        SwitchTo::NextHop(next_hop) => Ok(Verdict::Forward(next_hop)),
        SwitchTo::Here { lookup, labels, .. } if meta.is(LABELLED) => {
            let turn = if labels { Verdict::Label } else { Verdict::drop(DropReason::MplsOff) };
            Ok(if meta.look_up_again(lookup) { turn } else { Verdict::drop(DropReason::Loop) })
        }
        SwitchTo::Here { lookup, vrf, .. } => {
            // Through the device of a VRF, as by a route.
            let (hop, into_vrf) = if vrf.is_some() { (false, LED_INTO_VRF) } else { (true, 0) };
            meta.extra.flags = meta.extra.flags & !SWITCHED | BEHIND_LABEL | into_vrf;
            if hop && view.tables.reads_input() {
                // Linux: `loopback_xmit`.
                note_input(view, &mut meta.packet, view.loopback());
            }
            let lookup = arrived(view, lookup, vrf);
            // An error about its options goes by the same tables.
            meta.extra.instance = lookup;
            let bytes = meta.packet.bytes();
            if bytes.first().is_some_and(|first| first >> 4 == 6) {
                let checked = ipv6_check(bytes)?;
                meta.packet.truncate(checked.len);
                meta.extra.counted = Counted::default();
                meta.behaved(None, 0);
                note_unusual(meta, checked.unusual);
                if hop && let Err(problem) = look_at_hop_by_hop(meta.packet.bytes()) {
                    return Ok(problem.refuse(meta));
                }
                Ok(Verdict::look6(meta, lookup, checked.destination))
            } else {
                let checked = ipv4_check(bytes)?;
                meta.packet.truncate(checked.len);
                meta.extra.counted = Counted::default();
                meta.behaved(None, 0);
                note_unusual(meta, checked.unusual);
                if hop && let Err(problem) = take_options(view, meta) {
                    return Ok(problem.refuse(meta));
                }
                Ok(Verdict::look4(meta, lookup, checked.destination))
            }
        }
    }
}

/// Looks at the options of an IPv4 packet that has come in by `lo`.
#[cold]
fn take_options(view: &View<'_>, meta: &mut PacketMeta) -> Result<(), Problem> {
    let Ok(packet) = ipv4::View::parse(meta.packet.bytes()) else { return Ok(()) };
    if !packet.options.is_empty() {
        options::check4(&packet)?;
        if let Some(link) = view.link(meta.ingress) {
            path::ipv4::take_options(view, meta, link);
        }
    }
    Ok(())
}

/// Looks at the hop-by-hop options of an IPv6 packet that has come in by `lo`, which fills no traces.
fn look_at_hop_by_hop(bytes: &[u8]) -> Result<(), Problem> {
    match ipv6::View::parse(bytes) {
        Ok(packet) if packet.header.next_header == protocol::HOP_BY_HOP => {
            path::ipv6::hop_by_hop(&packet, false).map(|_| ())
        }
        _ => Ok(()),
    }
}

/// What was below a label that has been taken off: another one, or an IP packet, which takes over its TTL.
pub(crate) fn uncover(
    view: &View<'_>,
    meta: &mut PacketMeta,
    entry: Entry,
    (propagate, lower): (bool, bool),
    payload: Option<IpVersion>,
) -> Result<(), DropReason> {
    let class = handed_class(view, entry, propagate);
    if !entry.is_bottom() {
        return hand_label(meta.packet.bytes_mut(), class).ok_or(DropReason::LabelStackMalformed);
    }
    meta.extra.flags &= !LABELLED;
    let lower = lower && !meta.is(GENERATED);
    hand_ip(meta.packet.bytes_mut(), entry, (propagate, lower), (class, payload))
        .map(|_| ())
        .ok_or(DropReason::LabelPayload)
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
pub(crate) fn hand_ip(
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
