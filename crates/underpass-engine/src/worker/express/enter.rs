//! Into tunnels, on the common road.

use std::net::IpAddr;
use std::sync::atomic::Ordering::Relaxed;

use underpass_packet::ethernet;

use super::super::tunnel::{ecn_outside, fill_gre, fill_udp, flow_label, has_extensions, source_port};
use super::super::{Path, View, ipv4};
use super::family::Family;
use super::row::Way;
use super::seen::{Look, Sight};
use super::tunnel::{FIXED4, FIXED6, GRE, GUE, UDP};
use super::{Common, Company, ETHERNET, Out, Packets, addresses, cut, write_header};
use crate::buffer::Packet;
use crate::counters::Direction;
use crate::tables::{
    ADDRESS, ActionId, CLOSED, FRAGMENT, Form, GRE_SUM, HASH_LABEL, HOOKED, LABEL, LOCAL_PORTS, Lean,
    LeanForm, NO_ECN, OVER_IPV6, PORT, REMOTE_SUM, SEQUENCE, StoredNextHop, StoredTunnel, TEMPLATE, TOS, TTL,
    TunnelRoute, UDP_SUM,
};
use crate::trace::Trace;

/// Lengths of outer headers that are soon written, with that of the frame.
const NOTHING: usize = ETHERNET + FIXED4;
const OF_GRE: usize = NOTHING + GRE;
const OF_UDP: usize = NOTHING + UDP;
const OF_UDP_GUE_GRE: usize = OF_UDP + GUE + GRE;

/// How packets go into a tunnel with an outer header that is soon written; with that of the frame it has `FRONT` bytes.
#[derive(Clone, Copy)]
struct Lane<'a, const FRONT: usize> {
    form: &'a LeanForm,
    next_hop: &'a StoredNextHop,
    /// Longest packet inside, and longest by the next hop alone.
    longest: usize,
    room: usize,
}

impl<'a, const FRONT: usize> Lane<'a, FRONT> {
    const KIND: Option<Lean> = match FRONT {
        NOTHING => Some(Lean::Nothing),
        OF_GRE => Some(Lean::Gre),
        OF_UDP => Some(Lean::Udp),
        OF_UDP_GUE_GRE => Some(Lean::UdpGueGre),
        _ => None,
    };

    /// By a route with this MTU, if it is not 0. `None`: it is not so plain, or has another header.
    #[inline(always)]
    fn new(view: &View<'a>, form: &'a LeanForm, mtu: u32) -> Option<Self> {
        let next_hop = view.next_hop(Some(form.next_hop))?;
        if Some(form.kind) != Self::KIND || view.tables.tunnels().exceptions.any() {
            return None;
        }
        let room = (next_hop.plain_mtu as usize).checked_sub(FRONT - ETHERNET)?;
        let longest = room.min(form.longest.into());
        let longest = if mtu == 0 { longest } else { longest.min(mtu as usize) };
        Some(Self { form, next_hop, longest, room })
    }
}

impl<'v, 'a, A: Family, const FRONT: usize> Way<'v, 'a, A> for Lane<'a, FRONT> {
    /// Packets, and their bytes.
    type Row = (u64, u64);

    #[inline(always)]
    fn other(self, common: &Common<'v, 'a>, leaf: Option<u32>) -> Option<Self> {
        let view = common.view;
        let form = view.tables.enters(ActionId(leaf?), A::INSIDE, view.guard)?;
        if form.kind != self.form.kind || form.next_hop != self.form.next_hop {
            return Self::new(view, form, 0);
        }
        Some(Self { form, longest: self.room.min(form.longest.into()), ..self })
    }

    #[inline(always)]
    fn take<const COUNT: bool>(
        self,
        path: &mut Path<COUNT>,
        _: &Common<'v, 'a>,
        (packet, len): (&mut Packet, usize),
        row: &mut (u64, u64),
    ) -> Option<Out> {
        let identification = path.identification.wrapping_add(1);
        let out = enter_lean::<A, FRONT>(packet, len, self, identification)?;
        path.identification = identification;
        *row = (row.0 + 1, row.1 + len as u64);
        Some(out)
    }

    #[inline(always)]
    fn count<const COUNT: bool>(self, path: &mut Path<COUNT>, row: (u64, u64)) {
        path.counters.add_crossed(self.form.link, Direction::Transmit, row.0, row.1);
        path.totals.buffer_moves_avoided += row.0;
    }
}

impl<const COUNT: bool> Path<COUNT> {
    /// Puts packets in a row into tunnels, from the first on, which `route` leads into one. The one that follows the row.
    #[inline(never)]
    pub(super) fn take_tunnelled<T: Trace, A: Family, S: Sight>(
        &mut self,
        company: &mut Company<'_, '_, '_, T>,
        packets: &mut Packets<'_>,
        sight: S,
        first: (Packet, Look<A>),
        route: &TunnelRoute,
    ) -> Option<Packet> {
        let view = company.common.view;
        let plain = route.next_hop.is_none();
        if let Some(form) = view.tables.tunnels().lean(route.tunnel, A::INSIDE, view.guard).filter(|_| plain)
        {
            if let Some(lane) = Lane::<NOTHING>::new(view, form, route.mtu) {
                return self.take_way(company, packets, sight, first, lane);
            }
            if let Some(lane) = Lane::<OF_GRE>::new(view, form, route.mtu) {
                return self.take_way(company, packets, sight, first, lane);
            }
            if let Some(lane) = Lane::<OF_UDP>::new(view, form, route.mtu) {
                return self.take_way(company, packets, sight, first, lane);
            }
            if let Some(lane) = Lane::<OF_UDP_GUE_GRE>::new(view, form, route.mtu) {
                return self.take_way(company, packets, sight, first, lane);
            }
        }
        let (packet, look) = first;
        self.take_into::<_, A>(company, packet, look.len, route);
        None
    }

