//! Rules as requests and as messages. Linux: `fib_nl2rule`, `fib_nl_fill_rule`.

use std::cmp::Reverse;

use libc::{EAFNOSUPPORT, EEXIST, EINVAL, ENOENT, EOPNOTSUPP, ERANGE, RTM_DELRULE, RTM_NEWRULE};
use underpass_netlink::{Attribute, Attributes, Reply, RequestError, Type, Validate, message, policy};

use super::{FR_ACT_GOTO, FR_ACT_TO_TBL, Ports, Rule};
use crate::dump::{Chunk, Dump, More, Outcome};
use crate::events::Cause;
use crate::link::publish::publish_link;
use crate::route::change::table_mut;
use crate::route::encode::table_byte;
use crate::route::recompile::refresh_lookups;
use crate::route::table::{Family, Prefix, bits};
use crate::{Request, Router};

const FRA_DST: u16 = 1;
const FRA_SRC: u16 = 2;
const FRA_IIFNAME: u16 = 3;
const FRA_GOTO: u16 = 4;
pub(super) const FRA_PRIORITY: u16 = 6;
const FRA_FWMARK: u16 = 10;
const FRA_FLOW: u16 = 11;
pub(super) const FRA_TUN_ID: u16 = 12;
pub(super) const FRA_SUPPRESS_IFGROUP: u16 = 13;
const FRA_SUPPRESS_PREFIXLEN: u16 = 14;
const FRA_TABLE: u16 = 15;
const FRA_FWMASK: u16 = 16;
const FRA_OIFNAME: u16 = 17;
const FRA_PAD: u16 = 18;
pub(super) const FRA_L3MDEV: u16 = 19;
pub(super) const FRA_UID_RANGE: u16 = 20;
pub(super) const FRA_PROTOCOL: u16 = 21;
const FRA_IP_PROTO: u16 = 22;
const FRA_SPORT_RANGE: u16 = 23;
const FRA_DPORT_RANGE: u16 = 24;
const FRA_DSCP: u16 = 25;
const FRA_FLOWLABEL: u16 = 26;
const FRA_FLOWLABEL_MASK: u16 = 27;
const FRA_SPORT_MASK: u16 = 28;
const FRA_DPORT_MASK: u16 = 29;
const FRA_DSCP_MASK: u16 = 30;
pub(super) const MAX: usize = 31;

/// What the kernel can say of a rule and this router understands, and how long it is; 0 where the length varies.
pub(super) const UNDERSTOOD: &[(u16, usize)] = &[
    (FRA_DST, 0),
    (FRA_SRC, 0),
    (FRA_IIFNAME, 0),
    (FRA_GOTO, 4),
    (FRA_PRIORITY, 4),
    (FRA_FWMARK, 4),
    // The realm, which only statistics and the `route` classifier look at.
    (FRA_FLOW, 4),
    (FRA_TUN_ID, 8),
    (FRA_SUPPRESS_IFGROUP, 4),
    (FRA_SUPPRESS_PREFIXLEN, 4),
    (FRA_TABLE, 4),
    (FRA_FWMASK, 4),
    (FRA_OIFNAME, 0),
    (FRA_PAD, 0),
    (FRA_L3MDEV, 1),
    (FRA_UID_RANGE, 8),
    (FRA_PROTOCOL, 1),
    (FRA_IP_PROTO, 1),
    (FRA_SPORT_RANGE, 4),
    (FRA_DPORT_RANGE, 4),
    (FRA_DSCP, 1),
    (FRA_FLOWLABEL, 4),
    (FRA_FLOWLABEL_MASK, 4),
    (FRA_SPORT_MASK, 2),
    (FRA_DPORT_MASK, 2),
    (FRA_DSCP_MASK, 1),
];

