//! A tin: queues of flows, which flow has which, and what is counted.

use super::chains::{Chain, Chains, QUEUES};
use super::cobalt::Cobalt;
use crate::counters::QueueCount;
use crate::limiter::Nanos;
use crate::qos::qdisc::items::List;
use crate::tables::{CakeFlows, CakeTin};

/// Queues that a flow may have.
const WAYS: u16 = 8;

/// What is known of a queue: `CAKE_SET_*`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Set {
    /// It is nobody's.
    #[default]
    None,
    /// It sends little.
    Sparse,
    /// As far as is counted; it has its turns with those that send much.
    SparseWait,
    /// It sends much.
    Bulk,
    /// It is empty, and what COBALT knows of it is not forgotten yet.
    Decaying,
}

/// The queue of a flow.
#[derive(Debug, Default)]
pub(super) struct Flow {
    pub(super) list: List,
    pub(super) backlog: u32,
    pub(super) deficit: i32,
    pub(super) cobalt: Cobalt,
    /// The hash of the packets.
    tag: u32,
    /// Which hosts it is counted with.
    source: u16,
    destination: u16,
    pub(super) set: Set,
}

/// A host: which one, and how many flows it has that send much.
#[derive(Clone, Copy, Debug, Default)]
struct Host {
    tag: u32,
    bulk: u16,
}

/// A packet's hashes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Hashes {
    pub(super) flow: u32,
    pub(super) source: u32,
    pub(super) destination: u32,
}

#[derive(Debug)]
pub(super) struct Tin {
    pub(super) params: CakeTin,
    flows: Box<[Flow]>,
    sources: Box<[Host]>,
    destinations: Box<[Host]>,
    pub(super) chains: Chains,
    /// Flows that send little, those that send much, those that are empty, and those that BLUE drops of.
    pub(super) sparse: u16,
    pub(super) bulk: u16,
    pub(super) decaying: u16,
    pub(super) unresponsive: u16,
    /// When it may send the next packet without taking from others.
    pub(super) time_next: Nanos,
    pub(super) deficit: i32,
    pub(super) backlog: u32,
    /// What it shows of that: bytes, packets, drops, and in the places of overlimits and requeues marks and acknowledgements.
    pub(super) count: QueueCount,
    pub(super) longest: u32,
    pub(super) average_delay: Nanos,
    pub(super) peak_delay: Nanos,
    pub(super) base_delay: Nanos,
    hits: u32,
    misses: u32,
    collisions: u32,
}

/// The first place of the ways of a hash, and the others in the order in which they are tried.
fn ways(hash: u32) -> impl Iterator<Item = u16> {
    let place = hash as u16 % QUEUES as u16;
    let (outer, inner) = (place - place % WAYS, place % WAYS);
    (0..WAYS).map(move |way| outer + (inner + way) % WAYS)
}

/// The host of a tag, or one that has no flows that send much and becomes it.
fn host(hosts: &mut [Host], tag: u32) -> u16 {
    let tag_of = |at: &u16| hosts.get(usize::from(*at)).map(|host| host.tag);
    let idle = |at: &u16| hosts.get(usize::from(*at)).is_some_and(|host| host.bulk == 0);
    if let Some(found) = ways(tag).find(|at| tag_of(at) == Some(tag)) {
        return found;
    }
    let taken = ways(tag).find(idle).unwrap_or(tag as u16 % QUEUES as u16);
    if let Some(host) = hosts.get_mut(usize::from(taken)) {
        host.tag = tag;
    }
    taken
}

impl Tin {
    pub(super) fn new(params: CakeTin) -> Self {
        let hosts = || vec![Host::default(); QUEUES].into_boxed_slice();
        Self {
            params,
            flows: (0..QUEUES).map(|_| Flow::default()).collect(),
            sources: hosts(),
            destinations: hosts(),
            chains: Chains::default(),
            sparse: 0,
            bulk: 0,
            decaying: 0,
            unresponsive: 0,
            time_next: 0,
            deficit: 0,
            backlog: 0,
            count: QueueCount::default(),
            longest: 0,
            average_delay: 0,
            peak_delay: 0,
            base_delay: 0,
            hits: 0,
            misses: 0,
            collisions: 0,
        }
    }

