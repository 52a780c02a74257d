//! Receive ports of foo-over-UDP: generic netlink `fou`. Linux: `net/ipv4/fou_core.c`.

pub(crate) mod request;
pub(crate) mod save;

use std::net::IpAddr;

use underpass_engine::tables::FouPortId;
use underpass_netlink::fou::{Addresses, Config, Socket};

/// The ports, the oldest first, each with a number of its own.
#[derive(Debug, Default)]
pub(crate) struct FouPorts {
    all: Vec<(u64, Config)>,
    /// The packet path's names for them, in the same order.
    ids: Vec<Option<FouPortId>>,
    /// How many there have been.
    count: u64,
    generation: u64,
}

impl FouPorts {
    /// Changes with every change of a port.
    pub const fn generation(&self) -> u64 {
        self.generation
    }

    pub fn iter(&self) -> impl Iterator<Item = &Config> {
        self.all.iter().map(|(_, port)| port)
    }

    fn position(&self, socket: &Socket) -> Option<usize> {
        self.all.iter().position(|(_, port)| port.socket == *socket)
    }
}

const fn ends(socket: &Socket) -> (IpAddr, IpAddr) {
    match socket.addresses {
        Addresses::V4 { local, peer } => (IpAddr::V4(local), IpAddr::V4(peer)),
        Addresses::V6 { local, peer } => (IpAddr::V6(local), IpAddr::V6(peer)),
    }
}

/// Whether no two UDP sockets can be bound so. Linux: `inet_rcv_saddr_equal` and the like.
fn collide(a: &Socket, b: &Socket) -> bool {
    let ((one, _), (other, _)) = (ends(a), ends(b));
    a.port == b.port
        && one.is_ipv4() == other.is_ipv4()
        && (one == other || one.is_unspecified() || other.is_unspecified())
        && (a.ifindex == b.ifindex || a.ifindex == 0 || b.ifindex == 0)
}
