//! Asking for memory before it is read: that of the tunnels of a burst, where there are so many that they do not all stay
//! in the first cache.

use arrayvec::ArrayVec;
use underpass_packet::{ethernet, protocol};

use super::super::View;
use super::{Common, ETHERNET};
use crate::buffer::{BURST, Packet};
use crate::counters::{Counters, Direction};
use crate::lpm::NO_LEAF;
use crate::tables::{Action, ActionId, Form, Inside, StoredTunnel, TunnelKind, TunnelTable};

/// A frame with nothing but an IPv4 header.
const SHORTEST: usize = ETHERNET + underpass_packet::ipv4::Header::LEN;

impl Common<'_, '_> {
    /// Looks the packets of a burst up, as far as they are IP, and asks for the tunnels that they go into or come out of; the
    /// tables are in the cache. No packet's look-up waits for another's, and none for memory that was not asked for.
    #[inline(never)]
    pub(super) fn ask_for_tunnels(&self, counters: &Counters, burst: &[Packet]) -> [u32; BURST] {
        let mut leaves = [NO_LEAF; BURST];
        let guard = self.view.guard;
        for (packet, place) in burst.iter().zip(&mut leaves) {
            let Some(frame) = packet.bytes().first_chunk::<SHORTEST>() else { continue };
            let leaf = match ethertype(frame) {
                ethernet::IPV4 => self.fib4.and_then(|fib| fib.lookup(word(frame, ETHERNET + 16), guard)),
                ethernet::IPV6 => {
                    let target = packet.bytes().get(ETHERNET + 24..).and_then(|rest| rest.first_chunk());
                    target.and_then(|target| self.fib6?.lookup(u128::from_be_bytes(*target), guard))
                }
                _ => None,
            };
            *place = leaf.unwrap_or(NO_LEAF);
        }
        self.view.tables.prefetch_actions(leaves.iter().copied().take(burst.len()));
        prefetch_tunnels(self.view, counters, burst.iter().zip(leaves));
        leaves
    }
}

/// Asks for the memory of the tunnels that packets go into by these leaves, or come out of.
#[inline(always)]
pub(super) fn prefetch_tunnels<'p>(
    view: &View<'_>,
    counters: &Counters,
    packets: impl Iterator<Item = (&'p Packet, u32)>,
) {
    let (tunnels, guard) = (view.tables.tunnels(), view.guard);
    // There are not more of either than packets.
    let mut into = ArrayVec::<&Form, BURST>::new();
    let mut chains = ArrayVec::<usize, BURST>::new();
    for (packet, leaf) in packets {
        let action = view.tables.action(ActionId(leaf), guard);
        let (Some(Action::Tunnel(_) | Action::Local), Some(frame)) =
            (action, packet.bytes().first_chunk::<SHORTEST>())
        else {
            continue;
        };
        let is_ipv4 = ethertype(frame) == ethernet::IPV4;
        match action {
            Some(Action::Tunnel(route)) => {
                let inside = if is_ipv4 { Inside::Ip4 } else { Inside::Ip6 };
                into.extend(tunnels.ask_into(route.tunnel, inside, guard));
            }
            _ if is_ipv4 => {
                let (local, remote) = (word(frame, ETHERNET + 16), word(frame, ETHERNET + 12));
                let place = TunnelTable::place4(kind_of(frame[ETHERNET + 9]), local, remote);
                tunnels.ask_for_chain(place);
                chains.push(place);
            }
            _ => {}
        }
    }
    let out_of: ArrayVec<&StoredTunnel, BURST> =
        chains.iter().filter_map(|place| tunnels.ask_out_of(*place, guard)).collect();
    into.iter().for_each(|form| counters.prefetch_link(form.link, Direction::Transmit));
    out_of.iter().for_each(|tunnel| counters.prefetch_link(tunnel.link, Direction::Receive));
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
