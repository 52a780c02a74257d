//! Man pages: what clap knows, then examples, and which other pages there are.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold, roman};

use super::{after_help, examples};

/// Pages of others that a command's page points to.
fn others(name: &str) -> &'static [(&'static str, u8)] {
    match name.trim_start_matches("underpass-").split('-').next() {
        Some("run") => &[("ip", 8), ("tc", 8), ("sysctl", 8), ("ethtool", 8)],
        Some("exec") => &[("ip", 8), ("tc", 8), ("bridge", 8), ("ld.so", 8), ("seccomp", 2)],
        Some("save") => &[("ip", 8), ("tc", 8)],
        Some("sid") => &[("ip-route", 8)],
        Some("trace") => &[("pcap-filter", 7), ("tcpdump", 8)],
        Some("replay") => &[("tcpdump", 8), ("ip", 8)],
        Some("lab") => &[("ip-netns", 8), ("ip", 8), ("tc", 8)],
        _ => &[("ip", 8), ("tc", 8)],
    }
}

/// Writes the pages of a command and of all below it.
pub fn write(mut command: Command, directory: &Path) -> io::Result<()> {
    command.build();
    write_all(&command, None, directory)
}

fn name(command: &Command) -> String {
    command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned()
}

fn shown(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|below| !below.is_hide_set())
}

fn write_all(command: &Command, parent: Option<&Command>, directory: &Path) -> io::Result<()> {
    for below in shown(command) {
        write_all(below, Some(command), directory)?;
    }
    let name = name(command);
    let man = Man::new(command.clone())
        .source(concat!("underpass ", env!("CARGO_PKG_VERSION")))
        .manual("Underpass");
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    if command.get_arguments().any(|argument| !argument.is_hide_set()) {
        man.render_options_section(&mut page)?;
    }
    if shown(command).next().is_some() {
        man.render_subcommands_section(&mut page)?;
    }
    let mut roff = Roff::new();
    verbatim(&mut roff, "NOTES", &after_help(command).1.unwrap_or_default());
    verbatim(&mut roff, "EXAMPLES", &examples(command, parent).join("\n"));
    see_also(&mut roff, command, parent, &name);
    page.extend(roff.render().into_bytes());
    File::create(directory.join(format!("{name}.1")))?.write_all(&page)
}

/// A section of lines as they are.
fn verbatim(roff: &mut Roff, heading: &str, text: &str) {
    if text.is_empty() {
        return;
    }
    roff.control("SH", [heading]).control("nf", []);
    for line in text.lines() {
        roff.text([roman(if line.is_empty() { " " } else { line })]);
    }
    roff.control("fi", []);
}

/// The command above, those beside it and below it, and pages of others.
fn see_also(roff: &mut Roff, command: &Command, parent: Option<&Command>, own: &str) {
    let beside = parent.into_iter().flat_map(shown).map(name).filter(|name| name != own);
    let commands = parent.map(name).into_iter().chain(beside).chain(shown(command).map(name));
    let commands = commands.map(|name| (name, 1));
    let all = commands.chain(others(own).iter().map(|(name, section)| ((*name).to_owned(), *section)));
    let mut line: Vec<Inline> = Vec::new();
    for (name, section) in all {
        if !line.is_empty() {
            line.push(roman(", "));
        }
        line.extend([bold(name), roman(format!("({section})"))]);
    }
    roff.control("SH", ["SEE ALSO"]).text(line);
}
