//! `underpass bench fast-path`: the program that carries packets in the kernel, over tables of any size, and changes of these.

use std::fmt::{Error, Write};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;
use serde::Serialize;
use underpass_daemon::output;
use underpass_engine::buffer::PortId;
use underpass_engine::in_kernel::records::{Leaving, MissCause, OfDevice};
use underpass_engine::tables::{
    Action, ActionId, Fib4Id, Fib6Id, Link, LinkId, Lookup, LookupId, NextHop, Rewrite, Writer,
};
use underpass_port::fast::{Fast, Verdict, arena::Arena};
use underpass_port::kernel_frames::KernelFrames;

use super::clock;
use super::routes::{self, Drawn, NEIGHBOURS, gateway, neighbour_mac};
use super::scenario::{Flow, HOPS, PORTS, flows, incoming};

/// Measure the program of the fast path by itself: packets forwarded with one route and with a million, and route changes
/// a second while it forwards.
///
/// The kernel runs the program once for each packet (BPF_PROG_TEST_RUN) and says how long that took; each packet has
/// another destination, and between two of them the kernel copies a packet in, which takes longer than the program.
/// Nothing is sent. Tables have the lengths of prefixes of the Internet's. Routes are changed in the tables that the
/// program reads: netlink requests take their time besides. Needs root and Linux 6.9.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  underpass bench fast-path
  underpass bench fast-path --json --routes 100000")]
pub struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// How many routes there are
    #[arg(long, value_name = "N", default_value = "1000000", value_parser = clap::value_parser!(u32).range(1000..=1_000_000))]
    routes: u32,
    /// How often each table has its turn; the median counts
    #[arg(long, value_name = "N", default_value = "5", value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: u16,
}

/// What routes of a family take.
#[derive(Debug, Serialize)]
struct Row {
    family: &'static str,
    /// Nanoseconds that the program takes for a packet, with one route and with all.
    one_ns: f64,
    all_ns: f64,
    /// Routes that are added in a second, change where they lead, and are removed, while the program forwards.
    added: f64,
    changed: f64,
    removed: f64,
}

#[derive(Debug, Serialize)]
struct Report {
    routes: u32,
    rows: Vec<Row>,
}

/// Packets that are timed as one, and how many of these in a turn.
const SLICE: usize = 1024;
const SLICES: usize = 128;
/// Route changes between two looks for what has become free, as a datagram of requests has them.
const BATCH: usize = 64;
/// The device by which packets come and would leave: `lo`, which every namespace has.
const LO: u32 = 1;

/// Measures, and prints what came of it.
pub fn main(args: &Args) -> anyhow::Result<()> {
    let allowed = sched_getaffinity(Pid::from_raw(0))?;
    let other = (0..CpuSet::count()).find(|core| allowed.is_set(*core) == Ok(true)).unwrap_or(0);
    let core = clock::pin().context("this thread cannot be kept on one core")?;
    eprintln!("core {core}; packets meanwhile on core {other}");
    let mut rows = Vec::new();
    for family in [Family::V4, Family::V6] {
        eprintln!("{} …", family.name());
        rows.push(measure(family, args.routes, args.rounds, other).with_context(|| family.name())?);
    }
    let report = Report { routes: args.routes, rows };
    let text = if args.json { serde_json::to_string_pretty(&report)? + "\n" } else { table(&report)? };
    Ok(output::print(&text)?)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Family {
    V4,
    V6,
}

impl Family {
    fn name(self) -> &'static str {
        match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        }
    }

    fn draw(self, size: usize) -> Drawn {
        match self {
            Self::V4 => routes::drawn4(size),
            Self::V6 => routes::drawn6(size),
        }
    }

    fn frame(self, flow: &Flow, destination: u128) -> Vec<u8> {
        incoming(&match self {
            Self::V4 => routes::packet4_to(flow, destination, HOPS),
            Self::V6 => routes::packet6_to(flow, destination, HOPS),
        })
    }
}

/// Length, bits, left-aligned, and neighbour.
type Route = (u8, u128, u8);

/// A table of each family, and the look-up that is both.
struct Table {
    fib4: Fib4Id,
    fib6: Fib6Id,
    lookup: LookupId,
}

