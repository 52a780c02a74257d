//! Requests for routes. Linux: `net/ipv4/fib_semantics.c`, `net/ipv6/route.c`.

#![expect(
    clippy::indexing_slicing,
    reason = "places in lists of the model, found in the same step and not read from a request"
)]

use std::net::IpAddr;

use libc::{EEXIST, EINVAL, ENOENT, ESRCH};
use netlink_packet_core::{NLM_F_APPEND, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use underpass_netlink::RequestError;

use super::change::{
    add6, displace, duplicate6, ids_at, put_route, refuses6, same, siblings, table_mut, take_route,
    take_routes, with_counters,
};
use super::check::{Owner, check_argument, check_hop4, check_hop6, check_tunnel};
use super::config::{
    Config, HopConfig, RT_TABLE_LOCAL, RT_TABLE_MAIN, RTNH_F_DEAD, RTNH_F_LINKDOWN, metrics,
};
use super::encode::{notify_route, write_key};
use super::info::{Hop, Info, InfoId, NextHops, Origin};
use super::lookup::{address_type4, l3mdev_table, own_address6, type_error};
use super::owner::replaces_own;
use super::table::{Family, Ids, Place};
use crate::dump::Outcome;
use crate::events::Cause;
use crate::link::LOOPBACK;
use crate::{Request, Router};

const RT_SCOPE_HOST: u8 = libc::RT_SCOPE_HOST;

/// `IP6_RT_PRIO_USER`.
const METRIC_USER6: u32 = 1024;

/// `RTM_NEWROUTE`.
pub(crate) fn new(
    router: &mut Router,
    request: &Request<'_>,
    family: Family,
) -> Result<Outcome, RequestError> {
    let config = Config::parse(request, family)?;
    if replaces_own(router, request, &config, family)? {
        return Ok(Outcome::Done);
    }
    let cause = Cause::from(request);
    let flags = request.message.flags;
    match family {
        Family::V4 => insert_route4(router, cause, flags, &config)?,
        Family::V6 => insert_route6(router, cause, flags, config)?,
    }
    Ok(Outcome::Done)
}

/// `RTM_DELROUTE`.
pub(crate) fn delete(
    router: &mut Router,
    request: &Request<'_>,
    family: Family,
) -> Result<Outcome, RequestError> {
    let config = Config::parse(request, family)?;
    if config.nh_id != 0 && router.routes.objects.get(config.nh_id).is_none() {
        return Err(RequestError::new(EINVAL, "Nexthop id does not exist"));
    }
    if !router.routes.tables.contains_key(&(family, config.table)) {
        return Err(RequestError::new(ESRCH, "FIB table does not exist"));
    }
    let cause = Cause::from(request);
    match family {
        Family::V4 => delete_route4(router, cause, &config)?,
        Family::V6 => delete_route6(router, cause, &config)?,
    }
    Ok(Outcome::Done)
}

const fn refuse(message: &'static str) -> RequestError {
    RequestError::new(EINVAL, message)
}

/// The narrowest scope that a route of a type may have. Linux: `fib_props`.
const fn widest_scope(kind: u8) -> u8 {
    match kind {
        libc::RTN_LOCAL => RT_SCOPE_HOST,
        libc::RTN_BROADCAST | libc::RTN_ANYCAST => libc::RT_SCOPE_LINK,
        libc::RTN_UNSPEC | libc::RTN_NAT | libc::RTN_XRESOLVE => libc::RT_SCOPE_NOWHERE,
        _ => libc::RT_SCOPE_UNIVERSE,
    }
}

/// Linux: `fib_create_info`.
fn info4(router: &mut Router, config: &Config<'_>) -> Result<Info, RequestError> {
    if widest_scope(config.kind) > config.scope {
        return Err(refuse("Invalid scope"));
    }
    if config.hop.flags & (RTNH_F_DEAD | RTNH_F_LINKDOWN) != 0 {
        return Err(refuse("Invalid rtm_flags - can not contain DEAD or LINKDOWN"));
    }
    if config.nh_id != 0 && router.routes.objects.get(config.nh_id).is_none() {
        return Err(refuse("Nexthop id does not exist"));
    }
    if config.multipath.as_ref().is_some_and(Vec::is_empty) {
        return Err(refuse("Invalid nexthop configuration - no valid nexthops"));
    }
    let metrics = metrics(config.metrics)?;
    let ways = ways4(router, config)?;
    if let Some(IpAddr::V4(source)) = config.source
        && !valid_source4(router, config, source)
    {
        return Err(refuse("Invalid prefsrc address"));
    }
    Ok(Info {
        kind: config.kind,
        protocol: config.protocol,
        scope: config.scope,
        metric: config.metric,
        preference: 0,
        reject: false,
        source: config.source,
        metrics,
        ways,
        origin: Origin::Own,
        tos: 0,
        unknown: 0,
    })
}

fn ways4(router: &mut Router, config: &Config<'_>) -> Result<NextHops, RequestError> {
    if type_error(config.kind).is_some() {
        if config.hop.gateway.is_some() || config.hop.oif != 0 || config.multipath.is_some() {
            let message = "Gateway, device and multipath can not be specified for this route type";
            return Err(refuse(message));
        }
        return Ok(if config.nh_id != 0 {
            NextHops::Object(config.nh_id)
        } else {
            NextHops::Hops(Box::default())
        });
    }
    if !matches!(config.kind, libc::RTN_UNICAST..=libc::RTN_MULTICAST) {
        return Err(refuse("Invalid route type"));
    }
    if config.scope > RT_SCOPE_HOST {
        return Err(refuse("Invalid scope"));
    }
    if config.nh_id != 0 {
        router.routes.objects.check4(config.nh_id, config.scope)?;
        return Ok(NextHops::Object(config.nh_id));
    }
    let single = std::slice::from_ref(&config.hop);
    let hops = config.multipath.as_deref().unwrap_or(single);
    if config.scope == RT_SCOPE_HOST {
        let [hop] = hops else {
            return Err(refuse("Route with host scope can not have multiple nexthops"));
        };
        if hop.gateway.is_some() {
            return Err(refuse("Route with host scope can not have a gateway"));
        }
        let tunnel = check_tunnel(router, hop, Family::V4)?;
        if router.links.get(hop.oif).is_none() {
            return Err(RequestError::errno(libc::ENODEV));
        }
        let hop = Hop { oif: hop.oif, gateway: None, onlink: false, dead: false, weight: 1, tunnel };
        return Ok(NextHops::Hops(Box::new([hop])));
    }
    let owner = Owner { table: config.table, scope: config.scope, kind: config.kind, loopback: false };
    let hops = hops.iter().map(|hop| check_hop4(router, owner, hop)).collect::<Result<_, _>>()?;
    Ok(NextHops::Hops(hops))
}

/// Linux: `fib_valid_prefsrc`.
fn valid_source4(router: &Router, config: &Config<'_>, source: std::net::Ipv4Addr) -> bool {
    let own = super::table::bits(source.into());
    if config.kind == libc::RTN_LOCAL && config.prefix.bits == own {
        return true;
    }
    let table = if config.table == RT_TABLE_MAIN { RT_TABLE_LOCAL } else { config.table };
    [table, RT_TABLE_LOCAL].into_iter().any(|table| address_type4(router, source, table) == libc::RTN_LOCAL)
}

fn insert_route4(
    router: &mut Router,
    cause: Cause,
    flags: u16,
    config: &Config<'_>,
) -> Result<(), RequestError> {
    let info = info4(router, config)?;
    let key = (Family::V4, config.table, config.prefix);
    let ids = ids_at(router, key);
    let metric = |id: InfoId| router.routes.infos.get(id).map_or(0, |info| info.metric);
    let begin = ids.iter().take_while(|&&id| metric(id) < info.metric).count();
    let end = begin + ids[begin..].iter().take_while(|&&id| metric(id) == info.metric).count();
    let equal = |&id: &InfoId| router.routes.infos.get(id).is_some_and(|old| same(old, &info));
    let found = ids[begin..end].iter().position(equal);
    let mut said = NLM_F_EXCL;
    let mut position = begin;
    if begin < end {
        if flags & NLM_F_EXCL != 0 {
            return Err(RequestError::errno(EEXIST));
        }
        said = 0;
        match found {
            Some(0) if flags & NLM_F_REPLACE != 0 => return Ok(()),
            Some(_) => return Err(RequestError::errno(EEXIST)),
            None if flags & NLM_F_REPLACE != 0 => {
                if let Some(old) = router.routes.infos.get(ids[begin]).cloned() {
                    displace(router, key, &old);
                }
                let info = with_counters(router, info);
                let id = put_route(router, key, Some(begin), begin, info);
                notify_route(router, cause, libc::RTM_NEWROUTE, NLM_F_REPLACE, key, &[id]);
                return Ok(());
            }
            None if flags & NLM_F_APPEND != 0 => {
                said |= NLM_F_APPEND;
                position = end;
            }
            None => {}
        }
    }
    if flags & NLM_F_CREATE == 0 {
        return Err(RequestError::errno(ENOENT));
    }
    let info = with_counters(router, info);
    let id = put_route(router, key, None, position, info);
    notify_route(router, cause, libc::RTM_NEWROUTE, said | NLM_F_CREATE, key, &[id]);
    Ok(())
}

fn delete_route4(router: &mut Router, cause: Cause, config: &Config<'_>) -> Result<(), RequestError> {
    let key = (Family::V4, config.table, config.prefix);
    let position = match4(router, key, config)?.ok_or(RequestError::errno(ESRCH))?;
    let ids = ids_at(router, key);
    notify_route(router, cause, libc::RTM_DELROUTE, 0, key, &[ids[position]]);
    take_route(router, key, position);
    Ok(())
}

/// The position of the route that a deletion means.
pub(crate) fn match4(
    router: &Router,
    key: Place,
    config: &Config<'_>,
) -> Result<Option<usize>, RequestError> {
    let ids = ids_at(router, key);
    let wanted_metrics = metrics(config.metrics)?;
    let matches = |&id: &InfoId| {
        let Some(info) = router.routes.infos.get(id) else { return false };
        is_clients(router, info)
            && (config.kind == 0 || info.kind == config.kind)
            && (config.scope == libc::RT_SCOPE_NOWHERE || info.scope == config.scope)
            && (config.source.is_none() || info.source == config.source)
            && (config.protocol == 0 || info.protocol == config.protocol)
            && (config.metric == 0 || info.metric == config.metric)
            && ways_match4(router, config, info)
            && wanted_metrics.as_ref().is_none_or(|wanted| {
                let has = info.metrics.as_deref().copied().unwrap_or_default();
                wanted.iter().zip(has).all(|(&wanted, has)| wanted == 0 || wanted == has)
            })
    };
    Ok(ids.iter().position(matches))
}

/// Linux: `fib_nh_match`.
fn ways_match4(router: &Router, config: &Config<'_>, info: &Info) -> bool {
    let hops = match &info.ways {
        NextHops::Object(id) if config.nh_id != 0 => return *id == config.nh_id,
        NextHops::Object(_) => {
            return config.hop.oif == 0 && config.hop.gateway.is_none() && config.multipath.is_none();
        }
        NextHops::Hops(_) if config.nh_id != 0 => return false,
        NextHops::Hops(hops) => hops,
    };
    let fits = |wanted: &HopConfig<'_>, hop: &Hop| {
        (wanted.oif == 0 || wanted.oif == hop.oif)
            && (wanted.gateway.is_none() || wanted.gateway == hop.gateway)
    };
    if config.hop.oif != 0 || config.hop.gateway.is_some() {
        let Some(hop) = hops.first() else { return false };
        let encapsulated = match check_tunnel(router, &config.hop, Family::V4) {
            Ok(None) => true,
            Ok(Some(wanted)) => hop.encap().is_some_and(|encap| encap.is_like(&wanted.encap)),
            Err(_) => false,
        };
        return encapsulated && fits(&config.hop, hop);
    }
    match &config.multipath {
        None => true,
        Some(wanted) => {
            let same_weight = |w: &HopConfig<'_>, h: &Hop| w.weight <= 1 || w.weight == h.weight;
            wanted.len() == hops.len()
                && wanted.iter().zip(hops.iter()).all(|(w, h)| same_weight(w, h) && fits(w, h))
        }
    }
}

