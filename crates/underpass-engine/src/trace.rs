//! What happened to a packet, step by step, for those who watch; nothing at all for those who do not.

use std::net::IpAddr;

use crate::buffer::{Packet, PortId};
use crate::drops::DropReason;
use crate::tables::{ActionId, LabelAction, LinkId, NextHopId};

/// One step of a packet's path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// Came in by this port.
    Received(PortId),
    /// Looked up: the address, and the action that was found, if any.
    Lookup(IpAddr, Option<ActionId>),
    /// A policy rule of this preference decides its look-up: the last one with a selector, or one before it.
    Rule(u32),
    /// Had this MPLS label, and what that leads to, if anywhere.
    Label(u32, Option<LabelAction>),
    /// Went through an SRv6 behaviour, by its name.
    Behaviour(&'static str),
    /// Was encapsulated by a headend of this mode, with so many bytes of new headers.
    Headend(&'static str, usize),
    /// Was moved, as its buffer had not so many bytes of room in front.
    Moved(usize),
    /// Was given an IOAM option in this mode, with so many bytes of new headers.
    IoamInserted(&'static str, usize),
    /// Its IOAM traces were filled.
    IoamFilled,
    /// Cut into this many fragments.
    Fragmented(usize),
    /// Replaced by an ICMP or ICMPv6 message of this type and code, because of this.
    Icmp(u8, u8, DropReason),
    /// Replaced by the reply to an echo request.
    EchoReply,
    /// A TCP segment for this router, where nothing listens, became a reset.
    Reset,
    /// Replaced by the answer to an ARP request or a neighbour solicitation.
    Neighbour,
    /// Held until its next hop is resolved.
    Held,
    /// Put into a queue of the qdisc of this link.
    Queued(LinkId),
    /// Let go by it.
    Dequeued(LinkId),
    /// A fragment for the router, kept until the others of its packet come.
    Gathered,
    /// Put together of this many fragments, of which this was the last.
    Reassembled(usize),
    /// Stands for several UDP datagrams, which go on one by one.
    Datagrams,
    /// Handed to a next hop.
    NextHop(NextHopId),
    /// Sent by this port.
    Sent(PortId),
    /// Delivered to the router itself, by this link.
    Delivered(LinkId),
    /// Given to the kernel, which keeps it, as a frame that has come in by this link.
    Kept(LinkId),
    /// Went through an action of traffic control, by its name.
    Action(&'static str),
    /// Dropped.
    Dropped(DropReason),
}

/// Follows packets through the router.
pub trait Watch {
    /// Takes note of a step. `packet` is the packet as it is at that step, from its outermost header that still
    /// stands.
    fn step(&mut self, event: Event, packet: &Packet);
}

/// Whether packets are followed, as the path of a packet is compiled for both.
pub(crate) trait Trace {
    /// Whether anything is done with the steps. Where what they say has to be made up first, it is only
    /// then.
    const WATCHES: bool;

    /// Takes note of a step.
    fn step(&mut self, event: Event, packet: &Packet);
}

/// Somebody watches.
pub(crate) struct Watched<'a>(pub(crate) &'a mut dyn Watch);

impl Trace for Watched<'_> {
    const WATCHES: bool = true;

    fn step(&mut self, event: Event, packet: &Packet) {
        self.0.step(event, packet);
    }
}

/// Watches nothing, and costs nothing.
pub(crate) struct Untraced;

impl Trace for Untraced {
    const WATCHES: bool = false;

    #[inline(always)]
    fn step(&mut self, _: Event, _: &Packet) {}
}
