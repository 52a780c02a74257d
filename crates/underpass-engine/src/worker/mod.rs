//! A worker takes bursts from ports and carries each packet down its road, to exactly one verdict:
//! sent, delivered to the router itself, or dropped for a named and counted reason.
//!
//! ```text
//! burst → ethernet → ipv4 / ipv6 input → look-up → action → … → look-up → action → link layer → port
//!                                           ↑______ behaviour, decapsulation, ICMP ___|
//! ```
//!
//! A packet is carried through its whole road at once while the tables that it needs are small enough
//! for the cache. Where a table is not, the packet waits for the others of its burst, and they are
//! looked up together.

mod arp;
mod fragment;
mod icmp;
mod ipv4;
mod ipv6;
mod ndp;
mod road;
mod rules;
mod transmit;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use arrayvec::ArrayVec;
use underpass_packet::ethernet;

use crate::buffer::{BURST, Packet, Pool, PortId};
use crate::counters::{Count, CounterId, Counters, Direction, Totals};
use crate::drops::Drop;
use crate::flow;
use crate::limiter::{Limiter, Nanos};
use crate::lpm::NO_LEAF;
use crate::srv6;
use crate::tables::{
    Action, ActionId, Discard, Guard, Link, LinkId, Lookup, LookupId, NextHopId, Reader, Tables, Via,
};
use crate::trace::{Event, Trace};

pub(crate) use icmp::Error as IcmpError;
pub(crate) use ipv4::check as ipv4_check;
pub(crate) use ipv6::check as ipv6_check;
pub(crate) use road::Road;
use transmit::Transmit;

/// A burst of packets that came in by one port.
pub type Burst = ArrayVec<Packet, BURST>;

/// Look-ups that one packet may ask for: more is a loop through the router's own tunnels.
const MAX_TURNS: u8 = 16;

/// Linux's `icmp_msgs_per_sec` and `icmp_msgs_burst`.
const ICMP_RATE: (u64, u64) = (1000, 50);

/// One thread's share of the router. `COUNT` compiles the counters of behaviours in or out; every
/// router counts, only the measurement of what counting costs does not.
pub struct Worker<const COUNT: bool = true> {
    tables: Arc<Tables>,
    reader: Reader,
    path: Path<COUNT>,
}

/// What the path of a packet changes; apart from the tables, which it only reads.
pub(crate) struct Path<const COUNT: bool> {
    pub(crate) pool: Pool,
    pub(crate) transmit: Transmit,
    pub(crate) counters: Arc<Counters>,
    pub(crate) totals: Totals,
    run: Run,
    icmp: Limiter,
    /// Whether the router has no kernel beside it and answers ARP, neighbour discovery and pings itself.
    answers: bool,
}

/// Packets in a row that one counter counts, added to it when another one's turn comes.
#[derive(Default)]
struct Run {
    counter: Option<CounterId>,
    packets: u64,
    bytes: u64,
}

/// What a burst sees: the tables as they are now, and the time.
pub(crate) struct View<'a> {
    pub(crate) tables: &'a Tables,
    pub(crate) guard: &'a Guard<'a>,
    pub(crate) now: Nanos,
}

/// What is to happen to a packet next.
#[derive(Clone, Copy)]
pub(crate) enum Step {
    /// Look this address up in the tables that the id names.
    Look4(LookupId, Ipv4Addr),
    /// The same for IPv6.
    Look6(LookupId, Ipv6Addr),
    /// Do what this action says.
    Act(ActionId),
    /// Forward to this next hop: hop limit, MTU, link layer.
    Forward(NextHopId),
    /// Send the Ethernet frame that the packet is by this link.
    Frame(LinkId),
    /// It is for the router itself.
    Deliver,
    /// Drop it.
    Drop(Drop),
    /// Drop it, and tell its sender.
    Error(Drop, icmp::Error),
    /// Another look-up of the same packet is needed after a `throw` route, where a policy rule selects,
    /// or in any other case off the common road.
    LookSlow(LookupId, IpAddr),
}

/// A packet that waits for the look-ups of its burst.
struct Waiting {
    road: Road,
    lookup: LookupId,
    address: IpAddr,
}

impl Step {
    /// On to where an action points: to its next hop if that is known, to its address otherwise.
    #[inline]
    pub(crate) fn via(via: &Via) -> Self {
        match (via.resolved, via.address) {
            (Some(next_hop), _) => Self::Forward(next_hop),
            (None, IpAddr::V4(address)) => Self::Look4(via.lookup, address),
            (None, IpAddr::V6(address)) => Self::Look6(via.lookup, address),
        }
    }
}

