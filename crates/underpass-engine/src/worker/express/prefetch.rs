//! Asking for memory before it is read: that of the tunnels of a burst, where there are so many that they do not all stay
//! in the first cache.

use arrayvec::ArrayVec;
use underpass_packet::{ethernet, protocol};

use super::super::{Burst, View};
use super::{Common, ETHERNET};
use crate::buffer::{BURST, Packet};
use crate::counters::Counters;
use crate::lpm::NO_LEAF;
use crate::tables::{Action, ActionId, Inside, TunnelId, TunnelKind, TunnelTable};

/// Length of an IPv4 header.
const FIXED4: usize = underpass_packet::ipv4::Header::LEN;
/// As much of a frame as has the destination of an IPv6 packet.
const SEEN: usize = ETHERNET + underpass_packet::ipv6::Header::LEN;

impl Common<'_, '_> {
    /// Asks for the tunnels that the packets of a burst go into or come out of; the tables are in the cache. What each is
    /// looked up to, as far as it is IP. One packet's look-ups do not wait for another's.
    #[inline(never)]
    pub(super) fn ask_for_tunnels(&self, counters: &Counters, burst: &Burst) -> [u32; BURST] {
        let mut leaves = [NO_LEAF; BURST];
        let (tunnels, guard) = (self.view.tables.tunnels(), self.view.guard);
        for (packet, place) in burst.iter().zip(&mut leaves) {
            let mut short = [0; SEEN];
            let frame = match packet.bytes().first_chunk::<SEEN>() {
                Some(frame) => frame,
                None => {
                    // IPv4 with less than 20 bytes behind its header.
                    short.iter_mut().zip(packet.bytes()).for_each(|(to, from)| *to = *from);
                    &short
                }
            };
            match u16::from_be_bytes([frame[ETHERNET - 2], frame[ETHERNET - 1]]) {
                ethernet::IPV4 => {
                    let target = word(frame, ETHERNET + 16);
                    let leaf = self.fib4.and_then(|fib| fib.lookup(target, guard));
                    *place = leaf.unwrap_or(NO_LEAF);
                    match self.action(leaf) {
                        Some(Action::Tunnel(route)) => {
                            tunnels.ask_into(route.tunnel, Inside::Ip4, (counters, guard));
                        }
                        Some(Action::Local) => {
                            let kind = kind_of(frame[ETHERNET + 9]);
                            let place = TunnelTable::place4(kind, target, word(frame, ETHERNET + 12));
                            tunnels.ask_out_of(place, (counters, guard));
                        }
                        _ => {}
                    }
                }
                ethernet::IPV6 => {
                    let target = frame.last_chunk().map_or(0, |bytes| u128::from_be_bytes(*bytes));
                    let leaf = self.fib6.and_then(|fib| fib.lookup(target, guard));
                    *place = leaf.unwrap_or(NO_LEAF);
                    if let Some(Action::Tunnel(route)) = self.action(leaf) {
                        tunnels.ask_into(route.tunnel, Inside::Ip6, (counters, guard));
                    }
                }
                _ => {}
            }
        }
        leaves
    }
}

#[inline(always)]
fn word(bytes: &[u8; SEEN], at: usize) -> u32 {
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

/// Asks for the memory of the tunnels that a burst of packets goes into by these leaves, or comes out of.
#[inline(never)]
pub(super) fn prefetch_tunnels<'p>(
    view: &View<'_>,
    counters: &Counters,
    inside: Inside,
    packets: impl Iterator<Item = (&'p Packet, u32)>,
) {
    let mut into = ArrayVec::<TunnelId, BURST>::new();
    let mut out_of = ArrayVec::<usize, BURST>::new();
    for (packet, leaf) in packets {
        match view.tables.action(ActionId(leaf), view.guard) {
            Some(Action::Tunnel(route)) => {
                let _ = into.try_push(route.tunnel);
            }
            Some(Action::Local) if inside == Inside::Ip4 => {
                let Some(header) =
                    packet.bytes().get(ETHERNET..).and_then(|packet| packet.first_chunk::<FIXED4>())
                else {
                    continue;
                };
                let kind = kind_of(header[9]);
                let word = |at: usize| {
                    u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
                };
                // There are not more than packets.
                let _ = out_of.try_push(TunnelTable::place4(kind, word(16), word(12)));
            }
            _ => {}
        }
    }
    if !into.is_empty() || !out_of.is_empty() {
        let tunnels = view.tables.tunnels();
        tunnels.prefetch(into.iter().copied(), inside, out_of.iter().copied(), (counters, view.guard));
    }
}
