//! Next-hop objects as requests and as messages. Linux: `rtm_to_nh_config`, `nh_fill_node`.

use std::net::IpAddr;

use libc::{AF_INET, AF_INET6, AF_UNSPEC, EEXIST, EINVAL, ENETDOWN, ENOENT, EOPNOTSUPP};
use underpass_netlink::{Attribute, Attributes, Replies, Reply, RequestError, Type, Validate, encap, policy};

use super::{Kind, Object};
use crate::dump::{Chunk, Dump, More, Outcome};
use crate::events::Cause;
use crate::route::change::counted_hop;
use crate::route::check::{Owner, check_argument, check_hop4, check_hop6};
use crate::route::compile::recompile_info;
use crate::route::config::{HopConfig, RT_TABLE_LOCAL, RTNH_F_ONLINK};
use crate::route::encode::route_counts;
use crate::route::info::{Hop, Info, InfoId, NextHops, Origin};
use crate::route::lookup::{address_type4, l3mdev_table};
use crate::route::mpls::object::{check_label_object, label_users};
use crate::route::mpls::publish::{forget_labels_by, label_objects_changed};
use crate::route::recompile::{publish_place, resolve_inside};
use crate::route::table::{Family, Prefix};
use crate::route::update::{places_of, remove_where};
use crate::{Request, Router};

pub(crate) const RTM_NEWNEXTHOP: u16 = 104;
pub(crate) const RTM_DELNEXTHOP: u16 = 105;
pub(crate) const RTM_GETNEXTHOP: u16 = 106;
const RTNLGRP_NEXTHOP: u32 = 32;

pub(crate) const NHA_ID: u16 = 1;
pub(crate) const NHA_GROUP: u16 = 2;
pub(crate) const NHA_GROUP_TYPE: u16 = 3;
pub(super) const NHA_BLACKHOLE: u16 = 4;
pub(crate) const NHA_OIF: u16 = 5;
pub(super) const NHA_GATEWAY: u16 = 6;
pub(crate) const NHA_ENCAP_TYPE: u16 = 7;
pub(crate) const NHA_ENCAP: u16 = 8;
const NHA_GROUPS: u16 = 9;
const NHA_MASTER: u16 = 10;
pub(super) const NHA_FDB: u16 = 11;
const NHA_RES_GROUP: u16 = 12;
pub(crate) const NHA_OP_FLAGS: u16 = 14;
const NHA_HW_STATS_ENABLE: u16 = 16;
pub(super) const MAX: usize = 18;

const NEW: [Type; MAX] = policy(&[
    (NHA_ID, Type::U32),
    (NHA_GROUP, Type::Any),
    (NHA_GROUP_TYPE, Type::U16),
    (NHA_BLACKHOLE, Type::Flag),
    (NHA_OIF, Type::U32),
    (NHA_GATEWAY, Type::Any),
    (NHA_ENCAP_TYPE, Type::U16),
    (NHA_ENCAP, Type::Nested),
    (NHA_FDB, Type::Flag),
    (NHA_RES_GROUP, Type::Nested),
    (NHA_HW_STATS_ENABLE, Type::U32),
]);
const GET: [Type; MAX] = policy(&[(NHA_ID, Type::U32), (NHA_OP_FLAGS, Type::U32)]);
const DUMP: [Type; MAX] = policy(&[
    (NHA_OIF, Type::U32),
    (NHA_GROUPS, Type::Flag),
    (NHA_MASTER, Type::U32),
    (NHA_FDB, Type::Flag),
    (NHA_OP_FLAGS, Type::U32),
]);

/// `struct nhmsg`: family, scope, protocol, reserved, flags.
pub(super) const HEADER: usize = 8;
/// `struct nexthop_grp`: id, weight − 1 in two bytes that are apart, reserved.
pub(super) const MEMBER: usize = 8;
/// Weights are of two bytes: the second was reserved once.
pub(crate) const NHA_OP_FLAG_RESP_GRP_RESVD_0: u32 = 1 << 31;
/// `NEXTHOP_GRP_TYPE_RES`.
const RESILIENT: u16 = 1;

const fn refuse(message: &'static str) -> RequestError {
    RequestError::new(EINVAL, message)
}

