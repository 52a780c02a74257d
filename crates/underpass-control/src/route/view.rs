//! Routes, for those outside who want to look at them.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use underpass_engine::counters::Count;
use underpass_netlink::Encap;

use super::info::{Hop, Info, InfoId, NextHops};
use super::lookup::ways_of;
use super::save::{hop_words, kind_name, protocol_name, seg6_words};
use super::table::{Family, Key};
use crate::Router;
use crate::save::Save;

/// A route of the model.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Route {
    /// Its destination.
    pub destination: IpNet,
    /// Its table.
    pub table: u32,
    /// `RTN_*`.
    pub kind: u8,
    /// `RTPROT_*`.
    pub protocol: u8,
    /// `metric`.
    pub metric: u32,
    /// `src`.
    pub source: Option<IpAddr>,
    /// Links and gateways of its ways. A route of IPv6 that spreads is one for each way.
    pub ways: Vec<(u32, Option<IpAddr>)>,
    /// `nhid`; 0 for none.
    pub object: u32,
    /// Whether it is the router's own, and not the kernel's.
    pub own: bool,
}

/// All routes, by family and table, in the order of a dump.
pub fn routes(router: &Router) -> impl Iterator<Item = Route> + '_ {
    let tables = router.routes.tables.iter();
    tables.flat_map(move |(&(family, table), routes)| {
        routes.after(None).flat_map(move |(key, ids)| {
            let prefix = key.prefix();
            let infos = ids.iter().filter_map(|&id| router.routes.infos.get(id));
            infos.filter_map(move |info| {
                Some(Route {
                    destination: IpNet::new(family.address(prefix.bits), prefix.len).ok()?,
                    table,
                    kind: info.kind,
                    protocol: info.protocol,
                    metric: info.metric,
                    source: info.source,
                    ways: ways_of(router, info).iter().map(|hop| (hop.oif, hop.gateway)).collect(),
                    object: if let NextHops::Object(id) = info.ways { id } else { 0 },
                    own: info.own(),
                })
            })
        })
    })
}

/// A route in words.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RouteWords {
    /// Its destination.
    pub destination: String,
    /// Its table.
    pub table: u32,
    /// `blackhole`, `local` …; empty for an ordinary route.
    pub kind: &'static str,
    /// As `proto` of `ip`; empty for the one that `ip` gives.
    pub protocol: String,
    /// `metric`.
    pub metric: u32,
    /// What `ip` writes behind its destination, for each of its ways.
    pub ways: Vec<String>,
}

/// Routes in words, as many as were wanted.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RoutesInWords {
    /// Those that put headers before their packets, or into them: SRv6 policies, labels, tunnels.
    pub headends: Vec<RouteWords>,
    /// How many headends there are besides.
    pub more_headends: usize,
    /// Ordinary routes, without those of the router's own addresses.
    pub routes: Vec<RouteWords>,
    /// How many prefixes all tables together have.
    pub prefixes: usize,
}

/// What an SRv6 policy has counted: routes with the same segments, together.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PolicyCount {
    /// What `ip route` writes behind `encap`.
    pub encap: String,
    /// Packets that got its headers, their bytes as they came, and packets that could not go on.
    pub count: Count,
}

/// Every SRv6 policy with what it has counted, by its words.
pub fn policy_counts(router: &Router) -> Vec<PolicyCount> {
    let policies = router.routes.compiled.policies.iter().map(|(seg6, counter)| {
        let encap = seg6_words(seg6).map_or_else(|why| format!("seg6: {why}"), |words| words.to_string());
        PolicyCount { encap, count: router.engine.count(counter) }
    });
    let mut policies: Vec<_> = policies.collect();
    policies.sort_by(|one, other| one.encap.cmp(&other.encap));
    policies
}

/// Routes in words: `most` headends, and `most` others that do not lead to the router itself.
pub fn routes_in_words(router: &Router, most: usize) -> RoutesInWords {
    let puts_headers = |hop: &Hop| hop.encap().is_some_and(|encap| !matches!(encap, Encap::Seg6Local(_)));
    // Which routes are headends is found among what routes have in common.
    let infos = router.routes.infos.iter();
    let headends: BTreeSet<InfoId> =
        infos.filter(|(_, info)| ways_of(router, info).iter().any(puts_headers)).map(|(id, _)| id).collect();
    let own = |info: &Info| {
        matches!(info.kind, libc::RTN_LOCAL | libc::RTN_BROADCAST | libc::RTN_ANYCAST | libc::RTN_MULTICAST)
    };
    let mut save = Save::new(router, &());
    let mut told = RoutesInWords::default();
    for (&(family, table), routes) in &router.routes.tables {
        told.prefixes += routes.prefixes();
        for (key, ids) in routes.after(None) {
            if told.routes.len() >= most && headends.is_empty() {
                break;
            }
            for id in ids {
                let Some(info) = router.routes.infos.get(*id) else { continue };
                let headend = headends.contains(id);
                if headend && told.headends.len() >= most {
                    told.more_headends += 1;
                } else if headend {
                    told.headends.push(words(&mut save, (family, table, key), info));
                } else if told.routes.len() < most && !own(info) {
                    told.routes.push(words(&mut save, (family, table, key), info));
                }
            }
        }
    }
    told
}

fn words(save: &mut Save<'_>, (family, table, key): (Family, u32, Key), info: &Info) -> RouteWords {
    let prefix = key.prefix();
    let destination = format!("{}/{}", family.address(prefix.bits), prefix.len);
    let ways = ways_of(save.router, info);
    let ways = ways.iter().map(|hop| {
        let words = hop_words(save, family, &destination, hop);
        words.map_or_else(|| "encap that `ip` has no words for".to_owned(), |words| words.to_string())
    });
    RouteWords {
        ways: ways.filter(|words| !words.is_empty()).collect(),
        table,
        kind: kind_name(info.kind).unwrap_or("unknown"),
        protocol: protocol_name(info.protocol).unwrap_or_default(),
        metric: info.metric,
        destination,
    }
}
