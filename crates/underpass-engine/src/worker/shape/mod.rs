//! Queueing disciplines on the path of packets: where packets come to them, who serves them, and where packets go on.
//!
//! ```text
//! port → ingress hook ─┬─────────────→ [qdisc of the hook] → … → port's queue → egress hook ─┬→ root qdisc → port's queue
//!                      └→ ifb's root qdisc ─┘                                                └→ ifb's root qdisc ─┘
//! tunnel: out of it → ingress hook → [qdisc of the hook] → …;  … → egress hook → root qdisc → into it
//! ```
//!
//! At the end of a burst what has come into a port's queue is taken out again if the link has a qdisc, and what that lets
//! go is put back. What it does not let go yet is due at a time that [`Worker::deadline`] tells and [`Worker::advance`]
//! heeds. A packet in an ifb's qdisc remembers where it was redirected from, and goes on right behind that.

pub(crate) mod serve;
pub(crate) mod state;

use arrayvec::ArrayVec;

use crate::buffer::{BURST, Frames, Packet, Pool, Tag};
use crate::counters::{Count, Direction, TcCounterId};
use crate::drops::DropReason;
use crate::limiter::Nanos;
use crate::qos;
use crate::qos::Lengths;
use crate::qos::qdisc::{Class, Classify, Context, Enqueued, Item, Items, Lost, Node, Origin, charge};
use crate::tables::{HookId, LinkId, QdiscId, StoredQdisc};
use crate::trace::{Event, Trace, Untraced};
use crate::worker::hook::{Classified, classify_at_hook, place_of};
use crate::worker::path::{Burst, Path, bytes_of};
use crate::worker::shape::state::{Place, Shaper};
use crate::worker::view::View;

/// Free slots that are left to what comes in, of either size.
const RESERVE: usize = 256;
const RESERVE_LARGE: usize = 32;

/// A worker that serves a qdisc so much later than it was due lets go what would have left meanwhile, and no more than
/// that.
pub(crate) const LATEST: Nanos = 10_000_000;

/// Times that packets may come from one qdisc to another in one burst; what is left then has its turn in the next.
pub(crate) const ROUNDS: usize = 8;

/// Packets that the qdiscs of tunnels let go in one round.
pub(crate) const INTO: usize = 256;

/// The filters of qdiscs.
struct Filters<'p, 'v, 'a, T, const COUNT: bool> {
    path: &'p mut Path<COUNT>,
    view: &'v View<'a>,
    /// The link of the qdisc.
    link: LinkId,
    trace: &'p mut T,
}

impl<T: Trace, const COUNT: bool> Classify for Filters<'_, '_, '_, T, COUNT> {
    fn classify(&mut self, filters: HookId, item: &mut Item) -> Class {
        let Self { path, view, link, trace } = self;
        let Some(hook) = view.tables.hook(filters, view.guard) else { return Class::None };
        let Some(known) = view.link(*link) else { return Class::None };
        let Some(packet) = item.packet.take() else { return Class::Shot };
        let bare = packet.tag().headless != 0;
        let known = place_of(*link, known, false, path.hooks.received_by);
        let place = qos::Place { bare, queues: true, ..known };
        match classify_at_hook(path, view, hook, packet, &place, *trace) {
            Classified::On(packet, class) => {
                item.put_back(packet);
                class.map_or(Class::None, Class::Class)
            }
            Classified::Dropped => Class::Shot,
            Classified::Gone => Class::Stolen,
        }
    }

    fn pool(&mut self) -> &mut Pool {
        &mut self.path.pool
    }
}

/// Does something with the queues of a qdisc at `link`, which is taken out of the path meanwhile, as it uses filters.
#[inline]
fn with_queues<const COUNT: bool, R, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    link: LinkId,
    trace: &mut T,
    what: impl FnOnce(&mut Context<'_, Filters<'_, '_, '_, T, COUNT>>) -> R,
) -> R {
    let mut items = std::mem::take(&mut path.shape.items);
    let mut dropped = std::mem::take(&mut path.shape.dropped);
    let mut cx = Context {
        now: view.now,
        items: &mut items,
        classify: &mut Filters { path, view, link, trace },
        due: Nanos::MAX,
        lost: Lost::default(),
        dropped: &mut dropped,
        generated: 0,
    };
    let result = what(&mut cx);
    let generated = cx.generated;
    path.totals.generated += generated;
    (path.shape.items, path.shape.dropped) = (items, dropped);
    result
}

/// Has a qdisc served at the end of the burst.
pub(crate) fn wake_qdisc<const COUNT: bool>(path: &mut Path<COUNT>, id: u32) {
    if let Some(Some(shaper)) = path.shape.shapers.get_mut(id as usize)
        && !shaper.pending
    {
        shaper.pending = true;
        path.shape.pending.push(id);
    }
}

