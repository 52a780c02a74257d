//! Routes as actions of the packet path: next hops, SIDs, policy headends.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use underpass_engine::counters::CounterId;
use underpass_engine::tables::{
    Action, ActionId, Behaviour, Bpf, Discard, Endpoint, Flavours, Headend, HeadendMode, IoamSeen,
    LONGEST_LINK_LAYER, LookupId, Multipath, NextCsid, NextHop, NextHopId, Push, Rewrite, Rpl, Via,
};
use underpass_netlink::Encap;
use underpass_netlink::mpls::stack;
use underpass_netlink::seg6::{Mode, Seg6, SegmentList};
use underpass_netlink::seg6local::{
    self, FLAVOR_NEXT_CSID, FLAVOR_PSP, FLAVOR_USD, FLAVOR_USP, Flavors, Seg6Local,
};

use super::info::{Hop, Info, InfoId, Origin};
use super::ioam;
use super::lookup::type_error;
use super::publish::Scope;
use super::table::{Family, Ids, Prefix, bits};
use crate::{Link, Router};

/// A neighbour that routes lead to: link, address, and MTU of the route (0: the link's).
pub(super) type NextHopKey = (u32, IpAddr, u32);

/// Routes that are used together, the scope in which they look up, and the neighbour that the packets are for
/// where the action depends on it.
type ActionKey = (Ids, Scope, Option<IpAddr>);

#[derive(Debug)]
struct Compiled {
    id: ActionId,
    /// The actions of its buckets.
    children: Vec<ActionId>,
    next_hops: Vec<NextHopKey>,
    /// Addresses whose resolution it holds.
    tracked: Vec<IpAddr>,
}

/// The actions that there are, and what they depend on.
#[derive(Debug, Default)]
pub(crate) struct Actions {
    by_key: HashMap<ActionKey, Compiled>,
    by_info: HashMap<InfoId, Vec<ActionKey>>,
    last: Option<(InfoId, Scope, ActionId)>,
    next_hops: HashMap<NextHopKey, (NextHopId, usize)>,
    /// The actions that send to a next hop and do nothing else.
    forwards: HashMap<ActionId, NextHopId>,
    /// The action of each next hop that a host entry needed.
    hosts: HashMap<NextHopKey, ActionId>,
    /// The actions that depend on a neighbour: link, address.
    neighbours: BTreeMap<(u32, IpAddr), BTreeSet<ActionKey>>,
    /// How many packets the ways have seen that count them.
    pub frequencies: HashMap<CounterId, Arc<[IoamSeen]>>,
    discards: [Option<ActionId>; 4],
    tracked: BTreeSet<(Family, u128, ActionKey)>,
}

impl Actions {
    pub fn throw(&self) -> Option<ActionId> {
        self.discards[discard_index(Discard::Throw)]
    }
}

const fn discard_index(discard: Discard) -> usize {
    match discard {
        Discard::Blackhole => 0,
        Discard::Unreachable => 1,
        Discard::Prohibit => 2,
        Discard::Throw => 3,
    }
}

/// Hop limit of an outer header around a packet that has none: Linux's default.
const HOP_LIMIT: u8 = 64;
const ROUTING_HEADER: u8 = 43;
/// Bytes of an Ethernet header.
const ETHERNET: usize = 14;
/// Length of the outer IPv6 header.
const OUTER: usize = 40;
const RTAX_MTU: usize = 2;

/// What a compilation collects.
#[derive(Default)]
pub(super) struct Build {
    next_hops: Vec<NextHopKey>,
    tracked: Vec<IpAddr>,
}

impl Router {
    /// The action that discards so.
    pub(crate) fn discard(&mut self, discard: Discard) -> ActionId {
        let at = discard_index(discard);
        if let Some(id) = self.routes.compiled.discards[at] {
            return id;
        }
        let id = self.engine.add_action(Action::Discard(discard));
        self.routes.compiled.discards[at] = Some(id);
        id
    }

