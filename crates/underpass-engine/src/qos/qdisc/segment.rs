//! A segment that stands for several packets, enqueued part by part: `tbf_segment`, `netem_segment`.

use super::discipline::{Classify, Context, Enqueued};
use super::items::{Item, ItemId, Origin, charge};
use crate::buffer::Packet;
use crate::counters::QueueCount;
use crate::drops::DropReason;
use crate::offload::Cut;

/// A segment that is being cut, and what has become of its parts.
pub(super) struct Segment {
    packet: Packet,
    len: u32,
    origin: Origin,
    cut: Option<Cut>,
    parts: u64,
    queued: i64,
    bytes: i64,
}

impl Segment {
    /// Takes it out of its entry.
    pub(super) fn take<C: Classify>(id: ItemId, cx: &mut Context<'_, C>) -> Option<Self> {
        let Item { packet: Some(packet), len, origin, .. } = cx.items.take(id)? else { return None };
        let cut = Cut::new(&packet);
        Some(Self { packet, len, origin, cut, parts: 0, queued: 0, bytes: 0 })
    }

    /// The next part. `None`: there is none, or no buffer for it.
    pub(super) fn next<C: Classify>(&mut self, cx: &mut Context<'_, C>) -> Option<Packet> {
        let part = self.cut.as_mut()?.next(&self.packet, cx.classify.pool())?.ok()?;
        self.parts += 1;
        Some(part)
    }

    /// Puts a part into an entry of its own, with its length. `None`: there is none, and the part is dropped.
    pub(super) fn put<C: Classify>(
        &self,
        part: Packet,
        count: &mut QueueCount,
        cx: &mut Context<'_, C>,
    ) -> Option<(ItemId, u32)> {
        let charged = charge(&part);
        let part = Item::new(part, self.origin, charged);
        let len = part.len;
        match cx.items.put(part) {
            Ok(id) => Some((id, len)),
            Err(part) => {
                count.drops += 1;
                cx.dropped.extend(part.packet.map(|packet| (packet, DropReason::QdiscFull)));
                None
            }
        }
    }

    /// A part of this length waits.
    pub(super) fn queued(&mut self, len: u32) {
        self.queued += 1;
        self.bytes += i64::from(len);
    }

    /// Says what became of it: its parts have taken its place, if there are any.
    pub(super) fn end<C: Classify>(self, count: &mut QueueCount, cx: &mut Context<'_, C>) -> Enqueued {
        if self.parts == 0 {
            count.drops += 1;
            cx.dropped.push((self.packet, DropReason::NoBuffer));
            return Enqueued::Dropped;
        }
        cx.generated += self.parts - 1;
        cx.classify.pool().give(self.packet);
        if self.queued == 0 {
            return Enqueued::Dropped;
        }
        cx.lost.packets += 1 - self.queued;
        cx.lost.bytes += i64::from(self.len) - self.bytes;
        Enqueued::Queued
    }
}
