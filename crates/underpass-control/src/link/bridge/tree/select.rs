//! Which ports have which role, and the states that follow: the root, the port that leads to it, the networks to which this bridge
//! offers the way, and ports that are blocked. Linux: `net/bridge/br_stp.c`.

use underpass_netlink::bridge::{BLOCKING, DISABLED, FORWARDING, LEARNING, LISTENING};

use super::{Event, Offer, Port, Tree};

impl Tree {
    /// Linux: `br_configuration_update`.
    pub(super) fn select_roles(&mut self) {
        self.select_root();
        for index in self.indices(|port| port.state != DISABLED && self.should_designate(port)) {
            self.designate(index);
        }
    }

    /// Linux: `br_root_selection`, `br_should_become_root_port`.
    pub(super) fn select_root(&mut self) {
        let mut chosen: Option<(Offer, u16, u32)> = None;
        for index in self.indices(|port| port.state != DISABLED && !self.is_designated(port)) {
            let Some(port) = self.ports.get(&index).filter(|port| port.best.root < self.id) else { continue };
            let way = Offer { cost: port.best.cost.wrapping_add(port.settings.cost), ..port.best };
            let offered = (way, port.settings.id, index);
            if chosen.is_some_and(|best| (best.0, best.1) <= (way, offered.1)) {
                continue;
            }
            if port.settings.blocks_root {
                self.block_root(index);
            } else {
                chosen = Some(offered);
            }
        }
        self.root_port = chosen.map(|(.., index)| index);
        (self.root, self.root_path_cost) = chosen.map_or((self.id, 0), |(way, ..)| (way.root, way.cost));
    }

    /// Linux: `br_root_port_block`.
    pub(super) fn block_root(&mut self, index: u32) {
        // It is said once, and not with every hello.
        if self.ports.get(&index).is_some_and(|port| port.state != LISTENING) {
            self.events.push(Event::RootBlocked(index));
        }
        self.set_state(index, LISTENING);
        self.delay(index);
    }

    /// Linux: `br_should_become_designated_port`.
    pub(super) fn should_designate(&self, port: &Port) -> bool {
        let own = self.offer(port);
        self.is_designated(port) || port.best.root != self.root || own < port.best
    }

    /// Linux: `br_become_designated_port`.
    pub(super) fn designate(&mut self, index: u32) {
        let Some(offer) = self.ports.get(&index).map(|port| self.offer(port)) else { return };
        if let Some(port) = self.ports.get_mut(&index) {
            port.best = offer;
        }
    }

    /// Linux: `br_port_state_selection`.
    pub(super) fn select_states(&mut self) {
        for index in self.indices(|port| port.state != DISABLED) {
            let Some(port) = self.ports.get_mut(&index) else { continue };
            let designated = port.best.bridge == self.id && port.best.port == port.settings.id;
            let leads_to_root = self.root_port == Some(index);
            if designated && !leads_to_root {
                port.message_age = None;
            } else {
                (port.pending, port.acknowledges) = (false, false);
            }
            if designated || leads_to_root {
                self.let_forward(index);
            } else {
                self.block(index);
            }
        }
    }

    /// Linux: `br_make_blocking`.
    pub(super) fn block(&mut self, index: u32) {
        match self.ports.get(&index).map(|port| port.state) {
            None | Some(DISABLED | BLOCKING) => return,
            Some(FORWARDING | LEARNING) => self.detect_change(),
            Some(_) => {}
        }
        self.set_state(index, BLOCKING);
        if let Some(port) = self.ports.get_mut(&index) {
            port.forward_delay = None;
        }
    }

    /// Linux: `br_make_forwarding`.
    pub(super) fn let_forward(&mut self, index: u32) {
        if self.ports.get(&index).is_none_or(|port| port.state != BLOCKING) {
            return;
        }
        if self.times.forward_delay == 0 {
            self.set_state(index, FORWARDING);
            self.detect_change();
        } else {
            self.set_state(index, LISTENING);
        }
        self.delay(index);
    }

    /// A port waits for its next state.
    pub(super) fn delay(&mut self, index: u32) {
        let next = (self.times.forward_delay > 0).then_some(self.now + self.times.forward_delay);
        if let Some(port) = self.ports.get_mut(&index) {
            port.forward_delay = next;
        }
    }
}
