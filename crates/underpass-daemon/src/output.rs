//! Standard output, whose reader may go away: `underpass bench --list | head`. And tables for the pages of the docs.

use std::io::{self, ErrorKind, Write};

/// Writes `text`. A reader that has gone away is no error: it has what it wants.
///
/// # Errors
/// Those of writing.
pub fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

/// A table in Markdown. The first `words` columns are words, the others figures.
pub fn markdown_table(words: usize, head: &[&str], rows: &[Vec<String>]) -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let under = (0..head.len()).map(|column| if column < words { "---" } else { "---:" }.to_owned());
    let head: Vec<_> = head.iter().map(|cell| (*cell).to_owned()).collect();
    let mut table = line(&head) + &line(&under.collect::<Vec<_>>());
    for row in rows {
        table += &line(row);
    }
    table
}
