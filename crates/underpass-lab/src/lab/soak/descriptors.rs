//! What a process has open, by what it is.

use std::{
    collections::BTreeMap,
    fmt::Write,
    fs, io,
    path::{Path, PathBuf},
};

/// Tables of sockets in `/proc/PID/net`, and in which column each has the inode.
const TABLES: [(&str, usize); 6] =
    [("unix", 6), ("netlink", 9), ("packet", 8), ("raw", 9), ("udp", 9), ("udp6", 9)];

/// How many descriptors there are of each kind: a file's name, or what a socket is.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Descriptors(BTreeMap<String, usize>);

impl Descriptors {
    /// Those of a process.
    ///
    /// # Errors
    /// It is gone.
    pub fn of(process: &Path) -> io::Result<Self> {
        let entries = fs::read_dir(process.join("fd"))?;
        // What is closed meanwhile is not there.
        let targets: Vec<PathBuf> =
            entries.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok()).collect();
        let tables = TABLES.map(|(name, column)| {
            let table = fs::read_to_string(process.join("net").join(name)).unwrap_or_default();
            (name, column, table)
        });
        let targets = targets.iter().map(|target| target.to_string_lossy());
        Ok(Self::named(targets.map(|target| kind(&target, &tables))))
    }

    fn named(kinds: impl Iterator<Item = String>) -> Self {
        let mut all = Self::default();
        kinds.for_each(|kind| *all.0.entry(kind).or_default() += 1);
        all
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.values().sum()
    }

    /// What there is more and less than before.
    pub fn since(&self, before: &Self) -> String {
        let mut text = String::new();
        let kinds = before.0.keys().chain(self.0.keys().filter(|kind| !before.0.contains_key(*kind)));
        for kind in kinds {
            let [now, then] = [self, before].map(|all| all.0.get(kind).copied().unwrap_or(0) as i64);
            if now != then {
                let comma = if text.is_empty() { "" } else { ", " };
                let _ = write!(text, "{comma}{:+} {kind}", now - then);
            }
        }
        text
    }
}

/// What a descriptor is of: without its own number, which is another one each time.
fn kind(target: &str, tables: &[(&str, usize, String)]) -> String {
    let Some((name, number)) = target.split_once(":[") else { return target.to_owned() };
    let number = number.trim_end_matches(']');
    if name != "socket" {
        // As `anon_inode:[eventfd]`, the name is what is in the brackets.
        return if number.parse::<u64>().is_ok() { name } else { target }.to_owned();
    }
    let has = |(_, column, table): &&(&str, usize, String)| {
        table.lines().any(|line| line.split_whitespace().nth(*column) == Some(number))
    };
    match tables.iter().find(has) {
        Some((name, ..)) => format!("{name} socket"),
        // As those of AF_XDP.
        None => "socket of another kind".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_more_is_named() {
        let table = "sk Eth Pid Groups Rmem Wmem Dump Locks Drops Inode\n0 0 1 0 0 0 0 2 0 4711\n";
        let tables = [("netlink", 9, table.to_owned())];
        let named = |targets: &[&str]| Descriptors::named(targets.iter().map(|target| kind(target, &tables)));
        let before = named(&["/dev/null", "pipe:[7]", "anon_inode:[eventfd]", "anon_inode:bpf_link"]);
        let now = named(&["pipe:[8]", "anon_inode:[eventfd]", "socket:[4711]", "socket:[471]", "socket:[1]"]);
        assert_eq!((before.count(), now.count()), (4, 5));
        let more = now.since(&before);
        assert_eq!(
            more,
            "-1 /dev/null, -1 anon_inode:bpf_link, +1 netlink socket, +2 socket of another kind"
        );
        assert_eq!(now.since(&now), "");
    }
}
