//! `underpass bench`: what the path of a packet costs, on one core, with packets from memory.

mod clock;
mod counted;
mod counters;
mod endpoint;
mod fast_path;
mod forward;
mod headend;
mod ioam;
mod large;
mod layer2;
mod live;
mod measure;
mod mix;
mod mpls;
mod page;
mod police;
mod qos;
mod report;
mod routes;
mod scale;
mod scenario;
pub mod segments;
mod srv6_l2;
mod tunnel;
mod tunnels;
mod wire;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, bail};
use underpass_control::{Client, Protocol, Replies};
use underpass_daemon::offline::Offline;
use underpass_daemon::port_spec::PortSpec;
use underpass_engine::tables::{Reader, Tables};
use underpass_port::memory::Generator;

use measure::{Cost, Line};
use report::{Form, Record, Report};
use routes::Route;
use scenario::{Order, PORTS, Scenario};
use underpass_daemon::{output, script};
use wire::Mac;

/// Measure the cost of the packet path, from Ethernet in to port out.
///
/// One thread, pinned to the last core, receives packets from memory in bursts of 64. Each scenario configures
/// a router with ip, sends 256 packets and compares every byte of the output, and is then timed in rounds.
/// Beside each round runs one of the generator and the sink alone (the floor), which is subtracted. Ticks
/// are those of the time-stamp counter, cycles those of the core: sums that depend on each other, each of a cycle,
/// tell how many of them a tick has. Rounds while another thread has a part of the core are left out; a star says
/// that there were hardly others.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
#[command(after_help = "Examples:
  underpass bench                          # every scenario
  underpass bench ip6 srv6-end
  underpass bench 'srv6-end-d*' --json
  underpass bench 'mix-*'                  # each packet of a burst to another of N SIDs, labels or tunnels
  underpass bench --list                   # the scenarios and their configuration
  underpass bench --runs 3 --markdown      # the page docs/benchmarks.md
  underpass bench segments                 # cost by the number of segments inserted
  underpass bench mpls-memory              # memory per label route
  underpass bench police-vs-ifb            # throughput cost of policing and shaping
  underpass bench scale                    # a million routes and labels at once; two workers
  underpass bench fast-path                # the fast path in the kernel, with a million routes
  underpass bench tunnels                  # cost by the number of tunnels
  underpass bench live                     # through real devices, compared with the kernel")]
pub struct Args {
    #[command(subcommand)]
    part: Option<Part>,
    /// Scenarios; a trailing * matches anything [default: all]
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Repeat N times; report the median run and the fewest cycles
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    runs: u16,
    /// Print a JSON array
    #[arg(long)]
    json: bool,
    /// Print a page in Markdown
    #[arg(long, conflicts_with = "json")]
    markdown: bool,
    /// List the scenarios and their configuration; measure nothing
    #[arg(long)]
    list: bool,
    /// Send so many bursts through one scenario without timing them
    #[arg(long, value_name = "N", hide = true, conflicts_with_all = ["json", "list"])]
    bursts: Option<u64>,
}

#[derive(Debug, clap::Subcommand)]
enum Part {
    FastPath(fast_path::Args),
    Live(live::Args),
    MplsMemory(mpls::memory::Args),
    PoliceVsIfb(qos::versus::Args),
    Scale(scale::Args),
    Segments(segments::Args),
    Tunnels(tunnels::Args),
}

/// The scenarios that are not timed as the others are.
const FLOOR: &str = "floor";
const COUNTERS: &str = "counters";

