//! Requests for filters of the kinds without tables: `basic`, `fw`, `matchall`.

use libc::{EEXIST, EINVAL, ENOSPC};
use underpass_netlink::tc::{self, NOT_IN_HW};
use underpass_netlink::{Reply, RequestError};

use super::common::Common;
use super::fw::{self, hash};
use super::hook::drop_common;
use super::{Change, Classifier, basic, matchall, refuse_skip_sw};
use crate::Router;
use crate::tc::action::Context;
use crate::tc::action::change::{init_exts, release_exts, write_exts};

pub(super) fn change_basic(router: &mut Router, change: &Change<'_>) -> Result<u32, RequestError> {
    let options = change.options.ok_or(RequestError::errno(EINVAL))?;
    let request = tc::basic::Request::parse(&options)?;
    let handle = match (change.handle, router.filters.classifier(change.place)) {
        (0, Some(Classifier::Basic(filters))) => filters.free().ok_or(RequestError::errno(ENOSPC))?,
        (handle, _) => handle,
    };
    let exts = init_exts(router, request.actions, request.police, &change.context)?;
    let tree = match request.tree() {
        Ok(tree) => tree,
        Err(error) => {
            release_exts(router, &exts);
            return Err(error);
        }
    };
    let counter = Some(router.engine.add_counter());
    let common = Common { class: request.class.unwrap_or(0), flags: 0, exts, counter };
    let filter = basic::Filter { handle, tree, common };
    let old = match router.filters.classifier_mut(change.place) {
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
        drop_common(router, old.common);
    }
    Ok(handle)
}

pub(super) fn write_basic(router: &Router, reply: &mut Reply<'_>, filter: &basic::Filter) {
    let count = filter.common.counter.map(|counter| router.engine.count(counter)).unwrap_or_default();
    let hits = (count.packets + count.errors, count.packets);
    tc::basic::write(reply, filter.common.class, hits, &filter.tree, |reply| {
        write_exts(router, reply, &filter.common.exts, tc::basic::ACT, tc::basic::POLICE);
    });
}

pub(super) fn change_fw(router: &mut Router, change: &Change<'_>) -> Result<u32, RequestError> {
    let Some(options) = change.options else {
        // The mark is the class.
        return if change.handle == 0 { Ok(0) } else { Err(RequestError::errno(EINVAL)) };
    };
    let request = tc::fw::Request::parse(&options)?;
    if change.handle == 0 {
        return Err(RequestError::errno(EINVAL));
    }
    let mask = request.mask.unwrap_or(u32::MAX);
    let own = match router.filters.classifier_mut(change.place) {
        // Linux keeps the mask of the first request, even if it fails.
        Some(Classifier::Fw(filters)) => *filters.mask.get_or_insert(mask),
        _ => return Err(RequestError::errno(EINVAL)),
    };
    let exts = init_exts(router, request.actions, request.police, &change.context)?;
    let input = router.links.input_link(request.indev.as_deref());
    let input = match input {
        Ok(input) if own == mask => input,
        refused => {
            release_exts(router, &exts);
            return Err(refused.err().unwrap_or(RequestError::errno(EINVAL)));
        }
    };
    let common = Common {
        class: request.class.unwrap_or(0),
        flags: 0,
        exts,
        counter: Some(router.engine.add_counter()),
    };
    let mut filter = fw::Filter { handle: change.handle, input, common };
    let old = match router.filters.classifier_mut(change.place) {
        Some(Classifier::Fw(fw::Filters { filters, .. })) => {
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
        drop_common(router, old.common);
    }
    Ok(change.handle)
}

pub(super) fn write_fw(router: &Router, reply: &mut Reply<'_>, filters: &fw::Filters, filter: &fw::Filter) {
    let mask = filters.mask.unwrap_or(u32::MAX);
    tc::fw::write(reply, filter.common.class, router.links.input_name(filter.input), mask, |reply| {
        write_exts(router, reply, &filter.common.exts, tc::fw::ACT, tc::fw::POLICE);
    });
}

pub(super) fn change_matchall(router: &mut Router, change: &Change<'_>) -> Result<u32, RequestError> {
    let options = change.options.ok_or(RequestError::errno(EINVAL))?;
    let taken = |filters: &Router| {
        matches!(
            filters.filters.priority(change.place).map(|priority| &priority.classifier),
            Some(Classifier::Matchall(matchall::Filters { filter: Some(_) }))
        )
    };
    if taken(router) {
        return Err(RequestError::errno(EEXIST));
    }
    let request = tc::matchall::Request::parse(&options)?;
    let handle = if change.handle == 0 { 1 } else { change.handle };
    let context = Context { flags: request.flags, ..change.context };
    let exts = init_exts(router, request.actions, None, &context)?;
    if let Err(error) = refuse_skip_sw(request.flags) {
        release_exts(router, &exts);
        return Err(error);
    }
    let common = Common {
        class: request.class.unwrap_or(0),
        flags: request.flags | NOT_IN_HW,
        exts,
        counter: Some(router.engine.add_counter()),
    };
    if let Some(Classifier::Matchall(filters)) = router.filters.classifier_mut(change.place) {
        filters.filter = Some((handle, common));
    }
    Ok(handle)
}

/// Writes the filter of a priority, which has one alone.
pub(super) fn write_matchall(
    router: &Router,
    reply: &mut Reply<'_>,
    filters: &matchall::Filters,
    terse: bool,
) {
    let Some((_, common)) = &filters.filter else { return };
    if terse {
        return;
    }
    let hits = common.counter.map_or(0, |counter| router.engine.count(counter).packets);
    tc::matchall::write(reply, common.class, common.flags, hits, |reply| {
        write_exts(router, reply, &common.exts, tc::matchall::ACT, 0);
    });
}
