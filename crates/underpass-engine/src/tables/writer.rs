//! The control thread's handle on the tables.

mod action;
mod counted;
mod fib;
mod records;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::NOWHERE;
use super::{
    FouPort, FouPortId, IoamNode, Link, LinkId, Lookup, LookupId, NextHop, NextHopId, QdiscIds, Tables,
    TcAction, TcActionId, Tunnel, TunnelId, TunnelsOfLinks,
};
use crate::buffer::PortId;
use crate::counters::{Count, CounterId, Counters};
use crate::hmac::Keys;
use crate::in_kernel::Programs;
use crate::in_kernel::records::{NODE_BITS, Records};
use crate::limiter::Nanos;
use crate::lpm::Arena;
use crate::publish::{self, Guard, Ids, Retirer};
use crate::qos::StoredAction;
use counted::LinkBase;

/// A worker's access to the tables, and its counters.
pub struct Reader {
    reader: publish::Reader,
    counters: Arc<Counters>,
    number: usize,
}

impl Reader {
    /// Begins a burst: what is read from the tables stays valid until the guard is dropped.
    #[inline]
    pub fn enter(&mut self) -> Guard<'_> {
        self.reader.enter()
    }

    /// Ends the last burst without beginning one: an idle worker holds back no memory.
    #[inline]
    pub fn idle(&mut self) {
        self.reader.idle();
    }

    /// The number of the worker, from 0 on.
    pub(crate) fn number(&self) -> usize {
        self.number
    }

    /// The worker's own counters.
    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }
}

/// The one who changes the tables.
///
/// What is replaced or removed stays in memory, and its id unused, until every worker has begun a new
/// burst or become idle and [`Writer::reclaim`] has noticed. The ids are the caller's to keep apart:
/// an object that others still name must not be removed before them; if it is, packets that reach its
/// id find nothing there and are dropped.
pub struct Writer {
    pub(super) tables: Arc<Tables>,
    pub(super) retirer: Retirer,
    /// The nodes of all forwarding tables.
    arena: Arena,
    /// What programs in the kernel read, and what they have counted.
    records: Option<Records>,
    /// Programs in the kernel, as one more reader, which is where they were when they were last waited for.
    in_programs: publish::Reader,
    pub(super) counters: Vec<Arc<Counters>>,
    links: Ids,
    actions: Ids,
    next_hops: Ids,
    lookups: Ids,
    fibs4: Ids,
    fibs6: Ids,
    counter_ids: Ids,
    /// Whether a counter has an owner.
    counters_used: Vec<bool>,
    /// What counters that have been another's before had counted when they were given away.
    counter_bases: HashMap<CounterId, Count>,
    /// What a link's counters showed when the link was added.
    link_bases: BTreeMap<LinkId, LinkBase>,
    tunnels: Ids,
    tunnels_of_links: TunnelsOfLinks,
    fou_ports: Ids,
    pub(super) hooks: Ids,
    tc_actions: Ids,
    tc_counters: Ids,
    pub(super) qdiscs: QdiscIds,
}

/// Most counters: what [`Counters`] has room for.
const COUNTERS: u32 = 1 << 24;

/// Words reserved for the nodes of forwarding tables, as a power of two: 16 GiB of addresses, of which
/// as much is memory as there are nodes.
const ARENA_BITS: u32 = 31;

macro_rules! objects {
    (
        $($what:literal $slab:ident: $object:ident, $id:ident, $add:ident, $set:ident, $remove:ident, $record:ident;)+
    ) => {$(
        #[doc = concat!("Adds ", $what, ". Beyond the room for them the id names nothing.")]
        pub fn $add(&mut self, object: $object) -> $id {
            let Some((id, _)) = self.$slab.take(&self.retirer) else { return $id(NOWHERE) };
            self.tables.$slab.replace(id, Some(object.into()), &mut self.retirer);
            self.$record($id(id));
            $id(id)
        }

        #[doc = concat!("Puts another object in the place of ", $what, ". Does nothing if the id names none.")]
        pub fn $set(&mut self, id: $id, object: $object) {
            if self.tables.$slab.peek(id.0, &self.retirer).is_some() {
                self.tables.$slab.replace(id.0, Some(object.into()), &mut self.retirer);
                self.$record(id);
                self.tables.has_changed6();
            }
        }

        #[doc = concat!("Removes ", $what, ", if the id names one.")]
        pub fn $remove(&mut self, id: $id) {
            if self.tables.$slab.replace(id.0, None, &mut self.retirer) {
                self.$record(id);
                self.tables.has_changed6();
                self.$slab.give(id.0, &self.retirer);
            }
        }
    )+};
}

