//! `underpass bench scale`: everything at once, in large numbers, and two workers.

mod workers;

use std::fmt::{Error, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context;
use serde::Serialize;
use underpass_daemon::offline::Offline;
use underpass_engine::buffer::PortId;
use underpass_port::memory::Generator;

use super::measure::{IN, Line};
use super::mpls::memory::resident;
use super::scenario::{BASE, Load, PORTS, SOURCE};
use super::{clock, configure_ports, endpoint, headend, mpls, police, routes, send_requests, tunnel};
use underpass_daemon::{output, script};
use workers::Pair;

/// Measure a router with a million IPv6 routes, a million labels, 100,000 SIDs, 100,000 SR policies of two segments,
/// 10,000 tunnels and 10,000 policers at once; then the rate of two workers against one.
///
/// Netlink requests add the objects. Memory is the growth of the process per object; that of a tunnel includes its device
/// and routes, that of a policer its filter. Then packets of each kind are compared byte by byte and timed, with all
/// objects present. The table also has the memory that VPP takes for each.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  underpass bench scale
  underpass bench scale --routes 100000 --json     # a tenth of each
  underpass bench scale --only workers")]
pub struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// How many routes and labels; of the others a tenth or a hundredth
    #[arg(long, value_name = "N", default_value = "1000000", value_parser = clap::value_parser!(u32).range(1000..=1_000_000))]
    routes: u32,
    /// Measure this alone
    #[arg(long, value_enum)]
    only: Option<Only>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Only {
    /// Large numbers
    Objects,
    /// Two workers
    Workers,
}

/// Objects of a kind, and what is sent by them.
struct Kind {
    name: &'static str,
    number: u32,
    /// Bytes that VPP takes for one.
    vpp: Option<&'static str>,
    load: Load,
    /// Lines that come before them, as part of the kind.
    lines: &'static str,
    /// The requests that add them.
    requests: Vec<Vec<u8>>,
    input: PortId,
}

/// What a kind took.
#[derive(Debug, Serialize)]
struct Row {
    kind: &'static str,
    number: u32,
    /// Bytes for one.
    bytes: f64,
    vpp_bytes: Option<&'static str>,
    /// Seconds to add all of them.
    seconds: f64,
    /// How many are added in a second.
    updates: f64,
    /// Clocks of the path of a packet, and packets a second.
    clocks: f64,
    mpps: f64,
}

#[derive(Debug, Serialize)]
struct Report {
    /// Seconds until all objects are there, from an empty router on, and what the process has grown by.
    start: f64,
    memory: usize,
    objects: Vec<Row>,
    workers: Vec<Pair>,
}

/// The third port, where what is policed comes in.
const POLICED: PortId = PortId(2);
/// Length of the prefixes that lead into tunnels, and of those that are policed: 16,384 of a network of 16 bits.
const PREFIX: u8 = 30;

/// Measures, and prints what came of it.
pub fn main(args: &Args) -> anyhow::Result<()> {
    let core = clock::pin().context("this thread cannot be kept on one core")?;
    let ticks = clock::ticks_per_nanosecond();
    eprintln!("core {core}, {ticks:.2} GHz time-stamp counter");
    let mut report = Report { start: 0.0, memory: 0, objects: Vec::new(), workers: Vec::new() };
    if args.only != Some(Only::Workers) {
        objects(args.routes, ticks, &mut report)?;
    }
    if args.only != Some(Only::Objects) {
        report.workers = workers::measure(core, ticks)?;
    }
    let text = if args.json { serde_json::to_string_pretty(&report)? + "\n" } else { table(&report)? };
    Ok(output::print(&text)?)
}

/// The lines that come before everything else.
fn config() -> String {
    format!(
        "{BASE}{}{}ip sr tunsrc set {SOURCE}\nip -6 route add fc00:2::/32 via fd01::2 dev p1\n{}\
         ip link set p2 up\ntc qdisc add dev p2 clsact\nip route add 198.19.0.0/16 via 10.1.0.2 dev p1\n",
        routes::neighbours(),
        mpls::INPUT,
        tunnel::UNDERLAY
    )
}

/// All kinds, the first of `routes` objects.
fn kinds(routes: u32, link: u32) -> anyhow::Result<Vec<Kind>> {
    let kind = |name, number, vpp, load: Load, input| {
        let requests = super::routes::requests(&load.routes, link)?;
        anyhow::Ok(Kind { name, number, vpp, load, lines: "", requests, input })
    };
    let (tenth, hundredth) = (routes / 10, routes / 100);
    let few = u16::try_from(hundredth)?;
    let labels = kind("label", routes, Some("435–656"), mpls::at_random(routes), IN)?;
    Ok(vec![
        kind("IPv6 route", routes, Some("342–440"), super::routes::load6(routes as usize), IN)?,
        Kind { lines: mpls::LABELS, ..labels },
        kind("local SID", tenth, Some("898"), endpoint::sids(tenth), IN)?,
        kind("SR policy of 2", tenth, Some("2336"), headend::policies(tenth), IN)?,
        kind("tunnel", hundredth, None, tunnel::into_many(few, PREFIX), IN)?,
        kind("policer", hundredth, None, police::filters(hundredth, PREFIX, true), POLICED)?,
    ])
}

fn objects(number: u32, ticks: f64, report: &mut Report) -> anyhow::Result<()> {
    let macs = [PORTS[0], PORTS[1], PORTS[0]];
    let mut configured = configure_ports(&macs, "scale", &config(), 1)?;
    let link = index_of_p1(&configured.router)?;
    // All that is not the router's is there before, and stays: what is freed would be taken by what is measured.
    let kinds = kinds(number, link)?;
    let (start, before) = (Instant::now(), resident()?);
    for kind in &kinds {
        eprintln!("{} × {} …", kind.number, kind.name);
        let before = resident()?;
        kind.prepare(&configured.router)?;
        let seconds = send_requests(&configured.router, &kind.requests).context(kind.name)?;
        let bytes = resident()?.saturating_sub(before) as f64 / f64::from(kind.number);
        report.objects.push(Row {
            kind: kind.name,
            number: kind.number,
            bytes,
            vpp_bytes: kind.vpp,
            seconds,
            updates: kind.load.routes.len() as f64 / seconds,
            clocks: 0.0,
            mpps: 0.0,
        });
    }
    report.start = start.elapsed().as_secs_f64();
    report.memory = resident()?.saturating_sub(before);
    let reader = configured.readers.pop().context("no reader")?;
    let nothing = Generator::new::<&[u8]>([], None);
    let mut line: Line<true> = Line::new(Arc::clone(&configured.tables), reader, nothing);
    for (kind, row) in kinds.into_iter().zip(&mut report.objects) {
        eprintln!("packets by {} …", kind.name);
        line.take_from(Generator::new(&kind.load.templates, kind.load.patches), kind.input);
        line.check(&kind.load.expected).context(kind.name)?;
        row.clocks = line.measure(ticks).context(kind.name)?.path;
        row.mpps = 1000.0 * ticks / row.clocks;
    }
    Ok(())
}

impl Kind {
    fn prepare(&self, router: &Offline) -> anyhow::Result<()> {
        let name = Path::new(self.name);
        Ok(script::configure(router, name, &script::parse(name, self.lines)?)?)
    }
}

fn index_of_p1(router: &Offline) -> anyhow::Result<u32> {
    let router = router.router();
    router.links().find(|link| link.name == "p1").map(|link| link.index).context("no port p1")
}

fn table(report: &Report) -> Result<String, Error> {
    let mut text = String::new();
    if !report.objects.is_empty() {
        writeln!(
            text,
            "{:<16} {:>9} {:>10} {:>10} {:>9} {:>11} {:>8} {:>7}",
            "", "number", "bytes each", "VPP", "added in", "updates/s", "clocks", "Mpps"
        )?;
    }
    for row in &report.objects {
        writeln!(
            text,
            "{:<16} {:>9} {:>10.1} {:>10} {:>7.2} s {:>11.0} {:>8.1} {:>7.2}",
            row.kind,
            row.number,
            row.bytes,
            row.vpp_bytes.unwrap_or("–"),
            row.seconds,
            row.updates,
            row.clocks,
            row.mpps
        )?;
    }
    if !report.objects.is_empty() {
        writeln!(
            text,
            "\nall at once: {:.1} MiB, there {:.1} s after the start\n",
            report.memory as f64 / f64::from(1 << 20),
            report.start
        )?;
    }
    if !report.workers.is_empty() {
        writeln!(
            text,
            "{:<16} {:>16} {:>16} {:>8} {:>7}",
            "", "one worker, Mpps", "two, together", "ratio", "rounds"
        )?;
    }
    for pair in &report.workers {
        writeln!(
            text,
            "{:<16} {:>16.2} {:>16.2} {:>8.2} {:>7}",
            pair.scenario, pair.one, pair.two, pair.ratio, pair.rounds
        )?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A thousandth of each kind is there at once, and packets by each come out byte by byte as they should.
    #[test]
    fn a_thousandth_of_all() {
        let macs = [PORTS[0], PORTS[1], PORTS[0]];
        let mut configured = configure_ports(&macs, "scale", &config(), 1).unwrap();
        let kinds = kinds(1000, index_of_p1(&configured.router).unwrap()).unwrap();
        for kind in &kinds {
            kind.prepare(&configured.router).unwrap();
            send_requests(&configured.router, &kind.requests).unwrap();
        }
        let reader = configured.readers.pop().unwrap();
        let nothing = Generator::new::<&[u8]>([], None);
        let mut line: Line<true> = Line::new(Arc::clone(&configured.tables), reader, nothing);
        for kind in kinds {
            line.take_from(Generator::new(&kind.load.templates, kind.load.patches), kind.input);
            if let Err(error) = line.check(&kind.load.expected) {
                panic!("{}: {error:#}", kind.name);
            }
        }
    }
}
