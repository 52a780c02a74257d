//! Routes of labels, compiled for the packet path.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use underpass_engine::tables::{
    Action, Discard, IpVersion, LabelAction, LookupId, NextHop, Rewrite, Switch, SwitchTo,
};
use underpass_netlink::RequestError;
use underpass_netlink::mpls::{Via, stack};

use super::dump::notify_label;
use super::netconf::notify_label_input;
use super::object::{self, label_ways};
use super::{
    Compiled, Entry, LabelNextHop, List, NO_ROUTE, OWN_LABELS, Route, SPECS, Spec, Stack, Stacks, To,
};
use crate::Router;
use crate::events::Cause;
use crate::link::LOOPBACK;
use crate::link::publish::publish_link;
use crate::route::RouteLimits;
use crate::route::next_hop::{hold_next_hop, release_next_hop};
use crate::route::publish::lookup_id;
use crate::route::published::Scope;
use crate::route::recompile::recompile_all;
use crate::route::scope::link_id;

/// Sets `net.mpls.platform_labels`: labels from there on lose their routes. Linux:
/// `resize_platform_label_table`.
pub(crate) fn resize_labels(router: &mut Router, count: u32) {
    let old = router.routes.labels.routes.len() as u32;
    for label in count..old {
        forget_label(router, label);
    }
    router.routes.labels.routes.resize(count as usize, NO_ROUTE);
    router.routes.labels.routes.shrink_to_fit();
    publish_explicit_nulls(router);
}

/// RFC 3032 section 2.1: the explicit null labels end here. Where another label is below, it is looked up as one that
/// comes in by `lo`.
fn publish_explicit_nulls(router: &mut Router) {
    let count = router.routes.labels.routes.len() as u32;
    for (place, label, payload) in [(0, 0, IpVersion::V4), (1, 2, IpVersion::V6)] {
        let action = (count > label).then(|| {
            let labels = router.routes.labels.takes(LOOPBACK);
            let to = SwitchTo::Here { lookup: here(router, None), labels, vrf: None };
            let propagate = router.routes.labels.propagate;
            let switch = Switch { labels: Box::default(), to, propagate, payload: Some(payload) };
            router.engine.add_action(Action::Switch(switch))
        });
        let old = std::mem::replace(&mut router.routes.labels.explicit_nulls[place], action);
        router.engine.set_label(label, action.map(LabelAction::Act));
        old.into_iter().for_each(|old| router.engine.remove_action(old));
    }
}

/// Sets `net.mpls.ip_ttl_propagate`.
pub(crate) fn set_ttl_propagate(router: &mut Router, propagate: bool) {
    router.routes.labels.propagate = propagate;
    recompile_labels(router, |_, _| true);
    publish_explicit_nulls(router);
    recompile_all(router);
}

/// Sets `net.mpls.default_ttl`.
pub(crate) fn set_label_ttl(router: &mut Router, ttl: u8) {
    router.routes.labels.default_ttl = ttl;
    recompile_all(router);
}

/// Sets `net.mpls.conf.IF.input`.
pub(crate) fn set_label_input(router: &mut Router, link: u32, takes: bool) {
    let labels = &mut router.routes.labels;
    let changed = if takes { labels.input.insert(link) } else { labels.input.remove(&link) };
    if changed {
        publish_link(router, link);
        notify_label_input(router, link);
        let loopback = router.links.get(link).is_some_and(|link| link.kind == crate::LinkKind::Loopback);
        if loopback {
            recompile_labels(router, |_, _| true);
            publish_explicit_nulls(router);
        }
    }
}

/// Gives a label another route, or none.
pub(super) fn set_label(
    router: &mut Router,
    label: u32,
    route: Option<(Spec, Stacks)>,
) -> Result<(), RequestError> {
    let Some(&old) = router.routes.labels.routes.get(label as usize) else { return Ok(()) };
    let new = match route {
        Some((spec, stacks)) => {
            let spec = hold_spec(router, spec)?;
            router.routes.labels.route(spec, &stacks)
        }
        None => NO_ROUTE,
    };
    let labels = &mut router.routes.labels;
    labels.routes[label as usize] = new;
    labels.generation += 1;
    publish_label(router, label);
    if let Some(list) = old.list() {
        let labels = &mut router.routes.labels;
        labels.lists[list] = List::new();
        labels.free_lists.push(list as u32);
    }
    if let Some(spec) = old.spec() {
        release_spec(router, spec);
    }
    Ok(())
}

pub(super) fn forget_label(router: &mut Router, label: u32) {
    // Only a new route needs memory.
    let _ = set_label(router, label, None);
}

fn publish_label(router: &mut Router, label: u32) {
    let old = router.engine.label(label);
    let new = label_action(router, label);
    router.engine.set_label(label, new);
    if let Some(LabelAction::NextHops(ways)) = old {
        router.engine.remove_label_next_hops(ways);
    }
}