impl Table {
    fn new(writer: &mut Writer) -> Self {
        let (fib4, fib6) = (writer.add_fib4(), writer.add_fib6());
        let (fibs4, fibs6) = ([fib4].into(), [fib6].into());
        let lookup = Lookup { fibs4, fibs6, rules4: [].into(), rules6: [].into(), own: None };
        Self { fib4, fib6, lookup: writer.add_lookup(lookup) }
    }
}

/// The tables that a program reads, and what routes lead to.
struct Tables {
    writer: Writer,
    link: LinkId,
    actions: Vec<ActionId>,
}

impl Tables {
    fn new(mut writer: Writer) -> Self {
        let link = writer.add_link(link(LookupId(0)));
        let mut action = |neighbour| {
            let mut bytes = [0; 20];
            bytes[..6].copy_from_slice(&neighbour_mac(neighbour));
            bytes[6..12].copy_from_slice(&PORTS[1]);
            let rewrite = Some(Rewrite { bytes, len: 12 });
            let address = gateway(neighbour, true);
            let next_hop =
                NextHop { link, port: PortId(0), mtu: 1500, locked: false, hop_limit: 0, rewrite, address };
            let next_hop = writer.add_next_hop(next_hop);
            writer.add_action(Action::Forward(next_hop))
        };
        let actions = (0..NEIGHBOURS).map(&mut action).collect();
        Self { writer, link, actions }
    }

    /// Has a route lead to the neighbour that is so many further than it was drawn to.
    fn insert(&mut self, table: &Table, family: Family, route: Route, further: u8) {
        let (length, bits, neighbour) = route;
        let number = usize::from((neighbour + further) % NEIGHBOURS);
        let Some(to) = self.actions.get(number).copied() else { return };
        match family {
            Family::V4 => {
                self.writer.insert4(table.fib4, Ipv4Addr::from_bits((bits >> 96) as u32), length, to)
            }
            Family::V6 => self.writer.insert6(table.fib6, Ipv6Addr::from_bits(bits), length, to),
        };
    }

    fn remove(&mut self, table: &Table, family: Family, (length, bits, _): Route) {
        match family {
            Family::V4 => self.writer.remove4(table.fib4, Ipv4Addr::from_bits((bits >> 96) as u32), length),
            Family::V6 => self.writer.remove6(table.fib6, Ipv6Addr::from_bits(bits), length),
        };
    }

    /// Has packets looked up in a table.
    fn choose(&mut self, table: &Table) {
        self.writer.set_link(self.link, link(table.lookup));
    }
}

/// A program, and tables that it reads.
fn load() -> anyhow::Result<(Fast, Tables)> {
    let kernel_frames = KernelFrames::new();
    if let Some(why) = kernel_frames.without_bpf() {
        bail!("BPF: {why}");
    }
    let arena = Arena::new().context("BPF arena, which needs Linux 6.9")?;
    let (writer, ..) = Writer::watched(1, 0, Some(arena.programs()));
    let places = writer.places().context("the arena has no room for the tables")?;
    let fast = Fast::load(arena, places, &kernel_frames).context("the program")?;
    Ok((fast, Tables::new(writer)))
}

/// The link by which packets come and would leave.
fn link(lookup: LookupId) -> Link {
    Link {
        ifindex: LO,
        port: Some(PortId(0)),
        up: true,
        mac: PORTS[0],
        mtu: 1500,
        lookup,
        forward4: true,
        forward6: true,
        programs: Some(OfDevice { misses: LO, leaving: Leaving::Redirect, xdp: false }),
        ..Link::default()
    }
}