impl Writer {
    /// Empty tables for so many workers, and what each of these needs.
    pub fn new(workers: usize) -> (Self, Arc<Tables>, Vec<Reader>) {
        let (writer, tables, readers, _) = Self::watched(workers, 0, None);
        (writer, tables, readers)
    }

    /// The same, and what so many need who only tell what ids in the tables stand for: they count nothing, and have no
    /// part in the sums. With programs in the kernel which read the tables too, as far as their region has room.
    pub fn watched(
        workers: usize,
        watchers: usize,
        programs: Option<Programs>,
    ) -> (Self, Arc<Tables>, Vec<Reader>, Vec<Reader>) {
        let (retirer, mut readers) = publish::domain(workers + watchers + 1);
        let nodes = programs.as_ref().and_then(|programs| Arena::within(&programs.region, NODE_BITS));
        let records = programs.filter(|_| nodes.is_some()).and_then(Records::new);
        let arena = nodes.unwrap_or_else(|| Arena::new(ARENA_BITS));
        let tables = Arc::new(Tables::new(&retirer, &arena));
        let mut in_programs = readers.remove(workers + watchers);
        if records.is_some() {
            let _ = in_programs.enter();
        }
        let reader = |(number, reader)| Reader { reader, counters: Arc::default(), number };
        let mut readers: Vec<Reader> = readers.into_iter().enumerate().map(reader).collect();
        let watchers = readers.split_off(workers);
        let writer = Self {
            records,
            in_programs,
            counters: readers.iter().map(|reader| reader.counters.clone()).collect(),
            links: Ids::new(tables.links.capacity()),
            actions: Ids::new(tables.actions.capacity()),
            next_hops: Ids::new(tables.next_hops.capacity()),
            lookups: Ids::new(tables.lookups.capacity()),
            fibs4: Ids::new(tables.fibs4.capacity()),
            fibs6: Ids::new(tables.fibs6.capacity()),
            counter_ids: Ids::new(COUNTERS),
            counters_used: Vec::new(),
            counter_bases: HashMap::new(),
            link_bases: BTreeMap::new(),
            tunnels: Ids::new(tables.tunnels.tunnels.capacity()),
            tunnels_of_links: TunnelsOfLinks::default(),
            fou_ports: Ids::new(tables.tunnels.ports.capacity()),
            hooks: Ids::new(tables.hooks.capacity()),
            tc_actions: Ids::new(tables.tc_actions.capacity()),
            tc_counters: Ids::new(COUNTERS),
            qdiscs: QdiscIds::new(&tables),
            tables: tables.clone(),
            retirer,
            arena,
        };
        writer.record_common();
        (writer, tables, readers, watchers)
    }

    objects! {
        "a next hop" next_hops: NextHop, NextHopId, add_next_hop, set_next_hop, remove_next_hop, record_next_hop;
        "an order of tables" lookups: Lookup, LookupId, add_lookup, set_lookup, remove_lookup, record_lookup;
    }

    /// Puts other keys of HMAC TLVs in the place of those that there are.
    pub fn set_hmac_keys(&mut self, keys: Keys) {
        self.tables.keys.replace(0, Some(keys), &mut self.retirer);
    }

    /// Says what the router is in IOAM traces.
    pub fn set_ioam(&mut self, node: IoamNode) {
        self.tables.ioam.replace(0, Some(node), &mut self.retirer);
    }