    /// The action of routes that are used together.
    pub(crate) fn action_of(&mut self, ids: &Ids, scope: Scope) -> ActionId {
        if let ([id], Some((last, of, action))) = (&ids[..], self.routes.compiled.last)
            && (last, of) == (*id, scope)
        {
            return action;
        }
        let key = (ids.clone(), scope, None);
        let action = match self.routes.compiled.by_key.get(&key) {
            Some(compiled) => compiled.id,
            None => self.compile(key),
        };
        if let [id] = ids[..] {
            self.routes.compiled.last = Some((id, scope, action));
        }
        action
    }

    fn compile(&mut self, key: ActionKey) -> ActionId {
        let mut build = Build::default();
        let (action, children) = self.build(&key, &mut build);
        let forward = if let Action::Forward(next_hop) = &action { Some(*next_hop) } else { None };
        let id = self.engine.add_action(action);
        if let Some(next_hop) = forward {
            self.routes.compiled.forwards.insert(id, next_hop);
        }
        for info in &key.0 {
            self.routes.compiled.by_info.entry(*info).or_default().push(key.clone());
        }
        self.keep(key, id, children, build);
        id
    }

    fn keep(&mut self, key: ActionKey, id: ActionId, children: Vec<ActionId>, build: Build) {
        for &address in &build.tracked {
            let place = (Family::of(address), bits(address), key.clone());
            self.routes.compiled.tracked.insert(place);
        }
        let Build { next_hops, tracked } = build;
        self.routes.compiled.by_key.insert(key, Compiled { id, children, next_hops, tracked });
    }

    /// Compiles an action again that is there, under its id.
    fn recompile(&mut self, key: &ActionKey) {
        let Some(old) = self.routes.compiled.by_key.remove(key) else { return };
        let mut build = Build::default();
        let (action, children) = self.build(key, &mut build);
        match &action {
            Action::Forward(next_hop) => self.routes.compiled.forwards.insert(old.id, *next_hop),
            _ => self.routes.compiled.forwards.remove(&old.id),
        };
        self.engine.set_action(old.id, action);
        let id = old.id;
        self.forget(key, old);
        self.keep(key.clone(), id, children, build);
    }

    /// Gives back what an action held; the action itself stays.
    fn forget(&mut self, key: &ActionKey, compiled: Compiled) {
        for address in compiled.tracked {
            self.routes.compiled.tracked.remove(&(Family::of(address), bits(address), key.clone()));
        }
        for child in compiled.children {
            self.engine.remove_action(child);
        }
        for next_hop in compiled.next_hops {
            self.release_next_hop(next_hop);
        }
    }

    /// Compiles all actions again: the rules or the VRFs have changed, or the source of encapsulations.
    pub(crate) fn recompile_all(&mut self) {
        let keys: Vec<_> = self.routes.compiled.by_key.keys().cloned().collect();
        keys.iter().for_each(|key| self.recompile(key));
    }

    /// Compiles the actions again that hold headers of such lists: their source may be another now, or a key.
    pub(crate) fn recompile_headends(&mut self, of: impl Fn(&SegmentList) -> bool) {
        let encapsulates = |hop: &Hop| {
            let encap = hop.tunnel.as_ref().map(|tunnel| &tunnel.encap);
            let srh = match encap {
                Some(Encap::Seg6Local(local)) if local.bpf.is_some() => return true,
                Some(Encap::Ioam6(_)) => return true,
                Some(Encap::Seg6(seg6)) => Some(&seg6.srh),
                Some(Encap::Seg6Local(local)) => local.srh.as_ref(),
                Some(Encap::Mpls(_) | Encap::Rpl(_)) | None => None,
            };
            srh.is_some_and(&of)
        };
        let ids: Vec<InfoId> = self
            .routes
            .infos
            .iter()
            .filter(|(_, info)| self.ways(info).iter().any(encapsulates))
            .map(|(id, _)| id)
            .collect();
        ids.into_iter().for_each(|id| self.recompile_info(id));
    }

    /// Compiles the SIDs again that have programs: these can name a table that was not there.
    pub(crate) fn recompile_programs(&mut self) {
        let runs = |hop: &Hop| hop.tunnel.as_ref().is_some_and(|tunnel| tunnel.program.is_some());
        let infos = self.routes.infos.iter().filter(|(_, info)| self.ways(info).iter().any(runs));
        let ids: Vec<InfoId> = infos.map(|(id, _)| id).collect();
        ids.into_iter().for_each(|id| self.recompile_info(id));
    }

