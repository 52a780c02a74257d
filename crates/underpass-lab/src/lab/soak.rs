//! Two routers under everything at once: traffic of every kind, configuration that changes all the time, and faults.
//! What is to hold meanwhile and at the end is checked.

mod account;
mod churn;
mod descriptors;
mod mutate;
mod network;
mod traffic;

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{
        RwLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use underpass_daemon::{live::WorkerStats, testbed::Router};

use account::{Account, complaints};
use churn::Churn;
use network::{Network, Service};
use traffic::Traffic;

/// How long, and how hard.
#[derive(Debug, clap::Args)]
#[command(after_help = "What must hold:
  - for each worker, at any time: received + generated = sent + delivered + dropped + held
  - the memory of the router that is never restarted (heap and packet buffers) grows by at most 1 % after warm-up
    (checked in runs of ten minutes or more), and its number of descriptors does not grow
  - queues drain once traffic stops, and all packet buffers are free again
  - every path without a rate limit then delivers every packet
  - no request fails, except to a router that was killed meanwhile; no log has a panic or an error
  - the routers exit on SIGTERM and leave nothing behind

Examples:
  underpass lab soak
  underpass lab soak --minutes 5 --rate 8000")]
pub struct Args {
    /// Duration in minutes
    #[arg(long, value_name = "N", default_value = "60", value_parser = minutes)]
    minutes: f64,
    /// Datagrams per second in total; TCP comes on top
    #[arg(long, value_name = "N", default_value = "3000", value_parser = clap::value_parser!(u32).range(100..=100_000))]
    rate: u32,
    /// Worker threads per router
    #[arg(long, value_name = "N", default_value = "2", value_parser = clap::value_parser!(u16).range(1..=64))]
    workers: u16,
}

fn minutes(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(minutes) if (0.1..=10_000.0).contains(&minutes) => Ok(minutes),
        _ => Err("a number of minutes from 0.1 to 10000".to_owned()),
    }
}

/// How often there is a line that tells how far it is.
const PROGRESS: Duration = Duration::from_secs(10);
/// How often the routers are checked.
const CHECK: Duration = Duration::from_secs(5);
/// Runs of so long are long enough to have done everything often before memory is compared.
const JUDGED: Duration = Duration::from_secs(600);
/// A share of the first descriptors, and of the first memory, that may come on top.
const GROWTH: f64 = 0.01;
/// How long a way may deliver nothing, whatever happens to it.
const STANDSTILL: Duration = Duration::from_secs(20);
/// How long what is held may take to drain, and a way to work again.
const PATIENCE: Duration = Duration::from_secs(15);
/// Slots of a worker that may be on their way out when nothing is sent any more.
const LEAVING: u64 = 64;
/// Datagrams of which none is to be lost in the end.
const PROBES: u64 = 200;

/// What is done to the network, in turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    /// h1's link goes down and comes back.
    SenderFlaps,
    /// r2 is killed and started again.
    Killed,
    /// r1's own link to h1 goes down and comes back.
    LinkFlaps,
    /// r2 is ended, gives everything back, loses its link to r1 and starts again.
    Ended,
    /// h2's link goes down and comes back.
    ReceiverFlaps,
    /// The link between the routers takes shorter packets for a while.
    Mtu,
}

const FAULTS: [Fault; 6] =
    [Fault::SenderFlaps, Fault::Killed, Fault::LinkFlaps, Fault::Ended, Fault::ReceiverFlaps, Fault::Mtu];

impl Fault {
    const fn name(self) -> &'static str {
        match self {
            Self::SenderFlaps => "sender's link down",
            Self::Killed => "router killed",
            Self::LinkFlaps => "router's link down",
            Self::Ended => "router ended, and its link down",
            Self::ReceiverFlaps => "receiver's link down",
            Self::Mtu => "MTU changed",
        }
    }
}

