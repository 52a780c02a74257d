//! Labels on the common road: packets that come with one, and packets that get some.

use underpass_packet::mpls::{self, Entry};
use underpass_packet::{FromBytes, IntoBytes, ethernet};

use super::super::mpls::{MPLS, action_of, class_of, entries, hand_ip, kept_class, write_labels};
use super::super::{Burst, Path, View};
use super::{Common, Company, ETHERNET, Out, Packets, addresses, cut, write_header};
use crate::buffer::{Packet, PortId};
use crate::counters::{Count, CounterId, Counters};
use crate::drops::Drop;
use crate::tables::{Action, IpVersion, LabelAction, Push, StoredNextHop, Switch, SwitchTo};
use crate::trace::{Event, Trace};

/// What packets in a row have in common, counted once for all of them.
#[derive(Default)]
pub(super) struct Row {
    label: u32,
    packets: u64,
    /// From the first label on.
    bytes: u64,
    /// Where they leave, those that still have labels.
    port: PortId,
    sent_packets: u64,
    sent_bytes: u64,
}

impl<const COUNT: bool> Path<COUNT> {
    /// Takes labelled packets in a row to their ports, `packet` the first of them. The one that follows the
    /// row.
    #[inline(never)]
    pub(super) fn take_labelled<T: Trace>(
        &mut self,
        company: &mut Company<'_, '_, '_, T>,
        packets: &mut Packets<'_>,
        mut packet: Packet,
    ) -> Option<Packet> {
        let mut row = Row::default();
        let following = loop {
            let next = match self.take_label(company, &mut row, packet) {
                Some((packet, switch)) => self.take_ended_row(company, packets, &mut row, packet, switch),
                None => packets.next(),
            };
            packet = match next {
                Some(packet) => packet,
                None => break None,
            };
            if !company.common.is_labelled(packet.bytes()) {
                break Some(packet);
            }
        };
        self.flush_label(&mut row);
        self.flush_port(&mut row);
        following
    }

    /// Puts labels on an IP packet of `len` bytes and takes it to its port.
    #[inline(never)]
    pub(super) fn take_pushed<T: Trace, const IPV6: bool>(
        &mut self,
        company: &mut Company<'_, '_, '_, T>,
        packet: Packet,
        len: usize,
        push: &Push,
    ) {
        // The numbers of labels that are frequent, without a loop.
        match push.labels.len() {
            4 => self.take_labels::<T, IPV6, 4>(company, packet, len, push),
            8 => self.take_labels::<T, IPV6, 8>(company, packet, len, push),
            _ => self.take_many_labels::<T, IPV6>(company, packet, len, push),
        }
    }

    /// The same for `N` bytes of labels.
    #[inline(always)]
    fn take_labels<T: Trace, const IPV6: bool, const N: usize>(
        &mut self,
        company: &mut Company<'_, '_, '_, T>,
        mut packet: Packet,
        len: usize,
        push: &Push,
    ) {
        let labels = push.labels.first_chunk::<N>();
        match labels.and_then(|labels| put_on::<IPV6>(company.common.view, &mut packet, len, push, labels)) {
            Some(out) => self.send_labelled(out, packet, company.trace),
            None => self.take_own_road(company, packet),
        }
    }

    /// The same for any number.
    #[inline(never)]
    fn take_many_labels<T: Trace, const IPV6: bool>(
        &mut self,
        company: &mut Company<'_, '_, '_, T>,
        mut packet: Packet,
        len: usize,
        push: &Push,
    ) {
        match put_on::<IPV6>(company.common.view, &mut packet, len, push, &push.labels) {
            Some(out) => self.send_labelled(out, packet, company.trace),
            None => self.take_own_road(company, packet),
        }
    }

    /// Puts a frame with labels into the queue of a port.
    #[inline(always)]
    fn send_labelled<T: Trace>(&mut self, (port, len): Out, packet: Packet, trace: &mut T) {
        trace.step(Event::Sent(port), &packet);
        if let Err(packet) = self.transmit.push_labelled::<COUNT>(port, packet, len as usize) {
            self.drop(packet, Drop::TransmitFull, trace);
        }
    }

    /// Takes a packet that is not plainly IP to its port, if it is labelled, or along its own road.
    #[inline(never)]
    pub(super) fn take_unplain<T: Trace>(&mut self, company: &mut Company<'_, '_, '_, T>, packet: Packet) {
        if company.common.is_labelled(packet.bytes()) {
            let mut row = Row::default();
            if let Some((packet, switch)) = self.take_label(company, &mut row, packet) {
                let mut alone = Burst::new();
                self.take_ended_row(company, &mut alone.drain(..), &mut row, packet, switch);
            }
            self.flush_label(&mut row);
            self.flush_port(&mut row);
        } else {
            self.take_own_road(company, packet);
        }
    }

