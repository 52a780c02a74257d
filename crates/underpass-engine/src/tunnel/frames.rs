//! Frames that go into a tunnel in a row, from a bridge or a VLAN device. Linux: `vxlan_xmit_one`, `gre_tap_xmit`.

use underpass_packet::{ethernet, ipv6};

use crate::buffer::Packet;
use crate::counters::Direction;
use crate::drops::DropReason;
use crate::lpm::NO_LEAF;
use crate::tables::{
    ActionId, Behind, CLOSED, DEFAULT_TTL, EncapTemplate, FRAGMENT, GRE_SUM, HASH_LABEL, InnerProtocol,
    LABEL, NO_ECN, OVER_IPV6, PORT, REMOTE_GRE_SUM, REMOTE_SUM, SEQUENCE, SLOW_ONLY, StoredNextHop,
    StoredTunnel, TEMPLATE, TOS, TTL, TunnelId, TunnelRole, UDP_SUM, Via,
};
use crate::trace::Trace;
use crate::tunnel::behind::type_of;
use crate::tunnel::ecn_outside;
use crate::tunnel::entropy::{flow_label, source_port};
use crate::tunnel::inside::{Inside, lacks_header};
use crate::tunnel::limit::has_extensions;
use crate::tunnel::outer::{FIXED6, Inner, copy_template, fill_gre, fill_udp, write_ipv4};
use crate::tunnel::outer_address::{is_from_remote, source_of};
use crate::tunnel::recent_ends::{RecentEnd, RecentEnds};
use crate::tunnel::stations::end_of;
use crate::worker::family::Family;
use crate::worker::fibs::{FibList, Fibs};
use crate::worker::metadata::{ExtraMeta, PacketMeta};
use crate::worker::path::{Burst, Path};
use crate::worker::rewrite::{ETHERNET, FastVerdict, addresses, next_hop, write_header};
use crate::worker::verdict::Verdict;
use crate::worker::view::View;

/// Where frames go: another end, its next hop, and what the end adds to the sum of an IPv4 header.
#[derive(Clone, Copy)]
struct To<'a, A> {
    end: A,
    next_hop: &'a StoredNextHop,
    sum: u32,
}

/// Lengths of what VXLANs and Geneve devices put before a frame over IPv4: the IP header, and all.
const IPV4_LEN: usize = 20;
const OVERLAY: usize = IPV4_LEN + 16;

/// Frames in a row that go into a tunnel whose outer header is of this family.
struct FrameRun<'a, A> {
    id: TunnelId,
    tunnel: &'a StoredTunnel,
    template: &'a EncapTemplate,
    /// The tunnel's own other end, or where frames go of whose station nothing is known.
    own: Option<To<'a, A>>,
    /// Whether [`FrameRun::apply_overlay`] or [`FrameRun::apply_segment`] knows the outer header.
    plain: bool,
    fib: Option<FibList<'a, A>>,
}