/// Measures what is asked for.
pub fn main(args: &Args) -> anyhow::Result<ExitCode> {
    match &args.part {
        Some(Part::FastPath(args)) => {
            fast_path::main(args)?;
            return Ok(ExitCode::SUCCESS);
        }
        Some(Part::Live(args)) => {
            live::main(args)?;
            return Ok(ExitCode::SUCCESS);
        }
        Some(Part::MplsMemory(args)) => {
            mpls::memory::main(args)?;
            return Ok(ExitCode::SUCCESS);
        }
        Some(Part::PoliceVsIfb(args)) => {
            qos::versus::main(args)?;
            return Ok(ExitCode::SUCCESS);
        }
        Some(Part::Scale(args)) => {
            scale::main(args)?;
            return Ok(ExitCode::SUCCESS);
        }
        Some(Part::Segments(args)) => {
            segments::main(args)?;
            return Ok(ExitCode::SUCCESS);
        }
        Some(Part::Tunnels(args)) => {
            tunnels::main(args)?;
            return Ok(ExitCode::SUCCESS);
        }
        None => {}
    }
    let (scenarios, names) = (all(), names());
    for asked in &args.names {
        if !names.iter().any(|name| matches(asked, name)) {
            bail!("no scenario is called '{asked}'; there are {}", names.join(", "));
        }
    }
    let wanted = |name: &str| args.names.is_empty() || args.names.iter().any(|asked| matches(asked, name));
    if args.list {
        output::print(&list(&scenarios, wanted))?;
        return Ok(ExitCode::SUCCESS);
    }

    if let Some(bursts) = args.bursts {
        counted::run(&args.names, &scenarios, bursts)?;
        return Ok(ExitCode::SUCCESS);
    }
    let core = clock::pin().context("this thread cannot be kept on one core")?;
    let ticks = clock::ticks_per_nanosecond();
    eprintln!("core {core}, {ticks:.2} GHz time-stamp counter");
    let mut runs = Vec::new();
    for run in 1..=args.runs {
        if args.runs > 1 {
            eprintln!("run {run} of {} …", args.runs);
        }
        runs.push(measure_all(&scenarios, wanted, ticks)?);
    }
    let form = match args {
        Args { json: true, .. } => Form::Json,
        Args { markdown: true, .. } => Form::Markdown,
        _ => Form::Table,
    };
    Report::new(core, ticks, runs).print(form, &args.command())?;
    Ok(ExitCode::SUCCESS)
}

impl Args {
    /// The command that they are the arguments of.
    fn command(&self) -> String {
        let names = self.names.iter().map(|name| match name.contains('*') {
            true => format!("'{name}'"),
            false => name.clone(),
        });
        let runs = (self.runs > 1).then(|| format!("--runs {}", self.runs));
        let markdown = self.markdown.then(|| "--markdown".to_owned());
        let words = ["underpass bench".to_owned()].into_iter().chain(names).chain(runs).chain(markdown);
        words.collect::<Vec<_>>().join(" ")
    }
}

/// What is wanted of all that there is to be timed, once.
fn measure_all(
    scenarios: &[Scenario],
    wanted: impl Fn(&str) -> bool,
    ticks: f64,
) -> anyhow::Result<Vec<Record>> {
    let mut records = Vec::new();
    let sink = measure::sink_alone(ticks)?;
    let sink = sink.pace.map(|pace| sink.path * pace.cycles_per_tick);
    if wanted(FLOOR) {
        records.push(Record::floor(&floor(ticks)?, ticks));
    }
    for scenario in scenarios.iter().filter(|scenario| wanted(&scenario.name)) {
        eprintln!("{} …", scenario.name);
        if scenario.config.contains("End.BPF") && !nix::unistd::geteuid().is_root() {
            eprintln!("    left out: only root can load BPF programs");
            continue;
        }
        let cost = measure(scenario, ticks).with_context(|| scenario.name.clone())?;
        records.push(Record::new(scenario, &cost, ticks, sink));
    }
    for name in large::NAMES.into_iter().filter(|name| wanted(name)) {
        eprintln!("{name} …");
        let cost = large::measure(name).with_context(|| name.to_owned())?;
        records.push(Record::large(name, &cost, ticks));
    }
    if wanted(COUNTERS) {
        eprintln!("{COUNTERS} …");
        let off = configure(&counters::scenario(false), &[], 2).context(COUNTERS)?;
        let on = configure(&counters::scenario(true), &[], 1).context(COUNTERS)?;
        let Ok(off_readers) = <[Reader; 2]>::try_from(off.readers) else { bail!("two readers are needed") };
        let Ok([on_reader]) = <[Reader; 1]>::try_from(on.readers) else { bail!("a reader is needed") };
        let outcome =
            counters::measure((off.tables, off_readers), (on.tables, on_reader), ticks).context(COUNTERS)?;
        records.extend(Record::counters(&outcome, ticks));
    }
    Ok(records)
}

