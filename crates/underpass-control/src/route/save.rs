//! Routes and next-hop objects as lines.
//!
//! A gateway has to be reachable when its line is run: what needs none comes first, next-hop objects before the routes
//! that use them.

mod encap;

use std::collections::HashSet;
use std::net::IpAddr;

use super::info::{Hop, Info, InfoId, METRICS, NextHops, Origin};
use super::nexthop::Kind;
use super::nexthop::save::save_object;
use super::table::{Family, Place, Prefix, bits};
use crate::Router;
use crate::address::KernelRoute;
use crate::live::RTPROT_RA;
use crate::save::{Save, Words};

use encap::sid_words;
pub(super) use encap::{encap_words, label_stack, seg6_words};

/// What an IPv6 route without a metric has: `IP6_RT_PRIO_USER`.
const METRIC_USER6: u32 = 1024;
/// Names of route metrics, from that of number 2 on, as far as their values are plain numbers: `RTAX_*`.
const METRIC_NAMES: [&str; METRICS] = [
    "",
    "mtu",
    "window",
    "rtt",
    "rttvar",
    "ssthresh",
    "cwnd",
    "advmss",
    "reordering",
    "hoplimit",
    "initcwnd",
    "features",
    "rto_min",
    "initrwnd",
    "quickack",
    "congctl",
    "fastopen_no_cookie",
];

/// By what a route of an address is known: its place, metric, type and link.
type Automatic = (Place, u32, u8, u32);

fn key_of(route: &KernelRoute) -> Automatic {
    let address = route.destination.network();
    let prefix = Prefix::new(bits(address), route.destination.prefix_len());
    ((Family::of(address), route.table, prefix), route.metric, route.kind, route.link)
}

/// The routes to one prefix that have the same metric.
struct Group {
    place: Place,
    ids: Vec<InfoId>,
    /// They need gateways, or next-hop objects that do.
    far: bool,
}

pub(crate) fn save(save: &mut Save<'_>) {
    let router = save.router;
    let mut by_addresses: Vec<&KernelRoute> = router.addresses.kernel_routes().collect();
    let automatic: HashSet<Automatic> = by_addresses.iter().map(|route| key_of(route)).collect();
    let groups = groups(save, &automatic);
    let objects: Vec<u32> = router.routes.objects.ids().filter(|id| keeps_object(save, *id)).collect();
    let (near, far): (Vec<u32>, Vec<u32>) = objects.into_iter().partition(|id| !needs_gateway(router, *id));
    near.into_iter().for_each(|id| save_object(save, id));
    groups.iter().filter(|group| !group.far).for_each(|group| save_group(save, group));
    let (groups_of, single): (Vec<u32>, Vec<u32>) =
        far.into_iter().partition(|id| router.routes.objects.is_group(*id));
    single.into_iter().chain(groups_of).for_each(|id| save_object(save, id));
    groups.iter().filter(|group| group.far).for_each(|group| save_group(save, group));
    // What a request has deleted of the routes that come with addresses.
    by_addresses.retain(|route| !is_there(router, route));
    by_addresses.into_iter().for_each(|route| save_missing(save, route));
}

/// Whether a next-hop object is the router's, or goes with one of its devices.
fn keeps_object(save: &Save<'_>, id: u32) -> bool {
    let Some(object) = save.router.routes.objects.get(id) else { return false };
    if save.elsewhere.object(id) {
        return false;
    }
    object.origin == Origin::Own
        || match &object.kind {
            Kind::Single(hop) => save.router.live.is_some() && save.keeps_on(hop.oif),
            Kind::Blackhole => false,
            Kind::Group(members) => members.iter().any(|(member, _)| keeps_object(save, *member)),
        }
}

fn needs_gateway(router: &Router, id: u32) -> bool {
    match router.routes.objects.get(id).map(|object| &object.kind) {
        Some(Kind::Single(hop)) => hop.gateway.is_some(),
        Some(Kind::Blackhole) | None => false,
        Some(Kind::Group(_)) => true,
    }
}

/// The routes that are saved, in the order of their tables.
fn groups(save: &Save<'_>, automatic: &HashSet<Automatic>) -> Vec<Group> {
    let router = save.router;
    let mut tables: Vec<_> = router.routes.tables.iter().collect();
    // Of tables whose numbers end in the same byte, dumps show the last made first.
    tables.sort_by_key(|((family, id), table)| (*family, id & 255, table.created, *id));
    let mut groups = Vec::new();
    for (&(family, table), routes) in tables {
        for (key, ids) in routes.after(None) {
            let place = (family, table, key.prefix());
            let infos = ids.iter().filter_map(|&id| Some((id, router.routes.infos.get(id)?)));
            let kept: Vec<(InfoId, &Info)> = infos
                .map(|(id, info)| (id, &**info))
                .filter(|(_, info)| keeps(save, automatic, place, info))
                .collect();
            for same in kept.chunk_by(|(_, a), (_, b)| a.metric == b.metric) {
                let far = same.iter().any(|(_, info)| match &info.ways {
                    NextHops::Hops(hops) => hops.iter().any(|hop| hop.gateway.is_some()),
                    NextHops::Object(id) => needs_gateway(router, *id),
                });
                groups.push(Group { place, ids: same.iter().map(|(id, _)| *id).collect(), far });
            }
        }
    }
    groups
}

