//! Routes as the packet path has them: which tables a packet is looked up in, and what each prefix leads
//! to there.
//!
//! A forwarding table of the packet path merges tables that are always looked up one after the other. It has an entry for
//! each prefix of any of them: what the look-ups of all of them end in for an address that no longer prefix of theirs
//! covers. A neighbour on a link is a host entry.

#![expect(
    clippy::indexing_slicing,
    reason = "places in lists of the model, found in the same step and not read from a request"
)]

use std::net::IpAddr;

use underpass_engine::tables::{ActionId, Discard, Fib4Id, Fib6Id, Lookup, LookupId, RuleAction};

use super::compile::{action_of, discard_action, neighbour_action};
use super::config::RT_TABLE_MAIN;
use super::egress::{self, egress_of, on_link};
use super::info::{InfoId, Origin};
use super::lookup::{together, type_error, ways_of};
use super::next_hop::handing_over;
use super::rule::{self, Rule};
use super::scope::{find_fib, groups, rule_steps, scope_of_link, scope_of_routes};
use super::table::{Family, Ids, Prefix};
use crate::Router;
use crate::link::LOOPBACK;

use super::published::{Egress, Fib, FibId, RuleLinks, Scope};

/// What look-ups in the tables of a forwarding table end in.
pub(super) enum End {
    /// None has a route.
    Nothing,
    /// All that have one say `throw`.
    Throw,
    /// These routes together, of this table.
    Routes(Ids, u32),
}

/// Prepares the packet path: the look-up of links that are in no VRF gets the first id.
pub(crate) fn begin_publishing(router: &mut Router) {
    let first = lookup_id(router, Scope::Rules { link: 0, vrf: None });
    debug_assert_eq!(first, LookupId(0));
}

/// The id of an order of look-up, made if need be.
pub(crate) fn lookup_id(router: &mut Router, scope: Scope) -> LookupId {
    if let Some(&id) = router.routes.published.lookups.get(&scope) {
        return id;
    }
    let id = router.engine.add_lookup(Lookup::default());
    router.routes.published.lookups.insert(scope, id);
    let lookup = compile_lookup(router, scope);
    router.engine.set_lookup(id, lookup);
    id
}

/// How packets of a link are looked up.
pub(crate) fn lookup_of_link(router: &mut Router, link: &crate::Link, vrf: Option<u32>) -> LookupId {
    let scope = scope_of_link(router, link.index, vrf);
    lookup_id(router, scope)
}

/// How the router looks up what it sends itself, in the VRF that has this table.
pub(crate) fn own_lookup(router: &mut Router, vrf: Option<u32>) -> LookupId {
    let scope = scope_of_link(router, LOOPBACK, vrf);
    lookup_id(router, scope)
}

/// How the router looks up echo replies of IPv6 to requests that arrive by a link, where a rule matches the link they leave by.
/// Linux: `icmpv6_echo_reply`.
pub(crate) fn lookup_back(router: &mut Router, link: &crate::Link) -> Option<LookupId> {
    let named = router.routes.rules.of(Family::V6).iter().any(|rule| rule.oif == link.name);
    named.then(|| lookup_id(router, Scope::Back { link: link.index }))
}