impl<'a> View<'a> {
    #[inline]
    pub(crate) fn link(&self, id: LinkId) -> Option<&'a Link> {
        self.tables.link(id, self.guard)
    }

    #[inline]
    fn lookup(&self, id: LookupId) -> Option<&'a Lookup> {
        self.tables.lookup(id, self.guard)
    }
}

impl<const COUNT: bool> Worker<COUNT> {
    /// A worker over these tables, with the packet memory of `pool`.
    pub fn new(tables: Arc<Tables>, reader: Reader, pool: Pool) -> Self {
        let path = Path {
            pool,
            transmit: Transmit::default(),
            counters: Arc::clone(reader.counters()),
            totals: Totals::default(),
            run: Run::default(),
            icmp: Limiter::new(ICMP_RATE.0, ICMP_RATE.1),
            answers: true,
        };
        Self { tables, reader, path }
    }

    /// The worker's free packets: where ports take empty ones and give sent ones back.
    pub fn pool(&mut self) -> &mut Pool {
        &mut self.path.pool
    }

    /// Takes the packets that wait to be sent by `port`, in order.
    pub fn sent(&mut self, port: PortId) -> impl Iterator<Item = Packet> + '_ {
        self.path.transmit.drain(port)
    }

    /// Gives the packets that wait to be sent by `port` back to the pool, and returns how many they were.
    pub fn discard_sent(&mut self, port: PortId) -> usize {
        let Path { transmit, pool, .. } = &mut self.path;
        transmit.drain(port).map(|packet| pool.give(packet)).count()
    }

    /// Carries a burst of Ethernet frames that came in by `port` to their verdicts, at time `now`.
    /// The burst is empty afterwards.
    pub fn process<T: Trace>(&mut self, port: PortId, burst: &mut Burst, now: Nanos, trace: &mut T) {
        let guard = self.reader.enter();
        let view = View { tables: &self.tables, guard: &guard, now };
        self.path.process(&view, port, burst, trace);
    }
}

impl<const COUNT: bool> Path<COUNT> {
    fn process<T: Trace>(&mut self, view: &View<'_>, port: PortId, burst: &mut Burst, trace: &mut T) {
        self.totals.received += burst.len() as u64;
        let up = view.tables.port_link(port, view.guard).filter(|(_, link)| link.up);
        let Some((ingress, link)) = up else {
            for packet in burst.drain(..) {
                trace.step(Event::Received(port), &packet);
                self.drop(packet, Drop::LinkDown, trace);
            }
            return self.end_of_burst();
        };
        let mut waiting = ArrayVec::<Waiting, BURST>::new();
        let mut received = Count { packets: burst.len() as u64, ..Count::default() };
        for mut packet in burst.drain(..) {
            received.bytes += packet.len() as u64;
            packet.ingress = port;
            trace.step(Event::Received(port), &packet);
            let mut road = Road::new(packet, ingress, link.lookup);
            let step = self.ethernet(view, &mut road, link, trace);
            self.carry(view, road, step, &mut waiting, trace);
        }
        while !waiting.is_empty() {
            self.look_up_together(view, &mut waiting, trace);
        }
        self.counters.add_link(ingress, Direction::Receive, received);
        self.end_of_burst();
    }

    /// The link layer: whether the frame is for this router, and which protocol it carries.
    #[inline(always)]
    fn ethernet<T: Trace>(&mut self, view: &View<'_>, road: &mut Road, link: &Link, trace: &mut T) -> Step {
        let Ok((header, _)) = ethernet::Header::parse(road.packet.bytes()) else {
            return Step::Drop(Drop::EthernetTruncated);
        };
        let (destination, ethertype) = (header.destination, header.ethertype.get());
        // A group address has the lowest bit of its first octet set.
        if destination != link.mac && !ethernet::is_multicast(destination) {
            return Step::Drop(Drop::OtherHost);
        }
        road.packet.pull(ethernet::Header::LEN);
        match ethertype {
            ethernet::IPV6 => ipv6::input(road, link),
            ethernet::IPV4 => ipv4::input(road, link),
            ethernet::ARP if self.answers => self.arp(view, road, link, trace),
            ethernet::ARP => Step::Deliver,
            ethernet::VLAN | ethernet::SERVICE_VLAN => Step::Drop(Drop::VlanUnknown),
            _ => Step::Drop(Drop::EtherTypeUnknown),
        }
    }

