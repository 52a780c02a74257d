//! `tbf`, token bucket filter. Linux: `net/sched/sch_tbf.c`.

use libc::EINVAL;

use super::rate::{Rate, detect, from_ticks, spec, to_ticks};
use super::statistics::words;
use super::{RateSpec, TCA_OPTIONS, word};
use crate::attribute::{Attribute, Type, Validate, policy};
use crate::{Reply, RequestError};

const PARMS: u16 = 1;
const RTAB: u16 = 2;
const PTAB: u16 = 3;
const RATE64: u16 = 4;
const PRATE64: u16 = 5;
const BURST: u16 = 6;
const PBURST: u16 = 7;
const PAD: u16 = 8;

/// Length of a `struct tc_tbf_qopt`.
const QOPT: u16 = 36;

const POLICY: [Type; 9] = policy(&[
    (PARMS, Type::AtLeast(QOPT)),
    (RTAB, Type::AtMost(1024)),
    (PTAB, Type::AtMost(1024)),
    (RATE64, Type::U64),
    (PRATE64, Type::U64),
    (BURST, Type::U32),
    (PBURST, Type::U32),
]);

/// The parameters of the qdisc.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tbf {
    /// What it lets through.
    pub rate: Rate,
    /// What it lets through in a short time.
    pub peak: Option<Rate>,
    /// Bytes that wait at most.
    pub limit: u32,
    /// The burst at `rate`, as the time it takes, in nanoseconds.
    pub buffer: u64,
    /// The same at `peak`.
    pub mtu: u64,
    /// Longest packet that passes, in bytes.
    pub max_size: u64,
}

impl Tbf {
    /// Reads `TCA_OPTIONS`. `time`: nanoseconds that so many bytes take at a rate; `length`: bytes that pass in so many
    /// nanoseconds.
    ///
    /// # Errors
    /// `EINVAL` without them, if the peak rate is not above the rate, or no packet would pass.
    pub fn parse(
        options: Option<Attribute<'_>>,
        time: impl Fn(&Rate, u32) -> u64,
        length: impl Fn(&Rate, u64) -> u64,
    ) -> Result<Self, RequestError> {
        let invalid = RequestError::errno(EINVAL);
        let options = options.ok_or(invalid.clone())?;
        // Linux has no text for what its policy refuses here.
        let options = options
            .parse_nested(&POLICY, Validate::Liberal)
            .map_err(|error| RequestError::errno(error.errno))?;
        let parameters = options.get(PARMS).ok_or(invalid.clone())?.value;
        let rate = detect(spec(parameters, 0), options.get(RTAB));
        let peak = detect(spec(parameters, RateSpec::LEN), options.get(PTAB));
        let number = |at: usize| word(parameters, 2 * RateSpec::LEN + 4 * at);
        let narrow = |wide: u64| wide.min(u64::from(u32::MAX));
        let (mut buffer, mut mtu) = (from_ticks(number(1)), from_ticks(number(2)));
        let rate = Rate::new(&rate, options.get(RATE64));
        let mut max_size = if let Some(burst) = options.get(BURST) {
            buffer = time(&rate, burst.u32());
            u64::from(burst.u32())
        } else {
            narrow(length(&rate, narrow(buffer)))
        };
        let peak = (peak.rate != 0).then(|| Rate::new(&peak, options.get(PRATE64)));
        if let Some(peak) = &peak {
            if peak.bytes <= rate.bytes {
                return Err(invalid);
            }
            if let Some(burst) = options.get(PBURST) {
                max_size = max_size.min(u64::from(burst.u32()));
                mtu = time(peak, burst.u32());
            } else {
                max_size = max_size.min(length(peak, narrow(mtu)));
            }
        } else if options.get(PBURST).is_some() {
            mtu = narrow(mtu);
        }
        if max_size == 0 {
            return Err(invalid);
        }
        Ok(Self { rate, peak, limit: number(0), buffer, mtu, max_size })
    }

    /// Writes `TCA_OPTIONS`.
    pub fn write(&self, reply: &mut Reply<'_>) {
        let peak = self.peak.unwrap_or_default();
        let numbers = [self.limit, to_ticks(self.buffer), to_ticks(self.mtu)];
        let parameters = [&self.rate.spec().bytes()[..], &peak.spec().bytes(), &words(&numbers)].concat();
        let nest = reply.nest_unflagged(TCA_OPTIONS);
        reply.attribute(PARMS, &parameters);
        if self.rate.wide() {
            reply.u64_aligned(RATE64, self.rate.bytes, PAD);
        }
        if peak.wide() {
            reply.u64_aligned(PRATE64, peak.bytes, PAD);
        }
        reply.end(nest);
    }
}