    /// Compiles the actions of some routes again.
    pub(crate) fn recompile_info(&mut self, id: InfoId) {
        let keys = self.routes.compiled.by_info.get(&id).cloned().unwrap_or_default();
        keys.iter().for_each(|key| self.recompile(key));
    }

    /// Removes the actions of a route that is no more.
    pub(crate) fn discard_compiled(&mut self, id: InfoId, info: &Info) {
        self.routes.compiled.last = None;
        for key in self.routes.compiled.by_info.remove(&id).unwrap_or_default() {
            let Some(compiled) = self.routes.compiled.by_key.remove(&key) else { continue };
            for other in key.0.iter().filter(|&&other| other != id) {
                if let Some(keys) = self.routes.compiled.by_info.get_mut(other) {
                    keys.retain(|kept| *kept != key);
                }
            }
            self.routes.compiled.forwards.remove(&compiled.id);
            self.engine.remove_action(compiled.id);
            self.forget(&key, compiled);
        }
        for hop in info.hops() {
            if let Some(counter) = hop.tunnel.as_ref().and_then(|tunnel| tunnel.counter) {
                self.engine.remove_counter(counter);
                self.routes.compiled.frequencies.remove(&counter);
            }
        }
    }

    fn build(&mut self, key: &ActionKey, build: &mut Build) -> (Action, Vec<ActionId>) {
        let (ids, scope, neighbour) = key;
        let infos: Vec<_> = ids.iter().filter_map(|&id| self.routes.infos.get(id).cloned()).collect();
        let Some(info) = infos.first() else { return (Action::Discard(Discard::Blackhole), Vec::new()) };
        let discard = match info.kind {
            libc::RTN_BLACKHOLE => Some(Discard::Blackhole),
            libc::RTN_UNREACHABLE => Some(Discard::Unreachable),
            libc::RTN_PROHIBIT => Some(Discard::Prohibit),
            libc::RTN_THROW => Some(Discard::Throw),
            libc::RTN_LOCAL | libc::RTN_ANYCAST => return (Action::Local, Vec::new()),
            libc::RTN_BROADCAST | libc::RTN_MULTICAST => return (Action::Broadcast, Vec::new()),
            _ if info.origin == Origin::KernelAlone => return (Action::Local, Vec::new()),
            _ if self.blackhole_object(info) => Some(Discard::Blackhole),
            _ if info.reject => Some(Discard::Unreachable),
            _ => None,
        };
        if let Some(discard) = discard {
            return (Action::Discard(discard), Vec::new());
        }
        debug_assert!(type_error(info.kind).is_none());
        let mtu = info.metrics.as_ref().map_or(0, |metrics| metrics[RTAX_MTU - 1]);
        let alive = |hop: &Hop| !hop.dead && self.links.get(hop.oif).is_some();
        let hops: Vec<Hop> =
            infos.iter().flat_map(|info| self.ways(info).into_owned()).filter(alive).collect();
        let hops = &hops[..];
        if let [hop] = hops {
            return (self.build_hop(hop, (*scope, mtu), *neighbour, build), Vec::new());
        }
        let total: u64 = hops.iter().map(|hop| u64::from(hop.weight)).sum();
        let (mut buckets, mut children, mut weight) = (Vec::new(), Vec::new(), 0);
        for hop in hops {
            weight += u64::from(hop.weight);
            // Linux: fib_rebalance. Rounded to the nearest.
            let bound = ((weight << 31) + total / 2) / total - 1;
            let action = self.build_hop(hop, (*scope, mtu), None, build);
            let child = self.engine.add_action(action);
            children.push(child);
            buckets.push((bound as u32, child));
        }
        if buckets.is_empty() {
            return (Action::Discard(Discard::Unreachable), Vec::new());
        }
        (Action::Multipath(Multipath { buckets: buckets.into() }), children)
    }

