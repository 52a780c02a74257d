//! What changes of links, addresses and neighbours mean for routes.

use std::net::IpAddr;

use netlink_packet_core::NLM_F_CREATE;
use underpass_engine::tables::LookupId;

use crate::address::KernelRoute;
use crate::events::Cause;
use crate::route::{Family, Hop, Info, Origin, Place, Prefix, Ways, bits};
use crate::{Link, Router};

/// The place of a route of protocol `kernel`, and all else of it.
fn kernel_route(route: &KernelRoute) -> (Place, Info) {
    let address = route.destination.network();
    let prefix = Prefix::new(bits(address), route.destination.prefix_len());
    let hop = Hop { oif: route.link, gateway: None, onlink: false, dead: false, weight: 1, tunnel: None };
    let info = Info {
        kind: route.kind,
        protocol: libc::RTPROT_KERNEL,
        scope: route.scope,
        metric: route.metric,
        preference: 0,
        reject: false,
        source: route.source,
        metrics: None,
        ways: Ways::Hops(Box::new([hop])),
        origin: Origin::Own,
        tos: 0,
        unknown: 0,
    };
    ((Family::of(address), route.table, prefix), info)
}

impl Router {
    /// The connected routes that a link outside all VRFs has in the main table.
    pub(crate) fn connected_of(&self, link: u32) -> Vec<(Place, Info)> {
        self.main_routes(link).iter().map(kernel_route).collect()
    }

    /// Adds a route of protocol `kernel`.
    pub(crate) fn add_kernel_route(&mut self, cause: Cause, route: KernelRoute) {
        let (place, info) = kernel_route(&route);
        let own6 = place.0 == Family::V6 && info.kind == libc::RTN_LOCAL;
        self.add_info(cause, NLM_F_CREATE, place, info);
        if own6 {
            self.update_sources();
        }
    }

    /// Removes a route of protocol `kernel`, if it is still there.
    pub(crate) fn remove_kernel_route(&mut self, cause: Cause, route: &KernelRoute) {
        let (place, info) = kernel_route(route);
        let own6 = place.0 == Family::V6 && info.kind == libc::RTN_LOCAL;
        self.remove_info(cause, place, &info);
        if own6 {
            self.update_sources();
        }
    }

    /// A link has gone down, or is about to be deleted: the routes by it go.
    pub(crate) fn link_gone_down(&mut self, cause: Cause, link: u32) {
        self.flush_objects_of(cause, link);
        self.flush_routes_of(cause, link);
        self.refresh_labels_of(link);
    }

    /// A link's MTU, MAC address, state or VRF has changed: what is compiled from them follows. `role`: it has another
    /// VRF, or is something else than it was, upon which everything that is compiled may depend.
    pub(crate) fn link_changed(&mut self, link: u32, role: bool) {
        self.revive_routes_of(link);
        self.refresh_next_hops(link);
        self.refresh_labels_of(link);
        if role {
            self.refresh_lookups();
        } else {
            self.forget_gateways();
        }
    }

    /// No link has this address any more: the IPv4 routes that send from it go.
    pub(crate) fn source_address_gone(&mut self, cause: Cause, address: IpAddr, link: u32) {
        self.flush_routes_from(cause, address, link);
    }

    /// A link has lost its last IPv4 address: no IPv4 route leads there any more. Linux:
    /// `fib_disable_ip`, which tells nobody.
    pub(crate) fn last_ipv4_gone(&mut self, link: u32) {
        self.flush_routes4_of(link);
    }

    /// A neighbour was added, changed or removed.
    pub(crate) fn neighbour_changed(&mut self, link: u32, address: IpAddr) {
        let mac = self.neighbours.get(link, address).and_then(|neighbour| neighbour.usable());
        self.set_neighbour(link, address, mac);
    }

    /// How packets of a link are looked up: in the VRF that it is in, and by the rules that name it.
    pub(crate) fn lookup_of(&mut self, link: &Link) -> LookupId {
        let vrf = self.links.vrf_of(link.index).and_then(Link::vrf_table);
        self.lookup_of_link(link, vrf)
    }

    /// A VRF was added: the first one brings the rules that lead to the tables of VRFs.
    pub(crate) fn vrf_added(&mut self, cause: Cause) {
        self.add_vrf_tables();
        self.add_vrf_rules(cause);
        self.refresh_lookups();
    }
}
