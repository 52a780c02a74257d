//! Routes as the packet path has them: which tables a packet is looked up in, and what each prefix leads
//! to there.
//!
//! A forwarding table of the packet path merges tables that are always looked up one after the other. At
//! each prefix that one of them has, it holds what those look-ups end in for the addresses that no longer
//! prefix covers. Neighbours on a link are host entries of their own.

#![expect(
    clippy::indexing_slicing,
    reason = "places in lists of the model, found in the same step and not read from a request"
)]

use std::collections::BTreeMap;
use std::net::IpAddr;

use underpass_engine::tables::{ActionId, Discard, Fib4Id, Fib6Id, LinkId, Lookup, LookupId, RuleAction};

use super::change::Place;
use super::config::{RT_TABLE_DEFAULT, RT_TABLE_LOCAL, RT_TABLE_MAIN};
use super::info::{Info, InfoId, Origin};
use super::lookup::type_error;
use super::rule::{self, Rule};
use super::table::{Family, Ids, Prefix, bits};
use crate::Router;

/// A forwarding table of the packet path.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum FibId {
    V4(Fib4Id),
    V6(Fib6Id),
}

#[derive(Debug)]
struct Fib {
    family: Family,
    /// The tables that it merges, in the order of look-up.
    tables: Vec<u32>,
    /// Only longer prefixes are there (`suppress_prefixlength`).
    suppress: Option<u8>,
    id: FibId,
}

/// Who looks up.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) enum Scope {
    /// By the policy rules: for packets from this link if a rule names it (0 otherwise), and for those of
    /// the VRF that has this table.
    Rules { link: u32, vrf: Option<u32> },
    /// In one table alone.
    Table(u32),
}

/// The index of `lo`.
pub(super) const LOOPBACK: u32 = 1;

/// A link and the MAC address that a neighbour has there.
type Station = (u32, [u8; 6]);

/// What the control thread needs to remember of what it has published.
#[derive(Debug, Default)]
pub(crate) struct Published {
    fibs: Vec<Fib>,
    lookups: BTreeMap<Scope, LookupId>,
    /// Link-layer addresses of neighbours: by family and address, on each link.
    pub neighbours: BTreeMap<(Family, u128), Vec<Station>>,
}

impl Published {
    /// The link-layer address of a neighbour.
    pub fn mac(&self, link: u32, address: IpAddr) -> Option<[u8; 6]> {
        let there = self.neighbours.get(&(Family::of(address), bits(address)))?;
        there.iter().find(|(other, _)| *other == link).map(|(_, mac)| *mac)
    }
}

/// What an evaluation of a forwarding table's tables ends in.
enum End {
    /// None has a route.
    Nothing,
    /// All that have one say `throw`.
    Throw,
    /// These routes together, of this table.
    Routes(Ids, u32),
}

impl Router {
    /// Prepares the packet path: the look-up of links that are in no VRF gets the first id.
    pub(crate) fn begin_publishing(&mut self) {
        let first = self.lookup(Scope::Rules { link: 0, vrf: None });
        debug_assert_eq!(first, LookupId(0));
    }

    /// The id of an order of look-up, made if need be.
    pub(crate) fn lookup(&mut self, scope: Scope) -> LookupId {
        if let Some(&id) = self.routes.published.lookups.get(&scope) {
            return id;
        }
        let id = self.engine.add_lookup(Lookup::default());
        self.routes.published.lookups.insert(scope, id);
        let lookup = self.compile_lookup(scope);
        self.engine.set_lookup(id, lookup);
        id
    }

    /// The scope in which routes of a table look up what they lead to.
    pub(crate) fn scope_of_table(&self, table: u32) -> Scope {
        let vrf = self.links.iter().any(|link| link.vrf_table() == Some(table));
        Scope::Rules { link: 0, vrf: vrf.then_some(table) }
    }

    /// How packets of a link are looked up.
    pub(crate) fn lookup_of_link(&mut self, link: &crate::Link, vrf: Option<u32>) -> LookupId {
        let scope = self.scope_of_link(link.index, vrf);
        self.lookup(scope)
    }

    fn scope_of_link(&self, link: u32, vrf: Option<u32>) -> Scope {
        let names = [Family::V4, Family::V6].map(|family| self.ingress_name(family, link, vrf));
        // Packets that have only been looked up anew in a VRF come from its device.
        let vrf_name = self.ingress_name(Family::V4, 0, vrf);
        let named = |rule: &Rule| names.iter().chain([&vrf_name]).flatten().any(|name| rule.iif == *name);
        let named =
            [Family::V4, Family::V6].into_iter().any(|family| self.routes.rules.of(family).iter().any(named));
        let door = self.is_host_door(link) && self.leaves_rules_to_kernel();
        Scope::Rules { link: if named || door { link } else { 0 }, vrf }
    }