    /// Adds a link, which takes over its port.
    pub fn add_link(&mut self, link: Link) -> LinkId {
        let Some((id, _)) = self.links.take(&self.retirer) else { return LinkId(NOWHERE) };
        let (port, host) = (link.port, link.host_port());
        let id = LinkId(id);
        self.begin_link_counts(id);
        self.tables.link_changed(None, Some(&link));
        let above = self.changed_above(None, Some(&link));
        self.tables.links.replace(id.0, Some(link), &mut self.retirer);
        self.record_link(id, 0);
        self.record_above(above);
        self.point_ports(port, host, id.0);
        id
    }

    /// Changes a link, and moves its port with it. Does nothing if the id names none.
    pub fn set_link(&mut self, id: LinkId, link: Link) {
        let Some(old) = self.tables.links.peek(id.0, &self.retirer) else { return };
        if old.port != link.port || old.host_port() != link.host_port() {
            self.release_ports(old, id.0);
        }
        let (port, host, ifindex) = (link.port, link.host_port(), old.ifindex);
        self.tables.link_changed(Some(old), Some(&link));
        let above = self.changed_above(Some(old), Some(&link));
        self.tables.tunnels.link_changed(id, Some(&link), &self.tunnels_of_links, &mut self.retirer);
        self.tables.links.replace(id.0, Some(link), &mut self.retirer);
        self.record_link(id, ifindex);
        self.record_above(above);
        self.record_tunnels();
        self.point_ports(port, host, id.0);
    }

    /// Removes a link, if the id names one. Its port then has none.
    pub fn remove_link(&mut self, id: LinkId) {
        let Some(old) = self.tables.links.peek(id.0, &self.retirer) else { return };
        self.release_ports(old, id.0);
        let ifindex = old.ifindex;
        self.tables.link_changed(Some(old), None);
        let above = self.changed_above(Some(old), None);
        self.tables.tunnels.link_changed(id, None, &self.tunnels_of_links, &mut self.retirer);
        self.tables.links.replace(id.0, None, &mut self.retirer);
        self.record_link(id, ifindex);
        self.record_above(above);
        self.record_tunnels();
        self.links.give(id.0, &self.retirer);
    }

    /// Adds a tunnel, whose link is there. Beyond the room for tunnels the id names nothing.
    pub fn add_tunnel(&mut self, tunnel: Tunnel) -> TunnelId {
        let Some((id, _)) = self.tunnels.take(&self.retirer) else { return TunnelId(NOWHERE) };
        self.put_tunnel(id, Some(tunnel));
        TunnelId(id)
    }

    /// Changes a tunnel. It keeps its sequence numbers. Does nothing if the id names none.
    pub fn set_tunnel(&mut self, id: TunnelId, tunnel: Tunnel) {
        if self.tables.tunnels.tunnels.peek(id.0, &self.retirer).is_some() {
            self.put_tunnel(id.0, Some(tunnel));
        }
    }

    /// Removes a tunnel, if the id names one. Its link stays.
    pub fn remove_tunnel(&mut self, id: TunnelId) {
        if self.put_tunnel(id.0, None) {
            self.tunnels.give(id.0, &self.retirer);
        }
    }

    fn put_tunnel(&mut self, id: u32, tunnel: Option<Tunnel>) -> bool {
        let tables = Arc::clone(&self.tables);
        // Copied, as the retirer is needed to look at the link and to put the tunnel in its place.
        let link =
            tunnel.as_ref().and_then(|tunnel| tables.links.peek(tunnel.link.0, &self.retirer)).cloned();
        let next_hop = tunnel.as_ref().and_then(|tunnel| tunnel.via.resolved);
        let next_hop = next_hop.and_then(|id| tables.next_hops.peek(id.0, &self.retirer));
        let locked = next_hop.is_some_and(|next_hop| next_hop.locked);
        let tunnel = tunnel.map(|tunnel| (tunnel, (link.as_ref(), locked)));
        let before = tables.tunnels.put(id, tunnel, &mut self.tunnels_of_links, &mut self.retirer);
        self.record_tunnels();
        self.tables.has_changed4();
        before
    }

