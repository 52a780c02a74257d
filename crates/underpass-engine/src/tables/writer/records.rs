//! What programs in the kernel read, brought up to date with what they are made of.

use super::Writer;
use crate::counters::Totals;
use crate::drops::DropReason;
use crate::in_kernel::links::{Beside, changed_above};
use crate::in_kernel::records::{MissCause, Places};
use crate::in_kernel::region::Region;
use crate::qos::SharedBucket;
use crate::tables::{Changed, Hook, HookId, Link, LinkId, LookupId, NextHopId};

/// How much may wait for programs to move on before they are waited for: a wait takes milliseconds, and a route that
/// changes often leaves a node behind each time.
const PATIENCE: usize = 1 << 14;

impl Writer {
    /// Where programs find what they read. `None`: there are none.
    pub fn places(&self) -> Option<Places> {
        let narrow = self.tables.tunnels.exceptions.any_in_kernel();
        self.records.as_ref().map(|records| Places { narrow, ..records.places(&self.arena) })
    }

    /// Whether programs know an interface: there are numbers beyond those that they know.
    pub fn programs_know(&self, ifindex: u32) -> bool {
        self.records.as_ref().is_some_and(|records| records.knows(ifindex))
    }

    /// How many packets programs gave to workers for a cause.
    pub fn misses(&self, cause: MissCause) -> u64 {
        self.records.as_ref().map_or(0, |records| records.counters.misses(cause))
    }

    /// What became of the packets that programs decided on by themselves.
    pub fn totals_of_programs(&self) -> Totals {
        self.records.as_ref().map_or(Totals::default(), |records| records.counters.totals())
    }

    /// How many of them were dropped for a reason.
    pub fn dropped_by_programs(&self, reason: DropReason) -> u64 {
        self.records.as_ref().map_or(0, |records| records.counters.dropped(reason))
    }

    pub(super) fn record_next_hop(&mut self, NextHopId(id): NextHopId) {
        if let Some(records) = &mut self.records {
            records.set_next_hop(NextHopId(id), self.tables.next_hops.peek(id, &self.retirer), &self.retirer);
        }
    }

    pub(super) fn record_lookup(&mut self, LookupId(id): LookupId) {
        let Some(records) = &mut self.records else { return };
        let (tables, retirer) = (&self.tables, &self.retirer);
        let root4 = |fib| tables.fibs4.peek(fib, retirer).map_or(0, |fib| fib.root_in_kernel());
        let root6 = |fib| tables.fibs6.peek(fib, retirer).map_or(0, |fib| fib.root_in_kernel());
        records.set_lookup(LookupId(id), tables.lookups.peek(id, retirer), (&root4, &root6), retirer);
    }

    pub(super) fn record_action(&mut self, id: u32) {
        if let Some(records) = &mut self.records {
            records.set_action(id, self.tables.actions.peek(id, &self.retirer), &self.retirer);
        }
    }

    /// `before`: the index of the interface that the link was; 0: it was none.
    pub(super) fn record_link(&mut self, LinkId(id): LinkId, before: u32) {
        if let Some(records) = &mut self.records {
            let link = self.tables.links.peek(id, &self.retirer);
            let peek = |LinkId(id)| self.tables.links.peek(id, &self.retirer);
            let lower = link.and_then(|link| link.vlan.as_ref()).and_then(|vlan| peek(vlan.lower));
            let port = link.and_then(|link| link.bridge_port.as_ref());
            let bridge = port.and_then(|port| peek(port.bridge)?.bridge.as_deref());
            records.set_link(LinkId(id), link, (Beside { lower, bridge }, before), &self.retirer);
        }
    }

    /// The memory that programs in the kernel read, if there are any.
    pub fn region(&self) -> Option<&Region> {
        self.records.as_ref().map(|records| &records.region)
    }

    /// The VLAN devices and the ports of bridges that programs know otherwise when a link takes the place of another.
    pub(super) fn changed_above(&self, old: Option<&Link>, new: Option<&Link>) -> Vec<LinkId> {
        if self.records.is_some() { changed_above(old, new) } else { Vec::new() }
    }

    /// Brings up to date what programs know of VLAN devices and ports of bridges.
    pub(super) fn record_above(&mut self, above: Vec<LinkId>) {
        for id in above {
            let ifindex = self.tables.links.peek(id.0, &self.retirer).map(|link| link.ifindex);
            ifindex.into_iter().for_each(|ifindex| self.record_link(id, ifindex));
        }
    }

    /// Follows what has changed of tunnels.
    pub(super) fn record_tunnels(&mut self) {
        let changed = self.tunnels_of_links.take_changed();
        let Some(records) = &mut self.records else { return };
        let (tunnels, retirer) = (&self.tables.tunnels, &self.retirer);
        for changed in changed {
            match changed {
                Changed::Tunnel(id) => records.set_tunnel(id, tunnels.tunnels.peek(id, retirer), retirer),
                Changed::End(place) => records.set_end(place, tunnels.end_at(place, retirer), retirer),
            }
        }
    }

    /// Follows what takes datagrams of a UDP port.
    pub(super) fn record_fou_port(&mut self, port: u16) {
        if let Some(records) = &mut self.records {
            records.set_fou_port(port, self.tables.tunnels.only_port(port, &self.retirer), &self.retirer);
        }
    }

    /// The bucket of an action that programs have too.
    pub(super) fn bucket(&self, id: u32) -> Option<SharedBucket> {
        self.records.as_ref()?.bucket(id)
    }

    pub(super) fn record_tc_action(&mut self, id: u32) {
        if let Some(records) = &mut self.records {
            let action = self.tables.tc_actions.peek(id, &self.retirer);
            records.set_tc_action(id, action, &self.retirer);
        }
    }

    pub(crate) fn record_hook(&mut self, id: HookId, hook: Option<&Hook>) {
        if let Some(records) = &mut self.records {
            records.set_hook(id, hook, &self.retirer);
        }
    }

    /// Says what the workers' clock lies behind that of the machine, `CLOCK_MONOTONIC`, in nanoseconds.
    pub fn set_clock(&self, behind: u64) {
        if let Some(records) = &self.records {
            records.set_clock(behind);
        }
    }

    /// Brings up to date what is so for all packets.
    pub(crate) fn record_common(&self) {
        if let Some(records) = &self.records {
            records.set_plain_bits4(self.tables.plain_bits4());
            records.set_tunnels_aside(self.tables.reads_input());
            records.set_kept_of_labels(self.tables.labels.kept());
        }
    }

    /// Has workers get all packets from programs, or no longer.
    pub fn set_aside(&self, aside: bool) {
        if let Some(records) = &self.records {
            records.set_aside(aside);
        }
    }

    /// Waits for programs if much waits for them.
    pub(super) fn follow_programs(&mut self) {
        if self.waits_for_programs() > PATIENCE {
            self.leave_programs();
            self.reclaim();
        }
    }

    fn waits_for_programs(&self) -> usize {
        let records = self.records.as_ref();
        records.map_or(0, |records| self.retirer.waiting() + records.waiting() + self.arena.waiting())
    }

    /// Waits until programs have left what was there before, if anything waits for that: it is free at the next
    /// [`Writer::reclaim`]. Takes milliseconds.
    pub fn leave_programs(&mut self) {
        if self.waits_for_programs() > 0
            && let Some(records) = &self.records
        {
            // Before they are waited for, so that the epoch that they are in then is one in which all of it was unlinked.
            self.retirer.advance();
            records.wait();
            let _ = self.in_programs.enter();
        }
    }
}
