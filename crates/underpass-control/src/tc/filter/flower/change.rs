//! Requests for filters of `flower`.

use libc::{EEXIST, EINVAL, ENOSPC};
use underpass_netlink::tc::NOT_IN_HW;
use underpass_netlink::tc::flower::{self, Keys};
use underpass_netlink::{Reply, RequestError};

use super::{Filter, Masked, compile};
use crate::Router;
use crate::tc::action::Context;
use crate::tc::action::change::{init_exts, release_exts, write_exts, write_terse_exts};
use crate::tc::filter::common::Common;
use crate::tc::filter::hook::drop_common;
use crate::tc::filter::{Change, Classifier, refuse_skip_sw};

pub(in crate::tc::filter) fn change_flower(
    router: &mut Router,
    change: &Change<'_>,
) -> Result<u32, RequestError> {
    let options = change.options.ok_or(RequestError::errno(EINVAL))?;
    let request = flower::Request::parse(&options)?;
    let handle = match (change.handle, router.filters.classifier(change.place)) {
        (0, Some(Classifier::Flower(filters))) => filters.free().ok_or(RequestError::errno(ENOSPC))?,
        (handle, _) => handle,
    };
    let context = Context { flags: request.flags, ..change.context };
    let exts = init_exts(router, request.actions, None, &context)?;
    let checked = check_flower(router, change, &request, handle);
    let (keys, input, masked) = match checked {
        Ok(checked) => checked,
        Err(error) => {
            release_exts(router, &exts);
            return Err(error);
        }
    };
    let common = Common {
        class: request.class.unwrap_or(0),
        flags: request.flags | NOT_IN_HW,
        exts,
        counter: Some(router.engine.add_counter()),
    };
    let mut old = None;
    if let Some(Classifier::Flower(filters)) = router.filters.classifier_mut(change.place) {
        // The mask is the same: its place in the order is kept.
        let place = filters.masks.iter().position(|(mask, _)| *mask == masked.mask);
        old = filters.take(handle);
        filters.put(handle, Filter { keys, input, masked, common });
        if let (Some(_), Some(place)) = (&old, place)
            && let Some(now) = filters.masks.iter().position(|(mask, _)| *mask == masked.mask)
            && now != place
        {
            let mask = filters.masks.remove(now);
            filters.masks.insert(place, mask);
        }
    }
    if let Some(old) = old {
        drop_common(router, old);
    }
    Ok(handle)
}

fn check_flower(
    router: &Router,
    change: &Change<'_>,
    request: &flower::Request<'_>,
    handle: u32,
) -> Result<(Keys, Option<u32>, Masked), RequestError> {
    let input = router.links.input_link(request.indev.as_deref())?;
    let keys = request.keys()?;
    let masked = compile(&keys, input);
    let chain = router.filters.chain(change.place.block, change.place.chain);
    if let Some(template) = chain.and_then(|chain| chain.template.as_ref())
        && !masked.mask.fits(&template.mask)
    {
        return Err(RequestError::new(EINVAL, "cls_flower: Mask does not fit the template"));
    }
    if let Some(Classifier::Flower(filters)) = router.filters.classifier(change.place) {
        if filters.get(handle).is_some_and(|old| old.masked.mask != masked.mask) {
            return Err(RequestError::errno(EINVAL));
        }
        if filters.by_key.get(&masked).is_some_and(|other| *other != handle) {
            return Err(RequestError::errno(EEXIST));
        }
    }
    refuse_skip_sw(request.flags)?;
    Ok((keys, input, masked))
}

pub(in crate::tc::filter) fn write_flower(
    router: &Router,
    reply: &mut Reply<'_>,
    filter: &Filter,
    terse: bool,
) {
    let Filter { keys, input, common, .. } = filter;
    if terse {
        flower::write(reply, 0, &Keys::default(), None, common.flags, |reply| {
            write_terse_exts(router, reply, &common.exts, flower::ACT);
        });
        return;
    }
    flower::write(reply, common.class, keys, router.links.input_name(*input), common.flags, |reply| {
        write_exts(router, reply, &common.exts, flower::ACT, 0);
    });
}
