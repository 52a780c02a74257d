//! TCP through GRE, IPIP and SIT, in foo-over-UDP with and without a checksum and without it, beside TCP that has
//! no tunnel. The experiment of the Linux patch series "net: foo-over-udp (fou)".
//!
//! ```text
//! h1 eth0 ── near r1 far ── far r2 near ── eth0 h2        d1 eth0 ── eth0 d2
//! ```
//! The tunnels are there all at once, each between two addresses of its own of the underlay; a host has an address
//! for each, so that what comes back takes it too. A second network of the same kind has devices that keep no
//! segments together.

mod network;
mod table;
mod transactions;

use std::{
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use nix::unistd::Pid;
use serde::Serialize;

use super::{
    meter::Shares,
    stream::{self, Carried, Ends, Flow},
};
use network::{Encapsulation, Network, TUNNELS, Tunnel};
use transactions::Round;
use underpass_daemon::output::print;
use underpass_daemon::seconds::within;

/// How many bytes go through each tunnel and back before anything is measured.
const SAMPLE: usize = 1 << 20;

/// What is measured, and how it is told.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Rounds per case; the cases alternate
    #[arg(long, value_name = "N", default_value = "5", value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    /// Seconds per measurement, after a warm-up of a quarter of that
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = within(10, 60_000))]
    time: Duration,
    /// Concurrent connections for transactions
    #[arg(long, value_name = "N", default_value = "100", value_parser = clap::value_parser!(u16).range(1..=300))]
    connections: u16,
}

/// Transactions: all rounds together.
#[derive(Clone, Copy, Debug, Serialize)]
struct Transactions {
    /// Transactions a second.
    rate: f64,
    /// Microseconds that a transaction takes: 50, 90, 95 and 99 % at most.
    latency: [f64; 4],
    cpu: Shares,
}

/// The median stream of all rounds, and transactions.
#[derive(Clone, Copy, Debug, Serialize)]
struct Figures {
    stream: Flow,
    transactions: Transactions,
}

/// A tunnel.
#[derive(Debug, Serialize)]
struct Record {
    tunnel: &'static str,
    encapsulation: &'static str,
    /// What the hosts speak.
    family: &'static str,
    carried: Carried,
    /// Bytes that the routers counted on the tunnel before it was measured: sent and received there, sent and received
    /// back.
    counted: [u64; 4],
    #[serde(flatten)]
    figures: Figures,
    /// The stream where no device keeps segments together.
    cut: Flow,
    ratios: Ratios,
    #[serde(skip)]
    which: Tunnel,
}

/// Megabits of the stream to those of another in the same round: the median of all rounds.
#[derive(Debug, Serialize)]
struct Ratios {
    /// The same tunnel without foo-over-UDP.
    no_fou: f64,
    /// The same routers without a tunnel, the same family.
    plain: f64,
    /// Two hosts without routers.
    direct: f64,
    /// The same tunnel, where no device keeps segments together.
    cut: f64,
}

/// What has no tunnel.
#[derive(Debug, Serialize)]
struct Reference {
    way: &'static str,
    #[serde(flatten)]
    figures: Figures,
}

/// What the ratios are to be, and the least that was found.
#[derive(Debug, Serialize)]
struct Goal {
    what: &'static str,
    at_least: f64,
    found: f64,
    reached: bool,
}

#[derive(Debug, Serialize)]
struct Report {
    rounds: u16,
    milliseconds: u128,
    connections: u16,
    tunnels: Vec<Record>,
    references: Vec<Reference>,
    goals: [Goal; 3],
}

/// A way between hosts, and what was measured on it.
struct Connection {
    what: What,
    ends: Ends,
    router: Option<Pid>,
    /// The same tunnel where segments are cut.
    cut: Option<(Ends, Pid)>,
    streams: Vec<Flow>,
    cut_streams: Vec<Flow>,
    rounds: Vec<Round>,
}

enum What {
    Tunnel { which: Tunnel, carried: Carried, counted: [u64; 4] },
    Plain { ipv6: bool },
    Direct,
}

/// Measures all ways and prints what came of them.
///
/// # Errors
/// Something cannot be made; bytes do not come out as they went in, or not by their tunnel.
pub fn measure(program: &Path, args: &Args) -> anyhow::Result<()> {
    eprintln!("routers start …");
    let networks = [Network::build(program, false)?, Network::build(program, true)?];
    let [whole, cut] = &networks;
    let measured = measure_in(whole, cut, args);
    let report = measured.with_context(|| format!("{}{}", whole.log(), cut.log()))?;
    for network in networks {
        network.stop()?;
    }
    let text = if args.json { serde_json::to_string_pretty(&report)? + "\n" } else { table::table(&report)? };
    Ok(print(&text)?)
}