/// Makes the queues of a qdisc.
#[cold]
#[inline(never)]
fn make_shaper<const COUNT: bool>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    id: u32,
    place: Place,
    stored: &StoredQdisc,
) {
    let count = id as usize + 1;
    if path.shape.items.limit() == 0 {
        // Allocated once, and not on the path of a packet.
        path.shape.items = Items::new(path.shape.limit);
        path.shape.dropped.reserve(256);
    }
    if path.shape.shapers.len() < count {
        path.shape.shapers.resize_with(count, || None);
        path.shape.due.grow(count);
        path.shape.pending.reserve(count);
        path.shape.late.reserve(count);
    }
    let alone = path.shape.alone;
    let node =
        with_queues(path, view, place.link(), &mut Untraced, |cx| Node::build(stored, alone, None, cx));
    path.shape.shapers[count - 1] =
        Some(Box::new(Shaper { node, place, version: stored.version, first: stored.first, pending: false }));
}

/// Sends a packet into an ifb, to go on where it came from. If it is refused there, that is counted as an overlimit of
/// the action that has redirected it: `tcf_mirred_to_dev`.
pub(crate) fn redirect_to_ifb<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    (ifb, counter): (LinkId, TcCounterId),
    mut packet: Packet,
    origin: Origin,
    trace: &mut T,
) {
    match view.link(ifb).filter(|link| link.up).map(|link| link.root) {
        Some(Some(root)) => {
            let to = (root, Place::Ifb(ifb));
            if put_into_qdisc(path, view, to, packet, origin, trace) == Enqueued::Dropped {
                path.counters.add_tc_refused(counter, 0, 1);
            }
        }
        Some(None) => {
            packet.leave_filters();
            dequeue(path, view, Place::Ifb(ifb), packet, origin, trace);
        }
        None => path.drop(packet, DropReason::LinkDown, trace),
    }
}

/// Lets those of the first packets of a burst go by a qdisc that find nobody waiting there and may leave at once;
/// returns how many. `lengths`: theirs, if all are plain.
#[inline]
pub(crate) fn pass_qdisc<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    (QdiscId(id), place): (QdiscId, Place),
    (packets, lengths): (&[Packet], Option<Lengths<'_>>),
) -> usize {
    if T::WATCHES || !has_shaper(path, view, id, place) {
        return 0;
    }
    if let Some(lengths) = lengths
        && pass_all(path, view, id, lengths)
    {
        return lengths.count();
    }
    let Some(Some(shaper)) = path.shape.shapers.get_mut(id as usize) else { return 0 };
    let any = shaper.node.passes_any_priority();
    let packets = packets.iter().take(BURST);
    let packets = packets.take_while(|packet| {
        let Tag { priority, grown, .. } = packet.tag();
        (any || priority == 0) && grown == 0
    });
    let charges: ArrayVec<(u32, u32), BURST> = packets.map(|packet| shaper.node.charge(packet)).collect();
    let number = shaper.node.pass(&charges, view.now);
    if number > 0 {
        wake_qdisc(path, id);
    }
    number
}

/// The same for a burst of plain packets of which all may leave at once, or none is let go.
#[inline(always)]
fn pass_all<const COUNT: bool>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    id: u32,
    lengths: Lengths<'_>,
) -> bool {
    let Some(Some(shaper)) = path.shape.shapers.get_mut(id as usize) else { return false };
    let passed = shaper.node.pass_all(lengths, view.now);
    if passed && !shaper.pending {
        // Nothing waits there that would have to be served.
        shaper.node.report(&path.counters);
    }
    passed
}

/// Sends a burst of plain packets that was taken from behind the ingress hook of a link into an ifb. What may go on at
/// once stays in it.
pub(crate) fn burst_to_ifb<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    (ifb, counter): (LinkId, TcCounterId),
    ingress: LinkId,
    (burst, lengths): (&mut Burst, Lengths<'_>),
    trace: &mut T,
) {
    let up = view.link(ifb).filter(|link| link.up);
    let passed = match up.map(|link| link.root) {
        Some(Some(root)) => pass_qdisc::<_, T>(path, view, (root, Place::Ifb(ifb)), (burst, Some(lengths))),
        Some(None) => burst.len(),
        None => 0,
    };
    for packet in burst.drain(passed..) {
        redirect_to_ifb(path, view, (ifb, counter), packet, Origin::Ingress(ingress), trace);
    }
    let bytes = if burst.len() == lengths.count() { lengths.bytes_of_frames() } else { bytes_of(burst) };
    let count = Count { packets: passed as u64, bytes, errors: 0 };
    path.counters.add_link(ifb, Direction::Receive, count);
    path.counters.add_link(ifb, Direction::Transmit, count);
}

