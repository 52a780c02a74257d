//! Links above other links, which take frames from them and send frames by them.

pub(crate) mod vlan;

use crate::drops::DropReason;
use crate::tables::Link;
use crate::trace::Trace;
use crate::worker::path::Path;
use crate::worker::view::View;

impl Link {
    /// Whether what waits to be sent by its port is no wire's: it goes on in the router, or ends there.
    pub(crate) const fn is_inside(&self) -> bool {
        self.swallows || self.vlan.is_some()
    }
}

/// How many levels a packet goes down: as deep as links may stand above each other, and as often again by filters that redirect
/// it back up.
const LEVELS: u32 = 16;

impl<const COUNT: bool> Path<COUNT> {
    /// Takes what waits to be sent by ports of links inside the router a level further down, in this round since the burst.
    /// Whether anything has come to another port, where it is still to be classified, queued and counted.
    #[cold]
    #[inline(never)]
    pub(crate) fn pass_down<T: Trace>(&mut self, view: &View<'_>, round: u32, trace: &mut T) -> bool {
        let mut passed = false;
        let mut last = None;
        while let Some(port) = self.transmit.used_after(last) {
            last = Some(port);
            let Some((_, link)) = view.tables.port_link(port, view.guard) else { continue };
            if link.swallows {
                self.transmit.drain(port).for_each(|packet| self.pool.give(packet));
            } else if link.vlan.is_some() && round >= LEVELS {
                let mut packets = self.transmit.take(port);
                packets.drain(..).for_each(|packet| self.drop(packet, DropReason::Loop, trace));
                self.transmit.give_back(port, packets);
            } else if let Some(vlan) = &link.vlan {
                passed |= vlan::send_tagged(self, view, port, vlan, trace);
            }
        }
        passed
    }
}
