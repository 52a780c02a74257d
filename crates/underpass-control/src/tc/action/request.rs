//! `tc actions`: Linux's `tc_ctl_action`, `tc_dump_action`.

use std::ops::Bound;
use std::sync::atomic::Ordering::Relaxed;

use libc::{EINVAL, ENOENT, EPERM};
use netlink_packet_core::NLM_F_REPLACE;
use underpass_netlink::tc;
use underpass_netlink::tc::action::{
    self, Entry, HEADER, LARGE_DUMP, MAX_ACTIONS, ROOT_POLICY, TCA_ACT_TAB, TCA_ROOT_COUNT, TCA_ROOT_FLAGS,
    TCA_ROOT_TIME_DELTA, TERSE_DUMP,
};
use underpass_netlink::{Attribute, Attributes, Replies, Reply, RequestError, Type, Validate};

use super::change::{init_actions, release_action, shown_action, small_burst};
use super::{Context, Made, Name, known, small};
use crate::dump::{Chunk, Dump, Empty, More, Outcome};
use crate::events::Cause;
use crate::{Request, Router};

/// `RTM_NEWACTION`.
pub(crate) const RTM_NEWACTION: u16 = 48;
/// `RTM_DELACTION`.
pub(crate) const RTM_DELACTION: u16 = 49;
/// `RTM_GETACTION`.
pub(crate) const RTM_GETACTION: u16 = 50;
/// `RTNLGRP_TC`.
const GROUP: u32 = 4;
/// `NLM_F_ROOT`: delete all of a kind.
const ROOT: u16 = 0x100;
const MAX: usize = 6;

fn list<'a>(request: &Request<'a>) -> Result<Attribute<'a>, RequestError> {
    const ANY: [Type; MAX] = [Type::Any; MAX];
    let (_, attributes) = request.parse::<HEADER, MAX>(&ANY, Validate::Liberal)?;
    attributes.get(TCA_ACT_TAB).ok_or(RequestError::new(EINVAL, "Netlink action attributes missing"))
}

/// `RTM_NEWACTION`: makes actions, or changes them.
pub(crate) fn change(router: &mut Router, request: &Request<'_>) -> Result<Outcome, RequestError> {
    let list = list(request)?;
    let context = Context { replace: request.message.flags & NLM_F_REPLACE != 0, ..Context::default() };
    let made = init_actions(router, &list, &context)?;
    let names: Vec<_> = made.iter().map(|(name, _)| *name).collect();
    // One that is changed is told of while the request holds it.
    let held: Vec<_> = made.iter().map(|(name, made)| (*name, i32::from(*made == Made::Changed))).collect();
    notify_actions(router, request, &held);
    let action = |name: &Name| router.actions.by_name.get(name);
    let warns =
        |action: &super::Action| action.config.warning().filter(|_| action.flags & action::SKIP_HW == 0);
    // A later one takes the place of an earlier one.
    if let Some(text) = names.iter().filter_map(action).filter_map(warns).next_back() {
        return Ok(Outcome::Warning(text.into()));
    }
    Ok(names.iter().find_map(|name| small_burst(router, *name)).map_or(Outcome::Done, warning))
}

/// Warns of a policer whose bucket never holds what a packet needs.
pub(crate) fn warning(small_burst: (u64, u32)) -> Outcome {
    Outcome::Warning(format!("The burst of the policer is {}", small(small_burst)).into())
}

/// The action that an element of a question names.
fn named(router: &Router, element: &Attribute<'_>) -> Result<Name, RequestError> {
    let entry = Entry::parse(element)?;
    let index = entry.index.ok_or(RequestError::new(EINVAL, "Invalid TC action index value"))?;
    let kind = entry.kind.and_then(|kind| known(&kind.text()));
    let kind = kind.ok_or(RequestError::new(EINVAL, "Specified TC action kind not found"))?;
    let name = Name { kind, index };
    if router.actions.by_name.contains_key(&name) {
        return Ok(name);
    }
    Err(RequestError::new(ENOENT, "TC action with specified index not found"))
}

