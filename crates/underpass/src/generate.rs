//! `underpass generate`: man pages and shell completions, from the same source as `--help`.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Command, CommandFactory};
use clap_complete::Shell;

/// Write man pages and shell completions into a directory, for packagers.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  underpass generate /tmp/pages
  man -l /tmp/pages/man/underpass-run.1
  . /tmp/pages/completions/underpass.bash")]
pub struct Args {
    /// Target directory; man/ and completions/ are created in it
    directory: PathBuf,
}

/// Writes them for all subcommands of `Cli`.
pub fn main<Cli: CommandFactory>(args: &Args) -> anyhow::Result<ExitCode> {
    let (pages, completions) = (args.directory.join("man"), args.directory.join("completions"));
    for directory in [&pages, &completions] {
        fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
    }
    let mut command = without_help(Cli::command());
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut command, "underpass", &completions)?;
    }
    clap_mangen::generate_to(command, &pages).with_context(|| pages.display().to_string())?;
    Ok(ExitCode::SUCCESS)
}

/// Without the subcommand that says what `--help` does.
fn without_help(command: Command) -> Command {
    command.disable_help_subcommand(true).mut_subcommands(without_help)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_subcommand_has_a_page() {
        let directory = tempfile::tempdir().unwrap();
        main::<crate::Cli>(&Args { directory: directory.path().to_owned() }).unwrap();
        for command in crate::Cli::command().get_subcommands().filter(|command| command.get_name() != "help")
        {
            let page = directory.path().join(format!("man/underpass-{}.1", command.get_name()));
            let page = fs::read_to_string(page).unwrap();
            assert!(page.contains(".SH SYNOPSIS"), "{page}");
        }
        assert!(directory.path().join("man/underpass-lab-police.1").exists());
        assert!(!directory.path().join("man/underpass-help.1").exists());
        let bash = fs::read_to_string(directory.path().join("completions/underpass.bash")).unwrap();
        assert!(bash.contains("--attach"));
    }
}
