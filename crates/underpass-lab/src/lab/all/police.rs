//! What comes in limited by police, by ifb and HTB, and by HTB alone.

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
    share_percent: f64,
    share_deviation: f64,
    path_clocks: f64,
}

#[derive(Deserialize)]
struct Report {
    limits: Vec<Limit>,
    accuracy: Vec<Exactness>,
}

#[derive(Deserialize)]
struct Limit {
    router: String,
    limit: String,
    packets: f64,
    deviation: f64,
    ratio: f64,
}

#[derive(Deserialize)]
struct Exactness {
    limit: String,
    protocol: String,
    workers: u8,
    asked: u64,
    passed: f64,
    unlimited: f64,
}

/// A limit as each of the two commands names it.
const LIMITS: [(&str, &str); 4] = [
    ("none", "no limit"),
    ("police", "police at ingress"),
    ("ifb", "ifb + HTB"),
    ("ingress-htb", "HTB at ingress, no ifb"),
];

pub fn section(printed: &[String]) -> anyhow::Result<Section> {
    let (memory, report): (Vec<Row>, Report) = (read(printed, 0)?, read(printed, 1)?);
    let (mut rows, mut groups) = (Vec::new(), Vec::new());
    for (name, limit) in LIMITS {
        let of = |router: &str| report.limits.iter().find(|row| row.router == router && row.limit == limit);
        let Some(row) = memory.iter().find(|row| row.name == name) else { continue };
        let document = match name {
            "none" => "100 %",
            "police" => "\"very small\" loss",
            "ifb" => "36 %",
            _ => "",
        };
        let told = |limit: Option<&Limit>| {
            let told = |limit: &Limit| {
                format!("{} ± {:.0} % ({:.2})", thousands(limit.packets), limit.deviation, limit.ratio)
            };
            limit.map_or(String::new(), told)
        };
        rows.push(vec![
            limit.to_owned(),
            document.to_owned(),
            format!("{:.2} ± {:.2}", row.mpps, row.mpps_deviation),
            format!("{:.0} ± {:.0} %", row.share_percent, row.share_deviation),
            format!("{:.1}", row.path_clocks),
            told(of("Underpass")),
            told(of("this kernel")),
        ]);
        let document = match name {
            "none" => Some(100.0),
            "ifb" => Some(36.0),
            _ => None,
        };
        let share = |router| of(router).map(|limit| 100.0 * limit.ratio);
        let values = vec![document, Some(row.share_percent), share("Underpass"), share("this kernel")];
        groups.push(Group { name: limit.to_owned(), values });
    }
    let head = [
        "",
        "document",
        "from memory: Mpps",
        "of no limit",
        "clocks",
        "through devices: packets/s",
        "this kernel: packets/s",
    ];
    let limits = table(2, &head, &rows);
    let rows: Vec<_> = report.accuracy.iter().map(exactness).collect();
    let head = ["", "", "workers", "asked for, Mbit/s", "passed", "%", "without a limit"];
    let accuracy = table(2, &head, &rows);
    let series = vec![
        "document",
        "Underpass, from memory",
        "Underpass, through devices",
        "this kernel, through devices",
    ];
    let title = "Packets a second, of those without a limit, in percent".to_owned();
    let drawing = bars::svg(&Bars { title, series, groups })?;
    Ok(Section {
        title: "Policing against ifb and HTB",
        about: "In the document a container's packets are limited where they come into its host, by a rate far above what comes:\n\
                redirected to an ifb with HTB, 36 % of the packets a second are left; by police, nearly all. Here the same\n\
                from memory and through devices, in parentheses what is left of no limit, and an HTB on the ingress hook\n\
                itself. This kernel has no policer. Then how exact the limits are: medians, in Mbit/s as each counts (police\n\
                at ingress without Ethernet's header, as in Linux), in bold what is not within 1 % of what was asked for, unless\n\
                the machine carries no more than that without a limit.",
        body: format!("{limits}\n{accuracy}"),
        plots: vec![("police", drawing)],
    })
}

fn exactness(row: &Exactness) -> Vec<String> {
    let asked = row.asked as f64;
    let share = 100.0 * row.passed / asked;
    let carried = row.unlimited >= asked * 1.1;
    let share = if carried && (share - 100.0).abs() > 1.0 {
        format!("**{share:.1}**")
    } else {
        format!("{share:.1}")
    };
    vec![
        row.limit.clone(),
        row.protocol.clone(),
        row.workers.to_string(),
        thousands(asked),
        if row.passed < 100.0 { format!("{:.2}", row.passed) } else { thousands(row.passed) },
        share,
        thousands(row.unlimited),
    ]
}
