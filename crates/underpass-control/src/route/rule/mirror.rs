//! The kernel's rules.

use std::borrow::Cow;

use underpass_netlink::{Attribute, Message, RequestError, Type, Validate, policy};

use super::request::{
    FIB_RULE_INVERT, FRA_L3MDEV, FRA_PRIORITY, FRA_PROTOCOL, FRA_SUPPRESS_IFGROUP, FRA_TUN_ID, FRA_UID_RANGE,
    HEADER, KNOWN_FLAGS, MAX, UNDERSTOOD, parse, rules_changed,
};
use super::{FR_ACT_BLACKHOLE, FR_ACT_GOTO, FR_ACT_NOP, FR_ACT_PROHIBIT, FR_ACT_TO_TBL, HAND_OVER, Rule};
use crate::route::table::Family;
use crate::{PROTOCOL, Request, Router};

const REPORTED: [Type; MAX] = policy(&[]);
/// Where in the header the flags are; those that the kernel derives change without a word.
const FLAGS: std::ops::Range<usize> = 8..12;

/// A rule of the same content: the message without the derived flags.
fn content(body: &[u8]) -> (&[u8], &[u8]) {
    (body.get(..FLAGS.start).unwrap_or_default(), body.get(FLAGS.end..).unwrap_or_default())
}

/// Whether a rule was made by this protocol.
pub(crate) fn is_of(message: &Message<'_>, protocol: u8) -> bool {
    let mut attributes = message.attributes(HEADER);
    attributes.any(|attribute| attribute.kind == FRA_PROTOCOL && attribute.u8() == protocol)
}

/// Whether a rule leads to the tables of VRFs, which are this router's.
pub(crate) fn is_own(message: &Message<'_>) -> bool {
    message.attributes(HEADER).any(|attribute| attribute.kind == FRA_L3MDEV)
}

/// Whether an attribute is as long as this router knows it, or is one that it does not know.
fn is_as_known(attribute: &Attribute<'_>) -> bool {
    let other =
        |&&(kind, len): &&(u16, usize)| kind == attribute.kind && len != 0 && len != attribute.value.len();
    !UNDERSTOOD.iter().any(|known| other(&known))
}

