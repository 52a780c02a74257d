//! What programs read of filters where packets come in, and of their actions: `matchall` and `u32` at fixed places, `police`
//! and `gact`.

use std::sync::atomic::AtomicI64;

use super::counters::{MOST_TC, TC, object_at};
use super::records::{Records, pair};
use crate::counters::{CounterId, TcCounterId};
use crate::lpm::Words;
use crate::publish::Retirer;
use crate::qos::{Policed, StoredAction};
use crate::tables::{ANY_PROTOCOL, Classifier, Control, Hook, HookId, TcActionId, TcActionKind, U32Node};

/// Most filters of a place.
pub const MOST_FILTERS: usize = 7;
/// Most keys of a filter.
pub const MOST_KEYS: usize = 4;
/// Most actions of a filter.
pub const MOST_ACTIONS: usize = 2;
/// The last byte behind the network header at which a key may begin.
pub const LAST_KEY: i32 = 127;

/// Where things are in the record of a place, in bytes.
pub mod place {
    /// How many filters, a byte.
    pub const COUNT: i16 = 0;
    /// The counter of its qdisc, or 0.
    pub const COUNTER: i16 = 8;
    /// The filters.
    pub const FILTERS: i16 = 16;
}

/// Where things are in a filter, in bytes.
pub mod filter {
    use super::{MOST_KEYS, key};

    /// The EtherType as it is in a frame, or 0.
    pub const ETHERTYPE: i16 = 0;
    /// How many keys.
    pub const KEY_COUNT: i16 = 2;
    /// The counter, or 0.
    pub const COUNTER: i16 = 4;
    /// The slots of its actions, 4 bytes each, or 0.
    pub const ACTIONS: i16 = 8;
    /// The keys.
    pub const KEYS: i16 = 16;
    /// Bytes of it.
    pub const LEN: i16 = KEYS + MOST_KEYS as i16 * key::LEN;
}

/// Where things are in a key, in bytes. Mask and value are as they lie in a packet.
pub mod key {
    /// Where the packet has it, behind the network header.
    pub const AT: i16 = 0;
    /// Which bits of that are compared.
    pub const MASK: i16 = 4;
    /// With what.
    pub const VALUE: i16 = 8;
    /// The counter, or 0.
    pub const COUNTER: i16 = 12;
    /// Bytes of it.
    pub const LEN: i16 = 16;
}

/// Where things are in the record of an action, in bytes: from [`action::CONFORM`] on, but for the counter, of a policer.
pub mod action {
    /// [`super::kind`].
    pub const KIND: i16 = 0;
    /// What becomes of a packet: of a policer, of one that does not conform.
    pub const CONTROL: i16 = 1;
    /// The same of one that does.
    pub const CONFORM: i16 = 2;
    /// What is charged for.
    pub const CHARGE: i16 = 3;
    /// The counter.
    pub const COUNTER: i16 = 8;
    /// The longest frame that conforms.
    pub const MTU: i16 = 12;
    /// Nanoseconds of a byte: a factor, and a shift to the right.
    pub const MULTIPLIER: i16 = 16;
    /// The shift.
    pub const SHIFT: i16 = 20;
    /// Bytes that are added to each frame.
    pub const OVERHEAD: i16 = 24;
    /// The least that a frame is charged, in bytes.
    pub const LEAST: i16 = 28;
    /// Nanoseconds that the bucket holds.
    pub const BURST: i16 = 32;
    /// Nanoseconds of a packet.
    pub const PACKET: i16 = 40;
    /// The bucket.
    pub const BUCKET: i16 = 48;
}

/// Kinds of actions.
pub mod kind {
    /// `gact`.
    pub const GACT: u8 = 1;
    /// `police`.
    pub const POLICE: u8 = 2;
}

/// `ok`.
pub const OK: u8 = 0;
/// `pipe`.
pub const PIPE: u8 = 1;
/// `continue`.
pub const CONTINUE: u8 = 2;
/// `drop`.
pub const DROP: u8 = 3;

/// A policer charges for nothing.
pub const NOTHING: u8 = 0;
/// It charges for bytes.
pub const BYTES: u8 = 1;
/// It charges for packets.
pub const PACKETS: u8 = 2;

/// Hooks, and actions, that programs know.
pub(super) const HOOK_BITS: u32 = 12;
pub(super) const ACTION_BITS: u32 = 12;
/// A bucket has two cache lines of its own.
const STRIDE_BITS: u32 = 4;
pub(super) const BUCKET_BITS: u32 = ACTION_BITS + STRIDE_BITS;

impl Records {
    /// The bucket of an action, which programs have too. `None`: they do not know the action.
    pub(crate) fn bucket(&self, id: u32) -> Option<(Words<AtomicI64>, usize)> {
        (id >> ACTION_BITS == 0).then(|| (self.buckets.clone(), (id as usize) << STRIDE_BITS))
    }

    /// Puts the record of the filters of a place into its slot.
    pub(crate) fn set_hook(&mut self, HookId(id): HookId, hook: Option<&Hook>, retirer: &Retirer) {
        let record = hook.and_then(|hook| self.hook(hook));
        self.hooks.put(&mut self.blocks, id, record, retirer);
    }

