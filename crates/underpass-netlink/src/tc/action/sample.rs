//! `sample`: shows one packet of so many to whoever listens to a group. Linux: `net/sched/act_sample.c`.
//!
//! ```text
//! TCA_SAMPLE_PARMS: tc_gen. TCA_SAMPLE_RATE, TRUNC_SIZE, PSAMPLE_GROUP (u32)
//! ```

use libc::EINVAL;

use super::{Generic, Times, options};
use crate::RequestError;
use crate::attribute::{Attribute, Type, policy};
use crate::reply::Reply;

const TM: u16 = 1;
const PARMS: u16 = 2;
const RATE: u16 = 3;
const TRUNC_SIZE: u16 = 4;
const PSAMPLE_GROUP: u16 = 5;
const PAD: u16 = 6;

const POLICY: [Type; 7] = policy(&[
    (PARMS, Type::AtLeast(Generic::LEN as u16)),
    (RATE, Type::U32),
    (TRUNC_SIZE, Type::U32),
    (PSAMPLE_GROUP, Type::U32),
]);

/// What is sampled for whom.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sample {
    /// Index and control action.
    pub generic: Generic,
    /// One of so many packets.
    pub rate: Option<u32>,
    /// Bytes of a packet that are shown. `None`: all.
    pub truncate: Option<u32>,
    /// Number of the group.
    pub group: Option<u32>,
}

impl Sample {
    /// Reads the options.
    ///
    /// # Errors
    /// As Linux's `tcf_sample_init` until it looks for the action.
    pub fn parse(attribute: Option<&Attribute<'_>>) -> Result<Self, RequestError> {
        let attributes = options(attribute, &POLICY)?;
        let parms = attributes.get(PARMS).ok_or(RequestError::errno(EINVAL))?;
        let word = |kind| attributes.get(kind).map(|attribute: Attribute<'_>| attribute.u32());
        let generic = Generic::read(parms.value);
        Ok(Self { generic, rate: word(RATE), truncate: word(TRUNC_SIZE), group: word(PSAMPLE_GROUP) })
    }

    /// Rate and group.
    ///
    /// # Errors
    /// `EINVAL` where one of them is missing.
    pub fn required(&self) -> Result<(u32, u32), RequestError> {
        let missing = RequestError::new(EINVAL, "sample rate and group are required");
        self.rate.zip(self.group).ok_or(missing)
    }

    pub(super) fn write(&self, reply: &mut Reply<'_>, times: Times) {
        reply.attribute(PARMS, &self.generic.bytes());
        times.write(reply, TM, PAD);
        for (kind, value) in [(RATE, self.rate), (TRUNC_SIZE, self.truncate), (PSAMPLE_GROUP, self.group)] {
            if let Some(value) = value {
                reply.u32(kind, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::encap::tests::written;

    fn parse(bytes: &[u8]) -> Result<Sample, RequestError> {
        Sample::parse(Some(&Attribute { kind: 2, offset: 0, value: bytes }))
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(index: u32, words: [Option<u32>; 3]) {
            let [rate, truncate, group] = words;
            let generic = Generic { index, action: 3, ..Generic::default() };
            let sample = Sample { generic, rate, truncate, group };
            prop_assert_eq!(parse(&written(|reply| sample.write(reply, Times::default()))), Ok(sample));
            prop_assert_eq!(sample.required().is_ok(), rate.is_some() && group.is_some());
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
            let _ = parse(&bytes);
        }
    }

    #[test]
    fn parameters_are_needed() {
        assert_eq!(Sample::parse(None), Err(RequestError::errno(EINVAL)));
        assert_eq!(parse(&[]), Err(RequestError::errno(EINVAL)));
        let short = written(|reply| reply.attribute(PARMS, &[0; 16]));
        assert_eq!(parse(&short).unwrap_err().errno, libc::ERANGE);
    }
}
