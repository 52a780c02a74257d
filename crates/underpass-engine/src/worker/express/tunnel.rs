//! Out of tunnels, on the common road, and what packets through them are counted by.

use std::net::{Ipv4Addr, Ipv6Addr};

use underpass_packet::checksum::Sum;
use underpass_packet::{ethernet, protocol};

use super::super::chain::Fibs;
use super::super::tunnel::{ecn_inside, is_local4, is_refused};
use super::super::{Path, View, ipv4, ipv6};
use super::{Company, ETHERNET, Out, Packets, Plain, forward_inner, next_hop4, next_hop6};
use crate::buffer::Packet;
use crate::counters::{Counters, Direction};
use crate::tables::{
    Action, ActionId, Arrival, FouPayload, Ingress, Inside, LinkId, StoredNextHop, StoredTunnel, TunnelKind,
    TunnelMode,
};
use crate::trace::Trace;

/// Length of an IPv4 header.
pub(super) const FIXED4: usize = underpass_packet::ipv4::Header::LEN;
pub(super) const FIXED6: usize = underpass_packet::ipv6::Header::LEN;
/// Length of a UDP header, of GUE's and GRE's without fields.
pub(super) const UDP: usize = 8;
pub(super) const GUE: usize = 4;
pub(super) const GRE: usize = 4;

/// Packets in a row through one tunnel, added to what its link has counted when another one's turn comes.
#[derive(Default)]
pub(in super::super) struct Crossed {
    link: Option<LinkId>,
    packets: u64,
    bytes: u64,
}

impl Crossed {
    #[inline(always)]
    pub(super) fn count(&mut self, link: LinkId, bytes: usize, counters: &Counters, direction: Direction) {
        self.count_row(link, (1, bytes as u64), counters, direction);
    }

    #[inline(always)]
    pub(super) fn count_row(
        &mut self,
        link: LinkId,
        (packets, bytes): (u64, u64),
        counters: &Counters,
        direction: Direction,
    ) {
        if self.link != Some(link) {
            self.flush(counters, direction);
            self.link = Some(link);
        }
        self.packets += packets;
        self.bytes += bytes;
    }

    #[inline(always)]
    pub(in super::super) fn flush(&mut self, counters: &Counters, direction: Direction) {
        if let Some(link) = self.link {
            counters.add_crossed(link, direction, self.packets, self.bytes);
            *self = Self::default();
        }
    }
}

/// The tunnel that the last packet came out of.
pub(in super::super) type Last<'a> = Option<(TunnelKind, Arrival, &'a StoredTunnel)>;

impl<const COUNT: bool> Path<COUNT> {
    /// Takes what is inside out of packets in a row for the same address of the router's, if they came through tunnels;
    /// `packet` of `len` bytes is the first of them. The one that follows the row.
    #[inline(never)]
    pub(super) fn take_arrived_row<T: Trace, const IPV6: bool>(
        &mut self,
        company: &mut Company<'_, '_, '_, T>,
        packets: &mut Packets<'_>,
        mut packet: Packet,
        (target, mut len): (u128, usize),
    ) -> Option<Packet> {
        loop {
            self.take_arrived_one::<T, IPV6>(company, packet, len);
            packet = packets.next()?;
            len = match company.common.plain(packet.bytes()) {
                Some(Plain::V6(same, len)) if IPV6 && same == target => len,
                Some(Plain::V4(same, len)) if !IPV6 && u128::from(same) == target => len,
                _ => return Some(packet),
            };
        }
    }

    /// The same for one packet.
    #[inline(never)]
    pub(super) fn take_arrived<T: Trace, const IPV6: bool>(
        &mut self,
        company: &mut Company<'_, '_, '_, T>,
        packet: Packet,
        len: usize,
    ) {
        self.take_arrived_one::<T, IPV6>(company, packet, len);
    }

    #[inline(always)]
    fn take_arrived_one<T: Trace, const IPV6: bool>(
        &mut self,
        company: &mut Company<'_, '_, '_, T>,
        mut packet: Packet,
        len: usize,
    ) {
        let common = company.common;
        if common.view.tables.tunnels().receives() {
            let ingress = Ingress { link: common.ingress, instance: common.link.lookup };
            let out =
                arrive::<IPV6>(common.view, company.fibs, &mut company.last, ingress, (&mut packet, len));
            if let Some((out, link, bytes)) = out {
                self.left.count(link, bytes, &self.counters, Direction::Receive);
                return self.send_frame(out, packet, company.trace);
            }
        }
        self.take_own_road(company, packet);
    }
}

