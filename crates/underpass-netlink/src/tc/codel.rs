//! `codel`, controlled delay. RFC 8289; Linux: `net/sched/sch_codel.c`.

use super::TCA_OPTIONS;
use super::fq_codel::{microseconds, time};
use super::statistics::words;
use crate::attribute::{Attribute, Type, Validate, policy};
use crate::{Reply, RequestError};

const TARGET: u16 = 1;
const LIMIT: u16 = 2;
const INTERVAL: u16 = 3;
const ECN: u16 = 4;
const CE_THRESHOLD: u16 = 5;

const POLICY: [Type; 6] = policy(&[
    (TARGET, Type::U32),
    (LIMIT, Type::U32),
    (INTERVAL, Type::U32),
    (ECN, Type::U32),
    (CE_THRESHOLD, Type::U32),
]);

/// The parameters of the qdisc. Times are in units of 1,024 ns, as Linux holds them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Codel {
    /// How long packets may wait.
    pub target: u32,
    /// Packets that wait at most.
    pub limit: u32,
    /// Over what time.
    pub interval: u32,
    /// Packets are marked where they can be, not dropped.
    pub ecn: bool,
    /// From what waiting time on all packets are marked.
    pub ce_threshold: Option<u32>,
}

impl Default for Codel {
    fn default() -> Self {
        Self { target: time(5_000), limit: 1000, interval: time(100_000), ecn: false, ce_threshold: None }
    }
}

impl Codel {
    /// Takes over what `TCA_OPTIONS` say.
    ///
    /// # Errors
    /// What breaks the policy.
    pub fn change(&mut self, options: Option<Attribute<'_>>) -> Result<(), RequestError> {
        let Some(options) = options else { return Ok(()) };
        let options = options.parse_nested(&POLICY, Validate::Liberal);
        let options = options.map_err(|error| RequestError::errno(error.errno))?;
        let number = |kind| options.get(kind).map(|number| number.u32());
        self.target = number(TARGET).map_or(self.target, time);
        self.ce_threshold = number(CE_THRESHOLD).map(time).or(self.ce_threshold);
        self.interval = number(INTERVAL).map_or(self.interval, time);
        self.limit = number(LIMIT).unwrap_or(self.limit);
        self.ecn = number(ECN).map_or(self.ecn, |ecn| ecn != 0);
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
        reply.u32(TARGET, self.target_us());
        reply.u32(LIMIT, self.limit);
        reply.u32(INTERVAL, self.interval_us());
        reply.u32(ECN, u32::from(self.ecn));
        if let Some(threshold) = self.ce_threshold_us() {
            reply.u32(CE_THRESHOLD, threshold);
        }
        reply.end(nest);
    }
}

/// `struct tc_codel_xstats`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CodelCounts {
    /// Longest packet so far, in bytes.
    pub max_packet: u32,
    /// Packets dropped since it began to drop.
    pub count: u32,
    /// How many they were when it began.
    pub last_count: u32,
    /// How long the last packet waited, in microseconds.
    pub delay: u32,
    /// When the next one is dropped, in microseconds from now.
    pub drop_next: i32,
    /// Packets dropped because there were too many.
    pub drop_overlimit: u32,
    /// Packets marked.
    pub ecn_mark: u32,
    /// Whether it is dropping.
    pub dropping: bool,
    /// Packets marked for the threshold.
    pub ce_mark: u32,
}

impl CodelCounts {
    /// Writes the structure.
    pub fn bytes(&self) -> Vec<u8> {
        words(&[
            self.max_packet,
            self.count,
            self.last_count,
            self.delay,
            self.drop_next.cast_unsigned(),
            self.drop_overlimit,
            self.ecn_mark,
            self.dropping.into(),
            self.ce_mark,
        ])
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::encap::tests::written;

    proptest! {
        #[test]
        fn what_is_written_is_read(numbers: [u32; 3], ecn: bool, ce_threshold: Option<u32>) {
            let [target, limit, interval] = numbers.map(|number| number >> 4);
            let codel = Codel { target, limit, interval, ecn, ce_threshold: ce_threshold.map(|time| time >> 4) };
            let bytes = written(|reply| codel.write(reply));
            let mut read = Codel::default();
            read.change(Some(Attribute { kind: TCA_OPTIONS, offset: 0, value: &bytes[4..] })).unwrap();
            // In microseconds it is a unit less, at most.
            prop_assert!(target - read.target <= 1 && interval - read.interval <= 1);
            prop_assert_eq!((read.limit, read.ecn), (limit, ecn));
            prop_assert_eq!(read.ce_threshold.is_some(), ce_threshold.is_some());
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
            let _ = Codel::default().change(Some(Attribute { kind: TCA_OPTIONS, offset: 0, value: &bytes }));
        }
    }
}
