//! Runs: what packets in a row have in common that go by one route is found and counted once for all of them.

use crate::buffer::Packet;
use crate::trace::Trace;
use crate::worker::env::{BurstContext, Env, Packets};
use crate::worker::family::Family;
use crate::worker::lookup::{BurstLookup, Looked};
use crate::worker::path::Path;
use crate::worker::rewrite::FastVerdict;

/// What a route does to packets beside forwarding them.
pub(crate) trait Rewrite<'v, 'a, A: Family>: Copy {
    /// What is counted of packets in a row.
    type Counts: Default;

    /// What another leaf's action does, if it is of the same kind.
    fn for_leaf(self, env: &Env<'v, 'a>, leaf: Option<u32>) -> Option<Self>;

    /// Does it to a packet of `len` bytes in a frame. `None`: it is not so simple, and as it was.
    fn apply<const COUNT: bool>(
        self,
        path: &mut Path<COUNT>,
        env: &Env<'v, 'a>,
        packet: (&mut Packet, usize),
        counts: &mut Self::Counts,
    ) -> Option<FastVerdict>;

    /// Counts packets that went this way.
    fn count<const COUNT: bool>(self, path: &mut Path<COUNT>, counts: Self::Counts);
}

/// Takes packets in a row by routes that all do the same kind of thing, from the first on, which goes this way. The one
/// that follows the run.
#[inline(never)]
pub(crate) fn rewrite_run<
    'v,
    'a,
    const COUNT: bool,
    T: Trace,
    A: Family,
    S: BurstLookup,
    W: Rewrite<'v, 'a, A>,
>(
    path: &mut Path<COUNT>,
    context: &mut BurstContext<'_, 'v, 'a, T>,
    packets: &mut Packets<'_>,
    lookups: S,
    (mut packet, mut look): (Packet, Looked<A>),
    mut rewrite: W,
) -> Option<Packet> {
    let env = context.env;
    let mut counts = W::Counts::default();
    let following = loop {
        match rewrite.apply(path, env, (&mut packet, look.len), &mut counts) {
            Some(out) => path.send_frame(out, packet, context.trace),
            None => path.enter_slow_path(context, packet),
        }
        packet = match packets.next() {
            Some(packet) => packet,
            None => break None,
        };
        let Some(next) = lookups.next::<A>(env, &packet, packets) else { break Some(packet) };
        if next.leaf != look.leaf {
            let Some(next_rewrite) = rewrite.for_leaf(env, next.leaf) else { break Some(packet) };
            rewrite.count(path, std::mem::take(&mut counts));
            rewrite = next_rewrite;
        }
        look = next;
    };
    rewrite.count(path, counts);
    following
}