    /// Takes a packet to its port by its first label; or gives it back, as it was, with what is said of that label if it
    /// ends here.
    #[inline(always)]
    fn take_label<'v, T: Trace>(
        &mut self,
        company: &mut Company<'_, 'v, '_, T>,
        row: &mut Row,
        mut packet: Packet,
    ) -> Option<(Packet, &'v Switch)> {
        let (label, bytes) = (first_label(&packet), packet.len() - ETHERNET);
        match through_label(company.common.view, &mut packet) {
            Some(Through::Out(out)) => {
                self.count_label(row, (label, bytes), (out, &packet));
                self.send_frame(out, packet, company.trace);
            }
            Some(Through::Ends(switch)) => return Some((packet, switch)),
            None => self.take_own_road(company, packet),
        }
        None
    }

    /// Counts a packet of so many bytes from its first label on, which it has gone through.
    #[inline(always)]
    pub(super) fn count_label(
        &mut self,
        row: &mut Row,
        (label, bytes): (u32, usize),
        (out, packet): (Out, &Packet),
    ) {
        if !COUNT {
            return;
        }
        if row.label != label {
            self.flush_label(row);
            row.label = label;
        }
        row.packets += 1;
        row.bytes += bytes as u64;
        if packet.bytes().get(ETHERNET - 2..ETHERNET) == Some(&MPLS[..]) {
            if row.port != out.0 {
                self.flush_port(row);
                row.port = out.0;
            }
            row.sent_packets += 1;
            row.sent_bytes += u64::from(out.1) - ETHERNET as u64;
        }
    }

    #[inline(always)]
    fn flush_label(&mut self, row: &mut Row) {
        let (packets, bytes) = (std::mem::take(&mut row.packets), std::mem::take(&mut row.bytes));
        if packets != 0 {
            self.counters.add(CounterId::of_label(row.label), Count { packets, bytes, errors: 0 });
            self.labelled.count(packets, bytes);
        }
    }

    #[inline(never)]
    fn flush_port(&mut self, row: &mut Row) {
        let (packets, bytes) = (std::mem::take(&mut row.sent_packets), std::mem::take(&mut row.sent_bytes));
        if packets != 0 {
            self.transmit.count_labelled(row.port, packets, bytes);
        }
    }
}

impl Common<'_, '_> {
    /// Whether a frame for this router has labels that are looked at.
    #[inline(always)]
    pub(super) fn is_labelled(&self, frame: &[u8]) -> bool {
        self.link.mpls && self.is_of_type(frame, ethernet::MPLS)
    }

    /// Asks for the memory of the labels of a burst, where the table is not in the cache.
    #[inline(always)]
    pub(super) fn prefetch_labels(&self, burst: &Burst, counters: Option<&Counters>) {
        let labels = self.view.tables.labels();
        if !self.link.mpls || labels.is_hot() {
            return;
        }
        for packet in burst.iter().filter(|packet| self.is_labelled(packet.bytes())) {
            if let Some(Ok((entry, _))) = packet.bytes().get(ETHERNET..).map(Entry::read_from_prefix) {
                labels.prefetch(entry.label());
                if let Some(counters) = counters {
                    counters.prefetch_label(entry.label());
                }
            }
        }
    }
}

/// What has become of a packet by its first label.
pub(super) enum Through<'v> {
    /// It leaves.
    Out(Out),
    /// The label ends here; the packet is as it was.
    Ends(&'v Switch),
}

/// Takes the labelled packet in a frame to its port, or says that its label ends here. `None`: it is not so plain, and as
/// it was.
#[inline(always)]
pub(super) fn through_label<'v>(view: &'v View<'_>, packet: &mut Packet) -> Option<Through<'v>> {
    let stack = packet.bytes().get(ETHERNET..)?;
    let (entry, _) = Entry::read_from_prefix(stack).ok()?;
    if entry.ttl() <= 1 || !entry.is_bottom() && !has_bottom(stack) {
        return None;
    }
    let len = packet.len();
    let out = match action_of(view, entry.label(), stack)? {
        LabelAction::Swap { label, next_hop } => {
            let next_hop = view.tables.next_hop(next_hop, view.guard)?;
            let mac = addresses(next_hop, stack.len())?;
            let (head, stack) = packet.bytes_mut().split_first_chunk_mut()?;
            write_header(head, mac, ethernet::MPLS);
            let new = entry.swapped(label, view.tables.labels().kept(), entry.ttl() - 1);
            new.write_to_prefix(stack).ok()?;
            Some((next_hop.port, len as u32))
        }
        LabelAction::Pop { next_hop, propagate } => {
            let next_hop = view.tables.next_hop(next_hop, view.guard)?;
            replace(view, packet, len, entry, &[], (propagate, None), next_hop)
        }
        LabelAction::SwapPush { labels, next_hop } => {
            let next_hop = view.tables.next_hop(next_hop, view.guard)?;
            replace(view, packet, len, entry, &entries(labels), (true, None), next_hop)
        }
        LabelAction::Ways(_) => None,
        LabelAction::Act(id) => match view.tables.action(id, view.guard)? {
            Action::Switch(Switch { labels, to: SwitchTo::NextHop(next_hop), propagate, payload }) => {
                let next_hop = view.tables.next_hop(*next_hop, view.guard)?;
                replace(view, packet, len, entry, labels, (*propagate, *payload), next_hop)
            }
            Action::Switch(switch) if switch.labels.is_empty() => return Some(Through::Ends(switch)),
            _ => None,
        },
    };
    out.map(Through::Out)
}

