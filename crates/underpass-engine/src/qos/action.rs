//! An action in the tables: what it is configured to do, and the state that workers share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use super::estimator::Estimator;
use super::police::{Policer, SharedBucket};
use crate::limiter::Nanos;
use crate::tables::{Control, TcAction, TcActionKind};

/// An action with its state.
pub(crate) struct StoredAction {
    pub(crate) config: TcAction,
    /// Told apart from what had its id before, for the leases of workers.
    pub(crate) generation: u64,
    pub(crate) policer: Option<Policer>,
    pub(crate) estimator: Option<Arc<Estimator>>,
    /// Packets of `gact random determ`.
    regular: AtomicU32,
}

/// How many actions there have been.
static GENERATION: AtomicU64 = AtomicU64::new(1);

impl StoredAction {
    /// `bucket`: that of programs in the kernel, if they may police too.
    pub(crate) fn new(config: TcAction, workers: usize, bucket: Option<SharedBucket>) -> Self {
        let policer = match &config.kind {
            TcActionKind::Police(police) => Some(Policer::new(police, workers, bucket)),
            _ => None,
        };
        let estimator = config.estimator.map(|estimator| Arc::new(Estimator::new(estimator)));
        let generation = GENERATION.fetch_add(1, Relaxed);
        Self { config, generation, policer, estimator, regular: AtomicU32::new(0) }
    }

    /// What takes its place when it is changed: buckets of bytes are full, those of packets as they were, and an estimator
    /// that stays as it was goes on.
    pub(crate) fn changed(&self, config: TcAction, workers: usize, bucket: Option<SharedBucket>) -> Self {
        let packets = self.policer.as_ref().and_then(Policer::packets);
        let kept = self.estimator.clone().filter(|_| self.config.estimator == config.estimator);
        let new = Self::new(config, workers, bucket);
        let policer = new.policer.map(|policer| policer.follow(packets));
        Self { estimator: kept.or(new.estimator), policer, ..new }
    }

    /// Bytes and packets a second, if it has an estimator.
    pub(crate) fn estimated(&self, now: Nanos) -> Option<(u64, u64)> {
        self.estimator.as_ref().map(|estimator| estimator.read(now))
    }

    /// Whether its estimated rate is below `average`, in bytes a second.
    pub(crate) fn is_below(&self, average: u64, now: Nanos) -> bool {
        self.estimated(now).unwrap_or_default().0 < average
    }

    /// The number of this packet among those that `gact` has seen, from 1 on.
    pub(crate) fn number(&self) -> u32 {
        self.regular.fetch_add(1, Relaxed).wrapping_add(1)
    }

    /// What happens to a packet that the action is done with.
    #[inline(always)]
    pub(crate) fn control(&self) -> Control {
        self.config.control
    }
}
