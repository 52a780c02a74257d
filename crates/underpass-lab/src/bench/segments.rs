//! `underpass bench segments`: what a packet costs by the number of segments put on it, with the room for
//! them reserved, and moved twice as Linux did.

mod cases;
mod double;
pub mod plot;

use std::fmt::{self, Write};
use std::fs;
use std::net::Ipv6Addr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, bail, ensure};
use clap::ValueEnum;
use serde::Serialize;
use underpass_daemon::offline::Offline;
use underpass_engine::buffer::{BURST, HEADROOM, Packet, Pool};
use underpass_engine::counters::Counters;
use underpass_engine::worker::{Burst, Worker};
use underpass_port::memory::Generator;

use super::measure::{BUFFERS, IN, OUT, difference, floor, undisturbed};
use super::scenario::{BASE, Flow, HOPS, SOURCE, flows, incoming};
use super::{clock, configure_lines, matches};
use crate::random::Random;
use cases::{CASES, Case, MOST};
use double::XL710;
use underpass_daemon::output;

/// Measure the cost of inserting 1 to 30 segments into a packet of 100 bytes.
///
/// Twice: by this router, which has the room for the headers in front of every packet; and with the order
/// of checks that Linux had until 6.14 modelled around it, in buffers with the headroom of Intel XL710. A first
/// check makes room for the headers, and where too little is left for the link layer, a second moves
/// the packet again. One thread, pinned to the last core; every count and both models have their turn in each
/// round, in random order, and the fastest of their rounds counts.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  underpass bench segments
  underpass bench segments --svg before.svg --model double
  underpass bench segments --json srv6-encap srv6-inline")]
pub struct Args {
    /// Cases; a * at the end stands for anything [default: all]
    #[arg(value_name = "CASE")]
    names: Vec<String>,
    /// Only this model [default: both]
    #[arg(long, value_enum)]
    model: Option<Model>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Where the plot is written
    #[arg(long, value_name = "FILE", default_value = "segments.svg")]
    svg: PathBuf,
    /// How often each count has its turn
    #[arg(long, value_name = "N", default_value = "201", value_parser = clap::value_parser!(u16).range(1..=10_000))]
    rounds: u16,
}

/// How a packet gets room for headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
enum Model {
    /// As this router does
    Ours,
    /// Checked twice, as Linux did
    Double,
}

impl Model {
    const ALL: [Self; 2] = [Self::Ours, Self::Double];

    fn name(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::Double => "double",
        }
    }
}

/// What one count of segments costs.
#[derive(Serialize)]
struct Point {
    segments: usize,
    /// Bytes that a packet becomes longer by.
    header_bytes: usize,
    mpps: f64,
    path_ns: f64,
    path_clocks: f64,
    /// Times that a packet was moved.
    moves: u64,
}

/// The counts of one case in one model.
#[derive(Serialize)]
struct Curve {
    model: Model,
    points: Vec<Point>,
    /// The cost of a segment: the median of the slopes between any two points.
    segment_ns: f64,
    /// By how much a point differs most from the one before it, beyond that cost.
    largest_step_percent: f64,
    /// The number of segments of that point.
    largest_step_at: usize,
}

#[derive(Serialize)]
struct Outcome {
    case: &'static str,
    curves: Vec<Curve>,
    #[serde(skip)]
    title: &'static str,
}

/// How many different packets there are for each count.
const FLOWS: usize = 256;

/// How long a round of one count takes, about, in nanoseconds, and how many bursts warm it up.
const ROUND: f64 = 2e5;
const WARM: u64 = 4;

/// Measures what is asked for.
pub fn main(args: &Args) -> anyhow::Result<()> {
    let names = || CASES.iter().map(|case| case.name);
    for asked in &args.names {
        if !names().any(|name| matches(asked, name)) {
            bail!("no case is called '{asked}'; there are {}", names().collect::<Vec<_>>().join(", "));
        }
    }
    let wanted =
        |case: &Case| args.names.is_empty() || args.names.iter().any(|asked| matches(asked, case.name));
    let models: Vec<Model> =
        Model::ALL.into_iter().filter(|model| args.model.is_none_or(|asked| asked == *model)).collect();
    let mut rig = Rig::new()?;
    let core = clock::pin().context("this thread cannot be kept on one core")?;
    let ticks = clock::ticks_per_nanosecond();
    eprintln!("core {core}, {ticks:.2} GHz time-stamp counter");
    let mut outcomes = Vec::new();
    for (number, case) in CASES.iter().enumerate().filter(|(_, case)| wanted(case)) {
        eprintln!("{} …", case.name);
        let curves = rig.measure(number, case, &models, args.rounds, ticks).context(case.name)?;
        outcomes.push(Outcome { case: case.name, curves, title: case.title });
    }
    fs::write(&args.svg, plot::svg(&panels(&outcomes))?).with_context(|| args.svg.display().to_string())?;
    let text = if args.json { serde_json::to_string_pretty(&outcomes)? + "\n" } else { table(&outcomes)? };
    output::print(&text)?;
    eprintln!("plot: {}", args.svg.display());
    Ok(())
}

