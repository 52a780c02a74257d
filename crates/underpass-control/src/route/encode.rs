//! Routes as messages. Linux: `fib_dump_info`, `rt6_fill_node`.

use std::net::IpAddr;

use underpass_netlink::Reply;
use underpass_netlink::seg6local::Counts;

use super::config::{
    RTA_CACHEINFO, RTA_DST, RTA_ENCAP, RTA_ENCAP_TYPE, RTA_GATEWAY, RTA_METRICS, RTA_MULTIPATH, RTA_NH_ID,
    RTA_OIF, RTA_PREF, RTA_PREFSRC, RTA_PRIORITY, RTA_TABLE, RTA_VIA, RTNH_F_DEAD, RTNH_F_LINKDOWN,
    RTNH_F_ONLINK, RouteHeader,
};
use super::info::{Hop, Info, InfoId, METRICS, NextHops};
use super::lookup::{Found, blackhole_object, ways_of};
use super::table::{Family, Place};
use crate::Router;
use crate::events::Cause;

/// `RT_TABLE_COMPAT`: the table's number does not fit the header.
pub(crate) const RT_TABLE_COMPAT: u8 = 252;

/// The header's field for a table.
pub(crate) fn table_byte(table: u32) -> u8 {
    u8::try_from(table).unwrap_or(RT_TABLE_COMPAT)
}

/// Linux: `rtnetlink_put_metrics`.
pub(crate) fn write_metrics(reply: &mut Reply<'_>, metrics: Option<&[u32; METRICS]>) {
    let Some(metrics) = metrics else { return };
    let nest = reply.nest_unflagged(RTA_METRICS);
    for (i, &value) in metrics.iter().enumerate().filter(|(_, value)| **value != 0) {
        reply.u32(i as u16 + 1, value);
    }
    reply.end(nest);
}

/// `RTNH_F_*` of a way. One to an address of the router's own needs no carrier.
fn hop_flags(router: &Router, hop: &Hop, is_local: bool) -> u32 {
    let has_no_carrier = || router.links.get(hop.oif).is_some_and(|link| link.up() && !link.carrier);
    let dead = match hop.dead {
        true => RTNH_F_DEAD | RTNH_F_LINKDOWN,
        false if !is_local && has_no_carrier() => RTNH_F_LINKDOWN,
        false => 0,
    };
    dead | if hop.onlink { RTNH_F_ONLINK } else { 0 }
}

/// By what the kernel finds a route again.
pub(crate) fn write_key(message: &mut Reply<'_>, (family, table, prefix): Place, info: &Info) {
    let header = RouteHeader {
        dst_len: prefix.len,
        table: super::encode::table_byte(table),
        protocol: info.protocol,
        scope: if family == Family::V4 { info.scope } else { 0 },
        kind: info.kind,
        ..RouteHeader::default()
    };
    message.fixed(&header.write(family));
    message.u32(RTA_TABLE, table);
    if prefix.len > 0 {
        message.address(RTA_DST, family.address(prefix.bits));
    }
    if info.metric != 0 {
        message.u32(RTA_PRIORITY, info.metric);
    }
    if let NextHops::Object(id) = info.ways {
        message.u32(RTA_NH_ID, id);
    }
    if let [hop] = info.hops() {
        if hop.oif != 0 {
            message.u32(super::config::RTA_OIF, hop.oif);
        }
        if let Some(gateway) = hop.gateway.filter(|gateway| Family::of(*gateway) == family) {
            message.address(super::config::RTA_GATEWAY, gateway);
        }
    }
}

/// What a SID of a way has counted.
pub(crate) fn route_counts(router: &Router, hop: &Hop) -> Counts {
    let counter = hop.tunnel.as_ref().and_then(|tunnel| tunnel.counter);
    let count = counter.map(|counter| router.engine.count(counter)).unwrap_or_default();
    Counts { packets: count.packets, bytes: count.bytes, errors: count.errors }
}

/// Linux: `fib_nexthop_info`.
pub(crate) fn write_hop(router: &Router, reply: &mut Reply<'_>, family: Family, hop: &Hop, with_oif: bool) {
    match hop.gateway {
        Some(gateway) if Family::of(gateway) == family => reply.address(RTA_GATEWAY, gateway),
        Some(IpAddr::V6(gateway)) => {
            let mut via = (libc::AF_INET6 as u16).to_ne_bytes().to_vec();
            via.extend_from_slice(&gateway.octets());
            reply.attribute(RTA_VIA, &via);
        }
        _ => {}
    }
    if with_oif && hop.oif != 0 {
        reply.u32(RTA_OIF, hop.oif);
    }
    if let Some(tunnel) = &hop.tunnel {
        tunnel.encap.write(reply, RTA_ENCAP, RTA_ENCAP_TYPE, route_counts(router, hop));
    }
}

