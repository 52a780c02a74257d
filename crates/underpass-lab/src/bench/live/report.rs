//! What was measured, as JSON and as tables.

use std::fmt::{self, Write};

use serde::Serialize;

use super::{DriverName, SinkKind};

/// A router's packets of one case.
#[derive(Serialize)]
pub(super) struct Figures {
    /// Packets a second, on a core that is the router's.
    pub pps: f64,
    /// Packets a second of the router's threads.
    pub per_cpu_second: f64,
    /// The same to the kernel's, in the same round.
    pub ratio: f64,
}

/// One case with one sink.
#[derive(Serialize)]
pub(super) struct Record {
    pub name: &'static str,
    pub sink: SinkKind,
    pub kernel: Figures,
    /// Underpass without its fast path. `None`: not measured with this sink.
    pub workers: Option<Figures>,
    /// Underpass with it. `None`: this kernel cannot.
    pub fast_path: Option<Figures>,
}

#[derive(Serialize)]
pub(super) struct SinkReport {
    pub sink: SinkKind,
    /// How the fast path leaves: `tcx`, a plain redirect, or `tcx-peer`, a peer redirect; `xdp`, from driver to driver.
    pub fast_path: Option<String>,
}

/// The figures of TCP through one kind of router, in gigabits a second.
#[derive(Clone, Serialize)]
pub(super) struct Stream {
    pub gbps: f64,
    /// To the base's in the same round.
    pub ratio: f64,
    /// Which part of what the first router had to carry the fast path carried.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub carried: Option<f64>,
}

/// TCP over one thing.
#[derive(Serialize)]
pub(super) struct TcpRecord {
    pub name: &'static str,
    /// What the ratios are to: the kernel's streams over this.
    pub base: &'static str,
    /// `None`: the kernel is not asked, as it may not have it.
    pub kernel: Option<Stream>,
    pub workers: Stream,
    pub fast_path: Option<Stream>,
}

#[derive(Serialize)]
pub(super) struct Report {
    /// Of the router without the fast path.
    pub driver: DriverName,
    pub rounds: u16,
    pub packet_bytes: usize,
    pub sinks: Vec<SinkReport>,
    pub cases: Vec<Record>,
    pub tcp: Vec<TcpRecord>,
}

impl Report {
    pub(super) fn table(&self) -> Result<String, fmt::Error> {
        let mut table = String::new();
        let driver = self.driver.title();
        for SinkReport { sink, fast_path } in &self.sinks {
            writeln!(
                table,
                "{} sink: packets of {} bytes, thousands a second of the router's CPU time, median of {} rounds",
                sink.name(),
                self.packet_bytes,
                self.rounds
            )?;
            writeln!(
                table,
                "{:<12} {:>9} {driver:>10} {:>6} {:>10} {:>6}",
                "case",
                "kernel",
                "ratio",
                fast_path.as_deref().unwrap_or("fast path"),
                "ratio"
            )?;
            for case in self.cases.iter().filter(|case| case.sink == *sink) {
                write!(table, "{:<12} {:>9.0}", case.name, case.kernel.per_cpu_second / 1e3)?;
                for figures in [&case.workers, &case.fast_path] {
                    match figures {
                        Some(Figures { per_cpu_second, ratio, .. }) => {
                            write!(table, " {:>10.0} {ratio:>6.2}", per_cpu_second / 1e3)?;
                        }
                        None => write!(table, " {:>10} {:>6}", "-", "-")?,
                    }
                }
                writeln!(table)?;
            }
            writeln!(table)?;
        }
        if !self.tcp.is_empty() {
            writeln!(
                table,
                "TCP through two routers: Gbit/s, median of {} rounds; ratios to the kernel's streams over the base",
                self.rounds
            )?;
            writeln!(
                table,
                "{:<6} {:>9} {driver:>10} {:>6} {:>10} {:>6} {:>9}  base",
                "over", "kernel", "ratio", "fast path", "ratio", "carried"
            )?;
        }
        for row in &self.tcp {
            let kernel = row.kernel.as_ref().map_or("-".to_owned(), |stream| format!("{:.2}", stream.gbps));
            write!(
                table,
                "{:<6} {kernel:>9} {:>10.2} {:>6.2}",
                row.name, row.workers.gbps, row.workers.ratio
            )?;
            match &row.fast_path {
                Some(Stream { gbps, ratio, carried }) => {
                    let carried = carried.map_or("-".to_owned(), |part| format!("{:.0} %", 100.0 * part));
                    write!(table, " {gbps:>10.2} {ratio:>6.2} {carried:>9}")?;
                }
                None => write!(table, " {:>10} {:>6} {:>9}", "-", "-", "-")?,
            }
            writeln!(table, "  {}", row.base)?;
        }
        Ok(table)
    }
}