/// Linux: `ip6_route_info_create`.
fn info6(router: &mut Router, config: &Config<'_>, hop: &HopConfig<'_>) -> Result<Info, RequestError> {
    let object = match config.nh_id {
        0 => None,
        id => Some(router.routes.objects.check6(id)?),
    };
    // Linux makes the table before it looks at the rest, and keeps it where it refuses the route.
    table_mut(router, Family::V6, config.table);
    let metrics = metrics(config.metrics)?;
    let host = config.prefix.len == 128 && config.prefix.bits == 1;
    let owner = Owner { table: config.table, scope: 0, kind: config.kind, loopback: host };
    let (ways, reject) = match object {
        Some(()) => (NextHops::Object(config.nh_id), type_error(config.kind).is_some()),
        None => {
            let (hop, reject) = check_hop6(router, owner, hop)?;
            (NextHops::Hops(Box::new([hop])), reject)
        }
    };
    if let NextHops::Hops(hops) = &ways {
        hops.iter().try_for_each(|hop| check_argument(hop, Some(config.prefix.len)))?;
    }
    if let Some(IpAddr::V6(source)) = config.source {
        let first = match &ways {
            NextHops::Hops(hops) => hops.first().map(|hop| hop.oif),
            NextHops::Object(id) => router.routes.objects.ways(*id).first().map(|hop| hop.oif),
        };
        let table = first.and_then(|link| l3mdev_table(router, link)).unwrap_or(RT_TABLE_LOCAL);
        if !own_address6(router, source, table, None) {
            return Err(refuse("Invalid source address"));
        }
    }
    Ok(Info {
        kind: if config.kind == 0 { libc::RTN_UNICAST } else { config.kind },
        protocol: if config.protocol == 0 { libc::RTPROT_BOOT } else { config.protocol },
        scope: 0,
        metric: config.metric,
        preference: config.preference,
        reject,
        source: config.source,
        metrics,
        ways,
        origin: Origin::Own,
        tos: 0,
        unknown: 0,
    })
}

