//! Errors with packets inside a label-switched path: RFC 3032 sections 2.3 and 3, RFC 4950.
//!
//! The error goes to the sender of the IP packet below the labels, with the labels as received. If this router
//! knows no way to it, the message goes the way of the packet, with its labels: at the end of the path is
//! one that does.

use std::net::IpAddr;

use arrayvec::ArrayVec;
use underpass_packet::icmp_extension::QUOTED;
use underpass_packet::mpls::Entry;
use underpass_packet::{FromBytes, icmp_extension, ipv4, mpls};

use crate::buffer::Packet;
use crate::drops::DropReason;
use crate::path::icmp::send_generated;
use crate::path::ipv4::check as ipv4_check;
use crate::path::ipv6::check as ipv6_check;
use crate::path::rules;
use crate::path::source::finish_generated;
use crate::tables::NextHop;
use crate::worker::error::IcmpError;
use crate::worker::metadata::{LABELLED, PacketMeta, SWITCHED};
use crate::worker::path::Path;
use crate::worker::verdict::Verdict;
use crate::worker::view::View;

/// A label stack in wire order.
pub(crate) type Stack = ArrayVec<u8, { mpls::MAX_DEPTH * Entry::LEN }>;

/// The labels that a packet came in with, as they were; empty if it had none or they are no longer known.
pub(crate) fn received(meta: &PacketMeta) -> Stack {
    let mut stack = Stack::new();
    let (at, end) = (meta.extra.labels as usize, meta.packet.headroom() + meta.packet.len());
    if at != 0
        && let Some(bytes) = meta.packet.slot().get(at..end)
        && let Ok(depth) = mpls::depth(bytes)
    {
        stack.extend(bytes.iter().copied().take(depth * Entry::LEN));
    }
    stack
}

/// Takes the labels off a packet, and what is behind it. `false`: what is below them is no IP packet.
pub(crate) fn uncover(meta: &mut PacketMeta) -> bool {
    meta.extra.flags &= !(LABELLED | SWITCHED);
    let Ok(depth) = mpls::depth(meta.packet.bytes()) else { return false };
    meta.packet.pull(depth * Entry::LEN);
    let bytes = meta.packet.bytes();
    let len = match bytes.first().map(|first| first >> 4) {
        Some(4) => ipv4_check(bytes).ok().map(|checked| checked.len),
        Some(6) => ipv6_check(bytes).ok().map(|checked| checked.len),
        _ => None,
    };
    len.map(|len| meta.packet.truncate(len)).is_some()
}

/// What becomes of a labelled packet that is too long for `next_hop` once `labels` bytes are in the place of
/// its first label. `None`: it fits, or is cut into fragments that do. RFC 3032 sections 3.4 and 3.5.
pub(crate) fn refuse_long(meta: &mut PacketMeta, next_hop: &NextHop, labels: usize) -> Option<Verdict> {
    let mtu = (next_hop.mtu as usize + Entry::LEN).saturating_sub(labels);
    (!meta.packet.fits(mtu) && !may_be_cut(meta)).then(|| too_long(meta, mtu))
}

/// The error of a packet that is longer than `mtu`: below its labels there is room for so much less.
pub(crate) fn too_long(meta: &mut PacketMeta, mtu: usize) -> Verdict {
    let labels = if meta.is(LABELLED) { stack_len(&meta.packet) } else { 0 };
    meta.extra.argument = mtu.saturating_sub(labels) as u32;
    Verdict::error(DropReason::TooBig, IcmpError::TooBig)
}

/// Length of the label stack at the front of a packet.
pub(crate) fn stack_len(packet: &Packet) -> usize {
    mpls::depth(packet.bytes()).map_or(0, |depth| depth * Entry::LEN)
}

/// Whether a packet is IPv4, below labels or not, and may be fragmented.
pub(crate) fn may_be_cut(meta: &PacketMeta) -> bool {
    let labels = if meta.is(LABELLED) { stack_len(&meta.packet) } else { 0 };
    let inside = meta.packet.bytes().get(labels..).unwrap_or_default();
    ipv4_check(inside).is_ok()
        && ipv4::Header::ref_from_prefix(inside).is_ok_and(|(header, _)| !header.dont_fragment())
}

/// Puts an extension behind a quoted packet, which becomes [`QUOTED`] bytes long: RFC 4884 section 3.
/// `false`: there is no room, and the packet is as it was.
pub(crate) fn extend(packet: &mut Packet, stack: &[u8]) -> bool {
    let quoted = packet.len().min(QUOTED);
    let len = QUOTED + icmp_extension::len_of_label_stack(stack.len());
    if packet.place(packet.headroom(), len).is_err() {
        return false;
    }
    let (padded, extension) = packet.bytes_mut().split_at_mut(QUOTED);
    padded[quoted..].fill(0);
    icmp_extension::write_label_stack(stack, extension).is_ok()
}

/// Sends an error about a packet with these labels to `sender`: by the route to it, or the way of the packet.
pub(crate) fn send_from_path<const COUNT: bool>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    meta: &mut PacketMeta,
    stack: &[u8],
    sender: IpAddr,
) -> Verdict {
    let by_route = send_generated(path, view, meta, sender);
    if meta.packet.headroom() < stack.len() || has_way(view, meta, stack, sender) {
        return by_route;
    }
    finish_generated(view, meta, meta.ingress);
    // Of one class with its labels, it has its own.
    let own = crate::mpls::class_of(meta.packet.bytes()).filter(|_| view.tables.labels().is_uniform());
    let Ok(front) = meta.packet.push(stack.len()) else { return Verdict::drop(DropReason::NoHeadroom) };
    for (entry, label) in front.as_chunks_mut().0.iter_mut().zip(stack.as_chunks::<{ Entry::LEN }>().0) {
        *entry = *label;
        if let Some(class) = own {
            entry[2] = entry[2] & !0xe | class << 1;
        }
        // RFC 3032 section 2.3.2: it must not run out on the way.
        entry[3] = u8::MAX;
    }
    meta.extra.flags |= LABELLED;
    Verdict::Label
}

/// Whether the sender of a packet with these labels is one of this router's own address space, with a route to it.
/// Below a second label it is not, mostly: that one is of a VPN, or of another router. Nor is it where the label leads
/// into tables of its own.
fn has_way(view: &View<'_>, meta: &PacketMeta, stack: &[u8], sender: IpAddr) -> bool {
    let Ok((entry, _)) = Entry::read_from_prefix(stack) else { return true };
    let instance = meta.extra.instance;
    entry.is_bottom()
        && !crate::mpls::looks_elsewhere(view, stack, entry.label(), instance)
        && rules::leads(view, meta.packet.bytes(), instance, sender)
}

/// What a packet that its labels have led here is before it goes to `next_hop`. `Ok(false)`: it has to be fragmented.
pub(crate) fn leave(meta: &mut PacketMeta, next_hop: &NextHop) -> Result<bool, Verdict> {
    let mtu = next_hop.mtu as usize;
    if meta.packet.fits(mtu) {
        return Ok(true);
    }
    if may_be_cut(meta) { Ok(false) } else { Err(too_long(meta, mtu)) }
}