/// Writes the ways of a route behind the rest of it; returns the flags for its header. `listed`: a single way is
/// written as one of many, too.
fn write_ways(
    router: &Router,
    reply: &mut Reply<'_>,
    family: Family,
    (hops, listed): (&[Hop], bool),
    is_local: bool,
) -> u32 {
    if listed || hops.len() > 1 {
        let nest = reply.nest_unflagged(RTA_MULTIPATH);
        for hop in hops {
            let start = reply.len();
            let mut fixed = [0; 8];
            fixed[2] = hop_flags(router, hop, is_local) as u8;
            // As in Linux, what is shown of a weight above 256 is its lowest 8 bits.
            fixed[3] = (hop.weight - 1) as u8;
            fixed[4..].copy_from_slice(&hop.oif.to_ne_bytes());
            reply.fixed(&fixed);
            write_hop(router, reply, family, hop, false);
            let len = (reply.len() - start) as u16;
            reply.fill(start, &len.to_ne_bytes());
        }
        reply.end(nest);
        return 0;
    }
    hops.iter().for_each(|hop| write_hop(router, reply, family, hop, true));
    hops.first().map_or(0, |hop| hop_flags(router, hop, is_local))
}

/// Writes a route, or IPv6 routes that are used together.
pub(crate) fn write_route(router: &Router, reply: &mut Reply<'_>, key: Place, ids: &[InfoId], flags: u32) {
    let (family, table, prefix) = key;
    let infos: Vec<&Info> = ids.iter().filter_map(|&id| Some(&**router.routes.infos.get(id)?)).collect();
    let Some(info) = infos.first() else { return };
    let header = reply.len();
    let mut fixed = RouteHeader {
        dst_len: prefix.len,
        table: table_byte(table),
        protocol: info.protocol,
        scope: info.scope,
        kind: info.kind,
        flags,
        ..RouteHeader::default()
    };
    if blackhole_object(router, info) {
        fixed.kind = libc::RTN_BLACKHOLE;
    }
    reply.fixed(&fixed.write(family));
    reply.u32(RTA_TABLE, table);
    if prefix.len > 0 {
        reply.address(RTA_DST, family.address(prefix.bits));
    }
    match family {
        Family::V4 => {
            if info.metric != 0 {
                reply.u32(RTA_PRIORITY, info.metric);
            }
            write_metrics(reply, info.metrics.as_deref());
            if let Some(source) = info.source {
                reply.address(RTA_PREFSRC, source);
            }
        }
        Family::V6 => {
            if let Some(source) = info.source {
                reply.address(RTA_PREFSRC, source);
            }
            write_metrics(reply, info.metrics.as_deref());
            reply.u32(RTA_PRIORITY, info.metric);
        }
    }
    let mut listed = false;
    if let super::info::NextHops::Object(id) = info.ways {
        reply.u32(RTA_NH_ID, id);
        // Linux: `rt6_fill_node_nexthop`.
        listed = family == Family::V6 && router.routes.objects.is_group(id);
    }
    let is_local = matches!(info.kind, libc::RTN_LOCAL | libc::RTN_ANYCAST);
    let hops: Vec<Hop> = infos.iter().flat_map(|info| ways_of(router, info).into_owned()).collect();
    fixed.flags |= write_ways(router, reply, family, (&hops, listed), is_local);
    if family == Family::V6 {
        write_tail6(reply, info, 0);
    }
    let written = fixed.write(family);
    reply.fill(header, &written);
}

/// `RTA_CACHEINFO` and `RTA_PREF`, which end every IPv6 route.
pub(crate) fn write_tail6(reply: &mut Reply<'_>, info: &Info, errno: i32) {
    let mut cache_info = [0; 32];
    cache_info[12..16].copy_from_slice(&(-errno).to_ne_bytes());
    reply.attribute(RTA_CACHEINFO, &cache_info);
    reply.u8(RTA_PREF, info.preference);
}

/// The way that a look-up found.
pub(crate) fn found_hop(router: &Router, found: &Found) -> Option<Hop> {
    let info = router.routes.infos.get(found.id)?;
    ways_of(router, info).get(found.way).cloned()
}

/// Notifies listeners of a change of routes.
pub(crate) fn notify_route(
    router: &mut Router,
    cause: Cause,
    kind: u16,
    flags: u16,
    key: Place,
    ids: &[InfoId],
) {
    let group = match key.0 {
        Family::V4 => libc::RTNLGRP_IPV4_ROUTE,
        Family::V6 => libc::RTNLGRP_IPV6_ROUTE,
    };
    let own = |&id: &InfoId| router.routes.infos.get(id).is_some_and(|info| info.own());
    if !router.events.heard(cause, group) || !ids.iter().any(own) {
        return;
    }
    let mut events = std::mem::take(&mut router.events);
    events.notify(cause, group, kind, flags, |reply| write_route(router, reply, key, ids, 0));
    router.events = events;
}
