//! To which other ends of a network a frame goes: that behind which its station is, or all that are for such frames. Linux:
//! `vxlan_xmit`.

use crate::buffer::Packet;
use crate::counters::Direction;
use crate::drops::DropReason;
use crate::tables::{Behind, StoredTunnel, TunnelId};
use crate::trace::Trace;
use crate::tunnel::encap::encapsulate_to;
use crate::tunnel::inside::Inside;
use crate::tunnel::stations::end_of;
use crate::worker::metadata::PacketMeta;
use crate::worker::path::Path;
use crate::worker::verdict::Verdict;
use crate::worker::view::View;

/// Puts a frame into a network: to the other end behind which its station is, or to all that are for such frames.
pub(super) fn send_to_ends<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    meta: &mut PacketMeta,
    (id, inside): (TunnelId, Inside),
    (tunnel, behind): (&StoredTunnel, &Behind),
    trace: &mut T,
) -> Verdict {
    let known = end_of(behind, meta.packet.bytes(), view.now);
    if let Some(end) = known.and_then(|number| behind.ends.address(number)) {
        return encapsulate_to(path, view, meta, (id, inside), Some(end), trace);
    }
    let Some((first, others)) = behind.others.split_first() else {
        path.counters.add_link_drops(tunnel.link, Direction::Transmit, 1);
        return Verdict::drop(DropReason::TunnelRemote);
    };
    for end in others {
        path.totals.generated += 1;
        let Some(copy) = copy_of(path, &meta.packet) else { continue };
        let at = copy.headroom();
        let mut copy = PacketMeta::new(copy, at, meta.ingress, meta.extra);
        let verdict = encapsulate_to(path, view, &mut copy, (id, inside), Some(*end), trace);
        path.slow_path_alone(view, copy, verdict, trace);
    }
    encapsulate_to(path, view, meta, (id, inside), Some(*first), trace)
}

fn copy_of<const COUNT: bool>(path: &mut Path<COUNT>, packet: &Packet) -> Option<Packet> {
    let copy = path.pool.copy(packet);
    if copy.is_none() {
        path.counters.add_drop(DropReason::NoBuffer, 1);
    }
    copy
}
