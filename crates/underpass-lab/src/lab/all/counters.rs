//! Counters of SRv6 behaviours: what they cost End.DX2.

use serde::Deserialize;

use super::{
    Section,
    bars::{self, Bars, Group},
    read, table, thousands,
};

#[derive(Deserialize)]
struct Row {
    name: String,
    mpps: f64,
    mpps_deviation: f64,
    path_clocks: f64,
    difference_percent: f64,
}

#[derive(Deserialize)]
struct Live {
    sinks: Vec<Sink>,
    cases: Vec<Case>,
    tcp: Vec<Tcp>,
}

#[derive(Deserialize)]
struct Sink {
    sink: String,
    fast_path: Option<String>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    sink: String,
    kernel: Figures,
    workers: Option<Figures>,
    fast_path: Option<Figures>,
}

#[derive(Deserialize)]
struct Figures {
    per_cpu_second: f64,
    ratio: f64,
}

#[derive(Deserialize)]
struct Tcp {
    name: String,
    base: String,
    kernel: Option<Stream>,
    workers: Stream,
    fast_path: Option<Stream>,
}

#[derive(Deserialize)]
struct Stream {
    gbps: f64,
    ratio: f64,
}

/// What the document has: the scenario, packets a second, and their standard deviation.
const DOCUMENT: [(&str, &str, f64, f64); 3] = [
    ("counters-compiled-out", "without counters", 1_504_764.81, 3956.82),
    ("counters-off", "counters off", 1_501_469.78, 2979.85),
    ("counters-on", "counters on", 1_501_315.13, 2956.0),
];

pub fn section(printed: &[String]) -> anyhow::Result<Section> {
    let (found, live): (Vec<Row>, Live) = (read(printed, 0)?, read(printed, 1)?);
    let (mut rows, mut groups) = (Vec::new(), Vec::new());
    for (name, words, packets, deviation) in DOCUMENT {
        let Some(row) = found.iter().find(|row| row.name == name) else { continue };
        rows.push(vec![
            words.to_owned(),
            format!("{} ± {}", thousands(packets), thousands(deviation)),
            format!("{:+.2} %", 100.0 * (packets / DOCUMENT[0].2 - 1.0)),
            format!("{} ± {}", thousands(row.mpps * 1e6), thousands(row.mpps_deviation * 1e6)),
            format!("{:+.2} %", row.difference_percent),
            format!("{:.1}", row.path_clocks),
        ]);
        let shares = [packets / DOCUMENT[0].2 * 100.0, 100.0 + row.difference_percent];
        groups.push(Group { name: words.to_owned(), values: shares.map(Some).into() });
    }
    let memory = table(
        1,
        &["End.DX2", "document: packets/s", "", "Underpass: packets/s", "", "clocks a packet"],
        &rows,
    );
    let live = through_devices(&live);
    let title = "Packets a second, of those without counters, in percent".to_owned();
    let drawing = bars::svg(&Bars { title, series: vec!["document", "Underpass"], groups })?;
    Ok(Section {
        title: "Counters of SRv6 behaviours",
        about: "The document adds counters to the kernel's behaviours and measures End.DX2 with packets of 100 bytes on one\n\
                core: without them, with a route that does not ask for them, and with one that does. Here the packets\n\
                come from memory; then all goes through devices, beside this kernel's own behaviours, without their\n\
                counters. Differences below the standard deviation are noise.",
        body: format!("{memory}\n{live}"),
        plots: vec![("counters", drawing)],
    })
}

/// The rates of packets by sink, and those of TCP.
fn through_devices(live: &Live) -> String {
    let mut text = String::new();
    let figure = |figures: Option<&Figures>| match figures {
        Some(Figures { per_cpu_second, ratio }) => [thousands(per_cpu_second / 1e3), format!("{ratio:.2}")],
        None => ["-", "-"].map(str::to_owned),
    };
    for Sink { sink, fast_path } in &live.sinks {
        let rows: Vec<_> = live
            .cases
            .iter()
            .filter(|case| case.sink == *sink)
            .map(|case| {
                let kernel = thousands(case.kernel.per_cpu_second / 1e3);
                let [workers, fast] =
                    [&case.workers, &case.fast_path].map(|figures| figure(figures.as_ref()));
                [&[case.name.clone(), kernel][..], &workers, &fast].concat()
            })
            .collect();
        let title = format!("{sink} sink");
        let by = fast_path.as_deref().unwrap_or("fast path");
        text += &table(1, &[&title, "this kernel", "workers", "ratio", by, "ratio"], &rows);
        text.push('\n');
    }
    let stream = |stream: Option<&Stream>| match stream {
        Some(Stream { gbps, ratio }) => [format!("{gbps:.2}"), format!("{ratio:.2}")],
        None => ["-", "-"].map(str::to_owned),
    };
    let rows: Vec<_> = live
        .tcp
        .iter()
        .map(|row| {
            let [kernel, _] = stream(row.kernel.as_ref());
            let (workers, fast) = (stream(Some(&row.workers)), stream(row.fast_path.as_ref()));
            [&[row.name.clone(), kernel][..], &workers, &fast, std::slice::from_ref(&row.base)].concat()
        })
        .collect();
    text + &table(
        1,
        &["TCP over", "this kernel", "workers", "ratio", "fast path", "ratio", "ratios to"],
        &rows,
    )
}