pub(super) fn compile_lookup(router: &mut Router, scope: Scope) -> Lookup {
    if let Scope::Table(table) = scope {
        // Linux: `seg6_lookup_any_nexthop` drops where there is no such table.
        if !router.routes.tables.contains_key(&(Family::V6, table)) {
            let rule = Rule::plain(0, 0).compile(Family::V6, RuleAction::Discard(Discard::Blackhole));
            return Lookup { rules6: [rule].into(), ..Lookup::default() };
        }
        return of_fibs(
            &[Family::V4, Family::V6].map(|family| fib_of(router, family, &[table], (None, None))),
        );
    }
    let Some((links, vrf)) = scope.of_rules(router) else { return Lookup::default() };
    let own = Some(own_lookup(router, vrf));
    let egress = egress_of(router, scope);
    let families = match scope {
        Scope::Out { family, .. } => vec![family],
        _ => vec![Family::V4, Family::V6],
    };
    let (mut rules4, mut rules6, mut fibs) = (Vec::new(), Vec::new(), Vec::new());
    for family in families {
        let (rules, of_family) = compile_rules(router, family, links, vrf, egress);
        match family {
            Family::V4 => rules4 = rules,
            Family::V6 => rules6 = rules,
        }
        fibs.extend(of_family);
    }
    Lookup { rules4: rules4.into(), rules6: rules6.into(), own, ..of_fibs(&fibs) }
}

/// The look-up in these tables, one after the other, without rules.
fn of_fibs(fibs: &[FibId]) -> Lookup {
    let fibs = fibs.iter().copied();
    let (fibs4, fibs6) = (fibs.clone().filter_map(fib4), fibs.filter_map(fib6));
    Lookup { fibs4: fibs4.collect(), fibs6: fibs6.collect(), ..Lookup::default() }
}

/// The rules with selectors that a packet of these links meets, and the tables that it is looked up in after them.
fn compile_rules(
    router: &mut Router,
    family: Family,
    links: RuleLinks,
    vrf: Option<u32>,
    egress: Option<Egress>,
) -> (Vec<underpass_engine::tables::Rule>, Vec<FibId>) {
    let steps = rule_steps(router, family, links, vrf);
    // Trailing rules that only look up in a table need no rule of the packet path, which looks up in their tables one after
    // the other. Rules before the target of a `goto` do: they may be jumped over.
    let gotos = steps.iter().filter(|(rule, _)| rule.action == rule::FR_ACT_GOTO);
    let from = gotos.map(|(rule, _)| rule.target).max().unwrap_or(0);
    let plain = |rule: &Rule| rule.matches_all() && rule.suppress_prefix.is_none();
    let looks_up =
        |(rule, _): &&(Rule, u32)| plain(rule) && rule.action == rule::FR_ACT_TO_TBL && rule.priority >= from;
    let tail = steps.iter().rev().take_while(looks_up).count();
    let (head, tail) = steps.split_at(steps.len() - tail);
    let mut rules = Vec::new();
    // With an egress, a packet for which no table has a route is sent on-link.
    let on_link = egress.filter(|egress| egress.on_link);
    let on_link = on_link.map(|egress| on_link_fib(router, family, egress));
    for (rule, table) in head {
        let then = match rule.action {
            rule::FR_ACT_UNREACHABLE | rule::FR_ACT_PROHIBIT | rule::FR_ACT_BLACKHOLE
                if let Some(FibId::V4(id)) = on_link =>
            {
                RuleAction::Fib4(id)
            }
            rule::FR_ACT_TO_TBL => {
                match fib_of(router, family, &[*table], (rule.suppressed_length(), egress)) {
                    FibId::V4(id) => RuleAction::Fib4(id),
                    FibId::V6(id) => RuleAction::Fib6(id),
                }
            }
            rule::FR_ACT_UNREACHABLE => RuleAction::Discard(Discard::Unreachable),
            rule::FR_ACT_PROHIBIT => RuleAction::Discard(Discard::Prohibit),
            rule::FR_ACT_BLACKHOLE => RuleAction::Discard(Discard::Blackhole),
            rule::HAND_OVER => RuleAction::Act(handing_over(router)),
            rule::FR_ACT_GOTO => {
                RuleAction::Goto(head.partition_point(|(other, _)| other.priority < rule.target))
            }
            _ => RuleAction::Nop,
        };
        rules.push(rule.compile(family, then));
    }
    let tables: Vec<u32> = tail.iter().map(|(_, table)| *table).collect();
    let groups = groups(family, &tables);
    let fibs = groups.iter().map(|tables| fib_of(router, family, tables, (None, egress)));
    let fibs = fibs.collect::<Vec<_>>().into_iter().chain(on_link).collect();
    (rules, fibs)
}

