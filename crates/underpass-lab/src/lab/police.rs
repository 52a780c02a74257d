//! A container's packets, limited where they come in: by a policer, by an ifb with an HTB behind it, by an HTB at ingress
//! itself, beside the same without a limit, and beside this kernel's own ifb. The experiment of "ifb与tc
//! police对接收方向限速性能比较" (a comparison of ifb and tc police for what is received). Then how exact the limits are.

mod load;
mod network;

use std::{
    fmt::{Error, Write},
    path::Path,
    time::{Duration, Instant},
};

use anyhow::Context;
use serde::Serialize;
use underpass_packet::ethernet;

use super::stream::{self, Ends};
use load::{HEADERS, PAYLOAD, Shape};
use network::{Limit, Network};
use underpass_daemon::output::print;
use underpass_daemon::seconds::within;

/// Rates far above the load, as in the document.
const FAR: [Limit; 4] = [
    Limit::None,
    Limit::Police { mbits: 20_000, burst: 1 << 20 },
    Limit::Ifb { mbits: 10_000 },
    Limit::Ingress { mbits: 10_000 },
];
/// Megabits a second at which limits are measured.
const RATES: [u64; 3] = [10, 1_000, 10_000];
/// The same for what Kubernetes' plugin does.
const PLUGIN: u64 = 1_000;
/// Numbers of workers at which they are.
const WORKERS: [u8; 2] = [1, 4];
/// Flows of datagrams, which spread over the workers.
const FLOWS: usize = 8;
/// Payload of a TCP segment whose frame has 1514 bytes.
const SEGMENT: usize = 1448;
/// Bytes of their frames, and of those of UDP.
const FRAME: usize = PAYLOAD + HEADERS;
const FROM: &str = "TCP from the container";

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
    #[arg(long, value_name = "SECONDS", default_value = "0.5", value_parser = within(10, 60_000))]
    time: Duration,
    /// Do not measure how exact the limits are
    #[arg(long)]
    no_accuracy: bool,
}

/// A limit, and what came through it.
#[derive(Debug, Serialize)]
struct Record {
    router: &'static str,
    limit: &'static str,
    /// Packets a second: the median of all rounds.
    packets: f64,
    /// Half of the range in which the middle half of the rounds lies, in percent of the median.
    deviation: f64,
    /// To the same router without a limit, in the same round: the median.
    ratio: f64,
}

/// A rate that was asked for, and what came through.
#[derive(Debug, Serialize)]
struct Exactness {
    limit: &'static str,
    protocol: &'static str,
    workers: u8,
    /// Megabits of frames a second that were asked for, and that came: the median.
    asked: u64,
    passed: f64,
    /// The same without a limit: less than was asked for shows nothing about the limit.
    unlimited: f64,
}

#[derive(Debug, Serialize)]
struct Report {
    rounds: u16,
    milliseconds: u128,
    limits: Vec<Record>,
    accuracy: Vec<Exactness>,
}

/// A router and a limit, and packets a second of each round.
struct Case<'a> {
    network: &'a Network,
    router: &'static str,
    limit: Limit,
    rates: Vec<f64>,
}

/// Measures all and prints what came of it.
///
/// # Errors
/// Something cannot be made, or nothing comes through.
pub fn measure(program: &Path, args: &Args) -> anyhow::Result<()> {
    eprintln!("routers start …");
    let (ours, kernel) = (Network::build(Some((program, 1)))?, Network::build(None)?);
    let limits = compare(&ours, &kernel, args).with_context(|| ours.log())?;
    ours.stop()?;
    kernel.stop()?;
    let mut accuracy = Vec::new();
    for workers in WORKERS {
        if args.no_accuracy {
            break;
        }
        eprintln!("how exact limits are with {workers} worker(s) …");
        let network = Network::build(Some((program, workers)))?;
        let measured = exactness(&network, workers, args.time, args.rounds);
        accuracy.extend(measured.with_context(|| network.log())?);
        network.stop()?;
    }
    let report = Report { rounds: args.rounds, milliseconds: args.time.as_millis(), limits, accuracy };
    let text = if args.json { serde_json::to_string_pretty(&report)? + "\n" } else { table(&report)? };
    Ok(print(&text)?)
}