    /// Says which of the protocols of packets inside others the host beside the router may take where no tunnel does:
    /// the bits of [`inside_bit`](super::inside_bit). The senders of others hear that nobody does.
    pub fn set_host_takes(&self, protocols: u32) {
        self.tables.tunnels.set_host(protocols);
    }

    /// Adds a port that takes UDP datagrams with packets inside. Beyond the room for ports the id names nothing.
    pub fn add_fou_port(&mut self, port: FouPort) -> FouPortId {
        let Some((id, _)) = self.fou_ports.take(&self.retirer) else { return FouPortId(NOWHERE) };
        self.tables.tunnels.put_port(id, Some(port), &mut self.retirer);
        self.record_fou_port(port.port);
        FouPortId(id)
    }

    /// Changes such a port. Does nothing if the id names none.
    pub fn set_fou_port(&mut self, id: FouPortId, port: FouPort) {
        if let Some(before) = self.tables.tunnels.ports.peek(id.0, &self.retirer).map(|fou| fou.port) {
            self.tables.tunnels.put_port(id.0, Some(port), &mut self.retirer);
            self.record_fou_port(before);
            self.record_fou_port(port.port);
        }
    }

    /// Removes such a port, if the id names one.
    pub fn remove_fou_port(&mut self, id: FouPortId) {
        let before = self.tables.tunnels.ports.peek(id.0, &self.retirer).map(|fou| fou.port);
        if self.tables.tunnels.put_port(id.0, None, &mut self.retirer) {
            self.fou_ports.give(id.0, &self.retirer);
        }
        before.into_iter().for_each(|port| self.record_fou_port(port));
    }

    /// Adds an action of traffic control. Beyond the room for them the id names nothing.
    pub fn add_tc_action(&mut self, action: TcAction) -> TcActionId {
        let Some((id, _)) = self.tc_actions.take(&self.retirer) else { return TcActionId(NOWHERE) };
        let action = StoredAction::new(action, self.counters.len(), self.bucket(id));
        self.replace_tc_action(id, Some(action));
        TcActionId(id)
    }

    /// Changes an action of traffic control; buckets are full then. Does nothing if the id names none.
    pub fn set_tc_action(&mut self, id: TcActionId, action: TcAction) {
        if let Some(old) = self.tables.tc_actions.peek(id.0, &self.retirer) {
            let action = old.changed(action, self.counters.len(), self.bucket(id.0));
            self.replace_tc_action(id.0, Some(action));
        }
    }

    /// Removes an action of traffic control, if the id names one.
    pub fn remove_tc_action(&mut self, id: TcActionId) {
        if self.replace_tc_action(id.0, None) {
            self.tc_actions.give(id.0, &self.retirer);
        }
    }

    fn replace_tc_action(&mut self, id: u32, action: Option<StoredAction>) -> bool {
        let sets =
            |action: Option<&StoredAction>| action.is_some_and(|action| action.config.kind.sets_priority());
        let old = sets(self.tables.tc_actions.peek(id, &self.retirer));
        self.tables.priorities.replace_writer(old, sets(action.as_ref()));
        let replaced = self.tables.tc_actions.replace(id, action, &mut self.retirer);
        self.record_tc_action(id);
        replaced
    }

    /// What the estimator of an action says at `now`, the time of the workers: bytes and packets a second.
    /// `None`: it has none.
    pub fn tc_rate(&self, id: TcActionId, now: Nanos) -> Option<(u64, u64)> {
        self.tables.tc_actions.peek(id.0, &self.retirer)?.estimated(now)
    }

    fn point_ports(&self, port: Option<PortId>, host: Option<PortId>, link: u32) {
        if let Some(slot) = port.and_then(|port| self.tables.ports.get(usize::from(port.0))) {
            slot.store(link + 1, Relaxed);
        }
        if let Some(port) = host
            && let Some(slot) = self.tables.host_ports.get_or_init(super::no_ports).get(usize::from(port.0))
        {
            slot.store(link + 1, Relaxed);
        }
    }

