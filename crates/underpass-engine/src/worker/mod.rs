//! A worker takes bursts from ports and takes each packet to exactly one verdict:
//! sent, delivered to the router itself, or dropped for a named and counted reason.
//!
//! ```text
//! burst → ethernet → ipv4 / ipv6 input → look-up → action → … → look-up → action → link layer → port
//!                                           ↑______ behaviour, decapsulation, ICMP ___|
//! ```
//!
//! A packet is carried through its whole path at once while the tables that it needs are small enough
//! for the cache. Where a table is not, the packet waits for the others of its burst, and they are
//! looked up together.

pub(crate) mod burst;
pub(crate) mod egress;
pub(crate) mod env;
pub(crate) mod error;
pub(crate) mod family;
pub(crate) mod fibs;
pub(crate) mod gap;
pub(crate) mod headroom;
pub(crate) mod hook;
pub(crate) mod insert;
pub(crate) mod lookup;
pub(crate) mod metadata;
pub(crate) mod multipath;
pub(crate) mod neighbour;
pub(crate) mod prefetch;
pub(crate) mod recent;
pub(crate) mod rewrite;
pub(crate) mod run;
pub(crate) mod shape;
pub(crate) mod slow_path;
pub(crate) mod transmit;
pub(crate) mod verdict;
pub(crate) mod view;

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use arrayvec::ArrayVec;
use underpass_packet::ethernet;

use crate::buffer::{BURST, Packet, Pool, PortId};
use crate::counters::{Count, CounterId, Counters, Direction, Totals};
use crate::drops::DropReason;
use crate::limiter::{Limiter, Nanos};
use crate::mpls::count_unlooked;
use crate::path::input::classify;
use crate::path::kept::give_kept;
use crate::path::reassemble::Reassembly;
use crate::srv6::program::Programs;
use crate::tables::{Link, LinkId, LookupId, Reader, Tables};
use crate::trace::{Event, Trace};
use crate::tunnel::from_host::take_from_host;
use crate::worker::egress::leave_hooks;
use crate::worker::env::{BurstContext, Env};
use crate::worker::fibs::Fibs;
use crate::worker::hook::burst::classify_burst;
use crate::worker::hook::{Hooks, place_of};
use crate::worker::metadata::Entered;
use crate::worker::neighbour::UnresolvedQueues;
use crate::worker::recent::Recent;
use crate::worker::shape::serve::{catch_up, serve_qdiscs, update_qdiscs};
use crate::worker::shape::{Shape, burst_to_qdisc};
use crate::worker::transmit::Transmit;
use crate::worker::view::View;

pub(crate) use crate::path::ipv4::{check as ipv4_check, plain as ipv4_plain};
pub(crate) use crate::path::ipv6::{check as ipv6_check, plain as ipv6_plain};
pub use crate::path::kept::{Keeper, Kept};
pub(crate) use crate::worker::metadata::PacketMeta;
pub use crate::worker::neighbour::Unresolved;
pub(crate) use crate::worker::transmit::QUEUE;
pub(crate) use crate::worker::verdict::Verdict;

/// A burst of packets that came in by one port.
pub type Burst = ArrayVec<Packet, BURST>;

/// Linux's `icmp_msgs_per_sec` and `icmp_msgs_burst`.
const ICMP_RATE: (u64, u64) = (1000, 50);

/// One thread's share of the router. `COUNT` compiles the counters of behaviours in or out; every
/// router counts, only the measurement of what counting costs does not.
pub struct Worker<const COUNT: bool = true> {
    pub(crate) tables: Arc<Tables>,
    pub(crate) reader: Reader,
    pub(crate) path: Path<COUNT>,
    pub(crate) epoch: Nanos,
}

