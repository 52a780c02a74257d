//! The common road: the packets of a burst side by side.
//!
//! First all are checked, then all are looked up, then each is done what was found. What needs nothing
//! remembered of the packet is done here; all else goes on along its [`Road`].

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use arrayvec::ArrayVec;
use underpass_packet::ethernet;

use super::chain::{Chain, Fibs};
use super::road::Extra;
use super::transmit::{ETHERNET_REWRITE, frame, write_ethernet};
use super::{Path, Road, Step, View, Waiting, ipv4, ipv6, looked};
use crate::buffer::{BURST, Packet, PortId};
use crate::counters::Count;
use crate::drops::Drop;
use crate::lpm::{Address, NO_LEAF};
use crate::publish;
use crate::srv6::{self, Onward};
use crate::tables::{Action, ActionId, Endpoint, Headend, LinkId, LookupId, NextHop, NextHopId};
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
    ///
    /// The leaf, if all were IPv6 packets for one address.
    #[inline(always)]
    pub(super) fn look_up<'a>(
        &mut self,
        view: &View<'a>,
        fibs: &mut Fibs<'a>,
        lookup: LookupId,
        count: usize,
    ) -> Option<u32> {
        let (fib4, fib6) = (fibs.fib4(view, lookup), fibs.fib6(view, lookup));
        let hot4 = fib4.filter(Chain::is_hot);
        let hot6 = fib6.filter(Chain::is_hot);
        // Bursts are often towards one SID, whose host route lies deep in the table.
        let mut last = (0, NOT_LOOKED_UP);
        let (mut packets6, mut targets6) = (0, 0);
        for lane in self.0.iter_mut().take(count) {
            if let Step::Look6(_) = lane.step
                && let Some(fib) = hot6
            {
                packets6 += 1;
                if last.0 != lane.target || last.1 == NOT_LOOKED_UP {
                    targets6 += 1;
                    last = (lane.target, fib.lookup(lane.target, view.guard).unwrap_or(NO_LEAF));
                }
                lane.leaf = last.1;
            } else if let Step::Look4(_) = lane.step
                && let Some(fib) = hot4
            {
                lane.leaf = fib.lookup(lane.target as u32, view.guard).unwrap_or(NO_LEAF);
            }
        }
        let routes = hot4.map_or(0, |fib| fib.len()).max(hot6.map_or(0, |fib| fib.len()));
        if routes > FEW {
            prefetch(view, self.0.iter().take(count).map(|lane| lane.leaf));
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
        (packets6 == count && targets6 == 1).then_some(last.1)
    }

    /// Looks up those packets for which `target` has an address.
    #[inline(never)]
    fn look_up_together<A: Address>(
        &mut self,
        view: &View<'_>,
        fib: Chain<'_, A>,
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
        prefetch(view, leaves.iter().copied());
        for (lane, leaf) in members.into_iter().zip(leaves) {
            lane.leaf = *leaf;
        }
    }
}

/// Routes of a table whose actions are all in the cache, whatever they are.
const FEW: usize = 256;

