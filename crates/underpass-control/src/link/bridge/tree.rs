//! The spanning tree of a bridge: which of its ports pass frames on, so that there is no loop. IEEE 802.1D-1998, clause 8; Linux:
//! `net/bridge/br_stp.c`, `br_stp_if.c`, `br_stp_timer.c`.
//!
//! ```text
//! what others say, what is set, what time it is → the tree → states of ports, and what is said to others
//! ```
//!
//! Times are milliseconds, of a clock that the caller has.

mod select;
mod shown;
mod speak;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::mem::take;

use underpass_netlink::bridge::{BLOCKING, DISABLED, FORWARDING, LEARNING, LISTENING};
use underpass_packet::bpdu::{Bpdu, BridgeId};

use speak::HOLD;

/// Milliseconds of a hundredth of a second, in which times are set and shown.
pub(super) const HUNDREDTH: u64 = 10;

/// When it expires; `None`: it does not run.
type Timer = Option<u64>;

/// The times that hold in a tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Times {
    pub max_age: u64,
    pub hello: u64,
    pub forward_delay: u64,
}

/// A way to the root that a port of a bridge offers to a network. The lower one is better: clause 8.6.2.2.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
struct Offer {
    root: BridgeId,
    cost: u32,
    bridge: BridgeId,
    port: u16,
}

/// What is set of a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct PortSettings {
    /// Its identifier.
    pub id: u16,
    /// Its number in the bridge.
    pub number: u16,
    /// What the way by it costs.
    pub cost: u32,
    /// Whether no bridge may be heard at it.
    pub guards: bool,
    /// Whether the root may not be behind it.
    pub blocks_root: bool,
    /// Whether it can pass frames at all.
    pub open: bool,
}

/// A port in the tree.
#[derive(Clone, Debug)]
struct Port {
    settings: PortSettings,
    /// `BR_STATE_*`.
    state: u8,
    /// The best way to the root that is offered to its network.
    best: Offer,
    /// When the root has offered that.
    born: u64,
    acknowledges: bool,
    pending: bool,
    /// When `best` is given up.
    message_age: Timer,
    /// When it goes into its next state.
    forward_delay: Timer,
    /// Until when no further configuration is sent.
    hold: Timer,
}

/// What the log has to say of a tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Event {
    /// A port is in another state.
    State(u32, u8),
    /// The topology changes.
    Change,
    /// A port is disabled, as a bridge was heard at it.
    Guarded(u32),
    /// The root was heard at a port that may not lead to it.
    RootBlocked(u32),
    /// A port does not hear its neighbour any more.
    Lost(u32),
}

/// A bridge in its spanning tree. Ports have the numbers that the caller gives them.
#[derive(Debug)]
pub(crate) struct Tree {
    now: u64,
    id: BridgeId,
    up: bool,
    /// What is set, and what holds: the root's.
    own: Times,
    times: Times,
    root: BridgeId,
    root_path_cost: u32,
    root_port: Option<u32>,
    topology_change: bool,
    /// What is shown as the ageing time since the topology has changed.
    shortened: Option<u64>,
    /// The ageing time that the caller was told of.
    told_ageing: Option<u64>,
    detected: bool,
    hello: Timer,
    notification: Timer,
    change: Timer,
    ports: BTreeMap<u32, Port>,
    sent: Vec<(u32, Bpdu)>,
    events: Vec<Event>,
}

fn expired(timer: &mut Timer, now: u64) -> bool {
    timer.take_if(|at| *at <= now).is_some()
}

impl Tree {
    /// That of a bridge without ports.
    pub fn new(id: BridgeId, own: Times) -> Self {
        Self {
            now: 0,
            id,
            up: false,
            own,
            times: own,
            root: id,
            root_path_cost: 0,
            root_port: None,
            topology_change: false,
            shortened: None,
            told_ageing: None,
            detected: false,
            hello: None,
            notification: None,
            change: None,
            ports: BTreeMap::new(),
            sent: Vec::new(),
            events: Vec::new(),
        }
    }

    /// What time it is. The clock does not go back.
    pub fn set_time(&mut self, now: u64) {
        self.now = self.now.max(now);
    }

    /// What is to be sent by which port, once.
    pub fn take_sent(&mut self) -> Vec<(u32, Bpdu)> {
        take(&mut self.sent)
    }

    /// What has happened, once.
    pub fn take_events(&mut self) -> Vec<Event> {
        take(&mut self.events)
    }

    /// Whether [`Tree::ageing`] has changed since this was last asked.
    pub fn take_other_ageing(&mut self) -> bool {
        let now = self.ageing();
        std::mem::replace(&mut self.told_ageing, now) != now
    }