/// `RTM_GETACTION`.
pub(crate) fn get(
    router: &Router,
    request: &Request<'_>,
    replies: &mut Replies,
) -> Result<Outcome, RequestError> {
    let list = Entry::list(&list(request)?)?;
    let names = list.iter().map(|element| named(router, element)).collect::<Result<Vec<_>, _>>()?;
    let names: Vec<_> = names.into_iter().map(|name| (name, 0)).collect();
    replies.message(RTM_GETACTION, 0, request.reply_to(), |reply| write_actions(router, reply, &names))?;
    Ok(Outcome::Done)
}

/// `RTM_DELACTION`: those named, or with `NLM_F_ROOT` all of a kind that no filter has.
pub(crate) fn delete(router: &mut Router, request: &Request<'_>) -> Result<Outcome, RequestError> {
    let list = Entry::list(&list(request)?)?;
    if request.message.flags & ROOT != 0 {
        let missing = RequestError::new(EINVAL, "Invalid netlink attributes while flushing TC action");
        return flush(router, request, list.first().ok_or(missing)?);
    }
    let names = list.iter().map(|element| named(router, element)).collect::<Result<Vec<_>, _>>()?;
    if router.events.heard(request.into(), GROUP) {
        let mut events = std::mem::take(&mut router.events);
        let gone: Vec<_> = names.iter().map(|name| (*name, -1)).collect();
        events.notify(request.into(), GROUP, RTM_DELACTION, 0, |reply| {
            write_actions(router, reply, &gone);
        });
        router.events = events;
    }
    for name in names {
        // Those before stay deleted, as in Linux.
        if router.actions.by_name.get(&name).is_some_and(|action| action.binds > 0) {
            return Err(RequestError::new(EPERM, "Failed to delete TC action"));
        }
        release_action(router, name, false);
    }
    Ok(Outcome::Done)
}

fn flush(
    router: &mut Router,
    request: &Request<'_>,
    element: &Attribute<'_>,
) -> Result<Outcome, RequestError> {
    let kind = Entry::parse(element)?.kind.and_then(|kind| known(&kind.text()));
    let kind = kind.ok_or(RequestError::new(EINVAL, "Cannot flush unknown TC action"))?;
    let names: Vec<_> = router.actions.of_kind(kind).map(|(name, _)| name).collect();
    let (mut flushed, mut stopped) = (0, false);
    for name in names {
        if router.actions.by_name.get(&name).is_some_and(|action| action.binds > 0) {
            stopped = true;
            break;
        }
        release_action(router, name, false);
        flushed += 1;
    }
    if flushed == 0 {
        return if stopped { Err(RequestError::errno(EPERM)) } else { Ok(Outcome::Done) };
    }
    router.events.notify(request.into(), GROUP, RTM_DELACTION, ROOT, |reply| {
        reply.fixed(&[0; HEADER]);
        action::write_flushed(reply, kind, flushed);
    });
    if stopped {
        return Ok(Outcome::Warning("Unable to flush all TC actions".into()));
    }
    Ok(Outcome::Done)
}

/// Writes actions as an answer has them, each with references more or less than it has.
fn write_actions(router: &Router, reply: &mut Reply<'_>, names: &[(Name, i32)]) {
    reply.fixed(&[0; HEADER]);
    let table = reply.nest_unflagged(TCA_ACT_TAB);
    for ((name, refs), number) in names.iter().zip(1..) {
        let Some(action) = router.actions.by_name.get(name) else { continue };
        let element = reply.nest_unflagged(number);
        let mut shown = shown_action(router, *name, action);
        shown.refs += refs;
        shown.write(reply);
        reply.end(element);
    }
    reply.end(table);
}

fn notify_actions(router: &mut Router, request: &Request<'_>, names: &[(Name, i32)]) {
    let cause = Cause::from(request);
    if !router.events.heard(cause, GROUP) {
        return;
    }
    let mut events = std::mem::take(&mut router.events);
    events.notify(cause, GROUP, RTM_NEWACTION, request.message.flags, |reply| {
        write_actions(router, reply, names);
    });
    router.events = events;
}

