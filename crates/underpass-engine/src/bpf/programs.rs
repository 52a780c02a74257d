//! What a worker runs programs with.

use crate::bpf::{Machine, Printed};
use crate::limiter::Nanos;

/// What a worker runs programs with.
pub(crate) struct Programs {
    pub(crate) machine: Machine,
    pub(crate) random: u64,
    pub(crate) printed: Printed,
    pub(crate) processor: u32,
    pub(crate) clock: Nanos,
}

impl Programs {
    /// For the worker of this number.
    pub(crate) fn new(worker: usize) -> Self {
        Self {
            machine: Machine::new(),
            // Any numbers that differ.
            random: 0x9e37_79b9_7f4a_7c15u64.wrapping_mul(worker as u64 + 1) | 1,
            printed: Printed::new(),
            processor: worker as u32,
            clock: 0,
        }
    }
}
