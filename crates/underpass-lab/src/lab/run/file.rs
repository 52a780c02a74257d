//! The file of a topology: containerlab's format where nodes are network namespaces, and `checks` besides.
//!
//! ```yaml
//! name: small
//! topology:
//!   nodes:
//!     h1: {kind: host, exec: [ip addr add 10.0.0.2/24 dev eth0]}
//!     r1: {kind: router, exec: [ip addr add 10.0.0.1/24 dev left], frr: r1.conf}
//!   links:
//!     - endpoints: ["h1:eth0", "r1:left"]
//! checks:
//!   - {node: h1, exec: ping -c 1 10.0.0.1, within: 10}
//! ```

use std::{
    collections::BTreeMap,
    fmt, fs,
    marker::PhantomData,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, anyhow, bail, ensure};
use serde::{
    Deserialize, Deserializer,
    de::{self, MapAccess, SeqAccess, Visitor},
};
use serde_saphyr::Spanned;

/// How long a check may take until it holds, where the file does not say.
const WITHIN: Duration = Duration::from_secs(10);
/// The longest name of a device, IFNAMSIZ without its zero.
const LONGEST_DEVICE: usize = 15;

/// A topology whose names agree with each other.
#[derive(Debug)]
pub struct Topology {
    /// What the file is called in messages.
    pub shown: String,
    /// Where the lines of nodes run.
    pub directory: PathBuf,
    /// Before the names of network namespaces.
    pub name: String,
    /// In the order of the file.
    pub nodes: Vec<Node>,
    /// In the order of the file.
    pub links: Vec<Link>,
    /// In the order of the file.
    pub checks: Vec<Check>,
}

/// A host, or a router.
#[derive(Debug)]
pub struct Node {
    pub name: String,
    /// Arguments of `underpass run`; `None` for a host.
    pub router: Option<Vec<String>>,
    /// Lines of shell.
    pub exec: Vec<Line>,
    pub frr: Option<Frr>,
}

impl Node {
    /// What it is, in words.
    pub const fn kind(&self) -> &'static str {
        match (&self.router, &self.frr) {
            (None, _) => "host",
            (Some(_), None) => "router",
            (Some(_), Some(_)) => "router, FRR",
        }
    }
}

/// A text and where it is in the file, counted from 1.
#[derive(Clone, Debug)]
pub struct Line {
    pub number: u64,
    pub text: String,
}

/// What FRR is configured with.
#[derive(Clone, Debug)]
pub struct Frr {
    /// As messages call the file.
    pub shown: String,
    /// How many lines of the file are before the text.
    pub before: u64,
    pub text: String,
}

