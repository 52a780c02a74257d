//! What waits for the link-layer addresses of neighbours.

use std::collections::VecDeque;
use std::net::IpAddr;

use crate::buffer::PortId;
use crate::limiter::Nanos;
use crate::tables::LinkId;
use crate::worker::metadata::PacketMeta;

/// Bytes that wait for one neighbour; the oldest packets make room for one more. Linux's `unres_qlen_bytes`: 256 packets
/// of 256 bytes, of a full-sized MTU 101.
pub(crate) const QUEUE: usize = 256 * charge(256);

/// Neighbours that packets wait for at a time.
pub(crate) const NEIGHBOURS: usize = 256;

/// A neighbour whose link-layer address is wanted.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Unresolved {
    /// The link that it is on.
    pub link: LinkId,
    /// That link's Linux interface index.
    pub ifindex: u32,
    /// Its address.
    pub address: IpAddr,
}

/// What a packet of this many bytes counts for. Linux's `SKB_TRUESIZE` on 64 bits.
pub(crate) const fn charge(len: usize) -> usize {
    len + 576
}

/// Where a packet goes once the neighbour is known.
pub(crate) struct Held {
    pub(crate) meta: PacketMeta,
    pub(crate) port: PortId,
    pub(crate) mtu: u32,
}

pub(crate) struct Neighbour {
    pub(crate) link: LinkId,
    pub(crate) address: IpAddr,
    /// When the first packet for it came.
    pub(crate) since: Nanos,
    pub(crate) packets: VecDeque<Held>,
    /// What they count for.
    pub(crate) charged: usize,
}

/// What is held, and which neighbours have not been asked for yet.
pub(crate) struct UnresolvedQueues {
    /// Oldest first.
    pub(crate) neighbours: VecDeque<Neighbour>,
    pub(crate) wanted: Vec<Unresolved>,
    /// Packets held, and how many may be.
    pub(crate) count: usize,
    pub(crate) limit: usize,
}

impl UnresolvedQueues {
    pub(crate) fn new(limit: usize) -> Self {
        Self { neighbours: VecDeque::new(), wanted: Vec::new(), count: 0, limit }
    }
}