/// What the path of a packet changes; apart from the tables, which it only reads.
pub(crate) struct Path<const COUNT: bool> {
    pub(crate) pool: Pool,
    pub(crate) transmit: Transmit,
    pub(crate) counters: Arc<Counters>,
    pub(crate) totals: Totals,
    pub(crate) run: Run,
    /// What came in with labels, in this burst.
    pub(crate) labelled: crate::mpls::Labelled,
    pub(crate) icmp: Limiter,
    /// Whether the router has no kernel beside it and answers ARP, neighbour discovery and pings itself.
    pub(crate) answers: bool,
    /// Who knows which frames the kernel keeps, where there is one.
    pub(crate) keeper: Option<Box<dyn Keeper>>,
    /// What waits for a neighbour, where somebody can be asked for it.
    pub(crate) holds: Option<UnresolvedQueues>,
    /// Queues of queueing disciplines.
    pub(crate) shape: Shape,
    /// Fragments for the router itself.
    pub(crate) reassembly: Reassembly,
    /// What runs the programs of SIDs.
    pub(crate) programs: Box<Programs>,
    /// The number of the worker.
    pub(crate) number: usize,
    /// The identification of the last outer IPv4 header.
    pub(crate) identification: u16,
    pub(crate) hooks: Hooks,
    /// Look-ups that were made lately; while a burst is taken in, they are with its tables.
    pub(crate) recent: Recent,
}

/// Packets in a row that one counter counts, added to it when another one's turn comes.
#[derive(Default)]
pub(crate) struct Run {
    counter: Option<CounterId>,
    packets: u64,
    bytes: u64,
}

/// A packet that waits for the look-ups of its burst.
pub(crate) struct Waiting {
    pub(crate) meta: PacketMeta,
    pub(crate) lookup: LookupId,
    pub(crate) ipv6: bool,
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
            labelled: crate::mpls::Labelled::default(),
            icmp: Limiter::new(ICMP_RATE.0, ICMP_RATE.1),
            answers: true,
            keeper: None,
            holds: None,
            shape: Shape::default(),
            reassembly: Reassembly::default(),
            programs: Box::new(Programs::new(reader.number())),
            number: reader.number(),
            // Apart from those of other workers, as fragments are told apart by it.
            identification: (reader.number() as u16) << 13,
            hooks: Hooks::default(),
            recent: Recent::new(),
        };
        Self { tables, reader, path, epoch: 0 }
    }

    /// A worker with a kernel beside the router: what is for the router itself goes to the host's port of
    /// the link, and up to `held` packets wait for neighbours that are resolved elsewhere.
    #[must_use]
    pub fn beside_kernel(mut self, held: usize) -> Self {
        self.path.answers = false;
        self.path.holds = Some(UnresolvedQueues::new(held));
        self
    }

    /// Says at which Unix time the times that the worker is given are 0, in nanoseconds; without it they are
    /// Unix times themselves. It can be said again as the clocks drift apart.
    pub fn set_epoch(&mut self, epoch: Nanos) {
        self.epoch = epoch;
    }

    /// Takes note that the worker will not process anything for a while: it holds back no memory of the
    /// tables then.
    pub fn idle(&mut self) {
        self.reader.idle();
    }

    /// The worker's free packets: where ports take empty ones and give sent ones back.
    pub fn pool(&mut self) -> &mut Pool {
        &mut self.path.pool
    }

    /// Takes the packets that wait to be sent by `port`, in order.
    pub fn sent(&mut self, port: PortId) -> impl Iterator<Item = Packet> + '_ {
        self.path.transmit.drain(port)
    }

    /// The free packets and those that wait to be sent by `port`, for a port that gives back what it has
    /// sent.
    pub fn pool_and_sent(&mut self, port: PortId) -> (&mut Pool, impl Iterator<Item = Packet> + '_) {
        let Path { transmit, pool, .. } = &mut self.path;
        (pool, transmit.drain(port))
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
        let view = View { tables: &self.tables, guard: &guard, now, epoch: self.epoch };
        self.path.process(&view, port, burst, trace);
    }
}

