//! What a worker keeps of queueing disciplines.

use std::collections::VecDeque;

use crate::buffer::Packet;
use crate::drops::DropReason;
use crate::limiter::Nanos;
use crate::qos::qdisc::{Heap, Items, Node};
use crate::tables::{LinkId, TunnelId};

/// Packets that a worker's qdiscs hold together, unless configured otherwise.
const LIMIT: usize = 16_384;

/// Where a qdisc is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// Before the port of a link.
    Port(LinkId),
    /// At an ifb.
    Ifb(LinkId),
    /// Behind the ingress hook of a link.
    Ingress(LinkId),
    /// Before the tunnel that a link is.
    Tunnel(LinkId),
}

/// A worker's queues for a qdisc.
pub(crate) struct Shaper {
    pub(crate) node: Node,
    pub(crate) place: Place,
    pub(crate) version: u32,
    /// The version that the qdisc began with.
    pub(crate) first: u32,
    /// Whether packets have come to it, or their time has, since it was served.
    pub(crate) pending: bool,
}

/// A worker's queues.
pub(crate) struct Shape {
    /// By [`QdiscId`].
    pub(crate) shapers: Vec<Option<Box<Shaper>>>,
    /// When those that hold packets are to be served, by [`QdiscId`].
    pub(crate) due: Heap,
    pub(crate) pending: Vec<u32>,
    /// Those whose time has come, and when that was.
    pub(crate) late: Vec<(Nanos, u32)>,
    pub(crate) items: Items,
    pub(crate) limit: usize,
    /// Whether no other worker has a part in the rates.
    pub(crate) alone: bool,
    pub(crate) dropped: Vec<(Packet, DropReason)>,
    /// What goes on behind the ingress hook of a link, and behind the egress hook of one.
    pub(crate) inward: VecDeque<(LinkId, Packet)>,
    pub(crate) outward: VecDeque<(LinkId, Packet)>,
    /// What goes on into a tunnel, and whether it has been in the tunnel's qdisc.
    pub(crate) into: VecDeque<(TunnelId, bool, Packet)>,
    /// What is taken from a port's queue.
    pub(crate) taken: Vec<Packet>,
    /// The changes of qdiscs that have been seen.
    pub(crate) changes: u32,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            shapers: Vec::new(),
            due: Heap::default(),
            pending: Vec::new(),
            late: Vec::new(),
            items: Items::default(),
            limit: LIMIT,
            alone: false,
            dropped: Vec::new(),
            inward: VecDeque::new(),
            outward: VecDeque::new(),
            into: VecDeque::new(),
            taken: Vec::new(),
            changes: 0,
        }
    }
}

impl Place {
    pub(crate) fn link(self) -> LinkId {
        let (Self::Port(link) | Self::Ifb(link) | Self::Ingress(link) | Self::Tunnel(link)) = self;
        link
    }
}
