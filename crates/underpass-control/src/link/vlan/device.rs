//! What a VLAN device is.

use std::sync::Arc;

use underpass_netlink::vlan::{self, LOOSE_BINDING};

/// What makes a link a VLAN device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Vlan {
    /// The link below it.
    pub lower: u32,
    /// Its tag, its maps and its flags.
    pub tag: vlan::Vlan,
    /// Whether its hardware address is that of the link below it, whatever that becomes: `NET_ADDR_STOLEN`.
    pub inherits_mac: bool,
    /// The egress map as the packet path looks priorities up.
    pub(super) sorted: Arc<[(u32, u8)]>,
}

impl Vlan {
    /// Takes over what a request says.
    pub(super) fn change(&mut self, wanted: &vlan::Wanted) {
        self.tag.change(wanted);
        let mut sorted: Vec<_> = self.tag.egress.iter().copied().filter(|(_, code)| *code != 0).collect();
        sorted.sort_unstable();
        self.sorted = sorted.into();
    }

    /// Whether it may be up where the link below it is down.
    pub(super) const fn is_loose(&self) -> bool {
        self.tag.flags & LOOSE_BINDING != 0
    }
}
