//! Label routes by next-hop objects, which Linux does not have: the ways of an object are those of the route, the labels
//! of its `encap mpls` take the place of the route's own, and the weights of a group spread flows.

use libc::EINVAL;
use underpass_engine::tables::MAX_LABEL_NEXT_HOPS;
use underpass_netlink::mpls::Via;
use underpass_netlink::{Encap, RequestError};

use super::{LabelNextHop, OWN_LABELS, Stacks};
use crate::Router;
use crate::route::info::Hop;
use crate::route::nexthop::{Kind, Object};

const fn refuse(message: &'static str) -> RequestError {
    RequestError::new(EINVAL, message)
}

/// What ways put on by themselves, as the routes of no object have it.
pub(super) fn stacks(ways: &[LabelNextHop]) -> Stacks {
    let stack =
        |way: &LabelNextHop| way.labels.iter().copied().filter(|_| way.labels.len() <= OWN_LABELS).collect();
    ways.iter().map(stack).collect::<Stacks>()
}

fn way(hop: &Hop) -> LabelNextHop {
    let labels = match hop.encap() {
        Some(Encap::Mpls(mpls)) => mpls.labels.clone(),
        _ => Box::default(),
    };
    LabelNextHop { oif: hop.oif, via: hop.gateway.map(Via::Ip), weight: hop.weight, labels }
}

/// The ways of an object as those of a label.
pub(super) fn label_ways(router: &Router, object: u32) -> Result<Vec<LabelNextHop>, RequestError> {
    let found = router.routes.objects.get(object).ok_or(refuse("Nexthop id does not exist"))?;
    check_label_object(router, &found.kind)?;
    Ok(router.routes.objects.ways(object).iter().map(way).collect())
}

/// Whether label routes can use an object of this kind.
pub(crate) fn check_label_object(router: &Router, kind: &Kind) -> Result<(), RequestError> {
    match kind {
        Kind::Blackhole => Err(refuse("MPLS routes can not use a blackhole nexthop")),
        Kind::Single(hop) => match hop.encap() {
            None => Ok(()),
            Some(Encap::Mpls(mpls)) if mpls.ttl.is_none() => Ok(()),
            Some(Encap::Mpls(_)) => Err(refuse("MPLS routes can not use a nexthop with a TTL of its own")),
            Some(_) => Err(refuse("MPLS routes can not use a nexthop with an encapsulation but MPLS")),
        },
        Kind::Group(members) if members.len() > MAX_LABEL_NEXT_HOPS => {
            Err(refuse("MPLS routes can not use a nexthop group of so many"))
        }
        Kind::Group(members) => {
            let mut members = members.iter().filter_map(|(id, _)| router.routes.objects.get(*id));
            members.try_for_each(|Object { kind, .. }| check_label_object(router, kind))
        }
    }
}

/// The specs whose object is this one, or a group that has it.
pub(crate) fn label_users(router: &Router, id: u32) -> Vec<u32> {
    let labels = &router.routes.labels;
    let object = |number: &u32| labels.specs.get(*number as usize)?.as_ref()?.spec.object;
    let uses = |used: u32| used == id || router.routes.objects.contains(used, id);
    labels.by_objects.iter().copied().filter(|number| object(number).is_some_and(uses)).collect()
}
