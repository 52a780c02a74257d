//! A burst of packets is classified at once, where one filter takes all.

use crate::buffer::{Frames, Packet};
use crate::counters::Counters;
use crate::drops::DropReason;
use crate::qos::{
    Charge, Charged, Everything, Lengths, Place, Policer, StoredAction, StoredHook, WireLength, link_layer,
    uncounted,
};
use crate::tables::{Control, HookId, LinkId, Mirred, TcActionId, TcActionKind};
use crate::trace::Trace;
use crate::worker::hook::{Classified, apply_type, classify_at_hook};
use crate::worker::path::{Burst, Path, bytes_of};
use crate::worker::shape::burst_to_ifb;
use crate::worker::view::View;

/// Classifies all packets of a burst; those that go on stay in it. Bytes of all frames.
#[inline(never)]
pub(crate) fn classify_burst<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    id: HookId,
    place: &Place,
    burst: &mut Burst,
    trace: &mut T,
) -> u64 {
    let Some(hook) = view.tables.hook(id, view.guard) else { return bytes_of(burst) };
    let mut frames = Frames::new();
    if !T::WATCHES
        && let Some(everything) = &hook.everything
        && let [action] = everything.outcome.actions[..]
        && let Some(lengths) = Lengths::of(&mut frames, burst, everything.protocol, link_layer(place.ingress))
    {
        if let Some((stored, policer)) = fast(view, everything, action) {
            let charge = policer.charge_plain(lengths);
            count_burst(path, view, (hook, everything), stored, &charge, burst.len());
            police_burst(path, view, (hook, action), (stored, policer), &charge, place, burst);
            return lengths.bytes_of_frames();
        }
        if let Some((stored, ifb)) = to_ifb(view, action, place) {
            let charge = Charge::of_bytes(lengths);
            count_burst(path, view, (hook, everything), stored, &charge, burst.len());
            let to = (ifb, stored.config.counter);
            burst_to_ifb(path, view, to, place.link, (burst, lengths.as_leaving()), trace);
            return lengths.bytes_of_frames();
        }
    }
    let bytes = bytes_of(burst);
    let classified = std::mem::take(burst);
    for packet in classified {
        match classify_at_hook(path, view, hook, packet, place, trace) {
            Classified::On(mut packet, _) => {
                if let Some(link) = view.link(place.link).filter(|_| place.ingress) {
                    apply_type(&mut packet, link);
                }
                burst.push(packet);
            }
            Classified::Dropped | Classified::Gone => {}
        }
    }
    bytes
}

/// Counts a burst of which every packet is in for the same.
#[inline(always)]
fn count_burst<const COUNT: bool>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    (hook, everything): (&StoredHook, &Everything),
    action: &StoredAction,
    &Charge { packets, bytes, .. }: &Charge,
    frames: usize,
) {
    path.counters.add_tc(action.config.counter, packets, bytes, view.now);
    if let Some(counter) = hook.counter {
        path.counters.add_tc(counter, packets, bytes, view.now);
    }
    everything.count(&path.counters, frames as u64, bytes);
    if let Some(estimator) = &action.estimator {
        estimator.add(bytes, packets, view.now);
    }
}

/// Polices a burst of which every packet is in for the same.
#[inline(always)]
fn police_burst<const COUNT: bool>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    (hook, id): (&StoredHook, TcActionId),
    (action, policer): (&StoredAction, &Policer),
    charge: &Charge,
    place: &Place,
    burst: &mut Burst,
) {
    let lease = path.hooks.lease(id, action.generation);
    let below = policer.average().is_none_or(|average| action.is_below(average, view.now));
    let all = below && policer.admit_all(lease, view.now, charge);
    if all && goes_on(policer.conform) {
        return;
    }
    let passed = match (all, below) {
        (true, _) => u64::MAX,
        (false, true) => {
            policer.admit(lease, view.now, burst.iter().map(|packet| charged(packet, place.ingress)))
        }
        (false, false) => 0,
    };
    refuse(path, hook, (action, policer), passed, burst);
}