/// Two devices, each in a node, which is counted from 0.
#[derive(Debug)]
pub struct Link {
    pub number: u64,
    pub ends: [End; 2],
    pub mtu: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct End {
    pub node: usize,
    pub device: String,
}

/// What has to be so, or be done.
#[derive(Debug)]
pub struct Check {
    pub line: Line,
    /// What is shown above it.
    pub name: Option<String>,
    /// The node, counted from 0.
    pub node: usize,
    /// Exit status that is wanted.
    pub exit: i32,
    /// What has to be in the output, and what must not.
    pub text: Vec<String>,
    pub absent: Vec<String>,
    pub within: Duration,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    name: Option<Spanned<String>>,
    topology: DocumentTopology,
    #[serde(default)]
    checks: Vec<DocumentCheck>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DocumentTopology {
    #[serde(default)]
    defaults: Settings,
    #[serde(default)]
    kinds: BTreeMap<String, Settings>,
    #[serde(default)]
    groups: BTreeMap<String, Settings>,
    nodes: Ordered<Settings>,
    #[serde(default)]
    links: Vec<DocumentLink>,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Settings {
    kind: Option<Spanned<String>>,
    group: Option<Spanned<String>>,
    exec: Vec<Spanned<String>>,
    run: Vec<String>,
    frr: Option<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DocumentLink {
    endpoints: Spanned<Vec<Spanned<String>>>,
    mtu: Option<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DocumentCheck {
    name: Option<String>,
    node: Spanned<String>,
    exec: Spanned<String>,
    #[serde(default)]
    exit: i32,
    #[serde(default)]
    text: Texts,
    #[serde(default)]
    absent: Texts,
    within: Option<u32>,
}

/// One text, or a list of them.
#[derive(Default)]
struct Texts(Vec<String>);

impl<'de> Deserialize<'de> for Texts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OneOrSeveral;
        impl<'de> Visitor<'de> for OneOrSeveral {
            type Value = Texts;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text, in quotes if it is a number, or a list of texts")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Texts, E> {
                Ok(Texts(vec![text.to_owned()]))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut texts: A) -> Result<Texts, A::Error> {
                let mut all = Vec::new();
                while let Some(text) = texts.next_element()? {
                    all.push(text);
                }
                Ok(Texts(all))
            }
        }
        deserializer.deserialize_any(OneOrSeveral)
    }
}

/// A mapping in the order of the file.
struct Ordered<T>(Vec<(Spanned<String>, T)>);

impl<'de, T: Deserialize<'de> + Default> Deserialize<'de> for Ordered<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de> + Default> Visitor<'de> for Entries<T> {
            type Value = Ordered<T>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a mapping of names, as `r1: {kind: router}`")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Ordered<T>, A::Error> {
                let mut entries = Vec::new();
                // A name with nothing behind it is a node with nothing but defaults.
                while let Some((name, value)) = map.next_entry::<Spanned<String>, Option<T>>()? {
                    entries.push((name, value.unwrap_or_default()));
                }
                Ok(Ordered(entries))
            }
        }
        deserializer.deserialize_map(Entries(PhantomData))
    }
}

impl Topology {
    /// Reads a file, and the FRR configurations that it names.
    ///
    /// # Errors
    /// What is wrong, in which file and line, and what to write instead.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let shown = path.display().to_string();
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {shown}"))?;
        let directory = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        Self::parse(&text, &shown, &directory.canonicalize()?)
    }

    /// The same of a text; `shown` names it in messages, and FRR configurations are in `directory`.
    ///
    /// # Errors
    /// As [`Topology::read`].
    pub fn parse(text: &str, shown: &str, directory: &Path) -> anyhow::Result<Self> {
        let options = serde_saphyr::options! { with_snippet: false };
        let document: Document =
            serde_saphyr::from_str_with_options(text, options).map_err(|error| malformed(shown, &error))?;
        let reader = Reader { shown, directory };
        let stem = Path::new(shown).file_stem().unwrap_or_default().to_string_lossy();
        let name = match &document.name {
            Some(name) => reader.name(name)?,
            None => stem.split('.').next().unwrap_or("lab").to_owned(),
        };
        let nodes = reader.nodes(&document.topology)?;
        let links = reader.links(&document.topology.links, &nodes)?;
        let checks = document.checks.into_iter().map(|check| reader.check(check, &nodes));
        let checks = checks.collect::<anyhow::Result<_>>()?;
        Ok(Self { shown: shown.to_owned(), directory: directory.to_owned(), name, nodes, links, checks })
    }

    /// `FILE:LINE`.
    pub fn at(&self, number: u64) -> String {
        format!("{}:{number}", self.shown)
    }
}

/// What the parser says, led by the file and its line.
fn malformed(shown: &str, error: &serde_saphyr::Error) -> anyhow::Error {
    let said = error.to_string();
    let Some(location) = error.location() else { return anyhow!("{shown}: {said}") };
    let (line, column) = (location.line(), location.column());
    let what = said.strip_suffix(&format!(" at line {line}, column {column}")).unwrap_or(&said);
    anyhow!("{shown}:{line}: {what}")
}

/// What is the same for all that is read.
struct Reader<'a> {
    shown: &'a str,
    directory: &'a Path,
}