    fn hook(&self, hook: &Hook) -> Option<Vec<u64>> {
        let first = hook.chains.iter().find(|chain| chain.index == 0);
        let counter = hook.counter.map_or(Some(0), tc_at)?;
        let mut record = vec![0, pair(counter, 0)];
        let mut count = 0;
        for priority in first.map_or(&[][..], |chain| &chain.priorities) {
            let protocol = if priority.protocol == ANY_PROTOCOL { 0 } else { priority.protocol.to_be() };
            let plain = |outcome: &_| self.filter(protocol, &[], &[], outcome);
            let filters: Vec<_> = match &priority.classifier {
                Classifier::Matchall(outcome) => vec![plain(outcome)],
                Classifier::U32(table) => {
                    let nodes = hook.u32_tables.get(*table)?.buckets.first()?;
                    nodes.iter().map(|node| self.node(protocol, node)).collect()
                }
                Classifier::Basic(_) | Classifier::Flower(_) | Classifier::Fw(_) => return None,
            };
            for filter in filters {
                record.extend(filter?);
                count += 1;
            }
        }
        record[0] = count as u64;
        (count <= MOST_FILTERS).then_some(record)
    }

    fn node(&self, protocol: u16, node: &U32Node) -> Option<Vec<u64>> {
        let plain = node.terminal && node.link.is_none() && node.mark.is_none() && node.ingress.is_none();
        if !plain || node.mark_counter.is_some() {
            return None;
        }
        let keys = node.keys.iter().map(|key| {
            let fixed = key.offset_mask == 0 && (0..=LAST_KEY).contains(&key.offset);
            fixed.then_some([key.offset.cast_unsigned(), key.mask.to_be(), key.value.to_be()])
        });
        let keys: Option<Vec<_>> = keys.collect();
        self.filter(protocol, &keys?, &node.key_counters, &node.outcome)
    }

    fn filter(
        &self,
        protocol: u16,
        keys: &[[u32; 3]],
        key_counters: &[CounterId],
        outcome: &crate::tables::Outcome,
    ) -> Option<Vec<u64>> {
        let actions: Vec<u32> =
            outcome.actions.iter().map(|TcActionId(id)| self.tc_actions.slot(*id)).collect::<Option<_>>()?;
        if keys.len() > MOST_KEYS || actions.len() > MOST_ACTIONS {
            return None;
        }
        let counter = |counter: Option<&CounterId>| counter.map_or(Some(0), |counter| object_at(*counter));
        let action = |n: usize| actions.get(n).copied().unwrap_or(0);
        let mut filter = vec![
            u64::from(protocol)
                | (keys.len() as u64) << 16
                | u64::from(counter(outcome.counter.as_ref())?) << 32,
            pair(action(0), action(1)),
        ];
        for (n, [at, mask, value]) in keys.iter().copied().enumerate() {
            filter.extend([pair(at, mask), pair(value, counter(key_counters.get(n))?)]);
        }
        filter.resize(filter::LEN as usize / 8, 0);
        Some(filter)
    }

    /// Puts the record of an action of traffic control into its slot.
    pub(crate) fn set_tc_action(&mut self, id: u32, action: Option<&StoredAction>, retirer: &Retirer) {
        let record = action.and_then(|action| self.tc_action(id, action));
        self.tc_actions.put(&mut self.blocks, id, record, retirer);
    }

    fn tc_action(&self, id: u32, action: &StoredAction) -> Option<Vec<u64>> {
        let config = &action.config;
        if config.estimator.is_some() {
            return None;
        }
        let first = |kind: u8, conform: u8, charge: u8| {
            Some(u64::from(u32::from_le_bytes([kind, control(config.control)?, conform, charge])))
        };
        let counter = tc_at(config.counter)?;
        match &config.kind {
            TcActionKind::Gact(None) => Some(vec![first(kind::GACT, 0, 0)?, pair(counter, 0)]),
            TcActionKind::Police(police) => {
                let Policed { charge, rate: [mult, shift, overhead, least], burst, packet } =
                    action.policer.as_ref()?.in_kernel()?;
                Some(vec![
                    first(kind::POLICE, control(police.conform)?, charge)?,
                    pair(counter, police.mtu),
                    pair(mult, shift),
                    pair(overhead, least),
                    burst.cast_unsigned(),
                    packet.cast_unsigned(),
                    pair(self.buckets.offset() + (id << (STRIDE_BITS + 3)), 0),
                ])
            }
            _ => None,
        }
    }
}

/// Where a processor counts for a counter of traffic control. `None`: no program counts for it.
fn tc_at(TcCounterId(id): TcCounterId) -> Option<u32> {
    (id < MOST_TC).then_some(TC + id * 64)
}

/// What programs do with a packet that an action is done with.
fn control(control: Control) -> Option<u8> {
    match control {
        Control::Ok => Some(OK),
        Control::Pipe => Some(PIPE),
        Control::Continue => Some(CONTINUE),
        Control::Drop => Some(DROP),
        Control::Reclassify | Control::Stolen | Control::Trap | Control::Jump(_) | Control::Goto(_) => None,
    }
}
