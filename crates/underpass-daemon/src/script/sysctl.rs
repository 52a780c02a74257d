//! `sysctl` lines: variables of the router, set and shown in its own process. The program of that name would
//! reach the kernel's where the router has none.

use std::fmt::Write;
use std::io;

use super::Target;

/// Whether a word says only to write, or to write quietly, and not which variable. As in the program, one `-` may stand
/// before several letters.
fn flags(word: &str) -> Option<Flags> {
    let letters = match word {
        "--write" => "w",
        "--quiet" => "q",
        _ => word.strip_prefix('-').filter(|letters| !letters.is_empty())?,
    };
    let known = letters.chars().all(|letter| matches!(letter, 'w' | 'q'));
    known.then(|| Flags { quiet: letters.contains('q') })
}

struct Flags {
    quiet: bool,
}

/// Runs a line of these words behind `sysctl`; returns what it prints.
///
/// # Errors
/// What the program would say.
pub fn run(router: &dyn Target, words: &[String]) -> Result<String, String> {
    let quiet = words.iter().filter_map(|word| flags(word)).any(|flags| flags.quiet);
    let mut variables = words.iter().filter(|word| flags(word).is_none()).peekable();
    if variables.peek().is_none() {
        return Err("sysctl: no variables specified; write sysctl -w NAME=VALUE".to_owned());
    }
    let mut shown = String::new();
    for word in variables {
        if word.starts_with('-') {
            return Err(format!("sysctl: {word} is not taken here; write sysctl -w NAME=VALUE"));
        }
        let (name, value) = match word.split_once('=') {
            Some((name, value)) => (name.trim(), Some(value.trim())),
            None => (word.as_str(), None),
        };
        let path = path(name);
        let fail = |error: underpass_control::RequestError| match error.errno {
            libc::ENOENT => format!("sysctl: cannot stat /proc/sys/{path}: No such file or directory"),
            errno => format!("sysctl: setting key \"{name}\": {}", message(errno)),
        };
        let below = path.strip_prefix("net/").unwrap_or_default();
        let text = match value {
            Some(value) => {
                router.write_sysctl(below, value.as_bytes()).map_err(fail)?;
                value.to_owned()
            }
            None => router.read_sysctl(below).map_err(fail)?.trim_end().to_owned(),
        };
        if !quiet {
            let _ = writeln!(shown, "{name} = {text}");
        }
    }
    Ok(shown)
}

/// The path of a variable below /proc/sys. As in the program, the first separator says which is one: a name with
/// `.` has `/` where a part has a dot.
fn path(name: &str) -> String {
    match name.find(['.', '/']) {
        Some(at) if name[at..].starts_with('.') => {
            let swap = |c| match c {
                '.' => '/',
                '/' => '.',
                c => c,
            };
            name.chars().map(swap).collect()
        }
        _ => name.to_owned(),
    }
}

/// The text of an errno alone.
fn message(errno: i32) -> String {
    let text = io::Error::from_raw_os_error(errno).to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::offline::Offline;

    #[test]
    fn names() {
        assert_eq!(path("net.mpls.conf.v0.input"), "net/mpls/conf/v0/input");
        assert_eq!(path("net.mpls.conf.v0/7.input"), "net/mpls/conf/v0.7/input");
        assert_eq!(path("net/mpls/conf/v0.7/input"), "net/mpls/conf/v0.7/input");
    }

    #[test]
    fn variables_are_set_and_shown() {
        let (router, ..) = Offline::new(&["p0".parse().unwrap()], 1).unwrap();
        let run = |line: &str| run(&router, &line.split(' ').map(str::to_owned).collect::<Vec<_>>());
        assert_eq!(run("-w net.mpls.platform_labels=100").unwrap(), "net.mpls.platform_labels = 100\n");
        for flags in ["-qw", "-wq", "-q -w", "-q", "--quiet --write"] {
            assert_eq!(run(&format!("{flags} net.mpls.conf.p0.input=1")).unwrap(), "");
        }
        for flags in ["-", "-qx", "-a", "--all", "-p"] {
            let refused = run(&format!("{flags} net.mpls.conf.p0.input=1")).unwrap_err();
            assert_eq!(refused.split(' ').nth(1), Some(flags));
        }
        assert_eq!(run("net/mpls/conf/p0/input").unwrap(), "net/mpls/conf/p0/input = 1\n");
        // One that no kernel has.
        assert_eq!(run("-w net.mpls.tc_propagate=1").unwrap(), "net.mpls.tc_propagate = 1\n");
        assert_eq!(run("net.mpls.tc_propagate").unwrap(), "net.mpls.tc_propagate = 1\n");
        let missing = "sysctl: cannot stat /proc/sys/net/core/x: No such file or directory";
        assert_eq!(run("-w net.core.x=1").unwrap_err(), missing);
        let wrong = "sysctl: setting key \"net.mpls.default_ttl\": Invalid argument";
        assert_eq!(run("-w net.mpls.default_ttl=0").unwrap_err(), wrong);
    }
}