    fn build_hop(
        &mut self,
        hop: &Hop,
        (scope, mtu): (Scope, u32),
        neighbour: Option<IpAddr>,
        build: &mut Build,
    ) -> Action {
        match hop.tunnel.as_deref() {
            Some(tunnel) => match &tunnel.encap {
                Encap::Seg6Local(local) => {
                    let Some(behaviour) = self.behaviour(local, hop, scope, build) else {
                        return Action::Discard(Discard::Blackhole);
                    };
                    Action::Endpoint(Endpoint {
                        behaviour,
                        flavours: local.flavors.filter(|flavors| flavors.operations != 0).map(flavours),
                        counter: tunnel.counter,
                        link: self.link_id(hop.oif),
                    })
                }
                Encap::Rpl(rpl) => match self.source_route(rpl, scope, build) {
                    Some(route) => Action::Rpl(route),
                    None => Action::Discard(Discard::Blackhole),
                },
                Encap::Mpls(mpls) => {
                    let Some(gateway) = hop.gateway else { return Action::Discard(Discard::Blackhole) };
                    let next_hop = self.acquire_next_hop((hop.oif, gateway, mtu), build);
                    let ttl = self.routes.labels.pushed_ttl(mpls);
                    Action::Push(Push { labels: stack(&mpls.labels).into(), ttl, next_hop })
                }
                Encap::Seg6(seg6) => match self.headend(seg6, hop, scope, build) {
                    Some(headend) => Action::Headend(headend),
                    None => Action::Discard(Discard::Blackhole),
                },
                Encap::Ioam6(ioam6) => {
                    let ioam = self.ioam_action(ioam6, hop, (scope, mtu), neighbour, build);
                    Action::Ioam(Box::new(ioam))
                }
            },
            // The kernel forwards by its links that no port is attached to.
            None if self.kernel_forwards(hop.oif) => Action::Local,
            None => match hop.gateway {
                Some(gateway) => Action::Forward(self.acquire_next_hop((hop.oif, gateway, mtu), build)),
                None => Action::OnLink(self.link_id(hop.oif)),
            },
        }
    }

    /// `None`: the SID needs something that the router does not have, and drops.
    fn behaviour(
        &mut self,
        local: &Seg6Local,
        hop: &Hop,
        scope: Scope,
        build: &mut Build,
    ) -> Option<Behaviour> {
        let own = self.lookup(scope);
        let vrf = |router: &mut Self| {
            let table = local.vrf_table?;
            router.links.iter().find(|link| link.vrf_table() == Some(table))?;
            Some(router.lookup(Scope::Rules { link: 0, vrf: Some(table) }))
        };
        // Table 0 is no table: Linux then looks up by the rules.
        let table = |router: &mut Self| match local.table? {
            0 => Some(own),
            table => Some(router.lookup(Scope::Table(table))),
        };
        Some(match local.action {
            seg6local::Action::End => Behaviour::End { lookup: own },
            seg6local::Action::EndX => Behaviour::X(self.via(local.nh6?.into(), own, build)),
            seg6local::Action::EndT => Behaviour::T { lookup: table(self)? },
            seg6local::Action::EndDX2 => Behaviour::DX2 { link: self.links.get(local.oif?)?.id },
            seg6local::Action::EndDX6 => Behaviour::DX6(self.via(local.nh6?.into(), own, build)),
            seg6local::Action::EndDX4 => Behaviour::DX4(self.via(local.nh4?.into(), own, build)),
            seg6local::Action::EndDT6 => {
                let lookup = if local.vrf_table.is_some() { vrf(self) } else { table(self) };
                Behaviour::DT6 { lookup: lookup? }
            }
            seg6local::Action::EndDT4 => Behaviour::DT4 { lookup: vrf(self)? },
            seg6local::Action::EndDT46 => Behaviour::DT46 { lookup: vrf(self)? },
            seg6local::Action::EndB6 => {
                let seg6 = Seg6 { mode: Mode::Inline, srh: local.srh.clone()? };
                Behaviour::B6(self.headend(&seg6, hop, scope, build)?)
            }
            seg6local::Action::EndBpf => {
                let program = hop.tunnel.as_ref()?.program.as_ref()?.code();
                let numbers: BTreeSet<u32> = self
                    .routes
                    .tables
                    .keys()
                    .filter(|(family, _)| *family == Family::V6)
                    .map(|(_, table)| *table)
                    .collect();
                let tables = numbers.into_iter().map(|table| (table, self.lookup(Scope::Table(table))));
                let tables = tables.collect();
                let source = self.encapsulation_source(hop.oif);
                let fixed_source = !self.tunnel_source.is_unspecified();
                Behaviour::Bpf(Box::new(Bpf { program, lookup: own, tables, source, fixed_source }))
            }
            seg6local::Action::EndB6Encaps => {
                let seg6 = Seg6 { mode: Mode::Encap, srh: local.srh.clone()? };
                Behaviour::B6Encaps(self.headend(&seg6, hop, scope, build)?)
            }
        })
    }