fn insert_route6(
    router: &mut Router,
    cause: Cause,
    mut flags: u16,
    mut config: Config<'_>,
) -> Result<(), RequestError> {
    if config.metric == 0 {
        config.metric = METRIC_USER6;
    }
    let key = (Family::V6, config.table, config.prefix);
    let Some(hops) = config.multipath.take() else {
        let info = info6(router, &config, &config.hop)?;
        let (id, said) = add6(router, flags, key, info)?;
        let whole = siblings(router, key, id);
        notify_route(router, cause, libc::RTM_NEWROUTE, said, key, &whole);
        return Ok(());
    };
    let mut infos: Vec<Info> = Vec::new();
    for hop in &hops {
        // Linux lets RTA_OIF, RTA_GATEWAY and RTA_ENCAP beside RTA_MULTIPATH stand in for what a
        // next hop lacks.
        let mut hop = hop.clone();
        hop.flags |= config.hop.flags;
        if hop.oif == 0 {
            hop.oif = config.hop.oif;
        }
        hop.gateway = hop.gateway.or(config.hop.gateway);
        hop.encap = hop.encap.or(config.hop.encap);
        let info = info6(router, &config, &hop)?;
        if !info.spreads() {
            let message = "Device only routes can not be added for IPv6 using the multipath API.";
            return Err(refuse(message));
        }
        if infos.iter().any(|other| duplicate6(other, &info)) {
            return Err(RequestError::errno(EEXIST));
        }
        infos.push(info);
    }
    let Some(first) = infos.first() else {
        return Err(refuse("Invalid nexthop configuration - no valid nexthops"));
    };
    // All that can refuse one of them is asked before the first is added.
    refuses6(router, flags, key, first)?;
    if flags & NLM_F_REPLACE == 0 {
        infos.iter().skip(1).try_for_each(|info| refuses6(router, flags & !NLM_F_EXCL, key, info))?;
    }
    let (mut first, mut said) = (None, 0);
    for info in infos {
        let (id, told) = add6(router, flags, key, info)?;
        if first.is_none() {
            (first, said) = (Some(id), told);
        }
        flags = flags & !(NLM_F_EXCL | NLM_F_REPLACE) | NLM_F_CREATE;
    }
    if let Some(id) = first {
        let whole = siblings(router, key, id);
        notify_route(router, cause, libc::RTM_NEWROUTE, said, key, &whole);
    }
    Ok(())
}

