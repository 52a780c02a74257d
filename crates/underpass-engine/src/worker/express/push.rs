//! Labels for IP packets, on the common road.

use underpass_packet::ethernet;
use underpass_packet::mpls::Entry;

use super::super::mpls::class_of;
use super::super::{Path, View};
use super::family::Family;
use super::label::Sent;
use super::row::Way;
use super::seen::{Look, Sight};
use super::{Common, Company, ETHERNET, Out, Packets, cut, write_header};
use crate::buffer::Packet;
use crate::tables::{Action, Push, StoredNextHop};
use crate::trace::Trace;

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
    /// `None`: it is not so plain, or there are not so many.
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
    fn put_on<A: Family>(&self, packet: &mut Packet, len: usize) -> Option<Out> {
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

impl<'v, 'a, A: Family, const N: usize> Way<'v, 'a, A> for Labels<'v, N> {
    type Row = Sent;

    #[inline(always)]
    fn other(self, common: &Common<'v, 'a>, leaf: Option<u32>) -> Option<Self> {
        let Action::Push(push) = common.action(leaf)? else { return None };
        Self::new(common.view, push)
    }

    #[inline(always)]
    fn take<const COUNT: bool>(
        self,
        path: &mut Path<COUNT>,
        _: &Common<'v, 'a>,
        (packet, len): (&mut Packet, usize),
        row: &mut Sent,
    ) -> Option<Out> {
        let out = self.put_on::<A>(packet, len)?;
        if COUNT {
            row.count(out, &mut path.transmit);
        }
        Some(out)
    }

    #[inline(always)]
    fn count<const COUNT: bool>(self, path: &mut Path<COUNT>, mut row: Sent) {
        row.flush(&mut path.transmit);
    }
}

impl<const COUNT: bool> Path<COUNT> {
    /// Puts labels on IP packets in a row and takes them to their ports, from the first on. The one that follows the row.
    #[inline(never)]
    pub(super) fn take_pushed<'v, T: Trace, A: Family, S: Sight>(
        &mut self,
        company: &mut Company<'_, 'v, '_, T>,
        packets: &mut Packets<'_>,
        sight: S,
        first: (Packet, Look<A>),
        push: &'v Push,
    ) -> Option<Packet> {
        let view = company.common.view;
        // The numbers of labels that are frequent, without a loop.
        if let Some(way) = Labels::<4>::new(view, push) {
            self.take_way(company, packets, sight, first, way)
        } else if let Some(way) = Labels::<8>::new(view, push) {
            self.take_way(company, packets, sight, first, way)
        } else if let Some(way) = Labels::<ANY>::new(view, push) {
            self.take_way(company, packets, sight, first, way)
        } else {
            self.take_own_road(company, first.0);
            None
        }
    }
}
