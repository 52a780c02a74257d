//! The common road: the packets of a burst that are of one family, side by side.
//!
//! First all are checked, then all are looked up, then each is done what was found. What is only
//! forwarded is done here, without remembering anything of the packet; all else goes on along its
//! [`Road`].

use std::net::{Ipv4Addr, Ipv6Addr};

use arrayvec::ArrayVec;
use underpass_packet::ethernet;

use super::transmit::write_link_layer;
use super::{Fibs, Path, Road, Step, View, Waiting, ipv4, ipv6, looked};
use crate::buffer::{BURST, Packet, PortId};
use crate::drops::Drop;
use crate::lpm::{self, Lpm, NO_LEAF};
use crate::tables::{Action, ActionId, LinkId, LookupId, NextHop};
use crate::trace::{Event, Trace};

use super::road::Extra;

/// IPv4 or IPv6, as far as the common road has to know.
pub(super) trait Family {
    type Address: lpm::Address;
    const ETHERTYPE: u16;

    /// The one table that packets of the family are looked up in, if there is one alone.
    fn fib<'a>(fibs: &mut Fibs<'a>, view: &View<'a>, lookup: LookupId) -> Option<&'a Lpm<Self::Address>>;

    /// Lowers the hop limit of a checked packet, if that leaves some and the packet fits into `mtu`.
    fn forward(packet: &mut Packet, mtu: u32) -> bool;

    /// The step in which the packet is looked up.
    fn look(road: &mut Road, lookup: LookupId, target: Self::Address) -> Step;
}

/// IPv4.
pub(super) struct V4;
/// IPv6.
pub(super) struct V6;

impl Family for V4 {
    type Address = u32;
    const ETHERTYPE: u16 = ethernet::IPV4;

    #[inline(always)]
    fn fib<'a>(fibs: &mut Fibs<'a>, view: &View<'a>, lookup: LookupId) -> Option<&'a Lpm<u32>> {
        fibs.fib4(view, lookup)
    }

    #[inline(always)]
    fn forward(packet: &mut Packet, mtu: u32) -> bool {
        ipv4::forward_plain(packet, mtu)
    }

    #[inline(always)]
    fn look(road: &mut Road, lookup: LookupId, target: u32) -> Step {
        road.target4 = Ipv4Addr::from_bits(target);
        Step::Look4(lookup)
    }
}

impl Family for V6 {
    type Address = u128;
    const ETHERTYPE: u16 = ethernet::IPV6;

    #[inline(always)]
    fn fib<'a>(fibs: &mut Fibs<'a>, view: &View<'a>, lookup: LookupId) -> Option<&'a Lpm<u128>> {
        fibs.fib6(view, lookup)
    }

    #[inline(always)]
    fn forward(packet: &mut Packet, mtu: u32) -> bool {
        ipv6::forward_plain(packet, mtu)
    }

    #[inline(always)]
    fn look(road: &mut Road, lookup: LookupId, target: u128) -> Step {
        road.target6 = Ipv6Addr::from_bits(target);
        Step::Look6(lookup)
    }
}

/// Checked packets, each from its IP header on, and where they go.
pub(super) struct Lane<F: Family> {
    packets: ArrayVec<Packet, BURST>,
    targets: ArrayVec<F::Address, BURST>,
}

impl<F: Family> Lane<F> {
    pub(super) fn new() -> Self {
        Self { packets: ArrayVec::new(), targets: ArrayVec::new() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Adds a packet of the burst.
    #[inline(always)]
    pub(super) fn push(&mut self, packet: Packet, target: F::Address) {
        self.packets.push(packet);
        self.targets.push(target);
    }
}

impl<const COUNT: bool> Path<COUNT> {
    /// Takes the packets of a lane to their verdicts, or as far as they get without another look-up in a
    /// table that is not in the cache.
    #[inline(always)]
    #[expect(clippy::too_many_arguments, reason = "what a burst has in common")]
    pub(super) fn drive<'a, F: Family, T: Trace>(
        &mut self,
        view: &View<'a>,
        fibs: &mut Fibs<'a>,
        lane: Lane<F>,
        ingress: LinkId,
        extra: Extra,
        waiting: &mut ArrayVec<Waiting, BURST>,
        trace: &mut T,
    ) {
        let Lane { packets, targets } = lane;
        let Some(fib) = F::fib(fibs, view, extra.instance) else {
            for (packet, target) in packets.into_iter().zip(targets) {
                let mut road = Road::new(packet, ingress, extra);
                let step = F::look(&mut road, extra.instance, target);
                self.carry(view, fibs, road, step, waiting, trace);
            }
            return;
        };
        let mut leaves = [NO_LEAF; BURST];
        if fib.is_hot() {
            // Bursts are often towards one SID, whose host route lies deep in the table.
            let mut last = (targets.first().copied(), NO_LEAF);
            if let Some(first) = last.0 {
                last.1 = fib.lookup(first, view.guard).unwrap_or(NO_LEAF);
            }
            for (leaf, target) in leaves.iter_mut().zip(&targets) {
                if last.0 != Some(*target) {
                    last = (Some(*target), fib.lookup(*target, view.guard).unwrap_or(NO_LEAF));
                }
                *leaf = last.1;
            }
        } else if let Some(leaves) = leaves.get_mut(..targets.len()) {
            fib.lookup_batch(&targets, leaves, view.guard);
            view.tables.prefetch_actions(leaves);
        }
        for ((packet, target), leaf) in packets.into_iter().zip(targets).zip(leaves) {
            let leaf = (leaf != NO_LEAF).then_some(ActionId(leaf));
            trace.step(Event::Lookup(lpm::Address::ip(target), leaf), &packet);
            if let Err(packet) = self.forward_plain::<F, T>(view, packet, leaf, trace) {
                let mut road = Road::new(packet, ingress, extra);
                F::look(&mut road, extra.instance, target);
                self.carry(view, fibs, road, looked(leaf), waiting, trace);
            }
        }
    }

    /// Forwards a packet to a resolved next hop, if that is all there is to do.
    #[inline(always)]
    fn forward_plain<F: Family, T: Trace>(
        &mut self,
        view: &View<'_>,
        mut packet: Packet,
        leaf: Option<ActionId>,
        trace: &mut T,
    ) -> Result<(), Packet> {
        let action = leaf.and_then(|leaf| view.tables.action(leaf, view.guard));
        let Some(Action::Forward(id)) = action else { return Err(packet) };
        let Some(NextHop { rewrite: Some(rewrite), mtu, port, .. }) = view.tables.next_hop(*id, view.guard)
        else {
            return Err(packet);
        };
        // The Ethernet header that the packet came in with has left the room for the new one.
        if usize::from(rewrite.len) + 2 > packet.headroom() || !F::forward(&mut packet, *mtu) {
            return Err(packet);
        }
        trace.step(Event::NextHop(*id), &packet);
        if write_link_layer(&mut packet, rewrite, F::ETHERTYPE).is_some() {
            trace.step(Event::Sent(*port), &packet);
            self.send(*port, packet, trace);
        } else {
            self.drop(packet, Drop::NoHeadroom, trace);
        }
        Ok(())
    }

    /// Puts a frame into the queue of a port.
    #[inline(always)]
    pub(super) fn send<T: Trace>(&mut self, port: PortId, packet: Packet, trace: &mut T) {
        if let Err(packet) = self.transmit.push(port, packet) {
            self.drop(packet, Drop::TransmitFull, trace);
        }
    }
}
