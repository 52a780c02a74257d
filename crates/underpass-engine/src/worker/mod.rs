//! A worker takes bursts from ports and takes each packet to exactly one verdict:
//! sent, delivered to the router itself, or dropped for a named and counted reason.
//!
//! ```text
//! burst → ethernet → ipv4 / ipv6 input → look-up → action → … → look-up → action → link layer → port
//!                                           ↑______ behaviour, decapsulation, ICMP ___|
//! ```
//!
//! A packet is carried through its whole path at once while the tables that it needs are small enough
//! for the cache. Where a table is not, the packet waits for the others of its burst, and they are
//! looked up together.

pub(crate) mod burst;
mod calls;
pub mod drop_log;
pub(crate) mod egress;
pub(crate) mod env;
pub(crate) mod error;
pub(crate) mod family;
pub(crate) mod fibs;
pub(crate) mod gap;
pub(crate) mod headroom;
pub(crate) mod hook;
pub(crate) mod insert;
pub(crate) mod keeper;
pub(crate) mod lookup;
pub(crate) mod metadata;
pub(crate) mod multipath;
pub(crate) mod neighbour;
pub(crate) mod path;
pub(crate) mod port_queues;
pub(crate) mod prefetch;
pub(crate) mod recent;
pub(crate) mod rewrite;
pub(crate) mod run;
pub(crate) mod shape;
pub(crate) mod slow_path;
pub(crate) mod transmit;
pub(crate) mod unresolved;
pub(crate) mod verdict;
pub(crate) mod view;

use std::net::{Ipv4Addr, Ipv6Addr};

use arrayvec::ArrayVec;
use underpass_packet::ethernet;

use crate::buffer::{BURST, Packet, PortId};
use crate::counters::{Count, Direction};
use crate::drops::DropReason;
use crate::l2::go_up;
use crate::l2::vlan::send_from_host;
use crate::limiter::Nanos;
use crate::path::input::classify;
use crate::path::kept::give_kept;
use crate::tables::{Link, LinkId};
use crate::trace::{Event, Trace};
use crate::tunnel::from_host::take_from_host;
use crate::worker::egress::leave_hooks;
use crate::worker::env::{BurstContext, Env};
use crate::worker::fibs::Fibs;
use crate::worker::hook::burst::classify_burst;
use crate::worker::hook::place_of;
use crate::worker::metadata::PacketMeta;
use crate::worker::path::{Path, Waiting, bytes_of};
use crate::worker::shape::burst_to_qdisc;
use crate::worker::shape::serve::{catch_up, serve_qdiscs, update_qdiscs};
use crate::worker::view::View;

pub use crate::worker::hook::sample::PacketSample;
pub use crate::worker::keeper::{Keeper, Kept};
pub use crate::worker::path::{Burst, Worker};
pub use crate::worker::unresolved::Unresolved;
use crate::worker::verdict::Verdict;

impl<const COUNT: bool> Worker<COUNT> {
    fn process_with<T: Trace>(&mut self, port: PortId, burst: &mut Burst, now: Nanos, trace: &mut T) {
        let guard = self.reader.enter();
        let view = View { tables: &self.tables, guard: &guard, now, epoch: self.epoch };
        self.path.process(&view, port, burst, trace);
    }
}

impl<const COUNT: bool> Path<COUNT> {
    fn process<T: Trace>(&mut self, view: &View<'_>, port: PortId, burst: &mut Burst, trace: &mut T) {
        self.totals.received += burst.len() as u64;
        update_qdiscs(self, view, trace);
        catch_up(self, view, trace);
        self.counters.set_port(port);
        self.drop_log.begin(view.now);
        let up = view.tables.port_link(port, view.guard).filter(|(_, link)| link.up);
        let Some((ingress, link)) = up else {
            self.hooks.received_by = None;
            send_from_host(self, view, port, burst, trace);
            for packet in burst.drain(..) {
                trace.step(Event::Received(port), &packet);
                self.drop(packet, DropReason::LinkDown, trace);
            }
            return self.end_of_burst(view, trace);
        };
        self.receive(view, (port, ingress, link), 0, burst, trace);
        self.end_of_burst(view, trace);
    }

