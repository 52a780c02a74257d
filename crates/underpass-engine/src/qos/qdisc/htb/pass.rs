//! Packets that go by at once: they find nobody waiting, and every bucket has what they cost.

use arrayvec::ArrayVec;

use super::{DIRECT, Htb, LENDS, MAX_PASSED, Mode};
use crate::counters::QueueCount;
use crate::limiter::Nanos;
use crate::qos::qdisc::Node;
use crate::qos::{Lengths, Rate};
use crate::tables::HTB_DEPTH;

impl Htb {
    /// Those of the first packets that may leave at once, by the direct queue or by the rate of the class that takes
    /// what no filter takes: [`Node::pass`]. What each class is charged is added up, as all leave at the same time.
    pub(super) fn pass_first(
        &mut self,
        count: &mut QueueCount,
        handle: u32,
        packets: &[(u32, u32)],
        now: Nanos,
    ) -> usize {
        if self.filters.is_some() {
            return 0;
        }
        let Some(index) = self.default_leaf(handle) else {
            let number = count.pass(if self.direct_limit > 0 { packets } else { &[] });
            count.own[DIRECT] += number as u64;
            return number;
        };
        self.note(index);
        let Some(class) = self.classes.get_mut(index as usize) else { return 0 };
        let longest = class.leaf.as_ref().and_then(Node::passes);
        let free = class.state.mode == Mode::CanSend && class.state.clocks.is_none();
        let Some(longest) = longest.filter(|_| free) else { return 0 };
        let (mut tokens, mut ctokens) = class.filled(now);
        let mut number = 0;
        for (len, _) in packets.iter().take_while(|(len, _)| *len <= longest) {
            tokens -= class.rate.nanos(*len) as i64;
            ctokens -= class.ceil.nanos(*len) as i64;
            let deficit = &mut class.state.deficit[0];
            *deficit = deficit.saturating_sub_unsigned(*len);
            if *deficit < 0 {
                *deficit = deficit.saturating_add(class.quantum);
            }
            number += 1;
            if tokens | ctokens < 0 {
                break;
            }
        }
        if number == 0 {
            return 0;
        }
        let packets = packets.get(..number).unwrap_or_default();
        class.state.count.own[LENDS] += number as u64;
        if let Some(leaf) = &mut class.leaf {
            leaf.changed = true;
            leaf.count.pass(packets);
        }
        count.pass(packets);
        class.state.count.pass(packets);
        let mut above = class.parent;
        self.settle(count, index, (tokens, ctokens), now);
        while let Some(index) = above {
            self.note(index);
            let Some(class) = self.classes.get_mut(index as usize) else { break };
            above = class.parent;
            class.state.count.pass(packets);
            // The first may find that it can send again; what follows only takes.
            let first = if class.state.mode == Mode::CanSend { number } else { 1 };
            let (first, rest) = packets.split_at_checked(first).unwrap_or((packets, &[]));
            for packets in [first, rest].into_iter().filter(|packets| !packets.is_empty()) {
                let Some(class) = self.classes.get_mut(index as usize) else { break };
                let (mut tokens, mut ctokens) = class.filled(now);
                for (len, _) in packets {
                    tokens -= class.rate.nanos(*len) as i64;
                    ctokens -= class.ceil.nanos(*len) as i64;
                }
                self.settle(count, index, (tokens, ctokens), now);
            }
        }
        number
    }

    /// Gives a class what its buckets hold at `now`, and the mode that follows from it.
    #[inline]
    fn settle(&mut self, count: &mut QueueCount, index: u32, (tokens, ctokens): (i64, i64), now: Nanos) {
        let Some(class) = self.classes.get_mut(index as usize) else { return };
        let state = &mut class.state;
        (state.tokens, state.ctokens, state.at) =
            (tokens.max(1 - MAX_PASSED), ctokens.max(1 - MAX_PASSED), now);
        if state.mode == Mode::CanSend && tokens | ctokens >= 0 && state.clocks.is_none() {
            return;
        }
        self.follow_mode(count, index, now);
    }

    /// Lets a whole burst go by if the class that takes what no filter takes, and each above it, has tokens for all of it:
    /// [`Node::pass_all`].
    pub(super) fn pass_burst(
        &mut self,
        count: &mut QueueCount,
        handle: u32,
        burst: Lengths<'_>,
        now: Nanos,
    ) -> bool {
        if self.filters.is_some() {
            return false;
        }
        let Some(leaf) = self.default_leaf(handle) else {
            if self.direct_limit == 0 {
                return false;
            }
            count.own[DIRECT] += burst.count() as u64;
            return count.pass_all(burst);
        };
        let (bytes, longest) = (burst.bytes(), burst.longest());
        // First it is seen that all is there, then it is taken.
        let mut left = ArrayVec::<(u32, i64, i64), HTB_DEPTH>::new();
        let mut costs = Costs::default();
        let mut at = Some(leaf);
        while let Some(index) = at {
            let Some(class) = self.class(index) else { return false };
            if class.state.mode != Mode::CanSend || class.state.clocks.is_some() {
                return false;
            }
            let (tokens, ctokens) = class.filled(now);
            let (tokens, ctokens) =
                (tokens - costs.of(&class.rate, burst), ctokens - costs.of(&class.ceil, burst));
            if tokens | ctokens < 0 || left.try_push((index, tokens, ctokens)).is_err() {
                return false;
            }
            at = class.parent;
        }
        let Some(class) = self.classes.get_mut(leaf as usize) else { return false };
        let quantum = i64::from(class.quantum);
        let Some(below) = class.leaf.as_mut().filter(|below| below.passes() >= Some(longest)) else {
            return false;
        };
        if i64::from(longest) > quantum {
            return false;
        }
        below.changed = true;
        below.count.pass_all(burst);
        class.state.count.own[LENDS] += burst.count() as u64;
        // Packet by packet, each time that it falls below 0 a quantum is added, which is more than any takes.
        let deficit = i64::from(class.state.deficit[0]) - bytes as i64;
        class.state.deficit[0] =
            if deficit < 0 { deficit.rem_euclid(quantum) as i32 } else { deficit as i32 };
        for (index, tokens, ctokens) in left {
            self.note(index);
            let Some(class) = self.classes.get_mut(index as usize) else { break };
            class.state.count.pass_all(burst);
            (class.state.tokens, class.state.ctokens, class.state.at) = (tokens, ctokens, now);
        }
        count.pass_all(burst)
    }
}

/// What a burst costs at a rate. Those of a class are often the same, and those of the classes above it.
#[derive(Default)]
struct Costs(Option<(Rate, i64)>);

impl Costs {
    #[inline(always)]
    fn of(&mut self, rate: &Rate, burst: Lengths<'_>) -> i64 {
        match &self.0 {
            Some((last, nanos)) if last == rate => *nanos,
            _ => {
                let nanos = burst.nanos(rate);
                self.0 = Some((*rate, nanos));
                nanos
            }
        }
    }
}