    /// The ports and their states.
    pub fn states(&self) -> impl Iterator<Item = (u32, u8)> {
        self.ports.iter().map(|(index, port)| (*index, port.state))
    }

    fn is_root(&self) -> bool {
        self.root == self.id
    }

    fn is_designated(&self, port: &Port) -> bool {
        port.best.bridge == self.id && port.best.port == port.settings.id
    }

    /// What the bridge itself offers by a port.
    fn offer(&self, port: &Port) -> Offer {
        Offer { root: self.root, cost: self.root_path_cost, bridge: self.id, port: port.settings.id }
    }

    /// The ports that satisfy this.
    fn indices(&self, of: impl Fn(&Port) -> bool) -> Vec<u32> {
        self.ports.iter().filter(|(_, port)| of(port)).map(|(index, _)| *index).collect()
    }

    /// Does something that may make the bridge the root: it begins to speak as one then.
    fn may_become_root(&mut self, act: impl FnOnce(&mut Self)) {
        let was_root = self.is_root();
        act(self);
        self.select_roles();
        self.select_states();
        if self.is_root() && !was_root {
            self.become_root();
        }
    }

    /// Linux: `br_become_root_bridge`.
    fn become_root(&mut self) {
        self.times = self.own;
        self.detect_change();
        self.notification = None;
        if self.up {
            self.say_hello();
            self.hello = self.next_hello();
        }
    }

    /// Others may have set a time of 0. Linux rounds it up: `round_jiffies`.
    fn next_hello(&self) -> Timer {
        Some(self.now + self.times.hello.max(HOLD))
    }

    // What is set.

    /// The bridge has this identifier and these times. Linux: `br_stp_change_bridge_id`, `br_stp_set_bridge_priority`,
    /// `br_set_hello_time` and the like.
    pub fn configure(&mut self, id: BridgeId, own: Times) {
        self.own = own;
        if self.is_root() {
            self.times = own;
        }
        if self.id == id {
            return;
        }
        self.may_become_root(|tree| {
            let before = std::mem::replace(&mut tree.id, id);
            for port in tree.ports.values_mut() {
                for known in [&mut port.best.bridge, &mut port.best.root] {
                    if *known == before {
                        *known = id;
                    }
                }
            }
            if tree.root == before {
                tree.root = id;
            }
        });
    }

    /// The bridge goes up or down, before its ports can pass frames and after they cannot any more. Linux:
    /// `br_stp_enable_bridge`, `br_stp_disable_bridge`.
    pub fn set_up(&mut self, up: bool) {
        if std::mem::replace(&mut self.up, up) == up {
            return;
        }
        if up {
            self.hello = self.next_hello();
            self.say_hello();
        } else {
            self.set_change(false);
            self.detected = false;
            (self.hello, self.notification, self.change) = (None, None, None);
        }
    }

    /// A port is there with these settings. A new one goes on in this state, if it was there before the tree. Linux: `br_stp_enable_port`, `br_stp_disable_port`,
    /// `br_stp_set_port_priority`, `br_stp_set_path_cost`.
    pub fn set_port(&mut self, index: u32, settings: PortSettings, state: Option<u8>) {
        if !self.ports.contains_key(&index) {
            let port = Port {
                settings: PortSettings { open: settings.open && state.is_some(), ..settings },
                state: state.unwrap_or(DISABLED),
                best: Offer::default(),
                born: 0,
                acknowledges: false,
                pending: false,
                message_age: None,
                forward_delay: None,
                hold: None,
            };
            let best = self.offer(&port);
            self.ports.insert(index, Port { best, ..port });
            self.select_states();
        }
        let Some(port) = self.ports.get_mut(&index) else { return };
        let before = std::mem::replace(&mut port.settings, settings);
        let port = port.clone();
        if before.id != settings.id {
            self.identify_port(index, before.id);
        }
        if before.cost != settings.cost {
            self.select_roles();
            self.select_states();
        }
        match (before.open, port.settings.open) {
            (false, true) => self.enable_port(index),
            (true, false) => self.disable_port(index),
            _ => {}
        }
    }

    /// Only these ports are there any more. Linux: `del_nbp`.
    pub fn retain_ports(&mut self, stays: impl Fn(u32) -> bool) {
        for index in self.ports.keys().copied().filter(|index| !stays(*index)).collect::<Vec<_>>() {
            self.disable_port(index);
            self.ports.remove(&index);
        }
    }

    fn identify_port(&mut self, index: u32, before: u16) {
        let id = self.id;
        let Some(port) = self.ports.get_mut(&index) else { return };
        if port.best.bridge == id && port.best.port == before {
            port.best.port = port.settings.id;
        }
        if port.best.bridge == id && port.settings.id < port.best.port {
            self.designate(index);
            self.select_states();
        }
    }

