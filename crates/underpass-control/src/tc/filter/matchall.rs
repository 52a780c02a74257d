//! `matchall`. Linux: `net/sched/cls_matchall.c`.

use super::common::Common;

/// One filter at most.
#[derive(Debug, Default)]
pub(super) struct Filters {
    pub filter: Option<(u32, Common)>,
}

impl Filters {
    pub fn has(&self, handle: u32) -> bool {
        self.filter.as_ref().is_some_and(|(own, _)| *own == handle)
    }

    pub fn after(&self, last: Option<u32>) -> Option<u32> {
        self.filter.as_ref().filter(|_| last.is_none()).map(|(handle, _)| *handle)
    }

    pub fn into_common(self) -> Vec<Common> {
        self.filter.into_iter().map(|(_, common)| common).collect()
    }

    pub fn users_of_class(&self, class: u32) -> usize {
        usize::from(self.filter.as_ref().is_some_and(|(_, common)| common.class == class))
    }

    pub fn filter(&self) -> Option<&Common> {
        self.filter.as_ref().map(|(_, common)| common)
    }
}
