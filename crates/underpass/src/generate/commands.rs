//! `docs/reference/commands.md`: every command with its options, from what `--help` says.

use std::fmt::Write as _;

use clap::{Arg, Command};

use super::{after_help, examples};

const TOP: &str = "<!-- Written by `make reference`. -->
# Commands

Every command and its options, as `--help` and the man pages have them. Examples stand below the
options.
";

/// The page.
pub fn page(mut command: Command) -> String {
    command.build();
    let mut page = TOP.to_owned();
    section(&mut page, &command, None, 2);
    page
}

fn section(page: &mut String, command: &Command, above: Option<&Command>, depth: usize) {
    let name = command.get_bin_name().unwrap_or_else(|| command.get_name());
    let about = command.get_long_about().or(command.get_about()).map(ToString::to_string).unwrap_or_default();
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage:").trim();
    let _ =
        write!(page, "\n{} {name}\n\n{}\n\n```text\n{usage}\n```\n", "#".repeat(depth), paragraphs(&about));
    let shown = command.get_arguments().filter(|argument| !argument.is_hide_set());
    let options: Vec<String> = shown.filter(|argument| argument.get_id() != "help").map(option).collect();
    if !options.is_empty() {
        let _ = write!(page, "\n{}\n", options.join("\n"));
    }
    let notes = after_help(command).1.unwrap_or_default();
    for (text, kind) in [(notes, "text"), (examples(command, above).join("\n"), "sh")] {
        if !text.is_empty() {
            let _ = write!(page, "\n```{kind}\n{}\n```\n", text.trim_end());
        }
    }
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        section(page, below, Some(command), (depth + 1).min(4));
    }
}

/// Text between tags of HTML would be taken for one.
fn paragraphs(text: &str) -> String {
    text.trim_end().replace('<', "\\<")
}

/// Paragraphs in one, each with an end.
fn sentences(text: &str) -> String {
    let ended = |text: &str| match text.ends_with(['.', ']', ':']) {
        true => text.to_owned(),
        false => format!("{text}."),
    };
    paragraphs(text).split("\n\n").map(|text| ended(&text.replace('\n', " "))).collect::<Vec<_>>().join(" ")
}

/// An item of a list: the option, what it does, its values.
fn option(argument: &Arg) -> String {
    let help = argument.get_long_help().or(argument.get_help()).map(ToString::to_string).unwrap_or_default();
    let mut text = format!("- **`{argument}`**: {}", sentences(&help));
    let defaults: Vec<_> =
        argument.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
    if argument.get_action().takes_values() && !defaults.is_empty() {
        let _ = write!(text, " Default: `{}`.", defaults.join(" "));
    }
    for value in argument.get_possible_values().iter().filter(|value| !value.is_hide_set()) {
        // Those of a switch are no values that somebody types.
        if argument.get_action().takes_values() {
            let meaning = value.get_help().map(|help| format!(": {help}")).unwrap_or_default();
            let _ = write!(text, "\n  - `{}`{}", value.get_name(), paragraphs(&meaning));
        }
    }
    text
}
