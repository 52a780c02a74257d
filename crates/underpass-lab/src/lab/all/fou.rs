//! Foo-over-UDP: TCP through tunnels.

use serde::Deserialize;

use super::{
    Section,
    bars::{self, Bars, Group},
    read, table, thousands,
};

#[derive(Deserialize)]
struct Report {
    tunnels: Vec<Tunnel>,
    references: Vec<Reference>,
    goals: Vec<Goal>,
}

#[derive(Deserialize)]
struct Tunnel {
    tunnel: String,
    encapsulation: String,
    stream: Stream,
    transactions: Transactions,
    ratios: Ratios,
}

#[derive(Deserialize)]
struct Reference {
    way: String,
    stream: Stream,
    transactions: Transactions,
}

#[derive(Deserialize)]
struct Stream {
    mbits: f64,
    cpu: Cpu,
}

#[derive(Deserialize)]
struct Cpu {
    receiver: f64,
    router: f64,
}

#[derive(Deserialize)]
struct Transactions {
    rate: f64,
    /// 50, 90, 95 and 99 %, in µs.
    latency: [f64; 4],
}

#[derive(Deserialize)]
struct Ratios {
    no_fou: f64,
    plain: f64,
    cut: f64,
}

#[derive(Deserialize)]
struct Goal {
    what: String,
    at_least: f64,
    found: f64,
}

/// What the document has of a tunnel: Mbit/s of a stream, CPU of the receiver in %, transactions a second, and their
/// latency at 90, 95 and 99 % in µs.
type Documented = (&'static str, &'static str, &'static str, f64, f64, f64, [u32; 3]);
const DOCUMENT: [Documented; 9] = [
    ("GRE", "fou-csum", "FOU, checksum", 9310.6, 24.85, 1.17018e6, [155, 249, 460]),
    ("GRE", "fou", "FOU", 9302.22, 31.04, 1.17555e6, [154, 239, 419]),
    ("GRE", "none", "no FOU", 9354.58, 23.13, 1.18169e6, [156, 228, 360]),
    ("IPIP", "fou-csum", "FOU, checksum", 9328.0, 24.13, 1.19553e6, [149, 237, 429]),
    ("IPIP", "fou", "FOU", 9370.25, 29.13, 1.19225e6, [149, 232, 398]),
    ("IPIP", "none", "no FOU", 5302.03, 10.43, 864_998.0, [215, 324, 475]),
    ("SIT", "fou-csum", "FOU, checksum", 9176.76, 30.38, 1.03372e6, [170, 281, 581]),
    ("SIT", "fou", "FOU", 9176.57, 39.6, 1.03203e6, [167, 272, 548]),
    ("SIT", "none", "no FOU", 4636.05, 11.2, 813_199.0, [232, 346, 489]),
];

pub fn section(printed: &[String]) -> anyhow::Result<Section> {
    let report: Report = read(printed, 0)?;
    let figures = |stream: &Stream, transactions: &Transactions| {
        let [_, p90, p95, p99] = transactions.latency;
        [
            thousands(stream.mbits),
            format!("{:.0} + {:.0}", stream.cpu.receiver, stream.cpu.router),
            thousands(transactions.rate),
            [p90, p95, p99].map(|micros| format!("{micros:.0}")).join("/"),
        ]
    };
    let (mut rows, mut groups) = (Vec::new(), Vec::new());
    for (kind, encapsulation, words, mbits, cpu, rate, latency) in DOCUMENT {
        let same = |tunnel: &&Tunnel| tunnel.tunnel == kind && tunnel.encapsulation == encapsulation;
        let Some(found) = report.tunnels.iter().find(same) else { continue };
        let name = format!("{kind}, {words}");
        let latency = latency.map(|micros| micros.to_string()).join("/");
        let mut row = vec![name.clone(), thousands(mbits), format!("{cpu:.0}"), thousands(rate), latency];
        row.extend(figures(&found.stream, &found.transactions));
        row.extend(
            [found.ratios.no_fou, found.ratios.plain, found.ratios.cut].map(|ratio| format!("{ratio:.2}")),
        );
        rows.push(row);
        groups.push(Group { name, values: vec![Some(mbits), Some(found.stream.mbits)] });
    }
    for reference in &report.references {
        let name = match reference.way.as_str() {
            "ipv4" => "no tunnel, IPv4",
            "ipv6" => "no tunnel, IPv6",
            _ => "no router between",
        };
        let mut row = vec![name.to_owned()];
        row.extend([const { String::new() }; 4]);
        row.extend(figures(&reference.stream, &reference.transactions));
        row.extend([const { String::new() }; 3]);
        rows.push(row);
        groups.push(Group { name: name.to_owned(), values: vec![None, Some(reference.stream.mbits)] });
    }
    let head = [
        "",
        "document: Mbit/s",
        "CPU %",
        "tps",
        "90/95/99 %, µs",
        "Mbit/s",
        "CPU %",
        "tps",
        "90/95/99 %, µs",
        "to no FOU",
        "to no tunnel",
        "to cut",
    ];
    let goals: Vec<_> = report
        .goals
        .iter()
        .map(|goal| vec![goal.what.clone(), format!("{:.2}", goal.at_least), format!("{:.2}", goal.found)])
        .collect();
    let goals = table(1, &["least of all tunnels", "goal", "found"], &goals);
    let title = "A TCP stream, Mbit/s".to_owned();
    let drawing = bars::svg(&Bars { title, series: vec!["document", "Underpass"], groups })?;
    Ok(Section {
        title: "Foo-over-UDP",
        about: "The document measures TCP streams and transactions through GRE, IPIP and SIT, with foo-over-UDP and without, on a\n\
                network of 10 Gbit/s and with the sender's segmentation off. Here hosts and routers are namespaces of one\n\
                machine, whose cores they share. CPU is that of the receiver and of its router, in percent of a core; `cut` is the\n\
                same tunnel where no device keeps segments together. This kernel has none of these tunnels.",
        body: format!("{}\n{goals}", table(1, &head, &rows)),
        plots: vec![("fou", drawing)],
    })
}
