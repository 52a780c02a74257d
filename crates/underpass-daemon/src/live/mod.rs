//! The router beside the kernel of its network namespace: `underpass run`.
//!
//! The control thread (this one) answers programs, follows the kernel's links, addresses, neighbours and
//! routes, and tells the workers, a thread a core, which ports they serve. Packets pass through the workers
//! alone.

mod attach;
mod descriptors;
mod device;
pub mod drops;
mod events;
mod fast;
mod filters;
pub mod hex;
mod hop_limit;
mod host;
mod host_protocols;
mod kernel_frames;
mod lifecycle;
mod location;
mod metrics;
mod model;
mod neighbours;
mod persistence;
mod port_poll;
pub mod priority;
mod queries;
mod reception;
mod report;
mod return_paths;
mod shadow;
mod spanning_trees;
pub mod state;
mod stats;
pub mod trace;
mod tracer;
mod variables;
mod web;
mod worker;
mod worker_snapshots;

use std::{
    collections::BTreeMap,
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{
        Arc,
        mpsc::{Receiver, sync_channel},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::Context;
use nix::{
    sched::{CpuSet, sched_getaffinity},
    sys::{
        signal::SigSet,
        signalfd::{SfdFlags, SignalFd},
    },
    unistd::Pid,
};
use underpass_control::{Router, matched, read_sysctl, write_sysctl};
use underpass_engine::{
    buffer::PortId,
    tables::{Reader, Tables, Writer},
};

use underpass_port::{fast::arena::Arena, kernel_frames::KernelFrames};

use crate::{
    fpm::Fpm,
    kernel::Kernel,
    launch,
    limits::Spare,
    packet_path::LinkName,
    persist::StateDirectory,
    serve::{self, Host, Server},
    startup::Startup,
};

pub use attach::Driver;
pub use descriptors::Descriptors;
pub use device::ethernet_devices;
pub use fast::try_fast_path;
pub use filters::KernelFilters;
pub use location::Location;
pub use model::offline as offline_answer;
pub use priority::go_first;
pub use queries::{Answer, SAVE, SAVE_PATIENCE, first_line, stats_path, trace_path};
pub use report::PORT_REASONS;
pub use stats::{
    FastPath as FastPathStats, Label as LabelStats, Mpls as MplsStats, MplsDevice as MplsDeviceStats,
    Policy as PolicyStats, Port as PortStats, Sid as SidStats, Stats, Topic, Totals, Worker as WorkerStats,
};

use attach::Attachments;
use device::Sysctls;
use events::{Events, Source};
use filters::Watch;
use lifecycle::Lock;
use neighbours::{Confirming, Pending};
use persistence::{Persistence, saved};
use queries::Query;
use shadow::Shadows;
use spanning_trees::SpanningTrees;
use variables::Variables;
use worker::{Order, Word};
use worker_snapshots::WorkerSnapshots;

/// Neighbours that the workers may want before the control thread has looked.
const WANTED: usize = 4096;

/// Descriptors that are held back for giving everything back to the kernel.
const SPARE: usize = 8;

/// How often what time settles is looked at, while there is any.
const TICK: Duration = Duration::from_millis(500);

/// How long devices are attached before programs get their answers, and others are attached. Each takes some 50 ms.
const ATTACHING: Duration = Duration::from_millis(100);

/// How often it is looked which stations bridges and VXLANs have learned.
const STATIONS: Duration = Duration::from_secs(1);

/// How the router is to run.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Devices to attach; none for every Ethernet device of the namespace.
    pub attach: Vec<String>,
    /// Workers; `None` for one a processor.
    pub workers: Option<usize>,
    /// How devices are attached.
    pub driver: Driver,
    /// Whether the kernel is to carry by itself what it can.
    pub fast_path: FastPath,
    /// What is done with devices at which the kernel has filters of its own.
    pub kernel_filters: KernelFilters,
    /// Whether bridges are the router's where the kernel has bridges, too.
    pub own_bridges: bool,
    /// Where Prometheus asks.
    pub metrics: Option<SocketAddr>,
    /// Where programs reach the router, if not where they look for that of the namespace.
    pub socket: Option<PathBuf>,
    /// A group that may reach it.
    pub group: Option<u32>,
    /// Lines to be run at the start.
    pub startup: Option<Startup>,
    /// Whether requests may ask for what Linux has no numbers for.
    pub experimental: bool,
}

/// Whether the kernel is to carry by itself, by programs, the packets that it can.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum FastPath {
    /// Where that works.
    #[default]
    Auto,
    /// No.
    Off,
    /// By programs at tcx, or the router does not start.
    Tcx,
    /// By programs in the drivers of devices too, where they run them.
    Xdp,
}