/// `RTM_NEWNEXTHOP`.
pub(crate) fn new(router: &mut Router, request: &Request<'_>) -> Result<Outcome, RequestError> {
    let (header, attributes) = request.parse::<HEADER, MAX>(&NEW, Validate::Strict)?;
    let [family, scope, protocol, reserved, a, b, c, d] = header;
    let flags = u32::from_ne_bytes([a, b, c, d]);
    if reserved != 0 || scope != 0 {
        return Err(refuse("Invalid values in ancillary header"));
    }
    if flags & !RTNH_F_ONLINK != 0 {
        return Err(refuse("Invalid nexthop flags in ancillary header"));
    }
    let group = attributes.get(NHA_GROUP);
    match i32::from(family) {
        AF_INET | AF_INET6 => {}
        AF_UNSPEC if group.is_some() => {}
        _ => return Err(refuse("Invalid address family")),
    }
    let id = attributes.get(NHA_ID).map_or(0, |id| id.u32());
    let kind = match group {
        Some(group) if i32::from(family) == AF_UNSPEC => group_of(router, &group, &attributes)?,
        Some(_) => return Err(refuse("Invalid family for group")),
        None => single_of(router, family, flags, &attributes)?,
    };
    if request.replace() && id == 0 {
        return Err(refuse("Replace requires nexthop id"));
    }
    let id = if id == 0 { router.routes.objects.unused_id() } else { id };
    let old = router.routes.objects.get(id);
    match old {
        Some(_) if !request.replace() => return Err(RequestError::errno(EEXIST)),
        None if request.replace() && !request.create() => {
            let message = "Replace specified without create and no entry exists";
            return Err(RequestError::new(ENOENT, message));
        }
        Some(old) => check_replacement(router, id, old, &kind, family)?,
        None => {}
    }
    let kind = with_counter(router, kind);
    put_object(router, id, Object { family, protocol, kind, origin: Origin::Own });
    notify_object(router, request.into(), RTM_NEWNEXTHOP, id);
    Ok(Outcome::Done)
}

/// The id that a question or a deletion names.
fn id_of(request: &Request<'_>) -> Result<u32, RequestError> {
    let (header, attributes) = request.parse::<HEADER, MAX>(&GET, Validate::Strict)?;
    if header[1..].iter().any(|&byte| byte != 0) {
        return Err(refuse("Invalid values in header"));
    }
    match attributes.get(NHA_ID).map(|id| id.u32()) {
        None => Err(refuse("Nexthop id is missing")),
        Some(0) => Err(refuse("Invalid nexthop id")),
        Some(id) => Ok(id),
    }
}

/// `RTM_DELNEXTHOP`.
pub(crate) fn delete(router: &mut Router, request: &Request<'_>) -> Result<Outcome, RequestError> {
    let id = id_of(request)?;
    router.routes.objects.get(id).ok_or(RequestError::errno(ENOENT))?;
    remove_object(router, request.into(), id);
    Ok(Outcome::Done)
}

/// `RTM_GETNEXTHOP` for one.
pub(crate) fn get(
    router: &Router,
    request: &Request<'_>,
    replies: &mut Replies,
) -> Result<Outcome, RequestError> {
    let id = id_of(request)?;
    let object = router.routes.objects.get(id).ok_or(RequestError::errno(ENOENT))?;
    replies
        .message(RTM_NEWNEXTHOP, 0, request.reply_to(), |reply| write_object(router, reply, id, object))?;
    Ok(Outcome::Done)
}

/// Linux: `nh_check_attr_group`.
fn group_of(
    router: &Router,
    group: &Attribute<'_>,
    attributes: &Attributes<'_, MAX>,
) -> Result<Kind, RequestError> {
    let kind = attributes.get(NHA_GROUP_TYPE).map_or(0, |kind| kind.u16());
    if kind > RESILIENT {
        return Err(refuse("Invalid group type"));
    }
    if group.value.is_empty() || !group.value.len().is_multiple_of(MEMBER) {
        return Err(refuse("Invalid length for nexthop group attribute"));
    }
    let mut members: Vec<(u32, u16)> = Vec::new();
    for &[a, b, c, d, low, high, e, f] in group.value.as_chunks::<MEMBER>().0 {
        if e != 0 || f != 0 {
            return Err(refuse("Reserved field in nexthop_grp must be 0"));
        }
        let weight = u16::from_le_bytes([low, high]).checked_add(1);
        members.push((u32::from_ne_bytes([a, b, c, d]), weight.ok_or(refuse("Invalid value for weight"))?));
    }
    for (i, (id, _)) in members.iter().enumerate() {
        if members.iter().skip(i + 1).any(|(other, _)| other == id) {
            return Err(refuse("Nexthop id can not be used twice in a group"));
        }
    }
    for (id, _) in &members {
        match &router.routes.objects.get(*id).ok_or(refuse("Invalid nexthop id"))?.kind {
            Kind::Group(_) => {
                return Err(refuse("Hash-threshold group can not be a nexthop within a group"));
            }
            Kind::Blackhole if members.len() > 1 => {
                let message = "Blackhole nexthop can not be used in a group with more than 1 path";
                return Err(refuse(message));
            }
            _ if attributes.get(NHA_FDB).is_some() => {
                return Err(refuse("FDB nexthop group can only have fdb nexthops"));
            }
            _ => {}
        }
    }
    let fits = |of: u16| of == NHA_HW_STATS_ENABLE || of == NHA_RES_GROUP && kind == RESILIENT;
    if attributes.iter().any(|a| a.kind > NHA_GROUP_TYPE && !fits(a.kind)) {
        return Err(refuse("No other attributes can be set in nexthop groups"));
    }
    if kind == RESILIENT {
        return Err(RequestError::new(EOPNOTSUPP, "Resilient groups are not supported by this router"));
    }
    Ok(Kind::Group(members))
}