const POLICY: [Type; MAX] = policy(&[
    (FRA_DST, Type::Any),
    (FRA_SRC, Type::Any),
    (FRA_IIFNAME, Type::String(15)),
    (FRA_GOTO, Type::U32),
    (FRA_PRIORITY, Type::U32),
    (FRA_FWMARK, Type::U32),
    (FRA_FLOW, Type::Unsupported),
    (FRA_TUN_ID, Type::Unsupported),
    (FRA_SUPPRESS_IFGROUP, Type::U32),
    (FRA_SUPPRESS_PREFIXLEN, Type::U32),
    (FRA_TABLE, Type::U32),
    (FRA_FWMASK, Type::U32),
    (FRA_OIFNAME, Type::String(15)),
    (FRA_L3MDEV, Type::U8),
    (FRA_UID_RANGE, Type::Unsupported),
    (FRA_PROTOCOL, Type::U8),
    (FRA_IP_PROTO, Type::U8),
    (FRA_SPORT_RANGE, Type::AtLeast(4)),
    (FRA_DPORT_RANGE, Type::AtLeast(4)),
    (FRA_DSCP, Type::U8),
    (FRA_FLOWLABEL, Type::U32),
    (FRA_FLOWLABEL_MASK, Type::U32),
    (FRA_SPORT_MASK, Type::U16),
    (FRA_DPORT_MASK, Type::U16),
    (FRA_DSCP_MASK, Type::U8),
]);

/// `struct fib_rule_hdr`: family, lengths, TOS, table, two reserved, action, flags.
pub(super) const HEADER: usize = 12;
pub(super) const FIB_RULE_INVERT: u32 = 2;
const FIB_RULE_UNRESOLVED: u32 = 4;
const FIB_RULE_IIF_DETACHED: u32 = 8;
const FIB_RULE_OIF_DETACHED: u32 = 16;
/// `FIB_RULE_PERMANENT`, those above, and `FIB_RULE_FIND_SADDR`, which is about packets of the host.
pub(super) const KNOWN_FLAGS: u32 =
    1 | FIB_RULE_INVERT | FIB_RULE_UNRESOLVED | FIB_RULE_IIF_DETACHED | FIB_RULE_OIF_DETACHED | 0x1_0000;

const fn refuse(message: &'static str) -> RequestError {
    RequestError::new(EINVAL, message)
}

