//! Traffic control: packets are classified where they come in and where they leave, before all else and after all else.
//! Linux's `sch_handle_ingress`, `sch_handle_egress`, `tcf_classify` and `tcf_action_exec`.

pub(crate) mod burst;
pub(crate) mod sample;
pub(crate) mod state;

use underpass_packet::ethernet;

use crate::buffer::{NO_TUNNEL_KEY, Packet, Tag};
use crate::drops::DropReason;
use crate::l2::bridge::ends_in_tag;
use crate::offload;
use crate::qos::{
    Charged, Found, Nest, OuterKey, Place, StoredAction, StoredHook, Subject, WireLength, edit_bytes,
    edit_label, edit_vlan, give_header, link_layer, make_checksums, packet_type, uncounted,
};
use crate::tables::{
    Chance, ChanceKind, Control, Link, LinkId, Mirred, PeditKey, Skbedit, TcActionId, TcActionKind,
    TunnelKey, VlanEdit,
};
use crate::trace::{Event, Trace};
use crate::worker::hook::sample::sample;
use crate::worker::hook::state::{Redirected, Side};
use crate::worker::path::Path;
use crate::worker::view::View;

/// How often a packet may be sent back to the first filter: `max_reclassify_loop`.
const ROUNDS: u8 = 16;

/// How often actions may jump: `TCA_ACT_MAX_PRIO`.
const JUMPS: u8 = 32;

/// What became of a packet that was classified.
pub(crate) enum Classified {
    /// It goes on, in the class of the filter that has taken it, 0 if that has none.
    On(Packet, Option<u32>),
    /// It was dropped, and counted.
    Dropped,
    /// It went elsewhere.
    Gone,
}

/// The hook of a link, as filters see it.
pub(crate) fn place_of(id: LinkId, link: &Link, ingress: bool, received_by: Option<(LinkId, u32)>) -> Place {
    let Link { ifindex, mac, .. } = *link;
    Place {
        link: id,
        ifindex,
        mac,
        ingress,
        queues: false,
        received_by,
        nest: Nest::default(),
        bare: false,
        tunnel: None,
        outer: None,
        before: 0,
    }
}

/// Classifies one packet.
pub(crate) fn classify_at_hook<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    hook: &StoredHook,
    mut packet: Packet,
    place: &Place,
    trace: &mut T,
) -> Classified {
    let random = path.hooks.random();
    let cut = packet.len() < ethernet::Header::LEN || place.ingress && ends_in_tag(packet.bytes());
    if packet.tag().headless == 0 && cut {
        // Too short to be classified; the path drops it.
        return Classified::On(packet, None);
    }
    // What all actions count: what the packet is now, whatever they make of it.
    let wire = WireLength::of_packet(&packet, uncounted(&packet, place.ingress));
    if let Some(counter) = hook.counter {
        path.counters.add_tc(counter, wire.packets().into(), wire.bytes(), view.now);
    }
    let (mut chain, mut rounds) = (0, 0);
    let mut keyed = with_key(view, &packet, place);
    'chain: loop {
        for priority in hook.chain(chain) {
            let mut cursor = None;
            loop {
                let here = keyed.as_ref().unwrap_or(place);
                let Some(subject) = Subject::of(&packet, here) else { return Classified::On(packet, None) };
                if !subject.is_of(priority.protocol) {
                    break;
                }
                let found = hook.next(priority, &mut cursor, &subject, &path.counters, random);
                let outcome = match found {
                    None => break,
                    Some(Found::Class(class)) => return on(packet, Some(class), (place, wire)),
                    Some(Found::Outcome(outcome)) => outcome,
                };
                let key = packet.tag().tunnel;
                let (back, control, reason) =
                    perform(path, view, &outcome.actions, (packet, wire), place, trace);
                let Some(back) = back else { return Classified::Gone };
                packet = back;
                if packet.tag().tunnel != key {
                    keyed = with_key(view, &packet, place);
                }
                match control {
                    Control::Continue => {}
                    Control::Ok | Control::Pipe | Control::Jump(_) => {
                        return on(packet, Some(outcome.class), (place, wire));
                    }
                    Control::Reclassify | Control::Goto(_) => {
                        rounds += 1;
                        if rounds > ROUNDS {
                            return dropped(path, hook, packet, DropReason::TcLoop, trace);
                        }
                        chain = if let Control::Goto(chain) = control { chain } else { 0 };
                        continue 'chain;
                    }
                    Control::Drop => return dropped(path, hook, packet, reason, trace),
                    Control::Stolen | Control::Trap => {
                        path.drop(packet, DropReason::TcStolen, trace);
                        return Classified::Gone;
                    }
                }
            }
        }
        return on(packet, None, (place, wire));
    }
}

