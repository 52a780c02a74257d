//! What changes of links, addresses and neighbours mean for routes.

use std::net::IpAddr;

use crate::Router;
use crate::events::Cause;

impl Router {
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

    /// A VRF was added: the first one brings the rules that lead to the tables of VRFs.
    pub(crate) fn vrf_added(&mut self, cause: Cause) {
        self.add_vrf_tables();
        self.add_vrf_rules(cause);
        self.refresh_lookups();
    }
}
