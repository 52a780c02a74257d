//! Whose a request is, where there is a kernel beside the router; and what of the kernel's messages programs
//! are shown.
//!
//! The router's own are the routes with an encapsulation, the next-hop objects with one and the routes and
//! groups that use these, the VRFs, dummies and bridges that it makes and what is enslaved to them, the source of
//! encapsulations, and the traffic control of the links that its packets go by. All else is the kernel's.

use std::borrow::Cow;

use underpass_netlink::bridge::PORT_VLAN_TUNNEL;
use underpass_netlink::{Attribute, Message};

use crate::link::bridge::options::{RTM_DELVLAN, RTM_GETVLAN, RTM_NEWVLAN};
use crate::netconf::RTM_GETNETCONF;
use crate::route::get::finds_own;
use crate::route::mpls::AF_MPLS;
use crate::route::nexthop::{RTM_DELNEXTHOP, RTM_GETNEXTHOP, RTM_NEWNEXTHOP};
use crate::route::owner::{adds_own, deletes_own, is_own_object, is_replaced};
use crate::route::{self, Family};
use crate::tc::owner::{control_owner, hides_control};
use crate::{PROTOCOL, Protocol, Request, Router, generic, link, stats, tc};

/// Who answers a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Owner {
    /// The router.
    Router,
    /// The kernel.
    Kernel,
    /// Both: a dump of what each has.
    Both,
}

/// The router's if a condition holds, else the kernel's.
const fn router_if(condition: bool) -> Owner {
    if condition { Owner::Router } else { Owner::Kernel }
}

/// Who answers a message. A request that would fail because of something of the router's own is the
/// router's, and so is one that replaces something of the one by something of the other: the router asks
/// the kernel for its part.
pub fn owner(router: &Router, protocol: Protocol, message: &Message<'_>) -> Owner {
    if router.live.is_none() {
        return Owner::Router;
    }
    if protocol == Protocol::Generic {
        return router_if(generic::is_own(message));
    }
    let request = Request { message: *message, port: 0, strict: false };
    let is_of_bridges = i32::from(request.family()) == libc::AF_BRIDGE;
    match message.kind {
        libc::RTM_SETLINK | libc::RTM_DELLINK | RTM_NEWVLAN | RTM_DELVLAN if is_of_bridges => {
            router_if(is_about_own_bridge(router, message) || asks_for_networks(router, message))
        }
        RTM_GETVLAN if named(router, message).is_some() => router_if(is_about_own_bridge(router, message)),
        libc::RTM_GETLINK | RTM_GETVLAN if is_of_bridges && request.dump() => Owner::Both,
        libc::RTM_NEWLINK | libc::RTM_SETLINK | libc::RTM_DELLINK => {
            router_if(link::is_own(router, &request))
        }
        libc::RTM_GETLINK if request.dump() => router_if(link::is_own_dump(router, &request)),
        libc::RTM_GETNEIGH if is_of_bridges && request.dump() && !is_about_own_station(router, message) => {
            Owner::Both
        }
        libc::RTM_NEWNEIGH | libc::RTM_DELNEIGH | libc::RTM_GETNEIGH if is_of_bridges => {
            router_if(is_about_own_station(router, message))
        }
        RTM_NEWNEXTHOP => router_if(is_own_object(router, &request, true)),
        RTM_DELNEXTHOP => router_if(is_own_object(router, &request, false)),
        RTM_GETNEXTHOP if request.dump() => Owner::Both,
        RTM_GETNEXTHOP => router_if(is_own_object(router, &request, false)),
        // In the order of their priority, whoever's they are.
        libc::RTM_GETRULE if request.dump() => {
            router_if(matches!(i32::from(request.family()), libc::AF_UNSPEC | libc::AF_INET | libc::AF_INET6))
        }
        libc::RTM_NEWRULE | libc::RTM_DELRULE => router_if(route::is_own_rule(message)),
        libc::RTM_NEWROUTE | libc::RTM_DELROUTE | libc::RTM_GETROUTE | RTM_GETNETCONF
            if request.family() == AF_MPLS =>
        {
            Owner::Router
        }
        RTM_GETNETCONF if request.dump() && request.family() == 0 => Owner::Both,
        libc::RTM_GETSTATS => router_if(stats::is_own(&request)),
        libc::RTM_NEWROUTE | libc::RTM_DELROUTE | libc::RTM_GETROUTE => route_owner(router, &request),
        kind if tc::is_about(kind) => control_owner(router, message),
        _ => Owner::Kernel,
    }
}

fn route_owner(router: &Router, request: &Request<'_>) -> Owner {
    let kind = request.message.kind;
    if kind == libc::RTM_GETROUTE && request.dump() && request.family() == 0 {
        return Owner::Both;
    }
    let Some(family) = Family::from_number(request.family()) else { return Owner::Kernel };
    match kind {
        libc::RTM_GETROUTE if request.dump() => Owner::Both,
        libc::RTM_GETROUTE => router_if(finds_own(router, request, family)),
        libc::RTM_DELROUTE => router_if(deletes_own(router, request, family)),
        _ => router_if(adds_own(router, request, family)),
    }
}