    fn release_ports(&self, of: &Link, link: u32) {
        let slot = of.port.and_then(|port| self.tables.ports.get(usize::from(port.0)));
        let host = of.host_port().and_then(|port| self.tables.host_ports.get()?.get(usize::from(port.0)));
        for slot in slot.into_iter().chain(host).filter(|slot| slot.load(Relaxed) == link + 1) {
            slot.store(0, Relaxed);
        }
    }

    /// How many workers read the tables.
    pub fn workers(&self) -> usize {
        self.counters.len()
    }

    /// Frees what no worker can hold any more, and no program since [`Writer::leave_programs`]. To be called now and then;
    /// never waits.
    pub fn reclaim(&mut self) {
        self.retirer.reclaim();
        self.arena.reclaim(&self.retirer);
        if let Some(records) = &mut self.records {
            records.reclaim(&self.retirer);
        }
    }

    /// Whether there is memory for another route. If not, inserting one does nothing.
    pub fn has_room(&self) -> bool {
        self.arena.has_room()
    }

    /// Bytes that the nodes of all forwarding tables take.
    pub fn route_bytes(&self) -> usize {
        self.arena.used()
    }

    /// How many replaced or removed objects still wait for a worker.
    pub fn waiting(&self) -> usize {
        self.retirer.waiting()
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

    use super::*;
    use crate::tables::{Action, ActionId, Discard, Fib4Id, FouPayload};

    fn link(port: Option<u16>) -> Link {
        Link {
            ifindex: 2,
            port: port.map(PortId),
            up: true,
            mac: [2, 0, 0, 0, 0, 1],
            mtu: 1500,
            lookup: LookupId(0),
            forward4: true,
            forward6: true,
            rpl: true,
            seg6: true,
            ..Link::default()
        }
    }

    #[test]
    fn a_port_leads_to_its_link() {
        let (mut writer, tables, mut readers) = Writer::new(1);
        let guard = readers[0].enter();
        let first = writer.add_link(link(Some(3)));
        assert_eq!(tables.port_link(PortId(3), &guard).map(|(id, _)| id), Some(first));
        let second = writer.add_link(link(Some(3)));
        writer.remove_link(first);
        assert_eq!(tables.port_link(PortId(3), &guard).map(|(id, _)| id), Some(second));
        writer.set_link(second, link(Some(65535)));
        assert!(tables.port_link(PortId(3), &guard).is_none());
        assert_eq!(tables.port_link(PortId(65535), &guard).map(|(id, _)| id), Some(second));
        writer.remove_link(second);
        assert!(tables.port_link(PortId(65535), &guard).is_none());
        assert!(tables.link(second, &guard).is_none());
    }

    #[test]
    fn ids_are_used_again_only_after_every_worker_has_moved_on() {
        let (mut writer, tables, mut readers) = Writer::new(2);
        let action = writer.add_action(Action::Local);
        let guard = readers[0].enter();
        let held = tables.action(action, &guard).unwrap();
        writer.remove_action(action);
        writer.remove_action(action);
        writer.reclaim();
        assert_eq!(*held, Action::Local);
        assert!(tables.action(action, &guard).is_none());
        let other = writer.add_action(Action::Discard(Discard::Prohibit));
        assert_ne!(other, action);
        assert_eq!(writer.waiting(), 1);
        readers[0].idle();
        writer.reclaim();
        assert_eq!(writer.waiting(), 0);
        assert_eq!(writer.add_action(Action::Local), action);
        assert_ne!(writer.add_action(Action::Local), action);
    }

    #[test]
    fn an_id_that_names_nothing_cannot_be_set() {
        let (mut writer, tables, mut readers) = Writer::new(1);
        writer.set_action(ActionId(5), Action::Local);
        writer.set_action(ActionId(NOWHERE), Action::Local);
        writer.set_link(LinkId(5), link(Some(1)));
        let guard = readers[0].enter();
        assert!(tables.action(ActionId(5), &guard).is_none());
        assert!(tables.action(ActionId(NOWHERE), &guard).is_none());
        assert!(tables.port_link(PortId(1), &guard).is_none());
        assert!(tables.fib4(Fib4Id(NOWHERE), &guard).is_none());
    }

    #[test]
    fn routes_of_a_table() {
        let (mut writer, tables, mut readers) = Writer::new(1);
        let (fib4, fib6) = (writer.add_fib4(), writer.add_fib6());
        let prefix4 = Ipv4Addr::new(10, 1, 0, 0);
        assert_eq!(writer.insert4(fib4, prefix4, 16, ActionId(1)), None);
        assert_eq!(writer.insert4(fib4, prefix4, 16, ActionId(2)), Some(ActionId(1)));
        assert_eq!(writer.lookup4(fib4, Ipv4Addr::new(10, 1, 2, 3)), Some(ActionId(2)));
        assert_eq!(writer.insert6(fib6, Ipv6Addr::UNSPECIFIED, 0, ActionId(3)), None);
        assert_eq!(writer.lookup6(fib6, Ipv6Addr::LOCALHOST), Some(ActionId(3)));
        let guard = readers[0].enter();
        let table = tables.fib4(fib4, &guard).unwrap();
        assert_eq!(table.lookup(Ipv4Addr::new(10, 1, 2, 3).to_bits(), &guard), Some(2));
        assert_eq!(table.lookup(Ipv4Addr::new(10, 2, 2, 3).to_bits(), &guard), None);
        let _ = guard;
        assert_eq!(writer.remove4(fib4, prefix4, 16), Some(ActionId(2)));
        assert_eq!(writer.remove4(fib4, prefix4, 16), None);
        assert_eq!(writer.insert4(fib4, prefix4, 33, ActionId(1)), None);
        assert_eq!(writer.lookup4(fib4, prefix4), None);
        writer.remove_fib4(fib4);
        assert_eq!(writer.insert4(fib4, prefix4, 16, ActionId(1)), None);
        assert_eq!(writer.lookup4(fib4, prefix4), None);
    }

    /// `ip link add … type vxlan` of three networks at one port, an external one at another, over IPv4 and IPv6: what their ports
    /// have is found without a look at each of them.
    #[test]
    fn ports_that_are_alike_are_found_at_once() {
        let (mut writer, tables, mut readers) = Writer::new(1);
        let fou = |port, ipv6, payload| {
            let local = match ipv6 {
                true => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
                false => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            };
            FouPort { port, ipv6, local, peer: None, bound: None, payload }
        };
        let guard = readers[0].enter();
        let find = |port, ipv6| tables.tunnels().plain_port(port, ipv6, 7, &guard);
        let vxlans: Vec<_> =
            (0..3).map(|_| writer.add_fou_port(fou(4789, false, FouPayload::Vxlan))).collect();
        let device = FouPayload::Device(TunnelId(5));
        let external = [false, true].map(|ipv6| writer.add_fou_port(fou(4790, ipv6, device)));
        assert_eq!([find(4789, false), find(4789, true)], [Some(FouPayload::Vxlan), None]);
        assert_eq!([find(4790, false), find(4790, true)], [Some(device); 2]);
        // One that takes only some of the datagrams has to be looked at.
        let peer = Some((IpAddr::V4(Ipv4Addr::LOCALHOST), 9));
        let other = writer.add_fou_port(FouPort { peer, ..fou(4789, false, FouPayload::Vxlan) });
        assert_eq!(find(4789, false), None);
        writer.remove_fou_port(other);
        assert_eq!(find(4789, false), Some(FouPayload::Vxlan));
        vxlans.into_iter().for_each(|id| writer.remove_fou_port(id));
        writer.remove_fou_port(external[0]);
        assert_eq!([find(4789, false), find(4790, false), find(4790, true)], [None, None, Some(device)]);
    }
}
