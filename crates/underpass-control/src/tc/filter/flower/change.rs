//! Requests for filters of `flower`.

use libc::{EEXIST, EINVAL, ENOSPC};
use underpass_netlink::tc::NOT_IN_HW;
use underpass_netlink::tc::flower::{self, Keys};
use underpass_netlink::{Reply, RequestError};

use super::{Filter, Masked, compile};
use crate::Router;
use crate::tc::action::Context;
use crate::tc::filter::common::Common;
use crate::tc::filter::{Change, Classifier, refuse_skip_sw};

impl Router {
    pub(in crate::tc::filter) fn change_flower(&mut self, change: &Change<'_>) -> Result<u32, RequestError> {
        let options = change.options.ok_or(RequestError::errno(EINVAL))?;
        let request = flower::Request::parse(&options)?;
        let handle = match (change.handle, self.filters.classifier(change.place)) {
            (0, Some(Classifier::Flower(filters))) => filters.free().ok_or(RequestError::errno(ENOSPC))?,
            (handle, _) => handle,
        };
        let context = Context { flags: request.flags, ..change.context };
        let exts = self.init_exts(request.actions, None, &context)?;
        let checked = self.check_flower(change, &request, handle);
        let (keys, input, masked) = match checked {
            Ok(checked) => checked,
            Err(refusal) => {
                self.release_exts(&exts);
                return Err(refusal);
            }
        };
        let common = Common {
            class: request.class.unwrap_or(0),
            flags: request.flags | NOT_IN_HW,
            exts,
            counter: Some(self.engine.add_counter()),
        };
        let mut old = None;
        if let Some(Classifier::Flower(filters)) = self.filters.classifier_mut(change.place) {
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
            self.drop_common(old);
        }
        Ok(handle)
    }

    fn check_flower(
        &self,
        change: &Change<'_>,
        request: &flower::Request<'_>,
        handle: u32,
    ) -> Result<(Keys, Option<u32>, Masked), RequestError> {
        let input = self.links.input_link(request.indev.as_deref())?;
        let keys = request.keys()?;
        let masked = compile(&keys, input);
        let chain = self.filters.chain(change.place.block, change.place.chain);
        if let Some(template) = chain.and_then(|chain| chain.template.as_ref())
            && !masked.mask.fits(&template.mask)
        {
            return Err(RequestError::new(EINVAL, "cls_flower: Mask does not fit the template"));
        }
        if let Some(Classifier::Flower(filters)) = self.filters.classifier(change.place) {
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

    pub(in crate::tc::filter) fn write_flower(&self, reply: &mut Reply<'_>, filter: &Filter, terse: bool) {
        let Filter { keys, input, common, .. } = filter;
        if terse {
            flower::write(reply, 0, &Keys::default(), None, common.flags, |reply| {
                self.write_terse_exts(reply, &common.exts, flower::ACT);
            });
            return;
        }
        flower::write(reply, common.class, keys, self.links.input_name(*input), common.flags, |reply| {
            self.write_exts(reply, &common.exts, flower::ACT, 0);
        });
    }
}