/// Asks for the memory of what was found, which is about to be read: the actions, and the headers of
/// those that insert any.
#[inline(never)]
fn prefetch(view: &View<'_>, leaves: impl Iterator<Item = u32> + Clone) {
    view.tables.prefetch_actions(leaves.clone());
    for leaf in leaves {
        if let Some(Action::Headend(policy)) = view.tables.action(ActionId(leaf), view.guard) {
            publish::prefetch(policy.header.as_ptr());
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

/// What the packets of a burst have in common.
pub(super) struct Common<'v, 'a> {
    pub(super) view: &'v View<'a>,
    pub(super) ingress: LinkId,
    pub(super) extra: Extra,
}

impl<const COUNT: bool> Path<COUNT> {
    /// Takes all packets of a burst down the common road, and on along their own where they leave it.
    #[inline(always)]
    pub(super) fn take_all<'a, 'l, T: Trace, const COUNTED: bool>(
        &mut self,
        common: &Common<'_, 'a>,
        fibs: &mut Fibs<'a>,
        burst: impl Iterator<Item = (Packet, &'l Lane)>,
        waiting: &mut ArrayVec<Waiting, BURST>,
        trace: &mut T,
    ) {
        for (packet, lane) in burst {
            let off = self.common_road::<T, COUNTED>(common, fibs, lane, packet, trace);
            if let Some((road, step)) = off {
                self.carry(common.view, fibs, road, step, waiting, trace);
            }
        }
    }

    /// Takes a packet from its look-up to its port, if nothing on the way has to be remembered of it:
    /// forwarded, through a local SID, or through an encapsulation. What is not so plain leaves the common
    /// road, with the step that it goes on with; so does everything that is watched. `COUNTED`: its SID has
    /// counted it already.
    #[inline(always)]
    fn common_road<'a, T: Trace, const COUNTED: bool>(
        &mut self,
        common: &Common<'_, 'a>,
        fibs: &mut Fibs<'a>,
        lane: &Lane,
        mut packet: Packet,
        trace: &mut T,
    ) -> Option<(Road, Step)> {
        let Common { view, ingress, extra } = *common;
        let at = packet.headroom();
        // Not looked up, or nothing found: an id beyond all actions.
        let action = view.tables.action(ActionId(lane.leaf), view.guard).filter(|_| !T::WATCHES);
        let port = match action {
            Some(Action::Forward(id)) => self.forward_plain(view, &mut packet, *id),
            Some(Action::Endpoint(sid)) => {
                let bytes = packet.len();
                let mut unusual = false;
                let onward = match srv6::endpoint(&mut packet, sid, &mut unusual) {
                    Ok(onward) => onward,
                    Err(refusal) => {
                        let mut road = Road::new(packet, at, ingress, extra);
                        if COUNTED {
                            road.behaved(sid.counter, bytes, false);
                            self.uncount(&mut road);
                        } else {
                            self.count_error(sid.counter);
                        }
                        return Some((road, Step::Refuse(refusal)));
                    }
                };
                if !COUNTED {
                    self.count(sid.counter, bytes);
                }
                let port = match onward {
                    _ if unusual => None,
                    Onward::Insert(policy) => self.headend_plain(view, &mut packet, policy, false),
                    onward => self.onward_plain(view, fibs, &mut packet, onward),
                };
                if port.is_none() {
                    let mut road = Road::new(packet, at, ingress, extra);
                    road.behaved(sid.counter, bytes, unusual);
                    let step = self.onward(&mut road, onward, trace);
                    return Some((road, step));
                }
                port
            }
            Some(Action::Headend(policy)) => self.headend_plain(view, &mut packet, policy, true),
            _ => None,
        };
        let Some(port) = port else {
            let mut road = Road::new(packet, at, ingress, extra);
            let step = lane.onto(&mut road, trace);
            return Some((road, step));
        };
        self.send(port, packet, trace);
        None
    }

    /// Counts a burst that is for one SID all at once, before it goes through it: a counter for each
    /// packet would cost 7 % of End.DX2. Whether it was one.
    pub(super) fn count_burst<T: Trace>(&self, view: &View<'_>, leaf: Option<u32>, burst: Count) -> bool {
        let action = leaf.and_then(|leaf| view.tables.action(ActionId(leaf), view.guard));
        match action {
            Some(Action::Endpoint(Endpoint { counter: Some(counter), .. })) if COUNT && !T::WATCHES => {
                self.counters.add(*counter, burst);
                true
            }
            _ => false,
        }
    }

    /// Where a packet leaves that goes on from a behaviour, if to a next hop or as a frame.
    #[inline(always)]
    fn onward_plain<'a>(
        &self,
        view: &View<'a>,
        fibs: &mut Fibs<'a>,
        packet: &mut Packet,
        onward: Onward<'_>,
    ) -> Option<PortId> {
        let leaf = match onward {
            Onward::Forward(next_hop) => return self.forward_plain(view, packet, next_hop),
            Onward::Frame(link) => {
                return match frame(view, packet, link) {
                    Step::Send(port) => Some(PortId(port as u16)),
                    _ => None,
                };
            }
            Onward::Look6(lookup, address) => match fibs.known(lookup, address) {
                Some(leaf) => Some(leaf),
                None => {
                    let fib = fibs.fib6(view, lookup).filter(|fib| fib.is_hot())?;
                    let leaf = fib.lookup(address.to_bits(), view.guard).map(ActionId);
                    fibs.next = leaf.map(|leaf| (lookup, address, leaf));
                    leaf
                }
            },
            Onward::Look4(lookup, address) => {
                let fib = fibs.fib4(view, lookup).filter(|fib| fib.is_hot())?;
                fib.lookup(address.to_bits(), view.guard).map(ActionId)
            }
            Onward::Insert(_) => None,
        };
        match view.tables.action(leaf?, view.guard) {
            Some(Action::Forward(next_hop)) => self.forward_plain(view, packet, *next_hop),
            _ => None,
        }
    }

    /// Puts a policy's headers before a packet and sends it to their next hop, if that is known and takes
    /// it; the packet is as it was if not. `framed`: the Ethernet header that it came in with is still in
    /// front of it.
    #[inline(always)]
    fn headend_plain(
        &self,
        view: &View<'_>,
        packet: &mut Packet,
        policy: &Headend,
        framed: bool,
    ) -> Option<PortId> {
        let (len, next_hop) = srv6::encapsulate_plain(packet, policy, framed)?;
        let port = self.forward_plain(view, packet, next_hop);
        if port.is_none() {
            packet.pull(len);
        }
        port
    }

    /// Lowers the hop limit of a packet and puts the link-layer header before it, if the next hop is
    /// resolved, on Ethernet, and takes it as it is. The port by which it leaves; `None`: the packet is
    /// as it was.
    #[inline(always)]
    fn forward_plain(&self, view: &View<'_>, packet: &mut Packet, id: NextHopId) -> Option<PortId> {
        let NextHop { rewrite, mtu, port, .. } = view.tables.next_hop(id, view.guard)?;
        let rewrite = rewrite.as_ref()?;
        let fits = packet.len() <= *mtu as usize && packet.headroom() >= ethernet::Header::LEN;
        if rewrite.len != ETHERNET_REWRITE || !fits {
            return None;
        }
        let (ethertype, lowered) = if ipv6::is(packet) {
            (ethernet::IPV6, ipv6::lower_hop_limit(packet))
        } else {
            (ethernet::IPV4, ipv4::lower_ttl(packet))
        };
        if !lowered {
            return None;
        }
        write_ethernet(packet, rewrite, ethertype)?;
        Some(*port)
    }

    /// Puts a frame into the queue of a port.
    #[inline(always)]
    pub(super) fn send<T: Trace>(&mut self, port: PortId, packet: Packet, trace: &mut T) {
        trace.step(Event::Sent(port), &packet);
        if let Err(packet) = self.transmit.push(port, packet) {
            self.drop(packet, Drop::TransmitFull, trace);
        }
    }
}
