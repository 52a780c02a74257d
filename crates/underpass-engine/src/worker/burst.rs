//! The fast path: packets that need nothing remembered of them, each from its frame to its port.
//!
//! It takes frames for this router with a sound IP packet in them that is forwarded, is for a SID, or goes into or comes out of
//! an encapsulation, and frames with labels. All else enters the slow path as it came.

use crate::buffer::Packet;
use crate::hmac::Require;
use crate::mpls::push::push_run;
use crate::mpls::switch::label_run;
use crate::srv6::endpoint::sid_runs;
use crate::tables::{Action, StoredNextHop};
use crate::trace::Trace;
use crate::tunnel::decap::decap_run;
use crate::tunnel::encap::encap_run;
use crate::worker::env::{BurstContext, Env, Packets, Validated};
use crate::worker::family::Family;
use crate::worker::insert::{Headers, Insert};
use crate::worker::lookup::{BurstLookup, Looked, LookupAll, LookupEach};
use crate::worker::multipath::multipath_run;
use crate::worker::path::{Burst, Path};
use crate::worker::rewrite::{ETHERNET, FastVerdict, addresses, cut, next_hop};
use crate::worker::run::rewrite_run;

impl<const COUNT: bool> Path<COUNT> {
    /// Takes each packet of a burst to its port by the fast path, or into the slow path.
    #[inline(always)]
    pub(crate) fn fast_path<T: Trace>(
        &mut self,
        context: &mut BurstContext<'_, '_, '_, T>,
        burst: &mut Burst,
    ) {
        let Env { fib4, fib6, .. } = *context.env;
        context.env.prefetch_labels(burst, COUNT.then_some(&*self.counters));
        let edited =
            context.env.view.tables.sets_priority() && burst.iter().any(|packet| packet.tag().priority != 0);
        if T::WATCHES || context.env.link.require_hmac == Require::Always || edited {
            // A tracer wants each step. The fast path neither requires an HMAC of every SRH, nor replaces a priority that an
            // action has set by that of the TOS of a forwarded packet.
            for packet in burst.drain(..) {
                self.enter_slow_path(context, packet);
            }
            return;
        }
        let hot = fib4.is_none_or(|fib| fib.is_hot()) && fib6.is_none_or(|fib| fib.is_hot());
        if hot && !context.env.view.tables.tunnels().are_many() {
            self.each_packet(context, burst.drain(..), LookupEach);
        } else {
            let all = LookupAll::new(context.env, &self.counters, burst);
            self.each_packet(context, burst.drain(..), &all);
        }
    }

    /// Each packet from its frame to its verdict.
    #[inline(never)]
    fn each_packet<T: Trace, S: BurstLookup>(
        &mut self,
        context: &mut BurstContext<'_, '_, '_, T>,
        mut packets: Packets<'_>,
        lookups: S,
    ) {
        let env = context.env;
        // The packet that ended a run: it is the next one.
        let mut following = None;
        while let Some(packet) = following.take().or_else(|| packets.next()) {
            match lookups.validate(env, &packet, &packets) {
                Some(Validated::V6(target, len)) => {
                    let look = lookups.look_up(env, (target, len), &packets);
                    if let Some(next_hop) = next_hop(env.view, look.leaf) {
                        self.forward_fast::<_, u128>(context, packet, len, next_hop);
                        continue;
                    }
                    following = match env.action(look.leaf) {
                        Some(Action::Endpoint(sid)) => {
                            sid_runs(self, context, &mut packets, lookups, (packet, look), sid)
                        }
                        action => self.act_fast(context, &mut packets, lookups, (packet, look), action),
                    };
                }
                Some(Validated::V4(target, len)) => {
                    let look = lookups.look_up(env, (target, len), &packets);
                    if let Some(next_hop) = next_hop(env.view, look.leaf) {
                        self.forward_fast::<_, u32>(context, packet, len, next_hop);
                        continue;
                    }
                    let action = env.action(look.leaf);
                    following = self.act_fast(context, &mut packets, lookups, (packet, look), action);
                }
                None if env.is_labelled(packet.bytes()) => {
                    following = label_run(self, context, &mut packets, packet);
                }
                None => self.enter_slow_path(context, packet),
            }
        }
    }

    /// Forwards a packet of `len` bytes.
    #[inline(always)]
    pub(crate) fn forward_fast<T: Trace, A: Family>(
        &mut self,
        context: &mut BurstContext<'_, '_, '_, T>,
        mut packet: Packet,
        len: usize,
        next_hop: &StoredNextHop,
    ) {
        match forward::<A>(&mut packet, len, next_hop) {
            Some(out) => self.send_frame(out, packet, context.trace),
            None => self.enter_slow_path(context, packet),
        }
    }

    /// Does to a packet what its action says, and to those in a row with it. The packet that follows the run.
    #[inline(always)]
    pub(crate) fn act_fast<'v, T: Trace, A: Family, S: BurstLookup>(
        &mut self,
        context: &mut BurstContext<'_, 'v, '_, T>,
        packets: &mut Packets<'_>,
        lookups: S,
        first: (Packet, Looked<A>),
        action: Option<&'v Action>,
    ) -> Option<Packet> {
        match action {
            Some(Action::Multipath(multipath)) => {
                multipath_run(self, context, packets, lookups, first, multipath)
            }
            Some(Action::Push(push)) => push_run(self, context, packets, lookups, first, push),
            Some(Action::Tunnel(route)) => encap_run(self, context, packets, lookups, first, route),
            Some(Action::Local) => decap_run(self, context, packets, lookups, first),
            Some(Action::Headend(policy)) if policy.goes_on_by(context.env.link.lookup) => {
                rewrite_run(self, context, packets, lookups, first, Headers(policy))
            }
            Some(Action::Rpl(route)) if route.goes_on_by(context.env.link.lookup) => {
                rewrite_run(self, context, packets, lookups, first, Headers(route))
            }
            Some(Action::Ioam(ioam)) => rewrite_run(self, context, packets, lookups, first, Headers(&**ioam)),
            _ => {
                self.enter_slow_path(context, first.0);
                None
            }
        }
    }
}

/// Forwards the packet of `len` bytes in a frame: lowers its hop limit, and writes the addresses of the next
/// hop over those of the frame. `None`: it is not so simple, and as it was.
#[inline(always)]
pub(crate) fn forward<A: Family>(
    packet: &mut Packet,
    len: usize,
    next_hop: &StoredNextHop,
) -> Option<FastVerdict> {
    let mac = addresses(next_hop, len)?;
    let frame = packet.bytes_mut();
    let padded = frame.len() != ETHERNET + len;
    let (head, bytes) = frame.split_first_chunk_mut::<ETHERNET>()?;
    A::lower(bytes)?;
    head[..12].copy_from_slice(mac);
    if padded {
        cut(packet, ETHERNET + len);
    }
    Some((next_hop.port, (ETHERNET + len) as u32))
}
