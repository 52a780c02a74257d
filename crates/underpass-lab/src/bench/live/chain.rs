//! Generator, router and sink.

use std::{
    collections::BTreeSet,
    env,
    fs::File,
    io::{Read, Seek},
    os::fd::AsRawFd,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use nix::sys::{
    socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, setsockopt, socket, sockopt},
    time::TimeVal,
};
use underpass_daemon::{
    live::FastPathStats,
    testbed::{Namespace, Router, join},
};
use underpass_port::xdp::{DriverSink, Flood, Sink, receive_by_polling};

use super::super::clock::pin_to;
use super::cases::Network;
use super::threads::{Rank, Threads, polls, rank};
use super::{Cores, Kind, SinkKind, cases};

/// How long packets flow before they are counted, and how long they are counted.
const WARM: Duration = Duration::from_millis(80);
const WINDOW: Duration = Duration::from_millis(200);

/// Frames that a turn has at first: enough for its time on most machines.
const FRAMES: u32 = 1 << 21;

/// What came out of a chain.
#[derive(Clone, Copy)]
pub struct Rate {
    /// Packets a second.
    pub pps: f64,
    /// Packets a second of the router's threads.
    pub per_cpu_second: f64,
}

pub struct Chain {
    pub kind: Kind,
    pub sink_kind: SinkKind,
    generator: Namespace,
    sink: Namespace,
    /// The kernel's own router is nothing besides.
    router: Option<Router>,
    threads: Threads,
    /// The counters of the sink's devices.
    counters: File,
    /// What ends the packets, where the sink's own kernel does not.
    _drop: Option<Sink>,
    _namespace: Namespace,
}

impl Chain {
    pub fn new(kind: Kind, sink_kind: SinkKind, network: Network, cores: Cores) -> anyhow::Result<Self> {
        let before = polls()?;
        let [generator, namespace] = ["generator", "router"].map(Namespace::new);
        let (generator, namespace) = (generator?, namespace?);
        let sink = match sink_kind {
            // To the other end of a pair that is in the same namespace, packets are redirected plainly.
            SinkKind::Plain => namespace.clone(),
            SinkKind::Neighbour | SinkKind::Driver => Namespace::new("sink")?,
        };
        join(&namespace, cases::IN, &generator, cases::GENERATOR)?;
        join(&namespace, cases::OUT, &sink, cases::SINK)?;
        generator.run(&format!("ip link set {} address 02:00:00:00:00:01 up", cases::GENERATOR))?;
        let (last, drop) = match sink_kind {
            SinkKind::Plain => ("04", None),
            SinkKind::Neighbour => ("99", Some(sink.enter(|| Sink::at(cases::SINK))??)),
            SinkKind::Driver => {
                // By polling, so that it takes what a program in a driver sends.
                sink.enter(|| receive_by_polling(cases::SINK))??;
                ("99", None)
            }
        };
        sink.run(&format!("ip link set {} address 02:00:00:00:00:{last} up", cases::SINK))?;
        namespace.run(&format!(
            "sysctl -qw net.ipv6.conf.all.forwarding=1 net.ipv6.conf.all.seg6_enabled=1
             ip link set {} address 02:00:00:00:00:02 up
             ip link set {} address 02:00:00:00:00:03",
            cases::IN,
            cases::OUT
        ))?;
        namespace.enter(|| receive_by_polling(cases::IN))??;
        // The device's polls get a thread of their own, for the router's core.
        namespace.run(&format!(
            "unshare -m sh -ec 'mount -t sysfs sysfs /sys; echo 1 > /sys/class/net/{}/threaded'",
            cases::IN
        ))?;
        let router = match kind.arguments() {
            None => {
                namespace.run(network.configuration())?;
                None
            }
            Some(arguments) => {
                pin_to(cores.router)?;
                let one = ["--workers", "1", "--own-bridges", "--attach", cases::IN, "--attach", cases::OUT];
                let started =
                    Router::start(&env::current_exe()?, &namespace, &[&one[..], arguments].concat());
                pin_to(cores.generator)?;
                let started = started?;
                started.run(network.configuration())?;
                Some(started)
            }
        };
        let polls: BTreeSet<i32> = polls()?.difference(&before).copied().collect();
        ensure!(!polls.is_empty(), "no thread polls {}: this needs a kernel with threaded NAPI", cases::IN);
        let pid = router.as_ref().map(|router| router.pid());
        let threads = Threads::take(&polls, pid, cores.router).context("the router's threads")?;
        let counters = sink.enter(|| File::open("/proc/thread-self/net/dev"))??;
        Ok(Self {
            kind,
            sink_kind,
            generator,
            sink,
            router,
            threads,
            counters,
            _drop: drop,
            _namespace: namespace,
        })
    }

