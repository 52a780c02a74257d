//! What the packet path has counted, for `underpass stats` and metrics.

use underpass_engine::counters::{Count, Direction, MplsCount, Totals};
use underpass_engine::drops::DropReason;
use underpass_netlink::Encap;
use underpass_netlink::tc::{self, Statistics};
use underpass_packet::mpls::IPV6_EXPLICIT_NULL;

use crate::route::encode::route_counts;
use crate::route::lookup::ways_of;
use crate::tc::publish::{count_class, count_qdisc};
use crate::tc::{Kind, Qdisc};
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

/// What a qdisc or a class has counted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QueueCounts {
    /// The interface index of its link.
    pub link: u32,
    /// Its kind; of a class that of its qdisc.
    pub kind: &'static str,
    /// Its handle, or the number of the class, as `tc` writes them.
    pub handle: String,
    /// The class that it is in, or `root` or `ingress`.
    pub parent: String,
    /// Whether it is a class.
    pub class: bool,
    /// Its rate in bytes a second, if it has one.
    pub rate: Option<u64>,
    /// Bytes that have left.
    pub bytes: u64,
    /// Packets that have left.
    pub packets: u64,
    /// Packets that were dropped.
    pub drops: u64,
    /// Times that packets had to wait.
    pub overlimits: u64,
    /// Bytes that wait.
    pub backlog: u64,
    /// Packets that wait.
    pub queued: u64,
}

/// What a policer has counted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PolicerCounts {
    /// Its number.
    pub index: u32,
    /// Its rate in bytes a second, if it has one.
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

fn counts(
    link: u32,
    qdisc: &Qdisc,
    (handle, parent): (u32, u32),
    rate: Option<u64>,
    counted: &Statistics,
) -> QueueCounts {
    QueueCounts {
        link,
        kind: qdisc.kind.name(),
        handle: name_of(handle),
        parent: name_of(parent),
        class: false,
        rate,
        bytes: counted.bytes,
        packets: counted.packets,
        drops: counted.drops.into(),
        overlimits: counted.overlimits.into(),
        backlog: counted.backlog.into(),
        queued: counted.queued.into(),
    }
}

/// A handle, a class or a parent as `tc` writes it.
fn name_of(handle: u32) -> String {
    match (handle, tc::minor(handle)) {
        (tc::ROOT, _) => "root".to_owned(),
        (tc::INGRESS, _) => "ingress".to_owned(),
        (_, 0) => format!("{:x}:", handle >> 16),
        (_, minor) => format!("{:x}:{minor:x}", handle >> 16),
    }
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

    /// Every local SID with what it has counted.
    pub fn sid_counts(&self) -> Vec<SidCount> {
        let mut sids = Vec::new();
        // Few of the routes are SIDs: which are, is found among what routes have in common.
        let locals: std::collections::BTreeSet<_> = self
            .routes
            .infos
            .iter()
            .filter(|(_, info)| {
                ways_of(self, info).iter().any(|hop| matches!(hop.encap(), Some(Encap::Seg6Local(_))))
            })
            .map(|(id, _)| id)
            .collect();
        if locals.is_empty() {
            return sids;
        }
        for ((family, table), routes) in &self.routes.tables {
            for (key, ids) in routes.after(None) {
                for info in
                    ids.iter().filter(|id| locals.contains(id)).filter_map(|id| self.routes.infos.get(*id))
                {
                    let prefix = key.prefix();
                    for hop in ways_of(self, info).iter() {
                        let Some(Encap::Seg6Local(local)) = hop.encap() else {
                            continue;
                        };
                        let counts = route_counts(self, hop);
                        sids.push(SidCount {
                            prefix: format!("{}/{}", family.address(prefix.bits), prefix.len),
                            table: *table,
                            behaviour: local.action.name(),
                            count: underpass_engine::counters::Count {
                                packets: counts.packets,
                                bytes: counts.bytes,
                                errors: counts.errors,
                            },
                        });
                    }
                }
            }
        }
        sids
    }

    /// What every qdisc that a request has made has counted, and every class of an `htb`.
    pub fn queue_counts(&self) -> Vec<QueueCounts> {
        let mut all = Vec::new();
        for (link, control) in &self.tc.links {
            for qdisc in control.qdiscs.values().chain(&control.hook) {
                let rate = match &qdisc.kind {
                    Kind::Tbf { settings, .. } => Some(settings.rate.bytes),
                    _ => None,
                };
                let common = count_qdisc(self, *link, qdisc).common;
                all.push(counts(*link, qdisc, (qdisc.handle, qdisc.parent), rate, &common));
                let Kind::Htb(htb) = &qdisc.kind else { continue };
                for (id, class) in htb.classes() {
                    let Some(counted) = count_class(self, *link, qdisc, id) else { continue };
                    let (rate, parent) = (class.settings.rate.bytes, class.parent.unwrap_or(qdisc.handle));
                    let counted = counts(*link, qdisc, (id, parent), Some(rate), &counted.common);
                    all.push(QueueCounts { class: true, ..counted });
                }
            }
        }
        all
    }

    /// What every policer has counted.
    pub fn policer_counts(&self) -> Vec<PolicerCounts> {
        let policers = self.actions.policers();
        policers
            .map(|(index, rate, filters, counter)| {
                let count = self.engine.tc_count(counter);
                PolicerCounts {
                    index,
                    rate,
                    filters,
                    packets: count.packets,
                    bytes: count.bytes,
                    drops: count.drops,
                    overlimits: count.overlimits,
                }
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for (handle, name) in
            [(tc::ROOT, "root"), (tc::INGRESS, "ingress"), (0x8001_0000, "8001:"), (0x0001_00aa, "1:aa")]
        {
            assert_eq!(name_of(handle), name);
        }
    }
}
