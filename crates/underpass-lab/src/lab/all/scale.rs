//! Everything at once: what a million routes, a million labels and more take of memory and time, and two workers.

use serde::Deserialize;

use super::{
    Section,
    bars::{self, Bars, Group},
    read, table, thousands,
};

#[derive(Deserialize)]
struct Report {
    start: f64,
    memory: usize,
    objects: Vec<Row>,
    workers: Vec<Pair>,
}

#[derive(Deserialize)]
struct Row {
    kind: String,
    number: u32,
    bytes: f64,
    vpp_bytes: Option<String>,
    seconds: f64,
    updates: f64,
    clocks: f64,
}

#[derive(Deserialize)]
struct Pair {
    scenario: String,
    one: f64,
    two: f64,
    ratio: f64,
}

pub fn section(printed: &[String]) -> anyhow::Result<Section> {
    let report: Report = read(printed, 0)?;
    let (mut rows, mut groups) = (Vec::new(), Vec::new());
    for row in &report.objects {
        let vpp = row.vpp_bytes.clone().unwrap_or_default();
        rows.push(vec![
            row.kind.clone(),
            thousands(row.number.into()),
            thousands(row.bytes),
            vpp.clone(),
            format!("{:.2} s", row.seconds),
            thousands(row.updates),
            thousands(row.clocks),
        ]);
        // Of a range the lower end.
        let least = vpp.split('–').next().and_then(|least| least.parse().ok());
        if least.is_some() {
            groups.push(Group { name: row.kind.clone(), values: vec![least, Some(row.bytes)] });
        }
    }
    let head = ["", "number", "bytes for one", "VPP", "added in", "a second", "clocks a packet"];
    let objects = table(1, &head, &rows);
    let rows: Vec<_> = report
        .workers
        .iter()
        .map(|pair| {
            let [one, two, ratio] = [pair.one, pair.two, pair.ratio].map(|figure| format!("{figure:.2}"));
            vec![format!("`{}`", pair.scenario), one, two, ratio]
        })
        .collect();
    let workers = table(1, &["", "one worker, Mpps", "two", "ratio"], &rows);
    let drawing =
        bars::svg(&Bars { title: "Bytes for one".to_owned(), series: vec!["VPP", "Underpass"], groups })?;
    Ok(Section {
        title: "Everything at once",
        about: "Not of a document: objects of six kinds in one router at the same time, added by netlink requests, and then\n\
                packets of each kind with all of it there. Bytes are what the process has grown by, for one object; a\n\
                tunnel's are with the routes into it, a policer's with its filter. VPP's are those of its own tables.\n\
                Then two workers, each on a core with packets of its own, beside one of them alone; these rates are with\n\
                the generator of the packets.",
        body: format!(
            "{objects}\nAll of it takes {} MiB, and is there {:.1} s after the start.\n\n{workers}",
            thousands(report.memory as f64 / f64::from(1 << 20)),
            report.start
        ),
        plots: vec![("scale", drawing)],
    })
}