/// The control thread's state.
struct Live {
    listeners: queries::Listeners,
    router: Router,
    kernel: Kernel,
    workers: Vec<worker::Handle>,
    snapshots: WorkerSnapshots,
    attachments: Attachments,
    pending: Pending,
    confirming: Confirming,
    shadows: Shadows,
    spanning_trees: SpanningTrees,
    variables: Variables,
    watch: Watch,
    wanted: Receiver<Word>,
    /// By what FRR programs the router.
    fpm: Option<Fpm>,
    persistence: Persistence,
    /// What packets are followed, for each who follows some.
    traced: Vec<Arc<tracer::Spec>>,
}

/// Runs the router until one of `signals`, which must be blocked in every thread, ends it; FRR programs it
/// through `fpm`.
///
/// # Errors
/// What is missing: the right to do it, a socket, a device that was named.
pub fn run(
    options: &Options,
    fpm: Option<Fpm>,
    state: Option<StateDirectory>,
    signals: &SigSet,
) -> anyhow::Result<()> {
    // The lock comes first: `Sysctls` undoes what a killed daemon has left, which a running one still needs.
    let sysctls = Sysctls::new(Lock::take()?);
    let signals = SignalFd::with_flags(signals, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
    let path = match &options.socket {
        Some(path) => path.clone(),
        None => launch::namespace_socket()?,
    };
    // Programs can connect from here on. Their requests wait until the router has started.
    let mut server = Server::listen(&path, &serve::Options { live: true, group: options.group })?;
    let events = Events::new()?;

    // The arena comes before the tables: what programs in the kernel read of these lies in it.
    let processors = processors();
    let count = options.workers.unwrap_or(processors.len()).clamp(1, 64);
    let arena = fast::arena(options.fast_path)?;
    let programs = arena.as_ref().ok().map(Arena::programs);
    let (writer, tables, readers, mut watchers) = Writer::watched(count, 1, programs);
    let mut router = new_router(options, writer);

    // The router has its namespace before it learns what the kernel has: without it no device can be made. It knows links,
    // addresses and routes before the first worker starts.
    let mut kernel = Kernel::open()?;
    let indices = state.as_ref().map(StateDirectory::indices).unwrap_or_default();
    router.set_namespace(Box::new(kernel.namespace(indices)?));
    kernel.synchronise(&mut router)?;

    let (sender, wanted) = sync_channel(WANTED);
    let wanting = worker::Wanted { sender, waker: events.waker() };
    let watcher = (Arc::clone(&tables), watchers.pop().context("a reader for those who follow packets")?);
    let listeners = queries::listen(&path, options.metrics, options.group, &events.waker(), watcher)?;

    // The program of the fast path is loaded before any device is attached: it is attached with the device. The kernel
    // verifies it for half a second, and no packet passes before.
    let mut attachments = Attachments::new(options, sysctls);
    let hurry = priority::Hurry::begin();
    *attachments.fast() = fast::load(options.fast_path, arena, router.places(), attachments.kernel_frames())?;
    drop(hurry);
    // Programs compare their clock with times that workers have written, so they get the difference before a worker runs.
    router.set_clock(worker::behind(router.began())?);

    // The device of the host needs the workers: each opens a queue of it.
    let kernel_frames = attachments.kernel_frames();
    let workers = start_workers(&processors, &tables, readers, &wanting, kernel_frames, router.began())?;
    attachments.make_host(&workers).context("the device of the host")?;

    let mut live = Live {
        router,
        kernel,
        snapshots: WorkerSnapshots::new(workers.len()),
        workers,
        attachments,
        pending: Pending::default(),
        confirming: Confirming::default(),
        shadows: Shadows::default(),
        spanning_trees: SpanningTrees::default(),
        variables: Variables::default(),
        watch: Watch::new(options.kernel_filters),
        wanted,
        listeners,
        fpm,
        persistence: Persistence::new(state),
        traced: Vec::new(),
    };
    // The device of the host is there when the kernel has reported it. This attaches the other devices, too.
    live.catch_up();
    host_protocols::follow(&mut live.router);
    variables::read_fallback_tunnels(&mut live.router);
    live.warn_of_missing(&options.attach);

    // Giving devices back needs descriptors even if programs have taken all others.
    let spare = Spare::hold(SPARE);
    let served = live.begin(options.startup.clone(), &mut server);
    let served = served.and_then(|()| live.serve(&mut server, &events, &signals));
    drop(spare);
    lifecycle::notify("STOPPING=1\n");
    // The state is written while the router still has it all.
    let kept = live.persistence.close(&live.router, live.fpm.as_ref());
    live.give_back();
    // The files go before the lock does, so that they cannot be another's.
    drop(server);
    served.and(kept)
}

/// The model over empty tables, as the options want it.
fn new_router(options: &Options, writer: Writer) -> Router {
    let mut router = Router::live(writer);
    if options.experimental {
        router.allow_experimental();
    }
    if options.own_bridges {
        router.make_bridges();
    }
    router.gather_filters(true);
    router
}

/// The processors that this process may use.
fn processors() -> Vec<usize> {
    let allowed = sched_getaffinity(Pid::from_raw(0)).unwrap_or_else(|_| CpuSet::new());
    let processors: Vec<usize> =
        (0..CpuSet::count()).filter(|processor| allowed.is_set(*processor).unwrap_or(false)).collect();
    if processors.is_empty() { vec![0] } else { processors }
}

fn start_workers(
    processors: &[usize],
    tables: &Arc<Tables>,
    readers: Vec<Reader>,
    wanting: &worker::Wanted,
    kernel_frames: &KernelFrames,
    began: Instant,
) -> io::Result<Vec<worker::Handle>> {
    let processors = processors.iter().copied().cycle();
    let workers = readers.into_iter().zip(processors).enumerate();
    workers
        .map(|(number, (reader, processor))| {
            let keeper = kernel_frames.keeper();
            worker::start(number, Some(processor), Arc::clone(tables), reader, wanting.clone(), keeper, began)
        })
        .collect()
}

impl Live {
    /// Warns of devices to be attached that are not there yet.
    fn warn_of_missing(&self, names: &[String]) {
        for name in names {
            if name == "lo" {
                tracing::warn!("lo is not attached: the kernel's own loopback takes no packets to a router");
            } else if !self.router.links().any(|link| link.name == *name) {
                tracing::warn!("there is no device {name} yet: it will be attached when it appears");
            }
        }
    }

    fn serve(&mut self, server: &mut Server, events: &Events, signals: &SignalFd) -> anyhow::Result<()> {
        if let Some(fpm) = &self.fpm {
            events.add(Source::Fpm, fpm)?;
        }
        events.add(Source::Server, &*server)?;
        events.add(Source::Kernel, self.kernel.fd())?;
        events.add(Source::Signal, signals)?;
        let mut left = Instant::now();
        loop {
            let sources = events.wait(self.patience())?;
            // What waits for programs in the kernel is freed when nothing else is to be done, and now and then where there
            // always is.
            if sources.is_empty() || left.elapsed() > TICK {
                self.router.leave_programs();
                left = Instant::now();
            }
            self.publish_gathered(sources.is_empty());
            for source in sources {
                match source {
                    Source::Signal => {
                        if signals.read_signal()?.is_some() {
                            return Ok(());
                        }
                    }
                    Source::Server => {
                        let ready = server.wait()?;
                        server.turn(self, &ready);
                    }
                    Source::Kernel => {
                        self.kernel.turn(&mut self.router)?;
                    }
                    Source::Fpm => {
                        // zebra writes to the kernel before it writes here.
                        self.catch_up();
                        if let Some(fpm) = &mut self.fpm {
                            fpm.turn(&mut self.router);
                        }
                        server.report(self);
                    }
                    Source::Bridges => {
                        self.spanning_trees.hear(&mut self.router);
                        server.report(self);
                    }
                    Source::Waker => {}
                }
            }
            if self.router.follow_stations() {
                server.report(self);
            }
            self.follow();
            while let Ok(word) = self.wanted.try_recv() {
                match word {
                    Word::Wanted(wanted) => {
                        self.pending.want(wanted, &self.router, &mut self.kernel, &self.workers);
                    }
                    Word::Sampled(samples) => {
                        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                        self.router.show_samples(&samples, now.as_nanos() as u64);
                        server.report(self);
                    }
                    Word::Printed(text, lost) => {
                        text.lines().for_each(|line| tracing::info!("bpf_trace_printk: {line}"));
                        if lost > 0 {
                            tracing::warn!("bpf_trace_printk: {lost} lines were lost");
                        }
                    }
                }
            }
            while let Ok(query) = self.listeners.queries.try_recv() {
                self.hear(query, server.path())?;
            }
            if self.persistence.done {
                server.serve_all();
            }
            self.confirming.follow(&self.router, &mut self.kernel);
            self.variables.follow(&mut self.router);
            self.attachments.follow_devices(&mut self.router);
            if self.spanning_trees.follow(&mut self.router, events) {
                server.report(self);
            }
            self.router.reclaim();
            self.persistence.follow(&self.router);
        }
    }

    /// Answers a query. Who asked may have lost patience.
    ///
    /// # Errors
    /// A line of the start that had to succeed, and did not.
    fn hear(&mut self, query: Query, socket: &Path) -> anyhow::Result<()> {
        match query {
            Query::Stats(topic, to) => {
                let _ = to.send(self.answer(topic));
            }
            Query::Links(to) => {
                let _ = to.send(self.link_names());
            }
            Query::Matched(looked_up, to) => {
                let routes =
                    looked_up.iter().map(|(address, action)| matched(&self.router, *address, *action));
                let _ = to.send(routes.collect());
            }
            Query::Workers(to) => {
                let _ = to.send(self.workers.len());
            }
            Query::Trace(what, to) => {
                self.traced.push(Arc::clone(&what.0));
                let all = self.trace_only().err();
                self.router.set_aside(true);
                self.workers.iter().for_each(|worker| worker.order(Order::Trace(what.clone())));
                let _ = to.send(all);
            }
            Query::TraceNoMore(spec) => {
                self.traced.retain(|other| !Arc::ptr_eq(other, &spec));
                match self.trace_only() {
                    Ok(()) => {}
                    Err(why) => tracing::debug!("workers get all packets while some are followed: {why}"),
                }
                self.router.set_aside(!self.traced.is_empty());
                self.workers.iter().for_each(|worker| worker.order(Order::TraceNoMore(Arc::clone(&spec))));
            }
            Query::Saved(to) => {
                let _ = to.send(saved(&self.router, self.fpm.as_ref()));
            }
            Query::ReadVariable(path, to) => {
                let _ = to.send(read_sysctl(&self.router, &path));
            }
            Query::WriteVariable(path, value, to) => {
                let _ = to.send(write_sysctl(&mut self.router, &path, &value));
            }
            Query::Started(done) => self.started(&done?, socket)?,
        }
        Ok(())
    }

    /// Has the kernel carry what is not to be traced, where one alone follows packets.
    ///
    /// # Errors
    /// Why it does not.
    fn trace_only(&mut self) -> Result<(), String> {
        self.attachments.fast().trace_no_more();
        let spec = match self.traced.as_slice() {
            [] => return Ok(()),
            [spec] => Arc::clone(spec),
            _ => return Err("others follow packets, too".to_owned()),
        };
        let ports: Vec<(u32, PortId)> =
            self.attachments.drivers().map(|(index, port, _)| (index, port)).collect();
        let index = |port| ports.iter().find(|of| of.1 == port).map(|of| of.0);
        let index = spec.port.and_then(index);
        let mut devices: Vec<u32> = ports.into_iter().map(|(index, _)| index).collect();
        devices.retain(|index| self.attachments.fast_path(*index).is_some());
        self.attachments.fast().trace(spec.filter.as_ref(), index, devices.into_iter())
    }

    /// The links that packets come and go by.
    fn link_names(&self) -> Vec<LinkName> {
        let ports: BTreeMap<u32, PortId> =
            self.attachments.drivers().map(|(index, port, _)| (index, port)).collect();
        let links = self.router.links();
        links
            .map(|link| LinkName {
                id: link.id,
                port: ports.get(&link.index).copied(),
                name: link.name.clone(),
            })
            .collect()
    }

    /// Puts filters in force that waited for others, if none follow at once or they have waited for long.
    fn publish_gathered(&mut self, quiet: bool) {
        if self.router.gathered().is_some_and(|left| quiet || left.is_zero()) {
            self.router.publish_gathered();
        }
    }

    /// How long to wait at most, for what time settles.
    fn patience(&self) -> Duration {
        if let Some(left) = self.router.gathered() {
            // Not less than the clock of epoll(7) tells apart.
            return left.max(Duration::from_millis(1));
        }
        let busy = !self.pending.is_empty() || self.router.waiting() > 0;
        if busy {
            return TICK;
        }
        let stations = if self.router.keeps_stations() { STATIONS } else { Duration::MAX };
        let attachments = self.attachments.due();
        self.confirming
            .due()
            .min(self.spanning_trees.due())
            .min(self.variables.due())
            .min(self.watch.due())
            .min(stations)
            .min(attachments)
    }

    /// Does what follows from what the router knows now.
    fn follow(&mut self) {
        let (told, attachments) = (self.kernel.take_control_change(), &self.attachments);
        if self.watch.follow(&self.router, told, |link| attachments.may_attach(&self.router, link)) {
            self.attachments.look_again();
        }
        // Before programs are served, nobody waits.
        let patience = if self.persistence.done { ATTACHING } else { Duration::MAX };
        let made = (self.kernel.made(), &self.watch);
        self.attachments.follow(&mut self.router, &self.workers, made, patience);
        let attachments = &self.attachments;
        let device = |router: &Router, table| attachments.host_device(router, table);
        self.shadows.follow(&mut self.router, &mut self.kernel, device);
        self.kernel.follow(&mut self.router);
        let wanted = self.router.take_wanted();
        self.pending.prepare(wanted, &self.router, &mut self.kernel);
        if !self.pending.is_empty() {
            self.pending.settle(&self.router, &self.workers);
        }
    }

    /// Gives everything back to the kernel.
    fn give_back(&mut self) {
        self.kernel.give_back(&mut self.router);
        self.attachments.give_back(&mut self.router, &self.workers);
        self.workers.iter_mut().for_each(worker::Handle::join);
    }
}