/// The scenarios that have a path, but for those of `counters`.
fn all() -> Vec<Scenario> {
    let all = [
        forward::scenarios(),
        layer2::scenarios(),
        srv6_l2::scenarios(),
        endpoint::scenarios(),
        headend::scenarios(),
        ioam::scenarios(),
        mpls::scenarios(),
        tunnel::scenarios(),
        mix::scenarios(),
        police::scenarios(),
        qos::scenarios(),
    ];
    all.into_iter().flatten().collect()
}

/// The names of the scenarios.
pub fn names() -> Vec<String> {
    let named = all().into_iter().map(|scenario| scenario.name);
    let large = large::NAMES.into_iter().map(str::to_owned);
    [FLOOR.to_owned()].into_iter().chain(named).chain(large).chain([COUNTERS.to_owned()]).collect()
}

/// Whether a name is the one asked for, which may end in `*`.
fn matches(asked: &str, name: &str) -> bool {
    match asked.strip_suffix('*') {
        Some(prefix) => name.starts_with(prefix),
        None => asked == name,
    }
}

/// What the scenarios are and how they configure the router.
fn list(scenarios: &[Scenario], wanted: impl Fn(&str) -> bool) -> String {
    let indented = |config: &str| config.lines().map(|line| format!("    {line}\n")).collect::<String>();
    let mut text = String::new();
    if wanted(FLOOR) {
        text += &format!("{FLOOR}\n    # the generator and the sink alone\n\n");
    }
    for scenario in scenarios.iter().filter(|scenario| wanted(&scenario.name)) {
        text += &format!("{}\n{}", scenario.name, indented(&scenario.config));
        if let Some(mass) = &scenario.mass {
            text += &format!("    # {mass}, sent as netlink requests\n");
        }
        text += "\n";
    }
    for name in large::NAMES.into_iter().filter(|name| wanted(name)) {
        text += &format!("{name}\n{}\n", indented(&large::config(name)));
    }
    if wanted(COUNTERS) {
        text += &format!("{COUNTERS}\n    # with the counters compiled out, without count, and with it\n");
        text += &indented(&counters::scenario(true).config);
    }
    text
}

/// A configured router; its netlink server lives as long.
struct Configured {
    router: Offline,
    tables: Arc<Tables>,
    readers: Vec<Reader>,
}

/// A router with the configuration of a scenario, for so many workers.
fn configure(scenario: &Scenario, routes: &[Route], workers: usize) -> anyhow::Result<Configured> {
    let configured = configure_lines(&scenario.name, &scenario.config, workers)?;
    if !routes.is_empty() {
        add(&configured.router, routes)?;
    }
    Ok(configured)
}

/// A router that lines have configured.
fn configure_lines(name: &str, config: &str, workers: usize) -> anyhow::Result<Configured> {
    configure_ports(&PORTS, name, config, workers)
}

/// The same with ports of these addresses.
fn configure_ports(macs: &[Mac], name: &str, config: &str, workers: usize) -> anyhow::Result<Configured> {
    let ports: Vec<PortSpec> =
        (0..).zip(macs).map(|(n, mac)| PortSpec { name: format!("p{n}"), mac: Some(*mac) }).collect();
    let (router, tables, readers) = Offline::new(&ports, workers)?;
    router.router().allow_experimental();
    let name = Path::new(name);
    script::configure(&router, name, &script::parse(name, config)?)?;
    Ok(Configured { router, tables, readers })
}

/// Adds the routes, and says how long that took.
fn add(router: &Offline, routes: &[Route]) -> anyhow::Result<()> {
    let seconds = send(router, routes)?;
    eprintln!("    {} routes in {seconds:.2} s, {:.0} a second", routes.len(), routes.len() as f64 / seconds);
    Ok(())
}

