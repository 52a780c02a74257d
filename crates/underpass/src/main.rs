//! A userspace router for Linux tunnels and traffic control.

#[cfg(test)]
mod book;
mod doctor;
mod exec;
mod fleet;
mod generate;
mod replay;
mod run;
mod save;
mod stats;
mod top;
mod trace;

use std::{
    io::{self, IsTerminal},
    process::ExitCode,
};

use clap::{Parser, Subcommand};
use nix::{errno::Errno, unistd::geteuid};
use underpass_daemon::{processor, sid};
use underpass_lab::{bench, lab};

/// A userspace router for Linux tunnels and traffic control, configured by ip and tc.
#[derive(Debug, Parser)]
#[command(name = "underpass", version, about, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// One variant, and one file of that name, a subcommand.
#[derive(Debug, Subcommand)]
enum Command {
    Run(run::Args),
    Exec(exec::Args),
    Save(save::Args),
    Sid(sid::Args),
    Stats(stats::Args),
    Top(top::Args),
    Trace(trace::Args),
    Replay(replay::Args),
    Bench(bench::Args),
    Lab(lab::Args),
    Doctor(doctor::Args),
    Generate(generate::Args),
}

fn main() -> ExitCode {
    if let Some(feature) = processor::missing() {
        eprintln!("underpass: this processor has no {feature}: build with RUSTFLAGS=-Ctarget-cpu=x86-64");
        return ExitCode::FAILURE;
    }
    if let Err(error) = underpass_daemon::launch::shed_library() {
        eprintln!("underpass: cannot start without the preload library: {error}");
        return ExitCode::FAILURE;
    }
    let cli = Cli::parse();
    tracing_subscriber::fmt()
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .with_max_level(match &cli.command {
            Command::Run(args) => args.log_level(),
            _ => tracing::Level::WARN,
        })
        .init();
    let needs = match &cli.command {
        Command::Run(args) => args.needs(),
        Command::Lab(_) | Command::Bench(_) => Some("network namespaces and devices are made by root"),
        _ => None,
    };
    let done = match cli.command {
        Command::Run(args) => run::main(&args),
        Command::Exec(args) => exec::main(&args),
        Command::Save(args) => save::main(&args),
        Command::Sid(args) => sid::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Stats(args) => stats::main(&args),
        Command::Top(args) => top::main(&args),
        Command::Trace(args) => trace::main(&args),
        Command::Replay(args) => replay::main(&args),
        Command::Bench(args) => bench::main(&args),
        Command::Lab(args) => lab::main(&args),
        Command::Doctor(args) => doctor::main(&args),
        Command::Generate(args) => generate::main::<Cli>(&args),
    };
    match done {
        Ok(status) => status,
        Err(error) => {
            eprintln!("underpass: {error:#}");
            if let Some(hint) = needs.filter(|_| is_denied(&error)) {
                eprintln!("underpass: {hint}");
            }
            ExitCode::FAILURE
        }
    }
}

