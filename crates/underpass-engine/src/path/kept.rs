//! Frames that the kernel beside the router keeps, of a link of which a worker gets all, so that its filters see them.
//! Those that have passed the filters go to the kernel as they are now.

use crate::buffer::{Packet, PortId};
use crate::drops::DropReason;
use crate::tables::{Link, LinkId};
use crate::trace::{Event, Trace};
use crate::worker::hook::copy;
use crate::worker::{Burst, Path, Worker};

/// Whose a frame is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kept {
    /// The router's.
    No,
    /// The kernel's.
    Yes,
    /// The router's, which drops it; and the kernel may know somebody for it.
    Copy,
}

/// Says which frames the kernel keeps.
pub trait Keeper: Send {
    /// Whose this frame is, which has come in by the device with this index.
    fn kept(&mut self, ifindex: u32, frame: &[u8]) -> Kept;
}

impl<const COUNT: bool> Worker<COUNT> {
    /// Says who knows which frames the kernel keeps. Without one it keeps none.
    #[must_use]
    pub fn kept_by(mut self, keeper: impl Keeper + 'static) -> Self {
        self.path.keeper = Some(Box::new(keeper));
        self
    }
}

impl<const COUNT: bool> Path<COUNT> {
    /// Gives the kernel what it keeps of a burst, by its port of the link.
    #[cold]
    #[inline(never)]
    pub(crate) fn give_kept<T: Trace>(
        &mut self,
        kernel: PortId,
        (port, id, link): (PortId, LinkId, &Link),
        burst: &mut Burst,
        trace: &mut T,
    ) {
        let Some(mut keeper) = self.keeper.take() else { return };
        for packet in std::mem::take(burst) {
            match keeper.kept(link.ifindex, packet.bytes()) {
                Kept::No => burst.push(packet),
                Kept::Yes => {
                    trace.step(Event::Received(port), &packet);
                    trace.step(Event::Kept(id), &packet);
                    self.give(kernel, packet, trace);
                }
                Kept::Copy => {
                    self.totals.generated += 1;
                    match copy(&mut self.pool, &packet) {
                        Some(copy) => self.give(kernel, copy, trace),
                        None => self.counters.add_drop(DropReason::NoBuffer, 1),
                    }
                    burst.push(packet);
                }
            }
        }
        self.keeper = Some(keeper);
    }

    pub(crate) fn give<T: Trace>(&mut self, kernel: PortId, packet: Packet, trace: &mut T) {
        let len = packet.len();
        match self.transmit.push(kernel, packet, len) {
            Ok(()) => {
                self.totals.delivered += 1;
                // The queue of the port counts it as sent, as it does all others.
                self.totals.sent = self.totals.sent.wrapping_sub(1);
            }
            Err(packet) => self.drop(packet, DropReason::TransmitFull, trace),
        }
    }
}
