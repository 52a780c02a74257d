//! Which rules and tables a packet is looked up in: the scope of a look-up.

use std::net::IpAddr;

use underpass_engine::tables::{ActionId, LinkId, LookupId};

use super::config::{RT_TABLE_DEFAULT, RT_TABLE_LOCAL, RT_TABLE_MAIN};
use super::egress::egress_of;
use super::info::Info;
use super::lookup::ways_of;
use super::published::{Egress, Fib, FibId, RuleLinks, Scope};
use super::rule::{self, Rule};
use super::table::{Family, Ids};
use crate::link::LOOPBACK;
use crate::{Device, Router};

/// How tables that are looked up one after the other are merged. The local table goes with the table
/// behind it; `main` and `default` behind a VRF's table use the merger that packets of no VRF use: the
/// local table has no route then.
pub(super) fn groups(family: Family, tables: &[u32]) -> Vec<Vec<u32>> {
    let standard: &[u32] = match family {
        Family::V4 => &[RT_TABLE_LOCAL, RT_TABLE_MAIN, RT_TABLE_DEFAULT],
        Family::V6 => &[RT_TABLE_LOCAL, RT_TABLE_MAIN],
    };
    match tables.strip_suffix(standard.get(1..).unwrap_or_default()) {
        Some([RT_TABLE_LOCAL]) => vec![standard.to_vec()],
        Some([RT_TABLE_LOCAL, vrf]) => vec![vec![RT_TABLE_LOCAL, *vrf], standard.to_vec()],
        _ => tables.iter().map(|&table| vec![table]).collect(),
    }
}

/// The scope in which routes of a table look up what they lead to.
pub(crate) fn scope_of_table(router: &Router, table: u32) -> Scope {
    let vrf = router.links.vrf_with_table(table);
    Scope::Rules { link: 0, vrf: vrf.map(|_| table) }
}

pub(super) fn scope_of_link(router: &Router, link: u32, vrf: Option<u32>) -> Scope {
    let names = [Family::V4, Family::V6].map(|family| ingress_name(router, family, link, vrf));
    // Packets that have only been looked up anew in a VRF come from its device.
    let vrf_name = ingress_name(router, Family::V4, 0, vrf);
    let named = |rule: &Rule| names.iter().chain([&vrf_name]).flatten().any(|name| rule.iif == *name);
    let named =
        [Family::V4, Family::V6].into_iter().any(|family| router.routes.rules.of(family).iter().any(named));
    let door = router.is_host_door(link) && leaves_rules_to_kernel(router);
    Scope::Rules { link: if named || door { link } else { 0 }, vrf }
}

/// Whether there is a rule of the kernel's that packets are handed over for.
fn leaves_rules_to_kernel(router: &Router) -> bool {
    let left = |rule: &Rule| rule.action == rule::HAND_OVER;
    [Family::V4, Family::V6].into_iter().any(|family| router.routes.rules.of(family).iter().any(left))
}

/// The link that rules take packets of a link to come from; 0: those that are looked up anew, in a VRF, if in one. In a
/// VRF IPv6 packets come from its device, IPv4 packets from the link itself. Linux: `vrf_ip6_rcv`, `vrf_ip_rcv`.
fn ingress_name(router: &Router, family: Family, link: u32, vrf: Option<u32>) -> Option<&str> {
    let device = || router.links.vrf_with_table(vrf?);
    let found = match (family, link) {
        (_, 0) => device(),
        (Family::V6, link) if link != LOOPBACK && vrf.is_some() => device(),
        (_, link) => router.links.get(link),
    };
    found.map(|link| link.name.as_str())
}

/// The rules that a packet of these links may match, with the tables of those that look up.
pub(super) fn rule_steps(
    router: &Router,
    family: Family,
    (link, back): RuleLinks,
    vrf: Option<u32>,
) -> Vec<(Rule, u32)> {
    let rules = router.routes.rules.of(family);
    let name = ingress_name(router, family, link, vrf);
    let out = back.and_then(|back| router.links.get(back)).map(|link| link.name.as_str());
    let is_goto = |rule: &Rule| rule.action == rule::FR_ACT_GOTO;
    let chosen = rules.iter().any(|rule| is_goto(rule) && !rule.matches_all());
    let mut steps = Vec::new();
    let mut position = 0;
    // What the kernel sends has passed its rules.
    let passed = |rule: &Rule| rule.action == rule::HAND_OVER && router.is_host_door(link);
    while let Some(rule) = rules.get(position) {
        position += 1;
        if passed(rule) {
            continue;
        }
        // A packet that is forwarded has no outgoing link yet, and comes from one that is not `lo`: what the router
        // sends itself does.
        let is = |named: &str, name: Option<&str>| named.is_empty() || Some(named) == name;
        let fits = is(&rule.iif, name) && is(&rule.oif, out);
        let mut rule = rule.clone();
        if !fits {
            if !rule.invert {
                continue;
            }
            rule = rule.without_selectors();
        }
        if is_goto(&rule) {
            let target = rules.partition_point(|other| other.priority < rule.target);
            // Linux passes over a `goto` to a rule that is not there.
            if rules.get(target).is_none_or(|other| other.priority != rule.target) {
                continue;
            }
            if chosen {
                steps.push((rule, 0));
            } else {
                position = target;
            }
            continue;
        }
        let table = match rule.l3mdev {
            false => rule.table,
            true => match vrf {
                Some(table) => table,
                None => continue,
            },
        };
        steps.push((rule, table));
    }
    steps
}