    /// Whether there is a rule of the kernel's that packets are handed over for.
    fn leaves_rules_to_kernel(&self) -> bool {
        let left = |rule: &Rule| rule.action == rule::HAND_OVER;
        [Family::V4, Family::V6].into_iter().any(|family| self.routes.rules.of(family).iter().any(left))
    }

    /// How the router looks up what it sends itself, in the VRF that has this table.
    pub(crate) fn own_lookup(&mut self, vrf: Option<u32>) -> LookupId {
        let scope = self.scope_of_link(LOOPBACK, vrf);
        self.lookup(scope)
    }

    /// The link that rules take packets of a link to come from; 0: those that are looked up anew, in a VRF, if in one. In a
    /// VRF IPv6 packets come from its device, IPv4 packets from the link itself. Linux: `vrf_ip6_rcv`, `vrf_ip_rcv`.
    fn ingress_name(&self, family: Family, link: u32, vrf: Option<u32>) -> Option<&str> {
        let device = || self.links.iter().find(|device| vrf.is_some() && device.vrf_table() == vrf);
        let found = match (family, link) {
            (_, 0) => device(),
            (Family::V6, link) if link != LOOPBACK && vrf.is_some() => device(),
            (_, link) => self.links.get(link),
        };
        found.map(|link| link.name.as_str())
    }

    /// Compiles all orders of look-up anew: a rule or a VRF has changed.
    pub(crate) fn refresh_lookups(&mut self) {
        let scopes: Vec<_> = self.routes.published.lookups.iter().map(|(&s, &id)| (s, id)).collect();
        for (scope, id) in scopes {
            let lookup = self.compile_lookup(scope);
            self.engine.set_lookup(id, lookup);
        }
        self.forget_gateways();
        self.recompile_all();
    }

    /// Forgets which gateways have been found reachable.
    pub(crate) fn forget_gateways(&mut self) {
        self.routes.gateways.clear();
    }

    /// Compiles the look-up in a table that was not there.
    pub(super) fn table_made(&mut self, table: u32) {
        let scope = Scope::Table(table);
        if let Some(&id) = self.routes.published.lookups.get(&scope) {
            let lookup = self.compile_lookup(scope);
            self.engine.set_lookup(id, lookup);
        }
    }

    fn compile_lookup(&mut self, scope: Scope) -> Lookup {
        let (link, vrf) = match scope {
            // Linux: `seg6_lookup_any_nexthop` drops where there is no such table.
            Scope::Table(table) if !self.routes.tables.contains_key(&(Family::V6, table)) => {
                let rule = Rule::plain(0, 0).compile(Family::V6, RuleAction::Discard(Discard::Blackhole));
                return Lookup { rules6: [rule].into(), ..Lookup::default() };
            }
            Scope::Table(table) => {
                let fibs4 = [self.fib(Family::V4, &[table], None)].into_iter().filter_map(fib4).collect();
                let fibs6 = [self.fib(Family::V6, &[table], None)].into_iter().filter_map(fib6).collect();
                return Lookup { fibs4, fibs6, ..Lookup::default() };
            }
            Scope::Rules { link, vrf } => (link, vrf),
        };
        let (rules4, fibs) = self.compile_rules(Family::V4, link, vrf);
        let fibs4 = fibs.into_iter().filter_map(fib4).collect();
        let (rules6, fibs) = self.compile_rules(Family::V6, link, vrf);
        let fibs6 = fibs.into_iter().filter_map(fib6).collect();
        let own = Some(self.own_lookup(vrf));
        Lookup { fibs4, fibs6, rules4: rules4.into(), rules6: rules6.into(), own }
    }

