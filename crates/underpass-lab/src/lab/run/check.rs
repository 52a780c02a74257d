//! Checks: lines that run in a node until they come out as they have to.

use std::{
    thread,
    time::{Duration, Instant},
};

use underpass_daemon::testbed::Outcome;

use super::{file::Check, node::Node};
use crate::lab::run_until_signal::Signals;

/// Between two tries.
const PAUSE: Duration = Duration::from_millis(200);
/// How long a line may take whose check has less time left.
const SHORTEST: Duration = Duration::from_secs(5);

/// How a check ended.
#[derive(Debug)]
pub struct Ended {
    /// What is not as it has to be; `None`: it holds.
    pub wrong: Option<String>,
    /// What the last try printed.
    pub output: String,
    pub took: Duration,
}

/// Tries until it holds or its time is over.
///
/// # Errors
/// A line cannot be started; a signal has come.
pub fn run(check: &Check, node: &Node, signals: &mut Signals) -> anyhow::Result<Ended> {
    let start = Instant::now();
    loop {
        let left = check.within.saturating_sub(start.elapsed());
        let (wrong, output) = match node.outcome(&check.line.text, left.max(SHORTEST)) {
            Ok(outcome) => (wrong(check, &outcome), outcome.output),
            // It has taken all the time there is.
            Err(error) => (Some(format!("{error:#}")), String::new()),
        };
        let took = start.elapsed();
        if wrong.is_none() || took >= check.within {
            return Ok(Ended { wrong, output, took });
        }
        signals.none_has_come()?;
        thread::sleep(PAUSE.min(check.within - took));
    }
}

/// What of an outcome is not as wanted.
fn wrong(check: &Check, outcome: &Outcome) -> Option<String> {
    if outcome.status != check.exit {
        return Some(format!("status {}, not {}", outcome.status, check.exit));
    }
    let output = tidy(&outcome.output);
    let missing = check.text.iter().find(|text| !output.contains(&tidy(text)));
    let present = || check.absent.iter().find(|text| output.contains(&tidy(text)));
    match missing {
        Some(text) => Some(format!("it does not print '{text}'")),
        None => present().map(|text| format!("it prints '{text}'")),
    }
}

/// One blank between words: columns are as wide as their widest word.
fn tidy(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::lab::run::file::Topology;

    #[test]
    fn what_is_wrong_is_said() {
        let text = "topology: {nodes: {h: {kind: host}}}
checks: [{node: h, exec: x, exit: 3, text: [a b, c], absent: d}]
";
        let topology = Topology::parse(text, "x.yaml", Path::new(".")).unwrap();
        let said =
            |status, output: &str| wrong(&topology.checks[0], &Outcome { status, output: output.to_owned() });
        assert_eq!(said(3, "a   b\nc\n"), None);
        assert_eq!(said(0, "a b c").unwrap(), "status 0, not 3");
        assert_eq!(said(3, "a b").unwrap(), "it does not print 'c'");
        assert_eq!(said(3, "a b c d").unwrap(), "it prints 'd'");
    }
}
