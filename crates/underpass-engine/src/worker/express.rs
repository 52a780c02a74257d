//! The common road: packets that need nothing remembered of them, each from its frame to its port.
//!
//! A frame for this router with a sound IP packet in it that is to be forwarded, goes through a local
//! SID, or into an encapsulation. All else leaves the common road as it came, or with the step that it
//! goes on with, and goes along its [`Road`].

mod ended;
mod enter;
mod family;
mod headend;
mod label;
mod prefetch;
mod push;
mod row;
mod seen;
mod sid;
mod tunnel;

use arrayvec::ArrayVec;
use underpass_packet::ethernet;

use super::chain::{Chain, Fibs};
use super::road::Extra;
use super::{Burst, Path, View, Waiting, ipv4, ipv6};
use crate::buffer::{BURST, Packet, PortId};
use crate::drops::Drop;
use crate::hmac::Require;
use crate::tables::{Action, ActionId, Link, LinkId, NextHopId, StoredNextHop};
use crate::trace::{Event, Trace};
use family::Family;
use headend::Headers;
use seen::{AllFirst, InTurn, Look, Sight};

/// Length of an Ethernet header.
pub(super) const ETHERNET: usize = ethernet::Header::LEN;
/// Length of the fixed part of an IPv6 header.
const FIXED: usize = underpass_packet::ipv6::Header::LEN;

/// EtherTypes as they lie in a frame.
const IPV4: u16 = ethernet::IPV4.to_be();
const IPV6: u16 = ethernet::IPV6.to_be();

/// The port by which a frame leaves, and the length of the frame.
pub(super) type Out = (PortId, u32);

/// Those of a burst that are still to be taken.
pub(super) type Packets<'b> = arrayvec::Drain<'b, Packet, BURST>;

pub(super) const NEXT_HEADER: usize = underpass_packet::ipv6::Header::NEXT_HEADER_OFFSET;

impl<'a> View<'a> {
    #[inline(always)]
    pub(super) fn next_hop(&self, id: Option<NextHopId>) -> Option<&'a StoredNextHop> {
        self.tables.next_hop(id?, self.guard)
    }
}

/// A sound packet, as far as its look-up needs it.
#[derive(Clone, Copy)]
enum Plain {
    /// The destination, and the length of the packet.
    V6(u128, usize),
    V4(u32, usize),
}

/// What the packets of a burst have in common.
pub(super) struct Common<'v, 'a> {
    pub(super) view: &'v View<'a>,
    pub(super) port: PortId,
    pub(super) ingress: LinkId,
    pub(super) link: &'a Link,
    pub(super) extra: Extra,
    fib4: Option<Chain<'a, u32>>,
    fib6: Option<Chain<'a, u128>>,
    /// The first eight bytes of a frame for the link, as far as they are its address.
    mac: u64,
    /// Which of the first bits of an IPv4 header are looked at.
    bits4: u32,
}

/// What goes along with the packets of a burst.
pub(super) struct Company<'x, 'v, 'a, T> {
    pub(super) common: &'x Common<'v, 'a>,
    pub(super) fibs: &'x mut Fibs<'a>,
    /// Those that wait for a look-up.
    pub(super) waiting: &'x mut ArrayVec<Waiting, BURST>,
    pub(super) trace: &'x mut T,
}

impl<'v, 'a> Common<'v, 'a> {
    pub(super) fn new(
        view: &'v View<'a>,
        fibs: &mut Fibs<'a>,
        port: PortId,
        ingress: LinkId,
        link: &'a Link,
    ) -> Self {
        let [a, b, c, d, e, f] = link.mac;
        Self {
            view,
            port,
            ingress,
            link,
            extra: Extra::new(link.lookup),
            fib4: fibs.fib4(view, link.lookup).filter(|_| link.forward4),
            fib6: fibs.fib6(view, link.lookup).filter(|_| link.forward6),
            mac: u64::from_le_bytes([a, b, c, d, e, f, 0, 0]),
            bits4: view.tables.plain_bits4(),
        }
    }

    /// The packet in a frame, if it is of the common kind.
    #[inline(always)]
    fn plain(&self, frame: &[u8]) -> Option<Plain> {
        let (head, packet) = frame.split_first_chunk::<ETHERNET>()?;
        let [a, b, c, d, e, f, g, h, .., type0, type1] = *head;
        if (u64::from_le_bytes([a, b, c, d, e, f, g, h]) ^ self.mac) << 16 != 0 {
            return None;
        }
        // Compared as it lies, which saves turning it round.
        match u16::from_ne_bytes([type0, type1]) {
            IPV6 => ipv6::plain(packet).map(|(target, len)| Plain::V6(target, len)),
            IPV4 => ipv4::plain(packet, self.bits4).map(|(target, len)| Plain::V4(target, len)),
            _ => None,
        }
    }

