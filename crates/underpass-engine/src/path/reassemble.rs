//! Packets for the router itself that come in fragments, as they go on once they are whole or given up.
//!
//! What is kept (`reassembly.rs`) is copied, so that fragments hold back none of the memory of packets. A fragment that is
//! kept counts as delivered; the packet that comes of it, or what is left of it in the end, as generated.

use underpass_packet::{FromBytes, ipv4};

use crate::buffer::Packet;
use crate::drops::DropReason;
use crate::offload;
use crate::path::options::Problem;
use crate::path::reassembly::{Fragment, MEMORY, PACKETS, PATIENCE4, PATIENCE6, Partial};
use crate::trace::{Event, Trace};
use crate::tunnel::decap::leave_tunnel;
use crate::worker::error::IcmpError;
use crate::worker::metadata::PacketMeta;
use crate::worker::path::Path;
use crate::worker::verdict::Verdict;
use crate::worker::view::View;

/// Keeps a fragment for the router itself until the others of its packet have come, which then goes on in its place.
/// `None`: it is kept.
#[cold]
#[inline(never)]
pub(crate) fn reassemble<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    meta: &mut PacketMeta,
    trace: &mut T,
) -> Option<Verdict> {
    give_up_fragments(path, view, trace);
    offload::finish(&mut meta.packet);
    let bytes = meta.packet.bytes();
    let Some(fragment) = Fragment::read(bytes, meta.extra.instance) else {
        return Some(Verdict::drop(DropReason::FragmentMalformed));
    };
    let packets = &mut path.reassembly.packets;
    let known = packets.iter().position(|partial| partial.key == fragment.key);
    let at = known.unwrap_or_else(|| {
        let patience = if fragment.header.is_some() { PATIENCE6 } else { PATIENCE4 };
        let until = view.now.saturating_add(patience);
        packets.push_back(Partial::new(fragment.key, until, meta.ingress, meta.extra));
        path.reassembly.due = Some(path.reassembly.due.map_or(until, |due| due.min(until)));
        packets.len() - 1
    });
    let partial = packets.get_mut(at)?;
    let before = partial.memory();
    let added = partial.add(bytes, &fragment);
    (partial.ingress, partial.extra) = (meta.ingress, meta.extra);
    path.reassembly.memory += partial.memory() - before;
    if let Err(refused) = added {
        if refused.all || known.is_none() {
            path.reassembly.take(at);
        }
        return Some(match refused.error {
            Some((error, pointer)) => Problem::notify(refused.reason, error, pointer).refuse(meta),
            None => Verdict::drop(refused.reason),
        });
    }
    if partial.is_complete() {
        let partial = path.reassembly.take(at)?;
        return Some(put_together(path, view, meta, &partial, trace));
    }
    trace.step(Event::Gathered, &meta.packet);
    path.totals.delivered += 1;
    while path.reassembly.packets.len() > PACKETS || path.reassembly.memory > MEMORY {
        let oldest = path.reassembly.take(0)?;
        give_up_partial(path, view, oldest, DropReason::ReassemblyFull, trace);
    }
    None
}

/// Sends the packet that fragments are of down the path of the one that came last.
fn put_together<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    meta: &mut PacketMeta,
    partial: &Partial,
    trace: &mut T,
) -> Verdict {
    let Some(len) = partial.len() else { return Verdict::drop(DropReason::FragmentMalformed) };
    let Some(mut whole) = path.pool.take_for(len) else { return Verdict::drop(DropReason::NoBuffer) };
    if partial.write(whole.bytes_mut()).is_none() {
        path.pool.give(whole);
        return Verdict::drop(DropReason::FragmentMalformed);
    }
    let frame = meta.link_layer();
    whole.trace_as(&meta.packet);
    path.pool.give(std::mem::replace(&mut meta.packet, whole));
    frame.into_iter().for_each(|frame| meta.put_link_layer(frame));
    trace.step(Event::Reassembled(partial.parts.len()), &meta.packet);
    // Not as it came in: a kernel beside the router has no such packet of its own.
    meta.extra.lookups_done += 1;
    meta.extra.labels = 0;
    if view.tables.tunnels().receives() { leave_tunnel(path, view, meta, trace) } else { Verdict::Deliver }
}

/// Gives up the packets whose fragments have been waited for too long.
pub(crate) fn give_up_fragments<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    trace: &mut T,
) {
    while let Some(at) = path.reassembly.packets.iter().position(|partial| partial.until <= view.now)
        && let Some(partial) = path.reassembly.take(at)
    {
        give_up_partial(path, view, partial, DropReason::ReassemblyTimeout, trace);
    }
}

/// Counts what has come of a packet as one that is dropped. Its sender hears that its time is over, if its first
/// fragment has come.
fn give_up_partial<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    partial: Partial,
    reason: DropReason,
    trace: &mut T,
) {
    path.totals.generated += 1;
    let first =
        partial.parts.first().filter(|(offset, _)| *offset == 0 && reason == DropReason::ReassemblyTimeout);
    let Some(packet) = first.and_then(|(_, part)| first_fragment(path, &partial.headers, part)) else {
        return path.counters.add_drop(reason, 1);
    };
    let mut meta = PacketMeta::new(packet, 0, partial.ingress, partial.extra);
    meta.extra.argument =
        partial.headers.len().saturating_add(first.map_or(0, |(_, part)| part.len())) as u32;
    path.slow_path_alone(view, meta, Verdict::error(reason, IcmpError::Reassembly), trace);
}

/// The first fragment, as long as it says: of IPv4 the bytes beyond a multiple of eight are not kept, and are not quoted.
fn first_fragment<const COUNT: bool>(
    path: &mut Path<COUNT>,
    headers: &[u8],
    payload: &[u8],
) -> Option<Packet> {
    let end = headers.len() + payload.len();
    let header = ipv4::Header::ref_from_prefix(headers).ok().filter(|(header, _)| header.version() == 4);
    let len = header.map_or(end, |(header, _)| end.max(header.total_length.get().into()));
    let mut packet = path.pool.take_for(len)?;
    let (front, back) = packet.bytes_mut().split_at_mut(headers.len());
    front.copy_from_slice(headers);
    let (back, beyond) = back.split_at_mut(payload.len());
    back.copy_from_slice(payload);
    beyond.fill(0);
    Some(packet)
}