impl<const COUNT: bool> Path<COUNT> {
    fn process<T: Trace>(&mut self, view: &View<'_>, port: PortId, burst: &mut Burst, trace: &mut T) {
        self.totals.received += burst.len() as u64;
        update_qdiscs(self, view, trace);
        catch_up(self, view, trace);
        let up = view.tables.port_link(port, view.guard).filter(|(_, link)| link.up);
        let Some((ingress, link)) = up else {
            for packet in burst.drain(..) {
                trace.step(Event::Received(port), &packet);
                self.drop(packet, DropReason::LinkDown, trace);
            }
            self.hooks.came = None;
            return self.end_of_burst(view, trace);
        };
        self.hooks.came = Some((ingress, link.ifindex));
        let packets = burst.len() as u64;
        // What the host sends by a tunnel does not come out of it, nor does what it sends into a VRF come in there.
        let asks = link.classifies_ingress() && !link.vrf && view.tables.tunnels().of_link(ingress).is_none();
        // Who looks at the whole burst first says what has come.
        let mut bytes = None;
        if let Some(hook) = link.ingress.filter(|_| asks) {
            let place = place_of(ingress, link, true, self.hooks.came);
            bytes = Some(classify_burst(self, view, hook, &place, burst, trace));
        }
        if let Some(qdisc) = link.ingress_qdisc.filter(|_| asks) {
            let came = burst_to_qdisc(self, view, qdisc, ingress, burst, trace);
            bytes = bytes.or(Some(came));
        }
        let bytes = bytes.unwrap_or_else(|| bytes_of(burst));
        if self.take_in(view, (port, ingress, link), burst, trace) {
            self.counters.add_link(ingress, Direction::Receive, Count { packets, bytes, errors: 0 });
        }
        self.end_of_burst(view, trace);
    }

    /// Takes a burst from behind the ingress hook of a link to its verdicts. `false`: the link is a tunnel, and
    /// the burst what the host sends by it.
    pub(crate) fn take_in<T: Trace>(
        &mut self,
        view: &View<'_>,
        (port, ingress, link): (PortId, LinkId, &Link),
        burst: &mut Burst,
        trace: &mut T,
    ) -> bool {
        if let Some(tunnel) = view.tables.tunnels().of_link(ingress) {
            take_from_host(self, view, port, tunnel, burst, trace);
            return false;
        }
        if let Some(kernel) = link.kernel {
            give_kept(self, kernel, (port, ingress, link), burst, trace);
        }
        let mut fibs = Fibs::new(view, link.lookup);
        fibs.recent = std::mem::take(&mut self.recent);
        fibs.recent.begin(view.tables);
        let mut waiting = ArrayVec::<Waiting, BURST>::new();
        let env = Env::new(view, &mut fibs, port, ingress, link);
        let mut context = BurstContext { env: &env, fibs: &mut fibs, waiting: &mut waiting, trace };
        self.fast_path(&mut context, burst);
        while !waiting.is_empty() {
            self.look_up_together(view, &mut fibs, &mut waiting, trace);
        }
        self.recent = fibs.recent;
        self.labelled.flush(&self.counters, ingress);
        true
    }

    /// Takes a packet that the fast path does not handle, or that is watched, from its frame down the slow path.
    #[cold]
    #[inline(never)]
    pub(crate) fn enter_slow_path<T: Trace>(
        &mut self,
        context: &mut BurstContext<'_, '_, '_, T>,
        mut packet: Packet,
    ) {
        let Env { view, ingress, port, link, extra, .. } = *context.env;
        context.trace.step(Event::Received(port), &packet);
        let (verdict, target, len) = classify(packet.bytes(), link, self.answers);
        packet.narrow(ethernet::Header::LEN, len);
        let at = packet.headroom();
        let mark = packet.tag().mark;
        let mut meta = PacketMeta::new(packet, at, ingress, extra);
        meta.extra.mark = mark;
        match verdict {
            Verdict::Label => self.labelled.count(1, len as u64),
            Verdict::Look4(_) => meta.target4 = Ipv4Addr::from_bits(target as u32),
            Verdict::Look6(_) => meta.target6 = Ipv6Addr::from_bits(target),
            _ => {}
        }
        self.slow_path(view, context.fibs, meta, verdict, context.waiting, context.trace);
    }

