//! Who serves qdiscs: the worker, as soon as something may leave.

use crate::drops::DropReason;
use crate::limiter::Nanos;
use crate::path::reassemble::give_up_fragments;
use crate::qos::qdisc::Node;
use crate::tables::QdiscId;
use crate::trace::{Event, Trace};
use crate::tunnel::hook::{go_on_from, go_on_into};
use crate::worker::egress::leave_hooks;
use crate::worker::hook::{apply_type, place_of, with_header};
use crate::worker::path::{Burst, Path, Worker};
use crate::worker::shape::state::Place;
use crate::worker::shape::{
    INTO, LATEST, ROUNDS, collect, drop_refused, leave_by, let_item_go, wake_qdisc, with_queues,
};
use crate::worker::view::View;

impl<const COUNT: bool> Worker<COUNT> {
    /// Says that no other worker has a part in the rates of qdiscs: their arithmetic is Linux's to the nanosecond then.
    #[must_use]
    pub fn alone(mut self) -> Self {
        self.path.shape.alone = true;
        self
    }

    /// Lets qdiscs hold up to so many packets together.
    #[must_use]
    pub fn queue_up_to(mut self, packets: usize) -> Self {
        self.path.shape.limit = packets;
        self
    }

    /// How many packets wait in qdiscs.
    pub fn queued(&self) -> usize {
        let shape = &self.path.shape;
        shape.items.count() + shape.inward.len() + shape.outward.len() + shape.into.len()
    }

    /// When a packet that waits in a qdisc is to leave, or one of which not all fragments have come is given up:
    /// [`Worker::advance`] is to be called then.
    #[inline]
    pub fn deadline(&self) -> Option<Nanos> {
        let queued = self.path.shape.due.first().map(|(due, _)| due);
        queued.into_iter().chain(self.path.reassembly.due()).min()
    }

    pub(in crate::worker) fn advance_with<T: Trace>(&mut self, now: Nanos, trace: &mut T) {
        if self.deadline().is_none_or(|due| due > now) {
            return;
        }
        self.path.drop_log.begin(now);
        let guard = self.reader.enter();
        let view = View { tables: &self.tables, guard: &guard, now, epoch: self.epoch };
        update_qdiscs(&mut self.path, &view, trace);
        catch_up(&mut self.path, &view, trace);
        if self.path.reassembly.due().is_some_and(|due| due <= now) {
            give_up_fragments(&mut self.path, &view, trace);
            self.path.end_of_burst(&view, trace);
        }
    }
}

/// Sends what is due: before a burst is looked at, so that none of it stands in a queue at a time before it came.
#[inline(always)]
pub(crate) fn catch_up<const COUNT: bool, T: Trace>(path: &mut Path<COUNT>, view: &View<'_>, trace: &mut T) {
    if deadline_passed(path, view.now) {
        serve_due(path, view, trace);
    }
}

#[inline(never)]
fn serve_due<const COUNT: bool, T: Trace>(path: &mut Path<COUNT>, view: &View<'_>, trace: &mut T) {
    path.hooks.received_by = None;
    let mut late = std::mem::take(&mut path.shape.late);
    while let Some((due, id)) = path.shape.due.first()
        && due <= view.now
    {
        path.shape.due.remove(id);
        late.push((due, id));
    }
    for (due, id) in late.drain(..) {
        serve_qdisc(path, view, id, due, trace);
    }
    path.shape.late = late;
    path.end_of_burst(view, trace);
}

/// Takes note of qdiscs that have been changed.
#[inline(always)]
pub(crate) fn update_qdiscs<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    trace: &mut T,
) {
    if view.tables.qdisc_changes() != path.shape.changes {
        change_qdiscs(path, view, trace);
    }
}

#[cold]
#[inline(never)]
fn change_qdiscs<const COUNT: bool, T: Trace>(path: &mut Path<COUNT>, view: &View<'_>, trace: &mut T) {
    path.shape.changes = view.tables.qdisc_changes();
    for id in 0..path.shape.shapers.len() {
        let Some(mut shaper) = path.shape.shapers.get_mut(id).and_then(Option::take) else { continue };
        let stored = view.tables.qdisc(QdiscId(id as u32), view.guard);
        let (alone, link) = (path.shape.alone, shaper.place.link());
        match stored.filter(|stored| stored.first == shaper.first) {
            Some(stored) if stored.version == shaper.version => {}
            Some(stored) => {
                let old = shaper.node;
                shaper.node =
                    with_queues(path, view, link, trace, |cx| Node::build(stored, alone, Some(old), cx));
                shaper.version = stored.version;
            }
            // It is gone, or another one has its id.
            None => {
                with_queues(path, view, link, trace, |cx| shaper.node.purge(cx));
                path.shape.due.remove(id as u32);
                path.shape.pending.retain(|pending| *pending as usize != id);
                continue;
            }
        }
        path.shape.shapers[id] = Some(shaper);
        wake_qdisc(path, id as u32);
    }
    drop_refused(path, trace);
}