fn label_action(router: &mut Router, label: u32) -> Option<LabelAction> {
    let labels = &router.routes.labels;
    let (route, spec) = labels.get(label)?;
    let compiled = &labels.specs.get(route.spec()? as usize)?.as_ref()?.compiled;
    let propagate = spec.propagate.unwrap_or(labels.propagate);
    let action = |to: To, stack: &Stack| match (to, &stack[..]) {
        (To::NextHop(next_hop), []) => LabelAction::Pop { next_hop, propagate },
        (To::NextHop(next_hop), [label]) => LabelAction::Swap { label: *label, next_hop },
        (To::NextHop(next_hop), [first, last, ..]) => {
            LabelAction::SwapPush { labels: [*first, *last], next_hop }
        }
        (To::Act(action), _) => LabelAction::Act(action),
    };
    let stacks = match spec.object {
        Some(_) => object::stacks(&spec.ways),
        None => labels.stacks(route),
    };
    if let ([to], [stack]) = (&compiled.to[..], &stacks[..]) {
        return match to {
            Some(to) => Some(action(*to, stack)),
            None => compiled.discard.map(LabelAction::Act),
        };
    }
    let ways = spec.ways.iter().zip(&compiled.to).zip(&stacks);
    let ways: Vec<(u16, LabelAction)> =
        ways.filter_map(|((way, to), stack)| Some((way.weight, action((*to)?, stack)))).collect();
    if ways.is_empty() {
        return compiled.discard.map(LabelAction::Act);
    }
    Some(LabelAction::NextHops(router.engine.add_label_next_hops(&ways)))
}

fn hold_spec(router: &mut Router, spec: Spec) -> Result<u32, RequestError> {
    if let Some(&number) = router.routes.labels.by_spec.get(&spec) {
        if let Some(Some(entry)) = router.routes.labels.specs.get_mut(number as usize) {
            entry.routes += 1;
        }
        return Ok(number);
    }
    let labels = &mut router.routes.labels;
    let number = match labels.free_specs.pop() {
        Some(number) => number,
        None if labels.specs.len() >= SPECS => return Err(RequestError::errno(libc::ENOMEM)),
        None => {
            labels.specs.push(None);
            labels.specs.len() as u32 - 1
        }
    };
    let spec = Arc::new(spec);
    let compiled = compile_spec(router, &spec);
    let labels = &mut router.routes.labels;
    labels.by_spec.insert(spec.clone(), number);
    if spec.object.is_some() {
        labels.by_objects.insert(number);
    }
    labels.specs[number as usize] = Some(Entry { spec, routes: 1, compiled });
    Ok(number)
}

fn release_spec(router: &mut Router, number: u32) {
    let labels = &mut router.routes.labels;
    let Some(slot) = labels.specs.get_mut(number as usize) else { return };
    let Some(entry) = slot else { return };
    entry.routes -= 1;
    if entry.routes == 0
        && let Some(entry) = slot.take()
    {
        labels.by_spec.remove(&entry.spec);
        labels.by_objects.remove(&number);
        labels.free_specs.push(number);
        forget_compiled_spec(router, entry.compiled);
    }
}

fn forget_compiled_spec(router: &mut Router, compiled: Compiled) {
    compiled.discard.into_iter().for_each(|action| router.engine.remove_action(action));
    for to in compiled.to.into_iter().flatten() {
        if let To::Act(action) = to {
            router.engine.remove_action(action);
        }
    }
    compiled.neighbours.into_iter().for_each(|key| release_next_hop(router, key));
    compiled.stations.into_iter().for_each(|id| router.engine.remove_next_hop(id));
}

/// A link has gone down, come up or changed: what leads to it follows.
pub(crate) fn refresh_labels_of(router: &mut Router, link: u32) {
    recompile_labels(router, |_, spec| spec.ways.iter().any(|way| way.oif == link));
}

/// A link is no more: routes whose every way led to it go. Linux: `mpls_ifdown`, which tells.
pub(crate) fn forget_labels_of(router: &mut Router, link: u32) {
    router.routes.labels.input.remove(&link);
    forget_labels(router, Cause::default(), |spec| spec.ways.iter().all(|way| way.oif == link));
}

/// Routes of some specs go, and that is told.
fn forget_labels(router: &mut Router, cause: Cause, gone: impl Fn(&Spec) -> bool) {
    let labels = &router.routes.labels;
    let gone = |entry: &Entry| gone(&entry.spec);
    let specs = (0..).zip(&labels.specs).filter(|(_, entry)| entry.as_ref().is_some_and(gone));
    let specs: BTreeSet<u32> = specs.map(|(number, _)| number).collect();
    if specs.is_empty() {
        return;
    }
    for label in labels_of(router, |spec| specs.contains(&spec)) {
        notify_label(router, cause, libc::RTM_DELROUTE, 0, label);
        forget_label(router, label);
    }
}

/// The labels whose spec is one of those.
fn labels_of(router: &Router, specs: impl Fn(u32) -> bool) -> Vec<u32> {
    let of = |(_, route): &(u32, &Route)| route.spec().is_some_and(&specs);
    (0..).zip(&router.routes.labels.routes).filter(of).map(|(label, _)| label).collect()
}

