//! What there is to see of a running router at one time: its links, SIDs, labels, queues and policers with all that
//! has been counted of them. For `underpass top`, the web page and Prometheus; `docs/observing.md` describes the JSON.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{
    location::Location,
    stats::{Label, Stats},
};

/// Objects of a kind that are told at most; of more, those that have counted most.
pub const MOST: usize = 1000;

/// What there is to see.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// When: milliseconds since 1970.
    pub time: u64,
    /// The program's version.
    pub version: String,
    /// Where it runs.
    #[serde(flatten, default)]
    pub location: Location,
    /// What has been counted, as `underpass stats --json` tells it.
    #[serde(flatten)]
    pub stats: Stats,
    /// The links, ports and tunnels and VRFs among them.
    pub links: Vec<Link>,
    /// MPLS labels that have a route.
    pub labels: Vec<Label>,
    /// Qdiscs that have been made, and classes of htb.
    pub queues: Vec<Queue>,
    /// Policers.
    pub policers: Vec<Policer>,
    /// What each reason means for which packets were dropped.
    pub meanings: BTreeMap<String, String>,
    /// Objects that there are besides.
    pub left_out: LeftOut,
}

/// How many of a kind are not told of.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOut {
    /// Links.
    pub links: usize,
    /// SIDs.
    pub sids: usize,
    /// SRv6 policies.
    #[serde(default)]
    pub policies: usize,
    /// Labels.
    pub labels: usize,
    /// Qdiscs and classes.
    pub queues: usize,
    /// Policers.
    pub policers: usize,
}

/// A link.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// Its name.
    pub name: String,
    /// Its interface index.
    pub index: u32,
    /// `port` for a device that is attached, `lo`, `vrf`, `ifb`, `dummy`, the kind of a tunnel as `ip` names it, or
    /// `kernel`.
    pub kind: String,
    /// Administratively up, with a carrier.
    pub up: bool,
    /// Longest packet, in bytes.
    pub mtu: u32,
    /// Its addresses, with the lengths of their prefixes.
    pub addresses: Vec<String>,
    /// The VRF or bridge that it is enslaved to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub master: Option<String>,
    /// The table of a VRF.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<u32>,
    /// What makes it a tunnel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tunnel: Option<Tunnel>,
    /// Packets received.
    pub rx_packets: u64,
    /// Bytes received, with the link layer.
    pub rx_bytes: u64,
    /// Received and refused.
    pub rx_errors: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Bytes sent, with the link layer.
    pub tx_bytes: u64,
    /// Not sent.
    pub tx_errors: u64,
}

/// A tunnel.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tunnel {
    /// The source of its outer headers; `any` if the route chooses.
    pub local: String,
    /// Their destination; `any` if the packet's route says.
    pub remote: String,
    /// The link that it is bound to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// `fou` or `gue`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encap: Option<String>,
}

/// A qdisc, or a class of htb.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queue {
    /// Its device.
    pub device: String,
    /// Its kind; of a class that of its qdisc.
    pub kind: String,
    /// Its handle, or the number of the class, as `tc` writes them.
    pub handle: String,
    /// The class that it is in, or `root` or `ingress`.
    pub parent: String,
    /// Whether it is a class.
    pub class: bool,
    /// Its rate in bits a second, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<u64>,
    /// Packets that have left.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Packets that were dropped.
    pub drops: u64,
    /// Times that packets had to wait.
    pub overlimits: u64,
    /// Packets that wait.
    pub queued: u64,
    /// Bytes that wait.
    pub backlog: u64,
}

/// A policer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policer {
    /// Its number.
    pub index: u32,
    /// Its rate in bits a second, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<u64>,
    /// Filters that have it.
    pub filters: u32,
    /// Packets that came to it.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Packets that it dropped.
    pub drops: u64,
    /// Packets beyond its limit.
    pub overlimits: u64,
}

