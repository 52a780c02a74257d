//! Who serves qdiscs: the worker, as soon as something may leave.

use crate::drops::DropReason;
use crate::limiter::Nanos;
use crate::qos::qdisc::Node;
use crate::tables::QdiscId;
use crate::trace::{Event, Trace};
use crate::worker::hook::{place_of, with_header};
use crate::worker::shape::{INTO, LATEST, Place, ROUNDS};
use crate::worker::{Burst, Path, View};

impl<const COUNT: bool> Path<COUNT> {
    /// Sends what is due: before a burst is looked at, so that none of it stands in a queue at a time before it came.
    #[inline(always)]
    pub(crate) fn catch_up<T: Trace>(&mut self, view: &View<'_>, trace: &mut T) {
        if self.deadline_passed(view.now) {
            self.serve_due(view, trace);
        }
    }

    #[inline(never)]
    fn serve_due<T: Trace>(&mut self, view: &View<'_>, trace: &mut T) {
        self.hooks.came = None;
        let mut late = std::mem::take(&mut self.shape.late);
        while let Some((due, id)) = self.shape.due.first()
            && due <= view.now
        {
            self.shape.due.remove(id);
            late.push((due, id));
        }
        for (due, id) in late.drain(..) {
            self.serve(view, id, due, trace);
        }
        self.shape.late = late;
        self.end_of_burst(view, trace);
    }

    /// Takes note of qdiscs that have been changed.
    #[inline(always)]
    pub(crate) fn update_qdiscs<T: Trace>(&mut self, view: &View<'_>, trace: &mut T) {
        if view.tables.qdisc_changes() != self.shape.changes {
            self.change_qdiscs(view, trace);
        }
    }

    #[cold]
    #[inline(never)]
    fn change_qdiscs<T: Trace>(&mut self, view: &View<'_>, trace: &mut T) {
        self.shape.changes = view.tables.qdisc_changes();
        for id in 0..self.shape.shapers.len() {
            let Some(mut shaper) = self.shape.shapers.get_mut(id).and_then(Option::take) else { continue };
            let stored = view.tables.qdisc(QdiscId(id as u32), view.guard);
            let (alone, link) = (self.shape.alone, shaper.place.link());
            match stored.filter(|stored| stored.first == shaper.first) {
                Some(stored) if stored.version == shaper.version => {}
                Some(stored) => {
                    let old = shaper.node;
                    shaper.node =
                        self.with_queues(view, link, trace, |cx| Node::build(stored, alone, Some(old), cx));
                    shaper.version = stored.version;
                }
                // It is gone, or another one has its id.
                None => {
                    self.with_queues(view, link, trace, |cx| shaper.node.purge(cx));
                    self.shape.due.remove(id as u32);
                    self.shape.pending.retain(|pending| *pending as usize != id);
                    continue;
                }
            }
            self.shape.shapers[id] = Some(shaper);
            self.wake(id as u32);
        }
        self.drop_refused(trace);
    }

    /// At the end of a burst: carries packets into qdiscs, and on from those that let them go.
    #[inline]
    pub(crate) fn shape<T: Trace>(&mut self, view: &View<'_>, trace: &mut T) {
        if !self.shape.pending.is_empty()
            || self.transmit.any_new(view)
            || !self.shape.inward.is_empty()
            || !self.shape.outward.is_empty()
            || !self.shape.into.is_empty()
        {
            self.carry_through_qdiscs(view, trace);
        }
    }

    #[inline(always)]
    fn deadline_passed(&self, now: Nanos) -> bool {
        self.shape.due.first().is_some_and(|(due, _)| due <= now)
    }