fn recompile_labels(router: &mut Router, touched: impl Fn(u32, &Spec) -> bool) {
    let mut replaced = BTreeMap::new();
    for number in 0..router.routes.labels.specs.len() {
        let Some(Some(entry)) = router.routes.labels.specs.get(number) else { continue };
        if !touched(number as u32, &entry.spec) {
            continue;
        }
        let spec = entry.spec.clone();
        let compiled = compile_spec(router, &spec);
        let Some(Some(entry)) = router.routes.labels.specs.get_mut(number) else { continue };
        replaced.insert(number as u32, std::mem::replace(&mut entry.compiled, compiled));
    }
    for label in labels_of(router, |spec| replaced.contains_key(&spec)) {
        publish_label(router, label);
    }
    replaced.into_values().for_each(|old| forget_compiled_spec(router, old));
}

fn compile_spec(router: &mut Router, spec: &Spec) -> Compiled {
    let mut compiled = Compiled::default();
    let propagate = spec.propagate.unwrap_or(router.routes.labels.propagate);
    let mut ways = Vec::with_capacity(spec.ways.len());
    for way in &spec.ways {
        let to = way_to(router, way, &mut compiled);
        ways.push(to.map(|to| match to {
            SwitchTo::NextHop(next_hop)
                if way.labels.is_empty() || spec.object.is_some() && way.labels.len() <= OWN_LABELS =>
            {
                To::NextHop(next_hop)
            }
            to => {
                let mut labels = stack(&way.labels);
                if let [.., flags, _] = &mut labels[..] {
                    *flags &= !1;
                }
                let switch = Switch { labels: labels.into(), to, propagate, payload: None };
                To::Act(router.engine.add_action(Action::Switch(switch)))
            }
        }));
    }
    if ways.iter().all(Option::is_none) {
        compiled.discard = Some(router.engine.add_action(Action::Discard(Discard::Unreachable)));
    }
    compiled.to = ways.into();
    compiled
}

/// Where a way leads; `None`: its link is down or no more.
fn way_to(router: &mut Router, way: &LabelNextHop, compiled: &mut Compiled) -> Option<SwitchTo> {
    let link = router.links.get(way.oif).filter(|link| link.up())?;
    let (table, id, mac) = (link.vrf_table(), link.id, link.mac);
    let resolves = link.kind != crate::LinkKind::Loopback;
    let station = match way.via {
        None if table.is_some() || !resolves => {
            let labels = table.is_none() && router.routes.labels.takes(way.oif);
            return Some(SwitchTo::Here { lookup: here(router, table), labels, vrf: table.map(|_| id) });
        }
        Some(Via::Ip(address)) => {
            let key = (way.oif, address, RouteLimits::default());
            let next_hop = hold_next_hop(router, key);
            compiled.neighbours.push(key);
            return Some(SwitchTo::NextHop(next_hop));
        }
        Some(Via::Link(station)) => station,
        None => mac,
    };
    let (mtu, port) = (link.mtu, link.port()?);
    let mut bytes = [0; 20];
    bytes[..6].copy_from_slice(&station);
    bytes[6..12].copy_from_slice(&mac);
    let next_hop = router.engine.add_next_hop(NextHop {
        link: link_id(router, way.oif),
        port,
        mtu,
        locked: false,
        hop_limit: 0,
        rewrite: Some(Rewrite { bytes, len: 12 }),
        address: std::net::Ipv4Addr::UNSPECIFIED.into(),
    });
    compiled.stations.push(next_hop);
    Some(SwitchTo::NextHop(next_hop))
}

/// Where packets are looked up that have arrived, in a VRF or not.
fn here(router: &mut Router, vrf: Option<u32>) -> LookupId {
    lookup_id(router, Scope::Rules { link: 0, vrf })
}

/// The objects of these specs have changed. A kernel's may have become one that no label can use.
pub(crate) fn label_objects_changed(router: &mut Router, specs: &[u32]) {
    for &number in specs {
        let entry = router.routes.labels.specs.get(number as usize).and_then(Option::as_ref);
        let Some(Entry { spec, .. }) = entry else { continue };
        let Some(object) = spec.object else { continue };
        let Ok(ways) = label_ways(router, object) else {
            forget_labels_by(router, Cause::default(), object);
            continue;
        };
        let (old, new) = (spec.clone(), Arc::new(Spec { ways: ways.into(), ..Spec::clone(spec) }));
        let labels = &mut router.routes.labels;
        labels.generation += 1;
        labels.by_spec.remove(&old);
        labels.by_spec.insert(new.clone(), number);
        if let Some(Some(entry)) = labels.specs.get_mut(number as usize) {
            entry.spec = new;
        }
    }
    if !specs.is_empty() {
        recompile_labels(router, |number, _| specs.contains(&number));
    }
}

/// An object is no more: nor are the routes of labels by it.
pub(crate) fn forget_labels_by(router: &mut Router, cause: Cause, object: u32) {
    forget_labels(router, cause, |spec| spec.object == Some(object));
}
