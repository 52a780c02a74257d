//! What programs read of tunnels: outer headers, the ends where packets come out, ports of foo-over-UDP.

use std::net::IpAddr;

use super::counters::{MOST_LINKS, link_at};
use super::records::{Records, pair};
use crate::counters::Direction;
use crate::publish::Retirer;
use crate::tables::{
    ADDRESS, CLOSED, EncapTemplate, FRAGMENT, FouPayload, FouPort, GRE_SUM, HASH_LABEL, InnerProtocol, LABEL,
    NO_ECN, OVER_IPV6, PORT, PrecomputedDecap, REMOTE_GRE_SUM, REMOTE_SUM, SEQUENCE, SLOW_ONLY, StoredTunnel,
    TOS, TTL, TunnelKind, UDP_SUM,
};

/// What of an outer header is that of the packet inside, at 4 in the record of a template: its TTL.
pub const OPEN_TTL: u16 = TTL;
/// Its TOS.
pub const OPEN_TOS: u16 = TOS;
/// Don't fragment.
pub const OPEN_DF: u16 = FRAGMENT;
/// The UDP source port is that of the flow.
pub const OPEN_PORT: u16 = PORT;
/// Over IPv6: the flow label is that of the packet inside.
pub const OPEN_LABEL: u16 = LABEL;
/// Over IPv6: the flow label is that of the flow.
pub const OPEN_HASH_LABEL: u16 = HASH_LABEL;
/// There is a checksum of UDP.
pub const OPEN_SUM: u16 = UDP_SUM;
/// The outer header is IPv6.
pub const OUTER_IPV6: u16 = OVER_IPV6;
/// The ECN of the packet inside is not seen.
pub const OPEN_NO_ECN: u16 = NO_ECN;

/// What programs do not write.
const NEEDS_MORE: u16 = CLOSED | SLOW_ONLY | ADDRESS | GRE_SUM | REMOTE_SUM | REMOTE_GRE_SUM | SEQUENCE;

/// The longest outer header that programs put before packets: IPv6, an encapsulation limit, UDP, GUE, GRE with a key.
pub const LONGEST_OUTER: usize = 40 + 8 + 8 + 4 + 8;

/// `bpf_skb_adjust_room`'s word for what is put before a packet: include/uapi/linux/bpf.h.
const ENCAP_L3_IPV4: u32 = 1 << 1;
const ENCAP_L3_IPV6: u32 = 1 << 2;
const ENCAP_L4_GRE: u32 = 1 << 3;
const ENCAP_L4_UDP: u32 = 1 << 4;

/// The record of an end: packets have a key.
pub const END_KEY: u8 = 1;
/// IPv4 that comes out is forwarded.
pub const END_FORWARDS4: u8 = 2;
/// IPv6 that comes out is.
pub const END_FORWARDS6: u8 = 4;
/// Over IPv6: the router's own addresses cannot be the other end.
pub const END_FOREIGN: u8 = 8;
/// `ip6tnl`: what comes in by a VRF is for it only if the address is the router's where the tunnel's own packets go.
pub const END_OWN: u8 = 16;

/// Bits of a place where an end is found.
pub(super) const PLACE_BITS: u32 = 16;
/// Bits of a tunnel's number.
pub(super) const TUNNEL_BITS: u32 = 16;

impl Records {
    /// Puts the records of a tunnel's outer headers, for IPv4 inside and for IPv6, into their slots.
    pub(crate) fn set_tunnel(&mut self, id: u32, tunnel: Option<&StoredTunnel>, retirer: &Retirer) {
        if id >> TUNNEL_BITS != 0 {
            return;
        }
        for (n, inside) in [(0, InnerProtocol::Ip4), (1, InnerProtocol::Ip6)] {
            let tunnel = tunnel.filter(|tunnel| !tunnel.kind.carries_frames());
            let record = tunnel.and_then(|tunnel| self.template(tunnel.template(inside)));
            self.tunnels.put(&mut self.blocks, 2 * id + n, record, retirer);
        }
    }

