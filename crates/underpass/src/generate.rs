//! `underpass generate`: man pages, shell completions and pages of reference, from the same source as `--help`.

mod advice;
mod commands;
mod drops;
mod man;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::builder::PossibleValuesParser;
use clap::{Command, CommandFactory};
use clap_complete::Shell;
use underpass_lab::bench;

/// Write man pages, shell completions and pages of reference into a directory, for packagers.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  underpass generate /tmp/pages
  man -l /tmp/pages/man/underpass-run.1
  . /tmp/pages/completions/underpass.bash")]
pub struct Args {
    /// Target directory; man/, completions/ and reference/ are created in it
    directory: PathBuf,
}

/// Writes them for all subcommands of `Cli`.
pub fn main<Cli: CommandFactory>(args: &Args) -> anyhow::Result<ExitCode> {
    let [pages, completions, reference] =
        ["man", "completions", "reference"].map(|name| args.directory.join(name));
    for directory in [&pages, &completions, &reference] {
        fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
    }
    let command = without_help(Cli::command());
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut with_scenarios(command.clone()), "underpass", &completions)?;
    }
    // Of arguments without a name clap completes the values in the two others only.
    let path = completions.join("underpass.fish");
    let mut fish = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    fish += &format!(
        "complete -c underpass -n \"__fish_underpass_using_subcommand bench\" -f -a \"{}\" -d 'Scenario'\n",
        bench::names().join(" ")
    );
    fs::write(&path, fish).with_context(|| path.display().to_string())?;
    man::write(command.clone(), &pages).with_context(|| pages.display().to_string())?;
    for (name, page) in [("commands.md", commands::page(command)), ("drops.md", drops::page())] {
        let path = reference.join(name);
        fs::write(&path, page).with_context(|| path.display().to_string())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Without the subcommand that says what `--help` does.
fn without_help(command: Command) -> Command {
    command.disable_help_subcommand(true).mut_subcommands(without_help)
}

/// With the names of scenarios, which a shell can complete; the program itself takes patterns too.
fn with_scenarios(command: Command) -> Command {
    let names = PossibleValuesParser::new(bench::names());
    command.mut_subcommand("bench", |bench| bench.mut_arg("names", |argument| argument.value_parser(names)))
}

/// What stands behind the options of a command: its examples without their indentation, and the rest.
fn after_help(command: &Command) -> (Vec<String>, Option<String>) {
    let text = command.get_after_long_help().or(command.get_after_help()).map(ToString::to_string);
    let text = text.unwrap_or_default();
    let Some((before, examples)) = text.split_once("Examples:\n") else {
        return (Vec::new(), Some(text).filter(|text| !text.is_empty()));
    };
    let (examples, after) = examples.split_once("\n\n").unwrap_or((examples, ""));
    let examples = examples.lines().map(|line| line.strip_prefix("  ").unwrap_or(line).to_owned());
    let rest = format!("{before}{after}").trim_end().to_owned();
    (examples.collect(), Some(rest).filter(|rest| !rest.is_empty()))
}

/// The examples of a command: its own, else those of the command above that are of it, else one of each command below.
fn examples(command: &Command, above: Option<&Command>) -> Vec<String> {
    let own = after_help(command).0;
    let name = command.get_bin_name().unwrap_or_else(|| command.get_name());
    let mut above = above.map(|above| after_help(above).0).unwrap_or_default();
    above.retain(|line| line.starts_with(name));
    match (own.is_empty(), above.is_empty()) {
        (false, _) => own,
        (_, false) => above,
        _ => command.get_subcommands().filter_map(|below| after_help(below).0.into_iter().next()).collect(),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn generated() -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        main::<crate::Cli>(&Args { directory: directory.path().to_owned() }).unwrap();
        directory
    }

    /// Every command below one, by the name of its page.
    fn pages(command: &Command, name: &str) -> Vec<String> {
        let below =
            command.get_subcommands().filter(|below| below.get_name() != "help" && !below.is_hide_set());
        let below = below.flat_map(|below| pages(below, &format!("{name}-{}", below.get_name())));
        std::iter::once(name.to_owned()).chain(below).collect()
    }

    #[test]
    fn every_command_has_a_page() {
        let directory = generated();
        let names = pages(&crate::Cli::command(), "underpass");
        assert!(names.len() > 30, "{names:?}");
        for name in &names {
            let page = fs::read_to_string(directory.path().join(format!("man/{name}.1"))).unwrap();
            let mut rest = &page[..];
            for section in ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXAMPLES", "SEE ALSO"] {
                let heading = format!(
                    "\n.SH {}\n",
                    if section.contains(' ') { format!("\"{section}\"") } else { section.to_owned() }
                );
                let Some((_, after)) = rest.split_once(&heading) else { panic!("{name}: {section}: {page}") };
                rest = after;
            }
            // What it points to is there.
            for other in rest.split("\\fB").skip(1).filter_map(|rest| rest.split_once("\\fR(1)")) {
                let other = other.0.replace("\\-", "-");
                assert!(names.contains(&other) && other != *name, "{name}: {other}");
            }
        }
        assert!(!directory.path().join("man/underpass-help.1").exists());
    }

    #[test]
    fn shells_complete_scenarios() {
        let directory = generated();
        for file in ["underpass.bash", "_underpass", "underpass.fish"] {
            let text = fs::read_to_string(directory.path().join("completions").join(file)).unwrap();
            for word in ["attach", "srv6-end-dx2", "floor", "police-vs-ifb", "l3vpn", "evpn"] {
                assert!(text.contains(word), "{file}: {word}");
            }
        }
    }

    /// The shell itself, where there is one.
    #[test]
    fn bash_completes_scenarios() {
        let directory = generated();
        let line = ". \"$0\"; COMP_WORDS=(underpass bench srv6-end-dx); COMP_CWORD=2; \
                    _underpass underpass srv6-end-dx bench; echo \"${COMPREPLY[@]}\"";
        let script = directory.path().join("completions/underpass.bash");
        let done = std::process::Command::new("bash").args(["-c", line]).arg(script).output().unwrap();
        let said = String::from_utf8(done.stdout).unwrap();
        assert!(said.split_whitespace().any(|word| word == "srv6-end-dx2"), "{said}");
        assert!(said.split_whitespace().all(|word| word.starts_with("srv6-end-dx")), "{said}");
    }

    /// The pages of `docs/reference` are those of this program: `make reference` writes them anew.
    #[test]
    fn the_reference_is_that_of_this_program() {
        let directory = generated();
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference");
        for name in ["commands.md", "drops.md"] {
            let made = fs::read_to_string(directory.path().join("reference").join(name)).unwrap();
            let kept = fs::read_to_string(docs.join(name)).unwrap();
            let differs = made.lines().zip(kept.lines()).find(|(made, kept)| made != kept);
            assert!(made == kept, "docs/reference/{name} is of another program: make reference; {differs:?}");
        }
    }
}