fn dropped<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    hook: &StoredHook,
    packet: Packet,
    reason: DropReason,
    trace: &mut T,
) -> Classified {
    if let Some(counter) = hook.counter {
        path.counters.add_tc_refused(counter, 1, 0);
    }
    path.drop(packet, reason, trace);
    Classified::Dropped
}

/// Does what the actions of a filter say. The packet, unless it is gone, what happens to it then, and the reason
/// should that be that it is dropped.
fn perform<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    actions: &[TcActionId],
    (mut packet, wire): (Packet, WireLength),
    place: &Place,
    trace: &mut T,
) -> (Option<Packet>, Control, DropReason) {
    let (mut at, mut jumps) = (0, 0);
    let mut last = Control::Ok;
    while let Some(id) = actions.get(at) {
        let Some(action) = view.tables.tc_action(*id, view.guard) else {
            at += 1;
            continue;
        };
        if packet.tag().headless != 0 && is_taken_off(view, action, actions.get(at + 1)) {
            count(path, view, action, wire);
            trace.step(Event::Action("vlan"), &packet);
            at += 1;
            continue;
        }
        let (back, control, reason) = perform_one(path, view, (*id, action), (packet, wire), place, trace);
        let Some(back) = back else { return (None, control, reason) };
        packet = back;
        last = control;
        match control {
            Control::Pipe => at += 1,
            Control::Jump(to) => {
                jumps += 1;
                if to == 0 || to as usize > actions.len() || jumps >= JUMPS {
                    return (Some(packet), Control::Ok, reason);
                }
                at = to as usize;
            }
            _ => return (Some(packet), control, reason),
        }
    }
    (Some(packet), last, DropReason::TcAction)
}

/// Whether an action gives a packet a tag that the next one takes off again. Linux keeps it beside the packet in between:
/// `skb_vlan_push`.
#[cold]
fn is_taken_off(view: &View<'_>, action: &StoredAction, next: Option<&TcActionId>) -> bool {
    let next = next.and_then(|id| view.tables.tc_action(*id, view.guard));
    let pops = next.is_some_and(|next| matches!(next.config.kind, TcActionKind::Vlan(VlanEdit::Pop)));
    let pushes = matches!(action.config.kind, TcActionKind::Vlan(VlanEdit::Push { .. }));
    pushes && pops && action.control() == Control::Pipe
}

/// Counts a packet that comes to an action.
fn count<const COUNT: bool>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    action: &StoredAction,
    wire: WireLength,
) {
    path.counters.add_tc(action.config.counter, wire.packets().into(), wire.bytes(), view.now);
    if let Some(estimator) = &action.estimator {
        estimator.add(wire.bytes(), wire.packets().into(), view.now);
    }
}