    fn enable_port(&mut self, index: u32) {
        self.designate(index);
        self.set_state(index, BLOCKING);
        if let Some(port) = self.ports.get_mut(&index) {
            (port.acknowledges, port.pending) = (false, false);
        }
        self.select_states();
    }

    fn disable_port(&mut self, index: u32) {
        self.may_become_root(|tree| {
            tree.designate(index);
            tree.set_state(index, DISABLED);
            if let Some(port) = tree.ports.get_mut(&index) {
                (port.acknowledges, port.pending) = (false, false);
                (port.message_age, port.forward_delay, port.hold) = (None, None, None);
            }
        });
    }

    fn set_state(&mut self, index: u32, state: u8) {
        if let Some(port) = self.ports.get_mut(&index)
            && port.state != state
        {
            port.state = state;
            self.events.push(Event::State(index, state));
        }
    }

    // Changes of the topology, after which stations are forgotten sooner.

    /// Linux: `br_topology_change_detection`.
    fn detect_change(&mut self) {
        if !self.topology_change && !self.detected {
            self.events.push(Event::Change);
        }
        if self.is_root() {
            self.set_change(true);
            self.change = Some(self.now + self.own.forward_delay + self.own.max_age);
        } else if !self.detected {
            self.notify_change();
        }
        self.detected = true;
    }

    /// Linux: `__br_set_topology_change`.
    fn set_change(&mut self, changes: bool) {
        if std::mem::replace(&mut self.topology_change, changes) != changes {
            self.shortened = changes.then_some(2 * self.times.forward_delay);
        }
    }

    /// An ageing time was set, and is shown. Linux: `br_set_ageing_time`.
    pub fn ageing_is_set(&mut self) {
        self.shortened = None;
    }

    /// Tells the root by the port that leads to it, until that is acknowledged. Linux: `br_transmit_tcn`.
    fn notify_change(&mut self) {
        self.sent.extend(self.root_port.map(|port| (port, Bpdu::TopologyChange)));
        self.notification = Some(self.now + self.own.hello);
    }

    // What time does.

    fn timers(&self) -> impl Iterator<Item = u64> {
        let of_ports = self.ports.values().flat_map(|port| [port.message_age, port.forward_delay, port.hold]);
        [self.hello, self.notification, self.change].into_iter().chain(of_ports).flatten()
    }

    /// When there is something to do.
    pub fn due(&self) -> Timer {
        self.timers().min()
    }

    /// When a port goes into its next state, or a change of the topology is over.
    pub fn settles(&self) -> Timer {
        self.ports.values().filter_map(|port| port.forward_delay).chain(self.change).min()
    }

    /// Does what the time has come for.
    pub fn pass(&mut self) {
        let now = self.now;
        if expired(&mut self.hello, now) && self.up {
            self.say_hello();
            self.hello = self.next_hello();
        }
        if expired(&mut self.notification, now) && self.up && !self.is_root() {
            self.notify_change();
        }
        if expired(&mut self.change, now) {
            self.set_change(false);
            self.detected = false;
        }
        for index in self.indices(|_| true) {
            let mut of = |timer: fn(&mut Port) -> &mut Timer| {
                self.ports.get_mut(&index).is_some_and(|port| expired(timer(port), now))
            };
            let [age, delay, hold] = [
                of(|port| &mut port.message_age),
                of(|port| &mut port.forward_delay),
                of(|port| &mut port.hold),
            ];
            if age {
                self.forget(index);
            }
            if delay {
                self.go_on(index);
            }
            if hold && self.ports.get(&index).is_some_and(|port| port.pending) {
                self.transmit(index);
            }
        }
    }

    /// Linux: `br_message_age_timer_expired`.
    fn forget(&mut self, index: u32) {
        if self.ports.get(&index).is_some_and(|port| port.state != DISABLED) {
            self.events.push(Event::Lost(index));
            self.may_become_root(|tree| tree.designate(index));
        }
    }

    /// Linux: `br_forward_delay_timer_expired`.
    fn go_on(&mut self, index: u32) {
        match self.ports.get(&index).map(|port| port.state) {
            Some(LISTENING) => {
                self.set_state(index, LEARNING);
                let next = self.now + self.times.forward_delay;
                if let Some(port) = self.ports.get_mut(&index) {
                    port.forward_delay = Some(next);
                }
            }
            Some(LEARNING) => {
                self.set_state(index, FORWARDING);
                let offers = |port: &Port| port.state != DISABLED && port.best.bridge == self.id;
                if self.ports.values().any(offers) {
                    self.detect_change();
                }
            }
            _ => {}
        }
    }
}
