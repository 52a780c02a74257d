//! `police`: limits a rate. Linux: `net/sched/act_police.c`.
//!
//! ```text
//! TCA_POLICE_TBF: index (u32), action (s32), limit, burst, mtu (u32), rate, peakrate (tc_ratespec), refcnt, bindcnt
//! (s32), capab (u32). TCA_POLICE_RATE, PEAKRATE: rate tables of 1024 bytes. AVRATE, RESULT (u32). RATE64, PEAKRATE64,
//! PKTRATE64, PKTBURST64 (u64)
//! ```

use libc::{EINVAL, ENOMEM};

use super::{GOTO_CHAIN, JUMP, OK, PIPE, SHOT, Shown, UNSPEC, VALUE, goto_chain, is_control, options};
use crate::RequestError;
use crate::attribute::{Attribute, Type, policy};
use crate::reply::Reply;
use crate::tc::RateSpec;

const TBF: u16 = 1;
const RATE: u16 = 2;
const PEAKRATE: u16 = 3;
const AVRATE: u16 = 4;
const RESULT: u16 = 5;
const TM: u16 = 6;
const PAD: u16 = 7;
const RATE64: u16 = 8;
const PEAKRATE64: u16 = 9;
const PKTRATE64: u16 = 10;
const PKTBURST64: u16 = 11;

/// Length of a rate table, whose contents nobody reads.
const TABLE: u16 = 1024;

const POLICY: [Type; 12] = policy(&[
    (RATE, Type::AtLeast(TABLE)),
    (PEAKRATE, Type::AtLeast(TABLE)),
    (AVRATE, Type::U32),
    (RESULT, Type::U32),
    (RATE64, Type::U64),
    (PEAKRATE64, Type::U64),
    (PKTRATE64, Type::U64),
    (PKTBURST64, Type::U64),
]);

/// Length of a `struct tc_police`, and of the shorter one of old programs.
const LEN: usize = 56;
const COMPAT_LEN: usize = 44;

/// A limit of a rate in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rate {
    /// Bytes a second.
    pub bytes: u64,
    /// How a packet's bytes are counted: link layer, overhead, least size.
    pub spec: RateSpec,
    /// Whether the rate table has the length of one.
    has_table: bool,
}

/// A policer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Police {
    /// Number among the policers. 0: any free one.
    pub index: u32,
    /// What becomes of a packet beyond the limit.
    pub action: i32,
    /// What becomes of one below it.
    pub result: i32,
    /// How long the bucket takes to fill, in ticks of 64 ns.
    pub burst: u32,
    /// Longest packet, in bytes; 0 in a request for the longest of the rate table.
    pub mtu: u32,
    /// The rate.
    pub rate: Option<Rate>,
    /// The peak rate.
    pub peak: Option<Rate>,
    /// Bytes a second, as measured, from which on packets are beyond the limit; 0 for none.
    pub average: u32,
    has_average: bool,
    packet_rate: Option<u64>,
    packet_burst: Option<u64>,
}

