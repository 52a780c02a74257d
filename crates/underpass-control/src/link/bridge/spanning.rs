//! Bridges with spanning trees: what the trees need to know, and what they make of ports.

use std::time::Duration;

use underpass_netlink::bridge::{self, DISABLED, FORWARDING, GUARD, ROOT_BLOCK, SpanningTree};
use underpass_packet::bpdu::{self, Bpdu};

use super::super::publish::publish_link;
use super::super::{Link, LinkKind};
use super::device::Bridge;
use super::tree::{Event, HUNDREDTH, PortSettings, Times, Tree};
use super::trees::now;
use super::{bridge_of, fdb, is_open, query, select};
use crate::Router;
use crate::events::Cause;

/// What the path by a link costs, if nobody sets it: by how fast the device is, or the one that it is above. Linux:
/// `port_cost`.
pub(super) fn path_cost(router: &Router, link: &Link) -> u32 {
    let below = |link: &Link| link.lower().and_then(|lower| router.links.get(lower)).cloned();
    let lowest = std::iter::successors(Some(link.clone()), below).take(16).last();
    let kernels = lowest.filter(|link| matches!(link.kind, LinkKind::Port(_) | LinkKind::Kernel));
    let speed =
        router.live.as_ref().zip(kernels).and_then(|(live, link)| live.namespace.as_ref()?.speed(&link.name));
    bridge::path_cost(speed)
}

/// The same once a port has a carrier, which may be of another speed now. Linux: `br_port_carrier_check`.
pub(super) fn renew_cost(router: &mut Router, link: &Link) {
    let cost = path_cost(router, link);
    let Some(mut link) = router.links.get(link.index).cloned() else { return };
    let port = link.bridge_port.as_mut().map(|port| &mut port.settings);
    if let Some(port) = port.filter(|port| !port.cost_is_set && port.cost != cost) {
        port.cost = cost;
        router.links.put(link);
    }
}

/// A port is in this state now.
pub(super) fn put_state(router: &mut Router, cause: Cause, port: u32, state: u8) {
    let Some(mut link) = router.links.get(port).cloned() else { return };
    let Some(of_port) = link.bridge_port.as_mut().filter(|port| port.settings.state != state) else { return };
    of_port.settings.state = state;
    let (id, master) = (link.id, link.master);
    router.links.put(link);
    publish_link(router, port);
    query::notify_port(router, cause, libc::RTM_NEWLINK, port);
    if let Some(master) = master.filter(|_| state == DISABLED) {
        fdb::forget_learned(router, cause, master, Some(id), 0);
    }
}

/// Whether a program keeps the spanning tree of a bridge, which it is told to do or to end. Linux: `br_stp_start`,
/// `br_stp_stop`.
pub(super) fn is_programs(router: &mut Router, bridge: &str, starts: bool) -> bool {
    let namespace = router.live.as_mut().and_then(|live| live.namespace.as_mut());
    namespace.is_some_and(|namespace| namespace.keep_spanning_tree(bridge, starts))
}

/// A request has set after how long a bridge forgets stations.
pub(super) fn ageing_is_set(router: &mut Router, bridge: u32) {
    if let Some(tree) = router.trees.trees.get_mut(&bridge) {
        tree.ageing_is_set();
    }
}

/// A bridge has no spanning tree any more.
pub(super) fn forward_all(router: &mut Router, cause: Cause, bridge: &Link) {
    // One that a guard or a request has disabled stays so. Linux: `br_port_state_selection`.
    let disabled = |port: &Link| port.bridge_port.as_ref().is_none_or(|port| port.settings.state == DISABLED);
    let ports =
        router.links.slaves(bridge.index).filter(|port| is_open(port, bridge.up()) && !disabled(port));
    let ports: Vec<u32> = ports.map(|port| port.index).collect();
    ports.into_iter().for_each(|port| put_state(router, cause, port, FORWARDING));
    publish_link(router, bridge.index);
    select(router, cause, bridge.index);
}

/// A bridge or a port of it has changed: so has its spanning tree, if it has one. `begins`: it was switched on, and ports go on
/// in the states that they are in.
pub(super) fn follow(router: &mut Router, cause: Cause, bridge: u32, begins: bool) {
    let Some(link) = router.links.get(bridge).cloned() else { return };
    let Some(of_bridge) = &link.bridge else { return };
    let settings = &of_bridge.settings;
    let ports: Vec<Link> = router.links.slaves(bridge).cloned().collect();
    if settings.spanning_tree != SpanningTree::Own {
        if router.trees.trees.remove(&bridge).is_some() {
            forward_all(router, cause, &link);
        }
        return;
    }
    let times = |max_age: u32, hello: u32, forward_delay: u32| {
        let [max_age, hello, forward_delay] =
            [max_age, hello, forward_delay].map(|time| u64::from(time) * HUNDREDTH);
        Times { max_age, hello, forward_delay }
    };
    let own = times(settings.max_age, settings.hello_time, settings.forward_delay);
    let (id, now) = (settings.id(of_bridge.id), now(router));
    let is_new = !router.trees.trees.contains_key(&bridge);
    if is_new && is_programs(router, &link.name, true) {
        let settings = bridge::Bridge { spanning_tree: SpanningTree::Program, ..settings.clone() };
        let of_bridge = Bridge { settings, ..(**of_bridge).clone() };
        router.links.put(Link { bridge: Some(Box::new(of_bridge)), ..link });
        publish_link(router, bridge);
        return;
    }
    let tree = router.trees.trees.entry(bridge).or_insert_with(|| Tree::new(id, own));
    tree.set_time(now);
    tree.configure(id, own);
    if link.up() {
        tree.set_up(true);
    }
    for port in &ports {
        let Some(of_port) = &port.bridge_port else { continue };
        let settings = PortSettings {
            id: of_port.settings.id(),
            number: of_port.settings.number,
            cost: of_port.settings.cost,
            guards: of_port.settings.has(GUARD),
            blocks_root: of_port.settings.has(ROOT_BLOCK),
            open: is_open(port, link.up()),
        };
        tree.set_port(port.index, settings, begins.then_some(of_port.settings.state));
    }
    tree.retain_ports(|index| ports.iter().any(|port| port.index == index));
    tree.set_up(link.up());
    if is_new {
        publish_link(router, bridge);
    }
    settle(router, cause, bridge);
}

