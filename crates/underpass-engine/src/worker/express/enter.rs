//! Into tunnels, on the common road.

use std::net::IpAddr;
use std::sync::atomic::Ordering::Relaxed;

use underpass_packet::ethernet;

use super::super::tunnel::{ecn_outside, fill_gre, fill_udp, flow_label, has_extensions, source_port};
use super::super::{Path, View, ipv4, ipv6};
use super::tunnel::{FIXED4, FIXED6, GRE, GUE, UDP};
use super::{Company, ETHERNET, Out, Packets, Plain, addresses, cut, write_header};
use crate::buffer::Packet;
use crate::counters::Direction;
use crate::tables::{
    ADDRESS, CLOSED, FRAGMENT, Form, GRE_SUM, HASH_LABEL, HOOKED, Inside, LABEL, Lean, NO_ECN, OVER_IPV6,
    PORT, REMOTE_SUM, SEQUENCE, StoredNextHop, StoredTunnel, TEMPLATE, TOS, TTL, TunnelRoute, UDP_SUM,
};
use crate::trace::Trace;

/// Lengths of outer headers that are soon written, with that of the frame.
const NOTHING: usize = ETHERNET + FIXED4;
const OF_GRE: usize = NOTHING + GRE;
const OF_UDP: usize = NOTHING + UDP;
const OF_UDP_GUE_GRE: usize = OF_UDP + GUE + GRE;

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
        let mut row = (0, 0);
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
        };
        self.entered.count_row(form.link, row, &self.counters, Direction::Transmit);
        self.totals.buffer_moves_avoided += row.0;
        following
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
    if form.has(CLOSED | HOOKED | ADDRESS) || unfinished || !fits || is_narrow(view, tunnel, outer_len) {
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
