//! Labels that end here, on the common road: the IP packet below is looked up, or the label below.

use arrayvec::ArrayVec;
use underpass_packet::mpls::Entry;
use underpass_packet::{FromBytes, IntoBytes, ethernet, ipv4, ipv6};

use super::super::chain::{Chain, Fibs};
use super::super::{Path, View, ipv4_plain, ipv6_plain};
use super::label::{Row, Through, first_entry, first_label, has_bottom, through_label};
use super::{Company, ETHERNET, Out, Packets, addresses, next_hop, write_header};
use crate::buffer::Packet;
use crate::counters::CounterId;
use crate::tables::{IpVersion, LabelAction, StoredNextHop, Switch, SwitchTo};
use crate::trace::Trace;

/// Where what is below the first label of a frame begins.
const BELOW: usize = ETHERNET + Entry::LEN;
/// Most labels below a label that are looked up on the common road.
const MOST_POPPED: usize = 4;

/// What is done where a label ends, found once for packets in a row that have it.
struct Ended<'a> {
    /// The tables of each family, if it may be below and they are near.
    fib4: Option<Chain<'a, u32>>,
    fib6: Option<Chain<'a, u128>>,
    /// Whether a label below is looked up.
    labels: bool,
    /// What the TTL loses before the packet is forwarded.
    hop: u8,
    /// Whether the TTL is that of the label.
    propagate: bool,
}

impl<'a> Ended<'a> {
    /// `None`: it is not so plain.
    #[inline(always)]
    fn new(view: &View<'a>, fibs: &mut Fibs<'a>, switch: &Switch) -> Option<Self> {
        let SwitchTo::Here { lookup, labels, hop } = switch.to else { return None };
        if view.tables.labels().is_uniform() {
            // What is below takes over the class too.
            return None;
        }
        let fib4 = if switch.payload == Some(IpVersion::V6) { None } else { fibs.near4(view, lookup) };
        let fib6 = if switch.payload == Some(IpVersion::V4) { None } else { fibs.near6(view, lookup) };
        Some(Self { fib4, fib6, labels, hop: u8::from(hop), propagate: switch.propagate })
    }

    /// Forwards the IP packet below the only label in a frame. `None`: it is not so plain, and as it was.
    #[inline(always)]
    fn forward(&self, view: &View<'a>, packet: &mut Packet, ttl: u8) -> Option<Out> {
        let below = packet.bytes().get(BELOW..)?;
        if let Some((target, len)) = ipv4_plain(below, view.tables.plain_bits4()) {
            let next_hop = next_hop(view, self.fib4?.lookup(target, view.guard))?;
            let left = self.left(if self.propagate { ttl } else { *below.get(8)? })?;
            let (inside, out) = uncover(packet, len, next_hop, ethernet::IPV4)?;
            ipv4::Header::mut_from_prefix(inside).ok()?.0.update_ttl(left);
            packet.narrow(Entry::LEN, ETHERNET + len);
            return Some(out);
        }
        let (target, len) = ipv6_plain(below)?;
        let next_hop = next_hop(view, self.fib6?.lookup(target, view.guard))?;
        let left = self.left(if self.propagate { ttl } else { *below.get(7)? })?;
        let (inside, out) = uncover(packet, len, next_hop, ethernet::IPV6)?;
        ipv6::Header::mut_from_prefix(inside).ok()?.0.hop_limit = left;
        packet.narrow(Entry::LEN, ETHERNET + len);
        Some(out)
    }

    /// What is left of a TTL when the packet is forwarded.
    #[inline(always)]
    fn left(&self, ttl: u8) -> Option<u8> {
        let left = ttl.checked_sub(self.hop + 1)?;
        (left > 0).then_some(left)
    }
}

/// Writes the header of a frame in which the packet of `len` bytes is no longer behind a label. What is in it, and where
/// it leaves.
#[inline(always)]
fn uncover<'p>(
    packet: &'p mut Packet,
    len: usize,
    next_hop: &StoredNextHop,
    ethertype: u16,
) -> Option<(&'p mut [u8], Out)> {
    let mac = addresses(next_hop, len)?;
    let frame = packet.bytes_mut().get_mut(Entry::LEN..)?;
    let (head, inside) = frame.split_first_chunk_mut::<ETHERNET>()?;
    write_header(head, mac, ethertype);
    Some((inside, (next_hop.port, (ETHERNET + len) as u32)))
}

