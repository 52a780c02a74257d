//! The five experiments of documents, and one of large numbers, one after the other, and the page that tells what they
//! found: each table in the shape of its document, with the document's figures beside.

mod bars;
mod counters;
mod fou;
mod mpls;
mod police;
mod scale;
mod segments;

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Instant,
};

use anyhow::{Context, ensure};
use serde::de::DeserializeOwned;

use underpass_daemon::{
    output::{markdown_table as table, print},
    processor,
};

/// Where the page goes, and how long is measured.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Directory for experiments.md and the plots in experiments/
    #[arg(long, value_name = "DIR", default_value = "docs")]
    out: PathBuf,
    /// Measure briefly, as a smoke test: the page says that its figures are not meaningful
    #[arg(long)]
    quick: bool,
}

/// A part of the page.
pub struct Section {
    title: &'static str,
    /// What the document measured and found, and what is measured here.
    about: &'static str,
    /// Markdown below the command.
    body: String,
    /// A name, and the drawing of that name.
    plots: Vec<(&'static str, String)>,
}

/// An experiment: the arguments of the commands that measure it, in full and in short, and how its section is written
/// from what they print.
struct Experiment {
    name: &'static str,
    commands: &'static [(&'static str, &'static str)],
    write: fn(&[String]) -> anyhow::Result<Section>,
}

const EXPERIMENTS: [Experiment; 6] = [
    Experiment {
        name: "counters",
        commands: &[("bench counters", "bench counters"), ("bench live", "bench live --rounds 1")],
        write: counters::section,
    },
    Experiment {
        name: "mpls",
        commands: &[
            ("lab mpls", "lab mpls --rounds 1 --time 0.05"),
            ("bench mpls-memory", "bench mpls-memory --routes 10000"),
        ],
        write: mpls::section,
    },
    Experiment {
        name: "segments",
        commands: &[("bench segments", "bench segments --rounds 5")],
        write: segments::section,
    },
    Experiment {
        name: "fou",
        commands: &[("lab fou", "lab fou --rounds 1 --time 0.06 --connections 5")],
        write: fou::section,
    },
    Experiment {
        name: "police",
        commands: &[
            ("bench police-vs-ifb", "bench police-vs-ifb"),
            ("lab police", "lab police --rounds 1 --time 0.05"),
        ],
        write: police::section,
    },
    Experiment {
        name: "scale",
        commands: &[("bench scale", "bench scale --routes 10000")],
        write: scale::section,
    },
];

/// Measures all and writes the page.
///
/// # Errors
/// An experiment fails, or the page cannot be written; what was there before is then still there.
pub fn write(program: &Path, args: &Args) -> anyhow::Result<()> {
    let mut sections = Vec::new();
    for (number, experiment) in EXPERIMENTS.iter().enumerate() {
        let (start, of) = (Instant::now(), EXPERIMENTS.len());
        eprintln!("experiment {} of {of}: {} …", number + 1, experiment.name);
        let mut printed = Vec::new();
        for (full, short) in experiment.commands {
            printed.push(run(program, if args.quick { short } else { full })?);
        }
        let section = (experiment.write)(&printed).with_context(|| experiment.name)?;
        eprintln!("{} took {:.0} s", experiment.name, start.elapsed().as_secs_f64());
        sections.push((experiment, section));
    }
    let plots = args.out.join("experiments");
    fs::create_dir_all(&plots).with_context(|| format!("{}", plots.display()))?;
    for (name, drawing) in sections.iter().flat_map(|(_, section)| &section.plots) {
        let file = plots.join(format!("{name}.svg"));
        fs::write(&file, drawing).with_context(|| format!("{}", file.display()))?;
    }
    let file = args.out.join("experiments.md");
    fs::write(&file, page(&sections, &Machine::here(), args.quick)?)
        .with_context(|| format!("{}", file.display()))?;
    Ok(print(&format!("{}\n", file.display()))?)
}

/// What this program prints in JSON when it is run with these arguments.
fn run(program: &Path, arguments: &str) -> anyhow::Result<String> {
    eprintln!("underpass {arguments} …");
    let mut command = Command::new(program);
    command.args(arguments.split_whitespace()).arg("--json").stdin(Stdio::null()).stderr(Stdio::inherit());
    if arguments.starts_with("bench segments") {
        // It draws of itself; its own page of the docs has that.
        command.args(["--svg", "/dev/null"]);
    }
    let output = command.output().with_context(|| format!("underpass {arguments}"))?;
    ensure!(output.status.success(), "underpass {arguments}: {}", output.status);
    String::from_utf8(output.stdout).with_context(|| format!("underpass {arguments}"))
}

/// What a command has printed.
fn read<T: DeserializeOwned>(printed: &[String], number: usize) -> anyhow::Result<T> {
    let text = printed.get(number).context("a command is missing")?;
    serde_json::from_str(text).context("what it printed is of another shape than this page reads")
}

/// Where it was measured.
struct Machine {
    processor: String,
    cores: usize,
    kernel: String,
}

impl Machine {
    fn here() -> Self {
        let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Self {
            processor: processor::name(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: release.trim().to_owned(),
        }
    }
}

fn page(
    sections: &[(&Experiment, Section)],
    machine: &Machine,
    quick: bool,
) -> Result<String, std::fmt::Error> {
    let mut page = String::new();
    writeln!(
        page,
        "# Experiments\n\n\
         Five documents measured what this router does. Here are their experiments with this router, and their figures\n\
         beside; and one more of large numbers. This page is what `underpass lab all` writes; nothing in it is typed by hand.\n\n\
         Measured by version {} on {} ({} virtual cores), Linux {}. The documents' machines were others: compare\n\
         ratios, not figures.",
        env!("CARGO_PKG_VERSION"),
        machine.processor,
        machine.cores,
        machine.kernel
    )?;
    if quick {
        writeln!(page, "\n**Measured with `--quick`: far too shortly for the figures to mean anything.**")?;
    }
    for (experiment, section) in sections {
        writeln!(page, "\n## {}\n\n{}\n", section.title, section.about)?;
        for (full, short) in experiment.commands {
            writeln!(page, "    underpass {}", if quick { short } else { full })?;
        }
        writeln!(page, "\n{}", section.body.trim_end())?;
        for (name, _) in &section.plots {
            writeln!(page, "\n![{}](experiments/{name}.svg)", section.title)?;
        }
    }
    Ok(page)
}

/// A figure with thousands apart.
fn thousands(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut text = if value < -0.5 { "-".to_owned() } else { String::new() };
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the commands print, shortened, as files beside this one.
    fn printed(name: &str) -> Vec<String> {
        let of = |file: &str| fs::read_to_string(format!("src/lab/all/samples/{file}.json")).unwrap();
        match name {
            "counters" => vec![of("counters"), of("live")],
            "mpls" => vec![of("mpls"), of("mpls-memory")],
            "police" => vec![of("police-vs-ifb"), of("police")],
            name => vec![of(name)],
        }
    }

    #[test]
    fn every_section_is_written() {
        let sections: Vec<_> = EXPERIMENTS
            .iter()
            .map(|experiment| (experiment, (experiment.write)(&printed(experiment.name)).unwrap()))
            .collect();
        for (experiment, section) in &sections {
            assert!(!section.plots.is_empty(), "{}", experiment.name);
            for (_, plot) in &section.plots {
                assert!(plot.starts_with("<svg") && plot.ends_with("</svg>\n") && !plot.contains("NaN"));
            }
            let lines: Vec<_> = section.body.lines().filter(|line| line.starts_with('|')).collect();
            assert!(lines.len() > 3, "{}", section.body);
            assert!(!section.body.contains("NaN") && !section.body.contains("inf"), "{}", section.body);
        }
        let machine = Machine { processor: "a processor".to_owned(), cores: 2, kernel: "6.12".to_owned() };
        let page = page(&sections, &machine, false).unwrap();
        for wanted in
            ["1,504,765", "30,115", "9,311", "36 %", "underpass lab police\n", "experiments/fou.svg", "383.9"]
        {
            assert!(page.contains(wanted), "{wanted}:\n{page}");
        }
    }

    /// The page of the docs has the sections, the commands and the tables that this program writes.
    #[test]
    fn the_page_of_the_docs_is_of_today() {
        let sections: Vec<_> = EXPERIMENTS
            .iter()
            .map(|experiment| (experiment, (experiment.write)(&printed(experiment.name)).unwrap()))
            .collect();
        let machine = Machine { processor: String::new(), cores: 2, kernel: String::new() };
        // Headings, commands, plots, and of tables the line with the names of their columns.
        let shape = |page: &str| -> Vec<String> {
            let lines: Vec<&str> = page.lines().collect();
            let told = |pair: &&[&str]| {
                let [line, next] = pair else { return false };
                line.starts_with("##")
                    || line.starts_with("    ")
                    || line.starts_with("![")
                    || next.starts_with("| ---")
            };
            lines.windows(2).filter(told).map(|pair| pair[0].to_owned()).collect()
        };
        let docs = include_str!("../../../../docs/experiments.md");
        assert_eq!(shape(docs), shape(&page(&sections, &machine, false).unwrap()));
    }

    #[test]
    fn results_of_another_shape_are_refused() {
        let error = (EXPERIMENTS[1].write)(&["[]".to_owned()]).err().unwrap();
        assert!(error.to_string().contains("another shape"), "{error}");
    }

    #[test]
    fn thousands_are_apart() {
        for (value, text) in [(0.0, "0"), (999.4, "999"), (1_504_764.8, "1,504,765"), (-1000.0, "-1,000")] {
            assert_eq!(thousands(value), text);
        }
    }
}