/// Whether a route is the router's or goes with one of its devices, and does not come by itself.
fn keeps(save: &Save<'_>, automatic: &HashSet<Automatic>, place: Place, info: &Info) -> bool {
    let (family, table, prefix) = place;
    let object = if let NextHops::Object(id) = info.ways { id } else { 0 };
    let goes =
        || info.hops().iter().any(|hop| save.keeps_on(hop.oif)) || object != 0 && keeps_object(save, object);
    let comes_again = matches!(info.protocol, libc::RTPROT_KERNEL | RTPROT_RA);
    if !info.own() && (comes_again || !goes()) {
        return false;
    }
    let link = info.hops().first().map_or(0, |hop| hop.oif);
    if info.protocol == libc::RTPROT_KERNEL && automatic.contains(&(place, info.metric, info.kind, link)) {
        return false;
    }
    !save.elsewhere.route(family.address(prefix.bits), prefix.len, table, info.metric)
}

fn save_group(save: &mut Save<'_>, group: &Group) {
    for (number, id) in group.ids.iter().enumerate() {
        let Some(info) = save.router.routes.infos.get(*id) else { continue };
        if let Some(words) = sid_line(save, group.place, info) {
            save.line(words);
        } else if let Some(words) = route_words(save, group.place, info) {
            let verb = match number {
                0 if info.own() => "add",
                // The kernel may have kept it.
                0 => "replace",
                _ => "append",
            };
            let family = if group.place.0 == Family::V6 { "ip -6" } else { "ip" };
            save.line(Words::new(&format!("{family} route {verb} {words}")));
        }
    }
}

/// The line of a SID for which `ip` has no word, and nothing else that `underpass sid` has none for.
fn sid_line(save: &Save<'_>, place: Place, info: &Info) -> Option<Words> {
    let Info {
        kind: libc::RTN_UNICAST,
        protocol: libc::RTPROT_BOOT,
        scope: _,
        metric,
        preference: 0,
        reject: false,
        source: None,
        metrics: None,
        ways: NextHops::Hops(hops),
        origin: _,
        tos: _,
        unknown: _,
    } = info
    else {
        return None;
    };
    let [Hop { oif, gateway: None, onlink: false, dead: _, weight: 1, tunnel: Some(tunnel) }] = &hops[..]
    else {
        return None;
    };
    let (_, table, _) = place;
    let mut words = Words::new(&format!("underpass sid replace {}", destination(place)));
    words.add_all(&sid_words(save, &tunnel.encap)?).pair("--dev", save.name(*oif));
    words.some("--table", (table != super::config::RT_TABLE_MAIN).then_some(table));
    words.some("--metric", (*metric != METRIC_USER6).then_some(metric));
    Some(words)
}

/// A prefix as `ip` writes it.
fn destination((family, _, prefix): Place) -> String {
    format!("{}/{}", family.address(prefix.bits), prefix.len)
}

/// `type`, unless it is an ordinary route.
pub(super) const fn kind_name(kind: u8) -> Option<&'static str> {
    Some(match kind {
        libc::RTN_UNICAST => "",
        libc::RTN_LOCAL => "local",
        libc::RTN_BROADCAST => "broadcast",
        libc::RTN_ANYCAST => "anycast",
        libc::RTN_MULTICAST => "multicast",
        libc::RTN_BLACKHOLE => "blackhole",
        libc::RTN_UNREACHABLE => "unreachable",
        libc::RTN_PROHIBIT => "prohibit",
        libc::RTN_THROW => "throw",
        _ => return None,
    })
}

/// `proto`: `None` for that of `ip` itself.
pub(super) fn protocol_name(protocol: u8) -> Option<String> {
    match protocol {
        libc::RTPROT_BOOT => None,
        libc::RTPROT_KERNEL => Some("kernel".to_owned()),
        libc::RTPROT_STATIC => Some("static".to_owned()),
        other => Some(other.to_string()),
    }
}

/// The scope that an IPv4 route has if its line has none. iproute2: `iproute_modify`.
fn usual_scope(kind: u8, ways: &NextHops) -> Option<u8> {
    match (kind, ways) {
        (libc::RTN_LOCAL, _) => Some(libc::RT_SCOPE_HOST),
        (libc::RTN_BROADCAST | libc::RTN_MULTICAST | libc::RTN_ANYCAST, _) => Some(libc::RT_SCOPE_LINK),
        (libc::RTN_UNICAST, NextHops::Hops(hops)) => match &hops[..] {
            [Hop { gateway: None, weight: 1, .. }] => Some(libc::RT_SCOPE_LINK),
            _ => Some(libc::RT_SCOPE_UNIVERSE),
        },
        _ => None,
    }
}