/// Sends the requests that add the routes; the seconds that the router took for them.
fn send(offline: &Offline, routes: &[Route]) -> anyhow::Result<f64> {
    let router = offline.router();
    let link = router.links().find(|link| link.name == "p1").map(|link| link.index).context("no port p1")?;
    let requests = routes::requests(routes, link)?;
    drop(router);
    send_requests(offline, &requests)
}

/// Sends datagrams of requests; the seconds that the router took for them.
fn send_requests(offline: &Offline, requests: &[Vec<u8>]) -> anyhow::Result<f64> {
    let mut router = offline.router();
    let mut client = Client::new(Protocol::Route, 1);
    let mut replies = Replies::default();
    let start = std::time::Instant::now();
    router.gather_filters(true);
    for datagram in requests {
        router.request(&mut client, datagram, &mut replies);
        if let Some(errno) = replies.iter().find_map(routes::refused) {
            bail!("a route was refused: {}", std::io::Error::from_raw_os_error(errno));
        }
        replies.clear();
    }
    router.publish_gathered();
    router.gather_filters(false);
    router.close(client);
    Ok(start.elapsed().as_secs_f64())
}

/// The line of a scenario, which has shown that packets come out as they must.
fn checked(scenario: &Scenario) -> anyhow::Result<(Line<true>, Offline)> {
    let load = (scenario.load)();
    let mut configured = configure(scenario, &load.routes, 1)?;
    for (tool, lines) in load.batches {
        let words = tool.split(' ').chain(["-batch", "-"]).map(str::to_owned).collect();
        let lines = [script::Line { number: 1, words, input: Some(lines) }];
        script::configure(&configured.router, Path::new(&scenario.name), &lines)?;
    }
    let reader = configured.readers.pop().context("no reader")?;
    let generator = Generator::new(&load.templates, load.patches);
    let mut line = Line::new(Arc::clone(&configured.tables), reader, generator);
    match load.order {
        Order::Kept => line.check(&load.expected)?,
        Order::InBurst => line.check_bursts(&load.expected)?,
        Order::Waits => line.check_waiting(&load.expected)?,
    }
    Ok((line, configured.router))
}

fn measure(scenario: &Scenario, ticks: f64) -> anyhow::Result<Cost> {
    let (mut line, _router) = checked(scenario)?;
    line.measure(ticks)
}

/// The generator and the sink alone, over the packets of `ip6`.
fn floor(ticks: f64) -> anyhow::Result<Cost> {
    measure::floor_alone(&mut ip6_packets()?, ticks)
}

/// A generator of the packets of `ip6`.
fn ip6_packets() -> anyhow::Result<Generator> {
    let scenarios = forward::scenarios();
    let ip6 = scenarios.iter().find(|scenario| scenario.name == "ip6").context("no scenario ip6")?;
    Ok(Generator::new(&(ip6.load)().templates, None))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All but those whose tables take long to build in a debug build.
    #[test]
    fn every_scenario_comes_out_as_expected() {
        let scenarios = all().into_iter().filter(|scenario| !scenario.name.ends_with("-1m"));
        let mut count = 0;
        for scenario in scenarios.chain([counters::scenario(false), counters::scenario(true)]) {
            if let Err(error) = checked(&scenario) {
                panic!("{}: {error:#}", scenario.name);
            }
            count += 1;
        }
        assert!(count >= 55, "{count}");
    }

    /// What is compared is compared: one wrong byte of what is expected fails the check.
    #[test]
    fn one_wrong_byte_is_found() {
        let mut scenario = all().into_iter().find(|scenario| scenario.name == "srv6-end").unwrap();
        let load = scenario.load;
        scenario.load = Box::new(move || {
            let mut load = load();
            load.expected[200][60] ^= 1;
            load
        });
        let error = checked(&scenario).err().unwrap().to_string();
        assert!(error.starts_with("packet 201 is wrong from byte 60 on:\n"), "{error}");
    }

    #[test]
    fn a_star_stands_for_anything() {
        assert!(matches("ip6", "ip6") && !matches("ip6", "ip6-routes-1m"));
        assert!(matches("ip6*", "ip6-routes-1m") && matches("*", "floor") && !matches("srv6*", "ip6"));
    }
}