/// Whether this router knows all that the kernel says of a rule.
///
/// # Errors
/// What it does not know.
fn understood(message: &Message<'_>) -> Result<(), &'static str> {
    let Some(&[.., reserved, and, action, a, b, c, d]) = message.body().first_chunk::<HEADER>() else {
        return Err("too short a message");
    };
    if !matches!(action, FR_ACT_TO_TBL | FR_ACT_GOTO | FR_ACT_NOP | FR_ACT_BLACKHOLE..=FR_ACT_PROHIBIT) {
        return Err("an unknown action");
    }
    if u32::from_ne_bytes([a, b, c, d]) & !KNOWN_FLAGS != 0 || (reserved, and) != (0, 0) {
        return Err("unknown flags");
    }
    for attribute in message.attributes(HEADER) {
        match UNDERSTOOD.iter().find(|(kind, _)| *kind == attribute.kind) {
            None => return Err("an unknown attribute"),
            Some(_) if !is_as_known(&attribute) => return Err("an attribute of another length"),
            Some(_) => {}
        }
        if attribute.kind == FRA_SUPPRESS_IFGROUP && attribute.u32() != u32::MAX {
            return Err("suppress_ifgroup");
        }
    }
    Ok(())
}

/// A rule that is left to the kernel, with what is known of whom it is about: packets that may match it are the
/// kernel's, all others go on with the next rule.
fn left(router: &Router, request: &Request<'_>, family: Family) -> Rule {
    let body = request.message.body();
    let word = body.get(FLAGS).and_then(|word| word.first_chunk::<4>());
    let invert = word.is_some_and(|word| u32::from_ne_bytes(*word) & FIB_RULE_INVERT != 0);
    let mut attributes = request.message.attributes(HEADER);
    let priority = attributes.find(|attribute| attribute.kind == FRA_PRIORITY);
    let any = Rule::plain(priority.map_or(0, |priority| priority.u32()), 0);
    // Of a rule with `not`, who does not match what is known may match, too.
    let readable = !invert && request.message.attributes(HEADER).all(|attribute| is_as_known(&attribute));
    let known = parse(router, request, family, &REPORTED).ok().filter(|_| readable);
    let rule = known.map_or(any, |(rule, _)| rule);
    Rule { action: HAND_OVER, l3mdev: false, suppress_prefix: None, ..rule }
}

/// `RTM_NEWRULE` and `RTM_DELRULE` of the kernel.
pub(crate) fn mirror_rule(router: &mut Router, request: &Request<'_>) -> Result<(), RequestError> {
    let Some(family) = Family::from_number(request.family()) else { return Ok(()) };
    request.fixed::<HEADER>()?;
    if is_of(&request.message, PROTOCOL) {
        return Ok(());
    }
    let body = request.message.body();
    if request.message.kind == libc::RTM_DELRULE {
        unmirror_rule(router, family, body);
        return Ok(());
    }
    if let Some(unseen) = router.unseen()
        && let Some(seen) =
            unseen.rules.iter().position(|(of, reported)| *of == family && content(reported) == content(body))
    {
        unseen.rules.swap_remove(seen);
        return Ok(());
    }
    let mut rule = match reported_rule(router, request, family) {
        Ok(rule) => rule,
        Err(why) => {
            router.log_left("rule", &why);
            left(router, request, family)
        }
    };
    rule.reported = Some(body.into());
    put_mirrored_rule(router, family, rule);
    Ok(())
}

/// A rule of the kernel's.
///
/// # Errors
/// What of it this router does not understand.
fn reported_rule(router: &Router, request: &Request<'_>, family: Family) -> Result<Rule, Cow<'static, str>> {
    let message = |error: RequestError| error.message.unwrap_or("contradicts itself".into());
    let (rule, _) = parse(router, request, family, &REPORTED).map_err(message)?;
    understood(&request.message)?;
    let (_, attributes) = request.parse::<HEADER, MAX>(&REPORTED, Validate::Liberal).map_err(message)?;
    // A forwarded packet belongs to no user but root and comes from no tunnel of the kernel's.
    let users = attributes.get(FRA_UID_RANGE).map_or(0, |range| range.u32());
    let tunnel = attributes.get(FRA_TUN_ID).map_or(0, |id| id.u64());
    Ok(match (users != 0 || tunnel != 0, rule.invert) {
        (false, _) => rule,
        (true, false) => Rule { action: FR_ACT_NOP, ..rule },
        (true, true) => rule.without_selectors(),
    })
}

fn put_mirrored_rule(router: &mut Router, family: Family, rule: Rule) {
    router.routes.rules.add(family, rule);
    mirrored_rules_changed(router);
}

fn unmirror_rule(router: &mut Router, family: Family, body: &[u8]) {
    if forget_rule(router, family, body) {
        mirrored_rules_changed(router);
    }
}

fn forget_rule(router: &mut Router, family: Family, body: &[u8]) -> bool {
    let same =
        |rule: &Rule| rule.reported.as_deref().is_some_and(|reported| content(reported) == content(body));
    let position = router.routes.rules.of(family).iter().position(same);
    position.map(|position| router.routes.rules.of_mut(family).remove(position)).is_some()
}

/// While a dump is read, the look-ups are compiled once, at its end: one for each rule would make
/// forwarding tables that nobody wants later.
fn mirrored_rules_changed(router: &mut Router) {
    match router.unseen() {
        Some(unseen) => unseen.rules_changed = true,
        None => rules_changed(router),
    }
}

/// The kernel's rules.
pub(crate) fn mirrored_rules(router: &Router) -> Vec<(Family, Box<[u8]>)> {
    let of = |family| {
        let reported = router.routes.rules.of(family).iter().filter_map(|rule| rule.reported.clone());
        reported.map(move |body| (family, body))
    };
    of(Family::V4).chain(of(Family::V6)).collect()
}

/// Removes what a dump has not named.
pub(crate) fn sweep_rules(router: &mut Router, unseen: &[(Family, Box<[u8]>)]) {
    for (family, body) in unseen {
        forget_rule(router, *family, body);
    }
}
