//! `underpass bench live`: packets through the kernel's devices, by this kernel's own router and by Underpass, with its
//! workers alone and with its fast path in the kernel.

mod cases;
mod chain;
mod report;
mod tcp;
mod threads;

use anyhow::{Context, bail, ensure};
use clap::ValueEnum;
use nix::{
    sched::{CpuSet, sched_getaffinity, sched_setaffinity},
    unistd::Pid,
};
use serde::Serialize;
use underpass_daemon::{output, testbed};

use super::clock::pin_to;
use super::matches;
use cases::{Case, Network};
use chain::{Chain, Rate};
use report::{Figures, Record, Report, SinkReport};
use threads::{Rank, rank, unrank};

/// Measure a chain of network namespaces: generator, router, sink; and TCP through two routers.
///
/// Each packet of 100 bytes goes over two veth pairs. The router has one core, for all that it does and for the
/// kernel's receiving of its packets; the generator has another. Three routers take turns: this kernel's own,
/// Underpass with --fast-path off, and Underpass with its fast path in the kernel. Each has two sinks. The plain one
/// drops packets in IPv6, as they are for another station; its device is in the router's namespace, so that the fast
/// path leaves by a plain redirect. The neighbour drops them at tcx; it is in a namespace of its own, so that the
/// fast path leaves by a peer redirect. Underpass with --fast-path xdp has a third: a neighbour that drops packets in
/// its device's driver, beside the kernel's router with the one at tcx. In the case bridge the three routers are
/// bridges that know both stations. Then TCP crosses two routers. Needs root and two cores, and leaves nothing behind.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  underpass bench live
  underpass bench live IPv6 'End*'
  underpass bench live --json --driver xdp")]
pub struct Args {
    /// Cases, or TCP; a trailing * matches anything [default: all]
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// How the router without the fast path attaches to its devices
    #[arg(long, value_enum, default_value = "packet")]
    driver: DriverName,
    /// How often each router has its turn; the median counts
    #[arg(long, value_name = "N", default_value = "9", value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: u16,
}

#[derive(Clone, Copy, Debug, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
enum DriverName {
    /// AF_XDP
    Xdp,
    /// AF_PACKET
    Packet,
}

impl DriverName {
    /// As a heading has it.
    fn title(self) -> &'static str {
        match self {
            Self::Xdp => "AF_XDP",
            Self::Packet => "AF_PACKET",
        }
    }
}

/// What TCP is called among the cases.
const TCP: &str = "TCP";

/// Which router forwards.
#[derive(Clone, Copy)]
enum Kind {
    Kernel,
    /// Underpass, whose workers carry every packet.
    Workers(DriverName),
    /// Underpass with its fast path.
    FastPath,
    /// Underpass with its fast path in the drivers of devices.
    InDriver,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Kernel => "the kernel's router",
            Self::Workers(_) => "Underpass without the fast path",
            Self::FastPath => "Underpass with the fast path",
            Self::InDriver => "Underpass with the fast path in drivers",
        }
    }

    /// Those of `underpass run`. `None`: there is no such router.
    fn arguments(self) -> Option<&'static [&'static str]> {
        match self {
            Self::Kernel => None,
            Self::Workers(DriverName::Packet) => Some(&["--fast-path", "off", "--driver", "packet"]),
            Self::Workers(DriverName::Xdp) => Some(&["--fast-path", "off", "--driver", "xdp"]),
            Self::FastPath => Some(&["--fast-path", "auto"]),
            Self::InDriver => Some(&["--fast-path", "xdp"]),
        }
    }
}

/// Where packets end.
#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum SinkKind {
    /// In the kernel's IPv6, as it is not the station that they are for.
    Plain,
    /// At tcx, in the station that they are for.
    Neighbour,
    /// In the driver of the station that they are for.
    Driver,
}

/// The cores of the generator and of the router.
#[derive(Clone, Copy)]
struct Cores {
    generator: usize,
    router: usize,
}

/// Measures all.
pub fn main(args: &Args) -> anyhow::Result<()> {
    let cases = cases::all();
    let names: Vec<&str> = cases.iter().map(|case| case.name).chain([TCP]).collect();
    for asked in &args.names {
        if !names.iter().any(|name| matches(asked, name)) {
            bail!("no case is called '{asked}'; there are {}", names.join(", "));
        }
    }
    let wanted = |name: &str| args.names.is_empty() || args.names.iter().any(|asked| matches(asked, name));
    if !testbed::permitted() {
        bail!("this makes network namespaces and devices: run it as root");
    }
    let cases: Vec<Case> = cases.into_iter().filter(|case| wanted(case.name)).collect();
    let of = |network: Network| cases.iter().filter(move |case| case.network == network);
    let mut report = Report {
        driver: args.driver,
        rounds: args.rounds,
        packet_bytes: cases::LENGTH,
        sinks: Vec::new(),
        cases: Vec::new(),
        tcp: Vec::new(),
    };
    for network in Network::ALL.into_iter().filter(|network| of(*network).next().is_some()) {
        packets(args, (network, &of(network).collect::<Vec<_>>()), &mut report)?;
    }
    let mut streams = Ok(());
    if wanted(TCP) {
        let measured = tcp::measure(args.driver, args.rounds);
        streams = measured.map(|rows| report.tcp = rows);
    }
    let text = if args.json { serde_json::to_string_pretty(&report)? + "\n" } else { report.table()? };
    output::print(&text)?;
    streams
}