fn single_of(
    router: &mut Router,
    family: u8,
    flags: u32,
    attributes: &Attributes<'_, MAX>,
) -> Result<Kind, RequestError> {
    let has = |kind| attributes.get(kind).is_some();
    if has(NHA_FDB) {
        if [NHA_OIF, NHA_BLACKHOLE, NHA_ENCAP, NHA_ENCAP_TYPE].into_iter().any(has) {
            return Err(refuse("Fdb attribute can not be used with encap, oif or blackhole."));
        }
        return Err(RequestError::new(EOPNOTSUPP, "FDB nexthops are not supported by this router"));
    }
    if has(NHA_BLACKHOLE) {
        if [NHA_GATEWAY, NHA_OIF, NHA_ENCAP, NHA_ENCAP_TYPE].into_iter().any(has) {
            let message = "Blackhole attribute can not be used with gateway, oif, encap or fdb";
            return Err(refuse(message));
        }
        return Ok(Kind::Blackhole);
    }
    let missing = refuse("Device attribute required for non-blackhole and non-fdb nexthops");
    let oif = attributes.get(NHA_OIF).ok_or(missing)?.u32();
    if !router.links.get(oif).ok_or(refuse("Invalid device index"))?.up() {
        return Err(RequestError::new(ENETDOWN, "Nexthop device is not up"));
    }
    let gateway = match attributes.get(NHA_GATEWAY) {
        Some(gateway) => {
            let len = if i32::from(family) == AF_INET { 4 } else { 16 };
            let fits = gateway.value.len() == len;
            Some(gateway.address(family).filter(|_| fits).ok_or(refuse("Invalid gateway"))?)
        }
        None if flags & RTNH_F_ONLINK != 0 => {
            return Err(refuse("ONLINK flag can not be set for nexthop without a gateway"));
        }
        None => None,
    };
    let kind = attributes.get(NHA_ENCAP_TYPE).map(|kind| kind.u16());
    let encapsulation = match (attributes.get(NHA_ENCAP), kind) {
        (Some(encapsulation), Some(kind)) => {
            encap::check_type(kind)?;
            Some((kind, encapsulation))
        }
        (Some(_), None) => return Err(refuse("LWT encapsulation type is missing")),
        (None, Some(_)) => return Err(refuse("LWT encapsulation attribute is missing")),
        (None, None) => None,
    };
    if has(NHA_HW_STATS_ENABLE) {
        return Err(refuse("Cannot enable nexthop hardware statistics for non-group nexthops"));
    }
    let gateway = gateway.filter(|gateway: &IpAddr| !gateway.is_unspecified());
    let config = HopConfig { oif, gateway, flags, weight: 1, encap: encapsulation };
    // Outside a VRF, table 0, which is none: the rules say where the gateway is.
    let table = l3mdev_table(router, oif).unwrap_or(0);
    let owner = Owner { table, scope: 0, kind: libc::RTN_UNICAST, loopback: true };
    let hop = match i32::from(family) {
        AF_INET => check_hop4(router, owner, &config)?,
        _ => check_hop6(router, owner, &config)?.0,
    };
    check_argument(&hop, None)?;
    Ok(Kind::Single(hop))
}

