//! `htb`: `net/sched/sch_htb.c`. The order of its steps is Linux's, as it decides which packet leaves when.
//!
//! A class sends by its own rate, or by what a class above it lends. The classes whose packets may leave now stand in
//! rings: a class that may send by its own rate in the row of its level, one that has to borrow in the feed of the class
//! above it. A row leads down its feeds to a leaf. Where Linux has trees sorted by class, a ring has a bit for each class
//! of a level or below a class, in the order of their numbers.

mod pass;
mod rings;

use std::sync::Arc;

use super::clocks::Clocks;
use super::items::{ItemId, List};
use super::ring::Ring;
use super::{Class as Verdict, Classify, Context, Discipline, Enqueued, Heap, Node};
use crate::counters::{Counters, QueueCount, QueueId};
use crate::drops::DropReason;
use crate::limiter::Nanos;
use crate::qos::{Lengths, Rate};
use crate::tables::{HTB_DEPTH, HTB_PRIORITIES, HookId};

/// Most nanoseconds for which a bucket is filled at once: `mbuffer`, 60 s.
const MAX_PASSED: i64 = 60_000_000_000;

/// What a class may do now: `enum htb_cmode`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Mode {
    /// Nothing: its ceil is used up.
    CantSend,
    /// Send what a class above it lends.
    MayBorrow,
    /// Send.
    #[default]
    CanSend,
}

#[derive(Debug)]
pub(super) struct Htb {
    pub(super) default: u32,
    pub(super) direct_limit: u32,
    pub(super) direct: List,
    pub(super) direct_bytes: u64,
    pub(super) filters: Option<HookId>,
    /// In the order of their numbers.
    pub(super) classes: Vec<Class>,
    pub(super) levels: [Level; HTB_DEPTH],
    /// Classes whose counters have changed since they were last written.
    changed: Vec<u32>,
}

/// The classes of a level, 0 for leaves.
#[derive(Debug, Default)]
pub(super) struct Level {
    /// Those that may send, by priority; bits are places in `members`.
    pub(super) rows: [Ring; HTB_PRIORITIES],
    /// Priorities of which the row is not empty.
    pub(super) mask: u8,
    /// In the order of their numbers.
    pub(super) members: Vec<u32>,
    /// Those that may not send by their own rate, by the time at which that changes.
    pub(super) waiting: Heap,
}

/// `struct htb_class`.
#[derive(Debug)]
pub(super) struct Class {
    pub(super) queue: QueueId,
    /// `major:minor`.
    pub(super) classid: u32,
    pub(super) parent: Option<u32>,
    pub(super) level: u8,
    /// 0 is served first.
    pub(super) prio: u8,
    /// Bytes that it may send in its turn.
    pub(super) quantum: i32,
    pub(super) rate: Rate,
    pub(super) ceil: Rate,
    /// What the buckets of `rate` and of `ceil` hold, in nanoseconds.
    pub(super) buffer: i64,
    pub(super) cbuffer: i64,
    pub(super) filters: Option<HookId>,
    /// Its place among those of its level, and among those below its parent.
    pub(super) at_level: u32,
    pub(super) at_parent: u32,
    /// Of a class with others below it: these, in the order of their numbers, and those of them that borrow.
    pub(super) children: Vec<u32>,
    pub(super) feeds: Option<Box<[Ring; HTB_PRIORITIES]>>,
    /// Of a leaf.
    pub(super) leaf: Option<Node>,
    pub(super) state: State,
    /// Priorities in which it, or what is below it, stands in a ring.
    pub(super) activity: u8,
    pub(super) changed: bool,
}

