//! Lines run against a router, by the real tools.

use std::io;
use std::path::Path;

use underpass_control::RequestError;

use super::batch::{self, batches};
use super::{Line, ScriptError, sysctl};
use crate::{launch, output, sid};

/// A router that lines are run against. Another thread serves its socket.
pub trait Target {
    /// Path of its socket.
    fn socket(&self) -> &Path;

    /// Reads a variable by its path below `/proc/sys/net`.
    ///
    /// # Errors
    /// `ENOENT` where the router has none.
    fn read_sysctl(&self, path: &str) -> Result<String, RequestError>;

    /// Writes a variable.
    ///
    /// # Errors
    /// As reading; `EINVAL` for a value that it cannot have.
    fn write_sysctl(&self, path: &str, value: &[u8]) -> Result<(), RequestError>;
}

/// Runs the lines of `file` against the router, and shows what the tools say.
///
/// # Errors
/// The first line whose tool fails or cannot be started, with the tool's own message; those behind it are not run.
pub fn configure(router: &dyn Target, file: &Path, lines: &[Line]) -> Result<(), ScriptError> {
    match run_all(router, file, lines, false).into_iter().next() {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

/// Runs all lines of `file`, also those behind one that fails; returns what failed.
pub fn configure_all(router: &dyn Target, file: &Path, lines: &[Line]) -> Vec<ScriptError> {
    run_all(router, file, lines, true)
}

fn run_all(router: &dyn Target, file: &Path, lines: &[Line], goes_on: bool) -> Vec<ScriptError> {
    let mut failed = Vec::new();
    for batch in batches(lines) {
        let mut rest = batch;
        while let [first, ..] = rest {
            let (shown, problem) = match rest {
                [line] => match run(router, line) {
                    Ok(shown) => (shown, None),
                    Err(problem) => (String::new(), Some((0, problem))),
                },
                lines => batch::run(router.socket(), lines),
            };
            let printed = output::print(&shown).map_err(|error| (0, error.to_string()));
            let Some((at, problem)) = problem.or(printed.err()) else { break };
            let (done, behind) = rest.split_at((at + 1).min(rest.len()));
            let line = done.last().map_or(first.number, |line| line.number);
            failed.push(ScriptError { file: file.to_owned(), line, problem });
            if !goes_on {
                return failed;
            }
            rest = behind;
        }
    }
    failed
}

/// Runs one line against the router; returns what its tool printed.
///
/// # Errors
/// The line and the tool's own message, if it fails or cannot be started.
pub fn run(router: &dyn Target, line: &Line) -> Result<String, String> {
    if let Some((tool, words)) = line.words.split_first()
        && tool == "sysctl"
    {
        return sysctl::run(router, words);
    }
    if let Some((tool, words)) = line.words.split_first()
        && tool == "underpass"
    {
        let done = sid::run_line(router.socket(), words);
        return done.map(|()| String::new()).map_err(|problem| format!("{}: {problem}", text(line)));
    }
    let output = match &line.input {
        Some(input) => launch::output_of(router.socket(), &line.words, input),
        None => launch::output(router.socket(), &line.words),
    };
    let output = output.map_err(|error| not_started(line, &error))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(match errors.trim_end() {
            "" => format!("{}: {}", text(line), output.status),
            errors => format!("{}: {errors}", text(line)),
        });
    }
    eprint!("{errors}");
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// A line as a shell would take it, without its input, which may be a secret.
pub(super) fn text(line: &Line) -> String {
    shlex::try_join(line.words.iter().map(String::as_str)).unwrap_or_default()
}

/// Why a tool did not start.
pub(super) fn not_started(line: &Line, error: &io::Error) -> String {
    let command = text(line);
    match error.kind() {
        io::ErrorKind::NotFound => format!("{command}: not found; its Debian package is iproute2"),
        _ => format!("{command}: {error}"),
    }
}
