//! `basic`. Linux: `net/sched/cls_basic.c`.

pub(super) mod save;

use underpass_netlink::tc::basic::Tree;

use super::common::Common;

/// A filter.
#[derive(Debug)]
pub(super) struct Filter {
    pub handle: u32,
    pub tree: Tree,
    pub common: Common,
}

/// The filters, the last that was made first.
#[derive(Debug, Default)]
pub(super) struct Filters(pub Vec<Filter>);

impl Filters {
    pub fn has(&self, handle: u32) -> bool {
        self.get(handle).is_some()
    }

    pub fn get(&self, handle: u32) -> Option<&Filter> {
        self.0.iter().find(|filter| filter.handle == handle)
    }

    pub fn after(&self, last: Option<u32>) -> Option<u32> {
        let from = match last {
            None => 0,
            Some(last) => self.0.iter().position(|filter| filter.handle == last)? + 1,
        };
        self.0.get(from).map(|filter| filter.handle)
    }

    pub fn into_common(self) -> Vec<Common> {
        self.0.into_iter().map(|filter| filter.common).collect()
    }

    pub fn users_of_class(&self, class: u32) -> usize {
        self.0.iter().filter(|filter| filter.common.class == class).count()
    }

    /// Takes a filter out.
    pub fn take(&mut self, handle: u32) -> Option<Common> {
        let at = self.0.iter().position(|filter| filter.handle == handle)?;
        Some(self.0.remove(at).common)
    }

    /// The lowest handle that is free. Linux: `idr_alloc_u32`, up to `INT_MAX`.
    pub fn free(&self) -> Option<u32> {
        let mut used: Vec<_> = self.0.iter().map(|filter| filter.handle).collect();
        used.sort_unstable();
        let free = used.iter().zip(1..).find(|(used, wanted)| *used != wanted);
        let free = free.map_or(used.len() as u32 + 1, |(_, wanted)| wanted);
        (free <= i32::MAX as u32).then_some(free)
    }
}