pub(super) fn find_fib(
    router: &Router,
    family: Family,
    tables: &[u32],
    (suppress, egress): (Option<u8>, Option<Egress>),
) -> Option<FibId> {
    let same = |fib: &&Fib| {
        (fib.family, &*fib.tables, fib.suppress, fib.egress) == (family, tables, suppress, egress)
    };
    router.routes.published.fibs.iter().find(same).map(|fib| fib.id)
}

pub(super) fn scope_of_routes(router: &Router, ids: &Ids, table: u32) -> Scope {
    // Only routes that look up again care.
    let info = ids.first().and_then(|&id| router.routes.infos.get(id));
    if info.is_some_and(|info| looks_up(router, info)) {
        scope_of_table(router, table)
    } else {
        Scope::Rules { link: 0, vrf: None }
    }
}

fn looks_up(router: &Router, info: &Info) -> bool {
    ways_of(router, info).iter().any(|hop| hop.tunnel.is_some())
}

/// What the packet path does with a destination, by the look-up of a scope and without its rules.
pub(crate) fn published_next_hop(router: &Router, lookup: LookupId, address: IpAddr) -> Option<ActionId> {
    let scope = scope_of_lookup(router, lookup)?;
    let family = Family::of(address);
    for fib in lookup_fibs(router, scope, family)? {
        let found = match (fib, address) {
            (FibId::V4(id), IpAddr::V4(address)) => router.engine.lookup4(id, address),
            (FibId::V6(id), IpAddr::V6(address)) => router.engine.lookup6(id, address),
            _ => None,
        };
        if found.is_some_and(|action| Some(action) != router.routes.compiled.throw()) {
            return found;
        }
    }
    None
}

/// What a look-up is.
pub(crate) fn scope_of_lookup(router: &Router, lookup: LookupId) -> Option<Scope> {
    let mut lookups = router.routes.published.lookups.iter();
    lookups.find(|(_, id)| **id == lookup).map(|(scope, _)| *scope)
}

/// The forwarding tables of a scope; `None` if rules with selectors come before them.
fn lookup_fibs(router: &Router, scope: Scope, family: Family) -> Option<Vec<FibId>> {
    let egress = egress_of(router, scope);
    let groups = match (scope, scope.of_rules(router)) {
        (Scope::Out { family: other, .. }, _) if other != family => return None,
        (Scope::Table(table), _) => vec![vec![table]],
        (_, None) => return None,
        (_, Some((links, vrf))) => {
            let steps = rule_steps(router, family, links, vrf);
            let plain = |(rule, _): &(Rule, u32)| {
                rule.matches_all() && rule.suppress_prefix.is_none() && rule.action == rule::FR_ACT_TO_TBL
            };
            if !steps.iter().all(plain) {
                return None;
            }
            let tables: Vec<u32> = steps.iter().map(|(_, table)| *table).collect();
            // What leads nowhere else is on the link.
            let last = egress.is_some_and(|egress| egress.on_link).then(Vec::new);
            groups(family, &tables).into_iter().chain(last).collect()
        }
    };
    Some(groups.iter().filter_map(|tables| find_fib(router, family, tables, (None, egress))).collect())
}

/// The packet path's id of a link.
pub(crate) fn link_id(router: &Router, index: u32) -> LinkId {
    router.links.get(index).map_or(LinkId(u32::MAX), |link| link.id)
}

/// The VRF of the router's that has a table.
pub(super) fn vrf_of_table(router: &Router, table: u32) -> Option<u32> {
    let vrf = router.devices().find(|(_, device)| *device == Device::Vrf { table });
    vrf.map(|(index, _)| index)
}
