//! Into tunnels and out of them, on the common road.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::Ordering::Relaxed;

use underpass_packet::checksum::Sum;
use underpass_packet::{ethernet, protocol};

use super::super::chain::Fibs;
use super::super::tunnel::{
    ecn_inside, ecn_outside, fill_gre, fill_udp, flow_label, has_extensions, is_local4, is_refused,
    source_port,
};
use super::super::{Path, View, ipv4, ipv6};
use super::{
    Company, ETHERNET, Out, Packets, Plain, addresses, cut, forward_inner, next_hop4, next_hop6, write_header,
};
use crate::buffer::Packet;
use crate::counters::{Counters, Direction};
use crate::tables::{
    ADDRESS, Action, ActionId, Arrival, CLOSED, FRAGMENT, Form, FouPayload, GRE_SUM, HASH_LABEL, Ingress,
    Inside, LABEL, Lean, LinkId, NO_ECN, OVER_IPV6, PORT, REMOTE_SUM, SEQUENCE, StoredNextHop, StoredTunnel,
    TEMPLATE, TOS, TTL, TunnelKind, TunnelMode, TunnelRoute, UDP_SUM,
};
use crate::trace::Trace;

/// Length of an IPv4 header.
const FIXED4: usize = underpass_packet::ipv4::Header::LEN;
const FIXED6: usize = underpass_packet::ipv6::Header::LEN;
/// Length of a UDP header, of GUE's and GRE's without fields.
const UDP: usize = 8;
const GUE: usize = 4;
const GRE: usize = 4;

/// Lengths of outer headers that are soon written, with that of the frame.
const NOTHING: usize = ETHERNET + FIXED4;
const OF_GRE: usize = NOTHING + GRE;
const OF_UDP: usize = NOTHING + UDP;
const OF_UDP_GUE_GRE: usize = OF_UDP + GUE + GRE;

/// Packets in a row through one tunnel, added to what its link has counted when another one's turn comes.
#[derive(Default)]
pub(in super::super) struct Crossed {
    link: Option<LinkId>,
    packets: u64,
    bytes: u64,
}

impl Crossed {
    #[inline(always)]
    fn count(&mut self, link: LinkId, bytes: usize, counters: &Counters, direction: Direction) {
        self.count_row(link, (1, bytes as u64), counters, direction);
    }