fn delete_route6(router: &mut Router, cause: Cause, config: &Config<'_>) -> Result<(), RequestError> {
    let key = (Family::V6, config.table, config.prefix);
    if let Some(hops) = &config.multipath {
        let mut outcome = Ok(());
        for hop in hops {
            let kernels = match6(router, key, config, hop).is_none() && router.live.is_some();
            let gone = match kernels {
                true => delete6_kernels(router, key, config, hop),
                false => delete6_one(router, cause, key, config, hop, false),
            };
            if gone.is_err() {
                outcome = gone;
            }
        }
        return outcome;
    }
    delete6_one(router, cause, key, config, &config.hop, true)
}

/// Of a route with several next hops, what the kernel has of them is deleted there.
fn delete6_kernels(
    router: &mut Router,
    key: Place,
    config: &Config<'_>,
    hop: &HopConfig<'_>,
) -> Result<(), RequestError> {
    let ids = ids_at(router, key);
    let infos = ids.iter().filter_map(|&id| router.routes.infos.get(id));
    let kernels = infos.filter(|info| !info.own()).find(|info| matches6(info, config, hop)).cloned();
    let info = kernels.ok_or(RequestError::errno(ESRCH))?;
    router.request_kernel(libc::RTM_DELROUTE, 0, |message| write_key(message, key, &info))
}