    /// A burst comes in by a link: it passes the hook and the qdisc there, and goes on. Of all its frames together `uncounted` bytes
    /// are not counted for the link.
    #[inline(always)]
    pub(crate) fn receive<T: Trace>(
        &mut self,
        view: &View<'_>,
        (port, ingress, link): (PortId, LinkId, &Link),
        uncounted: u64,
        burst: &mut Burst,
        trace: &mut T,
    ) {
        self.hooks.received_by = Some((ingress, link.ifindex));
        let packets = burst.len() as u64;
        // What the host sends by a tunnel does not come out of it, nor does what it sends into a VRF come in there.
        let classifies =
            link.classifies_ingress() && !link.vrf && view.tables.tunnels().of_link(ingress).is_none();
        // Who looks at the whole burst first says what has come.
        let mut bytes = None;
        if let Some(hook) = link.ingress.filter(|_| classifies) {
            let place = place_of(ingress, link, true, self.hooks.received_by);
            bytes = Some(classify_burst(self, view, hook, &place, burst, trace));
        }
        if let Some(qdisc) = link.ingress_qdisc.filter(|_| classifies) {
            let queued = burst_to_qdisc(self, view, qdisc, ingress, burst, trace);
            bytes = bytes.or(Some(queued));
        }
        if link.in_vrf && view.tables.reads_input() {
            // Linux: `vrf_ip_rcv`, behind the hook.
            let device = view.vrf_of(link.lookup);
            self.hooks.received_by = device.map(|(id, device)| (id, device.ifindex));
        }
        let bytes = bytes.unwrap_or_else(|| bytes_of(burst)) - uncounted;
        if self.take_in(view, (port, ingress, link), burst, trace) {
            self.counters.add_link(ingress, Direction::Receive, Count { packets, bytes, errors: 0 });
        }
    }

    /// Takes a burst from behind the ingress hook of a link to its verdicts. `false`: the link is a tunnel, and
    /// the burst what the host sends by it.
    pub(crate) fn take_in<T: Trace>(
        &mut self,
        view: &View<'_>,
        (port, ingress, link): (PortId, LinkId, &Link),
        burst: &mut Burst,
        trace: &mut T,
    ) -> bool {
        if let Some(tunnel) = view.tables.tunnels().of_link(ingress) {
            take_from_host(self, view, port, tunnel, burst, trace);
            return false;
        }
        if link.has_above() {
            go_up(self, view, (ingress, link, None), burst, trace);
        }
        if let Some(kernel) = link.kernel {
            give_kept(self, kernel, (port, ingress, link), burst, trace);
        }
        if burst.is_empty() {
            self.labelled.flush(&self.counters, ingress);
            return true;
        }
        let mut fibs = Fibs::new(view, link.lookup);
        fibs.recent = std::mem::take(&mut self.recent);
        fibs.recent.begin(view.tables);
        let mut waiting = ArrayVec::<Waiting, BURST>::new();
        let env = Env::new(view, &mut fibs, port, ingress, link);
        let mut context = BurstContext { env: &env, fibs: &mut fibs, waiting: &mut waiting, trace };
        self.fast_path(&mut context, burst);
        while !waiting.is_empty() {
            self.look_up_together(view, &mut fibs, &mut waiting, trace);
        }
        self.recent = fibs.recent;
        self.labelled.flush(&self.counters, ingress);
        true
    }

    /// Takes a packet that the fast path does not handle, or that is watched, from its frame down the slow path.
    #[cold]
    #[inline(never)]
    pub(crate) fn enter_slow_path<T: Trace>(
        &mut self,
        context: &mut BurstContext<'_, '_, '_, T>,
        mut packet: Packet,
    ) {
        let Env { view, ingress, port, link, extra, .. } = *context.env;
        context.trace.step(Event::Received(port), &packet);
        let (verdict, target, len) = classify(packet.bytes(), link, self.answers);
        packet.narrow(ethernet::Header::LEN, len);
        let at = packet.headroom();
        let mark = packet.tag().mark;
        let mut meta = PacketMeta::new(packet, at, ingress, extra);
        meta.extra.mark = mark;
        match verdict {
            Verdict::Label => self.labelled.count(1, len as u64),
            Verdict::Look4(_) => meta.target4 = Ipv4Addr::from_bits(target as u32),
            Verdict::Look6(_) => meta.target6 = Ipv6Addr::from_bits(target),
            _ => {}
        }
        self.slow_path(view, context.fibs, meta, verdict, context.waiting, context.trace);
    }

    pub(crate) fn end_of_burst<T: Trace>(&mut self, view: &View<'_>, trace: &mut T) {
        // What leaves queues from here on may have come in by any port.
        self.counters.set_port(PortId::NONE);
        for round in 0.. {
            leave_hooks(self, view, trace);
            serve_qdiscs(self, view, trace);
            leave_hooks(self, view, trace);
            self.end_run();
            let inside = self.transmit.count(view, &self.counters, &mut self.totals);
            if !inside || !self.pass_down(view, round, trace) {
                break;
            }
        }
        self.counters.add_totals(std::mem::take(&mut self.totals));
    }
}
