//! `cake`: `net/sched/sch_cake.c`. A shaper without bursts; tins by priority, each with a part of the rate; a queue a flow in
//! each tin, which take turns by DRR++ and share by hosts; COBALT, which keeps each of them short.
//!
//! Each worker has queues of its own; they share the time of the rate.

mod ack_filter;
mod chains;
mod cobalt;
mod diffserv;
mod headers;
mod overflow;
mod shaper;
mod tin;

use std::sync::Arc;

use super::clocks::Clocks;
use super::codel;
use super::discipline::{Class, Classify, Context, Discipline, Enqueued};
use super::ecn::mark;
use super::items::{self, Item, ItemId, Items, List, memory};
use super::segment::Segment;
use crate::buffer::Packet;
use crate::counters::{Counters, QueueCount};
use crate::drops::DropReason;
use crate::limiter::Nanos;
use crate::qos::{WireLength, uncounted};
use crate::tables::{self, CakeAcks, CakeTins};
use chains::{Chain, QUEUES};
use overflow::{Overflow, code, parts};
use shaper::{Seen, Shaper, charge};
use tin::{Hashes, Tin};

/// The numbers of `QueueCount::own`.
const MEMORY: usize = 0;
const OFFSET: usize = 1;
const LONGEST: usize = 2;
const SHORTEST: usize = 3;
const LONGEST_CHARGED: usize = 4;
const SHORTEST_CHARGED: usize = 5;

#[derive(Debug)]
pub(super) struct Cake {
    config: tables::Cake,
    /// At least those of the configuration; others that there were are empty.
    tins: Vec<Tin>,
    /// The tin of each DSCP.
    by_dscp: &'static [u8; 64],
    shaper: Shaper,
    /// The tin whose turn it is, where there is no rate.
    current: usize,
    memory: u64,
    most_memory: u64,
    memory_limit: u64,
    overflow: Overflow,
    seen: Seen,
    random: u64,
}

impl Cake {
    pub(super) fn new(config: &tables::Cake, clocks: Option<Arc<Clocks>>) -> Self {
        let mut cake = Self {
            config: *config,
            tins: Vec::new(),
            by_dscp: diffserv::tins(config.diffserv),
            shaper: Shaper::new(tables::CakeTin::default(), clocks),
            current: 0,
            memory: 0,
            most_memory: 0,
            memory_limit: 0,
            overflow: Overflow::default(),
            seen: Seen::default(),
            random: config.seed | 1,
        };
        cake.reconfigure();
        cake
    }

    /// Takes over other parameters; what is in tins that are no more is given back.
    pub(super) fn change(
        &mut self,
        config: &tables::Cake,
        count: &mut QueueCount,
        items: &Items,
    ) -> Vec<ItemId> {
        if self.config.change != config.change {
            self.seen.restart();
        }
        self.config = *config;
        self.reconfigure();
        let mut gone = Vec::new();
        for number in config.diffserv.count()..self.tins.len() {
            for flow in 0..QUEUES as u16 {
                while let Some(id) = self.pop(count, number, flow, items) {
                    gone.push(id);
                }
            }
        }
        gone
    }

    /// `cake_reconfigure`.
    fn reconfigure(&mut self) {
        let tins = self.config.diffserv;
        for number in 0..tins.count() {
            let params = self.config.tin(number);
            match self.tins.get_mut(number) {
                Some(tin) => tin.params = params,
                None => self.tins.push(Tin::new(params)),
            }
        }
        self.by_dscp = diffserv::tins(tins);
        self.shaper.rate = self.config.tin(0);
        self.memory_limit = self.config.memory_limit().into();
        self.current = self.current.min(tins.count() - 1);
    }

    /// The packets of all queues.
    pub(super) fn lists(mut self) -> Vec<List> {
        let flows = self.tins.iter_mut().flat_map(|tin| tin.lists());
        flows.map(|flow| std::mem::take(&mut flow.list)).filter(|list| list.len > 0).collect()
    }

    /// Xorshift, of 64 bits.
    fn random(&mut self) -> u32 {
        let mut random = self.random;
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        self.random = random;
        (random >> 32) as u32
    }

    /// The tin of a packet: `cake_select_tin`.
    fn tin(&self, handle: u32, item: &mut Item) -> usize {
        let config = &self.config;
        let washed = config.wash.then(|| headers::dscp(item, true));
        let tins = config.diffserv;
        if tins == CakeTins::Besteffort {
            return 0;
        }
        let named = |number: u32| {
            let number = (number as usize).checked_sub(1)?;
            (number < tins.count()).then(|| tins.shown(number))
        };
        let mask = config.fwmark;
        let mark = item.packet().map_or(0, |packet| packet.tag().mark) & mask;
        let by_mark = named(mark.checked_shr(mask.trailing_zeros()).unwrap_or_default());
        let by_priority =
            || if item.priority & 0xffff_0000 == handle { named(item.priority & 0xffff) } else { None };
        if let Some(tin) = by_mark.or_else(by_priority) {
            return tin;
        }
        let dscp = washed.unwrap_or_else(|| headers::dscp(item, false));
        let tin = self.by_dscp.get(usize::from(dscp)).map_or(0, |tin| usize::from(*tin));
        if tin < tins.count() { tin } else { 0 }
    }