/// The destination of a case's packets for so many segments.
fn destination(case: usize, count: usize, host: u128) -> Ipv6Addr {
    let group = ((case as u16 + 1) << 8) | count as u16;
    Ipv6Addr::from_bits(Ipv6Addr::new(0x2001, 0xdb8, group, 0, 0, 0, 0, 0).to_bits() | host)
}

/// The routes of all cases, so that all are measured with the same tables in the same memory.
fn config() -> String {
    let mut config = format!(
        "{BASE}ip ioam namespace add 1\nip sr tunsrc set {SOURCE}\nip -6 route add fc00:2::/32 via fd01::2 dev p1\n"
    );
    for (number, case) in CASES.iter().enumerate() {
        for count in 1..=MOST {
            let (prefix, route) = (destination(number, count, 0), (case.route)(count));
            config += &format!("ip -6 route add {prefix}/48 {route}\n");
        }
    }
    config
}

/// The flows of one count, as [`super::scenario`] has them, to destinations of its own.
fn flows_to(case: usize, count: usize) -> Vec<Flow> {
    let mut flows = flows();
    flows.truncate(FLOWS);
    for flow in &mut flows {
        flow.destination6 = destination(case, count, flow.destination6.to_bits() & u128::from(u64::MAX));
    }
    flows
}

/// A router, a worker and its packets.
struct Rig {
    worker: Worker,
    counters: Arc<Counters>,
    burst: Burst,
    now: u64,
    /// Moves of the model.
    moves: u64,
    _router: Offline,
}

/// What is sent in a round.
struct Traffic<'a> {
    case: &'a Case,
    count: usize,
    generators: [Generator; 2],
}

impl Traffic<'_> {
    /// What comes in buffers of this model.
    fn generator(&mut self, model: Model) -> &mut Generator {
        &mut self.generators[model as usize]
    }
}

impl Rig {
    fn new() -> anyhow::Result<Self> {
        let mut configured = configure_lines("segments", &config(), 1)?;
        let reader = configured.readers.pop().context("no reader")?;
        let counters = Arc::clone(reader.counters());
        let worker = Worker::new(configured.tables, reader, Pool::new(BUFFERS));
        Ok(Self { worker, counters, burst: Burst::new(), now: 0, moves: 0, _router: configured.router })
    }

    /// A burst through the worker, with the checks of the model; `sink` gets what comes out.
    #[inline]
    fn step(
        &mut self,
        traffic: &mut Traffic<'_>,
        model: Model,
        mut sink: impl FnMut(&mut Pool, Packet) -> anyhow::Result<()>,
    ) -> anyhow::Result<u64> {
        let Self { worker, burst, now, moves, .. } = self;
        let (header, framed) = ((traffic.case.header)(traffic.count), traffic.case.framed);
        traffic
            .generator(model)
            .receive(worker.pool(), BURST, |packet| burst.push(packet))
            .map_err(|_| anyhow::anyhow!("a packet is longer than a buffer"))?;
        // Time passes as it does at 6.4 million packets a second.
        *now += 10_000;
        if model == Model::Double {
            for packet in burst.iter_mut() {
                let moved = XL710.first(packet, worker.pool(), header, framed);
                *moves += u64::from(moved.context("no buffer to move a packet to")?);
            }
        }
        worker.process(IN, burst, *now, None);
        let (pool, sent) = worker.pool_and_sent(OUT);
        let mut count = 0;
        for mut packet in sent {
            if model == Model::Double {
                let moved = XL710.second(&mut packet, pool);
                *moves += u64::from(moved.context("no buffer to move a packet to")?);
            }
            sink(pool, packet)?;
            count += 1;
        }
        Ok(count)
    }

    /// Sends every flow once, compares what comes out, and says how often each packet was moved.
    fn check(&mut self, traffic: &mut Traffic<'_>, flows: &[Flow], model: Model) -> anyhow::Result<u64> {
        let moved = |rig: &Self| rig.moves + rig.counters.totals().buffer_moves;
        let before = moved(self);
        let (case, count) = (traffic.case, traffic.count);
        traffic.generator(model).rewind();
        for flows in flows.chunks(BURST) {
            let mut expected = flows.iter();
            let sent = self.step(traffic, model, |pool, packet| {
                let Some(flow) = expected.next() else { bail!("more packets came out than went in") };
                let expected = (case.expected)(flow, count);
                ensure!(packet.bytes() == &expected[..], "wrong {}", difference(&expected, packet.bytes()));
                pool.give(packet);
                Ok(())
            })?;
            ensure!(sent == flows.len() as u64, "of {} packets, {sent} came out", flows.len());
        }
        let moves = moved(self) - before;
        ensure!(moves.is_multiple_of(flows.len() as u64), "packets of one kind are moved differently often");
        Ok(moves / flows.len() as u64)
    }

