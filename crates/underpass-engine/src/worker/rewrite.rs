//! How a frame leaves the fast path: the addresses of its next hop, and its port.

use underpass_packet::ethernet;

use crate::buffer::{Packet, PortId};
use crate::flow;
use crate::tables::{Action, ActionId, StoredNextHop};
use crate::worker::view::View;

/// Length of an Ethernet header.
pub(crate) const ETHERNET: usize = ethernet::Header::LEN;

/// Length of the fixed part of an IPv6 header.
pub(crate) const FIXED: usize = underpass_packet::ipv6::Header::LEN;
pub(crate) const NEXT_HEADER: usize = underpass_packet::ipv6::Header::NEXT_HEADER_OFFSET;

/// EtherTypes as they lie in a frame.
pub(crate) const IPV4: u16 = ethernet::IPV4.to_be();
pub(crate) const IPV6: u16 = ethernet::IPV6.to_be();

/// The port by which a frame leaves, and the length of the frame.
pub(crate) type FastVerdict = (PortId, u32);

/// The next hop that a leaf forwards to.
#[inline(always)]
pub(crate) fn next_hop<'a>(view: &View<'a>, leaf: Option<u32>) -> Option<&'a StoredNextHop> {
    view.tables.forward(ActionId(leaf?), view.guard)
}

/// The addresses that a next hop puts before a packet of `len` bytes, if it is resolved, on Ethernet, and
/// takes it as it is.
#[inline(always)]
pub(crate) fn addresses(next_hop: &StoredNextHop, len: usize) -> Option<&[u8; 12]> {
    (len <= next_hop.plain_mtu as usize).then_some(&next_hop.mac)
}

/// Writes an Ethernet header.
#[inline(always)]
pub(crate) fn write_header(head: &mut [u8; ETHERNET], mac: &[u8; 12], ethertype: u16) {
    head[..12].copy_from_slice(mac);
    head[12..].copy_from_slice(&ethertype.to_be_bytes());
}

/// Cuts off what lies behind the packet in its frame.
#[cold]
pub(crate) fn cut(packet: &mut Packet, len: usize) {
    packet.truncate(len);
}

/// The next hop that a leaf forwards a packet to, also by a multipath route.
#[inline(always)]
pub(crate) fn next_hop_of<'a>(
    view: &View<'a>,
    leaf: Option<u32>,
    packet: &[u8],
) -> Option<&'a StoredNextHop> {
    match next_hop(view, leaf) {
        Some(next_hop) => Some(next_hop),
        None => hashed(view, ActionId(leaf?), packet),
    }
}

#[inline(never)]
pub(crate) fn hashed<'a>(view: &View<'a>, leaf: ActionId, packet: &[u8]) -> Option<&'a StoredNextHop> {
    member(view, leaf, || Some(flow::hash(packet)))
}

/// The next hop that a flow selects where a leaf is that of a multipath route.
#[inline(always)]
pub(crate) fn member<'a>(
    view: &View<'a>,
    leaf: ActionId,
    hash: impl FnOnce() -> Option<u32>,
) -> Option<&'a StoredNextHop> {
    match view.tables.action(leaf, view.guard)? {
        Action::Multipath(multipath) => next_hop(view, multipath.choose(hash()?).map(|ActionId(leaf)| leaf)),
        _ => None,
    }
}