fn perform_one<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    (id, action): (TcActionId, &StoredAction),
    (mut packet, wire): (Packet, WireLength),
    place: &Place,
    trace: &mut T,
) -> (Option<Packet>, Control, DropReason) {
    let counter = action.config.counter;
    if let TcActionKind::Mirred(_) = action.config.kind
        && nest(&packet, place).is_full()
    {
        return (Some(packet), Control::Drop, DropReason::MirredLoop);
    }
    count(path, view, action, wire);
    let control = action.control();
    match &action.config.kind {
        TcActionKind::Gact(chance) => {
            trace.step(Event::Action("gact"), &packet);
            let control = chance.map_or(control, |chance| decide_by_chance(path, chance, action));
            path.counters.add_tc_refused(counter, u64::from(control == Control::Drop), 0);
            (Some(packet), control, DropReason::TcAction)
        }
        TcActionKind::Police(_) => {
            trace.step(Event::Action("police"), &packet);
            let control = police(path, view, (id, action), &mut packet, wire, place.ingress);
            (Some(packet), control, DropReason::Police)
        }
        TcActionKind::Mirred(mirred) => {
            trace.step(Event::Action("mirred"), &packet);
            perform_mirred(path, view, action, mirred, packet, place)
        }
        TcActionKind::Mpls(edit) => {
            let done = edit_label(&mut packet, *edit);
            trace.step(Event::Action("mpls"), &packet);
            edited(path, action, packet, done)
        }
        TcActionKind::Vlan(edit) => {
            let done = edit_vlan(&mut packet, *edit);
            trace.step(Event::Action("vlan"), &packet);
            edited(path, action, packet, done)
        }
        TcActionKind::Skbedit(edit) => {
            trace.step(Event::Action("skbedit"), &packet);
            let done = skbedit(&mut packet, edit, place);
            edited(path, action, packet, done)
        }
        TcActionKind::TunnelKey(key) => {
            trace.step(Event::Action("tunnel_key"), &packet);
            let tunnel = if key.is_some() { id.0 + 1 } else { NO_TUNNEL_KEY };
            packet.set_tag(Tag { tunnel, ..packet.tag() });
            (Some(packet), control, DropReason::TcAction)
        }
        TcActionKind::Sample(wanted) => {
            trace.step(Event::Action("sample"), &packet);
            sample(path, wanted, &packet, place);
            (Some(packet), control, DropReason::TcAction)
        }
        TcActionKind::Csum(checksums) => {
            // What is dropped is not looked at, but counted as one that was refused.
            let dropped = control == Control::Drop;
            let done = if dropped { Some(()) } else { make_checksums(&mut packet, *checksums) };
            path.counters.add_tc_refused(counter, dropped.into(), 0);
            trace.step(Event::Action("csum"), &packet);
            edited(path, action, packet, done)
        }
        TcActionKind::Pedit(keys) => {
            let done = pedit(&mut packet, keys, place);
            trace.step(Event::Action("pedit"), &packet);
            path.counters.add_tc_refused(counter, 0, u64::from(!done));
            (Some(packet), control, DropReason::TcAction)
        }
    }
}

/// Changes bytes. Whose a packet is that comes in was decided before: `eth_type_trans`.
fn pedit(packet: &mut Packet, keys: &[PeditKey], place: &Place) -> bool {
    let whose = packet_type(packet, place);
    let before = packet.bytes().first_chunk::<6>().copied();
    let done = edit_bytes(packet, keys);
    let tag = packet.tag();
    if place.ingress
        && tag.packet_type == 0
        && tag.headless == 0
        && packet.bytes().first_chunk() != before.as_ref()
    {
        packet.set_tag(Tag { packet_type: whose + 1, ..tag });
    }
    done
}

fn edited<const COUNT: bool>(
    path: &mut Path<COUNT>,
    action: &StoredAction,
    packet: Packet,
    done: Option<()>,
) -> (Option<Packet>, Control, DropReason) {
    if done.is_some() {
        return (Some(packet), action.control(), DropReason::TcAction);
    }
    path.counters.add_tc_refused(action.config.counter, 1, 0);
    (Some(packet), Control::Drop, DropReason::TcEdit)
}

/// `gact_net_rand`, `gact_determ`.
fn decide_by_chance<const COUNT: bool>(
    path: &mut Path<COUNT>,
    chance: Chance,
    action: &StoredAction,
) -> Control {
    let one_of = u32::from(chance.one_of.max(1));
    let number = match chance.kind {
        ChanceKind::Random => path.hooks.random(),
        ChanceKind::Regular => action.number(),
    };
    if number.is_multiple_of(one_of) { chance.control } else { action.control() }
}

/// `tcf_police_act`. Of a large segment that conforms in part what does not is cut off, where it would be dropped.
fn police<const COUNT: bool>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    (id, action): (TcActionId, &StoredAction),
    packet: &mut Packet,
    wire: WireLength,
    ingress: bool,
) -> Control {
    let Some(policer) = &action.policer else { return action.control() };
    let lease = path.hooks.lease(id, action.generation);
    let below = policer.average().is_none_or(|average| action.is_below(average, view.now));
    let before = if packet.tag().headless == 0 { link_layer(ingress) } else { 0 };
    let charged = Charged { wire, longest: wire.longest() + before };
    let counter = action.config.counter;
    if below && policer.admit_all(lease, view.now, &policer.charge(charged)) {
        let drops = policer.conform == Control::Drop && !policer.is_mtu_only();
        path.counters.add_tc_refused(counter, drops.into(), 0);
        return policer.conform;
    }
    let dropped = action.control() == Control::Drop;
    path.counters.add_tc_refused(counter, dropped.into(), 1);
    if dropped && below && wire.packets() > 1 {
        let parts = policer.admit_part(lease, view.now, charged);
        if parts != 0 && offload::keep(packet, parts as usize) {
            // What is cut off is a packet more, and is dropped.
            path.totals.generated += 1;
            path.counters.add_drop(DropReason::Police, 1);
            return policer.conform;
        }
    }
    action.control()
}

