//! Forwarding tables and labels.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::{NOWHERE, Writer};
use crate::lpm::{Edit, Lpm};
use crate::tables::{ActionId, Fib4Id, Fib6Id, LabelAction, LabelNextHopsId};

impl Writer {
    /// Adds an empty forwarding table of IPv4.
    pub fn add_fib4(&mut self) -> Fib4Id {
        let Some((id, _)) = self.fibs4.take(&self.retirer) else { return Fib4Id(NOWHERE) };
        let fib = Lpm::new(&self.arena);
        self.tables.fibs4.replace(id, Some(fib), &mut self.retirer);
        Fib4Id(id)
    }

    /// Removes a forwarding table of IPv4 with its routes, if the id names one.
    pub fn remove_fib4(&mut self, id: Fib4Id) {
        let Some(fib) = self.tables.fibs4.peek(id.0, &self.retirer) else { return };
        let blocks = fib.blocks();
        self.tables.fibs4.replace(id.0, None, &mut self.retirer);
        self.tables.has_changed4();
        blocks.into_iter().for_each(|(block, words)| self.arena.release(block, words, &self.retirer));
        self.fibs4.give(id.0, &self.retirer);
    }

    /// Adds an empty forwarding table of IPv6.
    pub fn add_fib6(&mut self) -> Fib6Id {
        let Some((id, _)) = self.fibs6.take(&self.retirer) else { return Fib6Id(NOWHERE) };
        let fib = Lpm::new(&self.arena);
        self.tables.fibs6.replace(id, Some(fib), &mut self.retirer);
        Fib6Id(id)
    }

    /// Removes a forwarding table of IPv6 with its routes, if the id names one.
    pub fn remove_fib6(&mut self, id: Fib6Id) {
        let Some(fib) = self.tables.fibs6.peek(id.0, &self.retirer) else { return };
        let blocks = fib.blocks();
        self.tables.fibs6.replace(id.0, None, &mut self.retirer);
        self.tables.has_changed6();
        blocks.into_iter().for_each(|(block, words)| self.arena.release(block, words, &self.retirer));
        self.fibs6.give(id.0, &self.retirer);
    }

    /// What a packet with this label is to go through from now on, if through anything. Labels above
    /// [`MAX_LABEL`](underpass_packet::mpls::MAX_LABEL) lead nowhere.
    pub fn set_label(&mut self, label: u32, action: Option<LabelAction>) {
        self.tables.labels.set(label, action);
        if let Some(records) = &self.records {
            records.set_label(label, action);
        }
    }

    /// Says whether packets and their labels have one traffic class: [`LabelTable::is_uniform`](super::LabelTable).
    pub fn set_uniform_classes(&mut self, uniform: bool) {
        self.tables.labels.set_uniform(uniform);
        self.record_common();
    }

    /// What a packet with this label goes through.
    pub fn label(&self, label: u32) -> Option<LabelAction> {
        self.tables.labels.get(label)
    }

    /// Adds several ways of a label, at most [`MAX_LABEL_WAYS`](super::MAX_LABEL_WAYS), with their weights. Beyond
    /// the room for them the id leads nowhere.
    pub fn add_label_next_hops(&mut self, ways: &[(u16, LabelAction)]) -> LabelNextHopsId {
        self.tables.labels.add_ways(&mut self.arena, ways)
    }

    /// Removes ways that no label leads to any more.
    pub fn remove_label_next_hops(&mut self, ways: LabelNextHopsId) {
        self.tables.labels.remove_ways(&mut self.arena, ways, &self.retirer);
    }

    /// Adds or changes the route to the first `len` bits of `prefix`, and returns the action that it
    /// had. Does nothing if there is no such table, or `len` is above 32.
    pub fn insert4(&mut self, fib: Fib4Id, prefix: Ipv4Addr, len: u8, action: ActionId) -> Option<ActionId> {
        let table = self.tables.fibs4.peek(fib.0, &self.retirer)?;
        let mut edit = Edit { table, arena: &mut self.arena, retirer: &self.retirer };
        let before = edit.insert(prefix.to_bits(), len, action.0).map(ActionId);
        self.tables.has_changed4();
        self.follow_programs();
        before
    }

    /// Removes the route to the first `len` bits of `prefix`, and returns the action that it had.
    pub fn remove4(&mut self, fib: Fib4Id, prefix: Ipv4Addr, len: u8) -> Option<ActionId> {
        let table = self.tables.fibs4.peek(fib.0, &self.retirer)?;
        let mut edit = Edit { table, arena: &mut self.arena, retirer: &self.retirer };
        let before = edit.remove(prefix.to_bits(), len).map(ActionId);
        self.tables.has_changed4();
        self.follow_programs();
        before
    }

    /// The action of the longest prefix that covers `address`.
    pub fn lookup4(&self, fib: Fib4Id, address: Ipv4Addr) -> Option<ActionId> {
        let fib = self.tables.fibs4.peek(fib.0, &self.retirer)?;
        fib.peek_longest(address.to_bits()).map(ActionId)
    }

    /// The action of the route to the first `len` bits of `prefix`.
    pub fn exact4(&self, fib: Fib4Id, prefix: Ipv4Addr, len: u8) -> Option<ActionId> {
        let fib = self.tables.fibs4.peek(fib.0, &self.retirer)?;
        fib.peek_exact(prefix.to_bits(), len).map(ActionId)
    }

    /// Adds or changes the route to the first `len` bits of `prefix`, and returns the action that it
    /// had. Does nothing if there is no such table, or `len` is above 128.
    pub fn insert6(&mut self, fib: Fib6Id, prefix: Ipv6Addr, len: u8, action: ActionId) -> Option<ActionId> {
        let table = self.tables.fibs6.peek(fib.0, &self.retirer)?;
        let mut edit = Edit { table, arena: &mut self.arena, retirer: &self.retirer };
        let before = edit.insert(prefix.to_bits(), len, action.0).map(ActionId);
        self.tables.has_changed6();
        self.follow_programs();
        before
    }

    /// Removes the route to the first `len` bits of `prefix`, and returns the action that it had.
    pub fn remove6(&mut self, fib: Fib6Id, prefix: Ipv6Addr, len: u8) -> Option<ActionId> {
        let table = self.tables.fibs6.peek(fib.0, &self.retirer)?;
        let mut edit = Edit { table, arena: &mut self.arena, retirer: &self.retirer };
        let before = edit.remove(prefix.to_bits(), len).map(ActionId);
        self.tables.has_changed6();
        self.follow_programs();
        before
    }

    /// The action of the longest prefix that covers `address`.
    pub fn lookup6(&self, fib: Fib6Id, address: Ipv6Addr) -> Option<ActionId> {
        let fib = self.tables.fibs6.peek(fib.0, &self.retirer)?;
        fib.peek_longest(address.to_bits()).map(ActionId)
    }

    /// The action of the route to the first `len` bits of `prefix`.
    pub fn exact6(&self, fib: Fib6Id, prefix: Ipv6Addr, len: u8) -> Option<ActionId> {
        let fib = self.tables.fibs6.peek(fib.0, &self.retirer)?;
        fib.peek_exact(prefix.to_bits(), len).map(ActionId)
    }
}