fn measure_in(whole: &Network, cut: &Network, args: &Args) -> anyhow::Result<Report> {
    eprintln!("{SAMPLE} bytes go through each tunnel and back …");
    let mut ways = Vec::new();
    for which in TUNNELS {
        let way = Connection::through(which, whole, cut);
        ways.push(way.with_context(|| format!("{}, {}", which.kind.name(), which.encapsulation.words()))?);
    }
    for ipv6 in [false, true] {
        ways.push(Connection::new(
            What::Plain { ipv6 },
            whole.plainly(ipv6),
            Some(whole.router().pid()),
            None,
        ));
    }
    ways.push(Connection::new(What::Direct, network::direct()?, None, None));
    let time = args.time;
    eprintln!("{} rounds …", args.rounds);
    for round in 0..args.rounds {
        let start = Instant::now();
        for way in &mut ways {
            way.measure(args.connections.into(), time).with_context(|| way.what.name())?;
        }
        eprintln!("round {} took {:.0} s", round + 1, start.elapsed().as_secs_f64());
        // Nobody is always behind the same.
        ways.rotate_left(1);
        if round % 2 == 1 {
            ways.reverse();
        }
    }
    Ok(report(ways, args))
}

impl What {
    fn name(&self) -> String {
        match self {
            Self::Tunnel { which, .. } => format!("{}, {}", which.kind.name(), which.encapsulation.words()),
            Self::Plain { ipv6: false } => "IPv4 without a tunnel".to_owned(),
            Self::Plain { ipv6: true } => "IPv6 without a tunnel".to_owned(),
            Self::Direct => "no routers".to_owned(),
        }
    }
}

impl Connection {
    fn new(what: What, ends: Ends, router: Option<Pid>, cut: Option<(Ends, Pid)>) -> Self {
        Self { what, ends, router, cut, streams: Vec::new(), cut_streams: Vec::new(), rounds: Vec::new() }
    }

    /// By a tunnel, once it has shown in both networks that it carries what it is given.
    fn through(which: Tunnel, whole: &Network, cut: &Network) -> anyhow::Result<Self> {
        let mut seen = Vec::new();
        for network in [whole, cut] {
            let (ends, before) = (network.through(which), network.counted(which)?);
            let carried = stream::carry(&ends, SAMPLE)?;
            let after = network.counted(which)?;
            let counted = [0, 1, 2, 3].map(|index: usize| after[index] - before[index]);
            ensure!(
                counted.iter().all(|bytes| *bytes > SAMPLE as u64),
                "{} bytes each way: the tunnel has counted {counted:?}",
                carried.bytes
            );
            seen.push((ends, network.router().pid(), carried, counted));
        }
        let [(ends, router, carried, counted), (cut, cut_router, ..)] =
            <[_; 2]>::try_from(seen).ok().context("two networks")?;
        Ok(Self::new(What::Tunnel { which, carried, counted }, ends, Some(router), Some((cut, cut_router))))
    }

    fn measure(&mut self, connections: usize, time: Duration) -> anyhow::Result<()> {
        let warm = time / 4;
        self.streams.push(stream::measure(&self.ends, self.router, warm, time)?);
        if let Some((ends, router)) = &self.cut {
            let measured = stream::measure(ends, Some(*router), warm, time);
            self.cut_streams.push(measured.context("segments cut")?);
        }
        self.rounds.push(transactions::measure(&self.ends, self.router, connections, warm, time)?);
        Ok(())
    }

    fn figures(&self) -> Figures {
        Figures { stream: median(&self.streams), transactions: Transactions::of(&self.rounds) }
    }
}

/// The stream whose rate is the median.
fn median(streams: &[Flow]) -> Flow {
    let mut streams = streams.to_vec();
    streams.sort_unstable_by(|a, b| a.mbits.total_cmp(&b.mbits));
    streams.get(streams.len() / 2).copied().unwrap_or_default()
}

impl Transactions {
    fn of(rounds: &[Round]) -> Self {
        let mut taken: Vec<u32> = rounds.iter().flat_map(|round| &round.taken).copied().collect();
        taken.sort_unstable();
        let at = |share: usize| {
            let index = (taken.len() * share / 100).min(taken.len().saturating_sub(1));
            taken.get(index).copied().map_or(0.0, |nanoseconds| f64::from(nanoseconds) / 1e3)
        };
        let mean =
            |value: fn(&Round) -> f64| rounds.iter().map(value).sum::<f64>() / rounds.len().max(1) as f64;
        Self {
            rate: mean(|round| round.rate),
            latency: [at(50), at(90), at(95), at(99)],
            cpu: Shares {
                receiver: mean(|round| round.cpu.receiver),
                router: mean(|round| round.cpu.router),
                machine: mean(|round| round.cpu.machine),
            },
        }
    }
}

