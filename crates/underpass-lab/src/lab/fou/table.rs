//! The report for people: the document's list, then the ratios.

use std::fmt::{Error, Write};

use super::{Figures, Record, Report, network::Kind};

/// As the document has it.
pub fn table(report: &Report) -> Result<String, Error> {
    let mut text = String::new();
    writeln!(
        text,
        "TCP through tunnels between two routers. Each of {} rounds: a stream for {} ms, then {} connections with\n\
         transactions of one byte for as long. CPU utilization in % of one core: the receiver and its router.",
        report.rounds, report.milliseconds, report.connections
    )?;
    for kind in Kind::ALL {
        writeln!(text, "\n{}", kind.name())?;
        for record in report.tunnels.iter().filter(|record| record.which.kind == kind) {
            writeln!(text, "  {}, {}", record.family, record.which.encapsulation.words())?;
            figures(&mut text, &record.figures)?;
        }
    }
    writeln!(text, "\nNo tunnel")?;
    for reference in &report.references {
        let way = match reference.way {
            "ipv4" => "IPv4, the same routers",
            "ipv6" => "IPv6, the same routers",
            _ => "IPv4, two hosts without routers",
        };
        writeln!(text, "  {way}")?;
        figures(&mut text, &reference.figures)?;
    }
    ratios(&mut text, report)?;
    Ok(text)
}

fn figures(text: &mut String, figures: &Figures) -> Result<(), Error> {
    let (stream, transactions) = (&figures.stream, &figures.transactions);
    let cpu = |cpu: &super::Shares| {
        format!(
            "{:.1}% CPU utilization (receiver {:.1}, router {:.1}; all of the machine {:.0})",
            cpu.side(),
            cpu.receiver,
            cpu.router,
            cpu.machine
        )
    };
    writeln!(text, "    TCP_STREAM\n      {}\n      {:.0} Mbit/s", cpu(&stream.cpu), stream.mbits)?;
    writeln!(
        text,
        "    TCP_RR\n      {}\n      {} 50/90/95/99% latencies, µs\n      {:.0} tps",
        cpu(&transactions.cpu),
        transactions.latency.map(|value| format!("{value:.0}")).join("/"),
        transactions.rate
    )
}

fn ratios(text: &mut String, report: &Report) -> Result<(), Error> {
    writeln!(
        text,
        "\nTCP_STREAM, medians of the rounds, and of the ratios within a round. plain: the same routers without a\n\
         tunnel; direct: no routers; cut: ethtool -K tso off gso off gro off, on each device of hosts and routers\n\n\
         {:<34} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}",
        "", "Mbit/s", "to no FOU", "to plain", "to direct", "cut", "to cut"
    )?;
    for Record { tunnel, which, figures, cut, ratios, .. } in &report.tunnels {
        writeln!(
            text,
            "{:<34} {:>9.0} {:>9.2} {:>9.2} {:>9.2} {:>9.0} {:>9.2}",
            format!("{tunnel}, {}", which.encapsulation.words()),
            figures.stream.mbits,
            ratios.no_fou,
            ratios.plain,
            ratios.direct,
            cut.mbits,
            ratios.cut
        )?;
    }
    writeln!(text, "\n{:<44} {:>9} {:>9}", "Goals", "at least", "found")?;
    for goal in &report.goals {
        let reached = if goal.reached { "reached" } else { "not reached" };
        writeln!(text, "{:<44} {:>9.2} {:>9.2}  {reached}", goal.what, goal.at_least, goal.found)?;
    }
    Ok(())
}