/// Packets through all chains.
fn packets(args: &Args, (network, cases): (Network, &[&Case]), report: &mut Report) -> anyhow::Result<()> {
    let everywhere = sched_getaffinity(Pid::from_raw(0))?;
    let cores = cores(&everywhere)?;
    pin_to(cores.generator)?;
    eprintln!("generator on core {}, router on core {}", cores.generator, cores.router);
    let mut sinks = Vec::new();
    let workers = Kind::Workers(args.driver);
    for sink in [SinkKind::Plain, SinkKind::Neighbour, SinkKind::Driver] {
        let mut chains = Vec::new();
        let mut leaving = None;
        let kinds: &[(Kind, SinkKind)] = match sink {
            // What the kernel's own router sends would have to be made into other buffers there.
            SinkKind::Driver => &[(Kind::Kernel, SinkKind::Neighbour), (Kind::InDriver, sink)],
            SinkKind::Plain | SinkKind::Neighbour => {
                &[(Kind::Kernel, sink), (workers, sink), (Kind::FastPath, sink)]
            }
        };
        for (kind, at) in kinds.iter().copied() {
            let chain = Chain::new(kind, at, network, cores).with_context(|| kind.name())?;
            if matches!(kind, Kind::FastPath | Kind::InDriver) {
                match chain.leaving()? {
                    Ok(by) => leaving = Some(by),
                    Err(why) => {
                        eprintln!("no fast path: {why}");
                        chain.stop()?;
                        continue;
                    }
                }
            }
            chains.push(chain);
        }
        if report.sinks.iter().all(|known| known.sink != sink) {
            report.sinks.push(SinkReport { sink, fast_path: leaving });
        }
        sinks.push((sink, chains));
    }
    for case in cases {
        for (sink, chains) in &sinks {
            eprintln!("{}, {} sink …", case.name, sink.name());
            let record = measure(case, (*sink, chains), args.rounds, cores).with_context(|| case.name)?;
            report.cases.push(record);
        }
    }
    for chain in sinks.into_iter().flat_map(|(_, chains)| chains) {
        chain.stop()?;
    }
    sched_setaffinity(Pid::from_raw(0), &everywhere)?;
    Ok(())
}

impl SinkKind {
    fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Neighbour => "neighbour",
            Self::Driver => "driver",
        }
    }
}

/// The rates of one case through each router with the same sink, in turns.
fn measure(
    case: &Case,
    (sink, chains): (SinkKind, &[Chain]),
    rounds: u16,
    cores: Cores,
) -> anyhow::Result<Record> {
    let mut kernel: Option<Vec<u8>> = None;
    for chain in chains {
        let frame = chain.sample(&case.frame, cores).with_context(|| chain.kind.name())?;
        let kernel = kernel.get_or_insert_with(|| frame.clone());
        ensure!(
            frame == *kernel,
            "{} does not send what the kernel sends:\n  kernel    {kernel:02x?}\n  Underpass {frame:02x?}",
            chain.kind.name()
        );
    }
    let mut rates: Vec<Vec<Rate>> = vec![Vec::new(); chains.len()];
    // What measures is on the generator's core.
    rank(0, Rank::Before);
    let measured = (0..rounds).try_for_each(|round| {
        let mut turns: Vec<_> = chains.iter().zip(&mut rates).collect();
        if round % 2 == 1 {
            turns.reverse();
        }
        turns.into_iter().try_for_each(|(chain, rates)| {
            rates.push(chain.rate(&case.frame, cores).with_context(|| chain.kind.name())?);
            anyhow::Ok(())
        })
    });
    unrank();
    measured?;
    let figures = |wanted: fn(Kind) -> bool| -> Option<Figures> {
        let of = chains.iter().position(|chain| wanted(chain.kind))?;
        let (own, kernel) = (rates.get(of)?, rates.first()?);
        let each = |figure: fn(&Rate) -> f64| own.iter().map(figure).collect();
        let ratios = own.iter().zip(kernel).map(|(own, kernel)| own.per_cpu_second / kernel.per_cpu_second);
        Some(Figures {
            pps: median(each(|rate| rate.pps)),
            per_cpu_second: median(each(|rate| rate.per_cpu_second)),
            ratio: median(ratios.collect()),
        })
    };
    Ok(Record {
        name: case.name,
        sink,
        kernel: figures(|kind| matches!(kind, Kind::Kernel)).context("the kernel's router is missing")?,
        workers: figures(|kind| matches!(kind, Kind::Workers(_))),
        fast_path: figures(|kind| matches!(kind, Kind::FastPath | Kind::InDriver)),
    })
}

/// The middle one.
pub(super) fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_unstable_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or_default()
}

/// The first and the last core that this process may run on.
fn cores(allowed: &CpuSet) -> anyhow::Result<Cores> {
    let mut may = (0..CpuSet::count()).filter(|core| allowed.is_set(*core) == Ok(true));
    match (may.next(), may.next_back()) {
        (Some(generator), Some(router)) => Ok(Cores { generator, router }),
        _ => bail!("the generator and the router need a core each, and there is only one"),
    }
}
