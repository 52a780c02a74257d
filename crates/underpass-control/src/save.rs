//! The state of the router as lines of `ip`, `tc` and `sysctl`, which make the same state in another router.
//!
//! Each feature has a file `save.rs`, which takes its objects apart field by field: a field that comes is missed by the
//! compiler. What no line can say is a [`Saved::left_out`]. Beside a kernel the lines are about what goes away with this
//! process: the router's own, and what the kernel has by the devices that the router has made.

mod words;

use std::fmt::Write;
use std::net::IpAddr;

use crate::Router;

pub(crate) use words::{Words, mac, protocol, quoted};

/// Lines, in the order in which they have to be run, and what they do not say.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Saved {
    /// Sections of lines, each with what it is about.
    sections: Vec<(&'static str, Vec<String>)>,
    /// What is configured and cannot be said in a line, a sentence each.
    pub left_out: Vec<String>,
}

impl Saved {
    /// The lines.
    pub fn lines(&self) -> impl Iterator<Item = &str> {
        self.sections.iter().flat_map(|(_, lines)| lines).map(String::as_str)
    }

    /// The lines as a file, with a comment above each section.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for (title, lines) in self.sections.iter().filter(|(_, lines)| !lines.is_empty()) {
            let _ = writeln!(text, "{}# {title}", if text.is_empty() { "" } else { "\n" });
            lines.iter().for_each(|line| {
                let _ = writeln!(text, "{line}");
            });
        }
        for left_out in &self.left_out {
            let _ = writeln!(text, "\n# Not saved: {}", left_out.replace('\n', " "));
        }
        text
    }
}

/// What another program keeps, and makes again by itself when the router is there again: it is not saved.
pub trait Elsewhere {
    /// Whether it has the route to a destination with this length of its prefix, in this table with this metric.
    fn route(&self, destination: IpAddr, prefix_len: u8, table: u32, metric: u32) -> bool;

    /// Whether it has the route of a label.
    fn label(&self, label: u32) -> bool;

    /// Whether it has the next-hop object of an id.
    fn object(&self, id: u32) -> bool;
}

/// Nobody keeps anything.
impl Elsewhere for () {
    fn route(&self, _: IpAddr, _: u8, _: u32, _: u32) -> bool {
        false
    }

    fn label(&self, _: u32) -> bool {
        false
    }

    fn object(&self, _: u32) -> bool {
        false
    }
}

/// Where the features write their lines.
pub(crate) struct Save<'a> {
    pub router: &'a Router,
    pub elsewhere: &'a dyn Elsewhere,
    saved: Saved,
}

impl<'a> Save<'a> {
    /// Nothing is saved yet.
    pub fn new(router: &'a Router, elsewhere: &'a dyn Elsewhere) -> Self {
        Self { router, elsewhere, saved: Saved::default() }
    }

    /// All of it.
    pub fn done(self) -> Saved {
        self.saved
    }

    /// What follows is of another kind.
    pub fn section(&mut self, title: &'static str) {
        self.saved.sections.push((title, Vec::new()));
    }

    pub fn line(&mut self, words: Words) {
        if let Some((_, lines)) = self.saved.sections.last_mut() {
            lines.push(words.into());
        }
    }

    pub fn left_out(&mut self, what: impl Into<String>) {
        self.saved.left_out.push(what.into());
    }

    /// Whether a link was made by a request, and is gone with this process.
    pub fn makes(&self, link: u32) -> bool {
        let live = self.router.live.as_ref();
        let kind = self.router.links.get(link).map(|link| link.kind);
        live.map_or_else(
            || kind.is_some_and(|kind| kind.name().is_some()),
            |live| live.devices.get(link).is_some(),
        )
    }

    /// Whether the attributes of a link are saved: of all, or beside a kernel of those that are gone with this process.
    pub fn keeps(&self, link: u32) -> bool {
        self.router.live.is_none() || self.makes(link)
    }

    /// Whether what there is on a link is saved, which beside a kernel is also what the kernel takes away when the link is
    /// put into a VRF of the router's again: IPv6 addresses, routes, neighbours.
    pub fn keeps_on(&self, link: u32) -> bool {
        self.keeps(link) || self.router.live.as_ref().is_some_and(|live| live.devices.vrf(link).is_some())
    }

    /// Whether what a link is to a bridge is saved: beside a kernel of the ports of the router's bridges, whoever's they are.
    pub fn keeps_in_bridge(&self, link: &crate::Link) -> bool {
        self.keeps(link.index) || link.bridge_port.is_some()
    }

    /// The name of a link, for a word.
    pub fn name(&self, link: u32) -> String {
        self.router.links.get(link).map_or_else(|| format!("if{link}"), |link| quoted(&link.name))
    }
}
