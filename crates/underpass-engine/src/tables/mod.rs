//! The forwarding state that workers read and the control thread writes.
//!
//! Workers hold [`Tables`] and enter once per burst; everything that they read lives until that burst
//! ends. The control thread holds the one [`Writer`].

use std::net::IpAddr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, Ordering::Relaxed};

mod action;
mod behind;
mod bridge;
mod cake;
mod ematch;
mod exceptions;
mod flower;
mod hook;
mod input;
mod ioam;
mod labels;
mod link;
mod neighbours;
mod outer;
mod precomputed;
mod priority;
mod qdisc;
mod rule;
mod srv6;
mod tc_action;
mod tunnel;
mod tunnel_match;
mod tunnels;
mod vlan;
mod writer;

pub use action::*;
pub use behind::{Behind, Ends};
pub use bridge::{
    Answering, Bridge, BridgePort, Membership, Network, Networks, PortState, Suppresses, VlanSet,
};
#[cfg(test)]
pub(crate) use cake::tests::params as cake_params;
pub use cake::*;
pub use ematch::*;
pub(crate) use exceptions::*;
pub use flower::*;
pub use hook::*;
pub use ioam::*;
pub use labels::{LabelAction, LabelNextHopsId, LabelTable, MAX_LABEL_NEXT_HOPS};
pub use link::*;
pub use neighbours::Neighbour;
pub(crate) use outer::*;
pub(crate) use precomputed::*;
pub use qdisc::*;
pub use rule::*;
pub use srv6::*;
pub use tc_action::*;
pub use tunnel::*;
pub(crate) use tunnel_match::{Ingress, TunnelMatch, of_geneve, of_vxlan};
pub use tunnels::inside_bit;
pub(crate) use tunnels::*;
pub(crate) use vlan::IDS;
pub use vlan::{Vlan, Vlans};
pub use writer::{Reader, Writer};

use crate::buffer::PortId;
use crate::hmac::Keys;
use crate::lpm::{Arena, Pages, Words};
use crate::publish::{Retirer, Slab};
use crate::qos::{StoredAction, StoredHook};

pub use crate::lpm::{Address, Lpm, MAX_LEAF, NO_LEAF};
pub use crate::publish::Guard;

/// Bits of an [`ActionId`].
const ACTION_BITS: u32 = 24;

/// The id of an object for which there was no room: names nothing, for ever.
const NOWHERE: u32 = u32::MAX;

/// Ports of which none has a link.
fn no_ports() -> Box<[AtomicU32]> {
    (0..=u16::MAX).map(|_| AtomicU32::new(0)).collect()
}

/// What workers read.
pub struct Tables {
    links: Slab<Link>,
    /// By port: its link's id + 1, or 0.
    ports: Box<[AtomicU32]>,
    /// By port by which the host sends by a VLAN device: the id of that + 1, or 0. Made with the first.
    host_ports: OnceLock<Box<[AtomicU32]>>,
    actions: Slab<Action>,
    /// By action, of those whose route says it: the source of what the router itself sends by it.
    sources: Slab<IpAddr>,
    /// By action, of those that just forward: the next hop's id + 1; of those that just lead into a tunnel: its id + 1, and
    /// [`INTO`]; else 0. So that the fast path reads one word.
    leads: Words<AtomicU32>,
    next_hops: Slab<StoredNextHop>,
    lookups: Slab<Lookup>,
    /// One object, all keys: they are few, and change together with nothing.
    keys: Slab<Keys>,
    fibs4: Slab<Lpm<u32>>,
    fibs6: Slab<Lpm<u128>>,
    /// Moves on whenever a look-up of IPv6 may lead elsewhere.
    changes6: AtomicU64,
    /// Moves on whenever one of IPv4 may, or a tunnel is another.
    changes4: AtomicU64,
    labels: LabelTable,
    /// One: what the router is in IOAM traces.
    ioam: Slab<IoamNode>,
    tunnels: TunnelTable,
    hooks: Slab<StoredHook>,
    tc_actions: Slab<StoredAction>,
    /// How many links classify what leaves.
    classifying_links: AtomicU32,
    qdiscs: Slab<StoredQdisc>,
    /// Moves on whenever one of `qdiscs` is changed or removed.
    qdisc_changes: AtomicU32,
    priorities: priority::Priorities,
    input_readers: input::InputReaders,
    neighbours: neighbours::Neighbours,
}

/// In what a compiled route leads to by itself: a tunnel, not a next hop.
const INTO: u32 = 1 << 31;

/// Bits of a [`LinkId`].
pub(crate) const LINK_BITS: u32 = 20;
/// Bits of a [`QdiscId`].
const QDISC_BITS: u32 = 18;

