//! What a worker has, and what packets change of it: the pool, the queues of ports, counters.

use std::sync::Arc;

use arrayvec::ArrayVec;

use crate::bpf::programs::Programs;
use crate::buffer::{BURST, Packet, Pool, PortId};
use crate::counters::{Count, CounterId, Counters, Direction, MplsCount, Totals};
use crate::drops::DropReason;
use crate::limiter::{Limiter, Nanos};
use crate::mpls::MPLS;
use crate::path::nobody::is_of_nobody;
use crate::path::reassembly::Reassembly;
use crate::tables::{LookupId, Reader, Tables, TunnelId};
use crate::trace::{Event, Trace};
use crate::tunnel::recent_ends::RecentEnds;
use crate::worker::drop_log::DropLog;
use crate::worker::hook::state::Hooks;
use crate::worker::keeper::Keeper;
use crate::worker::metadata::{Entered, LABELLED, PacketMeta, TUNNELLED};
use crate::worker::port_queues::Transmit;
use crate::worker::recent::Recent;
use crate::worker::rewrite::FastVerdict;
use crate::worker::shape::state::Shape;
use crate::worker::unresolved::UnresolvedQueues;

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
    run: Run,
    /// What came in with labels, in this burst.
    pub(crate) labelled: crate::counters::labels::Labelled,
    pub(crate) icmp: Limiter,
    /// Whether the router has no kernel beside it and answers ARP, neighbour discovery and pings itself.
    pub(crate) answers: bool,
    /// Who knows which frames the kernel keeps, where there is one.
    pub(crate) keeper: Option<Box<dyn Keeper>>,
    /// What waits for a neighbour, where somebody can be asked for it.
    pub(crate) unresolved: Option<UnresolvedQueues>,
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
    /// Other ends of networks; while frames go to some, they are with these.
    pub(crate) recent_ends: RecentEnds,
    /// Frames that wait to go into a tunnel.
    pub(crate) into_tunnel: IntoTunnel,
    /// How many links above each other the burst has come in by.
    pub(crate) levels: u32,
    /// Through how many tunnels of the router to itself, inside or behind each other, its frames have come up.
    pub(crate) ascents: u32,
    pub(crate) drop_log: DropLog,
}

/// Frames that wait to go into a tunnel, together.
#[derive(Default)]
pub(crate) struct IntoTunnel {
    /// The tunnel, and whether no route may have led them there.
    pub(crate) tunnel: Option<(TunnelId, bool)>,
    pub(crate) frames: Burst,
}

/// Packets in a row that one counter counts, added to it when another one's turn comes.
#[derive(Default)]
struct Run {
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

/// Bytes of a burst of frames.
#[inline(always)]
pub(crate) fn bytes_of(burst: &[Packet]) -> u64 {
    burst.iter().map(|packet| packet.len() as u64).sum()
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
            labelled: crate::counters::labels::Labelled::default(),
            icmp: Limiter::new(ICMP_RATE.0, ICMP_RATE.1),
            answers: true,
            keeper: None,
            unresolved: None,
            shape: Shape::default(),
            reassembly: Reassembly::default(),
            programs: Box::new(Programs::new(reader.number())),
            number: reader.number(),
            // Apart from those of other workers, as fragments are told apart by it.
            identification: (reader.number() as u16) << 13,
            hooks: Hooks::default(),
            recent: Recent::new(),
            recent_ends: RecentEnds::new(),
            into_tunnel: IntoTunnel::default(),
            levels: 0,
            ascents: 0,
            drop_log: DropLog::default(),
        };
        Self { tables, reader, path, epoch: 0 }
    }

    /// A worker with a kernel beside the router: what is for the router itself goes to the host's port of
    /// the link, and up to `held` packets wait for neighbours that are resolved elsewhere.
    #[must_use]
    pub fn beside_kernel(mut self, held: usize) -> Self {
        self.path.answers = false;
        self.path.unresolved = Some(UnresolvedQueues::new(held));
        self
    }

    /// Says who knows which frames the kernel keeps. Without one it keeps none.
    #[must_use]
    pub fn kept_by(mut self, keeper: impl Keeper + 'static) -> Self {
        self.path.keeper = Some(Box::new(keeper));
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

    /// What is remembered of the packets that were dropped.
    pub fn drop_log(&self) -> &DropLog {
        &self.path.drop_log
    }

    /// The ports by which packets wait to be sent.
    pub fn sending(&self) -> impl Iterator<Item = PortId> + '_ {
        self.path.transmit.filled()
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
}