    /// Sends so many bursts; the ticks that it took.
    fn path(&mut self, traffic: &mut Traffic<'_>, model: Model, bursts: u64) -> anyhow::Result<u64> {
        let start = clock::ticks();
        let mut sent = 0;
        for _ in 0..bursts {
            sent += self.step(traffic, model, |pool, packet| {
                pool.give(packet);
                Ok(())
            })?;
        }
        let ticks = clock::ticks() - start;
        ensure!(sent == bursts * BURST as u64, "packets are lost");
        Ok(ticks)
    }

    /// The curves of a case.
    fn measure(
        &mut self,
        number: usize,
        case: &Case,
        models: &[Model],
        rounds: u16,
        ticks_per_nanosecond: f64,
    ) -> anyhow::Result<Vec<Curve>> {
        let (mut traffics, mut turns) = (Vec::new(), Vec::new());
        for count in 1..=MOST {
            let flows = flows_to(number, count);
            let frames = || flows.iter().map(|flow| incoming(&flow.packet6(HOPS)));
            let generators =
                [HEADROOM, XL710.headroom].map(|room| Generator::new(frames(), None).with_headroom(room));
            let mut traffic = Traffic { case, count, generators };
            for &model in models {
                let what = || format!("{count} segments, {}", model.name());
                let moves = self.check(&mut traffic, &flows, model).with_context(what)?;
                let ticks = self.path(&mut traffic, model, 256)? as f64 / 256.0;
                let bursts = (ROUND * ticks_per_nanosecond / ticks).max(1.0) as u64;
                turns.push(Turn { count, model, moves, bursts, rounds: Vec::new() });
            }
            traffics.push(traffic);
        }
        let mut floors: [Vec<f64>; 2] = Default::default();
        let mut random = Random(1);
        for round in 0..rounds {
            for &model in models {
                let Some(traffic) = traffics.get_mut(usize::from(round) % MOST) else { continue };
                let (pool, burst, bursts) = (self.worker.pool(), &mut self.burst, 128);
                let generator = traffic.generator(model);
                let ticks = undisturbed(|| floor(pool, generator, burst, bursts))?;
                floors[model as usize].push(ticks as f64 / (bursts * BURST as u64) as f64);
            }
            for place in (1..turns.len()).rev() {
                turns.swap(place, random.below(place as u64 + 1) as usize);
            }
            for turn in &mut turns {
                let Some(traffic) = traffics.get_mut(turn.count - 1) else { continue };
                self.path(traffic, turn.model, WARM)?;
                let ticks = undisturbed(|| self.path(traffic, turn.model, turn.bursts))?;
                turn.rounds.push(ticks as f64 / (turn.bursts * BURST as u64) as f64);
            }
        }
        turns.sort_by_key(|turn| turn.count);
        let curve = |model: Model| {
            let floor = fastest(&floors[model as usize]);
            let points = turns.iter().filter(|turn| turn.model == model).map(|turn| {
                let path_clocks = fastest(&turn.rounds) - floor;
                let path_ns = path_clocks / ticks_per_nanosecond;
                Point {
                    segments: turn.count,
                    header_bytes: (case.header)(turn.count) + case.framed,
                    mpps: 1e3 / path_ns,
                    path_ns,
                    path_clocks,
                    moves: turn.moves,
                }
            });
            Curve::new(model, points.collect())
        };
        Ok(models.iter().copied().map(curve).collect())
    }
}

/// One count in one model, and what each of its rounds took for a packet.
struct Turn {
    count: usize,
    model: Model,
    moves: u64,
    bursts: u64,
    rounds: Vec<f64>,
}

/// The shortest: what disturbs a round only ever makes it longer.
fn fastest(values: &[f64]) -> f64 {
    values.iter().copied().min_by(f64::total_cmp).unwrap_or_default()
}

impl Curve {
    fn new(model: Model, points: Vec<Point>) -> Self {
        let costs: Vec<f64> = points.iter().map(|point| point.path_ns).collect();
        let segment_ns = slope(&costs);
        let steps = points.windows(2).filter_map(|pair| {
            let [before, after] = pair else { return None };
            let step = (after.path_ns - before.path_ns - segment_ns).abs() / before.path_ns * 100.0;
            Some((step, after.segments))
        });
        let (largest_step_percent, largest_step_at) =
            steps.max_by(|a, b| a.0.total_cmp(&b.0)).unwrap_or_default();
        Self { model, points, segment_ns, largest_step_percent, largest_step_at }
    }
}

