//! What qdiscs, their classes and policers have counted, for those who watch: `tc -s` without netlink.

use underpass_netlink::tc::{self, Statistics};

use super::{Kind, Qdisc};
use crate::Router;

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

impl Router {
    /// What every qdisc that a request has made has counted, and every class of an `htb`.
    pub fn queue_counts(&self) -> Vec<QueueCounts> {
        let mut all = Vec::new();
        for (link, control) in &self.tc.links {
            for qdisc in control.qdiscs.values().chain(&control.hook) {
                let rate = match &qdisc.kind {
                    Kind::Tbf { settings, .. } => Some(settings.rate.bytes),
                    _ => None,
                };
                let common = self.count_qdisc(*link, qdisc).common;
                all.push(counts(*link, qdisc, (qdisc.handle, qdisc.parent), rate, &common));
                let Kind::Htb(htb) = &qdisc.kind else { continue };
                for (id, class) in htb.classes() {
                    let Some(counted) = self.count_class(*link, qdisc, id) else { continue };
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
