//! Neighbours that packets will need: those of new next hops and of what encapsulations lead to. The kernel is asked
//! for them before the first packet comes.

use std::net::IpAddr;

use underpass_engine::tables::LookupId;

use super::LIMIT;
use crate::Router;
use crate::route::Flow;
use crate::route::lookup::hop_of;
use crate::route::scope::scope_of_lookup;

/// Packets may leave for this neighbour.
pub(crate) fn want_neighbour(router: &mut Router, link: u32, address: IpAddr) {
    if let Some(live) = &mut router.live
        && live.wants.new.len() < LIMIT
    {
        live.wants.new.insert((link, address));
    }
}

/// Packets to this address, which are looked up so, lead to no next hop: perhaps as it is a neighbour itself.
pub(crate) fn want_on_link(router: &mut Router, address: IpAddr, lookup: LookupId) {
    if router.live.is_none() || address.is_unspecified() || address.is_multicast() {
        return;
    }
    let Some(scope) = scope_of_lookup(router, lookup) else { return };
    let Some(((_, out), vrf)) = scope.of_rules(router) else { return };
    let flow = Flow { oif: out.unwrap_or(0), prefers: address.is_ipv6(), l3mdev: vrf, ..Flow::to(address) };
    let hop = hop_of(router, &flow);
    if let Some(hop) = hop.filter(|hop| hop.gateway.is_none() && hop.tunnel.is_none()) {
        want_neighbour(router, hop.oif, address);
    }
}