/// The run.
struct Soak<'a> {
    program: &'a Path,
    args: &'a Args,
    network: &'a Network,
    traffic: &'a Traffic,
    churns: &'a [Churn; 2],
    gate: &'a RwLock<()>,
    malformed: &'a AtomicU64,
    first: Router,
    second: Option<Router>,
    /// What r2's namespace was like without a router.
    bare: String,
    start: Instant,
    faults: BTreeMap<Fault, u64>,
    /// r1 before anything was sent, after the warm-up, and last.
    idle: Account,
    warm: Option<Account>,
    last: Option<Account>,
    /// By way: what it had delivered when that was last more, and when.
    moved: [(u64, Instant); Service::ALL.len()],
    warnings: BTreeMap<String, u64>,
    checks: u64,
    problems: Vec<String>,
    /// How many of them have been told.
    told: usize,
}

/// Runs, and says what came of it.
///
/// # Errors
/// Something did not hold; something cannot be made.
pub fn run(program: &Path, args: &Args) -> anyhow::Result<()> {
    let network = Network::build()?;
    let [r1, r2] = &network.edges;
    let traces = [network::traces(r1)?, network::traces(r2)?];
    let workers = args.workers.to_string();
    let start = |edge| Router::start(program, edge, &["--workers", &workers]);
    let (first, second) = (start(r1)?, start(r2)?);
    Network::configure(1, &first).with_context(|| first.log().unwrap_or_default())?;
    Network::configure(2, &second).with_context(|| second.log().unwrap_or_default())?;
    let idle = Account::of(r1, first.pid())?;
    let churns = [Churn::new(r1.clone(), (*first).clone(), 1), Churn::new(r2.clone(), (*second).clone(), 2)];
    let (traffic, gate, malformed) = (Traffic::default(), RwLock::new(()), AtomicU64::new(0));
    traffic.flowing.store(true, Relaxed);
    let now = Instant::now();
    let mut soak = Soak {
        program,
        args,
        network: &network,
        traffic: &traffic,
        churns: &churns,
        gate: &gate,
        malformed: &malformed,
        first,
        second: Some(second),
        bare: traces[1].clone(),
        idle,
        start: now,
        faults: BTreeMap::new(),
        warm: None,
        last: None,
        moved: [(0, now); Service::ALL.len()],
        warnings: BTreeMap::new(),
        checks: 0,
        problems: Vec::new(),
        told: 0,
    };
    let hosts = &network.hosts;
    let mutators = [
        mutate::open(&hosts[0], "eth0", &hosts[0], "eth0")?,
        mutate::open(r1, "far", r2, "far")?,
        mutate::open(r2, "far", r1, "far")?,
    ];
    thread::scope(|scope| {
        for (index, way) in Service::ALL.into_iter().enumerate() {
            let socket = traffic::receiver(&network, index, way)?;
            let traffic = &traffic;
            scope.spawn(move || traffic.receive(index, &socket));
        }
        let sender = scope.spawn(|| traffic.send(&network, args.rate));
        let stream = scope.spawn(|| traffic.stream(&network));
        for (seed, sockets) in (1..).zip(&mutators) {
            let (traffic, malformed) = (&traffic, &malformed);
            scope.spawn(move || mutate::run(sockets, seed, &traffic.flowing, &traffic.over, malformed));
        }
        for churn in &churns {
            scope.spawn(|| churn.run(&gate, &traffic.over));
        }
        let done = soak.go_on();
        traffic.over.store(true, Relaxed);
        for (what, thread) in [("datagrams", sender), ("TCP", stream)] {
            match thread.join() {
                Ok(ended) => ended.context(what)?,
                Err(_) => bail!("the thread of {what} panicked"),
            }
        }
        done
    })?;
    soak.end(&traces)
}

