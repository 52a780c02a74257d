//! `underpass stats`: what a running router has counted.

use std::{
    collections::BTreeMap,
    fmt::Write,
    io::{self, IsTerminal},
    path::PathBuf,
    process::ExitCode,
    thread,
    time::Duration,
};

use anyhow::Context;
use underpass_daemon::{
    launch,
    live::{MplsStats, Stats},
    query::answer,
};

use underpass_daemon::output;

/// Show the router's counters: drops by reason, ports, workers and local SIDs.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  underpass stats
  underpass stats --json
  underpass stats mpls 100
  ip netns exec r1 underpass stats --watch")]
pub struct Args {
    /// The router's socket [default: that of the router of this network namespace]
    #[arg(long, value_name = "PATH", global = true)]
    socket: Option<PathBuf>,
    /// Print one JSON document
    #[arg(long, global = true)]
    json: bool,
    /// Repeat every second, showing the increase; with --json one document per line
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
}

/// Asks and prints.
pub fn main(args: &Args) -> anyhow::Result<ExitCode> {
    let socket = match &args.socket {
        Some(socket) => socket.clone(),
        None => launch::namespace_socket()?,
    };
    let mut last: Option<Stats> = None;
    loop {
        let clear = if args.watch && io::stdout().is_terminal() { "\x1b[H\x1b[2J" } else { "" };
        match args.what {
            None => {
                let text = answer(&socket, "")?;
                let stats: Stats = serde_json::from_str(&text).context("the router's answer")?;
                let shown = if args.json { text } else { format!("{clear}{}", table(&stats, last.as_ref())) };
                output::print(&shown)?;
                last = Some(stats);
            }
            Some(What::Mpls { label }) => {
                let question = label.map_or("mpls".to_owned(), |label| format!("mpls {label}"));
                let text = answer(&socket, &question)?;
                let stats = serde_json::from_str(&text).context("the router's answer")?;
                output::print(&if args.json { text } else { format!("{clear}{}", mpls(&stats)) })?;
            }
        }
        if !args.watch {
            return Ok(ExitCode::SUCCESS);
        }
        thread::sleep(Duration::from_secs(1));
    }
}

fn mpls(stats: &MplsStats) -> String {
    let mut text = format!("{:<10} {:>14} {:>16} {:>10}\n", "label", "packets", "bytes", "errors");
    for label in &stats.labels {
        // Writing to a String does not fail.
        let _ = writeln!(
            text,
            "{:<10} {:>14} {:>16} {:>10}",
            label.label, label.packets, label.bytes, label.errors
        );
    }
    let _ = writeln!(
        text,
        "\n{:<16} {:>14} {:>16} {:>10} {:>10} {:>10} {:>14} {:>16} {:>10}",
        "port", "rx packets", "rx bytes", "errors", "dropped", "noroute", "tx packets", "tx bytes", "errors"
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

fn table(stats: &Stats, last: Option<&Stats>) -> String {
    let mut text = String::new();
    // Writing to a String does not fail.
    let _ = write(&mut text, stats, last);
    text
}

fn write(text: &mut String, stats: &Stats, last: Option<&Stats>) -> std::fmt::Result {
    let totals = &stats.totals;
    writeln!(
        text,
        "packets: {} received, {} generated, {} sent, {} delivered to the host, {} dropped, {} held",
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
        "\n{:<16} {:<12} {:>14} {:>16} {:>14} {:>16}  drops",
        "port", "driver", "rx packets", "rx bytes", "tx packets", "tx bytes"
    )?;
    for port in &stats.ports {
        // In a second, where the last second is known.
        let before = last
            .map(|last| last.ports.iter().find(|old| old.index == port.index).cloned().unwrap_or_default());
        let since = |now: u64, then: fn(&underpass_daemon::live::PortStats) -> u64| match &before {
            Some(before) => format!("{}/s", now.saturating_sub(then(before))),
            None => now.to_string(),
        };
        writeln!(
            text,
            "{:<16} {:<12} {:>14} {:>16} {:>14} {:>16}  {}",
            port.name,
            port.driver,
            since(port.rx_packets, |port| port.rx_packets),
            since(port.rx_bytes, |port| port.rx_bytes),
            since(port.tx_packets, |port| port.tx_packets),
            since(port.tx_bytes, |port| port.tx_bytes),
            reasons(&port.drops)
        )?;
    }
    writeln!(
        text,
        "\n{:<8} {:<10} {:>14} {:>14} {:>14} {:>12} {:>10}",
        "worker", "processor", "received", "sent", "dropped", "bursts", "sleeps"
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
            "\n{:<44} {:<14} {:>6} {:>14} {:>16} {:>10}",
            "sid", "behaviour", "table", "packets", "bytes", "errors"
        )?;
    }
    for sid in &stats.sids {
        writeln!(
            text,
            "{:<44} {:<14} {:>6} {:>14} {:>16} {:>10}",
            sid.prefix, sid.behaviour, sid.table, sid.packets, sid.bytes, sid.errors
        )?;
    }
    if !stats.drops.is_empty() {
        writeln!(text, "\n{:<28} {:>14}", "dropped because", "packets")?;
    }
    for (reason, count) in &stats.drops {
        writeln!(text, "{reason:<28} {count:>14}")?;
    }
    if !stats.warnings.is_empty() {
        writeln!(text)?;
    }
    stats.warnings.iter().try_for_each(|warning| writeln!(text, "warning: {warning}"))
}
