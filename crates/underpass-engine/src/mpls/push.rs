//! Labels for IP packets: RFC 3031 section 3.22.

use underpass_packet::ethernet;
use underpass_packet::mpls::Entry;

use crate::buffer::Packet;
use crate::drops::DropReason;
use crate::mpls::error::Stack;
use crate::mpls::{Sent, class_of, write_labels};
use crate::tables::{Action, ActionId, LONGEST_LINK_LAYER, NextHop, Push, StoredNextHop};
use crate::trace::Trace;
use crate::tunnel;
use crate::worker::env::{BurstContext, Env, Packets};
use crate::worker::family::Family;
use crate::worker::headroom::reserve_headroom;
use crate::worker::lookup::{BurstLookup, Looked};
use crate::worker::metadata::{LABELLED, PacketMeta, SWITCHED, UNFINISHED};
use crate::worker::path::Path;
use crate::worker::rewrite::{ETHERNET, FastVerdict, cut, write_header};
use crate::worker::run::{Rewrite, rewrite_run};
use crate::worker::verdict::Verdict;
use crate::worker::view::View;

/// So many bytes of labels as there are.
const ANY: usize = 0;

/// How labels are put on the packets of a route: `N` bytes of them.
#[derive(Clone, Copy)]
struct Labels<'v, const N: usize> {
    next_hop: &'v StoredNextHop,
    labels: &'v [u8],
    /// The TTL of the labels. `None`: that of the packet.
    ttl: Option<u8>,
    /// Longest packet.
    longest: usize,
    /// Whether the labels have the class of the packet.
    uniform: bool,
}

impl<'v, const N: usize> Labels<'v, N> {
    /// `None`: it is not so simple, or there are not so many.
    #[inline(always)]
    fn new(view: &'v View<'_>, push: &'v Push) -> Option<Self> {
        let next_hop = view.next_hop(Some(push.next_hop))?;
        let so_many = N == ANY || push.labels.len() == N;
        so_many.then_some(())?;
        Some(Self {
            next_hop,
            labels: &push.labels,
            ttl: push.ttl,
            longest: (next_hop.plain_mtu as usize).checked_sub(push.labels.len())?,
            uniform: view.tables.labels().is_uniform(),
        })
    }

    /// Puts them on the IP packet of `len` bytes in a frame.
    #[inline(always)]
    fn put_on<A: Family>(&self, packet: &mut Packet, len: usize) -> Option<FastVerdict> {
        let labels = if N == ANY { self.labels } else { self.labels.first_chunk::<N>()? };
        if packet.len() != ETHERNET + len {
            cut(packet, ETHERNET + len);
        }
        if len > self.longest || packet.headroom() < labels.len() {
            return None;
        }
        let left = A::lower(packet.bytes_mut().get_mut(ETHERNET..)?)?;
        let (head, rest) = packet.push(labels.len()).ok()?.split_first_chunk_mut::<ETHERNET>()?;
        write_header(head, &self.next_hop.mac, ethernet::MPLS);
        // The last byte of an entry, which is 0.
        let ttl = u32::from(self.ttl.unwrap_or(left)).to_be();
        let stack = rest.get_mut(..labels.len())?;
        for (entry, label) in stack.as_chunks_mut().0.iter_mut().zip(labels.as_chunks().0) {
            *entry = (u32::from_ne_bytes(*label) | ttl).to_ne_bytes();
        }
        if self.uniform {
            add_class(rest, labels.len());
        }
        Some((self.next_hop.port, (ETHERNET + labels.len() + len) as u32))
    }
}

/// Gives `len` bytes of labels of class 0 that of the IP packet behind them.
#[inline(never)]
fn add_class(stack: &mut [u8], len: usize) {
    if let Some((labels, packet)) = stack.split_at_mut_checked(len)
        && let Some(class) = class_of(packet)
    {
        labels.as_chunks_mut::<{ Entry::LEN }>().0.iter_mut().for_each(|entry| entry[2] |= class << 1);
    }
}

impl<'v, 'a, A: Family, const N: usize> Rewrite<'v, 'a, A> for Labels<'v, N> {
    type Counts = Sent;

    #[inline(always)]
    fn for_leaf(self, env: &Env<'v, 'a>, leaf: Option<u32>) -> Option<Self> {
        let Action::Push(push) = env.action(leaf)? else { return None };
        Self::new(env.view, push)
    }

    #[inline(always)]
    fn apply<const COUNT: bool>(
        self,
        path: &mut Path<COUNT>,
        _: &Env<'v, 'a>,
        (packet, len): (&mut Packet, usize),
        counts: &mut Sent,
    ) -> Option<FastVerdict> {
        let out = self.put_on::<A>(packet, len)?;
        if COUNT {
            counts.count(out, &mut path.transmit);
        }
        Some(out)
    }

    #[inline(always)]
    fn count<const COUNT: bool>(self, path: &mut Path<COUNT>, mut counts: Sent) {
        counts.flush(&mut path.transmit);
    }
}