    /// Carries a packet on until its verdict, or until it has to wait for a look-up.
    #[inline(always)]
    fn carry<T: Trace>(
        &mut self,
        view: &View<'_>,
        mut road: Road,
        mut step: Step,
        waiting: &mut ArrayVec<Waiting, BURST>,
        trace: &mut T,
    ) {
        loop {
            step = match step {
                Step::Look6(id, address) => {
                    match self.look6(view, &mut road, id, address, !waiting.is_full(), trace) {
                        Looked::Step(step) => step,
                        Looked::Wait => {
                            waiting.push(Waiting { road, lookup: id, address: address.into() });
                            return;
                        }
                    }
                }
                Step::Look4(id, address) => {
                    match self.look4(view, &mut road, id, address, !waiting.is_full(), trace) {
                        Looked::Step(step) => step,
                        Looked::Wait => {
                            waiting.push(Waiting { road, lookup: id, address: address.into() });
                            return;
                        }
                    }
                }
                Step::Act(id) => self.act(view, &mut road, id, trace),
                Step::Forward(id) => match self.forward(view, road, id, trace) {
                    Ok(()) => return,
                    Err((back, step)) => {
                        road = back;
                        step
                    }
                },
                Step::Frame(id) => return self.send_frame(view, road, id, trace),
                Step::Deliver => match self.deliver(view, &mut road, trace) {
                    Some(step) => step,
                    None => return self.delivered(road, trace),
                },
                Step::Drop(reason) => return self.drop_road(road, reason, trace),
                Step::Error(reason, error) => self.icmp_error(view, &mut road, reason, error, trace),
                Step::LookSlow(id, address) => self.look_slow(view, &mut road, id, address, trace),
            };
        }
    }

    /// Looks an IPv6 address up, if the first table that it needs is small; says `Wait` if not.
    #[inline(always)]
    fn look6<T: Trace>(
        &mut self,
        view: &View<'_>,
        road: &mut Road,
        id: LookupId,
        address: Ipv6Addr,
        may_wait: bool,
        trace: &mut T,
    ) -> Looked {
        let lookup = match self.begin_look_up(view, road, id) {
            Ok(lookup) if lookup.rules6.is_empty() => lookup,
            Ok(_) => return Looked::Step(Step::LookSlow(id, address.into())),
            Err(reason) => return Looked::Step(Step::Drop(reason)),
        };
        for fib in &lookup.fibs6 {
            let Some(fib) = view.tables.fib6(*fib, view.guard) else { continue };
            if may_wait && !fib.is_hot() {
                return Looked::Wait;
            }
            if let Some(leaf) = fib.lookup(address.to_bits(), view.guard) {
                trace.step(Event::Lookup(address.into(), Some(ActionId(leaf))), &road.packet);
                return Looked::Step(Step::Act(ActionId(leaf)));
            }
        }
        trace.step(Event::Lookup(address.into(), None), &road.packet);
        Looked::Step(Step::Error(Drop::NoRoute, icmp::Error::NoRoute))
    }

    /// The same for IPv4.
    #[inline(always)]
    fn look4<T: Trace>(
        &mut self,
        view: &View<'_>,
        road: &mut Road,
        id: LookupId,
        address: Ipv4Addr,
        may_wait: bool,
        trace: &mut T,
    ) -> Looked {
        let lookup = match self.begin_look_up(view, road, id) {
            Ok(lookup) if lookup.rules4.is_empty() => lookup,
            Ok(_) => return Looked::Step(Step::LookSlow(id, address.into())),
            Err(reason) => return Looked::Step(Step::Drop(reason)),
        };
        for fib in &lookup.fibs4 {
            let Some(fib) = view.tables.fib4(*fib, view.guard) else { continue };
            if may_wait && !fib.is_hot() {
                return Looked::Wait;
            }
            if let Some(leaf) = fib.lookup(address.to_bits(), view.guard) {
                trace.step(Event::Lookup(address.into(), Some(ActionId(leaf))), &road.packet);
                return Looked::Step(Step::Act(ActionId(leaf)));
            }
        }
        trace.step(Event::Lookup(address.into(), None), &road.packet);
        Looked::Step(Step::Error(Drop::NoRoute, icmp::Error::NoRoute))
    }

