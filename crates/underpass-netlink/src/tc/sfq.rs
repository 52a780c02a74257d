//! `sfq`, fair queueing by chance. Linux: `net/sched/sch_sfq.c`.
//!
//! ```text
//! TCA_OPTIONS: struct tc_sfq_qopt { quantum, perturb_period, limit, divisor, flows (u32 each) }, and in
//!     tc_sfq_qopt_v1 { depth, headdrop, limit, qth_min, qth_max (u32 each), Wlog, Plog, Scell_log, flags (u8 each),
//!     max_P (u32), six counts (u32) }
//! ```

use libc::{EINVAL, EOPNOTSUPP};

use super::{TCA_OPTIONS, word};
use crate::attribute::Attribute;
use crate::{Reply, RequestError};

/// Lengths of the two structures.
const SHORT: usize = 20;
const LONG: usize = 72;
/// `SFQ_MAX_DEPTH`.
const MAX_DEPTH: u32 = 127;
/// `SFQ_MAX_FLOWS`.
const MAX_FLOWS: u32 = 0x1_0000 - MAX_DEPTH - 1;
/// Most seconds between two changes of the hash: `INT_MAX / HZ`, of Linux's usual 250.
const MAX_PERTURB: i32 = i32::MAX / 250;

/// The parameters of the qdisc.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sfq {
    /// Bytes that a flow sends in its turn.
    pub quantum: u32,
    /// Seconds between two changes of the hash; 0: it never changes.
    pub perturb: u32,
    /// Packets in all queues together.
    pub limit: u32,
    /// How many hashes there are.
    pub divisor: u32,
    /// How many queues there are.
    pub flows: u32,
    /// Packets in a queue.
    pub depth: u32,
    /// The first packet of a queue is dropped, not the last.
    pub head_drop: bool,
}

impl Sfq {
    /// Reads `TCA_OPTIONS`. `mtu`: longest frame of the link, in bytes.
    ///
    /// # Errors
    /// As Linux's `sfq_change`; `EOPNOTSUPP` for RED in the queues.
    pub fn parse(options: Option<Attribute<'_>>, mtu: u32) -> Result<Self, RequestError> {
        let mut sfq = Self {
            quantum: mtu,
            perturb: 0,
            limit: MAX_DEPTH,
            divisor: 1024,
            flows: 128,
            depth: MAX_DEPTH,
            head_drop: false,
        };
        let Some(options) = options else { return Ok(sfq) };
        let invalid = RequestError::errno(EINVAL);
        if options.value.len() < SHORT {
            return Err(invalid);
        }
        let [quantum, perturb, limit, divisor, flows] = [0, 4, 8, 12, 16].map(|at| word(options.value, at));
        if divisor != 0 && (!divisor.is_power_of_two() || divisor > 65536) {
            return Err(invalid);
        }
        if quantum.cast_signed() < 0 {
            return Err(RequestError::new(EINVAL, "sch_sfq: invalid quantum"));
        }
        if !(0..=MAX_PERTURB).contains(&perturb.cast_signed()) {
            return Err(RequestError::new(EINVAL, "sch_sfq: invalid perturb period"));
        }
        if quantum != 0 {
            sfq.quantum = quantum;
        }
        sfq.perturb = perturb;
        if flows != 0 {
            sfq.flows = flows.min(MAX_FLOWS);
        }
        if divisor != 0 {
            sfq.divisor = divisor;
            sfq.flows = sfq.flows.min(divisor);
        }
        if options.value.len() >= LONG {
            let [depth, head_drop, _, least] = [20, 24, 28, 32].map(|at| word(options.value, at));
            if least != 0 {
                let text = "RED in the queues of sfq is not supported by this router";
                return Err(RequestError::new(EOPNOTSUPP, text).at(options.offset));
            }
            if depth != 0 {
                sfq.depth = depth.min(MAX_DEPTH);
            }
            sfq.head_drop = head_drop != 0;
        }
        if limit != 0 {
            sfq.limit = limit.min(sfq.depth * sfq.flows);
            sfq.flows = sfq.flows.min(sfq.limit);
        }
        if sfq.limit == 1 {
            return Err(RequestError::new(EINVAL, "sch_sfq: invalid limit"));
        }
        Ok(sfq)
    }

    /// Writes `TCA_OPTIONS`.
    pub fn write(&self, reply: &mut Reply<'_>) {
        let Self { quantum, perturb, limit, divisor, flows, depth, head_drop } = *self;
        let words = [quantum, perturb, limit, divisor, flows, depth, head_drop.into()];
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        bytes.resize(LONG, 0);
        reply.attribute(TCA_OPTIONS, &bytes);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::encap::tests::written;

    fn parse(words: &[u32]) -> Result<Sfq, RequestError> {
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        if words.len() > 5 {
            bytes.resize(LONG, 0);
        }
        Sfq::parse(Some(Attribute { kind: TCA_OPTIONS, offset: 0, value: &bytes }), 1514)
    }

    /// Linux 6.12's answers.
    #[test]
    fn what_is_refused_and_what_is_cut() {
        let text = |words: &[u32]| parse(words).unwrap_err().message.unwrap_or_default().into_owned();
        assert_eq!(text(&[0, 0, 0, 0]), "");
        assert_eq!(text(&[0, 0, 0, 1000, 0]), "");
        assert_eq!(text(&[0, 0, 0, 1 << 17, 0]), "");
        assert_eq!(text(&[1 << 31, 0, 0, 0, 0]), "sch_sfq: invalid quantum");
        assert_eq!(text(&[0, u32::MAX, 0, 0, 0]), "sch_sfq: invalid perturb period");
        assert_eq!(text(&[0, 0, 1, 0, 0]), "sch_sfq: invalid limit");
        assert_eq!(
            text(&[0, 0, 0, 0, 0, 0, 0, 0, 8000]),
            "RED in the queues of sfq is not supported by this router"
        );
        let flows = |words: &[u32]| parse(words).map(|sfq| (sfq.limit, sfq.flows, sfq.divisor, sfq.depth));
        assert_eq!(flows(&[0, 0, 0, 64, 128]), Ok((127, 64, 64, 127)));
        assert_eq!(flows(&[0, 0, 5, 0, 10]), Ok((5, 5, 1024, 127)));
        assert_eq!(flows(&[0, 0, 9999, 0, 2, 3, 0]), Ok((6, 2, 1024, 3)));
        assert_eq!(flows(&[0, 0, 0, 0, 0, 200, 0]), Ok((127, 128, 1024, 127)));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(words: [u32; 7]) {
            if let Ok(sfq) = parse(&words) {
                let bytes = written(|reply| sfq.write(reply));
                let again = Sfq::parse(Some(Attribute { kind: TCA_OPTIONS, offset: 0, value: &bytes[4..] }), 9);
                prop_assert_eq!(again, Ok(sfq));
            }
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
            let _ = Sfq::parse(Some(Attribute { kind: TCA_OPTIONS, offset: 0, value: &bytes }), 1514);
        }
    }
}