/// A rule as a request gives it, and whether it names the priority.
pub(super) fn parse(
    router: &Router,
    request: &Request<'_>,
    family: Family,
    policy: &[Type; MAX],
) -> Result<(Rule, bool), RequestError> {
    let short = refuse("Invalid msg length");
    request.fixed::<HEADER>().map_err(|_| short)?;
    // Linux says no more of an attribute that is wrong by itself; what is refused here alone is named.
    let said = |error: RequestError| match error.errno {
        libc::EOPNOTSUPP => error,
        _ => RequestError { message: Some("Error parsing msg".into()), ..error },
    };
    let (header, attributes) = request.parse::<HEADER, MAX>(policy, Validate::Liberal).map_err(said)?;
    let [_, dst_len, src_len, tos, table, _, _, action, a, b, c, d] = header;
    let flags = u32::from_ne_bytes([a, b, c, d]);
    let source = prefix(&attributes, FRA_SRC, src_len, family).ok_or(refuse("Invalid source address"))?;
    let destination = prefix(&attributes, FRA_DST, dst_len, family).ok_or(refuse("Invalid dst address"))?;
    let number = |kind| attributes.get(kind).map(|attribute: Attribute<'_>| attribute.u32());
    let priority = number(FRA_PRIORITY).filter(|&priority| priority != 0);
    let named = attributes.get(FRA_PRIORITY).is_some();
    let priority = match named {
        true => priority.unwrap_or(0),
        false => router.routes.rules.default_priority(family),
    };
    let mark = number(FRA_FWMARK).unwrap_or(0);
    let l3mdev = attributes.get(FRA_L3MDEV).map(|l3mdev| l3mdev.u8());
    if l3mdev.is_some_and(|l3mdev| l3mdev != 1) {
        return Err(refuse("Invalid l3mdev attribute"));
    }
    let table = number(FRA_TABLE).unwrap_or(u32::from(table));
    let target = number(FRA_GOTO);
    match target {
        Some(_) if action != FR_ACT_GOTO => return Err(refuse("Unexpected goto")),
        Some(target) if target <= priority => return Err(refuse("Backward goto not supported")),
        None if action == FR_ACT_GOTO => return Err(refuse("Missing goto target for action goto")),
        _ => {}
    }
    if l3mdev.is_some() && table != 0 {
        return Err(refuse("l3mdev and table are mutually exclusive"));
    }
    if policy == &POLICY && number(FRA_SUPPRESS_IFGROUP).is_some_and(|group| group != u32::MAX) {
        return Err(RequestError::new(EOPNOTSUPP, "suppress_ifgroup is not supported by this router"));
    }
    let byte = |kind| attributes.get(kind).map_or(0, |attribute: Attribute<'_>| attribute.u8());
    let text = |kind| attributes.get(kind).map(|name: Attribute<'_>| name.text()).unwrap_or_default();
    let suppress = number(FRA_SUPPRESS_PREFIXLEN).filter(|&longest| longest as i32 >= 0);
    if tos & 3 != 0 {
        return Err(refuse("Invalid dsfield (tos): ECN bits must be 0"));
    }
    if family == Family::V4 && tos & !0x1e != 0 {
        return Err(refuse("Invalid tos"));
    }
    let rule = Rule {
        priority,
        action,
        table,
        target: target.unwrap_or(0),
        l3mdev: l3mdev.is_some(),
        protocol: byte(FRA_PROTOCOL),
        invert: flags & FIB_RULE_INVERT != 0,
        source,
        destination,
        iif: text(FRA_IIFNAME),
        oif: text(FRA_OIFNAME),
        tos,
        dscp: dscp(&attributes, tos)?,
        flow_label: flow_label(&attributes, family)?,
        mark,
        mask: number(FRA_FWMASK).unwrap_or(if mark == 0 { 0 } else { u32::MAX }),
        ip_protocol: byte(FRA_IP_PROTO),
        source_port: ports(&attributes, (FRA_SPORT_RANGE, FRA_SPORT_MASK), "Invalid sport range")?,
        destination_port: ports(&attributes, (FRA_DPORT_RANGE, FRA_DPORT_MASK), "Invalid dport range")?,
        suppress_prefix: suppress,
        reported: None,
    };
    Ok((rule, named))
}

/// An address and its prefix length; `None` if they do not agree.
fn prefix(attributes: &Attributes<'_, MAX>, kind: u16, len: u8, family: Family) -> Option<Option<Prefix>> {
    if len == 0 {
        return Some(None);
    }
    let attribute = attributes.get(kind)?;
    let fits = len <= family.bits() && attribute.value.len() == usize::from(family.bits() / 8);
    let address = attribute.address(family.number()).filter(|_| fits)?;
    // What is behind the prefix is shown, and is compared where a rule is deleted.
    Some(Some(Prefix { bits: bits(address), len }))
}

/// Linux: `fib_nl2rule_port_range`, `fib_nl2rule_port_mask`.
fn ports(
    attributes: &Attributes<'_, MAX>,
    (range, mask): (u16, u16),
    message: &'static str,
) -> Result<Option<Ports>, RequestError> {
    let mask = attributes.get(mask);
    let Some(range) = attributes.get(range) else {
        return mask
            .map_or(Ok(None), |mask| Err(mask.invalid("Cannot specify port mask without port value")));
    };
    let [a, b, c, d, ..] = *range.value else { return Err(refuse(message)) };
    let (first, last) = (u16::from_ne_bytes([a, b]), u16::from_ne_bytes([c, d]));
    if first == 0 || last == 0 || first > last {
        return Err(refuse(message));
    }
    let default = if first == last { u16::MAX } else { 0 };
    let Some(given) = mask else { return Ok(Some(Ports { first, last, mask: default })) };
    if first != last {
        return Err(given.invalid("Cannot specify port mask for port range"));
    }
    if first & !given.u16() != 0 {
        return Err(given.invalid("Invalid port mask"));
    }
    Ok(Some(Ports { first, last, mask: given.u16() }))
}

/// Linux: `fib4_nl2rule_dscp`, `fib4_nl2rule_dscp_mask` and those of IPv6.
fn dscp(attributes: &Attributes<'_, MAX>, tos: u8) -> Result<Option<(u8, u8)>, RequestError> {
    const LARGEST: u8 = 63;
    let (value, mask) = (attributes.get(FRA_DSCP), attributes.get(FRA_DSCP_MASK));
    if let Some(beyond) = [value, mask].into_iter().flatten().find(|given| given.u8() > LARGEST) {
        return Err(RequestError::new(ERANGE, "Error parsing msg").at(beyond.offset));
    }
    let Some(value) = value else {
        let without = "Cannot specify DSCP mask without DSCP value";
        return mask.map_or(Ok(None), |mask| Err(mask.invalid(without)));
    };
    if tos != 0 {
        return Err(value.invalid("Cannot specify both TOS and DSCP"));
    }
    let kept = mask.map_or(LARGEST, |mask| mask.u8());
    if let Some(mask) = mask.filter(|_| value.u8() & !kept != 0) {
        return Err(mask.invalid("Invalid DSCP mask"));
    }
    Ok(Some((value.u8() << 2, kept << 2)))
}

/// Linux: `fib6_nl2rule_flowlabel`.
fn flow_label(attributes: &Attributes<'_, MAX>, family: Family) -> Result<Option<(u32, u32)>, RequestError> {
    let (label, mask) = (attributes.get(FRA_FLOWLABEL), attributes.get(FRA_FLOWLABEL_MASK));
    if let Some(given) = label.or(mask).filter(|_| family == Family::V4) {
        return Err(given.invalid("Flow label cannot be specified for IPv4 FIB rules"));
    }
    let (label, mask) = match (label, mask) {
        (Some(label), Some(mask)) => (label, mask),
        (None, None) => return Ok(None),
        // `NL_REQ_ATTR_CHECK` has no text.
        _ => return Err(RequestError::errno(EINVAL)),
    };
    if mask.be32() > 0xf_ffff {
        return Err(mask.invalid("Invalid flow label mask"));
    }
    if label.be32() & !mask.be32() != 0 {
        return Err(refuse("Flow label and mask do not match"));
    }
    Ok(Some((label.be32(), mask.be32())))
}

fn family_of(request: &Request<'_>) -> Result<Family, RequestError> {
    let unknown = RequestError::new(EAFNOSUPPORT, "Rule family not supported");
    Family::from_number(request.family()).ok_or(unknown)
}

/// `RTM_NEWRULE`.
pub(crate) fn new(router: &mut Router, request: &Request<'_>) -> Result<Outcome, RequestError> {
    let family = family_of(request)?;
    let (mut rule, _) = parse(router, request, family, &POLICY)?;
    let there = router.routes.rules.of(family);
    // Linux does not look at `not` here, nor at prefixes and other fields of the packet that the request leaves open.
    let same = |other: &Rule| {
        let mut other = Rule { invert: rule.invert, ..other.clone() };
        other.source = rule.source.and(other.source);
        other.destination = rule.destination.and(other.destination);
        other.flow_label = rule.flow_label.and(other.flow_label);
        if rule.tos == 0 && rule.dscp.is_none() {
            (other.tos, other.dscp) = (0, None);
        }
        other == rule
    };
    if request.exclusive() && there.iter().any(same) {
        return Err(RequestError::errno(EEXIST));
    }
    if rule.action == FR_ACT_TO_TBL && rule.table == 0 && !rule.l3mdev {
        if family == Family::V6 {
            return Err(refuse("Invalid table"));
        }
        let free = |table: &u32| !router.routes.tables.contains_key(&(family, *table));
        rule.table = (1..u32::MAX).find(free).unwrap_or(1);
    }
    if rule.action == FR_ACT_TO_TBL && !rule.l3mdev && (family == Family::V6 || rule.table < 253) {
        table_mut(router, family, rule.table);
    }
    router.routes.rules.add(family, rule.clone());
    notify_rule(router, request.into(), RTM_NEWRULE, family, &rule);
    rules_changed(router);
    Ok(Outcome::Done)
}

/// `RTM_DELRULE`: the first rule that agrees in all that the request says.
pub(crate) fn delete(router: &mut Router, request: &Request<'_>) -> Result<Outcome, RequestError> {
    let family = family_of(request)?;
    let (wanted, named) = parse(router, request, family, &POLICY)?;
    let agrees = |rule: &Rule| {
        (wanted.action == 0 || rule.action == wanted.action)
            && (wanted.table == 0 || rule.table == wanted.table)
            && (!named || rule.priority == wanted.priority)
            && (wanted.iif.is_empty() || rule.iif == wanted.iif)
            && (wanted.oif.is_empty() || rule.oif == wanted.oif)
            && (wanted.mark == 0 || rule.mark == wanted.mark)
            && (wanted.mask == 0 || rule.mask == wanted.mask)
            && (wanted.suppress_prefix.is_none() || rule.suppress_prefix == wanted.suppress_prefix)
            && (!wanted.l3mdev || rule.l3mdev)
            && (wanted.ip_protocol == 0 || rule.ip_protocol == wanted.ip_protocol)
            && (wanted.protocol == 0 || rule.protocol == wanted.protocol)
            && (wanted.source_port.is_none() || rule.source_port == wanted.source_port)
            && (wanted.destination_port.is_none() || rule.destination_port == wanted.destination_port)
            && (wanted.source.is_none() || rule.source == wanted.source)
            && (wanted.destination.is_none() || rule.destination == wanted.destination)
            && (wanted.tos == 0 || rule.tos == wanted.tos)
            && (wanted.dscp.is_none() || rule.dscp == wanted.dscp)
            && (wanted.flow_label.is_none() || rule.flow_label == wanted.flow_label)
    };
    let there = router.routes.rules.of(family);
    let position = there.iter().position(agrees).ok_or(RequestError::errno(ENOENT))?;
    let rule = router.routes.rules.of_mut(family).remove(position);
    notify_rule(router, request.into(), RTM_DELRULE, family, &rule);
    rules_changed(router);
    Ok(Outcome::Done)
}

/// A link has another name: rules may name it now, or no more.
pub(crate) fn names_changed(router: &mut Router) {
    let named = |rule: &Rule| !rule.iif.is_empty() || !rule.oif.is_empty();
    if [Family::V4, Family::V6].into_iter().any(|f| router.routes.rules.of(f).iter().any(named)) {
        rules_changed(router);
    }
}

pub(crate) fn rules_changed(router: &mut Router) {
    refresh_lookups(router);
    // A link that a rule names is looked up in its own way.
    let links: Vec<u32> = router.links.iter().map(|link| link.index).collect();
    links.into_iter().for_each(|index| publish_link(router, index));
}

fn write_rule(router: &Router, reply: &mut Reply<'_>, family: Family, rule: &Rule) {
    let detached = |name: &str, flag: u32| {
        if name.is_empty() || router.links.named(name).is_some() { 0 } else { flag }
    };
    let resolved = router.routes.rules.of(family).iter().any(|other| other.priority == rule.target);
    let unresolved = rule.action == FR_ACT_GOTO && !resolved;
    let flags = if rule.invert { FIB_RULE_INVERT } else { 0 }
        | if unresolved { FIB_RULE_UNRESOLVED } else { 0 }
        | detached(&rule.iif, FIB_RULE_IIF_DETACHED)
        | detached(&rule.oif, FIB_RULE_OIF_DETACHED);
    if let Some(reported) = &rule.reported {
        // As the kernel has reported it, but for what may have changed since.
        reply.fixed(reported);
        let derived = FIB_RULE_UNRESOLVED | FIB_RULE_IIF_DETACHED | FIB_RULE_OIF_DETACHED;
        let place = reply.written().get_mut(message::HEADER + 8..message::HEADER + HEADER);
        if let Some(place) = place.and_then(|place| place.first_chunk_mut::<4>()) {
            let before = u32::from_ne_bytes(*place);
            *place = (before & !derived | flags & derived).to_ne_bytes();
        }
        return;
    }
    let len = |prefix: Option<Prefix>| prefix.map_or(0, |prefix| prefix.len);
    let [a, b, c, d] = flags.to_ne_bytes();
    let (dst_len, src_len) = (len(rule.destination), len(rule.source));
    let table = table_byte(rule.table);
    reply.fixed(&[family.number(), dst_len, src_len, rule.tos, table, 0, 0, rule.action, a, b, c, d]);
    reply.u32(FRA_TABLE, rule.table);
    reply.u32(FRA_SUPPRESS_PREFIXLEN, rule.suppress_prefix.unwrap_or(u32::MAX));
    reply.u8(FRA_PROTOCOL, rule.protocol);
    if !rule.iif.is_empty() {
        reply.text(FRA_IIFNAME, &rule.iif);
    }
    if !rule.oif.is_empty() {
        reply.text(FRA_OIFNAME, &rule.oif);
    }
    // A mask of no bits is shown with a mark.
    let numbers = [
        (FRA_PRIORITY, rule.priority, rule.priority),
        (FRA_FWMARK, rule.mark, rule.mark),
        (FRA_FWMASK, rule.mask, rule.mask | rule.mark),
        (FRA_GOTO, rule.target, rule.target),
    ];
    let shown = numbers.into_iter().filter(|(.., shown)| *shown != 0);
    shown.for_each(|(kind, value, _)| reply.u32(kind, value));
    if rule.l3mdev {
        reply.u8(FRA_L3MDEV, 1);
    }
    for (kind, range) in [(FRA_SPORT_RANGE, rule.source_port), (FRA_DPORT_RANGE, rule.destination_port)] {
        if let Some(Ports { first, last, .. }) = range {
            let ([a, b], [c, d]) = (first.to_ne_bytes(), last.to_ne_bytes());
            reply.attribute(kind, &[a, b, c, d]);
        }
    }
    for (kind, range) in [(FRA_SPORT_MASK, rule.source_port), (FRA_DPORT_MASK, rule.destination_port)] {
        // Linux 6.12 has no masks: whole ports are as it shows them.
        if let Some(ports) = range.filter(|ports| !matches!(ports.mask, 0 | u16::MAX)) {
            reply.u16(kind, ports.mask);
        }
    }
    if let Some((dscp, mask)) = rule.dscp {
        reply.u8(FRA_DSCP, dscp >> 2);
        if mask != 0xfc {
            reply.u8(FRA_DSCP_MASK, mask >> 2);
        }
    }
    if let Some((label, mask)) = rule.flow_label {
        reply.attribute(FRA_FLOWLABEL, &label.to_be_bytes());
        reply.attribute(FRA_FLOWLABEL_MASK, &mask.to_be_bytes());
    }
    if rule.ip_protocol != 0 {
        reply.u8(FRA_IP_PROTO, rule.ip_protocol);
    }
    for (kind, prefix) in [(FRA_DST, rule.destination), (FRA_SRC, rule.source)] {
        if let Some(prefix) = prefix {
            reply.address(kind, family.address(prefix.bits));
        }
    }
}

/// Notifies listeners of a change of rules.
pub(super) fn notify_rule(router: &mut Router, cause: Cause, kind: u16, family: Family, rule: &Rule) {
    let group = match family {
        Family::V4 => libc::RTNLGRP_IPV4_RULE,
        Family::V6 => libc::RTNLGRP_IPV6_RULE,
    };
    let mut events = std::mem::take(&mut router.events);
    events.notify(cause, group, kind, 0, |reply| write_rule(router, reply, family, rule));
    router.events = events;
}

/// Adds the rule that leads to the tables of VRFs, if it was never there. Linux: `vrf_add_fib_rules`.
pub(crate) fn add_vrf_rules(router: &mut Router, cause: Cause) {
    if std::mem::replace(&mut router.routes.rules.vrfs, true) {
        return;
    }
    let rule = of_vrfs();
    for family in [Family::V4, Family::V6] {
        router.routes.rules.add(family, rule.clone());
        notify_rule(router, cause, libc::RTM_NEWRULE, family, &rule);
    }
}

/// The rule that comes with the first VRF.
pub(super) fn of_vrfs() -> Rule {
    Rule { l3mdev: true, ..Rule::plain(1000, 0) }
}

/// Where a dump is: behind so many rules of the last family.
struct RuleDump {
    families: Vec<Family>,
    next: usize,
}

/// `RTM_GETRULE` for all rules.
pub(crate) fn dump(request: &Request<'_>) -> Result<Outcome, RequestError> {
    if request.strict {
        let short = refuse("Invalid header for fib rule dump request");
        let header = request.fixed::<HEADER>().map_err(|_| short)?;
        if header[1..].iter().any(|&byte| byte != 0) {
            return Err(refuse("Invalid values in header for fib rule dump request"));
        }
        if request.message.body().len() > HEADER {
            return Err(refuse("Invalid data after header in fib rule dump request"));
        }
    }
    let mut families = match Family::from_number(request.family()) {
        Some(family) => vec![family],
        None if request.family() == 0 => vec![Family::V4, Family::V6],
        None => return Err(RequestError::errno(EAFNOSUPPORT)),
    };
    families.sort_by_key(|&family| Reverse(family));
    Ok(Outcome::Dump(Box::new(RuleDump { families, next: 0 })))
}

impl Dump for RuleDump {
    fn next(&mut self, router: &Router, out: &mut Chunk<'_>) -> Result<More, RequestError> {
        let Some(&family) = self.families.last() else { return Ok(More::No) };
        let Some(rule) = router.routes.rules.of(family).get(self.next) else {
            self.families.pop();
            self.next = 0;
            return Ok(More::Yes);
        };
        self.next += 1;
        out.message(RTM_NEWRULE, |reply| write_rule(router, reply, family, rule))?;
        Ok(More::Yes)
    }

    fn generation(&self, router: &Router) -> u64 {
        router.routes.rules.generation
    }
}
