//! MPLS routes: transactions a second over label-switched paths, and what a route takes of memory.

use serde::Deserialize;

use super::{
    Section,
    bars::{self, Bars, Group},
    read, table, thousands,
};

#[derive(Deserialize)]
struct Report {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    family: String,
    labels: u8,
    nexthops: u8,
    plain: Figures,
    mpls: Figures,
    ratio: f64,
}

#[derive(Deserialize)]
struct Figures {
    rate: f64,
    latency: [f64; 3],
}

/// What a route takes of memory, in bytes.
#[derive(Deserialize)]
struct Memory {
    via: String,
    next_hops: usize,
    labels: usize,
    /// By the document's layout.
    linux: usize,
    computed: usize,
    measured: f64,
}

/// What the document has: the case, transactions a second before its change and after it.
const DOCUMENT: [(&str, u8, u8, f64, f64); 8] = [
    ("IPv4", 1, 1, 29908.0, 30115.0),
    ("IPv4", 2, 1, 29071.0, 29612.0),
    ("IPv4", 1, 2, 29582.0, 29776.0),
    ("IPv4", 2, 2, 29086.0, 29149.0),
    ("IPv6", 1, 1, 24502.0, 24960.0),
    ("IPv6", 2, 1, 24041.0, 24407.0),
    ("IPv6", 1, 2, 23795.0, 23899.0),
    ("IPv6", 2, 2, 23074.0, 22959.0),
];

pub fn section(printed: &[String]) -> anyhow::Result<Section> {
    let (report, memory): (Report, Vec<Memory>) = (read(printed, 0)?, read(printed, 1)?);
    let (mut rows, mut groups) = (Vec::new(), Vec::new());
    for (family, labels, nexthops, before, after) in DOCUMENT {
        let same =
            |case: &&Case| (case.family.as_str(), case.labels, case.nexthops) == (family, labels, nexthops);
        let Some(case) = report.cases.iter().find(same) else { continue };
        let latency = |figures: &Figures| figures.latency.map(|micros| format!("{micros:.0}")).join("/");
        let name = format!("{family}, {labels} label, {nexthops} nexthop");
        rows.push(vec![
            name.clone(),
            thousands(before),
            thousands(after),
            thousands(case.plain.rate),
            thousands(case.mpls.rate),
            format!("{:.2}", case.ratio),
            latency(&case.plain),
            latency(&case.mpls),
        ]);
        groups.push(Group { name, values: vec![Some(case.plain.rate), Some(case.mpls.rate)] });
    }
    let head = ["", "document: before", "after", "plain", "MPLS", "ratio", "plain, µs", "MPLS, µs"];
    let title = "Transactions a second".to_owned();
    let drawing = bars::svg(&Bars { title, series: vec!["plain forwarding", "MPLS"], groups })?;
    let memory: Vec<_> = memory
        .iter()
        .map(|row| {
            let Memory { via, next_hops, labels, linux, computed, measured } = row;
            let via = match via.as_str() {
                "ethernet" => "Ethernet",
                "ipv4" => "IPv4",
                _ => "IPv6",
            };
            let numbers = [next_hops, labels, linux, computed].map(usize::to_string);
            [via.to_owned()].into_iter().chain(numbers).chain([format!("{measured:.1}")]).collect()
        })
        .collect();
    let memory =
        table(1, &["via", "next hops", "labels", "document: bytes", "computed", "measured"], &memory);
    Ok(Section {
        title: "MPLS routes",
        about: "The document packs next hops of label routes closer and looks for what that does to latency: UDP requests and\n\
                responses of one byte through namespaces that push, swap and pop one label or two, with one next hop or two.\n\
                Here each path is measured beside plain forwarding through the same routers; latency is that of 50, 90\n\
                and 99 % of the transactions. This kernel has no MPLS. Then what a route takes of memory:\n\
                a million label routes by a thousand neighbours, or groups of them; `computed` is what the layout of this router\n\
                takes, `measured` what the process has grown by, divided by the routes.",
        body: format!("{}\n{memory}", table(1, &head, &rows)),
        plots: vec![("mpls", drawing)],
    })
}
