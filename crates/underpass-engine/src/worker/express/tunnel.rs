//! Out of tunnels, on the common road, and what packets through them are counted by.

use std::net::{Ipv4Addr, Ipv6Addr};

use underpass_packet::checksum::Sum;
use underpass_packet::{ethernet, protocol};

use super::super::chain::Fibs;
use super::super::tunnel::{ecn_inside, is_local4, is_refused};
use super::super::{Path, View};
use super::family::{Family, To};
use super::seen::{Look, Sight};
use super::{Company, ETHERNET, Out, Packets, forward_inner};
use crate::buffer::Packet;
use crate::counters::{Counters, Direction};
use crate::tables::{
    Action, ActionId, Arrival, FouPayload, Ingress, Inside, LeanEnd, LinkId, LookupId, TunnelKind,
};
use crate::trace::Trace;

/// Length of an IPv4 header.
pub(super) const FIXED4: usize = underpass_packet::ipv4::Header::LEN;
pub(super) const FIXED6: usize = underpass_packet::ipv6::Header::LEN;
/// Length of a UDP header, of GUE's and GRE's without fields.
pub(super) const UDP: usize = 8;
pub(super) const GUE: usize = 4;
pub(super) const GRE: usize = 4;

/// Packets in a row out of one tunnel, added to what its link has counted when another one's turn comes.
#[derive(Default)]
struct Left {
    link: Option<LinkId>,
    packets: u64,
    bytes: u64,
}

impl Left {
    #[inline(always)]
    fn count(&mut self, link: LinkId, bytes: usize, counters: &Counters) {
        if self.link != Some(link) {
            self.flush(counters);
            *self = Self { link: Some(link), packets: 0, bytes: 0 };
        }
        self.packets += 1;
        self.bytes += bytes as u64;
    }

    #[inline(always)]
    fn flush(&self, counters: &Counters) {
        if let Some(link) = self.link {
            counters.add_crossed(link, Direction::Receive, self.packets, self.bytes);
        }
    }
}

/// What was found for the packet that came out of a tunnel last.
struct Last<'a, A> {
    end: Option<(Arrived<A>, &'a LeanEnd)>,
    /// Where what comes out of it is looked up.
    lookup: Option<LookupId>,
    to4: Option<To<'a, u32>>,
    to6: Option<To<'a, u128>>,
}

/// What a tunnel is found by.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Arrived<A> {
    kind: TunnelKind,
    remote: A,
    local: A,
    key: Option<u32>,
}

impl<const COUNT: bool> Path<COUNT> {
    /// Takes what is inside out of packets in a row for the same address of the router's, if they came through tunnels, from
    /// the first on. The one that follows the row.
    #[inline(never)]
    pub(super) fn take_arrived_row<T: Trace, A: Family, S: Sight>(
        &mut self,
        company: &mut Company<'_, '_, '_, T>,
        packets: &mut Packets<'_>,
        sight: S,
        (mut packet, look): (Packet, Look<A>),
    ) -> Option<Packet> {
        let common = company.common;
        if !common.view.tables.tunnels().receives() {
            self.take_own_road(company, packet);
            return None;
        }
        let ingress = Ingress { link: common.ingress, instance: common.link.lookup };
        let mut last = Last { end: None, lookup: None, to4: None, to6: None };
        let mut left = Left::default();
        let mut len = look.len;
        let following = loop {
            match arrive::<A>(common.view, company.fibs, &mut last, ingress, (&mut packet, len)) {
                Some((out, link, bytes)) => {
                    left.count(link, bytes, &self.counters);
                    self.send_frame(out, packet, company.trace);
                }
                None => self.take_own_road(company, packet),
            }
            packet = match packets.next() {
                Some(packet) => packet,
                None => break None,
            };
            len = match sight.again(common, &packet, packets, look) {
                Some(len) => len,
                None => break Some(packet),
            };
        };
        left.flush(&self.counters);
        following
    }
}

/// The outer header of a packet.
struct Outer<A> {
    tos: u8,
    protocol: u8,
    at: usize,
    remote: A,
    local: A,
}

impl<A: Family> Outer<A> {
    #[inline(always)]
    fn read(bytes: &[u8]) -> Option<Self> {
        let (remote, local) = A::ends(bytes)?;
        if A::IPV6 {
            let header = bytes.first_chunk::<FIXED6>()?;
            let (protocol, at) = match (header[6], bytes.get(FIXED6..)?.first_chunk::<8>()) {
                // An encapsulation limit, as Linux writes it.
                (protocol::DESTINATION_OPTIONS, Some([next, 0, 4, 1, _, 1, 1, 0])) => (*next, FIXED6 + 8),
                (next, _) => (next, FIXED6),
            };
            let tos = header[0] << 4 | header[1] >> 4;
            return Some(Self { tos, protocol, at, remote, local });
        }
        let header = bytes.first_chunk::<FIXED4>()?;
        let fragment = u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0;
        (!fragment).then_some(Self { tos: header[1], protocol: header[9], at: FIXED4, local, remote })
    }

