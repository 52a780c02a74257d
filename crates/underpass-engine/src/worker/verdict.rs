//! What is to happen to a packet next, and why one is refused.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::drops::DropReason;
use crate::tables::{ActionId, LinkId, LookupId, NextHopId, TunnelId, Via};
use crate::worker::error::{IcmpError, PacketError};
use crate::worker::metadata::{PacketMeta, Slow};

/// What is to happen to a packet next: a tag and a word, so that it stays in two registers. What else
/// the step needs stands in the [`PacketMeta`].
#[derive(Clone, Copy)]
pub(crate) enum Verdict {
    /// Look [`PacketMeta::target4`] up in the tables that the id names.
    Look4(LookupId),
    /// Look [`PacketMeta::target6`] up.
    Look6(LookupId),
    /// Look the target up by rules, or past `throw` routes: off the fast path.
    LookSlow(LookupId),
    /// Do what this action says.
    Act(ActionId),
    /// Forward to this next hop: hop limit, MTU, link layer.
    Forward(NextHopId),
    /// Send the Ethernet frame that the packet is by this link.
    Frame(LinkId),
    /// Put the Ethernet frame that the packet is into the queue of this port.
    Send(u32),
    /// Hold it for the neighbour that its target is, on this link.
    OnLink(LinkId),
    /// Hold it for this next hop, whose neighbour is not known; or put it into the tunnel that the next hop is behind.
    Unresolved(NextHopId),
    /// Cut the IPv4 packet up and send the fragments to this next hop.
    Fragment(NextHopId),
    /// The same with the labels of this action, which is a push.
    FragmentLabelled(ActionId),
    /// Cut the IPv4 packet up and send the fragments into the tunnel that this action leads to.
    FragmentInto(ActionId),
    /// Put the Ethernet frame that the packet is into this tunnel.
    FrameInto(TunnelId),
    /// Classify what is to go into this tunnel, and have it wait there, before it goes in.
    ClassifyEgress(TunnelId),
    /// Classify what has come out of a tunnel, by whose link it has come in now.
    ClassifyIngress,
    /// Do what its MPLS label says.
    Label,
    /// It is for the router itself.
    Deliver,
    /// The same, as a fragment: keep it until the others of its packet have come.
    Reassemble,
    /// Take the UDP datagrams that it stands for out of their tunnels one by one.
    Datagrams,
    /// Drop it, and send an ICMP error if so said.
    Refuse(PacketError),
    /// Look at an IPv4 or IPv6 packet with unusual addresses.
    Unusual,
    /// The same, in a frame for a group of stations.
    Group,
    /// The frame, which has come out of a tunnel, may go on by a link above that of the tunnel.
    Above,
    /// Take the priority tag off a frame.
    Untag,
    /// Answer an ARP request.
    Arp,
    /// Finish a message of this router's, then do what this action says.
    Finish(ActionId),
}

impl Verdict {
    /// Drop the packet without an error.
    #[inline(always)]
    pub(crate) const fn drop(reason: DropReason) -> Self {
        Self::Refuse(PacketError::silent(reason))
    }

    /// Drop the packet, with an error to its sender.
    #[inline(always)]
    pub(crate) const fn error(reason: DropReason, error: IcmpError) -> Self {
        Self::Refuse(PacketError::notify(reason, error))
    }

    /// On to where an action points: to its next hop if that is known, to its address otherwise.
    #[inline(always)]
    pub(crate) fn via(meta: &mut PacketMeta, via: &Via) -> Self {
        match (via.resolved, via.address) {
            (Some(next_hop), _) => Self::Forward(next_hop),
            (None, IpAddr::V4(address)) => Self::look4(meta, via.lookup, address),
            (None, IpAddr::V6(address)) => Self::look6(meta, via.lookup, address),
        }
    }

    /// Look up what `what` says, off the fast path.
    #[inline(always)]
    pub(crate) fn slow(meta: &mut PacketMeta, lookup: LookupId, what: Slow) -> Self {
        meta.extra.slow = what;
        Self::LookSlow(lookup)
    }

    /// Look this address up, which is not the first look-up of the packet.
    #[inline(always)]
    pub(crate) fn look4(meta: &mut PacketMeta, lookup: LookupId, address: Ipv4Addr) -> Self {
        meta.target4 = address;
        if meta.look_up_again(lookup) { Self::Look4(lookup) } else { Self::drop(DropReason::Loop) }
    }

    /// Look this address up, which is not the first look-up of the packet.
    #[inline(always)]
    pub(crate) fn look6(meta: &mut PacketMeta, lookup: LookupId, address: Ipv6Addr) -> Self {
        meta.target6 = address;
        if meta.look_up_again(lookup) { Self::Look6(lookup) } else { Self::drop(DropReason::Loop) }
    }
}
