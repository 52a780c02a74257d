//! `htb`, hierarchical token bucket. Linux: `net/sched/sch_htb.c`.

use libc::{EINVAL, EOPNOTSUPP};

use super::rate::{Rate, detect, from_ticks, to_ticks};
use super::statistics::words;
use super::{RateSpec, TCA_OPTIONS, word};
use crate::attribute::{Attribute, Type, Validate, policy};
use crate::{Reply, RequestError};

const PARMS: u16 = 1;
const INIT: u16 = 2;
const CTAB: u16 = 3;
const RTAB: u16 = 4;
const DIRECT_QLEN: u16 = 5;
const RATE64: u16 = 6;
const CEIL64: u16 = 7;
const PAD: u16 = 8;
const OFFLOAD: u16 = 9;

/// Length of a `struct tc_htb_opt`.
const OPT: usize = 44;
/// Length of a `struct tc_htb_glob`.
const GLOB: usize = 20;

const POLICY: [Type; 10] = policy(&[
    (PARMS, Type::AtLeast(OPT as u16)),
    (INIT, Type::AtLeast(GLOB as u16)),
    (CTAB, Type::AtMost(1024)),
    (RTAB, Type::AtMost(1024)),
    (DIRECT_QLEN, Type::U32),
    (RATE64, Type::U64),
    (CEIL64, Type::U64),
    (OFFLOAD, Type::Flag),
]);

/// `HTB_VER >> 16`, which a request has to know.
const VERSION: u32 = 3;
/// `HTB_VER`, as it is shown.
const SHOWN_VERSION: u32 = 0x3_0011;

/// The parameters of the qdisc.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Htb {
    /// `r2q`: by what the rate of a class is divided for its quantum; at least 1.
    pub rate_to_quantum: u32,
    /// `default`: minor number of the class for what no filter classifies.
    pub default: u32,
    /// `direct_qlen`: packets that wait unshaped at most; `None` for the queue length of the link.
    pub direct_limit: Option<u32>,
}

impl Htb {
    /// Reads `TCA_OPTIONS` of a qdisc.
    ///
    /// # Errors
    /// `EINVAL` without them and for another version; `EOPNOTSUPP` for an offload to hardware.
    pub fn parse(options: Option<Attribute<'_>>) -> Result<Self, RequestError> {
        let invalid = RequestError::errno(EINVAL);
        let options = options.ok_or(invalid.clone())?.parse_nested(&POLICY, Validate::Liberal)?;
        let init = options.get(INIT).ok_or(invalid.clone())?.value;
        if word(init, 0) != VERSION {
            return Err(invalid);
        }
        if options.get(OFFLOAD).is_some() {
            let text = "hw-tc-offload ethtool feature flag must be on";
            return Err(RequestError::new(EOPNOTSUPP, text));
        }
        Ok(Self {
            rate_to_quantum: word(init, 4).max(1),
            default: word(init, 8),
            direct_limit: options.get(DIRECT_QLEN).map(|limit| limit.u32()),
        })
    }

    /// Writes `TCA_OPTIONS`. `direct_limit`: the one in force; `direct`: packets that went unshaped.
    pub fn write(&self, reply: &mut Reply<'_>, direct_limit: u32, direct: u32) {
        let nest = reply.nest_unflagged(TCA_OPTIONS);
        reply.attribute(INIT, &words(&[SHOWN_VERSION, self.rate_to_quantum, self.default, 0, direct]));
        reply.u32(DIRECT_QLEN, direct_limit);
        reply.end(nest);
    }
}

/// The parameters of the class.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HtbClass {
    /// What it may send.
    pub rate: Rate,
    /// What it may send with what others lend it.
    pub ceil: Rate,
    /// Its burst at `rate`, as the time it takes, in nanoseconds.
    pub buffer: u64,
    /// The same at `ceil`.
    pub ceil_buffer: u64,
    /// Bytes that it sends in its turn; 0 in a request: to be computed from its rate.
    pub quantum: u32,
    /// Classes of a lower number are served before.
    pub priority: u32,
}

impl HtbClass {
    /// Reads `TCA_OPTIONS` of a class.
    ///
    /// # Errors
    /// `EINVAL` without them, and for a rate or ceiling of 0.
    pub fn parse(options: Option<Attribute<'_>>) -> Result<Self, RequestError> {
        let invalid = RequestError::errno(EINVAL);
        let options = options.ok_or(invalid.clone())?.parse_nested(&POLICY, Validate::Liberal)?;
        let parameters = options.get(PARMS).ok_or(invalid.clone())?.value;
        let (rate, ceil) = (super::rate::spec(parameters, 0), super::rate::spec(parameters, RateSpec::LEN));
        if rate.rate == 0 || ceil.rate == 0 {
            return Err(invalid);
        }
        let number = |at: usize| word(parameters, 2 * RateSpec::LEN + 4 * at);
        Ok(Self {
            rate: Rate::new(&detect(rate, options.get(RTAB)), options.get(RATE64)),
            ceil: Rate::new(&detect(ceil, options.get(CTAB)), options.get(CEIL64)),
            buffer: from_ticks(number(0)),
            ceil_buffer: from_ticks(number(1)),
            quantum: number(2),
            priority: number(4),
        })
    }

    /// Writes `TCA_OPTIONS`. `level`: 0 for a class without others below it.
    pub fn write(&self, reply: &mut Reply<'_>, level: u32) {
        let numbers = [to_ticks(self.buffer), to_ticks(self.ceil_buffer), self.quantum, level, self.priority];
        let parameters =
            [&self.rate.spec().bytes()[..], &self.ceil.spec().bytes(), &words(&numbers)].concat();
        let nest = reply.nest_unflagged(TCA_OPTIONS);
        reply.attribute(PARMS, &parameters);
        if self.rate.wide() {
            reply.u64_aligned(RATE64, self.rate.bytes, PAD);
        }
        if self.ceil.wide() {
            reply.u64_aligned(CEIL64, self.ceil.bytes, PAD);
        }
        reply.end(nest);
    }
}

/// `struct tc_htb_xstats`: what a class counts besides.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HtbCounts {
    /// Packets that it sent within its rate.
    pub lends: u32,
    /// Packets that it sent with what others lent.
    pub borrows: u32,
    /// Tokens, as time in nanoseconds.
    pub tokens: i64,
    /// Tokens of the ceiling.
    pub ceil_tokens: i64,
}

impl HtbCounts {
    /// Writes the structure.
    pub fn bytes(&self) -> Vec<u8> {
        let ticks = |tokens: i64| (tokens >> 6).clamp(i32::MIN.into(), i32::MAX.into()) as u32;
        words(&[self.lends, self.borrows, 0, ticks(self.tokens), ticks(self.ceil_tokens)])
    }
}
