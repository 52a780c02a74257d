//! `fq_codel`, fair queueing with controlled delay. RFC 8290; Linux: `net/sched/sch_fq_codel.c`.

use libc::EINVAL;

use super::TCA_OPTIONS;
use super::statistics::words;
use crate::attribute::{Attribute, Type, Validate, policy};
use crate::{Reply, RequestError};

const TARGET: u16 = 1;
const LIMIT: u16 = 2;
const INTERVAL: u16 = 3;
const ECN: u16 = 4;
const FLOWS: u16 = 5;
const QUANTUM: u16 = 6;
const CE_THRESHOLD: u16 = 7;
const DROP_BATCH_SIZE: u16 = 8;
const MEMORY_LIMIT: u16 = 9;
const CE_THRESHOLD_SELECTOR: u16 = 10;
const CE_THRESHOLD_MASK: u16 = 11;

const POLICY: [Type; 12] = policy(&[
    (TARGET, Type::U32),
    (LIMIT, Type::U32),
    (INTERVAL, Type::U32),
    (ECN, Type::U32),
    (FLOWS, Type::U32),
    (QUANTUM, Type::U32),
    (CE_THRESHOLD, Type::U32),
    (DROP_BATCH_SIZE, Type::U32),
    (MEMORY_LIMIT, Type::U32),
    (CE_THRESHOLD_SELECTOR, Type::U8),
    (CE_THRESHOLD_MASK, Type::U8),
]);

/// `FQ_CODEL_QUANTUM_MAX`.
const MAX_QUANTUM: u32 = 1 << 20;
/// A unit of CoDel's time is 2 to this power of nanoseconds: `CODEL_SHIFT`.
const SHIFT: u32 = 10;

/// The parameters of the qdisc. Times are in units of 1,024 ns, as Linux holds them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FqCodel {
    /// How long packets may wait.
    pub target: u32,
    /// Packets that wait at most.
    pub limit: u32,
    /// Over what time.
    pub interval: u32,
    /// Packets are marked where they can be, not dropped.
    pub ecn: bool,
    /// Number of queues.
    pub flows: u32,
    /// Bytes that a queue sends in its turn.
    pub quantum: u32,
    /// From what waiting time on all packets are marked.
    pub ce_threshold: Option<u32>,
    /// Packets that are dropped at once when there are too many.
    pub drop_batch: u32,
    /// Bytes of memory that they take at most.
    pub memory_limit: u32,
    /// Of which packets the threshold holds: those whose DS field is this, under the mask.
    pub ce_selector: u8,
    /// That mask.
    pub ce_mask: u8,
}

impl FqCodel {
    /// The defaults. `mtu`: longest frame of the link, in bytes.
    pub const fn new(mtu: u32) -> Self {
        Self {
            target: time(5_000),
            limit: 10 * 1024,
            interval: time(100_000),
            ecn: true,
            flows: 1024,
            quantum: mtu,
            ce_threshold: None,
            drop_batch: 64,
            memory_limit: 32 << 20,
            ce_selector: 0,
            ce_mask: 0,
        }
    }