    /// The hashes of a packet, for which a filter may have found others.
    fn hashes(&self, item: &Item, class: u32) -> Hashes {
        let mode = self.config.flow_mode;
        let of_class = |number: u32| (1..=QUEUES as u32).contains(&number).then(|| number - 1);
        let (flow, host) = (of_class(class & 0xffff), of_class(class >> 16));
        let mut hashes = Hashes::default();
        if mode.source() || mode.destination() {
            (hashes.source, hashes.destination) =
                host.map_or_else(|| headers::host_hashes(item), |host| (host, host));
        }
        hashes.flow = match flow {
            Some(flow) => flow,
            None if mode.flow() => items::flow_hash(item),
            None => 0,
        };
        if !mode.flow() {
            hashes.flow ^= if mode.source() { hashes.source } else { 0 };
            hashes.flow ^= if mode.destination() { hashes.destination } else { 0 };
        }
        hashes
    }

    /// Puts a packet into its queue, and counts it there. The tin has been asked for, the qdisc counts it.
    fn push<C: Classify>(&mut self, tin: usize, flow: u16, id: ItemId, cx: &mut Context<'_, C>) {
        let Some(item) = cx.items.get_mut(id) else { return };
        item.time = codel::time(cx.now);
        let len = item.len;
        let (wire, offset) = wire(item);
        self.seen.note(&self.config, &wire, len, offset);
        let Some(tin) = self.tins.get_mut(tin) else { return };
        tin.count.packets += 1;
        tin.count.bytes += u64::from(len);
        tin.backlog = tin.backlog.wrapping_add(len);
        if let Some(flow) = tin.flow_mut(flow) {
            flow.backlog = flow.backlog.wrapping_add(len);
            flow.list.push(cx.items, id);
        }
        self.memory += memory(len);
    }

    /// What a packet that has waited is charged.
    fn charged<C>(&self, id: ItemId, cx: &Context<'_, C>) -> u32 {
        let Some(item) = cx.items.get(id) else { return 0 };
        let (wire, offset) = wire(item);
        charge(&self.config, &wire, item.len, offset)
    }

    /// Drops the acknowledgement that the last packet of a queue makes needless.
    fn filter_acks<C: Classify>(
        &mut self,
        count: &mut QueueCount,
        number: usize,
        flow: u16,
        cx: &mut Context<'_, C>,
    ) {
        let aggressive = self.config.ack_filter == CakeAcks::Aggressive;
        let Some(tin) = self.tins.get_mut(number) else { return };
        let Some(queue) = tin.flow_mut(flow) else { return };
        let Some(id) = ack_filter::filter(queue, cx.items, aggressive) else { return };
        let len = cx.items.charged(id).0;
        queue.backlog = queue.backlog.wrapping_sub(len);
        tin.backlog = tin.backlog.wrapping_sub(len);
        tin.count.requeues += 1;
        self.memory = self.memory.saturating_sub(memory(len));
        count.drops += 1;
        count.left(len);
        cx.lost.packets += 1;
        cx.lost.bytes += i64::from(len);
        if self.config.ingress {
            self.charge_dropped(number, id, cx);
        }
        cx.drop(id, DropReason::AckFiltered);
    }

    /// What is dropped has come through the bottleneck, too; returns how much it was.
    fn charge_dropped<C>(&mut self, number: usize, id: ItemId, cx: &Context<'_, C>) -> u32 {
        let len = self.charged(id, cx);
        if let Some(tin) = self.tins.get_mut(number) {
            self.shaper.advance(tin, len, cx.now, true);
        }
        len
    }

    /// Drops the first packet of the longest queue, and returns which one it was: `cake_drop`.
    #[cold]
    fn drop_longest<C: Classify>(&mut self, count: &mut QueueCount, cx: &mut Context<'_, C>) -> Option<u16> {
        let Self { overflow, tins, .. } = self;
        let longest = overflow.longest(|code| backlog(tins, code));
        let (number, at) = parts(longest);
        let tin = tins.get_mut(number)?;
        let params = tin.params;
        let flow = tin.flow_mut(at)?;
        let Some(id) = flow.list.pop(cx.items) else {
            overflow.forget();
            return None;
        };
        let len = cx.items.charged(id).0;
        let begun = flow.cobalt.full(&params, cx.now);
        flow.backlog = flow.backlog.wrapping_sub(len);
        tin.unresponsive = tin.unresponsive.wrapping_add(begun.into());
        tin.backlog = tin.backlog.wrapping_sub(len);
        tin.count.drops += 1;
        self.memory = self.memory.saturating_sub(memory(len));
        count.left(len);
        count.drops += 1;
        if self.config.ingress {
            self.charge_dropped(number, id, cx);
        }
        cx.drop(id, DropReason::QdiscFull);
        let Self { overflow, tins, .. } = self;
        overflow.shorter(longest, |code| backlog(tins, code));
        Some(longest)
    }