/// The outer header of a packet.
struct Outer {
    tos: u8,
    protocol: u8,
    at: usize,
    local: u128,
    remote: u128,
}

impl Outer {
    #[inline(always)]
    fn read<const IPV6: bool>(bytes: &[u8]) -> Option<Self> {
        if IPV6 {
            let header = bytes.first_chunk::<FIXED6>()?;
            let word = |at: usize| -> Option<u128> {
                Some(u128::from_be_bytes(*header.get(at..at + 16)?.first_chunk()?))
            };
            let (protocol, at) = match (header[6], bytes.get(FIXED6..)?.first_chunk::<8>()) {
                // An encapsulation limit, as Linux writes it.
                (protocol::DESTINATION_OPTIONS, Some([next, 0, 4, 1, _, 1, 1, 0])) => (*next, FIXED6 + 8),
                (next, _) => (next, FIXED6),
            };
            let tos = header[0] << 4 | header[1] >> 4;
            return Some(Self { tos, protocol, at, remote: word(8)?, local: word(24)? });
        }
        let header = bytes.first_chunk::<FIXED4>()?;
        let fragment = u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0;
        let word =
            |at: usize| u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let (remote, local) = (word(12).into(), word(16).into());
        (!fragment).then_some(Self { tos: header[1], protocol: header[9], at: FIXED4, local, remote })
    }

    /// Goes past the UDP header, and GUE's, of what is for a port of foo-over-UDP.
    #[inline(always)]
    fn pass_udp<const IPV6: bool>(&mut self, view: &View<'_>, bytes: &[u8]) -> Option<()> {
        let datagram = bytes.get(self.at..)?;
        let [_, _, port0, port1, len0, len1, sum0, sum1] = *datagram.first_chunk::<UDP>()?;
        let payload = view.tables.tunnels().plain_port(
            u16::from_be_bytes([port0, port1]),
            IPV6,
            self.local,
            view.guard,
        )?;
        if usize::from(u16::from_be_bytes([len0, len1])) != datagram.len() {
            return None;
        }
        if [sum0, sum1] != [0; 2]
            && self.sum::<IPV6>(bytes, datagram.len())?.add_bytes(datagram).fold() != 0xffff
        {
            return None;
        }
        self.at += UDP;
        self.protocol = match payload {
            FouPayload::Protocol(protocol) => protocol,
            FouPayload::Gue => match *bytes.get(self.at..)?.first_chunk::<GUE>()? {
                [0, protocol, 0, 0] => {
                    self.at += GUE;
                    protocol
                }
                [0x40..=0x4f, ..] => protocol::IPV4,
                [0x60..=0x6f, ..] => protocol::IPV6,
                _ => return None,
            },
        };
        Some(())
    }

    /// The sum of the pseudo header of a datagram.
    #[inline(always)]
    fn sum<const IPV6: bool>(&self, bytes: &[u8], len: usize) -> Option<Sum> {
        let addresses = if IPV6 { bytes.get(8..40)? } else { bytes.get(12..20)? };
        Some(Sum::new().add_bytes(addresses).add_u16(protocol::UDP.into()).add_u32(len as u32))
    }
}

