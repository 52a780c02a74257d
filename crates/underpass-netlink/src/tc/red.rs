//! `red`, random early detection. Linux: `net/sched/sch_red.c`, `include/net/red.h`.
//!
//! ```text
//! TCA_RED_PARMS: struct tc_red_qopt { limit, qth_min, qth_max (u32 each), Wlog, Plog, Scell_log, flags (u8 each) }
//! TCA_RED_STAB: 256 bytes. TCA_RED_MAX_P: u32. TCA_RED_FLAGS: bit field
//! ```

use libc::{EINVAL, EOPNOTSUPP};

use super::statistics::words;
use super::{Bits, TCA_OPTIONS, word};
use crate::attribute::{Attribute, Type, Validate, policy};
use crate::{Reply, RequestError};

const PARMS: u16 = 1;
const STAB: u16 = 2;
const MAX_P: u16 = 3;
const FLAGS: u16 = 4;
const EARLY_DROP_BLOCK: u16 = 5;
const MARK_BLOCK: u16 = 6;

const POLICY: [Type; 7] = policy(&[
    (PARMS, Type::AtLeast(16)),
    (STAB, Type::AtLeast(TABLE as u16)),
    (MAX_P, Type::U32),
    (FLAGS, Type::Exact(8)),
    (EARLY_DROP_BLOCK, Type::U32),
    (MARK_BLOCK, Type::U32),
]);

/// `RED_STAB_SIZE`.
const TABLE: usize = 256;

/// `TC_RED_ECN`: packets are marked where they can be, not dropped.
pub const ECN: u32 = 1;
/// `TC_RED_HARDDROP`: beyond the maximum they are dropped all the same.
pub const HARD_DROP: u32 = 2;
/// `TC_RED_ADAPTATIVE`: the probability follows the queue.
const ADAPTIVE: u32 = 4;
/// `TC_RED_NODROP`: what cannot be marked is queued.
pub const NO_DROP: u32 = 8;
/// The flags that stand in the parameters.
const HISTORIC: u32 = ECN | HARD_DROP | ADAPTIVE;
/// All flags.
const SUPPORTED: u32 = HISTORIC | NO_DROP;

/// The parameters of the qdisc.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Red {
    /// Bytes that wait at most; 0: what is in it stays.
    pub limit: u32,
    /// Average below which nothing is dropped, in bytes.
    pub least: u32,
    /// Average from which on everything is.
    pub most: u32,
    /// How slowly the average follows: 2 to this power of packets.
    pub window_log: u8,
    /// The probability where `max_p` is 0: the difference of both averages by 2 to this power.
    pub probability_log: u8,
    /// Microseconds of a cell of the table, as a power of 2.
    pub cell_log: u8,
    /// By what power of 2 the average falls in so many cells in which nothing waits.
    pub table: [u8; TABLE],
    /// The probability at the maximum, of 2³².
    pub max_p: u32,
    /// [`ECN`], [`HARD_DROP`], [`NO_DROP`].
    pub flags: u32,
    /// Bits of the old flags that mean nothing.
    pub user_bits: u8,
}

impl Red {
    /// Reads `TCA_OPTIONS`; `old` are the flags that there are.
    ///
    /// # Errors
    /// As Linux's `red_change`. `EOPNOTSUPP` for `adaptive` and for events that blocks of filters see.
    pub fn parse(options: Option<Attribute<'_>>, old: u32) -> Result<Self, RequestError> {
        let invalid = RequestError::errno(EINVAL);
        let options = options.ok_or(invalid.clone())?.parse_nested(&POLICY, Validate::Liberal);
        let options = options.map_err(|error| RequestError::errno(error.errno))?;
        for kind in [EARLY_DROP_BLOCK, MARK_BLOCK] {
            if let Some(block) = options.get(kind).filter(|block| block.u32() != 0) {
                let text = "Events of red are not supported by this router";
                return Err(RequestError::new(EOPNOTSUPP, text).at(block.offset));
            }
        }
        let parms = options.get(PARMS).ok_or(invalid.clone())?;
        let table = options.get(STAB).and_then(|table| table.value.first_chunk().copied());
        let table: [u8; TABLE] = table.ok_or(invalid.clone())?;
        let [limit, least, most] = [0, 4, 8].map(|at| word(parms.value, at));
        let octet = |at: usize| parms.value.get(at).copied().unwrap_or(0);
        let [window_log, probability_log, cell_log, own_flags] = [12, 13, 14, 15].map(octet);
        let fits = |average: u32| u32::BITS - average.leading_zeros() + u32::from(window_log) < 32;
        let sound = fits(least)
            && fits(most)
            && cell_log < 32
            && most >= least
            && table.iter().all(|shift| *shift < 32);
        if !sound {
            return Err(invalid);
        }
        let flags = match options.get(FLAGS) {
            Some(_) if own_flags != 0 => {
                let text =
                    "sch_red: flags should not be passed both through qopt and through a dedicated attribute";
                return Err(RequestError::new(EINVAL, text));
            }
            Some(flags) => {
                let Bits { value, selector } = Bits::read(&flags);
                if (value | selector) & !SUPPORTED != 0 || value & !selector != 0 {
                    return Err(invalid);
                }
                old & !selector | value
            }
            None => old & !HISTORIC | u32::from(own_flags) & HISTORIC,
        };
        if flags & NO_DROP != 0 && flags & ECN == 0 {
            return Err(RequestError::new(EINVAL, "sch_red: nodrop mode is only meaningful with ECN"));
        }
        if flags & ADAPTIVE != 0 {
            let text = "Adaptive RED is not supported by this router";
            return Err(RequestError::new(EOPNOTSUPP, text).at(parms.offset));
        }
        let max_p = options.get(MAX_P).map_or(0, |max_p| max_p.u32());
        let user_bits = own_flags & !(HISTORIC as u8);
        Ok(Self { limit, least, most, window_log, probability_log, cell_log, table, max_p, flags, user_bits })
    }

