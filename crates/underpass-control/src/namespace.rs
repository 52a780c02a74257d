//! Requests of the router to the network namespace that it lives in.

use std::fmt;

use underpass_netlink::{RequestError, tunnel};

/// A device that the router stands behind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Device {
    /// `vrf`, with its table: the host's door to the VRF.
    Vrf {
        /// `IFLA_VRF_TABLE`.
        table: u32,
    },
    /// `dummy`: swallows what is sent to it.
    Dummy,
    /// A tunnel: the host's door to it. Frames of Ethernet pass through that of an Ethernet device, else packets.
    Tunnel(tunnel::Kind),
    /// `vlan`: the host's door to a VLAN of another link.
    Vlan,
    /// `bridge`: the host's door to a bridge.
    Bridge,
}

impl Device {
    /// `IFLA_INFO_KIND`.
    pub const fn kind(self) -> &'static str {
        match self {
            Self::Vrf { .. } => "vrf",
            Self::Dummy => "dummy",
            Self::Tunnel(kind) => kind.name(),
            Self::Vlan => "vlan",
            Self::Bridge => "bridge",
        }
    }
}

/// The kernel's part in the router's own objects.
pub trait Namespace: Send {
    /// Requests a change of the kernel, with an rtnetlink message whose flags, sequence number and port id are
    /// filled in.
    ///
    /// # Errors
    /// The kernel's answer.
    fn request(&mut self, message: &mut [u8]) -> Result<(), RequestError>;

    /// Makes a network device of this name, down and without addresses. Returns its interface index.
    ///
    /// # Errors
    /// `EEXIST` if there is one, and what else the kernel says.
    fn make(&mut self, name: &str, device: Device) -> Result<u32, RequestError>;

    /// How many megabits a second a device of this name passes, if that is known.
    fn speed(&self, name: &str) -> Option<u32>;

    /// Has a program that keeps spanning trees begin to keep that of this bridge, or end it. Whether there is one that does.
    /// Linux: `br_stp_call_user`.
    fn keep_spanning_tree(&mut self, bridge: &str, starts: bool) -> bool;

    /// Removes a device that [`Namespace::make`] has made.
    fn remove(&mut self, index: u32);
}

impl fmt::Debug for dyn Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Namespace")
    }
}