    /// Whether it has flows whose turn may come.
    pub(super) fn is_active(&self) -> bool {
        self.sparse.wrapping_add(self.bulk) != 0
    }

    pub(super) fn flow(&self, at: u16) -> Option<&Flow> {
        self.flows.get(usize::from(at))
    }

    pub(super) fn flow_mut(&mut self, at: u16) -> Option<&mut Flow> {
        self.flows.get_mut(usize::from(at))
    }

    /// Everything that waits.
    pub(super) fn lists(&mut self) -> impl Iterator<Item = &mut Flow> {
        self.flows.iter_mut()
    }

    fn set(&self, at: u16) -> Set {
        self.flow(at).map_or(Set::None, |flow| flow.set)
    }

    /// The queue of a packet: the one that is its flow's, one of its eight that is nobody's, or another's: `cake_hash`.
    pub(super) fn choose(&mut self, hashes: Hashes, mode: CakeFlows) -> u16 {
        if mode == CakeFlows::BLIND {
            return 0;
        }
        let direct = hashes.flow as u16 % QUEUES as u16;
        let tagged = |tin: &Self, at: u16| tin.flow(at).is_some_and(|flow| flow.tag == hashes.flow);
        if tagged(self, direct) && self.set(direct) != Set::None {
            return direct;
        }
        let (found, fresh) = if let Some(found) = ways(hashes.flow).find(|at| tagged(self, *at)) {
            self.hits = self.hits.wrapping_add((found != direct).into());
            (found, self.set(found) == Set::None)
        } else if let Some(free) = ways(hashes.flow).find(|at| self.set(*at) == Set::None) {
            self.misses = self.misses.wrapping_add(1);
            (free, true)
        } else {
            self.collisions = self.collisions.wrapping_add(1);
            if self.set(direct) == Set::Bulk {
                self.count_hosts(direct, mode, false);
            }
            (direct, true)
        };
        let source = (fresh && mode.dual_source()).then(|| host(&mut self.sources, hashes.source));
        let destination =
            (fresh && mode.dual_destination()).then(|| host(&mut self.destinations, hashes.destination));
        if let Some(flow) = self.flow_mut(found) {
            flow.tag = hashes.flow;
            flow.source = source.unwrap_or(flow.source);
            flow.destination = destination.unwrap_or(flow.destination);
        }
        if fresh && self.set(found) == Set::Bulk {
            self.count_hosts(found, mode, true);
        }
        found
    }

    /// A flow sends much, or no more.
    fn count_hosts(&mut self, at: u16, mode: CakeFlows, more: bool) {
        let Some((source, destination)) = self.flow(at).map(|flow| (flow.source, flow.destination)) else {
            return;
        };
        let count = |hosts: &mut [Host], at: u16| {
            if let Some(host) = hosts.get_mut(usize::from(at)) {
                host.bulk =
                    if more { (host.bulk + 1).min(QUEUES as u16) } else { host.bulk.saturating_sub(1) };
            }
        };
        if mode.dual_source() {
            count(&mut self.sources, source);
        }
        if mode.dual_destination() {
            count(&mut self.destinations, destination);
        }
    }

    /// What a flow may send in its turn: its host's part. `random` evens out what division leaves:
    /// `cake_get_flow_quantum`.
    pub(super) fn quantum(&self, at: u16, mode: CakeFlows, random: u16) -> i32 {
        let Some(flow) = self.flow(at) else { return 1 };
        let bulk = |hosts: &[Host], at: u16| hosts.get(usize::from(at)).map_or(0, |host| host.bulk);
        let mut load = 1;
        if mode.dual_source() {
            load = load.max(bulk(&self.sources, flow.source));
        }
        if mode.dual_destination() {
            load = load.max(bulk(&self.destinations, flow.destination));
        }
        let part = u32::from(u16::MAX / load);
        ((u32::from(self.params.flow_quantum) * part + u32::from(random)) >> 16) as i32
    }