    /// Puts the IP packet of `len` bytes in a frame into the tunnel of a route.
    #[inline(never)]
    fn take_into<T: Trace, A: Family>(
        &mut self,
        company: &mut Company<'_, '_, '_, T>,
        mut packet: Packet,
        len: usize,
        route: &TunnelRoute,
    ) {
        let view = company.common.view;
        let identification = self.identification.wrapping_add(1);
        let plain = route.next_hop.is_none() && (route.mtu == 0 || len <= route.mtu as usize);
        if let Some(tunnel) = view.tables.tunnels().tunnel(route.tunnel, view.guard).filter(|_| plain) {
            let form = tunnel.form(A::INSIDE);
            if let Some(out) = enter::<A>(view, &mut packet, len, (tunnel, form), identification) {
                self.identification = identification;
                self.counters.add_crossed(form.link, Direction::Transmit, 1, len as u64);
                self.totals.buffer_moves_avoided += 1;
                return self.send_frame(out, packet, company.trace);
            }
        }
        self.take_own_road(company, packet);
    }
}

/// Puts an outer header that is soon written before the packet of `len` bytes in a frame; with the frame's it has `FRONT`
/// bytes. `None`: it is not so plain, and as it was.
#[inline(always)]
fn enter_lean<A: Family, const FRONT: usize>(
    packet: &mut Packet,
    len: usize,
    Lane { form, next_hop, longest, .. }: Lane<'_, FRONT>,
    identification: u16,
) -> Option<Out> {
    let header = FRONT - ETHERNET;
    if len > longest || header > packet.headroom() {
        return None;
    }
    if packet.len() != ETHERNET + len {
        cut(packet, ETHERNET + len);
    }
    let inner = packet.bytes_mut().get_mut(ETHERNET..)?;
    let port = if form.by_flow { Some(source_port(inner, false, LOCAL_PORTS)) } else { None };
    let left = A::lower(inner)?;
    let [tos, flags, ttl] = A::words(inner.first_chunk()?, left);
    let [tos_taken, flags_taken, ttl_taken] = form.taken;
    let outer_len = header + len;
    let total = outer_len as u16;
    // `ecn_outside`, where it lies.
    let ecn = tos & 0x300;
    let own = [
        u32::from(total.swap_bytes()) << 16 | u32::from(form.tos) << 8 | tos & tos_taken | ecn & !(ecn >> 1),
        u32::from(identification.swap_bytes()) | flags & flags_taken,
        ttl & ttl_taken,
    ];
    // It ends with the old frame's header.
    let front = packet.push_front::<FRONT>(header).ok()?;
    let (head, outer) = front.split_first_chunk_mut::<ETHERNET>()?;
    write_header(head, &next_hop.mac, ethernet::IPV4);
    let template = form.header.get(form.header.len().checked_sub(header)?..)?;
    outer.copy_from_slice(template);
    write_ipv4(outer.first_chunk_mut()?, *template.first_chunk()?, form.sum.into(), own);
    if let Some(udp) = outer.get_mut(FIXED4..)?.first_chunk_mut::<UDP>() {
        if let Some(port) = port {
            udp[..2].copy_from_slice(&port.to_be_bytes());
        }
        udp[4..6].copy_from_slice(&(total - FIXED4 as u16).to_be_bytes());
    }
    Some((next_hop.port, (ETHERNET + outer_len) as u32))
}

/// Writes the first three words of an outer IPv4 header: those of its template, and what is said of its packet, as it lies
/// in little-endian memory; `sum` is that of the whole template.
#[inline(always)]
fn write_ipv4(outer: &mut [u8; 12], template: [u8; 12], sum: u32, [a, b, c]: [u32; 3]) {
    let [t0, t1, t2, t3, t4, t5, t6, t7, third @ ..] = template;
    let first = u64::from_le_bytes([t0, t1, t2, t3, t4, t5, t6, t7]) | u64::from(a) | u64::from(b) << 32;
    // Words in either byte order have the same sum: RFC 1071 section 2 (B).
    let sum = u64::from(sum) + u64::from(a) + u64::from(b) + u64::from(c);
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    let sum = sum as u32 + (sum >> 32) as u32;
    // In the upper half: both halves, and what is carried from the lower one.
    let sum = sum.wrapping_add(sum.rotate_left(16));
    outer[..8].copy_from_slice(&first.to_le_bytes());
    outer[8..].copy_from_slice(&(u32::from_le_bytes(third) | c | !sum & 0xffff_0000).to_le_bytes());
}

/// Puts the outer header of a tunnel before the packet of `len` bytes in a frame. `None`: it is not so plain, and as it
/// was.
#[inline(always)]
fn enter<A: Family>(
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
    if A::IPV6 {
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
    let port = if form.has(PORT) { Some(source_port(inner, false, form.ports)) } else { None };
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
        let own = [
            u32::from(total.swap_bytes()) << 16 | u32::from(tos) << 8,
            u32::from(identification.swap_bytes()) | u32::from(stays) << 16,
            ttl.into(),
        ];
        write_ipv4(outer, *outer, form.sum.into(), own);
    }
    if form.gre > 0 && form.has(GRE_SUM | SEQUENCE) {
        fill_gre(bytes, tunnel, usize::from(form.gre), None);
    }
    if form.udp > 0 {
        let ends = (tunnel.config.sends_from(), tunnel.config.remote);
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
