//! Label switching: RFC 3031 section 3.10 and RFC 3032, as Linux's `mpls_forward` and `mpls_xmit` do it.
//!
//! A label is looked up, taken off, and others may take its place. Their TTL is that of the label that
//! came, less one; their traffic class is 0. A label without another in its place leaves what was below it.
//!
//! Where classes are uniform (RFC 3270 section 2.6.2, `net.mpls.tc_propagate`) labels have that of what they are put
//! on or take the place of, and hand it down to what is below them with their TTL.

pub(crate) mod error;
pub(crate) mod pop;
pub(crate) mod push;
pub(crate) mod switch;

use underpass_packet::mpls::Entry;
use underpass_packet::{IntoBytes, ethernet};

use crate::buffer::PortId;
use crate::flow;
use crate::tables::{Action, LabelAction, LookupId, Switch, SwitchTo};
use crate::worker::port_queues::Transmit;
use crate::worker::rewrite::{ETHERNET, FastVerdict};
use crate::worker::view::View;

/// The EtherType of labelled packets.
pub(crate) const MPLS: [u8; 2] = ethernet::MPLS.to_be_bytes();

/// What is done to a packet with this label, of several ways that of its flow.
#[inline(always)]
pub(crate) fn action_of(view: &View<'_>, label: u32, stack: &[u8]) -> Option<LabelAction> {
    let labels = view.tables.labels();
    match labels.get(label)? {
        LabelAction::NextHops(ways) => labels.choose(ways, flow::hash_labelled(stack)),
        action => Some(action),
    }
}

/// Writes entries to the front of `room`, the last of them as the bottom of the stack or not. They are of class 0
/// in `labels`.
#[inline(always)]
pub(crate) fn write_labels(
    room: &mut [u8],
    labels: &[u8],
    (class, ttl): (u8, u8),
    bottom: bool,
) -> Option<()> {
    let room = room.get_mut(..labels.len())?;
    for (entry, label) in
        room.as_chunks_mut::<{ Entry::LEN }>().0.iter_mut().zip(labels.as_chunks::<{ Entry::LEN }>().0)
    {
        *entry = *label;
        entry[2] |= class << 1;
        entry[3] = ttl;
    }
    if let [.., flags, _] = room {
        *flags = *flags & !1 | u8::from(bottom);
    }
    Some(())
}

/// Two labels as they are put on: traffic classes, TTLs and bottom bits 0.
#[inline(always)]
pub(crate) fn entries([first, last]: [u32; 2]) -> [u8; 2 * Entry::LEN] {
    let mut bytes = [0; 2 * Entry::LEN];
    bytes[..Entry::LEN].copy_from_slice(Entry::new(first, 0, false, 0).as_bytes());
    bytes[Entry::LEN..].copy_from_slice(Entry::new(last, 0, false, 0).as_bytes());
    bytes
}

/// The traffic class of labels in the place of `entry`.
#[inline(always)]
pub(crate) fn kept_class(view: &View<'_>, entry: Entry) -> u8 {
    if view.tables.labels().is_uniform() { entry.traffic_class() } else { 0 }
}

/// The traffic class of labels with that of an IP packet: the bits of its DSCP that select a class, RFC 2474
/// section 4.2.2.
#[inline(always)]
pub(crate) fn class_of(packet: &[u8]) -> Option<u8> {
    let [first, second, ..] = packet else { return None };
    Some(if first >> 4 == 6 { (first & 0xf) >> 1 } else { second >> 5 })
}

/// Whether packets with this label are looked up here, in other tables than those of `instance`.
pub(crate) fn looks_elsewhere(view: &View<'_>, stack: &[u8], label: u32, instance: LookupId) -> bool {
    let Some(LabelAction::Act(id)) = action_of(view, label, stack) else { return false };
    match view.tables.action(id, view.guard) {
        Some(Action::Switch(Switch { to: SwitchTo::Here { lookup, .. }, .. })) => {
            view.own_lookup(*lookup) != view.own_lookup(instance)
        }
        _ => false,
    }
}

/// Frames with labels that leave by one port, counted when another one's turn comes.
#[derive(Default)]
pub(crate) struct Sent {
    pub(crate) port: PortId,
    pub(crate) packets: u64,
    /// From the first label on.
    pub(crate) bytes: u64,
}

impl Sent {
    #[inline(always)]
    pub(crate) fn count(&mut self, (port, len): FastVerdict, transmit: &mut Transmit) {
        if self.port != port {
            self.flush(transmit);
            self.port = port;
        }
        self.packets += 1;
        self.bytes += u64::from(len) - ETHERNET as u64;
    }

    #[inline(never)]
    pub(crate) fn flush(&mut self, transmit: &mut Transmit) {
        let (packets, bytes) = (std::mem::take(&mut self.packets), std::mem::take(&mut self.bytes));
        if packets != 0 {
            transmit.count_labelled(self.port, packets, bytes);
        }
    }
}
