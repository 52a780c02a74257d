//! Filters and chains as messages.

use underpass_netlink::Reply;
use underpass_netlink::tc::{self, Header, TCA_CHAIN, TCA_KIND, TCA_OPTIONS};

use super::common::PriorityName;
use super::flower::change::write_flower;
use super::simple::{write_basic, write_fw, write_matchall};
use super::u32::change::write_u32;
use super::{Chain, Classifier};
use crate::events::Cause;
use crate::tc::action::change::{count_no_hardware, write_exts_stats};
use crate::tc::parent::Block;
use crate::{Request, Router};

/// `RTM_NEWCHAIN`.
pub(crate) const RTM_NEWCHAIN: u16 = 100;

/// `RTM_DELCHAIN`.
pub(crate) const RTM_DELCHAIN: u16 = 101;

/// `RTM_GETCHAIN`.
pub(crate) const RTM_GETCHAIN: u16 = 102;

/// `NLM_F_CREATE | NLM_F_EXCL`.
pub(super) const NEW: u16 = 0x600;

/// `RTNLGRP_TC`.
pub(super) const GROUP: u32 = 4;

pub(super) fn write_chain(router: &Router, reply: &mut Reply<'_>, block: Block, qdisc: u32, chain: &Chain) {
    Header { link: block.link, parent: qdisc, ..Header::default() }.write(reply);
    reply.u32(TCA_CHAIN, chain.index);
    if let Some(template) = &chain.template {
        reply.text(TCA_KIND, "flower");
        template.write(&router.links, reply);
    }
}

/// Notifies of a chain that somebody but actions knows of now, or no more.
pub(super) fn notify_chain(
    router: &mut Router,
    cause: Cause,
    block: Block,
    index: u32,
    kind: u16,
    flags: u16,
) {
    let cause = Cause { to: Default::default(), ..cause };
    if !router.events.heard(cause, GROUP) {
        return;
    }
    let mut events = std::mem::take(&mut router.events);
    let gone = Chain { index, ..Chain::default() };
    let place = router.filters.places.get(&block);
    let qdisc = place.map_or(0, |place| place.qdisc);
    let chain = router.filters.chain(block, index).unwrap_or(&gone);
    events.notify(Cause::default(), GROUP, kind, flags, |reply| {
        write_chain(router, reply, block, qdisc, chain);
    });
    router.events = events;
}

/// Writes a filter, or with no handle its priority.
pub(super) fn write_filter(
    router: &Router,
    reply: &mut Reply<'_>,
    name: PriorityName,
    handle: Option<u32>,
    terse: bool,
) {
    let Some(priority) = router.filters.priority(name) else { return };
    let parent = router.filters.places.get(&name.block).map_or(0, |place| place.parent);
    let info = u32::from(name.number) << 16 | u32::from(priority.protocol.to_be());
    let link = name.block.link;
    Header { family: 0, link, handle: handle.unwrap_or(0), parent, info }.write(reply);
    reply.text(TCA_KIND, priority.classifier.kind());
    reply.u32(TCA_CHAIN, name.chain);
    let Some(handle) = handle else { return };
    let exts = router.filters.exts_of(name, handle);
    if let (Classifier::Matchall(_) | Classifier::Flower(_), Some(common)) =
        (&priority.classifier, router.filters.common_of(name, handle))
        && common.flags & tc::SKIP_HW == 0
    {
        count_no_hardware(router, &common.exts);
    }
    if let (Classifier::Fw(_), Some(common)) = (&priority.classifier, router.filters.common_of(name, handle))
        && common.class == 0
        && common.exts.names().is_empty()
    {
        return;
    }
    let options = reply.nest_unflagged(TCA_OPTIONS);
    match &priority.classifier {
        Classifier::U32(root) => write_u32(router, reply, name, root, handle),
        Classifier::Basic(filters) => {
            if let Some(filter) = filters.get(handle) {
                write_basic(router, reply, filter);
            }
        }
        Classifier::Flower(filters) => {
            if let Some(filter) = filters.get(handle) {
                write_flower(router, reply, filter, terse);
            }
        }
        Classifier::Matchall(filters) => write_matchall(router, reply, filters, terse),
        Classifier::Fw(filters) => {
            if let Some(filter) = filters.get(handle) {
                write_fw(router, reply, filters, filter);
            }
        }
    }
    reply.end(options);
    if let Some(exts) = exts {
        write_exts_stats(router, reply, exts);
    }
}

/// The message about a filter, before it goes.
pub(super) fn filter_message(
    router: &Router,
    request: &Request<'_>,
    name: PriorityName,
    handle: Option<u32>,
    kind: u16,
) -> Option<(u16, Vec<u8>)> {
    if !router.events.heard(request.into(), GROUP) {
        return None;
    }
    let mut bytes = Vec::new();
    let written = underpass_netlink::reply::write_message(&mut bytes, kind, 0, request.reply_to(), |reply| {
        write_filter(router, reply, name, handle, false);
    });
    written.ok()?;
    bytes.drain(..underpass_netlink::message::HEADER);
    Some((kind, bytes))
}

pub(super) fn send_prepared(router: &mut Router, request: &Request<'_>, prepared: Option<(u16, Vec<u8>)>) {
    if let Some((kind, body)) = prepared {
        router.events.notify(request.into(), GROUP, kind, request.message.flags, |reply| {
            reply.fixed(&body);
        });
    }
}

pub(super) fn notify_filter(
    router: &mut Router,
    request: &Request<'_>,
    name: PriorityName,
    handle: Option<u32>,
    kind: u16,
) {
    let prepared = filter_message(router, request, name, handle, kind);
    send_prepared(router, request, prepared);
}
