//! What a bridge says to others on the networks of its ports, and what it hears from them. Linux: `net/bridge/br_stp.c`.

use std::mem::take;

use underpass_netlink::bridge::DISABLED;
use underpass_packet::bpdu::{Bpdu, Configuration, TICKS_PER_SECOND};

use super::{Event, Offer, Times, Tree};

/// What is heard gets older by so much at least at every bridge: `MESSAGE_AGE_INCR` of a kernel of 250 Hz.
const OLDER: u64 = 4;

/// How long a port waits between two configurations: `BR_HOLD_TIME`.
pub(super) const HOLD: u64 = 1000;

fn ticks(milliseconds: u64) -> u16 {
    (milliseconds * TICKS_PER_SECOND / 1000).try_into().unwrap_or(u16::MAX)
}

fn milliseconds(ticks: u16) -> u64 {
    (u64::from(ticks) * 1000).div_ceil(TICKS_PER_SECOND)
}

impl Tree {
    /// Linux: `br_config_bpdu_generation`.
    pub(super) fn say_hello(&mut self) {
        for index in self.indices(|port| port.state != DISABLED && self.is_designated(port)) {
            self.transmit(index);
        }
    }

    /// Linux: `br_transmit_config`.
    pub(super) fn transmit(&mut self, index: u32) {
        let root = self.root_port.filter(|_| !self.is_root()).and_then(|root| self.ports.get(&root));
        let age = root.map_or(0, |root| self.now.saturating_sub(root.born) + OLDER);
        let configuration = Configuration {
            topology_change: self.topology_change,
            acknowledges: false,
            root: self.root,
            root_path_cost: self.root_path_cost,
            bridge: self.id,
            port: 0,
            message_age: ticks(age),
            max_age: ticks(self.times.max_age),
            hello_time: ticks(self.times.hello),
            forward_delay: ticks(self.times.forward_delay),
        };
        let Some(port) = self.ports.get_mut(&index) else { return };
        if port.hold.is_some() {
            port.pending = true;
            return;
        }
        if age < self.times.max_age {
            let (port_id, acknowledges) = (port.settings.id, take(&mut port.acknowledges));
            port.pending = false;
            port.hold = Some(self.now + HOLD);
            let configuration = Configuration { port: port_id, acknowledges, ..configuration };
            self.sent.push((index, Bpdu::Configuration(configuration)));
        }
    }

    /// A port has heard this, or what should have been such a unit. Linux: `br_stp_rcv`.
    pub fn hear(&mut self, index: u32, heard: Option<&Bpdu>) {
        let Some(port) = self.ports.get(&index).filter(|port| self.up && port.state != DISABLED) else {
            return;
        };
        if port.settings.guards {
            self.events.push(Event::Guarded(index));
            self.disable_port(index);
            return;
        }
        match heard {
            None => {}
            Some(Bpdu::Configuration(heard)) if heard.message_age > heard.max_age => {}
            Some(Bpdu::Configuration(heard)) => self.hear_configuration(index, heard),
            Some(Bpdu::TopologyChange) => self.hear_change(index),
        }
    }

    /// Linux: `br_received_config_bpdu`, `br_supersedes_port_info`.
    pub(super) fn hear_configuration(&mut self, index: u32, heard: &Configuration) {
        let (was_root, now, id) = (self.is_root(), self.now, self.id);
        let Some(port) = self.ports.get(&index) else { return };
        let Configuration { root, root_path_cost: cost, bridge, port: from, .. } = *heard;
        let offer = Offer { root, cost, bridge, port: from };
        let way = |offer: &Offer| (offer.root, offer.cost, offer.bridge);
        let supersedes = way(&offer) < way(&port.best)
            || way(&offer) == way(&port.best) && (bridge != id || from <= port.best.port);
        if !supersedes {
            if self.is_designated(port) {
                self.transmit(index);
            }
            return;
        }
        if let Some(port) = self.ports.get_mut(&index) {
            port.best = offer;
            port.born = now.saturating_sub(milliseconds(heard.message_age));
            let left = milliseconds(heard.max_age).saturating_sub(milliseconds(heard.message_age));
            port.message_age = Some(now + left);
        }
        self.select_roles();
        self.select_states();
        if was_root && !self.is_root() {
            self.hello = None;
            if self.detected {
                self.change = None;
                self.notify_change();
            }
        }
        if self.root_port == Some(index) {
            self.times = Times {
                max_age: milliseconds(heard.max_age),
                hello: milliseconds(heard.hello_time),
                forward_delay: milliseconds(heard.forward_delay),
            };
            self.set_change(heard.topology_change);
            self.say_hello();
            if heard.acknowledges {
                self.detected = false;
                self.notification = None;
            }
        }
    }

    /// Linux: `br_received_tcn_bpdu`.
    pub(super) fn hear_change(&mut self, index: u32) {
        if self.ports.get(&index).is_some_and(|port| self.is_designated(port)) {
            self.detect_change();
            if let Some(port) = self.ports.get_mut(&index) {
                port.acknowledges = true;
            }
            self.transmit(index);
        }
    }
}
