//! What filters of all kinds have.

use underpass_engine::counters::CounterId;

use crate::tc::action::Exts;
use crate::tc::parent::Block;

/// What filters of all kinds have.
#[derive(Debug, Default)]
pub(super) struct Common {
    /// `classid` or `flowid`; 0 for none.
    pub class: u32,
    /// `TCA_CLS_FLAGS_*`.
    pub flags: u32,
    pub exts: Exts,
    pub counter: Option<CounterId>,
}

/// Names a priority.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct PriorityName {
    pub block: Block,
    pub chain: u32,
    pub number: u16,
}