impl<const COUNT: bool> Path<COUNT> {
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
    pub(crate) fn end_run(&mut self) {
        let Run { counter, packets, bytes } = std::mem::take(&mut self.run);
        if let Some(id) = counter {
            self.counters.add(id, Count { packets, bytes, errors: 0 });
        }
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
        // The device of a tunnel says nothing of what becomes of its outer packets.
        if error && !meta.is(TUNNELLED) {
            self.uncount(meta);
        }
        if let Some(Entered { link, bytes, drops, .. }) = meta.extra.entered.take()
            && reason != DropReason::NeighbourUnresolved
        {
            // It did not leave by the device after all.
            let taken_back = Count { packets: u64::from(bytes > 0), bytes: bytes.into(), errors: 0 };
            let error = Count { errors: u64::from(!drops), ..Count::default() };
            self.counters.add_link(link, Direction::Transmit, error - taken_back);
            self.counters.add_link_drops(link, Direction::Transmit, drops.into());
        }
        if matches!(reason, DropReason::MplsOff | DropReason::GroupFrame) {
            count_unlooked(self, meta, reason);
        }
        if reason == DropReason::EtherTypeUnknown
            || reason == DropReason::VlanUnknown && is_of_nobody(meta.packet.bytes())
        {
            self.counters.add_link_drops(meta.ingress, Direction::Receive, 1);
        }
        self.counters.add_drop(reason, 1);
        self.drop_log.keep_packet(reason, self.counters.port(), meta);
    }

    /// Counts a packet as dropped that its caller still has.
    pub(crate) fn drop_packet<T: Trace>(&mut self, meta: &mut PacketMeta, reason: DropReason, trace: &mut T) {
        trace.step(Event::Dropped(reason), &meta.packet);
        self.count_drop(meta, reason);
    }

    /// A packet on its path is dropped of which no behaviour's count is to change.
    pub(crate) fn drop_behind<T: Trace>(&mut self, meta: PacketMeta, reason: DropReason, trace: &mut T) {
        trace.step(Event::Dropped(reason), &meta.packet);
        self.counters.add_drop(reason, 1);
        self.drop_log.keep_packet(reason, self.counters.port(), &meta);
        self.pool.give(meta.packet);
    }

    pub(crate) fn drop<T: Trace>(&mut self, packet: Packet, reason: DropReason, trace: &mut T) {
        trace.step(Event::Dropped(reason), &packet);
        self.counters.add_drop(reason, 1);
        self.drop_log.keep_frame(reason, self.counters.port(), &packet);
        self.pool.give(packet);
    }

    /// Puts a frame into the queue of a port.
    #[inline(always)]
    pub(crate) fn send<T: Trace>(&mut self, port: PortId, packet: Packet, trace: &mut T) {
        let len = packet.len() as u32;
        self.send_frame((port, len), packet, trace);
    }

    /// The same for a frame of which the length is known.
    #[inline(always)]
    pub(crate) fn send_frame<T: Trace>(&mut self, (port, len): FastVerdict, packet: Packet, trace: &mut T) {
        trace.step(Event::Sent(port), &packet);
        if let Err(packet) = self.transmit.push_used(port, packet, len as usize) {
            self.send_unused((port, len), packet, trace);
        }
    }

    /// The queue of the port has no memory yet, or is full.
    #[cold]
    #[inline(never)]
    fn send_unused<T: Trace>(&mut self, (port, len): FastVerdict, packet: Packet, trace: &mut T) {
        if let Err(packet) = self.transmit.push(port, packet, len as usize) {
            self.drop(packet, DropReason::TransmitFull, trace);
        }
    }
}

/// Counts a packet of a frame with labels that no label was looked up for.
#[cold]
fn count_unlooked<const COUNT: bool>(path: &Path<COUNT>, meta: &PacketMeta, reason: DropReason) {
    let mut count = MplsCount { rx_packets: 1, rx_bytes: meta.packet.len() as u64, ..MplsCount::default() };
    match reason {
        DropReason::MplsOff if !meta.is(LABELLED) => count.rx_dropped = 1,
        DropReason::GroupFrame if meta.link_layer().is_some_and(|frame| frame[12..] == MPLS) => {
            count.rx_errors = 1;
        }
        _ => return,
    }
    path.counters.add_mpls(meta.ingress, count);
}