fn compare(ours: &Network, kernel: &Network, args: &Args) -> anyhow::Result<Vec<Record>> {
    let case = |network, router, limit| Case { network, router, limit, rates: Vec::new() };
    let mut cases: Vec<_> = FAR.map(|limit| case(ours, "Underpass", limit)).into();
    // It has no policer here, and no HTB at ingress.
    cases.extend([FAR[0], FAR[2]].map(|limit| case(kernel, "this kernel", limit)));
    let time = args.time;
    for round in 0..args.rounds {
        let start = Instant::now();
        // Nobody is always behind the same.
        let order: Vec<usize> = match round % 2 {
            0 => (0..cases.len()).collect(),
            _ => (0..cases.len()).rev().collect(),
        };
        for index in order {
            let Some(case) = cases.get_mut(index) else { continue };
            let network = case.network;
            let rate = network.with(case.limit, || load::packets(network, time / 4, time));
            case.rates.push(rate.with_context(|| case.router)?);
        }
        eprintln!("round {} took {:.0} s", round + 1, start.elapsed().as_secs_f64());
    }
    let records = cases.iter().map(|case| {
        let plain = cases.iter().find(|other| other.router == case.router && other.limit == Limit::None);
        let plain = plain.map(|case| case.rates.as_slice()).unwrap_or_default();
        let ratios = case.rates.iter().zip(plain).map(|(rate, plain)| rate / plain);
        let [lower, packets, upper] = quartiles(case.rates.iter().copied());
        Record {
            router: case.router,
            limit: case.limit.name(),
            packets,
            deviation: 50.0 * (upper - lower) / packets,
            ratio: quartiles(ratios)[1],
        }
    });
    Ok(records.collect())
}

/// A quarter, half, three quarters of the way through the values in order.
fn quartiles(values: impl Iterator<Item = f64>) -> [f64; 3] {
    let mut values: Vec<f64> = values.collect();
    values.sort_unstable_by(f64::total_cmp);
    [1, 2, 3].map(|quarter| values.get(values.len() * quarter / 4).copied().unwrap_or_default())
}

/// What a policer may let through at once so that TCP reaches its rate: what the rate lets through in 300 ms, and not
/// less than eight segments of 64 KiB. A policer holds nothing: once its bucket is empty, TCP loses the tail of what it has
/// sent, and most of what it sends again, until its retransmission timer ends that, 200 ms at least in Linux. What the rate
/// lets through meanwhile is lost unless the bucket takes it. With less, TCP has two states: one bucket for each such
/// wait, or nearly the rate for as long as each loss is repaired without one.
const fn advised_burst(mbits: u64) -> u64 {
    let bytes = mbits * 1_000_000 / 8 * 3 / 10;
    if bytes > 8 << 16 { bytes } else { 8 << 16 }
}

const fn burst_of_5_ms(mbits: u64) -> u64 {
    mbits * 1_000_000 / 8 / 200
}

/// How often a rate is measured, and for how many times as long as other cases: a burst is nearly half of what a low rate
/// lets through in a second, and a high rate shows what else the machine does.
const fn repeats(mbits: u64) -> (u16, u32) {
    if mbits < 1_000 { (1, LONG) } else { (3, 2) }
}

/// Times as long as other cases that a low rate, and TCP, is measured.
const LONG: u32 = 10;