    /// How packets leave that no worker carries; why there are none, if there are none.
    pub fn leaving(&self) -> anyhow::Result<Result<String, String>> {
        let stats = self.router.as_ref().context("no router has been started")?.stats()?;
        let port = stats.ports.into_iter().find(|port| port.name == cases::OUT);
        let leaving = port.and_then(|port| port.fast_path);
        Ok(leaving.ok_or_else(|| stats.fast_path.off.unwrap_or_else(|| "the log says why".to_owned())))
    }

    /// Sends a few frames; what comes out, once the first ones have.
    pub fn sample(&self, frame: &[u8], cores: Cores) -> anyhow::Result<Vec<u8>> {
        let listener = self.sink.enter(|| {
            socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::EthAll)
        })??;
        // Room for all that is sent at once, at each device of the namespace: what goes in comes first, in a page a frame.
        setsockopt(&listener, sockopt::RcvBufForce, &(1 << 22))?;
        setsockopt(&listener, sockopt::ReceiveTimeout, &TimeVal::new(0, 200_000))?;
        let mut buffer = vec![0; 2048];
        let before = self.fast_path()?;
        for _ in 0..20 {
            self.send(frame, 64, cores)?;
            while let Ok(length) = recv(listener.as_raw_fd(), &mut buffer, MsgFlags::empty()) {
                match buffer.get(..length) {
                    Some(found) if found.starts_with(&cases::NEIGHBOUR) => {
                        let now = self.fast_path()?;
                        if matches!(self.kind, Kind::FastPath | Kind::InDriver) && now.hits == before.hits {
                            bail!("workers carry it: {:?}", now.misses);
                        }
                        return Ok(found.to_owned());
                    }
                    _ => {}
                }
            }
        }
        bail!("nothing comes out{}", self.log())
    }

    /// What the fast path has counted.
    fn fast_path(&self) -> anyhow::Result<FastPathStats> {
        let stats = self.router.as_ref().map(|router| router.stats()).transpose()?;
        Ok(stats.unwrap_or_default().fast_path)
    }

    fn send(&self, frame: &[u8], count: u32, cores: Cores) -> anyhow::Result<()> {
        self.generator.enter(|| {
            pin_to(cores.generator)?;
            rank(0, Rank::Polls);
            Flood::new(cases::GENERATOR, frame)?.send(count).context("the kernel's generator")
        })?
    }

    /// How many frames have come out.
    fn received(&self) -> anyhow::Result<u64> {
        let (mut text, mut counters) = (String::new(), &self.counters);
        counters.rewind()?;
        counters.read_to_string(&mut text)?;
        let line =
            text.lines().find_map(|line| line.trim_start().strip_prefix(cases::SINK)?.strip_prefix(':'));
        let packets = line.and_then(|counters| counters.split_whitespace().nth(1)?.parse().ok());
        packets.context("no counters of the sink")
    }

    /// How many frames come out when more go in than the router can take.
    pub fn rate(&self, frame: &[u8], cores: Cores) -> anyhow::Result<Rate> {
        let mut count = FRAMES;
        let _drop = match self.sink_kind {
            SinkKind::Driver => Some(self.sink.enter(|| DriverSink::at(cases::SINK))??),
            SinkKind::Plain | SinkKind::Neighbour => None,
        };
        loop {
            let counted = thread::scope(|scope| {
                let sender = scope.spawn(|| self.send(frame, count, cores));
                let now = || anyhow::Ok((Instant::now(), self.threads.time(), self.received()?));
                thread::sleep(WARM);
                let (start, worked, before) = now()?;
                thread::sleep(WINDOW);
                let (end, works, after) = now()?;
                let flowed = !sender.is_finished();
                match sender.join() {
                    Ok(sent) => sent?,
                    Err(panic) => std::panic::resume_unwind(panic),
                }
                let packets = (after - before) as f64;
                let rate = Rate {
                    pps: packets / (end - start).as_secs_f64(),
                    per_cpu_second: packets / works.saturating_sub(worked).as_secs_f64(),
                };
                anyhow::Ok(flowed.then_some(rate))
            })?;
            match counted {
                Some(rate) if rate.pps > 0.0 && rate.per_cpu_second.is_finite() => return Ok(rate),
                Some(_) => bail!("nothing comes out{}", self.log()),
                None => count = count.checked_mul(2).context("the generator is too fast")?,
            }
        }
    }

    fn log(&self) -> String {
        let log = self.router.as_ref().map(|router| router.log().unwrap_or_default());
        log.map_or(String::new(), |log| format!("\n{log}"))
    }

    /// Ends what forwards.
    pub fn stop(self) -> anyhow::Result<()> {
        self.router.map_or(Ok(()), Router::stop)
    }
}
