//! A worker thread: takes bursts from its ports, carries them to their verdicts, sends what leaves, and
//! sleeps when nothing comes.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::IpAddr,
    os::fd::AsFd,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
        mpsc::{Receiver, Sender, SyncSender, channel},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use nix::{
    net::if_::if_indextoname,
    sched::{CpuSet, sched_setaffinity},
    time::{ClockId, clock_gettime},
    unistd::Pid,
};
use underpass_engine::{
    buffer::PortId,
    counters::{Counters, Totals},
    drops::DropReason,
    tables::{LinkId, Reader, Rewrite, Tables},
    trace::Watch,
    worker::{Burst, Keeper, PacketSample, Unresolved, Worker, drop_log::Example},
};
use underpass_port::{
    live::{AttachError, Device, LivePort, Tally},
    xdp::Memory,
};

use super::{
    descriptors::Descriptors,
    hop_limit::raise_hop_limit,
    port_poll::PortPoll,
    priority::{self, Stretch},
    tracer::{Seen, Spec, Tracer},
};
use crate::serve::Waker;

/// How long a worker uses a reading of the wall clock.
const CLOCK: Duration = Duration::from_millis(100);
/// How often a worker that holds packets looks whether they have waited too long for a neighbour, and whether a device that
/// was busy or down takes some.
const HELD_TICK: Duration = Duration::from_millis(200);
/// A worker does not sleep if a packet is to leave sooner than this.
const SHORTEST_SLEEP: Duration = Duration::from_micros(2);
/// Most slots of a worker that its qdiscs may hold.
const QUEUED: usize = 8192;
/// Slots of a worker for packets.
const SLOTS: usize = 16384;
/// Slots of a worker for large segments.
const LARGE_SLOTS: usize = 512;
/// Most slots of a worker that packets waiting for neighbours may hold.
const HELD: usize = 2048;

/// Orders of the control thread, which a worker carries out between bursts.
pub enum Order {
    /// Serve these queues of a device with this MTU as a port, and drop the sender then; or send why that cannot be.
    Open(PortId, Arc<Device>, Vec<u32>, usize, Sender<AttachError>),
    /// Serve this port of a device of the router's.
    Serve(PortId, Box<LivePort>, Sent),
    /// The device of a port has this MTU now.
    Mtu(PortId, usize),
    /// Send a snapshot of the counters.
    Snapshot(Sender<Snapshot>),
    /// Close a port. What it has dropped still counts.
    Detach(PortId),
    /// The number of a closed port is about to be given to another: forget what the former has dropped.
    Forget(PortId),
    /// A neighbour that was unresolved has this link-layer header now; `None`: it does not answer.
    Resolved(LinkId, IpAddr, Option<Rewrite>),
    /// Trace the packets of a specification, and send what was seen there.
    Trace((Arc<Spec>, SyncSender<Arc<Seen>>)),
    /// End that trace.
    TraceNoMore(Arc<Spec>),
    /// End.
    Stop,
}

/// What a worker does with packets that the host sends by a device of the router's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sent {
    /// It looks them up, and forwards them like those of other ports.
    Forwarded,
    /// It puts them into the tunnel of the device, without a look-up.
    Wrapped,
}

/// The counters of a worker, as of a moment between two bursts: each of its packets is in one of the sums.
#[derive(Debug, Default)]
pub struct Snapshot {
    /// The worker's number.
    pub number: usize,
    /// What its ports have dropped, those that are closed for now too.
    pub ports: Vec<(PortId, Tally)>,
    /// What became of its packets.
    pub totals: Totals,
    /// Packets that it has dropped, by reason.
    pub drops: Vec<(DropReason, u64)>,
    /// The last one of each reason.
    pub dropped_last: Vec<(DropReason, Example)>,
    /// Those of them that came in by a port, by reason.
    pub port_drops: Vec<(PortId, Vec<(DropReason, u64)>)>,
    /// Packets that wait for a neighbour or in a qdisc.
    pub held: usize,
    /// Slots for packets that are free, and large ones.
    pub free: (usize, usize),
    /// Bytes of slots that have not been used yet.
    pub untouched: usize,
}