/// Makes of the ports of a bridge what its tree says, and sends what it has to say.
fn settle(router: &mut Router, cause: Cause, bridge: u32) {
    let Some(tree) = router.trees.trees.get_mut(&bridge) else { return };
    // Without a kernel no time passes, and nobody else is there: it has passed.
    while router.live.is_none()
        && let Some(at) = tree.settles()
    {
        tree.set_time(at);
        tree.pass();
    }
    let (states, events, sent) = (tree.states().collect::<Vec<_>>(), tree.take_events(), tree.take_sent());
    let ages_otherwise = tree.take_other_ageing();
    events.iter().for_each(|event| log(router, bridge, *event));
    if router.live.is_some() {
        let group =
            router.links.get(bridge).and_then(|link| link.bridge.as_ref()).map(|it| it.settings.group());
        let of_port = |(port, unit): (u32, Bpdu)| {
            let source = router.links.get(port)?.mac;
            Some((port, unit.frame(source, group?)))
        };
        let frames: Vec<_> = sent.into_iter().filter_map(of_port).collect();
        router.trees.frames.extend(frames);
    }
    states.into_iter().for_each(|(port, state)| put_state(router, cause, port, state));
    select(router, cause, bridge);
    if ages_otherwise {
        publish_link(router, bridge);
    }
}

/// Linux: `br_set_state`, `br_topology_change_detection` and the like.
fn log(router: &Router, bridge: u32, event: Event) {
    let name = |index: u32| router.links.get(index).map(|link| link.name.as_str()).unwrap_or_default();
    let of = name(bridge);
    match event {
        Event::State(port, state) => {
            // By `BR_STATE_*`.
            let states = ["disabled", "listening", "learning", "forwarding", "blocking"];
            let state = states.get(usize::from(state)).copied().unwrap_or_default();
            tracing::info!("{of}: port {} is {state}", name(port));
        }
        Event::Change => tracing::info!("{of}: the topology of its spanning tree changes"),
        Event::Guarded(port) => {
            let port = name(port);
            tracing::warn!(
                "{of}: port {port} is disabled, as a bridge was heard at it and it has 'guard on'; after 'ip link set dev \
                 {port} down' and 'up' it passes frames again"
            );
        }
        Event::RootBlocked(port) => {
            tracing::warn!(
                "{of}: the root is not sought behind port {}, which has 'root_block on'",
                name(port)
            );
        }
        Event::Lost(port) => tracing::info!("{of}: no bridge is heard at port {} any more", name(port)),
    }
}

impl Router {
    /// The ports at which other bridges are to be heard.
    pub fn spanning_tree_ports(&self) -> impl Iterator<Item = u32> {
        let states = self.trees.trees.values().flat_map(Tree::states);
        states.filter(|(_, state)| *state != DISABLED).map(|(port, _)| port)
    }

    /// A port has heard this frame, which may be one for its bridge.
    pub fn hear_bridge(&mut self, port: u32, frame: &[u8]) {
        let heard = match Bpdu::parse(frame) {
            Ok(heard) => Some(heard),
            Err(bpdu::Malformed::Kind | bpdu::Malformed::Configuration) => None,
            Err(_) => return,
        };
        let bridge = self.links.get(port).and_then(|link| bridge_of(self, link.master));
        let Some((bridge, group)) =
            bridge.and_then(|link| Some((link.index, link.bridge.as_ref()?.settings.group())))
        else {
            return;
        };
        let now = now(self);
        if let Some(tree) = self.trees.trees.get_mut(&bridge).filter(|_| frame.starts_with(&group)) {
            tree.set_time(now);
            tree.hear(port, heard.as_ref());
            settle(self, Cause::default(), bridge);
        }
    }

    /// Does what the time has come for in spanning trees. How long it is until there is more to do.
    pub fn pass_spanning_trees(&mut self) -> Duration {
        let now = now(self);
        let due = |tree: &Tree| tree.due().is_some_and(|at| at <= now);
        let bridges: Vec<u32> =
            self.trees.trees.iter().filter(|(_, tree)| due(tree)).map(|(index, _)| *index).collect();
        for bridge in bridges {
            if let Some(tree) = self.trees.trees.get_mut(&bridge) {
                tree.set_time(now);
                tree.pass();
                settle(self, Cause::default(), bridge);
            }
        }
        let next = self.trees.trees.values().filter_map(Tree::due).min();
        next.map_or(Duration::MAX, |at| Duration::from_millis(at.saturating_sub(now)))
    }

    /// What is to be sent to other bridges, once: the port, and the frame.
    pub fn take_bridge_frames(&mut self) -> Vec<(u32, Vec<u8>)> {
        std::mem::take(&mut self.trees.frames)
    }
}
