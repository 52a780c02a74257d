//! Compiled routes.

use std::net::IpAddr;

use super::{NOWHERE, Writer};
use crate::tables::{Action, ActionId};

impl Writer {
    /// Adds a compiled route. Beyond the room for them the id names nothing.
    pub fn add_action(&mut self, action: Action) -> ActionId {
        let Some((id, _)) = self.actions.take(&self.retirer) else { return ActionId(NOWHERE) };
        self.replace_action(id, Some(action));
        ActionId(id)
    }

    /// Puts another object in the place of a compiled route. Does nothing if the id names none.
    pub fn set_action(&mut self, id: ActionId, action: Action) {
        if self.tables.actions.peek(id.0, &self.retirer).is_some() {
            self.replace_action(id.0, Some(action));
        }
    }

    /// Removes a compiled route, if the id names one.
    pub fn remove_action(&mut self, id: ActionId) {
        if self.replace_action(id.0, None) {
            self.set_source(id, None);
            self.actions.give(id.0, &self.retirer);
        }
    }

    /// Says the source of what the router itself sends by a compiled route; `None`: an address of the link.
    pub fn set_source(&mut self, id: ActionId, source: Option<IpAddr>) {
        // Most have none, and no memory for it.
        if source.as_ref() != self.tables.sources.peek(id.0, &self.retirer) {
            self.tables.sources.replace(id.0, source, &mut self.retirer);
        }
    }

    fn replace_action(&mut self, id: u32, action: Option<Action>) -> bool {
        self.tables.set_lead(id, action.as_ref());
        let before = self.tables.actions.replace(id, action, &mut self.retirer);
        self.record_action(id);
        before
    }
}
