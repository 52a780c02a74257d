//! `basic`. Linux: `net/sched/cls_basic.c`.

use libc::{EINVAL, ENOSPC};
use underpass_netlink::tc::basic::{self, Tree};
use underpass_netlink::{Reply, RequestError};

use super::{Change, Classifier, Common};
use crate::Router;

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
    fn free(&self) -> Option<u32> {
        let mut used: Vec<_> = self.0.iter().map(|filter| filter.handle).collect();
        used.sort_unstable();
        let free = used.iter().zip(1..).find(|(used, wanted)| *used != wanted);
        let free = free.map_or(used.len() as u32 + 1, |(_, wanted)| wanted);
        (free <= i32::MAX as u32).then_some(free)
    }
}

impl Router {
    pub(super) fn change_basic(&mut self, change: &Change<'_>) -> Result<u32, RequestError> {
        let options = change.options.ok_or(RequestError::errno(EINVAL))?;
        let request = basic::Request::parse(&options)?;
        let handle = match (change.handle, self.classifier(change.place)) {
            (0, Some(Classifier::Basic(filters))) => filters.free().ok_or(RequestError::errno(ENOSPC))?,
            (handle, _) => handle,
        };
        let exts = self.init_exts(request.actions, request.police, &change.context)?;
        let tree = match request.tree() {
            Ok(tree) => tree,
            Err(refusal) => {
                self.release_exts(&exts);
                return Err(refusal);
            }
        };
        let counter = Some(self.engine.add_counter());
        let common = Common { class: request.class.unwrap_or(0), flags: 0, exts, counter };
        let filter = Filter { handle, tree, common };
        let old = match self.classifier_mut(change.place) {
            Some(Classifier::Basic(filters)) => match filters.0.iter_mut().find(|old| old.handle == handle) {
                Some(old) => Some(std::mem::replace(old, filter)),
                None => {
                    filters.0.insert(0, filter);
                    None
                }
            },
            _ => None,
        };
        if let Some(old) = old {
            self.drop_common(old.common);
        }
        Ok(handle)
    }

    pub(super) fn write_basic(&self, reply: &mut Reply<'_>, filter: &Filter) {
        let count = filter.common.counter.map(|counter| self.engine.count(counter)).unwrap_or_default();
        let hits = (count.packets + count.errors, count.packets);
        basic::write(reply, filter.common.class, hits, &filter.tree, |reply| {
            self.write_exts(reply, &filter.common.exts, basic::ACT, basic::POLICE);
        });
    }
}