/// `tcf_mirred_act`.
fn perform_mirred<const COUNT: bool>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    action: &StoredAction,
    mirred: &Mirred,
    mut packet: Packet,
    place: &Place,
) -> (Option<Packet>, Control, DropReason) {
    let control = action.control();
    let nest = nest(&packet, place);
    let refuse = |reason| {
        path.counters.add_tc_refused(action.config.counter, 0, 1);
        let control = if mirred.redirect { Control::Drop } else { control };
        (control, reason)
    };
    let up = |to: &LinkId| view.link(*to).is_some_and(|link| link.up);
    let Some(to) = mirred.link.filter(up) else {
        let (control, reason) = refuse(DropReason::MirredLink);
        return (Some(packet), control, reason);
    };
    if !mirred.ingress && nest.has(to) {
        let (control, reason) = refuse(DropReason::MirredLoop);
        return (Some(packet), control, reason);
    }
    let (side, nest) = match mirred.ingress {
        true => (Side::Ingress, nest.to_receive(!place.ingress)),
        false => (Side::Egress, nest.to_send(to)),
    };
    // Linux: `skb_iif` is the device of the action then.
    let from = Place { nest, received_by: Some((place.link, place.ifindex)), ..*place };
    let counter = action.config.counter;
    let taken = matches!(control, Control::Stolen | Control::Drop | Control::Trap);
    let key = packet.tag().tunnel;
    if mirred.ingress && !place.ingress {
        // What comes in has no parameters from where it left.
        packet.forget_key();
    }
    // What was inside another packet leaves with all that it came in with, but into a tunnel of packets.
    let headless = packet.tag().headless;
    let whole = place.before > 0 && headless != 0 && !mirred.ingress && takes_frames(view, place.link, to);
    let whole = whole && packet.push(place.before).is_ok();
    if whole {
        packet.set_tag(Tag { headless: 0, ..packet.tag() });
    }
    if mirred.redirect && taken {
        sent_by(view, &mut packet, place);
        path.hooks.redirected.push(Redirected { packet, to, side, from, copy: false, counter });
        return (None, control, DropReason::MirredLink);
    }
    path.totals.generated += 1;
    match path.pool.copy(&packet) {
        Some(mut packet) => {
            sent_by(view, &mut packet, place);
            path.hooks.redirected.push(Redirected {
                packet,
                to,
                side,
                from,
                copy: !mirred.redirect,
                counter,
            });
        }
        None => {
            path.counters.add_drop(DropReason::NoBuffer, 1);
            path.counters.add_tc_refused(action.config.counter, 0, 1);
        }
    }
    if whole {
        packet.pull(place.before);
        packet.set_tag(Tag { headless, ..packet.tag() });
    }
    if key != 0 {
        packet.set_tag(Tag { tunnel: key, ..packet.tag() });
    }
    (Some(packet), control, DropReason::MirredLink)
}

/// Whether what is sent by a link has an Ethernet header: Linux's `dev_is_mac_header_xmit`. What has come out of a tunnel goes
/// into one of frames without the outer header.
#[cold]
fn takes_frames(view: &View<'_>, from: LinkId, to: LinkId) -> bool {
    let tunnels = view.tables.tunnels();
    let tunnel = tunnels.of_link(to).and_then(|id| tunnels.tunnel(id, view.guard));
    tunnel.is_none_or(|tunnel| tunnel.kind.carries_frames() && tunnels.of_link(from).is_none())
}

/// Takes note of the link whose action has sent a packet on, for filters at egress that look at where it has come in.
#[inline]
fn sent_by(view: &View<'_>, packet: &mut Packet, place: &Place) {
    if view.tables.reads_input() {
        let received_by = place.link.0 + 1;
        packet.set_tag(Tag { received_by, received_index: place.ifindex, ..packet.tag() });
    }
}