/// Puts labels on IP packets in a row and takes them to their ports, from the first on. The one that follows the run.
#[inline(never)]
pub(crate) fn push_run<'v, const COUNT: bool, T: Trace, A: Family, S: BurstLookup>(
    path: &mut Path<COUNT>,
    context: &mut BurstContext<'_, 'v, '_, T>,
    packets: &mut Packets<'_>,
    lookups: S,
    first: (Packet, Looked<A>),
    push: &'v Push,
) -> Option<Packet> {
    let view = context.env.view;
    // The numbers of labels that are frequent, without a loop.
    if let Some(labels) = Labels::<4>::new(view, push) {
        rewrite_run(path, context, packets, lookups, first, labels)
    } else if let Some(labels) = Labels::<8>::new(view, push) {
        rewrite_run(path, context, packets, lookups, first, labels)
    } else if let Some(labels) = Labels::<ANY>::new(view, push) {
        rewrite_run(path, context, packets, lookups, first, labels)
    } else {
        path.enter_slow_path(context, first.0);
        None
    }
}

/// Puts labels on an IP packet, which is forwarded by that.
pub(crate) fn push_labels<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    meta: &mut PacketMeta,
    (id, push): (ActionId, &Push),
    trace: &mut T,
) -> Verdict {
    let Some(next_hop) = view.tables.next_hop(push.next_hop, view.guard) else {
        return Verdict::drop(DropReason::NoRoute);
    };
    if meta.is(UNFINISHED) {
        return Verdict::Finish(id);
    }
    let room = NextHop { mtu: next_hop.mtu.saturating_sub(push.labels.len() as u32), ..**next_hop };
    match path.leave(view, meta, &room) {
        Ok(true) => {}
        Ok(false) => return Verdict::FragmentLabelled(id),
        Err(verdict) => return verdict,
    }
    // A route without a gateway. Linux asks for the neighbour 0.0.0.0 or ::, which nobody is.
    let nobody = next_hop.address.is_unspecified() && next_hop.rewrite.is_none();
    if nobody && tunnel::behind(view, push.next_hop).is_none() {
        return Verdict::drop(DropReason::NeighbourUnresolved);
    }
    if let Err(error) = reserve_headroom(path, meta, push.labels.len() + LONGEST_LINK_LAYER, trace) {
        return Verdict::Refuse(error);
    }
    if put_on(view, &mut meta.packet, push).is_none() {
        return Verdict::drop(DropReason::NoHeadroom);
    }
    meta.wrapped(push.labels.len(), None);
    meta.extra.flags |= LABELLED | SWITCHED;
    Verdict::Forward(push.next_hop)
}

/// Puts the labels on a packet. `None`: no room, and it is as it was.
fn put_on(view: &View<'_>, packet: &mut Packet, push: &Push) -> Option<()> {
    let written = (pushed_class(view, packet.bytes())?, ttl_of(push, packet.bytes()));
    let room = packet.push(push.labels.len()).ok()?;
    write_labels(room, &push.labels, written, true)
}

/// The traffic class of labels that are put on an IP packet. `None`: it is none.
#[inline(always)]
pub(crate) fn pushed_class(view: &View<'_>, packet: &[u8]) -> Option<u8> {
    if view.tables.labels().is_uniform() { class_of(packet) } else { Some(0) }
}

/// The TTL of labels that are put on a packet.
#[inline(always)]
pub(crate) fn ttl_of(push: &Push, packet: &[u8]) -> u8 {
    let own = match packet.first() {
        Some(first) if first >> 4 == 6 => packet.get(7),
        _ => packet.get(8),
    };
    push.ttl.or(own.copied()).unwrap_or_default()
}

/// The labels that a push puts on a packet, with its TTL and its class.
pub(crate) fn stack_of(view: &View<'_>, push: &Push, packet: &[u8]) -> Option<Stack> {
    let written = (pushed_class(view, packet)?, ttl_of(push, packet));
    let mut stack = Stack::new();
    stack.try_extend_from_slice(&push.labels).ok()?;
    write_labels(&mut stack, &push.labels, written, true)?;
    Some(stack)
}