/// Routes. At most [`MOST`] of a kind are told.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Routes {
    /// Routes that put headers before their packets, or into them: SRv6 policies, labels, tunnels.
    pub headends: Vec<Route>,
    /// How many there are besides.
    pub more_headends: usize,
    /// Other routes, without those of the router's own addresses.
    pub routes: Vec<Route>,
    /// How many prefixes all tables have together.
    pub prefixes: usize,
}

/// A route.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    /// Its destination.
    pub prefix: String,
    /// Its table.
    pub table: u32,
    /// `blackhole`, `unreachable` …; an ordinary one has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// What `ip` writes behind `proto`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
    /// `metric`.
    pub metric: u32,
    /// Each way, in the words of `ip`.
    pub ways: Vec<String>,
}

impl State {
    /// The counters of which a page shows rates, by the names that its script (`web/common.js`) has for them.
    pub fn counters(&self) -> Vec<(String, u64)> {
        let totals = &self.stats.totals;
        let named = [
            ("received", totals.received),
            ("sent", totals.sent),
            ("delivered", totals.delivered),
            ("dropped", totals.dropped),
        ];
        let mut all: Vec<(String, u64)> =
            named.into_iter().map(|(name, count)| (name.to_owned(), count)).collect();
        let sum = |drops: &BTreeMap<String, u64>| drops.values().sum();
        all.extend(self.stats.drops.iter().map(|(reason, count)| (format!("drop {reason}"), *count)));
        for port in &self.stats.ports {
            all.push((format!("port {} drops", port.name), sum(&port.drops)));
            all.push((format!("port {} path drops", port.name), sum(&port.path_drops)));
        }
        for link in &self.links {
            let name = format!("link {}", link.name);
            all.extend([
                (format!("{name} rx"), link.rx_packets),
                (format!("{name} rx bytes"), link.rx_bytes),
                (format!("{name} tx"), link.tx_packets),
                (format!("{name} tx bytes"), link.tx_bytes),
            ]);
        }
        all.extend(
            self.stats.sids.iter().map(|sid| (format!("sid {} {}", sid.table, sid.prefix), sid.packets)),
        );
        let policies = self.stats.policies.iter();
        all.extend(policies.map(|policy| (format!("policy {}", policy.encap), policy.packets)));
        all.extend(self.labels.iter().map(|label| (format!("label {}", label.label), label.packets)));
        let queue = |queue: &Queue| (format!("queue {} {}", queue.device, queue.handle), queue.packets);
        all.extend(self.queues.iter().map(queue));
        all.extend(
            self.policers.iter().map(|policer| (format!("policer {}", policer.index), policer.packets)),
        );
        all
    }
}

/// Leaves of the objects those that have counted most, and says how many it took away.
pub(super) fn busiest<T>(objects: &mut Vec<T>, packets: impl Fn(&T) -> u64) -> usize {
    let more = objects.len().saturating_sub(MOST);
    if more > 0 {
        // Those that stay keep their order.
        let mut order: Vec<(u64, usize)> =
            objects.iter().enumerate().map(|(at, object)| (packets(object), at)).collect();
        order.sort_unstable_by_key(|(packets, at)| (std::cmp::Reverse(*packets), *at));
        let mut stays = vec![false; objects.len()];
        order.iter().take(MOST).for_each(|(_, at)| stays[*at] = true);
        let mut stays = stays.into_iter();
        objects.retain(|_| stays.next().unwrap_or(false));
    }
    more
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_busiest_stay_in_their_order() {
        let mut few: Vec<u64> = (0..10).collect();
        assert_eq!((busiest(&mut few, |n| *n), few.len()), (0, 10));
        let mut many: Vec<u64> = (0..MOST as u64 + 3).rev().collect();
        assert_eq!(busiest(&mut many, |n| *n), 3);
        assert_eq!(many, (3..MOST as u64 + 3).rev().collect::<Vec<_>>());
    }
}