    /// The rules with selectors that a packet meets, and the tables that it is looked up in after them.
    fn compile_rules(
        &mut self,
        family: Family,
        link: u32,
        vrf: Option<u32>,
    ) -> (Vec<underpass_engine::tables::Rule>, Vec<FibId>) {
        let steps = self.rule_steps(family, link, vrf);
        // A rule that a `goto` leads to, or past, is told apart from those before it.
        let gotos = steps.iter().filter(|(rule, _)| rule.action == rule::FR_ACT_GOTO);
        let from = gotos.map(|(rule, _)| rule.target).max().unwrap_or(0);
        let plain = |rule: &Rule| rule.matches_all() && rule.suppress_prefix.is_none();
        let looks_up = |(rule, _): &&(Rule, u32)| {
            plain(rule) && rule.action == rule::FR_ACT_TO_TBL && rule.priority >= from
        };
        let tail = steps.iter().rev().take_while(looks_up).count();
        let (head, tail) = steps.split_at(steps.len() - tail);
        let mut rules = Vec::new();
        for (rule, table) in head {
            let then = match rule.action {
                rule::FR_ACT_TO_TBL => match self.fib(family, &[*table], rule.suppressed_length()) {
                    FibId::V4(id) => RuleAction::Fib4(id),
                    FibId::V6(id) => RuleAction::Fib6(id),
                },
                rule::FR_ACT_UNREACHABLE => RuleAction::Discard(Discard::Unreachable),
                rule::FR_ACT_PROHIBIT => RuleAction::Discard(Discard::Prohibit),
                rule::FR_ACT_BLACKHOLE => RuleAction::Discard(Discard::Blackhole),
                rule::HAND_OVER => RuleAction::Act(self.handing_over()),
                rule::FR_ACT_GOTO => {
                    RuleAction::Goto(head.partition_point(|(other, _)| other.priority < rule.target))
                }
                _ => RuleAction::Nop,
            };
            rules.push(rule.compile(family, then));
        }
        let tables: Vec<u32> = tail.iter().map(|(_, table)| *table).collect();
        let groups = groups(family, &tables);
        let fibs = groups.iter().map(|tables| self.fib(family, tables, None)).collect();
        (rules, fibs)
    }