impl Reader<'_> {
    fn at<T>(&self, text: &Spanned<T>) -> String {
        format!("{}:{}", self.shown, text.referenced.line())
    }

    fn nodes(&self, topology: &DocumentTopology) -> anyhow::Result<Vec<Node>> {
        let nodes = topology.nodes.0.iter().map(|(name, own)| self.node(topology, name, own));
        let nodes: Vec<Node> = nodes.collect::<anyhow::Result<_>>()?;
        ensure!(!nodes.is_empty(), "{}: there are no nodes: write some below topology, nodes", self.shown);
        Ok(nodes)
    }

    /// A node's settings go over those of its group, of its kind and of all; lines of `exec` follow each other.
    fn node(
        &self,
        topology: &DocumentTopology,
        name: &Spanned<String>,
        own: &Settings,
    ) -> anyhow::Result<Node> {
        let at = self.at(name);
        let group = own.group.as_ref().or(topology.defaults.group.as_ref());
        let of_group = group.map(|group| {
            let found = topology.groups.get(&group.value);
            found.with_context(|| {
                let group_at = self.at(group);
                format!("{group_at}: there is no group '{}': write it below topology, groups", group.value)
            })
        });
        let of_group = of_group.transpose()?;
        let kind = [Some(own), of_group, Some(&topology.defaults)]
            .into_iter()
            .flatten()
            .find_map(|settings| settings.kind.as_ref())
            .with_context(|| {
                format!("{at}: node '{}' has no kind: write `kind: host` or `kind: router`", name.value)
            })?;
        let is_router = match kind.value.as_str() {
            "host" | "linux" => false,
            "router" => true,
            other => bail!(
                "{}: there is no kind '{other}': write `host` (or `linux`), or `router`, which runs Underpass, \
                 and with `frr: FILE` FRR too",
                self.at(kind)
            ),
        };
        let of_kind = topology.kinds.get(&kind.value);
        let levels = [Some(&topology.defaults), of_kind, of_group, Some(own)];
        let levels: Vec<&Settings> = levels.into_iter().flatten().collect();
        let exec = levels.iter().flat_map(|settings| &settings.exec);
        let run: Vec<String> = levels.iter().flat_map(|settings| settings.run.clone()).collect();
        let frr = levels.iter().rev().find_map(|settings| settings.frr.as_ref());
        if let Some(frr) = frr.filter(|_| !is_router) {
            bail!("{}: node '{}' is a host: FRR wants `kind: router`", self.at(frr), name.value);
        }
        ensure!(
            is_router || run.is_empty(),
            "{at}: node '{}' is a host: `run` has arguments of a router",
            name.value
        );
        Ok(Node {
            name: self.name(name)?,
            router: is_router.then_some(run),
            exec: exec.map(line).collect(),
            frr: frr.map(|frr| self.frr(frr)).transpose()?,
        })
    }

    /// A file, or a text of several lines.
    fn frr(&self, frr: &Spanned<String>) -> anyhow::Result<Frr> {
        if frr.value.contains('\n') {
            let before = frr.referenced.line().saturating_sub(1);
            return Ok(Frr { shown: self.shown.to_owned(), before, text: frr.value.clone() });
        }
        let path = self.directory.join(&frr.value);
        let text = fs::read_to_string(&path).with_context(|| {
            let at = self.at(frr);
            format!("{at}: cannot read {}: `frr` names a file beside this one", path.display())
        })?;
        Ok(Frr { shown: frr.value.clone(), before: 0, text })
    }

    /// What is part of paths and of names for `ip netns`.
    fn name(&self, name: &Spanned<String>) -> anyhow::Result<String> {
        let letters = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
        let text = &name.value;
        ensure!(
            text.starts_with(|first: char| first.is_ascii_alphanumeric()) && text.chars().all(letters),
            "{}: '{text}' is no name: write letters, digits, `-`, `_` and `.`, a letter or digit first",
            self.at(name)
        );
        Ok(text.clone())
    }

    fn links(&self, links: &[DocumentLink], nodes: &[Node]) -> anyhow::Result<Vec<Link>> {
        let mut used = BTreeMap::new();
        let mut all = Vec::with_capacity(links.len());
        for link in links {
            let number = link.endpoints.referenced.line();
            let [one, other] = &link.endpoints.value[..] else {
                bail!(
                    "{}: a link has two endpoints: write `endpoints: [\"r1:eth1\", \"r2:eth1\"]`",
                    self.at(&link.endpoints)
                );
            };
            let ends = [self.end(one, nodes)?, self.end(other, nodes)?];
            for (end, written) in ends.iter().zip([one, other]) {
                if let Some(before) = used.insert(end.clone(), written.referenced.line()) {
                    let at = self.at(written);
                    bail!("{at}: '{}' is in the link of line {before} already", written.value);
                }
            }
            all.push(Link { number, ends, mtu: link.mtu });
        }
        Ok(all)
    }

    fn end(&self, text: &Spanned<String>, nodes: &[Node]) -> anyhow::Result<End> {
        let at = self.at(text);
        let (node, device) = text
            .value
            .split_once(':')
            .with_context(|| format!("{at}: '{}' is no endpoint: write NODE:DEVICE", text.value))?;
        let sound = |letter: char| letter.is_ascii_graphic() && letter != '/' && letter != ':';
        ensure!(
            (1..=LONGEST_DEVICE).contains(&device.len()) && device.chars().all(sound) && device != "lo",
            "{at}: '{device}' is no name of a device: write up to {LONGEST_DEVICE} characters without blanks, \
             `/` and `:`, and not `lo`"
        );
        Ok(End { node: self.find(&at, node, nodes)?, device: device.to_owned() })
    }

    fn find(&self, at: &str, name: &str, nodes: &[Node]) -> anyhow::Result<usize> {
        nodes.iter().position(|node| node.name == name).with_context(|| {
            let all: Vec<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
            format!("{at}: there is no node '{name}': the nodes are {}", all.join(", "))
        })
    }

    fn check(&self, check: DocumentCheck, nodes: &[Node]) -> anyhow::Result<Check> {
        let node = self.find(&self.at(&check.node), &check.node.value, nodes)?;
        Ok(Check {
            line: line(&check.exec),
            name: check.name,
            node,
            exit: check.exit,
            text: check.text.0,
            absent: check.absent.0,
            within: check.within.map_or(WITHIN, |seconds| Duration::from_secs(seconds.into())),
        })
    }
}