    /// The difference of both averages; at least 1.
    pub const fn difference(&self) -> u32 {
        if self.most > self.least { self.most - self.least } else { 1 }
    }

    /// The probability at the maximum, of 2³², as Linux shows it: `red_set_parms`.
    pub const fn probability(&self) -> u32 {
        if self.max_p != 0 {
            return self.max_p;
        }
        let most = if self.probability_log < 32 { u32::MAX >> self.probability_log } else { u32::MAX };
        most.wrapping_mul(self.difference())
    }

    /// Writes `TCA_OPTIONS`.
    pub fn write(&self, reply: &mut Reply<'_>) {
        let Self { limit, least, most, window_log, probability_log, cell_log, flags, user_bits, .. } = *self;
        let nest = reply.nest_unflagged(TCA_OPTIONS);
        let mut parms = words(&[limit, least, most]);
        parms.extend([window_log, probability_log, cell_log, (flags & HISTORIC) as u8 | user_bits]);
        reply.attribute(PARMS, &parms);
        reply.u32(MAX_P, self.probability());
        Bits { value: flags, selector: SUPPORTED }.write(reply, FLAGS);
        reply.end(nest);
    }
}

/// `struct tc_red_xstats`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RedCounts {
    /// Packets dropped before the queue was full.
    pub early: u32,
    /// Packets that the queue had no room for.
    pub full: u32,
    /// Packets marked.
    pub marked: u32,
}

impl RedCounts {
    /// Writes the structure.
    pub fn bytes(&self) -> Vec<u8> {
        const OTHER: u32 = 0;
        words(&[self.early, self.full, OTHER, self.marked])
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::encap::tests::written;

    fn parse(
        parms: &[u8],
        table: &[u8],
        more: impl Fn(&mut Reply<'_>),
        old: u32,
    ) -> Result<Red, RequestError> {
        let bytes = written(|reply| {
            reply.attribute(PARMS, parms);
            reply.attribute(STAB, table);
            more(reply);
        });
        Red::parse(Some(Attribute { kind: TCA_OPTIONS, offset: 0, value: &bytes }), old)
    }

    fn parms(least: u32, most: u32, octets: [u8; 4]) -> Vec<u8> {
        [words(&[1000, least, most]), octets.to_vec()].concat()
    }

    /// Linux 6.12's answers.
    #[test]
    fn what_is_refused() {
        let text = |parms: &[u8], more: fn(&mut Reply<'_>)| {
            let error = parse(parms, &[0; TABLE], more, 0).unwrap_err();
            error.message.unwrap_or_default().into_owned()
        };
        let sound = parms(100, 200, [3, 5, 9, 0]);
        assert!(parse(&sound, &[0; TABLE], |_| {}, 0).is_ok());
        assert_eq!(text(&parms(200, 100, [3, 5, 9, 0]), |_| {}), "");
        assert_eq!(text(&parms(100, 200, [25, 5, 9, 0]), |_| {}), "");
        assert_eq!(text(&parms(100, 200, [3, 5, 32, 0]), |_| {}), "");
        assert_eq!(parse(&sound, &[32; TABLE], |_| {}, 0), Err(RequestError::errno(EINVAL)));
        assert_eq!(parse(&sound, &[0; TABLE - 1], |_| {}, 0).unwrap_err().errno, libc::ERANGE);
        assert_eq!(
            text(&parms(100, 200, [3, 5, 9, 4]), |_| {}),
            "Adaptive RED is not supported by this router"
        );
        let flags = |reply: &mut Reply<'_>| Bits { value: NO_DROP, selector: NO_DROP }.write(reply, FLAGS);
        assert_eq!(text(&sound, flags), "sch_red: nodrop mode is only meaningful with ECN");
        assert_eq!(
            text(&parms(100, 200, [3, 5, 9, 1]), flags),
            "sch_red: flags should not be passed both through qopt and through a dedicated attribute"
        );
        assert_eq!(
            text(&sound, |reply| reply.u32(MARK_BLOCK, 7)),
            "Events of red are not supported by this router"
        );
        assert_eq!(parse(&sound, &[0; TABLE], flags, ECN).unwrap().flags, ECN | NO_DROP);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
            let _ = Red::parse(Some(Attribute { kind: TCA_OPTIONS, offset: 0, value: &bytes }), 0);
        }
    }
}