/// A forwarding table in which every address is on a link.
fn on_link_fib(router: &mut Router, family: Family, egress: Egress) -> FibId {
    on_link(router, egress.link);
    fib_of(router, family, &[], (None, Some(egress)))
}

/// The forwarding table that merges these tables, made and filled if need be.
fn fib_of(
    router: &mut Router,
    family: Family,
    tables: &[u32],
    (suppress, egress): (Option<u8>, Option<Egress>),
) -> FibId {
    if let Some(id) = find_fib(router, family, tables, (suppress, egress)) {
        return id;
    }
    let id = match family {
        Family::V4 => FibId::V4(router.engine.add_fib4()),
        Family::V6 => FibId::V6(router.engine.add_fib6()),
    };
    router.routes.published.fibs.push(Fib { family, tables: tables.to_vec(), suppress, egress, id });
    let index = router.routes.published.fibs.len() - 1;
    let all = Prefix::new(0, 0);
    if tables.is_empty() {
        set_leaf(router, index, all);
    }
    for &table in tables {
        let routes = router.routes.tables.get(&(family, table));
        let prefixes: Vec<Prefix> =
            routes.map(|routes| routes.inside(all).map(|(p, _)| p).collect()).unwrap_or_default();
        prefixes.into_iter().for_each(|prefix| set_leaf(router, index, prefix));
    }
    host_leaves(router, index, all);
    id
}

/// Sets the host entries of the neighbours inside a prefix.
pub(super) fn host_leaves(router: &mut Router, index: usize, prefix: Prefix) {
    let family = router.routes.published.fibs[index].family;
    if router.routes.published.neighbours.is_empty() {
        return;
    }
    let range = (family, prefix.first())..=(family, prefix.last());
    let hosts: Vec<u128> = router.routes.published.neighbours.range(range).map(|(key, _)| key.1).collect();
    for host in hosts {
        set_leaf(router, index, Prefix::new(host, family.bits()));
    }
}

pub(super) fn set_leaf(router: &mut Router, index: usize, prefix: Prefix) {
    let action = find_leaf(router, index, prefix);
    match (router.routes.published.fibs[index].id, Family::V4.address(prefix.bits), action) {
        (FibId::V4(id), IpAddr::V4(address), Some(action)) => {
            router.engine.insert4(id, address, prefix.len, action);
        }
        (FibId::V4(id), IpAddr::V4(address), None) => {
            router.engine.remove4(id, address, prefix.len);
        }
        (FibId::V6(id), _, Some(action)) => {
            router.engine.insert6(id, prefix.bits.into(), prefix.len, action);
        }
        (FibId::V6(id), _, None) => {
            router.engine.remove6(id, prefix.bits.into(), prefix.len);
        }
        (FibId::V4(_), IpAddr::V6(_), _) => {}
    }
}

/// What a forwarding table is to hold at a prefix; `None` for no entry.
fn find_leaf(router: &mut Router, index: usize, prefix: Prefix) -> Option<ActionId> {
    let fib = &router.routes.published.fibs[index];
    let (family, fib_egress) = (fib.family, fib.egress);
    let host = prefix.len == family.bits();
    let neighbour = host && router.routes.published.neighbours.contains_key(&(family, prefix.bits));
    let has = |table: &u32| {
        let routes = router.routes.tables.get(&(family, *table));
        routes.is_some_and(|routes| match fib.egress {
            Some(egress) => egress::has(router, family, routes, prefix, egress),
            None => !routes.get(prefix).is_empty(),
        })
    };
    let own = fib.tables.iter().any(has) || fib.tables.is_empty() && prefix.len == 0;
    if !own && !neighbour {
        return None;
    }
    let (ids, table) = match evaluate(router, index, prefix) {
        End::Nothing => return None,
        End::Throw => return own.then(|| discard_action(router, Discard::Throw)),
        End::Routes(ids, table) => (ids, table),
    };
    let scope = match fib_egress {
        Some(Egress { link, .. }) if family == Family::V4 && has_ways(router, &ids) => {
            Scope::Out { link, family }
        }
        _ => scope_of_routes(router, &ids, table),
    };
    if neighbour && let Some(action) = neighbour_action(router, &ids, scope, family, prefix.bits) {
        return Some(action);
    }
    own.then(|| action_of(router, &ids, scope))
}

