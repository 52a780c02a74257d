//! Next-hop objects. Linux: `net/ipv4/nexthop.c`.

pub(crate) mod mirror;
pub(crate) mod request;
pub(crate) mod save;

use std::collections::BTreeMap;
use std::ops::Bound;

use libc::EINVAL;
use underpass_netlink::RequestError;

pub(crate) use request::{
    NHA_ENCAP, NHA_ENCAP_TYPE, NHA_GROUP, NHA_GROUP_TYPE, NHA_ID, NHA_OIF, NHA_OP_FLAG_RESP_GRP_RESVD_0,
    NHA_OP_FLAGS, RTM_DELNEXTHOP, RTM_GETNEXTHOP, RTM_NEWNEXTHOP, delete, dump, get, new,
};

use super::info::{Hop, Origin};

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
    pub origin: Origin,
}

/// All objects by id.
#[derive(Debug, Default)]
pub(crate) struct Objects {
    by_id: BTreeMap<u32, Object>,
    /// Changes with every change of an object.
    pub generation: u64,
    last_id: u32,
}

/// The way of an object that discards: as Linux shows it, over the loopback link.
const fn discarding() -> Hop {
    Hop { oif: 1, gateway: None, onlink: false, dead: false, weight: 1, tunnel: None }
}

impl Objects {
    pub fn get(&self, id: u32) -> Option<&Object> {
        self.by_id.get(&id)
    }

    /// The ids of all objects.
    pub fn ids(&self) -> impl Iterator<Item = u32> {
        self.by_id.keys().copied()
    }

    /// The first object whose id is above this one.
    fn after(&self, id: u32) -> Option<(u32, &Object)> {
        let mut above = self.by_id.range((Bound::Excluded(id), Bound::Unbounded));
        above.next().map(|(id, object)| (*id, object))
    }

    /// An id that no object has. Linux: `nh_find_unused_id`.
    fn unused_id(&mut self) -> u32 {
        loop {
            self.last_id = self.last_id.wrapping_add(1).max(1);
            if !self.by_id.contains_key(&self.last_id) {
                return self.last_id;
            }
        }
    }

    /// The members of the groups that an object is in.
    fn groups_with(&self, id: u32) -> impl Iterator<Item = &Vec<(u32, u16)>> {
        let members = self.by_id.values().filter_map(|object| match &object.kind {
            Kind::Group(members) => Some(members),
            _ => None,
        });
        members.filter(move |members| members.iter().any(|(member, _)| *member == id))
    }

    /// Whether an object is a group.
    pub fn is_group(&self, id: u32) -> bool {
        self.get(id).is_some_and(|object| matches!(object.kind, Kind::Group(_)))
    }

    /// Whether an object is a group that has this member.
    pub fn contains(&self, group: u32, id: u32) -> bool {
        let kind = self.get(group).map(|object| &object.kind);
        matches!(kind, Some(Kind::Group(members)) if members.iter().any(|(member, _)| *member == id))
    }

    /// The objects that lead to a link.
    fn on_link(&self, link: u32) -> Vec<u32> {
        let leads = |object: &Object| matches!(&object.kind, Kind::Single(hop) if hop.oif == link);
        self.by_id.iter().filter(|(_, object)| leads(object)).map(|(id, _)| *id).collect()
    }

    /// Puts an object in; returns the one that had the id.
    fn put(&mut self, id: u32, object: Object) -> Option<Object> {
        self.generation += 1;
        self.by_id.insert(id, object)
    }

    /// Removes an object, also from its groups; returns it, the groups that are now empty, and those
    /// that have lost a member.
    fn remove(&mut self, id: u32) -> (Option<Object>, Vec<u32>, Vec<u32>) {
        self.generation += 1;
        let old = self.by_id.remove(&id);
        let (mut emptied, mut shrunk) = (Vec::new(), Vec::new());
        for (group, object) in &mut self.by_id {
            let Kind::Group(members) = &mut object.kind else { continue };
            let before = members.len();
            members.retain(|(member, _)| *member != id);
            if members.is_empty() {
                emptied.push(*group);
            } else if members.len() < before {
                shrunk.push(*group);
            }
        }
        (old, emptied, shrunk)
    }

    /// The ways of an object: those of a group's members with their weights.
    pub fn ways(&self, id: u32) -> Vec<Hop> {
        match self.get(id).map(|object| &object.kind) {
            Some(Kind::Single(hop)) => vec![hop.clone()],
            Some(Kind::Group(members)) => {
                let way = |&(id, weight): &(u32, u16)| match &self.get(id)?.kind {
                    Kind::Single(hop) => Some(Hop { weight, ..hop.clone() }),
                    Kind::Blackhole => Some(discarding()),
                    Kind::Group(_) => None,
                };
                members.iter().filter_map(way).collect()
            }
            Some(Kind::Blackhole) => vec![discarding()],
            None => Vec::new(),
        }
    }

    /// Whether the kernel alone can forward by an object or a member of it.
    pub fn is_kernels_alone(&self, id: u32) -> bool {
        let alone = |object: &Object| object.origin == Origin::KernelAlone;
        self.get(id).is_some_and(|object| match &object.kind {
            Kind::Group(members) => {
                alone(object) || members.iter().any(|(member, _)| self.get(*member).is_some_and(alone))
            }
            _ => alone(object),
        })
    }

    /// Whether an object discards: itself, or as the one member of a group.
    pub fn discards(&self, id: u32) -> bool {
        match self.get(id).map(|object| &object.kind) {
            Some(Kind::Blackhole) => true,
            Some(Kind::Group(members)) => members
                .iter()
                .any(|(member, _)| self.get(*member).is_some_and(|member| member.kind == Kind::Blackhole)),
            _ => false,
        }
    }

    /// Whether an IPv4 route of a scope may use the object. Linux: `fib_check_nexthop`.
    pub fn check4(&self, id: u32, scope: u8) -> Result<(), RequestError> {
        let missing = RequestError::new(EINVAL, "Nexthop id does not exist");
        let object = self.get(id).ok_or(missing)?;
        if scope == libc::RT_SCOPE_HOST && matches!(object.kind, Kind::Group(_)) {
            return Err(RequestError::new(EINVAL, "Route with host scope can not have multiple nexthops"));
        }
        // Of a group Linux looks at the first.
        let ways = self.ways(id);
        let first = ways.first();
        if scope == libc::RT_SCOPE_HOST && first.is_some_and(|hop| hop.gateway.is_some()) {
            return Err(RequestError::new(EINVAL, "Route with host scope can not have a gateway"));
        }
        if scope >= libc::RT_SCOPE_LINK && first.is_some_and(|hop| hop.onlink) {
            return Err(RequestError::new(EINVAL, "Scope mismatch with nexthop"));
        }
        Ok(())
    }

    /// Whether an IPv6 route may use the object. Linux: `fib6_check_nexthop`.
    pub fn check6(&self, id: u32) -> Result<(), RequestError> {
        let missing = RequestError::new(EINVAL, "Nexthop id does not exist");
        let object = self.get(id).ok_or(missing)?;
        let v4 = |id: u32| self.get(id).is_some_and(|object| i32::from(object.family) == libc::AF_INET);
        let wrong = match &object.kind {
            Kind::Group(members) => members.iter().any(|(id, _)| v4(*id)),
            Kind::Single(_) | Kind::Blackhole => v4(id),
        };
        if wrong {
            return Err(RequestError::new(EINVAL, "IPv6 routes can not use an IPv4 nexthop"));
        }
        Ok(())
    }
}
