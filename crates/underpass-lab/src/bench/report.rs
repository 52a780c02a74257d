//! The figures, as a table for people, as JSON or as a page.

use std::fmt::{self, Write};

use serde::Serialize;

use super::counters::{Outcome, VARIANTS};
use super::large;
use super::measure::Cost;
use super::page;
use super::scenario::Scenario;
use underpass_daemon::{output, processor};

/// What was measured of one scenario.
#[derive(Serialize)]
pub struct Record {
    pub(super) name: String,
    packets: u64,
    pub(super) mpps: f64,
    floor_ns: f64,
    path_ns: f64,
    /// Ticks of the time-stamp counter, which do not change with the core's speed.
    pub(super) path_ticks: f64,
    /// Cycles of the core; none where it cannot be told how fast it runs.
    pub(super) path_cycles: Option<f64>,
    /// The same with the sink: what VPP's figures have in them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) with_sink_cycles: Option<f64>,
    /// Whether another thread had a part of the core: another guest's, or one of this machine.
    pub(super) core_shared: Option<bool>,
    /// Of `counters` alone: the standard deviation of `mpps`, which is then an average.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) mpps_deviation: Option<f64>,
    /// Of `counters` alone: the rate of the middle round against that with the counters compiled out.
    #[serde(skip_serializing_if = "Option::is_none")]
    difference_percent: Option<f64>,
    /// Of large segments alone, which `packets` then counts: their payload by time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) gbit_per_second: Option<f64>,
    /// Of several runs, of which the others are those of the middle one: the fewest cycles.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) lowest_cycles: Option<f64>,
    /// VPP's cycles.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) vpp: Option<u32>,
}

impl Record {
    /// The record of what took `cost`; `sink`: what giving a buffer back takes, in cycles.
    fn of(name: String, cost: &Cost, ticks_per_nanosecond: f64, sink: Option<f64>) -> Self {
        let path_ns = cost.path / ticks_per_nanosecond;
        let path_cycles = cost.pace.map(|pace| cost.path * pace.cycles_per_tick);
        Self {
            name,
            packets: cost.packets,
            mpps: 1e3 / path_ns,
            floor_ns: cost.floor / ticks_per_nanosecond,
            path_ns,
            path_ticks: cost.path,
            path_cycles,
            with_sink_cycles: path_cycles.zip(sink).map(|(path, sink)| path + sink),
            core_shared: cost.pace.map(|pace| pace.shared()),
            mpps_deviation: None,
            difference_percent: None,
            gbit_per_second: None,
            lowest_cycles: None,
            vpp: None,
        }
    }

    /// The record of a scenario that took `cost`.
    pub fn new(scenario: &Scenario, cost: &Cost, ticks_per_nanosecond: f64, sink: Option<f64>) -> Self {
        Self { vpp: scenario.vpp, ..Self::of(scenario.name.clone(), cost, ticks_per_nanosecond, sink) }
    }

    /// The record of large segments, each of which took `cost`.
    pub fn large(name: &str, cost: &Cost, ticks_per_nanosecond: f64) -> Self {
        let record = Self::of(name.to_owned(), cost, ticks_per_nanosecond, None);
        Self { gbit_per_second: Some(8.0 * large::PAYLOAD as f64 / record.path_ns), ..record }
    }

    /// The record of the generator and the sink, which have no path.
    pub fn floor(cost: &Cost, ticks_per_nanosecond: f64) -> Self {
        let record = Self::of(super::FLOOR.to_owned(), cost, ticks_per_nanosecond, None);
        Self { mpps: 1e3 / record.floor_ns, path_ns: 0.0, path_ticks: 0.0, path_cycles: Some(0.0), ..record }
    }

    /// The three variants of `counters`.
    pub fn counters(outcome: &Outcome, ticks: f64) -> [Self; VARIANTS.len()] {
        let [without, ..] = outcome.variants;
        std::array::from_fn(|number| {
            let variant = outcome.variants[number];
            let (mean, deviation) = variant.rate;
            let name = format!("{}-{}", super::COUNTERS, VARIANTS[number].replace(' ', "-"));
            let cost = Cost {
                packets: variant.packets,
                floor: outcome.floor,
                path: variant.path,
                pace: outcome.pace,
            };
            Self {
                mpps: mean * ticks * 1e3,
                mpps_deviation: Some(deviation * ticks * 1e3),
                difference_percent: Some((without.path / variant.path - 1.0) * 100.0),
                ..Self::of(name, &cost, ticks, None)
            }
        })
    }