    /// What is in a frame for this router that has a packet of this family.
    #[inline(always)]
    fn inside<'p, A: Family>(&self, frame: &'p [u8]) -> Option<&'p [u8]> {
        if self.is_of_type(frame, A::ETHERTYPE) { frame.get(ETHERNET..) } else { None }
    }

    /// Whether a frame is for this router and of this EtherType.
    #[inline(always)]
    pub(super) fn is_of_type(&self, frame: &[u8], ethertype: u16) -> bool {
        let Some([a, b, c, d, e, f, g, h, .., type0, type1]) = frame.first_chunk::<ETHERNET>() else {
            return false;
        };
        (u64::from_le_bytes([*a, *b, *c, *d, *e, *f, *g, *h]) ^ self.mac) << 16 == 0
            && u16::from_be_bytes([*type0, *type1]) == ethertype
    }

    #[inline(always)]
    fn action(&self, leaf: Option<u32>) -> Option<&'v Action> {
        self.view.tables.action(ActionId(leaf?), self.view.guard)
    }
}

impl<const COUNT: bool> Path<COUNT> {
    /// Takes all packets of a burst down the common road, and on along their own where they leave it.
    #[inline(always)]
    pub(super) fn take_all<T: Trace>(&mut self, company: &mut Company<'_, '_, '_, T>, burst: &mut Burst) {
        let Common { fib4, fib6, .. } = *company.common;
        company.common.prefetch_labels(burst, COUNT.then_some(&*self.counters));
        let edited = company.common.view.tables.sets_priority()
            && burst.iter().any(|packet| packet.tag().priority != 0);
        if T::WATCHES || company.common.link.require_hmac == Require::Always || edited {
            // What is watched goes step by step; the express path looks at no SRH as closely as that, and gives no forwarded
            // packet the priority of its TOS in the place of one that an action has set.
            for packet in burst.drain(..) {
                self.take_own_road(company, packet);
            }
            return;
        }
        let hot = fib4.is_none_or(|fib| fib.is_hot()) && fib6.is_none_or(|fib| fib.is_hot());
        if hot && !company.common.view.tables.tunnels().are_many() {
            self.take_each(company, burst.drain(..), InTurn);
        } else {
            let all = AllFirst::new(company.common, &self.counters, burst);
            self.take_each(company, burst.drain(..), &all);
        }
    }

    /// Each packet through its whole road.
    #[inline(never)]
    fn take_each<T: Trace, S: Sight>(
        &mut self,
        company: &mut Company<'_, '_, '_, T>,
        mut packets: Packets<'_>,
        sight: S,
    ) {
        let common = company.common;
        // One that follows a row of others.
        let mut following = None;
        while let Some(packet) = following.take().or_else(|| packets.next()) {
            match sight.plain(common, &packet, &packets) {
                Some(Plain::V6(target, len)) => {
                    let look = sight.look_up(common, (target, len), &packets);
                    if let Some(next_hop) = next_hop(common.view, look.leaf) {
                        self.take_forward::<_, u128>(company, packet, len, next_hop);
                        continue;
                    }
                    following = match common.action(look.leaf) {
                        Some(Action::Endpoint(sid)) => {
                            self.take_sids(company, &mut packets, sight, (packet, look), sid)
                        }
                        action => self.take_acted(company, &mut packets, sight, (packet, look), action),
                    };
                }
                Some(Plain::V4(target, len)) => {
                    let look = sight.look_up(common, (target, len), &packets);
                    if let Some(next_hop) = next_hop(common.view, look.leaf) {
                        self.take_forward::<_, u32>(company, packet, len, next_hop);
                        continue;
                    }
                    let action = common.action(look.leaf);
                    following = self.take_acted(company, &mut packets, sight, (packet, look), action);
                }
                None if common.is_labelled(packet.bytes()) => {
                    following = self.take_labelled(company, &mut packets, packet);
                }
                None => self.take_own_road(company, packet),
            }
        }
    }

    /// Forwards a packet of `len` bytes.
    #[inline(always)]
    fn take_forward<T: Trace, A: Family>(
        &mut self,
        company: &mut Company<'_, '_, '_, T>,
        mut packet: Packet,
        len: usize,
        next_hop: &StoredNextHop,
    ) {
        match forward::<A>(&mut packet, len, next_hop) {
            Some(out) => self.send_frame(out, packet, company.trace),
            None => self.take_own_road(company, packet),
        }
    }

