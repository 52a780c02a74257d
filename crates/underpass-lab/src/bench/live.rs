//! `underpass bench live`: packets through the kernel's devices, by this kernel's own router, by Underpass,
//! and by nothing but the ports.

mod bare;
mod cases;
mod chain;
mod tcp;

use std::fmt::Write;

use anyhow::{Context, bail, ensure};
use clap::ValueEnum;
use nix::{
    sched::{CpuSet, sched_getaffinity, sched_setaffinity},
    unistd::Pid,
};
use serde::Serialize;
use underpass_daemon::testbed;
use underpass_port::live::Driver;

use super::clock::pin_to;
use cases::Case;
use chain::{Chain, Kind};
use underpass_daemon::output;

/// Measure a chain of network namespaces: generator, router, sink.
///
/// Each packet of 100 bytes goes over two veth pairs. The router has one core, for all that it does and for the
/// kernel's receiving of its packets; the generator has another. Three routers take turns: this kernel's own,
/// Underpass, and a forwarder that moves packets from port to port with the same driver and does not look at
/// them. Then TCP crosses two routers, H.Encaps and End.DT6 each way. Needs root and two cores, and leaves
/// nothing behind.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  underpass bench live
  underpass bench live --json --driver xdp")]
pub struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// How Underpass and the bare forwarder attach to the devices
    #[arg(long, value_enum, default_value = "auto")]
    driver: DriverName,
    /// How often each router has its turn; the median counts
    #[arg(long, value_name = "N", default_value = "5", value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: u16,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum DriverName {
    /// What `underpass run` chooses
    Auto,
    /// AF_XDP
    Xdp,
    /// AF_PACKET
    Packet,
}

impl DriverName {
    /// As `underpass run --driver` has it, and as the port has it.
    fn names(self) -> (&'static str, Driver) {
        match self {
            Self::Auto => ("auto", Driver::Auto),
            Self::Xdp => ("xdp", Driver::Xdp),
            Self::Packet => ("packet", Driver::Packet),
        }
    }
}

/// The figures of one case, in packets a second.
#[derive(Serialize)]
struct Record {
    name: &'static str,
    kernel_pps: f64,
    underpass_pps: f64,
    bare_pps: f64,
    /// Underpass to the kernel.
    ratio: f64,
    /// The bare forwarder to the kernel: what Underpass could reach if it did nothing.
    bare_ratio: f64,
}

/// The figures of TCP, in gigabits a second.
#[derive(Serialize)]
struct Tcp {
    kernel_gbps: f64,
    underpass_gbps: f64,
    ratio: f64,
}

#[derive(Serialize)]
struct Report {
    driver: &'static str,
    rounds: u16,
    packet_bytes: usize,
    cases: Vec<Record>,
    /// None where no stream came through.
    tcp: Option<Tcp>,
}

/// The cores of the generator and of the router.
#[derive(Clone, Copy)]
struct Cores {
    generator: usize,
    router: usize,
}

/// Measures all.
pub fn main(args: &Args) -> anyhow::Result<()> {
    if !testbed::permitted() {
        bail!("this makes network namespaces and devices: run it as root");
    }
    let everywhere = sched_getaffinity(Pid::from_raw(0))?;
    let cores = cores(&everywhere)?;
    pin_to(cores.generator)?;
    let (driver, port_driver) = args.driver.names();
    eprintln!("generator on core {}, router on core {}, driver {driver}", cores.generator, cores.router);
    let mut chains = Vec::new();
    for kind in [Kind::Kernel, Kind::Underpass(driver), Kind::Bare(port_driver)] {
        chains.push(Chain::new(kind, cores).with_context(|| kind.name())?);
    }
    let mut cases = Vec::new();
    for case in cases::all() {
        eprintln!("{} …", case.name);
        cases.push(measure(&case, &chains, args.rounds, cores).with_context(|| case.name)?);
    }
    for chain in chains {
        chain.stop()?;
    }
    eprintln!("TCP …");
    sched_setaffinity(Pid::from_raw(0), &everywhere)?;
    let streams = tcp::measure(driver, args.rounds);
    let tcp = streams.as_ref().ok().map(|&[kernel_gbps, underpass_gbps]| Tcp {
        kernel_gbps,
        underpass_gbps,
        ratio: underpass_gbps / kernel_gbps,
    });
    let report = Report { driver, rounds: args.rounds, packet_bytes: cases::LENGTH, cases, tcp };
    let text = if args.json { serde_json::to_string_pretty(&report)? + "\n" } else { table(&report)? };
    output::print(&text)?;
    streams.map(drop)
}

/// The rates of one case through each router, in turns.
fn measure(case: &Case, chains: &[Chain], rounds: u16, cores: Cores) -> anyhow::Result<Record> {
    let frames = chains.iter().take(2).map(|chain| chain.sample(&case.frame, cores));
    let frames = frames.collect::<anyhow::Result<Vec<_>>>()?;
    if let [kernel, underpass] = &frames[..] {
        ensure!(
            kernel == underpass,
            "Underpass does not send what the kernel sends:\n  kernel    {kernel:02x?}\n  underpass {underpass:02x?}"
        );
    }
    let mut rates = vec![Vec::new(); chains.len()];
    for _ in 0..rounds {
        for (chain, rates) in chains.iter().zip(&mut rates) {
            rates.push(chain.rate(&case.frame, cores)?);
        }
    }
    let medians: Vec<f64> = rates.iter_mut().map(|rates| median(rates)).collect();
    let [kernel_pps, underpass_pps, bare_pps] = medians[..] else { bail!("three routers are measured") };
    Ok(Record {
        name: case.name,
        kernel_pps,
        underpass_pps,
        bare_pps,
        ratio: underpass_pps / kernel_pps,
        bare_ratio: bare_pps / kernel_pps,
    })
}

/// The middle one.
fn median(rates: &mut [f64]) -> f64 {
    rates.sort_unstable_by(f64::total_cmp);
    rates.get(rates.len() / 2).copied().unwrap_or_default()
}

/// The first and the last core that this process may run on.
fn cores(allowed: &CpuSet) -> anyhow::Result<Cores> {
    let mut may = (0..CpuSet::count()).filter(|core| allowed.is_set(*core) == Ok(true));
    match (may.next(), may.next_back()) {
        (Some(generator), Some(router)) => Ok(Cores { generator, router }),
        _ => bail!("the generator and the router need a core each, and there is only one"),
    }
}

fn table(report: &Report) -> Result<String, std::fmt::Error> {
    let mut table = String::new();
    writeln!(
        table,
        "packets of {} bytes, thousands a second, median of {} rounds, driver {}",
        report.packet_bytes, report.rounds, report.driver
    )?;
    writeln!(
        table,
        "{:<12} {:>9} {:>10} {:>9} {:>17} {:>12}",
        "case", "kernel", "Underpass", "bare", "Underpass/kernel", "bare/kernel"
    )?;
    for case in &report.cases {
        writeln!(
            table,
            "{:<12} {:>9.0} {:>10.0} {:>9.0} {:>17.2} {:>12.2}",
            case.name,
            case.kernel_pps / 1e3,
            case.underpass_pps / 1e3,
            case.bare_pps / 1e3,
            case.ratio,
            case.bare_ratio
        )?;
    }
    if let Some(tcp) = &report.tcp {
        writeln!(
            table,
            "TCP over H.Encaps and End.DT6: kernel {:.2} Gbit/s, Underpass {:.2} Gbit/s, ratio {:.2}",
            tcp.kernel_gbps, tcp.underpass_gbps, tcp.ratio
        )?;
    }
    Ok(table)
}