    /// `None`: the list is empty, which no request can make it.
    fn headend(&mut self, seg6: &Seg6, hop: &Hop, scope: Scope, build: &mut Build) -> Option<Headend> {
        let lookup = self.lookup(scope);
        let first = seg6.srh.segments().next_back()?;
        let mode = match seg6.mode {
            Mode::Inline => HeadendMode::Inline,
            Mode::Encap | Mode::EncapRed => HeadendMode::Encap,
            Mode::L2Encap | Mode::L2EncapRed => HeadendMode::L2Encap,
        };
        let source = self.encapsulation_source(hop.oif);
        let mut header = header(seg6, source, first);
        let mut via = self.via(first.into(), lookup, build);
        let mut hmac_open = seg6.srh.hmac();
        if hmac_open && mode != HeadendMode::Inline {
            // It covers nothing of the packet.
            let srh = header.get_mut(OUTER..).unwrap_or_default();
            hmac_open = self.hmac_keys.compiled().make(&source.octets(), srh).is_err();
        }
        if hmac_open {
            via.resolved = None;
        }
        // Every port has Ethernet frames. Where the way out is not known yet, there may be more to it.
        let link_layer = if via.resolved.is_some() { ETHERNET } else { LONGEST_LINK_LAYER };
        let framed = if mode == HeadendMode::L2Encap { ETHERNET } else { 0 };
        let room = (header.len() + framed + link_layer) as u16;
        Some(Headend { mode, header: header.into(), room, hmac_open, via, link: self.link_id(hop.oif) })
    }

    /// `None`: the route has more addresses than a header holds, which no request can ask for.
    fn source_route(
        &mut self,
        route: &underpass_netlink::rpl::Rpl,
        scope: Scope,
        build: &mut Build,
    ) -> Option<Rpl> {
        let addresses: Vec<Ipv6Addr> = route.addresses().collect();
        let lookup = self.lookup(scope);
        let via = self.via((*addresses.first()?).into(), lookup, build);
        Rpl::new(&addresses, via)
    }

    /// The source of outer headers: `ip sr tunsrc`, or what Linux would choose on the link.
    fn encapsulation_source(&self, link: u32) -> Ipv6Addr {
        match self.tunnel_source {
            source if !source.is_unspecified() => source,
            _ => self.source6(link).unwrap_or(Ipv6Addr::UNSPECIFIED),
        }
    }

    pub(super) fn via(&self, address: IpAddr, lookup: LookupId, build: &mut Build) -> Via {
        build.tracked.push(address);
        let unspecified =
            matches!(address, IpAddr::V4(Ipv4Addr::UNSPECIFIED) | IpAddr::V6(Ipv6Addr::UNSPECIFIED));
        let found = if unspecified { None } else { self.published(lookup, address) };
        let resolved = found.and_then(|action| self.routes.compiled.forwards.get(&action).copied());
        Via { address, lookup, resolved }
    }

    /// Resolves the addresses inside a prefix anew that actions hold the resolution of.
    pub(crate) fn resolve_inside(&mut self, family: Family, prefix: Prefix) {
        if self.routes.compiled.tracked.is_empty() {
            return;
        }
        let empty = (Ids::new(), Scope::Rules { link: 0, vrf: None }, None);
        let from = (family, prefix.first(), empty);
        let touched = self.routes.compiled.tracked.range(from..);
        let inside = touched.take_while(|(of, bits, _)| *of == family && *bits <= prefix.last());
        let keys: BTreeSet<ActionKey> = inside.map(|(_, _, key)| key.clone()).collect();
        keys.iter().for_each(|key| self.recompile(key));
    }

    pub(super) fn acquire_next_hop(&mut self, key: NextHopKey, build: &mut Build) -> NextHopId {
        build.next_hops.push(key);
        self.hold_next_hop(key)
    }

