//! Filters in the tables.

use crate::tables::Hook;

/// The filters of a place, compiled.
pub(crate) struct StoredHook {
    pub(crate) config: Hook,
}

impl From<Hook> for StoredHook {
    fn from(config: Hook) -> Self {
        Self { config }
    }
}