/// Where workers say which neighbours they need.
#[derive(Clone)]
pub struct Wanted {
    /// Bounded: a worker never waits for the control thread.
    pub sender: SyncSender<Word>,
    /// Wakes the control thread.
    pub waker: Waker,
}

/// What a worker tells the control thread.
#[derive(Debug)]
pub enum Word {
    /// It needs a neighbour.
    Wanted(Unresolved),
    /// Lines that BPF programs have printed, and how many more were lost.
    Printed(Box<str>, u64),
    /// Packets that a `sample` action has taken for its listeners.
    Sampled(Vec<PacketSample>),
}

/// How busy a worker is: `underpass stats`.
#[derive(Debug, Default)]
pub struct Activity {
    bursts: AtomicU64,
    sleeps: AtomicU64,
}

impl Activity {
    /// Bursts that had packets.
    pub fn bursts(&self) -> u64 {
        self.bursts.load(Relaxed)
    }

    /// Times that it slept.
    pub fn sleeps(&self) -> u64 {
        self.sleeps.load(Relaxed)
    }
}

/// Adds one. Only one thread writes the counter.
fn count(cell: &AtomicU64) {
    cell.store(cell.load(Relaxed).wrapping_add(1), Relaxed);
}

/// A worker, as the control thread sees it. Dropping it ends the worker.
pub struct Handle {
    orders: Sender<Order>,
    wake: Waker,
    thread: Option<JoinHandle<()>>,
    /// What it did.
    pub activity: Arc<Activity>,
    /// The processor that it runs on, if it is bound to one.
    pub processor: Option<usize>,
}

impl Handle {
    /// Sends an order to the worker. Orders are done one after the other.
    pub fn order(&self, order: Order) {
        // It is gone only when the process ends.
        let _ = self.orders.send(order);
        self.wake.wake();
    }