    /// Does to a packet what its action says, and to those in a row with it. The one that follows the row.
    #[inline(always)]
    fn take_acted<'v, T: Trace, A: Family, S: Sight>(
        &mut self,
        company: &mut Company<'_, 'v, '_, T>,
        packets: &mut Packets<'_>,
        sight: S,
        first: (Packet, Look<A>),
        action: Option<&'v Action>,
    ) -> Option<Packet> {
        match action {
            Some(Action::Push(push)) => self.take_pushed(company, packets, sight, first, push),
            Some(Action::Tunnel(route)) => self.take_tunnelled(company, packets, sight, first, route),
            Some(Action::Local) => self.take_arrived_row(company, packets, sight, first),
            Some(Action::Headend(policy)) => self.take_way(company, packets, sight, first, Headers(policy)),
            Some(Action::Rpl(route)) => self.take_way(company, packets, sight, first, Headers(route)),
            Some(Action::Ioam(ioam)) => self.take_way(company, packets, sight, first, Headers(&**ioam)),
            _ => {
                self.take_own_road(company, first.0);
                None
            }
        }
    }

    /// Puts a frame into the queue of a port.
    #[inline(always)]
    pub(super) fn send<T: Trace>(&mut self, port: PortId, packet: Packet, trace: &mut T) {
        let len = packet.len() as u32;
        self.send_frame((port, len), packet, trace);
    }

    /// The same for a frame of which the length is known.
    #[inline(always)]
    pub(super) fn send_frame<T: Trace>(&mut self, (port, len): Out, packet: Packet, trace: &mut T) {
        trace.step(Event::Sent(port), &packet);
        if let Err(packet) = self.transmit.push(port, packet, len as usize) {
            self.drop(packet, Drop::TransmitFull, trace);
        }
    }
}

/// Forwards the packet of `len` bytes in a frame: lowers its hop limit, and writes the addresses of the next
/// hop over those of the frame. `None`: it is not so plain, and as it was.
#[inline(always)]
fn forward<A: Family>(packet: &mut Packet, len: usize, next_hop: &StoredNextHop) -> Option<Out> {
    let mac = addresses(next_hop, len)?;
    let frame = packet.bytes_mut();
    let padded = frame.len() != ETHERNET + len;
    let (head, bytes) = frame.split_first_chunk_mut::<ETHERNET>()?;
    A::lower(bytes)?;
    head[..12].copy_from_slice(mac);
    if padded {
        cut(packet, ETHERNET + len);
    }
    Some((next_hop.port, (ETHERNET + len) as u32))
}

/// Forwards the packet of `len` bytes that lies `at` bytes behind the first in a frame, of which the rest is cut off.
#[inline(always)]
fn forward_inner<A: Family>(
    packet: &mut Packet,
    (at, len): (usize, usize),
    next_hop: &StoredNextHop,
) -> Option<Out> {
    let mac = addresses(next_hop, len)?;
    // The Ethernet header right before the packet: `at` bytes behind the old one.
    let (head, bytes) = packet.bytes_mut().get_mut(at..)?.split_first_chunk_mut::<ETHERNET>()?;
    A::lower(bytes)?;
    write_header(head, mac, A::ETHERTYPE);
    packet.narrow(at, ETHERNET + len);
    Some((next_hop.port, (ETHERNET + len) as u32))
}

/// The next hop that a leaf forwards to.
#[inline(always)]
fn next_hop<'a>(view: &View<'a>, leaf: Option<u32>) -> Option<&'a StoredNextHop> {
    view.tables.forward(ActionId(leaf?), view.guard)
}

/// The addresses that a next hop puts before a packet of `len` bytes, if it is resolved, on Ethernet, and
/// takes it as it is.
#[inline(always)]
pub(super) fn addresses(next_hop: &StoredNextHop, len: usize) -> Option<&[u8; 12]> {
    (len <= next_hop.plain_mtu as usize).then_some(&next_hop.mac)
}

/// Writes an Ethernet header.
#[inline(always)]
pub(super) fn write_header(head: &mut [u8; ETHERNET], mac: &[u8; 12], ethertype: u16) {
    head[..12].copy_from_slice(mac);
    head[12..].copy_from_slice(&ethertype.to_be_bytes());
}

/// Cuts off what lies behind the packet in its frame.
#[cold]
pub(super) fn cut(packet: &mut Packet, len: usize) {
    packet.truncate(len);
}