    /// Goes past the UDP header, and GUE's, of what is for a port of foo-over-UDP.
    #[inline(always)]
    fn pass_udp(&mut self, view: &View<'_>, bytes: &[u8]) -> Option<()> {
        let datagram = bytes.get(self.at..)?;
        let [_, _, port0, port1, len0, len1, sum0, sum1] = *datagram.first_chunk::<UDP>()?;
        let payload = view.tables.tunnels().plain_port(
            u16::from_be_bytes([port0, port1]),
            A::IPV6,
            self.local.into(),
            view.guard,
        )?;
        if usize::from(u16::from_be_bytes([len0, len1])) != datagram.len() {
            return None;
        }
        if [sum0, sum1] != [0; 2] && self.sum(bytes, datagram.len())?.add_bytes(datagram).fold() != 0xffff {
            return None;
        }
        self.at += UDP;
        self.protocol = match payload {
            FouPayload::Protocol(protocol) => protocol,
            FouPayload::Device(_) => return None,
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
    fn sum(&self, bytes: &[u8], len: usize) -> Option<Sum> {
        let addresses = if A::IPV6 { bytes.get(8..40)? } else { bytes.get(12..20)? };
        Some(Sum::new().add_bytes(addresses).add_u16(protocol::UDP.into()).add_u32(len as u32))
    }
}

/// Takes what is inside a packet of `len` bytes in a frame out of its tunnel, and sends it to where it leads: the link of
/// the tunnel, and the bytes that came out of it. `None`: it is not so plain, and as it was.
#[inline(always)]
fn arrive<'a, A: Family>(
    view: &View<'a>,
    fibs: &mut Fibs<'a>,
    last: &mut Last<'a, A>,
    ingress: Ingress,
    (packet, len): (&mut Packet, usize),
) -> Option<(Out, LinkId, usize)> {
    if packet.has_offload() {
        return None;
    }
    let bytes = packet.bytes().get(ETHERNET..ETHERNET + len)?;
    let mut outer = Outer::<A>::read(bytes)?;
    if outer.protocol == protocol::UDP {
        outer.pass_udp(view, bytes)?;
    }
    let (mut key, mut checked) = (None, false);
    let (kind, inside) = match (outer.protocol, A::IPV6) {
        (protocol::IPV4, false) => (TunnelKind::Ipip, Inside::Ip4),
        (protocol::IPV6, false) => (TunnelKind::Sit, Inside::Ip6),
        (protocol::IPV4, true) => (TunnelKind::Ip6tnl, Inside::Ip4),
        (protocol::IPV6, true) => (TunnelKind::Ip6tnl, Inside::Ip6),
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
            (if A::IPV6 { TunnelKind::Ip6gre } else { TunnelKind::Gre }, inside)
        }
        _ => return None,
    };
    let arrived = Arrived { kind, remote: outer.remote, local: outer.local, key };
    let end = match &last.end {
        Some((same, end)) if *same == arrived => *end,
        _ => {
            let end = find::<A>(view, fibs, arrived, ingress)?;
            if last.lookup != Some(end.lookup) {
                last.lookup = Some(end.lookup);
                last.to4 = To::table(view, fibs, end.lookup);
                last.to6 = To::table(view, fibs, end.lookup);
            }
            last.end = Some((arrived, end));
            end
        }
    };
    if end.checked != checked {
        return None;
    }
    let place = (outer.at, len);
    let out = match inside {
        Inside::Ip4 if end.forward4 => out(view, packet, place, outer.tos, last.to4?),
        Inside::Ip6 if end.forward6 => out(view, packet, place, outer.tos, last.to6?),
        _ => None,
    };
    Some((out?, end.link, len - outer.at))
}

/// The end of the tunnel that a packet is for. `None`: it is not so plain.
#[inline(always)]
fn find<'a, A: Family>(
    view: &View<'a>,
    fibs: &mut Fibs<'a>,
    Arrived { kind, remote, local, key }: Arrived<A>,
    ingress: Ingress,
) -> Option<&'a LeanEnd> {
    let tunnels = view.tables.tunnels();
    let arrival = Arrival { local: local.into(), remote: remote.into(), key };
    let end = match tunnels.lean_end(kind, arrival, ingress, view.guard) {
        Some(end) => end,
        None => tunnels.find(kind, arrival, ingress, view.guard)?.1.end.as_ref()?,
    };
    let refused = match kind {
        TunnelKind::Ip6tnl => is_refused(view, Ipv6Addr::from_bits(arrival.remote), end.own()),
        _ if A::IPV6 => false,
        _ => is_own4(view, fibs, ingress, arrival.remote as u32),
    };
    (!refused).then_some(end)
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

/// Sends the packet at `at` of one of `len` bytes in a frame, whose outer header has this TOS, to where its destination
/// leads.
#[inline(always)]
fn out<'a, A: Family>(
    view: &View<'a>,
    packet: &mut Packet,
    (at, len): (usize, usize),
    tos: u8,
    to: To<'a, A>,
) -> Option<Out> {
    let bytes = packet.bytes().get(ETHERNET + at..ETHERNET + len)?;
    let (target, len) = A::plain(bytes, view.tables.plain_bits4())?;
    let own = A::class(*bytes.get(1)?);
    if ecn_inside(tos, own)? != own & 3 {
        return None;
    }
    let next_hop = to.next_hop(view, target)?;
    forward_inner::<A>(packet, (at, len), next_hop)
}
