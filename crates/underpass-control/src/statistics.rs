//! What the packet path has counted, for `underpass stats` and metrics.

use underpass_engine::counters::{Count, Direction, MplsCount, Totals};
use underpass_engine::drops::DropReason;
use underpass_packet::mpls::IPV6_EXPLICIT_NULL;

use crate::{Link, Router};

/// What a local SID has counted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SidCount {
    /// Its prefix.
    pub prefix: String,
    /// Its table.
    pub table: u32,
    /// Its behaviour, as RFC 8986 names it.
    pub behaviour: &'static str,
    /// Packets, bytes and errors, as `ip -s route` shows them; zero without `count`.
    pub count: Count,
}

/// What packets with an MPLS label have counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LabelCount {
    /// The label.
    pub label: u32,
    /// Packets, their bytes from the first label on, as received, and errors.
    pub count: Count,
}

/// What a link has counted: packets, and bytes with the link layer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LinkCounts {
    /// Its interface index.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Came in by it.
    pub received: (u64, u64),
    /// Left by it.
    pub sent: (u64, u64),
    /// What it has received and sent with MPLS labels.
    pub mpls: MplsCount,
}

impl Router {
    /// What became of all packets.
    pub fn totals(&self) -> Totals {
        self.engine.totals()
    }

    /// How many packets were dropped for each reason, in the order of the reasons' numbers.
    pub fn drops(&self) -> Vec<(DropReason, u64)> {
        DropReason::ALL.iter().map(|reason| (*reason, self.engine.dropped(*reason))).collect()
    }

    /// What each label that has a route has counted since the router was started. The explicit null labels, which
    /// always have one, are left out until they have counted.
    pub fn label_counts(&self) -> impl Iterator<Item = LabelCount> + '_ {
        self.routes.labels.all().filter_map(|label| self.label_count(label))
    }

    /// The same of one label; `None` if it has no route.
    pub fn label_count(&self, label: u32) -> Option<LabelCount> {
        let count = LabelCount { label, count: self.engine.label_count(label) };
        let null = label <= IPV6_EXPLICIT_NULL && count.count != Count::default();
        (null || self.routes.labels.has(label)).then_some(count)
    }

    /// What a link has received and sent; bytes with the link layer.
    pub fn link_count(&self, link: &Link) -> [Count; 2] {
        [Direction::Receive, Direction::Transmit].map(|way| self.engine.link_count(link.id, way))
    }

    /// What the links that have a port have counted.
    pub fn link_counts(&self) -> Vec<LinkCounts> {
        let with_port = self.links.iter().filter(|link| link.port().is_some());
        with_port
            .map(|link| {
                let [received, sent] = self.link_count(link).map(|count| (count.packets, count.bytes));
                let mpls = self.engine.mpls_count(link.id);
                LinkCounts { index: link.index, name: link.name.clone(), received, sent, mpls }
            })
            .collect()
    }
}