fn measure(family: Family, routes: u32, rounds: u16, other: usize) -> anyhow::Result<Row> {
    let Drawn { prefixes, destinations, .. } = family.draw(routes as usize);
    let flows = flows();
    let frames = |from: usize| {
        let destinations = destinations.iter().cycle().skip(from % destinations.len());
        destinations.zip(flows.iter().cycle()).map(|(destination, flow)| family.frame(flow, *destination))
    };
    let (fast, mut tables) = load()?;
    let (one, all) = (Table::new(&mut tables.writer), Table::new(&mut tables.writer));
    tables.insert(&one, family, (0, 0, 0), 0);
    tables.choose(&one);
    let changes = |tables: &mut Tables, change: &dyn Fn(&mut Tables, Route)| {
        let busy = Busy { fast: &fast, core: other, frames: frames(0) };
        busy.during(|| {
            for routes in prefixes.chunks(BATCH) {
                routes.iter().for_each(|route| change(tables, *route));
                tables.writer.reclaim();
            }
            prefixes.len()
        })
    };
    let added = changes(&mut tables, &|tables, route| tables.insert(&all, family, route, 0))?;
    let mut times = [Vec::new(), Vec::new()];
    for round in 0..usize::from(rounds) {
        for (table, times) in [&one, &all].into_iter().zip(&mut times) {
            tables.choose(table);
            let mut frames = frames(round * SLICE * SLICES);
            for _ in 0..SLICES {
                let slice = frames.by_ref().take(SLICE).map(|frame| forward(&fast, &frame));
                let slice: Duration = slice.sum::<anyhow::Result<_>>()?;
                times.push(slice.as_nanos() as f64 / SLICE as f64);
            }
        }
    }
    let [one_ns, all_ns] = times.map(super::live::median);
    let changed = changes(&mut tables, &|tables, route| tables.insert(&all, family, route, 1))?;
    tables.choose(&one);
    let removed = changes(&mut tables, &|tables, route| tables.remove(&all, family, route))?;
    // The program has said that it sends them, but to whom?
    let missed = MissCause::ALL.iter().filter(|cause| tables.writer.misses(**cause) > 0);
    let missed: Vec<&str> = missed.map(|cause| cause.name()).collect();
    ensure!(missed.is_empty(), "packets would have gone to workers: {}", missed.join(", "));
    Ok(Row { family: family.name(), one_ns, all_ns, added, changed, removed })
}

/// How long the program takes to forward a frame.
fn forward(fast: &Fast, frame: &[u8]) -> anyhow::Result<Duration> {
    let (verdict, duration) = fast.time(frame, LO)?;
    ensure!(verdict == Verdict::Redirected, "a packet is not forwarded: {verdict:?}");
    Ok(duration)
}

/// What another core does meanwhile: it forwards packet after packet.
struct Busy<'a, I> {
    fast: &'a Fast,
    core: usize,
    frames: I,
}

impl<I: Iterator<Item = Vec<u8>> + Send> Busy<'_, I> {
    /// How many changes `change` makes a second; it says how many these were. The packets must be forwarded meanwhile.
    fn during(self, change: impl FnOnce() -> usize) -> anyhow::Result<f64> {
        let (Self { fast, core, frames }, stop) = (self, AtomicBool::new(false));
        thread::scope(|scope| {
            let forwards = scope.spawn(|| {
                clock::pin_to(core)?;
                frames
                    .take_while(|_| !stop.load(Relaxed))
                    .try_for_each(|frame| forward(fast, &frame).map(drop))
            });
            let start = Instant::now();
            let count = change();
            let seconds = start.elapsed().as_secs_f64();
            stop.store(true, Relaxed);
            match forwards.join() {
                Ok(forwarded) => forwarded.context("while routes changed")?,
                Err(panic) => std::panic::resume_unwind(panic),
            }
            Ok(count as f64 / seconds)
        })
    }
}

fn table(report: &Report) -> Result<String, Error> {
    let mut table = String::new();
    writeln!(
        table,
        "{:<6} {:>14} {:>14} {:>10} {:>12} {:>12} {:>12}",
        "",
        "ns, one route",
        format!("{} routes", report.routes),
        "more",
        "added/s",
        "changed/s",
        "removed/s"
    )?;
    for Row { family, one_ns, all_ns, added, changed, removed } in &report.rows {
        writeln!(
            table,
            "{family:<6} {one_ns:>14.0} {all_ns:>14.0} {:>10.0} {added:>12.0} {changed:>12.0} {removed:>12.0}",
            all_ns - one_ns
        )?;
    }
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every packet is forwarded, with each table and while routes change.
    #[test]
    fn packets_are_forwarded_meanwhile() {
        for family in [Family::V4, Family::V6] {
            if let Err(error) = load() {
                eprintln!("SKIPPED packets_are_forwarded_meanwhile: {error:#}");
                return;
            }
            let row = measure(family, 2000, 1, 0).unwrap();
            let Row { one_ns, all_ns, added, changed, removed, .. } = row;
            assert!([one_ns, all_ns, added, changed, removed].iter().all(|figure| *figure > 0.0), "{row:?}");
        }
    }
}