/// The redirections of a packet, those before it was forwarded or went into a tunnel too.
fn nest(packet: &Packet, place: &Place) -> Nest {
    let tag = packet.tag();
    let mut nest = place.nest.behind(tag.nested >> 4, tag.through);
    nest.received = nest.received.max(tag.received);
    nest
}

/// Gives a packet that comes in and whose Ethernet header an action has taken off another, unless none has one there. What
/// leaves is a frame as it is: in Linux, too, a packet that was inside another begins with its own header then.
pub(crate) fn with_header(packet: &mut Packet, place: &Place) {
    let lacks = packet.tag().headless != 0 && place.ingress && !place.bare;
    if lacks && give_header(packet, place.mac).is_none() {
        packet.truncate(0);
    }
}

/// A packet that was classified and goes on: `tc_run`.
fn on(mut packet: Packet, class: Option<u32>, (place, before): (&Place, WireLength)) -> Classified {
    with_header(&mut packet, place);
    // Where a packet has come out of an external tunnel, parameters say of which network it is: `classify_ingress`.
    if place.ingress && place.outer.is_none() {
        packet.forget_key();
    }
    let tag = packet.tag();
    let index = class.map_or(tag.index, |class| class as u16);
    let grown = if place.ingress {
        0
    } else {
        let now = WireLength::of_packet(&packet, uncounted(&packet, false));
        // Each packet of a large segment grows.
        (now.bytes() as i64 - before.bytes() as i64).clamp(i16::MIN.into(), i16::MAX.into()) as i16
    };
    if (index, grown) != (tag.index, tag.grown) {
        packet.set_tag(Tag { index, grown, ..tag });
    }
    Classified::On(packet, class)
}

/// The parameters that `tunnel_key` has given to a packet. `None`: it has none.
pub(crate) fn key_of<'a>(view: &View<'a>, packet: &Packet) -> Option<&'a TunnelKey> {
    let id = packet.tag().tunnel.checked_sub(1)?;
    match &view.tables.tc_action(TcActionId(id), view.guard)?.config.kind {
        TcActionKind::TunnelKey(key) => key.as_ref(),
        _ => None,
    }
}

/// Where a packet is whose parameters an action has changed. `None`: none has.
fn with_key(view: &View<'_>, packet: &Packet, place: &Place) -> Option<Place> {
    let given = |key: &TunnelKey| {
        let TunnelKey { source, destination, id, tos, ttl, port, .. } = *key;
        OuterKey { source, destination, id, tos, ttl, ports: (0, port) }
    };
    let keyed = packet.tag().tunnel != 0;
    keyed.then(|| Place { outer: key_of(view, packet).map(given), ..*place })
}

/// Lets the type that `skbedit ptype` has given to a packet count, or another link where it came in: the path decides whose a packet
/// is by its address. So does a bridge, which asks for no type.
#[inline]
pub(crate) fn apply_type(packet: &mut Packet, link: &Link) {
    if link.bridge_port.is_some() {
        return;
    }
    let kind = packet.tag().packet_type;
    let Some(destination) = packet.bytes_mut().first_chunk_mut() else { return };
    *destination = match kind {
        1 => link.mac,
        2 => ethernet::BROADCAST,
        3 if destination[0] & 1 != 0 && *destination != ethernet::BROADCAST => return,
        // To nobody.
        3 | 4 => [0; 6],
        _ => return,
    };
}

/// `tcf_skbedit_act`. `None`: the packet lacks the header that is to be read.
fn skbedit(packet: &mut Packet, edit: &Skbedit, place: &Place) -> Option<()> {
    let mut tag = packet.tag();
    if let Some(priority) = edit.priority {
        tag.priority = priority;
    }
    if edit.inherit_dsfield
        && let Some(subject) = Subject::of(packet, place)
        && let Some(class) = subject.traffic_class()?
    {
        tag.priority = u32::from(class) >> 2;
    }
    if let Some(queue) = edit.queue {
        tag.queue = queue;
    }
    if let Some((mark, mask)) = edit.mark {
        tag.mark = tag.mark & !mask | mark & mask;
    }
    if let Some(kind) = edit.packet_type {
        tag.packet_type = kind + 1;
    }
    packet.set_tag(tag);
    Some(())
}