/// Whether what uses an object could use the new one.
fn check_replacement(
    router: &Router,
    id: u32,
    old: &Object,
    new: &Kind,
    family: u8,
) -> Result<(), RequestError> {
    let group = |kind: &Kind| matches!(kind, Kind::Group(_));
    match (group(&old.kind), group(new)) {
        (true, false) => return Err(refuse("Can not replace a nexthop group with a nexthop.")),
        (false, true) => return Err(refuse("Can not replace a nexthop with a nexthop group.")),
        _ => {}
    }
    let in_group = router.routes.objects.groups_with(id).any(|members| members.len() > 1);
    if in_group && *new == Kind::Blackhole {
        let message = "Blackhole nexthop can not be a member of a group with more than one path";
        return Err(refuse(message));
    }
    if !label_users(router, id).is_empty() {
        check_label_object(router, new)?;
    }
    let v4 = match new {
        Kind::Group(members) => members.iter().any(|(id, _)| {
            router.routes.objects.get(*id).is_some_and(|member| i32::from(member.family) == AF_INET)
        }),
        _ => i32::from(family) == AF_INET,
    };
    if v4 && *new != Kind::Blackhole && used6(router, id) {
        return Err(refuse("IPv6 routes can not use an IPv4 nexthop"));
    }
    Ok(())
}

fn used6(router: &Router, id: u32) -> bool {
    let users = users(router, id);
    let mut tables = router.routes.tables.iter().filter(|((family, _), _)| *family == Family::V6);
    !users.is_empty() && tables.any(|(_, table)| !table.with(|id| users.contains(&id)).is_empty())
}

/// The routes that use an object, by itself or in a group.
fn users(router: &Router, id: u32) -> Vec<InfoId> {
    let uses = |info: &Info| match info.ways {
        NextHops::Object(used) => used == id || router.routes.objects.contains(used, id),
        NextHops::Hops(_) => false,
    };
    router.routes.infos.iter().filter(|(_, info)| uses(info)).map(|(id, _)| id).collect()
}

pub(super) fn with_counter(router: &mut Router, kind: Kind) -> Kind {
    match kind {
        Kind::Single(hop) => Kind::Single(counted_hop(router, hop)),
        kind => kind,
    }
}

/// Puts an object in, or in the place of another, and compiles what uses it.
pub(super) fn put_object(router: &mut Router, id: u32, object: Object) {
    let old = router.routes.objects.put(id, object);
    objects_changed(router, &users(router, id));
    label_objects_changed(router, &label_users(router, id));
    forget_object(router, old);
}

fn forget_object(router: &mut Router, old: Option<Object>) {
    if let Some(Object { kind: Kind::Single(hop), .. }) = old
        && let Some(counter) = hop.tunnel.and_then(|tunnel| tunnel.counter)
    {
        router.engine.remove_counter(counter);
        router.routes.compiled.frequencies.remove(&counter);
    }
}

fn objects_changed(router: &mut Router, users: &[InfoId]) {
    router.routes.generation += 1;
    users.iter().for_each(|&user| recompile_info(router, user));
    if !users.is_empty() {
        // Neighbours on a link are host entries, which come and go with routes to the link.
        let by_link = |info: &Info| matches!(info.ways, NextHops::Object(_));
        if !router.routes.published.neighbours.is_empty() {
            places_of(router, by_link).into_iter().for_each(|place| publish_place(router, place));
        }
        for family in [Family::V4, Family::V6] {
            router.routes.gateways.clear();
            resolve_inside(router, family, Prefix::new(0, 0));
        }
    }
}

/// Removes an object: from its groups, and with the routes that use it.
pub(crate) fn remove_object(router: &mut Router, cause: Cause, id: u32) {
    if router.routes.objects.get(id).is_none() {
        return;
    }
    notify_object(router, cause, RTM_DELNEXTHOP, id);
    remove_where(router, cause, false, |info| info.ways == NextHops::Object(id));
    forget_labels_by(router, cause, id);
    let (users, labels) = (users(router, id), label_users(router, id));
    let (old, emptied, shrunk) = router.routes.objects.remove(id);
    for group in shrunk {
        notify_object(router, cause, RTM_NEWNEXTHOP, group);
    }
    objects_changed(router, &users);
    label_objects_changed(router, &labels);
    forget_object(router, old);
    emptied.into_iter().for_each(|group| remove_object(router, cause, group));
}

/// The objects of a link that is down go, with the routes that use them.
pub(crate) fn flush_objects_of(router: &mut Router, cause: Cause, link: u32) {
    for id in router.routes.objects.on_link(link) {
        remove_object(router, cause, id);
    }
}

/// `nhc_scope`: how far the gateway is. Linux: `fib_check_nh`.
fn nexthop_scope(router: &Router, family: u8, hop: &Hop) -> u8 {
    let own = |gateway: IpAddr| match gateway {
        IpAddr::V4(gateway) => {
            let table = l3mdev_table(router, hop.oif).unwrap_or(RT_TABLE_LOCAL);
            !hop.onlink && address_type4(router, gateway, table) == libc::RTN_LOCAL
        }
        IpAddr::V6(_) => false,
    };
    match hop.gateway {
        None if i32::from(family) == AF_INET => libc::RT_SCOPE_HOST,
        Some(gateway) if own(gateway) => libc::RT_SCOPE_HOST,
        _ => libc::RT_SCOPE_LINK,
    }
}

