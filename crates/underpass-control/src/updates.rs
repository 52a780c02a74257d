//! Dependency updates: what changes of links, addresses and neighbours mean for routes.

use std::net::IpAddr;

use crate::Router;
use crate::address::publish::publish_instance;
use crate::events::Cause;
use crate::link::bridge::publish::publish_neighbour;
use crate::link::tunnel::publish::publish_tunnels_by;
use crate::route::mpls::publish::refresh_labels_of;
use crate::route::nexthop::request::flush_objects_of;
use crate::route::recompile::{
    forget_gateways, refresh_egress, refresh_lookups, refresh_next_hops, set_neighbour,
};
use crate::route::rule::request::add_vrf_rules;
use crate::route::update::{
    add_vrf_tables, flush_routes_from, flush_routes_of, flush_routes4_of, revive_routes_of,
};

/// A link has gone down, or is about to be deleted: the routes by it go.
pub(crate) fn link_gone_down(router: &mut Router, cause: Cause, link: u32) {
    flush_objects_of(router, cause, link);
    flush_routes_of(router, cause, link);
    refresh_labels_of(router, link);
}

/// A link's MTU, MAC address, state or VRF has changed: what is compiled from them follows. `role`: it has another
/// VRF, or is something else than it was, upon which everything that is compiled may depend.
pub(crate) fn link_changed(router: &mut Router, link: u32, role: bool) {
    revive_routes_of(router, link);
    refresh_next_hops(router, link);
    refresh_labels_of(router, link);
    if role {
        publish_instance(router, link);
        refresh_lookups(router);
    } else {
        forget_gateways(router);
        refresh_egress(router, link);
        publish_tunnels_by(router, link);
    }
}

/// No link has this address any more: the IPv4 routes that send from it go.
pub(crate) fn source_address_gone(router: &mut Router, cause: Cause, address: IpAddr, link: u32) {
    flush_routes_from(router, cause, address, link);
}

/// A link has lost its last IPv4 address: no IPv4 route leads there any more. Linux:
/// `fib_disable_ip`, which tells nobody.
pub(crate) fn last_ipv4_gone(router: &mut Router, link: u32) {
    flush_routes4_of(router, link);
}

/// A neighbour was added, changed or removed.
pub(crate) fn neighbour_changed(router: &mut Router, link: u32, address: IpAddr) {
    let mac = router.neighbours.get(link, address).and_then(|neighbour| neighbour.usable());
    set_neighbour(router, link, address, mac);
    publish_neighbour(router, link, address);
}

/// A VRF was added: the first one brings the rules that lead to the tables of VRFs.
pub(crate) fn vrf_added(router: &mut Router, cause: Cause) {
    add_vrf_tables(router);
    add_vrf_rules(router, cause);
    refresh_lookups(router);
}