    /// Waits until the worker has closed its ports and ended.
    pub fn join(&mut self) {
        self.order(Order::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl std::ops::Drop for Handle {
    fn drop(&mut self) {
        self.join();
    }
}

/// By how much the workers' clock, which is 0 at `began`, is behind CLOCK_MONOTONIC, which BPF programs read.
///
/// # Errors
/// The kernel's clock cannot be read.
pub fn behind(began: Instant) -> io::Result<Duration> {
    Ok(Duration::from(clock_gettime(ClockId::CLOCK_MONOTONIC)?).saturating_sub(began.elapsed()))
}

/// Starts a worker over these tables, on this processor if one is given, which counts time since `began`.
///
/// # Errors
/// Where there can be no thread or no eventfd.
pub fn start(
    number: usize,
    processor: Option<usize>,
    tables: Arc<Tables>,
    reader: Reader,
    wanted: Wanted,
    keeper: impl Keeper + 'static,
    began: Instant,
) -> io::Result<Handle> {
    let (memory, pool) = Memory::new(SLOTS, LARGE_SLOTS)?;
    let (orders, receiver) = channel();
    let wake = Waker::new()?;
    let counters = Arc::clone(reader.counters());
    let activity = Arc::<Activity>::default();
    let clock = behind(began)?;
    let running = Running {
        number,
        counters,
        worker: Worker::new(tables, reader, pool)
            .beside_kernel(HELD)
            .kept_by(keeper)
            .queue_up_to(QUEUED)
            .programs_see(processor.unwrap_or(number) as u32, clock.as_nanos() as u64),
        ports: BTreeMap::new(),
        doors: BTreeMap::new(),
        poll: PortPoll::new()?,
        sending: Vec::new(),
        closed: BTreeMap::new(),
        forwarded: BTreeSet::new(),
        orders: receiver,
        descriptors: Descriptors::new(&wake.as_fd()),
        wake: wake.clone(),
        memory,
        wanted,
        activity: Arc::clone(&activity),
        began,
        clock_read: None,
        tracer: None,
        followed: 0,
    };
    let thread = thread::Builder::new().name(format!("worker-{number}")).spawn(move || {
        if let Some(processor) = processor {
            let mut processors = CpuSet::new();
            let bound =
                processors.set(processor).and_then(|()| sched_setaffinity(Pid::from_raw(0), &processors));
            if let Err(errno) = bound {
                tracing::warn!("worker {number} is not bound to processor {processor}: {errno}");
            }
        }
        if let Err(error) = priority::go_first() {
            tracing::warn!("worker {number} has no priority over the kernel's receiving: {error}");
        }
        running.run();
    })?;
    Ok(Handle { orders, wake, thread: Some(thread), activity, processor })
}

struct Running {
    number: usize,
    counters: Arc<Counters>,
    worker: Worker,
    /// Devices of the kernel's, each of which is read in every turn.
    ports: BTreeMap<PortId, Box<LivePort>>,
    /// TUN and TAP devices, which are read when epoll says that they have something.
    doors: BTreeMap<PortId, Box<LivePort>>,
    poll: PortPoll,
    /// Ports whose queues have packets.
    sending: Vec<PortId>,
    /// What closed ports have dropped.
    closed: BTreeMap<PortId, Tally>,
    /// The doors of [`Sent::Forwarded`].
    forwarded: BTreeSet<PortId>,
    orders: Receiver<Order>,
    wake: Waker,
    descriptors: Descriptors,
    memory: Memory,
    wanted: Wanted,
    activity: Arc<Activity>,
    began: Instant,
    /// When the wall clock was read last.
    clock_read: Option<Instant>,
    /// Where packets are followed.
    tracer: Option<Box<Tracer>>,
    /// [`Tracer::last`] of the last one.
    followed: u32,
}

impl Running {
    fn run(mut self) {
        self.wait_for_ports();
        let mut stretch = Stretch::begin(Instant::now());
        // It looks once more before it sleeps. To look for longer would keep the kernel's receiving, which brings packets, from
        // the processor.
        let mut quiet = false;
        loop {
            while let Ok(order) = self.orders.try_recv() {
                if !self.obey(order) {
                    return;
                }
            }
            let now = stretch.pause_if_long(Instant::now());
            self.update_clock(now);
            if self.turn(now) {
                quiet = false;
            } else if quiet {
                let before = Instant::now();
                self.sleep();
                stretch.slept(before.elapsed());
                quiet = false;
            } else {
                quiet = true;
            }
        }
    }

    /// Carries out an order. Whether to go on.
    fn obey(&mut self, order: Order) -> bool {
        match order {
            Order::Open(id, device, queues, mtu, opened) => {
                match device.port(&queues, mtu, &self.memory, self.worker.pool()) {
                    Ok(port) => self.serve(id, Box::new(port)),
                    Err(error) => {
                        // Who asked may have lost patience.
                        if let Err(unheard) = opened.send(error) {
                            tracing::error!("{}", unheard.0);
                        }
                    }
                }
            }
            Order::Serve(id, port, sent) => {
                match sent {
                    Sent::Forwarded => self.forwarded.insert(id),
                    Sent::Wrapped => self.forwarded.remove(&id),
                };
                self.serve(id, port);
            }
            Order::Mtu(id, mtu) => {
                if let Some(port) = self.ports.get_mut(&id) {
                    port.set_mtu(mtu);
                }
            }
            Order::Detach(id) => {
                self.worker.discard_sent(id);
                self.forwarded.remove(&id);
                self.close(id);
            }
            Order::Forget(id) => {
                self.closed.remove(&id);
                self.counters.forget_port(id);
            }
            Order::Snapshot(to) => {
                // Who asked may have lost patience.
                let _ = to.send(self.snapshot());
            }
            Order::Resolved(link, address, rewrite) => {
                let now = self.nanos(Instant::now());
                let watch = turn(&mut self.tracer, now);
                self.worker.resolve(link, address, rewrite.as_ref(), now, watch);
                end(&mut self.tracer);
                self.send();
            }
            Order::Trace((spec, sink)) => {
                let new = || Box::new(Tracer::new(self.number, self.followed));
                self.tracer.get_or_insert_with(new).add(spec, sink);
            }
            Order::TraceNoMore(spec) => {
                if let Some(mut tracer) = self.tracer.take() {
                    if tracer.remove(&spec) {
                        self.tracer = Some(tracer);
                    } else {
                        self.followed = tracer.last();
                    }
                }
            }
            Order::Stop => {
                let doors = std::mem::take(&mut self.doors);
                for (_, port) in std::mem::take(&mut self.ports).into_iter().chain(doors) {
                    port.close(self.worker.pool());
                }
                return false;
            }
        }
        true
    }

    fn snapshot(&mut self) -> Snapshot {
        let counters = &self.counters;
        let drops = DropReason::ALL.iter().map(|reason| (*reason, counters.dropped(*reason)));
        let mut tallies = self.closed.clone();
        for (id, port) in self.ports.iter_mut().chain(&mut self.doors) {
            *tallies.entry(*id).or_default() += port.tally();
        }
        let port_drops = tallies.keys().map(|id| (*id, counters.port_drops(*id)));
        Snapshot {
            number: self.number,
            port_drops: port_drops.filter(|(_, drops)| !drops.is_empty()).collect(),
            totals: counters.totals(),
            drops: drops.filter(|(_, count)| *count > 0).collect(),
            ports: tallies.into_iter().collect(),
            dropped_last: self
                .worker
                .drop_log()
                .examples()
                .map(|(reason, example)| (reason, *example))
                .collect(),
            held: self.worker.undecided(),
            free: (self.worker.pool().available(), self.worker.pool().available_large()),
            untouched: self.memory.untouched(),
        }
    }

    fn serve(&mut self, id: PortId, port: Box<LivePort>) {
        self.close(id);
        self.counters.reserve_port(id);
        match &*port {
            LivePort::Tun(device) => {
                if let Err(error) = self.poll.add(id, device.descriptor()) {
                    tracing::error!("{}: {error}", device.name());
                }
                self.doors.insert(id, port);
            }
            _ => {
                self.ports.insert(id, port);
                self.wait_for_ports();
            }
        }
    }

    /// Closes a port. What it has dropped still counts.
    fn close(&mut self, id: PortId) {
        let wire = self.ports.remove(&id);
        let others = wire.is_some();
        if let Some(mut port) = wire.or_else(|| self.doors.remove(&id)) {
            *self.closed.entry(id).or_default() += port.tally();
            port.close(self.worker.pool());
        }
        if others {
            self.wait_for_ports();
        }
    }

    fn wait_for_ports(&mut self) {
        let ports = self.ports.values().flat_map(|port| port.descriptors());
        self.descriptors.set(ports.chain([self.poll.descriptor()]));
    }

    /// Says what time it is outside, now and then: clocks drift apart, and may be set.
    fn update_clock(&mut self, now: Instant) {
        if self.clock_read.is_some_and(|read| now.duration_since(read) < CLOCK) {
            return;
        }
        self.clock_read = Some(now);
        if let Ok(unix) = SystemTime::now().duration_since(UNIX_EPOCH) {
            // What has passed since `now` was read is less than a burst takes.
            self.worker.set_epoch((unix.as_nanos() as u64).wrapping_sub(self.nanos(now)));
        }
    }

    fn nanos(&self, now: Instant) -> u64 {
        now.duration_since(self.began).as_nanos() as u64
    }

    /// A burst of each port. Whether there was a packet.
    fn turn(&mut self, now: Instant) -> bool {
        let nanos = self.nanos(now);
        let mut busy = false;
        let mut burst = Burst::new();
        let Self { worker, tracer, forwarded, activity, .. } = self;
        let mut take = |id: PortId, port: &mut LivePort| {
            port.receive(worker.pool(), &mut burst);
            if burst.is_empty() {
                return;
            }
            busy = true;
            count(&activity.bursts);
            if forwarded.contains(&id) {
                burst.iter_mut().for_each(|packet| raise_hop_limit(packet.bytes_mut()));
            }
            match tracer {
                None => worker.process(id, &mut burst, nanos, None),
                Some(tracer) => process_traced(worker, tracer, id, &mut burst, nanos),
            }
        };
        for (id, port) in &mut self.ports {
            take(*id, port);
        }
        let mut broken = None;
        for (id, readable) in self.poll.ask() {
            match self.doors.get_mut(&id) {
                Some(port) if readable => take(id, port),
                _ => broken = Some(id),
            }
        }
        if let Some(LivePort::Tun(device)) = broken.and_then(|id| self.doors.get(&id)).map(|port| &**port) {
            self.poll.remove(device.descriptor());
        }
        if self.worker.held() > 0 {
            self.worker.give_up(nanos, turn(&mut self.tracer, nanos));
            busy |= self.report_unresolved();
        }
        if let Some((text, lost)) = self.worker.printed(|text, lost| (text.into(), lost)) {
            // What there is no room for is lost, too.
            if self.wanted.sender.try_send(Word::Printed(text, lost)).is_ok() {
                self.wanted.waker.wake();
            }
        }
        let samples = self.worker.samples();
        // What there is no room for is lost, which the numbers of the next ones tell.
        if !samples.is_empty() && self.wanted.sender.try_send(Word::Sampled(samples)).is_ok() {
            self.wanted.waker.wake();
        }
        // What qdiscs have held until now.
        self.worker.advance(nanos, turn(&mut self.tracer, nanos));
        end(&mut self.tracer);
        // Also what was given up above leaves here, as an error to its sender.
        self.send();
        // What has no room in the queue of a port is due at once: that has room again.
        busy || self.worker.deadline().is_some_and(|due| due <= nanos)
    }

    /// Reports the neighbours that are wanted.
    fn report_unresolved(&mut self) -> bool {
        let mut asked = false;
        for unresolved in self.worker.unresolved() {
            // What there is no room for is asked for again when its packets have been given up.
            asked |= self.wanted.sender.try_send(Word::Wanted(unresolved)).is_ok();
        }
        if asked {
            self.wanted.waker.wake();
        }
        asked
    }

    /// Hands over what leaves by the ports.
    fn send(&mut self) {
        for (id, port) in &mut self.ports {
            let (pool, sent) = self.worker.pool_and_sent(*id);
            port.send(pool, sent);
        }
        self.sending.extend(self.worker.sending());
        for id in self.sending.drain(..) {
            if let Some(port) = self.doors.get_mut(&id) {
                let (pool, sent) = self.worker.pool_and_sent(id);
                port.send(pool, sent);
            }
        }
    }

    #[cold]
    fn tell_of_trouble(&mut self) {
        for (index, error) in self.ports.values_mut().filter_map(|port| port.take_trouble()) {
            let device = if_indextoname(index).map(|name| name.to_string_lossy().into_owned());
            let device = device.unwrap_or_else(|_| format!("device {index}"));
            tracing::warn!(
                "{device}: a queue of AF_XDP, which was closed while the device was down, cannot be opened again: {error}; \
                 frames that come by it are the kernel's until it can, which is tried every second"
            );
        }
    }

    /// Sleeps until a port has something, an order comes, or a packet that waits in a qdisc is to leave.
    fn sleep(&mut self) {
        // Nobody says when a device that was busy takes packets again, or when its queue can be opened again: every turn tries.
        let unsent = self.ports.iter_mut().any(|(_, port)| port.unsent());
        if unsent {
            self.tell_of_trouble();
        }
        let held = (unsent || self.worker.held() > 0).then_some(HELD_TICK);
        let due = self.worker.deadline();
        let due = due.map(|due| Duration::from_nanos(due.saturating_sub(self.nanos(Instant::now()))));
        if due.is_some_and(|due| due < SHORTEST_SLEEP) {
            return;
        }
        if self.ports.values_mut().any(|port| port.take_changed()) {
            self.wait_for_ports();
        }
        self.worker.idle();
        count(&self.activity.sleeps);
        let timeout = held.into_iter().chain(due).min();
        if self.descriptors.sleep(timeout) {
            self.wake.heard();
        }
    }
}

/// Who watches what moves packets on that came in before, until [`end`].
fn turn(tracer: &mut Option<Box<Tracer>>, now: u64) -> Option<&mut dyn Watch> {
    tracer.as_mut().map(|tracer| tracer.turn(now) as _)
}

fn end(tracer: &mut Option<Box<Tracer>>) {
    if let Some(tracer) = tracer {
        tracer.end();
    }
}

/// A burst of which some may be followed.
#[cold]
#[inline(never)]
fn process_traced(worker: &mut Worker, tracer: &mut Tracer, port: PortId, burst: &mut Burst, now: u64) {
    if tracer.begin(port, burst, now) {
        worker.process(port, burst, now, Some(tracer));
        tracer.end();
    } else {
        worker.process(port, burst, now, None);
    }
}
