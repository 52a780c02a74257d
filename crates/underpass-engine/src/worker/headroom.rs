//! Room for headers in front of a packet.
//!
//! A buffer has room for the longest list of segments. A packet that has come to need more, after several
//! encapsulations, or that came in a buffer with less, is moved, once: the room that is asked for is that of
//! all that the route puts before the packet and of the link layer behind it, and the packet goes as far
//! back as its slot lets it.

use crate::drops::Drop;
use crate::trace::{Event, Trace};
use crate::worker::Path;
use crate::worker::metadata::Road;
use crate::worker::verdict::Refusal;

impl<const COUNT: bool> Path<COUNT> {
    /// Sees to it that a packet has `room` bytes in front of its layer-3 header.
    #[inline(always)]
    pub(crate) fn make_room<T: Trace>(
        &mut self,
        road: &mut Road,
        room: usize,
        trace: &mut T,
    ) -> Result<(), Refusal> {
        if road.packet.headroom() >= room {
            self.totals.buffer_moves_avoided += 1;
            return Ok(());
        }
        self.move_for_room(road, room, trace)
    }

    /// Moves the packet in its slot, or into a large one.
    #[cold]
    #[inline(never)]
    pub(crate) fn move_for_room<T: Trace>(
        &mut self,
        road: &mut Road,
        room: usize,
        trace: &mut T,
    ) -> Result<(), Refusal> {
        // The frame that it came in may go inside an encapsulation yet.
        let frame = road.link_layer();
        let labels_first = road.extra.labels as usize == road.packet.headroom();
        if road.packet.move_back(room).is_err() {
            let mut large = self.pool.take_large().ok_or(const { Refusal::silent(Drop::NoHeadroom) })?;
            if large.copy_back(&road.packet, room).is_err() {
                self.pool.give(large);
                return Err(Refusal::silent(Drop::NoHeadroom));
            }
            self.pool.give(std::mem::replace(&mut road.packet, large));
        }
        if let Some(frame) = frame {
            road.put_link_layer(frame);
        }
        road.extra.labels = if labels_first { road.packet.headroom() as u32 } else { 0 };
        self.totals.buffer_moves += 1;
        trace.step(Event::Moved(room), &road.packet);
        Ok(())
    }
}