impl<'a, A: Family> FrameRun<'a, A> {
    /// `None`: the slow path decides.
    fn new(view: &View<'a>, (id, tunnel): (TunnelId, &'a StoredTunnel)) -> Option<Self> {
        let template = tunnel.template(InnerProtocol::Frame);
        let fast = tunnel.up
            && (matches!(tunnel.config.role, TunnelRole::Device) || tunnel.config.behind.is_some())
            && !template.has(CLOSED | SLOW_ONLY | REMOTE_SUM | REMOTE_GRE_SUM)
            && !tunnel.config.sends_from().is_unspecified()
            && !tunnel.sequence.has_failed()
            && !view.tables.reads_input()
            && !view.tables.tunnels().exceptions.any();
        fast.then_some(())?;
        let [header, udp] = if A::IPV6 { [FIXED6, 0] } else { [OVERLAY, IPV4_LEN] };
        let by_flow = if A::IPV6 { HASH_LABEL } else { PORT };
        let plain = tunnel.kind.is_overlay()
            && [template.len, template.udp].map(usize::from) == [header, udp]
            && template.has(by_flow)
            && !template.has(TOS | TTL | FRAGMENT | LABEL | UDP_SUM);
        let mut run = Self { id, tunnel, template, own: None, plain, fib: None };
        let own = match &tunnel.config.behind {
            None => Some(tunnel.config.remote),
            Some(behind) => {
                run.fib = A::fib(&mut Fibs::new(view, behind.lookup), view, behind.lookup);
                match &*behind.others {
                    [end] => Some(*end),
                    _ => None,
                }
            }
        };
        run.own = own.and_then(|own| run.to_end(view, A::of_address(own)?));
        Some(run)
    }

    /// Where frames go that are for this end. `None`: the slow path decides.
    fn to_end(&self, view: &View<'a>, end: A) -> Option<To<'a, A>> {
        match A::of_address(self.tunnel.config.remote) {
            // It has a TTL of its own.
            Some(own) if own == end && end.address().is_multicast() => None,
            Some(own) if own == end => {
                let next_hop = view.next_hop(self.template.next_hop)?;
                (!next_hop.locked).then_some(To { end, next_hop, sum: 0 })
            }
            _ => Self::known(view, self.look_up(view, end)?),
        }
    }

    /// What leads to an end that is not the tunnel's own.
    fn look_up(&self, view: &View<'a>, end: A) -> Option<RecentEnd<A>> {
        // RFC 1071: what is put in for the tunnel's own, as the words lie in little-endian memory.
        let half = |end: u32| {
            let [a, b, c, d] = end.to_be_bytes();
            u32::from(u16::from_le_bytes([a, b])) + u32::from(u16::from_le_bytes([c, d]))
        };
        let low = |address: A| -> u32 {
            let bits: u128 = address.into();
            bits as u32
        };
        let own = A::of_address(self.tunnel.config.remote);
        let sum = if A::IPV6 { 0 } else { half(low(end)) + own.map_or(0, |own| half(!low(own))) };
        let leaf = self.fib?.lookup(end, view.guard)?;
        // Of a device without an address of its own each end is reached from that of the way there.
        if self.tunnel.kind.is_vxlan() && self.tunnel.config.local.is_unspecified() {
            let via = Via {
                address: end.address(),
                lookup: self.tunnel.config.behind.as_ref()?.lookup,
                resolved: None,
            };
            let source = source_of(view, self.tunnel, &via, &[]);
            (source == self.tunnel.config.sends_from()).then_some(())?;
        }
        // With a locked MTU outer packets may be fragmented, which is the slow path's; what is remembered is not checked again.
        (!next_hop(view, Some(leaf))?.locked).then_some(RecentEnd { end, leaf: ActionId(leaf), sum })
    }

    #[inline(always)]
    fn known(view: &View<'a>, RecentEnd { end, leaf, sum }: RecentEnd<A>) -> Option<To<'a, A>> {
        Some(To { end, next_hop: next_hop(view, Some(leaf.0))?, sum })
    }

    /// Where a frame goes. `None`: the slow path decides.
    #[inline(always)]
    fn to(&self, view: &View<'a>, ends: &mut RecentEnds, frame: &[u8]) -> Option<To<'a, A>> {
        let behind = self.tunnel.config.behind.as_ref();
        let Some((behind, number)) =
            behind.and_then(|behind| Some((behind, end_of(behind, frame, view.now)?)))
        else {
            return self.own;
        };
        match ends.get(self.id, number) {
            Some(known) => Self::known(view, known),
            None => self.find_end(view, ends, behind, number),
        }
    }

    #[cold]
    #[inline(never)]
    fn find_end(
        &self,
        view: &View<'a>,
        ends: &mut RecentEnds,
        behind: &Behind,
        number: u32,
    ) -> Option<To<'a, A>> {
        let end = A::of_address(behind.ends.address(number)?)?;
        if A::of_address(self.tunnel.config.remote) == Some(end) {
            return self.to_end(view, end);
        }
        // That the slow path decides is remembered, too.
        let found = self.look_up(view, end).unwrap_or(RecentEnd { end, leaf: ActionId(NO_LEAF), sum: 0 });
        ends.put(self.id, number, found);
        Self::known(view, found)
    }

    /// The TOS of the packet in a frame without tags, of which the outer header has the ECN. `None`: [`FrameRun::apply`] decides.
    #[inline(always)]
    fn plain_tos(&self, packet: &Packet) -> Option<u8> {
        let frame = packet.bytes();
        // With a full IPv6 header both bytes are there.
        let &[.., high, low, first, second] = frame.first_chunk::<{ ETHERNET + 2 }>()?;
        match u16::from_be_bytes([high, low]) {
            _ if !self.plain || frame.len() < ETHERNET + FIXED6 || packet.has_offload() => None,
            ethernet::IPV4 => Some(second),
            ethernet::IPV6 => Some(first << 4 | second >> 4),
            _ => None,
        }
    }

    /// Puts the outer header of most networks before a frame without tags: UDP over IPv4, of which nothing but the ECN is that of the
    /// packet inside. `None`: [`FrameRun::apply`] decides, and the frame is as it was.
    #[inline(always)]
    fn apply_overlay(
        &self,
        view: &View<'a>,
        ends: &mut RecentEnds,
        packet: &mut Packet,
        identification: u16,
    ) -> Option<(FastVerdict, usize)> {
        let inner_tos = self.plain_tos(packet)?;
        let frame = packet.bytes();
        let To { end, next_hop, sum } = self.to(view, ends, frame)?;
        let len = frame.len();
        let mac = addresses(next_hop, OVERLAY + len)?;
        let total = u16::try_from(OVERLAY + len).ok()?;
        let template = self.template;
        let prepared: &[u8; OVERLAY] = template.bytes.last_chunk()?;
        let port = source_port(frame.get(ETHERNET..)?, false, template.ports);
        let header: &mut [u8; ETHERNET + OVERLAY] =
            packet.push(ETHERNET + OVERLAY).ok()?.first_chunk_mut()?;
        let (head, outer) = header.split_first_chunk_mut::<ETHERNET>()?;
        write_header(head, mac, ethernet::IPV4);
        outer.copy_from_slice(prepared);
        end.write(outer.get_mut(16..20)?);
        outer.get_mut(20..22)?.copy_from_slice(&port.to_be_bytes());
        outer.get_mut(24..26)?.copy_from_slice(&(total - IPV4_LEN as u16).to_be_bytes());
        let tos = ecn_outside(template.tos, inner_tos);
        let own = [
            u32::from(total.swap_bytes()) << 16 | u32::from(tos) << 8,
            identification.swap_bytes().into(),
            0,
        ];
        write_ipv4(outer.first_chunk_mut()?, *prepared.first_chunk()?, u32::from(template.sum) + sum, own);
        Some(((next_hop.port, (ETHERNET + OVERLAY + len) as u32), len - ETHERNET))
    }

    /// The same of a header of IPv6 alone, with the label of the flow: what a frame for a SID gets.
    #[inline(always)]
    fn apply_segment(
        &self,
        view: &View<'a>,
        ends: &mut RecentEnds,
        packet: &mut Packet,
    ) -> Option<(FastVerdict, usize)> {
        let inner_tos = self.plain_tos(packet)?;
        let frame = packet.bytes();
        let To { end, next_hop, .. } = self.to(view, ends, frame)?;
        let len = frame.len();
        let mac = addresses(next_hop, FIXED6 + len)?;
        let payload = u16::try_from(len).ok()?;
        let template = self.template;
        let prepared: &[u8; FIXED6] = template.bytes.last_chunk()?;
        let label = flow_label(frame.get(ETHERNET..)?, false);
        let class = if template.has(NO_ECN) { template.tos } else { ecn_outside(template.tos, inner_tos) };
        let header: &mut [u8; ETHERNET + FIXED6] = packet.push(ETHERNET + FIXED6).ok()?.first_chunk_mut()?;
        let (head, outer) = header.split_first_chunk_mut::<ETHERNET>()?;
        write_header(head, mac, ethernet::IPV6);
        outer.copy_from_slice(prepared);
        let word = 6 << 28 | u32::from(class) << 20 | label;
        outer.get_mut(..4)?.copy_from_slice(&word.to_be_bytes());
        outer.get_mut(4..6)?.copy_from_slice(&payload.to_be_bytes());
        end.write(outer.get_mut(24..40)?);
        Some(((next_hop.port, (ETHERNET + FIXED6 + len) as u32), len - ETHERNET))
    }

    /// Puts the outer header before a frame, and says how many bytes are counted. `None`: the slow path decides, and it is as it was.
    #[inline(never)]
    fn apply(
        &self,
        view: &View<'a>,
        ends: &mut RecentEnds,
        packet: &mut Packet,
        identification: u16,
    ) -> Option<(FastVerdict, usize)> {
        let Self { tunnel, template, .. } = *self;
        if packet.has_offload() {
            return None;
        }
        let To { end, next_hop, sum } = self.to(view, ends, packet.bytes())?;
        let len = packet.len();
        let header = usize::from(template.len);
        let outer_len = header + len;
        let mac = addresses(next_hop, outer_len)?;
        let total = u16::try_from(outer_len).ok()?;
        let (at, ethertype) = Inside::of_frame(packet.bytes(), tunnel);
        let own = packet.bytes().get(at..)?;
        let labelled = type_of(packet.bytes()) == ethernet::MPLS;
        let over6 = template.has(OVER_IPV6);
        // It may be from the other end, or an encapsulation limit behind its header.
        let returns = over6
            && !tunnel.kind.is_overlay()
            && ethertype == ethernet::IPV6
            && (is_from_remote(tunnel, own.get(8..)?)
                || has_extensions(*own.get(ipv6::Header::NEXT_HEADER_OFFSET)?));
        let prepares = tunnel.kind.is_vxlan() || tunnel.kind.is_geneve();
        let lacks = (prepares || at == ETHERNET) && lacks_header(packet.bytes(), (at, ethertype));
        if returns || lacks || header + ETHERNET > packet.headroom() {
            return None;
        }
        let inner = Inner::of_frame(packet.bytes(), tunnel, (at, ethertype));
        let port = if template.has(PORT) { Some(source_port(own, labelled, template.ports)) } else { None };
        let label = match () {
            () if template.has(HASH_LABEL) => Some(flow_label(own, labelled)),
            () if template.has(LABEL) => Some(inner.label),
            () => None,
        };
        let ends =
            if template.has(UDP_SUM) { Some((tunnel.config.sends_from(), end.address())) } else { None };
        let bytes = packet.push(header + ETHERNET).ok()?;
        copy_template(template, bytes, ETHERNET + header)?;
        let (head, bytes) = bytes.split_first_chunk_mut::<ETHERNET>()?;
        let class = if template.has(TOS) { inner.tos } else { template.tos };
        let hops = if template.has(TTL) { inner.ttl.unwrap_or(DEFAULT_TTL) } else { 0 };
        if A::IPV6 {
            write_header(head, mac, ethernet::IPV6);
            let class = if template.has(NO_ECN) { class } else { ecn_outside(class, inner.tos) };
            let outer = bytes.first_chunk_mut::<FIXED6>()?;
            let word = u32::from_be_bytes(*outer.first_chunk()?) & 0x000f_ffff;
            let word = 6 << 28 | u32::from(class) << 20 | label.unwrap_or(word);
            outer[..4].copy_from_slice(&word.to_be_bytes());
            outer[4..6].copy_from_slice(&(total - FIXED6 as u16).to_be_bytes());
            outer[7] |= hops;
            end.write(&mut outer[24..]);
        } else {
            write_header(head, mac, ethernet::IPV4);
            end.write(bytes.get_mut(16..20)?);
            let outer = bytes.first_chunk_mut::<12>()?;
            let prepared = template.bytes.get(TEMPLATE - header..)?.first_chunk()?;
            let stays = u32::from(template.has(FRAGMENT) && inner.dont_fragment) << 6;
            let tos = ecn_outside(class, inner.tos);
            let own = [
                u32::from(total.swap_bytes()) << 16 | u32::from(tos) << 8,
                u32::from(identification.swap_bytes()) | stays << 16,
                hops.into(),
            ];
            write_ipv4(outer, *prepared, u32::from(template.sum) + sum, own);
        }
        if template.gre > 0 && template.has(GRE_SUM | SEQUENCE) {
            fill_gre(bytes, tunnel, (template.gre.into(), 1), None);
        }
        if template.udp > 0 {
            fill_udp(bytes, template, ends, port, None);
        }
        Some(((next_hop.port, (ETHERNET + outer_len) as u32), len.saturating_sub(at)))
    }
}

/// Puts frames in a row into a tunnel; `unrouted` if no route may have led them here.
#[inline(never)]
pub(crate) fn send_frames<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    (id, unrouted): (TunnelId, bool),
    frames: &mut Burst,
    trace: &mut T,
) {
    let Some(tunnel) = view.tables.tunnels().tunnel(id, view.guard) else {
        return frames.drain(..).for_each(|frame| path.drop(frame, DropReason::LinkDown, trace));
    };
    let to = (id, tunnel, unrouted);
    match tunnel.kind.is_over_ipv6() {
        false => run::<COUNT, T, u32>(path, view, to, frames, trace),
        true => run::<COUNT, T, u128>(path, view, to, frames, trace),
    }
}