fn line(text: &Spanned<String>) -> Line {
    Line { number: text.referenced.line(), text: text.value.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = "\
name: small
topology:
  defaults: {kind: router}
  kinds:
    host:
      exec: [ip link set eth0 up]
  nodes:
    h1:
      kind: host
      exec:
        - ip addr add 10.0.0.2/24 dev eth0
    r1:
      exec:
        - |
          ip link set left up
          ip addr add 10.0.0.1/24 dev left
  links:
    - endpoints: [\"h1:eth0\", \"r1:left\"]
      mtu: 9000
checks:
  - node: h1
    exec: ping -c 1 10.0.0.1
    text: 1 received
    within: 5
  - {node: r1, exec: 'false', exit: 1, absent: [a, b]}
";

    fn parse(text: &str) -> anyhow::Result<Topology> {
        Topology::parse(text, "x.yaml", Path::new("/nowhere"))
    }

    /// What is said of the file with one text in the place of another, which has to be there.
    fn said(from: &str, to: &str) -> String {
        assert!(SMALL.contains(from), "{from}");
        parse(&SMALL.replacen(from, to, 1)).map(|_| ()).unwrap_err().to_string()
    }

    #[test]
    fn nodes_links_and_checks() {
        let small = parse(SMALL).unwrap();
        assert_eq!(small.name, "small");
        let [h1, r1] = &small.nodes[..] else { panic!("{small:?}") };
        assert_eq!((h1.name.as_str(), &h1.router), ("h1", &None));
        let lines = |node: &Node| -> Vec<(u64, String)> {
            node.exec.iter().map(|line| (line.number, line.text.clone())).collect()
        };
        // Those of the kind first.
        assert_eq!(
            lines(h1),
            [(6, "ip link set eth0 up".to_owned()), (11, "ip addr add 10.0.0.2/24 dev eth0".to_owned())]
        );
        assert_eq!(r1.router, Some(Vec::new()));
        assert_eq!(lines(r1)[0].0, 15);
        let [link] = &small.links[..] else { panic!("{small:?}") };
        assert_eq!(link.ends[1], End { node: 1, device: "left".to_owned() });
        assert_eq!((link.number, link.mtu), (18, Some(9000)));
        let [ping, no] = &small.checks[..] else { panic!("{small:?}") };
        assert_eq!((ping.node, ping.line.number, ping.within), (0, 22, Duration::from_secs(5)));
        assert_eq!(ping.text, ["1 received"]);
        assert_eq!((no.node, no.exit, no.within), (1, 1, WITHIN));
        assert_eq!(no.absent, ["a", "b"]);
    }

    #[test]
    fn a_configuration_of_frr_may_be_in_the_file() {
        let text =
            SMALL.replacen("    r1:\n", "    r1:\n      frr: |\n        hostname r1\n        exit\n", 1);
        let frr = parse(&text).unwrap().nodes[1].frr.clone().unwrap();
        assert_eq!(
            (frr.shown.as_str(), frr.before, frr.text.as_str()),
            ("x.yaml", 13, "hostname r1\nexit\n")
        );
    }

    #[test]
    fn an_error_names_the_line_and_what_to_write() {
        for (from, to, wanted) in [
            ("defaults: {kind: router}", "defaults: {}", "x.yaml:12: node 'r1' has no kind: write `kind: "),
            ("kind: host", "kind: bridge", "x.yaml:9: there is no kind 'bridge': write `host`"),
            ("kind: host", "kind: host\n      frr: a.conf", "x.yaml:10: node 'h1' is a host: FRR wants"),
            ("kind: host", "kind: host\n      group: g", "x.yaml:10: there is no group 'g'"),
            ("kind: host", "kind: host\n      image: alpine", "x.yaml:10: unknown field `image`"),
            ("kind: host", "kind: host\n      run: [-v]", "x.yaml:8: node 'h1' is a host: `run`"),
            ("r1:left", "r2:left", "x.yaml:18: there is no node 'r2': the nodes are h1, r1"),
            ("r1:left", "left", "x.yaml:18: 'left' is no endpoint: write NODE:DEVICE"),
            ("r1:left", "r1:a-name-that-is-long", "x.yaml:18: 'a-name-that-is-long' is no name of a device"),
            ("r1:left", "h1:eth0", "x.yaml:18: 'h1:eth0' is in the link of line 18 already"),
            (", \"r1:left\"", "", "x.yaml:18: a link has two endpoints"),
            ("    r1:", "    ../r1:", "x.yaml:12: '../r1' is no name"),
            ("    r1:", "    h1:", "x.yaml:12: duplicate mapping key: h1"),
            ("node: h1", "node: h7", "x.yaml:21: there is no node 'h7'"),
            ("within: 5", "within: soon", "x.yaml:24: "),
            ("1 received", "1", "x.yaml:23: invalid type: integer `1`, expected a text, in quotes if"),
            ("exec: ping", "exec: [ping", "x.yaml:2"),
            ("topology:", "topologie:", "x.yaml:2: unknown field `topologie`"),
        ] {
            let said = said(from, to);
            assert!(said.starts_with(wanted), "{to}: {said}");
        }
        let frr = said("    r1:\n", "    r1:\n      frr: no.conf\n");
        assert!(frr.starts_with("x.yaml:13: cannot read /nowhere/no.conf: `frr` names a file"), "{frr}");
    }
}
