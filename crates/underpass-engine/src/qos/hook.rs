//! Filters in the tables, and which of them takes a packet.

use std::collections::HashMap;

use super::classify::{FlowerTable, U32Walked, Walk, hold, walk};
use super::subject::Subject;
use crate::counters::{CounterId, Counters, TcCounterId};
use crate::tables::{
    BasicFilter, Classifier, FilterChain, FilterPriority, Fw, FwFilter, Hook, Outcome, U32Node, U32Table,
};

/// The filters of a place, compiled.
pub(crate) struct StoredHook {
    pub(crate) counter: Option<TcCounterId>,
    chains: Vec<(u32, Vec<StoredPriority>)>,
    tables: Vec<U32Walked>,
    /// Where the first filter takes every packet.
    pub(crate) everything: Option<Everything>,
    /// Whether a filter looks at the priority of packets.
    pub(crate) reads_priority: bool,
    /// Whether a filter looks at the link that packets have come in by.
    pub(crate) reads_input: bool,
}

/// A filter that takes every packet.
pub(crate) struct Everything {
    /// Of this EtherType, or [`crate::tables::ANY_PROTOCOL`].
    pub(crate) protocol: u16,
    pub(crate) outcome: Outcome,
    /// Counters besides that of the outcome, each of which counts every packet.
    pub(crate) counters: Vec<CounterId>,
    /// Whether no filter follows it.
    pub(crate) alone: bool,
}

/// The filters of a priority and protocol.
pub(crate) struct StoredPriority {
    pub(crate) protocol: u16,
    classifier: StoredClassifier,
}

enum StoredClassifier {
    Matchall(Outcome),
    Basic(Vec<BasicFilter>),
    U32(usize),
    Flower(FlowerTable),
    FwClasses(u32),
    FwMarks(u32, HashMap<u32, FwFilter>),
}

/// Where the search in a priority has come to.
#[expect(clippy::large_enum_variant, reason = "nothing is allocated on the path")]
pub(crate) enum Cursor {
    /// The next filter.
    Place(usize),
    Walk(Walk),
}

/// What a filter has in store for a packet.
pub(crate) enum Found<'h> {
    Outcome(&'h Outcome),
    /// The mark is the class.
    Class(u32),
}

impl From<Hook> for StoredHook {
    fn from(hook: Hook) -> Self {
        let (reads_priority, reads_input) = (hook.reads_priority(), hook.reads_input());
        let Hook { counter, chains, u32_tables: tables } = hook;
        let everything =
            chains.iter().find(|chain| chain.index == 0).and_then(|chain| everything(chain, &tables));
        let chain = |FilterChain { index, priorities }| {
            (index, priorities.into_iter().map(StoredPriority::from).collect())
        };
        let tables = tables.into_iter().map(U32Walked::from).collect();
        let chains = chains.into_iter().map(chain).collect();
        Self { counter, chains, tables, everything, reads_priority, reads_input }
    }
}

impl From<FilterPriority> for StoredPriority {
    fn from(FilterPriority { protocol, classifier }: FilterPriority) -> Self {
        let classifier = match classifier {
            Classifier::Matchall(outcome) => StoredClassifier::Matchall(outcome),
            Classifier::Basic(filters) => StoredClassifier::Basic(filters),
            Classifier::U32(table) => StoredClassifier::U32(table),
            Classifier::Flower(filters) => StoredClassifier::Flower(FlowerTable::new(filters)),
            Classifier::Fw(Fw::Classes { qdisc }) => StoredClassifier::FwClasses(qdisc),
            Classifier::Fw(Fw::Marks { mask, filters }) => {
                // The first of a handle.
                let by_handle = filters.into_iter().rev().map(|filter| (filter.handle, filter)).collect();
                StoredClassifier::FwMarks(mask, by_handle)
            }
        };
        Self { protocol, classifier }
    }
}

/// The first filter of a chain, if it takes every packet.
fn everything(chain: &FilterChain, tables: &[U32Table]) -> Option<Everything> {
    let first = chain.priorities.first()?;
    let (outcome, counters, alone) = match &first.classifier {
        Classifier::Matchall(outcome) => (outcome, Vec::new(), true),
        Classifier::Basic(filters) => {
            let filter = filters.first().filter(|filter| filter.ematches.is_empty())?;
            (&filter.outcome, Vec::new(), filters.len() == 1)
        }
        Classifier::U32(table) => {
            let bucket = tables.get(*table)?.buckets.first()?;
            let node = bucket.first().filter(|node| takes_all(node))?;
            let counters = node.mark_counter.iter().chain(&node.key_counters).copied().collect();
            (&node.outcome, counters, bucket.len() == 1)
        }
        _ => return None,
    };
    let alone = alone && chain.priorities.len() == 1;
    Some(Everything { protocol: first.protocol, outcome: outcome.clone(), counters, alone })
}

/// Whether a node of `u32` takes every packet that has a network header of 4 bytes, as `match u32 0 0` does.
fn takes_all(node: &U32Node) -> bool {
    node.terminal
        && node.link.is_none()
        && node.ingress.is_none()
        && node.mark.is_none_or(|(_, mask)| mask == 0)
        && node.keys.iter().all(|key| key.mask == 0 && key.value == 0 && key.offset == 0)
}

impl StoredHook {
    /// The priorities of a chain.
    pub(crate) fn chain(&self, index: u32) -> &[StoredPriority] {
        let chain = self.chains.iter().find(|(number, _)| *number == index);
        chain.map_or(&[], |(_, priorities)| priorities)
    }

    /// The next filter of a priority that takes a packet.
    pub(crate) fn next<'h>(
        &'h self,
        priority: &'h StoredPriority,
        cursor: &mut Option<Cursor>,
        subject: &Subject<'_>,
        counters: &Counters,
        random: u32,
    ) -> Option<Found<'h>> {
        let counted = |outcome: &'h Outcome| {
            if let Some(counter) = outcome.counter {
                counters.add_packet(counter, subject.wire.bytes());
            }
            Some(Found::Outcome(outcome))
        };
        if let StoredClassifier::U32(table) = priority.classifier {
            let Cursor::Walk(at) = cursor.get_or_insert_with(|| Cursor::Walk(Walk::of(table))) else {
                return None;
            };
            return walk(&self.tables, at, subject, counters).map(Found::Outcome);
        }
        let Cursor::Place(place) = cursor.get_or_insert(Cursor::Place(0)) else { return None };
        if let StoredClassifier::Basic(filters) = &priority.classifier {
            while let Some(BasicFilter { ematches, outcome }) = filters.get(*place) {
                *place += 1;
                if hold(ematches, subject, random) {
                    return counted(outcome);
                }
                if let Some(counter) = outcome.counter {
                    counters.add_error(counter);
                }
            }
            return None;
        }
        // Of the others at most one filter takes a packet.
        if std::mem::replace(place, 1) != 0 {
            return None;
        }
        match &priority.classifier {
            StoredClassifier::Matchall(outcome) => counted(outcome),
            StoredClassifier::Flower(table) => table.find(subject).and_then(counted),
            StoredClassifier::FwClasses(qdisc) => {
                let mark = subject.tag().mark;
                let ours = mark != 0 && (mark >> 16 == 0 || mark >> 16 == qdisc >> 16);
                ours.then_some(Found::Class(mark))
            }
            StoredClassifier::FwMarks(mask, filters) => {
                let filter = filters.get(&(subject.tag().mark & mask))?;
                if subject.is_received_by(filter.ingress) { counted(&filter.outcome) } else { None }
            }
            _ => None,
        }
    }
}