impl Soak<'_> {
    /// Until the time is over and all is quiet.
    fn go_on(&mut self) -> anyhow::Result<()> {
        let whole = Duration::from_secs_f64(self.args.minutes * 60.0);
        let warm_up = whole / 4;
        let pause = (whole / 12).clamp(Duration::from_secs(2), Duration::from_secs(8));
        let (mut fault, mut check, mut progress) =
            (self.start + pause, self.start + CHECK, self.start + PROGRESS);
        let mut turn = FAULTS.into_iter().cycle();
        while self.start.elapsed() < whole {
            let now = Instant::now();
            if now >= fault {
                if let Some(next) = turn.next() {
                    self.inject(next).with_context(|| next.name())?;
                }
                fault = Instant::now() + pause;
            }
            if now >= check {
                self.check()?;
                if self.warm.is_none() && self.start.elapsed() >= warm_up {
                    self.warm = self.last.clone();
                }
                check = now + CHECK;
            }
            if now >= progress {
                self.report();
                progress = now + PROGRESS;
            }
            thread::sleep(Duration::from_millis(50));
        }
        self.finish()
    }

    /// Does something to the network, in the middle of whatever happens there.
    fn inject(&mut self, fault: Fault) -> anyhow::Result<()> {
        let [h1, h2] = &self.network.hosts;
        let flap = |device: &str| format!("ip link set {device} down; sleep 0.3; ip link set {device} up\n");
        match fault {
            Fault::SenderFlaps => {
                h1.run(&(flap("eth0") + &network::host_lines(1)))?;
            }
            Fault::ReceiverFlaps => {
                h2.run(&(flap("eth0") + &network::host_lines(2)))?;
            }
            Fault::LinkFlaps => {
                self.first.run(&flap("near"))?;
            }
            Fault::Mtu => {
                self.first.run("ip link set far mtu 1400; sleep 0.5; ip link set far mtu 1500")?;
            }
            Fault::Killed | Fault::Ended => self.replace(fault)?,
        }
        *self.faults.entry(fault).or_default() += 1;
        Ok(())
    }

    /// Ends r2, by SIGKILL or SIGTERM, and starts another one.
    fn replace(&mut self, fault: Fault) -> anyhow::Result<()> {
        let churn = &self.churns[1];
        let edge = &self.network.edges[1];
        let old = self.second.take().context("there is no r2")?;
        self.read_log(2, &old.log()?);
        churn.lives.fetch_add(1, Relaxed);
        churn.alive.store(false, Relaxed);
        if fault == Fault::Killed {
            old.kill()?;
        } else {
            let log = old.log()?;
            if let Err(error) = old.stop() {
                self.problems.push(format!("{error:#}\n{log}"));
            }
        }
        // What the churn was doing has failed, and taken away what it had made.
        let quiet = self.gate.write();
        if fault == Fault::Ended {
            let left = network::traces(edge)?;
            if left != self.bare {
                self.problems.push(format!("r2 has left something:\n{}\nand not\n{left}", self.bare));
            }
            edge.run("ip link set far down; sleep 0.3; ip link set far up")?;
            edge.run(&network::back_lines(2))?;
        }
        let workers = self.args.workers.to_string();
        let new = Router::start(self.program, edge, &["--workers", &workers])?;
        Network::configure(2, &new).with_context(|| new.log().unwrap_or_default())?;
        self.second = Some(new);
        churn.alive.store(true, Relaxed);
        drop(quiet);
        Ok(())
    }

    /// Looks for what should not be in a log, and counts the rest.
    fn read_log(&mut self, side: u8, log: &str) {
        for line in complaints(log) {
            self.problems.push(format!("r{side} said: {line}"));
        }
        for line in log.lines().filter_map(|line| line.split_once(" WARN ")) {
            *self.warnings.entry(format!("r{side}: {}", line.1)).or_default() += 1;
        }
    }

    /// Between two changes of the configuration: whether all that should hold does.
    fn check(&mut self) -> anyhow::Result<()> {
        let quiet = self.gate.write();
        let [r1, r2] = &self.network.edges;
        let first =
            Account::of(r1, self.first.pid()).with_context(|| self.first.log().unwrap_or_default())?;
        let second = self.second.as_ref().context("there is no r2")?;
        let second = Account::of(r2, second.pid()).with_context(|| second.log().unwrap_or_default())?;
        drop(quiet);
        for (side, account) in [(1, &first), (2, &second)] {
            if let Err(error) = account.balance() {
                self.problems.push(format!("after {:.0} s, r{side}: {error}", self.seconds()));
            }
        }
        for churn in self.churns {
            if let Ok(mut found) = churn.problems.lock() {
                self.problems.append(&mut found);
            }
        }
        let now = Instant::now();
        for (index, way) in Service::ALL.into_iter().enumerate() {
            let received = self.traffic.received[index].load(Relaxed);
            let (before, since) = self.moved[index];
            if received > before || way == Service::Unresolved {
                self.moved[index] = (received, now);
            } else if now - since > STANDSTILL {
                self.problems.push(format!(
                    "after {:.0} s: nothing comes by {} any more",
                    self.seconds(),
                    way.name()
                ));
                self.moved[index].1 = now;
            }
        }
        if self.problems.len() > 50 {
            bail!("too much goes wrong:\n{}", self.problems.join("\n"));
        }
        self.last = Some(first);
        self.checks += 1;
        Ok(())
    }

    /// Stops what changes and what is sent; then everything drains, and everything arrives.
    fn finish(&mut self) -> anyhow::Result<()> {
        let gate = self.gate;
        let _quiet = gate.write();
        self.traffic.flowing.store(false, Relaxed);
        let [r1, r2] = &self.network.edges;
        let second = self.second.as_ref().context("there is no r2")?;
        let (first_pid, second_pid) = (self.first.pid(), second.pid());
        let deadline = Instant::now() + PATIENCE;
        loop {
            let held = [Account::of(r1, first_pid)?.held(), Account::of(r2, second_pid)?.held()];
            let late = Instant::now() > deadline;
            let lost = self.lost_slots(&Account::of(r1, first_pid)?);
            if held == [0; 2] && lost.is_empty() {
                break;
            }
            if late {
                if held != [0; 2] {
                    self.problems.push(format!("packets stay in r1 and r2: {held:?}"));
                }
                self.problems.extend(lost);
                break;
            }
            thread::sleep(Duration::from_millis(100));
        }
        for (index, way) in Service::ALL.into_iter().enumerate().filter(|(_, way)| way.is_free()) {
            let deadline = Instant::now() + PATIENCE;
            loop {
                let arrived = traffic::probe(self.network, index, way, self.traffic, PROBES)?;
                if arrived == PROBES {
                    break;
                }
                if Instant::now() > deadline {
                    self.problems.push(format!("in the end {arrived} of {PROBES} arrive by {}", way.name()));
                    break;
                }
            }
        }
        drop(_quiet);
        self.check()
    }

    /// The workers of r1 that have not the slots for packets that they had before anything was sent, but for some that
    /// are being sent.
    fn lost_slots(&self, now: &Account) -> Vec<String> {
        let free = |worker: &WorkerStats| worker.free_buffers + worker.free_large_buffers;
        let workers = self.idle.stats.workers.iter().zip(&now.stats.workers);
        let lost = workers.map(|(before, now)| (now.number, free(before).saturating_sub(free(now))));
        let many = lost.filter(|(_, lost)| *lost > LEAVING);
        many.map(|(number, lost)| format!("worker {number} has lost {lost} slots for packets")).collect()
    }

    fn seconds(&self) -> f64 {
        self.start.elapsed().as_secs_f64()
    }

    /// How far it is, and what has gone wrong since the last time.
    fn report(&mut self) {
        let sum = |counts: &[AtomicU64]| counts.iter().map(|count| count.load(Relaxed)).sum::<u64>();
        let Some(last) = &self.last else { return };
        let totals = &last.stats.totals;
        println!(
            "{:>6.0} s  sent {} received {}  tcp {} MB  malformed {}  steps {}+{}  killed {}  faults {}  r1: {:.1} MiB, {} \
             descriptors, {} dropped, {} held, {} carried by the kernel  problems {}",
            self.seconds(),
            sum(&self.traffic.sent),
            sum(&self.traffic.received),
            self.traffic.streamed.load(Relaxed) / 1_000_000,
            self.malformed.load(Relaxed),
            self.churns[0].steps.load(Relaxed),
            self.churns[1].steps.load(Relaxed),
            self.churns.iter().map(|churn| churn.killed.load(Relaxed)).sum::<u64>(),
            self.faults.values().sum::<u64>(),
            last.memory as f64 / f64::from(1 << 20),
            last.descriptors.count(),
            totals.dropped,
            totals.held,
            last.stats.fast_path.hits,
            self.problems.len(),
        );
        for problem in self.problems.iter().skip(self.told) {
            println!("         ! {problem}");
        }
        self.told = self.problems.len();
    }

    /// Ends the routers, and says what came of it all.
    fn end(mut self, traces: &[String; 2]) -> anyhow::Result<()> {
        let seconds = self.seconds();
        for (side, router) in [(1, Some(&self.first)), (2, self.second.as_ref())] {
            let log = router.context("there is no router")?.log()?;
            let mut lines = Vec::from_iter(complaints(&log).map(|line| format!("r{side} said: {line}")));
            self.problems.append(&mut lines);
        }
        let log = self.first.log()?;
        self.read_log(1, &log);
        self.judge_memory(seconds);
        self.summary(seconds)?;
        self.first.stop()?;
        self.second.context("there is no r2")?.stop()?;
        for (edge, before) in self.network.edges.iter().zip(traces) {
            let after = network::traces(edge)?;
            if after != *before {
                self.problems.push(format!("{} has left something: {after}\nand not\n{before}", edge.name()));
            }
        }
        ensure!(self.problems.is_empty(), "did not hold:\n{}", self.problems.join("\n"));
        println!("all held");
        Ok(())
    }

    fn judge_memory(&mut self, seconds: f64) {
        let (Some(warm), Some(last)) = (&self.warm, &self.last) else { return };
        if seconds < JUDGED.as_secs_f64() {
            return;
        }
        let growth = last.memory as f64 / warm.memory as f64 - 1.0;
        if growth > GROWTH {
            self.problems.push(format!(
                "memory grew by {:.2} %: {} to {} bytes",
                100.0 * growth,
                warm.memory,
                last.memory
            ));
        }
        let [before, now] = [&warm, &last].map(|account| account.descriptors.count());
        if now > before {
            let more = last.descriptors.since(&warm.descriptors);
            self.problems.push(format!("{before} descriptors became {now}: {more}"));
        }
    }

    fn summary(&self, seconds: f64) -> anyhow::Result<()> {
        println!(
            "\n{seconds:.0} s, {} checks\n\n{:<12} {:>12} {:>12}",
            self.checks, "way", "sent", "received"
        );
        for (index, way) in Service::ALL.into_iter().enumerate() {
            let [sent, received] =
                [&self.traffic.sent, &self.traffic.received].map(|counts| counts[index].load(Relaxed));
            println!("{:<12} {sent:>12} {received:>12}", way.name());
        }
        println!(
            "TCP          {:>12} connections, {} bytes arrived\nmalformed    {:>12}\n",
            self.traffic.streams.load(Relaxed),
            self.traffic.streamed.load(Relaxed),
            self.malformed.load(Relaxed)
        );
        for (fault, number) in &self.faults {
            println!("{number:>6} × {}", fault.name());
        }
        for (churn, name) in self.churns.iter().zip(["r1", "r2"]) {
            println!(
                "{:>6} changes of {name}'s configuration, {} programs killed in the middle",
                churn.steps.load(Relaxed),
                churn.killed.load(Relaxed)
            );
        }
        let (Some(warm), Some(last)) = (&self.warm, &self.last) else { return Ok(()) };
        let totals = &last.stats.totals;
        println!(
            "\nr1: {} received + {} generated = {} sent + {} delivered + {} dropped + {} held",
            totals.received, totals.generated, totals.sent, totals.delivered, totals.dropped, totals.held
        );
        for (reason, count) in &last.stats.drops {
            println!("    {reason:<28} {count:>12}");
        }
        let fast = &last.stats.fast_path;
        match &fast.off {
            Some(why) => println!("the kernel carried none by itself: {why}"),
            None => {
                println!("the kernel carried {} by itself, and gave to workers {:?}", fast.hits, fast.misses)
            }
        }
        println!(
            "memory of r1: {} bytes after the warm-up, {} at the end ({:+.2} %); descriptors: {}, {} {}",
            warm.memory,
            last.memory,
            100.0 * (last.memory as f64 / warm.memory as f64 - 1.0),
            warm.descriptors.count(),
            last.descriptors.count(),
            last.descriptors.since(&warm.descriptors)
        );
        for worker in &last.stats.workers {
            println!(
                "worker {}: {} slots free, {} large",
                worker.number, worker.free_buffers, worker.free_large_buffers
            );
        }
        for (warning, count) in &self.warnings {
            println!("{count:>6} × {warning}");
        }
        Ok(())
    }
}