    #[inline(always)]
    fn begin_look_up<'a>(&self, view: &View<'a>, road: &mut Road, id: LookupId) -> Result<&'a Lookup, Drop> {
        road.turns += 1;
        if road.turns > MAX_TURNS {
            return Err(Drop::Loop);
        }
        road.looked_in = id;
        if road.wrapping == 0 {
            road.instance = id;
        }
        view.lookup(id).ok_or(Drop::NoRoute)
    }

    /// Looks up in one go what waits for it, and carries those packets on. They may wait again, for
    /// their next look-up.
    #[inline(never)]
    fn look_up_together<T: Trace>(
        &mut self,
        view: &View<'_>,
        waiting: &mut ArrayVec<Waiting, BURST>,
        trace: &mut T,
    ) {
        let batch = std::mem::take(waiting);
        let mut leaves = [None; BURST];
        self.look_up_batch(view, &batch, &mut leaves);
        for (Waiting { mut road, lookup, address }, leaf) in batch.into_iter().zip(leaves) {
            let step = match leaf {
                Some(leaf) => {
                    trace.step(Event::Lookup(address, Some(leaf)), &road.packet);
                    Step::Act(leaf)
                }
                // Found in no first table: the others one by one.
                None => {
                    road.turns -= 1;
                    Step::LookSlow(lookup, address)
                }
            };
            self.carry(view, road, step, waiting, trace);
        }
    }

    /// The look-ups of a burst in the first table of each, those of one table and family together.
    fn look_up_batch(
        &self,
        view: &View<'_>,
        batch: &ArrayVec<Waiting, BURST>,
        leaves: &mut [Option<ActionId>; BURST],
    ) {
        let mut done = [false; BURST];
        for first in 0..batch.len() {
            if done[first] {
                continue;
            }
            let Waiting { lookup: id, address, .. } = &batch[first];
            let Some(lookup) = view.lookup(*id) else { continue };
            let same = |other: &Waiting| other.lookup == *id && other.address.is_ipv4() == address.is_ipv4();
            let members: ArrayVec<usize, BURST> =
                (first..batch.len()).filter(|i| !done[*i] && same(&batch[*i])).collect();
            for member in &members {
                done[*member] = true;
            }
            let mut found = [NO_LEAF; BURST];
            match address {
                IpAddr::V6(_) => {
                    let addresses: ArrayVec<u128, BURST> = members
                        .iter()
                        .filter_map(|i| match batch[*i].address {
                            IpAddr::V6(address) => Some(address.to_bits()),
                            IpAddr::V4(_) => None,
                        })
                        .collect();
                    let fib = lookup.fibs6.first().and_then(|fib| view.tables.fib6(*fib, view.guard));
                    if let Some(fib) = fib {
                        fib.lookup_batch(&addresses, &mut found[..addresses.len()], view.guard);
                    }
                }
                IpAddr::V4(_) => {
                    let addresses: ArrayVec<u32, BURST> = members
                        .iter()
                        .filter_map(|i| match batch[*i].address {
                            IpAddr::V4(address) => Some(address.to_bits()),
                            IpAddr::V6(_) => None,
                        })
                        .collect();
                    let fib = lookup.fibs4.first().and_then(|fib| view.tables.fib4(*fib, view.guard));
                    if let Some(fib) = fib {
                        fib.lookup_batch(&addresses, &mut found[..addresses.len()], view.guard);
                    }
                }
            }
            for (member, leaf) in members.iter().zip(found) {
                leaves[*member] = (leaf != NO_LEAF).then_some(ActionId(leaf));
            }
        }
    }

    /// Does what a look-up ended in.
    #[inline(always)]
    fn act<T: Trace>(&mut self, view: &View<'_>, road: &mut Road, id: ActionId, trace: &mut T) -> Step {
        let Some(action) = view.tables.action(id, view.guard) else {
            return Step::Drop(Drop::NoRoute);
        };
        match action {
            Action::Forward(next_hop) => Step::Forward(*next_hop),
            Action::Endpoint(endpoint) => srv6::endpoint(self, view, road, endpoint, trace),
            Action::Headend(headend) => {
                if road.unfinished {
                    self.finish_generated(view, road, road.ingress);
                }
                srv6::headend(road, headend, trace)
            }
            Action::Local => Step::Deliver,
            Action::Multipath(multipath) => {
                let hash = flow::hash(road.packet.bytes());
                let bucket = multipath.buckets.partition_point(|(bound, _)| *bound < hash);
                multipath.buckets.get(bucket).map_or(Step::Drop(Drop::NoRoute), |(_, id)| Step::Act(*id))
            }
            Action::OnLink(link) => self.unresolved(view, road, *link),
            Action::Discard(discard) => self.discard(view, road, *discard),
        }
    }

    /// A route type that forwards nothing.
    #[cold]
    fn discard(&mut self, view: &View<'_>, road: &mut Road, discard: Discard) -> Step {
        match discard {
            Discard::Blackhole => Step::Drop(Drop::Blackhole),
            Discard::Unreachable => Step::Error(Drop::Unreachable, icmp::Error::Unreachable),
            Discard::Prohibit => Step::Error(Drop::Prohibited, icmp::Error::Prohibited),
            Discard::Throw => self.look_past_throw(view, road),
        }
    }

    /// An on-link destination whose neighbour is not known.
    #[cold]
    fn unresolved(&mut self, _: &View<'_>, _: &mut Road, _: LinkId) -> Step {
        Step::Error(Drop::NeighbourUnresolved, icmp::Error::AddressUnreachable)
    }

    /// Counts a packet of a behaviour, together with those before it that have the same counter.
    #[inline(always)]
    pub(crate) fn count(&mut self, road: &mut Road, counter: Option<CounterId>, bytes: usize) {
        if !COUNT || counter.is_none() {
            return;
        }
        if self.run.counter != counter {
            self.end_run();
            self.run.counter = counter;
        }
        self.run.packets += 1;
        self.run.bytes += bytes as u64;
        road.counted = counter.map(|id| (id, bytes as u32));
    }

    /// Counts a packet that a behaviour refused.
    #[cold]
    pub(crate) fn count_error(&self, counter: Option<CounterId>) {
        if let Some(id) = counter.filter(|_| COUNT) {
            self.counters.add(id, Count { errors: 1, ..Count::default() });
        }
    }

    /// Turns a packet that was counted as good into an error of its behaviour.
    #[cold]
    pub(crate) fn uncount(&mut self, road: &mut Road) {
        if let Some((id, bytes)) = road.counted.take() {
            self.end_run();
            let taken_back = Count { packets: 1, bytes: u64::from(bytes), errors: 0 };
            self.counters.add(id, Count { errors: 1, ..Count::default() } - taken_back);
        }
    }

    #[inline]
    fn end_run(&mut self) {
        let Run { counter, packets, bytes } = std::mem::take(&mut self.run);
        if let Some(id) = counter {
            self.counters.add(id, Count { packets, bytes, errors: 0 });
        }
    }

    fn end_of_burst(&mut self) {
        self.end_run();
        self.transmit.count(&self.counters, &mut self.totals);
        self.counters.add_totals(std::mem::take(&mut self.totals));
    }

    fn delivered<T: Trace>(&mut self, road: Road, trace: &mut T) {
        trace.step(Event::Delivered(road.ingress), &road.packet);
        self.totals.delivered += 1;
        self.pool.give(road.packet);
    }

    fn drop_road<T: Trace>(&mut self, mut road: Road, reason: Drop, trace: &mut T) {
        trace.step(Event::Dropped(reason), &road.packet);
        self.count_drop(&mut road, reason);
        self.pool.give(road.packet);
    }

    /// Counts a packet as dropped, and takes it out of its behaviour's count where Linux returns an
    /// error to the behaviour that forwarded it.
    fn count_drop(&mut self, road: &mut Road, reason: Drop) {
        let error = matches!(
            reason,
            Drop::HopLimitExceeded
                | Drop::TooBig
                | Drop::Loop
                | Drop::NoHeadroom
                | Drop::LengthOverflow
                | Drop::ForwardingOff
                | Drop::LinkDown
                | Drop::NoPort
        );
        if error {
            self.uncount(road);
        }
        self.counters.add_drop(reason, 1);
    }

    pub(crate) fn drop<T: Trace>(&mut self, packet: Packet, reason: Drop, trace: &mut T) {
        trace.step(Event::Dropped(reason), &packet);
        self.counters.add_drop(reason, 1);
        self.pool.give(packet);
    }
}

/// What a look-up led to.
enum Looked {
    Step(Step),
    Wait,
}
