//! Who looks at the link that packets have come in by: where nobody does, tunnels leave it as it is.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::{Classifier, Ematch, EmatchTest, Fw, Hook, MetaTerm, MetaValue};

/// How many filters' places look at the link that packets have come in by.
#[derive(Debug, Default)]
pub(super) struct InputReaders(AtomicU32);

impl InputReaders {
    /// Takes note that a hook has taken the place of another. There is one thread that writes.
    pub(super) fn replace(&self, old: bool, new: bool) {
        self.0.store(self.0.load(Relaxed) + u32::from(new) - u32::from(old), Relaxed);
    }
}

impl super::Tables {
    /// Whether a filter looks at the link that packets have come in by.
    #[inline(always)]
    pub(crate) fn reads_input(&self) -> bool {
        self.input_readers.0.load(Relaxed) != 0
    }
}

impl Hook {
    /// Whether one of its filters looks at the link that packets have come in by.
    pub(crate) fn reads_input(&self) -> bool {
        let priorities = self.chains.iter().flat_map(|chain| &chain.priorities);
        priorities.map(|priority| &priority.classifier).any(|classifier| match classifier {
            Classifier::Basic(filters) => filters.iter().any(|filter| any_reads(&filter.ematches)),
            Classifier::Flower(filters) => filters.iter().any(|filter| filter.mask.ingress != 0),
            Classifier::Fw(Fw::Marks { filters, .. }) => {
                filters.iter().any(|filter| filter.ingress.is_some())
            }
            Classifier::Fw(Fw::Classes { .. }) | Classifier::Matchall(_) | Classifier::U32(_) => false,
        }) || self
            .u32_tables
            .iter()
            .flat_map(|table| &table.buckets)
            .flatten()
            .any(|node| node.ingress.is_some())
    }
}

fn any_reads(ematches: &[Ematch]) -> bool {
    let reads = |term: &MetaTerm| matches!(term, MetaTerm::Of { value: MetaValue::IngressDevice, .. });
    ematches.iter().any(|ematch| match &ematch.test {
        EmatchTest::Group(inside) => any_reads(inside),
        EmatchTest::Meta { left, right, .. } => reads(left) || reads(right),
        EmatchTest::Cmp(_) | EmatchTest::U32 { .. } | EmatchTest::Nbyte { .. } => false,
    })
}
