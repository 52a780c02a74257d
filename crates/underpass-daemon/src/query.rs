//! Questions to a running router, at its socket for statistics.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;

use crate::live::stats_path;

/// What the router at `socket` answers.
///
/// # Errors
/// There is none, or it does not answer in time.
pub fn answer(socket: &Path, question: &str) -> anyhow::Result<String> {
    answer_within(socket, question, Duration::from_secs(5))
}

/// The same, with a time that it may take.
///
/// # Errors
/// As [`answer`].
pub fn answer_within(socket: &Path, question: &str, patience: Duration) -> anyhow::Result<String> {
    let path = stats_path(socket);
    let mut connection = UnixStream::connect(&path).with_context(|| {
        format!("no router answers at {}: start one with `underpass run`", path.display())
    })?;
    connection.set_read_timeout(Some(patience))?;
    writeln!(connection, "{question}")?;
    let mut text = String::new();
    connection.read_to_string(&mut text)?;
    Ok(text)
}
