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
    pub(super) path_clocks: f64,
    /// Of `counters` alone: the standard deviation of `mpps`, which is then an average.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) mpps_deviation: Option<f64>,
    /// Of `counters` alone: the rate of the middle round against that with the counters compiled out.
    #[serde(skip_serializing_if = "Option::is_none")]
    difference_percent: Option<f64>,
    /// Of large segments alone, which `packets` then counts: their payload by time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) gbit_per_second: Option<f64>,
    /// Of several runs, of which the others are those of the middle one: the fewest clocks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) lowest_clocks: Option<f64>,
    #[serde(skip)]
    pub(super) vpp: Option<u32>,
}

impl Record {
    /// The record of a scenario that took `cost`.
    pub fn new(scenario: &Scenario, cost: &Cost, ticks_per_nanosecond: f64) -> Self {
        let path_ns = cost.path / ticks_per_nanosecond;
        Self {
            name: scenario.name.clone(),
            packets: cost.packets,
            mpps: 1e3 / path_ns,
            floor_ns: cost.floor / ticks_per_nanosecond,
            path_ns,
            path_clocks: cost.path,
            mpps_deviation: None,
            difference_percent: None,
            gbit_per_second: None,
            lowest_clocks: None,
            vpp: scenario.vpp,
        }
    }

    /// The record of large segments, each of which took `cost`.
    pub fn large(name: &str, cost: &Cost, ticks_per_nanosecond: f64) -> Self {
        let path_ns = cost.path / ticks_per_nanosecond;
        let gbit_per_second = Some(8.0 * large::PAYLOAD as f64 / path_ns);
        Self {
            name: name.to_owned(),
            packets: cost.packets,
            mpps: 1e3 / path_ns,
            path_ns,
            path_clocks: cost.path,
            gbit_per_second,
            ..Self::floor(cost, ticks_per_nanosecond)
        }
    }

    /// The record of the generator and the sink, which have no path.
    pub fn floor(cost: &Cost, ticks_per_nanosecond: f64) -> Self {
        let floor_ns = cost.floor / ticks_per_nanosecond;
        Self {
            name: super::FLOOR.to_owned(),
            packets: cost.packets,
            mpps: 1e3 / floor_ns,
            floor_ns,
            path_ns: 0.0,
            path_clocks: 0.0,
            mpps_deviation: None,
            difference_percent: None,
            gbit_per_second: None,
            lowest_clocks: None,
            vpp: None,
        }
    }

    /// The three variants of `counters`.
    pub fn counters(outcome: &Outcome, ticks: f64) -> [Self; VARIANTS.len()] {
        let [without, ..] = outcome.variants;
        std::array::from_fn(|number| {
            let variant = outcome.variants[number];
            let (mean, deviation) = variant.rate;
            Self {
                name: format!("{}-{}", super::COUNTERS, VARIANTS[number].replace(' ', "-")),
                packets: variant.packets,
                mpps: mean * ticks * 1e3,
                floor_ns: outcome.floor / ticks,
                path_ns: variant.path / ticks,
                path_clocks: variant.path,
                mpps_deviation: Some(deviation * ticks * 1e3),
                difference_percent: Some((without.path / variant.path - 1.0) * 100.0),
                gbit_per_second: None,
                lowest_clocks: None,
                vpp: None,
            }
        })
    }

    /// Of several runs of the same scenario the middle one, which knows the fewest clocks of all.
    fn middle(mut runs: Vec<Self>) -> Option<Self> {
        runs.sort_by(|one, other| one.path_clocks.total_cmp(&other.path_clocks));
        let lowest = runs.first().filter(|_| runs.len() > 1).map(|record| record.path_clocks);
        let middle = runs.len() / 2;
        let record = runs.into_iter().nth(middle)?;
        Some(Self { lowest_clocks: lowest, ..record })
    }
}

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
            "one thread on core {}, TSC {:.2} GHz; the floor is not in the path",
            self.core, self.ticks_per_nanosecond
        )?;
        writeln!(
            table,
            "{:<28} {:>9} {:>9} {:>9} {:>7} {:>6} {:>6}",
            "scenario", "Mpps", "floor ns", "path ns", "clocks", "VPP", "ratio"
        )?;
        for record in &self.records {
            write!(
                table,
                "{:<28} {:>9.2} {:>9.2} {:>9.2} {:>7.1}",
                record.name, record.mpps, record.floor_ns, record.path_ns, record.path_clocks
            )?;
            if let Some(vpp) = record.vpp {
                write!(table, " {vpp:>6} {:>6.2}", record.path_clocks / f64::from(vpp))?;
            }
            if let Some(lowest) = record.lowest_clocks {
                write!(table, "   lowest {lowest:.1}")?;
            }
            if let (Some(deviation), Some(difference)) = (record.mpps_deviation, record.difference_percent) {
                write!(table, "   ± {deviation:.2} Mpps, {difference:+.2} % against compiled out")?;
            }
            if let Some(gbit) = record.gbit_per_second {
                write!(table, "   {gbit:.1} Gbit/s of payload, for each segment of 64 KiB")?;
            }
            table.push('\n');
        }
        Ok(table)
    }
}