    #[inline(never)]
    fn carry_through_qdiscs<T: Trace>(&mut self, view: &View<'_>, trace: &mut T) {
        for _ in 0..ROUNDS {
            self.leave_hooks(view, trace);
            self.collect(view, trace);
            while let Some((link, packet)) = self.shape.outward.pop_front() {
                self.leave_by(view, link, packet, trace);
            }
            // What is served does not wake others.
            let pending = std::mem::take(&mut self.shape.pending);
            pending.iter().for_each(|id| self.serve(view, *id, view.now, trace));
            self.shape.pending = pending;
            self.shape.pending.clear();
            // What a filter of a qdisc has redirected may come to one again.
            let (shape, redirected) = (&self.shape, &self.hooks.redirected);
            if shape.inward.is_empty()
                && shape.outward.is_empty()
                && shape.into.is_empty()
                && redirected.is_empty()
            {
                return;
            }
            self.go_on(view, trace);
        }
    }

    /// Takes from a qdisc what may leave now, and has been allowed to since it was `due`.
    ///
    /// A worker is always a little late: it sleeps, or has a burst of others. A bucket that is as small as what leaves
    /// meanwhile would lose that for good. So each packet is let go as of the time at which it was due, and what it
    /// costs is counted from there: what leaves in the long run is what would have left had the worker been on time.
    fn serve<T: Trace>(&mut self, view: &View<'_>, id: u32, due: Nanos, trace: &mut T) {
        let Some(mut shaper) = self.shape.shapers.get_mut(id as usize).and_then(Option::take) else { return };
        let port = match shaper.place {
            Place::Port(link) => view.link(link).and_then(|link| link.port),
            _ => None,
        };
        let mut then = View { now: due.max(view.now.saturating_sub(LATEST)).min(view.now), ..*view };
        let mut due = Nanos::MAX;
        while shaper.node.len() > 0 {
            let full = match shaper.place {
                Place::Tunnel(_) => self.shape.into.len() >= INTO || self.transmit.any_full(),
                _ => port.is_some_and(|port| self.transmit.is_full(port)),
            };
            if full {
                // As soon as the port has sent something.
                due = view.now;
                break;
            }
            let next;
            (next, due) = self.with_queues(&then, shaper.place.link(), trace, |cx| {
                let next = shaper.node.dequeue(cx);
                (next.and_then(|next| cx.items.take(next)), cx.due)
            });
            let Some(item) = next else {
                if due <= then.now || due > view.now {
                    break;
                }
                then.now = due;
                continue;
            };
            if !self.shape.dropped.is_empty() {
                self.drop_refused(trace);
            }
            if T::WATCHES
                && let Some(packet) = item.packet()
            {
                trace.step(Event::Dequeued(shaper.place.link()), packet);
            }
            self.let_item_go(view, shaper.place, item, trace);
        }
        self.drop_refused(trace);
        shaper.pending = false;
        shaper.node.report(&self.counters);
        match shaper.node.len() {
            0 => self.shape.due.remove(id),
            // Nothing that waits knows for how long: not for ever.
            _ => self.shape.due.set(id, due.min(view.now.saturating_add(1_000_000_000))),
        }
        if let Some(place) = self.shape.shapers.get_mut(id as usize) {
            *place = Some(shaper);
        }
    }

    /// Carries on what goes on behind an ingress hook.
    fn go_on<T: Trace>(&mut self, view: &View<'_>, trace: &mut T) {
        while let Some(into) = self.shape.into.pop_front() {
            self.go_on_into(view, into, trace);
        }
        let mut burst = Burst::new();
        while let Some(&(id, _)) = self.shape.inward.front() {
            while let Some((_, packet)) =
                self.shape.inward.pop_front_if(|(other, _)| *other == id && !burst.is_full())
            {
                burst.push(packet);
            }
            let link = view.link(id).filter(|link| link.up);
            if let Some(link) = link
                && view.tables.tunnels().of_link(id).is_some()
            {
                for packet in burst.drain(..) {
                    self.go_on_from(view, packet, (id, link), trace);
                }
                continue;
            }
            match link.and_then(|link| Some((link, link.port?))) {
                Some((link, port)) => {
                    let place = place_of(id, link, true, None);
                    burst.iter_mut().for_each(|packet| with_header(packet, &place));
                    self.take_in(view, (port, id, link), &mut burst, trace);
                }
                None => {
                    for packet in burst.drain(..) {
                        self.drop(packet, DropReason::LinkDown, trace);
                    }
                }
            }
        }
    }
}