    /// A packet has come to a queue: whether the queue is a new one, and its list has changed with that.
    pub(super) fn came(&mut self, at: u16, mode: CakeFlows, random: u16) {
        match self.set(at) {
            old @ (Set::None | Set::Decaying) => {
                if old == Set::Decaying {
                    self.decaying = self.decaying.wrapping_sub(1);
                }
                self.chains.append(at, Chain::New);
                self.sparse = self.sparse.wrapping_add(1);
                let deficit = self.quantum(at, mode, random);
                if let Some(flow) = self.flow_mut(at) {
                    (flow.set, flow.deficit) = (Set::Sparse, deficit);
                }
            }
            Set::SparseWait => self.become_bulk(at, mode),
            Set::Sparse | Set::Bulk => {}
        }
    }

    fn become_bulk(&mut self, at: u16, mode: CakeFlows) {
        self.sparse = self.sparse.wrapping_sub(1);
        self.bulk = self.bulk.wrapping_add(1);
        self.count_hosts(at, mode, true);
        if let Some(flow) = self.flow_mut(at) {
            flow.set = Set::Bulk;
        }
    }

    /// A flow has sent what it may, and another has its turn.
    pub(super) fn turn_over(&mut self, at: u16, mode: CakeFlows, random: u16) {
        if self.set(at) == Set::Sparse {
            if self.flow(at).is_some_and(|flow| flow.list.len > 0) {
                self.become_bulk(at, mode);
            } else if let Some(flow) = self.flow_mut(at) {
                flow.set = Set::SparseWait;
            }
        }
        let quantum = self.quantum(at, mode, random);
        if let Some(flow) = self.flow_mut(at) {
            flow.deficit = flow.deficit.saturating_add(quantum);
        }
        self.chains.append(at, Chain::Old);
    }

    /// A queue whose turn it was has nothing: it is remembered for a while, or nobody's.
    pub(super) fn was_empty(&mut self, at: u16, mode: CakeFlows, now: Nanos) {
        let params = self.params;
        let Some(flow) = self.flow_mut(at) else { return };
        let ended = flow.cobalt.empty(&params, now);
        let remembered = flow.cobalt.remembers(now);
        let old = std::mem::replace(&mut flow.set, if remembered { Set::Decaying } else { Set::None });
        if ended {
            self.unresponsive = self.unresponsive.wrapping_sub(1);
        }
        match old {
            Set::Bulk => {
                self.bulk = self.bulk.wrapping_sub(1);
                self.count_hosts(at, mode, false);
            }
            Set::Sparse | Set::SparseWait => self.sparse = self.sparse.wrapping_sub(1),
            Set::Decaying | Set::None => self.decaying = self.decaying.wrapping_sub(1),
        }
        if remembered {
            self.decaying = self.decaying.wrapping_add(1);
            self.chains.append(at, Chain::Decaying);
        } else {
            self.chains.remove(at);
        }
    }

    /// A flow has had so many bytes of its turn, and of that of the tin where there are turns.
    pub(super) fn pay(&mut self, at: u16, bytes: u32, shaped: bool) {
        if let Some(flow) = self.flow_mut(at) {
            flow.deficit = flow.deficit.saturating_sub_unsigned(bytes);
        }
        if !shaped {
            self.deficit = self.deficit.saturating_sub_unsigned(bytes);
        }
    }

    /// A packet is sent that has waited so long.
    pub(super) fn delayed(&mut self, delay: Nanos) {
        let shift = |fast: bool| if fast { 2 } else { 8 };
        self.average_delay = average(self.average_delay, delay, 8);
        self.peak_delay = average(self.peak_delay, delay, shift(delay > self.peak_delay));
        self.base_delay = average(self.base_delay, delay, shift(delay < self.base_delay));
    }

    /// What it shows, all of it in one place.
    pub(super) fn report(&self) -> QueueCount {
        QueueCount {
            backlog: self.backlog.into(),
            queued: self.longest.into(),
            own: [
                self.peak_delay,
                self.average_delay,
                self.base_delay,
                self.hits.into(),
                self.misses.into(),
                self.collisions.into(),
                self.sparse.wrapping_add(self.decaying).into(),
                self.bulk.into(),
                self.unresponsive.into(),
            ],
            ..self.count
        }
    }
}

/// `cake_ewma`.
pub(super) fn average(average: u64, sample: u64, shift: u32) -> u64 {
    average - (average >> shift) + (sample >> shift)
}