/// Makes the queues of a qdisc that has none yet.
#[inline]
fn has_shaper<const COUNT: bool>(path: &mut Path<COUNT>, view: &View<'_>, id: u32, place: Place) -> bool {
    if path.shape.shapers.get(id as usize).is_none_or(Option::is_none) {
        let Some(stored) = view.tables.qdisc(QdiscId(id), view.guard) else { return false };
        make_shaper(path, view, id, place, stored);
    }
    true
}

/// Sends a burst into the qdisc behind the ingress hook of a link. What may go on at once stays in it.
/// Bytes of all frames.
pub(crate) fn burst_to_qdisc<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    qdisc: QdiscId,
    ingress: LinkId,
    burst: &mut Burst,
    trace: &mut T,
) -> u64 {
    let to = (qdisc, Place::Ingress(ingress));
    let mut frames = Frames::new();
    let lengths = Lengths::leaving(&mut frames, burst);
    let bytes = lengths.map_or_else(|| bytes_of(burst), |lengths| lengths.bytes_of_frames());
    let passed = pass_qdisc::<_, T>(path, view, to, (burst, lengths));
    for packet in burst.drain(passed..) {
        put_into_qdisc(path, view, to, packet, Origin::Here, trace);
    }
    bytes
}

/// Sends a packet by the qdisc before the port of a link, behind those that are in the port's queue.
pub(crate) fn queue_at_port<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    (link, root): (LinkId, QdiscId),
    packet: Packet,
    trace: &mut T,
) -> Enqueued {
    collect(path, view, trace);
    wait_in_qdisc(path, view, (root, Place::Port(link)), packet, Origin::Here, trace)
}

/// Puts a packet into a qdisc, or drops it.
pub(crate) fn put_into_qdisc<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    (QdiscId(id), place): (QdiscId, Place),
    mut packet: Packet,
    origin: Origin,
    trace: &mut T,
) -> Enqueued {
    if !has_shaper(path, view, id, place) {
        path.drop(packet, DropReason::QdiscPurged, trace);
        return Enqueued::Dropped;
    }
    let charged = match path.shape.shapers.get(id as usize) {
        Some(Some(shaper)) => shaper.node.charge(&packet),
        _ => charge(&packet),
    };
    packet.leave_filters();
    let item = Item::new(packet, origin, charged);
    if lacks_room(path, &item) {
        if let Some(Some(shaper)) = path.shape.shapers.get_mut(id as usize) {
            shaper.node.refuse();
        }
        wake_qdisc(path, id);
        drop_item(path, item, DropReason::QdiscFull, trace);
        return Enqueued::Dropped;
    }
    if T::WATCHES
        && let Some(packet) = item.packet()
    {
        trace.step(Event::Queued(place.link()), packet);
    }
    let at = match path.shape.items.put(item) {
        Ok(at) => at,
        Err(item) => {
            drop_item(path, item, DropReason::QdiscFull, trace);
            return Enqueued::Dropped;
        }
    };
    // Filters may redirect packets, but to no qdisc before the end of the burst.
    let Some(mut shaper) = path.shape.shapers.get_mut(id as usize).and_then(Option::take) else {
        return Enqueued::Dropped;
    };
    let enqueued = with_queues(path, view, place.link(), trace, |cx| shaper.node.enqueue(at, cx));
    if let Some(slot) = path.shape.shapers.get_mut(id as usize) {
        *slot = Some(shaper);
    }
    wake_qdisc(path, id);
    if enqueued != Enqueued::Queued || !path.shape.dropped.is_empty() {
        drop_refused(path, trace);
    }
    enqueued
}

/// Puts a packet into a qdisc, if it finds somebody waiting there or may not leave at once.
pub(crate) fn wait_in_qdisc<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    to: (QdiscId, Place),
    packet: Packet,
    origin: Origin,
    trace: &mut T,
) -> Enqueued {
    if pass_qdisc::<_, T>(path, view, to, (std::slice::from_ref(&packet), None)) == 1 {
        dequeue(path, view, to.1, packet, origin, trace);
        return Enqueued::Queued;
    }
    put_into_qdisc(path, view, to, packet, origin, trace)
}

/// Whether holding a packet would leave too few slots for those that come in.
#[inline(always)]
fn lacks_room<const COUNT: bool>(path: &Path<COUNT>, item: &Item) -> bool {
    let held = path.shape.items.count();
    let large = path.pool.has_large() && item.packet().is_some_and(Packet::is_large);
    let few = |free: usize, reserve: usize| free < reserve && held > free;
    few(path.pool.available(), RESERVE) || large && few(path.pool.available_large(), RESERVE_LARGE)
}

fn drop_item<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    item: Item,
    reason: DropReason,
    trace: &mut T,
) {
    if let Some(packet) = item.into_packet() {
        path.drop(packet, reason, trace);
    }
}

