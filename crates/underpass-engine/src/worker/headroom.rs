//! Room for headers in front of a packet.
//!
//! A buffer has room for the longest list of segments. A packet that has come to need more, after several
//! encapsulations, or that came in a buffer with less, is moved, once: the room that is asked for is that of
//! all that the route puts before the packet and of the link layer behind it, and the packet goes as far
//! back as its slot lets it.

use crate::drops::DropReason;
use crate::trace::{Event, Trace};
use crate::worker::error::PacketError;
use crate::worker::metadata::PacketMeta;
use crate::worker::path::Path;

/// Sees to it that a packet has `room` bytes in front of its layer-3 header.
#[inline(always)]
pub(crate) fn reserve_headroom<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    meta: &mut PacketMeta,
    room: usize,
    trace: &mut T,
) -> Result<(), PacketError> {
    if meta.packet.headroom() >= room {
        path.totals.buffer_moves_avoided += 1;
        return Ok(());
    }
    move_for_headroom(path, meta, room, trace)
}

/// Moves the packet in its slot, or into a large one.
#[cold]
#[inline(never)]
pub(crate) fn move_for_headroom<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    meta: &mut PacketMeta,
    room: usize,
    trace: &mut T,
) -> Result<(), PacketError> {
    // The frame that it came in may go inside an encapsulation yet.
    let frame = meta.link_layer();
    let labels_first = meta.extra.labels as usize == meta.packet.headroom();
    if meta.packet.move_back(room).is_err() {
        let mut large =
            path.pool.take_large().ok_or(const { PacketError::silent(DropReason::NoHeadroom) })?;
        if large.copy_back(&meta.packet, room).is_err() {
            path.pool.give(large);
            return Err(PacketError::silent(DropReason::NoHeadroom));
        }
        path.pool.give(std::mem::replace(&mut meta.packet, large));
    }
    if let Some(frame) = frame {
        meta.put_link_layer(frame);
    }
    meta.extra.labels = if labels_first { meta.packet.headroom() as u32 } else { 0 };
    path.totals.buffer_moves += 1;
    trace.step(Event::Moved(room), &meta.packet);
    Ok(())
}