    /// The rules that a packet of a link may match, with the tables of those that look up.
    fn rule_steps(&self, family: Family, link: u32, vrf: Option<u32>) -> Vec<(Rule, u32)> {
        let rules = self.routes.rules.of(family);
        let name = self.ingress_name(family, link, vrf);
        let is_goto = |rule: &Rule| rule.action == rule::FR_ACT_GOTO;
        let chosen = rules.iter().any(|rule| is_goto(rule) && !rule.matches_all());
        let mut steps = Vec::new();
        let mut position = 0;
        // What the kernel sends has passed its rules.
        let passed = |rule: &Rule| rule.action == rule::HAND_OVER && self.is_host_door(link);
        while let Some(rule) = rules.get(position) {
            position += 1;
            if passed(rule) {
                continue;
            }
            // A packet that is forwarded has no outgoing link yet, and comes from one that is not `lo`: what the router
            // sends itself does.
            let from = rule.iif.is_empty() || Some(rule.iif.as_str()) == name;
            let mut rule = rule.clone();
            if !from || !rule.oif.is_empty() {
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

    /// The forwarding table that merges these tables, made and filled if need be.
    fn fib(&mut self, family: Family, tables: &[u32], suppress: Option<u8>) -> FibId {
        if let Some(id) = self.find_fib(family, tables, suppress) {
            return id;
        }
        let id = match family {
            Family::V4 => FibId::V4(self.engine.add_fib4()),
            Family::V6 => FibId::V6(self.engine.add_fib6()),
        };
        self.routes.published.fibs.push(Fib { family, tables: tables.to_vec(), suppress, id });
        let index = self.routes.published.fibs.len() - 1;
        for &table in tables {
            let all = Prefix::new(0, 0);
            let routes = self.routes.tables.get(&(family, table));
            let prefixes: Vec<Prefix> =
                routes.map(|routes| routes.inside(all).map(|(p, _)| p).collect()).unwrap_or_default();
            prefixes.into_iter().for_each(|prefix| self.set_leaf(index, prefix));
        }
        self.host_leaves(index, Prefix::new(0, 0));
        id
    }

    fn find_fib(&self, family: Family, tables: &[u32], suppress: Option<u8>) -> Option<FibId> {
        let same = |fib: &&Fib| (fib.family, &*fib.tables, fib.suppress) == (family, tables, suppress);
        self.routes.published.fibs.iter().find(same).map(|fib| fib.id)
    }

    /// Publishes that the routes to a prefix of a table have changed.
    pub(crate) fn publish(&mut self, place: Place) {
        self.vrf_place_changed(place);
        let (family, table, prefix) = place;
        self.routes.gateways.forget(family, prefix);
        self.place_changed((family, table, prefix));
        for index in 0..self.routes.published.fibs.len() {
            let fib = &self.routes.published.fibs[index];
            if fib.family != family || !fib.tables.contains(&table) {
                continue;
            }
            self.set_leaf(index, prefix);
            // The prefixes inside that the other tables of the merger have may now end here, or no more.
            let mut inside = Vec::new();
            let mut before = true;
            for &other in &self.routes.published.fibs[index].tables {
                if other == table {
                    before = false;
                    continue;
                }
                let Some(routes) = self.routes.tables.get(&(family, other)) else { continue };
                // A table that is asked before decides alone, unless it throws.
                if routes.is_empty() || before && routes.throws == 0 {
                    continue;
                }
                inside.extend(routes.inside(prefix).map(|(prefix, _)| prefix));
            }
            inside.into_iter().for_each(|prefix| self.set_leaf(index, prefix));
            self.host_leaves(index, prefix);
        }
        self.resolve_inside(family, prefix);
    }

    /// Sets the host entries of the neighbours inside a prefix.
    fn host_leaves(&mut self, index: usize, prefix: Prefix) {
        let family = self.routes.published.fibs[index].family;
        if self.routes.published.neighbours.is_empty() {
            return;
        }
        let range = (family, prefix.first())..=(family, prefix.last());
        let hosts: Vec<u128> = self.routes.published.neighbours.range(range).map(|(key, _)| key.1).collect();
        for host in hosts {
            self.set_leaf(index, Prefix::new(host, family.bits()));
        }
    }

    fn set_leaf(&mut self, index: usize, prefix: Prefix) {
        let action = self.leaf(index, prefix);
        match (self.routes.published.fibs[index].id, Family::V4.address(prefix.bits), action) {
            (FibId::V4(id), IpAddr::V4(address), Some(action)) => {
                self.engine.insert4(id, address, prefix.len, action);
            }
            (FibId::V4(id), IpAddr::V4(address), None) => {
                self.engine.remove4(id, address, prefix.len);
            }
            (FibId::V6(id), _, Some(action)) => {
                self.engine.insert6(id, prefix.bits.into(), prefix.len, action);
            }
            (FibId::V6(id), _, None) => {
                self.engine.remove6(id, prefix.bits.into(), prefix.len);
            }
            (FibId::V4(_), IpAddr::V6(_), _) => {}
        }
    }

    /// What a forwarding table is to hold at a prefix; `None` for no entry.
    fn leaf(&mut self, index: usize, prefix: Prefix) -> Option<ActionId> {
        let fib = &self.routes.published.fibs[index];
        let family = fib.family;
        let host = prefix.len == family.bits();
        let neighbour = host && self.routes.published.neighbours.contains_key(&(family, prefix.bits));
        let has = |table: &u32| {
            let routes = self.routes.tables.get(&(family, *table));
            routes.is_some_and(|routes| !routes.get(prefix).is_empty())
        };
        let own = fib.tables.iter().any(has);
        if !own && !neighbour {
            return None;
        }
        let (ids, table) = match self.evaluate(index, prefix) {
            End::Nothing => return None,
            End::Throw => return own.then(|| self.discard(Discard::Throw)),
            End::Routes(ids, table) => (ids, table),
        };
        let scope = self.scope_of_routes(&ids, table);
        if neighbour && let Some(action) = self.neighbour_action(&ids, scope, family, prefix.bits) {
            return Some(action);
        }
        own.then(|| self.action_of(&ids, scope))
    }

    /// What the look-ups of a forwarding table's tables end in, for an address that no prefix longer than
    /// this one covers.
    fn evaluate(&self, index: usize, prefix: Prefix) -> End {
        let fib = &self.routes.published.fibs[index];
        let mut end = End::Nothing;
        for &table in &fib.tables {
            let Some(routes) = self.routes.tables.get(&(fib.family, table)) else { continue };
            let Some((found, ids)) = routes.longest(prefix) else { continue };
            let info = |id: &InfoId| self.routes.infos.get(*id);
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
                return End::Routes(self.together(fib.family, ids), table);
            }
        }
        end
    }

    /// Those of the routes to a prefix that are used: the first, and of IPv6 those that spread with it.
    pub(crate) fn together(&self, family: Family, ids: &[InfoId]) -> Ids {
        let Some(&first) = ids.first() else { return Ids::new() };
        let info = self.routes.infos.get(first);
        let Some(info) = info.filter(|info| ids.len() > 1 && family == Family::V6 && info.spreads()) else {
            return Ids::from_slice(&[first]);
        };
        let with = |id: &&InfoId| {
            self.routes.infos.get(**id).is_some_and(|other| other.metric == info.metric && other.spreads())
        };
        ids.iter().filter(with).copied().collect()
    }

    fn scope_of_routes(&self, ids: &Ids, table: u32) -> Scope {
        // Only routes that look up again care.
        let info = ids.first().and_then(|&id| self.routes.infos.get(id));
        if info.is_some_and(|info| self.looks_up(info)) {
            self.scope_of_table(table)
        } else {
            Scope::Rules { link: 0, vrf: None }
        }
    }

    fn looks_up(&self, info: &Info) -> bool {
        self.ways(info).iter().any(|hop| hop.tunnel.is_some())
    }

    /// A neighbour's link-layer address has become known, has changed, or is known no more.
    pub(crate) fn set_neighbour(&mut self, link: u32, address: IpAddr, mac: Option<[u8; 6]>) {
        let family = Family::of(address);
        let key = (family, bits(address));
        let there = self.routes.published.neighbours.entry(key).or_default();
        let known = there.iter().any(|(other, _)| *other == link);
        there.retain(|(other, _)| *other != link);
        there.extend(mac.map(|mac| (link, mac)));
        let last = there.is_empty();
        self.refresh_next_hop(link, address);
        if known != mac.is_some() {
            // Set while the entry is still there: a host entry that is to go must be looked at.
            let host = Prefix::host(address);
            if last {
                self.routes.published.neighbours.remove(&key);
            }
            for index in 0..self.routes.published.fibs.len() {
                if self.routes.published.fibs[index].family == family {
                    self.set_leaf(index, host);
                }
            }
            self.resolve_inside(family, host);
            if mac.is_none() {
                self.forget_host(link, address);
            }
        } else if last {
            self.routes.published.neighbours.remove(&key);
        }
    }

    /// What the packet path does with a destination, by the look-up of a scope and without its rules.
    pub(crate) fn published(&self, lookup: LookupId, address: IpAddr) -> Option<ActionId> {
        let scope = self.scope_of_lookup(lookup)?;
        let family = Family::of(address);
        for fib in self.lookup_fibs(scope, family)? {
            let found = match (fib, address) {
                (FibId::V4(id), IpAddr::V4(address)) => self.engine.lookup4(id, address),
                (FibId::V6(id), IpAddr::V6(address)) => self.engine.lookup6(id, address),
                _ => None,
            };
            if found.is_some_and(|action| Some(action) != self.routes.compiled.throw()) {
                return found;
            }
        }
        None
    }

    /// What a look-up is.
    pub(crate) fn scope_of_lookup(&self, lookup: LookupId) -> Option<Scope> {
        let mut lookups = self.routes.published.lookups.iter();
        lookups.find(|(_, id)| **id == lookup).map(|(scope, _)| *scope)
    }

    /// The forwarding tables of a scope; `None` if rules with selectors come before them.
    fn lookup_fibs(&self, scope: Scope, family: Family) -> Option<Vec<FibId>> {
        let groups = match scope {
            Scope::Table(table) => vec![vec![table]],
            Scope::Rules { link, vrf } => {
                let steps = self.rule_steps(family, link, vrf);
                let plain = |(rule, _): &(Rule, u32)| {
                    rule.matches_all() && rule.suppress_prefix.is_none() && rule.action == rule::FR_ACT_TO_TBL
                };
                if !steps.iter().all(plain) {
                    return None;
                }
                let tables: Vec<u32> = steps.iter().map(|(_, table)| *table).collect();
                groups(family, &tables)
            }
        };
        Some(groups.iter().filter_map(|tables| self.find_fib(family, tables, None)).collect())
    }

    /// The packet path's id of a link.
    pub(crate) fn link_id(&self, index: u32) -> LinkId {
        self.links.get(index).map_or(LinkId(u32::MAX), |link| link.id)
    }
}

/// How tables that are looked up one after the other are merged. The local table goes with the table
/// behind it; `main` and `default` behind a VRF's table use the merger that packets of no VRF use: the
/// local table has no route then.
fn groups(family: Family, tables: &[u32]) -> Vec<Vec<u32>> {
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

fn fib4(id: FibId) -> Option<Fib4Id> {
    if let FibId::V4(id) = id { Some(id) } else { None }
}

fn fib6(id: FibId) -> Option<Fib6Id> {
    if let FibId::V6(id) = id { Some(id) } else { None }
}