/// All of a route behind `add`; `None` if no line says it.
fn route_words(save: &mut Save<'_>, place: Place, info: &Info) -> Option<Words> {
    let (family, table, _) = place;
    let Info {
        kind,
        protocol,
        scope,
        metric,
        preference,
        reject: _,
        source,
        metrics,
        ways,
        origin: _,
        tos: _,
        unknown: _,
    } = info;
    let whole = destination(place);
    let Some(kind_word) = kind_name(*kind) else {
        save.left_out(format!("the route to {whole}: its type has the number {kind}, and no name"));
        return None;
    };
    let mut words = Words::default();
    words.when(!kind_word.is_empty(), kind_word).add(&whole);
    let main = table == super::config::RT_TABLE_MAIN && *kind == libc::RTN_UNICAST;
    words.some("table", (!main).then_some(table));
    words.some("proto", protocol_name(*protocol));
    let needed = family == Family::V4 && super::lookup::type_error(*kind).is_none();
    words.some("scope", (needed && usual_scope(*kind, ways) != Some(*scope)).then_some(scope));
    let usual = if family == Family::V6 { METRIC_USER6 } else { 0 };
    words.some("metric", (*metric != usual).then_some(metric));
    match ways {
        NextHops::Object(id) => {
            words.pair("nhid", id);
        }
        NextHops::Hops(_) if family == Family::V6 && super::lookup::type_error(*kind).is_some() => {}
        NextHops::Hops(hops) => match &hops[..] {
            [hop] if hop.weight == 1 => {
                let of_hop = hop_words(save, family, &whole, hop)?;
                words.add_all(&of_hop);
            }
            hops => {
                options(save, &mut words, &whole, *source, *preference, metrics.as_deref());
                for hop in hops {
                    let of_hop = hop_words(save, family, &whole, hop)?;
                    words.pair("nexthop", of_hop);
                    words.some("weight", (hop.weight != 1).then_some(hop.weight));
                }
                return Some(words);
            }
        },
    }
    options(save, &mut words, &whole, *source, *preference, metrics.as_deref());
    Some(words)
}

/// What a route says besides its ways.
fn options(
    save: &mut Save<'_>,
    words: &mut Words,
    whole: &str,
    source: Option<IpAddr>,
    preference: u8,
    metrics: Option<&[u32; METRICS]>,
) {
    words.some("src", source);
    // ICMPV6_ROUTER_PREF_*: 0 is medium.
    words.some(
        "pref",
        match preference {
            1 => Some("high"),
            3 => Some("low"),
            _ => None,
        },
    );
    let Some(metrics) = metrics else { return };
    let lock = metrics.first().copied().unwrap_or(0);
    for ((name, value), number) in
        METRIC_NAMES.iter().zip(metrics).zip(1..).filter(|((_, value), _)| **value != 0)
    {
        let locked = if lock & 1 << number != 0 { "lock " } else { "" };
        match *name {
            "" => {}
            "features" if *value == 1 => {
                words.pair("features", "ecn");
            }
            "rto_min" => {
                words.pair(name, format_args!("{locked}{value}ms"));
            }
            "features" | "congctl" => save.left_out(format!("{name} of the route to {whole}")),
            name => {
                words.pair(name, format_args!("{locked}{value}"));
            }
        }
    }
}

/// A way; `None` if no line says what it does.
pub(super) fn hop_words(save: &mut Save<'_>, family: Family, whole: &str, hop: &Hop) -> Option<Words> {
    let Hop { oif, gateway, onlink, dead: _, weight: _, tunnel } = hop;
    let mut words = Words::default();
    if let Some(tunnel) = tunnel {
        match encap_words(save, &tunnel.encap) {
            Ok(encap) => {
                words.pair("encap", encap);
            }
            Err(why) => {
                save.left_out(format!("the route to {whole}: {why}"));
                return None;
            }
        }
    }
    match gateway {
        Some(gateway) if Family::of(*gateway) == family => words.pair("via", gateway),
        Some(gateway) => words.pair("via inet6", gateway),
        None => &mut words,
    };
    words.some("dev", (*oif != 0).then(|| save.name(*oif)));
    words.when(*onlink, "onlink");
    Some(words)
}

/// Whether a route that an address has brought is still there.
fn is_there(router: &Router, route: &KernelRoute) -> bool {
    let (place, metric, kind, link) = key_of(route);
    let same = |info: &Info| {
        (info.metric, info.kind) == (metric, kind) && info.hops().iter().any(|hop| hop.oif == link)
    };
    let (family, table, prefix) = place;
    let table = router.routes.tables.get(&(family, table));
    let mut ids = table.into_iter().flat_map(|table| table.get(prefix));
    ids.any(|id| router.routes.infos.get(*id).is_some_and(|info| same(info)))
}

fn save_missing(save: &mut Save<'_>, route: &KernelRoute) {
    let (place, metric, kind, link) = key_of(route);
    let family = if place.0 == Family::V6 { "ip -6" } else { "ip" };
    let mut line = Words::new(&format!("{family} route del"));
    let kind = kind_name(kind).unwrap_or_default();
    line.when(!kind.is_empty(), kind).add(destination(place)).pair("table", route.table);
    line.pair("proto", "kernel").some("metric", (metric != 0).then_some(metric)).pair("dev", save.name(link));
    save.line(line);
}
