//! Packets that wait: the memory of their entries, and the lists that they stand in.
//!
//! All queues of a worker share the entries, so that a queue of any length costs nothing while it is empty, and none
//! allocates when it fills.

use underpass_packet::ethernet;

use crate::buffer::{Packet, SLOT};
use crate::flow;
use crate::qos::subject::is_vlan;
use crate::qos::{WireLength, uncounted};
use crate::tables::{LinkId, SizeTable, TunnelId};

/// Where a packet goes once its last queue has let it go.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Origin {
    /// Out by the port of the link whose queue it was, or nowhere, if that is an ifb: it was not redirected there.
    #[default]
    Here,
    /// Behind the ingress hook of this link.
    Ingress(LinkId),
    /// Behind the egress hook of this link.
    Egress(LinkId),
    /// Into this tunnel: behind its egress hook, or its own qdisc.
    Into(TunnelId),
}

/// How many bytes a frame is charged, and as how many packets: `qdisc_pkt_len`.
#[inline(always)]
pub(crate) fn charge(frame: &Packet) -> (u32, u32) {
    let wire = WireLength::of_packet(frame, uncounted(frame, false));
    ((wire.bytes() as u32).saturating_add_signed(-i32::from(frame.tag().grown)), wire.packets())
}

/// The same by a size table, which knows a segment by its own length: `qdisc_calculate_pkt_len`.
#[cold]
pub(crate) fn charge_by(table: &SizeTable, frame: &Packet) -> (u32, u32) {
    let less = uncounted(frame, false);
    let len = (frame.len() as u32).saturating_sub(less);
    (table.charge(len), WireLength::of_packet(frame, less).packets())
}

/// A packet that waits.
#[derive(Debug)]
pub struct Item {
    /// `None` in an entry that is free.
    pub(crate) packet: Option<Packet>,
    /// Bytes that it is charged: `qdisc_pkt_len`.
    pub(crate) len: u32,
    /// Packets that it stands for.
    pub(crate) segments: u32,
    /// When it came into a queue that wants to know, in units of CoDel.
    pub(super) time: u32,
    /// The band that it waits in, where there are some in one queue.
    pub(super) band: u8,
    /// `skb->priority`.
    pub(crate) priority: u32,
    pub(crate) origin: Origin,
    next: u32,
}

impl Item {
    /// A frame, charged so many bytes and packets.
    #[inline]
    pub(crate) fn new(packet: Packet, origin: Origin, (len, segments): (u32, u32)) -> Self {
        let priority = packet.tag().priority;
        Self { packet: Some(packet), len, segments, time: 0, band: 0, priority, origin, next: NONE }
    }

    /// The frame.
    #[inline(always)]
    pub(crate) fn packet(&self) -> Option<&Packet> {
        self.packet.as_ref()
    }

    /// Says again what the frame is, after an action may have changed it. It is charged as before: `qdisc_pkt_len` stays.
    pub(crate) fn put_back(&mut self, packet: Packet) {
        self.priority = packet.tag().priority;
        self.packet = Some(packet);
    }

    /// Gives the frame away.
    #[inline(always)]
    pub(crate) fn into_packet(self) -> Option<Packet> {
        self.packet
    }

    /// The EtherType of a packet without an Ethernet header; 0: it is a frame.
    pub(crate) fn headless(&self) -> u16 {
        self.packet.as_ref().map_or(0, |packet| packet.tag().headless)
    }

    /// The bytes of the frame.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.packet.as_ref().map_or(&[], Packet::bytes)
    }
}

/// Where the network header of what waits is.
pub(super) fn network(item: &Item) -> usize {
    if item.headless() == 0 { ethernet::Header::LEN } else { 0 }
}

/// Tags that are looked behind.
const TAGS: usize = 2;

/// The EtherType of a packet behind all tags, and where it begins: `skb_protocol`.
pub(super) fn network_header(bytes: &[u8], headless: u16) -> (u16, usize) {
    let ethertype = |at: usize| match bytes.get(at..) {
        Some(&[high, low, ..]) => u16::from_be_bytes([high, low]),
        _ => 0,
    };
    let mut at = if headless == 0 { ethernet::Header::LEN } else { 0 };
    let mut kind = if headless == 0 { ethertype(at - 2) } else { headless };
    for _ in 0..TAGS {
        if !is_vlan(kind) {
            break;
        }
        (kind, at) = (ethertype(at + 2), at + 4);
    }
    (kind, at)
}

/// The hash of the flow of what waits.
pub(super) fn flow_hash(item: &Item) -> u32 {
    let (_, at) = network_header(item.bytes(), item.headless());
    flow::hash(item.bytes().get(at..).unwrap_or_default())
}

/// Memory that a packet takes: its slots.
pub(super) fn memory(len: u32) -> u64 {
    u64::from(len).max(1).next_multiple_of(SLOT as u64)
}

/// Names an entry.
pub(super) type ItemId = u32;

const NONE: u32 = u32::MAX;

/// The packets of all qdiscs of a worker, each named by its [`ItemId`], and the slots that are free.
#[derive(Debug, Default)]
pub struct Items {
    entries: Vec<Item>,
    free: Vec<u32>,
    limit: usize,
}