fn delete6_one(
    router: &mut Router,
    cause: Cause,
    key: Place,
    config: &Config<'_>,
    hop: &HopConfig<'_>,
    all: bool,
) -> Result<(), RequestError> {
    let ids = ids_at(router, key);
    let position = match6(router, key, config, hop).ok_or_else(|| {
        // Linux: what stands for no default route, by `lo`, is no route to delete.
        let null = config.prefix.len == 0 && ids.is_empty() && config.nh_id == 0;
        let all = config.metric == 0 && config.protocol == 0 && hop.gateway.is_none();
        RequestError::errno(if null && all && matches!(hop.oif, 0 | LOOPBACK) { ENOENT } else { ESRCH })
    })?;
    let gone = match hop.gateway {
        None if all => siblings(router, key, ids[position]),
        _ => Ids::from_slice(&[ids[position]]),
    };
    notify_route(router, cause, libc::RTM_DELROUTE, 0, key, &gone);
    take_routes(router, cause, key, false, |id| gone.contains(id));
    Ok(())
}

/// The position of the route that a deletion means.
pub(crate) fn match6(router: &Router, key: Place, config: &Config<'_>, hop: &HopConfig<'_>) -> Option<usize> {
    let info = |id: &InfoId| router.routes.infos.get(*id);
    let matches =
        |id: &InfoId| info(id).is_some_and(|info| is_clients(router, info) && matches6(info, config, hop));
    ids_at(router, key).iter().position(matches)
}

/// Linux: `ip6_route_del`.
fn matches6(info: &Info, config: &Config<'_>, hop: &HopConfig<'_>) -> bool {
    if config.metric != 0 && config.metric != info.metric
        || config.protocol != 0 && config.protocol != info.protocol
    {
        return false;
    }
    match &info.ways {
        NextHops::Object(id) => config.nh_id == 0 || config.nh_id == *id,
        NextHops::Hops(_) if config.nh_id != 0 => false,
        NextHops::Hops(hops) => hops.first().is_none_or(|own| {
            (hop.oif == 0 || hop.oif == own.oif) && (hop.gateway.is_none() || hop.gateway == own.gateway)
        }),
    }
}

/// Whether requests of clients may touch a route: beside a kernel only the router's own.
pub(crate) fn is_clients(router: &Router, info: &Info) -> bool {
    router.live.is_none() || info.own()
}
