//! The common road: the packets of a burst side by side.
//!
//! First all are checked, then all are looked up, then each is done what was found. What is only
//! forwarded is done here, without remembering anything of the packet; all else goes on along its
//! [`Road`].

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use arrayvec::ArrayVec;
use underpass_packet::ethernet;

use super::transmit::{ETHERNET_REWRITE, write_ethernet};
use super::{Fibs, Path, Road, Step, View, ipv4, ipv6, looked};
use crate::buffer::{BURST, Packet, PortId};
use crate::drops::Drop;
use crate::lpm::{Address, Lpm, NO_LEAF};
use crate::tables::{Action, ActionId, LookupId, NextHop};
use crate::trace::{Event, Trace};

/// What is known of a packet of the burst.
#[derive(Clone, Copy)]
pub(super) struct Lane {
    /// What is to happen to it.
    pub(super) step: Step,
    /// What was found, where the step is a look-up that is done.
    leaf: u32,
    /// The address to be looked up; of IPv4 in the lower bits.
    pub(super) target: u128,
}

/// Those of a burst.
pub(super) struct Lanes(pub(super) [Lane; BURST]);

/// A look-up that is not done here. Like [`NO_LEAF`] it names no action: all its bits are ones as far as ids go.
const NOT_LOOKED_UP: u32 = NO_LEAF >> 1;

impl Lanes {
    #[inline(always)]
    pub(super) fn new() -> Self {
        Self([Lane { step: Step::Deliver, leaf: NOT_LOOKED_UP, target: 0 }; BURST])
    }

    /// Does the look-ups of the first `count` packets, all of them in `lookup`, which is that of the link
    /// by which they came in: one by one in tables that are in the cache, together in others. Those that
    /// have to go through policy rules or several tables are left.
    #[inline(always)]
    pub(super) fn look_up<'a>(
        &mut self,
        view: &View<'a>,
        fibs: &mut Fibs<'a>,
        lookup: LookupId,
        count: usize,
    ) {
        let (fib4, fib6) = (fibs.fib4(view, lookup), fibs.fib6(view, lookup));
        let hot4 = fib4.filter(|fib| fib.is_hot());
        let hot6 = fib6.filter(|fib| fib.is_hot());
        // Bursts are often towards one SID, whose host route lies deep in the table.
        let mut last = (0, NOT_LOOKED_UP);
        for lane in self.0.iter_mut().take(count) {
            if let Step::Look6(_) = lane.step
                && let Some(fib) = hot6
            {
                if last.0 != lane.target || last.1 == NOT_LOOKED_UP {
                    last = (lane.target, fib.lookup(lane.target, view.guard).unwrap_or(NO_LEAF));
                }
                lane.leaf = last.1;
            } else if let Step::Look4(_) = lane.step
                && let Some(fib) = hot4
            {
                lane.leaf = fib.lookup(lane.target as u32, view.guard).unwrap_or(NO_LEAF);
            }
        }
        if let Some(fib) = fib6.filter(|_| hot6.is_none()) {
            self.look_up_together(view, fib, count, |lane| match lane.step {
                Step::Look6(_) => Some(lane.target),
                _ => None,
            });
        }
        if let Some(fib) = fib4.filter(|_| hot4.is_none()) {
            self.look_up_together(view, fib, count, |lane| match lane.step {
                Step::Look4(_) => Some(lane.target as u32),
                _ => None,
            });
        }
    }

    /// Looks up those packets for which `target` has an address.
    #[inline(never)]
    fn look_up_together<A: Address>(
        &mut self,
        view: &View<'_>,
        fib: &Lpm<A>,
        count: usize,
        target: impl Fn(&Lane) -> Option<A>,
    ) {
        let mut members = ArrayVec::<&mut Lane, BURST>::new();
        let mut targets = ArrayVec::<A, BURST>::new();
        for lane in self.0.iter_mut().take(count) {
            if let Some(address) = target(lane) {
                targets.push(address);
                members.push(lane);
            }
        }
        let mut leaves = [NO_LEAF; BURST];
        let leaves = &mut leaves[..members.len()];
        fib.lookup_batch(&targets, leaves, view.guard);
        view.tables.prefetch_actions(leaves);
        for (lane, leaf) in members.into_iter().zip(leaves) {
            lane.leaf = *leaf;
        }
    }
}

impl Lane {
    /// The step that the packet goes on with along its road, if it is not only forwarded.
    pub(super) fn onto<T: Trace>(&self, road: &mut Road, trace: &mut T) -> Step {
        let target: IpAddr = match self.step {
            Step::Look4(_) => {
                road.target4 = Ipv4Addr::from_bits(self.target as u32);
                road.target4.into()
            }
            Step::Look6(_) => {
                road.target6 = Ipv6Addr::from_bits(self.target);
                road.target6.into()
            }
            step => return step,
        };
        if self.leaf == NOT_LOOKED_UP {
            return self.step;
        }
        let leaf = (self.leaf != NO_LEAF).then_some(ActionId(self.leaf));
        trace.step(Event::Lookup(target, leaf), &road.packet);
        looked(leaf)
    }
}

impl<const COUNT: bool> Path<COUNT> {
    /// Forwards a packet to a resolved next hop on Ethernet, if that is all there is to do; gives it back
    /// as it was if not.
    #[inline(always)]
    pub(super) fn forward_plain<T: Trace>(
        &mut self,
        view: &View<'_>,
        mut packet: Packet,
        lane: &Lane,
        trace: &mut T,
    ) -> Result<(), Packet> {
        // Not looked up, or nothing found: an id beyond all actions.
        let Some(Action::Forward(id)) = view.tables.action(ActionId(lane.leaf), view.guard) else {
            return Err(packet);
        };
        let Some(NextHop { rewrite: Some(rewrite), mtu, port, .. }) = view.tables.next_hop(*id, view.guard)
        else {
            return Err(packet);
        };
        if rewrite.len != ETHERNET_REWRITE || packet.len() > *mtu as usize {
            return Err(packet);
        }
        let (ethertype, forwarded) = match lane.step {
            Step::Look6(_) => (ethernet::IPV6, ipv6::lower_hop_limit(&mut packet)),
            _ => (ethernet::IPV4, ipv4::lower_ttl(&mut packet)),
        };
        if !forwarded {
            return Err(packet);
        }
        if T::WATCHES {
            let target: IpAddr = match lane.step {
                Step::Look6(_) => Ipv6Addr::from_bits(lane.target).into(),
                _ => Ipv4Addr::from_bits(lane.target as u32).into(),
            };
            trace.step(Event::Lookup(target, Some(ActionId(lane.leaf))), &packet);
            trace.step(Event::NextHop(*id), &packet);
        }
        match write_ethernet(&mut packet, rewrite, ethertype) {
            Some(()) => {
                trace.step(Event::Sent(*port), &packet);
                self.send(*port, packet, trace);
            }
            None => self.drop(packet, Drop::NoHeadroom, trace),
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