/// Takes those packets out of a burst that do not go on.
#[cold]
#[inline(never)]
pub(crate) fn refuse<const COUNT: bool>(
    path: &mut Path<COUNT>,
    hook: &StoredHook,
    (action, policer): (&StoredAction, &Policer),
    passed: u64,
    burst: &mut Burst,
) {
    let (mut drops, mut stolen, mut overlimits) = (0, 0, 0);
    let mut counted_drops = 0;
    for (n, packet) in std::mem::take(burst).into_iter().enumerate() {
        let conforms = passed >> n & 1 != 0;
        let control = if conforms { policer.conform } else { action.control() };
        overlimits += u64::from(!conforms);
        if goes_on(control) {
            burst.push(packet);
            continue;
        }
        if control == Control::Drop {
            path.drop_log.keep_frame(DropReason::Police, path.counters.port(), &packet);
        }
        path.pool.give(packet);
        match control {
            Control::Drop => {
                drops += 1;
                counted_drops += u64::from(!conforms || !policer.is_mtu_only());
            }
            _ => stolen += 1,
        }
    }
    path.counters.add_tc_refused(action.config.counter, counted_drops, overlimits);
    path.counters.add_drop(DropReason::Police, drops);
    path.counters.add_drop(DropReason::TcStolen, stolen);
    if let Some(counter) = hook.counter {
        path.counters.add_tc_refused(counter, drops, 0);
    }
}

impl Everything {
    /// Counts packets that the filter has taken.
    fn count(&self, counters: &Counters, packets: u64, bytes: u64) {
        use crate::counters::Count;
        if let Some(counter) = self.outcome.counter {
            counters.add(counter, Count { packets, bytes, errors: 0 });
        }
        for counter in &self.counters {
            counters.add(*counter, Count { packets, bytes: 0, errors: 0 });
        }
    }
}

/// Whether a packet goes on where no other filter follows.
fn goes_on(control: Control) -> bool {
    matches!(control, Control::Ok | Control::Pipe | Control::Continue)
}

/// The action of a filter that takes every packet, if a burst can go through it at once.
fn fast<'a>(
    view: &View<'a>,
    everything: &Everything,
    id: TcActionId,
) -> Option<(&'a StoredAction, &'a Policer)> {
    let action = view.tables.tc_action(id, view.guard)?;
    let policer = action.policer.as_ref()?;
    let simple = |control| match control {
        Control::Ok | Control::Pipe | Control::Drop | Control::Stolen | Control::Trap => true,
        Control::Continue => everything.alone,
        Control::Reclassify | Control::Jump(_) | Control::Goto(_) => false,
    };
    // A class is told each packet.
    let fast = simple(policer.conform) && simple(action.control()) && everything.outcome.class as u16 == 0;
    fast.then_some((action, policer))
}

/// The action of a filter that takes every packet, and the ifb that it redirects packets to that come in, if a burst can
/// go there at once.
fn to_ifb<'a>(view: &View<'a>, id: TcActionId, place: &Place) -> Option<(&'a StoredAction, LinkId)> {
    let action = view.tables.tc_action(id, view.guard)?;
    let TcActionKind::Mirred(Mirred { link: Some(to), redirect: true, ingress: false }) = action.config.kind
    else {
        return None;
    };
    let taken = matches!(action.control(), Control::Stolen | Control::Drop | Control::Trap);
    let link = view.link(to).filter(|link| link.up && link.ifb && link.egress.is_none())?;
    (taken && place.ingress && place.nest.depth == 0 && link.port.is_none()).then_some((action, to))
}

/// What a policer charges for a packet.
fn charged(packet: &Packet, ingress: bool) -> Charged {
    let wire = WireLength::of_packet(packet, uncounted(packet, ingress));
    Charged { wire, longest: wire.longest() + link_layer(ingress) }
}