/// What changes of a class as it sends.
#[derive(Debug)]
pub(super) struct State {
    /// What is in the buckets of its rate and of its ceil, in nanoseconds; below 0: what it owes.
    pub(super) tokens: i64,
    pub(super) ctokens: i64,
    /// When the buckets were filled last.
    pub(super) at: Nanos,
    /// Where workers share a clock, when what the buckets hold is there.
    pub(super) ready: Nanos,
    pub(super) cready: Nanos,
    pub(super) mode: Mode,
    /// When `mode` is to be looked at again, unless it can send.
    pub(super) due: Nanos,
    /// Bytes that it may still send in its turn, by the level that it sends at.
    pub(super) deficit: [i32; HTB_DEPTH],
    pub(super) count: QueueCount,
    /// Those of all workers, if there are several.
    pub(super) clocks: Option<Arc<Clocks>>,
}

/// The numbers of `QueueCount::own` of a class.
const LENDS: usize = 0;
const BORROWS: usize = 1;
const TOKENS: usize = 3;
const CTOKENS: usize = 4;
/// That of the qdisc.
const DIRECT: usize = 0;

/// Where a packet is to wait.
enum To {
    Direct,
    Leaf(u32),
    Verdict(Verdict),
}

impl State {
    /// Full buckets, or empty ones where workers share what fills them.
    pub(super) fn new(buffer: i64, cbuffer: i64, now: Nanos, clocks: Option<Arc<Clocks>>) -> Self {
        let (tokens, ctokens) = if clocks.is_some() { (0, 0) } else { (buffer, cbuffer) };
        Self {
            tokens,
            ctokens,
            at: now,
            ready: 0,
            cready: 0,
            mode: Mode::CanSend,
            due: 0,
            deficit: [0; HTB_DEPTH],
            count: QueueCount::default(),
            clocks,
        }
    }

    /// The mode that it has at `now`, so long after `at`, and how long until another: `htb_class_mode`.
    #[inline(always)]
    fn mode_at(&self, now: Nanos, passed: i64) -> (Mode, i64) {
        let lacks = |tokens: i64, ready: Nanos| match self.clocks {
            None => -(tokens + passed),
            Some(_) => ready.saturating_sub(now) as i64,
        };
        let ceil = lacks(self.ctokens, self.cready);
        if ceil > 0 {
            return (Mode::CantSend, ceil);
        }
        let rate = lacks(self.tokens, self.ready);
        if rate > 0 { (Mode::MayBorrow, rate) } else { (Mode::CanSend, 0) }
    }
}

impl Class {
    #[inline(always)]
    fn passed(&self, now: Nanos) -> i64 {
        (now.saturating_sub(self.state.at) as i64).min(MAX_PASSED)
    }

    /// What the buckets hold at `now`, by this worker's clock.
    #[inline(always)]
    fn filled(&self, now: Nanos) -> (i64, i64) {
        let passed = if self.state.clocks.is_some() { 0 } else { self.passed(now) };
        let State { tokens, ctokens, .. } = self.state;
        ((tokens + passed).min(self.buffer), (ctokens + passed).min(self.cbuffer))
    }

    /// Reserves of the time that workers share what buckets below zero lack.
    fn fill(&mut self, now: Nanos) {
        let State { tokens, ctokens, ready, cready, clocks: Some(clocks), .. } = &mut self.state else {
            return;
        };
        *ready = clocks.rate.fill(tokens, 0, now, self.buffer).unwrap_or(*ready);
        *cready = clocks.ceil.fill(ctokens, 0, now, self.cbuffer).unwrap_or(*cready);
    }
}

/// `toks` after `passed` and a packet that costs so much: `htb_accnt_tokens`.
#[inline(always)]
fn account(tokens: i64, passed: i64, buffer: i64, costs: u64) -> i64 {
    ((tokens + passed).min(buffer) - costs as i64).max(1 - MAX_PASSED)
}

impl Htb {
    pub(super) fn new() -> Self {
        Self {
            default: 0,
            direct_limit: 0,
            direct: List::default(),
            direct_bytes: 0,
            filters: None,
            classes: Vec::new(),
            levels: Default::default(),
            changed: Vec::new(),
        }
    }

    /// Makes room to remember every class as changed.
    pub(super) fn reserve(&mut self) {
        self.changed = Vec::with_capacity(self.classes.len());
        for (index, class) in self.classes.iter_mut().enumerate() {
            class.changed = true;
            self.changed.push(index as u32);
        }
    }