    /// Takes over what `TCA_OPTIONS` say. `new`: the qdisc is being made.
    ///
    /// # Errors
    /// `EINVAL` for a quantum that is too large, and for a number of queues that is none or is changed.
    pub fn change(&mut self, options: Option<Attribute<'_>>, new: bool) -> Result<(), RequestError> {
        let Some(options) = options else { return Ok(()) };
        let options = options.parse_nested(&POLICY, Validate::Liberal)?;
        let number = |kind| options.get(kind).map(|number| number.u32());
        let mut changed = *self;
        if let Some(flows) = number(FLOWS) {
            if !new || !(1..=65536).contains(&flows) {
                return Err(RequestError::errno(EINVAL));
            }
            changed.flows = flows;
        }
        if let Some(quantum) = number(QUANTUM) {
            changed.quantum = quantum.max(256);
            if changed.quantum > MAX_QUANTUM {
                return Err(RequestError::new(EINVAL, "Invalid quantum"));
            }
        }
        changed.target = number(TARGET).map_or(changed.target, time);
        changed.ce_threshold = number(CE_THRESHOLD).map(time).or(changed.ce_threshold);
        changed.interval = number(INTERVAL).map_or(changed.interval, time);
        changed.limit = number(LIMIT).unwrap_or(changed.limit);
        changed.ecn = number(ECN).map_or(changed.ecn, |ecn| ecn != 0);
        changed.drop_batch = number(DROP_BATCH_SIZE).map_or(changed.drop_batch, |batch| batch.max(1));
        changed.memory_limit = number(MEMORY_LIMIT).map_or(changed.memory_limit, |limit| limit.min(1 << 31));
        let octet = |kind| options.get(kind).map(|octet| octet.u8());
        changed.ce_selector = octet(CE_THRESHOLD_SELECTOR).unwrap_or(changed.ce_selector);
        changed.ce_mask = octet(CE_THRESHOLD_MASK).unwrap_or(changed.ce_mask);
        *self = changed;
        Ok(())
    }

    /// How long packets may wait, in microseconds.
    pub const fn target_us(&self) -> u32 {
        microseconds(self.target)
    }

    /// Over what time, in microseconds.
    pub const fn interval_us(&self) -> u32 {
        microseconds(self.interval)
    }

    /// From what waiting time on all packets are marked, in microseconds.
    pub fn ce_threshold_us(&self) -> Option<u32> {
        self.ce_threshold.map(microseconds)
    }

    /// Writes `TCA_OPTIONS`.
    pub fn write(&self, reply: &mut Reply<'_>) {
        let nest = reply.nest_unflagged(TCA_OPTIONS);
        reply.u32(TARGET, microseconds(self.target));
        reply.u32(LIMIT, self.limit);
        reply.u32(INTERVAL, microseconds(self.interval));
        reply.u32(ECN, u32::from(self.ecn));
        reply.u32(QUANTUM, self.quantum);
        reply.u32(DROP_BATCH_SIZE, self.drop_batch);
        reply.u32(MEMORY_LIMIT, self.memory_limit);
        reply.u32(FLOWS, self.flows);
        if let Some(threshold) = self.ce_threshold {
            reply.u32(CE_THRESHOLD, microseconds(threshold));
            reply.u8(CE_THRESHOLD_SELECTOR, self.ce_selector);
            reply.u8(CE_THRESHOLD_MASK, self.ce_mask);
        }
        reply.end(nest);
    }
}

/// Microseconds as CoDel's time.
pub(super) const fn time(microseconds: u32) -> u32 {
    ((microseconds as u64 * 1000) >> SHIFT) as u32
}

/// CoDel's time as microseconds.
pub(super) const fn microseconds(time: u32) -> u32 {
    (((time as u64) << SHIFT) / 1000) as u32
}

/// `struct tc_fq_codel_xstats` of a qdisc.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FqCodelCounts {
    /// Longest packet so far, in bytes.
    pub max_packet: u32,
    /// Packets dropped because there were too many.
    pub drop_overlimit: u32,
    /// Packets marked.
    pub ecn_mark: u32,
    /// How often a queue became a new one.
    pub new_flow_count: u32,
    /// New queues with packets.
    pub new_flows: u32,
    /// Old queues.
    pub old_flows: u32,
    /// Packets marked for the threshold.
    pub ce_mark: u32,
    /// Bytes of memory in use.
    pub memory_usage: u32,
    /// Packets dropped for lack of it.
    pub drop_overmemory: u32,
}

impl FqCodelCounts {
    /// Writes the structure.
    pub fn bytes(&self) -> Vec<u8> {
        const OF_QDISC: u32 = 0;
        words(&[
            OF_QDISC,
            self.max_packet,
            self.drop_overlimit,
            self.ecn_mark,
            self.new_flow_count,
            self.new_flows,
            self.old_flows,
            self.ce_mark,
            self.memory_usage,
            self.drop_overmemory,
        ])
    }
}
