//! Configuration as a file of lines for `ip`, `tc` and `sysctl`, read as a shell would. `ip` and `tc` are the real
//! ones, run against a router of this process. For what these have no words for there is `underpass sid`.
//!
//! Words are split and quoted as in the POSIX shell; `#` begins a comment; a `\` at the end of a line
//! continues it; `<<< word` at its end is what the tool reads from its input, for `ip sr hmac set`. Nothing
//! else of a shell is there: no variables, no substitution, no other redirection.

mod batch;
mod run;
mod sysctl;

use std::path::{Path, PathBuf};

pub use run::{Target, configure, configure_all, run};

/// The programs that a line may run: each speaks to the router only.
pub const TOOLS: &[&str] = &["ip", "tc", "bridge", "sysctl", "underpass"];

/// One line to run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Line {
    /// Where it begins, counted from 1.
    pub number: usize,
    /// The program and its arguments; never empty.
    pub words: Vec<String>,
    /// What the program reads.
    pub input: Option<String>,
}

impl Line {
    /// The line as it can be read again.
    pub fn text(&self) -> String {
        let words = shlex::try_join(self.words.iter().map(String::as_str)).unwrap_or_default();
        let input = self.input.as_deref().map(|input| input.trim_end_matches('\n'));
        let input = input.and_then(|input| shlex::try_quote(input).ok());
        input.map_or(words.clone(), |input| format!("{words} <<< {input}"))
    }
}

/// A line that cannot be run, or that its tool refuses.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{}:{line}: {problem}", file.display())]
pub struct ScriptError {
    /// The file.
    pub file: PathBuf,
    /// The line, counted from 1.
    pub line: usize,
    /// What is wrong with it.
    pub problem: String,
}

/// Splits the text of `file` into the lines to run.
///
/// # Errors
/// The first line that has an open quote, runs something else than one of [`TOOLS`], or is about another network namespace.
pub fn parse(file: &Path, text: &str) -> Result<Vec<Line>, ScriptError> {
    parse_each(file, text).map(|(_, line)| line).collect()
}

/// The lines to run, each as it stands in `file` and read.
pub fn parse_each<'a>(
    file: &'a Path,
    text: &'a str,
) -> impl Iterator<Item = (String, Result<Line, ScriptError>)> + 'a {
    let mut physical = text.lines().enumerate();
    std::iter::from_fn(move || {
        let (index, first) = physical.next()?;
        let mut joined = first.to_owned();
        while continues(&joined) {
            joined.pop();
            match physical.next() {
                Some((_, next)) => joined.push_str(next),
                None => break,
            }
        }
        Some((index + 1, joined))
    })
    .filter_map(move |(number, joined)| {
        let fail = |problem| ScriptError { file: file.to_owned(), line: number, problem };
        let read = read(number, &joined).map_err(fail).transpose()?;
        Some((joined, read))
    })
}

/// Reads a line. `None`: there is nothing to run in it.
fn read(number: usize, joined: &str) -> Result<Option<Line>, String> {
    let words = shlex::split(joined).ok_or("a quote is not closed")?;
    let (words, input) = here_string(words)?;
    let Some(tool) = words.first() else { return Ok(None) };
    if !TOOLS.contains(&tool.as_str()) {
        return Err(format!("'{tool}' is none of the tools that may run here: {}", TOOLS.join(", ")));
    }
    // A character that stands for bytes which are none.
    if joined.contains(char::REPLACEMENT_CHARACTER) {
        return Err("it is not UTF-8".to_owned());
    }
    if let Some(word) = leaves_namespace(&words) {
        return Err(format!(
            "'{tool} {word}' is about another network namespace, and all lines here are for the router's own"
        ));
    }
    Ok(Some(Line { number, words, input }))
}

/// The word by which a line of `ip`, `tc` or `bridge` is about another network namespace than that in which it is run: an option,
/// or the object of `ip`.
fn leaves_namespace(words: &[String]) -> Option<&str> {
    let (tool, words) = words.split_first()?;
    if !matches!(tool.as_str(), "ip" | "tc" | "bridge") {
        return None;
    }
    let mut words = words.iter().map(String::as_str);
    while let Some(word) = words.next() {
        let Some(option) = word.strip_prefix('-') else {
            // Linux's `ip` takes `net` for this, and anything shorter for `neighbour`.
            return (tool == "ip" && word.len() >= 3 && "netns".starts_with(word)).then_some(word);
        };
        let option = option.trim_start_matches('-');
        if !option.is_empty() && "netns".starts_with(option) {
            return Some(word);
        }
        // Those that have a value.
        if matches!(option, "f" | "family" | "l" | "loops" | "rc" | "rcvbuf" | "b" | "batch" | "cf" | "conf")
        {
            words.next();
        }
    }
    None
}