/// Takes what is inside a packet of `len` bytes in a frame out of its tunnel, and sends it to where it leads: the link of
/// the tunnel, and the bytes that came out of it. `None`: it is not so plain, and as it was.
#[inline(always)]
fn arrive<'a, const IPV6: bool>(
    view: &View<'a>,
    fibs: &mut Fibs<'a>,
    last: &mut Last<'a>,
    ingress: Ingress,
    (packet, len): (&mut Packet, usize),
) -> Option<(Out, LinkId, usize)> {
    if packet.has_offload() {
        return None;
    }
    let bytes = packet.bytes().get(ETHERNET..ETHERNET + len)?;
    let mut outer = Outer::read::<IPV6>(bytes)?;
    if outer.protocol == protocol::UDP {
        outer.pass_udp::<IPV6>(view, bytes)?;
    }
    let (mut key, mut checked) = (None, false);
    let (kind, inside, mode) = match (outer.protocol, IPV6) {
        (protocol::IPV4, false) => (TunnelKind::Ipip, Inside::Ip4, TunnelMode::Ip4),
        (protocol::IPV6, false) => (TunnelKind::Sit, Inside::Ip6, TunnelMode::Ip6),
        (protocol::IPV4, true) => (TunnelKind::Ip6tnl, Inside::Ip4, TunnelMode::Ip4),
        (protocol::IPV6, true) => (TunnelKind::Ip6tnl, Inside::Ip6, TunnelMode::Ip6),
        (protocol::GRE, _) => {
            let gre = bytes.get(outer.at..)?;
            let [flags, version, type0, type1] = *gre.first_chunk::<GRE>()?;
            let inside = match u16::from_be_bytes([type0, type1]) {
                ethernet::IPV4 => Inside::Ip4,
                ethernet::IPV6 => Inside::Ip6,
                _ => return None,
            };
            // A checksum and a key, and no other flags.
            if flags & !0xa0 != 0 || version != 0 {
                return None;
            }
            let mut fields = GRE;
            if flags & 0x80 != 0 {
                checked = Sum::new().add_bytes(gre).fold() == 0xffff;
                checked.then_some(())?;
                fields += 4;
            }
            if flags & 0x20 != 0 {
                key = Some(u32::from_be_bytes(*gre.get(fields..)?.first_chunk()?));
                fields += 4;
            }
            outer.at += fields;
            (if IPV6 { TunnelKind::Ip6gre } else { TunnelKind::Gre }, inside, TunnelMode::Any)
        }
        _ => return None,
    };
    let arrival = Arrival { local: outer.local, remote: outer.remote, key };
    let tunnel = match last {
        Some((same, known, tunnel)) if *same == kind && *known == arrival => *tunnel,
        _ => {
            let tunnels = view.tables.tunnels();
            let tunnel = match tunnels.find_plain(kind, arrival, ingress, view.guard) {
                Some(tunnel) => tunnel,
                None => tunnels.find(kind, arrival, ingress, view.guard)?.1,
            };
            let refused = match kind {
                TunnelKind::Ip6tnl => is_refused(view, tunnel, Ipv6Addr::from_bits(outer.remote).into()),
                _ if IPV6 => false,
                _ => is_own4(view, fibs, ingress, outer.remote as u32),
            };
            if refused {
                return None;
            }
            *last = Some((kind, arrival, tunnel));
            tunnel
        }
    };
    let takes = tunnel.mode == mode || tunnel.mode == TunnelMode::Any;
    if tunnel.particular || tunnel.checked != checked || !takes {
        return None;
    }
    let place = (outer.at, len);
    let out = match inside {
        Inside::Ip4 if tunnel.forward4 => {
            out4(packet, place, outer.tos, |address| next_hop4(view, fibs, tunnel.lookup, address))
        }
        Inside::Ip6 if tunnel.forward6 => {
            out6(packet, place, outer.tos, |address| next_hop6(view, fibs, tunnel.lookup, address))
        }
        _ => None,
    };
    Some((out?, tunnel.link, len - outer.at))
}

/// Whether an address is one of the router's where a packet came in.
#[inline(always)]
fn is_own4<'a>(view: &View<'a>, fibs: &mut Fibs<'a>, ingress: Ingress, address: u32) -> bool {
    let Some(fib) = fibs.fib4(view, ingress.instance) else {
        return is_local4(view, ingress, Ipv4Addr::from_bits(address));
    };
    let leaf = fib.lookup(address, view.guard);
    leaf.is_some_and(|leaf| matches!(view.tables.action(ActionId(leaf), view.guard), Some(Action::Local)))
}

/// Sends the IPv4 packet at `at` of one of `len` bytes in a frame, whose outer header has this TOS, to the next hop that
/// its destination leads to.
#[inline(always)]
fn out4<'a>(
    packet: &mut Packet,
    (at, len): (usize, usize),
    tos: u8,
    next_hop: impl FnOnce(u32) -> Option<&'a StoredNextHop>,
) -> Option<Out> {
    let bytes = packet.bytes().get(ETHERNET + at..ETHERNET + len)?;
    let (target, len) = ipv4::plain(bytes)?;
    let own = *bytes.get(1)?;
    if ecn_inside(tos, own)? != own & 3 {
        return None;
    }
    let next_hop = next_hop(target)?;
    forward_inner::<false>(packet, (at, len), next_hop)
}

/// The same for an IPv6 packet.
#[inline(always)]
fn out6<'a>(
    packet: &mut Packet,
    (at, len): (usize, usize),
    tos: u8,
    next_hop: impl FnOnce(u128) -> Option<&'a StoredNextHop>,
) -> Option<Out> {
    let bytes = packet.bytes().get(ETHERNET + at..ETHERNET + len)?;
    let (target, len) = ipv6::plain(bytes)?;
    let own = *bytes.get(1)? >> 4;
    if ecn_inside(tos, own)? != own & 3 {
        return None;
    }
    let next_hop = next_hop(target)?;
    forward_inner::<true>(packet, (at, len), next_hop)
}