/// Switches a packet by the label below the first, if another takes its place. Where it leaves, and which label it was.
/// `None`: it is not so plain, and as it was.
#[inline(always)]
fn switch_below(view: &View<'_>, packet: &mut Packet) -> Option<(Out, u32)> {
    let stack = packet.bytes().get(BELOW..)?;
    let (entry, _) = Entry::read_from_prefix(stack).ok()?;
    if entry.ttl() <= 1 || !entry.is_bottom() && !has_bottom(stack) {
        return None;
    }
    let labels = view.tables.labels();
    let LabelAction::Swap { label, next_hop } = labels.get(entry.label())? else { return None };
    let (len, next_hop) = (stack.len(), view.tables.next_hop(next_hop, view.guard)?);
    let (stack, out) = uncover(packet, len, next_hop, ethernet::MPLS)?;
    entry.swapped(label, labels.kept(), entry.ttl() - 1).write_to_prefix(stack).ok()?;
    packet.pull(Entry::LEN);
    Some((out, entry.label()))
}

impl<const COUNT: bool> Path<COUNT> {
    /// Takes packets in a row to their ports whose first label is that of `packet`, which ends here as `switch` says. The
    /// one that follows the row.
    #[inline(never)]
    pub(super) fn take_ended_row<T: Trace>(
        &mut self,
        company: &mut Company<'_, '_, '_, T>,
        packets: &mut Packets<'_>,
        row: &mut Row,
        mut packet: Packet,
        switch: &Switch,
    ) -> Option<Packet> {
        let view = company.common.view;
        let Some(ended) = Ended::new(view, company.fibs, switch) else {
            self.take_own_road(company, packet);
            return packets.next();
        };
        let label = first_label(&packet);
        // Of several ways the next packet's may be another.
        let one_way = !matches!(view.tables.labels().get(label), Some(LabelAction::Ways(_)));
        loop {
            self.take_ended(company, row, packet, label, &ended);
            packet = packets.next()?;
            let same = one_way && company.common.is_labelled(packet.bytes()) && first_label(&packet) == label;
            if !same {
                return Some(packet);
            }
        }
    }

    #[inline(always)]
    fn take_ended<T: Trace>(
        &mut self,
        company: &mut Company<'_, '_, '_, T>,
        row: &mut Row,
        mut packet: Packet,
        label: u32,
        ended: &Ended<'_>,
    ) {
        let view = company.common.view;
        let bytes = packet.len() - ETHERNET;
        let Some(entry) = first_entry(&packet).filter(|entry| entry.ttl() > 1) else {
            return self.take_own_road(company, packet);
        };
        let out = if entry.is_bottom() {
            ended.forward(view, &mut packet, entry.ttl())
        } else if !ended.labels {
            None
        } else if let Some((out, below)) = switch_below(view, &mut packet) {
            self.count(Some(CounterId::of_label(below)), bytes - Entry::LEN);
            Some(out)
        } else {
            return self.take_deep(company, row, packet);
        };
        match out {
            Some(out) => {
                self.count_label(row, (label, bytes), (out, &packet));
                self.send_frame(out, packet, company.trace);
            }
            None => self.take_own_road(company, packet),
        }
    }

    /// Takes a packet to its port that has several labels, of which the first and perhaps others end here.
    #[inline(never)]
    fn take_deep<T: Trace>(
        &mut self,
        company: &mut Company<'_, '_, '_, T>,
        row: &mut Row,
        mut packet: Packet,
    ) {
        let (view, bytes) = (company.common.view, packet.len() - ETHERNET);
        let first = first_label(&packet);
        let mut below = ArrayVec::<u32, MOST_POPPED>::new();
        let out = loop {
            // The frame begins later by that; its header is written anew where it leaves.
            packet.pull(Entry::LEN);
            below.push(first_label(&packet));
            let switch = match through_label(view, &mut packet) {
                Some(Through::Out(out)) => break Some(out),
                Some(Through::Ends(switch)) => switch,
                None => break None,
            };
            let (entry, ended) = (first_entry(&packet), Ended::new(view, company.fibs, switch));
            match (entry, ended) {
                (Some(entry), Some(ended)) if entry.is_bottom() => {
                    break ended.forward(view, &mut packet, entry.ttl());
                }
                (Some(_), Some(Ended { labels: true, .. })) if !below.is_full() => {}
                _ => break None,
            }
        };
        let Some(out) = out else {
            // As many bytes as have been taken off, which are still there.
            let _ = packet.push(below.len() * Entry::LEN);
            return self.take_own_road(company, packet);
        };
        self.count_label(row, (first, bytes), (out, &packet));
        if COUNT {
            for (label, popped) in below.into_iter().zip(1..) {
                self.count(Some(CounterId::of_label(label)), bytes - popped * Entry::LEN);
            }
        }
        self.send_frame(out, packet, company.trace);
    }
}