    fn find(&self, classid: u32) -> Option<u32> {
        self.classes.binary_search_by_key(&classid, |class| class.classid).ok().map(|index| index as u32)
    }

    fn class(&self, index: u32) -> Option<&Class> {
        self.classes.get(index as usize)
    }

    /// `htb_classify`.
    fn classify<C: Classify>(&self, handle: u32, id: ItemId, cx: &mut Context<'_, C>) -> To {
        let priority = cx.items.get(id).map_or(0, |item| item.priority);
        if priority == handle {
            return To::Direct;
        }
        let mut filters = self.filters;
        if priority != 0
            && let Some((index, class)) =
                self.find(priority).and_then(|index| Some((index, self.class(index)?)))
        {
            if class.level == 0 {
                return To::Leaf(index);
            }
            filters = class.filters;
        }
        // Each class that is found lies below the one before, or is a loop of filters.
        for _ in 0..=HTB_DEPTH {
            let Some(place) = filters else { break };
            let classid = match cx.classify(place, id) {
                Verdict::None => break,
                Verdict::Class(classid) if classid == handle => return To::Direct,
                Verdict::Class(classid) => classid,
                taken => return To::Verdict(taken),
            };
            let Some((index, class)) = self.find(classid).and_then(|index| Some((index, self.class(index)?)))
            else {
                break;
            };
            if class.level == 0 {
                return To::Leaf(index);
            }
            filters = class.filters;
        }
        self.default_leaf(handle).map_or(To::Direct, To::Leaf)
    }

    /// The class for what no filter takes, if it is a leaf.
    #[inline]
    fn default_leaf(&self, handle: u32) -> Option<u32> {
        let index = self.find(handle & 0xffff_0000 | self.default & 0xffff)?;
        (self.class(index)?.level == 0).then_some(index)
    }

    /// Remembers that a class has counters to tell of.
    #[inline(always)]
    fn note(&mut self, index: u32) {
        if let Some(class) = self.classes.get_mut(index as usize)
            && !class.changed
        {
            class.changed = true;
            self.changed.push(index);
        }
    }

    /// Gives a class the mode that it has after so much time; returns how long it lasts: `htb_change_class_mode`.
    #[inline]
    fn change_mode(&mut self, count: &mut QueueCount, index: u32, now: Nanos, passed: i64) -> i64 {
        let Some(class) = self.classes.get_mut(index as usize) else { return 0 };
        let (mode, lasts) = class.state.mode_at(now, passed);
        let old = class.state.mode;
        if mode == old {
            return lasts;
        }
        if mode == Mode::CantSend {
            class.state.count.overlimits += 1;
            count.overlimits += 1;
        }
        if class.activity == 0 {
            class.state.mode = mode;
            return lasts;
        }
        if old != Mode::CantSend {
            self.leave_rings(index);
        }
        if let Some(class) = self.classes.get_mut(index as usize) {
            class.state.mode = mode;
        }
        if mode != Mode::CantSend {
            self.enter_rings(index);
        }
        lasts
    }

    /// Has a class looked at again when its mode may change: `htb_add_to_wait_tree`.
    fn wait(&mut self, index: u32, delay: i64, now: Nanos) {
        let Some(class) = self.classes.get_mut(index as usize) else { return };
        let due = now.saturating_add(delay.max(1).unsigned_abs());
        class.state.due = due;
        if let Some(level) = self.levels.get_mut(usize::from(class.level)) {
            level.waiting.set(class.at_level, due);
        }
    }

