//! `fw`. Linux: `net/sched/cls_fw.c`.

use libc::EINVAL;
use underpass_netlink::tc::fw;
use underpass_netlink::{Reply, RequestError};

use super::{Change, Classifier, Common};
use crate::Router;

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

const fn hash(mut handle: u32) -> u32 {
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

impl Router {
    pub(super) fn change_fw(&mut self, change: &Change<'_>) -> Result<u32, RequestError> {
        let Some(options) = change.options else {
            // The mark is the class.
            return if change.handle == 0 { Ok(0) } else { Err(RequestError::errno(EINVAL)) };
        };
        let request = fw::Request::parse(&options)?;
        if change.handle == 0 {
            return Err(RequestError::errno(EINVAL));
        }
        let mask = request.mask.unwrap_or(u32::MAX);
        let own = match self.classifier_mut(change.place) {
            // Linux keeps the mask of the first request, even if it fails.
            Some(Classifier::Fw(filters)) => *filters.mask.get_or_insert(mask),
            _ => return Err(RequestError::errno(EINVAL)),
        };
        let exts = self.init_exts(request.actions, request.police, &change.context)?;
        let input = self.input_link(request.indev.as_deref());
        let input = match input {
            Ok(input) if own == mask => input,
            refused => {
                self.release_exts(&exts);
                return Err(refused.err().unwrap_or(RequestError::errno(EINVAL)));
            }
        };
        let common = Common {
            class: request.class.unwrap_or(0),
            flags: 0,
            exts,
            counter: Some(self.engine.add_counter()),
        };
        let mut filter = Filter { handle: change.handle, input, common };
        let old = match self.classifier_mut(change.place) {
            Some(Classifier::Fw(Filters { filters, .. })) => {
                match filters.iter_mut().find(|old| old.handle == filter.handle) {
                    Some(old) => {
                        filter.input = filter.input.or(old.input);
                        Some(std::mem::replace(old, filter))
                    }
                    None => {
                        let bucket = hash(filter.handle);
                        let at = filters.partition_point(|other| hash(other.handle) < bucket);
                        filters.insert(at, filter);
                        None
                    }
                }
            }
            _ => None,
        };
        if let Some(old) = old {
            self.drop_common(old.common);
        }
        Ok(change.handle)
    }

    pub(super) fn write_fw(&self, reply: &mut Reply<'_>, filters: &Filters, filter: &Filter) {
        let mask = filters.mask.unwrap_or(u32::MAX);
        fw::write(reply, filter.common.class, self.input_name(filter.input), mask, |reply| {
            self.write_exts(reply, &filter.common.exts, fw::ACT, fw::POLICE);
        });
    }
}
