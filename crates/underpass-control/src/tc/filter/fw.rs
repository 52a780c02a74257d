//! `fw`. Linux: `net/sched/cls_fw.c`.

use super::common::Common;

/// A filter.
#[derive(Debug)]
pub(super) struct Filter {
    /// The mark.
    pub handle: u32,
    pub input: Option<u32>,
    pub common: Common,
}

/// The filters of all marks.
#[derive(Debug, Default)]
pub(super) struct Filters {
    /// Which bits of the mark count; `None` before the first filter: the mark is the class.
    pub mask: Option<u32>,
    /// In Linux's order: 256 chains of a hash, in each the last that was made first.
    pub filters: Vec<Filter>,
}

pub(super) const fn hash(mut handle: u32) -> u32 {
    handle ^= handle >> 16;
    handle ^= handle >> 8;
    handle % 256
}

impl Filters {
    pub fn has(&self, handle: u32) -> bool {
        self.get(handle).is_some()
    }

    pub fn get(&self, handle: u32) -> Option<&Filter> {
        self.filters.iter().find(|filter| filter.handle == handle)
    }

    pub fn after(&self, last: Option<u32>) -> Option<u32> {
        let from = match last {
            None => 0,
            Some(last) => self.filters.iter().position(|filter| filter.handle == last)? + 1,
        };
        self.filters.get(from).map(|filter| filter.handle)
    }

    pub fn into_common(self) -> Vec<Common> {
        self.filters.into_iter().map(|filter| filter.common).collect()
    }

    pub fn users_of_class(&self, class: u32) -> usize {
        self.filters.iter().filter(|filter| filter.common.class == class).count()
    }

    /// Takes a filter out.
    pub fn take(&mut self, handle: u32) -> Option<Common> {
        let at = self.filters.iter().position(|filter| filter.handle == handle)?;
        Some(self.filters.remove(at).common)
    }
}