    /// ```text
    /// 2: length of the header; 4: what is open; 8: slot of the next hop; 12: counter of the device, transmit
    /// 16: MTU of the device; 20: TOS; 21: where UDP is, or 0; 24: lowest source port; 26: how many
    /// 28: flags for making room; 32: the header
    /// ```
    fn template(&self, template: &EncapTemplate) -> Option<Vec<u64>> {
        let header = template.header();
        let next_hop = self.next_hops.slot(template.next_hop?.0)?;
        let fits = header.len() <= LONGEST_OUTER && template.link.0 < MOST_LINKS;
        if template.has(NEEDS_MORE) || !fits {
            return None;
        }
        let outer = if template.has(OVER_IPV6) { ENCAP_L3_IPV6 } else { ENCAP_L3_IPV4 };
        let more = match (template.udp != 0, template.gre != 0) {
            (true, _) => ENCAP_L4_UDP,
            (false, true) => ENCAP_L4_GRE,
            (false, false) => 0,
        };
        let (low, high) = template.ports;
        let mut record = vec![
            (header.len() as u64) << 16 | u64::from(template.open) << 32,
            pair(next_hop, link_at(template.link, Direction::Transmit)),
            pair(template.mtu, u32::from_ne_bytes([template.tos, template.udp, 0, 0])),
            pair(u32::from(low) | u32::from(high - low) << 16, outer | more),
        ];
        let padded: Vec<u8> =
            header.iter().copied().chain([0; 4]).take(header.len().next_multiple_of(8)).collect();
        record.extend(padded.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word)));
        Some(record)
    }

    /// Puts the record of the end that is found at once at a place into its slot.
    ///
    /// ```text
    /// 0: kind; 1: flags; 8: address of the router; 12: of the other end; 16: key; 20: counter of the device, receive
    /// 24: slot of the look-up; 28: over IPv6, that of outer packets; 32, 48: over IPv6, both addresses as on the wire
    /// ```
    pub(crate) fn set_end(&mut self, place: u32, end: Option<&PrecomputedDecap>, retirer: &Retirer) {
        let record = end.and_then(|end| self.end(end));
        self.ends.put(&mut self.blocks, place, record, retirer);
    }

    fn end(&self, end: &PrecomputedDecap) -> Option<Vec<u64>> {
        let kind = end.kind();
        let is_known = matches!(
            kind,
            TunnelKind::Ipip | TunnelKind::Sit | TunnelKind::Gre | TunnelKind::Ip6tnl | TunnelKind::Ip6gre
        );
        if !is_known || end.is_bound() || end.checked || end.link.0 >= MOST_LINKS {
            return None;
        }
        let (local, remote, key) = end.found_by();
        let is_ip6tnl = kind == TunnelKind::Ip6tnl;
        let flags = [
            (key.is_some(), END_KEY),
            (end.forward4, END_FORWARDS4),
            (end.forward6, END_FORWARDS6),
            (is_ip6tnl && end.own().is_some(), END_FOREIGN),
            (is_ip6tnl, END_OWN),
        ];
        let flags =
            flags.into_iter().filter(|(does, _)| *does).fold(0, |flags, (_, flag)| flags | u64::from(flag));
        let mut record = vec![
            kind as u64 | flags << 8,
            pair(local as u32, remote as u32),
            pair(key.unwrap_or(0), link_at(end.link, Direction::Receive)),
            pair(self.lookups.slot(end.lookup.0)?, self.lookups.slot(end.underlay.0)?),
        ];
        if kind.is_over_ipv6() {
            record.extend([local, remote].into_iter().flat_map(on_wire));
        }
        Some(record)
    }

    /// Puts the record of the port of foo-over-UDP of a UDP port into its slot.
    ///
    /// ```text
    /// 0: whether there is GUE; 1: the protocol inside, without it; 2: whether it is one of IPv6
    /// 8: the address that datagrams are for, or 0
    /// ```
    pub(crate) fn set_fou_port(&mut self, port: u16, fou: Option<FouPort>, retirer: &Retirer) {
        let record = fou.and_then(|fou| {
            let payload = match fou.payload {
                FouPayload::Protocol(protocol) => u64::from(protocol) << 8,
                FouPayload::Gue => 1,
                FouPayload::Device(_) | FouPayload::Vxlan | FouPayload::Geneve => return None,
            };
            let mut record = vec![payload | u64::from(fou.ipv6) << 16];
            match fou.local {
                IpAddr::V4(local) if !fou.ipv6 => {
                    record.push(pair(u32::from_ne_bytes(local.octets()), 0));
                }
                IpAddr::V6(local) if fou.ipv6 => record.extend(on_wire(local.to_bits())),
                _ => return None,
            }
            Some(record)
        });
        self.fou_ports.put(&mut self.blocks, port.into(), record, retirer);
    }
}

/// An IPv6 address as it lies in a packet.
fn on_wire(address: u128) -> [u64; 2] {
    [(address >> 64) as u64, address as u64].map(u64::to_be)
}