    #[inline(always)]
    fn count_row(
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
    /// Puts the IP packet of `len` bytes in a frame into the tunnel of a route.
    #[inline(never)]
    pub(super) fn take_tunnelled<T: Trace, const IPV6: bool>(
        &mut self,
        company: &mut Company<'_, '_, '_, T>,
        mut packet: Packet,
        len: usize,
        route: &TunnelRoute,
    ) {
        let view = company.common.view;
        let identification = self.identification.wrapping_add(1);
        if let Some(tunnel) = view.tables.tunnels().tunnel(route.tunnel, view.guard) {
            let form = tunnel.form(if IPV6 { Inside::Ip6 } else { Inside::Ip4 });
            let out = match (form.lean, LeanWay::new(view, route, form)) {
                (Lean::Nothing, Some(way)) => {
                    enter_lean::<IPV6, NOTHING>(&mut packet, len, form, way, identification)
                }
                (Lean::Gre, Some(way)) => {
                    enter_lean::<IPV6, OF_GRE>(&mut packet, len, form, way, identification)
                }
                (Lean::Udp, Some(way)) => {
                    enter_lean::<IPV6, OF_UDP>(&mut packet, len, form, way, identification)
                }
                (Lean::UdpGueGre, Some(way)) => {
                    enter_lean::<IPV6, OF_UDP_GUE_GRE>(&mut packet, len, form, way, identification)
                }
                (Lean::No, _)
                    if route.next_hop.is_none() && (route.mtu == 0 || len <= route.mtu as usize) =>
                {
                    enter::<IPV6>(view, &mut packet, len, (tunnel, form), identification)
                }
                _ => None,
            };
            if let Some(out) = out {
                self.identification = identification;
                self.entered.count(form.link, len, &self.counters, Direction::Transmit);
                self.totals.buffer_moves_avoided += 1;
                return self.send_frame(out, packet, company.trace);
            }
        }
        self.take_own_road(company, packet);
    }

    /// Puts packets in a row that are looked up to the same `leaf`, a route by a tunnel, into it; `packet` of `len` bytes is
    /// the first of them. The one that follows the row.
    #[inline(never)]
    pub(super) fn take_tunnelled_row<T: Trace, const IPV6: bool>(
        &mut self,
        company: &mut Company<'_, '_, '_, T>,
        packets: &mut Packets<'_>,
        packet: (Packet, usize),
        (leaf, route): (Option<u32>, &TunnelRoute),
    ) -> Option<Packet> {
        let view = company.common.view;
        if let Some(tunnel) = view.tables.tunnels().tunnel(route.tunnel, view.guard) {
            let form = tunnel.form(if IPV6 { Inside::Ip6 } else { Inside::Ip4 });
            match (form.lean, LeanWay::new(view, route, form)) {
                (Lean::Nothing, Some(way)) => {
                    return self.enter_row::<T, IPV6, NOTHING>(company, packets, packet, leaf, (form, way));
                }
                (Lean::Gre, Some(way)) => {
                    return self.enter_row::<T, IPV6, OF_GRE>(company, packets, packet, leaf, (form, way));
                }
                (Lean::Udp, Some(way)) => {
                    return self.enter_row::<T, IPV6, OF_UDP>(company, packets, packet, leaf, (form, way));
                }
                (Lean::UdpGueGre, Some(way)) => {
                    return self.enter_row::<T, IPV6, OF_UDP_GUE_GRE>(
                        company,
                        packets,
                        packet,
                        leaf,
                        (form, way),
                    );
                }
                _ => {}
            }
        }
        self.take_tunnelled::<T, IPV6>(company, packet.0, packet.1, route);
        packets.next()
    }

    /// The same with an outer header that is soon written; with that of the frame it has `FRONT` bytes.
    #[inline(always)]
    fn enter_row<T: Trace, const IPV6: bool, const FRONT: usize>(
        &mut self,
        company: &mut Company<'_, '_, '_, T>,
        packets: &mut Packets<'_>,
        (mut packet, mut len): (Packet, usize),
        leaf: Option<u32>,
        (form, way): (&Form, LeanWay<'_>),
    ) -> Option<Packet> {
        let common = company.common;
        let guard = common.view.guard;
        let (mut row, mut received) = ((0, 0), 0);
        let following = loop {
            let identification = self.identification.wrapping_add(1);
            match enter_lean::<IPV6, FRONT>(&mut packet, len, form, way, identification) {
                Some(out) => {
                    self.identification = identification;
                    row = (row.0 + 1, row.1 + len as u64);
                    self.send_frame(out, packet, company.trace);
                }
                None => self.take_own_road(company, packet),
            }
            packet = match packets.next() {
                Some(packet) => packet,
                None => break None,
            };
            let (found, length) = match common.plain(packet.bytes()) {
                Some(Plain::V6(target, len)) if IPV6 => {
                    (common.fib6.and_then(|fib| fib.lookup(target, guard)), len)
                }
                Some(Plain::V4(target, len)) if !IPV6 => {
                    (common.fib4.and_then(|fib| fib.lookup(target, guard)), len)
                }
                _ => break Some(packet),
            };
            if found != leaf {
                break Some(packet);
            }
            len = length;
            received += packet.len() as u64;
        };
        self.entered.count_row(form.link, row, &self.counters, Direction::Transmit);
        self.totals.buffer_moves_avoided += row.0;
        company.received += received;
        following
    }

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
        let mut received = 0;
        let following = loop {
            self.take_arrived_one::<T, IPV6>(company, packet, len);
            packet = match packets.next() {
                Some(packet) => packet,
                None => break None,
            };
            len = match company.common.plain(packet.bytes()) {
                Some(Plain::V6(same, len)) if IPV6 && same == target => len,
                Some(Plain::V4(same, len)) if !IPV6 && u128::from(same) == target => len,
                _ => break Some(packet),
            };
            received += packet.len() as u64;
        };
        company.received += received;
        following
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

/// The way of packets with an outer header that is soon written.
#[derive(Clone, Copy)]
struct LeanWay<'a> {
    next_hop: &'a StoredNextHop,
    /// Longest packet inside.
    longest: usize,
}

impl<'a> LeanWay<'a> {
    /// `None`: it is not so plain.
    #[inline(always)]
    fn new(view: &View<'a>, route: &TunnelRoute, form: &Form) -> Option<Self> {
        let next_hop = view.next_hop(form.next_hop)?;
        if view.tables.tunnels().exceptions.any() {
            return None;
        }
        let outer = (next_hop.plain_mtu as usize).min(u16::MAX.into());
        let outer = outer.checked_sub(usize::from(form.len))?;
        Some(Self { next_hop, longest: outer.min(form.mtu as usize).min(route.mtu(u32::MAX) as usize) })
    }
}

/// Puts an outer header that is soon written before the packet of `len` bytes in a frame; with the frame's it has `FRONT`
/// bytes. `None`: it is not so plain, and as it was.
#[inline(always)]
fn enter_lean<const IPV6: bool, const FRONT: usize>(
    packet: &mut Packet,
    len: usize,
    form: &Form,
    LeanWay { next_hop, longest }: LeanWay<'_>,
    identification: u16,
) -> Option<Out> {
    if len > longest {
        return None;
    }
    let header = FRONT - ETHERNET;
    let outer_len = header + len;
    let total = outer_len as u16;
    if packet.len() != ETHERNET + len {
        cut(packet, ETHERNET + len);
    }
    // The front ends with the old frame's header, which is written over when all is known.
    let (front, inner) = packet.push(header).ok()?.split_first_chunk_mut::<FRONT>()?;
    let left = if IPV6 { ipv6::lower_hop_limit(inner) } else { ipv4::lower_ttl(inner) };
    let (Some(left), Some([first, second, _, _, _, _, flags, ..])) = (left, inner.first_chunk::<FIXED4>())
    else {
        packet.pull(header);
        return None;
    };
    let (tos, flags) = if IPV6 { (first << 4 | second >> 4, 0) } else { (*second, *flags) };
    let [tos_taken, flags_taken, ttl_taken] = form.taken;
    let tos = ecn_outside(form.tos | tos & tos_taken, tos);
    let (stays, ttl) = (flags & flags_taken, left & ttl_taken);
    let port = if form.has(PORT) { Some(source_port(inner, false)) } else { None };
    *front = *form.template.last_chunk::<FRONT>()?;
    front[..12].copy_from_slice(&next_hop.mac);
    front[12..ETHERNET].copy_from_slice(&ethernet::IPV4.to_be_bytes());
    let outer = front.get_mut(ETHERNET..)?;
    fill_ipv4(outer.first_chunk_mut::<12>()?, form.sum, (total, identification), (tos, stays, ttl));
    if let Some(udp) = outer.get_mut(FIXED4..)?.first_chunk_mut::<UDP>() {
        if let Some(port) = port {
            udp[..2].copy_from_slice(&port.to_be_bytes());
        }
        udp[4..6].copy_from_slice(&(total - FIXED4 as u16).to_be_bytes());
    }
    Some((next_hop.port, (ETHERNET + outer_len) as u32))
}

/// Fills in what an outer IPv4 header says of its packet; `sum` is that of the rest.
#[inline(always)]
fn fill_ipv4(
    outer: &mut [u8; 12],
    sum: u32,
    (total, identification): (u16, u16),
    (tos, stays, ttl): (u8, u8, u8),
) {
    let words = outer.as_chunks_mut::<4>().0;
    let [first, second, third] = words else { return };
    let [total0, total1] = total.to_be_bytes();
    let [identification0, identification1] = identification.to_be_bytes();
    // The fields are added where they lie in little-endian words: RFC 1071 section 2 (B).
    let own = [[0, tos, total0, total1], [identification0, identification1, stays, 0], [ttl, 0, 0, 0]];
    let [a, b, c] = own.map(u32::from_le_bytes);
    *first = (u32::from_le_bytes(*first) | a).to_le_bytes();
    *second = (u32::from_le_bytes(*second) | b).to_le_bytes();
    let sum = u64::from(sum) + u64::from(a) + u64::from(b) + u64::from(c);
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    let sum = sum as u32 + (sum >> 32) as u32;
    // In the upper half: both halves, and what is carried from the lower one.
    let sum = sum.wrapping_add(sum.rotate_left(16));
    *third = (u32::from_le_bytes(*third) | c | !sum & 0xffff_0000).to_le_bytes();
}

/// Puts the outer header of a tunnel before the packet of `len` bytes in a frame. `None`: it is not so plain, and as it
/// was.
#[inline(always)]
fn enter<const IPV6: bool>(
    view: &View<'_>,
    packet: &mut Packet,
    len: usize,
    (tunnel, form): (&StoredTunnel, &Form),
    identification: u16,
) -> Option<Out> {
    let header = usize::from(form.len);
    let outer_len = header + len;
    let next_hop = view.next_hop(form.next_hop)?;
    let mac = addresses(next_hop, outer_len)?;
    let total = u16::try_from(outer_len).ok()?;
    let unfinished = packet.has_offload() && form.has(UDP_SUM | GRE_SUM | REMOTE_SUM);
    let fits = len <= form.mtu as usize && header <= packet.headroom();
    if form.has(CLOSED | ADDRESS) || unfinished || !fits || is_narrow(view, tunnel, outer_len) {
        return None;
    }
    // What the outer header takes over.
    let inner = packet.bytes_mut().get_mut(ETHERNET..ETHERNET + len)?;
    let (tos, ttl, stays, label);
    if IPV6 {
        let [a, b, c, d, _, _, next, hop_limit] = inner.first_chunk_mut::<8>()?;
        // An encapsulation limit may be behind it.
        if *hop_limit <= 1 || form.has(OVER_IPV6) && has_extensions(*next) {
            return None;
        }
        *hop_limit -= 1;
        let word = u32::from_be_bytes([*a, *b, *c, *d]);
        (tos, ttl, stays, label) = ((word >> 20) as u8, *hop_limit, 0, word & 0x000f_ffff);
    } else {
        let [_, second, _, _, _, _, flags, _, own, ..] = *inner.first_chunk::<FIXED4>()?;
        ipv4::lower_ttl(inner)?;
        (tos, ttl, stays, label) = (second, own - 1, flags & 0x40, 0);
    }
    let port = if form.has(PORT) { Some(source_port(inner, false)) } else { None };
    let label = if form.has(HASH_LABEL) { flow_label(inner, false) } else { label };
    if packet.len() != ETHERNET + len {
        cut(packet, ETHERNET + len);
    }
    let bytes = packet.push(header).ok()?;
    copy_template(form, bytes, ETHERNET + header)?;
    let (head, bytes) = bytes.split_first_chunk_mut::<ETHERNET>()?;
    let class = if form.has(TOS) { tos } else { form.tos };
    if form.has(OVER_IPV6) {
        let class = if form.has(NO_ECN) { class } else { ecn_outside(class, tos) };
        write_header(head, mac, ethernet::IPV6);
        let outer = bytes.first_chunk_mut::<8>()?;
        let [_, own @ ..] = *outer.first_chunk::<4>()?;
        let [own_b, own_c, own_d] = own;
        let own = u32::from_be_bytes([0, own_b, own_c, own_d]);
        let label = if form.has(HASH_LABEL | LABEL) { label } else { own };
        let word = 6 << 28 | u32::from(class) << 20 | label;
        outer[..4].copy_from_slice(&word.to_be_bytes());
        outer[4..6].copy_from_slice(&(total - FIXED6 as u16).to_be_bytes());
        if form.has(TTL) {
            outer[7] = ttl;
        }
    } else {
        write_header(head, mac, ethernet::IPV4);
        let outer = bytes.first_chunk_mut::<12>()?;
        let tos = ecn_outside(class, tos);
        let stays = if form.has(FRAGMENT) { stays } else { 0 };
        let ttl = if form.has(TTL) { ttl } else { 0 };
        fill_ipv4(outer, form.sum, (total, identification), (tos, stays, ttl));
    }
    if form.gre > 0 && form.has(GRE_SUM | SEQUENCE) {
        fill_gre(bytes, tunnel, usize::from(form.gre), None);
    }
    if form.udp > 0 {
        let ends = (tunnel.config.local, tunnel.config.remote);
        fill_udp(bytes, tunnel, form, ends, port, None);
    }
    Some((next_hop.port, (ETHERNET + outer_len) as u32))
}

/// Whether a router on the way has told that outer packets of so many bytes are too long, or may be fragmented, or that
/// one has not arrived.
#[inline(always)]
fn is_narrow(view: &View<'_>, tunnel: &StoredTunnel, len: usize) -> bool {
    view.tables.tunnels().exceptions.any() && is_told_of(view, tunnel, len)
}

#[cold]
fn is_told_of(view: &View<'_>, tunnel: &StoredTunnel, len: usize) -> bool {
    let remote = match tunnel.config.remote {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => address.to_bits(),
    };
    let told = view.tables.tunnels().exceptions.of(remote, tunnel.config.via.lookup, view.now);
    told.is_some_and(|path| path.locked || len > path.mtu as usize)
        || tunnel.sequence.errors.load(Relaxed) > 0
}

/// Copies the header of a form so that it ends at `end`, and bytes before it that are written later: in pieces of a
/// fixed length, as a call of memcpy would take longer.
#[inline(always)]
fn copy_template(form: &Form, bytes: &mut [u8], end: usize) -> Option<()> {
    match form.len {
        0..=32 => copy_end::<32>(form, bytes, end),
        33..=48 => copy_end::<48>(form, bytes, end),
        49..=64 => copy_end::<64>(form, bytes, end),
        _ => copy_end::<TEMPLATE>(form, bytes, end),
    }
}

#[inline(always)]
fn copy_end<const N: usize>(form: &Form, bytes: &mut [u8], end: usize) -> Option<()> {
    let from: &[u8; N] = form.template.last_chunk()?;
    let to: &mut [u8; N] = bytes.get_mut(..end)?.last_chunk_mut()?;
    *to = *from;
    Some(())
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