    /// Charges a packet that leaves by a leaf and the rate of a class at `level`: `htb_charge_class`.
    fn charge(&mut self, count: &mut QueueCount, leaf: u32, level: u8, charged: (u32, u32), now: Nanos) {
        let mut at = Some(leaf);
        while let Some(index) = at {
            self.note(index);
            let Some(class) = self.classes.get_mut(index as usize) else { return };
            at = class.parent;
            let shared = class.state.clocks.is_some();
            let passed = if shared { 0 } else { class.passed(now) };
            let State { tokens, ctokens, count: own, .. } = &mut class.state;
            if class.level >= level {
                if class.level == level {
                    own.own[LENDS] += 1;
                }
                *tokens = account(*tokens, passed, class.buffer, class.rate.nanos(charged.0));
            } else {
                own.own[BORROWS] += 1;
                *tokens += passed;
            }
            *ctokens = account(*ctokens, passed, class.cbuffer, class.ceil.nanos(charged.0));
            if class.level > 0 {
                own.sent(charged);
            }
            class.state.at = now;
            if shared {
                class.fill(now);
            }
            let state = &class.state;
            if state.mode == Mode::CanSend && !shared && state.tokens | state.ctokens >= 0 {
                continue;
            }
            self.follow_mode(count, index, now);
        }
    }

    /// Gives a class the mode that it has now, and has it looked at again when that may change.
    fn follow_mode(&mut self, count: &mut QueueCount, index: u32, now: Nanos) {
        let Some(class) = self.class(index) else { return };
        let (old, level, at_level) = (class.state.mode, class.level, class.at_level);
        let lasts = self.change_mode(count, index, now, 0);
        match self.class(index).map_or(old, |class| class.state.mode) {
            mode if mode == old => {}
            Mode::CanSend => {
                if let Some(level) = self.levels.get_mut(usize::from(level)) {
                    level.waiting.remove(at_level);
                }
            }
            _ => self.wait(index, lasts, now),
        }
    }

    /// Looks at the classes of a level whose time has come; returns when the next one's does: `htb_do_events`.
    fn do_events(&mut self, count: &mut QueueCount, level: usize, now: Nanos) -> Option<Nanos> {
        loop {
            let Level { waiting, members, .. } = self.levels.get_mut(level)?;
            let (due, at) = waiting.first()?;
            if due > now {
                return Some(due);
            }
            waiting.remove(at);
            let index = *members.get(at as usize)?;
            self.note(index);
            let class = self.classes.get_mut(index as usize)?;
            let passed = class.passed(now);
            let lasts = self.change_mode(count, index, now, passed);
            if self.class(index)?.state.mode != Mode::CanSend {
                self.wait(index, lasts, now);
            }
        }
    }

    /// `htb_dequeue_tree`.
    fn dequeue_row<C: Classify>(
        &mut self,
        count: &mut QueueCount,
        level: usize,
        prio: usize,
        cx: &mut Context<'_, C>,
    ) -> Option<(ItemId, (u32, u32))> {
        let mut start = self.leaf_of_turn(level, prio);
        let mut at = start;
        // Each leaf has its turn once, and each turn that finds a leaf empty takes it out of its ring.
        for _ in 0..=2 * self.classes.len() {
            let index = at?;
            let class = self.classes.get_mut(index as usize)?;
            let leaf = class.leaf.as_mut()?;
            if leaf.len() == 0 {
                self.deactivate(index);
                if self.levels.get(level)?.mask >> prio & 1 == 0 {
                    return None;
                }
                let next = self.leaf_of_turn(level, prio);
                if at == start {
                    start = next;
                }
                at = next;
                continue;
            }
            let Some(id) = count.below(cx, |cx| leaf.dequeue(cx)) else {
                // What lets nothing go has counted that.
                self.note(index);
                self.end_turn(index, level, prio);
                at = self.leaf_of_turn(level, prio);
                if at == start {
                    return None;
                }
                continue;
            };
            let charged = cx.items.charged(id);
            let empty = leaf.len() == 0;
            class.state.count.sent(charged);
            let deficit = class.state.deficit.get_mut(level)?;
            *deficit = deficit.saturating_sub_unsigned(charged.0);
            if *deficit < 0 {
                *deficit = deficit.saturating_add(class.quantum);
                self.end_turn(index, level, prio);
            }
            if empty {
                self.deactivate(index);
            }
            self.charge(count, index, level as u8, charged, cx.now);
            return Some((id, charged));
        }
        None
    }
}