    /// The tin whose turn it is; `None`: no flow waits for a turn.
    fn next_tin(&mut self, now: Nanos) -> Option<usize> {
        let count = self.config.diffserv.count();
        if self.shaper.rate.rate == 0 {
            return self.next_unshaped(count);
        }
        // The last one that is in time, or else the one that is first.
        let mut best = None;
        let mut best_time = i64::MAX;
        for (number, tin) in self.tins.iter().enumerate().take(count).filter(|(_, tin)| tin.is_active()) {
            let time = tin.time_next.wrapping_sub(now).cast_signed();
            if time <= 0 || time <= best_time {
                (best, best_time) = (Some(number), time);
            }
        }
        best
    }

    fn next_unshaped(&mut self, count: usize) -> Option<usize> {
        let (mut wrapped, mut empty) = (false, true);
        loop {
            let tin = self.tins.get_mut(self.current)?;
            if tin.deficit >= 0 && tin.is_active() {
                return Some(self.current);
            }
            if tin.deficit <= 0 {
                tin.deficit = tin.deficit.saturating_add(tin.params.quantum.into());
            }
            empty &= !tin.is_active();
            self.current += 1;
            if self.current >= count {
                self.current = 0;
                if wrapped && empty {
                    return None;
                }
                wrapped = true;
            }
        }
    }

    /// Takes the first packet out of a queue: `cake_dequeue_one`.
    fn pop(&mut self, count: &mut QueueCount, number: usize, at: u16, items: &Items) -> Option<ItemId> {
        let Self { overflow, tins, .. } = self;
        let tin = tins.get_mut(number)?;
        let flow = tin.flow_mut(at)?;
        let id = flow.list.pop(items)?;
        let len = items.charged(id).0;
        flow.backlog = flow.backlog.wrapping_sub(len);
        tin.backlog = tin.backlog.wrapping_sub(len);
        self.memory = self.memory.saturating_sub(memory(len));
        count.left(len);
        overflow.shorter(code(number, at), |code| backlog(tins, code));
        Some(id)
    }
}

/// Whether it stands for several.
fn is_segment(packet: &Packet) -> bool {
    packet.has_offload() && packet.longest_part() < packet.len()
}

fn backlog(tins: &[Tin], code: u16) -> u32 {
    let (tin, flow) = parts(code);
    tins.get(tin).and_then(|tin| tin.flow(flow)).map_or(0, |flow| flow.backlog)
}

/// The packets that one stands for, and where its network header is.
fn wire(item: &Item) -> (WireLength, u32) {
    let packet = item.packet();
    let wire = packet.map(|packet| WireLength::of_packet(packet, uncounted(packet, false)));
    (wire.unwrap_or(WireLength::of(item.len)), items::network(item) as u32)
}

impl Discipline for Cake {
    fn enqueue<C: Classify>(
        &mut self,
        count: &mut QueueCount,
        handle: u32,
        id: ItemId,
        cx: &mut Context<'_, C>,
    ) -> Enqueued {
        let class = match self.config.filters.map(|filters| cx.classify(filters, id)) {
            Some(class @ (Class::Stolen | Class::Shot)) => return cx.refuse(count, id, class),
            Some(Class::Class(class)) => class,
            Some(Class::None) | None => 0,
        };
        let Some(item) = cx.items.get_mut(id) else { return Enqueued::Dropped };
        let number = self.tin(handle, item);
        let hashes = self.hashes(item, class);
        let (len, is_segment) = (item.len, item.packet().is_some_and(is_segment));
        let mode = self.config.flow_mode;
        let Some(tin) = self.tins.get_mut(number) else { return Enqueued::Dropped };
        let at = tin.choose(hashes, mode);
        if tin.backlog == 0 {
            tin.time_next = tin.time_next.max(cx.now);
            if count.queued == 0 {
                self.shaper.restart(cx.now);
                if let Some(due) = self.shaper.due(cx.now) {
                    count.overlimits += 1;
                    cx.wait_until(due);
                }
            }
        }
        tin.longest = tin.longest.max(len);
        if is_segment && self.config.split_gso {
            let Some(mut segment) = Segment::take(id, cx) else { return Enqueued::Dropped };
            while let Some(part) = segment.next(cx) {
                let Some((part, len)) = segment.put(part, count, cx) else { continue };
                self.push(number, at, part, cx);
                segment.queued(len);
                count.received_by(len);
            }
            let enqueued = segment.end(count, cx);
            if enqueued != Enqueued::Queued {
                return enqueued;
            }
        } else {
            self.push(number, at, id, cx);
            count.received_by(len);
            if self.config.ack_filter != CakeAcks::None {
                self.filter_acks(count, number, at, cx);
            }
        }
        let Self { overflow, tins, .. } = self;
        overflow.longer(code(number, at), |code| backlog(tins, code));
        let random = self.random() as u16;
        if let Some(tin) = self.tins.get_mut(number) {
            tin.came(at, mode, random);
        }
        self.most_memory = self.most_memory.max(self.memory);
        if self.memory <= self.memory_limit {
            return Enqueued::Queued;
        }
        let before = (count.queued, count.backlog);
        let mut own = false;
        while self.memory > self.memory_limit {
            let Some(longest) = self.drop_longest(count, cx) else { break };
            own |= longest == code(number, at);
        }
        // If it was this packet's flow, those above do not count the packet at all.
        cx.lost.packets += before.0.wrapping_sub(count.queued).cast_signed() - i64::from(own);
        cx.lost.bytes +=
            before.1.wrapping_sub(count.backlog).cast_signed() - if own { i64::from(len) } else { 0 };
        if own { Enqueued::Dropped } else { Enqueued::Queued }
    }