/// The link that a message names in its header, after a family: `struct ifinfomsg`, `struct br_vlan_msg`, `struct ndmsg`.
fn named<'r>(router: &'r Router, message: &Message<'_>) -> Option<&'r link::Link> {
    let index = message.body().get(4..8)?.first_chunk()?;
    router.links.get(u32::from_ne_bytes(*index))
}

/// Whether a message is about a bridge of the router's, or a port of one.
fn is_about_own_bridge(router: &Router, message: &Message<'_>) -> bool {
    named(router, message).is_some_and(|link| link.bridge.is_some() || link.bridge_port.is_some())
}

/// Whether a message asks that the VLANs of a port, which is a tunnel of the router's, be networks: no bridge of the kernel's could tell
/// the router which, and so it is refused.
fn asks_for_networks(router: &Router, message: &Message<'_>) -> bool {
    /// Length of a `struct ifinfomsg`.
    const LENGTH: usize = 16;
    let switches = |port: Attribute<'_>| {
        port.nested()
            .any(|inner| inner.kind == PORT_VLAN_TUNNEL && inner.value.first().is_some_and(|on| *on != 0))
    };
    let of_port = message.attributes(LENGTH).filter(|attribute| attribute.kind == libc::IFLA_PROTINFO);
    let tunnel = named(router, message).is_some_and(|link| link.tunnel.is_some());
    tunnel && of_port.into_iter().any(switches)
}

/// Whether a message is about a station of a VXLAN of the router's.
fn is_about_end(router: &Router, message: &Message<'_>) -> bool {
    let [family, flags] = [0, 10].map(|at| message.body().get(at).copied().unwrap_or(0));
    let of_device = i32::from(family) == libc::AF_BRIDGE && flags & libc::NTF_SELF != 0;
    of_device && named(router, message).is_some_and(link::Link::has_ends)
}

/// The same, or of a bridge of the router's.
fn is_about_own_station(router: &Router, message: &Message<'_>) -> bool {
    // `struct ndmsg`: a family, an index, a state and flags.
    const LENGTH: usize = 12;
    const FLAGS: usize = 10;
    let Some(header) = message.body().first_chunk::<LENGTH>() else { return false };
    if i32::from(header[0]) != libc::AF_BRIDGE {
        return false;
    }
    let is_of = |flag: u8| header[FLAGS] & flag != 0;
    let master = message.attributes(LENGTH).find(|attribute| attribute.kind == libc::NDA_MASTER);
    let is_bridge = |index: Attribute<'_>| index.value.len() == 4 && is_own_bridge(router, index.u32());
    master.is_some_and(is_bridge)
        || named(router, message).is_some_and(|link| {
            is_about_end(router, message)
                || (is_of(libc::NTF_MASTER) || header[FLAGS] == 0) && link.bridge_port.is_some()
                || link.bridge.is_some()
        })
}

fn is_own_bridge(router: &Router, index: u32) -> bool {
    router.links.get(index).is_some_and(|link| link.bridge.is_some())
}

/// Whether a message that nobody waits for, one of a dump or a notification, is about a device that stands for another one.
fn is_about_stand_in(router: &Router, message: &Message<'_>) -> bool {
    // `struct ifinfomsg`, `struct ifaddrmsg`, `struct ndmsg` and `struct tcmsg` have the index at the same place.
    const INDEX: std::ops::Range<usize> = 4..8;
    let about_links =
        matches!(message.kind, libc::RTM_NEWLINK | libc::RTM_DELLINK | libc::RTM_NEWADDR | libc::RTM_DELADDR)
            || matches!(message.kind, libc::RTM_NEWNEIGH | libc::RTM_DELNEIGH)
            || tc::is_about(message.kind);
    let unasked = i32::from(message.flags) & libc::NLM_F_MULTI != 0 || message.sequence == 0;
    let index = message.body().get(INDEX).and_then(|index| index.first_chunk());
    about_links && unasked && index.is_some_and(|index| router.stands_in(u32::from_ne_bytes(*index)))
}

/// What a program is shown of a message that the kernel sends it; `None` for nothing.
pub fn translate<'a>(router: &Router, message: &Message<'a>) -> Option<Cow<'a, [u8]>> {
    let keep = Some(Cow::Borrowed(message.bytes));
    if router.live.is_none() {
        return keep;
    }
    if is_about_stand_in(router, message) {
        return None;
    }
    match message.kind {
        libc::RTM_NEWROUTE | libc::RTM_DELROUTE => {
            let hidden = message.body().get(5) == Some(&PROTOCOL)
                || is_replaced(router, message)
                || router.is_about_host_address(message);
            keep.filter(|_| !hidden)
        }
        libc::RTM_NEWADDR | libc::RTM_DELADDR => keep.filter(|_| !router.is_about_host_address(message)),
        libc::RTM_NEWRULE | libc::RTM_DELRULE => keep.filter(|_| !route::is_rule_of(message, PROTOCOL)),
        libc::RTM_NEWLINK | libc::RTM_DELLINK => match link::rewrite(router, message) {
            Some(bytes) => Some(Cow::Owned(bytes)),
            None => keep,
        },
        // The device that the kernel has for a VXLAN knows no stations.
        libc::RTM_NEWNEIGH | libc::RTM_DELNEIGH => keep.filter(|_| !is_about_end(router, message)),
        kind if tc::is_about(kind) => keep.filter(|_| !hides_control(router, message)),
        _ => keep,
    }
}
