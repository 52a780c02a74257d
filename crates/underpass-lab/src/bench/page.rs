//! The figures as a page of the docs, `docs/benchmarks.md`: a table for each kind of scenario, and how many rows are how far
//! below VPP.

use std::fmt::{self, Write};

use super::report::{Record, Report, SHARED};
use underpass_daemon::output::markdown_table;

/// The parts of the page, and what the names of their scenarios begin with.
const PARTS: [(&str, &[&str]); 8] = [
    ("IPv4 and IPv6", &["ip4", "ip6"]),
    ("VLANs, bridges and VXLANs", &["vlan-", "bridge-", "vxlan-"]),
    ("SRv6, RPL and IOAM", &["srv6-", "rpl-", "ioam-"]),
    ("MPLS", &["mpls-"]),
    ("Tunnels", &["ipip-", "sit-", "gre-", "fou-", "gue-"]),
    ("Mixed traffic", &["mix-"]),
    ("Policing and shaping", &["police-", "flower-", "u32-", "ifb-", "ingress-", "htb-"]),
    ("Counters", &["counters-"]),
];

/// Shares of VPP's cycles that rows are counted by.
const SHARES: [f64; 3] = [0.5, 0.67, 1.0];

/// The page, which `command` has printed on this processor.
pub fn of(report: &Report, command: &str, processor: &str) -> Result<String, fmt::Error> {
    let mut page = String::new();
    writeln!(
        page,
        "# Benchmarks\n\n\
         What the path of a packet costs. [performance.md](performance.md) tells how it is measured, and what VPP's figures are.\n\
         This page is what the command below prints; nothing in it is typed by hand.\n\n    {command}\n\n\
         Measured on {processor}, core {}, whose time-stamp counter ticks at {:.2} GHz. *ticks* are the counter's, *cycles* the\n\
         core's, whose speed changes. VPP's figures are cycles too, and have its sink in them; *ratio* is Underpass's cycles with\n\
         its sink to these.{}",
        report.core,
        report.ticks_per_nanosecond,
        match report.runs {
            1 => String::new(),
            runs => format!(
                " Of {runs} runs the figures are those of the middle one by cycles; *fewest* has the fewest of all."
            ),
        }
    )?;
    if report.records.iter().any(|record| record.core_shared == Some(true)) {
        writeln!(page, "\n\\*: {SHARED}.")?;
    }
    let ratios: Vec<f64> = report.records.iter().filter_map(Record::ratio).collect();
    if !ratios.is_empty() {
        writeln!(page, "\nOf {} scenarios that VPP's cycles are known of:\n", ratios.len())?;
        let rows = SHARES.map(|share| {
            let count = ratios.iter().filter(|ratio| **ratio <= share).count();
            vec![format!("at most {share} of VPP's cycles"), count.to_string()]
        });
        page += &markdown_table(1, &["", "scenarios"], &rows);
    }
    for (title, prefixes) in PARTS {
        let records = report.records.iter();
        let records: Vec<_> =
            records.filter(|record| prefixes.iter().any(|prefix| record.name.starts_with(prefix))).collect();
        if !records.is_empty() {
            writeln!(page, "\n## {title}\n")?;
            page += &table(&records);
        }
    }
    Ok(page)
}

fn table(records: &[&Record]) -> String {
    let cell = |figure: Option<f64>, digits: usize| {
        figure.map_or(String::new(), |figure| format!("{figure:.digits$}"))
    };
    let row = |record: &&Record| {
        let mpps = match (record.mpps_deviation, record.gbit_per_second) {
            (Some(deviation), _) => format!("{:.2} ± {deviation:.2}", record.mpps),
            (_, Some(gbit)) => format!("{:.2} ({gbit:.0} Gbit/s)", record.mpps),
            _ => format!("{:.2}", record.mpps),
        };
        vec![
            format!("`{}`", record.name),
            mpps,
            format!("{:.1}", record.path_ticks),
            cell(record.path_cycles, 1) + record.mark().trim_end().replace('*', "\\*").as_str(),
            cell(record.lowest_cycles, 1),
            record.vpp.map_or(String::new(), |vpp| vpp.to_string()),
            cell(record.ratio(), 2),
        ]
    };
    let head = ["scenario", "Mpps", "ticks", "cycles", "fewest", "VPP", "ratio"];
    markdown_table(1, &head, &records.iter().map(row).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::clock::Pace;
    use super::super::counters::VARIANTS;
    use super::super::measure::Cost;
    use super::super::{COUNTERS, FLOOR, all, large};
    use super::*;

    #[test]
    fn figures_are_those_of_the_middle_run() {
        let scenarios = all();
        let run = |ticks: f64, sums_per_cycle: f64| {
            let pace = Some(Pace { cycles_per_tick: 1.5, sums_per_cycle });
            let record = |name: &str| {
                let scenario = scenarios.iter().find(|scenario| scenario.name == name).unwrap();
                Record::new(scenario, &Cost { packets: 1, floor: 1.0, path: ticks, pace }, 2.0, Some(3.0))
            };
            vec![record("ip4"), record("srv6-un")]
        };
        let runs = vec![run(42.0, 2.5), run(20.0, 4.4), run(24.0, 2.4)];
        let page = of(&Report::new(1, 2.0, runs), "a command", "a processor").unwrap();
        assert!(page.contains("\n    a command\n\nMeasured on a processor, core 1,"), "{page}");
        assert!(page.contains("| `ip4` | 83.33 | 24.0 | 36.0\\* | 30.0 | 75 | 0.52 |"), "{page}");
        assert!(page.contains("\n\\*: another thread had a part"), "{page}");
        assert!(page.contains("| at most 0.5 of VPP's cycles | 1 |"), "{page}");
        assert!(page.contains("## SRv6") && !page.contains("## MPLS"), "{page}");
    }

    /// None is left out.
    #[test]
    fn every_scenario_has_a_part() {
        let scenarios = all();
        let names = scenarios.iter().map(|scenario| scenario.name.as_str()).chain(large::NAMES);
        for name in names.filter(|name| *name != FLOOR && *name != COUNTERS) {
            let parts =
                PARTS.iter().filter(|(_, prefixes)| prefixes.iter().any(|prefix| name.starts_with(prefix)));
            assert_eq!(parts.count(), 1, "{name}");
        }
    }

    /// The page of the docs was written by this program as it is: its scenarios, and VPP's figures for them.
    #[test]
    fn the_page_of_the_docs_is_of_today() {
        let page = include_str!("../../../../docs/benchmarks.md");
        let shown: BTreeMap<String, String> = page
            .lines()
            .filter_map(|line| {
                let mut cells = line.strip_prefix("| `")?.split(" | ");
                let name = cells.next()?.trim_end_matches('`');
                Some((name.to_owned(), cells.nth(4)?.to_owned()))
            })
            .collect();
        let mut known: BTreeMap<_, _> = all()
            .into_iter()
            .map(|scenario| (scenario.name, scenario.vpp.map_or(String::new(), |vpp| vpp.to_string())))
            .chain(large::NAMES.map(|name| (name.to_owned(), String::new())))
            .chain(VARIANTS.map(|name| (format!("counters-{}", name.replace(' ', "-")), String::new())))
            .collect();
        known.retain(|name, _| ![FLOOR, COUNTERS].contains(&name.as_str()));
        assert_eq!(shown, known, "make bench, and write docs/benchmarks.md anew");
    }
}
