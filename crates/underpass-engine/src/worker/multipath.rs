//! Multipath routes on the fast path: the hash of a flow selects the next hop of its packets.

use crate::buffer::Packet;
use crate::flow;
use crate::tables::{Action, ActionId, Multipath, StoredNextHop};
use crate::trace::Trace;
use crate::worker::burst::{BurstContext, Packets};
use crate::worker::family::Family;
use crate::worker::lookup::{BurstLookup, Looked};
use crate::worker::rewrite::{ETHERNET, next_hop};
use crate::worker::{Path, View};

/// Takes packets in a row by a multipath route, each by the member that its flow selects. The packet that follows the
/// run.
#[inline(never)]
pub(crate) fn multipath_run<'v, const COUNT: bool, T: Trace, A: Family, S: BurstLookup>(
    path: &mut Path<COUNT>,
    context: &mut BurstContext<'_, 'v, '_, T>,
    packets: &mut Packets<'_>,
    lookups: S,
    (mut packet, mut look): (Packet, Looked<A>),
    multipath: &Multipath,
) -> Option<Packet> {
    let env = context.env;
    loop {
        let len = look.len;
        let bytes = packet.bytes().get(ETHERNET..ETHERNET + len).unwrap_or_default();
        let leaf = multipath.choose(flow::hash(bytes)).map(|ActionId(leaf)| leaf);
        match next_hop(env.view, leaf) {
            Some(next_hop) => path.forward_fast::<_, A>(context, packet, len, next_hop),
            // A member that encapsulates: its run is of one packet, as the next is looked up to this route again.
            None => {
                let member = (packet, Looked { leaf, ..look });
                return path.act_fast(context, packets, lookups, member, env.action(leaf));
            }
        }
        packet = packets.next()?;
        match lookups.next::<A>(env, &packet, packets) {
            Some(next) if next.leaf == look.leaf => look = next,
            _ => return Some(packet),
        }
    }
}

/// The next hop that a leaf forwards a packet to, also by a multipath route.
#[inline(always)]
pub(crate) fn next_hop_of<'a>(
    view: &View<'a>,
    leaf: Option<u32>,
    packet: &[u8],
) -> Option<&'a StoredNextHop> {
    match next_hop(view, leaf) {
        Some(next_hop) => Some(next_hop),
        None => hashed(view, ActionId(leaf?), packet),
    }
}

#[inline(never)]
fn hashed<'a>(view: &View<'a>, leaf: ActionId, packet: &[u8]) -> Option<&'a StoredNextHop> {
    member(view, leaf, || Some(flow::hash(packet)))
}

/// The next hop that a flow selects where a leaf is that of a multipath route.
#[inline(always)]
pub(crate) fn member<'a>(
    view: &View<'a>,
    leaf: ActionId,
    hash: impl FnOnce() -> Option<u32>,
) -> Option<&'a StoredNextHop> {
    match view.tables.action(leaf, view.guard)? {
        Action::Multipath(multipath) => next_hop(view, multipath.choose(hash()?).map(|ActionId(leaf)| leaf)),
        _ => None,
    }
}