impl Items {
    /// Room for so many packets.
    pub(crate) fn new(limit: usize) -> Self {
        Self { entries: Vec::with_capacity(limit), free: Vec::with_capacity(limit), limit }
    }

    /// Puts a packet into an entry; gives it back if there is none free.
    #[inline]
    pub(crate) fn put(&mut self, item: Item) -> Result<ItemId, Item> {
        if let Some(id) = self.free.pop()
            && let Some(entry) = self.entries.get_mut(id as usize)
        {
            *entry = item;
            return Ok(id);
        }
        if self.entries.len() == self.limit {
            return Err(item);
        }
        self.entries.push(item);
        Ok(self.entries.len() as u32 - 1)
    }

    /// Takes a packet out of its entry. `None`: it was taken out of that before.
    #[inline]
    pub(crate) fn take(&mut self, id: ItemId) -> Option<Item> {
        let entry = self.entries.get_mut(id as usize)?;
        let packet = entry.packet.take();
        self.free.push(id);
        Some(Item { packet: Some(packet?), ..*entry })
    }

    /// A packet in its entry.
    #[inline(always)]
    pub(super) fn get(&self, id: ItemId) -> Option<&Item> {
        self.entries.get(id as usize)
    }

    #[inline(always)]
    pub(super) fn get_mut(&mut self, id: ItemId) -> Option<&mut Item> {
        self.entries.get_mut(id as usize)
    }

    /// Bytes and packets that one is charged.
    #[inline(always)]
    pub(super) fn charged(&self, id: ItemId) -> (u32, u32) {
        self.get(id).map_or((0, 0), |item| (item.len, item.segments))
    }

    /// The packet behind one in its list.
    pub(super) fn after(&self, id: ItemId) -> Option<ItemId> {
        self.get(id).map(|item| item.next).filter(|next| *next != NONE)
    }

    /// How many there is room for.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// How many packets wait.
    pub(crate) fn count(&self) -> usize {
        self.entries.len() - self.free.len()
    }
}

/// Packets in the order in which they came.
#[derive(Clone, Copy, Debug)]
pub(super) struct List {
    head: u32,
    tail: u32,
    pub(super) len: u32,
}

impl Default for List {
    fn default() -> Self {
        Self { head: NONE, tail: NONE, len: 0 }
    }
}

impl List {
    #[inline]
    pub(super) fn push(&mut self, items: &mut Items, id: ItemId) {
        if let Some(item) = items.get_mut(id) {
            item.next = NONE;
        }
        match items.get_mut(self.tail).filter(|_| self.len > 0) {
            Some(last) => last.next = id,
            None => self.head = id,
        }
        self.tail = id;
        self.len += 1;
    }

    /// Puts a packet before all others.
    pub(super) fn push_first(&mut self, items: &mut Items, id: ItemId) {
        if let Some(item) = items.get_mut(id) {
            item.next = self.head;
        }
        if self.len == 0 {
            self.tail = id;
        }
        self.head = id;
        self.len += 1;
    }

    #[inline]
    pub(super) fn pop(&mut self, items: &Items) -> Option<ItemId> {
        let id = self.peek()?;
        self.head = items.get(id).map_or(NONE, |item| item.next);
        self.len -= 1;
        Some(id)
    }

    /// The one that came last; it goes past all others.
    pub(super) fn pop_last(&mut self, items: &mut Items) -> Option<ItemId> {
        if self.len <= 1 {
            return self.pop(items);
        }
        let mut before = self.head;
        for _ in 2..self.len {
            before = items.get(before)?.next;
        }
        let last = std::mem::replace(&mut self.tail, before);
        self.len -= 1;
        Some(last)
    }

    /// Takes a packet out that is behind another one, or before all.
    pub(super) fn remove_behind(&mut self, items: &mut Items, before: Option<ItemId>, id: ItemId) {
        let Some(before) = before else {
            self.pop(items);
            return;
        };
        let next = items.get(id).map_or(NONE, |item| item.next);
        if let Some(item) = items.get_mut(before) {
            item.next = next;
        }
        if self.tail == id {
            self.tail = before;
        }
        self.len -= 1;
    }

    /// The one that came last.
    pub(super) fn last(&self) -> Option<ItemId> {
        (self.len > 0).then_some(self.tail)
    }

    #[inline(always)]
    pub(super) fn peek(&self) -> Option<ItemId> {
        (self.len > 0).then_some(self.head)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_looked_behind() {
        let frame = |types: &[u16]| {
            let mut frame = vec![0; 12];
            types.iter().for_each(|kind| frame.extend([(kind >> 8) as u8, *kind as u8, 0, 1]));
            frame
        };
        assert_eq!(network_header(&frame(&[0x0800]), 0), (0x0800, 14));
        assert_eq!(network_header(&frame(&[0x88a8, 0x8100, 0x86dd]), 0), (0x86dd, 22));
        assert_eq!(network_header(&frame(&[0x8100, 0x8100, 0x8100]), 0), (0x8100, 22));
        assert_eq!(network_header(&frame(&[0x8100]), 0), (0, 18));
        assert_eq!(network_header(&[0, 1, 8, 0], 0x8100), (0x0800, 4));
        assert_eq!((network_header(&[1, 2], 0), network_header(&[], 0x0800)), ((0, 14), (0x0800, 0)));
    }
}