/// At the end of a burst: carries packets into qdiscs, and on from those that let them go.
#[inline]
pub(crate) fn serve_qdiscs<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    trace: &mut T,
) {
    if !path.shape.pending.is_empty()
        || path.transmit.any_new(view)
        || !path.shape.inward.is_empty()
        || !path.shape.outward.is_empty()
        || !path.shape.into.is_empty()
    {
        carry_through_qdiscs(path, view, trace);
    }
}

#[inline(always)]
fn deadline_passed<const COUNT: bool>(path: &Path<COUNT>, now: Nanos) -> bool {
    path.shape.due.first().is_some_and(|(due, _)| due <= now)
}

#[inline(never)]
fn carry_through_qdiscs<const COUNT: bool, T: Trace>(path: &mut Path<COUNT>, view: &View<'_>, trace: &mut T) {
    for _ in 0..ROUNDS {
        leave_hooks(path, view, trace);
        collect(path, view, trace);
        while let Some((link, packet)) = path.shape.outward.pop_front() {
            leave_by(path, view, link, packet, trace);
        }
        // What is served does not wake others.
        let pending = std::mem::take(&mut path.shape.pending);
        pending.iter().for_each(|id| serve_qdisc(path, view, *id, view.now, trace));
        path.shape.pending = pending;
        path.shape.pending.clear();
        // What a filter of a qdisc has redirected may come to one again.
        let (shape, redirected) = (&path.shape, &path.hooks.redirected);
        if shape.inward.is_empty()
            && shape.outward.is_empty()
            && shape.into.is_empty()
            && redirected.is_empty()
        {
            return;
        }
        go_on(path, view, trace);
    }
}

/// Takes from a qdisc what may leave now, and has been allowed to since it was `due`.
///
/// A worker is always a little late: it sleeps, or has a burst of others. A bucket that is as small as what leaves
/// meanwhile would lose that for good. So each packet is let go as of the time at which it was due, and what it
/// costs is counted from there: what leaves in the long run is what would have left had the worker been on time.
fn serve_qdisc<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    id: u32,
    due: Nanos,
    trace: &mut T,
) {
    let Some(mut shaper) = path.shape.shapers.get_mut(id as usize).and_then(Option::take) else { return };
    let port = match shaper.place {
        Place::Port(link) => view.link(link).and_then(|link| link.port),
        _ => None,
    };
    let mut then = View { now: due.max(view.now.saturating_sub(LATEST)).min(view.now), ..*view };
    let mut due = Nanos::MAX;
    while shaper.node.len() > 0 {
        let full = match shaper.place {
            Place::Tunnel(_) => path.shape.into.len() >= INTO || path.transmit.any_full(),
            _ => port.is_some_and(|port| path.transmit.is_full(port)),
        };
        if full {
            // As soon as the port has sent something.
            due = view.now;
            break;
        }
        let next;
        (next, due) = with_queues(path, &then, shaper.place.link(), trace, |cx| {
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
        if !path.shape.dropped.is_empty() {
            drop_refused(path, trace);
        }
        if T::WATCHES
            && let Some(packet) = item.packet()
        {
            trace.step(Event::Dequeued(shaper.place.link()), packet);
        }
        let_item_go(path, view, shaper.place, item, trace);
    }
    drop_refused(path, trace);
    shaper.pending = false;
    shaper.node.report(&path.counters);
    match shaper.node.len() {
        0 => path.shape.due.remove(id),
        // Nothing that waits knows for how long: not for ever.
        _ if due == Nanos::MAX => path.shape.due.set(id, view.now.saturating_add(1_000_000_000)),
        _ => path.shape.due.set(id, due),
    }
    if let Some(place) = path.shape.shapers.get_mut(id as usize) {
        *place = Some(shaper);
    }
}

/// Carries on what goes on behind an ingress hook.
fn go_on<const COUNT: bool, T: Trace>(path: &mut Path<COUNT>, view: &View<'_>, trace: &mut T) {
    while let Some(into) = path.shape.into.pop_front() {
        go_on_into(path, view, into, trace);
    }
    let mut burst = Burst::new();
    while let Some(&(id, _)) = path.shape.inward.front() {
        while let Some((_, packet)) =
            path.shape.inward.pop_front_if(|(other, _)| *other == id && !burst.is_full())
        {
            burst.push(packet);
        }
        let link = view.link(id).filter(|link| link.up);
        // An ifb may send to itself what has come in there.
        if let Some(link) = link
            && (link.ifb || view.tables.tunnels().of_link(id).is_some())
        {
            for packet in burst.drain(..) {
                go_on_from(path, view, packet, (id, link), trace);
            }
            continue;
        }
        match link.and_then(|link| Some((link, link.port?))) {
            Some((link, port)) => {
                let place = place_of(id, link, true, None);
                // Linux does not look again whose they are.
                for packet in burst.iter_mut() {
                    with_header(packet, &place);
                    apply_type(packet, link);
                }
                path.take_in(view, (port, id, link), &mut burst, trace);
            }
            None => {
                for packet in burst.drain(..) {
                    path.drop(packet, DropReason::LinkDown, trace);
                }
            }
        }
    }
}