/// What the look-ups of a forwarding table's tables end in, for an address that no prefix longer than
/// this one covers.
pub(super) fn evaluate(router: &Router, index: usize, prefix: Prefix) -> End {
    let fib = &router.routes.published.fibs[index];
    let on_link = fib.egress.filter(|egress| egress.on_link);
    let on_link = on_link.and_then(|egress| router.routes.published.on_links.get(&egress.link));
    let mut end = match on_link {
        Some(&id) if fib.tables.is_empty() => End::Routes(Ids::from_slice(&[id]), RT_TABLE_MAIN),
        _ => End::Nothing,
    };
    for &table in &fib.tables {
        let Some(routes) = router.routes.tables.get(&(fib.family, table)) else { continue };
        let chosen;
        let (found, ids) = match fib.egress {
            None => routes.longest(prefix),
            Some(egress) => {
                chosen = egress::longest(router, fib.family, routes, prefix, egress);
                chosen.as_ref().map(|(found, ids)| (*found, &ids[..]))
            }
        }
        .unwrap_or((prefix, &[]));
        if ids.is_empty() {
            continue;
        }
        if let Some(&id) = on_link.filter(|_| ids.first().is_some_and(|&id| egress::errs(router, id))) {
            return End::Routes(Ids::from_slice(&[id]), table);
        }
        let info = |id: &InfoId| router.routes.infos.get(*id);
        // Not of those that end a look-up with an error: Linux, `fib_rules_lookup`. A shorter one does not count then.
        let errs = || ids.first().and_then(info).is_some_and(|info| type_error(info.kind).is_some());
        if fib.suppress.is_some_and(|suppress| found.len <= suppress) && !errs() {
            end = End::Throw;
            continue;
        }
        // What of the kernel's is not understood may come before the others there. A packet that the kernel has sent
        // by a route of the router's own must not go back.
        let own = ids.iter().any(|id| info(id).is_some_and(|info| info.own()));
        let strange = |id: &&InfoId| !own && info(id).is_some_and(|info| info.unknown != 0);
        if let Some(&id) = ids.iter().find(strange) {
            return End::Routes(Ids::from_slice(&[id]), table);
        }
        let ids = match own {
            true => ids
                .iter()
                .position(|id| info(id).is_none_or(|info| info.unknown == 0))
                .map_or(ids, |at| &ids[at..]),
            false => ids,
        };
        if ids
            .first()
            .and_then(info)
            .is_some_and(|info| info.kind == libc::RTN_THROW && info.origin != Origin::KernelAlone)
        {
            end = End::Throw;
        } else {
            let used = ids.first().map(|&first| together(router, fib.family, ids, first));
            return End::Routes(used.unwrap_or_default(), table);
        }
    }
    end
}

/// Whether a route has several ways, of which one may have to be chosen by its link.
fn has_ways(router: &Router, ids: &Ids) -> bool {
    let [id] = ids[..] else { return false };
    router.routes.infos.get(id).is_some_and(|info| ways_of(router, info).len() > 1)
}

fn fib4(id: FibId) -> Option<Fib4Id> {
    if let FibId::V4(id) = id { Some(id) } else { None }
}

fn fib6(id: FibId) -> Option<Fib6Id> {
    if let FibId::V6(id) = id { Some(id) } else { None }
}