/// Whether a stack ends within the packet, mostly with its second label.
#[inline(always)]
pub(super) fn has_bottom(stack: &[u8]) -> bool {
    let second = stack.get(Entry::LEN..).map(Entry::read_from_prefix);
    matches!(second, Some(Ok((entry, _))) if entry.is_bottom()) || mpls::depth(stack).is_ok()
}

/// Takes the label `entry` off the packet in a frame of `len` bytes, puts others on, and sends it to `next_hop`. What lies
/// behind is cut off where none are put on. `None`: it is not so plain, and as it was.
#[inline(always)]
fn replace(
    view: &View<'_>,
    packet: &mut Packet,
    len: usize,
    entry: Entry,
    labels: &[u8],
    (propagate, payload): (bool, Option<IpVersion>),
    next_hop: &StoredNextHop,
) -> Option<Out> {
    let len = len - Entry::LEN + labels.len();
    let mac = addresses(next_hop, len - ETHERNET)?;
    if labels.is_empty() {
        if view.tables.labels().is_uniform() {
            // What is below takes over the class too: on its own road.
            return None;
        }
        let frame = packet.bytes_mut();
        let (head, inside) = frame.get_mut(Entry::LEN..)?.split_first_chunk_mut::<ETHERNET>()?;
        let ethertype = match entry.is_bottom() {
            true => hand_ip(inside, entry, (propagate, true), (None, payload))?,
            false => ethernet::MPLS,
        };
        write_header(head, mac, ethertype);
        packet.narrow(Entry::LEN, len);
    } else {
        let frame = packet.push(labels.len() - Entry::LEN).ok()?;
        let (head, stack) = frame.split_first_chunk_mut::<ETHERNET>()?;
        write_header(head, mac, ethernet::MPLS);
        write_labels(stack, labels, (kept_class(view, entry), entry.ttl() - 1), entry.is_bottom())?;
    }
    Some((next_hop.port, len as u32))
}

/// Gives `len` bytes of labels of class 0 that of the IP packet behind them.
#[inline(never)]
fn add_class(stack: &mut [u8], len: usize) {
    if let Some((labels, packet)) = stack.split_at_mut_checked(len)
        && let Some(class) = class_of(packet)
    {
        labels.as_chunks_mut::<{ Entry::LEN }>().0.iter_mut().for_each(|entry| entry[2] |= class << 1);
    }
}

/// Puts labels on the IP packet of `len` bytes in a frame, and sends it to their next hop. `None`: it is not so
/// plain, and as it was.
#[inline(always)]
fn put_on<const IPV6: bool>(
    view: &View<'_>,
    packet: &mut Packet,
    len: usize,
    push: &Push,
    labels: &[u8],
) -> Option<Out> {
    let next_hop = view.tables.next_hop(push.next_hop, view.guard)?;
    if packet.len() != ETHERNET + len {
        cut(packet, ETHERNET + len);
    }
    let mac = addresses(next_hop, len + labels.len())?;
    if packet.headroom() < labels.len() {
        return None;
    }
    let inside = packet.bytes_mut().get_mut(ETHERNET..)?;
    let left = if IPV6 { super::ipv6::lower_hop_limit(inside) } else { super::ipv4::lower_ttl(inside) }?;
    let (head, rest) = packet.push(labels.len()).ok()?.split_first_chunk_mut::<ETHERNET>()?;
    write_header(head, mac, ethernet::MPLS);
    let ttl = push.ttl.unwrap_or(left);
    let stack = rest.get_mut(..labels.len())?;
    for (entry, [a, b, c, _]) in stack.as_chunks_mut().0.iter_mut().zip(labels.as_chunks().0) {
        *entry = [*a, *b, *c, ttl];
    }
    if view.tables.labels().is_uniform() {
        add_class(rest, labels.len());
    }
    Some((next_hop.port, (ETHERNET + labels.len() + len) as u32))
}

/// The first label of a frame, with what goes with it.
#[inline(always)]
pub(super) fn first_entry(packet: &Packet) -> Option<Entry> {
    Some(Entry::read_from_prefix(packet.bytes().get(ETHERNET..)?).ok()?.0)
}

/// The label of a frame that is labelled.
#[inline(always)]
pub(super) fn first_label(packet: &Packet) -> u32 {
    first_entry(packet).map_or(0, Entry::label)
}