    /// The next hop, which one more holds now.
    pub(super) fn hold_next_hop(&mut self, key: NextHopKey) -> NextHopId {
        if let Some((id, users)) = self.routes.compiled.next_hops.get_mut(&key) {
            *users += 1;
            return *id;
        }
        let id = self.engine.add_next_hop(self.next_hop(key));
        self.routes.compiled.next_hops.insert(key, (id, 1));
        id
    }

    pub(super) fn release_next_hop(&mut self, key: NextHopKey) {
        let Some((id, users)) = self.routes.compiled.next_hops.get_mut(&key) else { return };
        *users -= 1;
        if *users == 0 {
            self.engine.remove_next_hop(*id);
            self.routes.compiled.next_hops.remove(&key);
        }
    }

    /// A next hop as it is now.
    fn next_hop(&self, (index, address, mtu): NextHopKey) -> NextHop {
        let link = self.links.get(index);
        let port = link.and_then(Link::port);
        let link_mtu = link.map_or(0, |link| link.mtu);
        let rewrite = link.and_then(|link| {
            // Nobody looks at the addresses where there are none, as on a TUN device.
            let mac = match link.resolves() {
                true => self.routes.published.mac(index, address)?,
                false => [0; 6],
            };
            let mut bytes = [0; 20];
            bytes[..6].copy_from_slice(&mac);
            bytes[6..12].copy_from_slice(&link.mac);
            Some(Rewrite { bytes, len: 12 })
        });
        NextHop {
            link: self.link_id(index),
            port: port.unwrap_or(underpass_engine::buffer::PortId(u16::MAX)),
            mtu: if mtu == 0 { link_mtu } else { mtu },
            rewrite: rewrite.filter(|_| port.is_some()),
            address,
        }
    }