/// The median of the slopes between any two values (Theil and Sen): a few that are off do not change it.
fn slope(values: &[f64]) -> f64 {
    let mut slopes = Vec::new();
    for (at, first) in values.iter().enumerate() {
        slopes.extend(
            (1..).zip(values.iter().skip(at + 1)).map(|(far, second)| (second - first) / f64::from(far)),
        );
    }
    slopes.sort_by(f64::total_cmp);
    slopes.get(slopes.len() / 2).copied().unwrap_or_default()
}

fn panels(outcomes: &[Outcome]) -> Vec<plot::Panel> {
    let line = |curve: &Curve| plot::Line {
        name: match curve.model {
            Model::Ours => "room asked for once".to_owned(),
            Model::Double => "checked twice, as Linux did".to_owned(),
        },
        values: curve.points.iter().map(|point| point.mpps).collect(),
    };
    let panel = |outcome: &Outcome| plot::Panel {
        title: outcome.title.to_owned(),
        lines: outcome.curves.iter().map(line).collect(),
    };
    outcomes.iter().map(panel).collect()
}

fn table(outcomes: &[Outcome]) -> Result<String, fmt::Error> {
    let mut text = String::new();
    for outcome in outcomes {
        write!(text, "{}\n{:>8} {:>6}", outcome.case, "segments", "bytes")?;
        for curve in &outcome.curves {
            write!(
                text,
                " | {:>11} {:>8} {:>6}",
                format!("{} Mpps", curve.model.name()),
                "path ns",
                "moves"
            )?;
        }
        text.push('\n');
        for count in 0..MOST {
            for (number, curve) in outcome.curves.iter().enumerate() {
                let Some(point) = curve.points.get(count) else { continue };
                if number == 0 {
                    write!(text, "{:>8} {:>6}", point.segments, point.header_bytes)?;
                }
                write!(text, " | {:>11.2} {:>8.2} {:>6}", point.mpps, point.path_ns, point.moves)?;
            }
            text.push('\n');
        }
        for curve in &outcome.curves {
            writeln!(
                text,
                "{}: {:.2} ns a segment; beyond that, neighbours differ by at most {:.1} % (at {})",
                curve.model.name(),
                curve.segment_ns,
                curve.largest_step_percent,
                curve.largest_step_at
            )?;
        }
        text.push('\n');
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is there to be seen in a plot, by what makes it: moves. None of ours, whatever the count; and where
    /// there are two of the other order, that is where it was measured to be slow.
    #[test]
    fn no_count_of_segments_is_a_step() {
        let mut rig = Rig::new().unwrap();
        for (number, case) in CASES.iter().enumerate() {
            let mut moves: [Vec<u64>; 2] = Default::default();
            for count in 1..=MOST {
                let flows = flows_to(number, count);
                let frames = || flows.iter().map(|flow| incoming(&flow.packet6(HOPS)));
                let generators =
                    [HEADROOM, XL710.headroom].map(|room| Generator::new(frames(), None).with_headroom(room));
                let mut traffic = Traffic { case, count, generators };
                for model in Model::ALL {
                    match rig.check(&mut traffic, &flows, model) {
                        Ok(count) => moves[model as usize].push(count),
                        Err(error) => panic!("{} {count} {}: {error:#}", case.name, model.name()),
                    }
                }
            }
            let [ours, double] = moves;
            assert_eq!(ours, [0; MOST], "{}", case.name);
            assert!(double.contains(&1), "{}: {double:?}", case.name);
            if case.name == "srv6-encap" {
                let twice = |count: &usize| double[count - 1] == 2;
                assert_eq!((1..=MOST).filter(twice).collect::<Vec<_>>(), [13, 17, 21, 25, 29]);
            }
        }
    }

    #[test]
    fn a_step_is_found_beyond_the_slope() {
        let point = |segments: usize, path_ns: f64| Point {
            segments,
            header_bytes: 0,
            mpps: 1e3 / path_ns,
            path_ns,
            path_clocks: 0.0,
            moves: 0,
        };
        let smooth = (1..=30).map(|count| point(count, 30.0 + 0.5 * count as f64)).collect();
        let smooth = Curve::new(Model::Ours, smooth);
        assert!((smooth.segment_ns - 0.5).abs() < 1e-9 && smooth.largest_step_percent < 1e-9);
        let stepped = (1..=30)
            .map(|count| point(count, 30.0 + 0.5 * count as f64 + if count == 13 { 12.0 } else { 0.0 }));
        let stepped = Curve::new(Model::Double, stepped.collect());
        assert!((stepped.segment_ns - 0.5).abs() < 1e-9, "{}", stepped.segment_ns);
        assert!((stepped.largest_step_percent - 12.0 / 36.0 * 100.0).abs() < 1e-9);
        assert_eq!(stepped.largest_step_at, 13);
    }
}