impl Tables {
    fn new(retirer: &Retirer, arena: &Arena) -> Self {
        Self {
            links: Slab::new(LINK_BITS, retirer),
            ports: no_ports(),
            host_ports: OnceLock::new(),
            actions: Slab::new(ACTION_BITS, retirer),
            sources: Slab::new(ACTION_BITS, retirer),
            leads: Words::exactly(ACTION_BITS, Pages::Small),
            next_hops: Slab::new(22, retirer),
            lookups: Slab::new(18, retirer),
            keys: Slab::new(1, retirer),
            fibs4: Slab::new(18, retirer),
            fibs6: Slab::new(18, retirer),
            changes6: AtomicU64::new(1),
            changes4: AtomicU64::new(0),
            labels: LabelTable::new(arena),
            ioam: Slab::new(1, retirer),
            tunnels: TunnelTable::new(1 << LINK_BITS, retirer, arena.region()),
            hooks: Slab::new(LINK_BITS, retirer),
            tc_actions: Slab::new(LINK_BITS, retirer),
            classifying_links: AtomicU32::new(0),
            qdiscs: Slab::new(QDISC_BITS, retirer),
            qdisc_changes: AtomicU32::new(0),
            priorities: priority::Priorities::default(),
            input_readers: input::InputReaders::default(),
            neighbours: neighbours::Neighbours::new(retirer),
        }
    }

