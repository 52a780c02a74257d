//! `netem`, which makes a link worse: delay, loss, duplicates, corruption, another order, a rate. Linux:
//! `net/sched/sch_netem.c`.
//!
//! ```text
//! TCA_OPTIONS: struct tc_netem_qopt { latency, limit, loss, gap, duplicate, jitter (u32 each) }, then attributes
//! ```

use libc::{EINVAL, EOPNOTSUPP};

use super::{TCA_OPTIONS, ns_to_ticks, ticks_to_ns, word};
use crate::attribute::{Attribute, Attributes, Type, Validate, policy};
use crate::{Reply, RequestError};

const CORR: u16 = 1;
const DELAY_DIST: u16 = 2;
const REORDER: u16 = 3;
const CORRUPT: u16 = 4;
const LOSS: u16 = 5;
const RATE: u16 = 6;
const ECN: u16 = 7;
const RATE64: u16 = 8;
const PAD: u16 = 9;
const LATENCY64: u16 = 10;
const JITTER64: u16 = 11;
const SLOT: u16 = 12;
const SLOT_DIST: u16 = 13;
const PRNG_SEED: u16 = 14;

const POLICY: [Type; 15] = policy(&[
    (CORR, Type::AtLeast(12)),
    (DELAY_DIST, Type::Any),
    (REORDER, Type::AtLeast(8)),
    (CORRUPT, Type::AtLeast(8)),
    (RATE, Type::AtLeast(16)),
    (LOSS, Type::Nested),
    (ECN, Type::U32),
    (RATE64, Type::U64),
    (LATENCY64, Type::U64),
    (JITTER64, Type::U64),
    (SLOT, Type::AtLeast(40)),
    (SLOT_DIST, Type::Any),
    (PRNG_SEED, Type::U64),
]);

/// `NETEM_LOSS_GI` and `NETEM_LOSS_GE`.
const LOSS_STATES: u16 = 1;
const LOSS_GILBERT_ELLIOT: u16 = 2;

/// Length of a `struct tc_netem_qopt`.
const HEADER: usize = 24;
/// `NETEM_DIST_MAX`.
const MAX_DISTRIBUTION: usize = 16384;

/// How packets get lost. Probabilities are of 2³² - 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Loss {
    /// Each for itself, but for the correlation.
    Random,
    /// A chain of four states.
    States {
        /// From a gap to losing in a burst.
        p13: u32,
        /// From losing in a burst to a gap.
        p31: u32,
        /// From losing in a burst to sending in one.
        p32: u32,
        /// From a gap to a single loss.
        p14: u32,
        /// From sending in a burst to losing in one.
        p23: u32,
    },
    /// A chain of two states.
    GilbertElliot {
        /// From the good state to the bad one.
        p: u32,
        /// From the bad state to the good one.
        r: u32,
        /// In the bad state a packet is lost whose number is above this.
        h: u32,
        /// In the good state it is lost if its number is below this.
        k1: u32,
    },
}

/// How the time that a packet takes is computed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NetemRate {
    /// Bytes a second; 0: any.
    pub bytes: u64,
    /// Bytes that are added to each packet.
    pub packet_overhead: i32,
    /// Bytes of a cell; 0: there are none.
    pub cell_size: u32,
    /// Bytes that are added to each cell.
    pub cell_overhead: i32,
}

/// The parameters of the qdisc. Times are in nanoseconds, probabilities and correlations of 2³² - 1.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Netem {
    /// How long packets wait.
    pub latency: i64,
    /// By how much that varies.
    pub jitter: u32,
    /// Values that the delay varies by, of 8,192; none: each is as likely.
    pub distribution: Option<Vec<i16>>,
    /// Packets that wait at most.
    pub limit: u32,
    /// Probability that a packet is lost.
    pub loss: u32,
    /// How losses come about.
    pub loss_model: Loss,
    /// Packets are marked where they can be, not lost.
    pub ecn: bool,
    /// Probability that a packet is sent twice.
    pub duplicate: u32,
    /// Probability that a bit of a packet is inverted.
    pub corrupt: u32,
    /// Probability that a packet leaves at once.
    pub reorder: u32,
    /// How many packets are delayed before one may leave at once; 0: none ever does.
    pub gap: u32,
    /// The rate.
    pub rate: NetemRate,
    /// How much the numbers of delay, loss, duplication, reordering and corruption depend on the one before.
    pub correlations: [u32; 5],
    /// Where the numbers begin.
    pub seed: u64,
    /// The request has said so.
    pub seeded: bool,
}

