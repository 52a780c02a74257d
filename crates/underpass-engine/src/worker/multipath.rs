//! Multipath routes on the fast path: the hash of a flow selects the next hop of its packets.

use crate::buffer::Packet;
use crate::flow;
use crate::tables::{ActionId, Multipath};
use crate::trace::Trace;
use crate::worker::env::{BurstContext, Packets};
use crate::worker::family::Family;
use crate::worker::lookup::{BurstLookup, Looked};
use crate::worker::path::Path;
use crate::worker::rewrite::{ETHERNET, next_hop};

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
