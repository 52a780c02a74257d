//! A line, word by word.

use std::fmt::{Display, Write};

/// A line under construction.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Words(String);

impl Words {
    /// Begins a line, with words that need no quotes.
    pub fn new(words: &str) -> Self {
        Self(words.to_owned())
    }

    /// One or more words that need no quotes.
    pub fn add(&mut self, words: impl Display) -> &mut Self {
        let space = if self.0.is_empty() { "" } else { " " };
        let _ = write!(self.0, "{space}{words}");
        self
    }

    /// The name of a parameter, and its value.
    pub fn pair(&mut self, name: &str, value: impl Display) -> &mut Self {
        self.add(name).add(value)
    }

    /// The same if there is a value.
    pub fn some(&mut self, name: &str, value: Option<impl Display>) -> &mut Self {
        if let Some(value) = value {
            self.pair(name, value);
        }
        self
    }

    /// Words under a condition.
    pub fn when(&mut self, condition: bool, words: &str) -> &mut Self {
        if condition { self.add(words) } else { self }
    }

    /// The words of another line.
    pub fn add_all(&mut self, words: &Self) -> &mut Self {
        if words.is_empty() { self } else { self.add(words) }
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Display for Words {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<Words> for String {
    fn from(words: Words) -> Self {
        words.0
    }
}

/// A word as a shell reads it.
pub(crate) fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_.:/@%+=,-".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// Six bytes as `ip` writes them.
pub(crate) fn mac(bytes: [u8; 6]) -> String {
    bytes.map(|byte| format!("{byte:02x}")).join(":")
}

/// An EtherType, by its name where the tools have one.
pub(crate) fn protocol(ethertype: u16) -> String {
    let name = match ethertype {
        0x0003 => "all",
        0x0800 => "ip",
        0x0806 => "arp",
        0x8100 => "802.1Q",
        0x86dd => "ipv6",
        0x8847 => "mpls_uc",
        0x8848 => "mpls_mc",
        0x88a8 => "802.1ad",
        other => return format!("{other:#06x}"),
    };
    name.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_for_a_shell() {
        assert_eq!(quoted("eth0.7"), "eth0.7");
        assert_eq!(quoted(""), "''");
        assert_eq!(quoted("it's #1"), "'it'\\''s #1'");
    }

    #[test]
    fn lines() {
        let mut line = Words::new("ip link set");
        line.pair("dev", "p0").some("mtu", Some(1400)).some("alias", None::<u8>).when(true, "up");
        assert_eq!(String::from(line), "ip link set dev p0 mtu 1400 up");
    }
}
