//! A userspace router for the tunnels and traffic controls of Linux.

mod bench;
mod doctor;
mod exec;
mod generate;
mod lab;
mod output;
mod processor;
mod random;
mod replay;
mod run;
mod script;
mod stats;
mod top;
mod trace;

use std::{
    io::{self, IsTerminal},
    process::ExitCode,
};

use clap::{Parser, Subcommand};

/// A userspace router for the tunnels and traffic controls of Linux, configured by ip and tc.
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
    if let Err(error) = underpass::launch::shed_library() {
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
    let done = match cli.command {
        Command::Run(args) => run::main(&args),
        Command::Exec(args) => exec::main(&args),
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
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use clap::CommandFactory;

    use super::*;

    /// The command lines of this program in a page: in blocks of code and between backquotes.
    fn commands(page: &str) -> Vec<String> {
        let block = page.lines().filter_map(|line| line.strip_prefix("    ")).map(str::to_owned);
        let inline = page.split('`').skip(1).step_by(2).map(|code| code.replace('\n', " "));
        let all = block.chain(inline).filter_map(|line| {
            let line = line.trim().trim_start_matches("target/release/");
            let rest = line.strip_prefix("underpass ")?;
            let rest = rest.split(" # ").next().unwrap_or(rest).trim();
            // Without what only stands for something.
            (!rest.contains(['…', '[', '<', '|', '\\'])).then(|| rest.to_owned())
        });
        all.collect()
    }

    /// A table of figures stands below the command that prints it: in its section, or at the top of its page.
    #[test]
    fn figures_stand_below_their_command() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let docs = fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path());
        let pages = docs.chain([root.join("README.md"), root.join("CONTRIBUTING.md")]);
        let is_figure = |cell: &&str| cell.trim().starts_with(|c: char| c.is_ascii_digit());
        let mut tables = 0;
        for page in pages.filter(|path| path.extension().is_some_and(|extension| extension == "md")) {
            let text = fs::read_to_string(&page).unwrap();
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
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let docs = fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path());
        let pages = docs.chain([root.join("README.md"), root.join("CONTRIBUTING.md")]);
        let mut count = 0;
        for page in pages.filter(|path| path.extension().is_some_and(|extension| extension == "md")) {
            for line in commands(&fs::read_to_string(&page).unwrap()) {
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