    /// A link by its id.
    #[inline]
    pub fn link<'g>(&'g self, id: LinkId, guard: &'g Guard<'_>) -> Option<&'g Link> {
        self.links.get(id.0, guard)
    }

    /// Every link.
    pub(crate) fn links<'g>(&'g self, guard: &'g Guard<'_>) -> impl Iterator<Item = &'g Link> {
        self.links_by_id(guard).map(|(_, link)| link)
    }

    /// Every link, with its id.
    pub(crate) fn links_by_id<'g>(
        &'g self,
        guard: &'g Guard<'_>,
    ) -> impl Iterator<Item = (LinkId, &'g Link)> {
        (0..self.links.top()).filter_map(|id| Some((LinkId(id), self.links.get(id, guard)?)))
    }

    /// The link that has this port.
    #[inline]
    pub fn port_link<'g>(&'g self, port: PortId, guard: &'g Guard<'_>) -> Option<(LinkId, &'g Link)> {
        let id = LinkId(self.ports.get(usize::from(port.0))?.load(Relaxed).checked_sub(1)?);
        Some((id, self.link(id, guard)?))
    }

    /// The VLAN device by which the host sends what comes by this port.
    #[cold]
    pub(crate) fn host_port_link<'g>(
        &'g self,
        port: PortId,
        guard: &'g Guard<'_>,
    ) -> Option<(LinkId, &'g Link)> {
        let slot = self.host_ports.get()?.get(usize::from(port.0))?;
        let id = LinkId(slot.load(Relaxed).checked_sub(1)?);
        Some((id, self.link(id, guard)?))
    }

    /// A compiled route.
    #[inline]
    pub fn action<'g>(&'g self, id: ActionId, guard: &'g Guard<'_>) -> Option<&'g Action> {
        self.actions.get(id.0, guard)
    }

    /// The source of what the router itself sends by a compiled route, if that says it.
    #[cold]
    pub(crate) fn source(&self, id: ActionId, guard: &Guard<'_>) -> Option<IpAddr> {
        self.sources.get(id.0, guard).copied()
    }

    /// Prefetches these compiled routes, which are about to be read.
    #[inline]
    pub(crate) fn prefetch_actions(&self, leaves: impl Iterator<Item = u32> + Clone) {
        self.actions.prefetch(leaves);
    }

    /// One above the largest id that an action ever had.
    #[inline(always)]
    pub(crate) fn actions_top(&self) -> u32 {
        self.actions.top()
    }

    /// What the router is in IOAM traces. `None`: it was never said.
    #[inline]
    pub fn ioam<'g>(&'g self, guard: &'g Guard<'_>) -> Option<&'g IoamNode> {
        self.ioam.get(0, guard)
    }

    /// A next hop.
    #[inline]
    pub fn next_hop<'g>(&'g self, id: NextHopId, guard: &'g Guard<'_>) -> Option<&'g StoredNextHop> {
        self.next_hops.get(id.0, guard)
    }

    /// The next hop of a compiled route that just forwards; `None`: it does something else, or see
    /// [`Self::action`].
    #[inline(always)]
    pub(crate) fn forward<'g>(&'g self, id: ActionId, guard: &'g Guard<'_>) -> Option<&'g StoredNextHop> {
        let lead = self.lead(id);
        if lead < INTO { self.next_hops.get(lead, guard) } else { None }
    }

    /// The outer header for what a compiled route just leads into a tunnel, if it is precomputed; `None`: see
    /// [`Self::action`].
    #[inline(always)]
    pub(crate) fn enters<'g>(
        &'g self,
        id: ActionId,
        inside: InnerProtocol,
        guard: &'g Guard<'_>,
    ) -> Option<&'g PrecomputedEncap> {
        // That of no lead is the id of no tunnel.
        let lead = self.lead(id);
        if lead >= INTO { self.tunnels.precomputed(TunnelId(lead ^ INTO), inside, guard) } else { None }
    }

    #[inline(always)]
    fn lead(&self, id: ActionId) -> u32 {
        self.leads.word(id.0 as usize).load(Relaxed).wrapping_sub(1)
    }

    /// Says where action `id` leads, if it does nothing else.
    fn set_lead(&self, id: u32, action: Option<&Action>) {
        let lead = match action {
            Some(Action::Forward(to)) => to.0,
            Some(Action::Tunnel(TunnelRoute { tunnel, next_hop: None, mtu: 0, .. })) => tunnel.0 | INTO,
            _ => u32::MAX,
        };
        self.leads.word(id as usize).store(lead.wrapping_add(1), Relaxed);
    }

    /// An order of tables.
    #[inline]
    pub fn lookup<'g>(&'g self, id: LookupId, guard: &'g Guard<'_>) -> Option<&'g Lookup> {
        self.lookups.get(id.0, guard)
    }

    /// The keys of HMAC TLVs; `None` while there has been none.
    #[inline]
    pub fn hmac_keys<'g>(&'g self, guard: &'g Guard<'_>) -> Option<&'g Keys> {
        self.keys.get(0, guard)
    }

    /// A forwarding table of IPv4; its leaves are [`ActionId`]s, its addresses numbers in host byte
    /// order.
    #[inline]
    pub fn fib4<'g>(&'g self, id: Fib4Id, guard: &'g Guard<'_>) -> Option<&'g Lpm<u32>> {
        self.fibs4.get(id.0, guard)
    }

    /// A forwarding table of IPv6; its leaves are [`ActionId`]s, its addresses numbers in host byte
    /// order.
    #[inline]
    pub fn fib6<'g>(&'g self, id: Fib6Id, guard: &'g Guard<'_>) -> Option<&'g Lpm<u128>> {
        self.fibs6.get(id.0, guard)
    }

    /// A number, never 0, that moves on whenever a look-up of IPv6 may lead elsewhere: what was looked up before it was read is
    /// still so while it is the same.
    #[inline(always)]
    pub(crate) fn changes6(&self) -> u64 {
        self.changes6.load(Ordering::Acquire)
    }

    /// Says that a look-up of IPv6 may lead elsewhere, after it does: who sees the number sees the change, and nothing that it
    /// led to before is taken away until every worker has begun another burst.
    pub(crate) fn has_changed6(&self) {
        self.changes6.fetch_add(1, Ordering::Release);
    }

    /// The same of look-ups of either family, and of tunnels.
    #[inline(always)]
    pub(crate) fn changes(&self) -> u64 {
        self.changes4.load(Ordering::Acquire) + self.changes6()
    }

    /// [`Self::has_changed6`] of IPv4, and of tunnels.
    pub(crate) fn has_changed4(&self) {
        self.changes4.fetch_add(1, Ordering::Release);
    }

    /// The MPLS label table.
    #[inline(always)]
    pub fn labels(&self) -> &LabelTable {
        &self.labels
    }

    /// What a tunnel is.
    pub fn tunnel<'g>(&'g self, id: TunnelId, guard: &'g Guard<'_>) -> Option<&'g Tunnel> {
        self.tunnels.tunnel(id, guard).map(|tunnel| &tunnel.config)
    }

    /// A queueing discipline.
    #[inline(always)]
    pub fn qdisc<'g>(&'g self, id: QdiscId, guard: &'g Guard<'_>) -> Option<&'g StoredQdisc> {
        self.qdiscs.get(id.0, guard)
    }

    /// A number that moves on whenever a queueing discipline is changed or removed.
    #[inline(always)]
    pub(crate) fn qdisc_changes(&self) -> u32 {
        self.qdisc_changes.load(Ordering::Acquire)
    }

    /// Tunnels, and ports of foo-over-UDP.
    #[inline(always)]
    pub(crate) fn tunnels(&self) -> &TunnelTable {
        &self.tunnels
    }
    /// The filters of a place.
    #[inline]
    pub(crate) fn hook<'g>(&'g self, id: HookId, guard: &'g Guard<'_>) -> Option<&'g StoredHook> {
        self.hooks.get(id.0, guard)
    }

    /// An action of traffic control.
    #[inline]
    pub(crate) fn tc_action<'g>(&'g self, id: TcActionId, guard: &'g Guard<'_>) -> Option<&'g StoredAction> {
        self.tc_actions.get(id.0, guard)
    }

    /// Whether any link classifies what leaves.
    #[inline(always)]
    pub(crate) fn classifies_leaving(&self) -> bool {
        self.classifying_links.load(Relaxed) != 0
    }

    /// Takes note that a link has taken the place of another.
    fn link_changed(&self, old: Option<&Link>, new: Option<&Link>) {
        let classifies = |link: Option<&Link>| u32::from(link.is_some_and(|link| link.egress.is_some()));
        let count = self.classifying_links.load(Relaxed) + classifies(new);
        self.classifying_links.store(count - classifies(old), Relaxed);
        let vlan =
            |link: Option<&Link>| link.and_then(|link| link.vlan.as_ref().map(|vlan| vlan.priorities()));
        let ((old_reads, old_sets), (reads, sets)) =
            (vlan(old).unwrap_or_default(), vlan(new).unwrap_or_default());
        self.priorities.replace_reader(old_reads, reads);
        self.priorities.replace_writer(old_sets, sets);
    }
}
