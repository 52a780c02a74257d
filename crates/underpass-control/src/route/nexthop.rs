//! Next-hop objects. Linux: `net/ipv4/nexthop.c`.

use std::collections::BTreeMap;

use libc::EINVAL;
use underpass_netlink::Refusal;

use super::info::Hop;

/// What an object is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Single(Hop),
    Blackhole,
    /// Ids and weights of other objects.
    Group(Vec<(u32, u16)>),
}

/// A next-hop object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Object {
    /// `AF_*`: whose routes it can serve; `AF_UNSPEC` for a group.
    pub family: u8,
    /// `RTPROT_*`.
    pub protocol: u8,
    pub kind: Kind,
}

impl crate::Router {
    /// The objects of a link that is down go, with the routes that use them.
    pub(crate) fn flush_objects_of(&mut self, _cause: crate::events::Cause, _link: u32) {}
}

/// All objects by id.
#[derive(Debug, Default)]
pub(crate) struct Objects {
    by_id: BTreeMap<u32, Object>,
    /// Changes with every change of an object.
    pub generation: u64,
}

impl Objects {
    pub fn get(&self, id: u32) -> Option<&Object> {
        self.by_id.get(&id)
    }

    /// The ways of an object: those of a group's members with their weights.
    pub fn ways(&self, id: u32) -> Vec<Hop> {
        match self.get(id).map(|object| &object.kind) {
            Some(Kind::Single(hop)) => vec![hop.clone()],
            Some(Kind::Group(members)) => {
                let way = |&(id, weight): &(u32, u16)| match &self.get(id)?.kind {
                    Kind::Single(hop) => Some(Hop { weight, ..hop.clone() }),
                    _ => None,
                };
                members.iter().filter_map(way).collect()
            }
            Some(Kind::Blackhole) | None => Vec::new(),
        }
    }

    /// Whether an IPv4 route of a scope may use the object. Linux: `fib_check_nexthop`.
    pub fn check4(&self, id: u32, scope: u8) -> Result<(), Refusal> {
        let missing = Refusal::new(EINVAL, "Nexthop id does not exist");
        let object = self.get(id).ok_or(missing)?;
        if scope == libc::RT_SCOPE_HOST && matches!(object.kind, Kind::Group(_)) {
            return Err(Refusal::new(EINVAL, "Route with host scope can not have multiple nexthops"));
        }
        let gateway = self.ways(id).iter().any(|hop| hop.gateway.is_some());
        if scope == libc::RT_SCOPE_HOST && gateway {
            return Err(Refusal::new(EINVAL, "Route with host scope can not have a gateway"));
        }
        if scope >= libc::RT_SCOPE_LINK && gateway && object.kind != Kind::Blackhole {
            return Err(Refusal::new(EINVAL, "Scope mismatch with nexthop"));
        }
        Ok(())
    }

    /// Whether an IPv6 route may use the object. Linux: `fib6_check_nexthop`.
    pub fn check6(&self, id: u32) -> Result<(), Refusal> {
        let missing = Refusal::new(EINVAL, "Nexthop id does not exist");
        let object = self.get(id).ok_or(missing)?;
        let v4 = |id: u32| self.get(id).is_some_and(|object| i32::from(object.family) == libc::AF_INET);
        let wrong = match &object.kind {
            Kind::Group(members) => members.iter().any(|(id, _)| v4(*id)),
            Kind::Single(_) => v4(id),
            Kind::Blackhole => false,
        };
        if wrong {
            return Err(Refusal::new(EINVAL, "IPv6 routes can not use an IPv4 nexthop"));
        }
        Ok(())
    }
}
