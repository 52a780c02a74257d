//! `underpass bench police-vs-ifb`: what is left of the rate of packets where they are policed or shaped as they come
//! in, by a rate far above theirs.

use std::fmt::Write;

use anyhow::Context;
use serde::Serialize;

use super::super::measure::{Line, median, undisturbed};
use super::super::{checked, clock};
use super::{IFB_HTB, INGRESS_HTB, POLICE, scenario};
use underpass_daemon::output;

/// Measure how much throughput ingress policing and shaping cost when the limit is far above the load.
///
/// One thread, pinned to the last core; packets of 100 bytes from memory, in bursts of 64. All ways have their turn in
/// each round, each begins every fourth round; all take the same packets in the same memory. A rate counts everything: the generator, the path and the sink.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// How often each way has its turn
    #[arg(long, value_name = "N", default_value = "200", value_parser = clap::value_parser!(u16).range(4..=10_000))]
    rounds: u16,
}

/// The ways, and how each configures the port that packets come in by.
const WAYS: [(&str, &str, &str); 4] = [
    ("none", "no limit", ""),
    ("police", "police at ingress", POLICE),
    ("ifb", "redirected to an ifb with HTB", IFB_HTB),
    ("ingress-htb", "HTB on the ingress hook", INGRESS_HTB),
];

/// What came of one way.
#[derive(Serialize)]
struct Record {
    name: &'static str,
    packets: u64,
    /// Millions of packets a second, all counted: the median of the rounds, and their standard deviation.
    mpps: f64,
    mpps_deviation: f64,
    /// Of the rate without a limit: the median of the rounds' own shares, and their standard deviation.
    share_percent: f64,
    share_deviation: f64,
    /// What the path alone takes, in clocks.
    path_clocks: f64,
    #[serde(skip)]
    title: &'static str,
}

/// How long a turn takes, about, in nanoseconds.
const TURN: f64 = 1e6;

/// Measures, and prints a table.
///
/// # Errors
/// A way cannot be configured, or a packet comes out wrong or not at all.
pub fn main(args: &Args) -> anyhow::Result<()> {
    let core = clock::pin().context("this thread cannot be kept on one core")?;
    let ticks = clock::ticks_per_nanosecond();
    eprintln!("core {core}, {ticks:.2} GHz time-stamp counter");
    let records = measure(args.rounds.into(), ticks)?;
    if args.json {
        return Ok(output::print(&format!("{}\n", serde_json::to_string_pretty(&records)?))?);
    }
    let mut text = format!("{:30} {:>16} {:>18} {:>12}\n", "", "Mpps", "of no limit", "path, clocks");
    for Record { title, mpps, mpps_deviation, share_percent, share_deviation, path_clocks, .. } in &records {
        writeln!(
            text,
            "{title:30} {mpps:8.2} ± {mpps_deviation:5.2} {share_percent:8.1} % ± {share_deviation:4.1} {path_clocks:12.1}"
        )?;
    }
    Ok(output::print(&text)?)
}

fn measure(rounds: usize, ticks: f64) -> anyhow::Result<Vec<Record>> {
    let mut lines = Vec::new();
    for (name, _, config) in WAYS {
        lines.push(checked(&scenario(name, config)).context(name)?.0);
    }
    let (first, others) = lines.split_first_mut().context("no way")?;
    let bursts = first.bursts(ticks, TURN)?;
    for line in &mut *others {
        with_packets_of(first, line, |line| warm(line, bursts))?;
    }
    let mut turns = vec![Vec::new(); WAYS.len()];
    let mut floors = Vec::new();
    for round in 0..rounds {
        for turn in 0..WAYS.len() {
            let way = (round + turn) % WAYS.len();
            let ticks = match way.checked_sub(1).and_then(|other| others.get_mut(other)) {
                Some(line) => with_packets_of(first, line, |line| undisturbed(|| line.path(bursts)))?,
                None => {
                    floors.push(undisturbed(|| first.floor(bursts))?);
                    undisturbed(|| first.path(bursts))?
                }
            };
            if let Some(turns) = turns.get_mut(way) {
                turns.push(ticks);
            }
        }
    }
    let packets = bursts * 64;
    let floor = median(&mut floors) as f64 / packets as f64;
    let unlimited = turns.first().cloned().unwrap_or_default();
    let record = |((name, title, _), turns): (_, Vec<u64>)| {
        let rates: Vec<f64> = turns.iter().map(|t| packets as f64 * ticks * 1e3 / *t as f64).collect();
        let shares: Vec<f64> =
            unlimited.iter().zip(&turns).map(|(all, t)| 100.0 * *all as f64 / *t as f64).collect();
        let path_clocks = median(&mut turns.clone()) as f64 / packets as f64 - floor;
        Record {
            name,
            packets: packets * turns.len() as u64,
            mpps: middle(&rates),
            mpps_deviation: deviation(&rates),
            share_percent: middle(&shares),
            share_deviation: deviation(&shares),
            path_clocks,
            title,
        }
    };
    Ok(WAYS.into_iter().zip(turns).map(record).collect())
}

/// Has a way take the packets of the first, in the same memory: other memory is often several per cent slower.
fn with_packets_of<R>(
    first: &mut Line<true>,
    line: &mut Line<true>,
    what: impl FnOnce(&mut Line<true>) -> R,
) -> R {
    line.exchange_packets(first);
    let result = what(line);
    line.exchange_packets(first);
    result
}

fn warm(line: &mut Line<true>, bursts: u64) -> anyhow::Result<()> {
    line.path(8 * bursts).map(|_| ())
}

fn middle(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or_default()
}

/// The standard deviation.
fn deviation(values: &[f64]) -> f64 {
    let count = values.len().max(1) as f64;
    let mean = values.iter().sum::<f64>() / count;
    (values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / count).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_ways_let_all_packets_pass() {
        let records = measure(4, 1.0).unwrap();
        assert!(records.iter().all(|record| record.mpps > 0.0 && record.share_percent > 1.0));
    }

    #[test]
    fn of_numbers() {
        let values = [2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0];
        assert_eq!((middle(&values), deviation(&values)), (5.0, 2.0));
    }
}
