//! Many lines by one process: `ip -batch` and `tc -batch`, which run a thousand lines in the time in which a shell runs
//! a few. iproute2: `makeargs`, `do_batch` in `lib/utils.c`.
//!
//! A tool may end at a line without a word about which: what it has read tells. Each line is a message of a socket, and a
//! tool reads one before it runs it.

use std::path::Path;

use super::Line;
use super::run::{not_started, text};
use crate::launch;

/// Words that a line of a batch has at most, with room to spare: `MAX_ARGS`.
const WORDS: usize = 500;
/// Bytes of them: those that a tool reads at once are 4,096 at least.
const BYTES: usize = 4000;

/// The parts of a script that are run together: single lines, and consecutive lines of one tool with the same options.
pub(super) fn batches(lines: &[Line]) -> impl Iterator<Item = &[Line]> {
    lines.chunk_by(|a, b| match (options(a), options(b)) {
        (Some(a_options), Some(b_options)) => a_options == b_options && !renames(a),
        _ => false,
    })
}

/// The tool and its options, if the line can be one of a batch.
fn options(line: &Line) -> Option<&[String]> {
    let (tool, words) = line.words.split_first()?;
    if !matches!(tool.as_str(), "ip" | "tc") || line.input.is_some() || line.words.len() > WORDS {
        return None;
    }
    // A word has a blank behind it, and may have two quotes.
    if line.words.iter().map(|word| word.len() + 3).sum::<usize>() > BYTES {
        return None;
    }
    let count = match words {
        [option, _, ..] if option == "-f" || option == "-family" => 2,
        [option, ..] if matches!(option.as_str(), "-4" | "-6" | "-M" | "-B") => 1,
        [option, ..] if option.starts_with('-') => return None,
        _ => 0,
    };
    // What else begins with `-` may take the word behind it.
    let command =
        words.get(count..).filter(|rest| rest.first().is_some_and(|word| !word.starts_with('-')))?;
    command.iter().all(|word| quoted(word).is_some()).then(|| line.words.get(..=count))?
}

/// Whether a link has another name, or none, behind this line. The tools remember names for as long as they run.
fn renames(line: &Line) -> bool {
    let mut words =
        line.words.iter().map(String::as_str).skip_while(|word| word.starts_with('-') || *word == "ip");
    let is_link = words.next().is_some_and(|object| !object.is_empty() && "link".starts_with(object));
    is_link
        && line
            .words
            .iter()
            .any(|word| word == "name" || (word.starts_with('d') && "delete".starts_with(word)))
}

/// A word as `makeargs` reads it; `None` for one that cannot be written so.
fn quoted(word: &str) -> Option<String> {
    if word.contains(['#', '\n', '\r', '\\']) {
        return None;
    }
    let plain = !word.is_empty() && !word.starts_with(['\'', '"']) && !word.contains([' ', '\t']);
    let quote = ['\'', '"'].into_iter().find(|quote| !word.contains(*quote));
    if plain { Some(word.to_owned()) } else { quote.map(|quote| format!("{quote}{word}{quote}")) }
}

/// Runs lines of [`batches`] up to the first that fails; what the tool printed, and how many went well with why the next
/// did not.
pub(super) fn run(socket: &Path, lines: &[Line]) -> (String, Option<(usize, String)>) {
    let Some((first, options)) = lines.first().and_then(|line| Some((line, options(line)?))) else {
        return Default::default();
    };
    let inputs = lines.iter().map(|line| {
        let words = line.words.iter().skip(options.len()).filter_map(|word| quoted(word));
        words.collect::<Vec<_>>().join(" ") + "\n"
    });
    let words: Vec<&str> = options.iter().map(String::as_str).chain(["-batch", "-"]).collect();
    let (output, read) = match launch::output_of_each(socket, &words, inputs) {
        Ok(done) => done,
        Err(error) => return (String::new(), Some((0, not_started(first, &error)))),
    };
    let errors = String::from_utf8_lossy(&output.stderr);
    let said: Vec<&str> = errors.lines().filter(|line| !line.starts_with("Command failed -:")).collect();
    let failed = if output.status.success() {
        said.iter().for_each(|line| eprintln!("{line}"));
        None
    } else {
        // The line that it read last.
        let at = read.saturating_sub(1).min(lines.len() - 1);
        let said = if said.is_empty() { output.status.to_string() } else { said.join("\n") };
        lines.get(at).map(|line| (at, format!("{}: {said}", text(line))))
    };
    (String::from_utf8_lossy(&output.stdout).into_owned(), failed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::script::parse;

    fn numbers(text: &str) -> Vec<Vec<usize>> {
        let lines = parse(Path::new("x"), text).unwrap();
        batches(&lines).map(|lines| lines.iter().map(|line| line.number).collect()).collect()
    }

    #[test]
    fn lines_of_one_tool_and_one_family_go_together() {
        let text = "ip link add d0 type dummy\nip addr add 10.0.0.1/24 dev d0\nip -6 route add a::/16 dev d0\n\
                    ip -6 route add b::/16 dev d0\nip -f mpls route add 100 dev d0\ntc qdisc add dev d0 clsact\n\
                    ip -s link show\nip -s link show\nsysctl -w a.b=1\nip sr hmac set 1 sha1 <<< x";
        assert_eq!(
            numbers(text),
            [vec![1, 2], vec![3, 4], vec![5], vec![6], vec![7], vec![8], vec![9], vec![10]]
        );
        // The tool would take the old index for the new link.
        let text = "ip link del d0\nip link add d0 type dummy\nip l set d0 name d1\nip link set d1 up";
        assert_eq!(numbers(text), [vec![1], vec![2, 3], vec![4]]);
        let text = "ip link set p0 alias 'a b'\nip link set p0 alias a#b\nip link set p0 alias 'a\"b'\nip link set p0 up";
        assert_eq!(numbers(text), [vec![1], vec![2], vec![3, 4]]);
    }
}