fn run<'a, const COUNT: bool, T: Trace, A: Family>(
    path: &mut Path<COUNT>,
    view: &View<'a>,
    (id, tunnel, unrouted): (TunnelId, &'a StoredTunnel, bool),
    frames: &mut Burst,
    trace: &mut T,
) {
    let run = FrameRun::<A>::new(view, (id, tunnel)).filter(|_| !T::WATCHES);
    let mut ends = std::mem::take(&mut path.recent_ends);
    ends.begin(view.tables);
    let (mut packets, mut bytes) = (0, 0);
    for mut frame in frames.drain(..) {
        let identification = path.identification.wrapping_add(1);
        let applied = run.as_ref().and_then(|run| {
            let applied = match A::IPV6 {
                false => run.apply_overlay(view, &mut ends, &mut frame, identification),
                true => run.apply_segment(view, &mut ends, &mut frame),
            };
            applied.or_else(|| run.apply(view, &mut ends, &mut frame, identification))
        });
        match applied {
            Some((out, len)) => {
                path.identification = identification;
                (packets, bytes) = (packets + 1, bytes + len as u64);
                path.send_frame(out, frame, trace);
            }
            None => send_frame_alone(path, view, (id, tunnel, unrouted), frame, trace),
        }
    }
    path.recent_ends = ends;
    path.counters.add_crossed(tunnel.link, Direction::Transmit, packets, bytes);
    path.totals.buffer_moves_avoided += packets;
}

#[cold]
fn send_frame_alone<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    (id, tunnel, unrouted): (TunnelId, &StoredTunnel, bool),
    frame: Packet,
    trace: &mut T,
) {
    let at = frame.headroom();
    let mut meta = PacketMeta::new(frame, at, tunnel.link, ExtraMeta::new(tunnel.lookup));
    meta.extra.unrouted = unrouted;
    path.slow_path_alone(view, meta, Verdict::FrameInto(id), trace);
}
