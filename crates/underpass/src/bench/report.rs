//! The figures, as a table for people or as JSON.

use std::fmt::{self, Write};

use serde::Serialize;

use super::counters::{Outcome, VARIANTS};
use super::large;
use super::measure::Cost;
use super::scenario::Scenario;
use crate::output;

/// What was measured of one scenario.
#[derive(Serialize)]
pub struct Record {
    name: String,
    packets: u64,
    mpps: f64,
    floor_ns: f64,
    path_ns: f64,
    path_clocks: f64,
    /// Of `counters` alone: the standard deviation of `mpps`, which is then an average.
    #[serde(skip_serializing_if = "Option::is_none")]
    mpps_deviation: Option<f64>,
    /// Of `counters` alone: the rate of the middle round against that with the counters compiled out.
    #[serde(skip_serializing_if = "Option::is_none")]
    difference_percent: Option<f64>,
    /// Of large segments alone, which `packets` then counts: their payload by time.
    #[serde(skip_serializing_if = "Option::is_none")]
    gbit_per_second: Option<f64>,
    #[serde(skip)]
    vpp: Option<u32>,
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
            vpp: None,
        }
    }
}

/// All that was measured.
pub struct Report {
    json: bool,
    core: usize,
    ticks_per_nanosecond: f64,
    records: Vec<Record>,
}

impl Report {
    pub fn new(json: bool, core: usize, ticks_per_nanosecond: f64) -> Self {
        Self { json, core, ticks_per_nanosecond, records: Vec::new() }
    }

    pub fn add(&mut self, record: Record) {
        self.records.push(record);
    }

    /// The three variants of `counters`.
    pub fn add_counters(&mut self, outcome: &Outcome) {
        let ticks = self.ticks_per_nanosecond;
        let [without, ..] = outcome.variants;
        for (name, variant) in VARIANTS.iter().zip(outcome.variants) {
            let (mean, deviation) = variant.rate;
            self.records.push(Record {
                name: format!("{}-{}", super::COUNTERS, name.replace(' ', "-")),
                packets: variant.packets,
                mpps: mean * ticks * 1e3,
                floor_ns: outcome.floor / ticks,
                path_ns: variant.path / ticks,
                path_clocks: variant.path,
                mpps_deviation: Some(deviation * ticks * 1e3),
                difference_percent: Some((without.path / variant.path - 1.0) * 100.0),
                gbit_per_second: None,
                vpp: None,
            });
        }
    }

    /// Writes it to standard output.
    ///
    /// # Errors
    /// A figure that JSON has no way to write; those of writing.
    pub fn print(&self) -> anyhow::Result<()> {
        let text =
            if self.json { serde_json::to_string_pretty(&self.records)? + "\n" } else { self.table()? };
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