/// The median of the rounds' ratios: what else the machine does concerns both streams of a round.
fn ratio(streams: &[Flow], others: &[Flow]) -> f64 {
    let mut ratios: Vec<f64> =
        streams.iter().zip(others).map(|(one, other)| one.mbits / other.mbits).collect();
    ratios.sort_unstable_by(f64::total_cmp);
    ratios.get(ratios.len() / 2).copied().unwrap_or_default()
}

fn report(mut ways: Vec<Connection>, args: &Args) -> Report {
    // In the order of the tables, which rounds have changed.
    ways.sort_by_key(|way| match &way.what {
        What::Tunnel { which, .. } => TUNNELS.iter().position(|tunnel| tunnel == which).unwrap_or_default(),
        What::Plain { ipv6 } => TUNNELS.len() + usize::from(*ipv6),
        What::Direct => TUNNELS.len() + 2,
    });
    let streams = |wanted: &dyn Fn(&What) -> bool| {
        ways.iter().find(|way| wanted(&way.what)).map(|way| way.streams.as_slice()).unwrap_or_default()
    };
    let direct = streams(&|what| matches!(what, What::Direct));
    let (mut tunnels, mut references) = (Vec::new(), Vec::new());
    for way in &ways {
        let figures = way.figures();
        let (which, carried, counted) = match &way.what {
            What::Tunnel { which, carried, counted } => (*which, carried.clone(), *counted),
            What::Plain { ipv6 } => {
                references.push(Reference { way: if *ipv6 { "ipv6" } else { "ipv4" }, figures });
                continue;
            }
            What::Direct => {
                references.push(Reference { way: "direct", figures });
                continue;
            }
        };
        let ipv6 = which.kind.is_ipv6();
        let bare = Tunnel { encapsulation: Encapsulation::NoFou, ..which };
        let no_fou = streams(&|what| matches!(what, What::Tunnel { which, .. } if *which == bare));
        let plain = streams(&|what| matches!(what, What::Plain { ipv6: found } if *found == ipv6));
        tunnels.push(Record {
            tunnel: which.kind.name(),
            encapsulation: which.encapsulation.name(),
            family: if ipv6 { "IPv6" } else { "IPv4" },
            carried,
            counted,
            figures,
            cut: median(&way.cut_streams),
            ratios: Ratios {
                no_fou: ratio(&way.streams, no_fou),
                plain: ratio(&way.streams, plain),
                direct: ratio(&way.streams, direct),
                cut: ratio(&way.streams, &way.cut_streams),
            },
            which,
        });
    }
    let goal = |what, at_least, ratio: fn(&Ratios) -> f64| {
        let found = tunnels.iter().map(|record| ratio(&record.ratios)).fold(f64::INFINITY, f64::min);
        Goal { what, at_least, found, reached: found >= at_least }
    };
    let goals = [
        goal("FOU to no FOU", 0.95, |ratios| ratios.no_fou),
        goal("tunnel to none, through the same routers", 0.60, |ratios| ratios.plain),
        goal("segments whole to segments cut", 3.0, |ratios| ratios.cut),
    ];
    Report {
        rounds: args.rounds,
        milliseconds: args.time.as_millis(),
        connections: args.connections,
        tunnels,
        references,
        goals,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A round in which all is slow changes no ratio.
    #[test]
    fn streams_are_compared_within_a_round() {
        let flows = |rates: [f64; 3]| rates.map(|mbits| Flow { mbits, ..Flow::default() });
        assert_eq!(ratio(&flows([10.0, 100.0, 40.0]), &flows([20.0, 200.0, 50.0])), 0.5);
        assert_eq!(median(&flows([10.0, 100.0, 40.0])).mbits, 40.0);
    }

    #[test]
    fn latencies_of_all_rounds_are_one_distribution() {
        let round = |rate, taken: std::ops::Range<u32>| Round {
            rate,
            taken: taken.map(|value| value * 1000).collect(),
            cpu: Shares { receiver: rate, ..Shares::default() },
        };
        let found = Transactions::of(&[round(50.0, 50..100), round(150.0, 0..50)]);
        assert_eq!((found.rate, found.latency, found.cpu.receiver), (100.0, [50.0, 90.0, 95.0, 99.0], 100.0));
    }
}
