//! `RTM_GETNETCONF` of MPLS: which links take labels. Linux: `mpls_netconf_get_devconf`.

use libc::EINVAL;
use underpass_netlink::{Replies, Reply, RequestError, Type, Validate, policy};

use super::AF_MPLS;
use crate::dump::{Chunk, Dump, More, Outcome};
use crate::events::Cause;
use crate::netconf::{HEADER, HEADER_PADDED, NETCONFA_IFINDEX, RTM_DELNETCONF, RTM_NEWNETCONF};
use crate::{Request, Router};

const NETCONFA_INPUT: u16 = 7;
/// `RTNLGRP_MPLS_NETCONF`.
const GROUP: u32 = 29;
const POLICY: [Type; 9] = policy(&[(NETCONFA_IFINDEX, Type::U32)]);

fn write(reply: &mut Reply<'_>, router: &Router, link: u32) {
    reply.fixed(&[AF_MPLS, 0, 0, 0]);
    reply.u32(NETCONFA_IFINDEX, link);
    reply.u32(NETCONFA_INPUT, u32::from(router.routes.labels.takes(link)));
}

/// Answers a question about one link.
pub(crate) fn get(
    router: &Router,
    request: &Request<'_>,
    replies: &mut Replies,
) -> Result<Outcome, RequestError> {
    let (_, attributes) = request.parse::<HEADER, 9>(&POLICY, request.validate())?;
    let strict = request.validate() == Validate::Strict;
    if strict && attributes.iter().any(|attribute| attribute.kind != NETCONFA_IFINDEX) {
        let message = "mpls_router: Unsupported attribute in netconf get request";
        return Err(RequestError::new(EINVAL, message));
    }
    let index = attributes.get(NETCONFA_IFINDEX).ok_or(RequestError::errno(EINVAL))?.u32();
    router.links.get(index).ok_or(RequestError::errno(EINVAL))?;
    replies.message(RTM_NEWNETCONF, 0, request.reply_to(), |reply| write(reply, router, index))?;
    Ok(Outcome::Done)
}

struct InputDump(u32);

/// Starts a dump of all links.
pub(crate) fn dump(request: &Request<'_>) -> Result<Outcome, RequestError> {
    if request.strict && request.message.body().len() > HEADER_PADDED {
        let message = "mpls_router: Invalid data after header in netconf dump request";
        return Err(RequestError::new(EINVAL, message));
    }
    Ok(Outcome::Dump(Box::new(InputDump(0))))
}

/// Writes what is told of the link after `last`, which it then is.
pub(crate) fn dump_next(router: &Router, last: &mut u32, out: &mut Chunk<'_>) -> Result<More, RequestError> {
    let Some(link) = router.links.after(*last) else { return Ok(More::No) };
    *last = link.index;
    out.message(RTM_NEWNETCONF, |reply| write(reply, router, link.index))?;
    Ok(More::Yes)
}

impl Dump for InputDump {
    fn next(&mut self, router: &Router, out: &mut Chunk<'_>) -> Result<More, RequestError> {
        dump_next(router, &mut self.0, out)
    }

    fn generation(&self, router: &Router) -> u64 {
        router.links.generation
    }
}

/// Notifies listeners that a link takes labels now, or no longer.
pub(super) fn notify_label_input(router: &mut Router, link: u32) {
    notify(router, RTM_NEWNETCONF, link);
}

/// Notifies listeners that there is a link, which may take labels, or is none any more: of these kinds, one after the other. Linux:
/// `mpls_dev_notify`.
pub(crate) fn notify_of_link(router: &mut Router, kinds: &[u16], link: u32) {
    if !router.stands_in(link) {
        kinds.iter().for_each(|kind| notify(router, *kind, link));
    }
}

fn notify(router: &mut Router, kind: u16, link: u32) {
    let mut events = std::mem::take(&mut router.events);
    // Linux tells of these without the request that was the cause.
    events.notify(Cause::default(), GROUP, kind, 0, |reply| match kind {
        RTM_DELNETCONF => {
            reply.fixed(&[AF_MPLS, 0, 0, 0]);
            reply.u32(NETCONFA_IFINDEX, link);
        }
        _ => write(reply, router, link),
    });
    router.events = events;
}