impl Discipline for Htb {
    fn enqueue<C: Classify>(
        &mut self,
        count: &mut QueueCount,
        handle: u32,
        id: ItemId,
        cx: &mut Context<'_, C>,
    ) -> Enqueued {
        let len = cx.items.charged(id).0;
        match self.classify(handle, id, cx) {
            To::Direct if self.direct.len < self.direct_limit => {
                self.direct.push(cx.items, id);
                self.direct_bytes += u64::from(len);
                count.own[DIRECT] += 1;
            }
            To::Direct => {
                count.drops += 1;
                cx.drop(id, DropReason::QdiscFull);
                return Enqueued::Dropped;
            }
            To::Leaf(index) => {
                self.note(index);
                let Some(Class { leaf: Some(leaf), state, .. }) = self.classes.get_mut(index as usize) else {
                    count.drops += 1;
                    cx.drop(id, DropReason::QdiscFull);
                    return Enqueued::Dropped;
                };
                match count.below(cx, |cx| leaf.enqueue(id, cx)) {
                    Enqueued::Queued => self.activate(index),
                    refused @ (Enqueued::Dropped | Enqueued::Filtered) => {
                        count.drops += 1;
                        state.count.drops += 1;
                        return refused;
                    }
                    Enqueued::Stolen => return Enqueued::Stolen,
                }
            }
            To::Verdict(Verdict::Stolen) => {
                cx.items.take(id);
                return Enqueued::Stolen;
            }
            To::Verdict(_) => {
                count.drops += 1;
                cx.drop(id, DropReason::QdiscAction);
                return Enqueued::Filtered;
            }
        }
        count.received_by(len);
        Enqueued::Queued
    }

    fn dequeue<C: Classify>(&mut self, count: &mut QueueCount, cx: &mut Context<'_, C>) -> Option<ItemId> {
        if let Some(id) = self.direct.pop(cx.items) {
            let charged = cx.items.charged(id);
            self.direct_bytes = self.direct_bytes.saturating_sub(charged.0.into());
            count.sent(charged);
            count.left(charged.0);
            return Some(id);
        }
        let now = cx.now;
        let mut due = None;
        for level in 0..HTB_DEPTH {
            due = match (due, self.do_events(count, level, now)) {
                (Some(a), Some(b)) => Some(Nanos::min(a, b)),
                (a, b) => a.or(b),
            };
            let mut mask = self.levels.get(level).map_or(0, |level| level.mask);
            while mask != 0 {
                let prio = mask.trailing_zeros() as usize;
                mask &= mask - 1;
                if let Some((id, charged)) = self.dequeue_row(count, level, prio, cx) {
                    count.sent(charged);
                    count.left(charged.0);
                    return Some(id);
                }
            }
        }
        if let Some(due) = due {
            cx.wait_until(due);
        }
        None
    }

    fn report(&mut self, _: &mut QueueCount, counters: &Counters) {
        while let Some(index) = self.changed.pop() {
            let Some(class) = self.classes.get_mut(index as usize) else { continue };
            class.changed = false;
            let State { tokens, ctokens, count, .. } = &mut class.state;
            count.own[TOKENS] = *tokens as u64;
            count.own[CTOKENS] = *ctokens as u64;
            if let Some(leaf) = &mut class.leaf {
                (count.backlog, count.queued) = (leaf.count.backlog, leaf.count.queued);
                leaf.report(counters);
            }
            counters.set_queue(class.queue, count);
        }
    }

    fn pass(&mut self, count: &mut QueueCount, handle: u32, packets: &[(u32, u32)], now: Nanos) -> usize {
        self.pass_first(count, handle, packets, now)
    }

    fn pass_all(&mut self, count: &mut QueueCount, handle: u32, burst: Lengths<'_>, now: Nanos) -> bool {
        self.pass_burst(count, handle, burst, now)
    }
}