/// Drops what queues have refused or lost.
pub(crate) fn drop_refused<const COUNT: bool, T: Trace>(path: &mut Path<COUNT>, trace: &mut T) {
    while let Some((packet, reason)) = path.shape.dropped.pop() {
        path.drop(packet, reason, trace);
    }
}

pub(crate) fn let_item_go<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    place: Place,
    item: Item,
    trace: &mut T,
) {
    let origin = item.origin;
    if let Some(packet) = item.into_packet() {
        dequeue(path, view, place, packet, origin, trace);
    }
}

/// Lets a packet go on behind a qdisc.
#[inline]
fn dequeue<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    place: Place,
    mut packet: Packet,
    origin: Origin,
    trace: &mut T,
) {
    match (place, origin) {
        (Place::Port(link), _) => {
            let port = view.link(link).filter(|link| link.up).and_then(|link| link.port);
            let len = packet.len();
            let refused = match port {
                Some(port) => path
                    .transmit
                    .push_back(port, packet, len)
                    .map_err(|packet| (packet, DropReason::TransmitFull)),
                None => Err((packet, DropReason::LinkDown)),
            };
            if let Err((packet, reason)) = refused {
                path.drop(packet, reason, trace);
            }
        }
        (Place::Ingress(link), _) => path.shape.inward.push_back((link, packet)),
        (Place::Tunnel(_), Origin::Into(id)) => path.shape.into.push_back((id, true, packet)),
        // Nothing else comes there.
        (Place::Tunnel(_), _) => path.drop(packet, DropReason::LinkDown, trace),
        (Place::Ifb(ifb), origin) => {
            // As Linux's ifb counts: what it sends it has received.
            let count = Count { packets: 1, bytes: packet.len() as u64, errors: 0 };
            path.counters.add_link(ifb, Direction::Receive, count);
            match origin {
                Origin::Ingress(link) => {
                    packet.forget_key();
                    path.shape.inward.push_back((link, packet));
                }
                Origin::Egress(link) => path.shape.outward.push_back((link, packet)),
                Origin::Into(id) => path.shape.into.push_back((id, false, packet)),
                Origin::Here => {
                    path.counters.add_link_drops(ifb, Direction::Receive, 1);
                    return path.drop(packet, DropReason::IfbOrigin, trace);
                }
            }
            path.counters.add_link(ifb, Direction::Transmit, count);
        }
    }
}

/// Takes what has come into the queues of ports to the qdiscs of their links.
pub(crate) fn collect<const COUNT: bool, T: Trace>(path: &mut Path<COUNT>, view: &View<'_>, trace: &mut T) {
    let mut last = None;
    while let Some(port) = path.transmit.used_after(last) {
        last = Some(port);
        let Some((link, root)) = path.transmit.root_of_new(view, port) else { continue };
        let to = (root, Place::Port(link));
        let mut taken = std::mem::take(&mut path.shape.taken);
        path.transmit.take_new(port, &mut taken);
        // In bursts, as they came.
        let mut passed = 0;
        while passed < taken.len() {
            let burst = &taken[passed..taken.len().min(passed + BURST)];
            let mut frames = Frames::new();
            let more = pass_qdisc::<_, T>(path, view, to, (burst, Lengths::leaving(&mut frames, burst)));
            passed += more;
            if more == 0 {
                break;
            }
        }
        for packet in taken.drain(..passed) {
            dequeue(path, view, to.1, packet, Origin::Here, trace);
        }
        for packet in taken.drain(..) {
            put_into_qdisc(path, view, to, packet, Origin::Here, trace);
        }
        path.shape.taken = taken;
    }
}

/// Sends a frame by a link, past its egress hook.
pub(crate) fn leave_by<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    id: LinkId,
    packet: Packet,
    trace: &mut T,
) {
    let Some(link) = view.link(id).filter(|link| link.up) else {
        return path.drop(packet, DropReason::LinkDown, trace);
    };
    if let Some(tunnel) = view.tables.tunnels().of_link(id) {
        // A filter of its qdisc has redirected it.
        return path.shape.into.push_back((tunnel, false, packet));
    }
    match (link.root, link.port) {
        (Some(root), _) if link.ifb => {
            put_into_qdisc(path, view, (root, Place::Ifb(id)), packet, Origin::Here, trace);
        }
        (None, _) if link.ifb => dequeue(path, view, Place::Ifb(id), packet, Origin::Here, trace),
        (Some(root), Some(_)) => {
            wait_in_qdisc(path, view, (root, Place::Port(id)), packet, Origin::Here, trace);
        }
        (None, Some(_)) => dequeue(path, view, Place::Port(id), packet, Origin::Here, trace),
        (_, None) => path.drop(packet, DropReason::NoPort, trace),
    }
}
