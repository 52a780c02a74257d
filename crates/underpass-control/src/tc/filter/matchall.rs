//! `matchall`. Linux: `net/sched/cls_matchall.c`.

use libc::{EEXIST, EINVAL};
use underpass_netlink::tc::{NOT_IN_HW, matchall};
use underpass_netlink::{Reply, RequestError};

use super::{Change, Classifier, Common, refuse_skip_sw};
use crate::Router;

/// One filter at most.
#[derive(Debug, Default)]
pub(super) struct Filters {
    filter: Option<(u32, Common)>,
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

impl Router {
    pub(super) fn change_matchall(&mut self, change: &Change<'_>) -> Result<u32, RequestError> {
        let options = change.options.ok_or(RequestError::errno(EINVAL))?;
        let taken = |filters: &Self| {
            matches!(
                filters.filters.priority(change.place).map(|priority| &priority.classifier),
                Some(Classifier::Matchall(Filters { filter: Some(_) }))
            )
        };
        if taken(self) {
            return Err(RequestError::errno(EEXIST));
        }
        let request = matchall::Request::parse(&options)?;
        let handle = if change.handle == 0 { 1 } else { change.handle };
        let context = super::Context { flags: request.flags, ..change.context };
        let exts = self.init_exts(request.actions, None, &context)?;
        if let Err(refusal) = refuse_skip_sw(request.flags) {
            self.release_exts(&exts);
            return Err(refusal);
        }
        let common = Common {
            class: request.class.unwrap_or(0),
            flags: request.flags | NOT_IN_HW,
            exts,
            counter: Some(self.engine.add_counter()),
        };
        if let Some(Classifier::Matchall(filters)) = self.classifier_mut(change.place) {
            filters.filter = Some((handle, common));
        }
        Ok(handle)
    }

    /// The filter of a handle is deleted: with it goes the priority.
    pub(super) fn write_matchall(&self, reply: &mut Reply<'_>, filters: &Filters, terse: bool) {
        let Some((_, common)) = &filters.filter else { return };
        if terse {
            return;
        }
        let hits = common.counter.map_or(0, |counter| self.engine.count(counter).packets);
        matchall::write(reply, common.class, common.flags, hits, |reply| {
            self.write_exts(reply, &common.exts, matchall::ACT, 0);
        });
    }
}
