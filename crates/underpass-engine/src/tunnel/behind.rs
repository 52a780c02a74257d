//! Next hops behind a tunnel: labelled packets, and what a SID sends, goes there as to a neighbour on any other link.

use underpass_packet::ethernet;

use crate::counters::MplsCount;
use crate::tables::{NextHopId, Rewrite, TunnelId};
use crate::trace::Trace;
use crate::worker::metadata::{LABELLED, OPAQUE, PacketMeta, SWITCHED};
use crate::worker::path::Path;
use crate::worker::verdict::Verdict;
use crate::worker::view::View;

/// The tunnel that a next hop is behind, and the header of a frame that goes into it. `None`: it is behind none, or its
/// neighbour is not known.
#[cold]
pub(crate) fn behind<'a>(view: &View<'a>, id: NextHopId) -> Option<(TunnelId, Option<&'a Rewrite>)> {
    let next_hop = view.tables.next_hop(id, view.guard)?;
    let tunnel = view.tables.tunnels().of_link(next_hop.link)?;
    let stored = view.tables.tunnels().tunnel(tunnel, view.guard)?;
    let frame = if stored.kind.carries_frames() { Some(next_hop.rewrite.as_ref()?) } else { None };
    Some((tunnel, frame))
}

/// Makes a packet, of which nothing but this is left to be done, what goes into a tunnel.
#[cold]
pub(crate) fn enter_behind<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    meta: &mut PacketMeta,
    (tunnel, frame): (TunnelId, Option<&Rewrite>),
    trace: &mut T,
) -> Verdict {
    if COUNT
        && meta.is(LABELLED)
        && let Some(stored) = view.tables.tunnels().tunnel(tunnel, view.guard)
    {
        let (tx_packets, tx_bytes) = (1, meta.packet.len() as u64);
        path.counters.add_mpls(stored.link, MplsCount { tx_packets, tx_bytes, ..MplsCount::default() });
    }
    if let Some(rewrite) = frame
        && let Err(error) = enframe(path, meta, rewrite, trace)
    {
        return Verdict::Refuse(error);
    }
    Verdict::FrameInto(tunnel)
}

/// Makes a packet the Ethernet frame that goes into a tunnel.
pub(crate) fn enframe<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    meta: &mut PacketMeta,
    rewrite: &Rewrite,
    trace: &mut T,
) -> Result<(), crate::worker::error::PacketError> {
    path.put_link_layer(meta, rewrite, trace)?;
    meta.wrapped(usize::from(rewrite.len) + 2, None);
    if meta.is(LABELLED) {
        meta.extra.flags |= OPAQUE;
    }
    meta.extra.flags &= !(LABELLED | SWITCHED);
    Ok(())
}

/// The EtherType of the frame at the front of `bytes`.
#[inline]
pub(crate) fn type_of(bytes: &[u8]) -> u16 {
    let at = ethernet::Header::LEN - 2;
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |ethertype| u16::from_be_bytes(*ethertype))
}