fn write_object(router: &Router, reply: &mut Reply<'_>, id: u32, object: &Object) {
    let (scope, flags) = match &object.kind {
        Kind::Single(hop) => {
            (nexthop_scope(router, object.family, hop), if hop.onlink { RTNH_F_ONLINK } else { 0 })
        }
        _ => (0, 0),
    };
    let [a, b, c, d] = flags.to_ne_bytes();
    reply.fixed(&[object.family, scope, object.protocol, 0, a, b, c, d]);
    reply.u32(NHA_ID, id);
    match &object.kind {
        Kind::Blackhole => reply.flag(NHA_BLACKHOLE),
        Kind::Group(members) => {
            reply.u16(NHA_GROUP_TYPE, 0);
            let mut value = Vec::new();
            for (id, weight) in members {
                value.extend_from_slice(&id.to_ne_bytes());
                value.extend_from_slice(&(weight - 1).to_le_bytes());
                value.extend_from_slice(&[0, 0]);
            }
            reply.attribute(NHA_GROUP, &value);
            reply.u32(NHA_OP_FLAGS, NHA_OP_FLAG_RESP_GRP_RESVD_0);
        }
        Kind::Single(hop) => {
            reply.u32(NHA_OIF, hop.oif);
            if let Some(gateway) = hop.gateway {
                reply.address(NHA_GATEWAY, gateway);
            }
            if let Some(tunnel) = &hop.tunnel {
                tunnel.encap.write(reply, NHA_ENCAP, NHA_ENCAP_TYPE, route_counts(router, hop));
            }
        }
    }
}

fn notify_object(router: &mut Router, cause: Cause, kind: u16, id: u32) {
    if !router.events.heard(cause, RTNLGRP_NEXTHOP) {
        return;
    }
    let mut events = std::mem::take(&mut router.events);
    if let Some(object) = router.routes.objects.get(id).filter(|object| object.origin == Origin::Own) {
        events.notify(cause, RTNLGRP_NEXTHOP, kind, 0, |reply| write_object(router, reply, id, object));
    }
    router.events = events;
}

struct ObjectDump {
    /// The id of the last that was written.
    last: u32,
    family: u8,
    link: u32,
    master: u32,
    groups: bool,
}

/// `RTM_GETNEXTHOP` for all.
pub(crate) fn dump(request: &Request<'_>) -> Result<Outcome, RequestError> {
    let (header, attributes) = request.parse::<HEADER, MAX>(&DUMP, request.validate())?;
    if header[1..].iter().any(|&byte| byte != 0) {
        return Err(refuse("Invalid values in header for nexthop dump request"));
    }
    let index = |kind, message| match attributes.get(kind).map_or(0, |index: Attribute<'_>| index.u32()) {
        index if index > i32::MAX as u32 => Err(refuse(message)),
        index => Ok(index),
    };
    Ok(Outcome::Dump(Box::new(ObjectDump {
        last: 0,
        family: header[0],
        link: index(NHA_OIF, "Invalid device index")?,
        master: index(NHA_MASTER, "Invalid master device index")?,
        // `NHA_FDB` leaves none out: `nh_dump_filtered`.
        groups: attributes.get(NHA_GROUPS).is_some(),
    })))
}

impl Dump for ObjectDump {
    fn next(&mut self, router: &Router, out: &mut Chunk<'_>) -> Result<More, RequestError> {
        let Some((id, object)) = router.routes.objects.after(self.last) else { return Ok(More::No) };
        self.last = id;
        let filtered = self.groups && !matches!(object.kind, Kind::Group(_));
        if object.origin != Origin::Own {
            return Ok(More::Yes); // told by the kernel
        }
        let chosen = match &object.kind {
            Kind::Group(_) => self.link == 0 && self.master == 0 && self.family == 0,
            Kind::Blackhole => {
                self.link <= 1 && self.master == 0 && (self.family == 0 || self.family == object.family)
            }
            Kind::Single(hop) => {
                let master = router.links.get(hop.oif).and_then(|link| link.master);
                (self.family == 0 || self.family == object.family)
                    && (self.link == 0 || self.link == hop.oif)
                    && (self.master == 0 || Some(self.master) == master)
            }
        };
        if chosen && !filtered {
            out.message(RTM_NEWNEXTHOP, |reply| write_object(router, reply, id, object))?;
        }
        Ok(More::Yes)
    }

    fn generation(&self, router: &Router) -> u64 {
        router.routes.objects.generation
    }
}
