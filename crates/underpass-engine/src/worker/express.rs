//! The common road: packets that need nothing remembered of them, each from its frame to its port.
//!
//! A frame for this router with a sound IP packet in it that is to be forwarded, goes through a local
//! SID, or into an encapsulation. All else leaves the common road as it came, or with the step that it
//! goes on with, and goes along its [`Road`].

mod ended;
mod enter;
mod headend;
mod label;
mod prefetch;
mod sid;
mod tunnel;

use arrayvec::ArrayVec;
use underpass_packet::ethernet;

use super::chain::{Chain, Fibs};
use super::road::Extra;
use super::{Burst, Path, View, Waiting, ioam, ipv4, ipv6};
use crate::buffer::{BURST, Packet, PortId};
use crate::counters::Count;
use crate::drops::Drop;
use crate::hmac::Require;
use crate::lpm::NO_LEAF;
use crate::publish;
use crate::tables::{Action, ActionId, Endpoint, Link, LinkId, LookupId, NextHopId, StoredNextHop};
use crate::trace::{Event, Trace};
use headend::{encapsulate, insert_rpl};
use prefetch::prefetch_tunnels;
use sid::{through_flavours, through_sid};
pub(super) use tunnel::{Crossed, Last};

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
}

/// What goes along with the packets of a burst.
pub(super) struct Company<'x, 'v, 'a, T> {
    pub(super) common: &'x Common<'v, 'a>,
    pub(super) fibs: &'x mut Fibs<'a>,
    /// Those that wait for a look-up.
    pub(super) waiting: &'x mut ArrayVec<Waiting, BURST>,
    pub(super) trace: &'x mut T,
    /// The tunnel that the last packet came out of.
    pub(super) last: Last<'a>,
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
            IPV4 => ipv4::plain(packet).map(|(target, len)| Plain::V4(target, len)),
            _ => None,
        }
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
        if T::WATCHES || company.common.link.require_hmac == Require::Always {
            // What is watched goes step by step; and the common road looks at no SRH as closely as that.
            for packet in burst.drain(..) {
                self.take_own_road(company, packet);
            }
        } else if fib4.is_some_and(|fib| !fib.is_hot()) || fib6.is_some_and(|fib| !fib.is_hot()) {
            self.take_together(company, burst);
        } else if company.common.view.tables.tunnels().are_many() {
            let leaves = company.common.ask_for_tunnels(&self.counters, burst);
            self.take_each::<_, true>(company, burst.drain(..), &leaves);
        } else {
            self.take_each::<_, false>(company, burst.drain(..), &[NO_LEAF; BURST]);
        }
    }

    /// Each packet through its whole road: the tables are in the cache. `KNOWN`: what they are looked up to is in `leaves`.
    #[inline(never)]
    fn take_each<T: Trace, const KNOWN: bool>(
        &mut self,
        company: &mut Company<'_, '_, '_, T>,
        mut packets: Packets<'_>,
        leaves: &[u32; BURST],
    ) {
        let common = company.common;
        let came = packets.len();
        let view = common.view;
        // One that follows a row of others.
        let mut following = None;
        while let Some(mut packet) = following.take().or_else(|| packets.next()) {
            match common.plain(packet.bytes()) {
                Some(Plain::V6(target, len)) => {
                    let leaf = match KNOWN {
                        true => known(leaves, came - packets.len()),
                        false => common.fib6.and_then(|fib| fib.lookup(target, view.guard)),
                    };
                    if let Some(next_hop) = next_hop(view, leaf) {
                        match forward::<true>(&mut packet, len, next_hop) {
                            Some(out) => self.send_frame(out, packet, company.trace),
                            None => self.take_own_road(company, packet),
                        }
                        continue;
                    }
                    match common.action(leaf) {
                        Some(Action::Endpoint(sid)) => {
                            following = match sid.flavours {
                                None => self.take_row::<_, false>(
                                    company,
                                    &mut packets,
                                    packet,
                                    (target, len),
                                    sid,
                                ),
                                Some(_) => self.take_row::<_, true>(
                                    company,
                                    &mut packets,
                                    packet,
                                    (target, len),
                                    sid,
                                ),
                            };
                        }
                        Some(Action::Push(push)) => {
                            self.take_pushed::<_, true>(company, packet, len, push);
                        }
                        Some(Action::Tunnel(route)) if KNOWN => {
                            self.take_tunnelled::<_, true>(company, packet, len, route);
                        }
                        Some(Action::Tunnel(route)) => {
                            let (first, of) = ((packet, len), (leaf, route));
                            following = self.take_tunnelled_row::<_, true>(company, &mut packets, first, of);
                        }
                        Some(Action::Local) => {
                            let first = (target, len);
                            following =
                                self.take_arrived_row::<_, true>(company, &mut packets, packet, first);
                        }
                        action => self.take_other(company, packet, len, action),
                    }
                }
                Some(Plain::V4(target, len)) => {
                    let leaf = match KNOWN {
                        true => known(leaves, came - packets.len()),
                        false => common.fib4.and_then(|fib| fib.lookup(target, view.guard)),
                    };
                    if let Some(next_hop) = next_hop(view, leaf) {
                        match forward::<false>(&mut packet, len, next_hop) {
                            Some(out) => self.send_frame(out, packet, company.trace),
                            None => self.take_own_road(company, packet),
                        }
                        continue;
                    }
                    match common.action(leaf) {
                        Some(Action::Push(push)) => {
                            self.take_pushed::<_, false>(company, packet, len, push);
                        }
                        Some(Action::Tunnel(route)) if KNOWN => {
                            self.take_tunnelled::<_, false>(company, packet, len, route);
                        }
                        Some(Action::Tunnel(route)) => {
                            let (first, of) = ((packet, len), (leaf, route));
                            following = self.take_tunnelled_row::<_, false>(company, &mut packets, first, of);
                        }
                        Some(Action::Local) => {
                            let first = (target.into(), len);
                            following =
                                self.take_arrived_row::<_, false>(company, &mut packets, packet, first);
                        }
                        action => self.take_other(company, packet, len, action),
                    }
                }
                None if common.is_labelled(packet.bytes()) => {
                    following = self.take_labelled(company, &mut packets, packet);
                }
                None => self.take_own_road(company, packet),
            }
        }
    }

    /// Takes packets in a row that are for the same SID through it, `packet` of `len` bytes the first of them.
    /// The one that follows the row. `FLAVOURED`: the SID has flavours; those without have a loop of their own.
    #[inline(never)]
    fn take_row<T: Trace, const FLAVOURED: bool>(
        &mut self,
        company: &mut Company<'_, '_, '_, T>,
        packets: &mut Packets<'_>,
        mut packet: Packet,
        (target, mut len): (u128, usize),
        sid: &Endpoint,
    ) -> Option<Packet> {
        let common = company.common;
        // Counted once for all: a counter for each packet would cost 7 % of End.DX2.
        let mut row = Count::default();
        let following = loop {
            let out = match FLAVOURED {
                true => through_flavours(common.view, company.fibs, &mut packet, len, sid),
                false => through_sid(common.view, company.fibs, &mut packet, len, sid),
            };
            if let Some(out) = out {
                row.packets += 1;
                row.bytes += len as u64;
                self.send_frame(out, packet, company.trace);
            } else {
                self.take_own_road(company, packet);
            }
            packet = match packets.next() {
                Some(packet) => packet,
                None => break None,
            };
            len = match common.plain(packet.bytes()) {
                Some(Plain::V6(same, len)) if same == target => len,
                _ => break Some(packet),
            };
        };
        if let Some(counter) = sid.counter.filter(|_| COUNT) {
            self.counters.add(counter, row);
        }
        if sid.behaviour.inserts() {
            self.totals.buffer_moves_avoided += row.packets;
        }
        following
    }

    /// Does to a packet of `len` bytes what is not just forwarding.
    #[inline(never)]
    fn take_other<T: Trace>(
        &mut self,
        company: &mut Company<'_, '_, '_, T>,
        mut packet: Packet,
        len: usize,
        action: Option<&Action>,
    ) {
        let view = company.common.view;
        let out = match action {
            Some(Action::Headend(policy)) => {
                let out = encapsulate(view, &mut packet, len, policy, None);
                self.totals.buffer_moves_avoided += u64::from(out.is_some());
                out
            }
            Some(Action::Rpl(route)) => {
                let out = insert_rpl(view, &mut packet, len, route);
                self.totals.buffer_moves_avoided += u64::from(out.is_some());
                out
            }
            Some(Action::Ioam(ioam)) => {
                let out = ioam::insert_plain(company.common, &mut packet, len, ioam);
                self.totals.buffer_moves_avoided += u64::from(out.is_some());
                out
            }
            Some(Action::Endpoint(sid)) => {
                let out = match sid.flavours {
                    None => through_sid(view, company.fibs, &mut packet, len, sid),
                    Some(_) => through_flavours(view, company.fibs, &mut packet, len, sid),
                };
                if out.is_some() {
                    self.count(sid.counter, len);
                    self.totals.buffer_moves_avoided += u64::from(sid.behaviour.inserts());
                }
                out
            }
            _ => None,
        };
        match out {
            Some(out) => self.send_frame(out, packet, company.trace),
            None => self.take_own_road(company, packet),
        }
    }

    /// All packets looked up at once, in tables that are not in the cache.
    #[inline(never)]
    fn take_together<T: Trace>(&mut self, company: &mut Company<'_, '_, '_, T>, burst: &mut Burst) {
        let common = company.common;
        let view = common.view;
        let mut plains = ArrayVec::<Option<Plain>, BURST>::new();
        let mut targets4 = ArrayVec::<u32, BURST>::new();
        let mut targets6 = ArrayVec::<u128, BURST>::new();
        // A large table of IPv4 is in memory, from where an answer comes while other packets are checked.
        let far = common.fib4.map(|chain| chain.first).filter(|fib| fib.is_flat());
        for packet in burst.iter() {
            let plain = common.plain(packet.bytes());
            plains.push(plain);
            match plain {
                Some(Plain::V6(target, _)) => targets6.push(target),
                Some(Plain::V4(target, _)) => {
                    targets4.push(target);
                    if let Some(fib) = far {
                        fib.prefetch(target);
                    }
                }
                None => {}
            }
        }
        let (mut leaves4, mut leaves6) = ([NO_LEAF; BURST], [NO_LEAF; BURST]);
        let (leaves4, leaves6) = (&mut leaves4[..targets4.len()], &mut leaves6[..targets6.len()]);
        if let Some(fib) = common.fib6 {
            fib.lookup_batch(&targets6, leaves6, view.guard);
            prefetch(view, leaves6);
        }
        if let Some(fib) = common.fib4 {
            fib.lookup_batch(&targets4, leaves4, view.guard);
            prefetch(view, leaves4);
        }
        if view.tables.tunnels().are_many() {
            let (mut leaves4, mut leaves6) = (leaves4.iter(), leaves6.iter());
            let found = |plain: &Option<Plain>| match plain {
                Some(Plain::V6(..)) => leaves6.next().copied(),
                Some(Plain::V4(..)) => leaves4.next().copied(),
                None => None,
            };
            let leaves = plains.iter().map(found).map(|leaf| leaf.unwrap_or(NO_LEAF));
            prefetch_tunnels(view, &self.counters, burst.iter().zip(leaves));
        }
        let (mut leaves4, mut leaves6) = (leaves4.iter(), leaves6.iter());
        for (mut packet, plain) in burst.drain(..).zip(plains) {
            let (action, len, ipv6) = match plain {
                Some(Plain::V6(_, len)) => (common.action(leaves6.next().copied()), len, true),
                Some(Plain::V4(_, len)) => (common.action(leaves4.next().copied()), len, false),
                None => {
                    self.take_unplain(company, packet);
                    continue;
                }
            };
            let out = match action {
                Some(Action::Forward(id)) if ipv6 => {
                    view.next_hop(Some(*id)).and_then(|next_hop| forward::<true>(&mut packet, len, next_hop))
                }
                Some(Action::Forward(id)) => {
                    view.next_hop(Some(*id)).and_then(|next_hop| forward::<false>(&mut packet, len, next_hop))
                }
                Some(Action::Push(push)) if ipv6 => {
                    self.take_pushed::<_, true>(company, packet, len, push);
                    continue;
                }
                Some(Action::Push(push)) => {
                    self.take_pushed::<_, false>(company, packet, len, push);
                    continue;
                }
                Some(Action::Tunnel(route)) => {
                    match ipv6 {
                        true => self.take_tunnelled::<_, true>(company, packet, len, route),
                        false => self.take_tunnelled::<_, false>(company, packet, len, route),
                    }
                    continue;
                }
                Some(Action::Local) => {
                    match ipv6 {
                        true => self.take_arrived::<_, true>(company, packet, len),
                        false => self.take_arrived::<_, false>(company, packet, len),
                    }
                    continue;
                }
                action => {
                    self.take_other(company, packet, len, action);
                    continue;
                }
            };
            match out {
                Some(out) => self.send_frame(out, packet, company.trace),
                None => self.take_own_road(company, packet),
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

/// What the packet of this number, from 1 on, was looked up to.
#[inline(always)]
fn known(leaves: &[u32; BURST], number: usize) -> Option<u32> {
    leaves.get(number.wrapping_sub(1)).copied().filter(|leaf| *leaf != NO_LEAF)
}

/// Asks for the memory of what was found, which is about to be read: the actions, and the headers of
/// those that insert any.
#[inline(never)]
fn prefetch(view: &View<'_>, leaves: &[u32]) {
    view.tables.prefetch_actions(leaves.iter().copied());
    for leaf in leaves {
        if let Some(Action::Headend(policy)) = view.tables.action(ActionId(*leaf), view.guard) {
            publish::prefetch(policy.header.as_ptr());
        }
    }
}

/// Forwards the packet of `len` bytes in a frame: lowers its hop limit, and writes the addresses of the next
/// hop over those of the frame. `None`: it is not so plain, and as it was.
#[inline(always)]
fn forward<const IPV6: bool>(packet: &mut Packet, len: usize, next_hop: &StoredNextHop) -> Option<Out> {
    let mac = addresses(next_hop, len)?;
    let frame = packet.bytes_mut();
    let padded = frame.len() != ETHERNET + len;
    let (head, bytes) = frame.split_first_chunk_mut::<ETHERNET>()?;
    if IPV6 { ipv6::lower_hop_limit(bytes) } else { ipv4::lower_ttl(bytes) }?;
    head[..12].copy_from_slice(mac);
    if padded {
        cut(packet, ETHERNET + len);
    }
    Some((next_hop.port, (ETHERNET + len) as u32))
}

/// Forwards the packet of `len` bytes that lies `at` bytes behind the first in a frame, of which the rest is cut off.
#[inline(always)]
fn forward_inner<const IPV6: bool>(
    packet: &mut Packet,
    (at, len): (usize, usize),
    next_hop: &StoredNextHop,
) -> Option<Out> {
    let mac = addresses(next_hop, len)?;
    // The Ethernet header right before the packet: `at` bytes behind the old one.
    let (head, bytes) = packet.bytes_mut().get_mut(at..)?.split_first_chunk_mut::<ETHERNET>()?;
    if IPV6 { ipv6::lower_hop_limit(bytes) } else { ipv4::lower_ttl(bytes) }?;
    write_header(head, mac, if IPV6 { ethernet::IPV6 } else { ethernet::IPV4 });
    packet.narrow(at, ETHERNET + len);
    Some((next_hop.port, (ETHERNET + len) as u32))
}

/// The next hop that an IPv4 address leads to, in tables that are in the cache.
#[inline(always)]
pub(super) fn next_hop4<'a>(
    view: &View<'a>,
    fibs: &mut Fibs<'a>,
    lookup: LookupId,
    address: u32,
) -> Option<&'a StoredNextHop> {
    let fib = fibs.fib4(view, lookup).filter(Chain::is_hot)?;
    next_hop(view, fib.lookup(address, view.guard))
}

/// The same for an IPv6 address.
#[inline(always)]
pub(super) fn next_hop6<'a>(
    view: &View<'a>,
    fibs: &mut Fibs<'a>,
    lookup: LookupId,
    address: u128,
) -> Option<&'a StoredNextHop> {
    let fib = fibs.fib6(view, lookup).filter(Chain::is_hot)?;
    next_hop(view, fib.lookup(address, view.guard))
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