    fn dequeue<C: Classify>(&mut self, count: &mut QueueCount, cx: &mut Context<'_, C>) -> Option<ItemId> {
        let (now, mode, ingress) = (cx.now, self.config.flow_mode, self.config.ingress);
        let shaped = self.shaper.rate.rate != 0;
        let mut first = true;
        'tin: loop {
            if count.queued == 0 {
                return None;
            }
            if let Some(due) = self.shaper.due(now) {
                count.overlimits += 1;
                cx.wait_until(due);
                return None;
            }
            let number = self.next_tin(now)?;
            'flow: loop {
                let random = self.random();
                let tin = self.tins.get_mut(number)?;
                let chains = &tin.chains;
                // A flow that is remembered gets a look first, so that it is forgotten in time.
                let decaying = chains.first(Chain::Decaying);
                let at = decaying.filter(|_| first);
                let others = || chains.first(Chain::New).or(chains.first(Chain::Old)).or(decaying);
                let Some(at) = at.or_else(others) else { continue 'tin };
                first = false;
                if tin.flow(at)?.deficit <= 0 {
                    tin.turn_over(at, mode, random as u16);
                    continue 'flow;
                }
                loop {
                    let Some(id) = self.pop(count, number, at, cx.items) else {
                        self.tins.get_mut(number)?.was_empty(at, mode, now);
                        continue 'tin;
                    };
                    let random = self.random();
                    let charged = self.charged(id, cx);
                    let tin = self.tins.get_mut(number)?;
                    let item = cx.items.get_mut(id)?;
                    let waited = Nanos::from(codel::time(now).wrapping_sub(item.time)) << 10;
                    let (params, flows) = (tin.params, if ingress { u32::from(tin.bulk) } else { 0 });
                    let flow = tin.flow_mut(at)?;
                    let signal = flow.cobalt.signal(&params, now, waited, flows, || random, || mark(item));
                    // The last one is not dropped.
                    if !signal.drop || flow.list.len == 0 {
                        tin.count.overlimits += u64::from(signal.marked);
                        tin.delayed(waited);
                        self.shaper.advance(tin, charged, now, false);
                        tin.pay(at, charged, shaped);
                        self.overflow.left();
                        count.sent(cx.items.charged(id));
                        return Some(id);
                    }
                    if ingress {
                        tin.pay(at, charged, shaped);
                        self.shaper.advance(tin, charged, now, true);
                    }
                    tin.count.drops += 1;
                    count.drops += 1;
                    cx.lost.packets += 1;
                    cx.lost.bytes += i64::from(cx.items.charged(id).0);
                    cx.drop(id, DropReason::Codel);
                    if ingress {
                        continue 'flow;
                    }
                }
            }
        }
    }

    fn report(&mut self, count: &mut QueueCount, counters: &Counters) {
        count.own[MEMORY] = self.most_memory;
        count.own[OFFSET] = self.seen.offset().into();
        count.own[LONGEST] = self.seen.longest.into();
        // From the end, so that of several workers the greatest counts.
        count.own[SHORTEST] = (u16::MAX - self.seen.shortest).into();
        count.own[LONGEST_CHARGED] = self.seen.longest_charged.into();
        count.own[SHORTEST_CHARGED] = (u16::MAX - self.seen.shortest_charged).into();
        for (queue, tin) in self.config.tins.iter().zip(&self.tins) {
            counters.set_queue(*queue, &tin.report());
        }
    }
}