/// The places of [`Netem::correlations`].
pub const DELAY_CORRELATION: usize = 0;
/// Of loss.
pub const LOSS_CORRELATION: usize = 1;
/// Of duplication.
pub const DUPLICATE_CORRELATION: usize = 2;
/// Of reordering.
pub const REORDER_CORRELATION: usize = 3;
/// Of corruption.
pub const CORRUPT_CORRELATION: usize = 4;

impl Netem {
    /// Makes the parameters of what a request says; `old` are those that there are. `seed`: where numbers begin if the
    /// request does not say.
    ///
    /// # Errors
    /// As Linux's `netem_change`. `EOPNOTSUPP` for slots.
    pub fn parse(
        options: Option<Attribute<'_>>,
        old: Option<&Self>,
        seed: u64,
    ) -> Result<Self, RequestError> {
        let invalid = RequestError::errno(EINVAL);
        let options = options.ok_or(invalid.clone())?;
        let (fixed, rest) = options.value.split_at_checked(HEADER).ok_or(invalid.clone())?;
        let base = options.offset as usize + 4 + HEADER;
        let attributes = Attributes::parse(&POLICY, rest, base, Validate::Liberal);
        let attributes = attributes.map_err(|error| RequestError::errno(error.errno))?;
        for kind in [SLOT, SLOT_DIST] {
            if let Some(slot) = attributes.get(kind) {
                let text = "Slots of netem are not supported by this router";
                return Err(RequestError::new(EOPNOTSUPP, text).at(slot.offset));
            }
        }
        let [latency, limit, loss, gap, duplicate, jitter] = [0, 4, 8, 12, 16, 20].map(|at| word(fixed, at));
        let distribution = match attributes.get(DELAY_DIST).map(|table| table.value) {
            None => old.and_then(|old| old.distribution.clone()),
            Some(table) => {
                let (values, _) = table.as_chunks::<2>();
                if values.is_empty() || values.len() > MAX_DISTRIBUTION {
                    return Err(invalid);
                }
                Some(values.iter().map(|value| i16::from_ne_bytes(*value)).collect())
            }
        };
        let loss_model = attributes.get(LOSS).map(|model| parse_loss(&model)).transpose()?;
        let mut correlations = old.map_or([0; 5], |old| old.correlations);
        let mut probability = |kind, place: usize, before| match attributes.get(kind) {
            None => before,
            Some(attribute) => {
                if let Some(correlation) = correlations.get_mut(place) {
                    *correlation = word(attribute.value, 4);
                }
                word(attribute.value, 0)
            }
        };
        let all = if gap > 0 { u32::MAX } else { old.map_or(0, |old| old.reorder) };
        let reorder = probability(REORDER, REORDER_CORRELATION, all);
        let corrupt = probability(CORRUPT, CORRUPT_CORRELATION, old.map_or(0, |old| old.corrupt));
        if let Some(corr) = attributes.get(CORR) {
            for (place, at) in correlations.iter_mut().zip([0, 4, 8]) {
                *place = word(corr.value, at);
            }
        }
        let mut rate = old.map_or(NetemRate::default(), |old| old.rate);
        if let Some(attribute) = attributes.get(RATE) {
            let [bytes, overhead, cell_size, cell_overhead] =
                [0, 4, 8, 12].map(|at| word(attribute.value, at));
            rate = NetemRate {
                bytes: bytes.into(),
                packet_overhead: overhead.cast_signed(),
                cell_size,
                cell_overhead: cell_overhead.cast_signed(),
            };
        }
        let long = |kind| attributes.get(kind).map(|number: Attribute<'_>| number.u64());
        rate.bytes = rate.bytes.max(long(RATE64).unwrap_or(0));
        let jitter = long(JITTER64).map_or(ticks_to_ns(jitter.into()).cast_signed(), u64::cast_signed);
        Ok(Self {
            latency: long(LATENCY64).unwrap_or(ticks_to_ns(latency.into())).cast_signed(),
            jitter: jitter.unsigned_abs().min(i32::MAX as u64) as u32,
            distribution,
            limit,
            loss,
            loss_model: loss_model.unwrap_or(Loss::Random),
            ecn: attributes.get(ECN).map_or(old.is_some_and(|old| old.ecn), |ecn| ecn.u32() != 0),
            duplicate,
            corrupt,
            reorder,
            gap,
            rate,
            correlations,
            seed: long(PRNG_SEED).unwrap_or(seed),
            seeded: attributes.get(PRNG_SEED).is_some(),
        })
    }

    /// Writes `TCA_OPTIONS`.
    pub fn write(&self, reply: &mut Reply<'_>) {
        let ticks = |nanos: i64| ns_to_ticks(nanos.cast_unsigned()).min(u32::MAX.into()) as u32;
        let [delay, loss, duplicate, reorder, corrupt] = self.correlations;
        let nest = reply.nest_unflagged(TCA_OPTIONS);
        let fixed =
            [ticks(self.latency), self.limit, self.loss, self.gap, self.duplicate, ticks(self.jitter.into())];
        reply.fixed(&words(&fixed));
        reply.u64(LATENCY64, self.latency.cast_unsigned());
        reply.u64(JITTER64, self.jitter.into());
        reply.attribute(CORR, &words(&[delay, loss, duplicate]));
        reply.attribute(REORDER, &words(&[self.reorder, reorder]));
        reply.attribute(CORRUPT, &words(&[self.corrupt, corrupt]));
        let NetemRate { bytes, packet_overhead, cell_size, cell_overhead } = self.rate;
        if bytes > u32::MAX.into() {
            reply.u64_aligned(RATE64, bytes, PAD);
        }
        let short = bytes.min(u32::MAX.into()) as u32;
        let rate = [short, packet_overhead.cast_unsigned(), cell_size, cell_overhead.cast_unsigned()];
        reply.attribute(RATE, &words(&rate));
        if self.ecn {
            reply.u32(ECN, 1);
        }
        let model = match self.loss_model {
            Loss::Random => None,
            Loss::States { p13, p31, p32, p14, p23 } => {
                Some((LOSS_STATES, words(&[p13, p31, p32, p14, p23])))
            }
            Loss::GilbertElliot { p, r, h, k1 } => Some((LOSS_GILBERT_ELLIOT, words(&[p, r, h, k1]))),
        };
        if let Some((kind, model)) = model {
            let loss = reply.nest_unflagged(LOSS);
            reply.attribute(kind, &model);
            reply.end(loss);
        }
        reply.u64_aligned(PRNG_SEED, self.seed, PAD);
        reply.end(nest);
    }
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// Linux: `get_loss_clg`. The last of several holds.
fn parse_loss(models: &Attribute<'_>) -> Result<Loss, RequestError> {
    let mut loss = Loss::Random;
    for model in models.nested() {
        let at = |place: usize| word(model.value, place * 4);
        loss = match (model.kind, model.value.len()) {
            (LOSS_STATES, 20..) => {
                Loss::States { p13: at(0), p31: at(1), p32: at(2), p14: at(3), p23: at(4) }
            }
            (LOSS_GILBERT_ELLIOT, 16..) => Loss::GilbertElliot { p: at(0), r: at(1), h: at(2), k1: at(3) },
            _ => return Err(RequestError::errno(EINVAL)),
        };
    }
    Ok(loss)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::encap::tests::written;

    fn options(value: &[u8]) -> Option<Attribute<'_>> {
        Some(Attribute { kind: TCA_OPTIONS, offset: 0, value })
    }

    fn qopt(attributes: impl Fn(&mut Reply<'_>)) -> Vec<u8> {
        written(|reply| {
            reply.fixed(&words(&[0, 1000, 0, 0, 0, 0]));
            attributes(reply);
        })
    }

    #[test]
    fn what_is_refused() {
        let errno = |bytes: &[u8]| Netem::parse(options(bytes), None, 1).unwrap_err().errno;
        assert_eq!(errno(&[0; 23]), EINVAL);
        assert_eq!(errno(&qopt(|reply| reply.attribute(DELAY_DIST, &[]))), EINVAL);
        assert_eq!(errno(&qopt(|reply| reply.attribute(DELAY_DIST, &[0; 2 * MAX_DISTRIBUTION + 2]))), EINVAL);
        assert_eq!(errno(&qopt(|reply| reply.attribute(SLOT, &[0; 48]))), EOPNOTSUPP);
        assert_eq!(errno(&qopt(|reply| reply.attribute(CORR, &[0; 8]))), libc::ERANGE);
        for (kind, len) in [(LOSS_STATES, 16), (LOSS_GILBERT_ELLIOT, 12), (3, 20)] {
            let bytes = qopt(|reply| {
                let nest = reply.nest_unflagged(LOSS);
                reply.attribute(kind, &vec![0; len]);
                reply.end(nest);
            });
            assert_eq!(errno(&bytes), EINVAL);
        }
        assert_eq!(Netem::parse(None, None, 1), Err(RequestError::errno(EINVAL)));
    }

    /// A change keeps what it does not name, but for what always stands in a request.
    #[test]
    fn changes() {
        let first = qopt(|reply| {
            reply.attribute(CORR, &words(&[1, 2, 3]));
            reply.attribute(CORRUPT, &words(&[4, 5]));
            reply.attribute(RATE, &words(&[6, 7, 8, 9]));
            reply.attribute(DELAY_DIST, &[1, 0, 2, 0]);
            reply.u32(ECN, 1);
        });
        let first = Netem::parse(options(&first), None, 11).unwrap();
        assert_eq!((first.reorder, first.seed), (0, 11));
        let second = written(|reply| reply.fixed(&words(&[0, 5, 6, 7, 8, 0])));
        let second = Netem::parse(options(&second), Some(&first), 12).unwrap();
        let changed = Netem { limit: 5, loss: 6, gap: 7, duplicate: 8, reorder: u32::MAX, seed: 12, ..first };
        assert_eq!(second, changed);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            latency: u32, jitter: u32, numbers: [u32; 6], rate: (u64, i32, u32, i32), correlations: [u32; 5], ecn: bool,
            seed: u64, model in 0..3, parts: [u32; 5],
        ) {
            let [p13, p31, p32, p14, p23] = parts;
            let [limit, loss, duplicate, corrupt, reorder, gap] = numbers;
            let netem = Netem {
                latency: latency.into(),
                jitter: jitter >> 1,
                distribution: None,
                limit,
                loss,
                loss_model: match model {
                    0 => Loss::Random,
                    1 => Loss::States { p13, p31, p32, p14, p23 },
                    _ => Loss::GilbertElliot { p: p13, r: p31, h: p32, k1: p14 },
                },
                ecn,
                duplicate,
                corrupt,
                reorder,
                gap,
                rate: NetemRate { bytes: rate.0, packet_overhead: rate.1, cell_size: rate.2, cell_overhead: rate.3 },
                correlations,
                seed,
                seeded: true,
            };
            let bytes = written(|reply| netem.write(reply));
            prop_assert_eq!(Netem::parse(options(&bytes[4..]), None, 0), Ok(netem));
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
            let _ = Netem::parse(options(&bytes), None, 0);
        }
    }
}