struct ActionDump {
    kind: &'static str,
    /// The number of the last that was written.
    last: u32,
    large: bool,
    terse: bool,
    /// Only those used in so many milliseconds; 0: all.
    since: u32,
}

/// `RTM_GETACTION` for all of a kind.
pub(crate) fn dump(request: &Request<'_>) -> Result<Outcome, RequestError> {
    let body = request.message.bytes.get(tc_base()..).unwrap_or_default();
    request.fixed::<HEADER>()?;
    #[expect(
        clippy::indexing_slicing,
        reason = "a constant: an index beyond the end is an error of the compiler"
    )]
    const POLICY: [Type; MAX] = {
        let mut policy = ROOT_POLICY;
        policy[TCA_ACT_TAB as usize] = Type::Any;
        policy
    };
    let attributes = Attributes::parse(&POLICY, body, tc_base(), Validate::Liberal)?;
    let first = attributes.get(TCA_ACT_TAB).and_then(|list| Entry::list(&list).ok()?.first().copied());
    let kind = first.and_then(|element| Entry::parse(&element).ok()?.kind);
    let Some(kind) = kind.and_then(|kind| known(&kind.text())) else {
        return Ok(Outcome::Dump(Box::new(Empty)));
    };
    let flags = attributes.get(TCA_ROOT_FLAGS).map_or(0, |flags| tc::Bits::read(&flags).value);
    Ok(Outcome::Dump(Box::new(ActionDump {
        kind,
        last: 0,
        large: flags & LARGE_DUMP != 0,
        terse: flags & TERSE_DUMP != 0,
        since: attributes.get(TCA_ROOT_TIME_DELTA).map_or(0, |since| since.u32()),
    })))
}

const fn tc_base() -> usize {
    underpass_netlink::message::HEADER + HEADER
}

/// Bytes of a message of a dump from which on it takes no more actions.
const LARGE: usize = 16 * 1024;

impl Dump for ActionDump {
    fn next(&mut self, router: &Router, out: &mut Chunk<'_>) -> Result<More, RequestError> {
        // No action has the number 0.
        let after = Bound::Excluded(Name { kind: self.kind, index: self.last });
        let end = Bound::Included(Name { kind: self.kind, index: u32::MAX });
        let recent = |action: &super::Action, name| {
            let used = shown_action(router, name, action).times.last_use;
            self.since == 0 || used.saturating_mul(10) <= self.since.into()
        };
        let rest = router.actions.by_name.range((after, end));
        let mut rest = rest.filter(|(name, action)| recent(action, **name)).peekable();
        if rest.peek().is_none() {
            return Ok(More::No);
        }
        let mut last = self.last;
        out.message(RTM_GETACTION, |reply| {
            reply.fixed(&[0; HEADER]);
            let count_at = reply.len();
            reply.u32(TCA_ROOT_COUNT, 0);
            let table = reply.nest_unflagged(TCA_ACT_TAB);
            let mut count = 0;
            for (name, action) in rest {
                let full = if self.large { reply.len() > LARGE } else { count as usize >= MAX_ACTIONS };
                if full {
                    break;
                }
                if action.config.is_counted_by_hardware() {
                    action.asked_hw.store(true, Relaxed);
                }
                let element = reply.nest_unflagged(count);
                let shown = shown_action(router, *name, action);
                if self.terse {
                    shown.write_terse(reply, true);
                } else {
                    shown.write(reply);
                }
                reply.end(element);
                last = name.index;
                count += 1;
            }
            reply.end(table);
            if self.large
                && let Some(place) = reply.written().get_mut(count_at + 4..count_at + 8)
            {
                place.copy_from_slice(&u32::from(count).to_ne_bytes());
            }
        })?;
        self.last = last;
        Ok(More::Yes)
    }

    fn generation(&self, router: &Router) -> u64 {
        router.actions.generation
    }
}