    /// Counts a packet of a behaviour, together with those before it that have the same counter.
    #[inline(always)]
    pub(crate) fn count(&mut self, counter: Option<CounterId>, bytes: usize) {
        if !COUNT || counter.is_none() {
            return;
        }
        if self.run.counter != counter {
            self.end_run();
            self.run.counter = counter;
        }
        self.run.packets += 1;
        self.run.bytes += bytes as u64;
    }

    /// Counts a packet that a behaviour refused.
    #[cold]
    pub(crate) fn count_error(&self, counter: Option<CounterId>) {
        if let Some(id) = counter.filter(|_| COUNT) {
            self.counters.add(id, Count { errors: 1, ..Count::default() });
        }
    }

    /// Turns a packet that was counted as good into an error of its behaviours. Linux: `seg6_local_input_core`, which calls
    /// itself for one SID behind another, and to which an error is returned.
    #[cold]
    pub(crate) fn uncount(&mut self, meta: &mut PacketMeta) {
        for (id, bytes) in meta.extra.counted.take() {
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

    pub(crate) fn end_of_burst<T: Trace>(&mut self, view: &View<'_>, trace: &mut T) {
        leave_hooks(self, view, trace);
        serve_qdiscs(self, view, trace);
        leave_hooks(self, view, trace);
        self.end_run();
        if self.transmit.count(view, &self.counters, &mut self.totals) {
            self.swallow(view);
        }
        self.counters.add_totals(std::mem::take(&mut self.totals));
    }

    /// Counts a packet as dropped, and takes it out of its behaviour's count where Linux returns an
    /// error to the behaviour that forwarded it.
    pub(crate) fn count_drop(&mut self, meta: &mut PacketMeta, reason: DropReason) {
        let error = matches!(
            reason,
            DropReason::HopLimitExceeded
                | DropReason::TooBig
                | DropReason::Loop
                | DropReason::EncapsulationLoop
                | DropReason::NoHeadroom
                | DropReason::LengthOverflow
                | DropReason::ForwardingOff
                | DropReason::GroupFrame
                | DropReason::LinkDown
                | DropReason::NoPort
                | DropReason::HmacMissing
                | DropReason::HmacKeyUnknown
        );
        if error {
            self.uncount(meta);
        }
        if let Some(Entered { link, bytes, .. }) = meta.extra.entered.take()
            && reason != DropReason::NeighbourUnresolved
        {
            // It did not leave by the device after all.
            let taken_back = Count { packets: u64::from(bytes > 0), bytes: bytes.into(), errors: 0 };
            let error = Count { errors: 1, ..Count::default() };
            self.counters.add_link(link, Direction::Transmit, error - taken_back);
        }
        if matches!(reason, DropReason::MplsOff | DropReason::GroupFrame) {
            count_unlooked(self, meta, reason);
        }
        if reason == DropReason::EtherTypeUnknown
            || reason == DropReason::VlanUnknown && crate::path::group::is_of_nobody(meta.packet.bytes())
        {
            self.counters.add_link_drops(meta.ingress, Direction::Receive, 1);
        }
        self.counters.add_drop(reason, 1);
    }

    /// Counts a packet as dropped that its caller still has.
    pub(crate) fn drop_packet<T: Trace>(&mut self, meta: &mut PacketMeta, reason: DropReason, trace: &mut T) {
        trace.step(Event::Dropped(reason), &meta.packet);
        self.count_drop(meta, reason);
    }

    pub(crate) fn drop<T: Trace>(&mut self, packet: Packet, reason: DropReason, trace: &mut T) {
        trace.step(Event::Dropped(reason), &packet);
        self.counters.add_drop(reason, 1);
        self.pool.give(packet);
    }
}

/// Bytes of a burst of frames.
#[inline(always)]
pub(crate) fn bytes_of(burst: &[Packet]) -> u64 {
    burst.iter().map(|packet| packet.len() as u64).sum()
}
