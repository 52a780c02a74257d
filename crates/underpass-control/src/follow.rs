//! What changes of links, addresses and neighbours mean for routes.

use std::net::IpAddr;

use underpass_engine::tables::LookupId;

use crate::Router;
use crate::address::KernelRoute;
use crate::events::Cause;

impl Router {
    /// Adds a route of protocol `kernel`.
    pub(crate) fn add_kernel_route(&mut self, _cause: Cause, _route: KernelRoute) {}

    /// Removes a route of protocol `kernel`, if it is still there.
    pub(crate) fn remove_kernel_route(&mut self, _cause: Cause, _route: &KernelRoute) {}

    /// A link has gone down, or is about to be deleted: the routes by it go.
    pub(crate) fn link_gone_down(&mut self, _cause: Cause, _link: u32) {}

    /// A link's MTU, MAC address, state or VRF has changed: what is compiled from them follows.
    pub(crate) fn link_changed(&mut self, _link: u32) {}

    /// No link has this address any more: the IPv4 routes that send from it go.
    pub(crate) fn source_address_gone(&mut self, _cause: Cause, _address: IpAddr, _link: u32) {}

    /// A neighbour was added, changed or removed.
    pub(crate) fn neighbour_changed(&mut self, _link: u32, _address: IpAddr) {}

    /// The look-up of links in the VRF of this table, or in none.
    pub(crate) fn lookup_of(&self, _vrf_table: Option<u32>) -> LookupId {
        LookupId(0)
    }

    /// A VRF was added: the first one brings the rules that lead to the tables of VRFs.
    pub(crate) fn vrf_added(&mut self, _cause: Cause) {}

    /// `ip sr tunsrc` was set: encapsulations get another source.
    pub(crate) fn tunnel_source_changed(&mut self) {}
}