impl Police {
    /// Reads the options.
    ///
    /// # Errors
    /// As Linux's `tcf_police_init` until it looks for the action.
    pub fn parse(attribute: Option<&Attribute<'_>>) -> Result<Self, RequestError> {
        let attributes = options(attribute, &POLICY)?;
        let tbf = attributes.get(TBF).ok_or(RequestError::errno(EINVAL))?;
        if ![LEN, COMPAT_LEN].contains(&tbf.value.len()) {
            return Err(RequestError::errno(EINVAL));
        }
        let word = |at: usize| {
            let bytes = tbf.value.get(at..at + 4).and_then(|bytes| bytes.first_chunk::<4>());
            bytes.map_or(0, |bytes| u32::from_ne_bytes(*bytes))
        };
        let wide = |kind| attributes.get(kind).map(|attribute: Attribute<'_>| attribute.u64());
        let rate = |at: usize, table, rate64| {
            let bytes = tbf.value.get(at..).and_then(|bytes| bytes.first_chunk::<{ RateSpec::LEN }>());
            let spec = RateSpec::read(bytes.unwrap_or(&[0; RateSpec::LEN]));
            let table = attributes.get(table).is_some_and(|table| table.value.len() == usize::from(TABLE));
            let rate =
                Rate { bytes: wide(rate64).unwrap_or(0).max(spec.rate.into()), spec, has_table: table };
            (spec.rate != 0).then_some(rate)
        };
        let rates = (rate(20, RATE, RATE64), rate(32, PEAKRATE, PEAKRATE64));
        Ok(Self {
            index: word(0),
            action: word(4) as i32,
            result: attributes.get(RESULT).map_or(OK, |result| result.u32() as i32),
            burst: word(12),
            mtu: word(16),
            rate: rates.0,
            peak: rates.0.and(rates.1),
            average: attributes.get(AVRATE).map_or(0, |rate| rate.u32()),
            has_average: attributes.get(AVRATE).is_some(),
            packet_rate: wide(PKTRATE64),
            packet_burst: wide(PKTBURST64),
        })
    }

    /// The policer that is made of it, with its longest packet filled in. `estimated`: there is an estimator, or the
    /// request brings one.
    ///
    /// # Errors
    /// As Linux's `tcf_police_init` after it has looked for the action.
    pub fn check(mut self, estimated: bool) -> Result<Self, RequestError> {
        for rate in [&mut self.rate, &mut self.peak].into_iter().flatten() {
            // Linux: `qdisc_get_rtab`.
            if !rate.has_table || !(1..32).contains(&rate.spec.cell_log) {
                return Err(RequestError::errno(ENOMEM));
            }
        }
        if self.has_average && !estimated {
            return Err(RequestError::errno(EINVAL));
        }
        let invalid = |message| Err(RequestError::new(EINVAL, message));
        if !is_control(self.result) {
            return invalid("invalid fallback control action");
        }
        if goto_chain(self.result).is_some() {
            return invalid("goto chain not allowed on fallback");
        }
        if self.packet_rate.is_some() != self.packet_burst.is_some() {
            return invalid("Both or neither packet-per-second burst and rate must be provided");
        }
        if self.packet_rate.is_some() && self.rate.is_some() {
            return invalid("packet-per-second and byte-per-second rate limits not allowed in same action");
        }
        if self.mtu == 0 {
            self.mtu = self.rate.map_or(u32::MAX, |rate| 255_u32.wrapping_shl(rate.spec.cell_log.into()));
        }
        Ok(self)
    }

    /// Packets a second, and how long that bucket takes to fill, in ticks of 64 ns.
    pub fn packets(&self) -> Option<(u64, u64)> {
        self.packet_rate.zip(self.packet_burst)
    }

    /// Whether Linux could tell hardware of it: `tcf_police_act_to_flow_act`.
    pub(super) const fn offloads(&self) -> bool {
        const fn one(action: i32) -> bool {
            let opcode = action as u32 & !VALUE;
            matches!(action, OK | SHOT | PIPE | UNSPEC)
                || opcode == GOTO_CHAIN as u32
                || opcode == JUMP as u32
        }
        one(self.action) && one(self.result)
    }

    pub(super) fn write(&self, reply: &mut Reply<'_>, shown: &Shown<'_>) {
        let spec = |rate: Option<Rate>| {
            let Some(Rate { bytes, spec, .. }) = rate else { return RateSpec::default() };
            // The linklayer has 4 bits.
            let rate = bytes.min(u32::MAX.into()) as u32;
            RateSpec { rate, cell_log: 0, cell_align: 0, linklayer: spec.linklayer & 0xf, ..spec }
        };
        for (kind, rate) in [(RATE64, self.rate), (PEAKRATE64, self.peak)] {
            if let Some(Rate { bytes, .. }) = rate
                && bytes > u32::MAX.into()
            {
                reply.u64_aligned(kind, bytes, PAD);
            }
        }
        if let Some((rate, burst)) = self.packets() {
            reply.u64_aligned(PKTRATE64, rate, PAD);
            reply.u64_aligned(PKTBURST64, burst, PAD);
        }
        let mut tbf = Vec::with_capacity(LEN);
        for word in [shown.index, self.action as u32, 0, self.burst, self.mtu] {
            tbf.extend_from_slice(&word.to_ne_bytes());
        }
        tbf.extend_from_slice(&spec(self.rate).bytes());
        tbf.extend_from_slice(&spec(self.peak).bytes());
        for word in [shown.refs as u32, shown.binds as u32, 0] {
            tbf.extend_from_slice(&word.to_ne_bytes());
        }
        reply.attribute(TBF, &tbf);
        if self.result != OK {
            reply.u32(RESULT, self.result as u32);
        }
        if self.average != 0 {
            reply.u32(AVRATE, self.average);
        }
        shown.times.write(reply, TM, PAD);
    }
}