/// Whether the kernel did not permit something, and this is not root.
fn is_denied(error: &anyhow::Error) -> bool {
    let denied = error.chain().any(|cause| {
        let kind = cause.downcast_ref::<io::Error>().map(io::Error::kind);
        let errno = cause.downcast_ref::<Errno>();
        kind == Some(io::ErrorKind::PermissionDenied) || matches!(errno, Some(Errno::EPERM | Errno::EACCES))
    });
    denied && !geteuid().is_root()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    use clap::CommandFactory;

    use super::*;

    /// The command lines of this program in a page: in blocks of code and between backquotes.
    fn commands(page: &str) -> Vec<String> {
        let (mut fence, mut typed, mut prose) = (None, Vec::new(), String::new());
        for line in page.lines() {
            match (fence, line.trim_start().strip_prefix("```")) {
                (None, Some(kind)) => fence = Some(kind),
                (Some(_), Some(_)) => fence = None,
                (Some("sh"), None) => typed.push(line),
                (Some(_), None) => {}
                (None, None) => {
                    typed.extend(line.strip_prefix("    "));
                    prose += line;
                    prose.push('\n');
                }
            }
        }
        let block = typed.into_iter().map(str::to_owned);
        let inline = prose.split('`').skip(1).step_by(2).map(|code| code.replace('\n', " "));
        let all = block.chain(inline).filter_map(|line| {
            let line = line.trim().trim_start_matches("target/release/");
            let rest = line.strip_prefix("underpass ")?;
            let rest =
                [" # ", " > ", " &"].iter().fold(rest, |rest, end| rest.split(end).next().unwrap_or(rest));
            let rest = rest.trim();
            // Without what only stands for something.
            (!rest.contains(['…', '[', '<', '|', '\\'])).then(|| rest.to_owned())
        });
        all.collect()
    }

    /// The pages of this repository.
    fn pages() -> impl Iterator<Item = (PathBuf, String)> {
        let others = ["README.md", "CONTRIBUTING.md"].map(|name| root().join(name));
        crate::book::pages().into_iter().chain(others).map(|path| {
            let text = fs::read_to_string(&path).unwrap();
            (path, text)
        })
    }

    fn root() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
    }

    /// What stands between backquotes.
    fn quoted(text: &str) -> impl Iterator<Item = &str> {
        text.split('`').skip(1).step_by(2)
    }

    /// Every source file.
    fn sources() -> Vec<PathBuf> {
        let (mut found, mut left) = (Vec::new(), vec![root().join("crates")]);
        while let Some(directory) = left.pop() {
            for entry in fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()) {
                match entry.extension() {
                    _ if entry.is_dir() => left.push(entry),
                    Some(extension) if extension == "rs" => found.push(entry),
                    _ => {}
                }
            }
        }
        found
    }

    /// What `cargo package` needs beside a licence: versions of the other crates, and no file of another directory in what is
    /// compiled but tests.
    #[test]
    fn crates_can_be_packaged() {
        let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
        let own = manifest.lines().filter(|line| line.starts_with("underpass-"));
        assert!(own.clone().count() > 5 && own.clone().all(|line| line.contains("version = ")), "{manifest}");
        for source in sources().into_iter().filter(|source| source.iter().any(|part| part == "src")) {
            let text = fs::read_to_string(&source).unwrap();
            let compiled = text.split("#[cfg(test)]").next().unwrap_or_default();
            let far = compiled.lines().find(|line| {
                line.contains("/../../..") && (line.contains("include") || line.contains("#[path"))
                    || line.contains("\"../../underpass")
            });
            assert_eq!(far, None, "{}", source.display());
        }
    }

    /// A page that names a source file names one that there is.
    #[test]
    fn files_that_the_docs_name_exist() {
        let sources = sources();
        let mut count = 0;
        for (page, text) in pages() {
            for name in quoted(&text).filter(|name| name.ends_with(".rs") && !name.contains([' ', '*', '{']))
            {
                count += 1;
                let known = sources.iter().any(|source| source.ends_with(name));
                assert!(known, "{}: there is no {name}", page.display());
            }
        }
        assert!(count > 30, "{count} files");
    }

    /// The numbered steps of a section: each with the lines that belong to it.
    fn steps(section: &str) -> Vec<String> {
        let mut steps = Vec::<String>::new();
        for line in section.lines() {
            if line.starts_with(|c: char| c.is_ascii_digit()) {
                steps.push(line.to_owned());
            } else if let (Some(step), true) = (steps.last_mut(), line.starts_with("   ")) {
                *step += "\n";
                *step += line;
            }
        }
        steps
    }

    /// Each step of a guide names what is in the files that it names.
    #[test]
    fn guides_lead_to_what_they_name() {
        let sources = sources();
        let page = fs::read_to_string(root().join("CONTRIBUTING.md")).unwrap();
        for (title, least) in [("an SRv6 behaviour", 20), ("a tunnel kind", 25), ("a qdisc", 20)] {
            let (_, section) = page.split_once(&format!("## Add {title}\n")).unwrap();
            let (section, _) = section.split_once("\n## ").unwrap();
            let mut count = 0;
            for step in steps(section) {
                let (files, names): (Vec<_>, Vec<_>) = quoted(&step).partition(|name| name.contains(".rs"));
                let read = |name: &&str| {
                    sources.iter().find(|source| source.ends_with(name)).map(fs::read_to_string)
                };
                let texts: String = files.iter().filter_map(read).map(Result::unwrap).collect();
                // What has a space is code, what has a slash a directory.
                for name in names.into_iter().filter(|name| !name.contains([' ', '/', '.'])) {
                    let last = name.rsplit("::").next().unwrap().trim_end_matches('*');
                    let found = match last.starts_with(|c: char| c.is_ascii_lowercase()) {
                        true => ["(", "<"].iter().any(|end| texts.contains(&format!("fn {last}{end}"))),
                        false => texts.contains(last),
                    };
                    count += 1;
                    assert!(found, "{title}: {name} is not in {files:?}");
                }
            }
            assert!(count > least, "{title}: {count} names");
        }
    }

    /// A table of figures stands below the command that prints it: in its section, or at the top of its page.
    #[test]
    fn figures_stand_below_their_command() {
        let is_figure = |cell: &&str| cell.trim().starts_with(|c: char| c.is_ascii_digit());
        let mut tables = 0;
        for (page, text) in pages() {
            let (mut of_page, mut of_section, mut first) = (false, false, true);
            for line in text.lines() {
                if line.starts_with("## ") {
                    (of_page, of_section, first) = (of_page || first && of_section, false, false);
                }
                of_section |= !commands(line).is_empty() || line.starts_with("    make ");
                let cells: Vec<&str> = line.trim_matches('|').split('|').skip(1).collect();
                if line.starts_with('|')
                    && cells.len() > 1
                    && 2 * cells.iter().filter(|c| is_figure(c)).count() > cells.len()
                {
                    tables += 1;
                    assert!(of_page || of_section, "{}: no command above\n{line}", page.display());
                }
            }
        }
        assert!(tables > 100, "{tables} rows of figures");
    }

    /// What a page tells to type can be typed.
    #[test]
    fn commands_of_the_docs_exist() {
        let mut count = 0;
        for (page, text) in pages() {
            for line in commands(&text) {
                let words = shlex::split(&line).unwrap();
                let arguments = std::iter::once("underpass".to_owned()).chain(words);
                let found = Cli::command().try_get_matches_from(arguments);
                count += 1;
                if let Err(error) = found
                    // A command that is only named has no arguments yet.
                    && error.kind() != clap::error::ErrorKind::MissingRequiredArgument
                    && error.kind() != clap::error::ErrorKind::MissingSubcommand
                    && error.kind() != clap::error::ErrorKind::DisplayHelp
                    && error.kind() != clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
                {
                    panic!("{}: underpass {line}: {error}", page.display());
                }
            }
        }
        assert!(count > 30, "{count} commands");
    }
}