    /// The neighbours that routes name as their gateways and of which the kernel has heard nothing for a while.
    pub fn stale_gateways(&self) -> Vec<(u32, IpAddr)> {
        let of_routes = |key: &&NextHopKey| !self.routes.compiled.hosts.contains_key(key);
        let stale = |key: &&NextHopKey| {
            let neighbour = self.neighbours.get(key.0, key.1);
            neighbour.is_some_and(|neighbour| neighbour.state & libc::NUD_STALE != 0)
        };
        let next_hops = self.routes.compiled.next_hops.keys().filter(of_routes).filter(stale);
        next_hops.map(|&(link, address, _)| (link, address)).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Publishes what has changed of a neighbour.
    pub(crate) fn refresh_next_hop(&mut self, link: u32, address: IpAddr) {
        let keys: Vec<_> = self
            .routes
            .compiled
            .next_hops
            .iter()
            .filter(|(key, _)| (key.0, key.1) == (link, address))
            .map(|(key, (id, _))| (*key, *id))
            .collect();
        for (key, id) in keys {
            let next_hop = self.next_hop(key);
            self.engine.set_next_hop(id, next_hop);
        }
    }

    /// Publishes what has changed of a link to the next hops on it.
    pub(crate) fn refresh_next_hops(&mut self, link: u32) {
        let on_link = self.routes.compiled.next_hops.iter().filter(|(key, _)| key.0 == link);
        let keys: Vec<_> = on_link.map(|(key, (id, _))| (*key, *id)).collect();
        for (key, id) in keys {
            let next_hop = self.next_hop(key);
            self.engine.set_next_hop(id, next_hop);
        }
    }

    /// The action for a neighbour whose address routes cover that lead to its link.
    pub(crate) fn neighbour_action(
        &mut self,
        ids: &Ids,
        scope: Scope,
        family: Family,
        host: u128,
    ) -> Option<ActionId> {
        let [id] = ids[..] else { return None };
        let info = self.routes.infos.get(id)?;
        if info.kind != libc::RTN_UNICAST || info.reject || self.blackhole_object(info) {
            return None;
        }
        let mtu = info.metrics.as_ref().map_or(0, |metrics| metrics[RTAX_MTU - 1]);
        let ways = self.ways(info);
        let mut alive = ways.iter().filter(|hop| !hop.dead);
        let (Some(hop @ Hop { oif, gateway: None, .. }), None) = (alive.next(), alive.next()) else {
            return None;
        };
        if self.kernel_forwards(*oif) {
            return None;
        }
        let address = family.address(host);
        self.routes.published.mac(*oif, address)?;
        if ioam::of(hop).is_some() {
            let key = (ids.clone(), scope, Some(address));
            let link = (*oif, address);
            let known = self.routes.compiled.by_key.get(&key).map(|compiled| compiled.id);
            let action = known.unwrap_or_else(|| self.compile(key.clone()));
            self.routes.compiled.neighbours.entry(link).or_default().insert(key);
            return Some(action);
        }
        if hop.tunnel.is_some() {
            return None;
        }
        let key = (*oif, address, mtu);
        if let Some(&action) = self.routes.compiled.hosts.get(&key) {
            return Some(action);
        }
        let next_hop = self.acquire_next_hop(key, &mut Build::default());
        let action = self.engine.add_action(Action::Forward(next_hop));
        self.routes.compiled.hosts.insert(key, action);
        self.routes.compiled.forwards.insert(action, next_hop);
        Some(action)
    }

    /// Gives back the actions of a neighbour that no host entry names any more.
    pub(crate) fn forget_host(&mut self, link: u32, address: IpAddr) {
        for key in self.routes.compiled.neighbours.remove(&(link, address)).unwrap_or_default() {
            let Some(compiled) = self.routes.compiled.by_key.remove(&key) else { continue };
            for info in &key.0 {
                if let Some(keys) = self.routes.compiled.by_info.get_mut(info) {
                    keys.retain(|kept| *kept != key);
                }
            }
            self.engine.remove_action(compiled.id);
            self.forget(&key, compiled);
        }
        let hosts = self.routes.compiled.hosts.keys();
        let keys: Vec<_> = hosts.filter(|key| (key.0, key.1) == (link, address)).copied().collect();
        for key in keys {
            if let Some(action) = self.routes.compiled.hosts.remove(&key) {
                self.routes.compiled.forwards.remove(&action);
                self.engine.remove_action(action);
                self.release_next_hop(key);
            }
        }
    }
}

fn flavours(flavors: Flavors) -> Flavours {
    let has = |flavor| flavors.operations & flavor != 0;
    let Flavors { block, node_function, .. } = flavors;
    Flavours {
        psp: has(FLAVOR_PSP),
        usp: has(FLAVOR_USP),
        usd: has(FLAVOR_USD),
        next_csid: has(FLAVOR_NEXT_CSID).then_some(NextCsid { block, node_function }),
    }
}

/// The headers that a policy puts before a packet, as [`Headend::header`] describes them.
fn header(seg6: &Seg6, source: Ipv6Addr, first: Ipv6Addr) -> Vec<u8> {
    let srh = match seg6.mode {
        Mode::Inline => {
            let mut srh = seg6.srh.bytes().to_vec();
            srh[8..24].fill(0);
            srh
        }
        Mode::Encap | Mode::L2Encap => seg6.srh.bytes().to_vec(),
        Mode::EncapRed | Mode::L2EncapRed => reduced(&seg6.srh),
    };
    if seg6.mode == Mode::Inline {
        return srh;
    }
    let mut header = vec![0x60, 0, 0, 0, 0, 0, if srh.is_empty() { 0 } else { ROUTING_HEADER }, HOP_LIMIT];
    header.extend_from_slice(&source.octets());
    header.extend_from_slice(&first.octets());
    header.extend_from_slice(&srh);
    header
}

/// The header without the first segment, RFC 8754 section 4.1.1. Of one segment nothing is left, its TLVs
/// neither, as in Linux; but with an HMAC it stays whole.
fn reduced(srh: &SegmentList) -> Vec<u8> {
    let bytes = srh.bytes();
    let Some(last_entry) = bytes[4].checked_sub(1) else {
        return if srh.hmac() { bytes.to_vec() } else { Vec::new() };
    };
    let kept = 8 + (usize::from(last_entry) + 1) * 16;
    let mut reduced = bytes[..kept].to_vec();
    reduced.extend_from_slice(srh.tlvs());
    reduced[1] -= 2;
    reduced[4] = last_entry;
    reduced
}
