//! Frames that the kernel beside the router keeps, of a link of which a worker gets all, so that its filters see them.
//! Those that have passed the filters go to the kernel as they are now.

use crate::buffer::{Packet, PortId};
use crate::drops::DropReason;
use crate::tables::{Link, LinkId};
use crate::trace::{Event, Trace};
use crate::worker::keeper::Kept;
use crate::worker::path::{Burst, Path};

/// Gives the kernel what it keeps of a burst, by its port of the link.
#[cold]
#[inline(never)]
pub(crate) fn give_kept<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    kernel: PortId,
    (port, id, link): (PortId, LinkId, &Link),
    burst: &mut Burst,
    trace: &mut T,
) {
    let Some(mut keeper) = path.keeper.take() else { return };
    for packet in std::mem::take(burst) {
        match keeper.kept(link.ifindex, packet.bytes()) {
            Kept::No => burst.push(packet),
            Kept::Yes => {
                trace.step(Event::Received(port), &packet);
                trace.step(Event::Kept(id), &packet);
                give_to_kernel(path, kernel, packet, trace);
            }
            Kept::Copy => {
                path.totals.generated += 1;
                match path.pool.copy(&packet) {
                    Some(copy) => give_to_kernel(path, kernel, copy, trace),
                    None => path.counters.add_drop(DropReason::NoBuffer, 1),
                }
                burst.push(packet);
            }
        }
    }
    path.keeper = Some(keeper);
}

pub(crate) fn give_to_kernel<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    kernel: PortId,
    packet: Packet,
    trace: &mut T,
) {
    let len = packet.len();
    match path.transmit.push(kernel, packet, len) {
        Ok(()) => {
            path.totals.delivered += 1;
            // The queue of the port counts it as sent, as it does all others.
            path.totals.sent = path.totals.sent.wrapping_sub(1);
        }
        Err(packet) => path.drop(packet, DropReason::TransmitFull, trace),
    }
}
