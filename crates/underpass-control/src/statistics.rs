//! What the packet path has counted, for `underpass stats` and metrics.

use underpass_engine::counters::{Direction, Totals};
use underpass_engine::drops::Drop;

use crate::Router;

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
    pub count: underpass_engine::counters::Count,
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
}

impl Router {
    /// What became of all packets.
    pub fn totals(&self) -> Totals {
        self.engine.totals()
    }

    /// How many packets were dropped for each reason, in the order of the reasons' numbers.
    pub fn drops(&self) -> Vec<(Drop, u64)> {
        Drop::ALL.iter().map(|reason| (*reason, self.engine.dropped(*reason))).collect()
    }

    /// What the links that have a port have counted.
    pub fn link_counts(&self) -> Vec<LinkCounts> {
        let with_port = self.links.iter().filter(|link| link.port().is_some());
        with_port
            .map(|link| {
                let [received, sent] = [Direction::Receive, Direction::Transmit].map(|way| {
                    let count = self.engine.link_count(link.id, way);
                    (count.packets, count.bytes)
                });
                LinkCounts { index: link.index, name: link.name.clone(), received, sent }
            })
            .collect()
    }
}
