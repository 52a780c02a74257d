//! Where a packet goes on from a behaviour.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::tables::{Bpf, Excluded, Headend, LinkId, LookupId, NextHopId, Via};

/// Where a packet goes on from a behaviour.
#[derive(Clone, Copy)]
pub(crate) enum Next<'s> {
    /// Looked up.
    Look4(LookupId, Ipv4Addr),
    /// Looked up.
    Look6(LookupId, Ipv6Addr),
    /// To the next hop that its address is known to lead to.
    Forward(NextHopId),
    /// It is an Ethernet frame now, for this link.
    Frame(LinkId),
    /// It is an Ethernet frame that comes in by this link. `Some`: whatever its destination is, it goes to all ports of the bridge
    /// but these.
    ComeIn(LinkId, Option<Excluded>),
    /// Through this policy's headend.
    Insert(&'s Headend),
    /// To the router itself, as it is now.
    Deliver,
    /// Through this program; where the SRH begins.
    Program(&'s Bpf, usize),
}

impl Next<'_> {
    /// Where `via` points: to its next hop if that is known, to its address otherwise.
    #[inline(always)]
    pub(crate) fn via(via: &Via) -> Self {
        match (via.resolved, via.address) {
            (Some(next_hop), _) => Self::Forward(next_hop),
            (None, IpAddr::V4(address)) => Self::Look4(via.lookup, address),
            (None, IpAddr::V6(address)) => Self::Look6(via.lookup, address),
        }
    }
}