/// One line given on the command line, such as `ip -6 -s route show`.
///
/// # Errors
/// What is wrong with it.
pub fn parse_one(text: &str) -> Result<Line, String> {
    match parse(Path::new(""), text).map_err(|e| e.problem)?.as_slice() {
        [line] => Ok(line.clone()),
        _ => Err("one line with a command is needed".to_owned()),
    }
}

/// Takes the here-string of a line off its end.
fn here_string(mut words: Vec<String>) -> Result<(Vec<String>, Option<String>), String> {
    let Some(at) = words.iter().position(|word| word == "<<<") else { return Ok((words, None)) };
    match &words.split_off(at)[..] {
        [_, input] => Ok((words, Some(format!("{input}\n")))),
        _ => Err("'<<<' stands before one last word".to_owned()),
    }
}

/// Whether the next line belongs to this one: it ends in an odd number of `\` and is no comment.
fn continues(line: &str) -> bool {
    let backslashes = line.bytes().rev().take_while(|b| *b == b'\\').count();
    backslashes % 2 == 1 && !has_comment(line)
}

/// Whether a `#` at the start of a word, outside quotes, begins a comment.
fn has_comment(line: &str) -> bool {
    let (mut quote, mut escaped, mut word) = (None, false, false);
    for c in line.chars() {
        match (quote, c) {
            _ if escaped => (escaped, word) = (false, true),
            (None | Some('"'), '\\') => escaped = true,
            (Some(open), _) => quote = if c == open { None } else { quote },
            (None, '"' | '\'') => (quote, word) = (Some(c), true),
            (None, '#') if !word => return true,
            (None, _) => word = !c.is_whitespace(),
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script(text: &str) -> Result<Vec<(usize, String)>, String> {
        parse(Path::new("vpn.conf"), text)
            .map(|lines| lines.into_iter().map(|l| (l.number, l.words.join("|"))).collect())
            .map_err(|e| e.to_string())
    }

    #[test]
    fn comments_blanks_quotes_and_continuations() {
        let text = "# a comment that ends in \\\n\
                    \n\
                    ip link set p0 up   # and one behind\n\
                    \t ip -6 route add \\\n  fc00::/64 \\\n  dev p0\n\
                    ip link set p0 alias 'two words # none'\n\
                    ip link set p0 alias a#b\n\
                    ip link show # \\\n\
                    tc qdisc show";
        let expected = [
            (3, "ip|link|set|p0|up"),
            (4, "ip|-6|route|add|fc00::/64|dev|p0"),
            (7, "ip|link|set|p0|alias|two words # none"),
            (8, "ip|link|set|p0|alias|a#b"),
            (9, "ip|link|show"),
            (10, "tc|qdisc|show"),
        ];
        assert_eq!(script(text).unwrap(), expected.map(|(n, words)| (n, words.to_owned())));
    }

    #[test]
    fn other_namespaces_are_refused() {
        for line in [
            "ip -n blue link add d0 type dummy",
            "ip -6 -netns blue addr",
            "ip netns add blue",
            "ip net exec blue ip link",
            "tc -n blue qdisc",
            "bridge -ne blue fdb",
            "ip -f inet --netns blue link",
        ] {
            let error = script(line).unwrap_err();
            assert!(error.contains("about another network namespace"), "{line}: {error}");
        }
        for line in ["ip ne", "ip -s link set d0 netns blue", "ip -f netns link", "tc -net", "ip netconf"] {
            let taken = script(line).is_ok();
            assert_eq!(taken, line != "tc -net", "{line}");
        }
    }

    #[test]
    fn errors_name_the_line_where_the_command_begins() {
        let quote = "vpn.conf:2: a quote is not closed";
        assert_eq!(script("ip link\nip link set 'p0 \\\n up\n").unwrap_err(), quote);
        assert_eq!(script("ip link\nip addr \\").unwrap(), [(1, "ip|link".into()), (2, "ip|addr".into())]);
        let tool =
            "vpn.conf:3: 'rm' is none of the tools that may run here: ip, tc, bridge, sysctl, underpass";
        assert_eq!(script("\n\nrm -r x").unwrap_err(), tool);
    }

    #[test]
    fn a_here_string_is_input() {
        let line = parse_one("ip sr hmac set 1 sha256 <<< 'a secret'").unwrap();
        assert_eq!(line.words, ["ip", "sr", "hmac", "set", "1", "sha256"]);
        assert_eq!(line.input.as_deref(), Some("a secret\n"));
        assert_eq!(parse_one("ip link").unwrap().input, None);
        for wrong in ["ip <<<", "ip <<< a b", "<<< a"] {
            assert!(parse_one(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn one_line_is_one_command() {
        assert_eq!(parse_one("ip -s route").unwrap().words, ["ip", "-s", "route"]);
        assert!(parse_one("").is_err());
        assert!(parse_one("ip link\nip addr").is_err());
        assert!(parse_one("ls").is_err());
    }
}
