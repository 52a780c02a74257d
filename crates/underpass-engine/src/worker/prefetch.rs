//! Asking for memory before it is read: that of the actions and of the tunnels of a burst, where there are so many that they
//! do not all stay in the first cache.

use arrayvec::ArrayVec;
use underpass_packet::{ethernet, protocol};

use crate::buffer::{BURST, Packet};
use crate::counters::{Counters, Direction};
use crate::publish;
use crate::tables::{
    Action, ActionId, InnerProtocol, PrecomputedDecap, PrecomputedEncap, TunnelKind, TunnelTable,
};
use crate::worker::rewrite::ETHERNET;
use crate::worker::view::View;

/// A frame with nothing but an IPv4 header.
const SHORTEST: usize = ETHERNET + underpass_packet::ipv4::Header::LEN;

/// More actions than these are asked for before they are read.
const MANY: u32 = 512;

/// Prefetches what the packets of a burst are looked up to, which is about to be read.
#[inline(always)]
pub(crate) fn prefetch(view: &View<'_>, counters: &Counters, burst: &[Packet], leaves: &[u32; BURST]) {
    let actions = view.tables.actions_top() > MANY;
    if actions {
        view.tables.prefetch_actions(leaves.iter().copied().take(burst.len()));
    }
    if view.tables.tunnels().are_many() {
        prefetch_tunnels(view, counters, burst, leaves);
    } else if actions {
        leaves.iter().take(burst.len()).for_each(|leaf| prefetch_header(view, *leaf));
    }
}

/// Prefetches the headers that an action puts before packets.
#[inline(always)]
fn prefetch_header(view: &View<'_>, leaf: u32) {
    if let Some(Action::Headend(policy)) = view.tables.action(ActionId(leaf), view.guard) {
        publish::prefetch(policy.header.as_ptr());
    }
}

/// Prefetches the tunnels that packets go into by these leaves, or come out of.
#[inline(always)]
fn prefetch_tunnels(view: &View<'_>, counters: &Counters, burst: &[Packet], leaves: &[u32; BURST]) {
    let (tunnels, guard) = (view.tables.tunnels(), view.guard);
    // There are not more of either than packets.
    let mut into = ArrayVec::<&PrecomputedEncap, BURST>::new();
    let mut chains = ArrayVec::<usize, BURST>::new();
    for (packet, leaf) in burst.iter().zip(leaves) {
        // In the frame of a packet that is looked up.
        let is_ipv6 = packet.bytes().get(ETHERNET).is_some_and(|first| first >> 4 == 6);
        let inside = if is_ipv6 { InnerProtocol::Ip6 } else { InnerProtocol::Ip4 };
        if let Some(template) = view.tables.enters(ActionId(*leaf), inside, guard) {
            publish::prefetch(template);
            into.push(template);
            continue;
        }
        match view.tables.action(ActionId(*leaf), guard) {
            Some(Action::Local) => {
                let Some(frame) = packet.bytes().first_chunk::<SHORTEST>() else { continue };
                if ethertype(frame) == ethernet::IPV4 {
                    let (local, remote) = (word(frame, ETHERNET + 16), word(frame, ETHERNET + 12));
                    let place = TunnelTable::place4(kind_of(frame[ETHERNET + 9]), local, remote);
                    tunnels.prefetch_bucket(place);
                    chains.push(place);
                }
            }
            Some(Action::Headend(policy)) => publish::prefetch(policy.header.as_ptr()),
            _ => {}
        }
    }
    let out_of: ArrayVec<&PrecomputedDecap, BURST> =
        chains.iter().filter_map(|place| tunnels.prefetch_decap(*place, guard)).collect();
    into.iter().for_each(|template| counters.prefetch_link(template.link, Direction::Transmit));
    out_of.iter().for_each(|end| counters.prefetch_link(end.link, Direction::Receive));
}

#[inline(always)]
fn ethertype(frame: &[u8; SHORTEST]) -> u16 {
    u16::from_be_bytes([frame[ETHERNET - 2], frame[ETHERNET - 1]])
}

#[inline(always)]
fn word(bytes: &[u8; SHORTEST], at: usize) -> u32 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |word| u32::from_be_bytes(*word))
}

/// The kind of tunnel that takes packets over IPv4 with this protocol; those of foo-over-UDP are taken for IPIP.
#[inline(always)]
const fn kind_of(protocol: u8) -> TunnelKind {
    match protocol {
        protocol::IPV6 => TunnelKind::Sit,
        protocol::GRE => TunnelKind::Gre,
        _ => TunnelKind::Ipip,
    }
}
