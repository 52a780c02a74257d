//! What moves packets, as programs call it. The path of a packet is compiled here, once for all programs: with counters, with
//! them for somebody who watches, and without.

use std::net::IpAddr;

use crate::buffer::PortId;
use crate::limiter::Nanos;
use crate::tables::{LinkId, Rewrite};
use crate::trace::{Untraced, Watch, Watched};
use crate::worker::path::{Burst, Worker};

impl Worker {
    /// Carries a burst of Ethernet frames that came in by `port` to their verdicts, at time `now`.
    /// The burst is empty afterwards.
    pub fn process(&mut self, port: PortId, burst: &mut Burst, now: Nanos, watch: Option<&mut dyn Watch>) {
        match watch {
            None => self.process_with(port, burst, now, &mut Untraced),
            Some(watch) => self.process_with(port, burst, now, &mut Watched(watch)),
        }
    }

    /// Sends what waits in qdiscs and whose time has come at `now`, and gives up the fragments whose time is over.
    pub fn advance(&mut self, now: Nanos, watch: Option<&mut dyn Watch>) {
        match watch {
            None => self.advance_with(now, &mut Untraced),
            Some(watch) => self.advance_with(now, &mut Watched(watch)),
        }
    }

    /// Sends what waits for a neighbour that has become known, or sends errors to the senders, if `rewrite` is
    /// `None`, that it cannot be reached.
    pub fn resolve(
        &mut self,
        link: LinkId,
        address: IpAddr,
        rewrite: Option<&Rewrite>,
        now: Nanos,
        watch: Option<&mut dyn Watch>,
    ) {
        match watch {
            None => self.resolve_with(link, address, rewrite, now, &mut Untraced),
            Some(watch) => self.resolve_with(link, address, rewrite, now, &mut Watched(watch)),
        }
    }

    /// Gives up on the neighbours that have not become known for too long, and on packets of which not all fragments
    /// have come.
    pub fn give_up(&mut self, now: Nanos, watch: Option<&mut dyn Watch>) {
        match watch {
            None => self.give_up_with(now, &mut Untraced),
            Some(watch) => self.give_up_with(now, &mut Watched(watch)),
        }
    }
}

impl Worker<false> {
    /// Carries a burst as [`Worker::process`] does, and counts no behaviours.
    pub fn process(&mut self, port: PortId, burst: &mut Burst, now: Nanos) {
        self.process_with(port, burst, now, &mut Untraced);
    }

    /// Sends what is due as [`Worker::advance`] does.
    pub fn advance(&mut self, now: Nanos) {
        self.advance_with(now, &mut Untraced);
    }
}