fn exactness(network: &Network, workers: u8, time: Duration, rounds: u16) -> anyhow::Result<Vec<Exactness>> {
    let mut found = Vec::new();
    let mut note = |limit: Limit, protocol, asked, passed: f64, unlimited| {
        // As in Linux, police does not count the link layer of what comes in; all that is measured are full frames.
        let counted = match (limit, protocol) {
            (Limit::Police { .. }, _) | (Limit::PolicePlugin { .. }, FROM) => FRAME - ethernet::Header::LEN,
            _ => FRAME,
        };
        let passed = passed * counted as f64 / FRAME as f64;
        found.push(Exactness { limit: limit.name(), protocol, workers, asked, passed, unlimited });
    };
    // What was let through at once is long gone when it is measured.
    let warm = time * 2;
    let shape = |mbits| if mbits >= 1_000 { Shape::Together } else { Shape::Long };
    let udp = |mbits| load::mbits(network, FLOWS, shape(mbits), warm, time * repeats(mbits).1);
    let frames = FRAME as f64 / SEGMENT as f64;
    // Many times as long as TCP may wait for its retransmission timer.
    let tcp = |ends: &Ends| {
        let flow = stream::measure(ends, network.router(), warm, time * LONG)?;
        anyhow::Ok(flow.mbits * frames)
    };
    let middle = |mbits, what: &dyn Fn() -> anyhow::Result<f64>| {
        let times = 0..repeats(mbits).0.min(rounds);
        let found = times.map(|_| what()).collect::<anyhow::Result<Vec<_>>>()?;
        anyhow::Ok(quartiles(found.into_iter())[1])
    };
    let most = RATES[RATES.len() - 1];
    let unlimited_udp = middle(most, &|| udp(most))?;
    let unlimited_tcp = tcp(&network.ends())?;
    for mbits in RATES {
        let burst = advised_burst(mbits);
        // UDP, which never sends less, shows the rate whatever is let through at once.
        let small = burst_of_5_ms(mbits).max(1 << 16);
        for limit in [Limit::Police { mbits, burst: small }, Limit::Ifb { mbits }, Limit::Ingress { mbits }] {
            let passed = middle(mbits, &|| network.with(limit, || udp(mbits)))?;
            note(limit, "UDP", mbits, passed, unlimited_udp);
        }
        for limit in [Limit::Police { mbits, burst }, Limit::Ifb { mbits }, Limit::Ingress { mbits }] {
            let passed = network.with(limit, || tcp(&network.ends()))?;
            note(limit, "TCP", mbits, passed, unlimited_tcp);
        }
    }
    let (mbits, burst, small) = (PLUGIN, advised_burst(PLUGIN), burst_of_5_ms(PLUGIN));
    for limit in [Limit::Plugin { mbits, burst: small }, Limit::PolicePlugin { mbits, burst }] {
        for (protocol, ends) in [(FROM, network.ends()), ("TCP to the container", network.back())] {
            let passed = network.with(limit, || tcp(&ends))?;
            note(limit, protocol, mbits, passed, unlimited_tcp);
        }
    }
    Ok(found)
}

/// As the document tells it, and what it does not tell.
fn table(report: &Report) -> Result<String, Error> {
    let mut text = String::new();
    writeln!(
        text,
        "UDP datagrams of 18 bytes that a container sends as fast as it can, through the router of its host; {} rounds of\n\
         {} ms, medians. The limits are far above the load. The document found \"very small\" loss by police, and 36 %\n\
         left by ifb.\n\n\
         {:<14} {:<26} {:>12} {:>8} {:>10}",
        report.rounds, report.milliseconds, "", "", "packets/s", "± %", "to no limit"
    )?;
    for Record { router, limit, packets, deviation, ratio } in &report.limits {
        writeln!(text, "{router:<14} {limit:<26} {packets:>12.0} {deviation:>8.1} {ratio:>10.2}")?;
    }
    if report.accuracy.is_empty() {
        return Ok(text);
    }
    writeln!(
        text,
        "\nHow exact limits are: Mbit/s as each counts, police at ingress without Ethernet's header; UDP payloads of\n\
         {PAYLOAD} bytes ({HEADERS} before them), medians.\n\n\
         {:<26} {:<22} {:>7} {:>8} {:>10} {:>8} {:>10}",
        "", "", "workers", "asked", "passed", "%", "without"
    )?;
    for Exactness { limit, protocol, workers, asked, passed, unlimited } in &report.accuracy {
        let share = 100.0 * passed / *asked as f64;
        let short = if *unlimited < *asked as f64 * 1.1 { "  (the machine carries no more)" } else { "" };
        writeln!(
            text,
            "{limit:<26} {protocol:<22} {workers:>7} {asked:>8} {passed:>10.2} {share:>8.2} {unlimited:>10.0}{short}"
        )?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn middle_half() {
        assert_eq!(quartiles([5.0, 1.0, 4.0, 2.0, 3.0].into_iter()), [2.0, 3.0, 4.0]);
        assert_eq!(quartiles(std::iter::empty()), [0.0; 3]);
    }

    #[test]
    fn bursts_take_segments() {
        assert_eq!(advised_burst(10), 524_288);
        assert_eq!(advised_burst(10_000), 375_000_000);
    }
}
