//! `underpass stats`: what a running router has counted.

mod drops;
mod rates;

use std::{
    collections::BTreeMap,
    fmt::Write,
    io::{self, IsTerminal},
    path::PathBuf,
    process::ExitCode,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use serde::de::DeserializeOwned;
use underpass_daemon::{
    launch,
    live::{
        MplsStats, Stats,
        drops::{self as dropped, Dropped},
    },
    query::answer,
};

use rates::{Rates, Unit};
use underpass_daemon::output;

/// Show the router's counters: drops by reason, ports, workers, local SIDs and SRv6 policies.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  underpass stats
  underpass stats --json
  underpass stats mpls 100
  underpass stats drops
  underpass stats drops no-route --write no-route.pcapng
  ip netns exec r1 underpass stats --watch")]
pub struct Args {
    /// The router's socket [default: as for `underpass exec`]
    #[arg(long, value_name = "PATH", global = true)]
    socket: Option<PathBuf>,
    /// Print one JSON document
    #[arg(long, global = true)]
    json: bool,
    /// Show rates, per second, every second; with --json one document of the counters themselves per line
    #[arg(long, global = true)]
    watch: bool,
    #[command(subcommand)]
    what: Option<What>,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Show the counters of MPLS labels, and of labelled packets on each device
    Mpls {
        /// Only this label
        #[arg(value_parser = clap::value_parser!(u32).range(0..1 << 20))]
        label: Option<u32>,
    },
    /// Show why packets were dropped, by which port they had come in, and the last packet of each reason
    Drops {
        /// Only this reason
        #[arg(value_parser = clap::builder::PossibleValuesParser::new(dropped::reasons()), hide_possible_values = true)]
        reason: Option<String>,
        /// Write the last packet of each reason, up to 160 bytes of it
        #[arg(short, long, value_name = "FILE.pcapng", conflicts_with = "watch")]
        write: Option<PathBuf>,
    },
}

/// How often `--watch` looks.
const EVERY: Duration = Duration::from_secs(1);

/// Asks and prints.
pub fn main(args: &Args) -> anyhow::Result<ExitCode> {
    let socket = launch::chosen_socket(args.socket.as_deref())?;
    match &args.what {
        None => show(args, || answer(&socket, ""), table),
        Some(What::Drops { reason, write }) => {
            let ask = || {
                let text = answer(&socket, "drops")?;
                let mut all: Vec<Dropped> = serde_json::from_str(&text).context("the router's answer")?;
                if let Some(only) = reason {
                    all.retain(|drop| drop.reason == *only);
                }
                if let Some(path) = write {
                    drops::write(&all, path)?;
                }
                Ok(serde_json::to_string(&all)? + "\n")
            };
            show(args, ask, drops::table)
        }
        Some(What::Mpls { label }) => {
            let question = label.map_or("mpls".to_owned(), |label| format!("mpls {label}"));
            let ask = || {
                let text = answer(&socket, &question)?;
                if let &Some(label) = label {
                    let stats: MplsStats = serde_json::from_str(&text).context("the router's answer")?;
                    ensure!(!stats.labels.is_empty(), "label {label} has no route: `ip -f mpls route show`");
                }
                Ok(text)
            };
            show(args, ask, mpls)
        }
    }
}

/// Prints what there is, once or every second: `table` makes text of it, and says what its numbers are.
fn show<S: DeserializeOwned + Rates>(
    args: &Args,
    ask: impl Fn() -> anyhow::Result<String>,
    table: fn(&S, Unit) -> String,
) -> anyhow::Result<ExitCode> {
    let read = || -> anyhow::Result<(String, S, Instant)> {
        let text = ask()?;
        let stats = serde_json::from_str(&text).context("the router's answer")?;
        Ok((text, stats, Instant::now()))
    };
    let clear = if args.watch && io::stdout().is_terminal() { "\x1b[H\x1b[2J" } else { "" };
    let (mut text, mut last, mut when) = read()?;
    loop {
        if args.json {
            output::print(&text)?;
        } else if !args.watch {
            output::print(&table(&last, Unit::Count))?;
        }
        if !args.watch {
            return Ok(ExitCode::SUCCESS);
        }
        thread::sleep(EVERY);
        let (now_text, now, at) = read()?;
        if !args.json {
            let rates = now.rates(&last, at.duration_since(when).as_secs_f64());
            output::print(&format!("{clear}{}", table(&rates, Unit::PerSecond)))?;
        }
        (text, last, when) = (now_text, now, at);
    }
}

fn mpls(stats: &MplsStats, unit: Unit) -> String {
    let s = unit.suffix();
    let mut text = format!(
        "{}{:<10} {:>14} {:>16} {:>10}\n",
        unit.title(),
        "label",
        format!("packets{s}"),
        format!("bytes{s}"),
        format!("errors{s}")
    );
    for label in &stats.labels {
        // Writing to a String does not fail.
        let _ = writeln!(
            text,
            "{:<10} {:>14} {:>16} {:>10}",
            label.label, label.packets, label.bytes, label.errors
        );
    }
    let columns =
        ["rx packets", "rx bytes", "errors", "dropped", "noroute", "tx packets", "tx bytes", "errors"];
    let [rx_packets, rx_bytes, rx_errors, dropped, noroute, tx_packets, tx_bytes, tx_errors] =
        columns.map(|column| format!("{column}{s}"));
    let _ = writeln!(
        text,
        "\n{:<16} {rx_packets:>14} {rx_bytes:>16} {rx_errors:>10} {dropped:>10} {noroute:>10} {tx_packets:>14} \
         {tx_bytes:>16} {tx_errors:>10}",
        "port"
    );
    for device in &stats.devices {
        let _ = writeln!(
            text,
            "{:<16} {:>14} {:>16} {:>10} {:>10} {:>10} {:>14} {:>16} {:>10}",
            device.name,
            device.rx_packets,
            device.rx_bytes,
            device.rx_errors,
            device.rx_dropped,
            device.rx_noroute,
            device.tx_packets,
            device.tx_bytes,
            device.tx_errors
        );
    }
    text
}

/// The reasons with a count, `-` for none.
fn reasons(drops: &BTreeMap<String, u64>) -> String {
    let some: Vec<String> = drops
        .iter()
        .filter(|(_, count)| **count > 0)
        .map(|(reason, count)| format!("{reason} {count}"))
        .collect();
    if some.is_empty() { "-".to_owned() } else { some.join(", ") }
}

fn table(stats: &Stats, unit: Unit) -> String {
    let mut text = unit.title().to_owned();
    // Writing to a String does not fail.
    let _ = write(&mut text, stats, unit);
    text
}

fn write(text: &mut String, stats: &Stats, unit: Unit) -> std::fmt::Result {
    let totals = &stats.totals;
    let s = unit.suffix();
    let [packets, bytes, errors] = ["packets", "bytes", "errors"].map(|column| format!("{column}{s}"));
    let [rx_packets, rx_bytes, tx_packets, tx_bytes] =
        ["rx packets", "rx bytes", "tx packets", "tx bytes"].map(|column| format!("{column}{s}"));
    let [received, sent, dropped, bursts, sleeps] =
        ["received", "sent", "dropped", "bursts", "sleeps"].map(|column| format!("{column}{s}"));
    writeln!(
        text,
        "{packets}: {} received, {} generated, {} sent, {} delivered to the host, {} dropped; {} held now",
        totals.received, totals.generated, totals.sent, totals.delivered, totals.dropped, totals.held
    )?;
    writeln!(
        text,
        "headroom: {} packets copied, {} fitted in place",
        totals.buffer_moves, totals.buffer_moves_avoided
    )?;
    let fast = &stats.fast_path;
    match &fast.off {
        Some(why) => writeln!(text, "fast path in the kernel: off ({why})")?,
        None => writeln!(
            text,
            "fast path in the kernel: {} hits, {} misses ({})",
            fast.hits,
            fast.misses.values().sum::<u64>(),
            reasons(&fast.misses)
        )?,
    }
    writeln!(
        text,
        "\n{:<16} {:<12} {rx_packets:>14} {rx_bytes:>16} {tx_packets:>14} {tx_bytes:>16}  drops{s}",
        "port", "driver"
    )?;
    for port in &stats.ports {
        writeln!(
            text,
            "{:<16} {:<12} {:>14} {:>16} {:>14} {:>16}  {}",
            port.name,
            port.driver,
            port.rx_packets,
            port.rx_bytes,
            port.tx_packets,
            port.tx_bytes,
            reasons(&port.drops)
        )?;
    }
    writeln!(
        text,
        "\n{:<8} {:<10} {received:>14} {sent:>14} {dropped:>14} {bursts:>12} {sleeps:>10}",
        "worker", "processor"
    )?;
    for worker in &stats.workers {
        let processor = worker.processor.map_or("-".to_owned(), |processor| processor.to_string());
        writeln!(
            text,
            "{:<8} {processor:<10} {:>14} {:>14} {:>14} {:>12} {:>10}",
            worker.number,
            worker.totals.received,
            worker.totals.sent,
            worker.totals.dropped,
            worker.bursts,
            worker.sleeps
        )?;
    }
    if !stats.sids.is_empty() {
        writeln!(
            text,
            "\n{:<44} {:<14} {:>6} {packets:>14} {bytes:>16} {errors:>10}",
            "sid", "behaviour", "table"
        )?;
    }
    for sid in &stats.sids {
        writeln!(
            text,
            "{:<44} {:<14} {:>6} {:>14} {:>16} {:>10}",
            sid.prefix, sid.behaviour, sid.table, sid.packets, sid.bytes, sid.errors
        )?;
    }
    if !stats.policies.is_empty() {
        writeln!(text, "\n{:<66} {packets:>14} {bytes:>16} {errors:>10}", "srv6 policy")?;
    }
    for policy in &stats.policies {
        writeln!(
            text,
            "{:<66} {:>14} {:>16} {:>10}",
            policy.encap, policy.packets, policy.bytes, policy.errors
        )?;
    }
    if !stats.drops.is_empty() {
        writeln!(text, "\n{:<28} {packets:>14}", "dropped because")?;
    }
    for (reason, count) in &stats.drops {
        writeln!(text, "{reason:<28} {count:>14}")?;
    }
    if !stats.warnings.is_empty() {
        writeln!(text)?;
    }
    stats.warnings.iter().try_for_each(|warning| writeln!(text, "warning: {warning}"))
}
