//! Labels on the common road: packets that come with one.

use underpass_packet::mpls::{self, Entry};
use underpass_packet::{FromBytes, IntoBytes, ethernet};

use super::super::mpls::{MPLS, action_of, entries, hand_ip, kept_class, write_labels};
use super::super::transmit::Transmit;
use super::super::{Burst, Path, View};
use super::{Common, Company, ETHERNET, Out, Packets, addresses, write_header};
use crate::buffer::{Packet, PortId};
use crate::counters::{Count, CounterId, Counters};
use crate::tables::{Action, IpVersion, LabelAction, StoredNextHop, Switch, SwitchTo};
use crate::trace::Trace;

/// What packets in a row have in common, counted once for all of them.
#[derive(Default)]
pub(super) struct Row {
    label: u32,
    packets: u64,
    /// From the first label on.
    bytes: u64,
    /// Those that still have labels as they leave.
    sent: Sent,
}

/// Frames with labels that leave by one port, counted when another one's turn comes.
#[derive(Default)]
pub(super) struct Sent {
    port: PortId,
    packets: u64,
    /// From the first label on.
    bytes: u64,
}

impl Sent {
    #[inline(always)]
    pub(super) fn count(&mut self, (port, len): Out, transmit: &mut Transmit) {
        if self.port != port {
            self.flush(transmit);
            self.port = port;
        }
        self.packets += 1;
        self.bytes += u64::from(len) - ETHERNET as u64;
    }

    #[inline(never)]
    pub(super) fn flush(&mut self, transmit: &mut Transmit) {
        let (packets, bytes) = (std::mem::take(&mut self.packets), std::mem::take(&mut self.bytes));
        if packets != 0 {
            transmit.count_labelled(self.port, packets, bytes);
        }
    }
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
        row.sent.flush(&mut self.transmit);
        following
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
            row.sent.count(out, &mut self.transmit);
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