    /// A star where the core was shared.
    pub(super) fn mark(&self) -> &'static str {
        if self.core_shared == Some(true) { "*" } else { " " }
    }

    /// What a packet takes beside what VPP takes, whose figure has a sink. None where one of them is not known.
    pub(super) fn ratio(&self) -> Option<f64> {
        self.with_sink_cycles.zip(self.vpp).map(|(cycles, vpp)| cycles / f64::from(vpp))
    }

    /// Of several runs of the same scenario the middle one, which knows the fewest cycles of all.
    fn middle(mut runs: Vec<Self>) -> Option<Self> {
        let cycles = |record: &Self| record.path_cycles.unwrap_or(record.path_ticks);
        runs.sort_by(|one, other| cycles(one).total_cmp(&cycles(other)));
        let lowest = runs.first().filter(|_| runs.len() > 1).map(cycles);
        let middle = runs.len() / 2;
        let record = runs.into_iter().nth(middle)?;
        Some(Self { lowest_cycles: lowest, ..record })
    }
}

/// What a star beside a figure says.
pub(super) const SHARED: &str =
    "another thread had a part of the core meanwhile: another guest's, or one of this machine";

/// How the figures are written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// For people.
    Table,
    Json,
    /// As a page of the docs.
    Markdown,
}

/// All that was measured.
pub struct Report {
    pub(super) core: usize,
    pub(super) ticks_per_nanosecond: f64,
    pub(super) runs: usize,
    pub(super) records: Vec<Record>,
}

impl Report {
    /// Of so many runs, each of the same scenarios in the same order.
    pub fn new(core: usize, ticks_per_nanosecond: f64, runs: Vec<Vec<Record>>) -> Self {
        let number = runs.len();
        let mut columns: Vec<Vec<Record>> = Vec::new();
        for run in runs {
            columns.resize_with(run.len(), Vec::new);
            columns.iter_mut().zip(run).for_each(|(column, record)| column.push(record));
        }
        let records = columns.into_iter().filter_map(Record::middle).collect();
        Self { core, ticks_per_nanosecond, runs: number, records }
    }

    /// Writes it to standard output. `command`: what it is printed by.
    ///
    /// # Errors
    /// A figure that JSON has no way to write; those of writing.
    pub fn print(&self, form: Form, command: &str) -> anyhow::Result<()> {
        let text = match form {
            Form::Table => self.table()?,
            Form::Json => serde_json::to_string_pretty(&self.records)? + "\n",
            Form::Markdown => page::of(self, command, &processor::name())?,
        };
        Ok(output::print(&text)?)
    }

    fn table(&self) -> Result<String, fmt::Error> {
        let mut table = String::new();
        writeln!(
            table,
            "one thread on core {}, TSC {:.2} GHz; the floor is not in the path; VPP and the ratio to it: with the sink",
            self.core, self.ticks_per_nanosecond
        )?;
        writeln!(
            table,
            "{:<28} {:>9} {:>9} {:>9} {:>7} {:>8} {:>6} {:>6}",
            "scenario", "Mpps", "floor ns", "path ns", "ticks", "cycles", "VPP", "ratio"
        )?;
        for record in &self.records {
            write!(
                table,
                "{:<28} {:>9.2} {:>9.2} {:>9.2} {:>7.1} {:>7}{}",
                record.name,
                record.mpps,
                record.floor_ns,
                record.path_ns,
                record.path_ticks,
                record.path_cycles.map_or(String::new(), |cycles| format!("{cycles:.1}")),
                record.mark()
            )?;
            if let (Some(vpp), Some(ratio)) = (record.vpp, record.ratio()) {
                write!(table, " {vpp:>6} {ratio:>6.2}")?;
            }
            if let Some(lowest) = record.lowest_cycles {
                write!(table, "   lowest {lowest:.1}")?;
            }
            if let (Some(deviation), Some(difference)) = (record.mpps_deviation, record.difference_percent) {
                write!(table, "   ± {deviation:.2} Mpps, {difference:+.2} % against compiled out")?;
            }
            if let Some(gbit) = record.gbit_per_second {
                write!(table, "   {gbit:.1} Gbit/s of payload, for each segment of 64 KiB")?;
            }
            table.truncate(table.trim_end().len());
            table.push('\n');
        }
        if self.records.iter().any(|record| record.core_shared == Some(true)) {
            writeln!(table, "* {SHARED}")?;
        }
        Ok(table)
    }
}
